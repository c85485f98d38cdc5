//! What is remembered of videos: their indexes, which have none, and how far their units were decoded lately.

use std::sync::Arc;

use foyer::{Cache, CacheBuilder, LruConfig};
use framecache::{ObjectId, Version};

use super::Survey;
use crate::decode::{Clip, Trust, VideoIndex};
use crate::read::ReadError;

/// Bytes that indexes may take in RAM: some 40 hours of video at 30 frames a second.
const INDEXES_BYTES: u64 = 48 << 20;

/// Frames that are kept beside those asked for where a unit is read on: at first, and at most. Each time it is read on they are twice
/// as many, so that the whole unit is decoded from its start a few times, and not once for each request.
const AHEAD: usize = 16;
const AHEAD_MAX: usize = 256;

/// A unit is read on by who wants frames this close behind those decoded before: more than any stride of a clip, and less than most
/// that are drawn at random.
const READ_ON: u64 = 8;

/// Videos that are remembered as having no index: at some 300 bytes each.
const REFUSED: usize = 4096;

/// Units that are remembered as decoded before.
const TOUCHED: usize = 65_536;

/// Videos' indexes, what has none, and which units were decoded lately.
pub(in crate::read) struct Videos {
    indexes: Cache<Stream, Indexed>,
    /// Final for a version: it is not read and decoded again for each who asks.
    pub(super) refused: Cache<Survey, ReadError>,
    touched: Cache<(ObjectId, u64), Touched>,
}

/// A video's stream: FFmpeg's best, or by its index.
pub(super) type Stream = (ObjectId, Option<u32>);

/// A unit as it was decoded last.
#[derive(Clone)]
struct Touched {
    version: Version,
    last: u64,
    /// Frames that were kept beside those asked for, or would have been.
    ahead: usize,
}

/// What a decode of a unit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::read) enum Touch {
    First,
    Again,
    /// Again, for frames just behind those of the last time: how many more are worth keeping.
    ReadOn(usize),
}

#[derive(Clone)]
struct Indexed {
    version: Version,
    index: Arc<VideoIndex>,
}

impl Default for Videos {
    fn default() -> Self {
        let lru = LruConfig::default;
        let indexes = CacheBuilder::new(INDEXES_BYTES as usize)
            .with_shards(4)
            .with_eviction_config(lru())
            .with_weighter(|_: &Stream, held: &Indexed| held.index.memory_bytes())
            .build();
        Self {
            indexes,
            refused: CacheBuilder::new(REFUSED).with_shards(4).with_eviction_config(lru()).build(),
            touched: CacheBuilder::new(TOUCHED).with_shards(4).with_eviction_config(lru()).build(),
        }
    }
}

impl Videos {
    pub(super) fn get(&self, stream: &Stream, version: &Version, trust: Trust) -> Option<Arc<VideoIndex>> {
        let held = self.indexes.get(stream)?;
        let held = held.value();
        (held.version == *version && held.index.answers(trust)).then(|| held.index.clone())
    }

    pub(super) fn insert(&self, stream: &Stream, version: &Version, index: Arc<VideoIndex>) {
        self.indexes.insert(stream.clone(), Indexed { version: version.clone(), index });
    }

    /// What decoding these frames of a unit is.
    pub(in crate::read) fn touch(&self, object: &ObjectId, version: &Version, unit: u64, clip: &Clip) -> Touch {
        let before = self.touched.get(&(object.clone(), unit));
        let Some(before) = before.map(|known| known.value().clone()).filter(|known| known.version == *version) else {
            return Touch::First;
        };
        let first = clip.frames.first().copied().unwrap_or(0);
        match (1..=READ_ON).contains(&first.saturating_sub(before.last)) {
            true => Touch::ReadOn((2 * before.ahead).clamp(AHEAD, AHEAD_MAX)),
            false => Touch::Again,
        }
    }

    /// Notes that frames of a unit are decoded.
    pub(in crate::read) fn touched(&self, object: &ObjectId, version: &Version, unit: u64, clip: &Clip, touch: Touch) {
        let ahead = if let Touch::ReadOn(ahead) = touch { ahead } else { 0 };
        let touched = Touched { version: version.clone(), last: clip.frames.last().copied().unwrap_or(0), ahead };
        self.touched.insert((object.clone(), unit), touched);
    }
}
