//! Load generator, drive probe, tables: measures raidd and any other NVMe/TCP target alike.
#![forbid(unsafe_code)]

mod cli;
mod daemon;
mod error;
mod load;
mod machine;
mod parity;
mod pattern;
mod report;
mod rmw;
mod seeds;
mod stats;
mod units;
mod verify;

use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, Command, Seeds};
use error::Failure;
use report::Report;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let mut report = Report::new(cli.json.as_deref());
    let outcome = match &cli.command {
        None => load::run(&cli.load, &mut report),
        Some(Command::Run(run)) => load::run(&run.load, &mut report),
        Some(Command::Rmw(args)) => rmw::run(args, &mut report),
        Some(Command::Seeds { table: Seeds::Activations(args) }) => seeds::activations(args, &mut report),
        Some(Command::Parity(args)) => parity::run(args, &mut report),
    };
    // What was measured before a failure is worth keeping.
    let outcome = outcome.and(report.write(cli.json.as_deref()).map_err(|e| {
        let path = cli.json.as_deref().unwrap_or("-".as_ref()).display().to_string();
        Failure::Run(format!("cannot write {path}: {e}"))
    }));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("raidbench: {failure}");
            ExitCode::from(failure.code())
        }
    }
}
