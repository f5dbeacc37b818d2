//! The process: command line, configuration, state directory, quick start, demo, orderly stop.

mod arrays;
pub mod bench;
pub mod cli;
mod devices;
mod host;
mod state;

use cli::{Arguments, Command};

/// Does what the command line says. The error is for the operator.
pub fn run(arguments: Arguments) -> Result<(), String> {
    match arguments.command {
        Some(Command::Bench(bench)) => bench::run(&bench),
        _ => Err("not here yet".into()),
    }
}
