//! The write-intent bitmaps: what is on disk, what engines see, and the rounds that bring one to the other.
//!
//! The order, and the crash that it prevents:
//!
//! * **Raise.** A region is dirty on every copy of the bitmap, durably, before engines see it as dirty, hence before a write
//!   reaches a member. An unwritten one is made zeros on all its members first, durably too: otherwise a crash would leave
//!   a dirty region whose other blocks are somebody's old data.
//! * **Lower.** A region becomes clean only when nobody has written to it for a while and its group has all its slots in
//!   sync: it is *closing* (writes ask first), then all requests of before have ended, then the members are flushed, then it
//!   is clean on disk. So what is clean on disk is the same on all members, durably, also on one that fails a moment later:
//!   when it comes back it needs nothing but the other regions.
//! * **Forget.** A region that was zeroed as a whole, and not written to since, goes the same way and becomes unwritten, also
//!   in a degraded group: what a lost member holds there is made zeros before the next write, like on all others.
//! * Nothing is raised while a member's failure is not in the view of every engine: an engine could read the slot that
//!   missed the zeros.
//!
//! Copies may differ after a crash. The state that demands most is taken (`merge`): what a raise covers had not begun, and
//! what a lowering says was true already.
//!
//! A copy on a new member is made by writing all of it there (`Kind::Copy`): the manager has the whole bitmap in memory and
//! is the only one that writes it.

use std::collections::{BTreeMap, BTreeSet};

use super::{ArrayState, DeviceId, Manager, ManagerAction, Pending, reason_of};
use crate::action::{IoStatus, MemberId, VolumeId};
use crate::ondisk::{BITMAP_BLOCK, REGIONS_PER_BLOCK, RecordState, VolumeRecord, bitmap_blocks, encode_bitmap_block};
use crate::regions::{Region, RegionMap};
use crate::units::Tick;
use crate::view::SlotState;

/// Most blocks of one write.
const BLOCKS_PER_WRITE: u32 = 256;

/// Of two copies' states of a region, the one that demands more.
pub(super) fn merge(a: Region, b: Region) -> Region {
    a.max(b)
}

/// Where a round stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Unwritten regions are being zeroed.
    Zero,
    /// The zeros are being made durable.
    FlushZeros,
    /// Blocks of the bitmap are being written.
    Write,
    /// They are being made durable.
    Flush,
}

/// What a round is for.
#[derive(Clone, Debug)]
enum Kind {
    /// These become dirty, those clean or unwritten.
    States { raise: Vec<u32>, lower: BTreeMap<u32, Region> },
    /// All of a group of the bitmap is written, for the slot that is to be in sync then.
    Copy { group: usize, slot: usize, member: u16 },
}

#[derive(Clone, Debug)]
struct Round {
    number: u64,
    kind: Kind,
    stage: Stage,
    outstanding: usize,
    failed: Vec<(u16, IoStatus)>,
    /// Members that were written in this stage, and must be flushed in the next.
    written: BTreeSet<u16>,
}

/// Regions on their way to clean or unwritten, before their round.
#[derive(Clone, Debug)]
struct Closing {
    number: u64,
    regions: BTreeMap<u32, Region>,
    outstanding: usize,
    flushing: bool,
    failed: Vec<(u16, IoStatus)>,
}

/// One volume's bitmap.
pub(super) struct Bitmap {
    map: RegionMap,
    /// What blocks are written from: on disk, or more demanding than that.
    states: Vec<Region>,
    /// Writes wait for these.
    asked: BTreeSet<u32>,
    /// Dirty for the engines: to be closed one day.
    dirty: BTreeSet<u32>,
    /// To be resynced.
    need: BTreeSet<u32>,
    /// All of them was zeroed: to be closed at once.
    zeroed: BTreeSet<u32>,
    /// Closed, their members flushed: to be written as clean or unwritten.
    lower: BTreeMap<u32, Region>,
    round: Option<Round>,
    closing: Option<Closing>,
    close_at: Option<Tick>,
    /// No copy could be made at this sequence number.
    no_copy: Option<u64>,
}

impl Bitmap {
    pub fn new(states: Vec<Region>) -> Bitmap {
        let with = |wanted: fn(Region) -> bool| {
            states.iter().enumerate().filter(|(_, s)| wanted(**s)).map(|(i, _)| i as u32).collect::<BTreeSet<u32>>()
        };
        Bitmap {
            map: RegionMap::new(states.iter().copied()),
            asked: BTreeSet::new(),
            dirty: with(|s| s == Region::Dirty),
            need: with(|s| !s.verified()),
            zeroed: BTreeSet::new(),
            lower: BTreeMap::new(),
            round: None,
            closing: None,
            close_at: None,
            no_copy: None,
            states,
        }
    }

    /// As engines see it.
    pub fn map(&self) -> &RegionMap {
        &self.map
    }

    /// The round under way, if there is one.
    pub fn round(&self) -> Option<u64> {
        self.round.as_ref().map(|r| r.number)
    }

    /// Regions of a range that wait for a resync.
    pub fn need(&self, range: std::ops::Range<u32>) -> impl Iterator<Item = u32> {
        self.need.range(range).copied()
    }

    /// Redundancy of these regions matches data again, durably. They are dirty, until they are closed.
    pub fn resynced(&mut self, regions: impl Iterator<Item = u32>) {
        for r in regions {
            self.need.remove(&r);
            for from in [Region::NeedSync, Region::Syncing] {
                self.map.shift(r, from, Region::Dirty);
            }
            self.dirty.insert(r);
        }
    }

    /// A resync has begun with the region, or was given up.
    pub fn syncing(&self, region: u32, begun: bool) {
        let (from, to) = if begun { (Region::NeedSync, Region::Syncing) } else { (Region::Syncing, Region::NeedSync) };
        self.map.shift(region, from, to);
    }
}

impl Manager {
    /// A write waits for a region.
    pub(super) fn region_needed(&mut self, volume: VolumeId, region: u32) {
        let Some(b) = self.bitmaps.get_mut(&volume.0) else { return };
        let now = b.map.get(region);
        let lowering = b.round.as_ref().is_some_and(|r| match &r.kind {
            Kind::States { lower, .. } => lower.contains_key(&region),
            Kind::Copy { .. } => false,
        });
        if now.writable() || (now == Region::Closing && !lowering) {
            // It was raised meanwhile, or it is still dirty on disk: only engines have to know.
            b.lower.remove(&region);
            if let Some(c) = &mut b.closing {
                c.regions.remove(&region);
            }
            b.map.set(region, if now.writable() { now } else { Region::Dirty });
            b.map.touch(region, false);
            self.actions.push_back(ManagerAction::RegionsChanged { volume });
        } else {
            b.asked.insert(region);
        }
    }

    /// All of a region was zeroed.
    pub(super) fn region_zeroed(&mut self, volume: VolumeId, region: u32) {
        if let Some(b) = self.bitmaps.get_mut(&volume.0) {
            b.zeroed.insert(region);
        }
    }

    /// Whether the redundancy of a group matches its data, as far as is known.
    pub(super) fn group_synced(&self, volume: &VolumeRecord, group: usize) -> bool {
        let bands = volume.geometry.bands();
        let first = group as u32 * bands;
        let needs = |b: &Bitmap| b.need(first..first + bands).next().is_some();
        volume.groups[group].synced && !self.bitmaps.get(&volume.id).is_some_and(needs)
    }

    /// When the next regions may be closed.
    pub(super) fn bitmap_deadline(&self) -> Option<Tick> {
        self.bitmaps.values().filter(|b| b.closing.is_none() && b.lower.is_empty()).filter_map(|b| b.close_at).min()
    }

    pub(super) fn step_bitmaps(&mut self) -> bool {
        if !matches!(self.state, ArrayState::Running) {
            return false;
        }
        let ids: Vec<u32> = self.bitmaps.keys().copied().collect();
        let mut moved = false;
        for id in ids {
            // Taken out, so that it and the manager can be changed together.
            let Some(mut b) = self.bitmaps.remove(&id) else { continue };
            moved |= self.step_bitmap(id, &mut b);
            self.bitmaps.insert(id, b);
        }
        // Failures are recorded when all bitmaps are back: they look at them.
        for (member, status) in std::mem::take(&mut self.bitmap_failures) {
            self.fail_member(member, reason_of(status));
            moved = true;
        }
        moved
    }

    fn step_bitmap(&mut self, id: u32, b: &mut Bitmap) -> bool {
        let Some(at) = self.wanted.volumes.iter().position(|v| v.id == id) else { return false };
        self.step_closing(at, b) | self.step_round(at, b)
    }

    /// Regions that have been left alone for a while go their way to clean.
    fn step_closing(&mut self, at: usize, b: &mut Bitmap) -> bool {
        if let Some(c) = &mut b.closing {
            if !c.flushing || c.outstanding > 0 {
                return false;
            }
            let c = b.closing.take().unwrap_or_else(|| unreachable!("it was there"));
            if c.failed.is_empty() {
                b.lower.extend(c.regions);
            } else {
                self.bitmap_failures.extend(c.failed.iter().copied());
                self.reopen(self.wanted.volumes[at].id, b, c.regions.into_keys());
            }
            return true;
        }
        let zeroed: BTreeMap<u32, Region> = std::mem::take(&mut b.zeroed)
            .into_iter()
            .filter(|r| b.map.close_zeros(*r))
            .map(|r| (r, Region::Unwritten))
            .collect();
        if !zeroed.is_empty() {
            self.begin_closing(at, b, zeroed);
            return true;
        }
        if b.dirty.is_empty() {
            b.close_at = None;
            return false;
        }
        let wait = self.config.clean_after.max(1);
        match b.close_at {
            None => {
                b.close_at = Some(self.now.after(wait));
                return true;
            }
            Some(at) if at > self.now => return false,
            Some(_) => b.close_at = Some(self.now.after(wait)),
        }
        let v = &self.wanted.volumes[at];
        let (bands, groups) = (v.geometry.bands(), &v.groups);
        let in_sync =
            |r: u32| groups.get((r / bands) as usize).is_some_and(|g| g.slots.iter().all(super::redundancy::in_sync));
        let idle = b.dirty.iter().copied().filter(|r| in_sync(*r) && b.map.close(*r));
        let regions: BTreeMap<u32, Region> = idle.map(|r| (r, Region::Clean)).collect();
        if !regions.is_empty() {
            self.begin_closing(at, b, regions);
        }
        true
    }

    fn begin_closing(&mut self, at: usize, b: &mut Bitmap, regions: BTreeMap<u32, Region>) {
        let (id, number) = (self.wanted.volumes[at].id, self.next_number());
        b.closing = Some(Closing { number, regions, outstanding: 0, flushing: false, failed: Vec::new() });
        let tag = self.tag(Pending::ClosingQuiesce(id, number));
        self.actions.push_back(ManagerAction::Quiesce { tag });
    }

    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Closing regions that are still dirty on disk are dirty for engines again.
    fn reopen(&mut self, volume: u32, b: &Bitmap, regions: impl Iterator<Item = u32>) {
        for r in regions {
            b.map.shift(r, Region::Closing, Region::Dirty);
        }
        self.actions.push_back(ManagerAction::RegionsChanged { volume: VolumeId(volume) });
    }

    /// All requests that could still write to closing regions have ended: what they wrote is made durable.
    pub(super) fn closing_quiesced(&mut self, volume: u32, number: u64) {
        let Some(v) = self.wanted.volumes.iter().find(|v| v.id == volume) else { return };
        let mut members: Vec<u16> = v.groups.iter().flat_map(|g| &g.slots).map(|s| s.member).collect();
        members.sort_unstable();
        members.dedup();
        let devices: Vec<(u16, DeviceId)> =
            members.into_iter().filter_map(|m| Some((m, self.live_device(m)?))).collect();
        let Some(b) = self.bitmaps.get_mut(&volume) else { return };
        let Some(c) = b.closing.as_mut().filter(|c| c.number == number) else { return };
        (c.flushing, c.outstanding) = (true, devices.len());
        for (member, device) in devices {
            let tag = self.tag(Pending::ClosingFlush(volume, number, MemberId(member)));
            self.actions.push_back(ManagerAction::Flush { tag, device });
        }
    }

    pub(super) fn closing_flushed(&mut self, volume: u32, number: u64, member: MemberId, status: IoStatus) {
        let Some(c) = self.bitmaps.get_mut(&volume).and_then(|b| b.closing.as_mut()).filter(|c| c.number == number)
        else {
            return;
        };
        c.outstanding -= 1;
        if status != IoStatus::Ok {
            c.failed.push((member.0, status));
        }
    }

    /// A member has failed: what was about to be called clean may not be clean on it.
    pub(super) fn bitmaps_lost_member(&mut self) {
        let ids: Vec<u32> = self.bitmaps.keys().copied().collect();
        for id in ids {
            let Some(mut b) = self.bitmaps.remove(&id) else { continue };
            if let Some(c) = b.closing.take() {
                self.reopen(id, &b, c.regions.into_keys());
            }
            b.no_copy = None;
            self.bitmaps.insert(id, b);
        }
    }

    fn step_round(&mut self, at: usize, b: &mut Bitmap) -> bool {
        let Some(mut round) = b.round.take() else { return self.start_round(at, b) };
        if round.outstanding > 0 {
            b.round = Some(round);
            return false;
        }
        if !round.failed.is_empty() {
            self.bitmap_failures.append(&mut round.failed);
            self.give_up_round(b, round);
            return true;
        }
        match round.stage {
            Stage::Zero => {
                round.stage = Stage::FlushZeros;
                self.flush_round(at, &mut round);
            }
            Stage::FlushZeros => {
                round.stage = Stage::Write;
                self.write_round(at, b, &mut round);
            }
            Stage::Write => {
                round.stage = Stage::Flush;
                self.flush_round(at, &mut round);
            }
            Stage::Flush => {
                self.finish_round(at, b, round);
                return true;
            }
        }
        b.round = Some(round);
        true
    }

    fn start_round(&mut self, at: usize, b: &mut Bitmap) -> bool {
        let v = &self.wanted.volumes[at];
        let whole = v.meta.iter().all(|g| !super::redundancy::degraded(g));
        if whole && b.asked.is_empty() && b.lower.is_empty() {
            return false;
        }
        if self.published < self.failed_at || !super::redundancy::volume_viable(v) {
            return false;
        }
        let kind = if let Some(copy) = self.next_copy(at, b) {
            copy
        } else if b.asked.is_empty() && b.lower.is_empty() {
            return false;
        } else {
            let raise = std::mem::take(&mut b.asked).into_iter().collect();
            let lower = std::mem::take(&mut b.lower);
            Kind::States { raise, lower }
        };
        let number = self.next_number();
        let mut round =
            Round { number, kind, stage: Stage::Zero, outstanding: 0, failed: Vec::new(), written: BTreeSet::new() };
        self.zero_regions(at, b, &mut round);
        if round.outstanding == 0 {
            round.stage = Stage::Write;
            self.write_round(at, b, &mut round);
        }
        b.round = Some(round);
        true
    }

    /// Orders zeros for what was unwritten until now.
    fn zero_regions(&mut self, at: usize, b: &Bitmap, round: &mut Round) {
        let Kind::States { raise, .. } = &round.kind else { return };
        let v = &self.wanted.volumes[at];
        let g = v.geometry;
        let band = u64::from(g.band_stripes()) * u64::from(g.chunk);
        let mut orders = Vec::new();
        for r in raise.iter().filter(|r| b.map.get(**r) == Region::Unwritten) {
            let (group, in_group) = (r / g.bands(), u64::from(r % g.bands()) * band);
            let len = band.min(g.extent - in_group);
            for s in v.groups[group as usize].slots.iter().filter(|s| s.state != SlotState::Missing) {
                if let Some(device) = self.live_device(s.member) {
                    orders.push((s.member, device, self.extent_offset(s.extent) + in_group, len));
                }
            }
        }
        for (member, device, offset, len) in orders {
            let tag = self.round_tag(at, round, member, device);
            self.actions.push_back(ManagerAction::Zero { tag, device, offset, len });
        }
    }

    fn round_tag(&mut self, at: usize, round: &mut Round, member: u16, device: DeviceId) -> super::MetaTag {
        round.outstanding += 1;
        round.written.insert(member);
        let volume = self.wanted.volumes[at].id;
        self.tag(Pending::Round { volume, number: round.number, member: MemberId(member), device })
    }

    fn flush_round(&mut self, at: usize, round: &mut Round) {
        for member in std::mem::take(&mut round.written) {
            // A member that failed meanwhile is in nobody's way; its failure is recorded before the next round.
            let Some(device) = self.live_device(member) else { continue };
            let tag = self.round_tag(at, round, member, device);
            self.actions.push_back(ManagerAction::Flush { tag, device });
        }
        round.written.clear();
    }

    /// Orders the blocks that the round changes, on every copy.
    fn write_round(&mut self, at: usize, b: &mut Bitmap, round: &mut Round) {
        let blocks: BTreeSet<u32> = match &round.kind {
            Kind::States { raise, lower } => {
                raise.iter().for_each(|r| b.states[*r as usize] = Region::Dirty);
                lower.iter().for_each(|(r, state)| b.states[*r as usize] = *state);
                raise.iter().chain(lower.keys()).map(|r| r / REGIONS_PER_BLOCK).collect()
            }
            Kind::Copy { group, .. } => {
                let per_group = self.blocks_per_group();
                let from = *group as u32 * per_group;
                (from..(from + per_group).min(bitmap_blocks(b.states.len() as u32))).collect()
            }
        };
        let only = match &round.kind {
            Kind::Copy { member, .. } => Some(*member),
            Kind::States { .. } => None,
        };
        for (first, count) in runs(&blocks, self.blocks_per_group()) {
            let v = &self.wanted.volumes[at];
            let bytes = encode_blocks(v.id, &b.states, first, count);
            for (member, device, offset) in self.bitmap_copies_of(v, first) {
                if only.is_none_or(|m| m == member) {
                    let tag = self.round_tag(at, round, member, device);
                    self.actions.push_back(ManagerAction::Write { tag, device, offset, bytes: bytes.clone() });
                }
            }
        }
    }

    pub(super) fn blocks_per_group(&self) -> u32 {
        (self.identity.extent / u64::from(BITMAP_BLOCK)) as u32
    }

    /// Where a block of a bitmap is: member, device and byte offset of each copy that is written.
    pub(super) fn bitmap_copies_of(&self, v: &VolumeRecord, block: u32) -> Vec<(u16, DeviceId, u64)> {
        let per_group = self.blocks_per_group();
        let Some(group) = v.meta.get((block / per_group) as usize) else { return Vec::new() };
        let in_group = u64::from(block % per_group) * u64::from(BITMAP_BLOCK);
        let slots = group.slots.iter().filter(|s| s.state != SlotState::Missing);
        slots
            .filter_map(|s| Some((s.member, self.live_device(s.member)?, self.extent_offset(s.extent) + in_group)))
            .collect()
    }

    pub(super) fn round_done(&mut self, volume: u32, number: u64, member: MemberId, status: IoStatus) {
        let round = self.bitmaps.get_mut(&volume).and_then(|b| b.round.as_mut()).filter(|r| r.number == number);
        let Some(round) = round else { return };
        round.outstanding -= 1;
        if status != IoStatus::Ok {
            round.failed.push((member.0, status));
        }
    }

    /// What the round wrote is durable on all copies: engines may know.
    fn finish_round(&mut self, at: usize, b: &mut Bitmap, round: Round) {
        let volume = VolumeId(self.wanted.volumes[at].id);
        match round.kind {
            Kind::States { raise, lower } => {
                self.settle_lowered(b, &lower);
                for r in &raise {
                    b.map.set(*r, Region::Dirty);
                    b.map.touch(*r, false);
                    b.dirty.insert(*r);
                }
                if !raise.is_empty() {
                    self.actions.push_back(ManagerAction::RegionsChanged { volume });
                }
            }
            Kind::Copy { group, slot, member } => {
                let place = &mut self.wanted.volumes[at].meta[group].slots[slot];
                if place.member == member && place.state == SlotState::Rebuilding {
                    place.state = SlotState::InSync;
                    self.changed();
                }
            }
        }
    }

    fn settle_lowered(&mut self, b: &mut Bitmap, lower: &BTreeMap<u32, Region>) {
        for (r, state) in lower {
            b.map.shift(*r, Region::Closing, *state);
            b.dirty.remove(r);
        }
    }

    /// A member failed in the round. What was to be raised waits for the next one. What was lowered *is* clean; on disk it
    /// may be called dirty still, which demands more.
    fn give_up_round(&mut self, b: &mut Bitmap, round: Round) {
        if let Kind::States { raise, lower } = round.kind {
            if matches!(round.stage, Stage::Zero | Stage::FlushZeros) {
                b.lower.extend(lower);
            } else {
                self.settle_lowered(b, &lower);
            }
            b.asked.extend(raise);
        }
    }

    /// A copy of the bitmap that has to be made: its slot gets a member first.
    fn next_copy(&mut self, at: usize, b: &mut Bitmap) -> Option<Kind> {
        let v = &self.wanted.volumes[at];
        let lacks = |g: &crate::ondisk::GroupRecord| g.slots.iter().position(|s| !super::redundancy::in_sync(s));
        let (group, slot) = v.meta.iter().enumerate().find_map(|(i, g)| Some((i, lacks(g)?)))?;
        let place = v.meta[group].slots[slot];
        if place.state == SlotState::Rebuilding && self.live_device(place.member).is_some() {
            return Some(Kind::Copy { group, slot, member: place.member });
        }
        if b.no_copy == Some(self.sequence) {
            return None;
        }
        let used = self.used_extents();
        let free: Vec<u32> = (0..self.wanted.members.len() as u16).map(|m| used.free(m)).collect();
        let slots = &self.wanted.volumes[at].meta[group].slots;
        let Some(&(_, member, extent)) = self.targets(slots, &used, &free).iter().find(|(i, ..)| *i == slot) else {
            b.no_copy = Some(self.sequence);
            return None;
        };
        self.claim_spare(member, place.member);
        let place = &mut self.wanted.volumes[at].meta[group].slots[slot];
        (place.member, place.extent, place.state) = (member, extent, SlotState::Rebuilding);
        self.changed();
        Some(Kind::Copy { group, slot, member })
    }

    /// A spare that takes a lost member's slot is a member in use, and takes the other slots too.
    pub(super) fn claim_spare(&mut self, member: u16, lost: u16) -> bool {
        let record = &mut self.wanted.members[usize::from(member)];
        let spare = record.state == RecordState::Spare;
        if spare {
            record.state = RecordState::Active;
            record.replaces = record.replaces.or(Some(lost));
        }
        spare
    }

    /// The array stops, all requests have ended and the members are flushed: what is known now is put on disk. Without this
    /// a region that has been resynced would be resynced again.
    pub(super) fn settle_bitmaps(&mut self) {
        for id in self.bitmaps.keys().copied().collect::<Vec<u32>>() {
            let Some(mut b) = self.bitmaps.remove(&id) else { continue };
            if let Some(v) =
                self.wanted.volumes.iter().find(|v| v.id == id).filter(|v| super::redundancy::volume_viable(v))
            {
                let bands = v.geometry.bands() as usize;
                let mut changed = BTreeSet::new();
                for (r, state) in b.states.iter_mut().enumerate() {
                    let now = match b.map.get(r as u32) {
                        Region::Dirty | Region::Closing if super::redundancy::degraded(&v.groups[r / bands]) => {
                            Region::Dirty
                        }
                        Region::Dirty | Region::Closing => Region::Clean,
                        Region::Syncing => Region::NeedSync,
                        other => other,
                    };
                    if std::mem::replace(state, now) != now {
                        changed.insert(r as u32 / REGIONS_PER_BLOCK);
                    }
                }
                let mut writes = Vec::new();
                for (first, count) in runs(&changed, self.blocks_per_group()) {
                    let bytes = encode_blocks(id, &b.states, first, count);
                    let copies = self.bitmap_copies_of(v, first);
                    writes.extend(copies.into_iter().map(|(_, device, offset)| (device, offset, bytes.clone())));
                }
                for (device, offset, bytes) in writes {
                    self.task_write(device, offset, bytes);
                }
            }
            self.bitmaps.insert(id, b);
        }
    }

    /// The array stops, or the volume goes: rounds under way are not finished, but the task that ends them waits for their
    /// writes.
    pub(super) fn stop_bitmaps(&mut self, only: Option<VolumeId>) {
        let ends = |id: u32| only.is_none_or(|v| v.0 == id);
        for (_, b) in self.bitmaps.iter_mut().filter(|(id, _)| ends(**id)) {
            (b.round, b.closing, b.close_at) = (None, None, None);
            b.asked.clear();
            b.dirty.clear();
            b.zeroed.clear();
        }
        for pending in self.pending.values_mut() {
            match *pending {
                Pending::Round { volume, device, .. } if ends(volume) => {
                    *pending = Pending::Task(device, 0);
                    self.task_io.outstanding += 1;
                }
                _ => {}
            }
        }
    }
}

/// Whole blocks of a bitmap.
pub(super) fn encode_blocks(volume: u32, states: &[Region], first: u32, count: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity((count * BITMAP_BLOCK) as usize);
    (first..first + count).for_each(|block| encode_bitmap_block(volume, states, block, &mut bytes));
    bytes
}

/// Runs of adjacent blocks that one write can take: first and count. No run crosses a group.
pub(super) fn runs(blocks: &BTreeSet<u32>, per_group: u32) -> Vec<(u32, u32)> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &block in blocks {
        match runs.last_mut() {
            Some((first, count))
                if *first + *count == block && *count < BLOCKS_PER_WRITE && !block.is_multiple_of(per_group) =>
            {
                *count += 1;
            }
            _ => runs.push((block, 1)),
        }
    }
    runs
}
