//! One request to one node: sent whole, answered item by item.

use bytes::Bytes;
use rkyv::api::high::{HighDeserializer, HighSerializer, HighValidator};
use rkyv::bytecheck::CheckBytes;
use rkyv::rancor::Error as Rancor;
use rkyv::ser::allocator::ArenaHandle;
use rkyv::util::AlignedVec;
use rkyv::{Deserialize, Serialize};
use tokio::time::{Instant, timeout_at};

use crate::error::{Error, ErrorKind};
use crate::pool::{Pool, Target};
use crate::wire::codec::{self, Message};
use crate::wire::stream::{self, SendBytes, StreamError};
use crate::wire::{CONTROL_BYTES_MAX, Header, ItemHead};

/// The items of one request, as they come. Dropped early, it tells the node to stop.
pub(crate) struct Reply {
    node: String,
    stream: quinn::RecvStream,
    deadline: Instant,
}

/// Sends a request to `target`. The header's deadline is set here.
pub(crate) async fn ask<B>(pool: &Pool, target: &Target, header: Header, body: &B, deadline: Instant) -> Result<Reply, Error>
where
    B: Message + for<'a> Serialize<HighSerializer<AlignedVec, ArenaHandle<'a>, Rancor>>,
{
    let left = deadline.saturating_duration_since(Instant::now());
    let header = Header { deadline_ms_left: u32::try_from(left.as_millis()).unwrap_or(u32::MAX), ..header };
    let encoded = codec::encode(&header).and_then(|header| Ok([header.into(), codec::encode(body)?.into()]));
    let mut parts: [Bytes; 2] = encoded.map_err(|e| Error::new(ErrorKind::Invalid, e.to_string()))?;
    let connection = pool.connection(target, deadline).await?;
    let sent = async {
        let (mut send, stream) = connection.open_bi().await.map_err(lost)?;
        send.send_bytes(&mut parts).await.map_err(lost)?;
        let _ = send.finish();
        Ok(stream)
    };
    let stream = timeout_at(deadline, sent).await.unwrap_or_else(|_| Err(late()))?;
    Ok(Reply { node: target.name().to_owned(), stream, deadline })
}

impl Reply {
    /// The next item's head; `None` after the last.
    pub(crate) async fn next(&mut self) -> Result<Option<ItemHead>, Error> {
        let item = timeout_at(self.deadline, stream::receive_or_end::<ItemHead, _>(&mut self.stream));
        match item.await {
            Err(_) => Err(late()),
            Ok(Ok(item)) => Ok(item),
            Ok(Err(StreamError::Io(error))) => Err(lost(error)),
            Ok(Err(error)) => Err(Error::new(ErrorKind::Protocol, error.to_string())),
        }
    }

    /// The payload of the item whose head came last, all of it.
    pub(crate) async fn payload(&mut self, into: &mut [u8]) -> Result<(), Error> {
        let read = timeout_at(self.deadline, self.stream.read_exact(into)).await;
        read.map_err(|_| late())?.map_err(lost)
    }

    /// The payload of `item`, whose length the caller has found to be within its bounds.
    pub(crate) async fn bytes(&mut self, item: &ItemHead) -> Result<Bytes, Error> {
        let mut bytes = vec![0; item.payload_bytes as usize];
        self.payload(&mut bytes).await?;
        Ok(bytes.into())
    }

    /// Passes over the payload of `item`.
    pub(crate) async fn pass(&mut self, item: &ItemHead) -> Result<(), Error> {
        let mut left = item.payload_bytes as usize;
        let mut scrap = [0; 4096];
        while left > 0 {
            let part = left.min(scrap.len());
            self.payload(&mut scrap[..part]).await?;
            left -= part;
        }
        Ok(())
    }

    /// The only item of a control verb, whose payload is a message.
    pub(crate) async fn control<T>(&mut self) -> Result<T, Error>
    where
        T: Message,
        T::Archived: for<'a> CheckBytes<HighValidator<'a, Rancor>> + Deserialize<T, HighDeserializer<Rancor>>,
    {
        let item = self.next().await?.ok_or_else(|| lost("the reply is empty"))?;
        if let Some(error) = Error::from_item(&item) {
            return Err(error.from_node(&self.node, 1));
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
            return Err(Error::new(ErrorKind::Protocol, "control payload is too long"));
        }
        let mut archive = vec![0; item.payload_bytes as usize];
        self.payload(&mut archive).await?;
        codec::decode(&archive).map_err(|error| Error::new(ErrorKind::Protocol, error.to_string()))
    }
}

fn late() -> Error {
    Error::new(ErrorKind::Timeout, "the deadline passed")
}

fn lost(error: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Unavailable, format!("connection lost: {error}"))
}
