//! What a frame's samples mean: what has to be known beside them to make colours of them elsewhere.

use super::{Matrix, Plane, Planes, PlanesError, Range};

/// What the samples of a frame mean. Whoever has them, this and the frame's size can make its RGB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Format {
    /// As [`Planes::bits`].
    pub bits: u8,
    /// As [`Planes::shift`].
    pub shift: (u8, u8),
    /// How three samples become a colour.
    pub matrix: Matrix,
    /// Which sample values are black and white.
    pub range: Range,
}

const MATRICES: [Matrix; 5] = [Matrix::Bt601, Matrix::Bt709, Matrix::Bt2020, Matrix::Rgb, Matrix::Gray];

/// The highest bit of a number: 0 is none.
const KNOWN: u16 = 1 << 15;

impl Format {
    /// As one number, never 0: bits less 8 in bits 0 to 3, the shifts in 4 to 5 and 6 to 7, the matrix in 8 to 10 (0 BT.601, 1 BT.709,
    /// 2 BT.2020, 3 RGB, 4 gray), bit 11 where the range is full, bit 15 always.
    pub fn number(self) -> u16 {
        let matrix = MATRICES.iter().position(|known| *known == self.matrix).unwrap_or(0) as u16;
        let full = u16::from(self.range == Range::Full);
        let shift = u16::from(self.shift.0 & 3) << 4 | u16::from(self.shift.1 & 3) << 6;
        KNOWN | u16::from(self.bits.saturating_sub(8) & 15) | shift | matrix << 8 | full << 11
    }

    /// The format of that number; `None` of any that is none's.
    pub fn from_number(number: u16) -> Option<Self> {
        let part = |at: u16, bits: u16| (number >> at & ((1 << bits) - 1)) as u8;
        let range = if part(11, 1) == 1 { Range::Full } else { Range::Limited };
        let matrix = *MATRICES.get(usize::from(part(8, 3)))?;
        let format = Self { bits: 8 + part(0, 4), shift: (part(4, 2), part(6, 2)), matrix, range };
        (format.number() == number && format.bits <= 16).then_some(format)
    }

    /// Whether it is 4:2:0 of 8 bits, half the bytes of RGB.
    pub fn is_yuv420(self) -> bool {
        self.bits == 8 && self.shift == (1, 1) && !matches!(self.matrix, Matrix::Rgb | Matrix::Gray)
    }

    /// A frame of `width` x `height` whose planes lie one behind the other in `bytes`, rows without padding; what is behind the third
    /// (alpha) is not looked at.
    ///
    /// # Errors
    /// All of [`PlanesError`] but `Rows` and `Out`.
    pub fn packed(self, bytes: &[u8], width: usize, height: usize) -> Result<Planes<'_>, PlanesError> {
        let Self { bits, shift, matrix, range } = self;
        let none = Plane { bytes: &[], stride: 0 };
        let mut planes = Planes { planes: [none; 3], width, height, bits, shift, matrix, range };
        planes.check_shape()?;
        let mut rest = bytes;
        for plane in 0..planes.planes() {
            let (columns, rows) = planes.plane_size(plane);
            let stride = columns * planes.sample_bytes();
            planes.planes[plane] = Plane { bytes: rest, stride };
            rest = rest.get(rows * stride..).unwrap_or_default();
        }
        planes.check()?;
        Ok(planes)
    }
}
