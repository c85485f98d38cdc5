//! Replies that stop, resume and contradict each other, wherever in their bytes.

use super::*;
use crate::fake::{Script, paused};
use crate::quic::Windows;
use crate::wire::Status::{Busy, NotFound};

const FOR_EVER: u32 = u32::MAX;

/// What a node does with its n-th request: how long it waits, and what it says.
type Play = fn(usize, &Header, &[u8]) -> (Duration, Vec<Item>);

fn play(play: Play) -> Script {
    let count = AtomicUsize::new(0);
    script(move |header, body| {
        let (after, items) = play(count.fetch_add(1, Ordering::Relaxed), &header, &body);
        async move {
            sleep(after).await;
            items
        }
    })
}

/// Two nodes that play what they are told, and a client with so much of a past: each of `warm` requests took [`WAIT`] with `a`.
async fn two(a: Play, b: Play, windows: Windows) -> Two {
    let (authority, view) = (Authority::new(), Arc::new(Mutex::new(View::default())));
    let a = FakeNode::start_with(&authority, "a", &["a"], view.clone(), play(a), windows).await;
    let b = FakeNode::start(&authority, "b", &["b", "127.0.0.1"], view.clone(), play(b)).await;
    for node in [&a, &b] {
        view.lock().merge(node.row.clone()).expect("merge");
    }
    let mut config = ClientConfig::new(&b.row.quic);
    config.tls = authority.trust();
    Two { nodes: [a, b], view, client: Client::new(config).expect("client") }
}

/// How long replies take at first.
const WAIT: Duration = Duration::from_millis(60);
/// How many.
const WARM: usize = 60;

fn good(n: usize, letter: u8, header: &Header, body: &[u8]) -> Option<(Duration, Vec<Item>)> {
    (n < WARM).then(|| (WAIT, answer(letter, header, body)))
}

/// Sixty reads or pictures of the node's at once, so that it is known how long it takes.
async fn warm(two: &Two, id: &str, pictures_too: bool) {
    let objects = two.owned(id, WARM);
    let spec: ImageSpec = "image?size=1x1".parse().expect("spec");
    let one = |object: ObjectId| {
        let spec = &spec;
        async move {
            match pictures_too {
                true => {
                    let batch = Batch::fixed(1, [1, 1, 3]).expect("batch");
                    let outcomes = two.client.images(&[object], spec, &batch, &Default::default()).await;
                    outcomes[0].as_ref().map(drop).expect("picture");
                }
                false => drop(two.client.read(&object, 0, Some(10), &Default::default()).await.expect("read")),
            }
        }
    };
    // The first alone: it asks for the view.
    one(objects[0].clone()).await;
    futures::future::join_all(objects[1..].iter().cloned().map(one)).await;
}

/// Pictures of `count` slots, within five seconds: their outcomes, which slots hold one, their pixels, and how long it took.
async fn pictures_of(two: &Two, objects: &[ObjectId]) -> (Vec<Option<ErrorKind>>, Vec<bool>, Vec<u8>, Duration) {
    let spec: ImageSpec = "image?size=1x1".parse().expect("spec");
    let batch = Batch::fixed(objects.len(), [1, 1, 3]).expect("batch");
    let began = Instant::now();
    let outcomes = two.client.images(objects, &spec, &batch, &limited(5000)).await;
    let took = began.elapsed();
    let pictures = batch.finish();
    let heads = (0..objects.len()).map(|index| pictures.head(index).is_some()).collect();
    let bytes = pictures.block().map(|(_, block)| block.to_vec()).unwrap_or_default();
    println!("{took:?}: {outcomes:?}, {:?}", two.client.stats());
    (outcomes.into_iter().map(|outcome| outcome.err().map(|error| error.kind)).collect(), heads, bytes, took)
}

fn part(offset: u64, letter: u8, bytes: usize, last: bool) -> Item {
    (ItemHead { last, offset, size: 1 << 20, version: "v".into(), ..ItemHead::default() }, vec![letter; bytes])
}

/// Promise: a raw reply that stops is gone on with elsewhere, wherever it stops: in a payload, between two items, inside a head.
#[tokio::test]
async fn raw_replies_may_stop_anywhere() {
    let mut failed = Vec::new();
    for at in [0, 1, 4, 30, 100] {
        static AT: AtomicUsize = AtomicUsize::new(0);
        AT.store(at, Ordering::Relaxed);
        let a: Play = |n, header, body| {
            let first = part(0, b'a', 5, false);
            let second = paused(part(5, b'a', 5, true), AT.load(Ordering::Relaxed) as u32, FOR_EVER);
            good(n, b'a', header, body).unwrap_or((Duration::ZERO, vec![first, second]))
        };
        let two = two(a, |_, header, body| (Duration::ZERO, answer(b'b', header, body)), Windows::NODE).await;
        warm(&two, "a", false).await;
        let began = Instant::now();
        let raw = two.client.read(&two.owned("a", 1)[0], 0, Some(10), &limited(4000)).await;
        println!("at {at}: {:?} after {:?}", raw.as_ref().map(|raw| raw.bytes.clone()), began.elapsed());
        if raw.is_err() || began.elapsed() > Duration::from_secs(2) {
            failed.push(at);
        }
    }
    assert!(failed.is_empty(), "waited for until the deadline after {failed:?} bytes of the second item");
}

/// Promise: a picture that one node has given whole is not lost because a hedge that came first stands still.
#[tokio::test]
async fn a_hedge_that_stops_costs_nothing() {
    let a: Play = |n, header, body| {
        let late = (Duration::from_millis(250), answer(b'a', header, body));
        good(n, b'a', header, body).unwrap_or(late)
    };
    let b: Play = |_, header, body| {
        let items = answer(b'b', header, body);
        (Duration::ZERO, items.into_iter().map(|(head, _)| (ItemHead { payload_bytes: 3, ..head }, vec![b'b'; 2])).collect())
    };
    let two = two(a, b, Windows::NODE).await;
    warm(&two, "a", true).await;
    let (failed, _, bytes, took) = pictures_of(&two, &two.owned("a", 1)).await;
    assert!(failed == [None] && took < Duration::from_secs(2), "{failed:?} after {took:?}, {bytes:?}");
}

/// Promise: nor because the node that was asked first stands still in it while another one has given it whole, whatever the budget.
#[tokio::test]
async fn a_first_that_stops_costs_nothing_once_it_is_hedged() {
    let a: Play = |n, header, body| {
        let mut items = answer(b'a', header, body);
        let first = items.swap_remove(0);
        let stops = vec![(ItemHead { payload_bytes: 3, ..first.0 }, vec![b'a'; 2])];
        good(n, b'a', header, body).unwrap_or((Duration::from_millis(130), stops))
    };
    let b: Play = |_, header, body| (Duration::from_millis(150), answer(b'b', header, body));
    let two = two(a, b, Windows::NODE).await;
    warm(&two, "a", true).await;
    // Four hedges, and one for twenty of sixty requests: all that there are.
    let (failed, _, bytes, took) = pictures_of(&two, &two.owned("a", 7)).await;
    assert!(failed.iter().all(Option::is_none) && took < Duration::from_secs(2), "{failed:?} after {took:?}, {bytes:?}");
}

/// Promise: what a beaten request passes over does not hold up its other slots.
#[tokio::test]
async fn what_is_passed_over_may_stop() {
    let a: Play = |n, header, body| {
        let mut items = answer(b'a', header, body);
        let first = items.swap_remove(0);
        let stops = vec![(ItemHead { payload_bytes: 3, ..first.0 }, vec![b'a'; 2])];
        good(n, b'a', header, body).unwrap_or((Duration::from_millis(250), stops))
    };
    let b: Play = |n, header, body| {
        let mut items = answer(b'b', header, body);
        if n == 0 {
            let head = items[1].0.clone();
            items[1] = (ItemHead { status: Busy as u16, retry_after_ms: 10, tensor: None, ..head }, Vec::new());
        }
        (Duration::ZERO, items)
    };
    let two = two(a, b, Windows::NODE).await;
    warm(&two, "a", true).await;
    let (failed, _, bytes, took) = pictures_of(&two, &two.owned("a", 2)).await;
    assert!(failed == [None, None] && took < Duration::from_secs(2), "{failed:?} after {took:?}, {bytes:?}");
}

/// Promise: a slot that failed holds no picture, whatever another request was writing into it meanwhile.
#[tokio::test]
async fn failed_slots_stay_empty() {
    let a: Play = |n, header, body| {
        let mut items = answer(b'a', header, body);
        if items.len() > 1 {
            let first = items.remove(0);
            let inside = codec::encode(&first.0).expect("head").len() as u32 + 2;
            items.insert(0, paused(first, inside, 80));
        }
        good(n, b'a', header, body).unwrap_or((Duration::from_millis(120), items))
    };
    let b: Play = |_, header, body| {
        let absent = |(head, _)| (ItemHead { status: NotFound as u16, tensor: None, ..head }, Vec::new());
        (Duration::from_millis(50), answer(b'b', header, body).into_iter().map(absent).collect())
    };
    let two = two(a, b, Windows::NODE).await;
    warm(&two, "a", true).await;
    // One more than there are hedges, so that the first request goes on.
    let (failed, heads, bytes, _) = pictures_of(&two, &two.owned("a", 8)).await;
    for (slot, (failed, head)) in failed.iter().zip(&heads).enumerate() {
        assert_eq!(failed.is_none(), *head, "slot {slot}: {failed:?}, and holds a picture: {head}, {bytes:?}");
    }
}

/// Promise: a picture that failed is asked for again by its own order of nodes, whatever the others of its request do.
#[tokio::test]
async fn failed_slots_do_not_wait_for_slow_ones() {
    let a: Play = |_, header, body| {
        let mut items = answer(b'a', header, body);
        let head = items[0].0.clone();
        items[0] = (ItemHead { status: Status::Unavailable as u16, tensor: None, ..head }, Vec::new());
        let last = items.pop().expect("two");
        items.push(paused(last, 0, 3000));
        (Duration::ZERO, items)
    };
    let two = two(a, |_, header, body| (Duration::ZERO, answer(b'b', header, body)), Windows::NODE).await;
    let objects = two.owned("a", 2);
    let spec: ImageSpec = "image?size=1x1".parse().expect("spec");
    let batch = Batch::fixed(2, [1, 1, 3]).expect("batch");
    let outcomes = two.client.images(&objects, &spec, &batch, &limited(2000)).await;
    println!("{outcomes:?}, {:?}", two.client.stats());
    assert!(outcomes[0].is_ok() && outcomes[1].is_err(), "{outcomes:?}");
}

/// Promise: a batch all of whose pictures are there is over, although the node that gave some of them stands still before one that another
/// node has given.
#[tokio::test]
async fn what_is_there_is_known() {
    let a: Play = |n, header, body| {
        let mut items = answer(b'a', header, body);
        if let Some(last) = items.pop().filter(|_| n >= WARM) {
            items.push(paused(last, 0, FOR_EVER));
        }
        good(n, b'a', header, body).unwrap_or((Duration::from_millis(130), items))
    };
    let two = two(a, |_, header, body| (Duration::from_millis(150), answer(b'b', header, body)), Windows::NODE).await;
    warm(&two, "a", true).await;
    let (failed, _, bytes, took) = pictures_of(&two, &two.owned("a", 2)).await;
    assert!(failed == [None, None] && took < Duration::from_secs(2), "{failed:?} after {took:?}, {bytes:?}");
}

/// Promise: however many doubt a node, it is not taken for silent as long as it lives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn living_nodes_bear_doubts() {
    let at_once: Play = |_, header, body| (Duration::ZERO, answer(b'x', header, body));
    let two = two(at_once, at_once, Windows::NODE).await;
    two.read(&two.owned("a", 1)[0]).await;
    let known = two.client.known().expect("known");
    let link = known.link("a").expect("link");
    let began = Instant::now();
    let mut doubts = 0u64;
    while began.elapsed() < Duration::from_secs(2) {
        for _ in 0..50 {
            link.doubt();
        }
        doubts += 50;
        assert!(!link.is_doubtful(Duration::from_secs(1)), "after {doubts} doubts, {:?}", began.elapsed());
        tokio::task::yield_now().await;
    }
    println!("{doubts} doubts");
    assert_eq!(two.client.stats().silences, 0);
}

/// Promise: a node that takes no more streams is slow like any other: pictures are asked for elsewhere.
#[tokio::test]
async fn nodes_without_streams_are_hedged() {
    let windows = Windows { streams: 0, ..Windows::NODE };
    let b: Play = |_, header, body| (Duration::ZERO, answer(b'b', header, body));
    let two = two(b, b, windows).await;
    warm(&two, "b", false).await;
    warm(&two, "b", true).await;
    let began = Instant::now();
    let raw = two.client.read(&two.owned("a", 1)[0], 0, Some(10), &limited(4000)).await;
    println!("raw: {:?} after {:?}", raw.map(|raw| raw.bytes), began.elapsed());
    let (failed, _, _, took) = pictures_of(&two, &two.owned("a", 2)).await;
    assert!(failed == [None, None] && took < Duration::from_secs(2), "{failed:?} after {took:?}");
}

/// Promise: a hedge that stands still before its first byte does not hold what the first node may not give any more.
#[tokio::test]
async fn hedges_that_say_nothing_are_left_too() {
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    let a: Play = |n, header, body| match n {
        WARM => (Duration::from_millis(120), refusal(Status::Unavailable)),
        _ => (if n < WARM { WAIT } else { Duration::ZERO }, answer(b'a', header, body)),
    };
    let b: Play = |_, header, body| {
        ASKED.fetch_add(1, Ordering::Relaxed);
        (Duration::from_secs(60), answer(b'b', header, body))
    };
    let two = two(a, b, Windows::NODE).await;
    warm(&two, "a", true).await;
    let (failed, _, bytes, took) = pictures_of(&two, &two.owned("a", 1)).await;
    assert!(failed == [None] && took < Duration::from_secs(2), "{failed:?} after {took:?}, {bytes:?}, b asked {ASKED:?} times");
}

/// Promise: a call ends by its deadline, whatever a node keeps saying.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endless_replies_end_with_the_deadline() {
    let a: Play = |n, header, body| {
        let endless = (0..200_000).map(|_| part(0, b'a', 0, false)).collect();
        good(n, b'a', header, body).unwrap_or((Duration::ZERO, endless))
    };
    let two = two(a, |_, header, body| (Duration::ZERO, answer(b'b', header, body)), Windows::NODE).await;
    warm(&two, "a", false).await;
    let began = Instant::now();
    let raw = two.client.read(&two.owned("a", 1)[0], 0, Some(10), &limited(700)).await;
    println!("{:?} after {:?}", raw.map(|raw| raw.bytes), began.elapsed());
    assert!(began.elapsed() < Duration::from_millis(1500), "{:?}", began.elapsed());
}

/// Promise: a node that is lost costs a request a third of a second, although it was slow to acknowledge some time ago.
#[tokio::test]
async fn silence_is_found_after_slow_times() {
    let at_once: Play = |_, header, body| (Duration::ZERO, answer(b'x', header, body));
    for (handshake, later) in [(400, 0), (0, 900)] {
        let two = two(at_once, at_once, Windows::NODE).await;
        let objects = two.owned("a", 3);
        two.read(&two.owned("b", 1)[0]).await;
        two.nodes[0].wire.delay(handshake);
        two.read(&objects[0]).await;
        two.nodes[0].wire.delay(later);
        for _ in 0..8 {
            two.read(&objects[0]).await;
        }
        two.nodes[0].wire.delay(0);
        for _ in 0..3 {
            two.read(&objects[0]).await;
        }
        two.nodes[0].wire.cut(true);
        let began = Instant::now();
        two.read(&objects[1]).await;
        println!("handshake {handshake} ms late, then {later} ms: moved on after {:?}", began.elapsed());
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    }
}

/// Promise: calls that are dropped in the middle, hedges and all, leave nothing behind: no load, and a client that goes on.
#[tokio::test]
async fn dropped_calls_leave_nothing() {
    let a: Play = |n, header, body| {
        let stops =
            answer(b'a', header, body).into_iter().map(|(head, _)| (ItemHead { payload_bytes: 3, ..head }, vec![b'a'])).collect();
        match n {
            WARM..260 => (Duration::from_millis((n % 7) as u64 * 30), stops),
            _ => (if n < WARM { WAIT } else { Duration::ZERO }, answer(b'a', header, body)),
        }
    };
    let b: Play = |n, header, body| {
        let stops =
            answer(b'b', header, body).into_iter().map(|(head, _)| (ItemHead { payload_bytes: 3, ..head }, vec![b'b'])).collect();
        (Duration::from_millis((n % 5) as u64 * 40), stops)
    };
    let two = two(a, b, Windows::NODE).await;
    warm(&two, "a", true).await;
    let (objects, spec) = (two.owned("a", 3), "image?size=1x1".parse().expect("spec"));
    for n in 0..200u64 {
        let batch = Batch::fixed(3, [1, 1, 3]).expect("batch");
        let call = Default::default();
        let ask = two.client.images(&objects, &spec, &batch, &call);
        let _ = tokio::time::timeout(Duration::from_millis(1 + n % 23 * 9), ask).await;
        assert_eq!(batch.finish().block().map(|(_, block)| block.to_vec()), Some(vec![0; 9]), "half a picture");
    }
    let known = two.client.known().expect("known");
    for id in ["a", "b"] {
        assert_eq!(known.link(id).expect("link").load(), 0, "{id}");
    }
}
