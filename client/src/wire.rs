//! The wire: what a request and a reply say, and their limits. `docs/PROTOCOL.md` is the text of record.
//!
//! One request is one bidirectional stream. The asking side sends two messages, [`Header`] and the verb's body, and ends its
//! side; the answering side sends items, each an [`ItemHead`] and that many payload bytes, and ends its side after the last.
//! A message is a `u32` length (little-endian) and an `rkyv` archive (little-endian, unaligned, validated before use).
//!
//! [`Header`] and [`ItemHead`] never change shape: new fields go into `ext`. A verb's body may be replaced only with a new verb
//! or a new ALPN version.

mod body;
pub mod codec;
#[cfg(test)]
mod golden;
mod payload;
pub mod stream;
mod video;

use rkyv::{Archive, Deserialize, Serialize};

pub use body::*;
pub use payload::*;
pub use video::*;

/// ALPN names that a node offers, newest first: N and, once there is one, N − 1.
pub const ALPN: &[&[u8]] = &[b"framecache/1"];

/// Longest header message, in bytes. A caller, an on-behalf-of name and an etag are 256 each; the rest is for `ext`.
pub const HEADER_BYTES_MAX: usize = 16 << 10;
/// Longest body message, in bytes: 4,096 addresses of 1 KiB would not fit, 1,024 do, and shorter ones pack better.
pub const BODY_BYTES_MAX: usize = 1 << 20;
/// Longest item head, in bytes.
pub const ITEM_BYTES_MAX: usize = 16 << 10;
/// Most items in one `Frames`, `Stat` or `Warm` request.
pub const BATCH_ITEMS_MAX: usize = 4096;
/// Most different specs in one `Frames` request: each item may have its own box, or frame.
pub const BATCH_SPECS_MAX: usize = BATCH_ITEMS_MAX;
/// Longest payload of one item, in bytes: the decoded pixels of the largest picture that is allowed by default, and then some.
pub const PAYLOAD_BYTES_MAX: u32 = 1 << 30;
/// Longest control payload (view, list, explain), in bytes.
pub const CONTROL_BYTES_MAX: u32 = 4 << 20;
/// Most entries of one `List` reply: S3's own page.
pub const LIST_ITEMS_MAX: u32 = 1000;
/// Longest name of a caller, in bytes.
pub const CALLER_BYTES_MAX: usize = 256;
/// Most extension fields of a message.
pub const EXT_FIELDS_MAX: usize = 64;

/// Codes with which a stream or connection is ended before its time.
pub mod code {
    /// What arrived is no message of this protocol, or passes a limit.
    pub const MALFORMED: u32 = 1;
    /// A message, or the draining of a reply, took too long.
    pub const SLOW: u32 = 2;
    /// The node ends.
    pub const LEAVING: u32 = 3;
}

/// What is asked. Numbers are for ever; an unknown one is answered with [`Status::UnknownVerb`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Verb {
    /// Raw bytes of a range.
    Read = 1,
    /// Decoded pictures or frames, a batch.
    Frames = 2,
    /// One decode unit for a peer: decoded, streamed, not kept.
    Decode = 3,
    /// A cached page or frame, if held; asks nobody.
    Peek = 4,
    /// Version, size and media facts.
    Stat = 5,
    /// Objects under a prefix, or members of an archive, paged.
    List = 6,
    /// Slices of indexes, and what a selection of frames comes to.
    Index = 7,
    /// Fill these, at low priority.
    Warm = 8,
    /// The members of the cluster.
    View = 9,
    /// What a loader will ask next.
    Plan = 10,
    /// Pin or evict.
    Keep = 11,
    /// Who owns it, where it is cached, and why.
    Explain = 12,
    /// Who is asking.
    Auth = 13,
}

impl Verb {
    /// Every verb, by number.
    pub const ALL: [Verb; 13] = [
        Verb::Read,
        Verb::Frames,
        Verb::Decode,
        Verb::Peek,
        Verb::Stat,
        Verb::List,
        Verb::Index,
        Verb::Warm,
        Verb::View,
        Verb::Plan,
        Verb::Keep,
        Verb::Explain,
        Verb::Auth,
    ];

    /// The verb of that number.
    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|verb| *verb as u16 == number)
    }

    /// Its name, in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Verb::Read => "read",
            Verb::Frames => "frames",
            Verb::Decode => "decode",
            Verb::Peek => "peek",
            Verb::Stat => "stat",
            Verb::List => "list",
            Verb::Index => "index",
            Verb::Warm => "warm",
            Verb::View => "view",
            Verb::Plan => "plan",
            Verb::Keep => "keep",
            Verb::Explain => "explain",
            Verb::Auth => "auth",
        }
    }
}

/// How an item ended. Numbers are for ever; an unknown one is read as [`Status::Internal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Status {
    /// Here it is.
    Ok = 0,
    /// The origin has no such object. Final.
    NotFound = 1,
    /// The policy here, or the origin, does not permit it. Final.
    Denied = 2,
    /// No such bucket in this cluster's configuration; the origin was not asked. Final.
    NotConfigured = 3,
    /// The object was replaced; `message` names both versions. Final for this logical read.
    Changed = 4,
    /// The bytes are no picture, or a broken one. Final.
    Undecodable = 5,
    /// A format, spec or address form that is known but not supported. Final.
    Unsupported = 6,
    /// Declared dimensions, or the whole need, pass a limit. Final.
    TooLarge = 7,
    /// Try again after `retry_after_ms`.
    Busy = 8,
    /// The deadline passed here.
    Timeout = 9,
    /// The node leaves: ask the walk's next.
    Leaving = 10,
    /// This node does not know the verb.
    UnknownVerb = 11,
    /// The request breaks the protocol or names nothing; correct it. Final.
    Malformed = 12,
    /// The origin cannot be reached, or fails.
    Unavailable = 13,
    /// The node failed; its log says how.
    Internal = 14,
    /// The range starts past the object's end. Final.
    OutOfRange = 15,
}

impl Status {
    /// The status of that number.
    pub fn from_number(number: u16) -> Self {
        use Status::*;
        let all = [
            Ok,
            NotFound,
            Denied,
            NotConfigured,
            Changed,
            Undecodable,
            Unsupported,
            TooLarge,
            Busy,
            Timeout,
            Leaving,
            UnknownVerb,
            Malformed,
            Unavailable,
            Internal,
            OutOfRange,
        ];
        all.into_iter().find(|status| *status as u16 == number).unwrap_or(Internal)
    }

    /// Its name, as metrics and messages have it.
    pub fn name(self) -> &'static str {
        match self {
            Status::Ok => "ok",
            Status::NotFound => "not found",
            Status::Denied => "denied",
            Status::NotConfigured => "not configured",
            Status::Changed => "changed",
            Status::Undecodable => "undecodable",
            Status::Unsupported => "unsupported",
            Status::TooLarge => "too large",
            Status::Busy => "busy",
            Status::Timeout => "timeout",
            Status::Leaving => "leaving",
            Status::UnknownVerb => "unknown verb",
            Status::Malformed => "malformed",
            Status::Unavailable => "unavailable",
            Status::Internal => "internal",
            Status::OutOfRange => "out of range",
        }
    }
}

/// Who comes first when not all can.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Class {
    /// Somebody waits for it.
    #[default]
    Now = 0,
    /// A loader reads ahead.
    Ahead = 1,
    /// A warm-up.
    Warm = 2,
}

impl Class {
    /// The class of that number; an unknown one comes last.
    pub fn from_number(number: u8) -> Self {
        match number {
            0 => Class::Now,
            1 => Class::Ahead,
            _ => Class::Warm,
        }
    }
}

/// W3C trace context, as bytes. All zero: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct Trace {
    /// Trace id.
    pub trace_id: [u8; 16],
    /// The caller's span.
    pub span_id: [u8; 8],
    /// Bit 0: sampled.
    pub flags: u8,
}

impl Trace {
    /// From `traceparent` as HTTP and `TRACEPARENT` have it (W3C Trace Context, section 3.2); `None` if it is no such text.
    ///
    /// ```
    /// let text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    /// assert_eq!(framecache::wire::Trace::parse(text).map(|trace| trace.flags), Some(1));
    /// ```
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().split('-');
        let version = parts.next()?;
        let (trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?);
        let hex = |part: &str, digits| part.len() == digits && part.bytes().all(|b| b.is_ascii_hexdigit());
        if !hex(version, 2) || version == "ff" || !hex(trace, 32) || !hex(span, 16) || !hex(flags, 2) {
            return None;
        }
        let trace_id = u128::from_str_radix(trace, 16).ok()?.to_be_bytes();
        let span_id = u64::from_str_radix(span, 16).ok()?.to_be_bytes();
        Some(Self { trace_id, span_id, flags: u8::from_str_radix(flags, 16).ok()? })
    }
}

/// A later addition to a fixed message: number and bytes. Unknown numbers are passed over.
pub type Ext = Vec<(u16, Vec<u8>)>;

/// The numbers of additions to a [`Header`] and to an [`ItemHead`].
pub mod ext {
    /// Reply to `Stat`: Pillow's `Image.mode` of the picture, as text.
    pub const MODE: u16 = 1;
    /// Reply to `Stat`: number of frames or pages, as a little-endian `u32`; absent where only decoding would tell.
    pub const FRAMES: u16 = 2;
    /// Reply to `Stat`: the archive of a [`super::VideoFacts`], of a video.
    pub const VIDEO: u16 = 3;
    /// Reply to `Stat`: why an object is no picture and no video: the number of a [`super::Status`], one little-endian `u16`, and why in
    /// words, at most [`REFUSED_BYTES_MAX`] bytes of them.
    pub const REFUSED: u16 = 4;
    /// Longest reason in [`REFUSED`], in bytes.
    pub const REFUSED_BYTES_MAX: usize = 256;
    /// Item of `Frames`, `Peek` or `Decode` with a frame's planes: [`crate::pixels::yuv::Format::number`], as a little-endian `u16`.
    pub const FORMAT: u16 = 5;
    /// Request: [`crate::View::digest`] of the view that the caller has, as a little-endian `u64`.
    pub const VIEW: u16 = 16;
    /// Reply, first item: the rows that the caller's view lacks, as a [`super::ViewPayload`] archive. Empty: too many, ask `View`.
    pub const VIEW_DELTA: u16 = 17;
    /// Request: the number of a [`super::Via`], one byte; absent: the owner is asked.
    pub const VIA: u16 = 18;
    /// Request: the sender is the node of this name, as its certificate proves.
    pub const PEER: u16 = 19;
    /// Reply to a node: milliseconds since the origin said that this is the version, as a little-endian `u64`.
    pub const AGE: u16 = 20;
}

/// Why this node is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Via {
    /// The caller takes it for the owner.
    #[default]
    Owner = 0,
    /// Who comes before it in the walk is slow or busy: this node is to see to it by itself.
    Failover = 1,
    /// The key is hot: this is one of several that serve it, and fills from the owner.
    Replica = 2,
    /// The caller does not reach the owner. This node may.
    Unreached = 3,
}

impl Via {
    /// Of that number; an unknown one is the owner's.
    pub fn from_number(number: u8) -> Self {
        match number {
            1 => Via::Failover,
            2 => Via::Replica,
            3 => Via::Unreached,
            _ => Via::Owner,
        }
    }
}

impl Header {
    /// The bytes of an addition, if there is one of that number.
    pub fn addition(&self, number: u16) -> Option<&[u8]> {
        self.ext.iter().find(|(found, _)| *found == number).map(|(_, bytes)| &bytes[..])
    }

    /// Why this node is asked.
    pub fn via(&self) -> Via {
        self.addition(ext::VIA).and_then(|bytes| bytes.first()).map_or(Via::Owner, |number| Via::from_number(*number))
    }

    /// The node that the sender says it is. Believed only with a certificate that carries the name.
    pub fn peer(&self) -> Option<&str> {
        self.addition(ext::PEER).and_then(|bytes| std::str::from_utf8(bytes).ok())
    }
}

impl ItemHead {
    /// The bytes of an addition, if there is one of that number.
    pub fn addition(&self, number: u16) -> Option<&[u8]> {
        self.ext.iter().find(|(found, _)| *found == number).map(|(_, bytes)| &bytes[..])
    }
}

/// What every request begins with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct Header {
    /// The number of a [`Verb`].
    pub verb: u16,
    /// The number of a [`Class`].
    pub class: u8,
    /// Milliseconds that the caller will still wait; counted from the arrival of this message.
    pub deadline_ms_left: u32,
    /// The caller's trace.
    pub trace: Trace,
    /// A name for the caller's job, for metrics and quotas; never trusted for access.
    pub caller: String,
    /// For a peer: the caller on whose behalf it asks. Empty: nobody's.
    pub on_behalf_of: String,
    /// The version that the logical read is pinned to. Empty: none.
    pub version: String,
    /// Later additions.
    pub ext: Ext,
}

/// What every item of a reply begins with.
#[derive(Clone, Debug, Default, PartialEq, Archive, Serialize, Deserialize)]
pub struct ItemHead {
    /// The caller's slot; 0 where a request has only one.
    pub index: u32,
    /// The try that this answers.
    pub attempt: u16,
    /// The number of a [`Status`].
    pub status: u16,
    /// Whether this is the last item of its slot.
    pub last: bool,
    /// Payload bytes that follow.
    pub payload_bytes: u32,
    /// Where they belong: byte of the object for `Read`, else 0.
    pub offset: u64,
    /// Bytes of the whole object, where known.
    pub size: u64,
    /// The object's version. Empty where nothing was found.
    pub version: String,
    /// For [`Status::Busy`]: wait this long.
    pub retry_after_ms: u32,
    /// For people: why.
    pub message: String,
    /// What the payload looks like, for `Frames` and `Decode`.
    pub tensor: Option<TensorItem>,
    /// Later additions.
    pub ext: Ext,
}

/// [`crate::TensorHead`] on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Archive, Serialize, Deserialize)]
pub struct TensorItem {
    /// Height, width, channels.
    pub shape: [u32; 3],
    /// The number of a [`crate::frame::Dtype`].
    pub dtype: u8,
    /// The number of a [`crate::frame::Layout`].
    pub layout: u8,
    /// EXIF orientation, 1 to 8.
    pub orientation: u8,
    /// Width and height before resize and crop.
    pub source: [u32; 2],
    /// Presentation time.
    pub pts_seconds: f64,
}
