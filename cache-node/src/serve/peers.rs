//! The verbs of nodes among each other: what is held here, and what is decoded here for another.

use std::sync::Arc;

use bytes::Bytes;
use framecache::object::PAGE_BYTES;
use framecache::wire::{DecodeBody, Ext, ItemHead, PeekBody, Status, ext};
use framecache::{DecodeSpec, Page};

use super::answer::{Answer, Gone, failure, read_failure};
use super::verbs::{permitted, pin};
use super::{Request, Service};
use crate::auth::Action;
use crate::budget::{Level, Reservation};
use crate::cache::{Body, Entry, Head};
use crate::cluster::Piece;
use crate::decode::SPECS_MAX;
use crate::read::{Terms, Way};

/// `Peek`: what is held here of that name. Asks nobody, waits for no memory.
pub(super) async fn peek(body: PeekBody, answer: &mut Answer, service: &Arc<Service>, request: &Request) -> Result<(), Gone> {
    let (head, payload, _reservation) = match held(&body, service, request).await {
        Ok((entry, reservation)) => {
            let (head, payload) = item(entry, service, request);
            (head, payload, Some(reservation))
        }
        Err(head) => (*head, Bytes::new(), None),
    };
    answer.item(ItemHead { last: true, ..head }, payload).await
}

async fn held(body: &PeekBody, service: &Arc<Service>, request: &Request) -> Result<(Entry, Reservation), Box<ItemHead>> {
    let refused = |status, why: &str| Box::new(failure(status, why));
    if request.peer.is_none() {
        return Err(refused(Status::Denied, "only nodes ask what a node holds"));
    }
    let id = permitted(&body.uri, Action::Read, service, request).map_err(Box::new)?;
    let version = pin(&request.header.version).map_err(Box::new)?;
    let spec: Option<DecodeSpec> = match body.spec.as_str() {
        "" => None,
        text => Some(text.parse().map_err(|error: framecache::spec::SpecError| refused(Status::Malformed, &error.to_string()))?),
    };
    let piece = spec.as_ref().map_or(Piece::Page(Page::new(body.index)), Piece::Frame);
    // Before it is read from disk, where many ask at once. A frame that is larger than it seems is made anew by whoever asks.
    let most = spec.as_ref().map_or(PAGE_BYTES, |spec| service.reader.most_bytes(spec));
    let mut reserved = service.reader.try_reserve(Level::Peek, most).map_err(|error| Box::new(read_failure(&error)))?;
    let entry = service.reader.held_piece(&id, piece, version.as_ref(), request.deadline).await;
    let entry = entry.filter(|entry| entry.body.bytes().len() as u64 <= most);
    let entry = entry.ok_or_else(|| refused(Status::NotFound, "not held here"))?;
    reserved.shrink_to(entry.body.bytes().len() as u64);
    Ok((entry, reserved))
}

/// `Decode`: one unit of one version, decoded for the node that keeps it; nothing of it stays here.
pub(super) async fn decode(body: DecodeBody, answer: &mut Answer, service: &Arc<Service>, request: &Request) -> Result<(), Gone> {
    let drawn = async {
        let specs = decodable(&body, request)?;
        let id = permitted(&body.uri, Action::Read, service, request).map_err(Box::new)?;
        let version = pin(&request.header.version).map_err(Box::new)?;
        let version = version.ok_or_else(|| Box::new(failure(Status::Malformed, "a decode is of one version: name it")))?;
        // The bytes come from whoever serves them.
        let terms = Terms { way: Way::Server, ..request.terms.clone() };
        service.reader.decode_for_peer(&id, &version, &specs, &terms).await.map_err(|error| Box::new(read_failure(&error)))
    };
    let (each, _reservations) = match drawn.await {
        Ok(drawn) => drawn,
        Err(head) => return answer.item(*head, Bytes::new()).await,
    };
    let last = each.len().saturating_sub(1);
    for (index, entry) in each.into_iter().enumerate() {
        let (head, payload) = match entry {
            Ok(entry) => item(entry, service, request),
            Err(error) => (read_failure(&error), Bytes::new()),
        };
        answer.item(ItemHead { index: index as u32, last: index == last, ..head }, payload).await?;
    }
    Ok(())
}

fn decodable(body: &DecodeBody, request: &Request) -> Result<Vec<DecodeSpec>, Box<ItemHead>> {
    let refused = |status, why: String| Box::new(failure(status, why));
    if request.peer.is_none() {
        return Err(refused(Status::Denied, "only nodes let a node decode for them".into()));
    }
    if body.specs.is_empty() || body.specs.len() > SPECS_MAX {
        return Err(refused(Status::Malformed, format!("{} specs: want 1 to {SPECS_MAX}", body.specs.len())));
    }
    let spec = |text: &String| match text.parse::<DecodeSpec>() {
        Ok(spec) if spec.frame().is_some() => Ok(spec),
        Ok(_) => Err(refused(Status::Malformed, "a spec of several frames".into())),
        Err(error) => Err(refused(Status::Malformed, error.to_string())),
    };
    body.specs.iter().map(spec).collect()
}

/// An entry as an item of a reply.
fn item(entry: Entry, service: &Service, request: &Request) -> (ItemHead, Bytes) {
    let Entry { head, body } = entry;
    let ext = age(&head, service, request);
    let item = ItemHead { size: head.size, version: head.version.as_str().to_owned(), ext, ..ItemHead::default() };
    match body {
        Body::Raw(bytes) => (item, bytes),
        Body::Frame(tensor) => (item.with_tensor(&tensor.head), tensor.data),
    }
}

/// What another node is told besides: how old the head is, so that no policy trusts it for longer than one node would.
pub(super) fn age(head: &Head, service: &Service, request: &Request) -> Ext {
    let ms = u64::try_from(service.reader.age(head).as_millis()).unwrap_or(u64::MAX);
    request.peer.iter().map(|_| (ext::AGE, ms.to_le_bytes().to_vec())).collect()
}
