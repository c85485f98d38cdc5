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

/// Whether tests run at full size.
fn soak() -> bool {
    std::env::var_os("FRAMECACHE_SOAK").is_some()
}
