//! The first bytes of an object, and how much of it would do.

use super::{DecodeError, Format};

/// What is at hand of an object of `size` bytes.
pub(super) struct First<'a> {
    bytes: &'a [u8],
    size: u64,
    format: Format,
    /// How far into the object is looked.
    limit: u64,
}

impl<'a> First<'a> {
    pub(super) fn new(format: Format, bytes: &'a [u8], size: u64, limit: u64) -> Self {
        Self { bytes, size, format, limit }
    }

    /// Bytes `at..at + count`; tells a cut object from one of which more must be read.
    pub(super) fn get(&self, at: u64, count: u64) -> Result<&'a [u8], DecodeError> {
        let end = at.saturating_add(count);
        if end > self.size {
            return Err(self.broken("truncated in the header"));
        }
        if end > self.limit {
            return Err(self.broken("no picture within the first 16 MiB"));
        }
        let here = (usize::try_from(at).ok(), usize::try_from(end).ok());
        if let Some(bytes) = here.0.zip(here.1).and_then(|(at, end)| self.bytes.get(at..end)) {
            return Ok(bytes);
        }
        // Doubling, so that a long header costs a linear number of bytes looked at.
        let bytes = end.max(2 * self.bytes.len() as u64).min(self.size).min(self.limit);
        Err(DecodeError::NeedMore { bytes })
    }

    /// Up to `count` bytes from `at`, fewer where the object ends.
    pub(super) fn up_to(&self, at: u64, count: u64) -> Result<&'a [u8], DecodeError> {
        let end = at.saturating_add(count).min(self.size);
        self.get(at.min(end), end - at.min(end))
    }

    pub(super) fn array<const N: usize>(&self, at: u64) -> Result<[u8; N], DecodeError> {
        Ok(self.get(at, N as u64)?.try_into().expect("as long as was asked"))
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    pub(super) fn broken(&self, reason: impl Into<String>) -> DecodeError {
        DecodeError::undecodable(self.format, reason)
    }

    pub(super) fn unsupported(&self, reason: impl Into<String>) -> DecodeError {
        DecodeError::Unsupported { format: self.format, reason: reason.into() }
    }
}
