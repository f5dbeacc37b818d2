//! The write-intent bitmap as engines see it: one byte for each region of a volume (design, section 6).
//!
//! A region is one band of a group: the stripes that a shard owns there in a row, 1 MiB of each member or one chunk. So a
//! region belongs to one shard, and a request piece to one region.
//!
//! The bytes are shared: the manager, on one reactor, moves a region from state to state; engines, on all reactors, look
//! at each write and each read whether it may go on. Three bits belong to the engines: `HOT`, the region was written to;
//! `ASKED`, a write waits for the region; `ZEROS`, all of it was zeroed, and nothing but zeros written since. No lock, and nothing is sent for a write to a
//! region that is dirty already.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// What is known of a region. None is zero, so that zeros never read as a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Region {
    /// Nothing has been written since it was made or discarded: it reads as zeros, whatever the members hold there.
    Unwritten,
    /// Redundancy matches data, on all members and durably. A write has to ask first.
    Clean,
    /// May be written to.
    Dirty,
    /// It was dirty at an unclean stop: redundancy may not match data. May be written to, is not reconstructed from.
    NeedSync,
    /// As `NeedSync`, and the resync is under way.
    Syncing,
    /// Only in memory: dirty on disk, but about to become clean. A write has to ask first.
    Closing,
}

const ALL: [Region; 6] =
    [Region::Unwritten, Region::Clean, Region::Dirty, Region::NeedSync, Region::Syncing, Region::Closing];

impl Region {
    /// The number on disk. `Closing` is `Dirty` there.
    pub const fn code(self) -> u8 {
        match self {
            Region::Unwritten => 1,
            Region::Clean => 2,
            Region::Dirty | Region::Closing => 3,
            Region::NeedSync => 4,
            Region::Syncing => 5,
        }
    }

    /// The state behind a number on disk.
    pub fn from_code(code: u8) -> Option<Region> {
        ALL.into_iter().take(5).find(|r| r.code() == code)
    }

    /// Writes may go to the members: what a crash leaves half done is found again.
    pub const fn writable(self) -> bool {
        matches!(self, Region::Dirty | Region::NeedSync | Region::Syncing)
    }

    /// Redundancy matches data, so that what is missing may be reconstructed.
    pub const fn verified(self) -> bool {
        !matches!(self, Region::NeedSync | Region::Syncing)
    }
}

const HOT: u8 = 0x80;
const ASKED: u8 = 0x40;
const ZEROS: u8 = 0x20;
const STATE: u8 = 0x0f;

fn byte(state: Region) -> u8 {
    ALL.iter().position(|r| *r == state).unwrap_or(0) as u8 + 1
}

fn state(byte: u8) -> Region {
    // Only `byte` makes them.
    ALL[usize::from((byte & STATE).saturating_sub(1)).min(ALL.len() - 1)]
}

/// The regions of one volume, shared between the manager and all engines. Cheap to clone; a clone is the same bytes.
#[derive(Clone)]
pub struct RegionMap(Arc<[AtomicU8]>);

impl PartialEq for RegionMap {
    fn eq(&self, other: &RegionMap) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for RegionMap {}

impl fmt::Debug for RegionMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} regions", self.0.len())
    }
}

impl RegionMap {
    /// The regions in these states.
    pub fn new(states: impl Iterator<Item = Region>) -> RegionMap {
        RegionMap(states.map(|s| AtomicU8::new(byte(s))).collect())
    }

    /// Number of regions.
    pub fn len(&self) -> u32 {
        self.0.len() as u32
    }

    /// No regions.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn at(&self, region: u32) -> Option<&AtomicU8> {
        self.0.get(region as usize)
    }

    /// A region's state. One that is not there (it never is) is nothing to rely on.
    pub fn get(&self, region: u32) -> Region {
        self.at(region).map_or(Region::NeedSync, |b| state(b.load(Ordering::Acquire)))
    }

    /// An engine writes to the region, nothing but zeros or not: it must not be closed for a while. False if a write has to
    /// ask first.
    pub fn touch(&self, region: u32, zeros: bool) -> bool {
        let Some(b) = self.at(region) else { return false };
        let now = b.load(Ordering::Acquire);
        if now & ZEROS != 0 && !zeros {
            b.fetch_and(!ZEROS, Ordering::AcqRel);
        }
        if now & HOT == 0 && state(now).writable() {
            b.fetch_or(HOT, Ordering::AcqRel);
        }
        // Looked at again: the manager may have begun to close it in between, and then it did not see the bit.
        state(b.load(Ordering::Acquire)).writable()
    }

    /// An engine has a write that waits for the region. True if nobody has asked before.
    pub fn ask(&self, region: u32) -> bool {
        self.at(region).is_some_and(|b| b.fetch_or(ASKED, Ordering::AcqRel) & ASKED == 0)
    }

    /// An engine begins to zero the whole region. Any other write from here on takes the note away.
    pub fn begin_zeros(&self, region: u32) {
        if let Some(b) = self.at(region) {
            b.fetch_or(ZEROS, Ordering::AcqRel);
        }
    }

    /// The whole region was zeroed, and nothing else has been written to it since that began.
    pub fn is_zeros(&self, region: u32) -> bool {
        self.at(region).is_some_and(|b| b.load(Ordering::Acquire) & ZEROS != 0)
    }

    /// The manager moves a region to a state; nobody has asked for it and it is not hot any more.
    pub(crate) fn set(&self, region: u32, to: Region) {
        if let Some(b) = self.at(region) {
            b.store(byte(to), Ordering::Release);
        }
    }

    /// The manager moves a region on, and leaves what engines said about it.
    pub(crate) fn shift(&self, region: u32, from: Region, to: Region) -> bool {
        let Some(b) = self.at(region) else { return false };
        let step = |now: u8| (state(now) == from).then_some(now & !STATE | byte(to));
        b.fetch_update(Ordering::AcqRel, Ordering::Acquire, step).is_ok()
    }

    /// The manager wants to close a dirty region. False, and no longer hot, if it was written to since the last try.
    pub(crate) fn close(&self, region: u32) -> bool {
        let Some(b) = self.at(region) else { return false };
        let step = |now: u8| match state(now) {
            Region::Dirty if now & (HOT | ASKED) == 0 => Some(byte(Region::Closing)),
            Region::Dirty => Some(now & !HOT),
            _ => None,
        };
        let before = b.fetch_update(Ordering::AcqRel, Ordering::Acquire, step);
        before.is_ok_and(|now| now & (HOT | ASKED) == 0)
    }

    /// The manager wants to close a dirty region of which all was zeroed. False if it was written to since.
    pub(crate) fn close_zeros(&self, region: u32) -> bool {
        let Some(b) = self.at(region) else { return false };
        let ready = |now: u8| state(now) == Region::Dirty && now & ZEROS != 0 && now & ASKED == 0;
        let step = |now: u8| ready(now).then_some(byte(Region::Closing) | ZEROS);
        b.fetch_update(Ordering::AcqRel, Ordering::Acquire, step).is_ok()
    }

    /// How many regions are in each state: unwritten, clean, dirty, to be resynced, being resynced.
    pub fn counts(&self) -> [u64; 5] {
        let mut counts = [0; 5];
        for b in self.0.iter() {
            counts[usize::from(state(b.load(Ordering::Relaxed)).code()) - 1] += 1;
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_inverse_and_never_zero() {
        for region in ALL {
            assert_eq!(state(byte(region)), region);
            assert_eq!(state(byte(region) | HOT | ASKED), region);
            let expected = if region == Region::Closing { Region::Dirty } else { region };
            assert_eq!(Region::from_code(region.code()), Some(expected));
        }
        assert_eq!(Region::from_code(0), None);
        assert_eq!(Region::from_code(6), None);
    }

    #[test]
    fn a_region_in_use_is_not_closed() {
        let map = RegionMap::new([Region::Dirty].into_iter());
        assert!(map.touch(0, false));
        assert!(!map.close(0), "it is hot");
        assert!(map.close(0), "it has not been touched since");
        assert!(!map.touch(0, false), "closing");
        assert!(map.ask(0) && !map.ask(0), "asked once");
        assert!(map.shift(0, Region::Closing, Region::Dirty));
        assert!(!map.close(0), "somebody waits for it");
        map.set(0, Region::Dirty);
        assert!(map.touch(0, false));
    }

    #[test]
    fn a_zeroed_region_is_closed_unless_something_was_written_to_it() {
        for written in [None, Some(true), Some(false)] {
            let map = RegionMap::new([Region::Dirty].into_iter());
            assert!(!map.close_zeros(0));
            map.begin_zeros(0);
            assert!(written.is_none_or(|zeros| map.touch(0, zeros)));
            let zeros = written != Some(false);
            assert_eq!((map.is_zeros(0), map.close_zeros(0)), (zeros, zeros), "{written:?}");
            assert_eq!(map.touch(0, false), !zeros, "a closing region is asked for first");
        }
    }

    #[test]
    fn a_clone_is_the_same_bytes_and_another_map_is_not() {
        let new = || RegionMap::new([Region::Clean, Region::Dirty].into_iter());
        let (map, other) = (new(), new());
        let clone = map.clone();
        map.set(0, Region::Dirty);
        assert_eq!((map.get(0), clone.get(0), other.get(0)), (Region::Dirty, Region::Dirty, Region::Clean));
        assert_eq!(map.counts(), [0, 0, 2, 0, 0]);
        assert_ne!(map, other);
        assert_eq!(map, clone);
    }
}
