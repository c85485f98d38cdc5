//! Decoded pictures: held, or made once for all who wait.

use std::sync::Arc;
use std::time::Duration;

use framecache::{DecodeSpec, ObjectId, Page, Version};
use tokio::time::{Instant, timeout_at};

use super::lately::Source;
use super::others::There;
use super::{FLIGHT_MAX, ReadError, Reader, ServedFrame, Terms, Way, in_time, inside, landed};
use crate::budget::{Level, Reservation};
use crate::cache::{Body, Entry, EntryKey, Head, InsertHint, Judgement, frames};

/// How often a picture that was larger than guessed, and evicted before there was memory for it, is made again before the node
/// calls itself busy.
const ROUNDS: usize = 3;

/// Reserved for a held picture whose size is not known from its spec, until it is: a 1,200-pixel square.
const GUESS_BYTES: u64 = 4 << 20;

/// A decode unit and what to make of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Unit {
    id: ObjectId,
    version: Version,
    /// In the order of their texts, each once.
    specs: Specs,
    /// Made by the node that serves the picture; apart from what is made here, as fills are.
    there: bool,
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
        terms: &Terms,
    ) -> Result<ServedFrame, ReadError> {
        self.frame_beside(id, spec, &[spec.clone()].into(), pin, terms).await
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
        terms: &Terms,
    ) -> Result<ServedFrame, ReadError> {
        self.check(id)?;
        self.afresh(id, pin, || self.frame_once(id, spec, specs, pin, terms)).await
    }

    async fn frame_once(
        self: &Arc<Self>,
        id: &ObjectId,
        spec: &DecodeSpec,
        specs: &Specs,
        pin: Option<&Version>,
        terms: &Terms,
    ) -> Result<ServedFrame, ReadError> {
        if terms.doubts {
            self.peers.doubt(spec.route(id));
        }
        let deadline = terms.deadline;
        let key = frames::key(id, spec);
        let known = fixed_bytes(spec);
        let mut expected = known.unwrap_or_else(|| self.guess_bytes());
        for _ in 0..ROUNDS {
            let mut reservation = self.budget.reserve(terms.frames_level(), expected, deadline).await?;
            let version = pin.cloned().or_else(|| self.fresh_version(id));
            let found = match self.store.get_ram(&key, version.as_ref()).filter(|_| version.is_some()) {
                Some(entry) => Some(entry),
                None => self.held_frame(id, &key, version.as_ref(), deadline).await?,
            };
            let entry = match found.filter(|entry| self.fits_index(id, spec, entry)) {
                Some(entry) => entry,
                None => {
                    // The reply's memory is kept while a decoder works, as `raw` keeps it while a page is filled: decoders
                    // have their own. But not a guess, which a crowd that waits for one small picture would hold a thousand
                    // times.
                    if known.is_none() {
                        reservation.shrink_to(0);
                    }
                    inside(deadline, || self.made(id, spec, specs, version.clone(), terms)).await?
                }
            };
            expected = entry.body.bytes().len() as u64;
            if expected <= reservation.bytes() {
                reservation.shrink_to(expected);
                return served(entry, reservation);
            }
            drop(reservation);
            if let Ok(reservation) = self.budget.try_reserve(terms.frames_level(), expected) {
                return served(entry, reservation);
            }
        }
        Err(ReadError::Busy { retry_after: Duration::from_millis(100) })
    }

    /// Whether a picture by `spec` would be refused at the door by now, behind others that take `ahead` bytes; and what it takes.
    pub fn foresees_busy(&self, spec: &DecodeSpec, ahead: u64, deadline: Instant) -> (u64, Option<ReadError>) {
        let bytes = self.most_bytes(spec);
        (bytes, self.budget.foresees_busy(Level::Frames, bytes, ahead, deadline).map(ReadError::from))
    }

    /// What `spec` makes of a picture, where it says so; else what is guessed.
    pub fn most_bytes(&self, spec: &DecodeSpec) -> u64 {
        fixed_bytes(spec).unwrap_or_else(|| self.guess_bytes())
    }

    /// What is reserved for a picture of unknown size: on a small node no more than it ever gives.
    pub(super) fn guess_bytes(&self) -> u64 {
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

    /// The picture that is not held: from the node that serves it, if that is another one, else decoded.
    async fn made(
        self: &Arc<Self>,
        id: &ObjectId,
        spec: &DecodeSpec,
        specs: &Specs,
        version: Option<Version>,
        terms: &Terms,
    ) -> Result<Entry, ReadError> {
        let elsewhere = matches!(terms.way, Way::Server | Way::Replica) && self.peers.server(spec.route(id)).is_some();
        if elsewhere {
            match self.relayed(id, spec, version.clone(), terms).await? {
                There::Answer(made) => return made,
                There::Nobody => {}
            }
        }
        self.decoded(id, spec, specs, version, terms).await
    }

    /// The answer of the node that serves the picture, once for all who wait for it here.
    async fn relayed(
        self: &Arc<Self>,
        id: &ObjectId,
        spec: &DecodeSpec,
        version: Option<Version>,
        terms: &Terms,
    ) -> Result<There<Entry>, ReadError> {
        let Some(version) = version else {
            // What is current only that node knows; callers who ask in the same moment need not agree on it.
            return Ok(self.relay(id, spec, None, terms).await);
        };
        let unit = Unit { id: id.clone(), version: version.clone(), specs: [spec.clone()].into(), there: true };
        let (reader, own, own_terms) = (self.clone(), unit.clone(), terms.by(Instant::now() + FLIGHT_MAX));
        let relay = move || async move {
            let Unit { id, version, specs, .. } = own;
            match reader.relay(&id, &specs[0], Some(&version), &own_terms).await {
                There::Answer(made) => Some([made].into()),
                There::Nobody => None,
            }
        };
        let (made, _) = landed(timeout_at(terms.deadline, self.units.join(unit, relay)).await, "a frame of another node")?;
        Ok(match made.and_then(|each| each.first().cloned()) {
            Some(made) => There::Answer(made),
            None => There::Nobody,
        })
    }

    async fn relay(&self, id: &ObjectId, spec: &DecodeSpec, version: Option<&Version>, terms: &Terms) -> There<Entry> {
        // A larger one could wait for memory that waits for it: it is made here.
        let most = fixed_bytes(spec).unwrap_or_else(|| self.guess_bytes().min(self.budget.floor(Level::Forward)));
        if most > self.budget.floor(Level::Forward) {
            return There::Nobody;
        }
        let _reservation = match self.budget.reserve(Level::Forward, most, terms.deadline).await {
            Ok(reservation) => reservation,
            Err(refused) => return There::Answer(Err(refused.into())),
        };
        let began = Instant::now();
        let made = self.frame_from_server(id, spec, version, most, terms).await;
        if let There::Answer(Ok(entry)) = &made {
            self.note_fill(id, Some(spec), Source::Server, entry.body.bytes().len(), began);
            self.note_head(id, &entry.head);
            if terms.way == Way::Replica && !is_one_off(spec) {
                self.store.insert(frames::key(id, spec), entry.clone(), InsertHint::Normal);
            }
        }
        made
    }

    /// The answer of the unit's flight, own or joined: of `version` if one is known.
    async fn decoded(
        self: &Arc<Self>,
        id: &ObjectId,
        spec: &DecodeSpec,
        specs: &Specs,
        version: Option<Version>,
        terms: &Terms,
    ) -> Result<Entry, ReadError> {
        let deadline = terms.deadline;
        let head = match &version {
            Some(version) => self.pinned_head(id, version, Page::new(0), terms).await?,
            None => self.head(id, Page::new(0), terms).await?,
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
            let unit = Unit { id: id.clone(), version: head.version.clone(), specs: specs.clone(), there: false };
            let (reader, own, head) = (self.clone(), unit.clone(), head.clone());
            let own_terms = terms.by(Instant::now() + FLIGHT_MAX);
            let flight = self.units.join(unit, || async move { reader.decode(own, head, own_terms).await });
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
    async fn decode(self: Arc<Self>, unit: Unit, head: Head, terms: Terms) -> UnitResult {
        let Unit { id, version, specs, .. } = unit;
        let (deadline, began) = (terms.deadline, Instant::now());
        // Another flight may have landed between the look-up and this one's start.
        let held = |spec: &DecodeSpec| self.store.get_ram(&frames::key(&id, spec), Some(&version));
        let held = |spec: &DecodeSpec| held(spec).filter(|entry| self.fits_index(&id, spec, entry));
        let mut held: Vec<Option<Entry>> = specs.iter().map(held).collect();
        for (spec, held) in specs.iter().zip(&mut held).filter(|(spec, held)| held.is_none() && !is_one_off(spec)) {
            *held = self.held_elsewhere(&id, spec, &version, &terms).await.filter(|entry| self.fits_index(&id, spec, entry));
            if let Some(entry) = held {
                self.note_fill(&id, Some(spec), Source::Holder, entry.body.bytes().len(), began);
            }
        }
        let lacking: Vec<DecodeSpec> =
            specs.iter().zip(&held).filter(|(_, held)| held.is_none()).map(|(spec, _)| spec.clone()).collect();
        let drawn = match self.cut(&id, &head, &lacking, deadline).await {
            Some(cut) => Ok(cut),
            None => self.draw(&id, &head, &lacking, &terms).await,
        };
        let drawn = match drawn {
            Ok(drawn) => drawn,
            Err(ReadError::TooLarge(_) | ReadError::Unsupported(_)) if lacking.len() > 1 => return None,
            Err(error) => vec![Err(error); lacking.len()],
        };
        for (spec, entry) in lacking.iter().zip(&drawn).filter_map(|(spec, drawn)| Some((spec, drawn.as_ref().ok()?))) {
            self.note_fill(&id, Some(spec), Source::Decoder, entry.body.bytes().len(), began);
        }
        let mut drawn = drawn.into_iter();
        let each = held.into_iter().map(|held| held.map(Ok).or_else(|| drawn.next()).unwrap_or_else(|| Err(lost())));
        Some(each.collect())
    }
}

/// Whether nobody will ask for it again: a box is drawn anew for every epoch. What it is cut from is kept instead.
pub(super) fn is_one_off(spec: &DecodeSpec) -> bool {
    spec.image().region.is_some()
}

pub(super) fn lost() -> ReadError {
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
pub(super) fn fixed_bytes(spec: &DecodeSpec) -> Option<u64> {
    spec.image().fixed_bytes()
}
