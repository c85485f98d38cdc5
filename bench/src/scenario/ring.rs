//! `ring`: how evenly a ring of many nodes shares keys, what it costs, and what a change moves.
//!
//! Each round has nodes of other names, so that no set of names is lucky. Loads are counted over keys; times are CPU time of the one
//! thread that builds and asks; memory is what this process grows by for several rings, of the building and the table's too.

use std::hint::black_box;

use anyhow::{Context, Result, ensure};
use framecache::view::NODES_MAX;
use framecache::wire::NodeRow;
use framecache::{Ring, RouteKey, Topology, View};

use crate::meter::{Tree, Watch, thread_cpu};
use crate::report::{Better, Figure, Report};
use crate::run::{Rounds, Run};
use crate::workload::Random;

/// Rings that are held at once to see what one takes.
const HELD: usize = 8;

/// Nodes of these weights, in turn.
struct Size {
    name: &'static str,
    nodes: usize,
    weights: &'static [u32],
    /// Keys counted for each node: their chance adds 0.3 % to a load at 64 nodes, 1 % at a thousand.
    keys_each: usize,
}

const SIZES: [Size; 4] = [
    Size { name: "5 nodes", nodes: 5, weights: &[100], keys_each: 200_000 },
    Size { name: "64 nodes", nodes: 64, weights: &[100], keys_each: 100_000 },
    Size { name: "1,000 nodes of weights 1, 2, 4", nodes: 1000, weights: &[100, 200, 400], keys_each: 10_000 },
    Size { name: "10,000 nodes", nodes: 10_000, weights: &[100], keys_each: 1000 },
];

/// What one round found of one size.
#[derive(Default)]
struct Found {
    fullest: Vec<f64>,
    build_ms: Vec<f64>,
    owner_ns: Vec<f64>,
    walk_us: Vec<f64>,
    megabytes: Vec<f64>,
    joined: Vec<f64>,
    between: Vec<f64>,
}

pub async fn run(run: &Run) -> Result<Report> {
    let mut report = Report::new("ring");
    let mut found: [Found; SIZES.len()] = Default::default();
    let (mut served, mut ordered, mut hostile) = (Vec::new(), Vec::new(), Found::default());
    let mut rounds = Rounds::of(SIZES.len());
    for round in 0..run.rounds {
        for subject in rounds.order(round) {
            let watch = Watch::begin(&[Tree::own()]);
            let set = run.seed.wrapping_mul(1000) + round as u64;
            measure(&SIZES[subject], set, run.size(1, 100), &mut found[subject])?;
            rounds.push(subject, watch.end());
        }
        let (server, order) = asked(run.seed.wrapping_mul(1000) + round as u64)?;
        served.push(server);
        ordered.push(order);
        let greedy = Size { name: "", nodes: NODES_MAX, weights: &[u32::MAX], keys_each: 10 };
        measure(&greedy, round as u64, 1, &mut hostile)?;
    }
    for (size, found) in SIZES.iter().zip(found) {
        tell(size, found, &mut report);
    }
    let lower = |name: &str, unit, values| Figure::new(name, unit, Better::Lower, values);
    report.push(lower("1,000 nodes: who serves a key, with its row", "ns", served).at_most(200.0));
    report.push(lower("1,000 nodes: whom a client asks, in order", "µs", ordered));
    report.push(lower("4,096 nodes of unbounded weight: build", "ms", hostile.build_ms));
    report.push(lower("4,096 nodes of unbounded weight: memory", "MB", hostile.megabytes));
    report.note("load: keys counted over what the weight should give, the fullest node; times: CPU time of the one thread");
    report.note("10,000 nodes are past what a view holds (4,096); one more takes them past the most points of a ring");
    rounds.tell(&mut report);
    Ok(report)
}

fn measure(size: &Size, set: u64, fewer: usize, found: &mut Found) -> Result<()> {
    let names: Vec<String> = (0..=size.nodes).map(|number| format!("cache-{set}-{number}")).collect();
    let weights = size.weights.iter().copied().cycle();
    let rows: Vec<(&str, u32)> = names.iter().map(String::as_str).zip(weights).collect();
    let Some((&(joiner, _), before)) = rows.split_last() else { return Ok(()) };
    let build = |nodes: &[(&str, u32)]| Ring::of(nodes.iter().copied());
    let count = size.nodes * size.keys_each / fewer;
    let mut random = Random::new(set, 1);
    let keys: Vec<RouteKey> = (0..count).map(|_| RouteKey(random.next())).collect();

    let begun = thread_cpu();
    let ring = build(before);
    found.build_ms.push((thread_cpu() - begun) * 1e3);
    let before_bytes = Tree::own().pss();
    let held: Vec<Ring> = (0..HELD).map(|_| build(before)).collect();
    found.megabytes.push((Tree::own().pss().saturating_sub(before_bytes)) as f64 / HELD as f64 / 1e6);
    drop(held);

    let begun = thread_cpu();
    keys.iter().for_each(|&key| {
        black_box(ring.owner(key));
    });
    found.owner_ns.push((thread_cpu() - begun) * 1e9 / count as f64);
    let walked = count.min(2000);
    let begun = thread_cpu();
    keys.iter().take(walked).for_each(|&key| {
        black_box(ring.walk(key).take(3).count());
    });
    found.walk_us.push((thread_cpu() - begun) * 1e6 / walked as f64);

    let after = build(&rows);
    let numbers: std::collections::HashMap<&str, usize> =
        before.iter().enumerate().map(|(number, (name, _))| (*name, number)).collect();
    let (mut loads, mut joined, mut between) = (vec![0u64; size.nodes], 0u64, 0u64);
    for &key in &keys {
        let (old, new) = (ring.owner(key).context("a ring of nodes")?, after.owner(key).context("a ring of nodes")?);
        loads[numbers[old]] += 1;
        joined += u64::from(new == joiner);
        between += u64::from(new != old && new != joiner);
    }
    ensure!(keys.iter().take(100).all(|&key| ring.owner(key) == ring.walk(key).next()), "table and ring differ");
    let sum: f64 = before.iter().map(|(_, weight)| f64::from(*weight)).sum();
    let share = |(load, (_, weight)): (&u64, &(&str, u32))| *load as f64 / count as f64 * sum / f64::from(*weight);
    found.fullest.push(loads.iter().zip(before).map(share).fold(0.0, f64::max));
    found.joined.push(joined as f64 / count as f64 * 100.0);
    found.between.push(between as f64 / count as f64 * 100.0);
    Ok(())
}

/// At a thousand nodes, nanoseconds to say who serves a key and microseconds to say whom to ask in order.
fn asked(set: u64) -> Result<(f64, f64)> {
    let mut view = View::default();
    for number in 0..1000u32 {
        view.merge(NodeRow::member(&format!("cache-{set}-{number}"), 100 << (number % 3)))?;
    }
    let topology = Topology::new(view);
    let mut random = Random::new(set, 2);
    let keys: Vec<RouteKey> = (0..100_000).map(|_| RouteKey(random.next())).collect();
    let begun = thread_cpu();
    keys.iter().for_each(|&key| {
        black_box(topology.server(key));
    });
    let server = (thread_cpu() - begun) * 1e9 / keys.len() as f64;
    let begun = thread_cpu();
    keys.iter().take(2000).for_each(|&key| drop(black_box(topology.order(key))));
    Ok((server, (thread_cpu() - begun) * 1e6 / 2000.0))
}

fn tell(size: &Size, found: Found, report: &mut Report) {
    let lower = |what: &str, unit, values| Figure::new(format!("{}: {what}", size.name), unit, Better::Lower, values);
    let fullest = lower("load of the fullest", "of its share", found.fullest);
    let between = lower("one more: keys moved between old nodes", "%", found.between);
    let (fullest, between) = match size.nodes {
        64 => (fullest.at_most(1.10).always(), between.at_most(0.0).always()),
        1000 => (fullest.at_most(1.20).always(), between.at_most(0.0).always()),
        5 => (fullest, between.at_most(0.0).always()),
        _ => (fullest, between),
    };
    let (build, owner) = (lower("build", "ms", found.build_ms), lower("first owner", "ns", found.owner_ns));
    let memory = lower("memory", "MB", found.megabytes);
    let bounded = size.nodes <= 1000;
    report.push(fullest);
    report.push(if bounded { build.at_most(100.0) } else { build });
    report.push(if bounded { owner.at_most(200.0) } else { owner });
    report.push(if bounded { memory.at_most(8.0) } else { memory });
    report.push(lower("first three of the walk", "µs", found.walk_us));
    report.push(lower("one more: keys moved to it", "%", found.joined));
    report.push(between);
}
