//! Memory that all reactors read and write like a disk.

use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};
use raid_core::action::Seg;

use super::Memory;
use crate::parity;

/// Above this many bytes a zeroed range is given back to the kernel, which hands out zeros at the next touch.
const GIVE_BACK: u64 = 1 << 20;

/// See the module's head. Racing accesses to the same bytes give mixed contents, as they would on a disk; the engine's
/// stripe locks keep writers of the same block apart.
pub struct SharedBytes {
    start: NonNull<libc::c_void>,
    len: usize,
}

// SAFETY: plain memory of a fixed length; accesses are copies of bytes, bounds-checked.
unsafe impl Send for SharedBytes {}
// SAFETY: as above.
unsafe impl Sync for SharedBytes {}

impl SharedBytes {
    /// `len` zero bytes; untouched ones cost nothing.
    pub fn new(len: u64) -> std::io::Result<SharedBytes> {
        let size = std::num::NonZeroUsize::new(len as usize)
            .ok_or_else(|| std::io::Error::new(std::io::ErrorKind::InvalidInput, "a RAM device needs a size"))?;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        // SAFETY: a fresh anonymous mapping; no existing memory is touched.
        let start = unsafe { mmap_anonymous(None, size, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, flags)? };
        Ok(SharedBytes { start, len: len as usize })
    }

    /// Touches all of it, in huge pages where the kernel has them: a measurement must not begin with page faults. Where the
    /// kernel cannot, the first touches do it.
    pub fn populate(&self) {
        for advice in [MmapAdvise::MADV_HUGEPAGE, MmapAdvise::MADV_POPULATE_WRITE] {
            // SAFETY: our own private mapping; neither advice changes what it holds.
            let _ = unsafe { madvise(self.start, self.len, advice) };
        }
    }

    fn at(&self, offset: u64, len: usize) -> *mut u8 {
        let offset = offset as usize;
        assert!(offset <= self.len && len <= self.len - offset, "an access outside of a RAM device");
        self.start.as_ptr().cast::<u8>().wrapping_add(offset)
    }

    /// Copies from the disk into a buffer.
    pub fn read(&self, memory: &Memory, offset: u64, seg: Seg) {
        let (from, to) = (self.at(offset, seg.len as usize), memory.ptr(seg.addr, seg.len as usize));
        // SAFETY: both are valid for the length (checked), and lie in different mappings.
        unsafe { std::ptr::copy_nonoverlapping(from, to, seg.len as usize) };
    }

    /// Copies from a buffer onto the disk.
    pub fn write(&self, memory: &Memory, offset: u64, seg: Seg) {
        let (from, to) = (memory.ptr(seg.addr, seg.len as usize), self.at(offset, seg.len as usize));
        // SAFETY: both are valid for the length (checked), and lie in different mappings.
        unsafe { parity::copy_streaming(to, from, seg.len as usize) };
    }

    /// Clears a range.
    pub fn zero(&self, offset: u64, len: u64) {
        let to = self.at(offset, len as usize);
        let aligned = offset.is_multiple_of(4096) && len.is_multiple_of(4096);
        if aligned && len >= GIVE_BACK {
            let start = NonNull::new(to.cast()).expect("inside of a mapping");
            // SAFETY: whole pages of our private anonymous mapping; they read as zeros afterwards.
            if unsafe { madvise(start, len as usize, MmapAdvise::MADV_DONTNEED) }.is_ok() {
                return;
            }
        }
        // SAFETY: valid for the length (checked).
        unsafe { to.write_bytes(0, len as usize) };
    }
}

impl Drop for SharedBytes {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` with this length, and nothing refers to it any more.
        if let Err(e) = unsafe { munmap(self.start, self.len) } {
            tracing::error!(%e, "a RAM device could not be unmapped");
        }
    }
}
