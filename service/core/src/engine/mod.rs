//! The data path of the shards that one reactor owns.

use std::sync::Arc;

use crate::action::{Action, BufAddr, Busy, IoStatus, IoTag, Request, Seg, Slice, Step, Term};
use crate::units::Tick;
use crate::view::View;

/// Fixed limits of an engine, all reserved at its creation.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Requests in flight; more are `Busy`.
    pub requests: u32,
    /// Stripes being handled or waited for.
    pub stripes: u32,
    /// Member I/Os and computations in flight.
    pub ios: u32,
    /// Start of the memory for old data and parity.
    pub scratch: BufAddr,
    /// Its length in bytes. [`Engine::scratch_needed`] gives the least that works.
    pub scratch_len: u64,
    /// Handle a stripe at every release of a request instead of at the last reference of the batch, as md did before 2014.
    /// Only for measuring what it costs.
    pub handle_every_release: bool,
}

/// Counts of what the engine did, since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests answered with success, by kind: read, write, flush, zero, compare.
    pub requests: [u64; 5],
    /// Requests answered with an error.
    pub failed_requests: u64,
    /// Stripe activations: how often a stripe was handled.
    pub activations: u64,
    /// Stripes written by full-stripe, read-modify-write and reconstruct-write.
    pub full_stripe: u64,
    /// See `full_stripe`.
    pub read_modify_write: u64,
    /// See `full_stripe`.
    pub reconstruct_write: u64,
    /// Requests that were attached to a stripe which already had one of the same batch.
    pub merged: u64,
    /// Member reads ordered.
    pub member_reads: u64,
    /// Member writes ordered.
    pub member_writes: u64,
    /// Member bytes read.
    pub member_read_bytes: u64,
    /// Member bytes written.
    pub member_written_bytes: u64,
    /// Reads that had to be reconstructed.
    pub degraded_reads: u64,
    /// Blocks runs rebuilt after a read error and rewritten.
    pub read_repairs: u64,
    /// Flushes ordered from members.
    pub member_flushes: u64,
}

/// The data path of one reactor's shards.
pub struct Engine {
    view: Arc<View>,
    _config: Config,
    counters: Counters,
}

impl Engine {
    /// Reserves everything that it will ever need.
    pub fn new(config: Config, view: Arc<View>) -> Engine {
        Engine { view, _config: config, counters: Counters::default() }
    }

    /// The least scratch memory, in bytes, that lets the largest operation on a volume of this geometry proceed.
    pub fn scratch_needed(geometry: &crate::geometry::Geometry) -> u64 {
        2 * geometry.width as u64 * geometry.chunk as u64
    }

    /// Takes a request. Stripes that it touches are handled when [`Engine::next_action`] is next called: that call ends the batch.
    pub fn submit(&mut self, _now: Tick, request: Request) -> Result<(), Busy> {
        Err(Busy(request))
    }

    /// Takes a device's or kernel's answer.
    pub fn complete(&mut self, _now: Tick, _io: IoTag, _status: IoStatus) {}

    /// The next thing to do, if there is one.
    pub fn next_action(&mut self) -> Option<Action> {
        None
    }

    /// When to call [`Engine::next_action`] again even if nothing completes.
    pub fn next_deadline(&self) -> Option<Tick> {
        None
    }

    /// Takes a newer view. Operations that waited for it go on.
    pub fn set_view(&mut self, _now: Tick, view: Arc<View>) {
        self.view = view;
    }

    /// The view in force.
    pub fn view(&self) -> &Arc<View> {
        &self.view
    }

    /// A gather list named by an action.
    pub fn segs(&self, _slice: Slice) -> &[Seg] {
        &[]
    }

    /// The steps named by an action.
    pub fn steps(&self, _slice: Slice) -> &[Step] {
        &[]
    }

    /// The terms named by a step.
    pub fn terms(&self, _slice: Slice) -> &[Term] {
        &[]
    }

    /// True when no request is in flight.
    pub fn idle(&self) -> bool {
        true
    }

    /// What it did so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
}
