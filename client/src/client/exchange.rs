//! One request for pictures: one stream to one node, whose items come as they are ready, each into its slot.
//!
//! A slot may be asked for by two requests at once. Whichever has its item first writes it; where the other one has it whole before, it
//! is given up to that. Who comes too late passes over its own, or is stopped. An exchange pauses where the rest of the batch has
//! something to decide, and goes on from there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use tokio::time::Instant;

use super::images::{Slot, Want, body, of_spec};
use super::known::Chosen;
use super::open::until;
use super::{Call, Client};
use crate::ask::Reply;
use crate::batch::Batch;
use crate::error::{Error, ErrorKind};
use crate::frame::{Layout, TensorHead};
use crate::object::Version;
use crate::pixels::yuv;
use crate::pool::{Kind, Link};
use crate::wire::{ItemHead, Verb};
use crate::zeroed::Zeroed;

/// What is the same for every request of a batch.
#[derive(Clone, Copy)]
pub(super) struct Ask<'a> {
    pub(super) client: &'a Client,
    pub(super) slots: &'a [Slot<'a>],
    pub(super) call: &'a Call,
    pub(super) deadline: Instant,
}

/// One request, and what it has given so far.
pub(super) struct Exchange<'a> {
    /// Tells the requests of a batch apart.
    pub(super) number: u64,
    pub(super) link: Arc<Link>,
    /// Whether it was sent because another one is slow.
    pub(super) is_hedge: bool,
    /// What is not answered, in the order of slots.
    pub(super) open: BTreeMap<usize, Want>,
    pub(super) done: Vec<(usize, Version)>,
    pub(super) failed: Vec<(Want, Error)>,
    /// Slots that another request was writing already.
    pub(super) beaten: Vec<Want>,
    /// Since when the rest of the batch has not been told of some of these.
    untold: Option<Instant>,
    /// The request, as long as it is not sent.
    asking: Option<BoxFuture<'a, Result<Reply, Error>>>,
    reply: Option<Reply>,
    /// When it was made, or its last item came, or it was found slow.
    since: Instant,
    /// How long an item is waited for before another node is asked as well.
    hedge_after: Option<Duration>,
    /// Whether the node's waits have been told of this one.
    told: bool,
}

/// Why an exchange pauses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pause {
    /// An item is slow to come.
    Slow,
    /// There is something that the rest of the batch has to know.
    Told,
    /// It is over.
    Ended,
}

/// What became of an item is told after this long, together with what came meanwhile: pictures that fail together are asked for again in
/// one request.
const TELL_AFTER: Duration = Duration::from_millis(5);

/// How the receiving of one item ended.
enum Taken {
    Picture(Version),
    /// Another request was first.
    Beaten,
    /// This item alone.
    Failed(Error),
    /// The whole stream.
    Broken(Error),
}

impl Exchange<'_> {
    pub(super) fn new(number: u64, link: Arc<Link>, is_hedge: bool, wants: &[Want]) -> Self {
        let hedge_after = link.hedge_after(Kind::Frames);
        Self {
            number,
            link,
            is_hedge,
            open: wants.iter().map(|want| (want.index, *want)).collect(),
            done: Vec::new(),
            failed: Vec::new(),
            beaten: Vec::new(),
            untold: None,
            asking: None,
            reply: None,
            since: Instant::now(),
            hedge_after,
            told: false,
        }
    }

    /// What is open ends with `error`.
    fn end(mut self, error: &Error) -> Self {
        (self.asking, self.reply) = (None, None);
        self.failed.extend(std::mem::take(&mut self.open).into_values().map(|want| (want, error.clone())));
        self
    }

    /// Takes the node's longest wait down, once.
    fn waited(&mut self) {
        if let Some(reply) = self.reply.as_ref().filter(|_| !self.told) {
            self.told = true;
            self.link.waited(Kind::Frames, reply.longest());
        }
    }
}

/// The next item of a request, which is sent before if it is not yet. Cancel safe.
async fn next(asking: &mut Option<BoxFuture<'_, Result<Reply, Error>>>, reply: &mut Option<Reply>) -> Result<ItemHead, Error> {
    if let Some(ask) = asking {
        let begun = ask.await;
        *asking = None;
        *reply = Some(begun?);
    }
    let item = match reply {
        Some(reply) => reply.next().await?,
        None => None,
    };
    item.ok_or_else(early)
}

impl<'a> Ask<'a> {
    /// Whether slot `index` holds its picture.
    pub(super) fn has(&self, index: usize) -> bool {
        let Slot { batch, at, .. } = self.slots[index];
        batch.head(at).is_some()
    }

    fn is_over(&self, index: usize) -> bool {
        let Slot { batch, at, .. } = self.slots[index];
        batch.is_over(at)
    }

    /// Sends the request, and receives until there is something to decide.
    pub(super) async fn request(self, mut exchange: Exchange<'a>, chosen: Chosen, wants: Vec<Want>) -> (Exchange<'a>, Pause) {
        let Self { client, call, deadline, .. } = self;
        let body = body(self.slots, &wants);
        let ask = async move { client.ask(&chosen, Verb::Frames, &body, "", call, deadline).await };
        exchange.asking = Some(ask.boxed());
        self.proceed(exchange).await
    }

    /// Goes on receiving.
    pub(super) async fn proceed(self, mut exchange: Exchange<'a>) -> (Exchange<'a>, Pause) {
        match self.receive(&mut exchange).await {
            Ok(pause) => (exchange, pause),
            Err(error) => (exchange.end(&error), Pause::Ended),
        }
    }

    async fn receive(self, exchange: &mut Exchange<'a>) -> Result<Pause, Error> {
        exchange.untold = None;
        loop {
            if exchange.open.is_empty() {
                exchange.waited();
                return Ok(Pause::Ended);
            }
            let slow_at = exchange.hedge_after.map(|after| exchange.since + after);
            let item = tokio::select! {
                biased;
                () = until(exchange.untold.map(|since| since + TELL_AFTER)) => return Ok(Pause::Told),
                item = next(&mut exchange.asking, &mut exchange.reply) => Some(item?),
                () = until(slow_at) => None,
            };
            let Some(item) = item else {
                // Looked at again after twice as long: what the budget did not permit, or nobody else is asked for any more.
                (exchange.since, exchange.hedge_after) = (Instant::now(), exchange.hedge_after.map(|after| after * 2));
                exchange.waited();
                return Ok(Pause::Slow);
            };
            if let Some(error) = Error::from_item(&item).filter(|_| item.attempt == 0) {
                // No try has that number: the request was refused as a whole.
                return Err(error.from_node(exchange.link.name(), 1));
            }
            let index = item.index as usize;
            let want = exchange.open.get(&index).copied().filter(|want| want.attempt() == item.attempt);
            let want = want.ok_or_else(|| protocol("a slot that was not asked for"))?;
            let still = exchange.link.hedge_after(Kind::Frames);
            // What another request has brought need not be asked for again.
            let open = || exchange.open.keys().filter(|&&index| !self.is_over(index)).count();
            let reply = exchange.reply.as_mut().ok_or_else(early)?;
            let taken = self.take(&item, reply, still, &open).await;
            exchange.since = Instant::now();
            exchange.open.remove(&index);
            exchange.untold.get_or_insert_with(Instant::now);
            match taken {
                Taken::Picture(version) => exchange.done.push((index, version)),
                Taken::Failed(error) => exchange.failed.push((want, error.from_node(exchange.link.name(), want.tries.attempt))),
                Taken::Beaten => {
                    exchange.beaten.push(want);
                    return Ok(Pause::Told);
                }
                Taken::Broken(error) => {
                    exchange.failed.push((want, error.clone()));
                    return Err(error);
                }
            }
        }
    }

    /// Receives one item into its slot. If its bytes keep still for longer than `still`, the `open` items of the request are given up here,
    /// to be asked for elsewhere.
    async fn take(
        self,
        item: &ItemHead,
        reply: &mut Reply,
        still: Option<Duration>,
        open: &(impl Fn() -> usize + Sync),
    ) -> Taken {
        if let Some(error) = Error::from_item(item) {
            return Taken::Failed(error);
        }
        let head = item.tensor_head().map_err(|e| protocol(&e.to_string()));
        let head = head.and_then(|head| head.ok_or_else(|| protocol("a picture without shape")));
        let Slot { spec, batch, at, converted, .. } = self.slots[item.index as usize];
        let head = head.and_then(|head| of_spec(head, spec.image()));
        let version = Version::new(&item.version).map_err(|e| protocol(&e.to_string()));
        let (head, version) = match (head, version) {
            (Ok(head), Ok(version)) if head.bytes() == u64::from(item.payload_bytes) => (head, version),
            (Err(error), _) | (_, Err(error)) => return Taken::Broken(error),
            _ => return Taken::Broken(protocol("a picture whose bytes do not fit its shape")),
        };
        // The requests of a batch are polled by one task, so that nothing comes between the question and the taking.
        let bytes = item.payload_bytes as usize;
        if batch.is_over(at) {
            return self.client.pass(reply, bytes, still, open).await.map_or_else(Taken::Broken, |()| Taken::Beaten);
        }
        if converted {
            return match self.converted((batch, at), head, reply, still, open).await {
                Ok(true) => Taken::Picture(version),
                Ok(false) => Taken::Beaten,
                Err(error) if matches!(error.kind, ErrorKind::Invalid | ErrorKind::Unsupported) => Taken::Failed(error),
                Err(error) => Taken::Broken(error),
            };
        }
        if batch.is_taken(at) {
            return match self.beside((batch, at), head, reply, still, open).await {
                Ok(true) => Taken::Picture(version),
                Ok(false) => Taken::Beaten,
                Err(error) if error.kind == ErrorKind::Invalid => Taken::Failed(error),
                Err(error) => Taken::Broken(error),
            };
        }
        let mut place = match batch.place(at, head) {
            Ok(place) => place,
            Err(error) if error.kind == ErrorKind::Invalid => {
                return self.client.pass(reply, bytes, still, open).await.map_or_else(Taken::Broken, |()| Taken::Failed(error));
            }
            Err(error) => return Taken::Broken(error),
        };
        let mut got = 0;
        let received = tokio::select! {
            biased;
            received = self.client.payload(reply, place.bytes(), &mut got, still, open) => Some(received),
            () = batch.unwanted(at) => None,
        };
        match received {
            Some(Ok(())) => {
                place.done();
                Taken::Picture(version)
            }
            Some(Err(error)) => Taken::Broken(error),
            None => {
                drop(place);
                self.client.pass(reply, bytes - got, still, open).await.map_or_else(Taken::Broken, |()| Taken::Beaten)
            }
        }
    }

    /// Receives a picture that another request is writing already, beside it; whether this one was first to have it whole.
    async fn beside(
        self,
        (batch, at): (&Batch, usize),
        head: TensorHead,
        reply: &mut Reply,
        still: Option<Duration>,
        open: &(impl Fn() -> usize + Sync),
    ) -> Result<bool, Error> {
        let memory = usize::try_from(head.bytes()).ok().and_then(Zeroed::new);
        let Some(mut memory) = memory else {
            // The one that is being written will do.
            return self.client.pass(reply, head.bytes() as usize, still, open).await.map(|()| false);
        };
        self.client.payload(reply, memory.bytes_mut(), &mut 0, still, open).await?;
        let Some(mut place) = batch.claim(at, head).await? else { return Ok(false) };
        place.bytes().copy_from_slice(memory.bytes());
        place.done();
        Ok(true)
    }
}

impl Ask<'_> {
    /// Receives the planes of a frame and makes its RGB of them; whether this request was first to have it.
    ///
    /// # Errors
    /// `Unsupported`: planes of another kind, or of one that is not told.
    async fn converted(
        self,
        (batch, at): (&Batch, usize),
        head: TensorHead,
        reply: &mut Reply,
        still: Option<Duration>,
        open: &(impl Fn() -> usize + Sync),
    ) -> Result<bool, Error> {
        let memory = usize::try_from(head.bytes()).ok().and_then(Zeroed::new);
        let mut memory = memory.ok_or_else(|| protocol("planes larger than memory"))?;
        self.client.payload(reply, memory.bytes_mut(), &mut 0, still, open).await?;
        let (width, height) = head.source;
        let unsupported = |what: String| Error::new(ErrorKind::Unsupported, what);
        let format = head.format.filter(|format| format.is_yuv420());
        let format = format.ok_or_else(|| unsupported("no planes of 4:2:0 in 8 bits".into()))?;
        let planes = format.packed(memory.bytes(), width as usize, height as usize);
        let planes = planes.map_err(|error| unsupported(error.to_string()))?;
        let rgb = TensorHead { shape: [height, width, 3], layout: Layout::Hwc, format: None, ..head };
        let Some(mut place) = batch.claim(at, rgb).await? else { return Ok(false) };
        yuv::rgb(&planes, place.bytes()).map_err(|error| protocol(&error.to_string()))?;
        place.done();
        Ok(true)
    }
}

fn early() -> Error {
    Error::new(ErrorKind::Unavailable, "the reply ended early")
}

fn protocol(message: &str) -> Error {
    Error::new(ErrorKind::Protocol, message)
}
