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

/// Most nodes that are asked for one key: who failed at as many gives up. To put all of a thousand in order takes 1.4 ms, sixteen 6 µs.
pub const ORDER_MAX: usize = 16;

/// A view with its rings.
#[derive(Debug)]
pub struct Topology {
    view: View,
    serving: Placed,
    holding: Placed,
    /// The largest ramp of a member: keys whose turn is later have their owners at once.
    ramp_max: u64,
}

/// A ring, with its nodes' rows by their numbers in it.
#[derive(Clone, Debug)]
struct Placed {
    ring: Arc<Ring>,
    rows: Vec<Arc<NodeRow>>,
}

impl Topology {
    /// The rings of `view`. Takes 25 ms at a thousand nodes, 200 at most: not for the request path.
    pub fn new(view: View) -> Self {
        Self::after(view, None)
    }

    /// The same, with the rings of `before` where they did not change.
    pub fn after(view: View, before: Option<&Topology>) -> Self {
        let serving = before.filter(|before| members(&before.view).eq(members(&view)));
        let serving = serving.map_or_else(|| Arc::new(Ring::of(members(&view))), |before| before.serving.ring.clone());
        let holding = before.filter(|before| holders(&before.view).eq(holders(&view)));
        let holding = match holders(&view).eq(members(&view)) {
            true => serving.clone(),
            false => holding.map_or_else(|| Arc::new(Ring::of(holders(&view))), |before| before.holding.ring.clone()),
        };
        let ramp_max = view.members().map(|row| u64::from(row.ramp)).max().unwrap_or(0);
        Self { serving: Placed::new(serving, &view), holding: Placed::new(holding, &view), ramp_max, view }
    }

    /// The view that it was made of.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Every member in the order of the ring, the owner of `key` first.
    pub fn walk(&self, key: RouteKey) -> impl Iterator<Item = &NodeRow> {
        self.serving.walk(key)
    }

    /// The members in the order in which they are asked for `key`, at most [`ORDER_MAX`]: as the walk, but newcomers that do not serve
    /// the key yet stand behind the first node that does.
    pub fn order(&self, key: RouteKey) -> Vec<&NodeRow> {
        let turn = turn(key);
        let mut first = (turn >= self.ramp_max).then_some(0);
        let mut order = Vec::with_capacity(ORDER_MAX.min(self.serving.rows.len()));
        for row in self.walk(key) {
            if first.is_none() && turn < u64::from(row.ramp) {
                first = Some(order.len());
            }
            order.push(row);
            if first.is_some() && order.len() >= ORDER_MAX {
                break;
            }
        }
        if let Some(first) = first.filter(|first| *first < order.len()) {
            order[..=first].rotate_right(1);
        }
        order.truncate(ORDER_MAX);
        order
    }

    /// The node that serves `key`, and resolves what is current of it. `None` in a view without members. Walks, and allocates, only
    /// where the owner does not serve the key yet.
    pub fn server(&self, key: RouteKey) -> Option<&NodeRow> {
        let owner = &self.serving.rows[self.serving.ring.owner_number(key)?];
        let turn = turn(key);
        if turn < u64::from(owner.ramp) || turn >= self.ramp_max {
            return Some(owner);
        }
        self.walk(key).find(|row| turn < u64::from(row.ramp)).or(Some(owner))
    }

    /// Nodes that may hold `key` where `without` does not, the likeliest first: the walk over all that hold something, until all have come
    /// that clients ask up to and with the first settled one; at most [`PEEKS_MAX`]. One that leaves, or was heavier once, ends nothing:
    /// what was first read since is not with it.
    pub fn holders(&self, key: RouteKey, without: &str) -> Vec<&NodeRow> {
        let mut awaited: Vec<&NodeRow> = self.serving.walk(key).filter(|row| row.id != without).take(PEEKS_MAX).collect();
        // Where clients ask nobody that is settled, whoever leaves may hold it, too.
        let ends = awaited.iter().position(|row| row.settled);
        awaited.truncate(ends.map_or(PEEKS_MAX, |settled| settled + 1));
        let mut found = Vec::new();
        for row in self.holding.walk(key).filter(|row| row.id != without) {
            awaited.retain(|other| other.id != row.id);
            found.push(row);
            if (ends.is_some() && awaited.is_empty()) || found.len() == PEEKS_MAX {
                break;
            }
        }
        found
    }
}

impl Placed {
    fn new(ring: Arc<Ring>, view: &View) -> Self {
        let rows = ring.names().map(|id| view.shared(id).expect("a ring's nodes are in the view it was made of").clone());
        Self { rows: rows.collect(), ring }
    }

    fn walk(&self, key: RouteKey) -> impl Iterator<Item = &NodeRow> {
        self.ring.walk_numbers(key).map(|number| &*self.rows[number])
    }
}

/// All that serve, each with its weight.
fn members(view: &View) -> impl Iterator<Item = (&str, u32)> {
    view.members().map(|row| (row.id.as_str(), row.weight))
}

/// All that hold something, each with the largest weight that it had of late.
fn holders(view: &View) -> impl Iterator<Item = (&str, u32)> {
    let holds = |row: &&NodeRow| matches!(state(row), NodeState::Serving | NodeState::Leaving) && caches(row);
    view.rows().filter(holds).map(|row| (row.id.as_str(), row.weight.max(row.held_weight)))
}

/// When a newcomer that owns `key` begins to serve it: once its ramp has passed this.
fn turn(key: RouteKey) -> u64 {
    xxh3_64_with_seed(&key.0.to_le_bytes(), RAMP_SEED) % u64::from(RAMP_FULL)
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
        let leaving =
            topology(settled(5).into_iter().map(|row| if row.id == "old-1" { NodeRow { state: 2, ..row } } else { row }));
        for key in keys() {
            let holders = ids(&leaving.holders(key, &leaving.server(key).expect("member").id));
            let last = holders.last().expect("a holder");
            assert!(last != "old-1" && holders.len() <= 2, "what was read since it left is asked for, too: {holders:?}");
        }
        let last_one =
            topology(settled(4).into_iter().map(|row| if row.id == "old-1" { row } else { NodeRow { state: 2, ..row } }));
        assert!(keys().all(|key| last_one.holders(key, "old-1").len() == PEEKS_MAX), "all that leave are asked");
        let mut view = all.view().clone();
        assert!(view.merge(NodeRow { version: 2, ramp: 3, ..NodeRow::member("old-0", 100) }).expect("merge"));
        let next = Topology::after(view.clone(), Some(&all));
        let rings = |topology: &Topology| [Arc::as_ptr(&topology.serving.ring), Arc::as_ptr(&topology.holding.ring)];
        assert_eq!(rings(&next), [Arc::as_ptr(&all.serving.ring); 2]);
        assert_eq!(
            next.view.node("old-0").map(|row| row.ramp),
            next.walk(RouteKey(1)).find(|row| row.id == "old-0").map(|row| row.ramp)
        );
        assert!(view.merge(NodeRow { version: 3, weight: 50, ..NodeRow::member("old-0", 100) }).expect("merge"));
        let lighter = Topology::after(view.clone(), Some(&next));
        assert!(rings(&lighter)[0] != rings(&all)[0], "another weight serves by another ring");
        assert_eq!(rings(&lighter)[1], rings(&all)[1], "and holds by the same");
        assert!(view.merge(NodeRow { version: 4, weight: 50, ramp: 9, ..NodeRow::member("old-0", 100) }).expect("merge"));
        assert_eq!(rings(&Topology::after(view, Some(&lighter))), rings(&lighter));
    }

    /// Promise: of many nodes a few are asked, the one that serves first, however many newcomers stand before it.
    #[test]
    fn few_of_many_are_asked() {
        let newcomers = (0..40).map(|index| fresh(index, 64));
        let all = topology(settled(2).into_iter().chain(newcomers));
        let mut deep = 0;
        for key in keys().take(300) {
            let (order, walk) = (all.order(key), all.walk(key).collect::<Vec<_>>());
            let first = walk.iter().position(|row| turn(key) < u64::from(row.ramp)).expect("a settled node");
            deep += u32::from(first > ORDER_MAX);
            assert_eq!((order.len(), walk.len()), (ORDER_MAX, 42));
            assert_eq!((Some(order[0]), order[0]), (all.server(key), walk[first]));
            let rest: Vec<_> = walk.iter().filter(|row| row.id != order[0].id).take(ORDER_MAX - 1).copied().collect();
            assert_eq!(order[1..], rest);
        }
        assert!(deep > 30, "{deep}");
    }
}
