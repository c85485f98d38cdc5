//! `keep`: shuffled epochs over a data set that does not fit. The best that can be had is cache / data set.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use anyhow::{Result, ensure};
use framecache::{Call, ObjectId};

use crate::meter::{Tree, Watch};
use crate::node::{BUCKET, NodeProcess};
use crate::origin::Origin;
use crate::report::{Better, Figure, Report};
use crate::run::{Rounds, Run};
use crate::workload::{Objects, Random};

/// Parts of the data set that fit, in percent.
const SHARES: [u64; 3] = [20, 50, 80];
const EPOCHS: usize = 5;
/// Epochs before the hit ratio counts as steady: the first brings everything, the second may still settle.
const SETTLING: usize = 2;
/// RAM for raw bytes: as little as a page needs, so that the disk is what is measured.
const RAW_RAM: u64 = 8 << 20;
/// Readers at once.
const READERS: usize = 8;

pub async fn run(run: &Run) -> Result<Report> {
    let mut report = Report::new("keep");
    let bucket = run.scratch.folder("bucket")?;
    let count = run.size(14_316, 3_000);
    let set = |name: &str, seed| Objects { prefix: name.into(), count, bytes: (130_000, 170_000), seed };
    let (first, second) = (set("first", run.seed), set("second", run.seed + 1));
    first.write(&bucket)?;
    second.write(&bucket)?;
    let origin = Origin::serve(&bucket).await?;
    let mut rounds = Rounds::of(1);
    for share in SHARES {
        let configured = first.total() * share / 100;
        let mut settings = run.node_settings(&format!("node-{share}"), origin.address)?;
        (settings.raw_ram, settings.decoded_ram, settings.disk) = (RAW_RAM, 1 << 20, configured - RAW_RAM);
        let node = NodeProcess::start(&settings).await?;
        let watch = Watch::begin(&[node.tree, Tree::own()]);
        let best = configured as f64 / first.total() as f64;
        let mut hits = Vec::new();
        for epoch in 0..EPOCHS {
            hits.push(epoch_hits(&node, &origin, &first, Random::new(run.seed, 10 + epoch as u64)).await? / best);
        }
        let mut switched = Vec::new();
        for epoch in 0..2 {
            let best = configured as f64 / second.total() as f64;
            switched.push(epoch_hits(&node, &origin, &second, Random::new(run.seed, 20 + epoch)).await? / best);
        }
        rounds.push(0, watch.end());
        let metrics = node.metrics().await?;
        let steady = hits.split_off(SETTLING);
        let figure = |name: &str, values| Figure::new(format!("{share} % fits: {name}"), "of cache/data", Better::Higher, values);
        report.push(figure("hit ratio, epochs 1 and 2", hits));
        report.push(figure("hit ratio, epochs 3 to 5", steady).at_least(0.95));
        report.push(figure("hit ratio, second epoch of another data set", switched.split_off(1)).at_least(0.9));
        let drops = metrics.sum("framecache_cache_drops_total");
        report.push(
            Figure::one(format!("{share} % fits: entries dropped on the way to disk"), "entries", Better::Lower, drops)
                .at_most(0.0),
        );
        node.stop().await?;
        std::fs::remove_dir_all(&settings.folder)?;
    }
    rounds.tell(&mut report);
    report.note(format!(
        "data sets of {count} objects of 130 to 170 KB; cache is raw_ram of 8 MiB and disk together, as configured"
    ));
    Ok(report)
}

/// Reads every object once, in random order; gives the part of them for which the origin was not asked.
async fn epoch_hits(node: &NodeProcess, origin: &Origin, objects: &Objects, mut random: Random) -> Result<f64> {
    let (before, order, next) = (origin.requests(), Arc::new(random.order(objects.count)), Arc::new(AtomicUsize::new(0)));
    let client = node.client()?;
    let mut readers = tokio::task::JoinSet::new();
    for _ in 0..READERS {
        let (client, order, next, objects) = (client.clone(), order.clone(), next.clone(), objects.clone());
        readers.spawn(async move {
            while let Some(&number) = order.get(next.fetch_add(1, Relaxed)) {
                let id: ObjectId = format!("s3://{BUCKET}/{}", objects.key(number as usize)).parse()?;
                let raw = client.read(&id, 0, None, &Call::default()).await?;
                let begins = Random::new(objects.seed, u64::from(number)).next().to_le_bytes();
                ensure!(
                    raw.bytes.len() == objects.size(number as usize) && raw.bytes.starts_with(&begins),
                    "wrong bytes of {id}"
                );
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = readers.join_next().await {
        ended??;
    }
    client.close().await;
    Ok(1.0 - (origin.requests() - before) as f64 / objects.count as f64)
}
