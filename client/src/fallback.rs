//! Raw reads past a cluster of which no node can be reached: from the origin itself, if the client was given one, within a budget, and
//! never in silence.
//!
//! A node that answers is never passed by, whatever it says: a busy cluster is not helped by a stampede on what it protects.

use std::fmt::Debug;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use tokio::time::Instant;

use crate::error::Error;
use crate::object::{ByteRange, ObjectId, Version};

/// The store behind the cluster, as a client reads it. [`crate::origin::S3`] (feature `origin`) is one.
pub trait Origin: Debug + Send + Sync + 'static {
    /// Bytes of `range`, cut at the object's end, of `version` if one is given and else of the one that is current. Dropping it ends it.
    ///
    /// # Errors
    /// `NotFound`, `Denied`, `Changed` (it no longer is `version`), `OutOfRange`; those are the caller's. All others are taken for a
    /// failed try.
    fn read<'a>(&'a self, id: &'a ObjectId, range: ByteRange, version: Option<&'a Version>)
    -> BoxFuture<'a, Result<Part, Error>>;
}

/// Bytes of one version of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// From the first byte asked for on.
    pub bytes: Bytes,
    /// Bytes of the whole object.
    pub size: u64,
    /// Its version.
    pub version: Version,
}

/// Where a client reads when no node can be reached, and how much.
#[derive(Clone, Debug)]
pub struct Fallback {
    /// The store.
    pub origin: Arc<dyn Origin>,
    /// Most bytes a second that this client reads there; beyond them it goes on trying the cluster. A job of a thousand clients asks the
    /// store for a thousand times as much.
    pub bytes_per_second: u64,
}

/// Longest single read of the origin.
pub(crate) const PIECE_BYTES: u64 = 8 << 20;

/// What may be read by now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    left: u64,
    at: Instant,
}

impl Allowance {
    /// One second's worth, and at least a piece: a budget below that is one of a piece now and then.
    pub(crate) fn full(rate: u64, now: Instant) -> Self {
        Self { left: rate.max(PIECE_BYTES), at: now }
    }

    /// Takes `bytes`, at most a piece, if they are there.
    pub(crate) fn take(&mut self, bytes: u64, rate: u64, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.at);
        let earned = passed.as_millis().saturating_mul(rate.into()) / 1000;
        if earned > 0 {
            self.left = self.left.saturating_add(u64::try_from(earned).unwrap_or(u64::MAX)).min(rate.max(PIECE_BYTES));
            self.at = now;
        }
        let enough = self.left >= bytes;
        self.left -= if enough { bytes } else { 0 };
        enough
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Promise: in any time no more is read than a second's worth and what that time brings.
    #[test]
    fn an_allowance_is_kept() {
        let (start, rate) = (Instant::now(), 16 << 20);
        let mut allowance = Allowance::full(rate, start);
        let mut taken = 0;
        for millis in 0..10_000 {
            let now = start + Duration::from_millis(millis);
            taken += if allowance.take(PIECE_BYTES, rate, now) { PIECE_BYTES } else { 0 };
            assert!(taken <= rate + rate * millis / 1000, "{taken} bytes after {millis} ms");
        }
        assert!(taken >= 10 * rate, "{taken} bytes in ten seconds");
        assert!(!Allowance { left: 5, at: start }.take(6, 0, start + Duration::from_secs(9)));
    }
}
