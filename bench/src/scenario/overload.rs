//! `overload`: ten times what memory allows, for a while. Memory stays under its limit, refusals are quick, nothing is left over.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::line::{Line, next_item};
use crate::meter::{Tree, Watch};
use crate::node::{BUCKET, Metrics, NodeProcess};
use crate::origin::Origin;
use crate::report::{Better, Figure, Report};
use crate::run::{Rounds, Run};
use crate::workload::{Objects, Random};

/// What the node may use.
const MEMORY: u64 = 768 << 20;
/// Bytes of one read.
const READ_BYTES: u64 = 64 << 20;
/// Pictures of one batch.
const BATCH: usize = 64;
/// What one picture of a batch takes, at least: its pixels.
const PICTURE_BYTES: u64 = 224 * 224 * 3;
const CONNECTIONS: usize = 16;
const DEADLINE: Duration = Duration::from_secs(2);

/// What a crowd asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Appetite {
    /// Reads of 64 MiB and batches of 64 pictures, as loaders ask.
    Loaders,
    /// Reads of one page.
    Pages,
    /// Batches of one picture.
    Pictures,
}

impl Appetite {
    /// Requests at once on one connection.
    fn together(self) -> usize {
        match self {
            Appetite::Loaders => 16,
            Appetite::Pages | Appetite::Pictures => 200,
        }
    }
}

pub async fn run(run: &Run) -> Result<Report> {
    let mut report = Report::new("overload");
    let bucket = run.scratch.folder("bucket")?;
    let mut pictures = run.small_photographs(run.size(2000, 200))?;
    pictures.extend(run.large_photographs()?);
    std::fs::create_dir_all(bucket.join("large"))?;
    for name in &pictures {
        std::fs::copy(run.photographs.join(name), bucket.join(name))?;
    }
    let span = READ_BYTES as usize;
    let objects = Objects { prefix: "raw".into(), count: run.size(16, 4), bytes: (span, span), seed: run.seed };
    objects.write(&bucket)?;
    let origin = Origin::serve(&bucket).await?;
    let mut settings = run.node_settings("node", origin.address)?;
    (settings.memory, settings.raw_ram, settings.decoded_ram) = (MEMORY, 64 << 20, 64 << 20);
    let node = NodeProcess::start(&settings).await?;

    // Half of the loaders' requests are reads, half are batches.
    let asked = (CONNECTIONS * Appetite::Loaders.together() / 2) as u64 * (READ_BYTES + BATCH as u64 * PICTURE_BYTES);
    let crowd = Crowd {
        address: node.quic,
        ca: run.trust.ca.clone(),
        pictures: pictures.iter().map(|name| format!("s3://{BUCKET}/{name}")).collect(),
        objects: (0..objects.count).map(|number| format!("s3://{BUCKET}/{}", objects.key(number))).collect(),
        seed: run.seed,
        stop: AtomicBool::new(false),
        answered: AtomicU64::new(0),
        refused: AtomicU64::new(0),
    };
    let crowd = Arc::new(crowd);
    let (mut rounds, before) = (Rounds::of(1), node.metrics().await?);
    let watch = Watch::begin(&[node.tree, Tree::own()]);
    let pss = storm(&node, &crowd, Appetite::Loaders, Duration::from_secs(run.size(120, 10))).await?;
    rounds.push(0, watch.end());
    let after = node.metrics().await?;
    let (left, until_clean) = left_over(&node).await?;

    let mib = |bytes: f64| bytes / (1 << 20) as f64;
    report.push(Figure::one("asked for at once", "x memory_limit", Better::Higher, asked as f64 / MEMORY as f64).at_least(10.0));
    let pss =
        Figure::new("memory of node and decoders (PSS, each second)", "MiB", Better::Lower, pss.into_iter().map(mib).collect());
    report.push(pss.always().at_most(mib(MEMORY as f64)));
    refusals("loaders", &before, &after, &mut report);
    report.push(Figure::one("items answered", "items", Better::Higher, crowd.answered.load(Relaxed) as f64));
    report.push(Figure::one("items refused as busy", "items", Better::Lower, crowd.refused.load(Relaxed) as f64));
    for (name, value) in left {
        report.push(Figure::one(format!("left over after: {name}"), "", Better::Lower, value).at_most(0.0));
    }
    report.push(Figure::one("left over after: until all of it is nothing", "s", Better::Lower, until_clean));
    for (label, appetite) in [("one page each", Appetite::Pages), ("one picture each", Appetite::Pictures)] {
        let before = node.metrics().await?;
        storm(&node, &crowd, appetite, Duration::from_secs(run.size(20, 5))).await?;
        refusals(label, &before, &node.metrics().await?, &mut report);
        left_over(&node).await?;
    }
    slow_readers(&node, &crowd, &mut report).await?;
    rounds.tell(&mut report);
    node.stop().await?;
    Ok(report)
}

/// How quickly the node said Busy between two readings: the upper bounds of the histogram's buckets.
fn refusals(label: &str, before: &Metrics, after: &Metrics, report: &mut Report) {
    let name = "framecache_busy_refusal_seconds";
    let ms = |quantile| after.quantile_since(before, name, quantile).map(|seconds| seconds * 1000.0);
    let count = after.sum(&format!("{name}_count")) - before.sum(&format!("{name}_count"));
    let (Some(p50), Some(p99)) = (ms(0.5), ms(0.99)) else {
        return report.note(format!("{label}: nobody was refused"));
    };
    let figure =
        |what: &str, value| Figure::one(format!("{label}: header parsed to Busy written, {what}"), "ms", Better::Lower, value);
    report.push(figure("p99", p99).against(format!("{count:.0} refusals")).at_most(5.0));
    report.push(figure("p50", p50));
}

/// All who ask.
struct Crowd {
    address: SocketAddr,
    ca: PathBuf,
    pictures: Vec<String>,
    objects: Vec<String>,
    seed: u64,
    stop: AtomicBool,
    answered: AtomicU64,
    refused: AtomicU64,
}

/// Lets the crowd ask for the scenario's time; gives the node's memory, each second.
async fn storm(node: &NodeProcess, crowd: &Arc<Crowd>, appetite: Appetite, lasts: Duration) -> Result<Vec<f64>> {
    crowd.stop.store(false, Relaxed);
    let mut tasks = tokio::task::JoinSet::new();
    for connection in 0..CONNECTIONS {
        let line = Line::connect(crowd.address, &crowd.ca, 1 << 30).await?;
        for slot in 0..appetite.together() {
            let (crowd, line) = (crowd.clone(), line.clone());
            let random = Random::new(crowd.seed, (connection * appetite.together() + slot) as u64);
            let reads = appetite == Appetite::Pages || appetite == Appetite::Loaders && slot % 2 == 0;
            tasks.spawn(async move { crowd.ask_on(line, appetite, reads, random).await });
        }
    }
    let begun = Instant::now();
    let mut pss = Vec::new();
    while begun.elapsed() < lasts {
        tokio::time::sleep(Duration::from_secs(1)).await;
        pss.push(node.tree.pss() as f64);
    }
    crowd.stop.store(true, Relaxed);
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(pss)
}

impl Crowd {
    /// One request after another; a refusal is followed by the next request at once.
    async fn ask_on(&self, line: Line, appetite: Appetite, reads: bool, mut random: Random) -> Result<()> {
        let (read_bytes, batch) = if appetite == Appetite::Loaders { (READ_BYTES, BATCH) } else { (1 << 20, 1) };
        while !self.stop.load(Relaxed) {
            let reply = match reads {
                true => {
                    let start = random.below(READ_BYTES / read_bytes) * read_bytes;
                    line.read(self.pick(&self.objects, &mut random), start, read_bytes, DEADLINE).await?
                }
                false => {
                    let uris: Vec<&str> = (0..batch).map(|_| self.pick(&self.pictures, &mut random)).collect();
                    // Another crop is another key: hardly ever held.
                    let spec = format!("image?short=256&crop={}", 100 + random.below(125));
                    line.frames(&uris, &spec, DEADLINE).await?
                }
            };
            self.drain(reply).await;
        }
        Ok(())
    }

    fn pick<'a>(&self, of: &'a [String], random: &mut Random) -> &'a str {
        &of[random.below(of.len() as u64) as usize]
    }

    /// Reads a reply to its end, however it ends.
    async fn drain(&self, mut reply: quinn::RecvStream) {
        while let Ok(Some(item)) = next_item(&mut reply).await {
            let counter = if item.status == framecache::wire::Status::Busy as u16 { &self.refused } else { &self.answered };
            counter.fetch_add(1, Relaxed);
        }
    }
}

/// What is still reserved or open once all have gone, and the seconds until it was nothing. Fills and decodes that nobody waits for
/// any more run to their own deadline of a minute; what is left after that was lost.
async fn left_over(node: &NodeProcess) -> Result<(Vec<(&'static str, f64)>, f64)> {
    let begun = Instant::now();
    loop {
        let metrics = node.metrics().await?;
        let left =
            ["framecache_budget_in_use_bytes", "framecache_budget_waiting", "framecache_streams", "framecache_decode_inside"]
                .map(|name| (name, metrics.sum(name)));
        if left.iter().all(|(_, value)| *value == 0.0) || begun.elapsed() > Duration::from_secs(65) {
            return Ok((left.into(), begun.elapsed().as_secs_f64()));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Readers that ask for large pictures and take none, until the frames' budget is full; then somebody else asks for small ones.
async fn slow_readers(node: &NodeProcess, crowd: &Crowd, report: &mut Report) -> Result<()> {
    let large: Vec<&str> = crowd.pictures.iter().filter(|uri| uri.contains("/large/")).map(String::as_str).collect();
    if large.is_empty() {
        report.note("no slow readers: there are no large photographs");
        return Ok(());
    }
    let frames = |metrics: &Metrics, name: &str| metrics.sum_where(name, "level=\"frames\"");
    let (mut lines, mut replies) = (Vec::new(), Vec::new());
    let begun = Instant::now();
    let full = loop {
        // The smallest windows: what is not read soon fills them.
        let line = Line::connect(crowd.address, &crowd.ca, 2 << 20).await?;
        replies.push(line.frames(&large, "image", Duration::from_secs(60)).await?);
        lines.push(line);
        tokio::time::sleep(Duration::from_millis(200)).await;
        let metrics = node.metrics().await?;
        let (used, waiting) = (frames(&metrics, "framecache_budget_in_use_bytes"), frames(&metrics, "framecache_budget_waiting"));
        let full = used >= 0.9 * frames(&metrics, "framecache_budget_limit_bytes") || waiting > 0.0;
        if full || begun.elapsed() > Duration::from_secs(8) {
            report.push(Figure::one(
                "slow readers hold of the frames' budget",
                "ratio",
                Better::Higher,
                used / frames(&metrics, "framecache_budget_limit_bytes"),
            ));
            break full;
        }
    };
    if !full {
        report.note("slow readers did not fill the frames' budget within 8 s");
    }
    let before = node.metrics().await?;
    let line = Line::connect(crowd.address, &crowd.ca, 1 << 30).await?;
    let uris: Vec<&str> = crowd.pictures.iter().filter(|uri| !uri.contains("/large/")).take(BATCH).map(String::as_str).collect();
    let asked = Instant::now();
    while asked.elapsed() < Duration::from_secs(4) {
        crowd
            .drain(
                line.frames(&uris, &format!("image?short=250&crop={}", 60 + asked.elapsed().as_millis() % 180), DEADLINE).await?,
            )
            .await;
    }
    let after = node.metrics().await?;
    let moved = after.sum("framecache_units_total") - before.sum("framecache_units_total");
    report.push(Figure::one("decodes begun in 4 s while slow readers hold it", "decodes", Better::Higher, moved).at_least(1.0));
    drop(replies);
    for line in lines {
        line.connection.close(0u32.into(), b"done");
    }
    Ok(())
}
