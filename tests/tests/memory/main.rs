//! A node in memory, under a paused clock.

mod cluster;
mod herd;
mod reads;
mod replaced;
mod simulation;
