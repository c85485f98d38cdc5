//! Policy of a request: whom to ask next, after how long, and when to give up. Values in, an enum out.

use std::time::Duration;

use crate::error::ErrorKind;
use crate::health::{Standing, fraction};

/// First pause before the same node is asked again, where it named none.
const BACKOFF_FIRST: Duration = Duration::from_millis(20);
/// Longest pause: past it a waiting loader would rather be told.
const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// Most tries of an item that fails, rather than being refused for now: a loop that gets here is a fault to be seen.
pub const ATTEMPTS_MAX: u32 = 64;
/// Tries that move on without a pause: as many nodes as may be lost together without anybody noticing.
const AT_ONCE: u32 = 3;
/// Refusals by one node after which another is asked, as far as the budget of hedges goes: it has to fill the key again.
const REFUSALS_MAX: u32 = 2;
/// A node whose time was up is followed by another if the caller has more than this: less is the difference of two clocks.
const REST_MIN: Duration = Duration::from_millis(100);

/// A try that failed.
#[derive(Clone, Copy, Debug)]
pub struct Failure<'a> {
    /// How.
    pub kind: &'a ErrorKind,
    /// Whether the node itself said so; else it was lost.
    pub said: bool,
    /// Which try it was, from 1.
    pub attempt: u32,
    /// Times in a row that this node was busy, this one included.
    pub refusals: u32,
    /// Times that a node's time was up, this one included.
    pub timeouts: u32,
    /// Whether another node can be asked.
    pub elsewhere: bool,
    /// Until the deadline.
    pub left: Duration,
}

/// What to do with an item that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Ask the same node again after this long.
    Again {
        /// How long.
        after: Duration,
    },
    /// Ask the next node at once if the budget of hedges permits it, else the same one again after this long.
    NextIfSpare {
        /// How long, if it does not.
        otherwise: Duration,
    },
    /// Ask the next node in the key's order after this long; the first again when the order is at its end.
    Next {
        /// How long.
        after: Duration,
    },
    /// Tell the caller.
    GiveUp,
}

/// The rule for a try that failed. `random` is uniform.
///
/// Final errors are the same everywhere. `Busy` keeps to the node for a while, because the next one would have to fill the key again. A
/// node that is lost or leaves is left at once. One whose time was up is followed by one other: what took too long there mostly takes
/// too long anywhere. Pauses have full jitter, so that clients that were refused together do not return together.
pub fn after_failure(failure: &Failure<'_>, random: u64) -> Step {
    let Failure { kind, attempt, left, .. } = *failure;
    let backoff = BACKOFF_FIRST.saturating_mul(1 << attempt.min(10)).min(BACKOFF_MAX);
    let at_once = attempt == 1 || (failure.elsewhere && attempt <= AT_ONCE);
    let step = match kind {
        _ if kind.is_final() => return Step::GiveUp,
        ErrorKind::Timeout if failure.timeouts > 1 || !failure.elsewhere || left < REST_MIN => return Step::GiveUp,
        ErrorKind::Timeout => Step::Next { after: Duration::ZERO },
        // Only the deadline ends it: a cluster that starts cold is busy for long. The node's hint grows with the tries.
        ErrorKind::Busy { retry_after } => {
            let hint = (*retry_after).max(backoff).min(BACKOFF_MAX.max(*retry_after));
            let after = hint / 2 + fraction(hint, random);
            match failure.elsewhere && failure.refusals >= REFUSALS_MAX {
                true => Step::NextIfSpare { otherwise: after },
                false => Step::Again { after },
            }
        }
        _ if attempt >= ATTEMPTS_MAX => return Step::GiveUp,
        ErrorKind::Leaving if failure.elsewhere && at_once => Step::Next { after: Duration::ZERO },
        // It lives, and has no origin or decoder: the next one may have none either.
        ErrorKind::Unavailable if failure.said => Step::Next { after: fraction(backoff, random) },
        ErrorKind::Unavailable | ErrorKind::Protocol if at_once => Step::Next { after: Duration::ZERO },
        _ => Step::Next { after: fraction(backoff, random) },
    };
    match step {
        Step::Again { after } | Step::Next { after } if after >= left => Step::GiveUp,
        step => step,
    }
}

/// Whether an item's nodes are lost: as many tries as move on at once, and at the last one nobody was there to say anything. `said`:
/// whether a node did.
pub fn is_lost(kind: &ErrorKind, said: bool, attempt: u32) -> bool {
    *kind == ErrorKind::Unavailable && !said && attempt >= AT_ONCE
}

/// Which node of a key's order is asked, by how they stand: the first good one after `past`, going round; `past` itself last. Where none is
/// good, the first silent one, which may be back, and only then one that leaves. `None`: there is no node.
pub fn pick(order: &[Standing], past: Option<usize>) -> Option<usize> {
    let count = order.len();
    let start = past.map_or(0, |past| past + 1);
    (0..count).map(|step| (start + step) % count).min_by_key(|&at| order[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);
    const LOST: Failure<'_> =
        Failure { kind: &ErrorKind::Unavailable, said: false, attempt: 1, refusals: 0, timeouts: 0, elsewhere: true, left: LONG };
    const NOW: Step = Step::Next { after: Duration::ZERO };

    fn millis(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Promise: final answers never walk; each other outcome has its rule, inside the deadline only.
    #[test]
    fn rule_by_outcome() {
        for kind in [ErrorKind::NotFound, ErrorKind::Denied, ErrorKind::Changed, ErrorKind::Undecodable, ErrorKind::TooLarge] {
            assert_eq!(after_failure(&Failure { kind: &kind, ..LOST }, 0), Step::GiveUp);
        }
        let busy = ErrorKind::Busy { retry_after: millis(100) };
        let busy = Failure { kind: &busy, said: true, refusals: 1, ..LOST };
        let late = Failure { kind: &ErrorKind::Timeout, said: true, timeouts: 1, ..LOST };
        let leaves = Failure { kind: &ErrorKind::Leaving, said: true, ..LOST };
        let table = [
            ("a lost node is left at once", LOST, u64::MAX, NOW),
            ("three of them", Failure { attempt: 3, ..LOST }, u64::MAX, NOW),
            ("then with a pause", Failure { attempt: 4, ..LOST }, 1 << 63, Step::Next { after: millis(160) }),
            ("alone, once at once", Failure { elsewhere: false, ..LOST }, u64::MAX, NOW),
            ("then with a pause", Failure { elsewhere: false, attempt: 2, ..LOST }, 1 << 63, Step::Next { after: millis(40) }),
            ("not for ever", Failure { attempt: ATTEMPTS_MAX, ..LOST }, 0, Step::GiveUp),
            ("not past the deadline", Failure { left: Duration::ZERO, ..LOST }, 0, Step::GiveUp),
            ("one without origin is left slowly", Failure { said: true, ..LOST }, 1 << 63, Step::Next { after: millis(20) }),
            ("one that leaves, at once", leaves, u64::MAX, NOW),
            ("alone, with a pause", Failure { elsewhere: false, ..leaves }, 1 << 63, Step::Next { after: millis(20) }),
            ("a busy one is kept", busy, 0, Step::Again { after: millis(50) }),
            ("twice it is left", Failure { refusals: 2, ..busy }, 0, Step::NextIfSpare { otherwise: millis(50) }),
            ("not if alone", Failure { refusals: 2, elsewhere: false, ..busy }, 0, Step::Again { after: millis(50) }),
            ("with longer pauses", Failure { attempt: 1000, ..busy }, 0, Step::Again { after: millis(1000) }),
            ("inside the deadline", Failure { left: millis(10), ..busy }, u64::MAX, Step::GiveUp),
            ("one whose time was up is left once", late, u64::MAX, NOW),
            ("once", Failure { timeouts: 2, ..late }, 0, Step::GiveUp),
            ("if there is another", Failure { elsewhere: false, ..late }, 0, Step::GiveUp),
            ("and time", Failure { left: millis(99), ..late }, 0, Step::GiveUp),
        ];
        for (what, failure, random, step) in table {
            assert_eq!(after_failure(&failure, random), step, "{what}");
        }
    }

    /// Promise: pauses grow, and end growing.
    #[test]
    fn pauses_are_bounded() {
        for attempt in 2..ATTEMPTS_MAX {
            match after_failure(&Failure { attempt, ..LOST }, u64::MAX) {
                Step::Next { after } => assert!(after <= BACKOFF_MAX),
                step => panic!("{step:?}"),
            }
        }
    }

    /// Promise: good nodes are asked in the key's order, one after the other and round again; others only where none is good.
    #[test]
    fn nodes_are_picked_in_order() {
        use Standing::{Good, Leaving, Silent};
        for (order, past, picked) in [
            (&[Good, Good, Good][..], None, Some(0)),
            (&[Good, Good, Good], Some(0), Some(1)),
            (&[Good, Good, Good], Some(2), Some(0)),
            (&[Silent, Good, Good], None, Some(1)),
            (&[Good, Silent, Good], Some(0), Some(2)),
            (&[Leaving, Silent, Good], Some(2), Some(2)),
            (&[Leaving, Silent, Silent], None, Some(1)),
            (&[Leaving, Silent, Silent], Some(1), Some(2)),
            (&[Leaving, Leaving], Some(0), Some(1)),
            (&[Good], Some(0), Some(0)),
            (&[], None, None),
        ] {
            assert_eq!(pick(order, past), picked, "{order:?} past {past:?}");
        }
    }
}
