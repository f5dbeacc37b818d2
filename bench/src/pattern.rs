//! Which block next, and whether to read or to write it.

use serde::{Deserialize, Serialize};

/// A small fast generator (xorshift64*), good enough to choose blocks with.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator whose numbers follow from the seed.
    pub fn new(seed: u64) -> Random {
        // Neighbouring seeds must not give neighbouring numbers, and zero would stay zero.
        let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Random((z ^ (z >> 31)) | 1)
    }

    /// The next number.
    #[inline]
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `n`, which is not zero.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }
}

/// Order and direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rw {
    /// Sequential reads.
    Read,
    /// Sequential writes.
    Write,
    /// Random reads.
    Randread,
    /// Random writes.
    Randwrite,
    /// Random, reads and writes mixed by the read share.
    Randrw,
    /// Sequential, reads and writes mixed by the read share.
    Seqmix,
}

impl Rw {
    /// True if the order is random.
    pub fn random(self) -> bool {
        matches!(self, Rw::Randread | Rw::Randwrite | Rw::Randrw)
    }

    /// The name, as the command line has it.
    pub fn name(self) -> &'static str {
        match self {
            Rw::Read => "read",
            Rw::Write => "write",
            Rw::Randread => "randread",
            Rw::Randwrite => "randwrite",
            Rw::Randrw => "randrw",
            Rw::Seqmix => "seqmix",
        }
    }
}

/// The accesses of one queue: units of one block size in a range of its own.
#[derive(Debug)]
pub struct Pattern {
    rw: Rw,
    read_share: u64,
    first: u64,
    units: u64,
    next: u64,
    random: Random,
}

impl Pattern {
    /// Accesses in the `units` units from `first` on; `read_share` in percent. There is at least one unit.
    pub fn new(rw: Rw, read_share: u8, first: u64, units: u64, seed: u64) -> Pattern {
        Pattern { rw, read_share: u64::from(read_share), first, units, next: 0, random: Random::new(seed) }
    }

    /// The next unit, and whether it is written.
    #[inline]
    pub fn next(&mut self) -> (u64, bool) {
        let unit = if self.rw.random() {
            self.random.below(self.units)
        } else {
            let unit = self.next;
            self.next = if unit + 1 == self.units { 0 } else { unit + 1 };
            unit
        };
        let write = match self.rw {
            Rw::Read | Rw::Randread => false,
            Rw::Write | Rw::Randwrite => true,
            Rw::Randrw | Rw::Seqmix => self.random.below(100) >= self.read_share,
        };
        (self.first + unit, write)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequential_goes_round_in_its_own_range() {
        let mut pattern = Pattern::new(Rw::Read, 0, 10, 3, 1);
        let got: Vec<_> = (0..5).map(|_| pattern.next()).collect();
        assert_eq!(got, [(10, false), (11, false), (12, false), (10, false), (11, false)]);
    }

    #[test]
    fn random_covers_its_range_and_nothing_else() {
        let mut pattern = Pattern::new(Rw::Randwrite, 0, 5, 16, 42);
        let mut seen = [0; 16];
        for _ in 0..1600 {
            let (unit, write) = pattern.next();
            assert!(write);
            seen[unit as usize - 5] += 1;
        }
        assert!(seen.iter().all(|n| (50..200).contains(n)), "{seen:?}");
    }

    #[test]
    fn the_read_share_is_kept() {
        for (share, rw) in [(0, Rw::Randrw), (70, Rw::Randrw), (70, Rw::Seqmix), (100, Rw::Seqmix)] {
            let mut pattern = Pattern::new(rw, share, 0, 1000, 7);
            let reads = (0..10_000).filter(|_| !pattern.next().1).count();
            assert!(reads.abs_diff(usize::from(share) * 100) < 300, "{rw:?} {share}: {reads}");
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_accesses() {
        let run = |seed| {
            let mut pattern = Pattern::new(Rw::Randrw, 50, 0, 1 << 20, seed);
            (0..50).map(|_| pattern.next()).collect::<Vec<_>>()
        };
        assert_eq!(run(3), run(3));
        assert_ne!(run(3), run(4));
    }
}
