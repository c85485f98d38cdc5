//! Where a packet's bytes lie in the object, found without knowing the container: by looking for them where it was read.

use framecache::ByteRange;
use memchr::memmem;
use rkyv::{Archive, Deserialize, Serialize};

use super::Gone;
use super::av::Reader;

/// Pieces of equal length, equally far apart: a whole packet of most containers, a row of payloads of a transport stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub(super) struct Run {
    pub(super) start: u64,
    pub(super) length: u32,
    pub(super) count: u32,
    pub(super) stride: u32,
}

impl Run {
    pub(super) fn one(start: u64, length: u32) -> Self {
        Self { start, length, count: 1, stride: 0 }
    }

    /// Each piece, if all of them lie below `end`.
    pub(super) fn pieces(self, end: u64) -> Option<impl Iterator<Item = ByteRange>> {
        let last = self.start.checked_add(u64::from(self.stride) * u64::from(self.count.checked_sub(1)?))?;
        last.checked_add(self.length.into()).filter(|&last| last <= end)?;
        let piece = move |number| ByteRange::at(self.start + u64::from(self.stride) * u64::from(number), self.length.into());
        Some((0..self.count).filter_map(piece))
    }

    pub(super) fn bytes(self) -> u64 {
        u64::from(self.length) * u64::from(self.count)
    }
}

/// A packet's place: bytes that are not in the object, then its pieces.
pub(super) struct Located {
    pub(super) literal: Vec<u8>,
    pub(super) runs: Vec<Run>,
}

/// How far behind the named place a packet of one piece begins: behind a block's header.
const HEADER_BYTES_MAX: u64 = 64;

/// How far on a packet's pieces are looked for.
const SEARCH_BYTES: u64 = 128 << 10;

/// Containers that strip what packets begin with alike strip no more.
const LITERAL_BYTES_MAX: usize = 8;

/// Finds `data` at `near`, or else behind `before`, where the packet before it ended. The concatenation of what is found is `data`.
pub(super) fn locate(reader: &mut Reader<'_>, data: &[u8], near: Option<u64>, before: u64) -> Result<Option<Located>, Gone> {
    let mut around = Vec::new();
    let mut bytes_at =
        |at: u64, more: u64, around: &mut Vec<u8>| match ByteRange::at(at, (data.len() as u64).saturating_add(more)) {
            Some(range) => reader.peek(range, around),
            None => {
                around.clear();
                Ok(())
            }
        };
    if data.is_empty() {
        return Ok(Some(Located { literal: Vec::new(), runs: Vec::new() }));
    }
    if let Some(near) = near {
        bytes_at(near, HEADER_BYTES_MAX, &mut around)?;
        if let Some(offset) = memmem::find(&around, data) {
            let runs = vec![Run::one(near + offset as u64, data.len() as u32)];
            return Ok(Some(Located { literal: Vec::new(), runs }));
        }
    }
    for from in near.into_iter().chain([before]) {
        bytes_at(from, SEARCH_BYTES, &mut around)?;
        if let Some(offset) = memmem::find(&around, data) {
            let runs = vec![Run::one(from + offset as u64, data.len() as u32)];
            return Ok(Some(Located { literal: Vec::new(), runs }));
        }
        for stripped in 0..=LITERAL_BYTES_MAX.min(data.len()) {
            let (literal, rest) = data.split_at(stripped);
            if let Some(runs) = pieces(&around, rest, from) {
                return Ok(Some(Located { literal: literal.to_vec(), runs }));
            }
        }
    }
    Ok(None)
}

/// First bytes of a piece, and how far behind the last one it is looked for: the fewer, the nearer.
const PROBES: [(usize, usize); 5] = [(16, 1 << 17), (8, 1 << 14), (4, 2048), (2, 600), (1, 400)];

/// Cuts `data` into the pieces in which it lies in `around`, which begins at `from` in the object; each as long as can be.
fn pieces(around: &[u8], mut data: &[u8], from: u64) -> Option<Vec<Run>> {
    let (mut runs, mut at) = (Vec::new(), 0);
    let most = 64 + data.len() / 8;
    while !data.is_empty() {
        let found = PROBES.iter().find_map(|&(length, within)| {
            let probe = &data[..length.min(data.len())];
            let window = around.get(at..around.len().min(at + within))?;
            memmem::find(window, probe).map(|offset| at + offset)
        })?;
        let length = data.iter().zip(&around[found..]).take_while(|(a, b)| a == b).count();
        add(&mut runs, from + found as u64, length as u32);
        if runs.len() > most {
            return None;
        }
        data = &data[length..];
        at = found + length;
    }
    Some(runs)
}

/// One more piece, in the last run where it goes on with it.
fn add(runs: &mut Vec<Run>, start: u64, length: u32) {
    if let Some(run) = runs.last_mut().filter(|run| run.length == length) {
        let stride = (start - run.start) / u64::from(run.count);
        let goes_on = run.start + stride * u64::from(run.count) == start && (run.count == 1 || stride == u64::from(run.stride));
        if let (true, Ok(stride)) = (goes_on, u32::try_from(stride)) {
            (run.stride, run.count) = (stride, run.count + 1);
            return;
        }
    }
    runs.push(Run::one(start, length));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: pieces that are found put the packet together again, and equal ones equally far apart are one run.
    #[test]
    fn pieces_are_found_and_gathered() {
        let data: Vec<u8> = (0..2000u32).map(|i| (i * i % 251) as u8).collect();
        let mut around = vec![0x47; 12];
        for piece in data.chunks(184) {
            around.extend([0x47, 1, 2, 3]);
            around.extend(piece);
        }
        let runs = pieces(&around, &data, 1000).expect("found");
        let end = 1000 + around.len() as u64;
        let together: Vec<u8> = runs
            .iter()
            .flat_map(|run| run.pieces(end).expect("within"))
            .flat_map(|piece| &around[piece.start() as usize - 1000..piece.end() as usize - 1000])
            .copied()
            .collect();
        assert!(together == data && runs.len() <= 3, "{runs:?}");
        assert!(Run { start: u64::MAX - 3, length: 1, count: 9, stride: 1 }.pieces(u64::MAX).is_none());
        assert!(Run { start: 0, length: 1, count: 0, stride: 1 }.pieces(9).is_none());
    }
}
