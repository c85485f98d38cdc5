//! Who serves a key, and who may hold it: a [`View`] and its rings, made once for each view, off the request path.
//!
//! Two rings, because a key moves before its bytes do. The *serving* ring is of the members; by it clients ask. The *holding* ring also
//! has the nodes that leave, and a weight that shrank as it was: by it a node that lacks a key finds out who had it before. Where
//! nobody leaves or shrinks they are the same ring.

use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::object::RouteKey;
use crate::ring::Ring;
use crate::view::{NodeState, View, caches, state};
use crate::wire::{NodeRow, RAMP_FULL};

/// Most nodes that are asked whether they hold what is missing.
pub const PEEKS_MAX: usize = 3;

/// Apart from the ring's own hash, so that the keys that a newcomer does not serve yet are spread over all of its arcs.
const RAMP_SEED: u64 = 0x7261_6d70;

/// A view with its rings.
#[derive(Debug)]
pub struct Topology {
    view: View,
    serving: Arc<Ring>,
    holding: Arc<Ring>,
}

impl Topology {
    /// The rings of `view`. Takes a millisecond for each ten nodes: not for the request path.
    pub fn new(view: View) -> Self {
        Self::after(view, None)
    }

    /// The same, with the rings of `before` where they did not change.
    pub fn after(view: View, before: Option<&Topology>) -> Self {
        let unchanged = before.filter(|before| before.view.members().map(share).eq(view.members().map(share)));
        let serving = unchanged.map_or_else(|| Arc::new(Ring::new(&view)), |before| before.serving.clone());
        let same = holders(&view).eq(view.members().map(share));
        let holding = if same { serving.clone() } else { Arc::new(Ring::of(holders(&view))) };
        Self { view, serving, holding }
    }

    /// The view that it was made of.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Every member in the order of the ring, the owner of `key` first.
    pub fn walk(&self, key: RouteKey) -> impl Iterator<Item = &NodeRow> {
        self.serving.walk(key).filter_map(|id| self.view.node(id))
    }

    /// Every member in the order in which they are asked for `key`: as the walk, but newcomers that do not serve the key yet stand
    /// behind the first node that does.
    pub fn order(&self, key: RouteKey) -> Vec<&NodeRow> {
        let mut order: Vec<&NodeRow> = self.walk(key).collect();
        if let Some(first) = order.iter().position(|row| covers(row, key)) {
            order[..=first].rotate_right(1);
        }
        order
    }

    /// The node that serves `key`, and resolves what is current of it. `None` in a view without members.
    pub fn server(&self, key: RouteKey) -> Option<&NodeRow> {
        let mut walk = self.walk(key);
        let owner = walk.next()?;
        if covers(owner, key) {
            return Some(owner);
        }
        walk.find(|row| covers(row, key)).or(Some(owner))
    }

    /// Nodes that may hold `key` where `without` does not, the likeliest first: the walk over all that hold something, up to and
    /// with the first one that is settled, at most [`PEEKS_MAX`].
    pub fn holders(&self, key: RouteKey, without: &str) -> Vec<&NodeRow> {
        let mut found = Vec::new();
        for row in self.holding.walk(key).filter_map(|id| self.view.node(id)).filter(|row| row.id != without) {
            found.push(row);
            if row.settled || found.len() == PEEKS_MAX {
                break;
            }
        }
        found
    }
}

fn share(row: &NodeRow) -> (&str, u32) {
    (&row.id, row.weight)
}

/// All that hold something, each with the largest weight that it had of late.
fn holders(view: &View) -> impl Iterator<Item = (&str, u32)> {
    let holds = |row: &&NodeRow| matches!(state(row), NodeState::Serving | NodeState::Leaving) && caches(row);
    view.rows().filter(holds).map(|row| (row.id.as_str(), row.weight.max(row.held_weight)))
}

/// Whether `row` serves `key` by now, if it is the key's owner.
fn covers(row: &NodeRow, key: RouteKey) -> bool {
    (xxh3_64_with_seed(&key.0.to_le_bytes(), RAMP_SEED) % u64::from(RAMP_FULL)) < u64::from(row.ramp)
}

#[cfg(test)]
mod tests {
    use super::*;
    use xxhash_rust::xxh3::xxh3_64;

    fn topology(rows: impl IntoIterator<Item = NodeRow>) -> Topology {
        let mut view = View::default();
        for row in rows {
            view.merge(row).expect("merge");
        }
        Topology::new(view)
    }

    fn settled(n: usize) -> Vec<NodeRow> {
        (0..n).map(|index| NodeRow::member(&format!("old-{index}"), 100)).collect()
    }

    fn fresh(index: usize, ramp: u16) -> NodeRow {
        NodeRow { ramp, settled: false, ..NodeRow::member(&format!("new-{index}"), 100) }
    }

    fn keys() -> impl Iterator<Item = RouteKey> {
        (0..2000u64).map(|i| RouteKey(xxh3_64(&i.to_le_bytes())))
    }

    fn ids(rows: &[&NodeRow]) -> Vec<String> {
        rows.iter().map(|row| row.id.clone()).collect()
    }

    /// Promise: a newcomer serves as much of its share as its ramp says; the rest stays where it was, and no node is asked twice.
    #[test]
    fn a_newcomer_takes_over_by_its_ramp() {
        let before = topology(settled(3));
        for (ramp, least, most) in [(0, 0.0, 0.0), (64, 0.2, 0.3), (RAMP_FULL, 1.0, 1.0)] {
            let after = topology(settled(3).into_iter().chain([fresh(0, ramp)]));
            let (mut owned, mut served) = (0, 0);
            for key in keys() {
                let (owner, order) = (after.walk(key).next().expect("owner"), after.order(key));
                assert_eq!(after.server(key).map(|row| &row.id), Some(&order[0].id));
                let mut all = ids(&order);
                all.sort();
                assert_eq!(all, ["new-0", "old-0", "old-1", "old-2"]);
                if owner.id == "new-0" {
                    owned += 1;
                    served += u32::from(order[0].id == "new-0");
                    assert!(order[0].id == "new-0" || Some(order[0]) == before.server(key), "only the old owner stands in");
                    assert!(order[0].id == "new-0" || order[1].id == "new-0", "the owner comes next");
                } else {
                    assert_eq!(Some(order[0]), before.server(key), "other keys stay");
                }
            }
            let share = f64::from(served) / f64::from(owned);
            assert!((least..=most).contains(&share), "ramp {ramp}: {share}");
        }
    }

    /// Promise: in a cluster that starts whole, nobody waits for anybody: each key has its owner at once.
    #[test]
    fn a_new_cluster_serves_at_once() {
        let all = topology((0..3).map(|index| fresh(index, 0)));
        for key in keys() {
            assert_eq!(all.server(key), all.walk(key).next());
            assert_eq!(all.order(key)[0], all.walk(key).next().expect("owner"));
        }
        assert_eq!(topology([]).server(RouteKey(1)), None);
    }

    /// Promise: whoever held a key before one change, or three joins in a row, is on its new owner's list; the list is short.
    #[test]
    fn who_held_it_is_asked() {
        let before = topology(settled(3));
        let leaving = |id: &str| {
            settled(3)
                .into_iter()
                .map(move |row| if row.id == id { NodeRow { state: 2, ..row } } else { row })
                .collect::<Vec<_>>()
        };
        let lighter =
            settled(3).into_iter().map(|row| if row.id == "old-1" { NodeRow { weight: 20, ..row } } else { row }).collect();
        let heavier =
            settled(3).into_iter().map(|row| if row.id == "old-1" { NodeRow { weight: 300, ..row } } else { row }).collect();
        let changes: [(&str, Vec<NodeRow>); 6] = [
            ("a join", settled(3).into_iter().chain([fresh(0, RAMP_FULL)]).collect()),
            ("three joins", settled(3).into_iter().chain((0..3).map(|index| fresh(index, RAMP_FULL))).collect()),
            ("a leave", leaving("old-2")),
            ("a leave and a join", leaving("old-2").into_iter().chain([fresh(0, RAMP_FULL)]).collect()),
            ("a weight down", lighter),
            ("a weight up", heavier),
        ];
        for (change, rows) in changes {
            let after = topology(rows);
            let mut moved = 0;
            for key in keys() {
                let (held, serves) = (before.server(key).expect("member"), after.server(key).expect("member"));
                let asked = ids(&after.holders(key, &serves.id));
                assert!(asked.len() <= PEEKS_MAX && !asked.contains(&serves.id));
                moved += u32::from(held.id != serves.id);
                assert!(held.id == serves.id || asked.contains(&held.id), "{change}: {} held it, {asked:?} are asked", held.id);
            }
            assert!(moved > 100, "{change}: {moved} keys moved");
        }
    }

    /// Promise: a settled cluster asks one other node about what is missing, and rings are made again only for another ring.
    #[test]
    fn settled_clusters_ask_one() {
        let all = topology(settled(5));
        assert!(keys().all(|key| all.holders(key, &all.server(key).expect("member").id).len() == 1));
        let mut view = all.view().clone();
        assert!(view.merge(NodeRow { version: 2, ramp: 3, ..NodeRow::member("old-0", 100) }).expect("merge"));
        let next = Topology::after(view.clone(), Some(&all));
        assert!(Arc::ptr_eq(&next.serving, &all.serving) && Arc::ptr_eq(&next.holding, &all.serving));
        assert!(view.merge(NodeRow { version: 3, weight: 50, ..NodeRow::member("old-0", 100) }).expect("merge"));
        let next = Topology::after(view, Some(&next));
        assert!(!Arc::ptr_eq(&next.serving, &all.serving) && !Arc::ptr_eq(&next.holding, &next.serving));
    }
}
