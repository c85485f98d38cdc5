//! Hostile pictures before a node as it is deployed: what they cost it, as the kernel counts.

use std::sync::Arc;
use std::time::Duration;

use framecache::{Batch, Call, Client, Error, ErrorKind, ImageSpec};
use framecache_tests::dice::Dice;
use framecache_tests::harness::{id, reserved};
use framecache_tests::mutants::{mutant, originals, pillow};
use framecache_tests::served::{Held, Served};
use futures::StreamExt;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::soak;

const MIB: u64 = 1 << 20;

/// Two decoders in a gibibyte.
const TABLES: &str = "[node]\nid = \"n\"\nmemory_limit = \"1GiB\"\n\
                      [cache]\nraw_ram = \"64MiB\"\ndecoded_ram = \"64MiB\"\n[decode]\nworkers = 2\n";

const WORKERS: usize = 2;

/// `node.memory_limit` of it.
const LIMIT_BYTES: u64 = 1 << 30;

/// What a worker may keep of shared memory between jobs (`decode worker shared memory` of the budget's fixed lines).
const SHARED_KEPT: u64 = 16 * MIB;

/// Connections to the origin come and go, as many as ask at a time.
const SOCKETS_MORE: usize = 8;

/// How much later than its deadline a call may return: what two busy cores need to wake it.
const SLACK: Duration = Duration::from_millis(500);

/// How one picture was answered.
struct Answer {
    outcome: Result<(), Error>,
    took: Duration,
}

async fn ask(client: &Client, key: &str, spec: &ImageSpec, timeout: Duration) -> Answer {
    let (batch, begun) = (Batch::new(1, MIB), Instant::now());
    let call = Call { timeout: Some(timeout), ..Call::default() };
    let outcome = client.images(&[id(key)], spec, &batch, &call).await.remove(0).map(drop);
    assert!(outcome.is_err() || batch.finish().pixels(0).is_some(), "{key}: an answer without pixels");
    Answer { outcome, took: begun.elapsed() }
}

/// What the node holds once all that was asked is over.
async fn at_rest(served: &Served) -> Held {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let metrics = served.metrics().await;
        if reserved(&metrics) == 0.0 && metrics["framecache_streams"] == 0.0 && metrics["framecache_decode_inside"] == 0.0 {
            return served.held();
        }
        assert!(Instant::now() < deadline, "it does not come to rest");
        sleep(Duration::from_millis(20)).await;
    }
}

/// Name and bytes of each file there.
fn files(folder: &TempDir) -> Vec<(String, Vec<u8>)> {
    let read =
        |entry: std::fs::DirEntry| (entry.file_name().to_string_lossy().into_owned(), std::fs::read(entry.path()).expect("file"));
    let mut files: Vec<_> = std::fs::read_dir(folder).expect("folder").map(|entry| read(entry.expect("entry"))).collect();
    files.sort();
    files
}

fn specs(texts: &[&str]) -> Vec<ImageSpec> {
    texts.iter().map(|text| text.parse().expect("spec")).collect()
}

/// Promise: no mutant of any format ends the node or a decoder; each is answered before its deadline, with pixels or with whose fault it
/// is; memory stays under its limit, descriptors and shared memory are afterwards what they were before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mutants_leave_no_trace() {
    let (seed, count) = (0x0de_2026_1129_u64, if soak() { 10_000 } else { 500 });
    let served = Arc::new(Served::start(TABLES, "credentials = \"anonymous\"\n", &[]).await);
    let (mut originals, client) = (originals(), served.client());
    if soak() {
        originals.extend(files(&pillow("large")));
    }
    let specs = specs(&["image", "image?size=16x16", "image?short=24&crop=16", "image?profile=fast&max=12", "image?mode=gray"]);
    let timeouts = [50, 1_000, 30_000].map(Duration::from_millis);
    let one = |key: String, bytes: Vec<u8>, mut dice: Dice| {
        let (served, client, spec, timeout) = (&served, &client, dice.one_of(&specs), *dice.one_of(&timeouts));
        async move {
            served.put(&key, &bytes);
            let answer = ask(client, &key, spec, timeout).await;
            std::fs::remove_file(served.data.path().join(&key)).expect("remove");
            assert!(answer.took <= timeout + SLACK, "{key} by {spec}: {:?} of {timeout:?}", answer.took);
            match answer.outcome {
                Ok(()) => (1, 0, 0),
                Err(error) if error.kind == ErrorKind::Timeout && timeout < timeouts[2] => (0, 0, 1),
                Err(error) => {
                    use ErrorKind::{TooLarge, Undecodable, Unsupported};
                    assert!(matches!(error.kind, Undecodable | Unsupported | TooLarge), "{key} by {spec}: {error}");
                    (0, 1, 0)
                }
            }
        }
    };
    let mut dice = Dice::new(seed);
    let warm = originals.iter().map(|(name, bytes)| one(format!("warm-{name}"), bytes.clone(), dice.fork())).collect::<Vec<_>>();
    futures::stream::iter(warm).buffer_unordered(8).count().await;
    let (before, watched) = (at_rest(&served).await, served.clone());
    let highest = tokio::spawn(async move {
        let mut highest = Held::default();
        loop {
            let held = watched.held();
            // The two overlap where a decoder has a shared page mapped: together they are more than there is.
            let bytes = held.pss_bytes + held.shared_bytes;
            assert!(bytes < LIMIT_BYTES, "{held:?}");
            if bytes > highest.pss_bytes + highest.shared_bytes {
                highest = held;
            }
            if Arc::strong_count(&watched) == 1 {
                return highest;
            }
            sleep(Duration::from_millis(50)).await;
        }
    });
    let mutants = (0..count).map(|number: u64| {
        let (name, bytes) = &originals[number as usize % originals.len()];
        one(format!("{number}-{name}"), mutant(bytes, seed.wrapping_mul(2 * number + 1)), dice.fork())
    });
    let mut answers = futures::stream::iter(mutants.collect::<Vec<_>>()).buffer_unordered(8);
    let (mut drawn, mut refused, mut late) = (0, 0, 0);
    while let Some((one, two, three)) = answers.next().await {
        (drawn, refused, late) = (drawn + one, refused + two, late + three);
    }
    drop(answers);
    let (after, metrics) = (at_rest(&served).await, served.metrics().await);
    client.close().await;
    drop(served);
    let highest = highest.await.expect("memory stays under its limit");
    println!("seed {seed:x}: {count} mutants, {drawn} drawn, {refused} refused, {late} late\n{before:?}\n{highest:?}\n{after:?}");
    let deaths = ["yes", "no"].map(|judged| metrics[&format!("framecache_decode_worker_deaths_total{{judged=\"{judged}\"}}")]);
    assert_eq!((deaths, metrics["framecache_decode_quarantined"]), ([0.0; 2], 0.0));
    // Both decoders have started by then.
    assert_eq!((after.descriptors, after.shared_files), (before.descriptors, WORKERS), "{after:?}");
    assert!(after.sockets <= before.sockets + SOCKETS_MORE, "{after:?}");
    assert!(after.shared_bytes <= WORKERS as u64 * SHARED_KEPT, "{after:?}");
    assert!(drawn > count / 10 && refused > count / 10, "the damage is neither nothing nor all");
}

/// Promise: what declares or unfolds to far more than it holds is refused, or gives its first frame, within 100 ms and without an end
/// of a decoder. Judged by the best of five: that the machine has other work says nothing about the node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bombs_fizzle() {
    let served = Served::start(TABLES, "credentials = \"anonymous\"\n", &[]).await;
    let (client, bombs) = (served.client(), files(&pillow("bombs")));
    assert_eq!(bombs.len(), 19);
    // Each try by a spec of its own, so that it is no hit; the first finds the bytes at the origin.
    let specs =
        specs(&["image", "image?size=16x16", "image?size=17x17", "image?size=18x18", "image?size=19x19", "image?size=20x20"]);
    let mut slow = Vec::new();
    for (name, bytes) in bombs {
        served.put(&name, &bytes);
        let (mut times, mut said) = (Vec::new(), String::new());
        for spec in &specs {
            let answer = ask(&client, &name, spec, Duration::from_secs(20)).await;
            times.push(answer.took);
            said = match answer.outcome {
                Ok(()) => "a picture".into(),
                Err(error) => {
                    let huge = name.starts_with("huge");
                    assert!(error.kind == if huge { ErrorKind::TooLarge } else { ErrorKind::Undecodable }, "{name}: {error}");
                    error.message
                }
            };
        }
        let best = times[1..].iter().min().expect("tries");
        println!("{name}: best {best:?}, first {:?}: {said}", times[0]);
        assert!(!name.starts_with("huge") || said.starts_with("too large"), "{name}: {said}");
        if *best >= Duration::from_millis(100) {
            slow.push(name);
        }
    }
    let metrics = served.metrics().await;
    assert_eq!(metrics["framecache_decode_worker_deaths_total{judged=\"yes\"}"], 0.0);
    assert!(slow.is_empty(), "{slow:?}");
    client.close().await;
}
