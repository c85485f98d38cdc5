//! Raw bytes: which version is current, and pages of exactly that version.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use framecache::{ByteRange, ObjectId, Page, Version};
use tokio::time::{Instant, timeout_at};

use super::{FLIGHT_MAX, ReadError, Reader, Served};
use crate::budget::{Level, Reservation};
use crate::cache::{Body, Entry, Head, InsertHint, Judgement, Place, pages};
use crate::origin::OriginError;

/// How often the flight of another may turn out to have been for another version before the node calls itself busy.
const ROUNDS: usize = 3;

/// What is filled by one origin request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Fill {
    /// A page. Of which version is not in the key: those who know one and those who must find it out share the request.
    Page(ObjectId, Page),
    /// Bytes that no tier takes, of a version.
    Exact(ObjectId, ByteRange, Version),
    /// Whether the current version still is.
    Head(ObjectId),
}

impl Fill {
    /// Bytes that it may bring, at most; none for a head.
    fn bytes(&self) -> Option<u64> {
        match self {
            Fill::Page(_, page) => Some(page.range().len()),
            Fill::Exact(_, range, _) => Some(range.len()),
            Fill::Head(_) => None,
        }
    }
}

/// What a fill gives.
pub(super) type FillResult = Result<Filled, ReadError>;

/// An entry, or for [`Fill::Head`] one without bytes; and the memory that its bytes count against for as long as one of those who
/// waited for it still sends them. It is the fill's own: whoever joined has reserved nothing, and need not.
#[derive(Clone, Debug)]
pub(super) struct Filled {
    entry: Entry,
    memory: Option<Arc<Reservation>>,
}

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
            Judgement::Unknown => Fill::Page(object, near),
            Judgement::Fresh => match held {
                Some(head) => {
                    self.heads.insert(&object, head.clone());
                    return Ok(head);
                }
                None => Fill::Head(object),
            },
        };
        let filled = self.filled(fill, None, Purpose::Reply, None, deadline).await?;
        Ok(filled.entry.head)
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
        let filled = self.filled(Fill::Page(object, near), Some(pin), Purpose::Reply, None, deadline).await?;
        Ok(filled.entry.head)
    }

    /// Begins to bring `page` into RAM, if it is not there and there is room for it at once; nobody waits for it.
    pub fn prefetch(self: &Arc<Self>, id: &ObjectId, page: Page, head: &Head) {
        let key = pages::key(id, page);
        if page.range().clamp(head.size).is_empty() || self.store.get_ram(&key, Some(&head.version)).is_some() {
            return;
        }
        // In the queue for memory it would stand before those who are waited for.
        let Ok(memory) = self.budget.try_reserve(Level::Read, page.range().clamp(head.size).len()) else { return };
        let (reader, object, version) = (self.clone(), id.object(), head.version.clone());
        self.tasks.spawn(async move {
            if reader.store.get(&key, Some(&version)).await.is_none() {
                let deadline = Instant::now() + FLIGHT_MAX;
                // Whoever reads the page meets the same error, and reports it.
                let _ = reader.filled(Fill::Page(object, page), Some(&version), Purpose::Reply, Some(memory), deadline).await;
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
        let mut reservation = self.budget.reserve(Level::Read, page_bytes, deadline).await?;
        let found = match self.store.get_ram(&key, Some(&head.version)) {
            Some(entry) => Some(entry),
            None => timeout_at(deadline, self.store.get(&key, Some(&head.version))).await.map_err(|_| ReadError::Deadline)?,
        };
        if let Some(bytes) = found.and_then(|entry| pages::slice(&entry, page, part)) {
            reservation.shrink_to(part.len());
            return Ok(Served { bytes, reservation: Arc::new(reservation) });
        }
        let Filled { entry, memory } = self.fill_part(id, page, part, head, reservation, deadline).await?;
        let bytes = match &entry.body {
            Body::Raw(bytes) if bytes.len() as u64 == part.len() && part.len() != page_bytes => Some(bytes.clone()),
            _ => pages::slice(&entry, page, part),
        };
        let served = bytes.zip(memory).map(|(bytes, reservation)| Served { bytes, reservation });
        served.ok_or_else(|| ReadError::Unavailable("a fill ended short".into()))
    }

    /// Fills the page that holds `part`, or, if no tier would take it, `part` alone.
    async fn fill_part(
        self: &Arc<Self>,
        id: &ObjectId,
        page: Page,
        part: ByteRange,
        head: &Head,
        memory: Reservation,
        deadline: Instant,
    ) -> FillResult {
        let object = id.object();
        let page_bytes = page.range().clamp(head.size).len();
        let fill = match self.store.place(&pages::key(id, page), page_bytes) {
            Place::Pass if part.len() < page_bytes => Fill::Exact(object, part, head.version.clone()),
            _ => Fill::Page(object, page),
        };
        self.filled(fill, Some(&head.version), Purpose::Reply, Some(memory), deadline).await
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
        Ok(self.filled(Fill::Page(id.object(), page), Some(version), Purpose::Decode, None, deadline).await?.entry)
    }

    /// The answer of a fill, own or joined; of version `pin` if given, else of the current one. `memory` is for the fill's bytes, if
    /// the caller has reserved it already; a joined fill has its own, and the caller's is given back before the wait.
    async fn filled(
        self: &Arc<Self>,
        fill: Fill,
        pin: Option<&Version>,
        purpose: Purpose,
        mut memory: Option<Reservation>,
        deadline: Instant,
    ) -> FillResult {
        for _ in 0..ROUNDS {
            // Waited for under the caller's deadline, so that a fill that is refused is refused in time.
            if let Some(bytes) = fill.bytes().filter(|_| memory.is_none() && !self.fills.runs(&fill)) {
                memory = Some(self.budget.reserve(Level::Read, bytes, deadline).await?);
            }
            let led = AtomicBool::new(false);
            let flight = self.fills.board(fill.clone(), || {
                led.store(true, Ordering::Relaxed);
                let (reader, own, pin, memory) = (self.clone(), fill.clone(), pin.cloned(), memory.take());
                async move { reader.fill(own, pin, purpose, memory).await }
            });
            drop(memory.take());
            let flight = flight.map_err(|_| ReadError::Busy { retry_after: Duration::from_millis(200) })?;
            let landed = timeout_at(deadline, flight).await.map_err(|_| ReadError::Deadline)?;
            let lost = || Err(ReadError::Unavailable("a fill was lost; the node's log says why".into()));
            let answer = landed.unwrap_or_else(lost);
            if led.into_inner() || answers(&fill, &answer, pin) {
                return answer;
            }
        }
        Err(ReadError::Busy { retry_after: Duration::from_millis(100) })
    }

    /// One fill, on the node's task set.
    async fn fill(
        self: Arc<Self>,
        fill: Fill,
        pin: Option<Version>,
        purpose: Purpose,
        memory: Option<Reservation>,
    ) -> FillResult {
        let deadline = Instant::now() + FLIGHT_MAX;
        let memory = match (memory, fill.bytes()) {
            // Another's flight landed in the instant before this one began.
            (None, Some(bytes)) => Some(self.budget.reserve(Level::Read, bytes, deadline).await?),
            (memory, _) => memory,
        };
        let entry = match fill {
            Fill::Head(object) => self.fill_head(&object, deadline).await?,
            Fill::Page(object, page) => self.fill_page(&object, page, pin, purpose, deadline).await?,
            Fill::Exact(object, range, version) => self.fill_exact(&object, range, &version, deadline).await?,
        };
        let memory = memory.map(|mut memory| {
            memory.shrink_to(entry.body.bytes().len() as u64);
            Arc::new(memory)
        });
        Ok(Filled { entry, memory })
    }

    async fn fill_head(&self, object: &ObjectId, deadline: Instant) -> Result<Entry, ReadError> {
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
    ) -> Result<Entry, ReadError> {
        let key = pages::key(object, page);
        // Another flight may have landed between the look-up and this one's start, and have found the version out.
        if let Some(version) = pin.clone().or_else(|| self.fresh_version(object))
            && let Some(entry) = self.store.get_ram(&key, Some(&version))
        {
            return Ok(entry);
        }
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
        Ok(entry)
    }

    async fn fill_exact(
        &self,
        object: &ObjectId,
        range: ByteRange,
        version: &Version,
        deadline: Instant,
    ) -> Result<Entry, ReadError> {
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

/// Whether the answer of another's flight is one for `pin` too: a page's flight may have been for another version.
fn answers(fill: &Fill, answer: &FillResult, pin: Option<&Version>) -> bool {
    match (fill, answer) {
        (Fill::Page(..), Ok(filled)) => pin.is_none_or(|pin| *pin == filled.entry.head.version),
        (Fill::Page(..), Err(ReadError::Changed { old, .. })) => pin == Some(old),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    /// Promise: whoever joins a page's flight takes its answer only if it is of the version asked for.
    #[test]
    fn answers_are_of_the_version_asked_for() {
        let version = |text| Version::new(text).expect("version");
        let object: ObjectId = "s3://bucket/key".parse().expect("object");
        let page = Fill::Page(object.clone(), Page::new(0));
        let (one, two) = (version("1"), version("2"));
        let head = Head { version: one.clone(), size: 1, fetched_unix_ms: 0 };
        let found: FillResult = Ok(Filled { entry: Entry { head, body: Body::Raw(Bytes::from_static(b"x")) }, memory: None });
        assert_eq!([None, Some(&one), Some(&two)].map(|pin| answers(&page, &found, pin)), [true, true, false]);
        let changed: FillResult = Err(ReadError::Changed { old: one.clone(), new: Some(two.clone()) });
        assert_eq!([None, Some(&one), Some(&two)].map(|pin| answers(&page, &changed, pin)), [false, true, false]);
        assert!(answers(&page, &Err(ReadError::NotFound), Some(&two)));
        assert!(answers(&Fill::Head(object), &changed, None));
    }
}
