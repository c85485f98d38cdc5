//! A node's side of the client: what it asks of its peers, each known by its name's certificate and asked on connections of its own.
//!
//! A peer is asked for one thing and once. It does not walk, and it does not try again: whom to ask next is the asking node's
//! decision, which knows who may hold what. Replies are bounded by what was asked for before any of them is read into memory.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rkyv::Serialize;
use rkyv::api::high::HighSerializer;
use rkyv::rancor::Error as Rancor;
use rkyv::ser::allocator::ArenaHandle;
use rkyv::util::AlignedVec;
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_64;

use crate::ask::{self, Reply};
use crate::config::MEMORY_MIN;
use crate::error::{Error, ErrorKind};
use crate::frame::TensorHead;
use crate::object::{ByteRange, ObjectId, PAGE_BYTES, Version};
use crate::pool::{Naming, Pool, Target};
use crate::quic::{Ground, Machine};
use crate::spec::DecodeSpec;
use crate::tls::TlsFiles;
use crate::view::View;
use crate::wire::codec::Message;
use crate::wire::{
    DecodeBody, FrameAsk, FramesBody, Header, INDEX_BYTES_MAX, IndexBody, IndexKind, IndexPayload, ItemHead, NodeRow, PeekBody,
    ReadBody, Verb, ext,
};

/// A peer that was lost or silent within this is doubtful: long enough that a burst of peeks does not wait for it one by one, short
/// enough that one that is back is asked again before its pages are fetched from the origin twice.
const DOUBT: Duration = Duration::from_secs(1);

/// Members of the largest cluster whose nodes are all connected to each other: 64 connections of some 50 KiB each.
const GREETED_MAX: usize = 64;

/// Most bytes of a video's index that is taken over.
const INDEX_WHOLE_MAX: u64 = 64 << 20;

/// Connections of a node to its peers.
#[derive(Debug)]
pub struct Peers {
    id: String,
    pool: Pool,
}

/// Bytes or pixels that a peer gave, with the version and size of their object.
#[derive(Clone, Debug, PartialEq)]
pub struct Lent {
    /// Version of the object.
    pub version: Version,
    /// Bytes of the whole object.
    pub size: u64,
    /// How long ago the origin said that this is the version: news do not grow young on their way.
    pub age: Duration,
    /// What the bytes look like, if they are a picture or frame.
    pub tensor: Option<TensorHead>,
    /// The page, the range, or the numbers of the tensor.
    pub bytes: Bytes,
}

impl Peers {
    /// A node's connections, as the node `id`, whose certificate is `tls`'s own. They hold up to `memory` bytes of replies in flight
    /// each. Nothing is connected yet.
    ///
    /// # Errors
    /// `Invalid` if `memory` is too little.
    pub fn new(id: &str, tls: TlsFiles, memory: u64) -> Result<Peers, Error> {
        Self::on(Arc::new(Machine), id, tls, memory)
    }

    /// The same on another ground.
    #[doc(hidden)] // for a network that is simulated
    pub fn on(ground: Arc<dyn Ground>, id: &str, tls: TlsFiles, memory: u64) -> Result<Peers, Error> {
        if memory < MEMORY_MIN {
            let message = format!("memory of {memory} bytes is too little for peers: want at least {MEMORY_MIN}");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        Ok(Self { id: id.to_owned(), pool: Pool::new(tls, Naming::Id, memory, ground) })
    }

    /// A cached page of `id`, or a cached frame where `spec` is not empty, as far as `node` holds it: nobody else is asked. `None`: not
    /// held. `most` bounds its bytes.
    ///
    /// # Errors
    /// `Unavailable`, `Timeout`, `Busy`: ask another. `TooLarge`: it has more than `most` bytes. `Protocol`: what came is not what was
    /// asked for.
    #[allow(clippy::too_many_arguments)] // what is asked, and within which bounds; a struct would only rename them
    pub async fn peek(
        &self,
        node: &NodeRow,
        id: &ObjectId,
        index: u64,
        spec: &str,
        version: Option<&Version>,
        most: u64,
        deadline: Instant,
    ) -> Result<Option<Lent>, Error> {
        let body = PeekBody { uri: id.to_string(), index, spec: spec.into() };
        let pixels = !spec.is_empty();
        let mut reply = self.ask(node, Verb::Peek, &body, version, "", deadline).await?;
        let work = async {
            let item = first(reply.next().await?)?;
            if let Some(error) = Error::from_item(&item) {
                return if error.kind == ErrorKind::NotFound { Ok(None) } else { Err(error) };
            }
            one(&item, &mut reply, version, pixels, most).await.map(Some)
        };
        told(node, id, work.await)
    }

    /// Bytes `range` of `id`, cut at its end, whoever has to be asked for them; none at all tells version and size.
    ///
    /// # Errors
    /// As [`Peers::peek`], and what [`crate::Client::read`] says of the object. `Invalid`: more than a page.
    pub async fn read(
        &self,
        node: &NodeRow,
        id: &ObjectId,
        range: ByteRange,
        version: Option<&Version>,
        on_behalf_of: &str,
        deadline: Instant,
    ) -> Result<Lent, Error> {
        if range.len() > PAGE_BYTES {
            return Err(Error::new(ErrorKind::Invalid, format!("{range} is more than a page: read it page by page")));
        }
        let body = ReadBody { uri: id.to_string(), start: range.start(), length: range.len() };
        let mut reply = self.ask(node, Verb::Read, &body, version, on_behalf_of, deadline).await?;
        let answer = whole(&mut reply, range, version).await;
        told(node, id, answer)
    }

    /// A decoded picture or frame of `id`, whoever has to decode it. `most` bounds its bytes.
    ///
    /// # Errors
    /// As [`Peers::peek`], and what [`crate::Client::images`] says of the object.
    #[allow(clippy::too_many_arguments)] // as in `peek`
    pub async fn frame(
        &self,
        node: &NodeRow,
        id: &ObjectId,
        spec: &DecodeSpec,
        version: Option<&Version>,
        most: u64,
        on_behalf_of: &str,
        deadline: Instant,
    ) -> Result<Lent, Error> {
        let pinned = version.map_or(String::new(), Version::to_string);
        let item = FrameAsk { index: 0, attempt: 1, spec: 0, uri: id.to_string(), version: pinned };
        let body = FramesBody { specs: vec![spec.to_string()], items: vec![item] };
        let mut reply = self.ask(node, Verb::Frames, &body, version, on_behalf_of, deadline).await?;
        let work = async {
            let item = first(reply.next().await?)?;
            match Error::from_item(&item) {
                Some(error) => Err(error),
                None => one(&item, &mut reply, version, true, most).await,
            }
        };
        told(node, id, work.await)
    }

    /// `specs` of the picture `id` as it was in `version`, decoded by `node` and not kept there; in the order of `specs`. `most` bounds the
    /// bytes of each.
    ///
    /// # Errors
    /// As a whole: `Unavailable`, `Timeout`, `Busy`, `Protocol`. Per spec, as [`Peers::frame`].
    #[allow(clippy::too_many_arguments)] // as in `peek`
    pub async fn decode(
        &self,
        node: &NodeRow,
        id: &ObjectId,
        version: &Version,
        specs: &[DecodeSpec],
        most: u64,
        on_behalf_of: &str,
        deadline: Instant,
    ) -> Result<Vec<Result<Lent, Error>>, Error> {
        let body = DecodeBody { uri: id.to_string(), unit: 0, specs: specs.iter().map(DecodeSpec::to_string).collect() };
        let mut reply = self.ask(node, Verb::Decode, &body, Some(version), on_behalf_of, deadline).await?;
        let work = async {
            let mut made: Vec<Option<Result<Lent, Error>>> = vec![None; specs.len()];
            while made.iter().any(Option::is_none) {
                let item = first(reply.next().await?)?;
                let place = made.get_mut(item.index as usize).filter(|place| place.is_none());
                let place = place.ok_or_else(|| protocol("a spec that was not asked for"))?;
                *place = Some(match Error::from_item(&item) {
                    Some(error) => Err(error.from_node(&node.id, 1).about(id)),
                    None => Ok(one(&item, &mut reply, Some(version), true, most).await?),
                });
            }
            Ok(made.into_iter().flatten().collect())
        };
        told(node, id, work.await)
    }

    /// The index of the video `id` as it was in `version`, as the node that serves it keeps or makes it. It is asked for part by part.
    ///
    /// # Errors
    /// As [`Peers::frame`]; `TooLarge` past 64 MiB.
    #[allow(clippy::too_many_arguments)] // what is asked, and within which bounds; a struct would only rename them
    pub async fn index(
        &self,
        node: &NodeRow,
        id: &ObjectId,
        version: &Version,
        proved: bool,
        stream: Option<u32>,
        on_behalf_of: &str,
        deadline: Instant,
    ) -> Result<Bytes, Error> {
        let kind = IndexKind::Video { proved, stream }.to_string();
        let mut whole = BytesMut::new();
        let mut known = None;
        let work = async {
            loop {
                let start = whole.len() as u64;
                let body = IndexBody { uri: id.to_string(), kind: kind.clone(), start, count: INDEX_BYTES_MAX.into() };
                let mut reply = self.ask(node, Verb::Index, &body, Some(version), on_behalf_of, deadline).await?;
                let item = first(reply.next().await?)?;
                if let Some(error) = Error::from_item(&item) {
                    return Err(error);
                }
                version_of(&item, Some(version))?;
                let part: IndexPayload = reply.message(&item).await?;
                let IndexPayload { total, hash, bytes, .. } = part;
                if total > INDEX_WHOLE_MAX {
                    return Err(Error::new(ErrorKind::TooLarge, format!("an index of {total} bytes")));
                }
                let fits = start + bytes.len() as u64 <= total && (!bytes.is_empty() || start == total);
                if !fits || known.replace((total, hash)).is_some_and(|known| known != (total, hash)) {
                    return Err(protocol("parts of two indexes"));
                }
                whole.extend_from_slice(&bytes);
                if whole.len() as u64 == total {
                    return match xxh3_64(&whole) == hash {
                        true => Ok(std::mem::take(&mut whole).freeze()),
                        false => Err(protocol("an index that differs from its hash")),
                    };
                }
            }
        };
        let answer = work.await;
        told(node, id, answer)
    }

    /// Whether at `node`'s address somebody shows a certificate of its name.
    pub async fn prove(&self, node: &NodeRow, deadline: Instant) -> bool {
        match self.pool.link(&Target::node(&node.id, &node.quic)) {
            Ok(link) => link.connection(deadline).await.is_ok(),
            Err(_) => false,
        }
    }

    /// Somebody waits for `node` in vain: it is asked for a sign of life. Without one it is doubtful soon.
    pub fn doubt(&self, node: &NodeRow) {
        // Whose address is no address is not reached by others either.
        if let Ok(link) = self.pool.link(&Target::node(&node.id, &node.quic)) {
            link.doubt();
        }
    }

    /// Whether `node` was lost or silent a moment ago, or seems to be: another is to be asked.
    pub fn is_doubtful(&self, node: &NodeRow) -> bool {
        self.pool.known(&Target::node(&node.id, &node.quic)).is_some_and(|link| link.is_doubtful(DOUBT))
    }

    /// Forgets the nodes that are not in `view`, or are gone: they are not probed any more.
    pub fn retain(&self, view: &View) {
        self.pool.retain(|target| target.is_in(view));
    }

    /// Connects to the members of `view`, so that nobody who asks one for the first time waits for a handshake; in a large cluster, where
    /// most are never asked, to none.
    pub fn greet(&self, view: &View) {
        if view.members().count() > GREETED_MAX {
            return;
        }
        for row in view.members().filter(|row| row.id != self.id) {
            if let Ok(link) = self.pool.link(&Target::node(&row.id, &row.quic)) {
                link.greet();
            }
        }
    }

    /// Closes the connections, telling the peers. What runs meanwhile fails.
    pub async fn close(&self) {
        self.pool.close(Duration::from_secs(1)).await;
    }

    async fn ask<B>(
        &self,
        node: &NodeRow,
        verb: Verb,
        body: &B,
        version: Option<&Version>,
        on_behalf_of: &str,
        deadline: Instant,
    ) -> Result<Reply, Error>
    where
        B: Message + for<'a> Serialize<HighSerializer<AlignedVec, ArenaHandle<'a>, Rancor>>,
    {
        let header = Header {
            verb: verb as u16,
            caller: self.id.clone(),
            on_behalf_of: on_behalf_of.to_owned(),
            version: version.map_or(String::new(), Version::to_string),
            ext: vec![(ext::PEER, self.id.clone().into_bytes())],
            ..Header::default()
        };
        let link = self.pool.link(&Target::node(&node.id, &node.quic))?;
        ask::ask(&link, header, body, 1, None, deadline).await.map_err(|error| error.from_node(&node.id, 1))
    }
}

/// The answer, with where it came from if it is an error.
fn told<T>(node: &NodeRow, id: &ObjectId, answer: Result<T, Error>) -> Result<T, Error> {
    answer.map_err(|error| error.from_node(&node.id, 1).about(id))
}

/// The item of a reply that has one.
fn first(item: Option<ItemHead>) -> Result<ItemHead, Error> {
    item.ok_or_else(|| Error::new(ErrorKind::Unavailable, "the reply ended early"))
}

/// An item that is whole in itself.
async fn one(item: &ItemHead, reply: &mut Reply, pinned: Option<&Version>, pixels: bool, most: u64) -> Result<Lent, Error> {
    let version = version_of(item, pinned)?;
    let tensor = item.tensor_head().map_err(|error| protocol(error.to_string()))?;
    let bytes = u64::from(item.payload_bytes);
    if tensor.is_some() != pixels || tensor.is_some_and(|head| head.bytes() != bytes) {
        return Err(protocol("bytes that do not fit their shape"));
    }
    if bytes > most || (!pixels && bytes > PAGE_BYTES) {
        return Err(Error::new(ErrorKind::TooLarge, format!("{bytes} bytes, where {most} at most were asked for")));
    }
    Ok(Lent { version, size: item.size, age: age_of(item), tensor, bytes: reply.bytes(item).await? })
}

/// The items of a read, put together.
async fn whole(reply: &mut Reply, range: ByteRange, pinned: Option<&Version>) -> Result<Lent, Error> {
    let mut found: Option<Lent> = None;
    let mut parts: Vec<Bytes> = Vec::new();
    let mut at = range.start();
    loop {
        let item = first(reply.next().await?)?;
        if let Some(error) = Error::from_item(&item) {
            return Err(error);
        }
        let version = version_of(&item, found.as_ref().map(|found| &found.version).or(pinned))?;
        let age = age_of(&item);
        let size = found.get_or_insert_with(|| Lent { version, size: item.size, age, tensor: None, bytes: Bytes::new() }).size;
        let end = at + u64::from(item.payload_bytes);
        if item.size != size || (item.payload_bytes > 0 && item.offset != at) || end > range.clamp(size).end().max(at) {
            return Err(protocol("bytes out of order"));
        }
        parts.push(reply.bytes(&item).await?);
        at = end;
        // An item without bytes is the last: a reply of many would have no end.
        if item.last || item.payload_bytes == 0 {
            break;
        }
    }
    let found = found.filter(|found| at == range.clamp(found.size).end().max(range.start()));
    let found = found.ok_or_else(|| Error::new(ErrorKind::Unavailable, "the reply ended early"))?;
    let bytes = if parts.len() == 1 { parts.swap_remove(0) } else { parts.concat().into() };
    Ok(Lent { bytes, ..found })
}

/// How old the item's facts are; what does not say is of now.
fn age_of(item: &ItemHead) -> Duration {
    let ms = item.addition(ext::AGE).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes);
    Duration::from_millis(ms)
}

/// The item's version, if it is the pinned one, or none is.
fn version_of(item: &ItemHead, pinned: Option<&Version>) -> Result<Version, Error> {
    let version = Version::new(&item.version).map_err(|error| protocol(error.to_string()))?;
    match pinned.filter(|pinned| **pinned != version) {
        Some(pinned) => Err(protocol(format!("version {version} where {pinned} was pinned"))),
        None => Ok(version),
    }
}

fn protocol(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Protocol, message)
}

#[cfg(test)]
#[path = "peer_tests.rs"]
mod tests;
