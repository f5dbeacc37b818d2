//! The simulation: engines, drives, mailboxes and a manager on one clock.
//!
//! | file | what |
//! |---|---|
//! | `lane` | an engine as a reactor runs it: mail in batches, actions out, computations late |
//! | `io` | drive I/O: takes effect in two parts at moments of its own, fails as the drive's faults say |
//! | `front` | requests: made at random, cut at bands, routed to lanes, judged by the model |
//! | `faults` | what goes wrong, and when that is allowed |
//! | `mini` | the simulator's own manager (engine campaign) |
//! | `full` | the real manager, with creation, assembly and crashes (full campaign) |
//! | `cuts` | the cuts campaign: the power fails at every event of a case |
//! | `check` | redundancy on the drives against the data |
//! | `trace` | the last events, for a failing run |

mod check;
mod cuts;
mod faults;
mod front;
mod full;
mod io;
mod lane;
mod mini;
mod trace;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use raid_core::action::{Event, IoStatus, IoTag, ReqStatus, Request, Slice, VolumeId};
use raid_core::units::Tick;
use raid_core::view::View;

use self::cuts::CutState;
pub use self::cuts::{CutAt, running_cuts};
use self::faults::Injector;
use self::front::Front;
use self::full::Full;
use self::io::DriveIo;
use self::lane::Lane;
use self::mini::Mini;
use self::trace::Trace;
pub use self::trace::Tracing;
use crate::breaks::Break;
use crate::case::{Campaign, Case, Round};
use crate::clock::Clock;
use crate::drive::Drive;
use crate::memory::Memory;
use crate::oracle::Oracle;
use crate::rng::{Rng, mix};
use crate::tally::Tally;

/// Events without any answer to a request or a rebuild step, after which a run is stuck.
const PATIENCE: u64 = 400_000;
/// Nanoseconds without one, after which it is stuck too.
const PATIENCE_TIME: u64 = 60_000_000_000;

/// What a case did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Requests answered.
    pub requests: u64,
    /// Requests answered with an error, where errors are allowed.
    pub errors: u64,
    /// Bytes read and compared.
    pub compared: u64,
    /// Faults injected.
    pub faults: u64,
    /// Members that failed.
    pub failures: u64,
    /// Stripes rebuilt or resynced.
    pub maintained: u64,
    /// Blocks repaired after read errors.
    pub repairs: u64,
    /// Crashes.
    pub crashes: u64,
    /// Rows whose redundancy was checked.
    pub rows: u64,
    /// Cuts of the power, each with one choice of what was still volatile.
    pub cuts: u64,
    /// Cuts that were left out, because the same drives under the same promises had been tried.
    pub repeated: u64,
}

impl Stats {
    /// Adds another case's.
    pub fn add(&mut self, other: &Stats) {
        self.requests += other.requests;
        self.errors += other.errors;
        self.compared += other.compared;
        self.faults += other.faults;
        self.failures += other.failures;
        self.maintained += other.maintained;
        self.repairs += other.repairs;
        self.crashes += other.crashes;
        self.rows += other.rows;
        self.cuts += other.cuts;
        self.repeated += other.repeated;
    }
}

/// How a case ended.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// What it did.
    pub stats: Stats,
    /// What was wrong, with the moment.
    pub violation: Option<String>,
    /// The last events.
    pub trace: Vec<String>,
    /// The cuts that led to the violation, outermost first.
    pub cuts: Vec<CutAt>,
    /// What cuts found.
    pub tally: Tally,
}

/// What is scheduled.
enum Ev {
    /// Mail for a lane.
    ToLane(usize, LaneMail),
    /// A lane's pass.
    Pump(usize),
    /// The first part of a drive I/O takes effect.
    Effect(u64),
    /// A drive I/O is complete.
    Done(u64),
    /// A computation is done.
    Computed(usize, IoTag, Slice),
    /// Mail for the manager.
    ToControl(ControlMail),
    /// A piece of a request was answered.
    Reply(u64, ReqStatus),
    /// More requests.
    Burst,
    /// A fault strikes.
    Fault,
    /// A step of the simulator's manager.
    Mini(mini::Step),
    /// A step of the script around the real manager.
    Full(full::Step),
}

enum LaneMail {
    Submit(Request),
    View { tag: u64, view: Arc<View>, devices: Vec<Option<usize>> },
    RegionsChanged,
    Quiesce(u64),
}

enum ControlMail {
    Event(Event),
    Published(u64),
    Quiesced(u64),
    Maintained(u64, ReqStatus),
    /// A metadata I/O has ended.
    Meta {
        tag: u64,
        read: bool,
        result: Result<Vec<u8>, IoStatus>,
    },
}

enum Control {
    Mini(Box<Mini>),
    Full(Box<Full>),
}

/// Where a case stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The array is being made or assembled.
    Starting,
    /// The volume is filled, before the load of the cuts campaign.
    Fill,
    /// Members are failed, before the load of the cuts campaign.
    Degrade,
    /// Requests of a round.
    Load,
    /// The round's requests are answered; rebuilds go on.
    Settle,
    /// The load of the cuts campaign is over; the mark is cleared.
    Drain,
    /// Everything is read.
    Sweep,
    /// The sweep may have found faults; rebuilds go on.
    SettleAgain,
    /// After the recovery from a cut, members are lost in turn and everything is read again.
    Losing,
    /// Everything was checked.
    Over,
}

/// Tags of maintenance steps have this bit.
const HOST: u64 = 1 << 63;

/// A running case. See the module's head.
pub struct World {
    case: Case,
    rng: Rng,
    clock: Clock<Ev>,
    memory: Memory,
    drives: Vec<Drive>,
    ios: BTreeMap<u64, DriveIo>,
    next_io: u64,
    lanes: Vec<Lane>,
    control: Control,
    front: Front,
    oracle: Oracle,
    injector: Injector,
    /// The newest view that was published, and the drives behind its members.
    view: Arc<View>,
    devices: Vec<Option<usize>>,
    /// The tag of the newest view.
    published: Option<u64>,
    /// Views and quiesce orders that lanes have not answered yet.
    broadcasts: BTreeMap<u64, usize>,
    volume: VolumeId,
    /// Mail that was sent and has not arrived.
    mail: u64,
    /// The latest arrival of mail on each way, because mailboxes keep the order.
    arrivals: BTreeMap<(usize, usize), Tick>,
    stage: Stage,
    round: usize,
    broken: Option<Break>,
    /// Values of which a member write failed, and the members that missed them.
    missed: BTreeMap<u32, BTreeSet<u16>>,
    /// The volume went offline, which only havoc allows.
    offline: bool,
    /// Only in the cuts campaign.
    cut: Option<Box<CutState>>,
    progress: u64,
    /// The progress that was seen last, and when that was.
    seen: (u64, Tick),
    stats: Stats,
    trace: Trace,
    violation: Option<String>,
}

impl World {
    /// Runs a case to its end or to its first violation.
    pub fn run(case: Case, broken: Option<Break>, tracing: Tracing) -> Outcome {
        if case.plan.is_some() {
            return World::run_cuts(case, broken, &[], tracing);
        }
        let mut world = World::new(case, broken, tracing);
        world.begin();
        while world.step() {}
        world.outcome()
    }

    /// The next event, and what follows from it at once. False at the end or at a violation.
    fn step(&mut self) -> bool {
        if self.violation.is_some() || self.stage == Stage::Over {
            return false;
        }
        let Some(event) = self.clock.advance() else {
            let open = self.front.open();
            self.fail(format!("no progress: nothing is due in stage {:?}, {open} requests are open", self.stage));
            return false;
        };
        self.handle(event);
        if self.seen.0 != self.progress {
            self.seen = (self.progress, self.clock.now());
        }
        let idle = self.clock.now().0 - self.seen.1.0;
        if self.clock.events() > self.progress + PATIENCE || idle > PATIENCE_TIME {
            self.fail(format!("no progress: busy for {idle} ns without an answer in stage {:?}", self.stage));
        }
        while self.steer() {}
        true
    }

    fn outcome(mut self) -> Outcome {
        let violation = self.violation.take().map(|v| format!("{v} (at {} ns)", self.clock.now().0));
        let trace = self.trace.lines();
        Outcome { stats: self.stats, violation, trace, cuts: Vec::new(), tally: Tally::default() }
    }

    fn new(case: Case, broken: Option<Break>, tracing: Tracing) -> World {
        let mut rng = Rng::new(mix(case.seed) ^ 0x5eed);
        let oracle = Oracle::new(case.volume_bytes() / 512, case.cache);
        let control = match case.campaign {
            Campaign::Engine => Control::Mini(Box::new(Mini::new(&case))),
            Campaign::Full | Campaign::Cuts => Control::Full(Box::new(Full::new(&case, &mut rng))),
        };
        World {
            front: Front::new(&case),
            case,
            rng,
            clock: Clock::default(),
            memory: Memory::default(),
            drives: Vec::new(),
            ios: BTreeMap::new(),
            next_io: 1,
            lanes: Vec::new(),
            control,
            oracle,
            injector: Injector::default(),
            view: Arc::new(View::default()),
            devices: Vec::new(),
            published: None,
            broadcasts: BTreeMap::new(),
            volume: VolumeId(0),
            mail: 0,
            arrivals: BTreeMap::new(),
            stage: Stage::Starting,
            round: 0,
            broken,
            missed: BTreeMap::new(),
            offline: false,
            cut: None,
            progress: 0,
            seen: (0, Tick(0)),
            stats: Stats::default(),
            trace: Trace::new(tracing),
            violation: None,
        }
    }

    fn begin(&mut self) {
        match self.control {
            Control::Mini(_) => self.mini_begin(),
            Control::Full(_) => self.full_begin(),
        }
    }

    fn fail(&mut self, what: String) {
        if self.violation.is_none() {
            self.trace.note(self.clock.now(), || format!("VIOLATION: {what}"));
            self.violation = Some(what);
        }
    }

    fn handle(&mut self, event: Ev) {
        if matches!(event, Ev::ToLane(..) | Ev::ToControl(_) | Ev::Reply(..)) {
            self.mail -= 1;
        }
        match event {
            Ev::ToLane(lane, mail) => self.receive(lane, mail),
            Ev::Pump(lane) => self.pump(lane),
            Ev::Effect(io) => self.io_effect(io),
            Ev::Done(io) => self.io_done(io),
            Ev::Computed(lane, io, steps) => self.computed(lane, io, steps),
            Ev::ToControl(mail) => match self.control {
                Control::Mini(_) => self.mini_mail(mail),
                Control::Full(_) => self.full_mail(mail),
            },
            Ev::Reply(op, status) => self.piece_ended(op, status),
            Ev::Burst => self.burst(),
            Ev::Fault => self.strike(),
            Ev::Mini(step) => self.mini_step(step),
            Ev::Full(step) => self.full_step(step),
        }
    }

    /// What errors are allowed now?
    fn havoc(&self) -> bool {
        self.case.lossy() || matches!(&self.control, Control::Full(full) if full.unverifiable)
    }

    fn current_round(&self) -> Round {
        self.case.rounds[self.round.min(self.case.rounds.len() - 1)]
    }

    fn begin_round(&mut self) {
        self.stage = Stage::Load;
        self.front.begin_round(&self.case, &mut self.rng);
        self.plan_faults();
        self.clock.after(1, Ev::Burst);
        let (round, what) = (self.round, self.current_round());
        self.trace.note(self.clock.now(), || format!("round {round} begins: {what:?}"));
    }

    /// Goes on to the next stage when the one at hand is through. True if it did.
    fn steer(&mut self) -> bool {
        if self.violation.is_some() || !self.front.quiet() || !self.at_rest() {
            return false;
        }
        if self.cut.is_some() {
            return self.cut_steer();
        }
        match self.stage {
            Stage::Load => {
                self.stage = Stage::Settle;
                self.settle_faults(false);
            }
            Stage::Settle => {
                self.stage = Stage::Sweep;
                self.front.begin_sweep([(0, self.oracle.sectors())]);
                self.clock.after(1, Ev::Burst);
            }
            Stage::Sweep => {
                self.stage = Stage::SettleAgain;
                self.settle_faults(true);
            }
            Stage::SettleAgain => {
                self.check_rest();
                self.check_redundancy();
                self.round_ended();
            }
            _ => return false,
        }
        true
    }

    fn round_ended(&mut self) {
        self.round += 1;
        if self.round >= self.case.rounds.len() || self.offline {
            self.stage = Stage::Over;
        } else if matches!(self.control, Control::Full(_)) {
            self.full_between_rounds();
        } else {
            self.begin_round();
        }
    }

    /// Nothing is in flight anywhere.
    fn at_rest(&self) -> bool {
        self.mail == 0
            && self.ios.is_empty()
            && !self.faults_pending()
            && self.broadcasts.is_empty()
            && self.lanes.iter().all(Lane::at_rest)
            && match &self.control {
                Control::Mini(mini) => mini.at_rest(),
                Control::Full(full) => full.at_rest(),
            }
    }

    /// Sends mail with a random delay, never past mail that was sent before on the same way.
    fn send(&mut self, from: usize, to: usize, event: Ev) {
        let delay = match self.rng.below(10) {
            // A lane that learns late of what the others know already.
            0..=2 if from == CONTROL && to != CONTROL => self.rng.range(5_000, 400_000),
            3 => self.rng.range(1_000, 60_000),
            _ => self.rng.range(50, 2_000),
        };
        let at = self.clock.now().after(delay);
        let arrival = self.arrivals.entry((from, to)).or_default();
        *arrival = (*arrival).max(at);
        let at = *arrival;
        self.mail += 1;
        self.clock.at(at, event);
    }

    /// All mail is gone with the process.
    fn forget_mail(&mut self) {
        self.mail = 0;
        self.broadcasts.clear();
        self.arrivals.clear();
    }

    /// Hands a view to every lane.
    fn publish(&mut self, tag: u64, view: Arc<View>, devices: Vec<Option<usize>>) {
        self.trace.note(self.clock.now(), || format!("view {tag}: {}", trace::view(&view)));
        self.view = view.clone();
        self.devices = devices.clone();
        self.published = Some(tag);
        self.broadcasts.insert(tag, self.lanes.len());
        if let Some(v) = self.view.volume(self.volume)
            && !v.online
            && self.stage != Stage::Starting
            && !matches!(&self.control, Control::Full(full) if full.stopping())
        {
            self.offline = true;
            if !self.havoc() {
                self.fail("the volume went offline although enough members are left".to_string());
            }
        }
        for lane in 0..self.lanes.len() {
            let mail = LaneMail::View { tag, view: view.clone(), devices: devices.clone() };
            self.send(CONTROL, lane, Ev::ToLane(lane, mail));
        }
    }

    /// Counts a lane's answer to a broadcast. True if it was the last.
    fn answered(&mut self, tag: u64) -> bool {
        let Some(left) = self.broadcasts.get_mut(&tag) else { return false };
        *left -= 1;
        let last = *left == 0;
        if last {
            self.broadcasts.remove(&tag);
        }
        last
    }
}

/// The manager's end of a mailbox.
const CONTROL: usize = usize::MAX;
/// The requests' end of a mailbox.
const FRONT: usize = usize::MAX - 1;
