//! The project's chores, so that each is one command: `cargo xtask test`, `cargo xtask vm initiator`,
//! `cargo xtask crash`.

mod crash;
mod packages;
#[cfg(feature = "proto")]
mod proto;
#[cfg(not(feature = "proto"))]
#[path = "proto_without.rs"]
mod proto;
mod test;
mod vm;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Chores of the raidd workspace")]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Run every test: formatting, lints, unit, exhaustive, property, simulation, end to end, and the guest.
    Test {
        /// The inner loop: no guest, no lints, a short simulation.
        #[arg(long)]
        quick: bool,
    },
    /// Generate the Rust code and the descriptor set of raid.v1 from proto/raid/v1.
    Proto {
        /// Change nothing; fail if what is committed differs.
        #[arg(long)]
        check: bool,
    },
    /// Run a job in a Linux guest against a raidd on this host.
    Vm {
        #[command(subcommand)]
        job: VmJob,
    },
    /// Kill raidd in the middle of a guest's writes, over drives with volatile caches, and check every promise that a
    /// sync has made.
    Crash(crash::Options),
    /// A part of the crash test that runs inside the guest.
    #[command(hide = true)]
    Guest {
        #[command(subcommand)]
        part: crash::guest::Part,
    },
}

#[derive(Subcommand)]
enum VmJob {
    /// The guest's kernel connects, formats, fills and checks while a member is failed and replaced.
    Initiator,
}

fn main() -> ExitCode {
    let result = match Arguments::parse().chore {
        Chore::Test { quick } => test::run(quick),
        Chore::Proto { check } => proto::run(check),
        Chore::Vm { job: VmJob::Initiator } => vm::initiator(),
        Chore::Crash(options) => crash::run(&options),
        Chore::Guest { part } => crash::guest::run(part),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
