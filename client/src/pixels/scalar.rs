//! The kernels in plain Rust: the definition that the vector forms equal (Pillow 13.0.0, `Resample.c`, `ImagingResample*_8bpc`).
//!
//! An `i32` holds every sum: |weights| of a sample add up to less than 1.6, so a sum stays under 1.6 · 255 · 2²² < 2³¹.

use super::axis::Axis;
use super::passes::FourRows;
use super::weights::{HALF, PRECISION};

/// Bytes of a row summed at once by the vertical kernel: few enough to stay in registers or the nearest cache.
const BLOCK_BYTES: usize = 64;

/// Four rows along x, into the four rows of `out`.
pub(super) fn horizontal<const CHANNELS: usize>(rows: &FourRows<'_>, axis: &Axis, weights: &[i32], out: &mut [u8]) {
    let line = out.len() / 4;
    for (start, out) in rows.starts.into_iter().zip(out.chunks_exact_mut(line)) {
        let row = &rows.buffer[start..start + axis.reach];
        let pixels = out.chunks_exact_mut(CHANNELS);
        for ((taps, weights), pixel) in axis.taps.iter().zip(weights.chunks_exact(axis.stride)).zip(pixels) {
            let mut sums = [HALF; CHANNELS];
            let samples = row[taps.first * CHANNELS..taps.end() * CHANNELS].chunks_exact(CHANNELS);
            for (sample, weight) in samples.zip(weights) {
                for (sum, &value) in sums.iter_mut().zip(sample) {
                    *sum += i32::from(value) * weight;
                }
            }
            pixel.copy_from_slice(&sums.map(clip));
        }
    }
}

/// One row across y: the rows of `buffer` that begin at `starts`, weighed and summed into `out`.
pub(super) fn vertical(buffer: &[u8], starts: &[usize], weights: &[i32], out: &mut [u8]) {
    for (block, out) in out.chunks_mut(BLOCK_BYTES).enumerate() {
        let mut sums = [HALF; BLOCK_BYTES];
        for (start, weight) in starts.iter().zip(weights) {
            let row = &buffer[start + block * BLOCK_BYTES..][..out.len()];
            for (sum, &value) in sums.iter_mut().zip(row) {
                *sum += i32::from(value) * weight;
            }
        }
        for (byte, sum) in out.iter_mut().zip(sums) {
            *byte = clip(sum);
        }
    }
}

fn clip(sum: i32) -> u8 {
    (sum >> PRECISION).clamp(0, 255) as u8
}
