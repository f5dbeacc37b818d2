//! The rows of a stripe's window, laid out: where each new block comes from, what each run of rows reads, computes and
//! writes. It is made anew for each phase from the pieces and the plan's facts, so that a stripe in hand carries none of it.

use super::slab::Slab;
use super::stripe::{Piece, PieceKind, Stage, StripeOp};
use crate::action::BufAddr;
use crate::geometry::{MAX_CHUNK, MAX_WIDTH};
use crate::plan::{self, Impossible, Path, StripeView, WriteMask};
use crate::units::{BLOCK_SIZE, SECTOR_SIZE};

/// Sectors of a block.
pub(super) const SECTORS: u32 = BLOCK_SIZE / SECTOR_SIZE;

/// How the pieces cover one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cover {
    None,
    /// One piece has all of it, at `Entry::addr`.
    Full,
    /// The sectors in `Entry::mask` come from pieces, the others from the old block.
    Partial,
    /// All sectors come from pieces, from more than one place.
    Assembled,
}

/// One block of a data column.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) cover: Cover,
    mask: u8,
    /// Comes from a request that welcomes deallocation.
    pub(super) unmap: bool,
    pub(super) addr: BufAddr,
}

const NO_ENTRY: Entry = Entry { cover: Cover::None, mask: 0, unmap: false, addr: BufAddr::ZERO };

/// One row. Sets are bit masks of columns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// Begins a run: rows with the same sets whose full blocks are contiguous in memory.
    pub(super) starts: bool,
    pub(super) path: Path,
    pub(super) read: u32,
    pub(super) recover: u32,
    pub(super) write: u32,
    /// All data of the row becomes zeros, and so does parity, without computing it.
    pub(super) zero_parity: bool,
    pub(super) unmap_parity: bool,
    pub(super) fail: Option<Impossible>,
}

const NO_ROW: Row = Row {
    starts: false,
    path: Path::FullStripe,
    read: 0,
    recover: 0,
    write: 0,
    zero_parity: false,
    unmap_parity: false,
    fail: None,
};

/// The layout of one window.
pub(super) struct Layout {
    pub(super) rows: Vec<Row>,
    map: Vec<Entry>,
    /// The window's first row.
    pub(super) first: u32,
}

impl Layout {
    pub(super) fn new() -> Layout {
        let rows = (MAX_CHUNK / BLOCK_SIZE) as usize;
        Layout { rows: Vec::with_capacity(rows), map: Vec::with_capacity(rows * MAX_WIDTH as usize), first: 0 }
    }

    pub(super) fn entry(&self, column: u16, row: u32) -> &Entry {
        &self.map[column as usize * self.rows.len() + (row - self.first) as usize]
    }

    pub(super) fn row(&self, row: u32) -> &Row {
        &self.rows[(row - self.first) as usize]
    }

    /// The row after the last one of the run that `row` begins.
    pub(super) fn run_end(&self, row: u32) -> u32 {
        let mut end = row + 1;
        while end < self.first + self.rows.len() as u32 && !self.row(end).starts {
            end += 1;
        }
        end
    }

    /// Lays out the window of a stripe.
    pub(super) fn prepare(&mut self, op: &StripeOp, pieces: &Slab<Piece>) {
        let (lo, hi) = op.window;
        let data = op.geometry.data_columns();
        self.first = lo;
        self.rows.clear();
        self.rows.resize((hi - lo) as usize, NO_ROW);
        self.map.clear();
        self.map.resize(self.rows.len() * data as usize, NO_ENTRY);
        if op.restoring() {
            self.plan_restore(op);
            return;
        }
        for (_, piece) in op.pieces().iter(pieces) {
            self.cover(op, piece);
        }
        let view = StripeView {
            readable: op.columns(op.sources),
            writable: op.columns(op.facts.writable),
            recoverable: op.facts.synced,
        };
        let mut row = lo;
        while row < hi {
            let mut end = row + 1;
            while end < hi && (0..data).all(|c| self.continues(c, end)) {
                end += 1;
            }
            let planned = self.plan_run(op, &view, row);
            for r in row..end {
                self.rows[(r - lo) as usize] = Row { starts: r == row, ..planned };
            }
            row = end;
        }
    }

    /// Enters a piece's blocks in the map.
    fn cover(&mut self, op: &StripeOp, piece: &Piece) {
        let chunk = op.geometry.chunk;
        let (lo, hi) = op.window;
        let reading = op.stage == Stage::Read;
        let unmap = piece.kind == PieceKind::Zero { unmap: true };
        for column in piece.columns(chunk) {
            let Some((a, b)) = piece.in_column(chunk, column) else { continue };
            for row in (a / BLOCK_SIZE).max(lo)..b.div_ceil(BLOCK_SIZE).min(hi) {
                let base = row * BLOCK_SIZE;
                let entry = &mut self.map[column as usize * self.rows.len() + (row - lo) as usize];
                if a <= base && b >= base + BLOCK_SIZE {
                    // A later write replaces an earlier one. Of several readers the first lends its buffer.
                    if !(reading && entry.cover == Cover::Full) {
                        *entry = Entry { cover: Cover::Full, mask: 0xff, unmap, addr: piece.addr(chunk, column, base) };
                    }
                    continue;
                }
                if reading && entry.cover == Cover::Full {
                    continue;
                }
                let from = a.max(base) - base;
                let to = b.min(base + BLOCK_SIZE) - base;
                for sector in from / SECTOR_SIZE..to / SECTOR_SIZE {
                    entry.mask |= 1 << sector;
                }
                entry.unmap = false;
                entry.cover = if entry.mask == 0xff && !reading { Cover::Assembled } else { Cover::Partial };
            }
        }
    }

    /// Whether a column's block at `row` goes on from the one before, so that both can be computed in one step.
    fn continues(&self, column: u16, row: u32) -> bool {
        let (before, entry) = (self.entry(column, row - 1), self.entry(column, row));
        match (before.cover, entry.cover) {
            (Cover::None, Cover::None) => true,
            (Cover::Full, Cover::Full) => {
                before.unmap == entry.unmap && before.addr.plus(BLOCK_SIZE as u64) == entry.addr
            }
            _ => false,
        }
    }

    fn plan_run(&self, op: &StripeOp, view: &StripeView, row: u32) -> Row {
        let geometry = &op.geometry;
        let data = geometry.data_columns();
        let mut mask = WriteMask::default();
        let (mut zeros, mut unmaps) = (0, 0);
        for column in 0..data {
            let entry = self.entry(column, row);
            match entry.cover {
                Cover::None => {}
                Cover::Full | Cover::Assembled => mask.full |= 1 << column,
                Cover::Partial => mask.partial |= 1 << column,
            }
            if entry.cover == Cover::Full && entry.addr == BufAddr::ZERO {
                zeros |= 1 << column;
                unmaps |= u32::from(entry.unmap) << column;
            }
        }
        let touched = mask.full | mask.partial;
        if touched == 0 {
            return NO_ROW;
        }
        let all = plan::first(data);
        if op.stage == Stage::Read {
            return match plan::plan_read(geometry, view, touched) {
                Ok(p) => Row { path: p.path, read: p.read, recover: p.recover, ..NO_ROW },
                // What can be read is still delivered to the pieces that want nothing else.
                Err(why) => Row { read: touched & view.readable, fail: Some(why), ..NO_ROW },
            };
        }
        match plan::plan(geometry, view, &mask) {
            Ok(p) => Row {
                path: p.path,
                read: p.read,
                recover: p.recover,
                write: touched | (view.writable & plan::first(geometry.columns()) & !all),
                zero_parity: zeros == all,
                unmap_parity: unmaps == all,
                ..NO_ROW
            },
            Err(why) => Row { fail: Some(why), ..NO_ROW },
        }
    }

    /// Every row of a restoring window is alike: one run.
    fn plan_restore(&mut self, op: &StripeOp) {
        let geometry = &op.geometry;
        let want = op.columns(op.targets);
        let readable = op.columns(op.sources);
        // Of mirrors, the column is read from another slot and written to the targets; parity levels compute it.
        let view = StripeView { readable, writable: want, recoverable: op.facts.synced };
        let row = match plan::plan_read(geometry, &view, want) {
            Ok(p) => Row { path: p.path, read: p.read, recover: p.recover, write: want, ..NO_ROW },
            Err(why) => Row { fail: Some(why), ..NO_ROW },
        };
        self.rows.fill(row);
        self.rows[0].starts = true;
    }

    /// Whether a column's block at `row` has a place in scratch memory.
    pub(super) fn in_scratch(&self, op: &StripeOp, column: u16, row: u32) -> bool {
        let r = self.row(row);
        let bit = 1 << column;
        let fetched = (r.read | r.recover) & bit != 0;
        if op.restoring() {
            return fetched;
        }
        let is_data = column < op.geometry.data_columns();
        match op.stage {
            Stage::Read => fetched && !(is_data && self.entry(column, row).cover == Cover::Full),
            _ if is_data => {
                fetched
                    || (r.write & bit != 0
                        && matches!(self.entry(column, row).cover, Cover::Partial | Cover::Assembled))
            }
            _ => fetched || (r.write & bit != 0 && !r.zero_parity),
        }
    }

    /// Where the old, computed or assembled block of a column is.
    pub(super) fn home(&self, op: &StripeOp, scratch: BufAddr, column: u16, row: u32) -> BufAddr {
        if op.stage == Stage::Read && !op.restoring() && column < op.geometry.data_columns() {
            let entry = self.entry(column, row);
            if entry.cover == Cover::Full {
                return entry.addr;
            }
        }
        let region = &op.regions[column as usize];
        let block = region.unit as u64 + (row - region.row) as u64;
        scratch.plus(block * BLOCK_SIZE as u64 + region.shift as u64)
    }

    /// What is written to a column at `row`.
    pub(super) fn new_block(&self, op: &StripeOp, scratch: BufAddr, column: u16, row: u32) -> (BufAddr, bool) {
        if !op.restoring() {
            let r = self.row(row);
            if column >= op.geometry.data_columns() {
                if r.zero_parity {
                    return (BufAddr::ZERO, r.unmap_parity);
                }
            } else {
                let entry = self.entry(column, row);
                if entry.cover == Cover::Full {
                    return (entry.addr, entry.unmap);
                }
            }
        }
        (self.home(op, scratch, column, row), false)
    }
}
