//! The cuts campaign: one case runs forward once, and at every event of its drives the power is cut, once for each choice
//! of what was still volatile (`choice`). From what is left a world of its own is made, which recovers, is read in full,
//! and loses its members in turn (`reborn`); some of these worlds are cut again at events of their recovery. The world that
//! was cut goes on as if nothing had been.
//!
//! Events are counted over all drives: each order of a write or a flush, each part of it that takes effect, each
//! completion, and each acknowledgement. Reads change nothing that a cut could take.

mod choice;
mod reborn;
mod script;

use std::cell::RefCell;
use std::collections::{BTreeSet, HashSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use raid_core::units::Tick;
use raid_core::view::View;

use self::choice::{choices, fingerprint};
use super::trace::Tracing;
use super::{Outcome, Stage, Stats, World};
use crate::breaks::Break;
use crate::case::Case;
use crate::drive::Kind;
use crate::rng::{Rng, mix};
use crate::tally::Tally;

/// Choices at one event.
const CHOICES: usize = 14;
/// Choices at one event of a recovery.
const CHOICES_AGAIN: usize = 3;
/// One of so many recoveries is cut again.
const DEEP: u64 = 48;
/// One of so many events of such a recovery is.
const STRIDE: u64 = 12;

/// One cut of the power.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CutAt {
    /// After which event, from 1 on.
    pub event: u64,
    /// Which choice of what was volatile.
    pub choice: u32,
    /// The member that is lost at the same moment.
    pub lose: Option<u16>,
}

impl std::fmt::Display for CutAt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.event, self.choice)?;
        self.lose.map_or(Ok(()), |member| write!(f, ":{member}"))
    }
}

impl std::str::FromStr for CutAt {
    type Err = String;

    fn from_str(text: &str) -> Result<CutAt, String> {
        let wrong = || {
            format!("'{text}' is no cut: write EVENT:CHOICE or EVENT:CHOICE:LOST, as in the line that a sweep prints")
        };
        let mut parts = text.split(':');
        let event = parts.next().and_then(|p| p.parse().ok()).ok_or_else(wrong)?;
        let choice = parts.next().and_then(|p| p.parse().ok()).ok_or_else(wrong)?;
        let lose = parts.next().map(|p| p.parse().map_err(|_| wrong())).transpose()?;
        if parts.next().is_some() { Err(wrong()) } else { Ok(CutAt { event, choice, lose }) }
    }
}

thread_local! {
    /// The cuts of the world that runs on this thread, for the panic message.
    static RUNNING: RefCell<Vec<CutAt>> = const { RefCell::new(Vec::new()) };
}

/// The cuts of the world that runs on this thread, outermost first.
pub fn running_cuts() -> Vec<CutAt> {
    RUNNING.with_borrow(Clone::clone)
}

/// Group, stripe and 512-byte sector of the chunk: a sector of every column, and of their parity.
type Line = (u32, u32, u32);

/// What a world of this campaign has beside the others.
#[derive(Default)]
pub(in crate::world) struct CutState {
    /// Cuts before it.
    depth: usize,
    /// Events so far.
    events: u64,
    /// Writes and flushes that this step ordered.
    orders: Vec<u64>,
    /// Other events of this step.
    others: u64,
    /// This world's recovery is cut again.
    deep: bool,
    /// Drives that are not there any more.
    gone: BTreeSet<usize>,
    /// Drives whose failure may have been recorded, or not, before the cut.
    doubtful: BTreeSet<usize>,
    /// Drives of members that had failed before the first cut.
    down: BTreeSet<usize>,
    /// Drives that were lost with the power, also if they came back after the next cut.
    lost: BTreeSet<usize>,
    /// Where parity may not match, because something was being written when the power failed, and no resync follows.
    hot: Rc<BTreeSet<Line>>,
    /// The newest view at each cut.
    was: Vec<Arc<View>>,
    /// Members that an operator still has to fail.
    to_fail: Vec<u16>,
    /// The fill was flushed.
    fill_flushed: bool,
    /// When the load has had its time to be marked clean.
    drain_until: Tick,
    /// Views that the simulator made up.
    own_views: u64,
    /// The view with all members that the recovery had.
    healthy: Option<Arc<View>>,
    /// Sets of members to lose after the recovery, and whether the first of them is lost already.
    losing: VecDeque<Vec<u16>>,
    out: bool,
    verdict: Verdict,
}

/// What a recovery led to.
#[derive(Clone, Copy, Debug, Default)]
struct Verdict {
    refused: bool,
    /// Sectors that held something else, with the members that the recovery had.
    corrupt: u64,
    /// Blocks that answered an error, rightly.
    unreadable: u64,
    /// Members were lost in turn.
    lost_after: bool,
    corrupt_after: u64,
}

/// Runs one case.
struct Cutter<'a> {
    /// Only these cuts; every one if there are none.
    only: &'a [CutAt],
    tracing: Tracing,
    stats: Stats,
    tally: Tally,
    found: Option<(String, Vec<CutAt>, Vec<String>)>,
}

impl World {
    /// Runs a case of the cuts campaign: all cuts, or with `only` the one that these lead to, outermost first.
    pub fn run_cuts(case: Case, broken: Option<Break>, only: &[CutAt], tracing: Tracing) -> Outcome {
        let outer = if only.is_empty() && tracing == Tracing::Keep { Tracing::Off } else { tracing };
        let mut cutter = Cutter { only, tracing: outer, stats: Stats::default(), tally: Tally::default(), found: None };
        let mut world = World::new(case.clone(), broken, outer);
        world.cut = Some(Box::default());
        world.begin();
        cutter.drive(&mut world, &[]);
        RUNNING.with_borrow_mut(Vec::clear);
        let Cutter { mut stats, tally, found, .. } = cutter;
        stats.add(&world.stats);
        let (violation, cuts, trace) = match found {
            None => (None, Vec::new(), world.trace.lines()),
            // The same again, with the last events: they are not kept while everything goes well.
            Some((what, cuts, lines)) if lines.is_empty() && tracing == Tracing::Keep => {
                // Without a cut: up to an event that never comes.
                let never = [CutAt { event: u64::MAX, choice: 0, lose: None }];
                let only = if cuts.is_empty() { &never } else { cuts.as_slice() };
                let again = World::run_cuts(case, broken, only, Tracing::Keep);
                (Some(what), cuts, again.trace)
            }
            Some((what, cuts, lines)) => (Some(what), cuts, lines),
        };
        Outcome { stats, violation, trace, cuts, tally }
    }

    /// An order, effect or completion of a drive I/O.
    pub(in crate::world) fn cut_event(&mut self, kind: Kind, order: Option<u64>) {
        let Some(cut) = self.cut.as_mut().filter(|_| kind != Kind::Read) else { return };
        match order {
            Some(id) => cut.orders.push(id),
            None => cut.others += 1,
        }
    }

    fn cuts(&self) -> &CutState {
        self.cut.as_ref().expect("a world of the cuts campaign")
    }

    fn cuts_mut(&mut self) -> &mut CutState {
        self.cut.as_mut().expect("a world of the cuts campaign")
    }

    /// The events of the step that was taken: each one's number, and the first I/O that had not been ordered then.
    fn moments(&mut self, acknowledged: u64) -> Vec<(u64, u64)> {
        let acknowledged = self.front.acknowledged() - acknowledged;
        let cut = self.cuts_mut();
        let mut moments = Vec::new();
        for id in std::mem::take(&mut cut.orders) {
            cut.events += 1;
            moments.push((cut.events, id + 1));
        }
        for _ in 0..std::mem::take(&mut cut.others) + acknowledged {
            cut.events += 1;
            moments.push((cut.events, u64::MAX));
        }
        moments
    }

    /// The power may fail now.
    fn cutting(&self) -> bool {
        let Some(cut) = &self.cut else { return false };
        match self.stage {
            Stage::Load | Stage::Drain => true,
            Stage::Starting => cut.depth > 0,
            _ => false,
        }
    }
}

impl Cutter<'_> {
    /// Runs a world to its end, and cuts it on the way.
    fn drive(&mut self, world: &mut World, at: &[CutAt]) {
        let only = self.only.get(at.len()).copied();
        let cut_it = if self.only.is_empty() { at.is_empty() || world.cuts().deep } else { only.is_some() };
        let mut seen = HashSet::new();
        loop {
            let acknowledged = world.front.acknowledged();
            if !world.step() {
                break;
            }
            let moments = world.moments(acknowledged);
            if !cut_it || !world.cutting() {
                continue;
            }
            for (event, until) in moments {
                let sampled = at.is_empty() || mix(event ^ fold(world.case.seed, at)).is_multiple_of(STRIDE);
                if only.map_or(sampled, |only| only.event == event) {
                    self.cut_here(world, at, event, until, &mut seen);
                }
                if self.found.is_some() || only.is_some_and(|only| only.event <= event) {
                    return;
                }
            }
        }
        if let Some(what) = world.violation.take() {
            let what = format!("{what} (at {} ns)", world.clock.now().0);
            self.found = Some((what, at.to_vec(), world.trace.lines()));
        }
    }

    /// Cuts the power after this event, in every way.
    fn cut_here(&mut self, world: &World, at: &[CutAt], event: u64, until: u64, seen: &mut HashSet<u64>) {
        let unsure = world.unsure(until);
        let salt = fold(world.case.seed, at) ^ mix(event);
        let limit = if at.is_empty() { CHOICES } else { CHOICES_AGAIN };
        let remains = world.remains();
        let durable = world.drives.iter().fold(0, |sum, d| mix(sum ^ d.epoch()));
        for (number, choice) in choices(&unsure, limit, &mut Rng::new(salt)).iter().enumerate() {
            let image = choice.image(&unsure);
            let print = mix(fingerprint(&image) ^ durable) ^ mix(world.oracle.strictness());
            let lottery = mix(salt ^ number as u64);
            for lose in world.losses(lottery) {
                let here = CutAt { event, choice: number as u32, lose };
                if let Some(only) = self.only.get(at.len()) {
                    if *only != here {
                        continue;
                    }
                } else if !seen.insert(print ^ lose.map_or(0, |m| mix(u64::from(m) + 1))) {
                    self.stats.repeated += 1;
                    continue;
                }
                self.stats.cuts += 1;
                let path = [at, &[here]].concat();
                RUNNING.with_borrow_mut(|running| running.clone_from(&path));
                let tracing = if self.only.is_empty() { Tracing::Off } else { self.tracing };
                let mut reborn = world.reborn(&remains, &image, lose, mix(lottery), tracing);
                reborn.cuts_mut().deep = at.is_empty() && mix(lottery ^ 7).is_multiple_of(DEEP);
                self.drive(&mut reborn, &path);
                self.stats.add(&reborn.stats);
                if self.found.is_none() {
                    reborn.count(&mut self.tally);
                }
                if self.found.is_some() {
                    return;
                }
            }
        }
    }
}

/// A number for the cuts so far.
fn fold(seed: u64, at: &[CutAt]) -> u64 {
    at.iter().fold(mix(seed), |sum, cut| {
        mix(sum ^ mix(cut.event) ^ u64::from(cut.choice) << 20 ^ cut.lose.map_or(0, |m| u64::from(m) + 1))
    })
}
