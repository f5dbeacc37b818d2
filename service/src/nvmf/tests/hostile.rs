//! Input that no good host sends. Owed: a C2HTermReq with the place of the fault and the end, or a status; and that
//! everybody else goes on.

use nvme_wire::command::{Sgl, Sqe, Status};
use nvme_wire::fabrics::{ConnectCmd, ConnectData};
use nvme_wire::tcp::{CapsuleCmd, H2CData, Header, ICReq, PduType, TermReq, flags};
use nvme_wire::zerocopy::{FromBytes, IntoBytes};

use super::host::*;
use super::*;

/// A queue with a write of 64 KiB that has its R2T: CID 5, and the R2T's tag.
fn with_r2t(rig: &Rig, d: nvme_wire::tcp::Digests) -> (Host, Host, u16) {
    let (admin, cntlid) = Host::admin(rig.addr, NQN, d, 0);
    let mut queue = Host::queue(rig.addr, NQN, cntlid, 1, d);
    let mut sqe = Sqe::write(5, 1, 0, 128, 0);
    sqe.sgl = Sgl::transport(64 << 10);
    queue.submit(sqe, &[]);
    let pdu = queue.receive().unwrap();
    let Header::R2T(r2t) = pdu.header() else { panic!("{pdu:?}") };
    let ttag = r2t.ttag.get();
    (admin, queue, ttag)
}

const INVALID: u16 = 1;
const SEQUENCE: u16 = 2;
const DIGEST: u16 = 3;
const RANGE: u16 = 4;
const LIMIT: u16 = 5;
const UNSUPPORTED: u16 = 6;

#[test]
fn data_that_nobody_asked_for_ends_the_connection() {
    let rig = Rig::new();
    let (_bystander_admin, cntlid) = Host::admin(rig.addr, NQN, digests(false, false), 0);
    let mut bystander = Host::queue(rig.addr, NQN, cntlid, 1, digests(false, false));
    let d = digests(false, false);
    type Case = (&'static str, fn(u16) -> H2CData, u16, u32);
    let cases: [Case; 9] = [
        ("an unknown tag", |t| H2CData::new(5, t + 1, 0, 512, false, digests(false, false), 0), INVALID, 10),
        ("a tag beyond all", |_| H2CData::new(5, 0xFFFF, 0, 512, false, digests(false, false), 0), INVALID, 10),
        ("another command", |t| H2CData::new(6, t, 0, 512, false, digests(false, false), 0), INVALID, 8),
        ("data out of order", |t| H2CData::new(5, t, 512, 512, false, digests(false, false), 0), RANGE, 0),
        ("data beyond the end", |t| H2CData::new(5, t, 0, 65 << 10, true, digests(false, false), 0), RANGE, 0),
        ("too much for one PDU", |t| H2CData::new(5, t, 0, 2 << 20, true, digests(false, false), 0), LIMIT, 0),
        ("LAST_PDU too early", |t| H2CData::new(5, t, 0, 512, true, digests(false, false), 0), INVALID, 1),
        (
            "no data",
            |t| {
                let mut h = H2CData::new(5, t, 0, 512, false, digests(false, false), 0);
                h.datal = 0.into();
                h
            },
            INVALID,
            16,
        ),
        (
            "a length that is not DATAL",
            |t| {
                let mut h = H2CData::new(5, t, 0, 512, false, digests(false, false), 0);
                h.ch.plen = 1024.into();
                h
            },
            INVALID,
            4,
        ),
    ];
    for (what, header, fes, fei) in cases {
        let (_admin, mut queue, ttag) = with_r2t(&rig, d);
        queue.send_raw(header(ttag).as_bytes());
        // Data behind it must not be taken for PDUs.
        queue.send_raw(&[0; 512]);
        println!("{what}");
        queue.expect_termination(fes, fei);
        assert!(bystander.read(0, 1, 512).is_ok(), "after {what} the others go on");
    }
    rig.expect_all_buffers_back();
}

#[test]
fn data_for_a_read_or_a_finished_write_ends_the_connection() {
    let rig = Rig::new();
    let (_admin, mut queue, ttag) = with_r2t(&rig, digests(false, false));
    let data = pattern(64 << 10, 1);
    queue.answer(5, ttag, &data, 0, 64 << 10);
    assert!(matches!(queue.receive().unwrap().header(), Header::CapsuleResp(r) if r.cqe.status().is_success()));
    queue.answer(5, ttag, &pattern(64 << 10, 2), 0, 64 << 10);
    queue.expect_termination(INVALID, 10);
    let (_admin, cntlid) = Host::admin(rig.addr, NQN, digests(false, false), 0);
    let mut queue = Host::queue(rig.addr, NQN, cntlid, 1, digests(false, false));
    assert!(queue.read(0, 128, 64 << 10).unwrap() == data, "a command that was finished was written again");
    for ttag in 0..128 {
        let mut sqe = Sqe::read(5, 1, 0, 128, 0);
        sqe.sgl = Sgl::transport(64 << 10);
        queue.submit(sqe, &[]);
        if ttag == 127 {
            break;
        }
        while queue.receive().unwrap().kind() != PduType::CapsuleResp {}
    }
    queue.answer(5, 0, &data, 0, 64 << 10);
    queue.expect_termination(INVALID, 10);
    rig.expect_all_buffers_back();
}

#[test]
fn headers_that_cannot_be_end_the_connection() {
    let rig = Rig::new();
    let capsule = |change: fn(&mut CapsuleCmd)| {
        let mut sqe = Sqe::write(1, 1, 0, 1, 0);
        sqe.sgl = Sgl::in_capsule(512);
        let mut capsule = CapsuleCmd::new(sqe, 512, digests(false, false), 0);
        change(&mut capsule);
        capsule
    };
    let cases = [
        ("an unknown type", capsule(|c| c.ch.pdu_type = 0x20), INVALID, 0),
        ("a type of the controller", capsule(|c| c.ch.pdu_type = 5), INVALID, 0),
        ("a wrong HLEN", capsule(|c| c.ch.hlen = 71), INVALID, 2),
        ("a digest that was not agreed on", capsule(|c| c.ch.flags |= flags::HDGSTF), INVALID, 1),
        ("a data digest that was not agreed on", capsule(|c| c.ch.flags |= flags::DDGSTF), INVALID, 1),
        ("PDO in the header", capsule(|c| c.ch.pdo = 40), INVALID, 3),
        ("PDO between dwords", capsule(|c| c.ch.pdo = 74), INVALID, 3),
        ("PLEN shorter than the header", capsule(|c| c.ch.plen = 20.into()), INVALID, 4),
        ("PLEN of 4 GiB", capsule(|c| c.ch.plen = u32::MAX.into()), INVALID, 4),
        ("more than fits a capsule", capsule(|c| c.ch.plen = (72 + 8196).into()), INVALID, 4),
    ];
    for (what, header, fes, fei) in cases {
        let (_admin, cntlid) = Host::admin(rig.addr, NQN, digests(false, false), 0);
        let mut queue = Host::queue(rig.addr, NQN, cntlid, 1, digests(false, false));
        println!("{what}");
        queue.send_raw(header.as_bytes());
        queue.expect_termination(fes, fei);
    }
}

#[test]
fn the_initialization_comes_once_and_first() {
    let rig = Rig::new();
    let d = digests(true, true);
    let mut host = Host::new(rig.addr, d, 0);
    host.send_raw(ICReq::new(0, d).as_bytes());
    host.expect_termination(SEQUENCE, 0);
    let mut host = Host::raw(rig.addr);
    host.send_raw(CapsuleCmd::new(Sqe::flush(1, 1), 0, digests(false, false), 0).as_bytes());
    host.expect_termination(SEQUENCE, 0);
    let mut version = ICReq::new(0, d);
    version.pfv = 3.into();
    let mut alignment = ICReq::new(0, d);
    alignment.hpda = 32;
    let mut length = ICReq::new(0, d);
    length.ch.plen = 64.into();
    for (request, fes, fei) in [(version, UNSUPPORTED, 8), (alignment, INVALID, 10), (length, INVALID, 4)] {
        let mut host = Host::raw(rig.addr);
        host.send_raw(request.as_bytes());
        host.expect_termination(fes, fei);
    }
    // A request that fails, with digests, and a host that does not wait for the answer.
    for _ in 0..20 {
        let host = Host::raw(rig.addr);
        drop(std::io::Write::write_all(&mut &host.socket, version.as_bytes()));
    }
    assert!(Host::admin(rig.addr, NQN, d, 0).0.identify(1, 0).is_ok());
}

#[test]
fn a_wrong_header_digest_ends_the_connection_and_a_wrong_data_digest_only_the_command() {
    let rig = Rig::new();
    let d = digests(true, true);
    let (_admin, mut queue, ttag) = with_r2t(&rig, d);
    let good = pattern(64 << 10, 1);
    // In a part of the data of an R2T.
    let first = H2CData::new(5, ttag, 0, 4096, false, d, 0);
    let mut bytes = queue.encode(first.as_bytes(), &good[..4096]);
    *bytes.last_mut().unwrap() ^= 1;
    queue.send_raw(&bytes);
    let rest = H2CData::new(5, ttag, 4096, (64 << 10) - 4096, true, d, 0);
    let bytes = queue.encode(rest.as_bytes(), &good[4096..]);
    queue.send_raw(&bytes);
    let pdu = queue.receive().unwrap();
    let Header::CapsuleResp(resp) = pdu.header() else { panic!("{pdu:?}") };
    assert_eq!((resp.cqe.cid.get(), resp.cqe.status()), (5, Status::TRANSIENT_TRANSPORT_ERROR));
    assert_eq!(queue.read(0, 128, 64 << 10).unwrap(), vec![0; 64 << 10], "the device was written");
    // In a capsule.
    let mut sqe = Sqe::write(6, 1, 0, 1, 0);
    sqe.sgl = Sgl::in_capsule(512);
    let capsule = CapsuleCmd::new(sqe, 512, d, 0);
    let mut bytes = queue.encode(capsule.as_bytes(), &good[..512]);
    *bytes.last_mut().unwrap() ^= 1;
    queue.send_raw(&bytes);
    let pdu = queue.receive().unwrap();
    let Header::CapsuleResp(resp) = pdu.header() else { panic!("{pdu:?}") };
    assert_eq!((resp.cqe.cid.get(), resp.cqe.status()), (6, Status::TRANSIENT_TRANSPORT_ERROR));
    assert_eq!(queue.read(0, 1, 512).unwrap(), vec![0; 512]);
    assert!(queue.write(0, 1, &good[..512]).is_success(), "the connection lives");
    // A header.
    let capsule = CapsuleCmd::new(Sqe::flush(7, 1), 0, d, 0);
    let mut bytes = queue.encode(capsule.as_bytes(), &[]);
    bytes[20] ^= 1;
    let sent = u32::from_le_bytes(bytes[72..76].try_into().unwrap());
    queue.send_raw(&bytes);
    queue.expect_termination(DIGEST, sent);
}

#[test]
fn a_termination_of_the_host_is_the_end_whatever_its_reason() {
    let rig = Rig::new();
    for fes in [1, 6, 0xFFFF] {
        let (_admin, mut queue, _) = with_r2t(&rig, digests(true, false));
        let mut term = TermReq::read_from_bytes(&[0; 24]).unwrap();
        term.ch = nvme_wire::tcp::CommonHeader::new(PduType::H2CTermReq, 0, 0, 24);
        term.fes = fes.into();
        queue.send_raw(term.as_bytes());
        assert!(queue.receive().is_none(), "closed");
    }
    rig.expect_all_buffers_back();
}

#[test]
fn more_commands_than_the_queue_has_entries_end_the_connection() {
    let rig = Rig::new();
    let (_admin, cntlid) = Host::admin(rig.addr, NQN, digests(false, false), 0);
    let mut queue = Host::new(rig.addr, digests(false, false), 0);
    assert!(queue.connect(1, 8, cntlid, NQN, HOST_NQN, 0, 0).status().is_success());
    for cid in 0..20 {
        let mut sqe = Sqe::write(cid, 1, 0, 128, 0);
        sqe.sgl = Sgl::transport(64 << 10);
        let capsule = CapsuleCmd::new(sqe, 0, queue.digests, 0);
        // The target may have closed by now.
        let _ = std::io::Write::write_all(&mut &queue.socket, capsule.as_bytes());
    }
    queue.expect_termination(LIMIT, 0);
    rig.expect_all_buffers_back();
}

#[test]
fn noise_harms_nobody() {
    let rig = Rig::new();
    let (_admin, cntlid) = Host::admin(rig.addr, NQN, digests(false, false), 0);
    let mut bystander = Host::queue(rig.addr, NQN, cntlid, 1, digests(false, false));
    let data = pattern(8192, 8);
    assert!(bystander.write(0, 16, &data).is_success());
    let connect = ConnectCmd::new(1, 0, 32, 0);
    let connect = CapsuleCmd::new(connect.into(), 1024, digests(false, false), 0);
    let good = [
        ICReq::new(0, digests(false, false)).as_bytes(),
        connect.as_bytes(),
        ConnectData::new(HOST_ID, 0xFFFF, NQN, HOST_NQN).as_bytes(),
    ]
    .concat();
    for seed in 0..300u64 {
        // A good beginning with some bytes changed, so that noise gets past the first checks.
        let mut bytes = good.clone();
        let noise = pattern(64, seed);
        for pair in noise[..(seed as usize % 5) * 8].chunks(8) {
            let at = usize::from(u16::from_le_bytes([pair[0], pair[1]])) % bytes.len();
            bytes[at] = pair[2];
        }
        bytes.extend_from_slice(&pattern(seed as usize * 7 % 3000, seed));
        let host = Host::raw(rig.addr);
        let _ = std::io::Write::write_all(&mut &host.socket, &bytes);
    }
    assert_eq!(bystander.read(0, 16, 8192).unwrap(), data);
    wait("the noise to go", || rig.handle.connections().len() == 2);
}
