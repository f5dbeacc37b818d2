//! The part of the crash test that runs inside the guest: this same program, started by the guest's job.
//!
//! The agent runs what the host sends and answers with output and exit code; all decisions are the host's. The load and the
//! checker are started by it.

mod load;
mod verify;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use clap::Subcommand;

/// What the guest does.
#[derive(Subcommand)]
pub enum Part {
    /// Run what the host sends.
    Agent {
        /// The host.
        host: String,
    },
    /// Write, sync, and tell the host what was promised, until nothing can be written any more.
    Load(load::Options),
    /// Compare files with what was promised.
    Verify {
        /// The seed of the contents.
        seed: u64,
        /// The promises.
        ledger: PathBuf,
    },
}

/// Runs a part.
pub fn run(part: Part) -> Result<(), String> {
    match part {
        Part::Agent { host } => agent(&host).map_err(|e| format!("the host at {host}: {e}")),
        Part::Load(options) => load::run(&options),
        Part::Verify { seed, ledger } => verify::run(seed, &ledger),
    }
}

/// Takes `run LENGTH` and a script of that length; answers `done CODE LENGTH` and the output. Ends with the connection.
fn agent(host: &str) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(host)?;
    stream.set_nodelay(true)?;
    stream.write_all(b"agent\n")?;
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let len = line.trim().strip_prefix("run ").and_then(|n| n.parse().ok()).unwrap_or(0);
        let mut script = vec![0; len];
        reader.read_exact(&mut script)?;
        let script = format!("exec 2>&1\n{}", String::from_utf8_lossy(&script));
        let output = Command::new("bash").arg("-c").arg(script).stdin(Stdio::null()).output()?;
        let code = output.status.code().unwrap_or(255);
        stream.write_all(format!("done {code} {}\n", output.stdout.len()).as_bytes())?;
        stream.write_all(&output.stdout)?;
    }
}
