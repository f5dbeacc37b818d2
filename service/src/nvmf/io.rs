//! I/O commands: from the capsule to the device and back.

use std::ops::Range;

use nvme_wire::command::{DsmRange, Sgl, Sqe, Status, dsm, io};
use nvme_wire::tcp::FatalError;
use raid_core::action::{IoStatus, ReqStatus, Seg};

use super::buffers::{Buffer, Use};
use super::connection::{Connection, IN_CAPSULE, Taken};
use super::poller::Env;
use super::queue::{Op, State};
use crate::block::{BlockStatus, Io, IoOp};

/// The most data of one command, in bytes: MDTS.
pub const MAX_TRANSFER: u32 = 1 << 20;
/// The most bytes of a deallocation that are given to a device at once: a range may be as large as the namespace, and
/// nothing behind the device may have to hold it in pieces.
const DEALLOCATE_PIECE: u32 = 16 << 20;
/// Bytes of a Dataset Management range.
const RANGE: usize = size_of::<DsmRange>();

/// A namespace, as a connection finds it by NSID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceRef {
    /// NSID.
    pub nsid: u32,
    /// The device's number on this reactor.
    pub device: u16,
    /// See [`super::subsystem::Namespace::key`].
    pub key: u64,
    /// Logical block size as a power of two.
    pub shift: u8,
    /// Size in logical blocks.
    pub blocks: u64,
}

/// What the host reads for a device's answer. A read that lost its data says so; the array's own words come through.
fn status_of(op: Op, status: BlockStatus) -> Status {
    let failed = |medium: bool| match op {
        Op::Read | Op::Compare if medium => Status::UNRECOVERED_READ_ERROR.dnr(),
        Op::Write { .. } | Op::Zero { .. } | Op::Deallocate { .. } if medium => Status::WRITE_FAULT,
        _ => Status::INTERNAL_ERROR,
    };
    match status {
        BlockStatus::Member(IoStatus::Ok) | BlockStatus::Volume(ReqStatus::Ok) => Status::SUCCESS,
        BlockStatus::Member(IoStatus::ReadError) => failed(true),
        BlockStatus::Member(IoStatus::DeviceError | IoStatus::Timeout) => failed(false),
        BlockStatus::Member(IoStatus::NoSpace) => Status::CAPACITY_EXCEEDED,
        BlockStatus::Member(IoStatus::Miscompare) | BlockStatus::Volume(ReqStatus::Miscompare) => {
            Status::COMPARE_FAILURE.dnr()
        }
        BlockStatus::Volume(ReqStatus::Unrecoverable) => Status::UNRECOVERED_READ_ERROR.dnr(),
        BlockStatus::Volume(ReqStatus::WriteFault) => Status::WRITE_FAULT,
        BlockStatus::Volume(ReqStatus::Offline | ReqStatus::Aborted | ReqStatus::NotHere) => {
            Status::NAMESPACE_NOT_READY
        }
        BlockStatus::Volume(ReqStatus::OutOfRange) => Status::LBA_OUT_OF_RANGE.dnr(),
    }
}

/// A command's data as its SGL describes it.
pub enum Data {
    /// None.
    None,
    /// In the receive buffer, whole.
    Here(Range<usize>),
    /// To be moved by the transport: so many bytes.
    Transport(u32),
}

/// Reads the SGL of a command that came with `data` in its capsule.
pub fn sgl(sqe: &Sqe, data: Option<Range<usize>>) -> Result<Data, Status> {
    if sqe.psdt() != 1 && !sqe.is_fabrics() {
        return Err(Status::INVALID_FIELD.dnr());
    }
    let (at, len) = (sqe.sgl.addr.get(), sqe.sgl.len.get());
    match sqe.sgl.id {
        Sgl::IN_CAPSULE => {
            let len = u64::from(len);
            let have = data.as_ref().map_or(0, |d| d.len() as u64);
            if len == 0 && have == 0 {
                return Ok(Data::None);
            }
            if at > have {
                return Err(Status::SGL_OFFSET_INVALID.dnr());
            }
            match data {
                Some(data) if len <= have - at => {
                    let start = data.start + at as usize;
                    Ok(Data::Here(start..start + len as usize))
                }
                _ => Err(Status::DATA_SGL_LENGTH_INVALID.dnr()),
            }
        }
        // Linux gives every command without data such a descriptor of length 0, whatever the opcode's direction bits say.
        Sgl::TRANSPORT | Sgl::DATA_BLOCK if len == 0 && data.is_none() => Ok(Data::None),
        // What Linux sends with a command that has no data, whatever direction its opcode says.
        Sgl::TRANSPORT if data.is_none() && len == 0 => Ok(Data::None),
        Sgl::TRANSPORT if data.is_none() => Ok(Data::Transport(len)),
        _ => Err(Status::SGL_TYPE_INVALID.dnr()),
    }
}

impl Connection {
    /// A command has come in, with its in-capsule data; `intact` is false if the data's digest is wrong.
    pub(super) fn command(&mut self, sqe: &Sqe, data: Option<Range<usize>>, intact: bool, env: &mut Env) -> Taken {
        match &self.queue {
            Some(queue) if queue.qid != 0 && !sqe.is_fabrics() => self.io_command(sqe, data, intact, env),
            _ => self.admin_capsule(sqe, data, intact, env),
        }
    }

    /// Answers a command that got no place in the slab.
    pub(super) fn refuse(&mut self, cid: u16, status: Status) -> Taken {
        if let Some(queue) = &mut self.queue {
            queue.taken();
        }
        self.respond(cid, status, 0);
        Taken::Yes
    }

    fn io_command(&mut self, sqe: &Sqe, data: Option<Range<usize>>, intact: bool, env: &mut Env) -> Taken {
        let cid = sqe.cid.get();
        if !self.queue.as_ref().is_some_and(|q| q.controller.ready()) {
            return self.refuse(cid, Status::COMMAND_SEQUENCE_ERROR);
        }
        if sqe.fuse() != 0 {
            return self.refuse(cid, Status::INVALID_FIELD.dnr());
        }
        let op = match sqe.opcode {
            io::READ => Op::Read,
            io::WRITE => Op::Write { fua: sqe.fua() },
            io::COMPARE => Op::Compare,
            io::FLUSH => Op::Flush,
            io::WRITE_ZEROES => Op::Zero { unmap: sqe.deac(), fua: sqe.fua() },
            io::DATASET_MANAGEMENT => Op::Deallocate { ranges: sqe.dsm_ranges() as u16, next: 0, at: 0 },
            _ => return self.refuse(cid, Status::INVALID_OPCODE.dnr()),
        };
        let nsid = sqe.nsid.get();
        let Ok(found) = self.namespaces.binary_search_by_key(&nsid, |n| n.nsid) else {
            return self.refuse(cid, Status::INVALID_NAMESPACE.dnr());
        };
        let namespace = self.namespaces[found];
        let data = match op {
            Op::Flush | Op::Zero { .. } => Data::None,
            _ => match sgl(sqe, data) {
                Ok(data) => data,
                Err(status) => return self.refuse(cid, status),
            },
        };
        if !intact {
            return self.refuse(cid, Status::TRANSIENT_TRANSPORT_ERROR);
        }
        let (mut offset, mut len) = (0, 0);
        if matches!(op, Op::Read | Op::Write { .. } | Op::Compare | Op::Zero { .. }) {
            let (slba, blocks) = (sqe.slba(), u64::from(sqe.blocks()));
            if slba.checked_add(blocks).is_none_or(|end| end > namespace.blocks) {
                return self.refuse(cid, Status::LBA_OUT_OF_RANGE.dnr());
            }
            (offset, len) = (slba << namespace.shift, blocks << namespace.shift);
        }
        let transfer = match (op, &data) {
            (Op::Flush | Op::Zero { .. }, _) => 0,
            (Op::Deallocate { .. }, Data::Here(range)) => range.len() as u64,
            (Op::Deallocate { .. }, Data::Transport(n)) => u64::from(*n),
            (Op::Read, Data::Transport(n)) | (Op::Write { .. } | Op::Compare, Data::Transport(n)) => {
                if len > u64::from(MAX_TRANSFER) {
                    return self.refuse(cid, Status::INVALID_FIELD.dnr());
                }
                if u64::from(*n) != len {
                    return self.refuse(cid, Status::DATA_SGL_LENGTH_INVALID.dnr());
                }
                len
            }
            (Op::Write { .. } | Op::Compare, Data::Here(range)) => {
                if range.len() as u64 != len {
                    return self.refuse(cid, Status::DATA_SGL_LENGTH_INVALID.dnr());
                }
                len
            }
            _ => return self.refuse(cid, Status::SGL_TYPE_INVALID.dnr()),
        };
        if let Op::Deallocate { ranges, .. } = op
            && (transfer < u64::from(ranges) * RANGE as u64 || transfer > (dsm::MAX_RANGES * RANGE) as u64)
        {
            return self.refuse(cid, Status::DATA_SGL_LENGTH_INVALID.dnr());
        }
        let op = match op {
            // Without the attribute AD the ranges are hints about access: there is nothing to do once they are in.
            Op::Deallocate { .. } if sqe.dsm_attributes() & dsm::AD == 0 => {
                Op::Deallocate { ranges: 0, next: 0, at: 0 }
            }
            op => op,
        };
        let Some(index) = self.commands.take(cid) else {
            // More commands than entries: the host's idea of the queue is not ours, so nothing can be trusted any more.
            self.fatal(FatalError::LIMIT, env);
            return Taken::Yes;
        };
        let command = &mut self.commands[index];
        (command.op, command.device, command.key) = (op, namespace.device, namespace.key);
        (command.offset, command.len, command.transfer) = (offset, len, transfer as u32);
        let taken = self.start_io(index, data, env);
        if taken == Taken::Later {
            self.commands.release(index);
            return taken;
        }
        match op {
            Op::Read => self.counters.read(len),
            Op::Write { .. } => self.counters.write(len),
            Op::Flush => self.counters.flush(),
            _ => self.counters.other(),
        }
        if let Some(queue) = &mut self.queue {
            queue.taken();
        }
        Taken::Yes
    }

    /// Gets a buffer, then the data, then goes to the device: as far as it can be done now.
    fn start_io(&mut self, index: u16, data: Data, env: &mut Env) -> Taken {
        match self.commands[index].op {
            Op::Flush | Op::Zero { .. } => self.start_device(index, env),
            Op::Deallocate { .. } => {
                let transfer = self.commands[index].transfer;
                self.commands[index].buffer = Buffer::Heap(vec![0; transfer as usize].into_boxed_slice());
                match data {
                    Data::Here(range) => {
                        self.place(index, range, env);
                        self.start_device(index, env);
                    }
                    _ => self.send_r2t(index),
                }
            }
            _ => {
                if let Data::Here(range) = data {
                    let turn = std::mem::take(&mut self.my_turn);
                    if !self.take_buffers(index, Use::Capsule, turn, env) {
                        self.stalled = true;
                        self.turn_in_vain = turn;
                        if !turn {
                            self.counters.buffer_wait();
                            env.local.shares.wait(Use::Capsule, (self.index, None));
                        }
                        return Taken::Later;
                    }
                    self.place(index, range, env);
                    self.start_device(index, env);
                } else {
                    let kind = if self.commands[index].op == Op::Read { Use::Read } else { Use::Ready };
                    let behind = kind == Use::Read && self.is_behind();
                    if !behind && self.take_buffers(index, kind, false, env) {
                        self.have_buffer(index, env);
                    } else {
                        self.commands[index].state = State::WaitBuffer;
                        self.counters.buffer_wait();
                        env.local.shares.wait(kind, (self.index, Some(index)));
                    }
                }
            }
        }
        Taken::Yes
    }

    /// All slots that the command needs, or none.
    fn take_buffers(&mut self, index: u16, kind: Use, turn: bool, env: &mut Env) -> bool {
        let command = &mut self.commands[index];
        let shares = &mut env.local.shares;
        let len = command.transfer;
        let first = if turn { shares.take_now(env.pool, kind, len) } else { shares.take(env.pool, kind, len) };
        let Some(first) = first else { return false };
        if command.op == Op::Compare {
            // What the device holds is freed by the device alone, like in-capsule data.
            let Some(second) = shares.take_now(env.pool, Use::Capsule, len) else {
                shares.give(env.pool, first);
                return false;
            };
            command.second = second;
        }
        command.buffer = first;
        true
    }

    fn have_buffer(&mut self, index: u16, env: &mut Env) {
        if self.commands[index].op == Op::Read {
            self.start_device(index, env);
        } else {
            self.send_r2t(index);
        }
    }

    /// It is the turn of a command, or of the next capsule, to get a slot. `None` if there is no room yet; otherwise
    /// whether anything was done.
    pub fn turn(&mut self, kind: Use, command: Option<u16>, env: &mut Env) -> Option<bool> {
        let Some(index) = command else {
            if !self.stalled {
                return Some(false);
            }
            (self.stalled, self.my_turn, self.turn_in_vain) = (false, true, false);
            self.resume(env);
            self.my_turn = false;
            return if self.turn_in_vain { None } else { Some(true) };
        };
        if !self.is_open() || self.commands[index].state != State::WaitBuffer {
            return Some(false);
        }
        if !self.take_buffers(index, kind, true, env) {
            return None;
        }
        self.have_buffer(index, env);
        self.has_sent(env);
        Some(true)
    }

    /// All data that was asked for is in.
    pub(super) fn data_complete(&mut self, index: u16, env: &mut Env) {
        let command = &self.commands[index];
        let cid = command.cid;
        if command.digest_error {
            self.release(index, env);
            self.respond(cid, Status::TRANSIENT_TRANSPORT_ERROR, 0);
        } else if command.op == Op::Admin {
            self.admin_data_complete(index, env);
        } else {
            self.start_device(index, env);
        }
    }

    fn start_device(&mut self, index: u16, env: &mut Env) {
        let command = &self.commands[index];
        if env.local.devices.get(command.device, command.key).is_none() {
            // Removed while the command waited for a buffer or for data.
            let cid = command.cid;
            self.release(index, env);
            self.respond(cid, Status::INVALID_NAMESPACE.dnr(), 0);
            return;
        }
        if let Op::Deallocate { .. } = command.op {
            self.commands.ordered(index);
            self.commands.completed();
            return self.next_range(index, env);
        }
        let seg = match &command.buffer {
            Buffer::Pool(slot, _) => Some(Seg { addr: slot.addr(), len: command.transfer }),
            _ => None,
        };
        let op = match command.op {
            Op::Read => IoOp::Read,
            Op::Write { fua } => IoOp::Write { fua },
            Op::Zero { unmap, fua } => IoOp::Zero { unmap, fua },
            Op::Compare => match &command.second {
                Buffer::Pool(slot, _) => IoOp::Compare { read_buf: slot.addr() },
                _ => IoOp::Flush,
            },
            _ => IoOp::Flush,
        };
        self.order(index, op, command.offset, command.len, seg, env);
    }

    fn order(&mut self, index: u16, op: IoOp, offset: u64, len: u64, seg: Option<Seg>, env: &mut Env) {
        let tag = u64::from(self.index) << 16 | u64::from(index);
        self.commands.ordered(index);
        env.local.devices.submit(self.commands[index].device, Io { tag, op, offset, len }, seg);
    }

    /// Orders the next range of a deallocation, or answers when there is none.
    fn next_range(&mut self, index: u16, env: &mut Env) {
        let command = &mut self.commands[index];
        let cid = command.cid;
        let Op::Deallocate { ranges, mut next, mut at } = command.op else { return };
        let device = env.local.devices.get(command.device, command.key);
        let info = device.map(|d| (d.info.block_size.trailing_zeros(), d.info.size, d.info.deallocate));
        let mut order = None;
        let mut status = Status::SUCCESS;
        if let Some((shift, size, true)) = info {
            let all = DsmRange::parse(command.buffer.bytes(env.pool), ranges as usize).unwrap_or_default();
            while let Some(range) = all.get(next as usize) {
                let (blocks, slba) = (range.llb.get(), range.slba.get());
                if slba.checked_add(u64::from(blocks)).is_none_or(|end| end > size >> shift) {
                    status = Status::LBA_OUT_OF_RANGE.dnr();
                    break;
                }
                if at < blocks {
                    let piece = (blocks - at).min(DEALLOCATE_PIECE >> shift);
                    order = Some(((slba + u64::from(at)) << shift, u64::from(piece) << shift));
                    at += piece;
                    break;
                }
                (next, at) = (next + 1, 0);
            }
        } else if info.is_none() {
            status = Status::INVALID_NAMESPACE.dnr();
        }
        command.op = Op::Deallocate { ranges, next, at };
        match order {
            Some((offset, len)) => self.order(index, IoOp::Zero { unmap: true, fua: false }, offset, len, None, env),
            None => {
                self.release(index, env);
                self.respond(cid, status, 0);
            }
        }
    }

    /// The device is done with a command.
    pub fn complete(&mut self, index: u16, status: BlockStatus, env: &mut Env) {
        self.commands.completed();
        if !self.is_open() {
            // Nobody is there to answer.
            self.release(index, env);
            return;
        }
        let (op, cid) = (self.commands[index].op, self.commands[index].cid);
        let status = status_of(op, status);
        match op {
            Op::Read if status.is_success() => {
                let success = self.queue.as_ref().is_some_and(|q| q.no_flow_control);
                self.send_data(index, self.commands[index].transfer, success, env);
                if !success {
                    // The host learns the queue's head from the response, which SUCCESS would have saved.
                    self.respond(cid, status, 0);
                }
            }
            Op::Deallocate { .. } if status.is_success() => self.next_range(index, env),
            _ => {
                self.release(index, env);
                self.respond(cid, status, 0);
            }
        }
        self.has_sent(env);
    }
}

const _: () = assert!(IN_CAPSULE as usize >= dsm::MAX_RANGES * RANGE, "a deallocation fits its capsule");
