//! A node in memory against the dumb model: random operations under a paused clock. A failure prints its seed; run that one alone
//! with `FRAMECACHE_SEED=… cargo test --release --test memory`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use framecache::object::PAGE_BYTES;
use framecache::{ByteRange, DecodeSpec, Version};
use framecache_node::cache::Freshness;
use framecache_node::read::ReadError;
use framecache_tests::dice::Dice;
use framecache_tests::media::PLAIN;
use framecache_tests::memory::{Climate, World, pixels};
use framecache_tests::model::{Trust, stamped};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

const SEEDS: u64 = 320;
const OPERATIONS: u64 = 200;

/// Keys of a world; the last one begins as nothing.
const KEYS: [&str; 6] = ["empty", "small", "page", "several", "picture", "late"];

const SPECS: [&str; 3] = ["image?size=16x12", "image?size=300x400", "image"];

/// Promise: whatever is evicted, replaced, late, full or given up, no reply holds a wrong byte or pixel or a mix of two versions;
/// every call ends by its deadline with an answer that is true; memory and tasks come back to nothing; and once all is calm, a
/// reader that was told `changed` need only begin again.
#[test]
fn random_operations_agree_with_the_model() {
    let one = std::env::var("FRAMECACHE_SEED").ok().map(|seed| seed.parse().expect("FRAMECACHE_SEED is a number"));
    let mut outcomes = Outcomes::new();
    for seed in one.map_or(0..SEEDS, |seed: u64| seed..seed + 1) {
        let _told = Told(seed);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("runtime");
        for (name, count) in runtime.block_on(story(seed)) {
            *outcomes.entry(name).or_default() += count;
        }
    }
    println!("{outcomes:?}");
    for name in ["bytes", "pixels", "changed", "not found", "busy", "deadline", "unavailable", "undecodable", "left"] {
        assert!(one.is_some() || outcomes.contains_key(name), "no story had {name:?}: the dice are loaded");
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

/// One seed's world.
#[derive(Clone)]
struct Story {
    world: Arc<World>,
    freshness: Freshness,
    /// Nothing fails, so that no call has an excuse.
    faithful: bool,
}

async fn story(seed: u64) -> Outcomes {
    let mut dice = Dice::new(seed ^ 0x5eed);
    let faithful = seed.is_multiple_of(4);
    let climate = climate(seed, faithful, &mut dice);
    let story = Story { world: Arc::new(World::new(climate.clone(), seed)), freshness: climate.freshness, faithful };
    let replaces = !faithful || seed % 8 == 4;
    let mut generation = 0;
    for key in &KEYS[..KEYS.len() - 1] {
        story.world.put(key, contents(key, generation, &mut dice));
    }
    let mut calls = JoinSet::new();
    for _ in 0..OPERATIONS {
        sleep(Duration::from_millis(if dice.chance(60) { 0 } else { dice.within(0..120) })).await;
        let (key, picture) = (*dice.one_of(&KEYS), *dice.one_of(&KEYS[4..]));
        let (own, story) = (dice.fork(), story.clone());
        match dice.within(0..100) {
            0..8 if replaces => {
                generation += 1;
                story.world.put(key, contents(key, generation, &mut dice));
            }
            8..10 if replaces => story.world.origin.delete(key),
            0..55 => drop(calls.spawn(story.call(key, true, own))),
            // What is no picture is asked for as one seldom.
            _ if dice.chance(70) => drop(calls.spawn(story.call(picture, false, own))),
            _ => drop(calls.spawn(story.call(key, false, own))),
        }
    }
    let mut outcomes = Outcomes::new();
    while let Some(ended) = calls.join_next().await {
        match ended {
            Ok(outcome) => *outcomes.entry(outcome).or_default() += 1,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
    story.calm_end().await;
    if faithful && !replaces {
        story.each_was_filled_once();
    }
    story.world.end().await;
    outcomes
}

/// The weather of a seed.
fn climate(seed: u64, faithful: bool, dice: &mut Dice) -> Climate {
    let freshness = match seed % 3 {
        0 => Freshness::Immutable,
        1 => Freshness::MaxAge(Duration::from_millis(dice.within(1..2000))),
        _ => Freshness::Always,
    };
    if faithful {
        return Climate::calm(freshness);
    }
    let often = |dice: &mut Dice| if dice.chance(50) { 0 } else { dice.within(1..20) };
    Climate {
        freshness,
        memory: [8 << 20, 4 << 20, 1 << 20, if dice.chance(50) { 0 } else { 16 << 20 }],
        origin_ms_max: dice.within(1..400),
        origin_fails: often(dice),
        origin_hangs: often(dice) / 5,
        evicts: often(dice),
        store_slow: often(dice),
        passes: often(dice),
        decoder_fails: often(dice),
        over: Arc::default(),
    }
}

/// Bytes of a generation; a picture's begin as a JPEG does, since the node looks at the header.
fn contents(key: &str, generation: u32, dice: &mut Dice) -> Bytes {
    let length = match key {
        "empty" => 0,
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
    matches!(key, "picture" | "late")
}

impl Story {
    /// One call, which may be given up before it ends.
    async fn call(self, key: &'static str, raw: bool, mut dice: Dice) -> &'static str {
        let patience = if dice.chance(10) { dice.within(0..300) } else { 1_000_000 };
        let call = async {
            match raw {
                true => self.read(key, dice).await,
                false => self.frame(key, dice).await,
            }
        };
        timeout(Duration::from_millis(patience), call).await.unwrap_or("left")
    }

    async fn read(&self, key: &str, mut dice: Dice) -> &'static str {
        let (start, deadline, drain) = (Instant::now(), deadline(&mut dice), drain(&mut dice));
        let length = self.world.model.current(key).map_or(0, |(_, bytes)| bytes.len() as u64);
        let from = dice.within(0..length + length / 8 + 1);
        let count = if dice.chance(70) { dice.within(0..70_000) } else { dice.within(0..5 * PAGE_BYTES) };
        let range = ByteRange::at(from, count).expect("range");
        let pin = self.pin(key, &mut dice);
        let replied = match self.world.read(key, range, pin.as_ref(), deadline, drain).await {
            Ok(replied) => replied,
            Err(error) => return self.judge_beginning(key, &error, pin.as_ref(), start),
        };
        self.judge_version(key, &replied.head.version, pin.as_ref(), start);
        let Some(error) = replied.error else {
            self.world.model.expect(key, &replied.head.version, range, &replied.bytes);
            return "bytes";
        };
        let part = ByteRange::at(from, replied.bytes.len() as u64).expect("range");
        self.world.model.expect(key, &replied.head.version, part, &replied.bytes);
        self.judge(key, &error, Some(&replied.head.version), start)
    }

    async fn frame(&self, key: &str, mut dice: Dice) -> &'static str {
        let (start, deadline, drain) = (Instant::now(), deadline(&mut dice), drain(&mut dice));
        let spec: DecodeSpec = dice.one_of(&SPECS).parse().expect("spec");
        let pin = self.pin(key, &mut dice);
        match self.world.frame(key, &spec, pin.as_ref(), deadline, drain).await {
            Ok((head, tensor)) => {
                self.judge_version(key, &head.version, pin.as_ref(), start);
                let bytes = self.world.model.bytes(key, &head.version).expect("judged");
                assert!(is_picture(key) && tensor == pixels(&bytes, &spec), "{key}: pixels are not those of {}", head.version);
                "pixels"
            }
            Err(error) => self.judge_beginning(key, &error, pin.as_ref(), start),
        }
    }

    /// Sometimes a version that is, or was, the object's.
    fn pin(&self, key: &str, dice: &mut Dice) -> Option<Version> {
        let past = self.world.model.since(key, Instant::now() - Duration::from_secs(dice.within(0..4)));
        let versions: Vec<_> = past.into_iter().flatten().map(|(version, _)| version).collect();
        (dice.chance(30) && !versions.is_empty()).then(|| dice.one_of(&versions).clone())
    }

    fn judge_version(&self, key: &str, version: &Version, pin: Option<&Version>, start: Instant) {
        let trust = match self.freshness {
            Freshness::Immutable => Trust::Ever,
            // Ages are kept in whole milliseconds.
            Freshness::MaxAge(age) => Trust::Age(age + Duration::from_millis(1)),
            Freshness::Always => Trust::Age(Duration::ZERO),
        };
        match pin {
            Some(pin) => assert_eq!(version, pin, "{key}: another version than the pinned one"),
            None => {
                let true_then = self.world.model.may_answer(key, version, start, trust);
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
        let past = self.world.model.since(key, start);
        let excuse = |name| {
            assert!(!self.faithful, "{key}: {error}, and nothing had failed");
            name
        };
        match error {
            ReadError::NotFound => {
                assert!(past.iter().any(Option::is_none), "{key}: not found, but it was there all the time");
                "not found"
            }
            ReadError::Changed { old, .. } => {
                assert!(pin.is_none_or(|pin| pin == old), "{key}: pinned to {pin:?}, and told that {old} changed");
                let held = self.world.model.held_throughout(key, old, start);
                assert!(!held, "{key}: `changed`, but {old} was there all the time");
                "changed"
            }
            ReadError::Undecodable(_) => {
                assert!(!is_picture(key), "{key}: {error}");
                "undecodable"
            }
            ReadError::OutOfRange { start, size } => {
                assert!(start > size && self.world.model.ever_had(key, *size), "{key}: {error}, which it never had");
                "past the end"
            }
            ReadError::Deadline => "deadline",
            ReadError::Busy { .. } => excuse("busy"),
            ReadError::Unavailable(_) => excuse("unavailable"),
            other => panic!("{key}: {other}"),
        }
    }

    /// Once nothing fails any more, every object that is there can be read whole, at the second try at the latest.
    async fn calm_end(&self) {
        self.world.calm_down();
        sleep(Duration::from_secs(90)).await;
        let whole = ByteRange::at(0, u64::MAX / 2).expect("range");
        for key in KEYS {
            let Some((_, bytes)) = self.world.model.current(key) else { continue };
            let mut told = Vec::new();
            loop {
                let deadline = Instant::now() + Duration::from_secs(20);
                let replied = match self.world.read(key, whole.clamp(bytes.len() as u64), None, deadline, Duration::ZERO).await {
                    Ok(replied) if replied.error.is_none() => {
                        break self.judge_version(key, &replied.head.version, None, deadline);
                    }
                    Ok(replied) => replied.error,
                    Err(error) => Some(error),
                };
                told.extend(replied);
                assert!(told.len() < 2, "{key}: {told:?}, and nothing fails any more");
            }
        }
    }

    /// While it is held, each page of a version was asked of the origin once, and each picture decoded once a spec.
    fn each_was_filled_once(&self) {
        for ((key, start, version), times) in self.world.origin.answered() {
            assert_eq!(times, 1, "{key}: byte {start} of {version} was asked for again");
        }
        assert!(self.world.decoder.jobs() <= SPECS.len() as u64, "{} decodes", self.world.decoder.jobs());
    }
}

fn deadline(dice: &mut Dice) -> Instant {
    let most = if dice.chance(20) { 100 } else { 30_000 };
    Instant::now() + Duration::from_millis(dice.within(5..most))
}

/// How long the client takes to receive an item.
fn drain(dice: &mut Dice) -> Duration {
    Duration::from_millis(if dice.chance(50) { 0 } else { dice.within(0..200) })
}
