//! Two lanes of one array on one thread: what one lane may do for the other's shards.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use raid_core::action::{MemberId, ReqStatus, Seg, VolumeId};
use raid_core::engine::Config;
use raid_core::geometry::{Geometry, Level};
use raid_core::view::View;

use super::*;
use crate::block::backing::Backing;
use crate::block::{BlockDevice, BlockInfo, BlockStatus, Completions, Io, IoOp};
use crate::reactor::{self, Poller, Polling, Reactor, Sender};

const BLOCK: u32 = 4096;

struct Pair {
    pollers: [LanePoller; 2],
    lanes: [Rc<RefCell<Lane>>; 2],
    senders: [Sender<LaneMessage>; 2],
    latest: Arc<AtomicU64>,
    members: Vec<Option<crate::block::MemberHandle>>,
    volume: Option<Volume>,
}

fn view(level: Level, missing: Option<u16>) -> Arc<View> {
    let view = View::healthy(Geometry { level, width: 3, chunk: 65536, extent: 16 << 20, shards: 16 }, 1);
    Arc::new(missing.map(MemberId).into_iter().fold(view, View::without))
}

impl Pair {
    /// All shards belong to lane 0; the volume is on lane 1.
    fn new(reactor: &mut Reactor, level: Level) -> Pair {
        let memory = reactor.pool().memory().clone();
        let waker = reactor.context().waker();
        let routes: Routes = (0..16).map(|_| AtomicU16::new(0)).collect();
        let latest = Arc::new(AtomicU64::new(u64::MAX));
        let mail = [0, 1].map(|_| reactor::mailbox::<LaneMessage>(64, waker.clone()));
        let senders = [mail[0].0.clone(), mail[1].0.clone()];
        let (host, _box) = reactor::mailbox(64, waker);
        let mut number = 0;
        let lanes = mail.map(|(_, inbox)| {
            let scratch = reactor.pool().reserve(2 << 20).unwrap();
            let engine = Config {
                requests: 64,
                stripes: 64,
                ios: 512,
                scratch,
                scratch_len: 2 << 20,
                handle_every_release: false,
            };
            let peers = (0..2).map(|p| (p != number).then(|| senders[p as usize].clone())).collect();
            let config = LaneConfig {
                reactor: number,
                engine,
                memory: memory.clone(),
                routes: routes.clone(),
                peers,
                host: host.clone(),
                counters: Arc::default(),
                latest: latest.clone(),
                inbox,
            };
            number += 1;
            Rc::new(RefCell::new(Lane::new(config)))
        });
        let members = (0..3)
            .map(|m| {
                let backing = Backing::open(&format!("ram:16MiB:{m}"), None).unwrap();
                Some(backing.handle(&memory))
            })
            .collect();
        let pollers = [0, 1].map(|i| LanePoller::new(lanes[i].clone(), "lane".into()));
        let mut pair = Pair { pollers, lanes, senders, latest, members, volume: None };
        pair.publish(reactor, 0, view(level, None), &[0, 1]);
        let info = BlockInfo::memory("volume", view(level, None).volumes[0].size);
        pair.volume = Volume::new(pair.lanes[1].clone(), VolumeId(0), info);
        pair
    }

    /// As the host does: notes the view, then sends it; here only to some of the lanes so far.
    fn publish(&mut self, reactor: &mut Reactor, tag: u64, view: Arc<View>, lanes: &[usize]) {
        self.latest.store(tag, Ordering::Release);
        for lane in lanes {
            let members = self.members.clone();
            let sent = self.senders[*lane].try_send(LaneMessage::View { tag, view: view.clone(), members });
            assert!(sent.is_ok());
            self.pollers[*lane].poll(&mut reactor.context());
        }
    }

    fn io(&mut self, reactor: &mut Reactor, op: IoOp, offset: u64, seg: Seg) -> ReqStatus {
        let volume = self.volume.as_mut().unwrap();
        volume.submit(Io { tag: 7, op, offset, len: u64::from(seg.len) }, &[seg]).unwrap();
        let mut done = Completions::new();
        for _ in 0..1000 {
            volume.ring();
            self.pollers.iter_mut().for_each(|p| {
                p.poll(&mut reactor.context());
            });
            volume.poll(&mut done);
            if let Some(completion) = done.pop() {
                let BlockStatus::Volume(status) = completion.status else { panic!("{completion:?}") };
                return status;
            }
        }
        panic!("the I/O does not end")
    }

    fn reads(&self, lane: usize) -> u64 {
        self.lanes[lane].borrow().counters().member_reads
    }
}

fn on_reactor(work: impl FnOnce(&mut Reactor) + Send + 'static) {
    let (_, reactors) = reactor::start(&[0], 16 << 20, Polling::Adaptive).unwrap();
    let (send, receive) = mpsc::channel();
    reactors[0]
        .run(Box::new(move |r| {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(r)));
            send.send(result).unwrap();
        }))
        .unwrap();
    let result = receive.recv_timeout(Duration::from_secs(60)).expect("an end within a minute");
    reactors[0].stop();
    if let Err(e) = result {
        std::panic::resume_unwind(e);
    }
}

#[test]
fn healthy_reads_need_no_owner_and_everything_else_goes_to_it() {
    on_reactor(|reactor| {
        let mut pair = Pair::new(reactor, Level::Raid5);
        let mut slot = reactor.pool().alloc(BLOCK).unwrap();
        reactor.pool().bytes_mut(&mut slot).fill(0x5A);
        let seg = Seg { addr: slot.addr(), len: BLOCK };
        assert_eq!(pair.io(reactor, IoOp::Write { fua: false }, 0, seg), ReqStatus::Ok);
        assert_eq!(pair.reads(1), 0, "a write is the owner's");
        let owner = pair.reads(0);
        assert_eq!(pair.io(reactor, IoOp::Read, 0, seg), ReqStatus::Ok);
        assert_eq!((pair.reads(0), pair.reads(1)), (owner, 1), "a healthy read stays here");

        // Degraded: reconstruction is the owner's.
        pair.publish(reactor, 1, view(Level::Raid5, Some(0)), &[0, 1]);
        let (owner, own) = (pair.reads(0), pair.reads(1));
        reactor.pool().bytes_mut(&mut slot).fill(0);
        assert_eq!(pair.io(reactor, IoOp::Read, 0, seg), ReqStatus::Ok);
        assert!(reactor.pool().bytes(&slot)[..BLOCK as usize].iter().all(|b| *b == 0x5A));
        assert!(pair.reads(0) > owner && pair.reads(1) == own, "the data column was on the missing member");
        reactor.pool().free(slot);
    });
}

/// The owner has the view in which a member failed and acknowledges a write that missed it; this lane does not have it yet.
#[test]
fn a_lane_behind_the_published_view_reads_nothing_for_others() {
    on_reactor(|reactor| {
        let mut pair = Pair::new(reactor, Level::Raid1);
        let mut slot = reactor.pool().alloc(BLOCK).unwrap();
        let seg = Seg { addr: slot.addr(), len: BLOCK };
        // Member 0 misses the write. Which copy a healthy read takes rotates, so every block of a chunk is tried.
        pair.publish(reactor, 1, view(Level::Raid1, Some(0)), &[0]);
        for block in 0..16 {
            reactor.pool().bytes_mut(&mut slot).fill(0xC3);
            let offset = u64::from(block * BLOCK);
            assert_eq!(pair.io(reactor, IoOp::Write { fua: false }, offset, seg), ReqStatus::Ok);
            reactor.pool().bytes_mut(&mut slot).fill(0);
            assert_eq!(pair.io(reactor, IoOp::Read, offset, seg), ReqStatus::Ok);
            assert!(reactor.pool().bytes(&slot)[..BLOCK as usize].iter().all(|b| *b == 0xC3), "a stale copy was read");
        }
        assert_eq!(pair.reads(1), 0);
        reactor.pool().free(slot);
    });
}
