//! What a seed decides: the array, the engines' limits, the workload and the faults.

use raid_core::geometry::{Geometry, Level};
use raid_core::manager::Policy;

use crate::rng::{Rng, mix};

/// Which machinery stands above the engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Campaign {
    /// A small manager of the simulator's own.
    Engine,
    /// The real `Manager`, with creation, assembly and crashes.
    Full,
    /// Small arrays under the real `Manager`, and a cut of the power at every event.
    Cuts,
}

impl Campaign {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Campaign::Engine => "engine",
            Campaign::Full => "full",
            Campaign::Cuts => "cuts",
        }
    }
}

/// What is written in a case of the cuts campaign.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Workload {
    /// The volume is full; parts of it are written again.
    InPlace,
    /// The volume is empty and is filled from its beginning.
    Append,
    /// Half of it is full; writes, zeroing, reads and comparisons of any size go anywhere.
    Mixed,
}

impl Workload {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Workload::InPlace => "in place",
            Workload::Append => "append",
            Workload::Mixed => "mixed",
        }
    }
}

/// What a case of the cuts campaign has beside the others.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// What is written.
    pub workload: Workload,
    /// Members that an operator fails before the load.
    pub down: u16,
    /// After so many requests one more member fails.
    pub dies: Option<u32>,
    /// Members that have failed are there again after a cut, with what they held then.
    pub returns: bool,
    /// A spare is at hand, so that the cut may come in the middle of a rebuild.
    pub spare: bool,
    /// Requests that come while the array recovers.
    pub busy: u32,
    /// Nanoseconds until the manager tries to clear a dirty mark.
    pub clean_after: u64,
}

/// What may go wrong in one round of a case. Between rounds everything comes to rest and is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// Nothing.
    Calm,
    /// Blocks that cannot be read, never more in a row than the level survives.
    Media,
    /// Members that fail, never more at a time than the level survives; replacements are rebuilt.
    Members,
    /// Anything, as much as comes: errors are fine, wrong data is not.
    Havoc,
}

/// Limits on what a case may be, from the command line.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// Only this level.
    pub level: Option<Level>,
    /// Only this campaign.
    pub campaign: Option<Campaign>,
    /// Only this consistency policy; only in the cuts campaign.
    pub policy: Option<Policy>,
}

/// One case.
#[derive(Clone, Debug)]
pub struct Case {
    /// Decides everything.
    pub seed: u64,
    /// Who manages.
    pub campaign: Campaign,
    /// Level, width, chunk, extent and shards.
    pub geometry: Geometry,
    /// Groups of the volume.
    pub groups: u32,
    /// Members beyond the width, over which groups rotate.
    pub extra: u16,
    /// Replacements that may be used up.
    pub spares: u32,
    /// Reactors: engines that share the shards.
    pub lanes: usize,
    /// Requests, stripes and I/Os that an engine holds.
    pub slabs: (u32, u32, u32),
    /// Scratch memory, in multiples of the least that works.
    pub scratch: u64,
    /// The volume's consistency policy.
    pub policy: Policy,
    /// The volume starts unsynced, with copies that differ and parity that is wrong.
    pub unsynced: bool,
    /// Drives have a volatile cache.
    pub cache: bool,
    /// Requests of each round.
    pub requests: u32,
    /// The most requests in flight.
    pub depth: usize,
    /// The most requests of a batch.
    pub batch: u64,
    /// The longest request in bytes.
    pub longest: u64,
    /// Percent of the volume that most requests go to.
    pub hot: u64,
    /// The rounds.
    pub rounds: Vec<Round>,
    /// Only in the cuts campaign.
    pub plan: Option<Plan>,
}

const LEVELS: [Level; 5] = [Level::Raid0, Level::Raid1, Level::Raid10, Level::Raid5, Level::Raid6];

/// Every legal combination of level, width 2 to 10 and chunk 4 KiB to 1 MiB.
pub fn matrix(level: Option<Level>) -> Vec<(Level, u16, u32)> {
    let mut cells = Vec::new();
    for l in LEVELS.into_iter().filter(|l| level.is_none_or(|only| only == *l)) {
        for width in 2..=10 {
            for shift in 12..=20 {
                let g = Geometry { level: l, width, chunk: 1 << shift, extent: 1 << 20, shards: 1 };
                if g.validate().is_ok() {
                    cells.push((l, width, 1 << shift));
                }
            }
        }
    }
    cells
}

/// Levels and widths of the cuts campaign. What is most at risk comes most often.
fn small_cells(level: Option<Level>) -> Vec<(Level, u16)> {
    let all = [
        (Level::Raid5, 3),
        (Level::Raid6, 4),
        (Level::Raid1, 2),
        (Level::Raid5, 4),
        (Level::Raid6, 5),
        (Level::Raid10, 4),
        (Level::Raid5, 3),
        (Level::Raid1, 3),
        (Level::Raid5, 5),
        (Level::Raid6, 4),
        (Level::Raid10, 6),
        (Level::Raid0, 2),
    ];
    all.into_iter().filter(|(l, _)| level.is_none_or(|only| only == *l)).collect()
}

fn survives(geometry: &Geometry) -> usize {
    match geometry.level {
        Level::Raid0 => 0,
        Level::Raid6 => 2,
        Level::Raid1 => usize::from(geometry.width) - 1,
        Level::Raid5 | Level::Raid10 => 1,
    }
}

impl Case {
    /// The case of a seed. Seeds in a row go through the whole matrix.
    pub fn new(seed: u64, limits: Limits) -> Case {
        let cuts = mix(seed ^ 0xc075).is_multiple_of(3);
        if limits.campaign.map_or(cuts, |c| c == Campaign::Cuts) {
            return Case::cuts(seed, limits);
        }
        let cells = matrix(limits.level);
        let (level, width, chunk) = cells[(seed % cells.len() as u64) as usize];
        let mut rng = Rng::new(mix(seed) ^ 0xca5e);
        let full = rng.percent(35);
        let campaign = limits.campaign.unwrap_or(if full { Campaign::Full } else { Campaign::Engine });
        let full = campaign == Campaign::Full;
        // Extents are small so that whole volumes can be compared, and cover several bands where chunks are small.
        let stripes: u64 = 1 << rng.range(0, 5);
        let least: u64 = if full { 1 << 20 } else { 8192 };
        let extent = (u64::from(chunk) * stripes).clamp(least, 4 << 20).max(u64::from(chunk)).next_power_of_two();
        let geometry = Geometry { level, width, chunk, extent, shards: rng.pick(&[1, 2, 4, 16]) };
        let budget = (24 << 20) / geometry.group_bytes().max(1);
        let groups = rng.range(1, 4).min(budget.max(1)) as u32;
        let havoc = rng.percent(25);
        let fragile = level == Level::Raid0;
        let rounds = (0..rng.range(1, 4)).map(|_| match rng.below(4) {
            _ if havoc => Round::Havoc,
            0 => Round::Calm,
            _ if fragile => Round::Calm,
            1 => Round::Media,
            _ => Round::Members,
        });
        let rounds: Vec<Round> = rounds.collect();
        let small = rng.percent(30);
        let slabs = if small {
            (rng.range(2, 12) as u32, rng.range(1, 6) as u32, rng.range(4, 24) as u32)
        } else {
            (rng.range(32, 256) as u32, rng.range(16, 128) as u32, rng.range(64, 512) as u32)
        };
        let stripe = geometry.stripe_bytes();
        let longest = rng.pick(&[8192, 65536, stripe, 2 * stripe, 4 * stripe, 1 << 20]).clamp(4096, 2 << 20);
        Case {
            seed,
            campaign,
            geometry,
            groups,
            extra: rng.range(0, 2) as u16,
            spares: rng.range(1, 4) as u32,
            lanes: rng.pick(&[1, 2, 2, 3]),
            slabs,
            scratch: rng.pick(&[1, 1, 2, 8]),
            policy: match rng.percent(50) {
                // The simulator's own manager has no bitmap.
                true if full && level != Level::Raid0 && seed.is_multiple_of(2) => Policy::Bitmap,
                true => Policy::Resync,
                false => Policy::None,
            },
            unsynced: !full && rng.percent(20),
            cache: rng.percent(40),
            requests: rng.range(40, 240) as u32,
            depth: rng.pick(&[1, 4, 16, 32, 64]),
            batch: rng.pick(&[1, 4, 16]),
            longest,
            hot: rng.pick(&[100, 30, 5]),
            rounds,
            plan: None,
        }
    }

    /// A small case: few stripes and few requests, because everything in it is done thousands of times.
    fn cuts(seed: u64, limits: Limits) -> Case {
        let mut rng = Rng::new(mix(seed) ^ 0xc075);
        let cells = small_cells(limits.level);
        let (level, width) = cells[(seed % cells.len() as u64) as usize];
        let chunk = rng.pick(&[4096, 4096, 8192, 8192, 16384]);
        let stripes = rng.pick(&[2, 4, 4, 8]);
        let extent = (u64::from(chunk) * stripes).max(16 << 10);
        let geometry = Geometry { level, width, chunk, extent, shards: rng.pick(&[1, 2, 4]) };
        let most = ((160 << 10) / geometry.group_bytes()).clamp(1, 3);
        let groups = rng.range(1, most) as u32;
        let stripe = geometry.stripe_bytes();
        let policy = limits.policy.unwrap_or(rng.pick(&[Policy::None, Policy::Resync, Policy::Bitmap]));
        let policy = if level == Level::Raid0 { Policy::None } else { policy };
        let survives = survives(&geometry) as u64;
        let requests = rng.range(4, 20) as u32;
        let down = if rng.percent(35) { rng.range(0, survives) as u16 } else { 0 };
        let dies = (u64::from(down) < survives && rng.percent(25)).then(|| rng.below(u64::from(requests)) as u32);
        let plan = Plan {
            workload: rng.pick(&[Workload::InPlace, Workload::Append, Workload::Mixed]),
            down,
            dies,
            returns: rng.percent(60),
            spare: rng.percent(15),
            busy: if rng.percent(40) { rng.range(1, 6) as u32 } else { 0 },
            clean_after: rng.range(100_000, 3_000_000),
        };
        Case {
            seed,
            campaign: Campaign::Cuts,
            geometry,
            groups,
            extra: rng.below(2) as u16,
            spares: 0,
            lanes: rng.range(1, 3) as usize,
            slabs: (rng.range(6, 24) as u32, rng.range(3, 12) as u32, rng.range(12, 48) as u32),
            scratch: rng.range(1, 2),
            policy,
            unsynced: false,
            cache: rng.percent(85),
            requests,
            depth: rng.pick(&[1, 2, 4, 8]),
            batch: rng.pick(&[1, 4]),
            longest: rng.pick(&[4096, 8192, stripe, 2 * stripe]).clamp(4096, 64 << 10),
            hot: rng.pick(&[100, 30]),
            rounds: vec![Round::Calm],
            plan: Some(plan),
        }
    }

    /// Lost members that the volume survives, whichever they are.
    pub fn survives(&self) -> usize {
        survives(&self.geometry)
    }

    /// Writes need a durable dirty mark.
    pub fn track_dirty(&self) -> bool {
        self.policy != Policy::None
    }

    /// The volume's size in bytes.
    pub fn volume_bytes(&self) -> u64 {
        self.geometry.group_bytes() * u64::from(self.groups)
    }

    /// Errors are fine in some round.
    pub fn lossy(&self) -> bool {
        self.rounds.contains(&Round::Havoc)
    }
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let g = &self.geometry;
        write!(
            f,
            "seed {}: {:?}, {} width {} chunk {}K extent {}K, {} groups on {} members, {} lanes, {} shards, rounds {:?}",
            self.seed,
            self.campaign,
            g.level,
            g.width,
            g.chunk >> 10,
            g.extent >> 10,
            self.groups,
            g.width + self.extra,
            self.lanes,
            g.shards,
            self.rounds
        )?;
        if let Some(plan) = &self.plan {
            write!(f, ", policy {:?}, {plan:?}", self.policy)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_in_a_row_cover_the_whole_matrix() {
        let cells = matrix(None);
        assert_eq!(cells.len(), (9 + 9 + 4 + 8 + 7) * 9);
        for (seed, cell) in cells.iter().enumerate() {
            let limits = Limits { campaign: Some(Campaign::Engine), ..Limits::default() };
            let case = Case::new(seed as u64, limits);
            let g = case.geometry;
            assert_eq!((g.level, g.width, g.chunk), *cell);
            g.validate().expect("a legal geometry");
            assert!(!case.rounds.is_empty() && case.groups > 0);
        }
    }
}
