//! The write-intent bitmap: one byte for each region, in sectors that each carry a checksum of their own. A sector is
//! written whole or not at all, so a power cut never leaves one that is neither old nor new.

use crate::regions::Region;

/// Bytes of a block of the bitmap: what is written at once.
pub const BITMAP_BLOCK: u32 = 4096;
/// Bytes of a sector.
const SECTOR: usize = 512;
/// Bytes before a sector's regions: checksum and volume number.
const HEADER: usize = 8;
/// Regions of a sector.
const PER_SECTOR: u32 = (SECTOR - HEADER) as u32;
/// Regions of a block.
pub const REGIONS_PER_BLOCK: u32 = PER_SECTOR * (BITMAP_BLOCK / SECTOR as u32);

/// Blocks of a bitmap of this many regions.
pub const fn bitmap_blocks(regions: u32) -> u32 {
    regions.div_ceil(REGIONS_PER_BLOCK)
}

/// Appends block `block` of a volume's bitmap. Places behind the last region are zero.
pub fn encode_bitmap_block(volume: u32, states: &[Region], block: u32, out: &mut Vec<u8>) {
    let from = (block * REGIONS_PER_BLOCK) as usize;
    for sector in 0..BITMAP_BLOCK as usize / SECTOR {
        let at = out.len();
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&volume.to_le_bytes());
        let first = from + sector * PER_SECTOR as usize;
        out.extend(states.iter().skip(first).take(PER_SECTOR as usize).map(|s| s.code()));
        out.resize(at + SECTOR, 0);
        // The place is part of the sum: a sector that was written elsewhere is not taken for this one.
        let sum = crc32c::crc32c_append(crc32c::crc32c(&(first as u32).to_le_bytes()), &out[at + 4..]);
        out[at..at + 4].copy_from_slice(&sum.to_le_bytes());
    }
}

/// What one copy of a block says of each of its regions; `None` where the sector cannot be trusted. `bytes` may be short.
pub fn decode_bitmap_block(volume: u32, block: u32, bytes: &[u8]) -> impl Iterator<Item = Option<Region>> {
    let from = block * REGIONS_PER_BLOCK;
    (0..REGIONS_PER_BLOCK / PER_SECTOR).flat_map(move |sector| {
        let at = sector as usize * SECTOR;
        let sector_bytes = bytes.get(at..at + SECTOR).filter(|s| {
            let first = from + sector * PER_SECTOR;
            let sum = crc32c::crc32c_append(crc32c::crc32c(&first.to_le_bytes()), &s[4..]);
            s[..4] == sum.to_le_bytes() && s[4..HEADER] == volume.to_le_bytes()
        });
        (HEADER..SECTOR).map(move |i| Region::from_code(sector_bytes?[i]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [Region; 5] = [Region::Unwritten, Region::Clean, Region::Dirty, Region::NeedSync, Region::Syncing];

    fn states(n: u32) -> Vec<Region> {
        (0..n).map(|i| STATES[(i as usize * 7 + i as usize / 100) % 5]).collect()
    }

    #[test]
    fn blocks_say_what_was_written() {
        let all = states(REGIONS_PER_BLOCK * 2 + 10);
        assert_eq!(bitmap_blocks(all.len() as u32), 3);
        for block in 0..3 {
            let mut bytes = Vec::new();
            encode_bitmap_block(7, &all, block, &mut bytes);
            assert_eq!(bytes.len(), BITMAP_BLOCK as usize);
            let read: Vec<_> = decode_bitmap_block(7, block, &bytes).collect();
            assert_eq!(read.len(), REGIONS_PER_BLOCK as usize);
            for (i, got) in read.iter().enumerate() {
                assert_eq!(*got, all.get(block as usize * REGIONS_PER_BLOCK as usize + i).copied());
            }
        }
    }

    #[test]
    fn a_damaged_misplaced_or_foreign_sector_says_nothing_and_the_others_do() {
        let all = states(REGIONS_PER_BLOCK * 2);
        let mut bytes = Vec::new();
        encode_bitmap_block(7, &all, 0, &mut bytes);
        for (volume, block, damage) in [(7, 0, Some(700)), (8, 0, None), (7, 1, None)] {
            let mut copy = bytes.clone();
            if let Some(at) = damage {
                copy[at] ^= 0x10;
            }
            for (i, got) in decode_bitmap_block(volume, block, &copy).enumerate() {
                let trusted = damage.is_some() && i as u32 / PER_SECTOR != 1;
                assert_eq!(got, trusted.then(|| all[i]), "region {i}");
            }
        }
        assert!(decode_bitmap_block(7, 0, &bytes[..100]).all(|r| r.is_none()));
    }
}
