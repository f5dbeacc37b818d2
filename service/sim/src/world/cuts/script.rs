//! What a case of the cuts campaign does before the power fails: the array is made, filled and perhaps degraded, then
//! comes the load. And how a world goes from stage to stage.

use raid_core::action::{Event, IoStatus, MemberId};
use raid_core::geometry::Level;
use raid_core::manager::Policy;
use raid_core::regions::{Region, RegionMap};
use raid_core::units::Tick;
use raid_core::view::{MemberState, SlotState, View};

use super::super::front::What;
use super::super::{Ev, Stage, World};
use crate::breaks::Break;
use crate::case::Workload;
use crate::pattern::SECTOR;

impl World {
    fn plan(&self) -> crate::case::Plan {
        self.case.plan.expect("a case of the cuts campaign")
    }

    /// The volume exists.
    pub(in crate::world) fn cut_created(&mut self) {
        self.stage = Stage::Fill;
        self.front.begin_fill();
        self.clock.after(1, Ev::Burst);
    }

    /// The sector up to which the volume is written before the load.
    pub(in crate::world) fn full_up_to(&self) -> u64 {
        match self.plan().workload {
            Workload::InPlace => self.oracle.sectors(),
            Workload::Append => 0,
            Workload::Mixed => self.oracle.sectors() / 2,
        }
    }

    /// Goes on when everything of a stage is done. True if it did.
    pub(in crate::world) fn cut_steer(&mut self) -> bool {
        match self.stage {
            Stage::Fill if !self.cuts().fill_flushed => {
                self.cuts_mut().fill_flushed = true;
                self.submit(What::Flush, 0, 1);
            }
            Stage::Fill => {
                self.stage = Stage::Degrade;
                let mut members: Vec<u16> = self.volume_members();
                self.rng.shuffle(&mut members);
                members.truncate(usize::from(self.plan().down));
                self.cuts_mut().to_fail = members;
                self.cut_degrade();
            }
            // With a spare the load goes on beside the rebuild.
            Stage::Degrade if self.cuts().to_fail.is_empty() => self.cut_load(self.case.requests),
            Stage::Load if self.cuts().depth == 0 => {
                self.stage = Stage::Drain;
                let now = self.clock.now();
                let until = Tick(now.0 + 6 * self.plan().clean_after);
                self.clock.at(until, Ev::Burst);
                self.cuts_mut().drain_until = until;
            }
            Stage::Drain if self.clock.now() < self.cuts().drain_until => return false,
            Stage::Load | Stage::Drain => {
                self.stage = Stage::Sweep;
                self.front.begin_sweep([(0, self.oracle.sectors())]);
                self.clock.after(1, Ev::Burst);
            }
            Stage::Sweep => {
                self.check_rest();
                self.check_redundancy();
                self.begin_losing();
            }
            Stage::Losing => self.lose_on(),
            _ => return false,
        }
        true
    }

    /// Fails the next member that is to be down before the load, or begins it.
    pub(in crate::world) fn cut_degrade(&mut self) {
        if let Some(member) = self.cuts_mut().to_fail.pop() {
            if self.bearable(usize::from(member)) {
                self.full_fail(member);
            } else {
                self.cut_degrade();
            }
        } else if self.stage == Stage::Degrade && self.plan().spare {
            self.cut_load(self.case.requests);
        }
    }

    pub(super) fn cut_load(&mut self, requests: u32) {
        self.stage = Stage::Load;
        let end = self.oracle.sectors();
        let base = self.rng.below(end);
        self.front.load(requests, base);
        self.clock.after(1, Ev::Burst);
    }

    /// Members on which the volume has slots, in the newest view.
    pub(super) fn volume_members(&self) -> Vec<u16> {
        let slots = self.view.volume(self.volume).into_iter().flat_map(|v| &v.groups).flat_map(|g| &g.slots);
        let mut members: Vec<u16> = slots.filter(|s| s.state == SlotState::InSync).map(|s| s.member.0).collect();
        members.sort_unstable();
        members.dedup();
        members
    }

    /// The next request of the load.
    pub(in crate::world) fn make_cut_request(&mut self) {
        let plan = self.plan();
        if self.cuts().depth == 0 && plan.dies == Some(self.front.submitted() - 1) {
            self.kill_member();
        }
        let end = self.oracle.sectors();
        let longest = self.case.longest / SECTOR as u64;
        let stripe = self.case.geometry.stripe_bytes() / SECTOR as u64;
        let hot = (end * self.case.hot / 100).max(16).min(end);
        let mut from = (self.front.hot_base() + self.rng.below(hot)) % end;
        let mut len = match self.rng.below(10) {
            0..=2 => self.rng.range(1, 8),
            3..=6 => {
                from &= !7;
                self.rng.range(1, 4) * 8
            }
            7 => {
                from = from / stripe * stripe;
                stripe
            }
            _ => self.rng.range(1, longest),
        };
        if plan.workload == Workload::Append {
            from = self.front.cursor();
            if from >= end {
                (from, len) = (0, 0);
            }
        }
        len = len.min(longest).min(end - from);
        // A comparison where anything may be found says nothing.
        let compares = self.case.policy != Policy::None || self.cuts().depth == 0;
        let what = match self.rng.below(100) {
            _ if len == 0 => What::Flush,
            0..=12 => What::Flush,
            13..=20 if plan.workload != Workload::Append => What::Read,
            21..=22 if compares && plan.workload == Workload::Mixed => What::Compare,
            23..=34 if plan.workload == Workload::Mixed => What::Zero { unmap: self.rng.percent(50) },
            35..=38 if plan.workload == Workload::InPlace => What::Zero { unmap: self.rng.percent(50) },
            _ => What::Write { fua: self.rng.percent(20) },
        };
        if matches!(what, What::Write { .. } | What::Zero { .. }) {
            self.front.set_cursor(from + len);
        }
        let (from, len) = if what == What::Flush { (0, 1) } else { (from, len) };
        self.submit(what, from, from + len);
    }

    /// One more member fails, if the array survives it.
    fn kill_member(&mut self) {
        let members = self.volume_members();
        let able: Vec<u16> = members.into_iter().filter(|m| self.bearable(usize::from(*m))).collect();
        if able.is_empty() || self.view.volume(self.volume).is_some_and(|v| v.geometry.level == Level::Raid0) {
            return;
        }
        let member = self.rng.pick(&able);
        let status = self.rng.pick(&[IoStatus::Timeout, IoStatus::DeviceError]);
        self.drives[usize::from(member)].faults.dead = Some(status);
        self.stats.faults += 1;
        self.trace.note(self.clock.now(), || format!("fault: member {member} answers {status:?} from here on"));
    }

    /// Deliberate faults: a view goes out before what it says is durable.
    pub(in crate::world) fn jump_ahead(&mut self, event: &Event) {
        let mut view = View::clone(&self.view);
        match (self.broken, *event) {
            (Some(Break::EarlyFailure), Event::MemberFailed { member, .. }) => without(&mut view, &[member.0]),
            (Some(Break::EarlyDirty), Event::DirtyNeeded { volume }) => {
                view.volumes.iter_mut().filter(|v| v.id == volume).for_each(|v| v.dirty = true);
            }
            (Some(Break::EarlyDirty), Event::RegionNeeded { volume, region }) => {
                for v in view.volumes.iter_mut().filter(|v| v.id == volume) {
                    let early = |map: &RegionMap| {
                        let state = |r| if r == region { Region::Dirty } else { map.get(r) };
                        RegionMap::new((0..map.len()).map(state))
                    };
                    v.regions = v.regions.as_ref().map(early);
                }
            }
            _ => return,
        }
        self.publish_own(view);
    }

    /// Hands out a view that the manager knows nothing of.
    pub(super) fn publish_own(&mut self, view: View) {
        let mut devices = self.devices.clone();
        for (device, state) in devices.iter_mut().zip(&view.members) {
            if matches!(state, MemberState::Failed | MemberState::Removed) {
                *device = None;
            }
        }
        self.cuts_mut().own_views += 1;
        let tag = u64::MAX - self.cuts().own_views;
        self.publish(tag, view.into(), devices);
    }
}

/// Takes members out of a view.
pub(super) fn without(view: &mut View, members: &[u16]) {
    for member in members {
        view.members[usize::from(*member)] = MemberState::Failed;
    }
    for slot in view.volumes.iter_mut().flat_map(|v| &mut v.groups).flat_map(|g| &mut g.slots) {
        let MemberId(member) = slot.member;
        if members.contains(&member) {
            slot.state = SlotState::Missing;
        }
    }
}
