//! What a connection has to send: small pieces, which are merged, and commands' buffers, which are sent from where they are.

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice, Write};

use super::queue::Command;
use crate::dma::Pool;

/// Pieces that go with one `writev`.
const VECTOR: usize = 128;
/// Sent small bytes that are kept before the rest is moved to the front.
const SLACK: usize = 16 << 10;

#[derive(Clone, Copy)]
enum Piece {
    /// The next bytes of `small`.
    Small(u32),
    /// Bytes of a command's buffer. With the last one sent, the command is over.
    Payload { command: u16, from: u32, len: u32, last: bool },
}

impl Piece {
    fn len(self) -> u32 {
        match self {
            Piece::Small(len) | Piece::Payload { len, .. } => len,
        }
    }
}

/// See the module's head.
#[derive(Default)]
pub struct SendQueue {
    small: Vec<u8>,
    small_sent: usize,
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that are sent.
    sent: u32,
    /// Bytes of buffers that wait.
    payload: u64,
}

/// How far sending went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Bytes.
    pub bytes: usize,
    /// The socket takes no more for now.
    pub blocked: bool,
}

impl SendQueue {
    /// Makes room for the answers of this many commands, so that none of them has to.
    pub fn reserve(&mut self, commands: usize) {
        // A read's header, data digest and response with header digests, and the pieces around its payload.
        self.small.reserve(SLACK + commands * 64);
        self.pieces.reserve(commands * 2 + 2);
    }

    /// True if all is sent.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Bytes of headers and responses that wait: a measure of how far behind the host is.
    pub fn backlog(&self) -> usize {
        self.small.len() - self.small_sent
    }

    /// Bytes of buffers that wait.
    pub fn payload_backlog(&self) -> u64 {
        self.payload
    }

    /// Queues bytes, copied.
    pub fn bytes(&mut self, data: &[u8]) {
        self.small.extend_from_slice(data);
        let len = data.len() as u32;
        match self.pieces.back_mut() {
            Some(Piece::Small(n)) => *n += len,
            _ => self.pieces.push_back(Piece::Small(len)),
        }
    }

    /// Queues `len` bytes of a command's buffer, not copied.
    pub fn payload(&mut self, command: u16, from: u32, len: u32, last: bool) {
        self.payload += u64::from(len);
        self.pieces.push_back(Piece::Payload { command, from, len, last });
    }

    /// Sends what the socket takes. Commands whose last payload is sent are added to `over`.
    pub fn flush(
        &mut self,
        mut socket: impl Write,
        commands: &[Command],
        pool: &Pool,
        over: &mut Vec<u16>,
    ) -> std::io::Result<Sent> {
        let mut total = 0;
        while !self.pieces.is_empty() {
            let mut vector = [IoSlice::new(&[]); VECTOR];
            let mut count = 0;
            let mut offered = 0;
            let mut small = self.small_sent;
            let mut skip = self.sent;
            for (slice, piece) in vector.iter_mut().zip(&self.pieces) {
                let bytes = match *piece {
                    Piece::Small(len) => {
                        let bytes = &self.small[small..][..(len - skip) as usize];
                        small += bytes.len();
                        bytes
                    }
                    Piece::Payload { command, from, len, .. } => &commands[command as usize].buffer.bytes(pool)
                        [(from + skip) as usize..][..(len - skip) as usize],
                };
                skip = 0;
                offered += bytes.len();
                *slice = IoSlice::new(bytes);
                count += 1;
            }
            let n = match socket.write_vectored(&vector[..count]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(Sent { bytes: total, blocked: true }),
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            self.advance(n, over);
            total += n;
            if n < offered {
                return Ok(Sent { bytes: total, blocked: true });
            }
        }
        Ok(Sent { bytes: total, blocked: false })
    }

    fn advance(&mut self, mut n: usize, over: &mut Vec<u16>) {
        while let Some(piece) = self.pieces.front().copied() {
            let left = (piece.len() - self.sent) as usize;
            let part = left.min(n);
            match piece {
                Piece::Small(_) => self.small_sent += part,
                Piece::Payload { .. } => self.payload -= part as u64,
            }
            n -= part;
            if part < left {
                self.sent += part as u32;
                break;
            }
            self.sent = 0;
            self.pieces.pop_front();
            if let Piece::Payload { command, last: true, .. } = piece {
                over.push(command);
            }
            if n == 0 {
                break;
            }
        }
        if self.small_sent == self.small.len() {
            self.small.clear();
            self.small_sent = 0;
        } else if self.small_sent > SLACK {
            self.small.drain(..self.small_sent);
            self.small_sent = 0;
        }
    }
}
