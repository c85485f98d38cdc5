//! What is slow to come, or comes to a stop, is asked of the next node.

use super::*;

/// Promise: a request that takes longer than nearly all others is sent to the next node too, and the first answer is taken whole.
#[tokio::test]
async fn slow_replies_are_hedged() {
    let slow = |n| if n < 100 { Duration::ZERO } else { Duration::from_secs(5) };
    let two = Two::start(slow, never).await;
    let objects = two.owned("a", 1);
    for _ in 0..100 {
        two.read(&objects[0]).await;
    }
    let (began, before) = (Instant::now(), two.client.stats());
    assert_eq!(two.read(&objects[0]).await, b'b');
    let stats = two.client.stats();
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert_eq!((stats.hedges_won - before.hedges_won, stats.silences, stats.retries), (1, 0, 0));
}

/// Promise: so are the pictures of a batch that are missing still; each slot is written once, and the loser is stopped.
#[tokio::test]
async fn slow_pictures_are_hedged() {
    let slow = |n| if n < 60 { Duration::ZERO } else { Duration::from_secs(5) };
    let two = Two::start(slow, never).await;
    let spec: ImageSpec = "image?size=1x1".parse().expect("spec");
    let objects = two.owned("a", 3);
    for round in 0..=60 {
        let batch = Batch::fixed(3, [1, 1, 3]).expect("batch");
        let began = Instant::now();
        let outcomes = two.client.images(&objects, &spec, &batch, &Default::default()).await;
        assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        if round == 60 {
            assert_eq!(batch.finish().block().map(|(_, block)| block.to_vec()), Some(vec![b'b'; 9]));
        }
    }
    let stats = two.client.stats();
    assert!(stats.hedges_won >= 3 && stats.retries == 0, "{stats:?}");
}

/// Promise: so is what comes to a stop in the middle of an item: another node goes on with it. Bytes that came are not asked for again.
#[tokio::test]
async fn stopped_replies_are_gone_on_with() {
    let stopped = |n| {
        let head = ItemHead { last: true, size: 1 << 20, version: "v".into(), payload_bytes: 10, ..ItemHead::default() };
        (n == 60).then(|| vec![(head, vec![b'a'; 4])])
    };
    let two = Two::start(at_once, stopped).await;
    let object = &two.owned("a", 1)[0];
    for _ in 0..60 {
        two.read(object).await;
    }
    let began = Instant::now();
    let raw = two.client.read(object, 0, Some(10), &Default::default()).await.expect("read");
    assert_eq!(&raw.bytes[..], b"aaaabbbbbb");
    let stats = two.client.stats();
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert_eq!((stats.retries, stats.silences), (1, 0));

    let stopped = |n| {
        let tensor = TensorItem { shape: [1, 1, 3], dtype: 0, layout: 0, orientation: 1, source: [1, 1], pts_seconds: 0.0 };
        let head = ItemHead { attempt: 1, version: "v".into(), tensor: Some(tensor), payload_bytes: 3, ..ItemHead::default() };
        (n == 60).then(|| vec![(head, vec![b'a'; 2])])
    };
    let two = Two::start(at_once, stopped).await;
    let (objects, spec) = (two.owned("a", 3), "image?size=1x1".parse().expect("spec"));
    for round in 0..=60 {
        let batch = Batch::fixed(3, [1, 1, 3]).expect("batch");
        let began = Instant::now();
        let outcomes = two.client.images(&objects, &spec, &batch, &Default::default()).await;
        assert!(outcomes.iter().all(Result::is_ok) && began.elapsed() < Duration::from_secs(2), "{outcomes:?}");
        if round == 60 {
            assert_eq!(batch.finish().block().map(|(_, block)| block.to_vec()), Some(vec![b'b'; 9]));
        }
    }
    let stats = two.client.stats();
    assert_eq!((stats.retries, stats.silences), (3, 0));
}

/// Promise: where there is nobody else to ask, what comes to a stop is waited for.
#[tokio::test]
async fn stopped_replies_of_the_only_node_are_waited_for() {
    let stopped = |n| {
        let head = ItemHead { last: true, size: 1 << 20, version: "v".into(), payload_bytes: 10, ..ItemHead::default() };
        (n >= 60).then(|| vec![(head, vec![b'a'; 4])])
    };
    let two = Two::start(at_once, stopped).await;
    let (object, other) = (&two.owned("a", 1)[0], &two.owned("b", 1)[0]);
    for _ in 0..60 {
        two.read(object).await;
    }
    two.nodes[1].wire.cut(true);
    let call = Call { timeout: Some(Duration::from_millis(1)), ..Call::default() };
    let began = Instant::now();
    while two.client.stats().silences == 0 {
        assert!(began.elapsed() < Duration::from_secs(10), "it is silent");
        let _ = two.client.read(other, 0, Some(10), &call).await;
        sleep(Duration::from_millis(10)).await;
    }
    let before = two.client.stats();
    let call = Call { timeout: Some(Duration::from_secs(1)), ..Call::default() };
    let error = two.client.read(object, 0, Some(10), &call).await.expect_err("it has come to a stop");
    assert_eq!((error.kind, two.client.stats().retries), (ErrorKind::Timeout, before.retries));
}

/// Promise: a node that is new to a client is not waited for longer than the others are.
#[tokio::test]
async fn new_nodes_are_hedged_too() {
    let two = Two::start(|_| Duration::from_secs(5), never).await;
    let other = &two.owned("b", 1)[0];
    for _ in 0..60 {
        two.read(other).await;
    }
    let began = Instant::now();
    assert_eq!(two.read(&two.owned("a", 1)[0]).await, b'b');
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert_eq!((two.client.stats().hedges_won, two.client.stats().silences), (1, 0));
}
