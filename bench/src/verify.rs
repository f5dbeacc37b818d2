//! Stamped blocks: what was written can be told from anything else that could be there instead.
//!
//! Each stamped block of a written unit starts with 32 bytes: a magic number, the block's offset, the generation of its
//! unit, the run's seed, and the CRC32C of the block. The rest follows from offset, generation and seed, and differs in
//! every word from one generation to the next: a block torn between two generations fails its CRC.

use crate::pattern::Random;

const MAGIC: u64 = 0x706d_6174_7364_6961;
const HEADER: usize = 32;
/// Where the CRC stands; it is taken over everything else.
const CRC: std::ops::Range<usize> = 28..32;

/// The size of a stamped block in units of `unit` bytes: 4096 bytes, or 512 where the unit is no multiple of that.
pub fn stamp_size(unit: usize) -> usize {
    if unit.is_multiple_of(4096) { 4096 } else { 512 }
}

/// Fills a unit that is to be written at byte `offset`.
pub fn stamp(unit: &mut [u8], offset: u64, generation: u32, seed: u64) {
    let size = stamp_size(unit.len());
    for (i, block) in unit.chunks_exact_mut(size).enumerate() {
        let offset = offset + (i * size) as u64;
        block[0..8].copy_from_slice(&MAGIC.to_le_bytes());
        block[8..16].copy_from_slice(&offset.to_le_bytes());
        block[16..24].copy_from_slice(&seed.to_le_bytes());
        block[24..28].copy_from_slice(&generation.to_le_bytes());
        let mut word = Random::new(offset ^ seed ^ (u64::from(generation) << 32)).next();
        for bytes in block[HEADER..].chunks_exact_mut(8) {
            bytes.copy_from_slice(&word.to_le_bytes());
            word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
        }
        let crc = checksum(block);
        block[CRC].copy_from_slice(&crc.to_le_bytes());
    }
}

fn checksum(block: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&block[..CRC.start]), &block[CRC.end..])
}

/// Checks a unit that was read from byte `offset` and must be of that generation.
///
/// # Errors
///
/// What is there instead, in words.
pub fn check(unit: &[u8], offset: u64, generation: u32, seed: u64) -> Result<(), String> {
    let size = stamp_size(unit.len());
    let word = |block: &[u8], at: usize| u64::from_le_bytes(block[at..at + 8].try_into().expect("eight bytes"));
    let half = |block: &[u8], at: usize| u32::from_le_bytes(block[at..at + 4].try_into().expect("four bytes"));
    for (i, block) in unit.chunks_exact(size).enumerate() {
        let offset = offset + (i * size) as u64;
        let found = if word(block, 0) != MAGIC {
            if block.iter().all(|b| *b == 0) { "zeros".to_owned() } else { "no stamp".to_owned() }
        } else if checksum(block) != half(block, CRC.start) {
            "a stamp with a wrong checksum (torn or rotten)".to_owned()
        } else if word(block, 16) != seed {
            "the stamp of another run".to_owned()
        } else if word(block, 8) != offset {
            format!("the block of byte {}", word(block, 8))
        } else if half(block, 24) != generation {
            format!("generation {}", half(block, 24))
        } else {
            continue;
        };
        return Err(format!("byte {offset} should hold generation {generation}, and holds {found}"));
    }
    Ok(())
}

/// What one queue has written: the generation of each of its units. Units in flight are left alone, so that what a read
/// must find is never in doubt.
#[derive(Debug)]
pub struct Ledger {
    first: u64,
    /// The generation written last; 0 if none was, or if it is not known what the unit holds.
    generations: Vec<u32>,
    busy: Vec<bool>,
    last: u32,
}

impl Ledger {
    /// For `units` units from `first` on.
    pub fn new(first: u64, units: u64) -> Ledger {
        Ledger { first, generations: vec![0; units as usize], busy: vec![false; units as usize], last: 0 }
    }

    /// The first unit.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Begins a read: the generation to expect (0: none), or nothing if the unit is in flight.
    pub fn begin_read(&mut self, unit: u64) -> Option<u32> {
        let i = (unit - self.first) as usize;
        (!std::mem::replace(&mut self.busy[i], true)).then(|| self.generations[i])
    }

    /// Begins a write: the generation to write, or nothing if the unit is in flight.
    pub fn begin_write(&mut self, unit: u64) -> Option<u32> {
        let i = (unit - self.first) as usize;
        if std::mem::replace(&mut self.busy[i], true) {
            return None;
        }
        self.last = self.last.checked_add(1).unwrap_or(1);
        self.generations[i] = 0;
        Some(self.last)
    }

    /// Ends either. A write that failed leaves 0: the unit may hold old or new.
    pub fn end(&mut self, unit: u64, generation: u32) {
        let i = (unit - self.first) as usize;
        self.busy[i] = false;
        self.generations[i] = generation;
    }

    /// The next unit from `from` on whose content is known, for the reading back at the end.
    pub fn known_from(&self, from: u64) -> Option<u64> {
        let start = (from - self.first) as usize;
        self.generations.get(start..)?.iter().position(|g| *g != 0).map(|i| from + i as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_stamped_is_right_and_only_that() {
        for size in [512, 1536, 4096, 65536] {
            let mut unit = vec![0; size];
            stamp(&mut unit, 1 << 20, 7, 99);
            assert_eq!(check(&unit, 1 << 20, 7, 99), Ok(()));
            assert!(check(&unit, 1 << 20, 8, 99).unwrap_err().contains("generation 7"));
            assert!(check(&unit, 2 << 20, 7, 99).unwrap_err().contains("the block of byte 1048576"));
            assert!(check(&unit, 1 << 20, 7, 98).unwrap_err().contains("another run"));
        }
    }

    #[test]
    fn any_flipped_bit_is_seen() {
        let mut unit = vec![0; 8192];
        stamp(&mut unit, 0, 3, 1);
        for at in (0..unit.len()).step_by(7) {
            unit[at] ^= 1 << (at % 8);
            assert!(check(&unit, 0, 3, 1).is_err(), "bit of byte {at}");
            unit[at] ^= 1 << (at % 8);
        }
        assert_eq!(check(&unit, 0, 3, 1), Ok(()));
    }

    #[test]
    fn a_block_torn_at_a_sector_is_seen() {
        let (mut old, mut new) = (vec![0; 4096], vec![0; 4096]);
        stamp(&mut old, 4096, 1, 5);
        stamp(&mut new, 4096, 2, 5);
        for sector in 1..8 {
            let mut torn = new.clone();
            torn[sector * 512..].copy_from_slice(&old[sector * 512..]);
            assert!(check(&torn, 4096, 2, 5).unwrap_err().contains("torn"));
        }
    }

    #[test]
    fn zeros_where_data_was_are_named() {
        assert!(check(&[0; 4096], 0, 1, 1).unwrap_err().contains("zeros"));
    }

    #[test]
    fn the_ledger_keeps_flights_apart() {
        let mut ledger = Ledger::new(10, 4);
        assert_eq!(ledger.known_from(10), None);
        let generation = ledger.begin_write(11).unwrap();
        assert_eq!(ledger.begin_write(11), None);
        assert_eq!(ledger.begin_read(11), None);
        ledger.end(11, generation);
        assert_eq!(ledger.begin_read(11), Some(generation));
        ledger.end(11, generation);
        assert_eq!(ledger.known_from(10), Some(11));
        assert_eq!(ledger.known_from(12), None);
        // A failed write: nothing is known any more.
        ledger.begin_write(11).unwrap();
        ledger.end(11, 0);
        assert_eq!(ledger.known_from(10), None);
    }
}
