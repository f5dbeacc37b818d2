//! The NVMe/TCP target. It knows block devices and nothing of what is behind them.
//!
//! # The way of a read
//!
//! 1. `connection` reads the socket: one read brings many capsules to the receive buffer. It cuts them and checks them.
//! 2. `io` takes a command from the queue's slab and a slot from the pool (`buffers`: if there is none, the command waits
//!    its turn), and gives an I/O with the slot's address to the namespace's device (`devices`).
//! 3. At the end of the pass the devices' doorbells are rung and their completions collected. A read that is done puts a
//!    C2HData header and a reference to its slot in the connection's `send` queue.
//! 4. One `writev` per connection and pass sends headers, slots and responses. The slot is freed when its last byte is
//!    sent.
//!
//! # The way of a write
//!
//! 1. Up to 8 KiB come in the capsule: a slot is taken, the data copied to it once, and it goes to the device. With no slot
//!    left the capsule stays in the receive buffer and its socket is not read until there is one.
//! 2. More is asked for by R2T, once the command has a slot. The H2CData PDU's data is read from the socket into the slot;
//!    what follows it goes to the receive buffer with the same `readv`.
//! 3. The completion frees the slot, and a response capsule leaves with the pass.
//!
//! # Who owns what
//!
//! A [`TargetHandle`] is the control plane's side. Each reactor has one `poller` with the connections that it serves, its
//! own devices and shares of its own pool. The queues of a controller may sit on different reactors: what they share is
//! in `controller`, all atomic. Configuration comes as immutable snapshots by mail; the only lock is taken when a queue
//! connects or goes away.

mod admin;
mod buffers;
mod connection;
mod controller;
mod counters;
mod devices;
mod fabrics;
mod identify;
pub mod initiator;
mod io;
mod log;
mod poller;
mod queue;
mod send;
mod subsystem;
mod target;

pub use counters::{Counters, Totals};
pub use subsystem::{DeviceFactory, Hosts, Link, NamespaceInfo, Ports, Registry, Subsystem};
pub use target::{HostStats, Target, TargetError, TargetHandle};

/// The highest NSID: NN of the identify data.
pub const MAX_NAMESPACES: u32 = 1024;

#[cfg(test)]
mod tests;
