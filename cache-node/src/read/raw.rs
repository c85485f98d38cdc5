//! Raw bytes: which version is current, and pages of exactly that version.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use framecache::{ByteRange, ObjectId, Page, Version};
use tokio::time::{Instant, timeout_at};

use super::flight::Grounded;
use super::{FLIGHT_MAX, ReadError, Reader, Served};
use crate::budget::Level;
use crate::cache::{Body, Entry, Head, InsertHint, Judgement, Place, pages};
use crate::origin::OriginError;

/// How often an entry that was evicted between its fill and its reply is filled again before the node calls itself busy.
const ROUNDS: usize = 3;

/// What is filled by one origin request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Fill {
    /// A page, of a version if one is known.
    Page(ObjectId, Page, Option<Version>),
    /// Bytes that no tier takes, of a version.
    Exact(ObjectId, ByteRange, Version),
    /// Whether the current version still is.
    Head(ObjectId),
}

/// What a fill gives: an entry, or for [`Fill::Head`] one without bytes.
pub(super) type FillResult = Result<Entry, ReadError>;

/// Why raw bytes are read, which decides where they are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Somebody asked for them.
    Reply,
    /// A decoder did: its output is what is kept.
    Decode,
}

impl Reader {
    /// Version and size of an object, by the bucket's policy. `near` is the page that will be read next: a fill that has to find
    /// the version out brings it along.
    ///
    /// # Errors
    /// `NotConfigured`, `NotFound`, `Denied`, `Unavailable`, `Busy`, `Deadline`.
    pub async fn head(self: &Arc<Self>, id: &ObjectId, near: Page, deadline: Instant) -> Result<Head, ReadError> {
        self.check(id)?;
        let object = id.object();
        let policy = self.policy(id);
        let now = self.clock.now_unix_ms();
        let mut held = self.heads.get(&object);
        if held.is_none() {
            // After a restart heads are found in what they describe.
            held = self.store.get(&pages::key(&object, near), None).await.map(|entry| entry.head);
        }
        let fill = match policy.judge(held.as_ref(), now) {
            Judgement::Stale => Fill::Head(object),
            Judgement::Unknown => Fill::Page(object, near, None),
            Judgement::Fresh => match held {
                Some(head) => {
                    self.heads.insert(&object, head.clone());
                    return Ok(head);
                }
                None => Fill::Head(object),
            },
        };
        let entry = self.filled(fill, Purpose::Reply, deadline).await?;
        Ok(entry.head)
    }

    /// The head of version `pin`, whatever is current: what a pinned read goes by. Never asks whether the pin is still current;
    /// the bytes' own origin requests do that, with If-Match.
    ///
    /// # Errors
    /// `Changed` if neither this node nor the origin has that version; else as [`Reader::head`].
    pub async fn pinned_head(
        self: &Arc<Self>,
        id: &ObjectId,
        pin: &Version,
        near: Page,
        deadline: Instant,
    ) -> Result<Head, ReadError> {
        self.check(id)?;
        let object = id.object();
        if let Some(head) = self.heads.get(&object).filter(|head| head.version == *pin) {
            return Ok(head);
        }
        if let Some(entry) = self.store.get(&pages::key(&object, near), Some(pin)).await {
            return Ok(entry.head);
        }
        let entry = self.filled(Fill::Page(object, near, Some(pin.clone())), Purpose::Reply, deadline).await?;
        Ok(entry.head)
    }

    /// Begins to bring `page` into RAM, if it is not there; nobody waits for it.
    pub fn prefetch(self: &Arc<Self>, id: &ObjectId, page: Page, head: &Head) {
        let key = pages::key(id, page);
        if page.range().clamp(head.size).is_empty() || self.store.get_ram(&key, Some(&head.version)).is_some() {
            return;
        }
        let (reader, object, version) = (self.clone(), id.object(), head.version.clone());
        self.tasks.spawn(async move {
            if reader.store.get(&key, Some(&version)).await.is_none() {
                let fill = Fill::Page(object, page, Some(version));
                // Whoever reads the page meets the same error, and reports it.
                let _ = reader.filled(fill, Purpose::Reply, Instant::now() + FLIGHT_MAX).await;
            }
        });
    }

    /// Notes the head of an entry that was found without one.
    pub(super) fn note_head(&self, id: &ObjectId, head: &Head) {
        self.heads.insert(&id.object(), head.clone());
    }

    /// The part of `range` on `page`, of `version`.
    ///
    /// # Errors
    /// `Changed` if the origin no longer has that version and it is not held; `Busy`, `Deadline`, `Unavailable`, `NotFound`,
    /// `Denied`.
    pub async fn page(
        self: &Arc<Self>,
        id: &ObjectId,
        page: Page,
        range: ByteRange,
        head: &Head,
        deadline: Instant,
    ) -> Result<Served, ReadError> {
        let key = pages::key(id, page);
        let part = page.range().clamp(head.size).intersect(range);
        let page_bytes = page.range().clamp(head.size).len();
        for _ in 0..ROUNDS {
            let mut reservation = self.budget.reserve(Level::Read, page_bytes, deadline).await?;
            let found = match self.store.get_ram(&key, Some(&head.version)) {
                Some(entry) => Some(entry),
                None => timeout_at(deadline, self.store.get(&key, Some(&head.version))).await.map_err(|_| ReadError::Deadline)?,
            };
            if let Some(bytes) = found.and_then(|entry| pages::slice(&entry, page, part)) {
                reservation.shrink_to(part.len());
                return Ok(Served { bytes, reservation });
            }
            drop(reservation);
            let entry = self.fill_part(id, page, part, head, deadline).await?;
            // Taken at once if there is room; else it waits in the cache, not in a queue of ours.
            if let Ok(reservation) = self.budget.try_reserve(Level::Read, part.len()) {
                let bytes = match &entry.body {
                    Body::Raw(bytes) if bytes.len() as u64 == part.len() && part.len() != page_bytes => Some(bytes.clone()),
                    _ => pages::slice(&entry, page, part),
                };
                let bytes = bytes.ok_or_else(|| ReadError::Unavailable("a fill ended short".into()))?;
                return Ok(Served { bytes, reservation });
            }
        }
        Err(ReadError::Busy { retry_after: Duration::from_millis(100) })
    }

    /// Fills the page that holds `part`, or, if no tier would take it, `part` alone.
    async fn fill_part(
        self: &Arc<Self>,
        id: &ObjectId,
        page: Page,
        part: ByteRange,
        head: &Head,
        deadline: Instant,
    ) -> Result<Entry, ReadError> {
        let object = id.object();
        let page_bytes = page.range().clamp(head.size).len();
        let fill = match self.store.place(&pages::key(id, page), page_bytes) {
            Place::Pass if part.len() < page_bytes => Fill::Exact(object, part, head.version.clone()),
            _ => Fill::Page(object, page, Some(head.version.clone())),
        };
        self.filled(fill, Purpose::Reply, deadline).await
    }

    /// The whole page, of `version`, for a decoder: without a reply's budget, since a flight of its own holds one.
    pub(super) async fn page_for_decode(
        self: &Arc<Self>,
        id: &ObjectId,
        page: Page,
        version: &Version,
        deadline: Instant,
    ) -> Result<Entry, ReadError> {
        let key = pages::key(id, page);
        if let Some(entry) = self.store.get(&key, Some(version)).await {
            return Ok(entry);
        }
        let fill = Fill::Page(id.object(), page, Some(version.clone()));
        self.filled(fill, Purpose::Decode, deadline).await
    }

    /// The answer of a fill, own or joined.
    async fn filled(self: &Arc<Self>, fill: Fill, purpose: Purpose, deadline: Instant) -> FillResult {
        let (reader, own) = (self.clone(), fill.clone());
        let flight = self.fills.join(fill, || async move { reader.fill(own, purpose).await });
        match timeout_at(deadline, flight).await {
            Err(_) => Err(ReadError::Deadline),
            Ok(Ok(answer)) => answer,
            Ok(Err(Grounded::Full)) => Err(ReadError::Busy { retry_after: Duration::from_millis(200) }),
            Ok(Err(Grounded::Lost)) => Err(ReadError::Unavailable("a fill was lost; the node's log says why".into())),
        }
    }

    /// One fill, on the node's task set.
    async fn fill(self: Arc<Self>, fill: Fill, purpose: Purpose) -> FillResult {
        let deadline = Instant::now() + FLIGHT_MAX;
        match fill {
            Fill::Head(object) => self.fill_head(&object, deadline).await,
            Fill::Page(object, page, pin) => self.fill_page(&object, page, pin, purpose, deadline).await,
            Fill::Exact(object, range, version) => self.fill_exact(&object, range, &version, deadline).await,
        }
    }

    async fn fill_head(&self, object: &ObjectId, deadline: Instant) -> FillResult {
        let facts = match self.origin.head(object, deadline).await {
            Ok(facts) => facts,
            Err(error) => return Err(self.failed(object, error)),
        };
        let head = Head { version: facts.version, size: facts.size, fetched_unix_ms: self.clock.now_unix_ms() };
        self.heads.insert(object, head.clone());
        Ok(Entry { head, body: Body::Raw(bytes::Bytes::new()) })
    }

    async fn fill_page(
        &self,
        object: &ObjectId,
        page: Page,
        pin: Option<Version>,
        purpose: Purpose,
        deadline: Instant,
    ) -> FillResult {
        let key = pages::key(object, page);
        // Another flight may have landed between the look-up and this one's start.
        if let Some(entry) = self.store.get_ram(&key, pin.as_ref()).filter(|_| pin.is_some()) {
            return Ok(entry);
        }
        let reservation = self.budget.reserve(Level::Read, page.range().len(), deadline).await?;
        if purpose == Purpose::Reply {
            self.store.room().await;
        }
        self.counts.fills.fetch_add(1, Ordering::Relaxed);
        let fetched = match self.origin.read(object, page.range(), pin.as_ref(), deadline).await {
            Ok(fetched) => fetched,
            Err(error) => return Err(self.failed(object, error)),
        };
        let head = Head { version: fetched.version, size: fetched.size, fetched_unix_ms: self.clock.now_unix_ms() };
        let past_end = fetched.body.is_empty() && page.range().start() >= head.size && page.index() > 0;
        self.heads.insert(object, head.clone());
        if past_end {
            return Ok(Entry { head, body: Body::Raw(fetched.body) });
        }
        let short = || ReadError::Unavailable("the origin gave a part of a page".into());
        let entry = pages::entry(head, page, fetched.body).ok_or_else(short)?;
        let hint = if purpose == Purpose::Decode { InsertHint::RamOnly } else { InsertHint::Normal };
        self.store.insert(key, entry.clone(), hint);
        drop(reservation);
        Ok(entry)
    }

    async fn fill_exact(&self, object: &ObjectId, range: ByteRange, version: &Version, deadline: Instant) -> FillResult {
        let _reservation = self.budget.reserve(Level::Read, range.len(), deadline).await?;
        self.counts.fills.fetch_add(1, Ordering::Relaxed);
        match self.origin.read(object, range, Some(version), deadline).await {
            Ok(fetched) => {
                let head = Head { version: fetched.version, size: fetched.size, fetched_unix_ms: self.clock.now_unix_ms() };
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
