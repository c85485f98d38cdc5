//! The picture and what to make of it, checked before any pixel is touched.

use std::error::Error;
use std::fmt;
use std::ops::Range;

use super::Filter;

/// Longest side of a source or a result, in pixels. A region is `f32`, as Pillow's box is, and counts whole pixels up to here.
pub const SIDE_MAX: usize = 1 << 24;

/// A picture to read: rows from the top, no padding between them, channels interleaved.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// `width * height * channels` bytes.
    pub pixels: &'a [u8],
    /// Pixels in a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Bytes of a pixel: 1, 3 or 4. Four are resized as Pillow resizes CMYK, each alone; its RGBA is premultiplied first.
    pub channels: usize,
}

impl Source<'_> {
    pub(super) fn row_bytes(&self) -> usize {
        self.width * self.channels
    }
}

/// Half-open rectangle in pixels: columns `x..x + width`, rows `y..y + height`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    pub x: usize,
    pub y: usize,
    pub width: usize,
    pub height: usize,
}

impl Window {
    pub(super) fn columns(&self) -> Range<usize> {
        self.x..self.x + self.width
    }

    pub(super) fn rows(&self) -> Range<usize> {
        self.y..self.y + self.height
    }

    fn is_empty(&self) -> bool {
        self.width == 0 || self.height == 0
    }

    pub(crate) fn is_within(&self, width: usize, height: usize) -> bool {
        let ends_within = |start: usize, length: usize, side| start.checked_add(length).is_some_and(|end| end <= side);
        ends_within(self.x, self.width, width) && ends_within(self.y, self.height, height)
    }
}

/// What to make: the whole picture, or `region` of it, resized to `size`, of which only `window` is computed.
///
/// The window's bytes are those of the full result, cut: the rest is merely not made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    /// Width and height of the full result, in pixels.
    pub size: (usize, usize),
    /// Half-open part of the source, `[x0, y0, x1, y1]` in pixels: Pillow's `resize(box=)`, whose filter also sees the pixels around
    /// the box. `None`: all of it.
    pub region: Option<[f32; 4]>,
    /// The part of the result to compute, in pixels of the result.
    pub window: Window,
    /// How samples are weighed.
    pub filter: Filter,
}

/// Why a plan cannot be carried out. Nothing was computed: correct the request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PlanError {
    /// The source has this many channels, not 1, 3 or 4.
    Channels(usize),
    /// The source's bytes are not `width * height * channels`.
    SourceBytes { have: usize, want: usize },
    /// A side of the source, the result or the window is zero.
    Empty,
    /// A side of the source or the result passes [`SIDE_MAX`], or its bytes pass the address space.
    TooLarge,
    /// The window does not lie within the result of this size.
    WindowOutside { window: Window, size: (usize, usize) },
    /// The region is empty, not finite, or does not lie within the source.
    RegionOutside { region: [f32; 4], width: usize, height: usize },
}

impl Plan {
    /// Refuses geometry that has no result. [`resize`](super::resize) panics on what this refuses and on nothing else.
    pub fn check(&self, source: &Source<'_>) -> Result<(), PlanError> {
        let Source { width, height, channels, .. } = *source;
        if !matches!(channels, 1 | 3 | 4) {
            return Err(PlanError::Channels(channels));
        }
        let (out_width, out_height) = self.size;
        if [width, height, out_width, out_height].contains(&0) || self.window.is_empty() {
            return Err(PlanError::Empty);
        }
        if [width, height, out_width, out_height].iter().any(|&side| side > SIDE_MAX) {
            return Err(PlanError::TooLarge);
        }
        if !self.window.is_within(out_width, out_height) {
            return Err(PlanError::WindowOutside { window: self.window, size: self.size });
        }
        let want = picture_bytes(width, height, channels)?;
        picture_bytes(self.window.width, self.window.height, channels)?;
        if source.pixels.len() != want {
            return Err(PlanError::SourceBytes { have: source.pixels.len(), want });
        }
        match self.region {
            Some(region) if !is_region(region, width, height) => Err(PlanError::RegionOutside { region, width, height }),
            _ => Ok(()),
        }
    }

    /// The region along x and along y, as `(from, to)`.
    pub(super) fn region_in(&self, width: usize, height: usize) -> [(f32, f32); 2] {
        let [x0, y0, x1, y1] = self.region.unwrap_or([0.0, 0.0, width as f32, height as f32]);
        [(x0, x1), (y0, y1)]
    }
}

fn picture_bytes(width: usize, height: usize, channels: usize) -> Result<usize, PlanError> {
    let bytes = width.checked_mul(height).and_then(|pixels| pixels.checked_mul(channels));
    bytes.filter(|&bytes| bytes <= isize::MAX as usize).ok_or(PlanError::TooLarge)
}

/// Comparisons with a NaN are false, so that one is refused without being named.
fn is_region([x0, y0, x1, y1]: [f32; 4], width: usize, height: usize) -> bool {
    0.0 <= x0 && x0 < x1 && x1 <= width as f32 && 0.0 <= y0 && y0 < y1 && y1 <= height as f32
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Channels(channels) => write!(f, "picture of {channels} channels (want 1, 3 or 4)"),
            Self::SourceBytes { have, want } => write!(f, "picture of {have} bytes (want {want})"),
            Self::Empty => write!(f, "picture or window without pixels"),
            Self::TooLarge => write!(f, "picture too large (a side has at most {SIDE_MAX} pixels)"),
            Self::WindowOutside { window, size: (width, height) } => {
                write!(f, "{window:?} outside the result of {width}x{height}")
            }
            Self::RegionOutside { region, width, height } => {
                write!(f, "region {region:?} empty or outside the picture of {width}x{height}")
            }
        }
    }
}

impl Error for PlanError {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Geometry without a result is refused with its own reason, and the edges of what is legal are not.
    #[test]
    fn refuses_geometry_without_a_result() {
        let source = Source { pixels: &[0; 4 * 3 * 3], width: 4, height: 3, channels: 3 };
        let window = Window { x: 1, y: 1, width: 1, height: 1 };
        let plan = Plan { size: (2, 2), region: None, window, filter: Filter::Bicubic };
        assert_eq!(plan.check(&source), Ok(()));
        assert_eq!(Plan { region: Some([3.5, 0.0, 4.0, 3.0]), ..plan }.check(&source), Ok(()));

        assert_eq!(plan.check(&Source { channels: 2, ..source }), Err(PlanError::Channels(2)));
        assert_eq!(plan.check(&Source { height: 2, ..source }), Err(PlanError::SourceBytes { have: 36, want: 24 }));
        assert_eq!(plan.check(&Source { width: 0, pixels: &[], ..source }), Err(PlanError::Empty));
        assert_eq!(Plan { size: (0, 2), ..plan }.check(&source), Err(PlanError::Empty));
        assert_eq!(Plan { window: Window { width: 0, ..window }, ..plan }.check(&source), Err(PlanError::Empty));
        assert_eq!(Plan { size: (SIDE_MAX + 1, 2), ..plan }.check(&source), Err(PlanError::TooLarge));
        for outside in [Window { x: 2, ..window }, Window { height: 2, ..window }, Window { y: usize::MAX, ..window }] {
            let error = Plan { window: outside, ..plan }.check(&source);
            assert_eq!(error, Err(PlanError::WindowOutside { window: outside, size: (2, 2) }));
        }
        for region in [
            [-0.5, 0.0, 4.0, 3.0],
            [0.0, 0.0, 4.1, 3.0],
            [0.0, 0.0, 4.0, 3.1],
            [2.0, 0.0, 2.0, 3.0],
            [0.0, 2.0, 4.0, 1.0],
            [f32::NAN, 0.0, 4.0, 3.0],
            [0.0, 0.0, f32::INFINITY, 3.0],
        ] {
            let error = Plan { region: Some(region), ..plan }.check(&source);
            assert!(matches!(error, Err(PlanError::RegionOutside { .. })), "{region:?}");
        }
    }
}
