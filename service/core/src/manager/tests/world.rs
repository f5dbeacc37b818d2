//! Simulated devices with a volatile cache, and engines that answer what they are told to.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::action::{Event, IoStatus, ReqStatus};
use crate::geometry::Level;
use crate::manager::*;
use crate::units::Tick;
use crate::view::View;

pub const MIB: u64 = 1 << 20;
pub const SIZE: u64 = 32 * MIB;

/// What a rebuilt stripe's first block holds.
pub const REBUILT: u8 = 0xAB;

/// Bytes of a device, in blocks; what is not there is zero.
type Blocks = BTreeMap<u64, Vec<u8>>;

#[derive(Clone, Debug)]
enum Change {
    Write(u64, Vec<u8>),
    Zero(u64, u64),
}

fn apply(blocks: &mut Blocks, change: &Change) {
    match change {
        Change::Write(offset, bytes) => {
            for (i, block) in bytes.chunks(4096).enumerate() {
                blocks.insert(offset / 4096 + i as u64, block.to_vec());
            }
        }
        Change::Zero(offset, len) => {
            let gone: Vec<u64> = blocks.range(offset / 4096..(offset + len) / 4096).map(|(b, _)| *b).collect();
            for block in gone {
                blocks.remove(&block);
            }
        }
    }
}

#[derive(Clone, Default, Debug)]
pub struct Disk {
    durable: Blocks,
    current: Blocks,
    volatile: Vec<Change>,
    /// What it answers to everything but reads, if not `Ok`.
    pub broken: Option<IoStatus>,
    /// Reads fail.
    pub unreadable: bool,
    /// Changes ordered so far.
    pub writes: u64,
}

impl Disk {
    pub fn read(&self, offset: u64, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        for (block, content) in self.current.range(offset / 4096..(offset + len) / 4096) {
            let at = (block * 4096 - offset) as usize;
            bytes[at..at + 4096].copy_from_slice(content);
        }
        bytes
    }

    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        let change = Change::Write(offset, bytes.to_vec());
        apply(&mut self.durable, &change);
        apply(&mut self.current, &change);
    }

    pub fn corrupt(&mut self, offset: u64) {
        let mut block = self.read(offset / 4096 * 4096, 4096);
        block[(offset % 4096) as usize] ^= 0x40;
        self.write(offset / 4096 * 4096, &block);
    }

    fn flush(&mut self) {
        for change in std::mem::take(&mut self.volatile) {
            apply(&mut self.durable, &change);
        }
    }

    /// Power is lost: of what was not flushed, a subset by `mode` is kept. 0 none, 1 all, others by their bits, block by block.
    pub fn crash(&mut self, mode: u64) {
        self.current = self.durable.clone();
        let mut dice = mode.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut keep = || {
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            mode == 1 || mode > 1 && dice & 4 == 0
        };
        for change in std::mem::take(&mut self.volatile) {
            match change {
                Change::Write(offset, bytes) => {
                    for (i, block) in bytes.chunks(4096).enumerate() {
                        if keep() {
                            apply(&mut self.current, &Change::Write(offset + i as u64 * 4096, block.to_vec()));
                        }
                    }
                }
                zero @ Change::Zero(..) if keep() => apply(&mut self.current, &zero),
                Change::Zero(..) => {}
            }
        }
        self.durable = self.current.clone();
    }
}

/// What engines and devices have been asked and have not answered.
#[derive(Debug)]
enum Due {
    Read(MetaTag, Result<Vec<u8>, IoStatus>),
    Done(MetaTag, IoStatus),
    Published(MetaTag),
    Quiesced(MetaTag),
    Maintained(MetaTag, ReqStatus),
}

pub struct World {
    pub disks: BTreeMap<u16, Disk>,
    pub manager: Manager,
    pub now: Tick,
    pub view: Arc<View>,
    /// The devices behind the members, as last published.
    pub behind: Vec<Option<DeviceId>>,
    /// Every view, in order.
    pub views: Vec<Arc<View>>,
    pub replies: BTreeMap<u64, Result<Answer, ManageError>>,
    pub notices: Vec<Notice>,
    /// Stripes ordered: volume, group, stripe, rebuild.
    pub stripes: Vec<(u32, u32, u32, bool)>,
    /// Answers that are held back until asked for.
    pub hold_quiesce: bool,
    pub hold_stripes: bool,
    pub stripe_status: ReqStatus,
    /// How often engines were told to look at their regions again.
    pub nudges: u64,
    held: Vec<Due>,
    due: VecDeque<Due>,
    /// Answers given so far.
    pub events: u64,
    next_command: u64,
}

pub fn uuid(n: u8) -> Uuid {
    let mut id = [n; 16];
    id[0] = n.wrapping_mul(17);
    id
}

pub fn device(n: u16) -> DeviceInfo {
    DeviceInfo { id: DeviceId(n), address: format!("/dev/sd{n}"), size: SIZE, block_size: 512, fast_zero: true }
}

pub fn devices(range: std::ops::Range<u16>) -> Vec<DeviceInfo> {
    range.map(device).collect()
}

pub fn spec(members: u16, spares: u16) -> ArraySpec {
    ArraySpec {
        name: "tank".into(),
        uuid: uuid(200),
        member_uuids: (0..members).map(|m| uuid(m as u8)).collect(),
        spares,
        shards: 4,
        extent: Some(MIB),
        wipe: false,
    }
}

pub fn volume(name: &str, level: Level, groups: u64, width: Option<u16>) -> VolumeSpec {
    VolumeSpec {
        name: name.into(),
        uuid: uuid(100),
        level,
        width,
        chunk: 64 << 10,
        size: Some(groups * MIB),
        block_size: 512,
        policy: Policy::Resync,
    }
}

impl World {
    fn with(manager: Manager, disks: BTreeMap<u16, Disk>) -> World {
        World {
            disks,
            manager,
            now: Tick(1),
            view: Arc::default(),
            behind: Vec::new(),
            views: Vec::new(),
            replies: BTreeMap::new(),
            notices: Vec::new(),
            stripes: Vec::new(),
            hold_quiesce: false,
            hold_stripes: false,
            stripe_status: ReqStatus::Ok,
            nudges: 0,
            held: Vec::new(),
            due: VecDeque::new(),
            events: 0,
            next_command: 0,
        }
    }

    pub fn blank(n: u16) -> BTreeMap<u16, Disk> {
        (0..n).map(|d| (d, Disk::default())).collect()
    }

    pub fn creating(disks: BTreeMap<u16, Disk>, spec: ArraySpec, devices: Vec<DeviceInfo>) -> World {
        let m = Manager::create(Tick(0), Config::default(), CommandTag(0), uuid(201), spec, devices);
        World::with(m, disks)
    }

    pub fn assembling(disks: BTreeMap<u16, Disk>, history: u8, devices: Vec<DeviceInfo>, force: bool) -> World {
        let m = Manager::assemble(Tick(0), Config::default(), CommandTag(0), uuid(history), devices, force);
        World::with(m, disks)
    }

    /// As a start does it, with nobody there to ask.
    pub fn expecting(disks: BTreeMap<u16, Disk>, history: u8, devices: Vec<DeviceInfo>, array: Uuid) -> World {
        let config = Config { expect: Some(array), ..Config::default() };
        World::with(Manager::assemble(Tick(0), config, CommandTag(0), uuid(history), devices, false), disks)
    }

    /// A running array of `members` with `spares` of them spare.
    pub fn array(members: u16, spares: u16) -> World {
        let mut w = World::creating(World::blank(members + 4), spec(members, spares), devices(0..members));
        w.run();
        assert_eq!(w.replies[&0], Ok(Answer::Done));
        w
    }

    /// The devices after a crash or stop, assembled again.
    pub fn again(self, history: u8, devices: Vec<DeviceInfo>, force: bool) -> World {
        let mut w = World::assembling(self.disks, history, devices, force);
        w.run();
        w
    }

    pub fn crash(mut self, mode: u64) -> World {
        for (n, disk) in &mut self.disks {
            disk.crash(if mode < 2 { mode } else { mode * 31 + u64::from(*n) + 2 });
        }
        self
    }

    fn execute(&mut self, action: ManagerAction) {
        match action {
            ManagerAction::Read { tag, device, offset, len } => {
                assert_eq!((offset % 4096, len % 4096), (0, 0));
                let disk = &self.disks[&device.0];
                let result = if disk.unreadable { Err(IoStatus::ReadError) } else { Ok(disk.read(offset, len.into())) };
                self.due.push_back(Due::Read(tag, result));
            }
            ManagerAction::Write { tag, device, offset, bytes } => {
                assert_eq!((offset % 4096, bytes.len() % 4096), (0, 0));
                assert!(offset + bytes.len() as u64 <= SIZE);
                self.change(tag, device, Change::Write(offset, bytes));
            }
            ManagerAction::Zero { tag, device, offset, len } => {
                assert!(offset + len <= SIZE);
                self.change(tag, device, Change::Zero(offset, len));
            }
            ManagerAction::Flush { tag, device } => {
                let disk = self.disks.get_mut(&device.0).expect("known device");
                let status = disk.broken.unwrap_or(IoStatus::Ok);
                if status == IoStatus::Ok {
                    disk.flush();
                }
                self.due.push_back(Due::Done(tag, status));
            }
            ManagerAction::Publish { tag, view, devices } => {
                assert_eq!(view.members.len(), devices.len());
                self.view = view.clone();
                self.behind = devices;
                self.views.push(view);
                self.due.push_back(Due::Published(tag));
            }
            ManagerAction::RegionsChanged { .. } => self.nudges += 1,
            ManagerAction::Maintain { tag, volume, group, stripe, rebuild } => {
                let g = &self.view.volume(volume).expect("published volume").groups[group as usize];
                if rebuild {
                    let chunk = u64::from(self.view.volume(volume).expect("looked at above").geometry.chunk);
                    let targets = g.slots.iter().filter(|s| s.state == crate::view::SlotState::Rebuilding);
                    let places: Vec<_> = targets.map(|s| (s.member, s.offset + u64::from(stripe) * chunk)).collect();
                    assert!(!places.is_empty(), "the engines know the target");
                    for (member, offset) in places {
                        // What a rebuild writes, in the device's cache like everything else.
                        let device = self.behind[usize::from(member.0)].expect("a target has a device");
                        let disk = self.disks.get_mut(&device.0).expect("known device");
                        let change = Change::Write(offset, vec![REBUILT; 4096]);
                        apply(&mut disk.current, &change);
                        disk.volatile.push(change);
                    }
                } else {
                    let region = self.view.volume(volume).expect("looked at above").region(group, stripe);
                    assert!(!g.synced || !region.verified(), "the engines know that it is not in sync");
                }
                self.stripes.push((volume.0, group, stripe, rebuild));
                let due = Due::Maintained(tag, self.stripe_status);
                if self.hold_stripes { self.held.push(due) } else { self.due.push_back(due) }
            }
            ManagerAction::Quiesce { tag } => {
                let due = Due::Quiesced(tag);
                if self.hold_quiesce { self.held.push(due) } else { self.due.push_back(due) }
            }
            ManagerAction::Reply { tag, result } => {
                assert!(self.replies.insert(tag.0, result).is_none(), "answered once");
            }
            ManagerAction::Notice(notice) => self.notices.push(notice),
        }
    }

    fn change(&mut self, tag: MetaTag, device: DeviceId, change: Change) {
        let disk = self.disks.get_mut(&device.0).expect("known device");
        let status = disk.broken.unwrap_or(IoStatus::Ok);
        if status == IoStatus::Ok {
            disk.writes += 1;
            apply(&mut disk.current, &change);
            disk.volatile.push(change);
        }
        self.due.push_back(Due::Done(tag, status));
    }

    /// One answer; false when there is none.
    pub fn step(&mut self) -> bool {
        while let Some(action) = self.manager.next_action() {
            self.execute(action);
        }
        let Some(due) = self.due.pop_front() else { return false };
        self.events += 1;
        self.answer(due);
        while let Some(action) = self.manager.next_action() {
            self.execute(action);
        }
        true
    }

    fn answer(&mut self, due: Due) {
        match due {
            Due::Read(tag, result) => self.manager.read_done(self.now, tag, result),
            Due::Done(tag, status) => self.manager.done(self.now, tag, status),
            Due::Published(tag) => self.manager.published(self.now, tag),
            Due::Quiesced(tag) => self.manager.quiesced(self.now, tag),
            Due::Maintained(tag, status) => self.manager.maintained(self.now, tag, status),
        }
    }

    pub fn run(&mut self) {
        while self.step() {}
    }

    /// Answers what was held back.
    pub fn release(&mut self) {
        self.due.extend(self.held.drain(..));
    }

    pub fn held(&self) -> usize {
        self.held.len()
    }

    pub fn event(&mut self, event: Event) {
        self.manager.event(self.now, event);
    }

    pub fn start(&mut self, command: Command) -> u64 {
        self.next_command += 1;
        self.manager.command(self.now, CommandTag(self.next_command), command);
        self.next_command
    }

    pub fn command(&mut self, command: Command) -> Result<Answer, ManageError> {
        let tag = self.start(command);
        self.run();
        self.replies[&tag].clone()
    }

    /// The clock goes on to the next deadline.
    pub fn sleep(&mut self) {
        let at = self.manager.next_deadline().expect("a deadline");
        self.now = self.now.max(at);
        self.manager.tick(self.now);
        self.run();
    }

    pub fn noticed(&self, code: &str) -> Option<&Notice> {
        self.notices.iter().find(|n| n.code == code)
    }

    pub fn health(&self) -> Vec<Health> {
        self.manager.status().volumes.iter().map(|v| v.health).collect()
    }

    pub fn refusal(&self) -> &ManageError {
        self.replies[&0].as_ref().expect_err("refused")
    }
}
