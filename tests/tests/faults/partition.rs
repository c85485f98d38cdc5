//! Nodes in networks of their own, between which nothing passes for a while, both ways or one.

use std::time::Duration;

use framecache_tests::lan::{self, Lan};
use framecache_tests::processes::Fleet;
use tokio::time::Instant;

use crate::readers::{Readers, Shelf};
use crate::{origin, settings, within};

/// Promise: while a third node cannot be reached by the other two, those two go on without it, and every client, which reaches all,
/// gets the current bytes without an error; ten seconds after the network is whole again all agree.
async fn cut_off(number: u8, ways: &[(u8, u8)], seed: u64) {
    if let Some(why) = lan::missing() {
        println!("NOT RUN, no network namespaces here: {why}");
        return;
    }
    println!("seed {seed}");
    let (data, state) = (tempfile::tempdir().expect("folder"), tempfile::tempdir().expect("folder"));
    let lan = Lan::make(number, 3).expect("network");
    let shelf = Shelf::fill(data.path(), seed);
    let origin = origin(data.path(), lan.own()).await;
    let mut fleet = Fleet::new(settings(state.path(), origin)).expect("fleet");
    for index in 0..3 {
        fleet.add(&lan.place(index)).expect("place");
    }
    fleet.start_all().await.expect("nodes");
    let readers = Readers::start(&fleet.client_config(), &shelf, 4, seed);
    readers.read_on(200).await;
    let begun = Instant::now();
    ways.iter().for_each(|&(from, to)| lan.cut(from, to).expect("cut"));
    let parted = fleet.agreed_on(&[0, 1], &[0, 1], within(Duration::from_secs(10))).await.expect("two go on");
    shelf.replace();
    readers.read_on(200).await;
    ways.iter().for_each(|&(from, to)| lan.heal(from, to).expect("heal"));
    let agreed = fleet.agreed(within(Duration::from_secs(10))).await.expect("all agree again");
    shelf.replace();
    readers.read_on(200).await;
    let book = readers.stop().await;
    let slowest = book.slowest_since(begun);
    println!("parted after {parted:?}, agreed again after {agreed:?}, slowest read {slowest:?}");
    assert!(book.wrong.is_empty(), "{:?}", book.wrong);
    assert!(slowest <= within(Duration::from_secs(2)), "a read took {slowest:?}");
    fleet.stop().await.expect("nodes end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_ways() {
    cut_off(0, &[(2, 0), (0, 2), (2, 1), (1, 2)], 51).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_way() {
    cut_off(1, &[(2, 0), (2, 1)], 52).await;
}
