//! Clients and nodes over QUIC on a simulated network against the dumb model: datagrams are lost, late, doubled, damaged and overtaken,
//! ways are cut, nodes join, leave and die, the origin is slow and fails, objects are replaced. A failure prints its seed; run that one
//! alone with `FRAMECACHE_SEED=… cargo test --release --test memory quic`.

mod story;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Once};
use std::time::Duration;

use framecache_tests::simulated::Bug;
use framecache_tests::simulated::network::Counts;
use tokio::task::JoinError;
use tokio::time::Instant;

use story::{STEADY_EACH, story};

/// Stories in the ordinary run, and in the long one.
const SEEDS: [u64; 2] = [40, 500];

/// Seeds that a planted bug may hide from; each was found by far fewer.
const HIDING_MAX: u64 = 40;

/// Stories that are told at once.
const THREADS: usize = 2;

/// Promise: whatever the network loses, delays, doubles, damages or cuts, and whoever dies, leaves or joins: no byte and no pixel is wrong,
/// and each is of a version that was true; no item is lost; no call outlives its deadline, none writes after it was given up, and none
/// writes beside its buffer; soon after all is well everything can be read, by clients that know the cluster as it is; and at the end no
/// task, stream or byte of memory is left over.
#[test]
fn random_networks_agree_with_the_model() {
    let one = std::env::var("FRAMECACHE_SEED").ok().map(|seed| seed.parse().expect("FRAMECACHE_SEED is a number"));
    let seeds = SEEDS[usize::from(std::env::var_os("FRAMECACHE_SOAK").is_some())];
    let range = one.map_or(0..seeds, |seed: u64| seed..seed + 1);
    let (next, all) = (AtomicU64::new(range.start), Mutex::new(Told::default()));
    std::thread::scope(|scope| {
        let teller = || {
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= range.end {
                    return;
                }
                let _named = Named(seed);
                let told = told(seed, None);
                all.lock().expect("others panicked").add(&told);
            }
        };
        (0..THREADS).for_each(|_| drop(scope.spawn(teller)));
    });
    let all = all.into_inner().expect("nobody panicked");
    println!("{:?}, {:?}, healed within {:?}", all.outcomes, all.counts, all.healed);
    let calls = ["bytes", "pictures", "given up", "changed", "unavailable", "timeout"];
    for name in calls.into_iter().chain(["retries", "failovers", "hedges", "hedges won", "news", "silences"]) {
        assert!(one.is_some() || all.outcomes.get(name) > Some(&0), "no story had {name:?}: the dice are loaded");
    }
    let Counts { lost, cut, too_large, doubled, damaged, overtaken, .. } = all.counts;
    let each = [lost, cut, too_large, doubled, damaged, overtaken];
    assert!(one.is_some() || !each.contains(&0), "{each:?}: that was a good network");
}

/// Promise: a seed tells one story: the same datagrams at the same times meet with the same, and the same calls end alike.
#[test]
fn a_seed_tells_one_story() {
    for seed in [1, 2, STEADY_EACH - 1] {
        let _named = Named(seed);
        let (first, second) = (told(seed, None), told(seed, None));
        for (first, second) in first.log.iter().zip(&second.log) {
            assert_eq!(first, second);
        }
        assert_eq!((first.log.len(), first.counts), (second.log.len(), second.counts));
    }
}

/// Promise: the stories are no fairy tales. Bugs that a client, a node or what lies between might have, each planted alone, are each found.
#[test]
fn planted_bugs_are_found_on_the_network() {
    (0..4).for_each(|seed| drop(told(seed, Some(Bug::Nothing))));
    for (bug, words) in Bug::ALL {
        let finds = |seed: &u64| {
            let panic = catch_unwind(AssertUnwindSafe(|| told(*seed, Some(bug)))).err()?;
            let said =
                panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref::<&str>().map(|said| (*said).into()))?;
            words.iter().any(|word| said.contains(word)).then_some(said)
        };
        let found = (0..HIDING_MAX).find(|seed| finds(seed).is_some());
        println!("{bug:?}: found by seed {found:?}");
        assert!(found.is_some(), "{bug:?} is not found by {HIDING_MAX} stories");
    }
}

/// What a story was.
#[derive(Debug, Default)]
struct Told {
    /// How often calls ended how.
    outcomes: BTreeMap<&'static str, u64>,
    /// Calls in the order of their ends, with their times.
    log: Vec<(Duration, u64, &'static str)>,
    counts: Counts,
    /// How long after all was well everything could be read.
    healed: Duration,
}

impl Told {
    fn add(&mut self, other: &Told) {
        for (name, count) in &other.outcomes {
            *self.outcomes.entry(name).or_default() += count;
        }
        self.healed = self.healed.max(other.healed);
        let (all, more) = (&mut self.counts, &other.counts);
        all.sent += more.sent;
        all.lost += more.lost;
        all.cut += more.cut;
        all.too_large += more.too_large;
        all.doubled += more.doubled;
        all.damaged += more.damaged;
        all.overtaken += more.overtaken;
        all.story ^= more.story;
    }

    /// Takes in how a call ended.
    fn count(&mut self, began: Instant, ended: Result<(u64, &'static str), JoinError>) {
        match ended {
            Ok((number, outcome)) => {
                *self.outcomes.entry(outcome).or_default() += 1;
                self.log.push((began.elapsed(), number, outcome));
            }
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}

/// Names the seed of a story that panics.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("FRAMECACHE_SEED={} cargo test --release --test memory quic", self.0);
        }
    }
}

thread_local! {
    /// Panics of this thread, those of tasks too, which nobody else would see.
    static PANICS: Cell<u64> = const { Cell::new(0) };
}

fn told(seed: u64, bug: Option<Bug>) -> Told {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.set(PANICS.get() + 1);
            before(panic);
        }));
    });
    PANICS.set(0);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("runtime");
    let told = runtime.block_on(story(seed, bug));
    assert_eq!(PANICS.get(), 0, "a task of a node or client panicked");
    told
}
