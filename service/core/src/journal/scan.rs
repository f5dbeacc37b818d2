//! Reading a ring after a crash.
//!
//! The scan reads the anchors of all copies, takes the newest, and then walks the blocks from its tail around the ring, each
//! block once, whatever it finds. So it is linear in the size of the ring, and the last valid record is found even if many
//! before it are not.
//!
//! A record that no copy has whole is either *torn* (it was being written when the power went) or *rot* (it counted). What
//! tells is a later record that says `durable >= sequence`: it was composed after the record had become durable. With a
//! torn one the replay ends. Nothing from there on counted, so nothing of it has reached a member. Rot is reported, and
//! replay goes on behind it. Which of the two it is may be known only at the other end of the ring; items are kept until
//! then and cut off at the end.

use std::cmp::Reverse;
use std::collections::VecDeque;

use super::format::{Anchor, FIRST_BLOCK, INTENT, Identity, Kind, PAYLOAD, RawEntry, has_payload};
use super::replay::{Fault, Item, Payload, Repair, Replay, Rot, RowId, Summary, resolve};
use super::window::{Fetches, Head, Window};
use crate::units::BLOCK_SIZE;

/// Most copies of a ring: as many as a mask of them has bits.
const COPIES_MAX: u8 = 8;
/// From so many items on, what is out of date is thrown away on the way, each time when the number has doubled.
/// In tests at once, so that every one of them goes that way.
const COMPACT_FROM: usize = if cfg!(test) { 4 } else { 1 << 16 };

/// What is to be scanned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Whose ring.
    pub identity: Identity,
    /// Copies that may be read, 1 to 8. A copy whose member has failed or is stale must not be among them.
    pub copies: u8,
    /// Blocks of the ring, anchors included.
    pub blocks: u32,
    /// Most blocks of one read, at least 1.
    pub piece: u32,
    /// Columns from this one on hold parity.
    pub data_columns: u16,
}

/// A read that the scan asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// Of which copy.
    pub copy: u8,
    /// From which block on.
    pub block: u32,
    /// How many blocks.
    pub count: u32,
}

/// How far a scan is, in blocks of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Blocks done with.
    pub done: u32,
    /// All blocks.
    pub total: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Anchors,
    Records,
    Done,
}

/// Records that no copy has whole.
#[derive(Debug)]
struct Bad {
    first: u64,
    last: u64,
    /// The position where the first one begins.
    at: u64,
    places: Vec<(RowId, u16)>,
}

/// The record whose payload is being checked.
#[derive(Debug)]
struct Current {
    sequence: u64,
    /// The position of its header.
    at: u64,
    /// The next of its entries to look at.
    entry: usize,
    /// Payload blocks to come.
    left: u16,
}

/// A scan of one ring. Take reads out with [`Scan::next_read`] until there is none, bring the bytes back in any order with
/// [`Scan::complete`], and take more, until [`Scan::finish`] has the answer.
#[derive(Debug)]
pub struct Scan {
    shape: Shape,
    phase: Phase,
    fetches: Fetches,
    window: Window,
    /// The anchors that were found, by copy and block.
    anchors: Vec<(u8, u32, Anchor)>,
    /// The newest one.
    anchor: Option<Anchor>,
    /// Its block, and the copies that have it there, as a bit mask.
    anchor_at: (u32, u8),
    /// Blocks walked since the tail.
    walked: u64,
    /// The next record's number.
    expected: u64,
    /// The position where it should begin: right behind the last valid record.
    expected_at: u64,
    /// The newest record that is known to have counted.
    durable: u64,
    current: Option<Current>,
    /// The entries of `current`.
    entries: Vec<RawEntry>,
    items: Vec<Item>,
    compact_at: usize,
    bad: Vec<Bad>,
    /// Blocks that some copies do not have, of records that are not known to have counted, with their sequence numbers.
    repairs: VecDeque<(u64, Repair)>,
    repaired: u64,
    /// The first entry of an unknown kind: its record and its kind.
    unknown: Option<(u64, u8)>,
}

impl Scan {
    /// Begins a scan.
    pub fn new(shape: Shape) -> Scan {
        let shape = Shape { copies: shape.copies.min(COPIES_MAX), piece: shape.piece.max(1), ..shape };
        let mut fetches = Fetches::new(shape.copies);
        let possible = shape.blocks > FIRST_BLOCK;
        if possible {
            fetches.begin(0, FIRST_BLOCK);
        }
        Scan {
            shape,
            phase: if possible { Phase::Anchors } else { Phase::Done },
            fetches,
            window: Window::new(),
            anchors: Vec::new(),
            anchor: None,
            anchor_at: (0, 0),
            walked: 0,
            expected: 0,
            expected_at: 0,
            durable: 0,
            current: None,
            entries: Vec::new(),
            items: Vec::new(),
            compact_at: COMPACT_FROM,
            bad: Vec::new(),
            repairs: VecDeque::new(),
            repaired: 0,
            unknown: None,
        }
    }

    /// The next read. `None` while all that can be asked for is on its way, and at the end.
    pub fn next_read(&mut self) -> Option<Read> {
        self.fetches.next_read()
    }

    /// The answer to a read: its bytes, or that the copy could not give them. A failed read of several blocks is asked for
    /// again, block by block. Bytes of a wrong length count as failed; an answer that nobody asked for is ignored.
    pub fn complete(&mut self, read: Read, result: Result<&[u8], ()>) {
        let bytes = result.ok().filter(|b| b.len() as u64 == u64::from(read.count) * u64::from(BLOCK_SIZE));
        if !self.fetches.answer(read, bytes.is_some()) {
            return;
        }
        if let Some(bytes) = bytes {
            match (self.phase, &self.anchor) {
                (Phase::Anchors, _) => self.take_anchors(read, bytes),
                (Phase::Records, Some(anchor)) => self.window.take(read, bytes, &self.shape.identity, anchor.epoch),
                _ => {}
            }
        }
        if self.fetches.is_done() {
            self.go_on();
        }
    }

    /// Nothing more is to be read.
    pub fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        let total = self.shape.blocks;
        let done = match self.phase {
            Phase::Anchors => 0,
            Phase::Records => FIRST_BLOCK + self.walked as u32,
            Phase::Done => total,
        };
        Progress { done, total }
    }

    /// The answer.
    ///
    /// # Panics
    /// If the scan is not done: it does not know what it has not seen, and half an answer would lose writes.
    pub fn finish(mut self) -> Result<Replay, Fault> {
        assert!(self.is_done(), "the scan is at {:?}", self.progress());
        let Identity { volume, shard, .. } = self.shape.identity;
        let anchor = self.anchor.ok_or(Fault::Lost { volume, shard })?;
        let durable = self.durable;
        // The first bad record that nobody says had counted ends the replay.
        let torn = self.bad.iter().find(|b| b.last > durable);
        let end = torn.map_or(self.expected, |b| b.first.max(durable + 1));
        let end_at = torn.map_or(self.expected_at, |b| b.at);
        if let Some((sequence, kind)) = self.unknown.filter(|u| u.0 < end) {
            return Err(Fault::Newer { volume, shard, sequence, kind });
        }
        let rot: Vec<Rot> = self
            .bad
            .into_iter()
            .filter(|b| b.first < end)
            .map(|b| Rot { first: b.first, last: b.last.min(end - 1), places: b.places })
            .collect();
        let lost: u64 = rot.iter().map(|r| r.last - r.first + 1).sum();
        self.items.retain(|i| i.sequence < end);
        resolve(&mut self.items, self.shape.data_columns);
        let (anchor_block, anchor_copies) = self.anchor_at;
        let mut repairs: Vec<Repair> = repair(self.shape.copies, anchor_block, anchor_copies).into_iter().collect();
        repairs.extend(self.repairs.iter().filter(|r| r.0 < end).map(|r| r.1));
        let summary = Summary {
            end,
            records: end - anchor.tail - lost,
            blocks: end_at,
            torn: self.expected - end,
            repaired: self.repaired + repairs.len() as u64,
        };
        let capacity = u64::from(self.shape.blocks - FIRST_BLOCK);
        let block = (u64::from(anchor.tail_block - FIRST_BLOCK) + self.expected_at) % capacity;
        let behind = (FIRST_BLOCK + block as u32, (capacity - self.expected_at) as u32);
        Ok(Replay::new(anchor, self.items, behind, repairs, rot, summary))
    }

    fn take_anchors(&mut self, read: Read, bytes: &[u8]) {
        for (block, bytes) in (read.block..).zip(bytes.chunks_exact(BLOCK_SIZE as usize)) {
            let found = Anchor::decode(bytes, &self.shape.identity, self.shape.blocks);
            self.anchors.extend(found.map(|a| (read.copy, block, a)));
        }
    }

    /// Of two anchors the one of the later epoch is the newer, and in an epoch the one with the higher generation. The order
    /// of the answers must not show, not even where copies contradict each other.
    fn choose_anchor(&mut self) {
        let newest = |(copy, block, a): &(u8, u32, Anchor)| (Reverse((a.epoch.number, a.generation)), *copy, *block);
        let Some((_, block, anchor)) = self.anchors.iter().min_by_key(|a| newest(a)).copied() else { return };
        let same = self.anchors.iter().filter(|a| (a.1, a.2) == (block, anchor));
        self.anchor_at = (block, same.fold(0, |mask, a| mask | 1 << a.0));
        self.anchor = Some(anchor);
    }

    /// A range has been read on all copies.
    fn go_on(&mut self) {
        if self.phase == Phase::Anchors {
            self.choose_anchor();
        }
        match (self.phase, self.anchor) {
            (Phase::Anchors, Some(anchor)) => {
                self.phase = Phase::Records;
                self.expected = anchor.tail;
                self.durable = anchor.tail - 1;
            }
            (Phase::Records, Some(_)) => {
                for block in self.window.blocks() {
                    self.step(block);
                    self.walked += 1;
                }
            }
            _ => {
                self.phase = Phase::Done;
                return;
            }
        }
        self.next_window();
    }

    fn capacity(&self) -> u64 {
        u64::from(self.shape.blocks - FIRST_BLOCK)
    }

    fn next_window(&mut self) {
        let left = (self.capacity() - self.walked) as u32;
        let Some(anchor) = self.anchor.filter(|_| left > 0) else {
            self.phase = Phase::Done;
            return;
        };
        let position = u64::from(anchor.tail_block - FIRST_BLOCK) + self.walked;
        let first = FIRST_BLOCK + (position % self.capacity()) as u32;
        let count = self.shape.piece.min(self.shape.blocks - first).min(left);
        self.window.begin(self.shape.copies, first, count);
        self.fetches.begin(first, count);
    }

    /// Looks at the next block.
    fn step(&mut self, block: u32) {
        if self.current.is_some() {
            self.payload(block);
            return;
        }
        // Where the next record should begin there is room for no other; behind it, each block may be one that is lost. Old
        // records have lower numbers, and whatever has a higher one than the lost blocks explain is no record of ours.
        let (expected, skipped) = (self.expected, self.walked - self.expected_at);
        let room = self.capacity() - self.walked - 1;
        let fits = |h: &&Head| {
            let sequence = h.header.sequence;
            sequence >= expected && sequence - expected <= skipped && u64::from(h.header.payload) <= room
        };
        let best = |h: &&Head| (h.header.sequence, Reverse(h.copies.trailing_zeros()));
        if let Some(head) = self.window.heads(block).filter(fits).max_by_key(best).copied() {
            self.begin_record(block, &head);
        }
    }

    fn begin_record(&mut self, block: u32, head: &Head) {
        let sequence = head.header.sequence;
        if sequence > self.expected {
            self.bad.push(Bad { first: self.expected, last: sequence - 1, at: self.expected_at, places: Vec::new() });
        }
        self.entries.clear();
        self.entries.extend_from_slice(self.window.entries(head));
        self.counted(head.header.durable);
        self.compare_copies(sequence, block, head.copies);
        for n in 0..self.entries.len() {
            let entry = self.entries[n];
            match entry.kind {
                INTENT => self.items.push(item(sequence, &entry, Kind::Intent, None)),
                PAYLOAD => {}
                kind => self.unknown = self.unknown.or(Some((sequence, kind))),
            }
        }
        self.current = Some(Current { sequence, at: self.walked, entry: 0, left: head.header.payload });
        self.end_record_if_whole();
    }

    /// Checks the next payload block of the current record.
    fn payload(&mut self, block: u32) {
        let Some(current) = &mut self.current else { return };
        let rest = self.entries.iter().enumerate().skip(current.entry);
        let Some((n, entry)) = rest.filter(|(_, e)| has_payload(e.kind)).map(|(n, e)| (n, *e)).next() else { return };
        current.entry = n + 1;
        current.left -= 1;
        let (sequence, at) = (current.sequence, current.at);
        let copies = self.window.having(block, entry.crc);
        let payload = (copies != 0).then(|| Payload { copy: copies.trailing_zeros() as u8, block });
        if payload.is_some() {
            self.compare_copies(sequence, block, copies);
        } else {
            if self.bad.last().is_none_or(|b| b.last < sequence) {
                self.bad.push(Bad { first: sequence, last: sequence, at, places: Vec::new() });
            }
            let place = (row_of(&entry), entry.column);
            self.bad.last_mut().into_iter().for_each(|b| b.places.push(place));
        }
        if entry.kind == PAYLOAD {
            self.items.push(item(sequence, &entry, Kind::Payload, payload));
        }
        self.end_record_if_whole();
    }

    fn end_record_if_whole(&mut self) {
        let Some(current) = self.current.take_if(|c| c.left == 0) else { return };
        self.expected = current.sequence + 1;
        self.expected_at = self.walked + 1;
        // Only while everything so far will be taken. What is cut off later must not have displaced anything.
        let settled = self.bad.last().is_none_or(|b| b.last <= self.durable);
        if settled && self.items.len() > self.compact_at {
            resolve(&mut self.items, self.shape.data_columns);
            self.compact_at = COMPACT_FROM.max(2 * self.items.len());
        }
    }

    /// All records up to `durable` are known to have counted: each copy had them.
    fn counted(&mut self, durable: u64) {
        self.durable = self.durable.max(durable);
        while self.repairs.front().is_some_and(|r| r.0 <= self.durable) {
            self.repairs.pop_front();
            self.repaired += 1;
        }
    }

    /// Notes the copies that do not have a block of a record.
    fn compare_copies(&mut self, sequence: u64, block: u32, having: u8) {
        let Some(repair) = repair(self.shape.copies, block, having) else { return };
        if sequence <= self.durable {
            self.repaired += 1;
        } else {
            self.repairs.push_back((sequence, repair));
        }
    }
}

/// What makes a block equal on all copies, if only some have it.
fn repair(copies: u8, block: u32, having: u8) -> Option<Repair> {
    let all = ((1u16 << copies) - 1) as u8;
    let to = all & !having;
    (to != 0).then(|| Repair { block, from: having.trailing_zeros() as u8, to })
}

fn row_of(entry: &RawEntry) -> RowId {
    RowId { group: entry.group, stripe: entry.stripe, row: entry.row }
}

fn item(sequence: u64, entry: &RawEntry, kind: Kind, payload: Option<Payload>) -> Item {
    Item { id: row_of(entry), column: entry.column, kind, later: false, sequence, crc: entry.crc, payload }
}
