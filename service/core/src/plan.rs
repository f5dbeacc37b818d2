//! Which blocks of a row must be read before it can be written, or given back.
//!
//! Everything here is a pure function of sets of columns: bit `d` for data column `d`, bit D for P, bit D+1 for Q. One
//! plan holds for any run of rows with the same sets.

use crate::geometry::Geometry;

/// What can be done with the columns of a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeView {
    /// Columns that can be read.
    pub readable: u32,
    /// Columns that writes go to.
    pub writable: u32,
    /// Parity matches data, so that a column can be computed from the others.
    pub recoverable: bool,
}

/// The data columns that a write touches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteMask {
    /// Columns whose whole new block is at hand.
    pub full: u32,
    /// Columns whose new block is made from the old one.
    pub partial: u32,
}

/// How the parity of a row is brought up to date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// From new data alone; nothing is read. A level without parity that reads nothing counts as this too.
    FullStripe,
    /// From old parity, old data and new data.
    ReadModifyWrite,
    /// From new data and the data that stays.
    Reconstruct,
}

/// What to read, and what to compute from it before anything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// How parity is made.
    pub path: Path,
    /// Columns whose old block is read.
    pub read: u32,
    /// Columns whose old block is computed from those that were read.
    pub recover: u32,
}

/// Why there is no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Impossible {
    /// An old block is needed that can be neither read nor computed.
    Lost,
    /// The new block has no place: more columns are missing than the level can do without.
    NoPlace,
}

/// The set of columns `0..n`.
pub const fn first(n: u16) -> u32 {
    if n >= 32 { u32::MAX } else { (1 << n) - 1 }
}

/// Plans a write of the columns in `mask`. Of the paths that are possible it takes the one with fewer reads, and
/// reconstruct-write when they are equal, because that makes parity right whatever it was before.
pub fn plan(geometry: &Geometry, view: &StripeView, mask: &WriteMask) -> Result<Plan, Impossible> {
    let data = first(geometry.data_columns());
    let parity = first(geometry.data_columns() + geometry.parities()) & !data;
    let touched = mask.full | mask.partial;
    if parity == 0 {
        if touched & !view.writable != 0 {
            return Err(Impossible::NoPlace);
        }
    } else if ((data | parity) & !view.writable).count_ones() > parity.count_ones() {
        return Err(Impossible::NoPlace);
    }

    let live = parity & view.writable;
    if live == 0 {
        let (read, recover) = fetch(geometry, view, mask.partial).ok_or(Impossible::Lost)?;
        let path = if read == 0 { Path::FullStripe } else { Path::ReadModifyWrite };
        return Ok(Plan { path, read, recover });
    }
    let reconstruct = fetch(geometry, view, (data & !touched) | mask.partial);
    // Old parity that cannot be read would have to be computed from all data: that is a reconstruct-write.
    let modify = if live & !view.readable == 0 { fetch(geometry, view, touched | live) } else { None };
    match (reconstruct, modify) {
        (None, None) => Err(Impossible::Lost),
        (Some((read, recover)), other) if other.is_none_or(|(m, _)| read.count_ones() <= m.count_ones()) => {
            let path = if read == 0 { Path::FullStripe } else { Path::Reconstruct };
            Ok(Plan { path, read, recover })
        }
        (_, Some((read, recover))) => Ok(Plan { path: Path::ReadModifyWrite, read, recover }),
        (Some(_), None) => unreachable!("a lone reconstruct-write was taken above"),
    }
}

/// Plans a read of the columns in `want`, parity among them if a rebuild wants it: what to read, and what to compute.
pub fn plan_read(geometry: &Geometry, view: &StripeView, want: u32) -> Result<Plan, Impossible> {
    let (read, recover) = fetch(geometry, view, want).ok_or(Impossible::Lost)?;
    Ok(Plan { path: Path::Reconstruct, read, recover })
}

/// The columns to read so that all of `want` are known, and those of `want` that must be computed.
fn fetch(geometry: &Geometry, view: &StripeView, want: u32) -> Option<(u32, u32)> {
    let data = first(geometry.data_columns());
    let parity = first(geometry.data_columns() + geometry.parities()) & !data;
    let lost = want & !view.readable;
    if lost == 0 {
        return Some((want, 0));
    }
    if parity == 0 {
        return None;
    }
    // One equation for each unknown data column; parities that are read anyway are used first, then P before Q.
    let mut read = (data & view.readable) | (want & view.readable);
    let unknown = (data & !view.readable).count_ones();
    if unknown > 0 && !view.recoverable {
        return None;
    }
    let mut more = parity & view.readable & !read;
    while (read & parity).count_ones() < unknown {
        if more == 0 {
            return None;
        }
        read |= more & more.wrapping_neg();
        more &= more - 1;
    }
    Some((read, lost))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Level;
    use crate::gf;

    fn geometry(level: Level, width: u16) -> Geometry {
        Geometry { level, width, chunk: 65536, extent: 1 << 20, shards: 1 }
    }

    /// Whether `vector` is a combination of `rows`, by elimination over the field.
    fn spanned(mut rows: Vec<Vec<u8>>, mut vector: Vec<u8>) -> bool {
        for column in 0..vector.len() {
            let Some(at) = rows.iter().position(|r| r[column] != 0) else {
                if vector[column] != 0 {
                    return false;
                }
                continue;
            };
            let pivot = rows.swap_remove(at);
            let reduce = |row: &mut Vec<u8>| {
                let factor = gf::div(row[column], pivot[column]);
                row.iter_mut().zip(&pivot).for_each(|(x, p)| *x ^= gf::mul(factor, *p));
            };
            rows.iter_mut().for_each(reduce);
            reduce(&mut vector);
        }
        vector.iter().all(|&x| x == 0)
    }

    /// A column as a combination of old data.
    fn functional(data: u16, column: u16) -> Vec<u8> {
        (0..data)
            .map(|d| if column < data { u8::from(d == column) } else { gf::parity_coef(column - data, d) })
            .collect()
    }

    /// What a write must know of the old data, beyond the new data.
    fn needs(data: u16, parities: u16, writable: u32, mask: &WriteMask) -> Vec<Vec<u8>> {
        let touched = mask.full | mask.partial;
        let mut needs: Vec<_> =
            (0..data).filter(|d| mask.partial & (1 << d) != 0).map(|d| functional(data, d)).collect();
        for p in (data..data + parities).filter(|p| writable & (1 << p) != 0) {
            let mut f = functional(data, p);
            (0..data).filter(|d| touched & (1 << d) != 0).for_each(|d| f[d as usize] = 0);
            needs.push(f);
        }
        needs
    }

    fn derivable(data: u16, read: u32, needs: &[Vec<u8>]) -> bool {
        let rows: Vec<_> = (0..32).filter(|c| read & (1 << c) != 0).map(|c| functional(data, c)).collect();
        needs.iter().all(|n| spanned(rows.clone(), n.clone()))
    }

    #[test]
    fn every_write_of_small_widths_is_derivable_with_the_fewest_reads() {
        let mut checked = 0;
        for (level, widths) in [(Level::Raid5, 3..=6u16), (Level::Raid6, 4..=6)] {
            for width in widths {
                let g = geometry(level, width);
                let (data, parities) = (g.data_columns(), g.parities());
                for states in 0..3u32.pow(width as u32) {
                    // Each column: good, written only (rebuilding or a bad block), or missing.
                    let (mut readable, mut writable) = (0, 0);
                    for c in 0..width {
                        let state = states / 3u32.pow(c as u32) % 3;
                        readable |= u32::from(state == 0) << c;
                        writable |= u32::from(state <= 1) << c;
                    }
                    if (first(width) & !readable).count_ones() > parities as u32 + 1 {
                        continue;
                    }
                    for touches in 1..3u32.pow(data as u32) {
                        let mut mask = WriteMask::default();
                        for d in 0..data {
                            match touches / 3u32.pow(d as u32) % 3 {
                                1 => mask.full |= 1 << d,
                                2 => mask.partial |= 1 << d,
                                _ => {}
                            }
                        }
                        check(&g, readable, writable, &mask);
                        checked += 1;
                    }
                }
            }
        }
        assert!(checked > 40_000, "only {checked}");
    }

    fn check(g: &Geometry, readable: u32, writable: u32, mask: &WriteMask) {
        let (data, parities) = (g.data_columns(), g.parities());
        let needs = needs(data, parities, writable, mask);
        let what = format!("{:?} W={} r={readable:b} w={writable:b} {mask:?}", g.level, g.width);
        let fewest = (0..=first(g.width))
            .filter(|read| read & !readable == 0 && derivable(data, *read, &needs))
            .map(u32::count_ones)
            .min();
        match plan(g, &StripeView { readable, writable, recoverable: true }, mask) {
            Ok(plan) => {
                assert_eq!(plan.read & !readable, 0, "{what}: reads what cannot be read");
                assert!(derivable(data, plan.read, &needs), "{what}: {plan:?} cannot be computed");
                assert_eq!(Some(plan.read.count_ones()), fewest, "{what}: {plan:?} is not the cheapest");
                for c in (0..32).filter(|c| plan.recover & (1 << c) != 0) {
                    assert!(gf::recover(data, plan.read, c).is_some(), "{what}: {plan:?}");
                }
            }
            Err(Impossible::NoPlace) => {
                assert!((first(g.width) & !writable).count_ones() > parities as u32, "{what}");
            }
            Err(Impossible::Lost) => assert_eq!(fewest, None, "{what}: refused"),
        }
        if let Ok(plan) = plan(g, &StripeView { readable, writable, recoverable: false }, mask) {
            assert_eq!(plan.recover & first(data), 0, "{what}: computed data from parity that may be wrong");
            assert!(derivable(data, plan.read, &needs), "{what}: {plan:?} cannot be computed");
        }
    }

    #[test]
    fn every_read_of_small_widths_is_derivable() {
        for (level, width) in [(Level::Raid5, 4u16), (Level::Raid5, 5), (Level::Raid6, 5), (Level::Raid6, 6)] {
            let g = geometry(level, width);
            let data = g.data_columns();
            for readable in 0..=first(width) {
                let view = StripeView { readable, writable: first(width), recoverable: true };
                for want in 1..=first(width) {
                    let needs: Vec<_> =
                        (0..width).filter(|c| want & (1 << c) != 0).map(|c| functional(data, c)).collect();
                    match plan_read(&g, &view, want) {
                        Ok(p) => {
                            assert_eq!(p.read & !readable, 0);
                            assert!(derivable(data, p.read, &needs));
                            assert_eq!(want & !p.read & !p.recover, 0);
                        }
                        Err(_) => assert!(!derivable(data, readable, &needs), "{level:?} {readable:b} {want:b}"),
                    }
                }
            }
        }
    }

    #[test]
    fn the_paths_of_healthy_stripes_are_those_of_the_books() {
        let all = StripeView { readable: u32::MAX, writable: u32::MAX, recoverable: true };
        let path = |level, width, full| {
            let p = plan(&geometry(level, width), &all, &WriteMask { full, partial: 0 }).expect("healthy");
            (p.path, p.read.count_ones())
        };
        assert_eq!(path(Level::Raid5, 5, 0b0001), (Path::ReadModifyWrite, 2));
        assert_eq!(path(Level::Raid5, 5, 0b0111), (Path::Reconstruct, 1));
        assert_eq!(path(Level::Raid5, 5, 0b1111), (Path::FullStripe, 0));
        assert_eq!(path(Level::Raid5, 3, 0b01), (Path::Reconstruct, 1));
        assert_eq!(path(Level::Raid6, 8, 0b00_0001), (Path::ReadModifyWrite, 3));
        assert_eq!(path(Level::Raid6, 8, 0b00_1111), (Path::Reconstruct, 2));
        assert_eq!(path(Level::Raid1, 2, 0b1), (Path::FullStripe, 0));
    }

    #[test]
    fn levels_without_parity_read_only_what_a_partial_block_needs() {
        for (level, width) in [(Level::Raid0, 4), (Level::Raid1, 3), (Level::Raid10, 4)] {
            let g = geometry(level, width);
            let all = StripeView { readable: u32::MAX, writable: u32::MAX, recoverable: true };
            let p = plan(&g, &all, &WriteMask { full: 0, partial: 1 }).expect("healthy");
            assert_eq!((p.path, p.read, p.recover), (Path::ReadModifyWrite, 1, 0));
            let gone = StripeView { readable: 0, writable: 0, recoverable: true };
            assert_eq!(plan(&g, &gone, &WriteMask { full: 1, partial: 0 }), Err(Impossible::NoPlace));
        }
    }
}
