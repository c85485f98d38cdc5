//! The decoder process: one job at a time, until told to close. Runs sandboxed, and is expected to die now and then.
//!
//! Parts: `protocol` (messages), `memory` (the shared file, seen from both sides), `sandbox`, and the child's story, here and in
//! `bench`; on the node's side `process` (one child), `errand` (what it is sent for: an `order` of pictures, a `parcel` of a clip, a
//! `survey` of a video), `lane` (whose turn), `units` (one at a time) and `pool`.
//!
//! The child trusts its parent, never the picture; the parent trusts neither.

mod bench;
mod errand;
mod lane;
#[cfg(test)]
mod locked;
mod memory;
mod order;
mod parcel;
mod planted;
pub(super) mod pool;
pub(super) mod process;
mod protocol;
mod sandbox;
pub(super) mod settings;
mod survey;
mod units;

use std::os::fd::AsRawFd;
use std::process::ExitCode;

use nix::errno::Errno;
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::sys::socket::{MsgFlags, recv, send};

use bench::Bench;
use protocol::{FromWorker, MESSAGE_BYTES_MAX, Sandboxed, ToWorker};

/// The argument that makes the node's binary a worker.
pub(super) const SUBCOMMAND: &str = "worker";

/// The second argument that plants faults for the tests. Only a pool whose settings say so gives it.
pub(super) const TEST_CODECS: &str = "--test-codecs";

/// What `framecache-node worker` runs. Needs what the pool gives it: a socket as standard input, shared memory as standard output.
/// Call it first thing in `main`, before any thread or logger exists: the sandbox binds the calling thread and its children.
pub fn worker_main() -> ExitCode {
    // A panic is a defect that some picture found: end by a signal, so that it is judged like any other crash.
    std::panic::set_hook(Box::new(|_| std::process::abort()));
    // SAFETY: the handler makes system calls alone.
    let watched = unsafe { signal(Signal::SIGABRT, SigHandler::Handler(on_abort)) };
    let test_codecs = std::env::args().any(|argument| argument == TEST_CODECS);
    match watched.map_err(|_| Ended::Lost).and_then(|_| serve(test_codecs)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Ended::OutOfMemory) => ExitCode::from(OUT_OF_MEMORY),
        Err(Ended::Short) => ExitCode::from(SHORT),
        Err(Ended::Lost) => ExitCode::from(PARENT_LOST),
    }
}

/// Allocators abort where they are refused. Back from here, `abort` ends the process by the signal.
extern "C" fn on_abort(_: libc::c_int) {
    if sandbox::is_short_of_memory() {
        // SAFETY: ends this process without running anything more of it.
        unsafe { libc::_exit(SHORT.into()) }
    }
}

/// Exit code of a worker that reached its own memory limit.
const OUT_OF_MEMORY: u8 = 77;

/// Exit code of a worker that was refused memory within its limit.
const SHORT: u8 = 79;

/// Exit code of a worker whose parent went away or talks nonsense.
const PARENT_LOST: u8 = 78;

/// Why a worker ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    OutOfMemory,
    Short,
    Lost,
}

impl Ended {
    /// Out of memory by its own doing, or by the system's.
    fn whose(self) -> Self {
        if self == Self::OutOfMemory && sandbox::is_short_of_memory() { Self::Short } else { self }
    }
}

fn serve(test_codecs: bool) -> Result<(), Ended> {
    let parent = Parent;
    sandbox::before_the_lock().map_err(|_| Ended::Lost)?;
    super::video::warm_up();
    // The one job-independent allocation of note is made before the limits are.
    let mut bench = Bench::new(test_codecs);
    let mut buffer = vec![0; MESSAGE_BYTES_MAX];
    let worker_memory = match parent.receive(&mut buffer)? {
        ToWorker::Begin { worker_memory } => worker_memory,
        _ => return Err(Ended::Lost),
    };
    let sandboxed = match sandbox::lock(worker_memory) {
        Ok(landlock) => Sandboxed::Yes { landlock },
        Err(reason) => Sandboxed::No { reason },
    };
    let refused = matches!(sandboxed, Sandboxed::No { .. });
    parent.send(&FromWorker::Ready(sandboxed))?;
    if refused {
        return Ok(());
    }
    loop {
        match parent.receive(&mut buffer)? {
            ToWorker::Job(job) => bench.run(&job, &parent).map_err(Ended::whose)?,
            ToWorker::Close => return Ok(()),
            ToWorker::Begin { .. } | ToWorker::Range { .. } => return Err(Ended::Lost),
        }
    }
}

/// The other end of the socket.
struct Parent;

impl Parent {
    fn send(&self, message: &FromWorker) -> Result<(), Ended> {
        let bytes = message.encode();
        retry(|| send(std::io::stdin().as_raw_fd(), &bytes, MsgFlags::MSG_NOSIGNAL)).map(drop).map_err(|_| Ended::Lost)
    }

    fn receive(&self, buffer: &mut [u8]) -> Result<ToWorker, Ended> {
        let length = retry(|| recv(std::io::stdin().as_raw_fd(), buffer, MsgFlags::empty())).map_err(|_| Ended::Lost)?;
        ToWorker::decode(&buffer[..length]).ok_or(Ended::Lost)
    }
}

fn retry<T>(mut call: impl FnMut() -> nix::Result<T>) -> nix::Result<T> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            answer => return answer,
        }
    }
}
