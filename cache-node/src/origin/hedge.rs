//! Policy: when a second request is worth starting. One slow disk or path behind an origin then costs its 95th percentile, not its
//! worst case ("The Tail at Scale", Dean and Barroso 2013), for at most one request in twenty.

use std::time::Duration;

/// First-byte times of one bucket, and the tokens that hedges cost.
#[derive(Clone, Debug)]
pub(crate) struct Hedge {
    latency: Latency,
    tokens: f64,
    share: f64,
}

impl Hedge {
    pub(crate) fn new(share: f64) -> Self {
        Self { latency: Latency::default(), tokens: 0.0, share }
    }

    /// One request has been sent: it earns its share of a hedge.
    pub(crate) fn sent(&mut self) {
        self.tokens = (self.tokens + self.share).min(TOKENS_MAX);
    }

    /// The first byte came after this time.
    pub(crate) fn first_byte(&mut self, took: Duration) {
        self.latency.record(took);
    }

    /// How long to wait before a second request; `None` while we know too little.
    pub(crate) fn delay(&self) -> Option<Duration> {
        (self.latency.count >= SAMPLES_MIN).then(|| self.latency.quantile(0.95).max(DELAY_MIN))
    }

    /// Whether a hedge may be sent now; pays for it.
    pub(crate) fn take(&mut self) -> bool {
        let enough = self.tokens >= 1.0;
        if enough {
            self.tokens -= 1.0;
        }
        enough
    }
}

/// A histogram over log-spaced times (four steps per doubling, so 19 % wide) that forgets by halving.
#[derive(Clone, Debug)]
struct Latency {
    steps: [u32; STEPS],
    count: u32,
}

impl Default for Latency {
    fn default() -> Self {
        Self { steps: [0; STEPS], count: 0 }
    }
}

impl Latency {
    fn record(&mut self, took: Duration) {
        let micros = (took.as_micros() as f64).max(1.0);
        self.steps[((micros.log2() * 4.0) as usize).min(STEPS - 1)] += 1;
        self.count += 1;
        if self.count >= SAMPLES_MAX {
            self.steps.iter_mut().for_each(|n| *n /= 2);
            self.count = self.steps.iter().sum();
        }
    }

    /// The upper edge of the step that holds the quantile.
    fn quantile(&self, q: f64) -> Duration {
        let rank = (f64::from(self.count) * q).ceil() as u32;
        let mut seen = 0;
        let step = self.steps.iter().position(|n| {
            seen += n;
            seen >= rank
        });
        Duration::from_micros(2f64.powf((step.unwrap_or(STEPS - 1) + 1) as f64 / 4.0) as u64)
    }
}

/// 2^(120/4) microseconds: 18 minutes.
const STEPS: usize = 120;
/// Old samples weigh half after this many new ones: a few seconds of a busy bucket.
const SAMPLES_MAX: u32 = 1024;
/// Below twenty samples there is no 95th percentile.
const SAMPLES_MIN: u32 = 20;
/// A hedge sooner than this costs the origin more than it saves the caller: S3's first bytes take up to 200 ms in ordinary times, the
/// 99.9th percentile stays below this, and a node with a thousand requests at once on two cores sees 250 ms where the origin took one.
const DELAY_MIN: Duration = Duration::from_millis(500);
/// Hedges that may be saved up for a bad moment.
const TOKENS_MAX: f64 = 10.0;

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: hedges are at most the stated share of requests, whatever the latency does.
    #[test]
    fn hedges_stay_in_budget() {
        let mut hedge = Hedge::new(0.05);
        let hedges = (0..10_000).filter(|_| {
            hedge.sent();
            hedge.take()
        });
        assert!(hedges.count() <= 500);
    }

    /// Promise: the delay is the observed 95th percentile within a step, never under its minimum, and absent before there is one.
    #[test]
    fn delay_follows_the_percentile() {
        let mut hedge = Hedge::new(0.05);
        (0..19).for_each(|_| hedge.first_byte(Duration::from_millis(1)));
        assert_eq!(hedge.delay(), None);
        hedge.first_byte(Duration::from_millis(1));
        assert_eq!(hedge.delay(), Some(DELAY_MIN));
        for n in 0..2000u64 {
            hedge.first_byte(Duration::from_millis(if n % 10 == 0 { 800 } else { 100 }));
        }
        let delay = hedge.delay().expect("delay");
        assert!(delay >= Duration::from_millis(800) && delay < Duration::from_millis(960), "{delay:?}");
    }

    /// Promise: the estimate follows an origin that became fast again.
    #[test]
    fn delay_forgets() {
        let mut hedge = Hedge::new(0.05);
        (0..5000).for_each(|_| hedge.first_byte(Duration::from_secs(2)));
        (0..5000).for_each(|_| hedge.first_byte(Duration::from_millis(800)));
        assert!(hedge.delay().expect("delay") < Duration::from_millis(960));
    }
}
