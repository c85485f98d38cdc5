//! `scale`: nodes join, leave and change their weight. Who has become the owner of a key gets it from who was, not from the origin.

use std::time::Duration;

use anyhow::Result;
use framecache::ObjectId;

use super::churn::Holders;
use crate::fleet::{self, Fleet, Place};
use crate::load::{Diet, id};
use crate::meter::{Tree, Watch};
use crate::origin::Origin;
use crate::report::{Better, Figure, Report};
use crate::run::{Rounds, Run};
use crate::workload::Objects;

const AGREE: Duration = Duration::from_secs(30);
/// Longer than the scenario: what joins stays unsettled, so that those before it are asked.
const SETTLE: Duration = Duration::from_secs(3600);
/// A leaving node answers peeks while everything is read once.
const DRAIN: Duration = Duration::from_secs(30);

pub async fn run(run: &Run) -> Result<Report> {
    let mut report = Report::new("scale");
    let bucket = run.scratch.folder("bucket")?;
    let count = run.size(2000, 300);
    let objects = Objects { prefix: "o".into(), count, bytes: (20_000, 200_000), seed: run.seed };
    objects.write(&bucket)?;
    let origin = Origin::serve(&bucket).await?;
    let mut settings = fleet::settings(run, "fleet", origin.address)?;
    (settings.raw_ram, settings.disk) = (64 << 20, 2 * objects.total() + (128 << 20));
    (settings.settle, settings.drain) = (SETTLE, DRAIN);
    let watch = Watch::begin(&[Tree::own()]);
    let fleet = Fleet::start(settings, 3).await?;
    let ids = (0..count).map(|number| id(&objects.key(number))).collect::<Result<Vec<_>>>()?;
    let mut stage = Stage { fleet, origin, diet: Diet::of(&objects, Duration::ZERO)?, ids, holders: Holders::default() };

    stage.read_all("3 nodes, all cold", &[0, 1, 2], &mut report).await?;
    for _ in 0..3 {
        let index = stage.fleet.add(&Place::loopback())?;
        stage.fleet.launch(index)?;
        stage.fleet.ready(index).await?;
        stage.fleet.agreed(AGREE).await?;
    }
    stage.read_all("3 to 4 to 5 to 6 nodes, no reads between", &[0, 1, 2, 3, 4, 5], &mut report).await?;

    let joins = stage.fleet.add(&Place::loopback())?;
    stage.fleet.launch(joins)?;
    stage.fleet.terminate(1)?;
    stage.fleet.ready(joins).await?;
    let stay = [0, 2, 3, 4, 5, joins];
    stage.fleet.agreed_on(&stay, &stay, AGREE).await?;
    stage.read_all("a join and a leave at once", &stay, &mut report).await?;
    stage.fleet.ended(1).await?;

    for (what, weight) in [("a weight up: 1 to 2", 2.0), ("a weight down: 2 to 0.5", 0.5)] {
        stage.fleet.members[2].weight = weight;
        stage.fleet.terminate(2)?;
        stage.fleet.ended(2).await?;
        stage.fleet.launch(2)?;
        stage.fleet.ready(2).await?;
        stage.fleet.agreed_on(&stay, &stay, AGREE).await?;
        stage.read_all(what, &stay, &mut report).await?;
    }
    let mut rounds = Rounds::of(1);
    rounds.push(0, watch.end());
    rounds.tell(&mut report);
    report.note("a weight is changed by a restart on the same disk; nothing is read while the node is away");
    stage.fleet.stop().await?;
    Ok(report)
}

struct Stage {
    fleet: Fleet,
    origin: Origin,
    diet: Diet,
    ids: Vec<ObjectId>,
    holders: Holders,
}

impl Stage {
    /// Reads everything once; what the origin was asked for though a node within reach held it, and what none held.
    async fn read_all(&mut self, after: &str, serving: &[usize], report: &mut Report) -> Result<()> {
        let view = self.fleet.view(serving[0]).await?;
        let before = self.origin.all_gets();
        // A client of its own each time: nothing is known from before.
        let client = fleet::client(&self.fleet)?;
        self.diet.read_all(&client, 4).await?;
        client.close().await;
        let gets = self.origin.all_gets();
        let (mut held, mut lost) = (0, 0);
        for (number, id) in self.ids.iter().enumerate() {
            let asked = gets.get(id.key()).copied().unwrap_or(0) - before.get(id.key()).copied().unwrap_or(0);
            let known = !before.is_empty() && self.holders.within_reach(number, id, &view)?;
            *if known { &mut held } else { &mut lost } += asked;
        }
        self.holders.read_all(&self.ids, &view);
        let all = format!("{} objects read once", self.ids.len());
        let figure = |name: &str, value: u64| Figure::one(format!("{after}: {name}"), "GETs", Better::Lower, value as f64);
        report.push(figure("origin reads for what the peek list holds", held).against(all).at_most(0.0));
        report.push(figure("origin reads for what none of it holds", lost));
        fleet::flushed(&self.fleet).await
    }
}
