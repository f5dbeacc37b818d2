//! Turning a laid-out window into steps for the parity kernel.

use super::layout::{Cover, Layout, SECTORS};
use super::slab::Slab;
use super::stripe::{Piece, Stage, StripeOp};
use crate::action::{BufAddr, Slice, Step, Term};
use crate::gf;
use crate::plan::Path;
use crate::units::{BLOCK_SIZE, SECTOR_SIZE};

/// Fills the engine's slab of steps before there are any.
pub(super) const NO_STEP: Step = Step::Copy { dst: BufAddr::ZERO, src: BufAddr::ZERO, len: 0 };

/// Steps after which a computation is cut; the rest is a computation of its own, after it.
const STEPS: usize = 128;
/// Terms after which a computation is cut.
const TERMS: usize = 512;
/// What the longest unit adds beyond the limits: a column's blocks copied one by one, or a row of overlays.
pub(super) const STEPS_MAX: u32 = STEPS as u32 + 300;
/// See [`STEPS_MAX`].
pub(super) const TERMS_MAX: u32 = TERMS as u32 + 200;

/// Where a computation is put together before it goes into the engine's slabs. Term slices count from zero here.
pub(super) struct Builder {
    pub(super) steps: Vec<Step>,
    pub(super) terms: Vec<Term>,
    /// Units seen, and units that earlier computations have done.
    seen: u32,
    done: u32,
    full: bool,
}

impl Builder {
    pub(super) fn new() -> Builder {
        Builder {
            steps: Vec::with_capacity(STEPS_MAX as usize),
            terms: Vec::with_capacity(TERMS_MAX as usize),
            seen: 0,
            done: 0,
            full: false,
        }
    }

    /// Builds the steps that come after the first `done` units. Returns the units done after them.
    pub(super) fn build(
        &mut self,
        op: &StripeOp,
        layout: &Layout,
        pieces: &Slab<Piece>,
        scratch: BufAddr,
        done: u32,
    ) -> u32 {
        self.steps.clear();
        self.terms.clear();
        (self.seen, self.done, self.full) = (0, done, false);
        let mut row = op.window.0;
        while row < op.window.1 && !self.full {
            let end = layout.run_end(row);
            if layout.row(row).fail.is_none() && self.unit() {
                self.recover(op, layout, scratch, row, end);
                if op.stage == Stage::Write && !op.restoring() {
                    self.write_run(op, layout, pieces, scratch, row, end);
                }
            }
            row = end;
        }
        if op.stage == Stage::Read && !op.restoring() {
            for (_, piece) in op.pieces().iter(pieces) {
                for column in piece.columns(op.geometry.chunk) {
                    if !self.full && self.unit() {
                        self.deliver(op, layout, piece, scratch, column);
                    }
                }
            }
        }
        self.seen.max(done)
    }

    /// Counts a unit. True if it is to be built now.
    fn unit(&mut self) -> bool {
        if self.steps.len() >= STEPS || self.terms.len() >= TERMS {
            self.full = true;
            return false;
        }
        self.seen += 1;
        self.seen > self.done
    }

    fn combine(&mut self, len: u32, dst: [BufAddr; 2], outputs: u8, accumulate: bool, from: usize) {
        let terms = Slice { start: from as u32, len: (self.terms.len() - from) as u32 };
        if terms.len > 0 {
            self.steps.push(Step::Combine { len, dst, outputs, accumulate, terms });
        } else if !accumulate {
            for &dst in &dst[..outputs as usize] {
                self.copy(dst, BufAddr::ZERO, len);
            }
        }
    }

    fn term(&mut self, src: BufAddr, coef: [u8; 2]) {
        if src != BufAddr::ZERO {
            self.terms.push(Term { src, coef });
        }
    }

    /// Copies, joined to the step before where both sides go on.
    fn copy(&mut self, dst: BufAddr, src: BufAddr, len: u32) {
        if let Some(Step::Copy { dst: d, src: s, len: l }) = self.steps.last_mut()
            && d.plus(*l as u64) == dst
            && s.plus(*l as u64) == src
        {
            *l += len;
            return;
        }
        self.steps.push(Step::Copy { dst, src, len });
    }

    /// Computes the columns that could not be read.
    fn recover(&mut self, op: &StripeOp, layout: &Layout, scratch: BufAddr, row: u32, end: u32) {
        let r = layout.row(row);
        let mut left = r.recover;
        while left != 0 {
            let mut coefs = [[0; gf::MAX_COLUMNS]; 2];
            let mut dst = [BufAddr::ZERO; 2];
            let mut outputs = 0;
            while left != 0 && outputs < 2 {
                let column = left.trailing_zeros() as u16;
                left &= left - 1;
                coefs[outputs] =
                    gf::recover(op.geometry.data_columns(), r.read, column).expect("the plan reads what this takes");
                dst[outputs] = layout.home(op, scratch, column, row);
                outputs += 1;
            }
            let from = self.terms.len();
            for column in 0..op.geometry.columns() {
                let coef = [coefs[0][column as usize], coefs[1][column as usize]];
                if coef != [0, 0] {
                    self.term(layout.home(op, scratch, column, row), coef);
                }
            }
            self.combine((end - row) * BLOCK_SIZE, dst, outputs as u8, false, from);
        }
    }

    /// New data into old blocks, and parity.
    fn write_run(
        &mut self,
        op: &StripeOp,
        layout: &Layout,
        pieces: &Slab<Piece>,
        scratch: BufAddr,
        row: u32,
        end: u32,
    ) {
        let r = *layout.row(row);
        let data = op.geometry.data_columns();
        let len = (end - row) * BLOCK_SIZE;
        let mut dst = [BufAddr::ZERO; 2];
        let mut parity = [0; 2];
        let mut outputs = 0;
        if !r.zero_parity {
            for p in (0..op.geometry.parities()).filter(|p| r.write & (1 << (data + p)) != 0) {
                dst[outputs] = layout.home(op, scratch, data + p, row);
                parity[outputs] = p;
                outputs += 1;
            }
        }
        let coef = |column| -> [u8; 2] {
            std::array::from_fn(|j| if j < outputs { gf::parity_coef(parity[j], column) } else { 0 })
        };
        let touched = |column| layout.entry(column, row).cover != Cover::None;
        let whole = |column| layout.entry(column, row).cover == Cover::Full;
        let modify = r.path == Path::ReadModifyWrite;
        if modify && outputs > 0 {
            // Old data leaves parity before the overlays change it in its place.
            let from = self.terms.len();
            for column in (0..data).filter(|&c| touched(c)) {
                self.term(layout.home(op, scratch, column, row), coef(column));
                if whole(column) {
                    self.term(layout.entry(column, row).addr, coef(column));
                }
            }
            self.combine(len, dst, outputs as u8, true, from);
        }
        for column in (0..data).filter(|&c| touched(c) && !whole(c)) {
            self.overlay(op, layout, pieces, scratch, column, row);
        }
        if outputs > 0 {
            let from = self.terms.len();
            for column in 0..data {
                if whole(column) {
                    if !modify {
                        self.term(layout.entry(column, row).addr, coef(column));
                    }
                } else if touched(column) || !modify {
                    self.term(layout.home(op, scratch, column, row), coef(column));
                }
            }
            self.combine(len, dst, outputs as u8, modify, from);
        }
    }

    /// Lays the sectors of the pieces over a block. Of two pieces with the same sector the later one counts.
    fn overlay(
        &mut self,
        op: &StripeOp,
        layout: &Layout,
        pieces: &Slab<Piece>,
        scratch: BufAddr,
        column: u16,
        row: u32,
    ) {
        let chunk = op.geometry.chunk;
        let home = layout.home(op, scratch, column, row);
        let mut sources = [None; SECTORS as usize];
        for (_, piece) in op.pieces().iter(pieces) {
            let Some((a, b)) = piece.in_column(chunk, column) else { continue };
            for sector in 0..SECTORS {
                let at = row * BLOCK_SIZE + sector * SECTOR_SIZE;
                if a <= at && at < b {
                    sources[sector as usize] = Some(piece.addr(chunk, column, at));
                }
            }
        }
        for (sector, source) in sources.into_iter().enumerate() {
            if let Some(source) = source {
                self.copy(home.plus(sector as u64 * SECTOR_SIZE as u64), source, SECTOR_SIZE);
            }
        }
    }

    /// Copies what a read wants of a column to its buffer, where it was not read there directly.
    fn deliver(&mut self, op: &StripeOp, layout: &Layout, piece: &Piece, scratch: BufAddr, column: u16) {
        let chunk = op.geometry.chunk;
        let Some((a, b)) = piece.in_column(chunk, column) else { return };
        let (lo, hi) = op.window;
        for row in (a / BLOCK_SIZE).max(lo)..b.div_ceil(BLOCK_SIZE).min(hi) {
            let r = layout.row(row);
            if r.fail.is_some() && (r.read | r.recover) & (1 << column) == 0 {
                continue;
            }
            let base = row * BLOCK_SIZE;
            let (from, to) = (a.max(base), b.min(base + BLOCK_SIZE));
            let source = layout.home(op, scratch, column, row).plus((from - base) as u64);
            let dst = piece.addr(chunk, column, from);
            if source != dst {
                self.copy(dst, source, to - from);
            }
        }
    }
}
