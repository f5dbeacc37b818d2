//! Slots of one reactor's region, by size class.
//!
//! Spans of a little over 1 MiB are taken from the region when a class has no slot left, and given back when all their
//! slots are free, so that a pool which served 4 KiB requests can serve 1 MiB ones afterwards.

use raid_core::action::BufAddr;

use super::Memory;

/// Bytes of a span's useful part.
const SPAN: u64 = 1 << 20;
/// Room in a span for the stagger of its slots.
const STAGGER: u64 = 64 << 10;
/// Slot sizes in bytes.
const CLASSES: [u32; 6] = [4 << 10, 16 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20];
const NONE: u32 = u32::MAX;

/// A piece of the region. Not `Clone`: who holds it owns the bytes.
#[derive(Debug)]
pub struct Slot {
    addr: BufAddr,
    len: u32,
    span: u32,
    index: u16,
}

impl Slot {
    /// Where it starts.
    pub fn addr(&self) -> BufAddr {
        self.addr
    }

    /// Its size in bytes, at least what was asked for.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Never true; a slot has at least 4096 bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Use of a pool, in bytes and counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Bytes in slots that are handed out.
    pub used: u64,
    /// The most that `used` ever was.
    pub high_water: u64,
    /// Allocations that found no room.
    pub failures: u64,
    /// Bytes of the region.
    pub size: u64,
}

struct Span {
    class: u8,
    used: u32,
    free: Vec<u16>,
    /// Neighbours in the list of spans of this class that have a free slot.
    next: u32,
    previous: u32,
}

/// Slots of one region. Belongs to one reactor.
pub struct Pool {
    memory: Memory,
    region: u16,
    first_span: u64,
    spans: Vec<Span>,
    empty: Vec<u32>,
    heads: [u32; CLASSES.len()],
    reserved: u64,
    started: bool,
    stats: PoolStats,
    /// A pool must not move between threads: `Slot`s of one region have one owner.
    _not_send: std::marker::PhantomData<*mut u8>,
}

impl Pool {
    /// The pool of region `region`. There must be one pool only for each region.
    pub fn new(memory: Memory, region: u16) -> Pool {
        let size = memory.region(region).1 as u64;
        Pool {
            memory,
            region,
            first_span: 0,
            spans: Vec::new(),
            empty: Vec::new(),
            heads: [NONE; CLASSES.len()],
            reserved: 0,
            started: false,
            stats: PoolStats { size, ..PoolStats::default() },
            _not_send: std::marker::PhantomData,
        }
    }

    /// All regions.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Takes `len` bytes out of the region for good, from its end. `None` if they are not free.
    pub fn reserve(&mut self, len: u64) -> Option<BufAddr> {
        let len = len.next_multiple_of(4096);
        let end = self.stats.size - self.reserved;
        let begin = end.checked_sub(len)?;
        // Spans are taken from the list's end, lowest address first, so those at the region's end are the last to be used.
        let spans_end = if self.started { self.first_span + self.spans.len() as u64 * (SPAN + STAGGER) } else { 0 };
        if self.started && begin < spans_end {
            let cut = (spans_end - begin).div_ceil(SPAN + STAGGER) as usize;
            let keep = self.spans.len().checked_sub(cut)?;
            if self.spans[keep..].iter().any(|s| s.used > 0 || s.class != u8::MAX) {
                return None;
            }
            self.spans.truncate(keep);
            self.empty.retain(|s| (*s as usize) < keep);
        }
        self.reserved += len;
        Some(BufAddr::new(self.region, begin))
    }

    /// Bytes of the region that slots may take: what was not reserved.
    pub fn usable(&self) -> u64 {
        self.stats.size - self.reserved
    }

    fn start(&mut self) {
        self.started = true;
        let count = (self.stats.size - self.reserved) / (SPAN + STAGGER);
        self.spans = (0..count)
            .map(|_| Span { class: u8::MAX, used: 0, free: Vec::with_capacity(256), next: NONE, previous: NONE })
            .collect();
        self.empty = (0..count as u32).rev().collect();
    }

    /// A slot of at least `len` bytes, at most 1 MiB. `None` when there is none: wait until one is freed.
    pub fn alloc(&mut self, len: u32) -> Option<Slot> {
        if !self.started {
            self.start();
        }
        let class = CLASSES.iter().position(|c| *c >= len)?;
        if self.heads[class] == NONE && !self.take_span(class) {
            self.stats.failures += 1;
            return None;
        }
        let id = self.heads[class];
        let span = &mut self.spans[id as usize];
        let index = span.free.pop().expect("a listed span has a free slot");
        span.used += 1;
        if span.free.is_empty() {
            self.unlist(id);
        }
        self.stats.used += u64::from(CLASSES[class]);
        self.stats.high_water = self.stats.high_water.max(self.stats.used);
        Some(Slot { addr: self.address(id, class, index), len: CLASSES[class], span: id, index })
    }

    /// Gives a slot back.
    pub fn free(&mut self, slot: Slot) {
        let span = &mut self.spans[slot.span as usize];
        let class = span.class as usize;
        span.used -= 1;
        span.free.push(slot.index);
        self.stats.used -= u64::from(slot.len);
        if span.free.len() == 1 {
            self.list(slot.span);
        }
        if self.spans[slot.span as usize].used == 0 && (class >= 4 || self.empty.len() < 4) {
            self.unlist(slot.span);
            let span = &mut self.spans[slot.span as usize];
            span.class = u8::MAX;
            span.free.clear();
            self.empty.push(slot.span);
        }
    }

    /// A slot's bytes, for sockets and metadata. Only while no device or engine has the address.
    pub fn bytes<'a>(&'a self, slot: &'a Slot) -> &'a [u8] {
        let ptr = self.memory.ptr(slot.addr, slot.len as usize);
        // SAFETY: the range was checked, and the slot's holder owns the bytes (module head).
        unsafe { std::slice::from_raw_parts(ptr, slot.len as usize) }
    }

    /// A slot's bytes, to be written. Only while no device or engine has the address.
    pub fn bytes_mut<'a>(&'a mut self, slot: &'a mut Slot) -> &'a mut [u8] {
        let ptr = self.memory.ptr(slot.addr, slot.len as usize);
        // SAFETY: as in `bytes`; the slot is borrowed for writing.
        unsafe { std::slice::from_raw_parts_mut(ptr, slot.len as usize) }
    }

    /// Use so far.
    pub fn stats(&self) -> PoolStats {
        self.stats
    }

    fn address(&self, span: u32, class: usize, index: u16) -> BufAddr {
        let base = self.first_span + u64::from(span) * (SPAN + STAGGER);
        let size = u64::from(CLASSES[class]);
        // Page-aligned starts of large buffers fall into the same cache sets and halve the speed of parity.
        let stagger = if size < 16 << 10 {
            0
        } else {
            (u64::from(span) * 3 + u64::from(index)) % 8 * 512 + u64::from(index) * 4096
        };
        let room = STAGGER - 4096;
        BufAddr::new(self.region, base + u64::from(index) * size + stagger.min(room) / 512 * 512)
    }

    fn take_span(&mut self, class: usize) -> bool {
        let Some(id) = self.empty.pop() else { return false };
        let span = &mut self.spans[id as usize];
        span.class = class as u8;
        span.free.extend((0..(SPAN / u64::from(CLASSES[class])) as u16).rev());
        self.list(id);
        true
    }

    fn list(&mut self, id: u32) {
        let class = self.spans[id as usize].class as usize;
        let head = self.heads[class];
        self.spans[id as usize].next = head;
        self.spans[id as usize].previous = NONE;
        if head != NONE {
            self.spans[head as usize].previous = id;
        }
        self.heads[class] = id;
    }

    fn unlist(&mut self, id: u32) {
        let (next, previous, class) = {
            let span = &self.spans[id as usize];
            (span.next, span.previous, span.class as usize)
        };
        if previous == NONE {
            self.heads[class] = next;
        } else {
            self.spans[previous as usize].next = next;
        }
        if next != NONE {
            self.spans[next as usize].previous = previous;
        }
    }
}
