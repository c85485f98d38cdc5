//! The promises of the room: the definition's bytes, from every kernel, and no geometry that is taken on trust.

use super::*;

const SHIFTS: [(u8, u8); 6] = [(1, 1), (1, 0), (0, 0), (0, 1), (2, 0), (2, 2)];
const MATRICES: [Matrix; 5] = [Matrix::Bt601, Matrix::Bt709, Matrix::Bt2020, Matrix::Rgb, Matrix::Gray];
const RANGES: [Range; 2] = [Range::Limited, Range::Full];

/// Every matrix, range and depth.
pub(super) fn kinds() -> impl Iterator<Item = (Matrix, Range, u8)> {
    let of = |matrix| RANGES.into_iter().flat_map(move |range| (8..=16).map(move |bits| (matrix, range, bits)));
    MATRICES.into_iter().flat_map(of)
}

/// What the matrix gives for three samples, in fractions of the definition's own terms: nothing is shared with `coefs`.
fn defined(matrix: Matrix, range: Range, bits: u8, samples: [u16; 3]) -> [u8; 3] {
    defined_to(255, matrix, range, bits, samples).map(|channel| channel as u8)
}

/// The same with another number for white.
fn defined_to(white: i128, matrix: Matrix, range: Range, bits: u8, samples: [u16; 3]) -> [u16; 3] {
    let one = 1i128 << (bits - 8);
    let [y, u, v] = samples.map(i128::from);
    let max = (1i128 << bits) - 1;
    let full = range == Range::Full || matrix == Matrix::Rgb;
    let (black, dy, dc) = if full { (0, max, max) } else { (16 * one, 219 * one, 224 * one) };
    let rounded = |over: i128, under: i128| (2 * over + under).div_euclid(2 * under).clamp(0, white) as u16;
    match matrix {
        Matrix::Rgb => return [v, y, u].map(|sample| rounded(white * sample, max)),
        Matrix::Gray => return [rounded(white * (y - black), dy); 3],
        _ => {}
    }
    let (kr, kb) = match matrix {
        Matrix::Bt601 => (2990, 1140),
        Matrix::Bt709 => (2126, 722),
        _ => (2627, 593),
    };
    let (e4, kg) = (10_000, 10_000 - kr - kb);
    let (y, u, v) = (y - black, u - 128 * one, v - 128 * one);
    let green = y * dc * kg * e4 - 2 * (kr * (e4 - kr) * v + kb * (e4 - kb) * u) * dy;
    [
        rounded(white * (y * dc * e4 + 2 * (e4 - kr) * v * dy), dy * dc * e4),
        rounded(white * green, dy * dc * kg * e4),
        rounded(white * (y * dc * e4 + 2 * (e4 - kb) * u * dy), dy * dc * e4),
    ]
}

/// A frame of noise whose rows have `slack` bytes behind them, but for the last.
#[derive(Debug)]
struct Frame {
    planes: [(Vec<u8>, usize); 3],
    width: usize,
    height: usize,
    bits: u8,
    shift: (u8, u8),
    matrix: Matrix,
    range: Range,
}

impl Frame {
    fn noise(
        seed: u64,
        sides: (usize, usize),
        (matrix, range, bits): (Matrix, Range, u8),
        shift: (u8, u8),
        slack: usize,
    ) -> Self {
        let (width, height) = sides;
        let shift = if matrix == Matrix::Rgb { (0, 0) } else { shift };
        let sample_bytes = if bits == 8 { 1 } else { 2 };
        let planes = std::array::from_fn(|plane| {
            let (columns, rows) = match plane {
                0 => (width, height),
                _ => (width.div_ceil(1 << shift.0), height.div_ceil(1 << shift.1)),
            };
            let stride = columns * sample_bytes + slack;
            let mut bytes = vec![0xEE; rows * stride - slack];
            for row in 0..rows {
                for column in 0..columns {
                    let sample = noise(seed, plane, row * columns + column) & ((1 << bits) - 1);
                    let at = row * stride + column * sample_bytes;
                    bytes[at..at + sample_bytes].copy_from_slice(&sample.to_le_bytes()[..sample_bytes]);
                }
            }
            (bytes, stride)
        });
        Self { planes, width, height, bits, shift, matrix, range }
    }

    fn planes(&self) -> Planes<'_> {
        let Self { width, height, bits, shift, matrix, range, .. } = *self;
        let [y, u, v] = &self.planes;
        let planes = [y, u, v].map(|(bytes, stride)| Plane { bytes, stride: *stride });
        Planes { planes, width, height, bits, shift, matrix, range }
    }

    fn rgb(&self, isa: Isa) -> Vec<u8> {
        let mut out = vec![0xA5; self.width * self.height * 3];
        rgb_rows_with(isa, &self.planes(), 0..self.height, &mut out).expect("planes");
        out
    }

    fn sample(&self, plane: usize, x: usize, y: usize) -> u16 {
        let (x, y) = if plane == 0 { (x, y) } else { (x >> self.shift.0, y >> self.shift.1) };
        let (bytes, stride) = &self.planes[plane];
        match self.bits {
            8 => bytes[y * stride + x].into(),
            _ => u16::from_le_bytes([bytes[y * stride + 2 * x], bytes[y * stride + 2 * x + 1]]),
        }
    }

    fn defined(&self) -> Vec<u8> {
        let pixels = (0..self.height).flat_map(|y| (0..self.width).map(move |x| (x, y)));
        let pixel = |(x, y)| defined(self.matrix, self.range, self.bits, [0, 1, 2].map(|plane| self.sample(plane, x, y)));
        pixels.flat_map(pixel).collect()
    }
}

/// Each sample by its place alone, so that another program makes the same: a finish of splitmix64.
fn noise(seed: u64, plane: usize, at: usize) -> u16 {
    let z = (seed << 40 ^ (plane as u64) << 32 ^ at as u64).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    (z >> 48) as u16
}

/// FNV-1a.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Promise: a format is a number and back, and no other number is one; planes that lie packed give what planes elsewhere give, and too
/// few bytes are refused.
#[test]
fn formats_are_numbers() {
    let mut known = 0;
    for number in 0..=u16::MAX {
        if let Some(format) = Format::from_number(number) {
            assert_eq!((format.number(), number >> 15), (number, 1));
            known += 1;
        }
    }
    assert_eq!(known, 9 * 16 * 5 * 2);
    for (matrix, range, bits) in kinds() {
        for shift in SHIFTS {
            let frame = Frame::noise(3, (13, 7), (matrix, range, bits), shift, 0);
            let format = Format { bits, shift: frame.shift, matrix, range };
            assert_eq!(Format::from_number(format.number()), Some(format));
            assert_eq!(format.is_yuv420(), bits == 8 && frame.shift == (1, 1) && matrix != Matrix::Gray);
            let count = if matrix == Matrix::Gray { 1 } else { 3 };
            let bytes = frame.planes.iter().take(count).flat_map(|(bytes, _)| bytes).copied().collect::<Vec<u8>>();
            let mut out = vec![0; 13 * 7 * 3];
            rgb(&format.packed(&bytes, 13, 7).expect("planes"), &mut out).expect("planes");
            assert_eq!(out, frame.rgb(Isa::Scalar));
            assert!(matches!(format.packed(&bytes[1..], 13, 7), Err(PlanesError::Plane { .. })));
            assert!(matches!(format.packed(&bytes, 0, 7), Err(PlanesError::Size { .. })));
        }
    }
}

/// Promise: at full depth each number is the definition's with the largest sample for white; of 8 bits they are the bytes of RGB. What
/// is deeper than its arithmetic is refused, and an output of another length.
#[test]
fn full_depth_is_the_definition() {
    for (matrix, range, bits) in kinds() {
        for shift in SHIFTS {
            let frame = Frame::noise(7, (13, 7), (matrix, range, bits), shift, 3);
            let mut out = vec![0xA5; 13 * 7 * 6];
            let done = rgb16(&frame.planes(), &mut out);
            if bits > 12 && !matches!(matrix, Matrix::Rgb | Matrix::Gray) {
                assert_eq!(done, Err(PlanesError::Bits(bits)));
                continue;
            }
            done.expect("planes");
            let numbers: Vec<u16> = out.as_chunks().0.iter().map(|two| u16::from_le_bytes(*two)).collect();
            let white = (1 << bits) - 1;
            let pixels = (0..7).flat_map(|y| (0..13).map(move |x| (x, y)));
            let pixel = |(x, y)| defined_to(white, matrix, range, bits, [0, 1, 2].map(|plane| frame.sample(plane, x, y)));
            assert_eq!(numbers, pixels.flat_map(pixel).collect::<Vec<u16>>(), "{matrix:?} {range:?} {bits} {shift:?}");
            if bits == 8 {
                assert!(numbers.iter().map(|&number| number as u8).eq(frame.rgb(Isa::Scalar)));
            }
            assert!(matches!(rgb16(&frame.planes(), &mut out[1..]), Err(PlanesError::Out { .. })));
        }
    }
}

/// Promise: the bytes are those of the program that defines the profile, recorded in `golden.txt`.
#[test]
fn equals_the_definition() {
    let mut cases = 0;
    for line in include_str!("golden.txt").lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split(' ').collect();
        let [seed, width, height, bits, shift, matrix, range, hash] = fields[..] else { panic!("{line}") };
        let shift = SHIFTS.into_iter().find(|(x, y)| format!("{x},{y}") == shift).expect("a shift");
        let matrix = MATRICES.into_iter().find(|known| format!("{known:?}") == matrix).expect("a matrix");
        let range = RANGES.into_iter().find(|known| format!("{known:?}") == range).expect("a range");
        let number = |text: &str| text.parse::<usize>().expect("a number");
        let kind = (matrix, range, number(bits) as u8);
        let frame = Frame::noise(number(seed) as u64, (number(width), number(height)), kind, shift, 5);
        for isa in Isa::available() {
            assert_eq!(format!("{:016x}", fnv(&frame.rgb(isa))), hash, "{isa:?} {line}");
        }
        cases += 1;
    }
    assert_eq!(cases, 120);
}

/// Promise: every kernel gives the fractions' bytes, at every width up to 70, in every kind and subsampling, padded or not; and rows that
/// are asked for alone are those of the whole.
#[test]
fn kernels_equal_the_fractions() {
    for (number, kind) in kinds().enumerate() {
        for width in 1..=70 {
            let shift = SHIFTS[(number + width) % SHIFTS.len()];
            let (height, slack) = (1 + (width * 7 + number) % 6, width % 3 * 9);
            let frame = Frame::noise((number * 100 + width) as u64, (width, height), kind, shift, slack);
            let expected = frame.defined();
            for isa in Isa::available() {
                assert!(frame.rgb(isa) == expected, "{isa:?} {kind:?} {shift:?} {width}x{height} slack {slack}");
                let rows = height / 3..height - height / 4;
                let mut out = vec![0; rows.len() * width * 3];
                rgb_rows_with(isa, &frame.planes(), rows.clone(), &mut out).expect("planes");
                assert!(out == expected[rows.start * width * 3..rows.end * width * 3], "{isa:?} {kind:?} rows {rows:?}");
            }
        }
    }
}

/// Promise: at 8 bits every kernel equals the fractions for every luma and chroma. All 2²⁴ colours in each matrix and range are
/// soaked; a test takes some rows of each, with the ends and the middle among them.
#[test]
fn every_colour_is_exact() {
    let soak = std::env::var_os("FRAMECACHE_SOAK").is_some();
    for (matrix, range) in [Matrix::Bt601, Matrix::Bt709, Matrix::Bt2020].into_iter().flat_map(|m| RANGES.map(|r| (m, r))) {
        let some = [0, 1, 3, 16, 78, 127, 128, 178, 240, 253, 255];
        let us: Vec<u8> = if soak { (0..=255).collect() } else { some.to_vec() };
        for u in us {
            every_luma(u, (matrix, range, 8));
        }
    }
}

/// All luma at all v, one row of a 4:4:4 frame for each v.
fn every_luma(u: u8, kind: (Matrix, Range, u8)) {
    let luma: Vec<u8> = (0..256 * 256).map(|at| at as u8).collect();
    let (u_plane, v_plane) = (vec![u; 256 * 256], (0..256 * 256).map(|at| (at >> 8) as u8).collect());
    let planes = [luma, u_plane, v_plane].map(|plane| (plane, 256));
    let frame = Frame { planes, width: 256, height: 256, bits: 8, shift: (0, 0), matrix: kind.0, range: kind.1 };
    let expected = frame.defined();
    for isa in Isa::available() {
        assert!(frame.rgb(isa) == expected, "{isa:?} {kind:?} u {u}");
    }
}

/// Promise: at 10 bits the vector kernels equal the fractions for every pair of chroma samples, so that no rounding of their
/// coefficients shows; a test takes each eleventh row of pairs, and every pair is soaked, each with luma at which its sum is at a border
/// between two bytes.
#[test]
fn every_ten_bit_chroma_is_exact() {
    let step = if std::env::var_os("FRAMECACHE_SOAK").is_some() { 1 } else { 11 };
    for (matrix, range) in [Matrix::Bt601, Matrix::Bt709, Matrix::Bt2020].into_iter().flat_map(|m| RANGES.map(|r| (m, r))) {
        let coefs = Coefs::of(matrix, range, 10);
        // By what m y' leaves over D, the first luma.
        let mut first = vec![0; coefs.level as usize];
        (0..coefs.level).for_each(|y| first[coefs.luma(y).rem_euclid(coefs.level) as usize] = y);
        for u in (0..1024).step_by(step) {
            let vs: Vec<u16> = (0..1024).collect();
            // m y' + F ≡ 0 or -1 (mod D) for one channel: one F more or less would be another byte.
            let border = |v: u16, channel: usize, just: i32| {
                let f = coefs.chroma(u - 512, i32::from(v) - 512)[channel];
                let first = first[(just - f).rem_euclid(coefs.level) as usize];
                let mut lumas = (first..1024).step_by(coefs.level as usize);
                lumas.find(|&y| (1..255 * coefs.level).contains(&(coefs.luma(y) + f)))
            };
            for (channel, just) in [(0, 0), (0, -1), (1, 0), (1, -1), (2, 0), (2, -1)] {
                let luma: Vec<u16> = vs.iter().map(|&v| border(v, channel, just).unwrap_or(600) as u16).collect();
                let wide = |samples: &[u16]| (samples.iter().flat_map(|s| s.to_le_bytes()).collect(), 2048);
                let planes = [wide(&luma), wide(&vec![u as u16; 1024]), wide(&vs)];
                let frame = Frame { planes, width: 1024, height: 1, bits: 10, shift: (0, 0), matrix, range };
                let expected = frame.defined();
                for isa in Isa::available() {
                    assert!(frame.rgb(isa) == expected, "{isa:?} {matrix:?} {range:?} u {u} channel {channel}");
                }
            }
        }
    }
}

/// Promise: a sample past its depth counts as the largest, in every kernel.
#[test]
fn samples_past_their_depth_are_the_largest() {
    for (matrix, range) in MATRICES.into_iter().flat_map(|matrix| RANGES.map(|range| (matrix, range))) {
        let mut past = Frame::noise(7, (67, 4), (matrix, range, 16), (1, 1), 0);
        past.bits = 10;
        let mut clipped = Frame::noise(7, (67, 4), (matrix, range, 16), (1, 1), 0);
        clipped.bits = 10;
        for (bytes, _) in &mut clipped.planes {
            for sample in bytes.chunks_exact_mut(2) {
                let least = u16::from_le_bytes([sample[0], sample[1]]).min(1023);
                sample.copy_from_slice(&least.to_le_bytes());
            }
        }
        for isa in Isa::available() {
            assert!(past.rgb(isa) == clipped.defined(), "{isa:?} {matrix:?} {range:?}");
        }
    }
}

/// Promise: geometry without a result, or outside its slices, is refused with its own reason; the edges of what is legal are not.
#[test]
fn hostile_geometry_is_refused() {
    let frame = Frame::noise(1, (5, 3), (Matrix::Bt601, Range::Limited, 8), (1, 1), 2);
    let planes = frame.planes();
    assert_eq!(planes.check(), Ok(()));
    let with = |change: fn(&mut Planes<'_>)| {
        let mut planes = frame.planes();
        change(&mut planes);
        planes.check().expect_err("refused")
    };
    assert_eq!(with(|p| p.bits = 7), PlanesError::Bits(7));
    assert_eq!(with(|p| p.bits = 17), PlanesError::Bits(17));
    assert_eq!(with(|p| p.shift = (3, 0)), PlanesError::Shift((3, 0)));
    assert_eq!(with(|p| p.shift = (2, 1)), PlanesError::Shift((2, 1)));
    assert_eq!(with(|p| p.matrix = Matrix::Rgb), PlanesError::Shift((1, 1)));
    assert_eq!(with(|p| p.width = 0), PlanesError::Size { width: 0, height: 3 });
    assert_eq!(with(|p| p.height = usize::MAX), PlanesError::Size { width: 5, height: usize::MAX });
    assert!(matches!(with(|p| p.width = 8), PlanesError::Plane { plane: 0, .. }));
    assert!(matches!(with(|p| p.height = 4), PlanesError::Plane { plane: 0, .. }));
    assert!(matches!(with(|p| p.bits = 9), PlanesError::Plane { plane: 0, .. }));
    assert!(matches!(with(|p| p.planes[2].stride = 2), PlanesError::Plane { plane: 2, .. }));
    assert!(matches!(with(|p| p.planes[1].stride = usize::MAX), PlanesError::Plane { plane: 1, .. }));
    assert!(matches!(with(|p| p.planes[1].bytes = &[0; 7]), PlanesError::Plane { plane: 1, .. }));
    let gray =
        Planes { matrix: Matrix::Gray, planes: [planes.planes[0], Plane { bytes: &[], stride: 0 }, planes.planes[2]], ..planes };
    assert_eq!(gray.check(), Ok(()));

    let mut out = [0; 5 * 3 * 3];
    assert_eq!(rgb(&planes, &mut out[1..]), Err(PlanesError::Out { have: 44, want: 45 }));
    assert_eq!(rgb_rows(&planes, 1..4, &mut out), Err(PlanesError::Rows { rows: (1, 4), height: 3 }));
    #[expect(clippy::reversed_empty_ranges, reason = "that is what is refused")]
    let backwards = rgb_rows(&planes, 2..1, &mut []);
    assert_eq!(backwards, Err(PlanesError::Rows { rows: (2, 1), height: 3 }));
    assert_eq!(rgb_rows(&planes, 2..2, &mut []), Ok(()));
}

/// Promise: a stream's number names the profile's matrix; the profile has none for others.
#[test]
fn numbers_name_matrices() {
    let named = [0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 14, 255].map(Matrix::of_number);
    use Matrix::{Bt601 as A, Bt709 as B, Bt2020 as C};
    assert_eq!(named, [A, B, A, A, A, A, A, A, C, C, A, A]);
}
