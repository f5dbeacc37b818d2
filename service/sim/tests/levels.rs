//! A fixed set of seeds for each level, both campaigns: the inner loop's share of what `raidsim sweep` does for hours.

use raid_core::geometry::Level;
use raidsim::case::{Campaign, Limits};
use raidsim::sweep::{Report, replay_line, sweep};
use raidsim::world::Tracing;

fn run(level: Level, campaign: Campaign, first: u64, cases: u64) -> Report {
    let limits = Limits { level: Some(level), campaign: Some(campaign), policy: None };
    let report = sweep(first, limits, None, 1, |begun| begun < cases);
    if let Some(v) = &report.violation {
        v.trace.iter().for_each(|line| eprintln!("{line}"));
        panic!("seed {}: {}\nreplay: {}", v.seed, v.what, replay_line(v.seed, limits, None, &v.cuts));
    }
    assert_eq!(report.cases, cases);
    report
}

fn level(level: Level) {
    let engine = run(level, Campaign::Engine, 0, 36);
    let full = run(level, Campaign::Full, 0, 18);
    // The seeds must do something: a simulator in which nothing happens finds nothing.
    for report in [engine, full] {
        let s = report.stats;
        assert!(s.requests > 4000 && s.compared > 50 << 20 && s.rows > 10_000, "{report}");
        assert!(s.faults > 10, "{report}");
        if level != Level::Raid0 {
            assert!(s.failures > 10 && s.maintained > 200 && s.repairs > 10, "{report}");
        }
    }
}

#[test]
fn raid0_holds() {
    level(Level::Raid0);
}

#[test]
fn raid1_holds() {
    level(Level::Raid1);
}

#[test]
fn raid10_holds() {
    level(Level::Raid10);
}

#[test]
fn raid5_holds() {
    level(Level::Raid5);
}

#[test]
fn raid6_holds() {
    level(Level::Raid6);
}

#[test]
fn the_same_seed_is_the_same_run() {
    for campaign in [Campaign::Engine, Campaign::Full, Campaign::Cuts] {
        let limits = Limits { campaign: Some(campaign), ..Limits::default() };
        for seed in [200, 300] {
            let once = raidsim::sweep::run_seed(seed, limits, None, &[], Tracing::Keep);
            let twice = raidsim::sweep::run_seed(seed, limits, None, &[], Tracing::Keep);
            assert_eq!(once.trace, twice.trace);
            assert_eq!(format!("{:?}", once.stats), format!("{:?}", twice.stats));
        }
    }
}
