//! Whole nodes over loopback.

mod cluster;
mod deaths;
mod fleets;
mod floods;
mod herd;
mod hostile;
mod lost;
mod moves;
mod mutants;
mod overload;
mod path;
mod replaced;

use tokio::sync::{Mutex, MutexGuard};

/// Whether tests run at full size.
fn soak() -> bool {
    std::env::var_os("FRAMECACHE_SOAK").is_some()
}

/// A test of full size that takes the whole machine begins when no other such one runs: each is judged by its own load.
async fn alone() -> Option<MutexGuard<'static, ()>> {
    static MACHINE: Mutex<()> = Mutex::const_new(());
    match soak() {
        true => Some(MACHINE.lock().await),
        false => None,
    }
}
