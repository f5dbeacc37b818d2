//! The writer's bookkeeping: where records go, which of them count, and when their space may be used again.
//!
//! ```text
//!          released,           written to members,      counts, not yet      in flight:
//!  free    anchor in flight    maybe in a cache         written              does not count
//! ───────┼───────────────────┼───────────────────────┼────────────────────┼────────────────┼─ free
//!      reusable            tail                written_to             counted          next
//! ```
//!
//! Each border moves to the right only, and never past the one to its right. What that prevents:
//!
//! - A record *counts* only when it and all before it are durable on all live copies. If it counted alone, a crash could
//!   lose an older one, and replay, which has to stop at the gap, would not find it.
//! - Nothing of a record may reach a member before it counts. That is the caller's to keep; [`Ring::written`] checks it.
//! - The tail moves only past records whose member writes are durable, or a crash would lose them with the cache.
//! - A write past the journal revokes the row's older records with its intent. While their member writes may be in a cache
//!   only, that would give up acknowledged data before the new data is there: such a row has to wait, or go through the
//!   journal. [`Ring::may_bypass`] tells.
//! - Space is free only when the anchor that leaves it behind is durable: an older anchor still leads replay into it.
//! - Before the first anchor of an epoch is durable, nothing counts, because a crash would lead replay to the epoch before it.
//!   For the same reason the records of that epoch are not overwritten until then.
//! - One anchor is in flight at a time. Two would be in both anchor blocks at once, and a crash could tear them both.

use std::collections::VecDeque;
use std::ops::Range;

use super::format::{Anchor, ENTRIES_MAX, Entry, Epoch, FIRST_BLOCK, Identity, Kind, compose};
use super::replay::Replay;

/// A place in the ring for one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The record's sequence number.
    pub sequence: u64,
    /// The block of its header.
    pub block: u32,
    /// Its payload blocks, which follow the header.
    pub payload: u16,
    /// The newest record that counts, as the header will say.
    pub durable: u64,
    /// Blocks up to the ring's end, if the record goes on at [`FIRST_BLOCK`]; otherwise all of them.
    before_wrap: u32,
}

impl Place {
    /// The record's blocks as one or two runs of (first block, count), in the order of its bytes. The second may be empty.
    pub const fn parts(&self) -> [(u32, u32); 2] {
        let blocks = 1 + self.payload as u32;
        [(self.block, self.before_wrap), (FIRST_BLOCK, blocks - self.before_wrap)]
    }
}

/// How full a ring is. Sizes are in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Blocks for records.
    pub capacity: u32,
    /// Blocks that cannot be appended to.
    pub used: u32,
    /// Of these, blocks that are free as soon as an anchor is durable.
    pub released: u32,
    /// Of these, blocks of records whose member writes have completed: a flush of the members and an anchor free them.
    pub written: u32,
    /// Records that are not released.
    pub records: u32,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    blocks: u16,
    durable: bool,
    written: bool,
}

/// The ring of one shard, as long as one epoch lasts. Everything is reserved when it is made.
#[derive(Debug)]
pub struct Ring {
    identity: Identity,
    epoch: Epoch,
    blocks: u32,
    /// The block where the epoch began.
    start: u32,
    /// Blocks that may be used before the first anchor is durable.
    room: u32,
    /// The first anchor is durable.
    open: bool,
    /// The records from `tail` on.
    slots: VecDeque<Slot>,
    /// The oldest record that is not released.
    tail: u64,
    /// All records up to here are written to the members.
    written_to: u64,
    /// All records up to here count.
    counted: u64,
    /// The next record's number.
    next: u64,
    // Positions count blocks since the epoch began, from `start` on.
    reusable_at: u64,
    tail_at: u64,
    written_at: u64,
    next_at: u64,
    /// The newest anchor's generation.
    generation: u64,
    /// The newest anchor's tail.
    anchor_at: u64,
    /// It is not yet durable.
    anchoring: bool,
    /// By a hash of the stripe, the newest record with payload for it. Stripes may share a place: then one looks as recent as
    /// the other, which costs a bypass and nothing else. Nothing is ever taken out, because the tail outdates it.
    recent: Box<[u64]>,
}

impl Ring {
    /// A ring that is new on disk, and its first anchor. Its anchor blocks must have been cleared on all copies. Nothing can
    /// be appended before the anchor is durable and [`Ring::anchored`] was called.
    ///
    /// # Panics
    /// If a ring of `blocks` blocks has no room for a record.
    pub fn new(identity: Identity, epoch: Epoch, blocks: u32) -> (Ring, Anchor) {
        Ring::begin(identity, epoch, blocks, 0, FIRST_BLOCK, 0)
    }

    /// A new epoch after a replay, and its first anchor. The anchor may be written when all that was replayed is durable on
    /// the members. What must not be written to the members without a journal can be appended before: it goes behind the
    /// old records and is durable, but does not count yet, and the anchor that is written then passes from the old records
    /// to the new ones at once.
    ///
    /// # Panics
    /// If the epoch's number is not higher than the one before: replay would take old records again.
    pub fn after(replay: &Replay, epoch: Epoch) -> (Ring, Anchor) {
        let Anchor { identity, blocks, generation, epoch: before, .. } = replay.anchor;
        assert!(epoch.number > before.number, "epoch {} does not follow {}", epoch.number, before.number);
        let (start, room) = replay.behind();
        Ring::begin(identity, epoch, blocks, generation, start, room)
    }

    fn begin(identity: Identity, epoch: Epoch, blocks: u32, generation: u64, start: u32, room: u32) -> (Ring, Anchor) {
        assert!(blocks > FIRST_BLOCK, "a ring of {blocks} blocks has no room for records");
        let mut ring = Ring {
            identity,
            epoch,
            blocks,
            start,
            room,
            open: false,
            slots: VecDeque::with_capacity((blocks - FIRST_BLOCK) as usize),
            tail: 1,
            written_to: 0,
            counted: 0,
            next: 1,
            reusable_at: 0,
            tail_at: 0,
            written_at: 0,
            next_at: 0,
            generation,
            anchor_at: 0,
            anchoring: false,
            recent: vec![0; (blocks as usize).next_power_of_two()].into(),
        };
        let anchor = ring.write_anchor();
        (ring, anchor)
    }

    /// The epoch.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The newest record that counts; 0 if none does.
    pub fn counted(&self) -> u64 {
        self.counted
    }

    /// How full it is.
    pub fn usage(&self) -> Usage {
        Usage {
            capacity: self.capacity(),
            used: self.capacity() - self.free(),
            released: (self.tail_at - self.reusable_at) as u32,
            written: (self.written_at - self.tail_at) as u32,
            records: self.slots.len() as u32,
        }
    }

    fn capacity(&self) -> u32 {
        self.blocks - FIRST_BLOCK
    }

    fn block(&self, position: u64) -> u32 {
        let position = position + u64::from(self.start - FIRST_BLOCK);
        FIRST_BLOCK + (position % u64::from(self.capacity())) as u32
    }

    fn free(&self) -> u32 {
        let room = if self.open { self.capacity() } else { self.room };
        room - (self.next_at - self.reusable_at) as u32
    }

    fn slot(&mut self, sequence: u64) -> Option<&mut Slot> {
        let index = sequence.checked_sub(self.tail)?;
        self.slots.get_mut(usize::try_from(index).ok()?)
    }

    /// Takes the place for a record with this many payload blocks. `None`: there is no room now. It comes when the member
    /// writes of the oldest records are done, the members are flushed, and an anchor is durable.
    pub fn append(&mut self, payload: u16) -> Option<Place> {
        debug_assert!(usize::from(payload) <= ENTRIES_MAX, "a record of {payload} payload blocks has no header");
        let blocks = 1 + u32::from(payload);
        if blocks > self.free() {
            return None;
        }
        let block = self.block(self.next_at);
        let place = Place {
            sequence: self.next,
            block,
            payload,
            durable: self.counted,
            before_wrap: blocks.min(self.blocks - block),
        };
        self.slots.push_back(Slot { blocks: blocks as u16, durable: false, written: false });
        self.next += 1;
        self.next_at += u64::from(blocks);
        self.check();
        Some(place)
    }

    /// Composes the header of the record at `place` in `header`, a block. The shell calls [`super::seal`] on it next.
    ///
    /// # Panics
    /// If `header` is not a block, there are more entries than [`ENTRIES_MAX`], or their payload blocks are not as many as
    /// the place has.
    pub fn compose(&mut self, place: &Place, entries: impl IntoIterator<Item = Entry>, header: &mut [u8]) {
        let mask = self.recent.len() - 1;
        let recent = &mut self.recent;
        let noted = entries.into_iter().inspect(|e| {
            if e.kind != Kind::Intent {
                recent[hash(e.group, e.stripe) & mask] = place.sequence;
            }
        });
        compose(header, &self.identity, self.epoch, place, noted);
    }

    /// Whether rows of this stripe may be written past the journal: no record with payload for it is left whose member writes
    /// may not be durable. If not, the write goes through the journal, or waits for a flush and [`Ring::advance`].
    pub fn may_bypass(&self, group: u32, stripe: u32) -> bool {
        self.recent[hash(group, stripe) & (self.recent.len() - 1)] < self.tail
    }

    /// A record is durable on all live copies. Returns the records that count from now on, often none or many.
    pub fn durable(&mut self, sequence: u64) -> Range<u64> {
        if let Some(slot) = self.slot(sequence) {
            debug_assert!(!slot.durable, "record {sequence} became durable twice");
            slot.durable = true;
        } else {
            debug_assert!(false, "record {sequence} is not in the ring");
        }
        self.count()
    }

    fn count(&mut self) -> Range<u64> {
        let before = self.counted;
        while self.open && self.slot(self.counted + 1).is_some_and(|s| s.durable) {
            self.counted += 1;
        }
        self.check();
        before + 1..self.counted + 1
    }

    /// The member writes of a record have completed; a member with a volatile cache may still hold them there.
    pub fn written(&mut self, sequence: u64) {
        debug_assert!(sequence <= self.counted, "record {sequence} was written to members before it counted");
        if let Some(slot) = self.slot(sequence) {
            debug_assert!(!slot.written, "record {sequence} was written to members twice");
            slot.written = true;
        } else {
            debug_assert!(false, "record {sequence} is not in the ring");
        }
        while self.written_to < self.counted {
            let next = self.written_to + 1;
            let Some(slot) = self.slot(next).filter(|s| s.written) else { break };
            self.written_at += u64::from(slot.blocks);
            self.written_to = next;
        }
        self.check();
    }

    /// The record up to which all are written to the members. Ask *before* the members' flush is ordered, and give the
    /// answer to [`Ring::advance`] when it is done: a flush covers the writes that were complete when it began.
    pub fn flush_point(&self) -> u64 {
        self.written_to
    }

    /// The member writes of all records up to `point` are durable (members without a volatile cache need no flush): moves the tail past them. Returns the anchor to be written
    /// to all copies, if there is something to say and no other anchor is in flight.
    pub fn advance(&mut self, point: u64) -> Option<Anchor> {
        debug_assert!(point <= self.written_to, "the tail would pass record {point}, written is {}", self.written_to);
        while self.tail <= point.min(self.written_to) {
            let slot = self.slots.pop_front()?;
            self.tail_at += u64::from(slot.blocks);
            self.tail += 1;
        }
        self.check();
        self.next_anchor()
    }

    /// The anchor in flight is durable on all live copies: the space before its tail may be used. Returns the next anchor to
    /// be written, if the tail has moved on, and the records that count from now on: with the first anchor of an epoch those
    /// that are durable already, and never any with a later one.
    pub fn anchored(&mut self) -> (Range<u64>, Option<Anchor>) {
        debug_assert!(self.anchoring, "no anchor is in flight");
        self.anchoring = false;
        self.reusable_at = self.anchor_at;
        self.open = true;
        let counted = self.count();
        (counted, self.next_anchor())
    }

    fn next_anchor(&mut self) -> Option<Anchor> {
        (!self.anchoring && self.anchor_at != self.tail_at).then(|| self.write_anchor())
    }

    fn write_anchor(&mut self) -> Anchor {
        self.generation += 1;
        self.anchoring = true;
        self.anchor_at = self.tail_at;
        Anchor {
            identity: self.identity,
            epoch: self.epoch,
            generation: self.generation,
            tail: self.tail,
            tail_block: self.block(self.tail_at),
            blocks: self.blocks,
        }
    }

    /// The borders are in order.
    fn check(&self) {
        debug_assert!(self.tail <= self.written_to + 1 && self.written_to <= self.counted && self.counted < self.next);
        debug_assert!(self.reusable_at <= self.anchor_at && self.anchor_at <= self.tail_at);
        debug_assert!(self.tail_at <= self.written_at && self.written_at <= self.next_at);
        debug_assert!(self.next_at - self.reusable_at <= u64::from(self.capacity()));
        debug_assert!(self.open || (self.counted == 0 && self.next_at <= u64::from(self.room)));
        debug_assert_eq!(self.slots.len() as u64, self.next - self.tail);
    }
}

fn hash(group: u32, stripe: u32) -> usize {
    let x = (u64::from(group) << 32 | u64::from(stripe)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x >> 32) as usize
}
