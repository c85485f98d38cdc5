//! Decoded pictures and frames: a batch is one stream for each owner; items come as they are ready, each into its slot.

use std::collections::HashMap;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::time::{Instant, sleep};

use super::tries::Tries;
use super::{Call, Client, Target};
use crate::ask::Reply;
use crate::batch::Batch;
use crate::error::{Error, ErrorKind};
use crate::frame::{Layout, TensorHead};
use crate::object::{ObjectId, Version};
use crate::spec::{DecodeSpec, ImageSpec, VideoSpec};
use crate::wire::{BODY_BYTES_MAX, FrameAsk, FramesBody, ItemHead, Verb};

/// Pictures of one request. Fewer than the protocol allows, so that a request stays small against the windows and several of
/// them overlap.
const REQUEST_ITEMS: usize = 256;

/// Bytes of one request's pictures, by [`ask_bytes`]: half of what a body may have. The longest address takes some 7 KiB of it, so
/// that each picture fits into a request.
const REQUEST_BYTES: usize = BODY_BYTES_MAX / 2;

/// How one picture of a batch ended: its version, or why there is none.
pub type Outcome = Result<Version, Error>;

/// One picture that is still wanted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Want {
    pub(super) index: usize,
    pub(super) tries: Tries,
}

/// What a step of a batch leads to.
enum Event {
    /// These are to be asked for now, of these nodes; those are not tried again.
    Routed { groups: Vec<(Target, Vec<Want>)>, over: Vec<(Want, Error)> },
    /// What one request gave.
    Answered { done: Vec<(usize, Version)>, failed: Vec<(Want, Error)> },
    /// These are not tried again.
    GaveUp(Vec<(Want, Error)>),
}

impl Client {
    /// Decodes `ids` by `spec` into `batch`, slot by slot in the same order. One bad picture costs one slot.
    ///
    /// # Errors
    /// Per slot: `NotFound`, `Denied`, `Undecodable`, `Unsupported`, `TooLarge`, `Changed`; and what could not be had before the
    /// deadline: `Busy`, `Timeout`, `Unavailable`. `Invalid` for a picture that does not fit an `out` buffer.
    pub async fn images(&self, ids: &[ObjectId], spec: &ImageSpec, batch: &Batch, call: &Call) -> Vec<Outcome> {
        let spec = spec.clone().into();
        let slots: Vec<Slot<'_>> = ids.iter().map(|id| Slot::of(id, &spec)).collect();
        self.slots(&slots, vec![None; slots.len()], batch, call, self.deadline(call)).await
    }

    /// Frames of the animation `id` as it was found to be, by index from 0, each made as `spec` says; slot by slot in the same order.
    ///
    /// # Errors
    /// As [`Client::images`]; `OutOfRange` for a frame that is not there, `Changed` where the animation was replaced.
    pub async fn frames(
        &self,
        (id, version): (&ObjectId, &Version),
        frames: &[u64],
        spec: &ImageSpec,
        batch: &Batch,
        call: &Call,
    ) -> Vec<Outcome> {
        let specs: Vec<DecodeSpec> = frames.iter().map(|&frame| VideoSpec::at(frame, spec.clone()).into()).collect();
        let slots: Vec<Slot<'_>> = specs.iter().map(|spec| Slot { id, spec, version: version.as_str() }).collect();
        self.slots(&slots, vec![None; slots.len()], batch, call, self.deadline(call)).await
    }

    /// Fills the slots that have no outcome yet.
    pub(super) async fn slots(
        &self,
        slots: &[Slot<'_>],
        mut outcomes: Vec<Option<Outcome>>,
        batch: &Batch,
        call: &Call,
        deadline: Instant,
    ) -> Vec<Outcome> {
        let ask = Ask { client: self, slots, batch, call, deadline };
        let wanted = slots.iter().enumerate().filter(|(index, _)| outcomes[*index].is_none());
        let wants = wanted.map(|(index, slot)| Want { index, tries: Tries::new(slot.spec.route(slot.id)) });
        let mut steps: FuturesUnordered<BoxFuture<'_, Event>> = FuturesUnordered::new();
        steps.push(ask.route(wants.collect()).boxed());
        while let Some(event) = steps.next().await {
            let (done, failed) = match event {
                Event::Routed { groups, over } => {
                    steps.extend(groups.into_iter().map(|(target, wants)| ask.request(target, wants).boxed()));
                    over.into_iter().for_each(|(want, e)| outcomes[want.index] = Some(Err(e.about(slots[want.index].id))));
                    continue;
                }
                Event::GaveUp(failed) => {
                    failed.into_iter().for_each(|(want, e)| outcomes[want.index] = Some(Err(e.about(slots[want.index].id))));
                    continue;
                }
                Event::Answered { done, failed } => (done, failed),
            };
            done.into_iter().for_each(|(index, version)| outcomes[index] = Some(Ok(version)));
            let (over, again): (Vec<_>, Vec<_>) = failed.into_iter().partition(|(_, error)| error.kind.is_final());
            over.into_iter().for_each(|(want, e)| outcomes[want.index] = Some(Err(e.about(slots[want.index].id))));
            if !again.is_empty() {
                steps.push(ask.retry(again).boxed());
            }
        }
        drop(steps);
        let unanswered = || Err(Error::new(ErrorKind::Protocol, "no outcome"));
        outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(unanswered)).collect()
    }
}

/// What one slot of a batch is to hold.
#[derive(Clone, Copy)]
pub(super) struct Slot<'a> {
    pub(super) id: &'a ObjectId,
    pub(super) spec: &'a DecodeSpec,
    /// Of this version; empty: the current one.
    pub(super) version: &'a str,
}

impl<'a> Slot<'a> {
    fn of(id: &'a ObjectId, spec: &'a DecodeSpec) -> Self {
        Self { id, spec, version: "" }
    }
}

/// What is the same for every request of a batch.
struct Ask<'a> {
    client: &'a Client,
    slots: &'a [Slot<'a>],
    batch: &'a Batch,
    call: &'a Call,
    deadline: Instant,
}

impl Ask<'_> {
    /// Groups pictures by the node that each asks next.
    async fn route(&self, wants: Vec<Want>) -> Event {
        let mut groups = Groups::default();
        for want in &wants {
            let target = match want.tries.target(self.client, self.call, self.deadline).await {
                Ok(target) => target,
                Err(error) => {
                    let failed = wants.iter().map(|want| (*want, error.clone())).collect();
                    return Event::Answered { done: Vec::new(), failed };
                }
            };
            groups.add(target, *want, ask_bytes(self.slots[want.index].id));
        }
        Event::Routed { groups: groups.made, over: Vec::new() }
    }

    /// The rule for each picture, and one wait for all that failed together: they come back in one request, not in as many as
    /// there are.
    async fn retry(&self, failed: Vec<(Want, Error)>) -> Event {
        let mut longest = Duration::ZERO;
        let mut wants = Vec::new();
        let mut over = Vec::new();
        for (mut want, error) in failed {
            match want.tries.step(self.client, &error, self.deadline) {
                None => over.push((want, error)),
                Some(after) => {
                    longest = longest.max(after);
                    wants.push(want);
                }
            }
        }
        if wants.is_empty() {
            return Event::GaveUp(over);
        }
        sleep(longest).await;
        match self.route(wants).await {
            Event::Routed { groups, .. } => Event::Routed { groups, over },
            Event::Answered { done, mut failed } => {
                failed.extend(over);
                Event::Answered { done, failed }
            }
            event => event,
        }
    }

    /// One request to one node.
    async fn request(&self, target: Target, wants: Vec<Want>) -> Event {
        let mut answers = Answers { open: wants.iter().map(|want| (want.index, *want)).collect(), done: vec![], failed: vec![] };
        let ended = self.exchange(&target, &wants, &mut answers).await;
        let error = ended.err().unwrap_or_else(|| Error::new(ErrorKind::Unavailable, "the reply ended early"));
        if error.kind == ErrorKind::Unavailable && !answers.open.is_empty() {
            self.client.doubt_topology();
        }
        let Answers { open, done, mut failed } = answers;
        failed.extend(open.into_values().map(|want| (want, error.clone().from_node(target.name(), want.tries.attempt))));
        Event::Answered { done, failed }
    }

    async fn exchange(&self, target: &Target, wants: &[Want], answers: &mut Answers) -> Result<(), Error> {
        let body = body(self.slots, wants);
        let mut reply = self.client.ask(target, Verb::Frames, &body, "", self.call, self.deadline).await?;
        while !answers.open.is_empty() {
            let Some(item) = reply.next().await? else { break };
            let index = item.index as usize;
            let want = *answers.open.get(&index).ok_or_else(|| protocol("a slot that was not asked for"))?;
            let outcome = self.take(&item, &mut reply).await;
            answers.open.remove(&index);
            match outcome {
                Taken::Picture(version) => answers.done.push((index, version)),
                Taken::Failed(error) => answers.failed.push((want, error.from_node(target.name(), want.tries.attempt))),
                Taken::Broken(error) => {
                    answers.failed.push((want, error.clone().from_node(target.name(), want.tries.attempt)));
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Receives one item into its slot.
    async fn take(&self, item: &ItemHead, reply: &mut Reply) -> Taken {
        if let Some(error) = Error::from_item(item) {
            return Taken::Failed(error);
        }
        let head = item.tensor.ok_or_else(|| protocol("a picture without shape"));
        let head = head.and_then(|tensor| TensorHead::try_from(tensor).map_err(|e| protocol(&e.to_string())));
        let spec = self.slots[item.index as usize].spec.image();
        let head = head.and_then(|head| of_spec(head, spec));
        let version = Version::new(&item.version).map_err(|e| protocol(&e.to_string()));
        let (head, version) = match (head, version) {
            (Ok(head), Ok(version)) if head.bytes() == u64::from(item.payload_bytes) => (head, version),
            (Err(error), _) | (_, Err(error)) => return Taken::Broken(error),
            _ => return Taken::Broken(protocol("a picture whose bytes do not fit its shape")),
        };
        let mut place = match self.batch.place(item.index as usize, head) {
            Ok(place) => place,
            Err(error) if error.kind == ErrorKind::Invalid => {
                return reply.pass(item).await.map_or_else(Taken::Broken, |()| Taken::Failed(error));
            }
            Err(error) => return Taken::Broken(error),
        };
        match reply.payload(place.bytes()).await {
            Ok(()) => {
                place.done();
                Taken::Picture(version)
            }
            Err(error) => Taken::Broken(error),
        }
    }
}

/// Pictures by the node that each asks next, in requests of bounded length.
#[derive(Default)]
pub(super) struct Groups {
    pub(super) made: Vec<(Target, Vec<Want>)>,
    /// Each node's group that may still grow: its place, and its bytes so far.
    open: HashMap<Target, (usize, usize)>,
}

impl Groups {
    pub(super) fn add(&mut self, target: Target, want: Want, bytes: usize) {
        match self.open.get_mut(&target) {
            Some((place, sum)) if self.made[*place].1.len() < REQUEST_ITEMS && *sum + bytes <= REQUEST_BYTES => {
                *sum += bytes;
                self.made[*place].1.push(want);
            }
            _ => {
                self.open.insert(target.clone(), (self.made.len(), bytes));
                self.made.push((target, vec![want]));
            }
        }
    }
}

/// Bytes that a slot takes in a request, or more: an escape at most doubles a key, a version and a spec of one frame have at most 256 each,
/// and the rest are fields of fixed length.
pub(super) fn ask_bytes(id: &ObjectId) -> usize {
    2 * id.key().len() + id.bucket().len() + id.member().map_or(0, str::len) + 64 + 2 * 256
}

/// The request for `wants`, each spec in it once.
fn body(slots: &[Slot<'_>], wants: &[Want]) -> FramesBody {
    let mut specs = Vec::new();
    let mut places = HashMap::new();
    let mut item = |want: &Want| {
        let Slot { id, spec, version } = slots[want.index];
        let place = *places.entry(spec).or_insert_with(|| {
            specs.push(spec.to_string());
            specs.len() - 1
        });
        FrameAsk {
            index: want.index as u32,
            attempt: want.tries.attempt as u16,
            spec: place as u16,
            uri: id.to_string(),
            version: version.to_owned(),
        }
    };
    let items = wants.iter().map(&mut item).collect();
    FramesBody { specs, items }
}

/// The head, if the spec can have made it.
fn of_spec(head: TensorHead, spec: &ImageSpec) -> Result<TensorHead, Error> {
    let channels = match head.layout {
        Layout::Hwc => head.shape[2],
        Layout::Chw => head.shape[0],
    };
    let made = (head.layout, channels) == (spec.layout, spec.channels());
    match made && spec.fixed_shape().is_none_or(|shape| shape == head.shape) {
        true => Ok(head),
        false => Err(protocol(&format!("a picture of shape {:?}, which the spec does not give", head.shape))),
    }
}

/// What one request has answered so far.
struct Answers {
    open: HashMap<usize, Want>,
    done: Vec<(usize, Version)>,
    failed: Vec<(Want, Error)>,
}

/// How the receiving of one item ended.
enum Taken {
    Picture(Version),
    /// This item alone.
    Failed(Error),
    /// The whole stream.
    Broken(Error),
}

fn protocol(message: &str) -> Error {
    Error::new(ErrorKind::Protocol, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Dtype;
    use crate::object::VERSION_BYTES_MAX;
    use crate::wire::codec;

    /// Promise: whatever the addresses, each request can be sent, and each picture is in one.
    #[test]
    fn requests_fit_their_bound() {
        let longest = ObjectId::new("abc", &"!/".repeat(512)).and_then(|id| id.with_member(&"m".repeat(4096))).expect("legal");
        let ids: Vec<ObjectId> =
            (0..1000).map(|i| if i % 2 == 0 { longest.clone() } else { "s3://abc/k".parse().expect("id") }).collect();
        let all = "box=11111,22222,33333,44444&max_pixels=4294967295&multiple=33333&crop=65535&flip=h&filter=bilinear&mode=rgb\
            &alpha=over:ffffff&depth=scale&layout=chw&orientation=apply&truncated=pad&profile=fast";
        let version = "v".repeat(VERSION_BYTES_MAX);
        let image: ImageSpec = format!("image?{}", all.replace("&depth=scale", "")).parse().expect("spec");
        let specs: Vec<DecodeSpec> = (0..1000).map(|frame| VideoSpec::at(u64::MAX - frame, image.clone()).into()).collect();
        assert!(specs.iter().all(|spec| spec.to_string().len() <= 256));
        let slots: Vec<Slot<'_>> = ids.iter().zip(&specs).map(|(id, spec)| Slot { id, spec, version: &version }).collect();
        let mut groups = Groups::default();
        for (index, slot) in slots.iter().enumerate() {
            let want = Want { index, tries: Tries::new(slot.spec.route(slot.id)) };
            groups.add(Target::node("n", "a:1"), want, ask_bytes(slot.id));
        }
        let mut asked = 0;
        for (_, wants) in groups.made {
            assert!(wants.len() <= REQUEST_ITEMS);
            asked += wants.len();
            codec::encode(&body(&slots, &wants)).expect("within its bound");
        }
        assert_eq!(asked, ids.len());
    }

    /// Promise: pixels that the spec cannot have made are a broken node's, and are not handed on.
    #[test]
    fn pictures_are_of_the_spec() {
        let of = |shape, text: &str| {
            let layout = Layout::Hwc;
            let head = TensorHead { shape, dtype: Dtype::U8, layout, source: (1, 1), orientation: 1, pts_seconds: 0.0 };
            of_spec(head, &text.parse().expect("spec")).map(drop).map_err(|error| error.kind)
        };
        for (shape, spec) in [([2, 4, 3], "image?size=4x2"), ([2, 4, 3], "image"), ([2, 4, 1], "image?mode=gray")] {
            assert_eq!(of(shape, spec), Ok(()), "{spec}");
        }
        for (shape, spec) in [
            ([4, 2, 3], "image?size=4x2"),
            ([2, 4, 1], "image"),
            ([2, 4, 3], "image?alpha=keep"),
            ([3, 2, 4], "image?layout=chw"),
        ] {
            assert_eq!(of(shape, spec), Err(ErrorKind::Protocol), "{spec}");
        }
    }
}
