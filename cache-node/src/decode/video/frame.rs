//! A decoded frame: planes as the decoder lends them, and what they mean.

use framecache::pixels::yuv::{self, PlanesError};

use super::av::{self, Picture};
use super::colour;

/// A frame's planes, borrowed from the decoder.
#[derive(Debug)]
pub struct Frame<'a> {
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    pub(super) sampling: Sampling,
    /// The matrix by H.273's number: 1 is BT.709, 9 and 10 BT.2020, all others are taken for BT.601.
    pub matrix: i32,
    /// Whether samples use all of their range.
    pub is_full: bool,
    pub(super) planes: Vec<Plane<'a>>,
    /// As FFmpeg has it.
    pub(super) picture: Picture<'a>,
}

/// One plane of samples: a byte each, or two, the lower first.
#[derive(Debug)]
pub(super) struct Plane<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) line: usize,
    pub(super) columns: usize,
    pub(super) rows: usize,
    pub(super) is_upside_down: bool,
}

impl<'a> Plane<'a> {
    /// A row's bytes, from the top; may run on into what is behind the row.
    pub(super) fn row(&self, row: usize) -> &'a [u8] {
        let row = if self.is_upside_down { self.rows - 1 - row } else { row };
        &self.bytes[row * self.line..]
    }
}

impl Frame<'_> {
    /// Bits of a sample: 8 to 12, or 16.
    pub fn bits(&self) -> u32 {
        self.sampling.bits
    }

    /// Luma samples per chroma sample, across and down; nothing where there is no chroma, or where planes are green, blue and red.
    pub fn subsampling(&self) -> Option<(usize, usize)> {
        match self.sampling.kind {
            Kind::Yuv { across, down } => Some((across, down)),
            Kind::Gray | Kind::Gbr => None,
        }
    }

    /// What the samples mean; nothing where there is alpha, too, which the shared conversion has no word for.
    pub fn format(&self) -> Option<yuv::Format> {
        (!self.sampling.has_alpha).then(|| colour::format(self))
    }

    /// Bytes of all planes, without gaps: what [`Frame::planes_into`] fills.
    pub fn planes_bytes(&self) -> usize {
        self.planes.iter().map(|plane| plane.rows * plane.columns * self.sampling.sample_bytes()).sum()
    }

    /// All planes in the decoder's order and depth, rows from the top without gaps; `out` has [`Frame::planes_bytes`] bytes.
    pub fn planes_into(&self, out: &mut [u8]) {
        assert_eq!(out.len(), self.planes_bytes(), "planes fit their place");
        let mut rest = out;
        for plane in &self.planes {
            let row_bytes = plane.columns * self.sampling.sample_bytes();
            let (place, behind) = rest.split_at_mut(plane.rows * row_bytes);
            for (row, place) in place.chunks_exact_mut(row_bytes).enumerate() {
                place.copy_from_slice(&plane.row(row)[..row_bytes]);
            }
            rest = behind;
        }
    }

    /// Bytes of the frame in RGB: three a pixel.
    pub fn rgb_bytes(&self) -> usize {
        3 * self.width as usize * self.height as usize
    }

    /// Red, green and blue, a byte each, rows from the top without gaps: exact arithmetic, rounded once, each pixel with its block's
    /// chroma sample. `out` has [`Frame::rgb_bytes`] bytes. Alpha is dropped.
    ///
    /// # Errors
    /// Planes of a kind that has no RGB.
    pub fn rgb_into(&self, out: &mut [u8]) -> Result<(), PlanesError> {
        colour::rgb(self, out)
    }

    /// The same with the samples' own depth for a byte's: numbers of two bytes, the lower first, 0 to `2^bits - 1`. `out` has twice as
    /// many bytes.
    ///
    /// # Errors
    /// Planes of a kind that has no RGB.
    pub fn rgb16_into(&self, out: &mut [u8]) -> Result<(), PlanesError> {
        colour::rgb16(self, out)
    }

    /// Red, green and blue by FFmpeg's own default conversion; `out` has [`Frame::rgb_bytes`] bytes.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub fn swscale_into(&self, out: &mut [u8]) -> Result<(), String> {
        av::rgb24(self.picture, out)
    }

    /// Whether its planes may be resized before they become RGB: bytes, with chroma.
    pub(super) fn has_byte_chroma(&self) -> bool {
        self.sampling.bits == 8 && self.subsampling().is_some()
    }

    /// A hash of all planes, by which a frame is known again.
    pub(super) fn hash(&self) -> u64 {
        let mut hasher = xxhash_rust::xxh3::Xxh3Default::new();
        for plane in &self.planes {
            let row_bytes = plane.columns * self.sampling.sample_bytes();
            (0..plane.rows).for_each(|row| hasher.update(&plane.row(row)[..row_bytes]));
        }
        hasher.digest()
    }
}

/// How samples lie in planes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sampling {
    pub(super) kind: Kind,
    pub(super) bits: u32,
    has_alpha: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Gray,
    /// Luma and two planes of chroma, each sample of which is `across` by `down` pixels'.
    Yuv {
        across: usize,
        down: usize,
    },
    /// Green, blue, red.
    Gbr,
}

impl Sampling {
    /// By FFmpeg's name of a format; nothing for packed, palette, hardware and big-endian ones.
    pub(super) fn of(name: &str) -> Option<Self> {
        let bits_of = |text: &str| match text {
            "" => Some(8),
            "9le" => Some(9),
            "10le" => Some(10),
            "12le" => Some(12),
            "16le" => Some(16),
            _ => None,
        };
        if let Some(bits) = name.strip_prefix("gray") {
            return Some(Self { kind: Kind::Gray, bits: bits_of(bits)?, has_alpha: false });
        }
        let (colours, bits) = name.split_once('p')?;
        let bits = bits_of(bits)?;
        if let "gbr" | "gbra" = colours {
            return Some(Self { kind: Kind::Gbr, bits, has_alpha: colours == "gbra" });
        }
        let chroma = colours.strip_prefix("yuv")?;
        let has_alpha = chroma.starts_with('a');
        let (across, down) = match chroma.trim_start_matches(['a', 'j']) {
            "444" => (1, 1),
            "422" => (2, 1),
            "420" => (2, 2),
            "440" => (1, 2),
            "411" => (4, 1),
            _ => return None,
        };
        // Deeper ones do not fit the arithmetic of `colour`, and no codec here makes them but one profile that nobody writes.
        (bits <= 12).then_some(Self { kind: Kind::Yuv { across, down }, bits, has_alpha })
    }

    pub(super) fn planes(self) -> usize {
        let colours = if self.kind == Kind::Gray { 1 } else { 3 };
        colours + usize::from(self.has_alpha)
    }

    pub(super) fn sample_bytes(self) -> usize {
        if self.bits > 8 { 2 } else { 1 }
    }

    /// Columns and rows of a plane; chroma covers the last odd pixel, too.
    pub(super) fn plane_size(self, plane: usize, width: usize, height: usize) -> (usize, usize) {
        match self.kind {
            Kind::Yuv { across, down } if plane == 1 || plane == 2 => (width.div_ceil(across), height.div_ceil(down)),
            _ => (width, height),
        }
    }
}
