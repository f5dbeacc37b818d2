//! The host's side of one queue: a connection with its commands, without any I/O (sans-I/O).
//!
//! The caller owns the socket and the users' buffers. It submits commands with tags, sends what [`HostQueue::outgoing`]
//! or [`HostQueue::gather`] lists, and shows received bytes to [`HostQueue::next`], which says where payload belongs and
//! which commands are complete. Nothing is copied and, once warm, nothing is allocated.
//!
//! The rules that the Linux host enforces hold here too: an unknown or repeated CID, data for a write, more or less data
//! than was asked for, data out of order, an R2T beyond the command's data or while another is open: each ends the
//! connection with a typed error.

mod outbox;
#[cfg(test)]
mod tests;

use crate::command::{Cqe, Sgl, Sqe, Status};
use crate::fabrics::{CONNECT_DATA_LEN, ConnectCmd, ConnectData};
use crate::tcp::{
    C2HData, CapsuleCmd, Digests, Direction, Event, FABRICS_IN_CAPSULE, FatalError, Fes, Framer, H2CData, Header,
    ICReq, ICResp, Params, PduType, R2T, data_offset, digest,
};
use outbox::Outbox;
use std::collections::VecDeque;
use std::io::IoSlice;
use thiserror::Error;
use zerocopy::IntoBytes;

pub use outbox::Outgoing;

/// Commands in flight on one queue at most. Leaves four bits of the CID to tell a slot's uses apart.
pub const MAX_DEPTH: u16 = 4096;

/// A command's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data {
    /// None.
    None,
    /// The controller sends so many bytes.
    Read(u32),
    /// The host sends so many bytes, which the caller holds until the command completes.
    Write(u32),
}

/// Settings of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostConfig {
    /// Commands in flight at most, 1 to [`MAX_DEPTH`].
    pub depth: u16,
    /// Digests to ask for.
    pub digests: Digests,
    /// HPDA: alignment of received data, dwords, zero-based: 0 to 31.
    pub hpda: u8,
    /// Bytes of a write that go in the capsule at most. On an I/O queue what IOCCSZ says, and 0 is always right; on an
    /// admin queue 8192.
    pub max_in_capsule: u32,
}

impl HostConfig {
    /// For an admin queue.
    pub const fn admin(digests: Digests) -> HostConfig {
        HostConfig { depth: 31, digests, hpda: 0, max_in_capsule: FABRICS_IN_CAPSULE }
    }
}

/// Why a command was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SubmitError {
    /// All commands of the queue are in flight.
    #[error("the queue is full; take completions first")]
    Full,
    /// ICResp has not come yet.
    #[error("the connection is not initialized yet; wait for Connected")]
    NotReady,
    /// Inline data does not fit in a capsule.
    #[error("the data does not fit in a command capsule; hold it in a buffer and submit a write")]
    TooLarge,
}

/// Why a connection must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum HostError {
    /// The controller broke the transport's rules.
    #[error("the controller broke the NVMe/TCP protocol: {what} ({error})")]
    Protocol {
        /// What was wrong.
        what: &'static str,
        /// The status for an H2CTermReq.
        error: FatalError,
    },
    /// The controller sent a C2HTermReq.
    #[error("the controller terminated the connection: {} (information {fei:x}h)", Fes(*.fes))]
    Terminated {
        /// FES.
        fes: u16,
        /// FEI.
        fei: u32,
    },
    /// ICResp has other digests than were asked for.
    #[error("asked for header digest {}, data digest {}, but the controller answered {}, {}", .asked.header, .asked.data,
        .answered.header, .answered.data)]
    DigestMismatch {
        /// What was asked for.
        asked: Digests,
        /// What the controller answered.
        answered: Digests,
    },
}

impl From<FatalError> for HostError {
    fn from(error: FatalError) -> HostError {
        HostError::Protocol { what: "a malformed PDU", error }
    }
}

/// What received bytes amount to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostEvent {
    /// The buffer must hold at least so many bytes, from its start, before there is anything new. Never more than
    /// [`HostQueue::MAX_NEED`].
    NeedMore(usize),
    /// ICResp came: commands may be submitted.
    Connected,
    /// The next `len` bytes of the stream belong to the command's data, from `offset` on. Place what is in the buffer or
    /// receive straight to the place, then tell [`HostQueue::received`].
    Payload {
        /// The command's tag.
        tag: u64,
        /// Where in its data.
        offset: u32,
        /// Bytes.
        len: usize,
    },
    /// A command is complete; its tag is free.
    Completion {
        /// The command's tag.
        tag: u64,
        /// The completion. A wrong data digest shows as Data Transfer Error.
        cqe: Cqe,
    },
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    busy: bool,
    /// Differs between a slot's consecutive uses, so that a late or repeated completion is seen.
    generation: u16,
    tag: u64,
    data: Data,
    /// Bytes received (read) or asked for by R2Ts (write).
    done: u32,
    /// Pieces of payload that wait in the outbox.
    queued: u32,
    /// Data moves in data PDUs, not in the capsule.
    transport: bool,
    /// A received data digest was wrong.
    damaged: bool,
    /// Outbox position behind the capsule: a completion from before is a forgery.
    header_end: u64,
    /// A completion that waits until the caller's buffer is no longer being sent from.
    deferred: Option<Cqe>,
}

const FREE_SLOT: Slot = Slot {
    busy: false,
    generation: 0,
    tag: 0,
    data: Data::None,
    done: 0,
    queued: 0,
    transport: false,
    damaged: false,
    header_end: 0,
    deferred: None,
};

/// The data PDU whose payload is being received.
#[derive(Debug, Clone, Copy)]
struct Incoming {
    slot: u16,
    cid: u16,
    success: bool,
}

/// One queue's connection, seen from the host. See the module's text.
#[derive(Debug)]
pub struct HostQueue {
    config: HostConfig,
    framer: Framer,
    ready: bool,
    cpda: u8,
    maxh2cdata: u32,
    slots: Vec<Slot>,
    free: VecDeque<u16>,
    outbox: Outbox,
    incoming: Option<Incoming>,
    /// Slots whose deferred completion is due.
    due: VecDeque<u16>,
    index_bits: u32,
}

impl HostQueue {
    /// The longest [`HostEvent::NeedMore`]: a header with padding, or a TermReq.
    pub const MAX_NEED: usize = 259;

    /// A queue for a fresh connection. ICReq is its first outgoing PDU.
    pub fn new(config: HostConfig) -> HostQueue {
        let depth = config.depth.clamp(1, MAX_DEPTH);
        let config = HostConfig { depth, hpda: config.hpda.min(31), ..config };
        let mut outbox = Outbox::with_capacity(usize::from(depth));
        outbox.push(ICReq::new(config.hpda, config.digests).as_bytes());
        HostQueue {
            config,
            framer: Framer::new(Params::new(Direction::ToHost, 0, u32::MAX)),
            ready: false,
            cpda: 0,
            maxh2cdata: 0,
            slots: vec![FREE_SLOT; usize::from(depth)],
            free: (0..depth).collect(),
            outbox,
            incoming: None,
            due: VecDeque::with_capacity(usize::from(depth)),
            index_bits: u32::from(depth).next_power_of_two().trailing_zeros(),
        }
    }

    /// True once ICResp has come.
    pub const fn is_ready(&self) -> bool {
        self.ready
    }

    /// Commands in flight.
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Commands that may still be submitted.
    pub fn room(&self) -> usize {
        if self.ready { self.free.len() } else { 0 }
    }

    /// The tags of the commands in flight: those that failed, when the connection has ended.
    pub fn tags(&self) -> impl Iterator<Item = u64> + '_ {
        self.slots.iter().filter(|s| s.busy).map(|s| s.tag)
    }

    /// MAXH2CDATA of the controller, bytes. 0 until connected.
    pub const fn maxh2cdata(&self) -> u32 {
        self.maxh2cdata
    }

    /// Sets how many bytes of a write go in the capsule: IOCCSZ * 16 - 64 on an I/O queue.
    pub const fn set_max_in_capsule(&mut self, bytes: u32) {
        self.config.max_in_capsule = bytes;
    }

    /// Submits a command; its CID and SGL are set here. Completions and payload name it by `tag`, which must be unique
    /// among the commands in flight. A write's data is asked of the caller when it is sent.
    pub fn submit(&mut self, sqe: Sqe, data: Data, tag: u64) -> Result<(), SubmitError> {
        let (slot, cid) = self.claim(tag, data)?;
        let mut sqe = sqe;
        sqe.cid.set(cid);
        let in_capsule = match data {
            Data::None => {
                // An empty data block, as the Linux host sends it.
                sqe.sgl = Sgl::transport(0);
                0
            }
            Data::Read(len) => {
                sqe.sgl = Sgl::transport(len);
                self.slots[usize::from(slot)].transport = true;
                0
            }
            Data::Write(len) if len <= self.max_in_capsule(&sqe) => {
                sqe.sgl = Sgl::in_capsule(len);
                len
            }
            Data::Write(len) => {
                sqe.sgl = Sgl::transport(len);
                self.slots[usize::from(slot)].transport = true;
                0
            }
        };
        self.push_capsule(slot, sqe, in_capsule);
        if in_capsule > 0 {
            self.slots[usize::from(slot)].queued = 1;
            self.outbox.push_payload(slot, tag, 0, in_capsule, self.config.digests.data);
        }
        Ok(())
    }

    /// Submits a command with data that is copied into the capsule now: Connect, Dataset Management, Set Features.
    pub fn submit_inline(&mut self, sqe: Sqe, data: &[u8], tag: u64) -> Result<(), SubmitError> {
        let len = u32::try_from(data.len()).map_err(|_| SubmitError::TooLarge)?;
        if len > self.max_in_capsule(&sqe) {
            return Err(SubmitError::TooLarge);
        }
        let (slot, cid) = self.claim(tag, Data::Write(len))?;
        let mut sqe = sqe;
        sqe.cid.set(cid);
        sqe.sgl = Sgl::in_capsule(len);
        self.push_capsule(slot, sqe, len);
        self.outbox.push(data);
        if self.config.digests.data && len > 0 {
            self.outbox.push(&digest::wire(data));
        }
        self.slots[usize::from(slot)].header_end = self.outbox.end();
        Ok(())
    }

    /// Submits Connect for queue `qid`, with one entry more than the queue's depth: a queue is full with one entry free.
    pub fn connect(&mut self, qid: u16, kato_ms: u32, data: &ConnectData, tag: u64) -> Result<(), SubmitError> {
        const { assert!(CONNECT_DATA_LEN as u32 <= FABRICS_IN_CAPSULE) };
        let cmd = ConnectCmd::new(0, qid, u32::from(self.config.depth) + 1, kato_ms);
        self.submit_inline(cmd.into(), data.as_bytes(), tag)
    }

    /// What is to be sent, in order. With data digests call [`HostQueue::resolve_digests`] first.
    pub fn outgoing(&self) -> impl Iterator<Item = Outgoing<'_>> {
        self.outbox.iter()
    }

    /// True if there is something to send.
    pub fn has_outgoing(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Computes the data digests of payload that waits to be sent. `payload` gives a command's data by tag; the data must
    /// not change until it is sent.
    ///
    /// # Panics
    /// If a command's data is shorter than the length it was submitted with.
    pub fn resolve_digests<'p>(&mut self, payload: impl Fn(u64) -> &'p [u8]) {
        self.outbox.resolve_digests(payload);
    }

    /// Lists what is to be sent as slices for a vectored write, digests computed. Fills `slices` as far as it reaches and
    /// returns how many were filled. `payload` gives a command's data by tag.
    ///
    /// # Panics
    /// If a command's data is shorter than the length it was submitted with.
    pub fn gather<'a>(&'a mut self, payload: impl Fn(u64) -> &'a [u8] + Copy, slices: &mut [IoSlice<'a>]) -> usize {
        self.outbox.resolve_digests(payload);
        let mut count = 0;
        for (slice, outgoing) in slices.iter_mut().zip(self.outbox.iter()) {
            *slice = IoSlice::new(match outgoing {
                Outgoing::Bytes(bytes) => bytes,
                Outgoing::Payload { tag, offset, len } => &payload(tag)[offset as usize..][..len as usize],
            });
            count += 1;
        }
        count
    }

    /// So many bytes of the outgoing stream have left.
    pub fn sent(&mut self, bytes: usize) {
        let HostQueue { outbox, slots, due, .. } = self;
        outbox.sent(bytes, |index| {
            let slot = &mut slots[usize::from(index)];
            slot.queued -= 1;
            if slot.queued == 0 && slot.deferred.is_some() {
                due.push_back(index);
            }
        });
    }

    /// Looks at received bytes. Returns how many are used up and what they mean; call again with the rest until
    /// [`HostEvent::NeedMore`] or [`HostEvent::Payload`]. After an error the connection must be closed.
    pub fn next(&mut self, buf: &[u8]) -> Result<(usize, HostEvent), HostError> {
        if let Some(index) = self.due.pop_front()
            && let Some(cqe) = self.slots[usize::from(index)].deferred.take()
        {
            return Ok((0, self.finish(index, cqe)));
        }
        let mut used = 0;
        loop {
            let (count, event) = self.framer.next(&buf[used..])?;
            used += count;
            let done = match event {
                Event::NeedMore(len) => Some(HostEvent::NeedMore(len)),
                Event::Pdu { header: Header::ICResp(resp), .. } => Some(self.on_icresp(resp)?),
                Event::Pdu { header: Header::CapsuleResp(resp), .. } => self.on_response(resp.cqe)?,
                Event::Pdu { header: Header::R2T(r2t), .. } => {
                    self.on_r2t(r2t)?;
                    None
                }
                Event::Pdu { header: Header::TermReq(term), .. } => {
                    return Err(HostError::Terminated { fes: term.fes.get(), fei: term.fei.get() });
                }
                Event::Data(Header::C2HData(data)) => {
                    self.on_data(data)?;
                    None
                }
                Event::Payload(len) => Some(self.on_payload(len)?),
                Event::DataEnd { digest_ok } => self.on_data_end(digest_ok)?,
                Event::Pdu { .. } | Event::Data(_) => {
                    return Err(protocol("a PDU that only hosts send", FatalError::field(0)));
                }
            };
            if let Some(event) = done {
                return Ok((used, event));
            }
        }
    }

    /// `chunk` is the next piece of the payload that [`HostEvent::Payload`] announced, wherever it was placed.
    pub fn received(&mut self, chunk: &[u8]) {
        let count = chunk.len().min(self.framer.payload_left());
        self.framer.received(&chunk[..count]);
        if let Some(incoming) = self.incoming {
            self.slots[usize::from(incoming.slot)].done += count as u32;
        }
    }

    fn max_in_capsule(&self, sqe: &Sqe) -> u32 {
        if sqe.is_fabrics() { FABRICS_IN_CAPSULE } else { self.config.max_in_capsule }
    }

    fn claim(&mut self, tag: u64, data: Data) -> Result<(u16, u16), SubmitError> {
        if !self.ready {
            return Err(SubmitError::NotReady);
        }
        let index = self.free.pop_front().ok_or(SubmitError::Full)?;
        // CID FFFFh means "no command" in the error log, so the last generation is left out.
        let generations = (1u16 << (16 - self.index_bits).min(15)) - 1;
        let slot = &mut self.slots[usize::from(index)];
        *slot = Slot { busy: true, generation: (slot.generation + 1) % generations, tag, data, ..FREE_SLOT };
        Ok((index, index | slot.generation << self.index_bits))
    }

    fn push_capsule(&mut self, slot: u16, sqe: Sqe, in_capsule: u32) {
        let capsule = CapsuleCmd::new(sqe, in_capsule, self.config.digests, self.cpda);
        self.push_header(capsule.as_bytes(), PduType::CapsuleCmd, in_capsule > 0);
        self.slots[usize::from(slot)].header_end = self.outbox.end();
    }

    /// A header, its digest, and the padding up to its data.
    fn push_header(&mut self, header: &[u8], pdu_type: PduType, has_data: bool) {
        self.outbox.push(header);
        let mut len = header.len();
        if self.config.digests.header {
            self.outbox.push(&digest::wire(header));
            len += 4;
        }
        if has_data {
            let pad = data_offset(pdu_type.header_len(), self.config.digests, self.cpda) - len;
            self.outbox.push(&[0; 128][..pad]);
        }
    }

    /// The slot of a CID that is in flight and whose capsule has been sent.
    fn find(&self, cid: u16) -> Result<u16, HostError> {
        let index = cid & ((1u32 << self.index_bits) - 1) as u16;
        let generation = u32::from(cid) >> self.index_bits;
        match self.slots.get(usize::from(index)) {
            Some(slot)
                if slot.busy
                    && u32::from(slot.generation) == generation
                    && slot.deferred.is_none()
                    && slot.header_end <= self.outbox.head() =>
            {
                Ok(index)
            }
            _ => Err(protocol("a PDU for a command that is not in flight", FatalError::BAD_CCCID)),
        }
    }

    fn on_icresp(&mut self, resp: &ICResp) -> Result<HostEvent, HostError> {
        let answered = Digests::from_dgst(resp.dgst);
        if answered != self.config.digests {
            return Err(HostError::DigestMismatch { asked: self.config.digests, answered });
        }
        self.cpda = resp.cpda;
        self.maxh2cdata = resp.maxh2cdata.get();
        self.framer.establish(answered, self.config.hpda);
        self.ready = true;
        Ok(HostEvent::Connected)
    }

    fn on_response(&mut self, cqe: Cqe) -> Result<Option<HostEvent>, HostError> {
        let index = self.find(cqe.cid.get())?;
        let slot = &mut self.slots[usize::from(index)];
        if cqe.status().is_success() {
            // A write that succeeded has been received whole, so its last R2T came before.
            let expected = match slot.data {
                Data::None => 0,
                Data::Read(len) => len,
                Data::Write(len) if slot.transport => len,
                Data::Write(_) => 0,
            };
            if slot.done != expected {
                return Err(protocol("success with less data than the command asked for", FatalError::OUT_OF_RANGE));
            }
        }
        if slot.queued > 0 {
            if cqe.status().is_success() {
                return Err(protocol("success before the data was sent", FatalError::SEQUENCE));
            }
            slot.deferred = Some(cqe);
            return Ok(None);
        }
        Ok(Some(self.finish(index, cqe)))
    }

    fn finish(&mut self, index: u16, mut cqe: Cqe) -> HostEvent {
        let slot = &mut self.slots[usize::from(index)];
        slot.busy = false;
        if slot.damaged && cqe.status().is_success() {
            cqe.status.set(Status::DATA_TRANSFER_ERROR.to_field());
        }
        let tag = slot.tag;
        self.free.push_back(index);
        HostEvent::Completion { tag, cqe }
    }

    fn on_data(&mut self, data: &C2HData) -> Result<(), HostError> {
        let cid = data.cccid.get();
        let slot = self.find(cid)?;
        let entry = &self.slots[usize::from(slot)];
        let Data::Read(len) = entry.data else {
            return Err(protocol("data for a command that reads nothing", FatalError::BAD_CCCID));
        };
        if data.datao.get() != entry.done {
            return Err(protocol("data out of order", FatalError::BAD_DATAO));
        }
        let left = len - entry.done;
        if data.datal.get() > left {
            return Err(protocol("more data than the command asked for", FatalError::OUT_OF_RANGE));
        }
        if data.is_success() && data.datal.get() < left {
            return Err(protocol("success with less data than the command asked for", FatalError::OUT_OF_RANGE));
        }
        self.incoming = Some(Incoming { slot, cid, success: data.is_success() });
        Ok(())
    }

    fn on_payload(&self, len: usize) -> Result<HostEvent, HostError> {
        let incoming = self.incoming.ok_or(protocol("payload without a header", FatalError::SEQUENCE))?;
        let slot = &self.slots[usize::from(incoming.slot)];
        Ok(HostEvent::Payload { tag: slot.tag, offset: slot.done, len })
    }

    fn on_data_end(&mut self, digest_ok: bool) -> Result<Option<HostEvent>, HostError> {
        let incoming = self.incoming.take().ok_or(protocol("payload without a header", FatalError::SEQUENCE))?;
        self.slots[usize::from(incoming.slot)].damaged |= !digest_ok;
        if !incoming.success {
            return Ok(None);
        }
        let cqe = Cqe::new(incoming.cid, 0, Status::SUCCESS);
        Ok(Some(self.finish(incoming.slot, cqe)))
    }

    fn on_r2t(&mut self, r2t: &R2T) -> Result<(), HostError> {
        let cid = r2t.cccid.get();
        let index = self.find(cid)?;
        let slot = &mut self.slots[usize::from(index)];
        let Data::Write(len) = slot.data else {
            return Err(protocol("R2T for a command that writes nothing", FatalError::BAD_CCCID));
        };
        if !slot.transport {
            return Err(protocol("R2T for data that was in the capsule", FatalError::BAD_CCCID));
        }
        if slot.queued > 0 {
            return Err(protocol("R2T while another is open", FatalError::LIMIT));
        }
        let (start, asked) = (r2t.r2to.get(), r2t.r2tl.get());
        if start != slot.done || asked > len - slot.done {
            return Err(protocol("R2T outside of the command's data", FatalError::OUT_OF_RANGE));
        }
        slot.done += asked;
        slot.queued = asked.div_ceil(self.maxh2cdata);
        let tag = slot.tag;
        let end = start + asked;
        let mut at = start;
        while at < end {
            let now = self.maxh2cdata.min(end - at);
            let header = H2CData::new(cid, r2t.ttag.get(), at, now, at + now == end, self.config.digests, self.cpda);
            self.push_header(header.as_bytes(), PduType::H2CData, true);
            self.outbox.push_payload(index, tag, at, now, self.config.digests.data);
            at += now;
        }
        Ok(())
    }
}

const fn protocol(what: &'static str, error: FatalError) -> HostError {
    HostError::Protocol { what, error }
}
