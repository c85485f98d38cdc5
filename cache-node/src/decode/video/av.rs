//! FFmpeg in safe words: a demuxer over our own input, and a decoder of packets. All unsafe code of this room is in here.
//!
//! FFmpeg opens nothing by itself here: the one input is our own, every further file that a container names is refused, and only
//! listed formats and codecs are ever tried. One thread, no log.

mod decoder;
mod demuxer;
#[cfg(test)]
pub(super) mod encoder;
mod picture;
mod reader;
mod swscale;

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;
use std::sync::Once;

use ffmpeg_next::ffi;

use super::VideoError;
use super::codec::Codec;

pub(super) use decoder::{Decoder, Fed};
pub(super) use demuxer::{Demuxer, Packet, Probing, Stream};
pub(super) use picture::{Colours, Picture, format_name};
pub(super) use reader::Reader;
pub(super) use swscale::rgb24;

/// A time that is not known.
pub(super) const NO_TIME: i64 = i64::MIN;

/// Packet flags.
pub(super) const KEY: u8 = ffi::AV_PKT_FLAG_KEY as u8;
pub(super) const CORRUPT: u8 = ffi::AV_PKT_FLAG_CORRUPT as u8;
pub(super) const DISCARD: u8 = ffi::AV_PKT_FLAG_DISCARD as u8;

/// Side data: new parameters from this packet on.
pub(super) const NEW_EXTRADATA: u32 = ffi::AVPacketSideDataType::AV_PKT_DATA_NEW_EXTRADATA as u32;

/// What FFmpeg answers where it has nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AvError(c_int);

impl AvError {
    const AGAIN: Self = Self(ffi::AVERROR(libc::EAGAIN));
    const INVALID: Self = Self(ffi::AVERROR(libc::EINVAL));
    const END: Self = Self(ffi::AVERROR_EOF);
    const NO_MEMORY: Self = Self(ffi::AVERROR(libc::ENOMEM));

    fn of(answer: c_int) -> Result<c_int, Self> {
        if answer < 0 { Err(Self(answer)) } else { Ok(answer) }
    }

    /// As an outcome of the clip.
    pub(super) fn outcome(self) -> VideoError {
        const UNKNOWN: [c_int; 3] = [ffi::AVERROR_DECODER_NOT_FOUND, ffi::AVERROR_PATCHWELCOME, ffi::AVERROR(libc::ENOSYS)];
        match self {
            Self::NO_MEMORY => VideoError::OutOfMemory,
            Self(code) if UNKNOWN.contains(&code) => VideoError::Unsupported(self.to_string()),
            _ => VideoError::Undecodable(self.to_string()),
        }
    }
}

impl std::fmt::Display for AvError {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = [0 as c_char; 64];
        // SAFETY: writes a terminated text of at most this length, for any number.
        let text = unsafe {
            ffi::av_strerror(self.0, text.as_mut_ptr(), text.len());
            CStr::from_ptr(text.as_ptr())
        };
        out.write_str(&text.to_string_lossy().to_lowercase())
    }
}

/// Does once what FFmpeg does once: before a worker is locked in, and before anything else is called here.
pub(super) fn warm_up() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: these take numbers only; CPU features are found, and stay known.
        unsafe {
            ffi::av_log_set_level(ffi::AV_LOG_QUIET);
            ffi::av_max_alloc(ALLOCATION_BYTES_MAX);
            ffi::av_get_cpu_flags();
        }
        // Tables that decoders share are computed when the first of each kind opens.
        for codec in Codec::ALL {
            drop(decoder::Decoder::blank(codec));
        }
    });
}

/// Most bytes that FFmpeg takes at once: a picture of the most pixels at three planes of two bytes is just above 1 GiB.
const ALLOCATION_BYTES_MAX: usize = 5 << 28;

/// Which decoder library this is: its version, and that of the build it comes from. What one decodes another may decode otherwise
/// where a stream is damaged, so that an index holds for one only.
pub(super) fn library() -> u32 {
    // SAFETY: gives a number.
    unsafe { ffi::avcodec_version() }
}

/// The codec of FFmpeg's number, if it is one of ours.
fn codec_of(number: u32) -> Option<Codec> {
    Codec::ALL.into_iter().find(|&codec| id_of(codec) as u32 == number)
}

fn id_of(codec: Codec) -> ffi::AVCodecID {
    use ffi::AVCodecID::*;
    match codec {
        Codec::H264 => AV_CODEC_ID_H264,
        Codec::Hevc => AV_CODEC_ID_HEVC,
        Codec::Vp8 => AV_CODEC_ID_VP8,
        Codec::Vp9 => AV_CODEC_ID_VP9,
        Codec::Av1 => AV_CODEC_ID_AV1,
        Codec::Mpeg1 => AV_CODEC_ID_MPEG1VIDEO,
        Codec::Mpeg2 => AV_CODEC_ID_MPEG2VIDEO,
        Codec::Mpeg4 => AV_CODEC_ID_MPEG4,
        Codec::Mjpeg => AV_CODEC_ID_MJPEG,
        Codec::Theora => AV_CODEC_ID_THEORA,
    }
}

/// The number behind a field that the bindings type as an enum: input decides what it holds, and an enum must not hold just anything.
///
/// SAFETY: `field` points to a live C enum, which is an `int`.
unsafe fn number<T>(field: *const T) -> i32 {
    // SAFETY: by this function's own condition.
    unsafe { field.cast::<i32>().read() }
}

/// The bound that FFmpeg is given for a limit of so many pixels: it counts a picture's lines at their padded length. Pictures between the
/// two are refused by their own size.
fn pixels_bound(pixels_max: u64) -> String {
    pixels_max.saturating_mul(2).saturating_add(1 << 16).min(i64::MAX as u64).to_string()
}

/// Options by name, as FFmpeg takes them.
struct Options(*mut ffi::AVDictionary);

impl Options {
    fn new<'a>(pairs: impl IntoIterator<Item = (&'a str, String)>) -> Self {
        let mut options = Self(ptr::null_mut());
        for (name, value) in pairs {
            let (Ok(name), Ok(value)) = (CString::new(name), CString::new(value)) else { continue };
            // SAFETY: copies two terminated texts into the dictionary, which it allocates on first use.
            unsafe { ffi::av_dict_set(&raw mut options.0, name.as_ptr(), value.as_ptr(), 0) };
        }
        options
    }
}

impl Drop for Options {
    fn drop(&mut self) {
        // SAFETY: frees what `av_dict_set` allocated, or nothing.
        unsafe { ffi::av_dict_free(&raw mut self.0) };
    }
}
