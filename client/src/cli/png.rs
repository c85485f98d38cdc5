//! PNG of decoded pixels.

use std::io::{self, Write};

use image::codecs::png::PngEncoder;
use image::{ExtendedColorType, ImageEncoder};

/// Writes an RGB picture.
pub(super) fn write(to: &mut dyn Write, width: u32, height: u32, pixels: &[u8]) -> io::Result<()> {
    PngEncoder::new(to).write_image(pixels, width, height, ExtendedColorType::Rgb8).map_err(io::Error::other)
}
