//! The client before nodes that are played: what it learns, whom it asks, and how it moves on.

mod clips;
mod hedges;
mod past;
mod stalls;
mod transport;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use crate::batch::Batch;
use crate::error::ErrorKind;
use crate::fake::{Authority, FakeNode, Item, refusal, script};
use crate::view::View;
use crate::wire::codec::{self, PREFIX_BYTES};
use crate::wire::{FramesBody, Header, ItemHead, NodeRow, ReadBody, Status, TensorItem, Verb, Via, ViewPayload, ext};
use crate::{Call, Client, ClientConfig, ImageSpec, ObjectId, RouteKey, Topology};

/// A whole answer to a request for raw bytes: the node's letter, as often as is asked for.
fn bytes(letter: u8, body: &[u8]) -> Vec<Item> {
    let body: ReadBody = codec::decode(body).expect("body");
    let head = ItemHead { last: true, offset: body.start, size: 1 << 20, version: "v".into(), ..ItemHead::default() };
    vec![(head, vec![letter; body.length as usize])]
}

/// A whole answer to a request for pictures of one pixel.
fn pictures(letter: u8, body: &[u8]) -> Vec<Item> {
    let body: FramesBody = codec::decode(body).expect("body");
    let tensor = TensorItem { shape: [1, 1, 3], dtype: 0, layout: 0, orientation: 1, source: [1, 1], pts_seconds: 0.0 };
    let item = |ask: &crate::wire::FrameAsk| {
        let (index, attempt) = (ask.index, ask.attempt);
        let head = ItemHead { index, attempt, last: true, version: "v".into(), tensor: Some(tensor), ..ItemHead::default() };
        (head, vec![letter; 3])
    };
    body.items.iter().map(item).collect()
}

fn answer(letter: u8, header: &Header, body: &[u8]) -> Vec<Item> {
    match Verb::from_number(header.verb) {
        Some(Verb::Frames) => pictures(letter, body),
        _ => bytes(letter, body),
    }
}

/// What a node does with its n-th request, before it answers.
type Whim = fn(usize) -> Option<Vec<Item>>;

/// Two nodes, and a client of theirs.
struct Two {
    nodes: [FakeNode; 2],
    view: Arc<Mutex<View>>,
    client: Client,
}

impl Two {
    /// `slow` is how long the first node takes for its n-th request.
    async fn start(slow: fn(usize) -> Duration, whim: Whim) -> Self {
        let (authority, view) = (Authority::new(), Arc::new(Mutex::new(View::default())));
        let count = Arc::new(AtomicUsize::new(0));
        let first = script(move |header, body| {
            let n = count.fetch_add(1, Ordering::Relaxed);
            async move {
                sleep(slow(n)).await;
                whim(n).unwrap_or_else(|| answer(b'a', &header, &body))
            }
        });
        let second = script(|header, body| async move { answer(b'b', &header, &body) });
        let a = FakeNode::start(&authority, "a", &["a"], view.clone(), first).await;
        let b = FakeNode::start(&authority, "b", &["b", "127.0.0.1"], view.clone(), second).await;
        for node in [&a, &b] {
            view.lock().merge(node.row.clone()).expect("merge");
        }
        let mut config = ClientConfig::new(&b.row.quic);
        config.tls = authority.trust();
        Self { nodes: [a, b], view, client: Client::new(config).expect("client") }
    }

    /// Objects that the node of that name owns.
    fn owned(&self, id: &str, count: usize) -> Vec<ObjectId> {
        let topology = Topology::new(self.view.lock().clone());
        let all = (0..).map(|i| ObjectId::new("abc", &format!("k{i}")).expect("id"));
        all.filter(|o| topology.server(RouteKey::object(o)).is_some_and(|row| row.id == id)).take(count).collect()
    }

    async fn read(&self, id: &ObjectId) -> u8 {
        let raw = self.client.read(id, 0, Some(10), &Default::default()).await.expect("read");
        assert!(raw.bytes.len() == 10 && raw.bytes.iter().all(|b| *b == raw.bytes[0]), "bytes of two nodes");
        raw.bytes[0]
    }

    fn asked(&self, node: usize) -> Vec<Header> {
        self.nodes[node].asked.lock().clone()
    }
}

fn never(_: usize) -> Option<Vec<Item>> {
    None
}

fn at_once(_: usize) -> Duration {
    Duration::ZERO
}

/// Waits until `holds`, ten seconds at most.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(10), "{what}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// Promise: each object is asked of its owner, under the view that the client has; the seed is connected to once.
#[tokio::test]
async fn owners_are_asked() {
    let two = Two::start(at_once, never).await;
    for (id, letter) in [("a", b'a'), ("b", b'b')] {
        for object in two.owned(id, 5) {
            assert_eq!(two.read(&object).await, letter);
        }
    }
    let digest = two.view.lock().digest().to_le_bytes().to_vec();
    let all = [two.asked(0), two.asked(1)].concat();
    assert!(all.iter().all(|header| header.addition(ext::VIEW) == Some(&digest) && header.via() == Via::Owner));
    assert_eq!((all.len(), two.client.stats().failovers), (10, 0));
}

/// Promise: a node that falls silent in the middle of a request costs the request less than two seconds, and is asked again once it is
/// back; requests in between do not wait for it.
#[tokio::test]
async fn silent_nodes_are_left_and_found_again() {
    let two = Two::start(at_once, never).await;
    let objects = two.owned("a", 3);
    assert_eq!(two.read(&objects[0]).await, b'a');
    two.nodes[0].wire.cut(true);
    let began = Instant::now();
    assert_eq!(two.read(&objects[1]).await, b'b');
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert_eq!(two.asked(1).last().map(Header::via), Some(Via::Unreached));
    let (began, stats) = (Instant::now(), two.client.stats());
    assert_eq!(two.read(&objects[2]).await, b'b');
    assert!(began.elapsed() < Duration::from_millis(200) && stats.silences == 1, "{:?} {stats:?}", began.elapsed());
    two.nodes[0].wire.cut(false);
    let began = Instant::now();
    while two.read(&objects[2]).await == b'b' {
        assert!(began.elapsed() < Duration::from_secs(5), "it is back");
        sleep(Duration::from_millis(50)).await;
    }
}

/// Promise: a node is found silent by callers none of whom waits for long: each has its answer from elsewhere, or gives up, before.
#[tokio::test]
async fn silence_outlasts_who_waits() {
    let two = Two::start(at_once, never).await;
    let objects = two.owned("a", 1);
    assert_eq!(two.read(&objects[0]).await, b'a');
    two.nodes[0].wire.cut(true);
    let hasty = Call { timeout: Some(Duration::from_millis(30)), ..Call::default() };
    let began = Instant::now();
    while two.client.stats().silences == 0 {
        let _ = two.client.read(&objects[0], 0, Some(10), &hasty).await;
        assert!(began.elapsed() < Duration::from_secs(2), "it is not found");
        sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(two.read(&objects[0]).await, b'b');
}

/// Promise: a node that works for long is waited for, as long as it lives.
#[tokio::test]
async fn busy_nodes_are_waited_for() {
    let two = Two::start(|_| Duration::from_millis(1500), never).await;
    assert_eq!(two.read(&two.owned("a", 1)[0]).await, b'a');
    assert_eq!((two.client.stats().silences, two.client.stats().failovers), (0, 0));
}

/// Promise: a batch outlives the loss of a node in the middle of it: what was open is asked of the next one, under a new try.
#[tokio::test]
async fn batches_outlive_a_node() {
    let two = Two::start(|_| Duration::from_secs(60), never).await;
    let objects = [two.owned("a", 20), two.owned("b", 20)].concat();
    let spec: ImageSpec = "image?size=1x1".parse().expect("spec");
    let batch = Batch::fixed(40, [1, 1, 3]).expect("batch");
    let call = Default::default();
    let ask = two.client.images(&objects, &spec, &batch, &call);
    let cut = async {
        until("it is asked", || !two.asked(0).is_empty()).await;
        two.nodes[0].wire.cut(true);
    };
    let began = Instant::now();
    let (outcomes, ()) = tokio::join!(ask, cut);
    assert!(began.elapsed() < Duration::from_secs(2) && outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    assert_eq!(batch.finish().block().map(|(_, block)| block.to_vec()), Some(vec![b'b'; 120]));
}

/// Promise: a node that says that it leaves is left at once, by a batch as a whole, and asked no more until the view says otherwise.
#[tokio::test]
async fn leaving_nodes_are_left() {
    let two = Two::start(at_once, |_| Some(refusal(Status::Leaving))).await;
    let objects = two.owned("a", 20);
    let spec: ImageSpec = "image?size=1x1".parse().expect("spec");
    let batch = Batch::fixed(20, [1, 1, 3]).expect("batch");
    let outcomes = two.client.images(&objects, &spec, &batch, &Default::default()).await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    assert_eq!(two.read(&objects[0]).await, b'b');
    assert_eq!(two.asked(0).len(), 1);
    let row = NodeRow { version: 2, ..two.nodes[0].row.clone() };
    two.view.lock().merge(row).expect("merge");
    two.client.nodes(&Default::default()).await.expect("nodes");
    assert_eq!(two.read(&objects[0]).await, b'b');
    assert_eq!(two.asked(0).len(), 2);
}

/// Promise: a busy node is asked again; where it stays busy and there is budget, another is.
#[tokio::test]
async fn busy_nodes_are_left_by_budget() {
    let busy = |n| (n >= 60).then(|| refusal(Status::Busy));
    let two = Two::start(at_once, busy).await;
    let object = &two.owned("a", 1)[0];
    for _ in 0..60 {
        assert_eq!(two.read(object).await, b'a');
    }
    assert_eq!(two.read(object).await, b'b');
    assert_eq!((two.asked(0).len(), two.asked(1).len()), (62, 1));
}

/// Promise: final answers are told at once.
#[tokio::test]
async fn final_answers_do_not_walk() {
    let two = Two::start(at_once, |_| Some(refusal(Status::NotFound))).await;
    let error = two.client.read(&two.owned("a", 1)[0], 0, None, &Default::default()).await.expect_err("not found");
    assert_eq!((error.kind, error.node.as_deref()), (ErrorKind::NotFound, Some("a")));
    assert!(two.asked(1).is_empty());
}

/// Promise: news that come with a reply are taken in, and asked for where they do not fit.
#[tokio::test]
async fn news_come_with_replies() {
    let (authority, view) = (Authority::new(), Arc::new(Mutex::new(View::default())));
    let (told, kept) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(View::default())));
    let news = told.clone();
    let first = script(move |header, body| {
        let mut items = answer(b'a', &header, &body);
        items[0].0.ext = std::mem::take(&mut *news.lock());
        async move { items }
    });
    let a = FakeNode::start(&authority, "a", &["a", "127.0.0.1"], view.clone(), first).await;
    let second = script(|header, body| async move { answer(b'b', &header, &body) });
    let b = FakeNode::start(&authority, "b", &["b"], kept, second).await;
    view.lock().merge(a.row.clone()).expect("merge");
    let mut config = ClientConfig::new(&a.row.quic);
    config.tls = authority.trust();
    let client = Client::new(config).expect("client");
    let read = async |key: usize| {
        let id = ObjectId::new("abc", &format!("k{key}")).expect("id");
        client.read(&id, 0, Some(1), &Default::default()).await.expect("read").bytes[0]
    };
    assert!(read(0).await == b'a' && read(1).await == b'a');
    let delta = ViewPayload { view_id: 0, nodes: vec![b.row.clone()] };
    *told.lock() = vec![(ext::VIEW_DELTA, codec::encode(&delta).expect("delta").split_off(PREFIX_BYTES))];
    assert_eq!(read(2).await, b'a');
    until("the delta is merged", || client.stats().views == 2).await;
    let mut letters = Vec::new();
    for key in 0..40 {
        letters.push(read(key).await);
    }
    assert!(letters.contains(&b'a') && letters.contains(&b'b'), "{letters:?}");
    // Too many to be told: the view is asked for, in which b is gone.
    view.lock().merge(NodeRow { version: 2, state: 3, ..b.row.clone() }).expect("merge");
    *told.lock() = vec![(ext::VIEW_DELTA, Vec::new())];
    for key in 0..40 {
        read(key).await;
    }
    until("the view is asked for", || client.stats().views == 3).await;
    assert_eq!(read(3).await, b'a');
}

/// Promise: a hot object is spread over its nodes; those that do not own it are told that they are replicas.
#[tokio::test]
async fn hot_objects_are_spread() {
    let two = Two::start(at_once, never).await;
    let object = &two.owned("a", 1)[0];
    for _ in 0..600 {
        two.read(object).await;
    }
    let (a, b) = (two.asked(0).len(), two.asked(1).len());
    assert!(a > 350 && b > 100, "{a} and {b}");
    let (replicas, stats) = (two.asked(1).iter().filter(|header| header.via() == Via::Replica).count(), two.client.stats());
    // Where the machine is busy, a read may be slow, and be hedged.
    assert!(b - replicas <= stats.hedges as usize, "{b}, {replicas}, {stats:?}");
    assert_eq!(stats.replicas, replicas as u64);
}

/// One node, alone, with one letter.
async fn alone(authority: &Authority, id: &str, letter: u8) -> (FakeNode, Arc<Mutex<View>>) {
    let view = Arc::new(Mutex::new(View::default()));
    let says = script(move |header, body| async move { answer(letter, &header, &body) });
    let node = FakeNode::start(authority, id, &[id, "127.0.0.1"], view.clone(), says).await;
    view.lock().merge(node.row.clone()).expect("merge");
    (node, view)
}

fn client(authority: &Authority, addresses: &str) -> Client {
    let mut config = ClientConfig::new(addresses);
    config.tls = authority.trust();
    Client::new(config).expect("client")
}

async fn letter(client: &Client) -> u8 {
    let id = ObjectId::new("abc", "k").expect("id");
    client.read(&id, 0, Some(1), &Default::default()).await.expect("read").bytes[0]
}

/// Promise: a seed that is dead does not keep a client from the others.
#[tokio::test]
async fn any_seed_will_do() {
    let authority = Authority::new();
    let ((dead, _), (node, _)) = (alone(&authority, "dead", b'x').await, alone(&authority, "a", b'a').await);
    dead.wire.cut(true);
    let (began, client) = (Instant::now(), client(&authority, &format!("{},{}", dead.row.quic, node.row.quic)));
    assert_eq!(letter(&client).await, b'a');
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}

/// Promise: a call that no node answers ends by its deadline, however many seeds are left to ask.
#[tokio::test]
async fn dead_seeds_do_not_hold_a_call() {
    let silent: Vec<_> = (0..7).map(|_| std::net::UdpSocket::bind("127.0.0.1:0").expect("bind")).collect();
    let addresses: Vec<String> = silent.iter().map(|socket| socket.local_addr().expect("address").to_string()).collect();
    let (client, call) = (client(&Authority::new(), &addresses.join(",")), limited(100));
    let began = Instant::now();
    client.read(&"s3://abc/k".parse().expect("id"), 0, None, &call).await.expect_err("nobody is there");
    assert!(began.elapsed() < Duration::from_millis(800), "a call of 100 ms took {:?}", began.elapsed());
}

/// Promise: where no node serves, a batch asks again with growing pauses, and not as fast as it is answered.
#[tokio::test]
async fn batches_without_a_node_do_not_hammer() {
    let authority = Authority::new();
    let (node, view) = alone(&authority, "a", b'a').await;
    view.lock().merge(NodeRow { version: 3, state: 2, ..node.row.clone() }).expect("merge");
    let (client, ids, batch) = (client(&authority, &node.row.quic), ["s3://abc/k".parse().expect("id")], Batch::new(1, 1 << 20));
    let outcomes = client.images(&ids, &ImageSpec::default(), &batch, &limited(500)).await;
    assert!(outcomes[0].is_err());
    let requests = client.stats().requests;
    assert!((2..40).contains(&requests), "{requests} requests within half a second");
}

/// Promise: a caller whose time is up while it asks for the view does not end those who wait for it with more time.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn deadlines_are_not_shared() {
    let authority = Authority::new();
    let (node, view) = alone(&authority, "a", b'a').await;
    let client = client(&authority, &node.row.quic);
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let (tell, is_held) = std::sync::mpsc::channel();
    // Until then the node says nothing of its view.
    let holder = std::thread::spawn(move || {
        let _view = view.lock();
        tell.send(()).expect("the test waits");
        let _ = wait.recv();
    });
    is_held.recv().expect("held");
    let (id, short, long) = ("s3://abc/k".parse().expect("id"), limited(300), limited(20_000));
    let first = async {
        let answer = client.read(&id, 0, Some(10), &short).await;
        drop(go);
        answer
    };
    let (first, second) = tokio::join!(first, client.read(&id, 0, Some(10), &long));
    first.expect_err("no view in time");
    assert_eq!(second.expect("it had time").bytes[0], b'a');
    holder.join().expect("holder");
}

/// A call of so many milliseconds.
fn limited(ms: u64) -> Call {
    Call { timeout: Some(Duration::from_millis(ms)), ..Call::default() }
}

/// Promise: a node that was started again where it was is found, alone as it is, and under another name too.
#[tokio::test]
async fn restarted_nodes_are_found() {
    let authority = Authority::new();
    let (node, _view) = alone(&authority, "a", b'a').await;
    let (same, same_view) = alone(&authority, "a", b'b').await;
    let (other, other_view) = alone(&authority, "c", b'c').await;
    for (view, row) in [(same_view, &same.row), (other_view, &other.row)] {
        let row = NodeRow { quic: node.row.quic.clone(), incarnation: 2, ..row.clone() };
        *view.lock() = View::default();
        view.lock().merge(row).expect("merge");
    }
    let client = client(&authority, &node.row.quic);
    assert_eq!(letter(&client).await, b'a');
    for (restarted, wanted) in [(&same, b'b'), (&other, b'c')] {
        node.wire.replace(restarted);
        let began = Instant::now();
        assert_eq!(letter(&client).await, wanted);
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    }
    assert_eq!(client.nodes(&Default::default()).await.expect("nodes").len(), 1);
}

/// Promise: where nothing comes through to the port that a client has, it takes another.
#[tokio::test]
async fn dead_ports_are_left() {
    let authority = Authority::new();
    let (node, _view) = alone(&authority, "a", b'a').await;
    let client = client(&authority, &node.row.quic);
    assert_eq!(letter(&client).await, b'a');
    node.wire.forget();
    let began = Instant::now();
    assert_eq!(letter(&client).await, b'a');
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}
