//! TIFF's directories: which of Pillow's modes a page is, or that it is none that is decoded here.

use std::collections::HashSet;

use super::first::First;
use super::{DecodeError, Format, Limits, Probe};

/// One page.
pub(in crate::decode) struct Page {
    /// Sides as stored; Pillow turns the picture by its orientation.
    pub(in crate::decode) width: u32,
    pub(in crate::decode) height: u32,
    pub(in crate::decode) orientation: u8,
    pub(in crate::decode) compression: u16,
    pub(in crate::decode) layout: Layout,
    /// Bits of a sample, and samples of a pixel.
    pub(in crate::decode) bits: u8,
    pub(in crate::decode) samples: u8,
    /// Whether JPEG holds red, green and blue as they are.
    pub(in crate::decode) plain: bool,
    /// Where the photometric interpretation stands, if in two bytes, and in which order.
    pub(in crate::decode) photometric_at: Option<u64>,
    pub(in crate::decode) big_endian: bool,
    mode: &'static str,
    /// Where the next page's directory lies; 0 behind the last.
    pub(in crate::decode) next: u64,
}

/// What the samples of a pixel are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::decode) enum Layout {
    Gray {
        inverted: bool,
    },
    GrayAlpha,
    Index,
    /// Three samples, and others that are dropped.
    Rgb,
    Rgba,
    /// Alpha is multiplied into the colours.
    RgbaMultiplied,
    Cmyk,
    /// Only as JPEG.
    Ycbcr,
}

impl Page {
    /// Sides as Pillow has them.
    pub(in crate::decode) fn size(&self) -> (u32, u32) {
        if self.orientation >= 5 { (self.height, self.width) } else { (self.width, self.height) }
    }

    /// Bytes of the page as it is stored, rows padded to whole bytes.
    pub(in crate::decode) fn raw_bytes(&self) -> u64 {
        let line = (u64::from(self.width) * u64::from(self.bits) * u64::from(self.samples)).div_ceil(8);
        line.saturating_mul(self.height.into())
    }

    pub(in crate::decode) fn has_alpha(&self) -> bool {
        matches!(self.layout, Layout::GrayAlpha | Layout::Rgba | Layout::RgbaMultiplied)
    }
}

pub(super) fn probe(first: &First<'_>, limits: &Limits) -> Result<Probe, DecodeError> {
    let file = File::of(first)?;
    let page = file.page(file.start, limits)?;
    let (width, height) = page.size();
    let pixels = u64::from(width) * u64::from(height);
    let channels = if matches!(page.layout, Layout::Gray { .. } | Layout::GrayAlpha) { 1 } else { 3 };
    let wanted = match (page.has_alpha(), channels, page.bits) {
        (true, ..) => 4,
        (_, 1, 16) => 2,
        (_, channels, _) => u64::from(channels),
    };
    Ok(Probe {
        format: Format::Tiff,
        width,
        height,
        channels,
        has_alpha: page.has_alpha(),
        depth: page.bits,
        mode: page.mode,
        // Applied.
        orientation: 1,
        frames: if page.next == 0 { Some(1) } else { None },
        decoded_bytes: pixels * wanted,
        // The page as stored, once more as a strip may hold all of it, once more while a strip is checked, and the page upright; of a
        // palette, a copy of the file; of JPEG, a strip's stream and its coefficients.
        working_bytes: 3 * page.raw_bytes()
            + pixels * wanted
            + (4 << 20)
            + if page.layout == Layout::Index { first.size() } else { 0 }
            + if page.compression == JPEG { first.size() + pixels * 8 } else { 0 },
        input_bytes: first.size(),
    })
}

/// Pages of a file that lies in memory whole, up to the `last`; fewer if the file has no more.
pub(in crate::decode) fn directories(bytes: &[u8], last: u32) -> Result<Vec<u64>, DecodeError> {
    let first = whole(bytes);
    let file = File::of(&first)?;
    let (mut found, mut seen) = (vec![file.start], HashSet::from([file.start]));
    while found.len() <= last as usize {
        let next = file.next(found[found.len() - 1])?;
        // One that was seen before ends the file, as in Pillow.
        if next == 0 || !seen.insert(next) {
            break;
        }
        found.push(next);
    }
    Ok(found)
}

/// The page whose directory lies at `at`.
pub(in crate::decode) fn page(bytes: &[u8], at: u64) -> Result<Page, DecodeError> {
    File::of(&whole(bytes))?.page(at, &Limits { pixels_max: u64::MAX })
}

fn whole(bytes: &[u8]) -> First<'_> {
    First::new(Format::Tiff, bytes, bytes.len() as u64, u64::MAX)
}

struct File<'a, 'b> {
    first: &'b First<'a>,
    big_endian: bool,
    /// BigTIFF: offsets and counts of eight bytes.
    big: bool,
    start: u64,
}

impl<'a, 'b> File<'a, 'b> {
    fn of(first: &'b First<'a>) -> Result<Self, DecodeError> {
        let head: [u8; 4] = first.array(0)?;
        let (big_endian, big) = (head[0] == b'M', head.contains(&43));
        let mut file = Self { first, big_endian, big, start: 0 };
        file.start = if big { file.number(8, 8)? } else { file.number(4, 4)? };
        Ok(file)
    }

    fn number(&self, at: u64, bytes: u64) -> Result<u64, DecodeError> {
        let raw = self.first.get(at, bytes)?.iter().map(|&byte| u64::from(byte));
        let join = |value: u64, byte: u64| value << 8 | byte;
        Ok(if self.big_endian { raw.fold(0, join) } else { raw.rev().fold(0, join) })
    }

    /// Bytes of a count of fields, of one field, and of an offset.
    fn sizes(&self) -> (u64, u64, u64) {
        if self.big { (8, 20, 8) } else { (2, 12, 4) }
    }

    fn next(&self, at: u64) -> Result<u64, DecodeError> {
        let (count_bytes, field_bytes, offset_bytes) = self.sizes();
        let count = self.number(at, count_bytes)?.min(FIELDS_MAX);
        self.number(at.saturating_add(count_bytes + count * field_bytes), offset_bytes)
    }

    fn page(&self, at: u64, limits: &Limits) -> Result<Page, DecodeError> {
        let (count_bytes, field_bytes, offset_bytes) = self.sizes();
        let count = self.number(at, count_bytes)?;
        if count > FIELDS_MAX {
            return Err(self.first.broken(format!("{count} fields")));
        }
        let (mut fields, mut seen) = (Fields::default(), HashSet::new());
        for n in 0..count {
            let field = at.saturating_add(count_bytes + n * field_bytes);
            let tag = self.number(field, 2)?;
            // Of two, Pillow has the first, libtiff too, and the crate perhaps the other.
            if !seen.insert(tag) {
                return Err(self.first.broken(format!("field {tag} is there twice")));
            }
            if tag == PHOTOMETRIC && self.number(field + 2, 2)? == 3 {
                fields.photometric_at = Some(field + field_bytes - offset_bytes);
            }
            fields.take(tag, self.values(field)?);
        }
        let next = self.next(at)?;
        fields.page(self.first, self.big_endian, next, limits)
    }

    /// The first values of a field: none where it holds no whole numbers.
    fn values(&self, field: u64) -> Result<Vec<u64>, DecodeError> {
        let (_, field_bytes, offset_bytes) = self.sizes();
        let tag = self.number(field, 2)?;
        if !DESCRIBING.contains(&tag) {
            return Ok(Vec::new());
        }
        let bytes = match self.number(field + 2, 2)? {
            1 => 1,
            3 => 2,
            4 => 4,
            16 => 8,
            kind => return Err(self.first.broken(format!("field {tag} of type {kind}"))),
        };
        let count = self.number(field + 4, offset_bytes)?;
        let here = field + field_bytes - offset_bytes;
        let at = if count.saturating_mul(bytes) <= offset_bytes { here } else { self.number(here, offset_bytes)? };
        (0..count.min(VALUES_MAX)).map(|n| self.number(at.saturating_add(n * bytes), bytes)).collect()
    }
}

/// The fields that describe pixels, by name.
#[derive(Default)]
struct Fields {
    width: Option<u64>,
    height: Option<u64>,
    bits: Option<Vec<u64>>,
    compression: Option<u64>,
    photometric: Option<u64>,
    fill_order: Option<u64>,
    orientation: Option<u64>,
    samples: Option<u64>,
    planar: Option<u64>,
    extra: Option<Vec<u64>>,
    format: Option<Vec<u64>>,
    photometric_at: Option<u64>,
}

impl Fields {
    fn take(&mut self, tag: u64, values: Vec<u64>) {
        let Some(&one) = values.first() else { return };
        match tag {
            256 => self.width = Some(one),
            257 => self.height = Some(one),
            258 => self.bits = Some(values),
            259 => self.compression = Some(one),
            PHOTOMETRIC => self.photometric = Some(one),
            266 => self.fill_order = Some(one),
            274 => self.orientation = Some(one),
            277 => self.samples = Some(one),
            284 => self.planar = Some(one),
            338 => self.extra = Some(values),
            339 => self.format = Some(values),
            _ => {}
        }
    }

    fn page(self, first: &First<'_>, big_endian: bool, next: u64, limits: &Limits) -> Result<Page, DecodeError> {
        let side = |side: Option<u64>| side.and_then(|v| u32::try_from(v).ok()).filter(|&v| v > 0);
        let (Some(width), Some(height)) = (side(self.width), side(self.height)) else {
            return Err(first.broken("no size"));
        };
        limits.check((width, height))?;
        let compression = self.compression.unwrap_or(1) as u16;
        if !COMPRESSIONS.contains(&u64::from(compression)) || self.compression.is_some_and(|v| v > 0xffff) {
            return Err(first.unsupported(format!("compression {compression}")));
        }
        let photometric = self.photometric.unwrap_or(0);
        let samples = self.samples.unwrap_or(1);
        let mut bits = self.bits.unwrap_or_else(|| vec![1]);
        bits.truncate(usize::try_from(samples).unwrap_or(usize::MAX));
        if bits.len() == 1 && (1..=VALUES_MAX).contains(&samples) {
            bits = vec![bits[0]; samples as usize];
        }
        let extra = self.extra.unwrap_or_default();
        let layout = layout(photometric, &bits, &extra, compression == JPEG, big_endian);
        let plain = self.fill_order.unwrap_or(1) == 1
            && self.format.unwrap_or_default().iter().all(|&format| format == 1)
            && (self.planar.unwrap_or(1) == 1 || samples == 1);
        let Some((layout, mode)) = layout.filter(|_| plain && bits.len() as u64 == samples) else {
            return Err(first.unsupported(format!("photometric {photometric} of {bits:?} bits, extra {extra:?}")));
        };
        let orientation = self.orientation.filter(|v| (1..=8).contains(v)).unwrap_or(1) as u8;
        let (bits, samples) = (bits[0] as u8, samples as u8);
        let (plain, photometric_at) = (photometric == 2, self.photometric_at);
        Ok(Page { width, height, orientation, compression, layout, bits, samples, plain, photometric_at, big_endian, mode, next })
    }
}

/// Pillow's table of modes, as far as pixels are exact here.
fn layout(photometric: u64, bits: &[u64], extra: &[u64], jpeg: bool, big_endian: bool) -> Option<(Layout, &'static str)> {
    use Layout::{Cmyk, Gray, GrayAlpha, Index, Rgb, Rgba, RgbaMultiplied, Ycbcr};
    Some(match (photometric, bits, extra) {
        (6, [8, 8, 8], []) if jpeg => (Ycbcr, "RGB"),
        (2, [8, 8, 8], []) if jpeg => (Rgb, "RGB"),
        (1, [8], []) if jpeg => (Gray { inverted: false }, "L"),
        _ if jpeg => return None,
        (0 | 1, [1], []) => (Gray { inverted: photometric == 0 }, "1"),
        (0 | 1, [2 | 4 | 8], []) => (Gray { inverted: photometric == 0 }, "L"),
        // Not inverted in Pillow.
        (0, [16], []) if !big_endian => (Gray { inverted: true }, "I;16"),
        (1, [16], []) if !big_endian => (Gray { inverted: false }, "I;16"),
        (1, [16], []) => (Gray { inverted: false }, "I;16B"),
        (1, [8, 8], [2]) => (GrayAlpha, "LA"),
        (2, [8, 8, 8] | [16, 16, 16], []) => (Rgb, "RGB"),
        (2, [8, 8, 8, 8] | [16, 16, 16, 16], [0]) => (Rgb, "RGB"),
        (2, [8, 8, 8, 8], [] | [2]) | (2, [16, 16, 16, 16], [] | [2]) => (Rgba, "RGBA"),
        (2, [8, 8, 8, 8], [1]) => (RgbaMultiplied, "RGBA"),
        (3, [1 | 2 | 4 | 8], []) => (Index, "P"),
        (5, [8, 8, 8, 8] | [16, 16, 16, 16], []) => (Cmyk, "CMYK"),
        _ => return None,
    })
}

const PHOTOMETRIC: u64 = 262;

/// The fields of [`Fields`].
const DESCRIBING: [u64; 11] = [256, 257, 258, 259, PHOTOMETRIC, 266, 274, 277, 284, 338, 339];

/// JPEG as TIFF's second technical note has it.
pub(in crate::decode) const JPEG: u16 = 7;

/// None, Group 4, LZW, JPEG, Deflate under both its numbers, PackBits.
const COMPRESSIONS: [u64; 7] = [1, 4, 5, JPEG as u64, 8, 32_946, 32_773];

/// Most fields of a directory; writers use some thirty.
const FIELDS_MAX: u64 = 4096;

/// Most values of a field that are looked at: more samples a pixel than any layout has.
const VALUES_MAX: u64 = 8;
