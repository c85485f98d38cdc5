//! Whole nodes over loopback.

mod cluster;
mod deaths;
mod herd;
mod hostile;
mod mutants;
mod overload;
mod path;
mod replaced;
