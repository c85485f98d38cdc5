//! The ring: which nodes hold a key, in order of preference.
//!
//! A node has points on a circle, one for each hundredth of its weight, and a key has six spots there. A node is as near to a key as
//! the nearest of its points, going forward from any of the key's spots; the nearest node owns the key, and a walk names all nodes
//! from near to far. How near a node is depends on no other node. So a join moves keys to the newcomer only, a leave moves the
//! leaver's only, and each to the node that was next in the walk. With one spot a node's share would be a sum of lucky and unlucky
//! gaps; of six spots the best is seldom in an unlucky one, so that a tenth of the points do (`docs/decisions/`).
//!
//! [`consistent_hash`] keeps the circle and walks it, behind a fixed hasher, so that neither the standard library's `Hash` layout nor
//! the machine's byte order moves a key. Its walk allocates; the table beside it names the owner at once. Placements are frozen by
//! golden data: a change here would empty every cache at once.

mod table;
#[cfg(test)]
mod tests;

use std::hash::{Hash, Hasher};

use consistent_hash::{Candidates, Node, RingHash, StaticHashRing};
use xxhash_rust::xxh3::xxh3_64;

use crate::object::RouteKey;
use crate::view::View;
use table::{Point, Table};

/// Spots of a key. Shares spread as with `2 · SPOTS − 1` times the points: at 64 nodes of weight 1 the fullest has 1.06 of the mean
/// (median of 150 sets of names; worst 1.098), where one spot gives 1.2. Five spots pass 1.1 at times; each costs 10 ns.
const SPOTS: u64 = 6;

/// Largest weight that counts, in hundredths, which are points: no node is 1,000 times another.
const WEIGHT_MAX: u32 = 100_000;

/// Most points of a ring, but for one of each node. A ring of as many takes a tenth of a second and 30 MB (`framecache-bench run
/// ring`); a cluster of ten thousand nodes of weight 1 has them all.
const POINTS_MAX: u64 = 1_000_000;

/// Nodes by preference for every key, for one set of members.
pub struct Ring {
    circle: StaticHashRing<'static, u64, u32, Fixed>,
    table: Table,
    names: Vec<String>,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("names", &self.names).finish_non_exhaustive()
    }
}

impl Ring {
    /// The ring of a view's members. Takes 25 ms at a thousand nodes, 100 at most: not for the request path.
    pub fn new(view: &View) -> Self {
        Self::of(view.members().map(|row| (row.id.as_str(), row.weight)))
    }

    /// The ring of these nodes, with their weights in hundredths. Their order does not matter; of nodes whose names have one hash,
    /// which nobody has seen, the first by name stays.
    pub fn of<'a>(nodes: impl Iterator<Item = (&'a str, u32)>) -> Self {
        let mut nodes: Vec<(u64, &str, u32)> = nodes.map(|(name, weight)| (xxh3_64(name.as_bytes()), name, weight)).collect();
        nodes.sort_unstable();
        nodes.dedup_by_key(|(hash, ..)| *hash);
        let counts = counts(nodes.iter().map(|&(hash, _, weight)| (hash, weight)));
        let counted = || nodes.iter().zip(&counts).zip(0u32..).map(|((&(hash, ..), &count), number)| (hash, count, number));
        let mut points = Vec::with_capacity(counts.iter().sum::<u64>() as usize);
        for (hash, count, node) in counted() {
            points.extend((0..count).map(|index| Point { at: position(hash, index), node }));
        }
        let placed = counted().map(|(hash, count, node)| Node::new(hash).value(node).quantity(count as usize));
        Self {
            circle: StaticHashRing::new(Fixed, placed),
            table: Table::new(points),
            names: nodes.iter().map(|(_, name, _)| (*name).to_owned()).collect(),
        }
    }

    /// Every member, the owner of `key` first.
    pub fn walk(&self, key: RouteKey) -> impl Iterator<Item = &str> {
        self.walk_numbers(key).map(|number| self.names[number].as_str())
    }

    /// The owner of `key`, without a walk; `None` in a ring without members.
    pub fn owner(&self, key: RouteKey) -> Option<&str> {
        self.owner_number(key).map(|number| self.names[number].as_str())
    }

    /// The members in the order of their numbers.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// As [`Ring::walk`], by numbers of [`Ring::names`].
    pub(crate) fn walk_numbers(&self, key: RouteKey) -> impl Iterator<Item = usize> {
        Walk {
            points: self.table.points(),
            lanes: std::array::from_fn(|lane| self.lane(key, lane as u64)),
            named: vec![false; self.names.len()],
            left: self.names.len(),
        }
    }

    /// As [`Ring::owner`], by its number. Allocates nothing.
    pub(crate) fn owner_number(&self, key: RouteKey) -> Option<usize> {
        let near = (0..SPOTS).filter_map(|index| self.table.near(position(key.0, index))).min();
        near.map(|(_, number)| number as usize)
    }

    fn lane(&self, key: RouteKey, index: u64) -> Lane<'_> {
        let spot = position(key.0, index);
        let nodes = self.circle.calc_candidates(&(key.0, index));
        let mut lane = Lane { nodes, spot, at: self.table.after(spot), near: None };
        lane.step(self.table.points());
        lane
    }
}

/// Points of nodes of these hashes of names and weights. Past [`POINTS_MAX`] all shrink alike, a node's last points first, so that only
/// the keys of those move. Each node rounds at a height of its own: if all lost a point in one moment, that would be 1 % of all keys.
/// A view comes from outside, so that the bound holds for any.
fn counts(nodes: impl Iterator<Item = (u64, u32)> + Clone) -> Vec<u64> {
    let whole = |weight: u32| u64::from(weight.clamp(1, WEIGHT_MAX));
    let sum = nodes.clone().map(|(_, weight)| whole(weight)).sum::<u64>().max(POINTS_MAX);
    let count = |(hash, weight): (u64, u32)| {
        let exact = (u128::from(whole(weight) * POINTS_MAX) << 32) / u128::from(sum);
        ((exact + u128::from(hash >> 32)) >> 32).max(1) as u64
    };
    nodes.map(count).collect()
}

/// All nodes from near to far: the lanes of a key's spots, merged.
struct Walk<'a> {
    points: &'a [Point],
    lanes: [Lane<'a>; SPOTS as usize],
    named: Vec<bool>,
    left: usize,
}

/// The nodes as they come going forward from one spot.
struct Lane<'a> {
    nodes: Candidates<'a, u64, u32>,
    spot: u32,
    at: usize,
    /// The next one, as its distance and number.
    near: Option<(u32, u32)>,
}

impl Iterator for Walk<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        while self.left > 0 {
            let lane = self.lanes.iter_mut().filter(|lane| lane.near.is_some()).min_by_key(|lane| lane.near)?;
            let number = lane.near?.1 as usize;
            lane.step(self.points);
            if !std::mem::replace(&mut self.named[number], true) {
                self.left -= 1;
                return Some(number);
            }
        }
        None
    }
}

impl Lane<'_> {
    fn step(&mut self, points: &[Point]) {
        self.near = self.nodes.next().map(|node| {
            // The circle says who comes next, the table how far it is: both pass over nodes that came before.
            while points[self.at].node != node.value {
                self.at = (self.at + 1) % points.len();
            }
            (points[self.at].at.wrapping_sub(self.spot), node.value)
        });
    }
}

/// Where point `index` of a node, or spot `index` of a key, is on the circle: the upper half of xxh3 over both, little-endian.
/// Half a hash keeps the table small; points that meet are told apart by their nodes' numbers, on the circle and in the table alike.
fn position(hash: u64, index: u64) -> u32 {
    let mut words = [0; 16];
    words[..8].copy_from_slice(&hash.to_le_bytes());
    words[8..].copy_from_slice(&index.to_le_bytes());
    (xxh3_64(&words) >> 32) as u32
}

/// [`position`] as the circle calls for it.
#[derive(Clone, Copy, Debug)]
struct Fixed;

impl RingHash for Fixed {
    fn hash_item<T: Hash>(&self, item: &T) -> u64 {
        let mut pair = Pair(0, 0);
        item.hash(&mut pair);
        pair.finish()
    }
}

/// The last two words that are hashed, which are all: what is placed is a hash and an index.
struct Pair(u64, u64);

impl Hasher for Pair {
    fn finish(&self) -> u64 {
        u64::from(position(self.0, self.1))
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    fn write_u64(&mut self, word: u64) {
        *self = Self(self.1, word);
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }
}
