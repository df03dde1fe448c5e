//! Distributions of durations and sizes, counted in buckets.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the buckets for durations, in seconds: from that of a turn without I/O to those that only a
/// fault explains. A value equal to a bound is in its bucket.
pub const DURATION_BOUNDS: [f64; 16] = [
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0,
];

/// Upper bounds of the buckets for numbers of things that are handled together.
pub const SIZE_BOUNDS: [f64; 11] =
    [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1_024.0];

/// The values that were observed since the node started, by bucket. Any thread may add to it.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    /// One for each bound, and one for larger values.
    buckets: Box<[AtomicU64]>,
    /// The sum of all values, in units of `scale`.
    sum: AtomicU64,
    /// Units of `sum` in one unit of the bounds.
    scale: f64,
}

/// The state of a [`Histogram`] at some moment. Values that are observed meanwhile may be in `count` but not in `sum`.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    /// Upper bound of each bucket, the last one infinite, with the number of values in that bucket alone.
    pub buckets: Vec<(f64, u64)>,
    /// The number of values.
    pub count: u64,
    /// The sum of the values.
    pub sum: f64,
}

impl Distribution {
    /// The values of several histograms of one kind together.
    #[must_use]
    pub fn sum<'a>(histograms: impl Iterator<Item = &'a Histogram>) -> Self {
        let mut total = Self { buckets: Vec::new(), count: 0, sum: 0.0 };
        for seen in histograms.map(Histogram::distribution) {
            total.count += seen.count;
            total.sum += seen.sum;
            if total.buckets.is_empty() {
                total.buckets = seen.buckets;
                continue;
            }
            for ((_, to), (_, more)) in total.buckets.iter_mut().zip(&seen.buckets) {
                *to += more;
            }
        }
        total
    }
}

impl Histogram {
    /// A histogram of durations.
    #[must_use]
    pub fn of_durations() -> Self {
        Self::new(&DURATION_BOUNDS, 1e9)
    }

    /// A histogram of numbers of things.
    #[must_use]
    pub fn of_sizes() -> Self {
        Self::new(&SIZE_BOUNDS, 1.0)
    }

    fn new(bounds: &'static [f64], scale: f64) -> Self {
        let buckets = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, buckets, sum: AtomicU64::new(0), scale }
    }

    /// Adds a duration.
    pub fn observe(&self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.add(duration.as_secs_f64(), nanos);
    }

    /// Adds a number of things.
    pub fn observe_size(&self, size: usize) {
        self.add(size as f64, size as u64);
    }

    fn add(&self, value: f64, units: u64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(units, Ordering::Relaxed);
    }

    /// What was observed so far.
    #[must_use]
    pub fn distribution(&self) -> Distribution {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        let counts = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed));
        let buckets: Vec<_> = bounds.zip(counts).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum = self.sum.load(Ordering::Relaxed) as f64 / self.scale;
        Distribution { buckets, count, sum }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_counted_in_the_first_bucket_that_holds_it() {
        let histogram = Histogram::of_durations();
        for micros in [1, 100, 101, 250, 10_000_000, 10_000_001, 3_600_000_000] {
            histogram.observe(Duration::from_micros(micros));
        }
        let seen = histogram.distribution();
        let filled: Vec<_> = seen.buckets.iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(filled, [&(0.000_1, 2), &(0.000_25, 2), &(10.0, 1), &(f64::INFINITY, 2)]);
        assert_eq!(seen.count, 7);
        assert!((seen.sum - 3_620.000_453).abs() < 1e-6, "{}", seen.sum);
    }

    #[test]
    fn sizes_are_counted_as_they_are() {
        let histogram = Histogram::of_sizes();
        for size in [1, 3, 4, 5_000] {
            histogram.observe_size(size);
        }
        let seen = histogram.distribution();
        let filled: Vec<_> = seen.buckets.iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(filled, [&(1.0, 1), &(4.0, 2), &(f64::INFINITY, 1)]);
        assert_eq!((seen.count, seen.sum), (4, 5_008.0));
    }
}
