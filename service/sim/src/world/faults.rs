//! What goes wrong, and when it may. In a `Media` or `Members` round there is never more wrong at a time than the level
//! survives, so that every error that an initiator sees is a violation. In `Havoc` anything goes, and errors are fine.

use std::collections::{BTreeMap, BTreeSet};

use raid_core::action::IoStatus;
use raid_core::geometry::{Geometry, Level};
use raid_core::view::SlotState;

use super::{Control, Ev, Round, World};
use crate::drive::{BLOCK, Faults};

/// When and where faults strike.
#[derive(Default)]
pub(super) struct Injector {
    /// After so many requests of the round, in order.
    due: Vec<u32>,
    /// Drives that something is wrong with.
    tainted: BTreeSet<usize>,
    /// Slots that were made unreadable in this round, by group and row.
    media: BTreeMap<(usize, u64), BTreeSet<usize>>,
    /// Faults on their way.
    pending: u32,
}

/// Whether all data of a group can be read or computed from its readable slots: written here again, on purpose.
pub(super) fn survives(g: &Geometry, readable: &[bool]) -> bool {
    let lost = readable.iter().filter(|r| !**r).count();
    match g.level {
        Level::Raid0 => lost == 0,
        Level::Raid1 => lost < readable.len(),
        Level::Raid10 => readable.chunks(2).all(|pair| pair[0] || pair[1]),
        Level::Raid5 => lost < 2,
        Level::Raid6 => lost < 3,
    }
}

impl World {
    pub(super) fn plan_faults(&mut self) {
        let round = self.current_round();
        let n = match round {
            Round::Calm => 0,
            Round::Media => self.rng.range(2, 24),
            Round::Members => self.rng.range(1, 4),
            Round::Havoc => self.rng.range(1, 16),
        };
        let mut due: Vec<u32> = (0..n).map(|_| self.rng.below(u64::from(self.case.requests)) as u32 + 1).collect();
        due.sort_unstable_by(|a, b| b.cmp(a));
        self.injector.due = due;
        self.injector.media.clear();
    }

    /// A request was submitted: is a fault due?
    pub(super) fn fault_due(&mut self) {
        let submitted = self.front.submitted();
        while self.injector.due.last().is_some_and(|at| *at <= submitted) {
            self.injector.due.pop();
            self.injector.pending += 1;
            let delay = World::soon(&mut self.rng);
            self.clock.after(delay, Ev::Fault);
        }
    }

    pub(super) fn strike(&mut self) {
        self.injector.pending = self.injector.pending.saturating_sub(1);
        let media = match self.current_round() {
            Round::Calm => return,
            Round::Media => true,
            Round::Members => false,
            Round::Havoc => self.rng.percent(60),
        };
        // Copies of a volume that is not resynced yet may differ: a fault there may change what is read, as it would on
        // any array.
        if self.resyncing() && !self.havoc() {
            return;
        }
        // A lane that does not know yet that a slot is in sync again would rightly call a block lost.
        if !self.havoc() && self.lanes.iter().any(|l| l.view_tag != self.published) {
            self.injector.pending += 1;
            return self.clock.after(50_000, Ev::Fault);
        }
        if media {
            self.spoil_blocks();
        } else {
            self.spoil_member();
        }
    }

    fn drive_of(&self, member: u16) -> Option<usize> {
        self.devices.get(usize::from(member)).copied().flatten()
    }

    /// Some blocks of a member cannot be read any more.
    fn spoil_blocks(&mut self) {
        let Some(volume) = self.view.volume(self.volume) else { return };
        let (g, groups) = (volume.geometry, volume.groups.clone());
        let group = self.rng.below(groups.len() as u64) as usize;
        let slot = self.rng.below(u64::from(g.width)) as usize;
        let place = groups[group].slots[slot];
        let Some(drive) = self.drive_of(place.member.0) else { return };
        let first = self.rng.below(g.extent / BLOCK);
        let count = if self.rng.percent(50) { 1 } else { self.rng.range(1, 32) };
        let mut any = false;
        for row in first..(first + count).min(g.extent / BLOCK) {
            let hit = self.injector.media.entry((group, row)).or_default();
            // Once only: a block that goes bad again right after its rewrite is a member that fails, and rightly so.
            if !hit.insert(slot) && !self.case.lossy() {
                continue;
            }
            let readable: Vec<bool> = groups[group]
                .slots
                .iter()
                .enumerate()
                .map(|(s, v)| {
                    let tainted =
                        self.devices[usize::from(v.member.0)].is_none_or(|d| self.injector.tainted.contains(&d));
                    v.state == SlotState::InSync && !hit.contains(&s) && !tainted
                })
                .collect();
            if !survives(&g, &readable) && !self.case.lossy() {
                hit.remove(&slot);
                continue;
            }
            self.drives[drive].faults.bad.insert(place.offset / BLOCK + row, false);
            any = true;
        }
        self.stats.faults += u64::from(any);
        let member = place.member.0;
        self.trace.note(self.clock.now(), || {
            format!("fault: {count} blocks of member {member}, group {group}, from row {first} cannot be read")
        });
    }

    /// A member fails in one of many ways.
    fn spoil_member(&mut self) {
        let members = self.active_members();
        if members.is_empty() {
            return;
        }
        let member = self.rng.pick(&members);
        let Some(drive) = self.drive_of(member) else { return };
        if !self.havoc() && !self.bearable(drive) {
            return;
        }
        self.injector.tainted.insert(drive);
        self.stats.faults += 1;
        let kind = self.rng.below(6);
        let faults = &mut self.drives[drive].faults;
        match kind {
            0 => faults.dead = Some(IoStatus::Timeout),
            1 => faults.dead = Some(IoStatus::DeviceError),
            2 => faults.fail_writes = 1 + self.rng.below(3) as u32,
            3 => faults.full = true,
            4 => {
                let slots = self.member_slots(member);
                let Some(&(group, slot, _)) = slots.first() else { return };
                let place =
                    self.view.volume(self.volume).map(|v| (v.groups[group].slots[slot].offset, v.geometry.extent));
                if let Some((offset, extent)) = place {
                    let block = offset / BLOCK + self.rng.below(extent / BLOCK);
                    self.drives[drive].faults.bad.insert(block, true);
                }
            }
            _ => match self.control {
                Control::Mini(_) => self.mini_fail(member),
                Control::Full(_) => self.full_fail(member),
            },
        }
        let name = ["no answer", "dead", "failing writes", "full", "a stuck block", "failed by the operator"];
        let what = name[kind as usize];
        self.trace.note(self.clock.now(), || format!("fault: member {member} (drive {drive}): {what}"));
    }

    /// The array survives if this drive fails too, on top of all that is wrong already.
    pub(super) fn bearable(&self, drive: usize) -> bool {
        self.view.volume(self.volume).is_some_and(|v| {
            v.groups.iter().all(|g| {
                let readable: Vec<bool> = g
                    .slots
                    .iter()
                    .map(|s| {
                        let at = self.devices[usize::from(s.member.0)];
                        s.state == SlotState::InSync
                            && at.is_some_and(|d| d != drive && !self.injector.tainted.contains(&d))
                    })
                    .collect();
                survives(&v.geometry, &readable)
            })
        })
    }

    /// The load is over. Members that nobody has noticed yet become well, except for dead ones and, before the sweep,
    /// unreadable blocks: the sweep finds those.
    pub(super) fn settle_faults(&mut self, after_sweep: bool) {
        self.injector.due.clear();
        for drive in self.devices.iter().flatten().copied() {
            let faults = &mut self.drives[drive].faults;
            (faults.fail_writes, faults.full) = (0, false);
            if after_sweep && !self.case.lossy() {
                faults.bad.clear();
            }
        }
        let well = |d: &usize| {
            let Faults { bad, dead, .. } = &self.drives[*d].faults;
            dead.is_none() && !bad.values().any(|stuck| *stuck)
        };
        let healed: Vec<usize> = self.injector.tainted.iter().copied().filter(well).collect();
        for drive in healed {
            self.injector.tainted.remove(&drive);
        }
    }

    /// A fault is on its way.
    pub(super) fn faults_pending(&self) -> bool {
        self.injector.pending > 0
    }

    pub(super) fn forget_faults(&mut self) {
        self.injector.pending = 0;
        self.injector.due.clear();
    }
}
