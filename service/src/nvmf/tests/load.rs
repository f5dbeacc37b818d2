//! Many at once: pools that are too small, hosts that do not read, depths that fill everything.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nvme_wire::command::{Sgl, Sqe};
use nvme_wire::tcp::Header;
use raid_core::action::Seg;

use super::host::*;
use super::io::narrow;
use super::*;
use crate::block::{BlockInfo, Completions, Io};

const MIB: usize = 1 << 20;

/// Keeps `depth` writes of `len` bytes in flight until `count` are done, each to a place of its own, then reads all.
fn write_and_verify(addr: SocketAddr, cntlid: u16, qid: u16, base: u64, (depth, count, len): (usize, usize, usize)) {
    let mut queue = Host::queue(addr, NQN, cntlid, qid, digests(qid.is_multiple_of(2), qid.is_multiple_of(3)));
    let blocks = (len / 512) as u32;
    let place = |n: usize| base / 512 + n as u64 * u64::from(blocks);
    let content = |n: usize| pattern(len, u64::from(qid) << 32 | n as u64);
    let mut waiting: BTreeMap<u16, Vec<u8>> = BTreeMap::new();
    let (mut sent, mut done) = (0, 0);
    while done < count {
        while sent < count && waiting.len() < depth {
            let mut sqe = Sqe::write(sent as u16, 1, place(sent), blocks, 0);
            if len <= 8192 {
                sqe.sgl = Sgl::in_capsule(len as u32);
                queue.submit(sqe, &content(sent));
            } else {
                sqe.sgl = Sgl::transport(len as u32);
                queue.submit(sqe, &[]);
            }
            waiting.insert(sent as u16, content(sent));
            sent += 1;
        }
        let pdu = queue.receive().expect("an answer");
        match pdu.header() {
            Header::R2T(r2t) => {
                let cid = r2t.cccid.get();
                let data = waiting[&cid].clone();
                queue.answer(cid, r2t.ttag.get(), &data, 0, 256 << 10);
            }
            Header::CapsuleResp(resp) => {
                assert!(resp.cqe.status().is_success(), "{}", resp.cqe.status());
                assert!(waiting.remove(&resp.cqe.cid.get()).is_some(), "an answer twice");
                done += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    for n in 0..count {
        assert!(queue.read(place(n), blocks, len as u32).unwrap() == content(n), "queue {qid}, write {n} of {len}");
    }
}

fn run(reactors: usize, region: u64, device_depth: usize, jobs: &[(usize, usize, usize)]) {
    let rig = Rig::bare(reactors, region);
    let share = jobs.iter().map(|(_, count, len)| count * len).max().unwrap();
    let size = share * jobs.len();
    let refused = Arc::new(AtomicU64::new(0));
    let factory = if device_depth == 0 {
        ram(&rig.memory, size as u64)
    } else {
        narrow(&rig.memory, size as u64, device_depth, &refused)
    };
    rig.handle.add_namespace(NQN, 1, info(512, size as u64, 1), factory).unwrap();
    let (mut admin, cntlid) = Host::admin(rig.addr, NQN, digests(false, false), 0);
    let addr = rig.addr;
    let threads: Vec<_> = jobs
        .iter()
        .enumerate()
        .map(|(n, &job)| {
            let base = (n * share) as u64;
            std::thread::spawn(move || write_and_verify(addr, cntlid, n as u16 + 1, base, job))
        })
        .collect();
    while threads.iter().any(|t| !t.is_finished()) {
        // The admin queue is served all the while.
        admin.identify(1, 0).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    threads.into_iter().for_each(|t| t.join().expect("a queue"));
    rig.expect_all_buffers_back();
    if region <= 8 << 20 {
        let waits: u64 = rig.handle.connections().iter().map(|l| l.counters.totals().buffer_waits).sum();
        let gone = rig.handle.subsystem_stats(NQN).unwrap().buffer_waits;
        assert!(waits + gone > 0, "nobody waited for a buffer, so nothing was tested");
    }
}

#[test]
fn large_writes_at_full_depth_do_not_block_each_other() {
    run(1, 8 << 20, 0, &[(127, 127, MIB), (127, 127, MIB)]);
}

#[test]
fn a_pool_that_is_too_small_serves_large_and_small_writes_over_a_slow_device() {
    let small = (100, 400, 4096);
    let medium = (100, 400, 8192);
    let large = (20, 40, 256 << 10);
    run(1, 4 << 20, 3, &[small, medium, large, small, large, medium]);
}

#[test]
fn several_reactors_serve_the_queues_of_one_controller() {
    run(2, 32 << 20, 0, &[(32, 500, 4096), (16, 100, 64 << 10), (32, 500, 512), (8, 64, MIB), (64, 500, 8192)]);
}

#[test]
fn a_host_that_does_not_read_costs_bounded_memory_and_harms_nobody() {
    let rig = Rig::with(1, 16 << 20, 512, 64 << 20);
    let (_admin, cntlid) = Host::admin(rig.addr, NQN, digests(false, false), 0);
    let mut deaf = Host::new(rig.addr, digests(false, false), 0);
    assert!(deaf.connect(1, 1024, cntlid, NQN, HOST_NQN, 0, 0).status().is_success());
    for n in 0..1000u16 {
        let mut sqe = Sqe::read(n, 1, u64::from(n) * 64, 256, 0);
        sqe.sgl = Sgl::transport(128 << 10);
        deaf.submit(sqe, &[]);
    }
    // Reads of the deaf host may hold their share and no more; writes and other hosts' admin commands go on.
    let mut other = Host::queue(rig.addr, NQN, cntlid, 2, digests(false, false));
    for n in 0..200 {
        let data = pattern(64 << 10, n);
        assert!(other.write(n * 128, 128, &data).is_success());
        assert!(other.write(n * 128, 8, &data[..4096]).is_success());
    }
    assert!(rig.pool_used() <= 8 << 20, "{} bytes are held", rig.pool_used());
    for n in 0..200 {
        assert_eq!(other.read(n * 128, 8, 4096).unwrap(), pattern(4096, n), "reads go on");
    }
    drop(deaf);
    rig.expect_all_buffers_back();
}

#[test]
fn a_host_that_vanishes_with_everything_in_flight_leaves_nothing_behind() {
    let rig = Rig::bare(2, 8 << 20);
    let refused = Arc::new(AtomicU64::new(0));
    rig.handle.add_namespace(NQN, 1, info(512, 32 << 20, 1), narrow(&rig.memory, 32 << 20, 4, &refused)).unwrap();
    for round in 0..10u64 {
        let (admin, cntlid) = Host::admin(rig.addr, NQN, digests(false, false), 0);
        let mut queues: Vec<Host> =
            (1..=3).map(|q| Host::queue(rig.addr, NQN, cntlid, q, digests(false, false))).collect();
        for (n, queue) in queues.iter_mut().enumerate() {
            for cid in 0..60u16 {
                let (mut sqe, data) = match (usize::from(cid) + n) % 3 {
                    0 => (Sqe::write(cid, 1, 0, 8, 0), pattern(4096, round)),
                    1 => (Sqe::read(cid, 1, 0, 512, 0), vec![]),
                    _ => (Sqe::write(cid, 1, 0, 2048, 0), vec![]),
                };
                sqe.sgl = match (usize::from(cid) + n) % 3 {
                    0 => Sgl::in_capsule(4096),
                    1 => Sgl::transport(256 << 10),
                    _ => Sgl::transport(1 << 20),
                };
                queue.submit(sqe, &data);
            }
        }
        if round % 2 == 0 {
            drop(admin);
        }
        drop(queues);
        rig.expect_all_buffers_back();
    }
}

#[test]
fn a_host_that_does_not_send_its_data_loses_its_buffers_to_one_that_does() {
    let rig = Rig::with(1, 8 << 20, 512, 64 << 20);
    let (_admin, cntlid) = Host::admin(rig.addr, NQN, digests(false, false), 0);
    let mut dumb = Host::queue(rig.addr, NQN, cntlid, 1, digests(false, false));
    for cid in 0..100u16 {
        let mut sqe = Sqe::write(cid, 1, 0, 2048, 0);
        sqe.sgl = Sgl::transport(1 << 20);
        dumb.submit(sqe, &[]);
    }
    let mut other = Host::queue(rig.addr, NQN, cntlid, 2, digests(false, false));
    let data = pattern(MIB, 1);
    assert!(other.write(0, 8, &data[..4096]).is_success(), "small writes never wait for it");
    assert!(other.write(2048, 2048, &data).is_success());
    assert!(other.read(2048, 2048, 1 << 20).unwrap() == data);
    assert!(rig.handle.connections().iter().all(|l| l.qid != 1), "the one that holds the buffers is closed");
}

/// RAM that answers nothing until the gate is open.
struct Gated {
    ram: crate::block::ram::RamDevice,
    open: Arc<AtomicBool>,
    done: Completions,
}

impl BlockDevice for Gated {
    fn info(&self) -> &BlockInfo {
        self.ram.info()
    }

    fn submit(&mut self, io: Io, segs: &[Seg]) -> Result<(), Io> {
        self.ram.submit(io, segs)?;
        self.ram.poll(&mut self.done);
        Ok(())
    }

    fn ring(&mut self) {}

    fn poll(&mut self, done: &mut Completions) {
        if self.open.load(Ordering::Relaxed) {
            done.append(&mut self.done);
        }
    }

    fn next_deadline(&self) -> Option<raid_core::units::Tick> {
        (!self.done.is_empty()).then_some(raid_core::units::Tick(0))
    }

    fn in_flight(&self) -> usize {
        self.done.len()
    }
}

#[test]
fn a_host_that_comes_back_waits_until_its_old_writes_have_left_the_device() {
    let rig = Rig::bare(2, 8 << 20);
    let open = Arc::new(AtomicBool::new(false));
    let disk = crate::block::ram::RamDisk::new("ram", 8 << 20).unwrap();
    let (memory, gate) = (rig.memory.clone(), Arc::clone(&open));
    let factory: DeviceFactory = Arc::new(move |_: &mut Context| {
        let device = Gated { ram: disk.open(&memory), open: Arc::clone(&gate), done: Completions::new() };
        Ok(Box::new(device) as Box<dyn BlockDevice>)
    });
    rig.handle.add_namespace(NQN, 1, info(512, 8 << 20, 1), factory).unwrap();
    let (admin, cntlid) = Host::admin(rig.addr, NQN, digests(false, false), 0);
    let mut queue = Host::queue(rig.addr, NQN, cntlid, 1, digests(false, false));
    let mut sqe = Sqe::write(1, 1, 0, 1, 0);
    sqe.sgl = Sgl::in_capsule(512);
    queue.submit(sqe, &[1; 512]);
    wait("the write to be at the device", || rig.handle.connections().iter().any(|l| l.counters.totals().writes > 0));
    drop((admin, queue));
    wait("the old connections to go", || rig.handle.connections().is_empty());
    let addr = rig.addr;
    let again = std::thread::spawn(move || {
        let (admin, cntlid) = Host::admin(addr, NQN, digests(false, false), 0);
        (admin, Host::queue(addr, NQN, cntlid, 1, digests(false, false)))
    });
    wait("the admin queue", || !rig.handle.connections().is_empty());
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(rig.handle.connections().len(), 1, "an I/O queue was connected while an old write was on its way");
    open.store(true, Ordering::Relaxed);
    let (_admin, mut queue) = again.join().expect("the host came back");
    assert_eq!(queue.read(0, 1, 512).unwrap(), [1; 512]);
}
