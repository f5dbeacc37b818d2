//! A volume that nobody writes to becomes clean again, so that a crash then needs no resync.
//!
//! The order is what makes it safe. First a view without the dirty mark goes to every engine: from then on each write asks
//! for the mark and waits. Then everything that was in flight ends, then the members are flushed, and only then the
//! configuration says clean. A write that asks meanwhile gets the mark back at once: on disk it was never gone.

use std::collections::BTreeSet;

use super::{After, Manager, ManagerAction, Pending, Phase, Policy};
use crate::action::{IoStatus, VolumeId};
use crate::units::Tick;

/// The attempt that is under way.
#[derive(Default)]
pub(super) struct Cleaning {
    /// Volumes that are to become clean.
    pub volumes: BTreeSet<u32>,
    /// Counts attempts: an answer to an earlier one means nothing.
    attempt: u64,
    outstanding: usize,
    due: Option<Tick>,
}

impl Manager {
    /// When the next attempt is due.
    pub(super) fn clean_due(&self) -> Option<Tick> {
        self.cleaning.due
    }

    pub(super) fn mark_dirty(&mut self, volume: VolumeId) {
        self.cleaning.due = Some(self.now.after(self.tuning.clean_after));
        if self.cleaning.volumes.remove(&volume.0) {
            return self.publish(Vec::new());
        }
        if let Some(v) = self.config.volumes.iter_mut().find(|v| v.id == volume.0) {
            // Asked again although it is set: the engine's view is older than a commit that is on its way.
            if !v.dirty {
                v.dirty = true;
                self.commit(None);
            }
        }
    }

    pub(super) fn clean_idle(&mut self) {
        if self.cleaning.due.is_none_or(|due| self.now < due) || !matches!(self.phase, Phase::Running) {
            return;
        }
        self.cleaning.due = Some(self.now.after(self.tuning.clean_after));
        if self.job.is_some() || self.commit.is_some() || self.commit_wanted || !self.cleaning.volumes.is_empty() {
            return;
        }
        self.cleaning.volumes = self
            .config
            .volumes
            .iter()
            .filter(|v| v.dirty && v.policy == Policy::Resync && v.groups.iter().all(|g| g.synced))
            .map(|v| v.id)
            .collect();
        if self.cleaning.volumes.is_empty() {
            self.cleaning.due = None;
            return;
        }
        self.cleaning.attempt += 1;
        let attempt = self.cleaning.attempt;
        self.publish(vec![After::CleanQuiesce(attempt)]);
    }

    fn still(&self, attempt: u64) -> bool {
        attempt == self.cleaning.attempt && !self.cleaning.volumes.is_empty() && matches!(self.phase, Phase::Running)
    }

    pub(super) fn clean_quiesce(&mut self, attempt: u64) {
        if self.still(attempt) {
            let tag = self.tag(Pending::CleanQuiesce(attempt));
            self.actions.push_back(ManagerAction::Quiesce { tag });
        }
    }

    pub(super) fn clean_flush(&mut self, attempt: u64) {
        if !self.still(attempt) {
            return;
        }
        let targets = self.reachable();
        self.cleaning.outstanding = targets.len();
        for (member, device) in targets {
            self.flush(Pending::CleanFlush(attempt, member), device);
        }
    }

    pub(super) fn clean_flushed(&mut self, attempt: u64, member: u16, status: IoStatus) {
        if status != IoStatus::Ok {
            self.member_failed(member, super::failure_text(status));
        }
        if !self.still(attempt) {
            return;
        }
        self.cleaning.outstanding -= 1;
        if self.cleaning.outstanding > 0 {
            return;
        }
        let clean = std::mem::take(&mut self.cleaning.volumes);
        for v in self.config.volumes.iter_mut().filter(|v| clean.contains(&v.id)) {
            v.dirty = false;
        }
        self.commit(None);
    }
}
