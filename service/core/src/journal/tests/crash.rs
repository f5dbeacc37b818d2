//! The power is cut at every step of a writer with records, member writes, flushes and anchors in flight, all of them in
//! random order. At the cut each block in flight is lost, whole, or torn at its sectors, and each member keeps or loses
//! what its cache holds. Then the ring is scanned and replayed, and a checker that knows every write judges the answer.
//!
//! The checker must be able to fail: each of the [`Break`]s is a mistake that a writer or a replay could make, and is found.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

/// Columns of a row: three of data, and parity.
const COLUMNS: u16 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Break {
    Nothing,
    /// The tail moves without a flush of the members.
    NoFlush,
    /// The flush point is taken when the flush ends.
    LateFlushPoint,
    /// Space is used again before the anchor is durable.
    EarlySpace,
    /// A write past the journal is not announced in it.
    NoIntent,
    /// A row is written past the journal while its older records may be in the members' caches.
    EarlyRevoke,
    /// Replay ignores intents.
    NoRevoke,
    /// Replay writes the newest data of each block beside parity that does not cover it.
    NewestOnly,
    /// Members are written before the record counts.
    EarlyMembers,
    /// A record is acknowledged when it is durable itself, whatever is before it.
    EarlyAck,
    /// A header vouches for records that are not durable.
    LyingDurable,
    /// Replay begins before the ring's copies are equal.
    NoRepair,
    /// An anchor is written to the block of the one before it.
    OneAnchorBlock,
}

type Cell = (u32, u16, u16);
type RowKey = (u32, u16);
/// What is in force: settled, later, intents.
type InForce = [BTreeMap<Cell, u64>; 3];

/// A block of the ring on its way to a copy.
struct Flight {
    copy: usize,
    block: u32,
    bytes: Vec<u8>,
    /// The record, or `None` for an anchor.
    record: Option<u64>,
}

#[derive(Default)]
struct Record {
    writes: Vec<Write>,
    /// What is written to the members when the record counts.
    members: Vec<(Cell, u64)>,
    /// It goes past the journal.
    past: bool,
    /// Write-back data is written out by a later record of parity: there, the records of the blocks that it writes out.
    covers: Vec<u64>,
    flights_left: usize,
    members_left: usize,
    counted: bool,
}

/// A block on a member: what is durable, and what its cache holds, oldest first.
#[derive(Clone, Default)]
struct Held {
    durable: u64,
    cached: Vec<u64>,
}

fn cell_of(write: &Write) -> Cell {
    (write.entry.stripe, write.entry.row, write.entry.column)
}

struct World {
    rng: Dice,
    fault: Break,
    blocks: u32,
    ring: Ring,
    copies: Vec<Vec<u8>>,
    flights: Vec<Flight>,
    /// By sequence number, from 1 on.
    records: Vec<Record>,
    anchor_flights: usize,
    /// How often an anchor's block is passed over before it arrives.
    anchor_delay: usize,
    anchors_durable: u64,
    cells: BTreeMap<Cell, Held>,
    member_flights: Vec<(Cell, u64, u64)>,
    locked: BTreeSet<RowKey>,
    /// Write-back data that is not written out: its record, block and tag.
    dirty: BTreeMap<RowKey, Vec<(u64, Cell, u64)>>,
    writing_out: BTreeSet<RowKey>,
    flush: Option<(u64, BTreeMap<Cell, usize>)>,
    /// What each cell holds at least, after any crash.
    promised: BTreeMap<Cell, u64>,
}

impl World {
    fn new(seed: u64, fault: Break) -> World {
        let mut rng = Dice::new(seed);
        let blocks = 16 + rng.below(40) as u32;
        let copies = 1 + rng.below(3);
        let anchor_delay = [1, 8, 60][rng.below(3)];
        let (ring, anchor) = Ring::new(IDENTITY, EPOCH, blocks);
        let mut world = World {
            rng,
            fault,
            blocks,
            ring,
            copies: vec![vec![0; blocks as usize * BLOCK]; copies],
            flights: Vec::new(),
            records: Vec::new(),
            anchor_flights: 0,
            anchor_delay,
            anchors_durable: 0,
            cells: BTreeMap::new(),
            member_flights: Vec::new(),
            locked: BTreeSet::new(),
            dirty: BTreeMap::new(),
            writing_out: BTreeSet::new(),
            flush: None,
            promised: BTreeMap::new(),
        };
        world.write_anchor(anchor);
        // A cut before the first anchor is that of an older epoch, and not of interest here.
        while world.anchors_durable == 0 {
            world.ring_io();
        }
        world
    }

    fn step(&mut self) {
        match self.rng.below(18) {
            0..3 => self.submit(),
            3 => self.write_back(),
            4 => self.write_out(),
            5..11 => (0..1 + self.rng.below(8)).for_each(|_| self.ring_io()),
            11..14 => (0..1 + self.rng.below(4)).for_each(|_| self.member_io()),
            14..16 => self.flush_begins(),
            _ => self.flush_ends(),
        }
    }

    fn some_row(&mut self) -> RowKey {
        (self.rng.below(4) as u32, self.rng.below(2) as u16)
    }

    /// The block of a record that is about to be appended.
    fn write(&self, row: RowKey, column: u16, n: u64, kind: Kind) -> Write {
        let tag = (self.records.len() as u64 + 1) * 64 + 8 * n + u64::from(column);
        Write { entry: Entry { kind, ..payload(row.0, row.1, column, 0).entry }, tag }
    }

    /// One or two rows that nothing else is writing: partial writes through the journal, or full ones past it.
    fn submit(&mut self) {
        let (mut record, mut rows) = (Record::default(), Vec::new());
        for n in 0..1 + self.rng.below(2) as u64 {
            let row = self.some_row();
            let cached = self.dirty.contains_key(&row) || self.writing_out.contains(&row);
            if cached || self.locked.contains(&row) || rows.contains(&row) {
                continue;
            }
            rows.push(row);
            let full = self.rng.one_in(2);
            let past = full && (self.ring.may_bypass(0, row.0) || self.fault == Break::EarlyRevoke);
            record.past |= past;
            let some = if full { 7 } else { 1 + self.rng.below(7) };
            for column in (0..COLUMNS).filter(|c| *c == COLUMNS - 1 || some >> c & 1 == 1) {
                let write = self.write(row, column, n, if past { Kind::Intent } else { Kind::Payload });
                if !past || self.fault != Break::NoIntent {
                    record.writes.push(write);
                }
                record.members.push((cell_of(&write), write.tag));
            }
        }
        record.members_left = record.members.len();
        if !rows.is_empty() && self.append(record).is_some() {
            self.locked.extend(rows);
        }
    }

    /// Data that is logged without parity, and stays in the cache.
    fn write_back(&mut self) {
        let row = self.some_row();
        if self.locked.contains(&row) {
            return;
        }
        let some = 1 + self.rng.below(7);
        let columns = (0..COLUMNS - 1).filter(|c| some >> c & 1 == 1);
        let writes: Vec<Write> = columns.map(|c| self.write(row, c, 0, Kind::Payload)).collect();
        let record = Record { members_left: writes.len(), writes: writes.clone(), ..Record::default() };
        if let Some(sequence) = self.append(record) {
            let dirty = self.dirty.entry(row).or_default();
            dirty.extend(writes.iter().map(|w| (sequence, cell_of(w), w.tag)));
        }
    }

    /// Logs the parity of a row that is in the cache; then its members are written.
    fn write_out(&mut self) {
        let open = self.dirty.keys().filter(|r| !self.writing_out.contains(*r));
        let open: Vec<RowKey> = open.copied().collect();
        if open.is_empty() {
            return;
        }
        let row = open[self.rng.below(open.len())];
        let parity = self.write(row, COLUMNS - 1, 0, Kind::Payload);
        // Of two writes to a block the later one is in the cache.
        let newest: BTreeMap<Cell, u64> = self.dirty[&row].iter().map(|d| (d.1, d.2)).collect();
        let mut members: Vec<(Cell, u64)> = newest.into_iter().collect();
        members.push((cell_of(&parity), parity.tag));
        let covers = self.dirty[&row].iter().map(|d| d.0).collect();
        let members_left = members.len();
        let record = Record { writes: vec![parity], members, covers, members_left, ..Record::default() };
        if self.append(record).is_some() {
            self.dirty.remove(&row);
            self.writing_out.insert(row);
        }
    }

    /// Sends a record on its way, if there is room.
    fn append(&mut self, mut record: Record) -> Option<u64> {
        let payload = record.writes.iter().filter(|w| w.entry.kind == Kind::Payload).count();
        let mut place = self.ring.append(payload as u16)?;
        assert_eq!(place.sequence, self.records.len() as u64 + 1);
        if self.fault == Break::LyingDurable {
            place.durable = place.sequence - 1;
        }
        let bytes = record_bytes(&mut self.ring, &place, &record.writes);
        for copy in 0..self.copies.len() {
            for (block, bytes) in blocks_of(&place).zip(bytes.chunks(BLOCK)) {
                self.flights.push(Flight { copy, block, bytes: bytes.to_vec(), record: Some(place.sequence) });
            }
        }
        record.flights_left = self.copies.len() * (1 + payload);
        self.records.push(record);
        if self.fault == Break::EarlyMembers {
            self.start_members(place.sequence);
        }
        Some(place.sequence)
    }

    fn start_members(&mut self, sequence: u64) {
        let members = &self.records[sequence as usize - 1].members;
        self.member_flights.extend(members.iter().map(|(cell, tag)| (*cell, *tag, sequence)));
    }

    fn promise(&mut self, sequence: u64) {
        let record = &self.records[sequence as usize - 1];
        for w in record.writes.iter().filter(|w| w.entry.kind == Kind::Payload) {
            let promised = self.promised.entry(cell_of(w)).or_default();
            *promised = w.tag.max(*promised);
        }
    }

    /// A block of the ring arrives.
    fn ring_io(&mut self) {
        if self.flights.is_empty() {
            return;
        }
        let n = self.rng.below(self.flights.len());
        // Anchors take their time, so that what they leave behind stays within reach of a replay.
        if self.flights[n].record.is_none() && self.anchors_durable > 0 && !self.rng.one_in(self.anchor_delay) {
            return;
        }
        let flight = self.flights.swap_remove(n);
        self.copies[flight.copy][flight.block as usize * BLOCK..][..BLOCK].copy_from_slice(&flight.bytes);
        let Some(sequence) = flight.record else {
            self.anchor_flights -= 1;
            if self.anchor_flights == 0 {
                self.anchors_durable += 1;
                if self.fault != Break::EarlySpace || self.anchors_durable == 1 {
                    let (counted, next) = self.ring.anchored();
                    assert!(counted.is_empty());
                    next.into_iter().for_each(|a| self.write_anchor(a));
                }
            }
            return;
        };
        self.records[sequence as usize - 1].flights_left -= 1;
        if self.records[sequence as usize - 1].flights_left > 0 {
            return;
        }
        if self.fault == Break::EarlyAck {
            self.promise(sequence);
        }
        for counted in self.ring.durable(sequence) {
            self.promise(counted);
            self.records[counted as usize - 1].counted = true;
            if self.fault == Break::EarlyMembers {
                self.written(counted);
            } else {
                self.start_members(counted);
            }
        }
    }

    fn written(&mut self, sequence: u64) {
        let record = &mut self.records[sequence as usize - 1];
        if !record.counted || record.members_left > 0 {
            return;
        }
        let covers = std::mem::take(&mut record.covers);
        for (cell, _) in &record.members {
            let locks = if covers.is_empty() { &mut self.locked } else { &mut self.writing_out };
            locks.remove(&(cell.0, cell.1));
        }
        self.ring.written(sequence);
        for data in covers {
            self.records[data as usize - 1].members_left -= 1;
            self.written(data);
        }
    }

    /// A block arrives in a member's cache.
    fn member_io(&mut self) {
        if self.member_flights.is_empty() {
            return;
        }
        let (cell, tag, sequence) = self.member_flights.swap_remove(self.rng.below(self.member_flights.len()));
        self.cells.entry(cell).or_default().cached.push(tag);
        self.records[sequence as usize - 1].members_left -= 1;
        self.written(sequence);
    }

    fn flush_begins(&mut self) {
        if self.flush.is_none() {
            let covered = self.cells.iter().map(|(cell, held)| (*cell, held.cached.len())).collect();
            self.flush = Some((self.ring.flush_point(), covered));
        }
    }

    fn flush_ends(&mut self) {
        let Some((mut point, covered)) = self.flush.take() else { return };
        if self.fault != Break::NoFlush {
            for (cell, count) in covered {
                let held = self.cells.entry(cell).or_default();
                if let Some(newest) = held.cached.drain(..count).next_back() {
                    held.durable = newest;
                    let promised = self.promised.entry(cell).or_default();
                    *promised = newest.max(*promised);
                }
            }
        }
        if self.fault == Break::LateFlushPoint {
            point = self.ring.flush_point();
        }
        if let Some(anchor) = self.ring.advance(point) {
            self.write_anchor(anchor);
        }
    }

    fn write_anchor(&mut self, anchor: Anchor) {
        let mut bytes = vec![0; BLOCK];
        anchor.encode(&mut bytes);
        let block = if self.fault == Break::OneAnchorBlock { 0 } else { anchor.block() };
        for copy in 0..self.copies.len() {
            self.flights.push(Flight { copy, block, bytes: bytes.clone(), record: None });
        }
        self.anchor_flights += self.copies.len();
        if self.fault == Break::EarlySpace && anchor.generation > 1 {
            let (_, next) = self.ring.anchored();
            next.into_iter().for_each(|a| self.write_anchor(a));
        }
    }

    /// What the copies and members may hold when the power goes now.
    fn cut(&mut self) -> (Vec<Vec<u8>>, BTreeMap<Cell, u64>) {
        let mut copies = self.copies.clone();
        let mode = self.rng.below(6);
        for flight in &self.flights {
            let sectors = match mode {
                0 => 0,
                1 => 0xff,
                _ => match self.rng.below(4) {
                    0 => 0,
                    1 => 0xff,
                    2 => 1 << self.rng.below(8),
                    _ => self.rng.below(256),
                },
            };
            for sector in (0..8).filter(|s| sectors >> s & 1 == 1) {
                let at = sector * 512;
                copies[flight.copy][flight.block as usize * BLOCK + at..][..512]
                    .copy_from_slice(&flight.bytes[at..at + 512]);
            }
            // A sector is written whole or not at all, but a drive may fail to read one whose writing was cut off.
            if flight.record.is_none() && mode > 1 && self.rng.one_in(4) {
                copies[flight.copy][flight.block as usize * BLOCK..][..512].fill(0xee);
            }
        }
        let mut members = BTreeMap::new();
        for (cell, held) in &self.cells {
            let mut may = vec![held.durable];
            may.extend(&held.cached);
            members.insert(*cell, may[self.rng.below(may.len())]);
        }
        for (cell, tag, _) in &self.member_flights {
            if self.rng.one_in(2) {
                members.insert(*cell, *tag);
            }
        }
        (copies, members)
    }

    /// What the records from the tail to the end leave in force.
    fn expected(&self, tail: u64, end: u64) -> InForce {
        let mut lists = InForce::default();
        for record in &self.records[tail as usize - 1..end as usize - 1] {
            for w in record.writes.iter().filter(|w| w.entry.kind == Kind::Intent) {
                let row = (w.entry.stripe, w.entry.row);
                lists.iter_mut().for_each(|l| l.retain(|c, _| (c.0, c.1) != row));
            }
            let [settled, later, intents] = &mut lists;
            for w in &record.writes {
                let list = if w.entry.kind == Kind::Intent { &mut *intents } else { &mut *later };
                list.insert(cell_of(w), w.tag);
            }
            // Parity covers all that its row has.
            let payload = record.writes.iter().filter(|w| w.entry.kind == Kind::Payload);
            for w in payload.filter(|w| w.entry.column == COLUMNS - 1) {
                let row = (w.entry.stripe, w.entry.row);
                settled.extend(later.iter().filter(|(c, _)| (c.0, c.1) == row).map(|(c, t)| (*c, *t)));
                later.retain(|c, _| (c.0, c.1) != row);
            }
        }
        lists
    }

    /// Scans, and judges what is found.
    fn scan(&mut self, copies: &[Vec<u8>]) -> Result<(Replay, InForce), String> {
        let (piece, seed) = (1 + self.rng.below(20) as u32, self.rng.next());
        let mut driver = Driver { piece, seed, data_columns: COLUMNS - 1, ..Driver::default() };
        let replay = driver.run(copies, self.blocks).map_err(|f| f.to_string())?;
        let summary = replay.summary;
        let last = self.records.len() as u64;
        if replay.anchor.generation < self.anchors_durable {
            return Err(format!("an old anchor, {:?}", replay.anchor));
        }
        if summary.end <= self.ring.counted() || summary.end > last + 1 {
            return Err(format!("{summary:?} with {} counted of {last}", self.ring.counted()));
        }
        if !replay.rot.is_empty() {
            return Err(format!("rot that is none: {:?}", replay.rot));
        }
        let tags = self.records.iter().flat_map(|r| r.writes.iter().map(|w| w.tag));
        let found = lists(&replay, copies, tags)
            .map(|list| list.into_iter().map(|i| ((i.0, i.1, i.2), i.3)).collect::<BTreeMap<_, _>>());
        let expected = self.expected(replay.anchor.tail, summary.end);
        if found != expected {
            return Err(format!("found {found:?}, expected {expected:?}"));
        }
        Ok((replay, found))
    }

    /// Replays to the end, and looks at what the members hold.
    fn judge(&self, members: &BTreeMap<Cell, u64>, in_force: &InForce, end: u64) -> Result<(), String> {
        let [settled, later, _] = in_force;
        let mut members = members.clone();
        members.extend(settled);
        // Rows that were never written past the journal hold exactly what their newest parity covers, in all columns: that
        // is what makes them consistent.
        let past = self.records.iter().filter(|r| r.past).flat_map(|r| r.members.iter().map(|m| (m.0.0, m.0.1)));
        let past: BTreeSet<RowKey> = past.collect();
        let [covered, _, _] = self.expected(1, end);
        for (cell, holds) in members.iter().filter(|(c, _)| !past.contains(&(c.0, c.1))) {
            let should = covered.get(cell).copied().unwrap_or(0);
            if *holds != should {
                return Err(format!("{cell:?} holds {holds}, parity before {end} covers {should}"));
            }
        }
        members.extend(later);
        for (cell, promised) in &self.promised {
            let holds = members.get(cell).copied().unwrap_or(0);
            if holds < *promised {
                return Err(format!("{cell:?} holds {holds}, promised was {promised}"));
            }
        }
        Ok(())
    }

    /// Cuts the power, looks at what is left, recovers, and in the middle of that cuts it again.
    fn crash(&mut self) -> Result<(), String> {
        let (mut copies, members) = self.cut();
        let spoiled = copies.len() > 1 && self.rng.one_in(4);
        if spoiled {
            // Rot, or bad blocks, on one copy.
            let copy = self.rng.below(copies.len());
            for _ in 0..1 + self.rng.below(4) {
                let block = self.rng.below(self.blocks as usize);
                copies[copy][block * BLOCK + 100] ^= 4;
            }
        }
        let (replay, mut in_force) = self.scan(&copies)?;
        let end = replay.summary.end;
        if self.fault == Break::NoRevoke {
            let records = &self.records[replay.anchor.tail as usize - 1..end as usize - 1];
            let listed = records.iter().flat_map(|r| &r.writes).filter(|w| w.entry.kind == Kind::Payload);
            in_force[1] = listed.map(|w| (cell_of(w), w.tag)).collect();
        }
        if self.fault == Break::NewestOnly {
            let later = std::mem::take(&mut in_force[1]);
            in_force[0].extend(later);
        }
        self.judge(&members, &in_force, end)?;
        if spoiled || self.fault == Break::NoRevoke {
            return Ok(());
        }
        // The second cut: the copies are equal, a part of the rows is written, and one copy only comes back.
        if self.fault != Break::NoRepair {
            for r in &replay.repairs {
                let at = r.block as usize * BLOCK;
                let bytes = copies[usize::from(r.from)][at..at + BLOCK].to_vec();
                for (copy, all) in copies.iter_mut().enumerate() {
                    if r.to >> copy & 1 == 1 {
                        all[at..at + BLOCK].copy_from_slice(&bytes);
                    }
                }
            }
        }
        let mut half = members;
        half.extend(in_force[0].iter().filter(|_| self.rng.one_in(2)));
        let left = self.rng.below(copies.len());
        let (again, in_force) = self.scan(&copies[left..left + 1])?;
        self.judge(&half, &in_force, again.summary.end)?;
        if again.summary.end != end && self.fault != Break::NoRepair {
            return Err(format!("copy {left} ends at {}, all of them together at {end}", again.summary.end));
        }
        Ok(())
    }
}

/// Runs a writer, with a cut after every step. Returns the cuts tried.
fn run(seed: u64, fault: Break) -> Result<u64, String> {
    let mut world = World::new(seed, fault);
    let mut cuts = 0;
    for step in 0..250 {
        world.step();
        world.crash().map_err(|e| format!("seed {seed}, step {step}: {e}"))?;
        cuts += 1;
    }
    Ok(cuts)
}

#[test]
fn no_cut_loses_what_counted_or_brings_back_what_was_replaced() {
    let mut cuts = 0;
    for seed in 0..100 {
        cuts += run(seed, Break::Nothing).unwrap_or_else(|e| panic!("{e}"));
    }
    assert_eq!(cuts, 25_000);
}

/// The load reaches what it is to test: rings go around, with payload and intents in force, with records in flight.
#[test]
fn the_load_is_not_idle() {
    let (mut laps, mut records, mut past, mut later, mut anchors, mut full, mut gaps) = (0, 0, 0, 0, 0, 0, 0);
    for seed in 0..40 {
        let mut world = World::new(seed, Break::Nothing);
        for _ in 0..250 {
            world.step();
            full += usize::from(world.ring.usage().used == world.ring.usage().capacity);
            let late = world.records.iter().skip_while(|r| r.counted);
            gaps += usize::from(late.skip(1).any(|r| r.flights_left == 0));
        }
        let payload = |r: &Record| r.writes.iter().filter(|w| w.entry.kind == Kind::Payload).count();
        laps += world.records.iter().map(|r| 1 + payload(r)).sum::<usize>() / world.blocks as usize;
        records += world.records.len();
        past += world.records.iter().filter(|r| r.past).count();
        later += usize::from(!world.expected(1, world.records.len() as u64 + 1)[1].is_empty());
        anchors += world.anchors_durable;
    }
    let counts = [laps, records, past, later, anchors as usize, full, gaps];
    let least = [40, 700, 100, 20, 100, 100, 200];
    assert!(counts.iter().zip(least).all(|(c, l)| *c >= l), "{counts:?}");
}

#[test]
fn every_mistake_is_found() {
    for (fault, word) in [
        (Break::NoFlush, "holds"),
        (Break::LateFlushPoint, "holds"),
        (Break::EarlySpace, ""),
        (Break::NoIntent, "promised"),
        (Break::EarlyRevoke, "promised"),
        (Break::NoRevoke, "promised"),
        (Break::NewestOnly, "parity before"),
        (Break::EarlyMembers, "parity before"),
        (Break::EarlyAck, "promised"),
        (Break::LyingDurable, "rot that is none"),
        (Break::NoRepair, "parity before"),
        (Break::OneAnchorBlock, "anchor"),
    ] {
        let found = (0..60).find_map(|seed| run(seed, fault).err());
        let found = found.unwrap_or_else(|| panic!("{fault:?} is not found"));
        assert!(found.contains(word), "{fault:?} was found by another check: {found}");
    }
}
