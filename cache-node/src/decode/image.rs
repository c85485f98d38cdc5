//! One picture: decoded once, then every rendition that was asked for. Runs inside a worker.
//!
//! Profile `exact`: the bytes of Pillow's `open(f).convert("RGB")`, then its resize.

use framecache::pixels::{self, Plan, Window};
use framecache::spec::{Geometry, ImageSpec};
use framecache::{DecodeSpec, TensorHead};

use super::formats::{self, Failure, Input, Kind, Wants};
use super::{DecodeError, Limits, Probe};

/// Channels of every tensor.
pub(super) const CHANNELS: usize = 3;

/// One rendition, its size worked out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rendition {
    pub(super) spec: ImageSpec,
    pub(super) geometry: Geometry,
}

impl Rendition {
    /// Works `spec` out for this picture, or refuses it alone.
    pub(super) fn of(spec: &DecodeSpec, probe: &Probe, limits: &Limits) -> Result<Self, DecodeError> {
        let unsupported = |reason: String| DecodeError::Unsupported { format: probe.format, reason };
        let DecodeSpec::Image(image) = spec else { return Err(unsupported(format!("{spec} of a picture"))) };
        let geometry = image.geometry(probe.width, probe.height).map_err(|error| unsupported(error.to_string()))?;
        let (width, height) = geometry.resized;
        let too_long = width.max(height) as usize > pixels::SIDE_MAX;
        let (out_width, out_height) = geometry.output();
        if too_long || u64::from(out_width) * u64::from(out_height) > limits.pixels_max {
            return Err(DecodeError::TooLarge { width, height, limit: limits.pixels_max });
        }
        Ok(Self { spec: image.clone(), geometry })
    }

    /// Bytes of the tensor.
    pub(super) fn bytes(&self) -> usize {
        let (width, height) = self.geometry.output();
        width as usize * height as usize * CHANNELS
    }

    /// Bytes that drawing takes for itself, beside the tensor.
    pub(super) fn scratch_bytes(&self, probe: &Probe) -> u64 {
        let channels = if probe.channels == 1 { 1 } else { CHANNELS };
        pixels::resize_scratch_bytes(probe.width as usize, probe.height as usize, channels, &self.plan()) as u64
    }

    /// What the tensor looks like.
    pub(super) fn head(&self, probe: &Probe) -> TensorHead {
        let (width, height) = self.geometry.output();
        TensorHead {
            shape: [height, width, CHANNELS as u32],
            dtype: framecache::frame::Dtype::U8,
            layout: framecache::frame::Layout::Hwc,
            source: (probe.width, probe.height),
            orientation: probe.orientation,
            pts_seconds: 0.0,
        }
    }
}

/// One rendition of one frame, and the place it is drawn into.
pub(super) struct Drawing<'a> {
    pub(super) frame: u32,
    pub(super) rendition: &'a Rendition,
    pub(super) out: &'a mut [u8],
}

/// Decodes into `room` (`probe.decoded_bytes` long), each frame once, and draws every rendition of it into its own place.
pub(super) fn draw(input: &mut dyn Input, probe: &Probe, room: &mut [u8], drawings: &mut [Drawing<'_>]) -> Result<(), Failure> {
    let mut frames: Vec<u32> = drawings.iter().map(|drawing| drawing.frame).collect();
    frames.sort_unstable();
    frames.dedup();
    let mut sink = |frame, samples: formats::Samples<'_>| {
        if (samples.width, samples.height) != (probe.width, probe.height) {
            let (width, height) = (samples.width, samples.height);
            return Err(Failure::Unsupported(format!(
                "frame {frame} is {width}x{height}, the first {}x{}",
                probe.width, probe.height
            )));
        }
        // Pillow converts first and resizes then. For gray the order does not matter (all three channels are equal), and resizing one
        // channel is a third of the work.
        let channels = if samples.kind == Kind::Gray { 1 } else { CHANNELS };
        let (width, height) = (samples.width as usize, samples.height as usize);
        let source = pixels::Source { pixels: samples.pixels, width, height, channels };
        for drawing in drawings.iter_mut().filter(|drawing| drawing.frame == frame) {
            drawing.rendition.draw(&source, drawing.out);
        }
        Ok(())
    };
    formats::decode(input, probe, room, Wants::default(), &frames, &mut sink)
}

impl Rendition {
    fn draw(&self, source: &pixels::Source<'_>, out: &mut [u8]) {
        assert_eq!(out.len(), self.bytes(), "rendition fits its place");
        match source.channels {
            1 => {
                let gray = out.len() - out.len() / CHANNELS;
                self.scale(source, &mut out[gray..]);
                replicate(out);
            }
            _ => self.scale(source, out),
        }
    }

    fn scale(&self, source: &pixels::Source<'_>, out: &mut [u8]) {
        let plan = self.plan();
        let window = plan.window;
        if plan.size != (source.width, source.height) {
            return pixels::resize(source, &plan, out);
        }
        match window == (Window { x: 0, y: 0, width: source.width, height: source.height }) {
            true => out.copy_from_slice(source.pixels),
            false => pixels::crop(source, window, out),
        }
    }

    fn plan(&self) -> Plan {
        let Geometry { resized: (width, height), window } = self.geometry;
        Plan { size: (width as usize, height as usize), region: None, window, filter: self.spec.filter }
    }
}

/// Gray in the last third becomes three equal channels, front to back: what is written never passes what is still to be read.
fn replicate(out: &mut [u8]) {
    let pixels = out.len() / CHANNELS;
    for i in 0..pixels {
        let gray = out[2 * pixels + i];
        out[CHANNELS * i..CHANNELS * (i + 1)].fill(gray);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: gray drawn in one channel and replicated is what three channels would give.
    #[test]
    fn gray_in_one_channel_equals_three() {
        let (width, height) = (37, 23);
        let gray: Vec<u8> = (0..width * height).map(|i| (i * 31 % 251) as u8).collect();
        let wide: Vec<u8> = gray.iter().flat_map(|&v| [v; 3]).collect();
        for text in ["image", "image?crop=11", "image?short=16", "image?size=50x40&crop=30&filter=bicubic"] {
            let spec: ImageSpec = text.parse().expect("spec");
            let geometry = spec.geometry(width as u32, height as u32).expect("geometry");
            let rendition = Rendition { spec, geometry };
            let [mut one, mut three] = [vec![0; rendition.bytes()], vec![1; rendition.bytes()]];
            rendition.draw(&pixels::Source { pixels: &gray, width, height, channels: 1 }, &mut one);
            rendition.draw(&pixels::Source { pixels: &wide, width, height, channels: 3 }, &mut three);
            assert!(one == three, "{text}");
        }
    }
}
