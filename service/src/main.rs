//! The daemon's entry.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match raidd::daemon::run(raidd::daemon::cli::Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("raidd: {message}");
            ExitCode::FAILURE
        }
    }
}
