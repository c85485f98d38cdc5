//! Who is in the cluster: from what nodes say of themselves and of each other to the view that is published. Values in, values out.
//!
//! * A row counts once its node has proved by certificate that it is called so, for one life (incarnation) at one address; until
//!   then the last one that counted stands, and hears on. Whoever has the cluster's key alone can make nobody believe in a node.
//!   Rows are not signed, so it can speak in a node's name for seconds: the node sees that and lives anew ([`super::own`]).
//! * Lives that begin more than [`AHEAD`] from now are no lives: so there is always room for a later one above a forged one.
//! * A node is lost when more than half of the live others cannot hear it. Live others are this node and those that count, are not
//!   lost themselves, and are heard here; so the only other's word is enough, a link that is cut between two of three is not, and
//!   each side of a partition goes on by itself.
//! * A lost node is published as its last row with the version above and the state gone, until it says more itself. Who holds a node
//!   for gone keeps accusing it, and its pings say so: the node refutes, with a newer row. So a judgement that not everybody shares
//!   ends, and views agree again.
//! * Two lives of one name: the later start has the name, since that is how rows merge, at clients too. See [`Membership::rival`].
//! * Who is gone stays in the view for [`GONE_KEPT_S`], so that whoever asks for news learns of it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;

use framecache::View;
use framecache::view::{NODES_MAX, NodeState, state};
use framecache::wire::NodeRow;

use super::clocks::{Heard, Life, Target};
use super::own::number;
use super::rumour::{Gone, Rumour, liveness_of};

/// Seconds that a gone node stays in the view: a client that was away for longer asks for the whole view.
const GONE_KEPT_S: u64 = 600;

/// A clock may be wrong by that much: a day, as for certificates. Whoever is further ahead is not heard, in ms.
const AHEAD: u64 = 24 * 3600 * 1000;

/// How far apart the clocks of two nodes may be so that a life above any that was heard is heard everywhere, in ms: a later life of our
/// own name is heard for as much longer, and answered by as much later.
const SKEW: u64 = 5000;

/// What this node knows of the others.
#[derive(Debug)]
pub(super) struct Membership {
    me: String,
    entries: BTreeMap<String, Entry>,
}

#[derive(Debug)]
struct Entry {
    /// Its newest statement.
    stated: NodeRow,
    gossip: SocketAddr,
    /// Its newest statement that counts.
    counted: Option<NodeRow>,
    /// What it says of others.
    rumour: Rumour,
    /// Since when it is held for gone, by us or by its own last word.
    gone: Option<Gone>,
}

/// What came of judging.
#[derive(Debug)]
pub(super) struct Judged {
    pub(super) view: View,
    /// Nodes that were lost just now.
    pub(super) lost: Vec<String>,
}

impl Membership {
    /// Of the node called `me`.
    pub(super) fn new(me: &str) -> Self {
        Self { me: me.into(), entries: BTreeMap::new() }
    }

    /// Whether that life may have begun, by our clock.
    pub(super) fn is_due(&self, row: &NodeRow, unix_ms: u64) -> bool {
        let skew = if row.id == self.me { SKEW } else { 0 };
        row.incarnation <= unix_ms.saturating_add(AHEAD + skew)
    }

    /// A node said this, or somebody passed it on. False if there are too many nodes.
    pub(super) fn hear(&mut self, row: NodeRow, rumour: Rumour, gossip: SocketAddr) -> bool {
        if !self.entries.contains_key(&row.id) && self.entries.len() >= NODES_MAX {
            return false;
        }
        let entry = self.entries.entry(row.id.clone()).or_insert_with(|| Entry {
            stated: row.clone(),
            gossip,
            counted: None,
            rumour: Rumour::default(),
            gone: None,
        });
        let counted = entry.counted.as_ref().filter(|counted| proof(counted) == proof(&row));
        let (counts, newer) = (counted.is_some(), counted.is_some_and(|counted| age(&row) > age(counted)));
        let newest = age(&row) >= age(&entry.stated);
        // A later life without proof hides nothing that the one which counts says.
        if newest || newer {
            (entry.gossip, entry.rumour) = (gossip, rumour);
        }
        if newer || (newest && counts) {
            entry.counted = Some(row.clone());
        }
        if newest {
            entry.stated = row;
        }
        true
    }

    /// Forgets those of whom gossip tells no more.
    pub(super) fn keep(&mut self, told_of: &BTreeSet<String>) {
        self.entries.retain(|id, _| told_of.contains(id));
    }

    /// The statements that wait for a proof.
    pub(super) fn unproved(&self) -> impl Iterator<Item = &NodeRow> {
        let waits = |entry: &&Entry| {
            let counts = entry.counted.as_ref().is_some_and(|counted| proof(counted) == proof(&entry.stated));
            !counts && state(&entry.stated) != NodeState::Gone
        };
        self.entries.values().filter(waits).map(|entry| &entry.stated)
    }

    /// The node has proved that it is the life that `row` tells of, at that address.
    pub(super) fn prove(&mut self, row: &NodeRow) {
        if let Some(entry) = self.entries.get_mut(&row.id).filter(|entry| proof(&entry.stated) == proof(row)) {
            entry.counted = Some(entry.stated.clone());
        }
    }

    /// A life of our own name that began later by the clock: its row, and whether it is heard. One that is over is told of when a
    /// still later one would be heard by everybody.
    ///
    /// The later start has the name. If that life is over (a predecessor whose clock went wrong), this node takes the name back with
    /// a still later incarnation. If it is not, two nodes are configured with one name: this one, which started earlier, yields, and
    /// says so loudly, but stays; when the other is gone it is back. Were it the other way round, every restart would have to wait
    /// until its predecessor is known to be dead.
    pub(super) fn rival(&self, own: &NodeRow, heard: &Heard, unix_ms: u64) -> Option<(&NodeRow, bool)> {
        let rival = &self.entries.get(&self.me)?.stated;
        let lives =
            state(rival) != NodeState::Gone && proof(rival).2 != proof(own).2 && !heard.is_silent(&life(rival), rival.version);
        let answered = lives || rival.incarnation <= unix_ms.saturating_add(AHEAD - SKEW);
        (rival.incarnation > own.incarnation && answered).then_some((rival, lives))
    }

    /// The newest version of `own` at which anybody who counts holds it for gone.
    pub(super) fn told_gone(&self, own: &NodeRow) -> Option<u64> {
        let of_own = |gone: &&Gone| gone.life() == (self.me.as_str(), own.incarnation);
        self.counted().flat_map(|(_, entry)| entry.rumour.gone.iter().filter(of_own)).map(|gone| gone.version).max()
    }

    /// Judges who is lost by what is heard, and says what the view is.
    pub(super) fn judge(&mut self, own: &NodeRow, heard: &Heard, unix_s: u64) -> Judged {
        let lost = self.lose(heard, unix_s);
        let mut view = View::default();
        // The own row is the first: it is never the one for which there is no room.
        let mut rows = vec![own.clone()];
        let holds = self.holders_of_unproved();
        let mut gone = Vec::new();
        for entry in self.entries.values_mut() {
            match entry.publish(holds.get(entry.stated.id.as_str()), unix_s) {
                Some(row) if state(&row) == NodeState::Gone => gone.push(row),
                Some(row) => rows.push(row),
                None => {}
            }
        }
        for row in rows.into_iter().chain(gone) {
            // Entries are as many as a view holds; with the own row it may be one too many, and that is a gone one.
            let _ = view.merge(row);
        }
        Judged { view, lost }
    }

    /// Whom to listen to: every life that is told of, and the one that counts where it is another.
    pub(super) fn targets(&self, own: &NodeRow) -> Vec<Target> {
        let mut targets = Vec::new();
        for entry in self.entries.values() {
            let counted = entry.counted.as_ref().filter(|counted| counted.incarnation != entry.stated.incarnation);
            for row in counted.into_iter().chain([&entry.stated]) {
                let Some(address) = liveness_of(row) else { continue };
                if row.id == own.id && row.incarnation <= own.incarnation {
                    continue;
                }
                targets.push(Target {
                    life: life(row),
                    version: row.version,
                    address,
                    gone: entry.holds_gone(row),
                    pinged: state(row) != NodeState::Gone,
                    counts: entry.counted.as_ref().is_some_and(|counted| proof(counted) == proof(row)),
                });
            }
        }
        targets
    }

    /// What this node says of the others.
    pub(super) fn rumour(&self, heard: &Heard) -> Rumour {
        let held = self.entries.values().filter(|entry| entry.counted.as_ref().is_some_and(|row| entry.holds_gone(row)));
        let gone: Vec<Gone> = held.filter_map(|entry| entry.gone.clone()).collect();
        let told = |life: &Life| life.0 == self.me || gone.iter().any(|gone| gone.life() == (life.0.as_str(), life.1));
        let silent = heard.silent.iter().filter(|(life, _)| !told(life)).map(|(life, since)| (life.0.clone(), life.1, *since));
        let silent = silent.collect();
        Rumour { silent, gone }.bounded()
    }

    /// Where those gossip that count and are not gone, or for want of such all that are told of.
    pub(super) fn gossips(&self) -> Vec<SocketAddr> {
        let here = |(_, entry): &(&Row, &Entry)| !entry.is_gone();
        let counted: Vec<_> = self.counted().filter(here).map(|(_, entry)| entry.gossip).collect();
        if counted.is_empty() { self.entries.values().map(|entry| entry.gossip).collect() } else { counted }
    }

    /// Where that node gossips.
    pub(super) fn gossip_of(&self, id: &str) -> Option<SocketAddr> {
        self.entries.get(id).map(|entry| entry.gossip)
    }

    /// Those that count, are not gone and are heard: who has to know of what happens.
    pub(super) fn live<'a>(&'a self, heard: &'a Heard) -> impl Iterator<Item = &'a str> {
        let live = |(row, entry): &(&Row, &Entry)| !entry.is_gone() && !heard.is_silent(&life(row), row.version);
        self.counted().filter(live).map(|(row, _)| row.id.as_str())
    }

    /// All others that count.
    fn counted(&self) -> impl Iterator<Item = (&Row, &Entry)> {
        let others = self.entries.iter().filter(|(id, _)| **id != self.me);
        others.filter_map(|(_, entry)| Some((entry.counted.as_ref()?, entry)))
    }

    /// Marks whom more than half of the live others cannot hear.
    fn lose(&mut self, heard: &Heard, unix_s: u64) -> Vec<String> {
        let witnesses: BTreeSet<&str> = self.live(heard).collect();
        let mut accusers: HashMap<&str, usize> = HashMap::new();
        for witness in witnesses.iter().filter_map(|id| self.entries.get(*id)) {
            let silent = witness.rumour.silent.iter().map(|(id, incarnation, version)| (id, *incarnation, *version));
            let gone = witness.rumour.gone.iter().map(|gone| (&gone.id, gone.incarnation, gone.version));
            for (id, incarnation, version) in silent.chain(gone) {
                // What accuses an older row has been answered by the newer one.
                let counted = self.entries.get(id).and_then(|entry| entry.counted.as_ref());
                if counted.is_some_and(|row| row.incarnation == incarnation && row.version <= version) {
                    *accusers.entry(id).or_default() += 1;
                }
            }
        }
        let mut lost = Vec::new();
        for (row, entry) in self.counted() {
            let own_word = usize::from(heard.is_silent(&life(row), row.version));
            let accusers = own_word + accusers.get(row.id.as_str()).copied().unwrap_or(0);
            let others = 1 + witnesses.len() - usize::from(witnesses.contains(row.id.as_str()));
            if !entry.is_gone() && is_lost(accusers, others) {
                lost.push(row.id.clone());
            }
        }
        for id in &lost {
            if let Some(entry) = self.entries.get_mut(id) {
                entry.gone = entry.counted.as_ref().map(|row| Gone::at(row, unix_s));
            }
        }
        lost
    }

    /// Those without proof that somebody who counts holds for gone: whoever comes late can have no other proof of their end.
    fn holders_of_unproved(&self) -> HashMap<String, Gone> {
        let mut holds = HashMap::new();
        for gone in self.counted().flat_map(|(_, entry)| &entry.rumour.gone) {
            let entry = self.entries.get(&gone.id).filter(|entry| entry.counted.is_none());
            if entry.is_some_and(|entry| gone.is_of(&entry.stated)) {
                holds.insert(gone.id.clone(), gone.clone());
            }
        }
        holds
    }
}

type Row = NodeRow;

impl Entry {
    /// The row that the view has of it, if any. `held` is another's word that it is gone, where we have no own.
    fn publish(&mut self, held: Option<&Gone>, unix_s: u64) -> Option<NodeRow> {
        let row = match &self.counted {
            Some(counted) => counted.clone(),
            None if state(&self.stated) == NodeState::Gone => self.stated.clone(),
            None => {
                self.gone = Some(held?.clone());
                self.stated.clone()
            }
        };
        if state(&row) == NodeState::Gone {
            // Its own last word: how long ago that was is known from here on only.
            if !self.gone.as_ref().is_some_and(|gone| gone.is_of(&row)) {
                self.gone = Some(Gone::at(&row, unix_s));
            }
            return self.is_kept(unix_s).then_some(row);
        }
        if !self.holds_gone(&row) {
            return Some(row);
        }
        let version = row.version.saturating_add(1);
        self.is_kept(unix_s).then_some(NodeRow { version, state: number(NodeState::Gone), ..row })
    }

    /// Whether we hold it for gone at what it said in `row`.
    fn holds_gone(&self, row: &NodeRow) -> bool {
        state(row) != NodeState::Gone && self.gone.as_ref().is_some_and(|gone| gone.is_of(row))
    }

    fn is_gone(&self) -> bool {
        self.counted.as_ref().is_some_and(|row| state(row) == NodeState::Gone || self.holds_gone(row))
    }

    fn is_kept(&self, unix_s: u64) -> bool {
        self.gone.as_ref().is_some_and(|gone| unix_s < gone.since_s.saturating_add(GONE_KEPT_S))
    }
}

/// Whether a node of which that many of that many live others say that they cannot hear it is lost.
fn is_lost(accusers: usize, others: usize) -> bool {
    accusers * 2 > others
}

fn age(row: &NodeRow) -> (u64, u64) {
    (row.incarnation, row.version)
}

fn life(row: &NodeRow) -> Life {
    (row.id.clone(), row.incarnation)
}

/// What a certificate proves: this life of this node, at this address.
fn proof(row: &NodeRow) -> (&str, u64, &str) {
    (&row.id, row.incarnation, &row.quic)
}

#[cfg(test)]
#[path = "membership_tests.rs"]
mod tests;
