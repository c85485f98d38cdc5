//! What was brought in last, and from where: for who asks why something is slow, or is here at all.

use std::fmt;
use std::time::Duration;

use foyer::{Cache, CacheBuilder, LruConfig};
use framecache::{DecodeSpec, ObjectId};
use tokio::time::Instant;

use super::Reader;

/// Objects, and specs of them, that are remembered: some 4 MiB.
const REMEMBERED: usize = 16_384;

/// Where it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The origin gave it.
    Origin,
    /// A node that was not asked to fetch it held it.
    Holder,
    /// The node that serves it gave it.
    Server,
    /// It was decoded.
    Decoder,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Source::Origin => "from the origin",
            Source::Holder => "from a node that held it",
            Source::Server => "from the node that serves it",
            Source::Decoder => "decoded",
        })
    }
}

/// One fill, as it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastFill {
    /// When it ended.
    pub ended: Instant,
    /// Where it came from.
    pub source: Source,
    /// How much it was.
    pub bytes: u64,
    /// How long it took.
    pub took: Duration,
}

/// The last fill of each object's bytes, and of each picture made of one.
pub(super) struct Lately(Cache<(ObjectId, String), LastFill>);

impl Default for Lately {
    fn default() -> Self {
        Self(CacheBuilder::new(REMEMBERED).with_shards(4).with_eviction_config(LruConfig::default()).build())
    }
}

impl Lately {
    pub(super) fn note(&self, id: &ObjectId, spec: Option<&DecodeSpec>, fill: LastFill) {
        self.0.insert(Self::key(id, spec), fill);
    }

    pub(super) fn of(&self, id: &ObjectId, spec: Option<&DecodeSpec>) -> Option<LastFill> {
        self.0.get(&Self::key(id, spec)).map(|held| *held.value())
    }

    fn key(id: &ObjectId, spec: Option<&DecodeSpec>) -> (ObjectId, String) {
        (id.clone(), spec.map_or(String::new(), |spec| spec.to_string()))
    }
}

impl Reader {
    /// The last fill of an object's bytes, or of its pixels by `spec`, as far as this node remembers: since its start, and of some
    /// thousands.
    pub fn last_fill(&self, id: &ObjectId, spec: Option<&DecodeSpec>) -> Option<LastFill> {
        self.lately.of(id, spec)
    }

    pub(super) fn note_fill(&self, id: &ObjectId, spec: Option<&DecodeSpec>, source: Source, bytes: usize, began: Instant) {
        let ended = Instant::now();
        self.lately.note(id, spec, LastFill { ended, source, bytes: bytes as u64, took: ended - began });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: bytes and pictures of one object are told apart, and the last fill is the one that is told.
    #[test]
    fn the_last_one_is_told() {
        let (lately, id) = (Lately::default(), ObjectId::new("abc", "a.jpg").expect("id"));
        let spec: DecodeSpec = "image?short=8".parse().expect("spec");
        let ended = Instant::now();
        let fill = |source, bytes| LastFill { ended, source, bytes, took: Duration::from_millis(3) };
        assert_eq!(lately.of(&id, None), None);
        lately.note(&id, None, fill(Source::Origin, 1));
        lately.note(&id, Some(&spec), fill(Source::Decoder, 2));
        lately.note(&id, None, fill(Source::Holder, 3));
        assert_eq!(lately.of(&id, None), Some(fill(Source::Holder, 3)));
        assert_eq!(lately.of(&id, Some(&spec)), Some(fill(Source::Decoder, 2)));
    }
}
