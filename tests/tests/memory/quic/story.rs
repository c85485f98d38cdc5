//! One seed's story: what happens to the cluster, what is asked of it meanwhile, and what each answer must be.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use framecache::batch::External;
use framecache::client::Outcome;
use framecache::object::PAGE_BYTES;
use framecache::{Batch, ByteRange, Error, ErrorKind, ImageSpec, Pictures, Stats, Version};
use framecache_node::cache::Freshness;
use framecache_tests::dice::Dice;
use framecache_tests::media::PLAIN;
use framecache_tests::memory::{Climate, pixels};
use framecache_tests::model::{Model, Trust, stamped};
use framecache_tests::simulated::network::Weather;
use framecache_tests::simulated::{Bug, Cluster};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::Told;

/// Calls, and what happens to the cluster in percent of them: in most seeds, and in each eighth, where so many calls find a cluster that
/// hardly changes that clients know how long its nodes take, and ask a second one where one takes longer.
const OPERATIONS: [(u64, u64); 2] = [(50, 16), (800, 1)];
pub(super) const STEADY_EACH: u64 = 8;

/// Raw objects.
const RAW: [&str; 4] = ["small", "page", "several", "other"];

/// Pictures. They begin as one.
const PICTURES: [&str; 8] = ["p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7"];

/// Specs that give a picture of 96 x 64 these shapes.
const SPECS: [(&str, [u32; 3]); 2] = [("image?size=16x12", [12, 16, 3]), ("image", [64, 96, 3])];

/// What the memory around a caller's buffer holds, and the buffer before it is filled.
const MARK: u8 = 0xa5;
const MARGIN: usize = 64;

/// The clock moves in steps of a millisecond, and a call has a few of them to find that it is late.
const TICK: Duration = Duration::from_millis(3);

/// A node counts the time of a request from its arrival, and says that it is up when there is not enough left to ask another.
const EARLY_MAX: Duration = Duration::from_millis(150);

/// Once all is well, everything can be read within this, besides what origin and network take: the longest pause before a probe, the
/// longest handshake after that, and a second for the read.
const HEALED_MAX: Duration = Duration::from_secs(8);

/// Questions to the origin that follow each other in one read: for the head, twice where another had asked when the read began, and for the
/// page.
const QUESTIONS: u64 = 3;

/// What all keys hold at most.
const BYTES_MAX: u64 = 5 * PAGE_BYTES;

/// One cluster.
#[derive(Clone)]
struct Story {
    cluster: Arc<Cluster>,
    freshness: Freshness,
    clients: usize,
    /// Once all is well, everything can be read within this.
    healed_max: Duration,
}

pub(super) async fn story(seed: u64, bug: Option<Bug>) -> Told {
    let mut dice = Dice::new(seed ^ 0x0c1a_55e5);
    let (climate, weather) = (climate(seed, &mut dice), weather(&mut dice));
    let (members, clients) = match is_steady(seed) {
        true => (3, 2),
        false => (dice.within(3..6) as usize, dice.within(2..5) as usize),
    };
    let (freshness, healed_max) = (climate.freshness, healed_max(&climate, &weather, clients));
    let cluster = Cluster::begin(members, clients, climate, weather, bug, seed);
    let story = Story { cluster, freshness, clients, healed_max };
    let mut generation = 0;
    for key in RAW.into_iter().chain(PICTURES) {
        story.cluster.first.put(key, contents(key, generation, &mut dice));
    }
    let (began, mut calls, mut told) = (Instant::now(), JoinSet::new(), Told::default());
    let (operations, happens) = OPERATIONS[usize::from(is_steady(seed))];
    for number in 0..operations {
        sleep(Duration::from_millis(if dice.chance(50) { 0 } else { dice.within(0..500) })).await;
        while let Some(ended) = calls.try_join_next() {
            told.count(began, ended);
        }
        match dice.within(0..100) {
            0..8 => {
                generation += 1;
                let key = if dice.chance(50) { *dice.one_of(&RAW) } else { *dice.one_of(&PICTURES) };
                story.cluster.first.put(key, contents(key, generation, &mut dice));
            }
            at if at < 8 + happens => story.happens(&mut dice),
            _ => {
                let (own, story) = (dice.fork(), story.clone());
                calls.spawn(async move { (number, story.call(own).await) });
            }
        }
    }
    while let Some(ended) = calls.join_next().await {
        told.count(began, ended);
    }
    told.healed = story.calm_end().await;
    for stats in story.cluster.stats() {
        let Stats { retries, failovers, hedges, hedges_won, views, silences, .. } = stats;
        let counted = [("retries", retries), ("failovers", failovers), ("hedges", hedges), ("hedges won", hedges_won)];
        for (name, count) in counted.into_iter().chain([("news", views), ("silences", silences)]) {
            *told.outcomes.entry(name).or_default() += count;
        }
    }
    told.counts = story.cluster.end().await;
    told
}

fn is_steady(seed: u64) -> bool {
    seed % STEADY_EACH == STEADY_EACH - 1
}

/// What the origin, the nodes' caches and the decoders do in a seed.
fn climate(seed: u64, dice: &mut Dice) -> Climate {
    let freshness = match seed % 3 {
        0 => Freshness::Immutable,
        1 => Freshness::Always,
        _ => Freshness::MaxAge(Duration::from_millis(dice.within(1..2000))),
    };
    let often = |dice: &mut Dice| if dice.chance(50) { 0 } else { dice.within(1..15) };
    Climate {
        memory: [8 << 20, 4 << 20, 2 << 20, if dice.chance(50) { 0 } else { 16 << 20 }],
        origin_ms_max: if dice.chance(20) { 2000 } else { dice.within(1..200) },
        origin_fails: often(dice),
        evicts: often(dice),
        passes: often(dice),
        decoder_fails: often(dice),
        ..Climate::calm(freshness)
    }
}

/// What the network does in a seed.
fn weather(dice: &mut Dice) -> Weather {
    let often = |dice: &mut Dice, most| if dice.chance(40) { 0 } else { dice.within(1..most) };
    Weather {
        ms_max: *dice.one_of(&[1, 3, 10, 40]),
        jitter_ms: *dice.one_of(&[0, 1, 10]),
        datagram_max: *dice.one_of(&[1300, 1452, 8900, 65_507]),
        loss: often(dice, 8),
        double: often(dice, 5),
        damage: often(dice, 3),
        overtaken: often(dice, 10),
    }
}

/// How long it may take until every client has read everything, by one way alone, twice: from the node that has it, and on.
fn healed_max(climate: &Climate, weather: &Weather, clients: usize) -> Duration {
    let lost = (weather.loss + weather.damage) as f64 / 100.0;
    let round_trip_s = 2.0 * (weather.ms_max + weather.jitter_ms) as f64 / 1000.0;
    // Of a flow that loses a part p of its datagrams one round trip carries 1.2 / sqrt(p) (Mathis et al., 1997).
    let carried = 1200.0 * 1.2 / lost.sqrt();
    let network_s = 2.0 * clients as f64 * BYTES_MAX as f64 / carried * round_trip_s;
    HEALED_MAX + Duration::from_millis(QUESTIONS * climate.origin_ms_max) + Duration::from_secs_f64(network_s)
}

/// Bytes of a generation; a picture's begin as a JPEG does, since the node looks at the header.
fn contents(key: &str, generation: u32, dice: &mut Dice) -> Bytes {
    let length = match key {
        "small" => dice.within(1..300),
        "page" => PAGE_BYTES + dice.within(0..3) - 1,
        "several" => dice.within(PAGE_BYTES..3 * PAGE_BYTES),
        _ => dice.within(3000..40_000),
    };
    let mut bytes = stamped(generation, length as usize);
    if PICTURES.contains(&key) {
        bytes[..PLAIN.file.len()].copy_from_slice(PLAIN.file);
    }
    bytes.into()
}

impl Story {
    fn model(&self) -> &Model {
        &self.cluster.first.model
    }

    /// Something happens to the cluster.
    fn happens(&self, dice: &mut Dice) {
        let (members, absent, late) = (self.cluster.members(), self.cluster.absent(), dice.within(0..2000));
        match dice.within(0..10) {
            0..3 if !absent.is_empty() => self.cluster.join(*dice.one_of(&absent), late, dice.within(1000..8000)),
            3..5 if members.len() > 1 => self.cluster.leave(*dice.one_of(&members), late),
            5..7 if members.len() > 1 => self.cluster.crash(*dice.one_of(&members), late, dice.within(500..6000)),
            7..10 => {
                let hosts: Vec<usize> = (0..self.cluster.hosts()).collect();
                let alone = *dice.one_of(&hosts);
                let others = hosts.iter().filter(|host| **host != alone);
                let (out, back) = (others.clone().map(|other| (alone, *other)), others.clone().map(|other| (*other, alone)));
                let ways: Vec<(usize, usize)> = match dice.within(0..4) {
                    // One is cut off: both ways, or heard and does not hear, or the other way round.
                    0 => out.chain(back).collect(),
                    1 => out.collect(),
                    2 => back.collect(),
                    // Two do not hear each other.
                    _ => {
                        let other = *dice.one_of(&hosts);
                        vec![(alone, other), (other, alone)]
                    }
                };
                self.cluster.cut(&ways, dice.within(200..5000));
            }
            _ => {}
        }
    }

    async fn call(self, mut dice: Dice) -> &'static str {
        let client = dice.within(0..self.clients as u64) as usize;
        match dice.within(0..10) {
            0..5 => {
                let key = *dice.one_of(&RAW);
                self.read(client, key, dice).await
            }
            5..9 => self.pictures(client, dice).await,
            _ => self.given_up(client, dice).await,
        }
    }

    async fn read(&self, client: usize, key: &str, mut dice: Dice) -> &'static str {
        let (start, patience) = (Instant::now(), patience(&mut dice));
        let length = self.model().current(key).map_or(0, |(_, bytes)| bytes.len() as u64);
        let from = dice.within(0..length);
        let count = if dice.chance(70) { dice.within(0..70_000) } else { dice.within(0..4 * PAGE_BYTES) };
        let answer = self.cluster.caller(client).read(key, from, Some(count), patience).await;
        in_time(start, patience, &answer.as_ref().err());
        match answer {
            Ok(raw) => {
                self.judge_version(key, &raw.version, start);
                self.model().expect(key, &raw.version, ByteRange::at(from, count).expect("range"), &raw.bytes);
                "bytes"
            }
            Err(error) => self.judge(key, from, &error, start, patience),
        }
    }

    /// A batch, into memory of the caller's or of its own.
    async fn pictures(&self, client: usize, mut dice: Dice) -> &'static str {
        let (start, patience) = (Instant::now(), patience(&mut dice));
        let Wanted { keys, spec, shape } = wanted(&mut dice);
        let mut out = Out::new(keys.len(), shape);
        let batch = if dice.chance(50) { out.batch() } else { Batch::new(keys.len(), 1 << 20) };
        let outcomes = self.cluster.caller(client).images(&keys, &spec, &batch, patience).await;
        in_time(start, patience, &outcomes);
        let pictures = batch.finish();
        let mut worst = "pictures";
        assert_eq!(outcomes.len(), keys.len(), "items are lost");
        for (slot, (key, outcome)) in keys.iter().zip(outcomes).enumerate() {
            let outcome: Outcome = outcome.unwrap_or_else(|| panic!("item {slot} is lost"));
            match outcome {
                Ok(version) => {
                    self.judge_version(key, &version, start);
                    let bytes = self.model().bytes(key, &version).expect("judged");
                    assert!(is_in(&pictures, slot, &bytes, &spec), "{key}: pixels of slot {slot} are not those of {version}");
                }
                Err(error) => {
                    assert!(pictures.head(slot).is_none(), "slot {slot} has a picture, and failed: {error}");
                    worst = self.judge(key, 0, &error, start, patience);
                }
            }
        }
        drop(pictures);
        out.is_intact();
        worst
    }

    /// A batch that its caller gives up: from then on nothing is written.
    async fn given_up(&self, client: usize, mut dice: Dice) -> &'static str {
        let Wanted { keys, spec, shape } = wanted(&mut dice);
        let mut out = Out::new(keys.len(), shape);
        let batch = out.batch();
        let caller = self.cluster.caller(client);
        let whole = caller.images(&keys, &spec, &batch, Duration::from_secs(30));
        let was_whole = timeout(Duration::from_millis(dice.within(0..120)), whole).await.is_ok();
        let pictures = batch.finish();
        for (slot, key) in keys.iter().enumerate().filter(|(slot, _)| pictures.head(*slot).is_some()) {
            let ever = self.model().since(key, Instant::now() - Duration::from_secs(600));
            let of_one = ever.iter().flatten().any(|(_, bytes)| is_in(&pictures, slot, bytes, &spec));
            assert!(of_one, "{key}: pixels of slot {slot} are of no version");
        }
        drop(pictures);
        let then = out.memory.clone();
        sleep(Duration::from_secs(1)).await;
        assert!(then == out.memory, "a call that was given up has written");
        out.is_intact();
        if was_whole { "whole before it was given up" } else { "given up" }
    }

    /// For how long a version that is no longer true may be answered.
    fn trust(&self) -> Trust {
        match self.freshness {
            Freshness::Immutable => Trust::Ever,
            // However many nodes it came by. Ages are kept in whole milliseconds, and what is on its way ages too.
            Freshness::MaxAge(age) => Trust::Age(age + Duration::from_millis(20)),
            Freshness::Always => Trust::Age(Duration::ZERO),
        }
    }

    /// Since when what was true may be answered to a question of `start`.
    fn past(&self, start: Instant) -> Instant {
        let age = if let Trust::Age(age) = self.trust() { age } else { Duration::from_secs(600) };
        start.checked_sub(age).unwrap_or(start)
    }

    fn judge_version(&self, key: &str, version: &Version, start: Instant) {
        let is_true = self.model().may_answer(key, version, start, self.trust());
        assert!(is_true, "{key}: {version} was not current in time for {:?}", self.freshness);
    }

    /// Whether an error is true, of a call of that patience, from byte `from` on; its name.
    fn judge(&self, key: &str, from: u64, error: &Error, start: Instant, patience: Duration) -> &'static str {
        match error.kind {
            ErrorKind::Changed => {
                assert!(self.model().since(key, self.past(start)).len() > 1, "{key}: {error}, but it was the same all the time");
                "changed"
            }
            ErrorKind::OutOfRange => {
                let ever = self.model().since(key, self.past(start));
                let shortest = ever.iter().flatten().map(|(_, bytes)| bytes.len() as u64).min();
                assert!(shortest < Some(from), "{key}: {error}, but it was never so short");
                "out of range"
            }
            ErrorKind::Timeout => {
                let left = patience.saturating_sub(start.elapsed());
                assert!(left < EARLY_MAX, "{key}: {error}, {left:?} before it was");
                "timeout"
            }
            ErrorKind::Busy { .. } => "busy",
            ErrorKind::Unavailable | ErrorKind::Leaving => "unavailable",
            _ => panic!("{key}: {error}"),
        }
    }

    /// Soon after all is well every client can read everything, and from then on each asks the right node at once; how soon it was.
    async fn calm_end(&self) -> Duration {
        self.cluster.calm_down().await;
        let healed = self.everything_can_be_read().await;
        // Until newcomers have their whole share.
        sleep(Duration::from_secs(20)).await;
        for expected in [false, true] {
            let before: Vec<u64> = self.cluster.stats().iter().map(|stats| stats.failovers + stats.retries).collect();
            self.everything_can_be_read().await;
            let after: Vec<u64> = self.cluster.stats().iter().map(|stats| stats.failovers + stats.retries).collect();
            // With the first round's replies came the news.
            assert!(!expected || before == after, "clients do not know the cluster as it is");
        }
        healed
    }

    /// By every client, all at once; how long it takes.
    async fn everything_can_be_read(&self) -> Duration {
        let (well, mut reads) = (Instant::now(), JoinSet::new());
        for client in 0..self.clients {
            for key in RAW.into_iter().chain(PICTURES) {
                let story = self.clone();
                reads.spawn(async move { story.can_be_read(client, key, well).await });
            }
        }
        while let Some(read) = reads.join_next().await {
            read.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
        }
        well.elapsed()
    }

    async fn can_be_read(&self, client: usize, key: &str, well: Instant) {
        let most = self.healed_max;
        loop {
            let start = Instant::now();
            match self.cluster.caller(client).read(key, 0, None, most).await {
                Ok(raw) => {
                    self.judge_version(key, &raw.version, start);
                    let size = self.model().bytes(key, &raw.version).map_or(0, |bytes| bytes.len() as u64);
                    self.model().expect(key, &raw.version, ByteRange::at(0, size).expect("range"), &raw.bytes);
                    return assert!(well.elapsed() < most, "{key}: read {:?} after all was well", well.elapsed());
                }
                Err(error) => {
                    self.judge(key, 0, &error, start, most);
                    assert!(well.elapsed() < most, "{key}: {error}, {:?} after all was well", well.elapsed());
                }
            }
        }
    }
}

/// A batch that is asked for.
struct Wanted {
    keys: Vec<&'static str>,
    spec: ImageSpec,
    shape: [u32; 3],
}

fn wanted(dice: &mut Dice) -> Wanted {
    let (spec, shape) = *dice.one_of(&SPECS);
    let keys = (0..dice.within(1..16)).map(|_| *dice.one_of(&PICTURES)).collect();
    Wanted { keys, spec: spec.parse().expect("spec"), shape }
}

/// A caller's own memory, with a margin on both sides.
struct Out {
    memory: Vec<u8>,
    count: usize,
    shape: [u32; 3],
}

impl Out {
    fn new(count: usize, shape: [u32; 3]) -> Self {
        let bytes = count * shape.iter().product::<u32>() as usize;
        Self { memory: vec![MARK; bytes + 2 * MARGIN], count, shape }
    }

    fn batch(&mut self) -> Batch {
        let bytes = self.memory.len() - 2 * MARGIN;
        let pointer = self.memory[MARGIN..].as_mut_ptr();
        // SAFETY: the memory outlives the batch in each caller, moves nowhere, and is looked at only after the batch is dropped.
        unsafe { Batch::external(self.count, self.shape, External { pointer, bytes }) }.expect("it fits")
    }

    fn is_intact(&self) {
        let end = self.memory.len() - MARGIN;
        let margins = self.memory[..MARGIN].iter().chain(&self.memory[end..]);
        assert!(margins.into_iter().all(|byte| *byte == MARK), "a call has written beside its buffer");
    }
}

/// Whether a slot holds what the decoder makes of `bytes`.
fn is_in(pictures: &Pictures, slot: usize, bytes: &[u8], spec: &ImageSpec) -> bool {
    let want = pixels(bytes, &spec.clone().into());
    pictures.head(slot).is_some_and(|head| head.shape == want.head.shape) && pictures.pixels(slot) == Some(&want.data[..])
}

fn in_time(start: Instant, patience: Duration, answer: &dyn std::fmt::Debug) {
    assert!(start.elapsed() <= patience + TICK, "a call took {:?}, where it had {patience:?}: {answer:?}", start.elapsed());
}

fn patience(dice: &mut Dice) -> Duration {
    Duration::from_millis(if dice.chance(25) { dice.within(5..400) } else { dice.within(1000..30_000) })
}
