//! Clips that every engine is tried with at its start: what it makes of them must be what they are known to be, to the last sample.
//!
//! A few frames of each codec, with B-frames, odd crops and ten bits among them; their hashes are the CPU's, which the tests hold it to.

use bytes::Bytes;
use framecache::ByteRange;

use super::super::Limits;
use super::super::video::{self, DecodeEnd, Frame, FrameError, Gone, Input, Sink, Stop, Trust};

/// A clip, its codec, and a name for what is special about it.
pub(super) struct Sample {
    pub(super) name: &'static str,
    pub(super) codec: &'static str,
    /// Whether a side is odd, which a device may fail at while it does all else well.
    pub(super) is_odd: bool,
    bytes: &'static [u8],
}

macro_rules! sample {
    ($name:literal, $codec:literal) => {
        sample!($name, $codec, false)
    };
    ($name:literal, $codec:literal, $is_odd:literal) => {
        Sample { name: $name, codec: $codec, is_odd: $is_odd, bytes: include_bytes!(concat!("golden/", $name)) }
    };
}

/// All of them.
pub(super) const SAMPLES: &[Sample] = &[
    sample!("h264.mp4", "h264"),
    sample!("h264_interlaced.mp4", "h264"),
    sample!("hevc.mp4", "hevc"),
    sample!("hevc_10bit.mp4", "hevc"),
    sample!("vp8.mkv", "vp8"),
    sample!("vp8_odd.mkv", "vp8", true),
    sample!("vp9.mp4", "vp9"),
    sample!("vp9_odd.mp4", "vp9", true),
    sample!("av1.mp4", "av1"),
    sample!("av1_odd.mp4", "av1", true),
    sample!("mpeg2.mp4", "mpeg2video"),
    sample!("mpeg4.mp4", "mpeg4"),
];

/// `name frame hash` a line.
const HASHES: &str = include_str!("golden/hashes.txt");

/// What decodes a package here.
pub(super) type Decode<'a> = &'a mut dyn FnMut(&[u8], Sink<'_>) -> Result<(), DecodeEnd>;

impl Sample {
    /// Decodes all frames by `decode`; their hashes, in order.
    pub(super) fn hashes(&self, decode: Decode<'_>) -> Result<Vec<u64>, String> {
        let index =
            video::make(&mut Held(self.bytes), Trust::Predicted, &Limits::default()).map_err(|error| error.to_string())?;
        let all: Vec<u64> = (0..index.len()).collect();
        let mut hashes = Vec::new();
        for clip in index.plan(&all) {
            let part =
                |range: &ByteRange| (*range, Bytes::from_static(&self.bytes[range.start() as usize..range.end() as usize]));
            let parts: Vec<_> = clip.ranges.iter().map(part).collect();
            let package = index.package(&clip, &parts).ok_or("no package")?;
            let mut failed = None;
            let mut each = |_: usize, frame: Result<Frame<'_>, FrameError>| match frame {
                Ok(frame) => {
                    hashes.push(frame.hash());
                    Ok(())
                }
                Err(error) => {
                    failed = Some(error.to_string());
                    Err(Stop)
                }
            };
            let ended = decode(&package, &mut each);
            match (failed, ended) {
                (Some(why), _) => return Err(why),
                (None, Err(error)) => return Err(error.to_string()),
                (None, Ok(())) => {}
            }
        }
        Ok(hashes)
    }

    /// Decodes all frames by `decode` and holds them against what they are known to be.
    pub(super) fn hold(&self, decode: Decode<'_>) -> Result<(), String> {
        let hashes = self.hashes(decode).map_err(|why| format!("{}: {why}", self.name))?;
        let known = self.known();
        match hashes.iter().zip(&known).position(|(one, other)| one != other) {
            Some(frame) => Err(format!("{}: frame {frame} is another", self.name)),
            None if hashes.len() != known.len() => Err(format!("{}: {} frames of {}", self.name, hashes.len(), known.len())),
            None => Ok(()),
        }
    }

    fn known(&self) -> Vec<u64> {
        let hash = |line: &str| {
            let (name, rest) = line.split_once(' ')?;
            let (_, hash) = rest.split_once(' ').filter(|_| name == self.name)?;
            u64::from_str_radix(hash, 16).ok()
        };
        HASHES.lines().filter_map(hash).collect()
    }
}

/// A clip of this program.
struct Held(&'static [u8]);

impl Input for Held {
    fn bytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&mut self, range: ByteRange, into: &mut Vec<u8>) -> Result<(), Gone> {
        into.extend_from_slice(self.0.get(range.start() as usize..range.end() as usize).ok_or(Gone)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by_cpu(package: &[u8], each: Sink<'_>) -> Result<(), DecodeEnd> {
        video::decode(package, false, &Limits::default(), each)
    }

    /// Promise: the CPU engine makes of the golden samples what they are known to be.
    #[test]
    fn the_cpu_passes() {
        let mut lines = String::new();
        for sample in SAMPLES {
            let hashes = sample.hashes(&mut by_cpu).unwrap_or_else(|why| panic!("{}: {why}", sample.name));
            hashes.iter().enumerate().for_each(|(frame, hash)| lines += &format!("{} {frame} {hash:016x}\n", sample.name));
        }
        assert!(lines == HASHES, "golden/hashes.txt should be:\n{lines}");
        for sample in SAMPLES {
            assert_eq!(sample.hold(&mut by_cpu), Ok(()), "{}", sample.name);
            assert!(sample.known().len() >= 6, "{}", sample.name);
        }
    }

    /// Promise: an engine whose pictures are one sample off, or that leaves a frame out, fails; and says where.
    #[test]
    fn another_picture_fails() {
        let [sample, _, other, ..] = SAMPLES else { panic!("samples") };
        let stranger = Sample { name: sample.name, bytes: other.bytes, ..*other };
        assert_eq!(stranger.hold(&mut by_cpu), Err("h264.mp4: frame 0 is another".into()));
        let mut fewer = |package: &[u8], each: Sink<'_>| {
            by_cpu(package, &mut |place, frame| if place == 2 { Ok(()) } else { each(place, frame) })
        };
        assert_eq!(sample.hold(&mut fewer), Err("h264.mp4: frame 2 is another".into()));
        let mut last = |package: &[u8], each: Sink<'_>| {
            by_cpu(package, &mut |place, frame| if place == 7 { Ok(()) } else { each(place, frame) })
        };
        assert_eq!(sample.hold(&mut last), Err("h264.mp4: 7 frames of 8".into()));
    }
}
