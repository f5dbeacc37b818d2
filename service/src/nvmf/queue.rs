//! The commands of one queue, in a slab of fixed size, and the submission queue's head.

use super::buffers::Buffer;
use super::controller::Controller;
use nvme_wire::command::Sqe;
use std::sync::Arc;

/// What a command does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Read.
    Read,
    /// Write.
    Write {
        /// Durable before it is answered.
        fua: bool,
    },
    /// Compare.
    Compare,
    /// Flush.
    Flush,
    /// Write Zeroes.
    Zero {
        /// The host wants the blocks deallocated.
        unmap: bool,
        /// Durable before it is answered.
        fua: bool,
    },
    /// Dataset Management with ranges to deallocate, one piece after the other.
    Deallocate {
        /// Number of ranges.
        ranges: u16,
        /// The range to go on with.
        next: u16,
        /// Blocks of it that are done.
        at: u32,
    },
    /// An admin or fabrics command; it is kept whole in `sqe`.
    Admin,
}

/// Where a command is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not in use.
    Free,
    /// Waits for a slot.
    WaitBuffer,
    /// An R2T is out, the host's data comes in.
    Receiving,
    /// At the device, or in the line in front of it.
    Device,
    /// Its data is in the send queue.
    Sending,
    /// An Asynchronous Event Request that waits for an event.
    Parked,
}

/// One command.
#[derive(Debug)]
pub struct Command {
    /// Where it is.
    pub state: State,
    /// What it does.
    pub op: Op,
    /// The host's name for it.
    pub cid: u16,
    /// The device, and which addition of the namespace it is.
    pub device: u16,
    /// See [`super::subsystem::Namespace::key`].
    pub key: u64,
    /// Byte offset on the device.
    pub offset: u64,
    /// Bytes on the device.
    pub len: u64,
    /// Bytes of `buffer` that are transferred.
    pub transfer: u32,
    /// Bytes that came in so far.
    pub received: u32,
    /// A data digest was wrong: the command fails when all its data is in.
    pub digest_error: bool,
    /// Its data.
    pub buffer: Buffer,
    /// Room for what a Compare reads.
    pub second: Buffer,
    /// The submission queue entry of an admin command that waits for data.
    pub sqe: Sqe,
}

impl Command {
    fn free() -> Command {
        Command {
            state: State::Free,
            op: Op::Admin,
            cid: 0,
            device: 0,
            key: 0,
            offset: 0,
            len: 0,
            transfer: 0,
            received: 0,
            digest_error: false,
            buffer: Buffer::None,
            second: Buffer::None,
            sqe: Sqe::default(),
        }
    }
}

/// One queue of a controller on one connection.
#[derive(Debug)]
pub struct Queue {
    /// Its number; 0 is the admin queue.
    pub qid: u16,
    /// Entries.
    pub entries: u32,
    /// The controller.
    pub controller: Arc<Controller>,
    /// The host does not use the head pointer, so a read needs no response capsule.
    pub no_flow_control: bool,
    head: u16,
}

impl Queue {
    /// An empty queue.
    pub fn new(qid: u16, entries: u32, controller: Arc<Controller>, no_flow_control: bool) -> Queue {
        Queue { qid, entries, controller, no_flow_control, head: 0 }
    }

    /// A command was taken from the queue.
    pub fn taken(&mut self) {
        self.head = ((u32::from(self.head) + 1) % self.entries) as u16;
    }

    /// The head pointer for a response.
    pub fn head(&self) -> u16 {
        if self.no_flow_control { 0xFFFF } else { self.head }
    }
}

/// A slab of commands.
#[derive(Debug)]
pub struct Commands {
    slab: Vec<Command>,
    free: Vec<u16>,
    at_device: u32,
}

impl Commands {
    /// A slab for `entries` commands at once.
    pub fn new(entries: u32) -> Commands {
        Commands {
            slab: (0..entries).map(|_| Command::free()).collect(),
            free: (0..entries as u16).rev().collect(),
            at_device: 0,
        }
    }

    /// Grows to `entries`.
    pub fn grow(&mut self, entries: u32) {
        for index in self.slab.len() as u32..entries {
            self.slab.push(Command::free());
            self.free.push(index as u16);
        }
    }

    /// A free command. `None` means that the host sent more commands than the queue has entries.
    pub fn take(&mut self, cid: u16) -> Option<u16> {
        let index = self.free.pop()?;
        let command = &mut self.slab[index as usize];
        command.cid = cid;
        command.received = 0;
        command.digest_error = false;
        Some(index)
    }

    /// Frees a command; its buffers come back to be given back.
    pub fn release(&mut self, index: u16) -> [Buffer; 2] {
        let command = &mut self.slab[index as usize];
        command.state = State::Free;
        self.free.push(index);
        [std::mem::take(&mut command.buffer), std::mem::take(&mut command.second)]
    }

    /// Commands in use.
    pub fn used(&self) -> usize {
        self.slab.len() - self.free.len()
    }

    /// Notes that a command goes to the device.
    pub fn ordered(&mut self, index: u16) {
        self.slab[index as usize].state = State::Device;
        self.at_device += 1;
    }

    /// Notes that the device is done with a command.
    pub fn completed(&mut self) {
        self.at_device -= 1;
    }

    /// Commands at a device.
    pub fn at_device(&self) -> u32 {
        self.at_device
    }

    /// All, by index.
    pub fn all(&self) -> &[Command] {
        &self.slab
    }

    /// The command that a TTAG names, if there is one in use.
    pub fn by_tag(&self, ttag: u16) -> Option<&Command> {
        self.slab.get(ttag as usize).filter(|c| c.state != State::Free)
    }
}

impl std::ops::Index<u16> for Commands {
    type Output = Command;
    fn index(&self, index: u16) -> &Command {
        &self.slab[index as usize]
    }
}

impl std::ops::IndexMut<u16> for Commands {
    fn index_mut(&mut self, index: u16) -> &mut Command {
        &mut self.slab[index as usize]
    }
}
