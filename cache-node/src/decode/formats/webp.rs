//! WebP by libwebp's animation decoder, for stills too, as Pillow does: its still decoder is laxer on damaged files.

use std::ptr;

use libwebp_sys::{
    WEBP_CSP_MODE, WebPAnimDecoder, WebPAnimDecoderDelete, WebPAnimDecoderGetInfo, WebPAnimDecoderGetNext, WebPAnimDecoderNew,
    WebPAnimDecoderOptions, WebPAnimDecoderOptionsInit, WebPAnimInfo, WebPData,
};

use super::{Failure, Kind, Order, Sink, broken};

pub(super) fn decode(bytes: &[u8], order: &Order<'_>, room: &mut [u8], sink: Sink<'_>) -> Result<(), Failure> {
    let Some(mut decoder) = Frames::of(bytes) else { return broken("no sound webp stream") };
    let size = decoder.info();
    order.size(size.canvas_width.into(), size.canvas_height.into())?;
    let kind = order.colour();
    for frame in 0..size.frame_count.min(order.last() + 1) {
        let Some(canvas) = decoder.next(&size) else { return broken(format!("frame {frame} is broken")) };
        if !order.is_wanted(frame) {
            continue;
        }
        match kind {
            Kind::Rgba => room[..canvas.len()].copy_from_slice(canvas),
            _ => {
                for (pixel, out) in canvas.chunks_exact(4).zip(room.chunks_exact_mut(3)) {
                    out.copy_from_slice(&pixel[..3]);
                }
            }
        }
        order.give(frame, kind, room, sink)?;
    }
    order.ends_within(size.frame_count)
}

/// libwebp's decoder over bytes that it reads as long as it lives.
struct Frames<'a> {
    decoder: *mut WebPAnimDecoder,
    _bytes: &'a [u8],
}

impl<'a> Frames<'a> {
    fn of(bytes: &'a [u8]) -> Option<Self> {
        // SAFETY: plain data of numbers and enums, for which zero is valid; the call below fills it.
        let mut options: WebPAnimDecoderOptions = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is to a live value of the right type.
        if unsafe { WebPAnimDecoderOptionsInit(&raw mut options) } == 0 {
            return None;
        }
        options.color_mode = WEBP_CSP_MODE::MODE_RGBA;
        options.use_threads = 0;
        let data = WebPData { bytes: bytes.as_ptr(), size: bytes.len() };
        // SAFETY: reads `bytes` now and until it is deleted; the borrow in this struct outlives that.
        let decoder = unsafe { WebPAnimDecoderNew(&raw const data, &raw const options) };
        (!decoder.is_null()).then_some(Self { decoder, _bytes: bytes })
    }

    fn info(&self) -> WebPAnimInfo {
        // SAFETY: plain numbers, for which zero is valid.
        let mut info: WebPAnimInfo = unsafe { std::mem::zeroed() };
        // SAFETY: the decoder lives.
        unsafe { WebPAnimDecoderGetInfo(self.decoder, &raw mut info) };
        info
    }

    /// The next frame, composited: four bytes a pixel.
    fn next(&mut self, info: &WebPAnimInfo) -> Option<&[u8]> {
        let (mut canvas, mut timestamp) = (ptr::null_mut(), 0);
        // SAFETY: the decoder lives; both pointers are to live values.
        let got = unsafe { WebPAnimDecoderGetNext(self.decoder, &raw mut canvas, &raw mut timestamp) };
        if got == 0 || canvas.is_null() {
            return None;
        }
        let bytes = info.canvas_width as usize * info.canvas_height as usize * 4;
        // SAFETY: libwebp's canvas, of the size it told, unchanged until the next call, which needs this borrow's end.
        Some(unsafe { std::slice::from_raw_parts(canvas, bytes) })
    }
}

impl Drop for Frames<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `of`, and deleted once.
        unsafe { WebPAnimDecoderDelete(self.decoder) };
    }
}
