//! Arrays that run: a host on reactor 0, a lane on every reactor.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::rc::Rc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use raid_core::engine;
use raid_core::manager::{Answer, ArrayStatus, Command, DeviceId, ManageError, Manager};
use raid_core::view::MemberState;
use tokio::sync::{oneshot, watch};

use super::devices::Device;
use super::host::{ArrayHost, HostCommand, HostConfig};
use crate::control::error::{Error, Kind};
use crate::control::events::EventHub;
use crate::dma::Memory;
use crate::reactor::{self, ReactorHandle, Sender};
use crate::volume::{self, HostMessage, Lane, LaneConfig, LaneCounters, LaneMessage, LanePoller, Routes};

/// Mail that a box holds.
const MAILBOX: usize = 8192;

/// Number of a running array, for lanes to be found on their reactors.
static NEXT_KEY: AtomicU32 = AtomicU32::new(0);

/// What every array needs of the process.
#[derive(Clone)]
pub struct Machine {
    /// All buffer memory.
    pub memory: Memory,
    /// The reactors.
    pub reactors: Vec<ReactorHandle>,
    /// Bytes of scratch memory for each array and reactor.
    pub scratch: u64,
    /// Events.
    pub events: Arc<EventHub>,
    /// Changes with every state.
    pub revision: Arc<watch::Sender<u64>>,
}

/// A running array.
pub struct Array {
    /// Its name.
    pub name: String,
    /// Names its lanes on the reactors.
    pub key: u32,
    host: Sender<HostCommand>,
    status: watch::Receiver<Arc<ArrayStatus>>,
    devices: Mutex<BTreeMap<DeviceId, Device>>,
    routes: Routes,
    counters: Vec<Arc<LaneCounters>>,
    reactors: Vec<ReactorHandle>,
}

fn gone() -> Error {
    Error::new(Kind::Unavailable, "the array's host has stopped: assemble the array again")
}

impl Array {
    /// Starts an array with a manager that creates or assembles it; ends when that has succeeded.
    pub async fn start(machine: &Machine, devices: Vec<Device>, manager: Manager) -> Result<Arc<Array>, Error> {
        let key = NEXT_KEY.fetch_add(1, Ordering::Relaxed);
        let routes: Routes = (0..1024u32).map(|s| AtomicU16::new((s % machine.reactors.len() as u32) as u16)).collect();
        let (host_sender, host_box) = reactor::mailbox::<HostMessage>(MAILBOX, machine.reactors[0].waker());
        let (commands, command_box) = reactor::mailbox::<HostCommand>(256, machine.reactors[0].waker());
        let latest = Arc::new(AtomicU64::new(u64::MAX));
        let (lanes, counters) = start_lanes(machine, key, &routes, &host_sender, &latest).await?;
        let (status_sender, status) = watch::channel(Arc::new(ArrayStatus::default()));
        let (started, outcome) = oneshot::channel();
        let config = HostConfig {
            manager,
            devices: devices.iter().map(|d| (d.info.id, d.handle.clone())).collect(),
            lanes,
            inbox: host_box,
            commands: command_box,
            routes: routes.clone(),
            latest,
            status: status_sender,
            events: machine.events.clone(),
            started,
            revision: machine.revision.clone(),
        };
        machine.reactors[0]
            .run(Box::new(move |reactor| reactor.add(Box::new(ArrayHost::new(config, format!("array-{key}"))))))
            .map_err(|e| Error::new(Kind::Unavailable, e))?;
        let mut array = Array {
            // Known once the manager has created or assembled the array.
            name: String::new(),
            key,
            host: commands,
            status,
            devices: Mutex::new(devices.into_iter().map(|d| (d.info.id, d)).collect()),
            routes,
            counters,
            reactors: machine.reactors.clone(),
        };
        let outcome = outcome.await.unwrap_or_else(|_| {
            Err(ManageError { kind: raid_core::manager::ErrorKind::Device, message: gone().message })
        });
        if let Err(e) = outcome {
            array.leave().await;
            return Err(e.into());
        }
        array.name = array.status().name.clone();
        Ok(Arc::new(array))
    }

    /// A snapshot.
    pub fn status(&self) -> Arc<ArrayStatus> {
        self.status.borrow().clone()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<DeviceId, Device>> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The open devices.
    pub fn devices(&self) -> BTreeMap<DeviceId, Device> {
        self.lock().clone()
    }

    /// Gives a command to the manager and waits for its end.
    pub async fn command(&self, command: Command) -> Result<Answer, Error> {
        let (reply, answer) = oneshot::channel();
        self.tell(HostCommand::Manage(command, reply)).await?;
        Ok(answer.await.map_err(|_| gone())??)
    }

    /// A command that names a new device. A refusal closes the device again.
    pub async fn command_with(&self, device: Device, command: Command) -> Result<Answer, Error> {
        let id = device.info.id;
        self.tell(HostCommand::Device(id, Some(device.handle.clone()))).await?;
        self.lock().insert(id, device);
        let result = self.command(command).await;
        if result.is_err() {
            self.lock().remove(&id);
            self.tell(HostCommand::Device(id, None)).await?;
        }
        result
    }

    /// Closes devices that no member uses any more, so that they can be used for something else.
    pub async fn release_unused(&self) {
        let status = self.status();
        let used: Vec<DeviceId> = status.members.iter().filter_map(|m| m.device).collect();
        let unused: Vec<DeviceId> = self.lock().keys().filter(|d| !used.contains(d)).copied().collect();
        self.release(unused).await;
    }

    /// Closes the device of a failed member that is behind this path, so that it can be added again.
    pub async fn release_failed(&self, path: &str) {
        let place = |path: &str| std::fs::metadata(path).map(|m| (m.dev(), m.ino(), m.rdev())).ok();
        let wanted = place(path);
        let status = self.status();
        let failed = status.members.iter().filter(|m| m.state == MemberState::Failed);
        let same = failed.filter(|m| wanted.is_some() && place(&m.address) == wanted);
        self.release(same.filter_map(|m| m.device).collect()).await;
    }

    async fn release(&self, devices: Vec<DeviceId>) {
        for id in devices {
            let Some(device) = self.lock().remove(&id) else { continue };
            let handle = Arc::downgrade(&device.handle);
            drop(device);
            // If the host has gone, so have its handles.
            let _ = self.tell(HostCommand::Device(id, None)).await;
            // It is free when the host and the lanes have let go of it.
            for _ in 0..200 {
                if handle.strong_count() == 0 {
                    break;
                }
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        }
    }

    async fn tell(&self, command: HostCommand) -> Result<(), Error> {
        let mut command = command;
        for _ in 0..1000 {
            match self.host.try_send(command) {
                Ok(()) => return Ok(()),
                Err(back) => command = back,
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        Err(Error::new(
            Kind::Unavailable,
            "the array's host does not take commands: it is overloaded or hangs; see the log",
        ))
    }

    /// Takes the array from its reactors and closes its devices; ends when all of it is gone.
    pub async fn leave(&self) {
        if self.tell(HostCommand::Leave).await.is_err() {
            return;
        }
        self.lock().clear();
        let key = self.key;
        for reactor in &self.reactors {
            // A reactor that has stopped has dropped its lanes.
            let _ = reactor.run(Box::new(move |_| volume::registry::remove(key)));
        }
        // The lanes and the host hold the last handles; they go with their pollers.
        for _ in 0..1000 {
            let mut left = 0;
            for reactor in &self.reactors {
                let (send, receive) = oneshot::channel();
                let work = Box::new(move |r: &mut reactor::Reactor| {
                    // The asker waits for it.
                    let _ = send.send(r.pollers_named(&format!("array-{key}")));
                });
                if reactor.run(work).is_ok() {
                    left += receive.await.unwrap_or(0);
                }
            }
            if left == 0 {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
        tracing::error!(
            array = self.name,
            "an array does not leave its reactors; its members stay locked until raidd ends"
        );
    }

    /// Shards by reactor.
    pub fn shards_of(&self, reactor: u16) -> Vec<u16> {
        let shards = self.status().shards;
        (0..shards).filter(|s| self.routes[*s as usize].load(Ordering::Relaxed) == reactor).collect()
    }

    /// The engines' counts, added up; see [`LaneCounters::load`].
    pub fn counters(&self) -> [u64; 8] {
        let mut sum = [0; 8];
        for lane in &self.counters {
            for (s, v) in sum.iter_mut().zip(lane.load()) {
                *s += v;
            }
        }
        sum
    }
}

type Lanes = (Vec<Sender<LaneMessage>>, Vec<Arc<LaneCounters>>);

async fn start_lanes(
    machine: &Machine,
    key: u32,
    routes: &Routes,
    host: &Sender<HostMessage>,
    latest: &Arc<AtomicU64>,
) -> Result<Lanes, Error> {
    let mail: Vec<_> = machine.reactors.iter().map(|r| reactor::mailbox::<LaneMessage>(MAILBOX, r.waker())).collect();
    let senders: Vec<_> = mail.iter().map(|(sender, _)| sender.clone()).collect();
    let counters: Vec<Arc<LaneCounters>> = senders.iter().map(|_| Arc::default()).collect();
    let scratch_len = machine.scratch;
    for (i, (reactor, (_, inbox))) in machine.reactors.iter().zip(mail).enumerate() {
        let peers = senders.iter().enumerate().map(|(j, s)| (j != i).then(|| s.clone())).collect();
        let (memory, routes, host) = (machine.memory.clone(), routes.clone(), host.clone());
        let (counters, latest) = (counters[i].clone(), latest.clone());
        let (send, receive) = oneshot::channel();
        reactor
            .run(Box::new(move |reactor| {
                let Some(scratch) = volume::registry::take_scratch(reactor.pool(), scratch_len) else {
                    // The asker waits for it.
                    let _ = send.send(false);
                    return;
                };
                let engine = engine::Config {
                    requests: 2048,
                    stripes: 1024,
                    ios: 8192,
                    scratch,
                    scratch_len,
                    handle_every_release: false,
                };
                let config =
                    LaneConfig { reactor: i as u16, engine, memory, routes, peers, host, counters, latest, inbox };
                let lane = Rc::new(RefCell::new(Lane::new(config)));
                volume::registry::add(key, lane.clone(), scratch);
                reactor.add(Box::new(LanePoller::new(lane, format!("array-{key}"))));
                // The asker waits for it.
                let _ = send.send(true);
            }))
            .map_err(|e| Error::new(Kind::Unavailable, e))?;
        if !receive.await.unwrap_or(false) {
            for sender in &senders {
                // A full box cannot be: the lane has just been made.
                let _ = sender.try_send(LaneMessage::Leave);
            }
            for reactor in &machine.reactors {
                // A reactor that has stopped has dropped its lanes.
                let _ = reactor.run(Box::new(move |_| volume::registry::remove(key)));
            }
            return Err(Error::new(
                Kind::Exhausted,
                "there is no buffer memory left for another array: start raidd with a larger --buffer-mib",
            ));
        }
    }
    Ok((senders, counters))
}
