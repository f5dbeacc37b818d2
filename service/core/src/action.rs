//! What the shell asks of the core, and what the core orders from the shell (design, section 3).
//!
//! The core holds no user bytes. It names memory by [`BufAddr`], which only the shell can turn into a pointer.

use std::sync::Arc;

use crate::view::View;

/// A place in the shell's buffer memory: the region's number in the top 16 bits, the byte offset inside it below.
/// Addresses inside one region can be added to; only the shell can turn one into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BufAddr(pub u64);

impl BufAddr {
    /// A source of zeros, of any length. It never appears as a destination, and a device write from it is
    /// ordered as [`Action::Zero`].
    pub const ZERO: BufAddr = BufAddr(u64::MAX);

    /// The address `offset` bytes into region `region`.
    pub const fn new(region: u16, offset: u64) -> BufAddr {
        BufAddr(((region as u64) << 48) | offset)
    }

    /// The region's number.
    pub const fn region(self) -> u16 {
        (self.0 >> 48) as u16
    }

    /// The byte offset inside the region.
    pub const fn offset(self) -> u64 {
        self.0 & ((1 << 48) - 1)
    }

    /// The address `bytes` further on. Zeros stay zeros.
    #[must_use]
    pub const fn plus(self, bytes: u64) -> BufAddr {
        if self.0 == u64::MAX { self } else { BufAddr(self.0 + bytes) }
    }
}

/// A contiguous piece of buffer memory: one element of a gather list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seg {
    /// Where it starts.
    pub addr: BufAddr,
    /// Its length in bytes.
    pub len: u32,
}

/// Names one ordered device operation or computation until it is completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IoTag(pub u32);

/// The shell's name for one request; the core hands it back in [`Action::Reply`] and reads nothing into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReqTag(pub u64);

/// A member's index in its array, fixed for the life of the membership (a replacement gets a new one).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u16);

/// A volume's number inside its array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeId(pub u32);

/// A run of the engine's segment, step or term slab. Valid until the operation that carries it is completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Slice {
    /// Index of the first element.
    pub start: u32,
    /// Number of elements.
    pub len: u32,
}

/// A request to one engine. The shell has already cut it at shard boundaries, so that all of it belongs to shards
/// which this engine owns.
#[derive(Clone, Debug)]
pub struct Request {
    /// Handed back with the reply.
    pub tag: ReqTag,
    /// The volume that it addresses.
    pub volume: VolumeId,
    /// What to do.
    pub op: Op,
}

/// What a request asks for. Offsets are byte offsets in the volume, multiples of [`crate::units::SECTOR_SIZE`]; buffers are
/// contiguous.
#[derive(Clone, Debug)]
pub enum Op {
    /// Read `len` bytes at `offset` into `buf`.
    Read {
        /// Byte offset in the volume.
        offset: u64,
        /// Length in bytes.
        len: u32,
        /// Destination.
        buf: BufAddr,
    },
    /// As `Read`, by an engine that does not own the stripes. Blocks that a member can give as they are need no stripe, so
    /// any engine may read them; what would need one (a block to reconstruct, a read error to repair) is not touched and
    /// answered [`ReqStatus::NotHere`], and the shell asks the owner.
    ReadHealthy {
        /// Byte offset in the volume.
        offset: u64,
        /// Length in bytes.
        len: u32,
        /// Destination.
        buf: BufAddr,
    },
    /// Write `len` bytes at `offset` from `buf`. With `fua`, every member write that it causes is durable before the reply.
    Write {
        /// Byte offset in the volume.
        offset: u64,
        /// Length in bytes.
        len: u32,
        /// Source.
        buf: BufAddr,
        /// Force unit access.
        fua: bool,
    },
    /// Make every write that was replied to before this request durable on all members.
    Flush,
    /// Make `len` bytes at `offset` read as zeros; with `unmap` the members may deallocate what they can.
    /// Serves Write Zeroes and Dataset Management (deallocate).
    Zero {
        /// Byte offset in the volume.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Deallocation is welcome.
        unmap: bool,
    },
    /// Read `len` bytes at `offset` into `read_buf` and compare them with `buf`.
    Compare {
        /// Byte offset in the volume.
        offset: u64,
        /// Length in bytes.
        len: u32,
        /// What the initiator expects.
        buf: BufAddr,
        /// Room for what the members hold.
        read_buf: BufAddr,
    },
    /// Reconstruct what the `Rebuilding` slots of this stripe should hold and write it there.
    Rebuild {
        /// Group index in the volume.
        group: u32,
        /// Stripe index in the group.
        stripe: u32,
    },
    /// Make the redundancy of this stripe match its data again (parity recomputed, copies equalized from the first).
    Resync {
        /// Group index in the volume.
        group: u32,
        /// Stripe index in the group.
        stripe: u32,
    },
}

/// What a device, or the parity kernel, answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoStatus {
    /// Done.
    Ok,
    /// The addressed blocks cannot be read (media error); the device itself goes on.
    ReadError,
    /// The device refused or failed the operation.
    DeviceError,
    /// There is no room left under a thin member.
    NoSpace,
    /// The device did not answer in time.
    Timeout,
    /// Only from [`Compute`] with a compare step: the buffers differ.
    Miscompare,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReqStatus {
    /// Done.
    Ok,
    /// Data is lost or cannot be verified: Unrecovered Read Error (SCT 2h, SC 81h).
    Unrecoverable,
    /// The write could not be placed with the redundancy left: Write Fault (SCT 2h, SC 80h).
    WriteFault,
    /// Compare found a difference: Compare Failure (SCT 2h, SC 85h).
    Miscompare,
    /// The volume is offline: Namespace Not Ready (SCT 0h, SC 82h).
    Offline,
    /// The range is not inside the volume: LBA Out of Range (SCT 0h, SC 80h).
    OutOfRange,
    /// The request was given up because the array was stopped.
    Aborted,
    /// Only for [`Op::ReadHealthy`]: ask the engine that owns the stripes.
    NotHere,
}

/// One thing for the shell to do. Everything but `Reply` and `Event` is answered with `Engine::complete`.
#[derive(Clone, Debug)]
pub enum Action {
    /// Read `len` bytes at byte `offset` of a member into the gather list.
    Read {
        /// Answer with this.
        io: IoTag,
        /// From where.
        member: MemberId,
        /// Byte offset on the member.
        offset: u64,
        /// Sum of the segments.
        len: u32,
        /// The gather list, in `Engine::segs`.
        segs: Slice,
    },
    /// Write the gather list to `len` bytes at byte `offset` of a member.
    Write {
        /// Answer with this.
        io: IoTag,
        /// To where.
        member: MemberId,
        /// Byte offset on the member.
        offset: u64,
        /// Sum of the segments.
        len: u32,
        /// The gather list, in `Engine::segs`. Never holds [`BufAddr::ZERO`].
        segs: Slice,
        /// The write must be durable before it is answered.
        fua: bool,
    },
    /// Make all completed writes of a member durable.
    Flush {
        /// Answer with this.
        io: IoTag,
        /// Which member.
        member: MemberId,
    },
    /// Make a range of a member read as zeros.
    Zero {
        /// Answer with this.
        io: IoTag,
        /// Which member.
        member: MemberId,
        /// Byte offset on the member.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Deallocation is welcome, as long as the range reads as zeros afterwards.
        unmap: bool,
        /// Durable before it is answered.
        fua: bool,
    },
    /// Run the steps in order.
    Compute {
        /// Answer with this.
        io: IoTag,
        /// The steps, in `Engine::steps`.
        steps: Slice,
    },
    /// A request has ended.
    Reply {
        /// The request's tag.
        tag: ReqTag,
        /// How it ended.
        status: ReqStatus,
    },
    /// Something that the array's manager has to know.
    Event(Event),
}

/// One term of a combination: `coef[j] * src`, added to output `j`. Multiplication is in GF(2^8) modulo 11Dh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// Source; may be [`BufAddr::ZERO`], which adds nothing.
    pub src: BufAddr,
    /// The coefficient for each output.
    pub coef: [u8; 2],
}

/// One step of a computation on buffers. Lengths are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// `dst[j] = (accumulate ? dst[j] : 0) + Σ coef[j] * src` for `j < outputs`. XOR parity is one output with all
    /// coefficients 1; P and Q are two, with 1 and g^i; a delta update accumulates; recovery uses solved coefficients.
    /// A source may equal a destination exactly, never overlap it otherwise.
    Combine {
        /// Bytes in each source and destination.
        len: u32,
        /// Destinations; only the first `outputs` count.
        dst: [BufAddr; 2],
        /// 1 or 2.
        outputs: u8,
        /// Add to what the destinations hold instead of replacing it.
        accumulate: bool,
        /// The terms, in `Engine::terms`.
        terms: Slice,
    },
    /// Copy; a source of [`BufAddr::ZERO`] clears.
    Copy {
        /// Destination.
        dst: BufAddr,
        /// Source.
        src: BufAddr,
        /// Length in bytes.
        len: u32,
    },
    /// Compare; a difference completes the computation with [`IoStatus::Miscompare`].
    Compare {
        /// One side.
        a: BufAddr,
        /// The other.
        b: BufAddr,
        /// Length in bytes.
        len: u32,
    },
}

/// What an engine tells the manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A member failed a write (or more). Every operation that missed it waits until a [`View`] says that it has failed:
    /// a failure is recorded on the other members before any write that it missed is acknowledged.
    MemberFailed {
        /// Which.
        member: MemberId,
        /// What it answered.
        status: IoStatus,
    },
    /// A write waits for the volume's dirty mark to be durable.
    DirtyNeeded {
        /// Which volume.
        volume: VolumeId,
    },
    /// A write waits for its region to be dirty, durably, in the volume's bitmap.
    RegionNeeded {
        /// Which volume.
        volume: VolumeId,
        /// Which region of it ([`crate::geometry::Geometry::region`]).
        region: u32,
    },
    /// All of a region was zeroed, and nothing else written to it since: it may become unwritten.
    RegionZeroed {
        /// Which volume.
        volume: VolumeId,
        /// Which region of it.
        region: u32,
    },
    /// A member could not read blocks; they were rebuilt from the others and rewritten.
    ReadRepaired {
        /// Which member.
        member: MemberId,
        /// Byte offset on the member.
        offset: u64,
        /// Length in bytes.
        len: u32,
    },
    /// Blocks could be neither read nor rebuilt.
    DataLost {
        /// Which volume.
        volume: VolumeId,
        /// Byte offset in the volume.
        offset: u64,
        /// Length in bytes.
        len: u32,
    },
}

/// The engine's slabs are full. The shell keeps the request and submits it again after the next completion.
#[derive(Debug)]
pub struct Busy(pub Request);

/// A view as it is handed around: immutable, shared.
pub type SharedView = Arc<View>;
