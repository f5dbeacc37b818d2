//! The cache loses, keeps and tears what a drive may, and nothing else. "On the medium" is what the file holds when it is
//! read past the cache: what a kill at that moment leaves.

use std::path::{Path, PathBuf};

use super::*;
use crate::dma::Pool;

const SIZE: u64 = 16 << 20;

struct Rig {
    path: PathBuf,
    cache: Option<Arc<Cache>>,
    memory: Memory,
    pool: Pool,
}

fn folder(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../target/device-tests")
        .join(format!("{}-volatile-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

impl Rig {
    /// A cache without its background thread, so that a test decides what happens when.
    fn new(name: &str, options: Options) -> Rig {
        let path = folder(name).join("member");
        let backing = Backing::open(path.to_str().unwrap(), Some(SIZE)).unwrap();
        let info = BlockInfo { block_size: 512, volatile_cache: true, ..backing.info().clone() };
        let state = State::new(backing.reopen_cached().unwrap().unwrap(), &info, options);
        let cache = Arc::new(Cache {
            shared: Arc::new(Shared { state: Mutex::new(state), work: Condvar::new() }),
            stop: Arc::default(),
            thread: None,
            info,
            _backing: backing,
        });
        let memory = Memory::new(1, 8 << 20).unwrap();
        Rig { path, cache: Some(cache), pool: Pool::new(memory.clone(), 0), memory }
    }

    fn queue(&self) -> Queue {
        Queue::new(self.cache.clone().unwrap(), self.memory.clone())
    }

    fn medium(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        File::open(&self.path).unwrap().read_exact_at(&mut out, offset).unwrap();
        out
    }

    fn steps(&self, n: usize) {
        for _ in 0..n {
            self.cache.as_ref().unwrap().shared.lock().step().unwrap();
        }
    }

    /// Submits without waiting for the end.
    fn begin(&mut self, queue: &mut Queue, op: IoOp, offset: u64, data: &[u8]) {
        let mut slot = self.pool.alloc(data.len().max(512) as u32).unwrap();
        self.pool.bytes_mut(&mut slot)[..data.len()].copy_from_slice(data);
        // In two pieces, as a gather list has them.
        let cut = data.len() / 1024 * 512;
        let segs = [(0, cut), (cut, data.len() - cut)]
            .map(|(at, len)| Seg { addr: slot.addr().plus(at as u64), len: len as u32 })
            .into_iter()
            .filter(|s| s.len > 0)
            .collect::<Vec<_>>();
        queue.submit(Io { tag: 7, op, offset, len: data.len() as u64 }, &segs).unwrap();
        // The buffer is the host's again only after the completion; the device must not look at it later all the same.
        self.pool.bytes_mut(&mut slot).fill(0xEE);
        self.pool.free(slot);
    }

    fn end(queue: &mut Queue) {
        let mut done = Completions::new();
        queue.ring();
        queue.poll(&mut done);
        assert!(!done.is_empty() && done.iter().all(|c| c.tag == 7 && c.status.is_ok()), "{done:?}");
        assert_eq!(queue.in_flight(), 0);
    }

    fn write(&mut self, queue: &mut Queue, fua: bool, offset: u64, data: &[u8]) {
        self.begin(queue, IoOp::Write { fua }, offset, data);
        Self::end(queue);
    }

    fn flush(&mut self, queue: &mut Queue) {
        queue.submit(Io { tag: 7, op: IoOp::Flush, offset: 0, len: 0 }, &[]).unwrap();
        Self::end(queue);
    }

    fn read(&mut self, queue: &mut Queue, offset: u64, len: u32) -> Vec<u8> {
        let slot = self.pool.alloc(len).unwrap();
        let seg = Seg { addr: slot.addr(), len };
        queue.submit(Io { tag: 7, op: IoOp::Read, offset, len: u64::from(len) }, &[seg]).unwrap();
        Self::end(queue);
        let out = self.pool.bytes(&slot)[..len as usize].to_vec();
        self.pool.free(slot);
        out
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.cache = None;
        let _ = std::fs::remove_dir_all(self.path.parent().unwrap());
    }
}

#[test]
fn a_write_is_read_back_and_is_not_on_the_medium_before_a_flush() {
    let mut rig = Rig::new("flush", Options::new(1));
    let mut queue = rig.queue();
    assert!(queue.info().volatile_cache);
    rig.write(&mut queue, false, 8192, &[1; 4096]);
    rig.write(&mut queue, false, 8192 + 512, &[2; 512]);
    let seen = [vec![0; 512], vec![1; 512], vec![2; 512], vec![1; 3072], vec![0; 512]].concat();
    assert_eq!(rig.read(&mut queue, 8192 - 512, 5120), seen);
    assert_eq!(rig.medium(8192, 4096), vec![0; 4096]);
    rig.flush(&mut queue);
    assert_eq!(rig.medium(8192 - 512, 5120), seen);
    assert_eq!(rig.read(&mut queue, 8192 - 512, 5120), seen);
}

#[test]
fn a_flush_takes_what_was_complete_and_nothing_more() {
    let mut rig = Rig::new("earlier", Options::new(2));
    let (mut one, mut two) = (rig.queue(), rig.queue());
    rig.write(&mut one, false, 0, &[1; 4096]);
    rig.begin(&mut one, IoOp::Write { fua: false }, 4096, &[2; 4096]);
    rig.flush(&mut two);
    assert_eq!(rig.medium(0, 4096), vec![1; 4096], "a queue's flush is the whole drive's");
    assert_eq!(rig.medium(4096, 4096), vec![0; 4096], "a write in flight is not covered by a flush");
    Rig::end(&mut one);
    assert_eq!(rig.read(&mut two, 4096, 4096), vec![2; 4096], "the cache is the drive's, not the queue's");
}

#[test]
fn fua_goes_through_and_takes_what_it_covers_out_of_the_cache() {
    let mut rig = Rig::new("fua", Options::new(3));
    let mut queue = rig.queue();
    rig.write(&mut queue, false, 0, &[1; 8192]);
    rig.write(&mut queue, true, 2048, &[2; 4096]);
    assert_eq!(rig.medium(0, 8192), [vec![0; 2048], vec![2; 4096], vec![0; 2048]].concat(), "FUA is no flush");
    let whole = [vec![1; 2048], vec![2; 4096], vec![1; 2048]].concat();
    assert_eq!(rig.read(&mut queue, 0, 8192), whole);
    rig.steps(200);
    rig.flush(&mut queue);
    assert_eq!(rig.medium(0, 8192), whole, "an older write came after the FUA write that it lies under");
}

#[test]
fn zeroing_is_a_write_of_zeros() {
    let mut rig = Rig::new("zero", Options::new(4));
    let mut queue = rig.queue();
    rig.write(&mut queue, true, 0, &[9; 16384]);
    rig.write(&mut queue, false, 4096, &[8; 4096]);
    queue.submit(Io { tag: 7, op: IoOp::Zero { unmap: true, fua: false }, offset: 4096, len: 2048 }, &[]).unwrap();
    Rig::end(&mut queue);
    assert_eq!(rig.medium(0, 16384), vec![9; 16384]);
    let whole = [vec![9; 4096], vec![0; 2048], vec![8; 2048], vec![9; 8192]].concat();
    assert_eq!(rig.read(&mut queue, 0, 16384), whole);
    queue.submit(Io { tag: 7, op: IoOp::Zero { unmap: false, fua: true }, offset: 0, len: 6144 }, &[]).unwrap();
    Rig::end(&mut queue);
    assert_eq!(rig.medium(0, 8192), [vec![0; 6144], vec![9; 2048]].concat());
    let long = IoOp::Zero { unmap: true, fua: false };
    queue.submit(Io { tag: 7, op: long, offset: 0, len: SIZE }, &[]).unwrap();
    Rig::end(&mut queue);
    assert_eq!(rig.read(&mut queue, 4096, 8192), vec![0; 8192]);
    assert_eq!(rig.cache.as_ref().unwrap().shared.lock().sectors.len(), 0);
    assert_eq!(std::fs::metadata(&rig.path).unwrap().len(), SIZE);
    // Beyond the end nothing happens.
    queue.submit(Io { tag: 7, op: long, offset: SIZE, len: 512 }, &[]).unwrap();
    let mut done = Completions::new();
    queue.poll(&mut done);
    assert!(!done[0].status.is_ok());
}

/// What is on the medium after the same 64 writes of 8 sectors and 60 steps of the background.
fn leavings(name: &str, seed: u64) -> Vec<u8> {
    let mut rig = Rig::new(name, Options::new(seed));
    let mut queue = rig.queue();
    for i in 0..64u64 {
        rig.write(&mut queue, false, i * 8192, &[i as u8 + 1; 4096]);
    }
    rig.steps(60);
    let medium = rig.medium(0, 64 * 8192);
    let expected: Vec<u8> = (0..64u8).flat_map(|i| [vec![i + 1; 4096], vec![0; 4096]].concat()).collect();
    assert_eq!(rig.read(&mut queue, 0, 64 * 8192), expected, "what is written out early changes what is read");
    medium
}

#[test]
fn the_background_leaves_a_torn_and_reordered_subset_that_the_seed_decides() {
    let medium = leavings("subset", 5);
    assert_eq!(medium, leavings("again", 5), "the same seed must leave the same");
    assert_ne!(medium, leavings("other", 6), "another seed must leave something else");
    let (mut lost, mut whole, mut torn, mut reordered) = (0, 0, 0, 0);
    for (i, write) in medium.chunks(8192).enumerate() {
        let sectors: Vec<bool> = write[..4096]
            .chunks(512)
            .map(|sector| {
                let new = vec![i as u8 + 1; 512];
                assert!(sector == new || sector == vec![0; 512], "a sector is torn");
                sector == new
            })
            .collect();
        match sectors.iter().filter(|new| **new).count() {
            0 => lost += 1,
            8 => {
                whole += 1;
                reordered += usize::from(lost + torn > 0);
            }
            _ => torn += 1,
        }
    }
    assert!(lost > 0 && whole > 0 && torn > 0 && reordered > 0, "{lost} {whole} {torn} {reordered}");
}

#[test]
fn a_full_cache_writes_out_its_oldest_and_stays_small() {
    let mut rig = Rig::new("full", Options { capacity: 64 << 10, ..Options::new(7) });
    let mut queue = rig.queue();
    for i in 0..64u64 {
        rig.write(&mut queue, false, i * 4096, &[3; 4096]);
        let held = rig.cache.as_ref().unwrap().shared.lock().sectors.len() * 512;
        assert!(held <= 64 << 10, "{held} bytes in a cache of 64 KiB");
    }
    assert_eq!(rig.medium(0, 32 * 4096), vec![3; 32 * 4096], "the oldest writes must be out");
    assert_eq!(rig.medium(63 * 4096, 4096), vec![0; 4096], "the newest must not");
}

#[test]
fn a_cache_that_lies_loses_what_was_flushed() {
    let mut rig = Rig::new("lies", Options { ignore_flush: true, ..Options::new(8) });
    let mut queue = rig.queue();
    rig.write(&mut queue, false, 2 << 20, &[1; 4096]);
    rig.write(&mut queue, false, 0, &[1; 4096]);
    rig.write(&mut queue, false, SIZE - 4096, &[1; 4096]);
    rig.flush(&mut queue);
    assert_eq!(rig.medium(2 << 20, 4096), vec![0; 4096]);
    assert_eq!(rig.medium(0, 4096), vec![1; 4096], "the array must come back");
    assert_eq!(rig.medium(SIZE - 4096, 4096), vec![1; 4096]);
}

#[test]
fn a_member_that_is_let_go_has_everything_and_its_thread_is_gone() {
    let path = folder("release").join("member");
    let address = path.to_str().unwrap();
    let memory = Memory::new(1, 8 << 20).unwrap();
    let (_, reactors) = crate::reactor::start(&[0], 8 << 20, crate::reactor::Polling::Adaptive).unwrap();
    let backing = Backing::open(address, Some(SIZE)).unwrap();
    let handle = wrap(&backing, Options::new(9), memory.clone()).unwrap();
    drop(backing);
    assert!(Backing::open(address, None).is_err_and(|e| e.contains("only once")), "the lock is not held");
    let (send, receive) = std::sync::mpsc::channel();
    let work = move |reactor: &mut crate::reactor::Reactor| {
        let mut cx = reactor.context();
        let mut queue = handle(&mut cx).unwrap();
        let mut pool = Pool::new(memory.clone(), 0);
        let mut slot = pool.alloc(4096).unwrap();
        pool.bytes_mut(&mut slot).fill(5);
        let seg = Seg { addr: slot.addr(), len: 4096 };
        for i in 0..100 {
            let io = Io { tag: i, op: IoOp::Write { fua: false }, offset: i * 4096, len: 4096 };
            queue.submit(io, &[seg]).unwrap();
        }
        let mut done = Completions::new();
        queue.poll(&mut done);
        send.send(done.len()).unwrap();
    };
    reactors[0].run(Box::new(work)).unwrap();
    assert_eq!(receive.recv().unwrap(), 100);
    reactors[0].stop();
    drop(reactors);
    // The queue and the handle end with the closure, just after the message.
    let backing = loop {
        match Backing::open(address, None) {
            Ok(backing) => break backing,
            Err(_) => std::thread::yield_now(),
        }
    };
    assert_eq!(std::fs::read(&path).unwrap()[..409600], vec![5; 409600]);
    drop(backing);
    std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    assert!(
        wrap(&Backing::open("ram:16MiB", None).unwrap(), Options::new(1), Memory::new(1, 1 << 20).unwrap())
            .is_err_and(|e| e.contains("needs files"))
    );
}
