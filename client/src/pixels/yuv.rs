//! Decoded video frames to RGB: exact, so the same bytes on every machine.
//!
//! The definition is arithmetic (SEMANTICS.md, "Video"): a luma sample takes the chroma sample of its block, the matrix is a fraction,
//! the result is rounded once, half up, and clipped. No float decides a value; `coefs` has the integers and why they are equal to the
//! fractions, `scalar` is the definition as a program, `avx2` the same bytes sooner (8 and 10 bits, chroma whole or halved in a row);
//! `deep` keeps the samples' depth. A [`Format`] is what travels beside planes that are made into colours elsewhere.
//!
//! ```
//! use framecache::pixels::yuv::{Matrix, Plane, Planes, Range, rgb};
//! let plane = |bytes, stride| Plane { bytes, stride };
//! let planes = [plane(&[81, 145, 41, 210][..], 4), plane(&[90, 54][..], 2), plane(&[240, 34][..], 2)];
//! let frame = Planes { planes, width: 4, height: 1, bits: 8, shift: (1, 0), matrix: Matrix::Bt601, range: Range::Limited };
//! let mut out = [0; 12];
//! rgb(&frame, &mut out)?;
//! assert_eq!(out[..3], [254, 0, 0]);
//! # Ok::<(), framecache::pixels::yuv::PlanesError>(())
//! ```

mod coefs;
mod deep;
mod format;
mod scalar;

#[cfg(target_arch = "x86_64")]
mod avx2;

#[cfg(test)]
mod tests;

use std::ops;

use super::{Isa, SIDE_MAX};
use coefs::Coefs;
pub use deep::rgb16;
pub use format::Format;

/// Samples of one kind: rows from the top, with or without padding behind them.
#[derive(Clone, Copy, Debug)]
pub struct Plane<'a> {
    /// The samples: a byte each at 8 bits, else two in little-endian order.
    pub bytes: &'a [u8],
    /// Bytes from a row to the next.
    pub stride: usize,
}

/// A decoded frame as it lies in memory, borrowed.
#[derive(Clone, Copy, Debug)]
pub struct Planes<'a> {
    /// Y, U, V; or G, B, R ([`Matrix::Rgb`]); or luma alone ([`Matrix::Gray`], the others are not looked at).
    pub planes: [Plane<'a>; 3],
    /// Luma samples in a row.
    pub width: usize,
    /// Rows of luma.
    pub height: usize,
    /// Bits of a sample, 8 to 16. A sample that is larger counts as the largest.
    pub bits: u8,
    /// Luma samples of a chroma sample as powers of two, along x and y: 4:2:0 is (1, 1), 4:2:2 (1, 0), 4:4:4 (0, 0), 4:4:0 (0, 1),
    /// 4:1:1 (2, 0), 4:1:0 (2, 2). Where the size is no multiple, the last chroma samples serve fewer.
    pub shift: (u8, u8),
    /// How three samples become a colour.
    pub matrix: Matrix,
    /// Which sample values are black and white.
    pub range: Range,
}

/// How the samples of a pixel become its colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Matrix {
    /// BT.601: Kr 0.299, Kb 0.114.
    #[default]
    Bt601,
    /// BT.709: Kr 0.2126, Kb 0.0722.
    Bt709,
    /// BT.2020, also where its luminance is said to be constant: Kr 0.2627, Kb 0.0593.
    Bt2020,
    /// The planes are green, blue and red. Always of full range.
    Rgb,
    /// One plane, replicated.
    Gray,
}

impl Matrix {
    /// Of YUV planes whose stream says `number` (ITU-T H.273, `MatrixCoefficients`). Whatever the profile has no matrix of its own for,
    /// and what says none, is BT.601. That planes are RGB or gray is said by their format, not by this number.
    pub fn of_number(number: u8) -> Self {
        match number {
            1 => Matrix::Bt709,
            9 | 10 => Matrix::Bt2020,
            _ => Matrix::Bt601,
        }
    }
}

/// Which sample values are black and white.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Range {
    /// At 8 bits 16 to 235, chroma 16 to 240; what says nothing.
    #[default]
    Limited,
    /// All values.
    Full,
}

/// Why planes are refused. Nothing was computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanesError {
    /// Samples of this many bits; want 8 to 16.
    #[error("samples of {0} bits (want 8 to 16)")]
    Bits(u8),
    /// Chroma is subsampled in a way that no format is.
    #[error("chroma subsampled by 2^{} and 2^{}", .0.0, .0.1)]
    Shift((u8, u8)),
    /// A side is zero, or the frame passes the address space or [`SIDE_MAX`].
    #[error("frame of {width}x{height} samples")]
    Size {
        /// Luma samples in a row.
        width: usize,
        /// Rows.
        height: usize,
    },
    /// A plane's rows overlap, or it ends before its last row does.
    #[error("plane {plane} has {bytes} bytes by {stride} (want {rows} rows of {row_bytes})")]
    Plane {
        /// Which, from 0.
        plane: usize,
        /// Its bytes.
        bytes: usize,
        /// Bytes from a row to the next.
        stride: usize,
        /// Rows that it should have.
        rows: usize,
        /// Bytes of a row.
        row_bytes: usize,
    },
    /// The rows do not lie within the frame.
    #[error("rows {}..{} of a frame of {height}", rows.0, rows.1)]
    Rows {
        /// From and to.
        rows: (usize, usize),
        /// Rows of the frame.
        height: usize,
    },
    /// The output has another length than the rows' pixels, three bytes each.
    #[error("output of {have} bytes (want {want})")]
    Out {
        /// Its bytes.
        have: usize,
        /// What they should be.
        want: usize,
    },
}

impl Planes<'_> {
    /// Refuses geometry that has no result, or that lies outside its slices. Everything here does so first.
    ///
    /// # Errors
    /// All of [`PlanesError`] but `Rows` and `Out`.
    pub fn check(&self) -> Result<(), PlanesError> {
        self.check_shape()?;
        (0..self.planes()).try_for_each(|plane| self.check_plane(plane))
    }

    /// The same but for where planes lie.
    fn check_shape(&self) -> Result<(), PlanesError> {
        let Self { width, height, .. } = *self;
        if !(8..=16).contains(&self.bits) {
            return Err(PlanesError::Bits(self.bits));
        }
        if !matches!(self.shift, (0 | 1, 0 | 1) | (2, 0 | 2)) || (self.matrix == Matrix::Rgb && self.shift != (0, 0)) {
            return Err(PlanesError::Shift(self.shift));
        }
        let long = width > SIDE_MAX || height > SIDE_MAX;
        let bytes = width.checked_mul(height).and_then(|pixels| pixels.checked_mul(3));
        if width == 0 || height == 0 || long || bytes.is_none_or(|bytes| bytes > isize::MAX as usize) {
            return Err(PlanesError::Size { width, height });
        }
        Ok(())
    }

    /// Columns and rows of a plane.
    fn plane_size(&self, plane: usize) -> (usize, usize) {
        match plane {
            0 => (self.width, self.height),
            _ => (self.width.div_ceil(1 << self.shift.0), self.height.div_ceil(1 << self.shift.1)),
        }
    }

    fn check_plane(&self, plane: usize) -> Result<(), PlanesError> {
        let Plane { bytes, stride } = self.planes[plane];
        let (columns, rows) = self.plane_size(plane);
        let row_bytes = columns * self.sample_bytes();
        let last = (rows - 1).checked_mul(stride).and_then(|start| start.checked_add(row_bytes));
        match stride >= row_bytes && last.is_some_and(|end| end <= bytes.len()) {
            true => Ok(()),
            false => Err(PlanesError::Plane { plane, bytes: bytes.len(), stride, rows, row_bytes }),
        }
    }

    fn planes(&self) -> usize {
        if self.matrix == Matrix::Gray { 1 } else { 3 }
    }

    fn sample_bytes(&self) -> usize {
        if self.bits == 8 { 1 } else { 2 }
    }

    /// The rows, cut where they come to another row of chroma.
    fn blocks(&self, rows: ops::Range<usize>) -> impl Iterator<Item = ops::Range<usize>> {
        let (together, mut from) = (1 << self.shift.1, rows.start);
        std::iter::from_fn(move || {
            let start = from;
            from = rows.end.min((start / together + 1) * together);
            (start < rows.end).then_some(start..from)
        })
    }
}

/// Makes the whole frame, `[height, width, 3]` bytes from the top: red, green, blue.
///
/// # Errors
/// [`PlanesError`]; `out` is not touched then.
pub fn rgb(planes: &Planes<'_>, out: &mut [u8]) -> Result<(), PlanesError> {
    rgb_rows(planes, 0..planes.height, out)
}

/// Makes these rows of the frame alone, so that a pass which takes rows as it goes needs no whole picture between. Chroma of a block is
/// computed once for the rows of it that are asked for at once: ask for multiples of the block's height.
///
/// # Errors
/// [`PlanesError`]; `out` is not touched then.
pub fn rgb_rows(planes: &Planes<'_>, rows: ops::Range<usize>, out: &mut [u8]) -> Result<(), PlanesError> {
    rgb_rows_with(Isa::best(), planes, rows, out)
}

/// [`rgb_rows`] by the kernels of one instruction set, which gives the same bytes: for tests and for the bench.
///
/// Panics if this processor lacks it.
///
/// # Errors
/// [`PlanesError`]; `out` is not touched then.
pub fn rgb_rows_with(isa: Isa, planes: &Planes<'_>, rows: ops::Range<usize>, out: &mut [u8]) -> Result<(), PlanesError> {
    assert!(isa.is_available(), "this processor has no {isa:?}");
    planes.check()?;
    if rows.start > rows.end || rows.end > planes.height {
        return Err(PlanesError::Rows { rows: (rows.start, rows.end), height: planes.height });
    }
    let want = rows.len() * planes.width * 3;
    if out.len() != want {
        return Err(PlanesError::Out { have: out.len(), want });
    }
    let coefs = Coefs::of(planes.matrix, planes.range, planes.bits);
    #[cfg(target_arch = "x86_64")]
    if isa != Isa::Scalar && avx2::serves(planes) {
        // SAFETY: every set beyond the scalar one has AVX2, and this processor has the set, as is asserted above.
        unsafe { avx2::rows(planes, &coefs, rows, out) };
        return Ok(());
    }
    scalar::rows(planes, &coefs, rows, out);
    Ok(())
}
