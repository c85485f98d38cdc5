//! What the budget promises, under a paused clock.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use super::*;

const MS: Duration = Duration::from_millis(1);

/// The levels that these tests speak of. The others have floors of one byte.
const SPOKEN_OF: [Level; 4] = [Level::Peek, Level::Read, Level::Decode, Level::Frames];

fn floors(of: [u64; 4]) -> [u64; Level::ALL.len()] {
    let mut floors = [1; Level::ALL.len()];
    SPOKEN_OF.iter().zip(of).for_each(|(level, floor)| floors[*level as usize] = floor);
    floors
}

/// 100 bytes of floors (10, 20, 30, 40), 100 of others, `shared` for all.
fn budget(shared: u64) -> Arc<Budget> {
    let lines = BudgetLines { total: 200 + shared, fixed: vec![("cache.raw_ram", 94)], floors: floors([10, 20, 30, 40]) };
    Budget::new(lines).expect("fits")
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}

fn in_use(budget: &Budget) -> [u64; 4] {
    SPOKEN_OF.map(|level| budget.usage()[level as usize].in_use)
}

/// Lines that do not fit are refused with the key to change, and no other word.
#[test]
fn lines_that_do_not_fit_name_the_key() {
    let lines = BudgetLines {
        total: 1 << 30,
        fixed: vec![("disk buffers", 400 << 20), ("decode.workers", 200 << 20), ("cache.raw_ram", 400 << 20)],
        floors: floors([16 << 20, 16 << 20, 32 << 20, (64 << 20) - 6]),
    };
    let said = Budget::new(lines.clone()).expect_err("too much").to_string();
    for part in ["`node.memory_limit` of 1GiB", "too small by 104MiB", "decode.workers 200MiB", "lower `cache.raw_ram`"] {
        assert!(said.contains(part), "{said}");
    }
    let words = BudgetLines { fixed: vec![("disk buffers", 2 << 30), ("cache.raw_ram", 0)], ..lines.clone() };
    let said = Budget::new(words).expect_err("too much").to_string();
    assert!(said.ends_with("raise it or lower `decode.pixels_max`"), "{said}");
    assert_eq!(
        Budget::new(BudgetLines { floors: floors([1, 1, 0, 1]), ..lines }).expect_err("no floor"),
        BudgetError::NoFloor { level: Level::Decode }
    );
}

/// Promise: who would be refused in its turn is told so before, and asking that changes nothing.
#[tokio::test(start_paused = true)]
async fn a_refusal_is_foreseen() {
    let budget = budget(0);
    let soon = Instant::now() + 100 * MS;
    assert_eq!(budget.foresees_busy(Level::Frames, 40, 0, soon), None, "free");
    assert_eq!(budget.foresees_busy(Level::Frames, 41, 0, soon), None, "never fits: that is another answer");
    let held = budget.try_reserve(Level::Frames, 40).expect("free");
    tokio::time::advance(80 * MS).await;
    drop(held);
    let _held = budget.try_reserve(Level::Frames, 40).expect("free");
    // Forty bytes take 80 ms: ten more come back in 20, forty more in 80, which is too near to 100.
    assert_eq!(budget.foresees_busy(Level::Frames, 10, 0, soon + 80 * MS), None);
    let busy = budget.foresees_busy(Level::Frames, 10, 30, soon + 80 * MS);
    assert!(matches!(busy, Some(Refused::Busy { .. })), "{busy:?}");
    assert_eq!(budget.usage()[Level::Frames as usize].refused, 0);
}

/// Whatever the upper levels hold, each deeper level still gets its floor at once.
#[test]
fn floors_are_honoured() {
    let budget = budget(100);
    let frames = budget.try_reserve(Level::Frames, 140).expect("its floor and all that is shared");
    assert_eq!(budget.shared_free(), 0);
    let held = [(Level::Decode, 30), (Level::Read, 20), (Level::Peek, 10)].map(|(level, floor)| {
        assert!(matches!(budget.try_reserve(level, floor + 1), Err(Refused::Busy { .. })), "{level:?} above its floor");
        budget.try_reserve(level, floor).expect("its floor")
    });
    assert_eq!(in_use(&budget), [10, 20, 30, 140]);
    let too_large = Refused::TooLarge { bytes: 141, most: 140 };
    assert_eq!(budget.try_reserve(Level::Frames, 141).expect_err("never"), too_large);
    assert_eq!(budget.usage()[Level::Frames as usize].refused, 1);
    drop((frames, held));
    assert_eq!((in_use(&budget), budget.shared_free()), ([0; 4], 100));
}

/// Within a level the order of asking is the order of getting, and no wakeup is lost.
#[tokio::test(start_paused = true)]
async fn waiters_are_served_in_order() {
    let budget = budget(0);
    let first = budget.try_reserve(Level::Read, 20).expect("free");
    let order = Arc::new(Mutex::new(Vec::new()));
    let tasks: Vec<_> = (0..10)
        .map(|number| {
            let (budget, order) = (budget.clone(), order.clone());
            tokio::spawn(async move {
                let held = budget.reserve(Level::Read, 15, soon()).await.expect("in time");
                order.lock().push(number);
                tokio::time::sleep(5 * MS).await;
                drop(held);
            })
        })
        .collect();
    tokio::time::sleep(MS).await;
    assert_eq!(budget.usage()[Level::Read as usize].waiting, 10);
    drop(first);
    for task in tasks {
        task.await.expect("no panic");
    }
    assert_eq!(*order.lock(), (0..10).collect::<Vec<_>>());
    assert_eq!(in_use(&budget), [0; 4]);
}

/// A wait ends at its deadline, not later; the place in the queue is free again.
#[tokio::test(start_paused = true)]
async fn the_deadline_is_kept() {
    let budget = budget(0);
    let held = budget.try_reserve(Level::Decode, 30).expect("free");
    let start = Instant::now();
    let refused = budget.reserve(Level::Decode, 1, start + 50 * MS).await.expect_err("nothing comes back");
    assert_eq!(refused, Refused::Deadline);
    assert!((50 * MS..52 * MS).contains(&start.elapsed()), "{:?}", start.elapsed());
    assert_eq!((budget.usage()[Level::Decode as usize].waiting, budget.usage()[Level::Decode as usize].refused), (0, 1));
    drop(held);
}

/// What cannot be in time is refused without waiting, once the pace is known.
#[tokio::test(start_paused = true)]
async fn hopeless_waits_are_refused_at_once() {
    let budget = budget(0);
    let held = budget.try_reserve(Level::Decode, 30).expect("free");
    tokio::time::sleep(1000 * MS).await;
    drop(held);
    let _held = budget.try_reserve(Level::Decode, 30).expect("free");
    let start = Instant::now();
    let refused = budget.reserve(Level::Decode, 15, start + 400 * MS).await.expect_err("needs about 500 ms");
    assert_eq!(refused, Refused::Busy { retry_after: 500 * MS });
    assert_eq!(start.elapsed(), Duration::ZERO);
}

/// The queue is bounded.
#[tokio::test(start_paused = true)]
async fn the_queue_has_an_end() {
    let budget = budget(0);
    let held = budget.try_reserve(Level::Peek, 10).expect("free");
    let mut context = Context::from_waker(Waker::noop());
    let mut waits: Vec<_> = (0..policy::WAITERS_MAX).map(|_| Box::pin(budget.reserve(Level::Peek, 1, soon()))).collect();
    assert!(waits.iter_mut().all(|wait| wait.as_mut().poll(&mut context).is_pending()));
    assert!(budget.reserve(Level::Peek, 1, soon()).await.is_err(), "one more than fits");
    drop(waits);
    assert_eq!(budget.usage()[Level::Peek as usize].waiting, 0, "a dropped wait leaves the queue");
    drop(held);
}

/// A wait that is dropped frees whoever stood behind, and returns what was granted but never seen.
#[tokio::test(start_paused = true)]
async fn a_dropped_wait_holds_nothing() {
    let budget = budget(0);
    let mut context = Context::from_waker(Waker::noop());
    let half = budget.try_reserve(Level::Frames, 20).expect("free");
    let mut large = Box::pin(budget.reserve(Level::Frames, 40, soon()));
    let mut small = Box::pin(budget.reserve(Level::Frames, 20, soon()));
    assert!(large.as_mut().poll(&mut context).is_pending());
    assert!(small.as_mut().poll(&mut context).is_pending(), "no overtaking");
    drop(large);
    let Poll::Ready(Ok(second)) = small.as_mut().poll(&mut context) else { panic!("fits now") };
    assert_eq!(in_use(&budget)[3], 40);

    let mut third = Box::pin(budget.reserve(Level::Frames, 40, soon()));
    assert!(third.as_mut().poll(&mut context).is_pending());
    drop((half, second));
    assert_eq!(in_use(&budget)[3], 40, "granted, not yet seen");
    drop(third);
    assert_eq!(in_use(&budget), [0; 4]);
}

/// Parts of a reservation live on their own.
#[test]
fn reservations_shrink_and_split() {
    let budget = budget(0);
    let mut held = budget.try_reserve(Level::Frames, 40).expect("free");
    let part = held.split(15);
    assert_eq!((held.bytes(), part.bytes(), in_use(&budget)[3]), (25, 15, 40));
    held.shrink_to(5);
    held.shrink_to(99);
    assert_eq!((held.bytes(), in_use(&budget)[3]), (5, 20));
    drop(held);
    assert_eq!(in_use(&budget)[3], 15);
    drop(part);
    assert_eq!(in_use(&budget)[3], 0);
}

/// With `Frames` full and each of its holders needing `Decode`, and those `Read`, everything still ends: no circle.
#[tokio::test(start_paused = true)]
async fn descending_verbs_always_progress() {
    let budget = budget(25);
    let tasks: Vec<_> = (0..200)
        .map(|_| {
            let budget = budget.clone();
            tokio::spawn(async move {
                let frames = budget.reserve(Level::Frames, 40, soon()).await?;
                let decode = budget.reserve(Level::Decode, 30, soon()).await?;
                let read = budget.reserve(Level::Read, 20, soon()).await?;
                tokio::time::sleep(MS).await;
                drop((frames, decode, read));
                Ok::<(), Refused>(())
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic").expect("nobody starves");
    }
    assert_eq!((in_use(&budget), budget.shared_free()), ([0; 4], 25));
}

/// Under 10,000 random reservations, cancellations and drops: never over the limit, gauges true to a dumb model, all back to
/// zero, and nobody waits who could be served.
#[tokio::test(start_paused = true)]
async fn a_dumb_model_agrees() {
    let seed = std::env::var("FRAMECACHE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x5eed_u64);
    println!("seed {seed}");
    let mut state = seed;
    let mut random = move |below: u64| {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    };
    let budget = budget(50);
    let mut context = Context::from_waker(Waker::noop());
    type Wait = std::pin::Pin<Box<dyn Future<Output = Result<Reservation, Refused>>>>;
    let mut waits: Vec<Wait> = Vec::new();
    let mut held: Vec<Reservation> = Vec::new();
    let mut granted = 0;
    for _ in 0..10_000 {
        let level = Level::ALL[random(Level::ALL.len() as u64) as usize];
        match random(12) {
            0..=3 => {
                let (budget, deadline) = (budget.clone(), Instant::now() + MS * random(2000) as u32);
                let bytes = random(60);
                waits.push(Box::pin(async move { budget.reserve(level, bytes, deadline).await }));
            }
            4 if !waits.is_empty() => drop(waits.swap_remove(random(waits.len() as u64) as usize)),
            5..=8 if !held.is_empty() => drop(held.swap_remove(random(held.len() as u64) as usize)),
            9 if !held.is_empty() => {
                let at = random(held.len() as u64) as usize;
                let bytes = random(held[at].bytes() + 1);
                if random(2) == 0 {
                    held[at].shrink_to(bytes);
                } else {
                    let part = held[at].split(bytes);
                    held.push(part);
                }
            }
            _ => tokio::time::advance(MS * random(100) as u32).await,
        }
        // Nobody is polled at times, so that grants lie unseen and deadlines pass.
        if random(3) > 0 {
            // One that leaves at its deadline may let in another that was polled before it: until nothing changes.
            let mut before = usize::MAX;
            while waits.len() < before {
                before = waits.len();
                waits.retain_mut(|wait| match wait.as_mut().poll(&mut context) {
                    Poll::Pending => true,
                    Poll::Ready(Ok(reservation)) => {
                        granted += 1;
                        held.push(reservation);
                        false
                    }
                    Poll::Ready(Err(_)) => false,
                });
            }
            let mut model = [0; Level::ALL.len()];
            held.iter().for_each(|reservation| model[reservation.level() as usize] += reservation.bytes());
            assert_eq!(budget.usage().map(|usage| usage.in_use), model, "seed {seed}");
        }
        let usage = budget.usage();
        assert!(usage.iter().map(|level| level.in_use.saturating_sub(level.floor)).sum::<u64>() <= 50, "seed {seed}");
        let levels = budget.levels.lock();
        for level in Level::ALL {
            let front = levels[level as usize].waiters.front().map_or(u64::MAX, |front| front.bytes);
            assert!(front > budget.free(level, &levels), "{level:?} waits for what is there, seed {seed}");
        }
    }
    assert!(granted > 1000, "the test must grant: {granted}");
    drop((waits, held));
    assert_eq!((in_use(&budget), budget.shared_free()), ([0; 4], 50));
    assert_eq!(budget.usage().map(|level| level.waiting), [0; Level::ALL.len()]);
}

/// Real threads that reserve, cancel and drop lose no wakeup and no byte.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn threads_lose_nothing() {
    let budget = budget(20);
    let tasks: Vec<_> = (0..64u64)
        .map(|number| {
            let budget = budget.clone();
            tokio::spawn(async move {
                for round in 0..200u64 {
                    let level = Level::ALL[((number + round) % 4) as usize];
                    let bytes = 1 + (number * 7 + round * 3) % 10;
                    let mut wait = pin!(budget.reserve(level, bytes, Instant::now() + Duration::from_secs(60)));
                    if round % 3 == 0 {
                        let now = std::future::poll_fn(|context| Poll::Ready(wait.as_mut().poll(context))).await;
                        drop(now);
                        continue;
                    }
                    let held = wait.await.expect("a minute is enough");
                    tokio::task::yield_now().await;
                    drop(held);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    assert_eq!((in_use(&budget), budget.shared_free()), ([0; 4], 20));
    assert_eq!(budget.usage().map(|level| level.waiting), [0; Level::ALL.len()]);
}
