//! One axis of a resize: for each output sample, which input samples it is made from and with which weights.
//!
//! Pillow 13.0.0, `Resample.c`, `precompute_coeffs` and `normalize_coeffs_8bpc`. Double precision, each operation in Pillow's order.

use std::ops::Range;

use super::quads::Quads;
use super::weights::{self, Bytes, Halves, PRECISION};
use super::{Filter, Isa};

/// Bytes that a vector kernel loads at once from a row.
pub(super) const LOAD_BYTES: usize = 16;

/// Up to so many taps, a vector kernel of pixels takes as many for every one of them: the rest weigh nothing, and nothing is counted.
const SAME_TAPS_MAX: usize = 8;

/// What determines an axis, and so the key under which one is kept.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct AxisSpec {
    /// Samples of the input.
    pub(super) input: usize,
    /// Region of the input, half open: `f32` as in Pillow, whose rounding is part of the result.
    pub(super) region: (f32, f32),
    /// Samples of the full output.
    pub(super) output: usize,
    /// Those to make.
    pub(super) range: Range<usize>,
    pub(super) filter: Filter,
    pub(super) direction: Direction,
    pub(super) isa: Isa,
}

/// Along rows, where a sample is a pixel of some channels, or across them, where it is a whole row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Horizontal { channels: usize },
    Vertical,
}

/// The input samples under one output sample: `first..first + count`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taps {
    pub(super) first: usize,
    pub(super) count: usize,
}

impl Taps {
    pub(super) fn end(&self) -> usize {
        self.first + self.count
    }
}

/// Taps and weights of a range of output samples, with the weights laid out for one kernel.
pub(super) struct Axis {
    /// In order: neither `first` nor `end()` ever falls.
    pub(super) taps: Vec<Taps>,
    /// Weights of a sample: the largest count, rounded up to what the kernel takes at once. Those behind a sample's count are zero.
    pub(super) stride: usize,
    /// Most taps of any sample.
    pub(super) taps_max: usize,
    /// Bytes from the start of a row that the horizontal kernel may read. Those behind the last tap are weighed by zero.
    pub(super) reach: usize,
    pub(super) form: Form,
}

/// The weights as one kernel reads them; its presence is the proof that this processor can run that kernel.
pub(super) enum Form {
    Scalar(Vec<i32>),
    Avx2(Vec<Halves<1>>),
    Avx2GrayQuads(Quads<Halves<4>>),
    Avx2Gray(Vec<Halves<8>>),
    Vnni(Vec<Bytes<1>>),
    VnniGrayQuads(Quads<Bytes<4>>),
    VnniGray(Vec<Bytes<4>>),
}

impl AxisSpec {
    /// Whether this axis copies: one output sample for each input sample of the region. Every filter is 1 at 0 and 0 (after rounding
    /// to 22 bits) at other whole numbers, so skipping such a pass, as Pillow does for the whole picture, changes nothing.
    pub(super) fn is_identity(&self) -> bool {
        self.scale() == 1.0 && self.region.0.fract() == 0.0
    }

    /// Input samples for an output sample. The difference is taken in `f32`, as Pillow takes it.
    fn scale(&self) -> f64 {
        f64::from(self.region.1 - self.region.0) / self.output as f64
    }

    /// The curve is widened when the picture shrinks and kept when it grows.
    fn stretch(&self) -> f64 {
        self.scale().max(1.0)
    }

    fn centre(&self, sample: usize) -> f64 {
        f64::from(self.region.0) + (sample as f64 + 0.5) * self.scale()
    }

    fn taps(&self, sample: usize) -> Taps {
        let (centre, support) = (self.centre(sample), self.filter.support() * self.stretch());
        // To an integer by truncation, as C does; a float below zero becomes 0, as Pillow's comparison makes it.
        let first = ((centre - support + 0.5) as usize).min(self.input);
        let end = ((centre + support + 0.5) as usize).min(self.input);
        Taps { first, count: end.saturating_sub(first) }
    }

    /// Most taps that a sample can have (Pillow's `ksize`, cut to the input).
    pub(super) fn taps_bound(&self) -> usize {
        let support = self.filter.support() * self.stretch();
        (support.ceil() as usize * 2 + 1).min(self.input)
    }

    /// Writes the weights of a sample over `weights`, one for each tap.
    fn weigh(&self, sample: usize, taps: Taps, curve: &mut Vec<f64>, weights: &mut [i32]) {
        let (centre, shrink) = (self.centre(sample), 1.0 / self.stretch());
        let at = |tap: usize| self.filter.at((tap as f64 - centre + 0.5) * shrink);
        curve.clear();
        curve.extend((taps.first..taps.end()).map(at));
        let sum: f64 = curve.iter().fold(0.0, |sum, height| sum + height);
        for (weight, &height) in weights.iter_mut().zip(&*curve) {
            *weight = fixed(if sum == 0.0 { height } else { height / sum });
        }
    }
}

/// To 22 bits behind the point, half away from zero.
fn fixed(weight: f64) -> i32 {
    let scaled = weight * f64::from(1 << PRECISION);
    (if scaled < 0.0 { scaled - 0.5 } else { scaled + 0.5 }) as i32
}

impl Axis {
    /// Computes an axis: 13 to 54 microseconds for a training size, the most for lanczos and its sines.
    pub(super) fn new(spec: &AxisSpec) -> Self {
        assert!(spec.isa.is_available(), "{:?} kernels on a processor without them", spec.isa);
        let taps: Vec<Taps> = spec.range.clone().map(|sample| spec.taps(sample)).collect();
        let taps_max = taps.iter().map(|taps| taps.count).max().unwrap_or(0);
        let stride = taps_max.next_multiple_of(spec.taps_at_once()).max(spec.taps_at_once());

        let mut weights = vec![0; taps.len() * stride];
        let mut curve = Vec::with_capacity(taps_max);
        for ((sample, &taps), weights) in spec.range.clone().zip(&taps).zip(weights.chunks_exact_mut(stride)) {
            spec.weigh(sample, taps, &mut curve, weights);
        }
        let form = Form::new(spec, &taps, stride, weights);
        let reach = spec.reach(&taps, &form);
        Self { taps, stride, taps_max, reach, form }
    }

    /// First and last input sample used, half open.
    pub(super) fn input_range(&self) -> Range<usize> {
        let first = self.taps.first().map_or(0, |taps| taps.first);
        first..self.taps.last().map_or(first, Taps::end)
    }

    /// Taps that a vector kernel takes for every pixel alike; `None` where there are so many that each takes its own.
    pub(super) fn same_taps(&self) -> Option<usize> {
        same_taps(self.taps_max)
    }

    /// Memory held, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let form_bytes = match &self.form {
            Form::Scalar(weights) => size_of_val(&weights[..]),
            Form::Avx2(weights) => size_of_val(&weights[..]),
            Form::Avx2Gray(weights) => size_of_val(&weights[..]),
            Form::Avx2GrayQuads(quads) => quads.bytes(),
            Form::Vnni(weights) => size_of_val(&weights[..]),
            Form::VnniGray(weights) => size_of_val(&weights[..]),
            Form::VnniGrayQuads(quads) => quads.bytes(),
        };
        size_of_val(&self.taps[..]) + form_bytes
    }
}

fn same_taps(taps_max: usize) -> Option<usize> {
    Some(taps_max).filter(|&taps| taps <= SAME_TAPS_MAX)
}

impl AxisSpec {
    fn is_gray(&self) -> bool {
        self.direction == Direction::Horizontal { channels: 1 }
    }

    /// Gray rows are read sixteen taps at a time, all else four at most.
    fn taps_at_once(&self) -> usize {
        if self.is_gray() { LOAD_BYTES } else { 4 }
    }

    fn reach(&self, taps: &[Taps], form: &Form) -> usize {
        let Direction::Horizontal { channels } = self.direction else { return 0 };
        let last_load = |taps: &Taps, at_once: usize| match taps.count.div_ceil(at_once) {
            0 => 0,
            loads => (taps.first + at_once * (loads - 1)) * channels + LOAD_BYTES,
        };
        let same = same_taps(taps.iter().map(|taps| taps.count).max().unwrap_or(0));
        let alike = |taps: &Taps| Taps { count: same.unwrap_or(taps.count), ..*taps };
        match form {
            Form::Scalar(_) => taps.iter().map(|taps| taps.end() * channels).max().unwrap_or(0),
            Form::Avx2(_) | Form::Vnni(_) => taps.iter().map(|taps| last_load(&alike(taps), 4)).max().unwrap_or(0),
            Form::Avx2Gray(_) | Form::VnniGray(_) => taps.iter().map(|taps| last_load(taps, LOAD_BYTES)).max().unwrap_or(0),
            Form::Avx2GrayQuads(quads) => quads.reach(),
            Form::VnniGrayQuads(quads) => quads.reach(),
        }
    }

    /// Upper bound of what [`Axis::new`] allocates, in bytes: taps, heads of gray groups, and weights at most three times over, whole,
    /// in the order of gray groups, and in digits.
    pub(super) fn axis_bytes_bound(&self) -> usize {
        let stride = self.taps_bound().next_multiple_of(self.taps_at_once());
        let samples = self.range.len().next_multiple_of(4);
        samples * (size_of::<Taps>() + 3 * size_of::<i32>() * stride + LOAD_BYTES) + self.taps_bound() * size_of::<f64>()
    }
}

impl Form {
    fn new(spec: &AxisSpec, taps: &[Taps], stride: usize, weights: Vec<i32>) -> Self {
        match (spec.isa, spec.is_gray()) {
            (Isa::Scalar, _) => Self::Scalar(weights),
            (Isa::Avx2, false) => Self::Avx2(weights::halves(&weights)),
            (Isa::Vnni, false) => Self::Vnni(weights::bytes(&weights)),
            (Isa::Avx2, true) => match Quads::pairwise(taps, stride, &weights) {
                Some(quads) => Self::Avx2GrayQuads(quads),
                None => Self::Avx2Gray(weights::halves(&weights)),
            },
            (Isa::Vnni, true) => match Quads::fourwise(taps, stride, &weights) {
                Some(quads) => Self::VnniGrayQuads(quads),
                None => Self::VnniGray(weights::bytes(&weights)),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Weights stay under the 1.5 to which their digits are exact, where lobes are cut off by a border too.
    #[test]
    fn weights_fit_their_digits() {
        let filters = [Filter::Box, Filter::Bilinear, Filter::Hamming, Filter::Bicubic, Filter::Lanczos];
        for filter in filters {
            for (input, output) in (1..12).flat_map(|input| (1..60).map(move |output| (input, output))) {
                for region in [(0.0, input as f32), (0.0, 0.3), (input as f32 - 0.7, input as f32 - 0.1)] {
                    let (direction, isa) = (Direction::Vertical, Isa::Scalar);
                    let axis = Axis::new(&AxisSpec { input, region, output, range: 0..output, filter, direction, isa });
                    let Form::Scalar(weights) = axis.form else { unreachable!() };
                    assert!(weights.iter().all(|weight| weight.abs() < 3 << (PRECISION - 1)), "{filter:?} {input} {output}");
                }
            }
        }
    }
}
