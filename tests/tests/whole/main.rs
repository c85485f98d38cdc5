//! Whole nodes over loopback.

mod cluster;
mod deaths;
mod herd;
mod hostile;
mod moves;
mod mutants;
mod overload;
mod path;
mod replaced;
