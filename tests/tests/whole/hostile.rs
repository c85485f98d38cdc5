//! What no client would say, and how little it costs.

use std::time::Duration;

use framecache::wire::{ListBody, Status, Verb, code};
use framecache_tests::dice::Dice;
use framecache_tests::harness::{Cluster, Options, id, reserved};
use framecache_tests::media::PLAIN;
use framecache_tests::model::stamped;
use framecache_tests::proxy::{Faults, Proxy, Way};
use framecache_tests::wire::{self, End};
use tokio::time::{Instant, timeout};

const MIB: u64 = 1 << 20;

/// Promise: what is no request ends its own stream, with the code for malformed, or is answered with a status; the connection's
/// other streams, and everybody else, are served on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_costs_its_own_stream() {
    let cluster = Cluster::start(1, Options::default()).await;
    cluster.put("k", b"good");
    let connection = cluster.connect(0, 1 << 20).await;
    let good = wire::read("s3://photos/k", 0, 4);
    let header = wire::header(Verb::Read as u16, "");
    let mut long_body = header.clone();
    long_body.extend_from_slice(&(2u32 << 20).to_le_bytes());
    let malformed = End::Reset(code::MALFORMED);
    let cases: Vec<(&str, Vec<u8>, End, Option<Status>)> = vec![
        ("nothing", vec![], malformed, None),
        ("half a length", vec![1, 0], malformed, None),
        ("a length past its limit", u32::MAX.to_le_bytes().to_vec(), malformed, None),
        ("an archive that is none", [&[16, 0, 0, 0][..], &[0xa5; 16]].concat(), malformed, None),
        ("a header of no bytes", vec![0; 64], malformed, None),
        ("half a header", header[..header.len() / 2].to_vec(), malformed, None),
        ("a body before its header", good[header.len()..].to_vec(), malformed, None),
        ("no body", header.clone(), End::Finished, Some(Status::Malformed)),
        ("half a body", good[..good.len() - 3].to_vec(), End::Finished, Some(Status::Malformed)),
        ("a body past its limit", long_body, End::Finished, Some(Status::Malformed)),
        (
            "another verb's body",
            [wire::header(Verb::Frames as u16, ""), good[header.len()..].to_vec()].concat(),
            End::Finished,
            Some(Status::Malformed),
        ),
        ("a verb that is none", wire::header(999, ""), End::Finished, Some(Status::UnknownVerb)),
        ("a verb that is not served", wire::header(Verb::Keep as u16, ""), End::Finished, Some(Status::UnknownVerb)),
        ("an address that is none", wire::read("http://x", 0, 1), End::Finished, Some(Status::Malformed)),
        ("a range past all numbers", wire::read("s3://photos/k", u64::MAX, u64::MAX), End::Finished, Some(Status::OutOfRange)),
    ];
    for (name, bytes, end, status) in cases {
        let (items, ended) = timeout(Duration::from_secs(5), wire::say(&connection, &bytes)).await.expect(name);
        let said: Vec<_> = items.iter().map(|(item, _)| Status::from_number(item.status)).collect();
        assert_eq!((said, ended), (status.into_iter().collect(), end), "{name}");
        let (items, _) = wire::say(&connection, &good).await;
        assert_eq!(items[0].1, b"good", "after {name}");
    }
    let seed = 23;
    println!("seed {seed}");
    let mut dice = Dice::new(seed);
    for _ in 0..300 {
        // Mutants of a good request: some are still requests.
        let mut bytes = good.clone();
        for _ in 0..dice.within(1..6) {
            let at = dice.within(0..bytes.len() as u64) as usize;
            bytes[at] = dice.bits() as u8;
        }
        bytes.truncate(dice.within(0..bytes.len() as u64 + 20) as usize);
        let _ = timeout(Duration::from_secs(20), wire::say(&connection, &bytes)).await.expect("ended");
    }
    let noise = std::net::UdpSocket::bind("127.0.0.1:0").expect("socket");
    for _ in 0..500 {
        let packet: Vec<u8> = (0..dice.within(1..1400)).map(|_| dice.bits() as u8).collect();
        noise.send_to(&packet, cluster.node(0).quic).expect("send");
    }
    assert_eq!(wire::say(&connection, &good).await.0[0].1, b"good", "after all of it");
    connection.close(0u32.into(), b"");
    cluster.until_quiet(0).await;
    cluster.stop().await;
}

/// Promise: requests that never become whole end after ten seconds, with the code for slow, however they trickle; until then they
/// hold no memory, and others are served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_requests_end() {
    let cluster = Cluster::start(1, Options::default()).await;
    cluster.put("k", b"good");
    let connection = cluster.connect(0, 1 << 20).await;
    let mut held = Vec::new();
    // All that a connection may have open, but one.
    for _ in 0..255 {
        let (mut send, recv) = connection.open_bi().await.expect("stream");
        send.write_all(&[40]).await.expect("one byte");
        held.push((send, recv));
    }
    let begun = Instant::now();
    cluster.until(0, "all are open", |metrics| metrics["framecache_streams"] == 255.0).await;
    assert_eq!(reserved(&cluster.metrics(0).await), 0.0);
    let client = cluster.client();
    assert_eq!(client.read(&id("k"), 0, None, &Default::default()).await.expect("others").bytes, &b"good"[..]);
    assert_eq!(wire::say(&connection, &wire::read("s3://photos/k", 0, 4)).await.0[0].1, b"good");
    let (mut send, mut recv) = held.pop().expect("one");
    let trickle = tokio::spawn(async move {
        for byte in [0, 0, 0].into_iter().chain(std::iter::repeat(7)) {
            if send.write_all(&[byte]).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    });
    let (items, end) = timeout(Duration::from_secs(12), wire::items(&mut recv)).await.expect("it ends");
    assert!(items.is_empty() && end == End::Reset(code::SLOW), "{end:?}");
    assert!(begun.elapsed() > Duration::from_secs(8), "ended after {:?}", begun.elapsed());
    cluster.until(0, "all have ended", |metrics| metrics["framecache_streams"] == 0.0).await;
    trickle.abort();
    client.close().await;
    cluster.stop().await;
}

/// Promise: who begins a handshake and says nothing more keeps others waiting for a moment, however many do so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_handshakes_keep_nobody_out() {
    let cluster = Cluster::start(1, Options::default()).await;
    let proxy = Proxy::start(([127, 0, 0, 1], 0).into(), cluster.node(0).quic, 29).await.expect("proxy");
    // They never hear the node's half of it.
    proxy.set(Way::Back, Faults { cut: true, ..Faults::default() });
    let deaf = cluster.endpoint(1 << 20);
    let half: Vec<_> = (0..150).map(|_| deaf.connect(proxy.address, "127.0.0.1").expect("connect")).collect();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let begun = Instant::now();
    cluster.connect(0, 1 << 20).await.close(0u32.into(), b"");
    // It waits for half a second at most. One after the other, each of them would keep its place for ten.
    assert!(begun.elapsed() < Duration::from_secs(2), "after {:?}", begun.elapsed());
    assert!(proxy.counts().lost > 0, "the node said nothing to them");
    drop((half, deaf));
    cluster.stop().await;
}

/// Promise: requests take no more memory than there is for them, however many promise how much; the rest is refused at once, and others
/// are served as soon as they end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_requests_are_refused_past_their_memory() {
    let cluster = Cluster::start(1, Options::default()).await;
    cluster.put("k", b"good");
    let connection = cluster.connect(0, 1 << 20).await;
    let (mut held, mut refused) = (Vec::new(), 0);
    for _ in 0..200 {
        let (mut send, mut recv) = connection.open_bi().await.expect("stream");
        // A header, and the beginning of a body of a mebibyte.
        send.write_all(&wire::header(Verb::Frames as u16, "")).await.expect("header");
        send.write_all(&(1u32 << 20).to_le_bytes()).await.expect("length");
        match timeout(Duration::from_millis(100), wire::items(&mut recv)).await {
            Ok((items, _)) => {
                assert_eq!(items[0].0.status, Status::Busy as u16);
                refused += 1;
            }
            Err(_) => held.push((send, recv)),
        }
        if refused == 20 {
            break;
        }
    }
    // One in 32 bytes of the node's memory, three for each of a body's.
    assert!(refused == 20 && held.len() < 100, "{} were let in, {refused} refused", held.len());
    drop(held);
    let client = cluster.client();
    assert_eq!(client.read(&id("k"), 0, None, &Default::default()).await.expect("others").bytes, &b"good"[..]);
    client.close().await;
    cluster.stop().await;
}

/// Promise: a listing that no key could begin is refused for what it is; no task of the node ends by it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_prefixes_are_malformed() {
    let cluster = Cluster::start(1, Options::default()).await;
    let connection = cluster.connect(0, 1 << 20).await;
    let long = "x".repeat(70_000);
    for (prefix, after) in [(format!("s3://photos/{long}"), String::new()), ("s3://photos/".into(), long)] {
        let asked = wire::request(Verb::List as u16, "", &ListBody { prefix, after, limit: 10 });
        let (items, end) = wire::say(&connection, &asked).await;
        assert_eq!((items[0].0.status, end), (Status::Malformed as u16, End::Finished));
    }
    cluster.stop().await;
}

/// Promise: a client that asks for much and reads nothing holds a bounded part of the memory; others are served at once, and
/// what it held comes back when it goes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deaf_client_harms_itself() {
    let cluster = Cluster::start(1, Options::default()).await;
    cluster.put("large", &stamped(1, (24 * MIB) as usize));
    cluster.put("picture.jpg", PLAIN.file);
    let connection = cluster.connect(0, 32 << 10).await;
    let mut held = Vec::new();
    for index in 0..200 {
        let (mut send, recv) = connection.open_bi().await.expect("stream");
        send.write_all(&wire::read("s3://photos/large", index % 8 * MIB, 16 * MIB)).await.expect("ask");
        send.finish().expect("end");
        held.push(recv);
    }
    cluster.until(0, "its replies wait", |metrics| metrics["framecache_budget_in_use_bytes{level=\"read\"}"] > 100e6).await;
    let client = cluster.client();
    for _ in 0..20 {
        let begun = Instant::now();
        client.read(&id("large"), 20 * MIB, Some(65_536), &Default::default()).await.expect("others");
        let batch = framecache::Batch::new(1, MIB);
        let outcomes = client.images(&[id("picture.jpg")], &"image".parse().expect("spec"), &batch, &Default::default()).await;
        outcomes[0].as_ref().expect("others");
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
    let metrics = cluster.metrics(0).await;
    // One page a stream, and nothing that grows with what was asked for: 3.2 GB.
    assert!(metrics["framecache_budget_in_use_bytes{level=\"read\"}"] <= 201.0 * MIB as f64);
    connection.close(0u32.into(), b"");
    client.close().await;
    cluster.until_quiet(0).await;
    cluster.stop().await;
}
