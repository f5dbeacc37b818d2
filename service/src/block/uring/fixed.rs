//! Registered buffers: the kernel keeps their pages at hand, and an I/O need not look them up.
//!
//! Registering pins memory, and all of it at once would make an idle daemon as large as its buffers. So the regions are
//! cut into pieces, and a piece is registered when the first I/O touches it.

use std::sync::Once;

use io_uring::IoUring;

use crate::dma::Memory;

/// Bytes of a piece, where that gives no more pieces than [`MOST`].
const PIECE: usize = 4 << 20;
/// Pieces of all regions together; the kernel's limit is twice that.
const MOST: usize = 8192;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Untouched,
    Registered,
    Refused,
}

/// The table of one ring.
pub(super) struct Fixed {
    /// Start and length of each region.
    regions: Vec<(usize, usize)>,
    piece: usize,
    per_region: usize,
    /// By region and piece; empty where the kernel has no such table.
    states: Vec<State>,
}

impl Fixed {
    /// A table without entries.
    pub(super) fn new(uring: &IoUring, memory: &Memory) -> Fixed {
        let regions: Vec<(usize, usize)> =
            (0..memory.regions() as u16).map(|r| memory.region(r)).map(|(start, len)| (start as usize, len)).collect();
        let largest = regions.iter().map(|r| r.1).max().unwrap_or(0);
        let mut piece = PIECE;
        // A buffer of more than 1 GiB is refused.
        while largest.div_ceil(piece) * regions.len() > MOST && piece < 1 << 30 {
            piece *= 2;
        }
        let per_region = largest.div_ceil(piece);
        let mut states = vec![State::Untouched; per_region * regions.len()];
        if let Err(e) = uring.submitter().register_buffers_sparse(states.len() as u32) {
            refused(&e);
            states.clear();
        }
        Fixed { regions, piece, per_region, states }
    }

    /// The number under which the kernel knows the piece that holds this memory; `None` if it lies in two pieces or cannot
    /// be registered, and is to be named by its address.
    pub(super) fn index(&mut self, uring: &IoUring, v: &libc::iovec) -> Option<u16> {
        let begin = v.iov_base as usize;
        let region = self.regions.iter().position(|(start, len)| (*start..start + len).contains(&begin))?;
        let (start, len) = self.regions[region];
        let number = (begin - start) / self.piece;
        let from = number * self.piece;
        let to = (from + self.piece).min(len);
        if v.iov_len > start + to - begin {
            return None;
        }
        let index = region * self.per_region + number;
        match self.states.get_mut(index)? {
            State::Registered => {}
            State::Refused => return None,
            state => {
                let iovec = libc::iovec { iov_base: (start + from) as *mut libc::c_void, iov_len: to - from };
                // SAFETY: the piece lies in a region, which is mapped as long as the `Memory` that every device of the ring
                // holds; and the kernel keeps the pages of registered buffers by itself.
                if let Err(e) = unsafe { uring.submitter().register_buffers_update(index as u32, &[iovec], None) } {
                    *state = State::Refused;
                    refused(&e);
                    return None;
                }
                *state = State::Registered;
            }
        }
        u16::try_from(index).ok()
    }
}

fn refused(e: &std::io::Error) {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        tracing::info!("buffers cannot all be registered with io_uring ({e}), which costs some cycles for each I/O; raise the memory lock limit (ulimit -l) where that is the reason");
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_registered_when_they_are_touched_and_only_then() {
        let uring = match IoUring::new(8) {
            Ok(uring) => uring,
            Err(e) => {
                println!("skipped: no io_uring here: {e}");
                return;
            }
        };
        let memory = Memory::new(2, 10 << 20).unwrap();
        let mut fixed = Fixed::new(&uring, &memory);
        assert_eq!((fixed.piece, fixed.per_region, fixed.states.len()), (4 << 20, 3, 6));
        let mut index = |region: u16, at: usize, iov_len| {
            let iovec = libc::iovec { iov_base: memory.region(region).0.wrapping_add(at).cast(), iov_len };
            fixed.index(&uring, &iovec)
        };
        assert_eq!(index(1, 512, 4096), Some(3));
        assert_eq!(index(1, (4 << 20) - 4096, 4096), Some(3));
        assert_eq!(index(1, (4 << 20) - 4096, 4608), None, "in two pieces");
        assert_eq!(index(0, 4 << 20, 1 << 20), Some(1));
        assert_eq!(index(1, (10 << 20) - 4096, 4096), Some(5), "the last piece is shorter");
        assert_eq!(index(1, (10 << 20) - 4096, 8192), None, "beyond the region");
        let elsewhere = [0u8; 16];
        let iovec = libc::iovec { iov_base: elsewhere.as_ptr().cast_mut().cast(), iov_len: 16 };
        assert_eq!(fixed.index(&uring, &iovec), None);
        let registered = fixed.states.iter().map(|s| *s == State::Registered).collect::<Vec<_>>();
        assert_eq!(registered, [false, true, false, true, false, true]);
    }

    #[test]
    fn large_regions_have_larger_pieces() {
        let Ok(uring) = IoUring::new(8) else {
            println!("skipped: no io_uring here");
            return;
        };
        // Nothing of it is touched.
        let memory = Memory::new(3, 16 << 30).unwrap();
        let fixed = Fixed::new(&uring, &memory);
        assert_eq!(fixed.piece, 8 << 20);
        assert_eq!(fixed.states.len(), 3 * 2048);
    }
}
