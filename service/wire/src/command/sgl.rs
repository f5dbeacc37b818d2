//! SGL descriptors (Base 4.3.2).

use crate::layout;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// SGL descriptor: 16 bytes, the data pointer of every fabrics command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Sgl {
    /// Address, or for [`Sgl::IN_CAPSULE`] the offset in the capsule's data.
    pub addr: U64,
    /// Bytes.
    pub len: U32,
    /// Reserved.
    pub reserved12: [u8; 3],
    /// Type in bits 7:4, subtype in bits 3:0.
    pub id: u8,
}
layout!(Sgl, 16, addr @ 0, len @ 8, id @ 15);

impl Sgl {
    /// Data Block with subtype Address (memory-based transports).
    pub const DATA_BLOCK: u8 = 0x00;
    /// Data Block with subtype Offset: the data is in the capsule.
    pub const IN_CAPSULE: u8 = 0x01;
    /// Transport SGL Data Block with subtype Transport Specific Ah: the data moves in data PDUs.
    pub const TRANSPORT: u8 = 0x5a;

    /// Data in the capsule, at its start. The offset is relative to the capsule's data (ICDOFF 0).
    pub const fn in_capsule(len: u32) -> Sgl {
        Sgl { addr: U64::ZERO, len: U32::new(len), reserved12: [0; 3], id: Sgl::IN_CAPSULE }
    }

    /// Data that moves in H2CData or C2HData PDUs.
    pub const fn transport(len: u32) -> Sgl {
        Sgl { addr: U64::ZERO, len: U32::new(len), reserved12: [0; 3], id: Sgl::TRANSPORT }
    }

    /// True if the data is in the capsule.
    pub const fn is_in_capsule(&self) -> bool {
        self.id == Sgl::IN_CAPSULE
    }

    /// True if the data moves in data PDUs.
    pub const fn is_transport(&self) -> bool {
        self.id == Sgl::TRANSPORT
    }
}
