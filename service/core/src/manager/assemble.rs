//! Assembly: read what the devices hold, decide (`decide`), repair superblock copies, and commit twice. The first commit
//! begins a new history and records who is missing; the second one says that the first counts. Only then are volumes
//! online, so whatever was acknowledged under a history lies behind a `counted` that names it, and members that went apart
//! can be told from members that only missed a commit.

use super::decide::{Found, decide};
use super::load::Loading;
use super::task::{Kind, Next, status_text};
use super::{
    Answer, ArrayState, CommandTag, DeviceId, DeviceInfo, ErrorKind, Identity, ManageError, Manager, MemberPlace,
    Severity, Uuid, refuse,
};
use crate::action::IoStatus;
use crate::ondisk::{self, Corrupt, SUPERBLOCK_BYTES, Superblock, decode_config, end_copy_offset};
use crate::units::Bytes;

const COPY_A: u8 = 0;
const COPY_B: u8 = 1;
const SLOT_0: u8 = 2;

#[derive(Clone, Copy)]
enum Phase {
    Superblocks,
    Slots,
    Decide,
    Bitmaps,
    FlushRepairs,
    Commit,
    Count,
    Done,
}

pub(super) struct AssembleTask {
    phase: Phase,
    history: Uuid,
    force: bool,
    devices: Vec<DeviceInfo>,
    found: Vec<Found>,
    /// The bitmaps that are being read.
    bitmaps: Loading,
}

impl Manager {
    pub(super) fn begin_assemble(&mut self, tag: CommandTag, history: Uuid, devices: Vec<DeviceInfo>, force: bool) {
        let task = AssembleTask {
            phase: Phase::Superblocks,
            history,
            force,
            devices,
            found: Vec::new(),
            bitmaps: Loading::default(),
        };
        self.begin(tag, Kind::Assemble(Box::new(task)));
    }

    pub(super) fn assemble_phase(&mut self, t: &mut AssembleTask) -> Next {
        match t.phase {
            Phase::Superblocks => {
                if t.devices.is_empty() {
                    return Next::End(Err(refuse(ErrorKind::InvalidArgument, "no device was given: name the members")));
                }
                if let Err(e) = super::create::check_distinct(&t.devices) {
                    return Next::End(Err(e));
                }
                for d in t.devices.iter().filter(|d| d.size >= 2 * u64::from(SUPERBLOCK_BYTES)) {
                    self.task_read(d.id, COPY_A, 0, SUPERBLOCK_BYTES);
                    self.task_read(d.id, COPY_B, end_copy_offset(d.size), SUPERBLOCK_BYTES);
                }
                t.phase = Phase::Slots;
                Next::Phase
            }
            Phase::Slots => match self.read_superblocks(t) {
                Err(e) => Next::End(Err(e)),
                Ok(()) => {
                    for f in &t.found {
                        self.read_slots(f.device.id, &f.sb);
                    }
                    t.phase = Phase::Decide;
                    Next::Phase
                }
            },
            Phase::Decide => {
                for f in &mut t.found {
                    f.slots = self.take_slots(f.device.id, &f.sb);
                }
                match decide(&t.found, t.history, t.force) {
                    Err(e) => return Next::End(Err(e)),
                    Ok(decision) => self.take_decision(t, decision),
                }
                t.phase = Phase::Bitmaps;
                Next::Phase
            }
            Phase::Bitmaps => {
                if !self.load_bitmaps(&mut t.bitmaps) {
                    t.phase = Phase::FlushRepairs;
                }
                Next::Phase
            }
            Phase::FlushRepairs => {
                for (device, status) in self.task_io.take_failed() {
                    self.repair_failed(device, status);
                }
                for (_, device) in self.live_members() {
                    self.task_flush(device);
                }
                t.phase = Phase::Commit;
                Next::Phase
            }
            Phase::Commit => {
                for (device, status) in self.task_io.take_failed() {
                    self.repair_failed(device, status);
                }
                t.phase = Phase::Count;
                Next::Published(self.changed())
            }
            Phase::Count => {
                self.state = ArrayState::Running;
                t.phase = Phase::Done;
                Next::Published(self.changed())
            }
            Phase::Done => {
                let config = &self.wanted;
                let message = format!("array '{}' assembled, generation {}", self.identity.name, config.generation);
                self.notice(Severity::Info, "array-assembled", None, None, message);
                Next::End(Ok(Answer::Done))
            }
        }
    }

    /// Orders the reads of a device's configuration slots.
    pub(super) fn read_slots(&mut self, device: DeviceId, sb: &Superblock) {
        for slot in 0..2 {
            let offset = sb.slot_offset + u64::from(slot) * u64::from(sb.slot_len);
            self.task_read(device, SLOT_0 + slot, offset, sb.slot_len);
        }
    }

    fn take_slots(&mut self, device: DeviceId, sb: &Superblock) -> [Option<ondisk::Config>; 2] {
        std::array::from_fn(|slot| {
            let bytes = self.task_io.take_read(device, SLOT_0 + slot as u8);
            let config = bytes.ok().and_then(|b| decode_config(&b).ok());
            config.filter(|c| c.check_against(sb).is_ok())
        })
    }

    /// What the reads of [`Manager::read_slots`] found.
    pub(super) fn slots_read(&mut self, device: &DeviceInfo, sb: Superblock) -> Found {
        let slots = self.take_slots(device.id, &sb);
        Found { device: device.clone(), sb, slots, repair: None }
    }

    fn repair_failed(&mut self, device: DeviceId, status: IoStatus) {
        let member = self.live_members().into_iter().find(|(_, d)| *d == device);
        if let Some((member, _)) = member {
            self.fail_member(member, super::reason_of(status));
        }
    }

    /// Sorts out the superblock copies and orders the repair of bad ones.
    fn read_superblocks(&mut self, t: &mut AssembleTask) -> Result<(), ManageError> {
        let mut last = None;
        for d in t.devices.clone() {
            let a = self.task_io.take_read(d.id, COPY_A);
            let b = self.task_io.take_read(d.id, COPY_B);
            if let (Err(a), Err(_)) = (&a, &b) {
                let message = format!(
                    "{} cannot be read ({}); it is left out, as if it were missing",
                    d.address,
                    status_text(*a)
                );
                self.notice(Severity::Error, "member-unreadable", None, None, message);
                continue;
            }
            let decode = |r: Result<Vec<u8>, IoStatus>| match r {
                Ok(bytes) => Superblock::decode(&bytes),
                Err(_) => Err(Corrupt::Field("unreadable")),
            };
            let (a, b) = (decode(a), decode(b));
            let (sb, repair) = match (a, b) {
                (Err(e @ (Corrupt::Incompatible(_) | Corrupt::Version(_))), _)
                | (_, Err(e @ (Corrupt::Incompatible(_) | Corrupt::Version(_)))) => {
                    return Err(refuse(
                        ErrorKind::FailedPrecondition,
                        format!("{}: {e}; nothing was changed", d.address),
                    ));
                }
                (Ok(a), Ok(b)) if a == b => (a, None),
                // Copy A is written last: where both are whole and differ, it is the newer one.
                (Ok(a), _) => (a, Some(("at its end", false))),
                (Err(_), Ok(b)) => (b, Some(("at its start", true))),
                (Err(a), Err(b)) => {
                    let refusal = unrecognised(&d.address, &a, &b);
                    if self.config.expect.is_none() {
                        return Err(refusal);
                    }
                    self.left_out(&refusal.message);
                    last = Some(refusal);
                    continue;
                }
            };
            if self.config.expect.is_some_and(|uuid| uuid != sb.array_uuid) {
                self.left_out(&format!("{} is a member of another array, '{}'", d.address, sb.array_name));
                continue;
            }
            if d.size < sb.size {
                let message = format!(
                    "{} has {}, but had {} when it became a member; it is left out, as if it were missing",
                    d.address,
                    Bytes(d.size),
                    Bytes(sb.size)
                );
                self.notice(Severity::Error, "member-shrunk", None, None, message);
                continue;
            }
            t.found.push(Found { device: d, sb, slots: [None, None], repair });
        }
        if t.found.is_empty() {
            return Err(last.unwrap_or_else(|| {
                refuse(ErrorKind::Device, "none of the devices can be read as a member; nothing was changed")
            }));
        }
        Ok(())
    }

    /// Says that a device goes unused. What it carries is not touched.
    fn left_out(&mut self, why: &str) {
        let message = format!("{why}. The array is assembled as if the device were missing, and it is not touched");
        self.notice(Severity::Error, "member-unrecognised", None, None, message);
    }

    /// Puts the decision in force: nothing has been written until here.
    fn take_decision(&mut self, t: &mut AssembleTask, decision: super::decide::Decision) {
        let sb = &t.found[decision.winner].sb;
        self.identity = Identity {
            name: sb.array_name.clone(),
            uuid: sb.array_uuid,
            extent: sb.extent,
            shards: sb.shards,
            slot_len: sb.slot_len,
            data_offset: sb.data_offset,
        };
        self.wanted = decision.config;
        t.bitmaps = Loading::new(decision.bitmaps);
        self.committed = self.wanted.clone();
        self.places = vec![MemberPlace::default(); self.wanted.members.len()];
        self.actions.extend(decision.notices.into_iter().map(super::ManagerAction::Notice));
        for (i, member) in decision.members {
            let f = &t.found[i];
            let place = &mut self.places[usize::from(member)];
            place.device = Some(f.device.clone());
            place.newest_slot = f.newest_slot();
            self.wanted.members[usize::from(member)].address.clone_from(&f.device.address);
        }
        for f in std::mem::take(&mut t.found) {
            let Some((which, at_start)) = f.repair else { continue };
            // Only members in use: what is stale or left out is not touched.
            let Some((member, _)) = self.live_members().into_iter().find(|(_, d)| *d == f.device.id) else { continue };
            let offset = if at_start { 0 } else { end_copy_offset(f.sb.size) };
            self.task_write(f.device.id, offset, f.sb.encode());
            let message = format!(
                "the superblock copy {which} of {} was corrupt or outdated; it was rewritten from the other copy",
                f.device.address
            );
            let member = crate::action::MemberId(member);
            self.notice(Severity::Warning, "superblock-repaired", Some(member), None, message);
        }
    }
}

/// The refusal of a device without a whole superblock copy.
fn unrecognised(address: &str, start: &Corrupt, end: &Corrupt) -> ManageError {
    if let (Corrupt::NoMagic, Corrupt::NoMagic) = (start, end) {
        let message = format!("{address} has no raidd superblock: it is no member of an array; leave it out");
        return refuse(ErrorKind::FailedPrecondition, message);
    }
    let message = format!(
        "both superblock copies of {address} are corrupt (start: {start}; end: {end}). Leave the device out to assemble \
         without it, and add it again with 'raidctl member add --wipe'"
    );
    refuse(ErrorKind::Corrupt, message)
}
