//! Virtual time: a queue of events, each at its moment. Events of the same moment come in the order in which they were
//! scheduled, so that a run depends on nothing but its seed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use raid_core::units::Tick;

struct Entry<E> {
    at: Tick,
    number: u64,
    event: E,
}

impl<E> Entry<E> {
    fn key(&self) -> (Tick, u64) {
        (self.at, self.number)
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}
impl<E> Eq for Entry<E> {}
impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

/// The clock and what is due.
pub struct Clock<E> {
    now: Tick,
    number: u64,
    queue: BinaryHeap<Reverse<Entry<E>>>,
}

impl<E> Default for Clock<E> {
    fn default() -> Self {
        Clock { now: Tick(0), number: 0, queue: BinaryHeap::new() }
    }
}

impl<E> Clock<E> {
    /// The moment of the event that was taken last.
    pub fn now(&self) -> Tick {
        self.now
    }

    /// Events taken and scheduled so far.
    pub fn events(&self) -> u64 {
        self.number
    }

    /// Schedules an event `nanos` from now.
    pub fn after(&mut self, nanos: u64, event: E) {
        self.at(self.now.after(nanos), event);
    }

    /// Schedules an event at a moment, or now if that is past.
    pub fn at(&mut self, at: Tick, event: E) {
        self.number += 1;
        self.queue.push(Reverse(Entry { at: at.max(self.now), number: self.number, event }));
    }

    /// Takes the next event; the clock goes to its moment.
    pub fn advance(&mut self) -> Option<E> {
        let Reverse(entry) = self.queue.pop()?;
        self.now = entry.at;
        Some(entry.event)
    }

    /// Forgets everything that is scheduled: the process is gone.
    pub fn clear(&mut self) {
        self.queue.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_by_order() {
        let mut clock = Clock::default();
        clock.after(20, 'c');
        clock.after(10, 'a');
        clock.after(10, 'b');
        assert_eq!(clock.advance(), Some('a'));
        clock.at(Tick(5), 'x');
        assert_eq!(clock.advance(), Some('b'));
        assert_eq!((clock.advance(), clock.now()), (Some('x'), Tick(10)));
        assert_eq!((clock.advance(), clock.now(), clock.advance()), (Some('c'), Tick(20), None));
    }
}
