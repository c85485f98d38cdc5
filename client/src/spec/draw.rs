//! Random crops as arithmetic: what a sample gets follows from the seed, the epoch and the sample's name, on whatever machine.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{ImageSpec, Orientation, Resize, SIDE_MAX, SpecError};
use crate::frame::Layout;
use crate::pixels::Window;

/// torchvision's `RandomResizedCrop` and `RandomHorizontalFlip`, drawn from a generator of our own.
///
/// ```
/// use framecache::spec::RandomResizedCrop;
/// let crop = RandomResizedCrop { seed: 17, ..RandomResizedCrop::of((224, 224)) };
/// let spec = crop.draw("s3://photos/cat.jpg", 3, (500, 375), 1)?;
/// assert_eq!(spec.fixed_output(), Some((224, 224)));
/// assert_eq!(spec, crop.draw("s3://photos/cat.jpg", 3, (500, 375), 1)?);
/// # Ok::<(), framecache::spec::SpecError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct RandomResizedCrop {
    /// Width and height of the result, in pixels.
    pub size: (u32, u32),
    /// Least and most of the picture's area that is kept, 0 to 1.
    pub scale: (f64, f64),
    /// Least and most width over height of what is kept; above 0.
    pub ratio: (f64, f64),
    /// How likely a sample is mirrored, 0 to 1.
    pub flip: f64,
    /// What all samples get alike: filter, mode, layout, orientation. No box, size, crop or flip of its own.
    pub image: ImageSpec,
    /// Of the whole run.
    pub seed: u64,
}

impl RandomResizedCrop {
    /// torchvision's defaults: a twelfth to all of the area, 3:4 to 4:3, never mirrored.
    pub fn of(size: (u32, u32)) -> Self {
        Self { size, scale: (0.08, 1.0), ratio: (3.0 / 4.0, 4.0 / 3.0), flip: 0.0, image: ImageSpec::default(), seed: 0 }
    }

    /// The shape of every sample.
    pub fn shape(&self) -> [u32; 3] {
        self.image.shape(self.size)
    }

    /// Whether samples can be drawn by it.
    ///
    /// # Errors
    /// `Value` for what is out of its bounds, `Twice` for an image spec that has a box, size, crop or flip.
    pub fn check(&self) -> Result<(), SpecError> {
        let wrong = |name, value: String, want| Err(SpecError::Value { name, value, want });
        if self.image.layout == Layout::Planes {
            return wrong("layout", "planes".into(), "hwc or chw");
        }
        let ImageSpec { region, resize, crop, flip, .. } = &self.image;
        if region.is_some() || *resize != Resize::Keep || crop.is_some() || *flip {
            return Err(SpecError::Twice("what a random crop draws: box, size, crop and flip".into()));
        }
        let ((least, most), (narrow, wide)) = (self.scale, self.ratio);
        if !(least > 0.0 && least <= most && most <= 1.0) {
            return wrong("scale", format!("{:?}", self.scale), "least and most share of the area, above 0 and up to 1");
        }
        if !(narrow > 0.0 && narrow <= wide && wide.is_finite()) {
            return wrong("ratio", format!("{:?}", self.ratio), "least and most width over height, above 0");
        }
        if !(0.0..=1.0).contains(&self.flip) {
            return wrong("flip", self.flip.to_string(), "a probability, 0 to 1");
        }
        self.spec(Window { x: 0, y: 0, width: 1, height: 1 }, false).to_string().parse::<ImageSpec>().map(drop)
    }

    /// The spec of `sample` in `epoch`: of a picture of `width` x `height` as stored, whose stored orientation is `orientation`.
    ///
    /// # Errors
    /// As [`RandomResizedCrop::check`]; `Unsupported` for a picture with a side above [`SIDE_MAX`].
    pub fn draw(&self, sample: &str, epoch: u64, size: (u32, u32), orientation: u8) -> Result<ImageSpec, SpecError> {
        self.check()?;
        let size = match (self.image.orientation, orientation) {
            (Orientation::Apply, 5..=8) => (size.1, size.0),
            _ => size,
        };
        let mut dice = Dice(xxh3_64_with_seed(sample.as_bytes(), mixed(self.seed) ^ mixed(!epoch)));
        if size.0.max(size.1) > SIDE_MAX {
            return Err(SpecError::Unsupported(format!("a box in a picture of {}x{}", size.0, size.1)));
        }
        let region = self.region(size, &mut dice);
        let flip = dice.unit() < self.flip;
        Ok(self.spec(region, flip))
    }

    fn spec(&self, region: Window, flip: bool) -> ImageSpec {
        let (width, height) = self.size;
        ImageSpec { region: Some(region), resize: Resize::Size(width, height), flip, ..self.image.clone() }
    }

    /// torchvision 0.29 `RandomResizedCrop.get_params`: ten tries of an area and a shape, then the largest centred part whose shape
    /// is allowed. Its logarithm and exponential are a library's that is the same on every machine.
    fn region(&self, (width, height): (u32, u32), dice: &mut Dice) -> Window {
        let (across, down) = (f64::from(width.max(1)), f64::from(height.max(1)));
        let window = |x: f64, y: f64, width: f64, height: f64| Window {
            x: x as usize,
            y: y as usize,
            width: width.max(1.0) as usize,
            height: height.max(1.0) as usize,
        };
        let (narrow, wide) = self.ratio;
        for _ in 0..TRIES {
            let area = across * down * dice.between(self.scale);
            let shape = libm::exp(dice.between((libm::log(narrow), libm::log(wide))));
            let (w, h) = ((area * shape).sqrt().round_ties_even(), (area / shape).sqrt().round_ties_even());
            if (1.0..=across).contains(&w) && (1.0..=down).contains(&h) {
                let y = dice.below((down - h) as u64 + 1) as f64;
                return window(dice.below((across - w) as u64 + 1) as f64, y, w, h);
            }
        }
        let (w, h) = match across / down {
            shape if shape < narrow => (across, (across / narrow).round_ties_even().min(down)),
            shape if shape > wide => ((down * wide).round_ties_even().min(across), down),
            _ => (across, down),
        };
        window(((across - w) / 2.0).floor(), ((down - h) / 2.0).floor(), w, h)
    }
}

/// As in torchvision.
const TRIES: usize = 10;

/// SplitMix64 (Steele, Lea and Flood 2014): a counter, mixed.
struct Dice(u64);

impl Dice {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed(self.0)
    }

    /// Uniform in [0, 1), of 53 bits.
    fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn between(&mut self, (least, most): (f64, f64)) -> f64 {
        least + (most - least) * self.unit()
    }

    /// Uniform in 0 to `end`, without it.
    fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(end)) >> 64) as u64
    }
}

fn mixed(bits: u64) -> u64 {
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crop() -> RandomResizedCrop {
        RandomResizedCrop { seed: 17, flip: 0.5, ..RandomResizedCrop::of((224, 192)) }
    }

    fn drawn(crop: &RandomResizedCrop, sample: u64, size: (u32, u32)) -> (Window, bool) {
        let spec = crop.draw(&sample.to_string(), 0, size, 1).expect("drawn");
        spec.geometry(size.0, size.1).expect("lies within the picture");
        (spec.region.expect("box"), spec.flip)
    }

    /// Promise: areas, shapes and places are spread as torchvision's are, and half are mirrored.
    #[test]
    fn crops_are_spread() {
        let (crop, count) = (crop(), 20_000);
        let (mut areas, mut shapes, mut left, mut flips) = (0.0, 0.0, 0.0, 0);
        for sample in 0..count {
            let (Window { x, width, height, .. }, flip) = drawn(&crop, sample, (1000, 1000));
            let (w, h) = (width as f64, height as f64);
            assert!((0.079..=1.0).contains(&(w * h / 1e6)) && (0.74..1.35).contains(&(w / h)), "{width}x{height}");
            areas += w * h / 1e6;
            shapes += (w / h).ln();
            left += if width < 1000 { x as f64 / (1000.0 - w) } else { 0.5 };
            flips += u32::from(flip);
        }
        // Means of 200,000 draws by the rule itself, on a square of 1,000: area 0.478, log of shape 0.000, place 0.500.
        let mean = |sum: f64| sum / count as f64;
        assert!((mean(areas) - 0.478).abs() < 0.01, "{}", mean(areas));
        assert!(mean(shapes).abs() < 0.005 && (mean(left) - 0.5).abs() < 0.01, "{} {}", mean(shapes), mean(left));
        assert!((9_600..10_400).contains(&flips), "{flips}");
    }

    /// Promise: a draw follows from seed, epoch and sample alone, and each of them moves it. Values are frozen: they must not move
    /// between releases.
    #[test]
    fn draws_are_frozen() {
        let at = |seed, sample: &str, epoch| {
            let crop = RandomResizedCrop { seed, ..crop() };
            crop.draw(sample, epoch, (500, 375), 1).expect("drawn").to_string()
        };
        assert_eq!(at(17, "s3://photos/cat.jpg", 0), FROZEN);
        let others = [at(18, "s3://photos/cat.jpg", 0), at(17, "s3://photos/dog.jpg", 0), at(17, "s3://photos/cat.jpg", 1)];
        assert!(others.iter().all(|other| other != FROZEN), "{others:?}");
        assert!(at(0, "a", 1) != at(1, "a", 0), "seed and epoch are no pair of equals");
    }

    const FROZEN: &str = "image?box=187,29,197,248&size=224x192";

    /// Promise: pictures in which no allowed shape fits give their largest centred part of the nearest; the smallest give a pixel.
    #[test]
    fn odd_pictures_are_cut_in_the_middle() {
        let whole = |size| drawn(&RandomResizedCrop { scale: (1.0, 1.0), ..crop() }, 1, size).0;
        assert_eq!(whole((1000, 10)), Window { x: 493, y: 0, width: 13, height: 10 });
        assert_eq!(whole((10, 1000)), Window { x: 0, y: 493, width: 10, height: 13 });
        assert_eq!(drawn(&crop(), 1, (1, 1)).0, Window { x: 0, y: 0, width: 1, height: 1 });
        assert!(matches!(crop().draw("a", 0, (70_000, 100), 1), Err(SpecError::Unsupported(_))));
        for sample in 0..2_000 {
            drawn(&crop(), sample, (1 + sample as u32 % 40, 1 + sample as u32 % 37));
        }
    }

    /// Promise: a turned picture is cut as it is seen.
    #[test]
    fn turned_pictures_are_cut_as_seen() {
        let image: ImageSpec = "image?orientation=apply".parse().expect("spec");
        let crop = RandomResizedCrop { image, ..crop() };
        for sample in 0..100 {
            let spec = crop.draw(&sample.to_string(), 0, (40, 400), 6).expect("drawn");
            spec.turned_geometry(40, 400, 6).expect("lies within the turned picture");
        }
    }

    /// Promise: what cannot be drawn is refused by name.
    #[test]
    fn wrong_bounds_are_refused() {
        for (name, crop) in [
            ("scale", RandomResizedCrop { scale: (0.0, 1.0), ..crop() }),
            ("scale", RandomResizedCrop { scale: (0.5, 1.1), ..crop() }),
            ("scale", RandomResizedCrop { scale: (f64::NAN, 1.0), ..crop() }),
            ("ratio", RandomResizedCrop { ratio: (2.0, 1.0), ..crop() }),
            ("flip", RandomResizedCrop { flip: -0.1, ..crop() }),
            ("size", RandomResizedCrop::of((0, 5))),
            ("box", RandomResizedCrop { image: "image?crop=3".parse().expect("spec"), ..crop() }),
        ] {
            let refused = crop.draw("a", 0, (9, 9), 1).expect_err(name).to_string();
            assert!(refused.contains(name), "{name}: {refused}");
        }
    }
}
