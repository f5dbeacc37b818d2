//! An array's configuration and its long work, as a state machine: creation, assembly, commits, member failures, spares,
//! rebuild and resync. One manager is one array. It speaks to devices in whole metadata blocks and to the engines through
//! published views; it never sees user data.

use std::sync::Arc;

use crate::action::{Event, MemberId, ReqStatus, VolumeId};
use crate::geometry::Level;
use crate::units::Tick;
use crate::view::View;

/// A device that the shell has opened, by the number that it gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u16);

/// Names a metadata operation until it is completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MetaTag(pub u64);

/// Names a command until it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandTag(pub u64);

/// A 128-bit identifier, handed in by the shell (the core has no random numbers).
pub type Uuid = [u8; 16];

/// What the manager must know of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The shell's number.
    pub id: DeviceId,
    /// How the operator named it, for messages.
    pub address: String,
    /// Size in bytes.
    pub size: u64,
    /// Logical block size in bytes, 512 or 4096.
    pub block_size: u32,
    /// Zeroing a range is quick (sparse file, RAM, Write Zeroes) so that new volumes start in sync.
    pub fast_zero: bool,
}

/// One thing for the shell to do.
#[derive(Clone, Debug)]
pub enum ManagerAction {
    /// Read `len` bytes at `offset`; answer with `Manager::read_done`.
    Read {
        /// Answer with this.
        tag: MetaTag,
        /// From where.
        device: DeviceId,
        /// Byte offset, a multiple of 4096.
        offset: u64,
        /// Length in bytes, a multiple of 4096.
        len: u32,
    },
    /// Write and answer with `Manager::done`.
    Write {
        /// Answer with this.
        tag: MetaTag,
        /// To where.
        device: DeviceId,
        /// Byte offset, a multiple of 4096.
        offset: u64,
        /// A multiple of 4096 bytes.
        bytes: Vec<u8>,
    },
    /// Make completed writes durable; answer with `Manager::done`.
    Flush {
        /// Answer with this.
        tag: MetaTag,
        /// Which device.
        device: DeviceId,
    },
    /// Make a range read as zeros; answer with `Manager::done`.
    Zero {
        /// Answer with this.
        tag: MetaTag,
        /// Which device.
        device: DeviceId,
        /// Byte offset.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Hand this view to every engine of the array, before anything that this manager orders later; answer with
    /// `Manager::published` once every engine has taken it.
    Publish {
        /// Answer with this.
        tag: MetaTag,
        /// The view.
        view: Arc<View>,
        /// The devices behind the member numbers, in order; `None` where a member has none.
        devices: Vec<Option<DeviceId>>,
    },
    /// Ask the engine that owns the stripe to rebuild or resync it; answer with `Manager::maintained`.
    Maintain {
        /// Answer with this.
        tag: MetaTag,
        /// Which volume.
        volume: VolumeId,
        /// Group index.
        group: u32,
        /// Stripe index.
        stripe: u32,
        /// Rebuild if true, resync if false.
        rebuild: bool,
    },
    /// Ask every engine to stop acknowledging new writes to the volume's clean state: wait until none is in flight.
    /// Answer with `Manager::quiesced`.
    Quiesce {
        /// Answer with this.
        tag: MetaTag,
    },
    /// A command has ended.
    Reply {
        /// Which.
        tag: CommandTag,
        /// How.
        result: Result<Answer, ManageError>,
    },
    /// Something an operator wants to know.
    Notice(Notice),
}

/// What a finished command gives back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing but success.
    Done,
    /// The member that was added.
    Member(MemberId),
    /// The volume that was created.
    Volume(VolumeId),
    /// The operation that was started.
    Operation(u64),
}

/// A refusal: what happened, to what, and what to do. A refused command changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ManageError {
    /// The class, for gRPC codes and exit codes.
    pub kind: ErrorKind,
    /// A whole sentence or two.
    pub message: String,
}

/// Classes of refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The arguments can't be right, whatever the state.
    InvalidArgument,
    /// Not now, or not in this state.
    FailedPrecondition,
    /// No such member, volume, operation.
    NotFound,
    /// It exists already.
    AlreadyExists,
    /// No extents or slots left.
    NoSpace,
    /// A device failed underneath.
    Device,
    /// Metadata is corrupt or contradicts itself.
    Corrupt,
}

/// A command to an existing array.
#[derive(Clone, Debug)]
pub enum Command {
    /// Add a device as a spare (used at once if a member is failed).
    AddMember {
        /// The device.
        device: DeviceInfo,
        /// UUID for the new member.
        uuid: Uuid,
    },
    /// Fail a member on purpose.
    FailMember(MemberId),
    /// Take a spare or failed member out of the array.
    RemoveMember(MemberId),
    /// Rebuild a member's extents onto a new device and then remove it. A member that still works is used until then.
    ReplaceMember {
        /// Which member.
        member: MemberId,
        /// The new device, or a spare of the array if `None`.
        device: Option<DeviceInfo>,
        /// UUID for the new member.
        uuid: Uuid,
    },
    /// Create a volume.
    CreateVolume(VolumeSpec),
    /// Delete a volume and free its extents.
    DeleteVolume(VolumeId),
    /// Give up an operation where it stands.
    CancelOperation(u64),
    /// Flush, mark clean and stop; nothing is accepted afterwards.
    Stop,
    /// Overwrite the superblocks; nothing is left of the array.
    Delete,
}

/// How to make an array.
#[derive(Clone, Debug)]
pub struct ArraySpec {
    /// Its name, unique on the machine.
    pub name: String,
    /// Its UUID.
    pub uuid: Uuid,
    /// One for each device.
    pub member_uuids: Vec<Uuid>,
    /// Members at the end of the device list that start as spares.
    pub spares: u16,
    /// Number of shards, 16 by default.
    pub shards: u16,
    /// Bytes of an extent, a power of two; `None` derives it from the smallest member.
    pub extent: Option<u64>,
    /// Overwrite devices that carry another array's superblock.
    pub wipe: bool,
}

/// How to make a volume.
#[derive(Clone, Debug)]
pub struct VolumeSpec {
    /// Its name, unique in the array.
    pub name: String,
    /// Its UUID.
    pub uuid: Uuid,
    /// The level.
    pub level: Level,
    /// W; `None` takes all active members.
    pub width: Option<u16>,
    /// Bytes of a chunk.
    pub chunk: u32,
    /// Size in bytes, rounded up to whole groups when allocating; `None` takes all free extents.
    pub size: Option<u64>,
    /// Logical block size shown to initiators, 512 or 4096.
    pub block_size: u32,
    /// The consistency policy.
    pub policy: Policy,
}

/// Consistency policies, md's words (design, section 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Nothing is tracked; after a crash redundancy may not match.
    None,
    /// The volume is marked dirty while written to; after an unclean stop all of it is resynced.
    Resync,
}

/// A moment in an array's life that an operator wants to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// How serious.
    pub severity: Severity,
    /// A short fixed name, such as `member-failed`.
    pub code: &'static str,
    /// The member that it is about.
    pub member: Option<MemberId>,
    /// The volume that it is about.
    pub volume: Option<VolumeId>,
    /// What happened, to what, and what to do.
    pub message: String,
}

/// How serious a notice is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Things go as they should.
    Info,
    /// Redundancy is reduced or something needs a look.
    Warning,
    /// Data or service is lost.
    Error,
}

/// The state machine. See the module's head.
pub struct Manager {
    _now: Tick,
}

impl Manager {
    /// Takes a metadata read's answer.
    pub fn read_done(&mut self, _now: Tick, _tag: MetaTag, _result: Result<Vec<u8>, crate::action::IoStatus>) {}
    /// Takes a metadata write's, flush's or zero's answer.
    pub fn done(&mut self, _now: Tick, _tag: MetaTag, _status: crate::action::IoStatus) {}
    /// All engines have the view.
    pub fn published(&mut self, _now: Tick, _tag: MetaTag) {}
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
    /// When to call [`Manager::next_action`] again even if nothing completes.
    pub fn next_deadline(&self) -> Option<Tick> {
        None
    }
}
