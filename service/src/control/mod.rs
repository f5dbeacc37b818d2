//! The control plane: raid.v1 over a Unix socket, metrics and the status page, on a runtime of their own.
//!
//! It knows the rest of the shell as a [`backend::Backend`] only. A daemon binds [`socket::ControlSocket`] and
//! [`http::bind`] first, so that what is in use is a refusal before anything has started, and then runs
//! [`server::serve`] and [`http::serve`] beside each other.

pub mod backend;
mod convert;
pub mod error;
pub mod events;
pub mod http;
mod metrics;
mod page;
mod paging;
mod requests;
pub mod server;
mod services;
pub mod socket;
