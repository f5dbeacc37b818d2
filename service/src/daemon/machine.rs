//! The daemon: arrays, exports and devices under one roof, and how changes to them are carried out.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use raid_core::manager::{self, Manager};
use tokio::sync::watch;

use super::arrays::{Array, Machine};
use super::cli::{Common, Polling};
use super::devices::{Device, Devices};
use super::state::{Export, KnownArray, StateDir};
use crate::block::stats::{Stats, StatsDevice};
use crate::block::{BlockDevice, BlockInfo, backing, volatile};
use crate::control::backend::{ArraySpec, ExportSpec, Hosts, NewDevice, OperationKind};
use crate::control::error::{Error, Kind};
use crate::control::events::EventHub;
use crate::nvmf::{self, NamespaceInfo, Target, TargetError, TargetHandle};
use crate::reactor;
use crate::volume::{self, Volume};

/// A known array that is not there.
pub(super) struct Waiting {
    /// Its assembly was refused; otherwise it waits for members.
    pub refused: bool,
    /// What it waits for, or why it was refused.
    pub reason: String,
}

impl Waiting {
    fn reading() -> Waiting {
        Waiting { refused: false, reason: "its members are being read".to_string() }
    }
}

/// Events that are remembered.
const HISTORY: usize = 1024;

/// When an operation was first and last seen under way: the core has no wall clock.
pub(super) type Times = BTreeMap<String, (SystemTime, Option<SystemTime>)>;

/// The daemon.
pub struct Daemon {
    pub(super) machine: Machine,
    pub(super) devices: Devices,
    pub(super) target: TargetHandle,
    pub(super) state: Mutex<StateDir>,
    pub(super) arrays: Mutex<BTreeMap<String, Arc<Array>>>,
    pub(super) waiting: Mutex<BTreeMap<String, Waiting>>,
    pub(super) volume_stats: Mutex<BTreeMap<String, Arc<Stats>>>,
    pub(super) times: Mutex<Times>,
    pub(super) replaced: Mutex<std::collections::BTreeSet<String>>,
    pub(super) common: Common,
    pub(super) started: SystemTime,
    pub(super) http: Mutex<Option<SocketAddr>>,
    /// Changes of arrays and exports, one at a time.
    pub(super) changing: tokio::sync::Mutex<()>,
    revision: watch::Receiver<u64>,
}

/// Sixteen random bytes with the marks of a version 4 UUID.
pub(super) fn random_uuid() -> [u8; 16] {
    uuid::Uuid::new_v4().into_bytes()
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The cores to pin reactors to: as asked, or all but one where there are several, at most four.
fn cores(common: &Common) -> Result<Vec<usize>, String> {
    let have: Vec<usize> = core_affinity::get_core_ids().unwrap_or_default().into_iter().map(|c| c.id).collect();
    if !common.cores.is_empty() {
        if common.reactors.is_some_and(|n| n != common.cores.len()) {
            return Err(format!("--reactors and --cores disagree: {} cores were named", common.cores.len()));
        }
        if let Some(wrong) = common.cores.iter().find(|c| !have.contains(c)) {
            return Err(format!(
                "core {wrong} is not among those that raidd may use: {have:?}; name others with --cores"
            ));
        }
        return Ok(common.cores.clone());
    }
    let n = common.reactors.unwrap_or_else(|| have.len().saturating_sub(1).clamp(1, 4));
    if n == 0 || n > 64 {
        return Err(format!("{n} reactors are not possible: give 1 to 64"));
    }
    // From the last core down: the first ones have the most interrupts.
    Ok((0..n).map(|i| have.iter().rev().nth(i % have.len().max(1)).copied().unwrap_or(i)).collect())
}

impl Daemon {
    /// Starts reactors and target; nothing is assembled or exported yet.
    pub fn start(common: Common, state: StateDir) -> Result<Arc<Daemon>, String> {
        let polling = match common.polling {
            Polling::Adaptive => reactor::Polling::Adaptive,
            Polling::Busy => reactor::Polling::Busy,
        };
        let region = u64::from(common.buffer_mib) << 20;
        let scratch = u64::from(common.scratch_mib) << 20;
        if region < scratch + (8 << 20) {
            return Err(format!(
                "{} MiB of buffers leave too little beside {} MiB of scratch memory: raise --buffer-mib",
                common.buffer_mib, common.scratch_mib
            ));
        }
        let (memory, reactors) = reactor::start(&cores(&common)?, region, polling).map_err(|e| {
            format!("the reactors cannot be started: {e}; fewer --reactors or less --buffer-mib need less")
        })?;
        let caches = common.volatile_cache.map(|seed| {
            tracing::warn!("members have simulated volatile caches, seed {seed}: a kill loses what is not flushed");
            volatile::Options { ignore_flush: common.volatile_cache_lies, ..volatile::Options::new(seed) }
        });
        let target = Target::new(&reactors).map_err(|e| e.to_string())?;
        let (revision_sender, revision) = watch::channel(0);
        let machine = Machine {
            memory: memory.clone(),
            reactors,
            scratch,
            events: Arc::new(EventHub::new(HISTORY)),
            revision: Arc::new(revision_sender),
        };
        Ok(Arc::new(Daemon {
            devices: Devices::new(memory, common.enable_faults, caches),
            machine,
            target,
            state: Mutex::new(state),
            arrays: Mutex::default(),
            waiting: Mutex::default(),
            volume_stats: Mutex::default(),
            times: Mutex::default(),
            replaced: Mutex::default(),
            common,
            started: SystemTime::now(),
            http: Mutex::default(),
            changing: tokio::sync::Mutex::default(),
            revision,
        }))
    }

    /// Where the page is, once it is.
    pub fn set_http(&self, address: SocketAddr) {
        *lock(&self.http) = Some(address);
    }

    pub(super) fn revision_receiver(&self) -> watch::Receiver<u64> {
        self.revision.clone()
    }

    pub(super) fn changed(&self) {
        self.machine.revision.send_modify(|r| *r += 1);
    }

    /// The running array of this name.
    pub fn array(&self, name: &str) -> Result<Arc<Array>, Error> {
        if let Some(array) = lock(&self.arrays).get(name) {
            return Ok(array.clone());
        }
        Err(match lock(&self.waiting).get(name) {
            Some(why) => {
                let text = format!(
                    "array '{name}' is not assembled: {}. 'raidctl array show {name}' tells when it is, 'raidctl array \
                     assemble' names its members anew",
                    why.reason
                );
                Error::new(Kind::FailedPrecondition, text).because("NOT_ASSEMBLED").with("array", name)
            }
            None => Error::no_array(name),
        })
    }

    /// Opening may touch slow devices.
    async fn open(self: &Arc<Self>, address: &str, create: Option<u64>) -> Result<Device, Error> {
        let (this, address) = (self.clone(), absolute(address));
        tokio::task::spawn_blocking(move || this.devices.open(&address, create))
            .await
            .map_err(|e| Error::new(Kind::Internal, format!("opening a device panicked: {e}")))?
            .map_err(|e| Error::new(Kind::FailedPrecondition, e).because("DEVICE_UNUSABLE"))
    }

    /// Opens what is to become a member.
    async fn open_new(self: &Arc<Self>, address: &str, create: Option<u64>) -> Result<Device, Error> {
        self.open(address, create).await.map_err(|mut e| {
            if create.is_none() && !std::path::Path::new(&absolute(address)).exists() {
                e.message += "; check the path, or give --size to create a sparse file there";
            }
            e
        })
    }

    /// Creates an array. Files that were made for it are removed again if it is refused.
    pub async fn create_array(self: &Arc<Self>, spec: ArraySpec) -> Result<(), Error> {
        let _change = self.changing.lock().await;
        let known = lock(&self.state).state.arrays.iter().any(|a| a.name == spec.name);
        if known || lock(&self.arrays).contains_key(&spec.name) {
            let text = format!(
                "there is an array '{0}' already: choose another name, or 'raidctl array delete {0}' first ('array stop {0}' if it could not be assembled)",
                spec.name
            );
            return Err(Error::new(Kind::AlreadyExists, text).with("array", &spec.name));
        }
        let absent: Vec<String> =
            spec.members.iter().map(|a| absolute(a)).filter(|a| !std::path::Path::new(a).exists()).collect();
        let result = self.create_array_inner(&spec).await;
        if result.is_err() && spec.create_size.is_some() {
            for path in absent.iter().filter(|a| !a.starts_with("ram:")) {
                // A refused operation changes nothing; a file that was never made cannot be removed.
                let _ = std::fs::remove_file(path);
            }
        }
        result
    }

    async fn create_array_inner(self: &Arc<Self>, spec: &ArraySpec) -> Result<(), Error> {
        let mut devices = Vec::new();
        for address in &spec.members {
            devices.push(self.open_new(address, spec.create_size).await?);
        }
        let core_spec = manager::ArraySpec {
            name: spec.name.clone(),
            uuid: random_uuid(),
            member_uuids: devices.iter().map(|_| random_uuid()).collect(),
            spares: spec.spares,
            shards: spec.shards.unwrap_or(16),
            extent: spec.extent,
            wipe: spec.wipe,
        };
        let infos = devices.iter().map(|d| d.info.clone()).collect();
        let manager = Manager::create(
            reactor::now(),
            manager::Config::default(),
            super::host::FIRST,
            random_uuid(),
            core_spec,
            infos,
        );
        let array = Array::start(&self.machine, devices, manager).await?;
        if let Err(e) = self.remember(&array) {
            // Made and forgotten would be worse than refused: whoever tries again finds the members taken. Nobody has
            // seen the array yet, so nothing is on it.
            lock(&self.state).forget(&array.name);
            let undone = array.command(manager::Command::Delete).await;
            array.leave().await;
            undone?;
            return Err(e);
        }
        self.adopt(array);
        Ok(())
    }

    /// Puts a started array among the others.
    fn adopt(&self, array: Arc<Array>) {
        lock(&self.waiting).remove(&array.name);
        lock(&self.arrays).insert(array.name.clone(), array);
        self.changed();
    }

    /// Remembers an array's members after a change that is done and stays: a state that cannot be saved is an event, for
    /// an error would say that nothing was changed.
    pub(super) fn remember_changed(&self, array: &Array) {
        if let Err(e) = self.remember(array) {
            self.not_saved(&array.name, &e);
        }
    }

    fn not_saved(&self, array: &str, e: &Error) {
        tracing::error!("array '{array}' was changed, but {e}; the next change that can be saved saves this one too");
        let resource = format!("arrays/{array}");
        self.machine.events.publish(manager::Severity::Error, "state-not-saved", &resource, &e.message);
    }

    fn remember(&self, array: &Array) -> Result<(), Error> {
        let status = array.status();
        let mut state = lock(&self.state);
        state.remember(KnownArray {
            name: status.name.clone(),
            uuid: uuid::Uuid::from_bytes(status.uuid).to_string(),
            addresses: status.members.iter().map(|m| m.address.clone()).collect(),
        });
        state.save().map_err(|e| Error::new(Kind::Device, e))
    }

    /// Assembles an array from devices at these addresses.
    pub async fn assemble(self: &Arc<Self>, addresses: &[String], force: bool) -> Result<String, Error> {
        let _change = self.changing.lock().await;
        let mut devices = Vec::new();
        for address in addresses {
            devices.push(self.open(address, None).await?);
        }
        let array = self.assemble_devices(devices, force, None).await?;
        let name = array.name.clone();
        if lock(&self.arrays).contains_key(&name) {
            array.leave().await;
            let text = format!("an array of the name '{name}' is assembled already: stop that one first");
            return Err(Error::new(Kind::AlreadyExists, text).with("array", &name));
        }
        array.release_unused().await;
        self.remember_changed(&array);
        self.adopt(array);
        self.restore_exports(&name).await;
        Ok(name)
    }

    /// Assembles; with `expect`, the array of that UUID from whichever of the devices belong to it.
    async fn assemble_devices(
        self: &Arc<Self>,
        devices: Vec<Device>,
        force: bool,
        expect: Option<[u8; 16]>,
    ) -> Result<Arc<Array>, Error> {
        let infos = devices.iter().map(|d| d.info.clone()).collect();
        let manager = Manager::assemble(
            reactor::now(),
            manager::Config { expect, ..manager::Config::default() },
            super::host::FIRST,
            random_uuid(),
            infos,
            force,
        );
        Array::start(&self.machine, devices, manager).await
    }

    /// Assembles what the state directory knows. An array with members missing is waited for, then assembled without
    /// them; one that cannot be assembled is said, and the others go on.
    pub async fn assemble_known(self: &Arc<Self>) {
        let known = lock(&self.state).state.arrays.clone();
        // At once, so that nobody is told that there is no such array.
        lock(&self.waiting).extend(known.iter().map(|a| (a.name.clone(), Waiting::reading())));
        for array in known {
            let wait = Duration::from_secs(self.common.assembly_wait);
            let missing = |addresses: &[String]| -> Vec<String> {
                // A daemon that was killed holds its members until the kernel has ended its I/O.
                let there = |a: &Path| a.exists() && !backing::is_locked(a);
                addresses.iter().filter(|a| !a.starts_with("ram:") && !there(Path::new(a))).cloned().collect()
            };
            let absent = missing(&array.addresses);
            if !absent.is_empty() {
                let text = format!("waits {} s for {}", wait.as_secs(), absent.join(", "));
                tracing::warn!("array '{}' {text}", array.name);
                lock(&self.waiting).insert(array.name.clone(), Waiting { refused: false, reason: text });
                self.changed();
                let begin = tokio::time::Instant::now();
                while begin.elapsed() < wait && !missing(&array.addresses).is_empty() {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
            // From here on as any other change: an operator may have assembled or forgotten the array meanwhile, and one
            // array assembled twice would have two histories.
            let _change = self.changing.lock().await;
            let wanted = lock(&self.state).state.arrays.iter().any(|a| a.name == array.name);
            if !wanted || lock(&self.arrays).contains_key(&array.name) {
                continue;
            }
            let mut devices = Vec::new();
            for address in &array.addresses {
                match self.open(address, None).await {
                    Ok(device) => devices.push(device),
                    Err(e) => tracing::warn!("array '{}' goes on without a member: {e}", array.name),
                }
            }
            let expect = uuid::Uuid::parse_str(&array.uuid).ok().map(uuid::Uuid::into_bytes);
            match self.assemble_devices(devices, false, expect).await {
                Ok(started) => {
                    started.release_unused().await;
                    self.remember_changed(&started);
                    self.adopt(started);
                    self.restore_exports(&array.name).await;
                }
                Err(e) => {
                    let text = format!("array '{}' was not assembled: {e}", array.name);
                    tracing::error!("{text}");
                    let reason = format!("it was not assembled: {}", e.message);
                    lock(&self.waiting).insert(array.name.clone(), Waiting { refused: true, reason });
                    let resource = format!("arrays/{}", array.name);
                    self.machine.events.publish(manager::Severity::Error, "array-not-assembled", &resource, &text);
                    self.changed();
                }
            }
        }
    }

    async fn restore_exports(self: &Arc<Self>, array: &str) {
        let exports: Vec<Export> = lock(&self.state)
            .state
            .exports
            .iter()
            .filter(|e| e.volume.split('/').next() == Some(array))
            .cloned()
            .collect();
        let mut served = Vec::new();
        for export in exports {
            match self.serve(&export, false).await {
                Ok(()) => served.push(export),
                Err(e) => self.not_restored(&export, &e),
            }
        }
        // Listeners last. A host whose connection broke with the former process comes back at once, and would take the
        // namespaces that are not there yet for deleted, with the file systems on them.
        for export in served {
            let (target, spec) = (self.target.clone(), export.clone());
            let listening = tokio::task::spawn_blocking(move || open_listeners(&target, &spec))
                .await
                .unwrap_or_else(|e| Err(Error::new(Kind::Internal, format!("the target panicked: {e}"))));
            if let Err(e) = listening {
                self.not_restored(&export, &e);
            }
        }
    }

    fn not_restored(&self, export: &Export, e: &Error) {
        let text = format!("the export of {} as {} could not be restored: {e}", export.volume, export.nqn);
        tracing::error!("{text}");
        let resource = format!("exports/{}", export.nqn);
        self.machine.events.publish(manager::Severity::Error, "export-not-restored", &resource, &text);
    }

    /// Refuses while a volume of the array (or one of its volumes) is exported.
    fn refuse_exported(&self, array: &str, volume: Option<&str>) -> Result<(), Error> {
        let state = lock(&self.state);
        let used = state.state.exports.iter().find(|e| match volume {
            Some(volume) => e.volume == format!("{array}/{volume}"),
            None => e.volume.split('/').next() == Some(array),
        });
        match used {
            None => Ok(()),
            Some(e) => Err(Error::new(
                Kind::FailedPrecondition,
                format!("volume {} is exported as {}: 'raidctl export delete {}' first", e.volume, e.nqn, e.nqn),
            )
            .because("EXPORTED")
            .with("nqn", &e.nqn)),
        }
    }

    /// Stops or deletes an array.
    pub async fn end_array(self: &Arc<Self>, name: &str, delete: bool) -> Result<(), Error> {
        let _change = self.changing.lock().await;
        if lock(&self.waiting).contains_key(name) {
            return self.end_waiting(name, delete);
        }
        let array = self.array(name)?;
        self.refuse_exported(name, None)?;
        let command = if delete { manager::Command::Delete } else { manager::Command::Stop };
        array.command(command).await?;
        lock(&self.arrays).remove(name);
        array.leave().await;
        let saved = self.forget(name);
        if let Err(e) = saved {
            self.not_saved(name, &e);
        }
        self.changed();
        Ok(())
    }

    /// Forgets an array that is waited for or that could not be assembled. Its members are not touched.
    fn end_waiting(&self, name: &str, delete: bool) -> Result<(), Error> {
        if delete {
            let text = format!(
                "array '{name}' is not assembled, so its members cannot be erased: 'raidctl array stop {name}' makes raidd \
                 forget it and leaves them as they are; to use them for something else, name them with --wipe"
            );
            return Err(Error::new(Kind::FailedPrecondition, text).because("NOT_ASSEMBLED").with("array", name));
        }
        self.refuse_exported(name, None)?;
        self.forget(name)?;
        lock(&self.waiting).remove(name);
        self.changed();
        Ok(())
    }

    fn forget(&self, name: &str) -> Result<(), Error> {
        let mut state = lock(&self.state);
        state.forget(name);
        state.save().map_err(|e| Error::new(Kind::Device, e))
    }

    pub(super) async fn add_device(
        self: &Arc<Self>,
        name: &str,
        device: NewDevice,
        command: impl FnOnce(manager::DeviceInfo) -> manager::Command,
    ) -> Result<manager::Answer, Error> {
        // One at a time: a refusal removes the file that it made, which another call may have opened by then.
        let _change = self.changing.lock().await;
        let array = self.array(name)?;
        let path = absolute(&device.address);
        let made = device.create_size.is_some() && !std::path::Path::new(&path).exists();
        array.release_failed(&path).await;
        let open = self.open_new(&device.address, device.create_size).await?;
        let info = open.info.clone();
        let result = array.command_with(open, command(info)).await;
        if result.is_err() && made {
            // A refused operation changes nothing.
            let _ = std::fs::remove_file(&path);
        }
        let answer = result?;
        array.release_unused().await;
        self.remember_changed(&array);
        Ok(answer)
    }

    pub(super) async fn delete_volume(self: &Arc<Self>, array: &str, volume: &str) -> Result<(), Error> {
        let _change = self.changing.lock().await;
        let running = self.array(array)?;
        let status = running.status();
        let found = status.volumes.iter().find(|v| v.name == volume).ok_or_else(|| Error::no_volume(array, volume))?;
        self.refuse_exported(array, Some(volume))?;
        running.command(manager::Command::DeleteVolume(found.id)).await?;
        lock(&self.volume_stats).remove(&format!("{array}/{volume}"));
        Ok(())
    }

    /// Exports a volume and remembers it.
    pub(super) async fn create_export(self: &Arc<Self>, spec: ExportSpec) -> Result<u32, Error> {
        let _change = self.changing.lock().await;
        let nsid = {
            let state = lock(&self.state);
            let taken: Vec<u32> = state.state.exports.iter().filter(|e| e.nqn == spec.nqn).map(|e| e.nsid).collect();
            match spec.nsid {
                Some(nsid) if taken.contains(&nsid) => {
                    let text = format!("subsystem {} has a namespace {nsid} already: choose another", spec.nqn);
                    return Err(Error::new(Kind::AlreadyExists, text));
                }
                Some(nsid) => nsid,
                None => (1..).find(|n| !taken.contains(n)).unwrap_or(1),
            }
        };
        let (hosts, any_host) = match spec.hosts {
            Hosts::Any => (Vec::new(), true),
            Hosts::Only(hosts) => (hosts, false),
        };
        let volume = format!("{}/{}", spec.array, spec.volume);
        if let Some(e) = lock(&self.state).state.exports.iter().find(|e| e.volume == volume) {
            let text = format!("volume {volume} is exported already, as namespace {} of {}", e.nsid, e.nqn);
            return Err(Error::new(Kind::AlreadyExists, text).with("nqn", &e.nqn));
        }
        let listen = spec.listen.iter().map(SocketAddr::to_string).collect();
        let export = Export { volume, nqn: spec.nqn, nsid, listen, hosts, any_host };
        self.serve(&export, true).await?;
        let saved = {
            let mut state = lock(&self.state);
            state.state.exports.push(export.clone());
            let saved = state.save();
            if saved.is_err() {
                state.state.exports.retain(|e| *e != export);
            }
            saved
        };
        if let Err(e) = saved {
            self.unserve(&export).await?;
            return Err(Error::new(Kind::Device, e));
        }
        self.changed();
        Ok(nsid)
    }

    /// Makes the target serve an export; with `listen` its listeners are opened too. What was begun is undone if a part fails.
    async fn serve(self: &Arc<Self>, export: &Export, listen: bool) -> Result<(), Error> {
        let (array_name, volume_name) = export.volume.split_once('/').unwrap_or((&export.volume, ""));
        let array = self.array(array_name)?;
        let status = array.status();
        let v = status
            .volumes
            .iter()
            .find(|v| v.name == volume_name)
            .ok_or_else(|| Error::no_volume(array_name, volume_name))?;
        let stripe = u32::try_from(v.geometry.stripe_bytes()).unwrap_or(0);
        let info = NamespaceInfo {
            uuid: v.uuid,
            nguid: v.uuid,
            block_size: v.block_size,
            size: v.size,
            preferred_write: 4096,
            optimal_io: stripe,
            atomic_write: v.block_size,
            volatile_cache: true,
            deallocate: true,
        };
        let block = BlockInfo {
            address: export.volume.clone(),
            size: v.size,
            block_size: v.block_size,
            physical_block_size: 4096,
            volatile_cache: true,
            fast_zero: true,
            unmap: true,
            rotational: false,
            optimal_io: stripe,
            memory_alignment: 512,
        };
        let stats = lock(&self.volume_stats).entry(export.volume.clone()).or_default().clone();
        let (key, id) = (array.key, v.id);
        let factory: nvmf::DeviceFactory = Arc::new(move |_cx| {
            let lane = volume::registry::lane(key).ok_or("the array has left this reactor")?;
            let volume = Volume::new(lane, id, block.clone()).ok_or("the volume is not in this reactor's view")?;
            Ok(Box::new(StatsDevice::new(Box::new(volume), &stats)) as Box<dyn BlockDevice>)
        });
        let (target, export) = (self.target.clone(), export.clone());
        let serial = uuid::Uuid::from_bytes(status.uuid).simple().to_string()[..20].to_string();
        tokio::task::spawn_blocking(move || configure(&target, &export, &serial, info, factory, listen))
            .await
            .map_err(|e| Error::new(Kind::Internal, format!("the target panicked: {e}")))?
    }

    pub(super) async fn delete_export(self: &Arc<Self>, nqn: &str, nsid: u32) -> Result<(), Error> {
        let _change = self.changing.lock().await;
        let export = lock(&self.state).state.exports.iter().find(|e| e.nqn == nqn && e.nsid == nsid).cloned();
        let Some(export) = export else { return Err(Error::no_export(nqn, nsid)) };
        self.unserve(&export).await?;
        let saved = {
            let mut state = lock(&self.state);
            state.state.exports.retain(|e| *e != export);
            state.save()
        };
        if let Err(e) = saved {
            let (array, _) = export.volume.split_once('/').unwrap_or((&export.volume, ""));
            self.not_saved(array, &Error::new(Kind::Device, e));
        }
        self.changed();
        Ok(())
    }

    /// Takes an export from the target, and its listeners where no other export needs them.
    async fn unserve(&self, export: &Export) -> Result<(), Error> {
        let others = lock(&self.state).state.exports.iter().filter(|e| *e != export).cloned().collect::<Vec<_>>();
        let (target, gone) = (self.target.clone(), export.clone());
        tokio::task::spawn_blocking(move || withdraw(&target, &gone, &others))
            .await
            .map_err(|e| Error::new(Kind::Internal, format!("the target panicked: {e}")))?
    }

    /// Orderly end: hosts are let go, arrays are flushed and marked clean, reactors stop.
    pub async fn shut_down(self: &Arc<Self>) -> Result<(), String> {
        let target = self.target.clone();
        let stopped = tokio::task::spawn_blocking(move || target.stop()).await.map_err(|e| e.to_string())?;
        let mut problems: Vec<String> = stopped.err().map(|e| e.to_string()).into_iter().collect();
        let arrays = std::mem::take(&mut *lock(&self.arrays));
        for (name, array) in arrays {
            // A member that was replaced is not looked for at the next start.
            self.remember_changed(&array);
            if let Err(e) = array.command(manager::Command::Stop).await {
                problems.push(format!("array '{name}' could not be stopped cleanly: {e}"));
            }
            array.leave().await;
        }
        for reactor in &self.machine.reactors {
            reactor.stop();
        }
        if problems.is_empty() { Ok(()) } else { Err(problems.join("; ")) }
    }

    pub(super) fn kind_of(&self, id: &str, kind: manager::OperationKind) -> OperationKind {
        match kind {
            manager::OperationKind::Rebuild if lock(&self.replaced).contains(id) => OperationKind::Replace,
            manager::OperationKind::Rebuild => OperationKind::Rebuild,
            manager::OperationKind::Resync => OperationKind::Resync,
            manager::OperationKind::Create => OperationKind::Initialize,
        }
    }
}

/// An address that means the same whatever the working directory of the next start is.
fn absolute(address: &str) -> String {
    let path = address.strip_prefix("file:").unwrap_or(address);
    if address.starts_with("ram:") {
        return address.to_string();
    }
    std::path::absolute(path).map_or_else(|_| path.to_string(), |p| p.display().to_string())
}

fn target_error(e: TargetError) -> Error {
    let kind = match &e {
        TargetError::Exists(_) => Kind::AlreadyExists,
        TargetError::NotFound(_) => Kind::NotFound,
        TargetError::Invalid(_) => Kind::InvalidArgument,
        TargetError::Listen { .. } => Kind::FailedPrecondition,
        TargetError::Device { .. } => Kind::Device,
        TargetError::Stopped => Kind::Unavailable,
    };
    Error::new(kind, e.to_string())
}

fn configure(
    target: &TargetHandle,
    export: &Export,
    serial: &str,
    info: NamespaceInfo,
    factory: nvmf::DeviceFactory,
    open_listeners: bool,
) -> Result<(), Error> {
    let hosts =
        if export.any_host { nvmf::Hosts::Any } else { nvmf::Hosts::Listed(export.hosts.iter().cloned().collect()) };
    let mut listen = BTreeSet::new();
    for text in &export.listen {
        match text.parse::<SocketAddr>() {
            Ok(addr) if addr.port() != 0 => listen.insert(addr),
            _ => {
                let text = format!("'{text}' is no address to listen on: give ADDRESS:PORT, and not port 0");
                return Err(Error::new(Kind::InvalidArgument, text));
            }
        };
    }
    let ports = nvmf::Ports::Listed(listen.clone());
    let existing = target.registry().subsystems.get(&export.nqn).cloned();
    let fresh = existing.is_none();
    match existing {
        None => {
            target.add_subsystem(&export.nqn, serial, "raidd", hosts).map_err(target_error)?;
            target.set_ports(&export.nqn, ports).map_err(target_error)?;
        }
        // Hosts and listeners are the subsystem's. Taking the first export's for the others too would open a volume to
        // hosts, or on addresses, that its own export does not name.
        Some(subsystem) if subsystem.hosts != hosts || subsystem.ports != ports => {
            let what = if subsystem.hosts != hosts { "allows other hosts" } else { "listens on other addresses" };
            let text = format!(
                "subsystem {} {what}, and all its namespaces share them: give the same --host and --listen as its other \
                 exports ('raidctl export list'), or another --nqn",
                export.nqn
            );
            return Err(Error::new(Kind::FailedPrecondition, text)
                .because("SUBSYSTEM_DIFFERS")
                .with("nqn", &export.nqn));
        }
        Some(_) => {}
    }
    let mut opened = Vec::new();
    let result = (|| {
        target.add_namespace(&export.nqn, export.nsid, info, factory)?;
        for addr in listen.into_iter().filter(|_| open_listeners) {
            if !target.listeners().contains(&addr) {
                opened.push(target.add_listener(addr)?);
            }
        }
        Ok(())
    })();
    result.map_err(|e| {
        for addr in opened {
            // Undoing what has just been done; what cannot be undone is said by the error that led here.
            let _ = target.remove_listener(addr);
        }
        let _ = if fresh {
            target.remove_subsystem(&export.nqn)
        } else {
            target.remove_namespace(&export.nqn, export.nsid)
        };
        target_error(e)
    })
}

/// Opens the listeners of an export that is served already, as far as they are not open.
fn open_listeners(target: &TargetHandle, export: &Export) -> Result<(), Error> {
    for addr in export.listen.iter().filter_map(|text| text.parse::<SocketAddr>().ok()) {
        if !target.listeners().contains(&addr) {
            target.add_listener(addr).map_err(target_error)?;
        }
    }
    Ok(())
}

fn withdraw(target: &TargetHandle, export: &Export, others: &[Export]) -> Result<(), Error> {
    let last = others.iter().all(|e| e.nqn != export.nqn);
    let removed =
        if last { target.remove_subsystem(&export.nqn) } else { target.remove_namespace(&export.nqn, export.nsid) };
    match removed {
        // An export that could not be restored is not there.
        Ok(()) | Err(TargetError::NotFound(_)) => {}
        Err(e) => return Err(target_error(e)),
    }
    for listen in &export.listen {
        let used = others.iter().any(|e| e.listen.contains(listen));
        if let (false, Ok(addr)) = (used, listen.parse::<SocketAddr>())
            && target.listeners().contains(&addr)
        {
            target.remove_listener(addr).map_err(target_error)?;
        }
    }
    Ok(())
}
