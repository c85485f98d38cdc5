//! Policy: which failure is worth another request, when, and who pays for it.
//!
//! A retry costs a token of a budget that only successes refill, so that a dead origin sees at most a tenth more requests instead of
//! a multiple (the AWS SDKs' retry quota works alike). Waits have full jitter (AWS Architecture Blog, "Exponential Backoff And
//! Jitter"), so that nodes that failed together do not return together.

use std::time::Duration;

use framecache::Version;

use super::OriginError;
use super::random::Random;

/// What became of one attempt that gave no answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Failure {
    /// 503 or 429: the origin asks for less.
    Throttled { retry_after: Option<Duration> },
    /// The origin or the way to it broke: 5xx, reset, connection refused.
    Broken(String),
    /// Nothing came for too long.
    Silent(&'static str),
    /// Something came that is no answer to the question.
    Mangled(String),
    /// 412: the pinned version is gone; the new one where the reply names it.
    Replaced(Option<Version>),
    /// 416: the range begins at or past the end.
    PastEnd,
    /// Asking again cannot help.
    Final(OriginError),
}

/// What a status without a usable body means. `code` is the S3 error code, where the body held one.
pub(crate) fn classify(status: u16, code: Option<&str>, retry_after: Option<Duration>, region: Option<String>) -> Failure {
    match (status, code) {
        (503 | 429, _) | (_, Some("SlowDown" | "Throttling" | "RequestLimitExceeded")) => Failure::Throttled { retry_after },
        (300..=303 | 305..=308, _) => Failure::Final(OriginError::Redirect { region }),
        (400, Some("RequestTimeout")) | (408 | 500 | 502 | 504, _) => Failure::Broken(format!("status {status}")),
        (400, Some("ExpiredToken" | "InvalidToken")) | (401 | 403, _) => Failure::Final(OriginError::Denied),
        (400, Some("AuthorizationHeaderMalformed")) if region.is_some() => Failure::Final(OriginError::Redirect { region }),
        (404 | 410, _) => Failure::Final(OriginError::NotFound),
        (412, _) => Failure::Replaced(None),
        (416, _) => Failure::PastEnd,
        (400..=499 | 501 | 505, code) => {
            Failure::Final(OriginError::InvalidRequest(format!("status {status} {}", code.unwrap_or("without code"))))
        }
        (506.., _) => Failure::Broken(format!("status {status}")),
        _ => Failure::Mangled(format!("status {status} was not asked for")),
    }
}

/// What to do after a failure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Decision {
    /// Send another request after this wait.
    Again { after: Duration },
    /// Give up: another request cannot help, or there have been enough, or no time is left.
    Stop,
    /// Give up although a retry might help: the budget is empty.
    Refused,
}

/// Again or not, after `attempt` requests (from 1), with `left` until the deadline.
pub(crate) fn decide(
    failure: &Failure,
    attempt: u32,
    attempts: u32,
    left: Duration,
    budget: &mut Budget,
    random: &mut Random,
) -> Decision {
    let retry_after = match failure {
        Failure::Final(_) | Failure::Replaced(_) | Failure::PastEnd => return Decision::Stop,
        Failure::Throttled { retry_after } => retry_after.unwrap_or_default(),
        Failure::Broken(_) | Failure::Silent(_) | Failure::Mangled(_) => Duration::ZERO,
    };
    // Jitter comes on top of what the origin asked for: all its clients were told the same number.
    let after = retry_after.saturating_add(backoff(attempt, random));
    if attempt >= attempts || after >= left {
        return Decision::Stop;
    }
    if budget.take() { Decision::Again { after } } else { Decision::Refused }
}

/// Full jitter: uniform between nothing and `50 ms * 2^(attempt - 1)`, at most 5 s.
pub(crate) fn backoff(attempt: u32, random: &mut Random) -> Duration {
    let ceiling = BACKOFF_FIRST.saturating_mul(1 << attempt.saturating_sub(1).min(16)).min(BACKOFF_MAX);
    ceiling.mul_f64(random.unit())
}

/// Tokens for retries: each success earns a little, each retry costs one.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    tokens: f64,
    cap: f64,
    earn: f64,
}

impl Budget {
    pub(crate) fn full(cap: f64, earn: f64) -> Self {
        Self { tokens: cap, cap, earn }
    }

    pub(crate) fn earn(&mut self) {
        self.tokens = (self.tokens + self.earn).min(self.cap);
    }

    pub(crate) fn take(&mut self) -> bool {
        let enough = self.tokens >= 1.0;
        if enough {
            self.tokens -= 1.0;
        }
        enough
    }
}

/// How long one attempt may wait for its first byte: the limit, or half of what is left so that a retry fits, but not less than a
/// slow, healthy origin needs.
pub(crate) fn first_byte_limit(limit: Duration, left: Duration) -> Duration {
    limit.min((left / 2).max(FIRST_BYTE_MIN)).min(left)
}

/// The error that a caller sees when `failure` was the last word.
pub(crate) fn verdict(failure: Failure, pin: Option<&Version>) -> OriginError {
    match (failure, pin) {
        (Failure::Final(error), _) => error,
        (Failure::Throttled { retry_after }, _) => OriginError::Busy { retry_after: retry_after.unwrap_or(THROTTLE_WAIT) },
        (Failure::Broken(why), _) => OriginError::Unavailable(why),
        (Failure::Silent(where_), _) => OriginError::Unavailable(format!("{where_} did not come in time")),
        (Failure::Mangled(why), _) => OriginError::Corrupt(why),
        (Failure::Replaced(new), Some(old)) => OriginError::Changed { old: old.clone(), new },
        (Failure::Replaced(_), None) => OriginError::Corrupt("precondition failed where none was set".into()),
        (Failure::PastEnd, _) => OriginError::Corrupt("range is not satisfiable where none was asked".into()),
    }
}

const BACKOFF_FIRST: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// Half a second: S3's first byte takes 100 to 200 ms, its 99.9th percentile stays below this.
const FIRST_BYTE_MIN: Duration = Duration::from_millis(500);
/// What we tell callers when a throttling origin named no time.
const THROTTLE_WAIT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    /// Promise: each status leads to one outcome, 403 and 404 apart, redirects never followed.
    #[test]
    fn statuses_are_classified() {
        let region = || Some("eu-west-1".to_owned());
        let last = |status, code| verdict(classify(status, code, None, region()), None);
        for (status, code, want) in [
            (404, None, OriginError::NotFound),
            (404, Some("NoSuchBucket"), OriginError::NotFound),
            (403, Some("AccessDenied"), OriginError::Denied),
            (401, None, OriginError::Denied),
            (400, Some("ExpiredToken"), OriginError::Denied),
            (301, None, OriginError::Redirect { region: region() }),
            (307, Some("TemporaryRedirect"), OriginError::Redirect { region: region() }),
            (308, None, OriginError::Redirect { region: region() }),
            (400, Some("AuthorizationHeaderMalformed"), OriginError::Redirect { region: region() }),
            (400, Some("InvalidArgument"), OriginError::InvalidRequest("status 400 InvalidArgument".into())),
            (503, None, OriginError::Busy { retry_after: THROTTLE_WAIT }),
            (429, None, OriginError::Busy { retry_after: THROTTLE_WAIT }),
            (500, None, OriginError::Unavailable("status 500".into())),
            (599, None, OriginError::Unavailable("status 599".into())),
            (204, None, OriginError::Corrupt("status 204 was not asked for".into())),
        ] {
            assert_eq!(last(status, code), want, "{status} {code:?}");
        }
    }

    /// Promise: what cannot get better is asked once; what can is asked again while attempts, time and tokens last.
    #[test]
    fn decisions_follow_the_table() {
        let broken = || Failure::Broken("status 500".into());
        let again = |failure: &Failure, attempt, left, tokens| {
            let mut budget = Budget::full(tokens, 0.1);
            decide(failure, attempt, 3, left, &mut budget, &mut Random::seeded(1))
        };
        for final_ in [
            Failure::Final(OriginError::NotFound),
            Failure::Final(OriginError::Denied),
            Failure::Replaced(None),
            Failure::PastEnd,
        ] {
            assert_eq!(again(&final_, 1, LONG, 9.0), Decision::Stop, "{final_:?}");
        }
        for passing in
            [broken(), Failure::Silent("first byte"), Failure::Mangled("short".into()), Failure::Throttled { retry_after: None }]
        {
            assert!(matches!(again(&passing, 1, LONG, 9.0), Decision::Again { .. }), "{passing:?}");
            assert_eq!(again(&passing, 3, LONG, 9.0), Decision::Stop, "attempts are up: {passing:?}");
            assert_eq!(again(&passing, 1, LONG, 0.5), Decision::Refused, "budget is empty: {passing:?}");
            assert_eq!(again(&passing, 1, Duration::ZERO, 9.0), Decision::Stop, "no time: {passing:?}");
        }
        let told = Failure::Throttled { retry_after: Some(Duration::from_secs(2)) };
        let Decision::Again { after } = again(&told, 1, LONG, 9.0) else { panic!("retry expected") };
        assert!(after >= Duration::from_secs(2) && after <= Duration::from_millis(2050), "{after:?}");
        assert_eq!(again(&told, 1, Duration::from_secs(1), 9.0), Decision::Stop, "told to wait past the deadline");
    }

    /// Promise: jitter fills its whole range, from nothing to a ceiling that doubles up to 5 s.
    #[test]
    fn backoff_has_full_jitter() {
        let mut random = Random::seeded(7);
        for (attempt, ceiling_ms) in [(1, 50.0), (2, 100.0), (4, 400.0), (8, 5000.0), (60, 5000.0)] {
            let draws: Vec<f64> = (0..2000).map(|_| backoff(attempt, &mut random).as_secs_f64() * 1e3 / ceiling_ms).collect();
            let mean = draws.iter().sum::<f64>() / draws.len() as f64;
            assert!(draws.iter().all(|d| (0.0..1.0).contains(d)), "attempt {attempt}");
            assert!((mean - 0.5).abs() < 0.03, "attempt {attempt}: mean {mean}");
            assert!(draws.iter().any(|d| *d < 0.05) && draws.iter().any(|d| *d > 0.95), "attempt {attempt}");
        }
    }

    /// Promise: whatever fails, retries stay within the cap plus a tenth of the successes.
    #[test]
    fn budget_bounds_retries() {
        let mut budget = Budget::full(10.0, 0.1);
        assert_eq!((0..1000).filter(|_| budget.take()).count(), 10);
        (0..55).for_each(|_| budget.earn());
        assert_eq!((0..1000).filter(|_| budget.take()).count(), 5);
        (0..100_000).for_each(|_| budget.earn());
        assert_eq!((0..1000).filter(|_| budget.take()).count(), 10);
    }

    /// Promise: one silent attempt never eats the whole deadline where a retry could still fit.
    #[test]
    fn first_byte_leaves_room() {
        let ms = Duration::from_millis;
        for (limit, left, want) in [(10_000, 60_000, 10_000), (10_000, 4_000, 2_000), (10_000, 700, 500), (10_000, 300, 300)] {
            assert_eq!(first_byte_limit(ms(limit), ms(left)), ms(want), "{limit} {left}");
        }
    }
}
