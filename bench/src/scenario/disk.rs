//! `disk`: disk hits of the store, 1 MiB pages, against fio reading the same size at the same depth from the same disk.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use framecache::{ObjectId, Page, Version};
use framecache_node::cache::{AdmissionMode, CacheSettings, FoyerStore, Head, InsertHint, Store, pages};
use tokio::process::Command;
use xxhash_rust::xxh3::xxh3_64;

use crate::meter::{Tree, Watch};
use crate::report::{Better, Figure, Report};
use crate::run::{Rounds, Run};
use crate::workload::{self, Random};

const PAGE_BYTES: usize = 1 << 20;
const DEPTHS: [usize; 2] = [4, 16];

pub async fn run(run: &Run) -> Result<Report> {
    let mut report = Report::new("disk");
    if Command::new("fio").arg("--version").output().await.is_err() {
        report.note("not run: fio is not installed (apt-get install fio)");
        return Ok(report);
    }
    let count = run.size(4096, 256);
    let shelf = Shelf::fill(run, count).await?;
    let file = run.scratch.path().join("fio-file");
    lay_out(&file, count).await?;
    let lasts = Duration::from_secs(run.size(4, 1));
    for depth in DEPTHS {
        let mut rounds = Rounds::of(2);
        let mut rates = [Vec::new(), Vec::new()];
        for round in 0..run.rounds {
            for subject in rounds.order(round) {
                let watch = Watch::begin(&[Tree::own()]);
                let bytes = match subject {
                    0 => shelf.read(run.seed + round as u64, depth, lasts).await?,
                    _ => fio(&file, count, depth, lasts).await?,
                };
                let cost = watch.end();
                rates[subject].push(bytes / (1u64 << 30) as f64);
                rounds.push(subject, cost);
            }
        }
        let ratio = rates[0].iter().zip(&rates[1]).map(|(store, fio)| store / fio).collect();
        let [store, fio] = rates;
        report.push(Figure::new(format!("{depth} at once: store"), "GiB/s", Better::Higher, store));
        report.push(Figure::new(format!("{depth} at once: fio"), "GiB/s", Better::Higher, fio));
        report.push(Figure::new(format!("{depth} at once"), "ratio", Better::Higher, ratio).against("fio").at_least(0.35));
        let cpu = rounds.values(0, |cost| cost.cpu / cost.wall.as_secs_f64());
        report.push(Figure::new(format!("{depth} at once: store's CPU"), "cores", Better::Lower, cpu));
        rounds.tell(&mut report);
    }
    report.note("fio: randread of 1 MiB, psync, direct, one thread a request at once; the store has RAM for 4 pages and checks every entry");
    shelf.store.close().await;
    Ok(report)
}

/// A store that is full of pages.
struct Shelf {
    store: Arc<FoyerStore>,
    head: Head,
    object: ObjectId,
    hashes: Arc<Vec<u64>>,
}

impl Shelf {
    async fn fill(run: &Run, count: usize) -> Result<Self> {
        let bytes = (count * PAGE_BYTES) as u64;
        let settings = CacheSettings {
            dir: Some(run.scratch.folder("store")?),
            raw_ram: 8 << 20,
            decoded_ram: 1 << 20,
            disk: bytes + bytes / 4,
            admission: AdmissionMode::All,
            seed: run.seed,
        };
        let store = Arc::new(FoyerStore::open(settings).await?);
        let head = Head { version: Version::new("\"1\"")?, size: bytes, fetched_unix_ms: 0 };
        let object: ObjectId = "s3://bench/object".parse()?;
        let mut hashes = Vec::new();
        for number in 0..count as u64 {
            let data = workload::object(run.seed, number, PAGE_BYTES);
            hashes.push(xxh3_64(&data));
            store.room().await;
            let entry = pages::entry(head.clone(), Page::new(number), Bytes::from(data)).context("a whole page")?;
            store.insert(pages::key(&object, Page::new(number)), entry, InsertHint::Normal);
        }
        store.flush().await;
        Ok(Self { store, head, object, hashes: Arc::new(hashes) })
    }

    /// Bytes a second of random pages, so many at once.
    async fn read(&self, seed: u64, depth: usize, lasts: Duration) -> Result<f64> {
        let (before, moved, wrong) = (self.store.stats(), Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let begun = Instant::now();
        let mut readers = tokio::task::JoinSet::new();
        for reader in 0..depth {
            let (store, object, version) = (self.store.clone(), self.object.clone(), self.head.version.clone());
            let (moved, wrong, hashes) = (moved.clone(), wrong.clone(), self.hashes.clone());
            let mut random = Random::new(seed, reader as u64);
            readers.spawn(async move {
                let mut reads = 0u64;
                while begun.elapsed() < lasts {
                    let number = random.below(hashes.len() as u64);
                    let Some(entry) = store.get(&pages::key(&object, Page::new(number)), Some(&version)).await else { continue };
                    moved.fetch_add(entry.body.bytes().len() as u64, Relaxed);
                    // The store checks every entry itself; every 16th is checked once more, against what went in.
                    reads += 1;
                    if reads.is_multiple_of(16) && xxh3_64(entry.body.bytes()) != hashes[number as usize] {
                        wrong.store(true, Relaxed);
                    }
                }
            });
        }
        while let Some(ended) = readers.join_next().await {
            ended?;
        }
        let after = self.store.stats();
        let (disk, all) = (after.hits_disk - before.hits_disk, moved.load(Relaxed) / PAGE_BYTES as u64);
        ensure!(!wrong.load(Relaxed), "wrong bytes from disk");
        ensure!(after.misses == before.misses, "{} pages are not on disk", after.misses - before.misses);
        ensure!(disk as f64 >= 0.95 * all as f64, "only {disk} of {all} hits were disk hits");
        Ok(moved.load(Relaxed) as f64 / begun.elapsed().as_secs_f64())
    }
}

/// A file as large as the store, written and not sparse.
async fn lay_out(file: &Path, count: usize) -> Result<()> {
    let mut random = Random::new(1, 1);
    let mut out = std::fs::File::create(file)?;
    let mut block = vec![0; PAGE_BYTES];
    for _ in 0..count {
        random.fill(&mut block);
        std::io::Write::write_all(&mut out, &block)?;
    }
    out.sync_all()?;
    Ok(())
}

/// Bytes a second by fio.
async fn fio(file: &Path, count: usize, depth: usize, lasts: Duration) -> Result<f64> {
    let mut command = Command::new("fio");
    command.arg("--name=read").arg(format!("--filename={}", file.display())).arg(format!("--size={}", count * PAGE_BYTES));
    command.arg(format!("--numjobs={depth}")).arg(format!("--runtime={}", lasts.as_secs()));
    command.args(["--rw=randread", "--bs=1M", "--direct=1", "--ioengine=psync", "--thread", "--time_based", "--group_reporting"]);
    let ran = command.arg("--output-format=json").kill_on_drop(true).output().await?;
    ensure!(ran.status.success(), "fio: {}", String::from_utf8_lossy(&ran.stderr));
    let said: serde_json::Value = serde_json::from_slice(&ran.stdout)?;
    said["jobs"][0]["read"]["bw_bytes"].as_f64().context("fio says no bandwidth")
}
