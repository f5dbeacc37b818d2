//! Negative controls: each deliberate fault must be found, by the check that is there for it. A checker that accepts a
//! broken executor would accept a broken engine too.

use raidsim::breaks::{ALL, Break};
use raidsim::case::{Campaign, Limits};
use raidsim::sweep::sweep;

/// Seeds that may be tried before a fault counts as not found.
const PATIENCE: u64 = 120;

/// Finds the fault, and returns what the first violation said.
fn found(broken: Break, campaign: Campaign) -> String {
    let limits = Limits { campaign: Some(campaign), ..Limits::default() };
    // From here on the matrix has RAID-1, then RAID-10, 5 and 6: all that there is to break.
    let step = match broken {
        Break::PlainXor => 270,
        Break::LoseTerm => 198,
        _ => 82,
    };
    let report = sweep(step, limits, Some(broken), 1, |begun| begun < PATIENCE);
    let found = report.violation.clone().unwrap_or_else(|| panic!("{} was not found: {report}", broken.name()));
    assert!(!found.trace.is_empty(), "the last events are kept");
    found.what
}

/// The words of which a violation must have one, or it was found by accident.
fn words(broken: Break) -> &'static [&'static str] {
    match broken {
        Break::HideWriteError | Break::EarlyFailure => &["before the failure of member"],
        Break::EarlyDirty => &["dirty mark"],
        Break::SkipFlush | Break::IgnoreFua => &["still volatile"],
        Break::LoseAnswer => &["no progress"],
        Break::SkipRedundancy | Break::LoseTerm | Break::PlainXor => {
            &["holds", "differ", "does not match", "compare", "still volatile"]
        }
        Break::SkipManagerFlush => &["holds", "was refused", "still volatile"],
        _ => &["holds", "differ", "does not match", "compare found", "still volatile"],
    }
}

fn must_find(broken: Break) {
    let full = broken == Break::SkipManagerFlush;
    let what = found(broken, if full { Campaign::Full } else { Campaign::Engine });
    let words = words(broken);
    assert!(words.iter().any(|w| what.contains(w)), "{}: found by accident? {what}", broken.name());
}

macro_rules! controls {
    ($($name:ident: $broken:ident,)*) => {
        $(#[test]
        fn $name() {
            must_find(Break::$broken);
        })*

        #[test]
        fn every_deliberate_fault_has_a_test() {
            let tested = [$(Break::$broken),*];
            for (broken, name, _) in ALL {
                assert!(tested.contains(broken), "{name} has no test");
                assert_eq!(Break::by_name(name), Some(*broken));
            }
        }
    };
}

controls! {
    skipped_writes_are_found: SkipWrite,
    skipped_parity_and_copies_are_found: SkipRedundancy,
    torn_writes_are_found: TornWrite,
    misdirected_writes_are_found: MisdirectedWrite,
    skipped_zeroing_is_found: SkipZero,
    a_kernel_that_cannot_multiply_is_found: PlainXor,
    a_kernel_that_loses_terms_is_found: LoseTerm,
    hidden_write_errors_are_found: HideWriteError,
    hidden_read_errors_are_found: HideReadError,
    early_answers_are_found: EarlyReply,
    failures_published_too_early_are_found: EarlyFailure,
    dirty_marks_published_too_early_are_found: EarlyDirty,
    rebuilds_that_leave_stripes_out_are_found: SkipRebuild,
    skipped_flushes_are_found: SkipFlush,
    skipped_flushes_of_the_manager_are_found: SkipManagerFlush,
    skipped_resyncs_are_found: SkipResync,
    resyncs_that_leave_stripes_out_are_found: PartResync,
    ignored_fua_is_found: IgnoreFua,
    lost_answers_are_found: LoseAnswer,
    reads_behind_the_newest_view_are_found: ReadBehind,
}

#[test]
fn the_full_campaign_finds_faults_too() {
    for broken in [Break::SkipWrite, Break::SkipRedundancy, Break::SkipResync, Break::SkipFlush, Break::LoseAnswer] {
        found(broken, Campaign::Full);
    }
}
