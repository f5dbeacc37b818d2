//! Bytes that both sides can make from a seed, so that only versions and lengths have to be written down.

/// Bytes of a sector: what a drive never tears.
pub const SECTOR: usize = 512;

/// The finalizer of SplitMix64: every bit of the input changes every bit of the output.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// SplitMix64.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(mix(seed ^ 0x5851_F42D_4C95_7F2D))
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// From `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }
}

/// The key of a file's content.
pub fn key(seed: u64, path: &str) -> u64 {
    path.bytes().fold(mix(seed), |sum, byte| mix(sum ^ u64::from(byte)).wrapping_add(sum))
}

/// Fills `out` with what stands at `offset` in the endless content of `key`.
pub fn fill(key: u64, offset: u64, out: &mut [u8]) {
    let mut at = 0;
    while at < out.len() {
        let place = offset + at as u64;
        let word = mix(key.wrapping_add((place / 8).wrapping_mul(0x9E37_79B9_7F4A_7C15))).to_le_bytes();
        let skip = (place % 8) as usize;
        let n = (8 - skip).min(out.len() - at);
        out[at..at + n].copy_from_slice(&word[skip..skip + n]);
        at += n;
    }
}

/// One sector of a record that is overwritten in place: its version, and content that only this version has here.
pub fn sector(key: u64, version: u64, number: u64) -> [u8; SECTOR] {
    let mut out = [0; SECTOR];
    out[..8].copy_from_slice(&version.to_le_bytes());
    fill(mix(key ^ version.wrapping_mul(0xD6E8_FEB8_6659_FD93)), number * SECTOR as u64, &mut out[8..]);
    out
}

/// The version that a sector has; `None` if it is none that was ever written. A sector of zeros has version 0.
pub fn version(key: u64, number: u64, bytes: &[u8]) -> Option<u64> {
    let version = u64::from_le_bytes(bytes[..8].try_into().ok()?);
    let expected = if version == 0 { [0; SECTOR] } else { sector(key, version, number) };
    (bytes == expected).then_some(version)
}

/// A file that is replaced as a whole: its version and as much content as the version decides.
pub fn whole(key: u64, version: u64) -> Vec<u8> {
    let key = mix(key ^ version.wrapping_mul(0xA076_1D64_78BD_642F));
    let mut out = vec![0; 8 + (key % 40_000) as usize];
    out[..8].copy_from_slice(&version.to_le_bytes());
    fill(key, 0, &mut out[8..]);
    out
}

/// A row's text.
pub fn row(key: u64, id: u64) -> String {
    let key = mix(key ^ id);
    let mut bytes = vec![0; 20 + (key % 1500) as usize];
    fill(key, 0, &mut bytes);
    bytes.iter().map(|b| char::from(b'a' + b % 26)).collect()
}

/// Tells contents apart.
pub fn hash(bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(mix(bytes.len() as u64), |sum, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        mix(sum ^ u64::from_le_bytes(word)).wrapping_add(sum)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_the_same_in_pieces_and_different_by_key() {
        let mut whole = vec![0; 5000];
        fill(7, 3, &mut whole);
        let mut at = 0;
        for n in [1, 7, 8, 9, 512, 4463] {
            let mut piece = vec![0; n];
            fill(7, 3 + at as u64, &mut piece);
            assert_eq!(piece, whole[at..at + n]);
            at += n;
        }
        let mut other = vec![0; 5000];
        fill(8, 3, &mut other);
        assert_ne!(whole, other);
    }

    #[test]
    fn a_sector_tells_its_version_and_no_other_place_or_damage_passes() {
        let mut bytes = sector(1, 9, 4);
        assert_eq!(version(1, 4, &bytes), Some(9));
        assert_eq!(version(1, 5, &bytes), None);
        assert_eq!(version(2, 4, &bytes), None);
        bytes[300] ^= 1;
        assert_eq!(version(1, 4, &bytes), None);
        assert_eq!(version(1, 4, &[0; SECTOR]), Some(0));
    }
}
