//! News of the cluster: a view at first, and from then on what replies bring beside their answers.
//!
//! Rows are merged by their own order, so that it does not matter who says what when. Rings are made off the request path, one at a
//! time, and requests go on by the old ones meanwhile. Nobody waits for news but the first request of all.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use tokio::time::{Instant, sleep, timeout_at};

use super::known::Known;
use super::{Call, Client, Inner};
use crate::ask::{self, Hear};
use crate::error::{Error, ErrorKind};
use crate::pool::{Link, Target, host_of};
use crate::stats::count;
use crate::topology::Topology;
use crate::view::{NODES_MAX, NodeState, View, state};
use crate::wire::{Header, NodeRow, Verb, ViewBody, ViewPayload, codec};

/// Longest wait for one node's view.
const VIEW_MAX: Duration = Duration::from_secs(3);

/// Before another seed is asked as well.
const SEED_STAGGER: Duration = Duration::from_millis(250);

/// Least time between two questions for the whole view: a node that is lost makes many ask at once.
const ASK_PAUSE: Duration = Duration::from_secs(1);

/// Members from which on rings are made on a thread of their own: below it they take less than 2 ms.
const MEMBERS_INLINE: usize = 16;

/// After rings were made there is a pause of so many times what it took: no news takes more than a fifth of a processor.
const REST: u32 = 4;

impl Client {
    /// What is known of the cluster; asks for it if nothing is.
    pub(super) async fn cluster(&self, call: &Call, deadline: Instant) -> Result<Arc<Known>, Error> {
        if let Some(known) = self.known().filter(|known| known.members() > 0) {
            return Ok(known);
        }
        let asked = Instant::now();
        let late = || Error::new(ErrorKind::Timeout, "the deadline passed");
        // One asks, the others wait for it, and take its failure for theirs.
        let mut failed = timeout_at(deadline, self.inner.first.lock()).await.map_err(|_| late())?;
        if let Some(known) = self.known().filter(|known| known.members() > 0) {
            return Ok(known);
        }
        if let Some((_, error)) = failed.as_ref().filter(|(at, _)| *at >= asked) {
            return Err(error.clone());
        }
        match self.fetch(call, deadline).await {
            Ok(known) if known.members() > 0 => Ok(known),
            Ok(_) => Err(Error::new(ErrorKind::Unavailable, "the cluster has no serving node")),
            Err(error) => {
                // That its own time was up is nobody else's failure.
                if error.kind != ErrorKind::Timeout && Instant::now() < deadline {
                    *failed = Some((Instant::now(), error.clone()));
                }
                Err(error)
            }
        }
    }

    /// The whole view, from whichever node tells it first: members that answer, then the seeds, one after the other.
    pub(super) async fn fetch(&self, call: &Call, deadline: Instant) -> Result<Arc<Known>, Error> {
        let Inner { pool, config, .. } = &*self.inner;
        let known = self.known();
        let mut links: Vec<Arc<Link>> = known.iter().flat_map(|known| known.good(pool.random()).into_iter().cloned()).collect();
        for address in &config.addresses {
            // A seed may be at the address of a node that is no more.
            if !links.iter().any(|link| link.target().address() == address) {
                links.push(pool.link(&Target::seed(address))?);
            }
        }
        // Members that did not answer may be back.
        for link in known.iter().flat_map(|known| known.all()) {
            if !links.iter().any(|other| Arc::ptr_eq(other, link)) {
                links.push(link.clone());
            }
        }
        let until = deadline.min(Instant::now() + VIEW_MAX);
        let one = |place: usize, link: Arc<Link>| async move {
            sleep(SEED_STAGGER.saturating_mul(u32::try_from(place).unwrap_or(u32::MAX)).min(VIEW_MAX / 2)).await;
            let told = view_from(&link, &self.inner.config.caller, call, until).await;
            (link, told)
        };
        let mut asked: FuturesUnordered<_> =
            links.into_iter().take(FETCH_MAX).enumerate().map(|(place, link)| one(place, link)).collect();
        let (mut last, mut wrong) = (None, None);
        // Those whose turn had not come are not waited for.
        while let Ok(Some((link, told))) = timeout_at(until, asked.next()).await {
            match told {
                Ok(view) => {
                    drop(asked);
                    return self.inner.clone().replace(view, &link).await;
                }
                // Only the caller's own deadline is its end; a node that does not answer is one of several.
                Err(error) if error.kind == ErrorKind::Timeout && until < deadline => {
                    let message = format!("no answer from {}", link.target().address());
                    last = last.or(Some(Error::new(ErrorKind::Unavailable, message)));
                }
                // That the trust is wrong says more than that somebody else is away.
                Err(error) if error.kind == ErrorKind::Invalid => wrong = Some(error),
                Err(error) => last = Some(error),
            }
        }
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
        Err(last.unwrap_or_else(|| Error::new(ErrorKind::Unavailable, "no node answered in time")))
    }

    /// Asks for the whole view in the background, of `link` if it is given: a node was lost, or has more to tell than a reply carries.
    pub(super) fn ask_for_view(&self, link: Option<&Arc<Link>>) {
        self.inner.clone().ask_for_view(link);
    }
}

impl Inner {
    fn ask_for_view(self: Arc<Self>, link: Option<&Arc<Link>>) {
        if self.asking.swap(true, Ordering::AcqRel) {
            return;
        }
        let link = link.cloned();
        let weak = Arc::downgrade(&self);
        tokio::spawn(async move {
            let (call, until) = (Call::default(), Instant::now() + VIEW_MAX);
            // What it did not learn now it learns when the next node is lost, or with the next reply.
            match link {
                Some(link) => {
                    if let Ok(view) = view_from(&link, &self.config.caller, &call, until).await {
                        let _ = self.replace(view, &link).await;
                    }
                }
                None => drop(Client { inner: self }.fetch(&call, until).await),
            }
            sleep(ASK_PAUSE).await;
            if let Some(inner) = weak.upgrade() {
                inner.asking.store(false, Ordering::Release);
            }
        });
    }

    /// Takes in a whole view, as `from` told it.
    async fn replace(self: Arc<Self>, told: View, from: &Arc<Link>) -> Result<Arc<Known>, Error> {
        let inner = self.clone();
        let change = move |known: Option<&Known>| match known {
            None => Some(told),
            Some(known) => {
                let answers = |row: &NodeRow| known.link(&row.id).is_some_and(|link| link.is_connected());
                Some(replaced(known.topology.view(), told, answers))
            }
        };
        let known = self.publish(change).await;
        if let Some(node) =
            known.iter().flat_map(|known| known.all()).find(|node| node.target().address() == from.target().address())
        {
            inner.pool.adopt(node);
        }
        // Seeds are asked for the view alone: they are not stayed connected to.
        if let Some(known) = &known {
            inner.pool.retain(|target| target.is_in(known.topology.view()));
        }
        known.ok_or_else(|| Error::new(ErrorKind::Unavailable, "no view"))
    }

    /// Makes what is known anew by `change`, which is told what is known now and gives the view that is to be.
    async fn publish(&self, change: impl FnOnce(Option<&Known>) -> Option<View>) -> Option<Arc<Known>> {
        let _one = self.rebuilding.lock().await;
        let before = self.known.load_full();
        let view = match change(before.as_deref()) {
            Some(view) if before.as_ref().is_none_or(|before| *before.topology.view() != view) => view,
            _ => return before,
        };
        let old = before.clone();
        let make = move || Topology::after(view, old.as_ref().map(|known| &known.topology));
        let many = before.as_ref().is_some_and(|known| known.members() >= MEMBERS_INLINE);
        let topology = match many {
            true => tokio::task::spawn_blocking(make).await.ok()?,
            false => make(),
        };
        let known = Arc::new(Known::new(topology, &self.pool));
        self.pool.set_elsewhere(known.members() > 1);
        self.known.store(Some(known.clone()));
        count(&self.pool.counters().views, 1);
        Some(known)
    }

    /// Merges what was heard until nothing more is heard.
    async fn merge(weak: Weak<Inner>) {
        loop {
            let Some(inner) = weak.upgrade() else { return };
            let rows = {
                let mut news = inner.news.lock();
                let rows = std::mem::take(&mut news.rows);
                news.merging = !rows.is_empty();
                rows
            };
            if rows.is_empty() {
                return;
            }
            let began = Instant::now();
            let change = |known: Option<&Known>| {
                let mut view = known.map_or_else(View::default, |known| known.topology.view().clone());
                // A view that is full takes no more: those that it has go on.
                rows.into_iter().for_each(|row| drop(view.merge(row)));
                Some(view)
            };
            if let Some(known) = inner.publish(change).await {
                inner.pool.retain(|target| target.is_in(known.topology.view()));
            }
            drop(inner);
            sleep(began.elapsed() * REST).await;
        }
    }
}

impl Hear for Inner {
    fn hear(self: Arc<Self>, delta: &[u8], from: &Arc<Link>) {
        if delta.is_empty() {
            return self.ask_for_view(Some(from));
        }
        let told = match codec::decode::<ViewPayload>(delta) {
            Ok(told) => told,
            Err(error) => return tracing::debug!(node = from.name(), %error, "news cannot be read"),
        };
        let known = self.known.load_full();
        let is_new = |row: &NodeRow| {
            let old = known.as_ref().and_then(|known| known.topology.view().node(&row.id));
            old.is_none_or(|old| (old.incarnation, old.version) < (row.incarnation, row.version))
        };
        let mut news = self.news.lock();
        let room = NODES_MAX.saturating_sub(news.rows.len());
        let address = from.target().address();
        news.rows.extend(told.nodes.into_iter().filter(is_new).take(room).map(|row| reached(row, address)));
        if !news.rows.is_empty() && !std::mem::replace(&mut news.merging, true) {
            tokio::spawn(Self::merge(Arc::downgrade(&self)));
        }
    }
}

/// Rows that were heard and are not merged yet.
#[derive(Debug, Default)]
pub(super) struct News {
    rows: Vec<NodeRow>,
    /// Whether a task merges them.
    merging: bool,
}

/// The view that the node behind `link` has.
async fn view_from(link: &Arc<Link>, caller: &str, call: &Call, deadline: Instant) -> Result<View, Error> {
    let header = Header {
        verb: Verb::View as u16,
        class: call.class as u8,
        trace: call.trace,
        caller: caller.to_owned(),
        ..Header::default()
    };
    let mut reply = ask::ask(link, header, &ViewBody { known: 0 }, 1, None, deadline).await?;
    let payload: ViewPayload = reply.control().await?;
    let mut view = View::default();
    for row in payload.nodes {
        let merged = view.merge(reached(row, link.target().address()));
        merged.map_err(|error| Error::new(ErrorKind::Protocol, error.to_string()))?;
    }
    Ok(view)
}

/// The row, with the host at which its sender was reached where it names none.
fn reached(mut row: NodeRow, address: &str) -> NodeRow {
    if let Some(port) = row.quic.strip_prefix("0.0.0.0:").or_else(|| row.quic.strip_prefix("[::]:")) {
        let host = host_of(address);
        row.quic = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    }
    row
}

/// The view `told`, with what is known better. A node that it does not know stays as long as it answers, and is not at another's address:
/// news of it may not have come there yet, or it was forgotten.
fn replaced(known: &View, told: View, answers: impl Fn(&NodeRow) -> bool) -> View {
    let mut view = told.clone();
    let addresses: HashSet<&str> = told.rows().map(|row| row.quic.as_str()).collect();
    let stays = |row: &NodeRow| state(row) != NodeState::Gone && !addresses.contains(row.quic.as_str()) && answers(row);
    for row in known.rows() {
        if told.node(&row.id).is_some() || stays(row) {
            // A full view takes no more.
            let _ = view.merge(row.clone());
        }
    }
    view
}

/// Nodes that are asked for the view at once, at most.
const FETCH_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn view(rows: &[(&str, u64, u8)]) -> View {
        let mut view = View::default();
        for (id, version, state) in rows {
            let quic = format!("{id}:1");
            view.merge(NodeRow { version: *version, state: *state, quic, ..NodeRow::member(id, 100) }).expect("merge");
        }
        view
    }

    /// Promise: a whole view replaces what is known, but for newer rows, and nodes that answer although it does not know them.
    #[test]
    fn whole_views_replace() {
        let mut known = view(&[("a", 5, 1), ("b", 1, 1), ("new", 1, 1), ("lost", 1, 1), ("gone", 1, 3)]);
        known.merge(NodeRow { quic: "c:1".into(), ..NodeRow::member("was-at-c", 100) }).expect("merge");
        let told = view(&[("a", 4, 1), ("b", 2, 2), ("c", 1, 1)]);
        let got = replaced(&known, told, |row| row.id != "lost");
        assert_eq!(got, view(&[("a", 5, 1), ("b", 2, 2), ("c", 1, 1), ("new", 1, 1)]));
    }

    /// Promise: a node that listens everywhere is where it was reached.
    #[test]
    fn unspecified_hosts_are_the_senders() {
        for (quic, from, want) in [
            ("0.0.0.0:5", "10.0.0.1:4433", "10.0.0.1:5"),
            ("[::]:5", "[fd00::1]:4433", "[fd00::1]:5"),
            ("10.0.0.2:5", "10.0.0.1:4433", "10.0.0.2:5"),
        ] {
            let row = NodeRow { quic: quic.into(), ..NodeRow::member("n", 100) };
            assert_eq!(reached(row, from).quic, want);
        }
    }
}
