//! The worker's work bench: what it keeps between jobs, and how it does one.

use std::os::fd::AsFd;

use framecache::{ByteRange, DecodeSpec};

use super::memory::{Mapping, Samples};
use super::planted::Fault;
use super::protocol::{FromWorker, Job, MESSAGE_BYTES_MAX, Outcome, Place, Task, ToWorker};
use super::settings::{SAMPLES_KEPT, SHARED_KEPT};
use super::survey::reads_max;
use super::{Ended, Parent, sandbox};
use crate::decode::formats::{Failure, Input};
use crate::decode::image::{self, Drawing};
use crate::decode::rendition::Rendition;
use crate::decode::video::{self, DecodeEnd, Drawn, Frame, FrameError, FrameShape, Gone, Stop, Trust, VideoError};
use crate::decode::{Limits, probe};

/// Buffers that outlive a job.
pub(super) struct Bench {
    shared: Mapping,
    samples: Samples,
    test_codecs: bool,
}

impl Bench {
    pub(super) fn new(test_codecs: bool) -> Self {
        Self { shared: Mapping::default(), samples: Samples::default(), test_codecs }
    }

    /// Does one job and answers it.
    pub(super) fn run(&mut self, job: &Job, parent: &Parent) -> Result<(), Ended> {
        let before = sandbox::cpu_us();
        sandbox::allow_cpu(job.cpu_seconds);
        let outcome = match job.task {
            Task::Picture => self.picture(job, parent)?,
            Task::Clip { damaged_keep, orientation } => self.clip(job, (damaged_keep, orientation), parent)?,
            Task::Index(trust, stream) => self.index(job, trust, stream, parent)?,
        };
        self.shared.trim(SHARED_KEPT);
        self.samples.trim(SAMPLES_KEPT);
        parent.send(&FromWorker::Done { outcome, cpu_us: sandbox::cpu_us() - before })
    }

    fn picture(&mut self, job: &Job, parent: &Parent) -> Result<Outcome, Ended> {
        // The shared memory is this process's standard output: a descriptor that spawning passes without help.
        let output = std::io::stdout();
        let memory = self.shared.of(output.as_fd(), job.memory_bytes).ok_or(Ended::OutOfMemory)?;
        let window = usize::try_from(job.window_bytes).map_err(|_| Ended::Lost)?;
        let (input, places) = memory.split_at_mut_checked(window).ok_or(Ended::Lost)?;
        let mut input = Windows::new(input, job, parent)?;
        if let Some(fault) = self.test_codecs.then(|| Fault::of(input.first())).flatten() {
            return act_out(fault, parent, &mut self.samples);
        }
        // The node has probed the same bytes; this side looks again, since what it draws must fit places that it was only told of.
        let limits = Limits { pixels_max: job.pixels_max };
        let probe = match probe(input.first(), job.object_bytes, &limits) {
            Ok(probe) => probe,
            Err(error) => return Ok(Outcome::Undecodable(error.to_string())),
        };
        let renditions: Result<Vec<_>, _> = job.places.iter().map(|place| Rendition::of(&place.spec, &probe, &limits)).collect();
        let renditions = renditions.map_err(|_| Ended::Lost)?;
        let mut drawings = lay_out(job, &renditions, places).ok_or(Ended::Lost)?;
        let room = self.samples.of(probe.decoded_bytes).ok_or(Ended::OutOfMemory)?;
        let drawn = image::draw(&mut input, &probe, room, &mut drawings);
        match (input.ended, drawn) {
            (Some(Stopped::NoRange), _) => Ok(Outcome::NoRange),
            (Some(Stopped::Lost | Stopped::Enough), _) => Err(Ended::Lost),
            // Libraries call a picture broken, too, where they are refused memory for it.
            (None, Err(failure)) if failure != Failure::OutOfMemory && sandbox::is_short_of_memory() => Err(Ended::Short),
            (None, drawn) => {
                for (index, drawing) in drawings.iter().enumerate() {
                    let index = index as u32;
                    let (width, height) = drawing.rendition.geometry.output();
                    match &drawing.end {
                        None => {}
                        Some(Ok(())) => parent.send(&FromWorker::Frame { index, width, height, format: 0 })?,
                        Some(Err(failure)) => parent.send(&FromWorker::Refused { index, outcome: refused(failure)? })?,
                    }
                }
                drawn.map_or_else(|failure| refused(&failure), |()| Ok(Outcome::Drawn))
            }
        }
    }
}

impl Bench {
    /// Frames of one unit of a video, each as soon as it is decoded.
    fn clip(&mut self, job: &Job, (damaged_keep, orientation): (bool, u8), parent: &Parent) -> Result<Outcome, Ended> {
        let output = std::io::stdout();
        let memory = self.shared.of(output.as_fd(), job.memory_bytes).ok_or(Ended::OutOfMemory)?;
        let window = usize::try_from(job.window_bytes).map_err(|_| Ended::Lost)?;
        let (input, places) = memory.split_at_mut_checked(window).ok_or(Ended::Lost)?;
        let package = usize::try_from(job.first_bytes).ok().and_then(|held| input.get(..held)).ok_or(Ended::Lost)?;
        let limits = Limits { pixels_max: job.pixels_max };
        let mut canvases = canvases(job, places).ok_or(Ended::Lost)?;
        let mut ended = None;
        let samples = &mut self.samples;
        let mut each = |number: usize, given: Result<Frame<'_>, FrameError>| {
            let wanted = canvases.iter_mut().enumerate().filter(|(_, canvas)| canvas.number == number as u64);
            for (index, canvas) in wanted {
                let index = index as u32;
                let said = match &given {
                    Ok(frame) => match canvas.draw(frame, orientation, &limits, samples) {
                        Ok((width, height)) => {
                            let format = frame.format().map_or(0, |format| format.number().into());
                            FromWorker::Frame { index, width, height, format }
                        }
                        Err(Undrawn::Refused(outcome)) => FromWorker::Refused { index, outcome },
                        Err(Undrawn::Ended(why)) => {
                            ended = Some(why);
                            return Err(Stop);
                        }
                    },
                    Err(error) => FromWorker::Refused { index, outcome: frame_refused(error) },
                };
                if let Err(why) = parent.send(&said) {
                    ended = Some(why);
                    return Err(Stop);
                }
            }
            Ok(())
        };
        let decoded = video::decode(package, damaged_keep, &limits, &mut each);
        match (ended, decoded) {
            (Some(why), _) => Err(why),
            (None, Ok(())) => Ok(Outcome::Drawn),
            (None, Err(_)) if sandbox::is_short_of_memory() => Err(Ended::Short),
            (None, Err(DecodeEnd::Stopped | DecodeEnd::Malformed)) => Err(Ended::Lost),
            (None, Err(DecodeEnd::Failed(error))) => video_refused(error),
        }
    }

    /// A video's index, put behind the window.
    fn index(&mut self, job: &Job, trust: Trust, stream: Option<u32>, parent: &Parent) -> Result<Outcome, Ended> {
        let output = std::io::stdout();
        let memory = self.shared.of(output.as_fd(), job.memory_bytes).ok_or(Ended::OutOfMemory)?;
        let window = usize::try_from(job.window_bytes).map_err(|_| Ended::Lost)?;
        let (input, place) = memory.split_at_mut_checked(window).ok_or(Ended::Lost)?;
        let mut windows = Windows { left: reads_max(job.object_bytes), ..Windows::new(input, job, parent)? };
        let limits = Limits { pixels_max: job.pixels_max };
        let made = video::make_stream(&mut windows, stream, trust, &limits);
        match (windows.ended, made) {
            (Some(Stopped::NoRange), _) => Ok(Outcome::NoRange),
            (Some(Stopped::Lost), _) => Err(Ended::Lost),
            (Some(Stopped::Enough), _) => {
                Ok(Outcome::Unsupported("its parts lie so far apart that it would be read many times".into()))
            }
            (None, Err(error)) if error != VideoError::OutOfMemory && sandbox::is_short_of_memory() => Err(Ended::Short),
            (None, Err(error)) => video_refused(error),
            (None, Ok(index)) => {
                let Some(bytes) = index.to_bytes() else {
                    return Ok(Outcome::Unsupported("an index of more bytes than are kept".into()));
                };
                let Some(place) = place.get_mut(..bytes.len()) else {
                    return Ok(Outcome::Unsupported(format!("an index of {} bytes", bytes.len())));
                };
                place.copy_from_slice(&bytes);
                parent.send(&FromWorker::Index { length: bytes.len() as u64 })?;
                Ok(Outcome::Drawn)
            }
        }
    }
}

/// Where one frame's tensor goes.
struct Canvas<'a> {
    spec: &'a DecodeSpec,
    /// The frame's, in the package.
    number: u64,
    out: &'a mut [u8],
}

/// Why a frame was not drawn: it cannot be, or this process is at its end.
enum Undrawn {
    Refused(Outcome),
    Ended(Ended),
}

impl Canvas<'_> {
    /// Draws the frame; gives the width and height of what is drawn.
    fn draw(
        &mut self,
        frame: &Frame<'_>,
        orientation: u8,
        limits: &Limits,
        samples: &mut Samples,
    ) -> Result<(u32, u32), Undrawn> {
        let shape = FrameShape::of(frame, orientation);
        let drawn =
            Drawn::of(self.spec, &shape, limits).map_err(|error| Undrawn::Refused(Outcome::Unsupported(error.to_string())))?;
        let head = drawn.head(&shape);
        if head.bytes() != self.out.len() as u64 {
            // The place was made for a frame of another size.
            return Err(Undrawn::Refused(Outcome::Differs));
        }
        let room = samples.of(drawn.room_bytes(&shape)).ok_or(Undrawn::Ended(Ended::OutOfMemory))?;
        let refused = |why| Undrawn::Refused(Outcome::Unsupported(why));
        drawn.draw(frame, room, self.out).map_err(refused)?;
        Ok((head.source.0, head.source.1))
    }
}

/// The places of a clip, cut from the memory behind the window. Nothing if they do not fit or overlap.
fn canvases<'a>(job: &'a Job, mut rest: &'a mut [u8]) -> Option<Vec<Canvas<'a>>> {
    let mut at = job.window_bytes;
    let mut canvases = Vec::with_capacity(job.places.len());
    for Place { offset, length, spec } in &job.places {
        let (gap, length) = (usize::try_from(offset.checked_sub(at)?).ok()?, usize::try_from(*length).ok()?);
        let (out, behind) = rest.split_at_mut_checked(gap)?.1.split_at_mut_checked(length)?;
        canvases.push(Canvas { spec, number: spec.frame()?, out });
        (rest, at) = (behind, offset + length as u64);
    }
    Some(canvases)
}

fn video_refused(error: VideoError) -> Result<Outcome, Ended> {
    Ok(match error {
        VideoError::Undecodable(reason) => Outcome::Undecodable(reason),
        VideoError::Unsupported(reason) => Outcome::Unsupported(reason),
        // FFmpeg gives back what it has and goes on: a header that asks for too much costs no decoder.
        VideoError::OutOfMemory if sandbox::is_short_of_memory() => return Err(Ended::Short),
        VideoError::OutOfMemory => Outcome::Unsupported("it takes more memory than a decoder has".into()),
        VideoError::Gone(_) => return Err(Ended::Lost),
    })
}

fn frame_refused(error: &FrameError) -> Outcome {
    match error {
        FrameError::Differs => Outcome::Differs,
        FrameError::Damaged(reason) => Outcome::Undecodable(reason.clone()),
        FrameError::Unsupported(reason) => Outcome::Unsupported(reason.clone()),
    }
}

fn refused(failure: &Failure) -> Result<Outcome, Ended> {
    Ok(match failure {
        Failure::Undecodable(reason) => Outcome::Undecodable(reason.clone()),
        Failure::Unsupported(reason) => Outcome::Unsupported(reason.clone()),
        Failure::NoFrame { count } => Outcome::NoFrame { count: *count },
        Failure::OutOfMemory => return Err(Ended::OutOfMemory),
    })
}

/// Each rendition with its place, cut from the memory behind the window. Nothing if they do not fit or overlap.
fn lay_out<'a>(job: &Job, renditions: &'a [Rendition], mut rest: &'a mut [u8]) -> Option<Vec<Drawing<'a>>> {
    let mut at = job.window_bytes;
    let mut laid = Vec::with_capacity(renditions.len());
    for (place, rendition) in job.places.iter().zip(renditions) {
        let gap = usize::try_from(place.offset.checked_sub(at)?).ok()?;
        let length = usize::try_from(place.length).ok().filter(|&length| length == rendition.bytes())?;
        let (drawing, behind) = rest.split_at_mut_checked(gap)?.1.split_at_mut_checked(length)?;
        laid.push(Drawing::new(rendition, drawing));
        rest = behind;
        at = place.offset + place.length;
    }
    Some(laid)
}

/// The compressed bytes: what the job came with, then what the parent brings.
struct Windows<'a> {
    memory: &'a mut [u8],
    held: usize,
    /// One past the held bytes, in the object.
    end: u64,
    object_bytes: u64,
    range_bytes: u64,
    /// Bytes that may be brought yet.
    left: u64,
    parent: &'a Parent,
    ended: Option<Stopped>,
}

/// Why no further bytes come, though the object goes on.
#[derive(Clone, Copy)]
enum Stopped {
    NoRange,
    /// It was read often enough.
    Enough,
    Lost,
}

impl<'a> Windows<'a> {
    fn new(memory: &'a mut [u8], job: &Job, parent: &'a Parent) -> Result<Self, Ended> {
        let held = usize::try_from(job.first_bytes).ok().filter(|&held| held <= memory.len()).ok_or(Ended::Lost)?;
        let range_bytes = job.range_bytes.min(memory.len() as u64);
        Ok(Self {
            memory,
            held,
            end: job.first_bytes,
            object_bytes: job.object_bytes,
            range_bytes,
            left: u64::MAX,
            parent,
            ended: None,
        })
    }

    fn bring(&mut self, start: u64, length: usize) -> Result<(), Stopped> {
        self.left = self.left.checked_sub(length as u64).ok_or(Stopped::Enough)?;
        let need = FromWorker::NeedRange { start, length: length as u64 };
        self.parent.send(&need).map_err(|_| Stopped::Lost)?;
        match self.parent.receive(&mut [0; MESSAGE_BYTES_MAX]) {
            Ok(ToWorker::Range { there: true }) => Ok(()),
            Ok(ToWorker::Range { there: false }) => Err(Stopped::NoRange),
            _ => Err(Stopped::Lost),
        }
    }
}

impl video::Input for Windows<'_> {
    fn bytes(&self) -> u64 {
        self.object_bytes
    }

    fn read(&mut self, range: ByteRange, into: &mut Vec<u8>) -> Result<(), Gone> {
        let mut at = range.start();
        while at < range.end() {
            let length = self.range_bytes.min(range.end() - at) as usize;
            if self.ended.is_some() || length == 0 {
                return Err(Gone);
            }
            self.ended = self.bring(at, length).err();
            if self.ended.is_some() {
                return Err(Gone);
            }
            into.extend_from_slice(self.memory.get(..length).ok_or(Gone)?);
            at += length as u64;
        }
        Ok(())
    }
}

impl Input for Windows<'_> {
    fn first(&self) -> &[u8] {
        &self.memory[..self.held]
    }

    fn more(&mut self, skip: u64) -> &[u8] {
        let start = self.end.saturating_add(skip).min(self.object_bytes);
        let length = self.range_bytes.min(self.object_bytes - start) as usize;
        if length == 0 || self.ended.is_some() {
            return &[];
        }
        self.ended = self.bring(start, length).err();
        if self.ended.is_some() {
            return &[];
        }
        (self.held, self.end) = (length, start + length as u64);
        self.first()
    }
}

/// Does what a codec's defect would do.
fn act_out(fault: Fault, parent: &Parent, samples: &mut Samples) -> Result<Outcome, Ended> {
    match fault {
        // SAFETY: none, that is the point.
        Fault::Crash => unsafe { std::ptr::null_mut::<u8>().write_volatile(1) },
        Fault::Hang => loop {
            std::hint::spin_loop();
        },
        Fault::Stall => parent.receive(&mut [0; MESSAGE_BYTES_MAX]).map(drop)?,
        Fault::Leak => {
            for doublings in 24.. {
                samples.of(1 << doublings).ok_or(Ended::OutOfMemory)?.fill(1);
            }
        }
        Fault::Babble => parent.send(&FromWorker::NeedRange { start: u64::MAX, length: u64::MAX })?,
        Fault::Lie => parent.send(&FromWorker::Frame { index: 7, width: 1, height: 1, format: 0 })?,
        Fault::Escape(..) => {}
    }
    Ok(Outcome::Undecodable(fault.try_it()))
}
