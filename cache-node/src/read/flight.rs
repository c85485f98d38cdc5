//! One fill for all who wait for it.
//!
//! The first to ask leads: its fill is spawned on the node's task set, under the flight's own deadline. Whoever asks meanwhile
//! waits for the same answer. A waiter that leaves leaves alone, the leader too.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use tokio_util::task::TaskTracker;

/// Most flights at once: past it the node has more work than its queues allow, and says so.
const FLIGHTS_MAX: usize = 16_384;

/// The answer of a running fill, once it has landed; `None` if it was lost.
pub(super) type Flight<V> = Shared<BoxFuture<'static, Option<V>>>;

/// Running fills by what they fill.
pub(super) struct Flights<K, V> {
    tasks: TaskTracker,
    running: Arc<Mutex<HashMap<K, Flight<V>>>>,
    joined: AtomicU64,
}

/// What to do for one who asks. Policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Nobody fills it: begin.
    Lead,
    /// Somebody does: wait.
    Wait,
    /// Too many run.
    Refuse,
}

fn part(running_already: bool, running: usize) -> Part {
    match running_already {
        true => Part::Wait,
        false if running >= FLIGHTS_MAX => Part::Refuse,
        false => Part::Lead,
    }
}

/// Why a flight gave no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grounded {
    /// Too many flights run.
    Full,
    /// The fill ended without an answer: it panicked, or the node ends.
    Lost,
}

impl<K: Hash + Eq + Clone + Send + 'static, V: Clone + Send + Sync + 'static> Flights<K, V> {
    pub(super) fn new(tasks: TaskTracker) -> Self {
        Self { tasks, running: Arc::default(), joined: AtomicU64::new(0) }
    }

    /// How many waited for a flight of another's.
    pub(super) fn joined(&self) -> u64 {
        self.joined.load(Ordering::Relaxed)
    }

    /// The answer of the flight for `key`; `fill` is what it does if none runs. Dropping the call leaves the flight.
    pub(super) async fn join<F>(&self, key: K, fill: impl FnOnce() -> F) -> Result<V, Grounded>
    where
        F: Future<Output = V> + Send + 'static,
    {
        self.board(key, fill)?.await.ok_or(Grounded::Lost)
    }

    /// The flight for `key`; `fill` is what it does if none runs, and is called only then.
    pub(super) fn board<F>(&self, key: K, fill: impl FnOnce() -> F) -> Result<Flight<V>, Grounded>
    where
        F: Future<Output = V> + Send + 'static,
    {
        let mut running = self.running.lock();
        let found = running.get(&key).cloned();
        match (part(found.is_some(), running.len()), found) {
            (Part::Wait, Some(flight)) => {
                self.joined.fetch_add(1, Ordering::Relaxed);
                Ok(flight)
            }
            (Part::Refuse, _) => Err(Grounded::Full),
            _ => {
                let flight = self.begin(key.clone(), fill());
                running.insert(key, flight.clone());
                Ok(flight)
            }
        }
    }

    /// Whether one runs for `key`.
    pub(super) fn runs(&self, key: &K) -> bool {
        self.running.lock().contains_key(key)
    }

    fn begin<F>(&self, key: K, fill: F) -> Flight<V>
    where
        F: Future<Output = V> + Send + 'static,
    {
        let landed = Landed { running: self.running.clone(), key };
        let task = self.tasks.spawn(async move {
            let answer = fill.await;
            drop(landed);
            answer
        });
        async move { task.await.ok() }.boxed().shared()
    }
}

/// Takes the flight off the board, whether it answered or panicked.
struct Landed<K: Hash + Eq, V> {
    running: Arc<Mutex<HashMap<K, Flight<V>>>>,
    key: K,
}

impl<K: Hash + Eq, V> Drop for Landed<K, V> {
    fn drop(&mut self) {
        self.running.lock().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the rule is lead, wait, or refuse at the bound.
    #[test]
    fn rule() {
        assert_eq!([part(false, 0), part(true, 9), part(true, FLIGHTS_MAX)], [Part::Lead, Part::Wait, Part::Wait]);
        assert_eq!(part(false, FLIGHTS_MAX), Part::Refuse);
    }

    /// Promise: a thousand who ask together cause one fill, and a leader that leaves takes nobody with it.
    #[tokio::test(start_paused = true)]
    async fn one_fill_for_all() {
        let flights = Arc::new(Flights::<u8, u32>::new(TaskTracker::new()));
        let fills = Arc::new(AtomicU64::new(0));
        let ask = || {
            let (flights, fills) = (flights.clone(), fills.clone());
            tokio::spawn(async move {
                let fill = || async move {
                    fills.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                    7
                };
                flights.join(1, fill).await
            })
        };
        let leader = ask();
        tokio::task::yield_now().await;
        let waiters: Vec<_> = (0..999).map(|_| ask()).collect();
        tokio::task::yield_now().await;
        leader.abort();
        for waiter in waiters {
            assert_eq!(waiter.await.expect("task"), Ok(7));
        }
        assert_eq!(fills.load(Ordering::Relaxed), 1);
        assert!(flights.running.lock().is_empty());
    }

    /// Promise: a fill that panics is told as lost to each waiter, and the next asker begins anew.
    #[tokio::test]
    async fn panics_do_not_stick() {
        let flights = Flights::<u8, u32>::new(TaskTracker::new());
        let lost = flights.join(1, || async { panic!("planted") }).await;
        assert_eq!(lost, Err(Grounded::Lost));
        assert_eq!(flights.join(1, || async { 3 }).await, Ok(3));
    }
}
