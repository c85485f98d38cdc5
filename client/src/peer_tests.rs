//! A node's side of the client, before peers that are played.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::*;
use crate::fake::{Authority, FakeNode, Item, refusal, script};
use crate::wire::{Status, TensorItem};

const MOST: u64 = 1 << 20;

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

fn id() -> ObjectId {
    "s3://abc/k".parse().expect("id")
}

async fn peer(authority: &Authority, names: &[&str], items: Vec<Item>) -> (FakeNode, Peers) {
    let node = FakeNode::start(authority, "a", names, Default::default(), {
        script(move |_, _| {
            let items = items.clone();
            async move { items }
        })
    });
    let tls = TlsFiles { own: Some(Arc::new(authority.own(&["me"]))), ..authority.trust() };
    (node.await, Peers::new("me", tls, 16 << 20).expect("peers"))
}

fn item(bytes: usize) -> Item {
    (ItemHead { last: true, size: 1 << 30, version: "v".into(), ..ItemHead::default() }, vec![7; bytes])
}

fn pixels(index: u32, side: u32, bytes: usize) -> Item {
    let (head, payload) = item(bytes);
    let tensor = TensorItem { shape: [side, side, 3], dtype: 0, layout: 0, orientation: 1, source: [9, 9], pts_seconds: 0.0 };
    (ItemHead { index, tensor: Some(tensor), ..head }, payload)
}

/// Promise: peers are known by name alone: not by their host, and not as another node that the same authority signed.
#[tokio::test]
async fn peers_are_known_by_name() {
    let authority = Authority::new();
    for (names, proved) in [(&["a"][..], true), (&["other", "a"], true), (&["other", "127.0.0.1"], false)] {
        let (node, peers) = peer(&authority, names, Vec::new()).await;
        assert_eq!(peers.prove(&node.row, soon()).await, proved, "{names:?}");
        assert_eq!(peers.is_doubtful(&node.row), !proved);
    }
    let (node, _) = peer(&Authority::new(), &["a"], Vec::new()).await;
    let (_, peers) = peer(&authority, &["a"], Vec::new()).await;
    assert!(!peers.prove(&node.row, soon()).await, "another authority");
    assert!(!peers.prove(&NodeRow { id: "no name".into(), ..node.row.clone() }, soon()).await);
}

/// Promise: a peek gives what is held, or says that nothing is; requests say who asks, and on whose behalf.
#[tokio::test]
async fn peers_answer() {
    let authority = Authority::new();
    let (node, peers) = peer(&authority, &["a"], vec![item(5)]).await;
    let page = peers.peek(&node.row, &id(), 3, "", None, MOST, soon()).await.expect("peek").expect("held");
    assert_eq!((page.version.as_str(), page.size, page.tensor, &page.bytes[..]), ("v", 1 << 30, None, &[7; 5][..]));
    let range = ByteRange::new(0, 5).expect("range");
    assert_eq!(peers.read(&node.row, &id(), range, Some(&page.version), "train", soon()).await.expect("read").bytes.len(), 5);
    let asked = node.asked.lock().clone();
    assert!(asked.iter().all(|header| header.peer() == Some("me")));
    assert_eq!((asked[1].on_behalf_of.as_str(), asked[1].version.as_str()), ("train", "v"));

    let (node, peers) = peer(&authority, &["a"], refusal(Status::NotFound)).await;
    assert_eq!(peers.peek(&node.row, &id(), 0, "", None, MOST, soon()).await.expect("peek"), None);
    let error = peers.read(&node.row, &id(), range, None, "", soon()).await.expect_err("not found");
    assert_eq!((error.kind, error.node.as_deref()), (ErrorKind::NotFound, Some("a")));

    let (node, peers) =
        peer(&authority, &["a"], vec![pixels(1, 2, 12), (ItemHead { index: 0, ..refusal(Status::Busy)[0].0.clone() }, vec![])])
            .await;
    let specs: Vec<DecodeSpec> = ["image?size=1x1", "image?size=2x2"].iter().map(|s| s.parse().expect("spec")).collect();
    let version = Version::new("v").expect("version");
    let made = peers.decode(&node.row, &id(), &version, &specs, MOST, "", soon()).await.expect("decode");
    assert!(matches!(&made[0], Err(error) if matches!(error.kind, ErrorKind::Busy { .. })));
    assert_eq!(made[1].as_ref().expect("made").bytes.len(), 12);
}

/// Promise: nothing that a peer says makes this node take in more than it asked for, or what it did not ask for.
#[tokio::test]
async fn peers_are_bounded() {
    let authority = Authority::new();
    let range = ByteRange::new(10, 20).expect("range");
    let at = |offset, bytes, last| {
        let (head, payload) = item(bytes);
        (ItemHead { offset, last, ..head }, payload)
    };
    let other = |version: &str| {
        let (head, payload) = at(15, 5, true);
        (ItemHead { version: version.into(), ..head }, payload)
    };
    for (what, items) in [
        ("too many bytes", vec![at(10, 11, true)]),
        ("a second item beyond", vec![at(10, 5, false), at(15, 6, true)]),
        ("out of order", vec![at(15, 5, false), at(10, 5, true)]),
        ("two versions", vec![at(10, 5, false), other("w")]),
        ("no version", vec![at(10, 5, false), other("")]),
    ] {
        let (node, peers) = peer(&authority, &["a"], items).await;
        let error = peers.read(&node.row, &id(), range, None, "", soon()).await.expect_err(what);
        assert_eq!(error.kind, ErrorKind::Protocol, "{what}");
    }
    let (node, peers) = peer(&authority, &["a"], vec![at(10, 5, false)]).await;
    let error = peers.read(&node.row, &id(), range, None, "", soon()).await.expect_err("early");
    assert_eq!(error.kind, ErrorKind::Unavailable);
    let error = peers.read(&node.row, &id(), ByteRange::new(0, PAGE_BYTES + 1).expect("range"), None, "", soon()).await;
    assert_eq!(error.expect_err("more than a page").kind, ErrorKind::Invalid);

    let (spec, pinned) = ("image?size=2x2", Version::new("w").expect("version"));
    for (what, items, version, kind) in [
        ("over the bound", vec![pixels(0, 1000, 3_000_000)], None, ErrorKind::TooLarge),
        ("shape and bytes", vec![pixels(0, 2, 11)], None, ErrorKind::Protocol),
        ("a page for a picture", vec![item(12)], None, ErrorKind::Protocol),
        ("another version", vec![pixels(0, 2, 12)], Some(&pinned), ErrorKind::Protocol),
    ] {
        let (node, peers) = peer(&authority, &["a"], items).await;
        let error = peers.peek(&node.row, &id(), 0, spec, version, MOST, soon()).await.expect_err(what);
        assert_eq!(error.kind, kind, "{what}");
    }
}

/// Promise: a peer that falls silent is doubtful for a moment, and what waits for it ends soon.
#[tokio::test]
async fn silent_peers_are_doubtful() {
    let (node, peers) = peer(&Authority::new(), &["a"], vec![item(5)]).await;
    peers.peek(&node.row, &id(), 0, "", None, MOST, soon()).await.expect("peek");
    assert!(!peers.is_doubtful(&node.row));
    node.wire.cut(true);
    let began = Instant::now();
    let error = peers.peek(&node.row, &id(), 0, "", None, MOST, soon()).await.expect_err("lost");
    assert!(error.kind == ErrorKind::Unavailable && peers.is_doubtful(&node.row));
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}

/// Promise: a peer of whom others have had no answer is asked for a sign of life: who gives one is not doubtful, who gives none is so
/// soon, and before it is left; also where there is no connection to it yet.
#[tokio::test]
async fn doubts_are_cleared_up() {
    let (node, peers) = peer(&Authority::new(), &["a"], vec![item(5)]).await;
    let doubtful_within = async |longest: Duration| {
        let began = Instant::now();
        while !peers.is_doubtful(&node.row) && began.elapsed() < longest {
            peers.doubt(&node.row);
            sleep(Duration::from_millis(5)).await;
        }
        peers.is_doubtful(&node.row)
    };
    let connected = async || peers.peek(&node.row, &id(), 0, "", None, MOST, soon()).await.expect("peek");
    connected().await;
    for _ in 0..20 {
        assert!(!doubtful_within(Duration::from_millis(50)).await, "it lives");
    }
    // The last sign that it was asked for may still be under way.
    peers.doubt(&node.row);
    node.wire.cut(true);
    assert!(doubtful_within(Duration::from_secs(2)).await);
    let link = peers.pool.known(&Target::node(&node.row.id, &node.row.quic)).expect("link");
    assert!(link.is_connected(), "it is left later");
    node.wire.cut(false);
    let began = Instant::now();
    while peers.is_doubtful(&node.row) {
        assert!(began.elapsed() < Duration::from_secs(10), "it is back");
        sleep(Duration::from_millis(50)).await;
    }
    connected().await;

    let (node, peers) = peer(&Authority::new(), &["a"], vec![item(5)]).await;
    node.wire.cut(true);
    peers.doubt(&node.row);
    let began = Instant::now();
    while !peers.is_doubtful(&node.row) {
        assert!(began.elapsed() < Duration::from_secs(3), "nobody answers there");
        sleep(Duration::from_millis(20)).await;
    }
    // However many doubt it, it is probed at its own pace: between two probes none of them begins a handshake.
    let link = peers.pool.known(&Target::node(&node.row.id, &node.row.quic)).expect("link");
    let mut dialing = 0;
    for _ in 0..100 {
        peers.doubt(&node.row);
        dialing += u32::from(link.is_dialing());
        sleep(Duration::from_millis(1)).await;
    }
    assert!(dialing < 100, "a handshake was under way each time");
}

/// Promise: nodes of a small cluster are connected before anybody asks; those of a large one are not, and nobody greets itself.
#[tokio::test]
async fn members_are_greeted() {
    let (node, peers) = peer(&Authority::new(), &["a"], vec![item(5)]).await;
    let connected = || peers.pool.known(&Target::node(&node.row.id, &node.row.quic)).is_some_and(|link| link.is_connected());
    let mut view = View::default();
    view.merge(node.row.clone()).expect("merge");
    for index in 0..GREETED_MAX {
        let quic = format!("127.0.0.1:{}", 40_000 + index);
        view.merge(NodeRow { quic, ..NodeRow::member(&format!("other-{index}"), 100) }).expect("merge");
    }
    peers.greet(&view);
    sleep(Duration::from_millis(300)).await;
    assert!(!connected(), "one too many");
    let mut view = View::default();
    view.merge(node.row.clone()).expect("merge");
    view.merge(NodeRow { quic: node.row.quic.clone(), ..NodeRow::member("me", 100) }).expect("merge");
    peers.greet(&view);
    let began = Instant::now();
    while !connected() {
        assert!(began.elapsed() < Duration::from_secs(10), "it was greeted");
        sleep(Duration::from_millis(10)).await;
    }
    assert!(peers.pool.known(&Target::node("me", &node.row.quic)).is_none() && node.asked.lock().is_empty());
}
