//! Whole nodes over loopback.

mod cluster;
mod deaths;
mod fleets;
mod herd;
mod hostile;
mod moves;
mod mutants;
mod overload;
mod path;
mod replaced;
