//! Frames of videos: by the video's index, unit by unit, from exactly the bytes that a unit needs.
//!
//! Decoding is what proves an index: where a unit's frames are not where it says, it is made anew with more trust, and the frames are
//! decoded again. What is wrong with one frame, or with one unit, is that one's alone: the others of the same call are given.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use framecache::spec::{Damaged, VideoSpec};
use framecache::{DecodeSpec, ObjectId, Tensor};
use futures::{FutureExt, StreamExt, stream};
use tracing::Instrument;

use super::frames::lost;
use super::video::Touch;
use super::{ReadError, Reader, Terms};
use crate::budget::{Level, Reservation};
use crate::cache::{Head, InsertHint, frames};
use crate::decode::{Clip, ClipFrame, ClipJob, DecodeError, PACKAGE_BYTES_MAX, Trust, VideoIndex};

/// Units of one request that are decoded at the same time.
const CLIPS: usize = 4;

/// Bytes of frames, and pixels that are decoded for them, which are made beside those asked for where a unit is read on. A third of a
/// second of one core, at most.
const NEIGHBOUR_BYTES: u64 = 32 << 20;
const NEIGHBOUR_PIXELS: u64 = 100_000_000;

/// What frames are decoded for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keeping {
    /// They are kept here.
    Here,
    /// Another node keeps them.
    There,
}

/// Why a frame was not drawn, or a unit's frames were not.
#[derive(Clone, Debug)]
enum Undrawn {
    /// The index is wrong of it.
    Differs,
    Failed(ReadError),
}

impl From<ReadError> for Undrawn {
    fn from(error: ReadError) -> Self {
        Self::Failed(error)
    }
}

impl From<DecodeError> for Undrawn {
    fn from(error: DecodeError) -> Self {
        match error {
            DecodeError::IndexDiffers => Self::Differs,
            error => Self::Failed(error.into()),
        }
    }
}

/// One round's frames, in the order of their specs, and their memory.
type Round = (Vec<Result<Tensor, Undrawn>>, Vec<Reservation>);

impl Reader {
    /// Decodes frames of a video, each unit once, in the order of `specs`. The memory is the results'.
    ///
    /// # Errors
    /// What is wrong with the video as a whole; `TooLarge`, `Unsupported` where fewer frames together may do. All else is a frame's.
    pub(super) async fn decode_frames(
        self: &Arc<Self>,
        id: &ObjectId,
        head: &Head,
        specs: &[DecodeSpec],
        keeping: Keeping,
        terms: &Terms,
    ) -> Result<(Vec<Result<Tensor, ReadError>>, Vec<Reservation>), ReadError> {
        let mut made: Vec<Option<Result<Tensor, ReadError>>> = vec![None; specs.len()];
        let mut reservations = Vec::new();
        for (stream, places) in by_stream(specs) {
            let specs: Vec<DecodeSpec> = places.iter().map(|&place| specs[place].clone()).collect();
            let (tensors, memory) = self.decode_stream(id, stream, head, &specs, keeping, terms).await?;
            places.into_iter().zip(tensors).for_each(|(place, tensor)| made[place] = Some(tensor));
            reservations.extend(memory);
        }
        Ok((made.into_iter().map(|made| made.unwrap_or_else(|| Err(lost()))).collect(), reservations))
    }

    /// The same of one stream, which all of `specs` name.
    async fn decode_stream(
        self: &Arc<Self>,
        id: &ObjectId,
        stream: Option<u32>,
        head: &Head,
        specs: &[DecodeSpec],
        keeping: Keeping,
        terms: &Terms,
    ) -> Result<(Vec<Result<Tensor, ReadError>>, Vec<Reservation>), ReadError> {
        let index = self.video_index(id, stream, head, Trust::Predicted, terms).await?;
        let mut round = self.decode_by(&index, id, head, specs, keeping, terms).await?;
        let mut why = ReadError::Undecodable("undecodable (video): its frames differ from one decode to the next".into());
        let differs = round.0.iter().any(|frame| matches!(frame, Err(Undrawn::Differs)));
        if differs && !index.answers(Trust::Proved) {
            tracing::warn!(%id, version = %head.version, trust = ?index.trust(), "a video differs from its index, which is made anew");
            self.counts.indexes_differed.fetch_add(1, Ordering::Relaxed);
            match self.video_index(id, stream, head, Trust::Proved, terms).await {
                Ok(surer) => {
                    // All of it again: what was counted by the old one may be counted otherwise by this one.
                    drop(round);
                    round = self.decode_by(&surer, id, head, specs, keeping, terms).await?;
                }
                // There is no better one: what is as this one says is given all the same.
                Err(error) => why = error,
            }
        }
        let (drawn, reservations) = round;
        let told = |undrawn| match undrawn {
            Undrawn::Differs => why.clone(),
            Undrawn::Failed(error) => error,
        };
        Ok((drawn.into_iter().map(|frame| frame.map_err(told)).collect(), reservations))
    }

    async fn decode_by(
        self: &Arc<Self>,
        index: &Arc<VideoIndex>,
        id: &ObjectId,
        head: &Head,
        specs: &[DecodeSpec],
        keeping: Keeping,
        terms: &Terms,
    ) -> Result<Round, ReadError> {
        let mut made: Vec<Option<Result<Tensor, Undrawn>>> = vec![None; specs.len()];
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
                let drawn = self.decode_clip(index, clip, id, head, &specs, keep, keeping, terms).await;
                (wanted, drawn)
            };
            work.boxed()
        };
        let mut reservations = Vec::new();
        let done: Vec<_> = stream::iter(jobs).map(work).buffer_unordered(CLIPS).collect().await;
        for (wanted, drawn) in done {
            match drawn {
                Ok((tensors, reservation)) => {
                    for ((_, place), tensor) in wanted.into_iter().zip(tensors) {
                        made[place] = Some(tensor);
                    }
                    reservations.push(reservation);
                }
                // Too much at once: fewer may do.
                Err(Undrawn::Failed(error @ (ReadError::TooLarge(_) | ReadError::Unsupported(_)))) if wanted.len() > 1 => {
                    return Err(error);
                }
                Err(undrawn) => wanted.into_iter().for_each(|(_, place)| made[place] = Some(Err(undrawn.clone()))),
            }
        }
        let count = u32::try_from(index.len()).unwrap_or(u32::MAX);
        let none = || Err(DecodeError::NoFrame { count }.into());
        Ok((made.into_iter().map(|made| made.unwrap_or_else(none)).collect(), reservations))
    }

    /// Decodes what is wanted of one unit, in that order, and where somebody reads on, its neighbours too.
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
    ) -> Result<(Vec<Result<Tensor, Undrawn>>, Reservation), Undrawn> {
        let unit = clip.unit_id(index.facts().stream);
        let touch = self.videos.touch(&id.object(), &head.version, unit, &clip);
        let again = touch != Touch::First;
        let beside = match (touch, keeping) {
            (Touch::ReadOn(ahead), Keeping::Here) => self.neighbours(index, &clip, id, head, wanted, ahead),
            _ => Vec::new(),
        };
        let wider = wider(index, &clip, &beside);
        self.videos.touched(&id.object(), &head.version, unit, wider.as_ref().unwrap_or(&clip), touch);
        if let Some(wider) = wider {
            let with = self.decode_unit(index, &wider, id, head, wanted, &beside, damaged_keep, again, terms).await;
            match with {
                Ok((drawn, reservation)) if drawn.iter().all(Result::is_ok) => return Ok((drawn, reservation)),
                Err(Undrawn::Failed(error @ (ReadError::Busy { .. } | ReadError::Deadline))) => return Err(error.into()),
                // Nobody asked for the neighbours: one that is broken, too much, or its decoder's end costs nobody a frame.
                _ => {}
            }
        }
        self.decode_unit(index, &clip, id, head, wanted, &[], damaged_keep, again, terms).await
    }

    #[allow(clippy::too_many_arguments)] // as above
    async fn decode_unit(
        self: &Arc<Self>,
        index: &VideoIndex,
        clip: &Clip,
        id: &ObjectId,
        head: &Head,
        wanted: &[(u64, DecodeSpec)],
        beside: &[(u64, DecodeSpec)],
        damaged_keep: bool,
        again: bool,
        terms: &Terms,
    ) -> Result<(Vec<Result<Tensor, Undrawn>>, Reservation), Undrawn> {
        let unit = clip.unit_id(index.facts().stream);
        let frame = |(frame, spec): &(u64, DecodeSpec)| {
            let number = clip.frames.binary_search(frame).map_err(|_| lost())? as u32;
            Ok::<_, ReadError>(ClipFrame {
                number,
                shape: index.shape(*frame),
                pts_seconds: index.seconds(*frame),
                spec: spec.clone(),
            })
        };
        let frames: Vec<ClipFrame> = wanted.iter().chain(beside).map(frame).collect::<Result<_, _>>()?;
        let package_bytes = index.package_bytes(clip);
        if package_bytes > PACKAGE_BYTES_MAX as u64 {
            let why =
                format!("too large: a frame {package_bytes} bytes behind the start of its unit, limit is {PACKAGE_BYTES_MAX}");
            return Err(ReadError::TooLarge(why).into());
        }
        // What is read holds what lies between packets, too; and the package is there twice while it is written.
        let read = clip.ranges.iter().map(|range| range.len()).fold(2 * package_bytes, u64::saturating_add);
        let drawn = frames.iter().map(most_bytes).fold(0u64, u64::saturating_add);
        let need = read.saturating_add(index.decoder_bytes()).saturating_add(drawn);
        let mut reservation = self.budget.reserve(Level::Decode, need, terms.deadline).await.map_err(ReadError::from)?;
        self.counts.units.fetch_add(1, Ordering::Relaxed);
        let parts = self.unit_bytes(id, &head.version, &clip.ranges, again, terms).await?;
        let package = index.package(clip, &parts).ok_or_else(|| ReadError::Unavailable("a unit's bytes are not whole".into()))?;
        drop(parts);
        let job = ClipJob {
            id: id.clone(),
            version: head.version.clone(),
            unit,
            package: package.into(),
            packets: clip.packets(),
            frames,
            damaged_keep,
            decoder_bytes: index.decoder_bytes(),
            decoded_pixels: index.decoded_pixels(clip),
        };
        let span = tracing::info_span!("decode", bucket = id.bucket(), key = id.key(), unit, frames = clip.frames.len());
        let mut made = self.decoder.clip(job, terms.deadline).instrument(span).await?;
        for ((_, spec), tensor) in beside.iter().zip(made.split_off(wanted.len())) {
            // Nobody asked for it: whoever does finds out what is wrong with it.
            if let Some(entry) = tensor.ok().and_then(|tensor| frames::entry(head.clone(), tensor)) {
                self.store.insert(frames::key(id, spec), entry, InsertHint::Normal);
            }
        }
        reservation.shrink_to(made.iter().flatten().map(|tensor| tensor.head.bytes()).sum());
        Ok((made.into_iter().map(|tensor| Ok(tensor?)).collect(), reservation))
    }

    /// Frames of the unit behind those wanted, `count` at most, made in the same way; those that are held already are not.
    fn neighbours(
        &self,
        index: &VideoIndex,
        clip: &Clip,
        id: &ObjectId,
        head: &Head,
        wanted: &[(u64, DecodeSpec)],
        count: usize,
    ) -> Vec<(u64, DecodeSpec)> {
        let Some((from, spec)) = wanted.last().filter(|(_, spec)| !super::frames::is_one_off(spec)) else { return Vec::new() };
        let ahead = clip.frames.last().map_or(0, |last| last + 1)..clip.unit.end;
        let (width, height) = index.size(*from);
        let most = NEIGHBOUR_PIXELS / (u64::from(width) * u64::from(height)).max(1);
        let mut left = NEIGHBOUR_BYTES;
        let mut beside = Vec::new();
        for frame in ahead.take(count.min(most as usize)) {
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
}

/// What decodes a clip with its neighbours; nothing where there are none.
fn wider(index: &VideoIndex, clip: &Clip, beside: &[(u64, DecodeSpec)]) -> Option<Clip> {
    let frames: Vec<u64> = clip.frames.iter().copied().chain(beside.iter().map(|(frame, _)| *frame)).collect();
    let mut clips = index.plan(&frames);
    let whole = clips.pop().filter(|_| clips.is_empty())?;
    (!beside.is_empty()).then_some(whole)
}

/// Places of specs by whether damaged frames are wanted.
fn by_damage(specs: &[DecodeSpec]) -> BTreeMap<bool, Vec<usize>> {
    let mut places: BTreeMap<bool, Vec<usize>> = BTreeMap::new();
    for (place, spec) in specs.iter().enumerate() {
        places.entry(spec.image().damaged == Damaged::Keep).or_default().push(place);
    }
    places
}

/// Places of specs by the stream that they name.
pub(super) fn by_stream(specs: &[DecodeSpec]) -> BTreeMap<Option<u32>, Vec<usize>> {
    let mut places: BTreeMap<Option<u32>, Vec<usize>> = BTreeMap::new();
    for (place, spec) in specs.iter().enumerate() {
        places.entry(spec.image().stream).or_default().push(place);
    }
    places
}

/// Most bytes of a frame's tensor and of what drawing it takes.
fn most_bytes(frame: &ClipFrame) -> u64 {
    frame.shape.most_bytes(&frame.spec)
}
