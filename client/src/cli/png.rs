//! PNG of decoded pixels.

use std::io::{self, Write};

use image::codecs::png::PngEncoder;
use image::{ExtendedColorType, ImageEncoder};

/// Writes a picture of `[height, width, channels]`: gray, RGB, or RGB with alpha.
pub(super) fn write(to: &mut dyn Write, [height, width, channels]: [u32; 3], pixels: &[u8]) -> io::Result<()> {
    let colour = match channels {
        1 => ExtendedColorType::L8,
        3 => ExtendedColorType::Rgb8,
        4 => ExtendedColorType::Rgba8,
        _ => return Err(io::Error::other(format!("PNG has no pictures of {channels} channels"))),
    };
    PngEncoder::new(to).write_image(pixels, width, height, colour).map_err(io::Error::other)
}
