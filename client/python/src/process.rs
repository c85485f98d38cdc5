//! What belongs to one process: the runtime, and each client's connections.
//!
//! A fork copies memory but no thread: a child that used its parent's runtime would wait for ever, and one that sent on its
//! parent's connections would break them. So such values are held together with the process id that made them. A child finds
//! another id, makes its own value, and leaves the parent's where it is: dropping it would touch threads that do not exist here.
//! There is no lock, hence none that a fork could copy in its locked state.

use std::future::Future;
use std::process;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tokio::runtime::{Builder, Runtime};

/// How often a waiting call looks for signals: Ctrl-C is promised an answer within 0.2 seconds.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);

/// Stack of our threads. The deepest path is certificate verification; a quarter of this was never reached.
const STACK_BYTES: usize = 1 << 20;

/// A value of the process that made it; see above.
pub(crate) struct PerProcess<T> {
    held: AtomicPtr<Held<T>>,
}

struct Held<T> {
    process: u32,
    value: T,
}

impl<T: Send + Sync> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self { held: AtomicPtr::new(ptr::null_mut()) }
    }

    /// This process's value, if it was made.
    pub(crate) fn get(&self) -> Option<&T> {
        // SAFETY: a pointer that was stored is valid until `self` is dropped: only a forked child replaces it, and leaks it.
        let held = unsafe { self.held.load(Ordering::Acquire).as_ref() }?;
        (held.process == process::id()).then_some(&held.value)
    }

    /// This process's value, made now if it was not yet.
    pub(crate) fn get_or_make<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<&T, E> {
        let old = self.held.load(Ordering::Acquire);
        if let Some(value) = self.get() {
            return Ok(value);
        }
        let made = Box::into_raw(Box::new(Held { process: process::id(), value: make()? }));
        let kept = match self.held.compare_exchange(old, made, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => made,
            Err(winner) => {
                // SAFETY: `made` came from `Box::into_raw` just now and was seen by nobody.
                drop(unsafe { Box::from_raw(made) });
                winner
            }
        };
        // SAFETY: as in `get`. Another thread that won is of this process: no thread survives a fork.
        Ok(unsafe { &(*kept).value })
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        let held = *self.held.get_mut();
        // SAFETY: a stored pointer is valid, and nobody else has `self` any more.
        if !held.is_null() && unsafe { (*held).process } == process::id() {
            // SAFETY: it came from `Box::into_raw` in this process.
            drop(unsafe { Box::from_raw(held) });
        }
    }
}

/// One thread does all of a process's transfers, and a second one resolves names when a name is used: a loader process has cores
/// to give to training, not to us.
fn runtime() -> PyResult<&'static Runtime> {
    static RUNTIME: PerProcess<Runtime> = PerProcess::new();
    RUNTIME.get_or_make(|| {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(1).max_blocking_threads(1).thread_keep_alive(Duration::from_secs(1));
        builder.thread_stack_size(STACK_BYTES).thread_name("framecache").enable_io().enable_time();
        Ok(builder.build()?)
    })
}

/// Runs `work` and waits for it, without the GIL. A signal whose handler raises (Ctrl-C) stops the work; when this returns, the
/// work and all that it held are gone, so that nobody writes into the caller's buffers any more.
pub(crate) fn wait<T: Send + 'static>(py: Python<'_>, work: impl Future<Output = T> + Send + 'static) -> PyResult<T> {
    let (answer, mut answered) = channel();
    let task = runtime()?.spawn(async move {
        // Dropped after `work`: a closed channel means that the work is gone.
        let answer = answer;
        let value = work.await;
        let _ = answer.send(value);
    });
    loop {
        let (back, event) = py.detach(move || {
            let event = answered.recv_timeout(SIGNALS_EVERY);
            (answered, event)
        });
        answered = back;
        match event {
            Ok(value) => return Ok(value),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("a task of framecache ended without an answer"));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        if let Err(raised) = py.check_signals() {
            task.abort();
            py.detach(move || while answered.recv().is_ok() {});
            return Err(raised);
        }
    }
}
