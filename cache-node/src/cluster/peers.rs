//! The other nodes as this one meets them: who serves a key, who may hold it, and what can be asked of them.

use async_trait::async_trait;
use framecache::wire::NodeRow;
use framecache::{ByteRange, DecodeSpec, Error, ErrorKind, Lent, ObjectId, Page, RouteKey, Version};
use tokio::time::Instant;

/// What another node may hold.
#[derive(Clone, Copy, Debug)]
pub enum Piece<'a> {
    /// A page of raw bytes.
    Page(Page),
    /// A decoded frame.
    Frame(&'a DecodeSpec),
}

/// The other nodes. Verbs only descend: what is asked here of another node, that one answers without asking a third the same.
#[async_trait]
pub trait Peers: Send + Sync + 'static {
    /// The node that serves `key`, if it is not this one.
    fn server(&self, key: RouteKey) -> Option<NodeRow>;

    /// Somebody came here because the node that serves `key` did not answer in time: whether it lives is found out, so that nobody
    /// waits for it in vain.
    fn doubt(&self, key: RouteKey);

    /// Nodes that may hold `key` where this one does not, the likeliest first; those that did not answer a moment ago are left out.
    fn holders(&self, key: RouteKey) -> Vec<NodeRow>;

    /// The nodes that decode for others, this one apart.
    fn decoders(&self) -> Vec<NodeRow>;

    /// What `node` holds of that name, of `version` if given; at most `most` bytes. It asks nobody.
    async fn peek(
        &self,
        node: &NodeRow,
        id: &ObjectId,
        piece: Piece<'_>,
        version: Option<&Version>,
        most: u64,
        deadline: Instant,
    ) -> Result<Option<Lent>, Error>;

    /// Bytes of `range`, which lies on one page, from the node that serves them. An empty range asks for version and size alone.
    async fn read(
        &self,
        node: &NodeRow,
        id: &ObjectId,
        range: ByteRange,
        version: Option<&Version>,
        caller: &str,
        deadline: Instant,
    ) -> Result<Lent, Error>;

    /// A decoded frame of at most `most` bytes, from the node that serves it.
    #[allow(clippy::too_many_arguments)] // what is asked, and within which bounds; a struct would only rename them
    async fn frame(
        &self,
        node: &NodeRow,
        id: &ObjectId,
        spec: &DecodeSpec,
        version: Option<&Version>,
        most: u64,
        caller: &str,
        deadline: Instant,
    ) -> Result<Lent, Error>;

    /// Frames of one object, of at most `most` bytes each, decoded by `node`, which keeps nothing of them; in the order of `specs`.
    #[allow(clippy::too_many_arguments)] // as in `frame`
    async fn decode(
        &self,
        node: &NodeRow,
        id: &ObjectId,
        version: &Version,
        specs: &[DecodeSpec],
        most: u64,
        caller: &str,
        deadline: Instant,
    ) -> Result<Vec<Result<Lent, Error>>, Error>;

    /// The index of a video's version, `proved` or of any trust, from the node that serves the video.
    /// Nodes that run in memory have no videos.
    #[allow(clippy::too_many_arguments)] // as in `frame`
    async fn index(
        &self,
        _node: &NodeRow,
        _id: &ObjectId,
        _version: &Version,
        _proved: bool,
        _stream: Option<u32>,
        _caller: &str,
        _deadline: Instant,
    ) -> Result<bytes::Bytes, Error> {
        Err(nobody())
    }
}

/// A node that has no others.
#[derive(Clone, Copy, Debug)]
pub struct Alone;

#[async_trait]
impl Peers for Alone {
    fn server(&self, _: RouteKey) -> Option<NodeRow> {
        None
    }

    fn doubt(&self, _: RouteKey) {}

    fn holders(&self, _: RouteKey) -> Vec<NodeRow> {
        Vec::new()
    }

    fn decoders(&self) -> Vec<NodeRow> {
        Vec::new()
    }

    async fn peek(
        &self,
        _: &NodeRow,
        _: &ObjectId,
        _: Piece<'_>,
        _: Option<&Version>,
        _: u64,
        _: Instant,
    ) -> Result<Option<Lent>, Error> {
        Ok(None)
    }

    async fn read(
        &self,
        _: &NodeRow,
        _: &ObjectId,
        _: ByteRange,
        _: Option<&Version>,
        _: &str,
        _: Instant,
    ) -> Result<Lent, Error> {
        Err(nobody())
    }

    async fn frame(
        &self,
        _: &NodeRow,
        _: &ObjectId,
        _: &DecodeSpec,
        _: Option<&Version>,
        _: u64,
        _: &str,
        _: Instant,
    ) -> Result<Lent, Error> {
        Err(nobody())
    }

    async fn decode(
        &self,
        _: &NodeRow,
        _: &ObjectId,
        _: &Version,
        _: &[DecodeSpec],
        _: u64,
        _: &str,
        _: Instant,
    ) -> Result<Vec<Result<Lent, Error>>, Error> {
        Err(nobody())
    }
}

fn nobody() -> Error {
    Error::new(ErrorKind::Unavailable, "this node is alone")
}
