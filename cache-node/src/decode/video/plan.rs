//! From wanted frames to the bytes that they take.

use std::ops::Range;

use framecache::ByteRange;

use super::index::VideoIndex;

/// Wanted frames of one decode unit, and the bytes that decoding them takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clip {
    /// The first packet.
    pub(super) start: u32,
    /// The last one.
    pub(super) last: u32,
    /// The wanted frames, rising, each once. In this order [`decode`](super::decode) counts them.
    pub frames: Vec<u64>,
    /// All frames that are decoded from the same start: what else comes of the same work, or of a little more.
    pub unit: Range<u64>,
    /// Bytes of the object to be fetched, rising, apart.
    pub ranges: Vec<ByteRange>,
}

/// Bytes between two packets that are read along, since another read costs more.
const GAP_BYTES_MAX: u64 = 64 << 10;

impl VideoIndex {
    /// One clip for each decode unit that holds any of `frames`, in the order of units. Frames may come in any order and repeat;
    /// those behind the last are passed over.
    pub fn plan(&self, frames: &[u64]) -> Vec<Clip> {
        let mut frames: Vec<u64> = frames.iter().copied().filter(|&frame| frame < self.len()).collect();
        frames.sort_unstable();
        frames.dedup();
        frames.chunk_by(|&a, &b| self.row(a).start == self.row(b).start).map(|frames| self.clip(frames.to_vec())).collect()
    }

    fn clip(&self, frames: Vec<u64>) -> Clip {
        let start = self.row(frames[0]).start;
        let last = frames.iter().map(|&frame| self.row(frame).last).max().unwrap_or(start);
        // Starts never fall from row to row.
        let rows = &self.kept.rows;
        let unit = rows.partition_point(|row| row.start < start) as u64..rows.partition_point(|row| row.start <= start) as u64;
        Clip { start, last, frames, unit, ranges: self.ranges(start, last) }
    }

    fn ranges(&self, start: u32, last: u32) -> Vec<ByteRange> {
        let runs = (start..=last).flat_map(|packet| self.kept.runs_of(packet));
        // A run is read with what is between its pieces.
        let mut hulls: Vec<ByteRange> = runs
            .filter_map(|run| {
                let pieces = u64::from(run.count.checked_sub(1)?);
                ByteRange::new(run.start, run.start + pieces * u64::from(run.stride) + u64::from(run.length))
            })
            .filter(|hull| !hull.is_empty())
            .collect();
        hulls.sort_unstable_by_key(|hull| hull.start());
        let mut merged: Vec<ByteRange> = Vec::new();
        for hull in hulls {
            match merged.last_mut() {
                Some(before) if hull.start() < before.end().saturating_add(GAP_BYTES_MAX) => {
                    let end = before.end().max(hull.end());
                    *before = ByteRange::new(before.start(), end).unwrap_or(*before);
                }
                _ => merged.push(hull),
            }
        }
        merged
    }
}
