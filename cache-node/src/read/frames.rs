//! Decoded pictures: held, or made once for all who wait.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use framecache::object::PAGE_BYTES;
use framecache::{ByteRange, DecodeSpec, ObjectId, Page, Tensor, Version};
use tokio::time::{Instant, timeout_at};
use tracing::Instrument;

use super::{FLIGHT_MAX, ReadError, Reader, ServedFrame, in_time, inside, landed};
use crate::budget::Level;
use crate::cache::{Body, Entry, EntryKey, Head, InsertHint, Judgement, frames, pages};
use crate::decode::{Cut, DecodeError, DecodeJob, Probe, Source, SourceError, probe, whole_of};

/// How often a picture that was larger than guessed, and evicted before there was memory for it, is made again before the node
/// calls itself busy.
const ROUNDS: usize = 3;

/// Reserved for a held picture whose size is not known from its spec, until it is: a 1,200-pixel square.
const GUESS_BYTES: u64 = 4 << 20;

/// When decoding swells a picture by more than this, its compressed bytes are what goes to disk. A disk read is 3 GB/s and a core
/// decodes 0.7 GB/s of pixels, so up to here the pixels are the cheaper ones to keep.
const SWELL_MAX: u64 = 4;

/// A decode unit and what to make of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Unit {
    id: ObjectId,
    version: Version,
    /// In the order of their texts, each once.
    specs: Specs,
}

/// Specs that were asked for together, of one picture: one decode serves them all.
pub type Specs = Arc<[DecodeSpec]>;

/// What a unit gives: for each spec, a picture or its own refusal.
pub(super) type UnitResult = Result<Arc<[Result<Entry, ReadError>]>, ReadError>;

impl Reader {
    /// The picture `id`, decoded by `spec`; of version `pin` if given, else of the current one.
    ///
    /// # Errors
    /// `Undecodable`, `Unsupported`, `TooLarge` for the picture itself; `NotConfigured`, `NotFound`, `Denied`, `Changed` for the
    /// object; `Busy`, `Deadline`, `Unavailable`.
    pub async fn frame(
        self: &Arc<Self>,
        id: &ObjectId,
        spec: &DecodeSpec,
        pin: Option<&Version>,
        deadline: Instant,
    ) -> Result<ServedFrame, ReadError> {
        self.frame_beside(id, spec, &[spec.clone()].into(), pin, deadline).await
    }

    /// The same, where somebody asks for the others of `specs` too, of which `spec` is one.
    ///
    /// # Errors
    /// As [`Reader::frame`]; a spec that cannot be made of the picture fails alone.
    pub async fn frame_beside(
        self: &Arc<Self>,
        id: &ObjectId,
        spec: &DecodeSpec,
        specs: &Specs,
        pin: Option<&Version>,
        deadline: Instant,
    ) -> Result<ServedFrame, ReadError> {
        self.check(id)?;
        let key = frames::key(id, spec);
        let known = fixed_bytes(spec);
        let mut expected = known.unwrap_or_else(|| self.guess_bytes());
        for _ in 0..ROUNDS {
            let mut reservation = self.budget.reserve(Level::Frames, expected, deadline).await?;
            let version = pin.cloned().or_else(|| self.fresh_version(id));
            let found = match self.store.get_ram(&key, version.as_ref()).filter(|_| version.is_some()) {
                Some(entry) => Some(entry),
                None => self.held_frame(id, &key, version.as_ref(), deadline).await?,
            };
            let entry = match found {
                Some(entry) => entry,
                None => {
                    // The reply's memory is kept while a decoder works, as `raw` keeps it while a page is filled: decoders
                    // have their own. But not a guess, which a crowd that waits for one small picture would hold a thousand
                    // times.
                    if known.is_none() {
                        reservation.shrink_to(0);
                    }
                    inside(deadline, || self.decoded(id, spec, specs, version.clone(), deadline)).await?
                }
            };
            expected = entry.body.bytes().len() as u64;
            if expected <= reservation.bytes() {
                reservation.shrink_to(expected);
                return served(entry, reservation);
            }
            drop(reservation);
            if let Ok(reservation) = self.budget.try_reserve(Level::Frames, expected) {
                return served(entry, reservation);
            }
        }
        Err(ReadError::Busy { retry_after: Duration::from_millis(100) })
    }

    /// What is reserved for a picture of unknown size: on a small node no more than it ever gives.
    fn guess_bytes(&self) -> u64 {
        GUESS_BYTES.min(self.budget.usage()[Level::Frames as usize].most)
    }

    /// The current version, if RAM knows it and the bucket's policy trusts it.
    fn fresh_version(&self, id: &ObjectId) -> Option<Version> {
        let head = self.heads.get(&id.object())?;
        let judgement = self.policy(id).judge(Some(&head), self.clock.now_unix_ms());
        (judgement == Judgement::Fresh).then_some(head.version)
    }

    /// A held picture: of `version`, or, if none is known, of the version that its own head names, where the policy trusts that.
    async fn held_frame(
        &self,
        id: &ObjectId,
        key: &EntryKey,
        version: Option<&Version>,
        deadline: Instant,
    ) -> Result<Option<Entry>, ReadError> {
        let Some(entry) = self.held(key, version, deadline).await? else { return Ok(None) };
        if version.is_none() {
            let judgement = self.policy(id).judge(Some(&entry.head), self.clock.now_unix_ms());
            if judgement != Judgement::Fresh || self.is_outdated(&id.object(), &entry.head) {
                return Ok(None);
            }
            self.note_head(id, &entry.head);
        }
        Ok(Some(entry))
    }

    /// The answer of the unit's flight, own or joined: of `version` if one is known.
    async fn decoded(
        self: &Arc<Self>,
        id: &ObjectId,
        spec: &DecodeSpec,
        specs: &Specs,
        version: Option<Version>,
        deadline: Instant,
    ) -> Result<Entry, ReadError> {
        let head = match &version {
            Some(version) => self.pinned_head(id, version, Page::new(0), deadline).await?,
            None => self.head(id, Page::new(0), deadline).await?,
        };
        if version.is_none() {
            // Revalidation may have said that what is held is current after all.
            if let Some(entry) = self.held(&frames::key(id, spec), Some(&head.version), deadline).await? {
                return Ok(entry);
            }
        }
        let unit = Unit { id: id.clone(), version: head.version.clone(), specs: specs.clone() };
        let asked = self.units.now();
        loop {
            let (reader, own, head) = (self.clone(), unit.clone(), head.clone());
            let flight = self.units.join(unit.clone(), || async move { reader.decode(own, head).await });
            let (answer, number) = landed(timeout_at(deadline, flight).await, "a decode")?;
            // The time of a unit that was under way before this call asked is not this call's.
            if number >= asked || !matches!(answer, Err(ReadError::Deadline)) {
                let place = specs.iter().position(|one| one == spec);
                let made =
                    answer.and_then(|made| place.and_then(|place| made.get(place).cloned()).unwrap_or_else(|| Err(lost())));
                return made.map_err(|error| in_time(error, "the decoder"));
            }
        }
    }

    /// One decode, on the node's task set: of the specs that are not held yet.
    async fn decode(self: Arc<Self>, unit: Unit, head: Head) -> UnitResult {
        let Unit { id, version, specs } = unit;
        let deadline = Instant::now() + FLIGHT_MAX;
        // Another flight may have landed between the look-up and this one's start.
        let held = |spec: &DecodeSpec| self.store.get_ram(&frames::key(&id, spec), Some(&version));
        let mut held: Vec<Option<Entry>> = specs.iter().map(held).collect();
        for (spec, held) in specs.iter().zip(&mut held).filter(|(_, held)| held.is_none()) {
            *held = self.cut(&id, &head, spec, deadline).await;
        }
        let lacking: Vec<DecodeSpec> =
            specs.iter().zip(&held).filter(|(_, held)| held.is_none()).map(|(spec, _)| spec.clone()).collect();
        // What is too much together may do in halves; and what fails alone then fails alone.
        let (mut drawn, mut parts) = (Vec::new(), vec![lacking]);
        while let Some(mut part) = parts.pop().filter(|part| !part.is_empty()) {
            match self.draw(&id, &head, part.clone(), deadline).await {
                Err(ReadError::TooLarge(_) | ReadError::Unsupported(_)) if part.len() > 1 => {
                    let rear = part.split_off(part.len() / 2);
                    parts.extend([rear, part]);
                }
                Err(error) => drawn.extend(part.iter().map(|_| Err(error.clone()))),
                Ok(made) => drawn.extend(made),
            }
        }
        let mut drawn = drawn.into_iter();
        Ok(held.into_iter().map(|held| held.map(Ok).or_else(|| drawn.next()).unwrap_or_else(|| Err(lost()))).collect())
    }

    /// Decodes once, and keeps what each of `specs` gives.
    async fn draw(
        self: &Arc<Self>,
        id: &ObjectId,
        head: &Head,
        specs: Vec<DecodeSpec>,
        deadline: Instant,
    ) -> Result<Vec<Result<Entry, ReadError>>, ReadError> {
        let probe = self.probe(id, head, deadline).await?;
        let _reservation = self.budget.reserve(Level::Decode, probe.cost_bytes(&specs), deadline).await?;
        self.counts.units.fetch_add(1, Ordering::Relaxed);
        let version = head.version.clone();
        let source = Arc::new(Compressed { reader: self.clone(), id: id.clone(), version: version.clone(), deadline });
        let job = DecodeJob { id: id.clone(), version, size: head.size, source, specs: specs.clone() };
        let span = tracing::info_span!("decode", bucket = id.bucket(), key = id.key(), specs = specs.len());
        let tensors = self.decoder.decode(job, deadline).instrument(span).await?;
        let mut swells = false;
        let keep = |(spec, tensor): (&DecodeSpec, Result<Tensor, DecodeError>)| {
            let tensor = tensor?;
            let large = tensor.head.bytes() > head.size.saturating_mul(SWELL_MAX);
            swells |= large;
            let entry = frames::entry(head.clone(), tensor).ok_or_else(lost)?;
            if is_one_off(spec) {
                swells = true;
                return Ok(entry);
            }
            let hint = if large { InsertHint::RamOnly } else { InsertHint::Normal };
            self.store.insert(frames::key(id, spec), entry.clone(), hint);
            Ok(entry)
        };
        let entries = specs.iter().zip(tensors).map(keep).collect();
        if swells {
            self.keep_compressed(id, head);
        }
        Ok(entries)
    }

    /// A part of a picture that is held whole. Nothing where there is none, or no memory: it is decoded then.
    async fn cut(&self, id: &ObjectId, head: &Head, spec: &DecodeSpec, deadline: Instant) -> Option<Entry> {
        let whole = whole_of(spec)?;
        let held = self.held(&frames::key(id, &whole), Some(&head.version), deadline).await.ok()??;
        let Body::Frame(whole) = held.body else { return None };
        let cut = Cut::of(whole, spec)?;
        let _reservation = self.budget.reserve(Level::Decode, cut.cost_bytes(), deadline).await.ok()?;
        let tensor = tokio::task::spawn_blocking(move || cut.make()).await.ok()?;
        frames::entry(head.clone(), tensor)
    }

    /// Offers the compressed bytes, which a decode left in RAM, to the disk.
    fn keep_compressed(&self, id: &ObjectId, head: &Head) {
        let whole = ByteRange::at(0, head.size).into_iter().flat_map(ByteRange::pages);
        for page in whole {
            let key = pages::key(id, page);
            if let Some(entry) = self.store.get_ram(&key, Some(&head.version)) {
                self.store.insert(key, entry, InsertHint::Normal);
            }
        }
    }

    /// What the picture is, from its first bytes.
    pub async fn probe(self: &Arc<Self>, id: &ObjectId, head: &Head, deadline: Instant) -> Result<Probe, ReadError> {
        if head.size == 0 {
            return Ok(probe(&[], 0, &self.limits)?);
        }
        let entry = self.page_for_decode(id, Page::new(0), &head.version, deadline).await?;
        let mut need = match probe(entry.body.bytes(), head.size, &self.limits) {
            Err(DecodeError::NeedMore { bytes }) => bytes,
            found => return Ok(found?),
        };
        drop(entry);
        // A header of more than a page: rare, and bounded by the probe itself.
        loop {
            // Not of the level whose fills it waits for: it would wait for itself.
            let _reservation = self.budget.reserve(Level::Decode, need, deadline).await?;
            let range = ByteRange::at(0, need).unwrap_or(Page::new(0).range()).clamp(head.size);
            let first = self.compressed(id, &head.version, range, deadline).await?;
            match probe(&first, head.size, &self.limits) {
                Err(DecodeError::NeedMore { bytes }) if bytes > need => need = bytes,
                found => return Ok(found?),
            }
        }
    }

    /// Bytes of a range, in one piece.
    async fn compressed(
        self: &Arc<Self>,
        id: &ObjectId,
        version: &Version,
        range: ByteRange,
        deadline: Instant,
    ) -> Result<Bytes, ReadError> {
        let slice = |entry: &Entry, page| {
            pages::slice(entry, page, range).ok_or_else(|| ReadError::Unavailable("a page ended short".into()))
        };
        if range.len() <= PAGE_BYTES && range.pages().count() == 1 {
            let page = Page::new(range.start() / PAGE_BYTES);
            return slice(&self.page_for_decode(id, page, version, deadline).await?, page);
        }
        let mut whole = BytesMut::with_capacity(range.len() as usize);
        for page in range.pages() {
            whole.extend_from_slice(&slice(&self.page_for_decode(id, page, version, deadline).await?, page)?);
        }
        Ok(whole.freeze())
    }
}

/// A picture's compressed bytes, for a decoder.
struct Compressed {
    reader: Arc<Reader>,
    id: ObjectId,
    version: Version,
    deadline: Instant,
}

#[async_trait]
impl Source for Compressed {
    async fn read(&self, range: ByteRange) -> Result<Bytes, SourceError> {
        self.reader.compressed(&self.id, &self.version, range, self.deadline).await.map_err(SourceError::new)
    }
}

/// Whether nobody will ask for it again: a box is drawn anew for every epoch. What it is cut from is kept instead.
fn is_one_off(spec: &DecodeSpec) -> bool {
    spec.image().region.is_some()
}

fn lost() -> ReadError {
    ReadError::Unavailable("a decoder gave nothing".into())
}

fn served(entry: Entry, reservation: crate::budget::Reservation) -> Result<ServedFrame, ReadError> {
    let head = entry.head.clone();
    match entry.body {
        Body::Frame(tensor) => Ok(ServedFrame { head, tensor, reservation }),
        Body::Raw(_) => Err(ReadError::Unavailable("a frame's entry holds no frame".into())),
    }
}

/// Bytes of the output where the spec alone says it.
fn fixed_bytes(spec: &DecodeSpec) -> Option<u64> {
    spec.image().fixed_shape().map(|shape| shape.iter().map(|&side| u64::from(side)).product())
}
