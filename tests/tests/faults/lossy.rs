//! A client behind a bad network: datagrams are lost, late, overtaken, doubled and damaged, and no byte of an answer is.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use framecache::{Batch, Call, Client};
use framecache_tests::harness::id;
use framecache_tests::media::PLAIN;
use framecache_tests::model::stamped;
use framecache_tests::processes::{Fleet, Place};
use framecache_tests::proxy::{Faults, Proxy, Way};
use tokio::time::timeout;

use crate::{origin, settings, soak};

/// Promise: over a network that loses a datagram in twenty, delays each by 20 ms, and reorders, doubles and damages some, every read and
/// every picture is right, byte by byte.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_network_damages_nothing() {
    // The node listens at every IPv4 address and says so in its row: its clients reach it where they reached it first, which is the
    // proxy's IPv6 address at the same port.
    if std::net::UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
        println!("NOT RUN, no IPv6 on loopback here");
        return;
    }
    let (data, state) = (tempfile::tempdir().expect("folder"), tempfile::tempdir().expect("folder"));
    let count = if soak() { 60 } else { 12 };
    let objects: Vec<(String, Vec<u8>)> =
        (1..=count).map(|number| (format!("object-{number}"), stamped(number, 150_000 * (1 + number as usize % 6)))).collect();
    objects.iter().for_each(|(key, bytes)| std::fs::write(data.path().join(key), bytes).expect("write"));
    (0..32).for_each(|number| std::fs::write(data.path().join(format!("{number}.jpg")), PLAIN.file).expect("write"));
    let origin = origin(data.path(), Ipv4Addr::LOCALHOST.into()).await;
    let mut fleet = Fleet::new(settings(state.path(), origin)).expect("fleet");
    fleet.add(&Place { ip: Ipv4Addr::UNSPECIFIED.into(), inside: Vec::new() }).expect("place");
    fleet.launch(0).expect("launch");
    fleet.ready(0).await.expect("ready");
    let port = fleet.members[0].quic.port();
    let (near, far) = (SocketAddr::from((Ipv6Addr::LOCALHOST, port)), SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let proxy = Proxy::start(near, far, 61).await.expect("proxy");
    let delay = Duration::from_millis(20);
    for way in [Way::Out, Way::Back] {
        proxy.set(way, Faults { loss: 5, double: 2, corrupt: 2, reorder: 10, delay, cut: false });
    }
    let mut config = fleet.client_config();
    config.addresses = vec![near.to_string()];
    let client = Client::new(config).expect("client");
    let whole = async {
        for (key, bytes) in &objects {
            let raw = client.read(&id(key), 0, None, &Call::default()).await.expect(key);
            assert!(raw.bytes == bytes[..], "{key}: wrong bytes");
        }
        let ids: Vec<_> = (0..32).map(|number| id(&format!("{number}.jpg"))).collect();
        let batch = Batch::new(ids.len(), 64 << 20);
        for outcome in client.images(&ids, &"image".parse().expect("spec"), &batch, &Call::default()).await {
            outcome.expect("picture");
        }
        let pictures = batch.finish();
        (0..ids.len()).for_each(|slot| PLAIN.expect_in(&pictures, slot));
    };
    timeout(Duration::from_secs(if soak() { 300 } else { 50 }), whole).await.expect("it ends");
    let counts = proxy.counts();
    println!("{counts:?}");
    assert!(counts.lost > 0 && counts.doubled > 0 && counts.corrupted > 0 && counts.reordered > 0, "that was a good network");
    client.close().await;
    // It lives, and says so to those whose network is good.
    let mut direct = fleet.client_config();
    direct.addresses = vec![far.to_string()];
    let direct = Client::new(direct).expect("client");
    direct.read(&id("object-1"), 0, None, &Call::default()).await.expect("it lives");
    direct.close().await;
    fleet.stop().await.expect("it ends");
}
