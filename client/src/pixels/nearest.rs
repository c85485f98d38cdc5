//! Nearest: the sample under the centre of each output pixel.
//!
//! Pillow 13.0.0, `_imaging.c` (`_resize`) and `Geometry.c` (`ImagingScaleAffine`): positions are summed up step by step from the
//! first, in double precision, and the rounding of that sum is part of the result. So a window counts from pixel 0 too.

use std::ops::Range;

use super::{Plan, Source};

/// In place of a position that rounding has carried out of the source. Such a pixel is zero.
const OUTSIDE: usize = usize::MAX;

/// Makes `plan.window`; `columns` is scratch memory.
pub(super) fn resize(source: &Source<'_>, plan: &Plan, columns: &mut Vec<usize>, out: &mut [u8]) {
    let [x_region, y_region] = plan.region_in(source.width, source.height);
    columns.clear();
    columns.extend(positions(source.width, x_region, plan.size.0, plan.window.columns()));
    let rows = positions(source.height, y_region, plan.size.1, plan.window.rows());
    for (row, line) in rows.zip(out.chunks_exact_mut(plan.window.width * source.channels)) {
        if row == OUTSIDE {
            line.fill(0);
            continue;
        }
        let row = &source.pixels[row * source.row_bytes()..][..source.row_bytes()];
        match source.channels {
            1 => pick::<1>(row, columns, line),
            3 => pick::<3>(row, columns, line),
            _ => pick::<4>(row, columns, line),
        }
    }
}

/// Upper bound of what [`resize`] allocates, in bytes: a vector that grows may take twice what it holds.
pub(super) fn scratch_bytes(plan: &Plan) -> usize {
    2 * size_of::<usize>() * plan.window.width.max(4)
}

fn positions(input: usize, region: (f32, f32), output: usize, range: Range<usize>) -> impl Iterator<Item = usize> {
    let scale = f64::from(region.1 - region.0) / output as f64;
    let mut centre = f64::from(region.0) + scale * 0.5;
    let mut next = move || {
        let position = centre as usize;
        centre += scale;
        if position < input { position } else { OUTSIDE }
    };
    (0..range.start).for_each(|_| {
        next();
    });
    range.map(move |_| next())
}

fn pick<const CHANNELS: usize>(row: &[u8], columns: &[usize], line: &mut [u8]) {
    let (pixels, _) = row.as_chunks::<CHANNELS>();
    let (line, _) = line.as_chunks_mut::<CHANNELS>();
    for (out, &column) in line.iter_mut().zip(columns) {
        *out = pixels.get(column).copied().unwrap_or([0; CHANNELS]);
    }
}
