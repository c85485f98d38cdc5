//! The marker walk of Pillow's `JpegImagePlugin`: what it refuses is refused, what it lets pass is libjpeg's to judge.
//!
//! Both the node and the worker walk: the node to refuse and to reserve, the worker because it trusts nobody's arithmetic.

use super::{DecodeError, Format, Limits, Probe, exif};
use crate::decode::probe::HEADER_BYTES_MAX;

/// What the frame header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    width: u32,
    height: u32,
    layers: u8,
    orientation: u8,
    /// Coefficients of the whole picture are held: progressive, or components in scans of their own.
    scans: bool,
}

/// Width, height and components of a stream that lies in memory whole.
pub(in crate::decode) fn frame_of(stream: &[u8]) -> Result<(u32, u32, u8), DecodeError> {
    let Header { width, height, layers, .. } = header(stream, stream.len() as u64)?;
    Ok((width, height, layers))
}

/// Walks from the start of image to the first scan.
pub(super) fn header(first: &[u8], size: u64) -> Result<Header, DecodeError> {
    let mut walk = Walk { bytes: first, size, at: 3, frame: None, orientation: None };
    // As in Pillow, the byte read last decides: 0xff begins a marker, anything else is junk to pass over.
    let mut last = 0xff;
    loop {
        if last != 0xff {
            last = walk.byte()?;
            continue;
        }
        last = match walk.byte()? {
            0xff => 0xff,
            // No segment follows: stuffed 0xff00, SOI, EOI, RST, JPG and its extensions.
            0x00 | 0xc8 | 0xd0..=0xd9 | 0xf0..=0xfd => walk.byte()?,
            0x01..=0xbf => return Err(broken("no marker found")),
            SOS => return walk.finish(),
            marker => {
                walk.segment(marker)?;
                walk.byte()?
            }
        };
    }
}

impl Header {
    /// Refuses what is too large (before any allocation), and says what the rest costs.
    pub(super) fn probe(self, size: u64, limits: &Limits) -> Result<Probe, DecodeError> {
        let Self { width, height, layers, orientation, scans } = self;
        limits.check((width, height))?;
        let pixels = u64::from(width) * u64::from(height);
        let decoded_bytes = pixels * u64::from(layers);
        // Two bytes a coefficient; sides are padded to whole blocks of up to 32 (4 samples of 8).
        let padded = u64::from(width.next_multiple_of(32)) * u64::from(height.next_multiple_of(32));
        let working_bytes = if scans { padded * u64::from(layers) * 2 } else { u64::from(width) * 256 };
        let mode = match layers {
            1 => "L",
            3 => "RGB",
            _ => "CMYK",
        };
        Ok(Probe {
            format: Format::Jpeg,
            width,
            height,
            channels: layers,
            has_alpha: false,
            depth: 8,
            mode,
            orientation,
            frames: Some(1),
            decoded_bytes,
            working_bytes,
            input_bytes: size,
        })
    }
}

struct Walk<'a> {
    bytes: &'a [u8],
    size: u64,
    at: usize,
    frame: Option<Header>,
    orientation: Option<u8>,
}

impl<'a> Walk<'a> {
    fn byte(&mut self) -> Result<u8, DecodeError> {
        self.take(1).map(|bytes| bytes[0])
    }

    /// The next `count` bytes; tells a cut object from one of which more must be read.
    fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let end = self.at + count;
        if end as u64 > self.size {
            return Err(broken("truncated in the header"));
        }
        if end as u64 > HEADER_BYTES_MAX {
            return Err(broken("no picture within the first 16 MiB"));
        }
        if end > self.bytes.len() {
            // Doubling, so that a long header costs a linear number of bytes looked at.
            let bytes = (end as u64).max(2 * self.bytes.len() as u64).min(self.size).min(HEADER_BYTES_MAX);
            return Err(DecodeError::NeedMore { bytes });
        }
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn segment(&mut self, marker: u8) -> Result<(), DecodeError> {
        let length = self.take(2)?;
        let length = usize::from(u16::from_be_bytes([length[0], length[1]])).saturating_sub(2);
        let body = self.take(length)?;
        match marker {
            0xc0..=0xcf | DHP if !matches!(marker, DHT | DAC) => {
                self.frame = Some(frame(marker, body)?);
            }
            APP0 if body.starts_with(b"JFIF") && body.len() < 7 => return Err(broken("short JFIF segment")),
            APP14 if body.starts_with(b"Adobe") && body.len() < 7 => return Err(broken("short Adobe segment")),
            APP1 if body.starts_with(b"Exif\0\0") && self.orientation.is_none() => {
                self.orientation = Some(exif::orientation(&body[6..]));
            }
            _ => {}
        }
        Ok(())
    }

    /// At the first scan: Pillow's last word on the frame, and a look at how many components the scan holds.
    fn finish(mut self) -> Result<Header, DecodeError> {
        let scan = self.take(3)?;
        let components = scan[2];
        let frame = self.frame.ok_or_else(|| broken("no frame header before the first scan"))?;
        if frame.width == 0 || frame.height == 0 {
            return Err(broken("a side is 0"));
        }
        let scans = frame.scans || components < frame.layers;
        Ok(Header { scans, orientation: self.orientation.unwrap_or(1), ..frame })
    }
}

/// A frame header's body (ITU-T T.81, B.2.2). As in Pillow, the last one before the scan counts.
fn frame(marker: u8, body: &[u8]) -> Result<Header, DecodeError> {
    let &[bits, h1, h0, w1, w0, layers, ..] = body else { return Err(broken("short frame header")) };
    if bits != 8 {
        return Err(DecodeError::Unsupported { format: Format::Jpeg, reason: format!("{bits} bits per sample") });
    }
    if !matches!(layers, 1 | 3 | 4) {
        return Err(DecodeError::Unsupported { format: Format::Jpeg, reason: format!("{layers} components") });
    }
    let (width, height) = (u16::from_be_bytes([w1, w0]).into(), u16::from_be_bytes([h1, h0]).into());
    let scans = matches!(marker, 0xc2 | 0xc6 | 0xca | 0xce);
    Ok(Header { width, height, layers, orientation: 1, scans })
}

fn broken(reason: &str) -> DecodeError {
    DecodeError::undecodable(Format::Jpeg, reason)
}

const SOS: u8 = 0xda;
const DHT: u8 = 0xc4;
const DAC: u8 = 0xcc;
const DHP: u8 = 0xde;
const APP0: u8 = 0xe0;
const APP1: u8 = 0xe1;
const APP14: u8 = 0xee;

#[cfg(test)]
mod tests {
    use super::*;

    const BOMB: &[u8] =
        b"\xff\xd8\xff\xc0\x00\x11\x08\xff\xdc\xff\xdc\x03\x01\x22\x00\x02\x11\x01\x03\x11\x01\xff\xda\x00\x0c\x03";

    fn judged(first: &[u8], size: u64) -> Result<Probe, DecodeError> {
        crate::decode::probe(first, size, &Limits::default())
    }

    /// Promise: 65,500 x 65,500 is refused from the header.
    #[test]
    fn bomb_is_refused() {
        let answer = judged(BOMB, 1 << 20);
        assert!(matches!(answer, Err(DecodeError::TooLarge { width: 65_500, height: 65_500, limit: 178_956_970 })), "{answer:?}");
    }

    /// Promise: a header that goes on is told from one that is cut, and asking again with what is asked for ends.
    #[test]
    fn longer_header_asks_for_more() {
        let mut picture = b"\xff\xd8".to_vec();
        for _ in 0..40 {
            picture.extend(b"\xff\xe2\xff\xff");
            picture.resize(picture.len() + 0xfffd, 7);
        }
        picture.extend(b"\xff\xc0\x00\x11\x08\x00\x10\x00\x20\x03\x01\x22\x00\x02\x11\x01\x03\x11\x01\xff\xda\x00\x0c\x03");
        let (mut have, mut rounds) = (64, 0);
        let probe = loop {
            match judged(&picture[..have], picture.len() as u64) {
                Err(DecodeError::NeedMore { bytes }) => {
                    assert!(bytes > have as u64 && bytes <= picture.len() as u64);
                    have = bytes as usize;
                    rounds += 1;
                }
                other => break other.expect("probe"),
            }
        };
        assert_eq!((probe.width, probe.height, probe.channels), (32, 16, 3));
        assert!(rounds <= 16, "{rounds} rounds");
        let cut = judged(&picture[..1000], 1000);
        assert!(matches!(cut, Err(DecodeError::Undecodable { format: Format::Jpeg, .. })), "{cut:?}");
    }

    /// Promise: junk without end is given up, not read to its end.
    #[test]
    fn endless_junk_is_refused() {
        let mut junk = b"\xff\xd8\xff\xd8".to_vec();
        junk.resize(HEADER_BYTES_MAX as usize + 10, 1);
        assert!(matches!(judged(&junk, 1 << 40), Err(DecodeError::Undecodable { .. })));
    }

    /// Promise: no first bytes panic the node.
    #[test]
    fn every_cut_and_flip_is_answered() {
        for end in 0..BOMB.len() {
            let _ = judged(&BOMB[..end], end as u64);
            let _ = judged(&BOMB[..end], 1 << 20);
            for bit in 0..8 {
                let mut flipped = BOMB.to_vec();
                flipped[end] ^= 1 << bit;
                let _ = judged(&flipped, flipped.len() as u64);
            }
        }
    }
}
