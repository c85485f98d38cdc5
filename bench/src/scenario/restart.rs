//! `restart`: a kill -9 while entries are being written. What was called flushed is there again, and nothing wrong is.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use framecache::{Call, Client, ObjectId};
use futures::stream::{self, StreamExt, TryStreamExt};
use parking_lot::Mutex;

use crate::meter::{Tree, Watch};
use crate::node::{BUCKET, NodeProcess};
use crate::origin::Origin;
use crate::report::{Better, Figure, Report};
use crate::run::{Rounds, Run};
use crate::workload::Objects;

/// How long entries are written before the kill.
const WRITES: Duration = Duration::from_secs(9);
/// What was inserted longer ago than this should be flushed.
const SETTLED: Duration = Duration::from_secs(5);
/// Objects read, and with it inserted, each second: 60 MB/s, as a training job brings.
const PER_SECOND: u64 = 400;
const FILL_BYTES: usize = 64 << 20;

pub async fn run(run: &Run) -> Result<Report> {
    let mut report = Report::new("restart");
    let bucket = run.scratch.folder("bucket")?;
    let fill = run.size(160, 4);
    make_fill(&bucket, fill, run.seed)?;
    let count = (WRITES.as_secs() * PER_SECOND) as usize;
    let objects = Objects { prefix: "o".into(), count, bytes: (140_000, 160_000), seed: run.seed };
    objects.write(&bucket)?;
    for round in 0..run.rounds {
        std::fs::create_dir_all(bucket.join(format!("round-{round}")))?;
        for number in 0..count {
            std::fs::hard_link(bucket.join(objects.key(number)), bucket.join(key(round, number)))?;
        }
    }
    let origin = Origin::serve(&bucket).await?;
    let mut settings = run.node_settings("node", origin.address)?;
    let cached = (fill * FILL_BYTES) as u64;
    (settings.raw_ram, settings.disk) = (32 << 20, cached + (run.rounds + 2) as u64 * objects.total());
    let mut node = NodeProcess::start(&settings).await?;
    fill_cache(&node, fill).await?;

    let mut found = Found::default();
    let mut rounds = Rounds::of(1);
    for round in 0..run.rounds {
        let watch = Watch::begin(&[node.tree, Tree::own()]);
        let told = write_and_kill(node, &objects, round).await?;
        node = NodeProcess::start(&settings).await?;
        found.ready.push(node.ready_after.as_secs_f64());
        found.check(&node, &origin, &objects, round, &told).await?;
        rounds.push(0, watch.end());
    }
    let gib = cached as f64 / (1u64 << 30) as f64;
    let figure = |name: &str, unit, better, rounds: &[f64]| Figure::new(name, unit, better, rounds.to_vec());
    report.push(
        figure("flushed by explain: served without the origin", "ratio", Better::Higher, &found.served).always().at_least(0.99),
    );
    report.push(figure("inserted over 5 s earlier: flushed", "ratio", Better::Higher, &found.flushed).always().at_least(0.9));
    report.push(figure("objects with wrong bytes", "objects", Better::Lower, &found.wrong).always().at_most(0.0));
    report.push(
        figure("ready after", "s", Better::Lower, &found.ready)
            .against(format!("{gib:.2} GiB cached and more"))
            .always()
            .at_most(2.0),
    );
    report.push(figure("objects told flushed", "objects", Better::Higher, &found.told));
    rounds.tell(&mut report);
    node.stop().await?;
    Ok(report)
}

#[derive(Default)]
struct Found {
    served: Vec<f64>,
    flushed: Vec<f64>,
    wrong: Vec<f64>,
    ready: Vec<f64>,
    told: Vec<f64>,
}

/// What `explain` said of each object just before the kill, and how long ago it was inserted.
struct Told {
    flushed: Vec<(usize, bool, Duration)>,
}

fn key(round: usize, number: usize) -> String {
    format!("round-{round}/{number:05}")
}

fn id(key: &str) -> Result<ObjectId> {
    Ok(format!("s3://{BUCKET}/{key}").parse()?)
}

/// One file under many names: the cache does not know that they are one.
fn make_fill(bucket: &Path, count: usize, seed: u64) -> Result<()> {
    std::fs::create_dir_all(bucket.join("fill"))?;
    let first = bucket.join("fill/000");
    std::fs::write(&first, crate::workload::object(seed, 1 << 40, FILL_BYTES))?;
    (1..count).try_for_each(|number| std::fs::hard_link(&first, bucket.join(format!("fill/{number:03}"))))?;
    Ok(())
}

async fn fill_cache(node: &NodeProcess, count: usize) -> Result<()> {
    let client = node.client()?;
    for number in 0..count {
        client.read(&id(&format!("fill/{number:03}"))?, 0, None, &Call::default()).await?;
    }
    client.close().await;
    let begun = Instant::now();
    while node.metrics().await?.sum("framecache_cache_disk_queued_bytes") > 0.0 && begun.elapsed() < Duration::from_secs(30) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let held = node.metrics().await?.sum_where("framecache_cache_bytes", "tier=\"disk\"");
    ensure!(held >= (count * FILL_BYTES) as f64, "only {held:.0} bytes of the fill are on disk");
    Ok(())
}

/// Reads objects at a steady pace, asks `explain` of each that was read, and kills the node in the middle of it.
async fn write_and_kill(node: NodeProcess, objects: &Objects, round: usize) -> Result<Told> {
    let client = node.client()?;
    let (inserted, stop) = (Arc::new(Mutex::new(HashMap::new())), Arc::new(AtomicBool::new(false)));
    let writer = tokio::spawn(write(client.clone(), objects.count, round, inserted.clone(), stop.clone()));
    tokio::time::sleep(WRITES.mul_f64(0.9)).await;
    let asked: Vec<(usize, Instant)> = inserted.lock().iter().map(|(number, at)| (*number, *at)).collect();
    let told = stream::iter(asked)
        .map(|(number, at)| {
            let client = client.clone();
            async move {
                let lines = client.explain(&id(&key(round, number))?, "", &Call::default()).await?;
                let flushed = lines.iter().find(|(name, _)| name == "flushed").context("explain says nothing of flushed")?;
                anyhow::Ok((number, flushed.1 == "yes", at.elapsed()))
            }
        })
        .buffer_unordered(16)
        .try_collect::<Vec<_>>()
        .await?;
    ensure!(!writer.is_finished(), "nothing is being written any more");
    node.kill().await?;
    stop.store(true, Relaxed);
    writer.abort();
    Ok(Told { flushed: told })
}

async fn write(
    client: Client,
    count: usize,
    round: usize,
    inserted: Arc<Mutex<HashMap<usize, Instant>>>,
    stop: Arc<AtomicBool>,
) -> Result<()> {
    let begun = Instant::now();
    for number in 0..count {
        let due = Duration::from_secs_f64(number as f64 / PER_SECOND as f64);
        tokio::time::sleep(due.saturating_sub(begun.elapsed())).await;
        if stop.load(Relaxed) {
            break;
        }
        client.read(&id(&key(round, number))?, 0, None, &Call::default()).await?;
        inserted.lock().insert(number, Instant::now());
    }
    Ok(())
}

impl Found {
    /// Reads what was told to be flushed; then everything that was written, to see that nothing is wrong.
    async fn check(&mut self, node: &NodeProcess, origin: &Origin, objects: &Objects, round: usize, told: &Told) -> Result<()> {
        let client = node.client()?;
        let old: Vec<bool> = told.flushed.iter().filter(|(_, _, age)| *age > SETTLED).map(|(_, flushed, _)| *flushed).collect();
        self.flushed.push(old.iter().filter(|flushed| **flushed).count() as f64 / old.len().max(1) as f64);

        let before = origin.all_gets();
        let flushed: Vec<usize> = told.flushed.iter().filter(|(_, flushed, _)| *flushed).map(|(number, ..)| *number).collect();
        let mut wrong = 0;
        for &number in &flushed {
            wrong += wrong_bytes(&client, objects, round, number).await?;
        }
        let after = origin.all_gets();
        let asked = flushed.iter().filter(|&&number| before.get(&key(round, number)) != after.get(&key(round, number))).count();
        self.served.push(1.0 - asked as f64 / flushed.len().max(1) as f64);
        self.told.push(flushed.len() as f64);
        for &(number, ..) in told.flushed.iter().filter(|(_, flushed, _)| !flushed) {
            wrong += wrong_bytes(&client, objects, round, number).await?;
        }
        self.wrong.push(wrong as f64);
        client.close().await;
        Ok(())
    }
}

async fn wrong_bytes(client: &Client, objects: &Objects, round: usize, number: usize) -> Result<u64> {
    let raw = client.read(&id(&key(round, number))?, 0, None, &Call::default()).await?;
    Ok(u64::from(raw.bytes[..] != objects.data(number)[..]))
}
