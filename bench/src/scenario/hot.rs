//! `hot`: one object is half of all requests, before eight nodes.

use std::time::Duration;

use anyhow::Result;

use crate::fleet::{self, Fleet};
use crate::load::{Diet, Load};
use crate::meter::{Tree, Watch};
use crate::node::Metrics;
use crate::origin::Origin;
use crate::report::{Better, Figure, Report};
use crate::run::{Rounds, Run};
use crate::workload::Objects;

const NODES: usize = 8;
const CLIENTS: usize = 8;

pub async fn run(run: &Run) -> Result<Report> {
    let mut report = Report::new("hot");
    let bucket = run.scratch.folder("bucket")?;
    // Many others, so that the ring itself is even.
    let objects = Objects { prefix: "o".into(), count: run.size(4000, 1000), bytes: (10_000, 40_000), seed: run.seed };
    objects.write(&bucket)?;
    let origin = Origin::serve(&bucket).await?;
    let fleet = Fleet::start(fleet::settings(run, "fleet", origin.address)?, NODES).await?;
    let mut diet = Diet::of(&objects, Duration::from_millis(2))?;
    let client = fleet::client(&fleet)?;
    diet.read_all(&client, 4).await?;
    client.close().await;

    let (mut rounds, mut worst, mut share) = (Rounds::of(1), Vec::new(), Vec::new());
    for (hot, figures) in [(None, &mut share), (Some((0, 50)), &mut worst)] {
        diet.hot = hot;
        let load = Load::start(&fleet.client_config(), CLIENTS, &diet, run.seed)?;
        // Until the hot object is known as one.
        tokio::time::sleep(Duration::from_secs(run.size(10, 3))).await;
        for _ in 0..run.rounds {
            let (before, watch) = (reads(&fleet).await?, Watch::begin(&[Tree::own()]));
            tokio::time::sleep(Duration::from_secs(run.size(10, 2))).await;
            let served: Vec<f64> = reads(&fleet).await?.iter().zip(&before).map(|(after, before)| after - before).collect();
            rounds.push(0, watch.end());
            let mean = served.iter().sum::<f64>() / NODES as f64;
            figures.push(served.iter().copied().fold(0.0, f64::max) / mean);
        }
        load.stop().await?.judge(if hot.is_some() { "one object is half" } else { "all objects alike" }, &mut report);
    }
    let figure = |name: &str, values| Figure::new(name, "ratio", Better::Lower, values).against("mean of 8 nodes").always();
    report.push(figure("all objects alike: requests served by the busiest node", share));
    report.push(figure("one object is half: requests served by the busiest node", worst).at_most(1.5));
    rounds.tell(&mut report);
    fleet.stop().await?;
    Ok(report)
}

/// Reads that each node answered so far, those of other nodes too.
async fn reads(fleet: &Fleet) -> Result<Vec<f64>> {
    let mut all = Vec::new();
    for index in fleet.running() {
        let metrics = Metrics::parse(&fleet.metrics(index).await?);
        all.push(metrics.sum_where("framecache_requests_total", "verb=\"read\""));
    }
    Ok(all)
}
