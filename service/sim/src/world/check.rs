//! Redundancy on the drives: at rest every parity and every copy matches the data, wherever it can be read.

use raid_core::regions::Region;
use raid_core::view::SlotState;

use super::World;
use crate::drive::BLOCK;
use crate::pattern::SECTOR;

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
                        let lost = g.parities() > 0 && group.slots.iter().any(|s| s.state != SlotState::InSync);
                        if self.havoc() || self.resync_was_cancelled() || (lost && self.cut.is_some()) {
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
                    if copies.iter().any(|c| self.differ(c, &copies[0], n, row)) {
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
                let expected = parities(data.iter().flatten());
                for (p, found) in parity.iter().enumerate() {
                    if found.as_ref().is_some_and(|f| self.differ(f, &expected[p], n, row)) {
                        let name = ["P", "Q"][p];
                        return self
                            .fail(format!("group {n}, stripe {stripe}, row {row}: {name} does not match the data"));
                    }
                }
            }
        }
    }

    /// Two blocks of a row differ where they must not.
    fn differ(&self, a: &[u8], b: &[u8], group: usize, row: u64) -> bool {
        if a == b {
            return false;
        }
        let g = &self.case.geometry;
        let (stripe, row) = ((row / u64::from(g.rows())) as u32, (row % u64::from(g.rows())) as u32);
        let mut sectors = a.chunks_exact(SECTOR).zip(b.chunks_exact(SECTOR)).enumerate();
        sectors.any(|(i, (a, b))| a != b && !self.may_differ(group, stripe, row * 8 + i as u32))
    }

    /// At rest nothing is held back: no waiting member, no slot that should have been rebuilt.
    pub(super) fn check_rest(&mut self) {
        if let super::Control::Full(_) = self.control {
            self.full_check_rest();
        }
    }
}

/// P and Q of the data columns: by Horner's rule on eight bytes at a time, which shares nothing with the core's tables.
fn parities<'a>(data: impl DoubleEndedIterator<Item = &'a Vec<u8>>) -> [Vec<u8>; 2] {
    let words = BLOCK as usize / 8;
    let (mut p, mut q) = (vec![0u64; words], vec![0u64; words]);
    for column in data.rev() {
        for ((p, q), bytes) in p.iter_mut().zip(&mut q).zip(column.chunks_exact(8)) {
            let word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
            let carries = (*q >> 7) & 0x0101_0101_0101_0101;
            *q = ((*q << 1) & 0xfefe_fefe_fefe_fefe) ^ carries.wrapping_mul(0x1d) ^ word;
            *p ^= word;
        }
    }
    [p, q].map(|words| words.iter().flat_map(|w| w.to_le_bytes()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use raid_core::gf;

    #[test]
    fn parities_are_those_of_the_core() {
        let column = |c: u64| (0..BLOCK).map(|i| (crate::rng::mix(i ^ c << 32) & 0xff) as u8).collect::<Vec<u8>>();
        let data: Vec<Vec<u8>> = (0..7).map(column).collect();
        let found = parities(data.iter());
        for (p, found) in found.iter().enumerate() {
            let terms: Vec<(u8, &[u8])> =
                data.iter().enumerate().map(|(c, d)| (gf::parity_coef(p as u16, c as u16), d.as_slice())).collect();
            let mut expected = vec![0; BLOCK as usize];
            gf::combine_scalar(&mut expected, &terms, false);
            assert_eq!(*found, expected);
        }
    }
}
