//! Clips for the tests: FFmpeg's own encoders and muxers, into memory.

use std::ffi::{CString, c_int};
use std::{ptr, slice};

use ffmpeg_next::ffi;

/// What to make.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Recipe {
    /// The muxer's name.
    pub(in super::super) container: &'static str,
    /// The encoder's name.
    pub(in super::super) codec: &'static str,
    pub(in super::super) frames: i64,
    pub(in super::super) size: (i32, i32),
    pub(in super::super) b_frames: i32,
    pub(in super::super) options: &'static [(&'static str, &'static str)],
}

pub(in super::super) const MP4: Recipe =
    Recipe { container: "mp4", codec: "mpeg4", frames: 50, size: (96, 64), b_frames: 2, options: &[] };

fn checked(answer: c_int) -> c_int {
    assert!(answer >= 0, "{}", super::AvError(answer));
    answer
}

/// The clip; nothing where this FFmpeg lacks the encoder or the muxer.
pub(in super::super) fn encode(recipe: &Recipe) -> Option<Vec<u8>> {
    super::warm_up();
    let name = |name: &str| CString::new(name).expect("no zero");
    // SAFETY: FFmpeg's encoding API as its documentation uses it: each pointer comes from the call that allocates it, is checked, and
    // is freed once at the end. A failure ends the test, and leaks.
    unsafe {
        let codec = ffi::avcodec_find_encoder_by_name(name(recipe.codec).as_ptr());
        let mut muxer = ptr::null_mut();
        let container = name(recipe.container);
        let answer = ffi::avformat_alloc_output_context2(&raw mut muxer, ptr::null(), container.as_ptr(), ptr::null());
        if codec.is_null() || answer < 0 {
            return None;
        }
        let mut encoder = ffi::avcodec_alloc_context3(codec);
        ((*encoder).width, (*encoder).height) = recipe.size;
        (*encoder).time_base = ffi::AVRational { num: 1, den: 25 };
        (*encoder).framerate = ffi::AVRational { num: 25, den: 1 };
        let full = recipe.codec == "mjpeg";
        let format = if full { ffi::AVPixelFormat::AV_PIX_FMT_YUVJ420P } else { ffi::AVPixelFormat::AV_PIX_FMT_YUV420P };
        (*encoder).pix_fmt = format;
        (*encoder).gop_size = 10;
        (*encoder).max_b_frames = recipe.b_frames;
        (*encoder).bit_rate = 400_000;
        (*encoder).flags |= ffi::AV_CODEC_FLAG_BITEXACT as c_int;
        if (*(*muxer).oformat).flags & ffi::AVFMT_GLOBALHEADER != 0 {
            (*encoder).flags |= ffi::AV_CODEC_FLAG_GLOBAL_HEADER as c_int;
        }
        checked(ffi::avcodec_open2(encoder, codec, ptr::null_mut()));
        let stream = ffi::avformat_new_stream(muxer, ptr::null());
        checked(ffi::avcodec_parameters_from_context((*stream).codecpar, encoder));
        (*stream).time_base = (*encoder).time_base;
        (*stream).avg_frame_rate = (*encoder).framerate;
        checked(ffi::avio_open_dyn_buf(&raw mut (*muxer).pb));
        (*muxer).flags |= ffi::AVFMT_FLAG_BITEXACT;
        let mut options = super::Options::new(recipe.options.iter().map(|&(name, value)| (name, value.to_owned())));
        checked(ffi::avformat_write_header(muxer, &raw mut options.0));
        let (mut frame, mut packet) = (ffi::av_frame_alloc(), ffi::av_packet_alloc());
        ((*frame).width, (*frame).height) = recipe.size;
        (*frame).format = format as c_int;
        checked(ffi::av_frame_get_buffer(frame, 0));
        for number in 0..=recipe.frames {
            if number < recipe.frames {
                checked(ffi::av_frame_make_writable(frame));
                draw(&mut *frame, number);
                (*frame).pts = number;
            }
            let input = if number < recipe.frames { frame } else { ptr::null_mut() };
            checked(ffi::avcodec_send_frame(encoder, input));
            while ffi::avcodec_receive_packet(encoder, packet) >= 0 {
                ffi::av_packet_rescale_ts(packet, (*encoder).time_base, (*stream).time_base);
                (*packet).stream_index = 0;
                checked(ffi::av_interleaved_write_frame(muxer, packet));
            }
        }
        checked(ffi::av_write_trailer(muxer));
        let mut bytes = ptr::null_mut();
        let length = ffi::avio_close_dyn_buf((*muxer).pb, &raw mut bytes);
        let clip = slice::from_raw_parts(bytes, length as usize).to_vec();
        ffi::av_free(bytes.cast());
        ffi::av_frame_free(&raw mut frame);
        ffi::av_packet_free(&raw mut packet);
        ffi::avcodec_free_context(&raw mut encoder);
        ffi::avformat_free_context(muxer);
        Some(clip)
    }
}

/// A pattern that moves, so that no two frames are equal.
///
/// SAFETY: the frame has writable planes of 4:2:0.
unsafe fn draw(frame: &mut ffi::AVFrame, number: i64) {
    for plane in 0..3 {
        let half = usize::from(plane > 0);
        let (width, height) = (frame.width as usize >> half, frame.height as usize >> half);
        for row in 0..height {
            // SAFETY: by this function's own condition.
            let line = unsafe { slice::from_raw_parts_mut(frame.data[plane].add(row * frame.linesize[plane] as usize), width) };
            for (column, sample) in line.iter_mut().enumerate() {
                let (x, y) = (column + 3 * number as usize, row + plane * 40 + number as usize);
                *sample = ((x * x / 7 + y * 5) % 200 + 20) as u8;
            }
        }
    }
}
