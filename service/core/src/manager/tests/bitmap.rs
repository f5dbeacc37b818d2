//! The write-intent bitmap. Each promise is tried with the power cut at every answer: what engines see as writable is on
//! disk as such, what is clean on disk is so on all members, and nothing that was unwritten shows old data.

use super::world::*;
use crate::action::{Event, IoStatus, MemberId, VolumeId};
use crate::geometry::Level;
use crate::manager::*;
use crate::regions::{Region, RegionMap};
use crate::view::{SlotState, View};

const V: VolumeId = VolumeId(0);
/// Somebody else's old data.
const OLD: u8 = 0x5A;

/// RAID-5 over four of the members, four groups of one region each, on devices that are full of old data.
fn with_bitmap(members: u16, spares: u16, level: Level, width: u16) -> World {
    let mut w = World::array(members, spares);
    for disk in w.disks.values_mut() {
        for block in (MIB..SIZE - MIB).step_by(64 << 10) {
            disk.write(block, &[OLD; 4096]);
        }
    }
    let groups = Geometry::of(level, width) * 4;
    let spec = VolumeSpec { policy: Policy::Bitmap, ..volume("v", level, groups, Some(width)) };
    w.command(Command::CreateVolume(spec)).expect("there is room");
    w
}

struct Geometry;

impl Geometry {
    /// Data extents of a group.
    fn of(level: Level, width: u16) -> u64 {
        crate::geometry::Geometry { level, width, chunk: 65536, extent: MIB, shards: 4 }.data_columns().into()
    }
}

fn map(view: &View) -> RegionMap {
    view.volume(V).and_then(|v| v.regions.clone()).expect("the volume has a bitmap")
}

/// What an engine does before it writes.
fn ask(w: &mut World, region: u32) {
    w.event(Event::DirtyNeeded { volume: V });
    if !map(&w.view).get(region).writable() && map(&w.view).ask(region) {
        w.event(Event::RegionNeeded { volume: V, region });
    }
}

fn fail(w: &mut World, member: u16) {
    w.event(Event::MemberFailed { member: MemberId(member), status: IoStatus::DeviceError });
}

fn states(w: &World) -> Vec<Region> {
    let map = map(&w.view);
    (0..map.len()).map(|r| map.get(r)).collect()
}

/// What a region's slots hold at the start of each stripe.
fn content(w: &World, region: u32) -> Vec<u8> {
    let group = &w.view.volume(V).expect("it is there").groups[region as usize];
    let slots = group.slots.iter().filter(|s| s.state != SlotState::Missing);
    let places = slots.flat_map(|s| (0..16).map(move |i| (s.member, s.offset + i * 65536)));
    places.map(|(m, offset)| w.disks[&w.behind[usize::from(m.0)].expect("present").0].read(offset, 4096)[0]).collect()
}

#[test]
fn a_new_volume_is_unwritten_and_needs_no_sync() {
    let w = with_bitmap(4, 0, Level::Raid5, 4);
    assert_eq!(states(&w), [Region::Unwritten; 4]);
    assert_eq!(w.health(), [Health::Healthy]);
    assert!(w.stripes.is_empty(), "nothing was resynced");
    let view = w.view.volume(V).unwrap();
    assert!(view.track_dirty && view.groups.iter().all(|g| g.synced));
}

#[test]
fn the_first_write_of_a_region_makes_it_zeros_and_dirty_and_the_next_one_asks_nobody() {
    let mut w = with_bitmap(4, 0, Level::Raid5, 4);
    assert!(content(&w, 1).contains(&OLD));
    ask(&mut w, 1);
    assert_eq!(states(&w)[1], Region::Unwritten, "not before it is durable");
    w.run();
    assert_eq!(states(&w), [Region::Unwritten, Region::Dirty, Region::Unwritten, Region::Unwritten]);
    assert!(content(&w, 1).iter().all(|b| *b == 0));
    assert!(content(&w, 2).contains(&OLD), "only that region");
    assert!(w.nudges > 0, "engines are told");
    assert!(map(&w.view).touch(1, false));
}

#[test]
fn an_idle_region_becomes_clean_and_one_in_use_does_not() {
    let mut w = with_bitmap(4, 0, Level::Raid5, 4);
    (0..3).for_each(|r| ask(&mut w, r));
    w.run();
    // Every region is hot from its first write; one goes on.
    for _ in 0..8 {
        w.sleep();
        assert!(map(&w.view).touch(2, false));
    }
    assert_eq!(states(&w), [Region::Clean, Region::Clean, Region::Dirty, Region::Unwritten]);
    ask(&mut w, 0);
    w.run();
    assert_eq!(states(&w)[0], Region::Dirty);
    assert!(content(&w, 0).iter().all(|b| *b == 0));
}

#[test]
fn a_write_to_a_closing_region_opens_it_again_at_once() {
    let mut w = with_bitmap(4, 0, Level::Raid5, 4);
    ask(&mut w, 0);
    w.run();
    w.hold_quiesce = true;
    while states(&w)[0] != Region::Closing {
        w.sleep();
    }
    let writes: u64 = w.disks.values().map(|d| d.writes).sum();
    ask(&mut w, 0);
    assert_eq!(states(&w)[0], Region::Dirty, "it still is on disk");
    w.hold_quiesce = false;
    w.release();
    w.run();
    assert_eq!(states(&w)[0], Region::Dirty);
    assert_eq!(w.disks.values().map(|d| d.writes).sum::<u64>(), writes, "nothing was written for that");
}

#[test]
fn nothing_becomes_clean_in_a_degraded_group() {
    let mut w = with_bitmap(4, 0, Level::Raid5, 4);
    ask(&mut w, 0);
    w.run();
    fail(&mut w, 3);
    w.run();
    for _ in 0..8 {
        w.sleep();
    }
    assert_eq!(states(&w)[0], Region::Dirty, "the member missed something there");
}

#[test]
fn a_member_that_fails_while_a_region_closes_keeps_it_dirty() {
    for member in 0..4 {
        let mut w = with_bitmap(4, 0, Level::Raid5, 4);
        ask(&mut w, 0);
        w.run();
        w.hold_quiesce = true;
        while states(&w)[0] != Region::Closing {
            w.sleep();
        }
        w.disks.get_mut(&member).unwrap().broken = Some(IoStatus::DeviceError);
        w.hold_quiesce = false;
        w.release();
        w.run();
        assert!(w.noticed("member-failed").is_some(), "its flush failed");
        assert_eq!(states(&w)[0], Region::Dirty);
    }
}

#[test]
fn after_an_unclean_stop_only_what_was_dirty_is_resynced() {
    let mut w = with_bitmap(4, 0, Level::Raid5, 4);
    ask(&mut w, 1);
    ask(&mut w, 3);
    w.run();
    let mut w = World::assembling(w.crash(0).disks, 2, devices(0..4), false);
    w.hold_stripes = true;
    w.run();
    assert_eq!(states(&w), [Region::Unwritten, Region::Syncing, Region::Unwritten, Region::NeedSync]);
    assert_eq!(w.health(), [Health::Resyncing]);
    assert!(w.noticed("resync-needed").is_some());
    w.hold_stripes = false;
    w.release();
    w.run();
    let groups: std::collections::BTreeSet<u32> = w.stripes.iter().map(|s| s.1).collect();
    assert_eq!(groups.into_iter().collect::<Vec<_>>(), [1, 3]);
    assert_eq!(w.stripes.len(), 32);
    assert_eq!(w.health(), [Health::Healthy]);
    let o = w.manager.status().operations.last().unwrap().clone();
    assert_eq!((o.kind, o.state, o.done), (OperationKind::Resync, OperationState::Done, o.total));
    while states(&w)[1] != Region::Clean {
        w.sleep();
    }
}

#[test]
fn a_clean_stop_leaves_nothing_to_resync() {
    let mut w = with_bitmap(4, 0, Level::Raid5, 4);
    ask(&mut w, 1);
    w.run();
    assert_eq!(w.command(Command::Stop), Ok(Answer::Done));
    let w = w.again(2, devices(0..4), false);
    assert_eq!(states(&w)[1], Region::Clean);
    assert_eq!((w.health(), w.stripes.len()), (vec![Health::Healthy], 0));
}

#[test]
fn what_was_resynced_stays_so_over_a_clean_stop() {
    let mut w = with_bitmap(4, 0, Level::Raid5, 4);
    ask(&mut w, 1);
    w.run();
    let mut w = w.crash(0).again(2, devices(0..4), false);
    assert_eq!((w.health(), w.stripes.len()), (vec![Health::Healthy], 16));
    assert_eq!(w.command(Command::Stop), Ok(Answer::Done));
    let w = w.crash(0).again(3, devices(0..4), false);
    assert_eq!((states(&w)[1], w.stripes.len()), (Region::Clean, 0));
}

#[test]
fn a_stop_while_degraded_keeps_what_the_lost_member_missed() {
    let mut w = with_bitmap(4, 0, Level::Raid5, 4);
    ask(&mut w, 0);
    w.run();
    fail(&mut w, 3);
    w.run();
    assert_eq!(w.command(Command::Stop), Ok(Answer::Done));
    let w = w.crash(0).again(3, devices(0..3), false);
    assert_eq!(states(&w)[0], Region::Dirty);
    assert!(w.stripes.is_empty());
}

#[test]
fn a_stop_in_the_middle_of_a_round_waits_for_its_writes() {
    for steps in 0..30 {
        let mut w = with_bitmap(4, 0, Level::Raid5, 4);
        ask(&mut w, 1);
        for _ in 0..steps {
            w.step();
        }
        let tag = w.start(Command::Stop);
        w.run();
        assert_eq!(w.replies[&tag], Ok(Answer::Done));
        let w = w.again(2, devices(0..4), false);
        assert_eq!(w.health(), [Health::Healthy]);
        let state = states(&w)[1];
        assert!(matches!(state, Region::Unwritten | Region::Clean), "{state:?}");
        assert!(state == Region::Unwritten || content(&w, 1).iter().all(|b| *b == 0));
    }
}

#[test]
fn degraded_and_dirty_comes_up_and_says_what_cannot_be_verified() {
    let mut w = with_bitmap(4, 0, Level::Raid5, 4);
    ask(&mut w, 1);
    w.run();
    let w = World::assembling(w.crash(0).disks, 2, devices(0..3), false);
    let mut w = w;
    w.run();
    assert_eq!(w.replies[&0], Ok(Answer::Done));
    assert_eq!(states(&w), [Region::Unwritten, Region::NeedSync, Region::Unwritten, Region::Unwritten]);
    assert!(w.view.volume(V).unwrap().online);
    assert!(w.stripes.is_empty(), "parity needs all data");
    // By force parity is trusted.
    let w = w.crash(0).again(3, devices(0..3), true);
    assert!(!states(&w)[1].verified(), "what needed a resync before still does");
}

#[test]
fn a_rebuild_leaves_out_what_was_never_written() {
    let mut w = with_bitmap(5, 1, Level::Raid5, 4);
    ask(&mut w, 1);
    w.run();
    w.stripes.clear();
    fail(&mut w, 0);
    w.run();
    assert_eq!(w.health(), [Health::Healthy]);
    let groups: std::collections::BTreeSet<u32> = w.stripes.iter().map(|s| s.1).collect();
    assert_eq!(groups.into_iter().collect::<Vec<_>>(), [1]);
    // The first write of another region finds the new member too.
    ask(&mut w, 2);
    w.run();
    assert!(content(&w, 2).iter().all(|b| *b == 0));
}

/// The spare gets its slot while a region is being made zeros on the others.
#[test]
fn a_rebuild_that_begins_in_the_middle_of_a_round_misses_nothing() {
    for steps in 0..40 {
        let mut w = with_bitmap(5, 1, Level::Raid5, 4);
        fail(&mut w, 0);
        for _ in 0..steps {
            w.step();
        }
        ask(&mut w, 2);
        w.run();
        assert_eq!(w.health(), [Health::Healthy]);
        assert_eq!(states(&w)[2], Region::Dirty);
        let group = &w.view.volume(V).unwrap().groups[2];
        assert!(group.slots.iter().all(|s| s.state == SlotState::InSync));
        let wrong = content(&w, 2).iter().filter(|b| !matches!(**b, 0 | REBUILT)).count();
        assert_eq!(wrong, 0, "after {steps} answers");
    }
}

#[test]
fn the_bitmap_gets_its_copies_back() {
    let mut w = with_bitmap(6, 2, Level::Raid5, 4);
    (0..4).for_each(|r| ask(&mut w, r));
    w.run();
    for lost in [0, 1] {
        fail(&mut w, lost);
        w.run();
        assert_eq!(w.health(), [Health::Healthy]);
    }
    // None of the members that held it at first is there.
    let w = w.crash(0).again(2, devices(2..6), false);
    assert_eq!(w.replies[&0], Ok(Answer::Done));
    assert_eq!(w.stripes.iter().map(|s| s.1).collect::<std::collections::BTreeSet<_>>().len(), 4);
}

#[test]
fn a_damaged_copy_is_read_from_the_other_one_and_two_make_the_region_suspect() {
    let place = |w: &World, copy: usize| {
        // Blocks of zeros nowhere else carry this volume's bitmap: found by its states.
        let disk = &w.disks[&(copy as u16)];
        (MIB..SIZE - MIB).step_by(4096).find(|at| {
            let block = disk.read(*at, 4096);
            block[4..8] == [0; 4] && block[8..12] == [1, 2, 1, 1]
        })
    };
    for both in [false, true] {
        let mut w = with_bitmap(4, 0, Level::Raid5, 4);
        ask(&mut w, 1);
        w.run();
        assert_eq!(w.command(Command::Stop), Ok(Answer::Done));
        for copy in 0..=usize::from(both) {
            let at = place(&w, copy).expect("a copy of the bitmap");
            w.disks.get_mut(&(copy as u16)).unwrap().corrupt(at + 9);
        }
        let mut w = w.again(2, devices(0..4), false);
        assert_eq!(w.noticed("bitmap-lost").is_some(), both);
        w.run();
        assert_eq!(w.health(), [Health::Healthy]);
        assert_eq!(w.stripes.len(), if both { 64 } else { 0 });
        assert!(place(&w, 0).is_some() || both, "the damaged copy was rewritten");
    }
}

/// Runs `change` and cuts the power after each number of answers, in several ways, with all members and with each one lost.
fn cut_everywhere(setup: impl Fn() -> World, change: impl Fn(&mut World)) {
    let (mut cut, mut checked) = (0, 0);
    loop {
        let mut through = false;
        for mode in [0, 1, 7] {
            for lost in [None, Some(0), Some(1), Some(3)] {
                let mut w = setup();
                change(&mut w);
                through = (0..cut).any(|_| !w.step());
                let promised: Vec<Region> = states(&w);
                let dirty = w.view.volume(V).is_some_and(|v| v.dirty);
                let present = (0..4).filter(|d| Some(*d) != lost).map(device).collect();
                let mut after = World::assembling(w.crash(mode).disks, 77, present, false);
                after.hold_stripes = true;
                after.run();
                assert_eq!(after.replies[&0], Ok(Answer::Done), "cut {cut}");
                for (r, promised) in promised.iter().enumerate() {
                    let now = states(&after)[r];
                    // Engines write under both marks only.
                    if promised.writable() && dirty {
                        checked += 1;
                        assert!(!now.verified(), "cut {cut} mode {mode} lost {lost:?}: {promised:?} became {now:?}");
                    }
                    if now != Region::Unwritten {
                        let old = content(&after, r as u32).iter().filter(|b| **b == OLD).count();
                        assert_eq!(old, 0, "cut {cut} mode {mode} lost {lost:?}: region {r} shows old data");
                    }
                }
            }
        }
        if through {
            assert!(cut > 5 && checked > 0, "only {cut} cuts: nothing was tested");
            return;
        }
        cut += 1;
    }
}

#[test]
fn the_power_goes_while_a_region_is_raised() {
    cut_everywhere(|| with_bitmap(4, 0, Level::Raid5, 4), |w| ask(w, 1));
    cut_everywhere(|| with_bitmap(4, 0, Level::Raid1, 4), |w| ask(w, 1));
}

#[test]
fn the_power_goes_while_a_region_is_lowered_and_raised_again() {
    let setup = || {
        let mut w = with_bitmap(4, 0, Level::Raid5, 4);
        (0..3).for_each(|r| ask(&mut w, r));
        w.run();
        w
    };
    cut_everywhere(setup, |w| {
        while states(w)[0] != Region::Closing {
            let at = w.manager.next_deadline().expect("regions are to be closed");
            w.now = w.now.max(at);
            w.manager.tick(w.now);
            if states(w)[0] != Region::Closing {
                w.run();
            }
        }
        for _ in 0..4 {
            w.step();
        }
        ask(w, 0);
    });
}

#[test]
fn the_power_goes_while_a_member_fails_in_a_round() {
    for member in 0..4 {
        cut_everywhere(
            || with_bitmap(4, 0, Level::Raid6, 4),
            |w| {
                ask(w, 1);
                w.step();
                w.disks.get_mut(&member).unwrap().broken = Some(IoStatus::DeviceError);
            },
        );
    }
}

/// Regions 0 to 2 written and clean, then a member fails; region 1 is written to without it.
fn without_one(level: Level, member: u16) -> World {
    let mut w = with_bitmap(4, 0, level, 4);
    (0..3).for_each(|r| ask(&mut w, r));
    w.run();
    while (0..3).any(|r| states(&w)[r] != Region::Clean) {
        w.sleep();
    }
    fail(&mut w, member);
    w.run();
    ask(&mut w, 1);
    w.run();
    w.stripes.clear();
    w
}

fn add(w: &mut World, n: u16, wipe: bool) -> Result<Answer, ManageError> {
    w.command(Command::AddMember { device: device(n), uuid: uuid(90), wipe })
}

fn rebuilt(w: &World) -> Vec<u32> {
    let groups: std::collections::BTreeSet<u32> = w.stripes.iter().filter(|s| s.3).map(|s| s.1).collect();
    groups.into_iter().collect()
}

#[test]
fn a_member_that_comes_back_gets_what_it_missed_and_no_more() {
    for level in [Level::Raid5, Level::Raid1, Level::Raid10] {
        let mut w = without_one(level, 0);
        assert_eq!(add(&mut w, 0, false), Ok(Answer::Member(MemberId(0))), "{level}");
        w.run();
        assert_eq!(w.health(), [Health::Healthy]);
        assert!(w.noticed("member-returned").is_some());
        assert_eq!(rebuilt(&w), [1], "{level}");
        assert_eq!(w.manager.status().members.len(), 4, "it is the old member");
        // Also after a restart, and with another member lost then.
        let w = w.crash(0).again(4, devices(0..4), false);
        assert_eq!(w.replies[&0], Ok(Answer::Done));
    }
}

#[test]
fn a_member_that_comes_back_after_a_restart_gets_what_it_missed() {
    let mut w = without_one(Level::Raid5, 0);
    assert_eq!(w.command(Command::Stop), Ok(Answer::Done));
    let mut w = w.again(4, devices(0..4), false);
    assert!(w.noticed("member-stale").is_some());
    assert_eq!(add(&mut w, 0, false), Ok(Answer::Member(MemberId(0))));
    w.run();
    assert_eq!(w.health(), [Health::Healthy]);
    assert_eq!(rebuilt(&w), [1]);
}

#[test]
fn a_member_is_rebuilt_whole_when_nobody_can_say_what_it_has() {
    let whole = |w: &mut World| {
        w.stripes.clear();
        let wipe = false;
        let answer = add(w, 0, wipe).expect("it may come back");
        assert_ne!(answer, Answer::Member(MemberId(0)), "it is a new member");
        w.run();
        assert!(rebuilt(w).contains(&0), "clean regions are rebuilt too");
    };
    // A copy of an earlier time.
    let mut w = with_bitmap(4, 0, Level::Raid5, 4);
    let early = w.disks[&0].clone();
    (0..3).for_each(|r| ask(&mut w, r));
    w.run();
    while states(&w)[0] != Region::Clean {
        w.sleep();
    }
    fail(&mut w, 0);
    w.run();
    w.disks.insert(0, early);
    whole(&mut w);
    // It failed in the middle of its rebuild.
    let mut w = without_one(Level::Raid5, 0);
    w.hold_stripes = true;
    add(&mut w, 0, false).expect("it comes back");
    w.run();
    fail(&mut w, 0);
    w.run();
    w.hold_stripes = false;
    w.release();
    w.run();
    whole(&mut w);
    // Assembled apart from the others meanwhile.
    let w = without_one(Level::Raid1, 0);
    let mut apart = World::assembling(w.disks.clone(), 50, vec![device(0)], true);
    apart.run();
    assert_eq!(apart.replies[&0], Ok(Answer::Done));
    let mut w = w;
    w.disks.insert(0, apart.disks.remove(&0).expect("it was there"));
    whole(&mut w);
    // The operator says so.
    let mut w = without_one(Level::Raid5, 0);
    assert_ne!(add(&mut w, 0, true), Ok(Answer::Member(MemberId(0))));
}

/// What an engine does with a request that zeroes a region as a whole, when all of it is done.
fn zeroed(w: &mut World, region: u32) {
    map(&w.view).begin_zeros(region);
    assert!(map(&w.view).touch(region, true));
    w.event(Event::RegionZeroed { volume: V, region });
}

#[test]
fn a_discarded_region_is_unwritten_again() {
    let mut w = with_bitmap(4, 0, Level::Raid5, 4);
    ask(&mut w, 1);
    w.run();
    zeroed(&mut w, 1);
    w.run();
    assert_eq!(states(&w)[1], Region::Unwritten);
    let w = w.crash(0).again(2, devices(0..4), false);
    assert_eq!(states(&w), [Region::Unwritten; 4]);
    assert!(w.stripes.is_empty());
}

#[test]
fn a_write_at_any_moment_keeps_a_discarded_region() {
    for steps in 0..30 {
        let mut w = with_bitmap(4, 0, Level::Raid5, 4);
        ask(&mut w, 1);
        w.run();
        zeroed(&mut w, 1);
        for _ in 0..steps {
            w.step();
        }
        let at_once = map(&w.view).touch(1, false);
        let was = states(&w)[1];
        if !at_once {
            ask(&mut w, 1);
        }
        w.run();
        assert_eq!(states(&w)[1], Region::Dirty, "after {steps} answers, when it was {was:?}");
        let w = w.crash(0).again(2, devices(0..4), false);
        assert_ne!(states(&w)[1], Region::Unwritten, "after {steps} answers: what was written would be gone");
    }
}

#[test]
fn the_power_goes_while_a_region_is_forgotten() {
    let setup = || {
        let mut w = with_bitmap(4, 0, Level::Raid5, 4);
        ask(&mut w, 1);
        ask(&mut w, 2);
        w.run();
        w
    };
    cut_everywhere(setup, |w| zeroed(w, 1));
}
