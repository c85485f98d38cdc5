//! The cache node of Framecache.
pub mod cache;
