//! The disk entry: a header that binds everything, then the bytes.
//!
//! A value whose entry would be larger than the tier's chunk is cut into chunks, each an entry of its own with the same header
//! but for its chunk number; `whole` ties chunks of one insert together. What is read back is input from outside: it is parsed
//! within bounds, compared with what was asked for, and believed only then.
//!
//! ```text
//!   0 magic "FCEn" 4 | format 2 | header length 2 | checksum 8      16 class, dtype, layout, orientation 1+1+1+1
//!  20 chunk 2, chunks 2 | 24 payload length 8 | 32 total length 8 | 40 whole 8 | 48 object size 8 | 56 fetched ms 8
//!  64 page or frame 8 | 72 shape 3x4 | 84 source 2x4 | 92 pts 8 | 100 lengths of 5 texts 2 each | 110 format 2
//! 112 bucket, key, member, version, spec
//! ```
//! The format is that of a frame's planes by its number, 0 where there is none or it is not known.
//! Little endian. The checksum is xxh3-64 of the payload, seeded with that of the header from byte 16 on.

use bytes::{BufMut, Bytes, BytesMut};
use framecache::frame::{Dtype, Layout};
use framecache::object::{KEY_BYTES_MAX, MEMBER_BYTES_MAX, VERSION_BYTES_MAX};
use framecache::pixels::yuv::Format;
use framecache::spec::SPEC_BYTES_MAX;
use framecache::{Tensor, TensorHead, Version};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed, xxh3_128};

use super::{Body, Class, Entry, EntryKey, Head};

const MAGIC: [u8; 4] = *b"FCEn";

/// Moves when the layout or the meaning of a field moves. An entry of another format is a miss.
const FORMAT: u16 = 1;

const FIXED: usize = 112;

/// Longest header: the fixed part and the five longest texts.
pub const HEADER_BYTES_MAX: usize = FIXED + 63 + KEY_BYTES_MAX + MEMBER_BYTES_MAX + VERSION_BYTES_MAX + SPEC_BYTES_MAX;

/// Largest value that is cached at all: a picture of 13,377 pixels a side.
pub const VALUE_BYTES_MAX: u64 = 512 << 20;

/// Most chunks of one value.
pub const CHUNKS_MAX: usize = 1024;

/// The 128-bit name of chunk `chunk` of `key` on disk, and of the whole in RAM (chunk 0).
///
/// Names are no proof: the header, or the key beside the value in RAM, is compared with what was asked for.
pub fn name(key: &EntryKey, chunk: u16) -> u128 {
    let mut text = Vec::with_capacity(256);
    let id = key.id();
    for piece in [id.bucket(), id.key(), id.member().unwrap_or("")] {
        text.extend_from_slice(&(piece.len() as u32).to_le_bytes());
        text.extend_from_slice(piece.as_bytes());
    }
    text.put_u8(key.class() as u8);
    text.put_u16_le(chunk);
    match key {
        EntryKey::Page { page, .. } => text.put_u64_le(page.index()),
        EntryKey::Frame { .. } | EntryKey::Index { .. } => {
            let (index, spec) = place(key);
            text.put_u64_le(index);
            text.extend_from_slice(spec.as_bytes());
        }
    }
    xxh3_128(&text)
}

/// What binds an entry to its key beside the object: page or frame, and how it was made.
fn place(key: &EntryKey) -> (u64, String) {
    match key {
        EntryKey::Page { page, .. } => (page.index(), String::new()),
        EntryKey::Frame { frame, spec, .. } => (*frame, spec.keyed_text()),
        // No spec begins so.
        EntryKey::Index { stream: None, .. } => (0, "#index".into()),
        EntryKey::Index { stream: Some(stream), .. } => (0, format!("#index stream={stream}")),
    }
}

/// Why bytes from disk are not the entry that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Another format: written by another release. A miss.
    Format,
    /// Damaged, or another entry's. A miss that is counted, and the entry is removed.
    Corrupt(&'static str),
}

/// One chunk of an entry, as it goes to disk: header and payload, which shares the value's bytes.
#[derive(Clone, Debug)]
pub struct Packed {
    /// The header. Of a packed entry that was read back: all of it, the payload included.
    pub header: Bytes,
    /// The payload; empty in one that was read back.
    pub payload: Bytes,
}

/// What a chunk says, after it was believed.
#[derive(Clone, Debug, PartialEq)]
pub struct Chunk {
    /// Version, size and age of the object.
    pub head: Head,
    /// What the pixels look like, of a decoded frame.
    pub tensor: Option<TensorHead>,
    /// Which chunk this is.
    pub chunk: u16,
    /// Of how many.
    pub chunks: u16,
    /// Bytes of all of them.
    pub total: u64,
    /// Checksum of all of them (0 if there is one).
    pub whole: u64,
    /// The bytes of this one.
    pub payload: Bytes,
}

/// Cuts and packs `entry` into chunks of at most `chunk_bytes` each; `None` if the texts or the value pass their bounds.
pub fn pack(key: &EntryKey, entry: &Entry, chunk_bytes: usize) -> Option<Vec<Packed>> {
    let bytes = entry.body.bytes();
    let count = bytes.len().div_ceil(chunk_bytes.max(1)).max(1);
    if bytes.len() as u64 > VALUE_BYTES_MAX || count > CHUNKS_MAX || key.class() != entry.body.class() {
        return None;
    }
    let whole = if count > 1 { xxh3_64(bytes) } else { 0 };
    let chunk = |at: usize| {
        let start = at * chunk_bytes;
        let payload = bytes.slice(start..bytes.len().min(start + chunk_bytes));
        Some(Packed { header: header(key, entry, (at, count), whole, &payload)?, payload })
    };
    (0..count).map(chunk).collect()
}

fn header(key: &EntryKey, entry: &Entry, (at, count): (usize, usize), whole: u64, payload: &Bytes) -> Option<Bytes> {
    let (index, spec) = place(key);
    let id = key.id();
    let texts = [id.bucket(), id.key(), id.member().unwrap_or(""), entry.head.version.as_str(), spec.as_str()];
    let len = FIXED + texts.iter().map(|text| text.len()).sum::<usize>();
    if len > HEADER_BYTES_MAX || spec.len() > SPEC_BYTES_MAX {
        return None;
    }
    let tensor = match &entry.body {
        Body::Raw(_) => None,
        Body::Frame(tensor) => Some(&tensor.head),
    };
    let mut out = BytesMut::with_capacity(len);
    out.put_slice(&MAGIC);
    out.put_u16_le(FORMAT);
    out.put_u16_le(len as u16);
    out.put_u64_le(0);
    out.put_u8(key.class() as u8);
    out.put_u8(tensor.map_or(0, |t| t.dtype as u8));
    out.put_u8(tensor.map_or(0, |t| t.layout as u8));
    out.put_u8(tensor.map_or(0, |t| t.orientation));
    out.put_u16_le(at as u16);
    out.put_u16_le(count as u16);
    out.put_u64_le(payload.len() as u64);
    out.put_u64_le(entry.body.bytes().len() as u64);
    out.put_u64_le(whole);
    out.put_u64_le(entry.head.size);
    out.put_u64_le(entry.head.fetched_unix_ms);
    out.put_u64_le(index);
    let (shape, source) = tensor.map_or(([0; 3], (0, 0)), |t| (t.shape, t.source));
    shape.into_iter().chain([source.0, source.1]).for_each(|n| out.put_u32_le(n));
    out.put_u64_le(tensor.map_or(0, |t| t.pts_seconds.to_bits()));
    texts.iter().for_each(|text| out.put_u16_le(text.len() as u16));
    out.put_u16_le(tensor.and_then(|t| t.format).map_or(0, Format::number));
    texts.iter().for_each(|text| out.put_slice(text.as_bytes()));
    let sum = xxh3_64_with_seed(payload, xxh3_64(&out[16..]));
    out[8..16].copy_from_slice(&sum.to_le_bytes());
    Some(out.freeze())
}

/// Reads chunk `chunk` of `key` back from `packed`. Nothing is allocated before it is believed.
pub fn unpack(packed: &Packed, key: &EntryKey, chunk: u16) -> Result<Chunk, Refusal> {
    let all = &packed.header;
    let fixed = all.get(..FIXED).ok_or(Refusal::Corrupt("entry is shorter than its header"))?;
    if fixed[..4] != MAGIC {
        return Err(Refusal::Corrupt("entry magic differs"));
    }
    if u16_at(fixed, 4) != FORMAT {
        return Err(Refusal::Format);
    }
    let len = usize::from(u16_at(fixed, 6));
    if !(FIXED..=HEADER_BYTES_MAX).contains(&len) || len > all.len() {
        return Err(Refusal::Corrupt("entry header length is out of bounds"));
    }
    let payload = if packed.payload.is_empty() { all.slice(len..) } else { packed.payload.clone() };
    if payload.len() as u64 != u64_at(fixed, 24) {
        return Err(Refusal::Corrupt("entry payload length differs"));
    }
    if xxh3_64_with_seed(&payload, xxh3_64(&all[16..len])) != u64_at(fixed, 8) {
        return Err(Refusal::Corrupt("entry checksum differs"));
    }
    let texts = texts(&all[..len]).ok_or(Refusal::Corrupt("entry texts are out of bounds"))?;
    believe(fixed, texts, key, chunk, payload)
}

/// Compares what a sound header says with what was asked for.
fn believe(fixed: &[u8], texts: [&str; 5], key: &EntryKey, chunk: u16, payload: Bytes) -> Result<Chunk, Refusal> {
    let id = key.id();
    let (index, asked) = place(key);
    let [bucket, object, member, version, spec] = texts;
    let same = fixed[16] == key.class() as u8
        && (bucket, object, member) == (id.bucket(), id.key(), id.member().unwrap_or(""))
        && u64_at(fixed, 64) == index
        && u16_at(fixed, 20) == chunk
        && spec == asked;
    if !same {
        return Err(Refusal::Corrupt("entry is another's"));
    }
    let version = Version::new(version).map_err(|_| Refusal::Corrupt("entry version is not legal"))?;
    let tensor = match key.class() {
        Class::Raw => None,
        Class::Decoded => Some(tensor_head(fixed).ok_or(Refusal::Corrupt("entry has an unknown pixel layout"))?),
    };
    let (chunks, total) = (u16_at(fixed, 22), u64_at(fixed, 32));
    let bounded = chunk < chunks && usize::from(chunks) <= CHUNKS_MAX && total <= VALUE_BYTES_MAX;
    let sized = tensor.is_none_or(|tensor| tensor.bytes() == total) && (chunks > 1 || total == payload.len() as u64);
    if !bounded || !sized {
        return Err(Refusal::Corrupt("entry sizes contradict each other"));
    }
    let head = Head { version, size: u64_at(fixed, 48), fetched_unix_ms: u64_at(fixed, 56) };
    Ok(Chunk { head, tensor, chunk, chunks, total, whole: u64_at(fixed, 40), payload })
}

/// Puts the chunks of one value together, first to last; `None` if they are not of one insert.
pub fn assemble(chunks: Vec<Chunk>) -> Option<Entry> {
    let first = chunks.first()?.clone();
    let bytes = if chunks.len() == 1 {
        first.payload.clone()
    } else {
        let kin = |(at, c): (usize, &Chunk)| {
            usize::from(c.chunk) == at
                && (&c.head, c.whole, c.chunks, c.total) == (&first.head, first.whole, first.chunks, first.total)
        };
        let length: u64 = chunks.iter().map(|c| c.payload.len() as u64).sum();
        if !chunks.iter().enumerate().all(kin) || length != first.total || chunks.len() != usize::from(first.chunks) {
            return None;
        }
        let mut bytes = Vec::with_capacity(first.total as usize);
        chunks.iter().for_each(|c| bytes.extend_from_slice(&c.payload));
        if xxh3_64(&bytes) != first.whole {
            return None;
        }
        Bytes::from(bytes)
    };
    let body = match first.tensor {
        None => Body::Raw(bytes),
        Some(head) => Body::Frame(Tensor { head, data: bytes }),
    };
    Some(Entry { head: first.head, body })
}

/// The five texts behind the fixed part; they fill the header exactly.
fn texts(header: &[u8]) -> Option<[&str; 5]> {
    let mut texts = [""; 5];
    let mut rest = header.get(FIXED..)?;
    for (at, text) in texts.iter_mut().enumerate() {
        let (head, tail) = rest.split_at_checked(usize::from(u16_at(header, 100 + 2 * at)))?;
        *text = std::str::from_utf8(head).ok()?;
        rest = tail;
    }
    rest.is_empty().then_some(texts)
}

fn tensor_head(fixed: &[u8]) -> Option<TensorHead> {
    let layout = Layout::from_number(fixed[18])?;
    let dtype = Dtype::from_number(fixed[17])?;
    Some(TensorHead {
        shape: [u32_at(fixed, 72), u32_at(fixed, 76), u32_at(fixed, 80)],
        dtype,
        layout,
        source: (u32_at(fixed, 84), u32_at(fixed, 88)),
        orientation: fixed[19],
        pts_seconds: f64::from_bits(u64_at(fixed, 92)),
        format: Format::from_number(u16_at(fixed, 110)).filter(|_| layout == Layout::Planes),
    })
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::super::trials::{dice, frame_entry, frame_key, page_entry, page_key};
    use super::*;

    fn back(packed: &Packed) -> Packed {
        Packed { header: Bytes::from([&packed.header[..], &packed.payload[..]].concat()), payload: Bytes::new() }
    }

    /// Promise: what is packed is read back, whole, chunked and empty, both from the queue and from disk.
    #[test]
    fn entries_round_trip() {
        for (key, entry) in [
            (page_key("a/b", 3), page_entry(1, 100_000)),
            (page_key("a/b", 0), page_entry(1, 0)),
            (frame_key("x.jpg", 0), frame_entry(7, 60)),
        ] {
            for chunk_bytes in [1 << 20, 4096, 999] {
                let packed = pack(&key, &entry, chunk_bytes).expect("pack");
                assert_eq!(packed.len(), entry.body.bytes().len().div_ceil(chunk_bytes).max(1));
                let read = |p: &Packed, n: usize| unpack(p, &key, n as u16).expect("unpack");
                let queued = packed.iter().enumerate().map(|(n, p)| read(p, n)).collect();
                let stored = packed.iter().enumerate().map(|(n, p)| read(&back(p), n)).collect();
                assert_eq!(assemble(queued).as_ref(), Some(&entry));
                assert_eq!(assemble(stored).as_ref(), Some(&entry));
            }
        }
    }

    /// Promise: 10,000 mutated entries neither panic nor pass; a cut or grown one does not either.
    #[test]
    fn mutated_entries_never_pass() {
        let mut roll = dice(11);
        let (key, entry) = (frame_key("dir/x.jpg", 5), frame_entry(3, 20));
        let sound = back(&pack(&key, &entry, 1 << 20).expect("pack")[0]).header;
        for round in 0..10_000 {
            let mut bytes = sound.to_vec();
            match roll() % 8 {
                0 => bytes.truncate(roll() as usize % sound.len()),
                1 => bytes.extend_from_slice(&[0; 3]),
                // Headers matter most: nine in ten flips go there.
                n => {
                    let span = if n == 2 { bytes.len() } else { FIXED + 60 };
                    for _ in 0..=roll() % 3 {
                        let at = roll() as usize % span;
                        bytes[at] ^= (roll() % 255 + 1) as u8;
                    }
                }
            }
            if bytes == sound {
                continue;
            }
            let packed = Packed { header: bytes.into(), payload: Bytes::new() };
            assert!(unpack(&packed, &key, 0).is_err(), "round {round} passed");
        }
    }

    /// Promise: a sound entry of another key, page, spec, class or chunk is not served.
    #[test]
    fn swapped_entries_are_refused() {
        let key = page_key("a", 1);
        let packed = back(&pack(&key, &page_entry(1, 50), 1 << 20).expect("pack")[0]);
        for other in [page_key("a", 2), page_key("b", 1), frame_key("a", 1)] {
            assert!(matches!(unpack(&packed, &other, 0), Err(Refusal::Corrupt("entry is another's"))));
            assert_ne!(name(&key, 0), name(&other, 0));
        }
        assert!(unpack(&packed, &key, 1).is_err());
        assert_ne!(name(&key, 0), name(&key, 1));
        let (old, new) = (page_entry(1, 50), page_entry(2, 50));
        let half =
            |entry: &Entry, n: u16| unpack(&pack(&key, entry, 25).expect("pack")[usize::from(n)], &key, n).expect("unpack");
        assert_eq!(assemble(vec![half(&old, 0), half(&new, 1)]), None);
        assert_eq!(assemble(vec![half(&new, 0), half(&new, 1)]), Some(new));
    }

    /// Promise: an older format is a miss, not damage.
    #[test]
    fn other_formats_are_told_apart() {
        let key = page_key("a", 1);
        let mut bytes = back(&pack(&key, &page_entry(1, 50), 1 << 20).expect("pack")[0]).header.to_vec();
        bytes[4] = 9;
        let packed = Packed { header: bytes.into(), payload: Bytes::new() };
        assert_eq!(unpack(&packed, &key, 0), Err(Refusal::Format));
    }
}
