//! An MP4's top level (ISO/IEC 14496-12, 4.2): which parts of the file hold payload alone, and need not be read to list it.

use framecache::ByteRange;

use super::Gone;
use super::av::Reader;

/// What may come first in an MP4 or a QuickTime file.
const FIRST: [&[u8; 4]; 7] = [b"ftyp", b"styp", b"moov", b"mdat", b"free", b"skip", b"wide"];

/// Of more parts than these, or smaller ones, each costs a round trip to pass over, and reading all of it costs less.
const PARTS_MAX: usize = 4096;
const PART_BYTES_MIN: u64 = 256 << 10;

/// The payloads of all `mdat` boxes, rising; nothing if this is no whole MP4, or one that had better be read through.
pub(super) fn payloads(reader: &mut Reader<'_>) -> Result<Option<Vec<ByteRange>>, Gone> {
    let (end, mut at) = (reader.bytes(), 0);
    let mut parts = Vec::new();
    let (mut header, mut has_index) = (Vec::new(), false);
    while at < end {
        reader.peek(ByteRange::at(at, 16).ok_or(Gone)?, &mut header)?;
        let Some((kind, header_bytes, bytes)) = sizes(&header, end - at) else { return Ok(None) };
        if (at == 0 && !FIRST.contains(&&kind)) || bytes < header_bytes || bytes > end - at {
            return Ok(None);
        }
        has_index |= &kind == b"moov";
        if &kind == b"mdat" {
            parts.extend(ByteRange::new(at + header_bytes, at + bytes).filter(|part| !part.is_empty()));
        }
        let is_scattered = parts.len() > 16 && at / (parts.len() as u64) < PART_BYTES_MIN;
        if parts.len() > PARTS_MAX || is_scattered {
            return Ok(None);
        }
        at += bytes;
    }
    Ok((has_index && !parts.is_empty()).then_some(parts))
}

/// A box's kind, and the bytes of its header and of the whole.
fn sizes(header: &[u8], rest: u64) -> Option<([u8; 4], u64, u64)> {
    let (size, behind) = header.split_first_chunk()?;
    let (kind, behind) = behind.split_first_chunk()?;
    Some(match u32::from_be_bytes(*size) {
        0 => (*kind, 8, rest),
        1 => (*kind, 16, u64::from_be_bytes(*behind.first_chunk()?)),
        size => (*kind, 8, size.into()),
    })
}
