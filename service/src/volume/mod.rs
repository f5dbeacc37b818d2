//! A volume as a block device: requests cut at shard boundaries and carried to the engines that own them.
//!
//! A [`Lane`] is one array on one reactor: the engine for the shards that the reactor owns, and the reactor's own queue to
//! each member. A [`Volume`] is what the target sees on that reactor. It cuts an I/O where the next byte may belong to
//! another shard, hands the pieces to its own lane or, by mailbox, to the lane that owns them, and completes the I/O when
//! the last piece is home. The data stays where it is: a piece carries an address, and every reactor can reach every region.

mod front;
mod lane;
pub mod registry;

pub use front::Volume;
pub use lane::{HostMessage, Lane, LaneConfig, LaneCounters, LaneMessage, LanePoller, Origin, Routes};

#[cfg(test)]
mod tests;
