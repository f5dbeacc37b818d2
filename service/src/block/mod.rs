//! The block device: where the array, its members and the target meet (design, section 4).

pub mod backing;
pub mod fault;
pub mod ram;
pub mod stats;
pub mod uring;
pub mod volatile;

use raid_core::action::{BufAddr, IoStatus, Seg};

/// Makes a device's queue on the reactor that calls it.
pub type MemberHandle =
    std::sync::Arc<dyn Fn(&mut crate::reactor::Context) -> Result<Box<dyn BlockDevice>, String> + Send + Sync>;

/// What a device is and can do. Sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockInfo {
    /// How the operator named it, for messages.
    pub address: String,
    /// Size.
    pub size: u64,
    /// Logical block size, 512 or 4096.
    pub block_size: u32,
    /// The unit that the medium writes without reading first.
    pub physical_block_size: u32,
    /// Writes may sit in a cache until flushed.
    pub volatile_cache: bool,
    /// Zeroing is quick and needs no transfer of zeros.
    pub fast_zero: bool,
    /// Zeroing may deallocate.
    pub unmap: bool,
    /// A rotating disk.
    pub rotational: bool,
    /// Best request size, or 0.
    pub optimal_io: u32,
    /// Alignment that buffers need.
    pub memory_alignment: u32,
}

impl BlockInfo {
    /// What memory is: 512-byte blocks, durable as soon as written, zeroed quickly, and used from any address.
    pub fn memory(address: &str, size: u64) -> BlockInfo {
        BlockInfo {
            address: address.to_string(),
            size,
            block_size: 512,
            physical_block_size: 4096,
            volatile_cache: false,
            fast_zero: true,
            unmap: true,
            rotational: false,
            optimal_io: 0,
            memory_alignment: 1,
        }
    }
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoOp {
    /// Read into the segments.
    Read,
    /// Write from the segments.
    Write {
        /// Durable before it completes.
        fua: bool,
    },
    /// Make completed writes durable.
    Flush,
    /// Make the range read as zeros.
    Zero {
        /// Deallocation is welcome.
        unmap: bool,
        /// Durable before it completes.
        fua: bool,
    },
    /// Compare the range with the segments; `read_buf` has room for the range.
    Compare {
        /// Room for what the device holds.
        read_buf: BufAddr,
    },
}

/// One I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Io {
    /// Handed back with the completion.
    pub tag: u64,
    /// What to do.
    pub op: IoOp,
    /// Byte offset, a multiple of the block size.
    pub offset: u64,
    /// Length in bytes: the sum of the segments where there are any.
    pub len: u64,
}

/// How an I/O ended. Members answer with the first five, a volume with all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockStatus {
    /// A member's answer.
    Member(IoStatus),
    /// A volume's answer.
    Volume(raid_core::action::ReqStatus),
}

impl BlockStatus {
    /// True for success of either kind.
    pub fn is_ok(self) -> bool {
        matches!(self, BlockStatus::Member(IoStatus::Ok) | BlockStatus::Volume(raid_core::action::ReqStatus::Ok))
    }
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The I/O's tag.
    pub tag: u64,
    /// How it ended.
    pub status: BlockStatus,
}

/// Where a device puts its answers. Reused, so that polling allocates nothing once warm.
pub type Completions = Vec<Completion>;

/// A device as one reactor sees it: its own queue, shared with nobody.
pub trait BlockDevice {
    /// What it is.
    fn info(&self) -> &BlockInfo;
    /// Queues an I/O. The segments are copied; the memory that they name must stay until the completion.
    /// `Err` gives the I/O back: the queue is full, poll first.
    fn submit(&mut self, io: Io, segs: &[Seg]) -> Result<(), Io>;
    /// Rings the doorbell for all that was queued: called once per pass of the reactor.
    fn ring(&mut self);
    /// Collects completions; never blocks.
    fn poll(&mut self, done: &mut Completions);
    /// When to poll again even if nothing happens: an answer is held back until then.
    fn next_deadline(&self) -> Option<raid_core::units::Tick> {
        None
    }
    /// I/Os queued or in flight.
    fn in_flight(&self) -> usize;
}

#[cfg(test)]
mod tests;
