//! Videos: what is said of one, and its index, for another node whole and for a client what a selection comes to.

use std::sync::Arc;

use bytes::Bytes;
use framecache::Page;
use framecache::spec::{SelectError, Selector};
use framecache::wire::codec::{self, Message};
use framecache::wire::{
    Ext, FrameRow, INDEX_BYTES_MAX, IndexBody, IndexKind, IndexPayload, ItemHead, SelectedPayload, Status, VideoFacts, fact,
};
use rkyv::Serialize;
use rkyv::api::high::HighSerializer;
use rkyv::rancor::Error as Rancor;
use rkyv::ser::allocator::ArenaHandle;
use rkyv::util::AlignedVec;
use xxhash_rust::xxh3::xxh3_64;

use super::answer::{Answer, Gone, failure, read_failure};
use super::verbs::{permitted, pin};
use super::{Request, Service};
use crate::auth::Action;
use crate::budget::Level;
use crate::cache::Head;
use crate::decode::video::{Facts, Ratio};
use crate::decode::{Trust, VideoIndex};
use crate::read::ReadError;

/// A refusal, as the item that says it.
type Refused = Box<ItemHead>;

pub(super) async fn index(body: IndexBody, answer: &mut Answer, service: &Arc<Service>, request: &Request) -> Result<(), Gone> {
    let item = match body.kind.parse::<IndexKind>() {
        Err(error) => Err(refused(Status::Malformed, error.to_string())),
        Ok(IndexKind::Video { proved, stream }) => part(&body, proved, stream, service, request).await,
        Ok(IndexKind::Selected { frames, stream }) => selected(&body.uri, &frames, stream, service, request).await,
        Ok(_) => Err(refused(Status::Malformed, "no such index is kept")),
    };
    match item {
        Ok((head, payload)) => answer.item(head, payload).await,
        Err(head) => answer.item(*head, Bytes::new()).await,
    }
}

/// A part of the index itself, for the node that decodes by it.
async fn part(
    body: &IndexBody,
    proved: bool,
    stream: Option<u32>,
    service: &Arc<Service>,
    request: &Request,
) -> Result<(ItemHead, Bytes), Refused> {
    if request.peer.is_none() {
        return Err(refused(Status::Denied, "only nodes ask for an index itself"));
    }
    if request.header.version.is_empty() {
        return Err(refused(Status::Malformed, "an index is of one version: name it"));
    }
    let trust = if proved { Trust::Proved } else { Trust::Predicted };
    let (index, head) = found(&body.uri, stream, trust, service, request).await?;
    let _reserved = service.reader.try_reserve(Level::Lend, index.memory_bytes() as u64).map_err(|error| told(&error))?;
    let whole = index.to_bytes().ok_or_else(|| refused(Status::Internal, "the index cannot be said"))?;
    let total = whole.len() as u64;
    let end = body.start.saturating_add(body.count.min(INDEX_BYTES_MAX.into())).min(total);
    let bytes = whole.get(body.start.min(end) as usize..end as usize).unwrap_or_default().to_vec();
    message(&head, &IndexPayload { total, hash: xxh3_64(&whole), trust: index.trust() as u8, bytes })
}

/// The frames that a selection comes to.
async fn selected(
    uri: &str,
    selector: &Selector,
    stream: Option<u32>,
    service: &Arc<Service>,
    request: &Request,
) -> Result<(ItemHead, Bytes), Refused> {
    let (index, head) = found(uri, stream, Trust::Predicted, service, request).await?;
    let frames = index.select(selector).map_err(|error| unselected(&error))?;
    let row = |frame: u64| FrameRow {
        frame,
        pts_seconds: index.seconds(frame),
        duration_seconds: index.duration(frame),
        starts: index.starts(frame),
    };
    message(&head, &SelectedPayload { frames: frames.into_iter().map(row).collect(), total: index.len() })
}

/// The index of the pinned version, or of the current one.
async fn found(
    uri: &str,
    stream: Option<u32>,
    trust: Trust,
    service: &Arc<Service>,
    request: &Request,
) -> Result<(Arc<VideoIndex>, Head), Refused> {
    let id = permitted(uri, Action::Read, service, request).map_err(Box::new)?;
    let pin = pin(&request.header.version).map_err(Box::new)?;
    let (reader, terms) = (&service.reader, &request.terms);
    let find = || async {
        let head = match &pin {
            Some(version) => reader.pinned_head(&id, version, Page::new(0), terms).await?,
            None => reader.head(&id, Page::new(0), terms).await?,
        };
        match reader.is_video(&id, &head, terms).await? {
            true => Ok((reader.video_index(&id, stream, &head, trust, terms).await?, head)),
            false => Err(ReadError::Unsupported("no video: it has no index".into())),
        }
    };
    reader.afresh(&id, pin.as_ref(), find).await.map_err(|error| told(&error))
}

fn message<T>(head: &Head, payload: &T) -> Result<(ItemHead, Bytes), Refused>
where
    T: Message + for<'a> Serialize<HighSerializer<AlignedVec, ArenaHandle<'a>, Rancor>>,
{
    let archive = codec::encode(payload).map_err(|error| refused(Status::Internal, error.to_string()))?;
    let version = head.version.as_str().to_owned();
    let item = ItemHead { size: head.size, version, last: true, ..ItemHead::default() };
    Ok((item, Bytes::from(archive).slice(codec::PREFIX_BYTES..)))
}

fn refused(status: Status, why: impl Into<String>) -> Refused {
    Box::new(failure(status, why))
}

fn told(error: &ReadError) -> Refused {
    Box::new(read_failure(error))
}

fn unselected(error: &SelectError) -> Refused {
    let status = match error {
        SelectError::Frame { .. } | SelectError::Time { .. } => Status::OutOfRange,
        SelectError::Backwards { .. } | SelectError::TooMany(_) => Status::Malformed,
        _ => Status::Unsupported,
    };
    refused(status, error.to_string())
}

/// What a stat says of a video.
pub(super) fn facts(index: &VideoIndex, size: u64) -> VideoFacts {
    let facts = index.facts();
    let number = |number: i32| u8::try_from(number).unwrap_or(UNSPECIFIED);
    VideoFacts {
        codec: facts.codec.clone(),
        pix_fmt: facts.format.clone(),
        width: facts.width,
        height: facts.height,
        rotation: i16::try_from(facts.rotation).unwrap_or(0),
        frames: facts.frames,
        header_frames: facts.header_frames,
        average_fps: halves(facts.average_fps.numerator, facts.average_fps.denominator),
        time_base: halves(index.time_base().numerator, index.time_base().denominator),
        begin_seconds: facts.begin_seconds,
        end_seconds: facts.end_seconds,
        duration_seconds: facts.end_seconds - facts.begin_seconds,
        size,
        keyframes: u32::try_from(facts.keyframes).unwrap_or(u32::MAX),
        matrix: number(facts.matrix),
        range: match facts.range {
            1 => 0,
            2 => 1,
            _ => UNSPECIFIED,
        },
        primaries: number(facts.primaries),
        transfer: number(facts.transfer),
        trust: facts.trust as u8,
        damaged: facts.damaged,
        pts_synthesized: index.is_synthesized(),
        ext: additions(facts),
    }
}

/// What was added to the facts.
fn additions(facts: &Facts) -> Ext {
    let ratio = |ratio: Ratio| {
        let (over, under) = halves(ratio.numerator, ratio.denominator);
        [over.to_le_bytes(), under.to_le_bytes()].concat()
    };
    // An index names no stream past a byte.
    let byte = |stream: &u32| *stream as u8;
    let header_fps = facts.header_fps.map(|fps| (fact::HEADER_FPS, ratio(fps)));
    let sample_aspect = facts.sample_aspect.map(|aspect| (fact::SAMPLE_ASPECT, ratio(aspect)));
    let streams = [(fact::STREAM, vec![byte(&facts.stream)]), (fact::STREAMS, facts.streams.iter().map(byte).collect())];
    header_fps.into_iter().chain(sample_aspect).chain(streams).collect()
}

/// H.273: nothing is said.
const UNSPECIFIED: u8 = 2;

/// A fraction in half the bits: the nearest that fits.
fn halves(mut over: u64, mut under: u64) -> (u32, u32) {
    while over > u64::from(u32::MAX) || under > u64::from(u32::MAX) {
        (over, under) = (over >> 1, under >> 1);
    }
    (over.max(1) as u32, under.max(1) as u32)
}
