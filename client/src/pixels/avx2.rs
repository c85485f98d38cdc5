//! The kernels with AVX2: `vpmaddwd` multiplies two taps in each 32-bit lane and adds the products.
//!
//! Weights are two signed 16-bit halves ([`Halves`]), so two sums are kept and joined at the end. Pixels are widened with zeros, so
//! that −32768 · −32768 twice, the one case in which `vpmaddwd` wraps, cannot come up. A call serves four rows, two in each register.

use std::arch::x86_64::*;

use super::axis::{Axis, LOAD_BYTES, Taps};
use super::passes::FourRows;
use super::quads::Quads;
use super::weights::{HALF, Halves, PRECISION};

/// Bytes of a row that the vertical kernel makes at once: one register of pixels, four of sums for each half.
const BLOCK_BYTES: usize = 32;

/// Sums by weight half, in eight lanes.
#[derive(Clone, Copy)]
struct Sums([__m256i; 2]);

impl Sums {
    #[inline]
    #[target_feature(enable = "avx2")]
    fn new() -> Self {
        Self([_mm256_set1_epi32(HALF), _mm256_setzero_si256()])
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn add(&mut self, pixels: __m256i, weights: [__m256i; 2]) {
        for (sum, weights) in self.0.iter_mut().zip(weights) {
            *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pixels, weights));
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn joined(self) -> __m256i {
        let [low, high] = self.0;
        _mm256_add_epi32(low, _mm256_slli_epi32::<16>(high))
    }

    /// Whole pixel values, not yet clipped.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn values(self) -> __m256i {
        _mm256_srai_epi32::<{ PRECISION as i32 }>(self.joined())
    }
}

/// One word of each half, in every lane.
#[inline]
#[target_feature(enable = "avx2")]
fn in_every_lane(weights: &Halves<1>) -> [__m256i; 2] {
    let [[low], [high]] = *weights;
    [_mm256_set1_epi32(low), _mm256_set1_epi32(high)]
}

/// Four words of each half, the same for both rows of a register.
#[inline]
#[target_feature(enable = "avx2")]
fn in_every_row(weights: &Halves<4>) -> [__m256i; 2] {
    let [low, high] = weights;
    // SAFETY: four words are sixteen bytes, and the load needs no alignment.
    let load = |words: &[i32; 4]| _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(words.as_ptr().cast()) });
    [load(low), load(high)]
}

/// Eight words of each half.
#[inline]
#[target_feature(enable = "avx2")]
fn as_they_are(weights: &Halves<8>) -> [__m256i; 2] {
    let [low, high] = weights;
    // SAFETY: eight words are thirty-two bytes, and the load needs no alignment.
    let load = |words: &[i32; 8]| unsafe { _mm256_loadu_si256(words.as_ptr().cast()) };
    [load(low), load(high)]
}

/// Sixteen bytes of one row, `at` bytes from its start.
///
/// # Safety
/// The row has `at + 16` bytes in its buffer.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load_row(rows: &FourRows<'_>, row: usize, at: usize) -> __m128i {
    // SAFETY: the caller's promise.
    unsafe { _mm_loadu_si128(rows.buffer.as_ptr().add(rows.starts[row] + at).cast()) }
}

/// Sixteen bytes of each row, `at` bytes from its start: the first two rows, the last two.
///
/// # Safety
/// Each row has `at + 16` bytes in its buffer.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load(rows: &FourRows<'_>, at: usize) -> [__m256i; 2] {
    // SAFETY: the caller's promise, of each row.
    let [first, second, third, fourth] =
        unsafe { [load_row(rows, 0, at), load_row(rows, 1, at), load_row(rows, 2, at), load_row(rows, 3, at)] };
    [_mm256_set_m128i(second, first), _mm256_set_m128i(fourth, third)]
}

/// Clips four values of each row and stores them as four bytes at `at` of each row of `out`.
///
/// # Safety
/// `at + 4` is at most a fourth of `out`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn store(sums: [Sums; 2], out: &mut [u8], at: usize) {
    // Saturation within 16 and then 8 bits clips: values lie within ±2⁹ after the shift. Packing works within a 128-bit half, so the
    // lower half holds rows 0 and 2, the upper one rows 1 and 3.
    let pairs = _mm256_packs_epi32(sums[0].values(), sums[1].values());
    let bytes = _mm256_packus_epi16(pairs, pairs);
    let (even, odd) = (_mm256_castsi256_si128(bytes), _mm256_extracti128_si256::<1>(bytes));
    let words =
        [_mm_extract_epi32::<0>(even), _mm_extract_epi32::<0>(odd), _mm_extract_epi32::<1>(even), _mm_extract_epi32::<1>(odd)];
    let line = out.len() / 4;
    for (row, word) in words.into_iter().enumerate() {
        // SAFETY: row * line + at + 4 <= 4 * line, the length of out at most.
        unsafe { out.as_mut_ptr().add(row * line + at).cast::<i32>().write_unaligned(word) };
    }
}

/// Clips two neighbouring pixels of each row and stores them as eight bytes at `at` of each row of `out`, the second pixel's behind the
/// `CHANNELS` of the first.
///
/// # Safety
/// `at + 8` is at most a fourth of `out`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn store_two<const CHANNELS: usize>(pixels: [[Sums; 2]; 2], out: &mut [u8], at: usize) {
    // As in `store`, with the second pixel in the upper eight bytes of each 128-bit half; the shuffle brings a row's two together.
    let [[a, b], [c, d]] = pixels;
    let first = _mm256_packs_epi32(a.values(), b.values());
    let bytes = _mm256_packus_epi16(first, _mm256_packs_epi32(c.values(), d.values()));
    let together = match CHANNELS {
        3 => _mm_setr_epi8(0, 1, 2, 8, 9, 10, 11, -1, 4, 5, 6, 12, 13, 14, 15, -1),
        _ => _mm_setr_epi8(0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15),
    };
    let bytes = _mm256_shuffle_epi8(bytes, _mm256_broadcastsi128_si256(together));
    let (even, odd) = (_mm256_castsi256_si128(bytes), _mm256_extracti128_si256::<1>(bytes));
    let line = out.len() / 4;
    // SAFETY: for each row, row * line + at + 8 <= 4 * line, the length of out at most; a half store needs no alignment.
    unsafe {
        let first = out.as_mut_ptr().add(at);
        _mm_storel_epi64(first.cast(), even);
        _mm_storel_epi64(first.add(line).cast(), odd);
        _mm_storeh_pd(first.add(2 * line).cast(), _mm_castsi128_pd(even));
        _mm_storeh_pd(first.add(3 * line).cast(), _mm_castsi128_pd(odd));
    }
}

/// Four rows of 3 or 4 channels along x: a lane is a channel, its two halves are two taps.
#[target_feature(enable = "avx2")]
pub(super) fn horizontal<const CHANNELS: usize>(rows: &FourRows<'_>, axis: &Axis, weights: &[Halves<1>], out: &mut [u8]) {
    rows.assert_fit(axis, CHANNELS, out);
    match axis.same_taps().map(|taps| taps.div_ceil(2)) {
        Some(0 | 1) => line::<CHANNELS, 1>(rows, axis, weights, out),
        Some(2) => line::<CHANNELS, 2>(rows, axis, weights, out),
        Some(3) => line::<CHANNELS, 3>(rows, axis, weights, out),
        Some(4) => line::<CHANNELS, 4>(rows, axis, weights, out),
        _ => line::<CHANNELS, ANY>(rows, axis, weights, out),
    }
}

/// In place of a number of tap pairs: each sample's own.
const ANY: usize = 0;

/// Every pixel by so many pairs of taps, which then is no loop.
#[inline]
#[target_feature(enable = "avx2")]
fn line<const CHANNELS: usize, const PAIRS: usize>(rows: &FourRows<'_>, axis: &Axis, weights: &[Halves<1>], out: &mut [u8]) {
    let deals = deals::<CHANNELS>();
    let words = axis.stride / 2;
    let (twos, last) = axis.taps.as_chunks::<2>();
    for (two, (taps, weights)) in twos.iter().zip(weights.chunks_exact(2 * words)).enumerate() {
        let (first, second) = weights.split_at(words);
        // SAFETY: the caller asserts: axis.reach covers all loads of these taps, and a row of out all pixels and four bytes more, of
        // which two are written here at most; the next pixels overwrite them.
        unsafe {
            let first = pixel::<CHANNELS, PAIRS>(rows, taps[0], first, deals);
            let second = pixel::<CHANNELS, PAIRS>(rows, taps[1], second, deals);
            store_two::<CHANNELS>([first, second], out, 2 * two * CHANNELS);
        }
    }
    if let &[taps] = last {
        let at = axis.taps.len() - 1;
        // SAFETY: as above; one byte more is written.
        unsafe { store(pixel::<CHANNELS, PAIRS>(rows, taps, &weights[at * words..], deals), out, at * CHANNELS) };
    }
}

/// The sums of one pixel of each row: four taps a load, and behind them one pair where no more are left.
///
/// # Safety
/// `axis.reach`, which each row has, covers the loads of `taps`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn pixel<const CHANNELS: usize, const PAIRS: usize>(
    rows: &FourRows<'_>,
    taps: Taps,
    weights: &[Halves<1>],
    deals: [__m256i; 2],
) -> [Sums; 2] {
    let mut sums = [Sums::new(); 2];
    let pairs = if PAIRS == ANY { taps.count.div_ceil(2) } else { PAIRS };
    let mut at = taps.first * CHANNELS;
    let (steps, last) = weights[..pairs].as_chunks::<2>();
    for weights in steps {
        // SAFETY: the caller's promise.
        let bytes = unsafe { load(rows, at) };
        add_dealt(&mut sums, bytes, deals, [in_every_lane(&weights[0]), in_every_lane(&weights[1])]);
        at += 4 * CHANNELS;
    }
    if let [weights] = last {
        // SAFETY: the caller's promise.
        let bytes = unsafe { load(rows, at) };
        let weights = in_every_lane(weights);
        for (sums, bytes) in sums.iter_mut().zip(bytes) {
            sums.add(_mm256_shuffle_epi8(bytes, deals[0]), weights);
        }
    }
    sums
}

/// Shuffles that deal four pixels out to channels, two taps each, widened with zeros.
#[inline]
#[target_feature(enable = "avx2")]
fn deals<const CHANNELS: usize>() -> [__m256i; 2] {
    let [first, second] = match CHANNELS {
        3 => [
            _mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1),
            _mm_setr_epi8(6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1),
        ],
        _ => [
            _mm_setr_epi8(0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, 3, -1, 7, -1),
            _mm_setr_epi8(8, -1, 12, -1, 9, -1, 13, -1, 10, -1, 14, -1, 11, -1, 15, -1),
        ],
    };
    [_mm256_broadcastsi128_si256(first), _mm256_broadcastsi128_si256(second)]
}

/// Adds a load of four rows to their sums: taps 0 and 1 by the first deal and weights, taps 2 and 3 by the second.
#[inline]
#[target_feature(enable = "avx2")]
fn add_dealt(sums: &mut [Sums; 2], bytes: [__m256i; 2], deals: [__m256i; 2], weights: [[__m256i; 2]; 2]) {
    for (deal, weights) in deals.into_iter().zip(weights) {
        for (sums, bytes) in sums.iter_mut().zip(bytes) {
            sums.add(_mm256_shuffle_epi8(bytes, deal), weights);
        }
    }
}

/// Four gray rows along x, four neighbouring pixels at a time: a lane is a pixel, its two halves are two taps.
#[target_feature(enable = "avx2")]
pub(super) fn gray_quads(rows: &FourRows<'_>, axis: &Axis, quads: &Quads<Halves<4>>, out: &mut [u8]) {
    rows.assert_fit(axis, 1, out);
    for (group, (quad, weights)) in quads.groups.iter().zip(quads.weights.chunks_exact(2 * quads.steps.max(1))).enumerate() {
        // SAFETY: a shuffle is sixteen bytes, and the load needs no alignment.
        let deal = |half: usize| _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(quad.deals[half].as_ptr().cast()) });
        let deals = [deal(0), deal(1)];
        let mut sums = [Sums::new(); 2];
        for (step, weights) in weights.chunks_exact(2).enumerate() {
            // SAFETY: asserted: axis.reach covers the last step's load.
            let bytes = unsafe { load(rows, quad.first + 4 * step) };
            add_dealt(&mut sums, bytes, deals, [in_every_row(&weights[0]), in_every_row(&weights[1])]);
        }
        // SAFETY: asserted: a row of out holds all pixels, rounded up to four.
        unsafe { store(sums, out, 4 * group) };
    }
}

/// Four gray rows along x, a pixel at a time: sixteen taps of a row a load, whose lanes are added at the end.
#[target_feature(enable = "avx2")]
pub(super) fn gray(rows: &FourRows<'_>, axis: &Axis, weights: &[Halves<8>], out: &mut [u8]) {
    rows.assert_fit(axis, 1, out);
    let line = out.len() / 4;
    for (pixel, (taps, weights)) in axis.taps.iter().zip(weights.chunks_exact(axis.stride / LOAD_BYTES)).enumerate() {
        let mut sums = [Sums([_mm256_setzero_si256(); 2]); 4];
        for (step, weights) in weights[..taps.count.div_ceil(LOAD_BYTES)].iter().enumerate() {
            let weights = as_they_are(weights);
            for (row, sums) in sums.iter_mut().enumerate() {
                // SAFETY: asserted: axis.reach covers the last step's load.
                let bytes = unsafe { load_row(rows, row, taps.first + LOAD_BYTES * step) };
                sums.add(_mm256_cvtepu8_epi16(bytes), weights);
            }
        }
        for (row, byte) in totals(sums).into_iter().enumerate() {
            out[row * line + pixel] = byte;
        }
    }
}

/// Adds the lanes of each row's sums, rounds and clips: one byte for each row.
#[inline]
#[target_feature(enable = "avx2")]
fn totals(sums: [Sums; 4]) -> [u8; 4] {
    let first_rows = _mm256_hadd_epi32(sums[0].joined(), sums[1].joined());
    let last_rows = _mm256_hadd_epi32(sums[2].joined(), sums[3].joined());
    let halves = _mm256_hadd_epi32(first_rows, last_rows);
    let total = _mm_add_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256::<1>(halves));
    let values = _mm_srai_epi32::<{ PRECISION as i32 }>(_mm_add_epi32(total, _mm_set1_epi32(HALF)));
    let pairs = _mm_packs_epi32(values, values);
    _mm_cvtsi128_si32(_mm_packus_epi16(pairs, pairs)).to_le_bytes()
}

/// One row across y: the rows of `buffer` that begin at `starts`, two for each of `weights`, summed into `out`.
/// A lane is a column, its two halves are two rows.
#[target_feature(enable = "avx2")]
pub(super) fn vertical(buffer: &[u8], starts: &[usize], weights: &[Halves<1>], out: &mut [u8]) {
    assert!(starts.iter().all(|start| start + out.len() <= buffer.len()), "row outside its buffer");
    match starts.len() / 2 {
        1 => columns::<1>(buffer, starts, weights, out),
        2 => columns::<2>(buffer, starts, weights, out),
        3 => columns::<3>(buffer, starts, weights, out),
        4 => columns::<4>(buffer, starts, weights, out),
        _ => columns::<ANY>(buffer, starts, weights, out),
    }
}

/// Every column by so many pairs of rows, which then is no loop.
#[inline]
#[target_feature(enable = "avx2")]
fn columns<const PAIRS: usize>(buffer: &[u8], starts: &[usize], weights: &[Halves<1>], out: &mut [u8]) {
    let pairs = if PAIRS == ANY { starts.len() / 2 } else { PAIRS };
    let (starts, weights, line) = (&starts.as_chunks::<2>().0[..pairs], &weights[..pairs], out.len());
    for at in (0..line).step_by(BLOCK_BYTES) {
        if line >= BLOCK_BYTES {
            // The last block begins earlier, where it is whole, and makes some columns again.
            let at = at.min(line - BLOCK_BYTES);
            // SAFETY: asserted by the caller: each row has line bytes, and so BLOCK_BYTES from here.
            let block = vertical_block(starts, weights, |start| unsafe { load_block(buffer, start + at) });
            out[at..at + BLOCK_BYTES].copy_from_slice(&block);
        } else {
            let block = vertical_block(starts, weights, |start| load_part(&buffer[start..start + line]));
            out.copy_from_slice(&block[..line]);
        }
    }
}

/// # Safety
/// `buffer` has [`BLOCK_BYTES`] from `at`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load_block(buffer: &[u8], at: usize) -> __m256i {
    // SAFETY: the caller's promise; the load needs no alignment.
    unsafe { _mm256_loadu_si256(buffer.as_ptr().add(at).cast()) }
}

/// Less than a block, zeros behind it.
#[inline]
#[target_feature(enable = "avx2")]
fn load_part(bytes: &[u8]) -> __m256i {
    let mut block = [0; BLOCK_BYTES];
    block[..bytes.len()].copy_from_slice(bytes);
    // SAFETY: the array has BLOCK_BYTES, and the load needs no alignment.
    unsafe { _mm256_loadu_si256(block.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn vertical_block(starts: &[[usize; 2]], weights: &[Halves<1>], load: impl Fn(usize) -> __m256i) -> [u8; BLOCK_BYTES] {
    let zero = _mm256_setzero_si256();
    let mut sums = [Sums::new(); 4];
    for (starts, weights) in starts.iter().zip(weights) {
        let (weights, [upper, lower]) = (in_every_lane(weights), [load(starts[0]), load(starts[1])]);
        let (low, high) = (_mm256_unpacklo_epi8(upper, lower), _mm256_unpackhi_epi8(upper, lower));
        sums[0].add(_mm256_unpacklo_epi8(low, zero), weights);
        sums[1].add(_mm256_unpackhi_epi8(low, zero), weights);
        sums[2].add(_mm256_unpacklo_epi8(high, zero), weights);
        sums[3].add(_mm256_unpackhi_epi8(high, zero), weights);
    }
    // Clips as in `store`, and undoes the order in which unpacking left the columns.
    let low = _mm256_packs_epi32(sums[0].values(), sums[1].values());
    let high = _mm256_packs_epi32(sums[2].values(), sums[3].values());
    let mut block = [0; BLOCK_BYTES];
    // SAFETY: the array has BLOCK_BYTES, and the store needs no alignment.
    unsafe { _mm256_storeu_si256(block.as_mut_ptr().cast(), _mm256_packus_epi16(low, high)) };
    block
}
