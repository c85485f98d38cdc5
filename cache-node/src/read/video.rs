//! Frames of videos: by the video's index, unit by unit, from exactly the bytes that a unit needs.
//!
//! The index is made once for each version, kept beside the pages, and asked for from the node that serves the object. Decoding is what
//! proves it: where a unit's frames are not where the index says, it is made anew with more trust, and the frames are decoded again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{Bytes, BytesMut};
use foyer::{Cache, CacheBuilder, LruConfig};
use framecache::object::PAGE_BYTES;
use framecache::spec::{Damaged, VideoSpec};
use framecache::{ByteRange, DecodeSpec, ObjectId, Page, Tensor, Version};
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use tokio::time::{Instant, timeout_at};
use tracing::Instrument;

use super::frames::lost;
use super::others::There;
use super::units::Compressed;
use super::{ReadError, Reader, Terms, landed};
use crate::budget::{Level, Reservation};
use crate::cache::{Body, Entry, EntryKey, Head, InsertHint, frames, pages};
use crate::decode::{Clip, ClipFrame, ClipJob, DecodeError, IndexJob, Trust, VideoIndex, is_video};

/// Bytes that indexes may take in RAM: some 40 hours of video at 30 frames a second.
const INDEXES_BYTES: u64 = 48 << 20;

/// Units of one request that are decoded at the same time.
const CLIPS: usize = 4;

/// Ranges of one unit that are read at the same time.
const RANGES: usize = 4;

/// Longest read of the origin: a unit's bytes come in pieces of this.
const READ_BYTES: u64 = 8 << 20;

/// Frames, and bytes of them, that are kept beside those asked for when a unit is decoded again: whoever comes back to a unit goes on.
const NEIGHBOURS: usize = 48;
const NEIGHBOUR_BYTES: u64 = 32 << 20;

/// Units that are remembered as decoded before.
const TOUCHED: usize = 65_536;

/// Videos' indexes, and which of their units were decoded lately.
pub(super) struct Videos {
    indexes: Cache<ObjectId, Indexed>,
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
        Self { indexes, touched: CacheBuilder::new(TOUCHED).with_shards(4).with_eviction_config(lru()).build() }
    }
}

impl Videos {
    fn get(&self, object: &ObjectId, version: &Version, trust: Trust) -> Option<Arc<VideoIndex>> {
        let held = self.indexes.get(object)?;
        let held = held.value();
        (held.version == *version && held.index.trust() >= trust).then(|| held.index.clone())
    }

    fn insert(&self, object: &ObjectId, version: &Version, index: Arc<VideoIndex>) {
        self.indexes.insert(object.clone(), Indexed { version: version.clone(), index });
    }

    /// Notes that the unit is decoded; whether it was before.
    fn touch(&self, object: &ObjectId, version: &Version, unit: u64) -> bool {
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

/// What frames are decoded for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keeping {
    /// They are kept here.
    Here,
    /// Another node keeps them.
    There,
}

/// Why a round of decoding came to nothing.
enum Round {
    /// The index is wrong.
    Differs,
    Failed(ReadError),
}

impl From<ReadError> for Round {
    fn from(error: ReadError) -> Self {
        Self::Failed(error)
    }
}

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
        let held = held.and_then(|entry| VideoIndex::from_bytes(entry.body.bytes())).filter(|index| index.trust() >= trust);
        if let Some(index) = held {
            let index = Arc::new(index);
            self.videos.insert(&object, &version, index.clone());
            return Ok(index);
        }
        let bytes = match self.index_from_server(&object, &version, trust, &terms).await {
            There::Answer(bytes) => bytes?,
            There::Nobody => self.make_index(&object, &head, trust, &terms).await?,
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
    ) -> Result<Bytes, ReadError> {
        self.counts.indexes.fetch_add(1, Ordering::Relaxed);
        let source = Arc::new(Compressed {
            reader: self.clone(),
            id: object.clone(),
            version: head.version.clone(),
            terms: terms.clone(),
        });
        let job = IndexJob { id: object.clone(), version: head.version.clone(), size: head.size, source, trust };
        let span = tracing::info_span!("index", bucket = object.bucket(), key = object.key(), ?trust);
        Ok(self.decoder.index(job, terms.deadline).instrument(span).await?)
    }

    /// Decodes frames of a video, each unit once, in the order of `specs`. The memory is the results'.
    pub(super) async fn decode_frames(
        self: &Arc<Self>,
        id: &ObjectId,
        head: &Head,
        specs: &[DecodeSpec],
        keeping: Keeping,
        terms: &Terms,
    ) -> Result<(Vec<Result<Tensor, ReadError>>, Vec<Reservation>), ReadError> {
        let mut index = self.video_index(id, head, Trust::Predicted, terms).await?;
        loop {
            match self.decode_by(&index, id, head, specs, keeping, terms).await {
                Ok(made) => return Ok(made),
                Err(Round::Failed(error)) => return Err(error),
                Err(Round::Differs) if index.trust() < Trust::Proved => {
                    tracing::warn!(%id, version = %head.version, trust = ?index.trust(), "a video differs from its index, which is made anew");
                    self.counts.indexes_differed.fetch_add(1, Ordering::Relaxed);
                    index = self.video_index(id, head, Trust::Proved, terms).await?;
                }
                Err(Round::Differs) => {
                    return Err(ReadError::Undecodable(
                        "undecodable (video): its frames differ from one decode to the next".into(),
                    ));
                }
            }
        }
    }

    async fn decode_by(
        self: &Arc<Self>,
        index: &Arc<VideoIndex>,
        id: &ObjectId,
        head: &Head,
        specs: &[DecodeSpec],
        keeping: Keeping,
        terms: &Terms,
    ) -> Result<(Vec<Result<Tensor, ReadError>>, Vec<Reservation>), Round> {
        let mut made: Vec<Option<Result<Tensor, ReadError>>> = vec![None; specs.len()];
        let mut jobs = Vec::new();
        for (keep, places) in by_damage(specs) {
            let there = |&place: &usize| specs[place].frame().filter(|&frame| frame < index.len()).map(|frame| (frame, place));
            let wanted: Vec<(u64, usize)> = places.iter().filter_map(there).collect();
            let mut frames: Vec<u64> = wanted.iter().map(|(frame, _)| *frame).collect();
            frames.sort_unstable();
            frames.dedup();
            for clip in index.plan(&frames) {
                let of_clip = |(frame, place): &(u64, usize)| clip.frames.contains(frame).then_some((*frame, *place));
                let wanted: Vec<(u64, usize)> = wanted.iter().filter_map(of_clip).collect();
                jobs.push((clip, wanted, keep));
            }
        }
        let work = |(clip, wanted, keep): (Clip, Vec<(u64, usize)>, bool)| {
            let work = async move {
                let specs: Vec<(u64, DecodeSpec)> = wanted.iter().map(|&(frame, place)| (frame, specs[place].clone())).collect();
                let (tensors, reservation) = self.decode_clip(index, clip, id, head, &specs, keep, keeping, terms).await?;
                Ok::<_, Round>((wanted, tensors, reservation))
            };
            work.boxed()
        };
        let mut reservations = Vec::new();
        let done: Vec<_> = stream::iter(jobs).map(work).buffer_unordered(CLIPS).try_collect().await?;
        for (wanted, tensors, reservation) in done {
            for ((_, place), tensor) in wanted.into_iter().zip(tensors) {
                made[place] = Some(tensor);
            }
            reservations.push(reservation);
        }
        let count = u32::try_from(index.len()).unwrap_or(u32::MAX);
        let none = || Err(DecodeError::NoFrame { count }.into());
        Ok((made.into_iter().map(|made| made.unwrap_or_else(none)).collect(), reservations))
    }

    /// Decodes one unit: what is wanted of it, in that order, and where somebody came back to it, its neighbours too.
    #[allow(clippy::too_many_arguments)] // one unit's whole story; a struct would only rename them
    async fn decode_clip(
        self: &Arc<Self>,
        index: &VideoIndex,
        clip: Clip,
        id: &ObjectId,
        head: &Head,
        wanted: &[(u64, DecodeSpec)],
        damaged_keep: bool,
        keeping: Keeping,
        terms: &Terms,
    ) -> Result<(Vec<Result<Tensor, ReadError>>, Reservation), Round> {
        let again = self.videos.touch(&id.object(), &head.version, clip.unit_id());
        let (mut clip, mut beside) = (clip, Vec::new());
        if again && keeping == Keeping::Here {
            beside = self.neighbours(index, &clip, id, head, wanted);
            let mut frames: Vec<u64> = clip.frames.iter().copied().chain(beside.iter().map(|(frame, _)| *frame)).collect();
            frames.sort_unstable();
            frames.dedup();
            let mut wider = index.plan(&frames);
            match (wider.pop(), wider.is_empty()) {
                (Some(whole), true) => clip = whole,
                _ => beside.clear(),
            }
        }
        let frame = |(frame, spec): &(u64, DecodeSpec)| {
            let number = clip.frames.binary_search(frame).map_err(|_| lost())? as u32;
            Ok::<_, ReadError>(ClipFrame {
                number,
                shape: index.shape(*frame),
                pts_seconds: index.seconds(*frame),
                spec: spec.clone(),
            })
        };
        let frames: Vec<ClipFrame> = wanted.iter().chain(&beside).map(frame).collect::<Result<_, _>>()?;
        let package_bytes = index.package_bytes(&clip);
        let drawn = frames.iter().map(|frame| most_bytes(frame)).fold(0u64, u64::saturating_add);
        let need = (2 * package_bytes).saturating_add(index.decoder_bytes()).saturating_add(drawn);
        let mut reservation = self.budget.reserve(Level::Decode, need, terms.deadline).await.map_err(ReadError::from)?;
        self.counts.units.fetch_add(1, Ordering::Relaxed);
        let parts = self.parts(id, &head.version, &clip.ranges, again, terms).await?;
        let package =
            index.package(&clip, &parts).ok_or_else(|| ReadError::Unavailable("a unit's bytes are not whole".into()))?;
        drop(parts);
        let job = ClipJob {
            id: id.clone(),
            version: head.version.clone(),
            unit: clip.unit_id(),
            codec: index.codec(),
            package: package.into(),
            frames,
            damaged_keep,
            decoder_bytes: index.decoder_bytes(),
            decoded_pixels: index.decoded_pixels(&clip),
        };
        let span = tracing::info_span!(
            "decode",
            bucket = id.bucket(),
            key = id.key(),
            unit = clip.unit_id(),
            frames = clip.frames.len()
        );
        let mut made = self.decoder.clip(job, terms.deadline).instrument(span).await.map_err(round)?;
        for ((_, spec), tensor) in beside.iter().zip(made.split_off(wanted.len())) {
            // Nobody asked for it: whoever does finds out what is wrong with it.
            if let Some(entry) = tensor.ok().and_then(|tensor| frames::entry(head.clone(), tensor)) {
                self.store.insert(frames::key(id, spec), entry, InsertHint::Normal);
            }
        }
        if made.iter().any(|tensor| matches!(tensor, Err(DecodeError::IndexDiffers))) {
            return Err(Round::Differs);
        }
        reservation.shrink_to(made.iter().flatten().map(|tensor| tensor.head.bytes()).sum());
        Ok((made.into_iter().map(|tensor| Ok(tensor?)).collect(), reservation))
    }

    /// Frames of the unit beside those wanted, made in the same way, nearest first; those that are held already are not.
    fn neighbours(
        &self,
        index: &VideoIndex,
        clip: &Clip,
        id: &ObjectId,
        head: &Head,
        wanted: &[(u64, DecodeSpec)],
    ) -> Vec<(u64, DecodeSpec)> {
        let Some((from, spec)) = wanted.last().filter(|(_, spec)| !super::frames::is_one_off(spec)) else { return Vec::new() };
        let mut near: Vec<u64> = clip.unit.clone().filter(|frame| !clip.frames.contains(frame)).collect();
        // Ahead before behind: frames are read forwards more often than backwards.
        near.sort_unstable_by_key(|frame| (frame < from, frame.abs_diff(*from)));
        let mut left = NEIGHBOUR_BYTES;
        let mut beside = Vec::new();
        for frame in near.into_iter().take(NEIGHBOURS) {
            let spec = DecodeSpec::from(VideoSpec::at(frame, spec.image().clone()));
            let bytes = most_bytes(&ClipFrame { number: 0, shape: index.shape(frame), pts_seconds: 0.0, spec: spec.clone() });
            if bytes > left {
                break;
            }
            if self.store.get_ram(&frames::key(id, &spec), Some(&head.version)).is_none() {
                left -= bytes;
                beside.push((frame, spec));
            }
        }
        beside
    }

    /// The bytes of a unit's ranges. The first time exactly those; whoever comes back has the pages brought in and kept.
    async fn parts(
        self: &Arc<Self>,
        id: &ObjectId,
        version: &Version,
        ranges: &[ByteRange],
        again: bool,
        terms: &Terms,
    ) -> Result<Vec<(ByteRange, Bytes)>, ReadError> {
        let pieces: Vec<ByteRange> = ranges.iter().flat_map(|&range| pieces(range)).collect();
        let read = |range: ByteRange| {
            let read = async move {
                let bytes = match again {
                    true => self.compressed(id, version, range, terms).await?,
                    false => self.exactly(id, version, range, terms).await?,
                };
                Ok::<_, ReadError>((range, bytes))
            };
            read.boxed()
        };
        stream::iter(pieces).map(read).buffered(RANGES).try_collect().await
    }

    /// Exactly the bytes of `range`: what is held of it, and of the rest nothing beside.
    async fn exactly(
        self: &Arc<Self>,
        id: &ObjectId,
        version: &Version,
        range: ByteRange,
        terms: &Terms,
    ) -> Result<Bytes, ReadError> {
        let mut whole = BytesMut::with_capacity(range.len() as usize);
        let mut missing: Option<ByteRange> = None;
        for page in range.pages() {
            let part = page.range().intersect(range);
            let held = self.held(&pages::key(id, page), Some(version), terms.deadline).await?;
            match held.and_then(|entry| pages::slice(&entry, page, part)) {
                Some(bytes) => {
                    if let Some(missing) = missing.take() {
                        whole.extend_from_slice(&self.fetched(id, version, missing, terms).await?);
                    }
                    whole.extend_from_slice(&bytes);
                }
                None => {
                    let start = missing.map_or(part.start(), |missing| missing.start());
                    missing = ByteRange::new(start, part.end());
                }
            }
        }
        if let Some(missing) = missing {
            whole.extend_from_slice(&self.fetched(id, version, missing, terms).await?);
        }
        match whole.len() as u64 == range.len() {
            true => Ok(whole.freeze()),
            false => Err(ReadError::Unavailable("a fill ended short".into())),
        }
    }
}

/// Longest life of a survey: the decoder's own limit is shorter.
const SURVEY_MAX: std::time::Duration = std::time::Duration::from_secs(300);

/// Places of specs by whether damaged frames are wanted.
fn by_damage(specs: &[DecodeSpec]) -> BTreeMap<bool, Vec<usize>> {
    let mut places: BTreeMap<bool, Vec<usize>> = BTreeMap::new();
    for (place, spec) in specs.iter().enumerate() {
        places.entry(spec.image().damaged == Damaged::Keep).or_default().push(place);
    }
    places
}

/// Most bytes of a frame's tensor and of what drawing it takes.
fn most_bytes(frame: &ClipFrame) -> u64 {
    frame.shape.most_bytes(&frame.spec)
}

/// A range in pieces of at most [`READ_BYTES`], cut at pages.
fn pieces(range: ByteRange) -> Vec<ByteRange> {
    let mut pieces = Vec::new();
    let mut at = range.start();
    while at < range.end() {
        let end = ((at / PAGE_BYTES * PAGE_BYTES) + READ_BYTES).min(range.end());
        pieces.extend(ByteRange::new(at, end));
        at = end;
    }
    pieces
}

fn round(error: DecodeError) -> Round {
    match error {
        DecodeError::IndexDiffers => Round::Differs,
        error => Round::Failed(error.into()),
    }
}
