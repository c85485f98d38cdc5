//! An interrupted command leaves nothing behind: SIGINT, SIGTERM and SIGHUP remove what is unfinished, and then end the process as
//! they would have (130, 143 and 129 in a shell).
//!
//! The signals are waited for by a thread of their own, with nothing to run in a handler: the command's thread may stand in a write
//! to a pipe that nobody reads, and Ctrl-C ends it all the same.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

/// Files that are removed if the process is told to end.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A file that is not whole yet. Gone with this value, if nobody renamed it, and with the process.
#[derive(Debug)]
pub(super) struct Unfinished(PathBuf);

impl Unfinished {
    pub(super) fn create(path: PathBuf) -> io::Result<(Self, File)> {
        let mut all = UNFINISHED.lock();
        // Never another's: a name in a folder of many may be a link that somebody planted.
        let file = File::create_new(&path)?;
        all.push(path.clone());
        Ok((Self(path), file))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // Renamed already, if it was finished.
        let _ = std::fs::remove_file(&self.0);
        UNFINISHED.lock().retain(|path| *path != self.0);
    }
}

/// From here on an end by signal is tidy. Called before any other thread is there: threads inherit what is blocked.
pub(super) fn watch() {
    // SAFETY: plain calls on a set and actions of our own, each made before it is read. A zeroed sigset_t and sigaction are valid.
    let signals = unsafe {
        let mut signals: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut signals);
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &raw mut action);
            // Who started us may want it ignored (nohup).
            if action.sa_sigaction != libc::SIG_IGN {
                libc::sigaddset(&raw mut signals, signal);
            }
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const signals, std::ptr::null_mut());
        signals
    };
    let watcher = std::thread::Builder::new().name("signals".into()).spawn(move || {
        let mut signal = 0;
        // SAFETY: the set was made above.
        while unsafe { libc::sigwait(&raw const signals, &raw mut signal) } != 0 {}
        // Held to the end, so that no other file begins.
        let unfinished = UNFINISHED.lock();
        for path in unfinished.iter() {
            let _ = std::fs::remove_file(path);
        }
        // SAFETY: plain calls; the signal's own action ends the process.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const signals, std::ptr::null_mut());
            libc::raise(signal);
            // Still here as process 1 of a container, whom no signal's default action ends.
            libc::_exit(128 + signal)
        }
    });
    if watcher.is_err() {
        // SAFETY: as above. Without the thread, an interrupted command ends at once and untidily.
        unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const signals, std::ptr::null_mut()) };
    }
}
