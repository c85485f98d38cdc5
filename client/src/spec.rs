//! Decode specs: which pixels are wanted, as text and as value.
//!
//! `image?short=256&crop=224&filter=bicubic` is the text form. There is one canonical text per meaning (fixed order, defaults
//! left out), and its hash is part of a decoded entry's key, together with the profile's version: a change that moves pixels
//! moves that version.
//!
//! What happens to a picture, in this order: decode, orientation, box, resize, crop, flip or tiles, layout. `text` is the text form,
//! `geometry` the arithmetic of sizes, `draw` that of random crops, whose rules are other people's and cited where they stand. Which frames
//! of a video are meant, by index, time or number, is a [`Selection`]; `timeline` finds their indices in one video.

mod draw;
mod geometry;
mod selector;
mod text;
mod timeline;

use std::str::FromStr;

use xxhash_rust::xxh3::xxh3_128;

use crate::frame::{Dtype, Layout};
use crate::object::{ObjectId, RouteKey};
use crate::pixels::{Filter, Window};

pub use draw::RandomResizedCrop;
pub use geometry::Geometry;
pub use selector::{Rate, SELECTED_MAX, SELECTION_BYTES_MAX, Seconds, Selection, Selector};
pub use timeline::{SelectError, Timeline};

/// Longest spec text, in bytes. A canonical spec is under 200; the rest is room for several frames.
pub const SPEC_BYTES_MAX: usize = 2048;

/// Largest side that may be asked for, in pixels: JPEG's own limit.
pub const SIDE_MAX: u32 = 65_535;

/// More streams than this has no container that is read.
pub const STREAMS_MAX: u32 = 64;

/// Most tiles of one picture: 64 of 448 pixels are 38 MB.
pub const TILES_MAX: u32 = 64;

/// What a decode gives.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DecodeSpec {
    /// One still picture; of an animation the first.
    Image(ImageSpec),
    /// Frames of an animation.
    Video(VideoSpec),
}

/// Which frames, and how each is made: `video?frames=0,8&short=256`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VideoSpec {
    /// Indices by presentation order, from 0; at least one. On the wire and in keys one: a client asks for each frame by a spec of its
    /// own.
    pub frames: Vec<u64>,
    /// How each is made.
    pub image: ImageSpec,
}

/// How a picture is made. The default is the picture as stored, as RGB.
///
/// ```
/// use framecache::spec::ImageSpec;
/// let spec: ImageSpec = "image?crop=224&short=256".parse()?;
/// assert_eq!(spec.to_string(), "image?short=256&crop=224");
/// assert_eq!(spec.geometry(500, 375)?.output(), (224, 224));
/// # Ok::<(), framecache::spec::SpecError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ImageSpec {
    /// Which definition of the pixels.
    pub profile: Profile,
    /// The part that is resized, in pixels of the (turned) picture: Pillow's `resize(box=)`, whose filter also sees the pixels around.
    pub region: Option<Window>,
    /// To what size, before the crop.
    pub resize: Resize,
    /// Side of the centred square that is kept, in pixels.
    pub crop: Option<u32>,
    /// Whether the result is mirrored, left to right.
    pub flip: bool,
    /// The resize kernel.
    pub filter: Filter,
    /// Colour or gray.
    pub mode: Mode,
    /// What becomes of transparency.
    pub alpha: Alpha,
    /// How 16-bit gray becomes 8-bit.
    pub depth: Depth,
    /// The order of the tensor's dimensions.
    pub layout: Layout,
    /// What a number of it is. In 16 bits a frame of a video keeps its stream's depth: values are 0 to 2^depth - 1, as the planes' are.
    pub dtype: Dtype,
    /// Whether the stored orientation is applied.
    pub orientation: Orientation,
    /// What a picture is that ends early.
    pub truncated: Truncated,
    /// What a frame of a video is that was decoded from damaged data.
    pub damaged: Damaged,
    /// Which stream of a video's container, by its index there, below [`STREAMS_MAX`]; FFmpeg's best video stream, if not given.
    pub stream: Option<u32>,
}

/// The definition that pixels obey; part of the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Profile {
    /// The bytes of Pillow 13's `open(f).convert("RGB")`, and its resize.
    #[default]
    Exact,
    /// As close as is cheap. A JPEG may be decoded at a half, a quarter or an eighth, with libjpeg's quick transforms; a video's frame of
    /// 8 bits that is made smaller has its planes resized, each at its own resolution, and becomes RGB at the size that is wanted.
    /// Others are exact. The same bytes on every machine.
    Fast,
    /// A video's frame by FFmpeg's own default conversion, libswscale's, at its own size, and then our resize. What that gives depends
    /// on the library's version, which the key names ([`SWSCALE_MAJOR`]), and on the processor's instruction sets.
    Swscale,
}

/// The libswscale that profile `swscale` is of, that of FFmpeg 5. A node with another one refuses the profile.
pub const SWSCALE_MAJOR: u32 = 6;

impl Profile {
    /// Moves when any pixel of a picture by this profile may move.
    pub const fn version(self) -> u32 {
        match self {
            Profile::Exact | Profile::Fast | Profile::Swscale => 1,
        }
    }

    /// The same of a frame of a video.
    pub const fn frames_version(self) -> u32 {
        match self {
            Profile::Exact | Profile::Swscale => 1,
            Profile::Fast => 2,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Profile::Exact => "exact",
            Profile::Fast => "fast",
            Profile::Swscale => "swscale",
        }
    }
}

/// The size before the crop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Resize {
    /// As it is.
    #[default]
    Keep,
    /// Short side to this, long side to `int(S * long / short)` (torchvision `Resize(S)`); no side longer than `max`, if given
    /// (its `max_size`).
    Short {
        /// The short side.
        side: u32,
        /// Most that the long side may be.
        max: Option<u32>,
    },
    /// To exactly this width and height.
    Size(u32, u32),
    /// Long side to this, if it is longer; never larger.
    Max(u32),
    /// Both sides to a multiple, and no more pixels than that (Qwen2-VL `smart_resize`).
    MaxPixels {
        /// Most pixels of the result.
        pixels: u32,
        /// What both sides are a multiple of.
        multiple: u32,
    },
    /// To the grid of square tiles whose shape is nearest to the picture's (InternVL `dynamic_preprocess`); the tiles follow one
    /// another from the top, row by row of the grid.
    Tiles {
        /// Side of a tile.
        side: u32,
        /// Most tiles.
        max: u32,
    },
}

/// Colour or gray.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Three channels, or four with `alpha=keep`.
    #[default]
    Rgb,
    /// One: `(19595 R + 38470 G + 7471 B + 0x8000) >> 16`, as Pillow's `convert("L")` of RGB.
    Gray,
}

/// What becomes of transparency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Alpha {
    /// It is dropped; the colour under it stays, as in Pillow's `convert("RGB")`.
    #[default]
    Drop,
    /// A fourth channel, opaque where the picture has none: `convert("RGBA")`. Resized with premultiplied colour, as Pillow does.
    Keep,
    /// Laid over this colour: Pillow's `alpha_composite`.
    Over([u8; 3]),
}

/// How 16-bit gray becomes 8-bit. Colour of 16 bits keeps its high byte either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Depth {
    /// As Pillow converts: what passes 255 is 255.
    #[default]
    Pillow,
    /// The high byte.
    Scale,
}

/// Whether the stored orientation (EXIF, TIFF 6.0 tag 274) is applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Orientation {
    /// Pixels as stored; the orientation is reported.
    #[default]
    Ignore,
    /// Turned and mirrored as it says, before all else.
    Apply,
}

/// What a picture is that ends early.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Truncated {
    /// An error.
    #[default]
    Error,
    /// The rows that are there, and gray below. JPEG only.
    Pad,
}

/// What a frame of a video is that was decoded from damaged data. Of pictures [`Truncated`] speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Damaged {
    /// An error.
    #[default]
    Error,
    /// What the decoder made of it, by concealment.
    Keep,
}

/// Why a spec is refused. Correct the spec; no picture was looked at (but see [`SpecError::Crop`] and [`SpecError::Region`]).
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
    /// The box does not lie within the picture.
    #[error("box {},{},{},{} does not lie within the picture of {width}x{height}", region.x, region.y, region.width, region.height)]
    Region {
        /// The box.
        region: Window,
        /// Width of the picture.
        width: u32,
        /// Height of the picture.
        height: u32,
    },
}

impl ImageSpec {
    /// Channels of what comes out.
    pub fn channels(&self) -> u32 {
        match (self.mode, self.alpha) {
            _ if self.layout == Layout::Planes => 1,
            (Mode::Gray, _) => 1,
            (Mode::Rgb, Alpha::Keep) => 4,
            (Mode::Rgb, _) => 3,
        }
    }

    /// The tensor's shape for a result of `width` x `height`, in the order of its layout. Of [`Layout::Planes`] it says nothing: how many
    /// bytes those are is their format's.
    pub fn shape(&self, (width, height): (u32, u32)) -> [u32; 3] {
        match self.layout {
            Layout::Hwc => [height, width, self.channels()],
            Layout::Chw => [self.channels(), height, width],
            Layout::Planes => [1, 1, 0],
        }
    }

    /// Frames as they are, of that stream.
    pub fn of_stream(stream: Option<u32>) -> Self {
        Self { stream, ..Self::default() }
    }

    /// Whether samples are moved alone, and none is computed of others: our resize is of 8 bits, as all are that follow it.
    pub(crate) fn keeps_samples(&self) -> bool {
        let as_they_are = ImageSpec::default();
        self.resize == Resize::Keep
            && (self.mode, self.alpha, self.depth, self.profile)
                == (as_they_are.mode, as_they_are.alpha, as_they_are.depth, as_they_are.profile)
    }

    /// Whether it gives a frame's RGB at the frame's own size, unturned.
    pub fn is_rgb_as_stored(&self) -> bool {
        *self == ImageSpec { filter: self.filter, damaged: self.damaged, stream: self.stream, ..ImageSpec::default() }
    }

    /// Itself, if it asks for nothing that only frames of a video have.
    fn of_picture(self) -> Result<Self, SpecError> {
        match (self.layout, self.dtype, self.damaged) {
            (Layout::Planes, ..) => Err(SpecError::Unsupported("layout=planes of a picture".into())),
            (_, Dtype::U16, _) => Err(SpecError::Unsupported("dtype=u16 of a picture".into())),
            (.., Damaged::Keep) => Err(SpecError::Unsupported("damaged=keep of a picture".into())),
            _ if self.profile == Profile::Swscale => Err(SpecError::Unsupported("profile=swscale of a picture".into())),
            _ if self.stream.is_some() => Err(SpecError::Unsupported("a stream of a picture".into())),
            _ => Ok(self),
        }
    }

    /// The shape where it does not depend on the picture.
    pub fn fixed_shape(&self) -> Option<[u32; 3]> {
        self.fixed_output().map(|size| self.shape(size))
    }

    /// Bytes of the tensor where they do not depend on the picture.
    pub fn fixed_bytes(&self) -> Option<u64> {
        let bytes =
            |shape: [u32; 3]| shape.iter().fold(self.dtype.bytes() as u64, |bytes, &side| bytes.saturating_mul(side.into()));
        self.fixed_shape().map(bytes)
    }
}

impl DecodeSpec {
    /// The hash that enters a decoded entry's key: canonical text and profile version (xxh3-128, seed 0).
    pub fn hash(&self) -> u128 {
        xxh3_128(self.keyed_text().as_bytes())
    }

    /// Canonical text with the profile's version, as it is bound into an entry's header. Which frame is a field of the key of its own.
    pub fn keyed_text(&self) -> String {
        let profile = self.image().profile;
        match self {
            DecodeSpec::Image(image) => format!("{image}#{}-{}", profile.name(), profile.version()),
            DecodeSpec::Video(video) => {
                let library = if profile == Profile::Swscale { format!(".{SWSCALE_MAJOR}") } else { String::new() };
                format!("{}#{}-{}{library}", video.of_any_frame(), profile.name(), profile.frames_version())
            }
        }
    }

    /// How each picture is made.
    pub fn image(&self) -> &ImageSpec {
        match self {
            DecodeSpec::Image(image) => image,
            DecodeSpec::Video(video) => &video.image,
        }
    }

    /// Who owns what it makes of `id`.
    pub fn route(&self, id: &ObjectId) -> RouteKey {
        match self {
            DecodeSpec::Image(_) => RouteKey::picture(id),
            DecodeSpec::Video(video) => RouteKey::frame(id, video.frames.first().copied().unwrap_or(0)),
        }
    }

    /// The one frame that it asks for; `None` where it asks for several.
    pub fn frame(&self) -> Option<u64> {
        match self {
            DecodeSpec::Image(_) => Some(0),
            DecodeSpec::Video(video) => <[u64; 1]>::try_from(&video.frames[..]).ok().map(|[frame]| frame),
        }
    }
}

impl VideoSpec {
    /// One frame.
    pub fn at(frame: u64, image: ImageSpec) -> Self {
        Self { frames: vec![frame], image }
    }
}

impl From<VideoSpec> for DecodeSpec {
    fn from(spec: VideoSpec) -> Self {
        DecodeSpec::Video(spec)
    }
}

impl From<ImageSpec> for DecodeSpec {
    fn from(spec: ImageSpec) -> Self {
        DecodeSpec::Image(spec)
    }
}

impl std::fmt::Display for DecodeSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DecodeSpec::Image(image) => image.fmt(f),
            DecodeSpec::Video(video) => video.fmt(f),
        }
    }
}

impl FromStr for DecodeSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        match text.split('?').next() {
            Some("video") => text.parse().map(DecodeSpec::Video),
            _ => text.parse().and_then(ImageSpec::of_picture).map(DecodeSpec::Image),
        }
    }
}
