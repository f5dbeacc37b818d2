//! Subsystems and the registry of them: what the control plane configures. Reactors see immutable snapshots.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::controller::Controller;
use super::counters::{Counters, Totals};
use crate::block::BlockDevice;
use crate::reactor::Context;

/// Opens a namespace's device on the reactor that calls it.
pub type DeviceFactory = Arc<dyn Fn(&mut Context) -> Result<Box<dyn BlockDevice>, String> + Send + Sync>;

/// What initiators are told about a namespace. Sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceInfo {
    /// Unique over all subsystems, not zero: Linux ignores a namespace whose identifiers are not.
    pub uuid: [u8; 16],
    /// As `uuid`; the same bytes will do.
    pub nguid: [u8; 16],
    /// Logical block size, 512 or 4096.
    pub block_size: u32,
    /// Size, a multiple of the block size.
    pub size: u64,
    /// A write of at least this size at its multiples is quickest (a block, where it needs no read of old data), or 0.
    pub preferred_write: u32,
    /// Best request size (a full stripe), or 0.
    pub optimal_io: u32,
    /// What is replaced as a whole or not at all when power fails, or 0 for one logical block.
    pub atomic_write: u32,
    /// Writes may be lost until they are flushed.
    pub volatile_cache: bool,
    /// Deallocated blocks are given back and read as zeros.
    pub deallocate: bool,
}

/// A namespace of a snapshot.
#[derive(Clone)]
pub struct Namespace {
    /// What initiators are told.
    pub info: NamespaceInfo,
    /// Opens its device.
    pub factory: DeviceFactory,
    /// Names this addition of the namespace: an NSID that is used again is another namespace.
    pub key: u64,
}

/// Which hosts may connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hosts {
    /// Every host.
    Any,
    /// Those with these NQNs.
    Listed(BTreeSet<String>),
}

impl Hosts {
    /// True if the host may connect.
    pub fn allow(&self, host: &str) -> bool {
        match self {
            Hosts::Any => true,
            Hosts::Listed(hosts) => hosts.contains(host),
        }
    }
}

/// Through which of the target's listeners a subsystem is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ports {
    /// All.
    Any,
    /// Those that listen on these addresses. Without it a subsystem that is meant for the loopback would be open to the
    /// network as soon as another one listens there.
    Listed(BTreeSet<SocketAddr>),
}

impl Ports {
    /// True if a host that has come to our address `local` has come through one of them.
    pub fn allow(&self, local: SocketAddr) -> bool {
        match self {
            Ports::Any => true,
            // A listener on all IPv6 addresses takes IPv4 as well, so its hosts come to IPv4-mapped addresses.
            Ports::Listed(listed) => listed.iter().any(|l| {
                let same = l.ip().is_unspecified() || l.ip().to_canonical() == local.ip().to_canonical();
                same && l.port() == local.port()
            }),
        }
    }

    /// True if the listener is one of them.
    pub fn has(&self, listener: &SocketAddr) -> bool {
        match self {
            Ports::Any => true,
            Ports::Listed(listed) => listed.contains(listener),
        }
    }
}

/// A subsystem as configured.
#[derive(Clone)]
pub struct Subsystem {
    /// Its name.
    pub nqn: String,
    /// Serial number, at most 20 ASCII characters.
    pub serial: String,
    /// Model number, at most 40 ASCII characters.
    pub model: String,
    /// Who may connect.
    pub hosts: Hosts,
    /// Through which listeners.
    pub ports: Ports,
    /// NSID to namespace.
    pub namespaces: BTreeMap<u32, Namespace>,
    /// What outlives snapshots.
    pub shared: Arc<Shared>,
}

impl Subsystem {
    /// Highest NSID, at least 1 so that the field NN is never zero.
    pub fn highest_nsid(&self) -> u32 {
        self.namespaces.keys().next_back().copied().unwrap_or(1).max(1)
    }

    /// True if any namespace loses writes that were not flushed.
    pub fn volatile_cache(&self) -> bool {
        self.namespaces.values().any(|n| n.info.volatile_cache)
    }
}

/// A connection, as the control plane sees it.
#[derive(Debug)]
pub struct Link {
    /// Subsystem.
    pub subsystem: String,
    /// Host.
    pub host: String,
    /// Controller.
    pub cntlid: u16,
    /// Queue: 0 is the admin queue.
    pub qid: u16,
    /// Entries of the queue.
    pub entries: u32,
    /// The host's end.
    pub peer: SocketAddr,
    /// Our end.
    pub local: SocketAddr,
    /// The reactor that serves it.
    pub reactor: u16,
    /// Header digests are in use.
    pub header_digest: bool,
    /// Data digests are in use.
    pub data_digest: bool,
    /// What it did.
    pub counters: Arc<Counters>,
}

/// One host's part of a subsystem.
#[derive(Debug, Default)]
pub struct HostState {
    /// Connections that are gone and still have I/O at the device. A new I/O queue of the host waits for them, so that a
    /// write of the old connection cannot land on top of what the host has written since over the new one.
    pub draining: AtomicU32,
}

/// What of a subsystem outlives its snapshots: controllers and connections. The lock is taken when a queue connects or
/// goes away and when somebody asks, never for an I/O.
#[derive(Debug, Default)]
pub struct Shared {
    state: Mutex<SharedState>,
}

#[derive(Debug, Default)]
struct SharedState {
    next_cntlid: u16,
    controllers: BTreeMap<u16, Arc<Controller>>,
    links: Vec<Arc<Link>>,
    hosts: BTreeMap<String, (Arc<HostState>, Totals)>,
}

/// The most hosts whose totals are kept; beyond it those without a connection are forgotten.
const HOSTS_KEPT: usize = 1024;
/// The highest CNTLID that is given out; FFF0h and above are reserved.
const CNTLID_MAX: u16 = 0xFFEF;

impl Shared {
    fn lock(&self) -> MutexGuard<'_, SharedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a free CNTLID and keeps what `make` builds with it. `None` when all are taken.
    pub fn add_controller(
        &self,
        limit: usize,
        make: impl FnOnce(u16, Arc<HostState>) -> Controller,
        host: &str,
    ) -> Option<Arc<Controller>> {
        let mut state = self.lock();
        if state.controllers.len() >= limit {
            return None;
        }
        // CNTLIDs go round, so that a late message of an old controller does not meet a new one of the same number.
        let mut cntlid = state.next_cntlid;
        loop {
            cntlid = if cntlid >= CNTLID_MAX { 1 } else { cntlid + 1 };
            if !state.controllers.contains_key(&cntlid) {
                break;
            }
        }
        state.next_cntlid = cntlid;
        let host = state.host(host);
        let controller = Arc::new(make(cntlid, host));
        state.controllers.insert(cntlid, Arc::clone(&controller));
        Some(controller)
    }

    /// The controller of this number.
    pub fn controller(&self, cntlid: u16) -> Option<Arc<Controller>> {
        self.lock().controllers.get(&cntlid).cloned()
    }

    /// Forgets a controller.
    pub fn remove_controller(&self, controller: &Arc<Controller>) {
        let mut state = self.lock();
        if state.controllers.get(&controller.cntlid).is_some_and(|c| Arc::ptr_eq(c, controller)) {
            state.controllers.remove(&controller.cntlid);
        }
    }

    /// All controllers.
    pub fn controllers(&self) -> Vec<Arc<Controller>> {
        self.lock().controllers.values().cloned().collect()
    }

    /// Notes a connection.
    pub fn add_link(&self, link: Arc<Link>) {
        self.lock().links.push(link);
    }

    /// Forgets a connection and keeps what it did in its host's totals.
    pub fn remove_link(&self, link: &Arc<Link>) {
        let mut state = self.lock();
        state.links.retain(|l| !Arc::ptr_eq(l, link));
        let mut totals = link.counters.totals();
        totals.in_flight = 0;
        state.host(&link.host);
        if let Some((_, sum)) = state.hosts.get_mut(&link.host) {
            *sum += totals;
        }
        if state.hosts.len() > HOSTS_KEPT {
            let SharedState { hosts, links, .. } = &mut *state;
            hosts.retain(|host, (kept, _)| Arc::strong_count(kept) > 1 || links.iter().any(|l| l.host == *host));
        }
    }

    /// The connections of now.
    pub fn links(&self) -> Vec<Arc<Link>> {
        self.lock().links.clone()
    }

    /// Totals by host, gone connections included.
    pub fn hosts(&self) -> BTreeMap<String, Totals> {
        let state = self.lock();
        let mut out: BTreeMap<String, Totals> = state.hosts.iter().map(|(h, (_, t))| (h.clone(), *t)).collect();
        for link in &state.links {
            *out.entry(link.host.clone()).or_default() += link.counters.totals();
        }
        out
    }
}

impl SharedState {
    fn host(&mut self, nqn: &str) -> Arc<HostState> {
        Arc::clone(&self.hosts.entry(nqn.to_string()).or_default().0)
    }
}

/// All that is configured, at one moment.
#[derive(Clone, Default)]
pub struct Registry {
    /// Counts changes: the generation counter of the discovery log page.
    pub generation: u64,
    /// NQN to subsystem.
    pub subsystems: BTreeMap<String, Arc<Subsystem>>,
    /// Where the target listens.
    pub listeners: Vec<SocketAddr>,
    /// Controllers and connections of the discovery subsystem.
    pub discovery: Arc<Shared>,
}

static KEYS: AtomicU64 = AtomicU64::new(1);

/// A name for an addition of a namespace that was never given before.
pub fn next_key() -> u64 {
    KEYS.fetch_add(1, Ordering::Relaxed)
}
