//! Devices on a real reactor, over real files.

use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use raid_core::action::{BufAddr, IoStatus, Seg};

use super::backing::Backing;
use super::fault::{Effect, Fault, Faults, Kinds};
use super::uring::deny_io_uring;
use super::*;
use crate::dma::{Memory, Slot};
use crate::reactor::{self, Context, Polling, ReactorHandle};

const SIZE: u64 = 16 << 20;

/// A folder of its own on the disk that holds the target directory (tmpfs has no O_DIRECT on older kernels).
fn dir(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../target/device-tests")
        .join(format!("{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// Runs `work` on a reactor with a queue to the device; panics there fail the test here.
fn on_reactor<R: Send + 'static>(
    address: &str,
    create: Option<u64>,
    faults: Option<Arc<Faults>>,
    work: impl FnOnce(&mut Rig) -> R + Send + 'static,
) -> R {
    on_reactor_that(|| (), address, create, faults, work)
}

/// As above, on a reactor's thread that something is done to first.
fn on_reactor_that<R: Send + 'static>(
    prepare: fn(),
    address: &str,
    create: Option<u64>,
    faults: Option<Arc<Faults>>,
    work: impl FnOnce(&mut Rig) -> R + Send + 'static,
) -> R {
    let (memory, reactors) = reactor::start(&[0], 8 << 20, Polling::Adaptive).unwrap();
    let backing = Backing::open(address, create).unwrap();
    let mut handle = backing.handle(&memory);
    if let Some(faults) = faults {
        handle = fault::wrap(handle, faults, memory.clone());
    }
    let (send, receive) = mpsc::channel();
    let reactor: &ReactorHandle = &reactors[0];
    reactor
        .run(Box::new(move |r| {
            prepare();
            let mut cx = r.context();
            let device = handle(&mut cx).unwrap();
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                work(&mut Rig { device, cx: &mut cx, memory, next: 0 })
            }));
            send.send(result).unwrap();
        }))
        .unwrap();
    let result = receive.recv_timeout(Duration::from_secs(60)).expect("an answer within a minute");
    reactor.stop();
    result.unwrap_or_else(|e| std::panic::resume_unwind(e))
}

struct Rig<'a, 'b> {
    device: Box<dyn BlockDevice>,
    cx: &'a mut Context<'b>,
    memory: Memory,
    next: u64,
}

impl Rig<'_, '_> {
    fn slot(&mut self, len: u32, fill: impl Fn(usize) -> u8) -> Slot {
        let mut slot = self.cx.pool().alloc(len).unwrap();
        self.cx.pool().bytes_mut(&mut slot).iter_mut().enumerate().for_each(|(i, b)| *b = fill(i));
        slot
    }

    fn io(&mut self, op: IoOp, offset: u64, len: u64, segs: &[Seg]) -> IoStatus {
        self.next += 1;
        self.device.submit(Io { tag: self.next, op, offset, len }, segs).unwrap();
        let mut done = Completions::new();
        while done.is_empty() {
            self.device.ring();
            self.device.poll(&mut done);
        }
        assert_eq!((done.len(), done[0].tag), (1, self.next));
        match done[0].status {
            BlockStatus::Member(status) => status,
            BlockStatus::Volume(status) => panic!("a member answered as a volume: {status:?}"),
        }
    }

    fn read(&mut self, offset: u64, len: u32) -> Vec<u8> {
        let slot = self.slot(len, |_| 0xEE);
        let seg = Seg { addr: slot.addr(), len };
        assert_eq!(self.io(IoOp::Read, offset, u64::from(len), &[seg]), IoStatus::Ok);
        let bytes = self.cx.pool().bytes(&slot)[..len as usize].to_vec();
        self.cx.pool().free(slot);
        bytes
    }
}

fn pattern(i: usize) -> u8 {
    (i * 31 + i / 512) as u8
}

fn device_keeps_what_it_is_given(rig: &mut Rig) {
    let slot = rig.slot(65536, pattern);
    let addr = slot.addr();
    assert_eq!(rig.io(IoOp::Write { fua: false }, 8192, 65536, &[Seg { addr, len: 65536 }]), IoStatus::Ok);
    let expected: Vec<u8> = (0..65536).map(pattern).collect();
    assert_eq!(rig.read(8192, 65536), expected);
    assert_eq!(rig.read(0, 8192), vec![0; 8192], "untouched blocks of a sparse file are zero");

    // A gather list, out of order in memory.
    let segs = [
        Seg { addr: addr.plus(32768), len: 4096 },
        Seg { addr, len: 512 },
        Seg { addr: addr.plus(512), len: 3584 },
        Seg { addr: addr.plus(16384), len: 8192 },
    ];
    assert_eq!(rig.io(IoOp::Write { fua: true }, 1 << 20, 16384, &segs), IoStatus::Ok);
    let gathered = [&expected[32768..36864], &expected[..4096], &expected[16384..24576]].concat();
    assert_eq!(rig.read(1 << 20, 16384), gathered);
    // And scattered again.
    let clear = rig.slot(65536, |_| 0);
    let scatter: Vec<Seg> =
        [(32768, 4096), (0, 4096), (16384, 8192)].map(|(o, len)| Seg { addr: clear.addr().plus(o), len }).to_vec();
    assert_eq!(rig.io(IoOp::Read, 1 << 20, 16384, &scatter), IoStatus::Ok);
    assert_eq!(rig.cx.pool().bytes(&clear)[..4096], expected[..4096]);
    assert_eq!(rig.cx.pool().bytes(&clear)[16384..24576], expected[16384..24576]);

    assert_eq!(rig.io(IoOp::Zero { unmap: true, fua: false }, 8192 + 4096, 8192, &[]), IoStatus::Ok);
    assert_eq!(rig.io(IoOp::Zero { unmap: false, fua: true }, 8192 + 20480, 4096, &[]), IoStatus::Ok);
    let mut holes = expected.clone();
    holes[4096..12288].fill(0);
    holes[20480..24576].fill(0);
    assert_eq!(rig.read(8192, 65536), holes);
    assert_eq!(rig.io(IoOp::Flush, 0, 0, &[]), IoStatus::Ok);

    let beyond = [Seg { addr, len: 4096 }];
    assert_ne!(rig.io(IoOp::Write { fua: false }, SIZE, 4096, &beyond), IoStatus::Ok);
    assert_ne!(rig.io(IoOp::Read, u64::MAX - 4095, 4096, &beyond), IoStatus::Ok);
    rig.cx.pool().free(slot);
    rig.cx.pool().free(clear);
}

#[test]
fn a_file_keeps_what_it_is_given() {
    let dir = dir("file");
    let path = dir.join("member");
    on_reactor(path.to_str().unwrap(), Some(SIZE), None, device_keeps_what_it_is_given);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), SIZE, "zeroing must keep the size");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn ram_keeps_what_it_is_given() {
    on_reactor("ram:16MiB", None, None, device_keeps_what_it_is_given);
}

#[test]
fn a_file_keeps_what_it_is_given_without_io_uring() {
    let dir = dir("blocking");
    let path = dir.join("member");
    on_reactor_that(deny_io_uring, path.to_str().unwrap(), Some(SIZE), None, |rig| {
        device_keeps_what_it_is_given(rig);
        // Many at once, more than are taken.
        let slot = rig.slot(4096, pattern);
        let segs = [Seg { addr: slot.addr(), len: 4096 }];
        let mut sent = 0;
        while sent < 1000 {
            let io = Io { tag: sent, op: IoOp::Write { fua: false }, offset: sent * 4096, len: 4096 };
            if rig.device.submit(io, &segs).is_err() {
                break;
            }
            sent += 1;
        }
        assert!(sent < 1000, "a queue without an end");
        let mut done = Completions::new();
        while (done.len() as u64) < sent {
            rig.device.poll(&mut done);
        }
        assert!(done.iter().enumerate().all(|(i, c)| c.tag == i as u64 && c.status.is_ok()));
        assert_eq!(rig.device.in_flight(), 0);
        rig.cx.pool().free(slot);
    });
    assert_eq!(std::fs::metadata(&path).unwrap().len(), SIZE, "zeroing must keep the size");
    let thread = std::thread::spawn(|| {
        deny_io_uring();
        io_uring::IoUring::new(8).err().map(|e| e.raw_os_error())
    });
    assert_eq!(thread.join().unwrap(), Some(Some(libc::EPERM)), "io_uring was there, so nothing was tested");
    std::fs::remove_dir_all(dir).unwrap();
}

/// The kernel's own block devices, here over a file: zeroing with and without deallocation, and nobody beside us.
#[test]
fn a_block_device_keeps_what_it_is_given() {
    let dir = dir("loop");
    let file = dir.join("image");
    std::fs::File::create(&file).unwrap().set_len(SIZE).unwrap();
    let run = |args: &[&str]| {
        let out = std::process::Command::new("losetup").args(args).output().ok()?;
        out.status.success().then(|| String::from_utf8(out.stdout).unwrap().trim().to_string())
    };
    let Some(device) = run(&["--find", "--show", file.to_str().unwrap()]) else {
        println!("skipped: a loop device needs root and the kernel's support");
        std::fs::remove_dir_all(dir).unwrap();
        return;
    };
    let result = std::panic::catch_unwind(|| {
        on_reactor(&device, None, None, device_keeps_what_it_is_given);
        on_reactor_that(deny_io_uring, &device, None, None, |rig| {
            assert_eq!(rig.io(IoOp::Zero { unmap: true, fua: true }, 0, SIZE, &[]), IoStatus::Ok);
            device_keeps_what_it_is_given(rig);
        });
        let first = Backing::open(&device, None).unwrap();
        assert!(Backing::open(&device, None).is_err_and(|e| e.contains("only once")));
        assert_eq!((first.info().size, first.info().block_size), (SIZE, 512));
        assert!(first.info().unmap, "the queue's attributes were not found: {:?}", first.info());
    });
    run(&["--detach", &device]);
    std::fs::remove_dir_all(dir).unwrap();
    result.unwrap_or_else(|e| std::panic::resume_unwind(e));
}

#[test]
fn a_file_that_became_shorter_is_an_error_and_no_short_read() {
    let dir = dir("short");
    for (name, prepare) in [("uring", (|| ()) as fn()), ("blocking", deny_io_uring)] {
        a_file_becomes_shorter(&dir.join(name), prepare);
    }
    std::fs::remove_dir_all(dir).unwrap();
}

fn a_file_becomes_shorter(path: &Path, prepare: fn()) {
    let other = path.to_path_buf();
    on_reactor_that(prepare, path.to_str().unwrap(), Some(SIZE), None, move |rig| {
        std::fs::OpenOptions::new().write(true).open(&other).unwrap().set_len(SIZE / 2 + 4096).unwrap();
        let slot = rig.slot(16384, |_| 0);
        let segs = [Seg { addr: slot.addr(), len: 16384 }];
        assert_eq!(rig.io(IoOp::Read, SIZE / 2, 16384, &segs), IoStatus::DeviceError);
        rig.cx.pool().free(slot);
    });
}

#[test]
fn many_ios_at_once_all_come_back() {
    let dir = dir("many");
    let path = dir.join("member");
    on_reactor(path.to_str().unwrap(), Some(SIZE), None, |rig| {
        let slot = rig.slot(4096, pattern);
        let segs = [Seg { addr: slot.addr(), len: 4096 }];
        let (mut sent, mut refused) = (0u64, 0);
        let mut done = Completions::new();
        while done.len() < 2000 {
            let io = Io { tag: sent, op: IoOp::Write { fua: false }, offset: sent % 4096 * 4096, len: 4096 };
            if sent < 2000 {
                match rig.device.submit(io, &segs) {
                    Ok(()) => sent += 1,
                    Err(_) => refused += 1,
                }
            }
            if sent == 2000 || refused > 0 {
                rig.device.ring();
                rig.device.poll(&mut done);
                refused = 0;
            }
        }
        let tags: std::collections::BTreeSet<u64> = done.iter().map(|c| c.tag).collect();
        assert_eq!(tags.len(), 2000);
        assert!(done.iter().all(|c| c.status.is_ok()));
        assert_eq!(rig.device.in_flight(), 0);
        rig.cx.pool().free(slot);
    });
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn faults_meet_their_range_and_kind_only_and_can_be_cleared() {
    let faults = Arc::new(Faults::default());
    let table = faults.clone();
    on_reactor("ram:16MiB", None, Some(faults), move |rig| {
        let slot = rig.slot(8192, pattern);
        let segs = [Seg { addr: slot.addr(), len: 4096 }];
        let all = Kinds { read: true, write: true, flush: true };
        let fault = |kinds, offset, len, effect| Fault { id: 0, kinds, offset, len, effect };
        let write = IoOp::Write { fua: false };
        assert_eq!(rig.io(write, 0, 4096, &segs), IoStatus::Ok);

        let reads = Kinds { write: false, flush: false, ..all };
        let id = table.add(fault(reads, 4096, 512, Effect::Fail(IoStatus::ReadError)));
        assert_eq!(rig.io(IoOp::Read, 0, 4096, &segs), IoStatus::Ok);
        assert_eq!(rig.io(IoOp::Read, 4096, 4096, &segs), IoStatus::ReadError);
        assert_eq!(table.list().len(), 1);
        assert_eq!(rig.io(write, 4096, 4096, &segs), IoStatus::Ok);
        assert_eq!(table.clear(Some(id)), 0, "a rewritten block can be read again");
        assert_eq!(rig.io(IoOp::Read, 4096, 4096, &segs), IoStatus::Ok);

        table.add(fault(all, 0, u64::MAX, Effect::Fail(IoStatus::DeviceError)));
        assert_eq!(rig.io(IoOp::Flush, 0, 0, &[]), IoStatus::DeviceError);
        table.clear(None);

        let before = rig.read(0, 4096);
        table.add(fault(reads, 0, 4096, Effect::Corrupt));
        assert_ne!(rig.read(0, 4096), before);
        table.clear(None);
        assert_eq!(rig.read(0, 4096), before, "corruption must be in the read, not in the device");

        // Of a larger read only the fault's range, across the elements of its gather list.
        table.add(fault(all, 4096 + 512, 1024, Effect::Corrupt));
        assert_eq!(rig.io(write, 4096, 4096, &segs), IoStatus::Ok);
        assert_eq!(rig.cx.pool().bytes(&slot)[..4096], before, "a write's data was changed");
        let clear = rig.slot(16384, |_| 0);
        let halves = [(4096, 5120), (0, 3072)].map(|(o, len)| Seg { addr: clear.addr().plus(o), len });
        assert_eq!(rig.io(IoOp::Read, 0, 8192, &[halves[1], halves[0]]), IoStatus::Ok);
        let read = rig.cx.pool().bytes(&clear);
        let read = [&read[..3072], &read[4096..9216]].concat();
        let twice = [&before[..], &before[..]].concat();
        let changed: Vec<usize> = (0..8192).filter(|i| read[*i] != twice[*i]).collect();
        assert_eq!(changed, [4608, 5120]);
        rig.cx.pool().free(clear);
        table.clear(None);

        // An I/O at the end of all addresses is the device's to refuse.
        table.add(fault(all, 0, 4096, Effect::Delay(1)));
        assert_eq!(rig.io(IoOp::Read, u64::MAX - 4095, 4096, &segs), IoStatus::DeviceError);
        table.clear(None);

        table.add(fault(reads, 0, 4096, Effect::Delay(20_000_000)));
        let begin = reactor::now();
        assert_eq!(rig.read(0, 4096), before);
        assert!(reactor::now().0 - begin.0 >= 20_000_000);
        table.clear(None);
        rig.cx.pool().free(slot);
    });
}

/// A file system without room under a sparse member: the write fails as such, nothing else happens.
#[test]
fn a_full_file_system_is_no_space() {
    let dir = dir("full");
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=12m", "tmpfs"])
        .arg(&dir)
        .status()
        .is_ok_and(|s| s.success());
    if !mounted {
        println!("skipped: a small tmpfs cannot be mounted without root");
        return;
    }
    let path = dir.join("member");
    let all = [(|| ()) as fn(), deny_io_uring].map(|prepare| {
        let statuses = on_reactor_that(prepare, path.to_str().unwrap(), Some(64 << 20), None, |rig| {
            let slot = rig.slot(1 << 20, pattern);
            let segs = [Seg { addr: slot.addr(), len: 1 << 20 }];
            let statuses: Vec<IoStatus> =
                (0..16).map(|i| rig.io(IoOp::Write { fua: false }, i << 20, 1 << 20, &segs)).collect();
            // Room comes back, and writes go on.
            assert_eq!(rig.io(IoOp::Zero { unmap: true, fua: false }, 0, 16 << 20, &[]), IoStatus::Ok);
            assert_eq!(rig.io(IoOp::Write { fua: true }, 15 << 20, 1 << 20, &segs), IoStatus::Ok);
            rig.cx.pool().free(slot);
            statuses
        });
        std::fs::remove_file(&path).unwrap();
        statuses
    });
    std::process::Command::new("umount").arg(&dir).status().unwrap();
    for statuses in all {
        assert_eq!(statuses[0], IoStatus::Ok);
        assert_eq!(*statuses.last().unwrap(), IoStatus::NoSpace);
        assert!(statuses.iter().all(|s| matches!(s, IoStatus::Ok | IoStatus::NoSpace)), "{statuses:?}");
    }
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn counters_and_latencies_are_those_of_all_queues() {
    let stats = Arc::new(super::stats::Stats::default());
    let faults = Arc::new(Faults::default());
    let reads = Kinds { read: true, write: false, flush: false };
    let fail = Effect::Fail(IoStatus::ReadError);
    faults.add(Fault { id: 0, kinds: reads, offset: 1 << 20, len: 4096, effect: fail });
    let (seen, table) = (stats.clone(), faults.clone());
    let disk = super::ram::RamDisk::new("ram:16MiB", SIZE).unwrap();
    on_reactor("ram:16MiB", None, None, move |rig| {
        let memory = rig.memory.clone();
        let inner: MemberHandle = Arc::new(move |_| Ok(Box::new(disk.open(&memory))));
        let handle = super::stats::wrap(fault::wrap(inner, table.clone(), rig.memory.clone()), seen.clone());
        let slot = rig.slot(8192, pattern);
        let segs = [Seg { addr: slot.addr(), len: 8192 }];
        // Two queues at once, and one after them.
        let second = handle(rig.cx).unwrap();
        rig.device = handle(rig.cx).unwrap();
        for i in 0..2 {
            if i == 1 {
                rig.device = handle(rig.cx).unwrap();
            }
            assert_eq!(rig.io(IoOp::Write { fua: false }, 0, 8192, &segs), IoStatus::Ok);
            assert_eq!(rig.io(IoOp::Read, 0, 8192, &segs), IoStatus::Ok);
            assert_eq!(rig.io(IoOp::Read, 1 << 20, 8192, &segs), IoStatus::ReadError);
            assert_eq!(rig.io(IoOp::Flush, 0, 0, &[]), IoStatus::Ok);
        }
        let id = table.add(Fault { id: 0, kinds: reads, offset: 0, len: 4096, effect: Effect::Delay(5_000_000) });
        rig.device.submit(Io { tag: 9, op: IoOp::Read, offset: 0, len: 8192 }, &segs).unwrap();
        assert_eq!(seen.totals().in_flight, 1);
        let mut done = Completions::new();
        while done.is_empty() {
            rig.device.poll(&mut done);
        }
        table.clear(Some(id));
        drop(second);
        rig.cx.pool().free(slot);
    });
    let totals = stats.totals();
    let counts = totals.kinds.map(|k| (k.ops, k.errors, k.bytes));
    assert_eq!(counts, [(3, 2, 3 * 8192), (2, 0, 2 * 8192), (2, 0, 0)]);
    assert_eq!(totals.in_flight, 0);
    let latencies = stats.latencies();
    assert_eq!(latencies.each_ref().map(|h| h.len()), [3, 2, 2]);
    assert_eq!(stats.latency_classes().map(|classes| classes.iter().sum::<u64>()), [3, 2, 2]);
    assert!(latencies[0].max() >= 5_000_000, "the late answer is not seen: {}", latencies[0].max());
}

/// ramfs knows neither holes nor zero ranges: zeros are written.
#[test]
fn a_file_system_that_cannot_zero_is_written_to() {
    let dir = dir("ramfs");
    let mounted = std::process::Command::new("mount")
        .args(["-t", "ramfs", "ramfs"])
        .arg(&dir)
        .status()
        .is_ok_and(|s| s.success());
    if !mounted {
        println!("skipped: a ramfs cannot be mounted without root");
        return;
    }
    let results = [(|| ()) as fn(), deny_io_uring].map(|prepare| {
        let path = dir.join("member");
        let result = std::panic::catch_unwind(|| {
            on_reactor_that(prepare, path.to_str().unwrap(), Some(SIZE), None, |rig| {
                device_keeps_what_it_is_given(rig);
                // More than is written at once, around blocks that must stay.
                let slot = rig.slot(65536, pattern);
                let segs = [Seg { addr: slot.addr(), len: 65536 }];
                for offset in [0, 65536, (3 << 20) + 131_072] {
                    assert_eq!(rig.io(IoOp::Write { fua: false }, offset, 65536, &segs), IoStatus::Ok);
                }
                assert_eq!(rig.io(IoOp::Zero { unmap: true, fua: true }, 65536, (3 << 20) + 65536, &[]), IoStatus::Ok);
                let expected: Vec<u8> = (0..65536).map(pattern).collect();
                assert_eq!(rig.read(0, 65536), expected);
                for offset in (65536..(3 << 20) + 131_072).step_by(65536) {
                    assert_eq!(rig.read(offset, 65536), vec![0; 65536]);
                }
                assert_eq!(rig.read((3 << 20) + 131_072, 65536), expected);
                rig.cx.pool().free(slot);
            });
        });
        std::fs::remove_file(&path).unwrap();
        result
    });
    std::process::Command::new("umount").arg(&dir).status().unwrap();
    std::fs::remove_dir_all(dir).unwrap();
    for result in results {
        result.unwrap_or_else(|e| std::panic::resume_unwind(e));
    }
}

/// An address that is not the pool's must never reach a device.
#[test]
#[should_panic(expected = "outside of region")]
fn a_wild_address_is_stopped() {
    on_reactor("ram:16MiB", None, None, |rig| {
        let _ = &rig.memory;
        rig.io(IoOp::Read, 0, 4096, &[Seg { addr: BufAddr::new(0, 1 << 40), len: 4096 }]);
    });
}

/// Reads from one device again and again, and polls another one after it, whose poll may take the first one's answers.
struct TwoDevices {
    first: Box<dyn BlockDevice>,
    second: Box<dyn BlockDevice>,
    slot: Option<Slot>,
    left: u32,
    report: Option<mpsc::Sender<()>>,
}

impl reactor::Poller for TwoDevices {
    fn name(&self) -> &str {
        "two devices"
    }

    fn poll(&mut self, cx: &mut Context) -> bool {
        let mut done = Completions::new();
        self.first.poll(&mut done);
        self.second.poll(&mut done);
        let mut worked = !done.is_empty();
        if self.left > 0 && self.first.in_flight() == 0 {
            let slot = self.slot.get_or_insert_with(|| cx.pool().alloc(4096).unwrap());
            let io = Io { tag: 0, op: IoOp::Read, offset: u64::from(self.left % 4000) * 4096, len: 4096 };
            self.first.submit(io, &[Seg { addr: slot.addr(), len: 4096 }]).unwrap();
            self.first.ring();
            self.left -= 1;
            worked = true;
        }
        if self.left == 0 && self.first.in_flight() == 0 {
            if let Some(report) = self.report.take() {
                report.send(()).unwrap();
            }
            return false;
        }
        worked
    }
}

#[test]
fn answers_that_another_device_took_from_the_ring_wake_the_reactor() {
    let dir = dir("two");
    let (memory, reactors) = reactor::start(&[0], 8 << 20, Polling::Adaptive).unwrap();
    let open = |name: &str| Backing::open(dir.join(name).to_str().unwrap(), Some(SIZE)).unwrap().handle(&memory);
    let (first, second) = (open("first"), open("second"));
    let (report, result) = mpsc::channel();
    reactors[0]
        .run(Box::new(move |r| {
            let mut cx = r.context();
            let (first, second) = (first(&mut cx).unwrap(), second(&mut cx).unwrap());
            r.add(Box::new(TwoDevices { first, second, slot: None, left: 20_000, report: Some(report) }));
        }))
        .unwrap();
    // A lost wake-up would leave the reactor asleep for ever: it has no deadline.
    result.recv_timeout(Duration::from_secs(120)).expect("the reactor sleeps on answers");
    reactors[0].stop();
    std::fs::remove_dir_all(dir).unwrap();
}
