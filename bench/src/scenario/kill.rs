//! `kill`: nodes of three are killed at random under load and come back. Nobody who reads notices more than a slow request.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::fleet::{self, Fleet};
use crate::load::{Album, Diet, Load, Page};
use crate::meter::{Tree, Watch};
use crate::origin::Origin;
use crate::report::{Better, Figure, Report};
use crate::run::{Rounds, Run};
use crate::workload::{Objects, Random};

const NODES: usize = 3;
const CLIENTS: usize = 8;
/// Between an answer and the next request: the load then leaves most of a small machine to what is measured.
const PAUSE: Duration = Duration::from_millis(25);
/// Longest time in which the hit ratio must be back, and the views must agree.
const BACK: Duration = Duration::from_secs(10);
/// One restart in so many is followed by a look at the hit ratio, each second.
const LOOK_EVERY: usize = 10;

pub async fn run(run: &Run) -> Result<Report> {
    let mut report = Report::new("kill");
    let bucket = run.scratch.folder("bucket")?;
    let count = run.size(400, 80);
    let objects = Objects { prefix: "o".into(), count, bytes: (150_000, 1 << 20), seed: run.seed };
    objects.write(&bucket)?;
    let photographs = run.small_photographs(run.size(200, 32))?;
    let mut sizes: HashMap<String, u64> = (0..count).map(|number| (objects.key(number), objects.size(number) as u64)).collect();
    for name in &photographs {
        sizes.insert(name.clone(), std::fs::copy(run.photographs.join(name), bucket.join(name))?);
    }
    let origin = Origin::serve(&bucket).await?;
    let mut settings = fleet::settings(run, "fleet", origin.address)?;
    (settings.raw_ram, settings.disk) = (64 << 20, 2 * objects.total() + (256 << 20));
    let mut fleet = Fleet::start(settings, NODES).await?;

    let client = fleet::client(&fleet)?;
    let mut diet = Diet::of(&objects, PAUSE)?;
    let cold = diet.read_all(&client, 1).await?;
    diet.album = Some(Album::learn(&client, &photographs).await?.into());
    client.close().await;
    fleet::flushed(&fleet).await?;

    let watch = Watch::begin(&[Tree::own()]);
    let load = Load::start(&fleet.client_config(), CLIENTS, &diet, run.seed)?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    load.turn();
    tokio::time::sleep(Duration::from_secs(run.size(30, 5))).await;
    let calm = load.turn();
    let mut trouble = Trouble { sizes, ..Trouble::default() };
    trouble.kill_on(&mut fleet, &load, &origin, run).await?;
    let page = trouble.page.and(load.stop().await?);
    let mut rounds = Rounds::of(1);
    rounds.push(0, watch.end());

    calm.judge("undisturbed", &mut report);
    page.judge(&format!("{} kills", trouble.kills), &mut report);
    let (p95, p99) = (calm.times.ms(0.95), calm.times.ms(0.99));
    let bound = (3.0 * p99).max(p95 + cold.ms(0.99));
    let figure = |name: &str, unit, value| Figure::one(name, unit, Better::Lower, value);
    report.push(figure("undisturbed: p99", "ms", p99));
    report.push(
        figure("with kills: p99 of all requests", "ms", page.times.ms(0.99))
            .against(format!("3x undisturbed, or its p95 of {p95:.1} ms and one origin read of {:.1} ms", cold.ms(0.99)))
            .at_most(bound),
    );
    report.push(figure("with kills: longest request", "ms", page.times.longest().as_secs_f64() * 1000.0));
    let each = |name: &str, values: &[f64]| Figure::new(name, "s", Better::Lower, values.to_vec()).always();
    report.push(
        each("hit ratio at 95 % of its value before the kill: after the restart", &trouble.back)
            .against("before: ".to_owned() + &format!("{:.4} at the least", least(&trouble.before)))
            .at_most(BACK.as_secs_f64()),
    );
    report.push(each("views agree: after the restarted node is ready", &trouble.agreed).at_most(BACK.as_secs_f64()));
    report.push(each("ready: after the restart", &trouble.ready));
    trouble.words.into_iter().for_each(|words| report.note(words));
    rounds.tell(&mut report);
    fleet.stop().await?;
    Ok(report)
}

fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

/// What the kills led to.
#[derive(Default)]
struct Trouble {
    sizes: HashMap<String, u64>,
    kills: usize,
    page: Page,
    /// Hit ratio before a kill; seconds from the restart until it was back.
    before: Vec<f64>,
    back: Vec<f64>,
    ready: Vec<f64>,
    agreed: Vec<f64>,
    words: Vec<String>,
}

impl Trouble {
    async fn kill_on(&mut self, fleet: &mut Fleet, load: &Load, origin: &Origin, run: &Run) -> Result<()> {
        let mut random = Random::new(run.seed, 1 << 32);
        let look_every = run.size(LOOK_EVERY, 5);
        for kill in 0..run.size(200, 10) {
            let looks = kill % look_every == 0;
            let before = if looks { self.hit_ratio(load, origin, Duration::from_secs(3)).await } else { 1.0 };
            let victim = random.below(NODES as u64) as usize;
            fleet.kill(victim).await?;
            self.kills += 1;
            tokio::time::sleep(Duration::from_millis(random.below(run.size(5_000, 2_000)))).await;
            let restarted = Instant::now();
            fleet.launch(victim)?;
            self.ready.push(fleet.ready(victim).await?.as_secs_f64());
            match fleet.agreed(2 * BACK).await {
                Ok(after) => self.agreed.push(after.as_secs_f64()),
                Err(error) => {
                    self.agreed.push(f64::INFINITY);
                    self.words.push(format!("kill {kill}: {error:#}"));
                }
            }
            if looks {
                self.before.push(before);
                let mut back = f64::INFINITY;
                while back.is_infinite() && restarted.elapsed() < 2 * BACK {
                    if self.hit_ratio(load, origin, Duration::from_secs(1)).await >= 0.95 * before {
                        back = restarted.elapsed().as_secs_f64();
                    }
                }
                self.back.push(back);
            }
            tokio::time::sleep(Duration::from_millis(500 + random.below(1000))).await;
            self.turn(load);
        }
        Ok(())
    }

    /// The part of the bytes that were served in a while for which the origin was not asked.
    async fn hit_ratio(&mut self, load: &Load, origin: &Origin, lasts: Duration) -> f64 {
        self.turn(load);
        let asked = origin.bytes(&self.sizes);
        tokio::time::sleep(lasts).await;
        1.0 - (origin.bytes(&self.sizes) - asked) as f64 / load.bytes().max(1) as f64
    }

    fn turn(&mut self, load: &Load) {
        // Which objects were asked for matters to others.
        let page = Page { asked: Vec::new(), ..load.turn() };
        self.page = std::mem::take(&mut self.page).and(page);
    }
}
