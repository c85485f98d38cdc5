//! A node in memory, under a paused clock.

mod cluster;
mod herd;
mod quic;
mod reads;
mod replaced;
mod simulation;
