//! The definition with AVX2, 32 pixels at a time: 16-bit lanes for luma but at 10 bits of full range.
//!
//! F ([`Coefs`]) of a chroma sample is a whole part and a fraction of each coefficient. The fraction at 2³² is two signed 16-bit halves, so
//! `vpmaddwd` sums both samples' products: `whole + ((high + half + ((low + bias) >> 16)) >> 16)`. Halves are rounded, so the sum is off by
//! up to 2¹⁰ · ½ and an exact tie may fall either way: [`BIAS`] lifts it to where every floor is that of the fraction, which the tests see
//! at every pair of samples.
//!
//! Luma adds m y' and divides by D: 8 bits limited `(85 y + F) / 73`, full `y + F`. At 10 bits limited D = 4 · 73: with F = 4c + d and
//! y = 4p + q the quotient by four is `85 p + 21 q + c + ((q + d) >> 2)`, which fits 16 bits. Saturation and negative sums end in the clip.

use std::arch::x86_64::*;
use std::ops::Range as Rows;

use super::coefs::{Coefs, Part};
use super::{Matrix, Planes, Range};

/// Pixels made at once.
const STEP: usize = 32;

/// At 2³² for red, green and blue. Each lies within what its channel leaves room for in all of the twelve formats.
const BIAS: [i32; 3] = [1000, 150, 1000];

/// Whether there is a kernel for such planes; the scalar one makes the others.
pub(super) fn serves(planes: &Planes<'_>) -> bool {
    let yuv = !matches!(planes.matrix, Matrix::Rgb | Matrix::Gray);
    yuv && matches!(planes.bits, 8 | 10) && planes.shift.0 < 2
}

/// Rows of planes that are checked, and that [`serves`] says yes to, into `out`: three bytes for each of their pixels.
#[target_feature(enable = "avx2")]
pub(super) fn rows(planes: &Planes<'_>, coefs: &Coefs, rows: Rows<usize>, out: &mut [u8]) {
    match (planes.bits, planes.range, planes.shift.0) {
        (8, Range::Limited, 0) => frame::<8, false, 0>(planes, coefs, rows, out),
        (8, Range::Limited, _) => frame::<8, false, 1>(planes, coefs, rows, out),
        (8, Range::Full, 0) => frame::<8, true, 0>(planes, coefs, rows, out),
        (8, Range::Full, _) => frame::<8, true, 1>(planes, coefs, rows, out),
        (_, Range::Limited, 0) => frame::<10, false, 0>(planes, coefs, rows, out),
        (_, Range::Limited, _) => frame::<10, false, 1>(planes, coefs, rows, out),
        (_, Range::Full, 0) => frame::<10, true, 0>(planes, coefs, rows, out),
        (_, Range::Full, _) => frame::<10, true, 1>(planes, coefs, rows, out),
    }
}

/// `NARROW` is the shift of chroma along x.
#[inline]
#[target_feature(enable = "avx2")]
fn frame<const BITS: u8, const FULL: bool, const NARROW: usize>(
    planes: &Planes<'_>,
    coefs: &Coefs,
    rows: Rows<usize>,
    out: &mut [u8],
) {
    let kernel = Kernel::<BITS, FULL, NARROW>::of(coefs);
    let (line, sample_bytes) = (planes.width * 3, usize::from(BITS > 8) + 1);
    for block in planes.blocks(rows.clone()) {
        let chroma_row = block.start >> planes.shift.1;
        let (u, v) = (row_bytes(planes, 1, chroma_row), row_bytes(planes, 2, chroma_row));
        let out = &mut out[(block.start - rows.start) * line..(block.end - rows.start) * line];
        for x in (0..planes.width).step_by(STEP) {
            // The last step may lack samples: those are read from, and its pixels made in, memory of its own. One call each, for what is
            // called from two places is not inlined.
            let left = STEP.min(planes.width - x);
            let at = (x >> NARROW) * sample_bytes;
            let (mut u, mut v, whole) = (&u[at..], &v[at..], left == STEP);
            let (u_part, v_part);
            if !whole {
                let bytes = left.div_ceil(1 << NARROW) * sample_bytes;
                (u_part, v_part) = (padded(&u[..bytes]), padded(&v[..bytes]));
                (u, v) = (&u_part, &v_part);
            }
            let chroma = kernel.chroma(u, v);
            for (row, out) in block.clone().zip(out.chunks_exact_mut(line)) {
                let mut luma = &row_bytes(planes, 0, row)[x * sample_bytes..];
                let luma_part;
                if !whole {
                    luma_part = padded(&luma[..left * sample_bytes]);
                    luma = &luma_part;
                }
                let pixels = kernel.pixels(luma, &chroma);
                let out = &mut out[3 * x..];
                if whole {
                    store(pixels, out);
                } else {
                    let mut made = [0; 3 * STEP];
                    store(pixels, &mut made);
                    out.copy_from_slice(&made[..3 * left]);
                }
            }
        }
    }
}

/// A row of a plane and what follows it.
fn row_bytes<'a>(planes: &Planes<'a>, plane: usize, row: usize) -> &'a [u8] {
    &planes.planes[plane].bytes[row * planes.planes[plane].stride..]
}

/// What there is of a step's samples, zeros behind them.
fn padded(bytes: &[u8]) -> [u8; 2 * STEP] {
    let mut whole = [0; 2 * STEP];
    whole[..bytes.len()].copy_from_slice(bytes);
    whole
}

/// F of 16 luma samples for one channel. At 8 bits `[F - m black, _]`; at 10 bits limited its quotient by four and the rest; at 10
/// bits full two vectors of 32-bit lanes, in the order in which unpacking leaves them.
type Chroma = [__m256i; 2];

// Loops and no closures below: what `map` calls is not inlined where it needs more than every processor has.

/// Three channels of each 16 luma samples: 0 to 7 and 16 to 23, 8 to 15 and 24 to 31.
type Chromas = [[Chroma; 3]; 2];

/// A channel's coefficients, those of u in the lower half of a word and those of v in the upper one.
struct Words {
    whole: i32,
    high: i32,
    low: i32,
}

impl Words {
    fn of(part: &Part) -> Self {
        let [u, v] = [part.a, part.b].map(|over| {
            let whole = (2 * over + part.d).div_euclid(2 * part.d);
            let rest = i128::from(over - whole * part.d) << 33;
            let rest = ((rest + i128::from(part.d)).div_euclid(2 * i128::from(part.d))) as i64;
            let low = rest as i16;
            (whole as i16, ((rest - i64::from(low)) >> 16) as i16, low)
        });
        let word = |u: i16, v: i16| i32::from(v) << 16 | i32::from(u as u16);
        Self { whole: word(u.0, v.0), high: word(u.1, v.1), low: word(u.2, v.2) }
    }
}

/// `vpmulhrsw` rounds a product of a sample and a fraction at 2¹⁵ to a whole number, half up. One unit more than the nearest such
/// fraction gives F at every 8-bit sample, in all six formats; but no unit does where a sample comes to an exact half on one side
/// of the middle and to another on the other, which takes a denominator that samples reach: BT.601's blue of full range.
fn short(part: &Part) -> Option<(i16, i16)> {
    let over = part.a + part.b;
    let whole = (2 * over + part.d).div_euclid(2 * part.d);
    let rest = (((over - whole * part.d) << 16) + part.d).div_euclid(2 * part.d);
    (part.d > 256).then_some((whole as i16, rest as i16 + 1))
}

struct Kernel<const BITS: u8, const FULL: bool, const NARROW: usize> {
    channels: [Words; 3],
    /// Red's and blue's one coefficient where the short way is exact: the whole part, and the fraction at 2¹⁵.
    short: [Option<(i16, i16)>; 2],
    middle: i16,
    sample_max: i16,
    /// What is added before and after the shift of the fraction: of D / 2 the half, and the rest less m black.
    half: i32,
    base: i32,
}

impl<const BITS: u8, const FULL: bool, const NARROW: usize> Kernel<BITS, FULL, NARROW> {
    fn of(coefs: &Coefs) -> Self {
        Self {
            channels: std::array::from_fn(|channel| Words::of(&coefs.chroma[channel])),
            short: [0, 2].map(|channel| short(&coefs.chroma[channel]).filter(|_| BITS == 8)),
            middle: coefs.middle as i16,
            sample_max: coefs.sample_max as i16,
            half: (coefs.level & 1) << 15,
            base: coefs.no_chroma() + coefs.luma(0),
        }
    }

    /// F of the 32 luma samples whose chroma `u` and `v` begin with: 32 samples, or 16 where it is narrow.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn chroma(&self, u: &[u8], v: &[u8]) -> Chromas {
        if NARROW == 0 {
            let ([u0, u1], [v0, v1]) = (self.halves(u), self.halves(v));
            return [self.chroma_of(u0, v0), self.chroma_of(u1, v1)];
        }
        let narrow = self.chroma_of(self.sixteen(u), self.sixteen(v));
        let mut wide = [narrow; 2];
        for (upper, half) in wide.iter_mut().enumerate() {
            for [a, b] in half {
                (*a, *b) = match (BITS, FULL) {
                    (10, true) => {
                        let four = if upper == 0 { *a } else { *b };
                        (_mm256_unpacklo_epi32(four, four), _mm256_unpackhi_epi32(four, four))
                    }
                    _ if upper == 0 => (_mm256_unpacklo_epi16(*a, *a), _mm256_unpacklo_epi16(*b, *b)),
                    _ => (_mm256_unpackhi_epi16(*a, *a), _mm256_unpackhi_epi16(*b, *b)),
                };
            }
        }
        wide
    }

    /// F of 16 chroma samples.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn chroma_of(&self, u: __m256i, v: __m256i) -> [Chroma; 3] {
        let middle = _mm256_set1_epi16(self.middle);
        let (u, v) = (_mm256_sub_epi16(u, middle), _mm256_sub_epi16(v, middle));
        let (low, high) = (_mm256_unpacklo_epi16(u, v), _mm256_unpackhi_epi16(u, v));
        let three = _mm256_set1_epi32(3);
        let mut chroma = [[_mm256_setzero_si256(); 2]; 3];
        for (channel, made) in chroma.iter_mut().enumerate() {
            if let (8, 0 | 2, Some((whole, fraction))) = (BITS, channel, self.short[channel / 2]) {
                let sample = if channel == 0 { v } else { u };
                let whole = _mm256_mullo_epi16(sample, _mm256_set1_epi16(whole));
                let whole = _mm256_add_epi16(whole, _mm256_set1_epi16(self.base as i16));
                made[0] = _mm256_add_epi16(whole, _mm256_mulhrs_epi16(sample, _mm256_set1_epi16(fraction)));
                continue;
            }
            let (a, b) = (self.part(low, channel), self.part(high, channel));
            *made = match (BITS, FULL) {
                (8, _) => [_mm256_packs_epi32(a, b), _mm256_setzero_si256()],
                (_, true) => [a, b],
                (_, false) => [
                    _mm256_packs_epi32(_mm256_srai_epi32::<2>(a), _mm256_srai_epi32::<2>(b)),
                    _mm256_packs_epi32(_mm256_and_si256(a, three), _mm256_and_si256(b, three)),
                ],
            };
        }
        chroma
    }

    /// F - m black of eight pairs of u and v.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn part(&self, pairs: __m256i, channel: usize) -> __m256i {
        let Words { whole, high, low } = self.channels[channel];
        let times = |words| _mm256_madd_epi16(pairs, _mm256_set1_epi32(words));
        let low = _mm256_srai_epi32::<16>(_mm256_add_epi32(times(low), _mm256_set1_epi32(BIAS[channel])));
        let fraction = _mm256_add_epi32(_mm256_add_epi32(times(high), _mm256_set1_epi32(self.half)), low);
        let whole = _mm256_add_epi32(times(whole), _mm256_set1_epi32(self.base));
        _mm256_add_epi32(whole, _mm256_srai_epi32::<16>(fraction))
    }

    /// Red, green and blue of the 32 pixels whose luma `luma` begins with.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn pixels(&self, luma: &[u8], chroma: &Chromas) -> [__m256i; 3] {
        let [low, high] = self.halves(luma);
        let mut pixels = [low; 3];
        for (channel, made) in pixels.iter_mut().enumerate() {
            *made = _mm256_packus_epi16(Self::sum(low, chroma[0][channel]), Self::sum(high, chroma[1][channel]));
        }
        pixels
    }

    /// The quotients of 16 luma samples, not yet clipped.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn sum(luma: __m256i, [chroma, rest]: Chroma) -> __m256i {
        // Floor of a 16-bit sum by 73, where that comes to at most 255, and at least 256 where it comes to more.
        let by_73 = |sum| _mm256_srai_epi16::<5>(_mm256_mulhi_epi16(sum, _mm256_set1_epi16(28_729)));
        match (BITS, FULL) {
            (8, true) => _mm256_adds_epi16(luma, chroma),
            (8, false) => by_73(_mm256_adds_epi16(_mm256_mullo_epi16(luma, _mm256_set1_epi16(85)), chroma)),
            (_, false) => {
                let (p, q) = (_mm256_srli_epi16::<2>(luma), _mm256_and_si256(luma, _mm256_set1_epi16(3)));
                let p = _mm256_mullo_epi16(p, _mm256_set1_epi16(85));
                let pq = _mm256_add_epi16(p, _mm256_mullo_epi16(q, _mm256_set1_epi16(21)));
                let carried = _mm256_srli_epi16::<2>(_mm256_add_epi16(q, rest));
                by_73(_mm256_adds_epi16(_mm256_adds_epi16(pq, chroma), carried))
            }
            (_, true) => {
                // A sum is under 2¹⁸, so that it and a half are exact in 24 bits. Negative ones end at 0 or below.
                let quotient = |luma, chroma| {
                    let sum = _mm256_add_epi32(_mm256_madd_epi16(luma, _mm256_set1_epi32(85)), chroma);
                    let sum = _mm256_add_ps(_mm256_cvtepi32_ps(sum), _mm256_set1_ps(0.5));
                    _mm256_cvttps_epi32(_mm256_mul_ps(sum, _mm256_set1_ps(1.0 / 341.0)))
                };
                let zero = _mm256_setzero_si256();
                let (low, high) = (_mm256_unpacklo_epi16(luma, zero), _mm256_unpackhi_epi16(luma, zero));
                _mm256_packs_epi32(quotient(low, chroma), quotient(high, rest))
            }
        }
    }

    /// 32 samples as 16-bit lanes: 0 to 7 and 16 to 23, 8 to 15 and 24 to 31.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn halves(&self, bytes: &[u8]) -> [__m256i; 2] {
        if BITS == 8 {
            let (bytes, zero) = (load(bytes), _mm256_setzero_si256());
            return [_mm256_unpacklo_epi8(bytes, zero), _mm256_unpackhi_epi8(bytes, zero)];
        }
        let (a, b) = (self.sixteen(bytes), self.sixteen(&bytes[32..]));
        [_mm256_permute2x128_si256::<0x20>(a, b), _mm256_permute2x128_si256::<0x31>(a, b)]
    }

    /// 16 samples as 16-bit lanes.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn sixteen(&self, bytes: &[u8]) -> __m256i {
        if BITS == 8 {
            assert!(bytes.len() >= 16);
            // SAFETY: there are sixteen bytes, and the load needs no alignment.
            return _mm256_cvtepu8_epi16(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) });
        }
        _mm256_min_epu16(load(bytes), _mm256_set1_epi16(self.sample_max))
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(bytes: &[u8]) -> __m256i {
    assert!(bytes.len() >= 32);
    // SAFETY: there are thirty-two bytes, and the load needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// Stores 32 pixels, three bytes each.
#[inline]
#[target_feature(enable = "avx2")]
fn store([red, green, blue]: [__m256i; 3], out: &mut [u8]) {
    assert!(out.len() >= 3 * STEP);
    let twice = |half| _mm256_broadcastsi128_si256(half);
    // Byte 3i of a pixel's sixteen is red's i, and so on: each shuffle puts its channel where one of three registers wants it.
    let red = _mm256_shuffle_epi8(red, twice(_mm_setr_epi8(0, 11, 6, 1, 12, 7, 2, 13, 8, 3, 14, 9, 4, 15, 10, 5)));
    let green = _mm256_shuffle_epi8(green, twice(_mm_setr_epi8(5, 0, 11, 6, 1, 12, 7, 2, 13, 8, 3, 14, 9, 4, 15, 10)));
    let blue = _mm256_shuffle_epi8(blue, twice(_mm_setr_epi8(10, 5, 0, 11, 6, 1, 12, 7, 2, 13, 8, 3, 14, 9, 4, 15)));
    let second = twice(_mm_setr_epi8(0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0));
    let third = twice(_mm_setr_epi8(0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0));
    let mixed = |a, b, c| _mm256_blendv_epi8(_mm256_blendv_epi8(a, b, second), c, third);
    let (p, q, s) = (mixed(red, green, blue), mixed(green, blue, red), mixed(blue, red, green));
    // The lower halves are the first 48 bytes.
    let parts = [
        _mm256_permute2x128_si256::<0x20>(p, q),
        _mm256_permute2x128_si256::<0x30>(s, p),
        _mm256_permute2x128_si256::<0x31>(q, s),
    ];
    for (at, part) in parts.into_iter().enumerate() {
        // SAFETY: 96 bytes are asserted, and the store needs no alignment.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().add(32 * at).cast(), part) };
    }
}
