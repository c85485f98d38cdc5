//! What a spec makes of a picture's size.

use super::{ImageSpec, Orientation, Resize, SpecError};
use crate::pixels::Window;

/// What a spec means for one picture, in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Width and height of the picture, orientation applied where the spec says so.
    pub source: (u32, u32),
    /// The part of it that is resized; `None`: all of it.
    pub region: Option<Window>,
    /// Width and height after the resize.
    pub resized: (u32, u32),
    /// The part of the resized picture that is kept.
    pub window: Window,
    /// Columns and rows of the grid that it is cut into; one of each where it is not.
    pub tiles: (u32, u32),
}

impl Geometry {
    /// Width and height of what comes out. Tiles lie under one another.
    pub fn output(&self) -> (u32, u32) {
        let (columns, rows) = self.tiles;
        let (width, height) = (self.window.width as u32 / columns, self.window.height as u32 / rows);
        (width, height * columns * rows)
    }
}

impl ImageSpec {
    /// The size of the output where it does not depend on the picture: `(width, height)`.
    pub fn fixed_output(&self) -> Option<(u32, u32)> {
        match (self.crop, self.resize, self.region) {
            (Some(side), ..) => Some((side, side)),
            (None, Resize::Size(width, height), _) => Some((width, height)),
            (None, Resize::Keep, Some(region)) => Some((region.width as u32, region.height as u32)),
            (None, Resize::Tiles { side, max: 1 }, _) => Some((side, side)),
            _ => None,
        }
    }

    /// What this spec makes of a picture of `width` x `height` (both at least 1), whose stored orientation is `orientation`.
    pub fn turned_geometry(&self, width: u32, height: u32, orientation: u8) -> Result<Geometry, SpecError> {
        match (self.orientation, orientation) {
            (Orientation::Apply, 5..=8) => self.geometry(height, width),
            _ => self.geometry(width, height),
        }
    }

    /// What this spec makes of a picture of `width` x `height` (both at least 1) as it is to be seen.
    ///
    /// Sources: torchvision `Resize` (`_compute_resized_output_size`: long side truncated) and `CenterCrop` (offset rounded half
    /// to even, as Python's `round`). Where torchvision pads a picture that is smaller than the crop, this refuses. For the others
    /// see [`Resize`].
    pub fn geometry(&self, width: u32, height: u32) -> Result<Geometry, SpecError> {
        let source = (width, height);
        let (width, height) = match self.region {
            None => source,
            Some(region) if !region.is_within(width as usize, height as usize) => {
                return Err(SpecError::Region { region, width, height });
            }
            Some(region) => (region.width as u32, region.height as u32),
        };
        let mut tiles = (1, 1);
        let (width, height) = match self.resize {
            Resize::Keep => (width, height),
            Resize::Size(width, height) => (width, height),
            Resize::Short { side, max } => short(side, max, width, height),
            Resize::Max(side) => longest(side, width, height),
            Resize::MaxPixels { pixels, multiple } => smart(pixels, multiple, width, height),
            Resize::Tiles { side, max } => {
                tiles = grid(side, max, width, height);
                (side * tiles.0, side * tiles.1)
            }
        };
        let window = match self.crop {
            None => Window { x: 0, y: 0, width: width as usize, height: height as usize },
            Some(crop) if crop > width || crop > height => return Err(SpecError::Crop { crop, width, height }),
            Some(crop) => Window {
                x: half_even(width - crop) as usize,
                y: half_even(height - crop) as usize,
                width: crop as usize,
                height: crop as usize,
            },
        };
        Ok(Geometry { source, region: self.region, resized: (width, height), window, tiles })
    }
}

/// `int(short_to * long / short)`; a long side past `max` is cut to it, and the short one with it.
fn short(side: u32, max: Option<u32>, width: u32, height: u32) -> (u32, u32) {
    let (short, long) = (width.min(height), width.max(height));
    let (mut new_short, mut new_long) = (side, scaled(side, long, short));
    if let Some(max) = max.filter(|&max| new_long > max) {
        (new_short, new_long) = (scaled(max, new_short, new_long), max);
    }
    if width <= height { (new_short, new_long) } else { (new_long, new_short) }
}

fn longest(side: u32, width: u32, height: u32) -> (u32, u32) {
    match (width.max(height) > side, width >= height) {
        (false, _) => (width, height),
        (true, true) => (side, scaled(side, height, width)),
        (true, false) => (scaled(side, width, height), side),
    }
}

/// Qwen2-VL's `smart_resize` without a least number of pixels: each side to the nearest multiple (ties to even), and if that is too
/// many pixels, both down by one factor and to the multiple below; at least one multiple. In doubles, as there.
fn smart(pixels: u32, multiple: u32, width: u32, height: u32) -> (u32, u32) {
    let step = f64::from(multiple);
    let nearest = |side: u32| ((f64::from(side) / step).round_ties_even() * step).max(step);
    let (mut new_width, mut new_height) = (nearest(width), nearest(height));
    if new_width * new_height > f64::from(pixels) {
        let factor = (f64::from(width) * f64::from(height) / f64::from(pixels)).sqrt();
        let below = |side: u32| ((f64::from(side) / factor / step).floor() * step).max(step);
        (new_width, new_height) = (below(width), below(height));
    }
    (new_width as u32, new_height as u32)
}

/// InternVL's `find_closest_aspect_ratio`: among grids of at most `max` tiles, fewest tiles first, the one whose shape is nearest; of two
/// equally near the larger, where the picture has more than half of its pixels.
fn grid(side: u32, max: u32, width: u32, height: u32) -> (u32, u32) {
    let shape = f64::from(width) / f64::from(height);
    let area = f64::from(width) * f64::from(height);
    let (mut best, mut least) = ((1, 1), f64::INFINITY);
    for tiles in 1..=max {
        for columns in (1..=tiles).filter(|columns| tiles.is_multiple_of(*columns)) {
            let rows = tiles / columns;
            let off = (shape - f64::from(columns) / f64::from(rows)).abs();
            let enough = area > 0.5 * f64::from(side) * f64::from(side) * f64::from(tiles);
            if off < least || (off == least && enough) {
                (best, least) = ((columns, rows), off);
            }
        }
    }
    best
}

/// `int(to * of / by)`, at least 1 and saturating.
fn scaled(to: u32, of: u32, by: u32) -> u32 {
    let side = u64::from(to) * u64::from(of) / u64::from(by.max(1));
    u32::try_from(side).unwrap_or(u32::MAX).max(1)
}

/// `round(gap / 2)` with ties to even.
fn half_even(gap: u32) -> u32 {
    let half = gap / 2;
    if gap % 2 == 1 && half % 2 == 1 { half + 1 } else { half }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str, width: u32, height: u32) -> Geometry {
        text.parse::<ImageSpec>().expect("spec").geometry(width, height).expect("geometry")
    }

    /// Promise: sizes and offsets are those of torchvision 0.26: `Resize(256)`, `Resize(256, max_size=300)`, `CenterCrop`.
    #[test]
    fn geometry_is_torchvisions() {
        let g = of("image?short=256&crop=224", 500, 375);
        assert_eq!(g.resized, (341, 256));
        assert_eq!((g.window.x, g.window.y), (58, 16)); // round(58.5) = 58
        assert_eq!(of("image?short=256", 375, 500).resized, (256, 341));
        assert_eq!(of("image?short=256&max=300", 375, 500).resized, (225, 300));
        assert_eq!(of("image?short=256&max=300", 500, 480).resized, (266, 256));
        let g = of("image?crop=3", 6, 4);
        assert_eq!((g.window.x, g.window.y), (2, 0)); // round(1.5) = 2, round(0.5) = 0
        assert!("image?crop=300".parse::<ImageSpec>().expect("spec").geometry(299, 400).is_err());
        assert_eq!(of("image?short=1", 1, 65_535).resized, (1, 65_535));
    }

    /// Promise: a box is resized in place of the picture, and one that does not lie within it is refused.
    #[test]
    fn boxes_take_the_pictures_place() {
        let g = of("image?box=10,20,100,50&short=25", 200, 100);
        assert_eq!((g.source, g.resized), ((200, 100), (50, 25)));
        assert_eq!(of("image?box=199,99,1,1", 200, 100).output(), (1, 1));
        for text in ["image?box=101,0,100,50", "image?box=0,51,100,50"] {
            let spec: ImageSpec = text.parse().expect("spec");
            assert!(matches!(spec.geometry(200, 100), Err(SpecError::Region { .. })), "{text}");
        }
    }

    /// Promise: the sizes of vision-language models are theirs. Values from transformers' `smart_resize(h, w, 28, max_pixels=…)` and
    /// InternVL's `dynamic_preprocess`.
    #[test]
    fn vision_language_sizes_are_theirs() {
        assert_eq!(of("image?max_pixels=1003520&multiple=28", 640, 480).resized, (644, 476));
        assert_eq!(of("image?max_pixels=100000&multiple=28", 640, 480).resized, (364, 252));
        assert_eq!(of("image?max_pixels=1000&multiple=28", 9_000, 9).resized, (980, 28));
        assert_eq!(of("image?max_pixels=100000", 640, 480).resized, (365, 273));
        assert_eq!(of("image?max=100", 640, 480).resized, (100, 75));
        assert_eq!(of("image?max=1000", 640, 480).resized, (640, 480));
        let tiles = |width, height| of("image?tiles=448&max=12", width, height);
        assert_eq!(tiles(800, 400).tiles, (2, 1));
        assert_eq!(tiles(1_600, 800).tiles, (4, 2));
        assert_eq!(tiles(400, 400).tiles, (1, 1));
        assert_eq!(tiles(1_000, 1_000).tiles, (3, 3));
        assert_eq!(tiles(1_000, 1_000).output(), (448, 9 * 448));
    }

    /// Promise: a turned picture is measured as it is seen, where the spec turns it.
    #[test]
    fn orientation_turns_the_size() {
        let spec: ImageSpec = "image?short=10&orientation=apply".parse().expect("spec");
        assert_eq!(spec.turned_geometry(40, 20, 6).expect("geometry").resized, (10, 20));
        assert_eq!(spec.turned_geometry(40, 20, 3).expect("geometry").resized, (20, 10));
        let plain: ImageSpec = "image?short=10".parse().expect("spec");
        assert_eq!(plain.turned_geometry(40, 20, 6).expect("geometry").resized, (20, 10));
    }
}
