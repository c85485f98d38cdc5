//! The text form: parsed once at the edge (`given`), written in one way.

mod given;

use std::fmt;
use std::str::FromStr;

use super::{
    Alpha, Damaged, Depth, ImageSpec, Mode, Orientation, Profile, Resize, SELECTION_BYTES_MAX, SPEC_BYTES_MAX, Selection,
    Selector, SpecError, Truncated, VideoSpec,
};
use crate::frame::{Dtype, Layout};
use crate::pixels::{Filter, Window};
use given::Given;

impl fmt::Display for ImageSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("image")?;
        self.parameters(f, '?')
    }
}

impl fmt::Display for VideoSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "video?frames={}", listed(&self.frames))?;
        self.image.parameters(f, '&')
    }
}

impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.frames.fmt(f)?;
        self.image.parameters(f, if self.frames == Selector::ALL { '?' } else { '&' })
    }
}

/// As a selection of frames as they are.
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("video")?;
        match self {
            Selector::Frames(frames) => write!(f, "?frames={}", listed(frames)),
            Selector::At(times) => write!(f, "?at={}", listed(times)),
            Selector::Uniform(count) => write!(f, "?uniform={count}"),
            Selector::Range { from, to, fps } => {
                let from = from.map(|from| format!("from={from}"));
                let given = [from, to.map(|to| format!("to={to}")), fps.map(|fps| format!("fps={fps}"))];
                let mark = |place| if place == 0 { '?' } else { '&' };
                given.iter().flatten().enumerate().try_for_each(|(place, given)| write!(f, "{}{given}", mark(place)))
            }
        }
    }
}

/// With commas between.
fn listed<T: fmt::Display>(items: &[T]) -> impl fmt::Display {
    fmt::from_fn(|f| {
        items.iter().enumerate().try_for_each(|(place, item)| write!(f, "{}{item}", if place == 0 { "" } else { "," }))
    })
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
        if self.dtype != Dtype::default() {
            put(f, format_args!("dtype={}", name(DTYPES, self.dtype)))?;
        }
        if self.orientation != Orientation::default() {
            put(f, format_args!("orientation={}", name(ORIENTATIONS, self.orientation)))?;
        }
        if self.truncated != Truncated::default() {
            put(f, format_args!("truncated={}", name(TRUNCATED, self.truncated)))?;
        }
        if self.damaged != Damaged::default() {
            put(f, format_args!("damaged={}", name(DAMAGED, self.damaged)))?;
        }
        if let Some(stream) = self.stream {
            put(f, format_args!("stream={stream}"))?;
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
        let given = Given::read(text, "image", SPEC_BYTES_MAX)?;
        match (&given.frames, given.selects()) {
            (Some(_), _) => Err(SpecError::Unknown("frames".into())),
            (None, Some(other)) => Err(SpecError::Unsupported(other)),
            (None, None) => given.spec(),
        }
    }
}

impl FromStr for VideoSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let mut given = Given::read(text, "video", SPEC_BYTES_MAX)?;
        if let Some(other) = given.selects() {
            return Err(SpecError::Unsupported(other));
        }
        let frames = given.frames.take().ok_or_else(|| wrong("frames", "", "which frames, as in frames=0,8"))?;
        let found = frames.into_iter().map(|frame| u64::try_from(frame).map_err(|_| wrong("frames", "-…", "indices from 0")));
        Ok(Self { frames: found.collect::<Result<_, _>>()?, image: given.spec()? })
    }
}

impl FromStr for Selection {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let mut given = Given::read(text, "video", SELECTION_BYTES_MAX)?;
        let range = (given.from.take(), given.to.take(), given.fps.take());
        let frames = match (given.frames.take(), given.at.take(), given.uniform.take(), range) {
            (Some(frames), None, None, (None, None, None)) => Selector::Frames(frames),
            (None, Some(times), None, (None, None, None)) => Selector::At(times),
            (None, None, Some(count), (None, None, None)) => Selector::Uniform(count),
            (None, None, None, (from, to, fps)) => Selector::Range { from, to, fps },
            _ => return Err(SpecError::Twice("which frames".into())),
        };
        Ok(Self { frames, image: given.spec()? })
    }
}

/// Of frames as they are.
impl FromStr for Selector {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let Selection { frames, image } = text.parse()?;
        match image == ImageSpec::default() {
            true => Ok(frames),
            false => Err(SpecError::Unsupported("how frames are made, where it is asked which".into())),
        }
    }
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
const LAYOUTS: &[(&str, Layout)] = &[("hwc", Layout::Hwc), ("chw", Layout::Chw), ("planes", Layout::Planes)];
const DTYPES: &[(&str, Dtype)] = &[("u8", Dtype::U8), ("u16", Dtype::U16)];
const ORIENTATIONS: &[(&str, Orientation)] = &[("ignore", Orientation::Ignore), ("apply", Orientation::Apply)];
const TRUNCATED: &[(&str, Truncated)] = &[("error", Truncated::Error), ("pad", Truncated::Pad)];
const DAMAGED: &[(&str, Damaged)] = &[("error", Damaged::Error), ("keep", Damaged::Keep)];
const PROFILES: &[(&str, Profile)] = &[("exact", Profile::Exact), ("fast", Profile::Fast), ("swscale", Profile::Swscale)];

pub(super) fn wrong(name: &'static str, value: &str, want: &'static str) -> SpecError {
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
        for (text, canonical) in [
            ("video?frames=8", "video?frames=8"),
            ("video?crop=9&frames=2,0&short=9", "video?frames=2,0&short=9&crop=9"),
            ("video?damaged=error&frames=1", "video?frames=1"),
            ("video?profile=fast&damaged=keep&frames=1&truncated=pad", "video?frames=1&truncated=pad&damaged=keep&profile=fast"),
            ("video?layout=planes&filter=box&frames=1&damaged=keep", "video?frames=1&layout=planes&damaged=keep"),
            ("video?dtype=u8&frames=1", "video?frames=1"),
            ("video?stream=01&frames=1&layout=planes", "video?frames=1&layout=planes&stream=1"),
            ("video?dtype=u16&frames=1&layout=chw&crop=8&flip=h", "video?frames=1&crop=8&flip=h&layout=chw&dtype=u16"),
        ] {
            assert_eq!(text.parse::<DecodeSpec>().expect("spec").to_string(), canonical);
            assert_eq!(canonical.parse::<DecodeSpec>().expect("spec").to_string(), canonical);
        }
        let keyed = |text: &str| text.parse::<DecodeSpec>().expect("spec").keyed_text();
        assert_eq!(keyed("image?short=256"), "image?short=256#exact-1");
        assert_eq!(keyed("video?frames=8&short=256"), "video?short=256#exact-1");
        assert_eq!(keyed("video?frames=9"), "video#exact-1");
        assert_eq!(keyed("image?profile=fast"), "image?profile=fast#fast-1");
    }

    /// Promise: what was cached by an earlier release is found by a later one.
    #[test]
    fn keys_are_frozen() {
        for (text, keyed, hash) in [
            ("image", "image#exact-1", 0x3ee57d95d9c0c6bdbd752294710e3d07),
            ("image?short=256&crop=224", "image?short=256&crop=224#exact-1", 0x1b35975eb8fa299b2810b14f652f05a5),
            ("video?frames=8&short=256", "video?short=256#exact-1", 0xf026f53db1dac08c0b0be885f9ad3112),
            ("video?frames=0&layout=planes", "video?layout=planes#exact-1", 0xe2023959298c8db6218dcc8038233dc7),
            ("video?frames=0&damaged=keep", "video?damaged=keep#exact-1", 0x8ed71d615f3fd449933e36a8ce694f66),
            ("video?frames=0&dtype=u16", "video?dtype=u16#exact-1", 0xaf64c64cb5e6577702032cacfd986e70),
            ("video?frames=0&stream=0", "video?stream=0#exact-1", 0x1b5c058dec537bb7b652173bcb883738),
            ("video?frames=0&profile=fast", "video?profile=fast#fast-2", 0xe1f779f06286faa888a2b2baad0d22ca),
            ("video?frames=0&profile=swscale", "video?profile=swscale#swscale-1.6", 0xe11418779a8203924207ea09c01f6598),
        ] {
            let spec: DecodeSpec = text.parse().expect("spec");
            assert_eq!((&*spec.keyed_text(), spec.hash()), (keyed, hash));
        }
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
        for text in [
            "video",
            "video?frames=",
            "video?frames=1,",
            "video?frames=-1",
            "video?frames=0&frames=1",
            "image?frames=0",
            "video?frames=0&damaged=drop",
            "video?frames=0&layout=planes&short=9",
            "video?frames=0&layout=planes&orientation=apply",
            "video?frames=0&layout=planes&mode=gray",
            "video?frames=0&layout=planes&dtype=u16",
            "image?dtype=u16",
            "image?stream=0",
            "image?profile=swscale",
            "video?frames=0&stream=64",
            "video?frames=0&stream=-1",
            "video?frames=0&stream=best",
            "image?layout=planes",
            "image?damaged=keep",
        ] {
            assert!(text.parse::<DecodeSpec>().is_err(), "{text}");
        }
        for text in [
            "video?fps=2&from=0&to=1",
            "image?depth=keep",
            "image?depth=scale&alpha=keep",
            "image?dtype=f16",
            "video?frames=0&dtype=u16&short=9",
            "video?frames=0&dtype=u16&mode=gray",
        ] {
            assert!(matches!(text.parse::<DecodeSpec>(), Err(SpecError::Unsupported(_))), "{text}");
        }
        let long = "image?".to_owned() + &"&short=1".repeat(1000);
        assert!(long.parse::<ImageSpec>().is_err());
    }
}
