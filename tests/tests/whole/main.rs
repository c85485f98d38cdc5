//! Whole nodes over loopback.

mod path;
