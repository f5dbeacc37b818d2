//! What a host queue has still to send: headers that it holds, and payload that the caller holds.

use crate::tcp::digest;
use std::collections::VecDeque;

/// A piece of the outgoing stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outgoing<'a> {
    /// Bytes that the queue holds: headers, padding, digests, inline data.
    Bytes(&'a [u8]),
    /// Bytes that the caller holds.
    Payload {
        /// The command's tag.
        tag: u64,
        /// From this byte of its data on.
        offset: u32,
        /// So many bytes.
        len: u32,
    },
}

#[derive(Debug, Clone, Copy)]
enum Segment {
    Bytes { len: usize },
    Payload { slot: u16, tag: u64, offset: u32, len: u32 },
}

/// A data digest that waits for the caller's bytes. Its place in the stream is reserved.
#[derive(Debug, Clone, Copy)]
struct PendingDigest {
    at: u64,
    tag: u64,
    offset: u32,
    len: u32,
}

/// Outgoing pieces in order. Grows to its working size and then stays there.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    bytes: Vec<u8>,
    /// Position of `bytes[0]` among all bytes that were ever pushed.
    base: u64,
    /// Position of the first byte not sent.
    head: u64,
    segments: VecDeque<Segment>,
    digests: VecDeque<PendingDigest>,
}

impl Outbox {
    pub fn with_capacity(commands: usize) -> Outbox {
        Outbox {
            bytes: Vec::with_capacity(commands * 128 + 2048),
            segments: VecDeque::with_capacity(commands * 4),
            digests: VecDeque::with_capacity(commands * 2),
            ..Outbox::default()
        }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let sent = (self.head - self.base) as usize;
        if sent == self.bytes.len() || self.bytes.len() + bytes.len() > self.bytes.capacity() {
            self.bytes.drain(..sent);
            self.base = self.head;
        }
        self.bytes.extend_from_slice(bytes);
        match self.segments.back_mut() {
            Some(Segment::Bytes { len }) => *len += bytes.len(),
            _ => self.segments.push_back(Segment::Bytes { len: bytes.len() }),
        }
    }

    /// Payload of the caller, and room for its digest if one is wanted.
    pub fn push_payload(&mut self, slot: u16, tag: u64, offset: u32, len: u32, with_digest: bool) {
        self.segments.push_back(Segment::Payload { slot, tag, offset, len });
        if with_digest {
            self.push(&[0; 4]);
            self.digests.push_back(PendingDigest { at: self.end() - 4, tag, offset, len });
        }
    }

    /// Position behind the last byte that was pushed.
    pub fn end(&self) -> u64 {
        self.base + self.bytes.len() as u64
    }

    /// Position of the first byte not sent.
    pub fn head(&self) -> u64 {
        self.head
    }

    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    pub fn resolve_digests<'p>(&mut self, payload: impl Fn(u64) -> &'p [u8]) {
        while let Some(pending) = self.digests.pop_front() {
            let data = &payload(pending.tag)[pending.offset as usize..][..pending.len as usize];
            // Sent already means that the caller did not ask in time; the controller will see a wrong digest.
            if let Some(at) = pending.at.checked_sub(self.base) {
                self.bytes[at as usize..][..4].copy_from_slice(&digest::wire(data));
            }
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = Outgoing<'_>> {
        let mut at = (self.head - self.base) as usize;
        self.segments.iter().map(move |segment| match *segment {
            Segment::Bytes { len } => {
                let bytes = &self.bytes[at..at + len];
                at += len;
                Outgoing::Bytes(bytes)
            }
            Segment::Payload { tag, offset, len, .. } => Outgoing::Payload { tag, offset, len },
        })
    }

    /// So many bytes of the stream have left. `payload_sent` hears of each slot whose piece of payload is complete.
    pub fn sent(&mut self, mut count: usize, mut payload_sent: impl FnMut(u16)) {
        while let Some(segment) = self.segments.front_mut() {
            let whole = match segment {
                Segment::Bytes { len } => {
                    let now = count.min(*len);
                    *len -= now;
                    count -= now;
                    self.head += now as u64;
                    *len == 0
                }
                Segment::Payload { slot, offset, len, .. } => {
                    let now = count.min(*len as usize);
                    *len -= now as u32;
                    *offset += now as u32;
                    count -= now;
                    if *len == 0 {
                        payload_sent(*slot);
                    }
                    *len == 0
                }
            };
            if !whole {
                break;
            }
            self.segments.pop_front();
        }
        debug_assert_eq!(count, 0, "more bytes sent than there were");
    }
}

#[cfg(test)]
impl Outbox {
    pub fn capacities(&self) -> [usize; 3] {
        [self.bytes.capacity(), self.segments.capacity(), self.digests.capacity()]
    }
}
