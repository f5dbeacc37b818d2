//! What a cut of the power may leave of the writes that were not durable: all subsets of their sectors when there are few,
//! and otherwise none, all, each alone, all but each, the first ones, torn ones, and random ones in random order.

use std::collections::BTreeMap;

use crate::drive::Sector;
use crate::rng::{Rng, mix};

/// So few sectors that every subset of them is tried.
const FEW_SECTORS: usize = 5;
/// So few writes that every subset of them is tried.
const FEW_WRITES: usize = 4;
/// Random choices of sectors, in random order.
const RANDOM: usize = 4;

/// A write of which something is not durable, or not even done.
pub(super) struct Unsure {
    pub drive: usize,
    /// The I/O's number.
    pub write: u64,
    /// The sectors that a cut may keep or lose, and what is in them.
    pub sectors: BTreeMap<u64, Sector>,
}

/// What is kept of one write.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Keep {
    All,
    /// The sectors with these places in [`Unsure::sectors`].
    Some(Vec<usize>),
}

/// Writes, or parts of them, that turn out to be durable, in the order in which they overwrite each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Choice(Vec<(usize, Keep)>);

/// Where sectors come to lie, and whose they are.
pub(super) type Image<'a> = BTreeMap<(usize, u64), (u64, &'a Sector)>;

impl Choice {
    fn whole(writes: impl Iterator<Item = usize>) -> Choice {
        Choice(writes.map(|w| (w, Keep::All)).collect())
    }

    /// The sectors that it leaves on the drives, over what was durable.
    pub(super) fn image<'a>(&self, unsure: &'a [Unsure]) -> Image<'a> {
        let mut image = Image::new();
        for (write, keep) in &self.0 {
            let Unsure { drive, write, sectors } = &unsure[*write];
            for (at, (sector, bytes)) in sectors.iter().enumerate() {
                if *keep == Keep::All || matches!(keep, Keep::Some(some) if some.contains(&at)) {
                    image.insert((*drive, *sector), (*write, bytes));
                }
            }
        }
        image
    }
}

/// A number that tells images over the same durable contents apart.
pub(super) fn fingerprint(image: &Image<'_>) -> u64 {
    image.iter().fold(0, |sum, ((drive, sector), (write, _))| {
        sum ^ mix(mix(*write) ^ sector << 8 ^ (*drive as u64) << 56).rotate_left(1)
    })
}

/// The choices at a cut, at most `limit` of them; none and all come first.
pub(super) fn choices(unsure: &[Unsure], limit: usize, rng: &mut Rng) -> Vec<Choice> {
    let n = unsure.len();
    let places: Vec<(usize, usize)> =
        unsure.iter().enumerate().flat_map(|(w, u)| (0..u.sectors.len()).map(move |s| (w, s))).collect();
    let mut found = vec![Choice::default(), Choice::whole(0..n)];
    if places.len() <= FEW_SECTORS {
        for bits in 1..(1u32 << places.len()) - 1 {
            let kept = |(i, _): &(usize, &(usize, usize))| bits & (1 << i) != 0;
            let kept = places.iter().enumerate().filter(kept);
            found.push(Choice(kept.map(|(_, (w, s))| (*w, Keep::Some(vec![*s]))).collect()));
        }
        return found;
    }
    if n <= FEW_WRITES {
        for bits in 1..(1u32 << n) - 1 {
            found.push(Choice::whole((0..n).filter(|w| bits & (1 << w) != 0)));
        }
    } else {
        for one in 0..n {
            found.push(Choice::whole(one..one + 1));
            found.push(Choice::whole((0..n).filter(|w| *w != one)));
            found.push(Choice::whole(0..one));
        }
    }
    // The newest writes are the ones that nobody was promised anything of.
    for (torn, write) in unsure.iter().enumerate().skip(n.saturating_sub(FEW_WRITES)) {
        let sectors = write.sectors.len() as u64;
        let some = |rng: &mut Rng| Keep::Some((0..sectors as usize).filter(|_| rng.percent(50)).collect());
        let first = Keep::Some((0..rng.below(sectors + 1) as usize).collect());
        let others = (0..n).filter(|w| *w != torn).map(|w| (w, Keep::All));
        found.push(Choice(others.chain([(torn, first)]).collect()));
        found.push(Choice(vec![(torn, some(rng))]));
    }
    for _ in 0..RANDOM {
        let mut order: Vec<usize> = (0..n).collect();
        rng.shuffle(&mut order);
        let mut choice = Vec::new();
        for write in order {
            match rng.below(4) {
                0 => {}
                1 => choice.push((write, Keep::All)),
                _ => {
                    let all = 0..unsure[write].sectors.len();
                    choice.push((write, Keep::Some(all.filter(|_| rng.percent(50)).collect())));
                }
            }
        }
        found.push(Choice(choice));
    }
    if found.len() > limit {
        rng.shuffle(&mut found[2..]);
        found.truncate(limit.max(2));
    }
    found
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::rc::Rc;

    use super::*;

    fn unsure(writes: &[(usize, std::ops::Range<u64>)]) -> Vec<Unsure> {
        let sectors = |(write, (drive, range)): (usize, &(usize, std::ops::Range<u64>))| Unsure {
            drive: *drive,
            write: write as u64,
            sectors: range.clone().map(|s| (s, Rc::new([write as u8; 512]))).collect(),
        };
        writes.iter().enumerate().map(sectors).collect()
    }

    fn images(unsure: &[Unsure], limit: usize) -> BTreeSet<Vec<(usize, u64, u64)>> {
        let choices = choices(unsure, limit, &mut Rng::new(5));
        let flat = |c: &Choice| c.image(unsure).iter().map(|((d, s), (w, _))| (*d, *s, *w)).collect();
        choices.iter().map(flat).collect()
    }

    #[test]
    fn few_sectors_give_every_subset() {
        let unsure = unsure(&[(0, 0..2), (1, 7..8), (2, 9..11)]);
        assert_eq!(images(&unsure, 1000).len(), 1 << 5);
        assert_eq!(choices(&[], 10, &mut Rng::new(1)).len(), 2, "without anything to lose, all and none are the same");
    }

    #[test]
    fn few_writes_give_every_subset_and_torn_ones() {
        let unsure = unsure(&[(0, 0..8), (1, 0..8), (2, 0..8)]);
        let images = images(&unsure, 1000);
        for bits in 0..8u64 {
            let of = |w: u64| (0..8).filter(move |_| bits & (1 << w) != 0).map(move |s| (w as usize, s, w));
            let whole: Vec<_> = (0..3).flat_map(of).collect();
            assert!(images.contains(&whole), "subset {bits:b}");
        }
        assert!(images.iter().any(|i| i.len() % 8 != 0), "a torn write");
    }

    #[test]
    fn of_many_writes_each_is_kept_alone_and_lost_alone_and_the_order_of_two_may_change() {
        let mut writes: Vec<(usize, std::ops::Range<u64>)> = (0..7).map(|w| (w, 0..8)).collect();
        writes.push((0, 0..8));
        let unsure = unsure(&writes);
        let images = images(&unsure, 1000);
        let whole = |kept: &dyn Fn(usize) -> bool| -> Vec<(usize, u64, u64)> {
            let mut image = BTreeMap::new();
            for (w, (drive, range)) in writes.iter().enumerate().filter(|(w, _)| kept(*w)) {
                image.extend(range.clone().map(|s| ((*drive, s), w as u64)));
            }
            image.into_iter().map(|((d, s), w)| (d, s, w)).collect()
        };
        for one in 0..8 {
            assert!(images.contains(&whole(&|w| w == one)), "{one} alone");
            assert!(images.contains(&whole(&|w| w != one)), "all but {one}");
            assert!(images.contains(&whole(&|w| w < one)), "the first {one}");
        }
        let shuffled = (0..50).any(|seed| {
            let choices = choices(&unsure, 1000, &mut Rng::new(seed));
            choices.iter().any(|c| {
                let at = |w| c.0.iter().position(|(i, k)| *i == w && *k == Keep::All);
                matches!((at(0), at(7)), (Some(a), Some(b)) if b < a)
            })
        });
        assert!(shuffled, "an older write over a newer one");
        assert_eq!(choices(&unsure, 9, &mut Rng::new(1)).len(), 9);
    }
}
