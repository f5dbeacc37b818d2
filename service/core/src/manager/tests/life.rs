//! What happens to a running array.

use super::world::*;
use crate::action::{Event, IoStatus, MemberId, ReqStatus, VolumeId};
use crate::geometry::Level;
use crate::manager::*;
use crate::view::{MemberState, SlotState};

fn create(w: &mut World, level: Level, groups: u64, width: Option<u16>) -> VolumeId {
    let data = match level {
        Level::Raid1 => 1,
        Level::Raid10 => 2,
        Level::Raid0 => 4,
        Level::Raid5 => 3,
        Level::Raid6 => 2,
    };
    let answer = w.command(Command::CreateVolume(volume("v", level, groups * data, width)));
    let Ok(Answer::Volume(id)) = answer else { panic!("{answer:?}") };
    id
}

fn fail(w: &mut World, member: u16) {
    w.event(Event::MemberFailed { member: MemberId(member), status: IoStatus::DeviceError });
}

#[test]
fn a_created_array_comes_back_with_its_volumes() {
    let mut w = World::array(4, 0);
    let id = create(&mut w, Level::Raid5, 3, Some(4));
    let before = w.manager.status();
    assert_eq!(before.volumes[0].health, Health::Healthy);
    assert_eq!(before.volumes[0].groups, 3);
    assert_eq!(w.command(Command::Stop), Ok(Answer::Done));
    assert!(!w.view.volumes[0].online, "engines were told to stop");
    let w = w.again(1, devices(0..4), false);
    assert_eq!(w.replies[&0], Ok(Answer::Done));
    let after = w.manager.status();
    assert_eq!(after.volumes, before.volumes);
    assert_eq!(after.members, before.members);
    assert!(after.generation > before.generation);
    assert!(w.view.volume(id).is_some_and(|v| v.online && !v.dirty));
    assert!(w.stripes.is_empty(), "nothing to resync after a clean stop");
}

#[test]
fn a_spare_takes_over_and_every_stripe_is_rebuilt_once() {
    let mut w = World::array(5, 1);
    let id = create(&mut w, Level::Raid5, 2, Some(4));
    w.stripes.clear();
    fail(&mut w, 1);
    fail(&mut w, 1);
    w.run();
    assert_eq!(w.health(), [Health::Healthy]);
    let mut expected: Vec<_> = (0..2).flat_map(|g| (0..16).map(move |s| (id.0, g, s, true))).collect();
    expected.sort_unstable();
    w.stripes.sort_unstable();
    assert_eq!(w.stripes, expected);
    for g in &w.view.volumes[0].groups {
        let mut members: Vec<u16> = g.slots.iter().map(|s| s.member.0).collect();
        members.sort_unstable();
        assert_eq!(members, [0, 2, 3, 4]);
        assert!(g.slots.iter().all(|s| s.state == SlotState::InSync));
    }
    let status = w.manager.status();
    let o = &status.operations.last().unwrap();
    assert_eq!((o.kind, o.state, o.done, o.total), (OperationKind::Rebuild, OperationState::Done, 6 * MIB, 6 * MIB));
    assert_eq!(o.member, Some(MemberId(1)));
    assert_eq!(w.notices.iter().filter(|n| n.code == "member-failed").count(), 1, "said once");
    assert_eq!(w.command(Command::RemoveMember(MemberId(1))), Ok(Answer::Done));
    let w = w.again(2, vec![device(0), device(2), device(3), device(4)], false);
    assert_eq!(w.health(), [Health::Healthy]);
}

#[test]
fn the_window_bounds_what_is_in_flight_and_two_lost_slots_are_one_pass() {
    let mut w = World::array(7, 2);
    create(&mut w, Level::Raid6, 1, Some(5));
    w.stripes.clear();
    w.hold_stripes = true;
    fail(&mut w, 0);
    fail(&mut w, 3);
    w.run();
    assert_eq!(w.held(), 8);
    let rebuilding = w.view.volumes[0].groups[0].slots.iter().filter(|s| s.state == SlotState::Rebuilding).count();
    assert_eq!(rebuilding, 2);
    w.hold_stripes = false;
    w.release();
    w.run();
    assert_eq!(w.stripes.len(), 16);
    assert_eq!(w.health(), [Health::Healthy]);
}

#[test]
fn a_second_loss_during_a_rebuild_takes_the_volume_offline_and_nothing_else() {
    let mut w = World::array(5, 1);
    create(&mut w, Level::Raid5, 2, Some(4));
    w.hold_stripes = true;
    fail(&mut w, 0);
    w.run();
    assert!(w.held() > 0);
    fail(&mut w, 1);
    w.run();
    assert_eq!(w.health(), [Health::Failed]);
    assert!(!w.view.volumes[0].online);
    assert!(w.noticed("volume-failed").is_some());
    w.release();
    w.run();
    let status = w.manager.status();
    assert_eq!(status.operations.last().unwrap().state, OperationState::Failed);
    assert_eq!(w.command(Command::Stop), Ok(Answer::Done));
}

/// Found by the simulator: the rebuild was left `Running` for ever, and whoever waited for it with it.
#[test]
fn when_every_member_fails_the_running_rebuild_ends() {
    let mut w = World::array(3, 1);
    create(&mut w, Level::Raid1, 2, Some(2));
    w.hold_stripes = true;
    fail(&mut w, 0);
    w.run();
    assert!(w.held() > 0);
    for member in [1, 2] {
        w.disks.get_mut(&member).unwrap().broken = Some(IoStatus::DeviceError);
        fail(&mut w, member);
    }
    w.run();
    assert!(w.noticed("array-failed").is_some());
    let status = w.manager.status();
    let last = status.operations.last().unwrap();
    assert_eq!(last.state, OperationState::Failed);
    assert!(!last.reason.is_empty());
    w.release();
    w.run();
}

#[test]
fn a_rebuild_target_that_fails_fails_only_itself() {
    let mut w = World::array(6, 2);
    create(&mut w, Level::Raid5, 2, Some(4));
    w.hold_stripes = true;
    fail(&mut w, 0);
    w.run();
    let target = w.view.volumes[0].groups[0].slots.iter().find(|s| s.state == SlotState::Rebuilding).unwrap().member;
    assert_eq!(target, MemberId(4));
    fail(&mut w, 4);
    w.run();
    assert!(w.view.volumes[0].online);
    w.hold_stripes = false;
    w.release();
    w.run();
    assert_eq!(w.health(), [Health::Healthy]);
    assert!(w.view.volumes[0].groups.iter().all(|g| g.slots.iter().any(|s| s.member == MemberId(5))));
}

#[test]
fn a_member_that_fails_in_the_middle_of_a_commit_is_recorded_and_the_commit_is_done_again() {
    let mut w = World::array(4, 0);
    create(&mut w, Level::Raid5, 1, Some(4));
    w.disks.get_mut(&2).unwrap().broken = Some(IoStatus::NoSpace);
    w.event(Event::DirtyNeeded { volume: VolumeId(0) });
    w.run();
    assert!(w.view.volumes[0].dirty);
    assert_eq!(w.view.members[2], MemberState::Failed);
    let status = w.manager.status();
    assert_eq!(status.members[2].reason, "no space");
    assert_eq!(w.health(), [Health::Degraded]);
    // No view was published in which the mark was set and the member still active: that commit did not count.
    assert!(!w.views.iter().any(|v| v.volumes.first().is_some_and(|x| x.dirty) && v.members[2] == MemberState::Active));
}

#[test]
fn a_failure_that_comes_during_a_commit_is_not_published_before_it_is_recorded() {
    for at in 0..12 {
        let mut w = World::array(4, 0);
        create(&mut w, Level::Raid5, 1, Some(4));
        w.event(Event::DirtyNeeded { volume: VolumeId(0) });
        for _ in 0..at {
            w.step();
        }
        fail(&mut w, 1);
        while w.view.members[1] != MemberState::Failed {
            assert!(w.step());
        }
        // The power goes with the publication: what is durable on the others says so too.
        let w = w.crash(0).again(3, devices(0..4), true);
        assert_eq!(w.manager.status().members[1].state, MemberState::Failed, "cut at {at}");
    }
}

#[test]
fn when_every_member_fails_commands_are_refused_and_nothing_hangs() {
    let mut w = World::array(2, 0);
    create(&mut w, Level::Raid1, 1, Some(2));
    for disk in w.disks.values_mut() {
        disk.broken = Some(IoStatus::DeviceError);
    }
    w.event(Event::DirtyNeeded { volume: VolumeId(0) });
    w.run();
    assert_eq!(w.manager.status().state, ArrayState::Failed);
    assert!(!w.view.volumes[0].online);
    assert!(w.command(Command::DeleteVolume(VolumeId(0))).is_err());
    assert_eq!(w.command(Command::Stop), Ok(Answer::Done));
    for disk in w.disks.values_mut() {
        disk.broken = None;
    }
    let w = w.again(3, devices(0..2), false);
    assert_eq!(w.replies[&0], Ok(Answer::Done), "the last configuration that counted is still there");
}

#[test]
fn the_dirty_mark_is_committed_before_it_is_published_and_goes_when_idle() {
    let mut w = World::array(3, 0);
    create(&mut w, Level::Raid5, 1, Some(3));
    assert!(w.view.volumes[0].track_dirty && !w.view.volumes[0].dirty);
    let generation = w.view.generation;
    w.event(Event::DirtyNeeded { volume: VolumeId(0) });
    w.run();
    assert!(w.view.volumes[0].dirty);
    assert!(w.view.generation > generation);
    w.hold_quiesce = true;
    w.sleep();
    assert!(!w.view.volumes[0].dirty, "engines ask again");
    assert!(w.manager.status().volumes[0].dirty, "the mark is still on disk");
    // A write comes while the engines finish: the mark stays.
    w.event(Event::DirtyNeeded { volume: VolumeId(0) });
    w.run();
    assert!(w.view.volumes[0].dirty);
    w.release();
    w.run();
    assert!(w.view.volumes[0].dirty && w.manager.status().volumes[0].dirty);
    w.hold_quiesce = false;
    w.sleep();
    assert!(!w.view.volumes[0].dirty && !w.manager.status().volumes[0].dirty);
    assert_eq!(w.manager.next_deadline(), None);
    let w = w.crash(0).again(4, devices(0..3), false);
    assert!(w.stripes.is_empty(), "clean: nothing to resync");
}

#[test]
fn no_view_says_dirty_between_the_soft_view_and_the_clean_commit() {
    // Another commit is under way at each moment of the cleaning; a view with the mark would let a write run unmarked.
    for at in 0..40 {
        let mut w = World::array(4, 0);
        w.command(Command::CreateVolume(volume("a", Level::Raid5, 3, None))).unwrap();
        w.command(Command::CreateVolume(volume("b", Level::Raid5, 3, None))).unwrap();
        w.event(Event::DirtyNeeded { volume: VolumeId(0) });
        w.run();
        w.views.clear();
        w.now = w.manager.next_deadline().unwrap();
        w.manager.tick(w.now);
        for _ in 0..at {
            w.step();
        }
        w.event(Event::DirtyNeeded { volume: VolumeId(1) });
        w.run();
        let soft = w.views.iter().position(|v| !v.volumes[0].dirty).unwrap();
        assert!(w.views[soft..].iter().all(|v| !v.volumes[0].dirty), "cut at {at}");
        assert!(w.view.volumes[1].dirty);
        assert!(!w.manager.status().volumes[0].dirty);
    }
}

#[test]
fn a_write_that_asks_at_any_moment_of_the_cleaning_gets_its_mark() {
    for at in 0..40 {
        let mut w = World::array(3, 0);
        create(&mut w, Level::Raid5, 1, Some(3));
        w.event(Event::DirtyNeeded { volume: VolumeId(0) });
        w.run();
        w.now = w.manager.next_deadline().unwrap();
        w.manager.tick(w.now);
        for _ in 0..at {
            w.step();
        }
        if !w.view.volumes[0].dirty {
            w.event(Event::DirtyNeeded { volume: VolumeId(0) });
            w.run();
            assert!(w.view.volumes[0].dirty, "cut at {at}");
            assert!(w.manager.status().volumes[0].dirty, "cut at {at}");
            let w = w.crash(0).again(9, devices(0..3), false);
            assert!(w.noticed("resync-needed").is_some(), "cut at {at}: the mark was durable");
        }
    }
}

#[test]
fn an_unclean_stop_resyncs_group_by_group_and_goes_on_after_another_one() {
    let mut w = World::array(3, 0);
    let Ok(Answer::Volume(id)) = w.command(Command::CreateVolume(volume("v", Level::Raid5, 6, None))) else { panic!() };
    w.event(Event::DirtyNeeded { volume: id });
    w.run();
    let mut w = World::assembling(w.crash(0).disks, 5, devices(0..3), false);
    w.hold_stripes = true;
    w.run();
    assert_eq!(w.replies[&0], Ok(Answer::Done));
    assert_eq!(w.health(), [Health::Resyncing]);
    assert!(w.view.volumes[0].groups.iter().all(|g| !g.synced));
    // One group through, then the power goes again: only the others are left.
    while w.view.volumes[0].groups.iter().all(|g| !g.synced) {
        w.release();
        w.run();
    }
    let w = w.crash(0).again(6, devices(0..3), false);
    assert!(w.noticed("resync-needed").is_none(), "no write since");
    assert_eq!(w.stripes.len(), 2 * 16);
    assert_eq!(w.health(), [Health::Healthy]);
}

#[test]
fn policy_none_has_no_mark() {
    let mut w = World::array(2, 0);
    let spec = VolumeSpec { policy: Policy::None, ..volume("v", Level::Raid1, 1, None) };
    w.command(Command::CreateVolume(spec)).unwrap();
    assert!(!w.view.volumes[0].track_dirty);
    let w = w.crash(0).again(5, devices(0..2), false);
    assert!(w.stripes.is_empty());
}

#[test]
fn slow_zeroing_means_a_resync_instead() {
    let slow: Vec<_> = devices(0..3).into_iter().map(|d| DeviceInfo { fast_zero: false, ..d }).collect();
    let mut w = World::creating(World::blank(3), spec(3, 0), slow);
    w.run();
    w.command(Command::CreateVolume(volume("v", Level::Raid5, 2, None))).unwrap();
    assert_eq!(w.stripes.len(), 16);
    assert!(w.stripes.iter().all(|s| !s.3));
    assert_eq!(w.health(), [Health::Healthy]);
}

#[test]
fn cancelled_work_stays_cancelled_until_a_member_is_added() {
    let mut w = World::array(5, 1);
    create(&mut w, Level::Raid5, 2, Some(4));
    w.hold_stripes = true;
    fail(&mut w, 0);
    w.run();
    let id = w.manager.status().operations.last().unwrap().id;
    assert_eq!(w.command(Command::CancelOperation(id)), Ok(Answer::Done));
    w.release();
    w.hold_stripes = false;
    w.run();
    assert_eq!(w.health(), [Health::Degraded]);
    assert_eq!(w.manager.status().operations.last().unwrap().state, OperationState::Cancelled);
    assert!(w.command(Command::CancelOperation(id)).is_err());
    assert!(w.command(Command::CancelOperation(99)).is_err());
    w.command(Command::AddMember { device: device(6), uuid: uuid(60), wipe: false }).unwrap();
    assert_eq!(w.health(), [Health::Healthy]);
}

#[test]
fn a_stripe_that_cannot_be_rebuilt_blocks_its_group_and_the_operation_says_so() {
    let mut w = World::array(5, 1);
    create(&mut w, Level::Raid5, 2, Some(4));
    w.stripe_status = ReqStatus::Unrecoverable;
    fail(&mut w, 0);
    w.run();
    let status = w.manager.status();
    let o = status.operations.last().unwrap();
    assert_eq!(o.state, OperationState::Failed);
    assert!(o.reason.contains("cannot be read"), "{}", o.reason);
    assert_eq!(w.health(), [Health::Degraded]);
    assert!(w.view.volumes[0].online);
    // A restart tries again.
    let mut w = w.again(7, (1..5).map(device).collect(), false);
    w.run();
    assert_eq!(w.health(), [Health::Healthy]);
}

#[test]
fn replacing_a_working_member_and_a_failed_one() {
    let mut w = World::array(4, 0);
    create(&mut w, Level::Raid5, 2, Some(4));
    let replace = |member, device| Command::ReplaceMember { member, device, uuid: uuid(70), wipe: false };
    let none = w.command(replace(MemberId(1), None)).unwrap_err();
    assert_eq!(none.kind, ErrorKind::FailedPrecondition);
    assert!(none.message.contains("no spare"), "{none}");
    let answer = w.command(replace(MemberId(1), Some(device(5))));
    assert!(matches!(answer, Ok(Answer::Operation(_))), "{answer:?}");
    w.run();
    assert_eq!(w.health(), [Health::Healthy]);
    let status = w.manager.status();
    let members: Vec<u16> = status.members.iter().map(|m| m.id.0).collect();
    assert_eq!(members, [0, 2, 3, 4]);
    assert!(w.noticed("member-replaced").is_some());

    fail(&mut w, 0);
    w.run();
    assert_eq!(w.health(), [Health::Degraded]);
    // Another one would take the volume down.
    let refused = w.command(Command::FailMember(MemberId(2))).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::FailedPrecondition);
    let replace = Command::ReplaceMember { member: MemberId(0), device: Some(device(6)), uuid: uuid(71), wipe: false };
    w.command(replace).unwrap();
    w.run();
    assert_eq!(w.health(), [Health::Healthy]);
    let mut w = w.again(8, vec![device(2), device(3), device(5), device(6)], false);
    assert_eq!(w.health(), [Health::Healthy]);
    assert_eq!(w.command(Command::FailMember(MemberId(2))), Ok(Answer::Done));
    assert_eq!(w.health(), [Health::Degraded]);
}

#[test]
fn removing_is_refused_for_a_member_in_use_and_a_removed_spare_is_blank() {
    let mut w = World::array(4, 1);
    create(&mut w, Level::Raid5, 1, Some(3));
    let refused = w.command(Command::RemoveMember(MemberId(0))).unwrap_err();
    assert!(refused.message.contains("replace"), "{refused}");
    assert_eq!(w.command(Command::RemoveMember(MemberId(3))), Ok(Answer::Done));
    assert_eq!(w.command(Command::RemoveMember(MemberId(3))).unwrap_err().kind, ErrorKind::NotFound);
    assert!(w.disks[&3].read(0, 4096).iter().all(|b| *b == 0));
    let w = w.again(1, devices(0..3), false);
    assert_eq!(w.health(), [Health::Healthy]);
}

#[test]
fn free_extents_of_the_others_are_the_distributed_spare() {
    let mut w = World::array(5, 0);
    create(&mut w, Level::Raid5, 5, Some(3));
    let groups: Vec<Vec<u16>> =
        w.view.volumes[0].groups.iter().map(|g| g.slots.iter().map(|s| s.member.0).collect()).collect();
    assert!((0..5).all(|m| groups.iter().any(|g| g.contains(&m))), "groups rotate over the members");
    fail(&mut w, 2);
    w.run();
    assert_eq!(w.health(), [Health::Healthy]);
    for g in &w.view.volumes[0].groups {
        let mut members: Vec<u16> = g.slots.iter().map(|s| s.member.0).collect();
        members.sort_unstable();
        members.dedup();
        assert_eq!(members.len(), 3);
        assert!(!members.contains(&2));
    }
}

#[test]
fn space_is_counted_given_back_and_never_given_out_twice() {
    let mut w = World::array(3, 0);
    let extents = u64::from(w.manager.status().members[0].extents);
    let too_large = w.command(Command::CreateVolume(volume("v", Level::Raid5, 2 * extents + 1, None))).unwrap_err();
    assert_eq!(too_large.kind, ErrorKind::NoSpace);
    assert!(too_large.message.contains(&format!("at most {} MiB free", 2 * extents)), "{too_large}");
    let all = VolumeSpec { size: None, ..volume("v", Level::Raid5, 1, None) };
    w.command(Command::CreateVolume(all)).unwrap();
    let status = w.manager.status();
    assert_eq!(status.volumes[0].size, 2 * extents * MIB);
    assert!(status.members.iter().all(|m| m.extents_used == m.extents));
    let full = w.command(Command::CreateVolume(volume("w", Level::Raid1, 1, Some(2)))).unwrap_err();
    assert_eq!(full.kind, ErrorKind::NoSpace);
    // Deleted, but engines may still write there: not given out before they have let go.
    w.hold_quiesce = true;
    assert_eq!(w.command(Command::DeleteVolume(VolumeId(0))), Ok(Answer::Done));
    assert_eq!(
        w.command(Command::CreateVolume(volume("w", Level::Raid1, 1, Some(2)))).unwrap_err().kind,
        ErrorKind::NoSpace
    );
    w.release();
    w.run();
    assert_eq!(
        w.command(Command::CreateVolume(volume("w", Level::Raid1, 1, Some(2)))),
        Ok(Answer::Volume(VolumeId(1)))
    );
    assert_eq!(w.command(Command::DeleteVolume(VolumeId(0))).unwrap_err().kind, ErrorKind::NotFound);
}

#[test]
fn volumes_that_cannot_be_right_are_refused() {
    let mut w = World::array(4, 0);
    w.command(Command::CreateVolume(volume("v", Level::Raid5, 3, None))).unwrap();
    let bad = |w: &mut World, spec| w.command(Command::CreateVolume(spec)).unwrap_err();
    assert_eq!(bad(&mut w, volume("v", Level::Raid5, 3, None)).kind, ErrorKind::AlreadyExists);
    let cases = [
        volume("", Level::Raid5, 3, None),
        volume("w", Level::Raid5, 3, Some(2)),
        volume("w", Level::Raid5, 3, Some(5)),
        volume("w", Level::Raid10, 3, Some(3)),
        VolumeSpec { chunk: 5000, ..volume("w", Level::Raid5, 3, None) },
        VolumeSpec { block_size: 520, ..volume("w", Level::Raid5, 3, None) },
        VolumeSpec { size: Some(1000), ..volume("w", Level::Raid5, 3, None) },
    ];
    for spec in cases {
        assert_eq!(bad(&mut w, spec).kind, ErrorKind::InvalidArgument);
    }
}

#[test]
fn a_member_that_fails_while_a_volume_is_created_undoes_the_creation() {
    let mut w = World::array(3, 0);
    let tag = w.start(Command::CreateVolume(volume("v", Level::Raid5, 2, None)));
    w.step();
    fail(&mut w, 1);
    w.run();
    let error = w.replies[&tag].as_ref().unwrap_err();
    assert_eq!(error.kind, ErrorKind::Device);
    assert!(w.manager.status().volumes.is_empty());
    assert_eq!(w.manager.status().operations[0].state, OperationState::Failed);
}

#[test]
fn adding_refuses_what_carries_data_and_takes_back_its_own() {
    let mut w = World::array(3, 0);
    create(&mut w, Level::Raid5, 1, Some(3));
    let add = |n, wipe| Command::AddMember { device: device(n), uuid: uuid(80 + n as u8), wipe };
    assert_eq!(w.command(add(0, true)).unwrap_err().kind, ErrorKind::AlreadyExists);
    w.disks.get_mut(&4).unwrap().write(0, &[b"XFSB".to_vec(), vec![0; 4092]].concat());
    let refused = w.command(add(4, false)).unwrap_err();
    assert!(refused.message.contains("XFS") && refused.message.contains("--wipe"), "{refused}");
    assert_eq!(w.disks[&4].read(0, 4), World::blank(1)[&0].read(0, 4), "zero length");
    assert_eq!(&w.disks[&4].read(0, 4096)[..4], b"XFSB", "nothing was changed");
    assert_eq!(w.command(add(4, true)), Ok(Answer::Member(MemberId(3))));
    // A failed member's own device comes back without being asked to wipe.
    fail(&mut w, 1);
    w.run();
    assert_eq!(w.health(), [Health::Healthy]);
    assert_eq!(w.command(add(1, false)), Ok(Answer::Member(MemberId(4))));
    assert_eq!(w.manager.status().members.iter().filter(|m| m.device == Some(DeviceId(1))).count(), 1);
}

#[test]
fn a_deleted_array_leaves_nothing_that_assembles() {
    let mut w = World::array(3, 0);
    create(&mut w, Level::Raid5, 1, Some(3));
    assert!(w.command(Command::Delete).unwrap_err().message.contains("(v)"), "volumes hold data");
    assert_eq!(w.command(Command::DeleteVolume(VolumeId(0))), Ok(Answer::Done));
    assert_eq!(w.command(Command::Delete), Ok(Answer::Done));
    assert_eq!(w.command(Command::Stop).unwrap_err().kind, ErrorKind::FailedPrecondition);
    let w = w.again(1, devices(0..3), false);
    assert!(w.refusal().message.contains("no member"), "{}", w.refusal());
    let mut w = World::creating(w.disks, spec(3, 0), devices(0..3));
    w.run();
    assert_eq!(w.replies[&0], Ok(Answer::Done), "no wipe is needed");
}

#[test]
fn engines_words_are_counted_and_said_seldom() {
    let mut w = World::array(3, 0);
    create(&mut w, Level::Raid5, 1, Some(3));
    for _ in 0..1000 {
        w.event(Event::ReadRepaired { member: MemberId(1), offset: 0, len: 4096 });
        w.event(Event::DataLost { volume: VolumeId(0), offset: 0, len: 4096 });
    }
    w.event(Event::MemberFailed { member: MemberId(77), status: IoStatus::Timeout });
    w.event(Event::DirtyNeeded { volume: VolumeId(77) });
    w.run();
    let status = w.manager.status();
    assert_eq!(status.members[1].read_repairs, 1000);
    assert_eq!(status.volumes[0].lost_bytes, 4_096_000);
    assert!(w.notices.len() < 40, "{}", w.notices.len());
}

#[test]
fn a_member_that_cannot_read_too_often_is_failed_while_the_others_have_everything() {
    let limit = u64::from(Config::default().read_error_limit);
    let mut w = World::array(4, 0);
    create(&mut w, Level::Raid5, 2, Some(4));
    let repaired = |w: &mut World, member| {
        w.event(Event::ReadRepaired { member: MemberId(member), offset: 0, len: 4096 });
        w.run();
    };
    // Slowly: half of them are forgotten each hour.
    for _ in 0..limit * 4 {
        repaired(&mut w, 1);
        w.now = w.now.after(3_600_000_000_000);
    }
    assert_eq!(w.health(), [Health::Healthy]);
    assert_eq!(w.manager.status().members[1].read_repairs, limit * 4, "they are counted all the same");
    for _ in 0..limit {
        repaired(&mut w, 2);
    }
    assert_eq!(w.health(), [Health::Healthy]);
    repaired(&mut w, 2);
    assert_eq!(w.health(), [Health::Degraded]);
    let member = &w.manager.status().members[2];
    assert!(member.reason.contains("could not be read"), "{}", member.reason);
    // The others are needed now.
    for _ in 0..limit * 2 {
        repaired(&mut w, 3);
    }
    assert_eq!(w.health(), [Health::Degraded]);
}
