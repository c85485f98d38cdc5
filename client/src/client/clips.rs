//! Frames of several videos in one call: what each video is, which of its frames are meant, and then the frames of all.
//!
//! Each owner is asked once what its videos are, and once for the frames that it has, in requests of bounded length; which frames are
//! meant is asked once for each video, however many clips are of it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use futures::future::FutureExt;
use futures::stream::StreamExt;
use tokio::time::Instant;

use super::control::ObjectFacts;
use super::crops::STATS_AT_ONCE;
use super::images::{Framed, Outcome, Transport};
use super::{Call, Client};
use crate::batch::Batch;
use crate::error::{Error, ErrorKind};
use crate::frame::Layout;
use crate::object::ObjectId;
use crate::spec::{ImageSpec, SELECTED_MAX, Selector};
use crate::wire::FrameRow;

/// Which frames of which video.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Clip {
    /// The video, or the animation.
    pub id: ObjectId,
    /// Its frames, in the order in which they are wanted; of an animation by index alone.
    pub frames: Selector,
}

/// What a clip comes to, in one version of its video.
#[derive(Clone, Debug)]
pub struct FoundClip {
    /// The video.
    pub id: ObjectId,
    /// What it is, and of which version.
    pub facts: Arc<ObjectFacts>,
    /// Its frames, in the order in which they are wanted; as often as they are. Those of an animation have no times.
    pub rows: Vec<FrameRow>,
}

/// Where the frames of a clip go: into slots of a batch that follow one another.
#[derive(Clone, Copy, Debug)]
pub struct ClipSlots<'a> {
    /// The clip.
    pub clip: &'a FoundClip,
    /// The batch; one may hold several clips, side by side.
    pub batch: &'a Batch,
    /// The first frame's slot.
    pub first: usize,
}

impl Client {
    /// Finds what each of `clips` is and which frames it comes to, in the same order; of each video's best stream, or of `stream`. What is
    /// wrong with one costs that one.
    ///
    /// # Errors
    /// Per clip: as [`Client::stat`], [`Client::stat_stream`] and [`Client::select`]; `Undecodable` for what is no video; `OutOfRange` for
    /// a frame that is not there, with the indices that are; `Changed` where the video was replaced meanwhile.
    pub async fn find_clips(&self, clips: &[Clip], stream: Option<u32>, call: &Call) -> Vec<Result<FoundClip, Error>> {
        let deadline = self.deadline(call);
        let ids: BTreeSet<&ObjectId> = clips.iter().map(|clip| &clip.id).collect();
        let ids: Vec<ObjectId> = ids.into_iter().cloned().collect();
        let of_stream = |id, facts: ObjectFacts| match stream {
            Some(stream) => facts.of_stream(id, stream),
            None => Ok(facts),
        };
        let facts = ids.iter().zip(self.facts(&ids, stream, call, deadline).await);
        let facts: HashMap<&ObjectId, Result<Arc<ObjectFacts>, Error>> =
            facts.map(|(id, facts)| (id, facts.and_then(|facts| of_stream(id, facts)).map(Arc::new))).collect();
        let wanted: Vec<Result<Wanted<'_>, Error>> = clips.iter().map(|clip| Wanted::of(clip, &facts[&clip.id])).collect();
        let told = self.told(asks(&wanted), stream, call, deadline).await;
        wanted.into_iter().map(|wanted| wanted?.found(&told)).collect()
    }

    /// Asks the owners.
    async fn told(&self, asks: Vec<Ask>, stream: Option<u32>, call: &Call, deadline: Instant) -> Told {
        let one = |ask: Ask| {
            async move {
                let Ask { id, facts, selector, .. } = &ask;
                let answer = self.select_by((id, Some(&facts.version)), selector, stream, call, deadline).await;
                let rows = answer.and_then(|answer| match answer.version == facts.version {
                    true => Ok(answer.frames),
                    false => Err(changed(format!("version {}, then {}", facts.version, answer.version)).about(id)),
                });
                (ask, rows)
            }
            .boxed()
        };
        let mut answers = futures::stream::iter(asks.into_iter().map(one)).buffer_unordered(STATS_AT_ONCE);
        let mut told = Told::default();
        while let Some((Ask { id, selector, counted, .. }, rows)) = answers.next().await {
            match (counted, rows) {
                (false, rows) => drop(told.selected.insert((id, selector), rows)),
                (true, Ok(rows)) => told.rows.entry(id).or_default().extend(rows.into_iter().map(|row| (row.frame, row))),
                (true, Err(error)) => drop(told.failed.insert(id, error)),
            }
        }
        told
    }

    /// Decodes the frames of clips as `spec` says, each into its slot: for each clip how its frames ended. A frame that is wanted several
    /// times is decoded once.
    ///
    /// # Errors
    /// Per frame: as [`Client::frames`]; `Changed` also for a frame that is not shown when the clip says, since what was wrong with the
    /// video's index was seen as it was decoded.
    pub async fn clips(&self, clips: &[ClipSlots<'_>], spec: &ImageSpec, call: &Call) -> Vec<Vec<Outcome>> {
        let frames = clips.iter().flat_map(|slots| {
            let ClipSlots { clip: FoundClip { id, facts, rows }, batch, first } = *slots;
            let transport = if facts.has_yuv420() { call.transport } else { Transport::Rgb };
            let framed = move |(row, at): (&FrameRow, usize)| Framed {
                id,
                version: &facts.version,
                frame: row.frame,
                batch,
                at,
                transport,
            };
            rows.iter().zip(first..).map(framed)
        });
        let frames: Vec<Framed<'_>> = frames.collect();
        let outcomes = self.framed(&frames, spec, call).await;
        let mut outcomes = outcomes.into_iter();
        let ended = |clip: &ClipSlots<'_>| {
            let ended = clip.clip.rows.iter().zip(clip.first..).zip(outcomes.by_ref());
            ended.map(|((row, at), outcome)| clip.checked(row, at, outcome)).collect()
        };
        clips.iter().map(ended).collect()
    }
}

impl ClipSlots<'_> {
    /// The outcome of a frame, if it is the one that was meant.
    fn checked(&self, row: &FrameRow, at: usize, outcome: Outcome) -> Outcome {
        let FoundClip { id, facts, .. } = self.clip;
        let version = outcome?;
        if version != facts.version {
            return Err(changed(format!("version {}, then {version}", facts.version)).about(id));
        }
        let shown = self.batch.head(at).map(|head| head.pts_seconds).filter(|_| facts.video.is_some());
        match shown.is_none_or(|shown| shown == row.pts_seconds) {
            true => Ok(version),
            false => Err(facts.is_another(row.frame).about(id)),
        }
    }
}

/// A clip whose video is known, but not when its frames are shown.
struct Wanted<'a> {
    id: &'a ObjectId,
    facts: Arc<ObjectFacts>,
    selector: &'a Selector,
    /// The indices from the start, where frames are meant by index.
    counted: Option<Vec<u64>>,
}

/// Which frames are meant, and when they are shown: what is asked of a video's owner.
struct Ask {
    id: ObjectId,
    facts: Arc<ObjectFacts>,
    selector: Selector,
    /// Whether these are all indices that clips name of this video, or some of them.
    counted: bool,
}

/// Once for each video, and for each selection of it by other than indices.
fn asks(wanted: &[Result<Wanted<'_>, Error>]) -> Vec<Ask> {
    let mut counted: BTreeMap<&ObjectId, (&Wanted<'_>, BTreeSet<u64>)> = BTreeMap::new();
    let mut selected: HashSet<(&ObjectId, &Selector)> = HashSet::new();
    let mut asks = Vec::new();
    let ask =
        |wanted: &Wanted<'_>, selector, counted| Ask { id: wanted.id.clone(), facts: wanted.facts.clone(), selector, counted };
    for wanted in wanted.iter().flatten().filter(|wanted| wanted.facts.video.is_some()) {
        match &wanted.counted {
            Some(frames) => counted.entry(wanted.id).or_insert((wanted, BTreeSet::new())).1.extend(frames),
            None if selected.insert((wanted.id, wanted.selector)) => asks.push(ask(wanted, wanted.selector.clone(), false)),
            None => {}
        }
    }
    for (wanted, frames) in counted.into_values() {
        let frames: Vec<i64> = frames.into_iter().filter_map(|frame| i64::try_from(frame).ok()).collect();
        asks.extend(frames.chunks(SELECTED_MAX).map(|part| ask(wanted, Selector::Frames(part.to_vec()), true)));
    }
    asks
}

/// What owners have said of frames.
#[derive(Default)]
struct Told {
    /// By video and index.
    rows: HashMap<ObjectId, HashMap<u64, FrameRow>>,
    /// Of these videos not all is known.
    failed: HashMap<ObjectId, Error>,
    selected: HashMap<(ObjectId, Selector), Result<Vec<FrameRow>, Error>>,
}

impl<'a> Wanted<'a> {
    fn of(clip: &'a Clip, facts: &Result<Arc<ObjectFacts>, Error>) -> Result<Self, Error> {
        let Clip { id, frames: selector } = clip;
        let facts = facts.clone()?;
        if facts.media.format.is_empty() {
            let none = || Error::new(ErrorKind::Undecodable, "neither a video nor an animation nor a picture");
            return Err(facts.refused.clone().unwrap_or_else(none).about(id));
        }
        let counted = match selector {
            Selector::Frames(frames) => Some(facts.counted(frames).map_err(|error| error.about(id))?),
            _ if facts.video.is_some() => None,
            _ => return Err(Error::new(ErrorKind::Unsupported, "frames of an animation are had by index").about(id)),
        };
        Ok(Self { id, facts, selector, counted })
    }

    fn found(self, told: &Told) -> Result<FoundClip, Error> {
        let Self { id, facts, selector, counted } = self;
        let untold = || Error::new(ErrorKind::Protocol, "nothing was said of a frame").about(id);
        let rows = match counted {
            Some(frames) if facts.video.is_none() => {
                // Frames of animations are shown one after the other; how long is not kept.
                Ok(frames.into_iter().map(|frame| FrameRow { frame, ..FrameRow::default() }).collect())
            }
            Some(frames) => {
                let rows = told.rows.get(id);
                let row = |frame: u64| rows.and_then(|rows| rows.get(&frame)).copied();
                let failed = || told.failed.get(id).cloned().unwrap_or_else(untold);
                frames.into_iter().map(|frame| row(frame).ok_or_else(failed)).collect()
            }
            None => told.selected.get(&(id.clone(), selector.clone())).cloned().unwrap_or_else(|| Err(untold())),
        };
        Ok(FoundClip { id: id.clone(), facts, rows: rows? })
    }
}

impl ObjectFacts {
    /// Number of frames or pages; `None` where only decoding would tell.
    pub fn frame_count(&self) -> Option<u64> {
        self.video.as_ref().map(|video| video.frames).or(self.frames.map(u64::from))
    }

    /// Whether its frames have planes of 4:2:0 in 8 bits.
    pub fn has_yuv420(&self) -> bool {
        self.video.as_ref().is_some_and(|video| matches!(&*video.pix_fmt, "yuv420p" | "yuvj420p"))
    }

    /// Indices counted from the start, as far as it is known where the end is.
    ///
    /// # Errors
    /// `OutOfRange` for a frame that is not there, with the indices that are; `Invalid` for one that is counted from an end that is not
    /// known.
    pub fn counted(&self, indices: &[i64]) -> Result<Vec<u64>, Error> {
        let frames = self.frame_count();
        let outside = |index: i64, frames: u64| {
            let valid = if frames == 0 { "there is none".into() } else { format!("want -{frames} to {}", frames - 1) };
            Error::new(ErrorKind::OutOfRange, format!("frame {index} of {frames}: {valid}"))
        };
        let count = |&index: &i64| match (u64::try_from(index), frames) {
            (Ok(_), Some(frames)) if index.unsigned_abs() >= frames => Err(outside(index, frames)),
            (Ok(frame), _) => Ok(frame),
            (Err(_), None) => {
                let message = format!("frame {index}: the number of frames is not known before they are decoded");
                Err(Error::new(ErrorKind::Invalid, message))
            }
            (Err(_), Some(frames)) => frames.checked_sub(index.unsigned_abs()).ok_or_else(|| outside(index, frames)),
        };
        indices.iter().map(count).collect()
    }

    /// The shape of each frame by `spec`, in the order of its layout, as far as frames are of the size that is told; `None` where that
    /// does not say, and of planes.
    pub fn shape(&self, spec: &ImageSpec) -> Option<[u32; 3]> {
        let (width, height, orientation) = (self.media.width, self.media.height, self.media.orientation);
        let is_known = width > 0 && height > 0 && spec.layout != Layout::Planes;
        let made = || is_known.then(|| spec.turned_geometry(width, height, orientation).ok()).flatten();
        spec.fixed_shape().or_else(|| Some(spec.shape(made()?.output())))
    }

    /// The error of a frame that came with another time than the index said: what was counted by the old one is not handed on.
    pub fn is_another(&self, frame: u64) -> Error {
        changed(format!(
            "frame {frame} is another one by now: what is wrong with the video was seen as it was decoded; open it again"
        ))
    }
}

fn changed(message: String) -> Error {
    Error::new(ErrorKind::Changed, message)
}
