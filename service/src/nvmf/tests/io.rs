//! Data: in the capsule, by R2T, with digests and paddings, at once and in parts; and what devices answer.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nvme_wire::command::{DsmRange, Sgl, Sqe, Status, control, dsm};
use nvme_wire::tcp::Header;
use nvme_wire::zerocopy::IntoBytes;
use raid_core::action::{IoStatus, ReqStatus, Seg};

use super::host::*;
use super::*;
use crate::block::{BlockInfo, BlockStatus, Completion, Completions, Io, IoOp};

/// An enabled controller with one I/O queue.
fn connected(rig: &Rig, d: nvme_wire::tcp::Digests) -> (Host, Host) {
    let (admin, cntlid) = Host::admin(rig.addr, NQN, d, 0);
    let queue = Host::queue(rig.addr, NQN, cntlid, 1, d);
    (admin, queue)
}

#[test]
fn what_was_written_is_read_at_every_size_with_and_without_digests() {
    for block in [512u32, 4096] {
        let rig = Rig::with(1, 32 << 20, block, 16 << 20);
        for d in [digests(false, false), digests(true, false), digests(false, true), digests(true, true)] {
            let (_admin, mut queue) = connected(&rig, d);
            for (n, blocks) in [1u32, 2, 3, 7, 16, 17, 64, 255, 256].into_iter().enumerate() {
                let len = blocks * block;
                if len > 1 << 20 {
                    continue;
                }
                let data = pattern(len as usize, u64::from(blocks) + u64::from(d.to_dgst()));
                let slba = 3 * n as u64;
                assert!(queue.write(slba, blocks, &data).is_success());
                assert!(queue.read(slba, blocks, len).unwrap() == data, "{blocks} blocks of {block}, {d:?}");
                // The last block of the namespace, too.
                let end = (16 << 20) / u64::from(block) - u64::from(blocks);
                assert!(queue.write(end, blocks, &data).is_success());
                assert!(queue.read(end, blocks, len).unwrap() == data);
            }
            let whole = pattern(1 << 20, 77);
            assert!(queue.write(5, (1 << 20) / block, &whole).is_success());
            assert!(queue.read(5, (1 << 20) / block, 1 << 20).unwrap() == whole);
        }
    }
}

#[test]
fn data_to_the_host_is_aligned_as_it_asked() {
    let rig = Rig::new();
    for d in [digests(false, false), digests(true, true)] {
        for hpda in [0, 1, 7, 31] {
            let (_admin, cntlid) = Host::admin(rig.addr, NQN, d, 0);
            // The host checks each PDO against its alignment.
            let mut queue = Host::new(rig.addr, d, hpda);
            assert!(queue.connect(1, 128, cntlid, NQN, HOST_NQN, 0, 0).status().is_success());
            let data = pattern(9 * 512, u64::from(hpda));
            assert!(queue.write(4, 9, &data).is_success());
            assert_eq!(queue.read(4, 9, 9 * 512).unwrap(), data);
        }
    }
}

#[test]
fn a_host_may_cut_its_data_as_it_likes() {
    let rig = Rig::new();
    for d in [digests(false, false), digests(true, true)] {
        let (_admin, mut queue) = connected(&rig, d);
        let data = pattern(256 << 10, 9);
        for step in [512, 4096, 100_000 / 4 * 4, 256 << 10] {
            let mut sqe = Sqe::write(queue.cid(), 1, 64, 512, 0);
            sqe.sgl = Sgl::transport(256 << 10);
            queue.submit(sqe, &[]);
            let pdu = queue.receive().unwrap();
            let Header::R2T(r2t) = pdu.header() else { panic!("{pdu:?}") };
            assert_eq!((r2t.r2to.get(), r2t.r2tl.get()), (0, 256 << 10));
            queue.answer(sqe.cid.get(), r2t.ttag.get(), &data, 0, step);
            let pdu = queue.receive().unwrap();
            assert!(matches!(pdu.header(), Header::CapsuleResp(r) if r.cqe.status().is_success()));
            assert!(queue.read(64, 512, 256 << 10).unwrap() == data, "in parts of {step}");
        }
    }
}

#[test]
fn a_byte_at_a_time_is_enough() {
    let rig = Rig::new();
    let (_admin, mut queue) = connected(&rig, digests(true, true));
    let data = pattern(512, 4);
    let mut sqe = Sqe::write(1, 1, 9, 1, 0);
    sqe.sgl = Sgl::in_capsule(512);
    let capsule = nvme_wire::tcp::CapsuleCmd::new(sqe, 512, queue.digests, 0);
    let bytes = queue.encode(capsule.as_bytes(), &data);
    for part in bytes.chunks(1) {
        queue.send_raw(part);
        if part[0] % 16 == 0 {
            std::thread::sleep(std::time::Duration::from_micros(300));
        }
    }
    assert!(queue.receive().is_some());
    assert_eq!(queue.read(9, 1, 512).unwrap(), data);
}

#[test]
fn the_head_pointer_moves_unless_the_host_does_not_want_it() {
    let rig = Rig::new();
    let (_admin, cntlid) = Host::admin(rig.addr, NQN, digests(false, false), 0);
    let mut queue = Host::new(rig.addr, digests(false, false), 0);
    assert!(queue.connect(1, 4, cntlid, NQN, HOST_NQN, 0, 0).status().is_success());
    for _ in 0..6 {
        queue.read(0, 1, 512).unwrap();
    }
    assert_eq!((&queue.heads[..], queue.short_cuts), (&[1, 2, 3, 0, 1, 2, 3][..], 0));
    let mut queue = Host::new(rig.addr, digests(false, false), 0);
    queue.connect_without_flow_control(2, cntlid, NQN);
    queue.read(0, 1, 512).unwrap();
    assert!(queue.write(0, 1, &[1; 512]).is_success());
    assert_eq!((&queue.heads[..], queue.short_cuts), (&[0xFFFF, 0xFFFF][..], 1));
}

#[test]
fn commands_that_cannot_be_are_refused_and_the_next_one_works() {
    let rig = Rig::new();
    let (_admin, mut queue) = connected(&rig, digests(false, false));
    let blocks = (16u64 << 20) / 512;
    let mut expect = |sqe: Sqe, sgl: Sgl, status: Status| {
        let mut sqe = sqe;
        sqe.sgl = sgl;
        let data = vec![0; if sgl.is_in_capsule() { 512 } else { 0 }];
        assert_eq!(queue.command(sqe, &data, 0).0.status(), status, "{sqe:?}");
        assert!(queue.read(0, 1, 512).is_ok());
    };
    let (length, range) = (Status::DATA_SGL_LENGTH_INVALID.dnr(), Status::LBA_OUT_OF_RANGE.dnr());
    expect(Sqe::read(1, 1, blocks, 1, 0), Sgl::transport(512), range);
    expect(Sqe::read(1, 1, u64::MAX, 2, 0), Sgl::transport(1024), range);
    expect(Sqe::write(1, 1, blocks - 1, 2, 0), Sgl::transport(1024), range);
    expect(Sqe::read(1, 1, 0, 1, 0), Sgl::transport(u32::MAX), length);
    expect(Sqe::write(1, 1, 0, 1, 0), Sgl::transport(u32::MAX), length);
    expect(Sqe::write(1, 1, 0, 2, 0), Sgl::in_capsule(512), length);
    expect(Sqe::write(1, 1, 0, 1, 0), Sgl::in_capsule(4096), length);
    expect(Sqe::read(1, 1, 0, 4096, 0), Sgl::transport(2 << 20), Status::INVALID_FIELD.dnr());
    expect(Sqe::read(1, 1, 0, 1, 0), Sgl::in_capsule(512), Status::SGL_TYPE_INVALID.dnr());
    let mut offset = Sgl::in_capsule(512);
    offset.addr = 4096.into();
    expect(Sqe::write(1, 1, 0, 1, 0), offset, Status::SGL_OFFSET_INVALID.dnr());
    let mut segment = Sgl::transport(512);
    segment.id = 0x30;
    expect(Sqe::read(1, 1, 0, 1, 0), segment, Status::SGL_TYPE_INVALID.dnr());
    expect(Sqe::read(1, 2, 0, 1, 0), Sgl::transport(512), Status::INVALID_NAMESPACE.dnr());
    expect(Sqe::flush(1, 0xFFFF_FFFF), Sgl::default(), Status::INVALID_NAMESPACE.dnr());
    expect(Sqe::new(0x7E, 1, 1), Sgl::default(), Status::INVALID_OPCODE.dnr());
    let mut fused = Sqe::read(1, 1, 0, 1, 0);
    fused.flags |= 1;
    expect(fused, Sgl::transport(512), Status::INVALID_FIELD.dnr());
    let mut prp = Sqe::read(1, 1, 0, 1, 0);
    prp.flags = 0;
    expect(prp, Sgl::transport(512), Status::INVALID_FIELD.dnr());
    let totals = rig.handle.subsystem_stats(NQN).unwrap();
    assert_eq!((totals.errors, totals.writes, totals.write_bytes), (16, 0, 0));
}

#[test]
fn blocks_are_zeroed_deallocated_and_flushed() {
    let rig = Rig::new();
    let (_admin, mut queue) = connected(&rig, digests(false, false));
    let data = pattern(64 << 10, 3);
    let mut expected = data.clone();
    assert!(queue.write(0, 128, &data).is_success());
    assert!(queue.command(Sqe::write_zeroes(1, 1, 3, 5, control::DEAC | control::FUA), &[], 0).0.status().is_success());
    expected[3 * 512..8 * 512].fill(0);
    assert!(queue.read(0, 128, 64 << 10).unwrap() == expected);
    let ranges = [DsmRange::new(16, 8), DsmRange::new(40, 0), DsmRange::new(100, 3)];
    // Linux always sends room for 256 ranges.
    let mut room = ranges.as_bytes().to_vec();
    room.resize(4096, 0xAA);
    let hint = Sqe::dataset_management(2, 1, 3, dsm::IDR);
    assert!(queue.give(hint, &room).is_success());
    assert!(queue.read(0, 128, 64 << 10).unwrap() == expected, "a hint changed data");
    assert!(queue.give(Sqe::dataset_management(3, 1, 3, dsm::AD), &room).is_success());
    expected[16 * 512..24 * 512].fill(0);
    expected[100 * 512..103 * 512].fill(0);
    assert!(queue.read(0, 128, 64 << 10).unwrap() == expected);
    let mut by_r2t = Sqe::dataset_management(4, 1, 1, dsm::AD);
    by_r2t.sgl = Sgl::transport(16);
    assert!(queue.command(by_r2t, DsmRange::new(127, 1).as_bytes(), 0).0.status().is_success());
    expected[127 * 512..].fill(0);
    assert!(queue.read(0, 128, 64 << 10).unwrap() == expected);
    let outside = [DsmRange::new((16 << 20) / 512, 1)];
    assert_eq!(
        queue.give(Sqe::dataset_management(5, 1, 1, dsm::AD), outside.as_bytes()),
        Status::LBA_OUT_OF_RANGE.dnr()
    );
    assert_eq!(
        queue.give(Sqe::dataset_management(6, 1, 2, dsm::AD), outside.as_bytes()),
        Status::DATA_SGL_LENGTH_INVALID.dnr()
    );
    assert!(queue.command(Sqe::flush(7, 1), &[], 0).0.status().is_success());
}

#[test]
fn a_large_range_is_deallocated_in_pieces() {
    let rig = Rig::with(1, 32 << 20, 512, 64 << 20);
    let (_admin, mut queue) = connected(&rig, digests(false, false));
    let mib = (1 << 20) / 512;
    // Around the ends of the range, and where one piece ends and the next one begins.
    let places = [0, 1, 16 * mib + mib / 2, 32 * mib + mib / 2, 39 * mib, 41 * mib];
    let data = pattern(1 << 20, 6);
    for slba in places {
        assert!(queue.write(slba, mib as u32, &data).is_success());
    }
    let ranges = [DsmRange::new(mib, 40 * mib as u32), DsmRange::new(50 * mib, 1)];
    assert!(queue.give(Sqe::dataset_management(1, 1, 2, dsm::AD), ranges.as_bytes()).is_success());
    for block in [mib, 17 * mib - 1, 17 * mib, 33 * mib - 1, 33 * mib, 41 * mib - 1] {
        assert_eq!(queue.read(block, 1, 512).unwrap(), [0; 512], "block {block} was left");
    }
    assert_eq!(queue.read(mib - 1, 1, 512).unwrap(), data[(1 << 20) - 1024..][..512], "in front of the range");
    assert!(queue.read(41 * mib, mib as u32, 1 << 20).unwrap() == data, "behind the range");
}

/// A device that answers what the test says, by the I/O's block, and notes what it was asked.
struct Scripted {
    info: BlockInfo,
    done: Completions,
    asked: Arc<std::sync::Mutex<Vec<(IoOp, u64, u64)>>>,
}

const ANSWERS: [(BlockStatus, Status, Status); 10] = [
    (BlockStatus::Volume(ReqStatus::Ok), Status::SUCCESS, Status::SUCCESS),
    (
        BlockStatus::Volume(ReqStatus::Unrecoverable),
        Status::UNRECOVERED_READ_ERROR.dnr(),
        Status::UNRECOVERED_READ_ERROR.dnr(),
    ),
    (BlockStatus::Volume(ReqStatus::WriteFault), Status::WRITE_FAULT, Status::WRITE_FAULT),
    (BlockStatus::Volume(ReqStatus::Miscompare), Status::COMPARE_FAILURE.dnr(), Status::COMPARE_FAILURE.dnr()),
    (BlockStatus::Volume(ReqStatus::Offline), Status::NAMESPACE_NOT_READY, Status::NAMESPACE_NOT_READY),
    (BlockStatus::Volume(ReqStatus::OutOfRange), Status::LBA_OUT_OF_RANGE.dnr(), Status::LBA_OUT_OF_RANGE.dnr()),
    (BlockStatus::Member(IoStatus::ReadError), Status::UNRECOVERED_READ_ERROR.dnr(), Status::WRITE_FAULT),
    (BlockStatus::Member(IoStatus::DeviceError), Status::INTERNAL_ERROR, Status::INTERNAL_ERROR),
    (BlockStatus::Member(IoStatus::NoSpace), Status::CAPACITY_EXCEEDED, Status::CAPACITY_EXCEEDED),
    (BlockStatus::Member(IoStatus::Timeout), Status::INTERNAL_ERROR, Status::INTERNAL_ERROR),
];

impl BlockDevice for Scripted {
    fn info(&self) -> &BlockInfo {
        &self.info
    }

    fn submit(&mut self, io: Io, segs: &[Seg]) -> Result<(), Io> {
        assert!(segs.is_empty() || segs.iter().map(|s| u64::from(s.len)).sum::<u64>() == io.len);
        self.asked.lock().unwrap().push((io.op, io.offset, io.len));
        let status = ANSWERS.get((io.offset / 4096) as usize).map_or(BlockStatus::Volume(ReqStatus::Ok), |a| a.0);
        self.done.push(Completion { tag: io.tag, status });
        Ok(())
    }

    fn ring(&mut self) {}

    fn poll(&mut self, done: &mut Completions) {
        done.append(&mut self.done);
    }

    fn in_flight(&self) -> usize {
        self.done.len()
    }
}

#[test]
fn what_a_device_answers_is_what_the_host_reads() {
    let rig = Rig::bare(1, 16 << 20);
    let asked = Arc::new(std::sync::Mutex::new(Vec::new()));
    let ram = crate::block::ram::RamDisk::new("ram", 1 << 20).unwrap();
    let (notes, block_info) = (Arc::clone(&asked), ram.info().clone());
    let factory: DeviceFactory = Arc::new(move |_: &mut Context| {
        let device = Scripted { info: block_info.clone(), done: Completions::new(), asked: Arc::clone(&notes) };
        Ok(Box::new(device) as Box<dyn BlockDevice>)
    });
    rig.handle.add_namespace(NQN, 1, info(4096, 1 << 20, 1), factory).unwrap();
    let (_admin, mut queue) = connected(&rig, digests(false, false));
    for (block, (_, read, write)) in ANSWERS.into_iter().enumerate() {
        let got = queue.read(block as u64, 1, 4096).map_or_else(|s| s, |_| Status::SUCCESS);
        assert_eq!(got, read, "a read, answer {block}");
        assert_eq!(queue.write(block as u64, 1, &[0; 4096]), write, "a write, answer {block}");
        let compare = Sqe::compare(queue.cid(), 1, block as u64, 1);
        assert_eq!(queue.give(compare, &[0; 4096]), read, "a compare, answer {block}");
    }
    asked.lock().unwrap().clear();
    let fua = Sqe::write(queue.cid(), 1, 20, 4, control::FUA);
    assert!(queue.give(fua, &[0; 4 * 4096]).is_success());
    assert!(queue.command(Sqe::flush(1, 1), &[], 0).0.status().is_success());
    assert!(queue.command(Sqe::write_zeroes(2, 1, 20, 8, control::FUA), &[], 0).0.status().is_success());
    let expected = [
        (IoOp::Write { fua: true }, 20 * 4096, 4 * 4096),
        (IoOp::Flush, 0, 0),
        (IoOp::Zero { unmap: false, fua: true }, 20 * 4096, 8 * 4096),
    ];
    assert_eq!(*asked.lock().unwrap(), expected);
}

/// RAM with room for `depth` I/Os, of which it completes one for each poll, the newest first.
pub struct Narrow {
    ram: crate::block::ram::RamDevice,
    depth: usize,
    held: Vec<(Io, Vec<Seg>)>,
    done: Completions,
    refused: Arc<AtomicU64>,
}

impl BlockDevice for Narrow {
    fn info(&self) -> &BlockInfo {
        self.ram.info()
    }

    fn submit(&mut self, io: Io, segs: &[Seg]) -> Result<(), Io> {
        if self.held.len() >= self.depth {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Err(io);
        }
        self.held.push((io, segs.to_vec()));
        Ok(())
    }

    fn ring(&mut self) {}

    fn poll(&mut self, done: &mut Completions) {
        if let Some((io, segs)) = self.held.pop() {
            self.ram.submit(io, &segs).unwrap();
            self.ram.poll(&mut self.done);
        }
        done.append(&mut self.done);
    }

    fn next_deadline(&self) -> Option<raid_core::units::Tick> {
        (!self.held.is_empty()).then_some(raid_core::units::Tick(0))
    }

    fn in_flight(&self) -> usize {
        self.held.len()
    }
}

pub fn narrow(memory: &Memory, size: u64, depth: usize, refused: &Arc<AtomicU64>) -> DeviceFactory {
    let disk = crate::block::ram::RamDisk::new("ram", size).unwrap();
    let (memory, refused) = (memory.clone(), Arc::clone(refused));
    Arc::new(move |_: &mut Context| {
        let (ram, held, done) = (disk.open(&memory), Vec::new(), Completions::new());
        Ok(Box::new(Narrow { ram, depth, held, done, refused: Arc::clone(&refused) }) as Box<dyn BlockDevice>)
    })
}

thread_local! {
    static ANSWERED: RefCell<Vec<u16>> = const { RefCell::new(Vec::new()) };
}

#[test]
fn a_device_that_is_full_is_waited_for_and_may_answer_in_any_order() {
    let rig = Rig::bare(1, 32 << 20);
    let refused = Arc::new(AtomicU64::new(0));
    rig.handle.add_namespace(NQN, 1, info(512, 8 << 20, 1), narrow(&rig.memory, 8 << 20, 2, &refused)).unwrap();
    let (_admin, mut queue) = connected(&rig, digests(false, false));
    let data: Vec<Vec<u8>> = (0..64).map(|n| pattern(512, n)).collect();
    for (cid, data) in data.iter().enumerate() {
        let mut sqe = Sqe::write(cid as u16, 1, cid as u64 * 3, 1, 0);
        sqe.sgl = Sgl::in_capsule(512);
        queue.submit(sqe, data);
    }
    for _ in 0..64 {
        let pdu = queue.receive().unwrap();
        let Header::CapsuleResp(resp) = pdu.header() else { panic!("{pdu:?}") };
        assert!(resp.cqe.status().is_success());
        ANSWERED.with_borrow_mut(|a| a.push(resp.cqe.cid.get()));
    }
    ANSWERED.with_borrow_mut(|a| {
        a.sort_unstable();
        assert_eq!(*a, (0..64).collect::<Vec<u16>>(), "each command is answered once");
    });
    assert!(refused.load(Ordering::Relaxed) > 0, "the device was never full, so nothing was tested");
    for (n, data) in data.iter().enumerate() {
        assert_eq!(queue.read(n as u64 * 3, 1, 512).unwrap(), *data);
    }
}
