//! PDUs of the TCP transport: types, headers and flags (TCP 3.6.2).
//!
//! [`check`] holds the rules that a received header must obey, [`Framer`] cuts a byte stream into PDUs, and [`digest`]
//! computes the CRC32C digests.

mod check;
pub mod digest;
mod framer;
#[cfg(test)]
mod tests;

use std::fmt;

pub use check::{Direction, FatalError, Fes, Layout, Params, check, check_common};
pub use framer::{Event, Framer};

use crate::command::{Cqe, Sqe};
use crate::layout;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The TCP port of NVMe/TCP I/O controllers (TCP 3.1).
pub const PORT: u16 = 4420;
/// The TCP port of discovery controllers (TCP 3.1).
pub const DISCOVERY_PORT: u16 = 8009;
/// Bytes of a header digest or a data digest.
pub const DIGEST_LEN: usize = 4;
/// Bytes of the header that all PDUs begin with.
pub const COMMON_LEN: usize = 8;
/// Bytes of the longest header: ICReq and ICResp.
pub const MAX_HEADER_LEN: usize = 128;
/// Bytes of a fabrics command's data that every controller accepts in the capsule (TCP 3.3.1.1).
pub const FABRICS_IN_CAPSULE: u32 = 8192;
/// Bytes of an erroneous PDU's header that a TermReq carries at most (TCP 3.6.2.4).
pub const MAX_TERM_DATA: usize = 128;
/// The smallest MAXH2CDATA that a controller may report, in bytes (TCP 3.6.2.3).
pub const MIN_MAXH2CDATA: u32 = 4096;

/// A PDU's type (TCP figure 20).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PduType {
    /// Initialize Connection Request, host to controller.
    ICReq = 0x00,
    /// Initialize Connection Response, controller to host.
    ICResp = 0x01,
    /// Host to Controller Terminate Connection Request.
    H2CTermReq = 0x02,
    /// Controller to Host Terminate Connection Request.
    C2HTermReq = 0x03,
    /// Command Capsule, host to controller.
    CapsuleCmd = 0x04,
    /// Response Capsule, controller to host.
    CapsuleResp = 0x05,
    /// Host to Controller Data Transfer.
    H2CData = 0x06,
    /// Controller to Host Data Transfer.
    C2HData = 0x07,
    /// Ready to Transfer, controller to host.
    R2T = 0x09,
}

impl PduType {
    /// The type with this code, if there is one.
    pub const fn from_u8(code: u8) -> Option<PduType> {
        Some(match code {
            0x00 => PduType::ICReq,
            0x01 => PduType::ICResp,
            0x02 => PduType::H2CTermReq,
            0x03 => PduType::C2HTermReq,
            0x04 => PduType::CapsuleCmd,
            0x05 => PduType::CapsuleResp,
            0x06 => PduType::H2CData,
            0x07 => PduType::C2HData,
            0x09 => PduType::R2T,
            _ => return None,
        })
    }

    /// HLEN of this type: the header's bytes, digest excluded.
    pub const fn header_len(self) -> usize {
        match self {
            PduType::ICReq | PduType::ICResp => 128,
            PduType::CapsuleCmd => 72,
            _ => 24,
        }
    }

    /// True for the types that a host sends.
    pub const fn from_host(self) -> bool {
        matches!(self, PduType::ICReq | PduType::H2CTermReq | PduType::CapsuleCmd | PduType::H2CData)
    }
}

impl fmt::Display for PduType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Bits of [`CommonHeader::flags`].
pub mod flags {
    /// HDGSTF: a header digest follows the header.
    pub const HDGSTF: u8 = 1 << 0;
    /// DDGSTF: a data digest follows the data.
    pub const DDGSTF: u8 = 1 << 1;
    /// LAST_PDU: the last PDU of a data transfer (of an R2T's data, or of a command's).
    pub const LAST_PDU: u8 = 1 << 2;
    /// SUCCESS: the command succeeded and no response capsule will follow. C2HData only, and only with LAST_PDU.
    pub const SUCCESS: u8 = 1 << 3;
}

/// Bits of the DGST field of ICReq and ICResp.
pub mod dgst {
    /// HDGST_ENABLE: header digests are used.
    pub const HDGST_ENABLE: u8 = 1 << 0;
    /// DDGST_ENABLE: data digests are used.
    pub const DDGST_ENABLE: u8 = 1 << 1;
}

/// Which digests a connection uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Digests {
    /// A digest follows each header, except those of ICReq, ICResp and TermReq.
    pub header: bool,
    /// A digest follows the data of each PDU that has data.
    pub data: bool,
}

impl Digests {
    /// From the DGST field of an ICReq or ICResp.
    pub const fn from_dgst(dgst: u8) -> Digests {
        Digests { header: dgst & dgst::HDGST_ENABLE != 0, data: dgst & dgst::DDGST_ENABLE != 0 }
    }

    /// The value of the DGST field.
    pub const fn to_dgst(self) -> u8 {
        self.header as u8 * dgst::HDGST_ENABLE + self.data as u8 * dgst::DDGST_ENABLE
    }

    /// Bytes of the header digest, 0 or 4.
    pub const fn header_len(self) -> usize {
        if self.header { DIGEST_LEN } else { 0 }
    }

    /// Bytes of the data digest, 0 or 4.
    pub const fn data_len(self) -> usize {
        if self.data { DIGEST_LEN } else { 0 }
    }
}

/// Where data begins in a PDU with this header length: behind the header, its digest, and padding up to the receiver's
/// alignment. `pda` is HPDA or CPDA: 0 to 31, in dwords, zero-based.
pub const fn data_offset(header_len: usize, digests: Digests, pda: u8) -> usize {
    let align = (pda as usize + 1) * 4;
    (header_len + digests.header_len()).div_ceil(align) * align
}

/// The header that all PDUs begin with, "CH" (TCP 3.6.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CommonHeader {
    /// PDU-Type, a [`PduType`].
    pub pdu_type: u8,
    /// FLAGS, see [`flags`].
    pub flags: u8,
    /// HLEN: bytes of the header, its digest excluded.
    pub hlen: u8,
    /// PDO: where the data begins, in bytes from the PDU's first byte; 0 where there is none.
    pub pdo: u8,
    /// PLEN: bytes of the whole PDU: header, digest, padding, data, data digest.
    pub plen: U32,
}
layout!(CommonHeader, 8, pdu_type @ 0, flags @ 1, hlen @ 2, pdo @ 3, plen @ 4);

impl CommonHeader {
    /// A header of this type with its HLEN. PDO is 0 without data.
    pub const fn new(pdu_type: PduType, flags: u8, pdo: u8, plen: u32) -> CommonHeader {
        CommonHeader { pdu_type: pdu_type as u8, flags, hlen: pdu_type.header_len() as u8, pdo, plen: U32::new(plen) }
    }

    /// For a PDU with `data_len` bytes of data: sets the digest flags, PDO and PLEN. With `data_len` 0 there is no data.
    pub const fn with_data(pdu_type: PduType, flags: u8, digests: Digests, pda: u8, data_len: u32) -> CommonHeader {
        let hlen = pdu_type.header_len();
        let flags = flags | if digests.header { flags::HDGSTF } else { 0 };
        if data_len == 0 {
            return CommonHeader::new(pdu_type, flags, 0, (hlen + digests.header_len()) as u32);
        }
        let flags = flags | if digests.data { flags::DDGSTF } else { 0 };
        let pdo = data_offset(hlen, digests, pda);
        CommonHeader::new(pdu_type, flags, pdo as u8, (pdo + digests.data_len()) as u32 + data_len)
    }
}

/// Initialize Connection Request (TCP 3.6.2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ICReq {
    /// CH: type 00h, HLEN 128, PLEN 128.
    pub ch: CommonHeader,
    /// PFV: PDU format version, 0.
    pub pfv: U16,
    /// HPDA: alignment of data that the host receives, in dwords, zero-based: 0 to 31.
    pub hpda: u8,
    /// DGST: digests that the host asks for, see [`dgst`].
    pub dgst: u8,
    /// MAXR2T: R2Ts that may be open per command, zero-based.
    pub maxr2t: U32,
    /// Reserved.
    pub reserved16: [u8; 112],
}
layout!(ICReq, 128, pfv @ 8, hpda @ 10, dgst @ 11, maxr2t @ 12, reserved16 @ 16);

impl ICReq {
    /// A request with PFV 0 and one R2T per command.
    pub const fn new(hpda: u8, digests: Digests) -> ICReq {
        ICReq {
            ch: CommonHeader::new(PduType::ICReq, 0, 0, 128),
            pfv: U16::ZERO,
            hpda,
            dgst: digests.to_dgst(),
            maxr2t: U32::ZERO,
            reserved16: [0; 112],
        }
    }
}

/// Initialize Connection Response (TCP 3.6.2.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ICResp {
    /// CH: type 01h, HLEN 128, PLEN 128.
    pub ch: CommonHeader,
    /// PFV: PDU format version, 0.
    pub pfv: U16,
    /// CPDA: alignment of data that the controller receives, in dwords, zero-based: 0 to 31.
    pub cpda: u8,
    /// DGST: digests that will be used, see [`dgst`].
    pub dgst: u8,
    /// MAXH2CDATA: bytes of data in one H2CData PDU at most. A multiple of 4, at least 4096.
    pub maxh2cdata: U32,
    /// Reserved.
    pub reserved16: [u8; 112],
}
layout!(ICResp, 128, pfv @ 8, cpda @ 10, dgst @ 11, maxh2cdata @ 12, reserved16 @ 16);

impl ICResp {
    /// A response with PFV 0.
    pub const fn new(cpda: u8, digests: Digests, maxh2cdata: u32) -> ICResp {
        ICResp {
            ch: CommonHeader::new(PduType::ICResp, 0, 0, 128),
            pfv: U16::ZERO,
            cpda,
            dgst: digests.to_dgst(),
            maxh2cdata: U32::new(maxh2cdata),
            reserved16: [0; 112],
        }
    }
}

/// Terminate Connection Request of either direction (TCP 3.6.2.4, 3.6.2.5). The erroneous PDU's header follows as data,
/// without PDO and without digests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct TermReq {
    /// CH: type 02h or 03h, HLEN 24, PLEN 24 to 152.
    pub ch: CommonHeader,
    /// FES: fatal error status, a [`Fes`].
    pub fes: U16,
    /// FEI: fatal error information, by FES: the offset of the bad field, or the header digest that was received.
    pub fei: U32,
    /// Reserved.
    pub reserved14: [u8; 10],
}
layout!(TermReq, 24, fes @ 8, fei @ 10, reserved14 @ 14);

/// Command Capsule (TCP 3.6.2.6). In-capsule data may follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CapsuleCmd {
    /// CH: type 04h, HLEN 72.
    pub ch: CommonHeader,
    /// CCSQE: the command.
    pub sqe: Sqe,
}
layout!(CapsuleCmd, 72, sqe @ 8);

impl CapsuleCmd {
    /// A capsule with `in_capsule` bytes of data behind it. `cpda` is the controller's alignment.
    pub const fn new(sqe: Sqe, in_capsule: u32, digests: Digests, cpda: u8) -> CapsuleCmd {
        CapsuleCmd { ch: CommonHeader::with_data(PduType::CapsuleCmd, 0, digests, cpda, in_capsule), sqe }
    }
}

/// Response Capsule (TCP 3.6.2.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CapsuleResp {
    /// CH: type 05h, HLEN 24.
    pub ch: CommonHeader,
    /// RCCQE: the completion.
    pub cqe: Cqe,
}
layout!(CapsuleResp, 24, cqe @ 8);

impl CapsuleResp {
    /// A response.
    pub const fn new(cqe: Cqe, digests: Digests) -> CapsuleResp {
        CapsuleResp { ch: CommonHeader::with_data(PduType::CapsuleResp, 0, digests, 0, 0), cqe }
    }
}

/// Host to Controller Data Transfer (TCP 3.6.2.8). The data follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct H2CData {
    /// CH: type 06h, HLEN 24.
    pub ch: CommonHeader,
    /// CCCID: the command's CID.
    pub cccid: U16,
    /// TTAG: the tag of the R2T that this data answers.
    pub ttag: U16,
    /// DATAO: where this data belongs, in bytes from the start of the command's data. Dword aligned.
    pub datao: U32,
    /// DATAL: bytes of data in this PDU.
    pub datal: U32,
    /// Reserved.
    pub reserved20: [u8; 4],
}
layout!(H2CData, 24, cccid @ 8, ttag @ 10, datao @ 12, datal @ 16);

impl H2CData {
    /// The header of a PDU with `datal` bytes of data. `cpda` is the controller's alignment.
    pub const fn new(cccid: u16, ttag: u16, datao: u32, datal: u32, last: bool, digests: Digests, cpda: u8) -> H2CData {
        let flags = if last { flags::LAST_PDU } else { 0 };
        H2CData {
            ch: CommonHeader::with_data(PduType::H2CData, flags, digests, cpda, datal),
            cccid: U16::new(cccid),
            ttag: U16::new(ttag),
            datao: U32::new(datao),
            datal: U32::new(datal),
            reserved20: [0; 4],
        }
    }

    /// True if LAST_PDU is set.
    pub const fn is_last(&self) -> bool {
        self.ch.flags & flags::LAST_PDU != 0
    }
}

/// Controller to Host Data Transfer (TCP 3.6.2.9). The data follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct C2HData {
    /// CH: type 07h, HLEN 24.
    pub ch: CommonHeader,
    /// CCCID: the command's CID.
    pub cccid: U16,
    /// Reserved.
    pub reserved10: [u8; 2],
    /// DATAO: where this data belongs, in bytes from the start of the command's data. Dword aligned.
    pub datao: U32,
    /// DATAL: bytes of data in this PDU.
    pub datal: U32,
    /// Reserved.
    pub reserved20: [u8; 4],
}
layout!(C2HData, 24, cccid @ 8, datao @ 12, datal @ 16);

impl C2HData {
    /// The header of a PDU with `datal` bytes of data. `flags` is any of LAST_PDU and SUCCESS, `hpda` the host's alignment.
    pub const fn new(cccid: u16, datao: u32, datal: u32, flags: u8, digests: Digests, hpda: u8) -> C2HData {
        C2HData {
            ch: CommonHeader::with_data(PduType::C2HData, flags, digests, hpda, datal),
            cccid: U16::new(cccid),
            reserved10: [0; 2],
            datao: U32::new(datao),
            datal: U32::new(datal),
            reserved20: [0; 4],
        }
    }

    /// True if LAST_PDU is set.
    pub const fn is_last(&self) -> bool {
        self.ch.flags & flags::LAST_PDU != 0
    }

    /// True if SUCCESS is set: this PDU completes the command.
    pub const fn is_success(&self) -> bool {
        self.ch.flags & flags::SUCCESS != 0
    }
}

/// Ready to Transfer (TCP 3.6.2.10).
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct R2T {
    /// CH: type 09h, HLEN 24.
    pub ch: CommonHeader,
    /// CCCID: the command's CID.
    pub cccid: U16,
    /// TTAG: the controller's tag, which the H2CData PDUs repeat.
    pub ttag: U16,
    /// R2TO: the first byte that is asked for, from the start of the command's data.
    pub r2to: U32,
    /// R2TL: bytes that are asked for.
    pub r2tl: U32,
    /// Reserved.
    pub reserved20: [u8; 4],
}
layout!(R2T, 24, cccid @ 8, ttag @ 10, r2to @ 12, r2tl @ 16);

impl R2T {
    /// Asks for `r2tl` bytes at offset `r2to` of a command's data.
    pub const fn new(cccid: u16, ttag: u16, r2to: u32, r2tl: u32, digests: Digests) -> R2T {
        R2T {
            ch: CommonHeader::with_data(PduType::R2T, 0, digests, 0, 0),
            cccid: U16::new(cccid),
            ttag: U16::new(ttag),
            r2to: U32::new(r2to),
            r2tl: U32::new(r2tl),
            reserved20: [0; 4],
        }
    }
}

/// A parsed header of any type, borrowed from the receive buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Header<'a> {
    /// Initialize Connection Request.
    ICReq(&'a ICReq),
    /// Initialize Connection Response.
    ICResp(&'a ICResp),
    /// Terminate Connection Request; the type in the header says by whom.
    TermReq(&'a TermReq),
    /// Command Capsule.
    CapsuleCmd(&'a CapsuleCmd),
    /// Response Capsule.
    CapsuleResp(&'a CapsuleResp),
    /// Host to Controller Data Transfer.
    H2CData(&'a H2CData),
    /// Controller to Host Data Transfer.
    C2HData(&'a C2HData),
    /// Ready to Transfer.
    R2T(&'a R2T),
}

impl<'a> Header<'a> {
    /// The header at the start of `bytes`, by its type. `None` if the type is unknown or bytes are missing.
    pub fn parse(bytes: &'a [u8]) -> Option<Header<'a>> {
        fn at<T: FromBytes + KnownLayout + Immutable + Unaligned>(bytes: &[u8]) -> Option<&T> {
            T::ref_from_prefix(bytes).ok().map(|(header, _)| header)
        }
        Some(match PduType::from_u8(*bytes.first()?)? {
            PduType::ICReq => Header::ICReq(at(bytes)?),
            PduType::ICResp => Header::ICResp(at(bytes)?),
            PduType::H2CTermReq | PduType::C2HTermReq => Header::TermReq(at(bytes)?),
            PduType::CapsuleCmd => Header::CapsuleCmd(at(bytes)?),
            PduType::CapsuleResp => Header::CapsuleResp(at(bytes)?),
            PduType::H2CData => Header::H2CData(at(bytes)?),
            PduType::C2HData => Header::C2HData(at(bytes)?),
            PduType::R2T => Header::R2T(at(bytes)?),
        })
    }

    /// The common header.
    pub fn common(&self) -> &'a CommonHeader {
        match self {
            Header::ICReq(h) => &h.ch,
            Header::ICResp(h) => &h.ch,
            Header::TermReq(h) => &h.ch,
            Header::CapsuleCmd(h) => &h.ch,
            Header::CapsuleResp(h) => &h.ch,
            Header::H2CData(h) => &h.ch,
            Header::C2HData(h) => &h.ch,
            Header::R2T(h) => &h.ch,
        }
    }

    /// The header's bytes, its digest excluded.
    pub fn bytes(&self) -> &'a [u8] {
        match self {
            Header::ICReq(h) => h.as_bytes(),
            Header::ICResp(h) => h.as_bytes(),
            Header::TermReq(h) => h.as_bytes(),
            Header::CapsuleCmd(h) => h.as_bytes(),
            Header::CapsuleResp(h) => h.as_bytes(),
            Header::H2CData(h) => h.as_bytes(),
            Header::C2HData(h) => h.as_bytes(),
            Header::R2T(h) => h.as_bytes(),
        }
    }
}
