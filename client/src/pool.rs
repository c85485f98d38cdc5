//! Connections: one for each node, made when first needed, shared by all requests, made anew when it broke.

mod dialer;
mod link;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::error::{Error, ErrorKind};
use crate::quic::Ground;
use crate::stats::Counters;
use crate::tls::TlsFiles;
use crate::view::{NodeState, View, state};
use dialer::Dialer;
pub(crate) use link::{Kind, Link, Pending};

/// Most nodes that one client is connected to; a view holds no more.
const CONNECTIONS_MAX: usize = crate::view::NODES_MAX;

/// Whom a connection leads to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Target {
    /// The node's name; none for a seed, which is known by its address alone.
    node: Option<String>,
    address: String,
}

impl Target {
    pub(crate) fn node(id: &str, address: &str) -> Self {
        Self { node: Some(id.to_owned()), address: address.to_owned() }
    }

    pub(crate) fn seed(address: &str) -> Self {
        Self { node: None, address: address.to_owned() }
    }

    /// For messages: the node's name, or where it is.
    pub(crate) fn name(&self) -> &str {
        self.node.as_deref().unwrap_or(&self.address)
    }

    /// `host:port`.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Whether it is a node of `view` that is not gone.
    pub(crate) fn is_in(&self, view: &View) -> bool {
        let row = self.node.as_ref().and_then(|id| view.node(id));
        row.is_some_and(|row| row.quic == self.address && state(row) != NodeState::Gone)
    }

    /// What its certificate must be of, one of these.
    fn names(&self, by: Naming) -> Vec<&str> {
        match (&self.node, by) {
            (None, _) => vec![host_of(&self.address)],
            (Some(id), Naming::Id) => vec![id],
            (Some(id), Naming::IdOrHost) => vec![id, host_of(&self.address)],
        }
    }
}

/// By what a node of the view is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Naming {
    /// By its name alone: among nodes.
    Id,
    /// By its name, or by the host of its address: for a loader, whose operator may have made certificates of hosts.
    IdOrHost,
}

/// Connections of one client. Everything ends with it.
#[derive(Debug)]
pub(crate) struct Pool {
    dialer: Arc<Dialer>,
    links: Mutex<BTreeMap<Target, Arc<Link>>>,
    numbers: AtomicU64,
}

impl Pool {
    pub(crate) fn new(tls: TlsFiles, naming: Naming, memory: u64, ground: Arc<dyn Ground>) -> Self {
        let dialer = Arc::new(Dialer::new(tls, naming, memory, ground));
        Self { dialer, links: Mutex::default(), numbers: AtomicU64::new(0) }
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.dialer.counters
    }

    /// Uniform bits.
    pub(crate) fn random(&self) -> u64 {
        self.dialer.random()
    }

    /// The link to `target`.
    pub(crate) fn link(&self, target: &Target) -> Result<Arc<Link>, Error> {
        let mut links = self.links.lock();
        if let Some(link) = links.get(target) {
            return Ok(link.clone());
        }
        if links.len() >= CONNECTIONS_MAX {
            // Of nodes that came and went, only the living matter.
            links.retain(|_, link| link.is_connected());
        }
        if links.len() >= CONNECTIONS_MAX {
            return Err(unavailable(format!("more than {CONNECTIONS_MAX} nodes")));
        }
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let link = Link::new(number, target.clone(), self.dialer.clone());
        links.insert(target.clone(), link.clone());
        Ok(link)
    }

    /// The link to `target`, if there is one.
    pub(crate) fn known(&self, target: &Target) -> Option<Arc<Link>> {
        self.links.lock().get(target).cloned()
    }

    /// Forgets the others. Their connections end when nobody waits on them any more.
    pub(crate) fn retain(&self, keep: impl Fn(&Target) -> bool) {
        self.links.lock().retain(|target, _| keep(target));
    }

    /// Gives the connection that was made to a seed to the node which has that address, so that it is not connected to twice.
    pub(crate) fn adopt(&self, node: &Link) {
        let seed = self.links.lock().remove(&Target::seed(node.target().address()));
        if let Some(seed) = seed {
            node.adopt(&seed);
        }
    }

    /// Says whether there is more than one node to ask: where there is, none is waited for long.
    pub(crate) fn set_elsewhere(&self, elsewhere: bool) {
        self.dialer.set_elsewhere(elsewhere);
    }

    /// Closes every connection, and waits until the peers know, at most `wait`.
    pub(crate) async fn close(&self, wait: Duration) {
        let links = std::mem::take(&mut *self.links.lock());
        links.values().for_each(|link| link.shut());
        self.dialer.close(wait).await;
    }
}

fn unavailable(message: String) -> Error {
    Error::new(ErrorKind::Unavailable, message)
}

/// The host of `host:port` or `[v6]:port`.
pub(crate) fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the host is found in every form of an address.
    #[test]
    fn hosts() {
        assert_eq!([host_of("a.b:1"), host_of("127.0.0.1:1"), host_of("[::1]:1")], ["a.b", "127.0.0.1", "::1"]);
    }

    /// Promise: a node is known by its name, a seed by its host; only loaders take a node's host for its name.
    #[test]
    fn names_of_targets() {
        let (node, seed) = (Target::node("n-1", "10.0.0.1:4433"), Target::seed("10.0.0.1:4433"));
        assert_eq!(node.names(Naming::Id), ["n-1"]);
        assert_eq!(node.names(Naming::IdOrHost), ["n-1", "10.0.0.1"]);
        assert_eq!([seed.names(Naming::Id), seed.names(Naming::IdOrHost)], [["10.0.0.1"], ["10.0.0.1"]]);
    }
}
