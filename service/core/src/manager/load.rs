//! Reading the bitmaps at assembly: every copy of every block, a piece at a time, before the first commit. Copies may differ
//! after a crash: the state that demands most is taken. After an unclean stop dirty regions become such that need a resync,
//! and that is on disk before the configuration forgets that the stop was unclean.

use std::collections::{BTreeMap, BTreeSet};

use super::bitmap::{Bitmap, encode_blocks, merge, runs};
use super::decide::Trust;
use super::redundancy::{in_sync, volume_viable};
use super::{DeviceId, Manager, Severity};
use crate::action::VolumeId;
use crate::ondisk::{BITMAP_BLOCK, REGIONS_PER_BLOCK, VolumeRecord, bitmap_blocks, decode_bitmap_block};
use crate::regions::Region;

/// The one part that is read of a device at a time.
const PART: u8 = 0;

/// Where the reading stands.
#[derive(Default)]
pub(super) struct Loading {
    trust: BTreeMap<u32, Trust>,
    /// The volume that is being read.
    volume: Option<u32>,
    /// Pieces of its bitmap that are still to be read: first block and count.
    todo: Vec<(u32, u32)>,
    /// The piece whose reads have been ordered, and the devices that were asked.
    asked: Option<((u32, u32), Vec<DeviceId>)>,
    states: Vec<Option<Region>>,
    /// Blocks of which a copy says something else than another, or nothing.
    uneven: BTreeSet<u32>,
}

impl Loading {
    pub fn new(trust: BTreeMap<u32, Trust>) -> Loading {
        Loading { trust, ..Loading::default() }
    }
}

impl Manager {
    /// One step: takes what the last one read, orders the next reads. False when all bitmaps are there.
    pub(super) fn load_bitmaps(&mut self, l: &mut Loading) -> bool {
        if let Some(((first, count), devices)) = l.asked.take() {
            let volume = l.volume.unwrap_or_default();
            for device in devices {
                // A copy that cannot be read says nothing; the others do.
                let bytes = self.task_io.take_read(device, PART).unwrap_or_default();
                for block in first..first + count {
                    let at = ((block - first) * BITMAP_BLOCK) as usize;
                    let bytes = bytes.get(at..).unwrap_or_default();
                    let regions = &mut l.states[(block * REGIONS_PER_BLOCK) as usize..];
                    for (state, read) in regions.iter_mut().zip(decode_bitmap_block(volume, block, bytes)) {
                        if read.is_none() || state.is_some() && *state != read {
                            l.uneven.insert(block);
                        }
                        *state = match (*state, read) {
                            (Some(a), Some(b)) => Some(merge(a, b)),
                            (a, b) => a.or(b),
                        };
                    }
                }
            }
        }
        if let Some((first, count)) = l.todo.pop() {
            let Some(at) = self.wanted.volumes.iter().position(|v| Some(v.id) == l.volume) else { return false };
            let copies = self.readable_copies(&self.wanted.volumes[at], first);
            for (device, offset) in &copies {
                self.task_read(*device, PART, *offset, count * BITMAP_BLOCK);
            }
            l.asked = Some(((first, count), copies.into_iter().map(|(d, _)| d).collect()));
            return true;
        }
        if let Some(id) = l.volume.take() {
            let states = std::mem::take(&mut l.states);
            let trust = l.trust.get(&id).copied().unwrap_or_default();
            let uneven = std::mem::take(&mut l.uneven);
            self.take_bitmap(id, states, trust, uneven);
        }
        let next = self
            .wanted
            .volumes
            .iter()
            .find(|v| !v.meta.is_empty() && !self.bitmaps.contains_key(&v.id) && volume_viable(v));
        let Some(v) = next else { return false };
        l.volume = Some(v.id);
        l.states = vec![None; v.regions() as usize];
        l.todo = runs(&(0..bitmap_blocks(v.regions())).collect(), self.blocks_per_group());
        true
    }

    /// The copies of a block that may be read: device and byte offset.
    fn readable_copies(&self, v: &VolumeRecord, block: u32) -> Vec<(DeviceId, u64)> {
        let per_group = self.blocks_per_group();
        let Some(group) = v.meta.get((block / per_group) as usize) else { return Vec::new() };
        let at = u64::from(block % per_group) * u64::from(BITMAP_BLOCK);
        let slots = group.slots.iter().filter(|s| in_sync(s));
        slots.filter_map(|s| Some((self.live_device(s.member)?, self.extent_offset(s.extent) + at))).collect()
    }

    /// What was read becomes the volume's bitmap.
    ///
    /// Copies are made equal: a region that is dirty because one copy says so is written to without another word, and then
    /// the other copy alone must not call it clean.
    fn take_bitmap(&mut self, id: u32, read: Vec<Option<Region>>, trust: Trust, mut changed: BTreeSet<u32>) {
        let mut unknown = 0;
        let mut states = Vec::with_capacity(read.len());
        for (i, state) in read.into_iter().enumerate() {
            unknown += u64::from(state.is_none());
            let now = match state {
                // Nobody can say whether it was written to: what is there is read, and has to be verified first.
                None => Region::NeedSync,
                Some(_) if trust.stale => Region::NeedSync,
                Some(Region::Dirty) if trust.unclean => Region::NeedSync,
                Some(Region::Syncing) => Region::NeedSync,
                Some(state) => state,
            };
            if state != Some(now) {
                changed.insert(i as u32 / REGIONS_PER_BLOCK);
            }
            states.push(now);
        }
        for (first, count) in runs(&changed, self.blocks_per_group()) {
            let Some(v) = self.wanted.volumes.iter().find(|v| v.id == id) else { return };
            let bytes = encode_blocks(id, &states, first, count);
            for (_, device, offset) in self.bitmap_copies_of(v, first) {
                self.task_write(device, offset, bytes.clone());
            }
        }
        let need = states.iter().filter(|s| !s.verified()).count();
        self.bitmaps.insert(id, Bitmap::new(states));
        let volume = VolumeId(id);
        if unknown > 0 {
            let message = format!(
                "{unknown} regions of the bitmap of {} could be read from no copy; they are resynced as if they had been \
                 written to",
                self.volume_name(volume)
            );
            self.notice(Severity::Warning, "bitmap-lost", None, Some(volume), message);
        }
        if need > 0 {
            let message = format!(
                "{} was not stopped cleanly; the redundancy of {need} regions is being made to match again",
                self.volume_name(volume)
            );
            self.notice(Severity::Warning, "resync-needed", None, Some(volume), message);
        }
    }
}
