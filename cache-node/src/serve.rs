//! The node's doors.

pub mod admin;
