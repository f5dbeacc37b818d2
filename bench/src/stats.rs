//! Latencies and medians.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// A latency that does not fit is counted as this, in nanoseconds: one minute.
const LONGEST: u64 = 60_000_000_000;

/// Latencies, from a nanosecond to a minute at three digits. Recording allocates nothing.
#[derive(Clone)]
pub struct Latencies(Histogram<u64>);

impl Latencies {
    /// None yet.
    pub fn new() -> Latencies {
        Latencies(Histogram::new_with_bounds(1, LONGEST, 3).expect("bounds and digits are constants, and right"))
    }

    /// Counts one, in nanoseconds.
    #[inline]
    pub fn record(&mut self, nanos: u64) {
        self.0.saturating_record(nanos.clamp(1, LONGEST));
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.0.reset();
    }

    /// Takes another's counts in.
    pub fn add(&mut self, other: &Latencies) {
        self.0.add(&other.0).expect("both have the same bounds");
    }

    /// The percentiles, if anything was recorded.
    pub fn summary(&self) -> Option<Percentiles> {
        let us = |nanos: u64| nanos as f64 / 1000.0;
        let at = |q: f64| us(self.0.value_at_quantile(q));
        (!self.0.is_empty()).then(|| Percentiles {
            count: self.0.len(),
            min: us(self.0.min()),
            mean: self.0.mean() / 1000.0,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            p99_99: at(0.9999),
            max: us(self.0.max()),
        })
    }
}

/// Latency percentiles, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// How many were recorded.
    pub count: u64,
    /// The shortest.
    pub min: f64,
    /// The mean.
    pub mean: f64,
    /// Half were no longer than this.
    pub p50: f64,
    /// 90%.
    pub p90: f64,
    /// 99%.
    pub p99: f64,
    /// 99.9%.
    pub p99_9: f64,
    /// 99.99%.
    pub p99_99: f64,
    /// The longest.
    pub max: f64,
}

impl Percentiles {
    /// Names and values, in the order of a table.
    pub fn cells(&self) -> [(&'static str, f64); 8] {
        [
            ("min", self.min),
            ("mean", self.mean),
            ("p50", self.p50),
            ("p90", self.p90),
            ("p99", self.p99),
            ("p99.9", self.p99_9),
            ("p99.99", self.p99_99),
            ("max", self.max),
        ]
    }
}

/// The median; the mean of the middle two if their number is even.
///
/// # Panics
///
/// If there are none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    assert!(n > 0, "the median of nothing");
    if n % 2 == 1 { sorted[n / 2] } else { (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_a_known_distribution() {
        let mut latencies = Latencies::new();
        assert_eq!(latencies.summary(), None);
        for us in 1..=10_000u64 {
            latencies.record(us * 1000);
        }
        let p = latencies.summary().unwrap();
        assert_eq!(p.count, 10_000);
        // Three digits: within a thousandth.
        for (got, want) in
            [(p.p50, 5000.0), (p.p90, 9000.0), (p.p99, 9900.0), (p.p99_9, 9990.0), (p.max, 10_000.0), (p.mean, 5000.5)]
        {
            assert!((got - want).abs() <= want / 900.0, "{got} is not {want}");
        }
    }

    #[test]
    fn one_slow_one_in_a_hundred_shows_where_it_should() {
        let mut latencies = Latencies::new();
        for i in 0..1000 {
            latencies.record(if i % 100 == 0 { 5_000_000 } else { 10_000 });
        }
        let p = latencies.summary().unwrap();
        assert!(p.p90 < 11.0 && p.p99 < 11.0 && p.p99_9 > 4900.0, "{p:?}");
    }

    #[test]
    fn sums_and_extremes() {
        let (mut a, mut b) = (Latencies::new(), Latencies::new());
        a.record(0);
        b.record(u64::MAX);
        a.add(&b);
        let p = a.summary().unwrap();
        assert_eq!(p.count, 2);
        assert!(p.min <= 0.001 && p.max >= 59_000_000.0, "{p:?}");
        a.clear();
        assert_eq!(a.summary(), None);
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[3.0]), 3.0);
        assert_eq!(median(&[9.0, 1.0, 3.0]), 3.0);
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), 2.5);
    }
}
