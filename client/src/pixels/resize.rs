//! The call: which passes, in which order, with which axes.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use super::axes::{AxisCache, KEPT_BYTES_MAX, TABLE_BYTES_MAX};
use super::axis::{Axis, AxisSpec, Direction};
use super::passes::Scratch;
use super::{Filter, Isa, Plan, Source, Window, nearest};

/// Scratch memory that a [`Resizer`] keeps between calls, in bytes. A picture of 4000x3000 needs about 0.4 MB; what is larger is given
/// back, so that one huge picture does not occupy every decoding thread for good.
const SCRATCH_KEPT_BYTES_MAX: usize = 16 << 20;

/// Memory that a [`Resizer`] holds between calls, in bytes, at most.
pub const RESIZER_BYTES_MAX: usize = SCRATCH_KEPT_BYTES_MAX + KEPT_BYTES_MAX + TABLE_BYTES_MAX;

/// Resizes, and keeps scratch memory and axes from one call to the next: 15 to 50 microseconds less for a size used before.
#[derive(Default)]
pub struct Resizer {
    axes: AxisCache,
    scratch: Scratch,
}

/// Makes `plan.window` of the resized picture, rows from the top, into `out`: `window.width * window.height * channels` bytes.
///
/// The bytes are those of Pillow 13's `resize(size, filter, box=region)`, cut to the window (SEMANTICS.md, "Resize and crop"). Keeps at
/// most [`RESIZER_BYTES_MAX`] for each thread that calls it. Panics if [`Plan::check`] refuses, or if `out` has another length.
pub fn resize(source: &Source<'_>, plan: &Plan, out: &mut [u8]) {
    resize_with(Isa::best(), source, plan, out);
}

/// [`resize`] by the kernels of one instruction set, which gives the same bytes: for tests and for the bench.
///
/// Panics if this processor lacks it.
pub fn resize_with(isa: Isa, source: &Source<'_>, plan: &Plan, out: &mut [u8]) {
    thread_local!(static RESIZER: RefCell<Resizer> = RefCell::default());
    RESIZER.with_borrow_mut(|resizer| resizer.resize_with(isa, source, plan, out));
}

/// Copies `window`, in pixels of the source, into `out`: `window.width * window.height * channels` bytes.
///
/// Panics if the window does not lie within the source, or if `out` has another length.
pub fn crop(source: &Source<'_>, window: Window, out: &mut [u8]) {
    let Source { pixels, width, height, channels } = *source;
    assert_eq!(pixels.len(), width * height * channels, "source bytes");
    assert!(window.is_within(width, height), "{window:?} outside the source of {width}x{height}");
    assert_eq!(out.len(), window.width * window.height * channels, "output bytes");
    if out.is_empty() {
        return;
    }
    let columns = window.x * channels..(window.x + window.width) * channels;
    let rows = pixels.chunks_exact(source.row_bytes()).skip(window.y);
    for (row, line) in rows.zip(out.chunks_exact_mut(columns.len())) {
        line.copy_from_slice(&row[columns.clone()]);
    }
}

impl Resizer {
    /// As the free function [`resize`], with this resizer's memory.
    pub fn resize(&mut self, source: &Source<'_>, plan: &Plan, out: &mut [u8]) {
        self.resize_with(Isa::best(), source, plan, out);
    }

    /// As the free function [`resize_with`], with this resizer's memory.
    pub fn resize_with(&mut self, isa: Isa, source: &Source<'_>, plan: &Plan, out: &mut [u8]) {
        if let Err(error) = plan.check(source) {
            panic!("resize of an unchecked plan: {error}");
        }
        assert_eq!(out.len(), plan.window.width * plan.window.height * source.channels, "output bytes");
        self.carry_out(isa, source, plan, out);
        if self.scratch.bytes() > SCRATCH_KEPT_BYTES_MAX {
            self.scratch = Scratch::default();
        }
    }

    /// Memory held, in bytes: at most [`RESIZER_BYTES_MAX`] between calls.
    pub fn bytes(&self) -> usize {
        self.axes.bytes() + self.scratch.bytes()
    }

    fn carry_out(&mut self, isa: Isa, source: &Source<'_>, plan: &Plan, out: &mut [u8]) {
        if plan.filter == Filter::Nearest {
            return nearest::resize(source, plan, &mut self.scratch.starts, out);
        }
        let [x, y] = axis_specs(isa, source.width, source.height, source.channels, plan);
        match (self.pass(x), self.pass(y)) {
            (Pass::Copy(columns), Pass::Copy(rows)) => crop(source, window(columns, rows), out),
            (Pass::Copy(columns), Pass::Sum(y)) => self.scratch.vertical(source, columns.start * source.channels, &y, out),
            (Pass::Sum(x), Pass::Copy(rows)) => self.scratch.horizontal(source, rows, &x, out),
            (Pass::Sum(x), Pass::Sum(y)) if is_vertical_first(source.width, source.height, plan) => {
                self.scratch.vertical_first(source, &x, &y, out)
            }
            (Pass::Sum(x), Pass::Sum(y)) => self.scratch.horizontal_first(source, &x, &y, out),
        }
    }

    fn pass(&mut self, spec: AxisSpec) -> Pass {
        if spec.is_identity() {
            let offset = spec.region.0 as usize;
            return Pass::Copy(spec.range.start + offset..spec.range.end + offset);
        }
        Pass::Sum(self.axes.axis(spec))
    }
}

/// What happens along one axis.
enum Pass {
    /// These input samples are the output.
    Copy(Range<usize>),
    /// Weighed sums.
    Sum(Arc<Axis>),
}

/// Pillow 13.0 (pull request 9549) begins with y when that leaves the smaller picture between the passes. It decides by the whole
/// source, whatever the region. Pillow 12 and earlier always begin with x.
fn is_vertical_first(width: usize, height: usize, plan: &Plan) -> bool {
    // No side passes 2²⁴, so nothing wraps.
    let [width, height, out_width, out_height] = [width, height, plan.size.0, plan.size.1].map(|side| side as i64);
    height > out_height && height - out_height > 2 * (width - out_width)
}

fn axis_specs(isa: Isa, width: usize, height: usize, channels: usize, plan: &Plan) -> [AxisSpec; 2] {
    let [x_region, y_region] = plan.region_in(width, height);
    let filter = plan.filter;
    let along_x = Direction::Horizontal { channels };
    let (columns, rows) = (plan.window.columns(), plan.window.rows());
    [
        AxisSpec { input: width, region: x_region, output: plan.size.0, range: columns, filter, direction: along_x, isa },
        AxisSpec {
            input: height,
            region: y_region,
            output: plan.size.1,
            range: rows,
            filter,
            direction: Direction::Vertical,
            isa,
        },
    ]
}

fn window(columns: Range<usize>, rows: Range<usize>) -> Window {
    Window { x: columns.start, y: rows.start, width: columns.len(), height: rows.len() }
}

/// Upper bound of the memory that [`resize`] allocates beside `out`, in bytes, for a source of these sides and channels: what a budget
/// takes before the call. Up to [`RESIZER_BYTES_MAX`] of it may stay held afterwards. The plan is one that passed [`Plan::check`].
pub fn resize_scratch_bytes(width: usize, height: usize, channels: usize, plan: &Plan) -> usize {
    if plan.filter == Filter::Nearest {
        return nearest::scratch_bytes(plan);
    }
    let [x, y] = axis_specs(Isa::Scalar, width, height, channels, plan);
    let vertical_first = is_vertical_first(width, height, plan);
    let line_bytes = plan.window.width * channels;
    let passes_bytes = Scratch::bytes_bound(width * channels, line_bytes, y.taps_bound(), vertical_first);
    passes_bytes + x.axis_bytes_bound() + y.axis_bytes_bound() + TABLE_BYTES_MAX
}
