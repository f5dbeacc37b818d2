//! After a cut: a new world with what is left on the drives, its assembly by the real manager, and what is asked of it.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use raid_core::action::{ReqStatus, VolumeId};
use raid_core::geometry::Level;
use raid_core::manager::{ErrorKind, ManageError, Policy};
use raid_core::ondisk;
use raid_core::view::{SlotState, SlotView, View};

use super::super::faults::survives;
use super::super::front::{Front, Open, What};
use super::super::trace::Tracing;
use super::super::{Ev, Stage, World};
use super::choice::{Image, Unsure};
use super::script::without;
use super::{CutState, Line};
use crate::drive::{Drive, Sector};
use crate::oracle::Oracle;
use crate::pattern::SECTOR;
use crate::rng::{Rng, mix};
use crate::tally::{Situation, Tally};

/// What every choice at one cut has in common.
pub(super) struct Remains {
    /// The drives without anything volatile.
    drives: Vec<Drive>,
    oracle: Oracle,
    hot: Rc<BTreeSet<Line>>,
    gone: BTreeSet<usize>,
    doubtful: BTreeSet<usize>,
    down: BTreeSet<usize>,
}

impl World {
    /// The writes that a cut may take back, of those that were ordered before I/O `until`, in their order.
    pub(super) fn unsure(&self, until: u64) -> Vec<Unsure> {
        let mut found: BTreeMap<u64, Unsure> = BTreeMap::new();
        for (drive, d) in self.drives.iter().enumerate().filter(|(d, _)| !self.is_gone(*d)) {
            for (write, sectors) in d.volatile() {
                if !sectors.is_empty() {
                    found.insert(write, Unsure { drive, write, sectors: sectors.clone() });
                }
            }
        }
        for (write, drive, offset, bytes) in self.writes_in_flight() {
            if write >= until || self.is_gone(drive) {
                continue;
            }
            let mut now = vec![0; bytes.len()];
            self.drives[drive].read(offset, &mut now);
            let unsure = found.entry(write).or_insert_with(|| Unsure { drive, write, sectors: BTreeMap::new() });
            for (i, new) in bytes.chunks_exact(SECTOR).enumerate() {
                // A sector that holds it already, and durably, is the same whether it is done or not.
                if new != &now[i * SECTOR..(i + 1) * SECTOR]
                    || self.drives[drive].is_volatile(offset / SECTOR as u64 + i as u64)
                {
                    let bytes: Sector = Rc::new(new.try_into().expect("a sector"));
                    unsure.sectors.insert(offset / SECTOR as u64 + i as u64, bytes);
                }
            }
            if unsure.sectors.is_empty() {
                found.remove(&write);
            }
        }
        found.into_values().collect()
    }

    fn is_gone(&self, drive: usize) -> bool {
        self.cut.as_ref().is_some_and(|c| c.gone.contains(&drive))
    }

    /// What a cut leaves for sure, and what the model says of it.
    pub(super) fn remains(&self) -> Remains {
        let cut = self.cuts();
        let returns = self.case.plan.is_some_and(|p| p.returns);
        let mut drives: Vec<Drive> = self.drives.iter().map(Drive::after_cut).collect();
        let (mut gone, mut doubtful) = (cut.gone.clone(), BTreeSet::new());
        if returns {
            // Whoever was lost with the power before is there again.
            doubtful.append(&mut gone);
        }
        if self.published.is_none() {
            // Nothing was heard of this world's configuration yet.
            doubtful.extend(&cut.doubtful);
        }
        let failed = |d: usize| self.devices.get(d).is_some_and(Option::is_none);
        for (d, drive) in drives.iter_mut().enumerate() {
            if failed(d) && !returns {
                gone.insert(d);
            }
            if drive.faults.dead.take().is_some() {
                if returns {
                    doubtful.insert(d)
                } else {
                    gone.insert(d)
                };
            }
        }
        let mut down = cut.down.clone();
        if cut.depth == 0 {
            let slots = self.view.volume(self.volume).into_iter().flat_map(|v| &v.groups).flat_map(|g| &g.slots);
            let member = |s: &SlotView| usize::from(s.member.0);
            let dead = |s: &SlotView| self.drives[member(s)].faults.dead.is_some();
            down.extend(slots.filter(|s| s.state != SlotState::InSync || dead(s)).map(member));
        }
        let mut oracle = self.oracle.clone();
        oracle.crash(true);
        let geometry = self.case.geometry;
        let mut hot = BTreeSet::clone(&cut.hot);
        hot.extend(oracle.uncertain().map(|sector| line(&geometry, sector)));
        Remains { drives, oracle, hot: Rc::new(hot), gone, doubtful, down }
    }

    /// The members to lose at a cut: none, and sometimes one.
    pub(super) fn losses(&self, lottery: u64) -> Vec<Option<u16>> {
        let mut losses = vec![None];
        let members = self.volume_members();
        if lottery.is_multiple_of(2) && !members.is_empty() {
            let member = members[(lottery >> 8) as usize % members.len()];
            // With one member that went on alone, all that the other one missed is lost; it cannot know.
            let informed = members.iter().any(|m| *m != member && !self.is_gone(usize::from(*m)));
            // What no array survives must be refused; that needs no thousand tries.
            if informed && (self.bearable(usize::from(member)) || (lottery >> 1).is_multiple_of(16)) {
                losses.push(Some(member));
            }
        }
        losses
    }

    /// The world after a cut that left this image, and `lose` took with it.
    pub(super) fn reborn(
        &self,
        remains: &Remains,
        image: &Image<'_>,
        lose: Option<u16>,
        seed: u64,
        tracing: Tracing,
    ) -> World {
        let before = self.cuts();
        let mut world = World::new(self.case.clone(), self.broken, tracing);
        world.rng = Rng::new(seed);
        world.drives = remains.drives.clone();
        for ((drive, sector), (_, bytes)) in image {
            world.drives[*drive].keep(*sector, bytes);
        }
        world.oracle = remains.oracle.clone();
        world.front = Front::after(&self.front, &self.case);
        world.next_io = self.next_io;
        (world.volume, world.view, world.devices) = (self.volume, self.view.clone(), self.devices.clone());
        let mut was = before.was.clone();
        was.push(self.view.clone());
        let mut gone = remains.gone.clone();
        gone.extend(lose.map(usize::from));
        let (hot, doubtful, down) = (remains.hot.clone(), remains.doubtful.clone(), remains.down.clone());
        let mut lost = before.lost.clone();
        lost.extend(lose.map(usize::from));
        let depth = before.depth + 1;
        world.cut = Some(Box::new(CutState { depth, gone, doubtful, down, lost, hot, was, ..CutState::default() }));
        world.make_lanes();
        let drives: Vec<usize> = (0..world.drives.len()).filter(|d| !world.is_gone(*d)).collect();
        if drives.is_empty() {
            // Nobody is left who could refuse.
            world.cuts_mut().verdict.refused = true;
            world.stage = Stage::Over;
        } else {
            world.assemble_from(drives, mix(seed));
        }
        world
    }

    /// The volume has what it needs if these drives count for nothing on top of what a view says.
    fn viable_without(&self, view: &View, lost: impl Fn(usize) -> bool) -> bool {
        view.volume(self.volume).is_some_and(|v| {
            v.groups.iter().all(|g| {
                let readable: Vec<bool> =
                    g.slots.iter().map(|s| s.state == SlotState::InSync && !lost(usize::from(s.member.0))).collect();
                survives(&v.geometry, &readable)
            })
        })
    }

    /// The assembly was answered: may it be so?
    pub(in crate::world) fn cut_assembled(&mut self, refused: Option<ManageError>) {
        let cut = self.cuts();
        let before = cut.was.last().cloned().unwrap_or_default();
        let surely = self.viable_without(&before, |d| cut.gone.contains(&d) || cut.doubtful.contains(&d));
        // An assembly that never brought the volume online binds nobody: whom it recorded as failed may be back.
        let online = |v: &Arc<View>| v.volume(self.volume).is_some_and(|v| v.online);
        let binding = cut.was.iter().rposition(online).unwrap_or(0);
        let perhaps = cut.was.iter().skip(binding).any(|v| self.viable_without(v, |d| cut.gone.contains(&d)));
        let slots = || before.volume(self.volume).into_iter().flat_map(|v| &v.groups).flat_map(|g| &g.slots);
        let lost = |d: usize| cut.gone.contains(&d) || cut.doubtful.contains(&d);
        let degraded = slots().any(|s| s.state != SlotState::InSync || lost(usize::from(s.member.0)));
        // The copies of a bitmap lie on some members, which may be just those.
        let mut away: Vec<usize> =
            (0..self.drives.len()).filter(|d| lost(*d) || self.devices.get(*d).is_some_and(Option::is_none)).collect();
        away.extend(slots().filter(|s| s.state != SlotState::InSync).map(|s| usize::from(s.member.0)));
        away.sort_unstable();
        away.dedup();
        let surely = surely && (self.case.policy != Policy::Bitmap || away.len() <= self.case.survives());
        let rebuilding = slots().any(|s| s.state == SlotState::Rebuilding);
        match refused {
            None => {
                if !perhaps && !rebuilding {
                    return self.fail("too many members are gone, and the array was assembled all the same".into());
                }
                let busy = self.case.plan.map_or(0, |p| p.busy);
                self.cut_load(busy);
            }
            Some(e) if e.kind == ErrorKind::FailedPrecondition => {
                let parity = matches!(self.case.geometry.level, Level::Raid5 | Level::Raid6);
                let unverifiable = parity && self.case.policy == Policy::Resync && degraded && self.some_mark();
                if surely && !unverifiable {
                    return self.fail(format!("the assembly was refused, and nothing that happened explains it: {e}"));
                }
                self.cuts_mut().verdict.refused = true;
                self.stage = Stage::Over;
            }
            Some(e) => self.fail(format!("the assembly was refused: {e}")),
        }
    }

    /// The newest configuration of some drive says that the volume was being written.
    fn some_mark(&self) -> bool {
        let id = self.volume;
        (0..self.drives.len()).filter(|d| !self.is_gone(*d)).any(|d| {
            let config = newest_config(&self.drives[d]);
            config.is_some_and(|c| marked(&c, id))
        })
    }

    /// A read of this campaign: right, or wrong where the write hole explains it, or a violation.
    pub(in crate::world) fn judge_cut_read(&mut self, op: u64, region: Option<u16>) -> Option<String> {
        let mirror = matches!(self.case.geometry.level, Level::Raid1 | Level::Raid10);
        let cut = self.cuts();
        // Copies that differ may be read by turns if nothing makes them equal. If one of them may be lost while they are
        // made equal, what was read may change once more.
        let settle = !mirror || (self.case.policy != Policy::None && !(cut.deep && self.stage == Stage::Load));
        let mut oracle = std::mem::replace(&mut self.oracle, Oracle::new(0, false));
        let bytes = self.memory.region(region.expect("a read's buffer"));
        let read = oracle.end_read_but(op, bytes, settle, |sector| self.in_the_hole(sector));
        self.oracle = oracle;
        match read {
            Ok(wrong) => {
                let losing = self.stage == Stage::Losing;
                let verdict = &mut self.cuts_mut().verdict;
                *(if losing { &mut verdict.corrupt_after } else { &mut verdict.corrupt }) += wrong;
                None
            }
            Err(what) => Some(what),
        }
    }

    /// An error that is right: with a bitmap, what is lost in a region that nobody can verify is not made up. A long read
    /// of a sweep is done again in parts, to find the blocks that it is about.
    pub(in crate::world) fn cut_excuses(&mut self, op: u64, open: &Open) -> bool {
        if self.case.policy != Policy::Bitmap || open.status != ReqStatus::Unrecoverable {
            return false;
        }
        let sweep = open.what == What::Read && matches!(self.stage, Stage::Sweep | Stage::Losing);
        let all = (open.from..open.to).all(|sector| self.unverifiable(sector, false));
        if sweep && !all && open.to - open.from > 8 {
            self.front.read_halves(open.from, open.to);
        } else if (open.from..open.to).any(|sector| self.unverifiable(sector, open.what != What::Read)) {
            self.cuts_mut().verdict.unreadable += u64::from(sweep);
        } else {
            return false;
        }
        match open.what {
            What::Read | What::Compare => self.oracle.drop_read(op),
            What::Write { .. } | What::Zero { .. } => self.oracle.end_write(op, false, false),
            What::Flush => return false,
        }
        true
    }

    /// The sector is lost, or with `any` some sector of its stripe is, and its region's parity may not match.
    fn unverifiable(&self, sector: u64, any: bool) -> bool {
        let place = self.case.geometry.place(sector * SECTOR as u64);
        let Some(v) = self.view.volume(self.volume).filter(|v| v.geometry.parities() > 0) else { return false };
        let lost = |slot: &SlotView| slot.state != SlotState::InSync;
        let slots = &v.groups[place.group as usize].slots;
        let own = v.geometry.slots(place.stripe, place.column).first;
        !v.region(place.group, place.stripe).verified()
            && (lost(&slots[usize::from(own)]) || any && slots.iter().any(lost))
    }

    /// Policy `none`: a sector that is, or was, computed from parity that may not match.
    fn in_the_hole(&self, sector: u64) -> bool {
        let g = &self.case.geometry;
        let cut = self.cuts();
        if self.case.policy != Policy::None || g.parities() == 0 || !cut.hot.contains(&line(g, sector)) {
            return false;
        }
        let place = g.place(sector * SECTOR as u64);
        let slot = |view: &View| {
            let group = view.volume(self.volume)?.groups.get(place.group as usize)?;
            let slot = group.slots[usize::from(g.slots(place.stripe, place.column).first)];
            (slot.state == SlotState::InSync).then_some(slot.member)
        };
        let now = slot(&self.view);
        now.is_none() || cut.was.iter().any(|view| slot(view) != now)
    }

    /// Redundancy need not match here: policy `none` after a cut.
    pub(in crate::world) fn may_differ(&self, group: usize, stripe: u32, sector: u32) -> bool {
        self.case.policy == Policy::None
            && self.cut.as_ref().is_some_and(|c| c.hot.contains(&(group as u32, stripe, sector)))
    }

    /// The recovery is over and was right. Now each member is lost in turn, and with two parities one pair.
    pub(super) fn begin_losing(&mut self) {
        self.stage = Stage::Losing;
        if self.cuts().depth == 0 {
            self.stage = Stage::Over;
            return;
        }
        let members = self.volume_members();
        let mut sets: Vec<Vec<u16>> = members.iter().map(|m| vec![*m]).collect();
        if members.len() > 2 && self.case.geometry.level != Level::Raid5 {
            let first = self.rng.below(members.len() as u64) as usize;
            let second = (first + self.rng.range(1, members.len() as u64 - 1) as usize) % members.len();
            sets.push(vec![members[first], members[second]]);
        }
        sets.retain(|set| self.viable_without(&self.view, |d| set.contains(&(d as u16))));
        self.cuts_mut().verdict.lost_after = !sets.is_empty();
        self.cuts_mut().losing = sets.into();
        self.cuts_mut().healthy = Some(self.view.clone());
        // From here on the views are the simulator's.
        self.dismiss_manager();
    }

    /// Takes the next members away, and reads without them what lies on them.
    pub(super) fn lose_on(&mut self) {
        if std::mem::replace(&mut self.cuts_mut().out, false) {
            let set = self.cuts_mut().losing.pop_front().unwrap_or_default();
            let ranges = self.lying_on(&set);
            self.front.begin_sweep(ranges);
            self.clock.after(1, Ev::Burst);
            return;
        }
        let (set, healthy) = (self.cuts().losing.front().cloned(), self.cuts().healthy.clone());
        let (Some(set), Some(healthy)) = (set, healthy) else {
            self.stage = Stage::Over;
            return;
        };
        let mut view = View::clone(&healthy);
        without(&mut view, &set);
        view.generation += 1;
        self.cuts_mut().out = true;
        self.devices = self.live_devices(&healthy);
        self.publish_own(view);
    }

    /// The parts of the volume whose data lies on these members; the rest is read as it was before.
    fn lying_on(&self, members: &[u16]) -> Vec<(u64, u64)> {
        let g = self.case.geometry;
        let chunk = u64::from(g.chunk) / SECTOR as u64;
        let mut ranges = Vec::new();
        for (n, group) in self.view.volume(self.volume).into_iter().flat_map(|v| v.groups.iter().enumerate()) {
            for stripe in 0..g.stripes() {
                let base = (n as u64 * g.group_bytes() + u64::from(stripe) * g.stripe_bytes()) / SECTOR as u64;
                for column in 0..g.data_columns() {
                    let mut slots = g.slots(stripe, column).iter();
                    if slots.any(|s| members.contains(&group.slots[usize::from(s)].member.0)) {
                        ranges.push((base + u64::from(column) * chunk, base + u64::from(column + 1) * chunk));
                    }
                }
            }
        }
        ranges
    }

    /// Counts what this world's recovery led to.
    pub(super) fn count(&self, tally: &mut Tally) {
        let (Some(cut), Some(plan)) = (&self.cut, &self.case.plan) else { return };
        let situation = match (cut.down.len(), cut.lost.len()) {
            (0, 0) => Situation::Whole,
            (0, 1) => Situation::LostWith,
            (1, 0) => Situation::Down,
            _ => Situation::Two,
        };
        let (policy, level) = (self.case.policy, self.case.geometry.level);
        let cell = tally.cell(policy, level, plan.workload, situation);
        cell.cuts += 1;
        cell.refused += u64::from(cut.verdict.refused);
        cell.corrupt += u64::from(cut.verdict.corrupt > 0);
        cell.unreadable += u64::from(cut.verdict.unreadable > 0);
        if cut.verdict.lost_after {
            let after = if situation == Situation::Whole { Situation::LostAfter } else { Situation::Two };
            let cell = tally.cell(policy, level, plan.workload, after);
            cell.cuts += 1;
            cell.corrupt += u64::from(cut.verdict.corrupt_after > 0);
        }
    }
}

/// The line of a sector of the volume.
fn line(g: &raid_core::geometry::Geometry, sector: u64) -> Line {
    let place = g.place(sector * SECTOR as u64);
    (place.group, place.stripe, place.offset / SECTOR as u32)
}

/// A configuration says that redundancy of the volume may not match.
fn marked(config: &ondisk::Config, id: VolumeId) -> bool {
    config.volumes.iter().any(|v| v.id == id.0 && (v.dirty || v.groups.iter().any(|g| !g.synced)))
}

/// The newest whole configuration on a drive.
fn newest_config(drive: &Drive) -> Option<ondisk::Config> {
    let sb = super::super::full::superblock(drive)?;
    let slots = (0..2u64).filter_map(|slot| {
        // As much as small arrays need.
        let mut bytes = vec![0; 16384];
        drive.read(sb.slot_offset + slot * u64::from(sb.slot_len), &mut bytes);
        ondisk::decode_config(&bytes).ok()
    });
    slots.max_by_key(|c| c.generation)
}
