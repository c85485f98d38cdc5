//! FFmpeg's own conversion to RGB: what its program does where nothing is said (`-pix_fmt rgb24`, bicubic; libavfilter's `scale`).

use std::ffi::c_int;
use std::ptr;

use ffmpeg_next::ffi;
use framecache::spec::SWSCALE_MAJOR;

use super::AvError;
use super::picture::{Colours, Picture};

/// Draws the picture at its own size into `out`, three bytes a pixel, rows without padding.
///
/// # Errors
/// Another library than the profile is of, or a format that it does not read.
pub(in super::super) fn rgb24(picture: Picture<'_>, out: &mut [u8]) -> Result<(), String> {
    // SAFETY: gives a number.
    let major = unsafe { ffi::swscale_version() } >> 16;
    if major != SWSCALE_MAJOR {
        return Err(format!("profile=swscale is libswscale {SWSCALE_MAJOR}'s, and here is {major}"));
    }
    let frame = picture.0;
    let row_bytes = 3 * frame.width as usize;
    let drawn = Drawn::of(picture).map_err(|error| format!("swscale: {error}"))?;
    for (row, out) in out.chunks_exact_mut(row_bytes).enumerate() {
        // SAFETY: as many rows as the frame is high, `linesize` bytes apart, of three bytes for each column.
        let drawn =
            unsafe { std::slice::from_raw_parts((*drawn.0).data[0].add(row * (*drawn.0).linesize[0] as usize), row_bytes) };
        out.copy_from_slice(drawn);
    }
    Ok(())
}

/// A frame of RGB, in memory of the library's own alignment and padding: its kernels write past a row's end.
struct Drawn(*mut ffi::AVFrame);

impl Drawn {
    fn of(picture: Picture<'_>) -> Result<Self, AvError> {
        let from = picture.0;
        // SAFETY: a new frame, or null; freed when this is dropped.
        let to = Self(unsafe { ffi::av_frame_alloc() });
        if to.0.is_null() {
            return Err(AvError::NO_MEMORY);
        }
        let scaler = Scaler::of(picture)?;
        // SAFETY: both frames live, of the size and the formats that the scaler was made for.
        unsafe {
            (*to.0).format = ffi::AVPixelFormat::AV_PIX_FMT_RGB24 as c_int;
            ((*to.0).width, (*to.0).height) = (from.width, from.height);
            AvError::of(ffi::av_frame_get_buffer(to.0, 0))?;
            let source: [*const u8; 8] = from.data.map(|plane| plane.cast_const());
            let rows = ffi::sws_scale(
                scaler.0,
                source.as_ptr(),
                from.linesize.as_ptr(),
                0,
                from.height,
                (&raw const (*to.0).data).cast(),
                (&raw const (*to.0).linesize).cast(),
            );
            AvError::of(rows)?;
        }
        Ok(to)
    }
}

impl Drop for Drawn {
    fn drop(&mut self) {
        // SAFETY: its own, freed once.
        unsafe { ffi::av_frame_free(&raw mut self.0) };
    }
}

/// A conversion at one size.
struct Scaler(*mut ffi::SwsContext);

impl Scaler {
    fn of(picture: Picture<'_>) -> Result<Self, AvError> {
        let from = picture.0;
        let Colours { matrix, range, .. } = picture.colours();
        // SAFETY: the format is one of the library's own enum, as the decoder said it; the tables are the library's constants, and what
        // is asked for is written to variables that live.
        unsafe {
            let format = std::mem::transmute::<c_int, ffi::AVPixelFormat>(from.format);
            let rgb = ffi::AVPixelFormat::AV_PIX_FMT_RGB24;
            let (width, height) = (from.width, from.height);
            let (none, flags) = (ptr::null_mut(), ffi::SWS_BICUBIC as c_int);
            let scaler = Self(ffi::sws_getContext(width, height, format, width, height, rgb, flags, none, none, ptr::null()));
            if scaler.0.is_null() {
                return Err(AvError::INVALID);
            }
            let (mut from_table, mut to_table) = (ptr::null_mut(), ptr::null_mut());
            let (mut from_full, mut to_full, mut brightness, mut contrast, mut saturation) = (0, 0, 0, 0, 0);
            ffi::sws_getColorspaceDetails(
                scaler.0,
                &raw mut from_table,
                &raw mut from_full,
                &raw mut to_table,
                &raw mut to_full,
                &raw mut brightness,
                &raw mut contrast,
                &raw mut saturation,
            );
            let table = ffi::sws_getCoefficients(if matches!(matrix, 1..=7 | 9..=10) { matrix } else { BT601 });
            let full = match range {
                0 => from_full,
                range => c_int::from(range == ffi::AVColorRange::AVCOL_RANGE_JPEG as c_int),
            };
            // What has no matrix says that there is none to be set.
            ffi::sws_setColorspaceDetails(scaler.0, table, full, table, to_full, brightness, contrast, saturation);
            Ok(scaler)
        }
    }
}

impl Drop for Scaler {
    fn drop(&mut self) {
        // SAFETY: its own, freed once.
        unsafe { ffi::sws_freeContext(self.0) };
    }
}

/// `AVCOL_SPC_BT470BG`, which the filter takes for what it does not know.
const BT601: c_int = 5;
