//! What a client knows of the cluster, and whom it asks by it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Client, Inner, Tries};
use crate::error::{Error, ErrorKind};
use crate::health::Standing;
use crate::hot;
use crate::pool::{Link, Pool, Target};
use crate::route;
use crate::stats::{Counters, Stats, count};
use crate::topology::Topology;
use crate::view::{NodeState, state};
use crate::wire::{NodeRow, Via};

/// A view with its rings and links.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) topology: Topology,
    /// The view's digest, as requests carry it.
    pub(super) digest: [u8; 8],
    /// Of every node that is not gone, by name.
    links: HashMap<String, Arc<Link>>,
    members: usize,
}

/// Whom to ask.
#[derive(Clone, Debug)]
pub(super) struct Chosen {
    pub(super) link: Arc<Link>,
    pub(super) via: Via,
    /// How many items it is asked for.
    pub(super) load: usize,
}

impl Chosen {
    /// That one, whatever it serves.
    pub(super) fn only(link: Arc<Link>) -> Self {
        Self { link, via: Via::Owner, load: 1 }
    }
}

impl Known {
    pub(super) fn new(topology: Topology, pool: &Pool) -> Self {
        let rows = topology.view().rows().filter(|row| state(row) != NodeState::Gone);
        let link = |row: &NodeRow| Some((row.id.clone(), pool.link(&Target::node(&row.id, &row.quic)).ok()?));
        let links: HashMap<String, Arc<Link>> = rows.filter_map(link).collect();
        let members = topology.view().members().count();
        Self { digest: topology.view().digest().to_le_bytes(), topology, links, members }
    }

    /// How many nodes serve.
    pub(super) fn members(&self) -> usize {
        self.members
    }

    pub(super) fn link(&self, id: &str) -> Option<&Arc<Link>> {
        self.links.get(id)
    }

    /// Links of all nodes that are not gone, by name.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Link>> {
        self.topology.view().rows().filter_map(|row| self.link(&row.id))
    }

    /// Links of the members that may be asked, beginning where `random` says.
    pub(super) fn good(&self, random: u64) -> Vec<&Arc<Link>> {
        let members = self.topology.view().members().filter_map(|row| Some((row, self.link(&row.id)?)));
        let mut good: Vec<_> = members.filter(|(row, link)| link.standing(row) == Standing::Good).map(|(_, link)| link).collect();
        let middle = (random % good.len().max(1) as u64) as usize;
        good.rotate_left(middle);
        good
    }

    /// Whether another node than `link` may be asked.
    pub(super) fn elsewhere(&self, link: &Link) -> bool {
        let other = |row: &NodeRow| {
            let other = self.link(&row.id).filter(|other| other.number() != link.number());
            other.is_some_and(|other| other.standing(row) == Standing::Good)
        };
        self.topology.view().members().any(other)
    }

    /// The order of the item's key, each with its link.
    fn order(&self, tries: &Tries) -> Vec<(&NodeRow, &Arc<Link>)> {
        let order = self.topology.order(tries.key);
        order.into_iter().filter_map(|row| Some((row, self.link(&row.id)?))).collect()
    }

    fn at(order: &[(&NodeRow, &Arc<Link>)], at: usize, other: Via) -> Option<Chosen> {
        let via = if at == 0 { Via::Owner } else { other };
        order.get(at).map(|(_, link)| Chosen { link: Arc::clone(link), via, load: 1 })
    }

    /// Whom a try asks, if its key is spread over so many nodes.
    fn choose(&self, tries: &Tries, replicas: usize, random: impl FnOnce() -> u64) -> Option<Chosen> {
        if tries.is_fresh() && replicas <= 1 {
            let first = self.topology.server(tries.key)?;
            let link = self.link(&first.id)?;
            if link.standing(first) == Standing::Good {
                return Some(Chosen::only(link.clone()));
            }
        }
        let order = self.order(tries);
        let standings: Vec<Standing> = order.iter().map(|(row, link)| link.standing(row)).collect();
        if tries.is_fresh() && replicas > 1 {
            let good: Vec<usize> = (0..order.len()).filter(|&at| standings[at] == Standing::Good).take(replicas).collect();
            if !good.is_empty() {
                let at = good[hot::lesser(good.len(), random(), |at| order[good[at]].1.load())];
                return Self::at(&order, at, Via::Replica);
            }
        }
        let place = |number: Option<u64>| order.iter().position(|(_, link)| Some(link.number()) == number);
        let via = if standings.first() == Some(&Standing::Good) { Via::Failover } else { Via::Unreached };
        match place(tries.stay).filter(|&at| standings[at] == Standing::Good) {
            Some(at) => Self::at(&order, at, via),
            None => Self::at(&order, route::pick(&standings, place(tries.past))?, via),
        }
    }

    /// Whom to ask as well, where `tries` has asked `link`: a good node after it, if there is one.
    pub(super) fn beside(&self, tries: &Tries, link: &Link) -> Option<Chosen> {
        let order = self.order(tries);
        let standings: Vec<Standing> = order.iter().map(|(row, link)| link.standing(row)).collect();
        let past = order.iter().position(|(_, other)| other.number() == link.number());
        let at = route::pick(&standings, past).filter(|&at| Some(at) != past && standings[at] == Standing::Good)?;
        Self::at(&order, at, Via::Failover)
    }
}

impl Client {
    /// The node for a try, by what is known.
    pub(super) fn choose(&self, known: &Known, tries: &Tries) -> Result<Chosen, Error> {
        let Inner { pool, hot, .. } = &*self.inner;
        let replicas = if tries.is_fresh() { hot.lock().asked(tries.key, known.members()) } else { 1 };
        let chosen = known.choose(tries, replicas, || pool.random());
        let chosen = chosen.ok_or_else(|| Error::new(ErrorKind::Unavailable, "the cluster has no serving node"))?;
        match chosen.via {
            Via::Owner => {}
            Via::Failover | Via::Unreached => count(&pool.counters().failovers, 1),
            Via::Replica => count(&pool.counters().replicas, 1),
        }
        Ok(chosen)
    }

    /// What this client has counted so far.
    pub fn stats(&self) -> Stats {
        self.inner.pool.counters().stats()
    }

    pub(super) fn counters(&self) -> &Counters {
        self.inner.pool.counters()
    }

    /// What is known, as it is now.
    pub(super) fn known(&self) -> Option<Arc<Known>> {
        self.inner.known.load_full()
    }

    /// Takes up to `most` hedges out of the budget.
    pub(super) fn hedges(&self, most: usize) -> usize {
        let taken = self.inner.hedges.lock().take(most);
        self.inner.pool.counters().hedges.fetch_add(taken as u64, Ordering::Relaxed);
        taken
    }
}
