//! What a worker is sent for, from the node's side: pictures, clips and indexes differ in what is handed over, in what the worker may ask
//! and say, and in what is made of it; how they are carried through does not.

use std::time::Duration;

use bytes::Bytes;
use framecache::pixels::yuv;
use framecache::{ByteRange, Tensor};

use super::memory::SharedMemory;
use super::protocol::{FromWorker, Job, Outcome};
use super::settings::PoolSettings;
use crate::decode::{DecodeError, Format};

/// One job. Nothing that a worker says moves a place or a size: what it says is compared, and is otherwise no sound worker's.
pub(super) trait Errand: Send + Sync + 'static {
    /// What comes of it.
    type Made: Send + 'static;

    /// The message, with memory made ready for it.
    fn hand_over(&self, memory: &mut SharedMemory) -> impl Future<Output = Result<Job, DecodeError>> + Send;

    /// A range that the worker asks for, if it may.
    fn range(&self, start: u64, length: u64, course: &Course) -> Option<ByteRange>;

    /// Exactly the bytes of `range`.
    fn read(&self, range: ByteRange) -> impl Future<Output = Result<Bytes, DecodeError>> + Send;

    /// Takes what the worker says before it is done, if it may say that.
    fn hear(&self, course: &mut Course, said: FromWorker) -> Option<()>;

    /// What is made of it in the end; nothing where no sound worker would end so. `failed` is why a range did not come.
    fn answer(
        &self,
        course: &Course,
        outcome: Outcome,
        failed: Option<DecodeError>,
        memory: &SharedMemory,
    ) -> Option<Result<Self::Made, DecodeError>>;

    /// Bytes that are moved through shared memory.
    fn moved_bytes(&self) -> u64;

    /// Wall-clock time that it may take.
    fn deadline(&self, settings: &PoolSettings) -> Duration {
        settings.deadline
    }
}

/// How one try goes.
#[derive(Debug, Default)]
pub(super) struct Course {
    /// One past the last byte that the worker was brought.
    pub(super) read_to: u64,
    /// Bytes that it was brought in all.
    pub(super) brought: u64,
    /// The ends of places, in rising order.
    pub(super) ends: Vec<End>,
    /// Bytes of the index that is made.
    pub(super) index: Option<u64>,
}

/// What became of a place: drawn (of planes with their format, if the worker knows it), or refused.
pub(super) type End = (usize, Result<Option<yuv::Format>, DecodeError>);

impl Course {
    pub(super) fn of(job: &Job) -> Self {
        Self { read_to: job.first_bytes, ..Self::default() }
    }

    pub(super) fn bring(&mut self, range: ByteRange) {
        self.read_to = range.end();
        self.brought += range.len();
    }

    /// Whether the end of place `index` of `places` may be told next.
    pub(super) fn is_next(&self, index: usize, places: usize) -> bool {
        index < places && self.ends.last().is_none_or(|(last, _)| *last < index)
    }

    /// How the place ended, where it did.
    pub(super) fn end(&self, place: usize) -> Option<&Result<Option<yuv::Format>, DecodeError>> {
        self.ends.binary_search_by_key(&place, |(index, _)| *index).ok().map(|found| &self.ends[found].1)
    }
}

/// Renditions, each of which may be refused alone.
pub(super) type Renditions = Vec<Result<Tensor, DecodeError>>;

/// What a worker says of an input, or of a part of it, that it did not draw.
pub(super) fn refused(outcome: Outcome, format: Format) -> Option<DecodeError> {
    match outcome {
        Outcome::Undecodable(reason) => Some(DecodeError::undecodable(format, reason)),
        Outcome::Unsupported(reason) => Some(DecodeError::unsupported(format, reason)),
        Outcome::NoFrame { count } => Some(DecodeError::NoFrame { count }),
        Outcome::Differs => Some(DecodeError::IndexDiffers),
        Outcome::Drawn | Outcome::NoRange => None,
    }
}

/// The node's own trouble: says nothing about the input.
pub(super) fn memory_lost(error: std::io::Error) -> DecodeError {
    DecodeError::WorkerLost(format!("shared memory: {error}"))
}
