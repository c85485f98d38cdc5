//! What is made of one decoded frame: a rendition of its RGB, or its planes as they are.

use framecache::frame::{Dtype, Layout};
use framecache::pixels::yuv::PlanesError;
use framecache::spec::{SelectError, Selector, Timeline};
use framecache::{DecodeSpec, TensorHead};

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
    pub(in crate::decode) fn rgb_bytes(&self) -> u64 {
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
            _ => Ok(Self::Rgb(Box::new(Rendition::of(spec, &shape.probe(), limits)?))),
        }
    }

    /// What the tensor looks like.
    pub(in crate::decode) fn head(&self, shape: &FrameShape) -> TensorHead {
        match self {
            Self::Rgb(rendition) => rendition.head(&shape.probe()),
            Self::Planes(bytes) => TensorHead {
                shape: [1, 1, *bytes as u32],
                dtype: Dtype::U8,
                layout: Layout::Planes,
                source: (shape.width, shape.height),
                orientation: shape.orientation,
                pts_seconds: 0.0,
            },
        }
    }

    /// Bytes that drawing takes beside the planes and the tensor, the RGB included.
    pub(in crate::decode) fn scratch_bytes(&self, shape: &FrameShape) -> u64 {
        match self {
            Self::Rgb(rendition) => shape.rgb_bytes().saturating_add(rendition.scratch_bytes(&shape.probe())),
            Self::Planes(_) => 0,
        }
    }

    /// Draws `frame` into `out`, which has as many bytes as the tensor; `room` has those of the RGB.
    ///
    /// # Errors
    /// Planes of a kind that has no RGB.
    pub(in crate::decode) fn draw(&self, frame: &Frame<'_>, room: &mut [u8], out: &mut [u8]) -> Result<(), PlanesError> {
        match self {
            Self::Planes(_) => frame.planes_into(out),
            Self::Rgb(rendition) => {
                frame.rgb_into(room)?;
                let samples = Samples { pixels: room, width: frame.width, height: frame.height, kind: Kind::Rgb };
                rendition.draw(&samples, out);
            }
        }
        Ok(())
    }
}

impl VideoIndex {
    /// Its codec, by FFmpeg's name.
    pub fn codec(&self) -> &'static str {
        self.kept.parameters.codec.name()
    }

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
        let (width, height) = self.size(clip.frames[0]);
        let packets = u64::from(clip.last - clip.start) + 1;
        packets.saturating_mul(u64::from(width) * u64::from(height))
    }

    /// Bytes that its decoder keeps for itself, reference frames and their tables: 16 of them are the most that a level allows.
    pub(crate) fn decoder_bytes(&self) -> u64 {
        let shape = self.shape(0);
        20 * shape.planes_bytes.max(u64::from(shape.width) * u64::from(shape.height))
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
    /// The unit's name: its first packet.
    pub(crate) fn unit_id(&self) -> u64 {
        self.start.into()
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
