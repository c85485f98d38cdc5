//! The passes of a resize, and the scratch memory between them.
//!
//! A pass makes a row of bytes: uint8 stands between the two, as in Pillow, so the order of the passes shows in the result. Neither
//! order keeps the whole intermediate picture: the second pass asks, and the first makes the rows it asks for.

use std::array;
use std::ops::Range;

use super::Source;
use super::axis::{Axis, Form};
use super::scalar;

#[cfg(target_arch = "x86_64")]
use super::{avx2, vnni};

/// Rows that a horizontal kernel makes at once.
pub(super) const ROWS_AT_ONCE: usize = 4;

/// A horizontal kernel may store this many bytes behind the last of a row.
const STORE_SLACK: usize = 4;

/// An axis reaches less than this far behind the last byte of a row: one load, and for gray groups the steps that a group at the
/// border makes only because others need them (a group exists up to a shrink of about four, so at most 28 taps).
const REACH_SLACK: usize = 64;

/// Four rows of bytes in one buffer, each from its start.
pub(super) struct FourRows<'a> {
    pub(super) buffer: &'a [u8],
    pub(super) starts: [usize; ROWS_AT_ONCE],
}

impl FourRows<'_> {
    /// What the unchecked loads and stores of the horizontal kernels stand on.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn assert_fit(&self, axis: &Axis, channels: usize, out: &[u8]) {
        assert!(self.starts.iter().all(|start| start + axis.reach <= self.buffer.len()), "row shorter than its axis reads");
        assert!(axis.taps.len() * channels + STORE_SLACK <= out.len() / ROWS_AT_ONCE, "row shorter than its axis makes");
    }
}

/// Bytes of one row made by a horizontal kernel.
pub(super) fn padded(line_bytes: usize) -> usize {
    (line_bytes + STORE_SLACK).next_multiple_of(64)
}

/// Rows kept between a horizontal and a vertical pass: those under one output row, and up to three of the next.
pub(super) fn ring_rows(taps_max: usize) -> usize {
    taps_max.next_multiple_of(ROWS_AT_ONCE) + ROWS_AT_ONCE
}

/// Memory that passes write and read again. Kept between calls, since fresh pages cost more than a small resize.
#[derive(Default)]
pub(super) struct Scratch {
    /// Rows from the first pass, waiting for the second.
    between: Vec<u8>,
    /// Copies of the last source rows, behind which a kernel may read.
    tail: Vec<u8>,
    /// Rows from the second pass, if that is the horizontal one, before they are copied out without their slack.
    finished: Vec<u8>,
    /// Where the rows under one output row begin.
    pub(super) starts: Vec<usize>,
}

impl Scratch {
    /// Memory held, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let starts_bytes = self.starts.capacity() * size_of::<usize>();
        self.between.len() + self.tail.len() + self.finished.len() + starts_bytes
    }

    /// Upper bound of what the passes allocate for a source row of `row_bytes` and an output row of `line_bytes`, in bytes.
    pub(super) fn bytes_bound(row_bytes: usize, line_bytes: usize, taps_max: usize, vertical_first: bool) -> usize {
        let row_bytes = row_bytes + REACH_SLACK;
        let starts_bytes = 2 * size_of::<usize>() * ring_rows(taps_max);
        let between_rows = if vertical_first { 0 } else { ring_rows(taps_max) };
        ROWS_AT_ONCE * (row_bytes + padded(line_bytes)) + between_rows * padded(line_bytes) + starts_bytes
    }

    /// Along y alone: the source's columns from the byte `from` of a row.
    pub(super) fn vertical(&mut self, source: &Source<'_>, from: usize, y: &Axis, out: &mut [u8]) {
        let row_bytes = source.row_bytes();
        for (sample, line) in out.chunks_exact_mut(out.len() / y.taps.len()).enumerate() {
            let taps = y.taps[sample];
            self.starts.clear();
            self.starts.extend((taps.first..taps.end()).map(|row| row * row_bytes + from));
            y.vertical(sample, source.pixels, &mut self.starts, line);
        }
    }

    /// Along x alone: the source's rows `rows`.
    pub(super) fn horizontal(&mut self, source: &Source<'_>, rows: Range<usize>, x: &Axis, out: &mut [u8]) {
        let line = padded(x.taps.len() * source.channels);
        let line_bytes = out.len() / rows.len();
        let finished = room(&mut self.finished, ROWS_AT_ONCE * line);
        for (group, lines) in out.chunks_mut(ROWS_AT_ONCE * line_bytes).enumerate() {
            let first = rows.start + group * ROWS_AT_ONCE;
            source_rows(source, first, rows.end, x, &mut self.tail, finished);
            copy_lines(finished, line, lines, line_bytes);
        }
    }

    /// Along x, then along y: a ring holds the rows under the current output row.
    pub(super) fn horizontal_first(&mut self, source: &Source<'_>, x: &Axis, y: &Axis, out: &mut [u8]) {
        let line = padded(x.taps.len() * source.channels);
        let slots = ring_rows(y.taps_max);
        let ring = room(&mut self.between, slots * line);
        let Range { start, end } = y.input_range();
        let mut made = start;
        for (sample, out) in out.chunks_exact_mut(x.taps.len() * source.channels).enumerate() {
            let taps = y.taps[sample];
            while made < taps.end() {
                let slot = (made - start) % slots;
                source_rows(source, made, end, x, &mut self.tail, &mut ring[slot * line..][..ROWS_AT_ONCE * line]);
                made += ROWS_AT_ONCE;
            }
            self.starts.clear();
            self.starts.extend((taps.first..taps.end()).map(|row| (row - start) % slots * line));
            y.vertical(sample, ring, &mut self.starts, out);
        }
    }

    /// Along y, then along x: four output rows at a time, of the columns that x needs.
    pub(super) fn vertical_first(&mut self, source: &Source<'_>, x: &Axis, y: &Axis, out: &mut [u8]) {
        let row_bytes = source.row_bytes();
        let (columns, line) = (x.input_range(), padded(x.taps.len() * source.channels));
        let (used, stride) = (columns.start * source.channels..columns.end * source.channels, row_bytes.max(x.reach));
        let line_bytes = x.taps.len() * source.channels;
        let between = room(&mut self.between, ROWS_AT_ONCE * stride);
        let finished = room(&mut self.finished, ROWS_AT_ONCE * line);
        for (group, lines) in out.chunks_mut(ROWS_AT_ONCE * line_bytes).enumerate() {
            for (row, sample) in (group * ROWS_AT_ONCE..y.taps.len()).take(ROWS_AT_ONCE).enumerate() {
                let taps = y.taps[sample];
                self.starts.clear();
                self.starts.extend((taps.first..taps.end()).map(|row| row * row_bytes + used.start));
                y.vertical(sample, source.pixels, &mut self.starts, &mut between[row * stride..][used.clone()]);
            }
            x.horizontal(source.channels, &FourRows { buffer: between, starts: array::from_fn(|row| row * stride) }, finished);
            copy_lines(finished, line, lines, line_bytes);
        }
    }
}

/// `bytes` of a buffer, grown if needed. What they hold is left from before.
fn room(buffer: &mut Vec<u8>, bytes: usize) -> &mut [u8] {
    if buffer.len() < bytes {
        *buffer = vec![0; bytes];
    }
    &mut buffer[..bytes]
}

/// The four source rows from `first`, the last before `end` in place of those that are not, resized along x into `out`.
///
/// A kernel may read behind a row. Only rows at the end of the source have nothing there, and those are copied.
fn source_rows(source: &Source<'_>, first: usize, end: usize, x: &Axis, tail: &mut Vec<u8>, out: &mut [u8]) {
    let (row_bytes, stride) = (source.row_bytes(), source.row_bytes().max(x.reach));
    let starts: [usize; ROWS_AT_ONCE] = array::from_fn(|row| (first + row).min(end - 1) * row_bytes);
    if starts[ROWS_AT_ONCE - 1] + x.reach <= source.pixels.len() {
        return x.horizontal(source.channels, &FourRows { buffer: source.pixels, starts }, out);
    }
    let tail = room(tail, ROWS_AT_ONCE * stride);
    for (start, copy) in starts.into_iter().zip(tail.chunks_exact_mut(stride)) {
        copy[..row_bytes].copy_from_slice(&source.pixels[start..start + row_bytes]);
    }
    x.horizontal(source.channels, &FourRows { buffer: tail, starts: array::from_fn(|row| row * stride) }, out);
}

/// Copies padded rows, as many as `lines` holds, without their padding.
fn copy_lines(padded: &[u8], line: usize, lines: &mut [u8], line_bytes: usize) {
    for (from, to) in padded.chunks_exact(line).zip(lines.chunks_exact_mut(line_bytes)) {
        to.copy_from_slice(&from[..line_bytes]);
    }
}

impl Axis {
    /// Four rows along x, by the kernel that the weights are laid out for. `out` is four rows of equal length.
    fn horizontal(&self, channels: usize, rows: &FourRows<'_>, out: &mut [u8]) {
        match (&self.form, channels) {
            (Form::Scalar(weights), 1) => scalar::horizontal::<1>(rows, self, weights, out),
            (Form::Scalar(weights), 3) => scalar::horizontal::<3>(rows, self, weights, out),
            (Form::Scalar(weights), _) => scalar::horizontal::<4>(rows, self, weights, out),
            // SAFETY, of each: `Axis::new` makes this form on a processor with these instructions only.
            #[cfg(target_arch = "x86_64")]
            (Form::Avx2(weights), 3) => unsafe { avx2::horizontal::<3>(rows, self, weights, out) },
            #[cfg(target_arch = "x86_64")]
            (Form::Avx2(weights), _) => unsafe { avx2::horizontal::<4>(rows, self, weights, out) },
            #[cfg(target_arch = "x86_64")]
            (Form::Avx2Gray(weights), _) => unsafe { avx2::gray(rows, self, weights, out) },
            #[cfg(target_arch = "x86_64")]
            (Form::Avx2GrayQuads(quads), _) => unsafe { avx2::gray_quads(rows, self, quads, out) },
            #[cfg(target_arch = "x86_64")]
            (Form::Vnni(weights), 3) => unsafe { vnni::horizontal::<3>(rows, self, weights, out) },
            #[cfg(target_arch = "x86_64")]
            (Form::Vnni(weights), _) => unsafe { vnni::horizontal::<4>(rows, self, weights, out) },
            #[cfg(target_arch = "x86_64")]
            (Form::VnniGray(weights), _) => unsafe { vnni::gray(rows, self, weights, out) },
            #[cfg(target_arch = "x86_64")]
            (Form::VnniGrayQuads(quads), _) => unsafe { vnni::gray_quads(rows, self, quads, out) },
            #[cfg(not(target_arch = "x86_64"))]
            _ => unreachable!("a vector form on a processor without one"),
        }
    }

    /// One row across y: output sample `sample` of the rows of `buffer` that begin at `starts`, one for each tap.
    fn vertical(&self, sample: usize, buffer: &[u8], starts: &mut Vec<usize>, out: &mut [u8]) {
        // A kernel takes taps by twos or fours: the rest read some row and weigh it by zero.
        let at_once = if matches!(self.form, Form::Avx2(_)) { 2 } else { 4 };
        starts.resize(starts.len().next_multiple_of(at_once), starts.first().copied().unwrap_or(0));
        let weights = |taps_a_word: usize| sample * self.stride / taps_a_word..(sample + 1) * self.stride / taps_a_word;
        match &self.form {
            Form::Scalar(whole) => scalar::vertical(buffer, starts, &whole[weights(1)][..self.taps[sample].count], out),
            // SAFETY, of both: `Axis::new` makes this form on a processor with these instructions only.
            #[cfg(target_arch = "x86_64")]
            Form::Avx2(halves) => unsafe { avx2::vertical(buffer, starts, &halves[weights(2)], out) },
            #[cfg(target_arch = "x86_64")]
            Form::Vnni(bytes) => unsafe { vnni::vertical(buffer, starts, &bytes[weights(4)], out) },
            _ => unreachable!("weights of a gray row in a vertical pass"),
        }
    }
}
