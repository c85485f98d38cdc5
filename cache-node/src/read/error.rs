//! Why a read failed, in terms that the wire can say.

use std::time::Duration;

use framecache::Version;
use framecache::object::ParseError;

use crate::budget::Refused;
use crate::decode::{DecodeError, SourceError};
use crate::origin::OriginError;

/// Why a read failed, as the wire can say it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The origin has no such object.
    #[error("no such object")]
    NotFound,
    /// The origin does not permit it.
    #[error("the origin does not permit it")]
    Denied,
    /// The bucket is not configured.
    #[error("bucket {0:?} is not configured on this cluster")]
    NotConfigured(String),
    /// The object was replaced.
    #[error("object changed from version {old} to {}", .new.as_ref().map_or("an unknown one", Version::as_str))]
    Changed {
        /// What was pinned.
        old: Version,
        /// What is there now, if the origin said so.
        new: Option<Version>,
    },
    /// The bytes are no picture, or a broken one.
    #[error("{0}")]
    Undecodable(String),
    /// Known, but not supported.
    #[error("{0}")]
    Unsupported(String),
    /// Over a limit.
    #[error("{0}")]
    TooLarge(String),
    /// The range starts past the end.
    #[error("range starts at {start}, past the end of {size} bytes")]
    OutOfRange {
        /// First byte asked for.
        start: u64,
        /// Bytes of the object.
        size: u64,
    },
    /// Frames are counted from 0.
    #[error("no such frame, there are {count}")]
    NoFrame {
        /// Frames or pages.
        count: u32,
    },
    /// Another node said so of a range or frame.
    #[error("{0}")]
    PastEnd(String),
    /// At a bound; come back.
    #[error("the node is busy")]
    Busy {
        /// When.
        retry_after: Duration,
    },
    /// The deadline passed.
    #[error("the deadline passed")]
    Deadline,
    /// The origin fails, or a decoder could not be had.
    #[error("{0}")]
    Unavailable(String),
}

impl From<Refused> for ReadError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Busy { retry_after } => ReadError::Busy { retry_after },
            Refused::Deadline => ReadError::Deadline,
            Refused::TooLarge { bytes, most } => {
                ReadError::TooLarge(format!("it needs {bytes} bytes of memory at once, and this node has {most} for it"))
            }
        }
    }
}

impl From<OriginError> for ReadError {
    fn from(error: OriginError) -> Self {
        match error {
            OriginError::NotConfigured(bucket) => ReadError::NotConfigured(bucket),
            OriginError::NotFound => ReadError::NotFound,
            OriginError::Denied => ReadError::Denied,
            OriginError::Changed { old, new } => ReadError::Changed { old, new },
            OriginError::Busy { retry_after } => ReadError::Busy { retry_after },
            OriginError::Deadline => ReadError::Deadline,
            other => ReadError::Unavailable(other.to_string()),
        }
    }
}

impl From<DecodeError> for ReadError {
    fn from(error: DecodeError) -> Self {
        let text = error.to_string();
        match error {
            DecodeError::Undecodable { .. } | DecodeError::Quarantined { .. } | DecodeError::NeedMore { .. } => {
                ReadError::Undecodable(text)
            }
            DecodeError::Unsupported { .. } => ReadError::Unsupported(text),
            DecodeError::TooLarge { .. } => ReadError::TooLarge(text),
            DecodeError::NoFrame { count } => ReadError::NoFrame { count },
            DecodeError::Busy { retry_after } => ReadError::Busy { retry_after },
            DecodeError::Deadline => ReadError::Deadline,
            DecodeError::Source(SourceError(cause)) => match cause.downcast_ref::<ReadError>() {
                Some(own) => own.clone(),
                None => ReadError::Unavailable(text),
            },
            DecodeError::IndexDiffers | DecodeError::WorkerLost(_) => ReadError::Unavailable(text),
        }
    }
}

impl From<ParseError> for ReadError {
    fn from(error: ParseError) -> Self {
        ReadError::Unsupported(error.to_string())
    }
}
