//! Files and kernel block devices where there is no io_uring: a thread for each queue does one I/O after the other with
//! ordinary system calls, so that the reactor never waits for a disk.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded};
use raid_core::action::{IoStatus, Seg};

use super::kernel::{Zeroing, advance, status, zeros};
use crate::block::backing::OpenFile;
use crate::block::{BlockDevice, BlockInfo, BlockStatus, Completion, Completions, Io, IoOp};
use crate::dma::Memory;
use crate::reactor::Context;

/// I/Os queued at one device and reactor.
const DEPTH: usize = 256;

/// One I/O on its way to the thread and back.
struct Job {
    io: Io,
    iovecs: Vec<libc::iovec>,
    status: IoStatus,
}

// SAFETY: the pointers are those of pool memory, which is mapped as long as the device that holds the `Memory`; and the
// bytes are the I/O's until its completion, whichever thread moves them.
unsafe impl Send for Job {}

/// One reactor's queue.
struct BlockingDevice {
    info: BlockInfo,
    memory: Memory,
    jobs: Option<Sender<Job>>,
    done: Receiver<Job>,
    /// Jobs to use again: their gather lists have room already.
    spare: Vec<Job>,
    refused: Completions,
    in_flight: usize,
    thread: Option<JoinHandle<()>>,
}

/// Opens a queue on the reactor that calls.
pub(super) fn open(
    cx: &mut Context,
    file: Arc<OpenFile>,
    info: BlockInfo,
    memory: &Memory,
) -> Result<Box<dyn BlockDevice>, String> {
    let (jobs, work) = bounded::<Job>(DEPTH);
    let (finished, done) = bounded(DEPTH);
    let waker = cx.waker();
    let address = info.address.clone();
    let thread = std::thread::Builder::new()
        .name("member-io".into())
        .spawn(move || {
            let mut zeroing = [false, true].map(|unmap| Zeroing::first(file.block_device, unmap));
            for mut job in work {
                job.status = carry_out(&file, &mut job, &mut zeroing);
                if finished.send(job).is_err() {
                    return;
                }
                waker.wake();
            }
        })
        .map_err(|e| format!("{address}: its thread cannot be started: {e}; raise the limit on threads"))?;
    Ok(Box::new(BlockingDevice {
        info,
        memory: memory.clone(),
        jobs: Some(jobs),
        done,
        spare: Vec::with_capacity(DEPTH),
        refused: Completions::new(),
        in_flight: 0,
        thread: Some(thread),
    }))
}

/// Waits for one system call, and turns its error into a number.
fn call(mut f: impl FnMut() -> isize) -> Result<usize, i32> {
    loop {
        match f() {
            n if n >= 0 => return Ok(n as usize),
            _ => match std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) {
                libc::EINTR | libc::EAGAIN => {}
                errno => return Err(errno),
            },
        }
    }
}

fn carry_out(file: &OpenFile, job: &mut Job, zeroing: &mut [Zeroing; 2]) -> IoStatus {
    let fd = file.file.as_raw_fd();
    let (io, iovecs) = (job.io, &mut job.iovecs);
    // SAFETY: no memory is passed.
    let sync = || call(|| unsafe { libc::fdatasync(fd) } as isize).map(|_| true);
    let result = match io.op {
        IoOp::Read => transfer(io, iovecs, |v, at| {
            // SAFETY: the gather list names memory that is the I/O's until its completion (see `Job`).
            unsafe { libc::preadv(fd, v.as_ptr(), v.len() as i32, at) }
        }),
        IoOp::Write { fua } => transfer(io, iovecs, |v, at| {
            // SAFETY: as above.
            unsafe { libc::pwritev2(fd, v.as_ptr(), v.len() as i32, at, if fua { libc::RWF_DSYNC } else { 0 }) }
        }),
        IoOp::Flush => sync(),
        IoOp::Zero { unmap, fua } => {
            let zeroed = zero(fd, io, iovecs, &mut zeroing[usize::from(unmap)]);
            if fua && zeroed == Ok(true) { sync() } else { zeroed }
        }
        IoOp::Compare { .. } => Err(libc::EINVAL),
    };
    match result {
        Ok(true) => IoStatus::Ok,
        Ok(false) => IoStatus::DeviceError,
        Err(errno) => status(errno, io.op),
    }
}

/// Moves all of the gather list, however little the kernel does at a time. False if the file ends before.
fn transfer(
    io: Io,
    iovecs: &mut Vec<libc::iovec>,
    mut step: impl FnMut(&[libc::iovec], i64) -> isize,
) -> Result<bool, i32> {
    let mut done = 0;
    while done < io.len {
        // The kernel takes 1024 elements at most.
        let n = call(|| step(&iovecs[..iovecs.len().min(1024)], (io.offset + done) as i64))?;
        if n == 0 {
            return Ok(false);
        }
        done += n as u64;
        advance(iovecs, n);
    }
    Ok(true)
}

fn zero(fd: i32, io: Io, iovecs: &mut Vec<libc::iovec>, way: &mut Zeroing) -> Result<bool, i32> {
    while *way != Zeroing::Write {
        // SAFETY: no memory is passed.
        let result = call(|| unsafe { libc::fallocate(fd, way.mode(), io.offset as i64, io.len as i64) } as isize);
        match result {
            Ok(_) => return Ok(true),
            Err(errno) => *way = way.after(errno).ok_or(errno)?,
        }
    }
    let mut done = 0;
    while done < io.len {
        zeros(iovecs, io.len - done);
        // SAFETY: the list names zeros that live as long as the program.
        let n = call(|| unsafe { libc::pwritev(fd, iovecs.as_ptr(), iovecs.len() as i32, (io.offset + done) as i64) })?;
        if n == 0 {
            return Ok(false);
        }
        done += n as u64;
    }
    Ok(true)
}

impl BlockDevice for BlockingDevice {
    fn info(&self) -> &BlockInfo {
        &self.info
    }

    fn submit(&mut self, io: Io, segs: &[Seg]) -> Result<(), Io> {
        if self.in_flight == DEPTH {
            return Err(io);
        }
        let inside = io.offset.checked_add(io.len).is_some_and(|end| end <= self.info.size);
        let Some(jobs) = self.jobs.as_ref().filter(|_| inside && !matches!(io.op, IoOp::Compare { .. })) else {
            let status = BlockStatus::Member(IoStatus::DeviceError);
            self.refused.push(Completion { tag: io.tag, status });
            return Ok(());
        };
        let mut job =
            self.spare.pop().unwrap_or_else(|| Job { io, iovecs: Vec::with_capacity(16), status: IoStatus::Ok });
        job.io = io;
        job.iovecs.clear();
        job.iovecs.extend(segs.iter().map(|seg| libc::iovec {
            iov_base: self.memory.ptr(seg.addr, seg.len as usize).cast(),
            iov_len: seg.len as usize,
        }));
        match jobs.try_send(job) {
            Ok(()) => {
                self.in_flight += 1;
                Ok(())
            }
            // The thread is gone, which only a panic in it can cause.
            Err(e) => {
                self.spare.push(e.into_inner());
                let status = BlockStatus::Member(IoStatus::DeviceError);
                self.refused.push(Completion { tag: io.tag, status });
                Ok(())
            }
        }
    }

    fn ring(&mut self) {}

    fn poll(&mut self, done: &mut Completions) {
        done.append(&mut self.refused);
        while let Ok(job) = self.done.try_recv() {
            done.push(Completion { tag: job.io.tag, status: BlockStatus::Member(job.status) });
            self.in_flight -= 1;
            self.spare.push(job);
        }
    }

    fn in_flight(&self) -> usize {
        self.in_flight + self.refused.len()
    }
}

impl Drop for BlockingDevice {
    fn drop(&mut self) {
        // The thread may still write into buffers: they must not be given to somebody else before it is done.
        self.jobs = None;
        if self.thread.take().is_some_and(|t| t.join().is_err()) {
            tracing::error!("{}: the thread that served it panicked", self.info.address);
        }
    }
}

#[cfg(test)]
pub(in crate::block) mod denied {
    //! A system without io_uring, for one thread.

    /// Makes io_uring_setup fail with EPERM on the calling thread, as a container's seccomp profile does.
    pub fn deny_io_uring() {
        const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
        const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
        const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
        let step = |code, jt, k| libc::sock_filter { code, jt, jf: 0, k };
        let mut filter = [
            // The first word is the call's number.
            step(LOAD, 0, 0),
            step(EQUAL, 1, libc::SYS_io_uring_setup as u32),
            step(RETURN, 0, libc::SECCOMP_RET_ALLOW),
            step(RETURN, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        ];
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: the program lives through the calls, which change the calling thread only.
        unsafe {
            assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
            assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
        }
    }
}
