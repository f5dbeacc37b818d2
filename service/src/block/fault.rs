//! Faults on purpose: errors, delays, corruption and death of a member, by kind of I/O and range. Only where the daemon was
//! started with `--enable-faults`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use raid_core::action::{IoStatus, Seg};

use super::{BlockDevice, BlockInfo, BlockStatus, Completion, Completions, Io, IoOp, MemberHandle};
use crate::dma::Memory;
use crate::reactor;

/// Fault numbers are unique in the process.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Which I/Os a fault meets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kinds {
    /// Reads.
    pub read: bool,
    /// Writes and zeroing.
    pub write: bool,
    /// Flushes.
    pub flush: bool,
}

/// What happens to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// They are answered with this and not done. A read error goes away where the range is written, as on a medium that
    /// remaps its bad sectors.
    Fail(IoStatus),
    /// They are answered this many nanoseconds late.
    Delay(u64),
    /// Reads return changed data.
    Corrupt,
}

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Its number.
    pub id: u64,
    /// Which I/Os.
    pub kinds: Kinds,
    /// First byte of the range.
    pub offset: u64,
    /// Length of the range in bytes.
    pub len: u64,
    /// What happens.
    pub effect: Effect,
}

/// The faults of one member, shared by its queues on all reactors. A queue looks at the version before each I/O and takes
/// the lock only when it has changed.
#[derive(Debug, Default)]
pub struct Faults {
    version: AtomicU64,
    list: Mutex<Vec<Fault>>,
}

impl Faults {
    /// Adds a fault and gives it a number.
    pub fn add(&self, mut fault: Fault) -> u64 {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        fault.id = NEXT.fetch_add(1, Ordering::Relaxed);
        list.push(fault);
        self.version.fetch_add(1, Ordering::AcqRel);
        fault.id
    }

    /// A range is written: what could not be read there can be read again, as on a medium whose bad sectors are remapped.
    fn rewritten(&self, offset: u64, len: u64) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let end = offset.saturating_add(len);
        let mut out = Vec::with_capacity(list.len() + 1);
        for f in list.drain(..) {
            let last = f.offset.saturating_add(f.len);
            if f.effect != Effect::Fail(IoStatus::ReadError) || end <= f.offset || last <= offset {
                out.push(f);
                continue;
            }
            if f.offset < offset {
                out.push(Fault { len: offset - f.offset, ..f });
            }
            if end < last {
                out.push(Fault { offset: end, len: last - end, ..f });
            }
        }
        *list = out;
        self.version.fetch_add(1, Ordering::AcqRel);
    }

    /// The faults in force.
    pub fn list(&self) -> Vec<Fault> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Removes one fault, or all with `None`. Returns how many there were.
    pub fn clear(&self, id: Option<u64>) -> usize {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let before = list.len();
        list.retain(|f| id.is_some_and(|id| f.id != id));
        self.version.fetch_add(1, Ordering::AcqRel);
        before - list.len()
    }
}

/// Puts the faults in front of a member's queues.
pub fn wrap(inner: MemberHandle, faults: Arc<Faults>, memory: Memory) -> MemberHandle {
    Arc::new(move |cx| {
        Ok(Box::new(FaultDevice {
            inner: inner(cx)?,
            shared: faults.clone(),
            version: 0,
            faults: Vec::new(),
            memory: memory.clone(),
            failed: Completions::new(),
            held: Vec::new(),
            met: Vec::new(),
            scratch: Completions::new(),
        }))
    })
}

struct FaultDevice {
    inner: Box<dyn BlockDevice>,
    shared: Arc<Faults>,
    version: u64,
    faults: Vec<Fault>,
    memory: Memory,
    /// Answers of I/Os that never reached the device.
    failed: Completions,
    /// Answers that wait for their time.
    held: Vec<(u64, Completion)>,
    /// I/Os at the device that a delay or corruption awaits.
    met: Vec<Met>,
    scratch: Completions,
}

/// An I/O that met a fault and was passed on.
struct Met {
    io: Io,
    fault: Fault,
    /// Where a read goes; empty for others.
    segs: Vec<Seg>,
}

impl Met {
    /// Changes what was read of the fault's range, and nothing else.
    fn corrupt(&self, memory: &Memory) {
        let (begin, end) = (self.fault.offset, self.fault.offset.saturating_add(self.fault.len));
        let mut at = self.io.offset;
        for seg in &self.segs {
            let next = at + u64::from(seg.len);
            let (from, to) = (begin.max(at), end.min(next));
            if from < to {
                memory.corrupt(seg.addr.plus(from - at), (to - from) as usize);
            }
            at = next;
        }
    }
}

impl FaultDevice {
    fn meets(&self, io: &Io) -> Option<Fault> {
        self.faults
            .iter()
            .find(|f| {
                let kind = match io.op {
                    IoOp::Read | IoOp::Compare { .. } => f.kinds.read,
                    IoOp::Write { .. } | IoOp::Zero { .. } => f.kinds.write,
                    IoOp::Flush => f.kinds.flush,
                };
                let everywhere = io.op == IoOp::Flush;
                kind && (everywhere
                    || (io.offset < f.offset.saturating_add(f.len) && f.offset < io.offset.saturating_add(io.len)))
            })
            .copied()
    }
}

impl BlockDevice for FaultDevice {
    fn info(&self) -> &BlockInfo {
        self.inner.info()
    }

    fn submit(&mut self, io: Io, segs: &[Seg]) -> Result<(), Io> {
        let version = self.shared.version.load(Ordering::Acquire);
        if version != self.version {
            self.version = version;
            self.faults = self.shared.list();
        }
        if self.faults.is_empty() {
            return self.inner.submit(io, segs);
        }
        match self.meets(&io) {
            Some(Fault { effect: Effect::Fail(status), .. }) => {
                self.failed.push(Completion { tag: io.tag, status: BlockStatus::Member(status) });
                Ok(())
            }
            Some(fault) => {
                self.inner.submit(io, segs)?;
                let segs = if io.op == IoOp::Read { segs.to_vec() } else { Vec::new() };
                self.met.push(Met { io, fault, segs });
                Ok(())
            }
            None => {
                self.inner.submit(io, segs)?;
                let writes = matches!(io.op, IoOp::Write { .. } | IoOp::Zero { .. });
                if writes && self.faults.iter().any(|f| f.effect == Effect::Fail(IoStatus::ReadError)) {
                    self.shared.rewritten(io.offset, io.len);
                }
                Ok(())
            }
        }
    }

    fn ring(&mut self) {
        self.inner.ring();
    }

    fn poll(&mut self, done: &mut Completions) {
        done.append(&mut self.failed);
        if self.met.is_empty() && self.held.is_empty() {
            self.inner.poll(done);
            return;
        }
        self.inner.poll(&mut self.scratch);
        let now = reactor::now().0;
        for completion in self.scratch.drain(..) {
            let Some(at) = self.met.iter().position(|m| m.io.tag == completion.tag) else {
                done.push(completion);
                continue;
            };
            let met = self.met.swap_remove(at);
            if let Effect::Delay(nanos) = met.fault.effect {
                self.held.push((now + nanos, completion));
                continue;
            }
            if completion.status.is_ok() {
                met.corrupt(&self.memory);
            }
            done.push(completion);
        }
        self.held.retain(|(due, completion)| {
            if *due <= now {
                done.push(*completion);
            }
            *due > now
        });
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight() + self.failed.len() + self.held.len()
    }

    fn next_deadline(&self) -> Option<raid_core::units::Tick> {
        let delayed = self.held.iter().map(|(due, _)| raid_core::units::Tick(*due)).min();
        delayed.into_iter().chain(self.inner.next_deadline()).min()
    }
}
