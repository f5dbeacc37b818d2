//! Latencies, recorded without locks by one thread each and merged when read (design, section 9).
//!
//! The buckets are those of an HdrHistogram with two significant digits: what is read is at most 1% above what was
//! recorded.

use std::sync::atomic::{AtomicU64, Ordering};

use hdrhistogram::Histogram;

/// Buckets of one power of two: 2^7, so that a bucket is less than 1% wide.
const SUB: u32 = 7;
/// Latencies from here on, in nanoseconds, count as this: 69 seconds.
const LARGEST: u64 = (1 << 36) - 1;
const BUCKETS: usize = index(LARGEST) + 1;

/// Upper bounds of the few classes in which latencies are told to monitoring, in nanoseconds: 10 µs to 10 s in steps of 1,
/// 2, 5. They are the same for everything and never change, so that sums over members and machines mean something.
pub const BOUNDS: [u64; 19] = bounds();

const fn bounds() -> [u64; 19] {
    let mut out = [0; 19];
    let mut i = 0;
    while i < out.len() {
        out[i] = [10_000, 20_000, 50_000][i % 3] * 10u64.pow(i as u32 / 3);
        i += 1;
    }
    out
}

/// How many latencies are in each class: at most the bound and above the one before; the last class has no bound.
pub type Classes = [u64; BOUNDS.len() + 1];

/// The bucket of a value.
const fn index(value: u64) -> usize {
    // Below 2^(SUB + 1) each value has a bucket of its own; each further power of two has 2^SUB.
    let magnitude = (value | ((1 << (SUB + 1)) - 1)).ilog2() - SUB;
    ((magnitude as usize) << SUB) + (value >> magnitude) as usize
}

/// The largest value of a bucket.
const fn largest_of(index: usize) -> u64 {
    let magnitude = (index >> SUB).saturating_sub(1) as u32;
    let within = (index as u64) - ((magnitude as u64) << SUB);
    ((within + 1) << magnitude) - 1
}

/// Latencies of one kind of I/O on one reactor. One thread records, any thread reads.
pub struct Latencies(Box<[AtomicU64]>);

impl Default for Latencies {
    fn default() -> Self {
        Latencies((0..BUCKETS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Latencies {
    /// Counts one I/O. Only from the thread that owns the queue: two would lose counts.
    pub fn record(&self, nanos: u64) {
        let bucket = &self.0[index(nanos.min(LARGEST))];
        bucket.store(bucket.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Adds what was recorded so far to the classes. A bucket that a bound cuts counts above it, so what is said to be at
    /// most the bound is; up to 1% below the bound may be missing. Records that come meanwhile may be in or not.
    pub fn add_to_classes(&self, classes: &mut Classes) {
        let mut class = 0;
        for (i, bucket) in self.0.iter().enumerate() {
            while BOUNDS.get(class).is_some_and(|bound| largest_of(i) > *bound) {
                class += 1;
            }
            classes[class] += bucket.load(Ordering::Relaxed);
        }
    }

    /// Adds what was recorded so far. Records that come meanwhile may be in or not.
    pub fn add_to(&self, histogram: &mut Histogram<u64>) {
        for (i, bucket) in self.0.iter().enumerate() {
            let count = bucket.load(Ordering::Relaxed);
            if count > 0 {
                histogram.saturating_record_n(largest_of(i), count);
            }
        }
    }
}

/// A histogram of nanoseconds that holds everything that [`Latencies`] can record.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LARGEST, 2).expect("the bounds are in order and two digits are few")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_in_order_without_gaps_and_narrow() {
        for i in 0..BUCKETS {
            let last = largest_of(i);
            let first = if i == 0 { 0 } else { largest_of(i - 1) + 1 };
            assert!(first <= last);
            assert_eq!((index(first), index(last)), (i, i));
            assert!((last - first) * 100 <= first.max(1) || first == last, "bucket {i} from {first} to {last}");
        }
        assert_eq!(largest_of(BUCKETS - 1), LARGEST);
    }

    #[test]
    fn classes_hold_everything_once_and_nothing_above_their_bound() {
        assert_eq!((BOUNDS[0], BOUNDS[5], BOUNDS[18]), (10_000, 500_000, 10_000_000_000));
        for (class, bound) in BOUNDS.into_iter().enumerate() {
            let latencies = Latencies::default();
            // Well below, just above, and beyond all.
            [bound / 100 * 98, bound + 1, u64::MAX].into_iter().for_each(|n| latencies.record(n));
            let mut classes = Classes::default();
            latencies.add_to_classes(&mut classes);
            let mut expected = Classes::default();
            [class, class + 1, BOUNDS.len()].into_iter().for_each(|c| expected[c] += 1);
            assert_eq!(classes, expected, "around {bound}");
        }
    }

    #[test]
    fn what_is_merged_is_what_an_hdr_histogram_would_have_recorded() {
        let queues = [Latencies::default(), Latencies::default()];
        let mut direct = histogram();
        let mut x = 1u64;
        for i in 0..20_000 {
            // A fixed sequence over all magnitudes, and some beyond.
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let value = (x >> 20) >> (x % 44);
            queues[i % 2].record(value);
            direct.saturating_record(value.min(LARGEST));
        }
        let mut merged = histogram();
        queues.iter().for_each(|q| q.add_to(&mut merged));
        assert_eq!(merged.len(), 20_000);
        for q in [0.0, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0] {
            assert!(merged.equivalent(merged.value_at_quantile(q), direct.value_at_quantile(q)), "at {q}");
        }
    }
}
