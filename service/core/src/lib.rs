//! raid-core: the array as pure state machines. No I/O, no clock, no threads, no bytes of user data.
//!
//! The core decides, the shell does. An [`engine::Engine`] serves the requests for the shards that one reactor owns; a
//! [`manager::Manager`] owns an array's configuration. Both are driven the same way: put something in, take actions out,
//! bring the answers back. The same inputs give the same actions.
#![forbid(unsafe_code)]

pub mod action;
pub mod alloc;
pub mod engine;
pub mod geometry;
pub mod gf;
pub mod journal;
pub mod manager;
pub mod ondisk;
pub mod plan;
pub mod regions;
pub mod units;
pub mod view;
