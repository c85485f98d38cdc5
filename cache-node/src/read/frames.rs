//! Decoded pictures: held, or made once for all who wait.

use std::collections::HashMap;
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
use crate::budget::{Level, Reservation};
use crate::cache::{Body, DiskPresence, Entry, EntryKey, Head, InsertHint, Judgement, frames, pages};
use crate::decode::{Cut, DecodeError, DecodeJob, Probe, Source, SourceError, probe, whole_of};

/// How often a picture that was larger than guessed, and evicted before there was memory for it, is made again before the node
/// calls itself busy.
const ROUNDS: usize = 3;

/// Reserved for a held picture whose size is not known from its spec, until it is: a 1,200-pixel square.
const GUESS_BYTES: u64 = 4 << 20;

/// When decoding swells a picture by more than this, its compressed bytes are what goes to disk. A disk read is 3 GB/s and a core
/// decodes 0.7 GB/s of pixels, so up to here the pixels are the cheaper ones to keep.
const SWELL_MAX: u64 = 4;

/// Bytes of pictures that one decode gives to those who ask together. Each who asks has reserved its own; what nobody has asked for yet
/// lies there until the last one has taken its part, and is no more than this.
const TOGETHER_BYTES_MAX: u64 = 64 << 20;

/// Whether the compressed bytes go to disk after a decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Keep {
    /// The pixels do.
    No,
    /// Where they are not there yet: their pixels are never kept, and the next decode comes soon.
    Once,
    /// They do, in place of an older version.
    Anew,
}

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

/// What a unit gives: for each spec a picture, or its own refusal. Nothing: it is too much for one decode, ask for either half.
pub(super) type UnitResult = Option<Arc<[Result<Entry, ReadError>]>>;

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

    /// Whether a picture by `spec` would be refused at the door by now, behind others that take `ahead` bytes; and what it takes.
    pub fn foresees_busy(&self, spec: &DecodeSpec, ahead: u64, deadline: Instant) -> (u64, Option<ReadError>) {
        let bytes = fixed_bytes(spec).unwrap_or_else(|| self.guess_bytes());
        (bytes, self.budget.foresees_busy(Level::Frames, bytes, ahead, deadline).map(ReadError::from))
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
        let asked = self.units.now();
        let mut specs = specs.clone();
        loop {
            let unit = Unit { id: id.clone(), version: head.version.clone(), specs: specs.clone() };
            let (reader, own, head) = (self.clone(), unit.clone(), head.clone());
            let flight = self.units.join(unit, || async move { reader.decode(own, head).await });
            let (made, number) = landed(timeout_at(deadline, flight).await, "a decode")?;
            let place = specs.iter().position(|one| one == spec).ok_or_else(lost)?;
            let Some(each) = made else {
                let (front, rear) = specs.split_at(specs.len() / 2);
                specs = if place < front.len() { front.into() } else { rear.into() };
                continue;
            };
            match each.get(place).cloned().unwrap_or_else(|| Err(lost())) {
                // The time of a unit that was under way before this call asked is not this call's.
                Err(ReadError::Deadline) if number < asked => {}
                made => return made.map_err(|error| in_time(error, "the decoder")),
            }
        }
    }

    /// One decode, on the node's task set: of the specs that are not held yet.
    async fn decode(self: Arc<Self>, unit: Unit, head: Head) -> UnitResult {
        let Unit { id, version, specs } = unit;
        let deadline = Instant::now() + FLIGHT_MAX;
        // Another flight may have landed between the look-up and this one's start.
        let held = |spec: &DecodeSpec| self.store.get_ram(&frames::key(&id, spec), Some(&version));
        let held: Vec<Option<Entry>> = specs.iter().map(held).collect();
        let lacking: Vec<DecodeSpec> =
            specs.iter().zip(&held).filter(|(_, held)| held.is_none()).map(|(spec, _)| spec.clone()).collect();
        let drawn = match self.cut(&id, &head, &lacking, deadline).await {
            Some(cut) => Ok(cut),
            None => self.draw(&id, &head, &lacking, deadline).await,
        };
        let drawn = match drawn {
            Ok(drawn) => drawn,
            Err(ReadError::TooLarge(_) | ReadError::Unsupported(_)) if lacking.len() > 1 => return None,
            Err(error) => vec![Err(error); lacking.len()],
        };
        let mut drawn = drawn.into_iter();
        let each = held.into_iter().map(|held| held.map(Ok).or_else(|| drawn.next()).unwrap_or_else(|| Err(lost())));
        Some(each.collect())
    }

    /// Decodes once, and keeps what each of `specs` gives.
    async fn draw(
        self: &Arc<Self>,
        id: &ObjectId,
        head: &Head,
        specs: &[DecodeSpec],
        deadline: Instant,
    ) -> Result<Vec<Result<Entry, ReadError>>, ReadError> {
        if specs.is_empty() {
            return Ok(Vec::new());
        }
        let probe = self.probe(id, head, deadline).await?;
        let cost = probe.cost_bytes(specs);
        if specs.len() > 1 && cost - probe.cost_bytes(&[]) > TOGETHER_BYTES_MAX {
            return Err(ReadError::TooLarge("too much for one decode".into()));
        }
        let _reservation = self.budget.reserve(Level::Decode, cost, deadline).await?;
        self.counts.units.fetch_add(1, Ordering::Relaxed);
        let version = head.version.clone();
        let source = Arc::new(Compressed { reader: self.clone(), id: id.clone(), version: version.clone(), deadline });
        let job = DecodeJob { id: id.clone(), version, size: head.size, source, specs: specs.to_vec() };
        let span = tracing::info_span!("decode", bucket = id.bucket(), key = id.key(), specs = specs.len());
        let tensors = self.decoder.decode(job, deadline).instrument(span).await?;
        let mut keep = Keep::No;
        let each = |(spec, tensor): (&DecodeSpec, Result<Tensor, DecodeError>)| {
            let tensor = tensor?;
            let large = tensor.head.bytes() > head.size.saturating_mul(SWELL_MAX);
            let entry = frames::entry(head.clone(), tensor).ok_or_else(lost)?;
            if is_one_off(spec) {
                keep = keep.max(Keep::Once);
                return Ok(entry);
            }
            keep = if large { Keep::Anew } else { keep };
            let hint = if large { InsertHint::RamOnly } else { InsertHint::Normal };
            self.store.insert(frames::key(id, spec), entry.clone(), hint);
            Ok(entry)
        };
        let entries = specs.iter().zip(tensors).map(each).collect();
        self.keep_compressed(id, head, keep).await;
        Ok(entries)
    }

    /// Parts of pictures that are held whole. Nothing where one of them is not, or there is no memory: they are decoded then.
    async fn cut(
        &self,
        id: &ObjectId,
        head: &Head,
        specs: &[DecodeSpec],
        deadline: Instant,
    ) -> Option<Vec<Result<Entry, ReadError>>> {
        let mut wholes: HashMap<DecodeSpec, Tensor> = HashMap::new();
        let mut cuts = Vec::with_capacity(specs.len());
        for spec in specs {
            let whole = whole_of(spec)?;
            if !wholes.contains_key(&whole) {
                let held = self.held(&frames::key(id, &whole), Some(&head.version), deadline).await.ok()??;
                wholes.insert(whole.clone(), frames::tensor(held)?);
            }
            cuts.push(Cut::of(wholes[&whole].clone(), spec, &self.limits)?);
        }
        let parts: u64 = cuts.iter().map(Cut::bytes).sum();
        let scratch = cuts.iter().map(Cut::scratch_bytes).max()?;
        if specs.len() > 1 && parts > TOGETHER_BYTES_MAX {
            return None;
        }
        let held: u64 = wholes.values().map(|whole| whole.head.bytes()).sum();
        drop(wholes);
        let _reservation = self.budget.reserve(Level::Decode, parts + scratch + held, deadline).await.ok()?;
        let turn = self.cuts.clone().acquire_owned().await.ok()?;
        let make = move || {
            let _turn = turn;
            cuts.iter().map(Cut::make).collect::<Vec<_>>()
        };
        let made = self.tasks.spawn_blocking(make).await.ok()?;
        let entry = |tensor| frames::entry(head.clone(), tensor).ok_or_else(lost);
        Some(made.into_iter().map(entry).collect())
    }

    /// Offers the compressed bytes, which a decode left in RAM, to the disk.
    async fn keep_compressed(&self, id: &ObjectId, head: &Head, keep: Keep) {
        let whole = ByteRange::at(0, head.size).into_iter().flat_map(ByteRange::pages);
        for page in whole.filter(|_| keep != Keep::No) {
            let key = pages::key(id, page);
            if keep == Keep::Once && self.store.presence(&key).await.disk != DiskPresence::No {
                continue;
            }
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

fn served(entry: Entry, reservation: Reservation) -> Result<ServedFrame, ReadError> {
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
