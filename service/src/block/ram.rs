//! Memory as a device: for measurements, tests and scratch arrays. What is in it is gone with the process.

use std::sync::Arc;

use raid_core::action::{IoStatus, Seg};

use super::{BlockDevice, BlockInfo, BlockStatus, Completion, Completions, Io, IoOp};
use crate::dma::{Memory, SharedBytes};

/// The memory behind the device, shared by the queues of all reactors.
#[derive(Clone)]
pub struct RamDisk {
    bytes: Arc<SharedBytes>,
    info: BlockInfo,
}

impl RamDisk {
    /// A disk of `size` bytes, all zero; untouched parts cost nothing.
    pub fn new(address: &str, size: u64) -> std::io::Result<RamDisk> {
        Ok(RamDisk { bytes: Arc::new(SharedBytes::new(size)?), info: BlockInfo::memory(address, size) })
    }

    /// What it is.
    pub fn info(&self) -> &BlockInfo {
        &self.info
    }

    /// Has all of its memory at hand before the first write.
    pub fn populate(&self) {
        self.bytes.populate();
    }

    /// A queue for one reactor.
    pub fn open(&self, memory: &Memory) -> RamDevice {
        RamDevice { disk: self.clone(), memory: memory.clone(), done: Completions::with_capacity(1024) }
    }
}

/// One reactor's queue to a [`RamDisk`]. An I/O is done when it is submitted.
pub struct RamDevice {
    disk: RamDisk,
    memory: Memory,
    done: Completions,
}

impl BlockDevice for RamDevice {
    fn info(&self) -> &BlockInfo {
        &self.disk.info
    }

    fn submit(&mut self, io: Io, segs: &[Seg]) -> Result<(), Io> {
        let inside = io.offset.checked_add(io.len).is_some_and(|end| end <= self.disk.info.size);
        let status = if !inside {
            IoStatus::DeviceError
        } else {
            let mut at = io.offset;
            match io.op {
                IoOp::Read => {
                    for seg in segs {
                        self.disk.bytes.read(&self.memory, at, *seg);
                        at += u64::from(seg.len);
                    }
                    IoStatus::Ok
                }
                IoOp::Write { .. } => {
                    for seg in segs {
                        self.disk.bytes.write(&self.memory, at, *seg);
                        at += u64::from(seg.len);
                    }
                    IoStatus::Ok
                }
                IoOp::Zero { .. } => {
                    self.disk.bytes.zero(at, io.len);
                    IoStatus::Ok
                }
                IoOp::Flush => IoStatus::Ok,
                // Members are never asked to compare: the engine reads and compares.
                IoOp::Compare { .. } => IoStatus::DeviceError,
            }
        };
        self.done.push(Completion { tag: io.tag, status: BlockStatus::Member(status) });
        Ok(())
    }

    fn ring(&mut self) {}

    fn poll(&mut self, done: &mut Completions) {
        done.append(&mut self.done);
    }

    fn in_flight(&self) -> usize {
        self.done.len()
    }
}
