//! A body read from an open descriptor, block by block, exactly as long as announced or broken off.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream;
use s3s::dto::StreamingBlob;
use tokio::task::spawn_blocking;

use super::folder::Facts;

/// The bytes of `range`, of which `first` holds the beginning already. An error in mid-body breaks the connection, which is how HTTP
/// says that a body is not whole.
pub(super) fn stream(file: File, facts: Facts, range: Range<u64>, first: Bytes) -> StreamingBlob {
    let file = Arc::new((file, facts));
    let next = range.start + first.len() as u64;
    let pending = Some(first).filter(|first| !first.is_empty());
    StreamingBlob::wrap(stream::try_unfold((pending, next), move |(pending, next)| {
        let (file, end) = (file.clone(), range.end);
        async move {
            if let Some(block) = pending {
                return Ok(Some((block, (None, next))));
            }
            if next >= end {
                return Ok(None);
            }
            let block = spawn_blocking(move || read(&file.0, &file.1, next, end)).await;
            let block = block.map_err(io::Error::other)??;
            let next = next + block.len() as u64;
            Ok::<_, io::Error>(Some((block, (None, next))))
        }
    }))
}

/// The bytes from `start`, to `end` or a block on; an error if the file ends before, or is no longer the one of `facts`.
pub(super) fn read(file: &File, facts: &Facts, start: u64, end: u64) -> io::Result<Bytes> {
    let mut block = vec![0; (end - start).min(BLOCK_BYTES) as usize];
    file.read_exact_at(&mut block, start)?;
    facts.still_of(file)?;
    Ok(block.into())
}

/// One read and one wake-up per block; a page of the cache is one block.
const BLOCK_BYTES: u64 = 1 << 20;
