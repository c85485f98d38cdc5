//! A raw read past the cluster, where that was permitted: which is told each time, and counted.

use bytes::BytesMut;
use tokio::time::{Instant, timeout_at};

use super::{Client, Tries};
use crate::error::{Error, ErrorKind};
use crate::fallback::{PIECE_BYTES, Part};
use crate::object::{ByteRange, ObjectId, Version};
use crate::route;
use crate::stats::count;

impl Client {
    /// What the origin gives from the start of `range` on, where the item's nodes are lost, and as far as the budget goes. Nothing where
    /// they are not, where there is no origin or no budget, and where the origin failed, too: the cluster is tried again then.
    ///
    /// # Errors
    /// What the origin says that is final.
    pub(super) async fn past_cluster(
        &self,
        id: &ObjectId,
        range: ByteRange,
        version: Option<&Version>,
        tries: &Tries,
        failed: &Error,
        deadline: Instant,
    ) -> Result<Option<Part>, Error> {
        let Some(fallback) = self.inner.config.fallback.as_ref() else { return Ok(None) };
        if range.is_empty() || !route::is_lost(&failed.kind, failed.node.is_some(), tries.attempt) {
            return Ok(None);
        }
        let mut whole: Option<Part> = None;
        let mut bytes = BytesMut::new();
        loop {
            let start = range.start() + bytes.len() as u64;
            let end = whole.as_ref().map_or(range.end(), |whole| range.end().min(whole.size));
            let piece = ByteRange::new(start, end.min(start.saturating_add(PIECE_BYTES))).filter(|piece| !piece.is_empty());
            let Some(piece) = piece.filter(|piece| self.allowed(piece.len(), fallback.bytes_per_second)) else { break };
            let pin = version.or(whole.as_ref().map(|whole| &whole.version));
            let read = timeout_at(deadline, fallback.origin.read(id, piece, pin)).await;
            let read = read.unwrap_or_else(|_| Err(Error::new(ErrorKind::Timeout, "the origin takes too long")));
            match read.and_then(|part| checked(part, piece, pin)) {
                Ok(part) => {
                    tracing::warn!(%id, start, bytes = part.bytes.len(), reason = %failed, "read from the origin: no node can be reached");
                    count(&self.inner.pool.counters().fallbacks, 1);
                    count(&self.inner.pool.counters().fallback_bytes, part.bytes.len());
                    bytes.extend_from_slice(&part.bytes);
                    whole = Some(part);
                }
                Err(error) if error.kind.is_final() => return Err(Error { attempt: tries.attempt, ..error }),
                Err(error) => {
                    tracing::warn!(%id, start, %error, reason = %failed, "no node can be reached, and the origin failed");
                    break;
                }
            }
        }
        Ok(whole.map(|part| Part { bytes: bytes.freeze(), ..part }))
    }

    fn allowed(&self, bytes: u64, rate: u64) -> bool {
        self.inner.allowance.lock().take(bytes, rate, Instant::now())
    }
}

/// The part, if it is one of `piece`: an origin is not believed either.
fn checked(part: Part, piece: ByteRange, pin: Option<&Version>) -> Result<Part, Error> {
    if let Some(pin) = pin.filter(|&pin| *pin != part.version) {
        return Err(Error::new(ErrorKind::Changed, format!("object has changed from {pin} to {}", part.version)));
    }
    let want = piece.clamp(part.size).len();
    if part.bytes.len() as u64 != want {
        let message = format!("the origin gave {} bytes where {want} were asked for", part.bytes.len());
        return Err(Error::new(ErrorKind::Protocol, message));
    }
    Ok(part)
}
