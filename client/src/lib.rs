//! Framecache: a distributed cache for training data, and this is its language and its first speaker.
pub mod frame;
pub mod object;
pub mod pixels;
pub mod spec;

pub use frame::{FrameKey, Tensor, TensorHead};
pub use object::{ByteRange, ObjectId, Page, RouteKey, Span, Version};
pub use spec::{DecodeSpec, ImageSpec};
