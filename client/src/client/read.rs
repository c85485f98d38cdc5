//! Raw reads: cut at spans, each from its owner, pinned to one version.

use bytes::Bytes;
use futures::stream::{FuturesUnordered, TryStreamExt};
use tokio::time::Instant;

use super::open::{Failed, Opened};
use super::{Call, Client, Tries};
use crate::ask::Reply;
use crate::error::{Error, ErrorKind};
use crate::object::{ByteRange, ObjectId, RouteKey, SPAN_BYTES, Span, Version};
use crate::pool::Kind;
use crate::wire::{ItemHead, ReadBody};

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
        let (mut buffer, mut got) = (Vec::new(), 0);
        let mut facts = None;
        while facts.is_none() {
            let begun = self.read_first(id, first, asked, &mut buffer, &mut got, &mut facts, &mut tries, call, deadline).await;
            let Err((link, error)) = begun else { break };
            let past = match facts {
                None => self.past_cluster(id, first, None, &tries, &error, deadline).await?,
                // It broke off in the middle: what is missing is read below, of the same version.
                Some(_) => None,
            };
            match past {
                Some(part) => {
                    buffer = self.room(asked, part.size)?;
                    got = part.bytes.len();
                    buffer.get_mut(..got).ok_or_else(|| protocol("bytes out of order"))?.copy_from_slice(&part.bytes);
                    facts = Some(Facts { version: part.version, size: part.size });
                }
                None => tries.failed(self, error, link.as_ref(), deadline).await?,
            }
        }
        let Some(Facts { version, size }) = facts else { return Err(protocol("no facts")) };
        let (part, rest) = buffer.split_at_mut(first.clamp(size).len() as usize);
        // Where the first reply broke off, another node goes on.
        self.read_span(id, first.clamp(size), part, got, &version, tries, call, deadline).await?;
        self.read_rest(id, asked.clamp(size), rest, &version, call, deadline).await?;
        Ok(Raw { bytes: buffer.into(), start, size, version })
    }

    /// The first span: says what the object is, so that the buffer can be made.
    #[allow(clippy::too_many_arguments)] // one call site; a struct would only rename them
    async fn read_first(
        &self,
        id: &ObjectId,
        first: ByteRange,
        asked: ByteRange,
        buffer: &mut Vec<u8>,
        got: &mut usize,
        facts: &mut Option<Facts>,
        tries: &mut Tries,
        call: &Call,
        deadline: Instant,
    ) -> Result<(), Failed> {
        let body = ReadBody { uri: id.to_string(), start: first.start(), length: first.len() };
        let Opened { link, mut reply, item } = self.open(tries, &body, "", call, deadline).await?;
        let received = async {
            let version = Version::new(&item.version).map_err(|e| protocol(e.to_string()))?;
            *buffer = self.room(asked, item.size)?;
            let part = first.clamp(item.size);
            let place = buffer.get_mut(..part.len() as usize).ok_or_else(|| protocol("bytes out of order"))?;
            let Facts { version, size } = facts.insert(Facts { version, size: item.size });
            self.receive(&mut reply, item, first.start(), place, got, version, Some(*size)).await
        };
        received.await.map_err(|error| (Some(link), error))
    }

    /// Room for what there is of `asked` in an object of `size` bytes.
    fn room(&self, asked: ByteRange, size: u64) -> Result<Vec<u8>, Error> {
        let whole = asked.clamp(size);
        if whole.len() > self.inner.config.memory {
            let message = format!("{} bytes pass the client's memory: read ranges, or raise memory", whole.len());
            return Err(Error::new(ErrorKind::TooLarge, message));
        }
        // Zeroed by the system where it is large: pages are touched once, by the bytes.
        Ok(vec![0; whole.len() as usize])
    }

    /// The spans of `whole` after the first, side by side, each into its part of the buffer.
    async fn read_rest(
        &self,
        id: &ObjectId,
        whole: ByteRange,
        mut rest: &mut [u8],
        version: &Version,
        call: &Call,
        deadline: Instant,
    ) -> Result<(), Error> {
        let spans: FuturesUnordered<_> = whole
            .spans()
            .skip(1)
            .map(|(span, range)| {
                let (part, after) = std::mem::take(&mut rest).split_at_mut(range.len() as usize);
                rest = after;
                let tries = Tries::new(RouteKey::raw(id, span));
                self.read_span(id, range, part, 0, version, tries, call, deadline)
            })
            .collect();
        spans.try_collect().await
    }

    /// What is missing of one span of a known version, of which there are `got` bytes; a retry goes on where the try before it ended.
    #[allow(clippy::too_many_arguments)] // two call sites; a struct would only rename them
    async fn read_span(
        &self,
        id: &ObjectId,
        range: ByteRange,
        into: &mut [u8],
        mut got: usize,
        version: &Version,
        mut tries: Tries,
        call: &Call,
        deadline: Instant,
    ) -> Result<(), Error> {
        while got < into.len() {
            let start = range.start() + got as u64;
            let body = ReadBody { uri: id.to_string(), start, length: range.end() - start };
            let part = match self.open(&mut tries, &body, version.as_str(), call, deadline).await {
                Ok(Opened { link, mut reply, item }) => {
                    let received = self.receive(&mut reply, item, range.start(), into, &mut got, version, None).await;
                    received.map_err(|error| (Some(link), error))
                }
                Err(failed) => Err(failed),
            };
            match part {
                Ok(()) => {}
                Err((link, error)) => {
                    let rest = ByteRange::new(range.start() + got as u64, range.end()).ok_or_else(|| protocol("no rest"))?;
                    match self.past_cluster(id, rest, Some(version), &tries, &error, deadline).await? {
                        Some(part) => {
                            let end = got + part.bytes.len();
                            let place = into.get_mut(got..end).ok_or_else(|| protocol("bytes out of order"))?;
                            place.copy_from_slice(&part.bytes);
                            got = end;
                        }
                        None => tries.failed(self, error, link.as_ref(), deadline).await?,
                    }
                }
            }
        }
        Ok(())
    }

    /// Receives bytes from `start + got` on into their place, beginning with `item`, until all of `into` is there.
    #[allow(clippy::too_many_arguments)] // two call sites; a struct would only rename them
    async fn receive(
        &self,
        reply: &mut Reply,
        mut item: ItemHead,
        start: u64,
        into: &mut [u8],
        got: &mut usize,
        version: &Version,
        size: Option<u64>,
    ) -> Result<(), Error> {
        loop {
            if let Some(error) = Error::from_item(&item) {
                return Err(error.from_node(reply.name(), 1));
            }
            if item.version != version.as_str() || size.is_some_and(|size| size != item.size) {
                return Err(protocol(format!("version {} where {version} was pinned", item.version)));
            }
            let end = *got + item.payload_bytes as usize;
            let place = into.get_mut(*got..end).filter(|place| place.is_empty() || item.offset == start + *got as u64);
            let place = place.ok_or_else(|| protocol("bytes out of order"))?;
            let mut part = 0;
            let received = self.payload(reply, place, &mut part, reply.hedge_after(Kind::Read), || 1).await;
            *got += part;
            received?;
            if item.last {
                break;
            }
            match self.next(reply, reply.hedge_after(Kind::Read)).await? {
                Some(next) => item = next,
                None => break,
            }
        }
        match *got == into.len() {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::Unavailable, "the reply ended early")),
        }
    }
}

fn protocol(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Protocol, message)
}

fn invalid(message: &str) -> Error {
    Error::new(ErrorKind::Invalid, message)
}
