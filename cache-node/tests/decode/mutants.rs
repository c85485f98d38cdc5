//! Hostile pictures of every format, through real workers.

use std::path::Path;

use framecache_node::decode::{DecodeError, Decoder, Limits, PoolSettings, probe};
use futures::StreamExt;

use super::made::{mutant, originals, pillow};
use super::{ask, deadline, job, object, settings, start};

/// Promise: what the header says a decode takes is enough of it: a worker with not a byte more decodes the picture, of an animation the
/// second frame.
#[tokio::test]
async fn bounds_from_headers_hold() {
    // What a pool sets aside besides, for a worker's program and its allocator.
    let slack = 128 << 20;
    let made = pillow("large");
    let mut files = 0;
    for entry in std::fs::read_dir(made.path()).expect("folder") {
        let path = entry.expect("entry").path();
        let (name, bytes) = (path.file_name().expect("name").to_string_lossy().into_owned(), std::fs::read(&path).expect("file"));
        let probe = probe(&bytes, bytes.len() as u64, &Limits::default()).expect("probe");
        let worker_memory = probe.cost_bytes(&["image".parse().expect("spec")]) + slack;
        let pool = start(PoolSettings { worker_memory, workers: 1, ..settings() }).await;
        let (size, frame) = (bytes.len() as u64, u64::from(name.starts_with("moving")));
        let job = job(&name, object(bytes), size, &[&format!("video?frames={frame}")]);
        let tensor = pool.decode(job, deadline()).await.and_then(|mut answers| answers.remove(0));
        let tensor = tensor.unwrap_or_else(|error| panic!("{name} in {worker_memory} bytes: {error}"));
        assert_eq!(tensor.data.len(), 2001 * 1501 * 3, "{name}");
        assert_eq!(pool.stats().deaths_judged, 0, "{name}");
        pool.close().await;
        files += 1;
    }
    assert_eq!(files, 17);
}

/// Promise: no mutant of any format ends a worker, let alone the node: each has its pixels, or a refusal that says whose fault it is.
#[tokio::test]
async fn mutants_end_nothing() {
    let (seed, count) = (0x5eed_2026_1129_u64, if std::env::var_os("FRAMECACHE_SOAK").is_some() { 100_000 } else { 10_000 });
    let originals = originals();
    let pool = start(PoolSettings { test_codecs: false, ..settings() }).await;
    let decode = |number: u64| {
        let (name, bytes) = &originals[number as usize % originals.len()];
        let (key, bytes) = (format!("{number}-{name}"), mutant(bytes, seed.wrapping_mul(2 * number + 1)));
        let pool = &pool;
        async move {
            let answer = ask(pool, &key, bytes.clone(), &["image?size=16x16"]).await;
            if let Err(DecodeError::Quarantined { cause, .. }) = &answer {
                println!("{key}: {cause}");
                if let Some(folder) = std::env::var_os("FRAMECACHE_KEEP") {
                    std::fs::write(Path::new(&folder).join(&key), &bytes).expect("keep");
                }
            }
            match answer.and_then(|mut answers| answers.remove(0)) {
                Ok(_) => (1u64, 0u64),
                Err(error) => (0, u64::from(!error.is_permanent())),
            }
        }
    };
    let (mut sound, mut passing) = (0, 0);
    let mut answers = futures::stream::iter(0..count).map(decode).buffer_unordered(8);
    while let Some((drawn, other)) = answers.next().await {
        sound += drawn;
        passing += other;
    }
    drop(answers);
    let stats = pool.stats();
    println!(
        "seed {seed:x}: {count} mutants of {} pictures, {sound} drawn, {} workers ended",
        originals.len(),
        stats.deaths_judged
    );
    assert_eq!((stats.deaths_judged, stats.deaths_lost, passing), (0, 0, 0));
    assert!(sound > count / 10 && sound < count, "{sound}");
    pool.close().await;
}
