//! Dirty marks, and the clean stop.
//!
//! A mark is set and committed before a volume's first write. It is cleared when the volume has been idle, in this order:
//!
//! 1. A view is published in which the volume is not dirty, though it still is on disk. From here on a write asks first.
//! 2. The engines' requests of before have ended.
//! 3. The members are flushed.
//! 4. The configuration without the mark is committed.
//!
//! If a write asks in between, the volume leaves the round. No view with the mark may go out between 1 and the end of 4,
//! or a write could run under it while the mark goes: the round covers its volumes until its commit is published.

use super::redundancy::volume_viable;
use super::task::Next;
use super::{Answer, ArrayState, ErrorKind, Manager, ManagerAction, Pending, Policy, Severity, reason_of, refuse};
use crate::action::{IoStatus, MemberId, VolumeId};
use crate::ondisk::{SUPERBLOCK_BYTES, end_copy_offset};

/// The longest time between two tries to clear a mark, as a multiple of the first.
const BACKOFF: u64 = 16;

enum Stage {
    Publishing(u64),
    Quiescing,
    Flushing { outstanding: usize, failed: Vec<(MemberId, IoStatus)> },
    Committing(u64),
}

pub(super) struct Cleaning {
    round: u64,
    volumes: Vec<VolumeId>,
    stage: Stage,
}

impl Cleaning {
    /// The volume's mark is on disk, and engines are told that it is not.
    pub fn covers(&self, volume: VolumeId) -> bool {
        self.volumes.contains(&volume)
    }
}

enum StopPhase {
    Offline,
    Quiesce,
    Flush,
    Bitmaps,
    FlushBitmaps,
    Commit,
    Erase,
    FlushErased,
    Done,
}

pub(super) struct StopTask {
    phase: StopPhase,
    delete: bool,
}

impl StopTask {
    pub fn new(delete: bool) -> StopTask {
        StopTask { phase: StopPhase::Offline, delete }
    }
}

impl Manager {
    /// A write waits for the volume's mark.
    pub(super) fn dirty_needed(&mut self, volume: VolumeId) {
        if self.state != ArrayState::Running {
            return;
        }
        let Some(v) = self.wanted.volumes.iter_mut().find(|v| v.id == volume.0) else { return };
        if v.policy == Policy::None {
            return;
        }
        let was_dirty = std::mem::replace(&mut v.dirty, true);
        let covered = match &mut self.cleaning {
            Some(c) if c.covers(volume) => {
                c.volumes.retain(|id| *id != volume);
                true
            }
            _ => false,
        };
        if covered && self.cleaning.as_ref().is_some_and(|c| c.volumes.is_empty()) {
            self.cleaning = None;
        }
        if !was_dirty {
            let wait = self.clean_at.get(&volume).map_or(self.config.clean_after, |(_, wait)| *wait);
            self.clean_at.insert(volume, (self.now.after(wait), wait));
            self.changed();
        } else if covered {
            // The volume is not idle after all: its mark is still on disk, only the view must say so again.
            let wait = self.clean_at.get(&volume).map_or(self.config.clean_after, |(_, wait)| *wait * 2);
            let wait = wait.min(self.config.clean_after.saturating_mul(BACKOFF));
            self.clean_at.insert(volume, (self.now.after(wait), wait));
            self.view_changed();
        }
    }

    pub(super) fn step_cleaning(&mut self) -> bool {
        if self.state != ArrayState::Running {
            return false;
        }
        let Some(c) = &mut self.cleaning else { return self.start_cleaning() };
        match &mut c.stage {
            Stage::Publishing(sequence) if *sequence <= self.published => {
                c.stage = Stage::Quiescing;
                let round = c.round;
                let tag = self.tag(Pending::CleanQuiesce(round));
                self.actions.push_back(ManagerAction::Quiesce { tag });
            }
            Stage::Flushing { outstanding: 0, failed } => {
                let failed = std::mem::take(failed);
                let volumes = c.volumes.clone();
                if failed.is_empty() {
                    for v in self.wanted.volumes.iter_mut().filter(|v| volumes.contains(&VolumeId(v.id))) {
                        v.dirty = false;
                    }
                    let sequence = self.changed();
                    if let Some(c) = &mut self.cleaning {
                        c.stage = Stage::Committing(sequence);
                    }
                } else {
                    // Not clean without that member's flush; the next try is without the member.
                    self.cleaning = None;
                    self.view_changed();
                    for (member, status) in failed {
                        self.fail_member(member.0, reason_of(status));
                    }
                }
            }
            Stage::Committing(sequence) if *sequence <= self.published => {
                for volume in c.volumes.clone() {
                    self.clean_at.remove(&volume);
                }
                self.cleaning = None;
            }
            _ => return false,
        }
        true
    }

    fn start_cleaning(&mut self) -> bool {
        let now = self.now;
        let due: Vec<VolumeId> = self.clean_at.iter().filter(|(_, (at, _))| *at <= now).map(|(v, _)| *v).collect();
        let mut volumes = Vec::new();
        for volume in due {
            let dirty = |config: &crate::ondisk::Config| config.volumes.iter().any(|v| v.id == volume.0 && v.dirty);
            if dirty(&self.wanted) && dirty(&self.committed) {
                volumes.push(volume);
            }
            if let Some((at, wait)) = self.clean_at.get_mut(&volume) {
                *at = now.after((*wait).max(1));
            }
            if !dirty(&self.wanted) {
                self.clean_at.remove(&volume);
            }
        }
        if volumes.is_empty() {
            return false;
        }
        let sequence = self.view_changed();
        self.cleaning = Some(Cleaning { round: sequence, volumes, stage: Stage::Publishing(sequence) });
        true
    }

    pub(super) fn clean_quiesced(&mut self, round: u64) {
        if self.cleaning.as_ref().is_none_or(|c| c.round != round) {
            return;
        }
        let mut outstanding = 0;
        for (member, device) in self.live_members() {
            let tag = self.tag(Pending::CleanFlush(round, MemberId(member)));
            self.actions.push_back(ManagerAction::Flush { tag, device });
            outstanding += 1;
        }
        if let Some(c) = &mut self.cleaning {
            c.stage = Stage::Flushing { outstanding, failed: Vec::new() };
        }
    }

    pub(super) fn clean_flushed(&mut self, round: u64, member: MemberId, status: IoStatus) {
        if let Some(Cleaning { stage: Stage::Flushing { outstanding, failed }, .. }) =
            self.cleaning.as_mut().filter(|c| c.round == round)
        {
            *outstanding -= 1;
            if status != IoStatus::Ok {
                failed.push((member, status));
            }
        }
    }

    /// Stop, and deletion: the array stops first, and is marked as going before its superblocks go.
    pub(super) fn stop_phase(&mut self, t: &mut StopTask) -> Next {
        for (device, status) in self.task_io.take_failed() {
            if let Some((member, _)) = self.live_members().into_iter().find(|(_, d)| *d == device) {
                self.fail_member(member, reason_of(status));
            }
        }
        match t.phase {
            StopPhase::Offline => {
                if t.delete && !self.wanted.volumes.is_empty() {
                    let names: Vec<&str> = self.wanted.volumes.iter().map(|v| v.name.as_str()).collect();
                    let message = format!(
                        "array '{}' still has volumes ({}): delete them first",
                        self.identity.name,
                        names.join(", ")
                    );
                    return Next::End(Err(refuse(ErrorKind::FailedPrecondition, message)));
                }
                if self.state == ArrayState::Running {
                    self.state = ArrayState::Stopping;
                }
                self.maintenance.abort();
                self.cleaning = None;
                self.stop_bitmaps(None);
                t.phase = StopPhase::Quiesce;
                Next::Published(self.view_changed())
            }
            StopPhase::Quiesce => {
                self.task_quiesce();
                t.phase = StopPhase::Flush;
                Next::Phase
            }
            StopPhase::Flush => {
                for (_, device) in self.live_members() {
                    self.task_flush(device);
                }
                t.phase = StopPhase::Bitmaps;
                Next::Phase
            }
            StopPhase::Bitmaps => {
                self.settle_bitmaps();
                t.phase = StopPhase::FlushBitmaps;
                Next::Phase
            }
            StopPhase::FlushBitmaps => {
                for (_, device) in self.live_members() {
                    self.task_flush(device);
                }
                t.phase = StopPhase::Commit;
                Next::Phase
            }
            StopPhase::Commit => {
                for v in self.wanted.volumes.iter_mut().filter(|v| volume_viable(v)) {
                    v.dirty = false;
                }
                self.wanted.creating |= t.delete;
                t.phase = if t.delete { StopPhase::Erase } else { StopPhase::Done };
                Next::Published(self.changed())
            }
            StopPhase::Erase => {
                let devices: Vec<_> = self.places.iter().filter_map(|p| p.device.clone()).collect();
                for d in &devices {
                    self.task_zero(d.id, 0, u64::from(SUPERBLOCK_BYTES));
                    self.task_zero(d.id, end_copy_offset(d.size), u64::from(SUPERBLOCK_BYTES));
                }
                t.phase = StopPhase::FlushErased;
                Next::Phase
            }
            StopPhase::FlushErased => {
                for place in 0..self.places.len() {
                    if let Some(device) = self.places[place].device.as_ref().map(|d| d.id) {
                        self.task_flush(device);
                    }
                }
                t.phase = StopPhase::Done;
                Next::Phase
            }
            StopPhase::Done => {
                let (code, what) = if t.delete { ("array-deleted", "deleted") } else { ("array-stopped", "stopped") };
                let message = format!("array '{}' {what}", self.identity.name);
                self.notice(Severity::Info, code, None, None, message);
                self.state = ArrayState::Stopped;
                self.reason = what.into();
                Next::End(Ok(Answer::Done))
            }
        }
    }
}
