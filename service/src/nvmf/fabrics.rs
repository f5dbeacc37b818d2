//! Fabrics commands: Connect, Property Get and Set, Disconnect.

use nvme_wire::command::{Sqe, Status, fctype};
use nvme_wire::fabrics::{CNTLID_DYNAMIC, Cap, ConnectData, InvalidParameter, VERSION_2_0, cattr, property};
use nvme_wire::nqn;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::connection::{Connection, Taken};
use super::controller::{Controller, DISCOVERY_KATO, MAX_ENTRIES};
use super::io::NamespaceRef;
use super::poller::Env;
use super::queue::Queue;
use super::subsystem::{Link, Shared, Subsystem};

/// The most controllers of a subsystem.
const MAX_CONTROLLERS: usize = 1024;
/// What a Connect waits for at most, in nanoseconds: an old connection of the same queue to be gone.
const CONNECT_WAIT: u64 = 5_000_000_000;

/// The version of the NVMe Base Specification that the target follows.
pub const VERSION: u32 = VERSION_2_0;
/// The time in which a controller becomes ready, in units of 500 ms: it is at once.
const READY_TIMEOUT: u8 = 20;
/// CAP.CRMS.CRWMS: a controller is ready only with its media.
const CRWMS: u64 = 1 << 59;

fn cap() -> u64 {
    let cap = Cap {
        mqes: (MAX_ENTRIES - 1) as u16,
        cqr: true,
        to: READY_TIMEOUT,
        css: Cap::CSS_NVM | Cap::CSS_IO,
        ..Cap::default()
    };
    cap.to_u64() | CRWMS
}

/// Why a Connect is refused.
enum Refusal {
    /// Status and result.
    Now(Status, u32),
    /// Not yet: something old has to go away first.
    Wait(Status),
    /// Another reactor serves it.
    Move(usize),
}

impl Connection {
    /// A fabrics command that carries no data, on a connected queue.
    pub(super) fn fabrics(&mut self, sqe: &Sqe, env: &mut Env) -> (Status, u64) {
        let Some(queue) = &self.queue else { return (Status::COMMAND_SEQUENCE_ERROR.dnr(), 0) };
        let controller = Arc::clone(&queue.controller);
        let command = sqe.as_property();
        let (size, offset) = (command.size(), command.ofst.get());
        match sqe.fctype() {
            fctype::PROPERTY_GET if queue.qid == 0 => {
                let value = match (offset, size) {
                    (property::CAP, Some(8)) => cap(),
                    (property::VS, Some(4)) => u64::from(VERSION),
                    (property::CC, Some(4)) => u64::from(controller.cc()),
                    (property::CSTS, Some(4)) => u64::from(controller.csts()),
                    (property::CRTO, Some(4)) => u64::from(READY_TIMEOUT),
                    _ => return (Status::INVALID_FIELD.dnr(), 0),
                };
                (Status::SUCCESS, value)
            }
            fctype::PROPERTY_SET if queue.qid == 0 => {
                if offset != property::CC || size != Some(4) {
                    return (Status::INVALID_FIELD.dnr(), 0);
                }
                if controller.set_cc(command.value.get() as u32) {
                    if controller.has_queues() {
                        env.close_controller(&controller, false);
                    }
                    self.forget_events(env);
                }
                (Status::SUCCESS, 0)
            }
            fctype::DISCONNECT if queue.qid != 0 => (Status::SUCCESS, 0),
            fctype::DISCONNECT => (Status::INVALID_QUEUE_TYPE.dnr(), 0),
            _ => (Status::INVALID_FIELD.dnr(), 0),
        }
    }

    /// A Connect command whose data is in the receive buffer.
    pub(super) fn connect_here(&mut self, sqe: &Sqe, data: Range<usize>, env: &mut Env) -> Taken {
        let Some(copy) = ConnectData::parse(self.received_bytes(data)).copied() else {
            return self.refuse(sqe.cid.get(), Status::DATA_SGL_LENGTH_INVALID.dnr());
        };
        match self.connect(sqe, &copy, true, env) {
            Ok(cntlid) => self.respond(sqe.cid.get(), Status::SUCCESS, u64::from(cntlid)),
            Err(Refusal::Now(status, result)) => self.respond(sqe.cid.get(), status, u64::from(result)),
            Err(Refusal::Move(reactor)) => {
                self.moves_to = Some(reactor);
                return Taken::Later;
            }
            Err(Refusal::Wait(status)) => match self.connect_gives_up {
                Some(until) if env.now >= until => self.respond(sqe.cid.get(), status, 0),
                until => {
                    self.connect_gives_up = until.or(Some(env.now.after(CONNECT_WAIT)));
                    self.connect_waits = true;
                    return Taken::Later;
                }
            },
        }
        self.connect_gives_up = None;
        Taken::Yes
    }

    /// A Connect command whose data came by R2T. It cannot wait or move: its capsule is gone.
    pub(super) fn connect_later(&mut self, sqe: &Sqe, data: &ConnectData, env: &mut Env) -> (Status, u64) {
        match self.connect(sqe, data, false, env) {
            Ok(cntlid) => (Status::SUCCESS, u64::from(cntlid)),
            Err(Refusal::Now(status, result)) => (status, u64::from(result)),
            Err(Refusal::Wait(status)) => (status, 0),
            Err(Refusal::Move(_)) => (Status::INTERNAL_ERROR, 0),
        }
    }

    /// Looks again whether a Connect that waits can go on.
    pub(super) fn retry_connect(&mut self, env: &mut Env) {
        self.connect_waits = false;
        self.resume(env);
    }

    fn connect(&mut self, sqe: &Sqe, data: &ConnectData, may_move: bool, env: &mut Env) -> Result<u16, Refusal> {
        let wrong = |field: InvalidParameter| Refusal::Now(Status::CONNECT_INVALID_PARAMETERS.dnr(), field.to_dw0());
        if self.queue.is_some() {
            return Err(Refusal::Now(Status::COMMAND_SEQUENCE_ERROR.dnr(), 0));
        }
        let command = sqe.as_connect();
        if command.recfmt.get() != 0 {
            return Err(Refusal::Now(Status::INCOMPATIBLE_FORMAT.dnr(), 0));
        }
        let (qid, entries) = (command.qid.get(), u32::from(command.sqsize.get()) + 1);
        if !(2..=MAX_ENTRIES).contains(&entries) {
            return Err(wrong(InvalidParameter::SQSIZE));
        }
        let cntlid = data.cntlid.get();
        let subsystem_nqn = data.subnqn().map_err(|(_, field)| wrong(field))?;
        let host_nqn = data.hostnqn().map_err(|(_, field)| wrong(field))?;
        let host_id = data.hostid;
        let registry = Arc::clone(&env.local.registry);
        let (shared, subsystem) = if subsystem_nqn == nqn::DISCOVERY {
            (&registry.discovery, None)
        } else {
            let Some(subsystem) = registry.subsystems.get(subsystem_nqn) else {
                tracing::info!(peer = %self.ends().0, host = ?host_nqn, subsystem = ?subsystem_nqn, "a host asked for a subsystem that is not there");
                return Err(wrong(InvalidParameter::SUBNQN));
            };
            let (peer, local) = self.ends();
            if !subsystem.ports.allow(local) {
                tracing::info!(%peer, %local, host = ?host_nqn, subsystem = ?subsystem_nqn, "a host asked for a subsystem that is not exported on the address that it came to");
                return Err(wrong(InvalidParameter::SUBNQN));
            }
            if !subsystem.hosts.allow(host_nqn) {
                tracing::info!(peer = %self.ends().0, host = ?host_nqn, subsystem = ?subsystem_nqn, "a host is not allowed; add it to the subsystem's hosts if it should be");
                return Err(Refusal::Now(Status::CONNECT_INVALID_HOST.dnr(), InvalidParameter::HOSTNQN.to_dw0()));
            }
            (&subsystem.shared, Some(Arc::clone(subsystem)))
        };
        let controller = if qid == 0 {
            if cntlid != CNTLID_DYNAMIC {
                return Err(wrong(InvalidParameter::CNTLID));
            }
            let kato = command.kato.get();
            self.new_controller(shared, subsystem_nqn, host_nqn, host_id, kato, env)?
        } else {
            let controller = shared
                .controller(cntlid)
                .filter(|c| c.host_nqn == host_nqn && c.host_id == host_id && !c.is_gone() && !c.discovery);
            let controller = controller.ok_or(wrong(InvalidParameter::CNTLID))?;
            if !controller.ready() {
                return Err(Refusal::Now(Status::COMMAND_SEQUENCE_ERROR.dnr(), 0));
            }
            if qid > controller.granted() {
                return Err(wrong(InvalidParameter::QID));
            }
            if may_move && !self.placed {
                self.placed = true;
                let reactor = env.local.placed.fetch_add(1, Ordering::Relaxed) % env.local.reactors;
                if reactor != env.local.number {
                    return Err(Refusal::Move(reactor));
                }
            }
            if controller.host.draining.load(Ordering::Acquire) > 0 {
                return Err(Refusal::Wait(Status::CONTROLLER_BUSY));
            }
            if !controller.take_queue(qid) {
                return Err(Refusal::Wait(Status::COMMAND_SEQUENCE_ERROR));
            }
            controller
        };
        let (peer, local) = self.ends();
        let link = Arc::new(Link {
            subsystem: subsystem_nqn.to_string(),
            host: host_nqn.to_string(),
            cntlid: controller.cntlid,
            qid,
            entries,
            peer,
            local,
            reactor: env.local.number as u16,
            header_digest: self.digests().header,
            data_digest: self.digests().data,
            counters: Arc::clone(&self.counters),
        });
        shared.add_link(Arc::clone(&link));
        self.link = Some(link);
        self.commands.grow(entries);
        self.send.reserve(entries as usize);
        let no_flow_control = command.cattr & cattr::DISABLE_SQ_FLOW_CONTROL != 0;
        let cntlid = controller.cntlid;
        let mut queue = Queue::new(qid, entries, controller, no_flow_control);
        queue.taken();
        self.queue = Some(queue);
        self.events.generation = registry.generation;
        if let Some(subsystem) = subsystem {
            self.follow(subsystem, env);
        }
        Ok(cntlid)
    }

    fn new_controller(
        &self,
        shared: &Arc<Shared>,
        subsystem: &str,
        host_nqn: &str,
        host_id: [u8; 16],
        kato: u32,
        env: &Env,
    ) -> Result<Arc<Controller>, Refusal> {
        let make = |cntlid, host| {
            let shared = Arc::clone(shared);
            let controller = Controller::new(cntlid, subsystem, shared, host_nqn, host_id, host, 0, env.now);
            controller.set_kato(kato, env.now);
            if controller.discovery && kato == 0 {
                // Both sides fall back to this; without it a host that vanished would be kept for ever.
                controller.set_kato(DISCOVERY_KATO, env.now);
            }
            controller
        };
        shared.add_controller(MAX_CONTROLLERS, make, host_nqn).ok_or(Refusal::Now(Status::CONTROLLER_BUSY, 0))
    }

    /// Uses this state of the subsystem from now on.
    pub(super) fn follow(&mut self, subsystem: Arc<Subsystem>, env: &mut Env) {
        self.namespaces.clear();
        for (nsid, namespace) in &subsystem.namespaces {
            // Not there yet only while a change is on its way; the snapshot that has it follows.
            let Some(device) = env.local.devices.find(namespace.key) else { continue };
            self.namespaces.push(NamespaceRef {
                nsid: *nsid,
                device,
                key: namespace.key,
                shift: namespace.info.block_size.trailing_zeros() as u8,
                blocks: namespace.info.size / u64::from(namespace.info.block_size),
            });
        }
        self.subsystem = Some(subsystem);
    }

    /// The configuration has changed.
    pub fn registry_changed(&mut self, env: &mut Env) {
        let Some(queue) = &self.queue else { return };
        if self.is_closed() {
            return;
        }
        let controller = Arc::clone(&queue.controller);
        let admin = queue.qid == 0;
        let registry = Arc::clone(&env.local.registry);
        if controller.discovery {
            if std::mem::replace(&mut self.events.generation, registry.generation) != registry.generation {
                self.discovery_changed(env);
            }
            return;
        }
        let subsystem = registry
            .subsystems
            .get(&controller.nqn)
            .filter(|s| Arc::ptr_eq(&s.shared, &controller.shared) && s.hosts.allow(&controller.host_nqn));
        let Some(subsystem) = subsystem else {
            // Removed, or the host is not allowed any more.
            self.close(env);
            return;
        };
        let old = std::mem::take(&mut self.namespaces);
        self.follow(Arc::clone(subsystem), env);
        if admin {
            let new = &self.namespaces;
            let differs = |n: &&NamespaceRef, others: &[NamespaceRef]| !others.contains(n);
            let gone = old.iter().filter(|n| differs(n, new));
            let come = new.iter().filter(|n| differs(n, &old));
            let changed: Vec<u32> = gone.chain(come).map(|n| n.nsid).collect();
            self.namespaces_changed(&changed, env);
        }
    }
}
