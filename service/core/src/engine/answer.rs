//! What comes back: completions, failures that have to be recorded, newer views.

use std::sync::Arc;

use super::Engine;
use super::handle::facts;
use super::issue::{Io, Owner};
use super::slab::Key;
use super::stripe::{Fault, Phase, Stage};
use crate::action::{Event, IoStatus, IoTag, MemberId, ReqStatus};
use crate::view::{MemberState, SlotState, View};

/// Whether the view says that a member no longer counts: what it missed is recorded.
fn member_gone(view: &View, member: MemberId) -> bool {
    !matches!(view.members.get(member.0 as usize), Some(MemberState::Active | MemberState::Spare))
}

/// Whether the view says that a slot is no longer held by this member.
fn slot_gone(view: &View, key: Key, slot: u16, member: MemberId) -> bool {
    let slot =
        view.volume(key.volume).and_then(|v| v.groups.get(key.group as usize)).and_then(|g| g.slots.get(slot as usize));
    slot.is_none_or(|s| s.member != member || s.state == SlotState::Missing) || member_gone(view, member)
}

impl Engine {
    pub(super) fn take_answer(&mut self, tag: IoTag, status: IoStatus) {
        let Some(io) = self.ios.remove(tag.0) else {
            debug_assert!(false, "{tag:?} was answered twice or never ordered");
            return;
        };
        self.segs.free(io.segs);
        self.steps.free(io.steps);
        self.terms.free(io.terms);
        self.io_freed = true;
        if matches!(io.owner, Owner::Piece(_) | Owner::StripeRead(_)) {
            self.in_flight[io.member.0 as usize] -= 1;
        }
        match io.owner {
            Owner::Piece(piece) if status == IoStatus::Ok => self.finish_piece(piece),
            Owner::Zeros(piece) => {
                if status != IoStatus::Ok {
                    self.pieces[piece].status = ReqStatus::Unrecoverable;
                }
                self.finish_piece(piece);
            }
            Owner::Piece(piece) => self.healthy_read_failed(piece, &io, status),
            Owner::StripeRead(index) | Owner::StripeWrite(index) | Owner::StripeCompute(index) => {
                if status != IoStatus::Ok {
                    self.stripe_io_failed(index, &io, status);
                }
                let op = &mut self.stripes[index];
                op.outstanding -= 1;
                if op.outstanding == 0 && (op.issued || op.phase == Phase::Computing) {
                    self.ready.push_back(index);
                }
            }
            Owner::Flush(request) => {
                if status == IoStatus::Ok || member_gone(&self.view, io.member) {
                    self.finish_part(request);
                } else {
                    self.member_failed(io.member, status);
                    self.flush_wait.push_back((request, io.member, status));
                }
            }
            Owner::Compare(request) => {
                match status {
                    IoStatus::Ok => {}
                    IoStatus::Miscompare => self.fail_request(request, ReqStatus::Miscompare),
                    _ => self.fail_request(request, ReqStatus::Unrecoverable),
                }
                self.finish_part(request);
            }
        }
    }

    /// The piece goes to its stripe, where it is read from what is left, and repaired.
    fn healthy_read_failed(&mut self, piece: u32, io: &Io, status: IoStatus) {
        let key = self.pieces[piece].key;
        if self.requests[self.pieces[piece].request].foreign {
            // The owner meets the error itself, and has the stripe that a repair needs.
            self.pieces[piece].status = ReqStatus::NotHere;
            return self.finish_piece(piece);
        }
        if !slot_gone(&self.view, key, io.slot, io.member) {
            let media = status == IoStatus::ReadError;
            if !media {
                self.member_failed(io.member, status);
            }
            self.pieces[piece].fault = Some(Fault { slot: io.slot, member: io.member, media });
        }
        self.parked.push(&mut self.pieces, piece);
    }

    fn stripe_io_failed(&mut self, index: u32, io: &Io, status: IoStatus) {
        let bit = 1 << io.slot;
        let read = matches!(io.owner, Owner::StripeRead(_));
        let op = &mut self.stripes[index];
        if matches!(io.owner, Owner::StripeCompute(_)) {
            // The kernel has no way to fail; if it says so, nothing that it made is used.
            op.compute_failed = true;
            return;
        }
        op.wait_member[io.slot as usize] = io.member;
        if !read {
            op.write_errors |= bit;
        }
        if slot_gone(&self.view, op.key, io.slot, io.member) {
            op.replan |= read;
        } else if read && status == IoStatus::ReadError {
            op.read_errors |= bit;
        } else {
            op.waiting |= bit;
            op.wait_status = status;
            self.member_failed(io.member, status);
        }
    }

    /// Tells the manager, once in each view.
    pub(super) fn member_failed(&mut self, member: MemberId, status: IoStatus) {
        let at = member.0 as usize;
        if at < self.told.len() && !std::mem::replace(&mut self.told[at], true) {
            self.event(Event::MemberFailed { member, status });
        }
    }

    /// Asks for the volume's dirty mark and for the stripe's region, each once.
    fn marks_needed(&mut self, key: Key) {
        let view = Arc::clone(&self.view);
        let Some(at) = view.volumes.iter().position(|v| v.id == key.volume) else { return };
        let volume = &view.volumes[at];
        if volume.track_dirty && !volume.dirty && !std::mem::replace(&mut self.asked[at], true) {
            self.event(Event::DirtyNeeded { volume: key.volume });
        }
        let region = volume.geometry.region(key.group, key.stripe);
        if let Some(map) = &volume.regions
            && !map.get(region).writable()
            && map.ask(region)
        {
            self.event(Event::RegionNeeded { volume: key.volume, region });
        }
    }

    /// Regions have changed their states: stripes that waited for one look again.
    pub(super) fn look_again(&mut self) {
        for index in self.stripes.indexes() {
            let waits = matches!(self.stripes[index].phase, Phase::ViewThenPlan | Phase::ViewThenDone);
            if waits && !self.ready.contains(&index) {
                self.ready.push_back(index);
            }
        }
    }

    /// Whether the view says what the stripe waits for. If not, the manager is asked for it, once in each view.
    pub(super) fn view_allows(&mut self, index: u32) -> bool {
        let op = &mut self.stripes[index];
        let facts = facts(&self.view, op.key);
        if !facts.online {
            op.waiting = 0;
            return true;
        }
        for slot in 0..op.geometry.width {
            let bit = 1 << slot;
            if op.waiting & bit != 0 && slot_gone(&self.view, op.key, slot, op.wait_member[slot as usize]) {
                op.waiting &= !bit;
            }
        }
        let (waiting, status, members, key) = (op.waiting, op.wait_status, op.wait_member, op.key);
        if waiting != 0 {
            (0..32).filter(|s| waiting & (1 << s) != 0).for_each(|s| self.member_failed(members[s as usize], status));
            return false;
        }
        if op.phase == Phase::ViewThenPlan && op.stage == Stage::Write && !facts.marked {
            self.marks_needed(key);
            return false;
        }
        true
    }

    pub(super) fn take_view(&mut self, view: Arc<View>) {
        let members = view.members.len().max(self.in_flight.len());
        let highest =
            view.volumes.iter().flat_map(|v| &v.groups).flat_map(|g| &g.slots).map(|s| s.member.0 as usize + 1);
        let members = highest.max().unwrap_or(0).max(members);
        self.in_flight.resize(members, 0);
        self.told.clear();
        self.told.resize(members, false);
        self.asked.clear();
        self.asked.resize(view.volumes.len(), false);
        self.flushed = view
            .volumes
            .iter()
            .map(|volume| {
                let slots = volume.groups.iter().flat_map(|g| &g.slots);
                let mut list: Vec<_> = slots
                    .filter(|s| s.state != SlotState::Missing && !member_gone(&view, s.member))
                    .map(|s| s.member)
                    .collect();
                list.sort_unstable();
                list.dedup();
                list
            })
            .collect();
        self.view = view;
        self.restart_flushes();
        self.look_again();
        for _ in 0..self.flush_wait.len() {
            let Some((request, member, status)) = self.flush_wait.pop_front() else { break };
            if member_gone(&self.view, member) {
                self.finish_part(request);
            } else {
                self.member_failed(member, status);
                self.flush_wait.push_back((request, member, status));
            }
        }
    }
}
