//! What an assembly makes of members that are missing, stale, damaged or apart.

use super::world::*;
use crate::action::{Event, IoStatus, MemberId, VolumeId};
use crate::geometry::Level;
use crate::manager::*;
use crate::ondisk::{Superblock, end_copy_offset};
use crate::view::{MemberState, SlotState};

fn stopped(members: u16, level: Level, width: u16) -> World {
    let mut w = World::array(members, 0);
    w.command(Command::CreateVolume(volume("v", level, 6, Some(width)))).unwrap();
    w.command(Command::Stop).unwrap();
    w
}

fn fail(w: &mut World, member: u16) {
    w.event(Event::MemberFailed { member: MemberId(member), status: IoStatus::Timeout });
    w.run();
}

fn writes(w: &World) -> u64 {
    w.disks.values().map(|d| d.writes).sum()
}

#[test]
fn a_missing_member_is_recorded_before_the_volume_is_online() {
    let w = stopped(3, Level::Raid5, 3).again(1, devices(0..2), false);
    assert_eq!(w.replies[&0], Ok(Answer::Done));
    let online = w.views.iter().position(|v| v.volumes[0].online).unwrap();
    assert_eq!(w.views[online].members[2], MemberState::Failed);
    assert!(w.noticed("member-missing").unwrap().message.contains("raidctl member remove tank 2"));
    // It comes back: it is not read.
    let w = w.again(2, devices(0..3), false);
    assert_eq!(w.health(), [Health::Degraded]);
    assert!(w.noticed("member-stale").is_some());
    assert!(w.view.volumes[0].groups.iter().all(|g| g.slots[2].state == SlotState::Missing));
}

#[test]
fn a_missing_member_can_be_removed_and_its_place_filled() {
    let mut w = stopped(3, Level::Raid5, 3).again(1, devices(0..2), false);
    assert_eq!(w.command(Command::RemoveMember(MemberId(2))), Ok(Answer::Done));
    w.command(Command::AddMember { device: device(5), uuid: uuid(50), wipe: false }).unwrap();
    assert_eq!(w.health(), [Health::Healthy]);
}

#[test]
fn a_missing_spare_does_not_stand_in_the_way() {
    let mut w = World::array(4, 1);
    w.command(Command::CreateVolume(volume("v", Level::Raid5, 4, Some(3)))).unwrap();
    w.command(Command::Stop).unwrap();
    let w = w.again(1, devices(0..3), false);
    assert_eq!(w.health(), [Health::Healthy]);
}

#[test]
fn too_few_members_are_refused_with_the_cost_and_nothing_is_written() {
    for (level, present) in [(Level::Raid5, 2u16), (Level::Raid6, 1), (Level::Raid0, 3), (Level::Raid10, 2)] {
        let w = stopped(4, level, 4);
        let before = writes(&w);
        let w = w.again(1, devices(0..present), false);
        let refused = w.refusal();
        assert_eq!(refused.kind, ErrorKind::FailedPrecondition);
        for word in ["'v'", "--force", "lost", "/dev/sd3"] {
            assert!(refused.message.contains(word), "{level:?}: {refused}");
        }
        assert_eq!(writes(&w), before);
        assert_eq!(w.manager.status().state, ArrayState::Stopped);
        // All of them again: nothing has happened.
        let w = w.again(2, devices(0..4), false);
        assert_eq!(w.health(), [Health::Healthy]);
    }
}

#[test]
fn force_takes_stale_members_back_the_newest_first() {
    let mut w = World::array(4, 0);
    w.command(Command::CreateVolume(volume("v", Level::Raid5, 3, None))).unwrap();
    // A second volume keeps going, so every failure is recorded.
    w.command(Command::CreateVolume(volume("m", Level::Raid1, 1, None))).unwrap();
    fail(&mut w, 0);
    fail(&mut w, 1);
    assert_eq!(w.health(), [Health::Failed, Health::Degraded]);
    let w = w.again(1, devices(0..4), false);
    assert!(w.refusal().message.contains("stale"), "{}", w.refusal());
    let w = w.again(2, devices(0..4), true);
    assert_eq!(w.replies[&0], Ok(Answer::Done));
    let forced = w.noticed("member-forced").expect("said");
    assert_eq!(forced.member, Some(MemberId(1)), "member 1 failed later than member 0");
    assert!(w.view.volumes[0].online);
    assert_eq!(w.view.members[0], MemberState::Failed);
}

#[test]
fn force_without_enough_members_brings_up_the_other_volumes() {
    let mut w = World::array(4, 0);
    w.command(Command::CreateVolume(volume("a", Level::Raid0, 4, None))).unwrap();
    w.command(Command::CreateVolume(volume("b", Level::Raid5, 3, None))).unwrap();
    w.command(Command::Stop).unwrap();
    let w = w.again(1, devices(0..3), true);
    assert_eq!(w.health(), [Health::Failed, Health::Degraded]);
    assert!(!w.view.volumes[0].online && w.view.volumes[1].online);
}

#[test]
fn degraded_and_dirty_is_refused_for_parity_and_not_for_copies() {
    for level in [Level::Raid5, Level::Raid6, Level::Raid1, Level::Raid10] {
        let mut w = World::array(4, 0);
        w.command(Command::CreateVolume(volume("v", level, 6, None))).unwrap();
        w.event(Event::DirtyNeeded { volume: VolumeId(0) });
        w.run();
        let w = w.crash(0).again(1, devices(0..3), false);
        if matches!(level, Level::Raid1 | Level::Raid10) {
            assert_eq!(w.health(), [Health::Degraded], "{level:?}");
            assert!(w.view.volumes[0].groups.iter().all(|g| g.synced), "what is left was equalized");
            continue;
        }
        for word in ["degraded and dirty", "--force", "wrong"] {
            assert!(w.refusal().message.contains(word), "{}", w.refusal());
        }
        let w = w.again(2, devices(0..3), true);
        assert_eq!(w.health(), [Health::Degraded]);
        assert!(w.noticed("parity-trusted").is_some());
        assert!(w.view.volumes[0].groups.iter().all(|g| g.synced), "otherwise nothing could be read");
    }
}

#[test]
fn a_failure_that_every_volume_ends_with_needs_no_force() {
    let mut w = World::array(3, 0);
    w.command(Command::CreateVolume(volume("v", Level::Raid0, 3, None))).unwrap();
    fail(&mut w, 1);
    assert_eq!(w.health(), [Health::Failed]);
    assert_eq!(w.command(Command::Stop), Ok(Answer::Done));
    let w = w.again(1, devices(0..3), false);
    assert_eq!(w.replies[&0], Ok(Answer::Done));
    assert_eq!(w.health(), [Health::Healthy]);
}

#[test]
fn a_failure_is_recorded_where_one_volume_goes_on_and_another_does_not() {
    let mut w = World::array(3, 0);
    w.command(Command::CreateVolume(volume("a", Level::Raid0, 3, None))).unwrap();
    w.command(Command::CreateVolume(volume("b", Level::Raid5, 2, None))).unwrap();
    fail(&mut w, 1);
    assert_eq!(w.health(), [Health::Failed, Health::Degraded]);
    // Volume b acknowledges writes now that member 1 misses: after a crash it must not be read as if it had them.
    let w = w.crash(0).again(1, devices(0..3), true);
    assert!(
        w.view.volumes[1]
            .groups
            .iter()
            .all(|g| g.slots[1].state != SlotState::InSync || w.stripes.iter().any(|s| s.0 == 1))
    );
    let first = w.views.iter().find(|v| v.volumes[1].online).unwrap();
    assert!(first.volumes[1].groups.iter().all(|g| g.slots[1].state != SlotState::InSync));
}

#[test]
fn members_that_were_assembled_apart_are_refused_and_either_half_can_be_chosen() {
    let w = stopped(2, Level::Raid1, 2);
    let mut w = w.again(30, devices(0..1), false);
    w.command(Command::Stop).unwrap();
    let mut w = w.again(31, devices(1..2), false);
    w.command(Command::Stop).unwrap();
    for force in [false, true] {
        let w = World::assembling(w.disks.clone(), 32, devices(0..2), force);
        let mut w = w;
        w.run();
        let message = &w.refusal().message;
        let hex = |n: u8| uuid(n)[..6].iter().map(|b| format!("{b:02x}")).collect::<String>();
        assert!(message.contains(&hex(30)) && message.contains(&hex(31)), "{message}");
    }
    let mut w = w.again(33, devices(1..2), false);
    assert_eq!(w.health(), [Health::Degraded]);
    w.command(Command::AddMember { device: device(0), uuid: uuid(60), wipe: false }).unwrap();
    assert_eq!(w.health(), [Health::Healthy]);
    w.command(Command::Stop).unwrap();
    let w = w.again(34, devices(0..2), false);
    assert_eq!(w.health(), [Health::Healthy]);
}

#[test]
fn a_member_that_fell_back_in_time_is_stale() {
    // Its device was restored from an image: it says that it is active, at a generation that has long been counted over.
    let mut w = World::array(3, 0);
    w.command(Command::CreateVolume(volume("v", Level::Raid5, 2, None))).unwrap();
    let image = w.disks[&1].clone();
    for _ in 0..3 {
        w.event(Event::DirtyNeeded { volume: VolumeId(0) });
        w.run();
        w.sleep();
    }
    w.command(Command::Stop).unwrap();
    w.disks.insert(1, image);
    let w = w.again(1, devices(0..3), false);
    assert!(w.noticed("member-stale").is_some());
    assert_eq!(w.health(), [Health::Degraded]);
}

#[test]
fn one_superblock_copy_is_enough_and_is_repaired() {
    for at in [100, end_copy_offset(SIZE) + 100] {
        let mut w = stopped(3, Level::Raid5, 3);
        w.disks.get_mut(&1).unwrap().corrupt(at);
        let w = w.again(1, devices(0..3), false);
        assert_eq!(w.health(), [Health::Healthy]);
        assert!(w.noticed("superblock-repaired").unwrap().message.contains("/dev/sd1"));
        assert!(Superblock::decode(&w.disks[&1].read(at / 4096 * 4096, 4096)).is_ok());
    }
}

#[test]
fn without_any_superblock_a_device_is_refused_and_the_others_assemble() {
    let mut w = stopped(3, Level::Raid5, 3);
    w.disks.get_mut(&1).unwrap().corrupt(100);
    w.disks.get_mut(&1).unwrap().corrupt(end_copy_offset(SIZE) + 100);
    let w = w.again(1, devices(0..3), false);
    assert_eq!(w.refusal().kind, ErrorKind::Corrupt);
    assert!(w.refusal().message.contains("both superblock copies of /dev/sd1"), "{}", w.refusal());
    let w = w.again(1, vec![device(0), device(2)], false);
    assert_eq!(w.health(), [Health::Degraded]);
}

#[test]
fn a_torn_slot_leaves_the_other_one() {
    for member in 0..3 {
        for slot in 0..2u64 {
            let mut w = stopped(3, Level::Raid5, 3);
            let sb = Superblock::decode(&w.disks[&0].read(0, 4096)).unwrap();
            w.disks.get_mut(&member).unwrap().corrupt(sb.slot_offset + slot * u64::from(sb.slot_len) + 40);
            let w = w.again(1, devices(0..3), false);
            assert_eq!(w.replies[&0], Ok(Answer::Done), "member {member} slot {slot}");
            assert!(w.view.volumes[0].online);
        }
    }
}

#[test]
fn devices_that_do_not_belong_together_are_refused() {
    let w = stopped(3, Level::Raid5, 3);
    let mut disks = w.disks;
    disks.insert(7, disks[&1].clone());
    let copy = World::assembling(disks.clone(), 1, vec![device(0), device(1), device(7)], false);
    let mut copy = copy;
    copy.run();
    assert!(copy.refusal().message.contains("same member"), "{}", copy.refusal());
    let twice = World::assembling(disks.clone(), 1, vec![device(0), device(0)], false).tap();
    assert!(twice.refusal().message.contains("twice"), "{}", twice.refusal());
    let none = World::assembling(disks.clone(), 1, Vec::new(), false).tap();
    assert_eq!(none.refusal().kind, ErrorKind::InvalidArgument);
    let blank = World::assembling(disks.clone(), 1, vec![device(0), device(5)], false).tap();
    assert!(blank.refusal().message.contains("/dev/sd5 has no raidd superblock"), "{}", blank.refusal());
    let other = ArraySpec { name: "other".into(), uuid: uuid(9), ..spec(1, 0) };
    let w = World::creating(disks, other, devices(5..6)).tap();
    let mixed = World::assembling(w.disks, 1, vec![device(0), device(5)], false).tap();
    assert!(mixed.refusal().message.contains("'other'") && mixed.refusal().message.contains("'tank'"));
}

#[test]
fn with_nobody_to_ask_what_is_no_member_counts_as_missing_and_is_not_touched() {
    // Blank, both copies rotten, a member of another array: none of them keeps a redundant array offline.
    for kind in 0..3 {
        let mut disks = stopped(3, Level::Raid5, 3).disks;
        match kind {
            0 => drop(disks.insert(1, Disk::default())),
            1 => [100, end_copy_offset(SIZE) + 100].iter().for_each(|at| disks.get_mut(&1).unwrap().corrupt(*at)),
            _ => {
                let other = ArraySpec { name: "other".into(), uuid: uuid(9), ..spec(1, 0) };
                let w = World::creating(disks, other, devices(5..6)).tap();
                disks = w.disks;
                let stranger = disks[&5].clone();
                disks.insert(1, stranger);
            }
        }
        let before = disks[&1].read(0, SIZE);
        let refused = World::assembling(disks.clone(), 1, devices(0..3), false).tap();
        assert!(refused.replies[&0].is_err(), "kind {kind}: an operator named it");
        let w = World::expecting(disks.clone(), 1, devices(0..3), uuid(200)).tap();
        assert_eq!(w.replies[&0], Ok(Answer::Done), "kind {kind}");
        assert!(w.noticed("member-unrecognised").is_some_and(|n| n.message.contains("/dev/sd1")), "kind {kind}");
        assert_eq!(w.health(), [Health::Degraded], "kind {kind}");
        assert!(w.disks[&1].read(0, SIZE) == before, "kind {kind}: it was written to");
        // The wrong ones alone are a refusal that says why.
        let none = World::expecting(disks, 1, devices(1..2), uuid(200)).tap();
        assert!(none.replies[&0].is_err(), "kind {kind}");
    }
}

#[test]
fn an_unreadable_or_shrunk_device_counts_as_missing() {
    let mut w = stopped(3, Level::Raid5, 3);
    w.disks.get_mut(&1).unwrap().unreadable = true;
    let w = w.again(1, devices(0..3), false);
    assert!(w.noticed("member-unreadable").is_some());
    assert_eq!(w.health(), [Health::Degraded]);

    let w = stopped(3, Level::Raid5, 3);
    let small = DeviceInfo { size: SIZE - MIB, ..device(1) };
    let w = w.again(1, vec![device(0), small, device(2)], false);
    assert!(w.noticed("member-shrunk").is_some());
    assert_eq!(w.health(), [Health::Degraded]);
}

#[test]
fn creation_refuses_what_cannot_be_right() {
    let refused = |spec: ArraySpec, devices: Vec<DeviceInfo>| {
        let w = World::creating(World::blank(8), spec, devices).tap();
        assert_eq!(writes(&w), 0);
        w.refusal().clone()
    };
    assert!(refused(spec(2, 2), devices(0..2)).message.contains("too few members"));
    assert!(refused(spec(0, 0), Vec::new()).message.contains("too few members"));
    assert!(refused(spec(2, 0), vec![device(0), device(0)]).message.contains("twice"));
    let elsewhere = DeviceInfo { id: DeviceId(5), ..device(0) };
    assert!(refused(spec(2, 0), vec![device(0), elsewhere]).message.contains("twice"));
    assert!(refused(ArraySpec { extent: Some(3 * MIB), ..spec(2, 0) }, devices(0..2)).message.contains("power of two"));
    assert!(refused(ArraySpec { extent: Some(1 << 30), ..spec(2, 0) }, devices(0..2)).message.contains("too little"));
    assert_eq!(refused(ArraySpec { shards: 0, ..spec(2, 0) }, devices(0..2)).kind, ErrorKind::InvalidArgument);
    assert_eq!(refused(spec(3, 0), devices(0..2)).kind, ErrorKind::InvalidArgument);
}

trait Tap {
    fn tap(self) -> Self;
}

impl Tap for World {
    /// Runs it to its end.
    fn tap(mut self) -> World {
        self.run();
        self
    }
}
