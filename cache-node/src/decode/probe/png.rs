//! PNG's chunks before the first pixel, each with its checksum, as Pillow walks them.

use super::first::First;
use super::{DecodeError, Format, Limits, Probe, exif};

/// What the chunks before the first pixel say.
#[derive(Default)]
struct Chunks {
    size: (u32, u32),
    depth: u8,
    colour: u8,
    interlaced: bool,
    transparency: bool,
    orientation: Option<u8>,
    animation: Option<u32>,
    /// Frame controls seen; more than none before the pixels makes them the first frame.
    controls: u32,
}

pub(super) fn probe(first: &First<'_>, limits: &Limits) -> Result<Probe, DecodeError> {
    let mut at = 8;
    let mut chunks = Chunks::default();
    loop {
        let head: [u8; 8] = first.array(at)?;
        let length = u64::from(u32::from_be_bytes([head[0], head[1], head[2], head[3]]));
        let name = &head[4..];
        if !name.iter().all(|&b| b.is_ascii_alphanumeric() || b == b'_') {
            return Err(first.broken("broken chunk"));
        }
        match name {
            b"IDAT" => return chunks.finish(first, limits),
            b"IEND" => return Err(first.broken("no pixels")),
            _ => {}
        }
        let body = first.get(at + 8, length)?;
        let sum: [u8; 4] = first.array(at + 8 + length)?;
        let mut hash = crc32fast::Hasher::new();
        hash.update(name);
        hash.update(body);
        if hash.finalize() != u32::from_be_bytes(sum) {
            return Err(first.broken("checksum differs"));
        }
        chunks.take(first, name, body, limits)?;
        at += 12 + length;
    }
}

impl Chunks {
    fn take(&mut self, first: &First<'_>, name: &[u8], body: &[u8], limits: &Limits) -> Result<(), DecodeError> {
        match name {
            b"IHDR" => {
                let &[w3, w2, w1, w0, h3, h2, h1, h0, depth, colour, _, filter, interlace, ..] = body else {
                    return Err(first.broken("short header"));
                };
                if filter != 0 {
                    return Err(first.broken("unknown filter category"));
                }
                self.size = (u32::from_be_bytes([w3, w2, w1, w0]), u32::from_be_bytes([h3, h2, h1, h0]));
                (self.depth, self.colour, self.interlaced) = (depth, colour, interlace != 0);
                limits.check(self.size)?;
            }
            b"tRNS" => {
                let needed = [2, 0, 6, 0].get(usize::from(self.colour)).copied().unwrap_or(0);
                if body.len() < needed {
                    return Err(first.broken("short transparency"));
                }
                self.transparency = matches!(self.colour, 0 | 2 | 3);
            }
            b"eXIf" => self.orientation = Some(exif::orientation(body.strip_prefix(b"Exif\0\0").unwrap_or(body))),
            b"acTL" => {
                let Some(&count) = body.first_chunk() else { return Err(first.broken("short animation control")) };
                let count = u32::from_be_bytes(count);
                // Named twice, or with no frames: no animation.
                self.animation = (self.animation.is_none() && (1..=1 << 31).contains(&count)).then_some(count);
            }
            b"fcTL" => self.controls += 1,
            _ => {}
        }
        Ok(())
    }

    fn finish(self, first: &First<'_>, limits: &Limits) -> Result<Probe, DecodeError> {
        let Self { size: (width, height), depth, colour, .. } = self;
        limits.check(self.size)?;
        let mode = match (depth, colour) {
            _ if width == 0 || height == 0 => return Err(first.broken("a side is 0")),
            (1, 0) => "1",
            (2 | 4 | 8, 0) => "L",
            (16, 0) => "I;16",
            (8 | 16, 2) => "RGB",
            (1 | 2 | 4 | 8, 3) => "P",
            (8, 4) => "LA",
            (16, 4) | (8 | 16, 6) => "RGBA",
            _ => return Err(first.broken(format!("{depth} bits of colour type {colour}"))),
        };
        let has_alpha = self.transparency || matches!(colour, 4 | 6);
        let channels = if matches!(colour, 0 | 4) { 1 } else { 3 };
        let pixels = u64::from(width) * u64::from(height);
        let wanted = match (has_alpha, channels, depth) {
            (true, ..) => 4,
            (_, 1, 16) => 2,
            (_, channels, _) => u64::from(channels),
        };
        // A picture without a control before its pixels is a frame of its own.
        let frames = self.animation.map_or(1, |count| count.saturating_add(u32::from(self.controls == 0)));
        let raw = pixels * [1, 0, 3, 1, 2, 0, 4][usize::from(colour)] * u64::from(depth.div_ceil(8));
        // Whole frames: one as stored, the canvas, and what the canvas held before, which grows.
        let whole = if self.interlaced || frames > 1 { 5 * raw } else { 0 };
        let working_bytes = whole + u64::from(width) * 64 + (1 << 20);
        Ok(Probe {
            format: Format::Png,
            width,
            height,
            channels,
            has_alpha,
            depth,
            mode,
            orientation: self.orientation.unwrap_or(1),
            frames: Some(frames),
            decoded_bytes: pixels * wanted,
            working_bytes,
            input_bytes: first.size(),
        })
    }
}
