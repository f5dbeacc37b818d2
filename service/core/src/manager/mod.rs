//! An array's configuration and its long work, as a state machine: creation, assembly, commits, member failures, spares,
//! rebuild and resync. One manager is one array. It speaks to devices in whole metadata blocks and to the engines through
//! published views; it never sees user data.
//!
//! Every change goes the same way: the configuration in memory is changed, a commit writes it to all active members and
//! flushes them, a view of it is published to the engines, and only then what waited for the change goes on (`After`).

mod assemble;
mod clean;
mod commit;
mod create;
mod device_check;
mod maintain;
mod members;
mod status;
mod types;
mod volumes;

use std::collections::{BTreeMap, VecDeque};

use crate::action::{Event, IoStatus, MemberId, ReqStatus, VolumeId};
use crate::ondisk::{Config as Stored, RecordState};
use crate::units::Tick;

pub use types::*;

/// Where an array's things are on each of its members.
#[derive(Clone, Copy, Debug)]
struct Layout {
    extent: u64,
    slot_len: u32,
    data_offset: u64,
    shards: u16,
}

/// What a metadata operation was for.
enum Pending {
    Create(create::Step),
    Assemble(assemble::Step),
    CommitWrite(u16),
    CommitFlush(u16),
    CleanQuiesce(u64),
    CleanFlush(u64, u16),
    Publish(Vec<After>),
    Maintain { operation: u64 },
    Check(device_check::Step),
    Zero,
    ZeroFlush,
    Quiesce,
    StopFlush(u16),
    Erase,
    Repair,
}

/// What goes on once a change is durable and every engine knows it.
#[derive(Debug)]
enum After {
    Reply(CommandTag, Answer),
    Run(u64),
    CleanQuiesce(u64),
    Stopped(CommandTag),
}

enum Phase {
    Creating(create::Creating),
    Assembling(assemble::Assembling),
    Running,
    Stopping(CommandTag, usize),
    Erasing(CommandTag, usize, Result<(), IoStatus>),
    /// Nothing is accepted any more.
    Over,
    /// No member is left.
    Failed,
}

/// The state machine. See the module's head.
pub struct Manager {
    now: Tick,
    name: String,
    layout: Layout,
    config: Stored,
    phase: Phase,
    /// The devices behind the members, by member number.
    devices: Vec<Option<DeviceInfo>>,
    /// Members that failed although a volume needs them: not recorded, because no write that they missed will ever be
    /// acknowledged, so that they can be taken again as they are.
    lost: Vec<u16>,
    reasons: Vec<String>,
    read_repairs: Vec<u64>,
    write_errors: Vec<u64>,
    lost_bytes: BTreeMap<u32, u64>,
    tuning: Config,
    cleaning: clean::Cleaning,
    actions: VecDeque<ManagerAction>,
    pending: BTreeMap<u64, Pending>,
    next_tag: u64,
    commit: Option<commit::Run>,
    commit_wanted: bool,
    after: Vec<After>,
    operations: Vec<OperationStatus>,
    next_operation: u64,
    job: Option<maintain::Job>,
    check: Option<device_check::Check>,
    new_volume: Option<volumes::NewVolume>,
    waiting: VecDeque<(CommandTag, Command)>,
}

impl Manager {
    fn blank(now: Tick, name: String, layout: Layout, config: Stored, phase: Phase) -> Manager {
        Manager {
            now,
            name,
            layout,
            config,
            phase,
            devices: Vec::new(),
            lost: Vec::new(),
            reasons: Vec::new(),
            read_repairs: Vec::new(),
            write_errors: Vec::new(),
            lost_bytes: BTreeMap::new(),
            tuning: Config::default(),
            cleaning: clean::Cleaning::default(),
            actions: VecDeque::new(),
            pending: BTreeMap::new(),
            next_tag: 1,
            commit: None,
            commit_wanted: false,
            after: Vec::new(),
            operations: Vec::new(),
            next_operation: 1,
            job: None,
            check: None,
            new_volume: None,
            waiting: VecDeque::new(),
        }
    }

    /// The array's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The array's UUID.
    pub fn uuid(&self) -> Uuid {
        self.config.array_uuid
    }

    /// Takes a metadata read's answer.
    pub fn read_done(&mut self, now: Tick, tag: MetaTag, result: Result<Vec<u8>, IoStatus>) {
        self.now = now;
        match self.pending.remove(&tag.0) {
            Some(Pending::Create(step)) => self.create_read(step, result),
            Some(Pending::Assemble(step)) => self.assemble_read(step, result),
            Some(Pending::Check(step)) => self.check_read(step, result),
            _ => {}
        }
    }

    /// Takes a metadata write's, flush's or zero's answer.
    pub fn done(&mut self, now: Tick, tag: MetaTag, status: IoStatus) {
        self.now = now;
        match self.pending.remove(&tag.0) {
            Some(Pending::Create(step)) => self.create_done(step, status),
            Some(Pending::CommitWrite(member)) => self.commit_written(member, status),
            Some(Pending::CommitFlush(member)) => self.commit_flushed(member, status),
            Some(Pending::Check(step)) => self.check_done(step, status),
            Some(Pending::CleanFlush(attempt, member)) => self.clean_flushed(attempt, member, status),
            Some(Pending::Zero) => self.zeroed(status),
            Some(Pending::ZeroFlush) => self.zero_flushed(status),
            Some(Pending::StopFlush(member)) => self.stop_flushed(member, status),
            Some(Pending::Erase) => self.erased(status),
            // A superblock copy that could not be repaired is still one good copy; the next assembly tries again.
            _ => {}
        }
    }

    /// All engines have the view.
    pub fn published(&mut self, now: Tick, tag: MetaTag) {
        self.now = now;
        if let Some(Pending::Publish(after)) = self.pending.remove(&tag.0) {
            for after in after {
                self.go_on(after);
            }
        }
    }

    /// Nothing is in flight in any engine.
    pub fn quiesced(&mut self, now: Tick, tag: MetaTag) {
        self.now = now;
        match self.pending.remove(&tag.0) {
            Some(Pending::Quiesce) => self.stop_flush(),
            Some(Pending::CleanQuiesce(attempt)) => self.clean_flush(attempt),
            _ => {}
        }
    }

    /// A stripe's rebuild or resync has ended.
    pub fn maintained(&mut self, now: Tick, tag: MetaTag, status: ReqStatus) {
        self.now = now;
        if let Some(Pending::Maintain { operation }) = self.pending.remove(&tag.0) {
            self.stripe_done(operation, status);
        }
    }

    /// An engine's event.
    pub fn event(&mut self, now: Tick, event: Event) {
        self.now = now;
        match event {
            Event::MemberFailed { member, status } => self.member_failed(member.0, failure_text(status)),
            Event::DirtyNeeded { volume } => self.mark_dirty(volume),
            Event::ReadRepaired { member, .. } => {
                if let Some(count) = self.read_repairs.get_mut(member.0 as usize) {
                    *count += 1;
                }
            }
            Event::DataLost { volume, offset, len } => {
                *self.lost_bytes.entry(volume.0).or_default() += u64::from(len);
                let name = self.volume_name(volume);
                self.notice(
                    Severity::Error,
                    "data-lost",
                    None,
                    Some(volume),
                    format!("{len} bytes at {offset} of volume '{name}' can be neither read nor rebuilt: restore them from a backup by writing them again"),
                );
            }
        }
    }

    /// A command; answered by [`ManagerAction::Reply`]. Commands that need the whole array (a new volume, a new member)
    /// wait for each other.
    pub fn command(&mut self, now: Tick, tag: CommandTag, command: Command) {
        self.now = now;
        if !matches!(self.phase, Phase::Running) {
            let text =
                format!("array '{}' is not running: wait until it is assembled, or assemble it again", self.name);
            return self.refuse(tag, ErrorKind::FailedPrecondition, text);
        }
        match command {
            Command::AddMember { .. } | Command::ReplaceMember { .. } | Command::CreateVolume(_)
                if self.check.is_some() || self.new_volume.is_some() =>
            {
                self.waiting.push_back((tag, command));
            }
            Command::AddMember { device, uuid, wipe } => self.add_member(tag, device, uuid, wipe),
            Command::FailMember(member) => self.fail_member(tag, member.0),
            Command::RemoveMember(member) => self.remove_member(tag, member.0),
            Command::ReplaceMember { member, device, uuid, wipe } => {
                self.replace_member(tag, member.0, device, uuid, wipe);
            }
            Command::CreateVolume(spec) => self.create_volume(tag, spec),
            Command::DeleteVolume(volume) => self.delete_volume(tag, volume),
            Command::CancelOperation(id) => self.cancel(tag, id),
            Command::Stop => self.stop(tag),
            Command::Delete => self.delete(tag),
        }
    }

    /// The next thing to do.
    pub fn next_action(&mut self) -> Option<ManagerAction> {
        if self.actions.is_empty() {
            if self.check.is_none()
                && self.new_volume.is_none()
                && let Some((tag, command)) = self.waiting.pop_front()
            {
                self.command(self.now, tag, command);
            }
            self.pump_commit();
            self.pump_job();
        }
        self.actions.pop_front()
    }

    /// When to call [`Manager::tick`] even if nothing completes.
    pub fn next_deadline(&self) -> Option<Tick> {
        if matches!(self.phase, Phase::Running) { self.clean_due() } else { None }
    }

    /// The clock has reached [`Manager::next_deadline`]. Harmless at any other time.
    pub fn tick(&mut self, now: Tick) {
        self.now = now;
        self.clean_idle();
    }

    /// Number of shards of the array, 0 until it is known.
    pub fn shards(&self) -> u16 {
        if matches!(self.phase, Phase::Assembling(_)) { 0 } else { self.layout.shards }
    }

    /// The shard that owns a stripe.
    pub fn shard(&self, volume: VolumeId, group: u32, stripe: u32) -> u16 {
        self.config.volumes.iter().find(|v| v.id == volume.0).map_or(0, |v| v.geometry.shard(group, stripe))
    }

    fn tag(&mut self, pending: Pending) -> MetaTag {
        let tag = self.next_tag;
        self.next_tag += 1;
        self.pending.insert(tag, pending);
        MetaTag(tag)
    }

    fn write(&mut self, pending: Pending, device: DeviceId, offset: u64, bytes: Vec<u8>) {
        let tag = self.tag(pending);
        self.actions.push_back(ManagerAction::Write { tag, device, offset, bytes });
    }

    fn read(&mut self, pending: Pending, device: DeviceId, offset: u64, len: u32) {
        let tag = self.tag(pending);
        self.actions.push_back(ManagerAction::Read { tag, device, offset, len });
    }

    fn flush(&mut self, pending: Pending, device: DeviceId) {
        let tag = self.tag(pending);
        self.actions.push_back(ManagerAction::Flush { tag, device });
    }

    fn reply(&mut self, tag: CommandTag, answer: Answer) {
        self.actions.push_back(ManagerAction::Reply { tag, result: Ok(answer) });
    }

    fn refuse(&mut self, tag: CommandTag, kind: ErrorKind, message: impl Into<String>) {
        let error = ManageError { kind, message: message.into() };
        self.actions.push_back(ManagerAction::Reply { tag, result: Err(error) });
    }

    fn notice(
        &mut self,
        severity: Severity,
        code: &'static str,
        member: Option<u16>,
        volume: Option<VolumeId>,
        message: String,
    ) {
        let member = member.map(MemberId);
        self.actions.push_back(ManagerAction::Notice(Notice { severity, code, member, volume, message }));
    }

    /// Members that metadata is written to.
    fn reachable(&self) -> Vec<(u16, DeviceId)> {
        let active = |m: u16| {
            matches!(self.config.members[m as usize].state, RecordState::Active | RecordState::Spare)
                && !self.lost.contains(&m)
        };
        (0..self.config.members.len() as u16)
            .filter(|m| active(*m))
            .filter_map(|m| self.devices[m as usize].as_ref().map(|d| (m, d.id)))
            .collect()
    }

    fn push_member(&mut self, device: Option<DeviceInfo>, reason: &str) {
        self.devices.push(device);
        self.reasons.push(reason.to_string());
        self.read_repairs.push(0);
        self.write_errors.push(0);
    }

    fn volume_name(&self, id: VolumeId) -> String {
        self.config.volumes.iter().find(|v| v.id == id.0).map_or_else(|| id.0.to_string(), |v| v.name.clone())
    }

    fn go_on(&mut self, after: After) {
        match after {
            After::Reply(tag, answer) => self.reply(tag, answer),
            After::Run(operation) => self.run_operation(operation),
            After::CleanQuiesce(attempt) => self.clean_quiesce(attempt),
            After::Stopped(tag) => {
                self.phase = Phase::Over;
                self.reply(tag, Answer::Done);
            }
        }
    }
}

/// A device's answer in words.
fn failure_text(status: IoStatus) -> &'static str {
    match status {
        IoStatus::NoSpace => "no space",
        IoStatus::Timeout => "no answer in time",
        IoStatus::ReadError => "read error",
        IoStatus::DeviceError | IoStatus::Miscompare | IoStatus::Ok => "device error",
    }
}

#[cfg(test)]
mod tests;
