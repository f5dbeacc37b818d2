//! What cuts of the power found: for each policy, level, workload and number of members that were there, how many were
//! tried, how many of them lost or changed data, and how many the assembly refused.

use std::collections::BTreeMap;

use raid_core::geometry::Level;
use raid_core::manager::Policy;

use crate::case::Workload;

/// The policies that the simulator knows, with their names.
pub const POLICIES: &[(Policy, &str)] =
    &[(Policy::None, "none"), (Policy::Resync, "resync"), (Policy::Bitmap, "bitmap")];

/// A policy's name.
pub fn policy_name(policy: Policy) -> &'static str {
    POLICIES.iter().find(|p| p.0 == policy).map_or("?", |p| p.1)
}

/// A policy by its name.
pub fn policy_by_name(name: &str) -> Option<Policy> {
    POLICIES.iter().find(|p| p.1 == name).map(|p| p.0)
}

/// Which members were there when the volume was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Situation {
    /// All.
    Whole,
    /// All during the recovery; then each in turn was lost.
    LostAfter,
    /// One was lost together with the power.
    LostWith,
    /// One had failed before.
    Down,
    /// Two were gone, however they went.
    Two,
}

const SITUATIONS: [(Situation, &str); 5] = [
    (Situation::Whole, "all there"),
    (Situation::LostAfter, "one lost after the recovery"),
    (Situation::LostWith, "one lost with the power"),
    (Situation::Down, "one down before"),
    (Situation::Two, "two down"),
];

/// A line and a column of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The policy's place in [`POLICIES`].
    policy: usize,
    level: Level,
    workload: Workload,
    situation: Situation,
}

/// A cell of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    /// Cuts that were tried.
    pub cuts: u64,
    /// After so many of them a block held what it must not hold.
    pub corrupt: u64,
    /// So many of them the assembly refused.
    pub refused: u64,
    /// After so many of them some block answered an error, because nobody could verify it.
    pub unreadable: u64,
}

/// The table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally(BTreeMap<Key, Cell>);

impl Tally {
    /// The cell for a case's cuts in a situation.
    pub fn cell(&mut self, policy: Policy, level: Level, workload: Workload, situation: Situation) -> &mut Cell {
        let policy = POLICIES.iter().position(|p| p.0 == policy).unwrap_or(POLICIES.len());
        self.0.entry(Key { policy, level, workload, situation }).or_default()
    }

    /// Adds another table.
    pub fn add(&mut self, other: &Tally) {
        for (key, cell) in &other.0 {
            let sum = self.0.entry(*key).or_default();
            sum.cuts += cell.cuts;
            sum.corrupt += cell.corrupt;
            sum.refused += cell.refused;
            sum.unreadable += cell.unreadable;
        }
    }

    /// The sum of the cells of a policy, of some levels in some situations.
    pub fn sum(&self, policy: Policy, mut wanted: impl FnMut(Level, Situation) -> bool) -> Cell {
        let mut sum = Cell::default();
        for (key, cell) in &self.0 {
            if POLICIES.get(key.policy).is_some_and(|p| p.0 == policy) && wanted(key.level, key.situation) {
                sum.cuts += cell.cuts;
                sum.corrupt += cell.corrupt;
                sum.refused += cell.refused;
                sum.unreadable += cell.unreadable;
            }
        }
        sum
    }

    /// The table as text, for people; with `markdown`, as a table of Markdown.
    pub fn render(&self, markdown: bool) -> String {
        let mut lines: Vec<Vec<String>> = Vec::new();
        let mut head = vec!["policy".to_string(), "level".into(), "workload".into()];
        head.extend(SITUATIONS.iter().map(|s| s.1.to_string()));
        lines.push(head);
        let mut rows: Vec<(usize, Level, Workload)> = self.0.keys().map(|k| (k.policy, k.level, k.workload)).collect();
        rows.dedup();
        for (policy, level, workload) in rows {
            let name = POLICIES.get(policy).map_or("?", |p| p.1);
            let mut line = vec![name.to_string(), level.to_string(), workload.name().to_string()];
            for (situation, _) in SITUATIONS {
                let cell = self.0.get(&Key { policy, level, workload, situation });
                line.push(cell.map_or("-".to_string(), |c| {
                    let some = |n: u64, what: &str| if n > 0 { format!(", {n} {what}") } else { String::new() };
                    let (refused, errors) = (some(c.refused, "refused"), some(c.unreadable, "with errors"));
                    format!("{} corrupt of {}{refused}{errors}", c.corrupt, c.cuts)
                }));
            }
            lines.push(line);
        }
        let widths: Vec<usize> =
            (0..lines[0].len()).map(|c| lines.iter().map(|l| l[c].len()).max().unwrap_or(0)).collect();
        let mut text = String::new();
        for (n, line) in lines.iter().enumerate() {
            let cells: Vec<String> = line.iter().zip(&widths).map(|(c, w)| format!("{c:w$}")).collect();
            if markdown {
                text += &format!("| {} |\n", cells.join(" | "));
                if n == 0 {
                    let rule: Vec<String> = widths.iter().map(|w| "-".repeat(*w)).collect();
                    text += &format!("| {} |\n", rule.join(" | "));
                }
            } else {
                text += cells.join("  ").trim_end();
                text.push('\n');
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_add_up_and_have_a_line_for_each_policy_level_and_workload() {
        let mut a = Tally::default();
        *a.cell(Policy::None, Level::Raid5, Workload::Append, Situation::LostAfter) =
            Cell { cuts: 10, corrupt: 3, refused: 0, unreadable: 0 };
        let mut b = a.clone();
        b.cell(Policy::Resync, Level::Raid5, Workload::Append, Situation::Down).refused += 2;
        a.add(&b);
        assert_eq!(a.sum(Policy::None, |_, _| true), Cell { cuts: 20, corrupt: 6, refused: 0, unreadable: 0 });
        assert_eq!(a.sum(Policy::None, |_, s| s == Situation::Whole), Cell::default());
        let text = a.render(true);
        assert_eq!(text.lines().count(), 4, "{text}");
        assert!(text.contains("6 corrupt of 20") && text.contains("2 refused"), "{text}");
        assert!(text.lines().all(|l| l.matches('|').count() == 9), "{text}");
    }
}
