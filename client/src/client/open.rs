//! The beginning of a raw reply: from the node whose turn it is, or, where that takes longer than it mostly does, from the next one. The
//! first item decides; the other stream is stopped before any of its bytes are read, so that one stream alone writes.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use tokio::time::{Instant, sleep_until};

use super::known::Chosen;
use super::{Call, Client, Tries};
use crate::ask::Reply;
use crate::error::{Error, ErrorKind};
use crate::pool::{Kind, Link};
use crate::stats::count;
use crate::wire::{ItemHead, ReadBody, Verb};

/// A reply that has begun.
pub(super) struct Opened {
    pub(super) link: Arc<Link>,
    pub(super) reply: Reply,
    /// Its first item, which is no failure.
    pub(super) item: ItemHead,
}

/// A failure, and whose it is, if anybody was asked.
pub(super) type Failed = (Option<Arc<Link>>, Error);

/// Waits until then; for ever where there is no such time.
pub(super) async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

impl Client {
    /// Asks for raw bytes.
    pub(super) async fn open(
        &self,
        tries: &mut Tries,
        body: &ReadBody,
        pin: &str,
        call: &Call,
        deadline: Instant,
    ) -> Result<Opened, Failed> {
        let known = self.cluster(call, deadline).await.map_err(|error| (None, error))?;
        let first = self.choose(&known, tries).map_err(|error| (None, error))?;
        let (link, began) = (first.link.clone(), Instant::now());
        let mut hedge_after = link.hedge_after(Kind::Read);
        let mut hedge_at = hedge_after.map(|after| began + after);
        // Who has not answered.
        let mut slow = vec![link.clone()];
        let mut asked = FuturesUnordered::new();
        asked.push(self.begin(first, tries.attempt, body, pin, call, deadline));
        loop {
            tokio::select! {
                biased;
                begun = asked.next() => match begun {
                    Some(Ok(opened)) => {
                        if !Arc::ptr_eq(&opened.link, &link) {
                            // It took at least as long as this.
                            link.waited(Kind::Read, began.elapsed());
                            count(&self.inner.pool.counters().hedges_won, 1);
                        }
                        return Ok(opened);
                    }
                    Some(Err((link, error))) if asked.is_empty() || error.kind.is_final() => return Err((Some(link), error)),
                    // The other one is under way still, and may be slow as well.
                    Some(Err((failed, error))) => {
                        self.note(&error, &failed);
                        slow.retain(|link| !Arc::ptr_eq(link, &failed));
                        hedge_at = hedge_after.map(|after| Instant::now() + after);
                    }
                    None => return Err((None, Error::new(ErrorKind::Protocol, "nobody was asked"))),
                },
                () = until(hedge_at) => {
                    // The budget may permit it later.
                    hedge_after = hedge_after.map(|after| after * 2);
                    hedge_at = hedge_after.map(|after| Instant::now() + after);
                    let beside = slow.last().and_then(|slow| known.beside(tries, slow));
                    if let Some(beside) = beside.filter(|_| self.hedges(1) > 0) {
                        hedge_at = None;
                        slow.push(beside.link.clone());
                        tries.attempt += 1;
                        asked.push(self.begin(beside, tries.attempt, body, pin, call, deadline));
                    }
                }
            }
        }
    }

    /// The next item of a reply that has begun; where it keeps still for longer than `still`, as with [`Client::payload`].
    pub(super) async fn next(&self, reply: &mut Reply, still: Option<Duration>) -> Result<Option<ItemHead>, Error> {
        let Some(still) = still else { return reply.next().await };
        loop {
            if let Some(next) = reply.next_unless_still(still).await? {
                return Ok(next);
            }
            self.leave(reply, 1)?;
        }
    }

    /// The payload of the item whose head came last, from `got` on. Where its bytes keep still for longer than `still`, its node may have
    /// been lost: as far as the budget of hedges has `open` of them, it is left for the next one, where there is another.
    pub(super) async fn payload(
        &self,
        reply: &mut Reply,
        into: &mut [u8],
        got: &mut usize,
        still: Option<Duration>,
        open: impl Fn() -> usize,
    ) -> Result<(), Error> {
        while !reply.payload_unless_still(into, got, still).await? {
            self.leave(reply, open())?;
        }
        Ok(())
    }

    /// Passes over `bytes` of a payload, as long as they come, as with [`Client::payload`].
    pub(super) async fn pass(
        &self,
        reply: &mut Reply,
        mut bytes: usize,
        still: Option<Duration>,
        open: impl Fn() -> usize,
    ) -> Result<(), Error> {
        let mut scrap = [0; 4096];
        while bytes > 0 {
            let part = bytes.min(scrap.len());
            self.payload(reply, &mut scrap[..part], &mut 0, still, &open).await?;
            bytes -= part;
        }
        Ok(())
    }

    /// A reply keeps still: an error if it is left.
    fn leave(&self, reply: &Reply, open: usize) -> Result<(), Error> {
        match self.known().is_some_and(|known| known.elsewhere(reply.link())) && self.spare(open) {
            true => Err(Error::new(ErrorKind::Unavailable, format!("the reply of {} has come to a stop", reply.name()))),
            false => Ok(()),
        }
    }

    async fn begin(
        &self,
        chosen: Chosen,
        attempt: u32,
        body: &ReadBody,
        pin: &str,
        call: &Call,
        deadline: Instant,
    ) -> Result<Opened, (Arc<Link>, Error)> {
        let begun = async {
            let mut reply = self.ask(&chosen, Verb::Read, body, pin, call, deadline).await?;
            let item = reply.next().await?.ok_or_else(|| Error::new(ErrorKind::Unavailable, "the reply is empty"))?;
            chosen.link.waited(Kind::Read, reply.longest());
            match Error::from_item(&item) {
                Some(error) => Err(error.from_node(chosen.link.name(), attempt)),
                None => Ok((reply, item)),
            }
        };
        match begun.await {
            Ok((reply, item)) => Ok(Opened { link: chosen.link, reply, item }),
            Err(error) => Err((chosen.link, error)),
        }
    }
}
