//! A simulated drive: sparse contents, a volatile write cache, and faults.
//!
//! The cache model is the hostile one. A completed write may stay volatile for as long as it likes. A FLUSH makes durable
//! the writes that were complete when it began, and nothing more. When the power fails, each volatile or unfinished write
//! is lost, kept, or torn at any of its 512-byte sectors, independent of the order in which the writes came.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use raid_core::action::IoStatus;

use crate::pattern::SECTOR;
use crate::rng::Rng;

/// Bytes of a block of the sparse store, and the unit of read errors.
pub const BLOCK: u64 = 4096;

/// A sector's bytes, shared by whoever keeps a copy of a drive.
pub type Sector = Rc<[u8; SECTOR]>;

/// What a drive was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Read.
    Read,
    /// Write; with FUA durable before it is complete.
    Write {
        /// Force unit access.
        fua: bool,
    },
    /// Flush.
    Flush,
    /// Zero a range.
    Zero {
        /// Force unit access.
        fua: bool,
    },
}

/// What is wrong with a drive.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Blocks that cannot be read; true if not even a rewrite heals them.
    pub bad: BTreeMap<u64, bool>,
    /// So many of the next writes fail; then the drive works again.
    pub fail_writes: u32,
    /// It answers nothing but this any more.
    pub dead: Option<IoStatus>,
    /// Writes find no room.
    pub full: bool,
}

/// A write that is not durable yet.
#[derive(Clone)]
struct Volatile {
    write: u64,
    /// When it completed, in the caller's count.
    complete: Option<u64>,
    sectors: BTreeMap<u64, Sector>,
}

#[derive(Clone, Default)]
struct Cache {
    /// Writes in the order in which they began to take effect.
    writes: Vec<Volatile>,
    /// What is durable, of the sectors that volatile writes changed.
    durable: BTreeMap<u64, Sector>,
    /// Flushes under way: the writes that each will make durable.
    flushes: BTreeMap<u64, BTreeSet<u64>>,
}

/// The drive. A copy shares the blocks with it until one of the two writes them.
#[derive(Clone)]
pub struct Drive {
    size: u64,
    blocks: BTreeMap<u64, Rc<[u8; BLOCK as usize]>>,
    cache: Option<Cache>,
    /// Changes whenever what is durable may have changed.
    epoch: u64,
    /// What is wrong with it.
    pub faults: Faults,
}

impl Drive {
    /// A drive of `size` bytes, full of zeros, with or without a volatile cache.
    pub fn new(size: u64, volatile_cache: bool) -> Drive {
        let cache = volatile_cache.then(Cache::default);
        Drive { size, blocks: BTreeMap::new(), cache, epoch: 0, faults: Faults::default() }
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// How the drive will answer. A successful write heals the read errors of the whole blocks that it covers.
    pub fn judge(&mut self, kind: Kind, offset: u64, len: u64) -> IoStatus {
        let f = &mut self.faults;
        if let Some(status) = f.dead {
            return status;
        }
        let blocks = offset / BLOCK..(offset + len).div_ceil(BLOCK);
        match kind {
            Kind::Read if f.bad.range(blocks.clone()).next().is_some() => IoStatus::ReadError,
            Kind::Read | Kind::Flush => IoStatus::Ok,
            _ if f.fail_writes > 0 => {
                f.fail_writes -= 1;
                IoStatus::DeviceError
            }
            _ if f.full => IoStatus::NoSpace,
            _ => {
                let healed: Vec<u64> = f.bad.range(blocks).filter(|(_, stuck)| !**stuck).map(|(b, _)| *b).collect();
                for block in healed {
                    if offset <= block * BLOCK && (block + 1) * BLOCK <= offset + len {
                        f.bad.remove(&block);
                    }
                }
                IoStatus::Ok
            }
        }
    }

    /// What it holds.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) {
        assert!(offset + bytes.len() as u64 <= self.size, "a read beyond the drive's end");
        let mut at = 0;
        while at < bytes.len() {
            let (block, from) = ((offset + at as u64) / BLOCK, ((offset + at as u64) % BLOCK) as usize);
            let n = (BLOCK as usize - from).min(bytes.len() - at);
            match self.blocks.get(&block) {
                Some(b) => bytes[at..at + n].copy_from_slice(&b[from..from + n]),
                None => bytes[at..at + n].fill(0),
            }
            at += n;
        }
    }

    /// Bytes from `offset` on, at most `len`, behind which there is nothing but zeros.
    pub fn written(&self, offset: u64, len: u64) -> u64 {
        let last = self.blocks.range(offset / BLOCK..(offset + len).div_ceil(BLOCK)).next_back();
        last.map_or(0, |(block, _)| ((block + 1) * BLOCK).clamp(offset, offset + len) - offset)
    }

    /// Part of write `write` takes effect: reads see it from now on. Whole sectors.
    pub fn apply(&mut self, write: u64, offset: u64, bytes: &[u8]) {
        assert!(
            offset.is_multiple_of(SECTOR as u64) && bytes.len().is_multiple_of(SECTOR),
            "a write of part of a sector"
        );
        assert!(offset + bytes.len() as u64 <= self.size, "a write beyond the drive's end");
        let mut old = vec![0; if self.cache.is_some() { bytes.len() } else { 0 }];
        self.read(offset, &mut old);
        if let Some(cache) = &mut self.cache {
            cache.remember(write, offset / SECTOR as u64, &old, bytes);
        } else {
            self.epoch += 1;
        }
        self.store(offset, bytes);
    }

    fn store(&mut self, offset: u64, bytes: &[u8]) {
        let mut at = 0;
        while at < bytes.len() {
            let (block, from) = ((offset + at as u64) / BLOCK, ((offset + at as u64) % BLOCK) as usize);
            let n = (BLOCK as usize - from).min(bytes.len() - at);
            let new = &bytes[at..at + n];
            if n == BLOCK as usize && new.iter().all(|&b| b == 0) {
                self.blocks.remove(&block);
            } else {
                let block = self.blocks.entry(block).or_insert_with(|| Rc::new([0; BLOCK as usize]));
                Rc::make_mut(block)[from..from + n].copy_from_slice(new);
            }
            at += n;
        }
    }

    /// A write is complete at `moment`; with FUA it is durable, and what it wrote over can never come back.
    pub fn complete(&mut self, write: u64, fua: bool, moment: u64) {
        let Some(cache) = &mut self.cache else { return };
        if let Some(w) = cache.writes.iter_mut().find(|w| w.write == write) {
            w.complete = Some(moment);
        }
        if fua {
            cache.persist(&BTreeSet::from([write]));
            self.epoch += 1;
        }
    }

    /// A flush begins.
    pub fn begin_flush(&mut self, flush: u64) {
        if let Some(cache) = &mut self.cache {
            let complete = cache.writes.iter().filter(|w| w.complete.is_some()).map(|w| w.write).collect();
            cache.flushes.insert(flush, complete);
        }
    }

    /// A flush is complete: what was complete at its beginning is durable.
    pub fn end_flush(&mut self, flush: u64) {
        if let Some(cache) = &mut self.cache
            && let Some(writes) = cache.flushes.remove(&flush)
        {
            cache.persist(&writes);
            self.epoch += 1;
        }
    }

    /// What a cut of the power cannot take away.
    pub fn read_durable(&self, offset: u64, bytes: &mut [u8]) {
        self.read(offset, bytes);
        let Some(cache) = &self.cache else { return };
        let first = offset / SECTOR as u64;
        for (sector, durable) in cache.durable.range(first..first + (bytes.len() / SECTOR) as u64) {
            let at = (sector - first) as usize * SECTOR;
            bytes[at..at + SECTOR].copy_from_slice(&durable[..]);
        }
    }

    /// A write that completed before `moment` and is still volatile.
    pub fn volatile_before(&self, moment: u64) -> Option<u64> {
        let cache = self.cache.as_ref()?;
        cache.writes.iter().find(|w| w.complete.is_some_and(|m| m < moment)).map(|w| w.write)
    }

    /// A complete write of a part of this range that is still volatile.
    pub fn volatile_in(&self, offset: u64, len: u64) -> Option<u64> {
        let cache = self.cache.as_ref()?;
        let range = offset / SECTOR as u64..(offset + len) / SECTOR as u64;
        let touches = |w: &&Volatile| w.complete.is_some() && w.sectors.range(range.clone()).next().is_some();
        cache.writes.iter().find(touches).map(|w| w.write)
    }

    /// Two equal numbers: what is durable has not changed in between.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The writes of which something is volatile, in the order in which they began to take effect, with those sectors.
    pub fn volatile(&self) -> impl Iterator<Item = (u64, &BTreeMap<u64, Sector>)> {
        self.cache.iter().flat_map(|c| &c.writes).map(|w| (w.write, &w.sectors))
    }

    /// Something else in this sector is durable than what is read.
    pub fn is_volatile(&self, sector: u64) -> bool {
        self.cache.as_ref().is_some_and(|c| c.durable.contains_key(&sector))
    }

    /// The drive after a cut of the power that took everything volatile with it.
    pub fn after_cut(&self) -> Drive {
        let mut drive = Drive {
            size: self.size,
            blocks: self.blocks.clone(),
            cache: self.cache.as_ref().map(|_| Cache::default()),
            epoch: 0,
            faults: self.faults.clone(),
        };
        for (sector, bytes) in self.cache.iter().flat_map(|c| &c.durable) {
            drive.store(sector * SECTOR as u64, &bytes[..]);
        }
        drive
    }

    /// After a cut of the power this sector turns out to have become durable.
    pub fn keep(&mut self, sector: u64, bytes: &Sector) {
        self.store(sector * SECTOR as u64, &bytes[..]);
    }

    /// The power fails. Each write that is not durable is lost, kept or torn.
    pub fn cut_power(&mut self, rng: &mut Rng) {
        let Some(cache) = &mut self.cache else { return };
        let mut after = std::mem::take(&mut cache.durable);
        cache.flushes.clear();
        let mut writes = std::mem::take(&mut cache.writes);
        rng.shuffle(&mut writes);
        for write in writes {
            let fate = rng.below(4);
            for (sector, bytes) in write.sectors {
                if fate == 1 || (fate >= 2 && rng.percent(50)) {
                    after.insert(sector, bytes);
                }
            }
        }
        for (sector, bytes) in after {
            self.store(sector * SECTOR as u64, &bytes[..]);
        }
    }
}

impl Cache {
    /// Notes what a write changes.
    fn remember(&mut self, write: u64, first: u64, old: &[u8], new: &[u8]) {
        let at = self.writes.iter().position(|w| w.write == write).unwrap_or_else(|| {
            self.writes.push(Volatile { write, complete: None, sectors: BTreeMap::new() });
            self.writes.len() - 1
        });
        for (sector, (new, old)) in (first..).zip(new.chunks_exact(SECTOR).zip(old.chunks_exact(SECTOR))) {
            if new == old && !self.durable.contains_key(&sector) {
                // Lost or kept, it is the same.
                continue;
            }
            let shared = |bytes: &[u8]| Rc::new(bytes.try_into().expect("a sector"));
            self.durable.entry(sector).or_insert_with(|| shared(old));
            self.writes[at].sectors.insert(sector, shared(new));
        }
    }

    /// Makes these writes durable, in their order.
    fn persist(&mut self, writes: &BTreeSet<u64>) {
        let mut at = 0;
        while at < self.writes.len() {
            if !writes.contains(&self.writes[at].write) {
                at += 1;
                continue;
            }
            let done = self.writes.remove(at);
            for (sector, bytes) in done.sectors {
                // An older write of the same sector is gone for good, a newer one may still be lost.
                for older in &mut self.writes[..at] {
                    older.sectors.remove(&sector);
                }
                if self.writes[at..].iter().any(|w| w.sectors.contains_key(&sector)) {
                    self.durable.insert(sector, bytes);
                } else {
                    self.durable.remove(&sector);
                }
            }
        }
        self.writes.retain(|w| !w.sectors.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sector(drive: &Drive, sector: u64) -> u8 {
        let mut bytes = [0; SECTOR];
        drive.read(sector * SECTOR as u64, &mut bytes);
        assert!(bytes.iter().all(|&b| b == bytes[0]), "a torn sector");
        bytes[0]
    }

    fn write(drive: &mut Drive, number: u64, at: u64, sectors: usize, byte: u8, fua: bool) {
        drive.apply(number, at * SECTOR as u64, &vec![byte; sectors * SECTOR]);
        drive.complete(number, fua, number);
    }

    #[test]
    fn a_flush_keeps_what_was_complete_when_it_began_and_nothing_more() {
        let mut lost = 0;
        for seed in 0..64 {
            let mut d = Drive::new(1 << 20, true);
            write(&mut d, 1, 0, 1, 1, false);
            d.begin_flush(2);
            write(&mut d, 3, 1, 1, 3, false);
            d.end_flush(2);
            assert_eq!((sector(&d, 0), sector(&d, 1)), (1, 3), "reads see volatile writes");
            let mut durable = [7; 2 * SECTOR];
            d.read_durable(0, &mut durable);
            assert_eq!((durable[0], durable[SECTOR]), (1, 0));
            assert_eq!(d.volatile_before(10), Some(3));
            d.cut_power(&mut Rng::new(seed));
            assert_eq!(sector(&d, 0), 1, "flushed");
            lost += u32::from(sector(&d, 1) == 0);
        }
        assert!((10..54).contains(&lost), "the later write is sometimes lost, sometimes not: {lost}");
    }

    #[test]
    fn volatile_writes_tear_at_sectors_and_fua_is_never_undone() {
        let (mut torn, mut reordered) = (false, false);
        for seed in 0..200 {
            let mut d = Drive::new(1 << 20, true);
            write(&mut d, 1, 0, 8, 1, false);
            write(&mut d, 2, 0, 8, 2, false);
            write(&mut d, 3, 3, 1, 3, true);
            write(&mut d, 4, 20, 1, 4, false);
            d.cut_power(&mut Rng::new(seed));
            assert_eq!(sector(&d, 3), 3, "older volatile data came back over a FUA write");
            let left: BTreeSet<u8> = (0..8).filter(|s| *s != 3).map(|s| sector(&d, s)).collect();
            torn |= left.len() > 1;
            reordered |= sector(&d, 0) == 0 && sector(&d, 20) == 4;
        }
        assert!(torn && reordered);
    }

    #[test]
    fn a_newer_volatile_write_over_a_durable_one_falls_back_to_it() {
        let mut seen = BTreeSet::new();
        for seed in 0..64 {
            let mut d = Drive::new(1 << 20, true);
            write(&mut d, 1, 0, 1, 1, false);
            d.begin_flush(2);
            write(&mut d, 3, 0, 1, 3, false);
            d.end_flush(2);
            d.cut_power(&mut Rng::new(seed));
            seen.insert(sector(&d, 0));
        }
        assert_eq!(seen, BTreeSet::from([1, 3]));
    }

    #[test]
    fn read_errors_heal_by_rewriting_the_whole_block() {
        let mut d = Drive::new(1 << 20, false);
        d.faults.bad = BTreeMap::from([(2, false), (5, true)]);
        assert_eq!(d.judge(Kind::Read, 2 * BLOCK + 512, 512), IoStatus::ReadError);
        assert_eq!(d.judge(Kind::Write { fua: false }, 2 * BLOCK, 512), IoStatus::Ok);
        assert_eq!(d.judge(Kind::Read, 0, 4 * BLOCK), IoStatus::ReadError, "part of a block heals nothing");
        assert_eq!(d.judge(Kind::Write { fua: false }, BLOCK, 3 * BLOCK), IoStatus::Ok);
        assert_eq!(d.judge(Kind::Read, 0, 4 * BLOCK), IoStatus::Ok);
        assert_eq!(d.judge(Kind::Zero { fua: false }, 5 * BLOCK, BLOCK), IoStatus::Ok);
        assert_eq!(d.judge(Kind::Read, 5 * BLOCK, BLOCK), IoStatus::ReadError, "a stuck block");
        d.faults.fail_writes = 1;
        assert_eq!(d.judge(Kind::Write { fua: false }, 0, BLOCK), IoStatus::DeviceError);
        assert_eq!(d.judge(Kind::Write { fua: false }, 0, BLOCK), IoStatus::Ok);
    }
}
