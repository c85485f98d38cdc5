//! What each verb does: the body in, authorisation, the reader, items out.

use std::io::ErrorKind;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use framecache::object::KEY_BYTES_MAX;
use framecache::wire::codec::{self, Message};
use framecache::wire::stream::{self, StreamError};
use framecache::wire::{
    DecodeBody, ExplainBody, ExplainPayload, Ext, FrameAsk, FramesBody, IndexBody, ItemHead, LIST_ITEMS_MAX, ListBody,
    ListPayload, ListRow, ObjectsBody, PeekBody, ReadBody, StatPayload, Status, Verb, ViewBody, code, ext,
};
use framecache::{ByteRange, DecodeSpec, ObjectId, Page, Version};
use futures::{StreamExt, stream as streams};
use rkyv::api::high::{HighDeserializer, HighValidator};
use rkyv::bytecheck::CheckBytes;
use rkyv::rancor::Error as Rancor;
use tokio::time::timeout;

use super::answer::{Answer, Gone, busy, failure, read_failure};
use super::inbox::Held;
use super::together::Grouped;
use super::{Request, Service, explain, index, peers, together};
use crate::auth::{Action, Verdict};
use crate::decode::{Probe, Trust, VideoIndex};
use crate::read::{Opened, ReadError, ServedFrame, Specs};

/// Longest wait for a request's body, once its header is here.
const BODY_MAX: Duration = Duration::from_secs(10);

/// Items of one batch that are worked on together. Enough to keep every decoder of a large node busy from one stream; each holds
/// its own budget, so more would only move the queue.
const TOGETHER: usize = 48;

/// Items that are taken as done at a time, to send refusals first; they keep their memory beside those that are worked on.
const READY: usize = 16;

/// Answers a request; `false` if the stream ended before its reply did.
pub(super) async fn answer(
    verb: Verb,
    recv: &mut quinn::RecvStream,
    answer: &mut Answer,
    service: &Arc<Service>,
    request: &Request,
) -> bool {
    let done = match verb {
        Verb::Read => match body::<ReadBody>(recv, service).await {
            Ok((body, _room)) => read(body, answer, service, request).await,
            Err(refusal) => refuse(refusal, answer).await,
        },
        Verb::Frames => match body::<FramesBody>(recv, service).await {
            Ok((body, _room)) => frames(body, answer, service, request).await,
            Err(refusal) => refuse(refusal, answer).await,
        },
        Verb::Stat => match body::<ObjectsBody>(recv, service).await {
            Ok((body, _room)) => stat(body, answer, service, request).await,
            Err(refusal) => refuse(refusal, answer).await,
        },
        Verb::List => match body::<ListBody>(recv, service).await {
            Ok((body, _room)) => {
                let page = list(body, service, request).await;
                answer.only(page).await
            }
            Err(refusal) => refuse(refusal, answer).await,
        },
        Verb::View => match body::<ViewBody>(recv, service).await {
            Ok(_) => match service.members.whole() {
                Some(view) => answer.item(ItemHead { last: true, ..ItemHead::default() }, view).await,
                None => answer.item(failure(Status::Internal, "the view cannot be said"), Bytes::new()).await,
            },
            Err(refusal) => refuse(refusal, answer).await,
        },
        Verb::Explain => match body::<ExplainBody>(recv, service).await {
            Ok((body, _room)) => {
                let lines = explained(body, service, request).await;
                answer.only(lines).await
            }
            Err(refusal) => refuse(refusal, answer).await,
        },
        Verb::Peek => match body::<PeekBody>(recv, service).await {
            Ok((body, _room)) => peers::peek(body, answer, service, request).await,
            Err(refusal) => refuse(refusal, answer).await,
        },
        Verb::Decode => match body::<DecodeBody>(recv, service).await {
            Ok((body, _room)) => peers::decode(body, answer, service, request).await,
            Err(refusal) => refuse(refusal, answer).await,
        },
        Verb::Index => match body::<IndexBody>(recv, service).await {
            Ok((body, _room)) => index::index(body, answer, service, request).await,
            Err(refusal) => refuse(refusal, answer).await,
        },
        Verb::Warm | Verb::Plan | Verb::Keep | Verb::Auth => {
            answer
                .item(failure(Status::UnknownVerb, format!("unknown verb: {} is not served yet", verb.name())), Bytes::new())
                .await
        }
    };
    done.is_ok()
}

/// Why there is no body.
enum Refusal {
    /// The stream broke.
    Gone,
    /// It is no message.
    Malformed(String),
    /// There is no room for it.
    NoRoom,
}

/// The body, and the memory that it takes, to be kept until the request is answered.
async fn body<T>(recv: &mut quinn::RecvStream, service: &Service) -> Result<(T, Held), Refusal>
where
    T: Message,
    T::Archived: for<'a> CheckBytes<HighValidator<'a, Rancor>> + rkyv::Deserialize<T, HighDeserializer<Rancor>>,
{
    match timeout(BODY_MAX, stream::receive_within(recv, |length| service.inbox.admit(length))).await {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(StreamError::NoRoom(_))) => {
            let _ = recv.stop(code::SLOW.into());
            Err(Refusal::NoRoom)
        }
        Ok(Err(StreamError::Codec(error))) => {
            let _ = recv.stop(code::MALFORMED.into());
            Err(Refusal::Malformed(error.to_string()))
        }
        Ok(Err(StreamError::Io(error))) if error.kind() == ErrorKind::UnexpectedEof => {
            Err(Refusal::Malformed("the request ended before its body did".into()))
        }
        Ok(Err(StreamError::Io(_))) => Err(Refusal::Gone),
        Err(_) => Err(Refusal::Malformed("the body did not come in time".into())),
    }
}

async fn refuse(refusal: Refusal, answer: &mut Answer) -> Result<(), Gone> {
    match refusal {
        Refusal::Gone => Err(Gone),
        Refusal::NoRoom => answer.item(busy(), Bytes::new()).await,
        Refusal::Malformed(why) => answer.item(failure(Status::Malformed, why), Bytes::new()).await,
    }
}

fn encode<T>(message: &T) -> Result<Vec<u8>, (Status, String)>
where
    T: Message
        + for<'a> rkyv::Serialize<
            rkyv::api::high::HighSerializer<rkyv::util::AlignedVec, rkyv::ser::allocator::ArenaHandle<'a>, Rancor>,
        >,
{
    codec::encode(message).map_err(|error| (Status::Internal, error.to_string()))
}

/// The object that a text names, if the caller may do `action` with it. Nothing is looked up before.
pub(super) fn permitted(uri: &str, action: Action, service: &Service, request: &Request) -> Result<ObjectId, ItemHead> {
    let id: ObjectId = uri.parse().map_err(|e: framecache::object::ParseError| failure(Status::Malformed, e.to_string()))?;
    match service.authorise(request, action, id.bucket(), id.key()) {
        Verdict::Allow => Ok(id),
        Verdict::Deny { reason } => Err(denied(reason, &id.to_string(), request)),
    }
}

/// A denial: the reason is for the log, since it would draw a map of the policy for a stranger.
fn denied(reason: &str, what: &str, request: &Request) -> ItemHead {
    tracing::info!(caller = %request.caller, what, reason, "denied");
    failure(Status::Denied, "the policy does not permit it")
}

async fn read(body: ReadBody, answer: &mut Answer, service: &Arc<Service>, request: &Request) -> Result<(), Gone> {
    match begin_read(&body, service, request).await {
        Err(head) => answer.item(head, Bytes::new()).await,
        Ok(read) => send_pages(read, answer, service, request).await,
    }
}

/// All that can be wrong before the first byte.
async fn begin_read(body: &ReadBody, service: &Arc<Service>, request: &Request) -> Result<(ObjectId, Opened), ItemHead> {
    let id = permitted(&body.uri, Action::Read, service, request)?;
    let range = ByteRange::at(body.start, body.length.min(u64::MAX - body.start));
    let range = range.ok_or_else(|| failure(Status::Malformed, "range passes 2^64"))?;
    let pin = pin(&request.header.version)?;
    let opened = service.reader.open(&id, pin.as_ref(), range, &request.terms).await;
    Ok((id, opened.map_err(|error| read_failure(&error))?))
}

pub(super) fn pin(version: &str) -> Result<Option<Version>, ItemHead> {
    match version {
        "" => Ok(None),
        version => Version::new(version).map(Some).map_err(|error| failure(Status::Malformed, error.to_string())),
    }
}

/// Pages in order, one at a time in memory of the reply's, the next ones on their way into the cache.
async fn send_pages(
    (id, opened): (ObjectId, Opened),
    answer: &mut Answer,
    service: &Arc<Service>,
    request: &Request,
) -> Result<(), Gone> {
    let Opened { head, range, mut first } = opened;
    let item = |offset, last| ItemHead {
        offset,
        last,
        size: head.size,
        version: head.version.as_str().to_owned(),
        ext: peers::age(&head, service, request),
        ..ItemHead::default()
    };
    if range.is_empty() {
        return answer.item(item(range.start(), true), Bytes::new()).await;
    }
    for page in range.pages() {
        let part = page.range().intersect(range);
        let served = match first.take() {
            Some(served) => Ok(served),
            None => service.reader.page(&id, page, range, &head, &request.terms).await,
        };
        match served {
            Err(error) => return answer.item(read_failure(&error), Bytes::new()).await,
            Ok(served) => answer.item(item(part.start(), part.end() == range.end()), served.bytes).await?,
        }
    }
    Ok(())
}

async fn frames(body: FramesBody, answer: &mut Answer, service: &Arc<Service>, request: &Request) -> Result<(), Gone> {
    let specs: Vec<Result<DecodeSpec, String>> =
        body.specs.iter().map(|text| text.parse().map_err(|e: framecache::spec::SpecError| e.to_string())).collect();
    let (asks, refused) = let_in(together::grouped(body.items, &specs), &specs, service, request);
    if !refused.is_empty() {
        answer.heads(&refused).await?;
    }
    let mut ready = streams::iter(asks)
        .map(|(ask, together)| {
            let specs = &specs;
            async move {
                let frame = frame(&ask, specs, together.as_ref(), service, request).await;
                (ask, frame)
            }
        })
        .buffer_unordered(TOGETHER)
        .ready_chunks(READY);
    while let Some(done) = ready.next().await {
        // Refusals before pixels: they are small, and whoever is refused has to go elsewhere.
        let (mut refused, mut made) = (Vec::new(), Vec::new());
        for (ask, frame) in done {
            let of = |head| ItemHead { index: ask.index, attempt: ask.attempt, last: true, ..head };
            match frame {
                Err(head) => refused.push(of(head)),
                Ok(ServedFrame { head, tensor, reservation }) => {
                    let version = head.version.as_str().to_owned();
                    let ext = peers::age(&head, service, request);
                    let head = of(ItemHead { size: head.size, version, ext, ..ItemHead::default() }.with_tensor(&tensor.head));
                    made.push((head, tensor.data, reservation));
                }
            }
        }
        if !refused.is_empty() {
            answer.heads(&refused).await?;
        }
        for (head, payload, reservation) in made {
            answer.item(head, payload).await?;
            drop(reservation);
        }
    }
    Ok(())
}

/// Parts the items that have no hope from the others. Of those that are worked on at once each finds out for itself; whoever has to
/// wait for them is told at the door that it would be in vain, rather than when its turn comes.
fn let_in(
    asks: Vec<Grouped>,
    specs: &[Result<DecodeSpec, String>],
    service: &Service,
    request: &Request,
) -> (Vec<Grouped>, Vec<ItemHead>) {
    let (mut ahead, mut refused) = (0u64, Vec::new());
    let mut place = 0;
    let mut has_hope = |(ask, _): &Grouped| {
        let Some(Ok(spec)) = specs.get(usize::from(ask.spec)) else { return true };
        let (bytes, busy) = service.reader.foresees_busy(spec, ahead, request.deadline);
        place += 1;
        ahead += bytes;
        match busy.filter(|_| place > TOGETHER) {
            None => true,
            Some(busy) => {
                refused.push(ItemHead { index: ask.index, attempt: ask.attempt, last: true, ..read_failure(&busy) });
                ahead -= bytes;
                false
            }
        }
    };
    let asks = asks.into_iter().filter(|ask| has_hope(ask)).collect();
    (asks, refused)
}

async fn frame(
    ask: &FrameAsk,
    specs: &[Result<DecodeSpec, String>],
    together: Option<&Specs>,
    service: &Arc<Service>,
    request: &Request,
) -> Result<ServedFrame, ItemHead> {
    let id = permitted(&ask.uri, Action::Read, service, request)?;
    let spec = match specs.get(usize::from(ask.spec)) {
        Some(Ok(spec)) if spec.frame().is_some() => spec,
        Some(Ok(_)) => return Err(failure(Status::Malformed, "a spec of several frames: ask for each by an item of its own")),
        Some(Err(why)) => return Err(failure(Status::Malformed, why.clone())),
        None => return Err(failure(Status::Malformed, "no such spec")),
    };
    let pin = pin(&ask.version)?;
    let served = match together {
        Some(specs) => service.reader.frame_beside(&id, spec, specs, pin.as_ref(), &request.terms).await,
        None => service.reader.frame(&id, spec, pin.as_ref(), &request.terms).await,
    };
    served.map_err(|error| read_failure(&error))
}

async fn stat(body: ObjectsBody, answer: &mut Answer, service: &Arc<Service>, request: &Request) -> Result<(), Gone> {
    let spec = &body.spec;
    let facts = async |(index, uri): (usize, String)| {
        let facts = facts(&uri, spec, service, request).await;
        let (head, payload) = facts.unwrap_or_else(|head| (head, Bytes::new()));
        (ItemHead { index: index as u32, last: true, ..head }, payload)
    };
    // In order, whichever is known first.
    let mut answers = pin!(streams::iter(body.uris.into_iter().enumerate()).map(facts).buffered(TOGETHER));
    while let Some((head, payload)) = answers.next().await {
        answer.item(head, payload).await?;
    }
    Ok(())
}

async fn facts(uri: &str, spec: &str, service: &Arc<Service>, request: &Request) -> Result<(ItemHead, Bytes), ItemHead> {
    let id = permitted(uri, Action::Read, service, request)?;
    // Of a spec only the stream says which facts are meant.
    let stream = spec.parse::<DecodeSpec>().ok().and_then(|spec| spec.image().stream);
    let reader = &service.reader;
    let found = async || {
        let head = reader.head(&id, Page::new(0), &request.terms).await?;
        let media = match reader.is_video(&id, &head, &request.terms).await? {
            true => {
                let index = reader.video_index(&id, stream, &head, Trust::Predicted, &request.terms).await;
                // Whoever names a stream is told what is wrong with it.
                video(if stream.is_some() { Ok(index?) } else { index }, head.size)?
            }
            false if stream.is_some() => return Err(ReadError::Unsupported("no video: it has no streams".into())),
            false => media(reader.probe(&id, &head, &request.terms).await)?,
        };
        Ok((media, head))
    };
    let ((media, ext), head) = reader.afresh(&id, None, found).await.map_err(|error| read_failure(&error))?;
    let message = encode(&media).map_err(|(status, why)| failure(status, why))?;
    let item = ItemHead { size: head.size, version: head.version.as_str().to_owned(), ext, ..ItemHead::default() };
    Ok((item, Bytes::from(message).slice(codec::PREFIX_BYTES..)))
}

/// What the picture is, from its first bytes; no picture is no error here.
fn media(probe: Result<Probe, ReadError>) -> Result<(StatPayload, Ext), ReadError> {
    let probe = match probe {
        Ok(probe) => probe,
        Err(error @ (ReadError::Undecodable(_) | ReadError::Unsupported(_) | ReadError::TooLarge(_))) => {
            let none = StatPayload { format: String::new(), width: 0, height: 0, orientation: 1, decode_bytes: 0 };
            let ItemHead { status, message, .. } = read_failure(&error);
            let words = &message.as_bytes()[..message.floor_char_boundary(ext::REFUSED_BYTES_MAX)];
            return Ok((none, vec![(ext::REFUSED, [&status.to_le_bytes(), words].concat())]));
        }
        Err(error) => return Err(error),
    };
    let media = StatPayload {
        format: probe.format.to_string(),
        width: probe.width,
        height: probe.height,
        orientation: probe.orientation,
        decode_bytes: probe.cost_bytes(&[]),
    };
    let mut additions = vec![(ext::MODE, probe.mode.as_bytes().to_vec())];
    additions.extend(probe.frames.map(|frames| (ext::FRAMES, frames.to_le_bytes().to_vec())));
    Ok((media, additions))
}

/// What the video is, by its index. What only looked like one, or cannot be read, is none, and that is no error here.
fn video(index: Result<Arc<VideoIndex>, ReadError>, size: u64) -> Result<(StatPayload, Ext), ReadError> {
    let index = match index {
        Ok(index) => index,
        Err(error) => return media(Err(error)),
    };
    let facts = index::facts(&index, size);
    let (shape, frames) = (index.shape(0), u32::try_from(facts.frames).unwrap_or(u32::MAX));
    let media = StatPayload {
        format: "video".into(),
        width: facts.width,
        height: facts.height,
        orientation: shape.orientation,
        decode_bytes: index.decoder_bytes(),
    };
    let archive = codec::encode(&facts).map_err(|error| ReadError::Unavailable(error.to_string()))?;
    let facts = archive[codec::PREFIX_BYTES..].to_vec();
    Ok((media, vec![(ext::MODE, b"RGB".to_vec()), (ext::FRAMES, frames.to_le_bytes().to_vec()), (ext::VIDEO, facts)]))
}

async fn list(body: ListBody, service: &Arc<Service>, request: &Request) -> Result<Vec<u8>, (Status, String)> {
    let (bucket, prefix) = body
        .prefix
        .strip_prefix("s3://")
        .and_then(|rest| rest.split_once('/'))
        .ok_or_else(|| (Status::Malformed, "prefix is not of the form s3://bucket/…".into()))?;
    if let Verdict::Deny { reason } = service.authorise(request, Action::List, bucket, prefix) {
        let head = denied(reason, &body.prefix, request);
        return Err((Status::Denied, head.message));
    }
    if !service.reader.origin().knows(bucket) {
        return Err((Status::NotConfigured, ReadError::NotConfigured(bucket.to_owned()).to_string()));
    }
    // S3's own bound of a key; past it the SDK's own address would burst.
    if prefix.len().max(body.after.len()) > KEY_BYTES_MAX {
        return Err((Status::Malformed, format!("prefix or start is longer than a key may be, {KEY_BYTES_MAX} bytes")));
    }
    let after = Some(body.after.as_str()).filter(|after| !after.is_empty());
    let limit = body.limit.clamp(1, LIST_ITEMS_MAX) as usize;
    let listing = service.reader.origin().list(bucket, prefix, after, limit, request.deadline).await;
    let listing = listing.map_err(|error| {
        let head = read_failure(&error.into());
        (Status::from_number(head.status), head.message)
    })?;
    let row = |object: crate::origin::Listed| ListRow { key: object.key, size: object.size, version: object.version.to_string() };
    encode(&ListPayload { more: listing.next.is_some(), rows: listing.objects.into_iter().map(row).collect() })
}

async fn explained(body: ExplainBody, service: &Arc<Service>, request: &Request) -> Result<Vec<u8>, (Status, String)> {
    if body.uri.is_empty() {
        return match service.authorise(request, Action::Admin, "", "") {
            Verdict::Allow => encode(&ExplainPayload { lines: service.about() }),
            Verdict::Deny { reason } => Err((Status::Denied, denied(reason, "the node itself", request).message)),
        };
    }
    let id = permitted(&body.uri, Action::Admin, service, request);
    let id = id.map_err(|head| (Status::from_number(head.status), head.message))?;
    let spec = match body.spec.as_str() {
        "" => None,
        text => Some(text.parse().map_err(|e: framecache::spec::SpecError| (Status::Malformed, e.to_string()))?),
    };
    encode(&ExplainPayload { lines: explain::lines(&id, spec.as_ref(), service).await })
}
