//! What is made of one decoded frame: a rendition of its RGB, or its planes as they are.

use framecache::frame::{Dtype, Layout};
use framecache::pixels::yuv::PlanesError;
use framecache::spec::{Profile, SelectError, Selector, Timeline};
use framecache::{DecodeSpec, TensorHead};

use super::colour;
use super::frame::Sampling;
use super::index::Kept;
use super::{Clip, Frame, PtsOrigin, Ratio, Trust, VideoIndex};
use crate::decode::formats::{Kind, Samples};
use crate::decode::rendition::Rendition;
use crate::decode::{DecodeError, Format, Limits, Probe, Work};

/// What a frame looks like before anything is made of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameShape {
    /// Width in pixels, as stored.
    pub width: u32,
    /// Height in pixels, likewise.
    pub height: u32,
    /// How it is to be turned, as an EXIF orientation.
    pub orientation: u8,
    /// Bytes of its planes, tightly packed.
    pub planes_bytes: u64,
}

/// One frame's tensor, its sizes worked out.
#[derive(Clone, Debug)]
pub(in crate::decode) enum Drawn {
    /// RGB at the frame's size, then what a picture's spec makes of it.
    Rgb(Box<Rendition>),
    /// The planes at the wanted size, then RGB of them; of what has no planes for that as `Rgb`.
    Scaled(Box<Rendition>),
    /// RGB at the frame's size by FFmpeg's own conversion, then likewise.
    Swscale(Box<Rendition>),
    /// RGB at the frame's size and depth, whose numbers are only moved then.
    Deep(Box<Rendition>),
    /// The planes as decoded.
    Planes(u64),
}

impl FrameShape {
    /// Of a decoded frame that is to be turned so.
    pub(in crate::decode) fn of(frame: &Frame<'_>, orientation: u8) -> Self {
        Self { width: frame.width, height: frame.height, orientation, planes_bytes: frame.planes_bytes() as u64 }
    }

    /// The frame as a picture of three channels.
    fn probe(&self) -> Probe {
        let pixels = u64::from(self.width) * u64::from(self.height);
        Probe {
            format: Format::Video,
            width: self.width,
            height: self.height,
            channels: 3,
            has_alpha: false,
            depth: 8,
            mode: "RGB",
            orientation: self.orientation,
            frames: None,
            decoded_bytes: 3 * pixels,
            working_bytes: 0,
            input_bytes: 0,
        }
    }

    /// Bytes of what `spec` makes of it; nothing where it cannot.
    pub(crate) fn tensor_bytes(&self, spec: &DecodeSpec) -> u64 {
        Drawn::of(spec, self, &Limits { pixels_max: u64::MAX }).map_or(0, |drawn| drawn.head(self).bytes())
    }

    /// The same, and what drawing it takes.
    pub(crate) fn most_bytes(&self, spec: &DecodeSpec) -> u64 {
        let limits = Limits { pixels_max: u64::MAX };
        Drawn::of(spec, self, &limits).map_or(0, |drawn| drawn.head(self).bytes().saturating_add(drawn.scratch_bytes(self)))
    }

    /// Bytes of its RGB.
    fn rgb_bytes(&self) -> u64 {
        3 * u64::from(self.width) * u64::from(self.height)
    }
}

impl Drawn {
    /// Works `spec` out for a frame, or refuses it.
    pub(in crate::decode) fn of(spec: &DecodeSpec, shape: &FrameShape, limits: &Limits) -> Result<Self, DecodeError> {
        let too_large = DecodeError::TooLarge { width: shape.width, height: shape.height, limit: limits.pixels_max };
        match spec.image().layout {
            Layout::Planes if shape.planes_bytes > u64::from(u32::MAX) => Err(too_large),
            Layout::Planes => Ok(Self::Planes(shape.planes_bytes)),
            _ => {
                let rendition = Box::new(Rendition::of(spec, &shape.probe(), limits)?);
                Ok(match (spec.image().profile, spec.image().dtype) {
                    (_, Dtype::U16) => Self::Deep(rendition),
                    (Profile::Swscale, _) => Self::Swscale(rendition),
                    (Profile::Fast, _) if rendition.shrinks_colours() => Self::Scaled(rendition),
                    _ => Self::Rgb(rendition),
                })
            }
        }
    }

    /// What the tensor looks like.
    pub(in crate::decode) fn head(&self, shape: &FrameShape) -> TensorHead {
        match self {
            Self::Rgb(rendition) | Self::Scaled(rendition) | Self::Swscale(rendition) | Self::Deep(rendition) => {
                rendition.head(&shape.probe())
            }
            Self::Planes(bytes) => TensorHead {
                shape: [1, 1, *bytes as u32],
                dtype: Dtype::U8,
                layout: Layout::Planes,
                source: (shape.width, shape.height),
                orientation: shape.orientation,
                pts_seconds: 0.0,
                format: None,
            },
        }
    }

    /// Bytes that drawing takes beside the planes and the tensor, the RGB included.
    pub(in crate::decode) fn scratch_bytes(&self, shape: &FrameShape) -> u64 {
        let room = self.room_bytes(shape);
        match self {
            Self::Rgb(rendition) => room.saturating_add(rendition.scratch_bytes(&shape.probe())),
            // A plane without its padding; a frame of the library's.
            Self::Scaled(rendition) | Self::Swscale(rendition) => {
                room.saturating_mul(2).saturating_add(SWSCALE_BYTES).saturating_add(rendition.scratch_bytes(&shape.probe()))
            }
            // A copy to be turned.
            Self::Deep(_) => room.saturating_mul(2),
            Self::Planes(_) => 0,
        }
    }

    /// Bytes of the RGB that it is drawn from.
    pub(in crate::decode) fn room_bytes(&self, shape: &FrameShape) -> u64 {
        match self {
            Self::Rgb(_) | Self::Scaled(_) | Self::Swscale(_) => shape.rgb_bytes(),
            Self::Deep(_) => shape.rgb_bytes().saturating_mul(Dtype::U16.bytes() as u64),
            Self::Planes(_) => 0,
        }
    }

    /// Draws `frame` into `out`, which has as many bytes as the tensor; `room` has [`Drawn::room_bytes`].
    ///
    /// # Errors
    /// Planes of a kind that has no RGB, in words.
    pub(in crate::decode) fn draw(&self, frame: &Frame<'_>, room: &mut [u8], out: &mut [u8]) -> Result<(), String> {
        let words = |error: PlanesError| error.to_string();
        let colours = |pixels| Samples { pixels, width: frame.width, height: frame.height, kind: Kind::Rgb };
        match self {
            Self::Planes(_) => frame.planes_into(out),
            Self::Scaled(rendition) if frame.has_byte_chroma() => colour::scaled(frame, rendition, room, out).map_err(words)?,
            Self::Rgb(rendition) | Self::Scaled(rendition) => {
                frame.rgb_into(room).map_err(words)?;
                rendition.draw(&colours(room), out);
            }
            Self::Swscale(rendition) => {
                frame.swscale_into(room)?;
                rendition.draw(&colours(room), out);
            }
            Self::Deep(rendition) => {
                frame.rgb16_into(room).map_err(words)?;
                rendition.place(room, (frame.width as usize, frame.height as usize), Dtype::U16, out);
            }
        }
        Ok(())
    }
}

/// What libswscale keeps for a conversion: tables, and lines of the widest frame.
const SWSCALE_BYTES: u64 = 8 << 20;

impl VideoIndex {
    /// How far it is to be believed.
    pub fn trust(&self) -> Trust {
        self.facts().trust
    }

    /// What a frame looks like.
    pub fn shape(&self, frame: u64) -> FrameShape {
        let (width, height) = self.size(frame);
        let facts = self.facts();
        let planes_bytes = Sampling::of(&facts.format).map_or(0, |sampling| sampling.bytes(width, height));
        FrameShape { width, height, orientation: orientation(facts.rotation), planes_bytes }
    }

    /// What making `specs` takes: frames that are not there cost nothing.
    pub(crate) fn work(&self, specs: &[DecodeSpec]) -> Work {
        let there = |spec: &&DecodeSpec| spec.frame().is_some_and(|frame| frame < self.len());
        let shape = |spec: &DecodeSpec| self.shape(spec.frame().unwrap_or(0));
        let output_bytes = specs.iter().filter(there).map(|spec| shape(spec).tensor_bytes(spec)).fold(0u64, u64::saturating_add);
        let frames: Vec<u64> = specs.iter().filter_map(DecodeSpec::frame).collect();
        let pixels: u64 = self.plan(&frames).iter().map(|clip| self.decoded_pixels(clip)).sum();
        Work { output_bytes, megapixels: pixels as f64 / 1e6 }
    }

    /// Pixels of all frames that are decoded on the way to the last one of `clip`.
    pub(crate) fn decoded_pixels(&self, clip: &Clip) -> u64 {
        let largest = self.kept.sizes.iter().map(|&(width, height)| u64::from(width) * u64::from(height)).max();
        u64::from(clip.packets()).saturating_mul(largest.unwrap_or(0))
    }

    /// Bytes that its decoder keeps for itself, reference frames and their tables: 16 of them are the most that a level allows.
    pub(crate) fn decoder_bytes(&self) -> u64 {
        let sampling = Sampling::of(&self.facts().format);
        let of = |&(width, height): &(u32, u32)| {
            let planes = sampling.map_or(0, |sampling| sampling.bytes(width, height));
            planes.max(u64::from(width) * u64::from(height))
        };
        20 * self.kept.sizes.iter().map(of).max().unwrap_or(0)
    }

    /// Bytes of a clip's packets.
    pub(crate) fn package_bytes(&self, clip: &Clip) -> u64 {
        (clip.start..=clip.last).map(|packet| u64::from(self.kept.packets[packet as usize].bytes)).sum()
    }

    /// Bytes that it takes in memory, about.
    pub(crate) fn memory_bytes(&self) -> usize {
        let Kept { packets, runs, rows, beside, .. } = &self.kept;
        1024 + size_of_val(&packets[..])
            + size_of_val(&runs[..])
            + size_of_val(&rows[..])
            + 4 * rows.len()
            + beside.iter().map(|beside| beside.bytes.len() + 64).sum::<usize>()
    }
}

impl VideoIndex {
    /// The frames that a selection comes to.
    ///
    /// # Errors
    /// [`SelectError`]: nothing is clamped.
    pub fn select(&self, selector: &Selector) -> Result<Vec<u64>, SelectError> {
        let pts: Vec<i64> = self.kept.rows.iter().map(|row| row.pts).collect();
        let Ratio { numerator, denominator } = self.kept.time_base;
        let part = |part: u64| u32::try_from(part).unwrap_or(0);
        let last = pts.last().copied().unwrap_or(0);
        let end = last.saturating_add(i64::try_from(self.kept.last_ticks).unwrap_or(i64::MAX));
        selector.resolve(&Timeline { pts: &pts, time_base: (part(numerator), part(denominator)), end })
    }

    /// Whether decoding can begin at a frame.
    pub fn starts(&self, frame: u64) -> bool {
        let row = self.row(frame);
        row.start == row.tag
    }

    /// Whether times are counted out, since the container has none.
    pub fn is_synthesized(&self) -> bool {
        self.facts().pts_origin == PtsOrigin::Synthesized
    }
}

impl Clip {
    /// The unit's name: its first packet, in that stream.
    pub(crate) fn unit_id(&self, stream: u32) -> u64 {
        u64::from(stream) << u32::BITS | u64::from(self.start)
    }

    /// Packets that are decoded.
    pub(crate) fn packets(&self) -> u32 {
        self.last - self.start + 1
    }
}

impl Trust {
    /// The trust of that number.
    pub(in crate::decode) fn from_number(number: u8) -> Option<Self> {
        [Self::Predicted, Self::Mapped, Self::Proved].into_iter().find(|trust| *trust as u8 == number)
    }
}

impl Sampling {
    /// Bytes of all planes of a frame.
    fn bytes(self, width: u32, height: u32) -> u64 {
        let plane = |plane| {
            let (columns, rows) = self.plane_size(plane, width as usize, height as usize);
            columns as u64 * rows as u64 * self.sample_bytes() as u64
        };
        (0..self.planes()).map(plane).sum()
    }
}

/// The EXIF orientation of a picture that is to be turned by that many degrees counter-clockwise.
fn orientation(rotation: i32) -> u8 {
    match rotation.rem_euclid(360) {
        90 => 8,
        180 => 3,
        270 => 6,
        _ => 1,
    }
}
