//! Nodes that find each other, come and go, as they would in processes of their own.

use std::time::Duration;

use framecache::wire::{DecodeBody, PeekBody, ReadBody, Status, Verb};
use framecache_tests::harness::{Cluster, Options, http, id};
use framecache_tests::model::stamped;
use framecache_tests::wire::{self, asked_by, read};

const OBJECTS: u32 = 60;

async fn read_all(cluster: &Cluster, client: &framecache::Client) {
    for index in 0..OBJECTS {
        let raw = client.read(&id(&format!("{index}")), 0, None, &Default::default()).await.expect("read");
        assert!(raw.bytes == stamped(index, 1000), "{index}");
    }
    assert!(cluster.nodes().iter().all(|node| node.members().topology().view().rows().count() > 1));
}

/// Promise: nodes find each other, agree on who owns what, show it in their metrics, and one that leaves is missed by nobody: clients that
/// knew it go on, and what it held is not fetched again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_leaves_is_missed_by_nobody() {
    let mut cluster = Cluster::meet(3, Options::default()).await;
    (0..OBJECTS).for_each(|index| cluster.put(&format!("{index}"), &stamped(index, 1000)));
    let client = cluster.client();
    read_all(&cluster, &client).await;
    let gets = cluster.all_gets();
    let page = http(cluster.node(1).admin, "/metrics").await;
    for row in framecache_node::telemetry::METRICS.iter().filter(|row| row.name.starts_with("framecache_cluster_")) {
        assert!(page.lines().any(|line| line.starts_with(row.name)), "{} is not on the page", row.name);
    }
    assert!(page.contains("framecache_cluster_nodes{state=\"serving\"} 3"), "three serve");
    let leaves = tokio::spawn(cluster.take_last().stop());
    // Long enough that the others know, short enough that it still answers them.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    read_all(&cluster, &client).await;
    leaves.await.expect("it ends");
    read_all(&cluster, &client).await;
    let repeats = cluster.origin_repeats().await;
    assert!(cluster.all_gets() <= gets + repeats, "{} GETs, {gets} before, {repeats} repeats", cluster.all_gets());
    client.close().await;
    cluster.stop().await;
}

/// Promise: what only nodes may ask is refused to whoever is none, and nobody speaks for another without a certificate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_are_no_nodes() {
    let cluster = Cluster::start(2, Options::default()).await;
    cluster.put("0", &stamped(0, 1000));
    let connection = cluster.connect(0, 1 << 20).await;
    let uri = "s3://photos/0";
    let peek = PeekBody { uri: uri.into(), index: 0, spec: String::new() };
    let decode = DecodeBody { uri: uri.into(), unit: 0, specs: vec!["image".into()] };
    let read_body = ReadBody { uri: uri.into(), start: 0, length: 10 };
    for request in [
        asked_by(Verb::Peek, None, "", &peek),
        asked_by(Verb::Peek, Some("node-1"), "", &peek),
        asked_by(Verb::Decode, None, "", &decode),
        asked_by(Verb::Read, Some("node-1"), "", &read_body),
        asked_by(Verb::Read, None, "somebody", &read_body),
    ] {
        let (items, _) = wire::say(&connection, &request).await;
        assert_eq!(items.len(), 1);
        assert_eq!(items[0].0.status, Status::Denied as u16, "{:?}", items[0].0);
    }
    let (items, _) = wire::say(&connection, &read(uri, 0, 10)).await;
    assert_eq!(items[0].0.status, Status::Ok as u16, "a client is a client");
    cluster.stop().await;
}
