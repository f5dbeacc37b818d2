//! The regions, and the work that is done on addresses.

use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::Arc;

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};
use raid_core::action::{BufAddr, Step, Term};

use crate::parity;

/// Anonymous memory that lives as long as its `Memory`. Untouched pages cost nothing.
struct Region {
    start: NonNull<libc::c_void>,
    len: usize,
}

// SAFETY: a region is memory and a length; who may touch which bytes when is the discipline of slots (module head).
unsafe impl Send for Region {}
// SAFETY: as above; the struct itself is never changed after its creation.
unsafe impl Sync for Region {}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `Memory::new` with this length, and nothing refers to it any more.
        if let Err(e) = unsafe { munmap(self.start, self.len) } {
            tracing::error!(%e, "a buffer region could not be unmapped");
        }
    }
}

fn map(size: NonZeroUsize, flags: MapFlags) -> nix::Result<NonNull<libc::c_void>> {
    // SAFETY: a fresh anonymous mapping; no existing memory is touched.
    unsafe { mmap_anonymous(None, size, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_PRIVATE | flags) }
}

/// A mapping of huge pages; `None` where there are too few.
fn huge(size: NonZeroUsize) -> Option<NonNull<libc::c_void>> {
    let start = map(size, MapFlags::MAP_HUGETLB | MapFlags::MAP_HUGE_2MB).ok()?;
    // A control group may forbid at the first touch what the mapping was promised, with SIGBUS. Touching now turns that
    // into an error; the pages are set aside anyway.
    // SAFETY: advice on the mapping made above; it changes nothing in it.
    if unsafe { madvise(start, size.get(), MmapAdvise::MADV_POPULATE_WRITE) }.is_ok() {
        return Some(start);
    }
    // SAFETY: the mapping made above, which nobody else has seen.
    if let Err(e) = unsafe { munmap(start, size.get()) } {
        tracing::error!(%e, "huge pages could not be unmapped");
    }
    None
}

/// All reactors' regions. Cheap to clone.
#[derive(Clone)]
pub struct Memory {
    regions: Arc<Vec<Region>>,
    kernel: &'static parity::Kernel,
}

impl Memory {
    /// Maps `regions` regions of `len` bytes each, rounded up to 2 MiB. Huge pages are used where the administrator has
    /// set enough aside (`vm.nr_hugepages`), for a whole region or not at all. Ordinary pages cost nothing until they are
    /// touched.
    pub fn new(regions: usize, len: u64) -> std::io::Result<Memory> {
        let len = (len.max(1).next_multiple_of(2 << 20)) as usize;
        let size = NonZeroUsize::new(len).expect("at least 2 MiB");
        let mut out = Vec::with_capacity(regions);
        for number in 0..regions {
            if let Some(start) = huge(size) {
                tracing::info!("buffer region {number} lies in huge pages");
                out.push(Region { start, len });
                continue;
            }
            let start = map(size, MapFlags::MAP_NORESERVE)?;
            // Pushed first, so that it is unmapped whatever happens.
            out.push(Region { start, len });
            // A whole transparent huge page for a first small slot would make an idle daemon large.
            // SAFETY: advice on the mapping made above.
            if let Err(e) = unsafe { madvise(start, len, MmapAdvise::MADV_NOHUGEPAGE) } {
                tracing::debug!(%e, "the kernel has no huge pages to turn off");
            }
        }
        Ok(Memory { regions: Arc::new(out), kernel: parity::kernel() })
    }

    /// Number of regions.
    pub fn regions(&self) -> usize {
        self.regions.len()
    }

    /// Start and length of a region, for registration with a device.
    pub fn region(&self, region: u16) -> (*mut u8, usize) {
        let r = &self.regions[region as usize];
        (r.start.as_ptr().cast(), r.len)
    }

    /// The memory behind an address. Panics when the range is not inside its region: an address is never trusted to be
    /// right, because a wild pointer would destroy somebody's data.
    pub fn ptr(&self, addr: BufAddr, len: usize) -> *mut u8 {
        let (start, size) = self.region(addr.region());
        let offset = addr.offset() as usize;
        assert!(
            offset <= size && len <= size - offset,
            "{addr:?} and {len} bytes are outside of region of {size} bytes"
        );
        start.wrapping_add(offset)
    }

    /// Inverts the first byte of each 512 of a range: what injected corruption does to a read.
    pub fn corrupt(&self, addr: BufAddr, len: usize) {
        let start = self.ptr(addr, len);
        for at in (0..len).step_by(512) {
            // SAFETY: inside of the range that was checked; the device that answers the read still owns it.
            unsafe { *start.add(at) ^= 0xFF };
        }
    }

    /// Appends the bytes of a range to a vector, for a device that keeps them. The I/O that names the range owns it.
    pub fn append_to(&self, to: &mut Vec<u8>, addr: BufAddr, len: usize) {
        let start = self.ptr(addr, len).cast_const();
        // SAFETY: inside of the range that was checked; nobody writes it while the device has the I/O.
        to.extend_from_slice(unsafe { std::slice::from_raw_parts(start, len) });
    }

    /// Fills a range that a read names.
    pub fn fill_from(&self, addr: BufAddr, from: &[u8]) {
        let start = self.ptr(addr, from.len());
        // SAFETY: inside of the range that was checked, which the device that answers the read owns; `from` is ordinary
        // memory, never a region's.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), start, from.len()) };
    }

    /// Runs one step of a computation; false only for a comparison that found a difference. The engine that ordered the
    /// step owns the memory that it names until the step is completed.
    pub fn execute(&self, step: &Step, terms: &[Term]) -> bool {
        match *step {
            Step::Combine { len, dst, outputs, accumulate, .. } => {
                let len = len as usize;
                let outputs = outputs as usize;
                let mut to = [std::ptr::null_mut(); 2];
                for (to, addr) in to.iter_mut().zip(&dst[..outputs]) {
                    *to = self.ptr(*addr, len);
                }
                let mut from = [(std::ptr::null(), [0u8; 2]); parity::MAX_TERMS];
                let mut n = 0;
                for term in terms.iter().filter(|t| t.src != BufAddr::ZERO) {
                    from[n] = (self.ptr(term.src, len).cast_const(), term.coef);
                    n += 1;
                }
                // SAFETY: every pointer was checked against its region for `len` bytes; the engine orders sources that are
                // equal to a destination or apart from it, and nobody else touches them until this step is completed.
                unsafe { parity::combine(self.kernel, len, &to[..outputs], accumulate, &from[..n]) };
                true
            }
            Step::Copy { dst, src, len } => {
                let to = self.ptr(dst, len as usize);
                if src == BufAddr::ZERO {
                    // SAFETY: `to` is valid for `len` bytes and owned by the operation.
                    unsafe { to.write_bytes(0, len as usize) };
                } else {
                    let from = self.ptr(src, len as usize);
                    // SAFETY: both are valid for `len` bytes; `copy` allows overlap.
                    unsafe { std::ptr::copy(from, to, len as usize) };
                }
                true
            }
            Step::Compare { a, b, len } => {
                let bytes = |addr| {
                    let start = self.ptr(addr, len as usize);
                    // SAFETY: valid for `len` bytes, and not written while the operation has it.
                    unsafe { std::slice::from_raw_parts(start.cast_const(), len as usize) }
                };
                match (a == BufAddr::ZERO, b == BufAddr::ZERO) {
                    (false, false) => parity::compare(bytes(a), bytes(b)),
                    (true, true) => true,
                    (true, false) => parity::is_zero(bytes(b)),
                    (false, true) => parity::is_zero(bytes(a)),
                }
            }
        }
    }
}
