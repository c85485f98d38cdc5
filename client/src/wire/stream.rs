//! One message over any byte stream, and the two ends of a reply. Generic over streams, so that other lanes (a Unix socket, TLS
//! over TCP) are additions.

use std::io;

use bytes::Bytes;
use rkyv::api::high::{HighDeserializer, HighSerializer, HighValidator};
use rkyv::bytecheck::CheckBytes;
use rkyv::rancor::Error as Rancor;
use rkyv::ser::allocator::ArenaHandle;
use rkyv::util::AlignedVec;
use rkyv::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::wire::codec::{self, CodecError, Message, PREFIX_BYTES};

/// Why a message did not arrive, or could not be sent.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The stream broke, or ended inside a message.
    #[error("stream broke")]
    Io(#[from] io::Error),
    /// The peer sent what is no message; or an own one passes a limit.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// There is no room for a message of that length; nothing of it was read.
    #[error("no room for a message of {0} bytes")]
    NoRoom(usize),
}

/// Reads one message. Not cancel safe: a dropped call leaves the stream inside a message.
pub async fn receive<T, R>(stream: &mut R) -> Result<T, StreamError>
where
    R: AsyncRead + Unpin,
    T: Message,
    T::Archived: for<'a> CheckBytes<HighValidator<'a, Rancor>> + Deserialize<T, HighDeserializer<Rancor>>,
{
    receive_within(stream, |_| Some(())).await.map(|(message, ())| message)
}

/// Reads one message for which there is room: `admit` is told its length before any of it is read into memory, and what it gives is
/// given on. Not cancel safe.
pub async fn receive_within<T, R, P>(stream: &mut R, admit: impl FnOnce(usize) -> Option<P>) -> Result<(T, P), StreamError>
where
    R: AsyncRead + Unpin,
    T: Message,
    T::Archived: for<'a> CheckBytes<HighValidator<'a, Rancor>> + Deserialize<T, HighDeserializer<Rancor>>,
{
    let mut prefix = [0; PREFIX_BYTES];
    stream.read_exact(&mut prefix).await?;
    let length = codec::length::<T>(prefix)?;
    let room = admit(length).ok_or(StreamError::NoRoom(length))?;
    Ok((body(stream, length).await?, room))
}

/// Reads one message, or finds that the stream has ended before it. Not cancel safe.
pub async fn receive_or_end<T, R>(stream: &mut R) -> Result<Option<T>, StreamError>
where
    R: AsyncRead + Unpin,
    T: Message,
    T::Archived: for<'a> CheckBytes<HighValidator<'a, Rancor>> + Deserialize<T, HighDeserializer<Rancor>>,
{
    let mut prefix = [0; PREFIX_BYTES];
    match stream.read(&mut prefix).await? {
        0 => return Ok(None),
        got => stream.read_exact(&mut prefix[got..]).await?,
    };
    body(stream, codec::length::<T>(prefix)?).await.map(Some)
}

async fn body<T, R>(stream: &mut R, length: usize) -> Result<T, StreamError>
where
    R: AsyncRead + Unpin,
    T: Message,
    T::Archived: for<'a> CheckBytes<HighValidator<'a, Rancor>> + Deserialize<T, HighDeserializer<Rancor>>,
{
    let mut archive = vec![0; length];
    stream.read_exact(&mut archive).await?;
    Ok(codec::decode(&archive)?)
}

/// Sends one message.
pub async fn send<T, W>(stream: &mut W, message: &T) -> Result<(), StreamError>
where
    W: AsyncWrite + Unpin,
    T: Message + for<'a> Serialize<HighSerializer<AlignedVec, ArenaHandle<'a>, Rancor>>,
{
    Ok(stream.write_all(&codec::encode(message)?).await?)
}

/// A stream that takes bytes without copying them.
pub trait SendBytes: Send {
    /// Sends all of `parts`, in order. Not cancel safe: a dropped call may have sent some of them.
    fn send_bytes(&mut self, parts: &mut [Bytes]) -> impl Future<Output = io::Result<()>> + Send;
}

impl SendBytes for quinn::SendStream {
    async fn send_bytes(&mut self, parts: &mut [Bytes]) -> io::Result<()> {
        Ok(self.write_all_chunks(parts).await?)
    }
}
