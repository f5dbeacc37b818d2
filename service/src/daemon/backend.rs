//! The daemon as the control plane sees it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use raid_core::action::MemberId;
use raid_core::geometry::MAX_CHUNK;
use raid_core::manager::{self, Command, Health, Severity};
use raid_core::units::Bytes;
use raid_core::view;
use tokio::sync::watch;

use super::arrays::Array as Running;
use super::machine::{Daemon, lock, random_uuid};
use crate::block::fault;
use crate::block::stats::Stats;
use crate::control::backend::{
    Array, ArrayCounters, ArraySpec, ArrayState, Backend, Counters, Export, ExportSpec, ExportState, Fault, FaultSpec,
    Hosts, Io, IoCounters, Member, MemberCounters, MemberState, NewDevice, Operation, OperationState, Reactor, Result,
    System, Volume, VolumeCounters, VolumeSpec, VolumeState,
};
use crate::control::error::{Error, Kind};
use crate::control::events::EventHub;

/// A handle to the daemon for the control plane.
#[derive(Clone)]
pub struct Control(pub Arc<Daemon>);

fn uuid_text(uuid: [u8; 16]) -> String {
    uuid::Uuid::from_bytes(uuid).to_string()
}

fn member(m: &manager::MemberStatus, running: &Running, extent: u64) -> Member {
    let devices = running.devices();
    let device = m.device.and_then(|d| devices.get(&d));
    let totals = device.map(|d| d.stats.totals()).unwrap_or_default();
    let state = match m.state {
        view::MemberState::Active if m.rebuilding => MemberState::Rebuilding,
        view::MemberState::Active => MemberState::Active,
        view::MemberState::Spare => MemberState::Spare,
        _ if m.missing => MemberState::Missing,
        _ => MemberState::Failed,
    };
    Member {
        number: m.id.0,
        uuid: uuid_text(m.uuid),
        address: m.address.clone(),
        state,
        reason: m.reason.clone(),
        size: m.size,
        block_size: device.map_or(0, |d| d.block.block_size),
        used: u64::from(m.extents_used) * extent,
        read_errors: totals.kinds[0].errors,
        write_errors: totals.kinds[1].errors + totals.kinds[2].errors,
        repaired: m.read_repairs,
    }
}

fn volume(v: &manager::VolumeStatus) -> Volume {
    Volume {
        name: v.name.clone(),
        number: v.id.0,
        uuid: uuid_text(v.uuid),
        state: match v.health {
            Health::Healthy => VolumeState::Healthy,
            Health::Degraded => VolumeState::Degraded,
            Health::Rebuilding => VolumeState::Rebuilding,
            Health::Resyncing => VolumeState::Resyncing,
            Health::Failed => VolumeState::Offline,
        },
        reason: v.reason.clone(),
        level: v.geometry.level,
        width: v.geometry.width,
        chunk: v.geometry.chunk,
        size: v.size,
        allocated: u64::from(v.groups) * u64::from(v.geometry.width) * v.geometry.extent,
        block_size: v.block_size,
        policy: v.policy,
        dirty: v.dirty,
        groups: v.groups,
        degraded_groups: v.groups_degraded,
        unsynced_groups: v.groups_unsynced,
        regions: v.regions,
    }
}

fn array(running: &Running) -> Array {
    let s = running.status();
    let members: Vec<Member> = s.members.iter().map(|m| member(m, running, s.extent)).collect();
    let volumes: Vec<Volume> = s.volumes.iter().map(volume).collect();
    let worst = |state| volumes.iter().find(|v| v.state == state);
    let failed = members.iter().find(|m| matches!(m.state, MemberState::Failed | MemberState::Missing));
    let (state, reason) = if matches!(s.state, manager::ArrayState::Stopping | manager::ArrayState::Stopped) {
        (ArrayState::Stopped, "it is being stopped".to_string())
    } else if s.state == manager::ArrayState::Failed {
        (ArrayState::Failed, "no member is left that could hold the configuration".to_string())
    } else if let Some(v) = worst(VolumeState::Offline) {
        (ArrayState::Failed, format!("volume '{}': {}", v.name, v.reason))
    } else if let Some(v) = worst(VolumeState::Degraded) {
        (ArrayState::Degraded, format!("volume '{}': {}", v.name, v.reason))
    } else if let Some(v) = worst(VolumeState::Rebuilding).or(worst(VolumeState::Resyncing)) {
        (ArrayState::Rebuilding, format!("volume '{}': {}", v.name, v.reason))
    } else if let Some(m) = failed.filter(|_| volumes.is_empty()) {
        (ArrayState::Degraded, format!("member {} is not there: {}", m.number, m.reason))
    } else {
        (ArrayState::Healthy, String::new())
    };
    let present: Vec<_> = s.members.iter().filter(|m| m.state == view::MemberState::Active).collect();
    Array {
        name: s.name.clone(),
        uuid: uuid_text(s.uuid),
        state,
        reason,
        extent: s.extent,
        shards: s.shards,
        generation: s.generation,
        capacity: present.iter().map(|m| u64::from(m.extents) * s.extent).sum(),
        free: present.iter().map(|m| u64::from(m.extents - m.extents_used) * s.extent).sum(),
        members,
        volumes,
    }
}

fn io(stats: &Stats) -> Io {
    let (t, latencies) = (stats.totals(), stats.latency_classes());
    let kind = |i: usize| IoCounters {
        ops: t.kinds[i].ops,
        errors: t.kinds[i].errors,
        bytes: t.kinds[i].bytes,
        time: Duration::from_nanos(t.kinds[i].nanos),
        latencies: latencies[i],
    };
    Io { read: kind(0), write: kind(1), flush: kind(2), in_flight: t.in_flight }
}

impl Control {
    fn running(&self) -> Vec<Arc<Running>> {
        lock(&self.0.arrays).values().cloned().collect()
    }

    /// An operation's array and number.
    fn operation(&self, id: &str) -> Result<(Arc<Running>, u64)> {
        let none = || Error::no_operation(id);
        let (array, number) = id.rsplit_once('.').ok_or_else(none)?;
        let running = lock(&self.0.arrays).get(array).cloned().ok_or_else(none)?;
        Ok((running, number.parse().map_err(|_| none())?))
    }
}

impl Backend for Control {
    fn arrays(&self) -> Vec<Array> {
        let mut out: BTreeMap<String, Array> = self.running().iter().map(|a| (a.name.clone(), array(a))).collect();
        for (name, waiting) in lock(&self.0.waiting).iter() {
            out.entry(name.clone()).or_insert_with(|| Array {
                name: name.clone(),
                uuid: String::new(),
                state: if waiting.refused { ArrayState::Failed } else { ArrayState::Assembling },
                reason: waiting.reason.clone(),
                extent: 0,
                shards: 0,
                generation: 0,
                capacity: 0,
                free: 0,
                members: Vec::new(),
                volumes: Vec::new(),
            });
        }
        out.into_values().collect()
    }

    fn exports(&self) -> Vec<Export> {
        let exports = lock(&self.0.state).state.exports.clone();
        let registry = self.0.target.registry();
        let links = self.0.target.connections();
        let mut out: Vec<Export> = exports
            .into_iter()
            .map(|e| {
                let served = registry.subsystems.get(&e.nqn).is_some_and(|s| s.namespaces.contains_key(&e.nsid));
                let (array, volume) = e.volume.split_once('/').unwrap_or((&e.volume, ""));
                Export {
                    array: array.to_string(),
                    volume: volume.to_string(),
                    controllers: links.iter().filter(|l| l.subsystem == e.nqn && l.qid == 0).count() as u32,
                    nqn: e.nqn.clone(),
                    nsid: e.nsid,
                    listen: e.listen.iter().filter_map(|l| l.parse().ok()).collect(),
                    hosts: if e.any_host { Hosts::Any } else { Hosts::Only(e.hosts.clone()) },
                    state: if served { ExportState::Active } else { ExportState::Offline },
                    reason: if served { String::new() } else { "its array is not assembled".to_string() },
                }
            })
            .collect();
        out.sort_by(|a, b| (&a.nqn, a.nsid).cmp(&(&b.nqn, b.nsid)));
        out
    }

    fn operations(&self) -> Vec<Operation> {
        let mut times = lock(&self.0.times);
        let now = SystemTime::now();
        let mut out = Vec::new();
        for running in self.running() {
            let status = running.status();
            for o in &status.operations {
                let id = format!("{}.{}", running.name, o.id);
                let live = o.state == manager::OperationState::Running;
                let time = times.entry(id.clone()).or_insert((now, None));
                if !live && time.1.is_none() {
                    time.1 = Some(now);
                }
                out.push(Operation {
                    kind: self.0.kind_of(&id, o.kind),
                    array: running.name.clone(),
                    member: o.member.map(|m| m.0),
                    volume: o.volume.and_then(|v| status.volumes.iter().find(|x| x.id == v)).map(|v| v.name.clone()),
                    state: match o.state {
                        manager::OperationState::Running => OperationState::Running,
                        manager::OperationState::Done => OperationState::Succeeded,
                        manager::OperationState::Failed => OperationState::Failed,
                        manager::OperationState::Cancelled => OperationState::Cancelled,
                    },
                    reason: o.reason.clone(),
                    done: o.done,
                    total: o.total,
                    started: time.0,
                    ended: time.1,
                    can_cancel: live,
                    can_pause: false,
                    id,
                });
            }
        }
        out
    }

    fn faults(&self) -> Vec<Fault> {
        let mut out = Vec::new();
        for running in self.running() {
            let devices = running.devices();
            for m in &running.status().members {
                let faults = m.device.and_then(|d| devices.get(&d)).and_then(|d| d.faults.as_ref());
                for f in faults.map(|f| f.list()).unwrap_or_default() {
                    let spec = FaultSpec { kinds: f.kinds, offset: f.offset, len: f.len, effect: f.effect };
                    out.push(Fault { id: f.id, array: running.name.clone(), member: m.id.0, spec });
                }
            }
        }
        out.sort_by_key(|f| f.id);
        out
    }

    fn system(&self) -> System {
        let d = &self.0;
        let arrays = self.running();
        let reactors: Vec<Reactor> = d
            .machine
            .reactors
            .iter()
            .map(|r| {
                let stats = r.stats();
                let (busy, idle) = (Duration::from_nanos(stats.busy_ns), Duration::from_nanos(stats.idle_ns));
                Reactor {
                    number: r.number(),
                    core: r.core().map(|c| c as u32),
                    busy,
                    idle,
                    busy_share: r.busy_share(),
                    shards: arrays.iter().map(|a| (a.name.clone(), a.shards_of(r.number()))).collect(),
                }
            })
            .collect();
        let (used, buffers) =
            d.machine.reactors.iter().map(|r| r.pool_use()).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
        System {
            version: env!("CARGO_PKG_VERSION").to_string(),
            pid: std::process::id(),
            started: d.started,
            busy_polling: d.common.polling == super::cli::Polling::Busy,
            faults_enabled: d.common.enable_faults,
            resident: resident(),
            buffers,
            buffers_used: used,
            http: *lock(&d.http),
            reactors,
        }
    }

    fn counters(&self) -> Counters {
        let mut out = Counters::default();
        for (name, stats) in lock(&self.0.volume_stats).iter() {
            let (array, volume) = name.split_once('/').unwrap_or((name, ""));
            out.volumes.push(VolumeCounters { array: array.to_string(), volume: volume.to_string(), io: io(stats) });
        }
        for running in self.running() {
            let devices = running.devices();
            for m in &running.status().members {
                let io = m.device.and_then(|d| devices.get(&d)).map(|d| io(&d.stats)).unwrap_or_default();
                out.members.push(MemberCounters { array: running.name.clone(), member: m.id.0, io });
            }
            let [full, rmw, rcw, activations, merged, degraded, repairs, failed] = running.counters();
            out.arrays.push(ArrayCounters {
                array: running.name.clone(),
                full_stripe: full,
                read_modify_write: rmw,
                reconstruct_write: rcw,
                activations,
                merged,
                degraded_reads: degraded,
                read_repairs: repairs,
                failed_requests: failed,
            });
        }
        out
    }

    fn events(&self) -> &EventHub {
        &self.0.machine.events
    }

    fn revision(&self) -> watch::Receiver<u64> {
        self.0.revision_receiver()
    }

    async fn create_array(&self, spec: ArraySpec) -> Result<()> {
        self.0.create_array(spec).await
    }

    async fn assemble_array(&self, addresses: Vec<String>, force: bool) -> Result<String> {
        self.0.assemble(&addresses, force).await
    }

    async fn stop_array(&self, array: &str) -> Result<()> {
        self.0.end_array(array, false).await
    }

    async fn delete_array(&self, array: &str) -> Result<()> {
        self.0.end_array(array, true).await
    }

    async fn add_member(&self, array: &str, device: NewDevice) -> Result<u16> {
        let wipe = device.wipe;
        let command = |info| Command::AddMember { device: info, uuid: random_uuid(), wipe };
        match self.0.add_device(array, device, command).await? {
            manager::Answer::Member(m) => Ok(m.0),
            other => Err(Error::new(Kind::Internal, format!("adding a member was answered with {other:?}"))),
        }
    }

    async fn fail_member(&self, array: &str, member: u16) -> Result<()> {
        self.0.array(array)?.command(Command::FailMember(MemberId(member))).await.map(drop)
    }

    async fn remove_member(&self, array: &str, member: u16) -> Result<()> {
        let running = self.0.array(array)?;
        running.command(Command::RemoveMember(MemberId(member))).await?;
        running.release_unused().await;
        self.0.remember_changed(&running);
        Ok(())
    }

    async fn replace_member(&self, array: &str, member: u16, with: Option<NewDevice>) -> Result<String> {
        let running = self.0.array(array)?;
        let before = running.status().operations.iter().map(|o| o.id).max().unwrap_or(0);
        let member = MemberId(member);
        match with {
            Some(device) => {
                let wipe = device.wipe;
                let command = |info| Command::ReplaceMember { member, device: Some(info), uuid: random_uuid(), wipe };
                self.0.add_device(array, device, command).await?;
            }
            None => {
                let command = Command::ReplaceMember { member, device: None, uuid: random_uuid(), wipe: false };
                running.command(command).await?;
                running.release_unused().await;
                self.0.remember_changed(&running);
            }
        }
        // The rebuild begins with the commit that recorded the replacement; an array without volumes has nothing to rebuild.
        for _ in 0..200 {
            let status = running.status();
            if let Some(o) =
                status.operations.iter().find(|o| o.id > before && o.kind == manager::OperationKind::Rebuild)
            {
                let id = format!("{array}.{}", o.id);
                lock(&self.0.replaced).insert(id.clone());
                return Ok(id);
            }
            if status.volumes.is_empty() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(String::new())
    }

    async fn create_volume(&self, array: &str, spec: VolumeSpec) -> Result<()> {
        let running = self.0.array(array)?;
        let scratch = self.0.machine.scratch;
        let width = spec.width.map_or(running.status().members.len() as u64, u64::from);
        let needed = width * (u64::from(spec.chunk) + 4096) * 2;
        // A chunk that no array can have is the core's to refuse: more memory would not help.
        if needed > scratch && spec.chunk <= MAX_CHUNK {
            let text = format!(
                "chunks of {} on {width} members need {} MiB of scratch memory, this raidd has {}: start it with a larger --scratch-mib",
                Bytes(spec.chunk.into()),
                needed.div_ceil(1 << 20),
                scratch >> 20
            );
            return Err(Error::new(Kind::Exhausted, text));
        }
        let core = manager::VolumeSpec {
            name: spec.name,
            uuid: random_uuid(),
            level: spec.level,
            width: spec.width,
            chunk: spec.chunk,
            size: spec.size,
            block_size: spec.block_size,
            policy: spec.policy,
        };
        running.command(Command::CreateVolume(core)).await.map(drop)
    }

    async fn delete_volume(&self, array: &str, volume: &str) -> Result<()> {
        self.0.delete_volume(array, volume).await
    }

    async fn create_export(&self, spec: ExportSpec) -> Result<u32> {
        self.0.create_export(spec).await
    }

    async fn delete_export(&self, nqn: &str, nsid: u32) -> Result<()> {
        self.0.delete_export(nqn, nsid).await
    }

    async fn cancel_operation(&self, id: &str) -> Result<()> {
        let (running, number) = self.operation(id)?;
        running.command(Command::CancelOperation(number)).await.map(drop)
    }

    async fn pause_operation(&self, id: &str, _pause: bool) -> Result<()> {
        self.operation(id)?;
        Err(Error::new(Kind::FailedPrecondition, format!("operation '{id}' cannot be paused; it can be cancelled")))
    }

    async fn add_fault(&self, array: &str, member: u16, spec: FaultSpec) -> Result<u64> {
        let running = self.0.array(array)?;
        let status = running.status();
        let m = status.members.iter().find(|m| m.id.0 == member).ok_or_else(|| Error::no_member(array, member))?;
        let devices = running.devices();
        let faults = m.device.and_then(|d| devices.get(&d)).and_then(|d| d.faults.clone()).ok_or_else(|| {
            Error::new(
                Kind::FailedPrecondition,
                format!("member {member} of array '{array}' has no device to inject faults into"),
            )
        })?;
        let fault = fault::Fault { id: 0, kinds: spec.kinds, offset: spec.offset, len: spec.len, effect: spec.effect };
        let id = faults.add(fault);
        let text = format!("fault {id} was injected into member {member} of array '{array}'");
        self.0.machine.events.publish(
            Severity::Warning,
            "fault-injected",
            &format!("arrays/{array}/members/{member}"),
            &text,
        );
        Ok(id)
    }

    async fn clear_faults(&self, id: Option<u64>) -> Result<usize> {
        let mut cleared = 0;
        for running in self.running() {
            for device in running.devices().values() {
                cleared += device.faults.as_ref().map_or(0, |f| f.clear(id));
            }
        }
        Ok(cleared)
    }
}

/// Resident memory of this process in bytes; 0 where the kernel does not tell.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|t| t.split(' ').nth(1).and_then(|p| p.parse::<u64>().ok())).unwrap_or(0);
    pages * 4096
}
