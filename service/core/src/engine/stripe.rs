//! What the engine knows of a stripe in hand and of the pieces of requests that are attached to it.

use super::slab::{Key, NIL, Slab};
use crate::action::{BufAddr, IoStatus, MemberId, ReqStatus};
use crate::geometry::{Geometry, MAX_WIDTH};

/// What a piece asks of its stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PieceKind {
    Read,
    Write { fua: bool },
    Zero { unmap: bool },
    Rebuild,
    Resync,
}

/// The part of a request that lies in one stripe (or, for a healthy read, in one chunk).
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) request: u32,
    pub(super) kind: PieceKind,
    pub(super) key: Key,
    /// Byte offset in the stripe's data.
    pub(super) start: u32,
    pub(super) len: u32,
    /// Source or destination of the byte at `start`.
    pub(super) buf: BufAddr,
    pub(super) status: ReqStatus,
    /// A slot that could not read this piece when it was tried as a healthy read.
    pub(super) fault: Option<Fault>,
    pub(super) next: u32,
}

/// How a healthy read ended before its piece was attached to the stripe.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fault {
    pub(super) slot: u16,
    pub(super) member: MemberId,
    /// The blocks could not be read; otherwise the member as a whole did not answer.
    pub(super) media: bool,
}

impl Piece {
    pub(super) fn end(&self) -> u32 {
        self.start + self.len
    }

    /// The byte range of the piece in a column's chunk, if it touches the column.
    pub(super) fn in_column(&self, chunk: u32, column: u16) -> Option<(u32, u32)> {
        let base = column as u64 * chunk as u64;
        let a = (self.start as u64).max(base);
        let b = (self.start as u64 + self.len as u64).min(base + chunk as u64);
        (a < b).then(|| ((a - base) as u32, (b - base) as u32))
    }

    /// The columns that it touches.
    pub(super) fn columns(&self, chunk: u32) -> std::ops::RangeInclusive<u16> {
        (self.start / chunk) as u16..=((self.end() - 1) / chunk) as u16
    }

    /// The buffer address of a byte of the stripe.
    pub(super) fn addr(&self, chunk: u32, column: u16, offset: u32) -> BufAddr {
        self.buf.plus(column as u64 * chunk as u64 + offset as u64 - self.start as u64)
    }
}

/// A chain of pieces through [`Piece::next`].
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    pub(super) head: u32,
    tail: u32,
}

impl List {
    pub(super) const EMPTY: List = List { head: NIL, tail: NIL };

    pub(super) fn is_empty(&self) -> bool {
        self.head == NIL
    }

    pub(super) fn push(&mut self, pieces: &mut Slab<Piece>, index: u32) {
        pieces[index].next = NIL;
        if self.head == NIL {
            self.head = index;
        } else {
            pieces[self.tail].next = index;
        }
        self.tail = index;
    }

    pub(super) fn pop(&mut self, pieces: &Slab<Piece>) -> Option<u32> {
        if self.head == NIL {
            return None;
        }
        let index = self.head;
        self.head = pieces[index].next;
        Some(index)
    }

    pub(super) fn iter(self, pieces: &Slab<Piece>) -> impl Iterator<Item = (u32, &Piece)> {
        let mut at = self.head;
        std::iter::from_fn(move || {
            let index = (at != NIL).then_some(at)?;
            at = pieces[index].next;
            Some((index, &pieces[index]))
        })
    }
}

/// Which of the attached pieces are being served. An activation goes through them in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Read,
    Write,
    /// One rebuild or resync piece at a time.
    Maintain,
}

/// Where the work on the current window stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Attached only; waits for the end of the batch.
    Idle,
    /// To be planned.
    Plan,
    /// Planned, waits for scratch memory.
    Scratch,
    /// Old blocks are being read.
    Reading,
    /// The kernel is at work.
    Computing,
    /// Members are being written.
    Writing,
    /// Waits for a view; then planned again.
    ViewThenPlan,
    /// All writes have come home and some failed: waits for a view that says so, then is done.
    ViewThenDone,
}

/// Scratch memory of one column: `rows` blocks from row `row` on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Region {
    /// First unit of the scratch range.
    pub(super) unit: u32,
    pub(super) units: u32,
    /// Bytes by which its use is moved into its first unit.
    pub(super) shift: u32,
    pub(super) row: u32,
}

/// The view's facts that a plan was made from. A plan outlives none of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    /// Slots in sync.
    pub(super) readable: u32,
    /// Slots in sync or rebuilding.
    pub(super) writable: u32,
    pub(super) synced: bool,
    /// False if the volume is gone or offline.
    pub(super) online: bool,
    /// Writes may go to members.
    pub(super) marked: bool,
}

impl Facts {
    /// Slots that a rebuild writes.
    pub(super) fn rebuilding(&self) -> u32 {
        self.writable & !self.readable
    }
}

/// A stripe in hand.
pub(super) struct StripeOp {
    pub(super) key: Key,
    pub(super) geometry: Geometry,
    /// Attached, not yet taken up by an activation.
    pub(super) incoming: List,
    pub(super) reads: List,
    pub(super) writes: List,
    pub(super) maintain: List,
    pub(super) stage: Stage,
    pub(super) phase: Phase,
    /// The current window is being repaired first: `bad` is rebuilt from the others and rewritten.
    pub(super) repairing: bool,
    /// Rows of the stage.
    pub(super) lo: u32,
    pub(super) hi: u32,
    /// Rows in hand: all of them, until a block cannot be read; from then on one at a time, because an error of a long
    /// read does not say which block it was.
    pub(super) window: (u32, u32),
    /// Slots that cannot read the window.
    pub(super) bad: u32,
    /// Slots whose repair was tried and is impossible.
    pub(super) hopeless: u32,
    /// Slots that were rewritten in this window; if one still cannot read it, its member is at fault.
    pub(super) repaired: u32,
    /// Slots whose member failed; a view has to say so.
    pub(super) waiting: u32,
    pub(super) compute_failed: bool,
    /// What the last of them answered.
    pub(super) wait_status: IoStatus,
    /// Slots that failed a write of the window.
    pub(super) write_errors: u32,
    pub(super) wait_member: [MemberId; MAX_WIDTH as usize],
    /// How maintenance or the writing of a target ended.
    pub(super) outcome: ReqStatus,
    pub(super) facts: Facts,
    /// Slots to restore, while repairing or maintaining.
    pub(super) targets: u32,
    /// Slots that are read from.
    pub(super) sources: u32,
    pub(super) regions: [Region; MAX_WIDTH as usize],
    pub(super) fua: bool,
    // The phase's progress.
    pub(super) next_slot: u32,
    pub(super) next_row: u32,
    pub(super) issued: bool,
    pub(super) outstanding: u32,
    pub(super) units_done: u32,
    /// Errors of the reads in flight.
    pub(super) read_errors: u32,
    pub(super) replan: bool,
}

impl StripeOp {
    pub(super) fn new(key: Key, geometry: Geometry) -> StripeOp {
        StripeOp {
            key,
            geometry,
            incoming: List::EMPTY,
            reads: List::EMPTY,
            writes: List::EMPTY,
            maintain: List::EMPTY,
            stage: Stage::Read,
            phase: Phase::Idle,
            repairing: false,
            lo: 0,
            hi: 0,
            window: (0, 0),
            bad: 0,
            hopeless: 0,
            repaired: 0,
            waiting: 0,
            compute_failed: false,
            wait_status: IoStatus::DeviceError,
            write_errors: 0,
            wait_member: [MemberId(0); MAX_WIDTH as usize],
            outcome: ReqStatus::Ok,
            facts: Facts::default(),
            targets: 0,
            sources: 0,
            regions: [Region::default(); MAX_WIDTH as usize],
            fua: false,
            next_slot: 0,
            next_row: 0,
            issued: false,
            outstanding: 0,
            units_done: 0,
            read_errors: 0,
            replan: false,
        }
    }

    /// The pieces that the current stage serves.
    pub(super) fn pieces(&self) -> List {
        match self.stage {
            Stage::Read => self.reads,
            Stage::Write => self.writes,
            Stage::Maintain => List::EMPTY,
        }
    }

    /// Restores slots rather than serving data.
    pub(super) fn restoring(&self) -> bool {
        self.repairing || self.stage == Stage::Maintain
    }

    /// Begins a phase that orders I/O.
    pub(super) fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        (self.next_slot, self.next_row, self.issued) = (0, self.window.0, false);
        self.units_done = 0;
    }

    /// The rows are taken one at a time.
    pub(super) fn single(&self) -> bool {
        self.window.1 - self.window.0 == 1
    }

    /// The slots of a set of columns.
    pub(super) fn columns_slots(&self, columns: u32) -> u32 {
        (0..self.geometry.columns())
            .filter(|c| columns & (1 << c) != 0)
            .fold(0, |slots, c| slots | self.geometry.slots(self.key.stripe, c).mask())
    }

    /// The columns of a set of slots.
    pub(super) fn columns(&self, slots: u32) -> u32 {
        let mut columns = 0;
        for slot in 0..self.geometry.width {
            if slots & (1 << slot) != 0 {
                columns |= 1 << self.geometry.column(self.key.stripe, slot);
            }
        }
        columns
    }
}
