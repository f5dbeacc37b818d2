//! Making an array of devices. The order is such that a crash leaves either nothing that assembles or the whole array:
//! a configuration marked `creating` first, then the superblocks, then a commit without the mark.

use std::collections::BTreeSet;

use super::commit::survives;
use super::{
    After, Answer, ArraySpec, CommandTag, DeviceInfo, ErrorKind, Layout, ManageError, Manager, Pending, Phase,
    Severity, Uuid,
};
use crate::action::IoStatus;
use crate::ondisk::{
    Config as Stored, FOREIGN_PROBE, MemberRecord, RecordState, SUPERBLOCK_BYTES, Superblock, encode_config,
    end_copy_offset, extents_of, foreign_signature, layout,
};
use crate::units::Tick;

/// What is being waited for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Head(u16),
    Tail(u16),
    Slot(u16),
    SlotFlush(u16),
    Super(u16),
    SuperFlush(u16),
}

pub(super) struct Creating {
    tag: CommandTag,
    wipe: bool,
    heads: Vec<Option<Vec<u8>>>,
    tails: Vec<Option<Vec<u8>>>,
    outstanding: usize,
    error: Option<ManageError>,
}

fn invalid(message: String) -> ManageError {
    ManageError { kind: ErrorKind::InvalidArgument, message }
}

/// A name for arrays and volumes: short, and safe in paths and on command lines.
pub(super) fn check_name(what: &str, name: &str) -> Result<(), ManageError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty()
        || name.len() > 63
        || !name.chars().all(plain)
        || !name.starts_with(|c: char| c.is_ascii_alphanumeric())
    {
        let shown: String = name.chars().take(80).collect();
        return Err(invalid(format!(
            "'{}' is no name for {what}: use 1 to 63 letters, digits, '-', '_' or '.', beginning with a letter or digit",
            shown.escape_default()
        )));
    }
    Ok(())
}

impl Manager {
    /// Makes an array of the devices, in their order. Answered by [`super::ManagerAction::Reply`] with `tag`: `Done`, or
    /// why not; a refusal ends the manager. `history` is a fresh random UUID.
    pub fn create(
        now: Tick,
        config: super::Config,
        tag: CommandTag,
        history: Uuid,
        spec: ArraySpec,
        devices: Vec<DeviceInfo>,
    ) -> Manager {
        let name = spec.name.clone();
        let mut manager = Manager::begin_create(now, tag, spec, devices, history)
            .unwrap_or_else(|e| Manager::refused(now, tag, name, e));
        manager.tuning = config;
        manager
    }

    fn begin_create(
        now: Tick,
        tag: CommandTag,
        spec: ArraySpec,
        devices: Vec<DeviceInfo>,
        history: Uuid,
    ) -> Result<Manager, ManageError> {
        check_name("an array", &spec.name)?;
        let active = devices.len().saturating_sub(usize::from(spec.spares));
        if active == 0 {
            return Err(invalid(format!(
                "array '{}' needs at least one member that is not a spare; {} devices and {} spares were given",
                spec.name,
                devices.len(),
                spec.spares
            )));
        }
        if spec.member_uuids.len() != devices.len() || devices.len() > 512 {
            return Err(invalid("an array takes at most 512 members, each with a UUID of its own".to_string()));
        }
        if !(1..=1024).contains(&spec.shards) {
            return Err(invalid(format!("{} shards: give 1 to 1024", spec.shards)));
        }
        if spec.extent.is_some_and(|e| !e.is_power_of_two() || !(1 << 20..=1 << 40).contains(&e)) {
            return Err(invalid("an extent is a power of two from 1 MiB to 1 TiB".to_string()));
        }
        let mut seen = BTreeSet::new();
        if let Some(twice) = devices.iter().find(|d| !seen.insert(d.id)) {
            return Err(invalid(format!("{} was named twice: a device can be a member only once", twice.address)));
        }
        let smallest = devices.iter().map(|d| d.size).min().unwrap_or(0);
        let (extent, slot_len, data_offset) = layout(smallest, spec.extent);
        if let Some(small) = devices.iter().find(|d| extents_of(d.size, data_offset, extent) == 0) {
            return Err(invalid(format!(
                "{} has {} bytes, too few for metadata and one extent: at least {} are needed",
                small.address,
                small.size,
                data_offset + extent + u64::from(SUPERBLOCK_BYTES)
            )));
        }
        let members = devices
            .iter()
            .enumerate()
            .map(|(i, d)| MemberRecord {
                uuid: spec.member_uuids[i],
                state: if i < active { RecordState::Active } else { RecordState::Spare },
                role: 0,
                size: d.size,
                address: d.address.clone(),
            })
            .collect();
        let config = Stored {
            generation: 1,
            array_uuid: spec.uuid,
            creating: true,
            history: vec![(1, history)],
            members,
            volumes: Vec::new(),
            next_volume: 0,
        };
        let creating = Creating {
            tag,
            wipe: spec.wipe,
            heads: vec![None; devices.len()],
            tails: vec![None; devices.len()],
            outstanding: devices.len() * 2,
            error: None,
        };
        let layout = Layout { extent, slot_len, data_offset, shards: spec.shards };
        let mut m = Manager::blank(now, spec.name, layout, config, Phase::Creating(creating));
        for device in devices {
            let (i, id, size) = (m.devices.len() as u16, device.id, device.size);
            m.push_member(Some(device), "");
            m.read(Pending::Create(Step::Head(i)), id, 0, FOREIGN_PROBE);
            m.read(Pending::Create(Step::Tail(i)), id, end_copy_offset(size), SUPERBLOCK_BYTES);
        }
        Ok(m)
    }

    fn creating(&mut self) -> Option<&mut Creating> {
        match &mut self.phase {
            Phase::Creating(c) => Some(c),
            _ => None,
        }
    }

    pub(super) fn create_read(&mut self, step: Step, result: Result<Vec<u8>, IoStatus>) {
        let (Step::Head(member) | Step::Tail(member)) = step else { return };
        let address = self.config.members[member as usize].address.clone();
        let name = self.name.clone();
        let Some(c) = self.creating() else { return };
        c.outstanding -= 1;
        match (result, step) {
            (Ok(bytes), Step::Head(_)) => c.heads[member as usize] = Some(bytes),
            (Ok(bytes), _) => c.tails[member as usize] = Some(bytes),
            (Err(e), _) => {
                let text = super::failure_text(e);
                c.error.get_or_insert(ManageError {
                    kind: ErrorKind::Device,
                    message: format!("{address} cannot be read ({text}): array '{name}' was not created"),
                });
            }
        }
        if c.outstanding > 0 {
            return;
        }
        if !c.wipe && c.error.is_none() {
            let all = c.heads.iter().flatten().zip(c.tails.iter().flatten());
            let found = all.enumerate().find_map(|(i, (h, t))| carried(h, t).map(|what| (i, what)));
            if let Some((i, what)) = found {
                let address = self.config.members[i].address.clone();
                let message = format!("{address} carries {what}: give --wipe to overwrite it, or name another device");
                return self.create_failed(ManageError { kind: ErrorKind::FailedPrecondition, message });
            }
        }
        if let Some(error) = self.creating().and_then(|c| c.error.take()) {
            return self.create_failed(error);
        }
        self.report_sizes();
        self.create_slots();
    }

    fn report_sizes(&mut self) {
        let sizes: Vec<u64> = self.config.members.iter().map(|m| m.size).collect();
        let (least, most) = (sizes.iter().min().copied().unwrap_or(0), sizes.iter().max().copied().unwrap_or(0));
        let extents = |s: u64| extents_of(s, self.layout.data_offset, self.layout.extent);
        if extents(least) != extents(most) {
            let text = format!(
                "the members of array '{}' differ in size, from {least} to {most} bytes: a volume over all members can use {} extents of each, {} of the largest stay free",
                self.name,
                extents(least),
                extents(most) - extents(least)
            );
            self.notice(Severity::Warning, "sizes-differ", None, None, text);
        }
    }

    /// First the configuration, marked as unfinished, and no superblock that would lead to it.
    fn create_slots(&mut self) {
        let bytes = encode_config(&self.config);
        let blank = vec![0u8; SUPERBLOCK_BYTES as usize];
        let targets: Vec<_> = self.devices.iter().flatten().map(|d| (d.id, d.size)).collect();
        if let Some(c) = self.creating() {
            c.outstanding = targets.len() * 4;
        }
        for (i, (device, size)) in targets.into_iter().enumerate() {
            let step = Step::Slot(i as u16);
            // Generation 1 goes to slot 1; slot 0 and both superblocks lose what an earlier array left there.
            let slot = u64::from(SUPERBLOCK_BYTES);
            self.write(Pending::Create(step), device, 0, blank.clone());
            self.write(Pending::Create(step), device, end_copy_offset(size), blank.clone());
            self.write(Pending::Create(step), device, slot, blank.clone());
            self.write(Pending::Create(step), device, slot + u64::from(self.layout.slot_len), bytes.clone());
        }
    }

    pub(super) fn create_done(&mut self, step: Step, status: IoStatus) {
        let (Step::Slot(member)
        | Step::SlotFlush(member)
        | Step::Super(member)
        | Step::SuperFlush(member)
        | Step::Head(member)
        | Step::Tail(member)) = step;
        let address = self.config.members[member as usize].address.clone();
        let name = self.name.clone();
        let Some(c) = self.creating() else { return };
        c.outstanding -= 1;
        if status != IoStatus::Ok {
            let text = super::failure_text(status);
            c.error.get_or_insert(ManageError {
                kind: ErrorKind::Device,
                message: format!("{address} cannot be written to ({text}): array '{name}' was not created"),
            });
        }
        if c.outstanding > 0 {
            return;
        }
        if let Some(error) = c.error.take() {
            return self.create_failed(error);
        }
        match step {
            Step::Slot(_) => self.create_flush(Step::SlotFlush),
            Step::SlotFlush(_) => self.create_superblocks(),
            Step::Super(_) => self.create_flush(Step::SuperFlush),
            _ => self.create_finish(),
        }
    }

    fn create_flush(&mut self, step: fn(u16) -> Step) {
        let targets: Vec<_> = self.devices.iter().flatten().map(|d| d.id).collect();
        if let Some(c) = self.creating() {
            c.outstanding = targets.len();
        }
        for (i, device) in targets.into_iter().enumerate() {
            self.flush(Pending::Create(step(i as u16)), device);
        }
    }

    /// The superblock of a member of this array.
    pub(super) fn superblock(&self, member: u16) -> Superblock {
        let record = &self.config.members[member as usize];
        Superblock {
            compat: 0,
            array_uuid: self.config.array_uuid,
            array_name: self.name.clone(),
            member_uuid: record.uuid,
            member,
            shards: self.layout.shards,
            size: record.size,
            extent: self.layout.extent,
            slot_offset: u64::from(SUPERBLOCK_BYTES),
            slot_len: self.layout.slot_len,
            data_offset: self.layout.data_offset,
        }
    }

    fn create_superblocks(&mut self) {
        let targets: Vec<_> = self.devices.iter().flatten().map(|d| (d.id, d.size)).collect();
        if let Some(c) = self.creating() {
            c.outstanding = targets.len() * 2;
        }
        for (i, (device, size)) in targets.into_iter().enumerate() {
            let bytes = self.superblock(i as u16).encode();
            self.write(Pending::Create(Step::Super(i as u16)), device, 0, bytes.clone());
            self.write(Pending::Create(Step::Super(i as u16)), device, end_copy_offset(size), bytes);
        }
    }

    fn create_finish(&mut self) {
        let Some(tag) = self.creating().map(|c| c.tag) else { return };
        self.config.creating = false;
        self.phase = Phase::Running;
        let text = format!("array '{}' was created with {} members", self.name, self.config.members.len());
        self.notice(Severity::Info, "array-created", None, None, text);
        self.commit(Some(After::Reply(tag, Answer::Done)));
    }

    fn create_failed(&mut self, error: ManageError) {
        let Some(tag) = self.creating().map(|c| c.tag) else { return };
        self.phase = Phase::Over;
        self.refuse(tag, error.kind, error.message);
    }

    /// Whether every volume survives the loss of `member` too.
    pub(super) fn survives_without(&self, member: u16) -> bool {
        self.config.volumes.iter().all(|v| {
            v.groups.iter().all(|g| {
                let readable: Vec<bool> = g
                    .slots
                    .iter()
                    .map(|s| s.member != member && self.live_state(s.member, s.state) == crate::view::SlotState::InSync)
                    .collect();
                survives(&v.geometry, &readable)
            })
        })
    }
}

/// What a device carries, in words.
pub(super) fn carried(head: &[u8], tail: &[u8]) -> Option<String> {
    for copy in [head, tail] {
        if let Ok(sb) = Superblock::decode(copy) {
            return Some(format!("a superblock of the raidd array '{}'", sb.array_name));
        }
    }
    if head.get(..8) == Some(b"RAIDDSB1") || tail.get(..8) == Some(b"RAIDDSB1") {
        return Some("a damaged superblock of a raidd array".to_string());
    }
    foreign_signature(head, tail).map(str::to_string)
}
