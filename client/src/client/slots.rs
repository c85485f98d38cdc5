//! A batch: which requests are under way for which slots, and what comes of them.
//!
//! Everything is decided here, in one task, between the steps of the requests. A slot fails only when no request for it is left; one
//! that failed is asked for again by its own order of nodes, whatever the others do. The call returns when every slot has its outcome,
//! and drops whatever is under way still: from then on nobody writes.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::{AbortHandle, Abortable, BoxFuture, FutureExt};
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::time::{Instant, sleep};

use super::exchange::{Ask, Exchange, Pause};
use super::images::{Groups, Outcome, Slot, Want, ask_bytes};
use super::known::Chosen;
use super::{Call, Client, Tries};
use crate::error::{Error, ErrorKind};
use crate::stats::count;

/// What a step of a batch leads to.
enum Event<'a> {
    /// These are to be asked for now, of these nodes.
    Routed(Groups),
    /// No node is known.
    Unrouted(Vec<Want>, Error),
    /// A request has something to say.
    Paused(Box<Exchange<'a>>, Pause),
    /// A request was stopped: all of its slots have their outcome.
    Stopped,
}

/// A batch under way.
struct Work<'a> {
    ask: Ask<'a>,
    steps: FuturesUnordered<BoxFuture<'a, Event<'a>>>,
    outcomes: Vec<Option<Outcome>>,
    /// For each slot the requests under way, and the highest try.
    tried: Vec<(usize, u32)>,
    /// Slots without outcome.
    left: usize,
    requests: BTreeMap<u64, Request>,
    next: u64,
}

/// A request under way.
struct Request {
    stop: AbortHandle,
    slots: Vec<usize>,
}

impl Client {
    /// Fills the slots that have no outcome yet.
    pub(super) async fn slots(
        &self,
        slots: &[Slot<'_>],
        outcomes: Vec<Option<Outcome>>,
        call: &Call,
        deadline: Instant,
    ) -> Vec<Outcome> {
        let ask = Ask { client: self, slots, call, deadline };
        let wanted = slots.iter().enumerate().filter(|(index, _)| outcomes[*index].is_none());
        let mut wants: Vec<Want> =
            wanted.map(|(index, slot)| Want { index, tries: Tries::new(slot.spec.route(slot.id)) }).collect();
        wants.sort_by(|a, b| slots[a.index].order().cmp(&slots[b.index].order()));
        let mut work = Work {
            ask,
            steps: FuturesUnordered::new(),
            tried: vec![(0, 1); outcomes.len()],
            outcomes,
            left: wants.len(),
            requests: BTreeMap::new(),
            next: 0,
        };
        work.steps.push(route(ask, wants, Duration::ZERO).boxed());
        while work.left > 0 {
            let Some(event) = work.steps.next().await else { break };
            work.take(event);
        }
        let Work { outcomes, steps, .. } = work;
        drop(steps);
        let unanswered = || Err(Error::new(ErrorKind::Protocol, "no outcome"));
        outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(unanswered)).collect()
    }
}

/// Groups pictures by the node that each asks next, after a pause.
async fn route(ask: Ask<'_>, wants: Vec<Want>, after: Duration) -> Event<'_> {
    if !after.is_zero() {
        sleep(after).await;
    }
    let known = match ask.client.cluster(ask.call, ask.deadline).await {
        Ok(known) => known,
        Err(error) => return Event::Unrouted(wants, error),
    };
    let mut groups = Groups::default();
    for (at, want) in wants.iter().enumerate() {
        match ask.client.choose(&known, &want.tries) {
            Ok(chosen) => groups.add(chosen, *want, ask_bytes(ask.slots[want.index].id)),
            // No node: the same for each of them.
            Err(error) if at == 0 => return Event::Unrouted(wants, error),
            Err(_) => break,
        }
    }
    Event::Routed(groups)
}

impl<'a> Work<'a> {
    fn take(&mut self, event: Event<'a>) {
        match event {
            Event::Stopped => {}
            Event::Routed(groups) => groups.made.into_iter().for_each(|(chosen, wants)| self.send(chosen, wants, false)),
            Event::Unrouted(wants, error) => {
                let failed = wants.into_iter().map(|want| (want, error.clone())).collect();
                self.failed(None, failed);
            }
            Event::Paused(mut exchange, pause) => {
                let (done, failed) = (std::mem::take(&mut exchange.done), std::mem::take(&mut exchange.failed));
                let beaten = std::mem::take(&mut exchange.beaten);
                for (index, version) in done {
                    self.tried[index].0 -= 1;
                    count(&self.ask.client.counters().hedges_won, usize::from(exchange.is_hedge));
                    self.outcome(index, Ok(version));
                }
                for want in &failed {
                    self.tried[want.0.index].0 -= 1;
                }
                self.failed(Some(&exchange), failed);
                for want in beaten {
                    self.beaten(&exchange, want);
                }
                match pause {
                    Pause::Ended => drop(self.requests.remove(&exchange.number)),
                    Pause::Told => self.proceed(exchange),
                    Pause::Slow => {
                        self.hedge(&exchange);
                        self.proceed(exchange);
                    }
                }
            }
        }
    }

    /// Asks a node for pictures.
    fn send(&mut self, chosen: Chosen, wants: Vec<Want>, is_hedge: bool) {
        let (number, ask) = (self.next, self.ask);
        self.next += 1;
        for want in &wants {
            let (under_way, attempt) = &mut self.tried[want.index];
            *under_way += 1;
            *attempt = want.tries.attempt.max(*attempt);
        }
        let exchange = Exchange::new(number, chosen.link.clone(), is_hedge, &wants);
        let (stop, stopped) = AbortHandle::new_pair();
        self.requests.insert(number, Request { stop, slots: wants.iter().map(|want| want.index).collect() });
        self.step(Abortable::new(ask.request(exchange, chosen, wants), stopped));
    }

    /// Lets a request go on, if it has anything left to give.
    fn proceed(&mut self, exchange: Box<Exchange<'a>>) {
        if exchange.open.keys().all(|&index| self.outcomes[index].is_some()) {
            self.requests.remove(&exchange.number);
            return;
        }
        let Some(request) = self.requests.get_mut(&exchange.number) else { return };
        let (stop, stopped) = AbortHandle::new_pair();
        request.stop = stop;
        self.step(Abortable::new(self.ask.proceed(*exchange), stopped));
    }

    fn step(&mut self, request: Abortable<impl Future<Output = (Exchange<'a>, Pause)> + Send + 'a>) {
        let event = |ended| match ended {
            Ok((exchange, pause)) => Event::Paused(Box::new(exchange), pause),
            Err(_) => Event::Stopped,
        };
        self.steps.push(request.map(event).boxed());
    }

    /// Slot `index` is settled. Requests that have no other slot are stopped.
    fn outcome(&mut self, index: usize, outcome: Outcome) {
        if self.outcomes[index].is_some() {
            return;
        }
        let outcome = outcome.map_err(|error| error.about(self.ask.slots[index].id));
        self.outcomes[index] = Some(outcome);
        let Slot { batch, at, .. } = self.ask.slots[index];
        batch.settle(at);
        self.left -= 1;
        if self.tried[index].0 == 0 {
            return;
        }
        let outcomes = &self.outcomes;
        let over =
            |request: &Request| request.slots.contains(&index) && request.slots.iter().all(|&slot| outcomes[slot].is_some());
        self.requests.values().filter(|request| over(request)).for_each(|request| request.stop.abort());
    }

    /// The rule for each slot that failed, and one wait for all that wait: they come back in one request, not in as many as there are.
    fn failed(&mut self, exchange: Option<&Exchange<'_>>, failed: Vec<(Want, Error)>) {
        let (mut now, mut later, mut longest) = (Vec::new(), Vec::new(), Duration::ZERO);
        for (mut want, error) in failed {
            let (under_way, attempt) = self.tried[want.index];
            // Another request has its picture, or may have it yet.
            let hopeful = if error.kind.is_final() { self.ask.has(want.index) } else { under_way > 0 };
            if hopeful || self.outcomes[want.index].is_some() {
                exchange.into_iter().for_each(|exchange| self.ask.client.note(&error, &exchange.link));
                continue;
            }
            // A slot for which there was no node to ask has tried without asking.
            want.tries.attempt = want.tries.attempt.max(attempt);
            let attempt = want.tries.attempt;
            match want.tries.step(self.ask.client, &error, exchange.map(|exchange| &exchange.link), self.ask.deadline) {
                None => self.outcome(want.index, Err(Error { attempt, ..error })),
                Some(Duration::ZERO) => now.push(want),
                Some(after) => {
                    longest = longest.max(after);
                    later.push(want);
                }
            }
        }
        for (wants, after) in [(now, Duration::ZERO), (later, longest)] {
            if !wants.is_empty() {
                self.steps.push(route(self.ask, wants, after).boxed());
            }
        }
    }

    /// Another request was first for that slot. If it has failed meanwhile, the slot is asked for again.
    fn beaten(&mut self, exchange: &Exchange<'_>, want: Want) {
        self.tried[want.index].0 -= 1;
        if self.tried[want.index].0 == 0 && !self.ask.has(want.index) {
            let error = Error::new(ErrorKind::Unavailable, "the request that was first for it failed");
            self.failed(Some(exchange), vec![(want, error)]);
        }
    }

    /// Asks the next nodes for what is missing and asked for nowhere else, as far as the budget goes. The request that is slow may be all
    /// that is left of a hedge.
    fn hedge(&mut self, exchange: &Exchange<'_>) {
        let Some(known) = self.ask.client.known() else { return };
        let mut beside: Vec<(Chosen, Want)> = Vec::new();
        for want in exchange.open.values() {
            let (under_way, attempt) = self.tried[want.index];
            let alone = under_way == 1 && self.outcomes[want.index].is_none();
            if let Some(chosen) = known.beside(&want.tries, &exchange.link).filter(|_| alone) {
                let mut want = *want;
                want.tries.attempt = attempt + 1;
                beside.push((chosen, want));
            }
        }
        let budget = self.ask.client.hedges(beside.len());
        let mut groups = Groups::default();
        for (chosen, want) in beside.into_iter().take(budget) {
            groups.add(chosen, want, ask_bytes(self.ask.slots[want.index].id));
        }
        groups.made.into_iter().for_each(|(chosen, wants)| self.send(chosen, wants, true));
    }
}
