//! The configuration: members, volumes and groups, written to one of two slots at each commit.

use super::bytes::{Reader, Writer};
use super::superblock::{Corrupt, NAME_MAX, Superblock, extents_of};
use crate::geometry::{Geometry, Level};
use crate::manager::{Policy, Uuid};
use crate::view::SlotState;

const MAGIC: &[u8; 8] = b"RAIDDCF1";
const VERSION: u32 = 2;
const HEADER: usize = 32;
/// Most members, volumes and history entries that a configuration may name.
const MEMBERS_MAX: usize = 1024;
const VOLUMES_MAX: usize = 1024;
const HISTORY_MAX: usize = 32;
/// Longest address hint in bytes.
const ADDRESS_MAX: usize = 4096;

/// A member's state on disk. None is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordState {
    /// Present and written to.
    Active,
    /// Present, without extents.
    Spare,
    /// Failed, missing or stale.
    Failed,
    /// No longer part of the array.
    Removed,
}

/// Why a member is `Failed`. None is zero on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailReason {
    /// It is not failed.
    Fine,
    /// It failed a write, a flush or a metadata operation.
    Device,
    /// There was no room left under it.
    NoSpace,
    /// It did not answer in time.
    Timeout,
    /// It was not there when the array was assembled.
    Missing,
    /// It was behind the configuration that counts.
    Stale,
    /// An operator failed it.
    Operator,
    /// It is being replaced, and leaves the array when its last slot has moved.
    Replaced,
    /// Too many of its blocks could not be read.
    ReadErrors,
}

const REASONS: [FailReason; 9] = [
    FailReason::Fine,
    FailReason::Device,
    FailReason::NoSpace,
    FailReason::Timeout,
    FailReason::Missing,
    FailReason::Stale,
    FailReason::Operator,
    FailReason::Replaced,
    FailReason::ReadErrors,
];

/// A member number that means "none".
const NO_MEMBER: u16 = u16::MAX;

/// A member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberRecord {
    /// Its UUID.
    pub uuid: Uuid,
    /// Its state.
    pub state: RecordState,
    /// Why, if it is `Failed`.
    pub reason: FailReason,
    /// The member whose slots it takes first.
    pub replaces: Option<u16>,
    /// The first generation that names it. A configuration older than this says nothing about it.
    pub joined: u64,
    /// It failed before all its slots had been in sync: if it comes back, it is rebuilt whole, not by the bitmap.
    pub partial: bool,
    /// The newest generation that counted when it failed: it has that one, unless it is a copy of an earlier time.
    pub left: u64,
    /// Its role (design, section 5): 0 data-preferred.
    pub role: u8,
    /// Its size in bytes.
    pub size: u64,
    /// Where it was last seen, for messages.
    pub address: String,
}

/// A volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeRecord {
    /// Its number.
    pub id: u32,
    /// Its UUID.
    pub uuid: Uuid,
    /// Its name.
    pub name: String,
    /// Its shape; extent and shards are the array's.
    pub geometry: Geometry,
    /// Bytes shown to initiators.
    pub size: u64,
    /// Logical block size.
    pub block_size: u32,
    /// Consistency policy.
    pub policy: Policy,
    /// Written to since it was last clean.
    pub dirty: bool,
    /// Its groups.
    pub groups: Vec<GroupRecord>,
    /// Groups of copies that hold its write-intent bitmap; none if it has no bitmap.
    pub meta: Vec<GroupRecord>,
}

impl VolumeRecord {
    /// All its groups: those of its data, then those of its bitmap.
    pub fn all_groups(&self) -> impl Iterator<Item = &GroupRecord> {
        self.groups.iter().chain(&self.meta)
    }

    /// As `all_groups`, to change them.
    pub fn all_groups_mut(&mut self) -> impl Iterator<Item = &mut GroupRecord> {
        self.groups.iter_mut().chain(&mut self.meta)
    }

    /// The slots of all its groups.
    pub fn slots(&self) -> impl Iterator<Item = &SlotRecord> {
        self.all_groups().flat_map(|g| &g.slots)
    }

    /// As `slots`, to change them.
    pub fn slots_mut(&mut self) -> impl Iterator<Item = &mut SlotRecord> {
        self.all_groups_mut().flat_map(|g| &mut g.slots)
    }

    /// The regions of its bitmap, if it has one.
    pub fn regions(&self) -> u32 {
        self.groups.len() as u32 * self.geometry.bands()
    }
}

/// A group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRecord {
    /// Redundancy matches data.
    pub synced: bool,
    /// Its slots.
    pub slots: Vec<SlotRecord>,
}

/// A slot of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotRecord {
    /// On which member.
    pub member: u16,
    /// In which extent of it.
    pub extent: u32,
    /// Its state.
    pub state: SlotState,
}

/// Everything that a commit makes durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Counts commits.
    pub generation: u64,
    /// The array.
    pub array_uuid: Uuid,
    /// The newest generation that was known to be on all active members when this one was written. A commit counts
    /// from then on; work that relies on one starts later.
    pub counted: u64,
    /// The creation has not finished, or the deletion has begun: nothing may be assembled from this.
    pub creating: bool,
    /// For each assembly, the first generation that it wrote and its random identity; oldest first. Two members whose
    /// entries for the same generation differ were assembled apart.
    pub history: Vec<(u64, Uuid)>,
    /// Members by number.
    pub members: Vec<MemberRecord>,
    /// Volumes.
    pub volumes: Vec<VolumeRecord>,
    /// The next volume's number.
    pub next_volume: u32,
}

impl Config {
    /// The identity of the assembly that wrote generation `generation`, if the list reaches back that far.
    pub fn history_at(&self, generation: u64) -> Option<Uuid> {
        self.history.iter().rev().find(|(from, _)| *from <= generation).map(|(_, id)| *id)
    }

    /// Begins a new history at `from`. The oldest entry goes when the list is full.
    pub fn begin_history(&mut self, from: u64, id: Uuid) {
        if self.history.len() >= HISTORY_MAX {
            self.history.remove(0);
        }
        self.history.push((from, id));
    }

    /// Another member or volume can be named.
    pub fn room_for_member(&self) -> bool {
        self.members.len() < MEMBERS_MAX
    }

    /// Another volume can be named.
    pub fn room_for_volume(&self) -> bool {
        self.volumes.len() < VOLUMES_MAX
    }

    /// What neither the reader nor the configuration alone can see: that it fits the members' superblocks, and that no
    /// extent belongs to two slots.
    pub fn check_against(&self, sb: &Superblock) -> Result<(), Corrupt> {
        if self.array_uuid != sb.array_uuid {
            return Err(Corrupt::Field("array UUID"));
        }
        let mut taken = Vec::new();
        for v in &self.volumes {
            if v.geometry.extent != sb.extent || v.geometry.shards != sb.shards {
                return Err(Corrupt::Field("volume extent or shards"));
            }
            for slot in v.slots() {
                let member = &self.members[usize::from(slot.member)];
                if slot.extent >= extents_of(member.size, sb.data_offset, sb.extent) {
                    return Err(Corrupt::Field("slot extent"));
                }
                taken.push((slot.member, slot.extent));
            }
        }
        taken.sort_unstable();
        if taken.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Corrupt::Field("an extent in two slots"));
        }
        Ok(())
    }
}

fn level_code(level: Level) -> u8 {
    match level {
        Level::Raid0 => 1,
        Level::Raid1 => 2,
        Level::Raid10 => 3,
        Level::Raid5 => 4,
        Level::Raid6 => 5,
    }
}

fn level_of(code: u8) -> Option<Level> {
    [Level::Raid0, Level::Raid1, Level::Raid10, Level::Raid5, Level::Raid6].into_iter().find(|l| level_code(*l) == code)
}

fn slot_code(state: SlotState) -> u8 {
    match state {
        SlotState::InSync => 1,
        SlotState::Rebuilding => 2,
        SlotState::Missing => 3,
    }
}

/// The bytes of a slot, a multiple of 4096. The caller checks that they fit.
pub fn encode_config(config: &Config) -> Vec<u8> {
    let mut w = Writer::default();
    w.bytes(MAGIC);
    w.u32(VERSION);
    w.u32(0); // length, below
    w.u32(0); // checksum, below
    w.u32(0);
    w.u64(config.generation);
    w.u64(config.counted);
    w.bytes(&config.array_uuid);
    w.u8(u8::from(config.creating));
    w.u16(config.history.len() as u16);
    for (generation, id) in &config.history {
        w.u64(*generation);
        w.bytes(id);
    }
    w.u16(config.members.len() as u16);
    for m in &config.members {
        w.bytes(&m.uuid);
        w.u8(match m.state {
            RecordState::Active => 1,
            RecordState::Spare => 2,
            RecordState::Failed => 3,
            RecordState::Removed => 4,
        });
        w.u8(1 + REASONS.iter().position(|r| *r == m.reason).unwrap_or(0) as u8);
        w.u16(m.replaces.unwrap_or(NO_MEMBER));
        w.u64(m.joined);
        w.u8(u8::from(m.partial));
        w.u64(m.left);
        w.u8(m.role);
        w.u64(m.size);
        w.text(&m.address);
    }
    w.u32(config.next_volume);
    w.u16(config.volumes.len() as u16);
    for v in &config.volumes {
        encode_volume(&mut w, v);
    }
    let mut bytes = w.0;
    let length = bytes.len() as u32;
    bytes[12..16].copy_from_slice(&length.to_le_bytes());
    let crc = crc32c::crc32c(&bytes);
    bytes[16..20].copy_from_slice(&crc.to_le_bytes());
    bytes.resize(bytes.len().next_multiple_of(4096), 0);
    bytes
}

fn encode_volume(w: &mut Writer, v: &VolumeRecord) {
    w.u32(v.id);
    w.bytes(&v.uuid);
    w.text(&v.name);
    w.u8(level_code(v.geometry.level));
    w.u16(v.geometry.width);
    w.u32(v.geometry.chunk);
    w.u64(v.geometry.extent);
    w.u16(v.geometry.shards);
    w.u64(v.size);
    w.u32(v.block_size);
    w.u8(match v.policy {
        Policy::None => 1,
        Policy::Resync => 2,
        Policy::Bitmap => 3,
    });
    w.u8(u8::from(v.dirty));
    encode_groups(w, &v.groups);
    w.u16(v.meta.first().map_or(0, |g| g.slots.len() as u16));
    encode_groups(w, &v.meta);
}

fn encode_groups(w: &mut Writer, groups: &[GroupRecord]) {
    w.u32(groups.len() as u32);
    for g in groups {
        w.u8(u8::from(g.synced));
        for s in &g.slots {
            w.u16(s.member);
            w.u32(s.extent);
            w.u8(slot_code(s.state));
        }
    }
}

/// Reads a slot.
pub fn decode_config(bytes: &[u8]) -> Result<Config, Corrupt> {
    if bytes.len() < HEADER || &bytes[..8] != MAGIC {
        return Err(Corrupt::NoMagic);
    }
    let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let (version, length, crc) = (word(8), word(12) as usize, word(16));
    if length < HEADER || length > bytes.len() {
        return Err(Corrupt::Field("length"));
    }
    // The checksum covers everything with its own place zero.
    let sum = crc32c::crc32c_append(crc32c::crc32c_append(crc32c::crc32c(&bytes[..16]), &[0; 4]), &bytes[20..length]);
    if sum != crc {
        return Err(Corrupt::Checksum);
    }
    if version != VERSION {
        return Err(Corrupt::Version(version));
    }
    let mut r = Reader(&bytes[24..length]);
    let config = body(&mut r).ok_or(Corrupt::Field("body"))?;
    check(&config)?;
    Ok(config)
}

fn flag(r: &mut Reader) -> Option<bool> {
    match r.u8()? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

fn body(r: &mut Reader) -> Option<Config> {
    let generation = r.u64()?;
    let counted = r.u64()?;
    let array_uuid = r.uuid()?;
    let creating = flag(r)?;
    let n = r.u16().map(usize::from).filter(|n| *n <= HISTORY_MAX)?;
    let history = (0..n).map(|_| Some((r.u64()?, r.uuid()?))).collect::<Option<Vec<_>>>()?;
    let n = r.u16().map(usize::from).filter(|n| *n <= MEMBERS_MAX)?;
    let members = (0..n).map(|_| member(r)).collect::<Option<Vec<_>>>()?;
    let next_volume = r.u32()?;
    let n = r.u16().map(usize::from).filter(|n| *n <= VOLUMES_MAX)?;
    let volumes = (0..n).map(|_| volume(r)).collect::<Option<Vec<_>>>()?;
    Some(Config { generation, counted, array_uuid, creating, history, members, volumes, next_volume })
}

fn member(r: &mut Reader) -> Option<MemberRecord> {
    let uuid = r.uuid()?;
    let state = match r.u8()? {
        1 => RecordState::Active,
        2 => RecordState::Spare,
        3 => RecordState::Failed,
        4 => RecordState::Removed,
        _ => return None,
    };
    let reason = *REASONS.get(usize::from(r.u8()?).checked_sub(1)?)?;
    let replaces = Some(r.u16()?).filter(|m| *m != NO_MEMBER);
    let joined = r.u64()?;
    let partial = flag(r)?;
    let left = r.u64()?;
    Some(MemberRecord {
        uuid,
        state,
        reason,
        replaces,
        joined,
        partial,
        left,
        role: r.u8()?,
        size: r.u64()?,
        address: r.text(ADDRESS_MAX)?,
    })
}

fn volume(r: &mut Reader) -> Option<VolumeRecord> {
    let id = r.u32()?;
    let uuid = r.uuid()?;
    let name = r.text(NAME_MAX)?;
    let level = level_of(r.u8()?)?;
    let geometry = Geometry { level, width: r.u16()?, chunk: r.u32()?, extent: r.u64()?, shards: r.u16()? };
    let size = r.u64()?;
    let block_size = r.u32()?;
    let policy = match r.u8()? {
        1 => Policy::None,
        2 => Policy::Resync,
        3 => Policy::Bitmap,
        _ => return None,
    };
    let dirty = flag(r)?;
    let groups = groups(r, geometry.width)?;
    let copies = r.u16()?;
    let meta = self::groups(r, copies)?;
    Some(VolumeRecord { id, uuid, name, geometry, size, block_size, policy, dirty, groups, meta })
}

fn groups(r: &mut Reader, width: u16) -> Option<Vec<GroupRecord>> {
    let n = r.u32()? as usize;
    // What is left of the bytes bounds the number of groups: a hostile count allocates nothing.
    if n > r.0.len() / (1 + 7 * usize::from(width.max(1))) {
        return None;
    }
    let mut groups = Vec::with_capacity(n);
    for _ in 0..n {
        let synced = flag(r)?;
        let mut slots = Vec::with_capacity(usize::from(width));
        for _ in 0..width {
            let (member, extent) = (r.u16()?, r.u32()?);
            let state = match r.u8()? {
                1 => SlotState::InSync,
                2 => SlotState::Rebuilding,
                3 => SlotState::Missing,
                _ => return None,
            };
            slots.push(SlotRecord { member, extent, state });
        }
        groups.push(GroupRecord { synced, slots });
    }
    Some(groups)
}

/// What the reader cannot see: fields that contradict each other.
fn check(config: &Config) -> Result<(), Corrupt> {
    if config.members.iter().filter_map(|m| m.replaces).any(|m| usize::from(m) >= config.members.len()) {
        return Err(Corrupt::Field("replaced member"));
    }
    // Numbers identify volumes in views and commands, names in messages.
    if config.volumes.windows(2).any(|w| w[0].id >= w[1].id)
        || config.volumes.last().is_some_and(|v| v.id >= config.next_volume)
    {
        return Err(Corrupt::Field("volume number"));
    }
    for v in &config.volumes {
        v.geometry.validate().map_err(|_| Corrupt::Field("volume geometry"))?;
        if !matches!(v.block_size, 512 | 4096) {
            return Err(Corrupt::Field("volume block size"));
        }
        let room = v.geometry.group_bytes().checked_mul(v.groups.len() as u64).ok_or(Corrupt::Field("volume size"))?;
        if v.size > room {
            return Err(Corrupt::Field("volume size"));
        }
        if v.policy == Policy::Bitmap && !v.meta.iter().any(|g| !g.slots.is_empty()) {
            return Err(Corrupt::Field("volume bitmap"));
        }
        if v.slots().any(|s| usize::from(s.member) >= config.members.len()) {
            return Err(Corrupt::Field("slot member"));
        }
    }
    Ok(())
}
