//! What is written. Each write has a value of its own, and each sector of it says which value and which sector it is, so
//! that a wrong sector tells where it came from.

use crate::rng::mix;

/// Bytes of a sector.
pub const SECTOR: usize = 512;

/// Names what a write wrote. 0 is zeros.
pub type Value = u32;

/// The value of zeroed or never written sectors.
pub const ZEROS: Value = 0;

const MAGIC: u64 = 0x5af3_0000;

/// Fills a sector of a volume with a value.
pub fn fill(bytes: &mut [u8], value: Value, sector: u64) {
    if value == ZEROS {
        return bytes.fill(0);
    }
    let mut state = mix(u64::from(value) << 40 ^ sector);
    for (i, word) in bytes.chunks_exact_mut(8).enumerate() {
        let x = match i {
            0 => u64::from(value) << 32 | MAGIC,
            1 => sector,
            _ => {
                state = state.wrapping_mul(0x2545_f491_4f6c_dd1d).wrapping_add(0x1405_7b7e_f767_814f);
                state ^ (state >> 29)
            }
        };
        word.copy_from_slice(&x.to_le_bytes());
    }
}

/// Fills several sectors from `sector` on.
pub fn fill_all(bytes: &mut [u8], value: Value, sector: u64) {
    for (i, s) in bytes.chunks_exact_mut(SECTOR).enumerate() {
        fill(s, value, sector + i as u64);
    }
}

/// Whether a sector is what `fill` makes, byte by byte.
pub fn is(bytes: &[u8], value: Value, sector: u64) -> bool {
    if value == ZEROS {
        return bytes.iter().all(|&b| b == 0);
    }
    if named(bytes) != Some((value, sector)) {
        return false;
    }
    let mut expected = [0; SECTOR];
    fill(&mut expected, value, sector);
    bytes == expected
}

/// The value and sector that a sector names, if it looks like one of ours.
pub fn named(bytes: &[u8]) -> Option<(Value, u64)> {
    let word = |i: usize| u64::from_le_bytes(bytes[i * 8..i * 8 + 8].try_into().expect("eight bytes"));
    let head = word(0);
    (head as u32 as u64 == MAGIC).then_some(((head >> 32) as u32, word(1)))
}

/// The value of a sector of data. Parity can begin like one by chance, so every byte is looked at.
pub fn value_of(bytes: &[u8]) -> Option<Value> {
    named(bytes).filter(|(value, sector)| is(bytes, *value, *sector)).map(|(value, _)| value)
}

/// A sector in words.
pub fn describe(bytes: &[u8], sector: u64) -> String {
    match named(bytes) {
        _ if is(bytes, ZEROS, sector) => "zeros".to_string(),
        Some((value, s)) if is(bytes, value, s) && s == sector => format!("value {value}"),
        Some((value, s)) if is(bytes, value, s) => format!("value {value} of sector {s}"),
        Some((value, s)) => format!("something that begins like value {value} of sector {s}"),
        None => format!("garbage ({:02x?}...)", &bytes[..8]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sector_is_its_value_and_no_other() {
        let mut s = [0; SECTOR];
        fill(&mut s, 9, 77);
        assert!(is(&s, 9, 77) && !is(&s, 9, 78) && !is(&s, 8, 77) && !is(&s, ZEROS, 77));
        s[511] ^= 1;
        assert!(!is(&s, 9, 77), "the last byte counts too");
        assert!(is(&[0; SECTOR], ZEROS, 3));
    }
}
