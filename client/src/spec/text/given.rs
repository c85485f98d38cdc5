//! The parameters of a text, in whatever order they stand, and the spec that they come to.

use std::str::FromStr;

use super::{DAMAGED, DEPTHS, DTYPES, FILTER_NAMES, FILTERS, LAYOUTS, MODES, ORIENTATIONS, PROFILES, TRUNCATED, clip, wrong};
use crate::frame::{Dtype, Layout};
use crate::pixels::{Filter, Window};
use crate::spec::{
    Alpha, Damaged, Depth, ImageSpec, Mode, Orientation, Profile, Rate, Resize, SELECTED_MAX, SIDE_MAX, STREAMS_MAX, Seconds,
    SpecError, TILES_MAX, Truncated,
};

/// Parameters as they were met, each at most once.
#[derive(Default)]
pub(super) struct Given {
    pub(super) frames: Option<Vec<i64>>,
    pub(super) at: Option<Vec<Seconds>>,
    pub(super) from: Option<Seconds>,
    pub(super) to: Option<Seconds>,
    pub(super) fps: Option<Rate>,
    pub(super) uniform: Option<u32>,
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
    dtype: Option<Dtype>,
    orientation: Option<Orientation>,
    truncated: Option<Truncated>,
    damaged: Option<Damaged>,
    stream: Option<u32>,
    profile: Option<Profile>,
}

impl Given {
    pub(super) fn read(text: &str, wanted: &str, bytes_max: usize) -> Result<Self, SpecError> {
        let form = || SpecError::Form(text.chars().take(100).collect());
        let (kind, parameters) = text.split_once('?').unwrap_or((text, ""));
        if text.len() > bytes_max || kind != wanted {
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
            "frames" => once(&mut self.frames, "frames", list("frames", value, "indices, as in frames=0,8,-1")?),
            "at" => once(&mut self.at, "at", list("at", value, "seconds, as in at=0.5,1.25")?),
            "from" => once(&mut self.from, "from", value.parse()?),
            "to" => once(&mut self.to, "to", value.parse()?),
            "fps" => once(&mut self.fps, "fps", value.parse()?),
            "uniform" => once(&mut self.uniform, "uniform", count(value)?),
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
            "layout" => once(&mut self.layout, "layout", one_of("layout", LAYOUTS, "hwc, chw or planes", value)?),
            "orientation" => {
                once(&mut self.orientation, "orientation", one_of("orientation", ORIENTATIONS, "ignore or apply", value)?)
            }
            "truncated" => once(&mut self.truncated, "truncated", one_of("truncated", TRUNCATED, "error or pad", value)?),
            "profile" => once(&mut self.profile, "profile", one_of("profile", PROFILES, "exact, fast or swscale", value)?),
            "damaged" => once(&mut self.damaged, "damaged", one_of("damaged", DAMAGED, "error or keep", value)?),
            "dtype" if DTYPES.iter().any(|(name, _)| *name == value) => {
                once(&mut self.dtype, "dtype", one_of("dtype", DTYPES, "u8 or u16", value)?)
            }
            "stream" => once(&mut self.stream, "stream", stream(value)?),
            "dtype" | "count" => Err(SpecError::Unsupported(format!("{name}={}", clip(value)))),
            _ => Err(SpecError::Unknown(name.chars().take(40).collect())),
        }
    }

    /// What of it would have to be looked up in a video.
    pub(super) fn selects(&self) -> Option<String> {
        let times = [("from", self.from.map(|from| from.to_string())), ("to", self.to.map(|to| to.to_string()))];
        let others = [("fps", self.fps.map(|fps| fps.to_string())), ("uniform", self.uniform.map(|count| count.to_string()))];
        let at = ("at", self.at.as_ref().map(|_| "…".to_owned()));
        let given = [at].into_iter().chain(times).chain(others).find_map(|(name, value)| Some((name, value?)));
        given.map(|(name, value)| format!("{name}={value}"))
    }

    pub(super) fn spec(self) -> Result<ImageSpec, SpecError> {
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
            dtype: self.dtype.unwrap_or_default(),
            orientation: self.orientation.unwrap_or_default(),
            truncated: self.truncated.unwrap_or_default(),
            damaged: self.damaged.unwrap_or_default(),
            stream: self.stream,
        };
        let planes = ImageSpec { layout: Layout::Hwc, ..spec.clone() };
        if spec.layout == Layout::Planes && !planes.is_rgb_as_stored() {
            return Err(wrong("layout", "planes", "nothing beside it that would change samples"));
        }
        if spec.dtype == Dtype::U16 && !spec.keeps_samples() {
            return Err(SpecError::Unsupported("dtype=u16 beside a resize, mode, alpha, depth or another profile".into()));
        }
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

/// One to [`SELECTED_MAX`] values.
fn list<T: FromStr>(name: &'static str, value: &str, want: &'static str) -> Result<Vec<T>, SpecError> {
    let refuse = || wrong(name, value, want);
    if value.bytes().filter(|&byte| byte == b',').count() >= SELECTED_MAX {
        return Err(wrong(name, "…", "4096 at most"));
    }
    value.split(',').map(|item| item.parse().map_err(|_| refuse())).collect()
}

fn count(value: &str) -> Result<u32, SpecError> {
    let count = value.parse().ok().filter(|count| (1..=SELECTED_MAX as u32).contains(count));
    count.ok_or_else(|| wrong("uniform", value, "a number of frames, 1 to 4096"))
}

fn stream(value: &str) -> Result<u32, SpecError> {
    let stream = value.parse().ok().filter(|&stream| stream < STREAMS_MAX && value.bytes().all(|byte| byte.is_ascii_digit()));
    stream.ok_or_else(|| wrong("stream", value, "the index of a stream in its container, 0 to 63"))
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
