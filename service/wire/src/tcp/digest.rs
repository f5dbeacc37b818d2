//! Header and data digests: CRC32C, sent with its least significant byte first (TCP 3.3.1.1).

/// The digest of these bytes.
pub fn crc32c(bytes: &[u8]) -> u32 {
    ::crc32c::crc32c(bytes)
}

/// The digest of bytes that have been digested to `crc` and of `more` behind them. Starts from 0.
pub fn append(crc: u32, more: &[u8]) -> u32 {
    ::crc32c::crc32c_append(crc, more)
}

/// The digest's four bytes on the wire.
pub fn wire(bytes: &[u8]) -> [u8; 4] {
    crc32c(bytes).to_le_bytes()
}

/// Reads a digest from its four bytes on the wire. `None` if there are fewer.
pub fn read(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|b| u32::from_le_bytes(*b))
}
