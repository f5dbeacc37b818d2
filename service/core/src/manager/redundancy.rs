//! What a group survives, and which extents are free: pure functions over the configuration.

use crate::geometry::Level;
use crate::ondisk::{Config, GroupRecord, SlotRecord, VolumeRecord};
use crate::view::SlotState;

/// Slots that a group of this level can miss, wherever they are. RAID-10 survives more when they are in different pairs.
pub(super) fn tolerance(level: Level, width: u16) -> u16 {
    match level {
        Level::Raid0 => 0,
        Level::Raid1 => width - 1,
        Level::Raid10 | Level::Raid5 => 1,
        Level::Raid6 => 2,
    }
}

/// All data of a group is there when only slots that `present` accepts can be read.
pub(super) fn viable(level: Level, slots: &[SlotRecord], present: impl Fn(&SlotRecord) -> bool) -> bool {
    match level {
        Level::Raid10 => slots.chunks(2).all(|pair| pair.iter().any(&present)),
        _ => {
            let missing = slots.iter().filter(|s| !present(s)).count();
            missing <= usize::from(tolerance(level, slots.len() as u16))
        }
    }
}

/// The slot can be read.
pub(super) fn in_sync(slot: &SlotRecord) -> bool {
    slot.state == SlotState::InSync
}

/// All data of the volume is there.
pub(super) fn volume_viable(volume: &VolumeRecord) -> bool {
    volume_viable_with(volume, in_sync)
}

/// All data of the volume is there, and a copy of its bitmap, when only slots that `present` accepts can be read.
fn volume_viable_with(volume: &VolumeRecord, present: impl Fn(&SlotRecord) -> bool) -> bool {
    volume.groups.iter().all(|g| viable(volume.geometry.level, &g.slots, &present)) && bitmap_viable(volume, present)
}

/// Each block of the bitmap is there at least once.
pub(super) fn bitmap_viable(volume: &VolumeRecord, present: impl Fn(&SlotRecord) -> bool) -> bool {
    volume.meta.iter().all(|g| g.slots.iter().any(&present))
}

/// Copies of the bitmap, so that it survives what the volume survives. RAID-10 can lose more than one member if they are
/// in different pairs; the third copy is for those.
pub(super) fn bitmap_copies(level: Level, width: u16) -> u16 {
    match level {
        Level::Raid0 => 0,
        Level::Raid10 => 3,
        _ => tolerance(level, width) + 1,
    }
    .min(width)
}

/// The group has a slot that is not in sync.
pub(super) fn degraded(group: &GroupRecord) -> bool {
    group.slots.iter().any(|s| !in_sync(s))
}

/// Redundancy that is computed: nothing can be reconstructed while it may not match. Copies just are what they are.
pub(super) fn has_parity(level: Level) -> bool {
    matches!(level, Level::Raid5 | Level::Raid6)
}

/// The first volume that would lose data if the member failed now.
///
/// `synced` says whether a group's redundancy matches its data.
pub(super) fn needs_member(
    config: &Config,
    member: u16,
    synced: impl Fn(&VolumeRecord, usize) -> bool,
) -> Option<&VolumeRecord> {
    let other = |s: &SlotRecord| in_sync(s) && s.member != member;
    config.volumes.iter().find(|v| {
        let bitmap = bitmap_viable(v, in_sync) && !bitmap_viable(v, other);
        bitmap
            || v.groups.iter().enumerate().any(|(i, g)| {
                let level = v.geometry.level;
                viable(level, &g.slots, in_sync)
                && g.slots.iter().any(|s| s.member == member && in_sync(s))
                // A group whose parity may not match cannot reconstruct what the member holds.
                && (!viable(level, &g.slots, other) || (has_parity(level) && !synced(v, i)))
            })
    })
}

/// Every volume that the member holds something of has lost data: nothing that it misses will be acknowledged.
pub(super) fn all_down_with(config: &Config, member: u16) -> bool {
    let mut on_it =
        config.volumes.iter().filter(|v| v.slots().any(|s| s.member == member && s.state != SlotState::Missing));
    let down = |v: &VolumeRecord| !volume_viable_with(v, |s| in_sync(s) && s.member != member);
    on_it.clone().next().is_some() && on_it.all(down)
}

/// Which extents of each member belong to a slot.
pub(super) struct Used(Vec<Vec<bool>>);

impl Used {
    /// All free: `extents` per member.
    pub fn new(extents: impl Iterator<Item = u32>) -> Used {
        Used(extents.map(|n| vec![false; n as usize]).collect())
    }

    /// Takes what the configuration's volumes hold.
    pub fn take_all(&mut self, volumes: &[VolumeRecord]) {
        for slot in volumes.iter().flat_map(VolumeRecord::slots) {
            self.take(slot.member, slot.extent);
        }
    }

    /// Takes one extent.
    pub fn take(&mut self, member: u16, extent: u32) {
        if let Some(bit) = self.0.get_mut(usize::from(member)).and_then(|m| m.get_mut(extent as usize)) {
            *bit = true;
        }
    }

    /// Number of free extents of a member.
    pub fn free(&self, member: u16) -> u32 {
        self.0.get(usize::from(member)).map_or(0, |m| m.iter().filter(|b| !**b).count() as u32)
    }

    /// The first free extent of a member, from `from` on.
    pub fn first_free(&self, member: u16, from: u32) -> Option<u32> {
        let bits = self.0.get(usize::from(member))?;
        (from as usize..bits.len()).find(|i| !bits[*i]).map(|i| i as u32)
    }
}
