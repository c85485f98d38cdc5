//! What a decoder is handed: a unit's packets and all that it must know of them, without the object and without the index.

use bytes::Bytes;
use framecache::ByteRange;
use rkyv::rancor::Error as Rancor;
use rkyv::{Archive, Deserialize, Serialize};

use super::av::NEW_EXTRADATA;
use super::codec::Parameters;
use super::index::{Trust, VideoIndex};
use super::plan::Clip;
use super::scan::LITERAL;

/// Longest package: what one decode may be handed. A unit of more is one of minutes without a key frame.
pub const PACKAGE_BYTES_MAX: usize = 192 << 20;

/// A unit, or its beginning, on its way to a decoder.
#[derive(Archive, Serialize, Deserialize)]
pub(super) struct Package {
    pub(super) parameters: Parameters,
    /// Whether what packets say themselves is still to be compared with what the index takes for granted.
    pub(super) is_unseen: bool,
    pub(super) packets: Vec<Packed>,
    pub(super) side: Vec<Side>,
    /// Rising in the order in which they are shown.
    pub(super) wanted: Vec<Wanted>,
    /// All packets' bytes, one behind the other.
    pub(super) data: Vec<u8>,
}

/// A packet. Its tag is its place in the package.
#[derive(Archive, Serialize, Deserialize)]
pub(super) struct Packed {
    pub(super) bytes: u32,
    pub(super) flags: u8,
    /// Whether nothing of this unit depends on it: damage to it is nobody's.
    pub(super) is_surplus: bool,
}

/// What comes beside a packet.
#[derive(Archive, Serialize, Deserialize)]
pub(super) struct Side {
    pub(super) packet: u32,
    pub(super) kind: u32,
    pub(super) bytes: Vec<u8>,
}

/// A frame, and how it is known.
#[derive(Archive, Serialize, Deserialize)]
pub(super) struct Wanted {
    pub(super) tag: u32,
    pub(super) nth: u32,
    pub(super) width: u32,
    pub(super) height: u32,
    /// Of its planes, where they were seen before.
    pub(super) hash: Option<u64>,
}

impl Package {
    /// Reads an archive; nothing if it does not hold together.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let package = rkyv::from_bytes::<Self, Rancor>(bytes).ok()?;
        let count = package.packets.len();
        let data = package.packets.iter().map(|packet| u64::from(packet.bytes)).sum::<u64>();
        let sound = data == package.data.len() as u64
            && package.wanted.iter().all(|wanted| (wanted.tag as usize) < count)
            && package.side.iter().all(|side| (side.packet as usize) < count)
            && package.side.is_sorted_by_key(|side| side.packet);
        sound.then_some(package)
    }
}

impl VideoIndex {
    /// What decodes `clip`, from the bytes of its ranges: `parts` may be cut anywhere, in any order, and hold more. Nothing where bytes
    /// are missing, and where it would pass [`PACKAGE_BYTES_MAX`].
    pub fn package(&self, clip: &Clip, parts: &[(ByteRange, Bytes)]) -> Option<Vec<u8>> {
        let packets = clip.start..=clip.last;
        let bytes: u64 = packets.clone().map(|packet| u64::from(self.kept.packets[packet as usize].bytes)).sum();
        if bytes > PACKAGE_BYTES_MAX as u64 {
            return None;
        }
        let parts = Parts::of(parts)?;
        let mut package = Package {
            parameters: self.kept.parameters.clone(),
            is_unseen: self.kept.is_listed && self.facts().trust == Trust::Predicted,
            packets: Vec::with_capacity(packets.clone().count()),
            side: Vec::new(),
            wanted: clip.frames.iter().map(|&frame| self.wanted(frame, clip.start)).collect(),
            data: Vec::with_capacity(bytes as usize),
        };
        for number in packets {
            let row = self.kept.packets[number as usize];
            let packet = number - clip.start;
            for beside in self.kept.beside(number) {
                match beside.kind {
                    LITERAL => package.data.extend_from_slice(&beside.bytes),
                    kind => package.side.push(Side { packet, kind, bytes: beside.bytes.clone() }),
                }
            }
            for run in self.kept.runs_of(number) {
                run.pieces(self.kept.object_bytes)?.try_for_each(|piece| parts.copy(piece, &mut package.data))?;
            }
            let is_surplus = packet > 0 && self.is_surplus(number, clip.start);
            package.packets.push(Packed { bytes: row.bytes, flags: row.flags, is_surplus });
        }
        self.take_up_parameters(clip.start, &mut package);
        let bytes = rkyv::to_bytes::<Rancor>(&package).ok()?;
        drop(package);
        (bytes.len() <= PACKAGE_BYTES_MAX + OVERHEAD_BYTES_MAX).then(|| bytes.to_vec())
    }

    fn wanted(&self, frame: u64, start: u32) -> Wanted {
        let row = self.row(frame);
        let (width, height) = self.size(frame);
        let hash = (self.facts().trust > Trust::Predicted).then_some(row.hash);
        Wanted { tag: row.tag - start, nth: row.nth, width, height, hash }
    }

    /// Leading pictures of the unit's own start: they belong to the unit before, or to none.
    fn is_surplus(&self, packet: u32, start: u32) -> bool {
        let mut rows = self.rows_of(packet).peekable();
        match rows.peek() {
            Some(_) => rows.all(|row| self.row(row).start < start),
            None => self.kept.packets[packet as usize].is_surplus,
        }
    }

    /// Parameters that came with a packet before the start are in force at it.
    fn take_up_parameters(&self, start: u32, package: &mut Package) {
        let is_new = |kind: u32| kind == NEW_EXTRADATA;
        if package.side.iter().any(|side| side.packet == 0 && is_new(side.kind)) {
            return;
        }
        let before = self.kept.beside.partition_point(|beside| beside.packet < start);
        if let Some(new) = self.kept.beside[..before].iter().rev().find(|beside| is_new(beside.kind)) {
            package.side.insert(0, Side { packet: 0, kind: new.kind, bytes: new.bytes.clone() });
        }
    }
}

/// Extradata and side data, at their most, and the archive's own bytes for each packet.
const OVERHEAD_BYTES_MAX: usize = 64 << 20;

/// Fetched bytes by place.
struct Parts<'a>(Vec<(u64, &'a [u8])>);

impl<'a> Parts<'a> {
    fn of(parts: &'a [(ByteRange, Bytes)]) -> Option<Self> {
        let sound = parts.iter().all(|(range, bytes)| range.len() == bytes.len() as u64);
        let mut parts: Vec<(u64, &[u8])> = parts.iter().map(|(range, bytes)| (range.start(), &bytes[..])).collect();
        parts.sort_by_key(|&(start, _)| start);
        sound.then_some(Self(parts))
    }

    fn copy(&self, piece: ByteRange, out: &mut Vec<u8>) -> Option<()> {
        let mut at = piece.start();
        while at < piece.end() {
            let part = self.0.partition_point(|&(start, _)| start <= at).checked_sub(1)?;
            let (start, bytes) = self.0[part];
            let rest = bytes.get(usize::try_from(at - start).ok()?..).filter(|rest| !rest.is_empty())?;
            let taken = rest.len().min(usize::try_from(piece.end() - at).ok()?);
            out.extend_from_slice(&rest[..taken]);
            at += taken as u64;
        }
        Some(())
    }
}
