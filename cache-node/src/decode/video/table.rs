//! From packets to frames: which there are, in which order they are shown, and where decoding each begins and ends.

use std::collections::{HashMap, HashSet};

use super::VideoError;
use super::av::{CORRUPT, DISCARD, Decoder, Fed, NO_TIME, Packet, Picture, Stream};
use super::bits::{NOT_CODED_BYTES_MAX, Start};
use super::codec::Codec;
use super::index::{FRAMES_OF_PACKET_MAX, PtsOrigin, ROWS_MAX, Row, SIZES_MAX, TICKS_MAX};
use super::scan::{Scan, Scanned};
use crate::decode::Limits;

/// A frame, in the order in which frames are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Its packet.
    pub(super) tag: u32,
    /// How many frames of the same packet come before it.
    pub(super) nth: u32,
    pub(super) size: u8,
    pub(super) hash: u64,
}

/// The frames that packets promise, by their times; nothing where they do not promise enough.
pub(super) fn predicted(scan: &Scan) -> Option<Vec<Found>> {
    let codec = scan.stream.parameters.codec;
    let needs_start = matches!(codec, Codec::H264 | Codec::Hevc);
    let mut shown = Vec::with_capacity(scan.packets.len());
    let mut has_started = false;
    let mut first_open = None;
    for (number, packet) in scan.packets.iter().enumerate() {
        if packet.flags & CORRUPT != 0 {
            return None;
        }
        match packet.info.start {
            _ if has_started => {}
            Start::No if needs_start => return None,
            Start::No => continue,
            Start::Open => first_open = Some(packet.pts),
            Start::Closed => {}
        }
        has_started = true;
        let is_hidden = packet.info.shows == 0 || packet.flags & DISCARD != 0;
        if packet.info.second_field {
            continue;
        }
        if packet.info.shows > 1 {
            return None;
        }
        if is_hidden {
            continue;
        }
        if packet.pts == NO_TIME {
            return None;
        }
        // A stream's first start may be followed by pictures that need what is not there; decoders pass over them.
        let leads = codec.has_leading_pictures() && first_open.is_some_and(|first| packet.pts < first);
        if leads && scan.is_listed {
            return None;
        }
        if leads && (codec != Codec::Hevc || packet.info.leading) {
            continue;
        }
        shown.push((packet.pts, number as u32));
    }
    if scan.is_listed && !is_listable(scan) {
        return None;
    }
    shown.sort_unstable();
    let apart = shown.windows(2).all(|pair| pair[0].0 < pair[1].0);
    let found = shown.into_iter().map(|(_, tag)| Found { tag, nth: 0, size: 0, hash: 0 });
    apart.then(|| found.collect()).filter(|found: &Vec<Found>| !found.is_empty())
}

/// Whether a sample of a container's table is one shown picture, whatever it holds: by the rules for these codecs in MP4.
fn is_listable(scan: &Scan) -> bool {
    match scan.stream.parameters.codec {
        Codec::H264 | Codec::Hevc | Codec::Vp9 | Codec::Av1 | Codec::Mjpeg => true,
        Codec::Mpeg4 => scan.packets.iter().all(|packet| packet.bytes as usize > NOT_CODED_BYTES_MAX),
        Codec::Vp8 | Codec::Mpeg1 | Codec::Mpeg2 | Codec::Theora => false,
    }
}

/// Finds frames by decoding all of a stream, as a reader from the front would.
pub(super) struct Mapper {
    decoder: Decoder,
    seen: HashMap<u32, u32>,
    limits: Limits,
    mapped: Mapped,
}

/// What comes out of it.
#[derive(Default)]
pub(super) struct Mapped {
    pub(super) found: Vec<Found>,
    pub(super) sizes: Vec<(u32, u32)>,
    pub(super) is_damaged: bool,
    pub(super) first: Option<First>,
}

/// What the first frame says of all.
#[derive(Clone, Copy)]
pub(super) struct First {
    pub(super) format: i32,
    pub(super) colours: super::av::Colours,
}

impl Mapper {
    pub(super) fn open(stream: &Stream, limits: &Limits) -> Result<Self, VideoError> {
        let decoder = Decoder::open(&stream.parameters, false, limits.pixels_max)?;
        Ok(Self { decoder, seen: HashMap::new(), limits: *limits, mapped: Mapped::default() })
    }

    pub(super) fn feed(&mut self, number: u32, packet: &Packet<'_>) -> Result<(), VideoError> {
        let side: Vec<_> = packet.side().collect();
        let fed = Fed { tag: number, flags: packet.flags, data: packet.data, side: &side };
        let (limits, seen, mapped) = (&self.limits, &mut self.seen, &mut self.mapped);
        let complaint = self.decoder.feed(&fed, &mut |picture| mapped.add(&picture, limits, seen))?;
        self.mapped.is_damaged |= complaint.is_some() || packet.flags & CORRUPT != 0;
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<(String, Mapped), VideoError> {
        let (limits, seen, mapped) = (&self.limits, &mut self.seen, &mut self.mapped);
        let complaint = self.decoder.drain(&mut |picture| mapped.add(&picture, limits, seen))?;
        self.mapped.is_damaged |= complaint.is_some();
        Ok((self.decoder.name(), self.mapped))
    }
}

impl Mapped {
    fn add(&mut self, picture: &Picture<'_>, limits: &Limits, seen: &mut HashMap<u32, u32>) -> Result<(), VideoError> {
        within(picture.size(), limits)?;
        let frame = picture.frame().map_err(|format| VideoError::Unsupported(format!("pixel format {format}")))?;
        let Some(tag) = picture.tag() else {
            self.is_damaged = true;
            return Ok(());
        };
        self.is_damaged |= picture.is_damaged();
        let nth = seen.entry(tag).or_default();
        let size = match self.sizes.iter().position(|&size| size == picture.size()) {
            Some(known) => known,
            None => {
                self.sizes.push(picture.size());
                self.sizes.len() - 1
            }
        };
        if self.found.len() >= ROWS_MAX || self.sizes.len() > SIZES_MAX || *nth > FRAMES_OF_PACKET_MAX {
            return Err(VideoError::Unsupported("more frames, or sizes of them, than a clip has".into()));
        }
        self.first = self.first.or(Some(First { format: picture.format(), colours: picture.colours() }));
        self.found.push(Found { tag, nth: *nth, size: size as u8, hash: frame.hash() });
        *nth += 1;
        Ok(())
    }
}

/// Refuses pictures of more pixels than are allowed.
pub(super) fn within((width, height): (u32, u32), limits: &Limits) -> Result<(), VideoError> {
    if u64::from(width) * u64::from(height) > limits.pixels_max {
        return Err(VideoError::Unsupported(format!("{width}x{height} pixels are too many")));
    }
    Ok(())
}

/// Times of the found frames, in ticks; where they come from, and how long the last one lasts.
pub(super) fn times(scan: &Scan, found: &[Found]) -> (Vec<i64>, PtsOrigin, u64) {
    let own: Vec<i64> = found.iter().map(|found| scan.packets[found.tag as usize].pts).collect();
    let known = own.iter().all(|&pts| pts != NO_TIME && pts.unsigned_abs() < TICKS_MAX);
    if known && own.windows(2).all(|pair| pair[0] < pair[1]) {
        let between = own.last().zip(own.first()).map_or(0, |(last, first)| last.abs_diff(*first));
        let mean = between.checked_div(own.len() as u64 - 1).filter(|&mean| mean > 0);
        let stated = found.last().map_or(0, |found| scan.packets[found.tag as usize].duration);
        let stated = u64::try_from(stated).ok().filter(|&ticks| ticks > 0 && ticks < TICKS_MAX);
        let last = stated.or(mean).unwrap_or_else(|| frame_ticks(&scan.stream));
        return (own, PtsOrigin::Container, last);
    }
    let ticks = frame_ticks(&scan.stream);
    let spaced = (0..found.len() as i64).map(|number| number.saturating_mul(ticks as i64)).collect();
    (spaced, PtsOrigin::Synthesized, ticks)
}

/// Ticks of one frame at the container's rate; 25 frames a second where it has none.
fn frame_ticks(stream: &Stream) -> u64 {
    let positive = |number: i32| u128::try_from(number).ok().filter(|&number| number > 0);
    let rate = positive(stream.frame_rate.0).zip(positive(stream.frame_rate.1)).unwrap_or((25, 1));
    let base = positive(stream.time_base.0).zip(positive(stream.time_base.1)).unwrap_or((1, 25));
    let (ticks, whole) = (rate.1 * base.1, rate.0 * base.0);
    // Below 2^62 / 1, and far below `TICKS_MAX` / `ROWS_MAX` for any rate that is one.
    ((ticks + whole / 2) / whole).clamp(1, 1 << 38) as u64
}

/// The rows: each found frame, decoded from the last start that gives it. `dropped` are no starts, whatever they say.
pub(super) fn rows(scan: &Scan, found: &[Found], pts: &[i64], dropped: &HashSet<u32>) -> Vec<Row> {
    let is_start = |&number: &u32| scan.packets[number as usize].info.start != Start::No && !dropped.contains(&number);
    let starts: Vec<u32> = (0..scan.packets.len() as u32).filter(is_start).collect();
    let mut place_of = HashMap::with_capacity(found.len());
    for (place, found) in found.iter().enumerate() {
        place_of.entry(found.tag).or_insert(place);
    }
    let gives = |start: u32, place: usize| match scan.packets[start as usize].info.start {
        Start::Open => place_of.get(&start).is_some_and(|&own| own <= place),
        _ => true,
    };
    let start_of = |tag: u32, place: usize| {
        let until = starts.partition_point(|&start| start <= tag);
        starts[..until].iter().rev().take(STARTS_TRIED).find(|&&start| gives(start, place)).copied().unwrap_or(0)
    };
    let mut rows: Vec<Row> = found
        .iter()
        .zip(pts)
        .enumerate()
        .map(|(place, (&Found { tag, nth, size, hash }, &pts))| {
            let is_halved = scan.packets.get(tag as usize + 1).is_some_and(|next| next.info.second_field);
            Row { pts, tag, nth, start: start_of(tag, place), last: tag + u32::from(is_halved), size, hash }
        })
        .collect();
    // An earlier start is right wherever a later one is; this way a unit is one stretch of frames.
    let mut next = u32::MAX;
    for row in rows.iter_mut().rev() {
        next = next.min(row.start);
        row.start = next;
    }
    rows
}

/// The first packet is right for every frame, so that searching long for better is not worth it.
const STARTS_TRIED: usize = 64;

/// For each packet, whether it is a leading picture of the start before it; [`Row`]s know better where there are any.
pub(super) fn surplus(scan: &Scan) -> Vec<bool> {
    let mut start: Option<&Scanned> = None;
    let is_surplus = |packet| {
        start = Some(packet).filter(|packet: &&Scanned| packet.info.start != Start::No).or(start);
        let leads = start.is_some_and(|start| {
            start.info.start == Start::Open && packet.pts != NO_TIME && start.pts != NO_TIME && packet.pts < start.pts
        });
        leads && scan.stream.parameters.codec.has_leading_pictures()
    };
    scan.packets.iter().map(is_surplus).collect()
}
