//! Grant, wait or refuse: numbers in, an answer out.

use std::time::Duration;

/// Waiters per level. At 1,024 the queue is 100 KiB, and one that is full takes longer to drain than any deadline seen in
/// training (1,024 pictures at 500 a second and core are a second on two cores, at video units minutes).
pub(super) const WAITERS_MAX: usize = 1024;

/// What is answered while nothing is known about the pace: about one decode of a large picture.
const RETRY_UNKNOWN: Duration = Duration::from_millis(100);

/// Below 10 ms a refused client would come back before anything can have changed; beyond 5 s it had better ask elsewhere.
const RETRY_BOUNDS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(5));

/// What one more reservation weighs in the running means: an eighth forgets a burst after a dozen (the smoothing of a round-trip
/// time in RFC 6298, section 2.3).
const WEIGHT: f64 = 1.0 / 8.0;

/// One request and the state of its level.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    pub(super) bytes: u64,
    /// The largest reservation of this level.
    pub(super) most: u64,
    /// What the level may take now.
    pub(super) free: u64,
    pub(super) in_use: u64,
    pub(super) waiters: usize,
    pub(super) waiting_bytes: u64,
    /// How long the first in the queue has stood there.
    pub(super) oldest_wait: Duration,
    pub(super) time_left: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Grant,
    Wait,
    Busy { retry_after: Duration },
    TooLarge { most: u64 },
}

pub(super) fn decide(ask: &Ask, pace: &Pace) -> Answer {
    if ask.bytes > ask.most {
        return Answer::TooLarge { most: ask.most };
    }
    // Nobody overtakes within a level, however small.
    if ask.waiters == 0 && ask.bytes <= ask.free {
        return Answer::Grant;
    }
    let ahead = (ask.waiting_bytes + ask.bytes).saturating_sub(ask.free);
    // The first in the queue has seen what a prediction cannot: a level that stands still. In steady flow its wait is ours too.
    let wait = pace.wait(ahead, ask.in_use).map(|wait| wait.max(ask.oldest_wait));
    // Twice, for where all come with one deadline the first in the queue has by now stood there for nearly as long, at most: whoever
    // joined it then would wait just as long and be granted nothing.
    let in_time = wait.unwrap_or(ask.oldest_wait).saturating_mul(2) < ask.time_left;
    if in_time && ask.waiters < WAITERS_MAX { Answer::Wait } else { Answer::Busy { retry_after: retry_after(wait) } }
}

/// When to come back, given the predicted wait.
pub(super) fn retry_after(wait: Option<Duration>) -> Duration {
    wait.unwrap_or(RETRY_UNKNOWN).clamp(RETRY_BOUNDS.0, RETRY_BOUNDS.1)
}

/// How fast a level drains.
///
/// Bytes are held for a mean time, so a level with `in_use` bytes drains `in_use / mean` bytes a second (Little's law). A rate
/// counted per second of clock would call an idle level slow.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    /// Running means of bytes and of bytes times seconds held; their ratio is the mean time that a byte is held.
    bytes: f64,
    byte_seconds: f64,
}

impl Pace {
    /// These bytes came back after that time.
    pub(super) fn record(&mut self, bytes: u64, held: Duration) {
        // Nothing was held, or it was never used (a cancelled wait): that says nothing about the pace.
        if bytes == 0 || held.is_zero() {
            return;
        }
        let weight = if self.bytes == 0.0 { 1.0 } else { WEIGHT };
        let bytes = bytes as f64;
        self.bytes += (bytes - self.bytes) * weight;
        self.byte_seconds += (bytes * held.as_secs_f64() - self.byte_seconds) * weight;
    }

    /// How long until `ahead` bytes of `in_use` have come back; `None` while nothing is known.
    pub(super) fn wait(&self, ahead: u64, in_use: u64) -> Option<Duration> {
        if self.bytes == 0.0 || in_use == 0 {
            return None;
        }
        let mean_held = self.byte_seconds / self.bytes;
        Duration::try_from_secs_f64(mean_held * ahead as f64 / in_use as f64).ok().or(Some(Duration::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn ask() -> Ask {
        Ask {
            bytes: 10,
            most: 100,
            free: 0,
            in_use: 100,
            waiters: 0,
            waiting_bytes: 0,
            oldest_wait: Duration::ZERO,
            time_left: 1000 * MS,
        }
    }

    /// Granted if it fits and nobody stands before it; queued if that is likely to help; refused at once otherwise.
    #[test]
    fn the_answer_follows_from_the_numbers() {
        let mut pace = Pace::default();
        pace.record(10, 500 * MS);
        let busy = |ms: u32| Answer::Busy { retry_after: MS * ms };
        let cases = [
            ("fits", Ask { free: 10, ..ask() }, Answer::Grant),
            ("never fits", Ask { bytes: 101, free: 200, ..ask() }, Answer::TooLarge { most: 100 }),
            ("all of it", Ask { bytes: 100, free: 100, in_use: 0, ..ask() }, Answer::Grant),
            ("a tenth of 500 ms", ask(), Answer::Wait),
            ("a tenth of 500 ms is all there is", Ask { time_left: 50 * MS, ..ask() }, busy(50)),
            ("no time at all", Ask { time_left: Duration::ZERO, ..ask() }, busy(50)),
            ("no overtaking", Ask { free: 10, waiters: 1, waiting_bytes: 90, ..ask() }, Answer::Wait),
            ("a long queue", Ask { waiting_bytes: 190, waiters: 19, ..ask() }, busy(1000)),
            ("full", Ask { waiters: WAITERS_MAX, ..ask() }, busy(50)),
            ("one place left", Ask { waiters: WAITERS_MAX - 1, ..ask() }, Answer::Wait),
            (
                "the first has stood for half of the time",
                Ask { waiters: 1, waiting_bytes: 10, oldest_wait: 500 * MS, ..ask() },
                busy(500),
            ),
            ("stands still", Ask { waiters: 1, waiting_bytes: 10, oldest_wait: 2000 * MS, ..ask() }, busy(2000)),
            ("very long", Ask { waiting_bytes: 1_000_000, waiters: 9, ..ask() }, busy(5000)),
        ];
        for (name, ask, answer) in cases {
            assert_eq!(decide(&ask, &pace), answer, "{name}");
        }
        assert_eq!(decide(&ask(), &Pace::default()), Answer::Wait, "nothing known, time left");
        let late = Ask { time_left: Duration::ZERO, ..ask() };
        assert_eq!(decide(&late, &Pace::default()), busy(100), "nothing known, no time left");
    }

    /// Large items count by their bytes, and a change is believed after a dozen.
    #[test]
    fn the_pace_is_a_mean_by_bytes() {
        let mut pace = Pace::default();
        for _ in 0..50 {
            pace.record(1, MS);
            pace.record(1000, 100 * MS);
        }
        let wait = pace.wait(100, 100).expect("known");
        assert!((95 * MS..101 * MS).contains(&wait), "{wait:?}");
        for _ in 0..24 {
            pace.record(1000, 10 * MS);
        }
        let wait = pace.wait(100, 100).expect("known");
        assert!((10 * MS..20 * MS).contains(&wait), "{wait:?}");
        pace.record(1000, Duration::ZERO);
        assert_eq!(pace.wait(100, 100), Some(wait), "a cancelled wait says nothing");
    }
}
