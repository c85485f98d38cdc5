//! The kernels with AVX-512 VNNI: `vpdpbusd` adds four products of a pixel byte and a signed weight byte to each 32-bit lane.
//!
//! Weights are three signed bytes ([`Bytes`]), so three sums are kept and joined at the end. The dot product is the form that wraps,
//! never the saturating `vpdpbusds`. A call serves four rows, one in each 128-bit lane, so that weights are shared and nothing is
//! added across lanes.

use std::arch::x86_64::*;

use super::axis::{Axis, LOAD_BYTES, Taps};
use super::passes::FourRows;
use super::quads::Quads;
use super::weights::{Bytes, HALF, PRECISION};

/// Bytes of a row that the vertical kernel makes at once: one register of pixels, four of sums for each digit.
const BLOCK_BYTES: usize = 64;

/// Sums by weight digit, in sixteen lanes.
#[derive(Clone, Copy)]
struct Sums([__m512i; 3]);

impl Sums {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    fn new() -> Self {
        Self([_mm512_set1_epi32(HALF), _mm512_setzero_si512(), _mm512_setzero_si512()])
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    fn add(&mut self, pixels: __m512i, weights: [__m512i; 3]) {
        for (sum, weights) in self.0.iter_mut().zip(weights) {
            *sum = _mm512_dpbusd_epi32(*sum, pixels, weights);
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    fn joined(self) -> __m512i {
        let [low, middle, high] = self.0;
        let upper = _mm512_add_epi32(_mm512_slli_epi32::<8>(middle), _mm512_slli_epi32::<16>(high));
        _mm512_add_epi32(low, upper)
    }

    /// Whole pixel values, not yet clipped.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    fn values(self) -> __m512i {
        _mm512_srai_epi32::<PRECISION>(self.joined())
    }
}

/// One word of each digit, in every lane.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn in_every_lane(weights: &Bytes<1>) -> [__m512i; 3] {
    let [[first], [second], [third]] = *weights;
    [_mm512_set1_epi32(first), _mm512_set1_epi32(second), _mm512_set1_epi32(third)]
}

/// Four words of each digit, the same for each of the four rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn in_every_row(weights: &Bytes<4>) -> [__m512i; 3] {
    let [first, second, third] = weights;
    [words_in_every_row(first), words_in_every_row(second), words_in_every_row(third)]
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn words_in_every_row(words: &[i32; 4]) -> __m512i {
    // SAFETY: four words are sixteen bytes, and the load needs no alignment.
    _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(words.as_ptr().cast()) })
}

/// Sixteen bytes of each row, `at` bytes from its start.
///
/// # Safety
/// Each row has `at + 16` bytes in its buffer.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn load(rows: &FourRows<'_>, at: usize) -> __m512i {
    let row = |row: usize| {
        // SAFETY: the caller's promise.
        unsafe { _mm_loadu_si128(rows.buffer.as_ptr().add(rows.starts[row] + at).cast()) }
    };
    let first = _mm512_castsi128_si512(row(0));
    let second = _mm512_inserti32x4::<1>(first, row(1));
    let third = _mm512_inserti32x4::<2>(second, row(2));
    _mm512_inserti32x4::<3>(third, row(3))
}

/// Clips four values of each row and stores them as four bytes at `at` of each row of `out`.
///
/// # Safety
/// `at + 4` is at most a fourth of `out`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn store(values: __m512i, out: &mut [u8], at: usize) {
    let bytes = _mm512_cvtusepi32_epi8(_mm512_max_epi32(values, _mm512_setzero_si512()));
    let line = out.len() / 4;
    let words = [
        _mm_extract_epi32::<0>(bytes),
        _mm_extract_epi32::<1>(bytes),
        _mm_extract_epi32::<2>(bytes),
        _mm_extract_epi32::<3>(bytes),
    ];
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
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn store_two<const CHANNELS: usize>([first, second]: [__m512i; 2], out: &mut [u8], at: usize) {
    // Packing saturates and works within a row's 128 bits: the first pixel's four bytes, then the second's.
    let pairs = _mm512_packs_epi32(first, second);
    let bytes = _mm512_packus_epi16(pairs, pairs);
    let bytes = match CHANNELS {
        3 => _mm512_shuffle_epi8(bytes, _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 2, 4, 5, 6, 7, -1, 0, 0, 0, 0, 0, 0, 0, 0))),
        _ => bytes,
    };
    let line = out.len() / 4;
    // SAFETY: for each row, row * line + at + 8 <= 4 * line, the length of out at most; a store of eight bytes needs no alignment.
    unsafe {
        let first = out.as_mut_ptr().add(at);
        _mm_storel_epi64(first.cast(), _mm512_castsi512_si128(bytes));
        _mm_storel_epi64(first.add(line).cast(), _mm512_extracti32x4_epi32::<1>(bytes));
        _mm_storel_epi64(first.add(2 * line).cast(), _mm512_extracti32x4_epi32::<2>(bytes));
        _mm_storel_epi64(first.add(3 * line).cast(), _mm512_extracti32x4_epi32::<3>(bytes));
    }
}

/// Four rows of 3 or 4 channels along x: a lane is a channel, its four bytes are four taps.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn horizontal<const CHANNELS: usize>(rows: &FourRows<'_>, axis: &Axis, weights: &[Bytes<1>], out: &mut [u8]) {
    rows.assert_fit(axis, CHANNELS, out);
    match axis.same_taps().map(|taps| taps.div_ceil(4)) {
        Some(0 | 1) => line::<CHANNELS, 1>(rows, axis, weights, out),
        Some(2) => line::<CHANNELS, 2>(rows, axis, weights, out),
        _ => line::<CHANNELS, ANY>(rows, axis, weights, out),
    }
}

/// In place of a number of steps of four taps: each sample's own.
const ANY: usize = 0;

/// Every pixel by so many steps, which then is no loop.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn line<const CHANNELS: usize, const STEPS: usize>(rows: &FourRows<'_>, axis: &Axis, weights: &[Bytes<1>], out: &mut [u8]) {
    let words = axis.stride / 4;
    let (twos, last) = axis.taps.as_chunks::<2>();
    for (two, (taps, weights)) in twos.iter().zip(weights.chunks_exact(2 * words)).enumerate() {
        let (first, second) = weights.split_at(words);
        // SAFETY: the caller asserts: axis.reach covers all loads of these taps, and a row of out all pixels and four bytes more, of
        // which two are written here at most; the next pixels overwrite them.
        unsafe {
            let first = pixel::<CHANNELS, STEPS>(rows, taps[0], first);
            store_two::<CHANNELS>([first, pixel::<CHANNELS, STEPS>(rows, taps[1], second)], out, 2 * two * CHANNELS);
        }
    }
    if let &[taps] = last {
        let at = axis.taps.len() - 1;
        // SAFETY: as above; one byte more is written.
        unsafe { store(pixel::<CHANNELS, STEPS>(rows, taps, &weights[at * words..]), out, at * CHANNELS) };
    }
}

/// The values of one pixel of each row.
///
/// # Safety
/// `axis.reach`, which each row has, covers the loads of `taps`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn pixel<const CHANNELS: usize, const STEPS: usize>(rows: &FourRows<'_>, taps: Taps, weights: &[Bytes<1>]) -> __m512i {
    let deal = _mm512_broadcast_i32x4(match CHANNELS {
        3 => _mm_setr_epi8(0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11, -1, -1, -1, -1),
        _ => _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15),
    });
    let mut sums = Sums::new();
    let steps = if STEPS == ANY { taps.count.div_ceil(4) } else { STEPS };
    for (step, weights) in weights[..steps].iter().enumerate() {
        // SAFETY: the caller's promise.
        let bytes = unsafe { load(rows, (taps.first + 4 * step) * CHANNELS) };
        sums.add(_mm512_shuffle_epi8(bytes, deal), in_every_lane(weights));
    }
    sums.values()
}

/// Four gray rows along x, four neighbouring pixels at a time: a lane is a pixel, its four bytes are four taps.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn gray_quads(rows: &FourRows<'_>, axis: &Axis, quads: &Quads<Bytes<4>>, out: &mut [u8]) {
    rows.assert_fit(axis, 1, out);
    for (group, (quad, weights)) in quads.groups.iter().zip(quads.weights.chunks_exact(quads.steps.max(1))).enumerate() {
        // SAFETY: a shuffle is sixteen bytes, and the load needs no alignment.
        let deal = _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(quad.deals[0].as_ptr().cast()) });
        let mut sums = Sums::new();
        for (step, weights) in weights.iter().enumerate() {
            // SAFETY: asserted: axis.reach covers the last step's load.
            let bytes = unsafe { load(rows, quad.first + 4 * step) };
            sums.add(_mm512_shuffle_epi8(bytes, deal), in_every_row(weights));
        }
        // SAFETY: asserted: a row of out holds all pixels, rounded up to four.
        unsafe { store(sums.values(), out, 4 * group) };
    }
}

/// Four gray rows along x, a pixel at a time: sixteen taps a load, whose four lanes are added at the end.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn gray(rows: &FourRows<'_>, axis: &Axis, weights: &[Bytes<4>], out: &mut [u8]) {
    rows.assert_fit(axis, 1, out);
    for (pixel, (taps, weights)) in axis.taps.iter().zip(weights.chunks_exact(axis.stride / LOAD_BYTES)).enumerate() {
        let mut sums = Sums([_mm512_setzero_si512(); 3]);
        for (step, weights) in weights[..taps.count.div_ceil(LOAD_BYTES)].iter().enumerate() {
            // SAFETY: asserted: axis.reach covers the last step's load.
            let bytes = unsafe { load(rows, taps.first + LOAD_BYTES * step) };
            sums.add(bytes, in_every_row(weights));
        }
        // The total of a row stands in each of its lanes: only the lowest byte of the four stored is this pixel.
        let halves = sums.joined();
        let pairs = _mm512_add_epi32(halves, _mm512_shuffle_epi32::<0b01_00_11_10>(halves));
        let total = _mm512_add_epi32(pairs, _mm512_shuffle_epi32::<0b10_11_00_01>(pairs));
        let values = _mm512_srai_epi32::<PRECISION>(_mm512_add_epi32(total, _mm512_set1_epi32(HALF)));
        // SAFETY: asserted: a row of out holds all pixels and three bytes more, which the next pixels overwrite.
        unsafe { store(values, out, pixel) };
    }
}

/// One row across y: the rows of `buffer` that begin at `starts`, four for each of `weights`, summed into `out`.
/// A lane is a column, its four bytes are four rows.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn vertical(buffer: &[u8], starts: &[usize], weights: &[Bytes<1>], out: &mut [u8]) {
    assert!(starts.iter().all(|start| start + out.len() <= buffer.len()), "row outside its buffer");
    match starts.len() / 4 {
        1 => columns::<1>(buffer, starts, weights, out),
        2 => columns::<2>(buffer, starts, weights, out),
        _ => columns::<ANY>(buffer, starts, weights, out),
    }
}

/// Every column by so many fours of rows, which then is no loop.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn columns<const FOURS: usize>(buffer: &[u8], starts: &[usize], weights: &[Bytes<1>], out: &mut [u8]) {
    let fours = if FOURS == ANY { starts.len() / 4 } else { FOURS };
    let (starts, weights) = (&starts.as_chunks::<4>().0[..fours], &weights[..fours]);
    for (block, out) in out.chunks_mut(BLOCK_BYTES).enumerate() {
        let rows = buffer.as_ptr().wrapping_add(block * BLOCK_BYTES);
        let columns = u64::MAX >> (BLOCK_BYTES - out.len());
        let bytes = if out.len() == BLOCK_BYTES {
            // SAFETY: asserted by the caller: the row has the bytes of this block.
            vertical_block(starts, weights, |start| unsafe { _mm512_loadu_si512(rows.add(start).cast()) })
        } else {
            // SAFETY: as above, and the mask leaves the bytes behind those of this block unread.
            vertical_block(starts, weights, |start| unsafe { _mm512_maskz_loadu_epi8(columns, rows.add(start).cast()) })
        };
        // SAFETY: the mask has a bit for each byte of this block of out and for no other.
        unsafe { _mm512_mask_storeu_epi8(out.as_mut_ptr().cast(), columns, bytes) };
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn vertical_block(starts: &[[usize; 4]], weights: &[Bytes<1>], load: impl Fn(usize) -> __m512i) -> __m512i {
    let mut sums = [Sums::new(); 4];
    for (starts, weights) in starts.iter().zip(weights) {
        let weights = in_every_lane(weights);
        let columns = four_by_four([load(starts[0]), load(starts[1]), load(starts[2]), load(starts[3])]);
        for (sums, columns) in sums.iter_mut().zip(columns) {
            sums.add(columns, weights);
        }
    }
    // Packing saturates within 16 and then 8 bits, which clips: values lie within ±2⁹ after the shift. It also undoes the order in
    // which `four_by_four` left the columns.
    let low = _mm512_packs_epi32(sums[0].values(), sums[1].values());
    let high = _mm512_packs_epi32(sums[2].values(), sums[3].values());
    _mm512_packus_epi16(low, high)
}

/// From four rows of 64 columns, four registers of 16 columns each, a lane holding the column's four bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn four_by_four([first, second, third, fourth]: [__m512i; 4]) -> [__m512i; 4] {
    let (upper_low, upper_high) = (_mm512_unpacklo_epi8(first, second), _mm512_unpackhi_epi8(first, second));
    let (lower_low, lower_high) = (_mm512_unpacklo_epi8(third, fourth), _mm512_unpackhi_epi8(third, fourth));
    [
        _mm512_unpacklo_epi16(upper_low, lower_low),
        _mm512_unpackhi_epi16(upper_low, lower_low),
        _mm512_unpacklo_epi16(upper_high, lower_high),
        _mm512_unpackhi_epi16(upper_high, lower_high),
    ]
}
