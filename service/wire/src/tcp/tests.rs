use super::*;
use crate::command::{Sgl, Status};
use proptest::prelude::*;

const H2C: Direction = Direction::ToController;
const C2H: Direction = Direction::ToHost;
const MAX_DATA: u32 = 8192;

fn params(direction: Direction, header: bool, data: bool, pda: u8) -> Params {
    Params { established: true, digests: Digests { header, data }, pda, ..Params::new(direction, 4096, MAX_DATA) }
}

/// The bytes of a PDU as a correct sender makes them.
fn pdu(header: &[u8], payload: &[u8], digests: Digests) -> Vec<u8> {
    let (ch, _) = CommonHeader::ref_from_prefix(header).unwrap();
    let mut out = header.to_vec();
    if ch.flags & flags::HDGSTF != 0 {
        out.extend(digest::wire(header));
    }
    if !payload.is_empty() {
        out.resize(usize::from(ch.pdo), 0);
        out.extend(payload);
        if digests.data {
            out.extend(digest::wire(payload));
        }
    }
    assert_eq!(out.len(), ch.plen.get() as usize, "the constructor's PLEN");
    out
}

#[test]
fn crc32c_vectors() {
    // RFC 3720, appendix B.4.
    assert_eq!(digest::wire(&[0; 32]), [0xaa, 0x36, 0x91, 0x8a]);
    assert_eq!(digest::wire(&[0xff; 32]), [0x43, 0xab, 0xa8, 0x62]);
    let up: Vec<u8> = (0..32).collect();
    assert_eq!(digest::wire(&up), [0x4e, 0x79, 0xdd, 0x46]);
    assert_eq!(digest::crc32c(b"123456789"), 0xe306_9283);
    assert_eq!(digest::append(digest::crc32c(b"1234"), b"56789"), 0xe306_9283);
    assert_eq!(digest::read(&digest::wire(b"123456789")), Some(0xe306_9283));
    assert_eq!(digest::read(&[1, 2, 3]), None);
}

#[test]
fn golden_headers() {
    let both = Digests { header: true, data: true };
    let mut icreq = vec![0; 128];
    icreq[..16].copy_from_slice(&[0, 0, 128, 0, 128, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0]);
    assert_eq!(ICReq::new(0, both).as_bytes(), icreq);
    let mut icresp = vec![0; 128];
    icresp[..16].copy_from_slice(&[1, 0, 128, 0, 128, 0, 0, 0, 0, 0, 2, 1, 0, 0, 2, 0]);
    assert_eq!(ICResp::new(2, Digests { header: true, data: false }, 0x2_0000).as_bytes(), icresp);

    // A 4 KiB write in the capsule: flags HDGSTF and DDGSTF, PDO 76, PLEN 76 + 4096 + 4.
    let mut sqe = Sqe::write(0x1234, 1, 0x11_2233_4455, 8, crate::command::control::FUA);
    sqe.sgl = Sgl::in_capsule(4096);
    let capsule = CapsuleCmd::new(sqe, 4096, both, 0);
    let mut want = vec![0u8; 72];
    want[..8].copy_from_slice(&[4, 3, 72, 76, 0x50, 0x10, 0, 0]);
    want[8..16].copy_from_slice(&[0x01, 0x40, 0x34, 0x12, 1, 0, 0, 0]);
    want[8 + 32..8 + 40].copy_from_slice(&[0, 0x10, 0, 0, 0, 0, 0, 1]);
    want[8 + 40..8 + 52].copy_from_slice(&[0x55, 0x44, 0x33, 0x22, 0x11, 0, 0, 0, 7, 0, 0, 0x40]);
    assert_eq!(capsule.as_bytes(), want);
    assert_eq!(CapsuleCmd::new(sqe, 0, Digests::default(), 0).ch, CommonHeader::new(PduType::CapsuleCmd, 0, 0, 72));

    let cqe = Cqe::new(7, 9, Status::LBA_OUT_OF_RANGE.dnr()).with_dw0(0xaabb_ccdd);
    assert_eq!(
        CapsuleResp::new(cqe, Digests::default()).as_bytes(),
        [5, 0, 24, 0, 24, 0, 0, 0, 0xdd, 0xcc, 0xbb, 0xaa, 0, 0, 0, 0, 9, 0, 0, 0, 7, 0, 0x00, 0x81]
    );
    assert_eq!(
        H2CData::new(2, 3, 0x1000, 0x200, true, Digests::default(), 0).as_bytes(),
        [6, 4, 24, 24, 0x18, 2, 0, 0, 2, 0, 3, 0, 0, 0x10, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0]
    );
    assert_eq!(
        C2HData::new(2, 0x1000, 0x200, flags::LAST_PDU | flags::SUCCESS, both, 7).as_bytes(),
        [7, 0xf, 24, 32, 0x24, 2, 0, 0, 2, 0, 0, 0, 0, 0x10, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0]
    );
    assert_eq!(
        R2T::new(2, 3, 0x1000, 0x200, both).as_bytes(),
        [9, 1, 24, 0, 28, 0, 0, 0, 2, 0, 3, 0, 0, 0x10, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0]
    );
}

#[test]
fn padding_follows_the_receivers_alignment() {
    let header = Digests { header: true, data: false };
    for pda in 0..32u8 {
        let align = (usize::from(pda) + 1) * 4;
        for digests in [Digests::default(), header] {
            for hlen in [24, 72] {
                let offset = data_offset(hlen, digests, pda);
                assert_eq!(offset % align, 0);
                assert!(offset >= hlen + digests.header_len() && offset < hlen + digests.header_len() + align);
            }
        }
    }
    assert_eq!(data_offset(24, header, 7), 32);
    assert_eq!(data_offset(72, header, 31), 128);
}

/// Applies `change` to a correct header and checks what the receiver says.
fn refused(direction: Direction, good: &[u8], change: impl Fn(&mut [u8]), fes: Fes, fei: usize) {
    let p = params(direction, false, false, 0);
    check(good, &p).expect("the unchanged header is good");
    let mut bad = good.to_vec();
    change(&mut bad);
    assert_eq!(check(&bad, &p), Err(FatalError { fes, fei: fei as u32 }), "{bad:02x?}");
    // The framer says the same; payload and all may be missing or there.
    bad.resize(16384, 0);
    assert_eq!(Framer::new(p).next(&bad), Err(FatalError { fes, fei: fei as u32 }), "{:02x?}", &bad[..24]);
}

#[test]
fn each_malformed_header_gets_its_status_and_offset() {
    let none = Digests::default();
    let h2c = H2CData::new(1, 2, 4096, 512, true, none, 0);
    let h2c = h2c.as_bytes();
    let c2h = C2HData::new(1, 4096, 512, flags::LAST_PDU, none, 0);
    let c2h = c2h.as_bytes();
    let cmd = CapsuleCmd::new(Sqe::flush(1, 1), 512, none, 0);
    let cmd = cmd.as_bytes();
    let resp = CapsuleResp::new(Cqe::default(), none);
    let resp = resp.as_bytes();
    let r2t = R2T::new(1, 2, 0, 512, none);
    let r2t = r2t.as_bytes();
    let field = Fes::INVALID_HEADER_FIELD;
    let put = |at: usize, value: u32| move |b: &mut [u8]| b[at..at + 4].copy_from_slice(&value.to_le_bytes());

    // Unknown type, a type of the other direction.
    for code in [0x08, 0x0a, 0x55, 0xff] {
        refused(H2C, h2c, |b| b[0] = code, field, 0);
    }
    refused(H2C, h2c, |b| b[0] = PduType::C2HData as u8, field, 0);
    refused(C2H, c2h, |b| b[0] = PduType::H2CData as u8, field, 0);
    // ICReq and ICResp a second time.
    refused(H2C, cmd, |b| b[0] = PduType::ICReq as u8, Fes::SEQUENCE_ERROR, 0);
    refused(C2H, resp, |b| b[0] = PduType::ICResp as u8, Fes::SEQUENCE_ERROR, 0);
    // Digest flags that were not agreed.
    refused(H2C, h2c, |b| b[1] |= flags::HDGSTF, field, 1);
    refused(H2C, h2c, |b| b[1] |= flags::DDGSTF, field, 1);
    refused(H2C, cmd, |b| b[1] |= flags::DDGSTF, field, 1);
    // SUCCESS without LAST_PDU.
    refused(C2H, c2h, |b| b[1] = flags::SUCCESS, field, 1);
    // HLEN.
    for (direction, good) in [(H2C, h2c), (H2C, cmd), (C2H, c2h), (C2H, resp), (C2H, r2t)] {
        refused(direction, good, |b| b[2] -= 1, field, 2);
        refused(direction, good, |b| b[2] += 1, field, 2);
        refused(direction, good, |b| b[2] = 0, field, 2);
    }
    // PDO inside the header, or not aligned.
    refused(H2C, h2c, |b| b[3] = 20, field, 3);
    refused(H2C, h2c, |b| b[3] = 26, field, 3);
    refused(H2C, cmd, |b| b[3] = 0, field, 3);
    // PLEN: shorter than the header, not what DATAL says, no data, over the limit.
    refused(H2C, h2c, put(4, 0), field, 4);
    refused(H2C, h2c, put(4, 23), field, 4);
    refused(H2C, h2c, put(4, 24), field, 4);
    refused(H2C, h2c, put(4, 24 + 511), field, 4);
    refused(H2C, h2c, put(4, 24 + 513), field, 4);
    refused(C2H, c2h, put(4, 24 + 516), field, 4);
    refused(H2C, cmd, put(4, 71), field, 4);
    refused(H2C, cmd, put(4, 72 + 4097), field, 4);
    refused(H2C, cmd, put(4, u32::MAX), field, 4);
    refused(C2H, resp, put(4, 25), field, 4);
    refused(C2H, r2t, put(4, 28), field, 4);
    refused(H2C, h2c, put(4, 24 + MAX_DATA + 1), Fes::LIMIT_EXCEEDED, 0);
    refused(H2C, h2c, put(4, u32::MAX), Fes::LIMIT_EXCEEDED, 0);
    // DATAL 0, more than PLEN, DATAO out of line, DATAO + DATAL over 4 GiB.
    refused(H2C, h2c, put(16, 0), field, 16);
    refused(H2C, h2c, put(16, u32::MAX), field, 4);
    refused(H2C, h2c, put(12, 4097), field, 12);
    refused(H2C, h2c, put(12, u32::MAX - 3), Fes::DATA_OUT_OF_RANGE, 0);
    // R2TL 0, R2TO + R2TL over 4 GiB.
    refused(C2H, r2t, put(16, 0), field, 16);
    refused(C2H, r2t, put(12, u32::MAX), Fes::DATA_OUT_OF_RANGE, 0);
}

#[test]
fn agreed_digests_and_alignment_are_demanded() {
    let both = Digests { header: true, data: true };
    let p = params(H2C, true, true, 7);
    let good = H2CData::new(1, 2, 0, 512, false, both, 7);
    assert_eq!(check(good.as_bytes(), &p).unwrap().data_offset, 32);
    let mut bad = good;
    bad.ch.flags &= !flags::HDGSTF;
    assert_eq!(check(bad.as_bytes(), &p), Err(FatalError::field(1)));
    let mut bad = good;
    bad.ch.flags &= !flags::DDGSTF;
    assert_eq!(check(bad.as_bytes(), &p), Err(FatalError::field(1)));
    let mut bad = good;
    bad.ch.pdo = 28;
    assert_eq!(check(bad.as_bytes(), &p), Err(FatalError::field(3)));
    // A capsule without data needs no data digest flag and no PDO.
    let capsule = CapsuleCmd::new(Sqe::flush(1, 1), 0, both, 7);
    assert_eq!((capsule.ch.flags, capsule.ch.pdo, capsule.ch.plen.get()), (flags::HDGSTF, 0, 76));
    assert_eq!(check(capsule.as_bytes(), &p).unwrap().len(), 76);
    // A header digest that is wrong: FEI is the one received.
    let mut bytes = pdu(capsule.as_bytes(), &[], both);
    bytes[72..76].copy_from_slice(&[1, 2, 3, 4]);
    assert_eq!(Framer::new(p).next(&bytes), Err(FatalError { fes: Fes::HEADER_DIGEST_ERROR, fei: 0x0403_0201 }));
}

#[test]
fn initialization_comes_first_and_is_checked() {
    let start = Params::new(H2C, 8192, MAX_DATA);
    let icreq = ICReq::new(0, Digests::default());
    assert!(check(icreq.as_bytes(), &start).is_ok());
    assert_eq!(
        check(CapsuleCmd::new(Sqe::flush(1, 1), 0, Digests::default(), 0).as_bytes(), &start),
        Err(FatalError::SEQUENCE)
    );
    let mut bad = icreq;
    bad.pfv.set(1);
    assert_eq!(check(bad.as_bytes(), &start), Err(FatalError { fes: Fes::UNSUPPORTED_PARAMETER, fei: 8 }));
    let mut bad = icreq;
    bad.hpda = 32;
    assert_eq!(check(bad.as_bytes(), &start), Err(FatalError::field(10)));
    let mut bad = icreq;
    bad.ch.plen.set(129);
    assert_eq!(check(bad.as_bytes(), &start), Err(FatalError::field(4)));
    let host = Params::new(C2H, 0, u32::MAX);
    for (max, ok) in [(4096, true), (4100, true), (4092, false), (4098, false), (0, false)] {
        let resp = ICResp::new(0, Digests::default(), max);
        assert_eq!(check(resp.as_bytes(), &host).is_ok(), ok, "MAXH2CDATA {max}");
    }
    let mut bad = ICResp::new(0, Digests::default(), 4096);
    bad.cpda = 32;
    assert_eq!(check(bad.as_bytes(), &host), Err(FatalError::field(10)));
}

#[test]
fn term_req_carries_at_most_128_bytes_of_the_header() {
    let error = FatalError::field(4);
    let (bytes, len) = error.term_req(Direction::ToHost, &[0xab; 300]);
    assert_eq!(len, 152);
    assert_eq!(bytes[..14], [3, 0, 24, 0, 152, 0, 0, 0, 1, 0, 4, 0, 0, 0]);
    assert!(bytes[24..].iter().all(|&b| b == 0xab));
    let (bytes, len) = error.term_req(Direction::ToController, &[1; 24]);
    assert_eq!((bytes[0], len), (2, 48));
    // And both ends take it at any time, with unknown FES too; one that is too long is refused.
    for established in [false, true] {
        let p = Params { established, ..params(H2C, true, true, 0) };
        let mut bytes = bytes;
        bytes[8..10].copy_from_slice(&[0xff, 0xff]);
        let (used, event) = Framer::new(p)
            .next(&bytes[..len])
            .map(|(u, e)| (u, matches!(e, Event::Pdu { header: Header::TermReq(_), data, .. } if data == [1; 24])))
            .unwrap();
        assert_eq!((used, event), (48, true));
        bytes[4] = 153;
        assert_eq!(Framer::new(p).next(&bytes), Err(FatalError::field(4)));
    }
}

#[test]
fn a_wrong_data_digest_is_not_fatal() {
    let digests = Digests { header: false, data: true };
    let p = params(H2C, false, true, 0);
    let mut bytes = pdu(CapsuleCmd::new(Sqe::flush(1, 1), 512, digests, 0).as_bytes(), &[7; 512], digests);
    bytes[100] ^= 1;
    bytes.extend(pdu(H2CData::new(1, 2, 0, 512, true, digests, 0).as_bytes(), &[7; 512], digests));
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    let seen = drive(&mut Framer::new(p), &bytes, usize::MAX).unwrap();
    assert_eq!(seen.iter().map(|s| s.digest_ok).collect::<Vec<_>>(), [false, false]);
}

/// A PDU as the framer yielded it.
#[derive(Debug, PartialEq)]
struct Seen {
    header: Vec<u8>,
    data: Vec<u8>,
    digest_ok: bool,
}

/// Feeds bytes in chunks of at most `chunk`, as a receiver with a bounded buffer does.
fn drive(framer: &mut Framer, mut stream: &[u8], chunk: usize) -> Result<Vec<Seen>, FatalError> {
    let mut seen = Vec::new();
    let mut buf: Vec<u8> = Vec::new();
    let mut current: Option<Seen> = None;
    loop {
        let (used, event) = framer.next(&buf)?;
        assert!(used <= buf.len());
        match event {
            Event::NeedMore(need) => {
                assert!(need > buf.len() && need <= framer.max_need(), "need {need}, have {}", buf.len());
                if stream.is_empty() {
                    return Ok(seen);
                }
                let take = chunk.clamp(1, stream.len());
                buf.extend(&stream[..take]);
                stream = &stream[take..];
                continue;
            }
            Event::Pdu { header, data, digest_ok } => {
                seen.push(Seen { header: header.bytes().to_vec(), data: data.to_vec(), digest_ok });
            }
            Event::Data(header) => {
                current = Some(Seen { header: header.bytes().to_vec(), data: Vec::new(), digest_ok: false });
            }
            Event::Payload(len) => {
                assert!(len > 0 && len == framer.payload_left() && len <= framer.params().max_data as usize);
                // First what is in the buffer, then straight from the stream.
                let from_buf = len.min(buf.len());
                let direct = (len - from_buf).min(chunk).min(stream.len());
                let payload = &mut current.as_mut().expect("a header came before").data;
                framer.received(&buf[..from_buf]);
                payload.extend(buf.drain(..from_buf));
                framer.received(&stream[..direct]);
                payload.extend(&stream[..direct]);
                stream = &stream[direct..];
                if from_buf + direct == 0 {
                    return Ok(seen);
                }
                continue;
            }
            Event::DataEnd { digest_ok } => {
                let mut done = current.take().expect("a header came before");
                done.digest_ok = digest_ok;
                seen.push(done);
            }
        }
        buf.drain(..used);
    }
}

#[derive(Debug, Clone)]
enum Kind {
    Capsule(usize),
    Data { datao: u32, len: usize, last: bool },
}

fn kinds() -> impl Strategy<Value = Vec<Kind>> {
    let kind = prop_oneof![
        (0usize..=4096).prop_map(Kind::Capsule),
        Just(Kind::Capsule(0)),
        (0u32..1000, 1usize..=MAX_DATA as usize, any::<bool>()).prop_map(|(o, len, last)| Kind::Data {
            datao: o * 4,
            len,
            last
        }),
    ];
    proptest::collection::vec(kind, 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// However the stream is cut, the same PDUs come out, with the bytes that went in.
    #[test]
    fn any_split_gives_the_same_pdus(
        kinds in kinds(), header in any::<bool>(), data in any::<bool>(), pda in 0u8..32, chunk in 1usize..9000,
    ) {
        let digests = Digests { header, data };
        let mut stream = Vec::new();
        let mut want = Vec::new();
        for (n, kind) in kinds.iter().enumerate() {
            let byte = n as u8;
            let (head, payload) = match *kind {
                Kind::Capsule(len) => {
                    (CapsuleCmd::new(Sqe::flush(n as u16, 1), len as u32, digests, pda).as_bytes().to_vec(), vec![byte; len])
                }
                Kind::Data { datao, len, last } => (
                    H2CData::new(n as u16, 9, datao, len as u32, last, digests, pda).as_bytes().to_vec(),
                    vec![byte; len],
                ),
            };
            stream.extend(pdu(&head, &payload, digests));
            want.push(Seen { header: head, data: payload, digest_ok: true });
        }
        let mut framer = Framer::new(params(H2C, header, data, pda));
        prop_assert_eq!(drive(&mut framer, &stream, chunk).unwrap(), want);
        prop_assert!(framer.at_boundary());
    }

    /// Garbage never panics, never asks for more than the bound, and an error stays.
    #[test]
    fn garbage_is_bounded(
        bytes in proptest::collection::vec(any::<u8>(), 0..2000), chunk in 1usize..300, established in any::<bool>(),
        to_host in any::<bool>(), header in any::<bool>(), data in any::<bool>(), pda in 0u8..32,
    ) {
        let direction = if to_host { C2H } else { H2C };
        let mut framer = Framer::new(Params { established, ..params(direction, header, data, pda) });
        if let Err(error) = drive(&mut framer, &bytes, chunk) {
            prop_assert_eq!(framer.next(&bytes), Err(error));
        }
    }

    /// A correct stream with some bytes changed: never a panic, and never more payload than was sent.
    #[test]
    fn damage_is_bounded(
        kinds in kinds(), header in any::<bool>(), data in any::<bool>(), pda in 0u8..32, chunk in 1usize..9000,
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let digests = Digests { header, data };
        let mut stream = Vec::new();
        for kind in &kinds {
            let (head, len) = match *kind {
                Kind::Capsule(len) => (CapsuleCmd::new(Sqe::flush(1, 1), len as u32, digests, pda).as_bytes().to_vec(), len),
                Kind::Data { datao, len, last } => {
                    (H2CData::new(1, 9, datao, len as u32, last, digests, pda).as_bytes().to_vec(), len)
                }
            };
            stream.extend(pdu(&head, &vec![0x5a; len], digests));
        }
        for (at, value) in damage {
            let at = at.index(stream.len());
            stream[at] = value;
        }
        if let Ok(seen) = drive(&mut Framer::new(params(H2C, header, data, pda)), &stream, chunk) {
            prop_assert!(seen.iter().map(|s| s.data.len()).sum::<usize>() <= stream.len());
        }
    }

    /// With header digests no single changed byte of a header passes, unless it changes nothing that is checked first.
    #[test]
    fn header_digests_catch_a_changed_byte(at in 0usize..76, bit in 0u8..8) {
        let digests = Digests { header: true, data: false };
        let mut bytes = pdu(CapsuleCmd::new(Sqe::read(1, 1, 7, 8, 0), 0, digests, 0).as_bytes(), &[], digests);
        bytes[at] ^= 1 << bit;
        bytes.resize(9000, 0);
        prop_assert!(Framer::new(params(H2C, true, false, 0)).next(&bytes).is_err());
    }
}
