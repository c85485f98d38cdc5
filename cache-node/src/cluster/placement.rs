//! Where a unit is decoded: here, or on a node that decodes for others. Policy, and the measurements that it goes by.
//!
//! Every node with the role `decode` is asked as one: what counts is how long it took of late, per pixel, as the asking node saw it,
//! queue and network included. So a GPU that is fast is found out to be, and one that is overrun is left alone.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Seconds for a million pixels where nothing is known yet: one core of an ordinary processor (60 to 90 million pixels a second at JPEG,
/// less at other formats).
const PACE_UNKNOWN: f64 = 0.02;

/// How much sooner it has to be done elsewhere: bytes go there and pixels come back.
const WORTH: f64 = 0.7;

/// What one more decode weighs in the running mean: an eighth forgets a burst after a dozen.
const WEIGHT: f64 = 1.0 / 8.0;

/// A unit that takes no time to speak of still costs a round trip: pictures are counted as this many million pixels at least.
const MEGAPIXELS_MIN: f64 = 0.05;

/// How long a node that could not be reached is left alone.
const AWAY: Duration = Duration::from_secs(2);

/// How long a pace is believed without another unit: who was slow once is tried again, and may have been cold.
const PACE_AGE: Duration = Duration::from_secs(20);

/// Nodes that are remembered, at most: those of a view.
const NODES_MAX: usize = framecache::view::NODES_MAX;

/// A place that decodes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Units under way, of which this node knows.
    pub inside: usize,
    /// How many are decoded side by side; 0: not known.
    pub workers: usize,
    /// Seconds for a million pixels, queue included, if that was seen.
    pub pace: Option<f64>,
}

impl Load {
    fn expected(&self, megapixels: f64) -> f64 {
        let queue = self.inside as f64 / self.workers.max(1) as f64;
        self.pace.unwrap_or(PACE_UNKNOWN) * megapixels.max(MEGAPIXELS_MIN) * (1.0 + queue)
    }
}

/// Where to decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// By this node's own decoders.
    Here,
    /// By the n-th of the others.
    There(usize),
}

/// The places in the order in which they are tried. `here` is `None` where this node has not the role: then it is the last resort.
pub fn places(megapixels: f64, here: Option<Load>, others: &[Option<Load>]) -> Vec<Place> {
    let mut there: Vec<(f64, Place)> = others
        .iter()
        .enumerate()
        .filter_map(|(index, load)| Some((load.as_ref()?.expected(megapixels), Place::There(index))))
        .collect();
    there.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    let own = here.map_or(f64::INFINITY, |load| load.expected(megapixels) * WORTH);
    let sooner = there.partition_point(|(expected, _)| *expected < own);
    let mut places: Vec<Place> = there.into_iter().map(|(_, place)| place).collect();
    places.insert(sooner, Place::Here);
    // Who is later than this node is not tried after it: here is an answer.
    if here.is_some() {
        places.truncate(sooner + 1);
    }
    places
}

/// What was seen of each place.
#[derive(Debug, Default)]
pub struct Paces {
    nodes: Mutex<HashMap<String, Seen>>,
}

#[derive(Debug, Default)]
struct Seen {
    inside: usize,
    /// And since when it was not seen anew.
    pace: Option<(f64, Instant)>,
    /// Not asked before then: it was busy, or could not be reached.
    rests_until: Option<Instant>,
}

/// A unit under way at a place; the drop ends it.
#[derive(Debug)]
pub struct UnderWay<'a> {
    paces: &'a Paces,
    node: &'a str,
    megapixels: f64,
    begun: Instant,
}

impl Paces {
    /// What is known of `node`; `None` while it is left alone.
    pub fn load(&self, node: &str) -> Option<Load> {
        let nodes = self.nodes.lock();
        let Some(seen) = nodes.get(node) else { return Some(Load::default()) };
        let rests = seen.rests_until.is_some_and(|until| Instant::now() < until);
        let pace = seen.pace.filter(|(_, at)| at.elapsed() < PACE_AGE).map(|(pace, _)| pace);
        (!rests).then_some(Load { inside: seen.inside, workers: 0, pace })
    }

    /// A unit of so many million pixels begins at `node`.
    pub fn begin<'a>(&'a self, node: &'a str, megapixels: f64) -> UnderWay<'a> {
        self.with(node, |seen| seen.inside += 1);
        UnderWay { paces: self, node, megapixels: megapixels.max(MEGAPIXELS_MIN), begun: Instant::now() }
    }

    fn with(&self, node: &str, change: impl FnOnce(&mut Seen)) {
        let mut nodes = self.nodes.lock();
        if nodes.len() >= NODES_MAX && !nodes.contains_key(node) {
            nodes.retain(|_, seen| seen.inside > 0);
        }
        change(nodes.entry(node.to_owned()).or_default());
    }
}

impl UnderWay<'_> {
    /// It was decoded: its time counts.
    pub fn done(self) {
        let pace = self.begun.elapsed().as_secs_f64() / self.megapixels;
        let known = |seen: &Seen| seen.pace.filter(|(_, at)| at.elapsed() < PACE_AGE);
        self.paces.with(self.node, |seen| {
            let mean = known(seen).map_or(pace, |(mean, _)| mean + (pace - mean) * WEIGHT);
            seen.pace = Some((mean, Instant::now()));
        });
    }

    /// The place takes nothing before `after` has passed.
    pub fn busy(self, after: Duration) {
        self.paces.with(self.node, |seen| seen.rests_until = Some(Instant::now() + after));
    }

    /// The place could not be reached.
    pub fn lost(self) {
        self.busy(AWAY);
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.paces.with(self.node, |seen| seen.inside = seen.inside.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(inside: usize, workers: usize, pace: f64) -> Load {
        Load { inside, workers, pace: Some(pace) }
    }

    /// Promise: a unit goes where it is done soonest, bytes and pixels on their way included; a node without the role decodes only where
    /// nobody else can.
    #[test]
    fn the_soonest_place_is_tried_first() {
        use Place::{Here, There};
        let idle = Some(load(0, 2, 0.02));
        type Case = (&'static str, Option<Load>, Vec<Option<Load>>, Vec<Place>);
        let cases: [Case; 8] = [
            ("alone", idle, vec![], vec![Here]),
            ("alike", idle, vec![idle], vec![Here]),
            ("nothing known of the other", idle, vec![Some(Load::default())], vec![Here]),
            ("a long queue here", Some(load(8, 2, 0.02)), vec![idle, Some(load(1, 1, 0.02))], vec![There(0), There(1), Here]),
            ("a much faster one", idle, vec![Some(load(2, 1, 0.001)), Some(load(0, 1, 0.02))], vec![There(0), Here]),
            ("that is left alone", idle, vec![None], vec![Here]),
            ("no role here", None, vec![Some(load(9, 1, 0.5)), None, idle], vec![There(2), There(0), Here]),
            ("no role, and nobody", None, vec![None], vec![Here]),
        ];
        for (name, here, others, want) in cases {
            assert_eq!(places(1.0, here, &others), want, "{name}");
        }
    }

    /// Promise: what is measured is remembered, a busy or lost node rests for its time, and what ended is not counted as under way.
    #[tokio::test(start_paused = true)]
    async fn paces_are_seen() {
        let paces = Paces::default();
        assert_eq!(paces.load("a"), Some(Load::default()));
        let first = paces.begin("a", 2.0);
        let second = paces.begin("a", 2.0);
        assert_eq!(paces.load("a").map(|load| load.inside), Some(2));
        tokio::time::advance(Duration::from_millis(100)).await;
        first.done();
        let seen = paces.load("a").expect("asked");
        assert!((seen.pace.expect("seen") - 0.05).abs() < 1e-6 && seen.inside == 1, "{seen:?}");
        tokio::time::advance(PACE_AGE).await;
        assert_eq!(paces.load("a").and_then(|load| load.pace), None, "that was long ago");
        second.busy(Duration::from_millis(50));
        assert_eq!(paces.load("a"), None);
        tokio::time::advance(Duration::from_millis(51)).await;
        assert_eq!(paces.load("a").map(|load| load.inside), Some(0));
        paces.begin("b", 1.0).lost();
        assert_eq!(paces.load("b"), None);
        for index in 0..NODES_MAX + 10 {
            drop(paces.begin(&index.to_string(), 1.0));
        }
        assert!(paces.nodes.lock().len() <= NODES_MAX);
    }
}
