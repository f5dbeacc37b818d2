//! What a scan answers: the newest entry for each block, what is revoked, what is lost.

use super::format::{Anchor, Kind};
use crate::action::VolumeId;

/// A row of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowId {
    /// Group index in the volume.
    pub group: u32,
    /// Stripe index in the group.
    pub stripe: u32,
    /// Block index in the chunk.
    pub row: u16,
}

/// Where a payload block is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload {
    /// On which copy; the lowest one if there are several.
    pub copy: u8,
    /// In which block of the ring.
    pub block: u32,
}

/// The newest entry for one block of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// The row.
    pub id: RowId,
    /// The column.
    pub column: u16,
    /// Payload or intent.
    pub kind: Kind,
    /// Payload that is newer than the newest parity of its row, which does not cover it.
    pub later: bool,
    /// The record that it stands in.
    pub sequence: u64,
    /// CRC32C of the block's new content.
    pub crc: u32,
    /// Where that content is. `None` for an intent, and for a payload that no copy has any more: then what the member
    /// holds is old, new or torn, and only `crc` can tell which.
    pub payload: Option<Payload>,
}

/// A row with something to do. At least one of the lists has an item; all are sorted by column.
///
/// Parity in the journal covers all payload of its row that stands in the same record or in an older one. What is newer was
/// acknowledged from the write-back cache, and its parity was never logged. So a column may have an item in `settled`, which
/// parity counts on, and a newer one in `later`. Only together with the first one can parity give back a column that is
/// missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row<'a> {
    /// Which row.
    pub id: RowId,
    /// New content with its parity: to be written as it is. Then the row is consistent. Nothing here is older than the
    /// intents.
    pub settled: &'a [Item],
    /// Newer data: to be written after that like any partial write, parity included. At levels without parity all payload
    /// is here. A crash may cut this off and it is done again, so the new parity has to come from all data of the row, or,
    /// if a column is missing, the write has to be logged in the next epoch ([`super::Ring::after`]) and done there.
    pub later: &'a [Item],
    /// The newest intent of the row: what all its columns were to become, past the journal. A payload of the same column
    /// with a higher sequence overrides it.
    pub intents: &'a [Item],
}

/// A block to be copied to other copies of the ring: the anchor, or a block of a record that may not count yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repair {
    /// The block of the ring.
    pub block: u32,
    /// The copy that has it.
    pub from: u8,
    /// The copies that do not, as a bit mask.
    pub to: u8,
}

/// Records that counted and that no copy has whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rot {
    /// The first lost sequence number.
    pub first: u64,
    /// The last one.
    pub last: u64,
    /// The blocks whose payload is lost, by row and column. Empty if the headers are lost, too: then nobody knows.
    pub places: Vec<(RowId, u16)>,
}

/// The counts of a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The first record that is not replayed.
    pub end: u64,
    /// Records that are replayed.
    pub records: u64,
    /// Blocks of the ring between the tail and the end.
    pub blocks: u64,
    /// Sequence numbers from `end` on of which there is a trace: records that were being written when the power went.
    pub torn: u64,
    /// Blocks, of records before `end` and of the anchor, that a copy did not have and another one had.
    pub repaired: u64,
}

/// The result of a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    /// The anchor that replay began at. The next epoch, [`super::Ring::after`], has a higher number than its epoch.
    pub anchor: Anchor,
    /// By row, in the order of its lists, by column.
    items: Vec<Item>,
    /// Where a new epoch may begin without touching a trace of this one, and with how many blocks.
    behind: (u32, u32),
    /// To be written, and to be durable, before replay writes the first block to a member. Otherwise a second crash that
    /// takes the one copy along leaves rows half replayed.
    pub repairs: Vec<Repair>,
    /// What counted and is lost, in the order of sequence numbers.
    pub rot: Vec<Rot>,
    /// The counts.
    pub summary: Summary,
}

/// Why there is nothing to replay, and no way on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// No copy has a valid anchor.
    #[error(
        "no copy of the journal of volume {volume}, shard {shard} can be read or has a valid anchor; bring back a member \
         that holds a copy, or assemble with --force, which gives up what only the journal had",
        volume = volume.0
    )]
    Lost {
        /// The volume.
        volume: VolumeId,
        /// The shard.
        shard: u16,
    },
    /// A record holds entries that this version does not know.
    #[error(
        "record {sequence} of the journal of volume {volume}, shard {shard} has an entry of kind {kind}, which this raidd \
         does not know: assemble with the raidd that wrote it, or a newer one",
        volume = volume.0
    )]
    Newer {
        /// The volume.
        volume: VolumeId,
        /// The shard.
        shard: u16,
        /// The record.
        sequence: u64,
        /// The unknown kind.
        kind: u8,
    },
}

impl Replay {
    pub(super) fn new(
        anchor: Anchor,
        items: Vec<Item>,
        behind: (u32, u32),
        repairs: Vec<Repair>,
        rot: Vec<Rot>,
        summary: Summary,
    ) -> Replay {
        debug_assert!(items.is_sorted_by_key(|i| (i.id, i.kind == Kind::Intent, i.later, i.column)));
        Replay { anchor, items, behind, repairs, rot, summary }
    }

    /// The block behind the last trace of a record, and the blocks from there to the tail. They may be overwritten while this
    /// replay may still have to be done again; the torn records before them may not, because their headers can be what
    /// tells rot from the end.
    pub(super) fn behind(&self) -> (u32, u32) {
        self.behind
    }

    /// The rows with something to do, in order.
    pub fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        self.items.chunk_by(|a, b| a.id == b.id).map(|items| {
            let (payloads, intents) = items.split_at(items.partition_point(|i| i.kind == Kind::Payload));
            let (settled, later) = payloads.split_at(payloads.partition_point(|i| !i.later));
            Row { id: items[0].id, settled, later, intents }
        })
    }

    /// All items of all rows, in the order of [`Replay::rows`].
    pub fn items(&self) -> &[Item] {
        &self.items
    }

    /// Nothing has to be done, neither to the ring nor to the members.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty() && self.repairs.is_empty() && self.rot.is_empty()
    }

    /// The newest lost record of which nobody knows the places. An item with a lower sequence may be out of date: what is
    /// lost may have written the same block, or revoked it.
    pub fn doubtful_before(&self) -> Option<u64> {
        self.rot.iter().rev().find(|r| r.places.is_empty()).map(|r| r.last)
    }
}

/// Keeps what is in force: of each row the newest intent, and of each column the newest payload that is not older than it,
/// and the newest one that parity covers. Doing this to a part of the items first changes nothing, so that a long scan can
/// do it now and then.
pub(super) fn resolve(items: &mut Vec<Item>, data_columns: u16) {
    // Stable: of two payloads for a block in one record, the later one is the newer one.
    items.sort_by_key(|i| (i.id, i.kind == Kind::Intent, i.column, i.sequence));
    let (mut kept, mut start) = (0, 0);
    while start < items.len() {
        let id = items[start].id;
        let end = start + items[start..].iter().take_while(|i| i.id == id).count();
        let newest =
            |list: &[Item], of: &dyn Fn(&&Item) -> bool| list.iter().filter(of).map(|i| i.sequence).max().unwrap_or(0);
        let row = &mut items[start..end];
        let intent = newest(row, &|i| i.kind == Kind::Intent);
        let parity = newest(row, &|i| i.kind == Kind::Payload && i.column >= data_columns && i.sequence >= intent);
        row.iter_mut().for_each(|i| i.later = i.kind == Kind::Payload && i.sequence > parity);
        row.sort_by_key(|i| (i.kind == Kind::Intent, i.later, i.column, i.sequence));
        for n in start..end {
            let item = items[n];
            let list = |i: &Item| (i.kind, i.later, i.column);
            let newest = items[n + 1..end].first().is_none_or(|i| list(i) != list(&item));
            if newest && item.sequence >= intent {
                items[kept] = item;
                kept += 1;
            }
        }
        start = end;
    }
    items.truncate(kept);
}
