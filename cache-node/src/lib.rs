//! The cache node of Framecache.

pub mod config;
pub mod telemetry;
