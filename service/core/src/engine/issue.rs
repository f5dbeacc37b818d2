//! Ordering member I/O: adjacent rows of a column become one operation with a gather list.

use super::stripe::{Piece, StripeOp};
use super::{Engine, Layout};
use crate::action::{Action, BufAddr, IoTag, MemberId, Seg, Slice, Step};
use crate::geometry::MAX_CHUNK;
use crate::units::BLOCK_SIZE;

/// The longest gather list: each block of a chunk from a place of its own.
pub(super) const MAX_SEGS: usize = (MAX_CHUNK / BLOCK_SIZE) as usize;

/// Whom an answer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// A healthy read of a piece.
    Piece(u32),
    /// The zeros of a read of an unwritten region.
    Zeros(u32),
    /// A stripe's pre-read.
    StripeRead(u32),
    /// A stripe's write or zero.
    StripeWrite(u32),
    /// A stripe's computation.
    StripeCompute(u32),
    /// A request's member flush.
    Flush(u32),
    /// A request's comparison.
    Compare(u32),
}

/// One ordered operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Io {
    pub(super) owner: Owner,
    pub(super) member: MemberId,
    pub(super) slot: u16,
    pub(super) offset: u64,
    pub(super) len: u32,
    pub(super) segs: Slice,
    pub(super) steps: Slice,
    pub(super) terms: Slice,
}

impl Io {
    pub(super) fn new(owner: Owner) -> Io {
        Io {
            owner,
            member: MemberId(u16::MAX),
            slot: 0,
            offset: 0,
            len: 0,
            segs: Slice::default(),
            steps: Slice::default(),
            terms: Slice::default(),
        }
    }
}

/// What is done to a slot at one row: nothing, or a transfer of this block.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Transfer {
    addr: BufAddr,
    unmap: bool,
}

fn transfer(layout: &Layout, op: &StripeOp, scratch: BufAddr, slot: u32, row: u32, write: bool) -> Option<Transfer> {
    let column = op.geometry.column(op.key.stripe, slot as u16);
    let r = layout.row(row);
    let set = if write { r.write } else { r.read };
    if set & (1 << column) == 0 {
        return None;
    }
    if write {
        let (addr, unmap) = layout.new_block(op, scratch, column, row);
        Some(Transfer { addr, unmap })
    } else {
        Some(Transfer { addr: layout.home(op, scratch, column, row), unmap: false })
    }
}

impl Engine {
    /// Orders the reads or writes of the stripe's window from where it stopped. False when a slab is full: the stripe goes
    /// on when something has completed. The window must be laid out.
    pub(super) fn issue(&mut self, index: u32, write: bool) -> bool {
        let op = &mut self.stripes[index];
        let volume = self.view.volume(op.key.volume);
        let Some(group) = volume.and_then(|v| v.groups.get(op.key.group as usize)) else {
            // The volume was deleted meanwhile: what is out comes home, and then the stripe ends.
            op.issued = true;
            return true;
        };
        let allowed = match (write, op.restoring()) {
            (false, _) => op.sources,
            (true, true) => op.targets,
            (true, false) => op.facts.writable,
        };
        let scratch = self.config.scratch;
        while op.next_slot < op.geometry.width as u32 {
            let slot = op.next_slot;
            let mut row = op.next_row;
            let gone = group.slots[slot as usize].state == crate::view::SlotState::Missing;
            if allowed & (1 << slot) == 0 || gone {
                (op.next_slot, op.next_row) = (slot + 1, op.window.0);
                continue;
            }
            while row < op.window.1 && transfer(&self.layout, op, scratch, slot, row, write).is_none() {
                row += 1;
            }
            if row == op.window.1 {
                (op.next_slot, op.next_row) = (slot + 1, op.window.0);
                continue;
            }
            // From here on one operation: rows that go on, all of them zeros or none.
            self.gather.clear();
            let first = row;
            let mut zeros = None;
            while row < op.window.1 {
                let Some(t) = transfer(&self.layout, op, scratch, slot, row, write) else { break };
                let zero = (t.addr == BufAddr::ZERO).then_some(t.unmap);
                if *zeros.get_or_insert(zero) != zero {
                    break;
                }
                match self.gather.last_mut() {
                    Some(seg) if seg.addr.plus(seg.len as u64) == t.addr => seg.len += BLOCK_SIZE,
                    _ => self.gather.push(Seg { addr: t.addr, len: BLOCK_SIZE }),
                }
                row += 1;
            }
            if self.ios.room() == 0 {
                return false;
            }
            let place = &group.slots[slot as usize];
            let owner = if write { Owner::StripeWrite(index) } else { Owner::StripeRead(index) };
            let mut io = Io::new(owner);
            io.member = place.member;
            io.slot = slot as u16;
            io.len = (row - first) * BLOCK_SIZE;
            io.offset =
                place.offset + op.key.stripe as u64 * op.geometry.chunk as u64 + first as u64 * BLOCK_SIZE as u64;
            let zeros = zeros.flatten();
            if zeros.is_none() {
                let Some(segs) = self.segs.store(&self.gather) else { return false };
                io.segs = segs;
            }
            let Some(tag) = self.ios.insert(io) else { return false };
            let Io { member, offset, len, segs, .. } = io;
            let io = IoTag(tag);
            op.outstanding += 1;
            op.next_row = row;
            self.actions.push_back(match (zeros, write) {
                (Some(unmap), _) => {
                    self.counters.member_writes += 1;
                    self.counters.member_written_bytes += len as u64;
                    Action::Zero { io, member, offset, len: len as u64, unmap, fua: op.fua }
                }
                (None, true) => {
                    self.counters.member_writes += 1;
                    self.counters.member_written_bytes += len as u64;
                    Action::Write { io, member, offset, len, segs, fua: op.fua }
                }
                (None, false) => {
                    self.counters.member_reads += 1;
                    self.counters.member_read_bytes += len as u64;
                    self.in_flight[member.0 as usize] += 1;
                    Action::Read { io, member, offset, len, segs }
                }
            });
        }
        op.issued = true;
        true
    }

    /// Orders the next computation of the stripe. `Some(true)` if one was ordered, `Some(false)` if none is left, `None` if
    /// a slab is full. The window must be laid out.
    pub(super) fn issue_compute(&mut self, index: u32) -> Option<bool> {
        let op = &mut self.stripes[index];
        let mut done = op.units_done;
        loop {
            let before = done;
            done = self.builder.build(op, &self.layout, &self.pieces, self.config.scratch, done);
            if !self.builder.steps.is_empty() {
                break;
            }
            if done == before {
                return Some(false);
            }
        }
        self.order_compute(Owner::StripeCompute(index))?;
        let op = &mut self.stripes[index];
        op.units_done = done;
        op.outstanding += 1;
        Some(true)
    }

    /// Orders what the builder holds.
    pub(super) fn order_compute(&mut self, owner: Owner) -> Option<()> {
        if self.ios.room() == 0 {
            return None;
        }
        let steps = self.steps.store(&self.builder.steps)?;
        let Some(terms) = self.terms.store(&self.builder.terms) else {
            self.steps.free(steps);
            return None;
        };
        for step in self.steps.get_mut(steps) {
            if let Step::Combine { terms: t, .. } = step {
                t.start += terms.start;
            }
        }
        let tag = self.ios.insert(Io { steps, terms, ..Io::new(owner) })?;
        self.actions.push_back(Action::Compute { io: IoTag(tag), steps });
        Some(())
    }

    /// Orders a healthy read of a piece that lies in one chunk. The caller has made sure of room.
    pub(super) fn order_read(&mut self, piece_index: u32, slot: u16, member: MemberId, offset: u64) {
        let Piece { buf, len, .. } = self.pieces[piece_index];
        let segs = self.segs.store(&[Seg { addr: buf, len }]).expect("room was checked");
        let io = Io { member, slot, offset, len, segs, ..Io::new(Owner::Piece(piece_index)) };
        let tag = self.ios.insert(io).expect("room was checked");
        self.counters.member_reads += 1;
        self.counters.member_read_bytes += len as u64;
        self.in_flight[member.0 as usize] += 1;
        self.actions.push_back(Action::Read { io: IoTag(tag), member, offset, len, segs });
    }
}
