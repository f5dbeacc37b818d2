//! An array's configuration and its long work, as a state machine: creation, assembly, commits, member failures, spares,
//! rebuild and resync. One manager is one array. It speaks to devices in whole metadata blocks and to the engines through
//! published views; it never sees user data.

mod types;

pub use types::*;

use crate::action::{Event, IoStatus, ReqStatus, VolumeId};
use crate::units::Tick;

/// The state machine. See the module's head.
pub struct Manager {
    _now: Tick,
}

impl Manager {
    /// Makes an array of the devices, in their order. Answered by [`ManagerAction::Reply`] with `tag`: `Done`, or why not; a
    /// refusal ends the manager. `history` is a fresh random UUID.
    pub fn create(
        now: Tick,
        _config: Config,
        _tag: CommandTag,
        _history: Uuid,
        _spec: ArraySpec,
        _devices: Vec<DeviceInfo>,
    ) -> Manager {
        Manager { _now: now }
    }

    /// Puts an array together from the devices that are there; members that are not among them are recorded as failed. The
    /// caller has waited for late devices. Answered like a creation. `history` is a fresh random UUID.
    pub fn assemble(
        now: Tick,
        _config: Config,
        _tag: CommandTag,
        _history: Uuid,
        _devices: Vec<DeviceInfo>,
        _force: bool,
    ) -> Manager {
        Manager { _now: now }
    }

    /// Takes a metadata read's answer.
    pub fn read_done(&mut self, _now: Tick, _tag: MetaTag, _result: Result<Vec<u8>, IoStatus>) {}
    /// Takes a metadata write's, flush's or zero's answer.
    pub fn done(&mut self, _now: Tick, _tag: MetaTag, _status: IoStatus) {}
    /// All engines have the view.
    pub fn published(&mut self, _now: Tick, _tag: MetaTag) {}
    /// All requests that were in flight at the [`ManagerAction::Quiesce`] have ended.
    pub fn quiesced(&mut self, _now: Tick, _tag: MetaTag) {}
    /// A stripe's rebuild or resync has ended.
    pub fn maintained(&mut self, _now: Tick, _tag: MetaTag, _status: ReqStatus) {}
    /// An engine's event.
    pub fn event(&mut self, _now: Tick, _event: Event) {}
    /// A command; answered by [`ManagerAction::Reply`].
    pub fn command(&mut self, _now: Tick, _tag: CommandTag, _command: Command) {}
    /// The next thing to do.
    pub fn next_action(&mut self) -> Option<ManagerAction> {
        None
    }
    /// When to call [`Manager::tick`] even if nothing completes.
    pub fn next_deadline(&self) -> Option<Tick> {
        None
    }
    /// The clock has reached [`Manager::next_deadline`]. Harmless at any other time.
    pub fn tick(&mut self, _now: Tick) {}
    /// A snapshot for the control plane.
    pub fn status(&self) -> ArrayStatus {
        ArrayStatus::default()
    }
    /// The shard that owns a stripe.
    pub fn shard(&self, _volume: VolumeId, _group: u32, _stripe: u32) -> u16 {
        0
    }
    /// Number of shards of the array, 0 until it is known.
    pub fn shards(&self) -> u16 {
        0
    }
}
