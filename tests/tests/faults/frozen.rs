//! A node that is stopped in the middle of whatever it does, and goes on later as if nothing had been.

use std::net::Ipv4Addr;
use std::time::Duration;

use framecache_tests::dice::Dice;
use framecache_tests::processes::Fleet;
use tokio::time::{Instant, sleep};

use crate::readers::{Readers, Shelf};
use crate::{origin, settings, soak, within};

/// Promise: while one of three nodes is frozen, each read is answered by another within two seconds; once it goes on, all agree within
/// ten; and what was replaced meanwhile is never served again.
async fn freeze_for(lasts: Duration, seed: u64) {
    println!("seed {seed}");
    let (data, state) = (tempfile::tempdir().expect("folder"), tempfile::tempdir().expect("folder"));
    let shelf = Shelf::fill(data.path(), seed);
    let origin = origin(data.path(), Ipv4Addr::LOCALHOST.into()).await;
    let mut fleet = Fleet::start(settings(state.path(), origin), 3).await.expect("nodes");
    let readers = Readers::start(&fleet.client_config(), &shelf, 4, seed);
    readers.read_on(200).await;
    let victim = Dice::new(seed).within(0..3) as usize;
    let frozen = Instant::now();
    fleet.freeze(victim).expect("freeze");
    sleep(lasts / 2).await;
    shelf.replace();
    sleep(lasts / 2).await;
    if lasts > within(Duration::from_secs(5)) {
        // Long enough to be given up: the others say so.
        fleet.agreed(Duration::from_secs(1)).await.expect("the others go on without it");
    }
    fleet.thaw(victim).expect("thaw");
    let agreed = fleet.agreed(within(Duration::from_secs(10))).await.expect("all agree again");
    readers.read_on(200).await;
    let book = readers.stop().await;
    println!("frozen for {lasts:?}: slowest read {:?}, views agreed after {agreed:?}", book.slowest_since(frozen));
    assert!(book.wrong.is_empty(), "{:?}", book.wrong);
    let slowest = book.slowest_since(frozen);
    assert!(slowest <= within(Duration::from_secs(2)), "a read took {slowest:?}");
    fleet.stop().await.expect("nodes end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_second() {
    freeze_for(Duration::from_secs(1), 41).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_seconds() {
    freeze_for(Duration::from_secs(10), 42).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_minute() {
    if soak() {
        freeze_for(Duration::from_secs(60), 43).await;
    } else {
        println!("a minute is for FRAMECACHE_SOAK");
    }
}
