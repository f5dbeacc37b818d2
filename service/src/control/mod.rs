//! The control plane: raid.v1 over a Unix socket, metrics and the status page, on a runtime of their own.
//!
//! It knows the rest of the shell as a [`backend::Backend`] only.

pub mod backend;
mod convert;
pub mod error;
pub mod events;
mod paging;
mod requests;
pub mod server;
mod services;
pub mod socket;
