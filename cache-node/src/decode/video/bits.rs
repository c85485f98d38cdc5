//! What a packet's own bytes say of it: can decoding start there, and how many pictures does it show?
//!
//! Containers' key flags lie both ways (set at points of gradual refresh and at second fields, missing at usable I pictures), and a
//! packet is not always a picture. This reads no further than headers, and what it cannot read it takes for the harmless case: a
//! start too few makes decoding longer, never wrong.

mod h264;
mod obu;

use super::codec::Codec;
use h264::H264;

/// Whether decoding can start at a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Start {
    #[default]
    No,
    /// Yes, but pictures that are shown before its own may need older packets.
    Open,
    /// Yes, and nothing behind it needs anything older.
    Closed,
}

/// What one packet is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Info {
    pub(super) start: Start,
    /// Pictures it shows.
    pub(super) shows: u32,
    /// HEVC's skipped leading picture: not decodable where decoding starts at the picture before it.
    pub(super) leading: bool,
    /// The second field of a picture whose first is in the packet before.
    pub(super) second_field: bool,
    /// One picture that no other is predicted from, and nothing else. To be taken by [`Parser::tells_disposable`].
    pub(super) disposable: bool,
}

/// Reads the packets of one stream, in order.
pub(super) struct Parser {
    codec: Codec,
    length_bytes: usize,
    h264: H264,
    /// Whether HEVC pictures of more than the lowest layer were met.
    is_layered: bool,
}

impl Parser {
    pub(super) fn new(codec: Codec, extradata: &[u8]) -> Self {
        let mut h264 = H264::default();
        if codec == Codec::H264 {
            h264.extradata(extradata);
        }
        Self { codec, length_bytes: length_bytes(codec, extradata), h264, is_layered: false }
    }

    /// Whether the parameters at hand rule out that a packet is a field of a picture.
    pub(super) fn is_progressive(&self) -> bool {
        self.codec != Codec::H264 || self.h264.is_progressive()
    }

    /// Whether what was said to be disposable is, by all that was met: of fields, each is predicted from the other, and what HEVC calls
    /// no reference is none within its own temporal layer alone (7.4.2.2).
    pub(super) fn tells_disposable(&self) -> bool {
        match self.codec {
            Codec::H264 => self.h264.is_progressive(),
            Codec::Hevc => !self.is_layered,
            _ => false,
        }
    }

    /// What `data` is, which the container flags as a key packet or not.
    pub(super) fn info(&mut self, data: &[u8], is_key: bool) -> Info {
        let flagged = if is_key { Start::Open } else { Start::No };
        match self.codec {
            Codec::H264 => self.h264.info(&nals(data, self.length_bytes)),
            Codec::Hevc => hevc(&nals(data, self.length_bytes), &mut self.is_layered),
            Codec::Vp8 => vp8(data),
            Codec::Vp9 => vp9(data),
            Codec::Av1 => obu::av1(data, flagged),
            Codec::Mpeg1 | Codec::Mpeg2 => mpeg(data, 0, |code| (code[1] >> 3 & 7).wrapping_sub(1)),
            Codec::Mpeg4 => mpeg4(data),
            Codec::Mjpeg => Info { start: Start::Closed, shows: 1, ..Info::default() },
            Codec::Theora => Info { start: flagged, shows: 1, ..Info::default() },
        }
    }
}

/// Bytes of a NAL unit's length; 0 where start codes part them.
fn length_bytes(codec: Codec, extradata: &[u8]) -> usize {
    match (codec, extradata) {
        (Codec::H264, [1, _, _, _, sizes, _, _, ..]) => usize::from(sizes & 3) + 1,
        (Codec::Hevc, [0, 0, 0..=1, ..]) => 0,
        (Codec::Hevc, [0..=1, ..]) if extradata.len() > 22 => usize::from(extradata[21] & 3) + 1,
        _ => 0,
    }
}

/// NAL units (H.264 7.3.1, Annex B; ISO/IEC 14496-15 for those behind lengths), none of them empty.
fn nals(data: &[u8], length_bytes: usize) -> Vec<&[u8]> {
    let mut found = Vec::new();
    if length_bytes > 0 {
        let mut rest = data;
        while let Some((length, behind)) = rest.split_at_checked(length_bytes) {
            let length = length.iter().fold(0, |sum, &byte| sum << 8 | usize::from(byte));
            let (nal, behind) = behind.split_at(length.min(behind.len()));
            found.extend((!nal.is_empty()).then_some(nal));
            rest = behind;
        }
        return found;
    }
    let codes: Vec<usize> = memchr::memmem::find_iter(data, &[0, 0, 1]).collect();
    for (number, code) in codes.iter().enumerate() {
        let end = codes.get(number + 1).copied().unwrap_or(data.len());
        found.extend(data.get(code + 3..end).filter(|nal| !nal.is_empty()));
    }
    found
}

/// HEVC 7.3.1.2 and table 7-1: kinds 8 and 9 are RASL, 16 to 20 clean points, 21 CRA; even ones to 8 are no references; 35 and 38 to 40
/// part pictures, fill up, and comment.
fn hevc(nals: &[&[u8]], is_layered: &mut bool) -> Info {
    let mut info = Info::default();
    let mut disposable = true;
    for nal in nals.iter().filter(|nal| nal.len() > 2) {
        let kind = nal[0] >> 1 & 63;
        disposable &= matches!(kind, 0 | 2 | 4 | 6 | 8 | 35 | 38..=40);
        if kind >= 32 {
            continue;
        }
        *is_layered |= nal[0] & 1 != 0 || nal[1] != 1;
        info.shows += u32::from(nal[2] & 0x80 != 0);
        match kind {
            8 | 9 => info.leading = true,
            16 | 21 => info.start = Start::Open,
            17..=20 => info.start = Start::Closed,
            _ => {}
        }
    }
    info.disposable = disposable && info.shows == 1;
    info
}

/// RFC 6386, 9.1.
fn vp8(data: &[u8]) -> Info {
    let Some(&tag) = data.first() else { return Info::default() };
    let start = if tag & 1 == 0 { Start::Closed } else { Start::No };
    Info { start, shows: u32::from(tag >> 4 & 1), ..Info::default() }
}

/// VP9 6.2 (uncompressed header) over the frames of a superframe (annex B).
fn vp9(data: &[u8]) -> Info {
    let mut info = Info::default();
    for (number, frame) in superframe(data).into_iter().enumerate() {
        let mut bits = Bits::new(frame);
        bits.take(2);
        if bits.take(1) | bits.take(1) << 1 == 3 {
            bits.take(1);
        }
        if bits.flag() {
            info.shows += 1;
            continue;
        }
        let is_key = !bits.flag();
        info.shows += bits.take(1);
        if number == 0 && is_key {
            info.start = Start::Closed;
        }
    }
    info
}

fn superframe(data: &[u8]) -> Vec<&[u8]> {
    let marker = data.last().copied().unwrap_or(0);
    let (size_bytes, count) = (usize::from(marker >> 3 & 3) + 1, usize::from(marker & 7) + 1);
    let index_bytes = 2 + size_bytes * count;
    let mut frames = Vec::new();
    if marker & 0xe0 == 0xc0 && data.len() >= index_bytes && data[data.len() - index_bytes] == marker {
        let (mut rest, index) = data.split_at(data.len() - index_bytes);
        for size in index[1..index_bytes - 1].chunks_exact(size_bytes) {
            let size = size.iter().rev().fold(0, |sum, &byte| sum << 8 | usize::from(byte));
            let Some((frame, behind)) = rest.split_at_checked(size) else { break };
            frames.extend((!frame.is_empty()).then_some(frame));
            rest = behind;
        }
    }
    if frames.is_empty() {
        frames.push(data);
    }
    frames
}

/// Coded pictures of MPEG-1, MPEG-2 and MPEG-4 part 2, by their start code; `kind` is 0 for an I picture.
fn mpeg(data: &[u8], code: u8, kind: impl Fn(&[u8]) -> u8) -> Info {
    let mut info = Info::default();
    for at in memchr::memmem::find_iter(data, &[0, 0, 1, code]) {
        let Some(behind) = data.get(at + 4..at + 6) else { break };
        if info.shows == 0 && kind(behind) == 0 {
            info.start = Start::Open;
        }
        info.shows += 1;
    }
    info
}

/// A packet that only says "as before" shows nothing.
fn mpeg4(data: &[u8]) -> Info {
    let info = mpeg(data, 0xb6, |code| code[0] >> 6);
    if data.len() <= NOT_CODED_BYTES_MAX { Info { shows: 0, ..info } } else { info }
}

/// Most bytes of an MPEG-4 packet that shows nothing.
pub(super) const NOT_CODED_BYTES_MAX: usize = 9;

/// Bits from the highest on; zeros behind the end.
struct Bits<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Bits<'a> {
    fn new(data: &'a [u8]) -> Self {
        Self { data, at: 0 }
    }

    fn is_past_end(&self) -> bool {
        self.at >= self.data.len() * 8
    }

    fn take(&mut self, count: u32) -> u32 {
        (0..count).fold(0, |sum, _| {
            let bit = self.data.get(self.at / 8).map_or(0, |byte| byte >> (7 - self.at % 8) & 1);
            self.at += 1;
            sum << 1 | u32::from(bit)
        })
    }

    fn flag(&mut self) -> bool {
        self.take(1) == 1
    }

    /// Exp-Golomb, unsigned (H.264 9.1).
    fn golomb(&mut self) -> u32 {
        let mut zeros = 0;
        while zeros < 32 && !self.is_past_end() && !self.flag() {
            zeros += 1;
        }
        let base = 1u64.wrapping_shl(zeros) as u32;
        base.wrapping_sub(1).wrapping_add(self.take(zeros))
    }

    /// Exp-Golomb, signed.
    fn signed_golomb(&mut self) -> i32 {
        let code = self.golomb();
        let half = (code / 2) as i32;
        if code & 1 == 1 { half.wrapping_add(1) } else { half.wrapping_neg() }
    }
}

/// Without the bytes that keep start codes out of a NAL unit (H.264 7.4.1), of its first `bytes_max` bytes behind the header.
fn unescaped(nal: &[u8], bytes_max: usize) -> Vec<u8> {
    let body = &nal[1..nal.len().min(bytes_max)];
    let mut out = Vec::with_capacity(body.len());
    let mut zeros = 0;
    for &byte in body {
        if zeros >= 2 && byte == 3 {
            zeros = 0;
            continue;
        }
        zeros = if byte == 0 { zeros + 1 } else { 0 };
        out.push(byte);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: whatever the bytes are, they are read to an end; and what they show is never more than they are.
    #[test]
    fn any_bytes_are_read() {
        let mut state = 7u64;
        let mut byte = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let sparse = (state >> 40).is_multiple_of(3);
            if sparse { (state >> 33) as u8 } else { (state >> 60) as u8 & 1 }
        };
        for codec in Codec::ALL {
            for length in 0..300 {
                let extradata: Vec<u8> = (0..length % 40).map(|_| byte()).collect();
                let data: Vec<u8> = (0..length).map(|_| byte()).collect();
                let mut parser = Parser::new(codec, &extradata);
                let info = parser.info(&data, false);
                assert!(info.shows as usize <= data.len() + 1, "{codec:?} {data:?}");
            }
        }
    }

    /// Promise: NAL units are found behind lengths and between start codes, and a cut one is what is left of it.
    #[test]
    fn nal_units_are_parted() {
        assert_eq!(nals(&[0, 2, 7, 8, 0, 0, 0, 9, 1], 2), [&[7u8, 8][..], &[1]]);
        assert_eq!(nals(&[0, 0, 0, 1, 7, 8, 0, 0, 1, 9], 0), [&[7u8, 8][..], &[9]]);
        assert!(nals(&[0, 0], 0).is_empty());
    }

    /// Promise: a picture is disposable where its units say that no other is predicted from it, and nothing else comes with it; and no
    /// picture of a stream is where fields or temporal layers make that less than it says.
    #[test]
    fn disposable_pictures_are_told() {
        let nal = |bytes: &[u8]| [&[0, 0, 1], bytes].concat();
        let sets = |frames_only: u8| [nal(&[0x67, 66, 0, 10, 0xda, 0x68 | frames_only << 4]), nal(&[0x68, 0xc0])].concat();
        let mut parser = Parser::new(Codec::H264, &sets(1));
        let (needless, needed) = (nal(&[0x01, 0xe0, 0x80]), nal(&[0x41, 0xe0, 0x80]));
        assert!(parser.info(&needless, false).disposable);
        assert!(parser.info(&[nal(&[0x09, 0xf0]), needless.clone()].concat(), false).disposable);
        for other in [needed.clone(), [sets(1), needless.clone()].concat(), [needless.clone(), nal(&[0x0b, 0])].concat()] {
            assert!(!parser.info(&other, false).disposable, "{other:?}");
        }
        assert!(parser.tells_disposable());
        assert!(!Parser::new(Codec::H264, &sets(0)).tells_disposable(), "pictures may be fields");

        let mut parser = Parser::new(Codec::Hevc, &[]);
        assert!(parser.info(&nal(&[0x00, 0x01, 0x80]), false).disposable);
        assert!(!parser.info(&nal(&[0x02, 0x01, 0x80]), false).disposable);
        assert!(parser.tells_disposable());
        parser.info(&nal(&[0x02, 0x02, 0x80]), false);
        assert!(!parser.tells_disposable(), "a higher temporal layer may refer to it");
        assert!(!Parser::new(Codec::Vp9, &[]).tells_disposable());
    }

    /// Promise: a superframe's hidden frames are not counted, and a frame that repeats another is.
    #[test]
    fn vp9_superframes_are_walked() {
        // Frame marker 2, profile 0, not repeated; key, hidden. Then an inter frame that is shown.
        let data = [0b1000_0000, 0b1000_0110, 0b1100_0001, 1, 1, 0b1100_0001];
        assert_eq!(vp9(&data), Info { start: Start::Closed, shows: 1, ..Info::default() });
        assert_eq!(vp9(&[0b1000_1000]), Info { shows: 1, ..Info::default() });
    }
}
