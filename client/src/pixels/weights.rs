//! Weights cut into digits, so that narrow multiplications give the wide sum.
//!
//! A sum `Σ pixel · weight` is needed as an `i32`, that is modulo 2³². So any split `weight = Σ digit · 2^shift` whose products
//! neither saturate nor round gives the same `i32` after the digits' sums are shifted and added. Digits are signed: each takes the
//! rest that the lower one left.
//!
//! A *word* is one 32-bit lane: two taps of 16-bit digits, or four taps of bytes, the first tap in the lowest bits.

use std::array;

/// Bits behind the point of a weight (Pillow, `PRECISION_BITS`): 8 for the pixel and 2 for overshoot leave 22 of 32.
pub(super) const PRECISION: u32 = 22;

/// One half: sums start here, so that the shift by [`PRECISION`] rounds to nearest.
pub(super) const HALF: i32 = 1 << (PRECISION - 1);

/// Low and high 16-bit digits of `2 * WORDS` taps: `weight = low + (high << 16)`.
pub(super) type Halves<const WORDS: usize> = [[i32; WORDS]; 2];

/// Three byte digits of `4 * WORDS` taps: `weight = b0 + (b1 << 8) + (b2 << 16)`.
pub(super) type Bytes<const WORDS: usize> = [[i32; WORDS]; 3];

/// Cuts weights, whose count is a multiple of `2 * WORDS`, into halves.
pub(super) fn halves<const WORDS: usize>(weights: &[i32]) -> Vec<Halves<WORDS>> {
    let cut = |taps: &[i32]| -> Halves<WORDS> {
        let word = |at: usize, digit: usize| {
            let [first, second] = [taps[2 * at], taps[2 * at + 1]].map(|weight| half_digits(weight)[digit] as u16);
            (u32::from(first) | u32::from(second) << 16) as i32
        };
        array::from_fn(|digit| array::from_fn(|at| word(at, digit)))
    };
    weights.chunks_exact(2 * WORDS).map(cut).collect()
}

/// Cuts weights, whose count is a multiple of `4 * WORDS`, into bytes.
pub(super) fn bytes<const WORDS: usize>(weights: &[i32]) -> Vec<Bytes<WORDS>> {
    let cut = |taps: &[i32]| -> Bytes<WORDS> {
        let word =
            |at: usize, digit: usize| i32::from_le_bytes(array::from_fn(|tap| byte_digits(taps[4 * at + tap])[digit] as u8));
        array::from_fn(|digit| array::from_fn(|at| word(at, digit)))
    };
    weights.chunks_exact(4 * WORDS).map(cut).collect()
}

fn half_digits(weight: i32) -> [i16; 2] {
    let low = weight as i16;
    [low, ((weight - i32::from(low)) >> 16) as i16]
}

/// Exact up to |weight| < 127.5 · 2¹⁶, nearly 2.0. Normalised weights stay under 1.3: the largest stand at a border that cuts off the
/// negative lobe of lanczos, two samples enlarged.
fn byte_digits(weight: i32) -> [i8; 3] {
    let first = weight as i8;
    let rest = (weight - i32::from(first)) >> 8;
    let second = rest as i8;
    let third = (rest - i32::from(second)) >> 8;
    debug_assert!(i8::try_from(third).is_ok(), "weight {weight} does not fit three bytes");
    [first, second, third as i8]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Digits put together again are the weight, over the whole range that weights take (to 1.5) and both signs.
    #[test]
    fn digits_are_the_weight() {
        let bound = 3 << (PRECISION - 1);
        for weight in (-bound..=bound).step_by(61).chain([-32769, -32768, -129, -128, 127, 128, 32767, 32768]) {
            let [low, high] = half_digits(weight).map(i32::from);
            assert_eq!(low + (high << 16), weight);
            let [first, second, third] = byte_digits(weight).map(i32::from);
            assert_eq!(first + (second << 8) + (third << 16), weight);
        }
    }

    /// Taps lie in a word from its lowest bits upward, as the dot products read them.
    #[test]
    fn first_tap_is_lowest() {
        assert_eq!(halves::<1>(&[1, 2]), [[[0x0002_0001], [0]]]);
        assert_eq!(bytes::<1>(&[1, 2, 3, 4 << 8]), [[[0x0003_0201], [0x0400_0000], [0]]]);
    }
}
