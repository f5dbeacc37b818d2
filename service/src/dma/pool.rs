//! Slots of one reactor's region, by size class.
//!
//! Spans of a little over 1 MiB are taken from the region when a class has no slot left, and given back when all their
//! slots are free, so that a pool which served 4 KiB requests can serve 1 MiB ones afterwards. Each class may keep one
//! free span, so that one slot that comes and goes does not take and give back a span each time; it is taken away from
//! the class when another one needs it. Every operation takes constant time, and none allocates once the first has
//! made the tables.

use raid_core::action::BufAddr;

use super::Memory;

/// Bytes of a span's useful part.
const SPAN: u64 = 1 << 20;
/// Room in a span for the stagger of its slots.
const STAGGER: u64 = 64 << 10;
/// Slot sizes in bytes.
const CLASSES: [u32; 6] = [4 << 10, 16 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20];
const SPAN_SIZE: u64 = SPAN + STAGGER;
const NONE: u32 = u32::MAX;
/// Instead of a class: the span is free.
const NO_CLASS: u8 = u8::MAX;
/// Instead of a class: the span was reserved.
const RESERVED: u8 = u8::MAX - 1;

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
    used: u16,
    /// Slots from this index on were never handed out since the span was taken.
    fresh: u16,
    /// Slots below `fresh` that came back.
    free: Vec<u16>,
    /// Neighbours in the list of spans of this class that have a free slot.
    next: u32,
    previous: u32,
}

impl Span {
    fn is_full(&self) -> bool {
        self.free.is_empty() && self.fresh == slots_in_span(self.class as usize)
    }
}

fn slots_in_span(class: usize) -> u16 {
    (SPAN / u64::from(CLASSES[class])) as u16
}

/// Slots of one region. Belongs to one reactor.
pub struct Pool {
    memory: Memory,
    region: u16,
    spans: Vec<Span>,
    empty: Vec<u32>,
    heads: [u32; CLASSES.len()],
    /// Bytes reserved at the region's end, before spans were made.
    reserved: u64,
    /// Spans reserved later.
    reserved_spans: u64,
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
            spans: Vec::new(),
            empty: Vec::new(),
            heads: [NONE; CLASSES.len()],
            reserved: 0,
            reserved_spans: 0,
            started: false,
            stats: PoolStats { size, ..PoolStats::default() },
            _not_send: std::marker::PhantomData,
        }
    }

    /// All regions.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Takes `len` bytes out of the region for good, starting at a multiple of 4096. `None` if there is no such run of
    /// free bytes. Best asked for before the first slot is; afterwards it costs whole spans, and a walk over them.
    pub fn reserve(&mut self, len: u64) -> Option<BufAddr> {
        let len = len.next_multiple_of(4096);
        let end = self.stats.size - self.reserved;
        let spans_end = self.spans.len() as u64 * SPAN_SIZE;
        if let Some(begin) = end.checked_sub(len)
            && begin >= spans_end
        {
            self.reserved += len;
            return Some(BufAddr::new(self.region, begin));
        }
        for class in 0..CLASSES.len() {
            let head = self.heads[class];
            if head != NONE && self.spans[head as usize].used == 0 {
                self.give_back(head);
            }
        }
        // From the end, because slots are taken from the beginning.
        let count = usize::try_from(len.div_ceil(SPAN_SIZE)).ok()?;
        let first = self.spans.windows(count.max(1)).rposition(|run| run.iter().all(|s| s.class == NO_CLASS))?;
        self.spans[first..first + count].iter_mut().for_each(|s| s.class = RESERVED);
        self.reserved_spans += count as u64;
        self.empty.retain(|s| !(first..first + count).contains(&(*s as usize)));
        Some(BufAddr::new(self.region, first as u64 * SPAN_SIZE))
    }

    /// Bytes of the region that slots may take: what was not reserved.
    pub fn usable(&self) -> u64 {
        self.stats.size - self.reserved - self.reserved_spans * SPAN_SIZE
    }

    fn start(&mut self) {
        self.started = true;
        let count = (self.stats.size - self.reserved) / SPAN_SIZE;
        self.spans = (0..count)
            .map(|_| Span {
                class: NO_CLASS,
                used: 0,
                fresh: 0,
                free: Vec::with_capacity(slots_in_span(0) as usize),
                next: NONE,
                previous: NONE,
            })
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
        let index = span.free.pop().unwrap_or_else(|| {
            span.fresh += 1;
            span.fresh - 1
        });
        span.used += 1;
        if span.is_full() {
            self.unlist(id);
        }
        self.stats.used += u64::from(CLASSES[class]);
        self.stats.high_water = self.stats.high_water.max(self.stats.used);
        Some(Slot { addr: self.address(id, class, index), len: CLASSES[class], span: id, index })
    }

    /// Gives a slot back. Panics when it is another pool's: it would be handed out twice.
    pub fn free(&mut self, slot: Slot) {
        assert_eq!(slot.addr.region(), self.region, "{slot:?} was given back to the pool of another region");
        let span = &mut self.spans[slot.span as usize];
        let was_full = span.is_full();
        span.used -= 1;
        span.free.push(slot.index);
        self.stats.used -= u64::from(slot.len);
        let empty = span.used == 0;
        let class = span.class as usize;
        if was_full {
            // A free span is kept only while its class has no other one with room.
            let head = self.heads[class];
            if head != NONE && self.spans[head as usize].used == 0 {
                self.give_back(head);
            }
            self.list(slot.span);
        }
        let alone = self.heads[class] == slot.span && self.spans[slot.span as usize].next == NONE;
        if empty && !alone {
            self.give_back(slot.span);
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
        let base = u64::from(span) * SPAN_SIZE;
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
        if self.empty.is_empty() {
            // A class keeps a free span only where it is alone in its list, so the heads are the only ones to look at.
            let kept = self.heads.iter().copied().find(|head| *head != NONE && self.spans[*head as usize].used == 0);
            if let Some(head) = kept {
                self.give_back(head);
            }
        }
        let Some(id) = self.empty.pop() else { return false };
        self.spans[id as usize].class = class as u8;
        self.list(id);
        true
    }

    /// Takes a free span away from its class.
    fn give_back(&mut self, id: u32) {
        self.unlist(id);
        let span = &mut self.spans[id as usize];
        span.class = NO_CLASS;
        span.fresh = 0;
        span.free.clear();
        self.empty.push(id);
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
