//! The array as the control plane shows it.

use super::{
    ArrayState, ArrayStatus, Health, Manager, MemberStatus, OperationKind, OperationState, Phase, VolumeStatus,
};
use crate::action::{MemberId, VolumeId};
use crate::ondisk::{RecordState, VolumeRecord, extents_of};
use crate::view::{MemberState, SlotState};

impl Manager {
    /// A snapshot.
    pub fn status(&self) -> ArrayStatus {
        ArrayStatus {
            name: self.name.clone(),
            uuid: self.config.array_uuid,
            generation: self.config.generation,
            extent: self.layout.extent,
            shards: self.layout.shards,
            state: match self.phase {
                Phase::Creating(_) | Phase::Assembling(_) => ArrayState::Starting,
                Phase::Running => ArrayState::Running,
                Phase::Stopping(..) | Phase::Erasing(..) => ArrayState::Stopping,
                Phase::Over => ArrayState::Stopped,
                Phase::Failed => ArrayState::Failed,
            },
            reason: String::new(),
            members: self.member_status(),
            volumes: self.config.volumes.iter().map(|v| self.volume_status(v)).collect(),
            operations: self.operations.clone(),
        }
    }

    fn member_status(&self) -> Vec<MemberStatus> {
        let used = self.used_extents();
        self.config
            .members
            .iter()
            .enumerate()
            .filter(|(_, m)| m.state != RecordState::Removed)
            .filter(|(i, _)| *i < self.devices.len())
            .map(|(i, m)| MemberStatus {
                id: MemberId(i as u16),
                uuid: m.uuid,
                address: m.address.clone(),
                state: match m.state {
                    _ if !self.usable(i as u16) => MemberState::Failed,
                    RecordState::Spare => MemberState::Spare,
                    _ => MemberState::Active,
                },
                reason: self.reasons[i].clone(),
                size: m.size,
                extents: extents_of(m.size, self.layout.data_offset, self.layout.extent),
                extents_used: used[i].iter().filter(|u| **u).count() as u32,
                write_errors: self.write_errors[i],
                read_repairs: self.read_repairs[i],
                device: self.devices[i].as_ref().map(|d| d.id),
            })
            .collect()
    }

    fn volume_status(&self, v: &VolumeRecord) -> VolumeStatus {
        let (health, reason) = self.health(v);
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
            groups: v.groups.len() as u32,
            groups_unsynced: v.groups.iter().filter(|g| !g.synced).count() as u32,
            groups_degraded: v
                .groups
                .iter()
                .filter(|g| g.slots.iter().any(|s| self.live_state(s.member, s.state) != SlotState::InSync))
                .count() as u32,
            lost_bytes: self.lost_bytes.get(&v.id).copied().unwrap_or(0),
        }
    }

    fn health(&self, v: &VolumeRecord) -> (Health, String) {
        let states: Vec<SlotState> =
            v.groups.iter().flat_map(|g| &g.slots).map(|s| self.live_state(s.member, s.state)).collect();
        let count = |state| states.iter().filter(|s| **s == state).count();
        let (missing, rebuilding) = (count(SlotState::Missing), count(SlotState::Rebuilding));
        let unsynced = v.groups.iter().filter(|g| !g.synced).count();
        if !v.groups.iter().all(|g| self.alive(&v.geometry, g)) {
            return (Health::Failed, "more members are missing than the level can do without".to_string());
        }
        if missing > 0 {
            return (
                Health::Degraded,
                format!("{missing} of {} extents are missing and no spare takes their place", states.len()),
            );
        }
        if rebuilding > 0 {
            let running =
                self.operations.iter().any(|o| o.kind == OperationKind::Rebuild && o.state == OperationState::Running);
            if running {
                return (Health::Rebuilding, format!("{rebuilding} of {} extents are being rebuilt", states.len()));
            }
            return (Health::Degraded, format!("{rebuilding} of {} extents wait for a rebuild", states.len()));
        }
        if unsynced > 0 {
            return (Health::Resyncing, format!("{unsynced} of {} groups are not resynced yet", v.groups.len()));
        }
        (Health::Healthy, String::new())
    }
}
