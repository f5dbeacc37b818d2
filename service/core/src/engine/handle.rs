//! A stripe's way: taken up with all its pieces, planned, read, computed, written, answered.

use super::request::choose;
use super::slab::{NIL, Runs};
use super::stripe::{Facts, List, Phase, PieceKind, Region, Stage, StripeOp};
use super::{Engine, Layout};
use crate::action::{Event, ReqStatus};
use crate::plan::{Impossible, Path, first};
use crate::units::BLOCK_SIZE;
use crate::view::{SlotState, View};

/// Regions of this many blocks and more are staggered.
const STAGGERED: u32 = 4;

/// What a view says of a stripe's group.
pub(super) fn facts(view: &View, key: super::slab::Key) -> Facts {
    let Some(volume) = view.volume(key.volume).filter(|v| v.online) else { return Facts::default() };
    let Some(group) = volume.groups.get(key.group as usize) else { return Facts::default() };
    let region = volume.region(key.group, key.stripe);
    let mut facts = Facts {
        synced: group.synced && region.verified(),
        online: true,
        marked: (!volume.track_dirty || volume.dirty) && region.writable(),
        ..Facts::default()
    };
    for (slot, s) in group.slots.iter().enumerate() {
        facts.readable |= u32::from(s.state == SlotState::InSync) << slot;
        facts.writable |= u32::from(s.state != SlotState::Missing) << slot;
    }
    facts
}

impl Engine {
    /// Takes up a stripe with every piece that is attached to it.
    pub(super) fn activate(&mut self, index: u32) {
        self.counters.activations += 1;
        let op = &mut self.stripes[index];
        let mut incoming = std::mem::replace(&mut op.incoming, List::EMPTY);
        while let Some(piece) = incoming.pop(&self.pieces) {
            let list = match self.pieces[piece].kind {
                PieceKind::Read => &mut op.reads,
                PieceKind::Write { .. } | PieceKind::Zero { .. } => &mut op.writes,
                PieceKind::Rebuild | PieceKind::Resync => &mut op.maintain,
            };
            list.push(&mut self.pieces, piece);
        }
        self.begin_stage(index);
        self.ready.push_back(index);
    }

    /// Lets everything go on that can.
    pub(super) fn run(&mut self) {
        loop {
            let mut progress = false;
            while let Some(index) = self.batch.pop_front() {
                self.activate(index);
            }
            while let Some(index) = self.ready.pop_front() {
                self.advance(index);
                progress = true;
            }
            if std::mem::take(&mut self.scratch_freed) {
                while let Some(index) = self.scratch_wait.pop_front() {
                    // The view may have changed meanwhile, so it is planned again.
                    self.stripes[index].phase = Phase::Plan;
                    self.scratch_turn = true;
                    self.advance(index);
                    self.scratch_turn = false;
                    if self.scratch_wait.front() == Some(&index) {
                        break;
                    }
                    progress = true;
                }
            }
            if std::mem::take(&mut self.io_freed) {
                progress |= self.retry_io();
            }
            progress |= self.unpark();
            if self.parked.is_empty() && self.intake.is_some() {
                self.take_in();
                progress |= self.intake.is_none() || !self.batch.is_empty();
            }
            if !progress && self.batch.is_empty() && self.ready.is_empty() && !self.scratch_freed {
                return;
            }
        }
    }

    fn retry_io(&mut self) -> bool {
        let mut progress = false;
        while let Some(index) = self.io_wait.pop_front() {
            self.advance(index);
            if self.io_wait.back() == Some(&index) {
                // Still no room: it keeps its turn.
                self.io_wait.pop_back();
                self.io_wait.push_front(index);
                return progress;
            }
            progress = true;
        }
        while let Some(index) = self.request_wait.pop_front() {
            if !self.retry_request(index) {
                self.request_wait.push_front(index);
                return progress;
            }
            progress = true;
        }
        progress
    }

    /// Begins the next stage that has pieces, or lets the stripe go.
    fn begin_stage(&mut self, index: u32) {
        let op = &mut self.stripes[index];
        op.outcome = ReqStatus::Ok;
        op.fua = false;
        op.stage = if !op.reads.is_empty() {
            Stage::Read
        } else if !op.writes.is_empty() {
            Stage::Write
        } else if !op.maintain.is_empty() {
            Stage::Maintain
        } else {
            op.phase = Phase::Idle;
            if op.incoming.is_empty() {
                let key = op.key;
                self.table.remove(key);
                self.stripes.remove(index);
            } else {
                self.batch.push_back(index);
            }
            return;
        };
        let chunk = op.geometry.chunk;
        (op.lo, op.hi) = (0, op.geometry.rows());
        let mut suspect = false;
        if op.stage != Stage::Maintain {
            (op.lo, op.hi) = (u32::MAX, 0);
            let mut fua = false;
            for (_, piece) in op.pieces().iter(&self.pieces) {
                for (a, b) in piece.columns(chunk).filter_map(|c| piece.in_column(chunk, c)) {
                    op.lo = op.lo.min(a / BLOCK_SIZE);
                    op.hi = op.hi.max(b.div_ceil(BLOCK_SIZE));
                }
                fua |= piece.kind == PieceKind::Write { fua: true };
                suspect |= piece.fault.is_some_and(|f| f.media);
            }
            op.fua = fua;
        }
        op.window = (op.lo, if suspect { op.lo + 1 } else { op.hi });
        self.begin_window(index);
    }

    fn begin_window(&mut self, index: u32) {
        let op = &mut self.stripes[index];
        (op.bad, op.hopeless, op.repaired, op.targets) = (0, 0, 0, 0);
        (op.repairing, op.read_errors, op.replan) = (false, 0, false);
        op.phase = Phase::Plan;
        if op.stage != Stage::Read {
            return;
        }
        let chunk = op.geometry.chunk;
        let mut at = op.reads.head;
        while at != NIL {
            let piece = &mut self.pieces[at];
            at = piece.next;
            let Some(fault) = piece.fault else { continue };
            let slot = 1 << fault.slot;
            let (from, to) = (piece.start % chunk / BLOCK_SIZE, (piece.start % chunk + piece.len).div_ceil(BLOCK_SIZE));
            if !fault.media {
                op.waiting |= slot;
                op.wait_member[fault.slot as usize] = fault.member;
                op.phase = Phase::ViewThenPlan;
                piece.fault = None;
            } else if to - from == 1 && op.window == (from, to) {
                // The failed read was of this block only: there is no need to try it again.
                op.bad |= slot;
                op.repairing = true;
            }
        }
    }

    /// Takes a stripe as far as it goes without an answer from outside.
    pub(super) fn advance(&mut self, index: u32) {
        // Whether the layout is of this stripe, from the phase before.
        let mut laid = false;
        loop {
            let Some(op) = self.stripes.get(index) else { return };
            let phase = op.phase;
            let in_work = matches!(phase, Phase::Reading | Phase::Computing | Phase::Writing);
            if in_work && op.issued && op.outstanding > 0 {
                return;
            }
            if in_work && !op.issued && !laid {
                self.layout.prepare(&self.stripes[index], &self.pieces);
                laid = true;
            }
            match phase {
                Phase::Idle | Phase::Scratch => return,
                Phase::Plan => {
                    laid = self.plan(index);
                    if matches!(self.stripes.get(index).map(|o| o.phase), None | Some(Phase::Scratch)) {
                        return;
                    }
                }
                Phase::Reading => {
                    if !self.stripes[index].issued && !self.issue(index, false) {
                        self.io_wait.push_back(index);
                        return;
                    }
                    if self.stripes[index].outstanding > 0 {
                        return;
                    }
                    self.after_reads(index);
                    laid &= self.stripes[index].phase == Phase::Computing;
                }
                Phase::Computing => {
                    if self.stripes[index].outstanding > 0 {
                        return;
                    }
                    if std::mem::take(&mut self.stripes[index].compute_failed) {
                        self.end_stage(index, ReqStatus::Unrecoverable);
                        laid = false;
                        continue;
                    }
                    match self.issue_compute(index) {
                        None => {
                            self.io_wait.push_back(index);
                            return;
                        }
                        Some(true) => return,
                        Some(false) if self.stripes[index].stage == Stage::Read && !self.stripes[index].repairing => {
                            self.count_degraded(index);
                            self.end_window(index);
                            laid = false;
                        }
                        Some(false) => {
                            self.count_path(index);
                            self.stripes[index].enter(Phase::Writing);
                        }
                    }
                }
                Phase::Writing => {
                    if !self.stripes[index].issued && !self.issue(index, true) {
                        self.io_wait.push_back(index);
                        return;
                    }
                    if self.stripes[index].outstanding > 0 {
                        return;
                    }
                    if self.stripes[index].waiting != 0 {
                        self.stripes[index].phase = Phase::ViewThenDone;
                    } else {
                        self.end_window(index);
                        laid = false;
                    }
                }
                Phase::ViewThenPlan | Phase::ViewThenDone => {
                    if !self.view_allows(index) {
                        return;
                    }
                    if phase == Phase::ViewThenDone {
                        self.end_window(index);
                    } else {
                        self.stripes[index].phase = Phase::Plan;
                    }
                    laid = false;
                }
            }
        }
    }

    /// Plans the window and takes scratch memory for it. True if the layout is that of the window.
    fn plan(&mut self, index: u32) -> bool {
        let op = &mut self.stripes[index];
        (op.read_errors, op.replan, op.write_errors) = (0, false, 0);
        op.facts = facts(&self.view, op.key);
        if !op.facts.online {
            self.end_stage(index, ReqStatus::Offline);
            return false;
        }
        if op.stage == Stage::Write && !(op.facts.marked && self.touch(index)) {
            self.stripes[index].phase = Phase::ViewThenPlan;
            return false;
        }
        self.choose_targets(index);
        self.choose_sources(index);
        let op = &mut self.stripes[index];
        if op.repairing && op.geometry.parities() == 0 {
            // A column of a mirror is repaired from its own copies, whatever the others can do.
            let columns = op.columns(op.sources);
            for slot in 0..op.geometry.width {
                if columns & (1 << op.geometry.column(op.key.stripe, slot)) == 0 {
                    op.targets &= !(1 << slot);
                }
            }
        }
        if op.restoring() && op.targets == 0 {
            if op.repairing {
                (op.hopeless, op.repairing) = (op.bad, false);
            } else {
                self.end_window(index);
            }
            return false;
        }
        self.layout.prepare(&self.stripes[index], &self.pieces);
        if !self.settle_failures(index) {
            return false;
        }
        if !self.take_scratch(index) {
            let op = &mut self.stripes[index];
            if self.scratch.is_untouched() && (self.scratch_turn || self.scratch_wait.is_empty()) {
                // Not enough memory for the window even alone: row by row then, if that is less.
                if op.single() {
                    self.end_stage(index, ReqStatus::WriteFault);
                } else {
                    op.window.1 = op.window.0 + 1;
                }
                return false;
            }
            op.phase = Phase::Scratch;
            if self.scratch_turn {
                self.scratch_wait.push_front(index);
            } else {
                self.scratch_wait.push_back(index);
            }
            return false;
        }
        self.stripes[index].enter(Phase::Reading);
        true
    }

    /// Notes in the bitmap that the stripe's region is being written to. False if the write has to ask first after all.
    fn touch(&self, index: u32) -> bool {
        let op = &self.stripes[index];
        let Some(volume) = self.view.volume(op.key.volume) else { return true };
        let Some(map) = &volume.regions else { return true };
        let zeros = op.writes.iter(&self.pieces).all(|(_, p)| matches!(p.kind, PieceKind::Zero { .. }));
        map.touch(volume.geometry.region(op.key.group, op.key.stripe), zeros)
    }

    /// The slots that a repair, a rebuild or a resync writes.
    fn choose_targets(&mut self, index: u32) {
        let op = &mut self.stripes[index];
        op.targets = 0;
        if op.repairing {
            op.targets = op.bad & !op.hopeless & op.facts.writable;
        } else if op.stage == Stage::Maintain {
            let rebuild = self.pieces[op.maintain.head].kind == PieceKind::Rebuild;
            let data = op.geometry.data_columns();
            let mut targets = op.bad & op.facts.writable;
            if rebuild {
                targets |= op.facts.rebuilding();
            } else {
                for column in 0..op.geometry.columns() {
                    let slots = op.geometry.slots(op.key.stripe, column).mask();
                    if column >= data {
                        targets |= slots & op.facts.writable;
                    } else {
                        // All copies but the first that can be read.
                        let good = slots & op.facts.readable & !op.bad;
                        targets |= slots & op.facts.writable & !(good & good.wrapping_neg());
                    }
                }
                if op.geometry.parities() > 0 {
                    // Data that cannot be read cannot be made from the parity that is in doubt.
                    targets &= !op.columns_slots(first(data)) | op.bad;
                }
            }
            op.targets = targets;
        }
    }

    fn choose_sources(&mut self, index: u32) {
        let op = &mut self.stripes[index];
        op.sources = 0;
        let Some(volume) = self.view.volume(op.key.volume) else { return };
        let Some(group) = volume.groups.get(op.key.group as usize) else { return };
        let exclude = op.bad | op.targets;
        for column in 0..op.geometry.columns() {
            let (geometry, stripe, row) = (&op.geometry, op.key.stripe, op.window.0);
            let synced = op.facts.synced;
            let slot = choose(group, synced, geometry, stripe, column, exclude, &self.in_flight, row * BLOCK_SIZE);
            op.sources |= slot.map_or(0, |s| 1 << s);
        }
    }

    /// Deals with rows for which there is no plan. False if the stripe's phase has changed because of them.
    fn settle_failures(&mut self, index: u32) -> bool {
        if self.layout.rows.iter().all(|r| r.fail.is_none()) {
            return true;
        }
        let op = &mut self.stripes[index];
        if op.repairing {
            (op.hopeless, op.repairing) = (op.bad, false);
            return false;
        }
        let (lo, hi) = op.window;
        let readable = op.columns(op.sources);
        let lost = first(op.geometry.data_columns()) & !readable;
        let report = op.bad != 0 && op.stage != Stage::Write;
        if op.stage == Stage::Maintain {
            op.outcome = ReqStatus::Unrecoverable;
        }
        let chunk = op.geometry.chunk;
        for row in lo..hi {
            let Some(why) = self.layout.row(row).fail else { continue };
            let mut hit = 0;
            let mut at = op.pieces().head;
            while at != NIL {
                let piece = &mut self.pieces[at];
                at = piece.next;
                let mut columns = 0u32;
                for column in piece.columns(chunk) {
                    if let Some((a, b)) = piece.in_column(chunk, column)
                        && a / BLOCK_SIZE <= row
                        && row < b.div_ceil(BLOCK_SIZE)
                    {
                        columns |= 1 << column;
                    }
                }
                if columns == 0 || (op.stage == Stage::Read && columns & lost == 0) {
                    continue;
                }
                hit |= columns & lost;
                piece.status = match why {
                    Impossible::Lost => ReqStatus::Unrecoverable,
                    Impossible::NoPlace => ReqStatus::WriteFault,
                };
            }
            if op.stage == Stage::Maintain {
                hit = lost;
            }
            if !report {
                continue;
            }
            let geometry = &op.geometry;
            let base = op.key.group as u64 * geometry.group_bytes() + op.key.stripe as u64 * geometry.stripe_bytes();
            for column in (0..geometry.data_columns()).filter(|c| hit & (1 << c) != 0) {
                let offset = base + column as u64 * chunk as u64 + row as u64 * BLOCK_SIZE as u64;
                let event = Event::DataLost { volume: op.key.volume, offset, len: BLOCK_SIZE };
                self.actions.push_back(crate::action::Action::Event(event));
            }
        }
        if op.stage == Stage::Maintain {
            self.end_window(index);
            return false;
        }
        true
    }

    /// Takes scratch memory for the laid-out window, or none.
    fn take_scratch(&mut self, index: u32) -> bool {
        if !self.scratch_wait.is_empty() && !self.scratch_turn && self.needs_scratch(index) {
            return false;
        }
        let op = &mut self.stripes[index];
        for column in 0..op.geometry.columns() {
            let Some((row, end)) = span(&self.layout, op, column) else { continue };
            let rows = end - row;
            let units = if rows >= STAGGERED { rows + 1 } else { rows };
            let Some(unit) = self.scratch.take(units) else {
                release(op, &mut self.scratch);
                return false;
            };
            // Starts at different distances from a page, or the columns of a stripe fight for the same cache sets.
            let shift = if rows >= STAGGERED { (index * 3 + column as u32 + 1) % 8 * 512 } else { 0 };
            op.regions[column as usize] = Region { unit, units, shift, row };
        }
        true
    }

    fn needs_scratch(&self, index: u32) -> bool {
        let op = &self.stripes[index];
        (0..op.geometry.columns()).any(|c| span(&self.layout, op, c).is_some())
    }

    fn free_scratch(&mut self, index: u32) {
        self.scratch_freed |= release(&mut self.stripes[index], &mut self.scratch);
    }

    /// All reads of a window have come home.
    fn after_reads(&mut self, index: u32) {
        let changed = self.stripes[index].facts != facts(&self.view, self.stripes[index].key);
        let op = &mut self.stripes[index];
        if op.waiting == 0 && op.read_errors == 0 && !op.replan && !changed {
            op.enter(Phase::Computing);
            op.issued = false;
            return;
        }
        let errors = std::mem::take(&mut op.read_errors);
        op.phase = Phase::Plan;
        if op.waiting != 0 {
            op.phase = Phase::ViewThenPlan;
        }
        // A block that cannot be read although it was just rewritten: the member is at fault.
        let again = errors & op.repaired;
        if again != 0 {
            op.waiting |= again;
            op.wait_status = crate::action::IoStatus::ReadError;
            op.phase = Phase::ViewThenPlan;
        }
        if errors != 0 {
            if op.single() {
                op.bad |= errors;
                op.repairing = op.stage != Stage::Maintain;
            } else {
                op.window.1 = op.window.0 + 1;
            }
        }
        self.free_scratch(index);
    }

    fn count_degraded(&mut self, index: u32) {
        let op = &self.stripes[index];
        if op.window.0 == op.lo && self.layout.rows.iter().any(|r| r.recover != 0) {
            self.counters.degraded_reads += op.reads.iter(&self.pieces).count() as u64;
        }
    }

    fn count_path(&mut self, index: u32) {
        let op = &self.stripes[index];
        let writes = self.layout.rows.iter().filter(|r| r.write != 0);
        if op.stage != Stage::Write || op.repairing || op.window.0 != op.lo || writes.clone().count() == 0 {
            return;
        }
        if writes.clone().any(|r| r.path == Path::ReadModifyWrite) {
            self.counters.read_modify_write += 1;
        } else if writes.clone().any(|r| r.path == Path::Reconstruct) {
            self.counters.reconstruct_write += 1;
        } else if op.geometry.parities() > 0 {
            self.counters.full_stripe += 1;
        }
    }

    /// The window is done; on to the next.
    fn end_window(&mut self, index: u32) {
        self.free_scratch(index);
        let op = &mut self.stripes[index];
        op.waiting = 0;
        if op.restoring() {
            self.report_repairs(index);
        }
        let op = &mut self.stripes[index];
        if op.repairing {
            op.repaired |= op.targets & !op.write_errors;
            op.bad &= !op.targets;
            (op.repairing, op.phase) = (false, Phase::Plan);
            return;
        }
        if op.stage == Stage::Maintain && op.write_errors != 0 && op.outcome == ReqStatus::Ok {
            op.outcome = ReqStatus::WriteFault;
        }
        op.write_errors = 0;
        if op.window.1 < op.hi {
            op.window = (op.window.1, op.window.1 + 1);
            self.begin_window(index);
            return;
        }
        let offline = op.stage == Stage::Write && !facts(&self.view, op.key).online;
        self.end_stage(index, if offline { ReqStatus::Offline } else { ReqStatus::Ok });
    }

    /// Tells of the blocks that were rewritten because they could not be read.
    fn report_repairs(&mut self, index: u32) {
        let op = &self.stripes[index];
        let slots = op.targets & op.bad & !op.write_errors;
        let (key, geometry, window) = (op.key, op.geometry, op.window);
        if slots == 0 || self.layout_failed(index) {
            return;
        }
        let view = self.view.clone();
        let Some(group) = view.volume(key.volume).and_then(|v| v.groups.get(key.group as usize)) else { return };
        for slot in (0..geometry.width).filter(|s| slots & (1 << s) != 0) {
            let place = group.slots[slot as usize];
            let offset = place.offset + key.stripe as u64 * geometry.chunk as u64 + window.0 as u64 * BLOCK_SIZE as u64;
            self.counters.read_repairs += 1;
            let len = (window.1 - window.0) * BLOCK_SIZE;
            self.event(Event::ReadRepaired { member: place.member, offset, len });
        }
    }

    /// The restoring window had no plan, so that nothing was written.
    fn layout_failed(&self, index: u32) -> bool {
        self.stripes[index].phase == Phase::Plan
    }

    /// Ends the pieces of the stage and begins the next one.
    fn end_stage(&mut self, index: u32, status: ReqStatus) {
        self.free_scratch(index);
        let op = &mut self.stripes[index];
        op.waiting = 0;
        if op.stage == Stage::Maintain {
            let outcome = if status == ReqStatus::Ok { op.outcome } else { status };
            if let Some(piece) = op.maintain.pop(&self.pieces) {
                self.pieces[piece].status = outcome;
                self.finish_piece(piece);
            }
        } else {
            let list = if op.stage == Stage::Read { &mut op.reads } else { &mut op.writes };
            let mut list = std::mem::replace(list, List::EMPTY);
            while let Some(piece) = list.pop(&self.pieces) {
                let p = &mut self.pieces[piece];
                if p.status == ReqStatus::Ok {
                    p.status = status;
                }
                self.finish_piece(piece);
            }
        }
        self.begin_stage(index);
    }
}

/// The rows for which a column needs scratch memory: the first, and the one after the last.
fn span(layout: &Layout, op: &StripeOp, column: u16) -> Option<(u32, u32)> {
    let needs = |row: &u32| layout.in_scratch(op, column, *row);
    let (lo, hi) = op.window;
    let from = (lo..hi).find(needs)?;
    let to = (from..hi).rev().find(needs)?;
    Some((from, to + 1))
}

/// Gives a stripe's scratch memory back. True if it had any.
fn release(op: &mut StripeOp, scratch: &mut Runs) -> bool {
    let mut any = false;
    for region in &mut op.regions {
        let Region { unit, units, .. } = std::mem::take(region);
        if units > 0 {
            scratch.give(unit, units);
            any = true;
        }
    }
    any
}
