//! Counts what a device does: operations, errors, bytes and time, reads, writes and flushes apart. Each queue writes counters
//! of its own, which other threads read and add up.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use hdrhistogram::Histogram;
use raid_core::action::Seg;

use super::{BlockDevice, BlockInfo, Completion, Completions, Io, IoOp, MemberHandle};
use crate::reactor;
use crate::telemetry::{Classes, Latencies, histogram};

/// Counts of one kind of I/O.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindTotals {
    /// Ended with success.
    pub ops: u64,
    /// Ended with an error.
    pub errors: u64,
    /// Bytes of those that succeeded.
    pub bytes: u64,
    /// Sum of their latencies in nanoseconds.
    pub nanos: u64,
}

/// Counts of all kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Reads and comparisons; writes and zeroing; flushes.
    pub kinds: [KindTotals; 3],
    /// In flight at the moment.
    pub in_flight: u64,
}

#[derive(Default)]
struct Queue {
    counts: [[AtomicU64; 4]; 3],
    latencies: [Latencies; 3],
    in_flight: AtomicU64,
}

/// The counters of all queues of a device.
#[derive(Default)]
pub struct Stats(Mutex<Vec<Arc<Queue>>>);

impl Stats {
    /// Counters for a new queue: those of one that is gone, if there is one, so that members and hosts that come and go
    /// take no more memory. They go on from where they were.
    fn queue(&self) -> Arc<Queue> {
        let mut queues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(free) = queues.iter_mut().position(|q| Arc::get_mut(q).is_some()) {
            return queues[free].clone();
        }
        let queue = Arc::<Queue>::default();
        queues.push(queue.clone());
        queue
    }

    /// Latencies in nanoseconds of the I/Os that succeeded: reads and comparisons; writes and zeroing; flushes. Takes some
    /// microseconds for each queue: not for reactors.
    pub fn latencies(&self) -> [Histogram<u64>; 3] {
        let queues = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        std::array::from_fn(|kind| {
            let mut sum = histogram();
            queues.iter().for_each(|q| q.latencies[kind].add_to(&mut sum));
            sum
        })
    }

    /// The same in the classes of [`crate::telemetry::BOUNDS`]. As slow.
    pub fn latency_classes(&self) -> [Classes; 3] {
        let queues = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        std::array::from_fn(|kind| {
            let mut sum = Classes::default();
            queues.iter().for_each(|q| q.latencies[kind].add_to_classes(&mut sum));
            sum
        })
    }

    /// The sums.
    pub fn totals(&self) -> Totals {
        let mut out = Totals::default();
        for queue in self.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            for (sum, counts) in out.kinds.iter_mut().zip(&queue.counts) {
                let [ops, errors, bytes, nanos] = std::array::from_fn(|i| counts[i].load(Ordering::Relaxed));
                sum.ops += ops;
                sum.errors += errors;
                sum.bytes += bytes;
                sum.nanos += nanos;
            }
            out.in_flight += queue.in_flight.load(Ordering::Relaxed);
        }
        out
    }
}

/// One writer: no read-modify-write is needed.
fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
}

/// Puts counters in front of a device's queues.
pub fn wrap(inner: MemberHandle, stats: Arc<Stats>) -> MemberHandle {
    Arc::new(move |cx| Ok(Box::new(StatsDevice::new(inner(cx)?, &stats))))
}

#[derive(Clone, Copy, Default)]
struct Slot {
    tag: u64,
    begun: u64,
    bytes: u64,
    kind: u8,
}

/// A queue with counters in front of it.
pub struct StatsDevice {
    inner: Box<dyn BlockDevice>,
    queue: Arc<Queue>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    scratch: Completions,
}

impl StatsDevice {
    /// Counts what goes through `inner` into `stats`.
    pub fn new(inner: Box<dyn BlockDevice>, stats: &Stats) -> StatsDevice {
        StatsDevice {
            inner,
            queue: stats.queue(),
            slots: Vec::new(),
            free: Vec::new(),
            scratch: Vec::with_capacity(1024),
        }
    }
}

impl Drop for StatsDevice {
    fn drop(&mut self) {
        self.queue.in_flight.store(0, Ordering::Relaxed);
    }
}

impl BlockDevice for StatsDevice {
    fn info(&self) -> &BlockInfo {
        self.inner.info()
    }

    fn submit(&mut self, io: Io, segs: &[Seg]) -> Result<(), Io> {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            (self.slots.len() - 1) as u32
        });
        if let Err(back) = self.inner.submit(Io { tag: u64::from(slot), ..io }, segs) {
            self.free.push(slot);
            return Err(Io { tag: io.tag, ..back });
        }
        let kind = match io.op {
            IoOp::Read | IoOp::Compare { .. } => 0,
            IoOp::Write { .. } | IoOp::Zero { .. } => 1,
            IoOp::Flush => 2,
        };
        self.slots[slot as usize] = Slot { tag: io.tag, begun: reactor::now().0, bytes: io.len, kind };
        add(&self.queue.in_flight, 1);
        Ok(())
    }

    fn ring(&mut self) {
        self.inner.ring();
    }

    fn poll(&mut self, done: &mut Completions) {
        self.inner.poll(&mut self.scratch);
        if self.scratch.is_empty() {
            return;
        }
        let now = reactor::now().0;
        for completion in self.scratch.drain(..) {
            let slot = self.slots[completion.tag as usize];
            self.free.push(completion.tag as u32);
            let [ops, errors, bytes, nanos] = &self.queue.counts[slot.kind as usize];
            if completion.status.is_ok() {
                add(ops, 1);
                add(bytes, slot.bytes);
                let took = now.saturating_sub(slot.begun);
                add(nanos, took);
                self.queue.latencies[slot.kind as usize].record(took);
            } else {
                add(errors, 1);
            }
            done.push(Completion { tag: slot.tag, status: completion.status });
        }
        self.queue.in_flight.store((self.slots.len() - self.free.len()) as u64, Ordering::Relaxed);
    }

    fn next_deadline(&self) -> Option<raid_core::units::Tick> {
        self.inner.next_deadline()
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }
}
