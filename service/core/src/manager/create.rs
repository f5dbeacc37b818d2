//! Creation. In this order, each step durable on all devices before the next: what was there before is erased; a
//! configuration that says "creating" is written; the superblocks are written; the first real configuration is committed.
//! A crash before the last step leaves something that assembly refuses by name, never half an array.

use super::task::{Kind, Next};
use super::{
    Answer, ArraySpec, ArrayState, CommandTag, DeviceInfo, ErrorKind, Identity, ManageError, Manager, MemberPlace,
    Severity, Uuid, refuse,
};
use crate::ondisk::{
    Corrupt, EXTENT_MIN, FOREIGN_PROBE, FailReason, MemberRecord, RecordState, SUPERBLOCK_BYTES, Superblock,
    encode_config, end_copy_offset, extents_of, foreign_signature, layout,
};
use crate::units::Bytes;

/// Bytes at a device's end that are erased, so that no old signature is found there.
const TAIL_ERASED: u64 = 128 << 10;
/// Parts of a device that are probed.
const HEAD: u8 = 0;
const TAIL: u8 = 1;

#[derive(Clone, Copy)]
enum Phase {
    Probe,
    Check,
    FlushErased,
    Provisional,
    FlushProvisional,
    Superblocks,
    FlushSuperblocks,
    Commit,
    Done,
}

pub(super) struct CreateTask {
    phase: Phase,
    history: Uuid,
    spec: ArraySpec,
    devices: Vec<DeviceInfo>,
}

impl Manager {
    pub(super) fn begin_create(&mut self, tag: CommandTag, history: Uuid, spec: ArraySpec, devices: Vec<DeviceInfo>) {
        self.identity.name.clone_from(&spec.name);
        self.identity.uuid = spec.uuid;
        self.begin(tag, Kind::Create(Box::new(CreateTask { phase: Phase::Probe, history, spec, devices })));
    }

    pub(super) fn create_phase(&mut self, t: &mut CreateTask) -> Next {
        let addresses: Vec<_> = t.devices.iter().map(|d| (d.id, d.address.as_str())).collect();
        let what = match t.phase {
            Phase::FlushErased | Phase::Provisional => "it was being erased",
            _ => "the array was being created",
        };
        if let Some(error) = self.task_failure(&addresses, what) {
            return Next::End(Err(error));
        }
        match t.phase {
            Phase::Probe => {
                if let Err(e) = check_spec(&t.spec, &t.devices, self.config.least_extent) {
                    return Next::End(Err(e));
                }
                for d in &t.devices {
                    self.probe(d);
                }
                t.phase = Phase::Check;
            }
            Phase::Check => {
                for d in &t.devices {
                    match self.probed(d) {
                        Ok(found) if t.spec.wipe || matches!(found, Found::Nothing) => {}
                        Ok(found) => return Next::End(Err(found.refusal(d))),
                        Err(e) => return Next::End(Err(e)),
                    }
                }
                if let Err(e) = self.lay_out(t) {
                    return Next::End(Err(e));
                }
                for d in &t.devices {
                    self.erase(d);
                }
                t.phase = Phase::FlushErased;
            }
            Phase::FlushErased => {
                self.flush_all(&t.devices);
                t.phase = Phase::Provisional;
            }
            Phase::Provisional => {
                self.wanted.generation = 1;
                let bytes = encode_config(&self.wanted);
                for d in &t.devices {
                    self.task_write(d.id, u64::from(SUPERBLOCK_BYTES), bytes.clone());
                }
                t.phase = Phase::FlushProvisional;
            }
            Phase::FlushProvisional => {
                self.flush_all(&t.devices);
                t.phase = Phase::Superblocks;
            }
            Phase::Superblocks => {
                for (m, d) in t.devices.iter().enumerate() {
                    self.write_superblocks(d, m as u16, t.spec.member_uuids[m]);
                }
                t.phase = Phase::FlushSuperblocks;
            }
            Phase::FlushSuperblocks => {
                self.flush_all(&t.devices);
                t.phase = Phase::Commit;
            }
            Phase::Commit => {
                self.wanted.creating = false;
                self.wanted.counted = 1;
                // No volume exists yet, so nothing can be written before the configuration counts.
                self.state = ArrayState::Running;
                t.phase = Phase::Done;
                return Next::Published(self.changed());
            }
            Phase::Done => {
                let message = format!("array '{}' created on {} members", t.spec.name, t.devices.len());
                self.notice(Severity::Info, "array-created", None, None, message);
                return Next::End(Ok(Answer::Done));
            }
        }
        Next::Phase
    }

    /// Derives the layout and the first configuration.
    fn lay_out(&mut self, t: &CreateTask) -> Result<(), ManageError> {
        let sizes = || t.devices.iter().map(|d| d.size);
        let (smallest, largest) = (sizes().min().unwrap_or(0), sizes().max().unwrap_or(0));
        let (extent, slot_len, data_offset) = layout(smallest, t.spec.extent);
        for d in &t.devices {
            if extents_of(d.size, data_offset, extent) == 0 {
                let needed = data_offset + extent + u64::from(SUPERBLOCK_BYTES);
                return Err(refuse(
                    ErrorKind::InvalidArgument,
                    format!(
                        "{} has {}, too little for metadata and one extent: at least {} are needed. Use a larger device, or \
                         smaller extents",
                        d.address,
                        Bytes(d.size),
                        Bytes(needed)
                    ),
                ));
            }
        }
        if smallest != largest {
            let message = format!(
                "members differ in size: the smallest has {}, the largest {} more. A volume that spans all members uses \
                 the smallest size of each",
                Bytes(smallest),
                Bytes(largest - smallest)
            );
            self.notice(Severity::Warning, "sizes-differ", None, None, message);
        }
        self.identity = Identity {
            name: t.spec.name.clone(),
            uuid: t.spec.uuid,
            extent,
            shards: t.spec.shards,
            slot_len,
            data_offset,
        };
        let spares_from = t.devices.len() - usize::from(t.spec.spares);
        self.wanted.array_uuid = t.spec.uuid;
        self.wanted.begin_history(1, t.history);
        for (m, d) in t.devices.iter().enumerate() {
            let state = if m < spares_from { RecordState::Active } else { RecordState::Spare };
            self.push_member(d.clone(), t.spec.member_uuids[m], state, 1);
        }
        if !self.fits(&self.wanted) {
            return Err(refuse(
                ErrorKind::InvalidArgument,
                "so many members' addresses do not fit into the configuration: use fewer members or shorter paths",
            ));
        }
        Ok(())
    }

    /// Adds a member's record.
    pub(super) fn push_member(&mut self, device: DeviceInfo, uuid: Uuid, state: RecordState, joined: u64) {
        self.wanted.members.push(MemberRecord {
            uuid,
            state,
            reason: FailReason::Fine,
            replaces: None,
            partial: false,
            left: 0,
            joined,
            role: 0,
            size: device.size,
            address: clip(&device.address),
        });
        // Slot 0 holds what was written before the first commit, if anything was.
        self.places.push(MemberPlace { device: Some(device), newest_slot: 0, ..MemberPlace::default() });
    }

    /// Orders the reads that tell what a device carries.
    pub(super) fn probe(&mut self, d: &DeviceInfo) {
        self.task_read(d.id, HEAD, 0, head_len(d.size));
        self.task_read(d.id, TAIL, end_copy_offset(d.size), SUPERBLOCK_BYTES);
    }

    /// What the reads of [`Manager::probe`] found.
    pub(super) fn probed(&mut self, d: &DeviceInfo) -> Result<Found, ManageError> {
        let head = self.task_io.take_read(d.id, HEAD);
        let tail = self.task_io.take_read(d.id, TAIL);
        let (Ok(head), Ok(tail)) = (head, tail) else {
            return Err(refuse(
                ErrorKind::Device,
                format!("{} cannot be read; check the device and try again", d.address),
            ));
        };
        for copy in [&head, &tail] {
            match Superblock::decode(copy) {
                Ok(sb) => return Ok(Found::Member(Box::new(sb))),
                Err(Corrupt::NoMagic) => {}
                Err(_) => return Ok(Found::Other("a damaged or newer raidd superblock")),
            }
        }
        Ok(foreign_signature(&head, &tail).map_or(Found::Nothing, Found::Other))
    }

    /// Erases what a device carries where signatures, superblocks and configurations are looked for.
    pub(super) fn erase(&mut self, d: &DeviceInfo) {
        let end = end_copy_offset(d.size) + u64::from(SUPERBLOCK_BYTES);
        let head = self.identity.data_offset;
        self.task_zero(d.id, 0, head);
        let tail = end.saturating_sub(TAIL_ERASED).max(head);
        self.task_zero(d.id, tail, end - tail);
    }

    pub(super) fn write_superblocks(&mut self, d: &DeviceInfo, member: u16, uuid: Uuid) {
        let bytes = self.superblock(member, uuid, d.size).encode();
        self.task_write(d.id, end_copy_offset(d.size), bytes.clone());
        self.task_write(d.id, 0, bytes);
    }

    fn superblock(&self, member: u16, member_uuid: Uuid, size: u64) -> Superblock {
        Superblock {
            compat: 0,
            array_uuid: self.identity.uuid,
            array_name: self.identity.name.clone(),
            member_uuid,
            member,
            shards: self.identity.shards,
            size,
            extent: self.identity.extent,
            slot_offset: u64::from(SUPERBLOCK_BYTES),
            slot_len: self.identity.slot_len,
            data_offset: self.identity.data_offset,
        }
    }

    pub(super) fn flush_all(&mut self, devices: &[DeviceInfo]) {
        for d in devices {
            self.task_flush(d.id);
        }
    }
}

/// What a device carries.
pub(super) enum Found {
    Nothing,
    Member(Box<Superblock>),
    Other(&'static str),
}

impl Found {
    /// Why the device is not taken without `wipe`.
    pub(super) fn refusal(&self, d: &DeviceInfo) -> ManageError {
        let what = match self {
            Found::Nothing => "nothing".into(),
            Found::Member(sb) => format!("a member of the raidd array '{}'", sb.array_name),
            Found::Other(what) => (*what).to_string(),
        };
        refuse(
            ErrorKind::FailedPrecondition,
            format!("{} carries {what}; nothing was changed. If its data may go, say --wipe", d.address),
        )
    }
}

fn head_len(size: u64) -> u32 {
    u64::from(FOREIGN_PROBE).min(size / 4096 * 4096) as u32
}

/// An address hint as it fits on disk.
fn clip(address: &str) -> String {
    let mut end = address.len().min(1024);
    while !address.is_char_boundary(end) {
        end -= 1;
    }
    address[..end].to_string()
}

/// Names are parts of resource names, paths and NQNs, so they are plain.
pub(super) fn check_name(what: &str, name: &str) -> Result<(), ManageError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty()
        || name.len() > 63
        || !name.chars().all(plain)
        || !name.starts_with(|c: char| c.is_ascii_alphanumeric())
    {
        let shown: String = name.chars().take(80).collect();
        return Err(refuse(
            ErrorKind::InvalidArgument,
            format!(
                "'{}' is no name for {what}: use 1 to 63 letters, digits, '-', '_' or '.', beginning with a letter or digit",
                shown.escape_default()
            ),
        ));
    }
    Ok(())
}

/// What can be refused before any device is read.
fn check_spec(spec: &ArraySpec, devices: &[DeviceInfo], least_extent: u64) -> Result<(), ManageError> {
    let invalid = |message: String| Err(refuse(ErrorKind::InvalidArgument, message));
    check_name("an array", &spec.name)?;
    if usize::from(spec.spares) >= devices.len() {
        return invalid(format!(
            "too few members: {} devices of which {} are spares; at least one must be no spare",
            devices.len(),
            spec.spares
        ));
    }
    if spec.shards == 0 {
        return invalid("an array has at least one shard; 16 is usual".into());
    }
    if let Some(e) = spec.extent
        && !(e.is_power_of_two() && (least_extent.max(EXTENT_MIN)..=1 << 40).contains(&e))
    {
        return invalid(format!("an extent is a power of two from {} to 1 TiB, not {}", Bytes(least_extent), Bytes(e)));
    }
    if spec.member_uuids.len() != devices.len() {
        return invalid(format!("{} member UUIDs for {} devices", spec.member_uuids.len(), devices.len()));
    }
    check_distinct(devices)?;
    let mut uuids = spec.member_uuids.clone();
    uuids.sort_unstable();
    if uuids.windows(2).any(|w| w[0] == w[1]) {
        return invalid("two members have the same UUID".into());
    }
    for d in devices {
        if d.size < 2 * u64::from(FOREIGN_PROBE) {
            return invalid(format!("{} has {}, too little for a member", d.address, Bytes(d.size)));
        }
    }
    Ok(())
}

/// No device twice.
pub(super) fn check_distinct(devices: &[DeviceInfo]) -> Result<(), ManageError> {
    for (i, d) in devices.iter().enumerate() {
        if devices[..i].iter().any(|o| o.id == d.id || o.address == d.address) {
            return Err(refuse(
                ErrorKind::InvalidArgument,
                format!("{} is given twice; name each device once", d.address),
            ));
        }
    }
    Ok(())
}
