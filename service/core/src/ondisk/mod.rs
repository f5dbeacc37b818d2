//! Superblocks and configuration slots, byte by byte (service/docs/on-disk-format.md).
//!
//! Decoders are total: whatever the bytes are, they answer with a value or with what is wrong, in bounded time and memory.

mod bitmap;
mod bytes;
mod config;
mod superblock;

pub use bitmap::{BITMAP_BLOCK, REGIONS_PER_BLOCK, bitmap_blocks, decode_bitmap_block, encode_bitmap_block};
pub use config::{
    Config, FailReason, GroupRecord, MemberRecord, RecordState, SlotRecord, VolumeRecord, decode_config, encode_config,
};
pub use superblock::{
    Corrupt, DATA_ALIGN, EXTENT_MIN, EXTENTS_MAX, FOREIGN_PROBE, NAME_MAX, SUPERBLOCK_BYTES, Superblock,
    end_copy_offset, extents_of, foreign_signature, layout,
};

#[cfg(test)]
mod tests;
