//! Submission and completion queue entries (Base 3.3.3), opcodes, SGL descriptors and the NVM command set's fields.

mod nvm;
mod sgl;
mod status;

pub use nvm::{DsmRange, control, dsm};
pub use sgl::Sgl;
pub use status::Status;

use crate::layout;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a submission queue entry.
pub const SQE_LEN: usize = 64;
/// Bytes of a completion queue entry.
pub const CQE_LEN: usize = 16;
/// NSID that addresses all namespaces (Base 3.2.1.2).
pub const NSID_ALL: u32 = 0xffff_ffff;

/// Opcodes of the admin command set (Base figure 138).
pub mod admin {
    /// Delete I/O Submission Queue (memory-based transports only).
    pub const DELETE_IO_SQ: u8 = 0x00;
    /// Create I/O Submission Queue (memory-based transports only).
    pub const CREATE_IO_SQ: u8 = 0x01;
    /// Get Log Page.
    pub const GET_LOG_PAGE: u8 = 0x02;
    /// Delete I/O Completion Queue (memory-based transports only).
    pub const DELETE_IO_CQ: u8 = 0x04;
    /// Create I/O Completion Queue (memory-based transports only).
    pub const CREATE_IO_CQ: u8 = 0x05;
    /// Identify.
    pub const IDENTIFY: u8 = 0x06;
    /// Abort.
    pub const ABORT: u8 = 0x08;
    /// Set Features.
    pub const SET_FEATURES: u8 = 0x09;
    /// Get Features.
    pub const GET_FEATURES: u8 = 0x0a;
    /// Asynchronous Event Request.
    pub const ASYNC_EVENT_REQUEST: u8 = 0x0c;
    /// Namespace Management.
    pub const NAMESPACE_MANAGEMENT: u8 = 0x0d;
    /// Firmware Commit.
    pub const FIRMWARE_COMMIT: u8 = 0x10;
    /// Firmware Image Download.
    pub const FIRMWARE_DOWNLOAD: u8 = 0x11;
    /// Device Self-test.
    pub const DEVICE_SELF_TEST: u8 = 0x14;
    /// Namespace Attachment.
    pub const NAMESPACE_ATTACHMENT: u8 = 0x15;
    /// Keep Alive.
    pub const KEEP_ALIVE: u8 = 0x18;
    /// Fabrics commands, on every queue; the type is in FCTYPE.
    pub const FABRICS: u8 = 0x7f;
    /// Format NVM.
    pub const FORMAT_NVM: u8 = 0x80;
    /// Security Send.
    pub const SECURITY_SEND: u8 = 0x81;
    /// Security Receive.
    pub const SECURITY_RECEIVE: u8 = 0x82;
    /// Sanitize.
    pub const SANITIZE: u8 = 0x84;
}

/// Opcodes of the NVM command set (NVM figure 20).
pub mod io {
    /// Flush.
    pub const FLUSH: u8 = 0x00;
    /// Write.
    pub const WRITE: u8 = 0x01;
    /// Read.
    pub const READ: u8 = 0x02;
    /// Write Uncorrectable.
    pub const WRITE_UNCORRECTABLE: u8 = 0x04;
    /// Compare.
    pub const COMPARE: u8 = 0x05;
    /// Write Zeroes.
    pub const WRITE_ZEROES: u8 = 0x08;
    /// Dataset Management.
    pub const DATASET_MANAGEMENT: u8 = 0x09;
    /// Verify.
    pub const VERIFY: u8 = 0x0c;
    /// Reservation Register.
    pub const RESERVATION_REGISTER: u8 = 0x0d;
    /// Reservation Report.
    pub const RESERVATION_REPORT: u8 = 0x0e;
    /// Reservation Acquire.
    pub const RESERVATION_ACQUIRE: u8 = 0x11;
    /// Reservation Release.
    pub const RESERVATION_RELEASE: u8 = 0x15;
    /// Copy.
    pub const COPY: u8 = 0x19;
}

/// FCTYPE of a fabrics command (Base figure 543).
pub mod fctype {
    /// Property Set.
    pub const PROPERTY_SET: u8 = 0x00;
    /// Connect.
    pub const CONNECT: u8 = 0x01;
    /// Property Get.
    pub const PROPERTY_GET: u8 = 0x04;
    /// Authentication Send.
    pub const AUTHENTICATION_SEND: u8 = 0x05;
    /// Authentication Receive.
    pub const AUTHENTICATION_RECEIVE: u8 = 0x06;
    /// Disconnect.
    pub const DISCONNECT: u8 = 0x08;
}

/// The data direction that an opcode's bits 1:0 announce (Base figure 138).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transfer {
    /// No data.
    None,
    /// Host to controller: a write.
    HostToController,
    /// Controller to host: a read.
    ControllerToHost,
    /// Both ways; no such command is defined here.
    Bidirectional,
}

/// Submission queue entry: the form that all commands share (Base figure 91).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Sqe {
    /// OPC: opcode, see [`admin`] and [`io`].
    pub opcode: u8,
    /// FUSE in bits 1:0, PSDT in bits 7:6.
    pub flags: u8,
    /// CID: the host's name for this command on this queue.
    pub cid: U16,
    /// NSID: the namespace. A fabrics command has FCTYPE in the first byte.
    pub nsid: U32,
    /// CDW2.
    pub cdw2: U32,
    /// CDW3.
    pub cdw3: U32,
    /// MPTR: the metadata pointer.
    pub mptr: U64,
    /// DPTR: the data pointer; on fabrics always one SGL descriptor.
    pub sgl: Sgl,
    /// CDW10.
    pub cdw10: U32,
    /// CDW11.
    pub cdw11: U32,
    /// CDW12.
    pub cdw12: U32,
    /// CDW13.
    pub cdw13: U32,
    /// CDW14.
    pub cdw14: U32,
    /// CDW15.
    pub cdw15: U32,
}
layout!(
    Sqe, 64, opcode @ 0, flags @ 1, cid @ 2, nsid @ 4, cdw2 @ 8, cdw3 @ 12, mptr @ 16, sgl @ 24, cdw10 @ 40,
    cdw11 @ 44, cdw12 @ 48, cdw13 @ 52, cdw14 @ 56, cdw15 @ 60
);

/// PSDT 01b: SGLs are used, the metadata pointer is a contiguous buffer. What hosts set on fabrics.
pub const PSDT_SGL: u8 = 0x40;
/// FUSE 01b: the first of a fused pair.
pub const FUSE_FIRST: u8 = 0x01;
/// FUSE 10b: the second of a fused pair.
pub const FUSE_SECOND: u8 = 0x02;

impl Sqe {
    /// A command with SGLs in use and everything else zero.
    pub fn new(opcode: u8, cid: u16, nsid: u32) -> Sqe {
        Sqe { opcode, flags: PSDT_SGL, cid: U16::new(cid), nsid: U32::new(nsid), ..Sqe::default() }
    }

    /// Reads a command from the first 64 bytes. `None` if there are fewer.
    pub fn parse(bytes: &[u8]) -> Option<&Sqe> {
        Sqe::ref_from_prefix(bytes).ok().map(|(sqe, _)| sqe)
    }

    /// FUSE: 0, [`FUSE_FIRST`] or [`FUSE_SECOND`]; 3 is reserved.
    pub const fn fuse(&self) -> u8 {
        self.flags & 3
    }

    /// PSDT: 0 for PRPs, 1 or 2 for SGLs; 3 is reserved.
    pub const fn psdt(&self) -> u8 {
        self.flags >> 6
    }

    /// FCTYPE of a fabrics command, see [`fctype`].
    pub fn fctype(&self) -> u8 {
        self.nsid.get() as u8
    }

    /// True for the opcode of fabrics commands.
    pub const fn is_fabrics(&self) -> bool {
        self.opcode == admin::FABRICS
    }

    /// The data direction. For a fabrics command FCTYPE tells, for others the opcode. An SGL descriptor of length 0 means no
    /// data whatever this says: hosts send Set Features so.
    pub fn transfer(&self) -> Transfer {
        let code = if self.is_fabrics() { self.fctype() } else { self.opcode };
        match code & 3 {
            0 => Transfer::None,
            1 => Transfer::HostToController,
            2 => Transfer::ControllerToHost,
            _ => Transfer::Bidirectional,
        }
    }

    /// CDW10 and CDW11 as one number.
    pub fn cdw10_11(&self) -> u64 {
        u64::from(self.cdw10.get()) | u64::from(self.cdw11.get()) << 32
    }
}

/// Completion queue entry (Base figure 96).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Cqe {
    /// DW0: the command's result.
    pub dw0: U32,
    /// DW1: the command's result, upper half.
    pub dw1: U32,
    /// SQHD: submission queue head pointer.
    pub sqhd: U16,
    /// SQID: reserved on fabrics.
    pub sqid: U16,
    /// CID: the command that this completes.
    pub cid: U16,
    /// Phase tag in bit 0 (0 on fabrics) and the status field in bits 15:1, see [`Status`].
    pub status: U16,
}
layout!(Cqe, 16, dw0 @ 0, dw1 @ 4, sqhd @ 8, sqid @ 10, cid @ 12, status @ 14);

impl Cqe {
    /// A completion without a result.
    pub const fn new(cid: u16, sqhd: u16, status: Status) -> Cqe {
        Cqe {
            dw0: U32::ZERO,
            dw1: U32::ZERO,
            sqhd: U16::new(sqhd),
            sqid: U16::ZERO,
            cid: U16::new(cid),
            status: U16::new(status.to_field()),
        }
    }

    /// With a result of 32 bits.
    pub const fn with_dw0(self, dw0: u32) -> Cqe {
        Cqe { dw0: U32::new(dw0), ..self }
    }

    /// With a result of 64 bits.
    pub const fn with_result(self, value: u64) -> Cqe {
        Cqe { dw0: U32::new(value as u32), dw1: U32::new((value >> 32) as u32), ..self }
    }

    /// DW0 and DW1 as one number.
    pub fn result(&self) -> u64 {
        u64::from(self.dw0.get()) | u64::from(self.dw1.get()) << 32
    }

    /// The status.
    pub fn status(&self) -> Status {
        Status::from_field(self.status.get())
    }
}
