//! Nothing is allocated per I/O once warm: counted by the allocator, on the reactor's own thread, for every level.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::AtomicU16;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use nvme_wire::tcp::Digests;
use raid_core::action::{MemberId, Seg, VolumeId};
use raid_core::engine::Config;
use raid_core::geometry::{Geometry, Level};
use raid_core::view::View;
use raidd::block::backing::Backing;
use raidd::block::ram::RamDisk;
use raidd::block::{BlockDevice, BlockInfo, Completions, Io, IoOp};
use raidd::nvmf::initiator::{Initiator, Op, Request};
use raidd::nvmf::{DeviceFactory, Hosts, NamespaceInfo, Target};
use raidd::reactor::{self, Poller, Polling, Reactor};
use raidd::volume::{Lane, LaneConfig, LaneMessage, LanePoller, Volume};

struct Counting;

thread_local! {
    static COUNT: Cell<Option<u64>> = const { Cell::new(None) };
}

fn count() {
    // During a thread's end its locals may be gone; nothing is counted then.
    let _ = COUNT.try_with(|c| c.set(c.get().map(|n| n + 1)));
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const DEPTH: usize = 32;

fn view(level: Level, width: u16, missing: Option<u16>) -> View {
    let view = View::healthy(Geometry { level, width, chunk: 64 << 10, extent: 16 << 20, shards: 16 }, 1);
    missing.map(MemberId).into_iter().fold(view, View::without)
}

/// Allocations during the second half of `ios` I/Os.
fn measure(reactor: &mut Reactor, rig: Rig, ios: u64) -> u64 {
    let Rig { lane, view, sender, members } = rig;
    sender.try_send(LaneMessage::View { tag: 0, view: view.clone(), members }).ok().expect("an empty box");
    let mut poller = LanePoller::new(lane.clone(), "lane".into());
    poller.poll(&mut reactor.context());
    let size = view.volumes[0].size;
    let mut volume = Volume::new(lane, VolumeId(0), BlockInfo::memory("volume", size)).expect("the view has it");
    let slots: Vec<_> = (0..DEPTH).map(|_| reactor.pool().alloc(256 << 10).expect("room")).collect();
    let mut done = Completions::with_capacity(DEPTH * 2);
    let mut free: Vec<usize> = (0..DEPTH).collect();
    let (mut sent, mut ended) = (0u64, 0u64);
    let mut random = 0x9E37_79B9_7F4A_7C15u64;
    while ended < ios {
        if ended >= ios / 2 {
            COUNT.with(|c| c.set(c.get().or(Some(0))));
        }
        while sent < ios {
            let Some(slot) = free.pop() else { break };
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let len = [512u64, 4096, 12288, 65536, 262_144][(random >> 20) as usize % 5];
            let offset = random % ((size - len) / 512) * 512;
            let op = match random >> 40 & 7 {
                0..=2 => IoOp::Read,
                3 => IoOp::Flush,
                4 => IoOp::Zero { unmap: false, fua: false },
                n => IoOp::Write { fua: n == 5 },
            };
            let (offset, len) = if op == IoOp::Flush { (0, 0) } else { (offset, len) };
            let segs = [Seg { addr: slots[slot].addr(), len: len as u32 }];
            volume.submit(Io { tag: slot as u64, op, offset, len }, &segs).expect("room for 32");
            sent += 1;
        }
        volume.ring();
        volume.poll(&mut done);
        for completion in done.drain(..) {
            assert!(completion.status.is_ok(), "{completion:?}");
            free.push(completion.tag as usize);
            ended += 1;
        }
    }
    drop(volume);
    for slot in slots {
        reactor.pool().free(slot);
    }
    COUNT.with(|c| c.take()).expect("counting began")
}

struct Rig {
    lane: Rc<RefCell<Lane>>,
    view: Arc<View>,
    sender: reactor::Sender<LaneMessage>,
    members: Vec<Option<raidd::block::MemberHandle>>,
}

fn allocations(level: Level, width: u16, missing: Option<u16>) -> u64 {
    let (memory, reactors) = reactor::start(&[0], 48 << 20, Polling::Adaptive).expect("a reactor");
    let members = (0..width)
        .map(|m| Some(Backing::open(&format!("ram:16MiB:{m}"), None).expect("RAM").handle(&memory)))
        .collect::<Vec<_>>();
    let (sender, inbox) = reactor::mailbox(64, reactors[0].waker());
    let (host, _host_mail) = reactor::mailbox(64, reactors[0].waker());
    let (report, result) = mpsc::channel();
    reactors[0]
        .run(Box::new(move |reactor| {
            let scratch = reactor.pool().reserve(8 << 20).expect("room");
            let engine = Config {
                requests: 256,
                stripes: 256,
                ios: 2048,
                scratch,
                scratch_len: 8 << 20,
                handle_every_release: false,
            };
            let lane = Rc::new(RefCell::new(Lane::new(LaneConfig {
                reactor: 0,
                engine,
                memory,
                routes: (0..16).map(|_| AtomicU16::new(0)).collect(),
                peers: vec![None],
                counters: Arc::default(),
                latest: Arc::default(),
                host,
                inbox,
            })));
            let rig = Rig { lane, view: Arc::new(view(level, width, missing)), sender, members };
            report.send(measure(reactor, rig, 20_000)).expect("the test waits");
        }))
        .expect("a running reactor");
    let count = result.recv_timeout(Duration::from_secs(120)).expect("an end within two minutes");
    reactors[0].stop();
    count
}

#[test]
fn nothing_is_allocated_per_io_once_warm() {
    for (level, width) in
        [(Level::Raid0, 3), (Level::Raid1, 2), (Level::Raid10, 4), (Level::Raid5, 5), (Level::Raid6, 6)]
    {
        assert_eq!(allocations(level, width, None), 0, "{level:?}");
        if level != Level::Raid0 {
            assert_eq!(allocations(level, width, Some(1)), 0, "{level:?} degraded");
        }
    }
}

/// Reads and writes of all sizes through the target, 64 at once: `count` of them.
fn load(host: &mut Initiator, count: u64) {
    const SIZES: [u32; 5] = [512, 4096, 8192, 64 << 10, 1 << 20];
    let mut done = Vec::new();
    let (mut sent, mut over) = (0, 0);
    while over < count {
        while sent < count && host.room(0) > 0 {
            let len = SIZES[(sent % 5) as usize];
            let slba = sent * 4096 % (32 << 10);
            let op = match sent / 5 % 2 {
                0 => Op::Write { slba, fua: false },
                _ => Op::Read { slba, blocks: len / 512 },
            };
            let request = Request { nsid: 1, tag: sent, op, buffer: vec![1; len as usize] };
            host.submit(0, request).expect("there is room");
            sent += 1;
        }
        host.poll(0, &mut done, Some(Duration::from_secs(60))).expect("a target that answers");
        assert!(!done.is_empty(), "no answer within a minute");
        over += done.len() as u64;
        assert!(done.drain(..).all(|d| d.cqe.status().is_success()));
    }
}

#[test]
fn the_target_allocates_nothing_per_io_once_warm() {
    for digests in [Digests::default(), Digests { header: true, data: true }] {
        let (memory, reactors) = reactor::start(&[0], 32 << 20, Polling::Adaptive).expect("a reactor");
        let target = Target::new(&reactors).expect("a target");
        let addr = target.add_listener("127.0.0.1:0".parse().expect("an address")).expect("a free port");
        let nqn = "nqn.2026-01.org.example:array0";
        target.add_subsystem(nqn, "SN1", "raidd", Hosts::Any).expect("a subsystem");
        let size = 64 << 20;
        let info = NamespaceInfo {
            uuid: [1; 16],
            nguid: [1; 16],
            block_size: 512,
            size,
            preferred_write: 0,
            optimal_io: 0,
            atomic_write: 0,
            volatile_cache: false,
            deallocate: false,
        };
        let disk = RamDisk::new("ram", size).expect("RAM");
        let factory: DeviceFactory = Arc::new(move |_| Ok(Box::new(disk.open(&memory))));
        target.add_namespace(nqn, 1, info, factory).expect("a namespace");
        let mut host = Initiator::connect(addr, nqn, "nqn.2026-01.org.example:host", 1, 64, digests).expect("a queue");
        load(&mut host, 1_000);
        reactors[0].run(Box::new(|_| COUNT.with(|c| c.set(Some(0))))).expect("a running reactor");
        load(&mut host, 4_000);
        let (report, result) = mpsc::channel();
        let read = Box::new(move |_: &mut Reactor| report.send(COUNT.with(|c| c.take())).expect("the test waits"));
        reactors[0].run(read).expect("a running reactor");
        assert_eq!(result.recv().expect("a count"), Some(0), "{digests:?}");
        drop(host);
        target.stop().expect("an end");
        reactors[0].stop();
    }
}

#[test]
fn the_counter_counts() {
    COUNT.with(|c| c.set(Some(0)));
    drop(std::hint::black_box(vec![0u8; 100]));
    assert_eq!(COUNT.with(|c| c.take()), Some(1));
}
