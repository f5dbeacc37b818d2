//! An array's configuration and its long work, as a state machine: creation, assembly, commits, member failures, spares,
//! rebuild and resync. One manager is one array. It speaks to devices in whole metadata blocks and to the engines through
//! published views; it never sees user data.
//!
//! Inside, every input ends in `pump`, which steps five small machines until none of them moves:
//!
//! * the *commit* machine writes the wanted configuration to all live members, and publishes what counts (`commit`);
//! * one *task* at a time: a creation, an assembly, or the command at the head of the queue (`task` and its kinds);
//! * the *maintenance* machine: one group's rebuild or resync at a time (`maintain`);
//! * the *cleaning* machine: clears dirty marks of idle volumes (`clean`);
//! * the *bitmaps*: each volume's regions and the rounds that make them durable (`bitmap`);
//! * answers to commands that only wait for a publication.
//!
//! They meet in `wanted`, the configuration as it is to be. Whoever changes it remembers the sequence number that
//! [`Manager::changed`] returned, and goes on when a view with that number has reached all engines.

mod assemble;
mod bitmap;
mod clean;
mod commit;
mod create;
mod decide;
mod load;
mod maintain;
mod members;
mod redundancy;
mod status;
mod task;
mod types;
mod volumes;

pub use types::*;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::action::{Event, IoStatus, MemberId, ReqStatus, VolumeId};
use crate::ondisk::{self, FailReason};
use crate::units::{Bytes, Tick};

use clean::Cleaning;
use commit::Commit;
use maintain::Maintenance;
use task::{Task, TaskIo};

/// What an outstanding tag is for.
#[derive(Clone, Debug)]
enum Pending {
    /// A configuration write or flush of the commit machine, on this member.
    Commit(MemberId),
    /// The commit machine's publication.
    Publish,
    /// An operation of the task, on this device; reads carry their part's number.
    Task(DeviceId, u8),
    /// The task's wait for engines.
    TaskQuiesce,
    /// A stripe of the pass with this number.
    Stripe(u64),
    /// A flush before the pass with this number ends, on this member.
    PassFlush(u64, MemberId),
    /// The cleaning's wait for engines, or a flush of it.
    CleanQuiesce(u64),
    /// See `CleanQuiesce`.
    CleanFlush(u64, MemberId),
    /// Part of a round of a bitmap.
    Round { volume: u32, number: u64, member: MemberId, device: DeviceId },
    /// The wait for requests that may still write to closing regions of a volume, or the flush after it.
    ClosingQuiesce(u32, u64),
    /// See `ClosingQuiesce`.
    ClosingFlush(u32, u64, MemberId),
    /// Engines have let go of the extents of deleted volumes, all that were deleted before this sequence number.
    Released(u64),
}

/// What never changes after the creation.
#[derive(Clone, Debug, Default)]
struct Identity {
    name: String,
    uuid: Uuid,
    extent: u64,
    shards: u16,
    slot_len: u32,
    data_offset: u64,
}

/// What is counted per member, in memory only.
#[derive(Clone, Copy, Debug, Default)]
struct MemberCounters {
    write_errors: u64,
    read_repairs: u64,
    /// Repairs of late: halved each [`HALVING`], so that a bad spot years ago is forgotten.
    recent: u32,
    halved: Tick,
}

/// How often recent repairs are halved, in nanoseconds.
const HALVING: u64 = 3_600_000_000_000;

/// What the manager keeps per member beside its record.
#[derive(Clone, Debug, Default)]
struct MemberPlace {
    /// The device behind it.
    device: Option<DeviceInfo>,
    /// The configuration slot that holds its newest configuration; the next one goes to the other.
    newest_slot: u8,
    counters: MemberCounters,
}

/// The state machine. See the module's head.
pub struct Manager {
    config: Config,
    now: Tick,
    state: ArrayState,
    reason: String,
    identity: Identity,
    /// The configuration as it is to be.
    wanted: ondisk::Config,
    /// The configuration that counts.
    committed: ondisk::Config,
    places: Vec<MemberPlace>,
    /// Counts changes of `wanted` and of what views are made of.
    sequence: u64,
    commit_needed: bool,
    publish_needed: bool,
    /// The number of the newest view that all engines have.
    published: u64,
    commit: Commit,
    task: Option<Task>,
    task_io: TaskIo,
    queue: VecDeque<(CommandTag, Command)>,
    /// Answers that wait for a publication.
    waiting: Vec<(u64, CommandTag, Answer)>,
    maintenance: Maintenance,
    cleaning: Option<Cleaning>,
    /// When to try to clear a dirty volume's mark, and how long to wait the next time.
    clean_at: BTreeMap<VolumeId, (Tick, u64)>,
    /// Bitmaps by volume.
    bitmaps: BTreeMap<u32, bitmap::Bitmap>,
    /// Members that failed in a round of a bitmap, until they are recorded.
    bitmap_failures: Vec<(u16, IoStatus)>,
    /// Numbers rounds of bitmaps.
    last_number: u64,
    /// The sequence number of the last member failure.
    failed_at: u64,
    /// Members that came back: what they hold is right, but for the regions that are not clean.
    returned: BTreeSet<u16>,
    /// Members whose failure took every volume on them offline, with the slots that were in sync: not recorded on disk,
    /// because no write that they missed will ever be acknowledged, so that they can be taken as they are.
    unrecorded: BTreeMap<u16, Vec<(u32, u32, usize)>>,
    /// Extents of deleted volumes that engines may still write to, with the deletion's number.
    graveyard: Vec<(u64, u16, u32)>,
    lost_bytes: BTreeMap<VolumeId, u64>,
    /// Volumes that are offline because too much is missing, as far as it was said.
    known_failed: BTreeSet<VolumeId>,
    actions: VecDeque<ManagerAction>,
    pending: BTreeMap<MetaTag, Pending>,
    next_tag: u64,
}

impl Manager {
    fn empty(now: Tick, config: Config) -> Manager {
        let none = ondisk::Config {
            generation: 0,
            counted: 0,
            array_uuid: [0; 16],
            creating: true,
            history: Vec::new(),
            members: Vec::new(),
            volumes: Vec::new(),
            next_volume: 0,
        };
        Manager {
            config,
            now,
            state: ArrayState::Starting,
            reason: String::new(),
            identity: Identity::default(),
            wanted: none.clone(),
            committed: none,
            places: Vec::new(),
            sequence: 0,
            commit_needed: false,
            publish_needed: false,
            published: 0,
            commit: Commit::Idle,
            task: None,
            task_io: TaskIo::default(),
            queue: VecDeque::new(),
            waiting: Vec::new(),
            maintenance: Maintenance::default(),
            cleaning: None,
            clean_at: BTreeMap::new(),
            bitmaps: BTreeMap::new(),
            bitmap_failures: Vec::new(),
            last_number: 0,
            failed_at: 0,
            returned: BTreeSet::new(),
            unrecorded: BTreeMap::new(),
            graveyard: Vec::new(),
            lost_bytes: BTreeMap::new(),
            known_failed: BTreeSet::new(),
            actions: VecDeque::new(),
            pending: BTreeMap::new(),
            next_tag: 0,
        }
    }

    /// Makes an array of the devices, in their order. Answered by [`ManagerAction::Reply`] with `tag`: `Done`, or why not; a
    /// refusal ends the manager. `history` is a fresh random UUID.
    pub fn create(
        now: Tick,
        config: Config,
        tag: CommandTag,
        history: Uuid,
        spec: ArraySpec,
        devices: Vec<DeviceInfo>,
    ) -> Manager {
        let mut manager = Manager::empty(now, config);
        manager.begin_create(tag, history, spec, devices);
        manager.pump();
        manager
    }

    /// Puts an array together from the devices that are there; members that are not among them are recorded as failed. The
    /// caller has waited for late devices. Answered like a creation. `history` is a fresh random UUID.
    pub fn assemble(
        now: Tick,
        config: Config,
        tag: CommandTag,
        history: Uuid,
        devices: Vec<DeviceInfo>,
        force: bool,
    ) -> Manager {
        let mut manager = Manager::empty(now, config);
        manager.begin_assemble(tag, history, devices, force);
        manager.pump();
        manager
    }

    /// Takes a metadata read's answer.
    pub fn read_done(&mut self, now: Tick, tag: MetaTag, result: Result<Vec<u8>, IoStatus>) {
        self.now = now;
        if let Some(Pending::Task(device, part)) = self.pending.remove(&tag) {
            self.task_io.read_done(device, part, result);
        }
        self.pump();
    }

    /// Takes a metadata write's, flush's or zero's answer.
    pub fn done(&mut self, now: Tick, tag: MetaTag, status: IoStatus) {
        self.now = now;
        match self.pending.remove(&tag) {
            Some(Pending::Commit(member)) => self.commit_done(member, status),
            Some(Pending::Task(device, _)) => self.task_io.done(device, status),
            Some(Pending::PassFlush(pass, member)) => self.pass_flushed(pass, member, status),
            Some(Pending::CleanFlush(round, member)) => self.clean_flushed(round, member, status),
            Some(Pending::Round { volume, number, member, .. }) => self.round_done(volume, number, member, status),
            Some(Pending::ClosingFlush(volume, number, member)) => {
                self.closing_flushed(volume, number, member, status);
            }
            _ => {}
        }
        self.pump();
    }

    /// All engines have the view.
    pub fn published(&mut self, now: Tick, tag: MetaTag) {
        self.now = now;
        if let Some(Pending::Publish) = self.pending.remove(&tag) {
            self.publish_done();
        }
        self.pump();
    }

    /// All requests that were in flight at the [`ManagerAction::Quiesce`] have ended.
    pub fn quiesced(&mut self, now: Tick, tag: MetaTag) {
        self.now = now;
        match self.pending.remove(&tag) {
            Some(Pending::TaskQuiesce) => self.task_io.outstanding -= 1,
            Some(Pending::CleanQuiesce(round)) => self.clean_quiesced(round),
            Some(Pending::ClosingQuiesce(volume, number)) => self.closing_quiesced(volume, number),
            Some(Pending::Released(sequence)) => self.graveyard.retain(|(s, ..)| *s > sequence),
            _ => {}
        }
        self.pump();
    }

    /// A stripe's rebuild or resync has ended.
    pub fn maintained(&mut self, now: Tick, tag: MetaTag, status: ReqStatus) {
        self.now = now;
        if let Some(Pending::Stripe(pass)) = self.pending.remove(&tag) {
            self.stripe_done(pass, status);
        }
        self.pump();
    }

    /// An engine's event.
    pub fn event(&mut self, now: Tick, event: Event) {
        self.now = now;
        if self.state == ArrayState::Stopped {
            return;
        }
        match event {
            Event::MemberFailed { member, status } => self.member_failed(member, status),
            Event::DirtyNeeded { volume } => self.dirty_needed(volume),
            Event::RegionNeeded { volume, region } => self.region_needed(volume, region),
            Event::RegionZeroed { volume, region } => self.region_zeroed(volume, region),
            Event::ReadRepaired { member, offset, len } => self.read_repaired(member, offset, len),
            Event::DataLost { volume, offset, len } => {
                let lost = self.lost_bytes.entry(volume).or_default();
                let (before, after) = (*lost, *lost + u64::from(len));
                *lost = after;
                if before == 0 || before.ilog2() != after.ilog2() {
                    let message = format!(
                        "{} at byte {offset} of {} can be neither read nor rebuilt ({} so far); restore them from a \
                         backup: a write to them makes them readable again",
                        Bytes(u64::from(len)),
                        self.volume_name(volume),
                        Bytes(after),
                    );
                    self.notice(Severity::Error, "data-lost", None, Some(volume), message);
                }
            }
        }
        self.pump();
    }

    /// A command; answered by [`ManagerAction::Reply`].
    pub fn command(&mut self, now: Tick, tag: CommandTag, command: Command) {
        self.now = now;
        match self.state {
            ArrayState::Running => match command {
                // These must not wait behind a creation that zeroes for minutes.
                Command::FailMember(member) => self.fail_command(tag, member),
                Command::CancelOperation(id) => self.cancel_command(tag, id),
                command => self.queue.push_back((tag, command)),
            },
            ArrayState::Starting => self.queue.push_back((tag, command)),
            ArrayState::Failed if matches!(command, Command::Stop) => self.queue.push_back((tag, command)),
            _ => self.reply(tag, Err(self.not_running())),
        }
        self.pump();
    }

    /// The next thing to do.
    pub fn next_action(&mut self) -> Option<ManagerAction> {
        self.actions.pop_front()
    }

    /// When to call [`Manager::tick`] even if nothing completes.
    pub fn next_deadline(&self) -> Option<Tick> {
        if self.state != ArrayState::Running {
            return None;
        }
        let clean = self.clean_at.values().map(|(at, _)| *at).filter(|_| self.cleaning.is_none());
        clean.chain(self.bitmap_deadline()).min()
    }

    /// The clock has reached [`Manager::next_deadline`]. Harmless at any other time.
    pub fn tick(&mut self, now: Tick) {
        self.now = now;
        if self.next_deadline().is_some_and(|at| at <= now) {
            self.pump();
        }
    }

    /// The array's name; empty until it is known.
    pub fn name(&self) -> &str {
        &self.identity.name
    }

    /// The array's UUID; zero until it is known.
    pub fn uuid(&self) -> Uuid {
        self.identity.uuid
    }

    /// The shard that owns a stripe.
    pub fn shard(&self, volume: VolumeId, group: u32, stripe: u32) -> u16 {
        let volume = self.wanted.volumes.iter().find(|v| v.id == volume.0);
        volume.map_or(0, |v| v.geometry.shard(group, stripe))
    }

    /// Number of shards of the array, 0 until it is known.
    pub fn shards(&self) -> u16 {
        self.identity.shards
    }

    /// Steps every machine until none of them moves.
    fn pump(&mut self) {
        loop {
            let mut moved = self.step_commit();
            moved |= self.step_task();
            moved |= self.step_maintenance();
            moved |= self.step_cleaning();
            moved |= self.step_bitmaps();
            self.answer_waiting();
            if !moved {
                return;
            }
        }
    }

    fn answer_waiting(&mut self) {
        let failed = self.state == ArrayState::Failed;
        let published = self.published;
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.retain(|(sequence, tag, answer)| {
            if *sequence <= published {
                // With no member left nothing counts, whatever was published.
                let result = if failed { Err(self.not_running()) } else { Ok(answer.clone()) };
                self.reply(*tag, result);
            }
            *sequence > published
        });
        self.waiting = waiting;
    }

    /// The configuration has been changed: it must be committed and published. Returns the number to wait for.
    fn changed(&mut self) -> u64 {
        self.sequence += 1;
        self.commit_needed = true;
        self.sequence
    }

    /// Only views look different: they must be published.
    fn view_changed(&mut self) -> u64 {
        self.sequence += 1;
        self.publish_needed = true;
        self.sequence
    }

    fn tag(&mut self, pending: Pending) -> MetaTag {
        self.next_tag += 1;
        let tag = MetaTag(self.next_tag);
        self.pending.insert(tag, pending);
        tag
    }

    fn reply(&mut self, tag: CommandTag, result: Result<Answer, ManageError>) {
        self.actions.push_back(ManagerAction::Reply { tag, result });
    }

    fn notice(
        &mut self,
        severity: Severity,
        code: &'static str,
        member: Option<MemberId>,
        volume: Option<VolumeId>,
        message: String,
    ) {
        self.actions.push_back(ManagerAction::Notice(Notice { severity, code, member, volume, message }));
    }

    fn not_running(&self) -> ManageError {
        let why = if self.reason.is_empty() { String::new() } else { format!(": {}", self.reason) };
        let what = match self.state {
            ArrayState::Failed => "has no member left that could hold its configuration",
            _ => "is not running",
        };
        refuse(ErrorKind::FailedPrecondition, format!("array '{}' {what}{why}", self.identity.name))
    }

    /// How messages call a member.
    fn member_name(&self, member: u16) -> String {
        match self.wanted.members.get(usize::from(member)) {
            Some(record) if !record.address.is_empty() => format!("member {member} ({})", record.address),
            _ => format!("member {member}"),
        }
    }

    /// How messages call a volume.
    fn volume_name(&self, volume: VolumeId) -> String {
        match self.wanted.volumes.iter().find(|v| v.id == volume.0) {
            Some(v) => format!("volume '{}'", v.name),
            None => format!("volume {}", volume.0),
        }
    }

    /// The device of a member that is read and written.
    fn live_device(&self, member: u16) -> Option<DeviceId> {
        let record = self.wanted.members.get(usize::from(member))?;
        let live = matches!(record.state, ondisk::RecordState::Active | ondisk::RecordState::Spare);
        self.places[usize::from(member)].device.as_ref().filter(|_| live).map(|d| d.id)
    }

    /// Members that are read and written.
    fn live_members(&self) -> Vec<(u16, DeviceId)> {
        (0..self.wanted.members.len() as u16).filter_map(|m| Some((m, self.live_device(m)?))).collect()
    }
}

/// A refusal.
fn refuse(kind: ErrorKind, message: impl Into<String>) -> ManageError {
    ManageError { kind, message: message.into() }
}

/// What a device's answer makes of its member.
fn reason_of(status: IoStatus) -> FailReason {
    match status {
        IoStatus::NoSpace => FailReason::NoSpace,
        IoStatus::Timeout => FailReason::Timeout,
        _ => FailReason::Device,
    }
}

/// A reason in words.
fn reason_text(reason: FailReason) -> &'static str {
    match reason {
        FailReason::Fine => "",
        FailReason::Device => "a write or flush failed",
        FailReason::NoSpace => "no space",
        FailReason::Timeout => "it did not answer in time",
        FailReason::Missing => "it was missing at assembly",
        FailReason::Stale => "it is stale: the array went on without it",
        FailReason::Operator => "failed by an operator",
        FailReason::Replaced => "it is being replaced",
        FailReason::ReadErrors => "too many of its blocks could not be read",
    }
}

#[cfg(test)]
mod tests;
