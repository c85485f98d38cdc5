//! Whole nodes over loopback.

mod cluster;
mod herd;
mod hostile;
mod overload;
mod path;
mod replaced;
