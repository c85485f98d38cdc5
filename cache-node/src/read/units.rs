//! One decode unit: from compressed bytes to what is kept of it. Or from another node that holds it, or decodes it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use framecache::object::PAGE_BYTES;
use framecache::{ByteRange, DecodeSpec, ObjectId, Page, Tensor, Version};
use tokio::time::Instant;
use tracing::Instrument;

use super::frames::{fixed_bytes, is_one_off, lost};
use super::{ReadError, Reader, Terms};
use crate::budget::{Level, Reservation};
use crate::cache::{DiskPresence, Entry, Head, InsertHint, frames, pages};
use crate::decode::{Cut, DecodeError, DecodeJob, Probe, Source, SourceError, probe, whole_of};

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

impl Reader {
    /// A frame that another node holds, taken over: its decode need not be done again. Larger ones than this node would guess are made
    /// anew.
    pub(super) async fn held_elsewhere(
        &self,
        id: &ObjectId,
        spec: &DecodeSpec,
        version: &Version,
        deadline: Instant,
    ) -> Option<Entry> {
        if self.peers.holders(spec.route(id)).is_empty() {
            return None;
        }
        let most = fixed_bytes(spec).unwrap_or_else(|| self.guess_bytes());
        let _reservation = self.budget.reserve(Level::Decode, most, deadline).await.ok()?;
        let entry = self.frame_from_holders(id, spec, version, most, deadline).await?;
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
        let (tensors, _reservation) = self.decode_here(id, head, specs, terms).await?;
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

    /// Decodes once, by this node's decoders; nothing is kept. The memory is the results'.
    async fn decode_here(
        self: &Arc<Self>,
        id: &ObjectId,
        head: &Head,
        specs: &[DecodeSpec],
        terms: &Terms,
    ) -> Result<(Vec<Result<Tensor, DecodeError>>, Reservation), ReadError> {
        let deadline = terms.deadline;
        let probe = self.probe(id, head, terms).await?;
        let cost = probe.cost_bytes(specs);
        if specs.len() > 1 && cost - probe.cost_bytes(&[]) > TOGETHER_BYTES_MAX {
            return Err(ReadError::TooLarge("too much for one decode".into()));
        }
        let mut reservation = self.budget.reserve(Level::Decode, cost, deadline).await?;
        self.counts.units.fetch_add(1, Ordering::Relaxed);
        let version = head.version.clone();
        let source =
            Arc::new(Compressed { reader: self.clone(), id: id.clone(), version: version.clone(), terms: terms.clone() });
        let job = DecodeJob { id: id.clone(), version, size: head.size, source, specs: specs.to_vec() };
        let span = tracing::info_span!("decode", bucket = id.bucket(), key = id.key(), specs = specs.len());
        let tensors = self.decoder.decode(job, deadline).instrument(span).await?;
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
    ) -> Result<(Vec<Result<Entry, ReadError>>, Reservation), ReadError> {
        self.check(id)?;
        let head = self.pinned_head(id, version, Page::new(0), terms).await?;
        let (tensors, reservation) = self.decode_here(id, &head, specs, terms).await?;
        let entry = |tensor: Result<Tensor, DecodeError>| frames::entry(head.clone(), tensor?).ok_or_else(lost);
        Ok((tensors.into_iter().map(entry).collect(), reservation))
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

    /// Bytes of a range, in one piece.
    async fn compressed(
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

/// A picture's compressed bytes, for a decoder.
struct Compressed {
    reader: Arc<Reader>,
    id: ObjectId,
    version: Version,
    terms: Terms,
}

#[async_trait]
impl Source for Compressed {
    async fn read(&self, range: ByteRange) -> Result<Bytes, SourceError> {
        self.reader.compressed(&self.id, &self.version, range, &self.terms).await.map_err(SourceError::new)
    }
}
