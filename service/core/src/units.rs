//! Sizes and time, as the core counts them.

/// The block: the unit of parity, of journal checksums and of atomic replacement, in bytes (design, section 1).
pub const BLOCK_SIZE: u32 = 4096;

/// The finest address that a request may carry, in bytes. A request that is not aligned to [`BLOCK_SIZE`] is
/// read-modify-written inside.
pub const SECTOR_SIZE: u32 = 512;

/// A moment on the shell's monotonic clock, in nanoseconds. The core never reads a clock: each call brings the time along.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tick(pub u64);

impl Tick {
    /// This moment plus `nanos` nanoseconds.
    pub const fn after(self, nanos: u64) -> Tick {
        Tick(self.0.saturating_add(nanos))
    }
}
