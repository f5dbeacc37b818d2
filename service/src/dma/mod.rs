//! Pinned buffer memory: one region per reactor, cut into slots; and the only place where a `BufAddr` becomes memory.
//!
//! A [`Memory`] is all regions, shared by every reactor. A [`Pool`] hands out slots of one region and belongs to one
//! reactor. Who holds a [`Slot`] owns its bytes; while a device or an engine has its address, nobody looks at them.

mod memory;
mod pool;
mod shared;

pub use memory::Memory;
pub use pool::{Pool, PoolStats, Slot};
pub use shared::SharedBytes;

#[cfg(test)]
mod tests;
