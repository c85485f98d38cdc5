//! Which video codecs are decoded, and what a decoder must know besides packets.

use rkyv::{Archive, Deserialize, Serialize};

/// The codecs that are decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub(super) enum Codec {
    H264,
    Hevc,
    Vp8,
    Vp9,
    Av1,
    Mpeg1,
    Mpeg2,
    Mpeg4,
    Mjpeg,
    Theora,
}

impl Codec {
    pub(super) const ALL: [Self; 10] = [
        Self::H264,
        Self::Hevc,
        Self::Vp8,
        Self::Vp9,
        Self::Av1,
        Self::Mpeg1,
        Self::Mpeg2,
        Self::Mpeg4,
        Self::Mjpeg,
        Self::Theora,
    ];

    /// FFmpeg's name of it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::H264 => "h264",
            Self::Hevc => "hevc",
            Self::Vp8 => "vp8",
            Self::Vp9 => "vp9",
            Self::Av1 => "av1",
            Self::Mpeg1 => "mpeg1video",
            Self::Mpeg2 => "mpeg2video",
            Self::Mpeg4 => "mpeg4",
            Self::Mjpeg => "mjpeg",
            Self::Theora => "theora",
        }
    }

    /// Whether pictures may refer to ones that are shown later, over a point where decoding can start.
    pub(super) fn has_leading_pictures(self) -> bool {
        matches!(self, Self::H264 | Self::Hevc | Self::Mpeg1 | Self::Mpeg2)
    }
}

/// What a decoder is opened with; sufficed for every stream that was tried.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub(super) struct Parameters {
    pub(super) codec: Codec,
    /// The container's four letters for it.
    pub(super) tag: u32,
    pub(super) extradata: Vec<u8>,
    /// Frames that are held back for reordering.
    pub(super) delay: i32,
    pub(super) width: i32,
    pub(super) height: i32,
    /// Pixel format by FFmpeg's number, of this library version; -1 where it is not known.
    pub(super) format: i32,
    pub(super) bits_per_coded_sample: i32,
}

/// Longer parameters are no stream's: those of Theora, the longest, are some kilobytes.
pub(super) const EXTRADATA_BYTES_MAX: usize = 1 << 20;
