//! Requests by hand, for what no client would say.

use framecache::wire::codec::{self, Message};
use framecache::wire::stream::{self, StreamError};
use framecache::wire::{Header, ItemHead, Verb, ext};
use rkyv::api::high::HighSerializer;
use rkyv::rancor::Error as Rancor;
use rkyv::ser::allocator::ArenaHandle;
use rkyv::util::AlignedVec;

/// A whole request for that verb, as bytes.
pub fn request<B>(verb: u16, version: &str, body: &B) -> Vec<u8>
where
    B: Message + for<'a> rkyv::Serialize<HighSerializer<AlignedVec, ArenaHandle<'a>, Rancor>>,
{
    [header(verb, version), codec::encode(body).expect("body")].concat()
}

/// A header alone, as bytes.
pub fn header(verb: u16, version: &str) -> Vec<u8> {
    let header = Header { verb, version: version.into(), deadline_ms_left: 20_000, ..Header::default() };
    codec::encode(&header).expect("header")
}

/// A read of `[start, start + length)`, as bytes.
pub fn read(uri: &str, start: u64, length: u64) -> Vec<u8> {
    request(Verb::Read as u16, "", &framecache::wire::ReadBody { uri: uri.into(), start, length })
}

/// A request of a node, or of what says that it is one, as bytes: `peer` is the name that it gives, `behalf` for whom it speaks.
pub fn asked_by<B>(verb: Verb, peer: Option<&str>, behalf: &str, body: &B) -> Vec<u8>
where
    B: Message + for<'a> rkyv::Serialize<HighSerializer<AlignedVec, ArenaHandle<'a>, Rancor>>,
{
    let header = Header {
        verb: verb as u16,
        deadline_ms_left: 20_000,
        on_behalf_of: behalf.into(),
        ext: peer.iter().map(|name| (ext::PEER, name.as_bytes().to_vec())).collect(),
        ..Header::default()
    };
    [codec::encode(&header).expect("header"), codec::encode(body).expect("body")].concat()
}

/// Sends `bytes` on a stream of their own and ends it; every item that comes back, and how the reply ended.
pub async fn say(connection: &quinn::Connection, bytes: &[u8]) -> (Vec<(ItemHead, Vec<u8>)>, End) {
    let (mut send, mut recv) = connection.open_bi().await.expect("stream");
    // The node may have stopped reading.
    let _ = send.write_all(bytes).await;
    let _ = send.finish();
    items(&mut recv).await
}

/// How a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// In order.
    Finished,
    /// With that code.
    Reset(u32),
    /// Otherwise.
    Broken,
}

/// The items of a reply to its end.
pub async fn items(recv: &mut quinn::RecvStream) -> (Vec<(ItemHead, Vec<u8>)>, End) {
    let mut items = Vec::new();
    loop {
        let error = match stream::receive_or_end::<ItemHead, _>(recv).await {
            Ok(None) => return (items, End::Finished),
            Ok(Some(head)) => {
                let mut payload = vec![0; head.payload_bytes as usize];
                match recv.read_exact(&mut payload).await {
                    Ok(()) => {
                        items.push((head, payload));
                        continue;
                    }
                    Err(quinn::ReadExactError::ReadError(error)) => std::io::Error::from(error),
                    Err(_) => return (items, End::Broken),
                }
            }
            Err(StreamError::Io(error)) => error,
            Err(_) => return (items, End::Broken),
        };
        let reset = error.get_ref().and_then(|inner| inner.downcast_ref::<quinn::ReadError>());
        return match reset {
            Some(quinn::ReadError::Reset(code)) => (items, End::Reset(u64::from(*code) as u32)),
            _ => (items, End::Broken),
        };
    }
}
