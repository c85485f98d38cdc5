//! Policy of a request: whom to ask next, after how long, and when to give up. Values in, an enum out.

use std::time::Duration;

use crate::error::ErrorKind;

/// First pause before the same node is asked again, where it named none.
const BACKOFF_FIRST: Duration = Duration::from_millis(20);
/// Longest pause: past it a waiting loader would rather be told.
const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// Most tries of an item that fails, rather than being refused for now: a loop that gets here is a fault to be seen.
pub const ATTEMPTS_MAX: u32 = 64;

/// What to do with an item that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Ask the same node again after this long.
    Again {
        /// How long.
        after: Duration,
    },
    /// Ask the walk's next node after this long; the first again when the walk is at its end.
    Next {
        /// How long.
        after: Duration,
    },
    /// Tell the caller.
    GiveUp,
}

/// The rule for try `attempt` (from 1) that ended with `kind`, with `left` until the deadline. `random` is uniform.
///
/// `Busy` keeps to the node, because the next one would have to fill the key again; a lost or failing node is left at once the
/// first time. Pauses have full jitter, so that clients that were refused together do not return together.
pub fn after_failure(kind: &ErrorKind, attempt: u32, left: Duration, random: u64) -> Step {
    let backoff = BACKOFF_FIRST.saturating_mul(1 << attempt.min(10)).min(BACKOFF_MAX);
    let step = match kind {
        _ if kind.is_final() => return Step::GiveUp,
        ErrorKind::Timeout => return Step::GiveUp,
        // Only the deadline ends it: a cluster that starts cold is busy for long. The node's hint grows with the tries.
        ErrorKind::Busy { retry_after } => {
            let hint = (*retry_after).max(backoff).min(BACKOFF_MAX.max(*retry_after));
            Step::Again { after: hint / 2 + jitter(hint, random) }
        }
        _ if attempt >= ATTEMPTS_MAX => return Step::GiveUp,
        _ if attempt == 1 => Step::Next { after: Duration::ZERO },
        _ => Step::Next { after: jitter(backoff, random) },
    };
    match step {
        Step::Again { after } | Step::Next { after } if after >= left => Step::GiveUp,
        step => step,
    }
}

/// Uniform in `[0, most)`.
fn jitter(most: Duration, random: u64) -> Duration {
    most.mul_f64((random >> 11) as f64 / (1u64 << 53) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// Promise: final answers never walk; others are tried again, inside the deadline only.
    #[test]
    fn rule_by_outcome() {
        for kind in [ErrorKind::NotFound, ErrorKind::Denied, ErrorKind::Changed, ErrorKind::Undecodable, ErrorKind::TooLarge] {
            assert_eq!(after_failure(&kind, 1, LONG, 0), Step::GiveUp);
        }
        assert_eq!(after_failure(&ErrorKind::Unavailable, 1, LONG, u64::MAX), Step::Next { after: Duration::ZERO });
        let busy = ErrorKind::Busy { retry_after: Duration::from_millis(100) };
        assert_eq!(after_failure(&busy, 1, LONG, 0), Step::Again { after: Duration::from_millis(50) });
        assert_eq!(after_failure(&busy, 1000, LONG, 0), Step::Again { after: Duration::from_secs(1) });
        assert_eq!(after_failure(&busy, 1, Duration::from_millis(10), u64::MAX), Step::GiveUp);
        assert_eq!(after_failure(&ErrorKind::Timeout, 1, LONG, 0), Step::GiveUp);
        assert_eq!(after_failure(&ErrorKind::Unavailable, ATTEMPTS_MAX, LONG, 0), Step::GiveUp);
    }

    /// Promise: pauses grow, and end growing.
    #[test]
    fn pauses_are_bounded() {
        for attempt in 2..ATTEMPTS_MAX {
            match after_failure(&ErrorKind::Unavailable, attempt, LONG, u64::MAX) {
                Step::Next { after } => assert!(after <= BACKOFF_MAX),
                step => panic!("{step:?}"),
            }
        }
    }
}
