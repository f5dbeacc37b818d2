//! The simulator's own manager, for the engine campaign: it records failures, sets dirty marks, brings replacements and
//! rebuilds them, each step after a delay, and publishes views as the real one does.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use raid_core::action::{Event, MemberId, Op, ReqStatus, ReqTag, Request, VolumeId};
use raid_core::view::{GroupView, MemberState, SlotState, SlotView, View, VolumeView};

use super::faults::survives;
use super::{CONTROL, Control, ControlMail, Ev, HOST, LaneMail, Stage, World};
use crate::breaks::Break;
use crate::case::Case;
use crate::drive::Drive;
use crate::pattern::{self, SECTOR};
use crate::rng::Rng;

/// Where extents begin on a member.
const DATA_OFFSET: u64 = 8192;
/// Values that a volume holds from the start if it starts unsynced: one for each copy.
const INITIAL: u32 = 1;

/// A step that was scheduled.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// A member's failure is durable on the others.
    Failed(u16),
    /// The dirty mark is durable.
    Dirty,
    /// Try to clear the dirty mark.
    Clean,
    /// A replacement is at hand.
    Replace,
    /// Begin a rebuild or a resync if one is needed.
    Work,
}

enum Then {
    Run,
    Quiesce,
    Nothing,
}

struct Job {
    rebuild: bool,
    groups: VecDeque<u32>,
    group: u32,
    next: u32,
    in_flight: u32,
    failed: bool,
    /// Some group was left as it was.
    incomplete: bool,
    ready: bool,
}

/// See the module's head.
pub(super) struct Mini {
    view: View,
    recorded: BTreeSet<u16>,
    failing: BTreeSet<u16>,
    /// The dirty mark as a crash would find it.
    pub(super) durable_dirty: bool,
    dirty_due: bool,
    cleaning: bool,
    quiesce: Option<u64>,
    spares: u32,
    due: u32,
    after: BTreeMap<u64, Then>,
    next_tag: u64,
    job: Option<Job>,
    /// A resync did not get through: it is not tried again.
    gave_up: bool,
    steps: BTreeMap<u64, ()>,
}

impl Mini {
    pub(super) fn new(case: &Case) -> Mini {
        let g = case.geometry;
        let members = g.width + case.extra;
        let slot = |group: u32, i: u16| SlotView {
            member: MemberId(((u32::from(i) + group) % u32::from(members)) as u16),
            offset: DATA_OFFSET + u64::from(group) * g.extent,
            state: SlotState::InSync,
        };
        let group = |n| GroupView { slots: (0..g.width).map(|i| slot(n, i)).collect(), synced: !case.unsynced };
        let volume = VolumeView {
            id: VolumeId(0),
            geometry: g,
            size: case.volume_bytes(),
            track_dirty: case.track_dirty(),
            dirty: case.unsynced,
            online: true,
            regions: None,
            groups: (0..case.groups).map(group).collect(),
        };
        let members = vec![MemberState::Active; usize::from(members)];
        Mini {
            view: View { generation: 0, members, volumes: vec![volume] },
            recorded: BTreeSet::new(),
            failing: BTreeSet::new(),
            durable_dirty: case.unsynced,
            dirty_due: false,
            cleaning: false,
            quiesce: None,
            spares: case.spares,
            due: 0,
            after: BTreeMap::new(),
            next_tag: 1,
            job: None,
            gave_up: false,
            steps: BTreeMap::new(),
        }
    }

    pub(super) fn at_rest(&self) -> bool {
        self.due == 0 && self.job.is_none() && self.steps.is_empty() && !self.dirty_due
    }

    fn slots(&self) -> impl Iterator<Item = &SlotView> {
        self.view.volumes[0].groups.iter().flat_map(|g| &g.slots)
    }
}

impl World {
    fn mini(&mut self) -> &mut Mini {
        match &mut self.control {
            Control::Mini(mini) => mini,
            Control::Full(_) => unreachable!("only the engine campaign has the simulator's manager"),
        }
    }

    pub(super) fn mini_begin(&mut self) {
        let members = self.case.geometry.width + self.case.extra;
        for _ in 0..members {
            let drive = self.new_drive();
            self.drives.push(drive);
        }
        self.make_lanes();
        if self.case.unsynced {
            self.fill_unsynced();
        }
        self.mini_publish(Then::Nothing);
        self.mini_later(Step::Work);
    }

    fn new_drive(&self) -> Drive {
        let size = DATA_OFFSET + self.case.geometry.extent * u64::from(self.case.groups) + 4096;
        Drive::new(size, self.case.cache)
    }

    /// Contents after an unclean stop: parity is garbage, and each further copy has a value of its own.
    fn fill_unsynced(&mut self) {
        let view = self.mini().view.clone();
        let volume = &view.volumes[0];
        let g = volume.geometry;
        let chunk = u64::from(g.chunk);
        for (n, group) in volume.groups.iter().enumerate() {
            for stripe in 0..g.stripes() {
                let base = n as u64 * g.group_bytes() + u64::from(stripe) * g.stripe_bytes();
                for column in 0..g.columns() {
                    for (copy, slot) in g.slots(stripe, column).iter().enumerate() {
                        let mut bytes = vec![0x77; g.chunk as usize];
                        if column < g.data_columns() {
                            let sector = (base + u64::from(column) * chunk) / SECTOR as u64;
                            pattern::fill_all(&mut bytes, INITIAL + copy as u32, sector);
                        }
                        let place = group.slots[usize::from(slot)];
                        let drive = &mut self.drives[usize::from(place.member.0)];
                        drive.apply(0, place.offset + u64::from(stripe) * chunk, &bytes);
                    }
                }
            }
        }
        // The first copy counts, unless it is lost before the others are made equal.
        let last = if self.havoc() { INITIAL + u32::from(g.copies()) - 1 } else { INITIAL };
        for sector in 0..self.oracle.sectors() {
            self.oracle.set_initial(sector, INITIAL..=last);
        }
        for drive in &mut self.drives {
            drive.complete(0, true, 0);
        }
    }

    fn mini_publish(&mut self, then: Then) {
        let mini = self.mini();
        mini.view.generation += 1;
        let tag = mini.next_tag;
        mini.next_tag += 1;
        mini.after.insert(tag, then);
        let gone = |s: &MemberState| matches!(s, MemberState::Failed | MemberState::Removed);
        let devices = mini.view.members.iter().enumerate().map(|(m, s)| (!gone(s)).then_some(m)).collect();
        let view = Arc::new(mini.view.clone());
        self.publish(tag, view, devices);
    }

    fn mini_later(&mut self, step: Step) {
        let delay = self.rng.range(5_000, 300_000);
        self.mini().due += 1;
        self.clock.after(delay, Ev::Mini(step));
    }

    /// What a member missed counts only once its failure is durable on the others.
    pub(super) fn failure_recorded(&self, member: u16) -> bool {
        match &self.control {
            Control::Mini(mini) => mini.recorded.contains(&member),
            Control::Full(_) => {
                !matches!(self.view.members.get(usize::from(member)), Some(MemberState::Active | MemberState::Spare))
            }
        }
    }

    /// A member is to be failed: an engine said so, or an operator.
    pub(super) fn mini_fail(&mut self, member: u16) {
        let early = self.broken == Some(Break::EarlyFailure);
        let mini = self.mini();
        if mini.view.members[usize::from(member)] != MemberState::Active || !mini.failing.insert(member) {
            return;
        }
        self.stats.failures += 1;
        if early {
            self.mini_mark_failed(member);
            self.mini_publish(Then::Nothing);
        }
        self.mini_later(Step::Failed(member));
    }

    fn mini_mark_failed(&mut self, member: u16) {
        let mini = self.mini();
        mini.view.members[usize::from(member)] = MemberState::Failed;
        let volume = &mut mini.view.volumes[0];
        for group in &mut volume.groups {
            group.slots.iter_mut().filter(|s| s.member.0 == member).for_each(|s| s.state = SlotState::Missing);
            let readable = group.slots.iter().map(|s| s.state == SlotState::InSync);
            volume.online &= survives(&volume.geometry, &readable.collect::<Vec<_>>());
        }
    }

    pub(super) fn mini_mail(&mut self, mail: ControlMail) {
        match mail {
            ControlMail::Event(Event::MemberFailed { member, .. }) => self.mini_fail(member.0),
            // The volumes of this campaign have no bitmap.
            ControlMail::Event(Event::RegionNeeded { .. } | Event::RegionZeroed { .. }) => {}
            ControlMail::Event(Event::DirtyNeeded { .. }) => {
                let early = self.broken == Some(Break::EarlyDirty);
                let mini = self.mini();
                if mini.cleaning && mini.durable_dirty {
                    // On the drives the mark was never gone.
                    mini.cleaning = false;
                    mini.quiesce = None;
                    mini.view.volumes[0].dirty = true;
                    self.mini_publish(Then::Nothing);
                } else if !mini.view.volumes[0].dirty && !std::mem::replace(&mut mini.dirty_due, true) {
                    if early {
                        mini.view.volumes[0].dirty = true;
                        self.mini_publish(Then::Nothing);
                    }
                    self.mini_later(Step::Dirty);
                }
            }
            ControlMail::Event(Event::ReadRepaired { .. }) => self.stats.repairs += 1,
            ControlMail::Event(Event::DataLost { offset, .. }) => {
                if !self.havoc() {
                    self.fail(format!("data lost at {offset} although redundancy covers every fault"));
                }
            }
            ControlMail::Published(tag) => {
                if !self.answered(tag) {
                    return;
                }
                if self.stage == Stage::Starting {
                    self.begin_round();
                }
                match self.mini().after.remove(&tag) {
                    Some(Then::Run) => {
                        if let Some(job) = &mut self.mini().job {
                            job.ready = true;
                        }
                        self.mini_pump();
                    }
                    Some(Then::Quiesce) if self.mini().cleaning => {
                        let mini = self.mini();
                        let tag = mini.next_tag;
                        mini.next_tag += 1;
                        mini.quiesce = Some(tag);
                        self.broadcasts.insert(tag, self.lanes.len());
                        for lane in 0..self.lanes.len() {
                            self.send(CONTROL, lane, Ev::ToLane(lane, LaneMail::Quiesce(tag)));
                        }
                    }
                    _ => {}
                }
            }
            ControlMail::Quiesced(tag) => {
                if self.answered(tag) && self.mini().quiesce == Some(tag) {
                    let mini = self.mini();
                    (mini.quiesce, mini.cleaning) = (None, false);
                    mini.durable_dirty = mini.dirty_due;
                }
            }
            ControlMail::Maintained(tag, status) => self.mini_maintained(tag, status),
            ControlMail::Meta { .. } => {}
        }
    }

    pub(super) fn mini_step(&mut self, step: Step) {
        self.mini().due -= 1;
        match step {
            Step::Failed(member) => {
                self.mini().recorded.insert(member);
                self.mini_mark_failed(member);
                self.mini_publish(Then::Nothing);
                if self.mini().spares > 0 {
                    self.mini_later(Step::Replace);
                }
            }
            Step::Dirty => {
                let mini = self.mini();
                (mini.dirty_due, mini.durable_dirty) = (false, true);
                mini.view.volumes[0].dirty = true;
                self.mini_publish(Then::Nothing);
                if self.rng.percent(50) {
                    self.mini_later(Step::Clean);
                }
            }
            Step::Clean => {
                let mini = self.mini();
                let volume = &mut mini.view.volumes[0];
                if volume.dirty && !mini.dirty_due && volume.groups.iter().all(|g| g.synced) {
                    volume.dirty = false;
                    mini.cleaning = true;
                    self.mini_publish(Then::Quiesce);
                }
            }
            Step::Replace => self.mini_replace(),
            Step::Work => self.mini_work(),
        }
    }

    /// A new member takes the place of every missing slot that has none.
    fn mini_replace(&mut self) {
        let mini = self.mini();
        if mini.job.is_some() {
            return self.mini_later(Step::Replace);
        }
        if mini.spares == 0 || !mini.view.volumes[0].online || mini.slots().all(|s| s.state != SlotState::Missing) {
            return;
        }
        mini.spares -= 1;
        let member = MemberId(mini.view.members.len() as u16);
        mini.view.members.push(MemberState::Active);
        let mut left = BTreeSet::new();
        for group in &mut mini.view.volumes[0].groups {
            // One slot of each group, so that no member has two of them.
            let mut taken = false;
            for slot in group.slots.iter_mut().filter(|s| s.state == SlotState::Missing) {
                if std::mem::replace(&mut taken, true) {
                    left.insert(slot.member);
                    continue;
                }
                (slot.member, slot.state) = (member, SlotState::Rebuilding);
            }
        }
        let more = !left.is_empty() && mini.spares > 0;
        let mut drive = self.new_drive();
        self.fill_junk(&mut drive);
        self.drives.push(drive);
        if more {
            self.mini_later(Step::Replace);
        }
        self.mini_work();
    }

    /// A replacement holds something: what the rebuild leaves out must show.
    fn fill_junk(&mut self, drive: &mut Drive) {
        let junk = vec![0x99; 65536];
        let mut at = DATA_OFFSET;
        while at < drive.size() {
            let n = (drive.size() - at).min(junk.len() as u64);
            drive.apply(0, at, &junk[..n as usize]);
            at += n;
        }
        drive.complete(0, true, 0);
    }

    /// Begins the rebuild or resync that is needed.
    fn mini_work(&mut self) {
        let mini = self.mini();
        if mini.job.is_some() || !mini.view.volumes[0].online {
            return;
        }
        let groups = &mini.view.volumes[0].groups;
        let wanted = |f: &dyn Fn(&GroupView) -> bool| -> VecDeque<u32> {
            (0..groups.len() as u32).filter(|g| f(&groups[*g as usize])).collect()
        };
        let gave_up = mini.gave_up;
        let resync = wanted(&|g| !g.synced && !gave_up);
        let rebuild = wanted(&|g| (g.synced || gave_up) && g.slots.iter().any(|s| s.state == SlotState::Rebuilding));
        let (rebuild, groups) = if resync.is_empty() { (true, rebuild) } else { (false, resync) };
        if groups.is_empty() {
            return;
        }
        mini.job = Some(Job {
            rebuild,
            groups,
            group: 0,
            next: u32::MAX,
            in_flight: 0,
            failed: false,
            incomplete: false,
            ready: false,
        });
        self.mini_publish(Then::Run);
    }

    /// Orders rebuild or resync steps up to a window.
    fn mini_pump(&mut self) {
        let geometry = self.case.geometry;
        loop {
            let window = 4;
            let skip = self.broken == Some(Break::SkipRebuild);
            let mini = self.mini();
            let online = mini.view.volumes[0].online;
            let Some(job) = mini.job.as_mut().filter(|j| j.ready) else { return };
            if job.in_flight == 0 && (job.next >= geometry.stripes() || !online) {
                // Between two groups.
                if job.next != u32::MAX {
                    let (rebuild, group, failed) = (job.rebuild, job.group as usize, job.failed);
                    job.incomplete |= failed;
                    if !failed && online {
                        let group = &mut mini.view.volumes[0].groups[group];
                        if rebuild {
                            let slots = group.slots.iter_mut().filter(|s| s.state == SlotState::Rebuilding);
                            slots.for_each(|s| s.state = SlotState::InSync);
                        } else {
                            group.synced = true;
                        }
                        self.mini_publish(Then::Nothing);
                    }
                }
                let mini = self.mini();
                let Some(job) = &mut mini.job else { return };
                match job.groups.pop_front().filter(|_| online) {
                    Some(group) => (job.group, job.next, job.failed) = (group, 0, false),
                    None => {
                        let resynced = !job.rebuild && online;
                        mini.gave_up |= resynced && job.incomplete;
                        mini.job = None;
                        if resynced {
                            self.mini_later(Step::Work);
                        }
                        return;
                    }
                }
                continue;
            }
            if job.next >= geometry.stripes() || job.in_flight >= window || !online {
                return;
            }
            let (group, stripe) = (job.group, job.next);
            job.next += 1;
            if skip && job.rebuild && stripe % 3 == 1 {
                continue;
            }
            let op = if job.rebuild { Op::Rebuild { group, stripe } } else { Op::Resync { group, stripe } };
            job.in_flight += 1;
            let tag = mini.next_tag;
            mini.next_tag += 1;
            mini.steps.insert(tag, ());
            let lane = self.lane_of(geometry.shard(group, stripe));
            let request = Request { tag: ReqTag(HOST | tag), volume: VolumeId(0), op };
            let skipped = match self.broken {
                Some(Break::SkipResync) => matches!(request.op, Op::Resync { .. }),
                Some(Break::PartResync) => matches!(request.op, Op::Resync { stripe, .. } if stripe % 3 == 1),
                _ => false,
            };
            if skipped {
                self.send(lane, CONTROL, Ev::ToControl(ControlMail::Maintained(tag, ReqStatus::Ok)));
                continue;
            }
            self.send(CONTROL, lane, Ev::ToLane(lane, LaneMail::Submit(request)));
        }
    }

    fn mini_maintained(&mut self, tag: u64, status: ReqStatus) {
        self.progress = self.clock.events();
        self.stats.maintained += 1;
        if self.mini().steps.remove(&tag).is_none() {
            return self.fail(format!("maintenance step {tag} was answered twice"));
        }
        let Some(job) = &mut self.mini().job else { return };
        job.in_flight -= 1;
        job.failed |= status != ReqStatus::Ok;
        let (rebuild, group) = (job.rebuild, job.group as usize);
        let rebuilding =
            self.mini().view.volumes[0].groups[group].slots.iter().any(|s| s.state == SlotState::Rebuilding);
        if status != ReqStatus::Ok && !self.havoc() && (rebuilding || !rebuild) && self.mini().failing.is_empty() {
            self.fail(format!("maintenance of group {group} failed with {status:?}, and no fault explains it"));
        }
        self.mini_pump();
    }

    /// The members that an operator could fail now.
    pub(super) fn active_members(&self) -> Vec<u16> {
        let of = |m: &(usize, &MemberState)| *m.1 == MemberState::Active;
        self.view.members.iter().enumerate().filter(of).map(|(m, _)| m as u16).collect()
    }

    /// A random moment's reach, for faults.
    pub(super) fn soon(rng: &mut Rng) -> u64 {
        rng.range(1, 60_000)
    }
}
