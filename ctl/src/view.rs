//! What raidctl prints: raid.v1's messages as plain records. Their field names are raidctl's promise to scripts, in JSON
//! and YAML alike: sizes in bytes, times in RFC 3339, states in lower case.

use std::time::{Duration, SystemTime};

use raid_proto::names::Name;
use raid_proto::v1;
use serde::Serialize;

/// An array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Array {
    pub name: String,
    pub uuid: String,
    pub state: String,
    pub reason: String,
    pub active_members: u32,
    pub spare_members: u32,
    pub failed_members: u32,
    pub volumes: u32,
    pub capacity_bytes: u64,
    pub free_bytes: u64,
    pub extent_bytes: u64,
    pub shards: u32,
    pub generation: u64,
}

impl From<v1::Array> for Array {
    fn from(a: v1::Array) -> Array {
        let (spec, status) = (a.spec.unwrap_or_default(), a.status.unwrap_or_default());
        Array {
            name: last(&a.name),
            state: word(status.state().as_str_name(), "ARRAY_STATE_"),
            uuid: status.uuid,
            reason: status.reason,
            active_members: status.active_members,
            spare_members: status.spare_members,
            failed_members: status.failed_members,
            volumes: status.volumes,
            capacity_bytes: status.capacity_bytes,
            free_bytes: status.free_bytes,
            extent_bytes: spec.extent_bytes,
            shards: spec.shards,
            generation: status.generation,
        }
    }
}

/// A member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Member {
    pub array: String,
    pub number: u32,
    pub address: String,
    pub uuid: String,
    pub state: String,
    pub reason: String,
    pub size_bytes: u64,
    pub block_size_bytes: u32,
    pub used_bytes: u64,
    pub read_errors: u64,
    pub write_errors: u64,
    pub repaired_errors: u64,
}

impl From<v1::Member> for Member {
    fn from(m: v1::Member) -> Member {
        let status = m.status.unwrap_or_default();
        Member {
            array: Name::parse(&m.name).and_then(|n| n.array().map(str::to_owned)).unwrap_or_default(),
            number: status.number,
            address: m.spec.unwrap_or_default().address,
            state: word(status.state().as_str_name(), "MEMBER_STATE_"),
            uuid: status.uuid,
            reason: status.reason,
            size_bytes: status.size_bytes,
            block_size_bytes: status.block_size_bytes,
            used_bytes: status.used_bytes,
            read_errors: status.read_errors,
            write_errors: status.write_errors,
            repaired_errors: status.repaired_errors,
        }
    }
}

/// A volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Volume {
    pub array: String,
    pub name: String,
    pub number: u32,
    pub uuid: String,
    pub state: String,
    pub reason: String,
    pub level: String,
    pub width: u32,
    pub chunk_bytes: u32,
    pub size_bytes: u64,
    pub allocated_bytes: u64,
    pub block_size_bytes: u32,
    pub policy: String,
    pub dirty: bool,
    pub groups: u32,
    pub degraded_groups: u32,
    pub unsynced_groups: u32,
    /// Not there if the volume has no write-intent bitmap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub regions: Option<Regions>,
}

/// Regions of a write-intent bitmap, by state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Regions {
    pub unwritten: u64,
    pub clean: u64,
    pub dirty: u64,
    pub need_sync: u64,
    pub syncing: u64,
}

impl From<v1::Volume> for Volume {
    fn from(v: v1::Volume) -> Volume {
        let (spec, status) = (v.spec.unwrap_or_default(), v.status.unwrap_or_default());
        Volume {
            array: Name::parse(&v.name).and_then(|n| n.array().map(str::to_owned)).unwrap_or_default(),
            name: last(&v.name),
            number: status.number,
            state: word(status.state().as_str_name(), "VOLUME_STATE_"),
            uuid: status.uuid,
            reason: status.reason,
            level: word(spec.level().as_str_name(), "LEVEL_"),
            width: spec.width,
            chunk_bytes: spec.chunk_bytes,
            size_bytes: spec.size_bytes,
            allocated_bytes: status.allocated_bytes,
            block_size_bytes: spec.block_size_bytes,
            policy: word(spec.policy().as_str_name(), "POLICY_"),
            dirty: status.dirty,
            groups: status.groups,
            degraded_groups: status.degraded_groups,
            unsynced_groups: status.unsynced_groups,
            regions: status.regions.map(|r| Regions {
                unwritten: r.unwritten,
                clean: r.clean,
                dirty: r.dirty,
                need_sync: r.need_sync,
                syncing: r.syncing,
            }),
        }
    }
}

/// An export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Export {
    pub volume: String,
    pub nqn: String,
    pub nsid: u32,
    pub state: String,
    pub reason: String,
    pub listen: Vec<String>,
    pub any_host: bool,
    pub hosts: Vec<String>,
    pub controllers: u32,
}

impl From<v1::Export> for Export {
    fn from(e: v1::Export) -> Export {
        let (spec, status) = (e.spec.unwrap_or_default(), e.status.unwrap_or_default());
        Export {
            volume: short(&spec.volume),
            nqn: spec.nqn,
            nsid: spec.nsid,
            state: word(status.state().as_str_name(), "EXPORT_STATE_"),
            reason: status.reason,
            listen: spec.listen,
            any_host: spec.any_host,
            hosts: spec.hosts,
            controllers: status.controllers,
        }
    }
}

/// An operation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Operation {
    pub id: String,
    pub kind: String,
    pub target: String,
    pub state: String,
    pub reason: String,
    pub done_bytes: u64,
    pub total_bytes: u64,
    pub start_time: Option<String>,
    pub end_time: Option<String>,
    pub can_cancel: bool,
    pub can_pause: bool,
    /// From its start to its end, or to now.
    #[serde(skip)]
    pub elapsed: Option<Duration>,
}

impl From<v1::Operation> for Operation {
    fn from(o: v1::Operation) -> Operation {
        let status = o.status.clone().unwrap_or_default();
        let clock = |t: &raid_proto::prost_types::Timestamp| SystemTime::try_from(*t).ok();
        let end = status.end_time.as_ref().and_then(clock).unwrap_or_else(SystemTime::now);
        let begin = status.start_time.as_ref().and_then(clock);
        Operation {
            elapsed: begin.and_then(|begin| end.duration_since(begin).ok()),
            id: last(&o.name),
            kind: word(o.kind().as_str_name(), "OPERATION_KIND_"),
            target: short(&o.target),
            state: word(status.state().as_str_name(), "OPERATION_STATE_"),
            reason: status.reason,
            done_bytes: status.done_bytes,
            total_bytes: status.total_bytes,
            start_time: status.start_time.map(time),
            end_time: status.end_time.map(time),
            can_cancel: status.can_cancel,
            can_pause: status.can_pause,
        }
    }
}

impl Operation {
    /// True when it will not change any more.
    pub fn ended(&self) -> bool {
        matches!(self.state.as_str(), "succeeded" | "failed" | "cancelled")
    }

    /// Bytes in a second, over all of its time; `None` until there is something to tell.
    pub fn rate(&self) -> Option<f64> {
        let seconds = self.elapsed?.as_secs_f64();
        (seconds > 0.0 && self.done_bytes > 0).then(|| self.done_bytes as f64 / seconds)
    }

    /// The time that is left at the rate so far.
    pub fn left(&self) -> Option<Duration> {
        let left = self.total_bytes.saturating_sub(self.done_bytes) as f64 / self.rate()?;
        Duration::try_from_secs_f64(left).ok().filter(|_| !self.ended())
    }

    /// How much is done, in percent.
    pub fn percent(&self) -> f64 {
        if self.total_bytes == 0 { 0.0 } else { self.done_bytes as f64 * 100.0 / self.total_bytes as f64 }
    }
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Event {
    pub sequence: u64,
    pub time: Option<String>,
    pub severity: String,
    pub code: String,
    pub resource: String,
    pub message: String,
}

impl From<v1::Event> for Event {
    fn from(e: v1::Event) -> Event {
        Event {
            sequence: e.sequence,
            time: e.time.map(time),
            severity: word(e.severity().as_str_name(), "SEVERITY_"),
            code: e.code,
            resource: e.resource,
            message: e.message,
        }
    }
}

/// A fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    pub number: u64,
    pub member: String,
    pub on: Vec<&'static str>,
    pub effect: String,
    pub offset_bytes: u64,
    pub length_bytes: Option<u64>,
}

impl From<v1::Fault> for Fault {
    fn from(f: v1::Fault) -> Fault {
        use v1::fault_spec::Effect;
        let spec = f.spec.unwrap_or_default();
        let kinds = [(spec.read, "read"), (spec.write, "write"), (spec.flush, "flush")];
        let effect = match spec.effect {
            None => "unspecified".to_owned(),
            Some(Effect::Error(error)) => {
                let error = v1::FaultError::try_from(error).unwrap_or_default();
                format!("error {}", word(error.as_str_name(), "FAULT_ERROR_").replace('_', "-"))
            }
            Some(Effect::Delay(delay)) => format!("delay {delay}"),
            Some(Effect::Corruption(_)) => "corruption".to_owned(),
        };
        Fault {
            number: last(&f.name).parse().unwrap_or_default(),
            member: short(&f.member),
            on: kinds.into_iter().filter_map(|(on, name)| on.then_some(name)).collect(),
            effect,
            offset_bytes: spec.offset_bytes,
            length_bytes: (spec.length_bytes != 0).then_some(spec.length_bytes),
        }
    }
}

/// A reactor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reactor {
    pub number: u32,
    pub core: Option<u32>,
    pub busy_share: f64,
    pub shards: Vec<Shards>,
}

/// Shards of an array on one reactor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shards {
    pub array: String,
    pub shards: Vec<u32>,
}

/// The daemon.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct System {
    pub version: String,
    pub pid: u32,
    pub start_time: Option<String>,
    pub polling: String,
    pub faults_enabled: bool,
    pub resident_bytes: u64,
    pub buffer_bytes: u64,
    pub buffer_used_bytes: u64,
    pub http_address: Option<String>,
    pub reactors: Vec<Reactor>,
}

impl From<v1::System> for System {
    fn from(s: v1::System) -> System {
        let memory = s.memory.unwrap_or_default();
        System {
            polling: word(s.polling().as_str_name(), "POLLING_MODE_"),
            version: s.version,
            pid: s.pid,
            start_time: s.start_time.map(time),
            faults_enabled: s.faults_enabled,
            resident_bytes: memory.resident_bytes,
            buffer_bytes: memory.buffer_bytes,
            buffer_used_bytes: memory.buffer_used_bytes,
            http_address: (!s.http_address.is_empty()).then_some(s.http_address),
            reactors: s
                .reactors
                .into_iter()
                .map(|r| Reactor {
                    number: r.number,
                    core: r.core,
                    busy_share: r.busy_share,
                    shards: r.shards.into_iter().map(|o| Shards { array: last(&o.array), shards: o.shards }).collect(),
                })
                .collect(),
        }
    }
}

/// `raidctl array show`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ArrayDetails {
    #[serde(flatten)]
    pub array: Array,
    pub member_list: Vec<Member>,
    pub volume_list: Vec<Volume>,
    pub operation_list: Vec<Operation>,
}

/// `raidctl status`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Status {
    pub daemon: System,
    pub arrays: Vec<Array>,
    pub exports: Vec<Export>,
    pub operations: Vec<Operation>,
}

/// A generated enum's name without its prefix, in lower case.
fn word(name: &str, prefix: &str) -> String {
    name.strip_prefix(prefix).unwrap_or(name).to_ascii_lowercase()
}

/// A resource name's last part.
fn last(name: &str) -> String {
    name.rsplit('/').next().unwrap_or(name).to_owned()
}

/// A resource as one would say it: `pool`, `pool/data`, `pool member 3`.
fn short(name: &str) -> String {
    match Name::parse(name) {
        Some(Name::Array(array)) => array,
        Some(Name::Volume(array, volume)) => format!("{array}/{volume}"),
        Some(Name::Member(array, number)) => format!("{array} member {number}"),
        _ => name.to_owned(),
    }
}

/// RFC 3339, to the millisecond.
fn time(mut t: raid_proto::prost_types::Timestamp) -> String {
    t.nanos -= t.nanos % 1_000_000;
    t.to_string()
}
