//! Random crops: sizes are asked for first, then each picture by the spec that is drawn for it.

use futures::future::FutureExt;
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::time::Instant;

use super::control::stat_spec;
use super::images::{Groups, Outcome, Slot, Want, ask_bytes};
use super::known::Chosen;
use super::{Call, Client, Tries};
use crate::batch::Batch;
use crate::client::ObjectFacts;
use crate::error::{Error, ErrorKind};
use crate::object::{ObjectId, RouteKey};
use crate::spec::{DecodeSpec, ImageSpec, RandomResizedCrop, SpecError};
use crate::wire::{ObjectsBody, Verb};

impl Client {
    /// Decodes `ids` into `batch`, each cut as `crop` draws it for its address in `epoch`. Nothing of it is kept in the cluster but the
    /// pictures that it is cut from.
    ///
    /// # Errors
    /// Per slot, as [`Client::images`]; `Invalid` for every slot where `crop` is wrong, `Changed` where a picture was replaced between
    /// its size and its pixels.
    pub async fn random_crops(
        &self,
        ids: &[ObjectId],
        crop: &RandomResizedCrop,
        epoch: u64,
        batch: &Batch,
        call: &Call,
    ) -> Vec<Outcome> {
        let deadline = self.deadline(call);
        let (mut drawn, mut known) = (Vec::with_capacity(ids.len()), Vec::with_capacity(ids.len()));
        for (id, facts) in ids.iter().zip(self.facts(ids, None, call, deadline).await) {
            let version = facts.as_ref().map_or(String::new(), |facts| facts.version.to_string());
            let spec = facts.and_then(|facts| drawn_for(crop, epoch, id, &facts));
            known.push(spec.as_ref().err().cloned().map(Err));
            drawn.push((DecodeSpec::from(spec.unwrap_or_default()), version));
        }
        let each = ids.iter().zip(&drawn).enumerate();
        let slots = each.map(|(at, (id, (spec, version)))| Slot { id, spec, version, batch, at, converted: false });
        let slots: Vec<Slot<'_>> = slots.collect();
        self.slots(&slots, known, call, deadline).await
    }

    /// What is known of several objects, of videos with a `stream` of that one: one request to each owner, and what that leaves open one
    /// by one.
    pub(super) async fn facts(
        &self,
        ids: &[ObjectId],
        stream: Option<u32>,
        call: &Call,
        deadline: Instant,
    ) -> Vec<Result<ObjectFacts, Error>> {
        let (mut groups, mut unknown) = (Groups::default(), None);
        for (index, id) in ids.iter().enumerate() {
            let want = Want { index, tries: Tries::new(RouteKey::picture(id)) };
            // Where there is no view yet the requests one by one will wait for it.
            match self.cluster(call, deadline).await.and_then(|known| self.choose(&known, &want.tries)) {
                Ok(chosen) => groups.add(chosen, want, ask_bytes(id)),
                Err(error) => {
                    unknown = Some(error);
                    break;
                }
            }
        }
        let asked = groups.made.iter().map(|(chosen, wants)| self.facts_of((chosen, wants), ids, stream, call, deadline));
        let mut asked: FuturesUnordered<_> = asked.collect();
        let mut found: Vec<Option<Result<ObjectFacts, Error>>> = vec![None; ids.len()];
        while let Some(answers) = asked.next().await {
            answers.into_iter().for_each(|(index, facts)| found[index] = Some(facts));
        }
        drop(asked);
        if Instant::now() >= deadline {
            let why = unknown.unwrap_or_else(|| Error::new(ErrorKind::Timeout, "the deadline passed"));
            let late = |id: &ObjectId| Err(why.clone().about(id));
            return found.into_iter().zip(ids).map(|(facts, id)| facts.unwrap_or_else(|| late(id))).collect();
        }
        let open: Vec<usize> = (0..ids.len()).filter(|&index| found[index].is_none()).collect();
        let one = |index: usize| async move { (index, self.stat_by(&ids[index], stream, call, deadline).await) }.boxed();
        let mut rest = futures::stream::iter(open.into_iter().map(one)).buffer_unordered(STATS_AT_ONCE);
        while let Some((index, facts)) = rest.next().await {
            found[index] = Some(facts);
        }
        drop(rest);
        let untold = || Err(Error::new(ErrorKind::Protocol, "no facts"));
        found.into_iter().map(|facts| facts.unwrap_or_else(untold)).collect()
    }

    /// What one node says of objects; those that it may tell later are left out.
    async fn facts_of(
        &self,
        (chosen, wants): (&Chosen, &[Want]),
        ids: &[ObjectId],
        stream: Option<u32>,
        call: &Call,
        deadline: Instant,
    ) -> Vec<(usize, Result<ObjectFacts, Error>)> {
        let mut told = Vec::new();
        let uris = wants.iter().map(|want| ids[want.index].to_string()).collect();
        let body = ObjectsBody { uris, spec: stat_spec(stream) };
        let Ok(mut reply) = self.ask(chosen, Verb::Stat, &body, "", call, deadline).await else { return told };
        while let Ok(Some(item)) = reply.next().await {
            let Some(&Want { index, .. }) = wants.get(item.index as usize) else { break };
            match ObjectFacts::receive(&item, &mut reply).await {
                Ok(facts) => told.push((index, Ok(facts))),
                Err(error) if error.kind.is_final() => {
                    told.push((index, Err(error.from_node(chosen.link.name(), 1).about(&ids[index]))))
                }
                Err(_) if item.payload_bytes == 0 => {}
                Err(_) => break,
            }
        }
        told
    }
}

/// The spec of one picture, as far as its header can be read: whatever is wrong with another, the decoder says it better.
fn drawn_for(crop: &RandomResizedCrop, epoch: u64, id: &ObjectId, facts: &ObjectFacts) -> Result<ImageSpec, Error> {
    let media = &facts.media;
    if media.width == 0 || media.height == 0 {
        return Ok(crop.image.clone());
    }
    crop.draw(&id.to_string(), epoch, (media.width, media.height), media.orientation).map_err(|refused| {
        let kind = match refused {
            SpecError::Unsupported(_) => ErrorKind::Unsupported,
            _ => ErrorKind::Invalid,
        };
        Error::new(kind, refused.to_string()).about(id)
    })
}

/// Requests for single objects that are under way together.
pub(super) const STATS_AT_ONCE: usize = 16;
