//! What a received header must obey, and the Fatal Error Status that each breach is owed (TCP 3.5, 3.6.2.4, 3.6.2.5).

use super::{
    C2HData, CommonHeader, DIGEST_LEN, Digests, H2CData, Header, ICReq, ICResp, MAX_TERM_DATA, PduType, TermReq, flags,
};
use std::fmt;
use std::mem::offset_of;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

/// FES: fatal error status of a TermReq (TCP figures 24 and 26).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fes(pub u16);

impl Fes {
    /// Invalid PDU Header Field; FEI is the field's offset.
    pub const INVALID_HEADER_FIELD: Fes = Fes(1);
    /// PDU Sequence Error.
    pub const SEQUENCE_ERROR: Fes = Fes(2);
    /// Header Digest Error; FEI is the digest that was received.
    pub const HEADER_DIGEST_ERROR: Fes = Fes(3);
    /// Data Transfer Out of Range.
    pub const DATA_OUT_OF_RANGE: Fes = Fes(4);
    /// Data Transfer Limit Exceeded (from the controller), R2T Limit Exceeded (from the host).
    pub const LIMIT_EXCEEDED: Fes = Fes(5);
    /// Unsupported Parameter; FEI is the field's offset.
    pub const UNSUPPORTED_PARAMETER: Fes = Fes(6);
}

impl fmt::Display for Fes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match *self {
            Fes::INVALID_HEADER_FIELD => "Invalid PDU Header Field",
            Fes::SEQUENCE_ERROR => "PDU Sequence Error",
            Fes::HEADER_DIGEST_ERROR => "Header Digest Error",
            Fes::DATA_OUT_OF_RANGE => "Data Transfer Out of Range",
            Fes::LIMIT_EXCEEDED => "Data Transfer or R2T Limit Exceeded",
            Fes::UNSUPPORTED_PARAMETER => "Unsupported Parameter",
            Fes(code) => return write!(f, "Unknown Fatal Error Status {code:04x}h"),
        };
        f.write_str(name)
    }
}

/// A breach of the transport's rules. The connection ends: send a TermReq, then close in bounded time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("fatal transport error: {fes} (information {fei:x}h)")]
pub struct FatalError {
    /// FES.
    pub fes: Fes,
    /// FEI: offset of the bad field for Invalid PDU Header Field and Unsupported Parameter, the digest for Header Digest
    /// Error, otherwise 0.
    pub fei: u32,
}

impl FatalError {
    /// Invalid PDU Header Field at this offset from the PDU's first byte.
    pub const fn field(offset: usize) -> FatalError {
        FatalError { fes: Fes::INVALID_HEADER_FIELD, fei: offset as u32 }
    }

    /// CCCID names no command, or none that this PDU may belong to.
    pub const BAD_CCCID: FatalError = FatalError::field(offset_of!(H2CData, cccid));
    /// TTAG names no open R2T.
    pub const BAD_TTAG: FatalError = FatalError::field(offset_of!(H2CData, ttag));
    /// DATAO is not where the data was expected.
    pub const BAD_DATAO: FatalError = FatalError::field(offset_of!(H2CData, datao));
    /// LAST_PDU is set too early, or missing at the end.
    pub const BAD_LAST_PDU: FatalError = FatalError::field(offset_of!(CommonHeader, flags));
    /// A PDU that may not come now.
    pub const SEQUENCE: FatalError = FatalError { fes: Fes::SEQUENCE_ERROR, fei: 0 };
    /// Data outside of what the command or the R2T covers.
    pub const OUT_OF_RANGE: FatalError = FatalError { fes: Fes::DATA_OUT_OF_RANGE, fei: 0 };
    /// More data than MAXH2CDATA, or more R2Ts than MAXR2T.
    pub const LIMIT: FatalError = FatalError { fes: Fes::LIMIT_EXCEEDED, fei: 0 };

    /// The TermReq to send. `by` is the sender's direction; `erroneous` is the bad PDU's header, of which at most 128 bytes
    /// are copied. Returns the bytes and how many of them count.
    pub fn term_req(self, by: Direction, erroneous: &[u8]) -> ([u8; 24 + MAX_TERM_DATA], usize) {
        let data = &erroneous[..erroneous.len().min(MAX_TERM_DATA)];
        let len = 24 + data.len();
        let pdu_type = match by {
            Direction::ToController => PduType::H2CTermReq,
            Direction::ToHost => PduType::C2HTermReq,
        };
        let header = TermReq {
            ch: CommonHeader::new(pdu_type, 0, 0, len as u32),
            fes: U16::new(self.fes.0),
            fei: U32::new(self.fei),
            reserved14: [0; 10],
        };
        let mut out = [0; 24 + MAX_TERM_DATA];
        out[..24].copy_from_slice(header.as_bytes());
        out[24..len].copy_from_slice(data);
        (out, len)
    }
}

/// Which way PDUs travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Sent by the host, received by the controller.
    ToController,
    /// Sent by the controller, received by the host.
    ToHost,
}

/// What the receiver of a connection has agreed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Params {
    /// The direction of the PDUs that are received.
    pub direction: Direction,
    /// False until ICReq and ICResp have been exchanged: nothing else is legal before, and neither is after.
    pub established: bool,
    /// Digests in use.
    pub digests: Digests,
    /// The receiver's data alignment: CPDA at the controller, HPDA at the host (0 to 31, dwords, zero-based).
    pub pda: u8,
    /// Bytes of in-capsule data at most (controller).
    pub max_in_capsule: u32,
    /// Bytes of data in one data PDU at most: MAXH2CDATA at the controller.
    pub max_data: u32,
}

impl Params {
    /// For a connection that begins: no digests, no padding.
    pub const fn new(direction: Direction, max_in_capsule: u32, max_data: u32) -> Params {
        Params {
            direction,
            established: false,
            digests: Digests { header: false, data: false },
            pda: 0,
            max_in_capsule,
            max_data,
        }
    }
}

/// Where the parts of a PDU are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// The type.
    pub pdu_type: PduType,
    /// Bytes of the header, its digest excluded.
    pub header_len: usize,
    /// A digest follows the header.
    pub header_digest: bool,
    /// Where the data begins, or the PDU ends if it has none.
    pub data_offset: usize,
    /// Bytes of data.
    pub data_len: usize,
    /// A digest follows the data.
    pub data_digest: bool,
}

impl Layout {
    /// Bytes of the whole PDU: PLEN.
    pub const fn len(&self) -> usize {
        self.data_offset + self.data_len + if self.data_digest { DIGEST_LEN } else { 0 }
    }

    /// Never: every PDU has a header. Here for symmetry with `len`.
    pub const fn is_empty(&self) -> bool {
        false
    }
}

const TYPE: FatalError = FatalError::field(offset_of!(CommonHeader, pdu_type));
const FLAGS: FatalError = FatalError::field(offset_of!(CommonHeader, flags));
const HLEN: FatalError = FatalError::field(offset_of!(CommonHeader, hlen));
const PDO: FatalError = FatalError::field(offset_of!(CommonHeader, pdo));
const PLEN: FatalError = FatalError::field(offset_of!(CommonHeader, plen));

/// Checks the first eight bytes of a PDU, so that garbage is refused before anything is waited for or stored.
///
/// After it, the PDU's length is bounded: a header, at most 255 bytes in front of the data, and `max_in_capsule` or
/// `max_data` bytes of data.
pub fn check_common(ch: &CommonHeader, params: &Params) -> Result<Layout, FatalError> {
    let pdu_type = PduType::from_u8(ch.pdu_type).ok_or(TYPE)?;
    if pdu_type.from_host() != (params.direction == Direction::ToController) {
        return Err(TYPE);
    }
    let is_term = matches!(pdu_type, PduType::H2CTermReq | PduType::C2HTermReq);
    let is_init = matches!(pdu_type, PduType::ICReq | PduType::ICResp);
    // A TermReq may come at any time; ICReq and ICResp first and only once (TCP 3.4.1).
    if !is_term && is_init == params.established {
        return Err(FatalError::SEQUENCE);
    }
    let header_len = pdu_type.header_len();
    if usize::from(ch.hlen) != header_len {
        return Err(HLEN);
    }
    let plen = ch.plen.get() as usize;
    let mut layout =
        Layout { pdu_type, header_len, header_digest: false, data_offset: header_len, data_len: 0, data_digest: false };
    if is_init {
        return if plen == header_len { Ok(layout) } else { Err(PLEN) };
    }
    if is_term {
        // Never with digests; the data follows the header at once and PDO is reserved.
        layout.data_len = plen.checked_sub(header_len).filter(|&n| n <= MAX_TERM_DATA).ok_or(PLEN)?;
        return Ok(layout);
    }
    if (ch.flags & flags::HDGSTF != 0) != params.digests.header {
        return Err(FLAGS);
    }
    layout.header_digest = params.digests.header;
    layout.data_offset = header_len + params.digests.header_len();
    if plen < layout.data_offset {
        return Err(PLEN);
    }
    let max = match pdu_type {
        PduType::CapsuleCmd if plen == layout.data_offset => return Ok(layout),
        PduType::CapsuleCmd => params.max_in_capsule,
        PduType::H2CData | PduType::C2HData => params.max_data,
        // CapsuleResp and R2T never carry data.
        _ => return if plen == layout.data_offset { Ok(layout) } else { Err(PLEN) },
    };
    if (ch.flags & flags::DDGSTF != 0) != params.digests.data {
        return Err(FLAGS);
    }
    layout.data_digest = params.digests.data;
    let pdo = usize::from(ch.pdo);
    let align = (usize::from(params.pda) + 1) * 4;
    if pdo < layout.data_offset || !pdo.is_multiple_of(align) {
        return Err(PDO);
    }
    layout.data_offset = pdo;
    layout.data_len = plen.checked_sub(pdo + params.digests.data_len()).filter(|&n| n > 0).ok_or(PLEN)?;
    if layout.data_len > max as usize {
        return Err(if pdu_type == PduType::CapsuleCmd { PLEN } else { FatalError::LIMIT });
    }
    Ok(layout)
}

/// Checks a whole header. `bytes` holds at least the header; its digest has been compared by the caller.
pub fn check(bytes: &[u8], params: &Params) -> Result<Layout, FatalError> {
    let (ch, _) = CommonHeader::ref_from_prefix(bytes).map_err(|_| PLEN)?;
    let layout = check_common(ch, params)?;
    check_fields(&Header::parse(bytes).ok_or(PLEN)?, &layout)?;
    Ok(layout)
}

/// Checks the fields behind the common header, which [`check_common`] has passed.
pub(super) fn check_fields(header: &Header<'_>, layout: &Layout) -> Result<(), FatalError> {
    match header {
        Header::ICReq(req) => {
            if req.pfv.get() != 0 {
                return Err(FatalError { fes: Fes::UNSUPPORTED_PARAMETER, fei: offset_of!(ICReq, pfv) as u32 });
            }
            if req.hpda > 31 {
                return Err(FatalError::field(offset_of!(ICReq, hpda)));
            }
        }
        Header::ICResp(resp) => {
            if resp.pfv.get() != 0 {
                return Err(FatalError { fes: Fes::UNSUPPORTED_PARAMETER, fei: offset_of!(ICResp, pfv) as u32 });
            }
            if resp.cpda > 31 {
                return Err(FatalError::field(offset_of!(ICResp, cpda)));
            }
            let max = resp.maxh2cdata.get();
            if max < super::MIN_MAXH2CDATA || max % 4 != 0 {
                return Err(FatalError::field(offset_of!(ICResp, maxh2cdata)));
            }
        }
        Header::H2CData(data) => check_data(data.datao.get(), data.datal.get(), layout)?,
        Header::C2HData(data) => {
            check_data(data.datao.get(), data.datal.get(), layout)?;
            if data.is_success() && !data.is_last() {
                return Err(FLAGS);
            }
        }
        Header::R2T(r2t) => {
            if r2t.r2tl.get() == 0 {
                return Err(FatalError::field(offset_of!(super::R2T, r2tl)));
            }
            if r2t.r2to.get().checked_add(r2t.r2tl.get()).is_none() {
                return Err(FatalError::OUT_OF_RANGE);
            }
        }
        Header::TermReq(_) | Header::CapsuleCmd(_) | Header::CapsuleResp(_) => {}
    }
    Ok(())
}

/// DATAL 0, then DATAL against PLEN, then DATAO. Both data PDUs have the fields at the same offsets.
fn check_data(datao: u32, datal: u32, layout: &Layout) -> Result<(), FatalError> {
    const { assert!(offset_of!(H2CData, datao) == offset_of!(C2HData, datao)) };
    const { assert!(offset_of!(H2CData, datal) == offset_of!(C2HData, datal)) };
    if datal == 0 {
        return Err(FatalError::field(offset_of!(H2CData, datal)));
    }
    if datal as usize != layout.data_len {
        return Err(PLEN);
    }
    if !datao.is_multiple_of(4) {
        return Err(FatalError::field(offset_of!(H2CData, datao)));
    }
    if datao.checked_add(datal).is_none() { Err(FatalError::OUT_OF_RANGE) } else { Ok(()) }
}
