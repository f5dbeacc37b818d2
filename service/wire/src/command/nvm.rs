//! Fields of the NVM command set's commands (NVM 3.3).

use super::{Sqe, io};
use crate::layout;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bits of CDW12 of Read, Write, Compare, Verify and Write Zeroes, above NLB.
pub mod control {
    /// LR: limited retry.
    pub const LR: u32 = 1 << 31;
    /// FUA: force unit access.
    pub const FUA: u32 = 1 << 30;
    /// PRINFO: PRACT in the top bit, PRCHK below it.
    pub const PRINFO: u32 = 0xf << 26;
    /// PRACT: protection information is made or removed by the controller.
    pub const PRACT: u32 = 1 << 29;
    /// DEAC of Write Zeroes: blocks may be deallocated, if they read as zeros afterwards.
    pub const DEAC: u32 = 1 << 25;
    /// STC: check the storage tag.
    pub const STC: u32 = 1 << 24;
}

/// Bits of CDW11 of Dataset Management (NVM 3.3.3).
pub mod dsm {
    /// IDR: the ranges will be read as a whole.
    pub const IDR: u32 = 1 << 0;
    /// IDW: the ranges will be written as a whole.
    pub const IDW: u32 = 1 << 1;
    /// AD: deallocate the ranges.
    pub const AD: u32 = 1 << 2;
    /// Ranges in one command at most.
    pub const MAX_RANGES: usize = 256;
}

/// A range of Dataset Management (NVM figure 44).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DsmRange {
    /// Context attributes: hints.
    pub cattr: U32,
    /// LLB: logical blocks.
    pub llb: U32,
    /// SLBA: first logical block.
    pub slba: U64,
}
layout!(DsmRange, 16, cattr @ 0, llb @ 4, slba @ 8);

impl DsmRange {
    /// A range without hints.
    pub const fn new(slba: u64, blocks: u32) -> DsmRange {
        DsmRange { cattr: U32::ZERO, llb: U32::new(blocks), slba: U64::new(slba) }
    }

    /// The first `count` ranges of a command's data. `None` if the data is shorter.
    pub fn parse(data: &[u8], count: usize) -> Option<&[DsmRange]> {
        <[DsmRange]>::ref_from_prefix_with_elems(data, count).ok().map(|(ranges, _)| ranges)
    }
}

impl Sqe {
    /// SLBA of Read, Write, Compare, Verify, Write Zeroes: the first logical block.
    pub fn slba(&self) -> u64 {
        self.cdw10_11()
    }

    /// The number of logical blocks: NLB, which is zero-based, plus one.
    pub fn blocks(&self) -> u32 {
        (self.cdw12.get() & 0xffff) + 1
    }

    /// FUA.
    pub fn fua(&self) -> bool {
        self.cdw12.get() & control::FUA != 0
    }

    /// DEAC of Write Zeroes.
    pub fn deac(&self) -> bool {
        self.cdw12.get() & control::DEAC != 0
    }

    /// PRINFO: anything but 0 needs a namespace with protection information.
    pub fn prinfo(&self) -> u8 {
        ((self.cdw12.get() & control::PRINFO) >> 26) as u8
    }

    /// The number of ranges of Dataset Management: NR, which is zero-based, plus one.
    pub fn dsm_ranges(&self) -> usize {
        (self.cdw10.get() & 0xff) as usize + 1
    }

    /// Attributes of Dataset Management, see [`dsm`].
    pub fn dsm_attributes(&self) -> u32 {
        self.cdw11.get()
    }

    fn blocks_command(opcode: u8, cid: u16, nsid: u32, slba: u64, blocks: u32, control: u32) -> Sqe {
        debug_assert!((1..=0x1_0000).contains(&blocks));
        let mut sqe = Sqe::new(opcode, cid, nsid);
        sqe.cdw10 = U32::new(slba as u32);
        sqe.cdw11 = U32::new((slba >> 32) as u32);
        sqe.cdw12 = U32::new((blocks.wrapping_sub(1) & 0xffff) | control);
        sqe
    }

    /// Read of `blocks` logical blocks (1 to 65536). `control`: bits of [`control`]. The caller sets `sgl`.
    pub fn read(cid: u16, nsid: u32, slba: u64, blocks: u32, control: u32) -> Sqe {
        Sqe::blocks_command(io::READ, cid, nsid, slba, blocks, control)
    }

    /// Write. See [`Sqe::read`].
    pub fn write(cid: u16, nsid: u32, slba: u64, blocks: u32, control: u32) -> Sqe {
        Sqe::blocks_command(io::WRITE, cid, nsid, slba, blocks, control)
    }

    /// Compare. See [`Sqe::read`].
    pub fn compare(cid: u16, nsid: u32, slba: u64, blocks: u32) -> Sqe {
        Sqe::blocks_command(io::COMPARE, cid, nsid, slba, blocks, 0)
    }

    /// Write Zeroes. See [`Sqe::read`].
    pub fn write_zeroes(cid: u16, nsid: u32, slba: u64, blocks: u32, control: u32) -> Sqe {
        Sqe::blocks_command(io::WRITE_ZEROES, cid, nsid, slba, blocks, control)
    }

    /// Verify. See [`Sqe::read`].
    pub fn verify(cid: u16, nsid: u32, slba: u64, blocks: u32) -> Sqe {
        Sqe::blocks_command(io::VERIFY, cid, nsid, slba, blocks, 0)
    }

    /// Flush.
    pub fn flush(cid: u16, nsid: u32) -> Sqe {
        Sqe::new(io::FLUSH, cid, nsid)
    }

    /// Dataset Management of 1 to 256 ranges, which are the command's data.
    pub fn dataset_management(cid: u16, nsid: u32, ranges: usize, attributes: u32) -> Sqe {
        debug_assert!((1..=dsm::MAX_RANGES).contains(&ranges));
        let mut sqe = Sqe::new(io::DATASET_MANAGEMENT, cid, nsid);
        sqe.cdw10 = U32::new(ranges.wrapping_sub(1) as u32 & 0xff);
        sqe.cdw11 = U32::new(attributes);
        sqe
    }
}
