//! H.264: which picture, and which field of it, a packet holds.

use std::collections::HashMap;

use super::{Bits, Info, Start, nals, unescaped};

/// Parameter sets as they were met, and the field that waits for its other half.
#[derive(Default)]
pub(super) struct H264 {
    sequences: [Option<Sequence>; SEQUENCES],
    /// Picture parameter set to sequence parameter set.
    pictures: HashMap<u32, u32>,
    first_field: Option<(u32, u32)>,
}

const SEQUENCES: usize = 32;

/// More picture parameter sets than a stream may have (7.4.2.2) are no stream's.
const PICTURES: u32 = 256;

/// What slice headers cannot be read without.
#[derive(Clone, Copy)]
struct Sequence {
    frame_number_bits: u32,
    frames_only: bool,
    separate_planes: bool,
}

impl H264 {
    pub(super) fn is_progressive(&self) -> bool {
        let mut known = self.sequences.iter().flatten().peekable();
        known.peek().is_some() && known.all(|sequence| sequence.frames_only)
    }

    /// Parameter sets that travel beside the packets: an avcC box (ISO/IEC 14496-15, 5.3.3), or NAL units.
    pub(super) fn extradata(&mut self, bytes: &[u8]) {
        let [1, _, _, _, _, count, rest @ ..] = bytes else {
            return nals(bytes, 0).into_iter().for_each(|nal| self.parameters(nal));
        };
        let mut rest = self.sets(rest, count & 31);
        if let Some((&count, behind)) = rest.split_first() {
            rest = behind;
            self.sets(rest, count);
        }
    }

    fn sets<'a>(&mut self, mut rest: &'a [u8], count: u8) -> &'a [u8] {
        for _ in 0..count {
            let Some((length, behind)) = rest.split_first_chunk() else { return &[] };
            let Some((nal, behind)) = behind.split_at_checked(u16::from_be_bytes(*length).into()) else { return &[] };
            if !nal.is_empty() {
                self.parameters(nal);
            }
            rest = behind;
        }
        rest
    }

    fn parameters(&mut self, nal: &[u8]) {
        match nal[0] & 31 {
            7 => self.sequence(&unescaped(nal, SEQUENCE_BYTES_MAX)),
            8 => {
                let body = unescaped(nal, 32);
                let mut bits = Bits::new(&body);
                let (picture, sequence) = (bits.golomb(), bits.golomb());
                if picture < PICTURES {
                    self.pictures.insert(picture, sequence);
                }
            }
            _ => {}
        }
    }

    /// 7.3.2.1.1, up to whether pictures may be fields.
    fn sequence(&mut self, body: &[u8]) {
        let mut bits = Bits::new(body);
        let profile = bits.take(8);
        bits.take(16);
        let id = bits.golomb() as usize;
        let mut separate_planes = false;
        if [100, 110, 122, 244, 44, 83, 86, 118, 128].contains(&profile) {
            let chroma = bits.golomb();
            separate_planes = chroma == 3 && bits.flag();
            bits.golomb();
            bits.golomb();
            bits.flag();
            if bits.flag() {
                for list in 0..if chroma == 3 { 12 } else { 8 } {
                    if bits.flag() {
                        scaling_list(&mut bits, if list < 6 { 16 } else { 64 });
                    }
                }
            }
        }
        let frame_number_bits = bits.golomb().saturating_add(4);
        match bits.golomb() {
            0 => drop(bits.golomb()),
            1 => {
                bits.flag();
                bits.golomb();
                bits.golomb();
                for _ in 0..bits.golomb().min(256) {
                    bits.golomb();
                }
            }
            _ => {}
        }
        bits.golomb();
        bits.flag();
        bits.golomb();
        bits.golomb();
        let frames_only = bits.flag();
        if let Some(place) = self.sequences.get_mut(id).filter(|_| frame_number_bits <= 16) {
            *place = Some(Sequence { frame_number_bits, frames_only, separate_planes });
        }
    }

    pub(super) fn info(&mut self, nals: &[&[u8]]) -> Info {
        let mut info = Info::default();
        let (mut is_idr, mut all_intra, mut any_slice) = (false, true, false);
        let mut recovery = None;
        let (mut before, mut fields) = (None, 0);
        let mut disposable = true;
        for nal in nals {
            // Table 7-1: slices of no reference, delimiters, fillers and messages.
            disposable &= matches!(nal[0] & 0x7f, 1 | 6 | 9 | 12);
            match nal[0] & 31 {
                7 | 8 => self.parameters(nal),
                6 => recovery = recovery_frames(nal).or(recovery),
                kind @ (1 | 2 | 5) => {
                    any_slice = true;
                    is_idr |= kind == 5;
                    let (is_intra, picture) = self.slice(nal);
                    all_intra &= is_intra;
                    if before != Some(picture) {
                        before = Some(picture);
                        if self.completes(picture) {
                            info.second_field |= fields == 0 && info.shows == 0;
                            fields += 1;
                        } else {
                            fields += u32::from(picture.1 != 0);
                            info.shows += 1;
                        }
                    }
                }
                _ => {}
            }
        }
        info.start = match recovery {
            _ if is_idr => Start::Closed,
            // Behind others the picture is whole only later: a gradual refresh.
            Some(frames) => {
                if frames == 0 && !info.second_field {
                    Start::Open
                } else {
                    Start::No
                }
            }
            None if any_slice && all_intra && !info.second_field => Start::Open,
            None => Start::No,
        };
        info.disposable = disposable && info.shows == 1 && fields == 0 && recovery.is_none();
        info
    }

    /// 7.3.3: whether it is an I slice; its frame's number, and its field: 0 none, 1 top, 2 bottom.
    fn slice(&self, nal: &[u8]) -> (bool, (u32, u32)) {
        let body = unescaped(nal, 40);
        let mut bits = Bits::new(&body);
        bits.golomb();
        let is_intra = bits.golomb() % 5 == 2;
        let sequence = self.pictures.get(&bits.golomb()).and_then(|&id| *self.sequences.get(id as usize)?);
        let unknown = Sequence { frame_number_bits: 4, frames_only: true, separate_planes: false };
        let sequence = sequence.unwrap_or(unknown);
        if sequence.separate_planes {
            bits.take(2);
        }
        let number = bits.take(sequence.frame_number_bits);
        let field = if !sequence.frames_only && bits.flag() { 1 + bits.take(1) } else { 0 };
        (is_intra, (number, field))
    }

    /// Whether a new picture is the other field of the one before.
    fn completes(&mut self, picture: (u32, u32)) -> bool {
        let (number, field) = picture;
        let completes = field != 0 && self.first_field.is_some_and(|(first, other)| first == number && other != field);
        self.first_field = (field != 0 && !completes).then_some(picture);
        completes
    }
}

/// A longer sequence parameter set is none (scaling lists and all take 500 bytes).
const SEQUENCE_BYTES_MAX: usize = 4096;

fn scaling_list(bits: &mut Bits<'_>, count: usize) {
    let (mut last, mut next) = (8i32, 8i32);
    for _ in 0..count {
        if next != 0 {
            next = last.wrapping_add(bits.signed_golomb()).wrapping_add(256) % 256;
        }
        if next != 0 {
            last = next;
        }
    }
}

/// The recovery point message (D.1.8): frames until the picture is whole.
fn recovery_frames(nal: &[u8]) -> Option<u32> {
    let body = unescaped(nal, MESSAGES_BYTES_MAX);
    let mut rest = &body[..];
    let mut found = None;
    while rest.len() > 2 {
        let mut number = || {
            let mut sum = 0usize;
            loop {
                let (&byte, behind) = rest.split_first()?;
                rest = behind;
                sum += usize::from(byte);
                if byte != 255 {
                    return Some(sum);
                }
            }
        };
        let (Some(kind), Some(length)) = (number(), number()) else { break };
        if kind == 6 && !rest.is_empty() {
            found = Some(Bits::new(rest).golomb());
        }
        rest = rest.get(length..).unwrap_or(&[]);
    }
    found
}

/// Longer messages are not searched: they are captions and pictures, and the point stands before them.
const MESSAGES_BYTES_MAX: usize = 64 << 10;
