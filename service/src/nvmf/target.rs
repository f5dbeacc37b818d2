//! The target, seen from the control plane: what it serves, where it listens, who is connected.
//!
//! Each change makes a new immutable [`Registry`] and sends it to every reactor; a call returns when all of them use it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvme_wire::nqn;

use super::counters::Totals;
use super::poller::{Mail, TargetPoller};
pub use super::subsystem::{DeviceFactory, NamespaceInfo};
use super::subsystem::{Hosts, Link, Namespace, Ports, Registry, Shared, Subsystem, next_key};
use crate::reactor::{ReactorHandle, Sender, mailbox};

/// Mail that a reactor's box holds.
const MAILBOX: usize = 1024;

/// Why a change was refused; the text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// The name or number is taken.
    #[error("{0} exists already; remove it first or choose another name")]
    Exists(String),
    /// There is nothing of that name.
    #[error("{0} does not exist; list what there is and check the name")]
    NotFound(String),
    /// A value that cannot be.
    #[error("{0}")]
    Invalid(String),
    /// The address cannot be listened on.
    #[error("cannot listen on {addr}: {reason}; stop what uses it (`ss -ltnp` shows it) or choose another address")]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// The system's reason.
        reason: std::io::Error,
    },
    /// A namespace's device could not be opened.
    #[error("the device of namespace {nsid} of {nqn} could not be opened on a reactor: {reason}")]
    Device {
        /// Subsystem.
        nqn: String,
        /// Namespace.
        nsid: u32,
        /// The device's reason.
        reason: String,
    },
    /// A reactor has stopped.
    #[error("a reactor has stopped, so the target cannot be changed any more; restart raidd")]
    Stopped,
}

/// A host and what it did with a subsystem.
#[derive(Clone, Debug)]
pub struct HostStats {
    /// Subsystem.
    pub subsystem: String,
    /// Host.
    pub host: String,
    /// Sums, gone connections included.
    pub totals: Totals,
}

struct Inner {
    registry: Mutex<Registry>,
    mail: Vec<Sender<Mail>>,
}

/// Steers the target. Cheap to clone. Calls wait for the reactors: never call from one.
#[derive(Clone)]
pub struct TargetHandle {
    inner: Arc<Inner>,
}

/// The NVMe/TCP target.
pub struct Target;

impl Target {
    /// Starts a target without subsystems and listeners on these reactors. Buffers come from their pools.
    #[expect(
        clippy::new_ret_no_self,
        reason = "what runs is on the reactors; the caller gets the handle that steers it"
    )]
    pub fn new(reactors: &[ReactorHandle]) -> Result<TargetHandle, TargetError> {
        let (senders, boxes): (Vec<_>, Vec<_>) = reactors.iter().map(|r| mailbox::<Mail>(MAILBOX, r.waker())).unzip();
        let placed = Arc::new(AtomicUsize::new(0));
        let (report, started) = mpsc::channel();
        for (number, (reactor, inbox)) in reactors.iter().zip(boxes).enumerate() {
            let (peers, placed, report) = (senders.clone(), Arc::clone(&placed), report.clone());
            let work = Box::new(move |reactor: &mut crate::reactor::Reactor| {
                let made = TargetPoller::new(number, inbox, peers, placed);
                let made = made.and_then(|poller| {
                    reactor.context().watch(poller.epoll())?;
                    Ok(poller)
                });
                let result = made.map(|poller| reactor.add(Box::new(poller))).map_err(|e| e.to_string());
                // Nobody listens any more only if `new` has given up already.
                let _ = report.send(result);
            });
            reactor.run(work).map_err(|_| TargetError::Stopped)?;
        }
        drop(report);
        for _ in reactors {
            started.recv().map_err(|_| TargetError::Stopped)?.map_err(|e| {
                TargetError::Invalid(format!(
                    "the target could not be set up on a reactor: {e}; check the limit on open files"
                ))
            })?;
        }
        Ok(TargetHandle { inner: Arc::new(Inner { registry: Mutex::default(), mail: senders }) })
    }
}

impl TargetHandle {
    fn lock(&self) -> MutexGuard<'_, Registry> {
        self.inner.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends something to every reactor and waits until each has answered. The first error wins.
    fn tell(&self, make: impl Fn(mpsc::Sender<Result<(), String>>) -> Mail) -> Result<Result<(), String>, TargetError> {
        let (ack, acks) = mpsc::channel();
        for mail in &self.inner.mail {
            mail.send(make(ack.clone()));
        }
        drop(ack);
        let mut result = Ok(());
        for _ in &self.inner.mail {
            result = result.and(acks.recv().map_err(|_| TargetError::Stopped)?);
        }
        Ok(result)
    }

    fn publish(&self, registry: &mut Registry, mut next: Registry) -> Result<Result<(), String>, TargetError> {
        next.generation = registry.generation + 1;
        let snapshot = Arc::new(next.clone());
        let result = self.tell(|ack| Mail::Registry(Arc::clone(&snapshot), ack))?;
        if result.is_err() {
            let mut back = registry.clone();
            back.generation = next.generation + 1;
            registry.generation = back.generation;
            let back = Arc::new(back);
            // What could not be opened is not in the old registry, so going back cannot fail for that reason.
            self.tell(|ack| Mail::Registry(Arc::clone(&back), ack))?.map_err(TargetError::Invalid)?;
        } else {
            *registry = next;
        }
        Ok(result)
    }

    fn change(
        &self,
        nqn: &str,
        change: impl FnOnce(&mut Subsystem) -> Result<(), TargetError>,
    ) -> Result<Result<(), String>, TargetError> {
        let mut registry = self.lock();
        let mut next = registry.clone();
        let old = next.subsystems.get(nqn).ok_or_else(|| TargetError::NotFound(format!("subsystem {nqn:?}")))?;
        let mut subsystem = Subsystem::clone(old);
        change(&mut subsystem)?;
        next.subsystems.insert(nqn.to_string(), Arc::new(subsystem));
        self.publish(&mut registry, next)
    }

    /// Adds a subsystem without namespaces, reached through every listener.
    pub fn add_subsystem(&self, nqn: &str, serial: &str, model: &str, hosts: Hosts) -> Result<(), TargetError> {
        check_nqn(nqn)?;
        check_text("serial number", serial, 20)?;
        check_text("model number", model, 40)?;
        if let Hosts::Listed(hosts) = &hosts {
            hosts.iter().try_for_each(|h| check_nqn(h))?;
        }
        let mut registry = self.lock();
        if nqn == nqn::DISCOVERY || registry.subsystems.contains_key(nqn) {
            return Err(TargetError::Exists(format!("subsystem {nqn:?}")));
        }
        let mut next = registry.clone();
        let subsystem = Subsystem {
            nqn: nqn.to_string(),
            serial: serial.to_string(),
            model: model.to_string(),
            hosts,
            ports: Ports::Any,
            namespaces: BTreeMap::new(),
            shared: Arc::new(Shared::default()),
        };
        next.subsystems.insert(nqn.to_string(), Arc::new(subsystem));
        self.publish(&mut registry, next)?.map_err(TargetError::Invalid)
    }

    /// Removes a subsystem: its connections are closed, and when this returns nothing touches its devices any more.
    pub fn remove_subsystem(&self, nqn: &str) -> Result<(), TargetError> {
        let mut registry = self.lock();
        let mut next = registry.clone();
        next.subsystems.remove(nqn).ok_or_else(|| TargetError::NotFound(format!("subsystem {nqn:?}")))?;
        self.publish(&mut registry, next)?.map_err(TargetError::Invalid)
    }

    /// Adds a namespace. Its device is opened on every reactor; an error of one undoes all.
    pub fn add_namespace(
        &self,
        nqn: &str,
        nsid: u32,
        info: NamespaceInfo,
        factory: DeviceFactory,
    ) -> Result<(), TargetError> {
        check_namespace(nsid, &info)?;
        let uuid = info.uuid;
        let taken = self.lock().subsystems.values().any(|s| s.namespaces.values().any(|n| n.info.uuid == uuid));
        if taken {
            // Two namespaces of the same identifier make Linux drop one of them, or mix their paths.
            return Err(TargetError::Exists("a namespace with this UUID".to_string()));
        }
        self.change(nqn, |subsystem| {
            if subsystem.namespaces.contains_key(&nsid) {
                return Err(TargetError::Exists(format!("namespace {nsid} of {nqn:?}")));
            }
            subsystem.namespaces.insert(nsid, Namespace { info, factory, key: next_key() });
            Ok(())
        })?
        .map_err(|reason| TargetError::Device { nqn: nqn.to_string(), nsid, reason })
    }

    /// Removes a namespace. When this returns, no I/O of it is at its device and the device is closed on every reactor.
    pub fn remove_namespace(&self, nqn: &str, nsid: u32) -> Result<(), TargetError> {
        self.change(nqn, |subsystem| match subsystem.namespaces.remove(&nsid) {
            Some(_) => Ok(()),
            None => Err(TargetError::NotFound(format!("namespace {nsid} of {nqn:?}"))),
        })?
        .map_err(TargetError::Invalid)
    }

    /// Says which hosts may connect. Connections of hosts that may not any more are closed.
    pub fn set_hosts(&self, nqn: &str, hosts: Hosts) -> Result<(), TargetError> {
        if let Hosts::Listed(hosts) = &hosts {
            hosts.iter().try_for_each(|h| check_nqn(h))?;
        }
        self.change(nqn, |subsystem| {
            subsystem.hosts = hosts;
            Ok(())
        })?
        .map_err(TargetError::Invalid)
    }

    /// Says through which listeners the subsystem is reached. Connections that exist go on.
    pub fn set_ports(&self, nqn: &str, ports: Ports) -> Result<(), TargetError> {
        self.change(nqn, |subsystem| {
            subsystem.ports = ports;
            Ok(())
        })?
        .map_err(TargetError::Invalid)
    }

    /// Lets a host connect. A subsystem that was open to all is then open to the listed ones only.
    pub fn add_host(&self, nqn: &str, host: &str) -> Result<(), TargetError> {
        check_nqn(host)?;
        self.change(nqn, |subsystem| {
            match &mut subsystem.hosts {
                Hosts::Listed(hosts) => {
                    hosts.insert(host.to_string());
                }
                any => *any = Hosts::Listed(BTreeSet::from([host.to_string()])),
            }
            Ok(())
        })?
        .map_err(TargetError::Invalid)
    }

    /// Forbids a host to connect and closes its connections.
    pub fn remove_host(&self, nqn: &str, host: &str) -> Result<(), TargetError> {
        self.change(nqn, |subsystem| {
            let removed = match &mut subsystem.hosts {
                Hosts::Listed(hosts) => hosts.remove(host),
                Hosts::Any => false,
            };
            if removed { Ok(()) } else { Err(TargetError::NotFound(format!("host {host:?} in the list of {nqn:?}"))) }
        })?
        .map_err(TargetError::Invalid)
    }

    /// Listens on an address; port 0 takes a free one. Returns the address that it got.
    pub fn add_listener(&self, addr: SocketAddr) -> Result<SocketAddr, TargetError> {
        let fail = |reason| TargetError::Listen { addr, reason };
        let mut registry = self.lock();
        if addr.port() != 0 && registry.listeners.contains(&addr) {
            return Err(TargetError::Exists(format!("a listener on {addr}")));
        }
        // The standard library sets SO_REUSEADDR, so a restart does not wait for old connections to time out.
        let listener = TcpListener::bind(addr).map_err(fail)?;
        listener.set_nonblocking(true).map_err(fail)?;
        let local = listener.local_addr().map_err(fail)?;
        let (ack, acks) = mpsc::channel();
        let first = self.inner.mail.first().ok_or(TargetError::Stopped)?;
        first.send(Mail::Listen(listener, ack));
        acks.recv().map_err(|_| TargetError::Stopped)?.map_err(TargetError::Invalid)?;
        let mut next = registry.clone();
        next.listeners.push(local);
        self.publish(&mut registry, next)?.map_err(TargetError::Invalid)?;
        Ok(local)
    }

    /// Stops listening on an address. Connections that were made through it go on.
    pub fn remove_listener(&self, addr: SocketAddr) -> Result<(), TargetError> {
        let mut registry = self.lock();
        if !registry.listeners.contains(&addr) {
            return Err(TargetError::NotFound(format!("a listener on {addr}")));
        }
        let (ack, acks) = mpsc::channel();
        self.inner.mail.first().ok_or(TargetError::Stopped)?.send(Mail::Unlisten(addr, ack));
        acks.recv().map_err(|_| TargetError::Stopped)?.map_err(TargetError::Invalid)?;
        let mut next = registry.clone();
        next.listeners.retain(|l| *l != addr);
        self.publish(&mut registry, next)?.map_err(TargetError::Invalid)
    }

    /// Closes all listeners and connections, lets I/O at the devices end, and closes the devices.
    pub fn stop(&self) -> Result<(), TargetError> {
        let listeners = self.listeners();
        for addr in listeners {
            self.remove_listener(addr)?;
        }
        let mut registry = self.lock();
        let mut next = registry.clone();
        next.subsystems.clear();
        self.publish(&mut registry, next)?.map_err(TargetError::Invalid)?;
        self.tell(Mail::Stop)?.map_err(TargetError::Invalid)
    }

    /// Where the target listens.
    pub fn listeners(&self) -> Vec<SocketAddr> {
        self.lock().listeners.clone()
    }

    /// What is configured now.
    pub fn registry(&self) -> Registry {
        self.lock().clone()
    }

    /// All connections that have a queue.
    pub fn connections(&self) -> Vec<Arc<Link>> {
        let registry = self.registry();
        let shared = registry.subsystems.values().map(|s| &s.shared).chain([&registry.discovery]);
        shared.flat_map(|s| s.links()).collect()
    }

    /// What each host did with each subsystem.
    pub fn host_stats(&self) -> Vec<HostStats> {
        let registry = self.registry();
        let of = |s: &Arc<Subsystem>| {
            let subsystem = s.nqn.clone();
            let hosts = s.shared.hosts().into_iter();
            hosts
                .map(move |(host, totals)| HostStats { subsystem: subsystem.clone(), host, totals })
                .collect::<Vec<_>>()
        };
        registry.subsystems.values().flat_map(of).collect()
    }

    /// What all hosts together did with a subsystem, or `None` if there is no such subsystem.
    pub fn subsystem_stats(&self, nqn: &str) -> Option<Totals> {
        let registry = self.registry();
        let mut sum = Totals::default();
        for totals in registry.subsystems.get(nqn)?.shared.hosts().into_values() {
            sum += totals;
        }
        Some(sum)
    }
}

fn check_nqn(nqn: &str) -> Result<(), TargetError> {
    nqn::check(nqn).map_err(|e| {
        let shown: String = nqn.chars().take(nqn::MAX_LEN).collect();
        TargetError::Invalid(format!("{shown:?} cannot be used as a name: {e}"))
    })
}

fn check_text(what: &str, text: &str, most: usize) -> Result<(), TargetError> {
    let good = text.len() <= most && text.bytes().all(|b| (0x20..0x7F).contains(&b));
    if good {
        Ok(())
    } else {
        Err(TargetError::Invalid(format!("the {what} {text:?} must be at most {most} printable ASCII characters")))
    }
}

fn check_namespace(nsid: u32, info: &NamespaceInfo) -> Result<(), TargetError> {
    let refuse = |why: &str| Err(TargetError::Invalid(format!("namespace {nsid} cannot be served: {why}")));
    if nsid == 0 || nsid > super::MAX_NAMESPACES {
        return refuse(&format!("its NSID must be 1 to {}", super::MAX_NAMESPACES));
    }
    if info.block_size != 512 && info.block_size != 4096 {
        return refuse("its block size must be 512 or 4096 bytes");
    }
    if info.size == 0 || !info.size.is_multiple_of(u64::from(info.block_size)) {
        return refuse("its size must be a multiple of the block size, and not zero");
    }
    if info.uuid == [0; 16] || info.nguid == [0; 16] {
        return refuse("its UUID and NGUID must not be zero, or hosts ignore it");
    }
    Ok(())
}
