//! Indexes of videos: made once for each version, kept beside the pages, and asked for from the node that serves the object.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use foyer::{Cache, CacheBuilder, LruConfig};
use framecache::{DecodeSpec, ObjectId, Page, Version};
use tokio::time::{Instant, timeout_at};
use tracing::Instrument;

use super::others::There;
use super::units::Compressed;
use super::{ReadError, Reader, Terms, landed};
use crate::budget::Level;
use crate::cache::{Body, Entry, EntryKey, Head, InsertHint};
use crate::decode::{DecodeError, IndexJob, Trust, VideoIndex, is_video};

/// Bytes that indexes may take in RAM: some 40 hours of video at 30 frames a second.
const INDEXES_BYTES: u64 = 48 << 20;

/// Videos that are remembered as having no index: at some 300 bytes each.
const REFUSED: usize = 4096;

/// Units that are remembered as decoded before.
const TOUCHED: usize = 65_536;

/// Videos' indexes, what has none, and which units were decoded lately.
pub(super) struct Videos {
    indexes: Cache<ObjectId, Indexed>,
    /// Final for a version: it is not read and decoded again for each who asks.
    refused: Cache<Survey, ReadError>,
    touched: Cache<(ObjectId, u64), Version>,
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
            .with_weighter(|_: &ObjectId, held: &Indexed| held.index.memory_bytes())
            .build();
        Self {
            indexes,
            refused: CacheBuilder::new(REFUSED).with_shards(4).with_eviction_config(lru()).build(),
            touched: CacheBuilder::new(TOUCHED).with_shards(4).with_eviction_config(lru()).build(),
        }
    }
}

impl Videos {
    fn get(&self, object: &ObjectId, version: &Version, trust: Trust) -> Option<Arc<VideoIndex>> {
        let held = self.indexes.get(object)?;
        let held = held.value();
        (held.version == *version && held.index.answers(trust)).then(|| held.index.clone())
    }

    fn insert(&self, object: &ObjectId, version: &Version, index: Arc<VideoIndex>) {
        self.indexes.insert(object.clone(), Indexed { version: version.clone(), index });
    }

    /// Notes that the unit is decoded; whether it was before.
    pub(super) fn touch(&self, object: &ObjectId, version: &Version, unit: u64) -> bool {
        let key = (object.clone(), unit);
        let before = self.touched.get(&key).is_some_and(|known| known.value() == version);
        if !before {
            self.touched.insert(key, version.clone());
        }
        before
    }
}

/// A survey under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Survey {
    object: ObjectId,
    version: Version,
    trust: Trust,
}

pub(super) type SurveyResult = Result<Arc<VideoIndex>, ReadError>;

impl Reader {
    /// Whether this version of the object is a video, as far as its first bytes tell.
    pub async fn is_video(self: &Arc<Self>, id: &ObjectId, head: &Head, terms: &Terms) -> Result<bool, ReadError> {
        if self.videos.get(&id.object(), &head.version, Trust::Predicted).is_some() {
            return Ok(true);
        }
        if head.size == 0 || id.member().is_some() {
            return Ok(false);
        }
        let first = self.page_for_decode(id, Page::new(0), &head.version, terms).await?;
        Ok(is_video(first.body.bytes()))
    }

    /// Whether a frame that is held is the one that the index, as far as it is at hand, says: one that was made anew may count otherwise.
    pub(super) fn fits_index(&self, id: &ObjectId, spec: &DecodeSpec, entry: &Entry) -> bool {
        let (DecodeSpec::Video(_), Some(frame), Body::Frame(tensor)) = (spec, spec.frame(), &entry.body) else { return true };
        let index = self.videos.get(&id.object(), &entry.head.version, Trust::Predicted);
        index.is_none_or(|index| frame < index.len() && index.seconds(frame) == tensor.head.pts_seconds)
    }

    /// The index of a video's version, of at least that trust.
    ///
    /// # Errors
    /// `Undecodable`, `Unsupported` for what is no video that can be read; else as [`Reader::page`].
    pub async fn video_index(self: &Arc<Self>, id: &ObjectId, head: &Head, trust: Trust, terms: &Terms) -> SurveyResult {
        let object = id.object();
        if let Some(index) = self.videos.get(&object, &head.version, trust) {
            return Ok(index);
        }
        let survey = Survey { object, version: head.version.clone(), trust };
        if let Some(refused) = self.videos.refused.get(&survey) {
            return Err(refused.value().clone());
        }
        let (reader, own, head) = (self.clone(), survey.clone(), head.clone());
        let own_terms = terms.by(Instant::now() + SURVEY_MAX);
        let flight = self.surveys.join(survey, || async move { reader.survey(own, head, own_terms).await });
        landed(timeout_at(terms.deadline, flight).await, "a video's index")?.0
    }

    /// From the store, or made.
    async fn survey(self: Arc<Self>, survey: Survey, head: Head, terms: Terms) -> SurveyResult {
        let Survey { object, version, trust } = survey;
        let key = EntryKey::Index { object: object.clone() };
        let held = self.held(&key, Some(&version), terms.deadline).await?;
        let held = held.and_then(|entry| VideoIndex::from_bytes(entry.body.bytes())).filter(|index| index.answers(trust));
        if let Some(index) = held {
            let index = Arc::new(index);
            self.videos.insert(&object, &version, index.clone());
            return Ok(index);
        }
        let bytes = match self.index_from_server(&object, &version, trust, &terms).await {
            There::Answer(bytes) => bytes?,
            There::Nobody => {
                let most = self.budget.usage()[Level::Decode as usize].most;
                let need = (SURVEY_BYTES + head.size.min(SURVEY_INPUT_BYTES)).min(most);
                let _reservation = self.budget.reserve(Level::Decode, need, terms.deadline).await?;
                let made = self.make_index(&object, &head, trust, &terms).await;
                if let Err(error @ (DecodeError::Undecodable { .. } | DecodeError::Unsupported { .. })) = &made {
                    let survey = Survey { object: object.clone(), version: version.clone(), trust };
                    self.videos.refused.insert(survey, error.clone().into());
                }
                made?
            }
        };
        let index = VideoIndex::from_bytes(&bytes).ok_or_else(|| ReadError::Unavailable("a decoder gave no index".into()))?;
        let index = Arc::new(index);
        self.store.insert(key, Entry { head: head.clone(), body: Body::Raw(bytes) }, InsertHint::Normal);
        self.videos.insert(&object, &version, index.clone());
        Ok(index)
    }

    async fn make_index(
        self: &Arc<Self>,
        object: &ObjectId,
        head: &Head,
        trust: Trust,
        terms: &Terms,
    ) -> Result<Bytes, DecodeError> {
        self.counts.indexes.fetch_add(1, Ordering::Relaxed);
        let source = Arc::new(Compressed {
            reader: self.clone(),
            id: object.clone(),
            version: head.version.clone(),
            terms: terms.clone(),
        });
        let job = IndexJob { id: object.clone(), version: head.version.clone(), size: head.size, source, trust };
        let span = tracing::info_span!("index", bucket = object.bucket(), key = object.key(), ?trust);
        self.decoder.index(job, terms.deadline).instrument(span).await
    }
}

/// Longest life of a survey: the decoder's own limit is shorter.
const SURVEY_MAX: Duration = Duration::from_secs(300);

/// What a survey takes: its process, the window between it and the node, the reference frames of a small video; and what it holds of the
/// object and of its table, which grow with it.
const SURVEY_BYTES: u64 = 24 << 20;
const SURVEY_INPUT_BYTES: u64 = 40 << 20;
