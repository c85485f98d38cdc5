//! The integers that stand for a matrix, a range and a depth.
//!
//! With y' luma over black and u, v chroma over its middle, a channel is `255 (y' / dy + c)`, where dy is white minus black and
//! c = a u + b v a fraction. Multiplied by 255 and brought over the smallest denominator D of luma's part, `255 / dy = m / D`:
//!
//! `out = floor((m y' + 255 D c + D / 2) / D) = floor((m y' + F) / D)` with `F = floor(255 D c + D / 2)`,
//!
//! exact because m y' and D are integers (a floor of a floor). F is made once for a chroma sample, by whole numbers: `(a u + b v + c) / d`.

use super::{Matrix, Range};

/// Parts of one in which Kr and Kb are whole.
const ONE: i64 = 10_000;

/// The arithmetic of one kind of planes.
#[derive(Clone, Debug)]
pub(super) struct Coefs {
    /// The largest sample.
    pub(super) sample_max: i32,
    /// Black.
    pub(super) black: i32,
    /// Middle of chroma.
    pub(super) middle: i32,
    /// m: what a step of luma adds.
    pub(super) step: i32,
    /// D: what a level of the result takes.
    pub(super) level: i32,
    /// F of red, green and blue.
    pub(super) chroma: [Part; 3],
    by_level: u64,
}

impl Coefs {
    pub(super) fn of(matrix: Matrix, range: Range, bits: u8) -> Self {
        let one = 1 << (bits - 8);
        let sample_max = (1 << bits) - 1;
        let full = range == Range::Full || matrix == Matrix::Rgb;
        let (step, level) = match full {
            true => (255 / gcd(255, sample_max), sample_max / gcd(255, sample_max)),
            false => (85, 73 * one), // 255 / 219 = 85 / 73
        };
        // 255 D over chroma's extent, the same for every depth: m, or 255 · 73 / 224.
        let (p, q) = if full { (i64::from(step), 1) } else { (255 * 73, 224) };
        let (kr, kb) = match matrix {
            Matrix::Bt709 => (2126, 722),
            Matrix::Bt2020 => (2627, 593),
            _ => (2990, 1140),
        };
        let kg = ONE - kr - kb;
        // Over twice the denominator, for D / 2.
        let part = |u: i64, v: i64, over: i64| Part::new(4 * p * u, 4 * p * v, i64::from(level) * q * over, 2 * q * over);
        let green = part(-kb * (ONE - kb), -kr * (ONE - kr), kg * ONE);
        Self {
            sample_max,
            black: if full { 0 } else { 16 * one },
            middle: 128 * one,
            step,
            level,
            chroma: [part(0, ONE - kr, ONE), green, part(ONE - kb, 0, ONE)],
            by_level: (1u64 << LEVEL_SHIFT).div_ceil(level as u64),
        }
    }

    /// What the samples of a pixel's chroma add, for each channel. `u` and `v` are over the middle.
    #[inline]
    pub(super) fn chroma(&self, u: i32, v: i32) -> [i32; 3] {
        self.chroma.map(|part| part.at(u, v))
    }

    /// What gray adds: D / 2.
    pub(super) fn no_chroma(&self) -> i32 {
        self.level / 2
    }

    /// m y', of a sample as it is stored.
    #[inline]
    pub(super) fn luma(&self, sample: i32) -> i32 {
        self.step * (sample - self.black)
    }

    /// `floor(sum / D)`, clipped to a byte.
    #[inline]
    pub(super) fn byte(&self, sum: i32) -> u8 {
        let sum = sum.clamp(0, 256 * self.level - 1) as u64;
        ((sum * self.by_level) >> LEVEL_SHIFT) as u8
    }
}

/// Division of n < 256 D by D as a product with ⌈2⁴⁰ / D⌉. That is 2⁴⁰ / D and less than one more, so the quotient comes out too large by
/// less than n / 2⁴⁰ < 256 D / 2⁴⁰, which is under 1 / D (D < 2¹⁵) and reaches no next whole number.
const LEVEL_SHIFT: u32 = 40;

/// `floor((a u + b v + c) / d)`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) a: i64,
    pub(super) b: i64,
    pub(super) c: i64,
    pub(super) d: i64,
    by: u64,
    shift: u32,
}

/// Added to a quotient while it is divided, so that nothing is negative. No F passes ±2²³: D < 2¹⁵, and chroma adds under 2 · 255.
const LIFT: i64 = 1 << 23;

impl Part {
    /// The quotient by a product with ⌈2ˢ / d⌉: of n < 2²⁴ d exact as above where 2²⁴ d · d < 2ˢ.
    fn new(a: i64, b: i64, c: i64, d: i64) -> Self {
        let common = [a, b, c, d].into_iter().fold(0, gcd64);
        let [a, b, c, d] = [a, b, c, d].map(|n| n / common);
        let bits = i64::BITS - d.leading_zeros();
        let shift = (2 * bits + 24).max(64);
        let by = (1u128 << shift).div_ceil(d as u128) as u64; // under 2⁶³: d ≥ 2^(bits - 1), and bits < 36
        Self { a, b, c: c + LIFT * d, d, by, shift: shift - 64 }
    }

    #[inline]
    fn at(&self, u: i32, v: i32) -> i32 {
        let n = self.a * i64::from(u) + self.b * i64::from(v) + self.c;
        let high = ((n as u128 * u128::from(self.by)) >> 64) as u64;
        ((high >> self.shift) as i64 - LIFT) as i32
    }
}

fn gcd(a: i32, b: i32) -> i32 {
    gcd64(a.into(), b.into()) as i32
}

/// Of magnitudes.
pub(super) fn gcd64(a: i64, b: i64) -> i64 {
    if b == 0 { a.abs() } else { gcd64(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: products stand for divisions exactly: F at all chroma of small depths and at the ends of large ones, bytes at every sum.
    #[test]
    fn divisions_are_exact() {
        for (matrix, range, bits) in super::super::tests::kinds() {
            let coefs = Coefs::of(matrix, range, bits);
            for sum in (-3 * coefs.level..300 * coefs.level).step_by(if bits > 12 { 7 } else { 1 }) {
                assert_eq!(i32::from(coefs.byte(sum)), sum.div_euclid(coefs.level).clamp(0, 255), "{sum} of {coefs:?}");
            }
            let middle = coefs.middle;
            let step = (middle / 64).max(1) as usize;
            let some: Vec<i32> = (-middle..middle).step_by(step).chain([-middle + 1, -1, 0, 1, middle - 2, middle - 1]).collect();
            for part in coefs.chroma {
                for &u in &some {
                    for &v in &some {
                        let n = part.a * i64::from(u) + part.b * i64::from(v) + part.c;
                        assert!((0..2 * LIFT * part.d).contains(&n));
                        assert_eq!(i64::from(part.at(u, v)), n.div_euclid(part.d) - LIFT, "{u} {v} of {coefs:?}");
                    }
                }
            }
        }
    }
}
