//! One queue's connection: the socket, the buffers of the commands in flight, and the protocol's [`HostQueue`].

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nvme_wire::command::{Cqe, Sqe};
use nvme_wire::fabrics::ConnectData;
use nvme_wire::host::{Data, HostConfig, HostEvent, HostQueue, SubmitError};

use super::InitiatorError;

/// Received bytes that are looked at together. Payload that is not in it yet goes straight to its buffer.
const INBOX: usize = 64 << 10;
/// Pieces of one vectored write.
const SLICES: usize = 128;

/// A command that has completed.
#[derive(Debug)]
pub struct Done {
    /// The submitter's tag.
    pub tag: u64,
    /// The completion.
    pub cqe: Cqe,
    /// The command's buffer, handed back: a read's data is in it.
    pub buffer: Vec<u8>,
}

#[derive(Debug, Default)]
struct InFlight {
    tag: u64,
    buffer: Vec<u8>,
}

/// A connection. Non-blocking inside: a full socket in one direction never keeps the other from moving, so that neither
/// side can wait for the other for ever.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    queue: HostQueue,
    commands: Vec<InFlight>,
    free: Vec<u64>,
    inbox: Vec<u8>,
    start: usize,
    end: usize,
}

impl Connection {
    /// Connects the socket and exchanges ICReq and ICResp.
    pub fn open(addr: SocketAddr, config: HostConfig, timeout: Duration) -> Result<Connection, InitiatorError> {
        let io = |what: &'static str| move |source| InitiatorError::Io { what, addr, source };
        let stream = TcpStream::connect_timeout(&addr, timeout).map_err(io("connect to"))?;
        stream.set_nodelay(true).map_err(io("set up the socket to"))?;
        stream.set_nonblocking(true).map_err(io("set up the socket to"))?;
        let queue = HostQueue::new(config);
        let depth = usize::from(config.depth);
        let mut connection = Connection {
            stream,
            queue,
            commands: (0..depth).map(|_| InFlight::default()).collect(),
            free: (0..depth as u64).rev().collect(),
            inbox: vec![0; INBOX],
            start: 0,
            end: 0,
        };
        let deadline = Instant::now() + timeout;
        let mut none = Vec::new();
        while !connection.queue.is_ready() {
            connection.pump(&mut none)?;
            if !connection.queue.is_ready() {
                connection.wait(deadline)?;
            }
        }
        Ok(connection)
    }

    /// The protocol's state.
    pub fn queue(&mut self) -> &mut HostQueue {
        &mut self.queue
    }

    /// Commands that may still be submitted.
    pub fn room(&self) -> usize {
        self.queue.room()
    }

    /// Commands in flight.
    pub fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }

    /// Submits a command with its buffer, which comes back with the completion. Returns the buffer if the queue is full.
    pub fn submit(&mut self, sqe: Sqe, data: Data, tag: u64, mut buffer: Vec<u8>) -> Result<(), Vec<u8>> {
        match data {
            // A read's buffer is made as long as its data, a write's must be.
            Data::Read(len) => buffer.resize(len as usize, 0),
            Data::Write(len) => assert_eq!(buffer.len(), len as usize, "a write's buffer is its data"),
            Data::None => {}
        }
        let Some(index) = self.free.pop() else { return Err(buffer) };
        match self.queue.submit(sqe, data, index) {
            Ok(()) => {
                self.commands[index as usize] = InFlight { tag, buffer };
                Ok(())
            }
            Err(_) => {
                self.free.push(index);
                Err(buffer)
            }
        }
    }

    /// Submits Connect.
    pub fn submit_connect(&mut self, qid: u16, kato_ms: u32, data: &ConnectData, tag: u64) -> Result<(), SubmitError> {
        let index = self.free.pop().ok_or(SubmitError::Full)?;
        self.commands[index as usize].tag = tag;
        self.queue.connect(qid, kato_ms, data, index).inspect_err(|_| self.free.push(index))
    }

    /// Sends and receives what is possible without waiting. Completions are added to `done`.
    pub fn pump(&mut self, done: &mut Vec<Done>) -> Result<(), InitiatorError> {
        self.send()?;
        self.receive(done)?;
        // An R2T that was received may have made more to send.
        self.send()
    }

    /// Waits until the socket is ready for what this connection wants, or the deadline has passed.
    pub fn wait(&self, deadline: Instant) -> Result<(), InitiatorError> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(InitiatorError::Timeout);
        }
        let mut events = PollFlags::POLLIN;
        events.set(PollFlags::POLLOUT, self.queue.has_outgoing());
        // Rounded up: a wait of less than a millisecond must not spin.
        let timeout = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(self.stream.as_fd(), events)], timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
            Err(errno) => Err(self.io("wait for", errno.into())),
        }
    }

    fn io(&self, what: &'static str, source: std::io::Error) -> InitiatorError {
        let addr = self.stream.peer_addr().unwrap_or(SocketAddr::from(([0, 0, 0, 0], 0)));
        InitiatorError::Io { what, addr, source }
    }

    fn send(&mut self) -> Result<(), InitiatorError> {
        while self.queue.has_outgoing() {
            let commands = &self.commands;
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = self.queue.gather(|tag| &commands[tag as usize].buffer, &mut slices);
            match (&self.stream).write_vectored(&slices[..count]) {
                Ok(0) => return Err(InitiatorError::Closed),
                Ok(sent) => self.queue.sent(sent),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                // What the controller had to say before it closed is read, and reported, by `receive`.
                Err(e) if matches!(e.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => return Ok(()),
                Err(e) => return Err(self.io("send to", e)),
            }
        }
        Ok(())
    }

    fn receive(&mut self, done: &mut Vec<Done>) -> Result<(), InitiatorError> {
        loop {
            let (used, event) = self.queue.next(&self.inbox[self.start..self.end])?;
            self.start += used;
            match event {
                HostEvent::Connected => {}
                HostEvent::Completion { tag, cqe } => {
                    self.free.push(tag);
                    let InFlight { tag, buffer } = std::mem::take(&mut self.commands[tag as usize]);
                    done.push(Done { tag, cqe, buffer });
                }
                HostEvent::Payload { tag, offset, len } => {
                    let place = &mut self.commands[tag as usize].buffer[offset as usize..][..len];
                    let ready = len.min(self.end - self.start);
                    if ready > 0 {
                        let chunk = &self.inbox[self.start..self.start + ready];
                        place[..ready].copy_from_slice(chunk);
                        self.queue.received(chunk);
                        self.start += ready;
                        continue;
                    }
                    match (&self.stream).read(place) {
                        Ok(0) => return Err(InitiatorError::Closed),
                        Ok(count) => self.queue.received(&place[..count]),
                        Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                        Err(e) if e.kind() == ErrorKind::Interrupted => {}
                        Err(e) => return Err(self.io("receive from", e)),
                    }
                }
                HostEvent::NeedMore(_) => {
                    self.inbox.copy_within(self.start..self.end, 0);
                    self.end -= self.start;
                    self.start = 0;
                    match (&self.stream).read(&mut self.inbox[self.end..]) {
                        Ok(0) => return Err(InitiatorError::Closed),
                        Ok(count) => self.end += count,
                        Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                        Err(e) if e.kind() == ErrorKind::Interrupted => {}
                        Err(e) => return Err(self.io("receive from", e)),
                    }
                }
            }
        }
    }
}
