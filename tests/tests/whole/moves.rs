//! Keys move and bytes stay: joins, leaves, weights and ramps, each told to every node at once. What the cluster holds the origin is not
//! asked for again, and what was decoded is not decoded again.

use framecache::wire::{NodeRow, RAMP_FULL};
use framecache::{Batch, ObjectId};
use framecache_tests::harness::{Cluster, Options, id};
use framecache_tests::media::PLAIN;
use framecache_tests::model::stamped;

use crate::soak;

const MIB: u64 = 1 << 20;
const PICTURES: usize = 40;
const OBJECTS: usize = 60;

/// A cluster of `n` nodes that hold nothing yet, before a bucket of pictures, small objects and a large one.
async fn cluster(n: usize, options: Options) -> Cluster {
    let cluster = Cluster::start(n, options).await;
    (0..PICTURES).for_each(|index| cluster.put(&format!("{index}.jpg"), PLAIN.file));
    (0..OBJECTS).for_each(|index| cluster.put(&format!("{index}.bin"), &stamped(index as u32, 1000 + index)));
    cluster.put("large", &stamped(99, (3 * MIB + 5) as usize));
    cluster
}

/// Reads everything through a new client, each byte and pixel compared.
async fn read_all(cluster: &Cluster, seed: usize) {
    let client = cluster.client_of(seed);
    for index in 0..OBJECTS {
        let raw = client.read(&id(&format!("{index}.bin")), 0, None, &Default::default()).await.expect("read");
        assert!(raw.bytes == stamped(index as u32, 1000 + index), "{index}.bin");
    }
    let large = client.read(&id("large"), 0, None, &Default::default()).await.expect("large");
    assert!(large.bytes == stamped(99, (3 * MIB + 5) as usize));
    let ids: Vec<ObjectId> = (0..PICTURES).map(|index| id(&format!("{index}.jpg"))).collect();
    let batch = Batch::new(ids.len(), 64 * MIB);
    let outcomes = client.images(&ids, &"image".parse().expect("spec"), &batch, &Default::default()).await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    let pictures = batch.finish();
    (0..ids.len()).for_each(|slot| PLAIN.expect_in(&pictures, slot));
    client.close().await;
}

fn fresh(row: NodeRow, ramp: u16) -> NodeRow {
    NodeRow { ramp, settled: false, ..row }
}

/// Promise: whatever changes, from settled nodes that hold everything: the origin is asked for nothing again, nothing is decoded again, and
/// the nodes that came have served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_held_is_not_fetched_again() {
    let row = |cluster: &Cluster, index: usize| cluster.node(index).row();
    type Change = fn(Vec<NodeRow>) -> Vec<NodeRow>;
    let changes: [(&str, Change); 6] = [
        ("three joins, no reads between", |rows| {
            rows.into_iter().enumerate().map(|(at, row)| if at < 3 { row } else { fresh(row, RAMP_FULL) }).collect()
        }),
        ("a join at a quarter of its ramp", |rows| {
            rows.into_iter().take(4).enumerate().map(|(at, row)| if at < 3 { row } else { fresh(row, 64) }).collect()
        }),
        ("a leave", |rows| {
            rows.into_iter()
                .take(3)
                .enumerate()
                .map(|(at, row)| if at == 1 { NodeRow { state: 2, ..row } } else { row })
                .collect()
        }),
        ("a join and a leave at once", |rows| {
            let change = |(at, row)| match at {
                1 => NodeRow { state: 2, ..row },
                3 => fresh(row, RAMP_FULL),
                _ => row,
            };
            rows.into_iter().take(4).enumerate().map(change).collect()
        }),
        ("a weight up", |rows| {
            rows.into_iter()
                .take(3)
                .enumerate()
                .map(|(at, row)| if at == 0 { NodeRow { weight: 400, ..row } } else { row })
                .collect()
        }),
        ("a weight down", |rows| {
            rows.into_iter()
                .take(3)
                .enumerate()
                .map(|(at, row)| if at == 2 { NodeRow { weight: 20, ..row } } else { row })
                .collect()
        }),
    ];
    for (change, apply) in changes {
        let cluster = cluster(6, Options::default()).await;
        let rows: Vec<NodeRow> = (0..6).map(|index| row(&cluster, index)).collect();
        cluster.agree(&rows[..3]);
        read_all(&cluster, 0).await;
        let (gets, jobs) = (cluster.all_gets(), cluster.jobs().iter().sum::<u64>());
        // News of a node carry a newer version.
        let changed: Vec<NodeRow> = apply(rows).into_iter().map(|row| NodeRow { version: row.version + 1, ..row }).collect();
        cluster.agree(&changed);
        read_all(&cluster, 2).await;
        read_all(&cluster, 0).await;
        let repeats = cluster.origin_repeats().await;
        assert!(cluster.all_gets() <= gets + repeats, "{change}: {} GETs after {gets}, {repeats} repeats", cluster.all_gets());
        assert_eq!(cluster.jobs().iter().sum::<u64>(), jobs, "{change}: decoded again");
        let mut moved = 0.0;
        for index in 0..6 {
            moved += cluster.metrics(index).await["framecache_peek_hits_total"];
        }
        assert!(moved > 0.0, "{change}: nothing moved");
        cluster.stop().await;
    }
}

/// Promise: a node that is asked for what another serves gets it from there, keeps none of it, and the origin gives it once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_asks_the_owner() {
    let cluster = cluster(3, Options::default()).await;
    read_all(&cluster, 0).await;
    let gets = cluster.all_gets();
    // This client believes that there is one node.
    let rows: Vec<NodeRow> = (0..3).map(|index| cluster.node(index).row()).collect();
    cluster.node(1).join({
        let mut view = framecache::View::default();
        view.merge(rows[1].clone()).expect("merge");
        view
    });
    let client = cluster.client_of(1);
    let known = client.nodes(&Default::default()).await.expect("view");
    assert_eq!(known.len(), 1);
    cluster.agree(&rows);
    for index in 0..OBJECTS {
        let raw = client.read(&id(&format!("{index}.bin")), 0, None, &Default::default()).await.expect("read");
        assert!(raw.bytes == stamped(index as u32, 1000 + index), "{index}.bin");
    }
    assert_eq!(cluster.all_gets(), gets);
    cluster.stop().await;
}

/// Promise: where a node decodes for others and the owners do not, it decodes all, keeps nothing, and the origin gives each
/// picture once; when
/// it is gone the owners decode.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decoders_decode_for_owners() {
    let mut cluster = cluster(3, Options { roles: &["cache", "cache", "decode"], ..Options::default() }).await;
    read_all(&cluster, 0).await;
    let (gets, jobs) = (cluster.all_gets(), cluster.jobs());
    assert_eq!((jobs[0], jobs[1], jobs[2]), (0, 0, PICTURES as u64), "jobs by node");
    let repeats = cluster.origin_repeats().await;
    assert!(gets <= (PICTURES + OBJECTS + 4) as u64 + repeats, "{gets} GETs, {repeats} repeats");
    let kept = cluster.metrics(2).await;
    assert_eq!(kept["framecache_cache_bytes{tier=\"ram_decoded\"}"], 0.0, "the decoder keeps no pixels");
    cluster.stop_last().await;
    let client = cluster.client();
    let ids: Vec<ObjectId> = (0..PICTURES).map(|index| id(&format!("{index}.jpg"))).collect();
    let batch = Batch::new(ids.len(), 64 * MIB);
    let outcomes = client.images(&ids, &"image?short=100".parse().expect("spec"), &batch, &Default::default()).await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    assert_eq!(cluster.jobs().iter().sum::<u64>(), PICTURES as u64, "the owners decode");
    client.close().await;
    cluster.stop().await;
}

/// Promise: where all decoding is another node's and the frames' memory of both owners is full, everybody gets on: no circle, no timeout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_owners_and_a_decoder_get_on() {
    let options = Options { roles: &["cache", "cache", "decode"], memory: "320MiB", ram: "16MiB", ..Options::default() };
    let cluster = Cluster::meet(3, options).await;
    (0..PICTURES).for_each(|index| cluster.put(&format!("{index}.jpg"), PLAIN.file));
    let ids: Vec<ObjectId> = (0..PICTURES).map(|index| id(&format!("{index}.jpg"))).collect();
    let loaders: Vec<_> = (0..12usize)
        .map(|loader| {
            let (client, ids) = (cluster.client_of(loader % 2), ids.clone());
            tokio::spawn(async move {
                // Large, and another one for each loader: nobody finds what another asked for.
                let spec = format!("image?size={}x500", 500 + loader).parse().expect("spec");
                let batch = Batch::new(ids.len(), 256 * MIB);
                let call = framecache::Call { timeout: Some(std::time::Duration::from_secs(120)), ..Default::default() };
                let outcomes = client.images(&ids, &spec, &batch, &call).await;
                client.close().await;
                outcomes.into_iter().filter_map(Result::err).collect::<Vec<_>>()
            })
        })
        .collect();
    for loader in loaders {
        let errors = loader.await.expect("task");
        assert!(errors.is_empty(), "{} failed, the first: {:?}", errors.len(), errors[0]);
    }
    let jobs = cluster.jobs();
    assert_eq!((jobs[0], jobs[1]), (0, 0), "the owners decoded: {jobs:?}");
    cluster.stop().await;
}

/// Promise: however many ask for random ranges of one cold object through all nodes at once, the origin gives each page once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_costs_one_get_a_page() {
    let (clients, pages) = if soak() { (1000, 64) } else { (100, 16) };
    let cluster = Cluster::start(3, Options { ram: "256MiB", ..Options::default() }).await;
    let object = std::sync::Arc::new(stamped(5, pages << 20));
    cluster.put("cold", &object);
    let readers: Vec<_> = (0..clients)
        .map(|reader| {
            let (client, object) = (cluster.client_of(reader % 3), object.clone());
            tokio::spawn(async move {
                let mut dice = framecache_tests::dice::Dice::new(reader as u64);
                for _ in 0..4 {
                    let start = dice.within(0..object.len() as u64);
                    let length = dice.within(1..200_000);
                    let raw = client.read(&id("cold"), start, Some(length), &Default::default()).await.expect("read");
                    let end = (start + length).min(object.len() as u64);
                    assert!(raw.bytes == object[start as usize..end as usize], "{start} + {length}");
                }
                client.close().await;
            })
        })
        .collect();
    for reader in readers {
        reader.await.expect("task");
    }
    let (gets, repeats) = (cluster.origin_gets("cold"), cluster.origin_repeats().await);
    assert!(gets <= pages as u64 + repeats, "{gets} GETs for {pages} pages, {repeats} repeats");
    cluster.stop().await;
}
