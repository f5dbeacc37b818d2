//! Files and kernel block devices through io_uring: one ring for each reactor, shared by its devices, so that one system
//! call a pass serves them all. Buffers are registered where the kernel lets us. Where there is no io_uring, a thread with
//! ordinary system calls does the work.

mod blocking;
mod fixed;
mod kernel;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::Once;

use io_uring::{IoUring, opcode, squeue, types};
use raid_core::action::{IoStatus, Seg};

#[cfg(test)]
pub(super) use self::blocking::denied::deny_io_uring;
use self::fixed::Fixed;
pub(super) use self::kernel::status;
pub(super) use self::kernel::{DirectIo, device_geometry, direct_io};
use self::kernel::{Zeroing, advance, zeros};
use super::backing::OpenFile;
use super::{BlockDevice, BlockInfo, BlockStatus, Completion, Completions, Io, IoOp};
use crate::dma::Memory;
use crate::reactor::{Context, Waker};

/// Submission entries of a reactor's ring.
const ENTRIES: u32 = 1024;
/// I/Os in flight on one device and reactor.
const DEPTH: usize = 256;

/// A reactor's ring and the answers that wait for their devices.
struct Ring {
    uring: IoUring,
    fixed: Fixed,
    /// Answers by device number: slot and result.
    answers: Vec<Option<Vec<(u32, i32)>>>,
    queued: usize,
    waker: Waker,
}

thread_local! {
    static RING: RefCell<Option<Rc<RefCell<Ring>>>> = const { RefCell::new(None) };
}

impl Ring {
    fn of_this_reactor(cx: &Context, memory: &Memory) -> Result<Rc<RefCell<Ring>>, String> {
        RING.with(|slot| {
            if let Some(ring) = slot.borrow().as_ref() {
                return Ok(Rc::clone(ring));
            }
            let uring: IoUring =
                IoUring::builder().setup_cqsize(ENTRIES * 4).build(ENTRIES).map_err(|e| e.to_string())?;
            let fixed = Fixed::new(&uring, memory);
            // SAFETY: the ring owns the descriptor and lives in this thread until its end; the reactor's epoll set drops
            // it by itself when it is closed.
            let fd = unsafe { BorrowedFd::borrow_raw(uring.as_raw_fd()) };
            cx.watch(fd).map_err(|e| format!("the reactor cannot watch its ring: {e}"))?;
            let ring = Rc::new(RefCell::new(Ring { uring, fixed, answers: Vec::new(), queued: 0, waker: cx.waker() }));
            *slot.borrow_mut() = Some(Rc::clone(&ring));
            Ok(ring)
        })
    }

    fn push(&mut self, entry: squeue::Entry) -> bool {
        // SAFETY: the entry names memory of the pool and of a device's slot table, both of which stay until the
        // completion: a device waits for its I/Os before it goes.
        let pushed = unsafe { self.uring.submission().push(&entry) }.is_ok();
        self.queued += usize::from(pushed);
        pushed
    }

    fn ring(&mut self) {
        // Answers that found the completion queue full wait in the kernel until somebody enters it.
        if self.queued > 0 || self.uring.submission().cq_overflow() {
            match self.uring.submit() {
                Ok(n) => self.queued -= n.min(self.queued),
                Err(e) => tracing::debug!(%e, "the ring takes nothing now"),
            }
            if self.queued > 0 {
                // The kernel was short of something or interrupted. Nothing announces that it can go on: no sleep.
                self.waker.wake();
            }
        }
    }

    /// Takes the answers from the kernel. Those of another device may be for one that was polled before in this pass: the
    /// completion queue is empty now and its descriptor silent, so the reactor is told, or it would go to sleep on them.
    fn reap(&mut self, caller: usize) {
        let Ring { uring, answers, waker, .. } = self;
        let mut others = false;
        for entry in uring.completion() {
            let (device, slot) = ((entry.user_data() >> 32) as usize, entry.user_data() as u32);
            others |= device != caller;
            if let Some(Some(list)) = answers.get_mut(device) {
                list.push((slot, entry.result()));
            }
        }
        if others {
            waker.wake();
        }
    }
}

struct Slot {
    io: Io,
    /// Bytes done so far, where the kernel did a part.
    done: u64,
    iovecs: Vec<libc::iovec>,
    step: Step,
}

/// What is under way for an I/O.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The transfer, or the flush that was asked for.
    Plain,
    /// A zeroing.
    Zero(Zeroing),
    /// The flush after a zeroing with FUA.
    FlushAfter,
}

/// One reactor's queue to a file or kernel block device.
pub struct UringDevice {
    ring: Rc<RefCell<Ring>>,
    number: usize,
    file: Arc<OpenFile>,
    info: BlockInfo,
    memory: Memory,
    slots: Vec<Slot>,
    free: Vec<u32>,
    answers: Vec<(u32, i32)>,
    /// Slots of I/Os that the device cannot do.
    refused: Vec<u32>,
    /// Slots whose entry found the submission queue full.
    unsent: VecDeque<u32>,
    /// How to zero without and with deallocation: what has worked so far.
    zeroing: [Zeroing; 2],
}

/// Opens a queue on the reactor that calls.
pub fn open(
    cx: &mut Context,
    file: Arc<OpenFile>,
    info: BlockInfo,
    memory: &Memory,
) -> Result<Box<dyn BlockDevice>, String> {
    let ring = match Ring::of_this_reactor(cx, memory) {
        Ok(ring) => ring,
        Err(e) => {
            static SAID: Once = Once::new();
            SAID.call_once(|| {
                tracing::warn!("io_uring is not to be had here ({e}): files are read and written by a thread for each, which is slower; allow it with kernel.io_uring_disabled=0 and a seccomp profile that lets io_uring_setup pass");
            });
            return blocking::open(cx, file, info, memory);
        }
    };
    let number = {
        let mut ring = ring.borrow_mut();
        let answers = Some(Vec::with_capacity(DEPTH));
        match ring.answers.iter().position(Option::is_none) {
            Some(free) => {
                ring.answers[free] = answers;
                free
            }
            None => {
                ring.answers.push(answers);
                ring.answers.len() - 1
            }
        }
    };
    let none = || Slot {
        io: Io { tag: 0, op: IoOp::Flush, offset: 0, len: 0 },
        done: 0,
        iovecs: Vec::with_capacity(16),
        step: Step::Plain,
    };
    let zeroing = [false, true].map(|unmap| Zeroing::first(file.block_device, unmap));
    Ok(Box::new(UringDevice {
        ring,
        number,
        file,
        info,
        memory: memory.clone(),
        slots: (0..DEPTH).map(|_| none()).collect(),
        free: (0..DEPTH as u32).rev().collect(),
        answers: Vec::with_capacity(DEPTH),
        refused: Vec::with_capacity(DEPTH),
        unsent: VecDeque::with_capacity(DEPTH),
        zeroing,
    }))
}

impl UringDevice {
    fn fd(&self) -> types::Fd {
        types::Fd(self.file.file.as_raw_fd() as RawFd)
    }

    /// The entry for what is left of a slot's I/O.
    fn entry(&self, slot: u32, ring: &mut Ring) -> squeue::Entry {
        let s = &self.slots[slot as usize];
        let at = s.io.offset + s.done;
        let fd = self.fd();
        let entry = match (s.io.op, s.step) {
            (IoOp::Flush, _) | (_, Step::FlushAfter) => {
                opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build()
            }
            (_, Step::Zero(Zeroing::Write)) => {
                opcode::Writev::new(fd, s.iovecs.as_ptr(), s.iovecs.len() as u32).offset(at).build()
            }
            (_, Step::Zero(way)) => opcode::Fallocate::new(fd, s.io.len).offset(at).mode(way.mode()).build(),
            (IoOp::Read, _) if s.iovecs.len() == 1 => {
                let v = s.iovecs[0];
                match ring.fixed.index(&ring.uring, &v) {
                    Some(i) => opcode::ReadFixed::new(fd, v.iov_base.cast(), v.iov_len as u32, i).offset(at).build(),
                    None => opcode::Read::new(fd, v.iov_base.cast(), v.iov_len as u32).offset(at).build(),
                }
            }
            (IoOp::Read, _) => opcode::Readv::new(fd, s.iovecs.as_ptr(), s.iovecs.len() as u32).offset(at).build(),
            (IoOp::Write { fua }, _) => {
                let flags = if fua { libc::RWF_DSYNC } else { 0 };
                if s.iovecs.len() == 1 {
                    let v = s.iovecs[0];
                    match ring.fixed.index(&ring.uring, &v) {
                        Some(i) => opcode::WriteFixed::new(fd, v.iov_base.cast_const().cast(), v.iov_len as u32, i)
                            .offset(at)
                            .rw_flags(flags)
                            .build(),
                        None => opcode::Write::new(fd, v.iov_base.cast_const().cast(), v.iov_len as u32)
                            .offset(at)
                            .rw_flags(flags)
                            .build(),
                    }
                } else {
                    opcode::Writev::new(fd, s.iovecs.as_ptr(), s.iovecs.len() as u32).offset(at).rw_flags(flags).build()
                }
            }
            // Compare is refused in `submit`, and zeroing has steps of its own.
            (IoOp::Compare { .. } | IoOp::Zero { .. }, Step::Plain) => opcode::Nop::new().build(),
        };
        entry.user_data((self.number as u64) << 32 | u64::from(slot))
    }

    fn send(&mut self, slot: u32) {
        let ring = Rc::clone(&self.ring);
        let mut ring = ring.borrow_mut();
        let entry = self.entry(slot, &mut ring);
        if ring.push(entry.clone()) {
            return;
        }
        ring.ring();
        if !ring.push(entry) {
            self.unsent.push_back(slot);
        }
    }

    /// What an answer means; `None` if the I/O goes on.
    fn judge(&mut self, slot: u32, result: i32) -> Option<IoStatus> {
        let s = &mut self.slots[slot as usize];
        if result < 0 {
            let errno = -result;
            if errno == libc::EINTR || errno == libc::EAGAIN {
                return None;
            }
            if let (Step::Zero(way), IoOp::Zero { unmap, .. }) = (s.step, s.io.op)
                && let Some(next) = way.after(errno)
            {
                self.zeroing[usize::from(unmap)] = next;
                s.step = Step::Zero(next);
                if next == Zeroing::Write {
                    zeros(&mut s.iovecs, s.io.len);
                }
                return None;
            }
            return Some(status(errno, s.io.op));
        }
        let fua = matches!(s.io.op, IoOp::Zero { fua: true, .. });
        match s.step {
            Step::Plain if s.io.op == IoOp::Flush => return Some(IoStatus::Ok),
            Step::FlushAfter => return Some(IoStatus::Ok),
            Step::Zero(Zeroing::Punch | Zeroing::Range) => {}
            Step::Plain | Step::Zero(Zeroing::Write) => {
                let n = result as u64;
                s.done += n;
                if s.done < s.io.len {
                    if n == 0 {
                        // The file became shorter than the member: its blocks are gone.
                        return Some(IoStatus::DeviceError);
                    }
                    match s.step {
                        Step::Plain => advance(&mut s.iovecs, n as usize),
                        _ => zeros(&mut s.iovecs, s.io.len - s.done),
                    }
                    return None;
                }
            }
        }
        if fua {
            s.step = Step::FlushAfter;
            return None;
        }
        Some(IoStatus::Ok)
    }
}

impl BlockDevice for UringDevice {
    fn info(&self) -> &BlockInfo {
        &self.info
    }

    fn submit(&mut self, io: Io, segs: &[Seg]) -> Result<(), Io> {
        let Some(slot) = self.free.pop() else { return Err(io) };
        let s = &mut self.slots[slot as usize];
        s.io = io;
        s.done = 0;
        s.step = match io.op {
            IoOp::Zero { unmap, .. } => Step::Zero(self.zeroing[usize::from(unmap)]),
            _ => Step::Plain,
        };
        s.iovecs.clear();
        s.iovecs.extend(segs.iter().map(|seg| libc::iovec {
            iov_base: self.memory.ptr(seg.addr, seg.len as usize).cast(),
            iov_len: seg.len as usize,
        }));
        let inside = io.offset.checked_add(io.len).is_some_and(|end| end <= self.info.size);
        if s.step == Step::Zero(Zeroing::Write) {
            zeros(&mut s.iovecs, io.len);
        }
        if !inside || matches!(io.op, IoOp::Compare { .. }) {
            self.refused.push(slot);
            return Ok(());
        }
        self.send(slot);
        Ok(())
    }

    fn ring(&mut self) {
        // In the order of arrival; what still finds no room goes to the end again.
        for _ in 0..self.unsent.len() {
            let Some(slot) = self.unsent.pop_front() else { break };
            self.send(slot);
        }
        let mut ring = self.ring.borrow_mut();
        ring.ring();
        if !self.unsent.is_empty() {
            ring.waker.wake();
        }
    }

    fn poll(&mut self, done: &mut Completions) {
        {
            let mut ring = self.ring.borrow_mut();
            ring.reap(self.number);
            if let Some(list) = &mut ring.answers[self.number] {
                self.answers.append(list);
            }
        }
        let mut answers = std::mem::take(&mut self.answers);
        for (slot, result) in answers.drain(..) {
            match self.judge(slot, result) {
                Some(status) => {
                    done.push(Completion {
                        tag: self.slots[slot as usize].io.tag,
                        status: BlockStatus::Member(status),
                    });
                    self.free.push(slot);
                }
                None => self.send(slot),
            }
        }
        self.answers = answers;
        for slot in self.refused.drain(..) {
            let status = BlockStatus::Member(IoStatus::DeviceError);
            done.push(Completion { tag: self.slots[slot as usize].io.tag, status });
            self.free.push(slot);
        }
    }

    fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

impl Drop for UringDevice {
    fn drop(&mut self) {
        // The kernel may still write into buffers: they must not be given to somebody else before it is done.
        let mut done = Completions::new();
        while self.in_flight() > 0 {
            self.ring();
            self.poll(&mut done);
            if self.in_flight() > 0
                && let Err(e) = self.ring.borrow().uring.submit_and_wait(1)
                && !matches!(e.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
            {
                // Going on would give the buffers of I/Os in flight to others.
                panic!("{}: the ring cannot be waited for: {e}", self.info.address);
            }
        }
        self.ring.borrow_mut().answers[self.number] = None;
    }
}
