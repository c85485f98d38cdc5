//! Policy: how many requests at once and how often, learnt from "slow down".
//!
//! Two brakes, since one is not enough: the window (requests at once) halves and grows by one per round trip (AIMD), but an origin that
//! refuses in a millisecond would still see a thousand requests a second through a window of one. So a throttled bucket also spaces
//! its requests, at intervals that double to one second and shrink again with each success.

use std::time::Duration;

use tokio::time::Instant;

use super::random::Random;

#[derive(Clone, Debug)]
pub(crate) struct Pace {
    window: f64,
    window_max: f64,
    interval: Duration,
    next: Option<Instant>,
    cut: Option<Instant>,
    service: Duration,
}

impl Pace {
    pub(crate) fn new(window_max: usize) -> Self {
        let window_max = window_max.max(1) as f64;
        Self { window: window_max, window_max, interval: Duration::ZERO, next: None, cut: None, service: Duration::ZERO }
    }

    /// Requests that may be in flight.
    pub(crate) fn slots(&self) -> usize {
        self.window as usize
    }

    /// Whether requests are being spaced.
    pub(crate) fn is_braking(&self) -> bool {
        !self.interval.is_zero()
    }

    /// A request was answered after `took`.
    pub(crate) fn success(&mut self, took: Duration) {
        self.window = (self.window + 1.0 / self.window).min(self.window_max);
        self.interval = Some(self.interval.mul_f64(INTERVAL_SHRINK)).filter(|i| *i >= INTERVAL_MIN).unwrap_or_default();
        self.service = if self.service.is_zero() { took } else { self.service.mul_f64(0.9) + took.mul_f64(0.1) };
    }

    /// The origin asked for less. Replies that come together count once: they answer one moment.
    pub(crate) fn throttled(&mut self, now: Instant, retry_after: Option<Duration>) {
        if let Some(wait) = retry_after {
            let resume = now + wait.min(RETRY_AFTER_MAX);
            self.next = Some(self.next.map_or(resume, |next| next.max(resume)));
        }
        if self.cut.is_some_and(|cut| now < cut + CUT_SPACING) {
            return;
        }
        self.cut = Some(now);
        self.window = (self.window / 2.0).max(1.0);
        self.interval = (self.interval * 2).clamp(INTERVAL_FIRST, INTERVAL_MAX);
    }

    /// When the next request may start, at half to one and a half intervals after the one before; or, where that is past `deadline`,
    /// how long it would have taken.
    pub(crate) fn reserve(&mut self, now: Instant, deadline: Instant, random: &mut Random) -> Result<Instant, Duration> {
        let start = self.next.map_or(now, |next| next.max(now));
        if start > deadline {
            return Err(start - now);
        }
        self.next = self.is_braking().then(|| start + self.interval.mul_f64(0.5 + random.unit()));
        Ok(start)
    }

    /// How long a call will probably wait with `ahead` before it and `in_use` in flight.
    pub(crate) fn wait(&self, now: Instant, in_use: usize, ahead: usize) -> Duration {
        let slots = self.slots() as u32;
        let for_slot =
            if in_use < self.slots() && ahead == 0 { Duration::ZERO } else { self.service * (ahead as u32 + 1) / slots };
        let for_start = self.next.map_or(Duration::ZERO, |next| next.saturating_duration_since(now));
        for_slot.max(for_start + self.interval * ahead as u32)
    }
}

/// One window cut per this time, about a round trip.
const CUT_SPACING: Duration = Duration::from_millis(100);
const INTERVAL_FIRST: Duration = Duration::from_millis(10);
/// One request a second keeps asking whether the storm is over; reached after about two seconds of refusals.
const INTERVAL_MAX: Duration = Duration::from_secs(1);
/// Below this, spacing is no brake any more.
const INTERVAL_MIN: Duration = Duration::from_millis(1);
/// 1 s to 1 ms in ten successes, which take 2 s; where half of the replies still refuse, growth and shrinkage balance.
const INTERVAL_SHRINK: f64 = 0.5;
/// An origin that names a longer pause is asked again after this one.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    /// A dumb world: callers that always want more, an origin that answers in `rtt` or refuses. Requests started per second.
    fn simulate(rtt: Duration, storm: std::ops::Range<u64>, seconds: u64, seed: u64) -> Vec<usize> {
        let mut pace = Pace::new(64);
        let mut random = Random::seeded(seed);
        let begin = Instant::now();
        let mut flights: Vec<(Instant, bool)> = Vec::new();
        let mut started = vec![0; seconds as usize];
        let (mut now, mut pending) = (begin, None);
        while (now - begin).as_secs() < seconds {
            let second = (now - begin).as_secs();
            flights.retain(|(done, refused)| {
                let over = *done <= now;
                match (over, refused) {
                    (true, true) => pace.throttled(now, None),
                    (true, false) => pace.success(rtt),
                    _ => {}
                }
                !over
            });
            while flights.len() < pace.slots() {
                let start = match pending.take() {
                    Some(start) => start,
                    None => pace.reserve(now, now + Duration::from_secs(60), &mut random).expect("start"),
                };
                if start > now {
                    pending = Some(start);
                    break;
                }
                let refused = storm.contains(&second);
                flights.push((now + if refused { Duration::from_millis(2) } else { rtt }, refused));
                started[second as usize] += 1;
            }
            now += Duration::from_millis(1);
        }
        started
    }

    /// Promise: a storm of "slow down" brings the rate to a tenth within 5 s, and it is back within 30 s of the storm's end.
    #[test]
    fn storm_is_weathered() {
        for seed in 0..20 {
            let rate = simulate(Duration::from_millis(50), 10..70, 110, seed);
            let calm = rate[8];
            let worst = rate[15..70].iter().max().expect("seconds");
            assert!(*worst <= calm / 10, "seed {seed}: {calm}/s calm, {worst}/s in the storm: {rate:?}");
            let back = rate[70..].iter().position(|r| *r * 10 >= calm * 9).expect("recovery");
            assert!(back <= 30, "seed {seed}: back after {back} s: {rate:?}");
        }
    }

    /// Promise: starts in a storm are spread out by jitter, not one wave.
    #[test]
    fn starts_are_jittered() {
        let now = Instant::now();
        let gaps: Vec<Duration> = (0..100)
            .map(|seed| {
                let mut pace = Pace::new(64);
                (0..20).for_each(|n| pace.throttled(now + CUT_SPACING * n, None));
                let mut random = Random::seeded(seed);
                let deadline = now + Duration::from_secs(60);
                let first = pace.reserve(now, deadline, &mut random).expect("first");
                pace.reserve(now, deadline, &mut random).expect("second") - first
            })
            .collect();
        let (least, most) = (gaps.iter().min().expect("gap"), gaps.iter().max().expect("gap"));
        assert!(*least < Duration::from_millis(600) && *most > Duration::from_millis(1400), "{least:?} {most:?}");
    }

    /// Promise: the window never falls below one nor rises above its limit, and one moment's refusals cut it once.
    #[test]
    fn window_stays_in_bounds() {
        let mut pace = Pace::new(8);
        let now = Instant::now();
        (0..100).for_each(|_| pace.throttled(now, None));
        assert_eq!(pace.slots(), 4);
        (0..100).for_each(|n| pace.throttled(now + CUT_SPACING * n, None));
        assert_eq!(pace.slots(), 1);
        (0..1000).for_each(|_| pace.success(Duration::from_millis(1)));
        assert_eq!((pace.slots(), pace.is_braking()), (8, false));
    }

    /// Promise: a told pause is kept, and a caller who cannot wait for it is told how long it is.
    #[test]
    fn retry_after_is_kept() {
        let mut pace = Pace::new(8);
        let now = Instant::now();
        pace.throttled(now, Some(Duration::from_secs(3)));
        let mut random = Random::seeded(1);
        assert_eq!(pace.reserve(now, now + Duration::from_secs(1), &mut random), Err(Duration::from_secs(3)));
        assert_eq!(pace.reserve(now, now + Duration::from_secs(9), &mut random), Ok(now + Duration::from_secs(3)));
        assert!(pace.wait(now, 0, 0) >= Duration::from_secs(3));
    }
}
