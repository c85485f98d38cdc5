//! Several nodes with one view.

use framecache::wire::Status;
use framecache::{Batch, Ring, View};
use framecache_tests::harness::{Cluster, Options, id};
use framecache_tests::media::PLAIN;
use framecache_tests::model::stamped;
use framecache_tests::wire;

const MIB: u64 = 1 << 20;

/// Promise: whichever node a client is told of, every read is right, each key is fetched by its owner alone, and an object over
/// several spans comes from several nodes as one version.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_node_leads_to_all() {
    let cluster = Cluster::start(3, Options::default()).await;
    let keys: Vec<String> = (0..60).map(|index| format!("{index}.jpg")).collect();
    keys.iter().for_each(|key| cluster.put(key, PLAIN.file));
    let large = stamped(9, (66 * MIB) as usize);
    cluster.put("large", &large);
    let ids: Vec<_> = keys.iter().map(|key| id(key)).collect();
    for index in 0..3 {
        let client = cluster.client_of(index);
        let batch = Batch::new(ids.len(), 64 * MIB);
        let outcomes = client.images(&ids, &"image".parse().expect("spec"), &batch, &Default::default()).await;
        assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
        let pictures = batch.finish();
        (0..ids.len()).for_each(|slot| PLAIN.expect_in(&pictures, slot));
        let raw = client.read(&id("large"), 63 * MIB, Some(3 * MIB), &Default::default()).await.expect("two spans");
        assert!(raw.bytes == large[63 << 20..]);
        client.close().await;
    }
    let repeats = cluster.origin_repeats().await;
    let gets: u64 = keys.iter().map(|key| cluster.origin_gets(key)).sum();
    assert!((60..=60 + repeats).contains(&gets), "{gets} GETs for 60 pictures");
    let jobs: Vec<u64> = cluster.nodes().iter().map(|node| node.pool().stats().jobs).collect();
    assert!(jobs.iter().sum::<u64>() == 60 && jobs.iter().all(|jobs| *jobs > 0), "decodes by node: {jobs:?}");
    cluster.stop().await;
}

/// Promise: a node that does not own a key answers right all the same, as a client with an old view needs it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_is_served() {
    let cluster = Cluster::start(3, Options::default()).await;
    cluster.put("k", &stamped(4, 1000));
    let mut view = View::default();
    for node in cluster.nodes() {
        view.merge(node.row()).expect("merge");
    }
    let owner = Ring::new(&view).owner(framecache::RouteKey::raw(&id("k"), framecache::Span::new(0))).expect("owner").to_owned();
    let strangers: Vec<usize> = (0..3).filter(|index| cluster.node(*index).id != owner).collect();
    assert_eq!(strangers.len(), 2);
    for index in strangers {
        let connection = cluster.connect(index, 1 << 20).await;
        let (items, end) = wire::say(&connection, &wire::read("s3://photos/k", 10, 20)).await;
        assert_eq!((items.len(), end, items[0].0.status), (1, wire::End::Finished, Status::Ok as u16));
        assert_eq!(items[0].1, stamped(4, 1000)[10..30]);
    }
}
