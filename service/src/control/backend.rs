//! What the control plane asks of the daemon, and the model in which the daemon answers.
//!
//! The services, the metrics and the page know this trait and nothing else of the shell, so that they can be tested with a
//! backend in memory. Reading is taking a snapshot and never waits; changing is a future that ends when the change is
//! durable. The server runs each change in a task of its own: a caller who goes away never drops such a future half way.

use std::future::Future;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use raid_core::geometry::Level;
use raid_core::manager::{Policy, Severity};
use tokio::sync::watch;

use super::error::Error;
use super::events::EventHub;
use crate::block::fault;
use crate::telemetry::Classes;

/// What a change gives back.
pub type Result<T> = std::result::Result<T, Error>;

/// The daemon, as the control plane sees it.
///
/// Names are bare here (`pool`, `data`), not resource names (`arrays/pool/volumes/data`). The server has checked their
/// characters, the NQNs' form and the limits that need no state; everything that needs state is the backend's to refuse.
pub trait Backend: Send + Sync + 'static {
    /// Every array that is assembled or waits for members, in the order of their names.
    fn arrays(&self) -> Vec<Array>;
    /// Every export, in the order of NQN and namespace ID.
    fn exports(&self) -> Vec<Export>;
    /// Running operations and a bounded number of ended ones, oldest first.
    fn operations(&self) -> Vec<Operation>;
    /// Faults in force; empty where faults are not enabled.
    fn faults(&self) -> Vec<Fault>;
    /// The process.
    fn system(&self) -> System;
    /// Counts since the daemon's start.
    fn counters(&self) -> Counters;
    /// The events' history and stream.
    fn events(&self) -> &EventHub;
    /// Changes whenever one of the snapshots above may have changed (progress and counters at a leisurely pace, states at
    /// once). The number means nothing but "look again".
    fn revision(&self) -> watch::Receiver<u64>;

    /// Creates an array. Ends when the superblocks are durable and the array serves.
    fn create_array(&self, spec: ArraySpec) -> impl Future<Output = Result<()>> + Send;
    /// Assembles an array from members at these addresses (all that are given belong to one array). Returns its name.
    fn assemble_array(&self, addresses: Vec<String>, force: bool) -> impl Future<Output = Result<String>> + Send;
    /// Flushes, marks clean and lets go of the members. Exported volumes are a refusal.
    fn stop_array(&self, array: &str) -> impl Future<Output = Result<()>> + Send;
    /// Overwrites the superblocks: nothing is left of the array. Exported volumes are a refusal.
    fn delete_array(&self, array: &str) -> impl Future<Output = Result<()>> + Send;

    /// Adds a device as a spare, to be used at once if a member is failed. Returns its member number.
    fn add_member(&self, array: &str, device: NewDevice) -> impl Future<Output = Result<u16>> + Send;
    /// Fails a member on purpose.
    fn fail_member(&self, array: &str, member: u16) -> impl Future<Output = Result<()>> + Send;
    /// Takes a failed, missing or spare member out of the array.
    fn remove_member(&self, array: &str, member: u16) -> impl Future<Output = Result<()>> + Send;
    /// Rebuilds a member's extents onto the device `with`, or a spare of the array, and then removes it. Returns the
    /// operation's ID as soon as it has started, or an empty one if there was nothing to rebuild.
    fn replace_member(
        &self,
        array: &str,
        member: u16,
        with: Option<NewDevice>,
    ) -> impl Future<Output = Result<String>> + Send;

    /// Creates a volume.
    fn create_volume(&self, array: &str, spec: VolumeSpec) -> impl Future<Output = Result<()>> + Send;
    /// Deletes a volume and frees its extents. An export of it is a refusal.
    fn delete_volume(&self, array: &str, volume: &str) -> impl Future<Output = Result<()>> + Send;

    /// Exports a volume. Ends when the listeners accept connections and the export is kept over a restart. Returns the
    /// namespace ID.
    fn create_export(&self, spec: ExportSpec) -> impl Future<Output = Result<u32>> + Send;
    /// Takes an export back; its hosts' connections lose the namespace.
    fn delete_export(&self, nqn: &str, nsid: u32) -> impl Future<Output = Result<()>> + Send;

    /// Gives up an operation where it stands.
    fn cancel_operation(&self, id: &str) -> impl Future<Output = Result<()>> + Send;
    /// Halts a running operation until it is resumed (`pause` false). A kind that cannot is a refusal.
    fn pause_operation(&self, id: &str, pause: bool) -> impl Future<Output = Result<()>> + Send;

    /// Adds a fault to a member and returns its number. The server has refused where faults are not enabled.
    fn add_fault(&self, array: &str, member: u16, fault: FaultSpec) -> impl Future<Output = Result<u64>> + Send;
    /// Removes one fault of all that there are, or every fault with `None`. Returns how many there were.
    fn clear_faults(&self, id: Option<u64>) -> impl Future<Output = Result<usize>> + Send;
}

/// How to make an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArraySpec {
    /// Its name.
    pub name: String,
    /// The members' addresses: paths of files or block devices.
    pub members: Vec<String>,
    /// How many of them, from the end of the list, start as spares.
    pub spares: u16,
    /// Bytes of an extent, a power of two; `None` derives it from the smallest member.
    pub extent: Option<u64>,
    /// Number of shards; `None` is 16.
    pub shards: Option<u16>,
    /// Overwrite members that carry a signature of something else.
    pub wipe: bool,
    /// Create members that do not exist as sparse files of this many bytes.
    pub create_size: Option<u64>,
}

/// A device that is to become a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewDevice {
    /// Path of a file or block device.
    pub address: String,
    /// Overwrite a signature of something else.
    pub wipe: bool,
    /// Create the file, sparse and of this many bytes, if it does not exist.
    pub create_size: Option<u64>,
}

/// How to make a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeSpec {
    /// Its name.
    pub name: String,
    /// The level.
    pub level: Level,
    /// W; `None` takes all active members.
    pub width: Option<u16>,
    /// Bytes of a chunk.
    pub chunk: u32,
    /// Size in bytes; `None` takes all free extents.
    pub size: Option<u64>,
    /// Logical block size, 512 or 4096.
    pub block_size: u32,
    /// The consistency policy.
    pub policy: Policy,
}

/// How to export a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportSpec {
    /// The array's name.
    pub array: String,
    /// The volume's name.
    pub volume: String,
    /// The subsystem's NQN. Several exports may share it with different namespace IDs.
    pub nqn: String,
    /// The namespace ID; `None` takes the lowest free one of the subsystem.
    pub nsid: Option<u32>,
    /// Where the subsystem listens.
    pub listen: Vec<SocketAddr>,
    /// Who may connect.
    pub hosts: Hosts,
}

/// Who may connect to a subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hosts {
    /// Anybody who reaches the listener.
    Any,
    /// These host NQNs.
    Only(Vec<String>),
}

/// An array's state. Worst first where several hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ArrayState {
    /// Waits for members before it is assembled degraded.
    Assembling,
    /// At least one volume cannot be served.
    Failed,
    /// Redundancy is missing somewhere and nothing restores it.
    Degraded,
    /// Redundancy is missing or unproven somewhere and a rebuild or resync restores it.
    Rebuilding,
    /// All members of all groups are in sync.
    Healthy,
    /// Stopped; the members are free.
    Stopped,
}

/// An array.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// Its name.
    pub name: String,
    /// Its UUID, in the usual hexadecimal form.
    pub uuid: String,
    /// How it is.
    pub state: ArrayState,
    /// Why, as a sentence.
    pub reason: String,
    /// Bytes of an extent.
    pub extent: u64,
    /// Number of shards.
    pub shards: u16,
    /// The configuration's generation.
    pub generation: u64,
    /// Bytes that extents can use, over all active members.
    pub capacity: u64,
    /// Bytes of free extents, over all active members.
    pub free: u64,
    /// The members, by number.
    pub members: Vec<Member>,
    /// The volumes, by number.
    pub volumes: Vec<Volume>,
}

/// A member's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemberState {
    /// Present and written to.
    Active,
    /// A rebuild fills it.
    Rebuilding,
    /// Stands by.
    Spare,
    /// Failed: neither read nor written.
    Failed,
    /// Not found at assembly.
    Missing,
}

/// A member.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// Its number in the array.
    pub number: u16,
    /// Its UUID.
    pub uuid: String,
    /// Where it is, or was last seen.
    pub address: String,
    /// How it is.
    pub state: MemberState,
    /// Why, as a sentence.
    pub reason: String,
    /// Size in bytes.
    pub size: u64,
    /// Logical block size in bytes.
    pub block_size: u32,
    /// Bytes of extents in use.
    pub used: u64,
    /// Reads that it answered with an error.
    pub read_errors: u64,
    /// Writes, flushes and other commands that it answered with an error.
    pub write_errors: u64,
    /// Read errors that were repaired by rewriting.
    pub repaired: u64,
}

/// A volume's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VolumeState {
    /// Too few members are left: requests are refused.
    Offline,
    /// Served, with redundancy missing and nothing that restores it.
    Degraded,
    /// Served, while a rebuild restores redundancy.
    Rebuilding,
    /// Served, while redundancy is made to match the data after an unclean stop.
    Resyncing,
    /// Served, and all is in sync.
    Healthy,
}

impl VolumeState {
    /// As it is shown everywhere.
    pub fn word(self) -> &'static str {
        match self {
            VolumeState::Offline => "offline",
            VolumeState::Degraded => "degraded",
            VolumeState::Rebuilding => "rebuilding",
            VolumeState::Resyncing => "resyncing",
            VolumeState::Healthy => "healthy",
        }
    }
}

/// A volume.
#[derive(Clone, Debug, PartialEq)]
pub struct Volume {
    /// Its name.
    pub name: String,
    /// Its number in the array.
    pub number: u32,
    /// Its UUID.
    pub uuid: String,
    /// How it is.
    pub state: VolumeState,
    /// Why, as a sentence.
    pub reason: String,
    /// The level.
    pub level: Level,
    /// W.
    pub width: u16,
    /// Bytes of a chunk.
    pub chunk: u32,
    /// Size in bytes, as exported.
    pub size: u64,
    /// Bytes of member space that its groups occupy.
    pub allocated: u64,
    /// Logical block size in bytes.
    pub block_size: u32,
    /// The consistency policy.
    pub policy: Policy,
    /// It is marked dirty: an unclean stop now would mean a resync.
    pub dirty: bool,
    /// Number of groups.
    pub groups: u32,
    /// Groups with a slot that is missing or being rebuilt.
    pub degraded_groups: u32,
    /// Groups whose redundancy is not known to match.
    pub unsynced_groups: u32,
    /// Regions of the write-intent bitmap that are unwritten, clean, dirty, waiting for a resync, being resynced; `None` if
    /// the volume has no bitmap.
    pub regions: Option<[u64; 5]>,
}

/// An export's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExportState {
    /// Hosts can connect and do I/O.
    Active,
    /// The volume is not there or offline, or a listener could not be opened.
    Offline,
}

/// A volume that is served: one namespace of one subsystem.
#[derive(Clone, Debug, PartialEq)]
pub struct Export {
    /// The array's name.
    pub array: String,
    /// The volume's name.
    pub volume: String,
    /// The subsystem's NQN.
    pub nqn: String,
    /// The namespace ID.
    pub nsid: u32,
    /// Where the subsystem listens.
    pub listen: Vec<SocketAddr>,
    /// Who may connect.
    pub hosts: Hosts,
    /// How it is.
    pub state: ExportState,
    /// Why, as a sentence.
    pub reason: String,
    /// Connected controllers of the subsystem.
    pub controllers: u32,
}

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OperationKind {
    /// Fills a spare in the place of a failed member.
    Rebuild,
    /// Moves a member's extents to another device.
    Replace,
    /// Makes redundancy match the data after an unclean stop.
    Resync,
    /// Zeroes a new volume.
    Initialize,
}

/// An operation's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OperationState {
    /// Goes on.
    Running,
    /// Halted by an operator.
    Paused,
    /// Ended, and all is done.
    Succeeded,
    /// Ended by an error.
    Failed,
    /// Ended by an operator.
    Cancelled,
}

/// Long work.
#[derive(Clone, Debug, PartialEq)]
pub struct Operation {
    /// Its ID, unique while the daemon runs: letters, digits, `-` and `.`.
    pub id: String,
    /// What it does.
    pub kind: OperationKind,
    /// The array that it works on.
    pub array: String,
    /// The member that it is about.
    pub member: Option<u16>,
    /// The volume that it is about.
    pub volume: Option<String>,
    /// How it is.
    pub state: OperationState,
    /// Why, as a sentence; the error's, if it failed.
    pub reason: String,
    /// Bytes that are done.
    pub done: u64,
    /// Bytes in all; 0 while not known.
    pub total: u64,
    /// When it began.
    pub started: SystemTime,
    /// When it ended.
    pub ended: Option<SystemTime>,
    /// [`Backend::cancel_operation`] can work.
    pub can_cancel: bool,
    /// [`Backend::pause_operation`] can work.
    pub can_pause: bool,
}

impl Operation {
    /// True when it will not change any more.
    pub fn ended(&self) -> bool {
        matches!(self.state, OperationState::Succeeded | OperationState::Failed | OperationState::Cancelled)
    }
}

/// A moment in the daemon's life.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Its number, one more than the one before.
    pub sequence: u64,
    /// When.
    pub time: SystemTime,
    /// How serious.
    pub severity: Severity,
    /// A short fixed name, such as `member-failed`.
    pub code: String,
    /// The resource that it is about, such as `arrays/pool/members/3`; empty for the daemon itself.
    pub resource: String,
    /// What happened, to what, and what to do.
    pub message: String,
}

/// What a fault does, and to which I/Os.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultSpec {
    /// Which I/Os.
    pub kinds: fault::Kinds,
    /// First byte of the range.
    pub offset: u64,
    /// Length of the range in bytes; `u64::MAX` reaches to the end.
    pub len: u64,
    /// What happens to them.
    pub effect: fault::Effect,
}

/// A fault in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Its number, unique in the daemon.
    pub id: u64,
    /// The array's name.
    pub array: String,
    /// The member's number.
    pub member: u16,
    /// What it does.
    pub spec: FaultSpec,
}

/// The process.
#[derive(Clone, Debug, PartialEq)]
pub struct System {
    /// The daemon's version.
    pub version: String,
    /// Process ID.
    pub pid: u32,
    /// When it started.
    pub started: SystemTime,
    /// Reactors never sleep.
    pub busy_polling: bool,
    /// Faults may be injected.
    pub faults_enabled: bool,
    /// Resident memory in bytes.
    pub resident: u64,
    /// Buffer memory of all reactors, in bytes.
    pub buffers: u64,
    /// Bytes of it that are in use.
    pub buffers_used: u64,
    /// Where the metrics and the page are; `None` if they are off.
    pub http: Option<SocketAddr>,
    /// The reactors, by number.
    pub reactors: Vec<Reactor>,
}

/// A reactor.
#[derive(Clone, Debug, PartialEq)]
pub struct Reactor {
    /// Its number.
    pub number: u16,
    /// The core that it is pinned to.
    pub core: Option<u32>,
    /// Time in passes that did something, since the start.
    pub busy: Duration,
    /// Time in passes that did nothing and asleep, since the start.
    pub idle: Duration,
    /// Share of time that was busy lately, 0 to 1.
    pub busy_share: f64,
    /// The shards that it owns, as array name and shard numbers.
    pub shards: Vec<(String, Vec<u16>)>,
}

/// Counts since the daemon's start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counters {
    /// By volume.
    pub volumes: Vec<VolumeCounters>,
    /// By member.
    pub members: Vec<MemberCounters>,
    /// By array.
    pub arrays: Vec<ArrayCounters>,
}

/// Counts of one kind of I/O.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoCounters {
    /// Ended with success.
    pub ops: u64,
    /// Ended with an error.
    pub errors: u64,
    /// Bytes of those that succeeded; 0 for flushes.
    pub bytes: u64,
    /// Sum of their latencies.
    pub time: Duration,
    /// Their latencies, in classes.
    pub latencies: Classes,
}

/// Reads, writes (zeroing included) and flushes apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Io {
    /// Reads.
    pub read: IoCounters,
    /// Writes.
    pub write: IoCounters,
    /// Flushes.
    pub flush: IoCounters,
    /// In flight at the moment.
    pub in_flight: u64,
}

/// Counts of a volume, as its hosts see it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VolumeCounters {
    /// The array's name.
    pub array: String,
    /// The volume's name.
    pub volume: String,
    /// Its I/O.
    pub io: Io,
}

/// Counts of a member, as raidd sees it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemberCounters {
    /// The array's name.
    pub array: String,
    /// The member's number.
    pub member: u16,
    /// Its I/O.
    pub io: Io,
}

/// Counts of an array's engines, added up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ArrayCounters {
    /// The array's name.
    pub array: String,
    /// Stripes written whole.
    pub full_stripe: u64,
    /// Stripes written by reading what is replaced.
    pub read_modify_write: u64,
    /// Stripes written by reading what stays.
    pub reconstruct_write: u64,
    /// How often a stripe was handled.
    pub activations: u64,
    /// Requests attached to a stripe that already had one of the same batch.
    pub merged: u64,
    /// Reads that were reconstructed from other members.
    pub degraded_reads: u64,
    /// Read errors repaired by rewriting.
    pub read_repairs: u64,
    /// Requests answered with an error.
    pub failed_requests: u64,
}
