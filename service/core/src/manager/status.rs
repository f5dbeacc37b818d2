//! The snapshot for the control plane.

use super::commit::member_state;
use super::redundancy::{degraded, volume_viable};
use super::{ArrayStatus, Health, Manager, MemberStatus, OperationKind, VolumeStatus, reason_text};
use crate::action::{MemberId, VolumeId};
use crate::ondisk::{FailReason, RecordState, VolumeRecord, extents_of};
use crate::view::SlotState;

impl Manager {
    /// A snapshot for the control plane.
    pub fn status(&self) -> ArrayStatus {
        let mut used = vec![0u32; self.wanted.members.len()];
        let mut rebuilding = vec![false; self.wanted.members.len()];
        for s in self.wanted.volumes.iter().flat_map(VolumeRecord::slots) {
            used[usize::from(s.member)] += 1;
            rebuilding[usize::from(s.member)] |= s.state == SlotState::Rebuilding;
        }
        let members = self.wanted.members.iter().zip(&self.places).zip(used).enumerate();
        let members = members.filter(|(_, ((m, _), _))| m.state != RecordState::Removed);
        ArrayStatus {
            name: self.identity.name.clone(),
            uuid: self.identity.uuid,
            state: self.state,
            reason: self.reason.clone(),
            generation: self.committed.generation,
            extent: self.identity.extent,
            shards: self.identity.shards,
            members: members
                .map(|(id, ((record, place), extents_used))| MemberStatus {
                    id: MemberId(id as u16),
                    uuid: record.uuid,
                    state: member_state(record.state),
                    reason: reason_text(record.reason).into(),
                    device: place.device.as_ref().map(|d| d.id),
                    address: record.address.clone(),
                    size: record.size,
                    extents_used,
                    extents: extents_of(record.size, self.identity.data_offset, self.identity.extent.max(1)),
                    write_errors: place.counters.write_errors,
                    read_repairs: place.counters.read_repairs,
                    missing: record.reason == FailReason::Missing,
                    rebuilding: rebuilding[id],
                })
                .collect(),
            volumes: self.wanted.volumes.iter().map(|v| self.volume_status(v)).collect(),
            operations: self.maintenance.operations.clone(),
        }
    }

    fn volume_status(&self, v: &VolumeRecord) -> VolumeStatus {
        let groups_degraded = v.groups.iter().filter(|g| degraded(g)).count() as u32;
        let groups_unsynced = (0..v.groups.len()).filter(|g| !self.group_synced(v, *g)).count() as u32;
        let gone: Vec<String> = {
            let missing = v.groups.iter().flat_map(|g| &g.slots).filter(|s| !super::redundancy::in_sync(s));
            let mut members: Vec<u16> = missing.map(|s| s.member).collect();
            members.sort_unstable();
            members.dedup();
            members.into_iter().map(|m| self.member_name(m)).collect()
        };
        let all = v.groups.len();
        let (health, reason) = if !volume_viable(v) {
            (Health::Failed, format!("more is missing than the level survives: {}", gone.join(", ")))
        } else if groups_degraded > 0 && self.maintenance.running(OperationKind::Rebuild).is_some() {
            (Health::Rebuilding, format!("{groups_degraded} of {all} groups are being rebuilt"))
        } else if groups_degraded > 0 {
            (Health::Degraded, format!("{groups_degraded} of {all} groups miss {}", gone.join(", ")))
        } else if groups_unsynced > 0 {
            (Health::Resyncing, format!("{groups_unsynced} of {all} groups are not known to match"))
        } else {
            (Health::Healthy, String::new())
        };
        VolumeStatus {
            id: VolumeId(v.id),
            uuid: v.uuid,
            name: v.name.clone(),
            geometry: v.geometry,
            size: v.size,
            block_size: v.block_size,
            policy: v.policy,
            dirty: v.dirty,
            health,
            reason,
            groups: all as u32,
            groups_unsynced,
            groups_degraded,
            regions: self.bitmaps.get(&v.id).map(|b| b.map().counts()),
            lost_bytes: self.lost_bytes.get(&VolumeId(v.id)).copied().unwrap_or(0),
        }
    }
}
