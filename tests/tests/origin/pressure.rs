//! Load: budgets, storms, hedges, deadlines, bounds.

use crate::*;

/// Promise: a dead origin sees each call once and the budget's retries, no more.
#[tokio::test]
async fn retries_end_with_the_budget() {
    let world = world(OriginLimits { retry_budget: 5.0, ..limits() }).await;
    world.put("a", b"abc");
    world.faulty.set(Rule::gets(Fault::Status(500)));
    let reads = (0..30).map(|_| world.read("a", 0, 3, None));
    let results = futures::future::join_all(reads).await;
    assert!(results.iter().all(|r| matches!(r, Err(OriginError::Unavailable(_)))));
    assert_eq!(world.faulty.stats().requests, 30 + 5);
    let stats = world.s3.stats().snapshot();
    assert_eq!((stats.retries, stats.requests), (5, 35));
    assert!(stats.retries_refused > 0);
}

/// Promise: no read takes more memory than its limit: a larger one is refused by its headers.
#[tokio::test]
async fn reads_are_bounded() {
    let world = world(OriginLimits { read_bytes_max: 1000, ..limits() }).await;
    world.put("a", &bytes(5000, 5));
    assert!(matches!(world.read("a", 0, 5000, None).await, Err(OriginError::InvalidRequest(_))));
    assert_eq!(world.read("a", 0, 1000, None).await.expect("read").body.len(), 1000);
}

/// Promise: a storm of "slow down" brings the origin's load down at once, callers are refused early instead of piling up, and when it is
/// over the load comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn storm_is_answered_with_silence() {
    let world = std::sync::Arc::new(world(OriginLimits { concurrency: 16, ..limits() }).await);
    world.put("a", &bytes(1000, 6));
    let callers: Vec<_> = (0..16)
        .map(|_| {
            let world = world.clone();
            tokio::spawn(async move {
                loop {
                    let deadline = Instant::now() + Duration::from_millis(500);
                    if world.s3.read(&id("a"), range(0, 1000), None, deadline).await.is_err() {
                        // A caller that is refused comes back later, as the error says.
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                }
            })
        })
        .collect();
    let arrivals = |from: Instant, to: Instant| {
        let stats = world.faulty.stats();
        stats.arrivals.iter().filter(|at| (from..to).contains(at)).count()
    };
    let second = Duration::from_secs(1);
    let begin = Instant::now();
    tokio::time::sleep_until(begin + second).await;
    world.faulty.set(Rule::gets(Fault::SlowDown(None)));
    let storm = Instant::now();
    tokio::time::sleep_until(storm + 3 * second).await;
    world.faulty.set(Script::default());
    let over = Instant::now();
    let (calm, late) = (arrivals(begin, storm), arrivals(over - second, over));
    assert!(late * 10 <= calm, "{calm} in a calm second, {late} in the third of the storm");
    let asked = world.faulty.stats().requests;
    timeout(30 * second, world.faulty.asked(asked + 100)).await.expect("recovery");
    println!("{calm} a second in calm, {late} in the storm, back after {:?}", over.elapsed());
    callers.iter().for_each(|caller| caller.abort());
    let stats = world.s3.stats().snapshot();
    assert!(stats.throttled > 0 && stats.errors_busy > 0, "{stats:?}");
}

/// Promise: Retry-After is honoured: nothing is sent before, and a caller without that much time is told at once.
#[tokio::test]
async fn retry_after_is_honoured() {
    let world = world(limits()).await;
    world.put("a", b"abc");
    world.faulty.set(Rule::first(1, Fault::SlowDown(Some(1))));
    let began = Instant::now();
    world.read("a", 0, 3, None).await.expect("after the wait");
    assert!(began.elapsed() >= Duration::from_secs(1));
    world.faulty.set(Rule::gets(Fault::SlowDown(Some(20))));
    let busy = world.s3.read(&id("a"), range(0, 3), None, soon()).await;
    assert_eq!(busy, Err(OriginError::Busy { retry_after: Duration::from_secs(20) }));
    let asked = world.faulty.stats().requests;
    let busy = world.s3.read(&id("a"), range(0, 3), None, soon()).await;
    assert!(matches!(busy, Err(OriginError::Busy { retry_after }) if retry_after > Duration::from_secs(18)), "{busy:?}");
    assert_eq!(world.faulty.stats().requests, asked, "nothing was sent");
}

/// Promise: a request that hangs is overtaken by a second one, within the hedge budget, and leaves nothing behind.
#[tokio::test]
async fn slow_request_is_hedged() {
    let world = world(OriginLimits { first_byte: Duration::from_secs(8), ..limits() }).await;
    let content = bytes(1000, 7);
    world.put("a", &content);
    for _ in 0..40 {
        world.read("a", 0, 1000, None).await.expect("warm");
    }
    world.faulty.set(Rule::first(1, Fault::HangUntilDropped));
    let fetched = world.read("a", 0, 1000, None).await.expect("hedged");
    assert_eq!(fetched.body, content);
    let stats = world.s3.stats().snapshot();
    assert_eq!((stats.hedges, stats.hedges_won, stats.retries, stats.requests, stats.in_flight), (1, 1, 0, 42, 0));
}

/// Promise: a call ends by its deadline, and its request with it; a full queue refuses at once.
#[tokio::test]
async fn deadlines_and_queues_hold() {
    let world = world(OriginLimits { concurrency: 1, queue: 1, ..limits() }).await;
    world.put("a", b"abc");
    world.faulty.set(Rule::gets(Fault::HangUntilDropped));
    let deadline = Instant::now() + Duration::from_millis(300);
    let late = world.s3.read(&id("a"), range(0, 3), None, deadline).await;
    assert!(matches!(late, Err(OriginError::Deadline | OriginError::Unavailable(_))), "{late:?}");
    assert!(deadline.elapsed() < Duration::from_secs(2));
    let held = world.read("a", 0, 3, None);
    let waiting = world.read("a", 0, 3, None);
    let refused = world.read("a", 0, 3, None);
    let (_, _, refused) = futures::future::join3(held, waiting, refused).await;
    assert!(matches!(refused, Err(OriginError::Busy { .. })), "{refused:?}");
    assert_eq!(world.s3.stats().snapshot().in_flight, 0);
}
