//! A decoded picture, as the decoder lends it.

use std::ffi::CStr;
use std::slice;

use ffmpeg_next::ffi;

use super::super::frame::{Frame, Plane, Sampling};
use super::number;

/// How numbers become colours; each by FFmpeg's number, which is that of ITU-T H.273 (2 is unspecified), but for the range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Colours {
    pub(in super::super) matrix: i32,
    /// 0 unspecified, 1 limited, 2 full.
    pub(in super::super) range: i32,
    pub(in super::super) primaries: i32,
    pub(in super::super) transfer: i32,
    /// 0 unspecified, 1 left, 2 centre, 3 top left, 4 top, 5 bottom left, 6 bottom.
    pub(in super::super) chroma_location: i32,
}

impl Colours {
    /// SAFETY: the parameters live.
    pub(super) unsafe fn of_parameters(p: *const ffi::AVCodecParameters) -> Self {
        // SAFETY: by this function's own condition.
        unsafe {
            Self {
                matrix: number(&raw const (*p).color_space),
                range: number(&raw const (*p).color_range),
                primaries: number(&raw const (*p).color_primaries),
                transfer: number(&raw const (*p).color_trc),
                chroma_location: number(&raw const (*p).chroma_location),
            }
        }
    }
}

/// A picture, until the decoder is asked for the next.
#[derive(Clone, Copy)]
pub(in super::super) struct Picture<'a>(pub(super) &'a ffi::AVFrame);

impl std::fmt::Debug for Picture<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Picture of {:?}", self.size())
    }
}

impl<'a> Picture<'a> {
    /// The tag of the packet that it came from.
    pub(in super::super) fn tag(&self) -> Option<u32> {
        u32::try_from(self.0.pts).ok()
    }

    /// Whether the decoder says that it is not what was encoded.
    pub(in super::super) fn is_damaged(&self) -> bool {
        self.0.decode_error_flags != 0
    }

    pub(in super::super) fn size(&self) -> (u32, u32) {
        (u32::try_from(self.0.width).unwrap_or(0), u32::try_from(self.0.height).unwrap_or(0))
    }

    pub(in super::super) fn format(&self) -> i32 {
        self.0.format
    }

    pub(in super::super) fn colours(&self) -> Colours {
        // SAFETY: fields of a live frame.
        unsafe {
            Colours {
                matrix: number(&raw const self.0.colorspace),
                range: number(&raw const self.0.color_range),
                primaries: number(&raw const self.0.color_primaries),
                transfer: number(&raw const self.0.color_trc),
                chroma_location: number(&raw const self.0.chroma_location),
            }
        }
    }

    /// Its planes; or the name of its format, where that is not one of ours.
    pub(in super::super) fn frame(&self) -> Result<Frame<'a>, String> {
        let name = format_name(self.0.format);
        let Some(sampling) = Sampling::of(&name) else { return Err(name) };
        let (width, height) = self.size();
        let mut planes = Vec::with_capacity(4);
        for index in 0..sampling.planes() {
            let (columns, rows) = sampling.plane_size(index, width as usize, height as usize);
            let row_bytes = columns * sampling.sample_bytes();
            let line = self.0.linesize[index] as isize;
            let start = self.0.data[index];
            if start.is_null() || line.unsigned_abs() < row_bytes || rows == 0 || row_bytes == 0 {
                return Err(format!("{name} without its planes"));
            }
            // Some decoders write from the bottom up.
            let whole = line.unsigned_abs() * (rows - 1) + row_bytes;
            // SAFETY: FFmpeg allocates `rows` lines, `line` bytes apart, of at least `row_bytes` each, and lends them until the frame
            // is given back, which needs the end of this picture's borrow.
            let bytes = unsafe {
                let first = if line < 0 { start.offset(line * (rows as isize - 1)) } else { start };
                slice::from_raw_parts(first, whole)
            };
            planes.push(Plane { bytes, line: line.unsigned_abs(), columns, rows, is_upside_down: line < 0 });
        }
        let Colours { matrix, range, .. } = self.colours();
        let is_full = range == ffi::AVColorRange::AVCOL_RANGE_JPEG as i32 || name.starts_with("yuvj");
        Ok(Frame { width, height, sampling, matrix, is_full, planes, picture: *self })
    }
}

/// FFmpeg's name of a pixel format.
pub(in super::super) fn format_name(format: i32) -> String {
    if !(0..ffi::AVPixelFormat::AV_PIX_FMT_NB as i32).contains(&format) {
        return "none".into();
    }
    // SAFETY: within the library's own enum, which the bindings were made from; the text is constant, or null.
    unsafe {
        let name = ffi::av_get_pix_fmt_name(std::mem::transmute::<i32, ffi::AVPixelFormat>(format));
        if name.is_null() { "none".into() } else { CStr::from_ptr(name).to_string_lossy().into_owned() }
    }
}
