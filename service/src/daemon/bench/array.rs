//! Load on an array inside the process: the daemon's own reactors, lanes and volumes, over RAM or file members, without a
//! network. What SPDK's bdevperf is to SPDK.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU16;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use hdrhistogram::Histogram;
use raid_core::action::{MemberId, Seg, VolumeId};
use raid_core::engine::{Config, Engine};
use raid_core::geometry::{Geometry, Level};
use raid_core::view::{GroupView, MemberState, SlotState, SlotView, View, VolumeView};
use serde::Serialize;

use crate::block::{BlockDevice, BlockInfo, Completions, Io, IoOp};
use crate::dma::Slot;
use crate::reactor::{self, Context, Poller};
use crate::volume::{HostMessage, Lane, LaneConfig, LaneMessage, LanePoller, Volume};

/// What to measure.
#[derive(Args, Debug, Clone, Serialize)]
pub struct ArrayBench {
    /// RAID level
    #[arg(long, default_value = "5")]
    pub level: String,
    /// Members
    #[arg(long, default_value_t = 5)]
    pub members: u16,
    /// Folder for file members; RAM where it is not given
    #[arg(long)]
    pub files: Option<std::path::PathBuf>,
    /// MiB of each member
    #[arg(long, default_value_t = 256)]
    pub member_mib: u64,
    /// KiB of a chunk
    #[arg(long, default_value_t = 64)]
    pub chunk_kib: u32,
    /// Pattern
    #[arg(long, value_enum, default_value = "randread")]
    pub rw: Pattern,
    /// Bytes of an I/O
    #[arg(long, default_value_t = 4096)]
    pub bs: u32,
    /// I/Os in flight on each core
    #[arg(long, default_value_t = 32)]
    pub qd: usize,
    /// Seconds to measure
    #[arg(long, default_value_t = 3.0)]
    pub time: f64,
    /// Seconds before the measurement
    #[arg(long, default_value_t = 0.5)]
    pub warmup: f64,
    /// Reactors, on cores 0, 1, …
    #[arg(long, default_value_t = 1)]
    pub cores: usize,
}

/// Access patterns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// Sequential reads
    Read,
    /// Sequential writes
    Write,
    /// Random reads
    Randread,
    /// Random writes
    Randwrite,
    /// Random, half of each
    Randrw,
}

/// The figures.
#[derive(Debug, Serialize)]
pub struct ArrayReport {
    options: ArrayBench,
    seconds: f64,
    ios: u64,
    errors: u64,
    iops: f64,
    mib_per_s: f64,
    latency_us: Percentiles,
    full_stripe: u64,
    read_modify_write: u64,
    reconstruct_write: u64,
    activations: u64,
    merged: u64,
    member_reads: u64,
    member_writes: u64,
    memcpy_gib_per_s: f64,
}

/// Latency in microseconds.
#[derive(Debug, Serialize)]
pub struct Percentiles {
    mean: f64,
    p50: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

impl Percentiles {
    /// Of a histogram of nanoseconds.
    pub fn of(histogram: &Histogram<u64>) -> Percentiles {
        let us = |n: u64| n as f64 / 1e3;
        Percentiles {
            mean: histogram.mean() / 1e3,
            p50: us(histogram.value_at_quantile(0.5)),
            p99: us(histogram.value_at_quantile(0.99)),
            p999: us(histogram.value_at_quantile(0.999)),
            max: us(histogram.max()),
        }
    }
}

/// What one core's generator did.
struct Outcome {
    ios: u64,
    errors: u64,
    seconds: f64,
    latency: Histogram<u64>,
    counters: raid_core::engine::Counters,
}

/// Keeps `qd` I/Os in flight on one volume.
struct Generator {
    volume: Volume,
    lane: Rc<RefCell<Lane>>,
    options: ArrayBench,
    slots: Vec<Slot>,
    begun: Vec<Instant>,
    ready: Vec<usize>,
    completions: Completions,
    random: u64,
    position: u64,
    span: (u64, u64),
    start: Instant,
    measuring: Option<Instant>,
    base: raid_core::engine::Counters,
    outcome: Outcome,
    report: Option<crossbeam_channel::Sender<Outcome>>,
}

impl Generator {
    fn next_offset(&mut self) -> u64 {
        let bs = u64::from(self.options.bs);
        let blocks = (self.span.1 - self.span.0) / bs;
        match self.options.rw {
            Pattern::Read | Pattern::Write => {
                self.position = (self.position + 1) % blocks;
                self.span.0 + self.position * bs
            }
            _ => {
                self.random ^= self.random << 13;
                self.random ^= self.random >> 7;
                self.random ^= self.random << 17;
                self.span.0 + self.random % blocks * bs
            }
        }
    }

    fn reads(&self) -> bool {
        match self.options.rw {
            Pattern::Read | Pattern::Randread => true,
            Pattern::Write | Pattern::Randwrite => false,
            Pattern::Randrw => self.random & (1 << 40) != 0,
        }
    }

    fn finish(&mut self) {
        let Some(report) = self.report.take() else { return };
        let counters = *self.lane.borrow().counters();
        self.outcome.counters = subtract(&counters, &self.base);
        self.outcome.seconds = self.measuring.map_or(0.0, |m| m.elapsed().as_secs_f64());
        let outcome = std::mem::replace(&mut self.outcome, empty());
        // The other side waits for as many as there are cores.
        let _ = report.send(outcome);
    }
}

fn empty() -> Outcome {
    Outcome { ios: 0, errors: 0, seconds: 0.0, latency: histogram(), counters: Default::default() }
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 100_000_000_000, 3).expect("bounds that the library allows")
}

fn subtract(a: &raid_core::engine::Counters, b: &raid_core::engine::Counters) -> raid_core::engine::Counters {
    raid_core::engine::Counters {
        full_stripe: a.full_stripe - b.full_stripe,
        read_modify_write: a.read_modify_write - b.read_modify_write,
        reconstruct_write: a.reconstruct_write - b.reconstruct_write,
        activations: a.activations - b.activations,
        merged: a.merged - b.merged,
        member_reads: a.member_reads - b.member_reads,
        member_writes: a.member_writes - b.member_writes,
        ..*a
    }
}

impl Poller for Generator {
    fn name(&self) -> &str {
        "generator"
    }

    fn poll(&mut self, _cx: &mut Context) -> bool {
        if self.report.is_none() {
            return false;
        }
        let mut completions = std::mem::take(&mut self.completions);
        self.volume.poll(&mut completions);
        let now = Instant::now();
        if self.measuring.is_none() && now.duration_since(self.start).as_secs_f64() >= self.options.warmup {
            self.measuring = Some(now);
            self.base = *self.lane.borrow().counters();
            self.outcome = empty();
        }
        for done in completions.drain(..) {
            let slot = done.tag as usize;
            self.outcome.ios += 1;
            if !done.status.is_ok() {
                self.outcome.errors += 1;
            }
            self.outcome.latency.saturating_record(now.duration_since(self.begun[slot]).as_nanos() as u64);
            self.ready.push(slot);
        }
        self.completions = completions;
        if self.measuring.is_some_and(|m| now.duration_since(m).as_secs_f64() >= self.options.time) {
            self.finish();
            return true;
        }
        let mut worked = false;
        while let Some(slot) = self.ready.pop() {
            let offset = self.next_offset();
            let op = if self.reads() { IoOp::Read } else { IoOp::Write { fua: false } };
            let io = Io { tag: slot as u64, op, offset, len: u64::from(self.options.bs) };
            self.begun[slot] = now;
            let seg = Seg { addr: self.slots[slot].addr(), len: self.options.bs };
            if self.volume.submit(io, &[seg]).is_err() {
                self.ready.push(slot);
                break;
            }
            worked = true;
        }
        self.volume.ring();
        worked
    }
}

/// The level that an option names.
pub fn level(name: &str) -> Result<Level, String> {
    Ok(match name {
        "0" => Level::Raid0,
        "1" => Level::Raid1,
        "10" => Level::Raid10,
        "5" => Level::Raid5,
        "6" => Level::Raid6,
        _ => return Err(format!("'{name}' is no level: give 0, 1, 10, 5 or 6")),
    })
}

fn view(options: &ArrayBench) -> Result<View, String> {
    let bytes = options.member_mib << 20;
    let extent = 16u64 << 20;
    if bytes < extent || options.bs == 0 || options.bs % 512 != 0 || options.qd == 0 || options.members == 0 {
        return Err("a member needs at least 16 MiB, --bs a multiple of 512, --qd and --members at least 1".into());
    }
    let geometry = Geometry {
        level: level(&options.level)?,
        width: options.members,
        chunk: options.chunk_kib << 10,
        extent,
        shards: 16,
    };
    geometry.validate().map_err(|e| e.to_string())?;
    let groups: Vec<GroupView> = (0..bytes / extent)
        .map(|g| GroupView {
            slots: (0..options.members)
                .map(|m| SlotView { member: MemberId(m), offset: g * extent, state: SlotState::InSync })
                .collect(),
            synced: true,
        })
        .collect();
    Ok(View {
        generation: 1,
        members: vec![MemberState::Active; options.members as usize],
        volumes: vec![VolumeView {
            id: VolumeId(0),
            size: geometry.group_bytes() * groups.len() as u64,
            geometry,
            track_dirty: false,
            dirty: false,
            online: true,
            groups,
        }],
    })
}

/// Runs it.
pub fn run(options: &ArrayBench) -> Result<ArrayReport, String> {
    let view = Arc::new(view(options)?);
    let geometry = view.volumes[0].geometry;
    let scratch = (8u64 << 20).max(2 * Engine::scratch_needed(&geometry));
    let region = scratch + (options.qd as u64 * (u64::from(options.bs) + 8192) * 2).max(32 << 20);
    let cores: Vec<usize> = (0..options.cores).collect();
    let (memory, reactors) = reactor::start(&cores, region, reactor::Polling::Busy)
        .map_err(|e| format!("the reactors cannot be started: {e}"))?;
    let members = super::members(&memory, options.members, options.member_mib << 20, options.files.as_deref())?;
    let routes: crate::volume::Routes =
        (0..geometry.shards).map(|s| AtomicU16::new(s % options.cores as u16)).collect();
    let mail: Vec<_> = reactors.iter().map(|r| reactor::mailbox::<LaneMessage>(4096, r.waker())).collect();
    let senders: Vec<_> = mail.iter().map(|(sender, _)| sender.clone()).collect();
    let (host, host_mail) = reactor::mailbox::<HostMessage>(4096, reactors[0].waker());
    let (report, outcomes) = crossbeam_channel::unbounded();
    let size = view.volumes[0].size;
    for (i, (reactor, (_, inbox))) in reactors.iter().zip(mail).enumerate() {
        let config_peers = senders.iter().enumerate().map(|(j, s)| (j != i).then(|| s.clone())).collect();
        let (memory, routes, host, report, options) =
            (memory.clone(), routes.clone(), host.clone(), report.clone(), options.clone());
        let (view, members) = (view.clone(), members.clone());
        let sender = senders[i].clone();
        reactor
            .run(Box::new(move |reactor| {
                let scratch_addr = reactor.pool().reserve(scratch).expect("the region was sized for it");
                let engine = Config {
                    requests: 4096,
                    stripes: 2048,
                    ios: 16384,
                    scratch: scratch_addr,
                    scratch_len: scratch,
                    handle_every_release: false,
                };
                let lane = Rc::new(RefCell::new(Lane::new(LaneConfig {
                    reactor: i as u16,
                    engine,
                    memory,
                    routes,
                    peers: config_peers,
                    host,
                    inbox,
                })));
                // The lane takes its first view from its mailbox, as in the daemon.
                let _ = sender.try_send(LaneMessage::View { tag: 0, view: view.clone(), members });
                let slots: Vec<Slot> = (0..options.qd)
                    .map(|_| reactor.pool().alloc(options.bs).expect("the region was sized for it"))
                    .collect();
                reactor.add(Box::new(LanePoller(lane.clone())));
                reactor.add(Box::new(Starter {
                    lane,
                    view,
                    options,
                    slots: Some(slots),
                    core: i,
                    size,
                    report: Some(report),
                }));
            }))
            .map_err(|e| format!("reactor {i} does not answer: {e}"))?;
    }
    let limit = Duration::from_secs_f64(options.time + options.warmup + 30.0);
    let mut outcomes_all = Vec::new();
    for _ in 0..options.cores {
        outcomes_all.push(outcomes.recv_timeout(limit).map_err(|_| "a core made no progress for 30 s".to_string())?);
    }
    drop(host_mail);
    for reactor in reactors {
        reactor.stop();
    }
    Ok(summarize(options, &outcomes_all))
}

fn summarize(options: &ArrayBench, outcomes: &[Outcome]) -> ArrayReport {
    let mut latency = histogram();
    let sum = |f: fn(&Outcome) -> u64| outcomes.iter().map(f).sum::<u64>();
    for outcome in outcomes {
        latency.add(&outcome.latency).expect("the same bounds");
    }
    let iops: f64 = outcomes.iter().map(|o| (o.ios - o.errors) as f64 / o.seconds.max(1e-9)).sum();
    ArrayReport {
        options: options.clone(),
        seconds: outcomes.iter().map(|o| o.seconds).fold(0.0, f64::max),
        ios: sum(|o| o.ios),
        errors: sum(|o| o.errors),
        iops,
        mib_per_s: iops * f64::from(options.bs) / (1 << 20) as f64,
        latency_us: Percentiles::of(&latency),
        full_stripe: sum(|o| o.counters.full_stripe),
        read_modify_write: sum(|o| o.counters.read_modify_write),
        reconstruct_write: sum(|o| o.counters.reconstruct_write),
        activations: sum(|o| o.counters.activations),
        merged: sum(|o| o.counters.merged),
        member_reads: sum(|o| o.counters.member_reads),
        member_writes: sum(|o| o.counters.member_writes),
        memcpy_gib_per_s: super::memcpy_rate(),
    }
}

/// Waits for the lane's first view, then puts a generator in its place.
struct Starter {
    lane: Rc<RefCell<Lane>>,
    view: Arc<View>,
    options: ArrayBench,
    slots: Option<Vec<Slot>>,
    core: usize,
    size: u64,
    report: Option<crossbeam_channel::Sender<Outcome>>,
}

impl Poller for Starter {
    fn name(&self) -> &str {
        "starter"
    }

    fn poll(&mut self, cx: &mut Context) -> bool {
        if self.lane.borrow().view().generation != self.view.generation {
            return false;
        }
        let (Some(slots), Some(report)) = (self.slots.take(), self.report.take()) else { return false };
        let info = BlockInfo {
            address: "volume".into(),
            size: self.size,
            block_size: 512,
            physical_block_size: 4096,
            volatile_cache: false,
            fast_zero: true,
            unmap: true,
            rotational: false,
            optimal_io: 0,
            memory_alignment: 1,
        };
        let volume = Volume::new(self.lane.clone(), VolumeId(0), info).expect("the view has the volume");
        // Sequential patterns get a share of the volume for each core, aligned to whole bands of any width.
        let bs = u64::from(self.options.bs);
        let share = self.size / self.options.cores as u64 / bs * bs;
        let start = share * self.core as u64;
        let random = !matches!(self.options.rw, Pattern::Read | Pattern::Write);
        let span = if random { (0, self.size / bs * bs) } else { (start, start + share) };
        let now = Instant::now();
        cx.add(Box::new(Generator {
            volume,
            lane: self.lane.clone(),
            begun: vec![now; slots.len()],
            ready: (0..slots.len()).collect(),
            slots,
            completions: Vec::with_capacity(self.options.qd),
            random: 0x2545_F491_4F6C_DD1D ^ (self.core as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15),
            position: 0,
            span,
            start: now,
            measuring: None,
            base: Default::default(),
            outcome: empty(),
            report: Some(report),
            options: self.options.clone(),
        }));
        true
    }
}
