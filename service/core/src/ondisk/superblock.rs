//! The superblock: what a member is, written at its creation and never changed.

use super::bytes::{Reader, Writer};
use crate::manager::Uuid;

/// Bytes of a superblock copy. Copy A is the first of a member, copy B the last whole one.
pub const SUPERBLOCK_BYTES: u32 = 4096;
/// Data begins at a multiple of this, in bytes.
pub const DATA_ALIGN: u64 = 1 << 20;
/// Bytes at a device's start in which foreign signatures are looked for.
pub const FOREIGN_PROBE: u32 = 128 << 10;

/// Most extents of a member, so that no size on disk makes the allocator's tables large.
pub const EXTENTS_MAX: u32 = 1 << 22;
/// Least bytes of an extent that the format knows. Creations ask for more, see [`crate::manager::Config::least_extent`].
pub const EXTENT_MIN: u64 = 16 << 10;
/// Most bytes of a configuration slot.
const SLOT_MAX: u64 = 64 << 20;

const MAGIC: &[u8; 8] = b"RAIDDSB1";
const VERSION: u32 = 1;
/// Incompatible features that this version knows: none yet.
const KNOWN_INCOMPAT: u64 = 0;
const CRC_AT: usize = SUPERBLOCK_BYTES as usize - 4;
/// Longest array name in bytes.
pub const NAME_MAX: usize = 64;

/// What a member is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Features that an older version may ignore.
    pub compat: u64,
    /// The array.
    pub array_uuid: Uuid,
    /// The array's name.
    pub array_name: String,
    /// This member.
    pub member_uuid: Uuid,
    /// This member's number.
    pub member: u16,
    /// Number of shards of the array.
    pub shards: u16,
    /// Bytes of the member.
    pub size: u64,
    /// Bytes of an extent.
    pub extent: u64,
    /// Byte offset of configuration slot 0; slot 1 follows it.
    pub slot_offset: u64,
    /// Bytes of a configuration slot.
    pub slot_len: u32,
    /// Byte offset of extent 0.
    pub data_offset: u64,
}

/// Why bytes are no superblock or configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Corrupt {
    /// No raidd signature.
    #[error("no raidd signature")]
    NoMagic,
    /// Another version of the format.
    #[error("format version {0}, this raidd knows version {VERSION}")]
    Version(u32),
    /// The checksum does not match.
    #[error("the checksum does not match")]
    Checksum,
    /// A feature that this version does not know and must not ignore.
    #[error("it uses the incompatible feature bits {0:#x}, which this raidd does not know: use a newer raidd")]
    Incompatible(u64),
    /// A field contradicts another one.
    #[error("field '{0}' makes no sense")]
    Field(&'static str),
}

/// Byte offset of copy B.
pub const fn end_copy_offset(size: u64) -> u64 {
    (size / SUPERBLOCK_BYTES as u64 * SUPERBLOCK_BYTES as u64).saturating_sub(SUPERBLOCK_BYTES as u64)
}

/// Extents of a member of this size. What lies beyond [`EXTENTS_MAX`] of them is not used.
pub const fn extents_of(size: u64, data_offset: u64, extent: u64) -> u32 {
    let extents = end_copy_offset(size).saturating_sub(data_offset) / extent;
    if extents > EXTENTS_MAX as u64 { EXTENTS_MAX } else { extents as u32 }
}

/// Extent size, slot length and data offset, in bytes, for members of which the smallest has `smallest` bytes.
pub fn layout(smallest: u64, extent: Option<u64>) -> (u64, u32, u64) {
    let extent = extent.unwrap_or_else(|| (smallest / 8192).next_power_of_two().max(16 << 20));
    // A configuration names every extent of every member in 8 bytes; room for 64 members of this size.
    let slot = (smallest / extent * 8 * 64 + (64 << 10)).next_power_of_two().clamp(128 << 10, SLOT_MAX);
    let data = (u64::from(SUPERBLOCK_BYTES) + 2 * slot).next_multiple_of(DATA_ALIGN);
    (extent, slot as u32, data)
}

impl Superblock {
    /// The bytes of one copy.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.bytes(MAGIC);
        w.u32(VERSION);
        w.u32(SUPERBLOCK_BYTES);
        w.u64(self.compat);
        w.u64(KNOWN_INCOMPAT);
        w.bytes(&self.array_uuid);
        w.bytes(&self.member_uuid);
        w.u16(self.member);
        w.u16(self.shards);
        w.u32(self.slot_len);
        w.u64(self.size);
        w.u64(self.extent);
        w.u64(self.slot_offset);
        w.u64(self.data_offset);
        w.text(&self.array_name);
        let mut bytes = w.0;
        bytes.resize(CRC_AT, 0);
        let crc = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads one copy.
    pub fn decode(bytes: &[u8]) -> Result<Superblock, Corrupt> {
        let bytes = bytes.get(..SUPERBLOCK_BYTES as usize).ok_or(Corrupt::NoMagic)?;
        if &bytes[..8] != MAGIC {
            return Err(Corrupt::NoMagic);
        }
        let stored = u32::from_le_bytes([bytes[CRC_AT], bytes[CRC_AT + 1], bytes[CRC_AT + 2], bytes[CRC_AT + 3]]);
        if crc32c::crc32c(&bytes[..CRC_AT]) != stored {
            return Err(Corrupt::Checksum);
        }
        let mut r = Reader(&bytes[8..CRC_AT]);
        let version = r.u32().ok_or(Corrupt::Field("version"))?;
        if version != VERSION {
            return Err(Corrupt::Version(version));
        }
        fields(&mut r)
    }
}

fn fields(r: &mut Reader) -> Result<Superblock, Corrupt> {
    let short = Corrupt::Field("length");
    if r.u32() != Some(SUPERBLOCK_BYTES) {
        return Err(short);
    }
    let compat = r.u64().ok_or(short.clone())?;
    let incompat = r.u64().ok_or(short.clone())?;
    if incompat & !KNOWN_INCOMPAT != 0 {
        return Err(Corrupt::Incompatible(incompat & !KNOWN_INCOMPAT));
    }
    let array_uuid = r.uuid().ok_or(short.clone())?;
    let member_uuid = r.uuid().ok_or(short.clone())?;
    let member = r.u16().ok_or(short.clone())?;
    let shards = r.u16().filter(|s| *s > 0).ok_or(Corrupt::Field("shards"))?;
    let slot_len = r
        .u32()
        .filter(|l| *l > 0 && l.is_multiple_of(4096) && u64::from(*l) <= SLOT_MAX)
        .ok_or(Corrupt::Field("slot length"))?;
    let size = r.u64().ok_or(short)?;
    let extent = r
        .u64()
        .filter(|e| e.is_power_of_two() && (EXTENT_MIN..=1 << 40).contains(e))
        .ok_or(Corrupt::Field("extent"))?;
    let slot_offset = r.u64().filter(|o| *o == u64::from(SUPERBLOCK_BYTES)).ok_or(Corrupt::Field("slot offset"))?;
    let data_offset = r
        .u64()
        .filter(|o| {
            o.is_multiple_of(DATA_ALIGN) && *o >= slot_offset + 2 * u64::from(slot_len) && *o < end_copy_offset(size)
        })
        .ok_or(Corrupt::Field("data offset"))?;
    let array_name = r.text(NAME_MAX).filter(|n| !n.is_empty()).ok_or(Corrupt::Field("name"))?;
    Ok(Superblock {
        compat,
        array_uuid,
        array_name,
        member_uuid,
        member,
        shards,
        size,
        extent,
        slot_offset,
        slot_len,
        data_offset,
    })
}

/// What else lives on a device, by its first [`FOREIGN_PROBE`] bytes and its last 4096.
pub fn foreign_signature(head: &[u8], tail: &[u8]) -> Option<&'static str> {
    let at = |bytes: &[u8], offset: usize, what: &[u8]| bytes.get(offset..offset + what.len()) == Some(what);
    let md = 0xa92b_4efcu32.to_le_bytes();
    let table: [(&[u8], usize, &[u8], &str); 15] = [
        (head, 0, b"XFSB", "an XFS file system"),
        (head, 1080, &[0x53, 0xEF], "an ext2, ext3 or ext4 file system"),
        (head, 0x10040, b"_BHRfS_M", "a btrfs file system"),
        (head, 512, b"LABELONE", "an LVM physical volume"),
        (head, 0, b"LABELONE", "an LVM physical volume"),
        (head, 0, b"LUKS\xba\xbe", "a LUKS volume"),
        (head, 0, &md, "a Linux md member"),
        (head, 4096, &md, "a Linux md member"),
        (tail, 0, &md, "a Linux md member"),
        (head, 512, b"EFI PART", "a GPT partition table"),
        (head, 4096, b"EFI PART", "a GPT partition table"),
        (tail, 4096 - 512, b"EFI PART", "a GPT partition table"),
        (head, 4086, b"SWAPSPACE2", "a swap area"),
        (head, 3, b"NTFS    ", "an NTFS file system"),
        (head, 510, &[0x55, 0xAA], "an MBR partition table or boot sector"),
    ];
    table.iter().find(|(bytes, offset, what, _)| at(bytes, *offset, what)).map(|t| t.3)
}
