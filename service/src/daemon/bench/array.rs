//! Load on an array inside the process: the daemon's own reactors, lanes and volumes, over RAM or file members, without a
//! network. What SPDK's bdevperf is to SPDK.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use hdrhistogram::Histogram;
use raid_core::action::{Seg, VolumeId};
use raid_core::engine::{Config, Engine};
use raid_core::geometry::{Geometry, Level};
use raid_core::view::View;
use serde::Serialize;

use crate::block::{BlockDevice, BlockInfo, Completions, Io, IoOp};
use crate::dma::Slot;
use crate::reactor::{self, Context, Poller};
use crate::volume::{HostMessage, Lane, LaneConfig, LaneMessage, LanePoller, Volume};

/// What to measure. Options and answer are described in `bench/README.md`: raidbench asks with them and reads it.
#[derive(Args, Debug, Clone)]
pub struct ArrayBench {
    /// RAID level: raid0, raid1, raid10, raid5, raid6
    #[arg(long, default_value = "raid5")]
    pub level: String,
    /// Members
    #[arg(long, default_value_t = 5)]
    pub members: u16,
    /// Bytes of each member
    #[arg(long, default_value_t = 256 << 20)]
    pub member_size: u64,
    /// What the members are
    #[arg(long, value_enum, default_value = "ram")]
    pub member_kind: MemberKind,
    /// Folder for file members; the temporary folder where it is not given
    #[arg(long)]
    pub member_dir: Option<PathBuf>,
    /// Bytes of a chunk
    #[arg(long, default_value_t = 64 << 10)]
    pub chunk: u32,
    /// Pattern
    #[arg(long, value_enum, default_value = "randread")]
    pub rw: Pattern,
    /// Bytes of an I/O
    #[arg(long, default_value_t = 4096)]
    pub bs: u32,
    /// I/Os in flight on each queue
    #[arg(long, default_value_t = 32)]
    pub qd: usize,
    /// Queues, spread over the reactors; at least one on each
    #[arg(long, default_value_t = 1)]
    pub queues: usize,
    /// Percent of reads in a mix
    #[arg(long, default_value_t = 70)]
    pub read_share: u64,
    /// Seconds to measure
    #[arg(long, default_value_t = 3.0)]
    pub time: f64,
    /// Seconds before the measurement
    #[arg(long, default_value_t = 0.5)]
    pub warmup: f64,
    /// Bytes of the volume to use, from its start
    #[arg(long)]
    pub size: Option<u64>,
    /// The cores of the reactors
    #[arg(long, value_delimiter = ',', default_value = "0")]
    pub core: Vec<usize>,
    /// Where random offsets start from
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl ArrayBench {
    /// I/Os in flight on reactor `i`: those of its queues.
    fn depth(&self, i: usize) -> usize {
        let (queues, cores) = (self.queues.max(self.core.len()), self.core.len());
        self.qd * (queues / cores + usize::from(i < queues % cores))
    }
}

/// What the members are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MemberKind {
    /// Memory
    Ram,
    /// Sparse files, removed afterwards
    File,
}

/// Access patterns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Pattern {
    /// Sequential reads
    Read,
    /// Sequential writes
    Write,
    /// Random reads
    Randread,
    /// Random writes
    Randwrite,
    /// Random, mixed
    Randrw,
    /// Sequential, mixed
    Seqmix,
}

/// The figures.
#[derive(Debug, Serialize)]
pub struct ArrayReport {
    seconds: f64,
    iops: f64,
    read_iops: f64,
    write_iops: f64,
    mib_per_s: f64,
    read_latency_us: Option<Percentiles>,
    write_latency_us: Option<Percentiles>,
    errors: u64,
    errors_by_status: BTreeMap<String, u64>,
    memcpy_gib_per_s: f64,
    array: ArrayCounters,
}

/// What happened inside the array in the measured time.
#[derive(Debug, Serialize)]
pub struct ArrayCounters {
    member_reads: u64,
    member_writes: u64,
    activations: u64,
    merged: u64,
    full_stripe: u64,
    rmw: u64,
    rcw: u64,
    parity_kernel: &'static str,
}

/// Latency in microseconds.
#[derive(Debug, Serialize)]
pub struct Percentiles {
    count: u64,
    min: f64,
    mean: f64,
    p50: f64,
    p90: f64,
    p99: f64,
    p99_9: f64,
    p99_99: f64,
    max: f64,
}

impl Percentiles {
    /// Of a histogram of nanoseconds, if there is anything in it.
    pub fn of(histogram: &Histogram<u64>) -> Option<Percentiles> {
        let us = |n: u64| n as f64 / 1e3;
        let at = |q: f64| us(histogram.value_at_quantile(q));
        (!histogram.is_empty()).then(|| Percentiles {
            count: histogram.len(),
            min: us(histogram.min()),
            mean: histogram.mean() / 1e3,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            p99_99: at(0.9999),
            max: us(histogram.max()),
        })
    }
}

/// What one core's generator did.
struct Outcome {
    /// By status; those of the warm-up too.
    errors: BTreeMap<String, u64>,
    seconds: f64,
    reads: Histogram<u64>,
    writes: Histogram<u64>,
    counters: raid_core::engine::Counters,
}

/// Keeps `qd` I/Os in flight on one volume.
struct Generator {
    volume: Volume,
    lane: Rc<RefCell<Lane>>,
    options: ArrayBench,
    slots: Vec<Slot>,
    /// When each was begun, and whether it is a read.
    begun: Vec<(Instant, bool)>,
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
            Pattern::Read | Pattern::Write | Pattern::Seqmix => {
                let offset = self.span.0 + self.position * bs;
                self.position = (self.position + 1) % blocks;
                offset
            }
            Pattern::Randread | Pattern::Randwrite | Pattern::Randrw => {
                let block = self.next_random() % blocks;
                self.span.0 + block * bs
            }
        }
    }

    fn next_random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn next_is_read(&mut self) -> bool {
        match self.options.rw {
            Pattern::Read | Pattern::Randread => true,
            Pattern::Write | Pattern::Randwrite => false,
            Pattern::Randrw | Pattern::Seqmix => self.next_random() % 100 < self.options.read_share,
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
    Outcome {
        errors: BTreeMap::new(),
        seconds: 0.0,
        reads: histogram(),
        writes: histogram(),
        counters: Default::default(),
    }
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
            self.outcome.reads.reset();
            self.outcome.writes.reset();
        }
        for done in completions.drain(..) {
            let slot = done.tag as usize;
            let (begun, read) = self.begun[slot];
            if done.status.is_ok() {
                let latencies = if read { &mut self.outcome.reads } else { &mut self.outcome.writes };
                latencies.saturating_record(now.duration_since(begun).as_nanos() as u64);
            } else {
                *self.outcome.errors.entry(format!("{:?}", done.status)).or_default() += 1;
            }
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
            let read = self.next_is_read();
            let op = if read { IoOp::Read } else { IoOp::Write { fua: false } };
            let io = Io { tag: slot as u64, op, offset, len: u64::from(self.options.bs) };
            self.begun[slot] = (now, read);
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
    Ok(match name.strip_prefix("raid").unwrap_or(name) {
        "0" => Level::Raid0,
        "1" => Level::Raid1,
        "10" => Level::Raid10,
        "5" => Level::Raid5,
        "6" => Level::Raid6,
        _ => return Err(format!("'{name}' is no level: give raid0, raid1, raid10, raid5 or raid6")),
    })
}

fn view(options: &ArrayBench) -> Result<View, String> {
    let bytes = options.member_size;
    let extent = 16u64 << 20;
    if bytes < extent || options.bs == 0 || !options.bs.is_multiple_of(512) || options.qd == 0 || options.members == 0 {
        return Err("a member needs at least 16 MiB, --bs a multiple of 512, --qd and --members at least 1".into());
    }
    let geometry =
        Geometry { level: level(&options.level)?, width: options.members, chunk: options.chunk, extent, shards: 16 };
    geometry.validate().map_err(|e| e.to_string())?;
    Ok(View::healthy(geometry, (bytes / extent) as u32))
}

/// Runs it.
pub fn run(options: &ArrayBench) -> Result<ArrayReport, String> {
    let files = match options.member_kind {
        MemberKind::Ram => None,
        MemberKind::File => {
            let folder = options.member_dir.clone().unwrap_or_else(std::env::temp_dir);
            let folder = folder.join(format!("raidd-bench-{}", std::process::id()));
            std::fs::create_dir_all(&folder).map_err(|e| format!("cannot create {}: {e}", folder.display()))?;
            Some(folder)
        }
    };
    let report = load(options, files.as_deref());
    if let Some(folder) = files {
        std::fs::remove_dir_all(&folder).map_err(|e| format!("cannot remove {}: {e}", folder.display()))?;
    }
    report
}

fn load(options: &ArrayBench, files: Option<&Path>) -> Result<ArrayReport, String> {
    let view = Arc::new(view(options)?);
    let geometry = view.volumes[0].geometry;
    let scratch = (8u64 << 20).max(2 * Engine::scratch_needed(&geometry));
    let memcpy_before = super::memcpy_rate();
    let region = scratch + (options.depth(0) as u64 * (u64::from(options.bs) + 8192) * 2).max(32 << 20);
    let (memory, reactors) = reactor::start(&options.core, region, reactor::Polling::Busy)
        .map_err(|e| format!("the reactors cannot be started: {e}"))?;
    let members = super::members(&memory, options.members, options.member_size, files)?;
    let routes: crate::volume::Routes =
        (0..geometry.shards).map(|s| AtomicU16::new(s % options.core.len() as u16)).collect();
    let mail: Vec<_> = reactors.iter().map(|r| reactor::mailbox::<LaneMessage>(4096, r.waker())).collect();
    let senders: Vec<_> = mail.iter().map(|(sender, _)| sender.clone()).collect();
    let (host, host_mail) = reactor::mailbox::<HostMessage>(4096, reactors[0].waker());
    let (report, outcomes) = crossbeam_channel::unbounded();
    let size = options.size.unwrap_or(u64::MAX).min(view.volumes[0].size);
    if size / options.core.len() as u64 <= u64::from(options.bs) {
        return Err(format!("{size} bytes are too few for I/Os of {} bytes on each core", options.bs));
    }
    let lanes_waiting = Arc::new(AtomicUsize::new(reactors.len()));
    for (i, (reactor, (_, inbox))) in reactors.iter().zip(mail).enumerate() {
        let config_peers = senders.iter().enumerate().map(|(j, s)| (j != i).then(|| s.clone())).collect();
        let (memory, routes, host, report, options) =
            (memory.clone(), routes.clone(), host.clone(), report.clone(), options.clone());
        let (view, members) = (view.clone(), members.clone());
        let sender = senders[i].clone();
        let waiting = lanes_waiting.clone();
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
                    counters: Arc::default(),
                    latest: Arc::default(),
                    host,
                    inbox,
                })));
                // The lane takes its first view from its mailbox, as in the daemon.
                let _ = sender.try_send(LaneMessage::View { tag: 0, view: view.clone(), members });
                let slots: Vec<Slot> = (0..options.depth(i))
                    .map(|_| reactor.pool().alloc(options.bs).expect("the region was sized for it"))
                    .collect();
                reactor.add(Box::new(LanePoller::new(lane.clone(), "lane".into())));
                reactor.add(Box::new(Starter {
                    lane,
                    view,
                    options,
                    slots: Some(slots),
                    core: i,
                    size,
                    waiting,
                    counted: false,
                    report: Some(report),
                }));
            }))
            .map_err(|e| format!("reactor {i} does not answer: {e}"))?;
    }
    let limit = Duration::from_secs_f64(options.time + options.warmup + 30.0);
    let mut outcomes_all = Vec::new();
    for _ in 0..options.core.len() {
        outcomes_all.push(outcomes.recv_timeout(limit).map_err(|_| "a core made no progress for 30 s".to_string())?);
    }
    drop(host_mail);
    for reactor in reactors {
        reactor.stop();
    }
    Ok(summarize(options, &outcomes_all, (memcpy_before + super::memcpy_rate()) / 2.0))
}

fn summarize(options: &ArrayBench, outcomes: &[Outcome], memcpy_gib_per_s: f64) -> ArrayReport {
    let (mut reads, mut writes, mut errors_by_status) = (histogram(), histogram(), BTreeMap::new());
    let (mut read_iops, mut write_iops) = (0.0, 0.0);
    for outcome in outcomes {
        let seconds = outcome.seconds.max(1e-9);
        read_iops += outcome.reads.len() as f64 / seconds;
        write_iops += outcome.writes.len() as f64 / seconds;
        reads.add(&outcome.reads).expect("the same bounds");
        writes.add(&outcome.writes).expect("the same bounds");
        for (status, n) in &outcome.errors {
            *errors_by_status.entry(status.clone()).or_default() += n;
        }
    }
    let iops = read_iops + write_iops;
    let sum = |f: fn(&Outcome) -> u64| outcomes.iter().map(f).sum::<u64>();
    ArrayReport {
        seconds: outcomes.iter().map(|o| o.seconds).fold(0.0, f64::max),
        iops,
        read_iops,
        write_iops,
        mib_per_s: iops * f64::from(options.bs) / (1 << 20) as f64,
        read_latency_us: Percentiles::of(&reads),
        write_latency_us: Percentiles::of(&writes),
        errors: errors_by_status.values().sum(),
        errors_by_status,
        memcpy_gib_per_s,
        array: ArrayCounters {
            member_reads: sum(|o| o.counters.member_reads),
            member_writes: sum(|o| o.counters.member_writes),
            activations: sum(|o| o.counters.activations),
            merged: sum(|o| o.counters.merged),
            full_stripe: sum(|o| o.counters.full_stripe),
            rmw: sum(|o| o.counters.read_modify_write),
            rcw: sum(|o| o.counters.reconstruct_write),
            parity_kernel: crate::parity::kernel().name(),
        },
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
    /// Lanes that have no view yet: a piece that came before it would be answered "offline".
    waiting: Arc<AtomicUsize>,
    /// This lane is no longer among them.
    counted: bool,
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
        // Counted once, then looked at until every lane is there.
        if !std::mem::replace(&mut self.counted, true) {
            self.waiting.fetch_sub(1, Ordering::AcqRel);
        }
        if self.waiting.load(Ordering::Acquire) > 0 {
            return false;
        }
        let (Some(slots), Some(report)) = (self.slots.take(), self.report.take()) else { return false };
        let info = BlockInfo::memory("volume", self.size);
        let volume = Volume::new(self.lane.clone(), VolumeId(0), info).expect("the view has the volume");
        // Sequential patterns get a share of the volume for each core, aligned to whole bands of any width.
        let bs = u64::from(self.options.bs);
        let share = self.size / self.options.core.len() as u64 / bs * bs;
        let start = share * self.core as u64;
        let random = !matches!(self.options.rw, Pattern::Read | Pattern::Write | Pattern::Seqmix);
        let span = if random { (0, self.size / bs * bs) } else { (start, start + share) };
        let now = Instant::now();
        cx.add(Box::new(Generator {
            volume,
            lane: self.lane.clone(),
            begun: vec![(now, true); slots.len()],
            ready: (0..slots.len()).collect(),
            slots,
            completions: Vec::with_capacity(self.options.depth(self.core)),
            random: (0x2545_F491_4F6C_DD1D
                ^ (self.core as u64 + self.options.seed).wrapping_mul(0x9E37_79B9_7F4A_7C15))
                | 1,
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: ArrayBench,
    }

    fn bench(options: &str) -> Result<ArrayReport, String> {
        let small = "bench --member-size 16777216 --time 0.05 --warmup 0.01";
        run(&Line::try_parse_from(small.split(' ').chain(options.split_whitespace())).expect("right options").options)
    }

    #[test]
    fn every_level_and_pattern_works_without_errors() {
        for (level, members) in [("raid0", 3), ("raid1", 2), ("raid10", 4), ("raid5", 5), ("raid6", 6)] {
            let all = ["randrw", "seqmix", "read", "write", "randread", "randwrite"];
            for rw in &all[..if level == "raid5" { 6 } else { 2 }] {
                let report = bench(&format!("--level {level} --members {members} --rw {rw} --qd 4")).unwrap();
                assert_eq!(report.errors, 0, "{level} {rw}: {report:?}");
                assert!(report.iops > 0.0, "{level} {rw}: {report:?}");
                assert_eq!(report.read_iops > 0.0, !rw.ends_with("write"), "{level} {rw}: {report:?}");
                assert_eq!(report.write_iops > 0.0, !rw.ends_with("read"), "{level} {rw}: {report:?}");
            }
        }
    }

    #[test]
    fn full_stripes_are_written_without_reads() {
        for (level, members) in [("raid5", 4), ("raid6", 5)] {
            let report = bench(&format!("--level {level} --members {members} --rw write --bs 196608 --qd 2")).unwrap();
            let array = &report.array;
            assert!(array.full_stripe > 0, "{report:?}");
            assert_eq!((array.member_reads, array.rmw, array.rcw), (0, 0, 0), "{report:?}");
            // In flight at the edges of the measured time is at most what the depth allows.
            assert!(array.member_writes.abs_diff(array.full_stripe * members) <= 2 * members, "{report:?}");
        }
    }

    #[test]
    fn files_are_removed_afterwards() {
        let folder = std::env::temp_dir().join(format!("raidd-bench-test-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let options = format!("--member-kind file --member-dir {} --rw randwrite --qd 2", folder.display());
        let report = bench(&options).unwrap();
        assert_eq!(report.errors, 0, "{report:?}");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
        std::fs::remove_dir(folder).unwrap();
    }

    #[test]
    fn a_volume_that_is_too_small_is_refused() {
        assert!(bench("--size 4096 --bs 4096").unwrap_err().contains("too few"));
        assert!(bench("--level raid7").unwrap_err().contains("raid7"));
    }
}
