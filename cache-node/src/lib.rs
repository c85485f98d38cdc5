//! The cache node of Framecache.
pub mod dev;
pub mod origin;
