//! The tries of one item: which node is next, by the rules of `route`.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::known::Chosen;
use super::{Call, Client};
use crate::error::{Error, ErrorKind};
use crate::object::RouteKey;
use crate::pool::Link;
use crate::route::{self, Failure, Step};
use crate::stats::count;

/// The state of one item's tries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tries {
    pub(super) key: RouteKey,
    pub(super) attempt: u32,
    /// Times in a row that the node was busy.
    refusals: u32,
    /// Times that a node's time was up.
    timeouts: u32,
    /// The link that is asked again.
    pub(super) stay: Option<u64>,
    /// The link after which it goes on in the key's order.
    pub(super) past: Option<u64>,
}

impl Tries {
    pub(super) fn new(key: RouteKey) -> Self {
        Self { key, attempt: 1, refusals: 0, timeouts: 0, stay: None, past: None }
    }

    /// Whether no node was asked before.
    pub(super) fn is_fresh(&self) -> bool {
        self.stay.is_none() && self.past.is_none()
    }

    /// Takes in a failure of `link`'s, or that none was to be had; how long to wait before the next try, or nothing if there is none.
    pub(super) fn step(
        &mut self,
        client: &Client,
        error: &Error,
        link: Option<&Arc<Link>>,
        deadline: Instant,
    ) -> Option<Duration> {
        self.refusals = if matches!(error.kind, ErrorKind::Busy { .. }) { self.refusals + 1 } else { 0 };
        self.timeouts += u32::from(error.kind == ErrorKind::Timeout);
        let known = client.known();
        let failure = Failure {
            kind: &error.kind,
            said: error.node.is_some(),
            attempt: self.attempt,
            refusals: self.refusals,
            timeouts: self.timeouts,
            elsewhere: known.as_ref().zip(link).is_some_and(|(known, link)| known.elsewhere(link)),
            left: deadline.saturating_duration_since(Instant::now()),
        };
        let (after, next) = match route::after_failure(&failure, client.inner.pool.random()) {
            Step::GiveUp => return None,
            Step::Again { after } => (after, false),
            Step::Next { after } => (after, true),
            Step::NextIfSpare { .. } if client.spare(1) => (Duration::ZERO, true),
            Step::NextIfSpare { otherwise } if otherwise >= failure.left => return None,
            Step::NextIfSpare { otherwise } => (otherwise, false),
        };
        if let Some(link) = link {
            client.note(error, link);
        }
        if matches!(error.kind, ErrorKind::Unavailable | ErrorKind::Leaving) {
            client.ask_for_view(None);
        }
        let number = link.map(|link| link.number());
        (self.stay, self.past) = if next { (None, number.or(self.past)) } else { (number, self.past) };
        if next {
            self.refusals = 0;
        }
        count(&client.inner.pool.counters().retries, 1);
        self.attempt += 1;
        Some(after)
    }

    /// Takes in a failure and waits as the rule says; gives the error back when there is nothing more to try.
    pub(super) async fn failed(
        &mut self,
        client: &Client,
        error: Error,
        link: Option<&Arc<Link>>,
        deadline: Instant,
    ) -> Result<(), Error> {
        match self.step(client, &error, link, deadline) {
            None => Err(Error { attempt: self.attempt, ..error }),
            Some(after) => {
                sleep(after).await;
                Ok(())
            }
        }
    }
}

impl Client {
    /// Asks the nodes of `key` until there is an answer, or the rule or the deadline says that it is enough.
    pub(super) async fn until_answered<T, W>(
        &self,
        key: RouteKey,
        call: &Call,
        deadline: Instant,
        ask: impl Fn(Chosen) -> W,
    ) -> Result<T, Error>
    where
        W: Future<Output = Result<T, Error>>,
    {
        let mut tries = Tries::new(key);
        loop {
            let chosen = self.cluster(call, deadline).await.and_then(|known| self.choose(&known, &tries));
            let (link, answer) = match chosen {
                Ok(chosen) => (Some(chosen.link.clone()), ask(chosen).await),
                Err(error) => (None, Err(error)),
            };
            match answer {
                Ok(answer) => return Ok(answer),
                Err(error) => tries.failed(self, error, link.as_ref(), deadline).await?,
            }
        }
    }

    /// Takes down what a failure says of the node: one that leaves is asked no more.
    pub(super) fn note(&self, error: &Error, link: &Link) {
        let known = self.known().filter(|_| error.kind == ErrorKind::Leaving);
        if let Some(row) = known.as_ref().and_then(|known| known.topology.view().node(link.name())) {
            link.leaves(row);
        }
    }

    /// Takes `count` hedges out of the budget, if there are as many.
    pub(super) fn spare(&self, count: usize) -> bool {
        self.inner.hedges.lock().take_all(count)
    }
}
