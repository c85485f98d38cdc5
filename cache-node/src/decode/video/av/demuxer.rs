//! A container's best video stream, packet by packet.

use std::ffi::{CStr, c_char, c_int};
use std::{ptr, slice};

use ffmpeg_next::ffi;
use framecache::spec::STREAMS_MAX;

use super::super::codec::{EXTRADATA_BYTES_MAX, Parameters};
use super::super::{Gone, VideoError};
use super::reader::{Io, Reader};
use super::{AvError, Colours, NO_TIME, Options, codec_of, number, pixels_bound};

/// An open container.
pub(in super::super) struct Demuxer<'a> {
    context: *mut ffi::AVFormatContext,
    packet: *mut ffi::AVPacket,
    stream: usize,
    // Last: the context reads through it until it is closed.
    io: Io<'a>,
}

/// What the container says of the stream.
#[derive(Clone, Debug)]
pub(in super::super) struct Stream {
    /// Its index in the container, and those of all video streams.
    pub(in super::super) index: u32,
    pub(in super::super) siblings: Vec<u32>,
    pub(in super::super) parameters: Parameters,
    /// Seconds that one tick of a time takes, as a fraction.
    pub(in super::super) time_base: (i32, i32),
    pub(in super::super) frame_rate: (i32, i32),
    pub(in super::super) frames: Option<u64>,
    /// Degrees counter-clockwise by which the picture is to be turned.
    pub(in super::super) rotation: i32,
    pub(in super::super) sample_aspect: (i32, i32),
    pub(in super::super) colours: Colours,
}

/// One packet.
pub(in super::super) struct Packet<'a> {
    pub(in super::super) pts: i64,
    pub(in super::super) duration: i64,
    pub(in super::super) flags: u8,
    /// Near where its bytes are in the object.
    pub(in super::super) at: Option<u64>,
    pub(in super::super) data: &'a [u8],
    side: &'a [ffi::AVPacketSideData],
}

impl<'a> Packet<'a> {
    /// What comes beside the bytes: kind and content. Kinds that decoders of video look at.
    pub(in super::super) fn side(&self) -> impl Iterator<Item = (u32, &'a [u8])> {
        self.side.iter().filter(|side| !side.data.is_null()).filter_map(|side| {
            // SAFETY: a live element of the packet's side data, with as many bytes as it says.
            let (kind, bytes) = unsafe { (number(&raw const side.type_), slice::from_raw_parts(side.data, side.size)) };
            SIDE_KINDS.contains(&kind).then_some((kind as u32, bytes))
        })
    }
}

/// A palette, new extradata, changed parameters. Alpha beside a picture is dropped.
const SIDE_KINDS: [c_int; 3] = [
    ffi::AVPacketSideDataType::AV_PKT_DATA_PALETTE as c_int,
    ffi::AVPacketSideDataType::AV_PKT_DATA_NEW_EXTRADATA as c_int,
    ffi::AVPacketSideDataType::AV_PKT_DATA_PARAM_CHANGE as c_int,
];

/// How a container is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Probing {
    /// The first packets are looked into.
    Packets,
    /// Only what the header says; packets are taken as it lists them.
    Header,
}

/// The formats, by FFmpeg's names.
const FORMATS: &str = "mov,mp4,matroska,webm,mpegts,avi,h264,hevc,ogg,m4v,mpegvideo,ivf,obu";

/// The decoders that looking into packets may open.
const DECODERS: &str = "h264,hevc,vp8,vp9,av1,libdav1d,mpeg1video,mpeg2video,mpeg4,mjpeg,theora";

/// Bytes, and microseconds, of a stream that are looked at to tell what it is: FFmpeg's own defaults.
const PROBE_BYTES: u32 = 5_000_000;
const PROBE_US: u32 = 5_000_000;

impl<'a> Demuxer<'a> {
    /// Opens the container that `reader` reads and picks its stream `which`, or FFmpeg's best video stream.
    pub(in super::super) fn open(
        reader: Reader<'a>,
        which: Option<u32>,
        probing: Probing,
        pixels_max: u64,
    ) -> Result<Self, VideoError> {
        let mut demuxer = Self::closed(reader)?;
        let opened = demuxer.open_input().and_then(|()| match probing {
            Probing::Packets => demuxer.look_into(pixels_max),
            Probing::Header => Ok(()),
        });
        match opened.and_then(|()| demuxer.pick(which)) {
            Ok(()) => Ok(demuxer),
            Err(_) if demuxer.io.reader().is_gone() => Err(Gone.into()),
            Err(error) => Err(error),
        }
    }

    fn closed(reader: Reader<'a>) -> Result<Self, VideoError> {
        let io = Io::new(reader).ok_or(VideoError::OutOfMemory)?;
        // SAFETY: they take nothing and give a new value or null.
        let (context, packet) = unsafe { (ffi::avformat_alloc_context(), ffi::av_packet_alloc()) };
        let demuxer = Self { context, packet, stream: 0, io };
        if context.is_null() || packet.is_null() { Err(VideoError::OutOfMemory) } else { Ok(demuxer) }
    }

    fn open_input(&mut self) -> Result<(), VideoError> {
        let mut options = Options::new([
            ("format_whitelist", FORMATS.into()),
            ("codec_whitelist", DECODERS.into()),
            ("protocol_whitelist", "none".into()),
            ("probesize", PROBE_BYTES.to_string()),
            ("analyzeduration", PROBE_US.to_string()),
            ("max_streams", STREAMS_MAX.to_string()),
        ]);
        // SAFETY: the context is new, and reads from our input alone; a failure frees it and sets it to null.
        let answer = unsafe {
            (*self.context).pb = self.io.context;
            (*self.context).flags |= ffi::AVFMT_FLAG_CUSTOM_IO;
            (*self.context).io_open = Some(refuse);
            ffi::avformat_open_input(&raw mut self.context, ptr::null(), ptr::null(), &raw mut options.0)
        };
        match AvError::of(answer) {
            Ok(_) => Ok(()),
            // What the list of formats refuses, this way.
            Err(error) if error == AvError(ffi::AVERROR(libc::EINVAL)) => {
                Err(VideoError::Unsupported("a container of another kind".into()))
            }
            Err(error) => Err(error.outcome()),
        }
    }

    fn look_into(&mut self, pixels_max: u64) -> Result<(), VideoError> {
        // SAFETY: the context is open.
        let count = unsafe { (*self.context).nb_streams } as usize;
        let limits = || Options::new([("max_pixels", pixels_bound(pixels_max)), ("threads", "1".into())]);
        let mut options: Vec<Options> = (0..count).map(|_| limits()).collect();
        // Handed over as the plain pointers that they are, and taken back with what is left of them.
        let mut bare: Vec<*mut ffi::AVDictionary> = options.iter().map(|options| options.0).collect();
        // SAFETY: the context is open, and there is one dictionary for each stream that it has by now.
        let answer = unsafe { ffi::avformat_find_stream_info(self.context, bare.as_mut_ptr()) };
        options.iter_mut().zip(bare).for_each(|(options, left)| options.0 = left);
        AvError::of(answer).map(drop).map_err(AvError::outcome)
    }

    fn pick(&mut self, which: Option<u32>) -> Result<(), VideoError> {
        self.stream = match which {
            Some(which) => {
                let videos = self.videos();
                let named = || videos.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
                match videos.contains(&which) {
                    true => which as usize,
                    false => return Err(VideoError::Unsupported(format!("no video stream {which}: there are {}", named()))),
                }
            }
            None => self.best()?,
        };
        // SAFETY: the context is open, and its streams are as many as it says.
        unsafe {
            for index in 0..(*self.context).nb_streams as usize {
                if index != self.stream {
                    (**(*self.context).streams.add(index)).discard = ffi::AVDiscard::AVDISCARD_ALL;
                }
            }
        }
        Ok(())
    }

    fn best(&self) -> Result<usize, VideoError> {
        let video = ffi::AVMediaType::AVMEDIA_TYPE_VIDEO;
        // SAFETY: the context is open.
        let best = unsafe { ffi::av_find_best_stream(self.context, video, -1, -1, ptr::null_mut(), 0) };
        usize::try_from(best).map_err(|_| VideoError::Undecodable("no video stream".into()))
    }

    fn raw(&self) -> &ffi::AVStream {
        // SAFETY: an open context's stream lives as long as it, and `pick` chose one that there is.
        unsafe { &**(*self.context).streams.add(self.stream) }
    }

    /// Indices of video streams, attached pictures among them.
    pub(in super::super) fn videos(&self) -> Vec<u32> {
        // SAFETY: the context is open, its streams are as many as it says, and each has its parameters.
        unsafe {
            let kind = |index| number(&raw const (*(**(*self.context).streams.add(index)).codecpar).codec_type);
            (0..(*self.context).nb_streams as usize)
                .filter(|&index| kind(index) == ffi::AVMediaType::AVMEDIA_TYPE_VIDEO as i32)
                .map(|index| index as u32)
                .collect()
        }
    }

    /// What is known of the stream by now.
    pub(in super::super) fn stream(&self) -> Result<Stream, VideoError> {
        let stream = self.raw();
        let parameters = stream.codecpar;
        // SAFETY: each stream has its parameters, and their enums are read as numbers.
        let (id, colours) = unsafe { (number(&raw const (*parameters).codec_id), Colours::of_parameters(parameters)) };
        let Some(codec) = codec_of(id as u32) else {
            // SAFETY: a constant text for any number.
            let name = unsafe { CStr::from_ptr(ffi::avcodec_get_name((*parameters).codec_id)) };
            return Err(VideoError::Unsupported(format!("codec {}", name.to_string_lossy())));
        };
        // SAFETY: as above; the extradata has as many bytes as it says.
        let parameters = unsafe {
            let p = &raw const *parameters;
            let extradata = bytes((*p).extradata, (*p).extradata_size);
            if extradata.len() > EXTRADATA_BYTES_MAX {
                return Err(VideoError::Unsupported(format!("{} bytes of codec parameters", extradata.len())));
            }
            Parameters {
                codec,
                tag: (*p).codec_tag,
                extradata: extradata.to_vec(),
                delay: (*p).video_delay,
                width: (*p).width,
                height: (*p).height,
                format: (*p).format,
                bits_per_coded_sample: (*p).bits_per_coded_sample,
            }
        };
        if self.is_encrypted(parameters.tag) {
            return Err(VideoError::Unsupported("encrypted".into()));
        }
        let ratio = |ratio: ffi::AVRational| (ratio.num, ratio.den);
        if stream.time_base.num <= 0 || stream.time_base.den <= 0 {
            return Err(VideoError::Undecodable("times without a base".into()));
        }
        Ok(Stream {
            index: self.stream as u32,
            siblings: self.videos(),
            parameters,
            time_base: ratio(stream.time_base),
            frame_rate: ratio(stream.avg_frame_rate),
            frames: u64::try_from(stream.nb_frames).ok().filter(|&frames| frames > 0),
            rotation: self.rotation(),
            sample_aspect: ratio(stream.sample_aspect_ratio),
            colours,
        })
    }

    fn is_encrypted(&self, tag: u32) -> bool {
        tag == u32::from_le_bytes(*b"encv") || self.side(ffi::AVPacketSideDataType::AV_PKT_DATA_ENCRYPTION_INIT_INFO).is_some()
    }

    fn side(&self, kind: ffi::AVPacketSideDataType) -> Option<&[u8]> {
        let mut size = 0;
        // SAFETY: the stream lives; what is found is its own, of that size.
        unsafe {
            let found = ffi::av_stream_get_side_data(self.raw(), kind, &raw mut size);
            (!found.is_null()).then(|| slice::from_raw_parts(found, size))
        }
    }

    /// By the display matrix, to the nearest degree.
    fn rotation(&self) -> i32 {
        let Some(bytes) = self.side(ffi::AVPacketSideDataType::AV_PKT_DATA_DISPLAYMATRIX).filter(|bytes| bytes.len() >= 36)
        else {
            return 0;
        };
        let mut matrix = [0; 9];
        for (value, bytes) in matrix.iter_mut().zip(bytes.as_chunks().0) {
            *value = i32::from_ne_bytes(*bytes);
        }
        // SAFETY: reads nine numbers.
        let degrees = unsafe { ffi::av_display_rotation_get(matrix.as_ptr()) };
        if degrees.is_finite() { degrees.round() as i32 } else { 0 }
    }

    /// Packets as the container lists them, without parsers that look into their bytes.
    pub(in super::super) fn as_listed(&mut self) {
        // SAFETY: the context is open.
        unsafe { (*self.context).flags |= ffi::AVFMT_FLAG_NOPARSE | ffi::AVFMT_FLAG_NOFILLIN };
    }

    /// The next packet of the stream, and the reader to look it up; none at the end, and where the container is broken.
    pub(in super::super) fn next(&mut self) -> Result<Option<(Packet<'_>, &mut Reader<'a>)>, Gone> {
        loop {
            // SAFETY: the packet is emptied before it is filled anew.
            let answer = unsafe {
                ffi::av_packet_unref(self.packet);
                ffi::av_read_frame(self.context, self.packet)
            };
            if self.io.reader().is_gone() {
                return Err(Gone);
            }
            if answer < 0 {
                return Ok(None);
            }
            // SAFETY: filled by the call above, and untouched until the next, which needs this borrow's end.
            let packet = unsafe { &*self.packet };
            if usize::try_from(packet.stream_index) != Ok(self.stream) {
                continue;
            }
            // SAFETY: the packet's own bytes and side data, as many as it says.
            let (data, side) = unsafe {
                let side = match usize::try_from(packet.side_data_elems) {
                    Ok(count) if !packet.side_data.is_null() => slice::from_raw_parts(packet.side_data, count),
                    _ => &[],
                };
                (bytes(packet.data, packet.size), side)
            };
            let packet = Packet {
                pts: if packet.pts == ffi::AV_NOPTS_VALUE { NO_TIME } else { packet.pts },
                duration: packet.duration,
                flags: packet.flags as u8 & (super::KEY | super::CORRUPT | super::DISCARD),
                at: u64::try_from(packet.pos).ok(),
                data,
                side,
            };
            return Ok(Some((packet, self.io.reader())));
        }
    }
}

impl Drop for Demuxer<'_> {
    fn drop(&mut self) {
        // SAFETY: each is freed once, or null; the input outlives the context.
        unsafe {
            ffi::av_packet_free(&raw mut self.packet);
            ffi::avformat_close_input(&raw mut self.context);
        }
    }
}

/// SAFETY: `start` is null or has `count` bytes, for as long as the caller says.
unsafe fn bytes<'a>(start: *const u8, count: c_int) -> &'a [u8] {
    match usize::try_from(count) {
        // SAFETY: by this function's own condition.
        Ok(count) if !start.is_null() => unsafe { slice::from_raw_parts(start, count) },
        _ => &[],
    }
}

/// Whatever else a container names is not opened.
///
/// SAFETY: touches nothing of what it is given.
unsafe extern "C" fn refuse(
    _context: *mut ffi::AVFormatContext,
    _io: *mut *mut ffi::AVIOContext,
    _name: *const c_char,
    _flags: c_int,
    _options: *mut *mut ffi::AVDictionary,
) -> c_int {
    ffi::AVERROR(libc::EACCES)
}
