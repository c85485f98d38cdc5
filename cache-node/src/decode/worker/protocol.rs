//! Messages between node and worker: one datagram each over a socket pair, fixed little-endian fields, no pointers, no text but
//! specs and reasons. Bytes of pictures never pass here; they lie in shared memory at places that the node chose.
//!
//! `Begin` → `Ready`, then per job: `Job` → (`NeedRange` → `Range`)* → `Frame`* or `Index` → `Done`; `Close` ends it.

use framecache::DecodeSpec;
use framecache::spec::SPEC_BYTES_MAX;

use crate::decode::SPECS_MAX;
use crate::decode::video::Trust;

/// Longest message, either way: a job of [`SPECS_MAX`] specs at their canonical length.
pub(super) const MESSAGE_BYTES_MAX: usize = 64 + SPECS_MAX * (16 + 2 + SPEC_TEXT_MAX);

/// Room for what a worker says: more than its longest message, so that a cut one is never taken for a whole one.
pub(super) const FROM_WORKER_BYTES: usize = 64 + REASON_BYTES_MAX;

/// Longest canonical spec text that fits a job.
pub(super) const SPEC_TEXT_MAX: usize = 256;

/// Longest reason that is taken from a worker.
const REASON_BYTES_MAX: usize = 200;

const _: () = assert!(SPEC_TEXT_MAX <= SPEC_BYTES_MAX && MESSAGE_BYTES_MAX < 64 << 10);

/// Node to worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ToWorker {
    /// First message: the limit to be locked in with.
    Begin { worker_memory: u64 },
    /// One decode unit, or a video's index.
    Job(Job),
    /// The answer to `NeedRange`: it lies at the window's start. `false`: it could not be read, give up.
    Range { there: bool },
    /// End.
    Close,
}

/// What a worker is to do. Places are in the shared memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Job {
    /// What is to be made.
    pub(super) task: Task,
    /// Bytes of the object; of a clip, of its package.
    pub(super) object_bytes: u64,
    /// Bytes of its start that lie in memory from 0 on.
    pub(super) first_bytes: u64,
    /// Room for input, from 0 on.
    pub(super) window_bytes: u64,
    /// Most bytes that one `NeedRange` may ask for; they fit the room.
    pub(super) range_bytes: u64,
    /// Bytes of shared memory.
    pub(super) memory_bytes: u64,
    /// Most pixels.
    pub(super) pixels_max: u64,
    /// CPU time, in seconds.
    pub(super) cpu_seconds: u64,
    /// Renditions and where to draw them, in rising order without overlap, behind the window.
    pub(super) places: Vec<Place>,
}

/// What is made of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    /// Renditions of a picture's frames.
    Picture,
    /// Renditions of a clip's frames: the spec of each place names its frame by its number in the package.
    Clip {
        /// Whether damaged frames are drawn too.
        damaged_keep: bool,
        /// How frames are to be turned, as an EXIF orientation.
        orientation: u8,
    },
    /// A video's index, of at least this trust, of this stream or of the best; it goes behind the window.
    Index(Trust, Option<u32>),
}

/// Where one rendition goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) spec: DecodeSpec,
}

/// Worker to node. Every number here is checked again by the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FromWorker {
    /// Locked in, or not.
    Ready(Sandboxed),
    /// These bytes are needed next.
    NeedRange { start: u64, length: u64 },
    /// The rendition at this place is drawn, of this size. Places rise. Of planes, the number of their format; else 0.
    Frame { index: u32, width: u32, height: u32, format: u32 },
    /// The one at this place alone is not, and why. Likewise.
    Refused { index: u32, outcome: Outcome },
    /// The index is made, of this many bytes.
    Index { length: u64 },
    /// The job is over; CPU time it took.
    Done { outcome: Outcome, cpu_us: u64 },
}

/// Whether the sandbox holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Sandboxed {
    /// It does; `landlock` says whether the kernel has that layer too.
    Yes { landlock: bool },
    /// It does not, and no job will be taken.
    No { reason: String },
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Every rendition is drawn.
    Drawn,
    /// What is not drawn is broken.
    Undecodable(String),
    /// A range was not there.
    NoRange,
    /// What is not drawn is of a kind that is not made.
    Unsupported(String),
    /// There are only so many frames.
    NoFrame { count: u32 },
    /// The video's index is wrong of what is not drawn.
    Differs,
}

impl ToWorker {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        match self {
            Self::Begin { worker_memory } => out.tag(0).u64(*worker_memory),
            Self::Job(job) => {
                job.task
                    .encode(out.tag(1))
                    .u64(job.object_bytes)
                    .u64(job.first_bytes)
                    .u64(job.window_bytes)
                    .u64(job.range_bytes)
                    .u64(job.memory_bytes);
                out.u64(job.pixels_max).u64(job.cpu_seconds).tag(job.places.len() as u8);
                for place in &job.places {
                    out.u64(place.offset).u64(place.length).text(&place.spec.to_string(), SPEC_TEXT_MAX);
                }
                &mut out
            }
            Self::Range { there } => out.tag(2).tag(u8::from(*there)),
            Self::Close => out.tag(3),
        };
        out.0
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = Reader(bytes);
        let message = match rest.tag()? {
            0 => Self::Begin { worker_memory: rest.u64()? },
            1 => Self::Job(Job::decode(&mut rest)?),
            2 => Self::Range { there: rest.flag()? },
            3 => Self::Close,
            _ => return None,
        };
        rest.0.is_empty().then_some(message)
    }
}

impl Task {
    fn encode<'a>(&self, out: &'a mut Writer) -> &'a mut Writer {
        match self {
            Self::Picture => out.tag(0).tag(0),
            Self::Clip { damaged_keep, orientation } => out.tag(1).tag(u8::from(*damaged_keep) << 4 | orientation),
            // No stream is 0 here: there are fewer than 64.
            Self::Index(trust, stream) => {
                out.tag(2).tag(*trust as u8).tag(stream.map_or(0, |stream| u8::try_from(stream + 1).unwrap_or(u8::MAX)))
            }
        }
    }

    fn decode(rest: &mut Reader<'_>) -> Option<Self> {
        Some(match (rest.tag()?, rest.tag()?) {
            (0, 0) => Self::Picture,
            (1, how @ 0..0x20) => Self::Clip { damaged_keep: how >> 4 == 1, orientation: how & 15 },
            (2, trust) => Self::Index(Trust::from_number(trust)?, rest.tag()?.checked_sub(1).map(u32::from)),
            _ => return None,
        })
    }
}

impl Job {
    fn decode(rest: &mut Reader<'_>) -> Option<Self> {
        let task = Task::decode(rest)?;
        let [object_bytes, first_bytes, window_bytes] = [rest.u64()?, rest.u64()?, rest.u64()?];
        let [range_bytes, memory_bytes, pixels_max, cpu_seconds] = [rest.u64()?, rest.u64()?, rest.u64()?, rest.u64()?];
        let count = usize::from(rest.tag()?);
        let place = |rest: &mut Reader<'_>| {
            let (offset, length) = (rest.u64()?, rest.u64()?);
            Some(Place { offset, length, spec: rest.text(SPEC_TEXT_MAX)?.parse().ok()? })
        };
        let places = (0..count).map(|_| place(rest)).collect::<Option<Vec<_>>>()?;
        Some(Self { task, object_bytes, first_bytes, window_bytes, range_bytes, memory_bytes, pixels_max, cpu_seconds, places })
    }
}

impl Outcome {
    fn encode<'a>(&self, out: &'a mut Writer) -> &'a mut Writer {
        match self {
            Self::Drawn => out.tag(0),
            Self::Undecodable(reason) => out.tag(1).text(reason, REASON_BYTES_MAX),
            Self::NoRange => out.tag(2),
            Self::Unsupported(reason) => out.tag(3).text(reason, REASON_BYTES_MAX),
            Self::NoFrame { count } => out.tag(4).u32(*count),
            Self::Differs => out.tag(5),
        }
    }

    fn decode(rest: &mut Reader<'_>) -> Option<Self> {
        Some(match rest.tag()? {
            0 => Self::Drawn,
            1 => Self::Undecodable(rest.text(REASON_BYTES_MAX)?),
            2 => Self::NoRange,
            3 => Self::Unsupported(rest.text(REASON_BYTES_MAX)?),
            4 => Self::NoFrame { count: rest.u32()? },
            5 => Self::Differs,
            _ => return None,
        })
    }
}

impl FromWorker {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        match self {
            Self::Ready(Sandboxed::Yes { landlock }) => out.tag(0).tag(u8::from(*landlock)),
            Self::Ready(Sandboxed::No { reason }) => out.tag(0).tag(2).text(reason, REASON_BYTES_MAX),
            Self::NeedRange { start, length } => out.tag(1).u64(*start).u64(*length),
            Self::Frame { index, width, height, format } => out.tag(2).u32(*index).u32(*width).u32(*height).u32(*format),
            Self::Done { outcome, cpu_us } => outcome.encode(out.tag(3).u64(*cpu_us)),
            Self::Refused { index, outcome } => outcome.encode(out.tag(4).u32(*index)),
            Self::Index { length } => out.tag(5).u64(*length),
        };
        out.0
    }

    /// Reads what may come from a compromised process: any bytes give a message within its bounds, or nothing.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = Reader(bytes);
        let message = match rest.tag()? {
            0 => Self::Ready(match rest.tag()? {
                2 => Sandboxed::No { reason: rest.text(REASON_BYTES_MAX)? },
                landlock @ 0..=1 => Sandboxed::Yes { landlock: landlock == 1 },
                _ => return None,
            }),
            1 => Self::NeedRange { start: rest.u64()?, length: rest.u64()? },
            2 => Self::Frame { index: rest.u32()?, width: rest.u32()?, height: rest.u32()?, format: rest.u32()? },
            3 => {
                let cpu_us = rest.u64()?;
                Self::Done { outcome: Outcome::decode(&mut rest)?, cpu_us }
            }
            4 => Self::Refused { index: rest.u32()?, outcome: Outcome::decode(&mut rest)? },
            5 => Self::Index { length: rest.u64()? },
            _ => return None,
        };
        rest.0.is_empty().then_some(message)
    }
}

#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn tag(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    /// Cut to `max` bytes at a character's border: a reason may be as long as its author liked.
    fn text(&mut self, text: &str, max: usize) -> &mut Self {
        let text = &text[..text.floor_char_boundary(max)];
        self.0.extend((text.len() as u16).to_le_bytes());
        self.0.extend(text.as_bytes());
        self
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn tag(&mut self) -> Option<u8> {
        self.take::<1>().map(|[value]| value)
    }

    fn flag(&mut self) -> Option<bool> {
        self.tag().filter(|&value| value < 2).map(|value| value == 1)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    /// Printable text only: it ends in logs and error messages.
    fn text(&mut self, max: usize) -> Option<String> {
        let length = usize::from(u16::from_le_bytes(self.take()?));
        let (text, rest) = self.0.split_at_checked(length).filter(|_| length <= max)?;
        self.0 = rest;
        let printable = |c: char| if c.is_control() { '?' } else { c };
        Some(String::from_utf8_lossy(text).chars().map(printable).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Job {
        let spec = |text: &str| text.parse().expect("spec");
        let places = vec![
            Place { offset: 4096, length: 12, spec: spec("image") },
            Place { offset: 8192, length: 150_528, spec: spec("video?frames=7&short=256&crop=224&filter=bicubic") },
        ];
        let (first_bytes, window_bytes, range_bytes, memory_bytes) = (100, 4096, 64, 1 << 20);
        Job {
            task: Task::Picture,
            object_bytes: 1 << 40,
            first_bytes,
            window_bytes,
            range_bytes,
            memory_bytes,
            pixels_max: 9,
            cpu_seconds: 15,
            places,
        }
    }

    /// Promise: every message survives the way there.
    #[test]
    fn messages_round_trip() {
        for message in
            [ToWorker::Begin { worker_memory: 5 }, ToWorker::Job(job()), ToWorker::Range { there: true }, ToWorker::Close]
                .into_iter()
                .chain(
                    [
                        Task::Clip { damaged_keep: true, orientation: 6 },
                        Task::Index(Trust::Proved, None),
                        Task::Index(Trust::Mapped, Some(63)),
                    ]
                    .map(|task| ToWorker::Job(Job { task, ..job() })),
                )
        {
            assert_eq!(ToWorker::decode(&message.encode()), Some(message));
        }
        for message in from_worker() {
            assert_eq!(FromWorker::decode(&message.encode()), Some(message));
        }
        let long = FromWorker::Done { outcome: Outcome::Undecodable("ü".repeat(500)), cpu_us: 1 };
        assert!(matches!(FromWorker::decode(&long.encode()), Some(FromWorker::Done { .. })));
    }

    /// Promise: whatever a compromised worker sends is a message within bounds, or nothing.
    #[test]
    fn hostile_bytes_are_bounded() {
        for message in from_worker() {
            let bytes = message.encode();
            for cut in 0..bytes.len() {
                assert_eq!(FromWorker::decode(&bytes[..cut]), None);
            }
            for at in 0..bytes.len() {
                for value in 0..=255 {
                    let mut changed = bytes.clone();
                    changed[at] = value;
                    if let Some(FromWorker::Done { outcome: Outcome::Undecodable(reason), .. }) = FromWorker::decode(&changed) {
                        assert!(reason.len() <= 3 * REASON_BYTES_MAX && !reason.contains(char::is_control));
                    }
                }
            }
            assert_eq!(FromWorker::decode(&[bytes, vec![0]].concat()), None);
        }
    }

    fn from_worker() -> [FromWorker; 9] {
        [
            FromWorker::Ready(Sandboxed::Yes { landlock: true }),
            FromWorker::Ready(Sandboxed::No { reason: "no seccomp".into() }),
            FromWorker::NeedRange { start: u64::MAX, length: 7 },
            FromWorker::Frame { index: 1, width: 2, height: 3, format: 4 },
            FromWorker::Done { outcome: Outcome::Drawn, cpu_us: 1234 },
            FromWorker::Done { outcome: Outcome::Unsupported("planar".into()), cpu_us: 3 },
            FromWorker::Done { outcome: Outcome::Differs, cpu_us: 3 },
            FromWorker::Index { length: 1 << 20 },
            FromWorker::Done { outcome: Outcome::Undecodable("bad\u{7f}huffman".replace('\u{7f}', " ")), cpu_us: 0 },
        ]
    }
}
