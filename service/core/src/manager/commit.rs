//! Commits and publications.
//!
//! A commit writes the wanted configuration to the older slot of every live member, flushes each, and counts when all have
//! answered well. A member that does not is marked failed and the commit begins again with that recorded, so a commit that
//! counts is on every member that it calls live: assembly relies on it. Changes that come while one is under way go with
//! the next. Only what counts is published.

use std::sync::Arc;

use super::redundancy::volume_viable;
use super::{ArrayState, Manager, ManagerAction, Pending, Policy, Severity, reason_of};
use crate::action::{IoStatus, MemberId, VolumeId};
use crate::ondisk::{self, FailReason, RecordState, SUPERBLOCK_BYTES, encode_config};
use crate::view::{GroupView, MemberState, SlotState, SlotView, View, VolumeView};

/// The commit machine.
pub(super) enum Commit {
    /// Nothing under way.
    Idle,
    /// Configurations are being written, or (`flushing`) made durable.
    Writing {
        flushing: bool,
        outstanding: usize,
        failed: Vec<(MemberId, IoStatus)>,
        members: Vec<MemberId>,
        snapshot: Box<ondisk::Config>,
        sequence: u64,
    },
    /// Engines are taking the view with this number.
    Publishing(u64),
}

impl Manager {
    pub(super) fn step_commit(&mut self) -> bool {
        // Nothing is written after a stop or a refusal.
        if self.state == ArrayState::Stopped {
            return false;
        }
        match &self.commit {
            Commit::Idle if self.commit_needed => self.start_commit(),
            Commit::Idle if self.publish_needed => self.publish(self.sequence),
            Commit::Writing { outstanding: 0, .. } => self.commit_answered(),
            _ => return false,
        }
        true
    }

    fn start_commit(&mut self) {
        self.commit_needed = false;
        let live = self.live_members();
        if live.is_empty() {
            self.all_gone();
            return;
        }
        self.wanted.generation += 1;
        let bytes = encode_config(&self.as_recorded());
        let mut members = Vec::new();
        for (member, device) in live {
            let slot = 1 - u64::from(self.places[usize::from(member)].newest_slot);
            let offset = u64::from(SUPERBLOCK_BYTES) + slot * u64::from(self.identity.slot_len);
            let tag = self.tag(Pending::Commit(MemberId(member)));
            self.actions.push_back(ManagerAction::Write { tag, device, offset, bytes: bytes.clone() });
            members.push(MemberId(member));
        }
        self.commit = Commit::Writing {
            flushing: false,
            outstanding: members.len(),
            failed: Vec::new(),
            members,
            snapshot: Box::new(self.wanted.clone()),
            sequence: self.sequence,
        };
    }

    /// The configuration as it goes to disk: failures that need no record are left out (`Manager::unrecorded`).
    fn as_recorded(&self) -> ondisk::Config {
        let mut config = self.wanted.clone();
        for (member, slots) in &self.unrecorded {
            let record = &mut config.members[usize::from(*member)];
            record.state = RecordState::Active;
            record.reason = FailReason::Fine;
            // It does not get this commit, and is not behind for that.
            record.joined = config.generation;
            for &(volume, group, slot) in slots {
                let volume = config.volumes.iter_mut().find(|v| v.id == volume);
                if let Some(slot) = volume.and_then(|v| v.all_groups_mut().nth(group as usize)?.slots.get_mut(slot))
                    && slot.member == *member
                {
                    slot.state = SlotState::InSync;
                }
            }
        }
        config
    }

    pub(super) fn commit_done(&mut self, member: MemberId, status: IoStatus) {
        if let Commit::Writing { outstanding, failed, .. } = &mut self.commit {
            *outstanding -= 1;
            if status != IoStatus::Ok {
                failed.push((member, status));
            }
        }
    }

    /// All members have answered the writes, or the flushes.
    fn commit_answered(&mut self) {
        let Commit::Writing { flushing, failed, members, snapshot, sequence, .. } =
            std::mem::replace(&mut self.commit, Commit::Idle)
        else {
            return;
        };
        if !failed.is_empty() {
            for (member, status) in failed {
                self.fail_member(member.0, reason_of(status));
            }
            // Also when the member had been failed in the meantime: this round did not count.
            self.commit_needed = true;
            return;
        }
        if !flushing {
            let mut outstanding = 0;
            for member in &members {
                // The device, not the state: a member that an engine has failed meanwhile still belongs to this round.
                let Some(device) = self.places[usize::from(member.0)].device.as_ref().map(|d| d.id) else { continue };
                let tag = self.tag(Pending::Commit(*member));
                self.actions.push_back(ManagerAction::Flush { tag, device });
                outstanding += 1;
            }
            self.commit = Commit::Writing { flushing: true, outstanding, failed, members, snapshot, sequence };
            return;
        }
        for member in &members {
            let place = &mut self.places[usize::from(member.0)];
            place.newest_slot = 1 - place.newest_slot;
        }
        self.wanted.counted = snapshot.generation;
        self.committed = *snapshot;
        self.committed.counted = self.committed.generation;
        self.publish(sequence);
    }

    /// Nobody is left to hold a configuration: what is on the devices stays as it is, for the next assembly.
    fn all_gone(&mut self) {
        if self.state != ArrayState::Failed {
            self.state = ArrayState::Failed;
            self.reason = "every member has failed".into();
            let message = format!(
                "array '{}': every member has failed; its volumes are offline. Bring the drives back and assemble it again",
                self.identity.name
            );
            self.notice(Severity::Error, "array-failed", None, None, message);
            // Nobody goes on with them, and whoever waits for their end must not wait for ever.
            self.maintenance.abort();
            self.end_operations();
        }
        self.committed = self.wanted.clone();
        self.publish(self.sequence);
    }

    fn publish(&mut self, sequence: u64) {
        // Changes of views later than the snapshot's are in this view too, since it is made now.
        self.publish_needed = false;
        let sequence = if self.commit_needed { sequence } else { self.sequence };
        let view = Arc::new(self.view());
        let devices = (0..self.committed.members.len())
            .map(|m| {
                let live = matches!(self.committed.members[m].state, RecordState::Active | RecordState::Spare);
                self.places[m].device.as_ref().filter(|_| live).map(|d| d.id)
            })
            .collect();
        self.say_what_failed(&view);
        let tag = self.tag(Pending::Publish);
        self.actions.push_back(ManagerAction::Publish { tag, view, devices });
        self.commit = Commit::Publishing(sequence);
    }

    pub(super) fn publish_done(&mut self) {
        if let Commit::Publishing(sequence) = self.commit {
            self.published = self.published.max(sequence);
            self.commit = Commit::Idle;
        }
    }

    /// A volume that goes offline is said once, and so is its return.
    fn say_what_failed(&mut self, view: &View) {
        let config = &self.committed;
        let failed = config.volumes.iter().filter(|v| !volume_viable(v)).map(|v| VolumeId(v.id)).collect();
        let before = std::mem::replace(&mut self.known_failed, failed);
        if self.state == ArrayState::Starting {
            return;
        }
        let new: Vec<VolumeId> = self.known_failed.difference(&before).copied().collect();
        for volume in new.into_iter().filter(|v| view.volume(*v).is_some()) {
            let message = format!(
                "{} is offline: more members are gone than its level survives. Stop the array, bring the drives back and \
                 assemble it again",
                self.volume_name(volume)
            );
            self.notice(Severity::Error, "volume-failed", None, Some(volume), message);
        }
    }

    /// The committed configuration as engines see it.
    fn view(&self) -> View {
        let config = &self.committed;
        let serving = self.state == ArrayState::Running;
        let soft_clean = |id| self.cleaning.as_ref().is_some_and(|c| c.covers(VolumeId(id)));
        let volumes = config.volumes.iter().map(|v| VolumeView {
            id: VolumeId(v.id),
            geometry: v.geometry,
            size: v.size,
            track_dirty: v.policy != Policy::None,
            dirty: v.dirty && !soft_clean(v.id),
            online: serving && volume_viable(v),
            regions: self.bitmaps.get(&v.id).map(|b| b.map().clone()),
            groups: v.groups.iter().map(|g| self.group_view(g)).collect(),
        });
        View {
            generation: config.generation,
            members: config.members.iter().map(|m| member_state(m.state)).collect(),
            volumes: volumes.collect(),
        }
    }

    fn group_view(&self, group: &ondisk::GroupRecord) -> GroupView {
        let slots = group.slots.iter().map(|s| SlotView {
            member: MemberId(s.member),
            offset: self.extent_offset(s.extent),
            state: s.state,
        });
        GroupView { slots: slots.collect(), synced: group.synced }
    }

    pub(super) fn extent_offset(&self, extent: u32) -> u64 {
        self.identity.data_offset + u64::from(extent) * self.identity.extent
    }

    /// The configuration would still fit into a slot.
    pub(super) fn fits(&self, config: &ondisk::Config) -> bool {
        encode_config(config).len() <= self.identity.slot_len as usize
    }
}

pub(super) fn member_state(state: RecordState) -> MemberState {
    match state {
        RecordState::Active => MemberState::Active,
        RecordState::Spare => MemberState::Spare,
        RecordState::Failed => MemberState::Failed,
        RecordState::Removed => MemberState::Removed,
    }
}
