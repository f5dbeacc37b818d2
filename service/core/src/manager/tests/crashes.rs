//! The power goes at every answer of every kind of change, with several choices of what was still in the caches, and the
//! array is assembled again: the old configuration or the new one, and everything that engines were told to rely on.

use super::world::*;
use crate::action::{Event, IoStatus, MemberId, VolumeId};
use crate::geometry::Level;
use crate::manager::*;
use crate::view::{MemberState, SlotState, View};

const MODES: [u64; 4] = [0, 1, 2, 7];

fn fail(w: &mut World, member: u16) {
    w.event(Event::MemberFailed { member: MemberId(member), status: IoStatus::DeviceError });
}

/// Runs `change` on a fresh array and cuts it after each number of answers, until it is through.
fn cut_everywhere(
    setup: impl Fn() -> World,
    change: impl Fn(&mut World),
    devices: &[u16],
    check: impl Fn(&World, &View, u64),
) {
    let mut cut = 0;
    loop {
        let mut through = false;
        for mode in MODES {
            let mut w = setup();
            change(&mut w);
            through = (0..cut).any(|_| !w.step());
            let promised = w.view.clone();
            let all = devices.iter().map(|d| device(*d)).collect();
            let mut after = World::assembling(w.crash(mode).disks, 77, all, false);
            after.run();
            check_promises(&after, &promised, cut);
            check(&after, &promised, cut);
        }
        if through {
            assert!(cut > 5, "only {cut} cuts: nothing was tested");
            return;
        }
        cut += 1;
    }
}

/// What every assembly after a crash owes to the engines' last view.
fn check_promises(after: &World, promised: &View, cut: u64) {
    if let Err(e) = &after.replies[&0] {
        // Parity cannot be trusted where a member is gone and writes were under way: that is said, not guessed.
        let dirty = promised.volumes.iter().any(|v| v.dirty);
        assert!(dirty && e.message.contains("not stopped cleanly"), "cut {cut}: {e}");
        return;
    }
    assert!(after.view.generation > promised.generation, "cut {cut}: an older configuration came back");
    for (m, state) in promised.members.iter().enumerate() {
        if *state == MemberState::Failed {
            let now = after.view.members[m];
            assert!(matches!(now, MemberState::Failed | MemberState::Removed), "cut {cut}: member {m} is {now:?}");
        }
        if *state == MemberState::Active {
            let now = after.view.members[m];
            let fine = matches!(now, MemberState::Active) || after.notices.iter().all(|n| n.code != "member-stale");
            assert!(
                fine || promised.members.len() < after.view.members.len() || recorded_failed(after, m),
                "cut {cut}"
            );
        }
    }
    // A volume that engines have been told is offline is written to by nobody.
    for v in promised.volumes.iter().filter(|v| v.dirty && v.online) {
        let noticed = after.notices.iter().any(|n| n.code == "resync-needed" && n.volume == Some(v.id));
        assert!(noticed || after.view.volume(v.id).is_none(), "cut {cut}: a durable mark is gone");
    }
    check_slots(after, promised, cut);
}

/// A member that is stale must have been recorded as failed, not just be behind.
fn recorded_failed(after: &World, member: usize) -> bool {
    let status = after.manager.status();
    let reason = status.members.iter().find(|m| usize::from(m.id.0) == member).map(|m| m.reason.clone());
    reason.is_none_or(|r| !r.contains("stale"))
}

/// A slot that is read now and was not before the crash was rebuilt, and all of the rebuild is durable.
fn check_slots(after: &World, promised: &View, cut: u64) {
    let first = after.views.iter().find(|v| v.volumes.iter().any(|v| v.online));
    let Some(first) = first else { return };
    for v in &first.volumes {
        let Some(before) = promised.volume(v.id) else { continue };
        for (g, group) in v.groups.iter().enumerate() {
            for (s, slot) in group.slots.iter().enumerate() {
                let old = before.groups[g].slots[s];
                if slot.state != SlotState::InSync || old.state == SlotState::InSync && old.member == slot.member {
                    continue;
                }
                let device = after.behind[usize::from(slot.member.0)].expect("it is read").0;
                for stripe in 0..u64::from(v.geometry.stripes()) {
                    let at = slot.offset + stripe * u64::from(v.geometry.chunk);
                    let block = after.disks[&device].read(at, 4096);
                    assert_eq!(block[0], REBUILT, "cut {cut}: group {g} slot {s} is read and was not rebuilt");
                }
            }
        }
    }
}

fn with_volume(members: u16, spares: u16, level: Level, width: u16) -> World {
    let mut w = World::array(members, spares);
    w.command(Command::CreateVolume(volume("v", level, 6, Some(width)))).unwrap();
    w
}

#[test]
fn creation() {
    let mut cut = 0;
    loop {
        let mut through = false;
        for mode in MODES {
            let mut w = World::creating(World::blank(3), spec(3, 0), devices(0..3));
            through = (0..cut).any(|_| !w.step());
            let acknowledged = w.replies.contains_key(&0);
            let w = w.crash(mode).again(5, devices(0..3), false);
            match &w.replies[&0] {
                Ok(_) => assert_eq!(w.manager.status().members.len(), 3),
                Err(e) => {
                    assert!(!acknowledged, "cut {cut}: {e}");
                    let known = ["no raidd superblock", "interrupted", "whole configuration", "both superblock copies"];
                    assert!(known.iter().any(|k| e.message.contains(k)), "cut {cut}: {e}");
                    // Whatever is left, `--wipe` gets over it.
                    let again = ArraySpec { wipe: true, ..spec(3, 0) };
                    let mut w = World::creating(w.disks, again, devices(0..3));
                    w.run();
                    assert_eq!(w.replies[&0], Ok(Answer::Done), "cut {cut}");
                }
            }
        }
        if through {
            break;
        }
        cut += 1;
    }
}

#[test]
fn recreation_over_an_earlier_array() {
    // The second array has fewer members. No cut may bring up a mixture, or the first one with a volume that is half gone.
    let mut cut = 0;
    loop {
        let mut through = false;
        for mode in MODES {
            let w = with_volume(4, 0, Level::Raid5, 4);
            let other = ArraySpec { wipe: true, name: "other".into(), uuid: uuid(222), ..spec(3, 0) };
            let mut w = World::creating(w.disks, other, devices(0..3));
            through = (0..cut).any(|_| !w.step());
            let w = w.crash(mode).again(5, devices(0..3), false);
            if w.replies[&0].is_ok() {
                let status = w.manager.status();
                match status.name.as_str() {
                    "other" => assert_eq!((status.members.len(), status.volumes.len()), (3, 0), "cut {cut}"),
                    _ => assert_eq!((status.members.len(), status.volumes.len()), (4, 1), "cut {cut}"),
                }
            }
        }
        if through {
            return;
        }
        cut += 1;
    }
}

#[test]
fn volumes_come_and_go_whole() {
    cut_everywhere(
        || World::array(3, 0),
        |w| {
            w.start(Command::CreateVolume(volume("v", Level::Raid5, 4, None)));
        },
        &[0, 1, 2],
        |after, promised, cut| {
            assert!(after.view.volumes.len() >= promised.volumes.len(), "cut {cut}: a published volume is gone");
            assert!(after.health().iter().all(|h| *h == Health::Healthy));
        },
    );
    cut_everywhere(
        || with_volume(3, 0, Level::Raid5, 3),
        |w| {
            w.start(Command::DeleteVolume(VolumeId(0)));
        },
        &[0, 1, 2],
        |after, promised, cut| {
            assert!(after.view.volumes.len() <= promised.volumes.len(), "cut {cut}: a deleted volume came back");
        },
    );
}

#[test]
fn a_dirty_mark() {
    cut_everywhere(
        || with_volume(3, 0, Level::Raid5, 3),
        |w| w.event(Event::DirtyNeeded { volume: VolumeId(0) }),
        &[0, 1, 2],
        |after, _, cut| assert_eq!(after.health(), [Health::Healthy], "cut {cut}"),
    );
}

#[test]
fn the_cleaning_of_an_idle_volume() {
    let setup = || {
        let mut w = with_volume(3, 0, Level::Raid5, 3);
        w.event(Event::DirtyNeeded { volume: VolumeId(0) });
        w.run();
        w.now = w.manager.next_deadline().unwrap();
        w
    };
    cut_everywhere(setup, |w| w.manager.tick(w.now), &[0, 1, 2], |_, _, _| {});
}

#[test]
fn a_failure_with_a_spare_and_its_rebuild() {
    cut_everywhere(
        || with_volume(5, 1, Level::Raid5, 4),
        |w| fail(w, 1),
        &[0, 1, 2, 3, 4],
        |after, promised, cut| {
            assert!(after.view.volumes[0].online, "cut {cut}");
            if promised.members[1] == MemberState::Failed {
                assert_eq!(after.health(), [Health::Healthy], "cut {cut}: the rebuild went on to its end");
            }
        },
    );
}

#[test]
fn two_failures_of_raid6_and_two_rebuilds() {
    cut_everywhere(
        || with_volume(6, 2, Level::Raid6, 4),
        |w| {
            fail(w, 0);
            fail(w, 2);
        },
        &[0, 1, 2, 3, 4, 5],
        |after, _, cut| assert!(after.view.volumes[0].online, "cut {cut}"),
    );
}

#[test]
fn a_failure_while_writes_are_under_way() {
    cut_everywhere(
        || with_volume(3, 0, Level::Raid5, 3),
        |w| {
            w.event(Event::DirtyNeeded { volume: VolumeId(0) });
            fail(w, 2);
        },
        &[0, 1, 2],
        |_, _, _| {},
    );
}

#[test]
fn adding_replacing_and_removing() {
    let add = Command::AddMember { device: device(4), uuid: uuid(90), wipe: false };
    let replace = Command::ReplaceMember { member: MemberId(1), device: Some(device(4)), uuid: uuid(91), wipe: false };
    for command in [add, replace] {
        cut_everywhere(
            || with_volume(3, 0, Level::Raid5, 3),
            |w| {
                w.start(command.clone());
            },
            &[0, 1, 2],
            |after, _, cut| assert!(after.view.volumes[0].online, "cut {cut}"),
        );
    }
    cut_everywhere(
        || with_volume(4, 1, Level::Raid5, 3),
        |w| {
            w.start(Command::RemoveMember(MemberId(3)));
        },
        &[0, 1, 2],
        |after, _, cut| assert_eq!(after.health(), [Health::Healthy], "cut {cut}"),
    );
}

#[test]
fn a_clean_stop() {
    let setup = || {
        let mut w = with_volume(3, 0, Level::Raid5, 3);
        w.event(Event::DirtyNeeded { volume: VolumeId(0) });
        w.run();
        w
    };
    cut_everywhere(
        setup,
        |w| {
            w.start(Command::Stop);
        },
        &[0, 1, 2],
        |after, _, cut| assert_eq!(after.health(), [Health::Healthy], "cut {cut}"),
    );
}

/// Interrupted assemblies leave members up to several unfinished commits apart. None of them is stale: nothing was
/// acknowledged that one of them missed.
#[test]
fn any_number_of_interrupted_assemblies_makes_no_member_stale() {
    for seed in 0..150u64 {
        let mut w = with_volume(4, 0, Level::Raid5, 4);
        w.event(Event::DirtyNeeded { volume: VolumeId(0) });
        w.run();
        let mut w = w.crash(0);
        let mut dice = seed * 2 + 1;
        for round in 0..4u8 {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let mut next = World::assembling(w.disks, 10 + round, devices(0..4), false);
            for _ in 0..20 + (dice >> 33) % 40 {
                next.step();
            }
            w = next.crash(dice >> 40);
        }
        let w = w.again(50, devices(0..4), false);
        assert_eq!(w.replies[&0], Ok(Answer::Done), "seed {seed}");
        assert!(w.noticed("member-stale").is_none() && w.noticed("member-missing").is_none(), "seed {seed}");
        assert_eq!(w.health(), [Health::Healthy], "seed {seed}");
    }
}

/// One member has a commit that no other has, and is away at the next assembly. When it returns it is stale, and not
/// another history: nobody relied on what it has.
#[test]
fn the_rest_of_an_unfinished_commit_is_no_history() {
    for alone in 0..3u16 {
        let mut w = with_volume(3, 0, Level::Raid5, 3);
        w.event(Event::DirtyNeeded { volume: VolumeId(0) });
        // The writes are ordered; only one device's reaches the medium.
        w.step();
        for (n, disk) in &mut w.disks {
            disk.crash(u64::from(*n == alone));
        }
        let others: Vec<_> = (0..3).filter(|m| *m != alone).map(device).collect();
        let mut w = w.again(20, others, false);
        assert_eq!(w.replies[&0], Ok(Answer::Done), "member {alone}");
        w.command(Command::Stop).unwrap();
        let w = w.again(21, devices(0..3), false);
        assert_eq!(w.replies[&0], Ok(Answer::Done), "member {alone}");
        assert!(w.noticed("member-stale").is_some());
    }
}
