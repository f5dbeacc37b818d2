//! Where a byte of a volume lives: levels 0, 1, 10, 5 and 6 in stripes, chunks and columns.

use crate::units::{BLOCK_SIZE, Bytes};

/// A RAID level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    /// Striping, no redundancy.
    Raid0,
    /// Mirroring: W copies.
    Raid1,
    /// Striped pairs (near copies); W is even.
    Raid10,
    /// One rotating parity chunk, left-symmetric.
    Raid5,
    /// Two rotating parity chunks, left-symmetric.
    Raid6,
}

/// The shape of every group of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// The level.
    pub level: Level,
    /// W: slots of a group.
    pub width: u16,
    /// Bytes of a chunk: a power of two, 4 KiB to 1 MiB.
    pub chunk: u32,
    /// Bytes of an extent: a power of two, at least one chunk.
    pub extent: u64,
    /// Number of shards, fixed at the array's creation.
    pub shards: u16,
}

/// Bytes of one member that a shard's band covers before the next shard's band begins. A 1 MiB request at the default
/// chunk touches one or two bands.
pub const BAND_BYTES: u32 = 1 << 20;

/// A place on a volume, resolved to its chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Group index in the volume.
    pub group: u32,
    /// Stripe index in the group.
    pub stripe: u32,
    /// Data column index in the stripe, 0 to D-1.
    pub column: u16,
    /// Byte offset in the chunk.
    pub offset: u32,
}

impl Geometry {
    /// Blocks of a chunk: the rows of a stripe.
    pub const fn rows(&self) -> u32 {
        self.chunk / BLOCK_SIZE
    }

    /// D: data chunks of a stripe.
    pub const fn data_columns(&self) -> u16 {
        match self.level {
            Level::Raid0 => self.width,
            Level::Raid1 => 1,
            Level::Raid10 => self.width / 2,
            Level::Raid5 => self.width - 1,
            Level::Raid6 => self.width - 2,
        }
    }

    /// Parity chunks of a stripe: 0, 1 or 2.
    pub const fn parities(&self) -> u16 {
        match self.level {
            Level::Raid5 => 1,
            Level::Raid6 => 2,
            _ => 0,
        }
    }

    /// Copies of each data chunk.
    pub const fn copies(&self) -> u16 {
        match self.level {
            Level::Raid1 => self.width,
            Level::Raid10 => 2,
            _ => 1,
        }
    }

    /// Data bytes of a stripe.
    pub const fn stripe_bytes(&self) -> u64 {
        self.chunk as u64 * self.data_columns() as u64
    }

    /// Stripes of a group.
    pub const fn stripes(&self) -> u32 {
        (self.extent / self.chunk as u64) as u32
    }

    /// Data bytes of a group.
    pub const fn group_bytes(&self) -> u64 {
        self.stripe_bytes() * self.stripes() as u64
    }

    /// Resolves a byte offset of the volume.
    pub const fn place(&self, offset: u64) -> Place {
        let group = offset / self.group_bytes();
        let in_group = offset % self.group_bytes();
        let stripe = in_group / self.stripe_bytes();
        let in_stripe = in_group % self.stripe_bytes();
        Place {
            group: group as u32,
            stripe: stripe as u32,
            column: (in_stripe / self.chunk as u64) as u16,
            offset: (in_stripe % self.chunk as u64) as u32,
        }
    }

    /// Stripes of a band.
    pub const fn band_stripes(&self) -> u32 {
        if self.chunk >= BAND_BYTES { 1 } else { BAND_BYTES / self.chunk }
    }

    /// Bands of a group: the regions of the write-intent bitmap (see [`crate::regions`]).
    pub const fn bands(&self) -> u32 {
        self.stripes().div_ceil(self.band_stripes())
    }

    /// The region that a stripe belongs to, counted through the volume.
    pub const fn region(&self, group: u32, stripe: u32) -> u32 {
        group * self.bands() + stripe / self.band_stripes()
    }

    /// The shard that owns a stripe. Groups start at different shards, so that small groups spread too.
    pub const fn shard(&self, group: u32, stripe: u32) -> u16 {
        let band = stripe / self.band_stripes();
        ((group as u64 * 5 + band as u64) % self.shards as u64) as u16
    }

    /// Bytes of the volume from `offset` to the end of its band: a request is cut there, because the next byte may
    /// belong to another shard.
    pub const fn band_remainder(&self, offset: u64) -> u64 {
        let in_group = offset % self.group_bytes();
        let band = self.stripe_bytes() * self.band_stripes() as u64;
        let to_band = band - in_group % band;
        let to_group = self.group_bytes() - in_group;
        if to_band < to_group { to_band } else { to_group }
    }

    /// Columns of a stripe, parity included: data columns first, then P, then Q.
    pub const fn columns(&self) -> u16 {
        self.data_columns() + self.parities()
    }

    /// The slots that hold a column of a stripe, P being column D and Q column D+1. More than one for mirrors only.
    pub const fn slots(&self, stripe: u32, column: u16) -> Slots {
        let width = self.width as u32;
        match self.level {
            Level::Raid0 => Slots { first: column, count: 1 },
            Level::Raid1 => Slots { first: 0, count: self.width },
            Level::Raid10 => Slots { first: column * 2, count: 2 },
            Level::Raid5 | Level::Raid6 => {
                let p = width - 1 - stripe % width;
                let data = self.data_columns();
                let after_p =
                    if column < data { column as u32 + self.parities() as u32 } else { (column - data) as u32 };
                Slots { first: ((p + after_p) % width) as u16, count: 1 }
            }
        }
    }

    /// The column that a slot holds in a stripe: the inverse of [`Geometry::slots`].
    pub const fn column(&self, stripe: u32, slot: u16) -> u16 {
        let width = self.width as u32;
        match self.level {
            Level::Raid0 => slot,
            Level::Raid1 => 0,
            Level::Raid10 => slot / 2,
            Level::Raid5 | Level::Raid6 => {
                let p = width - 1 - stripe % width;
                let after_p = (slot as u32 + width - p) % width;
                let parities = self.parities() as u32;
                if after_p < parities { self.data_columns() + after_p as u16 } else { (after_p - parities) as u16 }
            }
        }
    }

    /// Checks that the numbers describe a layout that the engine can serve.
    pub fn validate(&self) -> Result<(), GeometryError> {
        let (level, width) = (self.level, self.width);
        let least = match level {
            Level::Raid0 => 1,
            Level::Raid1 => 2,
            Level::Raid5 => 3,
            Level::Raid10 | Level::Raid6 => 4,
        };
        if width < least {
            return Err(GeometryError::TooNarrow { level, width, least });
        }
        if width > MAX_WIDTH {
            return Err(GeometryError::TooWide { width });
        }
        if level == Level::Raid10 && width % 2 != 0 {
            return Err(GeometryError::OddPairs { width });
        }
        if !self.chunk.is_power_of_two() || self.chunk < BLOCK_SIZE || self.chunk > MAX_CHUNK {
            return Err(GeometryError::Chunk { chunk: self.chunk });
        }
        if !self.extent.is_power_of_two() || self.extent < self.chunk as u64 {
            return Err(GeometryError::Extent { extent: self.extent, chunk: self.chunk });
        }
        if self.extent / self.chunk as u64 > u32::MAX as u64 {
            return Err(GeometryError::TooManyStripes { extent: self.extent, chunk: self.chunk });
        }
        if self.shards == 0 {
            return Err(GeometryError::NoShards);
        }
        Ok(())
    }
}

/// The most slots that a group can have.
pub const MAX_WIDTH: u16 = 32;

/// The largest chunk, in bytes.
pub const MAX_CHUNK: u32 = 1 << 20;

/// The slots that hold one column: `count` of them from `first` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    /// The first slot.
    pub first: u16,
    /// How many.
    pub count: u16,
}

impl Slots {
    /// The slots, in order.
    pub fn iter(self) -> std::ops::Range<u16> {
        self.first..self.first + self.count
    }

    /// The slots as a bit mask.
    pub const fn mask(self) -> u32 {
        crate::plan::first(self.count) << self.first
    }
}

/// A layout that cannot be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// Fewer slots than the level needs.
    #[error(
        "{level} needs at least {least} members in a group and was given {width}; add members or choose another level"
    )]
    TooNarrow {
        /// The level.
        level: Level,
        /// The width asked for.
        width: u16,
        /// The least width.
        least: u16,
    },
    /// More slots than [`MAX_WIDTH`].
    #[error("a group can span at most 32 members and {width} were asked for; choose a smaller width")]
    TooWide {
        /// The width asked for.
        width: u16,
    },
    /// RAID-10 of an odd width.
    #[error("raid10 mirrors pairs of members, so its width must be even, not {width}; add or leave out one member")]
    OddPairs {
        /// The width asked for.
        width: u16,
    },
    /// A chunk that is no power of two between 4 KiB and 1 MiB.
    #[error("a chunk of {} is not possible; choose a power of two from 4 KiB to 1 MiB", Bytes(u64::from(*chunk)))]
    Chunk {
        /// The chunk asked for, in bytes.
        chunk: u32,
    },
    /// An extent that is no power of two or smaller than a chunk.
    #[error(
        "an extent of {} is not possible; choose a power of two that holds at least one chunk of {}",
        Bytes(*extent),
        Bytes(u64::from(*chunk))
    )]
    Extent {
        /// The extent asked for, in bytes.
        extent: u64,
        /// The chunk, in bytes.
        chunk: u32,
    },
    /// More stripes in an extent than their numbers can count.
    #[error(
        "an extent of {} holds too many chunks of {}; choose a smaller extent or a larger chunk",
        Bytes(*extent),
        Bytes(u64::from(*chunk))
    )]
    TooManyStripes {
        /// The extent asked for, in bytes.
        extent: u64,
        /// The chunk, in bytes.
        chunk: u32,
    },
    /// No shard would own a stripe.
    #[error("an array needs at least one shard; choose 1 or more, 16 is the default")]
    NoShards,
}

impl std::fmt::Display for Level {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Level::Raid0 => "raid0",
            Level::Raid1 => "raid1",
            Level::Raid10 => "raid10",
            Level::Raid5 => "raid5",
            Level::Raid6 => "raid6",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometries() -> impl Iterator<Item = Geometry> {
        let levels = [Level::Raid0, Level::Raid1, Level::Raid10, Level::Raid5, Level::Raid6];
        levels.into_iter().flat_map(|level| {
            (1..=MAX_WIDTH)
                .map(move |width| Geometry { level, width, chunk: 4096, extent: 1 << 20, shards: 16 })
                .filter(|g| g.validate().is_ok())
        })
    }

    #[test]
    fn slots_and_columns_are_inverse() {
        for g in geometries() {
            for stripe in (0..2 * g.width as u32 + 1).chain([u32::MAX]) {
                let mut seen = 0u32;
                for column in 0..g.columns() {
                    for slot in g.slots(stripe, column).iter() {
                        assert!(slot < g.width);
                        assert_eq!(seen & (1 << slot), 0, "{g:?}: slot {slot} twice");
                        seen |= 1 << slot;
                        assert_eq!(g.column(stripe, slot), column, "{g:?} stripe {stripe} slot {slot}");
                    }
                }
                assert_eq!(seen, crate::plan::first(g.width), "{g:?}: a slot holds nothing");
            }
        }
    }

    #[test]
    fn left_symmetric_looks_like_md() {
        let g = Geometry { level: Level::Raid5, width: 4, chunk: 4096, extent: 1 << 20, shards: 1 };
        let row = |s| (0..4).map(|slot| g.column(s, slot)).collect::<Vec<_>>();
        assert_eq!(row(0), [0, 1, 2, 3]);
        assert_eq!(row(1), [1, 2, 3, 0]);
        assert_eq!(row(2), [2, 3, 0, 1]);
        assert_eq!(row(3), [3, 0, 1, 2]);
        let g = Geometry { level: Level::Raid6, width: 5, ..g };
        let row = |s| (0..5).map(|slot| g.column(s, slot)).collect::<Vec<_>>();
        assert_eq!(row(0), [4, 0, 1, 2, 3]);
        assert_eq!(row(1), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn places_cover_the_volume_once() {
        for g in geometries().filter(|g| g.width < 9) {
            let mut expected = Place { group: 0, stripe: 0, column: 0, offset: 0 };
            for block in 0..(2 * g.group_bytes() / 4096).min(4096) {
                assert_eq!(g.place(block * 4096), expected, "{g:?}");
                expected.column += 1;
                if expected.column == g.data_columns() {
                    (expected.column, expected.stripe) = (0, expected.stripe + 1);
                }
                if expected.stripe == g.stripes() {
                    (expected.stripe, expected.group) = (0, expected.group + 1);
                }
            }
        }
    }

    #[test]
    fn wrong_numbers_are_refused_in_words() {
        let good = Geometry { level: Level::Raid5, width: 3, chunk: 65536, extent: 1 << 24, shards: 16 };
        assert_eq!(good.validate(), Ok(()));
        for (bad, word) in [
            (Geometry { width: 2, ..good }, "at least 3"),
            (Geometry { level: Level::Raid6, ..good }, "at least 4"),
            (Geometry { level: Level::Raid10, width: 5, ..good }, "even"),
            (Geometry { width: 33, ..good }, "at most 32"),
            (Geometry { chunk: 12288, ..good }, "power of two"),
            (Geometry { chunk: 2048, ..good }, "4 KiB"),
            (Geometry { chunk: 1 << 21, ..good }, "1 MiB"),
            (Geometry { extent: 32768, ..good }, "at least one chunk"),
            (Geometry { extent: 1 << 60, chunk: 4096, ..good }, "too many chunks"),
            (Geometry { shards: 0, ..good }, "shard"),
        ] {
            let message = bad.validate().expect_err("refused").to_string();
            assert!(message.contains(word), "{message}");
        }
    }
}
