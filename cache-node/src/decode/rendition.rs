//! A rendition: one decoded picture made into what a spec asks for. Pixels in, pixels out; runs inside a worker.
//!
//! In Pillow's order: the mode first (gray, colour, transparency), then orientation, then box, resize and crop, then flip; how the
//! tensor is laid out comes last. Whatever a step needs beside the picture is counted in [`Rendition::scratch_bytes`].

use std::borrow::Cow;

use framecache::frame::{Dtype, Layout};
use framecache::pixels::{self, Plan, Source, Window};
use framecache::spec::{Alpha, Depth, Geometry, ImageSpec, Mode, Orientation, Profile, Resize};
use framecache::{DecodeSpec, TensorHead};

use super::formats::{Kind, Samples};
use super::orientation::{turn, turned_size};
use super::{DecodeError, Format, Limits, Probe};

/// One rendition of one frame, its sizes worked out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rendition {
    pub(super) frame: u32,
    pub(super) spec: ImageSpec,
    pub(super) geometry: Geometry,
    orientation: u8,
}

impl Rendition {
    /// Works `spec` out for this picture, or refuses it alone.
    pub(super) fn of(spec: &DecodeSpec, probe: &Probe, limits: &Limits) -> Result<Self, DecodeError> {
        let unsupported = |reason: String| DecodeError::Unsupported { format: probe.format, reason };
        let image = spec.image();
        if image.layout == Layout::Planes {
            return Err(unsupported("layout=planes of a picture".into()));
        }
        if image.dtype != Dtype::U8 && probe.format != Format::Video {
            return Err(unsupported("dtype=u16 of a picture".into()));
        }
        if image.profile == Profile::Swscale && probe.format != Format::Video {
            return Err(unsupported("profile=swscale of a picture".into()));
        }
        let frame = spec.frame().ok_or_else(|| unsupported("several frames by one spec".into()))?;
        let frame = u32::try_from(frame).unwrap_or(u32::MAX);
        let geometry = image.turned_geometry(probe.width, probe.height, probe.orientation);
        let geometry = geometry.map_err(|error| unsupported(error.to_string()))?;
        if !is_within(&geometry, limits) {
            let (width, height) = geometry.resized;
            return Err(DecodeError::TooLarge { width, height, limit: limits.pixels_max });
        }
        Ok(Self { frame, spec: image.clone(), geometry, orientation: probe.orientation })
    }

    /// The same of a picture that is decoded and upright already.
    pub(super) fn of_pixels(spec: ImageSpec, (width, height): (u32, u32), limits: &Limits) -> Option<Self> {
        let geometry = spec.geometry(width, height).ok().filter(|geometry| is_within(geometry, limits))?;
        Some(Self { frame: 0, spec, geometry, orientation: 1 })
    }

    /// The tensor's shape.
    pub(super) fn shape(&self) -> [u32; 3] {
        self.spec.shape(self.geometry.output())
    }

    /// Bytes of the tensor.
    pub(super) fn bytes(&self) -> usize {
        self.shape().iter().map(|&side| side as usize).product::<usize>() * self.spec.dtype.bytes()
    }

    /// What the tensor looks like.
    pub(super) fn head(&self, probe: &Probe) -> TensorHead {
        TensorHead {
            shape: self.shape(),
            dtype: self.spec.dtype,
            layout: self.spec.layout,
            source: (probe.width, probe.height),
            orientation: probe.orientation,
            pts_seconds: 0.0,
            format: None,
        }
    }

    /// Bytes that drawing takes for itself, beside the picture and the tensor: upper bound for any kind of samples.
    pub(super) fn scratch_bytes(&self, probe: &Probe) -> u64 {
        let (width, height) = self.geometry.source;
        // Another mode, another orientation, premultiplied colour: each is a copy of the picture, of up to four bytes a pixel. Where
        // only a rendition beside this one wants alpha or depth, what this one drops of it is less than what that one takes.
        let ImageSpec { alpha, depth, mode, .. } = self.spec;
        let deep = probe.depth > 8 && depth == Depth::Scale;
        let converted = deep || (probe.has_alpha && alpha != Alpha::Drop) || (mode == Mode::Gray && probe.channels > 1);
        let copies = 2 * u64::from(converted) + u64::from(self.turn() > 1);
        let channels = if probe.channels == 1 && !probe.has_alpha { 1 } else { 4 };
        let resize = pixels::resize_scratch_bytes(width as usize, height as usize, channels, &self.plan()) as u64;
        let window = self.geometry.window;
        let drawn = if self.is_drawn_in_place() { 0 } else { window.width as u64 * window.height as u64 * 4 };
        (u64::from(width) * u64::from(height)).saturating_mul(4 * copies).saturating_add(drawn).saturating_add(resize)
    }

    /// Draws `samples` into `out`, which has [`Rendition::bytes`] bytes. A frame of another size than the probe's was probed as such.
    pub(super) fn draw(&self, samples: &Samples<'_>, out: &mut [u8]) {
        assert_eq!(out.len(), self.bytes(), "rendition fits its place");
        let (picture, kind) = self.in_mode(samples);
        let stored = (samples.width as usize, samples.height as usize);
        let (width, height) = turned_size(stored, self.turn());
        let picture = match self.turn() {
            2..=8 => {
                let mut upright = vec![0; picture.len()];
                turn(&picture, stored, kind.bytes(), self.turn(), &mut upright);
                upright.into()
            }
            _ => picture,
        };
        let source = Source { pixels: &picture, width, height, channels: kind.bytes() };
        self.lay_out(kind.bytes(), out, |out| self.scale(&source, out));
    }

    /// Lays the tensor out in `out`: `draw` draws the window, `drawn` channels a pixel, into what it is given.
    pub(super) fn lay_out(&self, drawn: usize, out: &mut [u8], draw: impl FnOnce(&mut [u8])) {
        let channels = self.spec.channels() as usize;
        match (drawn == channels && self.is_drawn_in_place(), drawn) {
            (true, _) => draw(out),
            (false, 1) if channels == 3 && self.is_drawn_in_place() => {
                let gray = out.len() - out.len() / 3;
                draw(&mut out[gray..]);
                replicate(out);
            }
            (false, drawn) => {
                let mut whole = vec![0; self.geometry.window.width * self.geometry.window.height * drawn];
                draw(&mut whole);
                self.arrange(&whole, drawn, out);
            }
        }
        if self.spec.flip && self.is_drawn_in_place() {
            let row = self.geometry.window.width;
            match channels {
                1 => mirror::<1>(out, row),
                3 => mirror::<3>(out, row),
                _ => mirror::<4>(out, row),
            }
        }
    }

    /// Puts numbers that are only moved to their places in `out`, which has [`Rendition::bytes`] bytes: three of `dtype` for each pixel
    /// of a picture of that stored size.
    pub(super) fn place(&self, pixels: &[u8], stored: (usize, usize), dtype: Dtype, out: &mut [u8]) {
        assert_eq!(out.len(), self.bytes(), "rendition fits its place");
        let (number, pixel) = (dtype.bytes(), 3 * dtype.bytes());
        let mut picture = Cow::from(pixels);
        if self.turn() > 1 {
            let mut upright = vec![0; pixels.len()];
            turn(pixels, stored, pixel, self.turn(), &mut upright);
            picture = upright.into();
        }
        let (wide, _) = turned_size(stored, self.turn());
        let Geometry { region, window, .. } = self.geometry;
        let (left, top) = region.map_or((0, 0), |region| (region.x, region.y));
        let Window { width, height, .. } = window;
        for y in 0..height {
            let row = &picture[((top + window.y + y) * wide + left + window.x) * pixel..][..width * pixel];
            for (x, from) in row.chunks_exact(pixel).enumerate() {
                let x = if self.spec.flip { width - 1 - x } else { x };
                match self.spec.layout {
                    Layout::Chw => {
                        for (channel, from) in from.chunks_exact(number).enumerate() {
                            out[((channel * height + y) * width + x) * number..][..number].copy_from_slice(from);
                        }
                    }
                    _ => out[(y * width + x) * pixel..][..pixel].copy_from_slice(from),
                }
            }
        }
    }

    /// Whether it is made smaller, both ways, of colours as they come: then planes may be resized before they become colours.
    pub(super) fn shrinks_colours(&self) -> bool {
        let (width, height) = self.geometry.region.map_or(self.geometry.source, |r| (r.width as u32, r.height as u32));
        let (to_width, to_height) = self.geometry.resized;
        let plain = self.spec.mode == Mode::Rgb && self.spec.alpha != Alpha::Keep && self.turn() == 1;
        plain && self.spec.resize != Resize::Keep && to_width <= width && to_height <= height
    }

    /// By what power of two the picture may be scaled down before it is resized: so that it is resized down, never up.
    pub(super) fn shift(&self) -> u8 {
        let (width, height) = self.geometry.region.map_or(self.geometry.source, |r| (r.width as u32, r.height as u32));
        let (to_width, to_height) = self.geometry.resized;
        let fits = |shift: &u8| self.spec.resize != Resize::Keep && width >> shift >= to_width && height >> shift >= to_height;
        (1..=3).rev().find(fits).unwrap_or(0)
    }

    /// Whether the tensor is the window as it is drawn, but for the number of channels and a flip.
    fn is_drawn_in_place(&self) -> bool {
        self.spec.layout == Layout::Hwc && self.geometry.tiles == (1, 1) && self.spec.alpha != Alpha::Keep
    }

    /// The orientation to be applied; 1 for none.
    fn turn(&self) -> u8 {
        match self.spec.orientation {
            Orientation::Apply => self.orientation,
            Orientation::Ignore => 1,
        }
    }

    /// The samples in the mode that is resized: what Pillow's `convert` gives.
    fn in_mode<'a>(&self, samples: &'a Samples<'_>) -> (Cow<'a, [u8]>, Kind) {
        let pixels = samples.pixels;
        match (samples.kind, self.spec.mode, self.spec.alpha) {
            (Kind::Gray, ..) => (pixels.into(), Kind::Gray),
            (Kind::Gray16, ..) => (narrow(pixels, self.spec.depth).into(), Kind::Gray),
            (Kind::Rgb, Mode::Rgb, _) => (pixels.into(), Kind::Rgb),
            (Kind::Rgb, Mode::Gray, _) => (luma::<3>(pixels).into(), Kind::Gray),
            (Kind::Rgba, Mode::Rgb, Alpha::Keep) => (pixels.into(), Kind::Rgba),
            (Kind::Rgba, Mode::Rgb, Alpha::Drop) => (opaque(pixels).into(), Kind::Rgb),
            (Kind::Rgba, Mode::Rgb, Alpha::Over(colour)) => (over(pixels, colour).into(), Kind::Rgb),
            (Kind::Rgba, Mode::Gray, Alpha::Over(colour)) => (luma::<3>(&over(pixels, colour)).into(), Kind::Gray),
            (Kind::Rgba, Mode::Gray, _) => (luma::<4>(pixels).into(), Kind::Gray),
        }
    }

    fn scale(&self, source: &Source<'_>, out: &mut [u8]) {
        let plan = self.plan();
        if (source.width as u32, source.height as u32) != self.geometry.source {
            return pixels::resize(source, &self.scaled(plan, source), out);
        }
        let part = self.geometry.region.unwrap_or(Window { x: 0, y: 0, width: source.width, height: source.height });
        // Pillow resizes colour with alpha premultiplied, which loses some of it even where the size stays; but a picture that is
        // neither cut nor resized is copied.
        let whole = (part.width, part.height) == (source.width, source.height);
        let same = plan.size == (part.width, part.height);
        let plain = source.channels < 4 || plan.filter == pixels::Filter::Nearest;
        let cut = self.spec.resize == Resize::Keep || (same && whole);
        match (same, plain || cut) {
            (true, true) => pixels::crop(source, within(part, plan.window), out),
            (false, true) => pixels::resize(source, &plan, out),
            (same, false) => {
                let premultiplied = Source { pixels: &premultiplied(source.pixels), ..*source };
                match same {
                    true => pixels::crop(&premultiplied, within(part, plan.window), out),
                    false => pixels::resize(&premultiplied, &plan, out),
                }
                unmultiply(out);
            }
        }
    }

    /// The plan for a picture that was scaled down while it was decoded.
    fn scaled(&self, plan: Plan, source: &Source<'_>) -> Plan {
        let (width, height) = (source.width as f32, source.height as f32);
        let (across, down) = (width / self.geometry.source.0 as f32, height / self.geometry.source.1 as f32);
        let inside = |[x0, y0, x1, y1]: [f32; 4]| [x0 * across, y0 * down, (x1 * across).min(width), (y1 * down).min(height)];
        Plan { region: plan.region.map(inside), ..plan }
    }

    pub(super) fn plan(&self) -> Plan {
        let Geometry { region, resized: (width, height), window, .. } = self.geometry;
        let region = region.map(|r| [r.x, r.y, r.x + r.width, r.y + r.height].map(|side| side as f32));
        Plan { size: (width as usize, height as usize), region, window, filter: self.spec.filter }
    }

    /// From the window as drawn, with `drawn` channels a pixel, to the tensor.
    fn arrange(&self, whole: &[u8], drawn: usize, out: &mut [u8]) {
        let Window { width, height, .. } = self.geometry.window;
        let (columns, rows) = (self.geometry.tiles.0 as usize, self.geometry.tiles.1 as usize);
        let (tile_width, tile_height) = (width / columns, height / rows);
        let channels = self.spec.channels() as usize;
        let plane = width * height;
        let mut to = 0;
        for tile in 0..columns * rows {
            let (x, y) = (tile % columns * tile_width, tile / columns * tile_height);
            for row in y..y + tile_height {
                let line = &whole[(row * width + x) * drawn..][..tile_width * drawn];
                for column in 0..tile_width {
                    let column = if self.spec.flip { tile_width - 1 - column } else { column };
                    let pixel = &line[column * drawn..][..drawn];
                    for channel in 0..channels {
                        let value = match (channel, drawn) {
                            (3, 1 | 3) => 255,
                            (_, 1) => pixel[0],
                            _ => pixel[channel],
                        };
                        let at = match self.spec.layout {
                            Layout::Chw => channel * plane + to,
                            _ => to * channels + channel,
                        };
                        out[at] = value;
                    }
                    to += 1;
                }
            }
        }
    }
}

fn is_within(Geometry { resized: (width, height), window, .. }: &Geometry, limits: &Limits) -> bool {
    let long = (*width).max(*height) as usize > pixels::SIDE_MAX;
    !long && window.width as u64 * window.height as u64 <= limits.pixels_max
}

/// A window of a part, in pixels of the whole.
fn within(part: Window, window: Window) -> Window {
    Window { x: part.x + window.x, y: part.y + window.y, ..window }
}

/// Gray in the last third becomes three equal channels, front to back: what is written never passes what is still to be read.
fn replicate(out: &mut [u8]) {
    let pixels = out.len() / 3;
    for i in 0..pixels {
        let gray = out[2 * pixels + i];
        out[3 * i..3 * (i + 1)].fill(gray);
    }
}

fn mirror<const CHANNELS: usize>(out: &mut [u8], width: usize) {
    for row in out.chunks_exact_mut(width * CHANNELS) {
        row.as_chunks_mut::<CHANNELS>().0.reverse();
    }
}

/// Each pixel of `IN` bytes made into one of `OUT`.
fn each<const IN: usize, const OUT: usize>(pixels: &[u8], make: impl Fn(&[u8; IN]) -> [u8; OUT]) -> Vec<u8> {
    let (from, _) = pixels.as_chunks::<IN>();
    let mut made = vec![0; from.len() * OUT];
    made.as_chunks_mut::<OUT>().0.iter_mut().zip(from).for_each(|(to, from)| *to = make(from));
    made
}

/// 16-bit gray to 8: Pillow's "I;16" to "L" clips, and `depth=scale` takes the high byte.
fn narrow(pixels: &[u8], depth: Depth) -> Vec<u8> {
    match depth {
        Depth::Pillow => each(pixels, |pair| [u16::from_ne_bytes(*pair).min(255) as u8]),
        Depth::Scale => each(pixels, |pair| [(u16::from_ne_bytes(*pair) >> 8) as u8]),
    }
}

/// Pillow's "RGB" to "L" (`Convert.c`, `L24`).
fn luma<const CHANNELS: usize>(pixels: &[u8]) -> Vec<u8> {
    each::<CHANNELS, 1>(pixels, |pixel| {
        let [r, g, b] = [pixel[0], pixel[1], pixel[2]].map(u32::from);
        [((19_595 * r + 38_470 * g + 7_471 * b + 0x8000) >> 16) as u8]
    })
}

fn opaque(pixels: &[u8]) -> Vec<u8> {
    each(pixels, |&[r, g, b, _]| [r, g, b])
}

/// Pillow's `alpha_composite` (`AlphaComposite.c`) over an opaque colour: weights of 7 fractional bits.
fn over(pixels: &[u8], colour: [u8; 3]) -> Vec<u8> {
    each(pixels, |&[r, g, b, alpha]| {
        // With an opaque ground the sum of both alphas is 255 * 255.
        let weight = u32::from(alpha) << 7;
        let mix = |ink: u8, ground: u8| {
            let sum = u32::from(ink) * weight + u32::from(ground) * ((255 << 7) - weight) + (0x80 << 7);
            (((sum >> 8) + sum) >> 8 >> 7) as u8
        };
        match alpha {
            0 => colour,
            _ => [mix(r, colour[0]), mix(g, colour[1]), mix(b, colour[2])],
        }
    })
}

/// Pillow's "RGBA" to "RGBa", before a resize.
fn premultiplied(pixels: &[u8]) -> Vec<u8> {
    let scale = |value: u8, alpha: u8| {
        let product = u32::from(value) * u32::from(alpha) + 128;
        (((product >> 8) + product) >> 8) as u8
    };
    each(pixels, |&[r, g, b, alpha]| [scale(r, alpha), scale(g, alpha), scale(b, alpha), alpha])
}

/// Pillow's "RGBa" to "RGBA", in place.
fn unmultiply(pixels: &mut [u8]) {
    for [r, g, b, alpha] in pixels.as_chunks_mut::<4>().0 {
        if !matches!(*alpha, 0 | 255) {
            for value in [r, g, b] {
                *value = (u32::from(*value) * 255 / u32::from(*alpha)).min(255) as u8;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendition(text: &str, (width, height): (usize, usize), orientation: u8) -> Rendition {
        let spec: ImageSpec = text.parse().expect("spec");
        let geometry = spec.turned_geometry(width as u32, height as u32, orientation).expect("geometry");
        Rendition { frame: 0, spec, geometry, orientation }
    }

    /// Promise: gray drawn in one channel and replicated is what three channels would give.
    #[test]
    fn gray_in_one_channel_equals_three() {
        let (width, height) = (37, 23);
        let gray: Vec<u8> = (0..width * height).map(|i| (i * 31 % 251) as u8).collect();
        let wide: Vec<u8> = gray.iter().flat_map(|&v| [v; 3]).collect();
        for text in [
            "image",
            "image?crop=11",
            "image?short=16",
            "image?size=50x40&crop=30&filter=bicubic",
            "image?box=3,4,20,10&flip=h",
            "image?layout=chw",
            "image?mode=gray&max=20",
        ] {
            let rendition = rendition(text, (width, height), 1);
            let [mut one, mut three] = [vec![0; rendition.bytes()], vec![1; rendition.bytes()]];
            let samples = |pixels, kind| Samples { pixels, width: width as u32, height: height as u32, kind };
            rendition.draw(&samples(&gray, Kind::Gray), &mut one);
            rendition.draw(&samples(&wide, Kind::Rgb), &mut three);
            assert!(one == three, "{text}");
        }
    }
}
