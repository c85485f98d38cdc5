//! AVIF's boxes (ISO/IEC 14496-12 and 23000-22): size, depth, alpha and how the picture is turned, without decoding.

use super::first::First;
use super::{DecodeError, Format, Limits, Probe};

/// Most boxes of the file itself that are passed over; writers put two or three before the one that counts.
const BOXES_MAX: u32 = 1000;

/// What the boxes say.
struct Found {
    size: (u32, u32),
    orientation: u8,
    sequence: bool,
}

pub(super) fn probe(first: &First<'_>, limits: &Limits) -> Result<Probe, DecodeError> {
    let brand: [u8; 4] = first.array(8)?;
    // A sequence's size is its track's, a still's its primary item's.
    let sequence = &brand == b"avis";
    let (mut at, mut passed) = (0, 0);
    let body = loop {
        if at >= first.size() || passed == BOXES_MAX {
            return Err(first.broken("no picture among the boxes"));
        }
        passed += 1;
        let (kind, start, end) = outer(first, at)?;
        if &kind == if sequence { b"moov" } else { b"meta" } {
            break first.get(start, end - start)?;
        }
        at = end;
    };
    let found = if sequence { movie(body) } else { still(body) };
    let Some(Found { size, orientation, sequence }) = found else { return Err(first.broken("no size among the boxes")) };
    limits.check(size)?;
    if size.0 == 0 || size.1 == 0 {
        return Err(first.broken("a side is 0"));
    }
    // The configuration record stands behind its name: marker, profile, then the bits for depth and colour.
    let bits = body.windows(4).position(|name| name == b"av1C").and_then(|at| body.get(at + 6)).copied().unwrap_or(0);
    let depth = match (bits & 0x40 != 0, bits & 0x20 != 0) {
        (false, _) => 8,
        (true, false) => 10,
        (true, true) => 12,
    };
    let has_alpha = [&b"auxid:1"[..], b"auxiliary:alpha"].iter().any(|name| body.windows(name.len()).any(|here| here == *name));
    let gray = bits & 0x10 != 0;
    let mode = match (gray, has_alpha) {
        (true, true) => "LA",
        (true, false) => "L",
        (false, true) => "RGBA",
        (false, false) => "RGB",
    };
    let pixels = u64::from(size.0) * u64::from(size.1);
    let planes = if has_alpha { 4 } else { 3 } * u64::from(if depth > 8 { 2u8 } else { 1 });
    Ok(Probe {
        format: Format::Avif,
        width: size.0,
        height: size.1,
        channels: if gray { 1 } else { 3 },
        has_alpha,
        depth,
        mode,
        orientation,
        frames: if sequence { None } else { Some(1) },
        decoded_bytes: pixels * if has_alpha { 4 } else { 3 },
        // A still: the planes as decoded, as libavif keeps them, and the filters' between; a sequence refers to eight others.
        working_bytes: pixels * planes * if sequence { 11 } else { 3 } + (24 << 20),
        input_bytes: first.size(),
    })
}

/// A box of the file itself: its kind, and where its content lies.
fn outer(first: &First<'_>, at: u64) -> Result<([u8; 4], u64, u64), DecodeError> {
    let head: [u8; 8] = first.array(at)?;
    let kind = [head[4], head[5], head[6], head[7]];
    let (length, header) = match u32::from_be_bytes([head[0], head[1], head[2], head[3]]) {
        0 => (first.size() - at, 8),
        1 => (u64::from_be_bytes(first.array(at + 8)?), 16),
        length => (length.into(), 8),
    };
    let end = at.saturating_add(length);
    if length < header || end > first.size() {
        return Err(first.broken("truncated box"));
    }
    Ok((kind, at + header, end))
}

/// The boxes within a box, by kind and content; ends at the first that does not fit.
fn boxes(mut bytes: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    std::iter::from_fn(move || {
        let head = bytes.get(..8)?;
        let stated = u32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let length = if stated == 0 { bytes.len() } else { stated };
        let (this, rest) = bytes.split_at_checked(length.max(8))?;
        bytes = rest;
        Some((&this[4..8], &this[8..]))
    })
}

fn inner<'a>(bytes: &'a [u8], kind: &[u8]) -> Option<&'a [u8]> {
    boxes(bytes).find(|(name, _)| *name == kind).map(|(_, body)| body)
}

fn number(bytes: &[u8], at: usize, length: usize) -> Option<u32> {
    Some(bytes.get(at..at + length)?.iter().fold(0, |value, &byte| value << 8 | u32::from(byte)))
}

/// The primary item's size and turns.
fn still(meta: &[u8]) -> Option<Found> {
    let meta = meta.get(4..)?;
    let primary = inner(meta, b"pitm")?;
    let primary = number(primary, 4, if primary.first()? == &0 { 2 } else { 4 })?;
    let properties = inner(meta, b"iprp")?;
    let all: Vec<_> = boxes(inner(properties, b"ipco")?).collect();
    let (mut size, mut turn, mut mirror) = (None, None, None);
    for index in boxes(properties).filter(|(name, _)| *name == b"ipma").find_map(|(_, body)| properties_of(body, primary))? {
        let Some(&(name, body)) = usize::from(index).checked_sub(1).and_then(|index| all.get(index)) else { continue };
        match name {
            b"ispe" => size = Some((number(body, 4, 4)?, number(body, 8, 4)?)),
            b"irot" => turn = body.first().map(|byte| byte & 3),
            b"imir" => mirror = body.first().map(|byte| byte & 1),
            _ => {}
        }
    }
    Some(Found { size: size?, orientation: orientation(turn.unwrap_or(0), mirror), sequence: false })
}

/// Indices of an item's properties, from 1.
fn properties_of(ipma: &[u8], item: u32) -> Option<Vec<u16>> {
    let (version, wide) = (*ipma.first()?, ipma.get(3)? & 1 == 1);
    let (id_bytes, index_bytes) = (if version == 0 { 2 } else { 4 }, if wide { 2 } else { 1 });
    let mut at = 8;
    for _ in 0..number(ipma, 4, 4)? {
        let id = number(ipma, at, id_bytes)?;
        let count = usize::from(*ipma.get(at + id_bytes)?);
        at += id_bytes + 1;
        let index =
            |n: usize| number(ipma, at + n * index_bytes, index_bytes).map(|v| v as u16 & if wide { 0x7fff } else { 0x7f });
        if id == item {
            return (0..count).map(index).collect();
        }
        at += count * index_bytes;
    }
    None
}

/// Quarter turns against the clock, then a mirror, as one EXIF orientation, as Pillow reports it.
fn orientation(turn: u8, mirror: Option<u8>) -> u8 {
    match (turn, mirror) {
        (0, None) => 1,
        (0, Some(0)) => 4,
        (0, Some(_)) => 2,
        (1, None) => 8,
        (1, Some(0)) => 5,
        (1, Some(_)) => 7,
        (2, None) => 3,
        (2, Some(0)) => 2,
        (2, Some(_)) => 4,
        (_, None) => 6,
        (_, Some(0)) => 7,
        (_, Some(_)) => 5,
    }
}

/// The first track of pictures that is nobody's alpha.
fn movie(moov: &[u8]) -> Option<Found> {
    let tracks = boxes(moov).filter(|(name, _)| *name == b"trak").map(|(_, body)| body);
    let is_colour = |track: &&[u8]| {
        let handler = inner(track, b"mdia").and_then(|media| inner(media, b"hdlr")).and_then(|handler| handler.get(8..12));
        let auxiliary = inner(track, b"tref").is_some_and(|references| inner(references, b"auxl").is_some());
        handler == Some(b"pict") && !auxiliary
    };
    let header = inner({ tracks }.find(is_colour)?, b"tkhd")?;
    let at = if header.first()? == &0 { 76 } else { 88 };
    // Numbers of 16.16 bits.
    let size = (number(header, at, 4)? >> 16, number(header, at + 4, 4)? >> 16);
    Some(Found { size, orientation: 1, sequence: true })
}
