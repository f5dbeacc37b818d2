//! Measurements inside the process, for raidbench: it never links the shell, so it runs this binary and reads the JSON.

mod activations;
mod array;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};

use crate::block::MemberHandle;
use crate::block::backing::Backing;
use crate::dma::Memory;

pub use array::Percentiles;

/// `raidd bench`.
#[derive(Args, Debug)]
pub struct Bench {
    #[command(subcommand)]
    what: What,
    /// Write the JSON to this file (`-`: standard output)
    #[arg(long, global = true, value_name = "FILE", default_value = "-")]
    json: PathBuf,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Load on an array in this process
    Array(array::ArrayBench),
    /// Stripe activations per stripe written
    Activations(activations::ActivationBench),
    /// The parity kernels' rates
    Parity,
    /// The machine's plain memory-copy rate
    Memcpy,
}

/// Runs one and writes its JSON.
pub fn run(bench: &Bench) -> Result<(), String> {
    let json = match &bench.what {
        What::Array(options) => serde_json::to_string_pretty(&array::run(options)?),
        What::Activations(options) => serde_json::to_string_pretty(&activations::measure(options)?),
        What::Parity => serde_json::to_string_pretty(&crate::parity::bench_report()),
        What::Memcpy => serde_json::to_string_pretty(&serde_json::json!({ "memcpy_gib_per_s": memcpy_rate() })),
    };
    let json = json.map_err(|e| format!("the figures cannot be written as JSON: {e}"))?;
    if bench.json == Path::new("-") {
        println!("{json}");
        return Ok(());
    }
    std::fs::write(&bench.json, json).map_err(|e| format!("cannot write {}: {e}", bench.json.display()))
}

/// GiB/s of plain copies of 64 KiB over 64 MiB, which no core's cache holds: what the machine can do at all. Takes about
/// 60 ms; raidbench measures the same.
pub fn memcpy_rate() -> f64 {
    const PIECE: usize = 64 << 10;
    const PIECES: usize = 512;
    let from = vec![1u8; PIECE * PIECES];
    let mut to = vec![2u8; PIECE * PIECES];
    let begin = Instant::now();
    let mut copied = 0u64;
    while begin.elapsed() < Duration::from_millis(50) {
        let first = copied as usize / PIECE % PIECES;
        for piece in first..first + PIECES / 8 {
            let range = piece * PIECE..(piece + 1) * PIECE;
            to[range.clone()].copy_from_slice(std::hint::black_box(&from[range]));
        }
        std::hint::black_box(&mut to);
        copied += (PIECE * PIECES / 8) as u64;
    }
    copied as f64 / begin.elapsed().as_secs_f64() / (1u64 << 30) as f64
}

/// Members for a measurement: RAM, or sparse files in a folder.
fn members(memory: &Memory, count: u16, bytes: u64, files: Option<&Path>) -> Result<Vec<Option<MemberHandle>>, String> {
    (0..count)
        .map(|i| {
            let backing = match files {
                None => Backing::open(&format!("ram:{bytes}:bench-{i}"), None)?,
                Some(dir) => Backing::open(&dir.join(format!("bench-{i}")).display().to_string(), Some(bytes))?,
            };
            backing.populate();
            Ok(Some(backing.handle(memory)))
        })
        .collect()
}
