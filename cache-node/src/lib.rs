//! The cache node of Framecache.

pub mod auth;
pub mod budget;
pub mod cache;
pub mod config;
pub mod dev;
pub mod origin;
pub mod serve {
    //! The doors.
    pub mod admin;
}
pub mod telemetry;
