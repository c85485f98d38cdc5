//! One package decoded on a device, with a decoder that is kept from unit to unit: making one takes longer than many a unit.

use super::av::{Decoder, Device, NEW_EXTRADATA};
use super::codec::{Codec, Parameters};
use super::package::Package;
use super::unit::decode_by;
use super::{DecodeEnd, Sink, VideoError};
use crate::decode::Limits;

/// The codecs, by FFmpeg's names; a device's offer counts them by their place.
pub(in crate::decode) const CODECS: [&str; 10] =
    ["h264", "hevc", "vp8", "vp9", "av1", "mpeg1video", "mpeg2video", "mpeg4", "mjpeg", "theora"];

/// A device, and the decoder of the last unit.
pub(in crate::decode) struct Hardware {
    kept: Option<Kept>,
    device: Device,
    /// Codecs of which pictures with an odd side come out wrong.
    refuses_odd: Vec<&'static str>,
    /// Decoders that were made, and units that found one.
    pub(in crate::decode) opened: u64,
    pub(in crate::decode) reused: u64,
}

struct Kept {
    decoder: Decoder,
    parameters: Parameters,
    pixels_max: u64,
}

impl Hardware {
    /// The first device; or in words why there is none.
    pub(in crate::decode) fn open() -> Result<Self, String> {
        Ok(Self { kept: None, device: Device::open()?, refuses_odd: Vec::new(), opened: 0, reused: 0 })
    }

    /// From now on pictures of this codec with an odd side are refused.
    pub(in crate::decode) fn refuse_odd(&mut self, codec: &'static str) {
        self.refuses_odd.push(codec);
    }

    pub(in crate::decode) fn refuses_odd(&self, codec: &str) -> bool {
        self.refuses_odd.contains(&codec)
    }

    /// Decodes a package and hands over each wanted frame once, as the CPU's decoder does; where anything is wrong, or the device does
    /// not take the stream, it says so in its own way, and the CPU is to be asked.
    pub(in crate::decode) fn decode(&mut self, package: &[u8], limits: &Limits, each: Sink<'_>) -> Result<(), DecodeEnd> {
        let package = Package::from_bytes(package).ok_or(DecodeEnd::Malformed)?;
        let is_odd = package.wanted.iter().any(|wanted| (wanted.width | wanted.height) & 1 == 1);
        if is_odd && self.refuses_odd(package.parameters.codec.name()) {
            return Err(VideoError::Unsupported("the device fails at odd sizes".into()).into());
        }
        let mut decoder = self.decoder(&package.parameters, limits.pixels_max)?;
        decoder.want(package.wanted.iter().map(|wanted| wanted.tag));
        let lent = &mut decoder;
        let ended = decode_by(&package, false, limits, each, || Ok(lent));
        if let (Some(why), Err(_) | Ok(false)) = (decoder.refused(), &ended) {
            return Err(VideoError::Unsupported(why.into()).into());
        }
        if ended == Ok(true) && leaves_no_trace(&package) {
            decoder.flush();
            self.kept = Some(Kept { decoder, parameters: package.parameters, pixels_max: limits.pixels_max });
        }
        ended.map(drop)
    }

    fn decoder(&mut self, parameters: &Parameters, pixels_max: u64) -> Result<Decoder, VideoError> {
        match self.kept.take() {
            Some(kept) if kept.parameters == *parameters && kept.pixels_max == pixels_max => {
                self.reused += 1;
                Ok(kept.decoder)
            }
            // The one before is closed first: a device holds few.
            other => {
                drop(other);
                self.opened += 1;
                Decoder::open_on(&self.device, parameters, pixels_max)
            }
        }
    }
}

/// Whether a decoder that is flushed behind this package knows no more than one that is made anew. Pictures are forgotten then, and
/// parameters that came with packets are not: they must be those that it was opened with, or of a codec whose key frames bring all.
fn leaves_no_trace(package: &Package) -> bool {
    if package.side.iter().any(|side| side.kind == NEW_EXTRADATA) {
        return false;
    }
    let extradata = &package.parameters.extradata;
    let is_known = |unit: &[u8]| memchr::memmem::find(extradata, unit).is_some();
    match package.parameters.codec {
        Codec::Vp8 | Codec::Vp9 | Codec::Av1 => true,
        // Byte 4 says how many bytes a length has, if these are parameters in that form.
        Codec::H264 if extradata.len() > 6 && extradata[0] == 1 => {
            let length = usize::from(extradata[4] & 3) + 1;
            packets(package)
                .all(|packet| nal_units(packet, length, |unit| !matches!(unit[0] & 31, 7 | 8 | 13 | 15) || is_known(unit)))
        }
        Codec::Hevc if extradata.len() > 22 && extradata[0] == 1 => {
            let length = usize::from(extradata[21] & 3) + 1;
            packets(package)
                .all(|packet| nal_units(packet, length, |unit| !matches!(unit[0] >> 1 & 63, 32..=34) || is_known(unit)))
        }
        _ => false,
    }
}

fn packets(package: &Package) -> impl Iterator<Item = &[u8]> {
    let mut data = &package.data[..];
    package.packets.iter().map_while(move |packet| {
        let (own, rest) = data.split_at_checked(packet.bytes as usize)?;
        data = rest;
        Some(own)
    })
}

/// Whether `good` holds of each unit of a packet, whose units stand behind their lengths of `length` bytes; no, where they do not add up.
fn nal_units(mut packet: &[u8], length: usize, good: impl Fn(&[u8]) -> bool) -> bool {
    while !packet.is_empty() {
        let Some((size, rest)) = packet.split_at_checked(length) else { return false };
        let size = size.iter().fold(0usize, |size, &byte| size << 8 | usize::from(byte));
        let Some((unit, behind)) = rest.split_at_checked(size) else { return false };
        if unit.is_empty() || !good(unit) {
            return false;
        }
        packet = behind;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::super::package::{Packed, Side};
    use super::*;

    fn package(codec: Codec, extradata: &[u8], packets: &[&[u8]]) -> Package {
        let extradata = extradata.to_vec();
        let parameters =
            Parameters { codec, tag: 0, extradata, delay: 0, width: 0, height: 0, format: -1, bits_per_coded_sample: 0 };
        let packed = |packet: &&[u8]| Packed { bytes: packet.len() as u32, flags: 0, is_surplus: false };
        Package {
            parameters,
            is_unseen: false,
            packets: packets.iter().map(packed).collect(),
            side: Vec::new(),
            wanted: Vec::new(),
            data: packets.concat(),
        }
    }

    /// Promise: the names are the codecs', each at its place.
    #[test]
    fn codecs_have_their_places() {
        assert_eq!(Codec::ALL.map(Codec::name), CODECS);
    }

    /// Promise: a decoder is kept only behind units that taught it nothing which the next one must not know.
    #[test]
    fn decoders_are_kept_by_table() {
        // Lengths of two bytes; a sequence's parameters 67 aa bb, a picture's 68 cc.
        let avc = &[1, 66, 0, 30, 0xfd, 0xe1, 0, 3, 0x67, 0xaa, 0xbb, 1, 0, 2, 0x68, 0xcc];
        let mut hvc = [0; 30];
        (hvc[0], hvc[21]) = (1, 0xfd);
        hvc[23..27].copy_from_slice(&[0x40, 1, 0x0c, 9]);
        let slice: &[u8] = &[0, 2, 0x65, 0x88];
        for (codec, extradata, packets, want) in [
            (Codec::H264, &avc[..], &[slice, slice][..], true),
            (Codec::H264, avc, &[&[0, 3, 0x67, 0xaa, 0xbb, 0, 2, 0x65, 1]], true),
            (Codec::H264, avc, &[&[0, 3, 0x67, 0xaa, 0xbc, 0, 2, 0x65, 1]], false),
            (Codec::H264, avc, &[slice, &[0, 2, 0x68, 0xcd]], false),
            (Codec::H264, avc, &[&[0, 9, 0x65]], false),
            (Codec::H264, avc, &[&[0, 0]], false),
            (Codec::H264, avc, &[&[0]], false),
            (Codec::H264, &[], &[&[0, 0, 0, 1, 0x67, 0xaa]], false),
            (Codec::Hevc, &hvc, &[&[0, 3, 0x26, 1, 7]], true),
            (Codec::Hevc, &hvc, &[&[0, 4, 0x40, 1, 0x0c, 9]], true),
            (Codec::Hevc, &hvc, &[&[0, 4, 0x42, 1, 0x0c, 9]], false),
            (Codec::Vp9, &[], &[&[1, 2]], true),
            (Codec::Mpeg2, &[], &[&[1, 2]], false),
        ] {
            let package = package(codec, extradata, packets);
            assert_eq!(leaves_no_trace(&package), want, "{codec:?} {packets:x?}");
        }
        let mut new = package(Codec::Vp9, &[], &[&[1]]);
        new.side.push(Side { packet: 0, kind: NEW_EXTRADATA, bytes: vec![1] });
        assert!(!leaves_no_trace(&new));
    }
}
