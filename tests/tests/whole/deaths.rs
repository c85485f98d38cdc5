//! Decoders die: by their picture, by an outsider, for want of memory. Who asks for other pictures hardly notices, and no picture is
//! blamed for what it has not done.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use framecache::{Batch, Call, Client, Error, ErrorKind, ImageSpec};
use framecache_tests::dice::Dice;
use framecache_tests::harness::{Cluster, Options, id};
use framecache_tests::media::{PLAIN, PROGRESSIVE, fnv, planted};
use framecache_tests::mutants::pillow;
use framecache_tests::served::{Served, kill};
use futures::future::join_all;
use tokio::time::{Instant, sleep};

use crate::soak;

/// The hash of one picture's pixels.
async fn ask(client: &Client, key: &str, spec: &ImageSpec, timeout: Duration) -> Result<u64, Error> {
    let (batch, call) = (Batch::new(1, 1 << 20), Call { timeout: Some(timeout), ..Call::default() });
    client.images(&[id(key)], spec, &batch, &call).await.remove(0)?;
    Ok(fnv(batch.finish().pixels(0).expect("pixels")))
}

fn image() -> ImageSpec {
    "image".parse().expect("spec")
}

const PATIENT: Duration = Duration::from_secs(30);

fn deaths(metrics: &HashMap<String, f64>, judged: &str) -> f64 {
    metrics[&format!("framecache_decode_worker_deaths_total{{judged=\"{judged}\"}}")]
}

/// The time that all but one in a hundred of new good pictures take, of those that are read in a while by four.
async fn p99(cluster: &Cluster, readers: &[Client], round: &str) -> Duration {
    let until = Instant::now() + Duration::from_secs(if soak() { 3 } else { 1 });
    let one = |number: usize, reader: &Client| {
        let reader = reader.clone();
        async move {
            let mut times = Vec::new();
            while Instant::now() < until {
                let key = format!("good/{round}-{number}-{}", times.len());
                cluster.put(&key, PLAIN.file);
                let asked = Instant::now();
                assert_eq!(ask(&reader, &key, &image(), PATIENT).await.expect("a good picture"), PLAIN.pixels_fnv);
                times.push(asked.elapsed());
            }
            times
        }
    };
    let mut times = join_all(readers.iter().enumerate().map(|(number, reader)| one(number, reader))).await.concat();
    times.sort();
    times[times.len() * 99 / 100]
}

/// Promise: a picture that ends its decoder, asked for by 64 loaders at once, costs two decoders; all 64 are told that it is the
/// picture, and the p99 of those who ask for others is at most half as long again (judged at full size alone: it is a time).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crasher_costs_two_decoders() {
    let options = Options { workers: 2, worker: "exec NODE \"$@\" --test-codecs", ..Options::default() };
    let cluster = Cluster::start(1, options).await;
    cluster.put("warm", PLAIN.file);
    let (readers, loaders): (Vec<_>, Vec<_>) =
        ((0..4).map(|_| cluster.client()).collect(), (0..64).map(|_| cluster.client()).collect());
    for client in readers.iter().chain(&loaders) {
        ask(client, "warm", &image(), PATIENT).await.expect("connected");
    }
    let rounds = if soak() { 11 } else { 2 };
    let mut ratios = Vec::new();
    for round in 0..rounds {
        let without = p99(&cluster, &readers, &format!("{round}-without")).await;
        let (crasher, before) = (format!("crasher-{round}"), cluster.metrics(0).await);
        cluster.put(&crasher, &planted("crash"));
        let asked = |loader| {
            let crasher = &crasher;
            async move { ask(loader, crasher, &image(), PATIENT).await.expect_err("a crasher") }
        };
        let round = format!("{round}-with");
        let (with, errors) = tokio::join!(p99(&cluster, &readers, &round), join_all(loaders.iter().map(asked)));
        for error in errors {
            assert!(
                error.kind == ErrorKind::Undecodable && error.message.contains("quarantined after 2 worker deaths"),
                "{error}"
            );
        }
        let after = cluster.metrics(0).await;
        assert_eq!((deaths(&after, "yes") - deaths(&before, "yes"), deaths(&after, "no")), (2.0, 0.0));
        println!("p99 {without:?} without, {with:?} with");
        ratios.push(with.as_secs_f64() / without.as_secs_f64());
    }
    assert_eq!(cluster.metrics(0).await["framecache_decode_quarantined"], f64::from(rounds));
    ratios.sort_by(f64::total_cmp);
    println!("ratios {ratios:.2?}, median {:.2}", ratios[ratios.len() / 2]);
    assert!(!soak() || ratios[ratios.len() / 2] <= 1.5);
    cluster.stop().await;
}

/// Promise: decoders that an outsider kills, at any moment, are made up for: each picture is right in the end, none is judged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outside_kills_blame_no_picture() {
    let tables = "[node]\nid = \"n\"\nmemory_limit = \"1GiB\"\n[cache]\nraw_ram = \"64MiB\"\ndecoded_ram = \"64MiB\"\n\
        [decode]\nworkers = 2\n";
    let served = Served::start(tables, "credentials = \"anonymous\"\n", &[]).await;
    let (client, seed) = (served.client(), 29);
    println!("seed {seed}");
    // Drawn large, so that a decoder is met at its work.
    let specs: Vec<ImageSpec> = ["image", "image?size=900x600"].map(|text| text.parse().expect("spec")).into();
    let media = [PLAIN, PROGRESSIVE];
    let mut right = Vec::new();
    for (index, picture) in media.iter().enumerate() {
        served.put(&format!("calm-{index}"), picture.file);
        for spec in &specs {
            right.push(ask(&client, &format!("calm-{index}"), spec, PATIENT).await.expect("calm"));
        }
    }
    assert_eq!((right[0], right[2]), (PLAIN.pixels_fnv, PROGRESSIVE.pixels_fnv));
    let (until, over, asked) =
        (Instant::now() + Duration::from_secs(if soak() { 20 } else { 3 }), AtomicBool::new(false), AtomicU64::new(0));
    let askers = join_all((0..8).map(|_| async {
        while Instant::now() < until {
            let number = asked.fetch_add(1, Relaxed);
            let (index, which) = ((number % 2) as usize, (number / 2 % 2) as usize);
            let key = format!("{number}.jpg");
            served.put(&key, media[index].file);
            let hash = ask(&client, &key, &specs[which], PATIENT).await;
            assert_eq!(hash.expect("a good picture"), right[2 * index + which], "{key}");
        }
    }));
    let killer = async {
        let (mut dice, mut killed) = (Dice::new(seed), 0);
        while !over.load(Relaxed) {
            let workers = served.workers();
            if !workers.is_empty() {
                kill(*dice.one_of(&workers), libc::SIGKILL);
                killed += 1;
            }
            // A decoder starts in 40 ms: now and then one is met before it is ready, but not each.
            sleep(Duration::from_millis(dice.within(20..150))).await;
        }
        killed
    };
    let asking = async {
        askers.await;
        over.store(true, Relaxed);
    };
    let ((), killed) = tokio::join!(asking, killer);
    let metrics = served.metrics().await;
    println!("{} pictures, {killed} kills, {} deaths", asked.load(Relaxed), deaths(&metrics, "no"));
    assert!(deaths(&metrics, "no") > 20.0, "that was no trouble");
    assert_eq!((deaths(&metrics, "yes"), metrics["framecache_decode_quarantined"]), (0.0, 0.0));
    client.close().await;
}

/// Promise: a good picture whose decoder is refused memory that its own limit would give it is not blamed: it is right, or could not
/// be had.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn want_of_memory_blames_no_picture() {
    let made = pillow("large");
    let files: Vec<_> = std::fs::read_dir(made.path()).expect("folder").map(|entry| entry.expect("entry").path()).collect();
    // Kibibytes of data that a decoder may have, as little as leaves it some of the pictures, or most. FFmpeg's libraries have 32 MB of it,
    // most of which is never touched.
    for worker in ["ulimit -d 52000; exec NODE \"$@\"", "ulimit -d 77000; exec NODE \"$@\""] {
        let cluster = Cluster::start(1, Options { workers: 2, worker, ..Options::default() }).await;
        let client = cluster.client();
        let one = |path: &std::path::PathBuf| {
            let (key, bytes) =
                (path.file_name().expect("name").to_string_lossy().into_owned(), std::fs::read(path).expect("file"));
            let (cluster, client) = (&cluster, &client);
            async move {
                cluster.put(&key, &bytes);
                let Err(error) = ask(client, &key, &image(), Duration::from_secs(2)).await else { return 1 };
                let told = matches!(error.kind, ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::Busy { .. });
                assert!(told, "{worker}: {error}");
                0
            }
        };
        let right: u32 = join_all(files.iter().map(one)).await.into_iter().sum();
        let metrics = cluster.metrics(0).await;
        println!("{worker}: {right} of {} right, {} deaths", files.len(), deaths(&metrics, "no"));
        assert_eq!((deaths(&metrics, "yes"), metrics["framecache_decode_quarantined"]), (0.0, 0.0), "{worker}");
        assert!(deaths(&metrics, "no") > 0.0, "{worker}: that was no want");
        client.close().await;
        cluster.stop().await;
    }
}
