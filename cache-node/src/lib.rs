//! The cache node of Framecache.

pub mod auth;
pub mod budget;
pub mod config;
pub mod serve;
pub mod telemetry;
