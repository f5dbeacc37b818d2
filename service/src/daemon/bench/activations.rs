//! Stripe activations per stripe written: handling at the last reference of a batch, against handling at every release.
//!
//! Two counts that are easily taken for one. An activation does work: it plans the stripe and orders its I/O. What md counted
//! in 2014 ("raid5: avoid release list until last reference of the stripe") are queueings: each 4 KiB of a write and each
//! answer of a member released the row (md's stripe_head) and queued it for the thread that looks whether it can go on,
//! mostly in vain. Since then, and here always, only the last reference does.
//!
//! This measures the engine alone: members answer in the order of arrival and no byte is moved, because only the engine's
//! decisions count.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use raid_core::action::{Action, BufAddr, IoStatus, IoTag, Op, ReqTag, Request, VolumeId};
use raid_core::engine::{Config, Engine};
use raid_core::geometry::{Geometry, Level};
use raid_core::units::{BLOCK_SIZE, Tick};
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
    /// Distinct rows of each batch, summed up.
    rows_written: u64,
    /// How often a row was queued to be looked at: at the end of its batch, and when the last of its reads or writes came
    /// home.
    queueings_last_reference: u64,
    /// How often it would have been if each 4 KiB of a write and each member's answer had queued it.
    queueings_every_release: u64,
}

#[derive(Default)]
struct Count {
    writes: u64,
    stripes: u64,
    activations: u64,
    member_ios: u64,
    /// Releases of a stripe: 4 KiB pieces of writes, and answers of members.
    releases: u64,
    /// Those after which nothing was left to wait for.
    last_releases: u64,
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
                // With chunks of one block a stripe is a row.
                let row = Geometry { chunk: BLOCK_SIZE, ..geometry };
                let rows_alone = run(options, row, pattern == "random", bytes, false);
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
                    rows_written: rows_alone.stripes,
                    queueings_last_reference: rows_alone.last_releases,
                    queueings_every_release: rows_alone.releases,
                });
            }
        }
    }
    Ok(Table { rows })
}

fn run(options: &ActivationBench, geometry: Geometry, random: bool, bytes: u32, handle_every_release: bool) -> Count {
    let config = Config {
        requests: 1024,
        stripes: 4096,
        ios: 32768,
        scratch: BufAddr::new(0, 0),
        scratch_len: 64 << 20,
        handle_every_release,
    };
    let mut engine = Engine::new(config, Arc::new(View::healthy(geometry, 1)));
    let mut random_state = 0x9E37_79B9_7F4A_7C15u64.wrapping_mul(2 * options.seed + 1);
    let mut next = 0u64;
    let mut count = Count::default();
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
            let mut request = Request { tag: ReqTag(i), volume: VolumeId(0), op };
            while let Err(busy) = engine.submit(Tick(0), request) {
                request = busy.0;
                drain(&mut engine, geometry.chunk, &mut count);
            }
            written += u64::from(bytes);
            count.releases += u64::from(bytes / BLOCK_SIZE);
        }
        count.stripes += touched.len() as u64;
        count.last_releases += touched.len() as u64;
        drain(&mut engine, geometry.chunk, &mut count);
    }
    let counters = engine.counters();
    count.writes = written / u64::from(bytes);
    count.activations = counters.activations;
    count.member_ios = counters.member_reads + counters.member_writes;
    count
}

/// Lets the members answer, in the order of arrival, until nothing is in flight.
fn drain(engine: &mut Engine, chunk: u32, count: &mut Count) {
    let mut in_flight: VecDeque<(IoTag, Option<u64>)> = VecDeque::new();
    // Member I/Os by stripe. The one group begins at each member's first byte.
    let mut outstanding: BTreeMap<u64, u32> = BTreeMap::new();
    loop {
        while let Some(action) = engine.next_action() {
            match action {
                Action::Read { io, offset, .. }
                | Action::Write { io, offset, .. }
                | Action::Zero { io, offset, .. } => {
                    let stripe = offset / u64::from(chunk);
                    *outstanding.entry(stripe).or_default() += 1;
                    in_flight.push_back((io, Some(stripe)));
                }
                Action::Flush { io, .. } | Action::Compute { io, .. } => in_flight.push_back((io, None)),
                Action::Reply { .. } | Action::Event(_) => {}
            }
        }
        let Some((io, stripe)) = in_flight.pop_front() else { return };
        if let Some(left) = stripe.and_then(|stripe| outstanding.get_mut(&stripe)) {
            *left -= 1;
            count.releases += 1;
            count.last_releases += u64::from(*left == 0);
        }
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
        // A full row of 4 + 1: queued at the end of the batch and of its writes, not for each of 4 pieces and 5 answers.
        let full = rows.iter().find(|r| r.pattern == "random" && r.write_size == 16384).expect("a row's size");
        assert_eq!(full.queueings_last_reference, 2 * full.rows_written, "{full:?}");
        assert_eq!(full.queueings_every_release, 4 * full.writes + 5 * full.rows_written, "{full:?}");
        // Sixteen 4 KiB writes of one chunk in a batch: handling at every release must cost visibly more.
        let small = rows.iter().find(|r| r.pattern == "sequential" && r.write_size == 4096).expect("the first size");
        assert!(small.activations_every_release > small.stripes_written, "{small:?}");
        assert!(small.member_ios_every_release > small.member_ios_last_reference, "{small:?}");
    }
}
