//! PNG and APNG: the `png` crate for the stream, Pillow's meaning for the pixels.
//!
//! Pillow departs from the standard here: 16-bit gray is clipped, not scaled; other 16-bit samples keep their high byte; wrong
//! checksums of pixel data are passed over (and Adler-32 is not); a colour key is compared by its low byte; and frames of an
//! animation are blended by a masked paste on all channels, in the file's own mode, palette indices included.

use std::io::Cursor;

use png::{BitDepth, BlendOp, ColorType, DecodeOptions, Decoder, DisposeOp, FrameControl, Limits, Reader, Transformations};

use crate::decode::HEADER_BYTES_MAX;

use super::{Failure, Kind, Order, Sink, broken, said, unsupported, zeros};

pub(super) fn decode(bytes: &[u8], order: &Order<'_>, room: &mut [u8], sink: Sink<'_>) -> Result<(), Failure> {
    whole_behind(bytes)?;
    let mut options = DecodeOptions::default();
    options.set_ignore_crc(true);
    options.set_ignore_adler32(false);
    options.set_ignore_text_chunk(true);
    options.set_ignore_iccp_chunk(true);
    let mut decoder = Decoder::new_with_options(Cursor::new(bytes), options);
    decoder.set_transformations(Transformations::IDENTITY);
    decoder.set_limits(Limits {
        bytes: usize::try_from(order.probe.working_bytes).unwrap_or(usize::MAX).saturating_add(HEADER_BYTES_MAX as usize),
    });
    let mut reader = decoder.read_info().map_err(said)?;
    let (width, height) = order.size(reader.info().width.into(), reader.info().height.into())?;
    let form = Form::of(&reader, order)?;
    let animated = order.probe.frames.is_none_or(|count| count > 1);
    if animated || reader.info().interlaced {
        return frames(&mut reader, &form, order, (width, height), room, sink);
    }
    // Row by row: data that is cut behind the last row is no error.
    let mut native = zeros(width * form.native.bytes())?;
    for out in room.chunks_exact_mut(width * form.kind.bytes()).take(height) {
        let Some(row) = reader.next_row().map_err(said)? else { return broken("truncated") };
        form.unpack(row.data(), &mut native)?;
        form.finish(&native, out);
    }
    order.give(0, form.kind, room, sink)
}

/// Interlaced pictures and animations: whole frames, drawn onto a canvas.
fn frames(
    reader: &mut Reader<Cursor<&[u8]>>,
    form: &Form,
    order: &Order<'_>,
    (width, height): (usize, usize),
    room: &mut [u8],
    sink: Sink<'_>,
) -> Result<(), Failure> {
    let pixel = form.native.bytes();
    let mut canvas: Vec<u8> = zeros(width * height * pixel)?;
    let mut raw: Vec<u8> = zeros(reader.output_buffer_size().ok_or(Failure::OutOfMemory)?)?;
    let mut row: Vec<u8> = zeros(width * pixel)?;
    let mut dispose: Option<Dispose> = None;
    for frame in 0..=order.last() {
        let info = reader.next_frame(&mut raw).map_err(said)?;
        let control = reader.info().frame_control;
        if let Some(dispose) = dispose.take() {
            dispose.apply(&mut canvas, width * pixel, pixel);
        }
        let area = Area::of(control.as_ref(), (info.width, info.height), (width, height))?;
        dispose = control.and_then(|control| Dispose::of(&control, frame, area, &canvas, width * pixel, pixel));
        let over = frame > 0 && control.is_some_and(|control| control.blend_op == BlendOp::Over);
        if over && form.native == Native::Deep {
            return unsupported("blending of 16-bit gray".into());
        }
        for y in 0..area.height {
            let line = raw.get(y * info.line_size..).unwrap_or(&[]);
            let row = &mut row[..area.width * pixel];
            form.unpack(line, row)?;
            let at = ((area.y + y) * width + area.x) * pixel;
            let onto = &mut canvas[at..at + row.len()];
            match over {
                true => form.paste(row, onto),
                false => onto.copy_from_slice(row),
            }
        }
        if order.is_wanted(frame) {
            let kind = form.kind.bytes();
            for (native, out) in canvas.chunks_exact(width * pixel).zip(room.chunks_exact_mut(width * kind)) {
                form.finish(native, out);
            }
            order.give(frame, form.kind, room, sink)?;
        }
    }
    Ok(())
}

/// Where a frame lies on the canvas, in pixels.
#[derive(Clone, Copy)]
struct Area {
    x: usize,
    y: usize,
    width: usize,
    height: usize,
}

impl Area {
    fn of(control: Option<&FrameControl>, size: (u32, u32), canvas: (usize, usize)) -> Result<Self, Failure> {
        let (x, y) = control.map_or((0, 0), |control| (control.x_offset as usize, control.y_offset as usize));
        let (width, height) = (size.0 as usize, size.1 as usize);
        match x + width <= canvas.0 && y + height <= canvas.1 {
            true => Ok(Self { x, y, width, height }),
            false => broken("a frame lies outside the canvas"),
        }
    }

    fn rows(self, line: usize, pixel: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
        (self.y..self.y + self.height).map(move |y| {
            let at = y * line + self.x * pixel;
            at..at + self.width * pixel
        })
    }
}

/// What happens to a frame's area before the next frame is drawn.
struct Dispose {
    area: Area,
    /// What lay there before; empty: zeros, which are transparent, black, or the first colour.
    before: Vec<u8>,
}

impl Dispose {
    /// As in Pillow, there is nothing to go back to before the first frame, so that it is cleared instead.
    fn of(control: &FrameControl, frame: u32, area: Area, canvas: &[u8], line: usize, pixel: usize) -> Option<Self> {
        let mut before = Vec::new();
        match control.dispose_op {
            DisposeOp::None => return None,
            DisposeOp::Previous if frame > 0 => {
                area.rows(line, pixel).for_each(|row| before.extend_from_slice(&canvas[row]));
            }
            DisposeOp::Previous | DisposeOp::Background => {}
        }
        Some(Self { area, before })
    }

    fn apply(&self, canvas: &mut [u8], line: usize, pixel: usize) {
        let mut before = self.before.chunks_exact((self.area.width * pixel).max(1));
        for row in self.area.rows(line, pixel) {
            match before.next() {
                Some(saved) => canvas[row].copy_from_slice(saved),
                None => canvas[row].fill(0),
            }
        }
    }
}

/// How Pillow holds the picture before it converts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Native {
    /// "1" and "L": a byte, scaled up from fewer bits.
    Gray,
    /// "I;16": two bytes in this machine's order.
    Deep,
    /// "LA", and of 16 bits "RGBA": gray and alpha.
    GrayAlpha,
    Rgb,
    Rgba,
    /// "P".
    Index,
}

impl Native {
    fn bytes(self) -> usize {
        match self {
            Self::Gray | Self::Index => 1,
            Self::Deep | Self::GrayAlpha => 2,
            Self::Rgb => 3,
            Self::Rgba => 4,
        }
    }
}

/// From the file's samples to those wanted.
struct Form {
    native: Native,
    depth: u8,
    kind: Kind,
    /// Colour and alpha by index; black and opaque where the file has none.
    palette: Vec<[u8; 4]>,
    /// The transparent colour, by the bytes that Pillow compares.
    key: Option<[u8; 3]>,
}

impl Form {
    fn of(reader: &Reader<Cursor<&[u8]>>, order: &Order<'_>) -> Result<Self, Failure> {
        let info = reader.info();
        let depth = info.bit_depth as u8;
        let native = match info.color_type {
            ColorType::Grayscale if info.bit_depth == BitDepth::Sixteen => Native::Deep,
            ColorType::Grayscale => Native::Gray,
            ColorType::GrayscaleAlpha => Native::GrayAlpha,
            ColorType::Rgb => Native::Rgb,
            ColorType::Rgba => Native::Rgba,
            ColorType::Indexed => Native::Index,
        };
        let trns = info.trns.as_deref().unwrap_or(&[]);
        let mut palette = vec![[0, 0, 0, 255]; 256];
        let colours = info.palette.as_deref().unwrap_or(&[]);
        if native == Native::Index {
            for (entry, colour) in palette.iter_mut().zip(colours.chunks_exact(3)) {
                entry[..3].copy_from_slice(colour);
            }
            for (entry, &alpha) in palette.iter_mut().zip(trns) {
                entry[3] = alpha;
            }
        }
        let key = match (native, trns) {
            // The crate keeps the low bytes alone where samples have no more.
            (Native::Gray, &[low, ..]) if depth == 1 => Some([if low == 0 { 0 } else { 255 }; 3]),
            (Native::Gray, &[low, ..]) | (Native::Deep, &[_, low, ..]) => Some([low; 3]),
            (Native::Rgb, &[_, r, _, g, _, b, ..] | &[r, g, b, ..]) => Some([r, g, b]),
            _ => None,
        };
        let alpha = order.wants.alpha && order.probe.has_alpha;
        let kind = match native {
            _ if alpha => Kind::Rgba,
            Native::Deep if order.wants.deep => Kind::Gray16,
            Native::Gray | Native::Deep | Native::GrayAlpha => Kind::Gray,
            Native::Rgb | Native::Rgba | Native::Index => Kind::Rgb,
        };
        Ok(Self { native, depth, kind, palette, key })
    }

    /// A row as the file has it to the form in which frames are composited.
    fn unpack(&self, raw: &[u8], native: &mut [u8]) -> Result<(), Failure> {
        let samples = native.len() / if self.native == Native::Deep { 2 } else { 1 };
        let Some(raw) = raw.get(..(samples * usize::from(self.depth)).div_ceil(8)) else { return broken("short row") };
        match (self.native, self.depth) {
            (Native::Deep, _) => {
                for (out, sample) in native.chunks_exact_mut(2).zip(raw.chunks_exact(2)) {
                    out.copy_from_slice(&u16::from_be_bytes([sample[0], sample[1]]).to_ne_bytes());
                }
            }
            (_, 16) => native.iter_mut().zip(raw.chunks_exact(2)).for_each(|(out, sample)| *out = sample[0]),
            (_, 8) => native.copy_from_slice(raw),
            (form, depth) => {
                let (depth, mask) = (usize::from(depth), (1u16 << depth) - 1);
                let scale = if form == Native::Gray { 255 / mask } else { 1 };
                for (x, out) in native.iter_mut().enumerate() {
                    let bit = x * depth;
                    let value = u16::from(raw[bit / 8] >> (8 - depth - bit % 8)) & mask;
                    *out = (value * scale) as u8;
                }
            }
        }
        Ok(())
    }

    /// Pillow's `paste(image, box, mask)`: all channels alike, alpha included, by the alpha of what is pasted.
    fn paste(&self, from: &[u8], onto: &mut [u8]) {
        let pixel = self.native.bytes();
        for (from, onto) in from.chunks_exact(pixel).zip(onto.chunks_exact_mut(pixel)) {
            let alpha = match self.native {
                Native::GrayAlpha => from[1],
                Native::Rgba => from[3],
                Native::Index => self.palette[usize::from(from[0])][3],
                Native::Rgb if self.key.is_some_and(|key| key == [from[0], from[1], from[2]]) => 0,
                Native::Rgb | Native::Gray | Native::Deep => 255,
            };
            let alpha = u32::from(alpha);
            for (onto, &from) in onto.iter_mut().zip(from) {
                let sum = u32::from(*onto) * (255 - alpha) + u32::from(from) * alpha + 128;
                *onto = (((sum >> 8) + sum) >> 8) as u8;
            }
        }
    }

    /// To what was asked for.
    fn finish(&self, native: &[u8], out: &mut [u8]) {
        let pixels = native.chunks_exact(self.native.bytes()).zip(out.chunks_exact_mut(self.kind.bytes()));
        match (self.native, self.kind) {
            (Native::Gray, Kind::Gray) | (Native::Deep, Kind::Gray16) | (Native::Rgb, Kind::Rgb) | (Native::Rgba, Kind::Rgba) => {
                out.copy_from_slice(native);
            }
            (Native::Index, _) => pixels.for_each(|(p, out)| out.copy_from_slice(&self.palette[usize::from(p[0])][..out.len()])),
            (Native::Deep, Kind::Gray) => pixels.for_each(|(p, out)| out[0] = clip(p)),
            (Native::GrayAlpha, Kind::Gray) => pixels.for_each(|(p, out)| out[0] = p[0]),
            (Native::GrayAlpha, _) => pixels.for_each(|(p, out)| out.copy_from_slice(&[p[0], p[0], p[0], p[1]])),
            (Native::Rgba, _) => pixels.for_each(|(p, out)| out.copy_from_slice(&p[..3])),
            (Native::Gray, _) => pixels.for_each(|(p, out)| out.copy_from_slice(&self.keyed([p[0]; 3]))),
            (Native::Deep, _) => pixels.for_each(|(p, out)| out.copy_from_slice(&self.keyed([clip(p); 3]))),
            (Native::Rgb, _) => pixels.for_each(|(p, out)| out.copy_from_slice(&self.keyed([p[0], p[1], p[2]]))),
        }
    }

    fn keyed(&self, [r, g, b]: [u8; 3]) -> [u8; 4] {
        [r, g, b, if self.key == Some([r, g, b]) { 0 } else { 255 }]
    }
}

/// Pillow's "I;16" to "L".
fn clip(sample: &[u8]) -> u8 {
    u16::from_ne_bytes([sample[0], sample[1]]).min(255) as u8
}

/// Pillow reads on behind the pixels, and refuses a chunk there that is cut; the pixels' own may be.
fn whole_behind(bytes: &[u8]) -> Result<(), Failure> {
    let mut at = 8usize;
    let mut seen = false;
    while let Some(head) = bytes.get(at..at + 8) {
        let length = u32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let name = &head[4..];
        let end = at + 8 + length;
        let data = name == b"IDAT";
        if name == b"IEND" || (seen && (name == b"fcTL" || !name.iter().all(|&b| b.is_ascii_alphanumeric() || b == b'_'))) {
            return Ok(());
        }
        if seen && !data && end > bytes.len() {
            return broken("truncated behind the pixels");
        }
        seen |= data;
        at = end + 4;
    }
    Ok(())
}
