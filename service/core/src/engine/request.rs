//! Requests: taken in, cut into pieces, answered.

use super::Engine;
use super::issue::Owner;
use super::slab::{Key, NIL};
use super::stripe::{List, Phase, Piece, PieceKind, StripeOp};
use crate::action::{Action, BufAddr, Busy, Event, MemberId, Op, ReqStatus, ReqTag, Request, Step, VolumeId};
use crate::geometry::{Geometry, Place};
use crate::regions::Region;
use crate::units::SECTOR_SIZE;
use crate::view::{GroupView, SlotState};

/// What a request is counted as; the order is that of `Counters::requests`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
    Flush,
    Zero,
    /// With what the initiator expects and what was read.
    Compare(BufAddr, BufAddr, u32),
    Maintenance,
}

/// A request that has not been answered.
pub(super) struct RequestState {
    tag: ReqTag,
    volume: VolumeId,
    kind: Kind,
    /// Pieces, flushes or the comparison still out.
    pub(super) remaining: u32,
    /// Not all of it has been cut up, or not all its flushes are ordered.
    taking: bool,
    /// The first error.
    status: ReqStatus,
    /// The next member to flush, an index into `Engine::flushed`.
    next_flush: u32,
    compared: bool,
    /// Another engine owns the stripes: see [`Op::ReadHealthy`].
    pub foreign: bool,
    epoch: usize,
    /// The region that it makes zeros as a whole.
    zeroes: Option<u32>,
}

/// What is left of a request that did not fit into the slabs at once.
pub(super) struct Intake {
    request: u32,
    kind: PieceKind,
    volume: VolumeId,
    offset: u64,
    end: u64,
    buf: BufAddr,
}

impl Engine {
    #[allow(clippy::result_large_err)]
    pub(super) fn take_request(&mut self, request: Request) -> Result<(), Busy> {
        let queued = self.intake.is_some()
            || !self.parked.is_empty()
            || !self.io_wait.is_empty()
            || !self.request_wait.is_empty();
        if queued || self.requests.room() == 0 {
            return Err(Busy(request));
        }
        let Request { tag, volume, op } = request;
        let (kind, range) = match op {
            Op::Read { offset, len, buf } => (Kind::Read, Some((PieceKind::Read, offset, len as u64, buf))),
            Op::ReadHealthy { offset, len, buf } => (Kind::Read, Some((PieceKind::Read, offset, len as u64, buf))),
            Op::Write { offset, len, buf, fua } => {
                (Kind::Write, Some((PieceKind::Write { fua }, offset, len as u64, buf)))
            }
            Op::Zero { offset, len, unmap } => {
                (Kind::Zero, Some((PieceKind::Zero { unmap }, offset, len, BufAddr::ZERO)))
            }
            Op::Compare { offset, len, buf, read_buf } => {
                (Kind::Compare(buf, read_buf, len), Some((PieceKind::Read, offset, len as u64, read_buf)))
            }
            Op::Flush => (Kind::Flush, None),
            Op::Rebuild { .. } | Op::Resync { .. } => (Kind::Maintenance, None),
        };
        if let Err(status) = self.check(volume, &op, range.map(|(_, offset, len, _)| (offset, len))) {
            self.counters.failed_requests += 1;
            self.actions.push_back(Action::Reply { tag, status });
            return Ok(());
        }
        let state = RequestState {
            tag,
            volume,
            kind,
            remaining: 0,
            taking: true,
            status: ReqStatus::Ok,
            next_flush: 0,
            compared: false,
            foreign: matches!(op, Op::ReadHealthy { .. }),
            epoch: self.epoch,
            zeroes: self.whole_region(volume, &op),
        };
        self.in_epoch[self.epoch] += 1;
        let index = self.requests.insert(state).expect("room was checked");
        if let Some((kind, offset, len, buf)) = range {
            self.intake = Some(Intake { request: index, kind, volume, offset, end: offset + len, buf });
            self.take_in();
            return Ok(());
        }
        match op {
            Op::Rebuild { group, stripe } | Op::Resync { group, stripe } => {
                let kind = if matches!(op, Op::Rebuild { .. }) { PieceKind::Rebuild } else { PieceKind::Resync };
                self.intake = Some(Intake {
                    request: index,
                    kind,
                    volume,
                    offset: group as u64,
                    end: stripe as u64,
                    buf: BufAddr::ZERO,
                });
                self.take_in();
            }
            _ => {
                if !self.flush(index) {
                    self.request_wait.push_back(index);
                }
            }
        }
        Ok(())
    }

    /// The region that a request zeroes from end to end.
    fn whole_region(&self, volume: VolumeId, op: &Op) -> Option<u32> {
        let Op::Zero { offset, len, .. } = *op else { return None };
        let volume = self.view.volume(volume)?;
        let (map, g) = (volume.regions.as_ref()?, &volume.geometry);
        let place = g.place(offset);
        let begins = place.column == 0 && place.offset == 0 && place.stripe.is_multiple_of(g.band_stripes());
        if !begins || len != g.band_remainder(offset) {
            return None;
        }
        let region = g.region(place.group, place.stripe);
        map.begin_zeros(region);
        Some(region)
    }

    fn check(&self, volume: VolumeId, op: &Op, range: Option<(u64, u64)>) -> Result<(), ReqStatus> {
        let volume = self.view.volume(volume).filter(|v| v.online).ok_or(ReqStatus::Offline)?;
        let groups = volume.groups.len() as u64;
        if let Some((offset, len)) = range {
            let size = volume.size.min(groups * volume.geometry.group_bytes());
            let aligned = offset % SECTOR_SIZE as u64 == 0 && len % SECTOR_SIZE as u64 == 0;
            if !aligned || offset.checked_add(len).is_none_or(|end| end > size) {
                return Err(ReqStatus::OutOfRange);
            }
        }
        if let Op::Rebuild { group, stripe } | Op::Resync { group, stripe } = *op
            && (group as u64 >= groups || stripe >= volume.geometry.stripes())
        {
            return Err(ReqStatus::OutOfRange);
        }
        Ok(())
    }

    /// Cuts up as much of the request in hand as the slabs take.
    pub(super) fn take_in(&mut self) {
        let Some(mut intake) = self.intake.take() else { return };
        let done = match intake.kind {
            PieceKind::Rebuild | PieceKind::Resync => {
                let key = Key { volume: intake.volume, group: intake.offset as u32, stripe: intake.end as u32 };
                self.attach_new(&intake, key, 0, 0)
            }
            _ => loop {
                if intake.offset == intake.end {
                    break true;
                }
                let Some(taken) = self.take_stripe(&intake) else { break false };
                intake.offset += taken;
                intake.buf = intake.buf.plus(taken);
            },
        };
        if done {
            self.requests[intake.request].taking = false;
            self.finish_request(intake.request);
        } else {
            self.intake = Some(intake);
        }
    }

    /// Takes the next bytes of a request, at most to the end of a stripe. `None` if there is no room now.
    fn take_stripe(&mut self, intake: &Intake) -> Option<u64> {
        let left = intake.end - intake.offset;
        let Some(volume) = self.view.volume(intake.volume) else {
            self.fail_request(intake.request, ReqStatus::Offline);
            return Some(left);
        };
        let geometry = volume.geometry;
        let Place { group, stripe, column, offset } = geometry.place(intake.offset);
        let Some(group_view) = volume.groups.get(group as usize) else {
            self.fail_request(intake.request, ReqStatus::OutOfRange);
            return Some(left);
        };
        let key = Key { volume: intake.volume, group, stripe };
        let start = column as u32 * geometry.chunk + offset;
        let len = left.min(geometry.stripe_bytes() - start as u64) as u32;
        let region = volume.region(group, stripe);
        if intake.kind == PieceKind::Read && region == Region::Unwritten {
            return self.fill_with_zeros(intake, key, start, len).then_some(len as u64);
        }
        if matches!(intake.kind, PieceKind::Zero { .. }) && region == Region::Unwritten {
            // It reads as zeros already.
            return Some(len as u64);
        }
        if intake.kind == PieceKind::Read && readable(group_view, &geometry, stripe, start, len) {
            let len = len.min(geometry.chunk - offset);
            if self.pieces.room() == 0 || self.ios.room() == 0 {
                return None;
            }
            let exclude = 0;
            let synced = group_view.synced && region.verified();
            let slot = choose(group_view, synced, &geometry, stripe, column, exclude, &self.in_flight, offset)
                .expect("the column was found readable");
            let place = group_view.slots[slot as usize];
            let at = place.offset + stripe as u64 * geometry.chunk as u64 + offset as u64;
            let piece = self.new_piece(intake, key, start, len)?;
            self.order_read(piece, slot, place.member, at);
            return Some(len as u64);
        }
        if self.requests[intake.request].foreign {
            self.fail_request(intake.request, ReqStatus::NotHere);
            return Some(left);
        }
        self.attach_new(intake, key, start, len).then_some(len as u64)
    }

    /// A read of a region that nobody has written to. What its members hold there is somebody else's old data.
    fn fill_with_zeros(&mut self, intake: &Intake, key: Key, start: u32, len: u32) -> bool {
        let Some(piece) = self.new_piece(intake, key, start, len) else { return false };
        self.builder.steps.clear();
        self.builder.terms.clear();
        self.builder.steps.push(Step::Copy { dst: intake.buf, src: BufAddr::ZERO, len });
        if self.order_compute(Owner::Zeros(piece)).is_some() {
            return true;
        }
        self.pieces.remove(piece);
        self.requests[intake.request].remaining -= 1;
        false
    }

    fn new_piece(&mut self, intake: &Intake, key: Key, start: u32, len: u32) -> Option<u32> {
        let piece = Piece {
            request: intake.request,
            kind: intake.kind,
            key,
            start,
            len,
            buf: intake.buf,
            status: ReqStatus::Ok,
            fault: None,
            next: NIL,
        };
        let index = self.pieces.insert(piece)?;
        self.requests[intake.request].remaining += 1;
        Some(index)
    }

    fn attach_new(&mut self, intake: &Intake, key: Key, start: u32, len: u32) -> bool {
        if self.pieces.room() == 0 || (self.stripes.room() == 0 && self.table.get(key).is_none()) {
            return false;
        }
        let Some(piece) = self.new_piece(intake, key, start, len) else { return false };
        self.attach(piece)
    }

    /// Attaches a piece to its stripe. False if no stripe is free.
    pub(super) fn attach(&mut self, piece: u32) -> bool {
        let key = self.pieces[piece].key;
        let index = match self.table.get(key) {
            Some(index) => index,
            None => {
                let Some(geometry) = self.view.volume(key.volume).map(|v| v.geometry) else {
                    self.pieces[piece].status = ReqStatus::Offline;
                    self.finish_piece(piece);
                    return true;
                };
                let Some(index) = self.stripes.insert(StripeOp::new(key, geometry)) else { return false };
                self.table.insert(key, index);
                self.batch.push_back(index);
                index
            }
        };
        let op = &mut self.stripes[index];
        self.counters.merged += u64::from(!op.incoming.is_empty());
        op.incoming.push(&mut self.pieces, piece);
        if self.config.handle_every_release && op.phase == Phase::Idle {
            self.batch.retain(|&i| i != index);
            self.activate(index);
        }
        true
    }

    /// Attaches failed healthy reads for which there was no stripe.
    pub(super) fn unpark(&mut self) -> bool {
        let mut any = false;
        while !self.parked.is_empty() {
            let head = self.parked.head;
            if self.stripes.room() == 0 && self.table.get(self.pieces[head].key).is_none() {
                break;
            }
            let mut parked = std::mem::replace(&mut self.parked, List::EMPTY);
            parked.pop(&self.pieces);
            self.parked = parked;
            self.attach(head);
            any = true;
        }
        any
    }

    /// Orders the member flushes of a request. False if the I/O slab is full.
    pub(super) fn flush(&mut self, index: u32) -> bool {
        let volume = self.requests[index].volume;
        let place = self.view.volumes.iter().position(|v| v.id == volume);
        let Some(place) = place.filter(|&p| self.view.volumes[p].online) else {
            self.fail_request(index, ReqStatus::Offline);
            self.requests[index].taking = false;
            self.finish_request(index);
            return true;
        };
        while let Some(&member) = self.flushed[place].get(self.requests[index].next_flush as usize) {
            let io = super::issue::Io { member, ..super::issue::Io::new(Owner::Flush(index)) };
            let Some(tag) = self.ios.insert(io) else { return false };
            self.requests[index].next_flush += 1;
            self.requests[index].remaining += 1;
            self.counters.member_flushes += 1;
            self.actions.push_back(Action::Flush { io: crate::action::IoTag(tag), member });
        }
        self.requests[index].taking = false;
        self.finish_request(index);
        true
    }

    /// After a new view the members to flush may be others: those that are not ordered yet begin again.
    pub(super) fn restart_flushes(&mut self) {
        for at in 0..self.request_wait.len() {
            let index = self.request_wait[at];
            self.requests[index].next_flush = 0;
        }
    }

    /// Tries again what waits for an I/O slot. False if it still does.
    pub(super) fn retry_request(&mut self, index: u32) -> bool {
        if self.requests[index].kind == Kind::Flush { self.flush(index) } else { self.compare(index) }
    }

    fn compare(&mut self, index: u32) -> bool {
        let Kind::Compare(a, b, len) = self.requests[index].kind else { return true };
        self.builder.steps.clear();
        self.builder.terms.clear();
        self.builder.steps.push(Step::Compare { a, b, len });
        if self.order_compute(Owner::Compare(index)).is_none() {
            return false;
        }
        let request = &mut self.requests[index];
        (request.compared, request.remaining) = (true, 1);
        true
    }

    /// Notes an error. The first one is answered.
    pub(super) fn fail_request(&mut self, index: u32, status: ReqStatus) {
        let request = &mut self.requests[index];
        if request.status == ReqStatus::Ok {
            request.status = status;
        }
    }

    /// A piece has ended.
    pub(super) fn finish_piece(&mut self, index: u32) {
        let piece = self.pieces.remove(index).expect("a live piece");
        if piece.status != ReqStatus::Ok {
            self.fail_request(piece.request, piece.status);
        }
        self.finish_part(piece.request);
    }

    /// A piece, a flush or a comparison has ended.
    pub(super) fn finish_part(&mut self, index: u32) {
        self.requests[index].remaining -= 1;
        self.finish_request(index);
    }

    /// Answers a request if nothing of it is left.
    fn finish_request(&mut self, index: u32) {
        let request = &self.requests[index];
        if request.remaining > 0 || request.taking {
            return;
        }
        let expects = matches!(request.kind, Kind::Compare(_, _, len) if len > 0);
        if expects && request.status == ReqStatus::Ok && !request.compared {
            if !self.compare(index) {
                self.request_wait.push_back(index);
            }
            return;
        }
        let request = self.requests.remove(index).expect("a live request");
        self.in_epoch[request.epoch] -= 1;
        if let (Some(region), ReqStatus::Ok) = (request.zeroes, request.status)
            && let Some(map) = self.view.volume(request.volume).and_then(|v| v.regions.as_ref())
            && map.get(region) == Region::Dirty
            && map.is_zeros(region)
        {
            self.event(Event::RegionZeroed { volume: request.volume, region });
        }
        let kind = match request.kind {
            Kind::Read => Some(0),
            Kind::Write => Some(1),
            Kind::Flush => Some(2),
            Kind::Zero => Some(3),
            Kind::Compare(..) => Some(4),
            Kind::Maintenance => None,
        };
        if request.status == ReqStatus::NotHere {
            // No failure: the owner answers.
        } else if request.status != ReqStatus::Ok {
            self.counters.failed_requests += 1;
        } else if let Some(kind) = kind {
            self.counters.requests[kind] += 1;
        }
        self.actions.push_back(Action::Reply { tag: request.tag, status: request.status });
    }
}

/// Whether every column of a range of a stripe can be read from some slot.
fn readable(group: &GroupView, geometry: &Geometry, stripe: u32, start: u32, len: u32) -> bool {
    let (first, last) = (start / geometry.chunk, (start + len - 1) / geometry.chunk);
    (first..=last).all(|column| {
        geometry.slots(stripe, column as u16).iter().any(|s| group.slots[s as usize].state == SlotState::InSync)
    })
}

/// The slot to read a column from: of copies in sync the one whose member has the fewest reads in flight, in turn by
/// address where they are equal. Copies that may differ are not chosen among: always the first.
#[allow(clippy::too_many_arguments)]
pub(super) fn choose(
    group: &GroupView,
    synced: bool,
    geometry: &Geometry,
    stripe: u32,
    column: u16,
    exclude: u32,
    in_flight: &[u32],
    offset: u32,
) -> Option<u16> {
    let slots = geometry.slots(stripe, column);
    let usable = |slot: u16| group.slots[slot as usize].state == SlotState::InSync && exclude & (1 << slot) == 0;
    if slots.count == 1 || !synced {
        return slots.iter().find(|&s| usable(s));
    }
    let turn = (stripe.wrapping_add(offset / crate::units::BLOCK_SIZE) % slots.count as u32) as u16;
    let busy = |slot: u16| {
        let MemberId(member) = group.slots[slot as usize].member;
        in_flight.get(member as usize).copied().unwrap_or(0)
    };
    (0..slots.count).map(|i| slots.first + (i + turn) % slots.count).filter(|&s| usable(s)).min_by_key(|&s| busy(s))
}
