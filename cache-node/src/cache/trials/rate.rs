//! How fast the disk tier is beside `fio` on the same folder. Times, so only in the soak.

use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use super::*;
use crate::cache::{InsertHint, Place, Store};

const READERS: u64 = 4;

/// `fio`'s rate in bytes per second for random direct reads of `len` bytes at the same concurrency.
fn fio(dir: &Path, len: u64) -> Option<f64> {
    let output = Command::new("fio")
        .args(["--name=read", "--rw=randread", "--ioengine=psync", "--direct=1", "--size=512M", "--runtime=5", "--time_based"])
        .args(["--output-format=json", "--group_reporting", &format!("--numjobs={READERS}"), &format!("--bs={len}")])
        .arg(format!("--directory={}", dir.display()))
        .output()
        .ok()?;
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
    report["jobs"][0]["read"]["bw_bytes"].as_f64()
}

/// Promise: pages come from disk at 0.35 of fio's rate at least; 10 GiB are ready in 2 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disk_reads_beside_fio() {
    if !soak() {
        return println!("skipped: times are for FRAMECACHE_SOAK=1");
    }
    let dir = folder();
    let disk = 11 << 30;
    let open = async || {
        FoyerStore::open(CacheSettings { raw_ram: 0, decoded_ram: 0, ..settings(dir.path(), disk) }).await.expect("open")
    };
    let store = Arc::new(open().await);
    let noise = bytes(1, 2 << 20);
    let pages = 10 << 10;
    let key = |n: u64| page_key(&format!("rate/{n}"), 0);
    let entry =
        |n: u64| Entry { head: head(1, 1 << 20), body: Body::Raw(noise.slice((n as usize % 1000) * 1000..).slice(..1 << 20)) };
    let began = Instant::now();
    for n in 0..pages {
        store.insert(key(n), entry(n), InsertHint::As(Place::RamAndDisk));
        store.room().await;
    }
    store.flush().await;
    let stats = store.stats();
    println!(
        "wrote {} of {pages} pages at {:.2} GB/s",
        stats.flushed,
        (pages << 20) as f64 / 1e9 / began.elapsed().as_secs_f64()
    );
    assert_eq!(stats.admitted, stats.flushed + stats.superseded, "{stats:?}");
    store.close().await;
    drop(store);
    let began = Instant::now();
    let store = Arc::new(open().await);
    let ready = began.elapsed();
    println!("10 GiB ready in {ready:?}");
    let mut ratios = Vec::new();
    for round in 0..3 {
        let began = Instant::now();
        let readers: Vec<_> = (0..READERS)
            .map(|reader| {
                let store = store.clone();
                tokio::spawn(async move {
                    let mut roll = dice(round * 10 + reader);
                    let mut hits = 0u64;
                    for _ in 0..1500 {
                        hits += u64::from(store.get(&page_key(&format!("rate/{}", roll() % pages), 0), None).await.is_some());
                    }
                    hits
                })
            })
            .collect();
        let mut hits = 0;
        for reader in readers {
            hits += reader.await.expect("reader");
        }
        let ours = (hits << 20) as f64 / began.elapsed().as_secs_f64();
        let theirs = fio(dir.path().parent().expect("parent"), 1 << 20);
        println!("1 MiB pages: {hits} hits at {:.2} GB/s, fio {:.2} GB/s", ours / 1e9, theirs.unwrap_or(f64::NAN) / 1e9);
        ratios.extend(theirs.map(|theirs| ours / theirs));
    }
    ratios.sort_by(f64::total_cmp);
    println!("of fio: {ratios:.3?}");
    assert!(ready.as_secs_f64() < 2.0);
    store.close().await;
}
