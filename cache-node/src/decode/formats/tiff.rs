//! TIFF: the `tiff` crate for strips and tiles, Pillow's meaning for samples.
//!
//! Beside the crate: strips of JPEG go through libjpeg, as in libtiff (the crate's own decoder has other bytes), the checksum of
//! Deflate is looked at, and the picture is turned by its orientation, which Pillow does for this format alone.

use std::io::Cursor;

use fax::encoder::Encoder;
use fax::{Color, VecWriter};
use flate2::{Decompress, FlushDecompress};
use tiff::decoder::{ChunkType, Decoder, DecodingResult, Limits};
use tiff::tags::Tag;

use super::{Failure, Kind, Order, Sink, broken, ink_to_light, jpeg, said, unsupported, zeros};
use crate::decode::orientation;
use crate::decode::probe::jpeg as jpeg_probe;
use crate::decode::probe::tiff::{self as directory, JPEG, Layout, Page};

const GROUP_4: u16 = 4;

type Reader<'a> = Decoder<Cursor<&'a [u8]>>;

pub(super) fn decode(bytes: &[u8], order: &Order<'_>, room: &mut [u8], sink: Sink<'_>) -> Result<(), Failure> {
    // Pages are pictures of their own: a broken one says nothing about the next.
    for &frame in order.frames {
        match page(bytes, frame, order, room, sink) {
            Ok(()) => {}
            Err(Failure::OutOfMemory) => return Err(Failure::OutOfMemory),
            Err(failure) => sink(frame, Err(failure)),
        }
    }
    Ok(())
}

fn page(bytes: &[u8], frame: u32, order: &Order<'_>, room: &mut [u8], sink: Sink<'_>) -> Result<(), Failure> {
    let directories = directory::directories(bytes, frame).map_err(said)?;
    let Some(&at) = directories.get(frame as usize) else {
        return Err(Failure::NoFrame { count: directories.len() as u32 });
    };
    let page = directory::page(bytes, at).map_err(refused)?;
    let shown = as_gray(bytes, &page)?;
    let mut reader = Decoder::new(Cursor::new(shown.as_deref().unwrap_or(bytes))).map_err(said)?;
    // What was reckoned with from the header is the first page.
    if page.size() != (order.probe.width, order.probe.height) {
        let (width, height) = page.size();
        return unsupported(format!("page {frame} is {width}x{height}, unlike the first"));
    }
    if order.wants.alpha && page.has_alpha() && !order.probe.has_alpha {
        return unsupported(format!("page {frame} has alpha, the first none"));
    }
    if 3 * page.raw_bytes() > order.probe.working_bytes {
        return unsupported(format!("page {frame} has more samples than the first"));
    }
    let limit = page.raw_bytes() as usize + (1 << 20);
    let limits = || {
        let mut limits = Limits::default();
        (limits.decoding_buffer_size, limits.intermediate_buffer_size) = (limit, limit);
        limits
    };
    reader = reader.with_limits(limits());
    reader.seek_to_image(frame as usize).map_err(said)?;
    let raw = if page.compression == JPEG { jpeg_strips(bytes, &mut reader, &page)? } else { strips(bytes, &mut reader, &page)? };
    let form = Form::of(&mut reader, &page, order)?;
    let upright = page.orientation == 1;
    let pixels = page.width as usize * page.height as usize * form.kind.bytes();
    if room.len() < pixels {
        return unsupported(format!("page {frame} has more channels than the first"));
    }
    form.finish(&raw, &page, &mut room[..pixels])?;
    drop(raw);
    if !upright {
        let mut turned: Vec<u8> = zeros(pixels)?;
        let size = (page.width as usize, page.height as usize);
        orientation::turn(&room[..pixels], size, form.kind.bytes(), page.orientation, &mut turned);
        room[..pixels].copy_from_slice(&turned);
    }
    order.give(frame, form.kind, room, sink)
}

/// The crate knows no palettes: it is shown a copy of the file that says gray, and gives indices.
fn as_gray(bytes: &[u8], page: &Page) -> Result<Option<Vec<u8>>, Failure> {
    if page.layout != Layout::Index {
        return Ok(None);
    }
    let at = page.photometric_at.and_then(|at| usize::try_from(at).ok());
    let Some(at) = at.filter(|at| at + 2 <= bytes.len()) else { return unsupported("a palette named in another way".into()) };
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len()).map_err(|_| Failure::OutOfMemory)?;
    copy.extend_from_slice(bytes);
    copy[at..at + 2].copy_from_slice(&if page.big_endian { [0, 1] } else { [1, 0] });
    Ok(Some(copy))
}

fn refused(error: crate::decode::DecodeError) -> Failure {
    match error {
        crate::decode::DecodeError::Unsupported { reason, .. } => Failure::Unsupported(reason),
        error => said(error),
    }
}

/// The page's samples as stored, rows padded to whole bytes, 16-bit ones in this machine's order.
fn strips(bytes: &[u8], reader: &mut Reader<'_>, page: &Page) -> Result<Vec<u8>, Failure> {
    match (page.compression, reader.get_chunk_type()) {
        (8 | 32_946, ChunkType::Strip) => return inflated_strips(bytes, reader, page),
        (8 | 32_946, ChunkType::Tile) => check_tiles(bytes, reader, page)?,
        _ => {}
    }
    let samples = match reader.read_image().map_err(said)? {
        DecodingResult::U8(samples) => samples,
        DecodingResult::U16(samples) => {
            let mut out: Vec<u8> = zeros(samples.len() * 2)?;
            out.chunks_exact_mut(2).zip(samples).for_each(|(out, sample)| out.copy_from_slice(&sample.to_ne_bytes()));
            out
        }
        _ => return unsupported("samples of another kind".into()),
    };
    if samples.len() as u64 != page.raw_bytes() {
        return unsupported(format!("{} bytes of samples", samples.len()));
    }
    if page.compression == GROUP_4 {
        check_fax(bytes, reader, page, &samples)?;
    }
    Ok(samples)
}

/// Of a damaged Group 4 stream libtiff makes one picture and the crate another. A sound one is what an encoder makes of its pixels,
/// since the code leaves no choice (ITU-T T.6, 2.2): what is not is refused.
fn check_fax(bytes: &[u8], reader: &mut Reader<'_>, page: &Page, samples: &[u8]) -> Result<(), Failure> {
    if reader.get_chunk_type() == ChunkType::Tile {
        return unsupported("tiles of group 4".into());
    }
    let line = page.width.div_ceil(8) as usize;
    let inverted = page.layout == Layout::Gray { inverted: true };
    let mut rows = samples.chunks_exact(line);
    let Ok(width) = u16::try_from(page.width) else { return unsupported("group 4 of more than 65535 columns".into()) };
    for (number, place) in (0..reader.strip_count().map_err(said)?).zip(places(reader)?) {
        let height = reader.chunk_data_dimensions(number).1 as usize;
        let mut encoder = Encoder::new(VecWriter::new());
        for row in rows.by_ref().take(height) {
            let black = |x: usize| (row[x / 8] >> (7 - x % 8) & 1 == 1) != inverted;
            let pels = (0..page.width as usize).map(|x| if black(x) { Color::Black } else { Color::White });
            encoder.encode_line(pels, width).map_err(|_| Failure::OutOfMemory)?;
        }
        let encoded = encoder.finish().map_err(|_| Failure::OutOfMemory)?.finish();
        // But for the mark at the end, of three bytes and the bits to the next: some leave it out.
        let compared = encoded.len().saturating_sub(4);
        if part(bytes, place)?.get(..compared) != Some(&encoded[..compared]) {
            return unsupported("group 4 in another than the plain form".into());
        }
    }
    Ok(())
}

/// Offset and length of each strip or tile.
fn places(reader: &mut Reader<'_>) -> Result<Vec<(u64, u64)>, Failure> {
    let tags = match reader.get_chunk_type() {
        ChunkType::Strip => (Tag::StripOffsets, Tag::StripByteCounts),
        ChunkType::Tile => (Tag::TileOffsets, Tag::TileByteCounts),
    };
    let (offsets, lengths) = (reader.get_tag_u64_vec(tags.0).map_err(said)?, reader.get_tag_u64_vec(tags.1).map_err(said)?);
    Ok(offsets.into_iter().zip(lengths).collect())
}

fn part(bytes: &[u8], (offset, length): (u64, u64)) -> Result<&[u8], Failure> {
    let range = usize::try_from(offset).ok().zip(offset.checked_add(length).and_then(|end| usize::try_from(end).ok()));
    range
        .and_then(|(start, end)| bytes.get(start..end))
        .ok_or_else(|| Failure::Undecodable("a strip lies outside the file".into()))
}

/// Strips of Deflate, without the crate: it refuses damaged streams that libtiff takes, and takes some that libtiff refuses.
fn inflated_strips(bytes: &[u8], reader: &mut Reader<'_>, page: &Page) -> Result<Vec<u8>, Failure> {
    let predictor = reader.find_tag_unsigned::<u16>(Tag::Predictor).map_err(said)?.unwrap_or(1);
    if !matches!((predictor, page.bits), (1, _) | (2, 8 | 16)) {
        return unsupported(format!("predictor {predictor}"));
    }
    let line = page.raw_bytes() as usize / page.height as usize;
    let mut out: Vec<u8> = zeros(page.raw_bytes() as usize)?;
    let mut rest = &mut out[..];
    for (number, place) in (0..reader.strip_count().map_err(said)?).zip(places(reader)?) {
        let strip_bytes = reader.chunk_data_dimensions(number).1 as usize * line;
        let Some((here, behind)) = rest.split_at_mut_checked(strip_bytes) else { return broken("too many strips") };
        inflate(part(bytes, place)?, here)?;
        rest = behind;
    }
    if !rest.is_empty() {
        return broken("strips are missing");
    }
    for row in out.chunks_exact_mut(line) {
        if page.bits == 16 && page.big_endian == cfg!(target_endian = "little") {
            row.chunks_exact_mut(2).for_each(|sample| sample.swap(0, 1));
        }
        if predictor == 2 {
            add_up(row, page.samples.into(), page.bits == 16);
        }
        // As the crate has it.
        if page.layout == (Layout::Gray { inverted: true }) {
            row.iter_mut().for_each(|byte| *byte = !*byte);
        }
    }
    Ok(out)
}

/// Horizontal differencing undone (TIFF 6.0, section 14); deep samples are in this machine's order by now.
fn add_up(row: &mut [u8], samples: usize, deep: bool) {
    if !deep {
        (samples..row.len()).for_each(|at| row[at] = row[at].wrapping_add(row[at - samples]));
        return;
    }
    for at in samples..row.len() / 2 {
        let sample = |at: usize| u16::from_ne_bytes([row[2 * at], row[2 * at + 1]]);
        let sum = sample(at).wrapping_add(sample(at - samples));
        row[2 * at..2 * at + 2].copy_from_slice(&sum.to_ne_bytes());
    }
}

/// As libtiff: one call of inflate into exactly the bytes that are wanted. An error, a wrong checksum and too few bytes refuse; a stream
/// that goes on behind them never gets to its checksum. `Finish`, or flate2 would look further than it was asked.
fn inflate(stream: &[u8], out: &mut [u8]) -> Result<(), Failure> {
    let mut inflate = Decompress::new(true);
    let done = inflate.decompress(stream, out, FlushDecompress::Finish);
    match done.is_err() || inflate.total_out() < out.len() as u64 {
        true => broken("deflate: broken, short, or checksum differs"),
        false => Ok(()),
    }
}

/// Tiles of Deflate are the crate's work, which never looks at their checksums.
fn check_tiles(bytes: &[u8], reader: &mut Reader<'_>, page: &Page) -> Result<(), Failure> {
    let bits = u64::from(page.bits) * u64::from(page.samples);
    let (width, height) = reader.chunk_dimensions();
    let wanted = (u64::from(width) * bits).div_ceil(8).saturating_mul(height.into());
    if wanted > page.raw_bytes() + (1 << 20) {
        return unsupported("tiles much larger than the picture".into());
    }
    let mut out: Vec<u8> = zeros(wanted as usize)?;
    for (_, place) in (0..reader.tile_count().map_err(said)?).zip(places(reader)?) {
        inflate(part(bytes, place)?, &mut out)?;
    }
    Ok(())
}

/// Strips of JPEG: the tables they share without their end mark, the strip without its begin mark.
fn jpeg_strips(bytes: &[u8], reader: &mut Reader<'_>, page: &Page) -> Result<Vec<u8>, Failure> {
    if reader.get_chunk_type() == ChunkType::Tile {
        return unsupported("tiles of jpeg".into());
    }
    let tables = reader.get_tag_u8_vec(Tag::JPEGTables).unwrap_or_default();
    let tables = if tables.len() > 2 { &tables[..tables.len() - 2] } else { &[0xff, 0xd8] };
    let mut out: Vec<u8> = zeros(page.raw_bytes() as usize)?;
    let mut rest = &mut out[..];
    for (number, place) in (0..reader.strip_count().map_err(said)?).zip(places(reader)?) {
        let (width, height) = reader.chunk_data_dimensions(number);
        let strip = part(bytes, place)?;
        let stream = [tables, strip.get(2..).unwrap_or(&[])].concat();
        let found = jpeg_probe::frame_of(&stream).map_err(said)?;
        if found != (width, height, page.samples) {
            return unsupported("strips of jpeg of another size".into());
        }
        let strip_bytes = width as usize * height as usize * usize::from(page.samples);
        let Some((here, behind)) = rest.split_at_mut_checked(strip_bytes) else { return broken("too many strips") };
        jpeg::decode_within(&stream, (width, height), page.samples, page.plain, here)?;
        rest = behind;
    }
    if rest.is_empty() { Ok(out) } else { broken("strips are missing") }
}

/// From a page's samples to those wanted.
struct Form {
    kind: Kind,
    palette: Vec<[u8; 3]>,
}

impl Form {
    fn of(reader: &mut Reader<'_>, page: &Page, order: &Order<'_>) -> Result<Self, Failure> {
        let mut palette = Vec::new();
        if page.layout == Layout::Index {
            let colours = reader.get_tag_u16_vec(Tag::ColorMap).map_err(said)?;
            let third = colours.len() / 3;
            let high = |at: usize| (colours[at] >> 8) as u8;
            palette = (0..third).map(|n| [high(n), high(third + n), high(2 * third + n)]).collect();
        }
        let alpha = order.wants.alpha && order.probe.has_alpha;
        let kind = match page.layout {
            _ if alpha => Kind::Rgba,
            Layout::Gray { .. } if order.wants.deep && page.bits == 16 => Kind::Gray16,
            Layout::Gray { .. } | Layout::GrayAlpha => Kind::Gray,
            _ => Kind::Rgb,
        };
        Ok(Self { kind, palette })
    }

    fn finish(&self, raw: &[u8], page: &Page, room: &mut [u8]) -> Result<(), Failure> {
        let line = page.raw_bytes() as usize / page.height as usize;
        let wide = page.bits == 16;
        let (bits, samples) = (usize::from(page.bits), usize::from(page.samples));
        let out_line = page.width as usize * self.kind.bytes();
        for (row, out) in raw.chunks_exact(line).zip(room.chunks_exact_mut(out_line)) {
            for (x, out) in out.chunks_exact_mut(self.kind.bytes()).enumerate() {
                if bits < 8 {
                    let mask = ((1u16 << bits) - 1) as u8;
                    let value = row[x * bits / 8] >> (8 - bits - x * bits % 8) & mask;
                    self.small(page, value, 255 / mask, out);
                    continue;
                }
                let pixel = &row[x * samples * bits / 8..][..samples * bits / 8];
                // Of 16 bits the high byte; gray is another matter.
                let at =
                    |n: usize| if wide { (u16::from_ne_bytes([pixel[2 * n], pixel[2 * n + 1]]) >> 8) as u8 } else { pixel[n] };
                let pixel = match page.layout {
                    Layout::Gray { inverted } if wide => {
                        let stored = u16::from_ne_bytes([pixel[0], pixel[1]]);
                        // The crate has inverted what Pillow does not.
                        let value = if inverted { !stored } else { stored };
                        if self.kind == Kind::Gray16 {
                            out.copy_from_slice(&value.to_ne_bytes());
                            continue;
                        }
                        [value.min(255) as u8; 3].into_iter().chain([255])
                    }
                    Layout::Gray { .. } => [at(0); 3].into_iter().chain([255]),
                    Layout::GrayAlpha => [at(0); 3].into_iter().chain([at(1)]),
                    Layout::Index => {
                        self.small(page, at(0), 1, out);
                        continue;
                    }
                    Layout::Rgb | Layout::Ycbcr => [at(0), at(1), at(2)].into_iter().chain([255]),
                    Layout::Rgba => [at(0), at(1), at(2)].into_iter().chain([at(3)]),
                    Layout::RgbaMultiplied => straight([at(0), at(1), at(2)], at(3)).into_iter().chain([at(3)]),
                    Layout::Cmyk => ink_to_light([at(0), at(1), at(2), at(3)]).into_iter().chain([255]),
                };
                out.iter_mut().zip(pixel).for_each(|(out, value)| *out = value);
            }
        }
        Ok(())
    }

    /// A pixel of one small number: a gray, scaled, or a palette's index.
    fn small(&self, page: &Page, value: u8, scale: u8, out: &mut [u8]) {
        let colour = match page.layout {
            Layout::Index => self.palette.get(usize::from(value)).copied().unwrap_or([0; 3]),
            _ => [value * scale; 3],
        };
        out.iter_mut().zip(colour.into_iter().chain([255])).for_each(|(out, value)| *out = value);
    }
}

/// Pillow's "RGBa": alpha divided out.
fn straight(colour: [u8; 3], alpha: u8) -> [u8; 3] {
    match alpha {
        0 => [0; 3],
        255 => colour,
        alpha => colour.map(|value| (u32::from(value) * 255 / u32::from(alpha)).min(255) as u8),
    }
}
