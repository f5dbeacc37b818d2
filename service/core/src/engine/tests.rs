//! The engine over members and memory that are byte vectors, with completions in random order and errors on demand.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::*;
use crate::action::{Op, ReqStatus, ReqTag, VolumeId};
use crate::geometry::{Geometry, Level};
use crate::gf;
use crate::regions::{Region, RegionMap};
use crate::view::{GroupView, MemberState, SlotState, SlotView, VolumeView};

const LEVELS: [(Level, u16); 8] = [
    (Level::Raid0, 3),
    (Level::Raid1, 2),
    (Level::Raid1, 3),
    (Level::Raid10, 4),
    (Level::Raid5, 3),
    (Level::Raid5, 5),
    (Level::Raid6, 4),
    (Level::Raid6, 6),
];
const VOLUME: VolumeId = VolumeId(7);
/// Where requests' buffers begin in the memory; scratch is below.
const BUFFERS: u64 = 8 << 20;

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 11) % n
    }
}

/// How the simulated manager reacts to a failed member.
#[derive(Clone, Copy, PartialEq)]
enum Manager {
    /// Publishes a view without it at some later moment.
    Reacts,
    /// Leaves it to the test.
    Silent,
}

struct Rig {
    engine: Engine,
    geometry: Geometry,
    members: Vec<Vec<u8>>,
    memory: Vec<u8>,
    ordered: Vec<Action>,
    replies: Vec<(ReqTag, ReqStatus)>,
    events: Vec<Event>,
    rng: Rng,
    manager: Manager,
    /// Blocks (member, byte offset) that cannot be read until they are written.
    unreadable: BTreeSet<(u16, u64)>,
    /// Members that fail everything.
    dead: BTreeSet<u16>,
    /// Members that fail writes only.
    read_only: BTreeSet<u16>,
    view: View,
    next_tag: u64,
}

impl Rig {
    fn new(level: Level, width: u16, chunk: u32, seed: u64) -> Rig {
        let geometry = Geometry { level, width, chunk, extent: chunk as u64 * 4, shards: 1 };
        geometry.validate().expect("a good geometry");
        let groups = 2u64;
        let slot = |g: u64, i: u16| SlotView {
            // Groups rotate over the members, one of which is a spare in each.
            member: MemberId(((i as u64 + g) % (width as u64 + 1)) as u16),
            offset: 4096 + g * geometry.extent,
            state: SlotState::InSync,
        };
        let view = View {
            generation: 1,
            members: vec![MemberState::Active; width as usize + 1],
            volumes: vec![VolumeView {
                id: VOLUME,
                geometry,
                regions: None,
                size: groups * geometry.group_bytes(),
                track_dirty: false,
                dirty: false,
                online: true,
                groups: (0..groups)
                    .map(|g| GroupView { slots: (0..width).map(|i| slot(g, i)).collect(), synced: true })
                    .collect(),
            }],
        };
        let config = Config {
            requests: 48,
            stripes: 12,
            ios: 64,
            scratch: BufAddr::new(0, 0),
            scratch_len: Engine::scratch_needed(&geometry),
            handle_every_release: false,
        };
        Rig {
            engine: Engine::new(config, Arc::new(view.clone())),
            geometry,
            members: vec![vec![0; 4096 + (groups * geometry.extent) as usize]; width as usize + 1],
            memory: vec![0xee; BUFFERS as usize + (16 << 20)],
            ordered: Vec::new(),
            replies: Vec::new(),
            events: Vec::new(),
            rng: Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            manager: Manager::Reacts,
            unreadable: BTreeSet::new(),
            dead: BTreeSet::new(),
            read_only: BTreeSet::new(),
            view,
            next_tag: 0,
        }
    }

    fn size(&self) -> u64 {
        self.view.volumes[0].size
    }

    fn publish(&mut self) {
        self.view.generation += 1;
        self.engine.set_view(Tick(0), Arc::new(self.view.clone()));
    }

    /// What a manager does about a failed member.
    fn fail_member(&mut self, member: MemberId) {
        self.view.members[member.0 as usize] = MemberState::Failed;
        let g = self.geometry;
        let mut online = true;
        for group in &mut self.view.volumes[0].groups {
            for slot in &mut group.slots {
                if slot.member == member {
                    slot.state = SlotState::Missing;
                }
            }
            for stripe in 0..g.width as u32 {
                let lost = (0..g.columns())
                    .filter(|&c| g.slots(stripe, c).iter().all(|s| group.slots[s as usize].state != SlotState::InSync));
                if lost.count() > g.parities() as usize {
                    online = false;
                }
            }
        }
        self.view.volumes[0].online &= online;
        self.publish();
    }

    fn submit(&mut self, op: Op) -> ReqTag {
        let tag = ReqTag(self.next_tag);
        self.next_tag += 1;
        let mut request = Request { tag, volume: VOLUME, op };
        while let Err(Busy(back)) = self.engine.submit(Tick(0), request) {
            request = back;
            assert!(self.step(), "busy with nothing in flight");
        }
        tag
    }

    fn take_actions(&mut self) {
        while let Some(action) = self.engine.next_action() {
            match action {
                Action::Reply { tag, status } => self.replies.push((tag, status)),
                Action::Event(event) => self.events.push(event),
                other => self.ordered.push(other),
            }
        }
    }

    /// Carries out one ordered action, chosen at random. False if there is nothing to do.
    fn step(&mut self) -> bool {
        self.take_actions();
        if self.ordered.is_empty() {
            return self.react();
        }
        if self.rng.below(8) == 0 && self.react() {
            return true;
        }
        let at = self.rng.below(self.ordered.len() as u64) as usize;
        let action = self.ordered.swap_remove(at);
        let (io, status) = self.carry_out(&action);
        self.engine.complete(Tick(0), io, status);
        self.take_actions();
        true
    }

    fn react(&mut self) -> bool {
        if self.manager == Manager::Silent {
            return false;
        }
        let at = self.events.iter().position(|e| match e {
            Event::MemberFailed { member, .. } => self.view.members[member.0 as usize] != MemberState::Failed,
            Event::DirtyNeeded { .. } => !self.view.volumes[0].dirty,
            _ => false,
        });
        match at.map(|a| self.events[a]) {
            Some(Event::MemberFailed { member, .. }) => self.fail_member(member),
            Some(Event::DirtyNeeded { .. }) => {
                self.view.volumes[0].dirty = true;
                self.publish();
            }
            _ => return false,
        }
        true
    }

    fn drain(&mut self) {
        while self.step() {}
    }

    fn slice(&mut self, addr: BufAddr, len: u32) -> &mut [u8] {
        assert_ne!(addr, BufAddr::ZERO, "zeros are no destination");
        &mut self.memory[addr.offset() as usize..][..len as usize]
    }

    fn bytes(&self, addr: BufAddr, len: u32) -> Vec<u8> {
        if addr == BufAddr::ZERO {
            return vec![0; len as usize];
        }
        self.memory[addr.offset() as usize..][..len as usize].to_vec()
    }

    fn carry_out(&mut self, action: &Action) -> (IoTag, IoStatus) {
        match *action {
            Action::Read { io, member, offset, len, segs } => {
                let list = self.engine.segs(segs).to_vec();
                assert_eq!(list.iter().map(|s| s.len).sum::<u32>(), len);
                if self.dead.contains(&member.0) {
                    return (io, IoStatus::Timeout);
                }
                let blocks = offset / 4096..(offset + len as u64).div_ceil(4096);
                if blocks.clone().any(|b| self.unreadable.contains(&(member.0, b * 4096))) {
                    return (io, IoStatus::ReadError);
                }
                let mut at = offset as usize;
                for seg in list {
                    let data = self.members[member.0 as usize][at..at + seg.len as usize].to_vec();
                    self.slice(seg.addr, seg.len).copy_from_slice(&data);
                    at += seg.len as usize;
                }
                (io, IoStatus::Ok)
            }
            Action::Write { io, member, offset, len, segs, .. } => {
                let list = self.engine.segs(segs).to_vec();
                assert_eq!(list.iter().map(|s| s.len).sum::<u32>(), len);
                let data: Vec<u8> = list.iter().flat_map(|s| self.bytes(s.addr, s.len)).collect();
                assert!(list.iter().all(|s| s.addr != BufAddr::ZERO));
                (io, self.write_member(member, offset, &data))
            }
            Action::Zero { io, member, offset, len, .. } => {
                (io, self.write_member(member, offset, &vec![0; len as usize]))
            }
            Action::Flush { io, member } => {
                (io, if self.dead.contains(&member.0) { IoStatus::DeviceError } else { IoStatus::Ok })
            }
            Action::Compute { io, steps } => {
                for step in self.engine.steps(steps).to_vec() {
                    match step {
                        Step::Combine { len, dst, outputs, accumulate, terms } => {
                            let terms = self.engine.terms(terms).to_vec();
                            assert!(!terms.is_empty() && terms.iter().all(|t| t.src != BufAddr::ZERO));
                            let sources: Vec<_> = terms.iter().map(|t| self.bytes(t.src, len)).collect();
                            for (j, &out) in dst.iter().enumerate().take(outputs as usize) {
                                let list: Vec<_> =
                                    terms.iter().zip(&sources).map(|(t, s)| (t.coef[j], &s[..])).collect();
                                gf::combine_scalar(self.slice(out, len), &list, accumulate);
                            }
                        }
                        Step::Copy { dst, src, len } => {
                            let data = self.bytes(src, len);
                            self.slice(dst, len).copy_from_slice(&data);
                        }
                        Step::Compare { a, b, len } => {
                            if self.bytes(a, len) != self.bytes(b, len) {
                                return (io, IoStatus::Miscompare);
                            }
                        }
                    }
                }
                (io, IoStatus::Ok)
            }
            Action::Reply { .. } | Action::Event(_) => unreachable!("taken apart"),
        }
    }

    fn write_member(&mut self, member: MemberId, offset: u64, data: &[u8]) -> IoStatus {
        assert!(offset >= 4096, "writes outside its extents");
        assert_eq!(offset % 4096, 0);
        if self.dead.contains(&member.0) || self.read_only.contains(&member.0) {
            return IoStatus::DeviceError;
        }
        self.members[member.0 as usize][offset as usize..][..data.len()].copy_from_slice(data);
        for block in (offset..offset + data.len() as u64).step_by(4096) {
            self.unreadable.remove(&(member.0, block));
        }
        IoStatus::Ok
    }

    fn buffer(&self, index: u64) -> BufAddr {
        BufAddr::new(0, BUFFERS + index * (256 << 10))
    }

    fn status(&self, tag: ReqTag) -> Option<ReqStatus> {
        let mut found = self.replies.iter().filter(|r| r.0 == tag);
        let status = found.next().map(|r| r.1);
        assert!(found.next().is_none(), "{tag:?} was answered twice");
        status
    }

    fn finish(&mut self, op: Op) -> ReqStatus {
        let tag = self.submit(op);
        self.drain();
        self.status(tag).expect("answered")
    }

    fn fill(&mut self, buf: BufAddr, len: u32, value: u64) {
        let mut rng = Rng(value.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1);
        self.slice(buf, len).chunks_mut(8).for_each(|c| c.copy_from_slice(&rng.next().to_le_bytes()[..c.len()]));
    }

    /// Writes the whole volume with known bytes and returns them.
    fn fill_volume(&mut self) -> Vec<u8> {
        let mut model = Vec::new();
        while (model.len() as u64) < self.size() {
            let offset = model.len() as u64;
            let len = (self.size() - offset).min(256 << 10) as u32;
            let buf = self.buffer(0);
            self.fill(buf, len, offset + 1);
            model.extend(self.bytes(buf, len));
            assert_eq!(self.finish(Op::Write { offset, len, buf, fua: false }), ReqStatus::Ok);
        }
        model
    }

    fn read_volume(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        while (all.len() as u64) < self.size() {
            let offset = all.len() as u64;
            let len = (self.size() - offset).min(256 << 10) as u32;
            let buf = self.buffer(0);
            assert_eq!(self.finish(Op::Read { offset, len, buf }), ReqStatus::Ok);
            all.extend(self.bytes(buf, len));
        }
        all
    }

    /// Redundancy matches data wherever all slots are in sync.
    fn check_redundancy(&self) {
        let g = self.geometry;
        for group in &self.view.volumes[0].groups {
            for stripe in 0..g.stripes() {
                let chunk = |slot: u16| {
                    let s = group.slots[slot as usize];
                    let at = s.offset as usize + stripe as usize * g.chunk as usize;
                    (s.state == SlotState::InSync)
                        .then(|| &self.members[s.member.0 as usize][at..at + g.chunk as usize])
                };
                let column = |c: u16| g.slots(stripe, c).iter().map(chunk).collect::<Vec<_>>();
                for c in 0..g.data_columns() {
                    let copies: Vec<_> = column(c).into_iter().flatten().collect();
                    assert!(copies.windows(2).all(|w| w[0] == w[1]), "copies of stripe {stripe} column {c} differ");
                }
                let data: Option<Vec<_>> = (0..g.data_columns()).map(|c| column(c)[0]).collect();
                let Some(data) = data else { continue };
                for p in 0..g.parities() {
                    let Some(stored) = column(g.data_columns() + p)[0] else { continue };
                    let terms: Vec<_> =
                        data.iter().enumerate().map(|(c, d)| (gf::parity_coef(p, c as u16), *d)).collect();
                    let mut parity = vec![0; g.chunk as usize];
                    gf::combine_scalar(&mut parity, &terms, false);
                    assert!(parity == stored, "parity {p} of stripe {stripe} is stale");
                }
            }
        }
    }
}

/// How many members a level may lose in any group of the rig.
fn tolerance(level: Level) -> usize {
    match level {
        Level::Raid0 => 0,
        Level::Raid6 => 2,
        _ => 1,
    }
}

#[test]
fn what_was_written_is_read_at_every_level() {
    for (level, width) in LEVELS {
        for chunk in [4096, 16384, 65536] {
            let mut rig = Rig::new(level, width, chunk, 1);
            let model = rig.fill_volume();
            rig.check_redundancy();
            assert!(rig.read_volume() == model, "{level} {width} {chunk}");
            for lost in 0..tolerance(level) {
                rig.fail_member(MemberId(lost as u16));
                assert!(rig.read_volume() == model, "{level} {width} {chunk} without {lost}");
            }
            assert!(rig.engine.idle());
        }
    }
}

/// What one random run does to the members.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Trouble {
    None,
    /// As many members as the level tolerates die, at random moments.
    Deaths,
    /// They fail writes only.
    WriteErrors,
    /// Single blocks cannot be read, now and then, at most one in a row of a group.
    BadBlocks,
}

/// A request in flight and what the model expects of it.
struct Flight {
    tag: ReqTag,
    op: Op,
    range: (u64, u64),
    buf: BufAddr,
    writes: bool,
    expect: ReqStatus,
}

/// Random requests, many at once, against a byte model. Ranges in flight overlap only among readers.
fn campaign(level: Level, width: u16, chunk: u32, trouble: Trouble, seed: u64, rounds: u32) -> Counters {
    let what = format!("{level} W={width} chunk={chunk} {trouble:?} seed={seed}");
    let mut rig = Rig::new(level, width, chunk, seed);
    rig.view.volumes[0].track_dirty = seed.is_multiple_of(2);
    rig.publish();
    let mut model = rig.fill_volume();
    let size = rig.size();
    let mut flights: Vec<Flight> = Vec::new();
    let mut buffers: Vec<u64> = (0..30).collect();
    let mut lives = tolerance(level);
    for round in 0..rounds {
        if trouble != Trouble::None && rig.rng.below(40) == 0 {
            match trouble {
                Trouble::BadBlocks if tolerance(level) > 0 && rig.unreadable.is_empty() => {
                    let member = rig.rng.below(width as u64 + 1) as u16;
                    let block = 1 + rig.rng.below(rig.members[0].len() as u64 / 4096 - 1);
                    rig.unreadable.insert((member, block * 4096));
                }
                Trouble::Deaths | Trouble::WriteErrors if lives > 0 && round > rounds / 4 => {
                    let member = rig.rng.below(width as u64 + 1) as u16;
                    if !rig.dead.contains(&member) && !rig.read_only.contains(&member) {
                        let set = if trouble == Trouble::Deaths { &mut rig.dead } else { &mut rig.read_only };
                        set.insert(member);
                        lives -= 1;
                    }
                }
                _ => {}
            }
        }
        if !buffers.is_empty() && rig.rng.below(3) != 0 {
            let longest = (size / 512).min(1 + rig.rng.below(400));
            let len = (1 + rig.rng.below(longest)) * 512;
            let unit = if rig.rng.below(2) == 0 { 512 } else { 4096 };
            let len = if unit == 4096 { len.div_ceil(4096) * 4096 } else { len }.min(size);
            let offset = rig.rng.below((size - len) / unit + 1) * unit;
            let kind = rig.rng.below(10);
            let writes = kind < 5;
            let clash = |f: &Flight| (f.writes || writes) && f.range.0 < offset + len && offset < f.range.1;
            if !flights.iter().any(clash) {
                let at = rig.rng.below(buffers.len() as u64) as usize;
                let index = buffers.swap_remove(at);
                let buf = rig.buffer(2 * index);
                let other = rig.buffer(2 * index + 1);
                let held = model[offset as usize..(offset + len) as usize].to_vec();
                let mut expect = ReqStatus::Ok;
                let len32 = len as u32;
                let op = match kind {
                    0..=3 => {
                        let salt = rig.rng.next();
                        rig.fill(buf, len32, salt);
                        Op::Write { offset, len: len32, buf, fua: kind == 0 }
                    }
                    4 => Op::Zero { offset, len, unmap: rig.rng.below(2) == 0 },
                    5 => {
                        rig.slice(buf, len32).copy_from_slice(&held);
                        if rig.rng.below(2) == 0 {
                            let flip = rig.rng.below(len);
                            rig.slice(buf.plus(flip), 1)[0] ^= 1;
                            expect = ReqStatus::Miscompare;
                        }
                        Op::Compare { offset, len: len32, buf, read_buf: other }
                    }
                    6 => Op::Flush,
                    _ => Op::Read { offset, len: len32, buf },
                };
                let range = if kind == 6 { (0, 0) } else { (offset, offset + len) };
                let tag = rig.submit(op.clone());
                flights.push(Flight { tag, op, range, buf, writes, expect });
            }
        }
        let steps = rig.rng.below(6);
        if round % 64 == 63 {
            rig.drain();
        }
        (0..steps).for_each(|_| {
            rig.step();
        });
        flights.retain(|f| {
            let Some(status) = rig.status(f.tag) else { return true };
            assert_eq!(status, f.expect, "{what}: {:?}", f.op);
            let (a, b) = (f.range.0 as usize, f.range.1 as usize);
            let bytes = rig.bytes(f.buf, (b - a) as u32);
            match f.op {
                Op::Write { .. } => model[a..b].copy_from_slice(&bytes),
                Op::Zero { .. } => model[a..b].fill(0),
                Op::Read { .. } => assert!(bytes == model[a..b], "{what}: wrong data at {a}..{b}"),
                _ => {}
            }
            buffers.push((f.buf.offset() - BUFFERS) / (256 << 10) / 2);
            false
        });
        let open: BTreeSet<_> = flights.iter().map(|f| f.tag).collect();
        rig.replies.retain(|r| open.contains(&r.0));
    }
    rig.drain();
    for f in flights.drain(..) {
        let status = rig.status(f.tag).unwrap_or_else(|| panic!("{what}: {:?} was never answered", f.op));
        assert_eq!(status, f.expect, "{what}: {:?}", f.op);
        let (a, b) = (f.range.0 as usize, f.range.1 as usize);
        let bytes = rig.bytes(f.buf, (b - a) as u32);
        match f.op {
            Op::Write { .. } => model[a..b].copy_from_slice(&bytes),
            Op::Zero { .. } => model[a..b].fill(0),
            Op::Read { .. } => assert!(bytes == model[a..b], "{what}: wrong data at {a}..{b}"),
            _ => {}
        }
    }
    assert!(rig.engine.idle(), "{what}: something is left over");
    assert!(rig.engine.scratch.is_untouched(), "{what}: scratch memory leaks");
    rig.check_redundancy();
    assert!(rig.read_volume() == model, "{what}: the volume differs at the end");
    // Degraded to the limit it still holds the same.
    let mut failed = rig.view.members.iter().filter(|m| **m == MemberState::Failed).count();
    rig.unreadable.clear();
    for member in 0..=width {
        if failed < tolerance(level) && rig.view.members[member as usize] != MemberState::Failed {
            rig.fail_member(MemberId(member));
            failed += 1;
        }
    }
    assert!(rig.read_volume() == model, "{what}: the volume differs when degraded");
    rig.engine.counters
}

fn campaigns(trouble: Trouble) -> Counters {
    let mut last = Counters::default();
    for (level, width) in LEVELS {
        for chunk in [4096, 16384, 65536] {
            for seed in 1..=3 {
                let c = campaign(level, width, chunk, trouble, seed, 500);
                last.read_repairs += c.read_repairs;
                last.degraded_reads += c.degraded_reads;
            }
        }
    }
    last
}

#[test]
fn random_requests_agree_with_the_model() {
    campaigns(Trouble::None);
}

#[test]
fn members_that_die_in_the_middle_lose_nothing() {
    assert!(campaigns(Trouble::Deaths).degraded_reads > 100);
}

#[test]
fn members_that_refuse_writes_lose_nothing() {
    campaigns(Trouble::WriteErrors);
}

#[test]
fn blocks_that_cannot_be_read_are_rebuilt_and_rewritten() {
    assert!(campaigns(Trouble::BadBlocks).read_repairs > 50);
}

/// Member reads and writes of one batch of writes (offset, length), from a quiet engine.
fn cost(level: Level, width: u16, chunk: u32, writes: &[(u64, u32)]) -> (u64, u64, u64) {
    let mut rig = Rig::new(level, width, chunk, 3);
    let before = *rig.engine.counters();
    for (i, &(offset, len)) in writes.iter().enumerate() {
        let buf = rig.buffer(i as u64 % 60).plus(i as u64 / 60 * 4096 * 2);
        let tag = ReqTag(i as u64);
        let op = Op::Write { offset, len, buf, fua: false };
        rig.engine.submit(Tick(0), Request { tag, volume: VOLUME, op }).expect("room");
    }
    rig.drain();
    let after = rig.engine.counters();
    (
        after.member_reads - before.member_reads,
        after.member_writes - before.member_writes,
        after.activations - before.activations,
    )
}

#[test]
fn member_io_equals_the_theory() {
    use Level::*;
    const K: u32 = 1024;
    let c = 64 * K;
    // Level, width, writes of one batch (offset and length in bytes), reads, writes, activations.
    type Case<'a> = (Level, u16, &'a [(u64, u32)], u64, u64, u64);
    let many: Vec<(u64, u32)> = (0..48).map(|i| (i * 4096, 4096)).collect();
    let cases: &[Case] = &[
        (Raid0, 4, &[(0, 4 * K)], 0, 1, 1),
        (Raid0, 4, &[(0, 4 * c)], 0, 4, 1),
        (Raid0, 4, &[(512, 512)], 1, 1, 1),
        (Raid1, 2, &[(0, 4 * K)], 0, 2, 1),
        (Raid1, 3, &[(0, c)], 0, 3, 1),
        (Raid1, 3, &[(1024, 4 * K)], 1, 3, 1),
        (Raid10, 4, &[(0, 4 * K)], 0, 2, 1),
        (Raid10, 4, &[(0, 2 * c)], 0, 4, 1),
        (Raid10, 4, &[(c as u64 - 4096, 8 * K)], 0, 4, 1),
        (Raid5, 5, &[(0, 4 * K)], 2, 2, 1),
        (Raid5, 5, &[(512, 512)], 2, 2, 1),
        (Raid5, 5, &[(0, 512), (512, 512), (1024, 3 * K)], 2, 2, 1),
        (Raid5, 5, &[(0, c)], 2, 2, 1),
        (Raid5, 5, &[(0, 2 * c)], 2, 3, 1),
        (Raid5, 5, &[(0, 3 * c)], 1, 4, 1),
        (Raid5, 5, &[(0, 4 * c)], 0, 5, 1),
        (Raid5, 5, &[(0, 2 * c), (2 * c as u64, 2 * c)], 0, 5, 1),
        (Raid5, 5, &[(2 * c as u64, 2 * c), (0, 2 * c)], 0, 5, 1),
        (Raid5, 5, &[(0, 8 * c)], 0, 10, 2),
        (Raid5, 5, &[(c as u64 - 4096, 8 * K)], 4, 4, 1),
        (Raid5, 3, &[(0, 4 * K)], 1, 2, 1),
        (Raid5, 4, &many, 0, 4, 1),
        (Raid6, 6, &[(0, 4 * K)], 3, 3, 1),
        (Raid6, 6, &[(4096 + 512, 1024)], 3, 3, 1),
        (Raid6, 6, &[(0, c)], 3, 3, 1),
        (Raid6, 6, &[(0, 3 * c)], 1, 5, 1),
        (Raid6, 6, &[(0, 4 * c)], 0, 6, 1),
        (Raid6, 6, &[(0, 2 * c), (2 * c as u64, 2 * c)], 0, 6, 1),
        (Raid6, 5, &many, 0, 5, 1),
    ];
    for &(level, width, writes, r, w, a) in cases {
        let name = format!("{level} W={width} {:?}", &writes[..writes.len().min(4)]);
        assert_eq!(cost(level, width, c, writes), (r, w, a), "{name}");
    }
}

#[test]
fn handling_at_every_release_costs_more_activations() {
    let writes: Vec<Op> = (0..16)
        .map(|i| Op::Write { offset: i * 4096, len: 4096, buf: BufAddr::new(0, BUFFERS + i * 4096), fua: false })
        .collect();
    let run = |every: bool| {
        let mut rig = Rig::new(Level::Raid5, 5, 65536, 1);
        rig.engine.config.handle_every_release = every;
        writes.iter().for_each(|op| {
            rig.submit(op.clone());
        });
        rig.drain();
        rig.check_redundancy();
        *rig.engine.counters()
    };
    let (last, every) = (run(false), run(true));
    assert_eq!((last.activations, last.merged), (1, 15));
    assert!(every.activations > 1);
    assert!(every.member_reads > last.member_reads);
}

/// The member that holds a slot of stripe 0 of group 0.
fn member_of(rig: &Rig, column: u16) -> MemberId {
    let slot = rig.geometry.slots(0, column).first;
    rig.view.volumes[0].groups[0].slots[slot as usize].member
}

#[test]
fn a_write_is_not_acknowledged_before_the_failure_is_recorded() {
    for (level, width) in LEVELS.into_iter().filter(|(l, _)| tolerance(*l) > 0) {
        let mut rig = Rig::new(level, width, 16384, 5);
        let mut model = rig.fill_volume();
        rig.manager = Manager::Silent;
        let member = member_of(&rig, 0);
        rig.read_only.insert(member.0);
        let buf = rig.buffer(1);
        rig.fill(buf, 4096, 99);
        let tag = rig.submit(Op::Write { offset: 0, len: 4096, buf, fua: false });
        rig.drain();
        assert_eq!(rig.status(tag), None, "{level}: acknowledged too early");
        let told = Event::MemberFailed { member, status: IoStatus::DeviceError };
        assert_eq!(rig.events.iter().filter(|e| **e == told).count(), 1, "{level}");
        // A view about something else changes nothing.
        rig.publish();
        rig.drain();
        assert_eq!(rig.status(tag), None, "{level}: acknowledged too early");
        assert_eq!(rig.events.iter().filter(|e| **e == told).count(), 2, "{level}: once in each view");
        rig.fail_member(member);
        rig.drain();
        assert_eq!(rig.status(tag), Some(ReqStatus::Ok), "{level}");
        model[..4096].copy_from_slice(&rig.bytes(buf, 4096));
        assert!(rig.read_volume() == model, "{level}: the write that the member missed is lost");
    }
}

#[test]
fn a_level_without_redundancy_answers_offline_when_a_member_fails() {
    let mut rig = Rig::new(Level::Raid0, 3, 16384, 5);
    rig.fill_volume();
    rig.dead.insert(member_of(&rig, 0).0);
    let buf = rig.buffer(0);
    assert_eq!(rig.finish(Op::Write { offset: 0, len: 4096, buf, fua: false }), ReqStatus::Offline);
    assert_eq!(rig.finish(Op::Read { offset: 0, len: 4096, buf }), ReqStatus::Offline);
}

#[test]
fn a_block_that_is_lost_is_an_error_and_only_that_block() {
    for (level, width) in LEVELS {
        let mut rig = Rig::new(level, width, 16384, 5);
        let model = rig.fill_volume();
        for column in 0..rig.geometry.columns() {
            for slot in rig.geometry.slots(0, column).iter() {
                let s = rig.view.volumes[0].groups[0].slots[slot as usize];
                rig.unreadable.insert((s.member.0, s.offset + 8192));
            }
        }
        let buf = rig.buffer(0);
        assert_eq!(rig.finish(Op::Read { offset: 0, len: 16384, buf }), ReqStatus::Unrecoverable, "{level}");
        assert!(rig.events.contains(&Event::DataLost { volume: VOLUME, offset: 8192, len: 4096 }), "{level}");
        assert_eq!(rig.finish(Op::Read { offset: 0, len: 8192, buf }), ReqStatus::Ok, "{level}");
        assert_eq!(rig.bytes(buf, 8192), model[..8192]);
        // Written again as a whole row it is readable again.
        let bytes = rig.geometry.stripe_bytes() as u32;
        rig.fill(buf, bytes, 5);
        assert_eq!(rig.finish(Op::Write { offset: 0, len: bytes, buf, fua: false }), ReqStatus::Ok, "{level}");
        let back = rig.buffer(1);
        assert_eq!(rig.finish(Op::Read { offset: 0, len: bytes, buf: back }), ReqStatus::Ok, "{level}");
        assert_eq!(rig.bytes(back, bytes), rig.bytes(buf, bytes));
        assert!(rig.events.iter().all(|e| !matches!(e, Event::MemberFailed { .. })), "{level}");
    }
}

#[test]
fn a_read_for_another_engines_stripe_touches_no_stripe() {
    for (level, width) in [(Level::Raid1, 3), (Level::Raid5, 4), (Level::Raid6, 5)] {
        let mut rig = Rig::new(level, width, 16384, 5);
        let model = rig.fill_volume();
        let buf = rig.buffer(0);
        let read = |offset, len| Op::ReadHealthy { offset, len, buf };
        let before = *rig.engine.counters();
        assert_eq!(rig.finish(read(512, 16384)), ReqStatus::Ok);
        assert_eq!(rig.bytes(buf, 16384), model[512..512 + 16384]);

        // A read error, and a device that fails: no repair, no event, the owner meets them itself.
        let s = rig.view.volumes[0].groups[0].slots[rig.geometry.slots(0, 0).iter().next().unwrap() as usize];
        let whole = rig.geometry.slots(0, 0).iter().map(|i| rig.view.volumes[0].groups[0].slots[i as usize]);
        rig.unreadable.extend(whole.collect::<Vec<_>>().iter().map(|s| (s.member.0, s.offset + 4096)));
        assert_eq!(rig.finish(read(4096, 4096)), ReqStatus::NotHere, "{level}");
        rig.unreadable.clear();
        if level != Level::Raid1 {
            rig.dead.insert(s.member.0);
            assert_eq!(rig.finish(read(0, 4096)), ReqStatus::NotHere, "{level}");
            rig.dead.clear();
            // Degraded: what would have to be reconstructed is the owner's, what stands there is not.
            rig.fail_member(s.member);
            assert_eq!(rig.finish(read(0, 4096)), ReqStatus::NotHere, "{level}");
            assert_eq!(rig.finish(read(16384, 4096)), ReqStatus::Ok, "{level}");
        }
        let after = *rig.engine.counters();
        assert_eq!(after.activations, before.activations, "{level}");
        assert_eq!((after.member_writes, after.failed_requests), (before.member_writes, before.failed_requests));
        assert!(rig.events.is_empty(), "{level}: {:?}", rig.events);
    }
}

#[test]
fn nothing_is_reconstructed_from_a_group_that_is_not_synced() {
    for (level, width) in [(Level::Raid5, 4), (Level::Raid6, 5)] {
        let mut rig = Rig::new(level, width, 16384, 5);
        rig.fill_volume();
        rig.view.volumes[0].groups[0].synced = false;
        rig.fail_member(member_of(&rig, 0));
        let buf = rig.buffer(0);
        assert_eq!(rig.finish(Op::Read { offset: 0, len: 4096, buf }), ReqStatus::Unrecoverable);
        assert_eq!(rig.finish(Op::Read { offset: 16384, len: 4096, buf }), ReqStatus::Ok);
        assert_eq!(rig.finish(Op::Write { offset: 512, len: 512, buf, fua: false }), ReqStatus::Unrecoverable);
        assert_eq!(rig.finish(Op::Rebuild { group: 0, stripe: 0 }), ReqStatus::Ok, "there is no target");
        let bytes = rig.geometry.stripe_bytes() as u32;
        assert_eq!(rig.finish(Op::Write { offset: 0, len: bytes, buf, fua: false }), ReqStatus::Ok);
    }
}

#[test]
fn rebuild_fills_the_new_member_while_writes_go_on() {
    for (level, width) in LEVELS.into_iter().filter(|(l, _)| tolerance(*l) > 0) {
        let mut rig = Rig::new(level, width, 16384, 9);
        let mut model = rig.fill_volume();
        let lost: Vec<_> = (0..tolerance(level)).map(|c| member_of(&rig, c as u16)).collect();
        lost.iter().for_each(|m| rig.fail_member(*m));
        // New members take the slots.
        for member in lost {
            let new = MemberId(rig.view.members.len() as u16);
            rig.view.members.push(MemberState::Active);
            let size = rig.members[0].len();
            rig.members.push(vec![0x55; size]);
            for slot in rig.view.volumes[0].groups.iter_mut().flat_map(|g| &mut g.slots) {
                if slot.member == member {
                    (slot.member, slot.state) = (new, SlotState::Rebuilding);
                }
            }
        }
        rig.publish();
        assert!(rig.read_volume() == model, "{level}: read while rebuilding");
        let size = rig.size();
        for group in 0..2 {
            for stripe in 0..rig.geometry.stripes() {
                let rebuild = rig.submit(Op::Rebuild { group, stripe });
                let offset = rig.rng.below(size / 512 - 20) * 512;
                let buf = rig.buffer(3);
                rig.fill(buf, 9216, offset);
                let write = rig.submit(Op::Write { offset, len: 9216, buf, fua: false });
                rig.drain();
                assert_eq!((rig.status(rebuild), rig.status(write)), (Some(ReqStatus::Ok), Some(ReqStatus::Ok)));
                model[offset as usize..offset as usize + 9216].copy_from_slice(&rig.bytes(buf, 9216));
            }
        }
        let slots = rig.view.volumes[0].groups.iter_mut().flat_map(|g| &mut g.slots);
        slots.filter(|s| s.state == SlotState::Rebuilding).for_each(|s| s.state = SlotState::InSync);
        rig.publish();
        rig.check_redundancy();
        assert!(rig.read_volume() == model, "{level}: after the rebuild");
    }
}

#[test]
fn a_rebuild_target_that_fails_ends_the_step_with_write_fault() {
    let mut rig = Rig::new(Level::Raid5, 4, 16384, 9);
    let model = rig.fill_volume();
    let member = member_of(&rig, 0);
    let slots = rig.view.volumes[0].groups.iter_mut().flat_map(|g| &mut g.slots);
    slots.filter(|s| s.member == member).for_each(|s| s.state = SlotState::Rebuilding);
    rig.publish();
    rig.read_only.insert(member.0);
    assert_eq!(rig.finish(Op::Rebuild { group: 0, stripe: 0 }), ReqStatus::WriteFault);
    assert!(rig.read_volume() == model);
}

#[test]
fn resync_makes_redundancy_match_data() {
    for (level, width) in LEVELS.into_iter().filter(|(l, _)| tolerance(*l) > 0) {
        let mut rig = Rig::new(level, width, 16384, 9);
        rig.fill_volume();
        // Rot in all copies but the first, and in all parity.
        let g = rig.geometry;
        rig.view.volumes[0].groups.iter_mut().for_each(|group| group.synced = false);
        for group in rig.view.volumes[0].groups.clone() {
            for stripe in 0..g.stripes() {
                for column in 0..g.columns() {
                    let skip = usize::from(column < g.data_columns());
                    for slot in g.slots(stripe, column).iter().skip(skip) {
                        let s = group.slots[slot as usize];
                        let at = s.offset as usize + (stripe * g.chunk) as usize;
                        rig.members[s.member.0 as usize][at + 77] ^= 0x40;
                    }
                }
            }
        }
        rig.publish();
        let model = rig.read_volume();
        for group in 0..2 {
            for stripe in 0..g.stripes() {
                assert_eq!(rig.finish(Op::Resync { group, stripe }), ReqStatus::Ok, "{level}");
            }
        }
        rig.view.volumes[0].groups.iter_mut().for_each(|group| group.synced = true);
        rig.publish();
        rig.check_redundancy();
        assert!(rig.read_volume() == model, "{level}");
    }
}

#[test]
fn a_write_waits_for_the_dirty_mark() {
    let mut rig = Rig::new(Level::Raid5, 4, 16384, 9);
    rig.view.volumes[0].track_dirty = true;
    rig.publish();
    rig.manager = Manager::Silent;
    let buf = rig.buffer(0);
    let write = rig.submit(Op::Write { offset: 0, len: 4096, buf, fua: false });
    let zero = rig.submit(Op::Zero { offset: 1 << 16, len: 4096, unmap: false });
    rig.drain();
    assert_eq!((rig.status(write), rig.status(zero)), (None, None));
    assert_eq!(rig.events, [Event::DirtyNeeded { volume: VOLUME }]);
    assert_eq!(rig.engine.counters().member_writes, 0, "written before the mark");
    assert_eq!(rig.finish(Op::Read { offset: 0, len: 4096, buf }), ReqStatus::Ok, "reads need no mark");
    rig.view.volumes[0].dirty = true;
    rig.publish();
    rig.drain();
    assert_eq!((rig.status(write), rig.status(zero)), (Some(ReqStatus::Ok), Some(ReqStatus::Ok)));
}

/// A rig whose volume has a bitmap with this state everywhere.
fn with_regions(level: Level, width: u16, state: Region) -> (Rig, RegionMap) {
    let mut rig = Rig::new(level, width, 16384, 9);
    let map = RegionMap::new((0..2 * rig.geometry.bands()).map(|_| state));
    rig.view.volumes[0].regions = Some(map.clone());
    rig.publish();
    (rig, map)
}

#[test]
fn a_write_waits_for_its_region_and_asks_once() {
    for state in [Region::Unwritten, Region::Clean, Region::Closing] {
        let (mut rig, map) = with_regions(Level::Raid5, 4, state);
        let buf = rig.buffer(0);
        let writes: Vec<_> =
            (0..3).map(|i| rig.submit(Op::Write { offset: i * 65536, len: 4096, buf, fua: false })).collect();
        rig.drain();
        assert!(writes.iter().all(|w| rig.status(*w).is_none()));
        assert_eq!(rig.events, [Event::RegionNeeded { volume: VOLUME, region: 0 }], "one region, asked once");
        assert_eq!(rig.engine.counters().member_writes, 0, "written before the region was dirty");
        map.set(0, Region::Dirty);
        rig.drain();
        assert!(writes.iter().all(|w| rig.status(*w).is_none()), "nobody has said so yet");
        rig.engine.regions_changed(Tick(0));
        rig.drain();
        assert!(writes.iter().all(|w| rig.status(*w) == Some(ReqStatus::Ok)));
        assert!(!map.close(0), "it is in use");
        // The other group's region is another one.
        let other = rig.geometry.group_bytes();
        rig.submit(Op::Write { offset: other, len: 4096, buf, fua: false });
        rig.drain();
        assert_eq!(rig.events[1..], [Event::RegionNeeded { volume: VOLUME, region: rig.geometry.bands() }]);
    }
}

#[test]
fn an_unwritten_region_reads_as_zeros_whatever_the_members_hold() {
    for (level, width) in LEVELS {
        for missing in [None, Some(0)] {
            let (mut rig, _) = with_regions(level, width, Region::Unwritten);
            rig.members.iter_mut().for_each(|m| m.fill(0x5a));
            if let Some(m) = missing.filter(|_| level != Level::Raid0) {
                rig.fail_member(MemberId(m));
            }
            let bytes = rig.geometry.stripe_bytes() as u32 * 2;
            let buf = rig.buffer(0);
            for (offset, len) in [(0, bytes), (512, 1024), (16384 - 512, 4096)] {
                assert_eq!(rig.finish(Op::Read { offset, len, buf }), ReqStatus::Ok);
                assert!(rig.bytes(buf, len).iter().all(|b| *b == 0), "{level} {offset} {len}");
            }
            assert_eq!(rig.finish(Op::ReadHealthy { offset: 0, len: 4096, buf }), ReqStatus::Ok);
            assert_eq!(rig.engine.counters().member_reads, 0);
        }
    }
}

#[test]
fn a_region_that_needs_a_resync_is_written_but_nothing_is_reconstructed_from_it() {
    for state in [Region::NeedSync, Region::Syncing] {
        let (mut rig, map) = with_regions(Level::Raid5, 4, state);
        let buf = rig.buffer(0);
        assert_eq!(rig.finish(Op::Write { offset: 0, len: 4096, buf, fua: false }), ReqStatus::Ok);
        // The member with the first data chunk of the first stripe.
        let lost = rig.view.volumes[0].groups[0].slots[rig.geometry.slots(0, 0).first as usize].member;
        rig.fail_member(lost);
        assert_eq!(rig.finish(Op::Read { offset: 0, len: 4096, buf }), ReqStatus::Unrecoverable);
        assert_eq!(rig.finish(Op::Read { offset: 16384, len: 4096, buf }), ReqStatus::Ok, "another column");
        map.set(0, Region::Dirty);
        assert_eq!(rig.finish(Op::Read { offset: 0, len: 4096, buf }), ReqStatus::Ok);
    }
}

#[test]
fn zeroing_a_whole_region_says_so_and_another_write_takes_it_back() {
    let said = |rig: &Rig| rig.events.contains(&Event::RegionZeroed { volume: VOLUME, region: 0 });
    // Whole, but for its last block, and with a write at every moment of it.
    for (part, steps) in [(0, None), (4096, None)].into_iter().chain((0..40).map(|i| (0, Some(i)))) {
        let (mut rig, map) = with_regions(Level::Raid5, 4, Region::Dirty);
        let buf = rig.buffer(0);
        let bytes = rig.geometry.group_bytes();
        rig.submit(Op::Zero { offset: 0, len: bytes - part, unmap: true });
        if let Some(steps) = steps {
            for _ in 0..steps {
                rig.step();
            }
            rig.submit(Op::Write { offset: bytes / 2, len: 512, buf, fua: false });
        }
        rig.drain();
        if steps.is_none() {
            assert_eq!((said(&rig), map.is_zeros(0)), (part == 0, part == 0));
        } else {
            assert!(!map.is_zeros(0) && !map.close_zeros(0), "after {steps:?} answers the write would be forgotten");
        }
    }
}

#[test]
fn zeroing_what_is_unwritten_costs_nothing() {
    let (mut rig, _) = with_regions(Level::Raid6, 5, Region::Unwritten);
    let len = rig.size();
    assert_eq!(rig.finish(Op::Zero { offset: 0, len, unmap: true }), ReqStatus::Ok);
    assert!(rig.events.is_empty());
    assert_eq!(rig.engine.counters().member_writes, 0);
}

#[test]
fn an_epoch_ends_with_its_requests_and_not_with_later_ones() {
    let (mut rig, map) = with_regions(Level::Raid5, 4, Region::Clean);
    let buf = rig.buffer(0);
    let early = rig.submit(Op::Write { offset: 0, len: 4096, buf, fua: false });
    rig.drain();
    assert!(rig.engine.begin_epoch());
    assert!(!rig.engine.old_epoch_ended() && !rig.engine.begin_epoch(), "the early write waits for its region");
    let late = rig.submit(Op::Write { offset: rig.geometry.group_bytes(), len: 4096, buf, fua: false });
    map.set(0, Region::Dirty);
    rig.engine.regions_changed(Tick(0));
    rig.drain();
    assert_eq!((rig.status(early), rig.status(late)), (Some(ReqStatus::Ok), None));
    assert!(rig.engine.old_epoch_ended());
    assert!(rig.engine.begin_epoch() && !rig.engine.old_epoch_ended(), "now the late one is of before");
}

#[test]
fn zeroes_stay_zeroes_down_to_the_members() {
    for (level, width) in LEVELS {
        let mut rig = Rig::new(level, width, 16384, 9);
        let bytes = rig.geometry.stripe_bytes();
        rig.submit(Op::Zero { offset: 0, len: bytes, unmap: true });
        rig.take_actions();
        assert_eq!(rig.ordered.len(), width as usize, "{level}");
        for action in &rig.ordered {
            assert!(matches!(action, Action::Zero { len: 16384, unmap: true, .. }), "{level}: {action:?}");
        }
        rig.drain();
    }
}

#[test]
fn fua_reaches_data_and_parity_and_flush_reaches_every_member() {
    let mut rig = Rig::new(Level::Raid6, 5, 16384, 9);
    let buf = rig.buffer(0);
    let bytes = rig.geometry.stripe_bytes() as u32;
    rig.submit(Op::Write { offset: 0, len: bytes, buf, fua: true });
    rig.take_actions();
    while rig.ordered.iter().any(|a| matches!(a, Action::Compute { .. })) {
        rig.step();
    }
    assert_eq!(rig.ordered.iter().filter(|a| matches!(a, Action::Write { fua: true, .. })).count(), 5);
    rig.drain();
    let before = rig.engine.counters().member_flushes;
    assert_eq!(rig.finish(Op::Flush), ReqStatus::Ok);
    assert_eq!(rig.engine.counters().member_flushes - before, 6);
    // A member that cannot flush has failed, and the flush is answered when that is recorded.
    rig.manager = Manager::Silent;
    rig.dead.insert(2);
    let flush = rig.submit(Op::Flush);
    rig.drain();
    assert_eq!(rig.status(flush), None);
    rig.fail_member(MemberId(2));
    rig.drain();
    assert_eq!(rig.status(flush), Some(ReqStatus::Ok));
}

#[test]
fn requests_outside_the_volume_are_refused() {
    let mut rig = Rig::new(Level::Raid5, 3, 16384, 9);
    let (size, buf) = (rig.size(), rig.buffer(0));
    for (offset, len) in [(size, 512), (size - 512, 1024), (u64::MAX - 511, 512), (100, 512), (0, 100)] {
        assert_eq!(rig.finish(Op::Read { offset, len, buf }), ReqStatus::OutOfRange, "{offset} {len}");
    }
    assert_eq!(rig.finish(Op::Rebuild { group: 2, stripe: 0 }), ReqStatus::OutOfRange);
    assert_eq!(rig.finish(Op::Resync { group: 0, stripe: 4 }), ReqStatus::OutOfRange);
    assert_eq!(rig.finish(Op::Read { offset: 0, len: 0, buf }), ReqStatus::Ok);
    assert_eq!(rig.finish(Op::Zero { offset: 0, len: size, unmap: false }), ReqStatus::Ok, "more stripes than slots");
    rig.view.volumes[0].online = false;
    rig.publish();
    assert_eq!(rig.finish(Op::Read { offset: 0, len: 512, buf }), ReqStatus::Offline);
    assert_eq!(rig.finish(Op::Flush), ReqStatus::Offline);
}
