//! The simulator's command line. See service/docs/testing.md.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand, ValueEnum};
use raid_core::geometry::Level;
use raid_core::manager::Policy;
use raidsim::breaks::Break;
use raidsim::case::{Campaign, Case, Limits};
use raidsim::sweep::{Report, name_seeds_in_panics, replay_line, run_seed, sweep};
use raidsim::tally::policy_by_name;
use raidsim::world::{CutAt, Tracing};

/// Runs raid-core over simulated drives: seeded, deterministic, checked byte by byte.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Cmd,
}

#[derive(Subcommand)]
enum Cmd {
    /// Run one case and print every event.
    Run {
        /// The seed.
        #[arg(long)]
        seed: u64,
        /// Only this cut of the power, EVENT:CHOICE or EVENT:CHOICE:LOST; a second one cuts the recovery from the first.
        #[arg(long = "cut", value_name = "CUT")]
        cuts: Vec<CutAt>,
        /// Print only the last events of a failing case.
        #[arg(long)]
        quiet: bool,
        #[command(flatten)]
        only: Only,
    },
    /// Run many seeds; they go through every campaign, level, width and chunk size.
    Sweep {
        #[command(flatten)]
        length: Length,
        #[command(flatten)]
        only: Only,
    },
    /// Cut the power and print a table of what was found: for each policy, level and workload, with all members and fewer.
    Report {
        #[command(flatten)]
        length: Length,
        /// Write the table to this file as Markdown, too.
        #[arg(long, value_name = "FILE")]
        markdown: Option<PathBuf>,
        #[command(flatten)]
        only: Only,
    },
}

#[derive(clap::Args)]
struct Length {
    /// So many cases.
    #[arg(long, conflicts_with = "minutes")]
    cases: Option<u64>,
    /// For so long.
    #[arg(long)]
    minutes: Option<f64>,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Cases at a time; as many as there are processors if it is not given.
    #[arg(long)]
    threads: Option<usize>,
}

impl Length {
    /// Runs seeds for so long, and prints the first violation.
    fn sweep(&self, limits: Limits, broken: Option<Break>) -> Report {
        let began = Instant::now();
        let time = self.minutes.map(|m| Duration::from_secs_f64(m * 60.0));
        let cases = if time.is_none() { self.cases.or(Some(1000)) } else { None };
        let threads = self.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
        let go_on = |begun| cases.is_none_or(|c| begun < c) && time.is_none_or(|t| began.elapsed() < t);
        let report = sweep(self.seed, limits, broken, threads, go_on);
        if let Some(v) = &report.violation {
            v.trace.iter().for_each(|line| println!("{line}"));
            println!("{}", Case::new(v.seed, limits));
            println!("seed {}: VIOLATION: {}", v.seed, v.what);
            println!("replay: {}", replay_line(v.seed, limits, broken, &v.cuts));
        }
        report
    }
}

#[derive(clap::Args)]
struct Only {
    /// Only this level.
    #[arg(long, value_enum)]
    level: Option<LevelArg>,
    /// Only this campaign.
    #[arg(long, value_enum)]
    campaign: Option<CampaignArg>,
    /// Only this consistency policy; only in the cuts campaign.
    #[arg(long, value_parser = policy)]
    policy: Option<Policy>,
    /// Break the executor in this way, which must be found; `list` says which ways there are.
    #[arg(long = "break", value_name = "NAME")]
    broken: Option<String>,
}

fn policy(name: &str) -> Result<Policy, String> {
    policy_by_name(name).ok_or_else(|| format!("there is no policy '{name}'"))
}

#[derive(Clone, Copy, ValueEnum)]
enum LevelArg {
    Raid0,
    Raid1,
    Raid10,
    Raid5,
    Raid6,
}

#[derive(Clone, Copy, ValueEnum)]
enum CampaignArg {
    /// Engines with a manager of the simulator's own.
    Engine,
    /// Engines with the real manager: creation, assembly, crashes.
    Full,
    /// Small arrays, and a cut of the power at every event.
    Cuts,
}

impl Only {
    fn limits(&self) -> Limits {
        Limits {
            level: self.level.map(|l| match l {
                LevelArg::Raid0 => Level::Raid0,
                LevelArg::Raid1 => Level::Raid1,
                LevelArg::Raid10 => Level::Raid10,
                LevelArg::Raid5 => Level::Raid5,
                LevelArg::Raid6 => Level::Raid6,
            }),
            campaign: self.campaign.map(|c| match c {
                CampaignArg::Engine => Campaign::Engine,
                CampaignArg::Full => Campaign::Full,
                CampaignArg::Cuts => Campaign::Cuts,
            }),
            policy: self.policy,
        }
    }

    /// The deliberate fault; `Err` if there is nothing to run.
    fn broken(&self) -> Result<Option<Break>, ExitCode> {
        let Some(name) = &self.broken else { return Ok(None) };
        if name == "list" {
            print!("{}", Break::list());
            return Err(ExitCode::SUCCESS);
        }
        Break::by_name(name).map(Some).ok_or_else(|| {
            eprintln!("there is no deliberate fault '{name}'; see '--break list'");
            ExitCode::from(2)
        })
    }
}

fn main() -> ExitCode {
    name_seeds_in_panics();
    let Cli { command } = Cli::parse();
    let (Cmd::Run { only, .. } | Cmd::Sweep { only, .. } | Cmd::Report { only, .. }) = &command;
    let broken = match only.broken() {
        Ok(broken) => broken,
        Err(code) => return code,
    };
    let limits = only.limits();
    let violated = match &command {
        Cmd::Run { seed, cuts, quiet, .. } => run(*seed, limits, broken, cuts, *quiet),
        Cmd::Sweep { length, .. } => {
            let report = length.sweep(limits, broken);
            println!("{report}");
            report.violation.is_some()
        }
        Cmd::Report { length, markdown, .. } => {
            let limits = Limits { campaign: Some(Campaign::Cuts), ..limits };
            let report = length.sweep(limits, broken);
            print!("{}", report.tally.render(false));
            println!("{report}");
            if let Some(path) = markdown
                && let Err(e) = std::fs::write(path, report.tally.render(true))
            {
                eprintln!("{} cannot be written: {e}; name a file in a directory that exists", path.display());
                return ExitCode::from(2);
            }
            report.violation.is_some()
        }
    };
    if violated { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Runs one case and prints its events. True if it was violated.
fn run(seed: u64, limits: Limits, broken: Option<Break>, cuts: &[CutAt], quiet: bool) -> bool {
    println!("{}", Case::new(seed, limits));
    let tracing = if quiet { Tracing::Keep } else { Tracing::Print };
    let outcome = run_seed(seed, limits, broken, cuts, tracing);
    println!("{:?}", outcome.stats);
    let Some(what) = outcome.violation else {
        println!("seed {seed}: 0 violations");
        return false;
    };
    if quiet {
        outcome.trace.iter().for_each(|line| println!("{line}"));
    }
    println!("seed {seed}: VIOLATION: {what}");
    println!("replay: {}", replay_line(seed, limits, broken, &outcome.cuts));
    true
}
