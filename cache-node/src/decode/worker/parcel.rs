//! One clip as the node prepares it: the packets of one decode unit, packed by the video's index, and the places of what is made of them.

use bytes::Bytes;
use framecache::frame::Layout;
use framecache::pixels::yuv::Format;
use framecache::spec::VideoSpec;
use framecache::{ByteRange, DecodeSpec, Tensor, TensorHead};

use super::errand::{Course, Errand, Renditions, memory_lost, refused};
use super::memory::SharedMemory;
use super::order::PLACE_ALIGN;
use super::protocol::{FromWorker, Job, Outcome, Place, Task};
use super::settings::PoolSettings;
use crate::decode::video::Drawn;
use crate::decode::{ClipFrame, ClipJob, DecodeError};

/// What a worker will be told of a clip, and what its answer will be held against.
pub(super) struct Parcel {
    package: Bytes,
    /// Per asked frame.
    planned: Vec<Result<Planned, DecodeError>>,
    job: Job,
}

/// A frame to be drawn.
struct Planned {
    drawn: Drawn,
    head: TensorHead,
}

impl Parcel {
    /// Fixes every place, and refuses what needs no worker.
    pub(super) fn prepare(job: &ClipJob, settings: &PoolSettings) -> Result<Self, DecodeError> {
        let limits = settings.limits();
        let plan = |frame: &ClipFrame| {
            let drawn = Drawn::of(&frame.spec, &frame.shape, &limits)?;
            let head = TensorHead { pts_seconds: frame.pts_seconds, ..drawn.head(&frame.shape) };
            Ok(Planned { drawn, head })
        };
        let planned: Vec<Result<Planned, DecodeError>> = job.frames.iter().map(plan).collect();
        let scratch = job
            .frames
            .iter()
            .zip(&planned)
            .filter_map(|(frame, planned)| Some(planned.as_ref().ok()?.drawn.scratch_bytes(&frame.shape)));
        let scratch = scratch.max().unwrap_or(0);
        let package_bytes = job.package.len() as u64;
        let window_bytes = package_bytes.next_multiple_of(PLACE_ALIGN);
        let mut memory_bytes = window_bytes;
        let mut place = |(frame, planned): (&ClipFrame, &Result<Planned, DecodeError>)| {
            let planned = planned.as_ref().ok()?;
            let (offset, length) = (memory_bytes, planned.head.bytes());
            memory_bytes = (offset + length).next_multiple_of(PLACE_ALIGN);
            Some(Place { offset, length, spec: numbered(&frame.spec, frame.number) })
        };
        let places: Vec<Place> = job.frames.iter().zip(&planned).filter_map(&mut place).collect();
        let need = memory_bytes.saturating_add(scratch).saturating_add(job.decoder_bytes).saturating_add(SLACK);
        if need > settings.worker_memory {
            let (width, height) = job.frames.first().map_or((0, 0), |frame| (frame.shape.width, frame.shape.height));
            return Err(DecodeError::TooLarge { width, height, limit: settings.pixels_max });
        }
        let drawn: u64 = places.iter().map(|place| place.length).sum();
        let cpu_seconds = CPU_SECONDS_MIN + job.decoded_pixels.saturating_add(drawn).div_ceil(PIXELS_A_SECOND);
        let orientation = job.frames.first().map_or(1, |frame| frame.shape.orientation);
        let told = Job {
            task: Task::Clip { damaged_keep: job.damaged_keep, orientation },
            object_bytes: package_bytes,
            first_bytes: package_bytes,
            window_bytes,
            range_bytes: 0,
            memory_bytes,
            pixels_max: settings.pixels_max,
            cpu_seconds: cpu_seconds.min(settings.cpu_seconds),
            places,
        };
        Ok(Self { package: job.package.clone(), planned, job: told })
    }

    /// Whether every frame has its answer already.
    pub(super) fn is_idle(&self) -> bool {
        self.job.places.is_empty()
    }

    /// The answers of an idle parcel.
    pub(super) fn refusals(self) -> Renditions {
        self.planned.into_iter().filter_map(Result::err).map(Err).collect()
    }

    fn tensors(&self, course: &Course, rest: &DecodeError, memory: &SharedMemory) -> std::io::Result<Renditions> {
        let mut places = self.job.places.iter().enumerate();
        let mut tensor = |planned: &Planned| {
            let (index, Place { offset, length, .. }) = places.next().expect("a place per frame");
            Ok(match course.end(index) {
                Some(Ok(format)) => {
                    let format = format.filter(|_| planned.head.layout == Layout::Planes);
                    Ok(Tensor { head: TensorHead { format, ..planned.head }, data: memory.read(*offset, *length as usize)? })
                }
                Some(Err(refused)) => Err(refused.clone()),
                None => Err(rest.clone()),
            })
        };
        let answer = |planned: &Result<Planned, DecodeError>| match planned {
            Ok(planned) => tensor(planned),
            Err(refused) => Ok(Err(refused.clone())),
        };
        self.planned.iter().map(answer).collect()
    }
}

impl Errand for Parcel {
    type Made = Renditions;

    async fn hand_over(&self, memory: &mut SharedMemory) -> Result<Job, DecodeError> {
        memory.grow(self.job.memory_bytes).map_err(memory_lost)?;
        memory.write(0, &self.package).map_err(memory_lost)?;
        Ok(self.job.clone())
    }

    /// A clip's package is all there is.
    fn range(&self, _start: u64, _length: u64, _course: &Course) -> Option<ByteRange> {
        None
    }

    async fn read(&self, _range: ByteRange) -> Result<Bytes, DecodeError> {
        Err(DecodeError::Deadline)
    }

    /// Frames end in the order in which they are decoded, so their places do not rise.
    fn hear(&self, course: &mut Course, said: FromWorker) -> Option<()> {
        let (index, end) = match said {
            FromWorker::Frame { index, format, .. } => {
                (index as usize, Ok(u16::try_from(format).ok().and_then(Format::from_number)))
            }
            FromWorker::Refused { index, outcome } => (index as usize, Err(refused(outcome, crate::decode::Format::Video)?)),
            _ => return None,
        };
        (index < self.job.places.len()).then_some(())?;
        let at = course.ends.binary_search_by_key(&index, |(place, _)| *place).err()?;
        course.ends.insert(at, (index, end));
        Some(())
    }

    fn answer(
        &self,
        course: &Course,
        outcome: Outcome,
        _failed: Option<DecodeError>,
        memory: &SharedMemory,
    ) -> Option<Result<Renditions, DecodeError>> {
        let all = course.ends.len() == self.job.places.len();
        let rest = match outcome {
            Outcome::Drawn if all => DecodeError::undecodable(crate::decode::Format::Video, "not drawn"),
            Outcome::Drawn => return None,
            outcome => refused(outcome, crate::decode::Format::Video)?,
        };
        Some(match course.ends.is_empty() && self.planned.iter().all(Result::is_ok) {
            true => Err(rest),
            false => self.tensors(course, &rest, memory).map_err(memory_lost),
        })
    }

    fn moved_bytes(&self) -> u64 {
        self.package.len() as u64 + self.job.places.iter().map(|place| place.length).sum::<u64>()
    }
}

/// The spec with the frame's number in the package.
fn numbered(spec: &DecodeSpec, number: u32) -> DecodeSpec {
    VideoSpec::at(u64::from(number), spec.image().clone()).into()
}

/// What a worker takes besides the input, the decoder's own frames and what is drawn: FFmpeg's tables and contexts.
const SLACK: u64 = 64 << 20;

/// A clip of a few small frames; a loaded machine is slow.
const CPU_SECONDS_MIN: u64 = 2;

/// Pixels that a core decodes and draws in a second, a tenth of what it does of ordinary H.264 at 1080p.
const PIXELS_A_SECOND: u64 = 15_000_000;
