//! All packets of a stream, without decoding them: their times, what they say themselves, and where their bytes lie.

use rkyv::{Archive, Deserialize, Serialize};

use super::av::{Demuxer, KEY, Packet, Probing, Reader, Stream};
use super::bits::{Info, Parser, Start};
use super::extents::{Run, locate};
use super::{VideoError, boxes};
use crate::decode::Limits;

/// More packets than this are nobody's clip: twelve hours at 24 frames a second.
pub(super) const PACKETS_MAX: usize = 1 << 20;

/// More pieces than this are not kept: ten hours of a transport stream.
pub(super) const RUNS_MAX: usize = 1 << 22;

/// Bytes that are kept since they are not found in the object, or come beside packets, all together.
pub(super) const KEPT_BYTES_MAX: usize = 8 << 20;

/// A packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scanned {
    pub(super) pts: i64,
    pub(super) duration: i64,
    pub(super) flags: u8,
    pub(super) info: Info,
    pub(super) bytes: u32,
    /// The first of its pieces in [`Scan::runs`]; they end where those of the next packet begin.
    pub(super) runs_at: u32,
}

/// Bytes of a packet that are not among its pieces: what it begins with, or what comes beside it.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub(super) struct Beside {
    pub(super) packet: u32,
    /// FFmpeg's number of the kind of side data; [`LITERAL`] for a packet's first bytes.
    pub(super) kind: u32,
    pub(super) bytes: Vec<u8>,
}

/// The packet's own first bytes.
pub(super) const LITERAL: u32 = u32::MAX;

/// What a scan finds.
pub(super) struct Scan {
    pub(super) stream: Stream,
    pub(super) packets: Vec<Scanned>,
    pub(super) runs: Vec<Run>,
    /// By packet, rising.
    pub(super) beside: Vec<Beside>,
    /// Whether packets are as the container's table lists them, and none was looked into.
    pub(super) is_listed: bool,
    kept_bytes: usize,
    /// Bytes that packets may have yet, all together: a table of contents may name the same ones again and again.
    bytes_left: u64,
}

/// Bytes of packets by bytes of the object.
const OVERLAP_MAX: u64 = 4;

/// And at least this: what is small may repeat itself.
const OVERLAP_BYTES: u64 = 16 << 20;

/// Sees each packet of a stream, with its number.
pub(super) type Each<'a> = &'a mut dyn FnMut(&Stream, u32, &Packet<'_>) -> Result<(), VideoError>;

/// Scans from the first byte to the last. `each` sees every packet.
pub(super) fn read(reader: Reader<'_>, which: Option<u32>, limits: &Limits, each: Each<'_>) -> Result<Scan, VideoError> {
    let object_bytes = reader.bytes();
    let mut demuxer = Demuxer::open(reader, which, Probing::Packets, limits.pixels_max)?;
    let stream = demuxer.stream()?;
    let mut parser = Parser::new(stream.parameters.codec, &stream.parameters.extradata);
    let mut scan = Scan::of(stream, false, object_bytes);
    let mut before = 0;
    while let Some((packet, reader)) = demuxer.next()? {
        let info = parser.info(packet.data, packet.flags & KEY != 0);
        let (literal, runs) = match locate(reader, packet.data, packet.at, before)? {
            Some(found) => (found.literal, found.runs),
            // A cover picture from a tag, or a container that rewrites its packets: kept whole.
            None => (packet.data.to_vec(), Vec::new()),
        };
        before = runs
            .last()
            .map_or(before, |run| run.start + u64::from(run.stride) * u64::from(run.count - 1) + u64::from(run.length));
        let number = scan.packets.len() as u32;
        scan.add(&packet, info, literal, &runs)?;
        each(&scan.stream, number, &packet)?;
    }
    Ok(scan)
}

/// Lists the packets of an MP4 from its header alone; nothing where that cannot be done, or would not say enough.
pub(super) fn listed(mut reader: Reader<'_>, which: Option<u32>, limits: &Limits) -> Result<Option<Scan>, VideoError> {
    let Some(payloads) = boxes::payloads(&mut reader)? else { return Ok(None) };
    let end = reader.bytes();
    reader.hollow(payloads);
    let mut demuxer = Demuxer::open(reader, which, Probing::Header, limits.pixels_max)?;
    demuxer.as_listed();
    let stream = demuxer.stream()?;
    // Which of several is the best is found by looking into them.
    if (which.is_none() && demuxer.videos().len() != 1)
        || !Parser::new(stream.parameters.codec, &stream.parameters.extradata).is_progressive()
    {
        return Ok(None);
    }
    let mut scan = Scan::of(stream, true, end);
    while let Some((packet, _)) = demuxer.next()? {
        let length = packet.data.len() as u64;
        let place = packet.at.filter(|at| at.checked_add(length).is_some_and(|to| to <= end));
        let Some(at) = place.filter(|_| length > 0) else { return Ok(None) };
        let start = if packet.flags & KEY != 0 { Start::Open } else { Start::No };
        let info = Info { start, shows: 1, ..Info::default() };
        scan.add(&packet, info, Vec::new(), &[Run::one(at, length as u32)])?;
    }
    Ok((!scan.packets.is_empty()).then_some(scan))
}

impl Scan {
    fn of(stream: Stream, is_listed: bool, object_bytes: u64) -> Self {
        let bytes_left = object_bytes.saturating_mul(OVERLAP_MAX).saturating_add(OVERLAP_BYTES);
        Self { stream, packets: Vec::new(), runs: Vec::new(), beside: Vec::new(), is_listed, kept_bytes: 0, bytes_left }
    }

    fn add(&mut self, packet: &Packet<'_>, info: Info, literal: Vec<u8>, runs: &[Run]) -> Result<(), VideoError> {
        let number = self.packets.len() as u32;
        if self.packets.len() >= PACKETS_MAX || self.runs.len() + runs.len() > RUNS_MAX {
            return Err(VideoError::Unsupported(format!("more than {PACKETS_MAX} packets")));
        }
        let left = self.bytes_left.checked_sub(packet.data.len() as u64);
        self.bytes_left = left.ok_or_else(|| VideoError::Unsupported("packets that overlap".into()))?;
        self.packets.push(Scanned {
            pts: packet.pts,
            duration: packet.duration,
            flags: packet.flags,
            info,
            bytes: packet.data.len() as u32,
            runs_at: self.runs.len() as u32,
        });
        self.runs.extend(runs);
        let literal = (!literal.is_empty()).then_some(Beside { packet: number, kind: LITERAL, bytes: literal });
        let side = packet.side().map(|(kind, bytes)| Beside { packet: number, kind, bytes: bytes.to_vec() });
        for beside in literal.into_iter().chain(side) {
            self.kept_bytes += beside.bytes.len();
            self.beside.push(beside);
        }
        if self.kept_bytes > KEPT_BYTES_MAX {
            return Err(VideoError::Unsupported("packets that are not found in the object".into()));
        }
        Ok(())
    }
}
