//! AVIF: libavif and dav1d to planes, and from planes to colour with the arithmetic of libyuv, which Pillow's libavif uses and which
//! this one lacks.
//!
//! Only what is known to be equal: 4:2:0, 4:2:2, 4:4:4 and gray, BT.601 and BT.709 (unspecified is the former), both ranges; deeper
//! samples are shifted down first. Turns and mirrors are reported and not applied, as in Pillow.

use std::ffi::CStr;

use libavif_sys::{
    AVIF_RESULT_OK, avifDecoder, avifDecoderCreate, avifDecoderDestroy, avifDecoderNextImage, avifDecoderParse,
    avifDecoderSetIOMemory, avifImage, avifResult, avifResultToString,
};

use super::{Failure, Kind, Order, Sink, broken, unsupported, zeros};

pub(super) fn decode(bytes: &[u8], order: &Order<'_>, room: &mut [u8], sink: Sink<'_>) -> Result<(), Failure> {
    let mut decoder = Frames::of(bytes)?;
    let count = u32::try_from(decoder.count()).unwrap_or(0);
    let kind = if order.probe.channels == 1 && order.colour() == Kind::Rgb { Kind::Gray } else { order.colour() };
    for frame in 0..count.min(order.last() + 1) {
        let image = decoder.next()?;
        if order.is_wanted(frame) {
            let size = order.size(image.width.into(), image.height.into())?;
            Planes::of(image)?.draw(size, kind, room)?;
            order.give(frame, kind, room, sink)?;
        }
    }
    order.ends_within(count)
}

/// libavif's decoder over bytes that it reads as long as it lives.
struct Frames<'a> {
    decoder: *mut avifDecoder,
    _bytes: &'a [u8],
}

impl<'a> Frames<'a> {
    fn of(bytes: &'a [u8]) -> Result<Self, Failure> {
        // SAFETY: takes nothing; gives a decoder or null.
        let decoder = unsafe { avifDecoderCreate() };
        if decoder.is_null() {
            return Err(Failure::OutOfMemory);
        }
        let frames = Self { decoder, _bytes: bytes };
        // SAFETY: the decoder lives, and reads `bytes` until it is destroyed, before which this borrow does not end.
        unsafe {
            // No thread: a worker may start none. Pillow's one strictness, that of alpha's size, stays.
            (*decoder).maxThreads = 1;
            (*decoder).strictFlags = STRICT_ALPHA_ISPE;
            (*decoder).ignoreExif = 1;
            (*decoder).ignoreXMP = 1;
            checked(avifDecoderSetIOMemory(decoder, bytes.as_ptr(), bytes.len()))?;
            checked(avifDecoderParse(decoder))?;
            // Its frames have no time; Pillow refuses it, too.
            if (*decoder).timescale == 0 {
                return Err(Failure::Undecodable("a track without a time scale".into()));
            }
        }
        Ok(frames)
    }

    fn count(&self) -> i32 {
        // SAFETY: the decoder lives.
        unsafe { (*self.decoder).imageCount }
    }

    fn next(&mut self) -> Result<&avifImage, Failure> {
        // SAFETY: the decoder lives, and has an image once a frame is decoded, until the next call, which needs this borrow's end.
        unsafe {
            checked(avifDecoderNextImage(self.decoder))?;
            (*self.decoder).image.as_ref().ok_or(Failure::OutOfMemory)
        }
    }
}

impl Drop for Frames<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `of`, and destroyed once.
        unsafe { avifDecoderDestroy(self.decoder) };
    }
}

fn checked(result: avifResult) -> Result<(), Failure> {
    match result {
        AVIF_RESULT_OK => Ok(()),
        libavif_sys::AVIF_RESULT_OUT_OF_MEMORY => Err(Failure::OutOfMemory),
        // SAFETY: libavif's own constant text.
        result => broken(unsafe { CStr::from_ptr(avifResultToString(result)) }.to_string_lossy()),
    }
}

/// One plane: rows of one or two bytes a sample.
#[derive(Clone, Copy)]
struct Plane<'a> {
    bytes: &'a [u8],
    line: usize,
    /// Bits above eight, of samples of two bytes.
    shift: Option<u32>,
}

impl<'a> Plane<'a> {
    /// SAFETY: `start` and `line` are libavif's for a plane of `height` rows of at least `width` samples of this depth.
    unsafe fn of(start: *const u8, line: u32, (width, height): (usize, usize), depth: u32) -> Result<Self, Failure> {
        let line = line as usize;
        let sample = if depth > 8 { 2 } else { 1 };
        if start.is_null() || line < width * sample || width == 0 || height == 0 {
            return broken("a plane is missing");
        }
        // SAFETY: by this function's own condition.
        let bytes = unsafe { std::slice::from_raw_parts(start, line * (height - 1) + width * sample) };
        Ok(Self { bytes, line, shift: (depth > 8).then(|| depth - 8) })
    }

    fn at(&self, x: usize, y: usize) -> u8 {
        match self.shift {
            None => self.bytes[y * self.line + x],
            Some(shift) => {
                let at = y * self.line + 2 * x;
                // More bits than the depth's would wrap around; libyuv has them end at white.
                (u16::from_ne_bytes([self.bytes[at], self.bytes[at + 1]]) >> shift).min(255) as u8
            }
        }
    }
}

struct Planes<'a> {
    y: Plane<'a>,
    /// Nothing for gray.
    uv: Option<(Plane<'a>, Plane<'a>)>,
    alpha: Option<Plane<'a>>,
    /// Whether two columns, two rows share a chroma sample.
    halved: (bool, bool),
    constants: Constants,
    full_range: bool,
}

/// libyuv's integer constants: luma's scale and offset; what blue takes from U, green from U and V, red from V.
#[derive(Clone, Copy)]
struct Constants {
    yg: u32,
    yb: i32,
    ub: i32,
    ug: i32,
    vg: i32,
    vr: i32,
}

const BT601: Constants = Constants { yg: 18997, yb: -1160, ub: 128, ug: 25, vg: 52, vr: 102 };
const BT601_FULL: Constants = Constants { yg: 16320, yb: 32, ub: 113, ug: 22, vg: 46, vr: 90 };
const BT709: Constants = Constants { yg: 18997, yb: -1160, ub: 128, ug: 14, vg: 34, vr: 115 };
const BT709_FULL: Constants = Constants { yg: 16320, yb: 32, ub: 119, ug: 12, vg: 30, vr: 101 };

impl<'a> Planes<'a> {
    fn of(image: &'a avifImage) -> Result<Self, Failure> {
        if image.alphaPremultiplied != 0 {
            return unsupported("alpha multiplied into the colours".into());
        }
        let halved = match image.yuvFormat {
            libavif_sys::AVIF_PIXEL_FORMAT_YUV444 | libavif_sys::AVIF_PIXEL_FORMAT_YUV400 => (false, false),
            libavif_sys::AVIF_PIXEL_FORMAT_YUV422 => (true, false),
            libavif_sys::AVIF_PIXEL_FORMAT_YUV420 => (true, true),
            format => return unsupported(format!("chroma format {format}")),
        };
        let full_range = image.yuvRange == libavif_sys::AVIF_RANGE_FULL;
        let constants = match (u32::from(image.matrixCoefficients), full_range) {
            (2 | 5 | 6, false) => BT601,
            (2 | 5 | 6, true) => BT601_FULL,
            (1, false) => BT709,
            (1, true) => BT709_FULL,
            (matrix, _) => return unsupported(format!("matrix coefficients {matrix}")),
        };
        let size = (image.width as usize, image.height as usize);
        let half = |side: usize, halved: bool| if halved { side.div_ceil(2) } else { side };
        let chroma = (half(size.0, halved.0), half(size.1, halved.1));
        // SAFETY: libavif's planes of a decoded image, with the sizes that its format gives them; they live as long as the image.
        let plane = |n: usize, size| unsafe { Plane::of(image.yuvPlanes[n], image.yuvRowBytes[n], size, image.depth) };
        let gray = image.yuvFormat == libavif_sys::AVIF_PIXEL_FORMAT_YUV400;
        // Rounded otherwise there than without alpha.
        if gray && !full_range && !image.alphaPlane.is_null() {
            return unsupported("gray of limited range with alpha".into());
        }
        let uv = if gray { None } else { Some((plane(1, chroma)?, plane(2, chroma)?)) };
        let alpha = match image.alphaPlane.is_null() {
            true => None,
            // SAFETY: as above.
            false => Some(unsafe { Plane::of(image.alphaPlane, image.alphaRowBytes, size, image.depth) }?),
        };
        Ok(Self { y: plane(0, size)?, uv, alpha, halved, constants, full_range })
    }

    fn draw(&self, (width, height): (usize, usize), kind: Kind, room: &mut [u8]) -> Result<(), Failure> {
        if kind == Kind::Rgba && self.alpha.is_some_and(|alpha| alpha.shift.is_some()) {
            return unsupported("alpha of more than 8 bits".into());
        }
        let gray = self.uv.is_none();
        if (gray && self.y.shift.is_some()) || (kind == Kind::Gray && !gray) {
            return unsupported("gray of more than 8 bits, or colour under a gray header".into());
        }
        let line = width * kind.bytes();
        let mut chroma: [Vec<u8>; 2] = [zeros(width)?, zeros(width)?];
        for (y, out) in room.chunks_exact_mut(line).take(height).enumerate() {
            if let Some((u, v)) = &self.uv {
                self.upsample(u, y, (width, height), &mut chroma[0]);
                self.upsample(v, y, (width, height), &mut chroma[1]);
            }
            for (x, out) in out.chunks_exact_mut(kind.bytes()).enumerate() {
                match self.uv {
                    Some(_) => {
                        let colour = self.constants.colour(self.y.at(x, y), (chroma[0][x], chroma[1][x]));
                        out[..3].copy_from_slice(&colour);
                    }
                    None => {
                        let gray = self.gray(self.y.at(x, y));
                        out.iter_mut().take(3).for_each(|out| *out = gray);
                    }
                }
                if let Some(alpha) = out.get_mut(3) {
                    *alpha = self.alpha.map_or(255, |plane| plane.at(x, y));
                }
            }
        }
        Ok(())
    }

    /// libavif's own arithmetic, which it has for gray alone: rounded by a float's half.
    fn gray(&self, y: u8) -> u8 {
        if self.full_range {
            return y;
        }
        let unit = ((f32::from(y) - 16.0) / 219.0).clamp(0.0, 1.0);
        (0.5 + unit * 255.0) as u8
    }

    /// One row of chroma at full width, as libyuv's bilinear filter has it: nine, three, three and one sixteenth of the four samples
    /// about a pixel; at edges, and for the last column, of those there are.
    fn upsample(&self, plane: &Plane<'_>, y: usize, (width, height): (usize, usize), out: &mut [u8]) {
        let other = |at: usize, side: usize| {
            let last = side.div_ceil(2) - 1;
            (at / 2, if at % 2 == 1 { (at / 2 + 1).min(last) } else { (at / 2).saturating_sub(1) })
        };
        if !self.halved.0 {
            out.iter_mut().enumerate().for_each(|(x, out)| *out = plane.at(x, y));
            return;
        }
        let (near, far) = if self.halved.1 { other(y, height) } else { (y, y) };
        for (x, out) in out.iter_mut().enumerate() {
            let (here, beside) = if x == width - 1 { (x / 2, x / 2) } else { other(x, width) };
            let at = |x: usize, y: usize| u32::from(plane.at(x, y));
            *out = match (near == far, here == beside) {
                (true, _) => (3 * at(here, near) + at(beside, near) + 2) >> 2,
                (_, true) => (3 * at(here, near) + at(here, far) + 2) >> 2,
                _ => (9 * at(here, near) + 3 * at(beside, near) + 3 * at(here, far) + at(beside, far) + 8) >> 4,
            } as u8;
        }
    }
}

impl Constants {
    fn colour(&self, y: u8, (u, v): (u8, u8)) -> [u8; 3] {
        let y = ((u32::from(y) * 0x0101 * self.yg) >> 16) as i32 + self.yb;
        let (u, v) = (i32::from(u) - 128, i32::from(v) - 128);
        [y + v * self.vr, y - (u * self.ug + v * self.vg), y + u * self.ub].map(|c| (c >> 6).clamp(0, 255) as u8)
    }
}

/// `AVIF_STRICT_ALPHA_ISPE_REQUIRED`.
const STRICT_ALPHA_ISPE: u32 = 4;
