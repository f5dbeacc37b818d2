//! The array as the engines see it: an immutable snapshot that the manager publishes after each commit.
//!
//! An engine that holds an older view than another is harmless, because the manager publishes a view before it
//! orders work that relies on it, and the mailboxes keep that order.

use crate::action::{MemberId, VolumeId};
use crate::geometry::Geometry;
use crate::regions::{Region, RegionMap};

/// A snapshot of members, volumes and groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// The configuration's generation.
    pub generation: u64,
    /// The array's members by [`MemberId`]; gaps are `Removed`.
    pub members: Vec<MemberState>,
    /// The volumes, in the order of their numbers.
    pub volumes: Vec<VolumeView>,
}

/// A member's state. None of them is zero on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// Present and written to.
    Active,
    /// Present, belongs to no group yet; takes the place of a failed member.
    Spare,
    /// Failed, missing or stale: neither read nor written.
    Failed,
    /// No longer part of the array; the number is not used again.
    Removed,
}

/// One volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeView {
    /// Its number.
    pub id: VolumeId,
    /// Level, width, chunk and extent size, the same for all its groups.
    pub geometry: Geometry,
    /// Size in bytes, as exported; at most the sum of its groups.
    pub size: u64,
    /// Writes need a durable dirty mark first (policy `resync`).
    pub track_dirty: bool,
    /// The durable dirty mark is set.
    pub dirty: bool,
    /// False: every request is answered `Offline`.
    pub online: bool,
    /// The write-intent bitmap, where the volume has one. Its states change under a view: they are the one thing in it
    /// that does.
    pub regions: Option<RegionMap>,
    /// The groups, in the order of their addresses.
    pub groups: Vec<GroupView>,
}

/// One group: an extent on each of W members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupView {
    /// The W slots. A stripe's column position is an index into this.
    pub slots: Vec<SlotView>,
    /// False after an unclean stop until resynced: redundancy may not match data, so mirrored reads come from the
    /// first slot that can be read, and nothing is reconstructed from this group.
    pub synced: bool,
}

/// One extent of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotView {
    /// On which member.
    pub member: MemberId,
    /// The extent's byte offset on it.
    pub offset: u64,
    /// Whether it may be read and written.
    pub state: SlotState,
}

/// What may be done with a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// Read and written.
    InSync,
    /// Written, never read: a rebuild is under way.
    Rebuilding,
    /// Neither.
    Missing,
}

impl VolumeView {
    /// The state of a stripe's region; without a bitmap all are dirty, which forbids nothing.
    pub fn region(&self, group: u32, stripe: u32) -> Region {
        self.regions.as_ref().map_or(Region::Dirty, |m| m.get(self.geometry.region(group, stripe)))
    }
}

impl View {
    /// A view of one volume, number 0, over all of its groups, on as many members as it is wide, everything in sync. Group
    /// `g` is each member's extent `g`, from the member's first byte on. For tests and measurements that need no manager.
    pub fn healthy(geometry: Geometry, groups: u32) -> View {
        let slot =
            |m, g| SlotView { member: MemberId(m), offset: u64::from(g) * geometry.extent, state: SlotState::InSync };
        let groups: Vec<_> = (0..groups)
            .map(|g| GroupView { slots: (0..geometry.width).map(|m| slot(m, g)).collect(), synced: true })
            .collect();
        View {
            generation: 1,
            members: vec![MemberState::Active; geometry.width as usize],
            volumes: vec![VolumeView {
                id: VolumeId(0),
                geometry,
                size: geometry.group_bytes() * groups.len() as u64,
                track_dirty: false,
                dirty: false,
                online: true,
                regions: None,
                groups,
            }],
        }
    }

    /// The same with one member failed.
    pub fn without(mut self, member: MemberId) -> View {
        self.members[member.0 as usize] = MemberState::Failed;
        let slots = self.volumes.iter_mut().flat_map(|v| &mut v.groups).flat_map(|g| &mut g.slots);
        slots.filter(|s| s.member == member).for_each(|s| s.state = SlotState::Missing);
        self
    }

    /// The volume with this number.
    pub fn volume(&self, id: VolumeId) -> Option<&VolumeView> {
        self.volumes.iter().find(|v| v.id == id)
    }
}
