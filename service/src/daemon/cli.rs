//! raidd's command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// The arguments of `raidd`.
#[derive(Parser, Debug)]
#[command(
    name = "raidd",
    version,
    about = "Redundant arrays in user space, served as NVMe-oF namespaces.",
    long_about = "Without a subcommand raidd starts the embedded default: five sparse 1 GiB files under the data directory as \
                  RAID-5, one volume, exported on 127.0.0.1:4420. Started again, it assembles the same array. 'raidctl' steers it.",
    after_help = "RAIDD_LOG=LEVEL sets what is logged to standard error: error, warn, info, debug or trace.",
    args_conflicts_with_subcommands = true
)]
pub struct Arguments {
    #[command(subcommand)]
    /// What to do.
    pub command: Option<Command>,
    #[command(flatten)]
    /// Options of the quick start.
    pub quick: QuickStart,
}

/// Options of the embedded default.
#[derive(Args, Debug, Clone)]
pub struct QuickStart {
    /// Where the default keeps its member files, its state and its control socket
    #[arg(long, default_value = "raidd-data", value_name = "DIR")]
    pub data_dir: PathBuf,
    /// Where the default's volume is exported
    #[arg(long, default_value = "127.0.0.1:4420", value_name = "ADDR:PORT")]
    pub listen: SocketAddr,
    #[command(flatten)]
    /// Options that every way of starting has.
    pub common: Common,
}

/// Options that every way of starting has.
#[derive(Args, Debug, Clone)]
pub struct Common {
    /// Address of the status page and /metrics; "none" turns them off
    #[arg(long, default_value = "127.0.0.1:9420", value_name = "ADDR:PORT")]
    pub http: String,
    /// Number of reactors; the default leaves one core to the control plane where there are several
    #[arg(long, value_name = "N")]
    pub reactors: Option<usize>,
    /// Cores to pin the reactors to, such as 0,2,3
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub cores: Vec<usize>,
    /// What a reactor does when it has nothing to do
    #[arg(long, value_enum, default_value = "adaptive")]
    pub polling: Polling,
    /// Buffer memory of each reactor, in MiB
    #[arg(long, default_value_t = 48, value_name = "MIB", value_parser = clap::value_parser!(u32).range(16..=16384))]
    pub buffer_mib: u32,
    /// Memory for old data and parity, for each array and reactor, in MiB; bounds width times chunk size
    #[arg(long, default_value_t = 8, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub scratch_mib: u32,
    /// Seconds to wait for missing members before an array is assembled degraded
    #[arg(long, default_value_t = 5, value_name = "SECONDS")]
    pub assembly_wait: u64,
    /// Let raidctl inject faults into members; for tests only
    #[arg(long)]
    pub enable_faults: bool,
    /// Give every member a simulated volatile write cache with this seed: what is not flushed is lost, in part and in any
    /// order, when the process is killed. DESTROYS DATA BY DESIGN; for crash tests only
    #[arg(long, value_name = "SEED", requires = "enable_faults")]
    pub volatile_cache: Option<u64>,
    /// The simulated caches answer flushes and do not do them: a crash test must then fail
    #[arg(long, hide = true, requires = "volatile_cache")]
    pub volatile_cache_lies: bool,
}

/// What an idle reactor does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Polling {
    /// Spin shortly, then sleep until something happens
    Adaptive,
    /// Never sleep
    Busy,
}

/// The subcommands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Serve the arrays that the state directory knows, and nothing by default
    Serve(Serve),
    /// Show the whole thing in a temporary directory: write, lose a member, rebuild, verify; half a minute
    Demo(Demo),
    /// Measurements inside the process, for raidbench
    #[command(hide = true)]
    Bench(super::bench::Bench),
}

/// Options of `raidd serve`.
#[derive(Args, Debug, Clone)]
pub struct Serve {
    /// Where exports and member addresses are kept over a restart
    #[arg(long, default_value = "/var/lib/raidd", value_name = "DIR")]
    pub state_dir: PathBuf,
    /// The control socket; in the state directory by default
    #[arg(long, value_name = "SOCKET")]
    pub control: Option<PathBuf>,
    #[command(flatten)]
    /// Options that every way of starting has.
    pub common: Common,
}

/// Options of `raidd demo`.
#[derive(Args, Debug, Clone)]
pub struct Demo {
    /// Keep the temporary directory
    #[arg(long)]
    pub keep: bool,
    /// MiB to write and verify
    #[arg(long, default_value_t = 512, value_name = "MIB", value_parser = clap::value_parser!(u32).range(8..=3072))]
    pub mib: u32,
    /// Seconds of the random read and write measurement
    #[arg(long, default_value_t = 3, value_name = "SECONDS")]
    pub seconds: u64,
}
