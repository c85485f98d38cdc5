//! One request to one node: sent whole, answered item by item.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rkyv::api::high::{HighDeserializer, HighSerializer, HighValidator};
use rkyv::bytecheck::CheckBytes;
use rkyv::rancor::Error as Rancor;
use rkyv::ser::allocator::ArenaHandle;
use rkyv::util::AlignedVec;
use rkyv::{Deserialize, Serialize};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::error::{Error, ErrorKind};
use crate::pool::{Kind, Link, Pending};
use crate::stats::count;
use crate::wire::codec::{self, Message, PREFIX_BYTES};
use crate::wire::stream::SendBytes;
use crate::wire::{CONTROL_BYTES_MAX, Header, ItemHead, ext};

/// Who is told of the news about the cluster that come with a reply.
pub(crate) trait Hear: Send + Sync {
    /// Takes in an [`ext::VIEW_DELTA`] of that node's.
    fn hear(self: Arc<Self>, delta: &[u8], from: &Arc<Link>);
}

/// The items of one request, as they come. Dropped early, it tells the node to stop.
pub(crate) struct Reply {
    link: Arc<Link>,
    hear: Option<Arc<dyn Hear>>,
    stream: quinn::RecvStream,
    deadline: Instant,
    /// The item head that is being received.
    part: Vec<u8>,
    got: usize,
    /// When the request was sent, or the last item came.
    since: Instant,
    /// Longest time between two items.
    longest: Duration,
    /// Somebody waits for the node as long as this is here.
    _pending: Pending,
}

/// Sends a request for `load` items over `link`. The header's deadline is set here.
pub(crate) async fn ask<B>(
    link: &Arc<Link>,
    header: Header,
    body: &B,
    load: usize,
    hear: Option<Arc<dyn Hear>>,
    deadline: Instant,
) -> Result<Reply, Error>
where
    B: Message + for<'a> Serialize<HighSerializer<AlignedVec, ArenaHandle<'a>, Rancor>>,
{
    let pending = link.enter(load);
    count(&link.counters().requests, 1);
    let connection = link.connection(deadline).await?;
    let left = deadline.saturating_duration_since(Instant::now());
    let header = Header { deadline_ms_left: u32::try_from(left.as_millis()).unwrap_or(u32::MAX), ..header };
    let encoded = codec::encode(&header).and_then(|header| Ok([header.into(), codec::encode(body)?.into()]));
    let mut parts: [Bytes; 2] = encoded.map_err(|e| Error::new(ErrorKind::Invalid, e.to_string()))?;
    let sent = async {
        let (mut send, stream) = connection.open_bi().await.map_err(|error| lost(link, error))?;
        send.send_bytes(&mut parts).await.map_err(|error| lost(link, error))?;
        let _ = send.finish();
        Ok(stream)
    };
    let stream = timeout_at(deadline, sent).await.unwrap_or_else(|_| Err(late()))?;
    let (part, since, longest) = (Vec::new(), Instant::now(), Duration::ZERO);
    Ok(Reply { link: link.clone(), hear, stream, deadline, part, got: 0, since, longest, _pending: pending })
}

impl Reply {
    /// The next item's head; `None` after the last. Cancel safe: a dropped call goes on with the next one.
    pub(crate) async fn next(&mut self) -> Result<Option<ItemHead>, Error> {
        let item = timeout_at(self.deadline, self.head()).await.unwrap_or_else(|_| Err(late()))?;
        self.longest = self.longest.max(self.since.elapsed());
        self.since = Instant::now();
        let Some(item) = item else { return Ok(None) };
        // With the first item only: no node has more to say than once.
        if let Some((hear, delta)) = self.hear.take().zip(item.addition(ext::VIEW_DELTA)) {
            hear.hear(delta, &self.link);
        }
        Ok(Some(item))
    }

    /// How much of the next item's head has come.
    fn came(&self) -> (bool, usize) {
        (self.part.len() > PREFIX_BYTES, self.got)
    }

    async fn head(&mut self) -> Result<Option<ItemHead>, Error> {
        if self.part.is_empty() {
            self.part.resize(PREFIX_BYTES, 0);
        }
        loop {
            while self.got < self.part.len() {
                match self.stream.read(&mut self.part[self.got..]).await.map_err(|error| lost(&self.link, error))? {
                    None if self.got == 0 => return Ok(None),
                    None => return Err(lost(&self.link, "the reply ended inside an item")),
                    Some(more) => self.got += more,
                }
            }
            let (prefix, archive) = self.part.split_at(PREFIX_BYTES);
            let length = prefix.try_into().map(codec::length::<ItemHead>).map_err(|_| broken("no length"))?;
            let length = length.map_err(|error| broken(error.to_string()))?;
            if archive.len() == length {
                break;
            }
            self.part.resize(PREFIX_BYTES + length, 0);
        }
        let item = codec::decode(&self.part[PREFIX_BYTES..]).map_err(|error| broken(error.to_string()))?;
        self.part.clear();
        self.got = 0;
        Ok(Some(item))
    }

    /// The same, as long as something comes within `still`; else `None`, and it can be gone on with.
    pub(crate) async fn next_unless_still(&mut self, still: Duration) -> Result<Option<Option<ItemHead>>, Error> {
        loop {
            let before = self.came();
            match timeout(still, self.next()).await {
                Ok(next) => return next.map(Some),
                Err(_) if self.came() == before => return Ok(None),
                Err(_) => {}
            }
        }
    }

    /// Who gives it.
    pub(crate) fn name(&self) -> &str {
        self.link.name()
    }

    /// The wait after which its node is taken to be slow.
    pub(crate) fn hedge_after(&self, kind: Kind) -> Option<Duration> {
        self.link.hedge_after(kind)
    }

    /// Whose answer it is.
    pub(crate) fn link(&self) -> &Link {
        &self.link
    }

    /// The longest that an item was waited for, the next one included.
    pub(crate) fn longest(&self) -> Duration {
        self.longest.max(self.since.elapsed())
    }

    /// The payload of the item whose head came last, all of it.
    pub(crate) async fn payload(&mut self, into: &mut [u8]) -> Result<(), Error> {
        let read = timeout_at(self.deadline, self.stream.read_exact(into)).await;
        self.since = Instant::now();
        read.map_err(|_| late())?.map_err(|error| lost(&self.link, error))
    }

    /// The same from `got` on, as long as something comes within each `still`, or half as much again; else `false`. Cancel safe: it can
    /// be gone on with from `got`.
    pub(crate) async fn payload_unless_still(
        &mut self,
        into: &mut [u8],
        got: &mut usize,
        still: Option<Duration>,
    ) -> Result<bool, Error> {
        let (stream, link, step) = (&mut self.stream, &self.link, still.unwrap_or_default() / 2);
        let received = async {
            let look = sleep(step);
            tokio::pin!(look);
            // Looks since something came.
            let mut looks = 0;
            while *got < into.len() {
                tokio::select! {
                    biased;
                    read = stream.read(&mut into[*got..]) => match read.map_err(|error| lost(link, error))? {
                        None => return Err(lost(link, "the reply ended inside an item")),
                        Some(bytes) => (*got, looks) = (*got + bytes, 0),
                    },
                    () = &mut look, if still.is_some() => {
                        looks += 1;
                        if looks > 2 {
                            return Ok(false);
                        }
                        look.as_mut().reset(Instant::now() + step);
                    }
                }
            }
            Ok(true)
        };
        let received = timeout_at(self.deadline, received).await.unwrap_or_else(|_| Err(late()));
        self.since = Instant::now();
        received
    }

    /// The payload of `item`, whose length the caller has found to be within its bounds.
    pub(crate) async fn bytes(&mut self, item: &ItemHead) -> Result<Bytes, Error> {
        let mut bytes = vec![0; item.payload_bytes as usize];
        self.payload(&mut bytes).await?;
        Ok(bytes.into())
    }

    /// The only item of a control verb, whose payload is a message.
    pub(crate) async fn control<T>(&mut self) -> Result<T, Error>
    where
        T: Message,
        T::Archived: for<'a> CheckBytes<HighValidator<'a, Rancor>> + Deserialize<T, HighDeserializer<Rancor>>,
    {
        let item = self.next().await?.ok_or_else(|| lost(&self.link, "the reply is empty"))?;
        if let Some(error) = Error::from_item(&item) {
            return Err(error.from_node(self.link.name(), 1));
        }
        self.message(&item).await
    }

    /// The payload of `item` as a message.
    pub(crate) async fn message<T>(&mut self, item: &ItemHead) -> Result<T, Error>
    where
        T: Message,
        T::Archived: for<'a> CheckBytes<HighValidator<'a, Rancor>> + Deserialize<T, HighDeserializer<Rancor>>,
    {
        if item.payload_bytes > CONTROL_BYTES_MAX {
            return Err(broken("control payload is too long"));
        }
        let archive = self.bytes(item).await?;
        codec::decode(&archive).map_err(|error| broken(error.to_string()))
    }
}

fn late() -> Error {
    Error::new(ErrorKind::Timeout, "the deadline passed")
}

fn lost(link: &Link, error: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Unavailable, format!("connection to {} lost: {error}", link.name()))
}

fn broken(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Protocol, message)
}
