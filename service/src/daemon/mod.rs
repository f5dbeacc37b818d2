//! The process: command line, configuration, state directory, quick start, demo, orderly stop.

mod arrays;
mod backend;
pub mod bench;
pub mod cli;
mod demo;
mod devices;
mod host;
mod machine;
mod process;
mod quick;
mod state;

use cli::{Arguments, Command};

/// Does what the command line says. The error is for the operator.
pub fn run(arguments: Arguments) -> Result<(), String> {
    match arguments.command {
        Some(Command::Bench(bench)) => bench::run(&bench),
        Some(Command::Serve(options)) => process::serve(options),
        Some(Command::Demo(options)) => demo::run(&options),
        None => quick::run(arguments.quick),
    }
}
