//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::load::LoadArgs;
use crate::parity::ParityArgs;
use crate::rmw::RmwArgs;
use crate::seeds::ActivationArgs;

/// Measures raidd and any other NVMe/TCP target alike.
///
/// Exit codes: 0 all went well; 1 I/Os failed or data was wrong; 2 wrong arguments; 3 the run could not be done.
#[derive(Parser, Debug)]
#[command(name = "raidbench", version, args_conflicts_with_subcommands = true, args_override_self = true)]
pub struct Cli {
    /// What to do; without it, the options are those of `run`.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// The load.
    #[command(flatten)]
    pub load: LoadArgs,
    /// Write what is printed, and all that it was made of, to this file as JSON (`-`: standard output)
    #[arg(long, global = true, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// What to measure.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Load a target over NVMe/TCP, or an array in process
    Run(Box<RunArgs>),
    /// Probe drives by read-modify-writes in place. DESTROYS their content
    Rmw(RmwArgs),
    /// Tables about how raidd works inside
    Seeds {
        /// Which table
        #[command(subcommand)]
        table: Seeds,
    },
    /// The speed of raidd's parity kernels on this machine
    Parity(ParityArgs),
}

/// The load, behind `run`.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// The load.
    #[command(flatten)]
    pub load: LoadArgs,
}

/// Tables about how raidd works inside.
#[derive(Subcommand, Debug)]
pub enum Seeds {
    /// Activations per stripe written, handled at the last reference and at every release
    Activations(ActivationArgs),
}
