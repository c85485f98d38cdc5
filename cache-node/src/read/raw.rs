//! Raw bytes: which version is current, and pages of exactly that version.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use framecache::{ByteRange, ObjectId, Page, Version};
use tokio::time::{Instant, timeout_at};

use super::{FLIGHT_MAX, ReadError, Reader, Served, in_time, inside, landed};
use crate::budget::{Level, Reservation};
use crate::cache::{Body, Entry, Head, InsertHint, Judgement, Place, pages};
use crate::origin::OriginError;

/// The level of what fills hold: deeper than that of the replies which wait for them, so that no reply waits for another.
const FILLS: Level = Level::Fill;

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
    /// Somebody asked for them; with admission's word, if it was asked already.
    Reply(Option<Place>),
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
            let entry = self.held(&pages::key(&object, near), None, deadline).await?;
            held = entry.map(|entry| entry.head).filter(|head| !self.is_outdated(&object, head));
            // A flight may have landed while the store was asked.
            held = held.or_else(|| self.heads.get(&object));
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
        let current = |head: &Head| policy.judge(Some(head), self.clock.now_unix_ms()) == Judgement::Fresh;
        let entry = self.filled(fill, Purpose::Reply(None), current, deadline).await?;
        Ok(entry.head)
    }

    /// The head of version `pin`, whatever is current: what a pinned read goes by. What is held of it needs no word of the
    /// origin; the bytes' own origin requests ask, with If-Match, whether it is still there.
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
        if let Some(entry) = self.held(&pages::key(&object, near), Some(pin), deadline).await? {
            return Ok(entry.head);
        }
        // Under the name by which others ask for the same page, who know no version: with If-Match it would be fetched beside it.
        let entry =
            self.filled(Fill::Page(object, near, None), Purpose::Reply(None), |head| head.version == *pin, deadline).await?;
        match entry.head.version == *pin {
            true => Ok(entry.head),
            false => Err(self.changed(id, pin.clone(), Some(entry.head.version))),
        }
    }

    /// Begins to bring `page` into RAM, if it is not there; nobody waits for it.
    pub fn prefetch(self: &Arc<Self>, id: &ObjectId, page: Page, head: &Head) {
        let key = pages::key(id, page);
        if page.range().clamp(head.size).is_empty() || self.store.get_ram(&key, Some(&head.version)).is_some() {
            return;
        }
        if self.budget.usage()[FILLS as usize].waiting > 0 {
            // Nobody asked for it yet, and others wait for what they asked for.
            return;
        }
        let (reader, object, version) = (self.clone(), id.object(), head.version.clone());
        let deadline = Instant::now() + FLIGHT_MAX;
        self.tasks.spawn(async move {
            if let Ok(None) = reader.held(&key, Some(&version), deadline).await {
                let fill = Fill::Page(object, page, Some(version));
                // Whoever reads the page meets the same error, and reports it.
                let _ = reader.pinned_fill(fill, Purpose::Reply(None), deadline).await;
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
        let door = self.budget.reserve(Level::Read, page.range().clamp(head.size).len(), deadline).await?;
        self.page_inside(id, page, range, head, Some(door), deadline).await
    }

    /// Lets a read in, or refuses it: its first page's memory, and then the head. Only the door says busy; what was let in waits for
    /// deeper rooms until its own deadline.
    ///
    /// # Errors
    /// As [`Reader::head`], or for a pin as [`Reader::pinned_head`].
    pub async fn enter(
        self: &Arc<Self>,
        id: &ObjectId,
        pin: Option<&Version>,
        near: Page,
        deadline: Instant,
    ) -> Result<(Head, Reservation), ReadError> {
        self.check(id)?;
        let known = self.heads.get(&id.object()).map_or(u64::MAX, |head| head.size);
        let door = self.budget.reserve(Level::Read, near.range().clamp(known).len(), deadline).await?;
        let head = inside(deadline, || async {
            match pin {
                Some(pin) => self.pinned_head(id, pin, near, deadline).await,
                None => self.head(id, near, deadline).await,
            }
        });
        Ok((head.await?, door))
    }

    /// [`Reader::page`] for a read that was let in; `door` is the memory that it entered with, for its first page.
    pub async fn page_inside(
        self: &Arc<Self>,
        id: &ObjectId,
        page: Page,
        range: ByteRange,
        head: &Head,
        door: Option<Reservation>,
        deadline: Instant,
    ) -> Result<Served, ReadError> {
        let key = pages::key(id, page);
        let part = page.range().clamp(head.size).intersect(range);
        let page_bytes = page.range().clamp(head.size).len();
        let mut reservation = match door.filter(|door| door.bytes() >= page_bytes) {
            Some(door) => door,
            None => inside(deadline, || async { Ok(self.budget.reserve(Level::Read, page_bytes, deadline).await?) }).await?,
        };
        let found = match self.store.get_ram(&key, Some(&head.version)) {
            Some(entry) => Some(entry),
            None => self.held(&key, Some(&head.version), deadline).await?,
        };
        let held = found.and_then(|entry| pages::slice(&entry, page, part));
        let bytes = match held {
            Some(bytes) => Some(bytes),
            // The reply's memory is kept meanwhile, and what was filled is its own at once: were it left to the cache until
            // there is memory, a crowd would evict each other's pages, fill for ever and answer nobody.
            None => {
                let entry = inside(deadline, || self.fill_part(id, page, part, head, deadline)).await?;
                match &entry.body {
                    Body::Raw(bytes) if bytes.len() as u64 == part.len() && part.len() != page_bytes => Some(bytes.clone()),
                    _ => pages::slice(&entry, page, part),
                }
            }
        };
        let bytes = bytes.ok_or_else(|| ReadError::Unavailable("a fill ended short".into()))?;
        reservation.shrink_to(part.len());
        Ok(Served { bytes, reservation })
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
        // Asked once for each fill: admission counts what it is asked for.
        let place = (part.len() < page_bytes).then(|| self.store.place(&pages::key(id, page), page_bytes));
        let fill = match place {
            Some(Place::Pass) => Fill::Exact(object, part, head.version.clone()),
            _ => Fill::Page(object, page, Some(head.version.clone())),
        };
        self.pinned_fill(fill, Purpose::Reply(place), deadline).await
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
        if let Some(entry) = self.held(&key, Some(version), deadline).await? {
            return Ok(entry);
        }
        let fill = Fill::Page(id.object(), page, Some(version.clone()));
        self.pinned_fill(fill, Purpose::Decode, deadline).await
    }

    /// The answer of a fill of a known version. A flight that was to find the version out may be bringing the same page.
    async fn pinned_fill(self: &Arc<Self>, fill: Fill, purpose: Purpose, deadline: Instant) -> FillResult {
        if let Fill::Page(object, page, Some(version)) = &fill {
            let unpinned = Fill::Page(object.clone(), *page, None);
            let landed = timeout_at(deadline, self.fills.landing(&unpinned)).await.map_err(|_| ReadError::Deadline)?;
            if let Some(Ok(entry)) = landed.filter(|landed| landed.as_ref().is_ok_and(|entry| entry.head.version == *version)) {
                return Ok(entry);
            }
        }
        // Bytes of a version are true whenever they were fetched.
        self.filled(fill, purpose, |_| true, deadline).await
    }

    /// The answer of a fill, own or joined. One that was under way before this call asked is an answer only if `current`
    /// says so of its head; it is none if there was nothing yet, or its own time was up.
    async fn filled(
        self: &Arc<Self>,
        mut fill: Fill,
        purpose: Purpose,
        current: impl Fn(&Head) -> bool,
        deadline: Instant,
    ) -> FillResult {
        let asked = self.fills.now();
        loop {
            let (reader, own) = (self.clone(), fill.clone());
            let flight = self.fills.join(fill.clone(), || async move { reader.fill(own, purpose).await });
            let (answer, number) = landed(timeout_at(deadline, flight).await, "a fill")?;
            let holds = match &answer {
                Ok(entry) => current(&entry.head),
                Err(error) => !matches!(error, ReadError::NotFound | ReadError::Deadline),
            };
            // Whoever follows a flight that was under way begins later: one more round for the page, at most one for the head.
            if holds || number >= asked {
                return answer.map_err(|error| in_time(error, "the origin"));
            }
            if let (Fill::Page(object, _, None), Ok(_)) = (&fill, &answer) {
                // The page is here; what is not known is whether it is current.
                fill = Fill::Head(object.clone());
            }
        }
    }

    /// One fill, on the node's task set. Heads are as old as the question, not as the answer: what the origin says may have been
    /// overtaken on its way.
    async fn fill(self: Arc<Self>, fill: Fill, purpose: Purpose) -> FillResult {
        let deadline = Instant::now() + FLIGHT_MAX;
        match fill {
            Fill::Head(object) => self.fill_head(&object, deadline).await,
            Fill::Page(object, page, pin) => self.fill_page(&object, page, pin, purpose, deadline).await,
            Fill::Exact(object, range, version) => self.fill_exact(&object, range, &version, deadline).await,
        }
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
        deadline: Instant,
    ) -> FillResult {
        let key = pages::key(object, page);
        // Another flight may have landed between the look-up and this one's start.
        if let Some(entry) = self.store.get_ram(&key, pin.as_ref()).filter(|_| pin.is_some()) {
            return Ok(entry);
        }
        let reservation = self.budget.reserve(FILLS, page.range().len(), deadline).await?;
        if matches!(purpose, Purpose::Reply(_)) {
            self.store.room().await;
        }
        self.counts.fills.fetch_add(1, Ordering::Relaxed);
        let fetched_unix_ms = self.clock.now_unix_ms();
        let fetched = match self.origin.read(object, page.range(), pin.as_ref(), deadline).await {
            Ok(fetched) => fetched,
            Err(error) => return Err(self.failed(object, error)),
        };
        let head = Head { version: fetched.version, size: fetched.size, fetched_unix_ms };
        let past_end = fetched.body.is_empty() && page.range().start() >= head.size && page.index() > 0;
        self.heads.insert(object, head.clone());
        if past_end {
            return Ok(Entry { head, body: Body::Raw(fetched.body) });
        }
        let short = || ReadError::Unavailable("the origin gave a part of a page".into());
        let entry = pages::entry(head, page, fetched.body).ok_or_else(short)?;
        let hint = match purpose {
            Purpose::Decode => InsertHint::RamOnly,
            Purpose::Reply(Some(place)) => InsertHint::As(place),
            Purpose::Reply(None) => InsertHint::Normal,
        };
        self.store.insert(key, entry.clone(), hint);
        drop(reservation);
        Ok(entry)
    }

    async fn fill_exact(&self, object: &ObjectId, range: ByteRange, version: &Version, deadline: Instant) -> FillResult {
        let _reservation = self.budget.reserve(FILLS, range.len(), deadline).await?;
        self.counts.fills.fetch_add(1, Ordering::Relaxed);
        let fetched_unix_ms = self.clock.now_unix_ms();
        match self.origin.read(object, range, Some(version), deadline).await {
            Ok(fetched) => {
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
