//! The load generator: one shape, two front ends. Over NVMe/TCP it loads any target; with `--array` it has raidd load an
//! array in process, on its own reactors.

mod array;
mod connect;
mod pdu;
mod queue;
mod target;
#[cfg(test)]
mod tests;
mod vs;

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};

use crate::error::Failure;
use crate::machine::CpuUse;
use crate::pattern::Rw;
use crate::report::{Report, TableData, number};
use crate::stats::Percentiles;
use crate::units::{parse_size, parse_time, show_size};

/// The options of a load. Both front ends take those of the pattern.
#[derive(Args, Clone, Debug)]
pub struct LoadArgs {
    /// Load the NVMe/TCP target at this address
    #[arg(long, value_name = "ADDR:PORT", conflicts_with = "array")]
    pub target: Option<String>,
    /// The subsystem's NQN
    #[arg(long, requires = "target")]
    pub nqn: Option<String>,
    /// The namespace
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=0xffff_fffe))]
    pub nsid: u32,
    /// The host's NQN, where the target admits only some
    #[arg(long, default_value = "nqn.2014-08.org.nvmexpress:uuid:7d1f0a5e-5b7c-4b8e-9a51-2f3b7c9d1e60")]
    pub hostnqn: String,
    /// Digests on the connections
    #[arg(long, value_enum, default_value_t = Digests::None)]
    pub digests: Digests,
    /// Show the CPU use of this process (the target) beside the rate
    #[arg(long, value_name = "PID")]
    pub target_pid: Option<u32>,

    /// Load an array in process, on raidd's own reactors
    #[arg(long)]
    pub array: bool,
    /// With --array: the level
    #[arg(long, value_enum, default_value_t = Level::Raid5)]
    pub level: Level,
    /// With --array: the number of members
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=32))]
    pub members: u16,
    /// With --array: the size of each member
    #[arg(long, default_value = "256MiB", value_parser = parse_size)]
    pub member_size: u64,
    /// With --array: what the members are
    #[arg(long, value_enum, default_value_t = MemberKind::Ram)]
    pub member_kind: MemberKind,
    /// With --array --member-kind file: the folder for the files (default: the temporary folder)
    #[arg(long, value_name = "DIR")]
    pub member_dir: Option<String>,
    /// With --array: the chunk size
    #[arg(long, default_value = "64KiB", value_parser = parse_size)]
    pub chunk: u64,

    /// Order and direction
    #[arg(long, value_enum, default_value_t = Rw::Randread)]
    pub rw: Rw,
    /// Bytes of each access
    #[arg(long, default_value = "4KiB", value_parser = parse_size)]
    pub bs: u64,
    /// Accesses in flight on each queue
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub qd: u16,
    /// Queues, spread over the cores
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub queues: u16,
    /// Reads in a mix, in percent
    #[arg(long, default_value_t = 70, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub read_share: u8,
    /// How long to measure
    #[arg(long, default_value = "5", value_parser = parse_time)]
    pub time: Duration,
    /// How long to run before that
    #[arg(long, default_value = "1", value_parser = parse_time)]
    pub warmup: Duration,
    /// Use only this much of the namespace or volume, from its start (default: all of it)
    #[arg(long, value_parser = parse_size)]
    pub size: Option<u64>,
    /// Stamp what is written and check what is read; at the end read back all that was written
    #[arg(long)]
    pub verify: bool,
    /// Pin to these cores, one thread (with --array: one reactor) on each
    #[arg(long, value_delimiter = ',', action = clap::ArgAction::Set, value_name = "N[,N]")]
    pub core: Vec<usize>,
    /// Where the random offsets start from
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    /// Run a second load in turn with this one, and print the ratio pair by pair: the same options, but for these
    #[arg(long, value_name = "OPTION=VALUE")]
    pub vs: Vec<String>,
    /// Short for --vs target=ADDR:PORT
    #[arg(long, value_name = "ADDR:PORT")]
    pub vs_target: Option<String>,
    /// Short for --vs nqn=NQN
    #[arg(long, value_name = "NQN")]
    pub vs_nqn: Option<String>,
    /// With --vs: the number of pairs
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub pairs: u16,
}

/// Which digests a connection has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Digests {
    /// None.
    None,
    /// Of headers.
    Header,
    /// Of data.
    Data,
    /// Of both.
    Both,
}

/// Levels, as raidd names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Level {
    /// Striping.
    Raid0,
    /// Mirroring.
    Raid1,
    /// Striped mirrors.
    Raid10,
    /// One parity.
    Raid5,
    /// Two parities.
    Raid6,
}

impl Level {
    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            Level::Raid0 => "raid0",
            Level::Raid1 => "raid1",
            Level::Raid10 => "raid10",
            Level::Raid5 => "raid5",
            Level::Raid6 => "raid6",
        }
    }
}

/// What the members of an in-process array are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum MemberKind {
    /// Memory.
    Ram,
    /// Sparse files.
    File,
}

/// What a load did. The answer of `raidd bench array --json -` has the same form.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadResult {
    /// Seconds that were measured.
    pub seconds: f64,
    /// Accesses that succeeded, per second.
    pub iops: f64,
    /// Reads of them.
    pub read_iops: f64,
    /// Writes of them.
    pub write_iops: f64,
    /// Data of both, in MiB/s.
    pub mib_per_s: f64,
    /// Latencies of the reads, if there were any.
    #[serde(default)]
    pub read_latency_us: Option<Percentiles>,
    /// Latencies of the writes, if there were any.
    #[serde(default)]
    pub write_latency_us: Option<Percentiles>,
    /// Accesses that failed, those during the warm-up too. They count nowhere else.
    pub errors: u64,
    /// The same by status.
    #[serde(default)]
    pub errors_by_status: BTreeMap<String, u64>,
    /// With `--verify`: what was checked.
    #[serde(default)]
    pub verify: Option<Verified>,
    /// Plain memory copies on the same core right before and after, the mean, in GiB/s.
    pub memcpy_gib_per_s: f64,
    /// The share of the time in which the load generator waited for the target: near zero, it is the bottleneck itself.
    #[serde(default)]
    pub initiator_idle: Option<f64>,
    /// The CPU use of the target's process.
    #[serde(default)]
    pub target_cpu: Option<CpuUse>,
    /// What happened inside the array.
    #[serde(default)]
    pub array: Option<ArrayCounters>,
}

/// What was checked.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Verified {
    /// Reads whose content was known, and right.
    pub right: u64,
    /// Reads whose content was known, and wrong.
    pub wrong: u64,
    /// The first few that were wrong, in words.
    #[serde(default)]
    pub examples: Vec<String>,
}

/// What happened inside an array while it was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ArrayCounters {
    /// Reads of members.
    pub member_reads: u64,
    /// Writes of members.
    pub member_writes: u64,
    /// Stripes handled.
    pub activations: u64,
    /// Requests that joined others of their batch on a stripe.
    #[serde(default)]
    pub merged: u64,
    /// Full-stripe writes.
    pub full_stripe: u64,
    /// Read-modify-writes.
    pub rmw: u64,
    /// Reconstruct-writes.
    pub rcw: u64,
    /// The parity kernel.
    pub parity_kernel: String,
}

impl LoadResult {
    /// What must not pass for a success.
    fn trouble(&self) -> Option<String> {
        let wrong = self.verify.as_ref().map_or(0, |v| v.wrong);
        let mut parts = vec![];
        if self.errors > 0 {
            let list: Vec<_> = self.errors_by_status.iter().map(|(s, n)| format!("{n} with {s}")).collect();
            parts.push(format!("{} accesses failed: {}", self.errors, list.join(", ")));
        }
        if wrong > 0 {
            parts.push(format!("{wrong} reads returned wrong data"));
        }
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}

/// Runs the load, or the two of `--vs`, and prints the tables.
///
/// # Errors
///
/// Wrong options; a target or raidd that cannot be used; failed accesses and wrong data.
pub fn run(args: &LoadArgs, report: &mut Report) -> Result<(), Failure> {
    if let Some(other) = vs::other(args)? {
        return vs::run(args, &other, report);
    }
    let result = once(args)?;
    report.result(&result)?;
    show(&title(args), &[("", &result)], report);
    result.trouble().map_or(Ok(()), |t| Err(Failure::Errors(t)))
}

/// One load.
fn once(args: &LoadArgs) -> Result<LoadResult, Failure> {
    check(args).map_err(Failure::Usage)?;
    match &args.target {
        Some(address) => target::run(args, address),
        None => array::run(args),
    }
}

/// What clap cannot check.
fn check(args: &LoadArgs) -> Result<(), String> {
    if args.target.is_none() && !args.array {
        return Err("nothing to load: give --target ADDR:PORT --nqn NQN, or --array; see --help".into());
    }
    if args.target.is_some() && args.nqn.is_none() {
        return Err("--target wants --nqn too: the subsystem's name".into());
    }
    if args.bs == 0 || !args.bs.is_multiple_of(512) || args.bs > 32 << 20 {
        return Err(format!("--bs: {} is not a multiple of 512 bytes, at most 32 MiB", args.bs));
    }
    if args.array && args.verify {
        return Err("--verify: an array in process is loaded without looking at its data; verify over --target".into());
    }
    if args.time.is_zero() {
        return Err("--time: nothing can be measured in no time".into());
    }
    if args.core.len() > usize::from(args.queues) && !args.array {
        return Err(format!(
            "--core names {} cores for {} queues; a queue stays on one core, so raise --queues",
            args.core.len(),
            args.queues
        ));
    }
    Ok(())
}

fn title(args: &LoadArgs) -> String {
    let mix =
        if matches!(args.rw, Rw::Randrw | Rw::Seqmix) { format!(" {}% reads", args.read_share) } else { String::new() };
    let what = match (&args.target, &args.nqn) {
        (Some(target), Some(nqn)) => format!("{target} {nqn}"),
        _ => format!(
            "{} of {} {} members, {} chunks",
            args.level.name(),
            args.members,
            match args.member_kind {
                MemberKind::Ram => "RAM",
                MemberKind::File => "file",
            },
            show_size(args.chunk)
        ),
    };
    let cores: Vec<_> = args.core.iter().map(usize::to_string).collect();
    let cores = if cores.is_empty() { String::new() } else { format!(", core {}", cores.join(",")) };
    let size = show_size(args.bs);
    format!(
        "{what}: {}{mix}, {size}, depth {} on {} queue{}{cores}",
        args.rw.name(),
        args.qd,
        args.queues,
        if args.queues == 1 { "" } else { "s" }
    )
}

/// A table with a column for each result.
fn show(title: &str, results: &[(&str, &LoadResult)], report: &mut Report) {
    let mut table = TableData::new(title, std::iter::once("").chain(results.iter().map(|r| r.0)));
    let mut line = |name: &str, cell: &dyn Fn(&LoadResult) -> Option<String>| {
        let cells: Vec<Option<String>> = results.iter().map(|r| cell(r.1)).collect();
        if cells.iter().any(Option::is_some) {
            table.row(std::iter::once(name.to_owned()).chain(cells.into_iter().map(Option::unwrap_or_default)));
        }
    };
    line("IOPS", &|r| Some(number(r.iops)));
    line("MiB/s", &|r| Some(number(r.mib_per_s)));
    type Part = fn(&LoadResult) -> Option<Percentiles>;
    let parts: [(&str, Part); 2] = [("read", |r| r.read_latency_us), ("write", |r| r.write_latency_us)];
    for (name, part) in parts {
        for i in 0..8 {
            let percentile = |r: &LoadResult| part(r).map(|p| p.cells()[i]);
            if let Some((label, _)) = results.iter().find_map(|r| percentile(r.1)) {
                line(&format!("{name}, {label} us"), &|r| percentile(r).map(|p| number(p.1)));
            }
        }
    }
    line("errors", &|r| Some(r.errors.to_string()));
    line("verified right", &|r| r.verify.as_ref().map(|v| v.right.to_string()));
    line("verified WRONG", &|r| r.verify.as_ref().map(|v| v.wrong.to_string()));
    line("target, cores busy", &|r| r.target_cpu.as_ref().map(|c| number(c.cores)));
    line("target, busiest thread", &|r| r.target_cpu.as_ref().map(|c| number(c.busiest_thread)));
    line("target, in the kernel", &|r| r.target_cpu.as_ref().map(|c| number(c.system)));
    line("initiator idle", &|r| r.initiator_idle.map(|i| format!("{:.0}%", i * 100.0)));
    line("memory copy, GiB/s", &|r| Some(number(r.memcpy_gib_per_s)));
    let array = |f: fn(&ArrayCounters) -> u64| move |r: &LoadResult| r.array.as_ref().map(|a| f(a).to_string());
    line("member reads", &array(|a| a.member_reads));
    line("member writes", &array(|a| a.member_writes));
    line("stripe activations", &array(|a| a.activations));
    line("requests merged", &array(|a| a.merged));
    line("full-stripe writes", &array(|a| a.full_stripe));
    line("read-modify-writes", &array(|a| a.rmw));
    line("reconstruct-writes", &array(|a| a.rcw));
    line("parity kernel", &|r| r.array.as_ref().map(|a| a.parity_kernel.clone()));
    report.print(table);
    for (name, result) in results {
        for example in result.verify.iter().flat_map(|v| &v.examples) {
            eprintln!("raidbench: {name}{}wrong data: {example}", if name.is_empty() { "" } else { ": " });
        }
    }
}
