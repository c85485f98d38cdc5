//! Raw bytes: which version is current, and pages of exactly that version.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use framecache::object::{PAGE_BYTES, SPAN_BYTES};
use framecache::{ByteRange, ObjectId, Page, Version};
use tokio::time::{Instant, timeout_at};

use super::fills::{FILLS, Fill, FillResult, First, Purpose, What};
use super::others::There;
use super::{FLIGHT_MAX, ReadError, Reader, Served, Terms, Way, inside};
use crate::budget::Reservation;
use crate::cache::{Body, Entry, Head, Judgement, Place, pages};

/// Pages of one read that are brought in ahead of the one being sent.
const AHEAD: u64 = 4;

/// A read that has begun.
#[derive(Debug)]
pub struct Opened {
    /// What the object is: all of the read is of this version.
    pub head: Head,
    /// What was asked for, cut at the object's end.
    pub range: ByteRange,
    /// The part of it on its first page; none of an empty range.
    pub first: Option<Served>,
}

impl Reader {
    /// Version and size of an object, by the bucket's policy. `near` is the page that will be read next: a fill that has to find
    /// the version out brings it along.
    ///
    /// # Errors
    /// `NotConfigured`, `NotFound`, `Denied`, `Unavailable`, `Busy`, `Deadline`.
    pub async fn head(self: &Arc<Self>, id: &ObjectId, near: Page, terms: &Terms) -> Result<Head, ReadError> {
        self.check(id)?;
        let deadline = terms.deadline;
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
        let what = match policy.judge(held.as_ref(), now) {
            Judgement::Stale => What::Head(object.clone()),
            Judgement::Unknown => What::Page(object.clone(), near, None),
            Judgement::Fresh => match held {
                Some(head) => {
                    self.heads.insert(&object, head.clone());
                    return Ok(head);
                }
                None => What::Head(object.clone()),
            },
        };
        // Only the object's server says what is current; the page may come from elsewhere.
        match self.head_from_server(&object, terms).await {
            // What this node knows to be replaced it finds out by itself.
            There::Answer(Ok(head)) if self.is_replaced(&object, &head.version) => {}
            There::Answer(head) => return head.inspect(|head| self.heads.insert(&object, head.clone())),
            There::Nobody => {}
        }
        let current = |head: &Head| policy.judge(Some(head), self.clock.now_unix_ms()) == Judgement::Fresh;
        let fill = Fill { what, first: First::Here };
        let known = || self.heads.get(&object).filter(current);
        let entry = self.filled_unless(fill, Purpose::Reply(None), current, known, terms).await?;
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
        terms: &Terms,
    ) -> Result<Head, ReadError> {
        self.check(id)?;
        let object = id.object();
        if let Some(head) = self.heads.get(&object).filter(|head| head.version == *pin) {
            return Ok(head);
        }
        if let Some(entry) = self.held(&pages::key(&object, near), Some(pin), terms.deadline).await? {
            return Ok(entry.head);
        }
        // Under the name by which others ask for the same page, who know no version: with If-Match it would be fetched beside it.
        let first = self.source(&object, near, terms);
        let fill = Fill { what: What::Page(object.clone(), near, None), first };
        let entry = self.filled(fill, Purpose::Reply(None), |head| head.version == *pin, terms).await?;
        if entry.head.version == *pin {
            return Ok(entry.head);
        }
        // Another node may have given what is no longer, or not yet, current.
        if first == First::Server || !self.peers.holders(Self::raw_key(&object, near.range().start())).is_empty() {
            return Ok(self.pinned_page(object, near, pin.clone(), Purpose::Reply(None), terms).await?.head);
        }
        Err(self.changed(id, pin.clone(), Some(entry.head.version)))
    }

    /// Begins to bring the pages after `page` into RAM.
    fn prefetch_after(self: &Arc<Self>, id: &ObjectId, page: Page, range: ByteRange, head: &Head, terms: &Terms) {
        let ahead = (page.index() + 1..=page.index() + AHEAD).map(Page::new);
        for page in ahead.filter(|page| !page.range().intersect(range).is_empty()) {
            self.prefetch(id, page, head, terms);
        }
    }

    /// Begins to bring `page` into RAM, if it is not there; nobody waits for it.
    fn prefetch(self: &Arc<Self>, id: &ObjectId, page: Page, head: &Head, terms: &Terms) {
        let key = pages::key(id, page);
        if page.range().clamp(head.size).is_empty() || self.store.get_ram(&key, Some(&head.version)).is_some() {
            return;
        }
        if terms.way == Way::Server && self.source(&id.object(), page, terms) == First::Server {
            // It would not be kept, and so be fetched again for each page before it.
            return;
        }
        if self.budget.usage()[FILLS as usize].waiting > 0 {
            // Nobody asked for it yet, and others wait for what they asked for.
            return;
        }
        let (reader, object, version) = (self.clone(), id.object(), head.version.clone());
        let terms = terms.by(Instant::now() + FLIGHT_MAX);
        self.tasks.spawn(async move {
            if let Ok(None) = reader.held(&key, Some(&version), terms.deadline).await {
                // Whoever reads the page meets the same error, and reports it.
                let _ = reader.pinned_page(object, page, version, Purpose::Reply(None), &terms).await;
            }
        });
    }

    /// Notes the head of an entry that was found without one.
    pub(super) fn note_head(&self, id: &ObjectId, head: &Head) {
        self.heads.insert(&id.object(), head.clone());
    }

    /// Begins to read `range`: lets it in, finds out what the object is, and reads the first page's part. Only the door says busy; what
    /// was let in waits for deeper rooms until its own deadline.
    ///
    /// # Errors
    /// As [`Reader::head`], for a pin as [`Reader::pinned_head`], and as [`Reader::page`]; `OutOfRange`.
    pub async fn open(
        self: &Arc<Self>,
        id: &ObjectId,
        pin: Option<&Version>,
        range: ByteRange,
        terms: &Terms,
    ) -> Result<Opened, ReadError> {
        self.afresh(id, pin, || self.open_once(id, pin, range, terms)).await
    }

    async fn open_once(
        self: &Arc<Self>,
        id: &ObjectId,
        pin: Option<&Version>,
        range: ByteRange,
        terms: &Terms,
    ) -> Result<Opened, ReadError> {
        if terms.doubts {
            self.peers.doubt(Self::raw_key(&id.object(), range.start()));
        }
        let near = Page::new(range.start() / PAGE_BYTES);
        let (head, door) = self.enter(id, pin, near, terms).await?;
        if range.start() > head.size {
            return Err(ReadError::OutOfRange { start: range.start(), size: head.size });
        }
        let range = range.clamp(head.size);
        if range.is_empty() {
            return Ok(Opened { head, range, first: None });
        }
        let first = self.page_inside(id, near, range, &head, Some(door), terms).await?;
        Ok(Opened { head, range, first: Some(first) })
    }

    /// Lets a read in, or refuses it: its first page's memory, and then the head.
    async fn enter(
        self: &Arc<Self>,
        id: &ObjectId,
        pin: Option<&Version>,
        near: Page,
        terms: &Terms,
    ) -> Result<(Head, Reservation), ReadError> {
        self.check(id)?;
        let known = self.heads.get(&id.object()).map_or(u64::MAX, |head| head.size);
        let door = self.budget.reserve(terms.read_level(), near.range().clamp(known).len(), terms.deadline).await?;
        let head = inside(terms.deadline, || async {
            match pin {
                Some(pin) => self.pinned_head(id, pin, near, terms).await,
                None => self.head(id, near, terms).await,
            }
        });
        Ok((head.await?, door))
    }

    /// The part of `range` on `page`, for a read that has begun; the next pages are on their way into RAM meanwhile.
    ///
    /// # Errors
    /// `Changed` if the origin no longer has the head's version and it is not held; `Deadline`, `Unavailable`, `NotFound`, `Denied`.
    pub async fn page(
        self: &Arc<Self>,
        id: &ObjectId,
        page: Page,
        range: ByteRange,
        head: &Head,
        terms: &Terms,
    ) -> Result<Served, ReadError> {
        self.page_inside(id, page, range, head, None, terms).await
    }

    /// The same; `door` is the memory that the read was let in with, for its first page.
    async fn page_inside(
        self: &Arc<Self>,
        id: &ObjectId,
        page: Page,
        range: ByteRange,
        head: &Head,
        door: Option<Reservation>,
        terms: &Terms,
    ) -> Result<Served, ReadError> {
        self.prefetch_after(id, page, range, head, terms);
        let deadline = terms.deadline;
        let key = pages::key(id, page);
        let part = page.range().clamp(head.size).intersect(range);
        let page_bytes = page.range().clamp(head.size).len();
        let mut reservation = match door.filter(|door| door.bytes() >= page_bytes) {
            Some(door) => door,
            None => {
                let level = terms.read_level();
                inside(deadline, || async { Ok(self.budget.reserve(level, page_bytes, deadline).await?) }).await?
            }
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
                let entry = inside(deadline, || self.fill_part(id, page, part, head, terms)).await?;
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

    /// Who is asked first for a page.
    fn source(&self, object: &ObjectId, page: Page, terms: &Terms) -> First {
        let asks = matches!(terms.way, Way::Server | Way::Replica);
        let serves_it = || self.peers.server(Self::raw_key(object, page.range().start())).is_none();
        if asks && !serves_it() { First::Server } else { First::Here }
    }

    /// Fills the page that holds `part`, or, if no tier would take it, `part` alone.
    async fn fill_part(
        self: &Arc<Self>,
        id: &ObjectId,
        page: Page,
        part: ByteRange,
        head: &Head,
        terms: &Terms,
    ) -> Result<Entry, ReadError> {
        let object = id.object();
        let page_bytes = page.range().clamp(head.size).len();
        // Asked once for each fill: admission counts what it is asked for. Another node's part is not kept here.
        let place = match self.source(&object, page, terms) {
            First::Server if terms.way == Way::Server => Some(Place::Pass),
            _ => (part.len() < page_bytes).then(|| self.store.place(&pages::key(id, page), page_bytes)),
        };
        match place {
            Some(Place::Pass) => {
                let first = self.source(&object, page, terms);
                let fill = Fill { what: What::Exact(object, part, head.version.clone()), first };
                self.filled(fill, Purpose::Reply(place), |_| true, terms).await
            }
            _ => self.pinned_page(object, page, head.version.clone(), Purpose::Reply(place), terms).await,
        }
    }

    /// Bytes of a range of which nothing is held: fetched, and not kept. Page by page where other nodes may have them, else in one piece.
    pub(super) async fn fetched(
        self: &Arc<Self>,
        id: &ObjectId,
        version: &Version,
        range: ByteRange,
        terms: &Terms,
    ) -> Result<Bytes, ReadError> {
        let object = id.object();
        let mut whole = BytesMut::with_capacity(range.len() as usize);
        let mut at = range.start();
        while at < range.end() {
            let page = Page::new(at / PAGE_BYTES);
            let first = self.source(&object, page, terms);
            let alone = first == First::Here && self.peers.holders(Self::raw_key(&object, at)).is_empty();
            let most = if alone { (at / SPAN_BYTES + 1) * SPAN_BYTES } else { page.range().end() };
            let part = ByteRange::new(at, most.min(range.end())).ok_or(ReadError::Deadline)?;
            let fill = Fill { what: What::Exact(object.clone(), part, version.clone()), first };
            let entry = self.filled(fill, Purpose::Decode, |_| true, terms).await?;
            match &entry.body {
                Body::Raw(bytes) if bytes.len() as u64 == part.len() => whole.extend_from_slice(bytes),
                _ => return Err(ReadError::Unavailable("a fill ended short".into())),
            }
            at = part.end();
        }
        Ok(whole.freeze())
    }

    /// The whole page, of `version`, for a decoder: without a reply's budget, since a flight of its own holds one.
    pub(super) async fn page_for_decode(
        self: &Arc<Self>,
        id: &ObjectId,
        page: Page,
        version: &Version,
        terms: &Terms,
    ) -> Result<Entry, ReadError> {
        let key = pages::key(id, page);
        if let Some(entry) = self.held(&key, Some(version), terms.deadline).await? {
            return Ok(entry);
        }
        self.pinned_page(id.object(), page, version.clone(), Purpose::Decode, terms).await
    }

    /// The answer of a fill of a known version. A flight that was to find the version out may be bringing the same page.
    async fn pinned_page(
        self: &Arc<Self>,
        object: ObjectId,
        page: Page,
        version: Version,
        purpose: Purpose,
        terms: &Terms,
    ) -> FillResult {
        let first = self.source(&object, page, terms);
        let unpinned = Fill { what: What::Page(object.clone(), page, None), first };
        let landed = timeout_at(terms.deadline, self.fills.landing(&unpinned)).await.map_err(|_| ReadError::Deadline)?;
        if let Some(Ok(entry)) = landed.filter(|landed| landed.as_ref().is_ok_and(|entry| entry.head.version == version)) {
            return Ok(entry);
        }
        // Bytes of a version are true whenever they were fetched.
        self.filled(Fill { what: What::Page(object, page, Some(version)), first }, purpose, |_| true, terms).await
    }
}
