//! Members: failures, and the commands that add, fail, remove and replace.

use super::create::Found;
use super::redundancy::{all_down_with, in_sync, needs_member};
use super::task::Next;
use super::{
    Answer, CommandTag, DeviceInfo, ErrorKind, HALVING, ManageError, Manager, OperationState, Severity, Uuid,
    reason_of, reason_text, refuse,
};
use crate::action::{IoStatus, MemberId};
use crate::ondisk::{FailReason, RecordState, SUPERBLOCK_BYTES, Superblock, end_copy_offset, extents_of};
use crate::units::Bytes;
use crate::view::SlotState;

enum Phase {
    Probe,
    Check,
    History,
    Returned,
    Flush,
    Superblocks,
    FlushSuperblocks,
    Commit,
    Done,
}

/// A new member.
pub(super) struct AddTask {
    phase: Phase,
    device: DeviceInfo,
    uuid: Uuid,
    wipe: bool,
    /// The member that it replaces.
    replaces: Option<u16>,
    member: u16,
    /// What the device says it is, if it may be a member that comes back.
    sb: Option<Box<Superblock>>,
}

impl AddTask {
    pub fn new(device: DeviceInfo, uuid: Uuid, wipe: bool) -> AddTask {
        AddTask { phase: Phase::Probe, device, uuid, wipe, replaces: None, member: 0, sb: None }
    }
}

pub(super) struct RemoveTask {
    member: MemberId,
    committed: bool,
    wiped: bool,
}

impl RemoveTask {
    pub fn new(member: MemberId) -> RemoveTask {
        RemoveTask { member, committed: false, wiped: false }
    }
}

pub(super) struct ReplaceTask {
    member: MemberId,
    device: Option<AddTask>,
    started: bool,
}

impl ReplaceTask {
    pub fn new(member: MemberId, device: Option<DeviceInfo>, uuid: Uuid, wipe: bool) -> ReplaceTask {
        let device = device.map(|d| AddTask { replaces: Some(member.0), ..AddTask::new(d, uuid, wipe) });
        ReplaceTask { member, device, started: false }
    }
}

impl Manager {
    /// An engine's word that a member has failed. Engines on all reactors say it; once is enough.
    pub(super) fn member_failed(&mut self, member: MemberId, status: IoStatus) {
        if let Some(place) = self.places.get_mut(usize::from(member.0)) {
            place.counters.write_errors += 1;
            self.fail_member(member.0, reason_of(status));
        }
    }

    /// A member could not read a block, which was rebuilt and rewritten. One that does so too often is failed while the
    /// others still have everything.
    pub(super) fn read_repaired(&mut self, member: MemberId, offset: u64, len: u32) {
        let (now, limit) = (self.now, self.config.read_error_limit);
        let Some(place) = self.places.get_mut(usize::from(member.0)) else { return };
        let c = &mut place.counters;
        c.read_repairs += 1;
        let halvings = now.0.saturating_sub(c.halved.0) / HALVING;
        c.recent = c.recent.checked_shr(halvings.min(32) as u32).unwrap_or(0) + 1;
        c.halved = c.halved.after(halvings * HALVING);
        let (repairs, recent) = (c.read_repairs, c.recent);
        // A failing drive repairs thousands of blocks; powers of two say it often enough.
        if repairs.is_power_of_two() {
            let message = format!(
                "{} could not read {} at byte {offset}; they were rebuilt from the other members and rewritten ({repairs} \
                 such repairs so far); replace the drive if the number keeps growing",
                self.member_name(member.0),
                Bytes(u64::from(len)),
            );
            self.notice(Severity::Warning, "read-repaired", Some(member), None, message);
        }
        if recent > limit && self.may_fail(member).is_ok() {
            self.fail_member(member.0, FailReason::ReadErrors);
        }
    }

    /// Marks a member failed in the wanted configuration and has that committed.
    pub(super) fn fail_member(&mut self, member: u16, reason: FailReason) {
        let Some(record) = self.wanted.members.get(usize::from(member)) else { return };
        if !matches!(record.state, RecordState::Active | RecordState::Spare) {
            return;
        }
        if !matches!(reason, FailReason::Operator | FailReason::Replaced) && all_down_with(&self.wanted, member) {
            let slots = self.wanted.volumes.iter().flat_map(|v| {
                let groups = v.all_groups().enumerate();
                groups.flat_map(move |(g, group)| {
                    let ours = group.slots.iter().enumerate().filter(move |(_, s)| s.member == member && in_sync(s));
                    ours.map(move |(slot, _)| (v.id, g as u32, slot))
                })
            });
            let slots = slots.collect();
            self.unrecorded.insert(member, slots);
        }
        let partial = self.wanted.volumes.iter().flat_map(|v| v.slots()).any(|s| s.member == member && !in_sync(s));
        let Some(record) = self.wanted.members.get_mut(usize::from(member)) else { return };
        record.state = RecordState::Failed;
        record.reason = reason;
        record.replaces = None;
        record.partial |= partial;
        record.left = self.committed.generation;
        let mut degraded = Vec::new();
        for v in &mut self.wanted.volumes {
            let mut hit = false;
            for slot in v.slots_mut().filter(|s| s.member == member) {
                slot.state = SlotState::Missing;
                hit = true;
            }
            if hit {
                degraded.push(v.name.clone());
            }
        }
        self.failed_at = self.changed();
        self.returned.remove(&member);
        self.pass_lost_member(member);
        self.bitmaps_lost_member();
        let consequence = if degraded.is_empty() {
            "no volume is affected".to_string()
        } else {
            format!("volumes without it: {}", degraded.join(", "))
        };
        let message = format!(
            "{} has failed: {}; {consequence}. {}",
            self.member_name(member),
            reason_text(reason),
            if self.unrecorded.contains_key(&member) {
                "They cannot do without it: bring it back, then stop the array and assemble it again".to_string()
            } else {
                format!("Replace it: 'raidctl member replace {} {member} --with DEVICE'", self.identity.name)
            }
        );
        self.notice(Severity::Error, "member-failed", Some(MemberId(member)), None, message);
    }

    pub(super) fn fail_command(&mut self, tag: CommandTag, member: MemberId) {
        let result = self.may_fail(member);
        match result {
            Ok(()) => {
                self.fail_member(member.0, FailReason::Operator);
                self.waiting.push((self.sequence, tag, Answer::Done));
            }
            Err(e) => self.reply(tag, Err(e)),
        }
    }

    fn record_state(&self, member: MemberId) -> Result<RecordState, ManageError> {
        match self.wanted.members.get(usize::from(member.0)).map(|m| m.state) {
            None | Some(RecordState::Removed) => Err(refuse(
                ErrorKind::NotFound,
                format!(
                    "array '{}' has no member {}; see 'raidctl member list {}'",
                    self.identity.name, member.0, self.identity.name
                ),
            )),
            Some(state) => Ok(state),
        }
    }

    /// Refuses what would take a volume offline.
    fn may_fail(&self, member: MemberId) -> Result<(), ManageError> {
        if self.record_state(member)? == RecordState::Failed {
            return Err(refuse(
                ErrorKind::FailedPrecondition,
                format!("{} has failed already", self.member_name(member.0)),
            ));
        }
        if self.live_members().iter().all(|(m, _)| *m == member.0) {
            return Err(refuse(
                ErrorKind::FailedPrecondition,
                format!(
                    "{} is the last one of the array; stop or delete the array instead",
                    self.member_name(member.0)
                ),
            ));
        }
        if let Some(v) = needs_member(&self.wanted, member.0, |v, g| self.group_synced(v, g)) {
            return Err(refuse(
                ErrorKind::FailedPrecondition,
                format!(
                    "volume '{}' would lose data without {}: wait until it is healthy, add a spare, or delete the volume",
                    v.name,
                    self.member_name(member.0)
                ),
            ));
        }
        Ok(())
    }

    pub(super) fn add_phase(&mut self, t: &mut AddTask) -> Next {
        let address = t.device.address.clone();
        if let Some(error) = self.task_failure(&[(t.device.id, &address)], "it was being added") {
            return Next::End(Err(error));
        }
        match t.phase {
            Phase::Probe => {
                if let Err(e) = self.may_add(t) {
                    return Next::End(Err(e));
                }
                self.probe(&t.device);
                t.phase = Phase::Check;
            }
            Phase::Check => {
                let found = match self.probed(&t.device) {
                    Ok(found) => found,
                    Err(e) => return Next::End(Err(e)),
                };
                if let Err(e) = self.may_take(t, &found) {
                    return Next::End(Err(e));
                }
                match found {
                    Found::Member(sb) if self.may_return(t, &sb) => {
                        self.read_slots(t.device.id, &sb);
                        t.sb = Some(sb);
                        t.phase = Phase::History;
                    }
                    _ => {
                        self.erase(&t.device);
                        t.phase = Phase::Flush;
                    }
                }
            }
            Phase::History => {
                if self.take_back(t) {
                    t.phase = Phase::Returned;
                    return Next::Published(self.changed());
                }
                self.erase(&t.device);
                t.phase = Phase::Flush;
            }
            Phase::Returned => {
                let message = format!(
                    "{} is back in array '{}': it gets what it missed, where a bitmap tells what that is",
                    self.member_name(t.member),
                    self.identity.name
                );
                self.notice(Severity::Info, "member-returned", Some(MemberId(t.member)), None, message);
                return Next::End(Ok(Answer::Member(MemberId(t.member))));
            }
            Phase::Flush => {
                self.task_flush(t.device.id);
                t.phase = Phase::Superblocks;
            }
            Phase::Superblocks => {
                t.member = self.wanted.members.len() as u16;
                self.write_superblocks(&t.device.clone(), t.member, t.uuid);
                t.phase = Phase::FlushSuperblocks;
            }
            Phase::FlushSuperblocks => {
                self.task_flush(t.device.id);
                t.phase = Phase::Commit;
            }
            Phase::Commit => {
                // The same device may have been a member before: its old number lets go of it.
                for place in &mut self.places {
                    place.device.take_if(|d| d.id == t.device.id);
                }
                let joined = self.wanted.generation + 1;
                self.push_member(t.device.clone(), t.uuid, RecordState::Spare, joined);
                if let Some(member) = t.replaces {
                    self.begin_replacement(MemberId(member), t.member);
                }
                self.maintenance.resume();
                t.phase = Phase::Done;
                return Next::Published(self.changed());
            }
            Phase::Done => {
                let message = format!("{} joined array '{}'", self.member_name(t.member), self.identity.name);
                self.notice(Severity::Info, "member-added", Some(MemberId(t.member)), None, message);
                return Next::End(Ok(Answer::Member(MemberId(t.member))));
            }
        }
        Next::Phase
    }

    /// The device is a member that failed and that slots still wait for: what it holds may be right but for what it missed.
    fn may_return(&self, t: &AddTask, sb: &Superblock) -> bool {
        let Some(m) = self.wanted.members.iter().position(|m| m.uuid == sb.member_uuid) else { return false };
        let record = &self.wanted.members[m];
        sb.array_uuid == self.identity.uuid
            && !t.wipe
            && t.replaces.is_none()
            && record.state == RecordState::Failed
            && record.reason != FailReason::Replaced
            && !record.partial
            && record.size == sb.size
            && !self.unrecorded.contains_key(&(m as u16))
            && self.wanted.volumes.iter().flat_map(|v| v.slots()).any(|s| usize::from(s.member) == m)
    }

    /// Takes the member back as it is, if its configuration is an ancestor of ours and no older than when it left. Its slots
    /// are then rebuilt by the bitmaps.
    fn take_back(&mut self, t: &mut AddTask) -> bool {
        let Some(sb) = t.sb.take() else { return false };
        let Some(m) = self.wanted.members.iter().position(|m| m.uuid == sb.member_uuid) else { return false };
        let found = self.slots_read(&t.device, *sb);
        let newest_slot = found.newest_slot();
        let Some(config) = found.newest() else { return false };
        let history = |c: &crate::ondisk::Config| c.history_at(config.counted);
        // Somebody may have assembled it without us, or brought back an old copy of it.
        let ancestor = history(config).is_some() && history(config) == history(&self.wanted);
        if !ancestor || config.generation < self.wanted.members[m].left || config.counted > self.committed.generation {
            return false;
        }
        for place in &mut self.places {
            place.device.take_if(|d| d.id == t.device.id);
        }
        let record = &mut self.wanted.members[m];
        record.state = RecordState::Active;
        record.reason = FailReason::Fine;
        record.joined = self.wanted.generation + 1;
        record.address.clone_from(&t.device.address);
        let place = &mut self.places[m];
        place.device = Some(t.device.clone());
        place.newest_slot = newest_slot;
        t.member = m as u16;
        self.returned.insert(t.member);
        self.maintenance.resume();
        true
    }

    fn may_add(&self, t: &AddTask) -> Result<(), ManageError> {
        let d = &t.device;
        if let Some((m, _)) = self.live_members().into_iter().find(|(_, id)| *id == d.id) {
            return Err(refuse(ErrorKind::AlreadyExists, format!("{} is member {m} already", d.address)));
        }
        if self.wanted.members.iter().any(|m| m.uuid == t.uuid) {
            return Err(refuse(ErrorKind::InvalidArgument, "the new member's UUID is in use; draw another one"));
        }
        if extents_of(d.size, self.identity.data_offset, self.identity.extent) == 0 {
            let needed = self.identity.data_offset + self.identity.extent + u64::from(SUPERBLOCK_BYTES);
            return Err(refuse(
                ErrorKind::InvalidArgument,
                format!("{} has {}; a member of this array needs at least {}", d.address, Bytes(d.size), Bytes(needed)),
            ));
        }
        if let Some(v) = self.wanted.volumes.iter().find(|v| v.block_size < d.block_size) {
            return Err(refuse(
                ErrorKind::InvalidArgument,
                format!(
                    "{} has blocks of {} bytes, volume '{}' has blocks of {}: name a device with blocks of at most that size",
                    d.address, d.block_size, v.name, v.block_size
                ),
            ));
        }
        let mut config = self.wanted.clone();
        if let Some(first) = config.members.first().cloned() {
            config.members.push(crate::ondisk::MemberRecord { address: d.address.clone(), ..first });
        }
        if !self.wanted.room_for_member() || !self.fits(&config) {
            return Err(refuse(ErrorKind::NoSpace, "the array's configuration has no room for another member"));
        }
        Ok(())
    }

    /// A device of this very array may come back without `wipe`: its data is rebuilt anyway.
    fn may_take(&self, t: &AddTask, found: &Found) -> Result<(), ManageError> {
        match found {
            Found::Nothing => Ok(()),
            Found::Member(sb) if sb.array_uuid == self.identity.uuid => {
                let twin = self
                    .live_members()
                    .into_iter()
                    .find(|(m, _)| self.wanted.members[usize::from(*m)].uuid == sb.member_uuid);
                match twin {
                    Some((m, _)) => Err(refuse(
                        ErrorKind::AlreadyExists,
                        format!("{} is the same as {}, which is in use", t.device.address, self.member_name(m)),
                    )),
                    None => Ok(()),
                }
            }
            _ if t.wipe => Ok(()),
            found => Err(found.refusal(&t.device)),
        }
    }

    pub(super) fn remove_phase(&mut self, t: &mut RemoveTask) -> Next {
        let member = t.member.0;
        if !t.committed {
            match self.may_remove(t.member) {
                Err(e) => return Next::End(Err(e)),
                Ok(()) => {
                    let record = &mut self.wanted.members[usize::from(member)];
                    record.state = RecordState::Removed;
                    record.reason = FailReason::Fine;
                    record.replaces = None;
                    for m in &mut self.wanted.members {
                        m.replaces.take_if(|r| *r == member);
                    }
                    self.unrecorded.remove(&member);
                }
            }
            t.committed = true;
            return Next::Published(self.changed());
        }
        if !t.wiped {
            // Its superblocks go, so that it is not taken for a member again. It may be unreachable: nothing depends on it.
            t.wiped = true;
            if let Some(d) = self.places[usize::from(member)].device.clone() {
                self.task_zero(d.id, 0, u64::from(SUPERBLOCK_BYTES));
                self.task_zero(d.id, end_copy_offset(d.size), u64::from(SUPERBLOCK_BYTES));
            }
            return Next::Phase;
        }
        let message = format!("{} left array '{}'", self.member_name(member), self.identity.name);
        self.places[usize::from(member)].device = None;
        self.notice(Severity::Info, "member-removed", Some(t.member), None, message);
        Next::End(Ok(Answer::Done))
    }

    fn may_remove(&self, member: MemberId) -> Result<(), ManageError> {
        if self.record_state(member)? == RecordState::Active {
            return Err(refuse(
                ErrorKind::FailedPrecondition,
                format!(
                    "{} is in use: 'raidctl member replace {} {} --with DEVICE' moves its data first, 'raidctl member fail' \
                     gives it up",
                    self.member_name(member.0),
                    self.identity.name,
                    member.0
                ),
            ));
        }
        Ok(())
    }

    pub(super) fn replace_phase(&mut self, t: &mut ReplaceTask) -> Next {
        if t.started {
            return Next::End(Ok(self.replacement_answer()));
        }
        if let Some(add) = &mut t.device {
            if let Phase::Probe | Phase::Commit = add.phase
                && let Err(e) = self.may_replace(t.member)
            {
                return Next::End(Err(e));
            }
            return match self.add_phase(add) {
                Next::End(Ok(_)) => Next::End(Ok(self.replacement_answer())),
                next => next,
            };
        }
        if let Err(e) = self.may_replace(t.member) {
            return Next::End(Err(e));
        }
        let spare = (0..self.wanted.members.len() as u16).find(|m| self.is_free_spare(*m) && *m != t.member.0);
        let Some(spare) = spare else {
            return Next::End(Err(refuse(
                ErrorKind::FailedPrecondition,
                format!("there is no spare to replace {}: name a device", self.member_name(t.member.0)),
            )));
        };
        self.begin_replacement(t.member, spare);
        self.maintenance.resume();
        t.started = true;
        Next::Published(self.changed())
    }

    /// A spare that nobody has a claim on.
    pub(super) fn is_free_spare(&self, member: u16) -> bool {
        let record = &self.wanted.members[usize::from(member)];
        record.state == RecordState::Spare && record.replaces.is_none() && self.live_device(member).is_some()
    }

    fn may_replace(&self, member: MemberId) -> Result<(), ManageError> {
        match self.record_state(member)? {
            RecordState::Failed => Ok(()),
            RecordState::Spare => Err(refuse(
                ErrorKind::FailedPrecondition,
                format!("{} is a spare and holds nothing: remove it and add another one", self.member_name(member.0)),
            )),
            _ => self.may_fail(member),
        }
    }

    /// The old member fails, if it has not, and the new one takes its slots; when none is left the old one is removed.
    fn begin_replacement(&mut self, old: MemberId, new: u16) {
        self.unrecorded.remove(&old.0);
        self.fail_member(old.0, FailReason::Replaced);
        self.wanted.members[usize::from(old.0)].reason = FailReason::Replaced;
        for m in &mut self.wanted.members {
            m.replaces.take_if(|r| *r == old.0);
        }
        self.wanted.members[usize::from(new)].replaces = Some(old.0);
    }

    fn replacement_answer(&mut self) -> Answer {
        let running = self
            .maintenance
            .operations
            .iter()
            .rev()
            .find(|o| o.kind == super::OperationKind::Rebuild && o.state == OperationState::Running);
        running.map_or(Answer::Done, |o| Answer::Operation(o.id))
    }

    /// A replaced member that holds nothing any more leaves the array.
    pub(super) fn retire_replaced(&mut self) -> bool {
        let mut retired = false;
        for m in 0..self.wanted.members.len() {
            let record = &self.wanted.members[m];
            if record.state != RecordState::Failed || record.reason != FailReason::Replaced {
                continue;
            }
            let new = self.wanted.members.iter().position(|n| n.replaces == Some(m as u16));
            // Rebuilt slots count when they are in sync: until then the old member is still the one that is missed.
            let busy = self.wanted.volumes.iter().flat_map(crate::ondisk::VolumeRecord::slots).any(|s| {
                usize::from(s.member) == m || (Some(usize::from(s.member)) == new && s.state == SlotState::Rebuilding)
            });
            if busy {
                continue;
            }
            let message = format!("{} has been replaced and is no longer a member", self.member_name(m as u16));
            self.wanted.members[m].state = RecordState::Removed;
            self.wanted.members[m].reason = FailReason::Fine;
            if let Some(new) = new {
                self.wanted.members[new].replaces = None;
            }
            self.changed();
            self.notice(Severity::Info, "member-replaced", Some(MemberId(m as u16)), None, message);
            retired = true;
        }
        retired
    }
}
