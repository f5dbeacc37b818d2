//! What a Linux host does, step by step, and what the control plane changes meanwhile.

use std::time::Duration;

use nvme_wire::command::{Sgl, Sqe, Status, admin};
use nvme_wire::fabrics::{ConnectCmd, ConnectData, InvalidParameter, property};
use nvme_wire::nqn;
use nvme_wire::tcp::{Header, PduType};
use nvme_wire::zerocopy::IntoBytes;

use super::host::*;
use super::*;

fn le16(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(b[at..at + 2].try_into().unwrap())
}

fn le32(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(b[at..at + 4].try_into().unwrap())
}

fn le64(b: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(b[at..at + 8].try_into().unwrap())
}

#[test]
fn a_host_connects_identifies_and_shuts_down() {
    let rig = Rig::with(2, 16 << 20, 4096, 64 << 20);
    let (mut admin_queue, cntlid) = Host::admin(rig.addr, NQN, digests(false, false), 5000);
    let cap = admin_queue.get(property::CAP);
    assert_eq!(cap & 0xFFFF, 1023, "MQES");
    let id = admin_queue.identify(1, 0).unwrap();
    assert_eq!(le16(&id, 78), cntlid);
    assert_ne!(le16(&id, 320), 0, "KAS");
    assert_eq!(le32(&id, 1792) * 16 - 64, 8192, "IOCCSZ");
    assert_eq!((le32(&id, 1796), le16(&id, 1800)), (1, 0), "IORCSZ, ICDOFF");
    assert_eq!(1u64 << (12 + id[77]), 1 << 20, "MDTS");
    assert_ne!(id[76] & 2, 0, "CMIC: several controllers");
    assert!(le16(&id, 514) > 0 && le32(&id, 516) > 0, "MAXCMD, NN");
    assert_eq!(&id[768..768 + NQN.len()], NQN.as_bytes());
    assert_eq!(nvme_wire::text(&id[4..24]), "SN0001");
    for lid in [5, 2] {
        admin_queue.log(lid, 0, 512).unwrap();
    }
    assert_eq!(admin_queue.log(0x0C, 0, 512), Err(Status::INVALID_LOG_PAGE.dnr()), "ANA is not claimed");

    let mut sqe = Sqe::new(admin::SET_FEATURES, 9, 0);
    (sqe.cdw10, sqe.cdw11) = (7.into(), 0x0001_0001.into());
    let (cqe, _) = admin_queue.command(sqe, &[], 0);
    assert_eq!((cqe.status(), cqe.dw0.get()), (Status::SUCCESS, 0x0001_0001));
    let mut queues: Vec<Host> = (1..=2).map(|q| Host::queue(rig.addr, NQN, cntlid, q, digests(false, false))).collect();
    let mut sqe = Sqe::new(admin::SET_FEATURES, 10, 0);
    (sqe.cdw10, sqe.cdw11) = (0x0B.into(), le32(&id, 92).into());
    assert!(admin_queue.command(sqe, &[], 0).0.status().is_success());
    admin_queue.submit(Sqe::new(admin::ASYNC_EVENT_REQUEST, 11, 0), &[]);

    let limits = admin_queue.identify(6, 0).unwrap();
    assert_eq!((limits[0], limits[1], le32(&limits, 4)), (0, 11, 1 << 16), "VSL, WZSL, DMRSL");
    let list = admin_queue.identify(2, 0).unwrap();
    assert_eq!((le32(&list, 0), le32(&list, 4)), (1, 0));
    let descriptors = admin_queue.identify(3, 1).unwrap();
    assert_eq!((descriptors[0], descriptors[1], &descriptors[4..20]), (2, 16, &[1; 16][..]));
    assert_eq!((descriptors[20], descriptors[21], &descriptors[24..40]), (3, 16, &[1; 16][..]));
    assert_eq!(admin_queue.identify(8, 1).unwrap()[14], 1, "ready");
    let ns = admin_queue.identify(0, 1).unwrap();
    assert_eq!((le64(&ns, 0), ns[130]), ((64 << 20) / 4096, 12));
    assert_eq!(le16(&ns, 46), 16, "NOIOB");
    assert!(admin_queue.identify(5, 1).is_ok());
    assert_eq!(admin_queue.identify(0, 5).unwrap(), vec![0; 4096], "an NSID that is not in use");
    assert_eq!(admin_queue.identify(0, 0xFFFF_FFF0), Err(Status::INVALID_NAMESPACE.dnr()));
    let controllers = admin_queue.identify(0x13, 0).unwrap();
    assert_eq!((le16(&controllers, 0), le16(&controllers, 2)), (1, cntlid));
    assert_eq!(le16(&admin_queue.identify(0x12, 1).unwrap(), 0), 1);
    assert_eq!(le64(&admin_queue.identify(0x1C, 0).unwrap(), 0), 1);
    assert_eq!(admin_queue.identify(0x55, 0), Err(Status::INVALID_FIELD.dnr()));
    assert!(admin_queue.command(Sqe::new(admin::KEEP_ALIVE, 12, 0), &[], 0).0.status().is_success());

    // Both queues reach the same device, wherever they are served.
    let data = pattern(8192, 5);
    assert!(queues[0].write(7, 2, &data).is_success());
    assert_eq!(queues[1].read(7, 2, 8192).unwrap(), data);
    let links = rig.handle.connections();
    assert_eq!(links.len(), 3);
    let served: std::collections::BTreeSet<u16> = links.iter().filter(|l| l.qid > 0).map(|l| l.reactor).collect();
    assert_eq!(served.len(), 2, "I/O queues are spread over the reactors");
    let totals = rig.handle.subsystem_stats(NQN).unwrap();
    assert_eq!((totals.writes, totals.write_bytes, totals.reads, totals.read_bytes), (1, 8192, 1, 8192));

    queues.clear();
    admin_queue.set(property::CC, 0x0046_4061);
    assert_eq!(admin_queue.get(property::CSTS) >> 2 & 3, 2, "shutdown is complete");
    drop(admin_queue);
    wait("the connections to go", || rig.handle.connections().is_empty());
    let kept = rig.handle.subsystem_stats(NQN).unwrap();
    assert_eq!((kept.writes, kept.reads, kept.in_flight), (1, 1, 0), "totals survive the connections");
}

#[test]
fn a_host_finds_what_it_may_connect_to() {
    let rig = Rig::new();
    rig.handle
        .add_subsystem("nqn.2026-01.org.example:other", "SN2", "raidd", Hosts::Listed(Default::default()))
        .unwrap();
    let mut host = Host::new(rig.addr, digests(false, false), 0);
    let cqe = host.connect(0, 32, 0xFFFF, nqn::DISCOVERY, HOST_NQN, 0, 0);
    assert!(cqe.status().is_success());
    host.enable();
    assert_eq!(host.identify(1, 0).unwrap()[111], 2, "CNTRLTYPE");
    let header = host.log(0x70, 0, 1024).unwrap();
    let (generation, records) = (le64(&header, 0), le64(&header, 8));
    assert_eq!(records, 1, "the other subsystem is not for this host");
    let page = host.log(0x70, 0, 2048).unwrap();
    assert_eq!(host.log(0x70, 1024, 1024).unwrap(), page[1024..]);
    let entry = &page[1024..];
    assert_eq!((entry[0], entry[1], entry[2], le16(entry, 6)), (3, 1, 2, 0xFFFF));
    assert_eq!(nvme_wire::text(&entry[32..64]), rig.addr.port().to_string());
    assert_eq!(nvme_wire::text(&entry[256..512]), NQN);
    assert_eq!(nvme_wire::text(&entry[512..768]), "127.0.0.1");
    assert_eq!(le64(&host.log(0x70, 0, 1024).unwrap(), 0), generation, "nothing changed");

    // A change moves the generation, and a host that asked for it is told.
    let mut sqe = Sqe::new(admin::SET_FEATURES, 1, 0);
    (sqe.cdw10, sqe.cdw11) = (0x0B.into(), (1 << 31).into());
    assert!(host.command(sqe, &[], 0).0.status().is_success());
    host.submit(Sqe::new(admin::ASYNC_EVENT_REQUEST, 2, 0), &[]);
    rig.handle.add_host("nqn.2026-01.org.example:other", HOST_NQN).unwrap();
    let pdu = host.receive().unwrap();
    let Header::CapsuleResp(resp) = pdu.header() else { panic!("{pdu:?}") };
    assert_eq!((resp.cqe.cid.get(), resp.cqe.dw0.get()), (2, 0x0070_F002));
    let header = host.log(0x70, 0, 1024).unwrap();
    assert!(le64(&header, 0) > generation);
    assert_eq!(le64(&header, 8), 2);
    assert_eq!(host.identify(2, 0), Err(Status::INVALID_FIELD.dnr()), "no namespaces here");
}

fn refused(rig: &Rig, nqn: &str, host: &str) -> (Status, u32) {
    let cqe = Host::new(rig.addr, digests(false, false), 0).connect(0, 32, 0xFFFF, nqn, host, 0, 0);
    (cqe.status(), cqe.dw0.get())
}

#[test]
fn a_connect_that_cannot_be_is_refused_with_the_reason() {
    let rig = Rig::new();
    let wrong = Status::CONNECT_INVALID_PARAMETERS.dnr();
    let unknown = refused(&rig, "nqn.2026-01.org.example:nobody", HOST_NQN);
    assert_eq!(unknown, (wrong, InvalidParameter::SUBNQN.to_dw0()));
    assert_eq!(refused(&rig, NQN, ""), (wrong, InvalidParameter::HOSTNQN.to_dw0()));
    rig.handle.set_hosts(NQN, Hosts::Listed([HOST_NQN.to_string()].into())).unwrap();
    let other = "nqn.2026-01.org.example:host2";
    assert_eq!(refused(&rig, NQN, other), (Status::CONNECT_INVALID_HOST.dnr(), InvalidParameter::HOSTNQN.to_dw0()));
    assert_eq!(refused(&rig, NQN, HOST_NQN).0, Status::SUCCESS);

    // A name of 256 bytes without an end.
    let mut host = Host::new(rig.addr, digests(false, false), 0);
    let mut data = ConnectData::new(HOST_ID, 0xFFFF, NQN, HOST_NQN);
    data.subnqn = [b'n'; 256];
    let (cqe, _) = host.command(ConnectCmd::new(1, 0, 32, 0).into(), data.as_bytes(), 0);
    assert_eq!((cqe.status(), cqe.dw0.get()), (wrong, InvalidParameter::SUBNQN.to_dw0()));
    // The connection lives, and may try again.
    assert!(host.connect(0, 32, 0xFFFF, NQN, HOST_NQN, 0, 0).status().is_success());
    assert_eq!(host.connect(0, 32, 0xFFFF, NQN, HOST_NQN, 0, 0).status(), Status::COMMAND_SEQUENCE_ERROR.dnr());

    let (_admin, cntlid) = Host::admin(rig.addr, NQN, digests(false, false), 0);
    for (qid, entries, id, expected) in [
        (1, 128, cntlid + 100, InvalidParameter::CNTLID),
        (1, 2000, cntlid, InvalidParameter::SQSIZE),
        (1, 1, cntlid, InvalidParameter::SQSIZE),
        (999, 128, cntlid, InvalidParameter::QID),
        (0, 32, cntlid, InvalidParameter::CNTLID),
    ] {
        let mut host = Host::new(rig.addr, digests(false, false), 0);
        let cqe = host.connect(qid, entries, id, NQN, HOST_NQN, 0, 0);
        assert_eq!((cqe.status(), cqe.dw0.get()), (wrong, expected.to_dw0()), "qid {qid}, {entries} entries");
    }
    // Another host cannot join somebody's controller.
    rig.handle.set_hosts(NQN, Hosts::Any).unwrap();
    let mut thief = Host::new(rig.addr, digests(false, false), 0);
    assert_eq!(thief.connect(1, 128, cntlid, NQN, other, 0, 0).dw0.get(), InvalidParameter::CNTLID.to_dw0());
    let mut early = Host::new(rig.addr, digests(false, false), 0);
    let status = early.identify(1, 0).unwrap_err();
    assert_eq!(status, Status::COMMAND_SEQUENCE_ERROR.dnr(), "nothing before Connect");
}

#[test]
fn a_subsystem_is_reached_through_its_own_listeners_only() {
    let rig = Rig::new();
    let second = rig.handle.add_listener("0.0.0.0:0".parse().unwrap()).unwrap();
    let connect = |addr: SocketAddr, nqn: &str| {
        let mut host = Host::new(addr, digests(false, false), 0);
        let cqe = host.connect(0, 32, 0xFFFF, nqn, HOST_NQN, 0, 0);
        (host, cqe.status(), cqe.dw0.get())
    };
    let through_second = SocketAddr::from(([127, 0, 0, 1], second.port()));
    let unknown = (Status::CONNECT_INVALID_PARAMETERS.dnr(), InvalidParameter::SUBNQN.to_dw0());
    for (own, through, other) in [(rig.addr, rig.addr, through_second), (second, through_second, rig.addr)] {
        rig.handle.set_ports(NQN, Ports::Listed([own].into())).unwrap();
        assert_eq!(connect(through, NQN).1, Status::SUCCESS);
        let (_, status, dw0) = connect(other, NQN);
        assert_eq!((status, dw0), unknown, "as if it were not there");
        // Discovery answers on every listener, and names the right one.
        let (mut host, status, _) = connect(other, nqn::DISCOVERY);
        assert!(status.is_success());
        host.enable();
        let page = host.log(0x70, 0, 2048).unwrap();
        assert_eq!(le64(&page, 8), 1);
        assert_eq!(nvme_wire::text(&page[1024 + 32..1024 + 64]), own.port().to_string());
    }
}

#[test]
fn connect_data_may_come_by_r2t() {
    let rig = Rig::new();
    for digest in [false, true] {
        let mut host = Host::new(rig.addr, digests(digest, digest), 0);
        let mut cmd = ConnectCmd::new(3, 0, 32, 0);
        cmd.sgl = Sgl::transport(1024);
        let data = ConnectData::new(HOST_ID, 0xFFFF, NQN, HOST_NQN);
        let (cqe, _) = host.command(cmd.into(), data.as_bytes(), 0);
        assert!(cqe.status().is_success(), "{}", cqe.status());
        host.enable();
        assert_eq!(le16(&host.identify(1, 0).unwrap(), 78), cqe.dw0.get() as u16);
    }
}

#[test]
fn namespaces_come_and_go_while_a_host_is_connected() {
    let rig = Rig::new();
    let (mut admin_queue, cntlid) = Host::admin(rig.addr, NQN, digests(false, false), 0);
    let mut queue = Host::queue(rig.addr, NQN, cntlid, 1, digests(false, false));
    let mut sqe = Sqe::new(admin::SET_FEATURES, 1, 0);
    (sqe.cdw10, sqe.cdw11) = (0x0B.into(), (1 << 8).into());
    assert!(admin_queue.command(sqe, &[], 0).0.status().is_success());
    admin_queue.submit(Sqe::new(admin::ASYNC_EVENT_REQUEST, 77, 0), &[]);
    rig.handle.add_namespace(NQN, 3, info(4096, 8 << 20, 3), ram(&rig.memory, 8 << 20)).unwrap();
    let pdu = admin_queue.receive().unwrap();
    let Header::CapsuleResp(resp) = pdu.header() else { panic!("{pdu:?}") };
    assert_eq!((resp.cqe.cid.get(), resp.cqe.dw0.get()), (77, 0x0004_0002));
    let changed = admin_queue.log(4, 0, 4096).unwrap();
    assert_eq!((le32(&changed, 0), le32(&changed, 4)), (3, 0));
    assert_eq!(le32(&admin_queue.log(4, 0, 4096).unwrap(), 0), 0, "read once");
    let data = pattern(4096, 3);
    assert!(queue.give(Sqe::write(5, 3, 0, 1, 0), &data).is_success());
    assert_eq!(queue.fetch(Sqe::read(6, 3, 0, 1, 0), 4096).unwrap(), data);
    rig.handle.remove_namespace(NQN, 3).unwrap();
    assert_eq!(queue.fetch(Sqe::read(7, 3, 0, 1, 0), 4096), Err(Status::INVALID_NAMESPACE.dnr()));
    assert!(queue.read(0, 1, 512).is_ok(), "the other namespace goes on");

    let same = rig.handle.add_namespace(NQN, 4, info(512, 8 << 20, 1), ram(&rig.memory, 8 << 20));
    assert!(matches!(same, Err(TargetError::Exists(_))), "a UUID twice");
    let broken: DeviceFactory = std::sync::Arc::new(|_: &mut Context| Err("no such drive".to_string()));
    let error = rig.handle.add_namespace(NQN, 4, info(512, 8 << 20, 9), broken).unwrap_err();
    assert!(error.to_string().contains("no such drive"), "{error}");
    assert!(queue.read(0, 1, 512).is_ok(), "a namespace that could not be added disturbs nobody");
    let error = rig.handle.add_listener(rig.addr).unwrap_err();
    assert!(matches!(error, TargetError::Exists(_)));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let error = rig.handle.add_listener(taken.local_addr().unwrap()).unwrap_err();
    assert!(error.to_string().contains("in use"), "{error}");
    rig.handle.remove_listener(rig.addr).unwrap();
    assert!(std::net::TcpStream::connect(rig.addr).is_err(), "nobody listens any more");
    assert!(queue.read(0, 1, 512).is_ok(), "its connections go on");
    // That namespace 3 went away is told to the next event request.
    admin_queue.submit(Sqe::new(admin::ASYNC_EVENT_REQUEST, 78, 0), &[]);
    let pdu = admin_queue.receive().unwrap();
    let Header::CapsuleResp(resp) = pdu.header() else { panic!("{pdu:?}") };
    assert_eq!((resp.cqe.cid.get(), resp.cqe.dw0.get()), (78, 0x0004_0002));
    assert_eq!(le32(&admin_queue.log(4, 0, 4096).unwrap(), 0), 3);
    // The event request that is parked now does not keep the subsystem from going away.
    admin_queue.submit(Sqe::new(admin::ASYNC_EVENT_REQUEST, 79, 0), &[]);
    rig.handle.remove_subsystem(NQN).unwrap();
    assert!(queue.receive().is_none() && admin_queue.receive().is_none(), "closed");
}

#[test]
fn a_host_that_is_not_allowed_any_more_is_closed() {
    let rig = Rig::new();
    let (mut admin_queue, cntlid) = Host::admin(rig.addr, NQN, digests(false, false), 0);
    let mut queue = Host::queue(rig.addr, NQN, cntlid, 1, digests(false, false));
    rig.handle.add_host(NQN, HOST_NQN).unwrap();
    assert!(queue.read(0, 1, 512).is_ok());
    rig.handle.remove_host(NQN, HOST_NQN).unwrap();
    assert!(queue.receive().is_none() && admin_queue.receive().is_none(), "closed");
    assert_eq!(refused(&rig, NQN, HOST_NQN).0, Status::CONNECT_INVALID_HOST.dnr());
}

#[test]
fn a_host_that_falls_silent_is_closed_and_another_is_not() {
    let rig = Rig::new();
    let (mut silent, cntlid) = Host::admin(rig.addr, NQN, digests(false, false), 1000);
    let mut silent_queue = Host::queue(rig.addr, NQN, cntlid, 1, digests(false, false));
    let (mut talker, other) = Host::admin(rig.addr, NQN, digests(false, false), 1000);
    let mut talker_queue = Host::queue(rig.addr, NQN, other, 1, digests(false, false));
    // A write that waits for its data when the timer expires.
    let mut sqe = Sqe::write(5, 1, 0, 128, 0);
    sqe.sgl = Sgl::transport(64 << 10);
    silent_queue.submit(sqe, &[]);
    assert_eq!(silent_queue.receive().unwrap().kind(), PduType::R2T);
    let begin = Instant::now();
    while rig.handle.connections().len() > 2 || begin.elapsed() < Duration::from_millis(1500) {
        // I/O alone keeps a controller alive: CTRATT.TBKAS.
        talker_queue.read(0, 1, 512).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        assert!(begin.elapsed() < Duration::from_secs(60), "the silent host was never closed");
    }
    assert!(silent.receive().is_none() && silent_queue.receive().is_none(), "closed");
    rig.expect_all_buffers_back();
    assert!(talker.identify(1, 0).is_ok(), "the other controller lives");
}

#[test]
fn a_queue_that_is_taken_is_waited_for() {
    let rig = Rig::new();
    let (_admin, cntlid) = Host::admin(rig.addr, NQN, digests(false, false), 0);
    let old = Host::queue(rig.addr, NQN, cntlid, 1, digests(false, false));
    let addr = rig.addr;
    let again = std::thread::spawn(move || {
        let mut queue = Host::queue(addr, NQN, cntlid, 1, digests(false, false));
        queue.read(0, 1, 512).unwrap();
    });
    std::thread::sleep(Duration::from_millis(100));
    drop(old);
    again.join().expect("the new connection got the queue once the old one was gone");
}

#[test]
fn a_lost_admin_queue_takes_the_others_along_and_the_host_may_come_back() {
    let rig = Rig::with(2, 16 << 20, 512, 16 << 20);
    let mut last = 0;
    for round in 0..20 {
        let (admin_queue, cntlid) = Host::admin(rig.addr, NQN, digests(round % 2 == 0, false), 5000);
        assert_ne!(cntlid, last, "controllers' numbers are not used again at once");
        last = cntlid;
        let mut queues: Vec<Host> =
            (1..=4).map(|q| Host::queue(rig.addr, NQN, cntlid, q, digests(false, round % 3 == 0))).collect();
        for queue in &mut queues {
            assert!(queue.write(round, 1, &pattern(512, round)).is_success());
        }
        drop(admin_queue);
        for queue in &mut queues {
            assert!(queue.receive().is_none(), "closed");
        }
    }
}

#[test]
fn features_and_aborts_are_answered() {
    let rig = Rig::new();
    let (mut host, _) = Host::admin(rig.addr, NQN, digests(false, false), 5000);
    let mut feature = |opcode, cdw10: u32, cdw11: u32| {
        let mut sqe = Sqe::new(opcode, host.cid(), 0);
        (sqe.cdw10, sqe.cdw11, sqe.sgl) = (cdw10.into(), cdw11.into(), Sgl::transport(0));
        let cqe = host.command(sqe, &[], 0).0;
        (cqe.status(), cqe.dw0.get())
    };
    assert_eq!(feature(admin::GET_FEATURES, 0x0F, 0), (Status::SUCCESS, 5000));
    assert_eq!(feature(admin::SET_FEATURES, 0x0F, 7001).0, Status::SUCCESS);
    assert_eq!(feature(admin::GET_FEATURES, 0x0F, 0).1, 7100, "in units of 100 ms");
    assert_eq!(feature(admin::GET_FEATURES, 0x030F, 0).1, 4, "changeable, not saveable");
    assert_eq!(feature(admin::SET_FEATURES, 1 << 31 | 0x0F, 1).0, Status::FEATURE_NOT_SAVEABLE.dnr());
    assert_eq!(feature(admin::SET_FEATURES, 0x06, 1).0, Status::FEATURE_NOT_CHANGEABLE.dnr());
    assert_eq!(feature(admin::SET_FEATURES, 0x07, 0xFFFF).0, Status::INVALID_FIELD.dnr());
    assert_eq!(feature(admin::SET_FEATURES, 0x07, 0x00FF_00FF).1, 0x003F_003F, "64 at most");
    assert_eq!(feature(admin::GET_FEATURES, 0xC0, 0).0, Status::INVALID_FIELD.dnr());
    assert_eq!(feature(admin::ABORT, 55 << 16, 0), (Status::SUCCESS, 1), "nothing to abort");
    assert_eq!(feature(admin::FORMAT_NVM, 0, 0).0, Status::INVALID_OPCODE.dnr());
    for cid in 0..4 {
        host.submit(Sqe::new(admin::ASYNC_EVENT_REQUEST, cid, 0), &[]);
    }
    let (cqe, _) = host.command(Sqe::new(admin::ASYNC_EVENT_REQUEST, 4, 0), &[], 0);
    assert_eq!(cqe.status(), Status::AER_LIMIT_EXCEEDED.dnr());
    let mut sqe = Sqe::new(admin::ABORT, 50, 0);
    sqe.cdw10 = (2 << 16).into();
    host.submit(sqe, &[]);
    let answers: Vec<(u16, Status)> = (0..2)
        .map(|_| match host.receive().unwrap().header() {
            Header::CapsuleResp(r) => (r.cqe.cid.get(), r.cqe.status()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(answers, [(2, Status::ABORT_REQUESTED), (50, Status::SUCCESS)]);
    assert_eq!(host.identify(1, 0).map(|d| d.len()), Ok(4096));
    // Lengths that no command has: a status, and no memory.
    let mut sqe = Sqe::new(admin::IDENTIFY, 60, 0);
    (sqe.sgl, sqe.cdw10) = (Sgl::transport(u32::MAX), 1.into());
    assert_eq!(host.command(sqe, &[], 0).0.status(), Status::DATA_SGL_LENGTH_INVALID.dnr());
    let mut sqe = Sqe::new(admin::SET_FEATURES, 61, 0);
    sqe.sgl = Sgl::transport(u32::MAX);
    assert_eq!(host.command(sqe, &[], 0).0.status(), Status::DATA_SGL_LENGTH_INVALID.dnr());
}
