//! Commits: the configuration to the next slot of every reachable member, flushed, then a view to every engine.
//!
//! A commit waits for all reachable members, not only for a majority: a member that could not take it is recorded as
//! failed by the next commit before this one counts. So no reachable member is ever more than one generation behind, and
//! the two slots never both hold a torn configuration: the older slot is overwritten only when the newer one is durable.

use std::sync::Arc;

use super::{After, Manager, ManagerAction, Pending, Phase, Severity};
use crate::action::IoStatus;
use crate::geometry::{Geometry, Level};
use crate::ondisk::{GroupRecord, RecordState, encode_config};
use crate::view::{GroupView, MemberState, SlotState, SlotView, View, VolumeView};

/// A commit that is under way.
pub(super) struct Run {
    outstanding: usize,
    failed: Vec<(u16, IoStatus)>,
    after: Vec<After>,
}

impl Manager {
    /// Makes the configuration durable as it is when the commit begins, and goes on with `after`.
    pub(super) fn commit(&mut self, after: Option<After>) {
        self.commit_wanted = true;
        self.after.extend(after);
    }

    pub(super) fn pump_commit(&mut self) {
        if self.commit.is_some() || !self.commit_wanted {
            return;
        }
        self.commit_wanted = false;
        let targets = self.reachable();
        if targets.is_empty() {
            self.phase = Phase::Failed;
            self.refuse_waiting();
            self.publish(Vec::new());
            self.notice(
                Severity::Error,
                "array-failed",
                None,
                None,
                format!("array '{}' has no member left that can be written to: it is offline", self.name),
            );
            return;
        }
        self.config.generation += 1;
        let bytes = encode_config(&self.config);
        let slot = self.config.generation % 2;
        let offset = u64::from(crate::ondisk::SUPERBLOCK_BYTES) + slot * u64::from(self.layout.slot_len);
        self.commit =
            Some(Run { outstanding: targets.len(), failed: Vec::new(), after: std::mem::take(&mut self.after) });
        for (member, device) in targets {
            self.write(Pending::CommitWrite(member), device, offset, bytes.clone());
        }
    }

    /// No commit will ever come: whoever waits for one is told.
    fn refuse_waiting(&mut self) {
        for after in std::mem::take(&mut self.after) {
            if let After::Reply(tag, _) | After::Stopped(tag) = after {
                let text = format!("array '{}' has no member left that can be written to", self.name);
                self.refuse(tag, super::ErrorKind::Device, text);
            }
        }
    }

    pub(super) fn commit_written(&mut self, member: u16, status: IoStatus) {
        match self.devices[member as usize].as_ref().map(|d| d.id) {
            Some(device) if status == IoStatus::Ok => self.flush(Pending::CommitFlush(member), device),
            _ => self.commit_ended(member, if status == IoStatus::Ok { IoStatus::DeviceError } else { status }),
        }
    }

    pub(super) fn commit_flushed(&mut self, member: u16, status: IoStatus) {
        self.commit_ended(member, status);
    }

    fn commit_ended(&mut self, member: u16, status: IoStatus) {
        let Some(run) = &mut self.commit else { return };
        run.outstanding -= 1;
        if status != IoStatus::Ok {
            run.failed.push((member, status));
        }
        if run.outstanding > 0 {
            return;
        }
        let run = self.commit.take().expect("looked at above");
        if run.failed.is_empty() {
            self.publish(run.after);
            self.schedule();
            return;
        }
        // What waited for this commit waits for the one that records the failures.
        let later = std::mem::replace(&mut self.after, run.after);
        self.after.extend(later);
        self.commit_wanted = true;
        for (member, status) in run.failed {
            self.member_failed(member, super::failure_text(status));
        }
    }

    /// Hands the view to the engines.
    pub(super) fn publish(&mut self, after: Vec<After>) {
        let view = Arc::new(self.view());
        let devices = (0..self.devices.len())
            .map(|m| self.usable(m as u16).then(|| self.devices[m].as_ref().map(|d| d.id)).flatten());
        let devices = devices.collect();
        let tag = self.tag(Pending::Publish(after));
        self.actions.push_back(ManagerAction::Publish { tag, view, devices });
    }

    /// The member has a device that may be used.
    pub(super) fn usable(&self, member: u16) -> bool {
        let m = member as usize;
        self.devices[m].is_some()
            && !self.lost.contains(&member)
            && matches!(self.config.members[m].state, RecordState::Active | RecordState::Spare)
    }

    /// A slot's state as the engines see it.
    pub(super) fn live_state(&self, member: u16, state: SlotState) -> SlotState {
        if self.usable(member) { state } else { SlotState::Missing }
    }

    fn view(&self) -> View {
        let members = self
            .config
            .members
            .iter()
            .enumerate()
            .map(|(i, m)| match m.state {
                RecordState::Removed => MemberState::Removed,
                _ if !self.usable(i as u16) => MemberState::Failed,
                RecordState::Spare => MemberState::Spare,
                _ => MemberState::Active,
            })
            .collect();
        let over = matches!(self.phase, Phase::Over | Phase::Failed);
        let volumes = self
            .config
            .volumes
            .iter()
            .map(|v| VolumeView {
                id: crate::action::VolumeId(v.id),
                geometry: v.geometry,
                size: v.size,
                track_dirty: v.policy == super::Policy::Resync,
                dirty: v.dirty && !self.cleaning.volumes.contains(&v.id),
                online: !over && v.groups.iter().all(|g| self.alive(&v.geometry, g)),
                groups: v.groups.iter().map(|g| self.group_view(g)).collect(),
            })
            .collect();
        View { generation: self.config.generation, members, volumes }
    }

    fn group_view(&self, group: &GroupRecord) -> GroupView {
        let slots = group
            .slots
            .iter()
            .map(|s| SlotView {
                member: crate::action::MemberId(s.member),
                offset: self.layout.data_offset + u64::from(s.extent) * self.layout.extent,
                state: self.live_state(s.member, s.state),
            })
            .collect();
        GroupView { slots, synced: group.synced }
    }

    /// All data of the group can be read or computed.
    pub(super) fn alive(&self, geometry: &Geometry, group: &GroupRecord) -> bool {
        let readable: Vec<bool> =
            group.slots.iter().map(|s| self.live_state(s.member, s.state) == SlotState::InSync).collect();
        survives(geometry, &readable)
    }
}

/// All data of a group can be read or computed from the slots that are readable.
pub(super) fn survives(geometry: &Geometry, readable: &[bool]) -> bool {
    let lost = readable.iter().filter(|r| !**r).count();
    match geometry.level {
        Level::Raid0 => lost == 0,
        Level::Raid1 => lost < readable.len(),
        Level::Raid10 => readable.chunks(2).all(|pair| pair.contains(&true)),
        Level::Raid5 => lost <= 1,
        Level::Raid6 => lost <= 2,
    }
}
