//! Many seeds, one after the other, and how a failing one is replayed.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::breaks::Break;
use crate::case::{Campaign, Case, Limits};
use crate::world::{Outcome, Stats, World};

thread_local! {
    /// The case that runs on this thread, for the panic message.
    static RUNNING: Cell<Option<(u64, Limits, Option<Break>)>> = const { Cell::new(None) };
}

/// The line that replays a seed.
pub fn replay_line(seed: u64, limits: Limits, broken: Option<Break>) -> String {
    let mut line = format!("cargo run -p raidsim --release -- run --seed {seed}");
    if let Some(level) = limits.level {
        line += &format!(" --level {level}");
    }
    if let Some(campaign) = limits.campaign {
        line += if campaign == Campaign::Full { " --campaign full" } else { " --campaign engine" };
    }
    if let Some(broken) = broken {
        line += &format!(" --break {}", broken.name());
    }
    line
}

/// Makes a panic name the seed that caused it. Call it once.
pub fn name_seeds_in_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        before(info);
        if let Some((seed, limits, broken)) = RUNNING.get() {
            eprintln!("seed {seed} panicked; replay: {}", replay_line(seed, limits, broken));
        }
    }));
}

/// Runs one seed. A panic of the core is a violation like any other, where panics unwind.
pub fn run_seed(seed: u64, limits: Limits, broken: Option<Break>, verbose: bool) -> Outcome {
    RUNNING.set(Some((seed, limits, broken)));
    let case = Case::new(seed, limits);
    let outcome = catch_unwind(AssertUnwindSafe(|| World::run(case, broken, verbose))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_string())).unwrap_or_default();
        Outcome { stats: Stats::default(), violation: Some(format!("panic: {text}")), trace: Vec::new() }
    });
    RUNNING.set(None);
    outcome
}

/// What a sweep did.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Cases that were run.
    pub cases: u64,
    /// What they did.
    pub stats: Stats,
    /// The first violation: its seed, what it was, the last events.
    pub violation: Option<(u64, String, Vec<String>)>,
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let s = &self.stats;
        write!(
            f,
            "cases {}, requests {}, compared {} MiB, faults {}, members failed {}, stripes rebuilt or resynced {}, \
             read repairs {}, crashes {}, rows checked {}, errors where allowed {}, {} violations",
            self.cases,
            s.requests,
            s.compared >> 20,
            s.faults,
            s.failures,
            s.maintained,
            s.repairs,
            s.crashes,
            s.rows,
            s.errors,
            u32::from(self.violation.is_some())
        )
    }
}

/// Runs seeds from `first` on until `go_on` says no or one is violated. `go_on` gets the number of cases so far.
pub fn sweep(first: u64, limits: Limits, broken: Option<Break>, mut go_on: impl FnMut(u64) -> bool) -> Report {
    let mut report = Report::default();
    while go_on(report.cases) {
        let seed = first.wrapping_add(report.cases);
        let outcome = run_seed(seed, limits, broken, false);
        report.cases += 1;
        report.stats.add(&outcome.stats);
        if let Some(what) = outcome.violation {
            report.violation = Some((seed, what, outcome.trace));
            break;
        }
    }
    report
}
