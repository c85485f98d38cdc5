//! Bytes in, frames out: compressed pictures become tensors, in processes that may die.
//!
//! Codecs are the part of a node that meets hostile input with unsafe code. So the node itself only looks at headers, in safe Rust
//! ([`probe()`]), and hands the rest to worker processes that can neither open a file nor a socket and that it can afford to lose.
//! A unit that kills its worker twice is left alone for an hour; everything else never notices.
//!
//! The parts, in the order in which a job meets them:
//! - [`probe()`]: what is it, how large, what will it cost; refuses bombs before anything is allocated.
//! - `slots`: start, wait, or say busy at once. Policy.
//! - `quarantine`: which units may not be tried again, and until when. Policy.
//! - `worker`: the pool of processes, their protocol, memory and sandbox.
//! - `formats`: the codecs, behind one face; these and what follows run inside a worker.
//! - `video`: indexes and exact frames of videos, by FFmpeg's libraries.
//! - `image`: the renditions that are made of a decoded frame.
//! - `cut`: those that can be made of one that is held already.
//!
//! This room knows neither where bytes come from ([`Source`]) nor where tensors go.

mod cut;
mod formats;
mod image;
mod in_process;
mod orientation;
mod probe;
mod quarantine;
mod rendition;
mod slots;
pub mod video;
mod worker;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use framecache::{ByteRange, DecodeSpec, ObjectId, Tensor, Version};
use tokio::time::Instant;

pub use cut::{Cut, whole_of};
pub use in_process::InProcess;
pub use probe::{Format, HEADER_BYTES_MAX, Probe, is_video, probe};
pub use video::{Clip, FrameShape, PACKAGE_BYTES_MAX, Trust, VideoIndex};
pub use worker::pool::{DecodeStats, WorkerPool};
pub use worker::process::StartError;
pub use worker::settings::PoolSettings;
pub use worker::worker_main;

/// Most specs that one job may ask of one decode: a picture has a handful of renditions, and the order must fit one message.
pub const SPECS_MAX: usize = 64;

/// Turns compressed bytes into tensors.
#[async_trait]
pub trait Decoder: Send + Sync + 'static {
    /// Decodes one unit once and makes every asked rendition of it; results are in the order of `job.specs`.
    ///
    /// The outer error is the unit's (it is broken, or nobody could try), an inner one is that spec's alone. Answers by `deadline`.
    /// Cancel safe: a dropped call lets a decode that has begun run to its own limit and throws its result away.
    async fn decode(&self, job: DecodeJob, deadline: Instant) -> Result<Vec<Result<Tensor, DecodeError>>, DecodeError>;

    /// Decodes one unit of a video once and makes every asked rendition of its frames, in the order of `job.frames`. Errors as those of
    /// [`Decoder::decode`]; [`DecodeError::IndexDiffers`] of a frame means that the index is to be made anew.
    async fn clip(&self, _job: ClipJob, _deadline: Instant) -> Result<Vec<Result<Tensor, DecodeError>>, DecodeError> {
        Err(no_videos())
    }

    /// Makes a video's index: the bytes of a [`VideoIndex`].
    async fn index(&self, _job: IndexJob, _deadline: Instant) -> Result<Bytes, DecodeError> {
        Err(no_videos())
    }

    /// Units inside, and how many are decoded side by side.
    fn load(&self) -> (usize, usize);
}

/// The answer of a decoder that only knows pictures.
fn no_videos() -> DecodeError {
    DecodeError::unsupported(Format::Video, "videos are decoded by workers alone")
}

/// One decode unit and what to make of it.
#[derive(Clone)]
pub struct DecodeJob {
    /// The picture or archive member.
    pub id: ObjectId,
    /// Its version: `source` answers for this one only.
    pub version: Version,
    /// Bytes of the object.
    pub size: u64,
    /// Where its bytes are read from.
    pub source: Arc<dyn Source>,
    /// The renditions, each of one frame; at most [`SPECS_MAX`].
    pub specs: Vec<DecodeSpec>,
}

/// Frames of one decode unit of a video.
#[derive(Clone, Debug)]
pub struct ClipJob {
    /// The video.
    pub id: ObjectId,
    /// Its version.
    pub version: Version,
    /// The unit, by its first packet.
    pub unit: u64,
    /// Everything that decoding needs, from [`VideoIndex::package`].
    pub package: Bytes,
    /// Packets in it: how far into the unit decoding goes.
    pub packets: u32,
    /// What is made; at most [`SPECS_MAX`].
    pub frames: Vec<ClipFrame>,
    /// Whether damaged frames are wanted too.
    pub damaged_keep: bool,
    /// Bytes that the decoder keeps for itself: reference frames.
    pub decoder_bytes: u64,
    /// Pixels of all frames that are decoded on the way.
    pub decoded_pixels: u64,
}

/// What a decode is, for whoever decides where it is done.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Bytes of all that is made, or more.
    pub output_bytes: u64,
    /// Pixels to be decoded, in millions.
    pub megapixels: f64,
}

/// One frame of a clip and what is made of it.
#[derive(Clone, Debug)]
pub struct ClipFrame {
    /// Its number in the package.
    pub number: u32,
    /// What it looks like.
    pub shape: FrameShape,
    /// Its presentation time, in seconds.
    pub pts_seconds: f64,
    /// What is made of it.
    pub spec: DecodeSpec,
}

/// A video whose index is to be made.
#[derive(Clone)]
pub struct IndexJob {
    /// The video.
    pub id: ObjectId,
    /// Its version: `source` answers for this one only.
    pub version: Version,
    /// Bytes of the object.
    pub size: u64,
    /// Where its bytes are read from.
    pub source: Arc<dyn Source>,
    /// What trust is wanted at least.
    pub trust: Trust,
    /// Which of its streams, if not FFmpeg's best.
    pub stream: Option<u32>,
}

/// The compressed bytes of one object version.
#[async_trait]
pub trait Source: Send + Sync {
    /// Exactly the bytes of `range`, which lies within the object.
    async fn read(&self, range: ByteRange) -> Result<Bytes, SourceError>;
}

/// What a [`Source`] failed with; passed through unread, so that the caller gets back its own error (by downcast).
#[derive(Clone, Debug, thiserror::Error)]
#[error(transparent)]
pub struct SourceError(pub Arc<dyn std::error::Error + Send + Sync>);

impl SourceError {
    /// Wraps the caller's own error.
    pub fn new(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self(Arc::from(error.into()))
    }
}

/// Bounds that are checked from the header, before anything is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most pixels of a picture, and of one rendition.
    pub pixels_max: u64,
}

/// Where Pillow refuses a picture as a decompression bomb (twice its `MAX_IMAGE_PIXELS`).
pub const PIXELS_MAX: u64 = 178_956_970;

impl Default for Limits {
    fn default() -> Self {
        Self { pixels_max: PIXELS_MAX }
    }
}

/// Why there is no tensor. [`DecodeError::is_permanent`] tells what belongs to the sample from what belongs to the moment.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The bytes are no whole picture. Final for this version: count the sample as bad, ask nobody else.
    #[error("undecodable ({format}): {reason}")]
    Undecodable {
        /// What it was taken for.
        format: Format,
        /// What is wrong with it.
        reason: String,
    },
    /// A picture, or a rendition of it, that this release does not make. Final until an upgrade: ask nobody else.
    #[error("unsupported ({format}): {reason}")]
    Unsupported {
        /// What it is.
        format: Format,
        /// What is not supported.
        reason: String,
    },
    /// Frames are counted from 0, and there are only `count`. Final for this version.
    #[error("no such frame, there are {count}")]
    NoFrame {
        /// Frames or pages.
        count: u32,
    },
    /// The video's frames are not where its index says: make it anew, with more trust, and ask again.
    #[error("the video differs from its index")]
    IndexDiffers,
    /// The declared size, or the size asked for, passes the node's limit. Final: ask nobody else.
    #[error("too large: {width}x{height} pixels, limit is {limit} pixels")]
    TooLarge {
        /// Width in pixels.
        width: u32,
        /// Height in pixels.
        height: u32,
        /// Most pixels that this node decodes.
        limit: u64,
    },
    /// Only from [`probe()`]: the header is longer than what was given. Probe again with this many bytes from the start.
    #[error("header goes on: {bytes} bytes are needed")]
    NeedMore {
        /// Bytes from the object's start; more than were given, at most the object's size.
        bytes: u64,
    },
    /// This unit killed its worker repeatedly and is not tried for a while. Count the sample as bad, and ask nobody else: every
    /// node would lose workers to it. Do not cache beyond `retry_after`.
    #[error("quarantined after {deaths} worker deaths, the last by {cause}")]
    Quarantined {
        /// Workers lost to it.
        deaths: u32,
        /// How the last one ended.
        cause: String,
        /// When it may be tried again.
        retry_after: Duration,
    },
    /// More work waits than can be done in time. Nothing was begun: ask another node, or this one after `retry_after`.
    #[error("decoders are busy, retry after {retry_after:?}")]
    Busy {
        /// When a slot is likely.
        retry_after: Duration,
    },
    /// The deadline passed. Ask again with a later one, or give up.
    #[error("decode deadline passed")]
    Deadline,
    /// Workers were lost for reasons that say nothing about the picture (killed from outside, could not start), and the retries
    /// with them. Ask another node.
    #[error("decode worker lost: {0}")]
    WorkerLost(String),
    /// The compressed bytes could not be read. Treat it as the source's own error says.
    #[error("read compressed bytes: {0}")]
    Source(#[from] SourceError),
}

impl DecodeError {
    /// Whether the answer would be the same elsewhere and later: it is the sample's fault, so count it and do not walk on.
    /// A source's error is not judged here: ask the source's error itself.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Undecodable { .. }
            | Self::Unsupported { .. }
            | Self::NoFrame { .. }
            | Self::TooLarge { .. }
            | Self::Quarantined { .. } => true,
            Self::NeedMore { .. }
            | Self::IndexDiffers
            | Self::Busy { .. }
            | Self::Deadline
            | Self::WorkerLost(_)
            | Self::Source(_) => false,
        }
    }

    fn undecodable(format: Format, reason: impl Into<String>) -> Self {
        Self::Undecodable { format, reason: reason.into() }
    }

    fn unsupported(format: Format, reason: impl Into<String>) -> Self {
        Self::Unsupported { format, reason: reason.into() }
    }
}

/// What a codec's refusal is to the caller.
fn refusal(failure: formats::Failure, format: Format) -> DecodeError {
    match failure {
        formats::Failure::Undecodable(reason) => DecodeError::undecodable(format, reason),
        formats::Failure::Unsupported(reason) => DecodeError::unsupported(format, reason),
        formats::Failure::NoFrame { count } => DecodeError::NoFrame { count },
        formats::Failure::OutOfMemory => DecodeError::WorkerLost("out of memory".into()),
    }
}
