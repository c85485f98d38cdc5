//! The text form: parsed once at the edge, written in one way.

use std::fmt;
use std::str::FromStr;

use super::{
    Alpha, Depth, ImageSpec, Mode, Orientation, Profile, Resize, SIDE_MAX, SPEC_BYTES_MAX, SpecError, TILES_MAX, Truncated,
    VideoSpec,
};
use crate::frame::Layout;
use crate::pixels::{Filter, Window};

impl fmt::Display for ImageSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("image")?;
        self.parameters(f, '?')
    }
}

impl fmt::Display for VideoSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("video?frames=")?;
        for (place, frame) in self.frames.iter().enumerate() {
            write!(f, "{}{frame}", if place == 0 { "" } else { "," })?;
        }
        self.image.parameters(f, '&')
    }
}

impl VideoSpec {
    /// The text without its frames.
    pub(super) fn of_any_frame(&self) -> impl fmt::Display {
        fmt::from_fn(|f| {
            f.write_str("video")?;
            self.image.parameters(f, '?')
        })
    }
}

impl ImageSpec {
    /// What is not as by default, the first behind `mark`.
    fn parameters(&self, f: &mut fmt::Formatter<'_>, mut mark: char) -> fmt::Result {
        let mut put = |f: &mut fmt::Formatter<'_>, text: fmt::Arguments<'_>| {
            let done = write!(f, "{mark}{text}");
            mark = '&';
            done
        };
        if let Some(Window { x, y, width, height }) = self.region {
            put(f, format_args!("box={x},{y},{width},{height}"))?;
        }
        match self.resize {
            Resize::Keep => {}
            Resize::Short { side, max: None } => put(f, format_args!("short={side}"))?,
            Resize::Short { side, max: Some(max) } => put(f, format_args!("short={side}&max={max}"))?,
            Resize::Size(width, height) => put(f, format_args!("size={width}x{height}"))?,
            Resize::Max(side) => put(f, format_args!("max={side}"))?,
            Resize::MaxPixels { pixels, multiple: 1 } => put(f, format_args!("max_pixels={pixels}"))?,
            Resize::MaxPixels { pixels, multiple } => put(f, format_args!("max_pixels={pixels}&multiple={multiple}"))?,
            Resize::Tiles { side, max } => put(f, format_args!("tiles={side}&max={max}"))?,
        }
        if let Some(side) = self.crop {
            put(f, format_args!("crop={side}"))?;
        }
        if self.flip {
            put(f, format_args!("flip=h"))?;
        }
        // Without a resize the filter touches no pixel: two spellings would be two entries for the same bytes.
        if self.filter != Filter::default() && self.resize != Resize::Keep {
            put(f, format_args!("filter={}", name(FILTERS, self.filter)))?;
        }
        if self.mode != Mode::default() {
            put(f, format_args!("mode={}", name(MODES, self.mode)))?;
        }
        match self.alpha {
            Alpha::Drop => {}
            Alpha::Keep => put(f, format_args!("alpha=keep"))?,
            Alpha::Over([r, g, b]) => put(f, format_args!("alpha=over:{r:02x}{g:02x}{b:02x}"))?,
        }
        if self.depth != Depth::default() {
            put(f, format_args!("depth={}", name(DEPTHS, self.depth)))?;
        }
        if self.layout != Layout::default() {
            put(f, format_args!("layout={}", name(LAYOUTS, self.layout)))?;
        }
        if self.orientation != Orientation::default() {
            put(f, format_args!("orientation={}", name(ORIENTATIONS, self.orientation)))?;
        }
        if self.truncated != Truncated::default() {
            put(f, format_args!("truncated={}", name(TRUNCATED, self.truncated)))?;
        }
        if self.profile != Profile::default() {
            put(f, format_args!("profile={}", self.profile.name()))?;
        }
        Ok(())
    }
}

impl FromStr for ImageSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let given = Given::read(text, "image")?;
        match given.frames {
            Some(_) => Err(SpecError::Unknown("frames".into())),
            None => given.spec(),
        }
    }
}

impl FromStr for VideoSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let mut given = Given::read(text, "video")?;
        let frames = given.frames.take().ok_or_else(|| wrong("frames", "", "which frames, as in frames=0,8"))?;
        Ok(Self { frames, image: given.spec()? })
    }
}

/// Parameters as they were met, each at most once.
#[derive(Default)]
struct Given {
    frames: Option<Vec<u64>>,
    region: Option<Window>,
    short: Option<u32>,
    size: Option<(u32, u32)>,
    max: Option<u32>,
    max_pixels: Option<u32>,
    multiple: Option<u32>,
    tiles: Option<u32>,
    crop: Option<u32>,
    flip: Option<bool>,
    filter: Option<Filter>,
    mode: Option<Mode>,
    alpha: Option<Alpha>,
    depth: Option<Depth>,
    layout: Option<Layout>,
    orientation: Option<Orientation>,
    truncated: Option<Truncated>,
    profile: Option<Profile>,
}

impl Given {
    fn read(text: &str, wanted: &str) -> Result<Self, SpecError> {
        let form = || SpecError::Form(text.chars().take(100).collect());
        let (kind, parameters) = text.split_once('?').unwrap_or((text, ""));
        if text.len() > SPEC_BYTES_MAX || kind != wanted {
            return Err(form());
        }
        let mut given = Self::default();
        for parameter in parameters.split('&').filter(|p| !p.is_empty()) {
            let (name, value) = parameter.split_once('=').ok_or_else(form)?;
            given.take(name, value)?;
        }
        Ok(given)
    }

    fn take(&mut self, name: &str, value: &str) -> Result<(), SpecError> {
        match name {
            "frames" => once(&mut self.frames, "frames", frames(value)?),
            "box" => once(&mut self.region, "box", region(value)?),
            "short" => once(&mut self.short, "short", side("short", value)?),
            "size" => once(&mut self.size, "size", size(value)?),
            "max" => once(&mut self.max, "max", side("max", value)?),
            "max_pixels" => once(&mut self.max_pixels, "max_pixels", pixels(value)?),
            "multiple" => once(&mut self.multiple, "multiple", side("multiple", value)?),
            "tiles" => once(&mut self.tiles, "tiles", side("tiles", value)?),
            "crop" => once(&mut self.crop, "crop", side("crop", value)?),
            "flip" => once(&mut self.flip, "flip", one_of("flip", &[("h", true)], "h", value)?),
            "filter" => once(&mut self.filter, "filter", one_of("filter", FILTERS, FILTER_NAMES, value)?),
            "mode" => once(&mut self.mode, "mode", one_of("mode", MODES, "rgb or gray", value)?),
            "alpha" => once(&mut self.alpha, "alpha", alpha(value)?),
            "depth" if value == "keep" => Err(SpecError::Unsupported("depth=keep".into())),
            "depth" => once(&mut self.depth, "depth", one_of("depth", DEPTHS, "pillow or scale", value)?),
            "layout" => once(&mut self.layout, "layout", one_of("layout", LAYOUTS, "hwc or chw", value)?),
            "orientation" => {
                once(&mut self.orientation, "orientation", one_of("orientation", ORIENTATIONS, "ignore or apply", value)?)
            }
            "truncated" => once(&mut self.truncated, "truncated", one_of("truncated", TRUNCATED, "error or pad", value)?),
            "profile" => once(&mut self.profile, "profile", one_of("profile", PROFILES, "exact or fast", value)?),
            "dtype" | "fps" | "from" | "to" | "count" | "stream" | "damaged" => {
                Err(SpecError::Unsupported(format!("{name}={}", clip(value))))
            }
            _ => Err(SpecError::Unknown(name.chars().take(40).collect())),
        }
    }

    fn spec(self) -> Result<ImageSpec, SpecError> {
        let spec = ImageSpec {
            profile: self.profile.unwrap_or_default(),
            region: self.region,
            resize: self.resize()?,
            crop: self.crop,
            flip: self.flip.unwrap_or_default(),
            filter: self.filter.unwrap_or_default(),
            mode: self.mode.unwrap_or_default(),
            alpha: self.alpha.unwrap_or_default(),
            depth: self.depth.unwrap_or_default(),
            layout: self.layout.unwrap_or_default(),
            orientation: self.orientation.unwrap_or_default(),
            truncated: self.truncated.unwrap_or_default(),
        };
        if spec.depth == Depth::Scale && spec.alpha != Alpha::Drop {
            return Err(SpecError::Unsupported("depth=scale beside alpha".into()));
        }
        if spec.mode == Mode::Gray && spec.alpha == Alpha::Keep {
            return Err(wrong("alpha", "keep", "drop or over:RRGGBB with mode=gray"));
        }
        // What no picture can give is refused without one.
        let (width, height) = match (spec.resize, spec.region) {
            (Resize::Tiles { .. }, _) if spec.crop.is_some() || spec.flip => {
                return Err(wrong("tiles", "…", "no crop and no flip beside it"));
            }
            (Resize::Short { side, max: None }, _) => (side, side),
            (Resize::Size(width, height), _) => (width, height),
            (Resize::Keep, Some(region)) => (region.width as u32, region.height as u32),
            _ => return Ok(spec),
        };
        match spec.crop {
            Some(crop) if crop > width.min(height) => Err(SpecError::Crop { crop, width, height }),
            _ => Ok(spec),
        }
    }

    fn resize(&self) -> Result<Resize, SpecError> {
        let sizes = [self.short.is_some(), self.size.is_some(), self.max_pixels.is_some(), self.tiles.is_some()];
        let beside = self.max.is_some() && (self.size.is_some() || self.max_pixels.is_some());
        if sizes.into_iter().filter(|given| *given).count() > 1 || beside {
            return Err(SpecError::Twice("a size".into()));
        }
        if self.multiple.is_some() && self.max_pixels.is_none() {
            return Err(wrong("multiple", "…", "max_pixels beside it"));
        }
        Ok(match (self.short, self.size, self.max_pixels, self.tiles, self.max) {
            (Some(side), .., max) => Resize::Short { side, max },
            (_, Some((width, height)), ..) => Resize::Size(width, height),
            (_, _, Some(pixels), ..) => Resize::MaxPixels { pixels, multiple: self.multiple.unwrap_or(1) },
            (.., Some(side), Some(max)) if max <= TILES_MAX => Resize::Tiles { side, max },
            (.., Some(_), _) => return Err(wrong("tiles", "…", "max=N beside it, with 1 to 64 tiles")),
            (.., Some(side)) => Resize::Max(side),
            _ => Resize::Keep,
        })
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
    side.ok_or_else(|| wrong(name, value, "a whole number of pixels, 1 to 65535"))
}

fn frames(value: &str) -> Result<Vec<u64>, SpecError> {
    let number = |frame: &str| frame.parse().map_err(|_| wrong("frames", value, "indices from 0, as in frames=0,8,16"));
    value.split(',').map(number).collect()
}

fn pixels(value: &str) -> Result<u32, SpecError> {
    let pixels = value.parse().ok().filter(|&pixels: &u32| pixels > 0);
    pixels.ok_or_else(|| wrong("max_pixels", value, "a whole number of pixels, 1 to 4294967295"))
}

fn size(value: &str) -> Result<(u32, u32), SpecError> {
    let refuse = || wrong("size", value, "WIDTHxHEIGHT in pixels, each 1 to 65535");
    let (width, height) = value.split_once('x').ok_or_else(refuse)?;
    Ok((side("size", width).map_err(|_| refuse())?, side("size", height).map_err(|_| refuse())?))
}

fn region(value: &str) -> Result<Window, SpecError> {
    let refuse = || wrong("box", value, "X,Y,WIDTH,HEIGHT in whole pixels, sides of 1 to 65535");
    let numbers: Vec<u32> = value.split(',').map(|number| number.parse().map_err(|_| refuse())).collect::<Result<_, _>>()?;
    match numbers[..] {
        [x, y, width, height] if numbers.iter().all(|&n| n <= SIDE_MAX) && width > 0 && height > 0 => {
            Ok(Window { x: x as usize, y: y as usize, width: width as usize, height: height as usize })
        }
        _ => Err(refuse()),
    }
}

fn alpha(value: &str) -> Result<Alpha, SpecError> {
    let refuse = || wrong("alpha", value, "drop, keep or over:RRGGBB");
    match value {
        "drop" => Ok(Alpha::Drop),
        "keep" => Ok(Alpha::Keep),
        _ => {
            let digits = value.strip_prefix("over:").filter(|d| d.len() == 6 && d.bytes().all(|b| b.is_ascii_hexdigit()));
            let colour = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok()).ok_or_else(refuse)?;
            let [_, r, g, b] = colour.to_be_bytes();
            Ok(Alpha::Over([r, g, b]))
        }
    }
}

/// The value of that name.
fn one_of<T: Copy>(name: &'static str, of: &[(&str, T)], want: &'static str, value: &str) -> Result<T, SpecError> {
    of.iter().find(|(text, _)| *text == value).map(|(_, found)| *found).ok_or_else(|| wrong(name, value, want))
}

/// The name of that value; every value is in its table.
fn name<T: PartialEq>(of: &'static [(&'static str, T)], value: T) -> &'static str {
    of.iter().find(|(_, known)| *known == value).map_or("", |(text, _)| text)
}

const FILTERS: &[(&str, Filter)] = &[
    ("nearest", Filter::Nearest),
    ("box", Filter::Box),
    ("bilinear", Filter::Bilinear),
    ("hamming", Filter::Hamming),
    ("bicubic", Filter::Bicubic),
    ("lanczos", Filter::Lanczos),
];
const FILTER_NAMES: &str = "nearest, box, bilinear, hamming, bicubic or lanczos";
const MODES: &[(&str, Mode)] = &[("rgb", Mode::Rgb), ("gray", Mode::Gray)];
const DEPTHS: &[(&str, Depth)] = &[("pillow", Depth::Pillow), ("scale", Depth::Scale)];
const LAYOUTS: &[(&str, Layout)] = &[("hwc", Layout::Hwc), ("chw", Layout::Chw)];
const ORIENTATIONS: &[(&str, Orientation)] = &[("ignore", Orientation::Ignore), ("apply", Orientation::Apply)];
const TRUNCATED: &[(&str, Truncated)] = &[("error", Truncated::Error), ("pad", Truncated::Pad)];
const PROFILES: &[(&str, Profile)] = &[("exact", Profile::Exact), ("fast", Profile::Fast)];

fn wrong(name: &'static str, value: &str, want: &'static str) -> SpecError {
    SpecError::Value { name, value: clip(value), want }
}

fn clip(value: &str) -> String {
    value.chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::super::DecodeSpec;
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
            ("image?flip=h&size=9x8&box=1,2,3,4", "image?box=1,2,3,4&size=9x8&flip=h"),
            ("image?max=9&short=5", "image?short=5&max=9"),
            ("image?multiple=1&max_pixels=10", "image?max_pixels=10"),
            ("image?multiple=28&max_pixels=10", "image?max_pixels=10&multiple=28"),
            ("image?max=12&tiles=448&filter=lanczos", "image?tiles=448&max=12&filter=lanczos"),
            ("image?mode=rgb&alpha=drop&depth=pillow&layout=hwc&orientation=ignore&truncated=error", "image"),
            (
                "image?profile=fast&truncated=pad&orientation=apply&layout=chw&depth=pillow&alpha=over:FF0080&mode=gray",
                "image?mode=gray&alpha=over:ff0080&layout=chw&orientation=apply&truncated=pad&profile=fast",
            ),
        ] {
            assert_eq!(image(text).to_string(), canonical);
            assert_eq!(image(canonical).to_string(), canonical);
        }
        for (text, canonical) in
            [("video?frames=8", "video?frames=8"), ("video?crop=9&frames=2,0&short=9", "video?frames=2,0&short=9&crop=9")]
        {
            assert_eq!(text.parse::<DecodeSpec>().expect("spec").to_string(), canonical);
            assert_eq!(canonical.parse::<DecodeSpec>().expect("spec").to_string(), canonical);
        }
        let keyed = |text: &str| text.parse::<DecodeSpec>().expect("spec").keyed_text();
        assert_eq!(keyed("image?short=256"), "image?short=256#exact-1");
        assert_eq!(keyed("video?frames=8&short=256"), "video?short=256#exact-1");
        assert_eq!(keyed("video?frames=9"), "video#exact-1");
        assert_eq!(keyed("image?profile=fast"), "image?profile=fast#fast-1");
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
            "image?box=1,2,3",
            "image?box=0,0,0,5",
            "image?box=-1,0,5,5",
            "image?box=0,0,5,5&crop=6",
            "image?multiple=28",
            "image?max_pixels=0",
            "image?max_pixels=5&max=3",
            "image?tiles=448",
            "image?tiles=448&max=65",
            "image?tiles=448&max=4&crop=2",
            "image?alpha=over:12345",
            "image?alpha=over:+12345",
            "image?alpha=keep&mode=gray",
            "image?flip=v",
        ] {
            assert!(text.parse::<ImageSpec>().is_err(), "{text}");
        }
        for text in ["video", "video?frames=", "video?frames=1,", "video?frames=-1", "video?frames=0&frames=1", "image?frames=0"]
        {
            assert!(text.parse::<DecodeSpec>().is_err(), "{text}");
        }
        for text in ["video?fps=2&from=0&to=1", "image?depth=keep", "image?depth=scale&alpha=keep", "image?dtype=f16"] {
            assert!(matches!(text.parse::<DecodeSpec>(), Err(SpecError::Unsupported(_))), "{text}");
        }
        let long = "image?".to_owned() + &"&short=1".repeat(1000);
        assert!(long.parse::<ImageSpec>().is_err());
    }
}
