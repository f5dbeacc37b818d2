//! One loaded queue: a nonblocking socket, the commands in flight on it, and the bytes on their way in and out.
//!
//! A pass receives what is there (one `recv` brings many responses), refills the queue, and sends (one `writev` carries
//! many capsules). Data that is read is received into the thread's scratch and not looked at, unless it is verified or
//! has a digest. Nothing is allocated once the queue runs.

use std::collections::{BTreeMap, VecDeque};
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;

use nvme_wire::command::{Cqe, Sgl, Sqe, Status};
use nvme_wire::tcp::{C2HData, Digests, H2CData, R2T};

use super::connect::Connection;
use super::pdu::{Outgoing, Received, Receiver};
use crate::pattern::Pattern;
use crate::stats::Latencies;
use crate::verify::{self, Ledger};

/// Pieces to a `writev`.
const PIECES: usize = 128;
/// How often another unit is tried when one is in flight already (only with verification).
const TRIES: usize = 8;
/// How many wrong reads are described.
const EXAMPLES: usize = 5;

/// What a queue needs to know about the namespace and the controller.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub nsid: u32,
    /// Bytes of a logical block.
    pub block: u32,
    /// Bytes of each access.
    pub unit: usize,
    /// Commands in flight.
    pub depth: u16,
    /// The most data that may come inside a command capsule.
    pub inside: usize,
    pub seed: u64,
}

/// A command in flight.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    busy: bool,
    write: bool,
    unit: u64,
    /// The generation that is written or expected; 0 where nothing is expected.
    generation: u32,
    /// Bytes received, of a read.
    got: usize,
    /// Nanoseconds on the thread's clock.
    start: u64,
}

/// The data PDU that is being received.
#[derive(Clone, Copy, Debug, Default)]
struct Incoming {
    cid: u16,
    success: bool,
    /// Where the next byte belongs.
    offset: usize,
}

/// What a queue has counted.
#[derive(Clone)]
pub(super) struct Counts {
    pub reads: Latencies,
    pub writes: Latencies,
    pub errors: BTreeMap<u16, u64>,
    pub right: u64,
    pub wrong: u64,
    pub examples: Vec<String>,
}

impl Counts {
    pub fn new() -> Counts {
        Counts {
            reads: Latencies::new(),
            writes: Latencies::new(),
            errors: BTreeMap::new(),
            right: 0,
            wrong: 0,
            examples: vec![],
        }
    }

    /// Takes another's errors and verdicts in, not its latencies.
    pub fn add_outcomes(&mut self, other: &Counts) {
        self.right += other.right;
        self.wrong += other.wrong;
        self.examples.extend(other.examples.iter().cloned());
        for (status, n) in &other.errors {
            *self.errors.entry(*status).or_default() += n;
        }
    }
}

/// What the queue is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Keep the queue full.
    Load,
    /// Finish what is in flight.
    Drain,
    /// Read back what was written, from this unit on.
    ReadBack(u64),
}

/// See the module.
pub(super) struct Queue {
    stream: TcpStream,
    receiver: Receiver,
    digests: Digests,
    /// The most data that may come in one H2CData PDU.
    max_h2c: usize,
    limits: Limits,
    pattern: Pattern,
    ledger: Option<Ledger>,
    phase: Phase,
    slots: Vec<Slot>,
    free: Vec<u16>,
    /// One unit that all writes send; with verification one for each slot, for writes and reads.
    buffers: Vec<u8>,
    outgoing: VecDeque<Outgoing>,
    /// Bytes of the first outgoing PDU that are sent already.
    sent: usize,
    incoming: Incoming,
    pub counts: Counts,
}

impl Queue {
    /// A queue on a connected socket.
    pub fn new(connection: Connection, limits: Limits, pattern: Pattern, ledger: Option<Ledger>) -> Queue {
        let Connection { stream, receiver, max_h2c, .. } = connection;
        let depth = usize::from(limits.depth);
        let mut buffers = vec![0; if ledger.is_some() { depth * limits.unit } else { limits.unit }];
        let mut random = crate::pattern::Random::new(limits.seed);
        buffers.chunks_exact_mut(8).for_each(|c| c.copy_from_slice(&random.next().to_le_bytes()));
        Queue {
            stream,
            digests: receiver.digests(),
            receiver,
            max_h2c,
            limits,
            pattern,
            ledger,
            phase: Phase::Load,
            slots: vec![Slot::default(); depth],
            free: (0..limits.depth).rev().collect(),
            buffers,
            outgoing: VecDeque::with_capacity(depth * (2 + limits.unit / max_h2c.max(1))),
            sent: 0,
            incoming: Incoming::default(),
            counts: Counts::new(),
        }
    }

    /// From now on only what is in flight is finished.
    pub fn drain(&mut self) {
        self.phase = Phase::Drain;
    }

    /// From now on what was written is read back.
    pub fn read_back(&mut self) {
        self.phase = self.ledger.as_ref().map_or(Phase::Drain, |l| Phase::ReadBack(l.first()));
    }

    /// True if there is nothing to do and nothing is in flight.
    pub fn is_done(&self) -> bool {
        self.phase == Phase::Drain && self.free.len() == self.slots.len()
    }

    /// One `recv`, and what follows from it. True if something came.
    pub fn receive(&mut self, scratch: &mut [u8], clock: impl Fn() -> u64) -> Result<bool, String> {
        let n = match self.stream.read(scratch) {
            Ok(0) => return Err("the target closed the connection".into()),
            Ok(n) => n,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return Ok(false),
            Err(e) => return Err(format!("the connection broke: {e}")),
        };
        self.take(&scratch[..n], clock())?;
        Ok(true)
    }

    /// Takes received bytes in, wherever the stream was cut.
    fn take(&mut self, mut bytes: &[u8], now: u64) -> Result<(), String> {
        loop {
            match self.receiver.next(&mut bytes)? {
                Some(Received::Response(cqe)) => self.complete(cqe, now)?,
                Some(Received::Data(header)) => self.data_begins(&header)?,
                Some(Received::DataEnd) => self.data_ends(now)?,
                Some(Received::Wanted(r2t)) => self.send_data(&r2t)?,
                None if bytes.is_empty() => return Ok(()),
                None => {
                    let n = self.receiver.payload_left().min(bytes.len());
                    self.receiver.payload(&bytes[..n]);
                    self.data_received(&bytes[..n]);
                    bytes = &bytes[n..];
                }
            }
        }
    }

    fn data_begins(&mut self, header: &C2HData) -> Result<(), String> {
        let (cid, offset, len) = (header.cccid.get(), header.datao.get() as usize, header.datal.get() as usize);
        let slot = slot(&mut self.slots, cid)?;
        if slot.write || offset != slot.got || len > self.limits.unit - slot.got {
            return Err(format!("data for CID {cid} that it did not ask for: {len} bytes at {offset}"));
        }
        self.incoming = Incoming { cid, success: header.is_success(), offset };
        Ok(())
    }

    fn data_received(&mut self, bytes: &[u8]) {
        if self.ledger.is_some() {
            let at = usize::from(self.incoming.cid) * self.limits.unit + self.incoming.offset;
            self.buffers[at..at + bytes.len()].copy_from_slice(bytes);
        }
        self.incoming.offset += bytes.len();
    }

    /// The data PDU is complete.
    fn data_ends(&mut self, now: u64) -> Result<(), String> {
        let Incoming { cid, success, offset } = self.incoming;
        slot(&mut self.slots, cid)?.got = offset;
        if success { self.complete(Cqe::new(cid, 0, Status::SUCCESS), now) } else { Ok(()) }
    }

    /// A command has ended.
    fn complete(&mut self, cqe: Cqe, now: u64) -> Result<(), String> {
        let (cid, status) = (cqe.cid.get(), cqe.status());
        let unit_len = self.limits.unit;
        let slot = slot(&mut self.slots, cid)?;
        slot.busy = false;
        let done = *slot;
        self.free.push(cid);
        let mut holds = done.generation;
        if !status.is_success() {
            *self.counts.errors.entry(status.to_field()).or_default() += 1;
            if done.write {
                holds = 0;
            }
        } else if done.write {
            self.counts.writes.record(now.saturating_sub(done.start));
        } else {
            if done.got != unit_len {
                return Err(format!("a read of {unit_len} bytes succeeded with {} bytes", done.got));
            }
            self.counts.reads.record(now.saturating_sub(done.start));
        }
        if let Some(ledger) = &mut self.ledger {
            if !done.write && status.is_success() && done.generation != 0 {
                let data = &self.buffers[usize::from(cid) * unit_len..][..unit_len];
                match verify::check(data, done.unit * unit_len as u64, done.generation, self.limits.seed) {
                    Ok(()) => self.counts.right += 1,
                    Err(example) => {
                        self.counts.wrong += 1;
                        if self.counts.examples.len() < EXAMPLES {
                            self.counts.examples.push(example);
                        }
                    }
                }
            }
            ledger.end(done.unit, holds);
        }
        Ok(())
    }

    /// Starts commands until the queue is full, or there is nothing to do.
    pub fn fill(&mut self, now: u64) {
        while let Some(cid) = self.free.last().copied() {
            let Some((unit, write, generation)) = self.choose() else { return };
            self.free.pop();
            self.slots[usize::from(cid)] = Slot { busy: true, write, unit, generation, got: 0, start: now };
            self.start(cid, unit, write, generation);
        }
    }

    /// The next access: unit, direction and generation.
    fn choose(&mut self) -> Option<(u64, bool, u32)> {
        match (self.phase, &mut self.ledger) {
            (Phase::Load, None) => {
                let (unit, write) = self.pattern.next();
                Some((unit, write, 0))
            }
            (Phase::Load, Some(ledger)) => (0..TRIES).find_map(|_| {
                let (unit, write) = self.pattern.next();
                let generation = if write { ledger.begin_write(unit) } else { ledger.begin_read(unit) };
                generation.map(|g| (unit, write, g))
            }),
            (Phase::ReadBack(from), Some(ledger)) => {
                let Some(unit) = ledger.known_from(from) else {
                    self.phase = Phase::Drain;
                    return None;
                };
                self.phase = Phase::ReadBack(unit + 1);
                ledger.begin_read(unit).map(|g| (unit, false, g))
            }
            (Phase::Drain | Phase::ReadBack(_), _) => None,
        }
    }

    fn start(&mut self, cid: u16, unit: u64, write: bool, generation: u32) {
        let Limits { nsid, block, unit: len, inside, seed, .. } = self.limits;
        let blocks = len as u32 / block;
        let first = unit * u64::from(blocks);
        let mut sqe =
            if write { Sqe::write(cid, nsid, first, blocks, 0) } else { Sqe::read(cid, nsid, first, blocks, 0) };
        sqe.sgl = Sgl::transport(len as u32);
        let mut data = (0, 0);
        if write {
            let at = if self.ledger.is_some() { usize::from(cid) * len } else { 0 };
            if self.ledger.is_some() {
                verify::stamp(&mut self.buffers[at..at + len], unit * len as u64, generation, seed);
            }
            if len <= inside {
                data = (at, len);
                sqe.sgl = Sgl::in_capsule(len as u32);
            }
        }
        self.outgoing.push_back(Outgoing::command(sqe, self.digests, data, &self.buffers));
    }

    /// Answers an R2T.
    fn send_data(&mut self, r2t: &R2T) -> Result<(), String> {
        let (cid, tag) = (r2t.cccid.get(), r2t.ttag.get());
        let (offset, len) = (r2t.r2to.get() as usize, r2t.r2tl.get() as usize);
        let slot = slot(&mut self.slots, cid)?;
        if !slot.write || offset > self.limits.unit || len > self.limits.unit - offset {
            return Err(format!("an R2T for CID {cid} that does not fit: {len} bytes at {offset}"));
        }
        let base = if self.ledger.is_some() { usize::from(cid) * self.limits.unit } else { 0 };
        let end = offset + len;
        let mut at = offset;
        while at < end {
            let n = self.max_h2c.min(end - at);
            let header = H2CData::new(cid, tag, at as u32, n as u32, at + n == end, self.digests, 0);
            self.outgoing.push_back(Outgoing::data(header, self.digests, (base + at, n), &self.buffers));
            at += n;
        }
        Ok(())
    }

    /// Sends as much as the socket takes. True if something went out.
    pub fn flush(&mut self) -> Result<bool, String> {
        let mut any = false;
        while !self.outgoing.is_empty() {
            let mut pieces = [IoSlice::new(&[]); PIECES];
            let mut n = 0;
            let mut skip = self.sent;
            'fill: for pdu in &self.outgoing {
                for part in pdu.parts(&self.buffers) {
                    if skip >= part.len() {
                        skip -= part.len();
                        continue;
                    }
                    if n == PIECES {
                        break 'fill;
                    }
                    pieces[n] = IoSlice::new(&part[skip..]);
                    skip = 0;
                    n += 1;
                }
            }
            match self.stream.write_vectored(&pieces[..n]) {
                Ok(0) => return Err("the target takes no more bytes".into()),
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(any),
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(format!("the connection broke: {e}")),
            }
            any = true;
            while let Some(first) = self.outgoing.front() {
                if self.sent < first.len() {
                    break;
                }
                self.sent -= first.len();
                self.outgoing.pop_front();
            }
        }
        Ok(any)
    }
}

/// The command in flight with that identifier.
fn slot(slots: &mut [Slot], cid: u16) -> Result<&mut Slot, String> {
    match slots.get_mut(usize::from(cid)) {
        Some(slot) if slot.busy => Ok(slot),
        _ => Err(format!("the target answered CID {cid}, which is not in flight")),
    }
}
