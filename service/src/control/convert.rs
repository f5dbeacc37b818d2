//! The backend's model in raid.v1's messages.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use raid_core::action::IoStatus;
use raid_core::geometry::Level;
use raid_core::manager::{Policy, Severity};
use raid_proto::names::Name;
use raid_proto::{details, prost_types, v1};
use tonic::{Code, Status};

use super::backend as model;
use super::error::{Error, Kind};
use crate::block::fault::{Effect, Kinds};

impl From<Error> for Status {
    fn from(e: Error) -> Status {
        let code = match e.kind {
            Kind::InvalidArgument => Code::InvalidArgument,
            Kind::FailedPrecondition => Code::FailedPrecondition,
            Kind::NotFound => Code::NotFound,
            Kind::AlreadyExists => Code::AlreadyExists,
            Kind::Exhausted => Code::ResourceExhausted,
            // The request was right and the state too; the same request can succeed once the device is well again.
            Kind::Device => Code::Aborted,
            Kind::DataLoss => Code::DataLoss,
            Kind::Unavailable => Code::Unavailable,
            Kind::PermissionDenied => Code::PermissionDenied,
            Kind::Internal => Code::Internal,
        };
        details::status(code, e.reason, e.message, e.metadata)
    }
}

/// Arguments that can't be right.
pub fn invalid(reason: &'static str, message: impl Into<String>) -> Error {
    Error::new(Kind::InvalidArgument, message).because(reason)
}

pub fn timestamp(time: SystemTime) -> prost_types::Timestamp {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    prost_types::Timestamp { seconds: since.as_secs() as i64, nanos: since.subsec_nanos() as i32 }
}

/// A state always has its reason: where nothing special is to be said, what the state itself means.
fn reason(given: &str, otherwise: &str) -> String {
    if given.is_empty() { otherwise.to_owned() } else { given.to_owned() }
}

fn array_reason(a: &model::Array) -> String {
    let otherwise = match a.state {
        model::ArrayState::Assembling => "it waits for members",
        model::ArrayState::Failed => "a volume cannot be served",
        model::ArrayState::Degraded => "redundancy is missing and nothing restores it",
        model::ArrayState::Rebuilding => "redundancy is being restored",
        model::ArrayState::Healthy => "all is in sync",
        model::ArrayState::Stopped => "it was stopped",
    };
    reason(&a.reason, otherwise)
}

fn member_reason(m: &model::Member) -> String {
    let otherwise = match m.state {
        model::MemberState::Active => "it is read and written",
        model::MemberState::Rebuilding => "a rebuild fills it",
        model::MemberState::Spare => "it stands by for a member that fails",
        model::MemberState::Failed => "it is neither read nor written",
        model::MemberState::Missing => "it was not found",
    };
    reason(&m.reason, otherwise)
}

fn volume_reason(v: &model::Volume) -> String {
    let otherwise = match v.state {
        model::VolumeState::Offline => "too few members are left",
        model::VolumeState::Degraded => "redundancy is missing and nothing restores it",
        model::VolumeState::Rebuilding => "a rebuild restores redundancy",
        model::VolumeState::Resyncing => "redundancy is made to match the data",
        model::VolumeState::Healthy => "all is in sync",
    };
    reason(&v.reason, otherwise)
}

fn export_reason(e: &model::Export) -> String {
    let otherwise = match e.state {
        model::ExportState::Active => "hosts can connect",
        model::ExportState::Offline => "the volume is not served",
    };
    reason(&e.reason, otherwise)
}

fn operation_reason(o: &model::Operation) -> String {
    let otherwise = match o.state {
        model::OperationState::Running => "it goes on",
        model::OperationState::Paused => "it was paused",
        model::OperationState::Succeeded => "all is done",
        model::OperationState::Failed => "it ended by an error",
        model::OperationState::Cancelled => "it was cancelled",
    };
    reason(&o.reason, otherwise)
}

pub fn array(a: &model::Array) -> v1::Array {
    let count = |states: &[model::MemberState]| a.members.iter().filter(|m| states.contains(&m.state)).count() as u32;
    use model::MemberState::{Active, Failed, Missing, Rebuilding, Spare};
    v1::Array {
        name: Name::Array(a.name.clone()).to_string(),
        spec: Some(v1::ArraySpec {
            members: a.members.iter().map(|m| m.address.clone()).collect(),
            spares: count(&[Spare]),
            extent_bytes: a.extent,
            shards: a.shards.into(),
        }),
        status: Some(v1::ArrayStatus {
            uuid: a.uuid.clone(),
            state: array_state(a.state).into(),
            reason: array_reason(a),
            generation: a.generation,
            capacity_bytes: a.capacity,
            free_bytes: a.free,
            active_members: count(&[Active, Rebuilding]),
            spare_members: count(&[Spare]),
            failed_members: count(&[Failed, Missing]),
            volumes: a.volumes.len() as u32,
        }),
    }
}

pub fn array_state(state: model::ArrayState) -> v1::ArrayState {
    match state {
        model::ArrayState::Assembling => v1::ArrayState::Assembling,
        model::ArrayState::Failed => v1::ArrayState::Failed,
        model::ArrayState::Degraded => v1::ArrayState::Degraded,
        model::ArrayState::Rebuilding => v1::ArrayState::Rebuilding,
        model::ArrayState::Healthy => v1::ArrayState::Healthy,
        model::ArrayState::Stopped => v1::ArrayState::Stopped,
    }
}

pub fn member(array: &str, m: &model::Member) -> v1::Member {
    let state = match m.state {
        model::MemberState::Active => v1::MemberState::Active,
        model::MemberState::Rebuilding => v1::MemberState::Rebuilding,
        model::MemberState::Spare => v1::MemberState::Spare,
        model::MemberState::Failed => v1::MemberState::Failed,
        model::MemberState::Missing => v1::MemberState::Missing,
    };
    v1::Member {
        name: Name::Member(array.to_owned(), m.number).to_string(),
        spec: Some(v1::MemberSpec { address: m.address.clone() }),
        status: Some(v1::MemberStatus {
            number: m.number.into(),
            uuid: m.uuid.clone(),
            state: state.into(),
            reason: member_reason(m),
            size_bytes: m.size,
            block_size_bytes: m.block_size,
            used_bytes: m.used,
            read_errors: m.read_errors,
            write_errors: m.write_errors,
            repaired_errors: m.repaired,
        }),
    }
}

pub fn volume(array: &str, v: &model::Volume) -> v1::Volume {
    let state = match v.state {
        model::VolumeState::Offline => v1::VolumeState::Offline,
        model::VolumeState::Degraded => v1::VolumeState::Degraded,
        model::VolumeState::Rebuilding => v1::VolumeState::Rebuilding,
        model::VolumeState::Resyncing => v1::VolumeState::Resyncing,
        model::VolumeState::Healthy => v1::VolumeState::Healthy,
    };
    let level = match v.level {
        Level::Raid0 => v1::Level::Raid0,
        Level::Raid1 => v1::Level::Raid1,
        Level::Raid10 => v1::Level::Raid10,
        Level::Raid5 => v1::Level::Raid5,
        Level::Raid6 => v1::Level::Raid6,
    };
    let policy = match v.policy {
        Policy::None => v1::Policy::None,
        Policy::Resync => v1::Policy::Resync,
        Policy::Bitmap => v1::Policy::Bitmap,
    };
    v1::Volume {
        name: Name::Volume(array.to_owned(), v.name.clone()).to_string(),
        spec: Some(v1::VolumeSpec {
            level: level.into(),
            width: v.width.into(),
            chunk_bytes: v.chunk,
            size_bytes: v.size,
            block_size_bytes: v.block_size,
            policy: policy.into(),
        }),
        status: Some(v1::VolumeStatus {
            number: v.number,
            uuid: v.uuid.clone(),
            state: state.into(),
            reason: volume_reason(v),
            allocated_bytes: v.allocated,
            dirty: v.dirty,
            groups: v.groups,
            degraded_groups: v.degraded_groups,
            unsynced_groups: v.unsynced_groups,
            regions: v.regions.map(|[unwritten, clean, dirty, need_sync, syncing]| v1::RegionCounts {
                unwritten,
                clean,
                dirty,
                need_sync,
                syncing,
            }),
        }),
    }
}

/// What a request for a volume asks for, with the defaults filled in.
pub fn volume_spec(name: String, spec: &v1::VolumeSpec) -> Result<model::VolumeSpec, Error> {
    let level = match spec.level() {
        v1::Level::Raid0 => Level::Raid0,
        v1::Level::Raid1 => Level::Raid1,
        v1::Level::Raid10 => Level::Raid10,
        v1::Level::Raid5 => Level::Raid5,
        v1::Level::Raid6 => Level::Raid6,
        v1::Level::Unspecified => {
            return Err(invalid(
                "LEVEL_MISSING",
                "the volume has no level, or one that this raidd does not know; choose 0, 1, 10, 5 or 6",
            ));
        }
    };
    let policy = match v1::Policy::try_from(spec.policy) {
        Ok(v1::Policy::Unspecified) if level == Level::Raid0 => Policy::None,
        Ok(v1::Policy::Unspecified | v1::Policy::Bitmap) => Policy::Bitmap,
        Ok(v1::Policy::Resync) => Policy::Resync,
        Ok(v1::Policy::None) => Policy::None,
        Err(_) => {
            return Err(invalid(
                "POLICY_UNKNOWN",
                "this raidd does not know that consistency policy; choose none, resync or bitmap",
            ));
        }
    };
    let width = match spec.width {
        0 => None,
        w => Some(u16::try_from(w).map_err(|_| {
            invalid(
                "WIDTH_OUT_OF_RANGE",
                format!("a width of {w} is not possible; leave it out to span all active members"),
            )
        })?),
    };
    let block_size = match spec.block_size_bytes {
        0 => 4096,
        size @ (512 | 4096) => size,
        other => {
            return Err(invalid(
                "BLOCK_SIZE_UNKNOWN",
                format!("a logical block size of {other} bytes is not possible; choose 512 or 4096"),
            ));
        }
    };
    let chunk = if spec.chunk_bytes == 0 { 64 << 10 } else { spec.chunk_bytes };
    let size = (spec.size_bytes != 0).then_some(spec.size_bytes);
    if let Some(size) = size.filter(|s| s % block_size as u64 != 0) {
        return Err(invalid(
            "SIZE_NOT_ALIGNED",
            format!("a size of {size} bytes is not a multiple of the block size of {block_size} bytes; round it"),
        ));
    }
    Ok(model::VolumeSpec { name, level, width, chunk, size, block_size, policy })
}

pub fn export(e: &model::Export) -> v1::Export {
    let state = match e.state {
        model::ExportState::Active => v1::ExportState::Active,
        model::ExportState::Offline => v1::ExportState::Offline,
    };
    let (hosts, any_host) = match &e.hosts {
        model::Hosts::Any => (Vec::new(), true),
        model::Hosts::Only(hosts) => (hosts.clone(), false),
    };
    v1::Export {
        name: Name::Export(e.nqn.clone(), e.nsid).to_string(),
        spec: Some(v1::ExportSpec {
            volume: Name::Volume(e.array.clone(), e.volume.clone()).to_string(),
            nqn: e.nqn.clone(),
            nsid: e.nsid,
            listen: e.listen.iter().map(|a| a.to_string()).collect(),
            hosts,
            any_host,
        }),
        status: Some(v1::ExportStatus { state: state.into(), reason: export_reason(e), controllers: e.controllers }),
    }
}

pub fn operation(o: &model::Operation) -> v1::Operation {
    let kind = match o.kind {
        model::OperationKind::Rebuild => v1::OperationKind::Rebuild,
        model::OperationKind::Replace => v1::OperationKind::Replace,
        model::OperationKind::Resync => v1::OperationKind::Resync,
        model::OperationKind::Initialize => v1::OperationKind::Initialize,
    };
    let state = match o.state {
        model::OperationState::Running => v1::OperationState::Running,
        model::OperationState::Paused => v1::OperationState::Paused,
        model::OperationState::Succeeded => v1::OperationState::Succeeded,
        model::OperationState::Failed => v1::OperationState::Failed,
        model::OperationState::Cancelled => v1::OperationState::Cancelled,
    };
    let target = match (&o.volume, o.member) {
        (Some(volume), _) => Name::Volume(o.array.clone(), volume.clone()),
        (None, Some(member)) => Name::Member(o.array.clone(), member),
        (None, None) => Name::Array(o.array.clone()),
    };
    v1::Operation {
        name: Name::Operation(o.id.clone()).to_string(),
        kind: kind.into(),
        target: target.to_string(),
        status: Some(v1::OperationStatus {
            state: state.into(),
            reason: operation_reason(o),
            done_bytes: o.done,
            total_bytes: o.total,
            start_time: Some(timestamp(o.started)),
            end_time: o.ended.map(timestamp),
            can_cancel: o.can_cancel,
            can_pause: o.can_pause,
        }),
    }
}

pub fn event(e: &model::Event) -> v1::Event {
    let severity = match e.severity {
        Severity::Info => v1::Severity::Info,
        Severity::Warning => v1::Severity::Warning,
        Severity::Error => v1::Severity::Error,
    };
    v1::Event {
        sequence: e.sequence,
        time: Some(timestamp(e.time)),
        severity: severity.into(),
        code: e.code.clone(),
        resource: e.resource.clone(),
        message: e.message.clone(),
    }
}

pub fn fault(f: &model::Fault) -> v1::Fault {
    use v1::fault_spec::Effect as Wire;
    let effect = match f.spec.effect {
        Effect::Fail(status) => Wire::Error(
            match status {
                IoStatus::ReadError => v1::FaultError::Media,
                IoStatus::NoSpace => v1::FaultError::NoSpace,
                IoStatus::Timeout => v1::FaultError::Timeout,
                IoStatus::Ok | IoStatus::DeviceError | IoStatus::Miscompare => v1::FaultError::Device,
            }
            .into(),
        ),
        Effect::Delay(nanos) => Wire::Delay(duration(Duration::from_nanos(nanos))),
        Effect::Corrupt => Wire::Corruption(v1::FaultCorruption {}),
    };
    v1::Fault {
        name: Name::Fault(f.id).to_string(),
        member: Name::Member(f.array.clone(), f.member).to_string(),
        spec: Some(v1::FaultSpec {
            read: f.spec.kinds.read,
            write: f.spec.kinds.write,
            flush: f.spec.kinds.flush,
            offset_bytes: f.spec.offset,
            length_bytes: if f.spec.len == u64::MAX { 0 } else { f.spec.len },
            effect: Some(effect),
        }),
    }
}

/// What a request for a fault asks for.
pub fn fault_spec(spec: &v1::FaultSpec) -> Result<model::FaultSpec, Error> {
    use v1::fault_spec::Effect as Wire;
    let kinds = Kinds { read: spec.read, write: spec.write, flush: spec.flush };
    if kinds == Kinds::default() {
        return Err(invalid("KINDS_MISSING", "the fault meets no I/O; say whether it meets reads, writes or flushes"));
    }
    let effect = match spec.effect {
        None => {
            return Err(invalid("EFFECT_MISSING", "the fault does nothing; choose an error, a delay or corruption"));
        }
        Some(Wire::Error(error)) => Effect::Fail(match v1::FaultError::try_from(error) {
            Ok(v1::FaultError::Media) => IoStatus::ReadError,
            Ok(v1::FaultError::Device) => IoStatus::DeviceError,
            Ok(v1::FaultError::NoSpace) => IoStatus::NoSpace,
            Ok(v1::FaultError::Timeout) => IoStatus::Timeout,
            Ok(v1::FaultError::Unspecified) | Err(_) => {
                return Err(invalid(
                    "ERROR_UNKNOWN",
                    "this raidd does not know that error; choose media, device, no-space or timeout",
                ));
            }
        }),
        Some(Wire::Delay(delay)) => {
            let delay = Duration::try_from(delay)
                .ok()
                .filter(|d| *d <= Duration::from_secs(3600))
                .ok_or_else(|| invalid("DELAY_OUT_OF_RANGE", "a delay must be between nothing and one hour"))?;
            Effect::Delay(delay.as_nanos() as u64)
        }
        Some(Wire::Corruption(_)) if !kinds.read || kinds.write || kinds.flush => {
            return Err(invalid("KINDS_WRONG", "corruption changes what reads return; let it meet reads only"));
        }
        Some(Wire::Corruption(_)) => Effect::Corrupt,
    };
    let len = if spec.length_bytes == 0 { u64::MAX } else { spec.length_bytes };
    Ok(model::FaultSpec { kinds, offset: spec.offset_bytes, len, effect })
}

pub fn system(s: &model::System) -> v1::System {
    let polling = if s.busy_polling { v1::PollingMode::Busy } else { v1::PollingMode::Adaptive };
    v1::System {
        version: s.version.clone(),
        pid: s.pid,
        start_time: Some(timestamp(s.started)),
        polling: polling.into(),
        faults_enabled: s.faults_enabled,
        memory: Some(v1::Memory {
            resident_bytes: s.resident,
            buffer_bytes: s.buffers,
            buffer_used_bytes: s.buffers_used,
        }),
        http_address: s.http.map(|a| a.to_string()).unwrap_or_default(),
        reactors: s
            .reactors
            .iter()
            .map(|r| v1::Reactor {
                number: r.number.into(),
                core: r.core,
                busy_share: r.busy_share,
                shards: r
                    .shards
                    .iter()
                    .map(|(array, shards)| v1::OwnedShards {
                        array: Name::Array(array.clone()).to_string(),
                        shards: shards.iter().map(|s| (*s).into()).collect(),
                    })
                    .collect(),
            })
            .collect(),
    }
}

fn duration(d: Duration) -> prost_types::Duration {
    prost_types::Duration { seconds: d.as_secs() as i64, nanos: d.subsec_nanos() as i32 }
}

/// The answer to a replacement that had nothing to rebuild: an operation that has ended and is in no list.
pub fn nothing_to_rebuild(array: &str, member: u16) -> v1::Operation {
    let now = timestamp(SystemTime::now());
    v1::Operation {
        name: String::new(),
        kind: v1::OperationKind::Replace.into(),
        target: Name::Member(array.to_owned(), member).to_string(),
        status: Some(v1::OperationStatus {
            state: v1::OperationState::Succeeded.into(),
            reason: "the member held no data, so there was nothing to rebuild".to_owned(),
            start_time: Some(now),
            end_time: Some(now),
            ..Default::default()
        }),
    }
}
