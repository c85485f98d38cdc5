//! More than a node can hold.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use framecache::wire::{FrameAsk, FramesBody, Verb};
use framecache::{Batch, Call, ErrorKind};
use framecache_tests::faulty::{Fault, Rule};
use framecache_tests::harness::{Cluster, Options, id, reserved};
use framecache_tests::media::PLAIN;
use framecache_tests::model::stamped;
use framecache_tests::wire;
use futures::future::join_all;

const MIB: u64 = 1 << 20;

/// A node with a few MiB for requests.
fn small() -> Options {
    Options { memory: "260MiB", ram: "16MiB", pixels_max: 2_000_000, ..Options::default() }
}

/// Promise: under ten times the work that its memory holds, a node answers each request right or says busy, never passes its
/// limit, and has given everything back at the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_times_too_much() {
    let cluster = Cluster::start(1, small()).await;
    for index in 0..100 {
        cluster.put(&format!("raw/{index}"), &stamped(index, (3 * MIB) as usize));
        cluster.put(&format!("jpg/{index}"), PLAIN.file);
    }
    let clients: Vec<_> = (0..4).map(|_| cluster.client()).collect();
    let call = Call { timeout: Some(Duration::from_secs(20)), ..Call::default() };
    let spec = "image?size=1000x1000".parse().expect("spec");
    let (right, busy) = (AtomicU64::new(0), AtomicU64::new(0));
    let raws = (0..200u32).map(|index| {
        let (client, key, right, busy) = (&clients[index as usize % 4], index % 100, &right, &busy);
        async move {
            match client.read(&id(&format!("raw/{key}")), 0, None, &call).await {
                Ok(raw) => {
                    assert!(raw.bytes == stamped(key, (3 * MIB) as usize), "bytes of raw/{key}");
                    right.fetch_add(1, Relaxed);
                }
                Err(error) => {
                    assert!(matches!(error.kind, ErrorKind::Busy { .. } | ErrorKind::Timeout), "{error}");
                    busy.fetch_add(1, Relaxed);
                }
            }
        }
    });
    let pictures = clients.iter().map(|client| {
        let ids: Vec<_> = (0..100).map(|index| id(&format!("jpg/{index}"))).collect();
        let (spec, right, busy) = (&spec, &right, &busy);
        async move {
            let batch = Batch::new(ids.len(), 1 << 30);
            for outcome in client.images(&ids, spec, &batch, &call).await {
                let told = |kind: &ErrorKind| matches!(kind, ErrorKind::Busy { .. } | ErrorKind::Timeout);
                assert!(outcome.as_ref().err().is_none_or(|error| told(&error.kind)), "{outcome:?}");
                if outcome.is_ok() { right } else { busy }.fetch_add(1, Relaxed);
            }
        }
    });
    // The first answers of the origin are held back until all have asked: a fast machine would never be full otherwise.
    cluster.origin.set(Rule::first(32, Fault::DelayFirstByte(Duration::from_millis(1_500))));
    cluster.put("late", &stamped(7, (3 * MIB) as usize));
    let (hurry, mut told) = (Call { timeout: Some(Duration::from_millis(200)), ..Call::default() }, None);
    let watched = async {
        let work = async { tokio::join!(join_all(raws), join_all(pictures)) };
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                _ = &mut work => return,
                () = tokio::time::sleep(Duration::from_millis(100)) => {
                    let metrics = cluster.metrics(0).await;
                    let fixed: f64 = metrics.iter().filter(|(name, _)| name.starts_with("framecache_budget_fixed")).map(|(_, v)| v).sum();
                    assert!(fixed + reserved(&metrics) <= metrics["framecache_memory_limit_bytes"]);
                    let waiting = metrics.iter().filter(|(name, _)| name.starts_with("framecache_budget_waiting"));
                    if told.is_none() && waiting.map(|(_, value)| value).sum::<f64>() > 0.0 {
                        told = Some(clients[0].read(&id("late"), 0, None, &hurry).await.map(drop).map_err(|error| error.kind));
                    }
                }
            }
        }
    };
    watched.await;
    let refused = cluster
        .metrics(0)
        .await
        .iter()
        .filter(|(name, _)| name.starts_with("framecache_budget_refused"))
        .map(|(_, v)| v)
        .sum::<f64>();
    println!(
        "{} right, {} busy at last, {refused} refusals, in a hurry: {told:?}, {:?}",
        right.load(Relaxed),
        busy.load(Relaxed),
        cluster.node(0).reader().stats()
    );
    assert!(matches!(told, Some(Err(ErrorKind::Busy { .. } | ErrorKind::Timeout))), "that was no overload: {told:?}");
    assert!(refused > 0.0, "nobody was told busy");
    assert!(right.load(Relaxed) >= 300, "most is refused until its deadline: the node works, and answers nobody");
    for client in clients {
        client.close().await;
    }
    cluster.until_quiet(0).await;
    cluster.stop().await;
}

/// Promise: clients that ask for pictures and do not read them take the memory of their own level alone: then others are told
/// busy at once, while raw bytes are read, decoders are free and facts are told; and it all comes back when they leave.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_frames_leave_decoding_alone() {
    let cluster = Cluster::start(1, small()).await;
    (0..200).for_each(|index| cluster.put(&format!("jpg/{index}"), PLAIN.file));
    cluster.put("raw", &stamped(1, (2 * MIB) as usize));
    let ask =
        |index: u32| FrameAsk { index, attempt: 1, spec: 0, uri: format!("s3://photos/jpg/{index}"), version: String::new() };
    let body = FramesBody { specs: vec!["image?size=1000x1000".into()], items: (0..200).map(ask).collect() };
    let mut deaf = Vec::new();
    for _ in 0..6 {
        let connection = cluster.connect(0, 64 << 10).await;
        let (mut send, recv) = connection.open_bi().await.expect("stream");
        send.write_all(&wire::request(Verb::Frames as u16, "", &body)).await.expect("ask");
        send.finish().expect("end");
        deaf.push((connection, recv));
    }
    let level = |metrics: &std::collections::HashMap<String, f64>, what: &str| {
        metrics[&format!("framecache_budget_{what}{{level=\"frames\"}}")]
    };
    // No room for another picture of that size.
    cluster
        .until(0, "frames are full", |metrics| level(metrics, "limit_bytes") - level(metrics, "in_use_bytes") < 3_000_000.0)
        .await;
    let client = cluster.client();
    let call = Call { timeout: Some(Duration::from_secs(8)), ..Call::default() };
    let facts = client.stat(&id("jpg/199"), &call).await.expect("facts");
    assert_eq!(facts.media.width, 96);
    let raw = client.read(&id("raw"), 0, None, &call).await.expect("raw bytes");
    assert!(raw.bytes == stamped(1, (2 * MIB) as usize));
    let metrics = cluster.metrics(0).await;
    assert!(metrics["framecache_budget_in_use_bytes{level=\"decode\"}"] < 1.0 || metrics["framecache_decode_inside"] > 0.0);
    let batch = Batch::new(1, 16 * MIB);
    let quick = Call { timeout: Some(Duration::from_secs(1)), ..Call::default() };
    let outcome = &client.images(&[id("jpg/0")], &"image?size=1000x1000".parse().expect("spec"), &batch, &quick).await[0];
    let told = outcome.as_ref().map_err(|error| error.kind.clone());
    assert!(matches!(told, Ok(_) | Err(ErrorKind::Busy { .. } | ErrorKind::Timeout)), "{told:?}");
    for (connection, _) in &deaf {
        connection.close(0u32.into(), b"leaves");
    }
    client.close().await;
    cluster.until_quiet(0).await;
    cluster.stop().await;
}
