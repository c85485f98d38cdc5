//! Whether a job starts, waits, or is told to come back: values in, an answer out.

use std::time::Duration;

/// How the pool stands at this moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// Workers that decode at the same time.
    pub(super) workers: usize,
    /// Jobs that were let in and have not been answered, running ones included.
    pub(super) inside: usize,
    /// Most jobs that wait.
    pub(super) queue_max: usize,
    /// What a job took lately, on average.
    pub(super) job: Duration,
}

/// The answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// A worker is free.
    Start,
    /// Queue: the predicted wait fits the deadline.
    Wait,
    /// Do not queue; a slot is likely after this long.
    Busy { retry_after: Duration },
}

/// Admits a job that has `left` until its deadline.
pub(super) fn admit(load: &Load, left: Duration) -> Slot {
    if load.inside < load.workers {
        return Slot::Start;
    }
    let waiting = load.inside - load.workers;
    let wait = load.wait(waiting);
    match waiting < load.queue_max && wait <= left {
        true => Slot::Wait,
        false => Slot::Busy { retry_after: wait.clamp(RETRY_MIN, RETRY_MAX) },
    }
}

impl Load {
    /// The queue is first come, first served, and drains by one job per worker and `job`.
    fn wait(&self, waiting: usize) -> Duration {
        let rounds = (waiting / self.workers.max(1)) as u32 + 1;
        self.job.saturating_mul(rounds)
    }
}

/// Sooner than a few jobs' time, a retry only finds the same queue.
const RETRY_MIN: Duration = Duration::from_millis(10);

/// Later than this the prediction says nothing: one large picture moves it.
const RETRY_MAX: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: nobody waits who would wait in vain, and nobody is sent away while a worker is free.
    #[test]
    fn admission_table() {
        let ms = Duration::from_millis;
        let busy = |retry| Slot::Busy { retry_after: ms(retry) };
        for (workers, inside, queue_max, job, left, want) in [
            (4, 0, 8, 5, 0, Slot::Start),
            (4, 3, 8, 5, 0, Slot::Start),
            (4, 4, 8, 5, 5, Slot::Wait),
            (4, 4, 8, 50, 40, busy(50)),
            (4, 11, 8, 50, 1000, Slot::Wait),
            (4, 12, 8, 50, 1000, busy(150)),
            (4, 12, 8, 1, 1000, busy(10)),
            (4, 12, 8, 60_000, 1000, busy(5_000)),
            (1, 1, 0, 50, 1000, busy(50)),
        ] {
            let load = Load { workers, inside, queue_max, job: ms(job) };
            assert_eq!(admit(&load, ms(left)), want, "{load:?} left {left} ms");
        }
    }
}
