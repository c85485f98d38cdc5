//! One picture: decoded once, then every rendition that was asked for. Runs inside a worker.
//!
//! Profile `exact`: the bytes of Pillow's `open(f).convert("RGB")`, then its resize.

use framecache::pixels::{self, Plan, Window};
use framecache::spec::{Geometry, ImageSpec};
use framecache::{DecodeSpec, TensorHead};

use super::jpeg::{self, Input, JpegError};
use super::{DecodeError, Format, Limits, Probe};

/// Channels of every tensor.
pub(super) const CHANNELS: usize = 3;

/// One rendition, its size worked out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rendition {
    pub(super) spec: ImageSpec,
    pub(super) geometry: Geometry,
}

/// Why a picture gave nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The picture is broken, in words.
    Undecodable(String),
    /// Memory could not be had.
    OutOfMemory,
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

/// Decodes into `samples` (`probe.decoded_bytes` long) and draws every rendition into its own place.
pub(super) fn draw(
    input: &mut dyn Input,
    probe: &Probe,
    samples: &mut [u8],
    renditions: &mut [(&Rendition, &mut [u8])],
) -> Result<(), Failure> {
    debug_assert_eq!(probe.format, Format::Jpeg);
    jpeg::decode(input, (probe.width, probe.height), probe.channels, samples).map_err(|error| match error {
        JpegError::Truncated => Failure::Undecodable("truncated".into()),
        JpegError::Broken(said) => Failure::Undecodable(said),
        JpegError::OutOfMemory => Failure::OutOfMemory,
    })?;
    // Pillow converts first and resizes then. For gray the order does not matter (all three channels are equal), and resizing one
    // channel is a third of the work; for CMYK it does.
    let (samples, channels) = match probe.channels {
        4 => (cmyk_to_rgb(samples), CHANNELS),
        channels => (&*samples, usize::from(channels)),
    };
    let source = pixels::Source { pixels: samples, width: probe.width as usize, height: probe.height as usize, channels };
    for (rendition, out) in renditions {
        rendition.draw(&source, out);
    }
    Ok(())
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

/// Pillow's "CMYK;I" to RGB, in place: inverted as Adobe stores it, marker or not, then `clip(nk - mul255(c, nk))` with
/// `nk = 255 - k`. No colour profile.
fn cmyk_to_rgb(samples: &mut [u8]) -> &[u8] {
    let pixels = samples.len() / 4;
    for i in 0..pixels {
        let [c, m, y, k] = [samples[4 * i], samples[4 * i + 1], samples[4 * i + 2], samples[4 * i + 3]].map(u32::from);
        for (at, ink) in [255 - c, 255 - m, 255 - y].into_iter().enumerate() {
            let product = ink * k + 128;
            samples[CHANNELS * i + at] = k.saturating_sub(((product >> 8) + product) >> 8) as u8;
        }
    }
    &samples[..pixels * CHANNELS]
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

    /// Promise: ink becomes light as in Pillow; values from `Image.frombytes("CMYK", ..).convert("RGB")` of the inverted samples.
    #[test]
    fn cmyk_is_pillows() {
        let mut samples = [255, 255, 255, 255, 0, 0, 0, 255, 255, 0, 0, 128, 10, 100, 200, 77];
        assert_eq!(cmyk_to_rgb(&mut samples), [255, 255, 255, 0, 0, 0, 128, 0, 0, 3, 30, 60]);
    }
}
