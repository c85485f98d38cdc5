//! Raw reads: cut at spans, each from its owner, pinned to one version.

use bytes::Bytes;
use futures::stream::{FuturesUnordered, TryStreamExt};
use tokio::time::Instant;

use super::tries::Tries;
use super::{Call, Client};
use crate::error::{Error, ErrorKind};
use crate::object::{ByteRange, ObjectId, RouteKey, SPAN_BYTES, Span, Version};
use crate::wire::{ReadBody, Verb};

/// Raw bytes of one version of an object.
#[derive(Clone, Debug)]
pub struct Raw {
    /// The bytes, from `start` on.
    pub bytes: Bytes,
    /// First byte's place in the object.
    pub start: u64,
    /// Bytes of the whole object.
    pub size: u64,
    /// Its version.
    pub version: Version,
}

/// What the first reply says about the object.
struct Facts {
    version: Version,
    size: u64,
}

impl Client {
    /// Bytes `[start, start + length)` of an object, cut at its end; to the end if `length` is `None`. All of one version: the
    /// first reply pins it.
    ///
    /// # Errors
    /// `NotFound`, `Denied`, `Changed` (replaced during the read), `OutOfRange` (`start` past the end), `TooLarge` (more than the
    /// client's memory), `Busy`, `Timeout`, `Unavailable`.
    pub async fn read(&self, id: &ObjectId, start: u64, length: Option<u64>, call: &Call) -> Result<Raw, Error> {
        self.read_all(id, start, length, call).await.map_err(|error| error.about(id))
    }

    async fn read_all(&self, id: &ObjectId, start: u64, length: Option<u64>, call: &Call) -> Result<Raw, Error> {
        let deadline = self.deadline(call);
        let asked = ByteRange::at(start, length.unwrap_or(u64::MAX - start)).ok_or_else(|| invalid("range passes 2^64"))?;
        let first_span = Span::new(start / SPAN_BYTES);
        let first = asked.intersect(first_span.range());
        let mut tries = Tries::new(RouteKey::raw(id, first_span));
        let mut buffer = Vec::new();
        let facts = loop {
            match self.read_first(id, first, asked, &mut buffer, &tries, call, deadline).await {
                Ok(facts) => break facts,
                Err(error) => tries.failed(self, error, deadline).await?,
            }
        };
        let whole = asked.clamp(facts.size);
        let got = first.clamp(facts.size).len() as usize;
        self.read_rest(id, whole, &mut buffer, got, &facts.version, call, deadline).await?;
        Ok(Raw { bytes: buffer.into(), start, size: facts.size, version: facts.version })
    }

    /// The first span: says what the object is, so that the buffer can be made.
    #[allow(clippy::too_many_arguments)] // one call site; a struct would only rename them
    async fn read_first(
        &self,
        id: &ObjectId,
        first: ByteRange,
        asked: ByteRange,
        buffer: &mut Vec<u8>,
        tries: &Tries,
        call: &Call,
        deadline: Instant,
    ) -> Result<Facts, Error> {
        let target = tries.target(self, call, deadline).await?;
        let body = ReadBody { uri: id.to_string(), start: first.start(), length: first.len() };
        let mut reply = self.ask(&target, Verb::Read, &body, "", call, deadline).await?;
        let mut facts: Option<Facts> = None;
        let mut at = first.start();
        while let Some(item) = reply.next().await? {
            if let Some(error) = Error::from_item(&item) {
                return Err(error.from_node(target.name(), tries.attempt));
            }
            if facts.is_none() {
                let version = Version::new(&item.version).map_err(|e| protocol(e.to_string()))?;
                let whole = asked.clamp(item.size);
                if whole.len() > self.inner.config.memory {
                    let message = format!("{} bytes pass the client's memory: read ranges, or raise memory", whole.len());
                    return Err(Error::new(ErrorKind::TooLarge, message));
                }
                // Zeroed by the system where it is large: pages are touched once, by the bytes.
                *buffer = vec![0; whole.len() as usize];
                facts = Some(Facts { version, size: item.size });
            }
            if facts.as_ref().is_some_and(|facts| item.version != facts.version.as_str() || item.size != facts.size) {
                return Err(protocol("items of two versions in one reply"));
            }
            let end = at + u64::from(item.payload_bytes);
            let from = (at - first.start()) as usize;
            let place =
                buffer.get_mut(from..from + item.payload_bytes as usize).filter(|_| item.offset == at && end <= first.end());
            reply.payload(place.ok_or_else(|| protocol("bytes out of order"))?).await?;
            at = end;
            if item.last {
                break;
            }
        }
        match facts {
            Some(facts) if at == first.clamp(facts.size).end().max(first.start()) => Ok(facts),
            _ => Err(Error::new(ErrorKind::Unavailable, "the reply ended early").from_node(target.name(), tries.attempt)),
        }
    }

    /// The spans after the first, side by side, each into its part of the buffer.
    #[allow(clippy::too_many_arguments)] // one call site; a struct would only rename them
    async fn read_rest(
        &self,
        id: &ObjectId,
        whole: ByteRange,
        buffer: &mut [u8],
        got: usize,
        version: &Version,
        call: &Call,
        deadline: Instant,
    ) -> Result<(), Error> {
        let mut rest = &mut buffer[got..];
        let spans: FuturesUnordered<_> = whole
            .spans()
            .skip(1)
            .map(|(span, range)| {
                let (part, after) = std::mem::take(&mut rest).split_at_mut(range.len() as usize);
                rest = after;
                self.read_span(id, span, range, part, version, call, deadline)
            })
            .collect();
        spans.try_collect().await
    }

    /// One span of a known version; a retry goes on where the try before it ended.
    #[allow(clippy::too_many_arguments)] // one call site; a struct would only rename them
    async fn read_span(
        &self,
        id: &ObjectId,
        span: Span,
        range: ByteRange,
        into: &mut [u8],
        version: &Version,
        call: &Call,
        deadline: Instant,
    ) -> Result<(), Error> {
        let mut tries = Tries::new(RouteKey::raw(id, span));
        let mut got = 0;
        loop {
            match self.read_part(id, range, into, &mut got, version, &tries, call, deadline).await {
                Ok(()) => return Ok(()),
                Err(error) => tries.failed(self, error, deadline).await?,
            }
        }
    }

    #[allow(clippy::too_many_arguments)] // one call site; a struct would only rename them
    async fn read_part(
        &self,
        id: &ObjectId,
        range: ByteRange,
        into: &mut [u8],
        got: &mut usize,
        version: &Version,
        tries: &Tries,
        call: &Call,
        deadline: Instant,
    ) -> Result<(), Error> {
        let target = tries.target(self, call, deadline).await?;
        let start = range.start() + *got as u64;
        let body = ReadBody { uri: id.to_string(), start, length: range.end() - start };
        let mut reply = self.ask(&target, Verb::Read, &body, version.as_str(), call, deadline).await?;
        while let Some(item) = reply.next().await? {
            if let Some(error) = Error::from_item(&item) {
                return Err(error.from_node(target.name(), tries.attempt));
            }
            if item.version != version.as_str() {
                return Err(protocol(format!("version {} where {version} was pinned", item.version)));
            }
            let place = into.get_mut(*got..*got + item.payload_bytes as usize);
            let place = place.filter(|_| item.offset == range.start() + *got as u64);
            reply.payload(place.ok_or_else(|| protocol("bytes out of order"))?).await?;
            *got += item.payload_bytes as usize;
            if item.last {
                break;
            }
        }
        match *got == into.len() {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::Unavailable, "the reply ended early").from_node(target.name(), tries.attempt)),
        }
    }
}

fn protocol(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Protocol, message)
}

fn invalid(message: &str) -> Error {
    Error::new(ErrorKind::Invalid, message)
}
