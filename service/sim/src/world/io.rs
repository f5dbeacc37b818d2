//! Drive I/O. Each takes effect in two parts, at two moments between order and answer, cut at some sector: a buffer that
//! changes too early, or an answer that was not waited for, shows in the data.

use raid_core::action::{IoStatus, IoTag, Slice};
use raid_core::regions::Region;
use raid_core::view::{SlotState, SlotView, VolumeView};

use super::{CONTROL, Control, ControlMail, Ev, World};
use crate::breaks::{Break, strikes};
use crate::drive::{BLOCK, Kind};
use crate::pattern::{self, SECTOR};

/// Who ordered an I/O.
pub(super) enum Owner {
    /// An engine.
    Engine { lane: usize, io: IoTag, segs: Slice },
    /// The real manager; the bytes to write.
    Meta { tag: u64, bytes: Vec<u8> },
}

/// An I/O in flight.
pub(super) struct DriveIo {
    owner: Owner,
    drive: usize,
    member: u16,
    kind: Kind,
    offset: u64,
    len: u64,
    status: IoStatus,
    /// Bytes that have taken effect.
    effective: u64,
    /// A deliberate fault: answered as done from here on.
    lost: bool,
    /// What a metadata read found.
    found: Vec<u8>,
}

impl World {
    pub(super) fn start_io(&mut self, owner: Owner, drive: usize, member: u16, kind: Kind, offset: u64, len: u64) {
        let id = self.next_io;
        self.next_io += 1;
        let mut io = DriveIo {
            owner,
            drive,
            member,
            kind,
            offset,
            len,
            status: IoStatus::Ok,
            effective: 0,
            lost: false,
            found: Vec::new(),
        };
        self.spoil(&mut io);
        let broken_flush = match io.owner {
            Owner::Engine { .. } => self.broken == Some(Break::SkipFlush),
            Owner::Meta { .. } => self.broken == Some(Break::SkipManagerFlush),
        };
        self.cut_event(io.kind, Some(id));
        if kind == Kind::Flush && !broken_flush {
            self.drives[drive].begin_flush(id);
        }
        self.trace
            .event(self.clock.now(), move || format!("io {id}: {kind:?} of member {member}, {len} bytes at {offset}"));
        self.ios.insert(id, io);
        let first = self.rng.range(200, 20_000);
        let second = if self.rng.percent(3) { self.rng.range(0, 900_000) } else { self.rng.range(0, 20_000) };
        self.clock.after(first, Ev::Effect(id));
        self.clock.after(first + second, Ev::Done(id));
    }

    /// The deliberate faults of the executor.
    fn spoil(&mut self, io: &mut DriveIo) {
        let Owner::Engine { .. } = io.owner else { return };
        let (broken, rng) = (self.broken, &mut self.rng);
        if matches!(io.kind, Kind::Write { .. }) {
            let volume = self.view.volume(self.volume);
            let redundant = volume.is_some_and(|v| {
                v.groups.iter().any(|g| {
                    g.slots.iter().enumerate().any(|(slot, s)| {
                        let geometry = &v.geometry;
                        let inside =
                            s.member.0 == io.member && (s.offset..s.offset + geometry.extent).contains(&io.offset);
                        let stripe = (io.offset.wrapping_sub(s.offset) / u64::from(geometry.chunk)) as u32;
                        let column = if inside { geometry.column(stripe, slot as u16) } else { 0 };
                        inside
                            && (column >= geometry.data_columns()
                                || geometry.slots(stripe, column).first != slot as u16)
                    })
                })
            });
            io.lost |= !redundant && strikes(broken, Break::SkipWrite, 5, rng);
            io.lost |= redundant && strikes(broken, Break::SkipRedundancy, 5, rng);
            if strikes(broken, Break::MisdirectedWrite, 5, rng) {
                io.offset ^= BLOCK;
            }
        }
        if let Kind::Zero { .. } = io.kind {
            io.lost |= strikes(broken, Break::SkipZero, 30, rng);
        }
        if broken == Some(Break::IgnoreFua)
            && let Kind::Write { fua } | Kind::Zero { fua } = &mut io.kind
        {
            *fua = false;
        }
    }

    /// The bytes from `from` to `to` of what is written.
    fn outgoing(&self, io: &DriveIo, from: u64, to: u64) -> Vec<u8> {
        match &io.owner {
            _ if matches!(io.kind, Kind::Zero { .. }) => vec![0; (to - from) as usize],
            Owner::Engine { lane, segs, .. } => {
                let bytes = self.memory.gather(self.lanes[*lane].engine.segs(*segs));
                bytes[from as usize..to as usize].to_vec()
            }
            Owner::Meta { bytes, .. } => bytes[from as usize..to as usize].to_vec(),
        }
    }

    fn take_effect(&mut self, id: u64, io: &mut DriveIo, to: u64) {
        let from = io.effective;
        io.effective = to;
        if from == to || io.lost {
            return;
        }
        match io.kind {
            Kind::Flush => {}
            // A slot of the configuration is large and almost empty. Its reader needs no zeros behind the last byte, and
            // to make them would take half of the time of a campaign that assembles thousands of arrays a second.
            Kind::Read if matches!(io.owner, Owner::Meta { .. }) && self.case.plan.is_some() => {
                let to = to.min(self.drives[io.drive].written(io.offset, io.len).max(4096));
                let mut bytes = vec![0; to.saturating_sub(from) as usize];
                self.drives[io.drive].read(io.offset + from, &mut bytes);
                io.found.extend_from_slice(&bytes);
            }
            Kind::Read => {
                let mut bytes = vec![0; (to - from) as usize];
                self.drives[io.drive].read(io.offset + from, &mut bytes);
                match &io.owner {
                    Owner::Engine { lane, segs, .. } => {
                        let segs = self.lanes[*lane].engine.segs(*segs).to_vec();
                        self.memory.scatter(&segs, from as usize, &bytes);
                    }
                    Owner::Meta { .. } => io.found.extend_from_slice(&bytes),
                }
            }
            Kind::Write { .. } | Kind::Zero { .. } => {
                let bytes = self.outgoing(io, from, to);
                // The cuts campaign shows what comes of it instead.
                if let Owner::Engine { .. } = io.owner
                    && self.case.plan.is_none()
                {
                    self.check_mark(io, &bytes);
                }
                self.drives[io.drive].apply(id, io.offset + from, &bytes);
            }
        }
    }

    /// New data may reach a member only under a durable dirty mark.
    fn check_mark(&mut self, io: &DriveIo, bytes: &[u8]) {
        let Some(volume) = self.view.volume(self.volume).filter(|v| v.track_dirty) else { return };
        let marked = match &self.control {
            Control::Mini(mini) => mini.durable_dirty,
            Control::Full(_) => volume.dirty,
        };
        let marked = marked && region_marked(volume, io);
        if marked || bytes.len() < SECTOR {
            return;
        }
        if let Some(value) = pattern::value_of(&bytes[..SECTOR])
            && self.oracle.in_flight(value)
            && (!region_marked(volume, io) || !self.mark_on_drives())
        {
            let (member, offset) = (io.member, io.offset);
            self.fail(format!(
                "value {value} reached member {member} at {offset} before the volume's dirty mark was durable"
            ));
        }
    }

    pub(super) fn io_effect(&mut self, id: u64) {
        let Some(mut io) = self.ios.remove(&id) else { return };
        self.cut_event(io.kind, None);
        io.status = self.drives[io.drive].judge(io.kind, io.offset, io.len);
        let sectors = io.len / SECTOR as u64;
        let writes = matches!(io.kind, Kind::Write { .. } | Kind::Zero { .. });
        // A write that fails may have been done in part, unless the drive is gone.
        let reaches = io.status == IoStatus::Ok || (writes && self.drives[io.drive].faults.dead.is_none());
        if reaches && sectors > 0 {
            let cut = if self.rng.percent(30) { self.rng.below(sectors + 1) } else { sectors };
            self.take_effect(id, &mut io, cut * SECTOR as u64);
        }
        if io.status == IoStatus::Ok && writes && strikes(self.broken, Break::TornWrite, 3, &mut self.rng) {
            io.effective = io.len;
        }
        self.ios.insert(id, io);
    }

    pub(super) fn io_done(&mut self, id: u64) {
        if strikes(self.broken, Break::LoseAnswer, 1, &mut self.rng) {
            return;
        }
        let Some(mut io) = self.ios.remove(&id) else { return };
        self.cut_event(io.kind, None);
        if let Some(status) = self.drives[io.drive].faults.dead {
            io.status = status;
        }
        if io.status == IoStatus::Ok {
            let len = io.len;
            self.take_effect(id, &mut io, len);
            match io.kind {
                Kind::Write { fua } | Kind::Zero { fua } => self.drives[io.drive].complete(id, fua, self.next_io),
                Kind::Flush => self.drives[io.drive].end_flush(id),
                Kind::Read => {}
            }
        }
        self.io_answer(id, io);
    }

    fn io_answer(&mut self, id: u64, io: DriveIo) {
        let (member, status, kind) = (io.member, io.status, io.kind);
        if status != IoStatus::Ok {
            self.trace.event(self.clock.now(), move || format!("io {id}: member {member} answers {status:?}"));
        }
        match io.owner {
            Owner::Meta { tag, .. } => {
                let result = if status == IoStatus::Ok { Ok(io.found) } else { Err(status) };
                let mail = ControlMail::Meta { tag, read: kind == Kind::Read, result };
                self.send(CONTROL, CONTROL, Ev::ToControl(mail));
            }
            Owner::Engine { lane, io: tag, segs } => {
                let mut status = status;
                match kind {
                    Kind::Write { .. } if status != IoStatus::Ok => {
                        let bytes = self.memory.gather(self.lanes[lane].engine.segs(segs));
                        for sector in bytes.chunks_exact(SECTOR) {
                            if let Some(value) = pattern::value_of(sector) {
                                self.missed.entry(value).or_default().insert(member);
                            }
                        }
                        if self.broken == Some(Break::HideWriteError) {
                            status = IoStatus::Ok;
                        }
                    }
                    Kind::Read if status != IoStatus::Ok => {
                        // What a failed read leaves behind is nothing that may be used.
                        let segs = self.lanes[lane].engine.segs(segs).to_vec();
                        self.memory.scatter(&segs, 0, &vec![0xbd; io.len as usize]);
                        if self.broken == Some(Break::HideReadError) {
                            status = IoStatus::Ok;
                        }
                    }
                    _ => {}
                }
                self.answer(lane, tag, status);
            }
        }
    }

    /// The writes in flight, in their order, each with its number, its drive, its place and what of it has not taken
    /// effect.
    pub(super) fn writes_in_flight(&self) -> impl Iterator<Item = (u64, usize, u64, Vec<u8>)> {
        let writes = |io: &&DriveIo| {
            let dead = self.drives[io.drive].faults.dead.is_some();
            matches!(io.kind, Kind::Write { .. } | Kind::Zero { .. }) && io.status == IoStatus::Ok && !io.lost && !dead
        };
        self.ios
            .iter()
            .filter(move |(_, io)| writes(io))
            .map(|(id, io)| (*id, io.drive, io.offset + io.effective, self.outgoing(io, io.effective, io.len)))
    }

    /// The process dies: what the drives were asked for is done, or not, or in part.
    pub(super) fn abandon_ios(&mut self) {
        for (id, mut io) in std::mem::take(&mut self.ios) {
            let writes = matches!(io.kind, Kind::Write { .. } | Kind::Zero { .. });
            if !writes || self.drives[io.drive].faults.dead.is_some() {
                continue;
            }
            let sectors = io.len / SECTOR as u64;
            let to = match self.rng.below(3) {
                0 => io.effective,
                1 => io.len,
                _ => io.effective.max(self.rng.below(sectors + 1) * SECTOR as u64),
            };
            self.take_effect(id, &mut io, to);
            self.drives[io.drive].complete(id, false, self.next_io);
        }
    }

    /// The slot of a group that lies at a place of a member.
    pub(super) fn member_slots(&self, member: u16) -> Vec<(usize, usize, SlotState)> {
        let mut found = Vec::new();
        for (g, group) in self.view.volume(self.volume).into_iter().flat_map(|v| v.groups.iter().enumerate()) {
            for (s, slot) in group.slots.iter().enumerate().filter(|(_, s)| s.member.0 == member) {
                found.push((g, s, slot.state));
            }
        }
        found
    }
}

/// The region that a member write goes to is dirty on disk.
fn region_marked(volume: &VolumeView, io: &DriveIo) -> bool {
    let geometry = &volume.geometry;
    let slot = |s: &SlotView| s.member.0 == io.member && s.offset <= io.offset;
    volume.groups.iter().enumerate().all(|(g, group)| {
        group.slots.iter().filter(|s| slot(s) && io.offset < s.offset + geometry.extent).all(|s| {
            let stripe = ((io.offset - s.offset) / u64::from(geometry.chunk)) as u32;
            !matches!(volume.region(g as u32, stripe), Region::Unwritten | Region::Clean)
        })
    })
}
