//! A target in this process, RAM behind it, and a host that checks every PDU.

mod host;
mod hostile;
mod io;
mod linux;
mod load;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::block::BlockDevice;
use crate::block::ram::RamDisk;
use crate::dma::Memory;
use crate::reactor::{Context, Polling, ReactorHandle, start};

use super::*;

pub const NQN: &str = "nqn.2026-01.org.example:array0";

/// A target with one subsystem and one namespace.
pub struct Rig {
    pub handle: TargetHandle,
    pub addr: SocketAddr,
    pub reactors: Vec<ReactorHandle>,
    pub memory: Memory,
}

pub fn info(block_size: u32, size: u64, id: u8) -> NamespaceInfo {
    NamespaceInfo {
        uuid: [id; 16],
        nguid: [id; 16],
        block_size,
        size,
        preferred_write: 4096,
        optimal_io: 64 << 10,
        atomic_write: 4096,
        volatile_cache: false,
        deallocate: true,
    }
}

pub fn ram(memory: &Memory, size: u64) -> DeviceFactory {
    let disk = RamDisk::new("ram", size).unwrap();
    let memory = memory.clone();
    Arc::new(move |_: &mut Context| Ok(Box::new(disk.open(&memory)) as Box<dyn BlockDevice>))
}

impl Rig {
    pub fn bare(reactors: usize, region: u64) -> Rig {
        let cores: Vec<usize> = (0..reactors).collect();
        let (memory, reactors) = start(&cores, region, Polling::Adaptive).unwrap();
        let handle = Target::new(&reactors).unwrap();
        let addr = handle.add_listener("127.0.0.1:0".parse().unwrap()).unwrap();
        handle.add_subsystem(NQN, "SN0001", "raidd", Hosts::Any).unwrap();
        Rig { handle, addr, reactors, memory }
    }

    pub fn with(reactors: usize, region: u64, block_size: u32, size: u64) -> Rig {
        let rig = Rig::bare(reactors, region);
        rig.handle.add_namespace(NQN, 1, info(block_size, size, 1), ram(&rig.memory, size)).unwrap();
        rig
    }

    pub fn new() -> Rig {
        Rig::with(1, 32 << 20, 512, 16 << 20)
    }

    /// Bytes of the pools that are handed out.
    pub fn pool_used(&self) -> u64 {
        let (report, answers) = std::sync::mpsc::channel();
        for reactor in &self.reactors {
            let report = report.clone();
            reactor.run(Box::new(move |r| report.send(r.pool().stats().used).unwrap())).unwrap();
        }
        (0..self.reactors.len()).map(|_| answers.recv().unwrap()).sum()
    }

    /// Waits until no buffer is handed out: none was lost.
    pub fn expect_all_buffers_back(&self) {
        wait("all buffers to come back", || self.pool_used() == 0);
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.handle.stop().unwrap();
            assert_eq!(self.pool_used(), 0, "buffers were lost");
        }
        self.reactors.iter().for_each(ReactorHandle::stop);
    }
}

pub fn wait(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Bytes that differ at every place.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed | 1;
    let word = || {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (x >> 32).to_le_bytes()
    };
    std::iter::repeat_with(word).flatten().take(len).collect()
}
