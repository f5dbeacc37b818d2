//! An engine as a reactor runs it. Mail gathers and is taken in one pass, so that batches form as they do in the shell.

use std::collections::VecDeque;
use std::sync::Arc;

use raid_core::action::{Action, BufAddr, IoStatus, IoTag, ReqStatus, Request, Slice, Step};
use raid_core::engine::{Config, Engine};
use raid_core::view::View;

use super::io::Owner;
use super::{CONTROL, ControlMail, Ev, FRONT, HOST, LaneMail, World};
use crate::breaks::{Break, strikes};
use crate::drive::Kind;

/// See the module's head.
pub(super) struct Lane {
    pub(super) engine: Engine,
    waiting: VecDeque<Request>,
    quiescing: Vec<u64>,
    devices: Vec<Option<usize>>,
    pump_due: bool,
    /// The tag of the view in force.
    pub(super) view_tag: Option<u64>,
}

impl Lane {
    pub(super) fn at_rest(&self) -> bool {
        !self.pump_due && self.engine.idle() && self.waiting.is_empty() && self.quiescing.is_empty()
    }
}

impl World {
    /// Makes the lanes anew: at the start, and after a crash.
    pub(super) fn make_lanes(&mut self) {
        let needed = Engine::scratch_needed(&self.case.geometry) * self.case.scratch;
        let (requests, stripes, ios) = self.case.slabs;
        let handle_every_release = self.rng.percent(10);
        self.lanes = (0..self.case.lanes)
            .map(|_| {
                let scratch = BufAddr::new(self.memory.alloc(needed as usize, 0xee), 0);
                let config = Config { requests, stripes, ios, scratch, scratch_len: needed, handle_every_release };
                Lane {
                    engine: Engine::new(config, Arc::new(View::default())),
                    waiting: VecDeque::new(),
                    quiescing: Vec::new(),
                    devices: Vec::new(),
                    pump_due: false,
                    view_tag: None,
                }
            })
            .collect();
    }

    /// The lane that owns a shard.
    pub(super) fn lane_of(&self, shard: u16) -> usize {
        usize::from(shard) % self.lanes.len()
    }

    fn pump_soon(&mut self, lane: usize) {
        if !std::mem::replace(&mut self.lanes[lane].pump_due, true) {
            let delay = self.rng.range(1, 1_500);
            self.clock.after(delay, Ev::Pump(lane));
        }
    }

    pub(super) fn receive(&mut self, at: usize, mail: LaneMail) {
        let now = self.clock.now();
        let lane = &mut self.lanes[at];
        match mail {
            LaneMail::Submit(request) => {
                if !lane.waiting.is_empty() {
                    lane.waiting.push_back(request);
                } else if let Err(busy) = lane.engine.submit(now, request) {
                    lane.waiting.push_back(busy.0);
                }
            }
            LaneMail::View { tag, view, devices } => {
                lane.devices = devices;
                lane.view_tag = Some(tag);
                lane.engine.set_view(now, view);
                self.send(at, CONTROL, Ev::ToControl(ControlMail::Published(tag)));
            }
            LaneMail::RegionsChanged => lane.engine.regions_changed(now),
            LaneMail::Quiesce(tag) => lane.quiescing.push(tag),
        }
        self.pump_soon(at);
    }

    /// Answers an engine's I/O.
    pub(super) fn answer(&mut self, at: usize, io: IoTag, status: IoStatus) {
        let now = self.clock.now();
        self.lanes[at].engine.complete(now, io, status);
        self.pump_soon(at);
    }

    pub(super) fn pump(&mut self, at: usize) {
        let now = self.clock.now();
        self.lanes[at].pump_due = false;
        loop {
            let lane = &mut self.lanes[at];
            let mut progress = false;
            while let Some(request) = lane.waiting.pop_front() {
                if let Err(busy) = lane.engine.submit(now, request) {
                    lane.waiting.push_front(busy.0);
                    break;
                }
                progress = true;
            }
            while let Some(action) = self.lanes[at].engine.next_action() {
                progress = true;
                self.execute(at, action);
            }
            if !progress {
                break;
            }
        }
        if self.lanes[at].engine.idle() && self.lanes[at].waiting.is_empty() {
            for tag in std::mem::take(&mut self.lanes[at].quiescing) {
                self.send(at, CONTROL, Ev::ToControl(ControlMail::Quiesced(tag)));
            }
        }
    }

    fn execute(&mut self, at: usize, action: Action) {
        let engine = |io, segs| Owner::Engine { lane: at, io, segs };
        let none = Slice::default();
        let (io, member, kind, offset, len, owner) = match action {
            Action::Read { io, member, offset, len, segs } => {
                (io, member, Kind::Read, offset, u64::from(len), engine(io, segs))
            }
            Action::Write { io, member, offset, len, segs, fua } => {
                (io, member, Kind::Write { fua }, offset, u64::from(len), engine(io, segs))
            }
            Action::Flush { io, member } => (io, member, Kind::Flush, 0, 0, engine(io, none)),
            Action::Zero { io, member, offset, len, fua, .. } => {
                (io, member, Kind::Zero { fua }, offset, len, engine(io, none))
            }
            Action::Compute { io, steps } => {
                // Now, or later: until it is answered nothing that it touches may be used.
                if self.rng.percent(50) {
                    return self.computed(at, io, steps);
                }
                let delay = self.rng.range(100, 30_000);
                return self.clock.after(delay, Ev::Computed(at, io, steps));
            }
            Action::Reply { tag, status } => {
                if tag.0 & HOST != 0 {
                    let mail = ControlMail::Maintained(tag.0 & !HOST, status);
                    return self.send(at, CONTROL, Ev::ToControl(mail));
                }
                if status == ReqStatus::Ok {
                    self.check_recorded(tag.0);
                }
                return self.send(at, FRONT, Ev::Reply(tag.0, status));
            }
            Action::Event(event) => {
                self.trace.event(self.clock.now(), move || format!("lane {at}: {event:?}"));
                return self.send(at, CONTROL, Ev::ToControl(ControlMail::Event(event)));
            }
        };
        match self.lanes[at].devices.get(usize::from(member.0)).copied().flatten() {
            Some(drive) => self.start_io(owner, drive, member.0, kind, offset, len),
            // The array has let go of the member.
            None => self.answer(at, io, IoStatus::DeviceError),
        }
    }

    pub(super) fn computed(&mut self, at: usize, io: IoTag, steps: Slice) {
        let mut status = IoStatus::Ok;
        for step in self.lanes[at].engine.steps(steps).to_vec() {
            let mut terms = match step {
                Step::Combine { terms, .. } => self.lanes[at].engine.terms(terms).to_vec(),
                _ => Vec::new(),
            };
            if self.broken == Some(Break::PlainXor) {
                terms.iter_mut().for_each(|t| t.coef = t.coef.map(|c| u8::from(c != 0)));
            }
            if strikes(self.broken, Break::LoseTerm, 20, &mut self.rng) {
                terms.pop();
            }
            if !self.memory.execute(&step, &terms) {
                status = IoStatus::Miscompare;
            }
        }
        self.answer(at, io, status);
    }
}
