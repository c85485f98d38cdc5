//! `herd`: a thousand who ask at once for what is not there yet. Counted at the origin and by the node.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use framecache::{Batch, Call, Client, ImageSpec, ObjectId};
use futures::future::try_join_all;

use crate::meter::{Tree, Watch};
use crate::node::{BUCKET, NodeProcess};
use crate::origin::Origin;
use crate::report::{Better, Figure, Report};
use crate::run::{Rounds, Run};
use crate::workload::{Objects, Random};

/// Requests at once.
const HERD: usize = 1000;
/// Connections that they come over: a node permits 256 streams on one.
const CLIENTS: usize = 4;
const LARGE_BYTES: usize = 64 << 20;
const PAGES: usize = LARGE_BYTES >> 20;
const RANGE_BYTES: u64 = 64 << 10;

pub async fn run(run: &Run) -> Result<Report> {
    let mut report = Report::new("herd");
    let bucket = run.scratch.folder("bucket")?;
    let large = Objects { prefix: "large".into(), count: run.rounds, bytes: (LARGE_BYTES, LARGE_BYTES), seed: run.seed };
    let small = Objects { prefix: "small".into(), count: run.rounds * HERD, bytes: (20_000, 200_000), seed: run.seed + 1 };
    large.write(&bucket)?;
    small.write(&bucket)?;
    for (number, name) in run.small_photographs(run.rounds)?.iter().enumerate() {
        std::fs::copy(run.photographs.join(name), bucket.join(format!("picture-{number}.jpg")))?;
    }
    let origin = Origin::serve(&bucket).await?;
    let node = NodeProcess::start(&run.node_settings("node", origin.address)?).await?;
    let clients = clients(&node)?;

    let mut rounds = Rounds::of(3);
    let (mut pages, mut decodes, mut picture_gets, mut objects) = (vec![], vec![], vec![], vec![]);
    for round in 0..run.rounds {
        let (before, watch) = (origin.requests(), Watch::begin(&[node.tree, Tree::own()]));
        ranges(&clients, &large, round, run.seed).await?;
        rounds.push(0, watch.end());
        pages.push((origin.requests() - before) as f64 / PAGES as f64);

        let (before, watch, metrics) = (origin.requests(), Watch::begin(&[node.tree, Tree::own()]), node.metrics().await?);
        one_picture(&clients, round).await?;
        rounds.push(1, watch.end());
        picture_gets.push((origin.requests() - before) as f64);
        decodes.push(node.metrics().await?.sum("framecache_units_total") - metrics.sum("framecache_units_total"));

        let (before, watch) = (origin.requests(), Watch::begin(&[node.tree, Tree::own()]));
        small_objects(&clients, &small, round).await?;
        rounds.push(2, watch.end());
        objects.push((origin.requests() - before) as f64 / HERD as f64);
    }
    let exactly = |name: &str, unit, rounds| Figure::new(name, unit, Better::Lower, rounds).always().at_most(1.0);
    report.push(exactly("1,000 random 64 KiB ranges of a cold 64 MiB object: origin requests per page", "requests", pages));
    report.push(exactly("1,000 for one cold picture: origin requests", "requests", picture_gets));
    report.push(exactly("1,000 for one cold picture: decodes", "decodes", decodes));
    report.push(exactly("1,000 cold objects of 20 to 200 KB: origin requests each", "requests", objects));
    for (index, name) in ["ranges", "picture", "objects"].into_iter().enumerate() {
        let wall = rounds.values(index, |cost| cost.wall.as_secs_f64() * 1000.0);
        report.push(Figure::new(format!("{name}: until the last of 1,000 is answered"), "ms", Better::Lower, wall));
    }
    let metrics = node.metrics().await?;
    for (name, counter) in [("hedges", "framecache_origin_hedges_total"), ("retries", "framecache_origin_retries_total")] {
        report.push(Figure::one(format!("of all origin requests: {name}"), "requests", Better::Lower, metrics.sum(counter)));
    }
    rounds.tell(&mut report);
    node.stop().await?;
    Ok(report)
}

fn clients(node: &NodeProcess) -> Result<Vec<Client>> {
    let mut config = node.client_config();
    config.timeout = Duration::from_secs(60);
    (0..CLIENTS).map(|_| Ok(Client::new(config.clone())?)).collect()
}

fn id(key: &str) -> Result<ObjectId> {
    Ok(format!("s3://{BUCKET}/{key}").parse()?)
}

async fn ranges(clients: &[Client], large: &Objects, round: usize, seed: u64) -> Result<()> {
    let (object, data) = (id(&large.key(round))?, Arc::new(large.data(round)));
    let mut random = Random::new(seed, 100 + round as u64);
    let tasks = (0..HERD).map(|number| {
        let (client, object, data) = (clients[number % CLIENTS].clone(), object.clone(), data.clone());
        // The first ones touch each page, so that every page is asked for.
        let page = if number < PAGES { number as u64 } else { random.below(PAGES as u64) };
        let start = (page << 20) + random.below((1 << 20) - RANGE_BYTES + 1);
        tokio::spawn(async move {
            let raw = client.read(&object, start, Some(RANGE_BYTES), &Call::default()).await?;
            let at = start as usize;
            ensure!(raw.bytes[..] == data[at..at + RANGE_BYTES as usize], "wrong bytes at {start}");
            Ok(())
        })
    });
    joined(tasks).await
}

async fn one_picture(clients: &[Client], round: usize) -> Result<()> {
    let (object, spec) = (id(&format!("picture-{round}.jpg"))?, "image?short=256&crop=224".parse::<ImageSpec>()?);
    let tasks = (0..HERD).map(|number| {
        let (client, object, spec) = (clients[number % CLIENTS].clone(), object.clone(), spec.clone());
        tokio::spawn(async move {
            let batch = Batch::new(1, 1 << 20);
            client.images(&[object], &spec, &batch, &Call::default()).await.remove(0)?;
            batch.finish().pixels(0).map(|_| ()).context("no pixels")
        })
    });
    joined(tasks).await
}

async fn small_objects(clients: &[Client], small: &Objects, round: usize) -> Result<()> {
    let tasks = (0..HERD).map(|number| {
        let (client, small, object) = (clients[number % CLIENTS].clone(), small.clone(), round * HERD + number);
        tokio::spawn(async move {
            let raw = client.read(&id(&small.key(object))?, 0, None, &Call::default()).await?;
            ensure!(raw.bytes[..] == small.data(object)[..], "wrong bytes of object {object}");
            Ok(())
        })
    });
    joined(tasks).await
}

async fn joined(tasks: impl Iterator<Item = tokio::task::JoinHandle<Result<()>>>) -> Result<()> {
    try_join_all(tasks).await?.into_iter().collect()
}
