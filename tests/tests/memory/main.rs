//! A node in memory, under a paused clock.

mod herd;
mod reads;
mod replaced;
mod simulation;
