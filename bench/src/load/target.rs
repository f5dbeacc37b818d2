//! The front end over NVMe/TCP: queues spread over pinned threads that poll.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use nvme_wire::command::Status;
use nvme_wire::tcp;

use super::connect::{self, Address, Controller};
use super::queue::{Counts, Limits, Queue};
use super::{Digests, LoadArgs, LoadResult, Verified};
use crate::error::Failure;
use crate::machine::{CpuClock, CpuUse, memcpy_rate, pin};
use crate::pattern::Pattern;
use crate::stats::Latencies;
use crate::units::show_size;
use crate::verify::Ledger;

/// Bytes to a `recv`: enough for all the responses that a full queue may have at once, and no more than the second
/// cache holds.
const SCRATCH: usize = 256 << 10;
/// How long the last commands may take.
const LAST: Duration = Duration::from_secs(30);

/// What a thread brings home.
struct Work {
    counts: Counts,
    seconds: f64,
    idle: f64,
    memcpy: [f64; 2],
}

/// Runs the load against the target at `target`.
pub(super) fn run(args: &LoadArgs, target: &str) -> Result<LoadResult, Failure> {
    let address = Address {
        target: target.to_owned(),
        nqn: args.nqn.clone().unwrap_or_default(),
        hostnqn: args.hostnqn.clone(),
        digests: match args.digests {
            Digests::None => tcp::Digests { header: false, data: false },
            Digests::Header => tcp::Digests { header: true, data: false },
            Digests::Data => tcp::Digests { header: false, data: true },
            Digests::Both => tcp::Digests { header: true, data: true },
        },
    };
    let (_admin, controller) = connect::admin(&address, args.nsid, args.queues).map_err(Failure::Run)?;
    let depth = depth(args, &controller)?;
    let ranges = ranges(args, &controller)?;
    let mut queues = vec![];
    for (i, (first, units)) in ranges.iter().copied().enumerate() {
        let qid = i as u16 + 1;
        let connection = connect::io_queue(&address, &controller, qid, depth, args.bs as u32).map_err(Failure::Run)?;
        let limits = Limits {
            nsid: args.nsid,
            block: controller.block,
            unit: args.bs as usize,
            depth,
            inside: controller.inside,
            seed: args.seed,
        };
        let pattern = Pattern::new(args.rw, args.read_share, first, units, args.seed.wrapping_add(i as u64));
        let ledger = args.verify.then(|| Ledger::new(first, units));
        queues.push(Queue::new(connection, limits, pattern, ledger));
    }
    let work = work(args, queues)?;
    Ok(summary(args, work.0, work.1))
}

/// The depth that the target allows.
fn depth(args: &LoadArgs, controller: &Controller) -> Result<u16, Failure> {
    if u32::from(args.queues) > controller.queues {
        let message = format!("--queues {}: the target grants {} I/O queues", args.queues, controller.queues);
        return Err(Failure::Run(message));
    }
    // A queue of n entries holds n - 1 commands: full and empty could not be told apart otherwise.
    let most = controller.entries.saturating_sub(1).max(1);
    if u32::from(args.qd) > most {
        eprintln!(
            "raidbench: the target's queues have {} entries; depth {most} instead of {}",
            controller.entries, args.qd
        );
    }
    Ok(u32::from(args.qd).min(most) as u16)
}

/// Which units each queue uses. Random loads without verification use all of them from every queue; where the order or
/// the content matters, each queue has a share of its own.
fn ranges(args: &LoadArgs, controller: &Controller) -> Result<Vec<(u64, u64)>, Failure> {
    let fail = |message| Err(Failure::Run(message));
    if !args.bs.is_multiple_of(u64::from(controller.block)) {
        return fail(format!("--bs {} is not a multiple of the namespace's {} byte blocks", args.bs, controller.block));
    }
    if let Some(most) = controller.transfer.filter(|most| args.bs > *most) {
        let most = show_size(most);
        return fail(format!("--bs {} is more than the target transfers at once (MDTS: {most})", show_size(args.bs)));
    }
    if args.bs / u64::from(controller.block) > 0x1_0000 {
        return fail(format!("--bs {} is more than 65536 blocks, all that a command can address", show_size(args.bs)));
    }
    if let Some(size) = args.size
        && size > controller.bytes
    {
        return fail(format!(
            "--size {} is more than the namespace's {}",
            show_size(size),
            show_size(controller.bytes)
        ));
    }
    let units = args.size.unwrap_or(controller.bytes) / args.bs;
    let queues = u64::from(args.queues);
    if units < queues {
        return fail(format!("{units} accesses fit in the range: too few for {queues} queue(s); see --size and --bs"));
    }
    if args.rw.random() && !args.verify {
        return Ok(vec![(0, units); usize::from(args.queues)]);
    }
    let share = units / queues;
    Ok((0..queues).map(|q| (q * share, share)).collect())
}

/// Runs the threads, and reads the target's clock at the start and the end of what is measured.
fn work(args: &LoadArgs, queues: Vec<Queue>) -> Result<(Vec<Work>, Option<CpuUse>), Failure> {
    let threads = args.core.len().max(1);
    let mut shares: Vec<Vec<Queue>> = (0..threads).map(|_| vec![]).collect();
    for (i, queue) in queues.into_iter().enumerate() {
        shares[i % threads].push(queue);
    }
    let start = Barrier::new(threads + 1);
    std::thread::scope(|scope| {
        let handles: Vec<_> = shares
            .into_iter()
            .enumerate()
            .map(|(i, share)| {
                let start = &start;
                scope.spawn(move || thread(args, args.core.get(i).copied(), share, start))
            })
            .collect();
        start.wait();
        let cpu = args.target_pid.map(|pid| {
            std::thread::sleep(args.warmup);
            let before = CpuClock::read(pid)?;
            std::thread::sleep(args.time);
            Ok::<_, String>(CpuClock::read(pid)?.since(&before))
        });
        let mut out = vec![];
        for handle in handles {
            out.push(
                handle
                    .join()
                    .map_err(|_| "a thread of raidbench panicked".to_owned())
                    .and_then(|r| r)
                    .map_err(Failure::Run)?,
            );
        }
        let cpu = cpu.transpose().map_err(|e| Failure::Run(format!("--target-pid: {e}")))?;
        Ok((out, cpu))
    })
}

/// One thread: warm up, measure, finish, read back.
fn thread(args: &LoadArgs, core: Option<usize>, mut queues: Vec<Queue>, start: &Barrier) -> Result<Work, String> {
    // All threads have to reach the barrier, those that cannot go on too.
    let pinned = core.map_or(Ok(()), pin);
    let before = memcpy_rate();
    start.wait();
    pinned?;
    let mut scratch = vec![0u8; SCRATCH];
    let base = Instant::now();
    let clock = move || base.elapsed().as_nanos() as u64;
    let mut pass = |queues: &mut [Queue]| -> Result<bool, String> {
        let mut any = false;
        for queue in queues {
            any |= queue.receive(&mut scratch, clock)?;
            queue.fill(clock());
            any |= queue.flush()?;
        }
        Ok(any)
    };

    let begin = args.warmup.as_nanos() as u64;
    while clock() < begin {
        pass(&mut queues)?;
    }
    for queue in &mut queues {
        queue.counts.reads.clear();
        queue.counts.writes.clear();
    }
    let begin = clock();
    let end = begin + args.time.as_nanos() as u64;
    let (mut idle, mut last) = (0, begin);
    while last < end {
        let any = pass(&mut queues)?;
        let now = clock();
        if !any {
            idle += now - last;
        }
        last = now;
    }
    let seconds = (last - begin) as f64 / 1e9;
    let measured: Vec<_> = queues.iter().map(|q| (q.counts.reads.clone(), q.counts.writes.clone())).collect();

    queues.iter_mut().for_each(Queue::drain);
    finish(&mut queues, &mut pass)?;
    if args.verify {
        queues.iter_mut().for_each(Queue::read_back);
        finish(&mut queues, &mut pass)?;
    }
    let mut counts = Counts::new();
    for (queue, (reads, writes)) in queues.iter().zip(&measured) {
        counts.reads.add(reads);
        counts.writes.add(writes);
        counts.add_outcomes(&queue.counts);
    }
    Ok(Work { counts, seconds, idle: idle as f64 / 1e9, memcpy: [before, memcpy_rate()] })
}

/// Passes until every queue is done with what its phase asks for.
fn finish(queues: &mut [Queue], pass: &mut impl FnMut(&mut [Queue]) -> Result<bool, String>) -> Result<(), String> {
    let mut since = Instant::now();
    while !queues.iter().all(Queue::is_done) {
        if pass(queues)? {
            since = Instant::now();
        } else if since.elapsed() > LAST {
            return Err(format!("the target left commands unanswered for {} s", LAST.as_secs()));
        }
    }
    Ok(())
}

fn summary(args: &LoadArgs, work: Vec<Work>, target_cpu: Option<CpuUse>) -> LoadResult {
    let mut counts = Counts::new();
    let threads = work.len() as f64;
    let (mut read_iops, mut write_iops, mut memcpy, mut idle, mut seconds) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for w in &work {
        let rate = |l: &Latencies| l.summary().map_or(0.0, |p| p.count as f64 / w.seconds);
        read_iops += rate(&w.counts.reads);
        write_iops += rate(&w.counts.writes);
        memcpy += (w.memcpy[0] + w.memcpy[1]) / 2.0 / threads;
        idle += w.idle / w.seconds / threads;
        seconds += w.seconds / threads;
        counts.reads.add(&w.counts.reads);
        counts.writes.add(&w.counts.writes);
        counts.add_outcomes(&w.counts);
    }
    LoadResult {
        seconds,
        iops: read_iops + write_iops,
        read_iops,
        write_iops,
        mib_per_s: (read_iops + write_iops) * args.bs as f64 / f64::from(1 << 20),
        read_latency_us: counts.reads.summary(),
        write_latency_us: counts.writes.summary(),
        errors: counts.errors.values().sum(),
        errors_by_status: counts.errors.iter().map(|(s, n)| (Status::from_field(*s).to_string(), *n)).collect(),
        verify: args.verify.then_some(Verified { right: counts.right, wrong: counts.wrong, examples: counts.examples }),
        memcpy_gib_per_s: memcpy,
        initiator_idle: Some(idle),
        target_cpu,
        array: None,
    }
}
