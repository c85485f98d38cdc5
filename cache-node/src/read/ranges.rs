//! The bytes of a video's decode unit: ranges of its object, as few of them as are needed.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use framecache::object::PAGE_BYTES;
use framecache::{ByteRange, ObjectId, Version};
use futures::{FutureExt, StreamExt, TryStreamExt, stream};

use super::{ReadError, Reader, Terms};
use crate::cache::pages;

/// Ranges of one unit that are read at the same time.
const RANGES: usize = 4;

/// Longest read of the origin: a unit's bytes come in pieces of this.
const READ_BYTES: u64 = 8 << 20;

impl Reader {
    /// The bytes of a unit's ranges. The first time exactly those; whoever comes back has the pages brought in and kept.
    pub(super) async fn unit_bytes(
        self: &Arc<Self>,
        id: &ObjectId,
        version: &Version,
        ranges: &[ByteRange],
        again: bool,
        terms: &Terms,
    ) -> Result<Vec<(ByteRange, Bytes)>, ReadError> {
        let pieces: Vec<ByteRange> = ranges.iter().flat_map(|&range| pieces(range)).collect();
        let read = |range: ByteRange| {
            let read = async move {
                let bytes = match again {
                    true => self.compressed(id, version, range, terms).await?,
                    false => self.exactly(id, version, range, terms).await?,
                };
                Ok::<_, ReadError>((range, bytes))
            };
            read.boxed()
        };
        stream::iter(pieces).map(read).buffered(RANGES).try_collect().await
    }

    /// Exactly the bytes of `range`: what is held of it, and of the rest nothing beside.
    async fn exactly(
        self: &Arc<Self>,
        id: &ObjectId,
        version: &Version,
        range: ByteRange,
        terms: &Terms,
    ) -> Result<Bytes, ReadError> {
        let mut whole = BytesMut::with_capacity(range.len() as usize);
        let mut missing: Option<ByteRange> = None;
        for page in range.pages() {
            let part = page.range().intersect(range);
            let held = self.held(&pages::key(id, page), Some(version), terms.deadline).await?;
            match held.and_then(|entry| pages::slice(&entry, page, part)) {
                Some(bytes) => {
                    if let Some(missing) = missing.take() {
                        whole.extend_from_slice(&self.fetched(id, version, missing, terms).await?);
                    }
                    whole.extend_from_slice(&bytes);
                }
                None => {
                    let start = missing.map_or(part.start(), |missing| missing.start());
                    missing = ByteRange::new(start, part.end());
                }
            }
        }
        if let Some(missing) = missing {
            whole.extend_from_slice(&self.fetched(id, version, missing, terms).await?);
        }
        match whole.len() as u64 == range.len() {
            true => Ok(whole.freeze()),
            false => Err(ReadError::Unavailable("a fill ended short".into())),
        }
    }
}

/// A range in pieces of at most [`READ_BYTES`], cut at pages.
fn pieces(range: ByteRange) -> Vec<ByteRange> {
    let mut pieces = Vec::new();
    let mut at = range.start();
    while at < range.end() {
        let end = ((at / PAGE_BYTES * PAGE_BYTES) + READ_BYTES).min(range.end());
        pieces.extend(ByteRange::new(at, end));
        at = end;
    }
    pieces
}
