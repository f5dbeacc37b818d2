//! What goes in and out of the manager: commands, actions, answers, notices and the status.

use std::sync::Arc;

use crate::action::{MemberId, VolumeId};
use crate::geometry::Level;
use crate::view::{MemberState, View};

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
    /// Regions of a volume's bitmap have changed their states: every engine looks again at the writes that wait for one
    /// (`Engine::regions_changed`). Nothing is answered.
    RegionsChanged {
        /// Which volume.
        volume: VolumeId,
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
    /// Wait until every engine has no request in flight that was submitted before this; answer with `Manager::quiesced`.
    /// Engines go on taking requests.
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
        /// Overwrite whatever the device carries.
        wipe: bool,
    },
    /// Fail a member on purpose.
    FailMember(MemberId),
    /// Take a spare or failed member out of the array.
    RemoveMember(MemberId),
    /// Rebuild a member's extents onto a new device and then remove it. A member that still works is failed first, which
    /// is refused where a volume would not survive that.
    ReplaceMember {
        /// Which member.
        member: MemberId,
        /// The new device, or a spare of the array if `None`.
        device: Option<DeviceInfo>,
        /// UUID for the new member; unused with a spare.
        uuid: Uuid,
        /// Overwrite whatever the device carries.
        wipe: bool,
    },
    /// Create a volume.
    CreateVolume(VolumeSpec),
    /// Delete a volume and free its extents.
    DeleteVolume(VolumeId),
    /// Give up an operation where it stands.
    CancelOperation(u64),
    /// Take the volumes offline, wait until nothing is in flight, flush, mark clean and stop; nothing is accepted afterwards.
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
    /// Each region is marked dirty while written to; after an unclean stop only those are resynced, and a member that
    /// comes back gets only what it missed.
    Bitmap,
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

/// What a manager may be tuned with. The same for the life of a manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Stripes of a rebuild or resync in flight.
    pub window: u32,
    /// Nanoseconds between a volume's dirty mark and the first try to clear it.
    pub clean_after: u64,
    /// Blocks of a member that may be repaired after read errors, halved each hour; with one more the member is failed, if
    /// the others have everything.
    pub read_error_limit: u32,
    /// Bytes of the smallest extent that a creation may ask for. Smaller ones make the configuration large for nothing;
    /// the simulator has them, so that it can resync and compare a whole volume thousands of times a second.
    pub least_extent: u64,
    /// Assemble this array with nobody there to ask: a device that turns out to be no member of it (another disk took the
    /// path, both superblock copies are gone) is left out as if it were missing. With `None` an operator named the devices,
    /// and one that does not belong is refused: leaving it out would make the member that was meant stale.
    pub expect: Option<Uuid>,
}

impl Default for Config {
    fn default() -> Config {
        Config { window: 8, clean_after: 5_000_000_000, read_error_limit: 64, least_extent: 1 << 20, expect: None }
    }
}

/// A snapshot of an array for the control plane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArrayStatus {
    /// Its name.
    pub name: String,
    /// Its UUID.
    pub uuid: Uuid,
    /// Where it stands.
    pub state: ArrayState,
    /// Why, where there is something to say.
    pub reason: String,
    /// The configuration's generation.
    pub generation: u64,
    /// Bytes of an extent.
    pub extent: u64,
    /// Number of shards.
    pub shards: u16,
    /// Members by number, removed ones left out.
    pub members: Vec<MemberStatus>,
    /// Volumes by number.
    pub volumes: Vec<VolumeStatus>,
    /// Operations, oldest first: those that run and the last ones that ended.
    pub operations: Vec<OperationStatus>,
}

/// Where an array stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ArrayState {
    /// Being created or assembled.
    #[default]
    Starting,
    /// Serving.
    Running,
    /// A stop is under way.
    Stopping,
    /// Stopped, deleted or refused: the manager does nothing more.
    Stopped,
    /// No member is left that could hold the configuration.
    Failed,
}

/// One member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// Its number.
    pub id: MemberId,
    /// Its UUID.
    pub uuid: Uuid,
    /// Its state.
    pub state: MemberState,
    /// Why, for a failed one.
    pub reason: String,
    /// The device behind it, if there is one.
    pub device: Option<DeviceId>,
    /// How the operator named the device, last time it was seen.
    pub address: String,
    /// Bytes.
    pub size: u64,
    /// Extents that belong to a group.
    pub extents_used: u32,
    /// All extents.
    pub extents: u32,
    /// Failed metadata operations and write failures reported by engines.
    pub write_errors: u64,
    /// Runs of blocks that it could not read and that were rebuilt from the others.
    pub read_repairs: u64,
    /// It failed because it was not there.
    pub missing: bool,
    /// A slot of it is being rebuilt.
    pub rebuilding: bool,
}

/// How well a volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// All slots in sync, redundancy matches.
    Healthy,
    /// A slot is missing and nothing is being done about it.
    Degraded,
    /// A slot is missing and being rebuilt.
    Rebuilding,
    /// After an unclean stop, redundancy is being made to match.
    Resyncing,
    /// More is missing than the level survives: offline.
    Failed,
}

/// One volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeStatus {
    /// Its number.
    pub id: VolumeId,
    /// Its UUID.
    pub uuid: Uuid,
    /// Its name.
    pub name: String,
    /// Its shape.
    pub geometry: crate::geometry::Geometry,
    /// Bytes shown to initiators.
    pub size: u64,
    /// Logical block size.
    pub block_size: u32,
    /// The consistency policy.
    pub policy: Policy,
    /// The durable dirty mark is set.
    pub dirty: bool,
    /// How well it is.
    pub health: Health,
    /// Why.
    pub reason: String,
    /// Groups.
    pub groups: u32,
    /// Groups whose redundancy is not known to match.
    pub groups_unsynced: u32,
    /// Groups with a slot that is not in sync.
    pub groups_degraded: u32,
    /// Regions of the write-intent bitmap that are unwritten, clean, dirty, waiting for a resync, being resynced; `None`
    /// if the volume has no bitmap.
    pub regions: Option<[u64; 5]>,
    /// Bytes that could be neither read nor rebuilt, as engines reported them.
    pub lost_bytes: u64,
}

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationKind {
    /// Reconstructs a failed member's extents elsewhere.
    Rebuild,
    /// Makes a volume's redundancy match its data.
    Resync,
    /// Zeroes a new volume.
    Create,
}

/// How an operation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationState {
    /// Under way.
    Running,
    /// Ended well.
    Done,
    /// Ended early; the reason says why and what to do.
    Failed,
    /// Given up by command.
    Cancelled,
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationStatus {
    /// Its number, increasing over the life of the manager.
    pub id: u64,
    /// What it does.
    pub kind: OperationKind,
    /// How it stands.
    pub state: OperationState,
    /// Why, for one that failed or was cancelled.
    pub reason: String,
    /// The volume, for a resync or a creation.
    pub volume: Option<VolumeId>,
    /// The member whose extents are rebuilt.
    pub member: Option<MemberId>,
    /// Bytes of data whose redundancy is done; for a creation, bytes of members that are zeroed.
    pub done: u64,
    /// All of them.
    pub total: u64,
}
