//! What a picture is and what it will cost, from its first bytes: safe Rust, bounded, no I/O.
//!
//! Formats are told by content, as Pillow does; names and content types lie too often.

mod avif;
pub(super) mod bmp;
mod exif;
mod first;
mod gif;
pub(super) mod jpeg;
mod png;
mod sniff;
pub(super) mod tiff;
mod webp;

use std::fmt;

use framecache::{DecodeSpec, pixels};

use super::rendition::Rendition;
use super::{DecodeError, Limits};
use first::First;

/// Longest header that is looked through, in bytes. Real ones hold a few MiB at most (extended XMP, depth maps, ICC profiles);
/// what goes on without a picture beyond this is not worth the node's memory.
pub const HEADER_BYTES_MAX: u64 = 16 << 20;

/// The formats that are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// JPEG, and what begins with one (MPO, motion photos): the first picture.
    Jpeg,
    /// PNG and APNG.
    Png,
    /// WebP.
    Webp,
    /// GIF.
    Gif,
    /// Windows bitmap.
    Bmp,
    /// TIFF.
    Tiff,
    /// AV1 image file.
    Avif,
    /// HEVC image file.
    Heic,
    /// A video, in whatever container: not looked at by this module, but by its index.
    Video,
    /// None of these.
    Unknown,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Jpeg => "jpeg",
            Self::Png => "png",
            Self::Webp => "webp",
            Self::Gif => "gif",
            Self::Bmp => "bmp",
            Self::Tiff => "tiff",
            Self::Avif => "avif",
            Self::Heic => "heic",
            Self::Video => "video",
            Self::Unknown => "unknown",
        })
    }
}

/// What the header declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// By content.
    pub format: Format,
    /// Width in pixels, as decoding gives it: as stored, but for TIFF, which is turned by its orientation.
    pub width: u32,
    /// Height in pixels, likewise.
    pub height: u32,
    /// Colour channels: 1 gray, 3 colour (a palette's too), 4 CMYK. Tensors always have 3.
    pub channels: u8,
    /// Whether it has alpha, or colours that stand for transparency.
    pub has_alpha: bool,
    /// Bits of a sample as stored; of a palette's index.
    pub depth: u8,
    /// Pillow's `Image.mode` of the first frame.
    pub mode: &'static str,
    /// EXIF orientation, 1 to 8; 1 where there is none or it is damaged, and where it is applied already.
    pub orientation: u8,
    /// Frames or pages, where the header tells.
    pub frames: Option<u32>,
    /// Most bytes that decoding fills for one frame before any rendition is made.
    pub decoded_bytes: u64,
    /// Most bytes that the decoder keeps besides: coefficients, canvases, planes, a second copy of the input.
    pub working_bytes: u64,
    /// Compressed bytes.
    pub input_bytes: u64,
}

/// Judges the first bytes of an object of `size` bytes.
///
/// `first` is all of it, or as much as is at hand; [`DecodeError::NeedMore`] says how much would do.
pub fn probe(first: &[u8], size: u64, limits: &Limits) -> Result<Probe, DecodeError> {
    if size == 0 {
        return Err(DecodeError::undecodable(Format::Unknown, "empty"));
    }
    let first = &first[..first.len().min(usize::try_from(size).unwrap_or(usize::MAX))];
    let enough = size.min(sniff::BYTES);
    match sniff::format(first) {
        Format::Unknown if (first.len() as u64) < enough => Err(DecodeError::NeedMore { bytes: enough }),
        Format::Jpeg => jpeg::header(first, size)?.probe(size, limits),
        Format::Unknown => Err(DecodeError::undecodable(Format::Unknown, sniff::guess(first))),
        Format::Heic => {
            let format = Format::Heic;
            Err(DecodeError::Unsupported { format, reason: format!("{format} is not decoded by this release") })
        }
        format => {
            // Directories may lie at the end, behind pixels that the decoder needs whole anyway.
            let limit = if matches!(format, Format::Tiff | Format::Avif) { u64::MAX } else { HEADER_BYTES_MAX };
            let first = First::new(format, first, size, limit);
            match format {
                Format::Png => png::probe(&first, limits),
                Format::Webp => webp::probe(&first, limits),
                Format::Gif => gif::probe(&first, limits),
                Format::Bmp => bmp::probe(&first, limits),
                Format::Avif => avif::probe(&first, limits),
                _ => tiff::probe(&first, limits),
            }
        }
    }
}

/// Whether these first bytes may begin a video of a container that is read: then its index says more. Some have no mark at their very
/// start, so that what is no video may be taken for one, and is refused by the index.
pub fn is_video(first: &[u8]) -> bool {
    sniff::is_video(first)
}

impl Format {
    /// Whether its decoder needs the whole object in memory; of the others, one window at a time will do.
    pub(super) fn is_whole(self) -> bool {
        !matches!(self, Self::Jpeg | Self::Unknown)
    }
}

impl Limits {
    /// Refuses what has too many pixels, or a side that no resize takes.
    fn check(&self, (width, height): (u32, u32)) -> Result<(), DecodeError> {
        let long = width.max(height) as usize > pixels::SIDE_MAX;
        match long || u64::from(width) * u64::from(height) > self.pixels_max {
            true => Err(DecodeError::TooLarge { width, height, limit: self.pixels_max }),
            false => Ok(()),
        }
    }
}

impl Probe {
    /// Memory that the whole decode takes, for the budget: input, what the decoder holds, and every rendition. A spec that cannot
    /// be made of this picture costs nothing.
    pub fn cost_bytes(&self, specs: &[DecodeSpec]) -> u64 {
        let limits = Limits { pixels_max: u64::MAX };
        self.cost_of(&specs.iter().filter_map(|spec| Rendition::of(spec, self, &limits).ok()).collect::<Vec<_>>())
    }

    /// Renditions are drawn one after the other, so that only the largest scratch counts.
    pub(super) fn cost_of<'a>(&self, renditions: impl IntoIterator<Item = &'a Rendition>) -> u64 {
        let input = if self.format.is_whole() { self.input_bytes } else { self.input_bytes.min(HEADER_BYTES_MAX) };
        let (mut drawn, mut scratch) = (0u64, 0);
        for rendition in renditions {
            drawn = drawn.saturating_add(rendition.bytes() as u64);
            scratch = scratch.max(rendition.scratch_bytes(self));
        }
        [self.decoded_bytes, self.working_bytes, drawn, scratch].into_iter().fold(input, u64::saturating_add)
    }
}
