//! The definition, as a program.

use std::ops::Range;

use super::coefs::Coefs;
use super::{Matrix, Plane, Planes};

/// Checked rows of checked planes, into `out`.
pub(super) fn rows(planes: &Planes<'_>, coefs: &Coefs, rows: Range<usize>, out: &mut [u8]) {
    match (planes.bits, planes.matrix) {
        (8, Matrix::Rgb) => copied(planes, rows, out),
        (8, Matrix::Gray) => gray::<1>(planes, coefs, rows, out),
        (_, Matrix::Rgb) => scaled(planes, coefs, rows, out),
        (_, Matrix::Gray) => gray::<2>(planes, coefs, rows, out),
        (bits, _) => {
            let line = planes.width * 3;
            for block in planes.blocks(rows.clone()) {
                let out = &mut out[(block.start - rows.start) * line..(block.end - rows.start) * line];
                match bits {
                    8 => blocks::<1>(planes, coefs, block, out),
                    _ => blocks::<2>(planes, coefs, block, out),
                }
            }
        }
    }
}

/// Rows that share their row of chroma: each sample of that, then the luma samples of its block.
fn blocks<const BYTES: usize>(planes: &Planes<'_>, coefs: &Coefs, rows: Range<usize>, out: &mut [u8]) {
    let chroma_row = rows.start >> planes.shift.1;
    let [luma, u, v] = planes.planes;
    let (u, v) = (row_of(u, chroma_row), row_of(v, chroma_row));
    let wide = 1 << planes.shift.0;
    let line = planes.width * 3;
    for (at, x) in (0..planes.width).step_by(wide).enumerate() {
        let over = |plane| sample::<BYTES>(plane, at, coefs) - coefs.middle;
        let added = coefs.chroma(over(u), over(v));
        for (row, out) in rows.clone().zip(out.chunks_exact_mut(line)) {
            let luma = row_of(luma, row);
            let ends = planes.width.min(x + wide);
            for (x, pixel) in (x..ends).zip(out[3 * x..].chunks_exact_mut(3)) {
                let luma = coefs.luma(sample::<BYTES>(luma, x, coefs));
                for (byte, added) in pixel.iter_mut().zip(added) {
                    *byte = coefs.byte(luma + added);
                }
            }
        }
    }
}

fn gray<const BYTES: usize>(planes: &Planes<'_>, coefs: &Coefs, rows: Range<usize>, out: &mut [u8]) {
    for (row, out) in rows.zip(out.chunks_exact_mut(planes.width * 3)) {
        let luma = row_of(planes.planes[0], row);
        for (x, pixel) in out.chunks_exact_mut(3).enumerate() {
            pixel.fill(coefs.byte(coefs.luma(sample::<BYTES>(luma, x, coefs)) + coefs.no_chroma()));
        }
    }
}

fn copied(planes: &Planes<'_>, rows: Range<usize>, out: &mut [u8]) {
    for (row, out) in rows.zip(out.chunks_exact_mut(planes.width * 3)) {
        let [green, blue, red] = planes.planes.map(|plane| row_of(plane, row));
        for (((pixel, red), green), blue) in out.chunks_exact_mut(3).zip(red).zip(green).zip(blue) {
            pixel.copy_from_slice(&[*red, *green, *blue]);
        }
    }
}

/// RGB of more than 8 bits: each value as gray of full range.
fn scaled(planes: &Planes<'_>, coefs: &Coefs, rows: Range<usize>, out: &mut [u8]) {
    for (row, out) in rows.zip(out.chunks_exact_mut(planes.width * 3)) {
        let [green, blue, red] = planes.planes.map(|plane| row_of(plane, row));
        let byte = |plane, x| coefs.byte(coefs.luma(sample::<2>(plane, x, coefs)) + coefs.no_chroma());
        for (x, pixel) in out.chunks_exact_mut(3).enumerate() {
            pixel.copy_from_slice(&[byte(red, x), byte(green, x), byte(blue, x)]);
        }
    }
}

/// A row and what follows it.
fn row_of(plane: Plane<'_>, row: usize) -> &[u8] {
    &plane.bytes[row * plane.stride..]
}

#[inline]
fn sample<const BYTES: usize>(row: &[u8], at: usize, coefs: &Coefs) -> i32 {
    match BYTES {
        1 => row[at].into(),
        _ => i32::from(u16::from_le_bytes([row[2 * at], row[2 * at + 1]])).min(coefs.sample_max),
    }
}
