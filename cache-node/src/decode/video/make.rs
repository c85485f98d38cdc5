//! The making of an index, as sure as it is wanted and no dearer.

use std::collections::HashSet;

use bytes::Bytes;
use framecache::ByteRange;

use super::av::{self, CORRUPT, Colours, DISCARD, Decoder, Fed, KEY, Reader};
use super::bits::Start;
use super::frame::Sampling;
use super::index::{Facts, Kept, PacketRow, Ratio, Trust, VideoIndex};
use super::scan::{self, Scan};
use super::table::{self, First, Found, Mapped, Mapper};
use super::unit::{DecodeEnd, decode};
use super::{Input, VideoError};
use crate::decode::Limits;

/// Makes the index of a clip, of at least the wanted trust: predicted where that is enough and can be done, and mapped otherwise.
///
/// Predicted reads only the header of an MP4 and its first picture, and other containers once; mapped reads and decodes all once; proved
/// twice. Blocks on the input and computes; takes memory for the table and up to 64 MiB of the object at a time, and twice a unit's
/// bytes where it proves. A unit that is too long for a [package](super::PACKAGE_BYTES_MAX) cannot be proved and leaves the whole at
/// mapped, which [answers](VideoIndex::answers) for it all the same.
pub fn make(input: &mut dyn Input, trust: Trust, limits: &Limits) -> Result<VideoIndex, VideoError> {
    make_stream(input, None, trust, limits)
}

/// The same of one stream of the container, by its index there; of FFmpeg's best video stream, if not given.
///
/// # Errors
/// As [`make`]; [`VideoError::Unsupported`], naming those that there are, where it is no video stream.
pub fn make_stream(input: &mut dyn Input, which: Option<u32>, trust: Trust, limits: &Limits) -> Result<VideoIndex, VideoError> {
    av::warm_up();
    let mut index = made(input, which, trust, limits)?;
    index.kept.made_for = trust;
    Ok(index)
}

fn made(input: &mut dyn Input, which: Option<u32>, trust: Trust, limits: &Limits) -> Result<VideoIndex, VideoError> {
    if trust == Trust::Predicted {
        // What the short way cannot do the long way can, or says why it cannot.
        match listed(input, which, limits) {
            Ok(Some(index)) => return Ok(index),
            Ok(None) | Err(VideoError::Undecodable(_) | VideoError::Unsupported(_)) => {}
            Err(error) => return Err(error),
        }
        let scan = scan::read(Reader::new(input), which, limits, &mut |_, _, _| Ok(()))?;
        if let Some(index) = predicted(input.bytes(), scan, limits)? {
            return Ok(index);
        }
    }
    mapped(input, which, trust, limits)
}

/// From an MP4's header.
fn listed(input: &mut dyn Input, which: Option<u32>, limits: &Limits) -> Result<Option<VideoIndex>, VideoError> {
    let Some(mut scan) = scan::listed(Reader::new(input), which, limits)? else { return Ok(None) };
    let Some(found) = table::predicted(&scan) else { return Ok(None) };
    // Some facts are in no header: one picture is decoded for them, the first that can be.
    let Some(number) = scan.packets.iter().position(|packet| packet.info.start != Start::No) else { return Ok(None) };
    let run = scan.runs[scan.packets[number].runs_at as usize];
    let data = fetch(input, ByteRange::at(run.start, run.bytes()).ok_or(super::Gone)?)?;
    let mut decoder = Decoder::open(&scan.stream.parameters, true, limits.pixels_max)?;
    let fed = Fed { tag: 0, flags: KEY, data: &data, side: &[] };
    let mut first = None;
    let mut look = |picture: av::Picture<'_>| {
        if !picture.is_damaged() && first.is_none() {
            first = Some((picture.size(), First { format: picture.format(), colours: picture.colours() }));
        }
        Ok::<(), VideoError>(())
    };
    let complaint = decoder.feed(&fed, &mut look)?.or(decoder.drain(&mut look)?);
    let (Some((size, first)), None) = (first, complaint) else { return Ok(None) };
    table::within(size, limits)?;
    let decoder = decoder.name();
    (scan.stream.parameters.width, scan.stream.parameters.height) = (size.0 as i32, size.1 as i32);
    let known = Known { decoder, first, sizes: vec![size], is_damaged: false, trust: Trust::Predicted };
    let index = Table { object_bytes: input.bytes(), scan, found, known }.index(&HashSet::new());
    Ok(index.filter(is_servable))
}

/// From all packets, undecoded.
fn predicted(object_bytes: u64, scan: Scan, limits: &Limits) -> Result<Option<VideoIndex>, VideoError> {
    let Some(found) = table::predicted(&scan) else { return Ok(None) };
    let parameters = &scan.stream.parameters;
    let size = u32::try_from(parameters.width).ok().zip(u32::try_from(parameters.height).ok());
    let Some(size) = size.filter(|&(width, height)| width > 0 && height > 0) else { return Ok(None) };
    table::within(size, limits)?;
    let decoder = Decoder::open(parameters, true, limits.pixels_max)?.name();
    let first = First { format: parameters.format, colours: scan.stream.colours };
    let known = Known { decoder, first, sizes: vec![size], is_damaged: false, trust: Trust::Predicted };
    let index = Table { object_bytes, scan, found, known }.index(&HashSet::new());
    Ok(index.filter(is_servable))
}

fn is_servable(index: &VideoIndex) -> bool {
    Sampling::of(&index.facts().format).is_some()
}

/// By decoding all of it, and then each unit by itself if that is wanted.
fn mapped(input: &mut dyn Input, which: Option<u32>, trust: Trust, limits: &Limits) -> Result<VideoIndex, VideoError> {
    let mut mapper = None;
    let object_bytes = input.bytes();
    let scan = scan::read(Reader::new(input), which, limits, &mut |stream, number, packet| {
        let mapper = match &mut mapper {
            Some(mapper) => mapper,
            none => none.insert(Mapper::open(stream, limits)?),
        };
        mapper.feed(number, packet)
    })?;
    let none = || VideoError::Undecodable("no frame".into());
    if let Some(listed) = scan.stream.frames.filter(|_| is_cut(&scan)) {
        // A strict reader refuses it, and so does this one: frames that were promised are not there.
        let there = scan.packets.len() - 1;
        return Err(VideoError::Undecodable(format!("the file is cut: {there} of {listed} listed frames are whole")));
    }
    let (decoder, Mapped { found, sizes, is_damaged, first }) = mapper.ok_or_else(none)?.finish()?;
    let first = first.ok_or_else(none)?;
    let known = Known { decoder, first, sizes, is_damaged, trust: Trust::Mapped };
    let table = Table { object_bytes, scan, found, known };
    let index = table.index(&HashSet::new()).ok_or_else(none)?;
    if trust == Trust::Proved { prove(input, &table, index, limits) } else { Ok(index) }
}

/// Whether the last packet ends where the file does and its container's list does not.
fn is_cut(scan: &Scan) -> bool {
    let promised = scan.stream.frames.unwrap_or(0);
    scan.packets.last().is_some_and(|last| last.flags & CORRUPT != 0) && promised > scan.packets.len() as u64
}

/// What is known besides the packets.
struct Known {
    decoder: String,
    first: First,
    sizes: Vec<(u32, u32)>,
    is_damaged: bool,
    trust: Trust,
}

/// All that an index is made of.
struct Table {
    object_bytes: u64,
    scan: Scan,
    found: Vec<Found>,
    known: Known,
}

impl Table {
    /// The index, if decoding never starts at `dropped`.
    fn index(&self, dropped: &HashSet<u32>) -> Option<VideoIndex> {
        let Self { object_bytes, scan, found, known } = self;
        let (pts, origin, last_ticks) = table::times(scan, found);
        let rows = table::rows(scan, found, &pts, dropped);
        let (first, last) = (rows.first()?, rows.last()?);
        let positive = |(a, b): (i32, i32)| Ratio::new(u64::try_from(a).ok()?, u64::try_from(b).ok()?);
        let time_base = positive(scan.stream.time_base)?;
        let ticks = last.pts.abs_diff(first.pts).checked_add(last_ticks)?;
        let lasts = ticks.checked_mul(time_base.numerator)?;
        let average_fps = Ratio::new((rows.len() as u64).checked_mul(time_base.denominator)?, lasts)?;
        let seconds = |pts: i64| (pts as f64 * time_base.numerator as f64) / time_base.denominator as f64;
        let (width, height) = *known.sizes.get(usize::from(first.size))?;
        let keyframes = scan.packets.iter().filter(|packet| packet.flags & KEY != 0 && packet.flags & DISCARD == 0).count();
        let Colours { matrix, range, primaries, transfer, chroma_location } = known.first.colours;
        let facts = Facts {
            codec: scan.stream.parameters.codec.name().into(),
            decoder: known.decoder.clone(),
            format: av::format_name(known.first.format),
            width,
            height,
            rotation: scan.stream.rotation,
            sample_aspect: positive(scan.stream.sample_aspect),
            average_fps,
            header_fps: positive(scan.stream.frame_rate),
            stream: scan.stream.index,
            streams: scan.stream.siblings.clone(),
            begin_seconds: seconds(first.pts),
            end_seconds: seconds(last.pts.checked_add_unsigned(last_ticks)?),
            frames: rows.len() as u64,
            header_frames: scan.stream.frames,
            keyframes: keyframes as u64,
            matrix,
            range,
            primaries,
            transfer,
            chroma_location,
            pts_origin: origin,
            damaged: known.is_damaged,
            trust: known.trust,
        };
        let packets = scan.packets.iter().zip(table::surplus(scan)).map(|(packet, is_surplus)| PacketRow {
            bytes: packet.bytes,
            runs_at: packet.runs_at,
            flags: packet.flags,
            is_surplus,
        });
        let kept = Kept::of(
            *object_bytes,
            facts,
            scan.stream.parameters.clone(),
            scan.is_listed,
            time_base,
            last_ticks,
            packets.collect(),
            scan.runs.clone(),
            scan.beside.clone(),
            rows,
            known.sizes.clone(),
        );
        // What would not be read back is none.
        kept.holds_together().then(|| VideoIndex::new(kept))
    }
}

/// Decodes each unit by itself, and takes those for no starts whose units give other pixels than the whole stream did.
fn prove(input: &mut dyn Input, table: &Table, mut index: VideoIndex, limits: &Limits) -> Result<VideoIndex, VideoError> {
    let (mut dropped, mut proved) = (HashSet::new(), HashSet::new());
    let mut all_proved = true;
    loop {
        let before = dropped.len();
        let mut frame = 0;
        while frame < index.len() {
            let clip = index.plan(&[frame]).remove(0);
            let (unit, start) = (clip.unit.clone(), clip.start);
            frame = unit.end;
            if !proved.insert((start, unit.clone())) {
                continue;
            }
            match gives(input, &index, unit.clone().collect(), limits)? {
                Some(true) => {}
                // The first packet is where there is nothing better to start.
                Some(false) if start > 0 => drop(dropped.insert(start)),
                Some(false) | None => all_proved = false,
            }
        }
        if dropped.len() == before {
            break;
        }
        index = table.index(&dropped).ok_or_else(|| VideoError::Undecodable("no frame".into()))?;
    }
    if all_proved {
        index.kept.facts.trust = Trust::Proved;
    }
    Ok(index)
}

/// Whether decoding a unit by itself gives each of its frames; nothing where it is too long to be tried.
fn gives(input: &mut dyn Input, index: &VideoIndex, unit: Vec<u64>, limits: &Limits) -> Result<Option<bool>, VideoError> {
    let mut all = true;
    for clip in index.plan(&unit) {
        let bytes: u64 = clip.ranges.iter().map(|range| range.len()).sum();
        if bytes > UNIT_BYTES_MAX {
            return Ok(None);
        }
        let parts: Result<Vec<_>, VideoError> = clip.ranges.iter().map(|&range| Ok((range, fetch(input, range)?))).collect();
        let Some(package) = index.package(&clip, &parts?) else { return Ok(None) };
        let mut given = 0;
        let decoded = decode(&package, true, limits, &mut |_, frame| {
            given += usize::from(frame.is_ok());
            Ok(())
        });
        match decoded {
            Ok(()) => all &= given == clip.frames.len(),
            Err(DecodeEnd::Failed(error)) => return Err(error),
            Err(DecodeEnd::Stopped | DecodeEnd::Malformed) => all = false,
        }
    }
    Ok(Some(all))
}

/// Bytes that a unit is read from, with what lies between its packets.
const UNIT_BYTES_MAX: u64 = 256 << 20;

/// All of a range, which may be longer than one read.
fn fetch(input: &mut dyn Input, range: ByteRange) -> Result<Bytes, VideoError> {
    let mut whole = Vec::new();
    let mut piece = Vec::new();
    let mut at = range.start();
    while at < range.end() {
        let next = ByteRange::new(at, range.end().min(at + READ_BYTES_MAX)).ok_or(super::Gone)?;
        piece.clear();
        input.read(next, &mut piece)?;
        if piece.len() as u64 != next.len() {
            return Err(super::Gone.into());
        }
        whole.extend_from_slice(&piece);
        at = next.end();
    }
    Ok(whole.into())
}

/// Most bytes of one read.
const READ_BYTES_MAX: u64 = 8 << 20;
