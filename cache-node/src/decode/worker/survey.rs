//! A video's index as the node has it made: the worker asks for any part of the object, and gives one run of bytes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use framecache::ByteRange;

use super::errand::{Course, Errand, memory_lost, refused};
use super::memory::SharedMemory;
use super::order::{PLACE_ALIGN, read};
use super::protocol::{FromWorker, Job, Outcome, Task};
use super::settings::PoolSettings;
use crate::decode::video::INDEX_BYTES_MAX;
use crate::decode::{DecodeError, Format, IndexJob, Source};

/// Most bytes that one survey reads of an object of so many.
pub(super) fn reads_max(object_bytes: u64) -> u64 {
    object_bytes.saturating_mul(READS_MAX).saturating_add(READS_FREE)
}

/// How often an object may be read by one survey, at most: a scan, a mapping decode and a proof read it once each, and what a demuxer reads
/// twice is little.
const READS_MAX: u64 = 6;

/// What is allowed beside that: the searches of a demuxer in small objects.
const READS_FREE: u64 = 64 << 20;

/// CPU time: what a scan takes that decodes nothing.
const CPU_SECONDS_MIN: u64 = 15;

/// Bytes of a video that a core decodes twice over in a second, a fifth of what it does of 1080p at 6 Mb/s.
const BYTES_A_SECOND: u64 = 256 << 10;

/// What a worker will be told of a video.
pub(super) struct Survey {
    source: Arc<dyn Source>,
    job: Job,
}

impl Survey {
    pub(super) fn of(job: &IndexJob, settings: &PoolSettings) -> Self {
        let window_bytes = settings.window_bytes.next_multiple_of(PLACE_ALIGN);
        let cpu_seconds = (CPU_SECONDS_MIN + job.size / BYTES_A_SECOND).min(settings.index_cpu_seconds);
        let job_told = Job {
            task: Task::Index(job.trust, job.stream),
            object_bytes: job.size,
            first_bytes: 0,
            window_bytes,
            range_bytes: window_bytes.min(settings.window_bytes),
            memory_bytes: window_bytes + INDEX_BYTES_MAX as u64,
            pixels_max: settings.pixels_max,
            cpu_seconds,
            places: Vec::new(),
        };
        Self { source: job.source.clone(), job: job_told }
    }
}

impl Errand for Survey {
    type Made = Bytes;

    async fn hand_over(&self, memory: &mut SharedMemory) -> Result<Job, DecodeError> {
        memory.grow(self.job.memory_bytes).map_err(memory_lost)?;
        Ok(self.job.clone())
    }

    /// Anywhere in the object, in any order, but not for ever.
    fn range(&self, start: u64, length: u64, course: &Course) -> Option<ByteRange> {
        let range = ByteRange::at(start, length)?;
        let ok = length > 0
            && length <= self.job.range_bytes
            && range.end() <= self.job.object_bytes
            && course.brought.saturating_add(length) <= reads_max(self.job.object_bytes);
        ok.then_some(range)
    }

    async fn read(&self, range: ByteRange) -> Result<Bytes, DecodeError> {
        read(&*self.source, range).await
    }

    fn hear(&self, course: &mut Course, said: FromWorker) -> Option<()> {
        match said {
            FromWorker::Index { length } if course.index.is_none() && (1..=INDEX_BYTES_MAX as u64).contains(&length) => {
                course.index = Some(length);
                Some(())
            }
            _ => None,
        }
    }

    fn answer(
        &self,
        course: &Course,
        outcome: Outcome,
        failed: Option<DecodeError>,
        memory: &SharedMemory,
    ) -> Option<Result<Bytes, DecodeError>> {
        Some(match (outcome, failed, course.index) {
            (Outcome::Drawn, None, Some(length)) => memory.read(self.job.window_bytes, length as usize).map_err(memory_lost),
            (Outcome::NoRange, Some(error), None) => Err(error),
            (outcome, _, None) => Err(refused(outcome, Format::Video)?),
            _ => return None,
        })
    }

    fn moved_bytes(&self) -> u64 {
        self.job.object_bytes
    }

    fn deadline(&self, settings: &PoolSettings) -> Duration {
        settings.index_deadline
    }
}
