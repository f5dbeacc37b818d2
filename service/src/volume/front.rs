//! What the target sees: one volume on one reactor.

use std::cell::RefCell;
use std::rc::Rc;

use raid_core::action::{Op, ReqStatus, ReqTag, Request, Seg, VolumeId};
use raid_core::geometry::Geometry;

use super::lane::{Lane, Origin};
use crate::block::{BlockDevice, BlockInfo, BlockStatus, Completion, Completions, Io, IoOp};

/// I/Os that a volume takes at once on one reactor; more are handed back.
const DEPTH: usize = 4096;

/// An I/O whose pieces are on their way.
#[derive(Clone, Copy)]
struct Parent {
    tag: u64,
    pieces: u32,
    status: ReqStatus,
    /// The engine's zeroing is not durable by itself: a flush follows before the I/O completes.
    flush_after: bool,
    /// A read with one segment, which may have pieces that this lane serves for another one's shards: what to ask the
    /// owners for if it cannot.
    read: Option<(u64, Seg)>,
}

/// A volume on one reactor. See the module's head.
pub struct Volume {
    lane: Rc<RefCell<Lane>>,
    front: u16,
    id: VolumeId,
    info: BlockInfo,
    geometry: Geometry,
    parents: Vec<Parent>,
    free: Vec<u32>,
    replies: Vec<(u32, ReqStatus)>,
}

impl Volume {
    /// The volume `id` of the lane's array. `None` if the lane's view does not have it.
    pub fn new(lane: Rc<RefCell<Lane>>, id: VolumeId, info: BlockInfo) -> Option<Volume> {
        let geometry = lane.borrow().view().volume(id)?.geometry;
        let front = lane.borrow_mut().add_front();
        let none = Parent { tag: 0, pieces: 0, status: ReqStatus::Ok, flush_after: false, read: None };
        Some(Volume {
            lane,
            front,
            id,
            info,
            geometry,
            parents: vec![none; DEPTH],
            free: (0..DEPTH as u32).rev().collect(),
            replies: Vec::with_capacity(DEPTH),
        })
    }

    fn tag(&self, slot: u32, lane: &Lane) -> ReqTag {
        Origin::Front { reactor: lane.reactor(), front: self.front, slot }.tag()
    }

    fn flush(&self, lane: &mut Lane, slot: u32) {
        lane.submit(Request { tag: self.tag(slot, lane), volume: self.id, op: Op::Flush });
    }

    /// Cuts a range at band boundaries and segment ends, and routes the pieces. Returns their number.
    /// With `local`, reads of other lanes' shards are tried here first: most need nothing but the members.
    fn cut(&self, lane: &mut Lane, io: &Io, segs: &[Seg], slot: u32, local: bool) -> u32 {
        let tag = self.tag(slot, lane);
        let local = local && lane.may_read_for_others();
        let mut pieces = 0;
        let mut offset = io.offset;
        let mut left = io.len;
        let mut seg = 0;
        let mut in_seg = 0u64;
        while left > 0 {
            let mut len = left.min(self.geometry.band_remainder(offset));
            let has_data = !matches!(io.op, IoOp::Zero { .. });
            let buf = if has_data {
                len = len.min(u64::from(segs[seg].len) - in_seg);
                segs[seg].addr.plus(in_seg)
            } else {
                raid_core::action::BufAddr::ZERO
            };
            let op = match io.op {
                IoOp::Read => Op::Read { offset, len: len as u32, buf },
                IoOp::Write { fua } => Op::Write { offset, len: len as u32, buf, fua },
                IoOp::Zero { unmap, .. } => Op::Zero { offset, len, unmap },
                IoOp::Compare { read_buf } => {
                    Op::Compare { offset, len: len as u32, buf, read_buf: read_buf.plus(offset - io.offset) }
                }
                IoOp::Flush => Op::Flush,
            };
            let place = self.geometry.place(offset);
            let shard = self.geometry.shard(place.group, place.stripe);
            match op {
                Op::Read { offset, len, buf } if local && !lane.owns(shard) => {
                    lane.submit(Request { tag, volume: self.id, op: Op::ReadHealthy { offset, len, buf } });
                }
                op => lane.route(shard, Request { tag, volume: self.id, op }),
            }
            pieces += 1;
            offset += len;
            left -= len;
            if has_data {
                in_seg += len;
                if in_seg == u64::from(segs[seg].len) {
                    seg += 1;
                    in_seg = 0;
                }
            }
        }
        pieces
    }
}

impl BlockDevice for Volume {
    fn info(&self) -> &BlockInfo {
        &self.info
    }

    fn submit(&mut self, io: Io, segs: &[Seg]) -> Result<(), Io> {
        let Some(slot) = self.free.pop() else { return Err(io) };
        let lane = Rc::clone(&self.lane);
        let mut lane = lane.borrow_mut();
        let flush_after = matches!(io.op, IoOp::Zero { fua: true, .. });
        let read = match (io.op, segs) {
            (IoOp::Read, [seg]) => Some((io.offset, *seg)),
            _ => None,
        };
        let mut parent = Parent { tag: io.tag, pieces: 0, status: ReqStatus::Ok, flush_after, read };
        if io.op == IoOp::Flush {
            // A member's flush covers every write that it has completed, whichever reactor ordered it, so one lane is enough.
            self.flush(&mut lane, slot);
            parent.pieces = 1;
        } else if io.len == 0 || io.offset.checked_add(io.len).is_none_or(|end| end > self.info.size) {
            parent.status = if io.len == 0 { ReqStatus::Ok } else { ReqStatus::OutOfRange };
            parent.pieces = 1;
            lane.finish(self.front, slot, parent.status);
        } else {
            parent.pieces = self.cut(&mut lane, &io, segs, slot, read.is_some());
        }
        self.parents[slot as usize] = parent;
        Ok(())
    }

    fn ring(&mut self) {
        self.lane.borrow_mut().pump();
    }

    fn poll(&mut self, done: &mut Completions) {
        let lane = Rc::clone(&self.lane);
        let mut lane = lane.borrow_mut();
        let mut replies = std::mem::take(&mut self.replies);
        lane.take_replies(self.front, &mut replies);
        for (slot, status) in replies.drain(..) {
            let parent = &mut self.parents[slot as usize];
            // The first error is the I/O's: a later piece that went well does not hide it. That the owner has to be asked
            // is less than an error.
            if parent.status == ReqStatus::Ok || (parent.status == ReqStatus::NotHere && status != ReqStatus::Ok) {
                parent.status = status;
            }
            parent.pieces -= 1;
            if parent.pieces > 0 {
                continue;
            }
            if parent.flush_after && parent.status == ReqStatus::Ok {
                parent.flush_after = false;
                parent.pieces = 1;
                self.flush(&mut lane, slot);
                continue;
            }
            if let (ReqStatus::NotHere, Some((offset, seg))) = (parent.status, parent.read) {
                // All of it again, by the owners.
                let io = Io { tag: parent.tag, op: IoOp::Read, offset, len: u64::from(seg.len) };
                let pieces = self.cut(&mut lane, &io, &[seg], slot, false);
                let parent = &mut self.parents[slot as usize];
                (parent.pieces, parent.status, parent.read) = (pieces, ReqStatus::Ok, None);
                continue;
            }
            done.push(Completion { tag: parent.tag, status: BlockStatus::Volume(parent.status) });
            self.free.push(slot);
        }
        self.replies = replies;
    }

    fn in_flight(&self) -> usize {
        self.parents.len() - self.free.len()
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        self.lane.borrow_mut().remove_front(self.front);
    }
}
