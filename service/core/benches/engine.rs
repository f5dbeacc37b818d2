//! The core's decisions alone: the planner, and whole writes through the engine with members that answer at once.

use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use raid_core::action::{Action, BufAddr, IoStatus, IoTag, Op, ReqTag, Request, VolumeId};
use raid_core::engine::{Config, Engine};
use raid_core::geometry::{Geometry, Level};
use raid_core::plan::{StripeView, WriteMask, first, plan};
use raid_core::units::Tick;
use raid_core::view::View;

const SCRATCH: u64 = 64 << 20;

fn geometry(level: Level, width: u16) -> Geometry {
    Geometry { level, width, chunk: 64 << 10, extent: 64 << 20, shards: 16 }
}

fn plans(c: &mut Criterion) {
    let mut group = c.benchmark_group("plan");
    for (level, width) in [(Level::Raid5, 5), (Level::Raid6, 8)] {
        let geometry = geometry(level, width);
        let all = first(width);
        let healthy = StripeView { readable: all, writable: all, recoverable: true };
        let degraded = StripeView { readable: all & !1, writable: all & !1, recoverable: true };
        for (view, state) in [(healthy, "healthy"), (degraded, "degraded")] {
            for (full, write) in [(1, "one column"), (first(geometry.data_columns()), "full stripe")] {
                let mask = WriteMask { full, partial: 0 };
                group.bench_function(format!("{level:?}, {width} wide, {state}, {write}"), |b| {
                    b.iter(|| plan(black_box(&geometry), black_box(&view), black_box(&mask)));
                });
            }
        }
    }
    group.finish();
}

/// An engine whose members and kernel answer everything with success, in the order of arrival.
struct Rig {
    engine: Engine,
    volume: u64,
    in_flight: VecDeque<IoTag>,
}

impl Rig {
    fn new(geometry: Geometry) -> Rig {
        let config = Config {
            requests: 256,
            stripes: 256,
            ios: 4096,
            scratch: BufAddr::new(0, 0),
            scratch_len: SCRATCH,
            handle_every_release: false,
        };
        let view = View::healthy(geometry, 1);
        let volume = view.volumes[0].size;
        Rig { engine: Engine::new(config, Arc::new(view)), volume, in_flight: VecDeque::with_capacity(4096) }
    }

    /// A batch of writes from `offset` on, each right behind the one before, until all are answered.
    fn write(&mut self, offset: u64, len: u32, count: u64) {
        let now = Tick(0);
        for i in 0..count {
            let op = Op::Write {
                offset: offset + i * u64::from(len),
                len,
                buf: BufAddr::new(0, SCRATCH + (i << 20)),
                fua: false,
            };
            let request = Request { tag: ReqTag(i), volume: VolumeId(0), op };
            assert!(self.engine.submit(now, request).is_ok(), "the slabs are larger than a batch");
        }
        let mut replies = 0;
        loop {
            while let Some(action) = self.engine.next_action() {
                match action {
                    Action::Read { io, .. }
                    | Action::Write { io, .. }
                    | Action::Flush { io, .. }
                    | Action::Zero { io, .. }
                    | Action::Compute { io, .. } => self.in_flight.push_back(io),
                    Action::Reply { .. } => replies += 1,
                    Action::Event(_) => {}
                }
            }
            let Some(io) = self.in_flight.pop_front() else { break };
            self.engine.complete(now, io, IoStatus::Ok);
        }
        assert_eq!(replies, count);
    }
}

fn writes(c: &mut Criterion) {
    let mut group = c.benchmark_group("engine write");
    for (level, width) in [(Level::Raid1, 2), (Level::Raid5, 5), (Level::Raid6, 6)] {
        let geometry = geometry(level, width);
        let stripe = geometry.stripe_bytes() as u32;
        for (len, count, what) in [
            (4096, 1, "one of 4 KiB"),
            (4096, 32, "32 of 4 KiB in a batch, side by side"),
            (stripe / 2, 2, "two halves of a stripe in a batch"),
            (stripe, 1, "one full stripe"),
        ] {
            let mut rig = Rig::new(geometry);
            let batch = u64::from(len) * count;
            // Whole stripes apart, so that each batch finds its place in a stripe where the last one did.
            let step = batch.next_multiple_of(u64::from(stripe));
            let mut offset = 0;
            group.throughput(Throughput::Elements(count));
            group.bench_function(format!("{level:?}, {width} wide, {what}"), |b| {
                b.iter(|| {
                    rig.write(offset, len, count);
                    offset = if offset + 2 * step > rig.volume { 0 } else { offset + step };
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, plans, writes);
criterion_main!(benches);
