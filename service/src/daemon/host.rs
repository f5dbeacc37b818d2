//! An array's host: the manager on reactor 0, with the reactor's own queues for metadata, and mail to and from the lanes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use raid_core::action::{IoStatus, Op, ReqStatus, Request, Seg};
use raid_core::manager::{
    Answer, ArrayStatus, Command, CommandTag, DeviceId, ManageError, Manager, ManagerAction, MetaTag, Notice, Severity,
};
use raid_core::units::Tick;
use tokio::sync::{oneshot, watch};

use crate::block::{BlockDevice, BlockStatus, Completions, Io, IoOp, MemberHandle};
use crate::control::events::EventHub;
use crate::dma::Slot;
use crate::reactor::{Context, Mailbox, Poller, Sender};
use crate::volume::{HostMessage, LaneMessage, Origin, Routes};

/// The tag of the creation or assembly itself.
pub const FIRST: CommandTag = CommandTag(0);

/// How often progress is shown while work is under way, in nanoseconds.
const SHOW_EVERY: u64 = 100_000_000;

/// Bytes of one metadata transfer; larger ones go in pieces.
const PIECE: usize = 256 << 10;

/// Mail to a host from the control plane.
pub enum HostCommand {
    /// Know a device, so that a command may name it; or forget it.
    Device(DeviceId, Option<MemberHandle>),
    /// Do it, and answer when it is durable.
    Manage(Command, oneshot::Sender<Result<Answer, ManageError>>),
    /// Let go of the devices, make the lanes do the same, and leave the reactor.
    Leave,
}

/// A metadata transfer that is under way.
struct Transfer {
    tag: MetaTag,
    device: DeviceId,
    kind: Kind,
    offset: u64,
    done: usize,
    slot: Option<Slot>,
    in_flight: bool,
}

enum Kind {
    Read { bytes: Vec<u8>, len: usize },
    Write { bytes: Vec<u8> },
    Flush,
    Zero { len: u64 },
}

/// Answers that are still missing before the manager hears of a broadcast.
struct Waiting {
    tag: MetaTag,
    missing: usize,
    publish: bool,
}

/// What a host is made of.
pub struct HostConfig {
    /// The state machine, created or assembling.
    pub manager: Manager,
    /// Devices by number.
    pub devices: BTreeMap<DeviceId, MemberHandle>,
    /// Mail to each reactor's lane of this array.
    pub lanes: Vec<Sender<LaneMessage>>,
    /// Mail from the lanes.
    pub inbox: Mailbox<HostMessage>,
    /// Mail from the control plane.
    pub commands: Mailbox<HostCommand>,
    /// Shard owners.
    pub routes: Routes,
    /// Where the tag of each view is noted before the view is sent.
    pub latest: Arc<AtomicU64>,
    /// Where the control plane reads the state.
    pub status: watch::Sender<Arc<ArrayStatus>>,
    /// Where notices go.
    pub events: Arc<EventHub>,
    /// Where the end of the creation or assembly is told, tagged [`FIRST`].
    pub started: oneshot::Sender<Result<Answer, ManageError>>,
    /// Told with each new state.
    pub revision: Arc<watch::Sender<u64>>,
}

/// See the module's head.
pub struct ArrayHost {
    config: HostConfig,
    queues: BTreeMap<DeviceId, Box<dyn BlockDevice>>,
    transfers: BTreeMap<u64, Transfer>,
    next_transfer: u64,
    broadcasts: BTreeMap<u64, Waiting>,
    replies: BTreeMap<u64, oneshot::Sender<Result<Answer, ManageError>>>,
    next_command: u64,
    outgoing: VecDeque<(usize, LaneMessage)>,
    completions: Completions,
    changed: bool,
    shown: Tick,
    left: bool,
    name: String,
}

impl ArrayHost {
    /// A host whose first actions come with its first poll.
    pub fn new(mut config: HostConfig, name: String) -> ArrayHost {
        // The sender is used once; what takes its place is never listened to.
        let started = std::mem::replace(&mut config.started, oneshot::channel().0);
        ArrayHost {
            config,
            queues: BTreeMap::new(),
            transfers: BTreeMap::new(),
            next_transfer: 0,
            broadcasts: BTreeMap::new(),
            replies: BTreeMap::from([(FIRST.0, started)]),
            next_command: 0,
            outgoing: VecDeque::new(),
            completions: Completions::new(),
            changed: true,
            shown: Tick(0),
            left: false,
            name,
        }
    }

    fn take_commands(&mut self, cx: &mut Context) -> bool {
        let mut worked = false;
        while let Some(command) = self.config.commands.try_recv() {
            worked = true;
            match command {
                HostCommand::Device(id, Some(handle)) => {
                    self.config.devices.insert(id, handle);
                }
                HostCommand::Device(id, None) => {
                    // The queue first: when the handle is gone, the device is free.
                    self.queues.remove(&id);
                    self.config.devices.remove(&id);
                }
                HostCommand::Manage(command, reply) => {
                    self.next_command += 1;
                    self.replies.insert(self.next_command, reply);
                    self.config.manager.command(cx.now, CommandTag(self.next_command), command);
                }
                HostCommand::Leave => {
                    self.left = true;
                    for lane in 0..self.config.lanes.len() {
                        self.outgoing.push_back((lane, LaneMessage::Leave));
                    }
                }
            }
        }
        worked
    }

    fn take_mail(&mut self, cx: &mut Context) -> bool {
        let mut worked = false;
        while let Some(message) = self.config.inbox.try_recv() {
            worked = true;
            let manager = &mut self.config.manager;
            match message {
                HostMessage::Published(tag) | HostMessage::Quiesced(tag) => self.arrived(cx, tag),
                HostMessage::Maintained(tag, status) => manager.maintained(cx.now, MetaTag(tag), status),
                HostMessage::Event(event) => manager.event(cx.now, event),
                HostMessage::OpenFailed(member, reason) => {
                    tracing::error!(member = member.0, reason, "a reactor cannot reach a member; it is failed");
                    let event = raid_core::action::Event::MemberFailed { member, status: IoStatus::DeviceError };
                    manager.event(cx.now, event);
                }
            }
        }
        worked
    }

    /// One lane has answered a broadcast.
    fn arrived(&mut self, cx: &mut Context, tag: u64) {
        let Some(waiting) = self.broadcasts.get_mut(&tag) else { return };
        waiting.missing -= 1;
        if waiting.missing > 0 {
            return;
        }
        let (tag, publish) = (waiting.tag, waiting.publish);
        self.broadcasts.remove(&tag.0);
        if publish {
            self.config.manager.published(cx.now, tag);
        } else {
            self.config.manager.quiesced(cx.now, tag);
        }
    }

    fn broadcast(&mut self, tag: MetaTag, publish: bool, message: impl Fn(u64) -> LaneMessage) {
        self.broadcasts.insert(tag.0, Waiting { tag, missing: self.config.lanes.len(), publish });
        for lane in 0..self.config.lanes.len() {
            self.outgoing.push_back((lane, message(tag.0)));
        }
    }

    fn execute(&mut self, action: ManagerAction) {
        self.changed = true;
        match action {
            ManagerAction::Read { tag, device, offset, len } => {
                self.transfer(
                    tag,
                    device,
                    offset,
                    Kind::Read { bytes: Vec::with_capacity(len as usize), len: len as usize },
                );
            }
            ManagerAction::Write { tag, device, offset, bytes } => {
                self.transfer(tag, device, offset, Kind::Write { bytes })
            }
            ManagerAction::Flush { tag, device } => self.transfer(tag, device, 0, Kind::Flush),
            ManagerAction::Zero { tag, device, offset, len } => self.transfer(tag, device, offset, Kind::Zero { len }),
            ManagerAction::Publish { tag, view, devices } => {
                let members: Vec<Option<MemberHandle>> =
                    devices.iter().map(|d| d.and_then(|d| self.config.devices.get(&d).cloned())).collect();
                // Before it is sent: see `Lane::may_read_for_others`.
                self.config.latest.store(tag.0, Ordering::Release);
                self.broadcast(tag, true, |tag| LaneMessage::View {
                    tag,
                    view: view.clone(),
                    members: members.clone(),
                });
            }
            ManagerAction::RegionsChanged { .. } => {
                for lane in 0..self.config.lanes.len() {
                    self.outgoing.push_back((lane, LaneMessage::RegionsChanged));
                }
            }
            ManagerAction::Quiesce { tag } => self.broadcast(tag, false, LaneMessage::Quiesce),
            ManagerAction::Maintain { tag, volume, group, stripe, rebuild } => {
                let op = if rebuild { Op::Rebuild { group, stripe } } else { Op::Resync { group, stripe } };
                let request = Request { tag: Origin::Host(tag.0).tag(), volume, op };
                let shard = self.config.manager.shard(volume, group, stripe);
                let lane = self.config.routes[shard as usize].load(Ordering::Relaxed) as usize;
                self.outgoing.push_back((lane, LaneMessage::Submit(request)));
            }
            ManagerAction::Reply { tag, result } => {
                // Who is answered reads the state next: it must be there.
                self.show(crate::reactor::now());
                if let Some(reply) = self.replies.remove(&tag.0) {
                    // The asker may have given up; the step is done all the same.
                    let _ = reply.send(result);
                }
            }
            ManagerAction::Notice(notice) => self.tell(&notice),
        }
    }

    fn tell(&self, notice: &Notice) {
        let name = self.config.manager.name();
        match notice.severity {
            Severity::Info => tracing::info!(code = notice.code, "{}", notice.message),
            Severity::Warning => tracing::warn!(code = notice.code, "{}", notice.message),
            Severity::Error => tracing::error!(code = notice.code, "{}", notice.message),
        }
        let resource = match (notice.member, notice.volume) {
            (Some(m), _) => format!("arrays/{name}/members/{}", m.0),
            (None, Some(v)) => {
                let status = self.config.manager.status();
                let volume = status.volumes.iter().find(|x| x.id == v).map_or(v.0.to_string(), |x| x.name.clone());
                format!("arrays/{name}/volumes/{volume}")
            }
            _ => format!("arrays/{name}"),
        };
        self.config.events.publish(notice.severity, notice.code, &resource, &notice.message);
    }

    fn transfer(&mut self, tag: MetaTag, device: DeviceId, offset: u64, kind: Kind) {
        self.next_transfer += 1;
        let transfer = Transfer { tag, device, kind, offset, done: 0, slot: None, in_flight: false };
        self.transfers.insert(self.next_transfer, transfer);
    }

    /// Opens this reactor's queue to a device on first use.
    fn queue(&mut self, cx: &mut Context, device: DeviceId) -> Option<&mut Box<dyn BlockDevice>> {
        if !self.queues.contains_key(&device) {
            match self.config.devices.get(&device)?(cx) {
                Ok(queue) => {
                    self.queues.insert(device, queue);
                }
                Err(reason) => {
                    tracing::error!(device = device.0, reason, "a device cannot be reached for its metadata");
                    return None;
                }
            }
        }
        self.queues.get_mut(&device)
    }

    /// Starts what can be started: one piece of each transfer at a time.
    fn start_transfers(&mut self, cx: &mut Context) -> bool {
        let mut worked = false;
        let idle: Vec<u64> = self.transfers.iter().filter(|(_, t)| !t.in_flight).map(|(id, _)| *id).collect();
        for id in idle {
            let Some(mut transfer) = self.transfers.remove(&id) else { continue };
            let (op, len) = match &transfer.kind {
                Kind::Read { len, .. } => (IoOp::Read, (len - transfer.done).min(PIECE)),
                Kind::Write { bytes } => (IoOp::Write { fua: false }, (bytes.len() - transfer.done).min(PIECE)),
                Kind::Flush => (IoOp::Flush, 0),
                Kind::Zero { .. } => (IoOp::Zero { unmap: true, fua: false }, 0),
            };
            let mut segs = [Seg { addr: raid_core::action::BufAddr::ZERO, len: len as u32 }];
            if len > 0 {
                let Some(mut slot) = cx.pool().alloc(PIECE as u32) else {
                    // No buffer now; the next pass tries again.
                    self.transfers.insert(id, transfer);
                    continue;
                };
                if let Kind::Write { bytes } = &transfer.kind {
                    cx.pool().bytes_mut(&mut slot)[..len].copy_from_slice(&bytes[transfer.done..transfer.done + len]);
                }
                segs[0].addr = slot.addr();
                transfer.slot = Some(slot);
            }
            let io_len = if let Kind::Zero { len } = transfer.kind { len } else { len as u64 };
            let io = Io { tag: id, op, offset: transfer.offset + transfer.done as u64, len: io_len };
            worked = true;
            let device = transfer.device;
            match self.queue(cx, device).map(|q| q.submit(io, if len > 0 { &segs } else { &[] })) {
                Some(Ok(())) => {
                    transfer.in_flight = true;
                    self.transfers.insert(id, transfer);
                }
                Some(Err(_)) => {
                    if let Some(slot) = transfer.slot.take() {
                        cx.pool().free(slot);
                    }
                    self.transfers.insert(id, transfer);
                }
                None => self.end_transfer(cx, transfer, IoStatus::DeviceError),
            }
        }
        for queue in self.queues.values_mut() {
            queue.ring();
        }
        worked
    }

    fn finish_transfers(&mut self, cx: &mut Context) -> bool {
        let mut completions = std::mem::take(&mut self.completions);
        for queue in self.queues.values_mut() {
            queue.poll(&mut completions);
        }
        let worked = !completions.is_empty();
        // What an answer changes, like a region that is clean now, need not lead to an action.
        self.changed |= worked;
        for done in completions.drain(..) {
            let Some(mut transfer) = self.transfers.remove(&done.tag) else { continue };
            transfer.in_flight = false;
            let status = match done.status {
                BlockStatus::Member(status) => status,
                BlockStatus::Volume(ReqStatus::Ok) => IoStatus::Ok,
                BlockStatus::Volume(_) => IoStatus::DeviceError,
            };
            let more = match &mut transfer.kind {
                Kind::Read { bytes, len } => {
                    let piece = (*len - transfer.done).min(PIECE);
                    if let Some(slot) = &transfer.slot {
                        bytes.extend_from_slice(&cx.pool().bytes(slot)[..piece]);
                    }
                    transfer.done += piece;
                    transfer.done < *len
                }
                Kind::Write { bytes } => {
                    transfer.done += (bytes.len() - transfer.done).min(PIECE);
                    transfer.done < bytes.len()
                }
                Kind::Flush | Kind::Zero { .. } => false,
            };
            if status == IoStatus::Ok && more {
                if let Some(slot) = transfer.slot.take() {
                    cx.pool().free(slot);
                }
                self.transfers.insert(done.tag, transfer);
            } else {
                self.end_transfer(cx, transfer, status);
            }
        }
        self.completions = completions;
        worked
    }

    fn end_transfer(&mut self, cx: &mut Context, mut transfer: Transfer, status: IoStatus) {
        if let Some(slot) = transfer.slot.take() {
            cx.pool().free(slot);
        }
        match transfer.kind {
            Kind::Read { bytes, .. } => {
                let result = if status == IoStatus::Ok { Ok(bytes) } else { Err(status) };
                self.config.manager.read_done(cx.now, transfer.tag, result);
            }
            _ => self.config.manager.done(cx.now, transfer.tag, status),
        }
    }

    fn show(&mut self, now: Tick) {
        self.changed = false;
        self.shown = now;
        self.config.status.send_replace(Arc::new(self.config.manager.status()));
        self.config.revision.send_modify(|r| *r += 1);
    }

    fn send_mail(&mut self) {
        while let Some((lane, message)) = self.outgoing.pop_front() {
            if let Err(message) = self.config.lanes[lane].try_send(message) {
                self.outgoing.push_front((lane, message));
                break;
            }
        }
    }
}

impl Poller for ArrayHost {
    fn name(&self) -> &str {
        &self.name
    }

    fn poll(&mut self, cx: &mut Context) -> bool {
        let mut worked = self.take_commands(cx);
        worked |= self.take_mail(cx);
        worked |= self.finish_transfers(cx);
        self.config.manager.tick(cx.now);
        while let Some(action) = self.config.manager.next_action() {
            worked = true;
            self.execute(action);
        }
        worked |= self.start_transfers(cx);
        self.send_mail();
        // A state is shown at once when nothing more is going on, progress at a leisurely pace.
        if self.changed && (!worked || cx.now.0 >= self.shown.0 + SHOW_EVERY) {
            self.show(cx.now);
        }
        worked || !self.outgoing.is_empty()
    }

    fn next_deadline(&self) -> Option<Tick> {
        let show = self.changed.then(|| Tick(self.shown.0 + SHOW_EVERY));
        show.into_iter().chain(self.config.manager.next_deadline()).min()
    }

    fn finished(&self) -> bool {
        self.left && self.transfers.is_empty() && self.outgoing.is_empty()
    }
}
