//! What the cluster room counts: plain atomics, read by whoever exports them.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Refusal;

/// Everything the room counts, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterStats {
    /// Nodes of the published view by state: joining, serving, leaving, gone.
    pub nodes: [u64; 4],
    /// Nodes that gossip tells of and whose certificate has not proved their name.
    pub unproved: u64,
    /// Nodes of the view that this one cannot hear.
    pub silent: u64,
    /// Datagrams that were taken: gossip, liveness.
    pub datagrams: [u64; 2],
    /// Datagrams that were refused, in the order of [`Refusal::ALL`].
    pub refused: [u64; Refusal::ALL.len()],
    /// Times that others held this node for gone, and it said that it is not.
    pub refutations: u64,
    /// Times that this node held another for gone.
    pub losses: u64,
    /// Views that were published.
    pub views: u64,
    /// Times that gossip was started anew after it had failed.
    pub gossip_restarts: u64,
}

/// The counters behind [`ClusterStats`].
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) gossip: AtomicU64,
    pub(super) liveness: AtomicU64,
    refused: [AtomicU64; Refusal::ALL.len()],
    pub(super) refutations: AtomicU64,
    pub(super) losses: AtomicU64,
    pub(super) views: AtomicU64,
    pub(super) gossip_restarts: AtomicU64,
}

impl Counters {
    pub(super) fn refuse(&self, refusal: Refusal) {
        add(&self.refused[refusal as usize]);
    }

    /// What is counted; the rest is left to the caller.
    pub(super) fn read(&self) -> ClusterStats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ClusterStats {
            datagrams: [of(&self.gossip), of(&self.liveness)],
            refused: std::array::from_fn(|at| of(&self.refused[at])),
            refutations: of(&self.refutations),
            losses: of(&self.losses),
            views: of(&self.views),
            gossip_restarts: of(&self.gossip_restarts),
            ..ClusterStats::default()
        }
    }
}

pub(super) fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
