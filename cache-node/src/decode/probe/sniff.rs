//! Formats by their first bytes.

use super::Format;

/// Bytes that tell every format apart: RIFF and ISO-BMFF name theirs at 8, and a few compatible brands follow.
pub(super) const BYTES: u64 = 64;

/// The format whose mark `first` begins with.
pub(super) fn format(first: &[u8]) -> Format {
    match first {
        [0xff, 0xd8, 0xff, ..] => Format::Jpeg,
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Format::Png,
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Format::Gif,
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Format::Webp,
        [b'I', b'I', 42 | 43, 0, ..] | [b'M', b'M', 0, 42 | 43, ..] => Format::Tiff,
        [b'B', b'M', ..] if is_bitmap(first) => Format::Bmp,
        [_, _, _, _, b'f', b't', b'y', b'p', ..] => by_brand(first),
        _ => Format::Unknown,
    }
}

/// Whether these may be the first bytes of a video: ISO-BMFF (any first box of it), Matroska, AVI, MPEG-TS, Ogg, MPEG program and
/// elementary streams, H.264 and HEVC byte streams.
pub(super) fn is_video(first: &[u8]) -> bool {
    const BOXES: [&[u8]; 8] = [b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"styp", b"pnot"];
    if format(first) != Format::Unknown {
        return false;
    }
    match first {
        [0x1a, 0x45, 0xdf, 0xa3, ..] | [b'O', b'g', b'g', b'S', ..] => true,
        [b'R', b'I', b'F', b'F', _, _, _, _, b'A', b'V', b'I', b' ', ..] => true,
        // A start code, or a leading zero byte before it; of none is the next byte's forbidden bit set (H.264 7.3.1, H.262 6.2.1).
        [0, 0, 1, ..] | [0, 0, 0, 1, ..] => true,
        [_, _, _, _, name @ ..] if name.get(..4).is_some_and(|name| BOXES.contains(&name)) => true,
        // Every 188 bytes (H.222.0 2.4.3.2), or 192 with a time before each packet.
        [0x47, ..] => first.get(188) == Some(&0x47),
        _ => first.get(4) == Some(&0x47) && first.get(196) == Some(&0x47),
    }
}

/// What the bytes look like instead, for the person who finds the message.
pub(super) fn guess(first: &[u8]) -> String {
    let start = first.trim_ascii_start();
    let begins =
        |marks: &[&str]| marks.iter().any(|m| start.len() >= m.len() && start[..m.len()].eq_ignore_ascii_case(m.as_bytes()));
    let looks = if begins(&["<!doctype html", "<html", "<head", "<body"]) {
        "HTML"
    } else if begins(&["<?xml", "<error"]) {
        "XML"
    } else if begins(&["<svg"]) {
        "SVG"
    } else if begins(&["{", "["]) {
        "JSON"
    } else if first.starts_with(&[0x1f, 0x8b]) {
        "gzip"
    } else if first.starts_with(b"PK\x03\x04") {
        "a zip archive"
    } else if first.get(4..8) == Some(b"ftyp") {
        "a video file"
    } else if first.iter().all(|&b| b == 0) {
        "zeros"
    } else if first.iter().all(|&b| b.is_ascii_graphic() || b.is_ascii_whitespace()) {
        "text"
    } else {
        return "not a picture".into();
    };
    format!("not a picture: looks like {looks}")
}

/// "BM" alone begins many a text: the header's own size must be one that exists.
fn is_bitmap(first: &[u8]) -> bool {
    matches!(first.get(14..18), Some([12 | 16 | 40 | 52 | 56 | 64 | 108 | 124, 0, 0, 0]))
}

/// ISO-BMFF: the major brand, then the compatible ones (ISO/IEC 14496-12, 4.3).
fn by_brand(first: &[u8]) -> Format {
    let length = first.get(..4).map_or(0, |l| u32::from_be_bytes([l[0], l[1], l[2], l[3]]) as usize);
    let brands = first.get(8..length.clamp(12, 64).min(first.len())).unwrap_or(&[]);
    let has = |names: &[&[u8]]| brands.chunks_exact(4).any(|brand| names.contains(&brand));
    if has(&[b"avif", b"avis"]) {
        Format::Avif
    } else if has(&[b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1"]) {
        Format::Heic
    } else {
        Format::Unknown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: content decides, and what is no picture is described.
    #[test]
    fn content_decides() {
        for (bytes, want) in [
            (&b"\xff\xd8\xff\xe0"[..], Format::Jpeg),
            (b"\x89PNG\r\n\x1a\n", Format::Png),
            (b"GIF89a", Format::Gif),
            (b"RIFF\0\0\0\0WEBPVP8 ", Format::Webp),
            (b"II*\0", Format::Tiff),
            (b"MM\0*", Format::Tiff),
            (b"\0\0\0\x1cftypavif\0\0\0\0", Format::Avif),
            (b"\0\0\0\x1cftypmif1\0\0\0\0avifmiaf", Format::Avif),
            (b"\0\0\0\x18ftypheic\0\0\0\0", Format::Heic),
            (b"\0\0\0\x18ftypisom\0\0\0\0", Format::Unknown),
            (b"BM is how it begins", Format::Unknown),
            (b"", Format::Unknown),
        ] {
            assert_eq!(format(bytes), want, "{bytes:?}");
        }
        assert_eq!(guess(b"\n <!DOCTYPE HTML><p>"), "not a picture: looks like HTML");
        assert_eq!(guess(b"<?xml version=\"1.0\"?><Error>"), "not a picture: looks like XML");
        assert_eq!(guess(&[0; 9]), "not a picture: looks like zeros");
        assert_eq!(guess(&[1, 2, 3]), "not a picture");
    }
}
