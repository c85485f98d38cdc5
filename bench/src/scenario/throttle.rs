//! `throttle`: an origin that says 503 for a while is left alone, and asked again soon after; who reads what is cached notices nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use anyhow::Result;
use framecache::{Call, Client};
use framecache_tests::faulty::{Fault, FaultyOrigin, Rule, Script};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::fleet::{self, Fleet};
use crate::load::{Diet, Load, id};
use crate::meter::{Tree, Watch};
use crate::origin::Origin;
use crate::report::{Better, Figure, Report};
use crate::run::{Rounds, Run};
use crate::workload::Objects;

const NODES: usize = 3;
/// Reads of what is not there yet, each second.
const COLD_PER_SECOND: u64 = 100;
/// Cold reads that wait at once; those due beyond them are left out, and counted.
const COLD_WAITING_MAX: usize = 512;
/// Time in which the origin must be left alone, and asked again.
const LEFT_ALONE: Duration = Duration::from_secs(5);
const RECOVERED: Duration = Duration::from_secs(30);

pub async fn run(run: &Run) -> Result<Report> {
    let mut report = Report::new("throttle");
    let bucket = run.scratch.folder("bucket")?;
    let warm = Objects { prefix: "warm".into(), count: 200, bytes: (20_000, 100_000), seed: run.seed };
    warm.write(&bucket)?;
    let (before, during, after) = (run.size(15, 5), run.size(60, 10), 40);
    make_cold(&bucket, (before + during + after + 10) * COLD_PER_SECOND, run.seed)?;
    let folder = Origin::serve(&bucket).await?;
    let faulty = FaultyOrigin::start(folder.address, Script::default()).await?;
    let fleet = Fleet::start(fleet::settings(run, "fleet", faulty.addr())?, NODES).await?;
    let diet = Diet::of(&warm, Duration::from_millis(20))?;
    let client = fleet::client(&fleet)?;
    diet.read_all(&client, 4).await?;

    let watch = Watch::begin(&[Tree::own()]);
    let load = Load::start(&fleet.client_config(), 4, &diet, run.seed)?;
    let cold = Cold::start(client.clone());
    tokio::time::sleep(Duration::from_secs(2)).await;
    load.turn();
    let begun = Instant::now();
    tokio::time::sleep(Duration::from_secs(before)).await;
    let calm = load.turn();
    let sick = Instant::now();
    faulty.set(Rule { method: None, ..Rule::gets(Fault::SlowDown(None)) });
    tokio::time::sleep(Duration::from_secs(during)).await;
    let well = Instant::now();
    faulty.set(Script::default());
    let page = load.turn();
    tokio::time::sleep(Duration::from_secs(after)).await;
    let end = Instant::now();
    let later = load.stop().await?;
    let cold = cold.stop().await?;
    let mut rounds = Rounds::of(1);
    rounds.push(0, watch.end());

    let arrivals = faulty.stats().arrivals;
    let rate = |from: Instant, to: Instant| {
        let count = arrivals.iter().filter(|at| (from..to).contains(at)).count();
        count as f64 / (to - from).as_secs_f64()
    };
    let healthy = rate(begun, sick);
    let second = Duration::from_secs(1);
    let recovered = (1..=after).map(|n| (well + second * n as u32, n)).find(|(to, _)| rate(*to - second, *to) >= 0.9 * healthy);
    let figure = |name: &str, unit, value| Figure::one(name, unit, Better::Lower, value);
    report.push(figure("origin well: requests it gets", "1/s", healthy));
    report.push(
        figure("origin says 503: requests it gets, from 5 s on", "ratio", rate(sick + LEFT_ALONE, well) / healthy)
            .against("before")
            .at_most(0.1),
    );
    report.push(
        figure("origin well again: until it gets 90 % as many", "s", recovered.map_or(f64::INFINITY, |(_, n)| n as f64))
            .at_most(RECOVERED.as_secs_f64()),
    );
    report.push(figure("from 30 s after to the end: requests it gets", "ratio", rate(well + RECOVERED, end) / healthy));
    calm.judge("cached reads before", &mut report);
    page.judge("cached reads meanwhile", &mut report);
    later.judge("cached reads after", &mut report);
    let ratio = page.times.ms(0.99) / calm.times.ms(0.99);
    report.push(
        figure("cached reads meanwhile: p99", "ratio", ratio).against(format!("{:.2} ms", calm.times.ms(0.99))).at_most(2.0),
    );
    report.note(format!(
        "cold reads: {} answered, {} failed, {} left out as too many waited",
        cold.answered, cold.failed, cold.left_out
    ));
    rounds.tell(&mut report);
    client.close().await;
    fleet.stop().await?;
    Ok(report)
}

/// One file under many names: the cache does not know that they are one.
fn make_cold(bucket: &std::path::Path, count: u64, seed: u64) -> Result<()> {
    std::fs::create_dir_all(bucket.join("cold"))?;
    let first = bucket.join("cold/0");
    std::fs::write(&first, crate::workload::object(seed, 1 << 40, 20_000))?;
    (1..count).try_for_each(|number| std::fs::hard_link(&first, bucket.join(format!("cold/{number}"))))?;
    Ok(())
}

/// Reads of what nobody has, at a steady pace, whatever becomes of them.
struct Cold {
    task: tokio::task::JoinHandle<Result<u64>>,
    stop: Arc<AtomicBool>,
    counts: Arc<[AtomicU64; 2]>,
}

struct ColdCounts {
    answered: u64,
    failed: u64,
    left_out: u64,
}

impl Cold {
    fn start(client: Client) -> Self {
        let (stop, counts) = (Arc::new(AtomicBool::new(false)), Arc::new([AtomicU64::new(0), AtomicU64::new(0)]));
        let task = tokio::spawn(ask_on(client, stop.clone(), counts.clone()));
        Self { task, stop, counts }
    }

    async fn stop(self) -> Result<ColdCounts> {
        self.stop.store(true, Relaxed);
        let left_out = self.task.await??;
        let [answered, failed] = [0, 1].map(|which| self.counts[which].load(Relaxed));
        Ok(ColdCounts { answered, failed, left_out })
    }
}

/// How many were left out.
async fn ask_on(client: Client, stop: Arc<AtomicBool>, counts: Arc<[AtomicU64; 2]>) -> Result<u64> {
    let (slots, mut left_out) = (Arc::new(Semaphore::new(COLD_WAITING_MAX)), 0);
    let mut tick = tokio::time::interval(Duration::from_secs(1) / COLD_PER_SECOND as u32);
    let mut number = 0u64;
    while !stop.load(Relaxed) {
        tick.tick().await;
        let Ok(slot) = slots.clone().try_acquire_owned() else {
            left_out += 1;
            continue;
        };
        let (client, id, counts) = (client.clone(), id(&format!("cold/{number}"))?, counts.clone());
        number += 1;
        tokio::spawn(async move {
            let call = Call { timeout: Some(Duration::from_secs(10)), ..Call::default() };
            let outcome = client.read(&id, 0, None, &call).await;
            counts[usize::from(outcome.is_err())].fetch_add(1, Relaxed);
            drop(slot);
        });
    }
    Ok(left_out)
}
