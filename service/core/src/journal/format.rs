//! Anchors and record headers, byte by byte. Decoders are total: whatever the bytes are, they answer with a value or `None`.

use super::ring::Place;
use crate::action::VolumeId;
use crate::manager::Uuid;
use crate::units::{BLOCK_SIZE, SECTOR_SIZE};

/// Blocks 0 and 1 of a ring are anchors; records begin here.
pub const FIRST_BLOCK: u32 = 2;
/// Most entries of a record.
pub const ENTRIES_MAX: usize = (BLOCK_SIZE as usize - ENTRIES_AT) / ENTRY_BYTES;
/// Most blocks of a record: its header, and a payload block for each entry.
pub const RECORD_BLOCKS_MAX: u32 = 1 + ENTRIES_MAX as u32;
/// The smallest ring, in blocks, that is worth creating: the anchors and two records of any size, so that one can be
/// written while the other waits for its space to become free. [`super::Ring`] and [`super::Scan`] work with less.
pub const RING_BLOCKS_MIN: u32 = FIRST_BLOCK + 2 * RECORD_BLOCKS_MAX;

const BLOCK: usize = BLOCK_SIZE as usize;
const ANCHOR_MAGIC: &[u8; 8] = b"RAIDDJA1";
const HEADER_MAGIC: &[u8; 8] = b"RAIDDJH1";
/// An anchor's data is in one sector, which a member writes whole or not at all.
const ANCHOR_BYTES: usize = SECTOR_SIZE as usize;
const CRC_AT: usize = 8;
const ENTRIES_COUNT_AT: usize = 70;
const ENTRIES_AT: usize = 80;
const ENTRY_BYTES: usize = 20;
const ENTRY_CRC_AT: usize = 16;
/// Sequence numbers stay below this, so that none of the sums with them can overflow. At a million records a second it is
/// reached after 146,000 years.
const SEQUENCE_MAX: u64 = 1 << 62;

/// Whose ring it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The array.
    pub array: Uuid,
    /// The volume.
    pub volume: VolumeId,
    /// The shard.
    pub shard: u16,
}

/// One life of a ring, from one assembly to the next. Records of another life are never taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    /// Larger than that of every earlier epoch of this volume.
    pub number: u64,
    /// A random number that was drawn for this epoch and is never shown to an initiator, so that no user data can look
    /// like a record.
    pub nonce: u64,
}

/// Where replay begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// Whose ring.
    pub identity: Identity,
    /// The epoch of the records that follow.
    pub epoch: Epoch,
    /// Counts the anchors of this ring.
    pub generation: u64,
    /// The sequence number of the oldest record that may still be needed, or of the next one if there is none.
    pub tail: u64,
    /// The block where that record begins.
    pub tail_block: u32,
    /// Blocks of the ring, anchors included.
    pub blocks: u32,
}

/// What an entry says about its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A payload block follows: the block's new content.
    Payload,
    /// The block is about to be written past the journal. Nothing follows, only the checksum of the new content is kept,
    /// and older records of the same row are revoked. All columns of a row are in one record.
    Intent,
}

impl Kind {
    const fn code(self) -> u8 {
        match self {
            Kind::Payload => 1,
            Kind::Intent => 2,
        }
    }
}

/// True if an entry of this kind has a payload block. It is so for kinds that this version does not know, too, so that
/// lengths can always be checked.
pub(super) const fn has_payload(kind: u8) -> bool {
    kind % 2 == 1
}

/// The codes of the kinds that this version knows.
pub(super) const PAYLOAD: u8 = Kind::Payload.code();
pub(super) const INTENT: u8 = Kind::Intent.code();

/// One block in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Group index in the volume.
    pub group: u32,
    /// Stripe index in the group.
    pub stripe: u32,
    /// Block index in the chunk.
    pub row: u16,
    /// Column: data columns first, then P, then Q.
    pub column: u16,
    /// What it says about the block.
    pub kind: Kind,
}

/// An entry as it stands in a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RawEntry {
    pub(super) group: u32,
    pub(super) stripe: u32,
    pub(super) row: u16,
    pub(super) column: u16,
    pub(super) kind: u8,
    pub(super) crc: u32,
}

/// A record's header without its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) sequence: u64,
    pub(super) durable: u64,
    pub(super) payload: u16,
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// The checksum of all bytes, with the checksum's own place as zeros.
fn checksum(bytes: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&bytes[..CRC_AT]);
    let crc = crc32c::crc32c_append(crc, &[0; 4]);
    crc32c::crc32c_append(crc, &bytes[CRC_AT + 4..])
}

/// Anchors and headers begin with the same 48 bytes, but for the magic.
fn put_common(bytes: &mut [u8], magic: &[u8; 8], identity: &Identity, epoch: Epoch) {
    put(bytes, 0, magic);
    put(bytes, 12, &identity.volume.0.to_le_bytes());
    put(bytes, 16, &identity.array);
    put(bytes, 32, &epoch.number.to_le_bytes());
    put(bytes, 40, &epoch.nonce.to_le_bytes());
}

fn is_ours(bytes: &[u8], magic: &[u8; 8], identity: &Identity) -> bool {
    &bytes[..8] == magic && u32_at(bytes, 12) == identity.volume.0 && bytes[16..32] == identity.array
}

impl Anchor {
    /// The block that it is written to: 0 and 1 in turn, so that the one before it stays whole until this one is durable.
    pub const fn block(&self) -> u32 {
        (self.generation % 2) as u32
    }

    /// Writes the anchor's block of 4096 bytes.
    ///
    /// # Panics
    /// If `bytes` is not a block.
    pub fn encode(&self, bytes: &mut [u8]) {
        assert_eq!(bytes.len(), BLOCK, "an anchor is one block");
        bytes.fill(0);
        put_common(bytes, ANCHOR_MAGIC, &self.identity, self.epoch);
        put(bytes, 48, &self.generation.to_le_bytes());
        put(bytes, 56, &self.tail.to_le_bytes());
        put(bytes, 64, &self.tail_block.to_le_bytes());
        put(bytes, 68, &self.blocks.to_le_bytes());
        put(bytes, 72, &self.identity.shard.to_le_bytes());
        let crc = checksum(&bytes[..ANCHOR_BYTES]);
        put(bytes, CRC_AT, &crc.to_le_bytes());
    }

    /// Reads an anchor of this ring. `None` if the bytes are none, are corrupt, or belong to another ring.
    pub fn decode(bytes: &[u8], identity: &Identity, blocks: u32) -> Option<Anchor> {
        let bytes = bytes.get(..ANCHOR_BYTES)?;
        if !is_ours(bytes, ANCHOR_MAGIC, identity) || checksum(bytes) != u32_at(bytes, CRC_AT) {
            return None;
        }
        let anchor = Anchor {
            identity: *identity,
            epoch: Epoch { number: u64_at(bytes, 32), nonce: u64_at(bytes, 40) },
            generation: u64_at(bytes, 48),
            tail: u64_at(bytes, 56),
            tail_block: u32_at(bytes, 64),
            blocks: u32_at(bytes, 68),
        };
        let whole = anchor.blocks == blocks
            && (FIRST_BLOCK..blocks).contains(&anchor.tail_block)
            && (1..SEQUENCE_MAX).contains(&anchor.tail)
            && u16_at(bytes, 72) == identity.shard;
        whole.then_some(anchor)
    }
}

/// Composes a record's header in `header`, a block, with all checksums still zero.
///
/// # Panics
/// If `header` is not a block, or the entries do not match the place: too many, or with another number of payload blocks.
/// A record that says less than what follows it could not be replayed.
pub(super) fn compose(
    header: &mut [u8],
    identity: &Identity,
    epoch: Epoch,
    place: &Place,
    entries: impl IntoIterator<Item = Entry>,
) {
    assert_eq!(header.len(), BLOCK, "a header is one block");
    header.fill(0);
    put_common(header, HEADER_MAGIC, identity, epoch);
    put(header, 48, &place.sequence.to_le_bytes());
    put(header, 56, &place.durable.to_le_bytes());
    put(header, 64, &place.block.to_le_bytes());
    put(header, 68, &identity.shard.to_le_bytes());
    let (mut count, mut payload) = (0, 0);
    for entry in entries {
        assert!(count < ENTRIES_MAX, "a record holds at most {ENTRIES_MAX} entries");
        let bytes = &mut header[ENTRIES_AT + count * ENTRY_BYTES..][..ENTRY_BYTES];
        put(bytes, 0, &entry.group.to_le_bytes());
        put(bytes, 4, &entry.stripe.to_le_bytes());
        put(bytes, 8, &entry.row.to_le_bytes());
        put(bytes, 10, &entry.column.to_le_bytes());
        bytes[12] = entry.kind.code();
        count += 1;
        payload += u16::from(has_payload(entry.kind.code()));
    }
    assert_eq!(payload, place.payload, "the record's place has another number of payload blocks");
    put(header, ENTRIES_COUNT_AT, &(count as u16).to_le_bytes());
    put(header, 72, &payload.to_le_bytes());
}

/// Puts the checksums into a composed header: for each entry in order the CRC32C of its block's new content, whether the
/// block follows or not, and then the header's own.
///
/// # Panics
/// If `header` is not a composed header, or there are not as many checksums as entries. A record sealed wrongly would be
/// found corrupt only when it is needed.
pub fn seal(header: &mut [u8], crcs: impl IntoIterator<Item = u32>) {
    assert!(header.len() == BLOCK && &header[..8] == HEADER_MAGIC, "not a composed header");
    let count = usize::from(u16_at(header, ENTRIES_COUNT_AT));
    let mut given = 0;
    for crc in crcs {
        assert!(given < count, "more checksums than the record's {count} entries");
        put(header, ENTRIES_AT + given * ENTRY_BYTES + ENTRY_CRC_AT, &crc.to_le_bytes());
        given += 1;
    }
    assert_eq!(given, count, "fewer checksums than entries");
    let crc = checksum(header);
    put(header, CRC_AT, &crc.to_le_bytes());
}

/// Reads the header at `block` of a ring and adds its entries to `entries`. `None`, with nothing added, if the bytes are no
/// header, are corrupt, contradict themselves, or belong to another ring, epoch or place.
pub(super) fn decode_header(
    bytes: &[u8],
    identity: &Identity,
    epoch: Epoch,
    block: u32,
    entries: &mut Vec<RawEntry>,
) -> Option<Header> {
    let bytes = bytes.get(..BLOCK)?;
    // The magic and the epoch first: most blocks of a ring are payload or old, and need no checksum to tell.
    if !is_ours(bytes, HEADER_MAGIC, identity)
        || u64_at(bytes, 32) != epoch.number
        || u64_at(bytes, 40) != epoch.nonce
        || checksum(bytes) != u32_at(bytes, CRC_AT)
    {
        return None;
    }
    let header = Header { sequence: u64_at(bytes, 48), durable: u64_at(bytes, 56), payload: u16_at(bytes, 72) };
    let count = usize::from(u16_at(bytes, ENTRIES_COUNT_AT));
    if u32_at(bytes, 64) != block
        || u16_at(bytes, 68) != identity.shard
        || header.sequence >= SEQUENCE_MAX
        || header.durable >= header.sequence
        || count > ENTRIES_MAX
    {
        return None;
    }
    let raw = |n: usize| {
        let bytes = &bytes[ENTRIES_AT + n * ENTRY_BYTES..][..ENTRY_BYTES];
        RawEntry {
            group: u32_at(bytes, 0),
            stripe: u32_at(bytes, 4),
            row: u16_at(bytes, 8),
            column: u16_at(bytes, 10),
            kind: bytes[12],
            crc: u32_at(bytes, ENTRY_CRC_AT),
        }
    };
    if (0..count).filter(|n| has_payload(raw(*n).kind)).count() != usize::from(header.payload) {
        return None;
    }
    entries.extend((0..count).map(raw));
    Some(header)
}
