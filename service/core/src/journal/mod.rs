//! The journal of one shard of a volume: its format, its writer's bookkeeping and its replay, as pure state machines
//! (design, sections 6 and 7; byte tables in service/docs/on-disk-format.md).
//!
//! A [`Ring`] tells the engine where a record goes, which records count, and when space may be used again. A [`Scan`] reads
//! a ring after a crash and answers with a [`Replay`]: what has to be written to the members again, and what must not be.
//!
//! Neither does any I/O. The writer's side never sees a payload byte: the shell puts the checksums in with [`seal`]. The
//! scan sees payload only in the slices that it is handed, and keeps none of it.

mod format;
mod replay;
mod ring;
mod scan;
mod window;

pub use format::{
    Anchor, ENTRIES_MAX, Entry, Epoch, FIRST_BLOCK, Identity, Kind, RECORD_BLOCKS_MAX, RING_BLOCKS_MIN, seal,
};
pub use replay::{Fault, Item, Payload, Repair, Replay, Rot, Row, RowId, Summary};
pub use ring::{Place, Ring, Usage};
pub use scan::{Progress, Read, Scan, Shape};

#[cfg(test)]
mod tests;
