//! The engine over members and memory that are byte vectors, with completions in random order and errors on demand.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::*;
use crate::action::{Op, ReqStatus, ReqTag, VolumeId};
use crate::geometry::{Geometry, Level};
use crate::gf;
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
            memory: vec![0xee; BUFFERS as usize + (32 << 20)],
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
                            for j in 0..outputs as usize {
                                let list: Vec<_> =
                                    terms.iter().zip(&sources).map(|(t, s)| (t.coef[j], &s[..])).collect();
                                gf::combine_scalar(self.slice(dst[j], len), &list, accumulate);
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
        BufAddr::new(0, BUFFERS + index * (512 << 10))
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
