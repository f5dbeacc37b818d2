//! What an assembly makes of what it read: one pure function, so that every case can be tested as a table.

use std::collections::BTreeMap;
use std::fmt;

use super::redundancy::{bitmap_viable, degraded, has_parity, in_sync, tolerance, viable, volume_viable};
use super::{DeviceInfo, ErrorKind, ManageError, Notice, Policy, Severity, Uuid, reason_text, refuse};
use crate::action::{MemberId, VolumeId};
use crate::geometry::Level;
use crate::ondisk::{Config, FailReason, RecordState, Superblock, VolumeRecord};
use crate::view::SlotState;

/// What one device holds.
pub(super) struct Found {
    pub device: DeviceInfo,
    pub sb: Superblock,
    /// The configurations that are whole and fit the superblock.
    pub slots: [Option<Config>; 2],
    /// The superblock copy to rewrite: its place in words, and whether it is the first one.
    pub repair: Option<(&'static str, bool)>,
}

impl Found {
    /// Its newest configuration.
    pub fn newest(&self) -> Option<&Config> {
        self.slots.iter().flatten().max_by_key(|c| c.generation)
    }

    /// The slot with it, or 1 if there is none: the next one then goes to slot 0.
    pub fn newest_slot(&self) -> u8 {
        let newest = self.newest().map(|c| c.generation);
        u8::from(newest.is_none() || self.slots[0].as_ref().map(|c| c.generation) != newest)
    }
}

/// How the array is assembled.
pub(super) struct Decision {
    /// The device whose configuration counts.
    pub winner: usize,
    /// The configuration to commit.
    pub config: Config,
    /// Which devices are which members, failed ones included.
    pub members: Vec<(usize, u16)>,
    pub notices: Vec<Notice>,
    /// What to make of the volumes' bitmaps, by volume.
    pub bitmaps: BTreeMap<u32, Trust>,
}

/// What the states of a bitmap are worth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Trust {
    /// The volume was not stopped cleanly: dirty regions have to be resynced.
    pub unclean: bool,
    /// A copy of the bitmap was taken back by force, or all of it may be old: no state means anything.
    pub stale: bool,
}

fn hex(id: Uuid) -> String {
    id[..6].iter().map(|b| format!("{b:02x}")).collect()
}

fn notice(severity: Severity, code: &'static str, member: Option<u16>, volume: Option<u32>, message: String) -> Notice {
    Notice { severity, code, member: member.map(MemberId), volume: volume.map(VolumeId), message }
}

pub(super) fn decide(found: &[Found], history: Uuid, force: bool) -> Result<Decision, ManageError> {
    check_same_array(found)?;
    // The highest generation wins; but one that no later configuration calls counted may be the rest of a commit that
    // never ended, so what counts decides first.
    let whole = found.iter().enumerate().filter_map(|(i, f)| Some((i, f.newest()?)));
    let (winner, base) =
        whole.max_by_key(|(i, c)| (c.counted, c.generation, std::cmp::Reverse(*i))).ok_or_else(|| {
            refuse(
                ErrorKind::Corrupt,
                "none of the devices holds a whole configuration; nothing was changed. Give all members of the array",
            )
        })?;
    check_histories(found, winner, base)?;
    if base.creating {
        return Err(refuse(
            ErrorKind::FailedPrecondition,
            format!(
                "the creation or deletion of array '{}' was interrupted; it holds no data. Create it again with --wipe",
                found[winner].sb.array_name
            ),
        ));
    }
    let mut config = base.clone();
    // New generations must be newer than every one that is there, the unfinished ones too.
    config.generation = found.iter().filter_map(Found::newest).map(|c| c.generation).max().unwrap_or(0);
    config.begin_history(config.generation + 1, history);
    let mut decision = Decision { winner, config, members: Vec::new(), notices: Vec::new(), bitmaps: BTreeMap::new() };
    match_members(found, base, &mut decision);
    let config = &mut decision.config;
    let before: Vec<bool> = config.volumes.iter().map(|v| bitmap_viable(v, in_sync)).collect();
    if force {
        force_members(found, base, config, &decision.members, &mut decision.notices);
    }
    let present: Vec<u16> = decision.members.iter().map(|(_, m)| *m).collect();
    let by_force = ByForce { force, devices: found };
    for (v, there) in before.into_iter().enumerate() {
        let mut trust = check_volume(config, v, &present, &by_force, &mut decision.notices)?;
        trust.stale = !there;
        decision.bitmaps.insert(config.volumes[v].id, trust);
    }
    Ok(decision)
}

/// All superblocks speak of one array, and no member twice.
fn check_same_array(found: &[Found]) -> Result<(), ManageError> {
    let first = &found[0];
    for (i, f) in found.iter().enumerate() {
        if f.sb.array_uuid != first.sb.array_uuid {
            return Err(refuse(
                ErrorKind::InvalidArgument,
                format!(
                    "{} belongs to array '{}', {} to array '{}': assemble one array at a time",
                    first.device.address, first.sb.array_name, f.device.address, f.sb.array_name
                ),
            ));
        }
        if let Some(twin) = found[..i].iter().find(|o| o.sb.member_uuid == f.sb.member_uuid) {
            return Err(refuse(
                ErrorKind::InvalidArgument,
                format!(
                    "{} and {} are the same member: one is another path to it, or a copy. Give only one of them",
                    twin.device.address, f.device.address
                ),
            ));
        }
        let layout = |s: &Superblock| (s.shards, s.extent, s.slot_offset, s.slot_len, s.data_offset);
        if layout(&f.sb) != layout(&first.sb) {
            return Err(refuse(
                ErrorKind::Corrupt,
                format!(
                    "the superblocks of {} and {} describe different layouts of array '{}'; leave out the wrong one",
                    first.device.address, f.device.address, f.sb.array_name
                ),
            ));
        }
    }
    Ok(())
}

/// Refuses members that were assembled apart: both sides may hold writes that the other one has not.
fn check_histories(found: &[Found], winner: usize, base: &Config) -> Result<(), ManageError> {
    for f in found {
        let Some(config) = f.newest() else { continue };
        let (here, there) = (config.history_at(config.counted), base.history_at(config.counted));
        if let (Some(here), Some(there)) = (here, there)
            && here != there
        {
            return Err(refuse(
                ErrorKind::FailedPrecondition,
                format!(
                    "array '{}' has two histories, its members were assembled apart: {} has history {} at generation {}, {} has history {} \
                     at generation {}. Each may hold writes that the other has not. Assemble with the devices of one \
                     history only; then add the others with 'raidctl member add', which overwrites them",
                    f.sb.array_name,
                    found[winner].device.address,
                    hex(there),
                    base.generation,
                    f.device.address,
                    hex(here),
                    config.generation,
                ),
            ));
        }
    }
    Ok(())
}

/// Who is there, who is missing and who is stale.
fn match_members(found: &[Found], base: &Config, decision: &mut Decision) {
    let Decision { config, members, notices, .. } = decision;
    let name = &found[0].sb.array_name;
    let fail = |config: &mut Config, m: usize, reason| {
        config.members[m].state = RecordState::Failed;
        config.members[m].reason = reason;
        for slot in config.volumes.iter_mut().flat_map(VolumeRecord::slots_mut) {
            if usize::from(slot.member) == m {
                slot.state = SlotState::Missing;
            }
        }
    };
    for (m, record) in base.members.iter().enumerate() {
        let number = Some(m as u16);
        if record.state == RecordState::Removed {
            continue;
        }
        let Some(i) = found.iter().position(|f| f.sb.member_uuid == record.uuid) else {
            if record.state != RecordState::Failed {
                fail(config, m, FailReason::Missing);
                let message = format!(
                    "member {m} ({}) is missing; the array is assembled without it. If it comes back, add it again with \
                     'raidctl member add {name} DEVICE'; otherwise 'raidctl member replace {name} {m} --with DEVICE' \
                     restores the redundancy, or 'raidctl member remove {name} {m}' forgets it",
                    record.address
                );
                notices.push(notice(Severity::Warning, "member-missing", number, None, message));
            }
            continue;
        };
        members.push((i, m as u16));
        let address = &found[i].device.address;
        // A commit that counts is on every member that it calls live. One that has not got it is a copy of the past.
        let generation = found[i].newest().map_or(0, |c| c.generation);
        let behind = generation < base.counted && record.joined <= base.counted;
        if record.state == RecordState::Failed || behind {
            if behind && record.state != RecordState::Failed {
                fail(config, m, FailReason::Stale);
            } else if record.reason == FailReason::Missing {
                config.members[m].reason = FailReason::Stale;
            }
            let message = format!(
                "member {m} ({address}) is stale ({}): it is at generation {generation}, the array at {}. It is not read. \
                 Add it again with 'raidctl member add {name} DEVICE', and it is rebuilt",
                reason_text(config.members[m].reason),
                base.generation,
            );
            notices.push(notice(Severity::Warning, "member-stale", number, None, message));
        }
    }
    for f in found {
        let known = base.members.iter().any(|m| m.state != RecordState::Removed && m.uuid == f.sb.member_uuid);
        if !known {
            let message = format!(
                "{} is no longer a member of array '{}'; it is left out. To use it again, 'raidctl member add {name} DEVICE'",
                f.device.address, f.sb.array_name
            );
            notices.push(notice(Severity::Warning, "not-a-member", None, None, message));
        }
    }
}

/// With --force: failed members come back as they are, the newest first, until each volume has enough.
fn force_members(
    found: &[Found],
    base: &Config,
    config: &mut Config,
    members: &[(usize, u16)],
    notices: &mut Vec<Notice>,
) {
    let generation = |i: usize| found[i].newest().map_or(0, |c| c.generation);
    let mut stale: Vec<(usize, u16)> =
        members.iter().copied().filter(|(_, m)| config.members[usize::from(*m)].state == RecordState::Failed).collect();
    stale.sort_by_key(|(i, m)| (std::cmp::Reverse(generation(*i)), *m));
    for (i, m) in stale {
        // A member without any configuration has never been written to as a member.
        if generation(i) == 0 {
            continue;
        }
        let mut used = false;
        for v in &mut config.volumes {
            let level = v.geometry.level;
            let data = v.groups.iter_mut().map(|g| (level, g));
            let lost = data.chain(v.meta.iter_mut().map(|g| (Level::Raid1, g)));
            for (_, g) in lost.filter(|(level, g)| !viable(*level, &g.slots, in_sync)) {
                for s in g.slots.iter_mut().filter(|s| s.member == m && s.state == SlotState::Missing) {
                    s.state = SlotState::InSync;
                    used = true;
                }
            }
        }
        if used {
            let record = &mut config.members[usize::from(m)];
            record.state = RecordState::Active;
            record.reason = FailReason::Fine;
            record.joined = config.generation + 1;
            let message = format!(
                "member {m} ({}) was taken back by force: it is at generation {}, the array at {}. What was written to it \
                 in between is lost, and blocks of different age may be mixed: check the file systems",
                found[i].device.address,
                generation(i),
                base.generation
            );
            notices.push(notice(Severity::Error, "member-forced", Some(m), None, message));
        }
    }
}

/// Whether the operator forces the assembly; shown, the exact command that would.
struct ByForce<'a> {
    force: bool,
    devices: &'a [Found],
}

impl fmt::Display for ByForce<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("raidctl array assemble --force")?;
        self.devices.iter().try_for_each(|d| write!(f, " {}", d.device.address))
    }
}

/// Refuses a volume that has lost too much, or that is degraded and dirty; marks a dirty one for resync.
fn check_volume(
    config: &mut Config,
    v: usize,
    present: &[u16],
    by_force: &ByForce<'_>,
    notices: &mut Vec<Notice>,
) -> Result<Trust, ManageError> {
    let force = by_force.force;
    let volume = &config.volumes[v];
    let (id, name, level) = (volume.id, volume.name.clone(), volume.geometry.level);
    if !volume_viable(volume) && !force {
        let lost_bitmap = volume.meta.iter().filter(|g| !viable(Level::Raid1, &g.slots, in_sync));
        let mut gone: Vec<u16> = volume
            .groups
            .iter()
            .filter(|g| !viable(level, &g.slots, in_sync))
            .chain(lost_bitmap)
            .flat_map(|g| g.slots.iter().filter(|s| !in_sync(s)).map(|s| s.member))
            .collect();
        gone.sort_unstable();
        gone.dedup();
        let list: Vec<String> = gone
            .iter()
            .map(|m| {
                let what = if present.contains(m) { "stale" } else { "missing" };
                format!("{m} ({}, {what})", config.members[usize::from(*m)].address)
            })
            .collect();
        let survives = tolerance(level, volume.geometry.width);
        return Err(refuse(
            ErrorKind::FailedPrecondition,
            format!(
                "volume '{name}' needs more members than are there: {level} survives the loss of {survives}, and these are \
                 missing or stale: {}. \
                 Nothing was changed. Bring them back and assemble again; or '{by_force}', which takes stale members as they \
                 are (what was written since they failed is lost, and files may be damaged) and leaves the volume offline \
                 if that is not enough",
                list.join(", ")
            ),
        ));
    }
    if !volume_viable(volume) {
        // Left exactly as it is, for a later assembly with more members.
        let message = format!("volume '{name}' stays offline: too few of its members are there");
        notices.push(notice(Severity::Error, "volume-failed", None, Some(id), message));
        return Ok(Trust::default());
    }
    // A bitmap knows the regions that cannot be verified: they alone answer with errors, the others are served.
    let bitmap = !volume.meta.is_empty();
    let unverifiable = |volume: &VolumeRecord, dirty: bool| {
        has_parity(level) && volume.groups.iter().any(|g| degraded(g) && (dirty || !g.synced))
    };
    let forced = force && unverifiable(volume, volume.dirty);
    if unverifiable(volume, volume.dirty && !bitmap) && !force {
        return Err(refuse(
            ErrorKind::FailedPrecondition,
            format!(
                "volume '{name}' is degraded and dirty: a member is gone, and the array was not stopped cleanly, so that \
                     parity may not match the data. Nothing was changed. Bring the member back and \
                     assemble again; or '{by_force}', which trusts parity: blocks of stripes that were being \
                     written may come back wrong, also ones that nobody was writing"
            ),
        ));
    }
    if forced {
        let message = format!(
            "volume '{name}' was degraded and dirty and was assembled by force: blocks of stripes that were being written \
             may be wrong. Check its file systems"
        );
        notices.push(notice(Severity::Error, "parity-trusted", None, Some(id), message));
    }
    let volume = &mut config.volumes[v];
    let unclean = volume.dirty && bitmap && !forced;
    let dirty = volume.dirty && volume.policy == Policy::Resync;
    volume.dirty = false;
    for g in &mut volume.groups {
        if has_parity(level) && degraded(g) {
            // Here only by force, or in sync: what is left must be trusted, or nothing of it could be read.
            g.synced = true;
        } else if dirty && tolerance(level, volume.geometry.width) > 0 {
            g.synced = false;
        }
    }
    if dirty && volume.groups.iter().any(|g| !g.synced) {
        let message = format!("volume '{name}' was not stopped cleanly; its redundancy is being made to match again");
        notices.push(notice(Severity::Warning, "resync-needed", None, Some(id), message));
    }
    Ok(Trust { unclean, stale: false })
}
