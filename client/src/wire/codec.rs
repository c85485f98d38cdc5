//! Bytes to messages and back, without I/O. What comes in is hostile: lengths are checked before anything is allocated, and an
//! archive is validated before it is looked at.

use rkyv::api::high::{HighDeserializer, HighSerializer, HighValidator};
use rkyv::bytecheck::CheckBytes;
use rkyv::rancor::Error as Rancor;
use rkyv::ser::allocator::ArenaHandle;
use rkyv::util::AlignedVec;
use rkyv::{Archive, Deserialize, Serialize};

use crate::frame::{Dtype, Layout, TensorHead};
use crate::pixels::yuv::Format;
use crate::wire::*;

/// Bytes of a message's length field.
pub const PREFIX_BYTES: usize = 4;

/// Why bytes are no message. The stream is closed with a code; others on the connection are not affected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The length field passes the message's limit.
    #[error("message of {length} bytes passes the limit of {limit}")]
    TooLong {
        /// What the length field says.
        length: u64,
        /// The limit of this kind of message.
        limit: usize,
    },
    /// The archive is not valid.
    #[error("message is not a valid {0}")]
    Archive(&'static str),
    /// A field is out of its bounds.
    #[error("message field {0} is out of bounds")]
    Field(&'static str),
    /// Own message could not be built: it passes a limit.
    #[error("message cannot be written")]
    Write,
}

/// A kind of message: its name and its limit.
pub trait Message: Archive + Sized {
    /// For errors.
    const NAME: &'static str;
    /// Longest archive, in bytes.
    const BYTES_MAX: usize;
    /// Bounds that the archive's own validation does not know.
    fn check(&self) -> Result<(), CodecError> {
        Ok(())
    }
}

/// The message with its length field, ready to send.
pub fn encode<T>(message: &T) -> Result<Vec<u8>, CodecError>
where
    T: Message + for<'a> Serialize<HighSerializer<AlignedVec, ArenaHandle<'a>, Rancor>>,
{
    let archive = rkyv::to_bytes::<Rancor>(message).map_err(|_| CodecError::Write)?;
    if archive.len() > T::BYTES_MAX {
        return Err(CodecError::TooLong { length: archive.len() as u64, limit: T::BYTES_MAX });
    }
    let mut bytes = Vec::with_capacity(PREFIX_BYTES + archive.len());
    bytes.extend_from_slice(&(archive.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&archive);
    Ok(bytes)
}

/// The archive's length, from the length field, if it is within the limit.
pub fn length<T: Message>(prefix: [u8; PREFIX_BYTES]) -> Result<usize, CodecError> {
    let length = u32::from_le_bytes(prefix) as usize;
    if length > T::BYTES_MAX {
        return Err(CodecError::TooLong { length: length as u64, limit: T::BYTES_MAX });
    }
    Ok(length)
}

/// The message in an archive (without its length field).
pub fn decode<T>(archive: &[u8]) -> Result<T, CodecError>
where
    T: Message,
    T::Archived: for<'a> CheckBytes<HighValidator<'a, Rancor>> + Deserialize<T, HighDeserializer<Rancor>>,
{
    if archive.len() > T::BYTES_MAX {
        return Err(CodecError::TooLong { length: archive.len() as u64, limit: T::BYTES_MAX });
    }
    let message = rkyv::from_bytes::<T, Rancor>(archive).map_err(|_| CodecError::Archive(T::NAME))?;
    message.check()?;
    Ok(message)
}

macro_rules! message {
    ($type:ty, $name:literal, $limit:expr) => {
        impl Message for $type {
            const NAME: &'static str = $name;
            const BYTES_MAX: usize = $limit;
        }
    };
}

message!(ReadBody, "read body", BODY_BYTES_MAX);
message!(DecodeBody, "decode body", BODY_BYTES_MAX);
message!(PeekBody, "peek body", BODY_BYTES_MAX);
message!(ListBody, "list body", BODY_BYTES_MAX);
message!(IndexBody, "index body", BODY_BYTES_MAX);
message!(ViewBody, "view body", BODY_BYTES_MAX);
message!(PlanBody, "plan body", BODY_BYTES_MAX);
message!(KeepBody, "keep body", BODY_BYTES_MAX);
message!(ExplainBody, "explain body", BODY_BYTES_MAX);
message!(AuthBody, "auth body", BODY_BYTES_MAX);
message!(ViewPayload, "view", CONTROL_BYTES_MAX as usize);
message!(ListPayload, "list", CONTROL_BYTES_MAX as usize);
message!(StatPayload, "stat", CONTROL_BYTES_MAX as usize);
message!(ExplainPayload, "explain", CONTROL_BYTES_MAX as usize);

impl Message for Header {
    const NAME: &'static str = "header";
    const BYTES_MAX: usize = HEADER_BYTES_MAX;

    fn check(&self) -> Result<(), CodecError> {
        let names = self.caller.len().max(self.on_behalf_of.len()).max(self.version.len());
        bound(names <= CALLER_BYTES_MAX, "name")?;
        bound(self.ext.len() <= EXT_FIELDS_MAX, "ext")
    }
}

impl Message for FramesBody {
    const NAME: &'static str = "frames body";
    const BYTES_MAX: usize = BODY_BYTES_MAX;

    fn check(&self) -> Result<(), CodecError> {
        bound((1..=BATCH_SPECS_MAX).contains(&self.specs.len()), "specs")?;
        bound((1..=BATCH_ITEMS_MAX).contains(&self.items.len()), "items")?;
        bound(self.items.iter().all(|item| usize::from(item.spec) < self.specs.len()), "spec")
    }
}

impl Message for ObjectsBody {
    const NAME: &'static str = "objects body";
    const BYTES_MAX: usize = BODY_BYTES_MAX;

    fn check(&self) -> Result<(), CodecError> {
        bound((1..=BATCH_ITEMS_MAX).contains(&self.uris.len()), "uris")
    }
}

impl Message for ItemHead {
    const NAME: &'static str = "item";
    const BYTES_MAX: usize = ITEM_BYTES_MAX;

    fn check(&self) -> Result<(), CodecError> {
        bound(self.payload_bytes <= PAYLOAD_BYTES_MAX, "payload_bytes")?;
        bound(self.ext.len() <= EXT_FIELDS_MAX, "ext")
    }
}

pub(super) fn bound(holds: bool, field: &'static str) -> Result<(), CodecError> {
    holds.then_some(()).ok_or(CodecError::Field(field))
}

impl From<TensorHead> for TensorItem {
    fn from(head: TensorHead) -> Self {
        Self {
            shape: head.shape,
            dtype: head.dtype as u8,
            layout: head.layout as u8,
            orientation: head.orientation,
            source: [head.source.0, head.source.1],
            pts_seconds: head.pts_seconds,
        }
    }
}

impl TryFrom<TensorItem> for TensorHead {
    type Error = CodecError;

    fn try_from(item: TensorItem) -> Result<Self, CodecError> {
        let dtype = Dtype::from_number(item.dtype).ok_or(CodecError::Field("dtype"))?;
        let layout = Layout::from_number(item.layout).ok_or(CodecError::Field("layout"))?;
        bound((1..=8).contains(&item.orientation), "orientation")?;
        bound(item.shape.iter().all(|&side| side > 0), "shape")?;
        let source = (item.source[0], item.source[1]);
        let (shape, orientation, pts_seconds) = (item.shape, item.orientation, item.pts_seconds);
        Ok(TensorHead { shape, dtype, layout, source, orientation, pts_seconds, format: None })
    }
}

impl ItemHead {
    /// What the payload looks like, if it is a picture or a frame.
    ///
    /// # Errors
    /// `Field` for what cannot be.
    pub fn tensor_head(&self) -> Result<Option<TensorHead>, CodecError> {
        let Some(item) = self.tensor else { return Ok(None) };
        let head = TensorHead::try_from(item)?;
        let number = self.addition(ext::FORMAT).filter(|_| head.layout == Layout::Planes);
        let format = number.and_then(|bytes| Format::from_number(u16::from_le_bytes(bytes.try_into().ok()?)));
        Ok(Some(TensorHead { format, ..head }))
    }

    /// The same with such a payload.
    pub fn with_tensor(mut self, head: &TensorHead) -> Self {
        self.tensor = Some((*head).into());
        self.ext.extend(head.format.map(|format| (ext::FORMAT, format.number().to_le_bytes().to_vec())));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            verb: Verb::Read as u16,
            class: Class::Ahead as u8,
            deadline_ms_left: 1500,
            trace: Trace { trace_id: [7; 16], span_id: [9; 8], flags: 1 },
            caller: "train".into(),
            on_behalf_of: String::new(),
            version: "\"abc\"".into(),
            ext: vec![(3, vec![1, 2])],
        }
    }

    /// Promise: what is written is what is read.
    #[test]
    fn messages_round_trip() {
        let bytes = encode(&header()).expect("encode");
        let prefix = bytes[..4].try_into().expect("prefix");
        assert_eq!(length::<Header>(prefix).expect("length"), bytes.len() - 4);
        assert_eq!(decode::<Header>(&bytes[4..]).expect("decode"), header());
    }

    /// Promise: no bytes make the decoder panic, or allocate past the message's own length; flips are refused or read as another
    /// valid message within its bounds.
    #[test]
    fn mutants_are_refused_or_bounded() {
        let seed = 0x5eed_u64;
        println!("seed {seed:#x}");
        let mut state = seed;
        let mut next = move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize
        };
        let body = FramesBody {
            specs: vec!["image?short=256".into()],
            items: (0..20)
                .map(|i| FrameAsk { index: i, attempt: 1, spec: 0, uri: format!("s3://abc/{i}.jpg"), version: String::new() })
                .collect(),
        };
        let good = encode(&body).expect("encode");
        for _ in 0..20_000 {
            let mut bytes = good[4..].to_vec();
            for _ in 0..1 + next() % 4 {
                let at = next() % bytes.len();
                bytes[at] = next() as u8;
            }
            bytes.truncate(bytes.len() - next() % 8);
            if let Ok(body) = decode::<FramesBody>(&bytes) {
                assert!(body.items.len() <= BATCH_ITEMS_MAX && body.items.iter().all(|i| usize::from(i.spec) < body.specs.len()));
            }
        }
    }

    /// Promise: a length over the limit is refused before a byte of it is read.
    #[test]
    fn oversize_is_refused_by_its_prefix() {
        let error = length::<Header>(u32::MAX.to_le_bytes()).expect_err("refused");
        assert_eq!(error, CodecError::TooLong { length: u64::from(u32::MAX), limit: HEADER_BYTES_MAX });
    }

    /// Promise: numbers of verbs and statuses are for ever.
    #[test]
    fn numbers_are_frozen() {
        let verbs: Vec<_> = Verb::ALL.iter().map(|v| (*v as u16, v.name())).collect();
        assert_eq!(verbs[0], (1, "read"));
        assert_eq!(verbs[12], (13, "auth"));
        assert_eq!(Verb::from_number(14), None);
        assert_eq!(Status::from_number(4), Status::Changed);
        assert_eq!(Status::from_number(999), Status::Internal);
    }
}
