//! The data path of the shards that one reactor owns. `service/docs/write-path.md` tells the order of a write and why.
//!
//! | file | what |
//! |---|---|
//! | `request` | takes requests, cuts them into pieces, sends healthy reads, attaches the rest to stripes; flush, compare, replies |
//! | `stripe` | what is known of a stripe in hand |
//! | `handle` | a stripe's way through its phases |
//! | `layout` | which blocks a window reads, computes and writes |
//! | `compute` | the steps for the parity kernel |
//! | `issue` | member I/O, gathered from adjacent rows |
//! | `answer` | completions, failed members, views |
//! | `slab` | fixed containers |

mod answer;
mod compute;
mod handle;
mod issue;
mod layout;
mod request;
mod slab;
mod stripe;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use self::compute::Builder;
use self::issue::Io;
use self::layout::Layout;
use self::request::{Intake, RequestState};
use self::slab::{Lists, Runs, Slab, Table};
use self::stripe::{List, Piece, StripeOp};
use crate::action::{Action, BufAddr, Busy, Event, IoStatus, IoTag, MemberId, Request, Seg, Slice, Step, Term};
use crate::units::{BLOCK_SIZE, Tick};
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
    config: Config,
    counters: Counters,
    requests: Slab<RequestState>,
    /// Which of two epochs new requests belong to, and the requests of each that have not been answered.
    epoch: usize,
    in_epoch: [u32; 2],
    pieces: Slab<Piece>,
    stripes: Slab<StripeOp>,
    table: Table,
    ios: Slab<Io>,
    segs: Lists<Seg>,
    steps: Lists<Step>,
    terms: Lists<Term>,
    scratch: Runs,
    /// Actions that are decided and not yet taken.
    actions: VecDeque<Action>,
    /// Stripes with pieces of the batch that is being gathered.
    batch: VecDeque<u32>,
    /// Stripes that can go on.
    ready: VecDeque<u32>,
    /// Stripes that wait for scratch memory, first come first served.
    scratch_wait: VecDeque<u32>,
    /// Stripes that wait for I/O slots or list room.
    io_wait: VecDeque<u32>,
    /// Requests that wait for an I/O slot to flush or compare.
    request_wait: VecDeque<u32>,
    /// Member flushes that failed; the failure has to be recorded before their requests are answered.
    flush_wait: VecDeque<(u32, MemberId, IoStatus)>,
    /// Scratch memory was freed since the last look at who waits for it.
    scratch_freed: bool,
    /// The stripe being planned is the first that waits for scratch memory.
    scratch_turn: bool,
    /// An I/O slot or list room was freed since the last look.
    io_freed: bool,
    /// Failed healthy reads that wait for a stripe.
    parked: List,
    /// The rest of a request that did not fit yet. No other is taken while there is one.
    intake: Option<Intake>,
    layout: Layout,
    builder: Builder,
    gather: Vec<Seg>,
    /// Reads in flight by member: the measure for choosing among mirrors.
    in_flight: Vec<u32>,
    /// Members whose failure this view's manager has been told.
    told: Vec<bool>,
    /// Volumes, by their place in the view, whose dirty mark has been asked for.
    asked: Vec<bool>,
    /// The members that a flush of each volume goes to.
    flushed: Vec<Vec<MemberId>>,
}

impl Engine {
    /// Reserves everything that it will ever need.
    pub fn new(config: Config, view: Arc<View>) -> Engine {
        let lists = config.ios.max(1);
        let actions = (config.ios + config.requests + 2 * config.stripes + 64) as usize;
        let mut engine = Engine {
            view: Arc::new(View::default()),
            counters: Counters::default(),
            requests: Slab::new(config.requests.max(1)),
            epoch: 0,
            in_epoch: [0; 2],
            pieces: Slab::new((config.requests + config.stripes) * 2 + config.ios),
            stripes: Slab::new(config.stripes.max(1)),
            table: Table::new(config.stripes.max(1)),
            ios: Slab::new(lists),
            segs: Lists::new(lists * 4 + 512, Seg { addr: BufAddr::ZERO, len: 0 }),
            steps: Lists::new(lists * 4 + compute::STEPS_MAX, compute::NO_STEP),
            terms: Lists::new(lists * 8 + compute::TERMS_MAX, Term { src: BufAddr::ZERO, coef: [0; 2] }),
            scratch: Runs::new((config.scratch_len / BLOCK_SIZE as u64) as u32),
            actions: VecDeque::with_capacity(actions),
            batch: VecDeque::with_capacity(config.stripes as usize),
            ready: VecDeque::with_capacity(config.stripes as usize),
            scratch_wait: VecDeque::with_capacity(config.stripes as usize),
            io_wait: VecDeque::with_capacity(config.stripes as usize),
            request_wait: VecDeque::with_capacity(config.requests as usize),
            flush_wait: VecDeque::with_capacity(lists as usize),
            scratch_freed: false,
            scratch_turn: false,
            io_freed: false,
            parked: List::EMPTY,
            intake: None,
            layout: Layout::new(),
            builder: Builder::new(),
            gather: Vec::with_capacity(issue::MAX_SEGS),
            in_flight: Vec::new(),
            told: Vec::new(),
            asked: Vec::new(),
            flushed: Vec::new(),
            config,
        };
        engine.take_view(view);
        engine
    }

    /// The least scratch memory, in bytes, that lets the largest operation on a volume of this geometry proceed: each
    /// column's chunk and one block by which its start may be staggered.
    pub fn scratch_needed(geometry: &crate::geometry::Geometry) -> u64 {
        geometry.width as u64 * (geometry.chunk as u64 + BLOCK_SIZE as u64)
    }

    /// Takes a request. Stripes that it touches are handled when [`Engine::next_action`] is next called: that call ends the batch.
    ///
    /// `Busy` gives the request back, and nothing has happened.
    #[allow(clippy::result_large_err)]
    pub fn submit(&mut self, _now: Tick, request: Request) -> Result<(), Busy> {
        self.take_request(request)
    }

    /// Takes a device's or kernel's answer.
    pub fn complete(&mut self, _now: Tick, io: IoTag, status: IoStatus) {
        self.take_answer(io, status);
    }

    /// The next thing to do, if there is one.
    pub fn next_action(&mut self) -> Option<Action> {
        while let Some(index) = self.batch.pop_front() {
            self.activate(index);
        }
        self.run();
        self.actions.pop_front()
    }

    /// When to call [`Engine::next_action`] again even if nothing completes. The engine itself waits for nothing but
    /// answers and views, so there is no such time.
    pub fn next_deadline(&self) -> Option<Tick> {
        None
    }

    /// Takes a newer view. Operations that waited for it go on.
    pub fn set_view(&mut self, _now: Tick, view: Arc<View>) {
        self.take_view(view);
    }

    /// Regions of the view in force have changed their states: writes that waited for one go on.
    pub fn regions_changed(&mut self, _now: Tick) {
        self.look_again();
    }

    /// Tells the requests in flight from those to come, so that the end of the former can be waited for under load. False,
    /// and nothing happens, while requests of before the last call are still in flight.
    pub fn begin_epoch(&mut self) -> bool {
        let free = self.old_epoch_ended();
        if free {
            self.epoch = 1 - self.epoch;
        }
        free
    }

    /// All requests that were in flight at the last [`Engine::begin_epoch`] have been answered.
    pub fn old_epoch_ended(&self) -> bool {
        self.in_epoch[1 - self.epoch] == 0
    }

    /// The view in force.
    pub fn view(&self) -> &Arc<View> {
        &self.view
    }

    /// A gather list named by an action.
    pub fn segs(&self, slice: Slice) -> &[Seg] {
        self.segs.get(slice)
    }

    /// The steps named by an action.
    pub fn steps(&self, slice: Slice) -> &[Step] {
        self.steps.get(slice)
    }

    /// The terms named by a step.
    pub fn terms(&self, slice: Slice) -> &[Term] {
        self.terms.get(slice)
    }

    /// True when no request is in flight, no operation is ordered and no action is left to take.
    pub fn idle(&self) -> bool {
        self.requests.is_empty() && self.ios.is_empty() && self.stripes.is_empty() && self.actions.is_empty()
    }

    /// What it did so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    fn event(&mut self, event: Event) {
        self.actions.push_back(Action::Event(event));
    }
}
