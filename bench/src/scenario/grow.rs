//! `grow`: what a byte costs the nodes as they become more, hits only.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::fleet::{self, Fleet};
use crate::load::{Diet, Load};
use crate::meter::Watch;
use crate::origin::Origin;
use crate::report::{Better, Figure, Report};
use crate::run::{Rounds, Run};
use crate::workload::Objects;

const SIZES: [usize; 4] = [1, 2, 4, 8];
const CLIENTS: usize = 4;

pub async fn run(run: &Run) -> Result<Report> {
    let mut report = Report::new("grow");
    let bucket = run.scratch.folder("bucket")?;
    // All of it fits into one node's RAM.
    let objects = Objects { prefix: "o".into(), count: run.size(200, 50), bytes: (150_000, 1 << 20), seed: run.seed };
    objects.write(&bucket)?;
    let origin = Origin::serve(&bucket).await?;
    let diet = Diet::of(&objects, Duration::ZERO)?;
    let mut rounds = Rounds::of(SIZES.len());
    let mut costs: Vec<Vec<f64>> = vec![Vec::new(); SIZES.len()];
    // Each round begins with another size, so that a slow hour meets all of them.
    for round in 0..run.rounds {
        for subject in rounds.order(round) {
            let count = SIZES[subject];
            let settings = fleet::settings(run, &format!("fleet-{round}-{count}"), origin.address)?;
            let fleet = Fleet::start(settings, count).await?;
            let client = fleet::client(&fleet)?;
            diet.read_all(&client, 4).await?;
            client.close().await;
            let load = Load::start(&fleet.client_config(), CLIENTS, &diet, run.seed + round as u64)?;
            tokio::time::sleep(Duration::from_secs(1)).await;
            let (asked, watch) = (origin.requests(), Watch::begin(&fleet::trees(&fleet)));
            load.turn();
            tokio::time::sleep(Duration::from_secs(run.size(10, 2))).await;
            let bytes = load.bytes();
            let cost = watch.end();
            let page = load.stop().await?;
            ensure!(page.failed + page.wrong == 0, "{count} nodes: {:?}", page.words);
            ensure!(origin.requests() == asked, "{count} nodes: the origin was asked, so that not all were hits");
            costs[subject].push(cost.cpu / (bytes as f64 / (1u64 << 30) as f64));
            rounds.push(subject, cost);
            fleet.stop().await?;
        }
    }
    for (subject, count) in SIZES.into_iter().enumerate() {
        let figure = |unit, values| Figure::new(format!("{count} nodes: CPU of all nodes a GiB"), unit, Better::Lower, values);
        report.push(figure("CPU-s/GiB", costs[subject].clone()));
        if subject > 0 {
            let ratios = costs[subject].iter().zip(&costs[0]).map(|(many, one)| many / one).collect();
            report.push(figure("ratio", ratios).against("one node"));
        }
    }
    report.note("all nodes and clients share this machine's cores; bytes are those that clients received and checked");
    rounds.tell(&mut report);
    Ok(report)
}
