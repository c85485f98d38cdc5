//! A batch that is under way while one node joins and another dies.

use std::net::Ipv4Addr;
use std::time::Duration;

use framecache::{Batch, Call, Client, ObjectId};
use framecache_tests::harness::{BUCKET, id};
use framecache_tests::media::PLAIN;
use framecache_tests::processes::Fleet;
use tokio::time::{Instant, sleep};

use crate::{origin, settings};

const ITEMS: usize = 1000;

/// Pictures that lie in the bucket; each is asked for several times, in renditions of its own.
const FILES: usize = 100;

/// Promise: a batch of a thousand pictures survives a join and a crash in one call: each slot holds its own picture, whole, in the buffer
/// that the caller gave, and nothing is written around it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_outlives_a_join_and_a_crash() {
    let (data, state) = (tempfile::tempdir().expect("folder"), tempfile::tempdir().expect("folder"));
    (0..FILES).for_each(|index| std::fs::write(data.path().join(format!("{index}.jpg")), PLAIN.file).expect("write"));
    let origin = origin(data.path(), Ipv4Addr::LOCALHOST.into()).await;
    let mut fleet = Fleet::start(settings(state.path(), origin), 3).await.expect("nodes");
    let client = Client::new(fleet.client_config()).expect("client");
    let ids: Vec<ObjectId> = (0..ITEMS).map(|index| id(&format!("{}.jpg", index % FILES))).collect();
    // One call as it should be, to compare with; of another rendition, so that nothing of the next is held.
    let shape = [64, 96, 3];
    let warm = Batch::fixed(1, shape).expect("batch");
    let outcomes = client.images(&ids[..1], &"image".parse().expect("spec"), &warm, &Call::default()).await;
    assert!(outcomes[0].is_ok(), "{outcomes:?}");
    PLAIN.expect_in(&warm.finish(), 0);

    let batch = Batch::fixed(ITEMS, shape).expect("batch");
    let call = Call { timeout: Some(Duration::from_secs(60)), ..Call::default() };
    let begun = Instant::now();
    let whole = async {
        let outcomes = client.images(&ids, &"image?filter=bilinear".parse().expect("spec"), &batch, &call).await;
        (outcomes, begun.elapsed())
    };
    let trouble = async {
        let joins = fleet.add(&framecache_tests::processes::Place::loopback()).expect("a place");
        fleet.launch(joins).expect("starts");
        sleep(Duration::from_millis(150)).await;
        fleet.kill(0).await.expect("dies");
        fleet.ready(joins).await.expect("the newcomer is ready");
        begun.elapsed()
    };
    let ((outcomes, took), joined) = tokio::join!(whole, trouble);
    println!("{ITEMS} pictures of {BUCKET} took {took:?}; the newcomer was ready after {joined:?}");
    let failed: Vec<_> = outcomes.iter().filter(|outcome| outcome.is_err()).collect();
    assert!(failed.is_empty(), "{} of {ITEMS} failed, the first: {:?}", failed.len(), failed[0]);
    let pictures = batch.finish();
    (0..ITEMS).for_each(|slot| PLAIN.expect_in(&pictures, slot));
    client.close().await;
    fleet.stop().await.expect("nodes end");
}
