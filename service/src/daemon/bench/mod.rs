//! Measurements inside the process, for raidbench: it never links the shell, so it runs this binary and reads the JSON.

mod activations;
mod array;

use std::path::{Path, PathBuf};
use std::time::Instant;

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

/// GiB/s of a plain copy between buffers that no cache holds, the best of several passes: what the machine can do at all.
pub fn memcpy_rate() -> f64 {
    const BYTES: usize = 128 << 20;
    let from = vec![1u8; BYTES];
    let mut to = vec![2u8; BYTES];
    let mut best = 0f64;
    for _ in 0..5 {
        let begin = Instant::now();
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&mut to);
        best = best.max(BYTES as f64 / begin.elapsed().as_secs_f64() / (1u64 << 30) as f64);
    }
    best
}

/// Members for a measurement: RAM, or sparse files in a folder.
fn members(memory: &Memory, count: u16, bytes: u64, files: Option<&Path>) -> Result<Vec<Option<MemberHandle>>, String> {
    (0..count)
        .map(|i| {
            let backing = match files {
                None => Backing::open(&format!("ram:{bytes}:bench-{i}"), None)?,
                Some(dir) => Backing::open(&dir.join(format!("bench-{i}")).display().to_string(), Some(bytes))?,
            };
            Ok(Some(backing.handle(memory)))
        })
        .collect()
}
