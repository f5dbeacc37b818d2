//! Sizes and time, as the core counts them.

use std::fmt;

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

/// A number of bytes for people: with the largest IEC unit that gives a whole number, so that what a message says can be
/// typed back exactly (`1008 MiB`, never `0.98 GiB`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let power = if self.0 == 0 { 0 } else { self.0.trailing_zeros() / 10 };
        write!(f, "{} {}", self.0 >> (10 * power), UNITS[power as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_exact() {
        let shown = |n| Bytes(n).to_string();
        assert_eq!([shown(0), shown(1), shown(4095), shown(4096)], ["0 B", "1 B", "4095 B", "4 KiB"]);
        assert_eq!([shown(1008 << 20), shown(5 << 30), shown((5 << 30) + 1)], ["1008 MiB", "5 GiB", "5368709121 B"]);
        assert_eq!([shown(1 << 63), shown(u64::MAX)], ["8 EiB", "18446744073709551615 B"]);
    }
}
