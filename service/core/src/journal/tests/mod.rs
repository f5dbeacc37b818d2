//! Tests of the journal. This file has what they share: rings in memory, and a driver for scans.

mod crash;
mod format;
mod hostile;
mod ring;
mod scan;

use std::collections::BTreeSet;

use super::*;
use crate::action::VolumeId;

const BLOCK: usize = 4096;

const IDENTITY: Identity = Identity { array: [0xa7; 16], volume: VolumeId(3), shard: 5 };
const EPOCH: Epoch = Epoch { number: 7, nonce: 0x5eed_5eed_5eed_5eed };

/// A small generator: the same seed, the same run.
struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// A block whose content says which write it is.
fn content(tag: u64) -> Vec<u8> {
    tag.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes().repeat(BLOCK / 8)
}

fn crc_of(tag: u64) -> u32 {
    crc32c::crc32c(&content(tag))
}

/// An entry and the content that it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Write {
    entry: Entry,
    tag: u64,
}

fn payload(stripe: u32, row: u16, column: u16, tag: u64) -> Write {
    Write { entry: Entry { group: 0, stripe, row, column, kind: Kind::Payload }, tag }
}

fn intent(stripe: u32, row: u16, column: u16, tag: u64) -> Write {
    Write { entry: Entry { kind: Kind::Intent, ..payload(stripe, row, column, tag).entry }, tag }
}

/// The blocks of a record, its header first.
fn record_bytes(ring: &mut Ring, place: &Place, writes: &[Write]) -> Vec<u8> {
    let mut bytes = vec![0xff; BLOCK];
    ring.compose(place, writes.iter().map(|w| w.entry), &mut bytes);
    seal(&mut bytes, writes.iter().map(|w| crc_of(w.tag)));
    writes.iter().filter(|w| w.entry.kind == Kind::Payload).for_each(|w| bytes.extend(content(w.tag)));
    bytes
}

/// The blocks of a place, in the order of its bytes.
fn blocks_of(place: &Place) -> impl Iterator<Item = u32> + use<> {
    place.parts().into_iter().flat_map(|(first, count)| first..first + count)
}

/// A ring on some copies, written at once and in order.
struct Bench {
    ring: Ring,
    blocks: u32,
    copies: Vec<Vec<u8>>,
    places: Vec<Place>,
}

impl Bench {
    fn new(copies: usize, blocks: u32) -> Bench {
        let (mut ring, anchor) = Ring::new(IDENTITY, EPOCH, blocks);
        assert_eq!(ring.append(0), None, "nothing may be appended before the first anchor is durable");
        assert_eq!(ring.anchored(), (1..1, None));
        let mut bench =
            Bench { ring, blocks, copies: vec![vec![0; blocks as usize * BLOCK]; copies], places: Vec::new() };
        bench.anchor(&anchor);
        bench
    }

    fn block_mut(&mut self, copy: usize, block: u32) -> &mut [u8] {
        &mut self.copies[copy][block as usize * BLOCK..][..BLOCK]
    }

    fn anchor(&mut self, anchor: &Anchor) {
        for copy in 0..self.copies.len() {
            anchor.encode(self.block_mut(copy, anchor.block()));
        }
    }

    /// Takes the place of a record and writes it to some copies.
    fn put(&mut self, writes: &[Write], copies: &[usize]) -> Place {
        let payload = writes.iter().filter(|w| w.entry.kind == Kind::Payload).count() as u16;
        let place = self.ring.append(payload).expect("room in the ring");
        let bytes = record_bytes(&mut self.ring, &place, writes);
        for copy in copies {
            for (block, bytes) in blocks_of(&place).zip(bytes.chunks(BLOCK)) {
                self.block_mut(*copy, block).copy_from_slice(bytes);
            }
        }
        self.places.push(place);
        place
    }

    /// A record that counts.
    fn record(&mut self, writes: &[Write]) -> Place {
        let all: Vec<usize> = (0..self.copies.len()).collect();
        let place = self.put(writes, &all);
        assert_eq!(self.ring.durable(place.sequence), place.sequence..place.sequence + 1);
        place
    }

    /// Writes the members of a record, flushes them, and moves the tail.
    fn release(&mut self, sequence: u64) {
        self.ring.written(sequence);
        let point = self.ring.flush_point();
        let anchor = self.ring.advance(point).expect("an anchor");
        self.anchor(&anchor);
        assert_eq!(self.ring.anchored().1, None);
    }

    /// Spoils a block on some copies.
    fn spoil(&mut self, block: u32, copies: &[usize]) {
        for copy in copies {
            self.block_mut(*copy, block)[100] ^= 0x10;
        }
    }

    fn scan(&self) -> Result<Replay, Fault> {
        Driver::default().run(&self.copies, self.blocks)
    }

    fn replay(&self) -> Replay {
        self.scan().expect("a ring with an anchor")
    }
}

/// Runs a scan, in pieces of some size, answering in a seeded order.
struct Driver {
    piece: u32,
    data_columns: u16,
    seed: u64,
    /// (copy, block) that cannot be read.
    unreadable: BTreeSet<(u8, u32)>,
    reads: u64,
    blocks: u64,
}

impl Default for Driver {
    fn default() -> Driver {
        Driver { piece: 16, data_columns: 8, seed: 1, unreadable: BTreeSet::new(), reads: 0, blocks: 0 }
    }
}

impl Driver {
    fn run(&mut self, copies: &[Vec<u8>], blocks: u32) -> Result<Replay, Fault> {
        let shape = Shape {
            identity: IDENTITY,
            copies: copies.len() as u8,
            blocks,
            piece: self.piece,
            data_columns: self.data_columns,
        };
        self.drive(shape, |read| {
            copies[usize::from(read.copy)][read.block as usize * BLOCK..][..read.count as usize * BLOCK].to_vec()
        })
    }

    fn drive(&mut self, shape: Shape, mut give: impl FnMut(Read) -> Vec<u8>) -> Result<Replay, Fault> {
        let mut rng = Dice::new(self.seed);
        let mut scan = Scan::new(shape);
        let mut waiting: Vec<Read> = Vec::new();
        let mut before = 0;
        loop {
            while let Some(read) = scan.next_read() {
                assert!(read.copy < shape.copies && read.count >= 1 && read.count <= shape.piece.max(2), "{read:?}");
                assert!(read.block + read.count <= shape.blocks, "{read:?} goes past the ring");
                assert!(waiting.iter().all(|r| r.copy != read.copy), "two reads of one copy at a time");
                waiting.push(read);
            }
            let progress = scan.progress();
            assert!(before <= progress.done && progress.done <= progress.total);
            before = progress.done;
            if waiting.is_empty() {
                break;
            }
            let read = waiting.swap_remove(rng.below(waiting.len()));
            (self.reads, self.blocks) = (self.reads + 1, self.blocks + u64::from(read.count));
            let fails = (read.block..read.block + read.count).any(|b| self.unreadable.contains(&(read.copy, b)));
            if fails {
                scan.complete(read, Err(()));
            } else {
                scan.complete(read, Ok(&give(read)));
            }
        }
        assert!(scan.is_done(), "the scan asks for nothing and is not done: {:?}", scan.progress());
        assert_eq!(scan.progress().done, shape.blocks);
        scan.finish()
    }
}

/// What a replay would do, in short: (stripe, row, column, tag), the payload's bytes looked up.
type Short = Vec<(u32, u16, u16, u64)>;

/// Turns a replay into tags, by their checksums, and checks the order and the payload's bytes. Settled, later, intents.
fn lists(replay: &Replay, copies: &[Vec<u8>], tags: impl IntoIterator<Item = u64>) -> [Short; 3] {
    let by_crc: std::collections::BTreeMap<u32, u64> = tags.into_iter().map(|t| (crc_of(t), t)).collect();
    let mut found = [Vec::new(), Vec::new(), Vec::new()];
    let mut last = None;
    for row in replay.rows() {
        assert!(last < Some(row.id), "rows are sorted and come once");
        last = Some(row.id);
        assert!(row.settled.len() + row.later.len() + row.intents.len() > 0);
        for list in [row.settled, row.later, row.intents] {
            assert!(list.windows(2).all(|w| w[0].column < w[1].column), "one item for each column, in order");
            assert!(list.iter().all(|i| i.id == row.id));
        }
        for (list, found) in [row.settled, row.later, row.intents].into_iter().zip(&mut found) {
            for item in list {
                let tag = by_crc[&item.crc];
                if item.kind == Kind::Payload {
                    let at = item.payload.expect("a payload that was found");
                    let bytes = &copies[usize::from(at.copy)][at.block as usize * BLOCK..][..BLOCK];
                    assert_eq!(bytes, content(tag), "{item:?}");
                }
                found.push((row.id.stripe, row.id.row, item.column, tag));
            }
        }
    }
    found
}

/// The same where there is no parity: payloads and intents.
fn short(replay: &Replay, copies: &[Vec<u8>], tags: impl IntoIterator<Item = u64>) -> (Short, Short) {
    let [settled, later, intents] = lists(replay, copies, tags);
    assert_eq!(settled, []);
    (later, intents)
}
