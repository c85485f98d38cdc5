//! One decode unit: from compressed bytes to what is kept of it. Or from another node that holds it, or decodes it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use framecache::object::PAGE_BYTES;
use framecache::wire::NodeRow;
use framecache::{ByteRange, DecodeSpec, Error, ErrorKind, Lent, ObjectId, Page, Tensor, Version};
use tokio::time::Instant;
use tracing::Instrument;

use super::clips::{Keeping, by_stream};
use super::frames::{is_one_off, lost};
use super::{ReadError, Reader, Terms};
use crate::budget::{Level, Reservation};
use crate::cache::{DiskPresence, Entry, Head, InsertHint, frames, pages};
use crate::cluster::{Load, Place, places};
use crate::decode::{Cut, DecodeError, DecodeJob, Probe, Source, SourceError, Trust, Work, probe, whole_of};

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

/// This node among the places that decode.
const HERE: &str = "";

/// Longest wait for another node's decode, so that there is time left for the next.
const THERE_MAX: Duration = Duration::from_secs(15);

/// How long a node is left alone that answered and decoded nothing.
const REFUSED_REST: Duration = Duration::from_millis(100);

impl Reader {
    /// A frame that another node holds, taken over: its decode need not be done again. Larger ones than this node would guess are made
    /// anew.
    pub(super) async fn held_elsewhere(
        &self,
        id: &ObjectId,
        spec: &DecodeSpec,
        version: &Version,
        terms: &Terms,
    ) -> Option<Entry> {
        if self.peers.holders(spec.route(id)).is_empty() {
            return None;
        }
        let most = self.most_bytes(spec);
        let _reservation = self.budget.reserve(Level::Decode, most, terms.deadline).await.ok()?;
        let entry = self.frame_from_holders(id, spec, version, most, terms).await?;
        self.store.insert(frames::key(id, spec), entry.clone(), InsertHint::Normal);
        Some(entry)
    }

    /// Decodes once, and keeps what each of `specs` gives.
    pub(super) async fn draw(
        self: &Arc<Self>,
        id: &ObjectId,
        head: &Head,
        specs: &[DecodeSpec],
        terms: &Terms,
    ) -> Result<Vec<Result<Entry, ReadError>>, ReadError> {
        if specs.is_empty() {
            return Ok(Vec::new());
        }
        if self.is_video(id, head, terms).await? {
            return self.draw_frames(id, head, specs, terms).await;
        }
        let (tensors, _reservation) = self.decode_soonest(id, head, specs, terms).await?;
        let mut keep = Keep::No;
        let each = |(spec, tensor): (&DecodeSpec, Result<Tensor, ReadError>)| {
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

    /// The same of a video's frames.
    async fn draw_frames(
        self: &Arc<Self>,
        id: &ObjectId,
        head: &Head,
        specs: &[DecodeSpec],
        terms: &Terms,
    ) -> Result<Vec<Result<Entry, ReadError>>, ReadError> {
        let mut work = Work { output_bytes: 0, megapixels: 0.0 };
        for (stream, places) in by_stream(specs) {
            let specs: Vec<DecodeSpec> = places.into_iter().map(|place| specs[place].clone()).collect();
            let part = self.video_index(id, stream, head, Trust::Predicted, terms).await?.work(&specs);
            work = Work {
                output_bytes: work.output_bytes.saturating_add(part.output_bytes),
                megapixels: work.megapixels + part.megapixels,
            };
        }
        if specs.len() > 1 && work.output_bytes > TOGETHER_BYTES_MAX {
            return Err(ReadError::TooLarge("too much for one decode".into()));
        }
        let there = self.decode_elsewhere(id, head, specs, work, terms).await;
        let (tensors, _reservations) = match there {
            Some(made) => made.map(|(tensors, reservation)| (tensors, vec![reservation]))?,
            None => {
                let under_way = self.paces.begin(HERE, work.megapixels);
                let made = self.decode_frames(id, head, specs, Keeping::Here, terms).await?;
                under_way.done();
                made
            }
        };
        let each = |(spec, tensor): (&DecodeSpec, Result<Tensor, ReadError>)| {
            let entry = frames::entry(head.clone(), tensor?).ok_or_else(lost)?;
            if !is_one_off(spec) {
                // What a frame costs is its unit: pixels are kept before the bytes that they came from.
                self.store.insert(frames::key(id, spec), entry.clone(), InsertHint::Normal);
            }
            Ok(entry)
        };
        Ok(specs.iter().zip(tensors).map(each).collect())
    }

    /// Decodes once, where it is done soonest: busy or gone, the next place is tried, and this node in the end.
    async fn decode_soonest(
        self: &Arc<Self>,
        id: &ObjectId,
        head: &Head,
        specs: &[DecodeSpec],
        terms: &Terms,
    ) -> Result<(Vec<Result<Tensor, ReadError>>, Reservation), ReadError> {
        let probe = self.probe(id, head, terms).await?;
        if specs.len() > 1 && output_bytes(&probe, specs) > TOGETHER_BYTES_MAX {
            return Err(ReadError::TooLarge("too much for one decode".into()));
        }
        let work = Work { output_bytes: output_bytes(&probe, specs), megapixels: megapixels(&probe) };
        if let Some(made) = self.decode_elsewhere(id, head, specs, work, terms).await {
            return made;
        }
        let (tensors, reservation) = self.decode_here(id, head, specs, &probe, terms).await?;
        Ok((tensors.into_iter().map(|tensor| Ok(tensor?)).collect(), reservation))
    }

    /// Decodes once, on the nodes that are sooner done with it than this one. Nothing: there are none, or none can.
    async fn decode_elsewhere(
        self: &Arc<Self>,
        id: &ObjectId,
        head: &Head,
        specs: &[DecodeSpec],
        work: Work,
        terms: &Terms,
    ) -> Option<Result<(Vec<Result<Tensor, ReadError>>, Reservation), ReadError>> {
        let others = self.peers.decoders();
        let loads: Vec<Option<Load>> = others.iter().map(|node| self.paces.load(&node.id)).collect();
        let (inside, workers) = self.decoder.load();
        let here = Load { inside, workers, pace: self.paces.load(HERE).and_then(|load| load.pace) };
        for place in places(work.megapixels, self.decodes.then_some(here), &loads) {
            let Place::There(other) = place else { break };
            if let Some(made) = self.decode_there(&others[other], id, head, specs, work, terms).await {
                return Some(made);
            }
        }
        None
    }

    /// Decodes once, by another node's decoders. Nothing: it is busy, or gone.
    async fn decode_there(
        self: &Arc<Self>,
        node: &NodeRow,
        id: &ObjectId,
        head: &Head,
        specs: &[DecodeSpec],
        work: Work,
        terms: &Terms,
    ) -> Option<Result<(Vec<Result<Tensor, ReadError>>, Reservation), ReadError>> {
        let most = work.output_bytes;
        // A larger one could wait for memory that waits for it: it is made here.
        if most > self.budget.floor(Level::Delegate) {
            return None;
        }
        let mut reservation = self.budget.reserve(Level::Delegate, most, terms.deadline).await.ok()?;
        let until = terms.deadline.min(Instant::now() + THERE_MAX);
        let under_way = self.paces.begin(&node.id, work.megapixels);
        let made = self.peers.decode(node, id, &head.version, specs, most, &terms.caller, until).await;
        let each = match made {
            Ok(each) => each,
            Err(error) if is_the_objects(&error) => return Some(Err(self.final_error(id, Some(&head.version), error))),
            Err(Error { kind: ErrorKind::Busy { retry_after }, .. }) => {
                under_way.busy(retry_after);
                return None;
            }
            Err(error) => {
                tracing::debug!(node = node.id, %error, "a node did not decode");
                under_way.lost();
                return None;
            }
        };
        let refused = |made: &Result<Lent, Error>| made.as_ref().is_err_and(|error| !is_the_objects(error));
        if each.len() != specs.len() || each.iter().any(refused) {
            under_way.busy(REFUSED_REST);
            return None;
        }
        under_way.done();
        self.counts.decoded_there.fetch_add(1, Ordering::Relaxed);
        let tensor = |made: Result<Lent, Error>| match made {
            Ok(Lent { tensor: Some(head), bytes, .. }) => Ok(Tensor { head, data: bytes }),
            Ok(_) => Err(lost()),
            Err(error) => Err(self.final_error(id, Some(&head.version), error)),
        };
        let tensors: Vec<Result<Tensor, ReadError>> = each.into_iter().map(tensor).collect();
        reservation.shrink_to(tensors.iter().flatten().map(|tensor| tensor.head.bytes()).sum());
        Some(Ok((tensors, reservation)))
    }

    /// Decodes once, by this node's decoders; nothing is kept. The memory is the results'.
    async fn decode_here(
        self: &Arc<Self>,
        id: &ObjectId,
        head: &Head,
        specs: &[DecodeSpec],
        probe: &Probe,
        terms: &Terms,
    ) -> Result<(Vec<Result<Tensor, DecodeError>>, Reservation), ReadError> {
        let deadline = terms.deadline;
        let mut reservation = self.budget.reserve(Level::Decode, probe.cost_bytes(specs), deadline).await?;
        self.counts.units.fetch_add(1, Ordering::Relaxed);
        let version = head.version.clone();
        let source =
            Arc::new(Compressed { reader: self.clone(), id: id.clone(), version: version.clone(), terms: terms.clone() });
        let job = DecodeJob { id: id.clone(), version, size: head.size, source, specs: specs.to_vec() };
        let span = tracing::info_span!("decode", bucket = id.bucket(), key = id.key(), specs = specs.len());
        let under_way = self.paces.begin(HERE, megapixels(probe));
        let tensors = self.decoder.decode(job, deadline).instrument(span).await?;
        under_way.done();
        reservation.shrink_to(tensors.iter().flatten().map(|tensor| tensor.head.bytes()).sum());
        Ok((tensors, reservation))
    }

    /// A unit decoded for another node, which keeps it; here nothing is kept of it, not even the compressed bytes on disk.
    ///
    /// # Errors
    /// As [`Reader::frame`]; a spec that cannot be made of the picture fails alone.
    pub async fn decode_for_peer(
        self: &Arc<Self>,
        id: &ObjectId,
        version: &Version,
        specs: &[DecodeSpec],
        terms: &Terms,
    ) -> Result<(Vec<Result<Entry, ReadError>>, Vec<Reservation>), ReadError> {
        self.check(id)?;
        let head = self.pinned_head(id, version, Page::new(0), terms).await?;
        let (tensors, reservations) = match self.is_video(id, &head, terms).await? {
            true => self.decode_frames(id, &head, specs, Keeping::There, terms).await?,
            false => {
                let probe = self.probe(id, &head, terms).await?;
                let (tensors, reservation) = self.decode_here(id, &head, specs, &probe, terms).await?;
                (tensors.into_iter().map(|tensor| Ok(tensor?)).collect(), vec![reservation])
            }
        };
        let entry = |tensor: Result<Tensor, ReadError>| frames::entry(head.clone(), tensor?).ok_or_else(lost);
        Ok((tensors.into_iter().map(entry).collect(), reservations))
    }

    /// Parts of pictures that are held whole. Nothing where one of them is not, or there is no memory: they are decoded then.
    pub(super) async fn cut(
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
    pub async fn probe(self: &Arc<Self>, id: &ObjectId, head: &Head, terms: &Terms) -> Result<Probe, ReadError> {
        if head.size == 0 {
            return Ok(probe(&[], 0, &self.limits)?);
        }
        let entry = self.page_for_decode(id, Page::new(0), &head.version, terms).await?;
        let mut need = match probe(entry.body.bytes(), head.size, &self.limits) {
            Err(DecodeError::NeedMore { bytes }) => bytes,
            found => return Ok(found?),
        };
        drop(entry);
        // A header of more than a page: rare, and bounded by the probe itself.
        loop {
            // Not of the level whose fills it waits for: it would wait for itself.
            let _reservation = self.budget.reserve(Level::Decode, need, terms.deadline).await?;
            let range = ByteRange::at(0, need).unwrap_or(Page::new(0).range()).clamp(head.size);
            let first = self.compressed(id, &head.version, range, terms).await?;
            match probe(&first, head.size, &self.limits) {
                Err(DecodeError::NeedMore { bytes }) if bytes > need => need = bytes,
                found => return Ok(found?),
            }
        }
    }

    /// Bytes of a range, in one piece; the pages that they lie on are kept.
    pub(super) async fn compressed(
        self: &Arc<Self>,
        id: &ObjectId,
        version: &Version,
        range: ByteRange,
        terms: &Terms,
    ) -> Result<Bytes, ReadError> {
        let slice = |entry: &Entry, page| {
            pages::slice(entry, page, range).ok_or_else(|| ReadError::Unavailable("a page ended short".into()))
        };
        if range.len() <= PAGE_BYTES && range.pages().count() == 1 {
            let page = Page::new(range.start() / PAGE_BYTES);
            return slice(&self.page_for_decode(id, page, version, terms).await?, page);
        }
        let mut whole = BytesMut::with_capacity(range.len() as usize);
        for page in range.pages() {
            whole.extend_from_slice(&slice(&self.page_for_decode(id, page, version, terms).await?, page)?);
        }
        Ok(whole.freeze())
    }
}

/// Whether the object is to blame: a node's own limits, rules and release are no word on it.
fn is_the_objects(error: &Error) -> bool {
    matches!(error.kind, ErrorKind::NotFound | ErrorKind::Changed | ErrorKind::Undecodable | ErrorKind::OutOfRange)
}

/// Bytes of all that `specs` make of a picture, or more.
fn output_bytes(probe: &Probe, specs: &[DecodeSpec]) -> u64 {
    probe.cost_bytes(specs).saturating_sub(probe.cost_bytes(&[]))
}

fn megapixels(probe: &Probe) -> f64 {
    f64::from(probe.width) * f64::from(probe.height) / 1e6
}

/// A picture's compressed bytes, for a decoder.
pub(super) struct Compressed {
    pub(super) reader: Arc<Reader>,
    pub(super) id: ObjectId,
    pub(super) version: Version,
    pub(super) terms: Terms,
}

#[async_trait]
impl Source for Compressed {
    async fn read(&self, range: ByteRange) -> Result<Bytes, SourceError> {
        self.reader.compressed(&self.id, &self.version, range, &self.terms).await.map_err(SourceError::new)
    }
}
