//! Members that fail, are added, removed and replaced; and the end of an array.

use super::{
    After, Answer, CommandTag, DeviceInfo, ErrorKind, Manager, OperationState, Pending, Phase, Severity, Uuid,
};
use crate::action::IoStatus;
use crate::ondisk::{RecordState, SUPERBLOCK_BYTES, end_copy_offset};
use crate::view::SlotState;

impl Manager {
    /// A member failed: recorded on the others before anything that missed it is acknowledged. A member that a volume
    /// cannot do without is not recorded: the volume goes offline, nothing more is acknowledged, and the member can be
    /// taken as it is at the next assembly.
    pub(super) fn member_failed(&mut self, member: u16, reason: &str) {
        let m = member as usize;
        let known =
            self.config.members.get(m).is_some_and(|r| matches!(r.state, RecordState::Active | RecordState::Spare));
        if !known || self.lost.contains(&member) || !matches!(self.phase, Phase::Running | Phase::Stopping(..)) {
            return;
        }
        let address = self.config.members[m].address.clone();
        self.write_errors[m] += u64::from(reason != "failed on request");
        self.reasons[m] = reason.to_string();
        if !self.survives_without(member) && self.all_alive() {
            self.lost.push(member);
            let text = format!(
                "member {member} ({address}) of array '{}' failed ({reason}), and a volume cannot do without it: the volume is offline. Bring the member back and assemble the array again",
                self.name
            );
            self.notice(Severity::Error, "volume-failed", Some(member), None, text);
        } else {
            self.record_failed(member);
            let text = format!(
                "member {member} ({address}) of array '{}' failed ({reason}): volumes on it go on degraded. Replace it with 'raidctl member replace {} {member} --with DEVICE'",
                self.name, self.name
            );
            self.notice(Severity::Error, "member-failed", Some(member), None, text);
        }
        self.commit(None);
    }

    fn all_alive(&self) -> bool {
        self.config.volumes.iter().all(|v| v.groups.iter().all(|g| self.alive(&v.geometry, g)))
    }

    fn record_failed(&mut self, member: u16) {
        self.config.members[member as usize].state = RecordState::Failed;
        for slot in self.slots_mut().filter(|s| s.member == member) {
            slot.state = SlotState::Missing;
        }
    }

    fn slots_mut(&mut self) -> impl Iterator<Item = &mut crate::ondisk::SlotRecord> {
        self.config.volumes.iter_mut().flat_map(|v| &mut v.groups).flat_map(|g| &mut g.slots)
    }

    fn holds(&self, member: u16, states: &[SlotState]) -> bool {
        let slots = self.config.volumes.iter().flat_map(|v| &v.groups).flat_map(|g| &g.slots);
        slots.into_iter().any(|s| s.member == member && states.contains(&s.state))
    }

    /// The member's record, or a refusal.
    fn known(&mut self, tag: CommandTag, member: u16) -> Option<RecordState> {
        match self.config.members.get(member as usize).map(|m| m.state) {
            Some(state) if state != RecordState::Removed => Some(state),
            _ => {
                let text =
                    format!("array '{}' has no member {member}: see 'raidctl member list {}'", self.name, self.name);
                self.refuse(tag, ErrorKind::NotFound, text);
                None
            }
        }
    }

    pub(super) fn add_member(&mut self, tag: CommandTag, device: DeviceInfo, uuid: Uuid, wipe: bool) {
        self.check_device(tag, device, uuid, wipe, None);
    }

    pub(super) fn fail_member(&mut self, tag: CommandTag, member: u16) {
        let Some(state) = self.known(tag, member) else { return };
        if state == RecordState::Failed || self.lost.contains(&member) {
            let text = format!("member {member} of array '{}' has failed already", self.name);
            return self.refuse(tag, ErrorKind::FailedPrecondition, text);
        }
        if !self.survives_without(member) {
            let text = format!(
                "member {member} of array '{}' holds data that no other member has: failing it would lose data. Wait for the rebuild, or delete the volume first",
                self.name
            );
            return self.refuse(tag, ErrorKind::FailedPrecondition, text);
        }
        self.member_failed(member, "failed on request");
        self.commit(Some(After::Reply(tag, Answer::Done)));
    }

    pub(super) fn remove_member(&mut self, tag: CommandTag, member: u16) {
        if self.known(tag, member).is_none() {
            return;
        }
        if self.holds(member, &[SlotState::InSync, SlotState::Rebuilding]) {
            let text = format!(
                "member {member} of array '{}' is in use: 'raidctl member replace {} {member} --with DEVICE' moves its data first, 'raidctl member fail' gives it up",
                self.name, self.name
            );
            return self.refuse(tag, ErrorKind::FailedPrecondition, text);
        }
        let active =
            self.config.members.iter().filter(|m| matches!(m.state, RecordState::Active | RecordState::Spare)).count();
        if active == 1 && self.config.members[member as usize].state != RecordState::Failed {
            let text = format!("member {member} is the last of array '{}': delete the array instead", self.name);
            return self.refuse(tag, ErrorKind::FailedPrecondition, text);
        }
        self.config.members[member as usize].state = RecordState::Removed;
        self.commit(Some(After::Reply(tag, Answer::Done)));
    }

    pub(super) fn replace_member(
        &mut self,
        tag: CommandTag,
        member: u16,
        device: Option<DeviceInfo>,
        uuid: Uuid,
        wipe: bool,
    ) {
        let Some(state) = self.known(tag, member) else { return };
        if state == RecordState::Active && !self.survives_without(member) {
            let text = format!(
                "member {member} of array '{}' holds data that no other member has now: wait for the running rebuild or resync before replacing it",
                self.name
            );
            return self.refuse(tag, ErrorKind::FailedPrecondition, text);
        }
        match device {
            Some(device) => self.check_device(tag, device, uuid, wipe, Some(member)),
            None => {
                let spare = (0..self.config.members.len() as u16).find(|m| {
                    *m != member && self.config.members[*m as usize].state == RecordState::Spare && self.usable(*m)
                });
                let Some(spare) = spare else {
                    let text = format!("array '{}' has no spare: name a device with --with", self.name);
                    return self.refuse(tag, ErrorKind::FailedPrecondition, text);
                };
                self.replace_with(member);
                self.commit(Some(After::Reply(tag, Answer::Member(crate::action::MemberId(spare)))));
            }
        }
    }

    /// Takes a member out so that the spare which was just added takes its place. Redundancy was checked before; the old
    /// member is given up first, because a group has one slot for each column and no place for a copy beside it.
    pub(super) fn replace_with(&mut self, old: u16) {
        if self.config.members[old as usize].state == RecordState::Active {
            self.record_failed(old);
            self.reasons[old as usize] = "replaced on request".to_string();
        }
        self.config.members[old as usize].state = RecordState::Removed;
        let text = format!(
            "member {old} of array '{}' is being replaced: its extents are rebuilt on the new member",
            self.name
        );
        self.notice(Severity::Info, "member-replaced", Some(old), None, text);
    }

    /// Clean end: nothing in flight, everything durable, marked clean.
    pub(super) fn stop(&mut self, tag: CommandTag) {
        for operation in self.operations.iter_mut().filter(|o| o.state == OperationState::Running) {
            operation.reason = "interrupted by the stop; it goes on after the next assembly".to_string();
        }
        self.job = None;
        self.phase = Phase::Stopping(tag, 0);
        let tag = self.tag(Pending::Quiesce);
        self.actions.push_back(super::ManagerAction::Quiesce { tag });
    }

    pub(super) fn stop_flush(&mut self) {
        let Phase::Stopping(tag, _) = self.phase else { return };
        let targets = self.reachable();
        self.phase = Phase::Stopping(tag, targets.len());
        for (member, device) in targets {
            self.flush(Pending::StopFlush(member), device);
        }
    }

    pub(super) fn stop_flushed(&mut self, member: u16, status: IoStatus) {
        if status != IoStatus::Ok {
            self.member_failed(member, super::failure_text(status));
        }
        let Phase::Stopping(tag, left) = self.phase else { return };
        self.phase = Phase::Stopping(tag, left - 1);
        if left > 1 {
            return;
        }
        for v in &mut self.config.volumes {
            // What is not resynced yet must be resynced after the next assembly.
            v.dirty = v.dirty && v.groups.iter().any(|g| !g.synced);
        }
        self.commit(Some(After::Stopped(tag)));
    }

    /// Overwrites the superblocks, so that nothing leads to the array any more.
    pub(super) fn delete(&mut self, tag: CommandTag) {
        if !self.config.volumes.is_empty() {
            let names: Vec<&str> = self.config.volumes.iter().map(|v| v.name.as_str()).collect();
            let text = format!("array '{}' still has volumes ({}): delete them first", self.name, names.join(", "));
            return self.refuse(tag, ErrorKind::FailedPrecondition, text);
        }
        let targets: Vec<(super::DeviceId, u64)> = self.devices.iter().flatten().map(|d| (d.id, d.size)).collect();
        self.phase = Phase::Erasing(tag, targets.len() * 2, Ok(()));
        let blank = vec![0u8; SUPERBLOCK_BYTES as usize];
        for (device, size) in targets {
            self.write(Pending::Erase, device, 0, blank.clone());
            self.write(Pending::Erase, device, end_copy_offset(size), blank.clone());
        }
    }

    pub(super) fn erased(&mut self, status: IoStatus) {
        let Phase::Erasing(tag, left, result) = &mut self.phase else { return };
        *left -= 1;
        if status != IoStatus::Ok {
            *result = Err(status);
        }
        if *left > 0 {
            return;
        }
        let (tag, result) = (*tag, *result);
        self.phase = Phase::Over;
        match result {
            Ok(()) => self.reply(tag, Answer::Done),
            Err(e) => {
                let text = format!(
                    "a member of array '{}' could not be erased ({}): its superblock may still be there; create the next array on it with --wipe",
                    self.name,
                    super::failure_text(e)
                );
                self.refuse(tag, ErrorKind::Device, text);
            }
        }
    }
}
