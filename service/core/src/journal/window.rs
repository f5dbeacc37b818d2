//! The blocks of a ring that a scan looks at together: what each copy holds there, without the bytes.

use super::format::{Epoch, Header, Identity, RawEntry, decode_header};
use super::scan::Read;
use crate::units::BLOCK_SIZE;

/// How far one copy has been read.
#[derive(Clone, Copy, Debug, Default)]
struct Fetch {
    next: u32,
    end: u32,
    /// A longer read has failed: one block at a time, so that a bad block costs only itself.
    singly: bool,
    busy: bool,
}

/// What is left to read of a range, on all copies at once: they are on different members.
#[derive(Debug)]
pub(super) struct Fetches(Vec<Fetch>);

impl Fetches {
    pub(super) fn new(copies: u8) -> Fetches {
        Fetches(vec![Fetch::default(); usize::from(copies)])
    }

    pub(super) fn begin(&mut self, block: u32, count: u32) {
        self.0.fill(Fetch { next: block, end: block + count, singly: false, busy: false });
    }

    pub(super) fn next_read(&mut self) -> Option<Read> {
        let (copy, fetch) = self.0.iter_mut().enumerate().find(|(_, f)| !f.busy && f.next < f.end)?;
        fetch.busy = true;
        Some(fetch.read(copy as u8))
    }

    /// Notes an answer. False if nothing like it was asked for.
    pub(super) fn answer(&mut self, read: Read, ok: bool) -> bool {
        let Some(fetch) = self.0.get_mut(usize::from(read.copy)) else { return false };
        if !fetch.busy || fetch.read(read.copy) != read {
            return false;
        }
        fetch.busy = false;
        if ok || read.count == 1 {
            fetch.next += read.count;
        } else {
            fetch.singly = true;
        }
        true
    }

    pub(super) fn is_done(&self) -> bool {
        self.0.iter().all(|f| f.next == f.end)
    }
}

impl Fetch {
    fn read(&self, copy: u8) -> Read {
        Read { copy, block: self.next, count: if self.singly { 1 } else { self.end - self.next } }
    }
}

const NIL: u32 = u32::MAX;

/// A valid header, found on some copies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub(super) header: Header,
    /// Its copies, as a bit mask.
    pub(super) copies: u8,
    entries: (u32, u32),
    /// Another header at the same block: copies may differ.
    next: u32,
}

/// The blocks of one piece.
#[derive(Debug)]
pub(super) struct Window {
    first: u32,
    count: u32,
    /// The checksum of each block on each copy, if it could be read.
    sums: Vec<Option<u32>>,
    /// By block, the start of its list of headers.
    lists: Vec<u32>,
    heads: Vec<Head>,
    entries: Vec<RawEntry>,
}

impl Window {
    pub(super) fn new() -> Window {
        Window { first: 0, count: 0, sums: Vec::new(), lists: Vec::new(), heads: Vec::new(), entries: Vec::new() }
    }

    pub(super) fn begin(&mut self, copies: u8, first: u32, count: u32) {
        (self.first, self.count) = (first, count);
        self.sums.clear();
        self.sums.resize(usize::from(copies) * count as usize, None);
        self.lists.clear();
        self.lists.resize(count as usize, NIL);
        self.heads.clear();
        self.entries.clear();
    }

    pub(super) fn blocks(&self) -> std::ops::Range<u32> {
        self.first..self.first + self.count
    }

    /// Takes in what a copy holds from `read.block` on.
    pub(super) fn take(&mut self, read: Read, bytes: &[u8], identity: &Identity, epoch: Epoch) {
        for (block, bytes) in (read.block..).zip(bytes.chunks_exact(BLOCK_SIZE as usize)) {
            let n = (block - self.first) as usize;
            self.sums[usize::from(read.copy) * self.count as usize + n] = Some(crc32c::crc32c(bytes));
            let start = self.entries.len();
            if let Some(header) = decode_header(bytes, identity, epoch, block, &mut self.entries) {
                self.add(n, read.copy, header, start);
            }
        }
    }

    /// Adds a header, or the copy to an equal one: usually all copies are alike and only one is kept.
    fn add(&mut self, n: usize, copy: u8, header: Header, start: usize) {
        let mut at = self.lists[n];
        while let Some(head) = self.heads.get_mut(at as usize) {
            let same = self.entries[head.entries.0 as usize..head.entries.1 as usize] == self.entries[start..];
            if head.header == header && same {
                head.copies |= 1 << copy;
                self.entries.truncate(start);
                return;
            }
            at = head.next;
        }
        let entries = (start as u32, self.entries.len() as u32);
        self.heads.push(Head { header, copies: 1 << copy, entries, next: self.lists[n] });
        self.lists[n] = self.heads.len() as u32 - 1;
    }

    /// The headers that stand at a block.
    pub(super) fn heads(&self, block: u32) -> impl Iterator<Item = &Head> {
        let first = self.lists[(block - self.first) as usize];
        std::iter::successors(self.heads.get(first as usize), |h| self.heads.get(h.next as usize))
    }

    pub(super) fn entries(&self, head: &Head) -> &[RawEntry] {
        &self.entries[head.entries.0 as usize..head.entries.1 as usize]
    }

    /// The copies on which a block has this checksum, as a bit mask.
    pub(super) fn having(&self, block: u32, crc: u32) -> u8 {
        let n = (block - self.first) as usize;
        let column = self.sums.iter().skip(n).step_by(self.count as usize);
        column.enumerate().fold(0, |mask, (copy, sum)| mask | u8::from(*sum == Some(crc)) << copy)
    }
}
