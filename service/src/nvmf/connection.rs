//! One TCP connection: its socket, its framing, its end. What commands do is in `io`, `fabrics` and `admin`.

use std::io::{ErrorKind, IoSliceMut, Read};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use nix::sys::socket::{setsockopt, sockopt};
use nvme_wire::command::{Cqe, Status};
use nvme_wire::tcp::{
    C2HData, COMMON_LEN, CapsuleResp, CommonHeader, DIGEST_LEN, Digests, Direction, FatalError, Fes, H2CData, Header,
    ICResp, MAX_HEADER_LEN, Params, PduType, R2T, check, check_common, digest, flags,
};
use nvme_wire::zerocopy::{FromBytes, IntoBytes};
use raid_core::units::Tick;

use super::admin::Events;
use super::buffers::{Buffer, Use};
use super::controller::Controller;
use super::counters::Counters;
use super::io::NamespaceRef;
use super::poller::Env;
use super::queue::{Commands, Queue, State};
use super::send::SendQueue;
use super::subsystem::{Link, Subsystem};

/// Bytes of the receive buffer.
const RECEIVE: usize = 128 << 10;
/// The most in-capsule data, in bytes: IOCCSZ, and what fabrics commands may bring whatever IOCCSZ says.
pub const IN_CAPSULE: u32 = 8192;
/// The most data of one H2CData PDU, in bytes: a whole command's, so that large writes need one PDU.
pub const MAX_H2C_DATA: u32 = 1 << 20;
/// The longest PDU that must fit the receive buffer: a capsule with all of its paddings and digests.
const LONGEST: usize = 72 + 4 + 256 + IN_CAPSULE as usize + 4;
/// Reads of the socket in one pass.
const READS: usize = 4;
/// Reads in vain after which only the kernel's word makes us read again.
const EMPTY_READS: u32 = 32;
/// Headers and responses that wait, in bytes, at which the host is behind and its commands are not read any more.
const BEHIND: usize = 128 << 10;
/// Read data that a blocked socket may hold, in bytes: what it takes to keep the line busy when it opens again.
const READ_AHEAD: u64 = 1 << 20;
/// A connection that has not brought a good Connect by then is closed, in nanoseconds.
const CONNECT_TIME: u64 = 10_000_000_000;
/// The time that a host has to take a termination, in nanoseconds.
const TERMINATION_TIME: u64 = 500_000_000;
/// A host that takes nothing for so long is closed, in nanoseconds: it holds buffers that others wait for.
const STUCK_TIME: u64 = 30_000_000_000;
/// The same for a host whose buffers others wait for right now, in nanoseconds.
const STUCK_TIME_WANTED: u64 = 3_000_000_000;
/// Commands that may come before a queue is connected.
const EARLY_COMMANDS: u32 = 2;

/// Which part of the stream comes next.
#[derive(Clone, Copy)]
enum Stage {
    /// A PDU's header, and for capsules all of it.
    Header,
    /// `left` bytes of data for offset `at` of a command's buffer.
    Data { command: u16, from: u32, at: u32, left: u32 },
    /// The digest of a command's data from offset `from` up to `to`.
    Digest { command: u16, from: u32, to: u32 },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// In use.
    Open,
    /// A C2HTermReq is on its way; whatever comes is thrown away until the host closes or the time is over.
    Terminating(Tick),
    /// Closed, maybe with I/O at a device.
    Closed,
}

/// What came of a command.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// It is on its way, or answered.
    Yes,
    /// It must wait, with its data, in the receive buffer.
    Later,
}

/// True if the four bytes at the start of `after` are the CRC32C of the data.
fn digest_matches(data: &[u8], after: &[u8]) -> bool {
    digest::read(after) == Some(digest::crc32c(data))
}

/// See the module's head.
pub struct Connection {
    /// Its number on its reactor.
    pub index: u32,
    /// Its socket is read on every pass.
    pub hot: bool,
    socket: TcpStream,
    peer: SocketAddr,
    local: SocketAddr,
    phase: Phase,
    receive: Box<[u8]>,
    start: usize,
    end: usize,
    stage: Stage,
    empty_reads: u32,
    blocked: bool,
    blocked_since: Tick,
    /// When the host last sent something.
    heard: Tick,
    dirty: bool,
    born: Tick,
    counted_as_draining: bool,
    /// What was agreed with the host.
    params: Params,
    /// HPDA: where data to the host starts in its PDU.
    hpda: u8,
    /// Commands.
    pub(super) commands: Commands,
    /// What is to be sent.
    pub(super) send: SendQueue,
    /// The queue, once connected.
    pub(super) queue: Option<Queue>,
    /// The subsystem, once connected; none for discovery.
    pub(super) subsystem: Option<Arc<Subsystem>>,
    /// How the control plane sees it, once connected.
    pub(super) link: Option<Arc<Link>>,
    /// What it did.
    pub(super) counters: Arc<Counters>,
    /// The subsystem's namespaces, by NSID.
    pub(super) namespaces: Vec<NamespaceRef>,
    /// Asynchronous events of an admin queue.
    pub(super) events: Events,
    /// The next capsule waits for a slot.
    pub(super) stalled: bool,
    /// It is the next capsule's turn to get a slot.
    pub(super) my_turn: bool,
    /// It was its turn and there was still no room.
    pub(super) turn_in_vain: bool,
    /// The next capsule is a Connect that has to wait.
    pub(super) connect_waits: bool,
    /// When the Connect that waits is refused.
    pub(super) connect_gives_up: Option<Tick>,
    /// The reactor that is to serve it.
    pub(super) moves_to: Option<usize>,
    /// It has been decided which reactor serves it.
    pub(super) placed: bool,
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Connection {
    /// Takes over a socket that was accepted at `now`.
    pub fn new(socket: TcpStream, peer: SocketAddr, now: Tick) -> std::io::Result<Connection> {
        socket.set_nonblocking(true)?;
        // Responses are batched here, once per pass; the kernel must not hold them back for more.
        socket.set_nodelay(true)?;
        // Without it a host that vanished and has no Keep Alive Timeout would be kept for ever.
        setsockopt(&socket, sockopt::KeepAlive, &true)?;
        let local = socket.local_addr()?;
        Ok(Connection {
            index: 0,
            hot: false,
            socket,
            peer,
            local,
            phase: Phase::Open,
            receive: vec![0; RECEIVE].into_boxed_slice(),
            start: 0,
            end: 0,
            stage: Stage::Header,
            empty_reads: 0,
            blocked: false,
            blocked_since: now,
            heard: now,
            dirty: false,
            born: now,
            counted_as_draining: false,
            params: Params::new(Direction::ToController, IN_CAPSULE, MAX_H2C_DATA),
            hpda: 0,
            commands: Commands::new(EARLY_COMMANDS),
            send: SendQueue::default(),
            queue: None,
            subsystem: None,
            link: None,
            counters: Arc::default(),
            namespaces: Vec::new(),
            events: Events::default(),
            stalled: false,
            my_turn: false,
            turn_in_vain: false,
            connect_waits: false,
            connect_gives_up: None,
            moves_to: None,
            placed: false,
        })
    }

    /// Digests in use.
    pub(super) fn digests(&self) -> Digests {
        self.params.digests
    }

    /// The host's end and ours.
    pub(super) fn ends(&self) -> (SocketAddr, SocketAddr) {
        (self.peer, self.local)
    }

    /// It is open for commands and answers.
    pub(super) fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    /// It is closed.
    pub fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    /// The socket takes no more for now.
    pub fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// The socket takes no more, and much read data waits for it already.
    pub fn is_behind(&self) -> bool {
        self.blocked && self.send.payload_backlog() >= READ_AHEAD
    }

    /// I/Os at devices, or in the lines before them.
    pub fn at_device(&self) -> u32 {
        self.commands.at_device()
    }

    /// True if it is a queue of this controller, and not the admin queue unless that is meant too.
    pub fn belongs_to(&self, controller: &Arc<Controller>, admin: bool) -> bool {
        self.queue.as_ref().is_some_and(|q| Arc::ptr_eq(&q.controller, controller) && (admin || q.qid != 0))
    }

    /// True if another reactor is to serve it.
    pub fn wants_to_move(&self) -> bool {
        self.moves_to.is_some()
    }

    /// Where it goes; it is on its way now.
    pub fn moved(&mut self) -> usize {
        self.hot = false;
        self.dirty = false;
        self.moves_to.take().expect("only a connection that wants to move is moved")
    }

    /// The socket takes bytes again. True if there are any to send.
    pub fn unblock(&mut self) -> bool {
        let was = std::mem::take(&mut self.blocked);
        let again = was && !self.send.is_empty() && !self.dirty;
        self.dirty |= again;
        again
    }

    /// True if nothing keeps its socket from being read, and something did.
    pub fn wants_reading(&self) -> bool {
        !self.hot && self.empty_reads == 0 && self.may_read()
    }

    fn may_read(&self) -> bool {
        match self.phase {
            Phase::Open => {
                !self.stalled && !self.connect_waits && self.moves_to.is_none() && self.send.backlog() < BEHIND
            }
            Phase::Terminating(_) => true,
            Phase::Closed => false,
        }
    }

    /// Has bytes to send: they go at the end of the pass.
    fn touch(&mut self, env: &mut Env) {
        if !self.dirty && !self.blocked && !self.send.is_empty() {
            self.dirty = true;
            env.local.dirty.push(self.index);
        }
    }

    /// Reads the socket and does what came. True if anything did.
    pub fn receive(&mut self, env: &mut Env) -> bool {
        let mut worked = false;
        for _ in 0..READS {
            if !self.may_read() {
                self.hot = false;
                // Marks that the socket may hold more: see `wants_reading`.
                self.empty_reads = 0;
                break;
            }
            match self.read(env) {
                Ok((0, _)) => {
                    self.close(env);
                    worked = true;
                    break;
                }
                Ok((_, full)) => {
                    worked = true;
                    self.empty_reads = 0;
                    self.heard = env.now;
                    if let Some(queue) = &self.queue {
                        queue.controller.saw(env.now);
                    }
                    self.parse(env);
                    if !full {
                        break;
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    self.empty_reads += 1;
                    self.hot = self.empty_reads < EMPTY_READS;
                    break;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => {
                    self.close(env);
                    worked = true;
                    break;
                }
            }
        }
        if worked {
            self.counters.set_in_flight(self.commands.used() as u64);
            self.touch(env);
        }
        worked
    }

    /// One read: into the command's buffer where its data comes next, and into the receive buffer what follows.
    fn read(&mut self, env: &mut Env) -> std::io::Result<(usize, bool)> {
        if let Phase::Terminating(_) = self.phase {
            let n = (&self.socket).read(&mut self.receive)?;
            return Ok((n, false));
        }
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.receive.len() - self.start < LONGEST || self.end == self.receive.len() {
            self.receive.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let tail = &mut self.receive[self.end..];
        let room = tail.len();
        if let Stage::Data { command, from, at, left } = self.stage
            && self.start == self.end
        {
            let buffer = &mut self.commands[command].buffer;
            let direct = &mut buffer.bytes_mut(env.pool)[at as usize..][..left as usize];
            let n = (&self.socket).read_vectored(&mut [IoSliceMut::new(direct), IoSliceMut::new(tail)])?;
            let placed = n.min(left as usize) as u32;
            self.stage = Stage::Data { command, from, at: at + placed, left: left - placed };
            self.end += n - placed as usize;
            return Ok((n, n == left as usize + room));
        }
        let n = (&self.socket).read(tail)?;
        self.end += n;
        Ok((n, n == room))
    }

    /// Goes on with what is in the receive buffer.
    pub fn resume(&mut self, env: &mut Env) {
        self.parse(env);
        self.counters.set_in_flight(self.commands.used() as u64);
        self.touch(env);
    }

    fn parse(&mut self, env: &mut Env) {
        while self.phase == Phase::Open && !self.stalled && !self.connect_waits && self.moves_to.is_none() {
            let more = match self.stage {
                Stage::Header => self.header(env),
                Stage::Data { .. } => self.data(env),
                Stage::Digest { .. } => self.digest(env),
            };
            if !more {
                return;
            }
        }
    }

    /// The next PDU. False if more of it must come first, or nothing more is wanted.
    fn header(&mut self, env: &mut Env) -> bool {
        let pdu = &self.receive[self.start..self.end];
        let Ok((common, _)) = CommonHeader::ref_from_prefix(pdu) else { return false };
        // Garbage is refused by its first eight bytes: nothing is waited for because of it.
        let layout = match check_common(common, &self.params) {
            Ok(layout) => layout,
            Err(error) => return self.fatal(error, env),
        };
        if layout.pdu_type == PduType::H2CTermReq {
            // Whatever the reason is, there is nothing to look up by it.
            self.close(env);
            return false;
        }
        let head = layout.header_len;
        let digest = if layout.header_digest { DIGEST_LEN } else { 0 };
        if pdu.len() < head + digest {
            return false;
        }
        if layout.header_digest && !digest_matches(&pdu[..head], &pdu[head..]) {
            let fei = digest::read(&pdu[head..]).unwrap_or(0);
            return self.fatal(FatalError { fes: Fes::HEADER_DIGEST_ERROR, fei }, env);
        }
        if let Err(error) = check(pdu, &self.params) {
            return self.fatal(error, env);
        }
        match Header::parse(pdu) {
            Some(Header::ICReq(request)) => {
                let (hpda, digests) = (request.hpda, Digests::from_dgst(request.dgst));
                self.send.bytes(ICResp::new(0, digests, MAX_H2C_DATA).as_bytes());
                (self.params.digests, self.params.established, self.hpda) = (digests, true, hpda);
                self.start += layout.len();
                true
            }
            Some(Header::CapsuleCmd(capsule)) => {
                if pdu.len() < layout.len() {
                    return false;
                }
                let sqe = capsule.sqe;
                let begin = self.start + layout.data_offset;
                let data = (layout.data_len > 0).then(|| begin..begin + layout.data_len);
                let intact = match &data {
                    Some(data) if layout.data_digest => {
                        digest_matches(&self.receive[data.clone()], &self.receive[data.end..])
                    }
                    _ => true,
                };
                if self.command(&sqe, data, intact, env) == Taken::Later {
                    return false;
                }
                self.start += layout.len();
                true
            }
            Some(Header::H2CData(header)) => {
                let header = *header;
                if let Err(error) = self.expects(&header) {
                    return self.fatal(error, env);
                }
                if self.end - self.start < layout.data_offset {
                    return false;
                }
                self.start += layout.data_offset;
                let (command, from, left) = (header.ttag.get(), header.datao.get(), header.datal.get());
                self.stage = Stage::Data { command, from, at: from, left };
                true
            }
            // No other PDU passes the check.
            _ => self.fatal(FatalError::SEQUENCE, env),
        }
    }

    /// Checks that data is what an open R2T asked for.
    fn expects(&self, header: &H2CData) -> Result<(), FatalError> {
        let command = self.commands.by_tag(header.ttag.get()).filter(|c| c.state == State::Receiving);
        let command = command.ok_or(FatalError::BAD_TTAG)?;
        if command.cid != header.cccid.get() {
            return Err(FatalError::BAD_CCCID);
        }
        // In order and without gaps: one R2T is open for a command, and data that overlaps would be written twice.
        let left = command.transfer - command.received;
        if header.datao.get() != command.received || header.datal.get() > left {
            return Err(FatalError::OUT_OF_RANGE);
        }
        if header.is_last() != (header.datal.get() == left) {
            return Err(FatalError::BAD_LAST_PDU);
        }
        Ok(())
    }

    fn data(&mut self, env: &mut Env) -> bool {
        let Stage::Data { command, from, at, left } = self.stage else { return false };
        let n = (left as usize).min(self.end - self.start);
        if n > 0 {
            let to = &mut self.commands[command].buffer.bytes_mut(env.pool)[at as usize..][..n];
            to.copy_from_slice(&self.receive[self.start..][..n]);
            self.start += n;
        }
        let (at, left) = (at + n as u32, left - n as u32);
        if left > 0 {
            self.stage = Stage::Data { command, from, at, left };
            return false;
        }
        if self.params.digests.data {
            self.stage = Stage::Digest { command, from, to: at };
        } else {
            self.arrived(command, at, env);
        }
        true
    }

    fn digest(&mut self, env: &mut Env) -> bool {
        let Stage::Digest { command, from, to } = self.stage else { return false };
        if self.end - self.start < 4 {
            return false;
        }
        let bytes = &self.commands[command].buffer.bytes(env.pool)[from as usize..to as usize];
        let right = digest_matches(bytes, &self.receive[self.start..]);
        self.start += 4;
        self.commands[command].digest_error |= !right;
        self.arrived(command, to, env);
        true
    }

    /// A PDU of data is complete: all up to `to` is in.
    fn arrived(&mut self, command: u16, to: u32, env: &mut Env) {
        self.stage = Stage::Header;
        self.commands[command].received = to;
        if to == self.commands[command].transfer {
            self.data_complete(command, env);
        }
    }

    /// Something that ends the connection: C2HTermReq with the PDU's header, and then nothing more. Always false.
    pub(super) fn fatal(&mut self, error: FatalError, env: &mut Env) -> bool {
        let pdu = &self.receive[self.start..self.end];
        let hlen = usize::from(pdu.get(2).copied().unwrap_or(0)).clamp(COMMON_LEN, MAX_HEADER_LEN);
        let (term, len) = error.term_req(Direction::ToHost, &pdu[..hlen.min(pdu.len())]);
        self.send.bytes(&term[..len]);
        tracing::debug!(peer = %self.peer, %error, "a connection is terminated for what its host sent");
        self.phase = Phase::Terminating(env.now.after(TERMINATION_TIME));
        self.start = self.end;
        self.touch(env);
        false
    }

    /// Sends what the socket takes. True if that was anything.
    pub fn flush(&mut self, env: &mut Env) -> bool {
        self.dirty = false;
        if self.blocked || self.phase == Phase::Closed {
            return false;
        }
        let mut over = std::mem::take(&mut env.local.over);
        let result = self.send.flush(&self.socket, self.commands.all(), env.pool, &mut over);
        let freed = !over.is_empty();
        for command in over.drain(..) {
            self.release(command, env);
        }
        env.local.over = over;
        if freed {
            self.counters.set_in_flight(self.commands.used() as u64);
        }
        match result {
            Ok(sent) => {
                if sent.bytes > 0 || !sent.blocked {
                    self.blocked_since = env.now;
                }
                self.blocked = sent.blocked;
                if let Phase::Terminating(_) = self.phase
                    && self.send.is_empty()
                {
                    // Its end tells the host that nothing follows; ours comes when the host closes or the time is over.
                    let _ = self.socket.shutdown(Shutdown::Write);
                }
                sent.bytes > 0
            }
            Err(_) => {
                self.close(env);
                true
            }
        }
    }

    /// Frees a command and its buffers.
    pub(super) fn release(&mut self, command: u16, env: &mut Env) {
        for buffer in self.commands.release(command) {
            if !matches!(buffer, Buffer::None) {
                env.local.shares.give(env.pool, buffer);
            }
        }
    }

    /// Ends the connection at once. I/O at a device goes on; its buffers are freed as it completes.
    pub fn close(&mut self, env: &mut Env) {
        if self.phase == Phase::Closed {
            return;
        }
        self.phase = Phase::Closed;
        self.hot = false;
        // It may be gone already.
        let _ = self.socket.shutdown(Shutdown::Both);
        self.send = SendQueue::default();
        env.local.shares.forget(self.index);
        let index = u64::from(self.index);
        let mut cancelled = std::mem::take(&mut env.local.cancelled);
        env.local.devices.cancel(|tag| tag >> 16 == index, &mut cancelled);
        for tag in cancelled.drain(..) {
            self.commands.completed();
            self.release(tag as u16, env);
        }
        env.local.cancelled = cancelled;
        for command in 0..self.commands.all().len() as u16 {
            if !matches!(self.commands[command].state, State::Free | State::Device) {
                self.release(command, env);
            }
        }
        self.counters.set_in_flight(u64::from(self.commands.at_device()));
        let Some(queue) = &self.queue else { return };
        let controller = Arc::clone(&queue.controller);
        if self.commands.at_device() > 0 {
            controller.host.draining.fetch_add(1, std::sync::atomic::Ordering::AcqRel);
            self.counted_as_draining = true;
        }
        if let Some(link) = self.link.take() {
            controller.shared.remove_link(&link);
        }
        if queue.qid == 0 {
            controller.fail();
            controller.shared.remove_controller(&controller);
            if controller.has_queues() {
                env.close_controller(&controller, false);
            }
        } else {
            controller.leave_queue(queue.qid);
        }
    }

    /// The last I/O of a closed connection has left the device.
    pub fn drained(&mut self) {
        if let Some(queue) = &self.queue
            && std::mem::take(&mut self.counted_as_draining)
        {
            queue.controller.host.draining.fetch_sub(1, std::sync::atomic::Ordering::AcqRel);
        }
    }

    /// What is due.
    pub fn tick(&mut self, env: &mut Env) {
        match self.phase {
            Phase::Closed => return,
            Phase::Terminating(until) => {
                if env.now >= until {
                    self.close(env);
                }
                return;
            }
            Phase::Open => {}
        }
        if self.connect_waits {
            self.retry_connect(env);
        }
        match &self.queue {
            None => {
                if env.now >= self.born.after(CONNECT_TIME) {
                    self.close(env);
                }
            }
            Some(queue) if queue.qid == 0 && queue.controller.expires().is_some_and(|t| env.now >= t) => {
                let controller = Arc::clone(&queue.controller);
                let kato = controller.kato();
                tracing::warn!(
                    host = controller.host_nqn,
                    cntlid = controller.cntlid,
                    kato,
                    "a host sent nothing for its Keep Alive Timeout (ms); its controller is closed"
                );
                controller.fail();
                self.close(env);
            }
            Some(_) => {
                let wanted = |kind| env.local.shares.others_wait(kind, self.index);
                let deaf = self.blocked
                    && (env.now >= self.blocked_since.after(STUCK_TIME)
                        || (env.now >= self.blocked_since.after(STUCK_TIME_WANTED) && wanted(Use::Read)));
                // A write whose data does not come keeps nobody waiting, unless others want its buffer.
                let dumb = env.now >= self.heard.after(STUCK_TIME_WANTED)
                    && wanted(Use::Ready)
                    && self.commands.all().iter().any(|c| c.state == State::Receiving);
                if deaf || dumb {
                    let does = if deaf { "takes no answers" } else { "does not send the data of its writes" };
                    tracing::warn!(peer = %self.peer, "a host {does}; its connection is closed to free the buffers");
                    self.close(env);
                }
            }
        }
    }

    /// When to look at it again even if nothing comes.
    pub fn next_deadline(&self) -> Option<Tick> {
        match self.phase {
            Phase::Closed => (self.at_device() == 0).then_some(Tick(0)),
            Phase::Terminating(until) => Some(until),
            Phase::Open => {
                let waits = self.connect_waits.then_some(Tick(0));
                let timer = match &self.queue {
                    None => Some(self.born.after(CONNECT_TIME)),
                    Some(queue) if queue.qid == 0 => queue.controller.expires(),
                    Some(_) => None,
                };
                let stuck = self.blocked.then(|| self.blocked_since.after(STUCK_TIME_WANTED));
                waits.into_iter().chain(timer).chain(stuck).min()
            }
        }
    }

    /// Queues a response capsule.
    pub(super) fn respond(&mut self, cid: u16, status: Status, result: u64) {
        if !status.is_success() {
            self.counters.error();
        }
        let head = self.queue.as_ref().map_or(0, Queue::head);
        let response = CapsuleResp::new(Cqe::new(cid, head, status).with_result(result), self.params.digests);
        self.send_header(response.as_bytes());
    }

    /// Queues a PDU's header, with its digest.
    fn send_header(&mut self, header: &[u8]) {
        self.send.bytes(header);
        if self.params.digests.header {
            self.send.bytes(&digest::wire(header));
        }
    }

    /// Queues a C2HData PDU with the first `len` bytes of a command's buffer. The buffer is freed once it is sent.
    pub(super) fn send_data(&mut self, command: u16, len: u32, success: bool, env: &mut Env) {
        let cid = self.commands[command].cid;
        let flags = flags::LAST_PDU | if success { flags::SUCCESS } else { 0 };
        let header = C2HData::new(cid, 0, len, flags, self.params.digests, self.hpda);
        self.send_header(header.as_bytes());
        let padding = usize::from(header.ch.pdo) - size_of::<C2HData>() - self.params.digests.header_len();
        self.send.bytes(&[0; 128][..padding]);
        self.commands[command].state = State::Sending;
        self.send.payload(command, 0, len, true);
        if self.params.digests.data {
            let digest = digest::wire(&self.commands[command].buffer.bytes(env.pool)[..len as usize]);
            self.send.bytes(&digest);
        }
    }

    /// Asks the host for all data of a command.
    pub(super) fn send_r2t(&mut self, command: u16) {
        let cid = self.commands[command].cid;
        let r2t = R2T::new(cid, command, 0, self.commands[command].transfer, self.params.digests);
        self.send_header(r2t.as_bytes());
        self.commands[command].state = State::Receiving;
    }

    /// A capsule's data, in the receive buffer.
    pub(super) fn received_bytes(&self, data: std::ops::Range<usize>) -> &[u8] {
        &self.receive[data]
    }

    /// Copies a capsule's data to a command's buffer.
    pub(super) fn place(&mut self, command: u16, data: std::ops::Range<usize>, env: &mut Env) {
        let len = data.len();
        self.commands[command].buffer.bytes_mut(env.pool)[..len].copy_from_slice(&self.receive[data]);
    }

    /// Notes that there may be something to send.
    pub(super) fn has_sent(&mut self, env: &mut Env) {
        self.counters.set_in_flight(self.commands.used() as u64);
        self.touch(env);
    }
}
