//! The initiator against the daemon's own target, over real sockets.

use std::collections::BTreeMap;
use std::net::TcpListener;

use nvme_wire::identify::IdentifyControllerNvm;

use super::*;
use crate::nvmf::Hosts;
use crate::nvmf::tests::{NQN, Rig, info, pattern, ram};

const HOST: &str = "nqn.2026-01.org.example:host";
const ALL_DIGESTS: [Digests; 4] = [
    Digests { header: false, data: false },
    Digests { header: true, data: false },
    Digests { header: false, data: true },
    Digests { header: true, data: true },
];

fn plain(rig: &Rig, queues: u16, depth: u16) -> Initiator {
    Initiator::connect(rig.addr, NQN, HOST, queues, depth, Digests::default()).unwrap()
}

#[test]
fn a_controller_is_brought_up_and_shut_down() {
    let rig = Rig::new();
    let mut host = plain(&rig, 2, 16);
    assert_eq!(host.queues(), 2);
    assert_eq!(nvme_wire::text(&host.controller().subnqn), NQN);
    assert_eq!(host.controller().cntlid.get(), host.cntlid());
    let namespace = host.namespace(1).unwrap();
    assert_eq!((namespace.blocks, namespace.block_size), (32768, 512));
    assert_eq!(namespace.ids.nguid, Some([1; 16]));
    assert_eq!(host.namespaces().len(), 1);
    let unknown = host.namespace(2).unwrap_err().to_string();
    assert_eq!(unknown, "there is no namespace 2; the active ones are [1]");
    host.keep_alive().unwrap();
    assert_eq!(host.smart().unwrap().len(), 512);
    let page = host.identify(cns::CONTROLLER_CSI, 0).unwrap();
    assert!(IdentifyControllerNvm::ref_from_bytes(&page).is_ok());
    host.disconnect().unwrap();
}

#[test]
fn every_kind_of_io_with_every_digest_and_alignment() {
    let rig = Rig::new();
    for (n, digests) in ALL_DIGESTS.into_iter().enumerate() {
        for hpda in [0, 7, 31] {
            let options = Options {
                nqn: NQN.to_string(),
                host_nqn: HOST.to_string(),
                host_id: [9; 16],
                queues: 1,
                depth: 32,
                digests,
                hpda,
                kato_ms: 60_000,
            };
            let mut host = Initiator::connect_with(rig.addr, &options).unwrap();
            // In the capsule, by R2T, and over MDTS.
            for (at, len) in [(0, 512), (7, 4096), (100, 8192), (200, 64 << 10), (1000, 5 << 20)] {
                let data = pattern(len, n as u64 * 100 + u64::from(hpda) + at);
                host.write(1, at, &data, at % 2 == 0).unwrap();
                let mut back = vec![0; len];
                host.read(1, at, &mut back).unwrap();
                assert!(back == data, "{digests:?}, HPDA {hpda}, {len} bytes at {at}");
            }
            host.flush(1).unwrap();
            host.write_zeroes(1, 200, 100, false).unwrap();
            let mut back = vec![1; 128 * 512];
            host.read(1, 200, &mut back).unwrap();
            assert!(back[..100 * 512].iter().all(|&b| b == 0) && back[100 * 512..].iter().any(|&b| b != 0));
            host.deallocate(1, &[DsmRange::new(300, 8), DsmRange::new(312, 1)]).unwrap();
            host.read(1, 300, &mut back[..13 * 512]).unwrap();
            assert!(back[..8 * 512].iter().all(|&b| b == 0));
            assert!(back[12 * 512..13 * 512].iter().all(|&b| b == 0));
            host.disconnect().unwrap();
        }
    }
}

#[test]
fn many_commands_in_flight_on_several_queues() {
    let rig = Rig::with(2, 32 << 20, 512, 16 << 20);
    for digests in [Digests::default(), Digests { header: true, data: true }] {
        let mut host = Initiator::connect(rig.addr, NQN, HOST, 3, 64, digests).unwrap();
        let queues = host.queues();
        // 512 bytes to 128 KiB: each region of 256 blocks has its own writer, so that reads know what to expect.
        let regions = 120u64;
        let len = |region: u64| 512 << (region % 9);
        for pass in 0..2u64 {
            for write in [true, false] {
                let mut done = Vec::new();
                let (mut next, mut finished) = (0, 0);
                let mut waiting = BTreeMap::new();
                while finished < regions {
                    for queue in 0..queues {
                        while next < regions && host.room(queue) > 0 {
                            let data = pattern(len(next), pass * 1000 + next);
                            let slba = next * 256;
                            let (op, buffer) = if write {
                                (Op::Write { slba, fua: false }, data)
                            } else {
                                waiting.insert(next, data);
                                (Op::Read { slba, blocks: (len(next) / 512) as u32 }, Vec::new())
                            };
                            host.submit(queue, Request { nsid: 1, tag: next, op, buffer }).unwrap();
                            next += 1;
                        }
                        host.poll(queue, &mut done, Some(Duration::from_millis(1))).unwrap();
                    }
                    for one in done.drain(..) {
                        assert!(one.cqe.status().is_success(), "{}: {}", one.tag, one.cqe.status());
                        if !write {
                            assert!(waiting.remove(&one.tag) == Some(one.buffer), "region {}", one.tag);
                        }
                        finished += 1;
                    }
                }
                assert!(waiting.is_empty());
            }
        }
        host.disconnect().unwrap();
    }
}

#[test]
fn a_full_queue_gives_the_request_back() {
    let rig = Rig::new();
    let mut host = plain(&rig, 1, 2);
    for tag in 0..2 {
        host.submit(0, Request { nsid: 1, tag, op: Op::Flush, buffer: Vec::new() }).unwrap();
    }
    let back = host.submit(0, Request { nsid: 1, tag: 7, op: Op::Write { slba: 0, fua: false }, buffer: vec![3; 512] });
    let back = back.unwrap_err();
    assert_eq!((back.tag, back.buffer), (7, vec![3; 512]));
    let mut done = Vec::new();
    while host.in_flight(0) > 0 {
        host.poll(0, &mut done, Some(TIMEOUT)).unwrap();
    }
    assert_eq!(done.len(), 2);
    // With nothing in flight there is nothing to wait for.
    assert_eq!(host.poll(0, &mut done, Some(TIMEOUT)).unwrap(), 0);
    host.disconnect().unwrap();
}

#[test]
fn failures_are_typed() {
    let rig = Rig::new();
    // A subsystem that does not exist.
    let unknown = "nqn.2026-01.org.example:nothing";
    let error = Initiator::connect(rig.addr, unknown, HOST, 1, 8, Digests::default()).unwrap_err();
    let InitiatorError::Refused { qid: 0, status, .. } = error else { panic!("{error}") };
    assert!(status.is(Status::CONNECT_INVALID_PARAMETERS) && status.dnr);
    // A host that may not.
    rig.handle.set_hosts(NQN, Hosts::Listed([HOST.to_string()].into())).unwrap();
    let other = "nqn.2026-01.org.example:other";
    let error = Initiator::connect(rig.addr, NQN, other, 1, 8, Digests::default()).unwrap_err();
    let InitiatorError::Refused { qid: 0, status, .. } = error else { panic!("{error}") };
    assert!(status.is(Status::CONNECT_INVALID_HOST));
    // Blocks that do not exist, and half a block.
    let mut host = plain(&rig, 1, 8);
    let error = host.read(1, 32768, &mut [0; 512]).unwrap_err();
    assert!(matches!(error, InitiatorError::Command { status, .. } if status.is(Status::LBA_OUT_OF_RANGE)));
    assert!(matches!(host.write(1, 0, &[0; 100], false), Err(InitiatorError::Invalid(_))));
    // A subsystem that goes away under the host.
    rig.handle.remove_subsystem(NQN).unwrap();
    let error = host.flush(1).unwrap_err();
    assert!(
        matches!(error, InitiatorError::Closed | InitiatorError::Io { .. } | InitiatorError::Protocol(_)),
        "{error}"
    );
}

#[test]
fn nobody_listens() {
    // Bound and dropped: a port that was free a moment ago.
    let addr = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = Initiator::connect(addr, NQN, HOST, 1, 8, Digests::default()).unwrap_err();
    assert!(matches!(error, InitiatorError::Io { what: "connect to", .. }), "{error}");
}

#[test]
fn discovery_lists_the_subsystems() {
    let rig = Rig::new();
    let entries = Initiator::discover(rig.addr, HOST).unwrap();
    let found: Vec<_> = entries
        .iter()
        .filter(|e| e.subtype == DiscoveryLogEntry::SUBTYPE_NVM)
        .map(|e| (nqn::from_field(&e.subnqn).unwrap(), nvme_wire::text(&e.traddr), nvme_wire::text(&e.trsvcid)))
        .collect();
    assert_eq!(found, [(NQN, "127.0.0.1", rig.addr.port().to_string().as_str())]);
}

#[test]
fn rescan_sees_a_new_namespace() {
    let rig = Rig::new();
    let mut host = plain(&rig, 1, 8);
    rig.handle.add_namespace(NQN, 5, info(4096, 1 << 20, 5), ram(&rig.memory, 1 << 20)).unwrap();
    host.rescan().unwrap();
    let namespace = host.namespace(5).unwrap();
    assert_eq!((namespace.blocks, namespace.block_size, namespace.ids.uuid), (256, 4096, Some([5; 16])));
    host.write(5, 255, &[9; 4096], true).unwrap();
    host.disconnect().unwrap();
}
