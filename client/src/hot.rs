//! Hot keys: found by a small sketch of what this client asks for, and asked of several nodes.
//!
//! The sketch is *space-saving* (Metwally, Agrawal, El Abbadi 2005): a few counters; a key without one takes over the smallest, with
//! its count, which from then on is that counter's possible error. What is counted for certain is the count less the error, so that
//! a uniform stream of keys never looks hot.

use crate::object::RouteKey;

/// Counters. A key that matters has more than one request in a hundred; 64 of them hold every such key with room to spare.
const KEYS: usize = 64;

/// Requests past which all counts are halved: the last few thousand decide.
const RECENT: u32 = 4096;

/// Requests that are seen before any key is hot.
const SEEN_MIN: u32 = 256;

/// Requests for a key before it is hot. A span that is read in order, a page at a time, has 64.
const HITS_MIN: u32 = 128;

/// What is asked for most, of late.
#[derive(Clone, Debug, Default)]
pub struct Hot {
    counters: Vec<Counter>,
    seen: u32,
}

#[derive(Clone, Copy, Debug)]
struct Counter {
    key: RouteKey,
    count: u32,
    error: u32,
}

impl Hot {
    /// Counts a request for `key`; how many of `members` nodes it is to be spread over.
    pub fn asked(&mut self, key: RouteKey, members: usize) -> usize {
        if self.seen >= RECENT {
            self.halve();
        }
        self.seen += 1;
        let counter = self.counter(key);
        counter.count += 1;
        let hits = counter.count - counter.error;
        match self.seen >= SEEN_MIN && hits >= HITS_MIN {
            true => replicas(f64::from(hits) / f64::from(self.seen), members),
            false => 1,
        }
    }

    fn counter(&mut self, key: RouteKey) -> &mut Counter {
        let found = self.counters.iter().position(|counter| counter.key == key);
        let at = match found {
            Some(at) => at,
            None if self.counters.len() < KEYS => {
                self.counters.push(Counter { key, count: 0, error: 0 });
                self.counters.len() - 1
            }
            None => {
                let smallest = (0..KEYS).min_by_key(|&at| self.counters[at].count).unwrap_or(0);
                let count = self.counters[smallest].count;
                self.counters[smallest] = Counter { key, count, error: count };
                smallest
            }
        };
        &mut self.counters[at]
    }

    fn halve(&mut self) {
        self.seen /= 2;
        for counter in &mut self.counters {
            counter.count /= 2;
            counter.error = (counter.error / 2).min(counter.count);
        }
        self.counters.retain(|counter| counter.count > 0);
    }
}

/// Over how many of `members` nodes a key with that share of all requests is spread: twice as many as would have the mean load, and one
/// where its own node is below that.
pub fn replicas(share: f64, members: usize) -> usize {
    let wanted = (2.0 * share * members as f64).ceil();
    // Not negative and not more than `members`: nothing is lost.
    (wanted.max(1.0) as usize).min(members.max(1))
}

/// One of `count` nodes: the less loaded of two that `random` names.
pub fn lesser(count: usize, random: u64, load: impl Fn(usize) -> usize) -> usize {
    let count = count.max(1) as u64;
    let first = (random & 0xffff_ffff) % count;
    // Another one, where there is one.
    let second = (first + 1 + (random >> 32) % count.saturating_sub(1).max(1)) % count;
    let (first, second) = (first as usize, second as usize);
    if load(second) < load(first) { second } else { first }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xxhash_rust::xxh3::xxh3_64;

    fn random(i: u64) -> u64 {
        xxh3_64(&i.to_le_bytes())
    }

    /// Promise: uniform traffic is never replicated, however many nodes or keys there are.
    #[test]
    fn uniform_traffic_is_not_hot() {
        for (keys, members) in [(100, 8), (1000, 8), (10_000, 64), (1_000_000, 4096)] {
            let mut hot = Hot::default();
            for i in 0..50_000 {
                assert_eq!(hot.asked(RouteKey(random(i) % keys), members), 1, "{keys} keys, {members} nodes, request {i}");
            }
        }
    }

    /// Promise: a key with half of all requests is spread over all of 8 nodes, and no node has more than 1.5 times the mean.
    #[test]
    fn a_hot_key_is_spread() {
        let (mut hot, mut served) = (Hot::default(), [0u32; 8]);
        let mut spread = 0;
        for i in 0..40_000 {
            let key = if random(i).is_multiple_of(2) { 7 } else { 1000 + random(i) % 100_000 };
            let replicas = hot.asked(RouteKey(key), 8);
            let node = match replicas {
                1 => (random(key) % 8) as usize,
                // The walk of a key begins at its owner.
                count => (random(key) as usize + lesser(count, random(i ^ 0xabcd), |_| 0)) % 8,
            };
            spread = spread.max(replicas);
            served[node] += 1;
        }
        assert_eq!(spread, 8);
        assert!(served.iter().all(|&n| n < 7_500), "{served:?}");
    }

    /// Promise: what was hot and is no more is served by its owner alone again.
    #[test]
    fn heat_passes() {
        let mut hot = Hot::default();
        assert!((0..1000).map(|_| hot.asked(RouteKey(7), 8)).max() == Some(8));
        assert!((0..40_000).all(|i| hot.asked(RouteKey(random(i)), 8) == 1));
        assert_eq!(hot.asked(RouteKey(7), 8), 1);
    }

    /// Promise: the number of nodes follows the share, within what there is.
    #[test]
    fn replicas_by_share() {
        for (share, members, wanted) in
            [(0.0, 8, 1), (0.05, 8, 1), (0.1, 8, 2), (0.5, 8, 8), (1.0, 8, 8), (0.25, 8, 4), (1.0, 1, 1), (0.5, 0, 1)]
        {
            assert_eq!(replicas(share, members), wanted, "{share} of {members}");
        }
    }

    /// Promise: of two nodes the less loaded is asked, every node can be one of them, and one alone is asked itself.
    #[test]
    fn two_choices() {
        let mut asked = [0; 5];
        for i in 0..10_000 {
            asked[lesser(5, random(i), |node| usize::from(node == 3))] += 1;
        }
        assert!(asked.iter().enumerate().all(|(node, &n)| (n > 1500) == (node != 3)), "{asked:?}");
        assert_eq!(lesser(1, u64::MAX, |_| 9), 0);
    }
}
