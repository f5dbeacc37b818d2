//! Volumes: creation and deletion.

use super::bitmap::{Bitmap, encode_blocks, runs};
use super::redundancy::{Used, bitmap_copies, tolerance};
use super::task::Next;
use super::{
    Answer, ErrorKind, ManageError, Manager, ManagerAction, OperationKind, OperationState, OperationStatus, Pending,
    Policy, Severity, VolumeSpec, refuse,
};
use crate::action::VolumeId;
use crate::alloc::{Candidate, Kind, Role, place};
use crate::geometry::{Geometry, Level};
use crate::ondisk::{BITMAP_BLOCK, GroupRecord, RecordState, SlotRecord, VolumeRecord, bitmap_blocks, extents_of};
use crate::regions::Region;
use crate::units::Bytes;
use crate::view::SlotState;

/// Most bytes that one order zeroes, so that progress is seen and a slow device is not busy for minutes with one.
const ZERO_PIECE: u64 = 1 << 30;
/// Orders to zero in one phase.
const ZERO_BATCH: usize = 16;

enum Phase {
    Allocate,
    Zero,
    Bitmap,
    Commit,
    Done,
}

pub(super) struct CreateVolumeTask {
    phase: Phase,
    spec: VolumeSpec,
    /// What is being made, once it is placed.
    pub volume: Option<VolumeRecord>,
    /// Runs that are still to be zeroed: member, byte offset, length.
    todo: Vec<(u16, u64, u64)>,
    /// Blocks of the bitmap that are still to be written: first and count.
    blocks: Vec<(u32, u32)>,
    /// Bytes ordered in the phase that is under way.
    ordered: u64,
    pub operation: Option<u64>,
}

impl CreateVolumeTask {
    pub fn new(spec: VolumeSpec) -> CreateVolumeTask {
        CreateVolumeTask {
            phase: Phase::Allocate,
            spec,
            volume: None,
            todo: Vec::new(),
            blocks: Vec::new(),
            ordered: 0,
            operation: None,
        }
    }
}

pub(super) struct DeleteVolumeTask {
    volume: VolumeId,
    deleted: Option<u64>,
}

impl DeleteVolumeTask {
    pub fn new(volume: VolumeId) -> DeleteVolumeTask {
        DeleteVolumeTask { volume, deleted: None }
    }
}

impl Manager {
    pub(super) fn create_volume_phase(&mut self, t: &mut CreateVolumeTask) -> Next {
        // A device that cannot zero fails like one that cannot write.
        for (device, status) in self.task_io.take_failed() {
            if let Some((member, _)) = self.live_members().into_iter().find(|(_, d)| *d == device) {
                self.fail_member(member, super::reason_of(status));
            }
        }
        if let Some(e) = self.lost_while_creating(t).or_else(|| self.cancelled_while_creating(t)) {
            return Next::End(Err(e));
        }
        match t.phase {
            Phase::Allocate => {
                let mut volume = match self.place_volume(&t.spec) {
                    Ok(volume) => volume,
                    Err(e) => return Next::End(Err(e)),
                };
                t.phase = if !volume.meta.is_empty() {
                    // Unwritten regions need no zeros: each is made zeros by its first write.
                    t.blocks = runs(&(0..bitmap_blocks(volume.regions())).collect(), self.blocks_per_group());
                    Phase::Bitmap
                } else if self.begin_zero(t, &volume) {
                    Phase::Zero
                } else {
                    mark_unsynced(&mut volume);
                    Phase::Commit
                };
                t.volume = Some(volume);
                Next::Phase
            }
            Phase::Zero => {
                self.zero_progress(t);
                if t.todo.is_empty() {
                    for member in members_of(t.volume.as_ref()) {
                        if let Some(device) = self.live_device(member) {
                            self.task_flush(device);
                        }
                    }
                    t.phase = Phase::Commit;
                    return Next::Phase;
                }
                for (member, offset, len) in t.todo.drain(..t.todo.len().min(ZERO_BATCH)) {
                    if let Some(device) = self.live_device(member) {
                        t.ordered += len;
                        self.task_zero(device, offset, len);
                    }
                }
                Next::Phase
            }
            Phase::Bitmap => {
                let Some(volume) = &t.volume else { return Next::Phase };
                if t.blocks.is_empty() {
                    for member in members_of(Some(volume)) {
                        if let Some(device) = self.live_device(member) {
                            self.task_flush(device);
                        }
                    }
                    t.phase = Phase::Commit;
                    return Next::Phase;
                }
                let unwritten = vec![Region::Unwritten; volume.regions() as usize];
                for (first, count) in t.blocks.drain(..t.blocks.len().min(ZERO_BATCH)) {
                    let bytes = encode_blocks(volume.id, &unwritten, first, count);
                    for (_, device, offset) in self.bitmap_copies_of(volume, first) {
                        self.task_write(device, offset, bytes.clone());
                    }
                }
                Next::Phase
            }
            Phase::Commit => {
                if let Some(volume) = &t.volume {
                    self.wanted.next_volume = volume.id + 1;
                    self.wanted.volumes.push(volume.clone());
                    if !volume.meta.is_empty() {
                        let states = vec![Region::Unwritten; volume.regions() as usize];
                        self.bitmaps.insert(volume.id, Bitmap::new(states));
                    }
                }
                t.phase = Phase::Done;
                Next::Published(self.changed())
            }
            Phase::Done => {
                let id = VolumeId(t.volume.as_ref().map_or(0, |v| v.id));
                let message = format!("{} created", self.volume_name(id));
                self.notice(Severity::Info, "volume-created", None, Some(id), message);
                Next::End(Ok(Answer::Volume(id)))
            }
        }
    }

    /// A member failed before the volume was committed: the volume would be born degraded. Nothing is lost by trying again.
    fn lost_while_creating(&self, t: &CreateVolumeTask) -> Option<ManageError> {
        if matches!(t.phase, Phase::Done) {
            return None;
        }
        let lost = members_of(t.volume.as_ref()).into_iter().find(|m| self.live_device(*m).is_none())?;
        Some(refuse(
            ErrorKind::Device,
            format!(
                "{} failed while volume '{}' was being created; nothing was created. Replace the member, or create the \
                 volume again on the others",
                self.member_name(lost),
                t.spec.name
            ),
        ))
    }

    fn cancelled_while_creating(&self, t: &CreateVolumeTask) -> Option<ManageError> {
        let operation = self.maintenance.operations.iter().find(|o| Some(o.id) == t.operation)?;
        let cancelled = operation.state == OperationState::Cancelled && !matches!(t.phase, Phase::Done);
        cancelled.then(|| {
            let message = format!("the creation of volume '{}' was cancelled; nothing was created", t.spec.name);
            refuse(ErrorKind::FailedPrecondition, message)
        })
    }

    fn place_volume(&self, spec: &VolumeSpec) -> Result<VolumeRecord, ManageError> {
        let invalid = |message: String| refuse(ErrorKind::InvalidArgument, message);
        super::create::check_name("a volume", &spec.name)?;
        if self.wanted.volumes.iter().any(|v| v.name == spec.name) {
            return Err(refuse(
                ErrorKind::AlreadyExists,
                format!(
                    "array '{}' has a volume '{}' already: choose another name, or delete that one first",
                    self.identity.name, spec.name
                ),
            ));
        }
        if !matches!(spec.block_size, 512 | 4096) {
            return Err(invalid(format!("a volume's block size is 512 or 4096, not {}", spec.block_size)));
        }
        // Healthy reads go to the members as the initiator asks, so its blocks must not be finer than theirs.
        if let Some(d) = self.places.iter().filter_map(|p| p.device.as_ref()).find(|d| d.block_size > spec.block_size) {
            return Err(invalid(format!(
                "{} has blocks of {} bytes, so a volume with blocks of {} is not possible: use a block size of 4096",
                d.address, d.block_size, spec.block_size
            )));
        }
        let active: Vec<u16> = (0..self.wanted.members.len() as u16)
            .filter(|m| self.wanted.members[usize::from(*m)].state == RecordState::Active)
            .filter(|m| self.live_device(*m).is_some())
            .collect();
        let all = active.len() as u16;
        let width = spec.width.unwrap_or(if spec.level == Level::Raid10 { all & !1 } else { all });
        let geometry = Geometry {
            level: spec.level,
            width,
            chunk: spec.chunk,
            extent: self.identity.extent,
            shards: self.identity.shards,
        };
        geometry.validate().map_err(|e| invalid(format!("volume '{}': {e}", spec.name)))?;
        if width > all {
            return Err(invalid(format!(
                "a width of {width} needs as many active members, and array '{}' has {all}: add members or choose a \
                 smaller width",
                self.identity.name
            )));
        }
        if let Some(size) = spec.size
            && (size == 0 || !size.is_multiple_of(4096))
        {
            return Err(invalid(format!("a volume's size is a multiple of 4096 bytes, not {size} bytes; round it")));
        }
        let wanted = spec.size.map(|s| s.div_ceil(geometry.group_bytes()));
        let mut free = Free::new(self, active);
        let meta = if spec.policy == Policy::Bitmap {
            if tolerance(spec.level, width) == 0 {
                return Err(invalid(format!(
                    "volume '{}': a bitmap says where redundancy has to be made to match, and {} has none: use policy none",
                    spec.name, spec.level
                )));
            }
            let most = wanted.unwrap_or(free.total() / u64::from(width)).max(1);
            let regions = u32::try_from(most.saturating_mul(u64::from(geometry.bands()))).map_err(|_| {
                invalid(format!("volume '{}' has too many regions for a bitmap: make it smaller", spec.name))
            })?;
            let bytes = u64::from(bitmap_blocks(regions)) * u64::from(BITMAP_BLOCK);
            let groups = bytes.div_ceil(self.identity.extent);
            let meta = free.place_groups(self, Kind::Metadata, bitmap_copies(spec.level, width), Some(groups));
            if (meta.len() as u64) < groups {
                return Err(refuse(
                    ErrorKind::NoSpace,
                    format!(
                        "no space for the bitmap of volume '{}': it needs {groups} extents on each of {} members. Delete a \
                         volume or add members",
                        spec.name,
                        bitmap_copies(spec.level, width)
                    ),
                ));
            }
            meta
        } else {
            Vec::new()
        };
        let groups = free.place_groups(self, Kind::Data, width, wanted);
        let room = groups.len() as u64 * geometry.group_bytes();
        if groups.is_empty() || wanted.is_some_and(|n| n > groups.len() as u64) {
            return Err(refuse(
                ErrorKind::NoSpace,
                format!(
                    "no space for volume '{}': {} asked for, at most {} free at this level and width. Ask for less, delete \
                     a volume or add members",
                    spec.name,
                    Bytes(spec.size.unwrap_or(geometry.group_bytes())),
                    Bytes(room),
                ),
            ));
        }
        let volume = VolumeRecord {
            id: self.wanted.next_volume,
            uuid: spec.uuid,
            name: spec.name.clone(),
            geometry,
            size: spec.size.unwrap_or(room),
            block_size: spec.block_size,
            policy: spec.policy,
            dirty: false,
            groups,
            meta,
        };
        let mut config = self.wanted.clone();
        config.volumes.push(volume.clone());
        if !config.room_for_volume() || !self.fits(&config) {
            return Err(refuse(
                ErrorKind::NoSpace,
                "the array's configuration has no room for this volume: use larger extents or fewer volumes",
            ));
        }
        Ok(volume)
    }

    /// Extents that belong to a slot, to a volume in the making, or to a deleted one that engines may still write to.
    pub(super) fn used_extents(&self) -> Used {
        let (data, extent) = (self.identity.data_offset, self.identity.extent);
        let mut used = Used::new(self.wanted.members.iter().map(|m| extents_of(m.size, data, extent)));
        used.take_all(&self.wanted.volumes);
        // What counts may differ from what is wanted: until the change counts, the old owner's extents stay its own.
        used.take_all(&self.committed.volumes);
        if let Some(task) = &self.task
            && let super::task::Kind::CreateVolume(t) = &task.kind
            && let Some(volume) = &t.volume
        {
            used.take_all(std::slice::from_ref(volume));
        }
        for (_, member, extent) in &self.graveyard {
            used.take(*member, *extent);
        }
        used
    }

    /// Prepares the zeroing; false if it would not be quick: then the volume is resynced instead.
    fn begin_zero(&mut self, t: &mut CreateVolumeTask, volume: &VolumeRecord) -> bool {
        let quick = members_of(Some(volume))
            .iter()
            .all(|m| self.places[usize::from(*m)].device.as_ref().is_some_and(|d| d.fast_zero));
        if !quick {
            return false;
        }
        let mut extents: Vec<(u16, u32)> = volume.slots().map(|s| (s.member, s.extent)).collect();
        extents.sort_unstable();
        let size = self.identity.extent;
        for (member, extent) in &extents {
            let offset = self.extent_offset(*extent);
            match t.todo.last_mut() {
                Some((m, o, len)) if m == member && *o + *len == offset && *len + size <= ZERO_PIECE => *len += size,
                _ => t.todo.push((*member, offset, size)),
            }
        }
        // Members take turns, so that all devices work at once.
        t.todo.sort_by_key(|(m, o, _)| (*o, *m));
        let id = self.maintenance.next_operation();
        self.maintenance.operations.push(OperationStatus {
            id,
            kind: OperationKind::Create,
            state: OperationState::Running,
            reason: String::new(),
            volume: Some(VolumeId(volume.id)),
            member: None,
            done: 0,
            total: extents.len() as u64 * size,
        });
        t.operation = Some(id);
        true
    }

    fn zero_progress(&mut self, t: &mut CreateVolumeTask) {
        let done = std::mem::take(&mut t.ordered);
        if let Some(o) = self.maintenance.operations.iter_mut().find(|o| Some(o.id) == t.operation) {
            o.done += done;
        }
    }

    pub(super) fn end_create_operation(&mut self, t: &CreateVolumeTask, result: &Result<Answer, ManageError>) {
        if let Some(o) = self
            .maintenance
            .operations
            .iter_mut()
            .find(|o| Some(o.id) == t.operation && o.state == OperationState::Running)
        {
            match result {
                Ok(_) => {
                    o.done = o.total;
                    o.state = OperationState::Done;
                }
                Err(e) => {
                    o.state = OperationState::Failed;
                    o.reason.clone_from(&e.message);
                }
            }
        }
    }

    pub(super) fn delete_volume_phase(&mut self, t: &mut DeleteVolumeTask) -> Next {
        if let Some(sequence) = t.deleted {
            if self.bitmaps.contains_key(&t.volume.0) {
                self.stop_bitmaps(Some(t.volume));
                self.bitmaps.remove(&t.volume.0);
                return Next::Phase;
            }
            // Requests that engines took under older views may still write there.
            let tag = self.tag(Pending::Released(sequence));
            self.actions.push_back(ManagerAction::Quiesce { tag });
            return Next::End(Ok(Answer::Done));
        }
        let Some(at) = self.wanted.volumes.iter().position(|v| v.id == t.volume.0) else {
            return Next::End(Err(refuse(
                ErrorKind::NotFound,
                format!(
                    "array '{}' has no volume {}; 'raidctl volume list' shows them",
                    self.identity.name, t.volume.0
                ),
            )));
        };
        let message = format!("{} deleted", self.volume_name(t.volume));
        let volume = self.wanted.volumes.remove(at);
        let sequence = self.changed();
        for s in volume.slots() {
            self.graveyard.push((sequence, s.member, s.extent));
        }
        self.clean_at.remove(&t.volume);
        self.lost_bytes.remove(&t.volume);
        self.pass_lost_volume(t.volume);
        self.notice(Severity::Info, "volume-deleted", None, Some(t.volume), message);
        t.deleted = Some(sequence);
        Next::Published(sequence)
    }
}

/// What is free, while a volume is being placed.
struct Free {
    members: Vec<u16>,
    used: Used,
    free: Vec<u32>,
    next: Vec<u32>,
}

impl Free {
    fn new(manager: &Manager, members: Vec<u16>) -> Free {
        let used = manager.used_extents();
        let free = members.iter().map(|m| used.free(*m)).collect();
        Free { next: vec![0; members.len()], members, used, free }
    }

    fn total(&self) -> u64 {
        self.free.iter().map(|f| u64::from(*f)).sum()
    }

    /// Places up to `wanted` groups, or as many as there is room for.
    fn place_groups(&mut self, manager: &Manager, kind: Kind, width: u16, wanted: Option<u64>) -> Vec<GroupRecord> {
        let mut groups = Vec::new();
        while wanted.is_none_or(|n| (groups.len() as u64) < n) {
            let candidates: Vec<Candidate> = self
                .members
                .iter()
                .zip(&self.free)
                .map(|(m, free)| {
                    let role = Role::from_code(manager.wanted.members[usize::from(*m)].role);
                    Candidate { member: *m, role: role.unwrap_or(Role::DataPreferred), free: *free }
                })
                .collect();
            let Some(members) = place(kind, width, &candidates) else { break };
            let mut slots = Vec::with_capacity(members.len());
            for member in members {
                let at = self.members.iter().position(|m| *m == member).unwrap_or(0);
                let Some(extent) = self.used.first_free(member, self.next[at]) else { return groups };
                self.used.take(member, extent);
                self.next[at] = extent + 1;
                self.free[at] -= 1;
                slots.push(SlotRecord { member, extent, state: SlotState::InSync });
            }
            groups.push(GroupRecord { synced: true, slots });
        }
        groups
    }
}

/// Unsynced from birth, where the level has redundancy.
fn mark_unsynced(volume: &mut VolumeRecord) {
    if tolerance(volume.geometry.level, volume.geometry.width) > 0 {
        for g in &mut volume.groups {
            g.synced = false;
        }
    }
}

fn members_of(volume: Option<&VolumeRecord>) -> Vec<u16> {
    let mut members: Vec<u16> = volume.into_iter().flat_map(VolumeRecord::slots).map(|s| s.member).collect();
    members.sort_unstable();
    members.dedup();
    members
}
