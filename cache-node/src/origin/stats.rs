//! Counters of one origin: plain atomics, added on the way, read by telemetry.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::OriginError;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Live counters of an origin, all buckets together. Only `in_flight` ever falls.
        #[derive(Debug, Default)]
        pub struct OriginStats { $($(#[$doc])* pub $name: AtomicU64,)* }

        /// The counters at one moment (each read for itself).
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct OriginSnapshot { $($(#[$doc])* pub $name: u64,)* }

        impl OriginStats {
            /// All counters now.
            pub fn snapshot(&self) -> OriginSnapshot {
                OriginSnapshot { $($name: self.$name.load(Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Requests sent, retries and hedges included.
    requests,
    /// Requests sent because an earlier one failed.
    retries,
    /// Retries that the policy wanted and the budget refused.
    retries_refused,
    /// Second requests sent because the first was slow.
    hedges,
    /// Hedges that answered first.
    hedges_won,
    /// Replies that said "slow down" (503, 429).
    throttled,
    /// Body bytes returned to callers.
    bytes,
    /// Requests being answered now.
    in_flight,
    /// Calls that ended in `NotFound`.
    errors_not_found,
    /// Calls that ended in `Denied`.
    errors_denied,
    /// Calls that ended in `Changed`.
    errors_changed,
    /// Calls refused early with `Busy`.
    errors_busy,
    /// Calls that ended in `Unavailable`.
    errors_unavailable,
    /// Calls that ended in `Corrupt`.
    errors_corrupt,
    /// Calls that ended in `Deadline`.
    errors_deadline,
    /// Calls that ended in `Redirect`.
    errors_redirect,
    /// Calls that ended in `InvalidRequest` or `NotConfigured`.
    errors_invalid,
}

impl OriginStats {
    pub(crate) fn count(&self, error: &OriginError) {
        let counter = match error {
            OriginError::NotFound => &self.errors_not_found,
            OriginError::Denied => &self.errors_denied,
            OriginError::Changed { .. } => &self.errors_changed,
            OriginError::Busy { .. } => &self.errors_busy,
            OriginError::Unavailable(_) => &self.errors_unavailable,
            OriginError::Corrupt(_) => &self.errors_corrupt,
            OriginError::Deadline => &self.errors_deadline,
            OriginError::Redirect { .. } => &self.errors_redirect,
            OriginError::InvalidRequest(_) | OriginError::NotConfigured(_) => &self.errors_invalid,
        };
        counter.fetch_add(1, Relaxed);
    }
}

/// Counts one request as in flight for as long as it lives, however it ends.
pub(crate) struct InFlight<'a>(&'a OriginStats);

impl<'a> InFlight<'a> {
    pub(crate) fn enter(stats: &'a OriginStats) -> Self {
        stats.requests.fetch_add(1, Relaxed);
        stats.in_flight.fetch_add(1, Relaxed);
        Self(stats)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Relaxed);
    }
}
