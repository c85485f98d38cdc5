//! Indexes of videos: made once for each version, kept beside the pages, and asked for from the node that serves the object.

mod remembered;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use framecache::{DecodeSpec, ObjectId, Page, Version};
use tokio::time::{Instant, timeout_at};
use tracing::Instrument;

use remembered::Stream;
pub(super) use remembered::{Touch, Videos};

use super::others::There;
use super::units::Compressed;
use super::{ReadError, Reader, Terms, landed};
use crate::budget::Level;
use crate::cache::{Body, Entry, EntryKey, Head, InsertHint};
use crate::decode::{DecodeError, IndexJob, Trust, VideoIndex, is_video};

/// A survey under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Survey {
    stream: Stream,
    version: Version,
    trust: Trust,
}

pub(super) type SurveyResult = Result<Arc<VideoIndex>, ReadError>;

impl Reader {
    /// Whether this version of the object is a video, as far as its first bytes tell.
    pub async fn is_video(self: &Arc<Self>, id: &ObjectId, head: &Head, terms: &Terms) -> Result<bool, ReadError> {
        if self.videos.get(&(id.object(), None), &head.version, Trust::Predicted).is_some() {
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
        let stream = (id.object(), spec.image().stream);
        let index = self.videos.get(&stream, &entry.head.version, Trust::Predicted);
        index.is_none_or(|index| frame < index.len() && index.seconds(frame) == tensor.head.pts_seconds)
    }

    /// The index of a video's version, of its best stream or of another, of at least that trust.
    ///
    /// # Errors
    /// `Undecodable`, `Unsupported` for what is no video that can be read; else as [`Reader::page`].
    pub async fn video_index(
        self: &Arc<Self>,
        id: &ObjectId,
        stream: Option<u32>,
        head: &Head,
        trust: Trust,
        terms: &Terms,
    ) -> SurveyResult {
        let stream = (id.object(), stream);
        if let Some(index) = self.videos.get(&stream, &head.version, trust) {
            return Ok(index);
        }
        let survey = Survey { stream, version: head.version.clone(), trust };
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
        let Survey { stream, version, trust } = survey;
        let (object, which) = &stream;
        let key = EntryKey::Index { object: object.clone(), stream: *which };
        let held = self.held(&key, Some(&version), terms.deadline).await?;
        let held = held.and_then(|entry| VideoIndex::from_bytes(entry.body.bytes())).filter(|index| index.answers(trust));
        if let Some(index) = held {
            let index = Arc::new(index);
            self.videos.insert(&stream, &version, index.clone());
            return Ok(index);
        }
        let bytes = match self.index_from_server(object, &version, trust, *which, &terms).await {
            There::Answer(bytes) => bytes?,
            There::Nobody => {
                let most = self.budget.usage()[Level::Decode as usize].most;
                let need = (SURVEY_BYTES + head.size.min(SURVEY_INPUT_BYTES)).min(most);
                let _reservation = self.budget.reserve(Level::Decode, need, terms.deadline).await?;
                let made = self.make_index(&stream, &head, trust, &terms).await;
                if let Err(error @ (DecodeError::Undecodable { .. } | DecodeError::Unsupported { .. })) = &made {
                    let survey = Survey { stream: stream.clone(), version: version.clone(), trust };
                    self.videos.refused.insert(survey, error.clone().into());
                }
                made?
            }
        };
        let index = VideoIndex::from_bytes(&bytes).ok_or_else(|| ReadError::Unavailable("a decoder gave no index".into()))?;
        let index = Arc::new(index);
        self.store.insert(key, Entry { head: head.clone(), body: Body::Raw(bytes) }, InsertHint::Normal);
        self.videos.insert(&stream, &version, index.clone());
        Ok(index)
    }

    async fn make_index(
        self: &Arc<Self>,
        (object, stream): &Stream,
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
        let (id, version, size, stream) = (object.clone(), head.version.clone(), head.size, *stream);
        let job = IndexJob { id, version, size, source, trust, stream };
        let span = tracing::info_span!("index", bucket = object.bucket(), key = object.key(), ?trust, ?stream);
        self.decoder.index(job, terms.deadline).instrument(span).await
    }
}

/// Longest life of a survey: the decoder's own limit is shorter.
const SURVEY_MAX: Duration = Duration::from_secs(300);

/// What a survey takes: its process, the window between it and the node, the reference frames of a small video; and what it holds of the
/// object and of its table, which grow with it.
const SURVEY_BYTES: u64 = 24 << 20;
const SURVEY_INPUT_BYTES: u64 = 40 << 20;
