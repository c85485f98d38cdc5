//! Many who ask for the same at once, over QUIC.

use std::time::Duration;

use framecache::{Batch, Call};
use framecache_tests::dice::Dice;
use framecache_tests::harness::{BUCKET, Cluster, Options, id};
use framecache_tests::media::{PLAIN, PROGRESSIVE};
use framecache_tests::model::stamped;
use futures::future::join_all;

const MIB: u64 = 1 << 20;

/// Promise: a thousand concurrent reads of random 64 KiB ranges of one cold object cost one origin request for each page, a
/// thousand who ask for one cold picture one request and one decode, and each cold small object costs one request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_herd_costs_one_fill_each() {
    let cluster = Cluster::start(1, Options::default()).await;
    let client = cluster.client();
    let call = Call { timeout: Some(Duration::from_secs(60)), ..Call::default() };
    let bytes = stamped(1, 64 << 20);
    cluster.put("large", &bytes);
    cluster.put("picture.jpg", PROGRESSIVE.file);
    let seed = 7;
    println!("seed {seed}");
    let mut dice = Dice::new(seed);
    // Each page at least once, so that all are counted.
    let starts = (0..1000).map(|index| if index < 64 { index * MIB } else { dice.within(0..(64 << 20) - 65_536) });
    let starts: Vec<u64> = starts.collect();
    let reads = starts.iter().map(|start| {
        let (client, bytes) = (&client, &bytes);
        async move {
            let raw = client.read(&id("large"), *start, Some(65_536), &call).await.expect("read");
            assert!(raw.bytes == bytes[*start as usize..*start as usize + 65_536], "bytes at {start}");
        }
    });
    join_all(reads).await;
    let repeats = cluster.origin_repeats().await;
    let gets = cluster.origin_gets("large");
    assert!((64..=64 + repeats).contains(&gets), "{gets} GETs for 64 pages, {repeats} repeats");
    assert_eq!(cluster.node(0).reader().stats().fills, 64);

    let spec = "image".parse().expect("spec");
    let pictures = (0..1000).map(|_| async {
        let batch = Batch::new(1, MIB);
        client.images(&[id("picture.jpg")], &spec, &batch, &call).await[0].as_ref().expect("picture");
        PROGRESSIVE.expect_in(&batch.finish(), 0);
    });
    join_all(pictures).await;
    let stats = cluster.node(0).reader().stats();
    assert_eq!((stats.fills, stats.units, cluster.node(0).pool().stats().jobs), (65, 1, 1));

    let keys: Vec<String> = (0..300).map(|index| format!("small/{index}.jpg")).collect();
    keys.iter().for_each(|key| cluster.put(key, PLAIN.file));
    let before = cluster.origin.stats().requests;
    let ids: Vec<_> = keys.iter().map(|key| id(key)).collect();
    let batch = Batch::new(ids.len(), 64 * MIB);
    let outcomes = client.images(&ids, &spec, &batch, &call).await;
    assert!(outcomes.iter().all(Result::is_ok), "{:?}", outcomes.iter().find(|outcome| outcome.is_err()));
    let pictures = batch.finish();
    (0..ids.len()).for_each(|index| PLAIN.expect_in(&pictures, index));
    let asked = cluster.origin.stats().requests - before;
    let repeats = cluster.origin_repeats().await;
    assert!((300..=300 + repeats).contains(&asked), "{asked} requests for 300 objects of {BUCKET}");
    client.close().await;
    cluster.until_quiet(0).await;
    cluster.stop().await;
}
