//! A backend in memory: arrays without drives, operations that go on when the test says so.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use raid_core::geometry::Level;
use raid_core::manager::{Policy, Severity};
use raidd::control::backend::*;
use raidd::control::error::{Error, Kind};
use raidd::control::events::EventHub;
use raidd::telemetry::Classes;
use tokio::sync::{Semaphore, watch};

pub struct Memory {
    state: Mutex<State>,
    revision: watch::Sender<u64>,
    events: EventHub,
    pub faults_enabled: bool,
    /// Changes of arrays take a permit before they begin; a test that takes it holds them up.
    pub gate: Semaphore,
    /// Changes that have begun and ended.
    pub begun: AtomicUsize,
    pub ended: AtomicUsize,
}

#[derive(Default)]
struct State {
    arrays: Vec<Array>,
    exports: Vec<Export>,
    operations: Vec<Operation>,
    faults: Vec<Fault>,
    next_fault: u64,
}

impl Memory {
    pub fn new(faults_enabled: bool) -> Memory {
        Memory {
            state: Mutex::default(),
            revision: watch::Sender::new(0),
            events: EventHub::new(100),
            faults_enabled,
            gate: Semaphore::new(1),
            begun: AtomicUsize::new(0),
            ended: AtomicUsize::new(0),
        }
    }

    fn with<T>(&self, change: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        let result = change(&mut self.state.lock().expect("the state"));
        self.revision.send_modify(|r| *r += 1);
        result
    }

    fn read<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.state.lock().expect("the state"))
    }

    /// An array made behind the control plane's back.
    pub fn put_array(&self, name: &str, members: usize) {
        let members = (0..members).map(|n| format!("/dev/{name}{n}")).collect();
        self.with(|s| {
            s.arrays.push(new_array(&ArraySpec {
                name: name.into(),
                members,
                spares: 0,
                extent: None,
                shards: None,
                wipe: false,
                create_size: None,
            }));
            s.arrays.sort_by(|a, b| a.name.cmp(&b.name));
            Ok(())
        })
        .expect("put");
    }

    /// Lets an operation go on to this many percent; 100 ends it.
    pub fn advance(&self, id: &str, percent: u64) {
        self.with(|s| {
            let operation = s.operations.iter_mut().find(|o| o.id == id).expect("the operation");
            operation.done = operation.total * percent / 100;
            if percent == 100 {
                operation.state = OperationState::Succeeded;
                operation.reason = "all groups are in sync".into();
                operation.ended = Some(SystemTime::now());
                let (array, member) = (operation.array.clone(), operation.member);
                let array = find(s, &array)?;
                array.members.retain(|m| Some(m.number) != member);
                for m in &mut array.members {
                    m.state = MemberState::Active;
                }
                (array.state, array.reason) = (ArrayState::Healthy, "all members are in sync".into());
            }
            Ok(())
        })
        .expect("advanced");
    }
}

fn new_member(number: u16, address: &str, state: MemberState) -> Member {
    Member {
        number,
        uuid: format!("member-{number}"),
        address: address.into(),
        state,
        reason: "present".into(),
        size: 1 << 30,
        block_size: 4096,
        used: 0,
        read_errors: 3,
        write_errors: 0,
        repaired: 3,
    }
}

fn new_array(spec: &ArraySpec) -> Array {
    let active = spec.members.len() - spec.spares as usize;
    let state = |n| if n < active { MemberState::Active } else { MemberState::Spare };
    let members = spec.members.iter().enumerate().map(|(n, m)| new_member(n as u16, m, state(n)));
    Array {
        name: spec.name.clone(),
        uuid: format!("uuid-of-{}", spec.name),
        state: ArrayState::Healthy,
        reason: "all members are in sync".into(),
        extent: spec.extent.unwrap_or(16 << 20),
        shards: spec.shards.unwrap_or(16),
        generation: 1,
        capacity: (active as u64) << 30,
        free: (active as u64) << 30,
        members: members.collect(),
        volumes: Vec::new(),
    }
}

fn find<'a>(s: &'a mut State, name: &str) -> Result<&'a mut Array> {
    s.arrays.iter_mut().find(|a| a.name == name).ok_or_else(|| Error::no_array(name))
}

fn find_member<'a>(s: &'a mut State, array: &str, number: u16) -> Result<&'a mut Member> {
    let members = &mut find(s, array)?.members;
    members.iter_mut().find(|m| m.number == number).ok_or_else(|| Error::no_member(array, number))
}

impl Backend for Memory {
    fn arrays(&self) -> Vec<Array> {
        self.read(|s| s.arrays.clone())
    }

    fn exports(&self) -> Vec<Export> {
        self.read(|s| s.exports.clone())
    }

    fn operations(&self) -> Vec<Operation> {
        self.read(|s| s.operations.clone())
    }

    fn faults(&self) -> Vec<Fault> {
        self.read(|s| s.faults.clone())
    }

    fn system(&self) -> System {
        System {
            version: "9.9.9".into(),
            pid: 4711,
            started: SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_250),
            busy_polling: false,
            faults_enabled: self.faults_enabled,
            resident: 100 << 20,
            buffers: 64 << 20,
            buffers_used: 1 << 20,
            http: None,
            reactors: vec![Reactor {
                number: 0,
                core: Some(1),
                busy: Duration::from_millis(1500),
                idle: Duration::from_secs(60),
                busy_share: 0.025,
                shards: vec![("pool".into(), vec![0, 1, 2, 3])],
            }],
        }
    }

    fn counters(&self) -> Counters {
        let mut latencies = Classes::default();
        // At most 100 µs, and at most 1 s.
        (latencies[3], latencies[15]) = (7, 3);
        let io = Io {
            read: IoCounters { ops: 10, errors: 1, bytes: 40960, time: Duration::from_millis(2500), latencies },
            ..Io::default()
        };
        Counters {
            volumes: vec![VolumeCounters { array: "pool".into(), volume: "data".into(), io }],
            members: vec![MemberCounters { array: "pool".into(), member: 0, io }],
            arrays: vec![ArrayCounters { array: "pool".into(), full_stripe: 7, ..ArrayCounters::default() }],
        }
    }

    fn events(&self) -> &EventHub {
        &self.events
    }

    fn revision(&self) -> watch::Receiver<u64> {
        self.revision.subscribe()
    }

    async fn create_array(&self, spec: ArraySpec) -> Result<()> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let _permit = self.gate.acquire().await.expect("the gate");
        let result = self.with(|s| {
            if s.arrays.iter().any(|a| a.name == spec.name) {
                let message = format!("there is an array '{}' already; choose another name", spec.name);
                return Err(Error::new(Kind::AlreadyExists, message).with("array", &spec.name));
            }
            s.arrays.push(new_array(&spec));
            Ok(())
        });
        if result.is_ok() {
            let resource = format!("arrays/{}", spec.name);
            self.events.publish(Severity::Info, "array-created", &resource, "the array is created");
        }
        self.ended.fetch_add(1, Ordering::SeqCst);
        result
    }

    async fn assemble_array(&self, addresses: Vec<String>, force: bool) -> Result<String> {
        if !force {
            let message = "member 1 is stale; add --force to go on without it, which loses what was written meanwhile";
            return Err(Error::new(Kind::FailedPrecondition, message).because("MEMBER_STALE"));
        }
        self.put_array("assembled", addresses.len());
        Ok("assembled".into())
    }

    async fn stop_array(&self, array: &str) -> Result<()> {
        self.delete_array(array).await
    }

    async fn delete_array(&self, array: &str) -> Result<()> {
        self.with(|s| {
            find(s, array)?;
            s.arrays.retain(|a| a.name != array);
            Ok(())
        })
    }

    async fn add_member(&self, array: &str, device: NewDevice) -> Result<u16> {
        self.with(|s| {
            let members = &mut find(s, array)?.members;
            let number = members.iter().map(|m| m.number + 1).max().unwrap_or(0);
            members.push(new_member(number, &device.address, MemberState::Spare));
            Ok(number)
        })
    }

    async fn fail_member(&self, array: &str, member: u16) -> Result<()> {
        self.with(|s| {
            let m = find_member(s, array, member)?;
            (m.state, m.reason) = (MemberState::Failed, "failed by an operator".into());
            let a = find(s, array)?;
            (a.state, a.reason) = (ArrayState::Degraded, format!("member {member} is failed; replace it"));
            Ok(())
        })?;
        let resource = format!("arrays/{array}/members/{member}");
        self.events.publish(Severity::Warning, "member-failed", &resource, "the member is failed; replace it");
        Ok(())
    }

    async fn remove_member(&self, array: &str, member: u16) -> Result<()> {
        self.with(|s| {
            if find_member(s, array, member)?.state == MemberState::Active {
                let message = format!("member {member} of '{array}' is active; fail it first");
                return Err(Error::new(Kind::FailedPrecondition, message).because("MEMBER_ACTIVE"));
            }
            find(s, array)?.members.retain(|m| m.number != member);
            Ok(())
        })
    }

    async fn replace_member(&self, array: &str, member: u16, with: Option<NewDevice>) -> Result<String> {
        let address = with.map_or_else(|| "/dev/spare".into(), |d| d.address);
        self.with(|s| {
            find_member(s, array, member)?;
            let a = find(s, array)?;
            if array == "empty" {
                return Ok(String::new());
            }
            (a.state, a.reason) = (ArrayState::Rebuilding, "a rebuild is under way".into());
            let number = a.members.iter().map(|m| m.number + 1).max().unwrap_or(0);
            a.members.push(new_member(number, &address, MemberState::Rebuilding));
            let id = format!("{array}-{}", s.operations.len() + 1);
            s.operations.push(Operation {
                id: id.clone(),
                kind: OperationKind::Replace,
                array: array.into(),
                member: Some(member),
                volume: None,
                state: OperationState::Running,
                reason: String::new(),
                done: 0,
                total: 1 << 30,
                started: SystemTime::now(),
                ended: None,
                can_cancel: true,
                can_pause: false,
            });
            Ok(id)
        })
    }

    async fn create_volume(&self, array: &str, spec: VolumeSpec) -> Result<()> {
        self.with(|s| {
            let a = find(s, array)?;
            let width = spec.width.unwrap_or(a.members.len() as u16);
            a.volumes.push(Volume {
                name: spec.name,
                number: a.volumes.len() as u32,
                uuid: "uuid".into(),
                state: VolumeState::Healthy,
                reason: "all groups are in sync".into(),
                level: spec.level,
                width,
                chunk: spec.chunk,
                size: spec.size.unwrap_or(1 << 30),
                allocated: 1 << 30,
                block_size: spec.block_size,
                policy: spec.policy,
                dirty: false,
                groups: 1,
                degraded_groups: 0,
                unsynced_groups: 0,
                regions: None,
            });
            Ok(())
        })
    }

    async fn delete_volume(&self, array: &str, volume: &str) -> Result<()> {
        self.with(|s| {
            let a = find(s, array)?;
            let before = a.volumes.len();
            a.volumes.retain(|v| v.name != volume);
            if a.volumes.len() == before { Err(Error::no_volume(array, volume)) } else { Ok(()) }
        })
    }

    async fn create_export(&self, spec: ExportSpec) -> Result<u32> {
        self.with(|s| {
            if !find(s, &spec.array)?.volumes.iter().any(|v| v.name == spec.volume) {
                return Err(Error::no_volume(&spec.array, &spec.volume));
            }
            let nsid = spec.nsid.unwrap_or(1);
            s.exports.push(Export {
                array: spec.array,
                volume: spec.volume,
                nqn: spec.nqn,
                nsid,
                listen: spec.listen,
                hosts: spec.hosts,
                state: ExportState::Active,
                reason: "hosts can connect".into(),
                controllers: 0,
            });
            Ok(nsid)
        })
    }

    async fn delete_export(&self, nqn: &str, nsid: u32) -> Result<()> {
        self.with(|s| {
            let before = s.exports.len();
            s.exports.retain(|e| e.nqn != nqn || e.nsid != nsid);
            if s.exports.len() == before { Err(Error::no_export(nqn, nsid)) } else { Ok(()) }
        })
    }

    async fn cancel_operation(&self, id: &str) -> Result<()> {
        self.with(|s| {
            let operation = s.operations.iter_mut().find(|o| o.id == id).ok_or_else(|| Error::no_operation(id))?;
            (operation.state, operation.reason) = (OperationState::Cancelled, "cancelled by an operator".into());
            operation.ended = Some(SystemTime::now());
            Ok(())
        })
    }

    async fn pause_operation(&self, id: &str, _pause: bool) -> Result<()> {
        let message = format!("operation '{id}' cannot be paused; cancel it instead");
        Err(Error::new(Kind::FailedPrecondition, message).because("CANNOT_PAUSE"))
    }

    async fn add_fault(&self, array: &str, member: u16, fault: FaultSpec) -> Result<u64> {
        self.with(|s| {
            find_member(s, array, member)?;
            s.next_fault += 1;
            let id = s.next_fault;
            s.faults.push(Fault { id, array: array.into(), member, spec: fault });
            Ok(id)
        })
    }

    async fn clear_faults(&self, id: Option<u64>) -> Result<usize> {
        self.with(|s| {
            let before = s.faults.len();
            s.faults.retain(|f| id.is_some_and(|id| id != f.id));
            Ok(before - s.faults.len())
        })
    }
}

/// What the memory backend makes of `--level 5`.
pub const LEVEL: Level = Level::Raid5;
/// What it makes of no `--policy`.
pub const POLICY: Policy = Policy::Bitmap;
