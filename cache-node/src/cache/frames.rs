//! Frames: how decoded pixels are named.

use framecache::{DecodeSpec, ObjectId, Tensor};

use super::{Body, Entry, EntryKey, Head};

/// The key of what `spec`, which names one frame, makes of `id`.
pub fn key(id: &ObjectId, spec: &DecodeSpec) -> EntryKey {
    EntryKey::Frame { id: id.clone(), frame: spec.frame().unwrap_or(0), spec: spec.clone() }
}

/// The frame that an entry holds.
pub fn tensor(entry: Entry) -> Option<Tensor> {
    match entry.body {
        Body::Frame(tensor) => Some(tensor),
        Body::Raw(_) => None,
    }
}

/// The entry of a frame; `None` if the numbers are not as many as the shape says.
pub fn entry(head: Head, tensor: Tensor) -> Option<Entry> {
    (tensor.data.len() as u64 == tensor.head.bytes()).then_some(Entry { head, body: Body::Frame(tensor) })
}
