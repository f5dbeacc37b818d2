//! What both ways to a file have in common: the kernel's answers, its ways of zeroing, and what it tells of a device.

use std::fs::File;
use std::os::fd::AsRawFd;

use raid_core::action::IoStatus;

use super::super::IoOp;

/// What an error of the kernel means for an I/O.
pub(in crate::block) fn status(errno: i32, op: IoOp) -> IoStatus {
    match (errno, op) {
        (libc::ENOSPC | libc::EDQUOT, _) => IoStatus::NoSpace,
        (libc::EIO | libc::ENODATA | libc::EILSEQ, IoOp::Read) => IoStatus::ReadError,
        (libc::ETIMEDOUT | libc::ETIME, _) => IoStatus::Timeout,
        _ => IoStatus::DeviceError,
    }
}

/// Drops the first `n` bytes of a gather list.
pub(super) fn advance(iovecs: &mut Vec<libc::iovec>, n: usize) {
    let (mut whole, mut left) = (0, n);
    while whole < iovecs.len() && iovecs[whole].iov_len <= left {
        left -= iovecs[whole].iov_len;
        whole += 1;
    }
    iovecs.drain(..whole);
    if let Some(first) = iovecs.first_mut() {
        first.iov_base = first.iov_base.cast::<u8>().wrapping_add(left).cast();
        first.iov_len -= left;
    }
}

/// How to make a range read as zeros, best way first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Zeroing {
    /// Deallocate.
    Punch,
    /// Tell the file system or device that it is zero.
    Range,
    /// Write zeros: what always works.
    Write,
}

impl Zeroing {
    /// A file is sparse, and stays so: zeroing it takes no room. A block device is deallocated only where that is welcome.
    pub(super) fn first(block_device: bool, unmap: bool) -> Zeroing {
        if block_device && !unmap { Zeroing::Range } else { Zeroing::Punch }
    }

    /// The next way after an error of this one; `None` if the error says that the device failed.
    pub(super) fn after(self, errno: i32) -> Option<Zeroing> {
        // A block device answers a deallocation that would not read as zeros with EOPNOTSUPP, a file system that does not
        // know the mode with either, and a kernel that does not know the call with ENOSYS.
        if !matches!(errno, libc::EOPNOTSUPP | libc::EINVAL | libc::ENOSYS) {
            return None;
        }
        match self {
            Zeroing::Punch => Some(Zeroing::Range),
            Zeroing::Range => Some(Zeroing::Write),
            Zeroing::Write => None,
        }
    }

    /// The mode for fallocate; the size of a file is never changed.
    pub(super) fn mode(self) -> i32 {
        let way = match self {
            Zeroing::Punch => libc::FALLOC_FL_PUNCH_HOLE,
            Zeroing::Range | Zeroing::Write => libc::FALLOC_FL_ZERO_RANGE,
        };
        way | libc::FALLOC_FL_KEEP_SIZE
    }
}

#[repr(align(4096))]
struct Zeros([u8; 64 << 10]);
static ZEROS: Zeros = Zeros([0; 64 << 10]);

/// Makes a gather list of zeros to write: `left` bytes, or as many as are written at once.
pub(super) fn zeros(iovecs: &mut Vec<libc::iovec>, left: u64) {
    iovecs.clear();
    let mut left = left.min(1 << 20) as usize;
    while left > 0 {
        let iov_len = left.min(ZEROS.0.len());
        // Only ever written from.
        iovecs.push(libc::iovec { iov_base: ZEROS.0.as_ptr().cast_mut().cast(), iov_len });
        left -= iov_len;
    }
}

/// Size, logical and physical block size of a kernel block device, in bytes.
pub(in crate::block) fn device_geometry(file: &File) -> nix::Result<(u64, u32, u32)> {
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

/// What O_DIRECT asks of an I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::block) struct DirectIo {
    /// Alignment of buffers in bytes.
    pub memory: u32,
    /// Alignment of offset and length in bytes; 0 where there is no direct I/O after all.
    pub offset: u32,
}

/// Asks the kernel, or finds out by reading where it does not tell (before Linux 6.1, and some file systems).
pub(in crate::block) fn direct_io(file: &File) -> DirectIo {
    // SAFETY: all-zero is a valid statx buffer, which the call fills.
    let mut buffer: libc::statx = unsafe { std::mem::zeroed() };
    let empty = c"";
    // SAFETY: an open descriptor with AT_EMPTY_PATH, an empty path and a buffer of the right type.
    let result = unsafe {
        libc::statx(file.as_raw_fd(), empty.as_ptr(), libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN, &mut buffer)
    };
    if result == 0 && buffer.stx_mask & libc::STATX_DIOALIGN != 0 {
        return DirectIo { memory: buffer.stx_dio_mem_align, offset: buffer.stx_dio_offset_align };
    }
    probe(file)
}

/// Tries reads at the beginning, into memory that is aligned to 512 bytes and no more.
fn probe(file: &File) -> DirectIo {
    #[repr(align(4096))]
    struct Room([u8; 8192]);
    let mut room = Box::new(Room([0; 8192]));
    for offset in [512u32, 4096] {
        let start = room.0[512..].as_mut_ptr();
        // SAFETY: `offset` bytes from 512 on are inside of the room.
        let n = unsafe { libc::pread(file.as_raw_fd(), start.cast(), offset as usize, 0) };
        if n >= 0 {
            return DirectIo { memory: 512, offset };
        }
    }
    DirectIo { memory: 4096, offset: 4096 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gather_list_goes_on_where_the_kernel_stopped() {
        let list =
            || (1..=4).map(|i| libc::iovec { iov_base: (i * 65536) as *mut _, iov_len: 1024 }).collect::<Vec<_>>();
        let left = |n| {
            let mut l = list();
            advance(&mut l, n);
            l.iter().map(|v| (v.iov_base as usize, v.iov_len)).collect::<Vec<_>>()
        };
        assert_eq!(left(0), [(65536, 1024), (131072, 1024), (196608, 1024), (262144, 1024)]);
        assert_eq!(left(1024), [(131072, 1024), (196608, 1024), (262144, 1024)]);
        assert_eq!(left(2560), [(197120, 512), (262144, 1024)]);
        assert_eq!(left(4096), []);
    }

    #[test]
    fn zeroing_ends_with_what_always_works() {
        for (block_device, unmap) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut ways = vec![Zeroing::first(block_device, unmap)];
            while let Some(next) = ways.last().unwrap().after(libc::EOPNOTSUPP) {
                assert!(!ways.contains(&next), "{ways:?} goes in a circle");
                ways.push(next);
            }
            assert_eq!(ways.last(), Some(&Zeroing::Write));
            assert!(!block_device || unmap || !ways.contains(&Zeroing::Punch), "deallocated although not welcome");
        }
        assert_eq!(Zeroing::Punch.after(libc::EIO), None, "a failing device is not tried again");
        assert_eq!(Zeroing::Range.after(libc::ENOSPC), None);
    }

    #[test]
    fn errors_of_the_kernel_keep_their_meaning() {
        let write = IoOp::Write { fua: false };
        assert_eq!(status(libc::EIO, IoOp::Read), IoStatus::ReadError);
        assert_eq!(status(libc::EIO, write), IoStatus::DeviceError);
        assert_eq!(status(libc::EIO, IoOp::Flush), IoStatus::DeviceError);
        assert_eq!(status(libc::ENOSPC, write), IoStatus::NoSpace);
        assert_eq!(status(libc::EDQUOT, write), IoStatus::NoSpace);
        assert_eq!(status(libc::EINVAL, IoOp::Read), IoStatus::DeviceError);
        assert_eq!(status(libc::ENODEV, IoOp::Read), IoStatus::DeviceError);
    }

    #[test]
    fn probing_agrees_with_what_the_kernel_tells() {
        use std::os::unix::fs::OpenOptionsExt;
        let path = std::env::temp_dir().join(format!("raidd-probe-{}", std::process::id()));
        std::fs::write(&path, [1; 16384]).unwrap();
        let open = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path);
        let _ = std::fs::remove_file(&path);
        let Ok(file) = open else {
            println!("skipped: no O_DIRECT in {}", path.display());
            return;
        };
        let (told, probed) = (direct_io(&file), probe(&file));
        if told.offset > 0 {
            assert!(probed.offset <= told.offset.max(512), "told {told:?}, probed {probed:?}");
        }
    }
}
