//! Command buffers, and how a reactor's pool is shared among connections so that nobody's wait can be endless.
//!
//! A slot of an in-capsule write is given back by the device alone. A slot of a write by R2T is given back after the host
//! has sent the data, and that data may stand in the socket behind an in-capsule write that waits for a slot; a slot of a
//! read is given back after the host has taken the data. So the latter two may never take the whole pool: then in-capsule
//! writes always get their turn, sockets go on being read, and R2T data arrives.

use std::collections::VecDeque;

use crate::dma::{Pool, Slot};

/// A command's data.
#[derive(Debug, Default)]
pub enum Buffer {
    /// None, or not yet.
    #[default]
    None,
    /// A slot of the reactor's pool, with the share that it counts for.
    Pool(Slot, Use),
    /// Ordinary memory, for admin commands: they must be served when the pool is exhausted, too.
    Heap(Box<[u8]>),
}

impl Buffer {
    /// The bytes. Only while no device has them.
    pub fn bytes<'a>(&'a self, pool: &'a Pool) -> &'a [u8] {
        match self {
            Buffer::None => &[],
            Buffer::Pool(slot, _) => pool.bytes(slot),
            Buffer::Heap(bytes) => bytes,
        }
    }

    /// The bytes, to be written. Only while no device has them.
    pub fn bytes_mut<'a>(&'a mut self, pool: &'a mut Pool) -> &'a mut [u8] {
        match self {
            Buffer::None => &mut [],
            Buffer::Pool(slot, _) => pool.bytes_mut(slot),
            Buffer::Heap(bytes) => bytes,
        }
    }
}

/// What a slot is for: who has to act before it comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// An in-capsule write: only the device.
    Capsule,
    /// A write by R2T: the host must send, then the device.
    Ready,
    /// A read: the device, then the host must receive.
    Read,
}

/// A command that waits for a slot: connection and command, or no command if the connection's next capsule waits.
pub type Waiter = (u32, Option<u16>);

/// Shares of one reactor's pool, and who waits for them, first come first served within a use.
pub struct Shares {
    held: [u64; 3],
    waiting: [VecDeque<Waiter>; 3],
}

impl Default for Shares {
    fn default() -> Shares {
        Shares::new()
    }
}

impl Shares {
    /// All of the pool is free, and nobody waits.
    pub fn new() -> Shares {
        let line = || VecDeque::with_capacity(1024);
        Shares { held: [0; 3], waiting: [line(), line(), line()] }
    }

    fn room(&self, pool: &Pool, kind: Use, len: u32) -> bool {
        // Something must fit always: the smallest pool that works is two large slots and a bit.
        let share = |part: u64, of: u64| (pool.usable() * part / of).max(1 << 20);
        let more = u64::from(len);
        match kind {
            Use::Capsule => true,
            Use::Ready => self.held[Use::Ready as usize] + more <= share(1, 2),
            Use::Read => self.held[Use::Read as usize] + more <= share(3, 8),
        }
    }

    /// A slot, unless others wait for the same use or there is no room.
    pub fn take(&mut self, pool: &mut Pool, kind: Use, len: u32) -> Option<Buffer> {
        if self.waiting[kind as usize].is_empty() { self.take_now(pool, kind, len) } else { None }
    }

    /// A slot for the one whose turn it is.
    pub fn take_now(&mut self, pool: &mut Pool, kind: Use, len: u32) -> Option<Buffer> {
        if !self.room(pool, kind, len) {
            return None;
        }
        let slot = pool.alloc(len)?;
        self.held[kind as usize] += u64::from(slot.len());
        Some(Buffer::Pool(slot, kind))
    }

    /// Gives a buffer back.
    pub fn give(&mut self, pool: &mut Pool, buffer: Buffer) {
        if let Buffer::Pool(slot, kind) = buffer {
            self.held[kind as usize] -= u64::from(slot.len());
            pool.free(slot);
        }
    }

    /// Queues up.
    pub fn wait(&mut self, kind: Use, waiter: Waiter) {
        self.waiting[kind as usize].push_back(waiter);
    }

    /// Queues up at the head: it was its turn and there was no room.
    pub fn wait_on(&mut self, kind: Use, waiter: Waiter) {
        self.waiting[kind as usize].push_front(waiter);
    }

    /// Whose turn it is.
    pub fn next(&mut self, kind: Use) -> Option<Waiter> {
        self.waiting[kind as usize].pop_front()
    }

    /// How many wait for a use.
    pub fn count_waiting(&self, kind: Use) -> usize {
        self.waiting[kind as usize].len()
    }

    /// True if a connection other than this one waits for a use.
    pub fn others_wait(&self, kind: Use, connection: u32) -> bool {
        self.waiting[kind as usize].iter().any(|w| w.0 != connection)
    }

    /// True if anybody waits.
    pub fn any_waiting(&self) -> bool {
        self.waiting.iter().any(|w| !w.is_empty())
    }

    /// A connection is gone, and does not wait any more.
    pub fn forget(&mut self, connection: u32) {
        for waiting in &mut self.waiting {
            waiting.retain(|w| w.0 != connection);
        }
    }
}
