//! The manager over simulated devices with a volatile cache, and an engine that says yes.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::action::{Event, IoStatus, MemberId, ReqStatus, VolumeId};
use crate::geometry::Level;
use crate::manager::*;
use crate::ondisk::{SUPERBLOCK_BYTES, Superblock, end_copy_offset};
use crate::units::Tick;
use crate::view::{MemberState, SlotState, View};

const SIZE: u64 = 64 << 20;

#[derive(Clone, Default)]
struct Disk {
    durable: BTreeMap<u64, Vec<u8>>,
    cached: Vec<(u64, Vec<u8>)>,
    size: u64,
    dead: bool,
    fail_writes: bool,
}

impl Disk {
    fn apply(blocks: &mut BTreeMap<u64, Vec<u8>>, offset: u64, bytes: &[u8]) {
        for (i, chunk) in bytes.chunks(4096).enumerate() {
            blocks.insert(offset / 4096 + i as u64, chunk.to_vec());
        }
    }

    fn read(&self, offset: u64, len: u32) -> Vec<u8> {
        let mut now = self.durable.clone();
        for (at, bytes) in &self.cached {
            Disk::apply(&mut now, *at, bytes);
        }
        (0..u64::from(len) / 4096)
            .flat_map(|i| now.get(&(offset / 4096 + i)).cloned().unwrap_or(vec![0; 4096]))
            .collect()
    }

    fn flush(&mut self) {
        for (at, bytes) in std::mem::take(&mut self.cached) {
            Disk::apply(&mut self.durable, at, &bytes);
        }
    }

    /// Power fails: of the writes that were not flushed, those of `kept` survive, as far as whole blocks.
    fn crash(&mut self, kept: u64) {
        for (i, (at, bytes)) in std::mem::take(&mut self.cached).into_iter().enumerate() {
            for (j, chunk) in bytes.chunks(4096).enumerate() {
                if kept >> ((i + j) % 64) & 1 == 1 {
                    Disk::apply(&mut self.durable, at + j as u64 * 4096, chunk);
                }
            }
        }
    }
}

#[derive(Default)]
struct World {
    disks: Vec<Disk>,
    view: Option<Arc<View>>,
    notices: Vec<Notice>,
    replies: BTreeMap<u64, Result<Answer, ManageError>>,
    maintained: Vec<(u32, u32, bool)>,
    fail_stripe: Option<u32>,
    zeroed: u64,
    /// A disk with blocks of 4096 bytes.
    coarse: Option<usize>,
}

impl World {
    fn new(disks: usize) -> World {
        let disk = Disk { size: SIZE, ..Disk::default() };
        World { disks: vec![disk; disks], ..World::default() }
    }

    fn info(&self, i: usize) -> DeviceInfo {
        DeviceInfo {
            id: DeviceId(i as u16),
            address: format!("disk{i}"),
            size: self.disks[i].size,
            block_size: if self.coarse == Some(i) { 4096 } else { 512 },
            fast_zero: true,
        }
    }

    fn infos(&self, which: &[usize]) -> Vec<DeviceInfo> {
        which.iter().map(|i| self.info(*i)).collect()
    }

    /// Does what the manager says until it has nothing more to say.
    fn run(&mut self, m: &mut Manager) {
        let now = Tick(0);
        while let Some(action) = m.next_action() {
            match action {
                ManagerAction::Read { tag, device, offset, len } => {
                    let disk = &self.disks[device.0 as usize];
                    let answer = if disk.dead { Err(IoStatus::DeviceError) } else { Ok(disk.read(offset, len)) };
                    m.read_done(now, tag, answer);
                }
                ManagerAction::Write { tag, device, offset, bytes } => {
                    let disk = &mut self.disks[device.0 as usize];
                    assert!(offset % 4096 == 0 && bytes.len() % 4096 == 0 && offset + bytes.len() as u64 <= disk.size);
                    let bad = disk.dead || disk.fail_writes;
                    if !bad {
                        disk.cached.push((offset, bytes));
                    }
                    m.done(now, tag, if bad { IoStatus::DeviceError } else { IoStatus::Ok });
                }
                ManagerAction::Flush { tag, device } => {
                    let disk = &mut self.disks[device.0 as usize];
                    disk.flush();
                    m.done(now, tag, if disk.dead { IoStatus::DeviceError } else { IoStatus::Ok });
                }
                ManagerAction::Zero { tag, device, offset, len } => {
                    self.zeroed += len;
                    let disk = &mut self.disks[device.0 as usize];
                    let dead = disk.dead;
                    if !dead {
                        disk.flush();
                        disk.durable.retain(|block, _| !(offset / 4096..(offset + len) / 4096).contains(block));
                    }
                    m.done(now, tag, if dead { IoStatus::DeviceError } else { IoStatus::Ok });
                }
                ManagerAction::Publish { tag, view, .. } => {
                    self.view = Some(view);
                    m.published(now, tag);
                }
                ManagerAction::Maintain { tag, group, stripe, rebuild, .. } => {
                    self.maintained.push((group, stripe, rebuild));
                    let bad = self.fail_stripe == Some(stripe);
                    m.maintained(now, tag, if bad { ReqStatus::Unrecoverable } else { ReqStatus::Ok });
                }
                ManagerAction::Quiesce { tag } => m.quiesced(now, tag),
                ManagerAction::RegionsChanged { .. } => {}
                ManagerAction::Reply { tag, result } => {
                    self.replies.insert(tag.0, result);
                }
                ManagerAction::Notice(notice) => self.notices.push(notice),
            }
        }
    }

    fn create(&mut self, active: usize, spares: usize, wipe: bool) -> Result<Manager, ManageError> {
        let n = active + spares;
        let spec = ArraySpec {
            name: "tank".into(),
            uuid: [7; 16],
            member_uuids: (0..n as u8).map(|i| [i + 1; 16]).collect(),
            spares: spares as u16,
            shards: 4,
            extent: Some(1 << 20),
            wipe,
        };
        let devices = self.infos(&(0..n).collect::<Vec<_>>());
        let mut m = Manager::create(Tick(0), Config::default(), CommandTag(1), [0xA0; 16], spec, devices);
        self.run(&mut m);
        self.replies.remove(&1).map_or(Ok(()), |r| r.map(drop))?;
        Ok(m)
    }

    fn assemble(&mut self, which: &[usize], force: bool, history: u8) -> Result<Manager, ManageError> {
        let mut m =
            Manager::assemble(Tick(0), Config::default(), CommandTag(1), [history; 16], self.infos(which), force);
        self.run(&mut m);
        self.replies.remove(&1).map_or(Ok(()), |r| r.map(drop))?;
        Ok(m)
    }

    fn command(&mut self, m: &mut Manager, command: Command) -> Result<Answer, ManageError> {
        m.command(Tick(0), CommandTag(9), command);
        self.run(m);
        self.replies.remove(&9).expect("a reply")
    }

    fn volume(&mut self, m: &mut Manager, level: Level) -> VolumeId {
        match self.command(m, Command::CreateVolume(volume_spec(level))) {
            Ok(Answer::Volume(id)) => id,
            other => panic!("{other:?}"),
        }
    }

    fn has_notice(&self, code: &str) -> bool {
        self.notices.iter().any(|n| n.code == code)
    }

    fn slot_states(&self) -> Vec<SlotState> {
        let view = self.view.as_ref().expect("a view");
        view.volumes.iter().flat_map(|v| &v.groups).flat_map(|g| &g.slots).map(|s| s.state).collect()
    }
}

fn volume_spec(level: Level) -> VolumeSpec {
    VolumeSpec {
        name: "data".into(),
        uuid: [9; 16],
        level,
        width: None,
        chunk: 65536,
        size: Some(8 << 20),
        block_size: 4096,
        policy: Policy::Resync,
    }
}

fn fail(member: u16) -> Event {
    Event::MemberFailed { member: MemberId(member), status: IoStatus::DeviceError }
}

#[test]
fn a_created_array_assembles_again_with_its_volumes() {
    let mut w = World::new(5);
    let mut m = w.create(5, 0, false).unwrap();
    w.volume(&mut m, Level::Raid5);
    assert!(w.zeroed > 0, "a new volume starts in sync because its extents are zeroed");
    let before = m.status();
    assert!(matches!(w.command(&mut m, Command::Stop), Ok(Answer::Done)));
    let m = w.assemble(&[4, 2, 0, 1, 3], false, 1).unwrap();
    let after = m.status();
    assert_eq!(after.volumes, before.volumes);
    assert_eq!(after.volumes[0].health, Health::Healthy);
    assert!(after.generation > before.generation);
    assert!(!w.has_notice("resync-began"), "a clean stop needs no resync");
}

#[test]
fn creation_refuses_what_it_must_and_changes_nothing() {
    let mut w = World::new(3);
    Disk::apply(&mut w.disks[1].durable, 0, &{
        let mut block = vec![0u8; 4096];
        block[..4].copy_from_slice(b"XFSB");
        block
    });
    let e = w.create(3, 0, false).err().expect("a refusal");
    assert!(e.message.contains("disk1 carries an XFS file system") && e.message.contains("--wipe"), "{e}");
    assert!(w.disks.iter().all(|d| d.cached.is_empty()), "a refused creation wrote something");
    w.create(3, 0, true).unwrap();
    let e = w.create(3, 0, false).err().expect("a refusal");
    assert!(e.message.contains("raidd array 'tank'"), "{e}");
    // Again on the members of an earlier array: what that one left there must not come back.
    let mut m = w.create(2, 0, true).unwrap();
    assert!(matches!(w.command(&mut m, Command::Stop), Ok(Answer::Done)));
    assert_eq!(w.assemble(&[0, 1], false, 3).unwrap().status().members.len(), 2);

    let mut w = World::new(2);
    w.disks[1].size = 1 << 20;
    assert!(w.create(2, 0, false).err().expect("a refusal").message.contains("too little"));
    let mut w = World::new(2);
    w.disks[1].size = SIZE - (5 << 20);
    w.create(2, 0, false).unwrap();
    assert!(w.has_notice("sizes-differ"));
}

#[test]
fn volumes_that_cannot_be_are_refused_with_the_reason() {
    let mut w = World::new(3);
    let mut m = w.create(3, 0, false).unwrap();
    let base = volume_spec(Level::Raid5);
    let cases: Vec<(VolumeSpec, ErrorKind, &str)> = vec![
        (VolumeSpec { level: Level::Raid6, ..base.clone() }, ErrorKind::InvalidArgument, "volume 'data'"),
        (VolumeSpec { width: Some(9), ..base.clone() }, ErrorKind::InvalidArgument, "active members"),
        (VolumeSpec { size: Some(1 << 40), ..base.clone() }, ErrorKind::NoSpace, "no space"),
        (VolumeSpec { size: Some(0), ..base.clone() }, ErrorKind::InvalidArgument, "multiple"),
        (VolumeSpec { block_size: 1024, ..base.clone() }, ErrorKind::InvalidArgument, "512 or 4096"),
        (VolumeSpec { chunk: 5000, ..base.clone() }, ErrorKind::InvalidArgument, "volume 'data'"),
        (VolumeSpec { name: "../x".into(), ..base.clone() }, ErrorKind::InvalidArgument, "no name"),
    ];
    for (spec, kind, text) in cases {
        let e = w.command(&mut m, Command::CreateVolume(spec)).unwrap_err();
        assert_eq!(e.kind, kind, "{e}");
        assert!(e.message.contains(text), "{e}");
    }
    assert!(m.status().volumes.is_empty());
    w.volume(&mut m, Level::Raid5);
    let e = w.command(&mut m, Command::CreateVolume(base)).unwrap_err();
    assert_eq!(e.kind, ErrorKind::AlreadyExists);
    let e = w.command(&mut m, Command::Delete).unwrap_err();
    assert!(e.message.contains("delete them first"));
}

#[test]
fn a_volumes_blocks_are_never_finer_than_its_members() {
    let mut w = World::new(5);
    w.coarse = Some(3);
    let mut m = w.create(4, 0, false).unwrap();
    let fine = VolumeSpec { block_size: 512, ..volume_spec(Level::Raid5) };
    let e = w.command(&mut m, Command::CreateVolume(fine.clone())).unwrap_err();
    assert!(e.message.contains("blocks of 4096 bytes") && m.status().volumes.is_empty(), "{e}");
    w.volume(&mut m, Level::Raid5);

    let mut w = World::new(4);
    let mut m = w.create(3, 0, false).unwrap();
    w.command(&mut m, Command::CreateVolume(fine)).unwrap();
    w.coarse = Some(3);
    let add = Command::AddMember { device: w.info(3), uuid: [0x77; 16], wipe: false };
    let e = w.command(&mut m, add).unwrap_err();
    assert!(e.message.contains("volume 'data' has blocks of 512"), "{e}");
    assert_eq!(m.status().members.len(), 3);
}

#[test]
fn a_failure_is_on_the_others_before_the_engines_hear_of_it() {
    let mut w = World::new(3);
    let mut m = w.create(3, 0, false).unwrap();
    w.volume(&mut m, Level::Raid5);
    w.disks[1].dead = true;
    m.event(Tick(0), fail(1));
    m.event(Tick(0), fail(1));
    // Up to the publication, watch the order.
    let mut flushed = Vec::new();
    loop {
        match m.next_action().expect("a publication") {
            ManagerAction::Write { tag, device, offset, bytes } => {
                assert_ne!(device, DeviceId(1), "a failed member is not written to");
                w.disks[device.0 as usize].cached.push((offset, bytes));
                m.done(Tick(0), tag, IoStatus::Ok);
            }
            ManagerAction::Flush { tag, device } => {
                w.disks[device.0 as usize].flush();
                flushed.push(device);
                m.done(Tick(0), tag, IoStatus::Ok);
            }
            ManagerAction::Publish { view, tag, devices } => {
                assert_eq!(view.members[1], MemberState::Failed);
                assert!(view.volumes[0].online);
                assert_eq!(devices[1], None);
                m.published(Tick(0), tag);
                break;
            }
            ManagerAction::Notice(n) => w.notices.push(n),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(flushed, [DeviceId(0), DeviceId(2)]);
    // A crash right now, and all three are there again: member 1 is stale and is not used.
    w.disks.iter_mut().for_each(|d| d.crash(0));
    w.disks[1].dead = false;
    let m = w.assemble(&[0, 1, 2], false, 1).unwrap();
    assert_eq!(m.status().members[1].state, MemberState::Failed);
    assert_eq!(m.status().volumes[0].health, Health::Degraded);
    assert!(w.has_notice("member-stale"));
}

#[test]
fn a_missing_member_means_degraded_with_advice_and_it_can_be_removed() {
    let mut w = World::new(4);
    let mut m = w.create(4, 0, false).unwrap();
    w.volume(&mut m, Level::Raid5);
    w.command(&mut m, Command::Stop).unwrap();
    let mut m = w.assemble(&[0, 1, 3], false, 1).unwrap();
    let advice = w.notices.iter().find(|n| n.code == "member-missing").expect("a notice");
    assert!(advice.message.contains("raidctl member replace tank 2"), "{}", advice.message);
    assert_eq!(m.status().volumes[0].health, Health::Degraded);
    w.command(&mut m, Command::RemoveMember(MemberId(2))).unwrap();
    assert_eq!(m.status().members.len(), 3);
    assert_eq!(w.command(&mut m, Command::RemoveMember(MemberId(2))).unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(w.command(&mut m, Command::RemoveMember(MemberId(0))).unwrap_err().kind, ErrorKind::FailedPrecondition);
}

#[test]
fn too_few_members_or_degraded_and_dirty_is_refused_with_the_cost() {
    let mut w = World::new(4);
    let mut m = w.create(4, 0, false).unwrap();
    let volume = w.volume(&mut m, Level::Raid5);
    let e = w.assemble(&[0, 1], false, 1).err().expect("a refusal");
    assert!(e.message.contains("volume 'data' needs more members"), "{e}");
    m.event(Tick(0), Event::DirtyNeeded { volume });
    w.run(&mut m);
    assert!(w.view.as_ref().unwrap().volumes[0].dirty);
    let e = w.assemble(&[0, 1, 2], false, 1).err().expect("a refusal");
    assert!(e.message.contains("not stopped cleanly") && e.message.contains("--force"), "{e}");
    let before: Vec<_> = w.disks.iter().map(|d| d.durable.clone()).collect();
    assert!(w.assemble(&[0, 1, 2], false, 1).is_err());
    assert_eq!(before, w.disks.iter().map(|d| d.durable.clone()).collect::<Vec<_>>(), "a refusal wrote something");
    let m = w.assemble(&[0, 1, 2], true, 2).unwrap();
    assert_eq!(m.status().volumes[0].health, Health::Degraded);
}

#[test]
fn an_unclean_stop_is_resynced_group_by_group() {
    for level in [Level::Raid1, Level::Raid5] {
        let mut w = World::new(4);
        let mut m = w.create(4, 0, false).unwrap();
        let volume = w.volume(&mut m, level);
        m.event(Tick(0), Event::DirtyNeeded { volume });
        w.run(&mut m);
        w.disks.iter_mut().for_each(|d| d.crash(0));
        w.view = None;
        let m = w.assemble(&[0, 1, 2, 3], false, 1).unwrap();
        assert!(w.has_notice("resync-began") && w.has_notice("resync-ended"));
        let bytes = m.status().operations[0].total;
        let stripe = m.status().volumes[0].geometry.stripe_bytes();
        assert_eq!(w.maintained.len() as u64 * stripe, bytes);
        assert!(w.maintained.iter().all(|(_, _, rebuild)| !rebuild));
        assert!(w.view.as_ref().unwrap().volumes[0].groups.iter().all(|g| g.synced));
        assert_eq!(m.status().volumes[0].health, Health::Healthy);
    }
}

#[test]
fn a_spare_takes_the_place_of_a_failed_member() {
    let mut w = World::new(5);
    let mut m = w.create(4, 1, false).unwrap();
    w.volume(&mut m, Level::Raid6);
    m.event(Tick(0), fail(2));
    w.run(&mut m);
    assert!(w.slot_states().iter().all(|s| *s == SlotState::InSync));
    assert!(w.maintained.iter().all(|(_, _, rebuild)| *rebuild) && !w.maintained.is_empty());
    let status = m.status();
    assert_eq!(status.volumes[0].health, Health::Healthy);
    assert_eq!(status.operations[0].state, OperationState::Done);
    assert_eq!(status.operations[0].done, status.operations[0].total);
    w.command(&mut m, Command::Stop).unwrap();
    let m = w.assemble(&[0, 1, 3, 4], false, 1).unwrap();
    assert_eq!(m.status().volumes[0].health, Health::Healthy);
}

#[test]
fn a_stripe_that_cannot_be_rebuilt_keeps_its_group_degraded() {
    let mut w = World::new(4);
    let mut m = w.create(3, 1, false).unwrap();
    w.volume(&mut m, Level::Raid5);
    w.fail_stripe = Some(3);
    m.event(Tick(0), fail(0));
    w.run(&mut m);
    assert!(w.slot_states().contains(&SlotState::Rebuilding), "a slot with a hole must not be read");
    assert_eq!(m.status().operations.last().unwrap().state, OperationState::Failed);
    assert_eq!(m.status().volumes[0].health, Health::Degraded);
}

#[test]
fn a_member_is_replaced_by_a_new_device_or_refused() {
    let mut w = World::new(5);
    let mut m = w.create(4, 0, false).unwrap();
    w.volume(&mut m, Level::Raid5);
    let replace = |w: &World, member, i, wipe| Command::ReplaceMember {
        member: MemberId(member),
        device: Some(w.info(i)),
        uuid: [0x55; 16],
        wipe,
    };
    let e = w.command(&mut m, replace(&w, 7, 4, false)).unwrap_err();
    assert_eq!(e.kind, ErrorKind::NotFound);
    let e = w.command(&mut m, replace(&w, 1, 0, false)).unwrap_err();
    assert_eq!(e.kind, ErrorKind::AlreadyExists);
    let command = replace(&w, 1, 4, false);
    w.command(&mut m, command).unwrap();
    assert_eq!(m.status().volumes[0].health, Health::Healthy);
    let addresses: Vec<_> = m.status().members.iter().map(|m| m.address.clone()).collect();
    assert_eq!(addresses, ["disk0", "disk2", "disk3", "disk4"]);
    // The old member is out: it is named and left alone when it comes back.
    w.command(&mut m, Command::Stop).unwrap();
    w.assemble(&[0, 1, 2, 3, 4], false, 1).unwrap();
    assert!(w.has_notice("not-a-member"));
}

#[test]
fn the_last_redundancy_is_not_given_up_on_request() {
    let mut w = World::new(3);
    let mut m = w.create(3, 0, false).unwrap();
    w.volume(&mut m, Level::Raid5);
    w.command(&mut m, Command::FailMember(MemberId(0))).unwrap();
    let e = w.command(&mut m, Command::FailMember(MemberId(1))).unwrap_err();
    assert!(e.message.contains("lose data"), "{e}");
    // It happens all the same: the volume is offline, and nothing wrong is recorded about the member.
    m.event(Tick(0), fail(1));
    w.run(&mut m);
    assert!(!w.view.as_ref().unwrap().volumes[0].online);
    assert!(w.has_notice("volume-failed"));
    let m = w.assemble(&[1, 2], false, 4).unwrap();
    assert_eq!(m.status().volumes[0].health, Health::Degraded, "the member that came back is taken as it is");
}

#[test]
fn a_member_that_fails_its_commit_is_recorded_by_the_next_one() {
    let mut w = World::new(4);
    let mut m = w.create(4, 0, false).unwrap();
    w.disks[3].fail_writes = true;
    w.volume(&mut m, Level::Raid1);
    assert_eq!(m.status().members[3].state, MemberState::Failed);
    assert!(w.has_notice("member-failed"));
}

#[test]
fn two_histories_are_refused_and_both_are_named() {
    let mut w = World::new(2);
    let mut m = w.create(2, 0, false).unwrap();
    w.volume(&mut m, Level::Raid1);
    w.command(&mut m, Command::Stop).unwrap();
    // Each half is assembled alone, as after a cable was pulled twice.
    let mut left = w.assemble(&[0], false, 0xB1).unwrap();
    w.command(&mut left, Command::Stop).unwrap();
    let mut right = w.assemble(&[1], false, 0xB2).unwrap();
    w.command(&mut right, Command::Stop).unwrap();
    let e = w.assemble(&[0, 1], true, 3).err().expect("a refusal");
    assert!(
        e.message.contains("two histories") && e.message.contains("b1b1b1b1") && e.message.contains("b2b2b2b2"),
        "{e}"
    );
}

#[test]
fn one_damaged_superblock_copy_is_repaired_and_two_are_refused() {
    let mut w = World::new(3);
    let mut m = w.create(3, 0, false).unwrap();
    w.volume(&mut m, Level::Raid5);
    w.command(&mut m, Command::Stop).unwrap();
    for at in [0, end_copy_offset(SIZE)] {
        w.notices.clear();
        w.disks[1].durable.get_mut(&(at / 4096)).unwrap()[100] ^= 1;
        let mut m = w.assemble(&[0, 1, 2], false, 1).unwrap();
        assert!(w.has_notice("superblock-repaired"));
        assert_eq!(m.status().volumes[0].health, Health::Healthy);
        assert!(Superblock::decode(&w.disks[1].read(at, SUPERBLOCK_BYTES)).is_ok());
        w.command(&mut m, Command::Stop).unwrap();
    }
    for at in [0, end_copy_offset(SIZE)] {
        w.disks[1].durable.get_mut(&(at / 4096)).unwrap()[100] ^= 1;
    }
    let e = w.assemble(&[0, 1, 2], false, 1).err().expect("a refusal");
    assert!(e.message.contains("both superblock copies of disk1"), "{e}");
    w.assemble(&[0, 2], false, 1).unwrap();
}

#[test]
fn a_deleted_array_is_gone() {
    let mut w = World::new(2);
    let mut m = w.create(2, 0, false).unwrap();
    w.command(&mut m, Command::Delete).unwrap();
    assert!(w.assemble(&[0, 1], false, 1).err().expect("a refusal").message.contains("no raidd superblock"));
    w.create(2, 0, false).unwrap();
}

#[test]
fn an_idle_volume_becomes_clean_and_a_write_in_between_keeps_it_dirty() {
    let mut w = World::new(3);
    let mut m = w.create(3, 0, false).unwrap();
    let volume = w.volume(&mut m, Level::Raid5);
    m.event(Tick(0), Event::DirtyNeeded { volume });
    w.run(&mut m);
    let due = m.next_deadline().expect("an attempt is due");
    m.tick(Tick(due.0 - 1));
    w.run(&mut m);
    assert!(m.status().volumes[0].dirty, "too early");

    // A write asks for the mark right after the view without it is out: on disk it must never be gone.
    m.tick(due);
    let Some(ManagerAction::Publish { tag, view, .. }) = m.next_action() else {
        panic!("a view without the mark first")
    };
    assert!(!view.volumes[0].dirty);
    m.event(due, Event::DirtyNeeded { volume });
    m.published(due, tag);
    let Some(ManagerAction::Publish { tag: second, view, .. }) = m.next_action() else { panic!("the mark comes back") };
    assert!(view.volumes[0].dirty);
    m.published(due, second);
    assert!(m.next_action().is_none(), "nothing is committed");
    assert!(m.status().volumes[0].dirty);

    let due = m.next_deadline().expect("another attempt is due");
    m.tick(due);
    w.run(&mut m);
    assert!(!m.status().volumes[0].dirty);
    w.disks.iter_mut().for_each(|d| d.crash(0));
    let m = w.assemble(&[0, 1, 2], false, 1).unwrap();
    assert!(m.status().operations.is_empty(), "a clean volume needs no resync after a crash");
}
