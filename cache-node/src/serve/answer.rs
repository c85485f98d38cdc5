//! The answering side of one stream: items out, at a minimum rate.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use framecache::quic::Windows;
use framecache::wire::codec;
use framecache::wire::stream::SendBytes;
use framecache::wire::{ItemHead, PAYLOAD_BYTES_MAX, Status, code, ext};
use futures::FutureExt;
use tokio::time::{Instant, timeout};

use super::metrics::RequestMetrics;
use crate::read::ReadError;

/// Longest that a reply may make no headway at all.
const DRAIN_GRACE: Duration = Duration::from_secs(10);

/// Slowest client, in bytes a second, past the grace. A loader on a training network reads a thousand times faster; one that
/// does not, holds memory that others wait for.
const DRAIN_BYTES_PER_SECOND: u64 = 64 << 10;

/// Bytes of a connection's window that items without a payload have beyond those with one, so that a refusal never waits for
/// pages that the network has not carried away. 256 streams at once, with the message of each, fit.
const SMALL_ROOM: u64 = 64 << 10;

/// How often that room is added, at most.
const SMALL_TRIES: u64 = 4;

/// The stream is of no more use: the client left, or was too slow.
#[derive(Debug)]
pub(super) struct Gone;

/// One stream's replies.
pub(super) struct Answer {
    connection: quinn::Connection,
    send: quinn::SendStream,
    metrics: Arc<RequestMetrics>,
    /// When the request's header was parsed.
    parsed: Instant,
    /// Time that the client took to take what was sent.
    drained_in: Duration,
    /// What the first item tells about the view, if the caller's is not the current one.
    view: Option<Bytes>,
    /// The last status that was sent: how the request ended.
    pub(super) status: Status,
    /// Payload bytes that were sent.
    pub(super) sent_bytes: u64,
}

impl Answer {
    pub(super) fn new(connection: quinn::Connection, send: quinn::SendStream, metrics: Arc<RequestMetrics>) -> Self {
        let now = Instant::now();
        Self { connection, send, metrics, parsed: now, drained_in: Duration::ZERO, view: None, status: Status::Ok, sent_bytes: 0 }
    }

    /// The request's header is parsed: from here its time counts.
    pub(super) fn begin(&mut self) -> Instant {
        self.parsed = Instant::now();
        self.parsed
    }

    /// What the caller's view lacks goes with the first item.
    pub(super) fn tell(&mut self, lacks: Option<Bytes>) {
        self.view = lacks;
    }

    /// An item's head as it is sent.
    fn encoded(&mut self, head: &ItemHead) -> Result<Vec<u8>, Gone> {
        self.status = Status::from_number(head.status);
        let encoded = match self.view.take() {
            None => codec::encode(head),
            Some(lacks) => {
                let mut head = head.clone();
                head.ext.push((ext::VIEW_DELTA, lacks.to_vec()));
                codec::encode(&head)
            }
        };
        encoded.map_err(|error| {
            tracing::error!(status = head.status, %error, "reply item cannot be written");
            Gone
        })
    }

    /// Sends one item. Not cancel safe.
    pub(super) async fn item(&mut self, mut head: ItemHead, payload: Bytes) -> Result<(), Gone> {
        if payload.is_empty() || payload.len() > PAYLOAD_BYTES_MAX as usize {
            let large = ItemHead { index: head.index, attempt: head.attempt, ..too_large(payload.len()) };
            return self.heads(&[if payload.is_empty() { head } else { large }]).await;
        }
        head.payload_bytes = payload.len() as u32;
        let bytes = payload.len() as u64;
        let mut parts = [self.encoded(&head)?.into(), payload];
        // What has no payload goes before it. It fails only where the stream is gone, as the write finds.
        let _ = self.send.set_priority(0);
        self.send(&mut parts, bytes).await?;
        self.sent_bytes += bytes;
        Ok(())
    }

    /// Sends items without a payload, all at once: a batch's refusals are one write, not as many as there are. Not cancel safe.
    pub(super) async fn heads(&mut self, heads: &[ItemHead]) -> Result<(), Gone> {
        let mut bytes = Vec::new();
        for head in heads {
            bytes.extend_from_slice(&self.encoded(head)?);
        }
        let _ = self.send.set_priority(1);
        let mut left = Bytes::from(bytes);
        left.advance(self.write_small(&left.clone()));
        // An empty write waits for room like any other.
        if !left.is_empty() {
            self.send(&mut [left], 0).await?;
        }
        let after = self.parsed.elapsed();
        heads.iter().filter(|head| head.status == Status::Busy as u16).for_each(|_| self.metrics.busy(after));
        Ok(())
    }

    /// Sends bytes, of them `payload` bytes of an item's, in the time that the whole reply may take.
    async fn send(&mut self, parts: &mut [Bytes], payload: u64) -> Result<(), Gone> {
        let began = Instant::now();
        let sent = timeout(self.patience(payload), self.send.send_bytes(parts)).await;
        self.drained_in += began.elapsed();
        match sent {
            Ok(sent) => sent.map_err(|_| Gone),
            Err(_) => {
                let _ = self.send.reset(code::SLOW.into());
                Err(Gone)
            }
        }
    }

    /// Writes what fits at once into the window and the room beyond it; how much it was. Pages that are being written in the same
    /// instant may take that room: then there is a little more, a few times.
    fn write_small(&mut self, bytes: &[u8]) -> usize {
        let mut written = 0;
        for more in 1..=SMALL_TRIES {
            self.connection.set_send_window(Windows::NODE.send + more * SMALL_ROOM);
            written += self.send.write(&bytes[written..]).now_or_never().and_then(Result::ok).unwrap_or(0);
            if written == bytes.len() {
                break;
            }
        }
        self.connection.set_send_window(Windows::NODE.send);
        written
    }

    /// How long `bytes` more may take: the minimum rate is of the whole reply, so that no client earns a new grace with each item.
    fn patience(&self, bytes: u64) -> Duration {
        let whole = Duration::from_millis((self.sent_bytes + bytes) * 1000 / DRAIN_BYTES_PER_SECOND);
        (DRAIN_GRACE + whole).saturating_sub(self.drained_in)
    }

    /// Sends the only item: a message, or a failure.
    pub(super) async fn only(&mut self, payload: Result<Vec<u8>, (Status, String)>) -> Result<(), Gone> {
        match payload {
            Ok(message) => {
                // A message's own length field is the wire's; an item has one already.
                let payload = Bytes::from(message).slice(codec::PREFIX_BYTES..);
                self.item(ItemHead { last: true, ..ItemHead::default() }, payload).await
            }
            Err((status, message)) => self.item(failure(status, message), Bytes::new()).await,
        }
    }

    /// All items are sent; resolves when the client has them, or is gone, so that a drain does not cut them.
    pub(super) async fn finish(mut self) {
        if self.send.finish().is_ok() {
            let _ = timeout(DRAIN_GRACE, self.send.stopped()).await;
        }
    }

    /// There was no request to answer; the code says why.
    pub(super) fn reset(mut self, code: u32) {
        let _ = self.send.reset(code.into());
    }
}

/// The head of an item that failed.
pub(super) fn failure(status: Status, message: impl Into<String>) -> ItemHead {
    let mut message: String = message.into();
    // The item's own limit is 16 KiB; a reason that needs more is no reason.
    while message.len() > 1024 {
        message.pop();
    }
    ItemHead { status: status as u16, last: true, message, ..ItemHead::default() }
}

/// There is no room for the request itself.
pub(super) fn busy() -> ItemHead {
    ItemHead { retry_after_ms: 100, ..failure(Status::Busy, "the node has no room for more requests") }
}

fn too_large(bytes: usize) -> ItemHead {
    failure(Status::TooLarge, format!("{bytes} bytes pass what one item may carry, {PAYLOAD_BYTES_MAX}"))
}

/// The head of an item that failed with `error`.
pub(super) fn read_failure(error: &ReadError) -> ItemHead {
    let status = match error {
        ReadError::NotFound => Status::NotFound,
        ReadError::Denied => Status::Denied,
        ReadError::NotConfigured(_) => Status::NotConfigured,
        ReadError::Changed { .. } => Status::Changed,
        ReadError::Undecodable(_) => Status::Undecodable,
        ReadError::Unsupported(_) => Status::Unsupported,
        ReadError::TooLarge(_) => Status::TooLarge,
        ReadError::OutOfRange { .. } | ReadError::NoFrame { .. } | ReadError::PastEnd(_) => Status::OutOfRange,
        ReadError::Busy { .. } => Status::Busy,
        ReadError::Deadline => Status::Timeout,
        ReadError::Unavailable(_) => Status::Unavailable,
    };
    let mut head = failure(status, error.to_string());
    if let ReadError::Busy { retry_after } = error {
        head.retry_after_ms = u32::try_from(retry_after.as_millis()).unwrap_or(u32::MAX);
    }
    head
}

#[cfg(test)]
#[path = "answer_tests.rs"]
mod tests;
