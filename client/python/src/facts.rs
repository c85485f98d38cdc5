//! What the cluster says about objects and nodes.

use std::collections::VecDeque;

use framecache::client::{ObjectFacts, ObjectRow};
use framecache::view::{NodeState, state};
use framecache::wire::NodeRow;
use pyo3::prelude::*;

use crate::client::Client;

/// One object of a listing.
#[pyclass(frozen, get_all, module = "framecache")]
pub(crate) struct Entry {
    /// Its address.
    uri: String,
    /// Bytes.
    size: u64,
    /// Its version (etag).
    version: String,
}

#[pymethods]
impl Entry {
    fn __repr__(&self) -> String {
        format!("<framecache.Entry: {}, {} bytes>", self.uri, self.size)
    }
}

impl From<ObjectRow> for Entry {
    fn from(row: ObjectRow) -> Self {
        Self { uri: row.id.to_string(), size: row.size, version: row.version }
    }
}

/// The objects under a prefix, in key order, fetched by the page as they are iterated over.
#[pyclass(module = "framecache")]
pub(crate) struct Listing {
    client: Py<Client>,
    prefix: String,
    timeout: Option<f64>,
    page: VecDeque<Entry>,
    next: Next,
}

/// Where the next page begins.
enum Next {
    First,
    After(String),
    End,
}

impl Listing {
    pub(crate) fn new(client: Py<Client>, prefix: String, timeout: Option<f64>) -> Self {
        Self { client, prefix, timeout, page: VecDeque::new(), next: Next::First }
    }
}

#[pymethods]
impl Listing {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&mut self, py: Python<'_>) -> PyResult<Option<Entry>> {
        while self.page.is_empty() {
            let after = match &self.next {
                Next::First => None,
                Next::After(key) => Some(key.clone()),
                Next::End => return Ok(None),
            };
            let listing = self.client.get().list_page(py, self.prefix.clone(), after, self.timeout)?;
            self.next = listing.next.map_or(Next::End, Next::After);
            self.page = listing.rows.into_iter().map(Entry::from).collect();
        }
        Ok(self.page.pop_front())
    }
}

/// What is known of an object without its bytes.
#[pyclass(frozen, get_all, module = "framecache")]
pub(crate) struct Stat {
    /// Its version (etag).
    pub(crate) version: String,
    /// Bytes.
    size: u64,
    /// Name of the media format by content; empty if it is not a known one.
    pub(crate) format: String,
    /// Pixels; 0 if it is not a picture.
    pub(crate) width: u32,
    /// Pixels; 0 if it is not a picture.
    pub(crate) height: u32,
    /// EXIF orientation, 1 to 8.
    orientation: u8,
    /// Pillow's ``Image.mode``, e.g. ``"RGB"``, ``"P"``, ``"I;16"``; empty if it is not a picture.
    mode: String,
    /// Frames or pages; ``None`` where only decoding would tell.
    pub(crate) frames: Option<u32>,
    /// Bytes that decoding it takes.
    decode_bytes: u64,
}

#[pymethods]
impl Stat {
    fn __repr__(&self) -> String {
        let Self { format, width, height, size, version, .. } = self;
        format!("<framecache.Stat: {size} bytes, {format:?} {width}x{height}, version {version}>")
    }
}

impl From<ObjectFacts> for Stat {
    fn from(facts: ObjectFacts) -> Self {
        let media = facts.media;
        Self {
            version: facts.version.to_string(),
            size: facts.size,
            format: media.format,
            width: media.width,
            height: media.height,
            orientation: media.orientation,
            mode: facts.mode,
            frames: facts.frames,
            decode_bytes: media.decode_bytes,
        }
    }
}

/// One node of the cluster.
#[pyclass(frozen, get_all, module = "framecache")]
pub(crate) struct Node {
    /// Its name.
    id: String,
    /// Where it speaks QUIC.
    address: String,
    /// ``"joining"``, ``"serving"``, ``"leaving"`` or ``"gone"``.
    state: &'static str,
    /// Its share of the keys, against the other nodes'.
    weight: f64,
    /// What it does, e.g. ``"cache"``.
    roles: Vec<String>,
}

#[pymethods]
impl Node {
    fn __repr__(&self) -> String {
        format!("<framecache.Node: {} at {}, {}>", self.id, self.address, self.state)
    }
}

impl From<NodeRow> for Node {
    fn from(row: NodeRow) -> Self {
        let state = match state(&row) {
            NodeState::Joining => "joining",
            NodeState::Serving => "serving",
            NodeState::Leaving => "leaving",
            NodeState::Gone => "gone",
        };
        Self { id: row.id, address: row.quic, state, weight: f64::from(row.weight) / 100.0, roles: row.roles }
    }
}
