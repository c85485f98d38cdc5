//! Hostile pictures of every format, through real workers.

use std::path::{Path, PathBuf};
use std::process::Command;

use framecache_node::decode::{DecodeError, Decoder, Limits, PoolSettings, probe};
use futures::StreamExt;

use super::{ask, deadline, job, object, settings, start};

/// What the test environment's Pillow writes.
fn pillow(what: &str) -> tempfile::TempDir {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = std::env::var_os("PYO3_PYTHON").map_or_else(|| root.join("../.venv/bin/python"), PathBuf::from);
    let made = tempfile::tempdir().expect("folder");
    let output = Command::new(python).arg(root.join("tests/pillow.py")).arg(what).arg(made.path()).output();
    let output = output.expect("python of the test environment");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    made
}

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

/// Small pictures of every format: Pillow's, and the corpus's where one is named.
fn originals() -> Vec<(String, Vec<u8>)> {
    let made = pillow("make");
    let mut folders = vec![made.path().to_owned()];
    folders.extend(std::env::var("FRAMECACHE_CORPUS").map(|corpus| Path::new(&corpus).join("images")));
    let mut found = Vec::new();
    for folder in folders {
        let mut paths: Vec<_> = std::fs::read_dir(folder).expect("folder").map(|entry| entry.expect("entry").path()).collect();
        paths.sort();
        let files = paths.into_iter().map(|path| {
            let bytes = std::fs::read(&path).expect("file");
            (path.file_name().expect("name").to_string_lossy().into_owned(), bytes)
        });
        found.extend(files.filter(|(name, bytes)| !name.ends_with("jsonl") && (1..=30 << 10).contains(&bytes.len())));
    }
    found
}

/// Up to nine bytes changed, most of them near the start, where sizes and offsets stand; sometimes cut.
fn mutant(bytes: &[u8], mut seed: u64) -> Vec<u8> {
    let mut roll = |sides: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed >> 20) as usize % sides.max(1)
    };
    let mut out = bytes.to_vec();
    for _ in 0..=roll(9) {
        let near = if roll(2) == 0 { 200 } else { out.len() };
        let at = roll(near.min(out.len()));
        out[at] = [0, 0xff, 0x80, 1, roll(256) as u8, out[at] ^ 1 << roll(8)][roll(6)];
    }
    if roll(10) == 0 {
        out.truncate(roll(bytes.len()));
    }
    out
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
