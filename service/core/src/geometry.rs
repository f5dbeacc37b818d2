//! Where a byte of a volume lives: levels 0, 1, 10, 5 and 6 in stripes, chunks and columns.

use crate::units::BLOCK_SIZE;

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
}
