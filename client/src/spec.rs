//! Decode specs: which pixels are wanted, as text and as value.
//!
//! `image?short=256&crop=224&filter=bicubic` is the text form. There is one canonical text per meaning (fixed order, defaults
//! left out), and its hash is part of a decoded entry's key, together with the profile's version: a change that moves pixels
//! moves that version. The rules of geometry are torchvision's, cited where they stand.

use std::fmt;
use std::str::FromStr;

use xxhash_rust::xxh3::xxh3_128;

use crate::pixels::{Filter, Window};

/// Longest spec text, in bytes. A canonical spec is under 200; the rest is room for future selectors.
pub const SPEC_BYTES_MAX: usize = 2048;

/// Largest side that may be asked for, in pixels: JPEG's own limit.
pub const SIDE_MAX: u32 = 65_535;

/// What a decode gives. Video has the same shape of text (`video?frames=0,8`) and joins this enum with its decoder.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DecodeSpec {
    /// One still picture.
    Image(ImageSpec),
}

/// How a picture is made: decode, resize, crop. The default is the picture as stored.
///
/// ```
/// use framecache::spec::ImageSpec;
/// let spec: ImageSpec = "image?crop=224&short=256".parse()?;
/// assert_eq!(spec.to_string(), "image?short=256&crop=224");
/// assert_eq!(spec.geometry(500, 375)?.output(), (224, 224));
/// # Ok::<(), framecache::spec::SpecError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ImageSpec {
    /// Which definition of the pixels.
    pub profile: Profile,
    /// To what size, before the crop.
    pub resize: Resize,
    /// Side of the centred square that is kept, in pixels.
    pub crop: Option<u32>,
    /// The resize kernel.
    pub filter: Filter,
}

/// The definition that pixels obey; part of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Profile {
    /// The bytes of Pillow 13's `open(f).convert("RGB")`, and its resize.
    Exact,
}

impl Profile {
    /// Moves when any pixel of this profile may move.
    pub const fn version(self) -> u32 {
        match self {
            Profile::Exact => 1,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Profile::Exact => "exact",
        }
    }
}

/// The size before the crop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Resize {
    /// As stored.
    Keep,
    /// Short side to this, long side to `int(S * long / short)` (torchvision `Resize(S)`).
    Short(u32),
    /// To exactly this width and height.
    Size(u32, u32),
}

/// Why a spec is refused. Correct the spec; no picture was looked at (but see [`SpecError::Crop`]).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// The text is not of the form `image?name=value&…`.
    #[error("decode spec {0:?} is not of the form image?name=value&…")]
    Form(String),
    /// A parameter that no version of this profile has.
    #[error("decode spec has no parameter {0:?}")]
    Unknown(String),
    /// A parameter or value that is defined, but not by this version.
    #[error("decode spec asks for {0}, which this version does not support")]
    Unsupported(String),
    /// A parameter was given twice, or two that exclude each other.
    #[error("decode spec says {0} twice")]
    Twice(String),
    /// A value that is out of its bounds.
    #[error("decode spec has {name}={value:?}: want {want}")]
    Value {
        /// The parameter.
        name: &'static str,
        /// What was given.
        value: String,
        /// What would be right.
        want: &'static str,
    },
    /// The crop is larger than the picture before it.
    #[error("crop of {crop} does not fit the picture of {width}x{height}")]
    Crop {
        /// Side of the crop.
        crop: u32,
        /// Width before the crop.
        width: u32,
        /// Height before the crop.
        height: u32,
    },
}

/// What a spec means for one picture: the resized size, and the part of it that is kept. In pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Width and height after the resize.
    pub resized: (u32, u32),
    /// The part of the resized picture that is kept.
    pub window: Window,
}

impl Geometry {
    /// Width and height of what comes out.
    pub fn output(&self) -> (u32, u32) {
        (self.window.width as u32, self.window.height as u32)
    }
}

impl Default for ImageSpec {
    fn default() -> Self {
        Self { profile: Profile::Exact, resize: Resize::Keep, crop: None, filter: Filter::Bilinear }
    }
}

impl ImageSpec {
    /// The size of the output where it does not depend on the picture: `(width, height)`.
    pub fn fixed_output(&self) -> Option<(u32, u32)> {
        match (self.crop, self.resize) {
            (Some(side), _) => Some((side, side)),
            (None, Resize::Size(width, height)) => Some((width, height)),
            _ => None,
        }
    }

    /// What this spec makes of a picture of `width` x `height` (both at least 1).
    ///
    /// Sources: torchvision `Resize` (`_compute_resized_output_size`: long side truncated) and `CenterCrop` (offset rounded half
    /// to even, as Python's `round`). Where torchvision pads a picture that is smaller than the crop, this refuses.
    pub fn geometry(&self, width: u32, height: u32) -> Result<Geometry, SpecError> {
        let (width, height) = match self.resize {
            Resize::Keep => (width, height),
            Resize::Size(width, height) => (width, height),
            Resize::Short(short) if width <= height => (short, scaled(short, height, width)),
            Resize::Short(short) => (scaled(short, width, height), short),
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
        Ok(Geometry { resized: (width, height), window })
    }
}

/// `int(short_to * long / short)`, at least 1 and saturating.
fn scaled(short_to: u32, long: u32, short: u32) -> u32 {
    let side = u64::from(short_to) * u64::from(long) / u64::from(short.max(1));
    u32::try_from(side).unwrap_or(u32::MAX).max(1)
}

/// `round(gap / 2)` with ties to even.
fn half_even(gap: u32) -> u32 {
    let half = gap / 2;
    if gap % 2 == 1 && half % 2 == 1 { half + 1 } else { half }
}

impl DecodeSpec {
    /// The hash that enters a decoded entry's key: canonical text and profile version (xxh3-128, seed 0).
    pub fn hash(&self) -> u128 {
        xxh3_128(self.keyed_text().as_bytes())
    }

    /// Canonical text with the profile's version, as it is bound into an entry's header.
    pub fn keyed_text(&self) -> String {
        let DecodeSpec::Image(image) = self;
        format!("{image}#{}-{}", image.profile.name(), image.profile.version())
    }
}

impl From<ImageSpec> for DecodeSpec {
    fn from(spec: ImageSpec) -> Self {
        DecodeSpec::Image(spec)
    }
}

impl fmt::Display for DecodeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DecodeSpec::Image(image) = self;
        image.fmt(f)
    }
}

impl FromStr for DecodeSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        if text.split('?').next() == Some("video") {
            return Err(SpecError::Unsupported("video".into()));
        }
        text.parse().map(DecodeSpec::Image)
    }
}

impl fmt::Display for ImageSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut mark = '?';
        let mut put = |f: &mut fmt::Formatter<'_>, text: fmt::Arguments<'_>| {
            let done = write!(f, "{mark}{text}");
            mark = '&';
            done
        };
        f.write_str("image")?;
        match self.resize {
            Resize::Keep => {}
            Resize::Short(side) => put(f, format_args!("short={side}"))?,
            Resize::Size(width, height) => put(f, format_args!("size={width}x{height}"))?,
        }
        if let Some(side) = self.crop {
            put(f, format_args!("crop={side}"))?;
        }
        // Without a resize the filter touches no pixel: two spellings would be two entries for the same bytes.
        if self.filter != Filter::Bilinear && self.resize != Resize::Keep {
            put(f, format_args!("filter={}", filter_name(self.filter)))?;
        }
        Ok(())
    }
}

impl FromStr for ImageSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let form = || SpecError::Form(text.chars().take(100).collect());
        if text.len() > SPEC_BYTES_MAX {
            return Err(form());
        }
        let (kind, parameters) = text.split_once('?').unwrap_or((text, ""));
        if kind != "image" {
            return Err(form());
        }
        let mut given = Given::default();
        for parameter in parameters.split('&').filter(|p| !p.is_empty()) {
            let (name, value) = parameter.split_once('=').ok_or_else(form)?;
            given.take(name, value)?;
        }
        given.spec()
    }
}

/// Parameters as they were met, each at most once.
#[derive(Default)]
struct Given {
    resize: Option<Resize>,
    crop: Option<u32>,
    filter: Option<Filter>,
    profile: Option<Profile>,
}

impl Given {
    fn take(&mut self, name: &str, value: &str) -> Result<(), SpecError> {
        match name {
            "short" => once(&mut self.resize, "a size", Resize::Short(side("short", value)?)),
            "size" => once(&mut self.resize, "a size", size(value)?),
            "crop" => once(&mut self.crop, "crop", side("crop", value)?),
            "filter" => once(&mut self.filter, "filter", filter(value)?),
            "profile" => once(&mut self.profile, "profile", profile(value)?),
            "max" | "max_pixels" | "multiple" | "box" | "flip" | "tiles" | "orientation" | "alpha" | "depth" | "mode"
            | "layout" | "dtype" | "truncated" => Err(SpecError::Unsupported(format!("{name}={value}"))),
            _ => Err(SpecError::Unknown(name.chars().take(40).collect())),
        }
    }

    fn spec(self) -> Result<ImageSpec, SpecError> {
        let plain = ImageSpec::default();
        let spec = ImageSpec {
            profile: self.profile.unwrap_or(plain.profile),
            resize: self.resize.unwrap_or(plain.resize),
            crop: self.crop,
            filter: self.filter.unwrap_or(plain.filter),
        };
        match (spec.resize, spec.crop) {
            (Resize::Short(short), Some(crop)) if crop > short => Err(SpecError::Crop { crop, width: short, height: short }),
            (Resize::Size(width, height), Some(crop)) if crop > width.min(height) => Err(SpecError::Crop { crop, width, height }),
            _ => Ok(spec),
        }
    }
}

fn once<T>(slot: &mut Option<T>, what: &str, value: T) -> Result<(), SpecError> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(SpecError::Twice(what.into())),
    }
}

fn side(name: &'static str, value: &str) -> Result<u32, SpecError> {
    let side = value.parse().ok().filter(|side| (1..=SIDE_MAX).contains(side));
    side.ok_or_else(|| SpecError::Value { name, value: clip(value), want: "a whole number of pixels, 1 to 65535" })
}

fn size(value: &str) -> Result<Resize, SpecError> {
    let wrong = || SpecError::Value { name: "size", value: clip(value), want: "WIDTHxHEIGHT in pixels, each 1 to 65535" };
    let (width, height) = value.split_once('x').ok_or_else(wrong)?;
    Ok(Resize::Size(side("size", width).map_err(|_| wrong())?, side("size", height).map_err(|_| wrong())?))
}

fn filter(value: &str) -> Result<Filter, SpecError> {
    match value {
        "bilinear" => Ok(Filter::Bilinear),
        "bicubic" => Ok(Filter::Bicubic),
        "nearest" | "box" | "hamming" | "lanczos" => Err(SpecError::Unsupported(format!("filter={value}"))),
        _ => Err(SpecError::Value { name: "filter", value: clip(value), want: "bilinear or bicubic" }),
    }
}

fn filter_name(filter: Filter) -> &'static str {
    match filter {
        Filter::Nearest => "nearest",
        Filter::Box => "box",
        Filter::Bilinear => "bilinear",
        Filter::Hamming => "hamming",
        Filter::Bicubic => "bicubic",
        Filter::Lanczos => "lanczos",
    }
}

fn profile(value: &str) -> Result<Profile, SpecError> {
    match value {
        "exact" => Ok(Profile::Exact),
        "fast" => Err(SpecError::Unsupported("profile=fast".into())),
        _ => Err(SpecError::Value { name: "profile", value: clip(value), want: "exact" }),
    }
}

fn clip(value: &str) -> String {
    value.chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(text: &str) -> ImageSpec {
        text.parse().expect("spec")
    }

    /// Promise: one meaning has one canonical text, so one key.
    #[test]
    fn canonical_text_is_one() {
        for (text, canonical) in [
            ("image", "image"),
            ("image?", "image"),
            ("image?filter=bilinear&short=256", "image?short=256"),
            ("image?crop=224&filter=bicubic&short=256&profile=exact", "image?short=256&crop=224&filter=bicubic"),
            ("image?filter=bicubic&crop=10", "image?crop=10"),
            ("image?size=640x480", "image?size=640x480"),
        ] {
            assert_eq!(image(text).to_string(), canonical);
            assert_eq!(image(canonical).to_string(), canonical);
        }
        let keyed = DecodeSpec::from(image("image?short=256")).keyed_text();
        assert_eq!(keyed, "image?short=256#exact-1");
    }

    /// Promise: a wrong spec is refused by name, before any work.
    #[test]
    fn wrong_specs_are_refused() {
        for text in [
            "",
            "img",
            "image?short",
            "image?short=0",
            "image?short=70000",
            "image?size=3",
            "image?short=1&short=2",
            "image?short=5&size=1x1",
            "image?short=200&crop=224",
            "image?nope=1",
            "image?filter=cubic",
        ] {
            assert!(text.parse::<ImageSpec>().is_err(), "{text}");
        }
        for text in ["video?frames=0", "image?max=9", "image?filter=lanczos", "image?profile=fast"] {
            assert!(matches!(text.parse::<DecodeSpec>(), Err(SpecError::Unsupported(_))), "{text}");
        }
        assert!("image?".to_owned().add_long().parse::<ImageSpec>().is_err());
    }

    trait AddLong {
        fn add_long(self) -> String;
    }
    impl AddLong for String {
        fn add_long(self) -> String {
            self + &"&short=1".repeat(1000)
        }
    }

    /// Promise: sizes and offsets are torchvision's.
    #[test]
    fn geometry_is_torchvisions() {
        let g = image("image?short=256&crop=224").geometry(500, 375).expect("geometry");
        assert_eq!(g.resized, (341, 256));
        assert_eq!((g.window.x, g.window.y), (58, 16)); // round(58.5) = 58
        let g = image("image?short=256").geometry(375, 500).expect("geometry");
        assert_eq!(g.resized, (256, 341));
        let g = image("image?crop=3").geometry(6, 4).expect("geometry");
        assert_eq!((g.window.x, g.window.y), (2, 0)); // round(1.5) = 2, round(0.5) = 0
        assert!(image("image?crop=300").geometry(299, 400).is_err());
        assert_eq!(image("image?short=1").geometry(1, 65_535).expect("geometry").resized, (1, 65_535));
    }
}
