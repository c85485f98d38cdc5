//! `connections`: thousands of idle clients at one node of three: what each costs, whether all come back after a crash, and what a flood
//! of handshakes does to those who are served.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::fleet::{self, Fleet, Place};
use crate::flood::{self, Flood};
use crate::idle::Idle;
use crate::load::{Diet, Load};
use crate::meter::{Tree, Watch};
use crate::node::BUCKET;
use crate::origin::Origin;
use crate::report::{Better, Figure, Report};
use crate::run::{Rounds, Run};
use crate::workload::Objects;

const NODES: usize = 3;
const AGREE: Duration = Duration::from_secs(20);
/// Longest time until all idle clients are back.
const BACK: Duration = Duration::from_secs(30);
/// Handshakes a second that are tried.
const FLOOD: u64 = 20_000;
/// Connections that ask for the view's news.
const ASKING: usize = 100;

pub async fn run(run: &Run) -> Result<Report> {
    let mut report = Report::new("connections");
    let bucket = run.scratch.folder("bucket")?;
    let objects = Objects { prefix: "o".into(), count: 200, bytes: (20_000, 150_000), seed: run.seed };
    objects.write(&bucket)?;
    let origin = Origin::serve(&bucket).await?;
    let mut fleet = Fleet::start(fleet::settings(run, "fleet", origin.address)?, NODES).await?;
    let diet = Diet::of(&objects, Duration::from_millis(10))?;
    let client = fleet::client(&fleet)?;
    diet.read_all(&client, 4).await?;
    client.close().await;
    let ca = fleet.client_config().tls.ca.context("no authority")?;

    let watch = Watch::begin(&[Tree::own()]);
    let wanted = run.size(10_000, 500);
    let before = pss(&fleet)?;
    let begun = Instant::now();
    let idle = Idle::open(fleet.members[0].quic, &ca, wanted, run.seed).await?;
    let opened = begun.elapsed();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let each = (pss(&fleet)? - before) / idle.count() as f64 / 1024.0;
    let figure = |name: &str, unit, value| Figure::one(name, unit, Better::Lower, value);
    let many = format!("{} of {wanted} idle connections", idle.count());
    report.push(Figure::one("idle connections held", "connections", Better::Higher, idle.count() as f64));
    report.push(figure("idle connection: node's PSS", "KiB", each).against(&many).at_most(64.0));
    report.push(figure("until all are open", "s", opened.as_secs_f64()));

    let load = Load::start(&fleet.client_config(), 4, &diet, run.seed)?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    load.turn();
    tokio::time::sleep(Duration::from_secs(run.size(20, 5))).await;
    let calm = load.turn();
    calm.judge("cached reads, all idle", &mut report);

    view_change(&mut fleet, &idle, &objects, run, &mut report).await?;

    load.turn();
    let lives = idle.lives();
    fleet.kill(0).await?;
    let restarted = Instant::now();
    fleet.launch(0)?;
    fleet.ready(0).await?;
    while idle.made_since(&lives) < idle.count() && restarted.elapsed() < 2 * BACK {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let back = if idle.made_since(&lives) < idle.count() { f64::INFINITY } else { restarted.elapsed().as_secs_f64() };
    let page = load.turn();
    page.judge("cached reads while they come back", &mut report);
    report.push(figure("after kill and restart: until all are back", "s", back).against(&many).at_most(BACK.as_secs_f64()));
    let against = format!("{:.2} ms", calm.times.ms(0.99));
    let ratio = |p99: f64| p99 / calm.times.ms(0.99);
    report.push(figure("while they come back: cached p99", "ratio", ratio(page.times.ms(0.99))).against(&against).at_most(3.0));
    fleet.agreed(AGREE).await?;
    idle.close().await;
    tokio::time::sleep(Duration::from_secs(2)).await;

    let datagrams = flood::record(&ca, run.size(4096, 512)).await?;
    load.turn();
    tokio::time::sleep(Duration::from_secs(run.size(20, 5))).await;
    let calm = load.turn();
    let flood = Flood::start(fleet.members[0].quic, datagrams, FLOOD)?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    load.turn();
    tokio::time::sleep(Duration::from_secs(run.size(20, 5))).await;
    let (page, rate) = (load.turn(), flood.rate());
    drop(flood);
    page.judge("cached reads in a flood", &mut report);
    report.push(Figure::one("handshakes tried", "1/s", Better::Higher, rate).against("of 20,000"));
    let ratio = page.times.ms(0.99) / calm.times.ms(0.99);
    report.push(
        figure("in a flood of handshakes: cached p99", "ratio", ratio)
            .against(format!("{:.2} ms", calm.times.ms(0.99)))
            .at_most(2.0),
    );
    load.stop().await?.judge("cached reads after it", &mut report);
    let mut rounds = Rounds::of(1);
    rounds.push(0, watch.end());
    rounds.tell(&mut report);
    fleet.stop().await?;
    Ok(report)
}

/// What one more node costs those who are idle: told or not.
async fn view_change(fleet: &mut Fleet, idle: &Idle, objects: &Objects, run: &Run, report: &mut Report) -> Result<()> {
    let lasts = Duration::from_secs(run.size(20, 8));
    let old = fleet.view(0).await?.digest();
    let quiet = received_in(idle, lasts).await;
    let begun = Instant::now();
    let received = idle.received();
    let joins = fleet.add(&Place::loopback())?;
    fleet.launch(joins)?;
    fleet.ready(joins).await?;
    fleet.agreed(AGREE).await?;
    tokio::time::sleep(lasts.saturating_sub(begun.elapsed())).await;
    let meanwhile = (idle.received() - received) as f64 / idle.count() as f64;
    // The same time, at the same pace of signs of life.
    let told = meanwhile - quiet * begun.elapsed().as_secs_f64() / lasts.as_secs_f64();
    let (mut with_news, mut without) = (0.0, 0.0);
    // What node 0 holds, or fetches once: the first asks before any is counted.
    let uri = format!("s3://{BUCKET}/{}", objects.key(0));
    idle.ask(0, &uri, old).await?;
    let asking = ASKING.min(idle.count());
    for number in 0..asking {
        with_news += idle.ask(number, &uri, old).await? as f64 / asking as f64;
        let new = fleet.view(0).await?.digest();
        without += idle.ask(number, &uri, new).await? as f64 / asking as f64;
    }
    let figure = |name: &str, value| Figure::one(name, "bytes", Better::Lower, value);
    report.push(
        figure("a join: bytes that an idle connection receives", told.max(0.0))
            .against(format!("{quiet:.0} without"))
            .at_most(2048.0),
    );
    report.push(
        figure("a join: bytes that the next answer has more", (with_news - without).max(0.0))
            .against(format!("{without:.0} without news"))
            .at_most(2048.0),
    );
    Ok(())
}

/// Bytes that one connection receives in a while, at the mean.
async fn received_in(idle: &Idle, lasts: Duration) -> f64 {
    let before = idle.received();
    tokio::time::sleep(lasts).await;
    (idle.received() - before) as f64 / idle.count() as f64
}

fn pss(fleet: &Fleet) -> Result<f64> {
    Ok(Tree(fleet.members[0].pid().context("node 0 does not run")?).pss() as f64)
}
