//! Fills: what is missing is brought once for all who wait for it, from the node that serves it, from those that may hold it, or from
//! the origin.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use framecache::object::PAGE_BYTES;
use framecache::{ByteRange, ObjectId, Page, Version};
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::time::{Instant, timeout_at};

use super::lately::Source;
use super::others::There;
use super::{FLIGHT_MAX, ReadError, Reader, Terms, Way, in_time, landed};
use crate::budget::Level;
use crate::cache::{Body, Entry, Freshness, Head, InsertHint, Place, pages};
use crate::origin::OriginError;

/// The level of what fills hold: deeper than that of the replies which wait for them, so that no reply waits for another.
pub(super) const FILLS: Level = Level::Fill;

/// What is filled by one request, and who is asked first. A fill that waits for another node is not the one that other nodes wait for:
/// where two take each other for the server of a key, they would wait for each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Fill {
    pub(super) what: What,
    pub(super) first: First,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum What {
    /// A page, of a version if one is known.
    Page(ObjectId, Page, Option<Version>),
    /// Bytes that no tier takes, of a version.
    Exact(ObjectId, ByteRange, Version),
    /// Whether the current version still is.
    Head(ObjectId),
}

/// Who is asked first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum First {
    /// The node that serves the key.
    Server,
    /// Those that may hold it, then the origin.
    Here,
}

/// What a fill gives: an entry, or for [`What::Head`] one without bytes.
pub(super) type FillResult = Result<Entry, ReadError>;

/// Why raw bytes are read, which decides where they are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Somebody asked for them; with admission's word, if it was asked already.
    Reply(Option<Place>),
    /// A decoder did: its output is what is kept.
    Decode,
}

impl Reader {
    /// The answer of a fill, own or joined. One that was under way before this call asked is an answer only if `current`
    /// says so of its head; it is none if there was nothing yet, or its own time was up.
    pub(super) async fn filled(
        self: &Arc<Self>,
        fill: Fill,
        purpose: Purpose,
        current: impl Fn(&Head) -> bool + Send + Sync,
        terms: &Terms,
    ) -> FillResult {
        self.filled_unless(fill, purpose, current, || None, terms).await
    }

    /// The same, unless none is under way and `known` has an answer by now: one may have landed since the caller looked.
    pub(super) async fn filled_unless(
        self: &Arc<Self>,
        mut fill: Fill,
        purpose: Purpose,
        current: impl Fn(&Head) -> bool + Send + Sync,
        known: impl Fn() -> Option<Head> + Send + Sync,
        terms: &Terms,
    ) -> FillResult {
        let asked = self.fills.now();
        loop {
            let (reader, own, own_terms) = (self.clone(), fill.clone(), terms.by(Instant::now() + FLIGHT_MAX));
            let known = || known().map(|head| Ok(Entry { head, body: Body::Raw(bytes::Bytes::new()) }));
            let flight =
                self.fills.join_unless(fill.clone(), known, || async move { reader.fill(own, purpose, own_terms).await });
            let (answer, number) = landed(timeout_at(terms.deadline, flight).await, "a fill")?;
            let holds = match &answer {
                Ok(entry) => current(&entry.head),
                Err(error) => !matches!(error, ReadError::NotFound | ReadError::Deadline),
            };
            // Whoever follows a flight that was under way begins later: one more round for the page, at most one for the head.
            if holds || number >= asked {
                let who = if fill.first == First::Server { "the node that serves it" } else { "the origin" };
                return answer.map_err(|error| in_time(error, who));
            }
            if let (What::Page(object, _, None), Ok(_)) = (&fill.what, &answer) {
                // The page is here; what is not known is whether it is current.
                fill = Fill { what: What::Head(object.clone()), first: First::Here };
            }
        }
    }

    /// A fill that another one waits for.
    fn filled_here(self: Arc<Self>, fill: Fill, purpose: Purpose, terms: Terms) -> BoxFuture<'static, FillResult> {
        async move { self.filled(fill, purpose, |_| true, &terms).await }.boxed()
    }

    /// One fill, on the node's task set. Heads are as old as the question, not as the answer: what the origin says may have been
    /// overtaken on its way.
    async fn fill(self: Arc<Self>, fill: Fill, purpose: Purpose, terms: Terms) -> FillResult {
        let Fill { what, first } = fill;
        if first == First::Server {
            if let There::Answer(answer) = self.fill_from_server(&what, purpose, &terms).await {
                return answer;
            }
            // As if this node served it: under the name by which others fill it here.
            let fill = Fill { what, first: First::Here };
            return self.filled_here(fill, purpose, Terms { way: Way::Itself, ..terms }).await;
        }
        match what {
            What::Head(object) => self.fill_head(&object, terms.deadline).await,
            What::Page(object, page, pin) => self.fill_page(&object, page, pin, purpose, &terms).await,
            What::Exact(object, range, version) => self.fill_exact(&object, range, &version, &terms).await,
        }
    }

    /// The fill by the node that serves the key. Kept only where this node is a replica of it, or a decoder will read it again at once.
    async fn fill_from_server(&self, what: &What, purpose: Purpose, terms: &Terms) -> There<Entry> {
        let (object, range, page, version) = match what {
            What::Head(_) => return There::Nobody,
            What::Page(object, page, version) => (object, page.range(), Some(*page), version.as_ref()),
            What::Exact(object, range, version) => (object, *range, None, Some(version)),
        };
        let _reservation = match self.budget.reserve(Level::Fetch, range.len(), terms.deadline).await {
            Ok(reservation) => reservation,
            Err(refused) => return There::Answer(Err(refused.into())),
        };
        let began = Instant::now();
        let lent = match self.range_from_server(object, range, version, terms).await {
            There::Nobody => return There::Nobody,
            There::Answer(Err(error)) => return There::Answer(Err(error)),
            There::Answer(Ok(lent)) => lent,
        };
        let (head, bytes) = lent;
        self.note_fill(object, None, Source::Server, bytes.len(), began);
        let Some(page) = page else { return There::Answer(Ok(Entry { head, body: Body::Raw(bytes) })) };
        let Some(entry) = pages::entry(head, page, bytes) else {
            return There::Answer(Err(ReadError::Unavailable("another node gave a part of a page".into())));
        };
        let hint = match purpose {
            Purpose::Decode => Some(InsertHint::RamOnly),
            Purpose::Reply(place) if terms.way == Way::Replica => Some(place.map_or(InsertHint::Normal, InsertHint::As)),
            Purpose::Reply(_) => None,
        };
        if let Some(hint) = hint {
            self.store.insert(pages::key(object, page), entry.clone(), hint);
        }
        There::Answer(Ok(entry))
    }

    async fn fill_head(&self, object: &ObjectId, deadline: Instant) -> FillResult {
        let fetched_unix_ms = self.clock.now_unix_ms();
        let facts = match self.origin.head(object, deadline).await {
            Ok(facts) => facts,
            Err(error) => return Err(self.failed(object, error)),
        };
        let head = Head { version: facts.version, size: facts.size, fetched_unix_ms };
        self.heads.insert(object, head.clone());
        Ok(Entry { head, body: Body::Raw(bytes::Bytes::new()) })
    }

    async fn fill_page(
        &self,
        object: &ObjectId,
        page: Page,
        pin: Option<Version>,
        purpose: Purpose,
        terms: &Terms,
    ) -> FillResult {
        let (key, deadline) = (pages::key(object, page), terms.deadline);
        // Another flight may have landed between the look-up and this one's start.
        if let Some(entry) = self.store.get_ram(&key, pin.as_ref()).filter(|_| pin.is_some()) {
            return Ok(entry);
        }
        let reservation = self.budget.reserve(FILLS, page.range().len(), deadline).await?;
        if matches!(purpose, Purpose::Reply(_)) {
            self.store.room().await;
        }
        let hint = match purpose {
            Purpose::Decode => InsertHint::RamOnly,
            Purpose::Reply(Some(place)) => InsertHint::As(place),
            Purpose::Reply(None) => InsertHint::Normal,
        };
        let began = Instant::now();
        let wanted = self.version_for_holders(object, page, pin.clone(), deadline).await?;
        if let Some(entry) = self.page_from_holders(object, page, wanted.as_ref(), terms).await {
            self.heads.insert(object, entry.head.clone());
            self.note_fill(object, None, Source::Holder, entry.body.bytes().len(), began);
            self.store.insert(key, entry.clone(), hint);
            return Ok(entry);
        }
        self.counts.fills.fetch_add(1, Ordering::Relaxed);
        let fetched_unix_ms = self.clock.now_unix_ms();
        let fetched = match self.origin.read(object, page.range(), pin.as_ref(), deadline).await {
            Ok(fetched) => fetched,
            Err(error) => return Err(self.failed(object, error)),
        };
        self.note_fill(object, None, Source::Origin, fetched.body.len(), began);
        let head = Head { version: fetched.version, size: fetched.size, fetched_unix_ms };
        let past_end = fetched.body.is_empty() && page.range().start() >= head.size && page.index() > 0;
        self.heads.insert(object, head.clone());
        if past_end {
            return Ok(Entry { head, body: Body::Raw(fetched.body) });
        }
        let short = || ReadError::Unavailable("the origin gave a part of a page".into());
        let entry = pages::entry(head, page, fetched.body).ok_or_else(short)?;
        self.store.insert(key, entry.clone(), hint);
        drop(reservation);
        Ok(entry)
    }

    /// The version to ask other nodes for. They may hold an old one, so where the policy wants to know what is current, the origin
    /// says it first: a request without bytes.
    async fn version_for_holders(
        &self,
        object: &ObjectId,
        page: Page,
        pin: Option<Version>,
        deadline: Instant,
    ) -> Result<Option<Version>, ReadError> {
        let nobody = || self.peers.holders(Self::raw_key(object, page.range().start())).is_empty();
        if pin.is_some() || self.policy(object) == Freshness::Immutable || nobody() {
            return Ok(pin);
        }
        Ok(Some(self.fill_head(object, deadline).await?.head.version))
    }

    async fn fill_exact(&self, object: &ObjectId, range: ByteRange, version: &Version, terms: &Terms) -> FillResult {
        let deadline = terms.deadline;
        let _reservation = self.budget.reserve(FILLS, range.len(), deadline).await?;
        let began = Instant::now();
        let page = Page::new(range.start() / PAGE_BYTES);
        let held = match page.range().intersect(range) == range {
            true => self.page_from_holders(object, page, Some(version), terms).await,
            false => None,
        };
        if let Some((head, bytes)) = held.and_then(|entry| Some((entry.head.clone(), pages::slice(&entry, page, range)?))) {
            self.note_fill(object, None, Source::Holder, bytes.len(), began);
            return Ok(Entry { head, body: Body::Raw(bytes) });
        }
        self.counts.fills.fetch_add(1, Ordering::Relaxed);
        let fetched_unix_ms = self.clock.now_unix_ms();
        match self.origin.read(object, range, Some(version), deadline).await {
            Ok(fetched) => {
                self.note_fill(object, None, Source::Origin, fetched.body.len(), began);
                let head = Head { version: fetched.version, size: fetched.size, fetched_unix_ms };
                Ok(Entry { head, body: Body::Raw(fetched.body) })
            }
            Err(error) => Err(self.failed(object, error)),
        }
    }

    /// An origin's error; a replaced or missing object's head is forgotten.
    fn failed(&self, object: &ObjectId, error: OriginError) -> ReadError {
        match error {
            OriginError::Changed { old, new } => self.changed(object, old, new),
            OriginError::NotFound => {
                self.heads.remove(object);
                ReadError::NotFound
            }
            other => other.into(),
        }
    }
}
