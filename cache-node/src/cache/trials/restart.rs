//! What outlives the process: a clean end, and `kill -9` in the middle of writes.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::*;
use crate::cache::{CacheError, DiskPresence, InsertHint, Place, Presence, Store};

const DISK: u64 = 512 << 20;

/// Entries of 100 KB that the killed child inserts at once.
const BURST: u64 = 160;

/// Promise: what was flushed is there after a restart, with its head, and nothing is wrong. Decoded and chunked values too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_keeps_the_cache() {
    let dir = folder();
    let entry = |n: u64| match n % 50 {
        0 => (page_key(&format!("r/{n}"), 0), page_entry(n, 3 << 20)),
        1..25 => (page_key(&format!("r/{n}"), 0), page_entry(n, 40_000)),
        _ => (frame_key(&format!("r/{n}"), n), frame_entry(n, 100)),
    };
    let store = open(dir.path(), DISK).await;
    for n in 0..1000 {
        let (key, entry) = entry(n);
        store.insert(key, entry, InsertHint::Normal);
        store.room().await;
    }
    store.flush().await;
    assert_eq!(store.stats().flushed, 1000);
    store.close().await;
    drop(store);
    let store = open(dir.path(), DISK).await;
    for n in 0..1000 {
        let (key, entry) = entry(n);
        assert_eq!(store.presence(&key).await, Presence { ram: false, disk: DiskPresence::Flushed });
        assert_eq!(store.get(&key, None).await.as_ref(), Some(&entry), "{n}");
    }
    assert_eq!(store.stats().hits_disk, 1000);
    store.close().await;
}

/// Promise: another page size, another size and another's folder are told apart: grown and shrunk tiers keep what fits, a stranger's
/// folder and one in use are refused by name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn folders_are_known_by_their_marker() {
    let dir = folder();
    let store = open(dir.path(), 64 << 20).await;
    store.insert(page_key("a", 0), page_entry(1, 5000), InsertHint::Normal);
    store.flush().await;
    let second = FoyerStore::open(settings(dir.path(), 64 << 20)).await;
    assert!(matches!(second.err(), Some(CacheError::InUse { .. })));
    store.close().await;
    drop(store);
    // The files close when foyer's tasks have ended.
    for disk in [128 << 20, 48 << 20] {
        let store = open(dir.path(), disk).await;
        assert!(store.get(&page_key("a", 0), None).await.is_some(), "{disk}");
        store.close().await;
    }
    let stranger = folder();
    std::fs::write(stranger.path().join("thesis.tex"), "x").expect("write");
    let refused = FoyerStore::open(settings(stranger.path(), 64 << 20)).await.err().expect("refused");
    assert!(refused.to_string().contains("thesis.tex"), "{refused}");
    let small = FoyerStore::open(settings(folder().path(), 1 << 20)).await.err();
    assert!(matches!(small, Some(CacheError::TooSmall { .. })));
}

/// Promise: after `kill -9` in the middle of writes, 99 % of what was reported as flushed is served, 90 % of what was inserted over
/// 5 s earlier had been flushed, and no byte is wrong.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_leaves_what_was_flushed() {
    let rounds = if soak() { 5 } else { 1 };
    for round in 0..rounds {
        let dir = folder();
        let disk = if soak() { 4 << 30 } else { DISK };
        let me = std::env::current_exe().expect("test binary");
        let mut child = Command::new(me)
            .args(["--exact", "cache::trials::restart::child_that_is_killed", "--nocapture", "--include-ignored"])
            .env("FRAMECACHE_KILL_DIR", dir.path())
            .env("FRAMECACHE_KILL_DISK", disk.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .expect("child");
        let started = Instant::now();
        let life = Duration::from_millis(6500 + 700 * round);
        let mut inserted: Vec<(u64, Duration)> = Vec::new();
        let mut flushed: Vec<u64> = Vec::new();
        let mut lines = BufReader::new(child.stdout.take().expect("stdout")).lines();
        while let Some(Ok(line)) = lines.next() {
            match line.split_once(' ') {
                Some(("inserted", n)) => inserted.push((n.parse().expect("number"), started.elapsed())),
                Some(("flushed", n)) => flushed.push(n.parse().expect("number")),
                _ => {}
            }
            if started.elapsed() > life {
                child.kill().expect("kill");
                break;
            }
        }
        child.wait().expect("wait");
        let killed = started.elapsed();
        let opening = Instant::now();
        let store = open(dir.path(), disk).await;
        println!("round {round}: ready in {:?}", opening.elapsed());
        let (mut served, mut early, mut early_held) = (0, 0, 0);
        let flushed: std::collections::HashSet<u64> = flushed.into_iter().collect();
        for (n, at) in &inserted {
            let got = store.get(&page_key(&format!("kill/{n}"), 0), None).await;
            if let Some(got) = &got {
                assert_eq!(*got, page_entry(*n, 100_000), "wrong bytes of {n}");
            }
            served += u64::from(flushed.contains(n) && got.is_some());
            if *at + Duration::from_secs(5) < killed {
                early += 1;
                early_held += u64::from(flushed.contains(n));
            }
        }
        let all = flushed.len() as u64;
        println!(
            "round {round}: {} inserted, {all} reported as flushed, {served} of them served; of {early} older than 5 s {early_held} flushed",
            inserted.len()
        );
        assert!(all > 100 && served * 100 >= all * 99, "{served} of {all}");
        assert!(early_held * 10 >= early * 9, "{early_held} of {early}");
        assert_eq!(store.stats().corrupt, 0);
        store.close().await;
    }
}

/// The child of the trial above: inserts for ever, reports what is flushed, and never ends by itself within the parent's patience.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by kill_leaves_what_was_flushed"]
async fn child_that_is_killed() {
    let Some(dir) = std::env::var_os("FRAMECACHE_KILL_DIR") else { return };
    let disk: u64 = std::env::var("FRAMECACHE_KILL_DISK").ok().and_then(|v| v.parse().ok()).expect("disk");
    let store = open(Path::new(&dir), disk).await;
    assert_eq!(store.stats().disk_off, None, "the trial needs {disk} bytes of disk");
    let mut out = std::io::stdout();
    let most = disk / 120_000;
    let mut waiting = std::collections::VecDeque::new();
    let started = Instant::now();
    for burst in 0.. {
        // In bursts of a write batch, so that it is killed while it writes.
        let burst = (burst * BURST).min(most)..((burst + 1) * BURST).min(most);
        for n in burst {
            store.insert(page_key(&format!("kill/{n}"), 0), page_entry(n, 100_000), InsertHint::As(Place::RamAndDisk));
            waiting.push_back(n);
            writeln!(out, "inserted {n}").expect("report");
        }
        store.room().await;
        while let Some(oldest) = waiting.front() {
            if store.presence(&page_key(&format!("kill/{oldest}"), 0)).await.disk != DiskPresence::Flushed {
                break;
            }
            writeln!(out, "flushed {oldest}").expect("report");
            waiting.pop_front();
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
        if started.elapsed() > Duration::from_secs(60) {
            return;
        }
    }
}
