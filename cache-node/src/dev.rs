//! The embedded default: everything on this machine, nothing to configure.

pub mod origin;
