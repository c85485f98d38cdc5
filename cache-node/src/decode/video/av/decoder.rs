//! Packets in, pictures out, each with its packet's tag.

use std::ffi::{CStr, c_int};
use std::ptr;

use ffmpeg_next::ffi;

use super::super::VideoError;
use super::super::codec::{Codec, Parameters};
use super::cuda::{Device, Landing};
use super::picture::Picture;
use super::{AvError, Options, id_of, pixels_bound};

/// A decoder of one thread. Made anew for each unit: flushing does not forget parameter sets, nor which references were missing.
pub(in super::super) struct Decoder {
    context: *mut ffi::AVCodecContext,
    packet: *mut ffi::AVPacket,
    frame: *mut ffi::AVFrame,
    parameters: *mut ffi::AVCodecParameters,
    /// Where pictures of a device come down; nothing where the CPU decodes.
    landing: Option<Box<Landing>>,
}

/// A packet for it.
#[derive(Clone, Copy)]
pub(in super::super) struct Fed<'a> {
    /// Goes in as the time, and comes out with the picture.
    pub(in super::super) tag: u32,
    pub(in super::super) flags: u8,
    pub(in super::super) data: &'a [u8],
    pub(in super::super) side: &'a [(u32, &'a [u8])],
}

impl Decoder {
    /// `hands_all`: also pictures whose references were not there. Of a unit that starts within a stream they are needed (what comes
    /// behind them is withheld otherwise); of a whole stream they are what no reader shows.
    pub(in super::super) fn open(parameters: &Parameters, hands_all: bool, pixels_max: u64) -> Result<Self, VideoError> {
        // SAFETY: looks a constant up.
        let codec = unsafe { ffi::avcodec_find_decoder(id_of(parameters.codec)) };
        Self::open_as(codec, parameters, hands_all, pixels_max, None)
    }

    /// One that leaves the work to a device. Made once and used for unit after unit, with [`Decoder::flush`] between.
    pub(in super::super) fn open_on(device: &Device, parameters: &Parameters, pixels_max: u64) -> Result<Self, VideoError> {
        // SAFETY: looks a constant up. By name: libraries that decode AV1 by themselves come before FFmpeg's own, which only devices serve.
        let codec = unsafe {
            match parameters.codec {
                Codec::Av1 => ffi::avcodec_find_decoder_by_name(c"av1".as_ptr()),
                codec => ffi::avcodec_find_decoder(id_of(codec)),
            }
        };
        Self::open_as(codec, parameters, true, pixels_max, Some(device))
    }

    fn open_as(
        codec: *const ffi::AVCodec,
        parameters: &Parameters,
        hands_all: bool,
        pixels_max: u64,
        device: Option<&Device>,
    ) -> Result<Self, VideoError> {
        if codec.is_null() {
            return Err(VideoError::Unsupported(format!("no decoder for {} here", parameters.codec.name())));
        }
        // SAFETY: they allocate, or give null.
        let mut decoder = unsafe {
            Self {
                context: ffi::avcodec_alloc_context3(codec),
                packet: ffi::av_packet_alloc(),
                frame: ffi::av_frame_alloc(),
                parameters: ffi::avcodec_parameters_alloc(),
                landing: None,
            }
        };
        if [decoder.context.is_null(), decoder.packet.is_null(), decoder.frame.is_null(), decoder.parameters.is_null()]
            .contains(&true)
        {
            return Err(VideoError::OutOfMemory);
        }
        decoder.set(parameters)?;
        let mut options = Options::new([("max_pixels", pixels_bound(pixels_max)), ("threads", "1".into())]);
        // SAFETY: all live; the parameters are copied.
        unsafe {
            AvError::of(ffi::avcodec_parameters_to_context(decoder.context, decoder.parameters)).map_err(AvError::outcome)?;
            let all = if hands_all { ffi::AV_CODEC_FLAG_OUTPUT_CORRUPT } else { 0 };
            // Without the exact flag MPEG-4 takes another transform, by CPU.
            (*decoder.context).flags |= (ffi::AV_CODEC_FLAG_BITEXACT | all) as c_int;
            if let Some(device) = device {
                decoder.landing = Some(device.land(decoder.context).ok_or(VideoError::OutOfMemory)?);
            }
            AvError::of(ffi::avcodec_open2(decoder.context, codec, &raw mut options.0)).map_err(AvError::outcome)?;
        }
        Ok(decoder)
    }

    /// One that knows nothing of its stream.
    pub(super) fn blank(codec: Codec) -> Result<Self, VideoError> {
        let (tag, extradata, delay, width, height, format, bits_per_coded_sample) = (0, Vec::new(), 0, 0, 0, -1, 0);
        let blank = Parameters { codec, tag, extradata, delay, width, height, format, bits_per_coded_sample };
        Self::open(&blank, true, 1)
    }

    /// Of a device's pictures, only those of these packets are brought down.
    pub(in super::super) fn want(&mut self, tags: impl IntoIterator<Item = u32>) {
        if let Some(landing) = &mut self.landing {
            landing.want(tags);
        }
    }

    /// Why the device, or what it gives, is not to be had for this stream.
    pub(in super::super) fn refused(&self) -> Option<&'static str> {
        self.landing.as_ref().and_then(|landing| landing.refused())
    }

    /// Forgets the pictures of a unit, so that another of the same parameters can follow.
    pub(in super::super) fn flush(&mut self) {
        // SAFETY: the context is open.
        unsafe { ffi::avcodec_flush_buffers(self.context) };
    }

    fn set(&self, from: &Parameters) -> Result<(), VideoError> {
        let p = self.parameters;
        // SAFETY: new parameters, freed with what is put in here; extradata is padded with zeros, as decoders require.
        unsafe {
            (*p).codec_type = ffi::AVMediaType::AVMEDIA_TYPE_VIDEO;
            (*p).codec_id = id_of(from.codec);
            (*p).codec_tag = from.tag;
            (*p).video_delay = from.delay;
            (*p).width = from.width;
            (*p).height = from.height;
            (*p).format = from.format;
            (*p).bits_per_coded_sample = from.bits_per_coded_sample;
            if !from.extradata.is_empty() {
                let length = from.extradata.len();
                let place = ffi::av_mallocz(length + ffi::AV_INPUT_BUFFER_PADDING_SIZE as usize).cast::<u8>();
                if place.is_null() {
                    return Err(VideoError::OutOfMemory);
                }
                ptr::copy_nonoverlapping(from.extradata.as_ptr(), place, length);
                (*p).extradata = place;
                (*p).extradata_size = length as c_int;
            }
        }
        Ok(())
    }

    /// The decoder's own name.
    pub(in super::super) fn name(&self) -> String {
        // SAFETY: an open context has its codec, whose name is a constant text.
        unsafe { CStr::from_ptr((*(*self.context).codec).name) }.to_string_lossy().into_owned()
    }

    /// Feeds one packet and hands over what comes out; gives the first thing that the decoder complained of. `each` may end it.
    pub(in super::super) fn feed<E>(
        &mut self,
        fed: &Fed<'_>,
        each: &mut dyn FnMut(Picture<'_>) -> Result<(), E>,
    ) -> Result<Option<AvError>, E> {
        if let Err(error) = self.fill(fed) {
            return Ok(Some(error));
        }
        let mut complaint = None;
        for _ in 0..TRIES {
            // SAFETY: both live; the decoder takes its own reference of the packet.
            let sent = AvError::of(unsafe { ffi::avcodec_send_packet(self.context, self.packet) });
            complaint = complaint.or(sent.err().filter(|&error| error != AvError::AGAIN && error != AvError::END));
            let received = self.receive(each)?;
            complaint = complaint.or(received);
            if sent != Err(AvError::AGAIN) {
                break;
            }
        }
        Ok(complaint)
    }

    /// No packet comes any more: hands over what is still inside. The decoder is of no use then.
    pub(in super::super) fn drain<E>(
        &mut self,
        each: &mut dyn FnMut(Picture<'_>) -> Result<(), E>,
    ) -> Result<Option<AvError>, E> {
        // SAFETY: the context lives; no packet means the end.
        let sent = AvError::of(unsafe { ffi::avcodec_send_packet(self.context, ptr::null()) });
        let received = self.receive(each)?;
        Ok(sent.err().filter(|&error| error != AvError::END).or(received))
    }

    fn fill(&mut self, fed: &Fed<'_>) -> Result<(), AvError> {
        let length = c_int::try_from(fed.data.len()).map_err(|_| AvError::NO_MEMORY)?;
        // SAFETY: the packet is emptied, then given a padded buffer of its own and copies of the side data.
        unsafe {
            ffi::av_packet_unref(self.packet);
            AvError::of(ffi::av_new_packet(self.packet, length))?;
            if length > 0 {
                ptr::copy_nonoverlapping(fed.data.as_ptr(), (*self.packet).data, fed.data.len());
            }
            (*self.packet).pts = fed.tag.into();
            (*self.packet).dts = fed.tag.into();
            (*self.packet).flags = fed.flags.into();
            for (kind, bytes) in fed.side {
                let Some(kind) = side_kind(*kind) else { continue };
                let place = ffi::av_packet_new_side_data(self.packet, kind, bytes.len() as _);
                if place.is_null() {
                    return Err(AvError::NO_MEMORY);
                }
                ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len());
            }
        }
        Ok(())
    }

    /// Takes out what there is. The first complaint is the answer.
    fn receive<E>(&mut self, each: &mut dyn FnMut(Picture<'_>) -> Result<(), E>) -> Result<Option<AvError>, E> {
        let (mut first, mut complaints) = (None, 0);
        loop {
            // SAFETY: both live; the frame is emptied before it is filled.
            match AvError::of(unsafe { ffi::avcodec_receive_frame(self.context, self.frame) }) {
                Ok(_) => {
                    // SAFETY: both live, and the frame was filled by the call above.
                    let landed = self.landing.as_mut().map(|landing| unsafe { landing.bring(self.context, self.frame) });
                    match landed {
                        // SAFETY: as above; the picture's borrow ends before the next.
                        None => each(Picture(unsafe { &*self.frame }))?,
                        // SAFETY: the landing's own frame, likewise.
                        Some(Ok(Some(frame))) => each(Picture(unsafe { &*frame }))?,
                        Some(Ok(None)) => {}
                        Some(Err(error)) => first = first.or(Some(error)),
                    }
                }
                Err(AvError::AGAIN | AvError::END) => return Ok(first),
                Err(error) => {
                    first = first.or(Some(error));
                    complaints += 1;
                    if complaints > TRIES {
                        return Ok(first);
                    }
                }
            }
        }
    }
}

/// Of a decoder that neither takes nor gives, this much is borne.
const TRIES: usize = 1000;

fn side_kind(kind: u32) -> Option<ffi::AVPacketSideDataType> {
    use ffi::AVPacketSideDataType::*;
    [AV_PKT_DATA_PALETTE, AV_PKT_DATA_NEW_EXTRADATA, AV_PKT_DATA_PARAM_CHANGE].into_iter().find(|&known| known as u32 == kind)
}

impl Drop for Decoder {
    fn drop(&mut self) {
        // SAFETY: each is freed once, or null.
        unsafe {
            ffi::avcodec_free_context(&raw mut self.context);
            ffi::av_packet_free(&raw mut self.packet);
            ffi::av_frame_free(&raw mut self.frame);
            ffi::avcodec_parameters_free(&raw mut self.parameters);
        }
        // The landing goes after the context, which points to it.
    }
}
