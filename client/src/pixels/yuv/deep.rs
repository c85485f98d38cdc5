//! RGB that keeps the samples' depth: the same definition with the largest sample for white, where a byte has 255.
//!
//! With M the largest sample, a channel is `M (y' / dy + c)`, rounded once, half up, and clipped to 0 to M. `M / dy = m / D` in lowest
//! terms, and `floor((m y' + F) / D)` with `F = floor(M D c + D / 2)` is that number, as `coefs` says. At 8 bits M is 255.

use super::coefs::gcd64;
use super::{Matrix, Plane, Planes, PlanesError, Range};

/// Parts of one in which Kr and Kb are whole.
const ONE: i64 = 10_000;

/// Bits of samples with chroma, at most: with 12 no product here passes 2⁶⁰.
const CHROMA_BITS_MAX: u8 = 12;

/// Makes the whole frame, `[height, width, 3]` numbers of 16 bits, the lower byte first, from the top: red, green, blue, each 0 to
/// `2^bits - 1`. Of 8 bits they are the bytes that [`super::rgb`] gives.
///
/// # Errors
/// As [`super::rgb`], and [`PlanesError::Bits`] of samples with chroma of more than 12 bits; `out` is not touched then.
pub fn rgb16(planes: &Planes<'_>, out: &mut [u8]) -> Result<(), PlanesError> {
    planes.check()?;
    let has_chroma = !matches!(planes.matrix, Matrix::Gray | Matrix::Rgb);
    if has_chroma && planes.bits > CHROMA_BITS_MAX {
        return Err(PlanesError::Bits(planes.bits));
    }
    let want = planes.height * planes.width * 6;
    if out.len() != want {
        return Err(PlanesError::Out { have: out.len(), want });
    }
    match planes.bits {
        8 => frame::<1>(planes, out),
        _ => frame::<2>(planes, out),
    }
    Ok(())
}

fn frame<const BYTES: usize>(planes: &Planes<'_>, out: &mut [u8]) {
    let deep = Deep::of(planes.matrix, planes.range, planes.bits);
    let line = planes.width * 6;
    let [first, second, third] = planes.planes;
    for (row, out) in out.chunks_exact_mut(line).enumerate() {
        let pixels = out.as_chunks_mut::<6>().0;
        let sample = |plane, row, x| sample::<BYTES>(plane, row, x, deep.max);
        match planes.matrix {
            Matrix::Rgb => {
                for (x, pixel) in pixels.iter_mut().enumerate() {
                    put(pixel, [sample(third, row, x), sample(first, row, x), sample(second, row, x)]);
                }
            }
            Matrix::Gray => {
                for (x, pixel) in pixels.iter_mut().enumerate() {
                    put(pixel, [deep.number(sample(first, row, x), deep.level / 2); 3]);
                }
            }
            _ => {
                let wide = 1 << planes.shift.0;
                let chroma_row = row >> planes.shift.1;
                for (at, pixels) in pixels.chunks_mut(wide).enumerate() {
                    let over = |plane| sample(plane, chroma_row, at) - deep.middle;
                    let added = deep.chroma(over(second), over(third));
                    for (x, pixel) in pixels.iter_mut().enumerate() {
                        let luma = sample(first, row, at * wide + x);
                        put(pixel, added.map(|added| deep.number(luma, added)));
                    }
                }
            }
        }
    }
}

fn put(pixel: &mut [u8; 6], channels: [i64; 3]) {
    for (two, channel) in pixel.as_chunks_mut::<2>().0.iter_mut().zip(channels) {
        *two = (channel as u16).to_le_bytes();
    }
}

#[inline]
fn sample<const BYTES: usize>(plane: Plane<'_>, row: usize, at: usize, max: i64) -> i64 {
    let row = &plane.bytes[row * plane.stride..];
    match BYTES {
        1 => row[at].into(),
        _ => i64::from(u16::from_le_bytes([row[2 * at], row[2 * at + 1]])).min(max),
    }
}

/// The arithmetic of one kind of planes.
struct Deep {
    /// M: the largest sample, and the largest number.
    max: i64,
    black: i64,
    middle: i64,
    /// m.
    step: i64,
    /// D.
    level: i64,
    /// F of red, green and blue.
    chroma: [Part; 3],
}

/// `floor((a u + b v + c) / d)`.
#[derive(Clone, Copy)]
struct Part {
    a: i64,
    b: i64,
    c: i64,
    d: i64,
}

impl Deep {
    fn of(matrix: Matrix, range: Range, bits: u8) -> Self {
        let (one, max) = (1i64 << (bits - 8), (1i64 << bits) - 1);
        let full = range == Range::Full;
        let (luma, chroma) = if full { (max, max) } else { (219 * one, 224 * one) };
        let common = gcd64(max, luma);
        let (step, level) = (max / common, luma / common);
        let (kr, kb) = match matrix {
            Matrix::Bt709 => (2126, 722),
            Matrix::Bt2020 => (2627, 593),
            _ => (2990, 1140),
        };
        let kg = ONE - kr - kb;
        // c is 2 (a u + b v) / (chroma over): M D c and D / 2 over twice that.
        let has_chroma = !matches!(matrix, Matrix::Gray | Matrix::Rgb);
        let part = |u: i64, v: i64, over: i64| match has_chroma {
            true => Part { a: 4 * max * level * u, b: 4 * max * level * v, c: level * chroma * over, d: 2 * chroma * over },
            false => Part { a: 0, b: 0, c: 0, d: 1 },
        };
        let green = part(-kb * (ONE - kb), -kr * (ONE - kr), kg * ONE);
        Self {
            max,
            black: if full { 0 } else { 16 * one },
            middle: 128 * one,
            step,
            level,
            chroma: [part(0, ONE - kr, ONE), green, part(ONE - kb, 0, ONE)],
        }
    }

    #[inline]
    fn chroma(&self, u: i64, v: i64) -> [i64; 3] {
        self.chroma.map(|Part { a, b, c, d }| (a * u + b * v + c).div_euclid(d))
    }

    /// `floor((m y' + F) / D)`, clipped.
    #[inline]
    fn number(&self, luma: i64, added: i64) -> i64 {
        let sum = self.step * (luma - self.black) + added;
        // Small and not negative, so that the division is one of 32 bits.
        let sum = sum.clamp(0, self.max * self.level) as u32;
        i64::from(sum / self.level as u32)
    }
}
