//! From a GPU's surfaces to the planes that the shared conversion takes: chroma pairs apart, samples down from the upper bits. Pure.

/// Rows of samples, `line` bytes apart.
#[derive(Clone, Copy)]
pub(in crate::decode) struct Rows<'a> {
    pub(in crate::decode) bytes: &'a [u8],
    pub(in crate::decode) line: usize,
}

/// The same, to be filled.
pub(in crate::decode) struct RowsMut<'a> {
    pub(in crate::decode) bytes: &'a mut [u8],
    pub(in crate::decode) line: usize,
}

/// How a surface holds a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::decode) enum Depth {
    /// In a byte.
    Byte,
    /// In the upper so many bits of two bytes, the lower first.
    Upper(u32),
}

impl Depth {
    /// Of samples of so many bits; nothing of what no surface holds.
    pub(in crate::decode) fn of(bits: u32) -> Option<Self> {
        match bits {
            8 => Some(Self::Byte),
            9..=16 => Some(Self::Upper(bits)),
            _ => None,
        }
    }

    /// Bytes of a sample, of the surface as of the plane.
    pub(in crate::decode) fn bytes(self) -> usize {
        if self == Self::Byte { 1 } else { 2 }
    }

    fn lowered(self, sample: [u8; 2]) -> [u8; 2] {
        match self {
            Self::Byte => sample,
            Self::Upper(bits) => (u16::from_le_bytes(sample) >> (16 - bits)).to_le_bytes(),
        }
    }
}

/// Copies a plane of `columns` by `rows` samples. Nothing if either side is too small.
pub(in crate::decode) fn plane(
    from: Rows<'_>,
    to: &mut RowsMut<'_>,
    (columns, rows): (usize, usize),
    depth: Depth,
) -> Option<()> {
    let row_bytes = columns.checked_mul(2 * depth.bytes())? / 2;
    for row in 0..rows {
        let from = from.row(row, row_bytes)?;
        let to = to.row(row, row_bytes)?;
        match depth {
            Depth::Byte => to.copy_from_slice(from),
            Depth::Upper(_) => {
                for (to, from) in to.as_chunks_mut::<2>().0.iter_mut().zip(from.as_chunks::<2>().0) {
                    *to = depth.lowered(*from);
                }
            }
        }
    }
    Some(())
}

/// Takes a plane of chroma pairs, `columns` by `rows` of them, apart into its two planes. Nothing if a side is too small.
pub(in crate::decode) fn pairs(
    from: Rows<'_>,
    [blue, red]: [&mut RowsMut<'_>; 2],
    (columns, rows): (usize, usize),
    depth: Depth,
) -> Option<()> {
    let row_bytes = columns.checked_mul(2 * depth.bytes())? / 2;
    for row in 0..rows {
        let from = from.row(row, 2 * row_bytes)?;
        let (blue, red) = (blue.row(row, row_bytes)?, red.row(row, row_bytes)?);
        match depth {
            Depth::Byte => {
                for ((&[b, r], blue), red) in from.as_chunks::<2>().0.iter().zip(blue).zip(red) {
                    (*blue, *red) = (b, r);
                }
            }
            Depth::Upper(_) => {
                let places = blue.as_chunks_mut::<2>().0.iter_mut().zip(red.as_chunks_mut::<2>().0);
                for (&[b, b_high, r, r_high], (blue, red)) in from.as_chunks::<4>().0.iter().zip(places) {
                    (*blue, *red) = (depth.lowered([b, b_high]), depth.lowered([r, r_high]));
                }
            }
        }
    }
    Some(())
}

impl<'a> Rows<'a> {
    fn row(&self, row: usize, bytes: usize) -> Option<&'a [u8]> {
        self.bytes.get(row.checked_mul(self.line)?..)?.get(..bytes)
    }
}

impl RowsMut<'_> {
    fn row(&mut self, row: usize, bytes: usize) -> Option<&mut [u8]> {
        self.bytes.get_mut(row.checked_mul(self.line)?..)?.get_mut(..bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples of any value, the same each time.
    fn samples(count: usize, bits: u32, seed: u64) -> Vec<u16> {
        let mut state = seed * 0x9e37_79b9_7f4a_7c15 + 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 20) as u16 >> (16 - bits)
        };
        (0..count).map(|_| next()).collect()
    }

    /// As a surface or a plane holds them, rows `line` bytes apart, what is between them filled with something else.
    fn laid(samples: &[u16], columns: usize, line: usize, depth: Depth, shift: u32) -> Vec<u8> {
        let mut out = vec![0xa5; line * (samples.len() / columns)];
        for (row, samples) in samples.chunks(columns).enumerate() {
            for (column, sample) in samples.iter().enumerate() {
                let at = row * line + column * depth.bytes();
                out[at..at + depth.bytes()].copy_from_slice(&(sample << shift).to_le_bytes()[..depth.bytes()]);
            }
        }
        out
    }

    /// Promise: whatever the size, odd ones included, planes hold exactly the samples of the surface, and nothing between rows is
    /// touched or read.
    #[test]
    fn surfaces_come_apart_exactly() {
        let mut tried = 0;
        for bits in [8, 10, 12, 16] {
            let depth = Depth::of(bits).expect("held");
            let shift = if bits == 8 { 0 } else { 16 - bits };
            for (columns, rows) in (1..=17).flat_map(|columns| (1..=9).map(move |rows| (columns, rows))) {
                for (gap, gap_to) in [(0, 0), (7, 3), (64, 32)] {
                    let seed = (columns * 100 + rows) as u64;
                    let (blue, red) = (samples(columns * rows, bits, seed), samples(columns * rows, bits, seed + 7));
                    let both: Vec<u16> = blue.iter().zip(&red).flat_map(|(&b, &r)| [b, r]).collect();
                    let line = 2 * columns * depth.bytes() + gap;
                    let surface = laid(&both, 2 * columns, line, depth, shift);
                    let line_to = columns * depth.bytes() + gap_to;
                    let blank = vec![0xa5; line_to * rows];
                    let (mut one, mut other) = (blank.clone(), blank.clone());
                    let mut to = [&mut one, &mut other].map(|bytes| RowsMut { bytes, line: line_to });
                    let [first, second] = &mut to;
                    pairs(Rows { bytes: &surface, line }, [first, second], (columns, rows), depth).expect("room");
                    assert_eq!(one, laid(&blue, columns, line_to, depth, 0), "{columns}x{rows} of {bits} bits, blue");
                    assert_eq!(other, laid(&red, columns, line_to, depth, 0), "{columns}x{rows} of {bits} bits, red");
                    let mut luma = blank;
                    let surface = laid(&blue, columns, line, depth, shift);
                    let to = &mut RowsMut { bytes: &mut luma, line: line_to };
                    plane(Rows { bytes: &surface, line }, to, (columns, rows), depth).expect("room");
                    assert_eq!(luma, laid(&blue, columns, line_to, depth, 0), "{columns}x{rows} of {bits} bits, luma");
                    tried += 1;
                }
            }
        }
        assert_eq!(tried, 4 * 17 * 9 * 3);
    }

    /// Promise: a surface that is smaller than it is said to be gives nothing, and so does a place.
    #[test]
    fn small_surfaces_give_nothing() {
        let (surface, mut place) = ([0; 16], [0; 8]);
        let from = |bytes| Rows { bytes, line: 8 };
        let size = (4, 2);
        let to = &mut RowsMut { bytes: &mut place, line: 4 };
        assert!(plane(from(&surface), to, size, Depth::Byte).is_some());
        assert!(plane(from(&surface[..11]), to, size, Depth::Byte).is_none());
        assert!(plane(from(&surface), to, size, Depth::Upper(10)).is_none());
        assert!(plane(from(&surface), to, (usize::MAX, 1), Depth::Byte).is_none());
        let mut other = [0; 7];
        assert!(pairs(from(&surface), [to, &mut RowsMut { bytes: &mut other, line: 4 }], size, Depth::Byte).is_none());
        assert_eq!([7, 8, 17].map(Depth::of), [None, Some(Depth::Byte), None]);
    }
}
