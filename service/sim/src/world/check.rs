//! Redundancy on the drives: at rest every parity and every copy matches the data, wherever it can be read.

use raid_core::gf;
use raid_core::regions::Region;
use raid_core::view::SlotState;

use super::World;
use crate::drive::BLOCK;

impl World {
    /// Compares parity and copies with the data, row by row, on the drives themselves.
    pub(super) fn check_redundancy(&mut self) {
        let view = self.view.clone();
        let Some(volume) = view.volume(self.volume).filter(|v| v.online) else { return };
        let g = volume.geometry;
        let rows = g.extent / BLOCK;
        for (n, group) in volume.groups.iter().enumerate() {
            if !group.synced {
                if self.havoc() || self.resync_was_cancelled() {
                    continue;
                }
                return self.fail(format!("group {n} is still not synced at the end"));
            }
            for row in 0..rows {
                let stripe = (row / u64::from(g.rows())) as u32;
                match volume.region(n as u32, stripe) {
                    // What its members hold is nobody's data.
                    Region::Unwritten => continue,
                    Region::NeedSync | Region::Syncing => {
                        if self.havoc() || self.resync_was_cancelled() {
                            continue;
                        }
                        return self.fail(format!("group {n}, stripe {stripe} still needs a resync at the end"));
                    }
                    Region::Clean | Region::Dirty | Region::Closing => {}
                }
                let block = |slot: u16| -> Option<Vec<u8>> {
                    let s = group.slots[usize::from(slot)];
                    let drive = &self.drives[self.devices[usize::from(s.member.0)]?];
                    let at = s.offset + row * BLOCK;
                    if s.state != SlotState::InSync || drive.faults.bad.contains_key(&(at / BLOCK)) {
                        return None;
                    }
                    let mut bytes = vec![0; BLOCK as usize];
                    drive.read(at, &mut bytes);
                    Some(bytes)
                };
                let mut columns: Vec<Option<Vec<u8>>> = Vec::new();
                for column in 0..g.columns() {
                    let copies: Vec<Vec<u8>> = g.slots(stripe, column).iter().filter_map(block).collect();
                    if copies.iter().any(|c| *c != copies[0]) {
                        return self
                            .fail(format!("group {n}, stripe {stripe}, row {row}: copies of column {column} differ"));
                    }
                    columns.push(copies.into_iter().next());
                }
                self.stats.rows += 1;
                let (data, parity) = columns.split_at(usize::from(g.data_columns()));
                if data.iter().any(Option::is_none) {
                    // A missing column was read through parity by the sweep.
                    continue;
                }
                for (p, found) in parity.iter().enumerate() {
                    let terms: Vec<(u8, &[u8])> = data
                        .iter()
                        .flatten()
                        .enumerate()
                        .map(|(c, d)| (gf::parity_coef(p as u16, c as u16), d.as_slice()))
                        .collect();
                    let mut expected = vec![0; BLOCK as usize];
                    gf::combine_scalar(&mut expected, &terms, false);
                    if found.as_ref().is_some_and(|f| *f != expected) {
                        let name = ["P", "Q"][p];
                        return self
                            .fail(format!("group {n}, stripe {stripe}, row {row}: {name} does not match the data"));
                    }
                }
            }
        }
    }

    /// At rest nothing is held back: no waiting member, no slot that should have been rebuilt.
    pub(super) fn check_rest(&mut self) {
        if let super::Control::Full(_) = self.control {
            self.full_check_rest();
        }
    }
}
