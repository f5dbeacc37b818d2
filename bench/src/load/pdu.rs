//! The few PDUs that a loaded queue sends and receives, in the form that its inner loop wants them: encoded once into a
//! fixed place, taken apart without a copy. (NVMe/TCP Transport Specification, section 3.6; NVMe Base, section 3.3.3.)

/// PDU types.
pub(super) mod kind {
    pub const IC_REQ: u8 = 0x00;
    pub const IC_RESP: u8 = 0x01;
    pub const C2H_TERM: u8 = 0x03;
    pub const COMMAND: u8 = 0x04;
    pub const RESPONSE: u8 = 0x05;
    pub const H2C_DATA: u8 = 0x06;
    pub const C2H_DATA: u8 = 0x07;
    pub const R2T: u8 = 0x09;
}

/// Flags of the common header.
pub(super) mod flag {
    pub const HEADER_DIGEST: u8 = 1;
    pub const DATA_DIGEST: u8 = 2;
    pub const LAST: u8 = 4;
    pub const SUCCESS: u8 = 8;
}

/// Opcodes of the NVM command set.
pub(super) mod opcode {
    pub const WRITE: u8 = 0x01;
    pub const READ: u8 = 0x02;
}

/// The header of a command capsule: the common header and the submission queue entry.
pub(super) const COMMAND_LEN: usize = 72;
/// The header of a data PDU, an R2T or a response capsule.
pub(super) const SHORT_LEN: usize = 24;
/// Room for the longest header that is received (a termination request brings the offending header along as data), and
/// its digest.
pub(super) const HEADER_ROOM: usize = 128 + 4;

/// Little-endian fields at byte offsets.
pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// See [`u16_at`].
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// See [`u16_at`].
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// The digests that were agreed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Agreed {
    pub header: bool,
    pub data: bool,
}

/// A PDU to send: its header and digest in place, and which bytes of the queue's buffers follow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outgoing {
    head: [u8; COMMAND_LEN + 4],
    head_len: u8,
    /// Offset and length in the queue's buffers.
    pub data: (usize, usize),
    tail: [u8; 4],
    tail_len: u8,
}

impl Outgoing {
    /// A PDU of the header `head`, whose flags and lengths are filled in here, and of data.
    pub fn new(head: &[u8], agreed: Agreed, data: (usize, usize), buffers: &[u8]) -> Outgoing {
        let len = head.len();
        let mut out = Outgoing {
            head: [0; COMMAND_LEN + 4],
            head_len: len as u8 + if agreed.header { 4 } else { 0 },
            data,
            tail: [0; 4],
            tail_len: 0,
        };
        out.head[..len].copy_from_slice(head);
        out.head[2] = len as u8;
        if data.1 > 0 {
            out.head[3] = out.head_len;
            if agreed.data {
                out.head[1] |= flag::DATA_DIGEST;
                out.tail = crc32c::crc32c(&buffers[data.0..data.0 + data.1]).to_le_bytes();
                out.tail_len = 4;
            }
        }
        let total = u32::from(out.head_len) + data.1 as u32 + u32::from(out.tail_len);
        out.head[4..8].copy_from_slice(&total.to_le_bytes());
        if agreed.header {
            out.head[1] |= flag::HEADER_DIGEST;
            let digest = crc32c::crc32c(&out.head[..len]);
            out.head[len..len + 4].copy_from_slice(&digest.to_le_bytes());
        }
        out
    }

    /// Its three parts.
    pub fn parts<'a>(&'a self, buffers: &'a [u8]) -> [&'a [u8]; 3] {
        [
            &self.head[..usize::from(self.head_len)],
            &buffers[self.data.0..self.data.0 + self.data.1],
            &self.tail[..usize::from(self.tail_len)],
        ]
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        usize::from(self.head_len) + self.data.1 + usize::from(self.tail_len)
    }
}

/// The header of a command capsule, with its SGL of `len` bytes: inside the capsule, or by transport.
pub(super) fn command(opcode: u8, cid: u16, nsid: u32, len: u32, inside: bool, dwords: [u32; 6]) -> [u8; COMMAND_LEN] {
    let mut head = [0; COMMAND_LEN];
    head[0] = kind::COMMAND;
    let sqe = &mut head[8..];
    sqe[0] = opcode;
    // PSDT 01b: the data pointer is an SGL.
    sqe[1] = 0x40;
    sqe[2..4].copy_from_slice(&cid.to_le_bytes());
    sqe[4..8].copy_from_slice(&nsid.to_le_bytes());
    sqe[32..36].copy_from_slice(&len.to_le_bytes());
    // Data Block descriptor by offset, or Transport Data Block.
    sqe[39] = if inside { 0x01 } else { 0x5a };
    for (i, dword) in dwords.iter().enumerate() {
        sqe[40 + 4 * i..44 + 4 * i].copy_from_slice(&dword.to_le_bytes());
    }
    head
}

/// The header of a data PDU to the controller.
pub(super) fn h2c_data(cid: u16, tag: u16, offset: u32, len: u32, last: bool) -> [u8; SHORT_LEN] {
    let mut head = [0; SHORT_LEN];
    head[0] = kind::H2C_DATA;
    head[1] = if last { flag::LAST } else { 0 };
    head[8..10].copy_from_slice(&cid.to_le_bytes());
    head[10..12].copy_from_slice(&tag.to_le_bytes());
    head[12..16].copy_from_slice(&offset.to_le_bytes());
    head[16..20].copy_from_slice(&len.to_le_bytes());
    head
}

/// A received header, its length and digest checked.
pub(super) struct Header<'a> {
    pub kind: u8,
    pub flags: u8,
    /// Bytes between the header (with its digest) and the data.
    pub padding: usize,
    /// Bytes of data.
    pub data: usize,
    /// True if a data digest follows.
    pub digest: bool,
    pub bytes: &'a [u8],
}

/// The whole length of a header with its digest, as soon as its first eight bytes are there.
pub(super) fn header_len(common: &[u8], agreed: Agreed) -> Result<usize, String> {
    let len = usize::from(common[2]);
    let wanted = match common[0] {
        kind::IC_RESP => 128,
        kind::C2H_TERM | kind::RESPONSE | kind::C2H_DATA | kind::R2T => SHORT_LEN,
        other => return Err(format!("the target sent a PDU of type {other:02x}h, which no target may send here")),
    };
    if len != wanted {
        return Err(format!(
            "the target sent a PDU of type {:02x}h with a header of {len} bytes, not {wanted}",
            common[0]
        ));
    }
    let digested = agreed.header && !matches!(common[0], kind::IC_RESP | kind::C2H_TERM);
    Ok(len + if digested { 4 } else { 0 })
}

/// Takes a complete header apart. `bytes` is as long as [`header_len`] says.
pub(super) fn parse(bytes: &[u8], agreed: Agreed) -> Result<Header<'_>, String> {
    let (kind, flags, len) = (bytes[0], bytes[1], usize::from(bytes[2]));
    if bytes.len() > len && crc32c::crc32c(&bytes[..len]).to_le_bytes() != bytes[len..len + 4] {
        return Err(format!("the header digest of a PDU of type {kind:02x}h is wrong"));
    }
    let total = u32_at(bytes, 4) as usize;
    let wrong = || format!("a PDU of type {kind:02x}h has an impossible length of {total} bytes");
    let mut header = Header { kind, flags, padding: 0, data: 0, digest: false, bytes };
    match kind {
        kind::C2H_DATA => {
            header.digest = agreed.data && flags & flag::DATA_DIGEST != 0;
            header.data = u32_at(bytes, 16) as usize;
            let start = usize::from(bytes[3]);
            header.padding = start.checked_sub(bytes.len()).ok_or_else(wrong)?;
            if agreed.data != (flags & flag::DATA_DIGEST != 0) {
                return Err("a data PDU's digest flag is not what was agreed on".into());
            }
            if total != start + header.data + if header.digest { 4 } else { 0 } {
                return Err(wrong());
            }
        }
        kind::C2H_TERM => header.data = total.checked_sub(len).ok_or_else(wrong)?,
        _ if total != bytes.len() => return Err(wrong()),
        _ => {}
    }
    Ok(header)
}

/// The sentence for a termination request.
pub(super) fn terminated(header: &[u8]) -> String {
    format!(
        "the target ended the connection: fatal error {:02x}h, information {:08x}h",
        u16_at(header, 8),
        u32_at(header, 10)
    )
}

/// A completion's status field (without the phase bit) in words.
pub(super) fn status(status: u16) -> String {
    format!("SCT {:x}h SC {:02x}h{}", (status >> 8) & 7, status & 0xff, if status & 0x4000 != 0 { " DNR" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_and_digests_are_filled_in() {
        let buffers: Vec<u8> = (0..=255).collect();
        let head = command(opcode::WRITE, 7, 1, 128, true, [1, 0, 0, 0, 0, 0]);
        let plain = Outgoing::new(&head, Agreed::default(), (64, 128), &buffers);
        assert_eq!(plain.len(), 72 + 128);
        assert_eq!(plain.parts(&buffers)[1], &buffers[64..192]);
        let head_part = plain.parts(&buffers)[0];
        assert_eq!((head_part[1], head_part[2], head_part[3], u32_at(head_part, 4)), (0, 72, 72, 200));
        let both = Outgoing::new(&head, Agreed { header: true, data: true }, (64, 128), &buffers);
        let [head_part, data, tail] = both.parts(&buffers);
        assert_eq!((head_part[1], head_part[3], u32_at(head_part, 4)), (3, 76, 76 + 128 + 4));
        assert_eq!(head_part[72..], crc32c::crc32c(&head_part[..72]).to_le_bytes());
        assert_eq!(tail, crc32c::crc32c(data).to_le_bytes());
    }

    #[test]
    fn wrong_headers_are_refused() {
        let mut response = [0u8; 24];
        response[0] = kind::RESPONSE;
        response[2] = 24;
        response[4] = 24;
        assert_eq!(header_len(&response, Agreed::default()), Ok(24));
        assert!(parse(&response, Agreed::default()).is_ok());
        response[4] = 25;
        assert!(parse(&response, Agreed::default()).is_err());
        response[2] = 23;
        assert!(header_len(&response, Agreed::default()).is_err());
        response[0] = kind::COMMAND;
        assert!(header_len(&response, Agreed::default()).is_err());
        let agreed = Agreed { header: true, data: false };
        let mut digested = [0u8; 28];
        digested[..8].copy_from_slice(&[kind::R2T, flag::HEADER_DIGEST, 24, 0, 28, 0, 0, 0]);
        assert!(parse(&digested, agreed).is_err());
        let digest = crc32c::crc32c(&digested[..24]).to_le_bytes();
        digested[24..].copy_from_slice(&digest);
        assert!(parse(&digested, agreed).is_ok());
    }

    #[test]
    fn data_that_does_not_fit_its_pdu_is_refused() {
        let mut data = [0u8; 24];
        data[..8].copy_from_slice(&[kind::C2H_DATA, flag::LAST, 24, 24, 24, 2, 0, 0]);
        data[17] = 2;
        let header = parse(&data, Agreed::default()).ok().unwrap();
        assert_eq!((header.data, header.padding), (512, 0));
        data[17] = 4;
        assert!(parse(&data, Agreed::default()).is_err());
    }
}
