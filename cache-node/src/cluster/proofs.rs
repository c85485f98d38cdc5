//! Handshakes by which nodes prove their names: a few at a time, each with a deadline, and again after a pause where they fail.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use framecache::wire::NodeRow;
use tokio::task::JoinSet;

use super::Prove;

/// Handshakes under way: a node that joins a thousand has proved them all within seconds.
const RUNNING_MAX: usize = 16;

/// The time for each.
const TIME: Duration = Duration::from_secs(5);

/// The pause after one that failed, doubled each time up to the longest: a node's door may open a little after its gossip does.
const PAUSE: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// What is proved: this life of this node, at this address.
type Claim = (String, u64, String);

/// Proofs that are wanted.
pub(super) struct Proofs {
    prove: Arc<dyn Prove>,
    running: JoinSet<(NodeRow, bool)>,
    /// When a claim may be tried again, and how often it was. Only of claims that are wanted.
    tried: HashMap<Claim, (Instant, u32)>,
}

impl Proofs {
    pub(super) fn new(prove: Arc<dyn Prove>) -> Self {
        Self { prove, running: JoinSet::new(), tried: HashMap::new() }
    }

    /// These are wanted, and no others.
    pub(super) fn ask(&mut self, wanted: Vec<NodeRow>, now: Instant) {
        let claims: HashSet<Claim> = wanted.iter().map(claim).collect();
        self.tried.retain(|tried, _| claims.contains(tried));
        for row in wanted {
            let claim = claim(&row);
            let times = match self.tried.get(&claim) {
                Some((next, _)) if *next > now => continue,
                Some((_, times)) => *times,
                None => 0,
            };
            if self.running.len() >= RUNNING_MAX {
                return;
            }
            // Not again while it runs.
            self.tried.insert(claim, (now + TIME + pause(times), times + 1));
            let prove = self.prove.clone();
            self.running.spawn(async move {
                let proved = tokio::time::timeout(TIME, prove.prove(&row)).await.unwrap_or(false);
                (row, proved)
            });
        }
    }

    /// The next row that was proved. May be dropped at any time.
    pub(super) async fn next(&mut self) -> NodeRow {
        loop {
            match self.running.join_next().await {
                Some(Ok((row, true))) => return row,
                Some(Ok((row, false))) => {
                    tracing::debug!(node = row.id, address = row.quic, "node did not prove its name");
                    if let Some((next, times)) = self.tried.get_mut(&claim(&row)) {
                        *next = Instant::now() + pause(times.saturating_sub(1));
                    }
                }
                // A panic in the handshake: as if it had failed; its pause is over with its deadline.
                Some(Err(_)) => {}
                None => std::future::pending().await,
            }
        }
    }
}

fn claim(row: &NodeRow) -> Claim {
    (row.id.clone(), row.incarnation, row.quic.clone())
}

/// The pause after so many failures before this one.
fn pause(failures: u32) -> Duration {
    PAUSE.saturating_mul(1 << failures.min(16)).min(PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Fails for the first two calls, then holds.
    #[derive(Default)]
    struct Third(AtomicUsize);

    #[async_trait::async_trait]
    impl Prove for Third {
        async fn prove(&self, _row: &NodeRow) -> bool {
            self.0.fetch_add(1, Ordering::Relaxed) >= 2
        }
    }

    /// Promise: a proof that fails is tried again, with longer and longer pauses; not while it runs, and not for whom nobody wants.
    #[tokio::test]
    async fn proofs_are_tried_again() {
        let third = Arc::new(Third::default());
        let mut proofs = Proofs::new(third.clone());
        let row = NodeRow::member("a", 100);
        let mut now = Instant::now();
        for calls in 1..=3 {
            proofs.ask(vec![row.clone()], now);
            proofs.ask(vec![row.clone()], now);
            let proved = tokio::time::timeout(Duration::from_millis(50), proofs.next()).await;
            assert_eq!((third.0.load(Ordering::Relaxed), proved.is_ok()), (calls, calls == 3));
            now += PAUSE_MAX;
        }
        proofs.ask(vec![], now);
        assert!(proofs.tried.is_empty());
        assert_eq!([pause(0), pause(1), pause(3), pause(60)], [PAUSE, 2 * PAUSE, 8 * PAUSE, PAUSE_MAX]);
        proofs.ask((0..100).map(|n| NodeRow::member(&n.to_string(), 100)).collect(), now);
        assert_eq!(proofs.running.len(), RUNNING_MAX);
    }
}
