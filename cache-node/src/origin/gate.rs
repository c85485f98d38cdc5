//! The bounded queue before one bucket: a call enters when a slot is free and its start time has come, or is refused at once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::OriginError;
use super::pace::Pace;
use super::random::Random;

pub(crate) struct Gate {
    state: Mutex<State>,
    queue_max: usize,
}

struct State {
    pace: Pace,
    in_use: usize,
    queue: VecDeque<oneshot::Sender<Permit>>,
    random: Random,
}

/// A slot, given back on drop, to the first in the queue.
pub(crate) struct Permit(Arc<Gate>);

impl Gate {
    pub(crate) fn new(concurrency: usize, queue_max: usize, random: Random) -> Arc<Self> {
        let state = State { pace: Pace::new(concurrency), in_use: 0, queue: VecDeque::new(), random };
        Arc::new(Self { state: Mutex::new(state), queue_max })
    }

    /// Waits for a slot, first come first served, then for the start time. `Busy` at once where the wait would pass the deadline.
    pub(crate) async fn enter(self: &Arc<Self>, deadline: Instant) -> Result<Permit, OriginError> {
        let permit = match self.ask(deadline)? {
            Ok(permit) => permit,
            Err(place) => match timeout_at(deadline, place).await {
                Ok(Ok(permit)) => permit,
                Ok(Err(_)) | Err(_) => return Err(OriginError::Deadline),
            },
        };
        let now = Instant::now();
        let start = {
            let state = &mut *self.state.lock();
            state.pace.reserve(now, deadline, &mut state.random)
        };
        match start {
            Ok(start) if start > now => sleep_until(start).await,
            Ok(_) => {}
            Err(retry_after) => return Err(OriginError::Busy { retry_after }),
        }
        Ok(permit)
    }

    /// A slot, a place in the queue, or a refusal.
    fn ask(self: &Arc<Self>, deadline: Instant) -> Result<Result<Permit, oneshot::Receiver<Permit>>, OriginError> {
        let state = &mut *self.state.lock();
        // Callers that left are not ahead of anybody.
        if state.queue.iter().any(oneshot::Sender::is_closed) {
            state.queue.retain(|place| !place.is_closed());
        }
        let now = Instant::now();
        let wait = state.pace.wait(now, state.in_use, state.queue.len());
        if now + wait > deadline {
            return Err(OriginError::Busy { retry_after: wait });
        }
        if state.in_use < state.pace.slots() && state.queue.is_empty() {
            state.in_use += 1;
            return Ok(Ok(Permit(self.clone())));
        }
        if state.queue.len() >= self.queue_max {
            return Err(OriginError::Busy { retry_after: wait.max(BUSY_MIN) });
        }
        let (sender, place) = oneshot::channel();
        state.queue.push_back(sender);
        Ok(Err(place))
    }

    /// A slot without waiting, while nobody waits and nothing brakes: for hedges, which must not add to trouble.
    pub(crate) fn try_enter(self: &Arc<Self>) -> Option<Permit> {
        let state = &mut *self.state.lock();
        let free = state.in_use < state.pace.slots() && state.queue.is_empty() && !state.pace.is_braking();
        free.then(|| {
            state.in_use += 1;
            Permit(self.clone())
        })
    }

    pub(crate) fn success(&self, took: Duration) {
        self.state.lock().pace.success(took);
    }

    pub(crate) fn throttled(&self, retry_after: Option<Duration>) {
        self.state.lock().pace.throttled(Instant::now(), retry_after);
    }

    fn release(self: &Arc<Self>) {
        let mut next = Vec::new();
        {
            let state = &mut *self.state.lock();
            state.in_use -= 1;
            while state.in_use < state.pace.slots() {
                let Some(place) = state.queue.pop_front() else { break };
                if !place.is_closed() {
                    state.in_use += 1;
                    next.push(place);
                }
            }
        }
        // Outside the lock: a permit that its caller no longer takes drops here and releases again.
        for place in next {
            drop(place.send(Permit(self.clone())));
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// What we tell a caller before a full queue of unknown speed.
const BUSY_MIN: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    /// Promise: slots and queue are bounded, the queue is fair, and one too many is refused at once.
    #[tokio::test(start_paused = true)]
    async fn queue_is_bounded_and_fair() {
        let gate = Gate::new(1, 2, Random::seeded(1));
        let held = gate.enter(soon()).await.expect("slot");
        let mut first = Box::pin(gate.enter(soon()));
        let mut second = Box::pin(gate.enter(soon()));
        assert!((&mut first).now_or_never().is_none() && (&mut second).now_or_never().is_none());
        assert!(matches!(gate.enter(soon()).now_or_never(), Some(Err(OriginError::Busy { .. }))));
        drop(held);
        assert!((&mut second).now_or_never().is_none());
        let permit = first.await.expect("first");
        drop(permit);
        second.await.expect("second");
    }

    /// Promise: a caller that leaves the queue, before or after its slot was handed over, takes no slot with it.
    #[tokio::test(start_paused = true)]
    async fn leavers_leak_nothing() {
        let gate = Gate::new(1, 2, Random::seeded(1));
        for granted in [false, true] {
            let held = gate.enter(soon()).await.expect("slot");
            let mut leaver = Box::pin(gate.enter(soon()));
            assert!((&mut leaver).now_or_never().is_none());
            if granted {
                drop(held);
                drop(leaver);
            } else {
                drop(leaver);
                drop(held);
            }
            assert_eq!(gate.state.lock().in_use, 0, "granted: {granted}");
        }
    }

    /// Promise: a call that would wait past its deadline is refused before it waits, with the time it would have taken.
    #[tokio::test(start_paused = true)]
    async fn hopeless_waits_are_refused() {
        let gate = Gate::new(1, 100, Random::seeded(1));
        gate.success(Duration::from_secs(4));
        let _held = gate.enter(soon()).await.expect("slot");
        let refused = gate.enter(Instant::now() + Duration::from_secs(1)).now_or_never();
        assert!(matches!(refused, Some(Err(OriginError::Busy { retry_after })) if retry_after == Duration::from_secs(4)));
        assert!(gate.enter(soon()).now_or_never().is_none());
    }

    /// Promise: hedges take only what nobody needs.
    #[tokio::test(start_paused = true)]
    async fn hedges_stand_back() {
        let gate = Gate::new(2, 2, Random::seeded(1));
        let _first = gate.try_enter().expect("free");
        gate.throttled(None);
        assert!(gate.try_enter().is_none());
    }
}
