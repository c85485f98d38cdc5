//! What is cached: objects of a bucket, their versions, and the ranges into which reads are cut.
//!
//! Everything here is parsed once at the edge and is valid from then on: an [`ObjectId`] that exists has a legal bucket and key,
//! a [`ByteRange`] is never reversed. Text comes from users and from the wire alike.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use xxhash_rust::xxh3::xxh3_64;

/// Bytes of one cached page. Pages are aligned; the last one of an object is short.
///
/// 1 MiB: large enough that a page costs one disk read at the device's full rate and one origin request is worth its latency,
/// small enough that a random 64 KiB read does not fetch much more than it needs.
pub const PAGE_BYTES: u64 = 1 << 20;

/// Bytes of one span: the part of an object that one node owns. A span is for routing only.
pub const SPAN_BYTES: u64 = 64 << 20;

/// Longest key that S3 allows, in bytes (S3 User Guide, "Naming Amazon S3 objects").
pub const KEY_BYTES_MAX: usize = 1024;

/// Longest archive member path, in bytes: a PAX path may be longer, but such a shard is refused rather than cached.
pub const MEMBER_BYTES_MAX: usize = 4096;

/// Longest version (etag) that is accepted from an origin, in bytes.
pub const VERSION_BYTES_MAX: usize = 256;

/// An object of a bucket, or a member of an archive object: `s3://bucket/key` or `s3://bucket/shard.tar!/path/in/tar`.
///
/// A literal `!/` in a key is written `%21/`. So that this is no other key's text, one more `25` is put after the `%` of a literal
/// `%21/` (`%2521/`), of a literal `%2521/` (`%252521/`), and so on. All else in a key is literal: every key has one address, and
/// two addresses never name one object.
///
/// ```
/// use framecache::ObjectId;
/// let id: ObjectId = "s3://photos/2024/a.jpg".parse()?;
/// assert_eq!((id.bucket(), id.key(), id.member()), ("photos", "2024/a.jpg", None));
/// let id: ObjectId = "s3://photos/shard-0.tar!/0001.jpg".parse()?;
/// assert_eq!(id.member(), Some("0001.jpg"));
/// # Ok::<(), framecache::object::ParseError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId {
    bucket: Box<str>,
    key: Box<str>,
    member: Option<Box<str>>,
}

/// Why a text names no object. Nothing was asked of anybody: correct the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// The text does not begin with `s3://bucket/`.
    #[error("not an object address: {0:?} (want s3://bucket/key)")]
    Scheme(String),
    /// The bucket has an illegal length or character.
    #[error("bucket name {0:?} is not legal (3 to 63 of a-z, 0-9, '.', '-', '_')")]
    Bucket(String),
    /// The key is empty or longer than 1,024 bytes.
    #[error("key of {0} bytes is not legal (1 to 1024)")]
    Key(usize),
    /// The member path is empty or longer than 4,096 bytes.
    #[error("archive member path of {0} bytes is not legal (1 to 4096)")]
    Member(usize),
    /// A version is empty, too long, or holds control characters.
    #[error("version of {0} bytes is not legal")]
    Version(usize),
}

impl ObjectId {
    /// An object by bucket and key, both taken literally.
    pub fn new(bucket: &str, key: &str) -> Result<Self, ParseError> {
        check_bucket(bucket)?;
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return Err(ParseError::Key(key.len()));
        }
        Ok(Self { bucket: bucket.into(), key: key.into(), member: None })
    }

    /// The member `path` of this archive object.
    pub fn with_member(&self, path: &str) -> Result<Self, ParseError> {
        if path.is_empty() || path.len() > MEMBER_BYTES_MAX {
            return Err(ParseError::Member(path.len()));
        }
        Ok(Self { member: Some(path.into()), ..self.clone() })
    }

    /// The bucket's name.
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// The key inside the bucket, unescaped.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The path inside the archive, if this names a member.
    pub fn member(&self) -> Option<&str> {
        self.member.as_deref()
    }

    /// The archive or plain object that holds this, without the member.
    pub fn object(&self) -> ObjectId {
        Self { member: None, ..self.clone() }
    }
}

impl FromStr for ObjectId {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let scheme = || ParseError::Scheme(text.chars().take(200).collect());
        let rest = text.strip_prefix("s3://").ok_or_else(scheme)?;
        let (bucket, path) = rest.split_once('/').ok_or_else(scheme)?;
        match path.split_once("!/") {
            None => Self::new(bucket, &unescaped(path)),
            Some((key, member)) => Self::new(bucket, &unescaped(key))?.with_member(member),
        }
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s3://{}/{}", self.bucket, escaped(&self.key))?;
        match &self.member {
            Some(path) => write!(f, "!/{path}"),
            None => Ok(()),
        }
    }
}

/// A key as its address has it; see [`ObjectId`].
fn escaped(key: &str) -> Cow<'_, str> {
    rewritten(key, |part, escape| match escape {
        _ if part.ends_with('!') => Some(format!("{}%21/", &part[..part.len() - 1])),
        Some(at) => Some(format!("{}25{}/", &part[..at], &part[at..])),
        None => None,
    })
}

/// The key, or the beginning of one, that an address writes so.
pub(crate) fn unescaped(text: &str) -> Cow<'_, str> {
    rewritten(text, |part, escape| {
        let (before, digits) = part.split_at(escape?);
        Some(match digits.strip_prefix("25") {
            None => format!("{}!/", &before[..before.len() - 1]),
            Some(fewer) => format!("{before}{fewer}/"),
        })
    })
}

/// `text` with every part that a `/` ends, given without it, replaced by what `rule` makes of it. The rule is told where the part's
/// last digits begin, if these are an escape's: `21`, `2521`, `252521` and so on, after a `%`.
fn rewritten(text: &str, rule: impl Fn(&str, Option<usize>) -> Option<String>) -> Cow<'_, str> {
    // Nearly all keys hold neither, and an address is made for each request.
    if !text.contains("!/") && !text.contains("21/") {
        return Cow::Borrowed(text);
    }
    let escape = |part: &str| {
        let mut before = part.strip_suffix("21")?;
        while let Some(shorter) = before.strip_suffix("25") {
            before = shorter;
        }
        before.ends_with('%').then_some(before.len())
    };
    let whole = |piece: &str| piece.strip_suffix('/').and_then(|part| rule(part, escape(part)));
    Cow::Owned(text.split_inclusive('/').map(|piece| whole(piece).map_or(Cow::Borrowed(piece), Cow::Owned)).collect())
}

/// Bucket names as S3 has them, and `_` besides, which older buckets and other stores use.
fn check_bucket(bucket: &str) -> Result<(), ParseError> {
    let legal = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'-' | b'_');
    let ok = (3..=63).contains(&bucket.len()) && bucket.bytes().all(legal) && !bucket.starts_with('.');
    ok.then_some(()).ok_or_else(|| ParseError::Bucket(bucket.chars().take(80).collect()))
}

/// One version of an object: the origin's etag, opaque, compared byte for byte. Bytes of two versions never mix.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Version(Box<str>);

impl Version {
    /// A version from the origin's etag, quotes and all.
    pub fn new(etag: &str) -> Result<Self, ParseError> {
        let ok = (1..=VERSION_BYTES_MAX).contains(&etag.len()) && !etag.bytes().any(|b| b.is_ascii_control());
        ok.then(|| Self(etag.into())).ok_or(ParseError::Version(etag.len()))
    }

    /// The etag as the origin sent it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A half-open range of bytes, `[start, end)`; never reversed, possibly empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ByteRange {
    start: u64,
    end: u64,
}

impl ByteRange {
    /// `[start, end)`; `None` if reversed.
    pub fn new(start: u64, end: u64) -> Option<Self> {
        (start <= end).then_some(Self { start, end })
    }

    /// `length` bytes from `start` on; `None` if that passes the end of the number range.
    pub fn at(start: u64, length: u64) -> Option<Self> {
        Some(Self { start, end: start.checked_add(length)? })
    }

    /// First byte.
    pub fn start(self) -> u64 {
        self.start
    }

    /// One past the last byte.
    pub fn end(self) -> u64 {
        self.end
    }

    /// Number of bytes.
    pub fn len(self) -> u64 {
        self.end - self.start
    }

    /// Whether it holds no byte.
    pub fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// The part of this range that lies below `size`.
    pub fn clamp(self, size: u64) -> Self {
        Self { start: self.start.min(size), end: self.end.min(size) }
    }

    /// The part that both hold; empty if they do not touch.
    pub fn intersect(self, other: Self) -> Self {
        let start = self.start.max(other.start);
        Self { start, end: self.end.min(other.end).max(start) }
    }

    /// The pages that hold this range, in order.
    pub fn pages(self) -> impl Iterator<Item = Page> + Clone {
        let last = if self.is_empty() { self.start / PAGE_BYTES } else { (self.end - 1) / PAGE_BYTES + 1 };
        (self.start / PAGE_BYTES..last).map(Page)
    }

    /// This range cut at span borders, in order, each with its span.
    pub fn spans(self) -> impl Iterator<Item = (Span, ByteRange)> + Clone {
        let last = if self.is_empty() { self.start / SPAN_BYTES } else { (self.end - 1) / SPAN_BYTES + 1 };
        (self.start / SPAN_BYTES..last).map(move |index| {
            let span = Span(index);
            (span, self.intersect(span.range()))
        })
    }
}

impl fmt::Display for ByteRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {})", self.start, self.end)
    }
}

/// The n-th page of an object: bytes `[n * PAGE_BYTES, (n + 1) * PAGE_BYTES)`, the unit in which raw bytes are cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Page(u64);

impl Page {
    /// The page of that index.
    pub fn new(index: u64) -> Self {
        Self(index)
    }

    /// Its index.
    pub fn index(self) -> u64 {
        self.0
    }

    /// Its bytes, as if the object did not end.
    pub fn range(self) -> ByteRange {
        let start = self.0.saturating_mul(PAGE_BYTES);
        ByteRange { start, end: start.saturating_add(PAGE_BYTES) }
    }
}

/// The n-th span of an object: the unit by which raw reads are routed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Span(u64);

impl Span {
    /// The span of that index.
    pub fn new(index: u64) -> Self {
        Self(index)
    }

    /// Its index.
    pub fn index(self) -> u64 {
        self.0
    }

    /// Its bytes, as if the object did not end.
    pub fn range(self) -> ByteRange {
        let start = self.0.saturating_mul(SPAN_BYTES);
        ByteRange { start, end: start.saturating_add(SPAN_BYTES) }
    }
}

/// Where a request goes: the 64-bit key by which the ring is walked. Versions never enter it, so that a new version of an object
/// finds the node that holds the old one.
///
/// The text under the hash (xxh3, seed 0) is part of the protocol: `docs/PROTOCOL.md`, frozen by golden data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RouteKey(pub u64);

/// Frames of a video that share one owner.
pub const ROUTE_FRAMES: u64 = 1024;

impl RouteKey {
    /// Raw bytes: by object and span. The first span is the object's own place, so that a small object's bytes, facts and renditions
    /// live on one node.
    pub fn raw(id: &ObjectId, span: Span) -> Self {
        match span.0 {
            0 => Self::object(id),
            span => Self::of("raw", &id.object(), &span.to_string()),
        }
    }

    /// A picture, or an archive member, decoded: by object (and member) alone, so that all its renditions live together.
    pub fn picture(id: &ObjectId) -> Self {
        match id.member() {
            Some(_) => Self::of("member", id, ""),
            None => Self::object(id),
        }
    }

    /// Frame `index` of a video: by object and `index / 1024`; the first ones where a picture would be.
    pub fn frame(id: &ObjectId, index: u64) -> Self {
        match index / ROUTE_FRAMES {
            0 => Self::picture(id),
            part => Self::of("frames", id, &part.to_string()),
        }
    }

    /// Facts about an object (its head, its index, its time selectors): by object.
    pub fn object(id: &ObjectId) -> Self {
        Self::of("object", &id.object(), "")
    }

    fn of(kind: &str, id: &ObjectId, part: &str) -> Self {
        let mut text = Vec::with_capacity(id.bucket.len() + id.key.len() + 64);
        for piece in [kind, &id.bucket, &id.key, id.member().unwrap_or(""), part] {
            text.extend_from_slice(&(piece.len() as u32).to_le_bytes());
            text.extend_from_slice(piece.as_bytes());
        }
        Self(xxh3_64(&text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: text and value are one to one, also where a key holds the member mark.
    #[test]
    fn address_round_trips() {
        for text in
            ["s3://abc/k", "s3://abc/a/b c/ü.jpg", "s3://abc/odd%21/x.tar!/m/1.jpg", "s3://abc/a!b", "s3://abc/t.tar!/a!/b"]
        {
            let id: ObjectId = text.parse().expect("parse");
            assert_eq!(id.to_string(), text);
        }
        let id = ObjectId::new("abc", "x!/y").expect("literal");
        assert_eq!(id.to_string(), "s3://abc/x%21/y");
        assert_eq!(id.to_string().parse::<ObjectId>(), Ok(id));
    }

    /// Promise: an address names one object and an object has one address, whatever the key holds.
    #[test]
    fn every_key_has_one_address() {
        const LETTERS: &[u8] = b"!/%215";
        let mut keys = vec![String::new()];
        for _ in 0..7 {
            keys =
                keys.iter().flat_map(|key| LETTERS.iter().map(move |&letter| format!("{key}{}", char::from(letter)))).collect();
            for key in &keys {
                let id = ObjectId::new("abc", key).expect("legal");
                let text = id.to_string();
                assert_eq!(text.parse::<ObjectId>(), Ok(id.clone()), "{key}");
                let member = id.with_member("a!/%21/b").expect("legal");
                assert_eq!(member.to_string().parse::<ObjectId>(), Ok(member), "{key}");
                if !key.contains("!/") {
                    let text = format!("s3://abc/{key}");
                    assert_eq!(text.parse::<ObjectId>().expect("parse").to_string(), text);
                }
            }
        }
        for (key, text) in [("a%21/b", "a%2521/b"), ("a%2521/b", "a%252521/b"), ("%21", "%21"), ("a%25/b", "a%25/b")] {
            assert_eq!(ObjectId::new("abc", key).expect("legal").to_string(), format!("s3://abc/{text}"));
        }
    }

    /// Promise: text that names no object is refused with the reason, whatever its size.
    #[test]
    fn bad_address_is_refused() {
        for text in ["", "s3:/a/b", "http://a/b", "s3://ab/k", "s3://UPPER/k", "s3://abc", "s3://abc/", "s3://abc/x.tar!/"] {
            assert!(text.parse::<ObjectId>().is_err(), "{text}");
        }
        assert_eq!(ObjectId::new("abc", &"k".repeat(1025)), Err(ParseError::Key(1025)));
        assert!(Version::new("").is_err() && Version::new("a\nb").is_err() && Version::new(&"v".repeat(257)).is_err());
    }

    /// Promise: pages and spans cover a range exactly, without overlap.
    #[test]
    fn ranges_are_cut_without_gap() {
        let range = ByteRange::new(SPAN_BYTES - 10, SPAN_BYTES + PAGE_BYTES + 1).expect("range");
        assert_eq!(range.pages().map(Page::index).collect::<Vec<_>>(), [63, 64, 65]);
        let parts: Vec<_> = range.spans().map(|(s, r)| (s.index(), r.len())).collect();
        assert_eq!(parts, [(0, 10), (1, PAGE_BYTES + 1)]);
        assert_eq!(ByteRange::new(5, 5).expect("empty").pages().count(), 0);
        assert_eq!(ByteRange::at(u64::MAX, 1), None);
    }

    /// Promise: a small object lives on one node whole, what lies further on is routed apart, and a version never moves a key.
    #[test]
    fn route_keys_are_distinct() {
        let a = ObjectId::new("abc", "k").expect("id");
        let member = a.with_member("m").expect("member");
        let keys = [
            RouteKey::object(&a),
            RouteKey::raw(&a, Span(1)),
            RouteKey::raw(&a, Span(2)),
            RouteKey::picture(&member),
            RouteKey::frame(&a, 1024),
            RouteKey::frame(&member, 1024),
        ];
        let unique: std::collections::BTreeSet<_> = keys.iter().collect();
        assert_eq!(unique.len(), keys.len());
        for same in [RouteKey::raw(&a, Span(0)), RouteKey::picture(&a), RouteKey::frame(&a, 0), RouteKey::object(&member)] {
            assert_eq!(same, RouteKey::object(&a));
        }
        assert_eq!(RouteKey::frame(&a, 1024), RouteKey::frame(&a, 2047));
        assert_eq!(RouteKey::frame(&member, 1023), RouteKey::picture(&member));
    }
}
