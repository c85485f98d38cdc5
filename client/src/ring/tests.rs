use super::*;
use crate::object::{ObjectId, Span};
use crate::view::NODES_MAX;
use crate::wire::NodeRow;

/// Nodes with their weights in hundredths.
type Nodes = Vec<(String, u32)>;

fn ring(nodes: &[(String, u32)]) -> Ring {
    Ring::of(nodes.iter().map(|(name, weight)| (name.as_str(), *weight)))
}

fn equal(count: usize, weight: u32) -> Nodes {
    (0..count).map(|number| (format!("node-{number}"), weight)).collect()
}

fn keys(n: u64) -> impl Iterator<Item = RouteKey> {
    (0..n).map(|i| RouteKey(xxh3_64(&i.to_le_bytes())))
}

/// Chance that can be repeated.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = xxh3_64(&self.0.to_le_bytes());
        self.0 % bound
    }

    /// Nodes of random weights from 0.01 to 4, in random order.
    fn nodes(&mut self) -> Nodes {
        let count = 2 + self.below(30);
        let set = self.below(1 << 30);
        (0..count).map(|number| (format!("{set}-{}", number * 7919 % 1009), 1 + self.below(400) as u32)).collect()
    }
}

/// Each key's owner before and after, of some thousand keys.
fn moves<'a>(before: &'a Ring, after: &'a Ring) -> impl Iterator<Item = (&'a str, &'a str)> {
    let owner = |ring: &'a Ring, key| ring.owner(key).expect("a member");
    keys(3000).map(move |key| (owner(before, key), owner(after, key))).filter(|(old, new)| old != new)
}

/// The largest load, as a multiple of what the weight should give, by counting keys.
fn fullest(nodes: &[(String, u32)], keys_each: u64) -> f64 {
    let ring = ring(nodes);
    let mut loads = vec![0u64; nodes.len()];
    let count = keys_each * nodes.len() as u64;
    keys(count).for_each(|key| loads[ring.owner_number(key).expect("a member")] += 1);
    let sum: u64 = nodes.iter().map(|(_, weight)| u64::from(*weight)).sum();
    let weight = |name: &str| nodes.iter().find(|(node, _)| node == name).map_or(0, |(_, weight)| *weight);
    let share = |(name, load): (&str, &u64)| *load as f64 / count as f64 * sum as f64 / f64::from(weight(name));
    ring.names().zip(&loads).map(share).fold(0.0, f64::max)
}

/// Promise: shares follow weights: within 1.10 at 64 equal nodes, within 1.20 where a thousand are of mixed weights.
#[test]
fn shares_follow_weights() {
    let full = fullest(&equal(64, 100), 10_000);
    assert!(full <= 1.10, "{full}");
    let mixed: Nodes =
        equal(1000, 0).into_iter().zip([100, 200, 400].into_iter().cycle()).map(|((name, _), weight)| (name, weight)).collect();
    let full = fullest(&mixed, 2_000);
    assert!(full <= 1.20, "{full}");
}

/// Promise: a walk is what its description says: all nodes by the least way from a spot of the key to a point of theirs; and the owner
/// without a walk is the walk's first.
#[test]
fn walks_are_by_nearness() {
    let mut dice = Dice(1);
    for seed in 0..40 {
        let nodes = dice.nodes();
        let ring = ring(&nodes);
        let way = |name: &str, weight: u32, key: RouteKey| {
            let points = (0..u64::from(weight)).map(|index| position(xxh3_64(name.as_bytes()), index));
            points.flat_map(|point| (0..SPOTS).map(move |index| point.wrapping_sub(position(key.0, index)))).min()
        };
        for key in keys(20) {
            let mut near: Vec<_> = nodes.iter().map(|(name, weight)| (way(name, *weight, key), name.as_str())).collect();
            near.sort_unstable();
            let near: Vec<_> = near.into_iter().map(|(_, name)| name).collect();
            assert_eq!(ring.walk(key).collect::<Vec<_>>(), near, "seed {seed}");
        }
        assert!(keys(2000).all(|key| ring.owner(key) == ring.walk(key).next()), "seed {seed}");
    }
    assert_eq!(Ring::new(&View::default()).owner(RouteKey(1)), None);
    assert_eq!(Ring::new(&View::default()).walk(RouteKey(1)).count(), 0);
}

/// Promise: the owner without a walk is the walk's first also where points and spots meet.
#[test]
fn owners_agree_in_a_crowd() {
    let ring = ring(&equal(2000, 500));
    let points = ring.table.points();
    assert!(points.windows(2).any(|pair| pair[0].at == pair[1].at), "no points that meet");
    assert!(keys(20_000).all(|key| ring.owner(key) == ring.walk(key).next()));
    let (first, last) = (points[0], points[points.len() - 1]);
    for (spot, point) in [(0, first), (first.at, first), (last.at, last), (last.at + 1, first), (u32::MAX, first)] {
        assert_eq!(ring.table.near(spot), Some((point.at.wrapping_sub(spot), point.node)));
    }
}

/// Promise: the same nodes give the same ring, in whatever order they are told.
#[test]
fn order_of_rows_does_not_matter() {
    let mut dice = Dice(2);
    for seed in 0..20 {
        let nodes = dice.nodes();
        let mut shuffled = nodes.clone();
        (1..nodes.len()).for_each(|index| shuffled.swap(index, dice.below(index as u64 + 1) as usize));
        let mut view = View::default();
        for (name, weight) in &shuffled {
            view.merge(NodeRow::member(name, *weight)).expect("merge");
        }
        let rings = [ring(&nodes), ring(&shuffled), Ring::new(&view)];
        for key in keys(200) {
            let [one, other, viewed] = rings.each_ref().map(|ring| ring.walk(key).collect::<Vec<_>>());
            assert!(one == other && one == viewed, "seed {seed}");
        }
    }
}

/// Promise: a join moves keys to the newcomer alone, a leave the leaver's alone and each to the next in its walk, and another weight
/// moves keys only to that node or from it.
#[test]
fn changes_move_little() {
    let mut dice = Dice(3);
    for seed in 0..40 {
        let all = dice.nodes();
        let (changed, others) = all.split_last().expect("two nodes");
        let (with, without) = (ring(&all), ring(others));
        assert!(moves(&without, &with).all(|(_, new)| new == changed.0), "seed {seed}: a join moved a key between old nodes");
        for key in keys(300) {
            let left: Vec<_> = with.walk(key).filter(|name| *name != changed.0).collect();
            assert_eq!(without.walk(key).collect::<Vec<_>>(), left, "seed {seed}: a leave changed the order of others");
        }
        let heavier = ring(&[others, &[(changed.0.clone(), changed.1 + 1 + dice.below(300) as u32)]].concat());
        assert!(moves(&with, &heavier).all(|(_, new)| new == changed.0), "seed {seed}: more weight took other keys");
        assert!(moves(&heavier, &with).all(|(old, _)| old == changed.0), "seed {seed}: less weight gave other keys");
        assert!(moves(&heavier, &without).count() > 0, "seed {seed}");
    }
}

/// Promise: no view makes a ring that takes memory or time without bound; weights keep their proportion, and every node a point.
#[test]
fn points_are_bounded() {
    let of = |weights: &[u32]| counts(weights.iter().enumerate().map(|(n, &weight)| (xxh3_64(&n.to_le_bytes()), weight)));
    assert_eq!(of(&[100, 300, 0, u32::MAX]), [100, 300, 1, 100_000]);
    let hostile = of(&[u32::MAX; NODES_MAX]);
    assert!(hostile.iter().sum::<u64>() <= POINTS_MAX + NODES_MAX as u64);
    assert!(hostile.iter().all(|points| (244..=245).contains(points)), "a fair part of {POINTS_MAX} each");
    let mixed: Vec<u32> = (0..100).map(|index| if index == 0 { 0 } else { 10_000 + 10_000 * (index % 2) }).collect();
    let mixed = of(&mixed);
    assert!(mixed.iter().sum::<u64>() <= POINTS_MAX + 100);
    assert!(mixed[0] == 1 && mixed[2] * 2 - 1 <= mixed[1] && mixed[1] <= mixed[2] * 2 + 1, "{mixed:?}");
    let ring = ring(&equal(300, u32::MAX));
    assert_eq!(ring.walk(RouteKey(7)).count(), 300);
}

/// Promise: past the bound, a join moves hardly more between old nodes than to the newcomer, not a hundredth of all keys at once.
#[test]
fn shrinking_is_gradual() {
    let nodes = equal(4001, 250);
    let (before, after) = (ring(&nodes[..4000]), ring(&nodes));
    let total = |ring: &Ring| ring.table.points().len() as u64;
    assert!(total(&before) == POINTS_MAX && total(&after) <= POINTS_MAX + 4001);
    let owners = keys(400_000).map(|key| (before.owner(key), after.owner(key))).filter(|(old, new)| old != new);
    let (joined, between): (Vec<_>, Vec<_>) = owners.partition(|(_, new)| *new == Some("node-4000"));
    let (joined, between) = (joined.len(), between.len());
    assert!((60..150).contains(&joined) && between < 2 * joined, "{joined} to the newcomer, {between} between others");
}

/// Promise: no release moves a key unseen. The file may change only alone, with the reason.
#[test]
fn placements_are_golden() {
    let golden = include_str!("../../../tests/golden/placements.txt");
    let weights = [("node-0", 100), ("node-1", 100), ("node-2", 200), ("node-3", 100), ("node-4", 300)];
    let ring = Ring::of(weights.into_iter());
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
