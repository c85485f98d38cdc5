//! Jobs of one kind, and the workers that they may keep: pictures and clips take milliseconds, and a video's index may take minutes. Each
//! kind has a queue of its own and is told to come back by its own pace, and indexes never keep all workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::decode::slots::{Load, Slot, admit};

/// One kind's queue.
pub(super) struct Lane {
    /// One permit per worker; first come, first served.
    slots: Arc<Semaphore>,
    workers: usize,
    queue_max: usize,
    inside: AtomicUsize,
    /// What a job takes in a worker, averaged over the last few, in microseconds.
    job_us: AtomicU64,
}

/// One admitted job.
pub(super) struct Inside(Arc<Lane>);

/// The job time that is assumed before any was seen.
const JOB_FIRST: Duration = Duration::from_millis(5);

impl Lane {
    pub(super) fn new(workers: usize, queue_max: usize) -> Arc<Self> {
        Arc::new(Self {
            slots: Arc::new(Semaphore::new(workers)),
            workers,
            queue_max,
            inside: AtomicUsize::new(0),
            job_us: AtomicU64::new(JOB_FIRST.as_micros() as u64),
        })
    }

    /// Lets in a job that has `left` until its deadline, or says when to come back.
    pub(super) fn admit(self: &Arc<Self>, left: Duration) -> Result<Inside, Duration> {
        let inside = Inside(self.clone());
        let load = Load {
            workers: self.workers,
            inside: self.inside.fetch_add(1, Relaxed),
            queue_max: self.queue_max,
            job: Duration::from_micros(self.job_us.load(Relaxed)),
        };
        match admit(&load, left) {
            Slot::Start | Slot::Wait => Ok(inside),
            Slot::Busy { retry_after } => Err(retry_after),
        }
    }

    /// The right to keep a worker, in turn; nothing once there is none any more.
    pub(super) async fn slot(&self) -> Option<OwnedSemaphorePermit> {
        self.slots.clone().acquire_owned().await.ok()
    }

    /// A job took this long in its worker.
    pub(super) fn took(&self, took: Duration) {
        let took = took.as_micros() as u64;
        let _ = self.job_us.fetch_update(Relaxed, Relaxed, |mean| Some((7 * mean + took) / 8));
    }

    /// Jobs that were let in and are not answered yet.
    pub(super) fn inside(&self) -> usize {
        self.inside.load(Relaxed)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: whoever waits for what takes minutes neither keeps those from a worker who want milliseconds, nor has them sent away.
    #[tokio::test]
    async fn lanes_do_not_meet() {
        let (quick, slow) = (Lane::new(1, 8), Lane::new(1, 8));
        (0..50).for_each(|_| slow.took(Duration::from_secs(180)));
        let _kept = slow.slot().await;
        let (first, second) = (slow.admit(Duration::from_secs(1)), slow.admit(Duration::from_secs(1)));
        assert!(first.is_ok() && second.is_err());
        let inside: Vec<_> = (0..2).map(|_| quick.admit(Duration::from_secs(1)).is_ok()).collect();
        assert_eq!((inside, quick.inside(), slow.inside()), (vec![true, true], 0, 1));
        assert!(quick.slot().await.is_some());
    }
}
