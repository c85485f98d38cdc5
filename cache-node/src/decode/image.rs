//! One picture: decoded once, then every rendition that was asked for. Runs inside a worker.
//!
//! Profile `exact`: the bytes of Pillow's `open(f).convert("RGB")`, then its resize.

use super::jpeg::{self, Input, JpegError};
use super::rendition::{Kind, Rendition, Samples};
use super::{Format, Probe};

/// Why a picture gave nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The picture is broken, in words.
    Undecodable(String),
    /// Memory could not be had.
    OutOfMemory,
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
    let (pixels, kind) = match probe.channels {
        1 => (&*samples, Kind::Gray),
        4 => (cmyk_to_rgb(samples), Kind::Rgb),
        _ => (&*samples, Kind::Rgb),
    };
    let samples = Samples { pixels, width: probe.width as usize, height: probe.height as usize, kind };
    for (rendition, out) in renditions {
        rendition.draw(&samples, out);
    }
    Ok(())
}

/// Pillow's "CMYK;I" to RGB, in place: inverted as Adobe stores it, marker or not, then `clip(nk - mul255(c, nk))` with
/// `nk = 255 - k`. No colour profile.
fn cmyk_to_rgb(samples: &mut [u8]) -> &[u8] {
    let pixels = samples.len() / 4;
    for i in 0..pixels {
        let [c, m, y, k] = [samples[4 * i], samples[4 * i + 1], samples[4 * i + 2], samples[4 * i + 3]].map(u32::from);
        for (at, ink) in [255 - c, 255 - m, 255 - y].into_iter().enumerate() {
            let product = ink * k + 128;
            samples[3 * i + at] = k.saturating_sub(((product >> 8) + product) >> 8) as u8;
        }
    }
    &samples[..pixels * 3]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: ink becomes light as in Pillow; values from `Image.frombytes("CMYK", ..).convert("RGB")` of the inverted samples.
    #[test]
    fn cmyk_is_pillows() {
        let mut samples = [255, 255, 255, 255, 0, 0, 0, 255, 255, 0, 0, 128, 10, 100, 200, 77];
        assert_eq!(cmyk_to_rgb(&mut samples), [255, 255, 255, 0, 0, 0, 128, 0, 0, 3, 30, 60]);
    }
}
