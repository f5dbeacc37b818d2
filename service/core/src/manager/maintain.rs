//! Long work: rebuild and resync, one job at a time, group by group, each finished group committed.

use std::collections::VecDeque;

use super::{
    After, Answer, CommandTag, ErrorKind, Manager, ManagerAction, OperationKind, OperationState, OperationStatus,
    Pending, Phase, Severity,
};
use crate::action::{ReqStatus, VolumeId};
use crate::geometry::Geometry;
use crate::ondisk::RecordState;
use crate::view::SlotState;

/// Operations that are remembered after their end.
const REMEMBERED: usize = 64;

/// A job that is under way.
pub(super) struct Job {
    operation: u64,
    kind: OperationKind,
    /// Groups to do: volume number and group index, those with least redundancy first.
    queue: VecDeque<(u32, u32)>,
    group: Option<Group>,
    /// The view that it relies on has been published.
    ready: bool,
    incomplete: u64,
}

struct Group {
    volume: u32,
    index: u32,
    stripes: u32,
    next: u32,
    in_flight: u32,
    failed: u64,
}

impl Manager {
    /// Begins what the state calls for, if nothing is under way: a rebuild before a resync.
    pub(super) fn schedule(&mut self) {
        if self.job.is_some() || !matches!(self.phase, Phase::Running) || self.commit_wanted {
            return;
        }
        let fresh = self.assign_spares();
        let rebuild = self.groups_where(|slots, _| slots.contains(&SlotState::Rebuilding));
        let resync = self.groups_where(|slots, synced| !synced && !slots.contains(&SlotState::Missing));
        if !rebuild.is_empty() {
            self.begin(OperationKind::Rebuild, rebuild, fresh);
        } else if !resync.is_empty() {
            self.begin(OperationKind::Resync, resync, fresh);
        } else if fresh {
            self.commit(None);
        }
    }

    fn groups_where(&self, wanted: impl Fn(&[SlotState], bool) -> bool) -> Vec<(usize, u32, u32)> {
        let mut out = Vec::new();
        for v in &self.config.volumes {
            for (i, g) in v.groups.iter().enumerate() {
                let states: Vec<SlotState> = g.slots.iter().map(|s| self.live_state(s.member, s.state)).collect();
                if wanted(&states, g.synced) && self.alive(&v.geometry, g) {
                    let readable = states.iter().filter(|s| **s == SlotState::InSync).count();
                    out.push((readable, v.id, i as u32));
                }
            }
        }
        out.sort_unstable();
        out
    }

    /// Gives missing slots an extent on a spare, or on a member with room that the group does not use yet. True if any
    /// slot changed, so that a commit is needed before the work.
    fn assign_spares(&mut self) -> bool {
        let missing = self
            .config
            .volumes
            .iter()
            .flat_map(|v| &v.groups)
            .flat_map(|g| &g.slots)
            .any(|s| s.state == SlotState::Missing);
        if !missing {
            return false;
        }
        let mut used = self.used_extents();
        let able: Vec<bool> = (0..self.config.members.len() as u16).map(|m| self.usable(m)).collect();
        let mut changed = false;
        let mut promoted = Vec::new();
        for g in self.config.volumes.iter_mut().flat_map(|v| &mut v.groups) {
            for i in 0..g.slots.len() {
                if g.slots[i].state != SlotState::Missing {
                    continue;
                }
                let free = |m: usize| used[m].iter().filter(|u| !**u).count();
                let best = (0..able.len())
                    .filter(|m| able[*m] && free(*m) > 0)
                    .filter(|m| !g.slots.iter().any(|s| usize::from(s.member) == *m && s.state != SlotState::Missing))
                    .max_by_key(|m| (free(*m), std::cmp::Reverse(*m)));
                let Some(m) = best else { continue };
                let extent = used[m].iter().position(|u| !*u).expect("it has a free one");
                used[m][extent] = true;
                g.slots[i].member = m as u16;
                g.slots[i].extent = extent as u32;
                g.slots[i].state = SlotState::Rebuilding;
                changed = true;
                promoted.push(m);
            }
        }
        for m in promoted {
            if self.config.members[m].state == RecordState::Spare {
                self.config.members[m].state = RecordState::Active;
            }
        }
        changed
    }

    fn begin(&mut self, kind: OperationKind, groups: Vec<(usize, u32, u32)>, fresh: bool) {
        let id = self.next_operation;
        self.next_operation += 1;
        let total = groups.iter().map(|(_, v, _)| self.geometry(*v).map_or(0, |g| g.group_bytes())).sum();
        while self.operations.len() >= REMEMBERED {
            self.operations.remove(0);
        }
        self.operations.push(OperationStatus {
            id,
            kind,
            state: OperationState::Running,
            reason: String::new(),
            volume: groups.first().filter(|_| kind == OperationKind::Resync).map(|g| VolumeId(g.1)),
            member: self.rebuilt_member().filter(|_| kind == OperationKind::Rebuild),
            done: 0,
            total,
        });
        let queue = groups.into_iter().map(|(_, v, g)| (v, g)).collect();
        self.job = Some(Job { operation: id, kind, queue, group: None, ready: !fresh, incomplete: 0 });
        let (code, what) = match kind {
            OperationKind::Rebuild => ("rebuild-began", "a rebuild"),
            OperationKind::Resync | OperationKind::Create => ("resync-began", "a resync"),
        };
        let text = format!("{what} of array '{}' began: operation {id}, {total} bytes of data", self.name);
        self.notice(Severity::Info, code, None, None, text);
        if fresh {
            self.commit(Some(After::Run(id)));
        }
    }

    fn rebuilt_member(&self) -> Option<crate::action::MemberId> {
        let slots = self.config.volumes.iter().flat_map(|v| &v.groups).flat_map(|g| &g.slots);
        slots.into_iter().find(|s| s.state == SlotState::Rebuilding).map(|s| crate::action::MemberId(s.member))
    }

    fn geometry(&self, volume: u32) -> Option<Geometry> {
        self.config.volumes.iter().find(|v| v.id == volume).map(|v| v.geometry)
    }

    fn stripes(&self, volume: u32) -> u32 {
        self.geometry(volume).map_or(0, |g| g.stripes())
    }

    pub(super) fn run_operation(&mut self, operation: u64) {
        if let Some(job) = self.job.as_mut().filter(|j| j.operation == operation) {
            job.ready = true;
        }
    }

    /// Orders stripes up to the window, and goes to the next group when one is through.
    pub(super) fn pump_job(&mut self) {
        if !matches!(self.phase, Phase::Running) {
            return;
        }
        let window = self.tuning.window.max(1);
        loop {
            let Some(job) = &mut self.job else { return };
            if !job.ready {
                return;
            }
            if job.group.is_none() {
                let Some((volume, index)) = job.queue.pop_front() else { return self.finish_job() };
                let stripes = self.stripes(volume);
                if let Some(job) = &mut self.job {
                    job.group = Some(Group { volume, index, stripes, next: 0, in_flight: 0, failed: 0 });
                }
                continue;
            }
            let (operation, rebuild) = (job.operation, job.kind == OperationKind::Rebuild);
            let group = job.group.as_mut().expect("looked at above");
            if group.next == group.stripes && group.in_flight == 0 {
                self.finish_group();
                continue;
            }
            if group.next == group.stripes || group.in_flight >= window {
                return;
            }
            let (volume, index, stripe) = (VolumeId(group.volume), group.index, group.next);
            group.next += 1;
            group.in_flight += 1;
            let tag = self.tag(Pending::Maintain { operation });
            self.actions.push_back(ManagerAction::Maintain { tag, volume, group: index, stripe, rebuild });
        }
    }

    pub(super) fn stripe_done(&mut self, operation: u64, status: ReqStatus) {
        let volume = self.job.as_ref().and_then(|j| j.group.as_ref()).map_or(0, |g| g.volume);
        let bytes = self.geometry(volume).map_or(0, |g| g.stripe_bytes());
        let Some(job) = self.job.as_mut().filter(|j| j.operation == operation) else { return };
        if let Some(group) = &mut job.group {
            group.in_flight -= 1;
            group.failed += u64::from(status != ReqStatus::Ok);
        }
        if let Some(o) = self.operations.iter_mut().find(|o| o.id == operation) {
            o.done += bytes;
        }
        self.pump_job();
    }

    /// A group is through: its slots are in sync if every stripe was written and the members are still there.
    fn finish_group(&mut self) {
        let Some(job) = &mut self.job else { return };
        let (kind, Some(group)) = (job.kind, job.group.take()) else { return };
        if group.failed > 0 {
            job.incomplete += group.failed;
            return;
        }
        let Some(v) = self.config.volumes.iter().position(|v| v.id == group.volume) else { return };
        let alive: Vec<bool> =
            self.config.volumes[v].groups[group.index as usize].slots.iter().map(|s| self.usable(s.member)).collect();
        let g = &mut self.config.volumes[v].groups[group.index as usize];
        match kind {
            OperationKind::Rebuild => {
                for (slot, alive) in g.slots.iter_mut().zip(alive) {
                    if slot.state == SlotState::Rebuilding && alive {
                        slot.state = SlotState::InSync;
                    }
                }
            }
            OperationKind::Resync | OperationKind::Create => g.synced = true,
        }
        self.commit(None);
    }

    fn finish_job(&mut self) {
        let Some(job) = self.job.take() else { return };
        let ok = job.incomplete == 0;
        if let Some(o) = self.operations.iter_mut().find(|o| o.id == job.operation) {
            o.state = if ok { OperationState::Done } else { OperationState::Failed };
            if !ok {
                o.reason =
                    format!("{} stripes could not be read or written; their groups stay as they were", job.incomplete);
            }
        }
        let what = match job.kind {
            OperationKind::Rebuild => "rebuild",
            OperationKind::Resync | OperationKind::Create => "resync",
        };
        let (severity, code) = match (job.kind, ok) {
            (OperationKind::Rebuild, true) => (Severity::Info, "rebuild-ended"),
            (OperationKind::Resync | OperationKind::Create, true) => (Severity::Info, "resync-ended"),
            (OperationKind::Rebuild, false) => (Severity::Error, "rebuild-failed"),
            (OperationKind::Resync | OperationKind::Create, false) => (Severity::Error, "resync-failed"),
        };
        let end = if ok { "is done".to_string() } else { format!("left {} stripes undone", job.incomplete) };
        let text = format!("the {what} of array '{}' {end} (operation {})", self.name, job.operation);
        self.notice(severity, code, None, None, text);
        // What failed is not tried again at once: it would fail again. A change of members brings the next try.
        if ok {
            self.commit(None);
        }
    }

    pub(super) fn cancel(&mut self, tag: CommandTag, id: u64) {
        let Some(at) = self.operations.iter().position(|o| o.id == id) else {
            let text = format!("array '{}' has no operation {id}: see 'raidctl operation list'", self.name);
            return self.refuse(tag, ErrorKind::NotFound, text);
        };
        if self.operations[at].state != OperationState::Running {
            let text = format!("operation {id} of array '{}' has ended already", self.name);
            return self.refuse(tag, ErrorKind::FailedPrecondition, text);
        }
        self.operations[at].state = OperationState::Cancelled;
        self.operations[at].reason =
            "cancelled on request; the next assembly or member change begins it again".to_string();
        self.job = None;
        self.reply(tag, Answer::Done);
    }

    /// A volume is deleted: the job leaves its groups out.
    pub(super) fn forget_volume(&mut self, volume: u32) {
        if let Some(job) = &mut self.job {
            job.queue.retain(|(v, _)| *v != volume);
            if job.group.as_ref().is_some_and(|g| g.volume == volume) {
                job.group = None;
            }
        }
    }
}
