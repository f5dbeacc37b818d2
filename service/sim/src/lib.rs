//! raidsim: raid-core with simulated drives on one seeded clock.
//!
//! The engines, and in the full and cuts campaigns the manager, are the real ones. Everything around them is simulated: drives with
//! latencies, caches and faults, mailboxes between reactors, buffer memory, the parity kernel (the scalar reference of
//! `raid_core::gf`). Requests are random; a model says what each 512-byte sector may hold. One seed decides everything, so
//! that a failing run is replayed by its seed. `service/docs/testing.md` tells how.
//!
//! | module | what |
//! |---|---|
//! | [`rng`], [`clock`] | the seeded generator; time and the event queue |
//! | [`memory`], [`pattern`] | buffer memory and the kernel; what is written |
//! | [`drive`] | a simulated drive: contents, volatile cache, faults |
//! | [`oracle`] | what each sector may hold |
//! | [`case`] | what a seed decides |
//! | [`world`] | the simulation itself |
//! | [`breaks`] | deliberate faults of the executor: negative controls |
//! | [`sweep`] | many seeds |
//! | [`tally`] | what cuts of the power found |
#![forbid(unsafe_code)]

pub mod breaks;
pub mod case;
pub mod clock;
pub mod drive;
pub mod memory;
pub mod oracle;
pub mod pattern;
pub mod rng;
pub mod sweep;
pub mod tally;
pub mod world;
