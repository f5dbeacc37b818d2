//! raidctl: the command line of raidd's control plane.

mod cli;
mod client;
mod commands;
mod error;
mod output;
mod progress;
mod size;
mod view;

use std::process::ExitCode;

use clap::Parser;

use cli::{Arguments, Format};

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let format = arguments.output;
    let result = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(commands::run(arguments)),
        Err(e) => Err(error::Failure::new(error::Exit::Other, format!("no runtime could be started: {e}"))),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            match format {
                Format::Json => eprintln!("{}", failure.json()),
                Format::Table | Format::Yaml => eprintln!("raidctl: {failure}"),
            }
            ExitCode::from(failure.exit as u8)
        }
    }
}
