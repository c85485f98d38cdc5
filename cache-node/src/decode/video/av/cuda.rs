//! FFmpeg's way to an NVIDIA device: the decoder parses, the device draws, and the pictures that are wanted come down into planes.

use std::ffi::c_int;
use std::{ptr, slice};

use ffmpeg_next::ffi;

use super::super::frame::{Kind, Sampling};
use super::{AvError, format_name, number};
use crate::decode::gpu::planes::{self, Depth, Rows, RowsMut};

/// The device's context, which is that of its other users in this process.
pub(in super::super) struct Device(*mut ffi::AVBufferRef);

/// Where a decoder's pictures come down.
pub(super) struct Landing {
    /// Tags of the packets whose pictures are wanted.
    wanted: Vec<u32>,
    refused: Option<&'static str>,
    /// As the device has it.
    surface: *mut ffi::AVFrame,
    /// As everybody else does.
    planar: *mut ffi::AVFrame,
}

/// FFmpeg shall use the context that nvJPEG has, too.
const PRIMARY_CONTEXT: c_int = 1;

impl Device {
    /// The first one; or in words why there is none.
    pub(in super::super) fn open() -> Result<Self, String> {
        let mut device = ptr::null_mut();
        let kind = ffi::AVHWDeviceType::AV_HWDEVICE_TYPE_CUDA;
        // SAFETY: allocates, or leaves null.
        let made = unsafe { ffi::av_hwdevice_ctx_create(&raw mut device, kind, ptr::null(), ptr::null_mut(), PRIMARY_CONTEXT) };
        match AvError::of(made) {
            Ok(_) => Ok(Self(device)),
            Err(error) => Err(format!("FFmpeg has no CUDA device: {error}")),
        }
    }

    /// Has `context`, which is not open yet, draw on this device. Nothing where memory is short.
    ///
    /// SAFETY: the context lives, and is freed before the landing is.
    pub(super) unsafe fn land(&self, context: *mut ffi::AVCodecContext) -> Option<Box<Landing>> {
        // SAFETY: they allocate, or give null.
        let (surface, planar) = unsafe { (ffi::av_frame_alloc(), ffi::av_frame_alloc()) };
        let mut landing = Box::new(Landing { wanted: Vec::new(), refused: None, surface, planar });
        // SAFETY: by this function's own condition; the landing is boxed, so that its address stays.
        unsafe {
            (*context).hw_device_ctx = ffi::av_buffer_ref(self.0);
            (*context).get_format = Some(choose);
            (*context).opaque = (&raw mut *landing).cast();
            let lacks = [surface.is_null(), planar.is_null(), (*context).hw_device_ctx.is_null()];
            (!lacks.contains(&true)).then_some(landing)
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: gives up this reference; contexts hold their own.
        unsafe { ffi::av_buffer_unref(&raw mut self.0) };
    }
}

/// The device's format, or none: what the device does not decode is not decoded here by the CPU in its stead.
///
/// SAFETY: called by FFmpeg with a live context of ours and a list that ends with -1.
unsafe extern "C" fn choose(context: *mut ffi::AVCodecContext, mut formats: *const ffi::AVPixelFormat) -> ffi::AVPixelFormat {
    // SAFETY: by this function's own condition.
    unsafe {
        loop {
            match number(formats) {
                -1 => break,
                format if format == ffi::AVPixelFormat::AV_PIX_FMT_CUDA as i32 => return ffi::AVPixelFormat::AV_PIX_FMT_CUDA,
                _ => formats = formats.add(1),
            }
        }
        let landing: *mut Landing = (*context).opaque.cast();
        (*landing).refused = Some("the device does not decode this profile or size");
    }
    ffi::AVPixelFormat::AV_PIX_FMT_NONE
}

impl Landing {
    pub(super) fn want(&mut self, tags: impl IntoIterator<Item = u32>) {
        self.wanted.clear();
        self.wanted.extend(tags);
        self.refused = None;
    }

    pub(super) fn refused(&self) -> Option<&'static str> {
        self.refused
    }

    /// Brings a picture down; nothing of one that nobody wants.
    ///
    /// SAFETY: both live, and `frame` is what the context's decoder gave last. What is given lives until this is called again.
    pub(super) unsafe fn bring(
        &mut self,
        context: *mut ffi::AVCodecContext,
        frame: *mut ffi::AVFrame,
    ) -> Result<Option<*const ffi::AVFrame>, AvError> {
        // SAFETY: by this function's own condition.
        let (frame, context) = unsafe { (&mut *frame, &*context) };
        // Of a picture without a tag nobody knows what it is; the decoder's word on damage is in its packets' answers then.
        if !u32::try_from(frame.pts).is_ok_and(|tag| self.wanted.contains(&tag)) {
            return Ok(None);
        }
        let refuse = |landing: &mut Self, why| {
            landing.refused = Some(why);
            Err(AvError::NOT_THERE)
        };
        if frame.format != ffi::AVPixelFormat::AV_PIX_FMT_CUDA as i32 {
            return refuse(self, "the picture is not the device's");
        }
        // The library takes such a part away at the right and below alone, where pictures are a device's.
        if frame.crop_left != 0 || frame.crop_top != 0 {
            return refuse(self, "the picture is cut at the left or above");
        }
        if context.properties & ffi::FF_CODEC_PROPERTY_FILM_GRAIN as u32 != 0 {
            return refuse(self, "film grain is drawn otherwise by each decoder");
        }
        let Ok(size) = self.fetch(frame)? else { return refuse(self, "a surface of an unknown form") };
        // SAFETY: a field of a live context. What the CPU would decode into.
        let format = unsafe { number(&raw const context.sw_pix_fmt) };
        match self.unpack(frame, format, size)? {
            Some(()) => Ok(Some(self.planar)),
            None => refuse(self, "planes that do not fit the stream's format"),
        }
    }

    /// Copies a surface down, as it is. Gives the picture's width and height.
    fn fetch(&mut self, frame: &mut ffi::AVFrame) -> Result<Result<(usize, usize), ()>, AvError> {
        let (width, height) = (frame.width, frame.height);
        let (Ok(wide), Ok(high)) = (usize::try_from(width), usize::try_from(height)) else { return Ok(Err(())) };
        // Surfaces are even. Of an odd picture the library copies a row of chroma too few, half as many as of luma rounded down; and of a
        // codec whose coded height is odd it takes chroma to begin a row before it does.
        let (chroma, line) = (frame.data[1], usize::try_from(frame.linesize[0]).unwrap_or(0));
        (frame.width, frame.height) = (even(width), even(height));
        if frame.data[2].is_null() && is_odd_gap(frame.data[0] as usize, chroma as usize, line) {
            frame.data[1] = chroma.wrapping_add(line);
        }
        // SAFETY: both live; the surface is emptied, then allocated by the call, as large as the device's own.
        let fetched = unsafe {
            ffi::av_frame_unref(self.surface);
            ffi::av_hwframe_transfer_data(self.surface, frame, 0)
        };
        (frame.width, frame.height, frame.data[1]) = (width, height, chroma);
        AvError::of(fetched).map(|_| Ok((wide, high)))
    }

    /// Takes the surface apart into planes of `format`. Nothing where they do not belong together.
    fn unpack(&mut self, frame: &ffi::AVFrame, format: i32, (width, height): (usize, usize)) -> Result<Option<()>, AvError> {
        let Some(sampling) = Sampling::of(&format_name(format)) else { return Ok(None) };
        let (Kind::Yuv { across, down }, 3) = (sampling.kind, sampling.planes()) else { return Ok(None) };
        let Some(depth) = Depth::of(sampling.bits) else { return Ok(None) };
        // SAFETY: our own frame, emptied and allocated anew; the picture's facts are copied from the one that it comes from.
        unsafe {
            ffi::av_frame_unref(self.planar);
            (*self.planar).format = format;
            ((*self.planar).width, (*self.planar).height) = (frame.width, frame.height);
            AvError::of(ffi::av_frame_get_buffer(self.planar, 0))?;
            AvError::of(ffi::av_frame_copy_props(self.planar, frame))?;
        }
        // SAFETY: both live, and nobody else has the planar one.
        let (surface, planar) = unsafe { (&*self.surface, &mut *self.planar) };
        let is_paired = match format_name(surface.format).as_str() {
            "nv12" => (across, down, depth) == (2, 2, Depth::Byte),
            "p010le" | "p016le" => (across, down) == (2, 2) && depth != Depth::Byte,
            "yuv444p" if (across, down, depth) == (1, 1, Depth::Byte) => false,
            "yuv444p16le" if (across, down) == (1, 1) && depth != Depth::Byte => false,
            _ => return Ok(None),
        };
        if (surface.width as usize) < width || (surface.height as usize) < height {
            return Ok(None);
        }
        let size = |plane| sampling.plane_size(plane, width, height);
        // SAFETY: of a surface of even sides, each plane has the rows that its format gives it; the planar frame has its own.
        let [luma, blue, red] = unsafe { [0, 1, 2].map(|plane| rows_mut(planar, plane, size(plane).1)) };
        let (Some(mut luma), Some(mut blue), Some(mut red)) = (luma, blue, red) else { return Ok(None) };
        // SAFETY: likewise.
        let from = |plane| unsafe { rows(surface, plane, size(plane).1) };
        let mut unpacked = || {
            planes::plane(from(0)?, &mut luma, size(0), depth)?;
            match is_paired {
                true => planes::pairs(from(1)?, [&mut blue, &mut red], size(1), depth),
                false => {
                    planes::plane(from(1)?, &mut blue, size(1), depth)?;
                    planes::plane(from(2)?, &mut red, size(2), depth)
                }
            }
        };
        Ok(unpacked())
    }
}

/// Of the sides of surfaces.
fn even(side: c_int) -> c_int {
    side.saturating_add(side & 1)
}

/// Whether an odd number of lines lies between two planes of the device; as addresses, which are not this side's to look behind.
fn is_odd_gap(luma: usize, chroma: usize, line: usize) -> bool {
    let gap = chroma.wrapping_sub(luma);
    line > 0 && gap.is_multiple_of(line) && gap / line % 2 == 1
}

/// SAFETY: the plane has `rows` rows.
unsafe fn rows(frame: &ffi::AVFrame, plane: usize, rows: usize) -> Option<Rows<'_>> {
    let (start, line) = (frame.data[plane], usize::try_from(frame.linesize[plane]).ok().filter(|&line| line > 0)?);
    // SAFETY: by this function's own condition.
    (!start.is_null()).then(|| Rows { bytes: unsafe { slice::from_raw_parts(start, line * rows) }, line })
}

/// SAFETY: the plane has `rows` rows, and nobody else has them.
unsafe fn rows_mut<'a>(frame: &mut ffi::AVFrame, plane: usize, rows: usize) -> Option<RowsMut<'a>> {
    let (start, line) = (frame.data[plane], usize::try_from(frame.linesize[plane]).ok().filter(|&line| line > 0)?);
    // SAFETY: by this function's own condition.
    (!start.is_null()).then(|| RowsMut { bytes: unsafe { slice::from_raw_parts_mut(start, line * rows) }, line })
}

impl Drop for Landing {
    fn drop(&mut self) {
        // SAFETY: each is freed once, or null.
        unsafe {
            ffi::av_frame_free(&raw mut self.surface);
            ffi::av_frame_free(&raw mut self.planar);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A landing whose surface holds samples that count up, as a device would have left it.
    fn landed(surface: ffi::AVPixelFormat, (width, height): (i32, i32)) -> Landing {
        // SAFETY: plain allocations, filled within their lines.
        unsafe {
            let landing =
                Landing { wanted: Vec::new(), refused: None, surface: ffi::av_frame_alloc(), planar: ffi::av_frame_alloc() };
            let frame = &mut *landing.surface;
            frame.format = surface as i32;
            (frame.width, frame.height) = (even(width), even(height));
            assert_eq!(ffi::av_frame_get_buffer(frame, 0), 0);
            let halved = [ffi::AVPixelFormat::AV_PIX_FMT_NV12, ffi::AVPixelFormat::AV_PIX_FMT_P010LE].contains(&surface);
            for plane in (0..if halved { 2 } else { 3 }).filter(|&plane| !frame.data[plane].is_null()) {
                let rows = frame.height as usize >> usize::from(halved && plane > 0);
                let bytes = slice::from_raw_parts_mut(frame.data[plane], rows * frame.linesize[plane] as usize);
                bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 31 + plane * 7) as u8);
            }
            landing
        }
    }

    fn like(width: i32, height: i32, pts: i64) -> ffi::AVFrame {
        // SAFETY: zeros are a frame without anything; FFmpeg's enums have a zero.
        let mut frame: ffi::AVFrame = unsafe { std::mem::zeroed() };
        (frame.width, frame.height, frame.pts) = (width, height, pts);
        frame
    }

    /// Promise: surfaces of each form become the frame that the CPU's decoder would lend, of odd sizes too; forms that do not belong to the
    /// stream's format become none.
    #[test]
    fn surfaces_become_frames() {
        use ffi::AVPixelFormat::*;
        for (surface, planar, fits) in [
            (AV_PIX_FMT_NV12, AV_PIX_FMT_YUV420P, true),
            (AV_PIX_FMT_NV12, AV_PIX_FMT_YUVJ420P, true),
            (AV_PIX_FMT_P010LE, AV_PIX_FMT_YUV420P10LE, true),
            (AV_PIX_FMT_YUV444P, AV_PIX_FMT_YUV444P, true),
            (AV_PIX_FMT_YUV444P16LE, AV_PIX_FMT_YUV444P10LE, true),
            (AV_PIX_FMT_NV12, AV_PIX_FMT_YUV420P10LE, false),
            (AV_PIX_FMT_P010LE, AV_PIX_FMT_YUV420P, false),
            (AV_PIX_FMT_NV12, AV_PIX_FMT_YUV444P, false),
            (AV_PIX_FMT_NV12, AV_PIX_FMT_GRAY8, false),
            (AV_PIX_FMT_NV12, AV_PIX_FMT_YUVA420P, false),
            (AV_PIX_FMT_RGB24, AV_PIX_FMT_YUV420P, false),
        ] {
            for (width, height) in [(64, 48), (63, 47), (1, 1), (33, 2)] {
                let mut landing = landed(surface, (width, height));
                let like = like(width, height, 5);
                let made = landing.unpack(&like, planar as i32, (width as usize, height as usize)).expect("memory");
                assert_eq!(made.is_some(), fits, "{surface:?} to {planar:?}");
                if !fits {
                    continue;
                }
                // SAFETY: live until the landing goes.
                let picture = super::super::Picture(unsafe { &*landing.planar });
                let frame = picture.frame().expect("planes");
                assert_eq!((picture.tag(), frame.width as i32, frame.height as i32), (Some(5), width, height));
                // SAFETY: likewise; the last sample of the second chroma plane, as the surface has it.
                let surface = unsafe { &*landing.surface };
                let (columns, rows) = frame.sampling.plane_size(2, width as usize, height as usize);
                let (bytes, bits) = (frame.sampling.sample_bytes(), frame.bits());
                let at = match frame.subsampling() {
                    Some((2, 2)) => (1, (2 * columns - 1) * bytes),
                    _ => (2, (columns - 1) * bytes),
                };
                // SAFETY: within the plane.
                let row = unsafe { surface.data[at.0].add((rows - 1) * surface.linesize[at.0] as usize + at.1) };
                // SAFETY: as many bytes as a sample has.
                let want = match unsafe { slice::from_raw_parts(row, bytes) } {
                    &[one] => vec![one],
                    pair => (u16::from_le_bytes([pair[0], pair[1]]) >> (16 - bits)).to_le_bytes().to_vec(),
                };
                let plane = &frame.planes[2];
                assert_eq!(plane.row(rows - 1)[(columns - 1) * bytes..columns * bytes], want, "{width}x{height}");
            }
        }
    }

    /// Promise: chroma is looked for behind an even number of lines.
    #[test]
    fn gaps_are_even() {
        let gap = |lines: usize| is_odd_gap(0x7000_0000, 0x7000_0000 + 512 * lines, 512);
        assert_eq!([gap(143), gap(144), gap(1)], [true, false, true]);
        assert!(!is_odd_gap(0, 100, 0) && !is_odd_gap(0, 700, 512) && !is_odd_gap(512, 0, 0));
    }

    /// Promise: where there is no device, that is said in words.
    #[test]
    fn no_device_is_said() {
        super::super::warm_up();
        if let Err(why) = Device::open() {
            assert!(why.starts_with("FFmpeg has no CUDA device: "), "{why}");
        }
    }
}
