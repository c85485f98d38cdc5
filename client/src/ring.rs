//! The ring: which nodes hold a key, in order of preference.
//!
//! [`consistent_hash`] does the placing, behind a fixed hasher over keys that are hashed already, so that neither the standard
//! library's `Hash` layout nor the machine's byte order moves a key. Placements are frozen by golden data: a change here would
//! empty every cache at once.

use std::hash::{Hash, Hasher};

use consistent_hash::{Node, RingHash, StaticHashRing};
use xxhash_rust::xxh3::xxh3_64;

use crate::object::RouteKey;
use crate::view::View;

/// Points on the ring for a weight of 1. 160 keeps every node within about 17 % of its share; more costs rebuild time.
const POINTS: u64 = 160;

/// Largest weight that counts, in hundredths: more would make a rebuild slow, and no node is 1,000 times another.
const WEIGHT_MAX: u32 = 100_000;

/// Most points of a ring: 2 million take 0.2 seconds and 50 MB (measured); a thousand nodes of weight 12 have fewer.
const POINTS_MAX: u64 = 2_000_000;

/// Points of nodes of these weights. Past [`POINTS_MAX`] all shrink alike, to a whole number and at least 1 each: shares stay, and
/// views of the same members still give the same ring. A view comes from outside, so that the bound holds for any.
fn points(weights: &[u32]) -> Vec<u64> {
    let of = |weight: &u32| (POINTS * u64::from((*weight).clamp(1, WEIGHT_MAX)) / 100).max(1);
    let mut points: Vec<u64> = weights.iter().map(of).collect();
    let sum: u64 = points.iter().sum();
    if sum > POINTS_MAX {
        points.iter_mut().for_each(|points| *points = (*points * POINTS_MAX / sum).max(1));
    }
    points
}

/// Nodes by preference for every key, for one set of members.
pub struct Ring {
    ring: StaticHashRing<'static, u64, u32, Fixed>,
    nodes: Vec<String>,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("nodes", &self.nodes).finish_non_exhaustive()
    }
}

impl Ring {
    /// The ring of a view's members. Takes a millisecond for each ten nodes: not for the request path.
    pub fn new(view: &View) -> Self {
        Self::of(view.members().map(|row| (row.id.as_str(), row.weight)))
    }

    /// The ring of these nodes, with their weights in hundredths.
    pub fn of<'a>(nodes: impl Iterator<Item = (&'a str, u32)>) -> Self {
        let (names, weights): (Vec<&str>, Vec<u32>) = nodes.unzip();
        let placed = names
            .iter()
            .zip(points(&weights))
            .enumerate()
            .map(|(index, (name, points))| Node::new(xxh3_64(name.as_bytes())).value(index as u32).quantity(points as usize));
        Self { ring: StaticHashRing::new(Fixed, placed), nodes: names.iter().map(|name| (*name).to_owned()).collect() }
    }

    /// Every member, the owner of `key` first.
    pub fn walk(&self, key: RouteKey) -> impl Iterator<Item = &str> {
        self.ring.calc_candidates(&key.0).map(|node| self.nodes[node.value as usize].as_str())
    }

    /// The owner of `key`; `None` in a ring without members.
    pub fn owner(&self, key: RouteKey) -> Option<&str> {
        self.walk(key).next()
    }
}

/// xxh3 over little-endian 64-bit words.
#[derive(Clone, Copy, Debug)]
struct Fixed;

impl RingHash for Fixed {
    fn hash_item<T: Hash>(&self, item: &T) -> u64 {
        let mut words = Words(Vec::with_capacity(16));
        item.hash(&mut words);
        words.finish()
    }
}

/// Collects what is hashed as bytes whose layout is ours.
struct Words(Vec<u8>);

impl Hasher for Words {
    fn finish(&self) -> u64 {
        xxh3_64(&self.0)
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn write_u64(&mut self, word: u64) {
        self.write(&word.to_le_bytes());
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::{ObjectId, Span};
    use crate::wire::NodeRow;

    fn ring(weights: &[(&str, u32)]) -> Ring {
        let mut view = View::default();
        for (id, weight) in weights {
            view.merge(NodeRow::member(id, weight.saturating_mul(100))).expect("merge");
        }
        Ring::new(&view)
    }

    fn keys(n: u64) -> impl Iterator<Item = RouteKey> {
        (0..n).map(|i| RouteKey(xxh3_64(&i.to_le_bytes())))
    }

    /// Promise: a walk names every node once, and a ring of none names none.
    #[test]
    fn walk_is_a_permutation() {
        let ring = ring(&[("a", 1), ("b", 1), ("c", 2)]);
        for key in keys(100) {
            let mut walk: Vec<_> = ring.walk(key).collect();
            walk.sort_unstable();
            assert_eq!(walk, ["a", "b", "c"]);
        }
        assert_eq!(Ring::new(&View::default()).owner(RouteKey(1)), None);
    }

    /// Promise: shares follow weights, and a join moves keys to the newcomer only.
    #[test]
    fn shares_follow_weight_and_joins_are_minimal() {
        let (before, after) = (ring(&[("a", 1), ("b", 1), ("c", 2)]), ring(&[("a", 1), ("b", 1), ("c", 2), ("d", 1)]));
        let mut heavy = 0;
        for key in keys(20_000) {
            let (old, new) = (before.owner(key), after.owner(key));
            heavy += u32::from(old == Some("c"));
            assert!(new == old || new == Some("d"), "key moved between old nodes");
        }
        assert!((8_000..12_000).contains(&heavy), "weight 2 of 4 got {heavy} of 20,000");
    }

    /// Promise: no view makes a ring that takes memory or time without bound; weights keep their proportion.
    #[test]
    fn points_are_bounded() {
        assert_eq!(points(&[100, 300, 0, u32::MAX]), [160, 480, 1, 160_000]);
        let hostile = points(&[u32::MAX; crate::view::NODES_MAX]);
        assert!(hostile.iter().sum::<u64>() <= POINTS_MAX && hostile.iter().all(|&points| points == hostile[0] && points > 0));
        let mixed: Vec<u32> = (0..100).map(|index| if index == 0 { 100 } else { 50_000 }).collect();
        let mixed = points(&mixed);
        assert!(mixed.iter().sum::<u64>() <= POINTS_MAX && (499..=505).contains(&(mixed[1] / mixed[0])), "{mixed:?}");
        let heavy: Vec<(String, u32)> = (0..300).map(|index| (format!("n{index}"), u32::MAX)).collect();
        let ring = ring(&heavy.iter().map(|(id, weight)| (id.as_str(), *weight)).collect::<Vec<_>>());
        assert_eq!(ring.walk(RouteKey(7)).count(), 300);
    }

    /// Promise: no release moves a key unseen. The file may change only alone, with the reason.
    #[test]
    fn placements_are_golden() {
        let golden = include_str!("../../tests/golden/placements.txt");
        let ring = ring(&[("node-0", 1), ("node-1", 1), ("node-2", 2), ("node-3", 1), ("node-4", 3)]);
        let mut made = String::new();
        for i in 0..64u64 {
            let id = ObjectId::new("golden", &format!("shard-{i:04}.tar")).expect("id");
            let member = id.with_member("0/a.jpg").expect("member");
            for (kind, key) in [
                ("raw", RouteKey::raw(&id, Span::new(i))),
                ("picture", RouteKey::picture(&id)),
                ("member", RouteKey::picture(&member)),
                ("frames", RouteKey::frame(&id, i * 1024)),
                ("object", RouteKey::object(&id)),
            ] {
                let walk: Vec<_> = ring.walk(key).take(3).collect();
                made += &format!("{kind} {i} {:016x} {}\n", key.0, walk.join(" "));
            }
        }
        assert!(golden == made, "placements moved; the new ones would be:\n{made}");
    }
}
