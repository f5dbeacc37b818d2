//! raidd, the shell around raid-core: it does what the core decides.

pub mod block;
pub mod control;
pub mod daemon;
pub mod dma;
pub mod nvmf;
pub mod parity;
pub mod reactor;
pub mod telemetry;
pub mod volume;
