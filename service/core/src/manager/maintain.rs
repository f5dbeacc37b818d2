//! Rebuild and resync, one group at a time. A pass over a group is: slots get their targets (committed, published); every
//! stripe is ordered from the engines, a few at a time; the members that were written are flushed; the slots become
//! `InSync`, or the group `synced` (committed). The state on disk is the progress: after a restart the pass begins again
//! at the group where it stood. Rebuilds go before resyncs, because a lost member is the nearer danger.

use std::collections::{BTreeMap, BTreeSet};

use super::redundancy::{Used, degraded, has_parity, in_sync, viable};
use super::{
    Answer, ArrayState, CommandTag, ErrorKind, Manager, ManagerAction, OperationKind, OperationState, OperationStatus,
    Pending, Severity, reason_of, refuse,
};
use crate::action::{IoStatus, MemberId, ReqStatus, VolumeId};
use crate::geometry::Geometry;
use crate::ondisk::{GroupRecord, RecordState, SlotRecord, VolumeRecord};
use crate::regions::Region;
use crate::units::Bytes;
use crate::view::SlotState;

/// Ended operations that are remembered.
const HISTORY: usize = 32;

/// Where a pass stands.
enum Stage {
    /// The view with this number must be out first.
    Preparing(u64),
    /// Stripes from `next` on are still to be ordered.
    Running { next: u32, in_flight: u32, failed: Option<ReqStatus> },
    /// What was written is being made durable.
    Flushing { outstanding: usize, failed: Vec<(MemberId, IoStatus)> },
}

/// Which stripes a pass does.
enum Which {
    /// All.
    All,
    /// Those of these bands: a resync by bitmap.
    Bands(Vec<bool>),
    /// A rebuild by bitmap: all but those of unwritten regions. For targets that were members before, also not those of
    /// clean ones.
    Written { returned: bool },
}

/// One group's rebuild or resync.
struct Pass {
    number: u64,
    operation: u64,
    volume: u32,
    group: u32,
    stripes: u32,
    /// Data bytes of a stripe.
    stripe_bytes: u64,
    /// Slot index and member of each target; empty for a resync.
    targets: Vec<(usize, u16)>,
    /// Which stripes of the group have to be done.
    which: Which,
    /// Stripes of a band.
    band: u32,
    /// The sequence number at its beginning.
    began: u64,
    /// A round of the bitmap that began before the group's slots were settled: what it makes zeros it does not make on
    /// the targets.
    after_round: Option<u64>,
    stage: Stage,
}

impl Pass {
    fn rebuild(&self) -> bool {
        !self.targets.is_empty()
    }
}

#[derive(Default)]
pub(super) struct Maintenance {
    pub operations: Vec<OperationStatus>,
    last_operation: u64,
    pass: Option<Pass>,
    last_pass: u64,
    /// Groups that could not be finished, until a member is added or the array is assembled again.
    blocked: BTreeMap<(u32, u32), String>,
    /// Given up by command.
    rebuild_held: bool,
    resync_held: BTreeSet<u32>,
    /// The configuration was searched for work at this sequence number.
    scanned: Option<u64>,
}

impl Maintenance {
    pub fn next_operation(&mut self) -> u64 {
        let ended = self.operations.iter().filter(|o| o.state != OperationState::Running).count();
        if ended > HISTORY
            && let Some(oldest) = self.operations.iter().position(|o| o.state != OperationState::Running)
        {
            self.operations.remove(oldest);
        }
        self.last_operation += 1;
        self.last_operation
    }

    /// Something has changed that makes it worthwhile to try again what was given up.
    pub fn resume(&mut self) {
        self.rebuild_held = false;
        self.blocked.clear();
        self.scanned = None;
    }

    /// Stops ordering; answers that are still to come are ignored.
    pub fn abort(&mut self) {
        self.pass = None;
        self.scanned = None;
    }

    pub fn running(&self, kind: OperationKind) -> Option<&OperationStatus> {
        self.operations.iter().find(|o| o.kind == kind && o.state == OperationState::Running)
    }

    fn operation(&mut self, id: u64) -> Option<&mut OperationStatus> {
        self.operations.iter_mut().find(|o| o.id == id)
    }
}

/// A group's rebuild can be tried: its data is there, and what is missing can be computed.
fn can_rebuild(volume: &VolumeRecord, group: &GroupRecord, synced: bool) -> bool {
    let level = volume.geometry.level;
    degraded(group) && viable(level, &group.slots, in_sync) && (synced || !has_parity(level))
}

/// A group's redundancy can be made to match: parity needs all data, copies just one.
fn can_resync(volume: &VolumeRecord, group: &GroupRecord, synced: bool) -> bool {
    let level = volume.geometry.level;
    !synced && viable(level, &group.slots, in_sync) && !(has_parity(level) && degraded(group))
}

impl Manager {
    pub(super) fn step_maintenance(&mut self) -> bool {
        if self.state != ArrayState::Running {
            return false;
        }
        let Some(mut pass) = self.maintenance.pass.take() else { return self.next_pass() };
        let skipped = self.skip_band(&mut pass);
        let held = self.waits_for_round(&pass);
        match &mut pass.stage {
            _ if skipped => {}
            Stage::Preparing(sequence) if *sequence <= self.published && !held => {
                pass.stage = Stage::Running { next: 0, in_flight: 0, failed: None };
            }
            Stage::Running { next, in_flight, failed: None }
                if *next < pass.stripes && *in_flight < self.config.window =>
            {
                let tag = self.tag(Pending::Stripe(pass.number));
                self.actions.push_back(ManagerAction::Maintain {
                    tag,
                    volume: VolumeId(pass.volume),
                    group: pass.group,
                    stripe: *next,
                    rebuild: !pass.targets.is_empty(),
                });
                *next += 1;
                *in_flight += 1;
            }
            Stage::Running { in_flight: 0, failed: Some(status), .. } => {
                let status = *status;
                if status == ReqStatus::WriteFault && self.failed_at > pass.began {
                    // A member failed in the middle, and that is recorded: the pass begins again without it.
                    self.maintenance.scanned = None;
                } else {
                    self.block(&pass, status);
                }
                return true;
            }
            Stage::Running { in_flight: 0, failed: None, .. } => self.flush_pass(&mut pass),
            Stage::Flushing { outstanding: 0, failed } => {
                if failed.is_empty() {
                    self.finish_pass(&pass);
                } else {
                    for (member, status) in std::mem::take(failed) {
                        self.fail_member(member.0, reason_of(status));
                    }
                }
                self.maintenance.scanned = None;
                return true;
            }
            _ => {
                self.maintenance.pass = Some(pass);
                return false;
            }
        }
        self.maintenance.pass = Some(pass);
        true
    }

    fn waits_for_round(&self, pass: &Pass) -> bool {
        let round = self.bitmaps.get(&pass.volume).and_then(super::bitmap::Bitmap::round);
        round.is_some() && round == pass.after_round
    }

    /// Goes on to the next band if the one at hand has nothing to do.
    fn skip_band(&mut self, pass: &mut Pass) -> bool {
        let Stage::Running { next, failed: None, .. } = &mut pass.stage else { return false };
        if *next >= pass.stripes {
            return false;
        }
        let band = *next / pass.band;
        let state = self.bitmaps.get(&pass.volume).map(|b| {
            let bands = pass.stripes.div_ceil(pass.band);
            b.map().get(pass.group * bands + band)
        });
        let skip = match &pass.which {
            Which::All => false,
            Which::Bands(bands) => !bands[band as usize],
            Which::Written { returned } => match state {
                Some(Region::Unwritten) => true,
                Some(Region::Clean) => *returned,
                _ => false,
            },
        };
        if skip {
            let to = ((band + 1) * pass.band).min(pass.stripes);
            let bytes = u64::from(to - *next) * pass.stripe_bytes;
            *next = to;
            let id = pass.operation;
            if let Some(o) = self.maintenance.operation(id).filter(|o| o.kind == OperationKind::Rebuild) {
                o.done += bytes;
            }
        }
        skip
    }

    /// Looks for a group that needs work; ends operations that have none left.
    fn next_pass(&mut self) -> bool {
        if self.maintenance.scanned == Some(self.sequence) {
            return false;
        }
        if !self.maintenance.rebuild_held && self.next_rebuild() {
            return true;
        }
        if self.next_resync() {
            return true;
        }
        // What is left has been changed but may not count yet: an operation ends when it does.
        if self.published < self.sequence {
            return false;
        }
        self.maintenance.scanned = Some(self.sequence);
        self.end_operations();
        self.retire_replaced()
    }

    fn group(&mut self, volume: u32, group: u32) -> Option<&mut GroupRecord> {
        let volume = self.wanted.volumes.iter_mut().find(|v| v.id == volume)?;
        volume.groups.get_mut(group as usize)
    }

    fn next_rebuild(&mut self) -> bool {
        let blocked = &self.maintenance.blocked;
        let todo: Vec<(u32, u32, Geometry)> = self
            .wanted
            .volumes
            .iter()
            .flat_map(|v| v.groups.iter().enumerate().map(move |(g, group)| (v, g as u32, group)))
            .filter(|(v, g, group)| {
                can_rebuild(v, group, self.group_synced(v, *g as usize)) && !blocked.contains_key(&(v.id, *g))
            })
            .map(|(v, g, _)| (v.id, g, v.geometry))
            .collect();
        if todo.is_empty() {
            return false;
        }
        let used = self.used_extents();
        let free: Vec<u32> = (0..self.wanted.members.len() as u16).map(|m| used.free(m)).collect();
        // Groups without a target count too: one may turn up. The search ends at the first group that has one, because
        // this runs on a reactor, for each group again.
        let remaining: u64 = todo.iter().map(|(.., g)| g.group_bytes()).sum();
        let first = todo.into_iter().find_map(|(volume, group, geometry)| {
            let record = self.wanted.volumes.iter().find(|v| v.id == volume)?;
            let targets = self.targets(&record.groups[group as usize].slots, &used, &free);
            (!targets.is_empty()).then_some((volume, group, geometry, targets))
        });
        let Some((volume, group, geometry, targets)) = first else { return false };
        let lost = self.source_of(volume, group, targets[0].0);
        let operation = self.operation_for(OperationKind::Rebuild, None, lost, remaining);
        let mut changed = false;
        for &(slot, member, extent) in &targets {
            let Some(old) = self.group(volume, group).map(|g| g.slots[slot]) else { return false };
            changed |= self.claim_spare(member, old.member);
            let new = SlotRecord { member, extent, state: SlotState::Rebuilding };
            if old != new
                && let Some(g) = self.group(volume, group)
            {
                g.slots[slot] = new;
                changed = true;
            }
        }
        if changed {
            self.changed();
        }
        let targets: Vec<(usize, u16)> = targets.iter().map(|(s, m, _)| (*s, *m)).collect();
        let which = if self.bitmaps.contains_key(&volume) {
            Which::Written { returned: targets.iter().all(|(_, m)| self.returned.contains(m)) }
        } else {
            Which::All
        };
        self.start_pass(operation, volume, group, geometry, targets, which);
        true
    }

    fn start_pass(
        &mut self,
        operation: u64,
        volume: u32,
        group: u32,
        geometry: Geometry,
        targets: Vec<(usize, u16)>,
        which: Which,
    ) {
        self.maintenance.last_pass += 1;
        self.maintenance.pass = Some(Pass {
            number: self.maintenance.last_pass,
            operation,
            volume,
            group,
            stripes: geometry.stripes(),
            stripe_bytes: geometry.stripe_bytes(),
            targets,
            which,
            band: geometry.band_stripes(),
            began: self.sequence,
            after_round: self.bitmaps.get(&volume).and_then(super::bitmap::Bitmap::round),
            stage: Stage::Preparing(self.sequence),
        });
    }

    /// The member that a slot's rebuild is for, as messages and operations name it.
    fn source_of(&self, volume: u32, group: u32, slot: usize) -> Option<MemberId> {
        let volume = self.wanted.volumes.iter().find(|v| v.id == volume)?;
        let member = volume.groups.get(group as usize)?.slots.get(slot)?.member;
        Some(MemberId(self.wanted.members[usize::from(member)].replaces.unwrap_or(member)))
    }

    /// Slot, member and extent for each slot of the group that can be rebuilt now.
    pub(super) fn targets(&self, slots: &[SlotRecord], used: &Used, free: &[u32]) -> Vec<(usize, u16, u32)> {
        let mut in_group: Vec<u16> = slots.iter().map(|s| s.member).collect();
        let mut out = Vec::new();
        for (i, slot) in slots.iter().enumerate().filter(|(_, s)| !in_sync(s)) {
            if self.live_device(slot.member).is_some() {
                out.push((i, slot.member, slot.extent));
                continue;
            }
            let able = |m: u16| self.live_device(m).is_some() && free[usize::from(m)] > 0 && !in_group.contains(&m);
            let all = || (0..self.wanted.members.len() as u16).filter(|m| able(*m));
            let record = |m: u16| &self.wanted.members[usize::from(m)];
            let chosen = all()
                .find(|m| record(*m).replaces == Some(slot.member))
                .or_else(|| all().find(|m| self.is_free_spare(*m)))
                .or_else(|| {
                    // Free extents of the others are the distributed spare.
                    all()
                        .filter(|m| record(*m).state == RecordState::Active)
                        .max_by_key(|m| (free[usize::from(*m)], std::cmp::Reverse(*m)))
                });
            if let Some(member) = chosen
                && let Some(extent) = used.first_free(member, 0)
            {
                in_group.push(member);
                out.push((i, member, extent));
            }
        }
        out
    }

    fn next_resync(&mut self) -> bool {
        for v in &self.wanted.volumes {
            if self.maintenance.resync_held.contains(&v.id) {
                continue;
            }
            let todo = |(g, group): &(usize, &GroupRecord)| {
                can_resync(v, group, self.group_synced(v, *g))
                    && !self.maintenance.blocked.contains_key(&(v.id, *g as u32))
            };
            let (geometry, volume, bitmap) = (v.geometry, v.id, self.bitmaps.get(&v.id));
            let bands = geometry.bands();
            // The regions of a group that are to be done; all of it if the group as a whole is not known to match.
            let regions = |g: usize, group: &GroupRecord| {
                let first = g as u32 * bands;
                bitmap.filter(|_| group.synced).map(|b| b.need(first..first + bands))
            };
            let mut groups = v.groups.iter().enumerate().filter(todo).peekable();
            let Some((first, group)) = groups.peek().copied() else { continue };
            let which = regions(first, group).map_or(Which::All, |need| {
                let mut wanted = vec![false; bands as usize];
                need.for_each(|r| wanted[(r % bands) as usize] = true);
                Which::Bands(wanted)
            });
            let band_bytes = u64::from(geometry.band_stripes()) * geometry.stripe_bytes();
            let bytes =
                |(g, group)| regions(g, group).map_or(geometry.group_bytes(), |need| need.count() as u64 * band_bytes);
            let remaining = groups.map(bytes).sum();
            if let (Which::Bands(wanted), Some(b)) = (&which, bitmap) {
                for band in (0..bands).filter(|i| wanted[*i as usize]) {
                    b.syncing(first as u32 * bands + band, true);
                }
            }
            let operation = self.operation_for(OperationKind::Resync, Some(VolumeId(volume)), None, remaining);
            self.start_pass(operation, volume, first as u32, geometry, Vec::new(), which);
            return true;
        }
        false
    }

    /// The running operation of this kind, or a new one.
    fn operation_for(
        &mut self,
        kind: OperationKind,
        volume: Option<VolumeId>,
        member: Option<MemberId>,
        remaining: u64,
    ) -> u64 {
        let running = self
            .maintenance
            .operations
            .iter_mut()
            .find(|o| o.kind == kind && o.volume == volume && o.state == OperationState::Running);
        if let Some(o) = running {
            o.total = o.done + remaining;
            return o.id;
        }
        let id = self.maintenance.next_operation();
        let (what, code) = match kind {
            OperationKind::Rebuild => ("rebuild", "rebuild-began"),
            _ => ("resync", "resync-began"),
        };
        self.maintenance.operations.push(OperationStatus {
            id,
            kind,
            state: OperationState::Running,
            reason: String::new(),
            volume,
            member,
            done: 0,
            total: remaining,
        });
        let message =
            format!("{what} began, operation {}.{id}: {} to go through", self.identity.name, Bytes(remaining));
        self.notice(Severity::Info, code, member, volume, message);
        id
    }

    pub(super) fn stripe_done(&mut self, number: u64, status: ReqStatus) {
        let Some(pass) = self.maintenance.pass.as_mut().filter(|p| p.number == number) else { return };
        let Stage::Running { in_flight, failed, .. } = &mut pass.stage else { return };
        *in_flight -= 1;
        if status == ReqStatus::Ok {
            let (id, bytes) = (pass.operation, pass.stripe_bytes);
            if let Some(o) = self.maintenance.operation(id) {
                o.done += bytes;
            }
        } else {
            *failed = Some(status);
        }
    }

    /// A stripe could not be done: the group stays as it is, the others go on.
    fn block(&mut self, pass: &Pass, status: ReqStatus) {
        let what = if pass.rebuild() { "rebuilt" } else { "resynced" };
        let why = match status {
            ReqStatus::Unrecoverable => "blocks of other members cannot be read",
            ReqStatus::WriteFault => "a member could not be written",
            ReqStatus::Offline | ReqStatus::Aborted => "the volume is offline",
            _ => "the engine refused it",
        };
        if let (Which::Bands(wanted), Some(b)) = (&pass.which, self.bitmaps.get(&pass.volume)) {
            let bands = wanted.len() as u32;
            (0..bands).for_each(|band| b.syncing(pass.group * bands + band, false));
        }
        let volume = VolumeId(pass.volume);
        let message = format!("group {} of {} could not be {what}: {why}", pass.group, self.volume_name(volume));
        self.maintenance.blocked.insert((pass.volume, pass.group), message.clone());
        self.maintenance.scanned = None;
        self.notice(Severity::Error, "group-blocked", None, Some(volume), message);
    }

    /// All stripes are done: what was written must be durable before the configuration may say so.
    fn flush_pass(&mut self, pass: &mut Pass) {
        let members: Vec<u16> = if pass.rebuild() {
            pass.targets.iter().map(|(_, m)| *m).collect()
        } else {
            self.group(pass.volume, pass.group).map_or(Vec::new(), |g| g.slots.iter().map(|s| s.member).collect())
        };
        let mut outstanding = 0;
        for member in members {
            if let Some(device) = self.live_device(member) {
                let tag = self.tag(Pending::PassFlush(pass.number, MemberId(member)));
                self.actions.push_back(ManagerAction::Flush { tag, device });
                outstanding += 1;
            }
        }
        pass.stage = Stage::Flushing { outstanding, failed: Vec::new() };
    }

    pub(super) fn pass_flushed(&mut self, number: u64, member: MemberId, status: IoStatus) {
        let Some(pass) = self.maintenance.pass.as_mut().filter(|p| p.number == number) else { return };
        if let Stage::Flushing { outstanding, failed } = &mut pass.stage {
            *outstanding -= 1;
            if status != IoStatus::Ok {
                failed.push((member, status));
            }
        }
    }

    fn finish_pass(&mut self, pass: &Pass) {
        let Some(group) = self.group(pass.volume, pass.group) else { return };
        if pass.rebuild() {
            for &(slot, member) in &pass.targets {
                let slot = &mut group.slots[slot];
                if slot.member == member && slot.state == SlotState::Rebuilding {
                    slot.state = SlotState::InSync;
                }
            }
        } else if let Which::Bands(wanted) = &pass.which {
            let first = pass.group * wanted.len() as u32;
            let done = wanted.iter().enumerate().filter(|(_, w)| **w).map(|(i, _)| first + i as u32);
            if let Some(b) = self.bitmaps.get_mut(&pass.volume) {
                b.resynced(done);
            }
            return;
        } else {
            group.synced = true;
        }
        self.changed();
    }

    /// A member has failed: a pass that wrote to it, or that can no longer be right, begins again elsewhere.
    pub(super) fn pass_lost_member(&mut self, member: u16) {
        self.maintenance.rebuild_held = false;
        let Some(pass) = &self.maintenance.pass else { return };
        let (volume, group) = (pass.volume, pass.group);
        let lost_target = pass.targets.iter().any(|(_, m)| *m == member);
        let rebuild = pass.rebuild();
        let possible = self.wanted.volumes.iter().find(|v| v.id == volume).is_some_and(|v| {
            let synced = self.group_synced(v, group as usize);
            let group = &v.groups[group as usize];
            if rebuild { can_rebuild(v, group, synced) } else { can_resync(v, group, synced) }
        });
        // Nothing has been rebuilt yet: begun again, the pass takes the new loss along.
        let fresh = rebuild && matches!(pass.stage, Stage::Preparing(_));
        if lost_target || fresh || !possible {
            self.maintenance.abort();
        }
    }

    pub(super) fn pass_lost_volume(&mut self, volume: VolumeId) {
        self.maintenance.blocked.retain(|(v, _), _| *v != volume.0);
        self.maintenance.resync_held.remove(&volume.0);
        if self.maintenance.pass.as_ref().is_some_and(|p| p.volume == volume.0) {
            self.maintenance.abort();
        }
    }

    /// No work is left that can be done: running operations have ended, well or not.
    pub(super) fn end_operations(&mut self) {
        let mut ended = Vec::new();
        for i in 0..self.maintenance.operations.len() {
            let o = &self.maintenance.operations[i];
            if o.state != OperationState::Running || o.kind == OperationKind::Create {
                continue;
            }
            let reason = self.what_is_left(o.kind, o.volume);
            let o = &mut self.maintenance.operations[i];
            match reason {
                None => {
                    o.state = OperationState::Done;
                    o.done = o.total;
                }
                Some(reason) => {
                    o.state = OperationState::Failed;
                    o.reason = reason;
                }
            }
            ended.push(o.clone());
        }
        for o in ended {
            let what = if o.kind == OperationKind::Rebuild { "rebuild" } else { "resync" };
            let rebuild = o.kind == OperationKind::Rebuild;
            let (severity, code, message) = if o.state == OperationState::Done {
                let code = if rebuild { "rebuild-ended" } else { "resync-ended" };
                (Severity::Info, code, format!("{what} done, operation {}", o.id))
            } else {
                let code = if rebuild { "rebuild-failed" } else { "resync-failed" };
                (Severity::Error, code, format!("{what} ended early, operation {}: {}", o.id, o.reason))
            };
            self.notice(severity, code, o.member, o.volume, message);
        }
    }

    /// Why an operation of this kind could not do all of its work.
    fn what_is_left(&self, kind: OperationKind, volume: Option<VolumeId>) -> Option<String> {
        let rebuild = kind == OperationKind::Rebuild;
        for v in self.wanted.volumes.iter().filter(|v| volume.is_none_or(|id| id.0 == v.id)) {
            for (g, group) in v.groups.iter().enumerate() {
                let synced = self.group_synced(v, g);
                if rebuild && !degraded(group) || !rebuild && synced {
                    continue;
                }
                if let Some(why) = self.maintenance.blocked.get(&(v.id, g as u32)) {
                    return Some(why.clone());
                }
                let name = &v.name;
                return Some(if !viable(v.geometry.level, &group.slots, in_sync) {
                    format!("volume '{name}' has lost more members than its level survives; bring them back")
                } else if rebuild && has_parity(v.geometry.level) && !synced {
                    format!(
                        "volume '{name}' lost a member before it was resynced, so what is missing cannot be computed; \
                         restore it from a backup"
                    )
                } else if rebuild {
                    format!("no member has a free extent for volume '{name}'; add a spare with 'raidctl member add'")
                } else {
                    format!("volume '{name}' is degraded, and parity needs all data; bring the member back")
                });
            }
        }
        None
    }

    pub(super) fn cancel_command(&mut self, tag: CommandTag, id: u64) {
        let found = self.maintenance.operation(id).map(|o| (o.kind, o.state, o.volume));
        let Some((kind, state, volume)) = found else {
            let message = format!("there is no operation {id}; see 'raidctl operation list'");
            return self.reply(tag, Err(refuse(ErrorKind::NotFound, message)));
        };
        if state != OperationState::Running {
            let message = format!("operation {id} has ended already");
            return self.reply(tag, Err(refuse(ErrorKind::FailedPrecondition, message)));
        }
        if let Some(o) = self.maintenance.operation(id) {
            o.state = OperationState::Cancelled;
            o.reason = "cancelled by an operator".into();
        }
        if self.maintenance.pass.as_ref().is_some_and(|p| p.operation == id) {
            self.maintenance.abort();
        }
        match (kind, volume) {
            (OperationKind::Rebuild, _) => {
                self.maintenance.rebuild_held = true;
                // What is half rebuilt is not written to for nothing.
                for s in self.wanted.volumes.iter_mut().flat_map(VolumeRecord::slots_mut) {
                    if s.state == SlotState::Rebuilding {
                        s.state = SlotState::Missing;
                    }
                }
                self.changed();
            }
            (OperationKind::Resync, Some(volume)) => {
                self.maintenance.resync_held.insert(volume.0);
            }
            _ => {}
        }
        self.waiting.push((self.sequence, tag, Answer::Done));
    }
}
