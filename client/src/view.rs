//! The view: which nodes there are. Rows are merged by the maximum of (incarnation, version), so that any order of news gives the
//! same view; there is no global epoch, and a view is named by a hash of its rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use crate::wire::{NodeRow, RAMP_FULL, ViewPayload};

/// Most nodes of one cluster that a view holds; a larger one is refused, not cut.
pub const NODES_MAX: usize = 4096;

/// State of a node, as its row says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// Not in the ring yet.
    Joining,
    /// In the ring.
    Serving,
    /// Off the ring, still answering peeks.
    Leaving,
    /// Gone.
    Gone,
}

impl NodeRow {
    /// The row of a settled member of that weight, in hundredths, without an address.
    pub fn member(id: &str, weight: u32) -> Self {
        Self {
            id: id.into(),
            quic: String::new(),
            weight,
            held_weight: weight,
            incarnation: 1,
            version: 1,
            state: 1,
            ramp: RAMP_FULL,
            settled: true,
            roles: vec!["cache".into(), "decode".into()],
            ext: Vec::new(),
        }
    }
}

/// Whether it owns keys.
pub(crate) fn caches(row: &NodeRow) -> bool {
    row.roles.iter().any(|role| role == "cache")
}

/// The state of a row; an unknown number is gone.
pub fn state(row: &NodeRow) -> NodeState {
    match row.state {
        0 => NodeState::Joining,
        1 => NodeState::Serving,
        2 => NodeState::Leaving,
        _ => NodeState::Gone,
    }
}

/// The nodes of a cluster, by name. A clone shares the rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct View {
    rows: BTreeMap<String, Arc<NodeRow>>,
}

/// A view that is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("view of more than {NODES_MAX} nodes")]
pub struct TooManyNodes;

impl View {
    /// Takes in `row` if it is newer than what is known of that node; whether it was.
    pub fn merge(&mut self, row: NodeRow) -> Result<bool, TooManyNodes> {
        match self.rows.get(&row.id) {
            Some(old) if (old.incarnation, old.version) >= (row.incarnation, row.version) => Ok(false),
            None if self.rows.len() >= NODES_MAX => Err(TooManyNodes),
            _ => {
                self.rows.insert(row.id.clone(), Arc::new(row));
                Ok(true)
            }
        }
    }

    /// Every row, by name.
    pub fn rows(&self) -> impl Iterator<Item = &NodeRow> {
        self.rows.values().map(|row| &**row)
    }

    /// The rows whose nodes are in the ring: those that serve, and have the role `cache`.
    pub fn members(&self) -> impl Iterator<Item = &NodeRow> {
        self.rows().filter(|row| state(row) == NodeState::Serving && caches(row))
    }

    /// The rows whose nodes decode for others.
    pub fn decoders(&self) -> impl Iterator<Item = &NodeRow> {
        self.rows().filter(|row| state(row) == NodeState::Serving && row.roles.iter().any(|role| role == "decode"))
    }

    /// The row of that node.
    pub fn node(&self, id: &str) -> Option<&NodeRow> {
        self.rows.get(id).map(|row| &**row)
    }

    /// The same, shared.
    pub(crate) fn shared(&self, id: &str) -> Option<&Arc<NodeRow>> {
        self.rows.get(id)
    }

    /// Hash of every row's name, incarnation and version: two views with the same digest say the same of every node that is there.
    /// Nodes that have gone do not count, since their rows are forgotten in the end, here sooner than there.
    pub fn digest(&self) -> u64 {
        let mut text = Vec::new();
        for row in self.rows().filter(|row| state(row) != NodeState::Gone) {
            text.extend_from_slice(&(row.id.len() as u32).to_le_bytes());
            text.extend_from_slice(row.id.as_bytes());
            text.extend_from_slice(&row.incarnation.to_le_bytes());
            text.extend_from_slice(&row.version.to_le_bytes());
        }
        xxh3_64(&text)
    }

    /// As a reply says it.
    pub fn payload(&self) -> ViewPayload {
        ViewPayload { view_id: self.digest(), nodes: self.rows().cloned().collect() }
    }

    /// The rows that are newer than in `old`.
    pub fn since<'a>(&'a self, old: &'a View) -> impl Iterator<Item = &'a NodeRow> {
        let newer =
            |row: &&NodeRow| old.node(&row.id).is_none_or(|old| (old.incarnation, old.version) < (row.incarnation, row.version));
        self.rows().filter(newer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: &str, incarnation: u64, version: u64, state: u8) -> NodeRow {
        NodeRow { quic: "127.0.0.1:1".into(), incarnation, version, state, ..NodeRow::member(id, 100) }
    }

    /// Promise: any order of the same news gives the same view.
    #[test]
    fn merge_is_by_maximum() {
        let news = [row("a", 1, 1, 0), row("a", 1, 2, 1), row("a", 2, 0, 0), row("b", 5, 5, 1)];
        let view = |order: &[usize]| {
            let mut view = View::default();
            for &i in order {
                view.merge(news[i].clone()).expect("merge");
            }
            view
        };
        assert_eq!(view(&[0, 1, 2, 3]), view(&[3, 2, 1, 0]));
        assert_eq!(view(&[2, 1]).node("a").map(|r| r.incarnation), Some(2));
        assert_ne!(view(&[1]).digest(), view(&[1, 3]).digest());
        assert_eq!(view(&[0]).members().count(), 0);
    }

    /// Promise: a hostile view cannot grow without bound.
    #[test]
    fn view_is_bounded() {
        let mut view = View::default();
        for i in 0..NODES_MAX {
            view.merge(row(&i.to_string(), 1, 1, 1)).expect("merge");
        }
        assert_eq!(view.merge(row("one more", 1, 1, 1)), Err(TooManyNodes));
    }
}
