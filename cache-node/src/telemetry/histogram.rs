//! Counters, gauges and latency histograms that a hot path may touch: plain atomics, no lock, no label look-up.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn inc(&self) {
        self.add(1);
    }

    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Relaxed);
    }

    pub fn value(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A number that goes up and down.
#[derive(Debug, Default)]
pub struct Gauge(AtomicI64);

impl Gauge {
    pub fn set(&self, value: i64) {
        self.0.store(value, Relaxed);
    }

    pub fn add(&self, count: i64) {
        self.0.fetch_add(count, Relaxed);
    }

    pub fn value(&self) -> i64 {
        self.0.load(Relaxed)
    }
}

/// Buckets per power of two: a quantile is at most an eighth too large, which no decision here can see.
const PARTS: u64 = 8;
const PART_BITS: u32 = PARTS.trailing_zeros();

/// Buckets for every `u64`.
const BUCKETS: usize = ((64 - PART_BITS as usize) + 1) * PARTS as usize;

/// Durations by the logarithm of their nanoseconds; a record is three additions, 4 KiB hold the rest.
#[derive(Debug)]
pub struct Histogram {
    buckets: Box<[AtomicU64; BUCKETS]>,
    /// Nanoseconds; wraps after 584 years of them, which Prometheus takes as a restart.
    sum: AtomicU64,
}

/// A histogram at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    buckets: Vec<u64>,
    sum: Duration,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: Box::new([const { AtomicU64::new(0) }; BUCKETS]), sum: AtomicU64::new(0) }
    }
}

impl Histogram {
    pub fn record(&self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket_of(nanos)].fetch_add(1, Relaxed);
        self.sum.fetch_add(nanos, Relaxed);
    }

    /// Everything recorded so far; records that happen meanwhile are in it or not.
    pub fn snapshot(&self) -> Snapshot {
        let buckets = self.buckets.iter().map(|bucket| bucket.load(Relaxed)).collect();
        Snapshot { buckets, sum: Duration::from_nanos(self.sum.load(Relaxed)) }
    }

    /// See [`Snapshot::quantile`].
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        self.snapshot().quantile(share)
    }
}

impl Snapshot {
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    pub fn sum(&self) -> Duration {
        self.sum
    }

    /// Adds what another one recorded.
    pub(super) fn merge(&mut self, other: &Snapshot) {
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(sum, records)| *sum += records);
        self.sum = self.sum.saturating_add(other.sum);
    }

    /// The duration that this share (0 to 1) of the records did not exceed, at most an eighth above the true one; `None` if
    /// nothing was recorded.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let count = self.count();
        let rank = ((share.clamp(0.0, 1.0) * count as f64).ceil() as u64).clamp(1, count.max(1));
        let mut seen = 0;
        let bucket = self.buckets.iter().position(|records| {
            seen += records;
            seen >= rank
        })?;
        Some(Duration::from_nanos(most_of(bucket)))
    }

    /// Records of at most 2^`power` nanoseconds. Exact, because a bucket ends at each power of two.
    pub fn at_most(&self, power: u32) -> u64 {
        self.buckets[..=bucket_of(1 << power)].iter().sum()
    }
}

/// The bucket whose durations are above the end of the one before, and up to its own end: `(8, 9]`, `(9, 10]` … `(15, 16]`,
/// `(16, 18]` …, so that a power of two closes a bucket, as Prometheus' `le` wants.
fn bucket_of(nanos: u64) -> usize {
    let below = nanos.saturating_sub(1);
    if below < PARTS {
        return below as usize;
    }
    let power = below.ilog2();
    let part = (below >> (power - PART_BITS)) & (PARTS - 1);
    (u64::from(power - PART_BITS + 1) * PARTS + part) as usize
}

/// The largest duration in that bucket.
fn most_of(bucket: usize) -> u64 {
    let (octave, part) = (bucket as u64 / PARTS, bucket as u64 % PARTS);
    if octave == 0 {
        return part + 1;
    }
    // In 128 bits: the last bucket ends at 2^64.
    let end = u128::from(PARTS + part + 1) << (octave - 1);
    u64::try_from(end).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each duration lies in the bucket that ends at or above it, within an eighth, and buckets meet without a gap.
    #[test]
    fn buckets_meet() {
        let mut probes: Vec<u64> = (1..5000).collect();
        for power in 1..64 {
            probes.extend([(1u64 << power) - 1, 1 << power, (1 << power) + 1]);
        }
        probes.push(u64::MAX);
        for nanos in probes {
            let bucket = bucket_of(nanos);
            let most = most_of(bucket);
            assert!(most >= nanos && most - nanos <= nanos / 8, "{nanos} in a bucket up to {most}");
            assert!(bucket == 0 || most_of(bucket - 1) < nanos, "{nanos} belongs to the bucket before");
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1, "every bucket can be reached");
    }

    /// Quantiles are those of the sorted records, an eighth at most above.
    #[test]
    fn quantiles_follow_the_records() {
        let histogram = Histogram::default();
        assert_eq!(histogram.quantile(0.5), None);
        for micros in 1..=1000 {
            histogram.record(Duration::from_micros(micros));
        }
        for (share, micros) in [(0.0, 1), (0.5, 500), (0.99, 990), (1.0, 1000)] {
            let (got, want) = (histogram.quantile(share).expect("records"), Duration::from_micros(micros));
            assert!(got >= want && got <= want + want / 8, "{share}: {got:?} for {want:?}");
        }
        let snapshot = histogram.snapshot();
        assert_eq!((snapshot.count(), snapshot.sum()), (1000, Duration::from_micros(500_500)));
        assert_eq!(snapshot.at_most(10), 1, "1 us is under 1.024 us, 2 us is not");
        assert_eq!(snapshot.at_most(20), 1000);
    }

    /// A duration of exactly a bound counts under it.
    #[test]
    fn bounds_are_inclusive() {
        let histogram = Histogram::default();
        histogram.record(Duration::from_nanos(1024));
        histogram.record(Duration::from_nanos(1025));
        histogram.record(Duration::ZERO);
        assert_eq!((histogram.snapshot().at_most(10), histogram.snapshot().at_most(11)), (2, 3));
    }

    /// Threads lose no record.
    #[test]
    fn records_are_not_lost() {
        let histogram = Histogram::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|micros| histogram.record(Duration::from_micros(micros))));
            }
        });
        assert_eq!(histogram.snapshot().count(), 40_000);
    }
}
