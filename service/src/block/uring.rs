//! Files and kernel block devices through io_uring: one ring for each reactor, shared by its devices, so that one system
//! call a pass serves them all. Buffers are registered where the kernel lets us.

use std::cell::RefCell;
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::Once;

use io_uring::{IoUring, opcode, squeue, types};
use raid_core::action::{IoStatus, Seg};

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
    /// Buffers are registered: index = region.
    fixed: bool,
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
            let uring: IoUring = IoUring::builder().setup_cqsize(ENTRIES * 4).build(ENTRIES).map_err(|e| {
                format!("io_uring is not to be had here ({e}); allow it (kernel.io_uring_disabled=0, no seccomp filter) to use files as members")
            })?;
            let fixed = register(&uring, memory);
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
        if self.queued > 0 {
            match self.uring.submit() {
                Ok(n) => self.queued -= n.min(self.queued),
                // Busy or interrupted: the entries stay queued, the next pass submits them.
                Err(e) => tracing::debug!(%e, "the ring takes nothing now"),
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

/// Registers all regions; false, with one line, where the memory lock limit forbids it.
fn register(uring: &IoUring, memory: &Memory) -> bool {
    let iovecs: Vec<libc::iovec> = (0..memory.regions() as u16)
        .map(|r| {
            let (start, len) = memory.region(r);
            libc::iovec { iov_base: start.cast(), iov_len: len }
        })
        .collect();
    // SAFETY: the regions are mapped as long as the `Memory`, which every device of the ring holds.
    match unsafe { uring.submitter().register_buffers(&iovecs) } {
        Ok(()) => true,
        Err(e) => {
            static SAID: Once = Once::new();
            SAID.call_once(|| {
                tracing::info!("buffers are not registered with io_uring ({e}); raise the memory lock limit (ulimit -l) for fewer cycles per I/O");
            });
            false
        }
    }
}

struct Slot {
    io: Io,
    /// Bytes done so far, where the kernel did a part.
    done: u64,
    iovecs: Vec<libc::iovec>,
    /// A second step is under way: the flush after a zeroing with FUA, or the plainer way of zeroing.
    step: Step,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    First,
    ZeroRange,
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
    /// Slots whose entry found the submission queue full.
    unsent: Vec<u32>,
}

/// Opens a queue on the reactor that calls.
pub fn open(
    cx: &mut Context,
    file: Arc<OpenFile>,
    info: BlockInfo,
    memory: &Memory,
) -> Result<Box<dyn BlockDevice>, String> {
    let ring = Ring::of_this_reactor(cx, memory)?;
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
        step: Step::First,
    };
    Ok(Box::new(UringDevice {
        ring,
        number,
        file,
        info,
        memory: memory.clone(),
        slots: (0..DEPTH).map(|_| none()).collect(),
        free: (0..DEPTH as u32).rev().collect(),
        answers: Vec::with_capacity(DEPTH),
        unsent: Vec::with_capacity(DEPTH),
    }))
}

impl UringDevice {
    fn fd(&self) -> types::Fd {
        types::Fd(self.file.file.as_raw_fd() as RawFd)
    }

    /// The entry for what is left of a slot's I/O.
    fn entry(&self, slot: u32, ring: &Ring) -> squeue::Entry {
        let s = &self.slots[slot as usize];
        let at = s.io.offset + s.done;
        let fd = self.fd();
        let entry = match (s.io.op, s.step) {
            (IoOp::Flush, _) | (_, Step::FlushAfter) => {
                opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build()
            }
            (IoOp::Zero { .. }, step) => {
                let mode =
                    if step == Step::ZeroRange { libc::FALLOC_FL_ZERO_RANGE } else { libc::FALLOC_FL_PUNCH_HOLE };
                opcode::Fallocate::new(fd, s.io.len).offset(at).mode(mode | libc::FALLOC_FL_KEEP_SIZE).build()
            }
            (IoOp::Read, _) if s.iovecs.len() == 1 => {
                let v = s.iovecs[0];
                match self.fixed_index(ring, &v) {
                    Some(i) => opcode::ReadFixed::new(fd, v.iov_base.cast(), v.iov_len as u32, i).offset(at).build(),
                    None => opcode::Read::new(fd, v.iov_base.cast(), v.iov_len as u32).offset(at).build(),
                }
            }
            (IoOp::Read, _) => opcode::Readv::new(fd, s.iovecs.as_ptr(), s.iovecs.len() as u32).offset(at).build(),
            (IoOp::Write { fua }, _) => {
                let flags = if fua { libc::RWF_DSYNC } else { 0 };
                if s.iovecs.len() == 1 {
                    let v = s.iovecs[0];
                    match self.fixed_index(ring, &v) {
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
            // Refused in `submit`.
            (IoOp::Compare { .. }, _) => opcode::Nop::new().build(),
        };
        entry.user_data((self.number as u64) << 32 | u64::from(slot))
    }

    fn fixed_index(&self, ring: &Ring, v: &libc::iovec) -> Option<u16> {
        if !ring.fixed {
            return None;
        }
        (0..self.memory.regions() as u16).find(|r| {
            let (start, len) = self.memory.region(*r);
            (v.iov_base as usize).checked_sub(start as usize).is_some_and(|o| o < len)
        })
    }

    fn send(&mut self, slot: u32) {
        let ring = Rc::clone(&self.ring);
        let mut ring = ring.borrow_mut();
        let entry = self.entry(slot, &ring);
        if ring.push(entry.clone()) {
            return;
        }
        ring.ring();
        if !ring.push(entry) {
            self.unsent.push(slot);
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
            // A device or file system that cannot deallocate still can zero.
            if matches!(s.io.op, IoOp::Zero { .. })
                && s.step == Step::First
                && (errno == libc::EOPNOTSUPP || errno == libc::EINVAL)
            {
                s.step = Step::ZeroRange;
                return None;
            }
            return Some(match (errno, s.io.op) {
                (libc::ENOSPC | libc::EDQUOT, _) => IoStatus::NoSpace,
                (libc::EIO | libc::ENODATA | libc::EILSEQ, IoOp::Read) => IoStatus::ReadError,
                (libc::ETIMEDOUT | libc::ETIME, _) => IoStatus::Timeout,
                _ => IoStatus::DeviceError,
            });
        }
        match s.io.op {
            IoOp::Read | IoOp::Write { .. } => {
                let n = result as u64;
                s.done += n;
                if s.done >= s.io.len {
                    return Some(IoStatus::Ok);
                }
                if n == 0 {
                    // The file became shorter than the member: its blocks are gone.
                    return Some(IoStatus::DeviceError);
                }
                advance(&mut s.iovecs, n as usize);
                None
            }
            IoOp::Zero { fua: true, .. } if s.step != Step::FlushAfter => {
                s.step = Step::FlushAfter;
                None
            }
            _ => Some(IoStatus::Ok),
        }
    }
}

/// Drops the first `n` bytes of a gather list.
fn advance(iovecs: &mut Vec<libc::iovec>, mut n: usize) {
    while n > 0 && !iovecs.is_empty() {
        let first = &mut iovecs[0];
        if first.iov_len <= n {
            n -= first.iov_len;
            iovecs.remove(0);
        } else {
            first.iov_base = first.iov_base.cast::<u8>().wrapping_add(n).cast();
            first.iov_len -= n;
            n = 0;
        }
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
        s.step = Step::First;
        s.iovecs.clear();
        s.iovecs.extend(segs.iter().map(|seg| libc::iovec {
            iov_base: self.memory.ptr(seg.addr, seg.len as usize).cast(),
            iov_len: seg.len as usize,
        }));
        let inside = io.offset.checked_add(io.len).is_some_and(|end| end <= self.info.size);
        if !inside || matches!(io.op, IoOp::Compare { .. }) {
            self.answers.push((slot, -libc::EINVAL));
            return Ok(());
        }
        self.send(slot);
        Ok(())
    }

    fn ring(&mut self) {
        for slot in std::mem::take(&mut self.unsent) {
            self.send(slot);
        }
        self.ring.borrow_mut().ring();
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
        if self.answers.is_empty() {
            self.answers = answers;
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
                && e.raw_os_error() != Some(libc::EINTR)
            {
                tracing::error!(%e, "the ring cannot wait for its last answers");
                break;
            }
        }
        self.ring.borrow_mut().answers[self.number] = None;
    }
}

/// Size, logical and physical block size of a kernel block device, in bytes.
pub(super) fn device_geometry(file: &File) -> nix::Result<(u64, u32, u32)> {
    let fd = file.as_raw_fd();
    let mut size = 0u64;
    let (mut logical, mut physical): (libc::c_int, libc::c_uint) = (0, 0);
    // SAFETY: BLKGETSIZE64 writes a u64, BLKSSZGET an int and BLKPBSZGET an unsigned int to the places given.
    unsafe {
        ioctl::size(fd, &mut size)?;
        ioctl::logical(fd, &mut logical)?;
        ioctl::physical(fd, &mut physical)?;
    }
    Ok((size, logical as u32, physical))
}

mod ioctl {
    //! Block device queries of `linux/fs.h`.
    nix::ioctl_read!(size, 0x12, 114, u64);
    nix::ioctl_read_bad!(logical, 0x1268, libc::c_int);
    nix::ioctl_read_bad!(physical, 0x127b, libc::c_uint);
}

/// The offset alignment, in bytes, that direct I/O on a regular file needs; 512 where the kernel does not tell.
pub(super) fn direct_alignment(file: &File) -> u32 {
    // SAFETY: all-zero is a valid statx buffer, which the call fills.
    let mut buffer: libc::statx = unsafe { std::mem::zeroed() };
    let empty = c"";
    // SAFETY: an open descriptor with AT_EMPTY_PATH, an empty path and a buffer of the right type.
    let result = unsafe {
        libc::statx(file.as_raw_fd(), empty.as_ptr(), libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN, &mut buffer)
    };
    if result == 0 && buffer.stx_mask & libc::STATX_DIOALIGN != 0 && buffer.stx_dio_offset_align > 0 {
        return buffer.stx_dio_offset_align;
    }
    512
}
