//! `churn`: five nodes are restarted one after the other under load. What a node held on disk it holds again; meanwhile the others fetch
//! no more than what none of them had.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use framecache::{ObjectId, RouteKey, Span, Topology, View};

use crate::fleet::{self, Fleet};
use crate::load::{Diet, Load, Page, id};
use crate::meter::{Tree, Watch};
use crate::origin::Origin;
use crate::report::{Better, Figure, Report};
use crate::run::{Rounds, Run};
use crate::workload::Objects;

const NODES: usize = 5;
const CLIENTS: usize = 8;
const PAUSE: Duration = Duration::from_millis(25);
const AGREE: Duration = Duration::from_secs(20);

pub async fn run(run: &Run) -> Result<Report> {
    let mut report = Report::new("churn");
    let bucket = run.scratch.folder("bucket")?;
    let count = run.size(400, 100);
    let objects = Objects { prefix: "o".into(), count, bytes: (50_000, 300_000), seed: run.seed };
    objects.write(&bucket)?;
    let sizes: HashMap<String, u64> = (0..count).map(|number| (objects.key(number), objects.size(number) as u64)).collect();
    let origin = Origin::serve(&bucket).await?;
    let mut settings = fleet::settings(run, "fleet", origin.address)?;
    (settings.raw_ram, settings.disk) = (64 << 20, 2 * objects.total() + (128 << 20));
    let mut fleet = Fleet::start(settings, NODES).await?;
    let diet = Diet::of(&objects, PAUSE)?;
    let client = fleet::client(&fleet)?;
    diet.read_all(&client, 4).await?;
    client.close().await;
    fleet::flushed(&fleet).await?;

    let watch = Watch::begin(&[Tree::own()]);
    let load = Load::start(&fleet.client_config(), CLIENTS, &diet, run.seed)?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    load.turn();
    tokio::time::sleep(Duration::from_secs(run.size(30, 5))).await;
    let calm = load.turn();
    let ids = (0..count).map(|number| id(&objects.key(number))).collect::<Result<Vec<_>>>()?;
    let mut holders = Holders::default();
    holders.read_all(&ids, &fleet.view(0).await?);
    let (asked, mut page, mut allowed, mut away) = (origin.bytes(&sizes), Page::default(), 0, Vec::new());
    for _ in 0..run.size(3, 1) {
        for index in 0..NODES {
            let begun = Instant::now();
            fleet.terminate(index)?;
            fleet.ended(index).await?;
            let ended = Instant::now();
            // The view that the others have of it ending may come a little later: their own is asked then.
            let without = fleet.view((index + 1) % NODES).await?;
            fleet.launch(index)?;
            fleet.ready(index).await?;
            fleet.agreed(AGREE).await?;
            let back = Instant::now();
            away.push((back - begun).as_secs_f64());
            tokio::time::sleep(Duration::from_secs(2)).await;
            let turned = load.turn();
            let meanwhile: HashSet<u32> =
                turned.asked.iter().filter(|(at, _)| (ended..back).contains(at)).map(|(_, number)| *number).collect();
            let gone = fleet.members[index].id.clone();
            allowed += holders.lost(&ids, &meanwhile, &gone, &without).map(|number| objects.size(number) as u64).sum::<u64>();
            page = page.and(Page { asked: Vec::new(), ..turned });
        }
    }
    page = page.and(load.stop().await?);
    let fetched = origin.bytes(&sizes) - asked;
    let mut rounds = Rounds::of(1);
    rounds.push(0, watch.end());

    calm.judge("undisturbed", &mut report);
    page.judge("rolling restart", &mut report);
    let (calm_p99, p99) = (calm.times.ms(0.99), page.times.ms(0.99));
    let figure = |name: &str, unit, value| Figure::one(name, unit, Better::Lower, value);
    report.push(figure("undisturbed: p99", "ms", calm_p99));
    report.push(figure("rolling restart: p99", "ms", p99));
    report.push(figure("rolling restart: p99", "ratio", p99 / calm_p99).against("undisturbed").at_most(2.0));
    report.push(figure("rolling restart: longest request", "ms", page.times.longest().as_secs_f64() * 1000.0));
    let mib = |bytes: u64| bytes as f64 / (1 << 20) as f64;
    report.push(
        figure("fetched from the origin", "MiB", mib(fetched))
            .against(format!("1.05x the {:.2} MiB that were asked for while no other node had them", mib(allowed)))
            .at_most(1.05 * mib(allowed)),
    );
    report.push(Figure::new("one restart: from SIGTERM until all views agree", "s", Better::Lower, away));
    rounds.tell(&mut report);
    fleet.stop().await?;
    Ok(report)
}

/// Which nodes hold an object, as far as reads brought it there: a model, not a look.
#[derive(Default)]
pub struct Holders {
    of: Vec<HashSet<String>>,
}

impl Holders {
    /// Every object was read while `view` was the cluster's.
    pub fn read_all(&mut self, ids: &[ObjectId], view: &View) {
        self.of.resize_with(ids.len(), HashSet::new);
        let topology = Topology::new(view.clone());
        for (held, id) in self.of.iter_mut().zip(ids) {
            // Its first span is the whole of a small object.
            held.extend(topology.server(key(id)).map(|row| row.id.clone()));
        }
    }

    /// Of the objects that were asked for while `gone` was away, those that it alone held; whoever served them then, by `without`, holds
    /// them from now on.
    fn lost(&mut self, ids: &[ObjectId], asked: &HashSet<u32>, gone: &str, without: &View) -> impl Iterator<Item = usize> {
        let topology = Topology::new(without.clone());
        let mut lost = Vec::new();
        for number in asked.iter().map(|number| *number as usize) {
            if self.of[number].iter().all(|holder| holder == gone) {
                lost.push(number);
            }
            let order = topology.order(key(&ids[number]));
            self.of[number].extend(order.into_iter().map(|row| row.id.clone()).find(|id| id != gone));
        }
        lost.into_iter()
    }

    /// Whether a node that is asked by `server` for what it lacks holds object `number`.
    pub fn within_reach(&self, number: usize, id: &ObjectId, view: &View) -> Result<bool> {
        let topology = Topology::new(view.clone());
        let server = topology.server(key(id)).context("a cluster without members")?.id.clone();
        let asked = topology.holders(key(id), &server);
        Ok(self.of[number].contains(&server) || asked.iter().any(|row| self.of[number].contains(&row.id)))
    }
}

fn key(id: &ObjectId) -> RouteKey {
    RouteKey::raw(id, Span::new(0))
}
