//! WebP's first chunk, which holds the size, and the EXIF chunk at its end.

use super::first::First;
use super::{DecodeError, Format, HEADER_BYTES_MAX, Limits, Probe, exif};

const ALPHA: u8 = 0x10;
const EXIF: u8 = 0x08;
const ANIMATED: u8 = 0x02;

pub(super) fn probe(first: &First<'_>, limits: &Limits) -> Result<Probe, DecodeError> {
    // A small lossless picture ends before the thirtieth byte.
    let mut head = [0; 32];
    let found = first.up_to(0, 30)?;
    head[..found.len()].copy_from_slice(found);
    let three = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], 0]);
    let (size, flags) = match &head[12..16] {
        b"VP8 " if head[23..26] == [0x9d, 0x01, 0x2a] => ((three(26) & 0x3fff, three(28) & 0x3fff), 0),
        b"VP8 " => return Err(first.broken("no key frame")),
        b"VP8X" => ((three(24) + 1, three(27) + 1), head[20]),
        b"VP8L" if head[20] == 0x2f => {
            let bits = u32::from_le_bytes([head[21], head[22], head[23], head[24]]);
            let alpha = if bits >> 28 & 1 == 1 { ALPHA } else { 0 };
            (((bits & 0x3fff) + 1, (bits >> 14 & 0x3fff) + 1), alpha)
        }
        _ => return Err(first.broken("unknown first chunk")),
    };
    limits.check(size)?;
    if size.0 == 0 || size.1 == 0 {
        return Err(first.broken("a side is 0"));
    }
    let pixels = u64::from(size.0) * u64::from(size.1);
    let has_alpha = flags & ALPHA != 0;
    // Looked for only where the whole picture is at hand anyway: it comes behind the pixels.
    let orientation = if flags & EXIF != 0 && first.size() <= HEADER_BYTES_MAX { orientation(first)? } else { 1 };
    Ok(Probe {
        format: Format::Webp,
        width: size.0,
        height: size.1,
        channels: 3,
        has_alpha,
        depth: 8,
        mode: if has_alpha { "RGBA" } else { "RGB" },
        orientation,
        frames: if flags & ANIMATED == 0 { Some(1) } else { None },
        decoded_bytes: pixels * if has_alpha { 4 } else { 3 },
        // Two canvases of four bytes a pixel; a lossless frame is held once more while it is decoded, a lossy one by rows.
        working_bytes: pixels * 12 + (4 << 20),
        input_bytes: first.size(),
    })
}

fn orientation(first: &First<'_>) -> Result<u8, DecodeError> {
    let file = first.up_to(0, first.size())?;
    let mut at = 12;
    while let Some(head) = file.get(at..at + 8) {
        let length = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        if &head[..4] == b"EXIF" {
            let body = &file[at + 8..(at + 8).saturating_add(length).min(file.len())];
            return Ok(exif::orientation(body.strip_prefix(b"Exif\0\0").unwrap_or(body)));
        }
        at += 8 + length + length % 2;
    }
    Ok(1)
}
