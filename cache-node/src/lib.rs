//! A cache node.
pub mod decode;
