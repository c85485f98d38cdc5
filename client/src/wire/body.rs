//! What each verb asks.

use rkyv::{Archive, Deserialize, Serialize};

/// Body of [`super::Verb::Read`]: bytes `[start, start + length)` of an object, cut at its end.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct ReadBody {
    /// The object's address.
    pub uri: String,
    /// First byte.
    pub start: u64,
    /// Number of bytes.
    pub length: u64,
}

/// One wanted picture or frame of a [`FramesBody`].
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct FrameAsk {
    /// The caller's slot.
    pub index: u32,
    /// Which try of that slot this is.
    pub attempt: u16,
    /// Which of the request's specs.
    pub spec: u16,
    /// The picture's or video's address.
    pub uri: String,
    /// The pinned version. Empty: none.
    pub version: String,
}

/// Body of [`super::Verb::Frames`]: a batch for one owner.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct FramesBody {
    /// Decode specs as text.
    pub specs: Vec<String>,
    /// What is wanted.
    pub items: Vec<FrameAsk>,
}

/// Body of [`super::Verb::Decode`]: one decode unit of one version, several specs.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct DecodeBody {
    /// The picture's or video's address; its version is in the header.
    pub uri: String,
    /// First frame of the unit; 0 for a picture.
    pub unit: u64,
    /// Decode specs as text.
    pub specs: Vec<String>,
}

/// Body of [`super::Verb::Peek`]: a page, or a frame where `spec` is not empty. The version is in the header.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct PeekBody {
    /// The object's address.
    pub uri: String,
    /// Page or frame index.
    pub index: u64,
    /// Decode spec as text; empty for a raw page.
    pub spec: String,
}

/// Body of [`super::Verb::Stat`] and of [`super::Verb::Warm`]: objects, and for `Warm` a spec (empty: raw bytes).
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct ObjectsBody {
    /// Addresses.
    pub uris: Vec<String>,
    /// Decode spec as text; may be empty.
    pub spec: String,
}

/// Body of [`super::Verb::List`].
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct ListBody {
    /// `s3://bucket/` and any beginning of a key.
    pub prefix: String,
    /// The last key of the page before; empty for the first.
    pub after: String,
    /// Most entries wanted, at most [`super::LIST_ITEMS_MAX`].
    pub limit: u32,
}

/// Body of [`super::Verb::Index`]: a part of an index, or the answer to a question about it.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct IndexBody {
    /// The indexed object's address.
    pub uri: String,
    /// Which index, or what is asked of it: an [`super::IndexKind`] as text.
    pub kind: String,
    /// First byte of the part; 0 where it is a question.
    pub start: u64,
    /// Bytes of the part, at most; 0 where it is a question.
    pub count: u64,
}

/// Body of [`super::Verb::View`].
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct ViewBody {
    /// The view that the caller has; 0 for none.
    pub known: u64,
}

/// Body of [`super::Verb::Plan`]: what a loader will ask next, in order.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct PlanBody {
    /// The loader.
    pub loader: u64,
    /// Addresses.
    pub uris: Vec<String>,
    /// Decode spec as text; may be empty.
    pub spec: String,
}

/// Body of [`super::Verb::Keep`].
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct KeepBody {
    /// An object, or a prefix ending in `/`.
    pub uri: String,
    /// 0 unpin, 1 pin, 2 evict.
    pub action: u8,
}

/// Body of [`super::Verb::Explain`].
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct ExplainBody {
    /// The object's address.
    pub uri: String,
    /// Decode spec as text; empty for raw bytes.
    pub spec: String,
}

/// Body of [`super::Verb::Auth`].
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct AuthBody {
    /// A bearer token.
    pub token: String,
}
