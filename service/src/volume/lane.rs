//! One array on one reactor: the engine, the reactor's queue to each member, and the mail to and from other lanes.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

use raid_core::action::{
    Action, Event, IoStatus, IoTag, MemberId, ReqStatus, ReqTag, Request, SharedView, Slice, Step,
};
use raid_core::engine::{self, Engine};
use raid_core::view::View;

use crate::block::{BlockDevice, BlockStatus, Completions, Io, IoOp, MemberHandle};
use crate::dma::Memory;
use crate::reactor::{self, Context, Poller, Sender};

/// Which reactor owns which shard. Read for every piece, written when a shard moves.
pub type Routes = Arc<[AtomicU16]>;

/// Mail to a lane.
pub enum LaneMessage {
    /// A piece for a shard that this lane owns.
    Submit(Request),
    /// A piece that this lane's volume sent elsewhere has ended.
    Reply(ReqTag, ReqStatus),
    /// A newer view; `members` are the devices behind the member numbers.
    View {
        /// Handed back in [`HostMessage::Published`].
        tag: u64,
        /// The view.
        view: SharedView,
        /// By member number; `None` where the array has no device.
        members: Vec<Option<MemberHandle>>,
    },
    /// Regions of a bitmap have changed their states.
    RegionsChanged,
    /// Tell the host when all that is in flight now has ended.
    Quiesce(u64),
    /// The array has stopped: let go of the members and leave the reactor.
    Leave,
}

/// Mail from a lane to the array's host.
pub enum HostMessage {
    /// The lane of this reactor works by the view.
    Published(u64),
    /// What the lane had in flight has ended.
    Quiesced(u64),
    /// A rebuild or resync step has ended.
    Maintained(u64, ReqStatus),
    /// What the engine has to tell.
    Event(Event),
    /// A member's queue could not be opened on a reactor.
    OpenFailed(MemberId, String),
}

/// Where a request came from, packed into the tag that the engine hands back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A volume on some reactor.
    Front {
        /// The reactor.
        reactor: u16,
        /// The volume's number on that reactor's lane.
        front: u16,
        /// The I/O's slot.
        slot: u32,
    },
    /// The array's host: a rebuild or resync step.
    Host(u64),
}

const HOST_BIT: u64 = 1 << 63;

impl Origin {
    /// Packs.
    pub fn tag(self) -> ReqTag {
        ReqTag(match self {
            Origin::Front { reactor, front, slot } => {
                u64::from(reactor) << 48 | u64::from(front) << 32 | u64::from(slot)
            }
            Origin::Host(tag) => HOST_BIT | tag,
        })
    }

    /// Unpacks.
    pub fn of(tag: ReqTag) -> Origin {
        if tag.0 & HOST_BIT != 0 {
            return Origin::Host(tag.0 & !HOST_BIT);
        }
        Origin::Front { reactor: (tag.0 >> 48) as u16, front: (tag.0 >> 32) as u16, slot: tag.0 as u32 }
    }
}

/// An engine's counts, written by its lane after each pass that did something, read by the control plane.
#[derive(Default)]
pub struct LaneCounters([AtomicU64; 8]);

impl LaneCounters {
    fn store(&self, c: &engine::Counters) {
        let values = [
            c.full_stripe,
            c.read_modify_write,
            c.reconstruct_write,
            c.activations,
            c.merged,
            c.degraded_reads,
            c.read_repairs,
            c.failed_requests,
        ];
        for (place, value) in self.0.iter().zip(values) {
            place.store(value, Ordering::Relaxed);
        }
    }

    /// Full-stripe, read-modify-write and reconstruct writes, activations, merged requests, degraded reads, read repairs,
    /// failed requests.
    pub fn load(&self) -> [u64; 8] {
        std::array::from_fn(|i| self.0[i].load(Ordering::Relaxed))
    }
}

/// What a lane needs to know at its start.
pub struct LaneConfig {
    /// This reactor's number.
    pub reactor: u16,
    /// Limits and scratch memory of the engine.
    pub engine: engine::Config,
    /// All reactors' buffer memory.
    pub memory: Memory,
    /// Shard owners.
    pub routes: Routes,
    /// Mail to the other lanes of the array, by reactor number; `None` for this one.
    pub peers: Vec<Option<Sender<LaneMessage>>>,
    /// Mail to the host.
    pub host: Sender<HostMessage>,
    /// Where the engine's counts can be read from other threads.
    pub counters: Arc<LaneCounters>,
    /// The tag of the view that the host has published last, set before it is sent to any lane.
    pub latest: Arc<AtomicU64>,
    /// Mail to this lane.
    pub inbox: reactor::Mailbox<LaneMessage>,
}

/// See the module's head.
pub struct Lane {
    config: LaneConfig,
    engine: Engine,
    devices: Vec<Option<Box<dyn BlockDevice>>>,
    handles: Vec<Option<MemberHandle>>,
    /// Pieces that the engine had no room for.
    waiting: VecDeque<Request>,
    /// I/Os that a member's queue had no room for.
    deferred: VecDeque<(MemberId, Io, Slice)>,
    outgoing: VecDeque<(u16, LaneMessage)>,
    to_host: VecDeque<HostMessage>,
    /// Who waits for the end of what is in flight, and who waits for what was in flight at the engine's last epoch.
    quiescing: Vec<u64>,
    ending: Vec<u64>,
    leaving: bool,
    /// The tag of the view in force.
    view_tag: Option<u64>,
    fronts: Vec<Option<Vec<(u32, ReqStatus)>>>,
    completions: Completions,
}

impl Lane {
    /// A lane without members; the host's first view brings them.
    pub fn new(config: LaneConfig) -> Lane {
        let engine = Engine::new(config.engine, Arc::new(View::default()));
        let room = config.engine.requests as usize;
        Lane {
            engine,
            devices: Vec::new(),
            handles: Vec::new(),
            waiting: VecDeque::with_capacity(room),
            deferred: VecDeque::with_capacity(config.engine.ios as usize),
            outgoing: VecDeque::with_capacity(room),
            to_host: VecDeque::with_capacity(64),
            quiescing: Vec::new(),
            ending: Vec::new(),
            leaving: false,
            view_tag: None,
            fronts: Vec::new(),
            completions: Vec::with_capacity(config.engine.ios as usize),
            config,
        }
    }

    /// This reactor's number.
    pub fn reactor(&self) -> u16 {
        self.config.reactor
    }

    /// The view in force.
    pub fn view(&self) -> &SharedView {
        self.engine.view()
    }

    /// What the engine counted.
    pub fn counters(&self) -> &engine::Counters {
        self.engine.counters()
    }

    pub(super) fn add_front(&mut self) -> u16 {
        let replies = Some(Vec::with_capacity(1024));
        if let Some(free) = self.fronts.iter().position(Option::is_none) {
            self.fronts[free] = replies;
            return free as u16;
        }
        self.fronts.push(replies);
        (self.fronts.len() - 1) as u16
    }

    pub(super) fn remove_front(&mut self, front: u16) {
        self.fronts[front as usize] = None;
    }

    /// Takes the ended pieces of a volume.
    pub(super) fn take_replies(&mut self, front: u16, out: &mut Vec<(u32, ReqStatus)>) {
        if let Some(Some(replies)) = self.fronts.get_mut(front as usize) {
            out.append(replies);
        }
    }

    /// Ends a piece without asking the engine.
    pub(super) fn finish(&mut self, front: u16, slot: u32, status: ReqStatus) {
        if let Some(Some(replies)) = self.fronts.get_mut(front as usize) {
            replies.push((slot, status));
        }
    }

    /// Whether this lane owns the shard.
    pub(super) fn owns(&self, shard: u16) -> bool {
        self.config.routes[shard as usize].load(Ordering::Relaxed) == self.config.reactor
    }

    /// Whether reads of shards that this lane does not own may be tried here.
    ///
    /// A write that missed a failed member is acknowledged as soon as its owner has the view that says so; this lane may
    /// still have the view before, and would read what the member missed. So it looks at what the host has published: the
    /// host notes a view before it sends it, hence before any acknowledgement that rests on it, hence before any read that
    /// must see that write.
    pub(super) fn may_read_for_others(&self) -> bool {
        self.view_tag == Some(self.config.latest.load(Ordering::Acquire))
    }

    /// Hands a piece to the lane that owns the shard.
    pub(super) fn route(&mut self, shard: u16, request: Request) {
        let owner = self.config.routes[shard as usize].load(Ordering::Relaxed);
        if owner == self.config.reactor {
            self.submit(request);
        } else {
            self.outgoing.push_back((owner, LaneMessage::Submit(request)));
        }
    }

    /// Hands a piece to this lane's engine, in the order of arrival.
    pub(super) fn submit(&mut self, request: Request) {
        if self.waiting.is_empty() {
            if let Err(busy) = self.engine.submit(reactor::now(), request) {
                self.waiting.push_back(busy.0);
            }
        } else {
            self.waiting.push_back(request);
        }
    }

    fn receive(&mut self, cx: &mut Context) -> bool {
        let mut worked = false;
        while let Some(message) = self.config.inbox.try_recv() {
            worked = true;
            match message {
                LaneMessage::Submit(request) => self.submit(request),
                LaneMessage::Reply(tag, status) => self.deliver(tag, status),
                LaneMessage::View { tag, view, members } => self.set_view(cx, tag, view, members),
                LaneMessage::RegionsChanged => self.engine.regions_changed(cx.now),
                LaneMessage::Quiesce(tag) => self.quiescing.push(tag),
                LaneMessage::Leave => self.leaving = true,
            }
        }
        worked
    }

    /// Drops the handles and every queue that has nothing in flight.
    fn let_go(&mut self) {
        self.handles.iter_mut().for_each(|h| *h = None);
        for device in &mut self.devices {
            if device.as_ref().is_some_and(|d| d.in_flight() == 0) {
                *device = None;
            }
        }
    }

    fn set_view(&mut self, cx: &mut Context, tag: u64, view: SharedView, members: Vec<Option<MemberHandle>>) {
        if members.len() > self.devices.len() {
            self.devices.resize_with(members.len(), || None);
            self.handles.resize_with(members.len(), || None);
        }
        for (i, handle) in members.into_iter().enumerate() {
            let same = match (&self.handles[i], &handle) {
                (Some(old), Some(new)) => Arc::ptr_eq(old, new),
                (None, None) => true,
                _ => false,
            };
            // A queue with I/O in flight stays until it is empty: its completions still belong to operations.
            if same || self.devices[i].as_ref().is_some_and(|d| d.in_flight() > 0) {
                continue;
            }
            self.devices[i] = None;
            if let Some(open) = &handle {
                match open(cx) {
                    Ok(device) => self.devices[i] = Some(device),
                    Err(e) => self.to_host.push_back(HostMessage::OpenFailed(MemberId(i as u16), e)),
                }
            }
            self.handles[i] = handle;
        }
        self.engine.set_view(cx.now, view);
        self.view_tag = Some(tag);
        self.to_host.push_back(HostMessage::Published(tag));
    }

    fn deliver(&mut self, tag: ReqTag, status: ReqStatus) {
        match Origin::of(tag) {
            Origin::Host(tag) => self.to_host.push_back(HostMessage::Maintained(tag, status)),
            Origin::Front { reactor, front, slot } if reactor == self.config.reactor => {
                self.finish(front, slot, status);
            }
            Origin::Front { reactor, .. } => self.outgoing.push_back((reactor, LaneMessage::Reply(tag, status))),
        }
    }

    /// Carries out what the engine orders until nothing more can be done now. Devices that answer at once (RAM) are
    /// polled again in the same pass.
    pub fn pump(&mut self) -> bool {
        let mut worked = false;
        loop {
            let mut progress = false;
            // Before the work that is to be done here, and after each round of it: the other lanes work meanwhile.
            self.send_to_peers();
            while let Some(request) = self.waiting.pop_front() {
                if let Err(busy) = self.engine.submit(reactor::now(), request) {
                    self.waiting.push_front(busy.0);
                    break;
                }
                progress = true;
            }
            for _ in 0..self.deferred.len() {
                let Some((member, io, segs)) = self.deferred.pop_front() else { break };
                progress |= self.order(member, io, segs);
            }
            while let Some(action) = self.engine.next_action() {
                progress = true;
                self.execute(action);
            }
            progress |= self.collect();
            worked |= progress;
            if !progress {
                break;
            }
        }
        for device in self.devices.iter_mut().flatten() {
            device.ring();
        }
        self.send_to_peers();
        self.send_to_host();
        if worked {
            self.config.counters.store(self.engine.counters());
        }
        worked
    }

    /// Takes the members' answers.
    fn collect(&mut self) -> bool {
        let mut progress = false;
        let now = reactor::now();
        for device in self.devices.iter_mut().flatten() {
            device.poll(&mut self.completions);
            for done in self.completions.drain(..) {
                progress = true;
                let status = match done.status {
                    BlockStatus::Member(status) => status,
                    BlockStatus::Volume(ReqStatus::Ok) => IoStatus::Ok,
                    BlockStatus::Volume(ReqStatus::Unrecoverable) => IoStatus::ReadError,
                    BlockStatus::Volume(_) => IoStatus::DeviceError,
                };
                self.engine.complete(now, IoTag(done.tag as u32), status);
            }
        }
        progress
    }

    fn execute(&mut self, action: Action) {
        match action {
            Action::Read { io, member, offset, len, segs } => {
                let io = Io { tag: u64::from(io.0), op: IoOp::Read, offset, len: u64::from(len) };
                self.order(member, io, segs);
            }
            Action::Write { io, member, offset, len, segs, fua } => {
                let io = Io { tag: u64::from(io.0), op: IoOp::Write { fua }, offset, len: u64::from(len) };
                self.order(member, io, segs);
            }
            Action::Flush { io, member } => {
                let io = Io { tag: u64::from(io.0), op: IoOp::Flush, offset: 0, len: 0 };
                self.order(member, io, Slice::default());
            }
            Action::Zero { io, member, offset, len, unmap, fua } => {
                let io = Io { tag: u64::from(io.0), op: IoOp::Zero { unmap, fua }, offset, len };
                self.order(member, io, Slice::default());
            }
            Action::Compute { io, steps } => {
                let mut status = IoStatus::Ok;
                for step in self.engine.steps(steps) {
                    let terms = match step {
                        Step::Combine { terms, .. } => self.engine.terms(*terms),
                        _ => &[],
                    };
                    if !self.config.memory.execute(step, terms) {
                        status = IoStatus::Miscompare;
                    }
                }
                self.engine.complete(reactor::now(), io, status);
            }
            Action::Reply { tag, status } => self.deliver(tag, status),
            Action::Event(event) => self.to_host.push_back(HostMessage::Event(event)),
        }
    }

    /// Queues a member I/O; false if the queue is full and the I/O waits.
    fn order(&mut self, member: MemberId, io: Io, segs: Slice) -> bool {
        let Some(Some(device)) = self.devices.get_mut(member.0 as usize) else {
            self.engine.complete(reactor::now(), IoTag(io.tag as u32), IoStatus::DeviceError);
            return true;
        };
        match device.submit(io, self.engine.segs(segs)) {
            Ok(()) => true,
            Err(io) => {
                self.deferred.push_back((member, io, segs));
                false
            }
        }
    }

    fn send_to_peers(&mut self) {
        // One wake-up for each run of mail to the same lane.
        let mut ring = None;
        while let Some((to, message)) = self.outgoing.pop_front() {
            let Some(Some(peer)) = self.config.peers.get(to as usize) else { continue };
            if ring.is_some_and(|last| last != to) {
                self.wake_peer(ring.take());
            }
            ring = Some(to);
            if let Err(message) = peer.post(message) {
                // The order between one pair of lanes must hold, so the rest waits too.
                self.outgoing.push_front((to, message));
                break;
            }
        }
        self.wake_peer(ring);
    }

    /// Tells those who wait for the end of what was in flight when they asked. What has no place in the engine yet does not
    /// count: it looks at views and regions when it gets there.
    fn end_quiesce(&mut self) {
        if self.engine.old_epoch_ended() {
            self.to_host.extend(self.ending.drain(..).map(HostMessage::Quiesced));
        }
        if !self.quiescing.is_empty() && self.engine.begin_epoch() {
            std::mem::swap(&mut self.ending, &mut self.quiescing);
            if self.engine.old_epoch_ended() {
                self.to_host.extend(self.ending.drain(..).map(HostMessage::Quiesced));
            }
        }
    }

    fn send_to_host(&mut self) {
        self.end_quiesce();
        while let Some(message) = self.to_host.pop_front() {
            if let Err(message) = self.config.host.try_send(message) {
                self.to_host.push_front(message);
                break;
            }
        }
    }

    fn wake_peer(&self, reactor: Option<u16>) {
        if let Some(Some(peer)) = reactor.and_then(|r| self.config.peers.get(r as usize)) {
            peer.wake();
        }
    }

    fn has_mail(&self) -> bool {
        !self.outgoing.is_empty() || !self.to_host.is_empty()
    }
}

/// The lane as a thing that its reactor polls.
pub struct LanePoller(pub Rc<RefCell<Lane>>, String);

impl LanePoller {
    /// Polls the lane under a name.
    pub fn new(lane: Rc<RefCell<Lane>>, name: String) -> LanePoller {
        LanePoller(lane, name)
    }
}

impl Poller for LanePoller {
    fn name(&self) -> &str {
        &self.1
    }

    fn poll(&mut self, cx: &mut Context) -> bool {
        let mut lane = self.0.borrow_mut();
        let received = lane.receive(cx);
        if lane.leaving {
            lane.let_go();
        }
        let pumped = lane.pump();
        // Unsent mail keeps the reactor awake: nobody rings when the peer's mailbox has room again.
        received || pumped || lane.has_mail()
    }

    fn finished(&self) -> bool {
        let lane = self.0.borrow();
        lane.leaving && lane.devices.iter().all(Option::is_none)
    }

    fn next_deadline(&self) -> Option<raid_core::units::Tick> {
        let lane = self.0.borrow();
        let devices = lane.devices.iter().flatten().filter_map(|d| d.next_deadline()).min();
        devices.into_iter().chain(lane.engine.next_deadline()).min()
    }
}
