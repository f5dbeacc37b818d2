//! A drive with a volatile write cache, for crash tests: `kill -9` of the daemon does to its members what a cut of the
//! power does to drives. Only where the daemon was started with `--volatile-cache`, and destructive by intent.
//!
//! A write without FUA is kept in this process's memory, sector by sector, and is lost with it. FLUSH writes out what was
//! complete when it was submitted, and nothing more; a write with FUA goes through. In the background a thread writes out a
//! seeded part of the rest: at random moments, in any order, whole writes, their beginnings, ends, or some of their
//! sectors. The others stay in the cache until a flush or until it is full. So at the kill a reordered and torn
//! subset of what was not flushed is on the member, steered by the seed. What an I/O that is not complete wrote is lost.
//!
//! The medium is the file or block device as this machine's kernel has it: the process dies, the machine does not, so what
//! has been handed to the kernel is as good as durable, and nothing here waits for a disk. Accesses are ordinary system
//! calls on the reactor, under a mutex: a cache is the drive's, not a queue's, and this is test equipment. Where the option
//! is not given, none of it is in the way of an I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::fcntl::{FallocateFlags, fallocate};
use raid_core::action::{IoStatus, Seg};

use super::backing::Backing;
use super::{BlockDevice, BlockInfo, BlockStatus, Completion, Completions, Io, IoOp, MemberHandle};
use crate::dma::Memory;

/// Sectors that are written to the medium by one system call at most.
const RUN: usize = 512;
/// Zeroing of more bytes than this is not cached: it would push everything else out.
const LONGEST_CACHED_ZERO: u64 = 256 << 10;
/// Where a drive that lies keeps its promises all the same: superblocks and configuration lie at both ends of a member, and
/// the array must come back for its data to be found damaged.
const HONEST_ENDS: u64 = 1 << 20;
/// Longest pause of the background thread.
const LONGEST_PAUSE: Duration = Duration::from_millis(25);

/// How a simulated cache behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Decides what is written out early, and how much of it.
    pub seed: u64,
    /// FLUSH is answered and not done, except for the first and last MiB: a drive that lies, for the tests of the tests.
    pub ignore_flush: bool,
    /// Bytes that the cache holds; when there are more, the oldest are written out.
    pub capacity: u64,
}

impl Options {
    /// A cache of 8 MiB that keeps its promises.
    pub fn new(seed: u64) -> Options {
        Options { seed, ignore_flush: false, capacity: 8 << 20 }
    }
}

/// SplitMix64: small, and the same everywhere.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// Below `n`, which is not 0.
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A sector that the medium does not have yet.
struct Sector {
    /// The write that it came with; later writes have higher numbers.
    write: u64,
    data: Box<[u8]>,
}

/// What the drive's cache holds, and the medium beneath it.
struct State {
    medium: File,
    /// Bytes of the member.
    size: u64,
    options: Options,
    /// Bytes of a sector: the unit that is never torn.
    sector: usize,
    sectors: BTreeMap<u64, Sector>,
    /// The same by age: write and sector number.
    ages: BTreeSet<(u64, u64)>,
    writes: u64,
    rng: Rng,
    /// Staging for one run.
    run: Vec<u8>,
}

impl State {
    fn new(medium: File, info: &BlockInfo, options: Options) -> State {
        State {
            medium,
            size: info.size,
            options,
            sector: info.block_size as usize,
            sectors: BTreeMap::new(),
            ages: BTreeSet::new(),
            writes: 0,
            rng: Rng(options.seed),
            run: Vec::new(),
        }
    }

    fn range(&self, offset: u64, len: u64) -> std::ops::Range<u64> {
        let sector = self.sector as u64;
        offset / sector..(offset + len).div_ceil(sector)
    }

    /// Forgets what the cache holds of a range: something newer is on the medium.
    fn forget(&mut self, offset: u64, len: u64) {
        let gone: Vec<u64> = self.sectors.range(self.range(offset, len)).map(|(n, _)| *n).collect();
        for number in gone {
            self.remove(number);
        }
    }

    fn remove(&mut self, number: u64) {
        if let Some(old) = self.sectors.remove(&number) {
            self.ages.remove(&(old.write, number));
        }
    }

    /// A write has completed: its data is in the cache from now on.
    fn insert(&mut self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        let write = self.writes;
        self.writes += 1;
        for (number, bytes) in self.range(offset, data.len() as u64).zip(data.chunks(self.sector)) {
            self.remove(number);
            self.sectors.insert(number, Sector { write, data: bytes.into() });
            self.ages.insert((write, number));
        }
        // Down to three quarters, so that a full cache does not pay for each write.
        if (self.sectors.len() * self.sector) as u64 > self.options.capacity {
            let keep = (self.options.capacity as usize / self.sector) * 3 / 4;
            let oldest: Vec<u64> = self.ages.iter().take(self.sectors.len() - keep).map(|(_, n)| *n).collect();
            self.persist(oldest)?;
        }
        Ok(())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        self.medium.read_exact_at(out, offset)?;
        let first = offset / self.sector as u64;
        for (number, sector) in self.sectors.range(self.range(offset, out.len() as u64)) {
            let at = (number - first) as usize * self.sector;
            out[at..at + self.sector].copy_from_slice(&sector.data);
        }
        Ok(())
    }

    /// Data that is durable when this returns.
    fn write_through(&mut self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        self.medium.write_all_at(data, offset)?;
        self.forget(offset, data.len() as u64);
        Ok(())
    }

    /// Zeros past the cache.
    fn zero(&mut self, offset: u64, len: u64) -> std::io::Result<()> {
        let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let punched = i64::try_from(offset)
            .and_then(|offset| i64::try_from(len).map(|len| (offset, len)))
            .is_ok_and(|(offset, len)| fallocate(&self.medium, punch, offset, len).is_ok());
        if !punched {
            let zeros = vec![0; LONGEST_CACHED_ZERO as usize];
            let mut done = 0;
            while done < len {
                let part = (len - done).min(LONGEST_CACHED_ZERO);
                self.medium.write_all_at(&zeros[..part as usize], offset + done)?;
                done += part;
            }
        }
        self.forget(offset, len);
        Ok(())
    }

    /// Writes sectors out, runs of neighbours together and the runs in any order: a kill may come between two of them.
    fn persist(&mut self, mut numbers: Vec<u64>) -> std::io::Result<()> {
        numbers.sort_unstable();
        let mut runs: Vec<&[u64]> = numbers.chunk_by(|a, b| a + 1 == *b).flat_map(|run| run.chunks(RUN)).collect();
        for at in (1..runs.len()).rev() {
            let other = self.rng.below(at as u64 + 1) as usize;
            runs.swap(at, other);
        }
        for run in runs {
            self.run.clear();
            for number in run {
                self.run.extend_from_slice(&self.sectors[number].data);
            }
            self.medium.write_all_at(&self.run, run[0] * self.sector as u64)?;
            // Only now: what could not be written is still what a read must return.
            for number in run {
                self.remove(*number);
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        let lies = self.options.ignore_flush;
        let data = HONEST_ENDS / self.sector as u64..(self.size - HONEST_ENDS) / self.sector as u64;
        let covered = self.sectors.keys().copied().filter(|number| !lies || !data.contains(number)).collect();
        self.persist(covered)
    }

    /// Half of the writes are never written out early: they are the ones that a missing flush loses.
    fn stays(&self, write: u64) -> bool {
        mix(self.options.seed ^ write.wrapping_mul(0xD6E8_FEB8_6659_FD93)) & 1 == 1
    }

    /// What the background does once: a part of some write, or nothing.
    fn step(&mut self) -> std::io::Result<()> {
        let (Some((oldest, _)), Some((newest, _))) = (self.ages.first().copied(), self.ages.last().copied()) else {
            return Ok(());
        };
        let from = oldest + self.rng.below(newest - oldest + 1);
        let Some(write) = self.ages.range((from, 0)..).map(|(w, _)| *w).next().filter(|w| !self.stays(*w)) else {
            return Ok(());
        };
        let sectors: Vec<u64> = self.ages.range((write, 0)..(write + 1, 0)).map(|(_, n)| *n).collect();
        let cut = self.rng.below(sectors.len() as u64 + 1) as usize;
        let part = match self.rng.below(5) {
            0 => sectors,
            1 => sectors[..cut].to_vec(),
            2 => sectors[cut..].to_vec(),
            3 => sectors[cut.min(sectors.len() - 1)..][..1].to_vec(),
            _ => {
                let some = sectors.into_iter().filter(|_| self.rng.below(2) == 0);
                some.collect()
            }
        };
        self.persist(part)
    }
}

/// What the queues and the background thread share.
struct Shared {
    state: Mutex<State>,
    /// Rung when the cache is not empty any more, and at the end.
    work: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The background thread. It ends when the medium is taken away.
    fn trickle(&self, stop: &AtomicBool) {
        let mut state = self.lock();
        loop {
            while state.sectors.is_empty() && !stop.load(Ordering::Relaxed) {
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if stop.load(Ordering::Relaxed) {
                return;
            }
            for _ in 0..=state.rng.below(8) {
                // What could not be written stays in the cache; the flush that needs it tells.
                let _ = state.step();
            }
            let pause = Duration::from_micros(state.rng.below(LONGEST_PAUSE.as_micros() as u64));
            state = self.work.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// A member's cache. The member stays locked until this and all queues are gone.
struct Cache {
    shared: Arc<Shared>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    info: BlockInfo,
    // Last: nobody else gets the member before the cache is written out.
    _backing: Backing,
}

impl Drop for Cache {
    fn drop(&mut self) {
        // Under the lock, or the thread could look before and wait after.
        {
            let _state = self.shared.lock();
            self.stop.store(true, Ordering::Relaxed);
        }
        self.shared.work.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        // A drive that is let go keeps its power, and an idle drive empties its cache.
        let mut state = self.shared.lock();
        let left = state.sectors.keys().copied().collect();
        if let Err(e) = state.persist(left) {
            tracing::error!("{}: the simulated cache could not be written out: {e}", self.info.address);
        }
    }
}

/// Puts a simulated volatile cache in front of a member: queues made by the result share it. Errors name the member.
pub fn wrap(backing: &Backing, options: Options, memory: Memory) -> Result<MemberHandle, String> {
    let address = &backing.info().address;
    let medium = backing
        .reopen_cached()
        .ok_or_else(|| format!("{address}: --volatile-cache needs files: what is in RAM does not outlive the process"))?
        .map_err(|e| format!("{address}: cannot be opened for --volatile-cache: {e}"))?;
    let info = BlockInfo { volatile_cache: true, ..backing.info().clone() };
    let state = State::new(medium, &info, options);
    let shared = Arc::new(Shared { state: Mutex::new(state), work: Condvar::new() });
    let stop = Arc::new(AtomicBool::new(false));
    let thread = std::thread::Builder::new().name("volatile-cache".into()).spawn({
        let (shared, stop) = (shared.clone(), stop.clone());
        move || shared.trickle(&stop)
    });
    let thread = Some(thread.map_err(|e| format!("{address}: no thread for --volatile-cache: {e}"))?);
    let cache = Arc::new(Cache { shared, stop, thread, info, _backing: backing.clone() });
    Ok(Arc::new(move |_cx| Ok(Box::new(Queue::new(cache.clone(), memory.clone())))))
}

/// One reactor's queue.
struct Queue {
    cache: Arc<Cache>,
    memory: Memory,
    /// Writes that are not complete yet, and so not in the cache.
    writing: Vec<(Io, Vec<u8>)>,
    done: Completions,
    scratch: Vec<u8>,
}

impl Queue {
    fn new(cache: Arc<Cache>, memory: Memory) -> Queue {
        Queue { cache, memory, writing: Vec::new(), done: Completions::new(), scratch: Vec::new() }
    }

    fn gather(&self, segs: &[Seg]) -> Vec<u8> {
        let mut data = Vec::new();
        for seg in segs {
            self.memory.append_to(&mut data, seg.addr, seg.len as usize);
        }
        data
    }

    fn read(&mut self, io: &Io, segs: &[Seg]) -> std::io::Result<()> {
        self.scratch.resize(io.len as usize, 0);
        self.cache.shared.lock().read(io.offset, &mut self.scratch)?;
        let mut at = 0;
        for seg in segs {
            let end = at + seg.len as usize;
            self.memory.fill_from(seg.addr, &self.scratch[at..end]);
            at = end;
        }
        Ok(())
    }
}

impl BlockDevice for Queue {
    fn info(&self) -> &BlockInfo {
        &self.cache.info
    }

    fn submit(&mut self, io: Io, segs: &[Seg]) -> Result<(), Io> {
        let inside = io.offset.checked_add(io.len).is_some_and(|end| end <= self.cache.info.size);
        let result = match io.op {
            // Members are never asked to compare: the engine reads and compares.
            _ if !inside => Err(std::io::Error::from_raw_os_error(libc::EINVAL)),
            IoOp::Compare { .. } => Err(std::io::Error::from_raw_os_error(libc::EINVAL)),
            IoOp::Read => self.read(&io, segs),
            IoOp::Write { fua: false } => {
                let data = self.gather(segs);
                self.writing.push((io, data));
                return Ok(());
            }
            IoOp::Write { fua: true } => {
                let data = self.gather(segs);
                self.cache.shared.lock().write_through(io.offset, &data)
            }
            IoOp::Zero { fua: false, .. } if io.len <= LONGEST_CACHED_ZERO => {
                self.writing.push((io, vec![0; io.len as usize]));
                return Ok(());
            }
            IoOp::Zero { .. } => self.cache.shared.lock().zero(io.offset, io.len),
            IoOp::Flush => self.cache.shared.lock().flush(),
        };
        self.done.push(completion(&io, result));
        Ok(())
    }

    fn ring(&mut self) {}

    fn poll(&mut self, done: &mut Completions) {
        done.append(&mut self.done);
        if self.writing.is_empty() {
            return;
        }
        let mut state = self.cache.shared.lock();
        for (io, data) in self.writing.drain(..) {
            done.push(completion(&io, state.insert(io.offset, &data)));
        }
        drop(state);
        self.cache.shared.work.notify_all();
    }

    fn in_flight(&self) -> usize {
        self.done.len() + self.writing.len()
    }
}

fn completion(io: &Io, result: std::io::Result<()>) -> Completion {
    let status = match result {
        Ok(()) => IoStatus::Ok,
        Err(e) => super::uring::status(e.raw_os_error().unwrap_or(0), io.op),
    };
    Completion { tag: io.tag, status: BlockStatus::Member(status) }
}

#[cfg(test)]
mod tests;
