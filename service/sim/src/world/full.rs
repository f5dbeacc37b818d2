//! The full campaign: the real manager over the simulated drives. The script creates the array and a volume, loads it,
//! brings replacements, stops and assembles it, and lets the process or the power fail.

use std::collections::BTreeMap;

use raid_core::action::{Event, MemberId, Op, ReqStatus, ReqTag, Request, VolumeId};
use raid_core::geometry::Level;
use raid_core::manager::{
    Answer, ArraySpec, Command, CommandTag, Config, DeviceId, DeviceInfo, ErrorKind, ManageError, Manager,
    ManagerAction, MetaTag, OperationState, Policy, VolumeSpec,
};
use raid_core::ondisk;
use raid_core::units::Tick;
use raid_core::view::{MemberState, SlotState};

use super::io::Owner;
use super::{CONTROL, Control, ControlMail, Ev, HOST, LaneMail, Round, Stage, World};
use crate::breaks::Break;
use crate::case::Case;
use crate::drive::{Drive, Kind};
use crate::rng::Rng;

/// A metadata I/O belongs to no member as the engines number them.
const META: u16 = u16::MAX;

/// What is scheduled around the manager.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// The manager's deadline.
    Tick,
    /// A new device for an array that has lost a member.
    Bring,
    /// The process dies.
    Crash,
    /// Somebody does something to the array, sensible or not.
    Operate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Create,
    Volume,
    Assemble { may_refuse: bool },
    Bring,
    Fail,
    Stop,
    Operate,
}

/// See the module's head.
pub(super) struct Full {
    manager: Option<Manager>,
    asked: BTreeMap<u64, Asked>,
    next_command: u64,
    /// Broadcasts under way: true if it is a view.
    broadcasts: BTreeMap<u64, bool>,
    spares_at_start: u16,
    spares: u32,
    due: u32,
    crash_due: bool,
    /// Crashes of this round.
    crashes: u32,
    /// An operation was cancelled: nobody promises that it is taken up again.
    cancelled: bool,
    /// A volume with parity came up degraded, with regions that nobody can verify: from here on errors are right.
    pub(super) unverifiable: bool,
    /// Volumes that were made beside the one under test.
    others: Vec<u32>,
    tick: Option<Tick>,
    uuid: u64,
    /// Bytes of a drive.
    size: u64,
    stopping: bool,
}

impl Full {
    pub(super) fn new(case: &Case, rng: &mut Rng) -> Full {
        // Small ones for the cuts campaign, because slots of the configuration grow with the number of extents.
        let base = if case.plan.is_some() { 1 << 20 } else { 2 << 20 };
        let more = if case.plan.is_some() { 3 } else { 1 };
        let size = base + case.geometry.extent * (u64::from(case.groups) + more) + 8192;
        let spares_at_start = case.plan.map_or_else(|| rng.below(3) as u16, |plan| u16::from(plan.spare));
        Full {
            manager: None,
            asked: BTreeMap::new(),
            next_command: 1,
            broadcasts: BTreeMap::new(),
            spares_at_start,
            spares: case.spares,
            due: 0,
            crash_due: false,
            crashes: 0,
            cancelled: false,
            unverifiable: false,
            others: Vec::new(),
            tick: None,
            uuid: case.seed << 20,
            size,
            stopping: false,
        }
    }

    /// A clean stop is under way, which takes the volumes offline.
    pub(super) fn stopping(&self) -> bool {
        self.stopping
    }

    pub(super) fn at_rest(&self) -> bool {
        let running = |m: &Manager| m.status().operations.iter().any(|o| o.state == OperationState::Running);
        self.due == 0
            && !self.crash_due
            && self.asked.is_empty()
            && self.broadcasts.is_empty()
            && !self.manager.as_ref().is_some_and(running)
    }

    fn uuid(&mut self) -> [u8; 16] {
        self.uuid += 1;
        let mut uuid = [0x5a; 16];
        uuid[..8].copy_from_slice(&self.uuid.to_le_bytes());
        uuid
    }

    fn command(&mut self, asked: Asked) -> CommandTag {
        let tag = self.next_command;
        self.next_command += 1;
        self.asked.insert(tag, asked);
        CommandTag(tag)
    }
}

fn info(drive: usize, size: u64) -> DeviceInfo {
    let id = DeviceId(drive as u16);
    DeviceInfo { id, address: format!("drive{drive}"), size, block_size: 512, fast_zero: true }
}

/// What a drive says of itself.
pub(super) fn superblock(drive: &Drive) -> Option<ondisk::Superblock> {
    [0, ondisk::end_copy_offset(drive.size())].into_iter().find_map(|at| {
        let mut bytes = vec![0; ondisk::SUPERBLOCK_BYTES as usize];
        drive.read(at, &mut bytes);
        ondisk::Superblock::decode(&bytes).ok()
    })
}

impl World {
    fn full(&mut self) -> &mut Full {
        match &mut self.control {
            Control::Full(full) => full,
            Control::Mini(_) => unreachable!("only the full campaign has the real manager"),
        }
    }

    fn tuning(&mut self) -> Config {
        let window = self.rng.range(1, 8) as u32;
        match self.case.plan {
            Some(plan) => Config { window, clean_after: plan.clean_after, least_extent: 0, ..Config::default() },
            None => {
                let clean_after = self.rng.range(1_000_000, 20_000_000);
                // A member that is failed for its read errors is one fault more than a round has planned, beside blocks of
                // others that cannot be read either: only where anything may go wrong.
                let read_error_limit = if self.case.lossy() { self.rng.range(8, 128) as u32 } else { u32::MAX };
                Config { window, clean_after, read_error_limit, ..Config::default() }
            }
        }
    }

    pub(super) fn full_begin(&mut self) {
        let active = self.case.geometry.width + self.case.extra;
        let (size, spares) = (self.full().size, self.full().spares_at_start);
        let n = active + spares;
        for _ in 0..n {
            self.drives.push(Drive::new(size, self.case.cache));
        }
        self.make_lanes();
        let spec = ArraySpec {
            name: "sim".to_string(),
            uuid: self.full().uuid(),
            member_uuids: (0..n).map(|_| self.full().uuid()).collect(),
            spares,
            shards: self.case.geometry.shards,
            extent: Some(self.case.geometry.extent),
            wipe: false,
        };
        let devices = (0..usize::from(n)).map(|d| info(d, size)).collect();
        let (now, config) = (self.clock.now(), self.tuning());
        let history = self.full().uuid();
        let tag = self.full().command(Asked::Create);
        self.full().manager = Some(Manager::create(now, config, tag, history, spec, devices));
        self.full_pump();
    }

    fn create_volume(&mut self) {
        let case = &self.case;
        let policy = case.policy;
        let (level, width, chunk) = (case.geometry.level, Some(case.geometry.width), case.geometry.chunk);
        let size = Some(case.volume_bytes());
        let uuid = self.full().uuid();
        let name = "v".to_string();
        let spec = VolumeSpec { name, uuid, level, width, chunk, size, block_size: 512, policy };
        self.full_command(Asked::Volume, Command::CreateVolume(spec));
    }

    fn full_command(&mut self, asked: Asked, command: Command) {
        self.trace.note(self.clock.now(), || format!("command: {command:?}"));
        let now = self.clock.now();
        let tag = self.full().command(asked);
        if let Some(manager) = &mut self.full().manager {
            manager.command(now, tag, command);
        }
        self.full_pump();
    }

    pub(super) fn full_mail(&mut self, mail: ControlMail) {
        let now = self.clock.now();
        if let ControlMail::Published(tag) | ControlMail::Quiesced(tag) = mail {
            if !self.answered(tag) {
                return;
            }
            let published = self.full().broadcasts.remove(&tag).unwrap_or(false);
            if let Some(manager) = &mut self.full().manager {
                if published {
                    manager.published(now, MetaTag(tag));
                } else {
                    manager.quiesced(now, MetaTag(tag));
                }
            }
            return self.full_pump();
        }
        if let (ControlMail::Event(event), true) = (&mail, self.cut.is_some()) {
            self.jump_ahead(event);
        }
        match &mail {
            ControlMail::Event(Event::ReadRepaired { .. }) => self.stats.repairs += 1,
            ControlMail::Event(Event::DataLost { offset, .. }) if !self.havoc() => {
                self.fail(format!("data lost at {offset} although redundancy covers every fault"));
            }
            ControlMail::Maintained(..) => {
                self.progress = self.clock.events();
                self.stats.maintained += 1;
            }
            _ => {}
        }
        let Some(manager) = &mut self.full().manager else { return };
        match mail {
            ControlMail::Event(event) => manager.event(now, event),
            ControlMail::Maintained(tag, status) => manager.maintained(now, MetaTag(tag), status),
            ControlMail::Meta { tag, read: true, result } => manager.read_done(now, MetaTag(tag), result),
            ControlMail::Meta { tag, result, .. } => {
                let status = result.err().unwrap_or(raid_core::action::IoStatus::Ok);
                manager.done(now, MetaTag(tag), status);
            }
            ControlMail::Published(_) | ControlMail::Quiesced(_) => {}
        }
        self.full_pump();
    }

    /// Does what the manager says.
    fn full_pump(&mut self) {
        while let Some(action) = self.full().manager.as_mut().and_then(Manager::next_action) {
            let meta = |tag: MetaTag, bytes| Owner::Meta { tag: tag.0, bytes };
            match action {
                ManagerAction::Read { tag, device, offset, len } => {
                    self.start_io(meta(tag, Vec::new()), device.0.into(), META, Kind::Read, offset, len.into());
                }
                ManagerAction::Write { tag, device, offset, bytes } => {
                    let len = bytes.len() as u64;
                    let kind = Kind::Write { fua: false };
                    self.start_io(meta(tag, bytes), device.0.into(), META, kind, offset, len);
                }
                ManagerAction::Flush { tag, device } => {
                    self.start_io(meta(tag, Vec::new()), device.0.into(), META, Kind::Flush, 0, 0);
                }
                ManagerAction::Zero { tag, device, offset, len } => {
                    let kind = Kind::Zero { fua: false };
                    self.start_io(meta(tag, Vec::new()), device.0.into(), META, kind, offset, len);
                }
                ManagerAction::Publish { tag, view, devices } => {
                    self.full().broadcasts.insert(tag.0, true);
                    let devices = devices.iter().map(|d| d.map(|d| usize::from(d.0))).collect();
                    self.publish(tag.0, view, devices);
                }
                ManagerAction::RegionsChanged { .. } => {
                    for lane in 0..self.lanes.len() {
                        self.send(CONTROL, lane, Ev::ToLane(lane, LaneMail::RegionsChanged));
                    }
                }
                ManagerAction::Quiesce { tag } => {
                    self.full().broadcasts.insert(tag.0, false);
                    self.broadcasts.insert(tag.0, self.lanes.len());
                    for lane in 0..self.lanes.len() {
                        self.send(CONTROL, lane, Ev::ToLane(lane, LaneMail::Quiesce(tag.0)));
                    }
                }
                ManagerAction::Maintain { tag, volume, group, stripe, rebuild } => {
                    let op = if rebuild { Op::Rebuild { group, stripe } } else { Op::Resync { group, stripe } };
                    let lane = self.lane_of(self.case.geometry.shard(group, stripe));
                    let request = Request { tag: ReqTag(HOST | tag.0), volume, op };
                    let skipped = match self.broken {
                        Some(Break::SkipResync) => !rebuild,
                        Some(Break::PartResync) => !rebuild && stripe % 3 == 1,
                        Some(Break::SkipRebuild) => rebuild && stripe % 3 == 1,
                        _ => false,
                    };
                    if skipped {
                        let mail = ControlMail::Maintained(tag.0, ReqStatus::Ok);
                        self.send(lane, CONTROL, Ev::ToControl(mail));
                        continue;
                    }
                    self.send(CONTROL, lane, Ev::ToLane(lane, LaneMail::Submit(request)));
                }
                ManagerAction::Reply { tag, result } => self.full_reply(tag.0, result),
                ManagerAction::Notice(notice) => {
                    self.trace.note(self.clock.now(), || format!("notice {}: {}", notice.code, notice.message));
                    if matches!(notice.code, "member-failed" | "member-missing") {
                        self.stats.failures += 1;
                        self.full_later(Step::Bring);
                    }
                }
            }
        }
        let deadline = self.full().manager.as_ref().and_then(Manager::next_deadline);
        if let Some(at) = deadline
            && self.full().tick.is_none_or(|t| at < t)
        {
            self.full().tick = Some(at);
            self.clock.at(at, Ev::Full(Step::Tick));
        }
    }

    fn full_later(&mut self, step: Step) {
        self.full().due += 1;
        let delay = self.rng.range(10_000, 500_000);
        self.clock.after(delay, Ev::Full(step));
    }

    pub(super) fn full_step(&mut self, step: Step) {
        let now = self.clock.now();
        match step {
            Step::Tick => {
                self.full().tick = None;
                if let Some(manager) = &mut self.full().manager {
                    manager.tick(now);
                }
                self.full_pump();
            }
            Step::Bring => {
                self.full().due -= 1;
                self.bring();
            }
            Step::Operate => {
                self.full().due -= 1;
                self.operate();
            }
            Step::Crash => {
                self.full().crash_due = false;
                if self.stage == Stage::Load {
                    self.crash();
                }
            }
        }
    }

    /// Somebody brings a new device where one is wanted.
    fn bring(&mut self) {
        let failed: Vec<u16> = (0..self.view.members.len() as u16)
            .filter(|m| self.view.members[usize::from(*m)] == MemberState::Failed)
            .collect();
        let spare = self.view.members.contains(&MemberState::Spare);
        if failed.is_empty()
            || spare
            || self.full().spares == 0
            || self.full().stopping
            || self.full().manager.is_none()
        {
            return;
        }
        self.full().spares -= 1;
        let device = self.used_drive();
        let uuid = self.full().uuid();
        let member = MemberId(self.rng.pick(&failed));
        let command = if self.rng.percent(50) {
            Command::AddMember { device, uuid, wipe: true }
        } else {
            Command::ReplaceMember { member, device: Some(device), uuid, wipe: true }
        };
        self.full_command(Asked::Bring, command);
    }

    /// A new drive. It was used before: what a rebuild leaves out must show. Foreign signatures are not what this is about.
    fn used_drive(&mut self) -> DeviceInfo {
        let size = self.full().size;
        let mut drive = Drive::new(size, self.case.cache);
        let mut at = 1 << 20;
        let junk = vec![0x99; 65536];
        while at + junk.len() as u64 <= size {
            drive.apply(0, at, &junk);
            at += junk.len() as u64;
        }
        drive.complete(0, true, 0);
        self.drives.push(drive);
        info(self.drives.len() - 1, size)
    }

    /// An operator fails a member.
    pub(super) fn full_fail(&mut self, member: u16) {
        if self.full().manager.is_some() && !self.full().stopping {
            self.full_command(Asked::Fail, Command::FailMember(MemberId(member)));
        }
    }

    fn full_reply(&mut self, tag: u64, result: Result<Answer, ManageError>) {
        self.progress = self.clock.events();
        self.trace.note(self.clock.now(), || format!("reply to command {tag}: {result:?}"));
        let Some(asked) = self.full().asked.remove(&tag) else {
            return self.fail(format!("command {tag} was answered twice"));
        };
        match (asked, result) {
            (Asked::Create, Ok(_)) => self.create_volume(),
            (Asked::Volume, Ok(Answer::Volume(VolumeId(id)))) => {
                self.volume = VolumeId(id);
                if self.cut.is_some() { self.cut_created() } else { self.full_round() }
            }
            (Asked::Assemble { .. }, answer) if self.cut.is_some() => self.cut_assembled(answer.err()),
            (Asked::Fail, Ok(_)) if self.cut.is_some() => self.cut_degrade(),
            (Asked::Assemble { .. }, Ok(_)) => {
                self.full().unverifiable |= self.unverifiable_regions();
                self.full_round();
            }
            (Asked::Assemble { may_refuse: true }, Err(e)) if e.kind == ErrorKind::FailedPrecondition => {
                self.stage = Stage::Over;
            }
            (Asked::Stop, Ok(_)) => self.stopped(),
            (Asked::Stop, Err(_)) if self.havoc() => self.stage = Stage::Over,
            (Asked::Operate, Ok(Answer::Volume(VolumeId(id)))) => self.full().others.push(id),
            (Asked::Operate, Err(e)) if e.kind == ErrorKind::Corrupt => self.fail(format!("corrupt: {e}")),
            (Asked::Bring | Asked::Fail | Asked::Operate, Ok(_)) | (Asked::Operate, Err(_)) => {}
            // The member may have been removed meanwhile, or there is too little redundancy left to fail it.
            (Asked::Bring | Asked::Fail, Err(e))
                if matches!(e.kind, ErrorKind::FailedPrecondition | ErrorKind::NotFound) || self.havoc() => {}
            (asked, Err(e)) => self.fail(format!("{asked:?} was refused: {e}")),
            (asked, Ok(answer)) => self.fail(format!("{asked:?} was answered with {answer:?}")),
        }
    }

    /// A group with parity has lost a member and has regions whose parity may not match: what is lost there is lost, unless
    /// it is written again.
    fn unverifiable_regions(&self) -> bool {
        let Some(v) = self.view.volume(self.volume).filter(|v| v.geometry.parities() > 0) else { return false };
        let bands = v.geometry.bands();
        v.groups.iter().enumerate().any(|(g, group)| {
            let first = |band| band * v.geometry.band_stripes();
            group.slots.iter().any(|s| s.state != SlotState::InSync)
                && (0..bands).any(|b| !v.region(g as u32, first(b)).verified())
        })
    }

    /// Begins a round, or goes on with it after a crash. The process may die in it; not while blocks are unreadable, which
    /// a volume that is not resynced cannot make good.
    fn full_round(&mut self) {
        self.begin_round();
        let may = matches!(self.current_round(), Round::Calm | Round::Members) && self.case.track_dirty();
        if may && self.full().crashes < 3 && self.rng.percent(45) {
            self.full().crash_due = true;
            let delay = self.rng.range(20_000, 1_500_000);
            self.clock.after(delay, Ev::Full(Step::Crash));
        }
        for _ in 0..self.rng.below(4) {
            self.full().due += 1;
            let delay = self.rng.range(10_000, 3_000_000);
            self.clock.after(delay, Ev::Full(Step::Operate));
        }
    }

    /// A command at a random moment. It may be refused; the volume must not suffer either way.
    fn operate(&mut self) {
        if self.full().stopping || self.full().manager.is_none() {
            return;
        }
        let members = self.view.members.len() as u64;
        let member = MemberId(self.rng.below(members + 1) as u16);
        let command = match self.rng.below(5) {
            0 if self.full().spares > 0 => {
                self.full().spares -= 1;
                let device = self.used_drive();
                let uuid = self.full().uuid();
                Command::AddMember { device, uuid, wipe: true }
            }
            1 => Command::RemoveMember(member),
            2 => {
                self.full().cancelled = true;
                Command::CancelOperation(self.rng.range(1, 12))
            }
            3 => {
                let uuid = self.full().uuid();
                let name = format!("other-{}", u16::from_le_bytes([uuid[0], uuid[1]]));
                // It must survive what the volume under test survives, or its loss would rightly refuse the assembly.
                let level = if self.case.geometry.level == Level::Raid0 { Level::Raid0 } else { Level::Raid1 };
                let (chunk, size) = (65536, Some(65536));
                let (block_size, policy) = (512, Policy::Resync);
                Command::CreateVolume(VolumeSpec { name, uuid, level, width: None, chunk, size, block_size, policy })
            }
            _ => {
                let Some(volume) = self.full().others.pop() else { return };
                Command::DeleteVolume(VolumeId(volume))
            }
        };
        self.full_command(Asked::Operate, command);
    }

    pub(super) fn full_between_rounds(&mut self) {
        self.full().crashes = 0;
        if self.rng.percent(50) {
            self.stage = Stage::Starting;
            self.full().stopping = true;
            self.full_command(Asked::Stop, Command::Stop);
        } else {
            self.full_round();
        }
    }

    /// The array was stopped cleanly: even the power may fail now.
    fn stopped(&mut self) {
        let power = self.rng.percent(50);
        self.let_go(power);
        self.oracle.crash(false);
        if power {
            // Nothing may come back, so the model is not told.
            self.oracle.flushed(u64::MAX);
        }
        self.assemble(true);
    }

    fn crash(&mut self) {
        self.stats.crashes += 1;
        self.full().crashes += 1;
        let power = self.case.cache && self.rng.percent(50);
        self.trace.note(self.clock.now(), || format!("CRASH, {}", if power { "power lost" } else { "drives go on" }));
        self.let_go(power);
        self.oracle.crash(power);
        // What nobody noticed yet is over: a member lost while a mirror is not resynced may change what is read from it.
        for drive in &mut self.drives {
            (drive.faults.fail_writes, drive.faults.full) = (0, false);
            drive.faults.bad.clear();
        }
        self.assemble(false);
    }

    /// The process is gone.
    fn let_go(&mut self, power: bool) {
        self.abandon_ios();
        if power {
            for drive in &mut self.drives {
                drive.cut_power(&mut self.rng);
            }
        }
        self.clock.clear();
        self.front.crash();
        self.forget_mail();
        self.forget_faults();
        let full = self.full();
        full.cancelled = false;
        (full.manager, full.due, full.crash_due, full.tick, full.stopping) = (None, 0, false, None, false);
        full.asked.clear();
        full.broadcasts.clear();
        self.make_lanes();
        self.stage = Stage::Starting;
    }

    /// Assembles the array from every drive that answers, members of old among them; sometimes one is left out.
    fn assemble(&mut self, clean: bool) {
        let degraded = self
            .view
            .volume(self.volume)
            .is_none_or(|v| v.groups.iter().any(|g| g.slots.iter().any(|s| s.state != SlotState::InSync)));
        let parity = matches!(self.case.geometry.level, Level::Raid5 | Level::Raid6);
        let mut drives: Vec<usize> = (0..self.drives.len())
            .filter(|d| self.drives[*d].faults.dead.is_none() && superblock(&self.drives[*d]).is_some())
            .collect();
        let whole = self.drives.iter().all(|d| d.faults.dead.is_none());
        // Another volume without redundancy may lie on any member.
        let spared = self.case.geometry.level != Level::Raid0 || self.view.volumes.len() == 1;
        // Without its resync a volume cannot do without a member, and is rightly refused.
        if clean && spared && !self.resyncing() && self.rng.percent(30) {
            let out = drives[self.rng.below(drives.len() as u64) as usize];
            if self.bearable(out) && self.devices.contains(&Some(out)) {
                drives.retain(|d| *d != out);
            }
        }
        self.rng.shuffle(&mut drives);
        // Degraded and dirty is refused, and so is too little; both are right, and the end of the case.
        let members = self.current_round() == Round::Members;
        let may_refuse = self.havoc() || (!clean && parity && (degraded || !whole || members));
        self.assemble_drives(drives, may_refuse);
    }

    fn assemble_drives(&mut self, drives: Vec<usize>, may_refuse: bool) {
        let size = self.full().size;
        let devices = drives.into_iter().map(|d| info(d, size)).collect();
        let (now, config) = (self.clock.now(), self.tuning());
        let history = self.full().uuid();
        let tag = self.full().command(Asked::Assemble { may_refuse });
        self.full().manager = Some(Manager::assemble(now, config, tag, history, devices, false));
        self.full_pump();
    }

    /// Assembles the array after a cut of the cuts campaign. `uuid` makes its history another one than any before.
    pub(super) fn assemble_from(&mut self, drives: Vec<usize>, uuid: u64) {
        self.full().uuid = uuid;
        self.assemble_drives(drives, false);
    }

    /// The manager has nothing more to say; the lanes go on.
    pub(super) fn dismiss_manager(&mut self) {
        self.full().manager = None;
    }

    /// The drives behind a view's members, where member and drive have the same number.
    pub(super) fn live_devices(&self, view: &raid_core::view::View) -> Vec<Option<usize>> {
        let live = |m: &MemberState| matches!(m, MemberState::Active | MemberState::Spare);
        view.members.iter().enumerate().map(|(m, state)| live(state).then_some(m)).collect()
    }

    /// The newest configuration on the drives says dirty, whatever the view says: so it is while the manager prepares to
    /// clear the mark.
    pub(super) fn mark_on_drives(&self) -> bool {
        let mut newest: Option<ondisk::Config> = None;
        for drive in self.devices.iter().flatten().map(|d| &self.drives[*d]) {
            let Some(sb) = superblock(drive) else { continue };
            for slot in 0..2 {
                let mut bytes = vec![0; sb.slot_len as usize];
                drive.read(sb.slot_offset + slot * u64::from(sb.slot_len), &mut bytes);
                if let Ok(config) = ondisk::decode_config(&bytes)
                    && newest.as_ref().is_none_or(|n| n.generation < config.generation)
                {
                    newest = Some(config);
                }
            }
        }
        newest.is_some_and(|c| c.volumes.iter().any(|v| v.id == self.volume.0 && v.dirty))
    }

    /// Somebody cancelled an operation; nobody takes it up again before the next assembly or change of members.
    pub(super) fn resync_was_cancelled(&self) -> bool {
        matches!(&self.control, Control::Full(full) if full.cancelled)
    }

    /// At rest no spare stands idle while a slot is missing, and no resync was forgotten.
    pub(super) fn full_check_rest(&mut self) {
        let view = self.view.clone();
        let Some(volume) = view.volume(self.volume).filter(|v| v.online) else { return };
        let whole = volume.groups.iter().all(|g| g.slots.iter().all(|s| s.state == SlotState::InSync));
        let spare = view.members.contains(&MemberState::Spare);
        if !whole && spare && !self.havoc() && !self.full().cancelled && !self.unverifiable_regions() {
            self.fail(format!("degraded at rest, with a spare at hand: {}", super::trace::view(&view)));
        }
    }
}
