//! What a client counts, for its user.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of a client since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Requests that were sent to nodes; a batch has one for each node.
    pub requests: u64,
    /// Tries after a failed one, per item.
    pub retries: u64,
    /// Requests to a node because one before it in the key's order could not be had.
    pub failovers: u64,
    /// Items that a second node was asked for, because the first was slow.
    pub hedges: u64,
    /// Those that the second node gave first.
    pub hedges_won: u64,
    /// Items that another node than the owner was asked for, because the key is hot.
    pub replicas: u64,
    /// Changes of the view.
    pub views: u64,
    /// Times that a node fell silent, or could not be reached.
    pub silences: u64,
    /// Reads of the origin because no node could be reached.
    pub fallbacks: u64,
    /// Bytes of those.
    pub fallback_bytes: u64,
}

/// The same, being counted.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) requests: AtomicU64,
    pub(crate) retries: AtomicU64,
    pub(crate) failovers: AtomicU64,
    pub(crate) hedges: AtomicU64,
    pub(crate) hedges_won: AtomicU64,
    pub(crate) replicas: AtomicU64,
    pub(crate) views: AtomicU64,
    pub(crate) silences: AtomicU64,
    pub(crate) fallbacks: AtomicU64,
    pub(crate) fallback_bytes: AtomicU64,
}

impl Counters {
    pub(crate) fn stats(&self) -> Stats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            requests: of(&self.requests),
            retries: of(&self.retries),
            failovers: of(&self.failovers),
            hedges: of(&self.hedges),
            hedges_won: of(&self.hedges_won),
            replicas: of(&self.replicas),
            views: of(&self.views),
            silences: of(&self.silences),
            fallbacks: of(&self.fallbacks),
            fallback_bytes: of(&self.fallback_bytes),
        }
    }
}

/// One more, or several.
pub(crate) fn count(counter: &AtomicU64, more: usize) {
    counter.fetch_add(more as u64, Ordering::Relaxed);
}
