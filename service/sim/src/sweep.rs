//! Many seeds on all processors, and how a failing one is replayed.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use crate::breaks::Break;
use crate::case::{Case, Limits};
use crate::tally::{Tally, policy_name};
use crate::world::{CutAt, Outcome, Stats, Tracing, World, running_cuts};

thread_local! {
    /// The case that runs on this thread, for the panic message.
    static RUNNING: Cell<Option<(u64, Limits, Option<Break>)>> = const { Cell::new(None) };
}

/// The line that replays a seed, or one cut of it.
pub fn replay_line(seed: u64, limits: Limits, broken: Option<Break>, cuts: &[CutAt]) -> String {
    let mut line = format!("cargo run -p raidsim --release -- run --seed {seed}");
    if let Some(level) = limits.level {
        line += &format!(" --level {level}");
    }
    if let Some(campaign) = limits.campaign {
        line += &format!(" --campaign {}", campaign.name());
    }
    if let Some(policy) = limits.policy {
        line += &format!(" --policy {}", policy_name(policy));
    }
    if let Some(broken) = broken {
        line += &format!(" --break {}", broken.name());
    }
    for cut in cuts {
        line += &format!(" --cut {cut}");
    }
    line
}

/// Makes a panic name the seed that caused it. Call it once.
pub fn name_seeds_in_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        before(info);
        if let Some((seed, limits, broken)) = RUNNING.get() {
            eprintln!("seed {seed} panicked; replay: {}", replay_line(seed, limits, broken, &running_cuts()));
        }
    }));
}

/// Runs one seed; with `cuts` only what these cuts lead to. A panic of the core is a violation like any other, where
/// panics unwind.
pub fn run_seed(seed: u64, limits: Limits, broken: Option<Break>, cuts: &[CutAt], tracing: Tracing) -> Outcome {
    RUNNING.set(Some((seed, limits, broken)));
    let case = Case::new(seed, limits);
    let run = || {
        if cuts.is_empty() { World::run(case, broken, tracing) } else { World::run_cuts(case, broken, cuts, tracing) }
    };
    let outcome = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_string())).unwrap_or_default();
        Outcome { violation: Some(format!("panic: {text}")), cuts: running_cuts(), ..Outcome::default() }
    });
    RUNNING.set(None);
    outcome
}

/// A violation and how to see it again.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The seed.
    pub seed: u64,
    /// What was wrong.
    pub what: String,
    /// The cuts that led to it.
    pub cuts: Vec<CutAt>,
    /// The last events.
    pub trace: Vec<String>,
}

/// What a sweep did.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Cases that were run.
    pub cases: u64,
    /// What they did.
    pub stats: Stats,
    /// What cuts of the power found.
    pub tally: Tally,
    /// The violation with the smallest seed.
    pub violation: Option<Violation>,
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let s = &self.stats;
        write!(
            f,
            "cases {}, requests {}, compared {} MiB, faults {}, members failed {}, stripes rebuilt or resynced {}, \
             read repairs {}, crashes {}, rows checked {}, errors where allowed {}, cuts of the power {}, {} violations",
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
            s.cuts,
            u32::from(self.violation.is_some())
        )
    }
}

/// Runs seeds from `first` on until `go_on` says no or one is violated, on `threads` threads. `go_on` gets the number of
/// cases that were begun so far.
pub fn sweep(
    first: u64,
    limits: Limits,
    broken: Option<Break>,
    threads: usize,
    go_on: impl Fn(u64) -> bool + Sync,
) -> Report {
    let begun = Mutex::new(0);
    let report = Mutex::new(Report::default());
    let locked =
        |m: &Mutex<Report>, f: &mut dyn FnMut(&mut Report)| f(&mut m.lock().expect("no thread panics with it"));
    let next = || {
        let mut begun = begun.lock().expect("no thread panics with it");
        let seed = first.wrapping_add(*begun);
        let violated = report.lock().expect("no thread panics with it").violation.is_some();
        (!violated && go_on(*begun)).then(|| {
            *begun += 1;
            seed
        })
    };
    let work = || {
        while let Some(seed) = next() {
            let outcome = run_seed(seed, limits, broken, &[], Tracing::Keep);
            locked(&report, &mut |report| {
                report.cases += 1;
                report.stats.add(&outcome.stats);
                report.tally.add(&outcome.tally);
                let Some(what) = outcome.violation.clone() else { return };
                if report.violation.as_ref().is_none_or(|v| seed < v.seed) {
                    let (cuts, trace) = (outcome.cuts.clone(), outcome.trace.clone());
                    report.violation = Some(Violation { seed, what, cuts, trace });
                }
            });
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.max(1) {
            scope.spawn(work);
        }
        work();
    });
    report.into_inner().expect("no thread panicked with it")
}
