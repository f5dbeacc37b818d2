//! The model: what each 512-byte sector of a volume may hold.
//!
//! Requests that overlap in time have no order, so a sector has a *set* of possible values. A write adds its value when it
//! begins. When it ends well, the values that had ended before it began are impossible. A write that was answered with an
//! error, or never, leaves old and new possible. A read that found one value of several settles the sector: the next read
//! must find the same, because nothing but a write may change what a volume holds.

use std::collections::{BTreeMap, BTreeSet};

use crate::pattern::{self, SECTOR, Value, ZEROS};

/// Names a request towards the model.
pub type OpId = u64;

#[derive(Clone, Copy, Debug)]
struct Entry {
    value: Value,
    op: OpId,
    began: u64,
    done: Option<u64>,
}

/// A value that a power cut may bring back. `began` is 0 if it cannot have replaced anything for sure.
#[derive(Clone, Copy, Debug)]
struct Past {
    value: Value,
    began: u64,
    done: u64,
}

#[derive(Clone, Debug)]
struct Write {
    from: u64,
    to: u64,
    value: Value,
    began: u64,
}

#[derive(Clone, Debug)]
struct Read {
    began: u64,
    from: u64,
    to: u64,
    /// The sectors with one possible value at the read's beginning, and their value; `u32::MAX` for the others.
    single: Vec<Value>,
    several: BTreeMap<u64, Vec<Value>>,
    /// Writes that began later.
    later: Vec<(u64, u64, Value)>,
}

/// See the module's head.
#[derive(Clone, Debug)]
pub struct Oracle {
    time: u64,
    /// Changes whenever something that was possible may have become impossible.
    strictness: u64,
    settled: Vec<Value>,
    open: BTreeMap<u64, Vec<Entry>>,
    writes: BTreeMap<OpId, Write>,
    reads: BTreeMap<OpId, Read>,
    /// What a power cut may bring back, of the sectors that were written since they were last known to be durable.
    past: BTreeMap<u64, Vec<Past>>,
    volatile: bool,
}

const OPEN: Value = Value::MAX;

impl Oracle {
    /// A volume of `sectors` sectors of zeros. With `volatile`, what a power cut may bring back is kept too.
    pub fn new(sectors: u64, volatile: bool) -> Oracle {
        Oracle {
            time: 1,
            strictness: 0,
            settled: vec![ZEROS; sectors as usize],
            open: BTreeMap::new(),
            writes: BTreeMap::new(),
            reads: BTreeMap::new(),
            past: BTreeMap::new(),
            volatile,
        }
    }

    /// The volume's size in sectors.
    pub fn sectors(&self) -> u64 {
        self.settled.len() as u64
    }

    /// What a sector holds from the start: one of these values.
    pub fn set_initial(&mut self, sector: u64, values: std::ops::RangeInclusive<Value>) {
        let entry = |value| Entry { value, op: 0, began: 0, done: Some(0) };
        self.settled[sector as usize] = OPEN;
        self.open.insert(sector, values.map(entry).collect());
        self.collapse(sector);
    }

    /// The one value that a sector can have now, if there is but one.
    pub fn certain(&self, sector: u64) -> Option<Value> {
        let value = self.settled[sector as usize];
        (value != OPEN).then_some(value)
    }

    /// Two equal numbers: in between nothing that was possible has become impossible.
    pub fn strictness(&self) -> u64 {
        self.strictness
    }

    /// The sectors that may hold one of several values.
    pub fn uncertain(&self) -> impl Iterator<Item = u64> {
        self.open.keys().copied()
    }

    /// True if a write of this value has begun and not ended.
    pub fn in_flight(&self, value: Value) -> bool {
        self.writes.values().any(|w| w.value == value && value != ZEROS)
    }

    /// The moment, for [`Oracle::flushed`].
    pub fn now(&mut self) -> u64 {
        self.time += 1;
        self.time
    }

    /// A write of sectors `from..to` begins.
    pub fn begin_write(&mut self, op: OpId, from: u64, to: u64, value: Value) {
        let began = self.now();
        for sector in from..to {
            let settled = &mut self.settled[sector as usize];
            let entries = self.open.entry(sector).or_default();
            if *settled != OPEN {
                // It is the only value now, so it has replaced everything before.
                entries.push(Entry { value: *settled, op: 0, began, done: Some(began) });
                *settled = OPEN;
            }
            entries.push(Entry { value, op, began, done: None });
        }
        for read in self.reads.values_mut().filter(|r| r.from < to && from < r.to) {
            read.later.push((from, to, value));
        }
        self.writes.insert(op, Write { from, to, value, began });
    }

    /// A write ended: well, or so that old and new are possible.
    pub fn end_write(&mut self, op: OpId, ok: bool, durable: bool) {
        let now = self.now();
        self.strictness += 1;
        let Write { from, to, began, value } = self.writes.remove(&op).expect("a write that began");
        for sector in from..to {
            let Some(entries) = self.open.get_mut(&sector) else { continue };
            if self.volatile && !durable {
                let past = self.past.entry(sector).or_default();
                for e in entries.iter().filter(|e| e.op != op && e.done.is_some()) {
                    if past.iter().all(|p| p.value != e.value) {
                        past.push(Past { value: e.value, began: e.began, done: e.done.unwrap_or(now) });
                    }
                }
                past.push(Past { value, began: if ok { began } else { 0 }, done: now });
            } else if ok && let Some(past) = self.past.get_mut(&sector) {
                past.retain(|p| p.done > began);
            }
            if ok {
                entries.retain(|e| e.op == op || e.done.is_none_or(|d| d > began));
            }
            if self.volatile && ok && durable && entries.iter().any(|e| e.op != op) {
                // A volatile write beside it may turn out to be the later one, and then be lost: this one is below it.
                self.past.entry(sector).or_default().push(Past { value, began, done: now });
            }
            for e in entries.iter_mut().filter(|e| e.op == op) {
                e.done = Some(now);
                if !ok {
                    // Whether it ever took effect nobody knows: a later flush that covers it says nothing of what was before.
                    e.began = 0;
                }
            }
            self.collapse(sector);
        }
    }

    /// Everything that had ended at `moment` is durable, so that what it replaced cannot come back.
    pub fn flushed(&mut self, moment: u64) {
        self.strictness += 1;
        self.past.retain(|_, past| {
            let durable = past.iter().filter(|p| p.done <= moment).map(|p| p.began).max().unwrap_or(0);
            past.retain(|p| p.done > moment || p.done >= durable);
            // Without newer writes what is left is what the sector may hold anyway.
            past.iter().any(|p| p.done > moment)
        });
    }

    fn collapse(&mut self, sector: u64) {
        let Some(entries) = self.open.get(&sector) else { return };
        if entries.iter().all(|e| e.done.is_some() && e.value == entries[0].value) {
            self.settled[sector as usize] = entries[0].value;
            self.open.remove(&sector);
        }
    }

    /// A read of sectors `from..to` begins.
    pub fn begin_read(&mut self, op: OpId, from: u64, to: u64) {
        let single = self.settled[from as usize..to as usize].to_vec();
        let several =
            self.open.range(from..to).map(|(s, entries)| (*s, entries.iter().map(|e| e.value).collect())).collect();
        let began = self.now();
        self.reads.insert(op, Read { began, from, to, single, several, later: Vec::new() });
    }

    /// A read ended without data.
    pub fn drop_read(&mut self, op: OpId) {
        self.reads.remove(&op);
    }

    /// A read ended with these bytes. With `settle`, the next read must find the same.
    pub fn end_read(&mut self, op: OpId, bytes: &[u8], settle: bool) -> Result<(), String> {
        self.end_read_but(op, bytes, settle, |_| false).map(|_| ())
    }

    /// As [`Oracle::end_read`], but for sectors that may hold anything: tells how many held what is not possible.
    pub fn end_read_but(
        &mut self,
        op: OpId,
        bytes: &[u8],
        settle: bool,
        excused: impl Fn(u64) -> bool,
    ) -> Result<u64, String> {
        let mut wrong = 0;
        let read = self.reads.remove(&op).expect("a read that began");
        for (i, found) in bytes.chunks_exact(SECTOR).enumerate() {
            let sector = read.from + i as u64;
            let single = read.single[i];
            if single != OPEN && pattern::is(found, single, sector) {
                continue;
            }
            let possible = read.possible(sector);
            let Some(&value) = possible.iter().find(|v| pattern::is(found, **v, sector)) else {
                if excused(sector) {
                    wrong += 1;
                    continue;
                }
                let what = pattern::describe(found, sector);
                return Err(format!("sector {sector} holds {what}, possible: {possible:?}"));
            };
            if settle && single == OPEN && read.later.iter().all(|(a, b, _)| !(*a..*b).contains(&sector)) {
                self.settle(sector, value, read.began);
            }
        }
        Ok(wrong)
    }

    /// A read that began at `began` found this value. If a write was in flight at that time, it may have come later.
    fn settle(&mut self, sector: u64, value: Value, began: u64) {
        let Some(entries) = self.open.get_mut(&sector) else { return };
        if entries.iter().all(|e| e.done.is_some_and(|d| d <= began)) && entries.iter().any(|e| e.value == value) {
            entries.retain(|e| e.value == value);
            self.strictness += 1;
            self.collapse(sector);
        }
    }

    /// Judges a comparison that found the buffer equal or different. `values` are the buffer's.
    pub fn end_compare(&mut self, op: OpId, values: &[Option<Value>], equal: bool) -> Result<(), String> {
        let read = self.reads.remove(&op).expect("a read that began");
        let mut must = true;
        for (i, value) in values.iter().enumerate() {
            let sector = read.from + i as u64;
            let possible = read.possible(sector);
            let can = value.is_some_and(|v| possible.contains(&v));
            must &= can && possible.len() == 1;
            if equal && !can {
                return Err(format!("compare found sector {sector} equal to {value:?}, possible: {possible:?}"));
            }
        }
        if !equal && must {
            return Err(format!(
                "compare of sectors {}..{} found a difference where there is none",
                read.from, read.to
            ));
        }
        Ok(())
    }

    /// The process is gone with everything in flight. With `power`, so are writes that were not durable.
    pub fn crash(&mut self, power: bool) {
        self.reads.clear();
        let open: Vec<OpId> = self.writes.keys().copied().collect();
        for op in open {
            self.end_write(op, false, !self.volatile);
        }
        if !power {
            return;
        }
        for (sector, past) in std::mem::take(&mut self.past) {
            let now = self.time;
            let settled = &mut self.settled[sector as usize];
            let entries = self.open.entry(sector).or_default();
            if *settled != OPEN {
                entries.push(Entry { value: *settled, op: 0, began: now, done: Some(now) });
                *settled = OPEN;
            }
            let known: BTreeSet<Value> = entries.iter().map(|e| e.value).collect();
            let more: BTreeSet<Value> = past.iter().map(|p| p.value).collect();
            entries.extend(more.difference(&known).map(|v| Entry { value: *v, op: 0, began: 0, done: Some(now) }));
            self.collapse(sector);
        }
    }
}

impl Read {
    fn possible(&self, sector: u64) -> BTreeSet<Value> {
        let single = self.single[(sector - self.from) as usize];
        let mut set = BTreeSet::new();
        if single != OPEN {
            set.insert(single);
        }
        set.extend(self.several.get(&sector).into_iter().flatten());
        set.extend(self.later.iter().filter(|(a, b, _)| (*a..*b).contains(&sector)).map(|w| w.2));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sector(value: Value, sector: u64) -> Vec<u8> {
        let mut bytes = vec![0; SECTOR];
        pattern::fill(&mut bytes, value, sector);
        bytes
    }

    /// Whether a read that begins and ends now may find the value.
    fn may(o: &mut Oracle, value: Value) -> bool {
        o.begin_read(1000, 0, 1);
        o.end_read(1000, &sector(value, 0), false).is_ok()
    }

    #[test]
    fn writes_that_overlap_in_time_may_end_in_either_order() {
        let mut o = Oracle::new(4, false);
        o.begin_write(1, 0, 1, 11);
        assert!(may(&mut o, 0) && may(&mut o, 11));
        o.begin_write(2, 0, 2, 12);
        o.end_write(1, true, true);
        assert!(!may(&mut o, 0) && may(&mut o, 11) && may(&mut o, 12));
        o.end_write(2, true, true);
        assert!(may(&mut o, 11) && may(&mut o, 12));
        o.begin_write(3, 0, 1, 13);
        assert!(may(&mut o, 11) && may(&mut o, 13));
        o.end_write(3, true, true);
        assert!(may(&mut o, 13) && !may(&mut o, 12) && !may(&mut o, 11));
        assert_eq!((o.certain(0), o.certain(1)), (Some(13), Some(12)));
    }

    #[test]
    fn a_read_may_find_what_was_there_at_any_moment_of_it() {
        let mut o = Oracle::new(1, false);
        o.begin_read(1, 0, 1);
        o.begin_read(2, 0, 1);
        o.begin_write(3, 0, 1, 13);
        o.end_write(3, true, true);
        assert!(o.end_read(1, &sector(0, 0), true).is_ok() && o.end_read(2, &sector(13, 0), true).is_ok());
        assert!(!may(&mut o, 0));
    }

    #[test]
    fn what_was_read_once_is_read_again() {
        let mut o = Oracle::new(1, false);
        o.begin_write(1, 0, 1, 11);
        o.end_write(1, false, true);
        assert!(may(&mut o, 0) && may(&mut o, 11));
        o.begin_read(2, 0, 1);
        assert!(o.end_read(2, &sector(0, 0), true).is_ok());
        assert!(may(&mut o, 0) && !may(&mut o, 11));
    }

    #[test]
    fn a_read_beside_writes_settles_nothing() {
        let mut o = Oracle::new(1, false);
        o.begin_write(1, 0, 1, 11);
        o.begin_write(2, 0, 1, 12);
        o.begin_read(3, 0, 1);
        o.end_write(1, true, true);
        o.end_write(2, true, true);
        assert!(o.end_read(3, &sector(11, 0), true).is_ok());
        assert!(may(&mut o, 11) && may(&mut o, 12), "the other write may have come after the read");
    }

    #[test]
    fn a_comparison_is_judged_by_what_was_possible() {
        let mut o = Oracle::new(1, false);
        let compare = |o: &mut Oracle, value, equal| {
            o.begin_read(9, 0, 1);
            o.end_compare(9, &[value], equal).is_ok()
        };
        assert!(compare(&mut o, Some(0), true) && !compare(&mut o, Some(0), false));
        assert!(compare(&mut o, None, false) && !compare(&mut o, None, true));
        o.begin_write(1, 0, 1, 11);
        assert!(compare(&mut o, Some(11), true) && compare(&mut o, Some(11), false));
    }

    #[test]
    fn of_two_writes_at_a_time_a_flush_makes_either_durable() {
        let mut o = Oracle::new(1, true);
        o.begin_write(1, 0, 1, 11);
        o.begin_write(2, 0, 1, 12);
        o.end_write(1, true, false);
        o.end_write(2, true, true);
        let moment = o.now();
        o.begin_write(3, 0, 1, 13);
        o.end_write(3, true, false);
        o.flushed(moment);
        o.crash(true);
        assert!(may(&mut o, 11) && may(&mut o, 12) && may(&mut o, 13) && !may(&mut o, 0));
    }

    #[test]
    fn durable_data_comes_back_when_the_volatile_write_beside_it_is_lost() {
        let mut o = Oracle::new(1, true);
        o.begin_write(1, 0, 1, 11);
        o.begin_write(2, 0, 1, 12);
        o.end_write(1, true, true);
        o.end_write(2, true, false);
        o.begin_read(3, 0, 1);
        assert!(o.end_read(3, &sector(12, 0), true).is_ok());
        assert!(!may(&mut o, 11));
        o.crash(true);
        assert!(may(&mut o, 11) && may(&mut o, 12) && !may(&mut o, 0));
    }

    #[test]
    fn a_flush_after_a_write_that_a_crash_cut_off_keeps_what_was_before_it() {
        let mut o = Oracle::new(1, true);
        o.begin_write(1, 0, 1, 11);
        o.end_write(1, true, true);
        o.begin_write(2, 0, 1, 12);
        o.crash(true);
        // Nobody has read which of the two it is when the next write comes, and is lost too.
        o.begin_write(3, 0, 1, 13);
        let moment = o.now();
        o.end_write(3, true, false);
        o.flushed(moment);
        o.crash(true);
        assert!(may(&mut o, 11) && may(&mut o, 12) && may(&mut o, 13) && !may(&mut o, 0));
    }

    #[test]
    fn a_flush_between_two_writes_at_a_time_leaves_the_first_below_the_second() {
        let mut o = Oracle::new(1, true);
        o.begin_write(1, 0, 1, 11);
        o.begin_write(2, 0, 1, 12);
        o.end_write(1, true, true);
        let moment = o.now();
        o.flushed(moment);
        o.end_write(2, true, false);
        o.begin_read(3, 0, 1);
        assert!(o.end_read(3, &sector(12, 0), true).is_ok());
        o.crash(true);
        assert!(may(&mut o, 11) && may(&mut o, 12) && !may(&mut o, 0));
    }

    #[test]
    fn a_power_cut_brings_back_what_was_not_flushed_and_only_that() {
        let mut o = Oracle::new(1, true);
        let write = |o: &mut Oracle, op, value, durable| {
            o.begin_write(op, 0, 1, value);
            o.end_write(op, true, durable);
        };
        write(&mut o, 1, 11, false);
        let moment = o.now();
        o.flushed(moment);
        write(&mut o, 2, 12, false);
        write(&mut o, 3, 13, false);
        o.crash(true);
        assert!(!may(&mut o, 0) && may(&mut o, 11) && may(&mut o, 12) && may(&mut o, 13));
        write(&mut o, 4, 14, true);
        o.crash(true);
        assert!(may(&mut o, 14) && !may(&mut o, 13) && !may(&mut o, 11));
    }
}
