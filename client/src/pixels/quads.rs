//! Gray rows, four neighbouring output pixels at a time.
//!
//! A gray pixel fills one byte of a lane, so a kernel that made one output pixel at a time would leave most of a load unused. When the
//! taps of four neighbours lie within one load (a shrink by up to about four), one byte shuffle deals them out to four lanes instead.

use std::array;

use super::axis::{LOAD_BYTES, Taps};
use super::weights::{self, Bytes, Halves};

/// Output pixels of a group, and taps that each takes at one step.
const SIDE: usize = 4;

/// A shuffle's index that gives zero.
const NOTHING: u8 = 0x80;

/// Where one group of four output pixels finds its taps.
pub(super) struct Quad {
    /// First tap of the first pixel; each step loads from four bytes further.
    pub(super) first: usize,
    /// Shuffles that deal a load out to lanes: one of bytes (`fourwise`), or two of byte pairs (`pairwise`).
    pub(super) deals: [[u8; LOAD_BYTES]; 2],
}

/// Groups of four output pixels and their weights, `W` for the digits of half or all the taps of a step.
pub(super) struct Quads<W> {
    pub(super) groups: Vec<Quad>,
    /// Steps of four taps, the same for all groups.
    pub(super) steps: usize,
    /// In the order of groups and, within one, of steps.
    pub(super) weights: Vec<W>,
}

impl Quads<Bytes<4>> {
    /// For dot products of four bytes: a lane is an output pixel, its four bytes are taps. `None` when taps lie too far apart.
    pub(super) fn fourwise(taps: &[Taps], stride: usize, weights: &[i32]) -> Option<Self> {
        let deal = |at: [usize; SIDE]| {
            let lanes = array::from_fn(|byte| (at[byte / SIDE] + byte % SIDE) as u8);
            [lanes, [NOTHING; LOAD_BYTES]]
        };
        let order = |place: usize| (place / SIDE, place % SIDE);
        let (groups, steps, ordered) = group(taps, stride, weights, deal, order)?;
        Some(Self { groups, steps, weights: weights::bytes(&ordered) })
    }
}

impl Quads<Halves<4>> {
    /// For dot products of two 16-bit values: a lane is an output pixel, taken twice a step. `None` when taps lie too far apart.
    pub(super) fn pairwise(taps: &[Taps], stride: usize, weights: &[i32]) -> Option<Self> {
        let deal = |at: [usize; SIDE]| {
            array::from_fn(|half| {
                array::from_fn(|byte| match byte % 2 {
                    0 => (at[byte / 4] + 2 * half + byte % 4 / 2) as u8,
                    _ => NOTHING,
                })
            })
        };
        let order = |place: usize| (place % 8 / 2, place / 8 * 2 + place % 2);
        let (groups, steps, ordered) = group(taps, stride, weights, deal, order)?;
        Some(Self { groups, steps, weights: weights::halves(&ordered) })
    }
}

impl<W> Quads<W> {
    /// Bytes from the start of a row that are read.
    pub(super) fn reach(&self) -> usize {
        match (self.groups.last(), self.steps) {
            (Some(last), 1..) => last.first + SIDE * (self.steps - 1) + LOAD_BYTES,
            _ => 0,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&self.groups[..]) + size_of_val(&self.weights[..])
    }
}

/// Groups, steps of each, and weights laid out so that place `p` of a step is the pixel and tap `order(p)`.
/// The last group repeats its last pixel, with weights of zero.
fn group(
    taps: &[Taps],
    stride: usize,
    weights: &[i32],
    deal: impl Fn([usize; SIDE]) -> [[u8; LOAD_BYTES]; 2],
    order: impl Fn(usize) -> (usize, usize),
) -> Option<(Vec<Quad>, usize, Vec<i32>)> {
    let steps = taps.iter().map(|taps| taps.count).max()?.div_ceil(SIDE);
    let mut groups = Vec::with_capacity(taps.len().div_ceil(SIDE));
    let mut ordered = Vec::with_capacity(groups.capacity() * steps * SIDE * SIDE);
    for (pixels, weights) in taps.chunks(SIDE).zip(weights.chunks(SIDE * stride)) {
        let first = pixels[0].first;
        let at = array::from_fn(|pixel| pixels[pixel.min(pixels.len() - 1)].first - first);
        if at[SIDE - 1] + SIDE > LOAD_BYTES {
            return None;
        }
        groups.push(Quad { first, deals: deal(at) });
        for place in 0..steps * SIDE * SIDE {
            let (pixel, tap) = order(place % (SIDE * SIDE));
            let step = place / (SIDE * SIDE);
            ordered.push(weights.get(pixel * stride + step * SIDE + tap).copied().unwrap_or(0));
        }
    }
    Some((groups, steps, ordered))
}
