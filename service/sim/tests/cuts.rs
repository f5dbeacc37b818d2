//! The cuts campaign: nothing is lost where it must not be, the write hole is seen where there is one, one line replays a
//! cut, and deliberate faults are found by what comes of them, without any look at what is volatile.

use raid_core::geometry::Level;
use raid_core::manager::Policy;
use raidsim::breaks::Break;
use raidsim::case::{Campaign, Limits};
use raidsim::sweep::{Report, replay_line, run_seed, sweep};
use raidsim::tally::{POLICIES, Situation};
use raidsim::world::{CutAt, Tracing};

fn limits() -> Limits {
    Limits { campaign: Some(Campaign::Cuts), ..Limits::default() }
}

fn run(first: u64, cases: u64, limits: Limits) -> Report {
    let report = sweep(first, limits, None, 2, |begun| begun < cases);
    if let Some(v) = &report.violation {
        v.trace.iter().for_each(|line| eprintln!("{line}"));
        panic!("seed {}: {}\nreplay: {}", v.seed, v.what, replay_line(v.seed, limits, None, &v.cuts));
    }
    report
}

fn parity(level: Level) -> bool {
    matches!(level, Level::Raid5 | Level::Raid6)
}

#[test]
fn without_a_policy_the_hole_is_seen_and_with_one_it_is_not() {
    for (policy, name) in POLICIES {
        let report = run(0, 8, Limits { policy: Some(*policy), ..limits() });
        let cuts = report.stats.cuts;
        assert!(cuts > 6000, "{name}: only {cuts} cuts");
        let sum = |f: &dyn Fn(Level, Situation) -> bool| report.tally.sum(*policy, f);
        let table = report.tally.render(false);
        let whole = sum(&|_, s| s == Situation::Whole);
        assert!(whole.cuts > 1500 && whole.corrupt == 0 && whole.refused == 0, "{name}: {whole:?}\n{table}");
        assert_eq!(sum(&|l, _| !parity(l)).corrupt, 0, "{name}: copies have no hole\n{table}");
        let fewer = sum(&|l, s| parity(l) && s != Situation::Whole);
        assert!(fewer.cuts > 1500, "{name}: {fewer:?}\n{table}");
        match policy {
            Policy::None => {
                for situation in [Situation::LostAfter, Situation::LostWith] {
                    let cell = sum(&|l, s| parity(l) && s == situation);
                    assert!(
                        cell.corrupt > 100,
                        "{situation:?}: no corruption in {cell:?}, so this proves nothing\n{table}"
                    );
                }
            }
            Policy::Resync => assert!(fewer.corrupt == 0 && fewer.refused > 100, "{fewer:?}\n{table}"),
            _ => assert!(fewer.corrupt == 0, "{name}: {fewer:?}\n{table}"),
        }
        if *policy == Policy::Bitmap {
            assert!(fewer.unreadable > 100, "what cannot be verified is not made up: {fewer:?}\n{table}");
        }
    }
}

#[test]
fn one_line_replays_one_cut() {
    let broken = Some(Break::SkipResync);
    let limits = Limits { policy: Some(Policy::Resync), ..limits() };
    let report = sweep(0, limits, broken, 1, |begun| begun < 5);
    let v = report.violation.expect("a resync that does nothing is found");
    assert!(!v.cuts.is_empty() && !v.trace.is_empty());
    let line = replay_line(v.seed, limits, broken, &v.cuts);
    assert!(line.contains("--campaign cuts") && line.contains(&format!("--cut {}", v.cuts[0])), "{line}");
    let again = run_seed(v.seed, limits, broken, &v.cuts, Tracing::Keep);
    assert_eq!((again.violation.as_ref(), &again.trace), (Some(&v.what), &v.trace));
    assert_eq!(again.stats.cuts, v.cuts.len() as u64, "nothing but what leads there");
    let whole = run_seed(v.seed, limits, None, &v.cuts, Tracing::Keep);
    assert_eq!(whole.violation, None, "without the fault the same cut does no harm");
}

#[test]
fn a_cut_is_written_and_read_back() {
    for (text, lose) in [("12:3", None), ("4000:0:2", Some(2))] {
        let cut: CutAt = text.parse().expect("a cut");
        assert_eq!((cut.to_string().as_str(), cut.lose), (text, lose));
    }
    for wrong in ["", "1", "1:", "a:1", "1:2:x", "1:2:3:4"] {
        assert!(wrong.parse::<CutAt>().is_err(), "{wrong}");
    }
}

/// Finds the fault within so many cases, and by words that belong to it.
fn must_find(broken: Break, policy: Policy, first: u64, cases: u64, words: &[&str]) {
    let limits = Limits { policy: Some(policy), ..limits() };
    let report = sweep(first, limits, Some(broken), 2, |begun| begun < cases);
    let v = report.violation.clone().unwrap_or_else(|| panic!("{} was not found: {report}", broken.name()));
    assert!(words.iter().any(|w| v.what.contains(w)), "{}: found by accident? {}", broken.name(), v.what);
}

const DATA: &[&str] = &["holds", "differ", "does not match"];

#[test]
fn skipped_flushes_lose_what_was_flushed() {
    must_find(Break::SkipFlush, Policy::Resync, 0, 10, &["holds"]);
    must_find(Break::SkipFlush, Policy::Bitmap, 0, 10, &["holds"]);
}

#[test]
fn ignored_fua_loses_what_was_acknowledged_with_it() {
    must_find(Break::IgnoreFua, Policy::Resync, 0, 20, &["holds"]);
}

#[test]
fn answers_that_come_too_early_are_promises_that_are_not_kept() {
    must_find(Break::EarlyReply, Policy::Resync, 0, 20, &["holds"]);
}

#[test]
fn a_degraded_write_that_is_acknowledged_before_the_failure_is_recorded_is_lost_with_the_stale_member() {
    let words = &["holds", "too many members are gone"];
    // Few cases have a member that fails under load and comes back: from 40 on there are some.
    must_find(Break::EarlyFailure, Policy::Resync, 40, 60, words);
    must_find(Break::EarlyFailure, Policy::Bitmap, 40, 60, words);
}

#[test]
fn marks_that_come_too_late_leave_redundancy_that_does_not_match() {
    must_find(Break::EarlyDirty, Policy::Resync, 0, 20, DATA);
    must_find(Break::EarlyDirty, Policy::Bitmap, 0, 40, DATA);
}

#[test]
fn a_resync_that_leaves_stripes_out_is_found() {
    must_find(Break::SkipResync, Policy::Resync, 0, 10, DATA);
    must_find(Break::SkipResync, Policy::Bitmap, 0, 10, DATA);
    must_find(Break::PartResync, Policy::Resync, 0, 10, DATA);
    must_find(Break::PartResync, Policy::Bitmap, 0, 10, DATA);
}

#[test]
fn a_rebuild_that_leaves_stripes_out_is_found() {
    must_find(Break::SkipRebuild, Policy::Resync, 0, 40, DATA);
}

#[test]
fn flushes_that_the_manager_orders_and_nobody_does_are_found() {
    must_find(Break::SkipManagerFlush, Policy::Resync, 0, 10, &["refused", "holds", "does not match", "differ"]);
}
