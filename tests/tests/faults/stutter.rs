//! Nodes that stop and go on again, again and again, and the only node of a client.

use std::net::Ipv4Addr;
use std::time::Duration;

use framecache_tests::processes::Fleet;
use tokio::time::{Instant, sleep};

use crate::readers::{Readers, Shelf};
use crate::{origin, settings, within};

/// Promise: the only node's clients wait for it while it is frozen, and have their answers within a few seconds of its going on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_only_node_frozen() {
    let (data, state) = (tempfile::tempdir().expect("folder"), tempfile::tempdir().expect("folder"));
    let shelf = Shelf::fill(data.path(), 7);
    let origin = origin(data.path(), Ipv4Addr::LOCALHOST.into()).await;
    let mut fleet = Fleet::start(settings(state.path(), origin), 1).await.expect("nodes");
    let readers = Readers::start(&fleet.client_config(), &shelf, 8, 7);
    readers.read_on(200).await;
    for lasts in [500, 1_500, 3_000, 6_500, 10_000] {
        let lasts = Duration::from_millis(lasts);
        let frozen = Instant::now();
        fleet.freeze(0).expect("freeze");
        sleep(lasts).await;
        fleet.thaw(0).expect("thaw");
        let thawed = Instant::now();
        readers.read_on(400).await;
        println!("frozen for {lasts:?}, 400 reads {:?} after that, {:?} in all", thawed.elapsed(), frozen.elapsed());
        assert!(thawed.elapsed() < within(Duration::from_secs(4)), "{:?}", thawed.elapsed());
    }
    let book = readers.stop().await;
    assert!(book.wrong.is_empty(), "{:?}", book.wrong);
    fleet.stop().await.expect("nodes end");
}

/// Promise: a node that stutters, and dies, is left within two seconds like any other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stutterers_are_left_when_they_die() {
    let (data, state) = (tempfile::tempdir().expect("folder"), tempfile::tempdir().expect("folder"));
    let shelf = Shelf::fill(data.path(), 8);
    let origin = origin(data.path(), Ipv4Addr::LOCALHOST.into()).await;
    let mut fleet = Fleet::start(settings(state.path(), origin), 3).await.expect("nodes");
    let readers = Readers::start(&fleet.client_config(), &shelf, 8, 8);
    readers.read_on(400).await;
    let began = Instant::now();
    for _ in 0..25 {
        fleet.freeze(1).expect("freeze");
        sleep(Duration::from_millis(260)).await;
        fleet.thaw(1).expect("thaw");
        sleep(Duration::from_millis(120)).await;
    }
    fleet.freeze(1).expect("freeze");
    let dead = Instant::now();
    readers.read_on(400).await;
    println!("400 reads {:?} after its death", dead.elapsed());
    sleep(Duration::from_secs(2)).await;
    fleet.thaw(1).expect("thaw");
    let book = readers.stop().await;
    println!(
        "slowest while it stutters or is dead {:?}, since it died {:?}",
        book.slowest_since(began),
        book.slowest_since(dead)
    );
    assert!(book.wrong.is_empty(), "{:?}", book.wrong);
    assert!(book.slowest_since(began) < within(Duration::from_secs(2)), "{:?}", book.slowest_since(began));
    fleet.stop().await.expect("nodes end");
}
