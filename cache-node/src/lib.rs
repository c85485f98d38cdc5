//! The cache node of Framecache.

pub mod budget;
pub mod config;
pub mod telemetry;
