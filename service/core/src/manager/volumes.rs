//! Volumes: created on zeroed extents, so that they start in sync, and deleted.

use std::collections::BTreeMap;

use super::create::check_name;
use super::{After, Answer, CommandTag, DeviceId, ErrorKind, ManageError, Manager, ManagerAction, Pending, VolumeSpec};
use crate::action::{IoStatus, VolumeId};
use crate::alloc::{Candidate, Kind, Role, place};
use crate::geometry::{Geometry, Level};
use crate::ondisk::{GroupRecord, RecordState, SlotRecord, VolumeRecord, encode_config};
use crate::view::SlotState;

/// A volume whose extents are being zeroed.
pub(super) struct NewVolume {
    tag: CommandTag,
    record: VolumeRecord,
    outstanding: usize,
    failed: Option<IoStatus>,
    devices: Vec<DeviceId>,
}

impl Manager {
    fn plan_volume(&self, spec: &VolumeSpec) -> Result<VolumeRecord, ManageError> {
        let invalid = |message: String| ManageError { kind: ErrorKind::InvalidArgument, message };
        check_name("a volume", &spec.name)?;
        if self.config.volumes.iter().any(|v| v.name == spec.name) {
            let message = format!("array '{}' has a volume '{}' already: choose another name", self.name, spec.name);
            return Err(ManageError { kind: ErrorKind::AlreadyExists, message });
        }
        let active = (0..self.config.members.len() as u16)
            .filter(|m| self.config.members[*m as usize].state == RecordState::Active && self.usable(*m))
            .count() as u16;
        let widest = if spec.level == Level::Raid10 { active & !1 } else { active };
        let width = spec.width.unwrap_or(widest);
        if width > active {
            return Err(invalid(format!(
                "a width of {width} needs as many active members; array '{}' has {active}",
                self.name
            )));
        }
        let geometry = Geometry {
            level: spec.level,
            width,
            chunk: spec.chunk,
            extent: self.layout.extent,
            shards: self.layout.shards,
        };
        geometry.validate().map_err(|e| invalid(format!("volume '{}' cannot be made: {e}", spec.name)))?;
        if !matches!(spec.block_size, 512 | 4096) {
            return Err(invalid(format!("a block size of {} is not possible: choose 512 or 4096", spec.block_size)));
        }
        let coarse = self.devices.iter().flatten().find(|d| d.block_size > spec.block_size);
        if let Some(d) = coarse {
            return Err(invalid(format!(
                "{} has blocks of {} bytes, so a volume with blocks of {} is not possible: use --block-size 4096",
                d.address, d.block_size, spec.block_size
            )));
        }
        if spec.size == Some(0) || spec.size.is_some_and(|s| !s.is_multiple_of(u64::from(spec.block_size))) {
            return Err(invalid(format!(
                "a volume's size is a multiple of its block size, {} bytes, and not 0",
                spec.block_size
            )));
        }
        let groups = self.place_groups(&geometry, spec.size, &spec.name)?;
        let size = spec.size.unwrap_or(geometry.group_bytes() * groups.len() as u64);
        Ok(VolumeRecord {
            id: self.config.next_volume,
            uuid: spec.uuid,
            name: spec.name.clone(),
            geometry,
            size,
            block_size: spec.block_size,
            policy: spec.policy,
            dirty: false,
            groups,
        })
    }

    fn place_groups(
        &self,
        geometry: &Geometry,
        size: Option<u64>,
        name: &str,
    ) -> Result<Vec<GroupRecord>, ManageError> {
        let wanted = size.map_or(u64::MAX, |s| s.div_ceil(geometry.group_bytes()));
        let mut used = self.used_extents();
        let mut groups = Vec::new();
        while (groups.len() as u64) < wanted {
            let candidates: Vec<Candidate> = (0..used.len() as u16)
                .filter(|m| self.config.members[*m as usize].state == RecordState::Active && self.usable(*m))
                .map(|m| Candidate {
                    member: m,
                    role: Role::from_code(self.config.members[m as usize].role).unwrap_or(Role::DataPreferred),
                    free: used[m as usize].iter().filter(|u| !**u).count() as u32,
                })
                .collect();
            let Some(members) = place(Kind::Data, geometry.width, &candidates) else { break };
            let mut slots: Vec<SlotRecord> = members
                .into_iter()
                .map(|member| {
                    let extent = used[member as usize].iter().position(|u| !*u).expect("a candidate has a free extent");
                    used[member as usize][extent] = true;
                    SlotRecord { member, extent: extent as u32, state: SlotState::InSync }
                })
                .collect();
            // Groups rotate, so that column 0 is not always on the same member.
            let n = slots.len();
            slots.rotate_left(groups.len() % n);
            groups.push(GroupRecord { synced: true, slots });
        }
        let have = groups.len() as u64;
        if have == 0 || (size.is_some() && have < wanted) {
            let room = have * geometry.group_bytes();
            let message = format!(
                "no space in array '{}' for volume '{name}': {} bytes were wanted, groups of {} members have room for {room}",
                self.name,
                size.map_or("some".to_string(), |s| s.to_string()),
                geometry.width
            );
            return Err(ManageError { kind: ErrorKind::NoSpace, message });
        }
        Ok(groups)
    }

    pub(super) fn create_volume(&mut self, tag: CommandTag, spec: VolumeSpec) {
        let mut record = match self.plan_volume(&spec) {
            Ok(record) => record,
            Err(e) => return self.refuse(tag, e.kind, e.message),
        };
        self.config.volumes.push(record.clone());
        let len = encode_config(&self.config).len();
        self.config.volumes.pop();
        if len > self.layout.slot_len as usize {
            let text = format!(
                "array '{}' cannot record volume '{}': its configuration would take {len} bytes, a slot has {}; make it smaller",
                self.name, record.name, self.layout.slot_len
            );
            return self.refuse(tag, ErrorKind::NoSpace, text);
        }
        let fast = self.devices.iter().flatten().all(|d| d.fast_zero);
        if !fast {
            // Zeroing whole drives would take hours: redundancy is computed from what is there instead.
            record.groups.iter_mut().for_each(|g| g.synced = false);
            self.new_volume = Some(NewVolume { tag, record, outstanding: 0, failed: None, devices: Vec::new() });
            return self.volume_ready();
        }
        let mut ranges: BTreeMap<DeviceId, Vec<u32>> = BTreeMap::new();
        for slot in record.groups.iter().flat_map(|g| &g.slots) {
            if let Some(device) = &self.devices[slot.member as usize] {
                ranges.entry(device.id).or_default().push(slot.extent);
            }
        }
        let mut zeros = Vec::new();
        for (device, mut extents) in ranges.clone() {
            extents.sort_unstable();
            for run in extents.chunk_by(|a, b| a + 1 == *b) {
                zeros.push((device, run[0], run.len() as u64));
            }
        }
        let devices = ranges.into_keys().collect();
        self.new_volume = Some(NewVolume { tag, record, outstanding: zeros.len(), failed: None, devices });
        for (device, extent, count) in zeros {
            let offset = self.layout.data_offset + u64::from(extent) * self.layout.extent;
            let len = count * self.layout.extent;
            let tag = self.tag(Pending::Zero);
            self.actions.push_back(ManagerAction::Zero { tag, device, offset, len });
        }
    }

    fn new_volume_step(&mut self, status: IoStatus) -> bool {
        let Some(new) = &mut self.new_volume else { return false };
        new.outstanding -= 1;
        if status != IoStatus::Ok {
            new.failed = Some(status);
        }
        if new.outstanding > 0 {
            return false;
        }
        if let Some(status) = new.failed {
            let (tag, name) = (new.tag, new.record.name.clone());
            self.new_volume = None;
            let text = format!(
                "volume '{name}' was not created: a member failed while its extents were zeroed ({})",
                super::failure_text(status)
            );
            self.refuse(tag, ErrorKind::Device, text);
            return false;
        }
        true
    }

    pub(super) fn zeroed(&mut self, status: IoStatus) {
        if !self.new_volume_step(status) {
            return;
        }
        let Some(new) = &mut self.new_volume else { return };
        let devices = std::mem::take(&mut new.devices);
        new.outstanding = devices.len();
        for device in devices {
            self.flush(Pending::ZeroFlush, device);
        }
    }

    pub(super) fn zero_flushed(&mut self, status: IoStatus) {
        if self.new_volume_step(status) {
            self.volume_ready();
        }
    }

    fn volume_ready(&mut self) {
        let Some(NewVolume { tag, mut record, .. }) = self.new_volume.take() else { return };
        // A member may have failed while the extents were zeroed.
        for slot in record.groups.iter_mut().flat_map(|g| &mut g.slots) {
            slot.state = self.live_state(slot.member, SlotState::InSync);
        }
        if !record.groups.iter().all(|g| self.alive(&record.geometry, g)) {
            let text = format!("volume '{}' was not created: members failed meanwhile", record.name);
            return self.refuse(tag, ErrorKind::Device, text);
        }
        let id = VolumeId(record.id);
        self.config.next_volume += 1;
        self.config.volumes.push(record);
        self.commit(Some(After::Reply(tag, Answer::Volume(id))));
    }

    pub(super) fn delete_volume(&mut self, tag: CommandTag, volume: VolumeId) {
        let before = self.config.volumes.len();
        self.config.volumes.retain(|v| v.id != volume.0);
        if self.config.volumes.len() == before {
            let text = format!("array '{}' has no volume {}", self.name, volume.0);
            return self.refuse(tag, ErrorKind::NotFound, text);
        }
        self.forget_volume(volume.0);
        self.commit(Some(After::Reply(tag, Answer::Done)));
    }
}
