//! Hit ratios on a real disk: shuffled epochs, a switch of data set, a foreign scan. Counts, not times.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::*;
use crate::cache::{InsertHint, Store};

/// Entries of 15 disk pages with their headers, as pictures of some 60 KB: 17 of them fill a small block.
const LEN: usize = 15 * 4096 - 400;

const READERS: u64 = 4;

struct Trial {
    store: Arc<FoyerStore>,
    disk: u64,
    entries: u64,
    noise: Bytes,
    dir: tempfile::TempDir,
}

impl Trial {
    /// A cache for `ratio` of a data set of `dataset` bytes. RAM is too small to matter.
    async fn new(ratio: f64, dataset: u64) -> Self {
        let dir = folder();
        let disk = (dataset as f64 * ratio) as u64;
        let settings = CacheSettings { raw_ram: 1 << 20, decoded_ram: 1 << 20, ..settings(dir.path(), disk) };
        let store = Arc::new(FoyerStore::open(settings).await.expect("open"));
        Self { store, disk, entries: dataset / LEN as u64, noise: bytes(1, LEN + (1 << 20)), dir }
    }

    /// One epoch over a set, `scan` keys read once between any two; its hits over cache / data set. Every byte is compared.
    async fn epoch(&self, set: &'static str, scan: u64, seed: u64) -> f64 {
        let order = Arc::new(shuffled(self.entries, seed));
        let hits = Arc::new(AtomicU64::new(0));
        let reader = |reader: u64| {
            let (order, hits, store, noise) = (order.clone(), hits.clone(), self.store.clone(), self.noise.clone());
            async move {
                for at in (reader..order.len() as u64).step_by(READERS as usize) {
                    let hit = read(&store, &noise, set, order[at as usize]).await;
                    hits.fetch_add(u64::from(hit), Relaxed);
                    for n in 0..scan {
                        read(&store, &noise, "scan", (seed << 40) + at * scan + n).await;
                    }
                }
            }
        };
        let readers: Vec<_> = (0..READERS).map(|n| tokio::spawn(reader(n))).collect();
        for reader in readers {
            reader.await.expect("reader");
        }
        self.store.flush().await;
        let possible = self.disk as f64 / (self.entries * LEN as u64) as f64;
        hits.load(Relaxed) as f64 / self.entries as f64 / possible
    }

    /// No admitted entry was lost, and every one of them is accounted for.
    fn no_drops(&self) {
        let stats = self.store.stats();
        assert_eq!((stats.dropped_queue, stats.dropped_large, stats.dropped_write), (0, 0, 0), "{stats:?}");
        assert_eq!((stats.corrupt, stats.read_errors, stats.disk_off.clone()), (0, 0, None), "{stats:?}");
        assert_eq!(stats.admitted, stats.flushed + stats.superseded, "{stats:?}");
    }

    async fn close(self) {
        self.store.close().await;
        drop(self.dir);
    }
}

async fn read(store: &FoyerStore, noise: &Bytes, set: &str, n: u64) -> bool {
    let key = page_key(&format!("{set}/{n}"), 0);
    let start = (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 44) as usize;
    let body = noise.slice(start..start + LEN);
    match store.get(&key, None).await {
        Some(entry) => {
            assert_eq!(entry.body.bytes(), &body, "wrong bytes of {set}/{n}");
            true
        }
        None => {
            store.insert(key, Entry { head: head(1, LEN as u64), body: Body::Raw(body) }, InsertHint::Normal);
            store.room().await;
            false
        }
    }
}

fn dataset() -> u64 {
    if soak() { 2 << 30 } else { 256 << 20 }
}

/// Promise: shuffled epochs hit 0.95 of cache / data set at least, without a drop.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn epochs_hit_what_the_cache_can_hold() {
    let ratios: &[f64] = if soak() { &[0.2, 0.5, 0.8] } else { &[0.5] };
    for &ratio in ratios {
        let trial = Trial::new(ratio, dataset()).await;
        let mut rel = Vec::new();
        for n in 0..if soak() { 5 } else { 3 } {
            rel.push(trial.epoch("one/train", 0, n).await);
        }
        println!("epochs r={ratio} of {} MiB: rel {rel:.3?}", dataset() >> 20);
        assert!(rel[1..].iter().all(|rel| *rel >= 0.95), "r={ratio}: {rel:?}");
        trial.no_drops();
        trial.close().await;
    }
}

/// Promise: after a switch of data set the second epoch hits 0.9 of it; a foreign scan then leaves it at 0.9.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_switch_refills_and_a_scan_does_not_flush() {
    let ratios: &[f64] = if soak() { &[0.2, 0.5, 0.8] } else { &[0.5] };
    for &ratio in ratios {
        let trial = Trial::new(ratio, dataset()).await;
        let mut rel = Vec::new();
        for (n, set) in ["one/train", "one/train", "two/train", "two/train"].into_iter().enumerate() {
            rel.push(trial.epoch(set, 0, n as u64).await);
        }
        let mut scanned = Vec::new();
        for n in 10..if soak() { 14 } else { 12 } {
            scanned.push(trial.epoch("two/train", 3, n).await);
        }
        println!("switch r={ratio}: rel {rel:.3?}; under a 3:1 scan {scanned:.3?}");
        assert!(rel[3] >= 0.9, "r={ratio}: {rel:?}");
        assert!(scanned.iter().all(|rel| *rel >= 0.9), "r={ratio}: {scanned:?}");
        trial.no_drops();
        trial.close().await;
    }
}

/// Promise: `all` replaces, and loses; `keep` is why this room has a policy. RAM alone keeps too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ram_alone_keeps() {
    let mut hits = Vec::new();
    for admission in [AdmissionMode::All, AdmissionMode::Keep] {
        let settings = CacheSettings { dir: None, raw_ram: 16 << 20, admission, ..settings(Path::new(""), 0) };
        let store = FoyerStore::open(settings).await.expect("open");
        let noise = bytes(1, LEN + (1 << 20));
        let entries = (32 << 20) / LEN as u64;
        let mut last = 0;
        for n in 0..4 {
            last = 0;
            for key in shuffled(entries, n) {
                last += u64::from(read(&store, &noise, "one/train", key).await);
            }
        }
        assert!(store.stats().ram_raw_bytes <= 16 << 20);
        hits.push(last as f64 / entries as f64 / 0.5);
    }
    println!("RAM alone: rel {:.3} by all, {:.3} by keep", hits[0], hits[1]);
    assert!(hits[1] >= 0.85 && hits[0] < hits[1], "{hits:?}");
}
