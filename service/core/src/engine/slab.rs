//! Containers of fixed size: everything that an engine counts in is reserved once, and being full is an answer.

use std::ops::{Index, IndexMut};

/// No entry.
pub(super) const NIL: u32 = u32::MAX;

/// A fixed number of places for values, named by index.
pub(super) struct Slab<T> {
    items: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub(super) fn new(capacity: u32) -> Slab<T> {
        Slab { items: (0..capacity).map(|_| None).collect(), free: (0..capacity).rev().collect() }
    }

    /// Takes a place, if there is one.
    pub(super) fn insert(&mut self, value: T) -> Option<u32> {
        let index = self.free.pop()?;
        self.items[index as usize] = Some(value);
        Some(index)
    }

    /// Gives a place back; `None` if it was not taken.
    pub(super) fn remove(&mut self, index: u32) -> Option<T> {
        let value = self.items.get_mut(index as usize)?.take()?;
        self.free.push(index);
        Some(value)
    }

    /// The value at a place, if it is taken.
    pub(super) fn get(&self, index: u32) -> Option<&T> {
        self.items.get(index as usize)?.as_ref()
    }

    /// Places left.
    pub(super) fn room(&self) -> usize {
        self.free.len()
    }

    /// True when nothing is in it.
    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.items.len()
    }

    /// The taken places, in order of index.
    pub(super) fn indexes(&self) -> impl Iterator<Item = u32> + '_ {
        self.items.iter().enumerate().filter(|(_, v)| v.is_some()).map(|(i, _)| i as u32)
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;
    fn index(&self, index: u32) -> &T {
        self.items[index as usize].as_ref().expect("a live slab entry")
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, index: u32) -> &mut T {
        self.items[index as usize].as_mut().expect("a live slab entry")
    }
}

/// Hands out runs of consecutive units, next fit: the search goes on where the last one ended, so that a run is not
/// used again at once and the front does not fill with splinters.
pub(super) struct Runs {
    used: Vec<u64>,
    units: u32,
    taken: u32,
    next: u32,
}

impl Runs {
    pub(super) fn new(units: u32) -> Runs {
        Runs { used: vec![0; units.div_ceil(64) as usize], units, taken: 0, next: 0 }
    }

    fn is_used(&self, unit: u32) -> bool {
        self.used[unit as usize / 64] & (1 << (unit % 64)) != 0
    }

    /// Takes `count` consecutive units and returns the first.
    pub(super) fn take(&mut self, count: u32) -> Option<u32> {
        if count == 0 {
            return Some(0);
        }
        if count > self.units - self.taken {
            return None;
        }
        if self.taken == 0 {
            self.next = 0;
        }
        let start = self.find(self.next, self.units, count).or_else(|| self.find(0, self.units, count))?;
        (start..start + count).for_each(|u| self.used[u as usize / 64] |= 1 << (u % 64));
        self.taken += count;
        self.next = start + count;
        Some(start)
    }

    fn find(&self, from: u32, to: u32, count: u32) -> Option<u32> {
        let mut start = from;
        let mut unit = from;
        while unit < to {
            if unit.is_multiple_of(64) && self.used[unit as usize / 64] == u64::MAX {
                unit += 64;
                start = unit;
                continue;
            }
            if self.is_used(unit) {
                start = unit + 1;
            } else if unit + 1 - start == count {
                return Some(start);
            }
            unit += 1;
        }
        None
    }

    /// True when no unit is taken.
    pub(super) fn is_untouched(&self) -> bool {
        self.taken == 0
    }

    /// Gives units back.
    pub(super) fn give(&mut self, start: u32, count: u32) {
        (start..start + count).for_each(|u| {
            debug_assert!(self.is_used(u), "unit {u} was free already");
            self.used[u as usize / 64] &= !(1 << (u % 64));
        });
        self.taken -= count;
    }
}

/// Runs of values that actions name by [`crate::action::Slice`].
pub(super) struct Lists<T> {
    items: Vec<T>,
    runs: Runs,
}

impl<T: Copy> Lists<T> {
    pub(super) fn new(capacity: u32, fill: T) -> Lists<T> {
        Lists { items: vec![fill; capacity as usize], runs: Runs::new(capacity) }
    }

    /// Stores a list; `None` when there is no room now.
    pub(super) fn store(&mut self, list: &[T]) -> Option<crate::action::Slice> {
        let start = self.runs.take(list.len() as u32)?;
        self.items[start as usize..start as usize + list.len()].copy_from_slice(list);
        Some(crate::action::Slice { start, len: list.len() as u32 })
    }

    pub(super) fn free(&mut self, slice: crate::action::Slice) {
        self.runs.give(slice.start, slice.len);
    }

    pub(super) fn get(&self, slice: crate::action::Slice) -> &[T] {
        &self.items[slice.start as usize..(slice.start + slice.len) as usize]
    }

    pub(super) fn get_mut(&mut self, slice: crate::action::Slice) -> &mut [T] {
        &mut self.items[slice.start as usize..(slice.start + slice.len) as usize]
    }
}

/// Identifies a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) volume: crate::action::VolumeId,
    pub(super) group: u32,
    pub(super) stripe: u32,
}

impl Key {
    fn hash(self) -> usize {
        let mut x = (self.volume.0 as u64) << 40 ^ (self.group as u64) << 24 ^ self.stripe as u64;
        x = (x ^ (x >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (x >> 29) as usize
    }
}

/// The stripes in hand, by key: open addressing in a table that is at most half full.
pub(super) struct Table {
    entries: Vec<Option<(Key, u32)>>,
}

impl Table {
    pub(super) fn new(capacity: u32) -> Table {
        Table { entries: vec![None; (capacity as usize * 2).next_power_of_two().max(2)] }
    }

    fn home(&self, key: Key) -> usize {
        key.hash() & (self.entries.len() - 1)
    }

    pub(super) fn get(&self, key: Key) -> Option<u32> {
        let mut at = self.home(key);
        while let Some((k, index)) = self.entries[at] {
            if k == key {
                return Some(index);
            }
            at = (at + 1) & (self.entries.len() - 1);
        }
        None
    }

    pub(super) fn insert(&mut self, key: Key, index: u32) {
        let mut at = self.home(key);
        while self.entries[at].is_some() {
            at = (at + 1) & (self.entries.len() - 1);
        }
        self.entries[at] = Some((key, index));
    }

    /// Removes a key and closes the gap, so that no tombstones gather.
    pub(super) fn remove(&mut self, key: Key) {
        let mask = self.entries.len() - 1;
        let mut gap = self.home(key);
        while self.entries[gap].is_some_and(|(k, _)| k != key) {
            gap = (gap + 1) & mask;
        }
        self.entries[gap] = None;
        let mut at = (gap + 1) & mask;
        while let Some((k, index)) = self.entries[at] {
            // An entry may move into the gap if its home is not between the gap and itself.
            if (at.wrapping_sub(self.home(k)) & mask) >= (at.wrapping_sub(gap) & mask) {
                self.entries[gap] = Some((k, index));
                self.entries[at] = None;
                gap = at;
            }
            at = (at + 1) & mask;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::VolumeId;

    #[test]
    fn runs_never_overlap_and_all_come_back() {
        let mut runs = Runs::new(200);
        let mut held: Vec<(u32, u32)> = Vec::new();
        let mut seed = 1u64;
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let r = (seed >> 33) as u32;
            if !r.is_multiple_of(3) && held.len() < 30 {
                let count = r / 3 % 40 + 1;
                if let Some(start) = runs.take(count) {
                    assert!(start + count <= 200);
                    assert!(held.iter().all(|&(s, c)| s + c <= start || start + count <= s));
                    held.push((start, count));
                }
            } else if !held.is_empty() {
                let (s, c) = held.swap_remove(r as usize / 3 % held.len());
                runs.give(s, c);
            }
        }
        held.drain(..).for_each(|(s, c)| runs.give(s, c));
        assert_eq!(runs.take(200), Some(0), "an empty range takes one run of its whole length");
    }

    #[test]
    fn the_table_finds_what_it_holds_and_nothing_else() {
        let mut table = Table::new(64);
        let key = |i: u32| Key { volume: VolumeId(i % 3), group: i % 5, stripe: i };
        let mut held = Vec::new();
        let mut seed = 7u32;
        for i in 0..5000 {
            seed = seed.wrapping_mul(1664525).wrapping_add(1013904223);
            if held.len() < 64 && seed & 0x10000 != 0 {
                table.insert(key(i), i);
                held.push(i);
            } else if !held.is_empty() {
                let i = held.swap_remove(seed as usize % held.len());
                table.remove(key(i));
                assert_eq!(table.get(key(i)), None);
            }
            assert!(held.iter().all(|&i| table.get(key(i)) == Some(i)));
        }
    }
}
