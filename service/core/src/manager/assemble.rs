//! Putting an array together from its members (service/docs/recovery.md).

use std::collections::BTreeMap;

use super::commit::survives;
use super::{
    After, Answer, CommandTag, DeviceId, DeviceInfo, ErrorKind, Layout, ManageError, Manager, Pending, Phase, Severity,
    Uuid,
};
use crate::action::IoStatus;
use crate::geometry::Level;
use crate::ondisk::{
    Config as Stored, Corrupt, RecordState, SUPERBLOCK_BYTES, Superblock, decode_config, end_copy_offset, extents_of,
};
use crate::units::Tick;
use crate::view::SlotState;

/// How to assemble.
#[derive(Clone, Debug, Default)]
pub(super) struct AssembleOptions {
    /// Go on where data may be lost; the refusal without it says what.
    pub force: bool,
    /// A random identity for this assembly.
    pub history: Uuid,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    First(usize),
    Last(usize),
    Slot(usize, usize),
}

/// A device and what was read from it.
struct Found {
    device: DeviceInfo,
    copies: [Option<Result<Superblock, Corrupt>>; 2],
    superblock: Option<Superblock>,
    configs: [Option<Stored>; 2],
}

pub(super) struct Assembling {
    tag: CommandTag,
    options: AssembleOptions,
    found: Vec<Found>,
    outstanding: usize,
}

fn refusal(kind: ErrorKind, message: String) -> ManageError {
    ManageError { kind, message }
}

fn blank_config() -> Stored {
    Stored {
        generation: 0,
        array_uuid: [0; 16],
        creating: true,
        history: Vec::new(),
        members: Vec::new(),
        volumes: Vec::new(),
        next_volume: 0,
    }
}

impl Found {
    /// The newest configuration of this member.
    fn newest(&self) -> Option<&Stored> {
        self.configs.iter().flatten().max_by_key(|c| c.generation)
    }
}

impl Manager {
    /// Puts an array together from the devices that are there; members that are not among them are recorded as failed. The
    /// caller has waited for late devices. Answered like a creation. `history` is a fresh random UUID.
    pub fn assemble(
        now: Tick,
        config: super::Config,
        tag: CommandTag,
        history: Uuid,
        devices: Vec<DeviceInfo>,
        force: bool,
    ) -> Manager {
        let options = AssembleOptions { force, history };
        let mut manager = Manager::begin_assemble(now, tag, devices, options)
            .unwrap_or_else(|e| Manager::refused(now, tag, String::new(), e));
        manager.tuning = config;
        manager
    }

    /// A manager that says why it does nothing.
    pub(super) fn refused(now: Tick, tag: CommandTag, name: String, error: ManageError) -> Manager {
        let layout = Layout { extent: 1 << 20, slot_len: 4096, data_offset: 1 << 20, shards: 1 };
        let mut manager = Manager::blank(now, name, layout, blank_config(), Phase::Over);
        manager.refuse(tag, error.kind, error.message);
        manager
    }

    fn begin_assemble(
        now: Tick,
        tag: CommandTag,
        devices: Vec<DeviceInfo>,
        options: AssembleOptions,
    ) -> Result<Manager, ManageError> {
        if devices.is_empty() {
            return Err(refusal(
                ErrorKind::InvalidArgument,
                "no devices were named to assemble an array from".to_string(),
            ));
        }
        let found: Vec<Found> = devices
            .into_iter()
            .map(|device| Found { device, copies: [None, None], superblock: None, configs: [None, None] })
            .collect();
        let reads: Vec<(DeviceId, u64)> = found.iter().map(|f| (f.device.id, f.device.size)).collect();
        let phase = Phase::Assembling(Assembling { tag, options, outstanding: found.len() * 2, found });
        let layout = Layout { extent: 1 << 20, slot_len: 4096, data_offset: 1 << 20, shards: 1 };
        let mut m = Manager::blank(now, String::new(), layout, blank_config(), phase);
        for (i, (device, size)) in reads.into_iter().enumerate() {
            m.read(Pending::Assemble(Step::First(i)), device, 0, SUPERBLOCK_BYTES);
            m.read(Pending::Assemble(Step::Last(i)), device, end_copy_offset(size), SUPERBLOCK_BYTES);
        }
        Ok(m)
    }

    pub(super) fn assemble_read(&mut self, step: Step, result: Result<Vec<u8>, IoStatus>) {
        let Phase::Assembling(a) = &mut self.phase else { return };
        a.outstanding -= 1;
        match step {
            Step::First(i) | Step::Last(i) => {
                let copy = usize::from(matches!(step, Step::Last(_)));
                a.found[i].copies[copy] = result.ok().map(|bytes| Superblock::decode(&bytes));
            }
            Step::Slot(i, slot) => a.found[i].configs[slot] = result.ok().and_then(|bytes| decode_config(&bytes).ok()),
        }
        if a.outstanding > 0 {
            return;
        }
        let outcome = if matches!(step, Step::Slot(..)) { self.choose() } else { self.read_slots() };
        if let Err(error) = outcome
            && let Phase::Assembling(a) = &self.phase
        {
            let tag = a.tag;
            self.phase = Phase::Over;
            self.refuse(tag, error.kind, error.message);
        }
    }

    /// Superblocks are there: take the good copy, repair the other, and read the configuration slots.
    fn read_slots(&mut self) -> Result<(), ManageError> {
        let Phase::Assembling(a) = &mut self.phase else { return Ok(()) };
        let mut repairs = Vec::new();
        for f in &mut a.found {
            let good = f.copies.iter().position(|c| matches!(c, Some(Ok(_))));
            let Some(good) = good else {
                let why = f.copies.iter().flatten().filter_map(|c| c.as_ref().err()).find(|e| **e != Corrupt::NoMagic);
                let message = match why {
                    None => format!("{} has no raidd superblock: it belongs to no array", f.device.address),
                    Some(Corrupt::Checksum | Corrupt::Field(_)) => format!(
                        "both superblock copies of {} are damaged: leave the device out, assemble the array without it, and replace it",
                        f.device.address
                    ),
                    Some(e) => format!("{} cannot be used: {e}", f.device.address),
                };
                return Err(refusal(ErrorKind::Corrupt, message));
            };
            if !matches!(f.copies[1 - good], Some(Ok(_))) {
                repairs.push((
                    f.device.id,
                    [0, end_copy_offset(f.device.size)][1 - good],
                    f.device.address.clone(),
                    good,
                ));
            }
            if let Some(Ok(sb)) = f.copies[good].take() {
                f.superblock = Some(sb);
            }
        }
        let first = a.found[0].superblock.clone().expect("every device has one now");
        let mut seen: BTreeMap<Uuid, &str> = BTreeMap::new();
        for f in &a.found {
            let sb = f.superblock.as_ref().expect("every device has one now");
            if sb.array_uuid != first.array_uuid {
                let message = format!(
                    "{} belongs to array '{}', {} to array '{}': assemble one array at a time",
                    a.found[0].device.address, first.array_name, f.device.address, sb.array_name
                );
                return Err(refusal(ErrorKind::InvalidArgument, message));
            }
            if let Some(other) = seen.insert(sb.member_uuid, &f.device.address) {
                let message = format!(
                    "{other} and {} are the same member of array '{}': one is a copy of the other; name only one of them",
                    f.device.address, sb.array_name
                );
                return Err(refusal(ErrorKind::InvalidArgument, message));
            }
        }
        self.name = first.array_name.clone();
        self.layout = Layout {
            extent: first.extent,
            slot_len: first.slot_len,
            data_offset: first.data_offset,
            shards: first.shards,
        };
        a.outstanding = a.found.len() * 2;
        let reads: Vec<(usize, DeviceId)> = a.found.iter().enumerate().map(|(i, f)| (i, f.device.id)).collect();
        let superblocks: Vec<Superblock> = a.found.iter().filter_map(|f| f.superblock.clone()).collect();
        for (device, offset, address, good) in repairs {
            let sb = reads.iter().find(|(_, d)| *d == device).map(|(i, _)| &superblocks[*i]);
            if let Some(sb) = sb {
                self.write(Pending::Repair, device, offset, sb.encode());
            }
            let which = ["second", "first"][good];
            let text =
                format!("the {which} superblock copy of {address} was damaged; it is repaired from the other one");
            self.notice(Severity::Warning, "superblock-repaired", None, None, text);
        }
        for (i, device) in reads {
            for slot in 0..2 {
                let offset = u64::from(SUPERBLOCK_BYTES) + slot as u64 * u64::from(first.slot_len);
                self.read(Pending::Assemble(Step::Slot(i, slot)), device, offset, first.slot_len);
            }
        }
        Ok(())
    }

    /// Everything is read: choose the newest configuration, place the devices, refuse what would be wrong.
    fn choose(&mut self) -> Result<(), ManageError> {
        let Phase::Assembling(a) = &self.phase else { return Ok(()) };
        let uuid = a.found[0].superblock.as_ref().map(|s| s.array_uuid).unwrap_or_default();
        let newest = a
            .found
            .iter()
            .filter_map(Found::newest)
            .filter(|c| c.array_uuid == uuid)
            .max_by_key(|c| c.generation)
            .cloned();
        let Some(config) = newest else {
            let text = format!(
                "no configuration of array '{}' can be read from any of the devices: it is lost on all of them, or the creation was interrupted; create the array again with --wipe",
                self.name
            );
            return Err(refusal(ErrorKind::Corrupt, text));
        };
        if config.creating {
            let text = format!(
                "the creation of array '{}' was interrupted: create it again with --wipe; it holds no data",
                self.name
            );
            return Err(refusal(ErrorKind::FailedPrecondition, text));
        }
        for f in &a.found {
            if let Some(own) = f.newest() {
                diverged(&self.name, &config, own, &f.device.address)?;
            }
        }
        self.place(config)
    }

    fn place(&mut self, config: Stored) -> Result<(), ManageError> {
        let Phase::Assembling(a) = &mut self.phase else { return Ok(()) };
        let (tag, options) = (a.tag, a.options.clone());
        let found = std::mem::take(&mut a.found);
        let newest = config.generation;
        self.config = config;
        self.devices = vec![None; self.config.members.len()];
        self.reasons = vec![String::new(); self.config.members.len()];
        self.read_repairs = vec![0; self.config.members.len()];
        self.write_errors = vec![0; self.config.members.len()];
        let mut stale: Vec<(u16, String)> = Vec::new();
        for f in found {
            let sb = f.superblock.as_ref().expect("checked before");
            let at = self.config.members.iter().position(|m| m.uuid == sb.member_uuid);
            let Some(m) = at.filter(|m| self.config.members[*m].state != RecordState::Removed) else {
                let text = format!(
                    "{} is no longer a member of array '{}': it was removed; it is left alone",
                    f.device.address, self.name
                );
                self.notice(Severity::Warning, "not-a-member", None, None, text);
                continue;
            };
            let generation = f.newest().map_or(0, |c| c.generation);
            if f.device.size < self.config.members[m].size {
                let text = format!(
                    "it has become smaller: {} bytes, {} when it was added",
                    f.device.size, self.config.members[m].size
                );
                stale.push((m as u16, text));
            } else if self.config.members[m].state == RecordState::Failed {
                stale
                    .push((m as u16, format!("it was recorded as failed, its generation is {generation} of {newest}")));
            } else if generation + 1 < newest && !options.force {
                stale.push((m as u16, format!("it is behind: generation {generation} of {newest}")));
            } else {
                self.config.members[m].address = f.device.address.clone();
                self.devices[m] = Some(f.device);
            }
        }
        self.check_complete(tag, &options, stale)
    }

    fn check_complete(
        &mut self,
        tag: CommandTag,
        options: &AssembleOptions,
        stale: Vec<(u16, String)>,
    ) -> Result<(), ManageError> {
        let absent: Vec<u16> = (0..self.config.members.len() as u16)
            .filter(|m| self.devices[*m as usize].is_none())
            .filter(|m| matches!(self.config.members[*m as usize].state, RecordState::Active | RecordState::Spare))
            .collect();
        let gone = |m: u16| absent.contains(&m) || stale.iter().any(|s| s.0 == m);
        let mut at_risk = Vec::new();
        for v in &self.config.volumes {
            let degraded =
                v.groups.iter().any(|g| g.slots.iter().any(|s| s.state != SlotState::InSync || gone(s.member)));
            let dead = v.groups.iter().any(|g| {
                let readable: Vec<bool> =
                    g.slots.iter().map(|s| s.state == SlotState::InSync && !gone(s.member)).collect();
                !survives(&v.geometry, &readable)
            });
            if dead {
                let missing: Vec<String> = absent
                    .iter()
                    .chain(stale.iter().map(|s| &s.0))
                    .map(|m| format!("{m} ({})", self.config.members[*m as usize].address))
                    .collect();
                let text = format!(
                    "array '{}' cannot be assembled: volume '{}' needs more members than are there. Missing or stale: {}. Bring them back and assemble again; '--force' takes members that are behind as they are, and what was written since they fell behind may read as older data",
                    self.name,
                    v.name,
                    missing.join(", ")
                );
                return Err(refusal(ErrorKind::FailedPrecondition, text));
            }
            let parity = matches!(v.geometry.level, Level::Raid5 | Level::Raid6);
            if degraded && v.dirty && parity && v.policy == super::Policy::Resync {
                at_risk.push(v.name.clone());
            }
        }
        if !at_risk.is_empty() && !options.force {
            let text = format!(
                "array '{}' was not stopped cleanly and a member is missing: blocks of volume {} that were being written, and their neighbours on the missing member, may be wrong and cannot be checked. Bring the missing member back, or assemble with '--force' and check the contents",
                self.name,
                at_risk.join(", ")
            );
            return Err(refusal(ErrorKind::FailedPrecondition, text));
        }
        self.accept(tag, options, absent, stale, &at_risk);
        Ok(())
    }

    /// Records what this assembly found, before anything is written to a volume.
    fn accept(
        &mut self,
        tag: CommandTag,
        options: &AssembleOptions,
        absent: Vec<u16>,
        stale: Vec<(u16, String)>,
        at_risk: &[String],
    ) {
        for (m, why) in absent.into_iter().map(|m| (m, "missing at assembly".to_string())).chain(stale) {
            let address = self.config.members[m as usize].address.clone();
            self.config.members[m as usize].state = RecordState::Failed;
            for v in &mut self.config.volumes {
                for slot in v.groups.iter_mut().flat_map(|g| &mut g.slots).filter(|s| s.member == m) {
                    slot.state = SlotState::Missing;
                }
            }
            let text = format!(
                "member {m} ({address}) of array '{}' is not used: {why}. The array goes on without it; 'raidctl member replace {} {m} --with DEVICE' restores the redundancy, with the same device too",
                self.name, self.name
            );
            self.reasons[m as usize] = why;
            self.notice(Severity::Warning, "member-missing", Some(m), None, text);
        }
        for v in &mut self.config.volumes {
            if v.dirty && v.policy == super::Policy::Resync {
                // A forced assembly of a degraded volume has nothing to compare with: what is there counts.
                let forced = at_risk.contains(&v.name);
                v.groups.iter_mut().for_each(|g| g.synced = forced);
            }
        }
        let next = self.config.generation + 1;
        self.config.history.push((next, options.history));
        if self.config.history.len() > crate::ondisk::HISTORY_MAX {
            self.config.history.remove(0);
        }
        self.phase = Phase::Running;
        let used = self.devices.iter().flatten().count();
        let text = format!("array '{}' was assembled from {used} members", self.name);
        self.notice(Severity::Info, "array-assembled", None, None, text);
        self.commit(Some(After::Reply(tag, Answer::Done)));
    }

    /// Free extents of each member, as bit sets of used ones.
    pub(super) fn used_extents(&self) -> Vec<Vec<bool>> {
        let mut used: Vec<Vec<bool>> = self
            .config
            .members
            .iter()
            .map(|m| vec![false; extents_of(m.size, self.layout.data_offset, self.layout.extent) as usize])
            .collect();
        for s in self.config.volumes.iter().flat_map(|v| &v.groups).flat_map(|g| &g.slots) {
            if s.state != SlotState::Missing
                && let Some(bit) = used[s.member as usize].get_mut(s.extent as usize)
            {
                *bit = true;
            }
        }
        used
    }
}

/// Refuses a member whose history is not a part of the newest configuration's.
fn diverged(name: &str, newest: &Stored, own: &Stored, address: &str) -> Result<(), ManageError> {
    let identity = |c: &Stored, generation: u64| c.history.iter().rev().find(|h| h.0 <= generation).map(|h| h.1);
    let (ours, theirs) = (identity(newest, own.generation), identity(own, own.generation));
    // A history that is too old to be in the list any more cannot be told apart; such a member is stale anyway.
    if ours.is_none() || ours == theirs {
        return Ok(());
    }
    let hex = |id: Option<Uuid>| id.unwrap_or_default().iter().take(4).map(|b| format!("{b:02x}")).collect::<String>();
    Err(refusal(
        ErrorKind::FailedPrecondition,
        format!(
            "array '{name}' has two histories: {address} was assembled apart from the others (history {} at generation {}, the others have {}). Both may hold acknowledged writes. Decide which to keep, and assemble only its members; the others can be added again with --wipe",
            hex(theirs),
            own.generation,
            hex(ours)
        ),
    ))
}
