//! Framecache: a distributed cache for training data, and this is its language and its first speaker.
pub mod object;

pub use object::{ByteRange, ObjectId, Page, RouteKey, Span, Version};
