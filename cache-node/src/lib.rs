//! The cache node of Framecache: rooms that never see each other, and `read`, where they meet.
//!
//! Floors, calls go down only: main, dev → node → serve → read → {origin | cache | decode | cluster} → config, telemetry, budget, auth, and
//! the client's types. `docs/ARCHITECTURE.md` tells the life of a request.

pub mod auth;
pub mod budget;
pub mod cache;
pub mod cluster;
pub mod config;
pub mod decode;
pub mod dev;
mod exports;
pub mod identity;
pub mod node;
pub mod origin;
pub mod read;
pub mod serve;
pub mod serve_command;
pub mod telemetry;
