//! `cold`: what a decode costs when the raw bytes are cached and the pixels are not.
//!
//! A node whose decoded tier is too small to hold one picture, so that every round decodes every picture anew from RAM, by the
//! same spec. Counted: node, decoders and client together. Against one Pillow process with the files in memory.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use framecache::Call;

use crate::agent::{Agent, Look, Role, Round, Subject, Tally, Traffic};
use crate::comparator::Shape;
use crate::comparator::pillow::Pillow;
use crate::meter::Watch;
use crate::node::{BUCKET, NodeProcess};
use crate::origin::Origin;
use crate::report::{Better, Figure, Report};
use crate::run::{Rounds, Run};

const SHORT: u32 = 256;
const CROP: u32 = 224;
const PIXELS: usize = (CROP * CROP * 3) as usize;

/// Holds no picture of 224 pixels, whatever share of it a shard has.
const DECODED_RAM: u64 = 64 << 10;

pub async fn run(run: &Run) -> Result<Report> {
    let mut report = Report::new("cold");
    let small = run.small_photographs(run.size(2000, 200))?;
    measure(run, "500x375", &small, 1.0 / 1.6, &mut report).await?;
    match run.large_photographs()? {
        large if large.is_empty() => report.note("no large photographs: Debian's package of them could not be had"),
        large => measure(run, "4000x3000", &large[..run.size(large.len(), 4)], 1.0 / 1.4, &mut report).await?,
    }
    report.note("raw cached, nothing decoded: the node's decoded tier holds no picture, so each round decodes all of them again");
    Ok(report)
}

async fn measure(run: &Run, label: &str, names: &[String], most: f64, report: &mut Report) -> Result<()> {
    let origin = Origin::serve(&run.photographs).await?;
    let mut settings = run.node_settings(&format!("node-{label}"), origin.address)?;
    settings.decoded_ram = DECODED_RAM;
    let node = NodeProcess::start(&settings).await?;
    let uris: Vec<String> = names.iter().map(|name| format!("s3://{BUCKET}/{name}")).collect();
    hold_raw(&node, &uris).await?;

    let files: Vec<PathBuf> = names.iter().map(|name| run.photographs.join(name)).collect();
    let mut pillow = Pillow::start(&run.python, &run.scratch.folder("pillow")?, SHORT, CROP, &files).await?;
    let spec = format!("image?short={SHORT}&crop={CROP}&filter=bicubic");
    let shape = Shape {
        items: names.len(),
        item_bytes: PIXELS,
        batch: 64.min(names.len() / 2),
        in_flight: 2,
        request_bytes: 0,
        head_bytes: 0,
    };
    let (address, trust) = (node.quic.to_string(), run.scratch.folder("trust")?);
    let mut client =
        Agent::start(&Role::Traffic(Traffic { subject: Subject::Pictures { uris, spec }, address, trust, shape }), &[])?;

    // The same pixels on both sides, every byte; and what the timed rounds are compared with.
    let kept = run.scratch.path().join("pillow-pixels");
    pillow.keep(&kept).await?;
    let same: Tally = client.ask(&Round { seed: run.seed, times: 1, look: Look::File(kept) }).await?;
    let _: Tally = client.ask(&Round { seed: run.seed, times: 1, look: Look::Learn }).await?;

    let before = node.metrics().await?;
    let mut rounds = Rounds::of(2);
    for round in 0..run.rounds {
        for subject in rounds.order(round) {
            let trees = if subject == 0 { vec![node.tree, client.tree] } else { vec![pillow.agent.tree] };
            let watch = Watch::begin(&trees);
            if subject == 0 {
                let question = Round { seed: run.seed + round as u64, times: 1, look: Look::Edges };
                let tally: Tally = client.ask(&question).await?;
                ensure!(tally.wrong == 0, "{} pictures changed", tally.wrong);
            } else {
                pillow.pass().await?;
            }
            rounds.push(subject, watch.end());
        }
    }
    let after = node.metrics().await?;
    let moved = |name: &str| after.sum(name) - before.sum(name);
    let decodes = moved("framecache_units_total") / run.rounds as f64 / names.len() as f64;
    let requests = moved("framecache_origin_requests_total");

    let per_thousand = 1000.0 / names.len() as f64;
    for (subject, name) in ["framecache: node, decoders, client", "Pillow 13.0.0, one process"].iter().enumerate() {
        let cpu = rounds.values(subject, |cost| cost.cpu * per_thousand);
        report.push(Figure::new(format!("{label}: {name}"), "CPU-s/1,000", Better::Lower, cpu));
        let rate = rounds.values(subject, |cost| names.len() as f64 / cost.wall.as_secs_f64());
        report.push(Figure::new(format!("{label}: {name}"), "pictures/s", Better::Higher, rate));
    }
    let cpu = rounds.ratios(0, 1, |cost| cost.cpu);
    report.push(Figure::new(format!("{label}: CPU"), "ratio", Better::Lower, cpu).against("Pillow").at_most(most));
    let workers = moved("framecache_decode_cpu_seconds_total") / run.rounds as f64 * per_thousand;
    report.push(Figure::one(format!("{label}: of it in decoders"), "CPU-s/1,000", Better::Lower, workers));
    let wrong = same.wrong as f64;
    report
        .push(Figure::one(format!("{label}: pictures that differ from Pillow's"), "pictures", Better::Lower, wrong).at_most(0.0));
    report
        .push(Figure::one(format!("{label}: decodes of each picture and round"), "decodes", Better::Lower, decodes).at_most(1.0));
    report.push(Figure::one(format!("{label}: origin requests meanwhile"), "requests", Better::Lower, requests).at_most(0.0));
    ensure!(decodes >= 1.0, "pictures came from the cache");
    rounds.tell(report);
    node.stop().await
}

/// Reads every object once, so that its raw bytes are in RAM.
async fn hold_raw(node: &NodeProcess, uris: &[String]) -> Result<()> {
    let client = node.client()?;
    for uri in uris {
        client.read(&uri.parse()?, 0, None, &Call::default()).await?;
    }
    client.close().await;
    Ok(())
}
