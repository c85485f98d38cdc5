//! What other nodes hold, serve and decode, as fills meet it.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use framecache::wire::NodeRow;
use framecache::{ByteRange, DecodeSpec, Error, ErrorKind, Lent, ObjectId, Page, RouteKey, Span, Tensor, Version};
use tokio::time::Instant;

use super::frames::fixed_bytes;
use super::{ReadError, Reader, Terms, Way};
use crate::cache::{Body, Entry, Freshness, Head, frames, pages};
use crate::cluster::Piece;
use crate::decode::Trust;

/// Longest wait for one node's word on whether it holds something: a disk read and a round trip on a loaded network. Past it the
/// origin is as quick.
const PEEK_MAX: Duration = Duration::from_millis(250);

/// The same for the node that serves the key, where another is to see to it: that one is slow, or gone and nobody knows yet.
const PEEK_DOUBTED_MAX: Duration = Duration::from_millis(50);

/// What came of asking the node that serves a key.
pub(super) enum There<T> {
    /// Its answer: a failure that every node would give, too.
    Answer(Result<T, ReadError>),
    /// Nobody else serves it, or who does cannot be reached: this node has to see to it itself.
    Nobody,
}

impl Reader {
    /// The route key of raw bytes.
    pub(super) fn raw_key(id: &ObjectId, start: u64) -> RouteKey {
        RouteKey::raw(id, Span::new(start / framecache::object::SPAN_BYTES))
    }

    /// The node that is to be asked for what this one lacks under `key`.
    fn server(&self, key: RouteKey, terms: &Terms) -> Option<NodeRow> {
        match terms.way {
            Way::Server | Way::Replica => self.peers.server(key),
            Way::Itself | Way::ForPeer => None,
        }
    }

    /// The head that the object's server goes by: only it resolves what is current.
    pub(super) async fn head_from_server(&self, object: &ObjectId, terms: &Terms) -> There<Head> {
        let Some(server) = self.server(RouteKey::object(object), terms) else { return There::Nobody };
        let nothing = ByteRange::at(0, 0).unwrap_or(Page::new(0).range());
        let lent = self.peers.read(&server, object, nothing, None, &terms.caller, terms.deadline).await;
        self.served(object, None, lent, terms).map(|lent| self.head_of(&lent))
    }

    /// Bytes of `range`, which lies on one page, from the node that serves them.
    pub(super) async fn range_from_server(
        &self,
        object: &ObjectId,
        range: ByteRange,
        version: Option<&Version>,
        terms: &Terms,
    ) -> There<(Head, bytes::Bytes)> {
        let Some(server) = self.server(Self::raw_key(object, range.start()), terms) else { return There::Nobody };
        let lent = self.peers.read(&server, object, range, version, &terms.caller, terms.deadline).await;
        self.served(object, version, lent, terms).map(|lent| (self.head_of(&lent), lent.bytes))
    }

    /// A frame, from the node that serves it.
    pub(super) async fn frame_from_server(
        &self,
        id: &ObjectId,
        spec: &DecodeSpec,
        version: Option<&Version>,
        most: u64,
        terms: &Terms,
    ) -> There<Entry> {
        let Some(server) = self.server(spec.route(id), terms) else { return There::Nobody };
        let lent = self.peers.frame(&server, id, spec, version, most, &terms.caller, terms.deadline).await;
        if lent.as_ref().is_err_and(|error| error.kind == ErrorKind::TooLarge) && fixed_bytes(spec).is_none() {
            // More than was guessed: this node finds out by itself.
            return There::Nobody;
        }
        match self.served(id, version, lent, terms) {
            There::Nobody => There::Nobody,
            There::Answer(lent) => There::Answer(lent.and_then(|lent| self.frame_of(lent).ok_or_else(not_a_frame))),
        }
    }

    /// A video's index, from the node that serves its object: it is made once for all.
    pub(super) async fn index_from_server(
        &self,
        object: &ObjectId,
        version: &Version,
        trust: Trust,
        stream: Option<u32>,
        terms: &Terms,
    ) -> There<bytes::Bytes> {
        let Some(server) = self.server(RouteKey::object(object), terms) else { return There::Nobody };
        let proved = trust > Trust::Predicted;
        let index = self.peers.index(&server, object, version, proved, stream, &terms.caller, terms.deadline).await;
        self.served(object, Some(version), index, terms)
    }

    /// What an answer of the key's server means here.
    fn served<T>(&self, id: &ObjectId, pin: Option<&Version>, lent: Result<T, Error>, terms: &Terms) -> There<T> {
        match lent {
            Ok(lent) => {
                self.counts.forwards.fetch_add(1, Relaxed);
                There::Answer(Ok(lent))
            }
            // A node's own rules and release are no word on the object.
            Err(Error {
                kind: ErrorKind::NotConfigured | ErrorKind::Denied | ErrorKind::Unsupported | ErrorKind::Invalid,
                ..
            }) => There::Nobody,
            Err(error) if error.kind.is_final() => There::Answer(Err(self.final_error(id, pin, error))),
            Err(error) if Instant::now() >= terms.deadline => {
                tracing::debug!(%error, "the server of a key did not answer in time");
                There::Answer(Err(ReadError::Deadline))
            }
            // A server that is busy is so for this node's callers as for its own.
            Err(Error { kind: ErrorKind::Busy { retry_after }, .. }) => There::Answer(Err(ReadError::Busy { retry_after })),
            Err(error) => {
                self.counts.lost_servers.fetch_add(1, Relaxed);
                tracing::debug!(%error, "the server of a key is away");
                There::Nobody
            }
        }
    }

    /// Another node's final word, as this one's own.
    pub(super) fn final_error(&self, id: &ObjectId, pin: Option<&Version>, error: Error) -> ReadError {
        match (error.kind, pin) {
            (ErrorKind::NotFound, _) => ReadError::NotFound,
            (ErrorKind::Denied, _) => ReadError::Denied,
            (ErrorKind::NotConfigured, _) => ReadError::NotConfigured(id.bucket().to_owned()),
            (ErrorKind::Changed, Some(old)) => self.changed(id, old.clone(), None),
            (ErrorKind::Undecodable, _) => ReadError::Undecodable(error.message),
            (ErrorKind::Unsupported, _) => ReadError::Unsupported(error.message),
            (ErrorKind::TooLarge, _) => ReadError::TooLarge(error.message),
            (ErrorKind::OutOfRange, _) => ReadError::PastEnd(error.message),
            _ => ReadError::Unavailable(error.message),
        }
    }

    /// A page of `version` that another node holds; without a version the one that it holds, if that is known to be current.
    pub(super) async fn page_from_holders(
        &self,
        object: &ObjectId,
        page: Page,
        version: Option<&Version>,
        terms: &Terms,
    ) -> Option<Entry> {
        if version.is_none() && self.policy(object) != Freshness::Immutable {
            return None;
        }
        let key = Self::raw_key(object, page.range().start());
        let lent = self.peek(object, key, Piece::Page(page), version, page.range().len(), terms).await?;
        let head = self.head_of(&lent);
        if version.is_none() && self.is_outdated(object, &head) {
            return None;
        }
        pages::entry(head, page, lent.bytes)
    }

    /// A frame of `version`, of at most `most` bytes, that another node holds.
    pub(super) async fn frame_from_holders(
        &self,
        id: &ObjectId,
        spec: &DecodeSpec,
        version: &Version,
        most: u64,
        terms: &Terms,
    ) -> Option<Entry> {
        let lent = self.peek(id, spec.route(id), Piece::Frame(spec), Some(version), most, terms).await?;
        self.frame_of(lent)
    }

    /// Asks those that may hold it, one after the other.
    async fn peek(
        &self,
        id: &ObjectId,
        key: RouteKey,
        piece: Piece<'_>,
        version: Option<&Version>,
        most: u64,
        terms: &Terms,
    ) -> Option<Lent> {
        let doubted = self.peers.server(key).filter(|_| terms.way == Way::Itself);
        for node in self.peers.holders(key) {
            let is_doubted = doubted.as_ref().is_some_and(|server| server.id == node.id);
            let longest = if is_doubted { PEEK_DOUBTED_MAX } else { PEEK_MAX };
            let until = terms.deadline.min(Instant::now() + longest);
            self.counts.peeks.fetch_add(1, Relaxed);
            match self.peers.peek(&node, id, piece, version, most, until).await {
                Ok(Some(lent)) if version.is_none_or(|version| lent.version == *version) => {
                    self.counts.peeked.fetch_add(1, Relaxed);
                    return Some(lent);
                }
                Ok(_) => {}
                Err(error) => tracing::debug!(node = node.id, %error, "a node was not able to say whether it holds something"),
            }
        }
        None
    }

    /// The head that came with another node's bytes, as old as it was there.
    fn head_of(&self, lent: &Lent) -> Head {
        let age = u64::try_from(lent.age.as_millis()).unwrap_or(u64::MAX);
        Head { version: lent.version.clone(), size: lent.size, fetched_unix_ms: self.clock.now_unix_ms().saturating_sub(age) }
    }

    /// How old a head is, for another node.
    pub fn age(&self, head: &Head) -> Duration {
        Duration::from_millis(self.clock.now_unix_ms().saturating_sub(head.fetched_unix_ms))
    }

    fn frame_of(&self, lent: Lent) -> Option<Entry> {
        let head = self.head_of(&lent);
        frames::entry(head, Tensor { head: lent.tensor?, data: lent.bytes })
    }

    /// What this node holds of a piece, for another node. Asks nobody.
    pub async fn held_piece(
        &self,
        id: &ObjectId,
        piece: Piece<'_>,
        version: Option<&Version>,
        deadline: Instant,
    ) -> Option<Entry> {
        let key = match piece {
            Piece::Page(page) => pages::key(id, page),
            Piece::Frame(spec) => frames::key(id, spec),
        };
        let entry = self.held(&key, version, deadline).await.ok()??;
        let current = version.is_some() || !self.is_outdated(&id.object(), &entry.head);
        let fits = matches!((&piece, &entry.body), (Piece::Page(_), Body::Raw(_)) | (Piece::Frame(_), Body::Frame(_)));
        (current && fits).then_some(entry)
    }
}

impl<T> There<T> {
    fn map<U>(self, to: impl FnOnce(T) -> U) -> There<U> {
        match self {
            There::Answer(answer) => There::Answer(answer.map(to)),
            There::Nobody => There::Nobody,
        }
    }
}

fn not_a_frame() -> ReadError {
    ReadError::Unavailable("another node's answer holds no frame".into())
}
