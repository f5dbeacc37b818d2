//! Cuts a byte stream into PDUs. Does no I/O and copies nothing.

use super::check::{FatalError, Fes, Params, check_common, check_fields};
use super::{COMMON_LEN, CommonHeader, DIGEST_LEN, Digests, Header, PduType, data_offset, digest};
use zerocopy::FromBytes;

/// What the bytes received so far amount to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event<'a> {
    /// The buffer must hold at least so many bytes, counted from its start, before there is anything new. Never more than
    /// [`Framer::max_need`].
    NeedMore(usize),
    /// A whole PDU: any but a data PDU.
    Pdu {
        /// The header.
        header: Header<'a>,
        /// In-capsule data of a CapsuleCmd, the erroneous header in a TermReq; otherwise empty.
        data: &'a [u8],
        /// False if the data digest is wrong: the command fails with Transient Transport Error, the connection lives.
        digest_ok: bool,
    },
    /// The header of an H2CData or C2HData PDU. Its payload is next: [`Event::Payload`].
    Data(Header<'a>),
    /// So many bytes of payload are next in the stream. Take what is in the buffer, receive the rest straight to where it
    /// belongs, and tell [`Framer::received`] of both.
    Payload(usize),
    /// The payload of a data PDU is complete.
    DataEnd {
        /// False if the data digest is wrong.
        digest_ok: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// At a PDU's first byte.
    Header,
    /// Inside a data PDU's payload.
    Payload { left: usize, crc: u32 },
    /// Behind a payload.
    End { crc: u32 },
    /// After a fatal error: the stream cannot be resynchronized.
    Failed(FatalError),
}

/// Cuts a connection's received bytes into PDUs.
///
/// ```
/// # use nvme_wire::tcp::{Digests, Direction, Event, Framer, Header, ICReq, Params};
/// # use nvme_wire::zerocopy::IntoBytes;
/// let mut framer = Framer::new(Params::new(Direction::ToController, 8192, 131072));
/// let bytes = ICReq::new(0, Digests::default());
/// let (used, event) = framer.next(bytes.as_bytes()).unwrap();
/// assert_eq!(used, 128);
/// assert!(matches!(event, Event::Pdu { header: Header::ICReq(_), .. }));
/// framer.establish(Digests::default(), 0);
/// assert_eq!(framer.next(&[]), Ok((0, Event::NeedMore(8))));
/// ```
#[derive(Debug, Clone)]
pub struct Framer {
    params: Params,
    state: State,
}

impl Framer {
    /// For a connection that begins.
    pub const fn new(params: Params) -> Framer {
        Framer { params, state: State::Header }
    }

    /// ICReq and ICResp have been exchanged: from the next PDU on these digests, and this alignment of received data, hold.
    pub const fn establish(&mut self, digests: Digests, pda: u8) {
        self.params.established = true;
        self.params.digests = digests;
        self.params.pda = pda;
    }

    /// Changes the in-capsule limit: 8192 while only fabrics commands are legal, then IOCCSZ * 16 - 64.
    pub const fn set_max_in_capsule(&mut self, bytes: u32) {
        self.params.max_in_capsule = bytes;
    }

    /// What the receiver has agreed to.
    pub const fn params(&self) -> &Params {
        &self.params
    }

    /// The most bytes that [`Event::NeedMore`] can ask for: a receive buffer of this size is enough. A header, padding (PDO
    /// has one byte), in-capsule data and its digest.
    pub const fn max_need(&self) -> usize {
        255 + self.params.max_in_capsule as usize + DIGEST_LEN
    }

    /// True between two PDUs: an end of the stream here cuts nothing.
    pub const fn at_boundary(&self) -> bool {
        matches!(self.state, State::Header)
    }

    /// Payload bytes of the current data PDU that have not been received yet.
    pub const fn payload_left(&self) -> usize {
        match self.state {
            State::Payload { left, .. } => left,
            _ => 0,
        }
    }

    /// Looks at the received bytes. Returns how many are used up and what they are; call again with the rest until
    /// [`Event::NeedMore`] or [`Event::Payload`]. After an error the connection must end; every later call repeats the error.
    pub fn next<'a>(&mut self, buf: &'a [u8]) -> Result<(usize, Event<'a>), FatalError> {
        let result = match self.state {
            State::Header => self.header(buf),
            State::Payload { left: 0, crc } | State::End { crc } => Ok(self.end(buf, crc)),
            State::Payload { left, .. } => Ok((0, Event::Payload(left))),
            State::Failed(error) => Err(error),
        };
        if let Err(error) = result {
            self.state = State::Failed(error);
        }
        result
    }

    /// `chunk` is the next piece of the current data PDU's payload, wherever it was received to. At most
    /// [`Framer::payload_left`] bytes count. Without data digests the bytes are only counted, never read.
    pub fn received(&mut self, chunk: &[u8]) {
        if let State::Payload { left, crc } = &mut self.state {
            let chunk = &chunk[..chunk.len().min(*left)];
            *left -= chunk.len();
            if self.params.digests.data {
                *crc = digest::append(*crc, chunk);
            }
        }
    }

    /// `len` bytes of the current data PDU's payload were received; for connections without data digests, where the bytes
    /// need not be seen. With data digests use [`Framer::received`]: here they would not be digested.
    pub const fn received_len(&mut self, len: usize) {
        debug_assert!(!self.params.digests.data);
        if let State::Payload { left, .. } = &mut self.state {
            *left = left.saturating_sub(len);
        }
    }

    fn header<'a>(&mut self, buf: &'a [u8]) -> Result<(usize, Event<'a>), FatalError> {
        let Ok((ch, _)) = CommonHeader::ref_from_prefix(buf) else {
            return Ok((0, Event::NeedMore(COMMON_LEN)));
        };
        let layout = check_common(ch, &self.params)?;
        let is_data = matches!(layout.pdu_type, PduType::H2CData | PduType::C2HData);
        let need = if is_data { layout.data_offset } else { layout.len() };
        if buf.len() < need {
            return Ok((0, Event::NeedMore(need)));
        }
        let header = &buf[..layout.header_len];
        if layout.header_digest {
            let sent = digest::read(&buf[layout.header_len..]).unwrap_or(0);
            if sent != digest::crc32c(header) {
                return Err(FatalError { fes: Fes::HEADER_DIGEST_ERROR, fei: sent });
            }
        }
        let parsed = Header::parse(header).ok_or(FatalError::field(0))?;
        check_fields(&parsed, &layout)?;
        if is_data {
            self.state = State::Payload { left: layout.data_len, crc: 0 };
            return Ok((need, Event::Data(parsed)));
        }
        let data = &buf[layout.data_offset..][..layout.data_len];
        let digest_ok = !layout.data_digest
            || digest::read(&buf[layout.data_offset + layout.data_len..]) == Some(digest::crc32c(data));
        Ok((need, Event::Pdu { header: parsed, data, digest_ok }))
    }

    fn end<'a>(&mut self, buf: &'a [u8], crc: u32) -> (usize, Event<'a>) {
        if !self.params.digests.data {
            self.state = State::Header;
            return (0, Event::DataEnd { digest_ok: true });
        }
        let Some(sent) = digest::read(buf) else {
            self.state = State::End { crc };
            return (0, Event::NeedMore(DIGEST_LEN));
        };
        self.state = State::Header;
        (DIGEST_LEN, Event::DataEnd { digest_ok: sent == crc })
    }
}

// The bound of `max_need`: PDO has one byte, and no data-less PDU is longer.
const _: () = assert!(data_offset(72, Digests { header: true, data: true }, 31) <= 255);
