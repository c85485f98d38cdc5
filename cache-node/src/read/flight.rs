//! One fill for all who wait for it.
//!
//! The first to ask leads: its fill is spawned on the node's task set, under the flight's own deadline. Whoever asks meanwhile
//! waits for the same answer. A waiter that leaves leaves alone, the leader too.
//!
//! An answer may be older than the question: its flight was under way already. Where that matters (what is current? is it there?)
//! the asker compares the flight's number with the [`Flights::now`] of its own beginning.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

/// Most flights at once: past it the node has more work than its queues allow, and says so.
const FLIGHTS_MAX: usize = 16_384;

/// Running fills by what they fill.
pub(super) struct Flights<K, V> {
    tasks: TaskTracker,
    running: Arc<Mutex<HashMap<K, Flight<V>>>>,
    begun: AtomicU64,
    joined: AtomicU64,
}

/// One fill under way.
#[derive(Clone)]
struct Flight<V> {
    number: u64,
    answer: Shared<BoxFuture<'static, Option<V>>>,
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
        Self { tasks, running: Arc::default(), begun: AtomicU64::new(0), joined: AtomicU64::new(0) }
    }

    /// How many waited for a flight of another's.
    pub(super) fn joined(&self) -> u64 {
        self.joined.load(Ordering::Relaxed)
    }

    /// The number of the next flight: flights from this one on begin after this call.
    pub(super) fn now(&self) -> u64 {
        self.begun.load(Ordering::Acquire)
    }

    /// The answer of the flight for `key`, and its number; `fill` is what it does if none runs. Dropping the call leaves the
    /// flight.
    pub(super) async fn join<F>(&self, key: K, fill: impl FnOnce() -> F) -> Result<(V, u64), Grounded>
    where
        F: Future<Output = V> + Send + 'static,
    {
        self.join_unless(key, || None, fill).await
    }

    /// The same, unless none runs and `landed` has the answer of one that has just ended: what a flight leaves behind is there before it
    /// is taken off the board.
    pub(super) async fn join_unless<F>(
        &self,
        key: K,
        landed: impl FnOnce() -> Option<V>,
        fill: impl FnOnce() -> F,
    ) -> Result<(V, u64), Grounded>
    where
        F: Future<Output = V> + Send + 'static,
    {
        let (flight, begun) = {
            let mut running = self.running.lock();
            let found = running.get(&key).cloned();
            match (part(found.is_some(), running.len()), found) {
                (Part::Wait, Some(flight)) => {
                    self.joined.fetch_add(1, Ordering::Relaxed);
                    (flight, None)
                }
                (Part::Refuse, _) => return Err(Grounded::Full),
                _ => {
                    if let Some(answer) = landed() {
                        return Ok((answer, self.now()));
                    }
                    // Numbered before it can ask the origin anything, and spawned after the lock is gone: a runtime that ends
                    // drops a task in the call that spawns it, and landing takes the lock.
                    let number = self.begun.fetch_add(1, Ordering::AcqRel);
                    let (tell, told) = oneshot::channel();
                    let flight = Flight { number, answer: async move { told.await.ok() }.boxed().shared() };
                    running.insert(key.clone(), flight.clone());
                    (flight, Some(tell))
                }
            }
        };
        if let Some(tell) = begun {
            self.begin(key, fill(), tell);
        }
        let Flight { number, answer } = flight;
        answer.await.map(|answer| (answer, number)).ok_or(Grounded::Lost)
    }

    /// The answer of the flight for `key`, if one is under way.
    pub(super) async fn landing(&self, key: &K) -> Option<V> {
        let flight = self.running.lock().get(key).cloned()?;
        self.joined.fetch_add(1, Ordering::Relaxed);
        flight.answer.await
    }

    fn begin<F>(&self, key: K, fill: F, tell: oneshot::Sender<V>)
    where
        F: Future<Output = V> + Send + 'static,
    {
        let landed = Landed { running: self.running.clone(), key };
        let fill = async move {
            let answer = fill.await;
            drop(landed);
            // Nobody may be left who waits.
            let _ = tell.send(answer);
        };
        // The fill belongs to its leader's trace; those who join see that they waited.
        self.tasks.spawn(fill.in_current_span());
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
            assert_eq!(waiter.await.expect("task"), Ok((7, 0)));
        }
        assert_eq!(fills.load(Ordering::Relaxed), 1);
        assert!(flights.running.lock().is_empty());
    }

    /// Promise: who comes in the moment in which a flight lands takes its answer, and begins none.
    #[tokio::test]
    async fn what_has_landed_is_not_filled_again() {
        let flights = Flights::<u8, u32>::new(TaskTracker::new());
        let fill = || async { panic!("a second fill") };
        assert_eq!(flights.join_unless(1, || Some(7), fill).await, Ok((7, 0)));
        assert!(flights.running.lock().is_empty());
    }

    /// Promise: a fill that panics is told as lost to each waiter, and the next asker begins anew.
    #[tokio::test]
    async fn panics_do_not_stick() {
        let flights = Flights::<u8, u32>::new(TaskTracker::new());
        let lost = flights.join(1, || async { panic!("planted") }).await;
        assert_eq!(lost, Err(Grounded::Lost));
        assert_eq!(flights.join(1, || async { 3 }).await, Ok((3, 1)));
    }
}
