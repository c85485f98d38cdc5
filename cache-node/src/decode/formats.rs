//! The codecs behind one face: wanted frames in, samples out, each as Pillow's `open(f); seek(n); convert(..)` has them.
//!
//! One file per format. Formats differ in where Pillow's meaning departs from the libraries', and each file says where; what they
//! share is below. Every size that is allocated for was judged from the header by [`probe`](super::probe()) first, and is compared
//! again with what a codec finds.

mod avif;
mod bmp;
mod gif;
mod jpeg;
#[cfg(test)]
mod judged;
mod png;
mod tiff;
mod webp;

use super::{Format, Probe};

/// Compressed bytes, window by window.
pub(super) trait Input {
    /// The window at the object's start; holds the whole header, and the whole object where [`Format::is_whole`].
    fn first(&self) -> &[u8];

    /// Passes over `skip` bytes behind the current window and gives the next one; empty at the object's end.
    fn more(&mut self, skip: u64) -> &[u8];
}

/// All of the object at once.
impl Input for &[u8] {
    fn first(&self) -> &[u8] {
        self
    }

    fn more(&mut self, _skip: u64) -> &[u8] {
        &[]
    }
}

/// What the samples are to hold beyond Pillow's `convert("RGB")`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Wants {
    /// Alpha, as `convert("RGBA")` has it, where the picture has any.
    pub(super) alpha: bool,
    /// All 16 bits of a gray picture that has them.
    pub(super) deep: bool,
    /// Of a cut or broken JPEG, what can be decoded; the rest gray.
    pub(super) truncated_pad: bool,
    /// A JPEG by the cheap transforms, scaled down by two to this power, 3 at most. Its samples then are of that size.
    pub(super) quick: Option<u8>,
}

/// How samples lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// One byte, to be replicated.
    Gray,
    /// Three bytes.
    Rgb,
    /// Four bytes, alpha straight. Only where asked for.
    Rgba,
    /// Two bytes in this machine's order. Only where asked for.
    Gray16,
}

impl Kind {
    /// Bytes of a pixel.
    pub(super) fn bytes(self) -> usize {
        match self {
            Self::Gray => 1,
            Self::Gray16 => 2,
            Self::Rgb => 3,
            Self::Rgba => 4,
        }
    }
}

/// One frame, rows from the top without gaps.
pub(super) struct Samples<'a> {
    pub(super) pixels: &'a [u8],
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) kind: Kind,
}

/// Receives each wanted frame once, by its index; or why there is none, where that says nothing about those behind it.
pub(super) type Sink<'a> = &'a mut dyn FnMut(u32, Result<Samples<'_>, Failure>);

/// Why a picture gave nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The picture is broken, in words.
    Undecodable(String),
    /// A kind of picture, or a use of it, that this release does not make.
    Unsupported(String),
    /// There are only so many frames, and one behind them is wanted.
    NoFrame { count: u32 },
    /// Memory could not be had.
    OutOfMemory,
}

/// Decodes `frames` (rising, without repeats) of the probed picture and hands each to `sink`.
///
/// `room` holds at least `probe.decoded_bytes`. An error is that of every frame that was not handed over.
pub(super) fn decode(
    input: &mut dyn Input,
    probe: &Probe,
    room: &mut [u8],
    wants: Wants,
    frames: &[u32],
    sink: Sink<'_>,
) -> Result<(), Failure> {
    judge(probe, wants, frames)?;
    let order = Order { probe, wants, frames };
    if probe.format == Format::Jpeg {
        return jpeg::decode(input, &order, room, sink);
    }
    let bytes = input.first();
    if bytes.len() as u64 != probe.input_bytes {
        return broken("the picture was not read whole");
    }
    match probe.format {
        Format::Png => png::decode(bytes, &order, room, sink),
        Format::Webp => webp::decode(bytes, &order, room, sink),
        Format::Gif => gif::decode(bytes, &order, room, sink),
        Format::Bmp => bmp::decode(bytes, &order, room, sink),
        Format::Tiff => tiff::decode(bytes, &order, room, sink),
        Format::Avif => avif::decode(bytes, &order, room, sink),
        Format::Jpeg | Format::Heic | Format::Video | Format::Unknown => unsupported(format!("{} is not decoded", probe.format)),
    }
}

/// Refuses what no decode should be begun for.
pub(super) fn judge(probe: &Probe, wants: Wants, frames: &[u32]) -> Result<(), Failure> {
    let Some(&last) = frames.last() else { return Ok(()) };
    if let Some(count) = probe.frames.filter(|&count| last >= count) {
        return Err(Failure::NoFrame { count });
    }
    let drawn = u64::from(probe.width) * u64::from(probe.height) * (u64::from(last) + 1);
    if last >= FRAMES_MAX || drawn > ANIMATED_PIXELS_MAX {
        return unsupported(format!("frame {last} of {}x{} is too far in", probe.width, probe.height));
    }
    if wants.truncated_pad && probe.format != Format::Jpeg {
        return unsupported("padding of a truncated picture that is no jpeg".into());
    }
    Ok(())
}

/// Frames from the start are composited one by one; past this many the wait is a seeking video's, which is not what these are.
const FRAMES_MAX: u32 = 100_000;

/// Canvas pixels that one decode composites: at the 2 ns a pixel of a large plain canvas, 8 s, within a worker's CPU limit.
const ANIMATED_PIXELS_MAX: u64 = 4 << 30;

/// What is to be made of the picture.
struct Order<'a> {
    probe: &'a Probe,
    wants: Wants,
    frames: &'a [u32],
}

impl Order<'_> {
    /// Colour, and alpha if the picture has it and it is asked for.
    fn colour(&self) -> Kind {
        if self.wants.alpha && self.probe.has_alpha { Kind::Rgba } else { Kind::Rgb }
    }

    fn last(&self) -> u32 {
        self.frames.last().copied().unwrap_or(0)
    }

    /// Whether the last wanted frame is one of `count`.
    fn ends_within(&self, count: u32) -> Result<(), Failure> {
        if self.last() < count { Ok(()) } else { Err(Failure::NoFrame { count }) }
    }

    fn is_wanted(&self, frame: u32) -> bool {
        self.frames.binary_search(&frame).is_ok()
    }

    /// The probed size, compared with what the codec found.
    fn size(&self, width: u64, height: u64) -> Result<(usize, usize), Failure> {
        if (width, height) != (self.probe.width.into(), self.probe.height.into()) {
            return broken("size differs from the header's");
        }
        Ok((self.probe.width as usize, self.probe.height as usize))
    }

    /// Hands over a frame of the probed size that lies at the start of `room`.
    fn give(&self, frame: u32, kind: Kind, room: &mut [u8], sink: Sink<'_>) -> Result<(), Failure> {
        let (width, height) = (self.probe.width, self.probe.height);
        let bytes = width as usize * height as usize * kind.bytes();
        sink(frame, Ok(Samples { pixels: &room[..bytes], width, height, kind }));
        Ok(())
    }
}

fn broken<T>(reason: impl Into<String>) -> Result<T, Failure> {
    Err(Failure::Undecodable(reason.into()))
}

fn unsupported<T>(reason: String) -> Result<T, Failure> {
    Err(Failure::Unsupported(reason))
}

/// Zeroed memory, or an answer where the process's limit is reached.
fn zeros<T: Default + Clone>(count: usize) -> Result<Vec<T>, Failure> {
    let mut out = Vec::new();
    out.try_reserve_exact(count).map_err(|_| Failure::OutOfMemory)?;
    out.resize(count, T::default());
    Ok(out)
}

/// A library's own words, on one line.
fn said(error: impl std::fmt::Display) -> Failure {
    Failure::Undecodable(error.to_string().replace('\n', " "))
}

/// Pillow's "CMYK" to RGB: per channel `clip(nk - mul255(c, nk))` with `nk = 255 - k`. No colour profile.
fn ink_to_light([c, m, y, k]: [u8; 4]) -> [u8; 3] {
    let light = 255 - u32::from(k);
    [c, m, y].map(|ink| {
        let product = u32::from(ink) * light + 128;
        light.saturating_sub(((product >> 8) + product) >> 8) as u8
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: ink becomes light as in Pillow; values from `Image.frombytes("CMYK", ..).convert("RGB")`.
    #[test]
    fn cmyk_is_pillows() {
        let of = |inverted: [u8; 4]| ink_to_light(inverted.map(|v| 255 - v));
        assert_eq!(of([255; 4]), [255, 255, 255]);
        assert_eq!(of([0, 0, 0, 255]), [0, 0, 0]);
        assert_eq!(of([255, 0, 0, 128]), [128, 0, 0]);
        assert_eq!(of([10, 100, 200, 77]), [3, 30, 60]);
    }
}
