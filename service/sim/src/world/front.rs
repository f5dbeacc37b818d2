//! Requests: made at random, cut and routed as the shell does it, judged by the model when they are answered.

use std::collections::{BTreeMap, VecDeque};

use raid_core::action::{BufAddr, Op, ReqStatus, ReqTag, Request};
use raid_core::view::SlotState;
use raid_core::view::VolumeView;

use super::{Ev, FRONT, LaneMail, Round, World};
use crate::breaks::Break;
use crate::case::Case;
use crate::pattern::{self, SECTOR, Value, ZEROS};
use crate::rng::Rng;

/// Sectors of one read of a sweep.
const SWEEP: u64 = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Read,
    Write { fua: bool },
    Zero { unmap: bool },
    Flush,
    Compare,
}

/// A request that is not answered.
pub(super) struct Open {
    pub(super) what: What,
    pub(super) from: u64,
    pub(super) to: u64,
    value: Value,
    region: Option<u16>,
    read_region: Option<u16>,
    /// What a comparison expects.
    expected: Vec<Option<Value>>,
    pieces: u32,
    pub(super) status: ReqStatus,
    /// The model's time and the number of drive I/Os at its beginning.
    moment: u64,
    ios: u64,
    generation: u64,
    /// Another write was in flight on its stripes.
    crowded: bool,
    /// A deliberate fault: it was judged before it was answered.
    judged: bool,
    /// The request's own lane could not serve all of it.
    asked_owners: bool,
}

/// See the module's head.
pub(super) struct Front {
    open: BTreeMap<u64, Open>,
    next_op: u64,
    next_value: Value,
    left: u32,
    submitted: u32,
    burst_due: bool,
    hot_base: u64,
    cursor: u64,
    /// Ranges of sectors that are still to be read in a sweep.
    sweep: VecDeque<(u64, u64)>,
    /// How far the volume has been filled, before the load of the cuts campaign.
    fill: Option<u64>,
    /// A flush or a write was answered: how often.
    acknowledged: u64,
}

impl Front {
    pub(super) fn new(_case: &Case) -> Front {
        Front {
            open: BTreeMap::new(),
            next_op: 1,
            next_value: 16,
            left: 0,
            submitted: 0,
            burst_due: false,
            hot_base: 0,
            cursor: 0,
            sweep: VecDeque::new(),
            fill: None,
            acknowledged: 0,
        }
    }

    /// The requests of another world begin after this one's.
    pub(super) fn after(before: &Front, case: &Case) -> Front {
        Front { next_op: before.next_op, next_value: before.next_value, cursor: before.cursor, ..Front::new(case) }
    }

    pub(super) fn open(&self) -> usize {
        self.open.len()
    }

    /// Everything was submitted and answered.
    pub(super) fn quiet(&self) -> bool {
        self.left == 0 && self.sweep.is_empty() && self.fill.is_none() && self.open.is_empty()
    }

    /// How many writes and flushes were acknowledged.
    pub(super) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Where the last request ended.
    pub(super) fn cursor(&self) -> u64 {
        self.cursor
    }

    /// Requests to come.
    pub(super) fn load(&mut self, requests: u32, hot_base: u64) {
        self.left = requests;
        self.submitted = 0;
        self.burst_due = true;
        self.hot_base = hot_base;
    }

    /// Where the part begins that most requests of the load go to.
    pub(super) fn hot_base(&self) -> u64 {
        self.hot_base
    }

    /// The next request of an appending load begins here.
    pub(super) fn set_cursor(&mut self, to: u64) {
        self.cursor = to;
    }

    /// The volume is written from its beginning to `to`.
    pub(super) fn begin_fill(&mut self) {
        self.fill = Some(0);
        self.burst_due = true;
    }

    /// Requests of this round that were submitted.
    pub(super) fn submitted(&self) -> u32 {
        self.submitted
    }

    /// Nothing more is submitted.
    pub(super) fn stop(&mut self) {
        self.left = 0;
        self.sweep.clear();
        self.fill = None;
    }

    pub(super) fn begin_round(&mut self, case: &Case, rng: &mut Rng) {
        self.left = case.requests;
        self.submitted = 0;
        self.burst_due = true;
        self.hot_base = rng.below(case.volume_bytes() / SECTOR as u64);
        self.cursor = self.hot_base;
    }

    /// These ranges of sectors are read.
    pub(super) fn begin_sweep(&mut self, ranges: impl IntoIterator<Item = (u64, u64)>) {
        self.sweep = ranges.into_iter().collect();
        self.burst_due = true;
    }

    /// These sectors are read again, in two parts.
    pub(super) fn read_halves(&mut self, from: u64, to: u64) {
        let half = from + (to - from).div_ceil(16) * 8;
        self.sweep.extend([(from, half), (half, to)]);
    }

    /// The process is gone, and every open request with it.
    pub(super) fn crash(&mut self) {
        self.open.clear();
        self.stop();
        self.burst_due = false;
    }
}

impl World {
    /// Submits requests up to the depth.
    pub(super) fn burst(&mut self) {
        self.front.burst_due = false;
        if !self.front.sweep.is_empty() {
            return self.sweep_on();
        }
        if let Some(at) = self.front.fill {
            return self.fill_on(at);
        }
        let mut n = self.rng.range(1, self.case.batch);
        while n > 0 && self.front.left > 0 && self.front.open.len() < self.case.depth {
            n -= 1;
            self.front.left -= 1;
            self.front.submitted += 1;
            if self.case.plan.is_some() {
                self.make_cut_request();
            } else {
                self.make_request();
                self.fault_due();
            }
        }
        if self.front.left > 0 && self.front.open.len() < self.case.depth {
            self.burst_later();
        }
    }

    fn burst_later(&mut self) {
        if !std::mem::replace(&mut self.front.burst_due, true) {
            let delay = if self.rng.percent(5) { self.rng.range(10_000, 400_000) } else { self.rng.range(1, 10_000) };
            self.clock.after(delay, Ev::Burst);
        }
    }

    fn sweep_on(&mut self) {
        while self.front.open.len() < 8
            && let Some((from, end)) = self.front.sweep.pop_front()
        {
            let to = (from + SWEEP).min(end);
            if to < end {
                self.front.sweep.push_front((to, end));
            }
            self.submit(What::Read, from, to);
        }
    }

    /// Writes on, up to where the workload wants the volume full.
    fn fill_on(&mut self, mut at: u64) {
        let end = self.full_up_to();
        while at < end && self.front.open.len() < 4 {
            let to = (at + self.rng.range(8, 96)).min(end);
            self.submit(What::Write { fua: false }, at, to);
            at = to;
        }
        self.front.fill = (at < end).then_some(at);
        self.front.cursor = at;
    }

    fn make_request(&mut self) {
        let end = self.oracle.sectors();
        let longest = self.case.longest / SECTOR as u64;
        let stripe = self.case.geometry.stripe_bytes() / SECTOR as u64;
        let hot = (end * self.case.hot / 100).max(16).min(end);
        let anywhere = self.rng.percent(5);
        let mut from = if anywhere { self.rng.below(end) } else { (self.front.hot_base + self.rng.below(hot)) % end };
        let mut len = match self.rng.below(10) {
            0..=2 => self.rng.range(1, 24),
            3..=5 => {
                from &= !7;
                self.rng.range(1, 8) * 8
            }
            6 => {
                from = self.front.cursor % end;
                (longest / 4).max(8)
            }
            7 => {
                from = from / stripe * stripe;
                stripe * self.rng.range(1, (longest / stripe).max(1))
            }
            _ => self.rng.range(1, longest),
        };
        len = len.min(4096).min(end - from);
        self.front.cursor = from + len;
        let what = match self.rng.below(100) {
            0..=49 => What::Write { fua: self.rng.percent(15) },
            50..=81 => What::Read,
            82..=88 => What::Zero { unmap: self.rng.percent(50) },
            89..=93 => What::Flush,
            _ => What::Compare,
        };
        let len = if what == What::Compare { len.min(64) } else { len };
        self.submit(what, from, from + len);
    }

    pub(super) fn submit(&mut self, what: What, from: u64, to: u64) {
        let op = self.front.next_op;
        self.front.next_op += 1;
        let len = ((to - from) * SECTOR as u64) as usize;
        let mut open = Open {
            what,
            from,
            to,
            value: ZEROS,
            region: None,
            read_region: None,
            expected: Vec::new(),
            pieces: 0,
            status: ReqStatus::Ok,
            moment: self.oracle.now(),
            ios: self.next_io,
            generation: self.view.generation,
            crowded: false,
            judged: false,
            asked_owners: false,
        };
        match what {
            What::Read => {
                open.region = Some(self.memory.alloc(len, 0xee));
                self.oracle.begin_read(op, from, to);
            }
            What::Write { .. } => {
                open.value = self.front.next_value;
                self.front.next_value += 1;
                let region = self.memory.alloc(len, 0);
                pattern::fill_all(self.memory.region_mut(region), open.value, from);
                open.region = Some(region);
                self.crowd(&mut open);
                self.oracle.begin_write(op, from, to, open.value);
            }
            What::Zero { .. } => {
                self.crowd(&mut open);
                self.oracle.begin_write(op, from, to, ZEROS);
            }
            What::Compare => {
                let region = self.memory.alloc(len, 0xee);
                let differs = if self.rng.percent(30) { from + self.rng.below(to - from) } else { to };
                for (i, sector) in (from..to).enumerate() {
                    let value = self.oracle.certain(sector).unwrap_or(ZEROS);
                    let bytes = &mut self.memory.region_mut(region)[i * SECTOR..(i + 1) * SECTOR];
                    pattern::fill(bytes, value, sector);
                    if sector == differs {
                        bytes[self.rng.below(SECTOR as u64) as usize] ^= 0x40;
                    }
                    open.expected.push((sector != differs).then_some(value));
                }
                open.region = Some(region);
                open.read_region = Some(self.memory.alloc(len, 0xee));
                self.oracle.begin_read(op, from, to);
            }
            What::Flush => {}
        }
        self.trace.event(self.clock.now(), move || format!("request {op}: {what:?} of sectors {from}..{to}"));
        self.route(op, &mut open, true);
        let early = self.broken == Some(Break::EarlyReply) && matches!(what, What::Write { .. });
        self.front.open.insert(op, open);
        if early && self.rng.percent(20) {
            self.judge_early(op);
        }
    }

    /// Notes which writes share stripes with others in flight.
    fn crowd(&mut self, new: &mut Open) {
        let stripe = self.case.geometry.stripe_bytes() / SECTOR as u64;
        let range = |o: &Open| (o.from / stripe, o.to.div_ceil(stripe));
        let (a, b) = range(new);
        for other in self.front.open.values_mut() {
            let (c, d) = range(other);
            if matches!(other.what, What::Write { .. } | What::Zero { .. }) && a < d && c < b {
                (new.crowded, other.crowded) = (true, true);
            }
        }
    }

    /// Cuts a request at band borders and sends the pieces to the lanes that own them. With `local` reads are tried on the
    /// request's own lane first, if that has the newest view, as the shell's `Volume` does it.
    fn route(&mut self, op: u64, open: &mut Open, local: bool) {
        let geometry = self.case.geometry;
        let here = self.rng.below(self.lanes.len() as u64) as usize;
        let behind = self.lanes[here].view_tag != self.published && self.broken != Some(Break::ReadBehind);
        let local = local && open.what == What::Read && !behind;
        let (volume, tag) = (self.volume, ReqTag(op));
        let mut offset = open.from * SECTOR as u64;
        let end = open.to * SECTOR as u64;
        let begin = offset;
        let addr = |region: Option<u16>, at: u64| region.map_or(BufAddr::ZERO, |r| BufAddr::new(r, at));
        if open.what == What::Flush {
            open.pieces = 1;
            return self.send_piece(here, Request { tag, volume, op: Op::Flush });
        }
        while offset < end {
            let n = (end - offset).min(geometry.band_remainder(offset));
            let buf = addr(open.region, offset - begin);
            let len = n as u32;
            let place = geometry.place(offset);
            let owner = self.lane_of(geometry.shard(place.group, place.stripe));
            let lane = if local { here } else { owner };
            let op = match open.what {
                What::Read if lane != owner => Op::ReadHealthy { offset, len, buf },
                What::Read => Op::Read { offset, len, buf },
                What::Write { fua } => Op::Write { offset, len, buf, fua },
                What::Zero { unmap } => Op::Zero { offset, len: n, unmap },
                _ => Op::Compare { offset, len, buf, read_buf: addr(open.read_region, offset - begin) },
            };
            open.pieces += 1;
            self.send_piece(lane, Request { tag, volume, op });
            offset += n;
        }
    }

    fn send_piece(&mut self, lane: usize, request: Request) {
        self.send(FRONT, lane, Ev::ToLane(lane, LaneMail::Submit(request)));
    }

    pub(super) fn piece_ended(&mut self, op: u64, status: ReqStatus) {
        let Some(open) = self.front.open.get_mut(&op) else {
            return self.fail(format!("request {op} was answered twice"));
        };
        if open.status == ReqStatus::Ok || (open.status == ReqStatus::NotHere && status != ReqStatus::Ok) {
            open.status = status;
        }
        open.pieces -= 1;
        if open.pieces > 0 {
            return;
        }
        let mut open = self.front.open.remove(&op).expect("looked at above");
        if open.status == ReqStatus::NotHere && !std::mem::replace(&mut open.asked_owners, true) {
            // All of it again, by the owners.
            open.status = ReqStatus::Ok;
            self.route(op, &mut open, false);
            self.front.open.insert(op, open);
            return;
        }
        let status = open.status;
        self.trace.event(self.clock.now(), move || format!("request {op}: {status:?}"));
        self.progress = self.clock.events();
        self.stats.requests += 1;
        if let Some(why) = self.judge(op, &open) {
            let (what, from, to) = (open.what, open.from, open.to);
            self.fail(format!("request {op}, {what:?} of sectors {from}..{to}: {why}"));
        }
        for region in [open.region, open.read_region].into_iter().flatten() {
            self.memory.free(region);
        }
        self.front.acknowledged += u64::from(!matches!(open.what, What::Read | What::Compare));
        if self.front.left > 0 || !self.front.sweep.is_empty() || self.front.fill.is_some() {
            self.burst_later();
        }
    }

    /// An engine answers a write with success: no member may have missed it whose failure is not recorded. Only for
    /// writes inside one stripe: of others a part may have been done earlier and be rewritten now by somebody else.
    pub(super) fn check_recorded(&mut self, op: u64) {
        let Some(open) = self.front.open.get(&op) else { return };
        let stripe = self.case.geometry.stripe_bytes() / SECTOR as u64;
        let missed = self.missed.remove(&open.value);
        if self.case.plan.is_some()
            || !matches!(open.what, What::Write { .. })
            || open.from / stripe != (open.to - 1) / stripe
        {
            return;
        }
        if let Some(member) = missed.into_iter().flatten().find(|m| !self.failure_recorded(*m)) {
            self.fail(format!("request {op} was acknowledged before the failure of member {member} was recorded"));
        }
    }

    /// A deliberate fault: the initiator hears of success before the engine says so.
    fn judge_early(&mut self, op: u64) {
        self.oracle.end_write(op, true, false);
        if let Some(open) = self.front.open.get_mut(&op) {
            open.judged = true;
        }
    }

    /// What is wrong with an answer, if anything is.
    fn judge(&mut self, op: u64, open: &Open) -> Option<String> {
        let (region, status) = (open.region, open.status);
        let well = status == ReqStatus::Ok;
        let found_different = status == ReqStatus::Miscompare && open.what == What::Compare;
        if !well && !found_different {
            self.stats.errors += 1;
            if self.cut.is_some() && self.cut_excuses(op, open) {
                return None;
            }
            if !self.havoc() || matches!(status, ReqStatus::OutOfRange | ReqStatus::Miscompare | ReqStatus::NotHere) {
                return Some(format!("it failed with {status:?}, and nothing that went wrong explains it"));
            }
        }
        // Errors may leave copies that differ on members that are about to be failed.
        let settle = !self.havoc();
        match open.what {
            What::Read if well => {
                self.stats.compared += (open.to - open.from) * SECTOR as u64;
                let bytes = self.memory.region(region.expect("a read's buffer"));
                if self.cut.is_some() {
                    return self.judge_cut_read(op, region);
                }
                self.oracle.end_read(op, bytes, settle).err()
            }
            What::Compare if well || found_different => self.oracle.end_compare(op, &open.expected, well).err(),
            What::Read | What::Compare => {
                self.oracle.drop_read(op);
                None
            }
            What::Write { fua } => {
                if !open.judged {
                    self.oracle.end_write(op, well, fua && well);
                }
                if !well {
                    return None;
                }
                let bytes = self.memory.region(region.expect("a write's buffer"));
                let mut sectors = bytes.chunks_exact(SECTOR).zip(open.from..);
                if !sectors.all(|(b, s)| pattern::is(b, open.value, s)) {
                    return Some("its buffer was changed".to_string());
                }
                // The cuts campaign shows what comes of it instead.
                if fua && self.cut.is_none() { self.check_fua(open) } else { None }
            }
            What::Zero { .. } => {
                self.oracle.end_write(op, well, false);
                None
            }
            What::Flush if well => {
                let broken = if self.cut.is_none() { self.check_flush(open) } else { None };
                self.oracle.flushed(open.moment);
                broken
            }
            What::Flush => None,
        }
    }

    /// Everything that a member had completed when the flush began is durable there.
    fn check_flush(&self, open: &Open) -> Option<String> {
        let volume = self.view.volume(self.volume).filter(|_| self.view.generation == open.generation)?;
        for slot in volume.groups.iter().flat_map(|g| &g.slots).filter(|s| s.state == SlotState::InSync) {
            let drive = self.devices[usize::from(slot.member.0)]?;
            if let Some(io) = self.drives[drive].volatile_before(open.ios) {
                return Some(format!(
                    "io {io} of member {} was complete when the flush began and is still volatile",
                    slot.member.0
                ));
            }
        }
        None
    }

    /// What a FUA write wrote is durable on every copy. Its parity too, which can be told only where no other write or
    /// repair can have come after it.
    fn check_fua(&self, open: &Open) -> Option<String> {
        let volume = self.view.volume(self.volume).filter(|_| self.view.generation == open.generation)?;
        let alone = !open.crowded && !self.resyncing();
        let alone = alone && matches!(self.current_round(), Round::Calm | Round::Members);
        let g = &volume.geometry;
        for sector in open.from..open.to {
            let place = g.place(sector * SECTOR as u64);
            let group = &volume.groups[place.group as usize];
            let at = u64::from(place.stripe) * u64::from(g.chunk) + u64::from(place.offset);
            let slots = |column| g.slots(place.stripe, column).iter().map(|s| group.slots[usize::from(s)]);
            let live = |column| slots(column).filter(|s| s.state == SlotState::InSync);
            if self.oracle.certain(sector) == Some(open.value) {
                for slot in live(place.column) {
                    let Some(drive) = self.devices[usize::from(slot.member.0)] else { continue };
                    let mut bytes = [0; SECTOR];
                    self.drives[drive].read_durable(slot.offset + at, &mut bytes);
                    if !pattern::is(&bytes, open.value, sector) {
                        return Some(format!("FUA, and sector {sector} is still volatile on member {}", slot.member.0));
                    }
                }
            }
            if !alone || sector % 8 != 0 {
                continue;
            }
            for slot in (g.data_columns()..g.columns()).flat_map(live) {
                let Some(drive) = self.devices[usize::from(slot.member.0)] else { continue };
                if let Some(io) = self.drives[drive].volatile_in(slot.offset + at, 4096) {
                    return Some(format!("FUA, and io {io} of parity on member {} is still volatile", slot.member.0));
                }
            }
        }
        None
    }

    /// Redundancy of some group does not match yet.
    pub(super) fn resyncing(&self) -> bool {
        let in_doubt = |v: &VolumeView| v.regions.as_ref().is_some_and(|m| m.counts()[3..].iter().any(|n| *n > 0));
        self.view.volume(self.volume).is_some_and(|v| v.groups.iter().any(|g| !g.synced) || in_doubt(v))
    }
}
