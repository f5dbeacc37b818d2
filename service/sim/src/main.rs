//! The simulator's command line. See service/docs/testing.md.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand, ValueEnum};
use raid_core::geometry::Level;
use raidsim::breaks::Break;
use raidsim::case::{Campaign, Case, Limits};
use raidsim::sweep::{name_seeds_in_panics, replay_line, run_seed, sweep};

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
        /// Print only the last events of a failing case.
        #[arg(long)]
        quiet: bool,
        #[command(flatten)]
        only: Only,
    },
    /// Run many seeds; they go through every level, width and chunk size.
    Sweep {
        /// So many cases.
        #[arg(long, conflicts_with = "minutes")]
        cases: Option<u64>,
        /// For so long.
        #[arg(long)]
        minutes: Option<f64>,
        /// The first seed.
        #[arg(long, default_value_t = 0)]
        seed: u64,
        #[command(flatten)]
        only: Only,
    },
}

#[derive(clap::Args)]
struct Only {
    /// Only this level.
    #[arg(long, value_enum)]
    level: Option<LevelArg>,
    /// Only this campaign.
    #[arg(long, value_enum)]
    campaign: Option<CampaignArg>,
    /// Break the executor in this way, which must be found; `list` says which ways there are.
    #[arg(long = "break", value_name = "NAME")]
    broken: Option<String>,
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
            }),
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
    match Cli::parse().command {
        Cmd::Run { seed, quiet, only } => {
            let broken = match only.broken() {
                Ok(broken) => broken,
                Err(code) => return code,
            };
            println!("{}", Case::new(seed, only.limits()));
            let outcome = run_seed(seed, only.limits(), broken, !quiet);
            println!("{:?}", outcome.stats);
            match outcome.violation {
                None => {
                    println!("seed {seed}: 0 violations");
                    ExitCode::SUCCESS
                }
                Some(what) => {
                    if quiet {
                        outcome.trace.iter().for_each(|line| println!("{line}"));
                    }
                    println!("seed {seed}: VIOLATION: {what}");
                    ExitCode::FAILURE
                }
            }
        }
        Cmd::Sweep { cases, minutes, seed, only } => {
            let (broken, limits) = match only.broken() {
                Ok(broken) => (broken, only.limits()),
                Err(code) => return code,
            };
            let began = Instant::now();
            let time = minutes.map(|m| Duration::from_secs_f64(m * 60.0));
            let cases = if time.is_none() { cases.or(Some(1000)) } else { None };
            let go_on = |done| cases.is_none_or(|c| done < c) && time.is_none_or(|t| began.elapsed() < t);
            let report = sweep(seed, limits, broken, go_on);
            if let Some((seed, what, trace)) = &report.violation {
                trace.iter().for_each(|line| println!("{line}"));
                println!("{}", Case::new(*seed, limits));
                println!("seed {seed}: VIOLATION: {what}");
                println!("replay: {}", replay_line(*seed, limits, broken));
            }
            println!("{report}");
            if report.violation.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
        }
    }
}
