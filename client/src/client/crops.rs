//! Random crops: sizes are asked for first, then each picture by the spec that is drawn for it.

use std::collections::HashMap;

use futures::future::FutureExt;
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::time::Instant;

use super::images::{Outcome, REQUEST_BYTES, REQUEST_ITEMS, Slot, ask_bytes};
use super::tries::Tries;
use super::{Call, Client, Target};
use crate::batch::Batch;
use crate::client::ObjectFacts;
use crate::error::{Error, ErrorKind};
use crate::object::{ObjectId, RouteKey};
use crate::spec::{DecodeSpec, ImageSpec, RandomResizedCrop};
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
        let draw = |(id, facts): (&ObjectId, Result<ObjectFacts, Error>)| {
            let facts = facts?;
            let media = &facts.media;
            if media.width == 0 || media.height == 0 {
                // Whatever is wrong with it, the decoder says it better.
                return Ok((crop.image.clone(), facts.version.to_string()));
            }
            let drawn = crop.draw(&id.to_string(), epoch, (media.width, media.height), media.orientation);
            let drawn = drawn.map_err(|error| Error::new(ErrorKind::Invalid, error.to_string()).about(id))?;
            Ok((drawn, facts.version.to_string()))
        };
        let facts = self.facts(ids, call, deadline).await;
        let drawn: Vec<Result<_, Error>> = ids.iter().zip(facts).map(draw).collect();
        let known = drawn.iter().map(|drawn| drawn.as_ref().err().cloned().map(Err)).collect();
        let spec = |drawn: Result<(ImageSpec, String), Error>| drawn.map(|(spec, version)| (DecodeSpec::from(spec), version));
        let none = || (DecodeSpec::from(ImageSpec::default()), String::new());
        let drawn: Vec<(DecodeSpec, String)> = drawn.into_iter().map(|drawn| spec(drawn).unwrap_or_else(|_| none())).collect();
        let slots: Vec<Slot<'_>> = ids.iter().zip(&drawn).map(|(id, (spec, version))| Slot { id, spec, version }).collect();
        self.slots(&slots, known, batch, call, deadline).await
    }

    /// What is known of several objects: one request to each owner, and what that leaves open one by one.
    async fn facts(&self, ids: &[ObjectId], call: &Call, deadline: Instant) -> Vec<Result<ObjectFacts, Error>> {
        let mut owners: HashMap<Target, Vec<Vec<usize>>> = HashMap::new();
        for (index, id) in ids.iter().enumerate() {
            // Where there is no view yet the requests one by one will wait for it.
            if let Ok(target) = Tries::new(RouteKey::picture(id)).target(self, call, deadline).await {
                let parts = owners.entry(target).or_default();
                let bytes = |part: &Vec<usize>| part.iter().map(|&index| ask_bytes(&ids[index])).sum::<usize>();
                match parts.last_mut().filter(|part| part.len() < REQUEST_ITEMS && bytes(part) < REQUEST_BYTES) {
                    Some(part) => part.push(index),
                    None => parts.push(vec![index]),
                }
            }
        }
        let asked = owners.iter().flat_map(|(target, parts)| parts.iter().map(move |part| (target, part)));
        let mut asked: FuturesUnordered<_> =
            asked.map(|(target, part)| self.facts_of(target, ids, part, call, deadline)).collect();
        let mut found: Vec<Option<Result<ObjectFacts, Error>>> = vec![None; ids.len()];
        while let Some(answers) = asked.next().await {
            answers.into_iter().for_each(|(index, facts)| found[index] = Some(facts));
        }
        drop(asked);
        let open: Vec<usize> = (0..ids.len()).filter(|&index| found[index].is_none()).collect();
        let one = |index: usize| async move { (index, self.stat(&ids[index], call).await) }.boxed();
        let mut rest = futures::stream::iter(open.into_iter().map(one)).buffer_unordered(STATS_AT_ONCE);
        while let Some((index, facts)) = rest.next().await {
            found[index] = Some(facts);
        }
        drop(rest);
        let untold = || Err(Error::new(ErrorKind::Protocol, "no facts"));
        found.into_iter().map(|facts| facts.unwrap_or_else(untold)).collect()
    }

    /// What one node says of the objects at `part` of `ids`; those that it may tell later are left out.
    async fn facts_of(
        &self,
        target: &Target,
        ids: &[ObjectId],
        part: &[usize],
        call: &Call,
        deadline: Instant,
    ) -> Vec<(usize, Result<ObjectFacts, Error>)> {
        let mut told = Vec::new();
        let body = ObjectsBody { uris: part.iter().map(|&index| ids[index].to_string()).collect(), spec: String::new() };
        let Ok(mut reply) = self.ask(target, Verb::Stat, &body, "", call, deadline).await else { return told };
        while let Ok(Some(item)) = reply.next().await {
            let Some(&index) = part.get(item.index as usize) else { break };
            match ObjectFacts::receive(&item, &mut reply).await {
                Ok(facts) => told.push((index, Ok(facts))),
                Err(error) if error.kind.is_final() => told.push((index, Err(error.from_node(&target.id, 1).about(&ids[index])))),
                Err(_) if item.payload_bytes == 0 => {}
                Err(_) => break,
            }
        }
        told
    }
}

/// Requests for single objects that are under way together.
const STATS_AT_ONCE: usize = 16;
