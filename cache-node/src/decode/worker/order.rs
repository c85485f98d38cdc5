//! One job as the node prepares it: bytes read, header probed, every place in shared memory fixed before a worker hears of it.
//!
//! Nothing that a worker says moves a place or a size: it only says "drawn", and what it says is compared.

use std::sync::Arc;

use bytes::Bytes;
use framecache::{ByteRange, DecodeSpec, Tensor};

use super::errand::{Course, Errand, Renditions, memory_lost, refused};
use super::memory::SharedMemory;
use super::planted::Fault;
use super::protocol::{FromWorker, Job, Outcome, Place, Task};
use super::settings::PoolSettings;
use crate::decode::formats::{self, Wants};
use crate::decode::rendition::Rendition;
use crate::decode::{DecodeError, DecodeJob, Format, Probe, Source, SourceError, probe, refusal};

/// What a worker will be told, and what its answer will be held against.
pub(super) struct Order {
    pub(super) probe: Probe,
    source: Arc<dyn Source>,
    first: Bytes,
    /// Bytes of the start that the worker has when its job begins: `first`, or all of a format that is decoded whole.
    held_bytes: u64,
    object_bytes: u64,
    /// Per asked spec.
    planned: Vec<Result<Rendition, DecodeError>>,
    job: Job,
}

impl Order {
    /// Reads what a worker needs first, and refuses what needs no worker.
    ///
    /// `allowed` says of each spec whether it may be tried.
    pub(super) async fn prepare(
        job: &DecodeJob,
        allowed: Vec<Result<(), DecodeError>>,
        settings: &PoolSettings,
    ) -> Result<Self, DecodeError> {
        let (first, probe) = read_header(job, settings).await?;
        let limits = settings.limits();
        let plan = |(spec, allowed): (_, Result<(), _>)| {
            allowed?;
            let rendition = Rendition::of(spec, &probe, &limits)?;
            let judged = formats::judge(&probe, Wants::default(), &[rendition.frame]);
            judged.map(|()| rendition).map_err(|failure| refusal(failure, probe.format))
        };
        let planned: Vec<Result<Rendition, DecodeError>> = job.specs.iter().zip(allowed).map(plan).collect();
        fits(&probe, &planned, settings)?;
        // A header may lie at the end, behind all pixels; what is not kept here is read again piece by piece.
        let first = match probe.format.is_whole() && first.len() as u64 > settings.whole_bytes_max.max(HEADER_FIRST) {
            true => Bytes::copy_from_slice(&first[..HEADER_FIRST as usize]),
            false => first,
        };
        let held_bytes = if probe.format.is_whole() { job.size } else { first.len() as u64 };
        let mut order = lay_out(job, held_bytes, &planned, settings);
        let need = cpu_seconds(&probe, &planned);
        // One alone gets what there is; several would be judged by the limit of one.
        if need > settings.cpu_seconds && order.places.len() > 1 {
            let (width, height) = (probe.width, probe.height);
            return Err(DecodeError::TooLarge { width, height, limit: settings.pixels_max });
        }
        order.cpu_seconds = need.min(settings.cpu_seconds);
        Ok(Self { probe, source: job.source.clone(), first, held_bytes, object_bytes: job.size, planned, job: order })
    }

    /// Whether every spec has its answer already.
    pub(super) fn is_idle(&self) -> bool {
        self.job.places.is_empty()
    }

    /// The answers of an idle order.
    pub(super) fn refusals(self) -> Vec<Result<Tensor, DecodeError>> {
        self.planned.into_iter().filter_map(Result::err).map(Err).collect()
    }

    /// Copies the renditions out that are drawn; refusals keep their places among the answers, and what has no end is refused with
    /// `rest`.
    fn tensors(&self, course: &Course, rest: &DecodeError, memory: &SharedMemory) -> std::io::Result<Renditions> {
        let mut places = self.job.places.iter().enumerate();
        let mut tensor = |rendition: &Rendition| {
            let (index, Place { offset, length, .. }) = places.next().expect("a place per rendition");
            match course.end(index) {
                Some(Ok(_)) => {}
                Some(Err(refused)) => return Ok(Err(refused.clone())),
                None => return Ok(Err(rest.clone())),
            }
            let data = memory.read(*offset, *length as usize)?;
            Ok(Ok(Tensor { head: rendition.head(&self.probe), data }))
        };
        let answer = |planned: &Result<Rendition, DecodeError>| match planned {
            Ok(rendition) => tensor(rendition),
            Err(refused) => Ok(Err(refused.clone())),
        };
        self.planned.iter().map(answer).collect()
    }
}

impl Errand for Order {
    type Made = Renditions;

    /// What a worker needs beyond the header goes there piece by piece, so that the node never holds a large object beside it.
    async fn hand_over(&self, memory: &mut SharedMemory) -> Result<Job, DecodeError> {
        memory.grow(self.job.memory_bytes).map_err(memory_lost)?;
        memory.write(0, &self.first).map_err(memory_lost)?;
        let mut at = self.first.len() as u64;
        while at < self.held_bytes {
            let piece = self.job.range_bytes.clamp(1, self.held_bytes - at);
            let bytes = self.read(ByteRange::at(at, piece).ok_or(DecodeError::Deadline)?).await?;
            memory.write(at, &bytes).map_err(memory_lost)?;
            at += piece;
        }
        Ok(self.job.clone())
    }

    /// Within the object, no longer than a window, and never back, so that no worker can make its node read more than the object once.
    fn range(&self, start: u64, length: u64, course: &Course) -> Option<ByteRange> {
        let range = ByteRange::at(start, length)?;
        let ok = length > 0 && length <= self.job.range_bytes && start >= course.read_to && range.end() <= self.object_bytes;
        ok.then_some(range)
    }

    async fn read(&self, range: ByteRange) -> Result<Bytes, DecodeError> {
        read(&*self.source, range).await
    }

    fn hear(&self, course: &mut Course, said: FromWorker) -> Option<()> {
        let end = match said {
            FromWorker::Frame { index, width, height, .. } => {
                let rendition = self.planned.iter().flatten().nth(index as usize)?;
                (rendition.geometry.output() == (width, height)).then_some((index as usize, Ok(None)))?
            }
            FromWorker::Refused { index, outcome } => (index as usize, Err(refused(outcome, self.probe.format)?)),
            _ => return None,
        };
        course.is_next(end.0, self.job.places.len()).then(|| course.ends.push(end))
    }

    fn answer(
        &self,
        course: &Course,
        outcome: Outcome,
        failed: Option<DecodeError>,
        memory: &SharedMemory,
    ) -> Option<Result<Renditions, DecodeError>> {
        let format = self.probe.format;
        let rest = match (outcome, failed) {
            (Outcome::NoRange, Some(error)) => error,
            (Outcome::Drawn, None) if course.ends.len() == self.job.places.len() => DecodeError::undecodable(format, "not drawn"),
            (outcome, _) => refused(outcome, format)?,
        };
        // Nothing at all: that is the unit's own answer.
        Some(match course.ends.is_empty() && self.planned.iter().all(Result::is_ok) {
            true => Err(rest),
            false => self.tensors(course, &rest, memory).map_err(memory_lost),
        })
    }

    fn moved_bytes(&self) -> u64 {
        self.held_bytes + self.job.places.iter().map(|place| place.length).sum::<u64>()
    }
}

/// All of a small object, or as much of a large one as holds its header.
async fn read_header(job: &DecodeJob, settings: &PoolSettings) -> Result<(Bytes, Probe), DecodeError> {
    if job.size == 0 {
        return Err(DecodeError::undecodable(Format::Unknown, "empty"));
    }
    let whole = job.size <= settings.whole_bytes_max;
    let mut wanted = if whole { job.size } else { job.size.min(settings.window_bytes.min(HEADER_FIRST)) };
    loop {
        let first = read(&*job.source, ByteRange::new(0, wanted).ok_or(DecodeError::Deadline)?).await?;
        if settings.test_codecs && Fault::of(&first).is_some() {
            return Ok((first, Fault::probe(job.size)));
        }
        match probe(&first, job.size, &settings.limits()) {
            // A directory behind the pixels: what a worker has no room for is not read to its end either.
            Err(DecodeError::NeedMore { bytes }) if bytes > settings.worker_memory => {
                return Err(DecodeError::unsupported(Format::Unknown, format!("a header at byte {bytes}")));
            }
            Err(DecodeError::NeedMore { bytes }) if bytes > wanted => wanted = bytes,
            Err(error) => return Err(error),
            Ok(probe) => return Ok((first, probe)),
        }
    }
}

pub(super) async fn read(source: &dyn Source, range: ByteRange) -> Result<Bytes, DecodeError> {
    let bytes = source.read(range).await?;
    match bytes.len() as u64 == range.len() {
        true => Ok(bytes),
        false => Err(SourceError::new(format!("source gave {} bytes for {range}", bytes.len())).into()),
    }
}

/// What would not fit a worker is refused here: in the worker it would count as a death.
fn fits(probe: &Probe, planned: &[Result<Rendition, DecodeError>], settings: &PoolSettings) -> Result<(), DecodeError> {
    let slack = if probe.format.is_whole() { SLACK_ALLOCATED } else { SLACK };
    let need = probe.cost_of(planned.iter().flatten()).saturating_add(slack);
    if need <= settings.worker_memory {
        return Ok(());
    }
    let pixels = u128::from(probe.width) * u128::from(probe.height);
    let limit = (pixels * u128::from(settings.worker_memory) / u128::from(need)) as u64;
    Err(DecodeError::TooLarge { width: probe.width, height: probe.height, limit })
}

/// CPU time by what there is to do: a second, and one more for each 15 megapixels decoded or drawn, a third of what a core does of
/// progressive 4:4:4. A picture that is built to take for ever (hundreds of thousands of empty scans) so gets its two
/// judged deaths well within the deadline of those who asked.
fn cpu_seconds(probe: &Probe, planned: &[Result<Rendition, DecodeError>]) -> u64 {
    let last = planned.iter().flatten().map(|rendition| rendition.frame).max().unwrap_or(0);
    // Each rendition reads the whole picture, and its own part of it again to turn or convert it.
    let read = 2 * u64::from(probe.width) * u64::from(probe.height);
    let drawn: u64 = planned.iter().flatten().map(|rendition| (rendition.bytes() as u64 / 3).saturating_add(read)).sum();
    let decoded = (u64::from(probe.width) * u64::from(probe.height)).saturating_mul(u64::from(last) + 1);
    1 + decoded.saturating_add(drawn).div_ceil(15_000_000)
}

/// Input first, then one place per rendition, each on a cache line of its own.
fn lay_out(job: &DecodeJob, first_bytes: u64, planned: &[Result<Rendition, DecodeError>], settings: &PoolSettings) -> Job {
    let object_bytes = job.size;
    let window = if first_bytes == object_bytes { first_bytes } else { first_bytes.max(settings.window_bytes) };
    let window_bytes = window.next_multiple_of(PLACE_ALIGN);
    let mut memory_bytes = window_bytes;
    let mut place = |(spec, planned): (&DecodeSpec, &Result<Rendition, DecodeError>)| {
        let (offset, length) = (memory_bytes, planned.as_ref().ok()?.bytes() as u64);
        memory_bytes = (offset + length).next_multiple_of(PLACE_ALIGN);
        Some(Place { offset, length, spec: spec.clone() })
    };
    let places = job.specs.iter().zip(planned).filter_map(&mut place).collect();
    let (pixels_max, cpu_seconds) = (settings.pixels_max, settings.cpu_seconds);
    let range_bytes = settings.window_bytes;
    let task = Task::Picture;
    Job { task, object_bytes, first_bytes, window_bytes, range_bytes, memory_bytes, pixels_max, cpu_seconds, places }
}

/// First read of a large object: real headers with EXIF and profile rarely pass it.
const HEADER_FIRST: u64 = 64 << 10;

/// What a worker takes besides samples and renditions: libjpeg's rows and tables, the program's own.
const SLACK: u64 = 32 << 20;

/// The same where a codec allocates by this program's allocator, which maps address space 32 and 64 MiB at a time: a bitmap of 9 MiB
/// ended a worker that had 32 to spare.
const SLACK_ALLOCATED: u64 = 128 << 20;

/// Places lie on cache lines of their own.
pub(super) const PLACE_ALIGN: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: a small picture that takes for ever is judged twice well within a caller's 30 seconds, and a large one is not judged
    /// for its size.
    #[test]
    fn time_goes_by_size() {
        let probe = |width, height| Probe { width, height, ..Fault::probe(1 << 20) };
        let seconds = |width, height, frame: u32| {
            let probe = probe(width, height);
            let spec = format!("video?frames={frame}&size=1x1").parse().expect("spec");
            let limits = crate::decode::Limits { pixels_max: u64::MAX };
            cpu_seconds(&probe, &[Rendition::of(&spec, &probe, &limits)])
        };
        assert_eq!(cpu_seconds(&probe(1, 1), &[]), 2);
        assert_eq!(cpu_seconds(&probe(2_800, 2_800), &[]), 2);
        assert_eq!(cpu_seconds(&probe(13_376, 13_376), &[]), 13);
        assert_eq!(seconds(1_000, 1_000, 44), 5);
        assert!(seconds(u32::MAX, u32::MAX, u32::MAX) > 1 << 40);
    }
}
