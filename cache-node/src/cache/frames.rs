//! Frames: how decoded pixels are named.

use framecache::{DecodeSpec, FrameKey, ObjectId, Tensor};

use super::{Body, Entry, EntryKey, Head};

/// The key of frame `frame` of `id`, made by `spec`.
pub fn key(id: &ObjectId, frame: u64, spec: &DecodeSpec) -> EntryKey {
    EntryKey::Frame { id: id.clone(), frame, spec: spec.clone() }
}

/// The key of a named frame; its version is for the look-up ([`super::Store::get`]).
pub fn named(frame: &FrameKey) -> EntryKey {
    key(&frame.id, frame.frame, &frame.spec)
}

/// The entry of a frame; `None` if the numbers are not as many as the shape says.
pub fn entry(head: Head, tensor: Tensor) -> Option<Entry> {
    (tensor.data.len() as u64 == tensor.head.bytes()).then_some(Entry { head, body: Body::Frame(tensor) })
}

/// The frame that an entry holds.
pub fn tensor(entry: Entry) -> Option<Tensor> {
    match entry.body {
        Body::Frame(tensor) => Some(tensor),
        Body::Raw(_) => None,
    }
}
