//! Devices that the daemon has open, by the numbers under which managers know them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use raid_core::manager::{DeviceId, DeviceInfo};

use crate::block::backing::Backing;
use crate::block::fault::{self, Faults};
use crate::block::stats::{self, Stats};
use crate::block::{BlockInfo, MemberHandle, volatile};
use crate::dma::Memory;

/// An open device. It stays locked until this, its handle and all queues are gone.
#[derive(Clone)]
pub struct Device {
    /// What the manager is told.
    pub info: DeviceInfo,
    /// What it is.
    pub block: BlockInfo,
    /// Makes queues, with counters (and faults) in front.
    pub handle: MemberHandle,
    /// Its counters.
    pub stats: Arc<Stats>,
    /// Its faults, where they are enabled.
    pub faults: Option<Arc<Faults>>,
}

/// Opens devices.
pub struct Devices {
    memory: Memory,
    enable_faults: bool,
    caches: Option<volatile::Options>,
    next: AtomicU16,
}

impl Devices {
    /// Devices whose I/O goes to this memory; with `caches` each has a simulated volatile cache.
    pub fn new(memory: Memory, enable_faults: bool, caches: Option<volatile::Options>) -> Devices {
        Devices { memory, enable_faults, caches, next: AtomicU16::new(0) }
    }

    /// Opens a device for this process alone. With `create`, a path that is not there becomes a sparse file of that size.
    /// May take a moment: not for reactors.
    pub fn open(&self, address: &str, create: Option<u64>) -> Result<Device, String> {
        let backing = Backing::open(address, create)?;
        let mut block = backing.info().clone();
        let stats = Arc::new(Stats::default());
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let mut handle = match self.caches {
            None => backing.handle(&self.memory),
            Some(options) => {
                block.volatile_cache = true;
                // Each drive has a mind of its own.
                let seed = options.seed.wrapping_add(u64::from(id) << 32);
                volatile::wrap(&backing, volatile::Options { seed, ..options }, self.memory.clone())?
            }
        };
        let faults = self.enable_faults.then(|| Arc::new(Faults::default()));
        if let Some(faults) = &faults {
            handle = fault::wrap(handle, faults.clone(), self.memory.clone());
        }
        let info = DeviceInfo {
            id: DeviceId(id),
            address: address.to_string(),
            size: block.size,
            block_size: block.block_size,
            fast_zero: block.fast_zero,
        };
        Ok(Device { info, block, handle: stats::wrap(handle, stats.clone()), stats, faults })
    }
}
