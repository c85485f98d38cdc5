//! The origin: the S3-compatible store that holds the truth, read as seldom and as gently as we can.
//!
//! This room exists so that nobody else has to distrust a body. What [`Origin::read`] returns is exactly the bytes that were asked
//! for, of exactly one version; everything short, long, shifted, encoded, redirected or changed has been turned into an error on the
//! way, and the caller may cache what it gets without another look.
//!
//! Its parts:
//! - `settings`: where a bucket lives and with whose credentials; the only source of endpoints (nothing that a client or the origin
//!   says can name another host);
//! - `s3`: [`S3Origin`], one request told as a story: permit, attempt, verdict, retry;
//! - `request`: one attempt over `aws-sdk-s3`, first byte and body apart, and its faults by kind;
//! - `reply` (policy): is this reply an answer to what was asked?
//! - `retry` (policy): again or give up, and when; the retry budget and its full jitter;
//! - `hedge` (policy): when a second request is worth starting;
//! - `pace` (policy): how many at once and how often, halved when the origin says "slow down"; `gate`: the bounded queue before it;
//! - `stats`: counters, exported by telemetry.
//!
//! It holds no cache and knows no pages. A member of an archive is read by its caller as bytes of the archive.

mod gate;
mod hedge;
mod pace;
mod random;
mod reply;
mod request;
mod retry;
mod s3;
mod settings;
mod stats;

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use framecache::{ByteRange, ObjectId, Version};
use tokio::time::Instant;

pub use s3::S3Origin;
pub use settings::{Credentials, OriginLimits, OriginSettings, Secret, SettingsError, StaticKey};
pub use stats::{OriginSnapshot, OriginStats};

/// The store behind the cache, as the rest of the node sees it.
///
/// All calls end by their deadline. Dropping a call drops its requests; nothing goes on in the background.
#[async_trait]
pub trait Origin: Send + Sync + 'static {
    /// The bytes of `range`, clamped to the object's end, of exactly version `pin` if given; else of the version that is current, which
    /// the answer names. A range past the end gives an empty body and the right size.
    async fn read(
        &self,
        id: &ObjectId,
        range: ByteRange,
        pin: Option<&Version>,
        deadline: Instant,
    ) -> Result<Fetched, OriginError>;

    /// Version and size now, without a body. For revalidation; a first read learns both from its own reply.
    async fn head(&self, id: &ObjectId, deadline: Instant) -> Result<ObjectFacts, OriginError>;

    /// At most `limit` objects (and at most 1,000) whose key begins with `prefix` and comes after `after`, by bytes of the key.
    async fn list(
        &self,
        bucket: &str,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
        deadline: Instant,
    ) -> Result<Listing, OriginError>;

    /// Whether the bucket is configured. Asks nobody.
    fn knows(&self, bucket: &str) -> bool;
}

/// Bytes of one version of an object, verified against what was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// The version that the bytes belong to.
    pub version: Version,
    /// Bytes of the whole object in that version.
    pub size: u64,
    /// What `body` holds: the range asked for, clamped to `size`.
    pub range: ByteRange,
    /// Exactly `range.len()` bytes.
    pub body: Bytes,
}

/// What a head request tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectFacts {
    /// The current version.
    pub version: Version,
    /// Its bytes.
    pub size: u64,
}

/// One page of a listing, sorted by the bytes of the key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// The objects, possibly fewer than asked for although more follow.
    pub objects: Vec<Listed>,
    /// Where to go on: pass as `after`. `None` at the end.
    pub next: Option<String>,
}

/// One object of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its key, unescaped.
    pub key: String,
    /// Its bytes.
    pub size: u64,
    /// Its version, as a read would name it.
    pub version: Version,
}

/// Why the origin gave no answer. None of these may be cached as another; none carries a secret, a header or a query string.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OriginError {
    /// No bucket of this name is configured: final. Correct the address or the configuration.
    #[error("bucket {0:?} is not configured")]
    NotConfigured(String),
    /// The origin says that there is no such object (or bucket): final for this version of the world.
    #[error("object is not found")]
    NotFound,
    /// The origin refuses our credentials or their rights: final. An operator must act. Never to be mistaken for [`Self::NotFound`].
    #[error("origin denies access")]
    Denied,
    /// The object no longer is the version that was pinned: final for this logical read. Resolve the current version and start anew.
    #[error("object has changed from {old} to {}", .new.as_ref().map_or("an unknown version", Version::as_str))]
    Changed {
        /// The version that was asked for.
        old: Version,
        /// The version there now, where the origin told.
        new: Option<Version>,
    },
    /// The queue before the origin is full, the wait would pass the deadline, or the origin keeps asking for less. Come back after
    /// `retry_after`; sooner only makes it worse.
    #[error("origin is busy, retry after {retry_after:?}")]
    Busy {
        /// When a place is likely to be free.
        retry_after: Duration,
    },
    /// The origin failed or could not be reached, retries included: try another copy, or later.
    #[error("origin is unavailable: {0}")]
    Unavailable(String),
    /// The origin answered something else than what was asked, retries included. The bytes are gone; do not cache, report.
    #[error("origin reply is corrupt: {0}")]
    Corrupt(String),
    /// The deadline passed while waiting for the origin. The caller's time is up, too.
    #[error("deadline passed while reading from the origin")]
    Deadline,
    /// The origin answered with a redirect, which is never followed: an operator must correct endpoint or region.
    #[error("origin redirects, which is refused; bucket region is {}", .region.as_deref().unwrap_or("not stated"))]
    Redirect {
        /// The region that the origin says the bucket lives in.
        region: Option<String>,
    },
    /// The origin cannot understand the request, or its size passes our limit: final, a fault of the caller.
    #[error("origin request is not valid: {0}")]
    InvalidRequest(String),
}
