//! When to ask a second node as well: after a wait that is long for the first, and within a budget.
//!
//! The wait is a node's own 95th percentile, so that a hedge is rare where nothing is wrong. The budget bounds it where everything is:
//! a cluster that is slow as a whole gets 5 % more requests, not twice as many.

use std::time::Duration;

/// No hedge before this, whatever the percentile: below it another node has hardly begun, and what is just being filled would be filled
/// twice.
const FLOOR: Duration = Duration::from_millis(20);

/// Replies of a node that are seen before its percentile is believed.
const SAMPLES_MIN: u32 = 50;

/// Samples past which all count half: the last few hundred decide.
const SAMPLES_MAX: u32 = 512;

/// Each bucket ends at 1.41 times the one before, from 1 ms to 12 minutes.
const BUCKETS: usize = 40;

/// One hedge for so many requests.
const REQUESTS_PER_HEDGE: u64 = 20;

/// Hedges that a client has before it has asked for anything: it may go on from a node that is busy for long.
const SAVED_FIRST: u64 = 4;

/// Most hedges that are saved up: a request of a batch, whose node stalls as a whole.
const SAVED_MAX: u64 = 256;

/// How long a node has made its clients wait, of late: one sample a request, its longest wait for an item.
#[derive(Clone, Debug)]
pub struct Waits {
    buckets: [u32; BUCKETS],
    samples: u32,
}

impl Default for Waits {
    fn default() -> Self {
        Self { buckets: [0; BUCKETS], samples: 0 }
    }
}

impl Waits {
    /// Takes in a wait.
    pub fn record(&mut self, wait: Duration) {
        if self.samples >= SAMPLES_MAX {
            self.buckets.iter_mut().for_each(|count| *count /= 2);
            self.samples = self.buckets.iter().sum();
        }
        let bucket = (0..BUCKETS - 1).find(|&bucket| wait <= end(bucket)).unwrap_or(BUCKETS - 1);
        self.buckets[bucket] += 1;
        self.samples += 1;
    }

    /// The wait after which a second node is asked; `None` while too little is known.
    pub fn hedge_after(&self) -> Option<Duration> {
        if self.samples < SAMPLES_MIN {
            return None;
        }
        let mut left = self.samples / 20;
        let mut bucket = BUCKETS - 1;
        while bucket > 0 && self.buckets[bucket] <= left {
            left -= self.buckets[bucket];
            bucket -= 1;
        }
        Some(end(bucket).max(FLOOR))
    }
}

/// The longest wait of that bucket.
fn end(bucket: usize) -> Duration {
    Duration::from_millis(1).mul_f64(2f64.powf(bucket as f64 / 2.0))
}

/// Hedges that may be sent.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    saved: u64,
}

impl Default for Budget {
    fn default() -> Self {
        Self { saved: SAVED_FIRST * REQUESTS_PER_HEDGE }
    }
}

impl Budget {
    /// `count` items were asked for.
    pub fn asked(&mut self, count: usize) {
        self.saved = (self.saved + count as u64).min(SAVED_MAX * REQUESTS_PER_HEDGE);
    }

    /// Takes up to `most` hedges; how many there were.
    pub fn take(&mut self, most: usize) -> usize {
        let taken = (self.saved / REQUESTS_PER_HEDGE).min(most as u64);
        self.saved -= taken * REQUESTS_PER_HEDGE;
        taken as usize
    }

    /// Takes `count` hedges, or none if there are not as many.
    pub fn take_all(&mut self, count: usize) -> bool {
        let are_there = self.saved / REQUESTS_PER_HEDGE >= count as u64;
        are_there && self.take(count) == count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(of: impl IntoIterator<Item = u64>) -> Waits {
        let mut waits = Waits::default();
        of.into_iter().for_each(|ms| waits.record(Duration::from_millis(ms)));
        waits
    }

    /// Promise: the hedge comes after what 95 of 100 requests wait for, never before 20 ms, and not on hearsay.
    #[test]
    fn hedges_follow_the_percentile() {
        assert_eq!(waits(vec![5; 49]).hedge_after(), None);
        assert_eq!(waits(vec![1; 50]).hedge_after(), Some(FLOOR));
        let tail = |slow: usize| waits((0..200).map(|i| if i < slow { 900 } else { 40 })).hedge_after().expect("known");
        assert!((40..58).contains(&tail(10).as_millis()), "{:?}", tail(10));
        assert!((900..1300).contains(&tail(20).as_millis()), "{:?}", tail(20));
        assert!(waits(vec![u64::MAX / 2; 60]).hedge_after().is_some_and(|after| after > Duration::from_secs(600)));
    }

    /// Promise: what a node did long ago is forgotten.
    #[test]
    fn waits_decay() {
        let waits = waits(std::iter::repeat_n(1000, 500).chain(std::iter::repeat_n(30, 3000)));
        assert!(waits.hedge_after().is_some_and(|after| after < Duration::from_millis(50)), "{:?}", waits.hedge_after());
    }

    /// Promise: hedges are at most 5 % of requests beyond the first four, and no more than one batch of them is saved up.
    #[test]
    fn budget_holds() {
        let mut budget = Budget::default();
        assert_eq!((budget.take(9), budget.take(1)), (4, 0));
        let mut hedges = 0;
        for _ in 0..10_000 {
            budget.asked(1);
            hedges += budget.take(1);
        }
        assert_eq!(hedges, 500);
        budget.asked(1_000_000);
        assert_eq!((budget.take(10), budget.take(usize::MAX), budget.take(1)), (10, 246, 0));
        budget.asked(40);
        assert_eq!((budget.take_all(3), budget.take_all(2), budget.take_all(1)), (false, true, false));
    }
}
