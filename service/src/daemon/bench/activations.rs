//! Stripe activations per stripe written: handling at the last reference of a batch, against handling at every release.
//!
//! This measures the engine alone: members answer in the order of arrival and no byte is moved, because only the engine's
//! decisions count.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use raid_core::action::{Action, BufAddr, IoStatus, IoTag, Op, ReqTag, Request, VolumeId};
use raid_core::engine::{Config, Engine};
use raid_core::geometry::{Geometry, Level};
use raid_core::units::Tick;
use raid_core::view::View;
use serde::Serialize;

/// Bytes that are written for each row of the table.
const BYTES: u64 = 64 << 20;
/// Bytes of a batch at most, so that large writes still come in batches of several.
const BATCH_BYTES: u64 = 8 << 20;

/// What to measure. Options and answer are described in `bench/README.md`.
#[derive(clap::Args, Debug, Clone)]
pub struct ActivationBench {
    /// Members of the arrays
    #[arg(long, default_value_t = 5)]
    members: u16,
    /// Bytes of a chunk
    #[arg(long, default_value_t = 64 << 10)]
    chunk: u32,
    /// Writes of a batch: what a queue depth of as many brings in one pass of the reactor
    #[arg(long, default_value_t = 64)]
    batch: u64,
    /// Where random offsets start from
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// The table.
#[derive(Debug, Serialize)]
pub struct Table {
    rows: Vec<Row>,
}

/// One row of the table.
#[derive(Debug, Serialize)]
pub struct Row {
    level: &'static str,
    pattern: &'static str,
    write_size: u32,
    writes: u64,
    /// Distinct stripes of each batch, summed up.
    stripes_written: u64,
    activations_last_reference: u64,
    activations_every_release: u64,
    member_ios_last_reference: u64,
    member_ios_every_release: u64,
}

struct Count {
    writes: u64,
    stripes: u64,
    activations: u64,
    member_ios: u64,
}

/// Measures all rows: RAID-5 and RAID-6, both orders, all sizes.
pub fn measure(options: &ActivationBench) -> Result<Table, String> {
    let mut rows = Vec::new();
    for (level, name) in [(Level::Raid5, "raid5"), (Level::Raid6, "raid6")] {
        let extent = 64 << 20;
        let geometry = Geometry { level, width: options.members, chunk: options.chunk, extent, shards: 16 };
        geometry.validate().map_err(|e| e.to_string())?;
        for pattern in ["sequential", "random"] {
            for shift in 12..=20 {
                let bytes = 1u32 << shift;
                let last = run(options, geometry, pattern == "random", bytes, false);
                let every = run(options, geometry, pattern == "random", bytes, true);
                rows.push(Row {
                    level: name,
                    pattern,
                    write_size: bytes,
                    writes: last.writes,
                    stripes_written: last.stripes,
                    activations_last_reference: last.activations,
                    activations_every_release: every.activations,
                    member_ios_last_reference: last.member_ios,
                    member_ios_every_release: every.member_ios,
                });
            }
        }
    }
    Ok(Table { rows })
}

fn run(options: &ActivationBench, geometry: Geometry, random: bool, bytes: u32, handle_every_release: bool) -> Count {
    let config = Config {
        requests: 1024,
        stripes: 1024,
        ios: 8192,
        scratch: BufAddr::new(0, 0),
        scratch_len: 64 << 20,
        handle_every_release,
    };
    let mut engine = Engine::new(config, Arc::new(View::healthy(geometry, 1)));
    let mut random_state = 0x9E37_79B9_7F4A_7C15u64.wrapping_mul(2 * options.seed + 1);
    let mut next = 0u64;
    let mut stripes = 0;
    let batch = options.batch.min(BATCH_BYTES / u64::from(bytes)).max(1);
    let mut written = 0;
    while written < BYTES {
        let mut touched = BTreeSet::new();
        for i in 0..batch {
            let offset = if random {
                random_state ^= random_state << 13;
                random_state ^= random_state >> 7;
                random_state ^= random_state << 17;
                random_state % (geometry.group_bytes() / u64::from(bytes)) * u64::from(bytes)
            } else {
                next = (next + u64::from(bytes)) % (geometry.group_bytes() - u64::from(bytes));
                next
            };
            let first = offset / geometry.stripe_bytes();
            let last = (offset + u64::from(bytes) - 1) / geometry.stripe_bytes();
            touched.extend(first..=last);
            let buf = BufAddr::new(1, i << 20);
            let op = Op::Write { offset, len: bytes, buf, fua: false };
            submit(&mut engine, Request { tag: ReqTag(i), volume: VolumeId(0), op });
            written += u64::from(bytes);
        }
        stripes += touched.len() as u64;
        drain(&mut engine);
    }
    let counters = engine.counters();
    let writes = written / u64::from(bytes);
    Count {
        writes,
        stripes,
        activations: counters.activations,
        member_ios: counters.member_reads + counters.member_writes,
    }
}

fn submit(engine: &mut Engine, mut request: Request) {
    while let Err(busy) = engine.submit(Tick(0), request) {
        request = busy.0;
        drain(engine);
    }
}

/// Lets the members answer, in the order of arrival, until nothing is in flight.
fn drain(engine: &mut Engine) {
    let mut in_flight: VecDeque<IoTag> = VecDeque::new();
    loop {
        while let Some(action) = engine.next_action() {
            match action {
                Action::Read { io, .. }
                | Action::Write { io, .. }
                | Action::Flush { io, .. }
                | Action::Zero { io, .. }
                | Action::Compute { io, .. } => in_flight.push_back(io),
                Action::Reply { .. } | Action::Event(_) => {}
            }
        }
        let Some(io) = in_flight.pop_front() else { return };
        engine.complete(Tick(0), io, IoStatus::Ok);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stripe_is_activated_once_per_batch_and_more_often_at_every_release() {
        let options = ActivationBench { members: 5, chunk: 64 << 10, batch: 64, seed: 1 };
        let rows = measure(&options).expect("a valid geometry").rows;
        assert_eq!(rows.len(), 2 * 2 * 9);
        for row in &rows {
            assert_eq!(row.activations_last_reference, row.stripes_written, "{row:?}");
            assert!(row.activations_every_release >= row.stripes_written, "{row:?}");
        }
        // Sixteen 4 KiB writes of one chunk in a batch: handling at every release must cost visibly more.
        let small = rows.iter().find(|r| r.pattern == "sequential" && r.write_size == 4096).expect("the first size");
        assert!(small.activations_every_release > small.stripes_written, "{small:?}");
        assert!(small.member_ios_every_release > small.member_ios_last_reference, "{small:?}");
    }
}
