//! The manager against simulated devices and engines.

mod assembly;
mod bitmap;
mod crashes;
mod life;
mod scenes;
mod world;
