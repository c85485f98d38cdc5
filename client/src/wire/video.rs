//! What is said of videos: facts beside a stat, and slices and answers of their index.

use std::fmt;
use std::str::FromStr;

use rkyv::{Archive, Deserialize, Serialize};

use super::codec::{CodecError, Message, bound};
use super::{CONTROL_BYTES_MAX, EXT_FIELDS_MAX, Ext};
use crate::spec::{ImageSpec, SELECTED_MAX, STREAMS_MAX, Selection, Selector, SpecError};

/// Longest archive of [`VideoFacts`], in bytes: it travels in an item head.
pub const VIDEO_FACTS_BYTES_MAX: usize = 2 << 10;
/// Longest name of a codec or a pixel format, in bytes.
pub const VIDEO_NAME_BYTES_MAX: usize = 64;
/// Most bytes of an index in one reply to [`super::Verb::Index`]; a longer one is asked for in parts.
pub const INDEX_BYTES_MAX: u32 = 2 << 20;

/// What is known of a video, in [`super::ext::VIDEO`] of a reply to [`super::Verb::Stat`]. Counts and times are of the frames that
/// there are, as the index has them; what the file's header says is beside them.
#[derive(Clone, Debug, Default, PartialEq, Archive, Serialize, Deserialize)]
pub struct VideoFacts {
    /// FFmpeg's name of the codec: `h264`.
    pub codec: String,
    /// FFmpeg's name of the pixel format: `yuv420p`.
    pub pix_fmt: String,
    /// Pixels of a frame as stored.
    pub width: u32,
    /// Pixels of a frame as stored.
    pub height: u32,
    /// By how many degrees a frame is to be turned counter-clockwise to be seen, as FFmpeg says it, -359 to 359. Reported;
    /// applied only where a spec says so.
    pub rotation: i16,
    /// Number of frames.
    pub frames: u64,
    /// What the file's header says that it is, if it says so.
    pub header_frames: Option<u64>,
    /// Frames a second on average, over and under the line; 0 over 1 where there is no telling.
    pub average_fps: (u32, u32),
    /// Seconds of a tick, over and under the line.
    pub time_base: (u32, u32),
    /// When the first frame is shown, in seconds.
    pub begin_seconds: f64,
    /// When the last frame ends, in seconds.
    pub end_seconds: f64,
    /// How long the file says that it is, in seconds; else `end_seconds - begin_seconds`.
    pub duration_seconds: f64,
    /// Bytes of the file.
    pub size: u64,
    /// Frames from which decoding can begin.
    pub keyframes: u32,
    /// `MatrixCoefficients` of ITU-T H.273; 2 where nothing is said.
    pub matrix: u8,
    /// `VideoFullRangeFlag` of ITU-T H.273: 0 limited, 1 full; 2 where nothing is said.
    pub range: u8,
    /// `ColourPrimaries` of ITU-T H.273; 2 where nothing is said.
    pub primaries: u8,
    /// `TransferCharacteristics` of ITU-T H.273; 2 where nothing is said.
    pub transfer: u8,
    /// How the index is known: 0 predicted from the packets, 1 mapped by a decode, 2 proved by decoding each part alone.
    pub trust: u8,
    /// Whether some frames show damage: their pixels are concealment.
    pub damaged: bool,
    /// Whether the file lacks times, so that frames are counted out at an even pace.
    pub pts_synthesized: bool,
    /// Later additions.
    pub ext: Ext,
}

/// Numbers of [`VideoFacts::ext`].
pub mod fact {
    /// Frames a second as the header claims: over and under the line, a `u32` each, little-endian.
    pub const HEADER_FPS: u16 = 1;
    /// Width of a pixel by its height, where the container says: as above.
    pub const SAMPLE_ASPECT: u16 = 2;
    /// Which stream of the container it is: its index, one byte.
    pub const STREAM: u16 = 3;
    /// The container's video streams: their indices, a byte each.
    pub const STREAMS: u16 = 4;
}

impl VideoFacts {
    fn fact(&self, number: u16) -> Option<&[u8]> {
        self.ext.iter().find(|(found, _)| *found == number).map(|(_, bytes)| &bytes[..])
    }

    fn ratio(&self, number: u16) -> Option<(u32, u32)> {
        let halves: &[u8; 8] = self.fact(number)?.try_into().ok()?;
        let [over, under] = [0, 4].map(|at| u32::from_le_bytes([halves[at], halves[at + 1], halves[at + 2], halves[at + 3]]));
        (over > 0 && under > 0).then_some((over, under))
    }

    /// Frames a second as the file's header claims, over and under the line.
    pub fn header_fps(&self) -> Option<(u32, u32)> {
        self.ratio(fact::HEADER_FPS)
    }

    /// Width of a pixel by its height, over and under the line, where the container says.
    pub fn sample_aspect(&self) -> Option<(u32, u32)> {
        self.ratio(fact::SAMPLE_ASPECT)
    }

    /// Index of this stream in its container; `None`: the node does not say.
    pub fn stream(&self) -> Option<u32> {
        self.fact(fact::STREAM)?.first().map(|&stream| stream.into())
    }

    /// Indices of all video streams of the container, attached pictures among them.
    pub fn streams(&self) -> Vec<u32> {
        self.fact(fact::STREAMS).unwrap_or_default().iter().map(|&stream| stream.into()).collect()
    }
}

impl Message for VideoFacts {
    const NAME: &'static str = "video facts";
    const BYTES_MAX: usize = VIDEO_FACTS_BYTES_MAX;

    fn check(&self) -> Result<(), CodecError> {
        bound(self.codec.len().max(self.pix_fmt.len()) <= VIDEO_NAME_BYTES_MAX, "name")?;
        bound((-359..=359).contains(&self.rotation), "rotation")?;
        bound(self.average_fps.1 > 0, "average_fps")?;
        bound(self.time_base.0 > 0 && self.time_base.1 > 0, "time_base")?;
        let seconds = [self.begin_seconds, self.end_seconds, self.duration_seconds];
        bound(seconds.iter().all(|seconds| seconds.is_finite()) && self.begin_seconds <= self.end_seconds, "seconds")?;
        bound(self.ext.len() <= EXT_FIELDS_MAX, "ext")
    }
}

/// What is asked of an index: [`super::IndexBody::kind`] as a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IndexKind {
    /// `video`, `video proved`: the index of a video itself, answered with [`IndexPayload`].
    Video {
        /// Whether it has to be proved first, by decoding each part of the video alone.
        proved: bool,
        /// Which of the video's streams, if not FFmpeg's best: ` stream=1` behind the others.
        stream: Option<u32>,
    },
    /// `video?frames=…`, `video?at=…`, `video?from=…`, `video?uniform=…`, `video?` for all: which frames that comes to, answered with
    /// [`SelectedPayload`].
    Selected {
        /// Which frames.
        frames: Selector,
        /// Of which stream, if not FFmpeg's best: `stream=1` among the others.
        stream: Option<u32>,
    },
}

impl fmt::Display for IndexKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IndexKind::Video { proved, stream } => {
                f.write_str(if *proved { "video proved" } else { "video" })?;
                stream.map_or(Ok(()), |stream| write!(f, " stream={stream}"))
            }
            IndexKind::Selected { frames: Selector::ALL, stream: None } => f.write_str("video?"),
            IndexKind::Selected { frames, stream } => {
                Selection { frames: frames.clone(), image: ImageSpec::of_stream(*stream) }.fmt(f)
            }
        }
    }
}

impl FromStr for IndexKind {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let (whole, stream) = match text.split_once(" stream=") {
            Some((whole, stream)) => (whole, Some(stream.parse::<u32>().ok().filter(|&stream| stream < STREAMS_MAX))),
            None => (text, None),
        };
        match (whole, stream) {
            ("video", None | Some(Some(_))) => Ok(IndexKind::Video { proved: false, stream: stream.flatten() }),
            ("video proved", None | Some(Some(_))) => Ok(IndexKind::Video { proved: true, stream: stream.flatten() }),
            _ => {
                let Selection { frames, image } = text.parse()?;
                match image == ImageSpec::of_stream(image.stream) {
                    true => Ok(IndexKind::Selected { frames, stream: image.stream }),
                    false => Err(SpecError::Unsupported("how frames are made, where it is asked which".into())),
                }
            }
        }
    }
}

/// Payload of the reply to [`super::Verb::Index`] for [`IndexKind::Video`]: bytes `[start, start + bytes.len())` of the index, as
/// many as were asked for and there are, up to [`INDEX_BYTES_MAX`]. The rest is asked for with the version of this one pinned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct IndexPayload {
    /// Bytes of the whole index.
    pub total: u64,
    /// Hash of the whole index (xxh3-64): parts of two are no index.
    pub hash: u64,
    /// As [`VideoFacts::trust`].
    pub trust: u8,
    /// The part.
    pub bytes: Vec<u8>,
}

impl Message for IndexPayload {
    const NAME: &'static str = "index";
    const BYTES_MAX: usize = CONTROL_BYTES_MAX as usize;

    fn check(&self) -> Result<(), CodecError> {
        bound(self.bytes.len() <= INDEX_BYTES_MAX as usize && self.bytes.len() as u64 <= self.total, "bytes")
    }
}

/// One frame of a [`SelectedPayload`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Archive, Serialize, Deserialize)]
pub struct FrameRow {
    /// Its index by presentation order, from 0.
    pub frame: u64,
    /// When it is shown, in seconds.
    pub pts_seconds: f64,
    /// For how long, in seconds: until the next frame.
    pub duration_seconds: f64,
    /// Whether decoding can begin at it.
    pub starts: bool,
}

/// Payload of the reply to [`super::Verb::Index`] for [`IndexKind::Selected`].
#[derive(Clone, Debug, Default, PartialEq, Archive, Serialize, Deserialize)]
pub struct SelectedPayload {
    /// The frames, in the order in which they are wanted; at most [`SELECTED_MAX`].
    pub frames: Vec<FrameRow>,
    /// Frames of the whole video.
    pub total: u64,
}

impl Message for SelectedPayload {
    const NAME: &'static str = "selected";
    const BYTES_MAX: usize = CONTROL_BYTES_MAX as usize;

    fn check(&self) -> Result<(), CodecError> {
        bound(self.frames.len() <= SELECTED_MAX, "frames")?;
        let usual = |row: &FrameRow| row.frame < self.total && row.pts_seconds.is_finite() && row.duration_seconds.is_finite();
        bound(self.frames.iter().all(usual), "frame")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::codec::{decode, encode};
    use crate::wire::{BODY_BYTES_MAX, ITEM_BYTES_MAX, IndexBody};

    fn facts() -> VideoFacts {
        VideoFacts { average_fps: (30_000, 1001), time_base: (1, 90_000), end_seconds: 1.5, ..VideoFacts::default() }
    }

    /// Promise: facts that cannot be are refused, each by its name, and so are those that are too long to travel.
    #[test]
    fn facts_are_bounded() {
        let refused = |change: fn(&mut VideoFacts)| {
            let mut facts = facts();
            change(&mut facts);
            let bytes = encode(&facts).expect("encode");
            decode::<VideoFacts>(&bytes[4..]).expect_err("refused")
        };
        let bytes = encode(&facts()).expect("encode");
        assert_eq!(decode::<VideoFacts>(&bytes[4..]), Ok(facts()));
        assert_eq!(refused(|f| f.codec = "x".repeat(65)), CodecError::Field("name"));
        assert_eq!(refused(|f| f.pix_fmt = "x".repeat(65)), CodecError::Field("name"));
        assert_eq!(refused(|f| f.rotation = i16::MIN), CodecError::Field("rotation"));
        assert_eq!(refused(|f| f.average_fps = (1, 0)), CodecError::Field("average_fps"));
        assert_eq!(refused(|f| f.time_base = (0, 1)), CodecError::Field("time_base"));
        assert_eq!(refused(|f| f.time_base = (1, 0)), CodecError::Field("time_base"));
        assert_eq!(refused(|f| f.begin_seconds = 2.0), CodecError::Field("seconds"));
        assert_eq!(refused(|f| f.end_seconds = f64::NAN), CodecError::Field("seconds"));
        assert_eq!(refused(|f| f.duration_seconds = f64::INFINITY), CodecError::Field("seconds"));
        assert_eq!(refused(|f| f.ext = vec![(1, vec![]); 65]), CodecError::Field("ext"));
        let long = VideoFacts { ext: vec![(1, vec![0; VIDEO_FACTS_BYTES_MAX])], ..facts() };
        assert!(matches!(encode(&long), Err(CodecError::TooLong { .. })));
        assert!(matches!(decode::<VideoFacts>(&[0; VIDEO_FACTS_BYTES_MAX + 1]), Err(CodecError::TooLong { .. })));
        const { assert!(VIDEO_FACTS_BYTES_MAX + 4096 < ITEM_BYTES_MAX) };
    }

    /// Promise: no bytes make a reader of facts or frames panic, or allocate past what came; what is read is within its bounds.
    #[test]
    fn mutants_are_refused_or_bounded() {
        let seed = 0x71de0_u64;
        println!("seed {seed:#x}");
        let mut state = seed;
        let mut next = move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize
        };
        let facts = encode(&VideoFacts { codec: "h264".into(), ext: vec![(1, vec![2])], ..facts() }).expect("encode");
        let rows = (0..9).map(|frame| FrameRow { frame, ..FrameRow::default() }).collect();
        let rows = encode(&SelectedPayload { frames: rows, total: 9 }).expect("encode");
        for good in [&facts[4..], &rows[4..]] {
            for _ in 0..20_000 {
                let mut bytes = good.to_vec();
                for _ in 0..1 + next() % 4 {
                    let at = next() % bytes.len();
                    bytes[at] = next() as u8;
                }
                bytes.truncate(bytes.len() - next() % 8);
                if let Ok(facts) = decode::<VideoFacts>(&bytes) {
                    assert!(facts.codec.len() <= VIDEO_NAME_BYTES_MAX && facts.begin_seconds <= facts.end_seconds);
                }
                if let Ok(rows) = decode::<SelectedPayload>(&bytes) {
                    assert!(rows.frames.iter().all(|row| row.frame < rows.total));
                }
            }
        }
    }

    /// Promise: replies are bounded: parts of an index, and frames of a selection.
    #[test]
    fn replies_are_bounded() {
        let read = |frames: usize, frame: u64| {
            let rows = vec![FrameRow { frame, ..FrameRow::default() }; frames];
            decode::<SelectedPayload>(&encode(&SelectedPayload { frames: rows, total: 9 }).expect("encode")[4..]).map(drop)
        };
        assert_eq!(read(SELECTED_MAX, 8), Ok(()));
        assert_eq!(read(SELECTED_MAX + 1, 8), Err(CodecError::Field("frames")));
        assert_eq!(read(1, 9), Err(CodecError::Field("frame")));
        let read = |bytes: usize, total: u64| {
            let part = IndexPayload { total, bytes: vec![7; bytes], ..IndexPayload::default() };
            decode::<IndexPayload>(&encode(&part).expect("encode")[4..]).map(drop)
        };
        let most = INDEX_BYTES_MAX as usize;
        assert_eq!(read(most, most as u64), Ok(()));
        assert_eq!(read(most + 1, u64::MAX), Err(CodecError::Field("bytes")));
        assert_eq!(read(2, 1), Err(CodecError::Field("bytes")));
    }

    /// Promise: what is asked of an index is a text and a value, each of the other; the longest selection fits into its request.
    #[test]
    fn kinds_are_texts() {
        for text in [
            "video",
            "video proved",
            "video?",
            "video?frames=0,-1",
            "video?at=1.5",
            "video?from=1&to=2&fps=30000/1001",
            "video?uniform=8",
            "video stream=0",
            "video proved stream=63",
            "video?stream=1",
            "video?uniform=8&stream=1",
        ] {
            assert_eq!(text.parse::<IndexKind>().expect(text).to_string(), text);
        }
        assert_eq!("video?".parse(), Ok(IndexKind::Selected { frames: Selector::ALL, stream: None }));
        for text in [
            "",
            "tar",
            "video ",
            "video stream=",
            "video stream=64",
            "video stream=1 proved",
            "video?stream=64",
            "videos",
            "video?uniform=8&short=256",
            "video?nope=1",
            "image",
        ] {
            assert!(text.parse::<IndexKind>().is_err(), "{text}");
        }
        let frames = IndexKind::Selected { frames: Selector::Frames(vec![i64::MIN; SELECTED_MAX]), stream: Some(63) };
        let body = IndexBody { uri: "x".repeat(8192), kind: frames.to_string(), start: 0, count: 0 };
        assert!(encode(&body).expect("encode").len() < BODY_BYTES_MAX);
        assert_eq!(body.kind.parse(), Ok(frames));
    }
}
