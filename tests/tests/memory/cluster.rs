//! A cluster in memory against the dumb model: nodes join, leave, die, are cut off from each other and hear of it late, while clients read.
//! A failure prints its seed; run that one alone with `FRAMECACHE_SEED=… cargo test --release --test memory`.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use framecache::object::PAGE_BYTES;
use framecache::wire::RAMP_FULL;
use framecache::{ByteRange, DecodeSpec, Version};
use framecache_node::cache::Freshness;
use framecache_node::read::ReadError;
use framecache_tests::dice::Dice;
use framecache_tests::media::PLAIN;
use framecache_tests::memory::fleet::{Bug, Fleet};
use framecache_tests::memory::{Climate, pixels};
use framecache_tests::model::{Trust, stamped};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep};

/// Stories in the ordinary run, and in the long one.
const SEEDS: [u64; 2] = [500, 2000];

/// Seeds that a planted bug may hide from; each was found by far fewer.
const HIDING_MAX: u64 = 200;

const CLIENTS: usize = 3;
const OPERATIONS: u64 = 60;

/// Keys of a story. Those of pictures begin as one.
const KEYS: [&str; 6] = ["small", "page", "several", "other", "picture", "portrait"];

const SPECS: [&str; 2] = ["image?size=16x12", "image"];

/// Promise: whoever joins, leaves, dies or is cut off, and whoever hears of it late: no wrong byte or pixel, no mix of versions, no answer
/// that is not true; every call ends by its deadline, memory and tasks come back to nothing; what is held is fetched and decoded once while
/// views agree; and once all is calm everything can be read, even where two nodes take each other for the server.
#[test]
fn random_clusters_agree_with_the_model() {
    let one = std::env::var("FRAMECACHE_SEED").ok().map(|seed| seed.parse().expect("FRAMECACHE_SEED is a number"));
    let seeds = SEEDS[usize::from(std::env::var_os("FRAMECACHE_SOAK").is_some())];
    let mut outcomes = Outcomes::new();
    for seed in one.map_or(0..seeds, |seed: u64| seed..seed + 1) {
        let _told = Told(seed);
        for (name, count) in told(seed, None) {
            *outcomes.entry(name).or_default() += count;
        }
    }
    println!("{outcomes:?}");
    for name in ["bytes", "pixels", "changed", "unavailable", "deadline"] {
        assert!(one.is_some() || outcomes.contains_key(name), "no story had {name:?}: the dice are loaded");
    }
}

/// Promise: the stories are no fairy tales. Ten bugs that a cluster might have, each planted alone, are each found.
#[test]
fn planted_bugs_are_found() {
    for bug in Bug::ALL {
        let finds = |seed: &u64| catch_unwind(AssertUnwindSafe(|| told(*seed, Some(bug)))).is_err();
        let found = (0..HIDING_MAX).find(finds);
        println!("{bug:?}: found by seed {found:?}");
        assert!(found.is_some(), "{bug:?} is not found by {HIDING_MAX} stories");
    }
}

/// How often calls ended how.
type Outcomes = BTreeMap<&'static str, u64>;

/// Names the seed of a story that panics.
struct Told(u64);

impl Drop for Told {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("FRAMECACHE_SEED={}", self.0);
        }
    }
}

fn told(seed: u64, bug: Option<Bug>) -> Outcomes {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("runtime");
    runtime.block_on(story(seed, bug))
}

/// One seed's cluster.
#[derive(Clone)]
struct Story {
    fleet: Arc<Fleet>,
    freshness: Freshness,
    /// Nothing fails, nobody dies, and all hear of news at once.
    faithful: bool,
}

async fn story(seed: u64, bug: Option<Bug>) -> Outcomes {
    let mut dice = Dice::new(seed ^ 0xc1a5);
    let faithful = seed.is_multiple_of(3);
    let climate = climate(seed, faithful, &mut dice);
    let nodes = dice.within(3..7) as usize;
    let members = dice.within(2..nodes as u64) as usize;
    let fleet = Fleet::new(nodes, members, CLIENTS, climate.clone(), bug, seed);
    let story = Story { fleet, freshness: climate.freshness, faithful };
    let replaces = !faithful;
    let mut generation = 0;
    for key in KEYS {
        story.fleet.first.put(key, contents(key, generation, &mut dice));
    }
    let (mut calls, mut outcomes) = (JoinSet::new(), Outcomes::new());
    for _ in 0..OPERATIONS {
        sleep(Duration::from_millis(if dice.chance(50) { 0 } else { dice.within(0..300) })).await;
        let (own, story) = (dice.fork(), story.clone());
        match dice.within(0..100) {
            0..6 if replaces => {
                generation += 1;
                let key = dice.one_of(&KEYS);
                story.fleet.first.put(key, contents(key, generation, &mut dice));
            }
            6..18 => {
                // What is on its way while a key moves may come twice: views do not agree on where to wait for it.
                while let Some(ended) = if faithful { calls.join_next().await } else { None } {
                    count(&mut outcomes, ended);
                }
                // Pages that are brought in ahead outlive the call.
                sleep(Duration::from_millis(if faithful { 500 } else { 0 })).await;
                story.happens(&mut dice);
            }
            _ => drop(calls.spawn(story.call(own))),
        }
    }
    while let Some(ended) = calls.join_next().await {
        count(&mut outcomes, ended);
    }
    if faithful {
        story.each_was_filled_once();
    }
    story.calm_end().await;
    story.fleet.end().await;
    outcomes
}

fn count(outcomes: &mut Outcomes, ended: Result<&'static str, JoinError>) {
    match ended {
        Ok(outcome) => *outcomes.entry(outcome).or_default() += 1,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// The weather of a seed.
fn climate(seed: u64, faithful: bool, dice: &mut Dice) -> Climate {
    if faithful {
        return Climate::calm(Freshness::Immutable);
    }
    let freshness = match seed % 4 {
        0 => Freshness::MaxAge(Duration::from_millis(dice.within(1..2000))),
        1 => Freshness::Always,
        _ => Freshness::Immutable,
    };
    let often = |dice: &mut Dice| if dice.chance(50) { 0 } else { dice.within(1..15) };
    Climate {
        memory: [8 << 20, 4 << 20, 2 << 20, if dice.chance(50) { 0 } else { 16 << 20 }],
        origin_ms_max: dice.within(1..200),
        origin_fails: often(dice),
        evicts: often(dice),
        store_slow: often(dice) / 3,
        passes: often(dice),
        decoder_fails: often(dice),
        ..Climate::calm(freshness)
    }
}

/// Bytes of a generation; a picture's begin as a JPEG does, since the node looks at the header.
fn contents(key: &str, generation: u32, dice: &mut Dice) -> Bytes {
    let length = match key {
        "small" => dice.within(1..300),
        "page" => PAGE_BYTES + dice.within(0..3) - 1,
        "several" => dice.within(2 * PAGE_BYTES..4 * PAGE_BYTES),
        _ => dice.within(3000..6000),
    };
    let mut bytes = stamped(generation, length as usize);
    if is_picture(key) {
        bytes[..PLAIN.file.len()].copy_from_slice(PLAIN.file);
    }
    bytes.into()
}

fn is_picture(key: &str) -> bool {
    matches!(key, "picture" | "portrait")
}

impl Story {
    /// Something happens to the cluster.
    fn happens(&self, dice: &mut Dice) {
        let fleet = &self.fleet;
        let members = fleet.members();
        let others: Vec<usize> = (0..fleet.nodes()).filter(|index| !members.contains(index)).collect();
        if self.faithful && !self.fleet.bears_another_change() {
            return;
        }
        let late = if self.faithful { 0 } else { dice.within(0..2000) };
        let member = *dice.one_of(&members);
        match dice.within(0..10) {
            0..4 if !others.is_empty() => {
                let index = *dice.one_of(&others);
                match self.faithful {
                    false => fleet.join(index, late, dice.within(1000..8000)),
                    // Settled only after all was read.
                    true => fleet.state(index, 0, |row| {
                        (row.state, row.settled, row.ramp) = (1, false, *dice.one_of(&[0, 100, RAMP_FULL]));
                    }),
                }
            }
            4..6 if members.len() > 1 => fleet.state(member, late, |row| row.state = 2),
            6..8 => {
                let weight = *dice.one_of(&[30, 100, 300]);
                fleet.state(member, late, |row| {
                    // What it held by a larger weight it holds still.
                    row.held_weight = row.held_weight.max(row.weight);
                    row.settled &= weight <= row.weight;
                    row.weight = weight;
                });
            }
            8 if !self.faithful && members.len() > 1 => fleet.crash(member, late),
            9 if !self.faithful => {
                let (from, to) = (dice.within(0..fleet.nodes() as u64) as usize, dice.within(0..fleet.nodes() as u64) as usize);
                match dice.within(0..3) {
                    0 => fleet.cut(&[]),
                    1 => fleet.cut(&[(from, to)]),
                    _ => fleet.cut(&[(from, to), (to, from)]),
                }
            }
            _ => {}
        }
    }

    async fn call(self, mut dice: Dice) -> &'static str {
        let client = dice.within(0..CLIENTS as u64) as usize;
        let (key, picture) = (*dice.one_of(&KEYS), *dice.one_of(&KEYS[4..]));
        match dice.chance(60) {
            true => self.read(client, key, dice).await,
            false => self.frame(client, picture, dice).await,
        }
    }

    async fn read(&self, client: usize, key: &str, mut dice: Dice) -> &'static str {
        let (start, deadline, drain) = (Instant::now(), deadline(self.faithful, &mut dice), drain(&mut dice));
        let length = self.fleet.first.model.current(key).map_or(0, |(_, bytes)| bytes.len() as u64);
        let from = dice.within(0..length);
        let count = if dice.chance(70) { dice.within(0..70_000) } else { dice.within(0..5 * PAGE_BYTES) };
        let range = ByteRange::at(from, count).expect("range");
        let pin = self.pin(key, &mut dice);
        let replied = match self.fleet.read(client, key, range, pin.as_ref(), deadline, drain).await {
            Ok(replied) => replied,
            Err(error) => return self.judge_beginning(key, &error, pin.as_ref(), start),
        };
        self.judge_version(key, &replied.head.version, pin.as_ref(), start);
        let Some(error) = replied.error else {
            self.fleet.first.model.expect(key, &replied.head.version, range, &replied.bytes);
            return "bytes";
        };
        let part = ByteRange::at(from, replied.bytes.len() as u64).expect("range");
        self.fleet.first.model.expect(key, &replied.head.version, part, &replied.bytes);
        self.judge(key, &error, Some(&replied.head.version), start)
    }

    async fn frame(&self, client: usize, key: &str, mut dice: Dice) -> &'static str {
        let (start, deadline, drain) = (Instant::now(), deadline(self.faithful, &mut dice), drain(&mut dice));
        let spec: DecodeSpec = dice.one_of(&SPECS).parse().expect("spec");
        let pin = self.pin(key, &mut dice);
        match self.fleet.frame(client, key, &spec, pin.as_ref(), deadline, drain).await {
            Ok((head, tensor)) => {
                self.judge_version(key, &head.version, pin.as_ref(), start);
                let bytes = self.fleet.first.model.bytes(key, &head.version).expect("judged");
                assert!(tensor == pixels(&bytes, &spec), "{key}: pixels are not those of {}", head.version);
                "pixels"
            }
            Err(error) => self.judge_beginning(key, &error, pin.as_ref(), start),
        }
    }

    /// Sometimes a version that is, or was, the object's.
    fn pin(&self, key: &str, dice: &mut Dice) -> Option<Version> {
        let past = self.fleet.first.model.since(key, Instant::now() - Duration::from_secs(dice.within(0..4)));
        let versions: Vec<_> = past.into_iter().flatten().map(|(version, _)| version).collect();
        (dice.chance(30) && !versions.is_empty()).then(|| dice.one_of(&versions).clone())
    }

    fn judge_version(&self, key: &str, version: &Version, pin: Option<&Version>, start: Instant) {
        let trust = match self.freshness {
            Freshness::Immutable => Trust::Ever,
            // However many nodes it came by. Ages are kept in whole milliseconds, and links take some.
            Freshness::MaxAge(age) => Trust::Age(age + Duration::from_millis(20)),
            Freshness::Always => Trust::Age(Duration::ZERO),
        };
        match pin {
            Some(pin) => assert_eq!(version, pin, "{key}: another version than the pinned one"),
            None => {
                let true_then = self.fleet.first.model.may_answer(key, version, start, trust);
                assert!(true_then, "{key}: {version} was not current in time for {:?}", self.freshness);
            }
        }
    }

    /// Whether an error is true that came before any byte; its name.
    fn judge_beginning(&self, key: &str, error: &ReadError, pin: Option<&Version>, start: Instant) -> &'static str {
        let told = pin.is_some() || self.freshness == Freshness::Immutable;
        let changed = matches!(error, ReadError::Changed { .. });
        assert!(told || !changed, "{key}: nothing was pinned, and {error}");
        self.judge(key, error, pin, start)
    }

    /// Whether an error is true; its name.
    fn judge(&self, key: &str, error: &ReadError, pin: Option<&Version>, start: Instant) -> &'static str {
        let excuse = |name| {
            assert!(!self.faithful, "{key}: {error}, and nothing had failed");
            name
        };
        match error {
            ReadError::Changed { old, .. } => {
                assert!(pin.is_none_or(|pin| pin == old), "{key}: pinned to {pin:?}, and told that {old} changed");
                let held = self.fleet.first.model.held_throughout(key, old, start);
                assert!(!held, "{key}: `changed`, but {old} was there all the time");
                "changed"
            }
            ReadError::OutOfRange { start, size } => {
                assert!(start > size && self.fleet.first.model.ever_had(key, *size), "{key}: {error}, which it never had");
                "past the end"
            }
            ReadError::Deadline => excuse("deadline"),
            ReadError::Busy { .. } => excuse("busy"),
            ReadError::Unavailable(_) => excuse("unavailable"),
            other => panic!("{key}: {other}"),
        }
    }

    /// Once nothing fails any more, every client can read everything, at the second try at the latest: when all views agree, and also
    /// where two nodes take each other for the server.
    async fn calm_end(&self) {
        self.fleet.calm_down();
        sleep(Duration::from_secs(90)).await;
        for agree in [false, true] {
            match agree {
                false => self.fleet.disagree(),
                true => self.fleet.agree(),
            }
            for key in KEYS {
                for client in 0..CLIENTS {
                    self.can_be_read(client, key).await;
                }
            }
        }
    }

    async fn can_be_read(&self, client: usize, key: &str) {
        let (_, bytes) = self.fleet.first.model.current(key).expect("never deleted");
        let whole = ByteRange::at(0, bytes.len() as u64).expect("range");
        let mut told = Vec::new();
        loop {
            let (start, deadline) = (Instant::now(), Instant::now() + Duration::from_secs(20));
            let replied = match self.fleet.read(client, key, whole, None, deadline, Duration::ZERO).await {
                Ok(replied) if replied.error.is_none() => {
                    self.judge_version(key, &replied.head.version, None, start);
                    return self.fleet.first.model.expect(key, &replied.head.version, whole, &replied.bytes);
                }
                Ok(replied) => replied.error,
                Err(error) => Some(error),
            };
            told.extend(replied);
            assert!(told.len() < 2, "{key}: {told:?}, and nothing fails any more");
        }
    }

    /// While it is held somewhere, each page was asked of the origin once, and each picture decoded once a spec.
    fn each_was_filled_once(&self) {
        for ((key, start, version), times) in self.fleet.first.origin.answered() {
            assert_eq!(times, 1, "{key}: byte {start} of {version} was asked for again");
        }
        assert!(self.fleet.jobs() <= 2 * SPECS.len() as u64, "{} decodes", self.fleet.jobs());
    }
}

fn deadline(faithful: bool, dice: &mut Dice) -> Instant {
    let most = if dice.chance(20) && !faithful { 100 } else { 30_000 };
    Instant::now() + Duration::from_millis(if faithful { most } else { dice.within(5..most) })
}

/// How long the client takes to receive an item.
fn drain(dice: &mut Dice) -> Duration {
    Duration::from_millis(if dice.chance(50) { 0 } else { dice.within(0..200) })
}
