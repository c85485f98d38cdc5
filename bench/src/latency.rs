//! How long requests took: a histogram whose steps are a sixty-fourth of the value, so that a quantile is right to two percent.

use std::time::Duration;

/// Steps of one doubling.
const STEPS: u64 = 64;
/// Doublings: from a microsecond to longer than any deadline.
const DOUBLINGS: u64 = 40;

/// Counts by duration.
#[derive(Clone, Debug)]
pub struct Latencies {
    counts: Vec<u64>,
    longest: Duration,
}

impl Default for Latencies {
    fn default() -> Self {
        Self { counts: vec![0; (STEPS * DOUBLINGS) as usize], longest: Duration::ZERO }
    }
}

impl Latencies {
    /// One more.
    pub fn add(&mut self, took: Duration) {
        self.counts[place(took)] += 1;
        self.longest = self.longest.max(took);
    }

    /// All of both.
    pub fn merge(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(mine, theirs)| *mine += theirs);
        self.longest = self.longest.max(other.longest);
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The longest.
    pub fn longest(&self) -> Duration {
        self.longest
    }

    /// That of which so many (0 to 1) took less: the upper end of its step, at most the longest.
    pub fn quantile(&self, part: f64) -> Duration {
        let wanted = (self.count() as f64 * part).ceil().max(1.0) as u64;
        let mut seen = 0;
        let found = self.counts.iter().position(|count| {
            seen += count;
            seen >= wanted
        });
        found.map_or(self.longest, |place| end(place).min(self.longest))
    }

    /// The quantile in milliseconds.
    pub fn ms(&self, part: f64) -> f64 {
        self.quantile(part).as_secs_f64() * 1000.0
    }
}

fn place(took: Duration) -> usize {
    let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
    let doubling = u64::from(micros.ilog2());
    let step = ((u128::from(micros) * u128::from(STEPS)) >> doubling) as u64 - STEPS;
    (doubling * STEPS + step).min(STEPS * DOUBLINGS - 1) as usize
}

fn end(place: usize) -> Duration {
    let (doubling, step) = (place as u64 / STEPS, place as u64 % STEPS);
    Duration::from_micros(((u128::from(STEPS + step + 1) << doubling) / u128::from(STEPS)) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: quantiles are right to two percent over the whole range, and those of parts merged are those of the whole.
    #[test]
    fn quantiles_are_close() {
        let (mut all, mut even) = (Latencies::default(), Latencies::default());
        for micros in 1..=100_000u64 {
            if micros % 2 == 0 { &mut even } else { &mut all }.add(Duration::from_micros(micros));
        }
        all.merge(&even);
        assert_eq!((all.count(), all.longest()), (100_000, Duration::from_micros(100_000)));
        for (part, right) in [(0.0005, 50.0), (0.5, 50_000.0), (0.99, 99_000.0), (1.0, 100_000.0)] {
            let found = all.quantile(part).as_micros() as f64;
            assert!((found / right - 1.0).abs() <= 0.02, "{part}: {found} for {right}");
        }
        assert_eq!(Latencies::default().quantile(0.99), Duration::ZERO);
        all.add(Duration::from_secs(u64::MAX / 2));
    }
}
