//! What a reader promises, one by one: each of these was once broken.

use std::sync::Arc;
use std::time::Duration;

use framecache::object::PAGE_BYTES;
use framecache::{ByteRange, DecodeSpec, Page, RouteKey, Span};
use framecache_node::budget::Level;
use framecache_node::cache::{Freshness, Store, frames, pages};
use framecache_node::read::{ReadError, Terms, Way};
use framecache_tests::media::PLAIN;
use framecache_tests::memory::fleet::Fleet;
use framecache_tests::memory::{Climate, Replied, World, id, pixels};
use framecache_tests::model::stamped;
use futures::FutureExt;
use tokio::time::{Instant, sleep};

fn world(freshness: Freshness) -> Arc<World> {
    Arc::new(World::new(Climate::calm(freshness), 1))
}

fn after_s(seconds: u64) -> Instant {
    Instant::now() + Duration::from_secs(seconds)
}

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn page(index: u64) -> ByteRange {
    ByteRange::at(index * PAGE_BYTES, 10).expect("range")
}

/// A picture of that generation.
fn picture(generation: u32) -> Vec<u8> {
    [PLAIN.file, &stamped(generation, 100)].concat()
}

async fn read(world: &World, key: &str, range: ByteRange) -> Result<Replied, ReadError> {
    let replied = world.read(key, range, None, after_s(100), Duration::ZERO).await?;
    replied.error.clone().map_or(Ok(replied), Err)
}

/// Promise: a page is fetched once, though it is asked for while the object's version is still being found out by that very fetch
/// and has just been learned from another.
#[tokio::test(start_paused = true)]
async fn a_page_on_its_way_is_waited_for() {
    let world = world(Freshness::Immutable);
    world.put("k", stamped(1, 4 * PAGE_BYTES as usize));
    let slow = async {
        world.origin.takes(50, 50);
        read(&world, "k", page(3)).await
    };
    let quick = async {
        sleep(ms(10)).await;
        world.origin.takes(5, 5);
        read(&world, "k", page(0)).await.expect("page 0");
        read(&world, "k", page(3)).await
    };
    let (slow, quick) = tokio::join!(slow, quick);
    assert_eq!(slow.expect("page 3").bytes, quick.expect("page 3").bytes);
    assert!(world.origin.answered().values().all(|times| *times == 1), "{:?}", world.origin.answered());
}

/// Promise: what is answered was true after it was asked: a request that was on its way before the object was replaced, or made,
/// is no answer to who asks afterwards.
#[tokio::test(start_paused = true)]
async fn no_answer_is_older_than_its_question() {
    let world = world(Freshness::Always);
    world.put("k", stamped(1, 10));
    read(&world, "k", page(0)).await.expect("known");
    world.origin.takes(10, 90);
    for key in ["k", "made"] {
        let early = async { read(&world, key, page(0)).await };
        let late = async {
            sleep(ms(50)).await;
            let version = world.put(key, stamped(2, 10));
            (version, read(&world, key, page(0)).await)
        };
        let (_, (version, replied)) = tokio::join!(early, late);
        assert_eq!(replied.expect("it is there").head.version, version, "{key}");
    }
}

/// Promise: an age counts from the question: a head that was long on its way is old when it comes.
#[tokio::test(start_paused = true)]
async fn heads_are_as_old_as_their_question() {
    let world = world(Freshness::MaxAge(ms(60)));
    world.put("k", stamped(1, 10));
    world.origin.takes(10, 90);
    let (_, version) = tokio::join!(read(&world, "k", page(0)), async {
        sleep(ms(20)).await;
        world.put("k", stamped(2, 10))
    });
    assert_eq!(read(&world, "k", page(0)).await.expect("read").head.version, version);
}

/// Promise: who is told `changed` and begins again gets the new object, though pages and pictures of the old one are still held.
#[tokio::test(start_paused = true)]
async fn after_changed_one_begins_anew() {
    let world = world(Freshness::Immutable);
    let spec: DecodeSpec = "image".parse().expect("spec");
    world.put("k", [picture(1), stamped(1, 2 * PAGE_BYTES as usize)].concat());
    read(&world, "k", page(0)).await.expect("held");
    world.frame("k", &spec, None, after_s(9), Duration::ZERO).await.expect("held");
    world.store.evict(&pages::key(&id("k"), Page::new(1)));
    let new = world.put("k", [picture(2), stamped(2, 2 * PAGE_BYTES as usize)].concat());
    let told = read(&world, "k", page(1)).await.expect_err("replaced");
    assert!(matches!(&told, ReadError::Changed { new: Some(told), .. } if *told == new), "{told}");
    for range in [page(0), page(1)] {
        assert_eq!(read(&world, "k", range).await.expect("anew").head.version, new);
    }
    let (head, _) = world.frame("k", &spec, None, after_s(9), Duration::ZERO).await.expect("anew");
    assert_eq!(head.version, new);
}

/// Promise: a picture of a version that is there is served, though this node last heard of an older one.
#[tokio::test(start_paused = true)]
async fn a_pin_is_newer_than_a_head() {
    let world = world(Freshness::Immutable);
    let spec: DecodeSpec = "image".parse().expect("spec");
    world.put("k", picture(1));
    world.frame("k", &spec, None, after_s(9), Duration::ZERO).await.expect("known");
    let new = world.put("k", picture(2));
    let (head, tensor) = world.frame("k", &spec, Some(&new), after_s(9), Duration::ZERO).await.expect("pinned");
    assert_eq!((head.version, tensor), (new, pixels(&picture(2), &spec)));
}

/// Promise: every call ends by its deadline, though a disk hangs. (The world itself looks at the clock.)
#[tokio::test(start_paused = true)]
async fn a_hanging_disk_holds_nobody() {
    let spec: DecodeSpec = "image".parse().expect("spec");
    for seed in 0..200 {
        let world = World::new(Climate { store_slow: 100, ..Climate::calm(Freshness::Immutable) }, seed);
        let version = world.put("k", picture(1));
        for pin in [None, Some(&version)] {
            let deadline = Instant::now() + ms(500);
            let _ = world.read("k", page(0), pin, deadline, Duration::ZERO).await;
            let _ = world.frame("k", &spec, pin, deadline, Duration::ZERO).await;
        }
    }
}

/// Promise: nobody is told that a deadline passed while there is time left: who joined a fill late gets one of his own.
#[tokio::test(start_paused = true)]
async fn no_deadline_passes_early() {
    let world = world(Freshness::Immutable);
    world.put("k", stamped(1, 10));
    world.origin.takes(3_600_000, 0);
    let first = async { read(&world, "k", page(0)).await };
    let second = async {
        sleep(Duration::from_secs(50)).await;
        world.origin.takes(5, 5);
        read(&world, "k", page(0)).await
    };
    let (first, second) = tokio::join!(first, second);
    assert!(matches!(first, Err(ReadError::Unavailable(_))), "{first:?}");
    assert_eq!(second.expect("its own").bytes.len(), 10);
}

/// Promise: nor does a picture's, whose decode another began.
#[tokio::test(start_paused = true)]
async fn no_decode_is_given_up_early() {
    let world = world(Freshness::Immutable);
    world.put("k", [PLAIN.file, &[0; 2 << 20]].concat());
    read(&world, "k", page(0)).await.expect("the first page");
    world.origin.takes(3_600_000, 0);
    let spec: DecodeSpec = "image?size=9x9".parse().expect("spec");
    let first = world.frame("k", &spec, None, after_s(200), Duration::ZERO);
    let second = async {
        sleep(Duration::from_secs(50)).await;
        world.origin.takes(5, 5);
        world.frame("k", &spec, None, after_s(200), Duration::ZERO).await
    };
    let (first, second) = tokio::join!(first, second);
    assert!(matches!(first, Err(ReadError::Unavailable(_))), "{first:?}");
    second.expect("a decode of its own");
}

/// Promise: pictures whose headers are longer than a page do not wait for each other's memory.
#[tokio::test(start_paused = true)]
async fn long_headers_do_not_starve_each_other() {
    let climate = Climate { memory: [8 << 20, 64 << 20, 1 << 20, 0], ..Climate::calm(Freshness::Immutable) };
    let world = Arc::new(World::new(climate, 1));
    // Twenty comments of 64 KiB behind the first marker (ITU T.81, B.2.4.5).
    let comment = [&[0xff, 0xfe, 0xff, 0xff][..], &[b' '; 0xfffd]].concat();
    let file = [&PLAIN.file[..2], &comment.repeat(20), &PLAIN.file[2..]].concat();
    let spec: DecodeSpec = "image".parse().expect("spec");
    let calls = (0..12).map(|index| {
        let (world, key, spec) = (world.clone(), format!("k{index}"), spec.clone());
        world.put(&key, file.clone());
        async move { world.frame(&key, &spec, None, after_s(30), Duration::ZERO).await.map(drop) }
    });
    for outcome in futures::future::join_all(calls).await {
        outcome.expect("served");
    }
}

/// Promise: a node with little memory serves what fits it, though it does not know the size before.
#[tokio::test(start_paused = true)]
async fn a_small_node_guesses_small() {
    let climate = Climate { memory: [8 << 20, 4 << 20, 1 << 20, 0], ..Climate::calm(Freshness::Immutable) };
    let world = World::new(climate, 1);
    world.put("k", picture(1));
    world.frame("k", &"image".parse().expect("spec"), None, after_s(9), Duration::ZERO).await.expect("served");
    world.end().await;
}

/// Promise: with all memory of frames taken, a decode that was begun goes on and is kept; who waits gets it once there is room.
#[tokio::test(start_paused = true)]
async fn decoding_needs_no_memory_of_frames() {
    let climate = Climate { memory: [8 << 20, 8 << 20, 1 << 20, 0], ..Climate::calm(Freshness::Immutable) };
    let world = World::new(climate, 1);
    world.origin.takes(20, 20);
    world.put("k", picture(1));
    let spec = "image".parse().expect("spec");
    let wait = world.frame("k", &spec, None, after_s(20), Duration::ZERO);
    let fill = async {
        sleep(ms(10)).await;
        // All that the waiting call has not.
        let usage = world.budget.usage()[Level::Frames as usize];
        let held = world.budget.try_reserve(Level::Frames, usage.most - usage.in_use).expect("free");
        while !world.store.presence(&frames::key(&id("k"), &spec)).await.ram {
            sleep(ms(1)).await;
        }
        drop(held);
    };
    let (served, ()) = tokio::join!(wait, tokio::time::timeout(Duration::from_secs(10), fill).map(|done| done.expect("kept")));
    served.expect("served");
    assert_eq!(world.decoder.jobs(), 1);
    world.end().await;
}

/// Promise: what a reader refuses by itself it refuses without asking the origin.
#[tokio::test(start_paused = true)]
async fn refusals_ask_nobody() {
    let world = world(Freshness::Always);
    let elsewhere = "s3://elsewhere/k".parse().expect("id");
    let told = world.reader.head(&elsewhere, Page::new(0), &Terms::until(after_s(1))).await.expect_err("bucket");
    assert_eq!(told, ReadError::NotConfigured("elsewhere".into()));
    let member = id("k.tar").with_member("a").expect("member");
    let told = world.reader.head(&member, Page::new(0), &Terms::until(after_s(1))).await.expect_err("member");
    assert!(matches!(told, ReadError::Unsupported(_)));
    assert_eq!(world.origin.requests(), 0);
}

/// Promise: where the server of a key is slow, or gone and the others do not know yet, who is to see to it by itself asks it only briefly
/// whether it holds something, and then the origin.
#[tokio::test(start_paused = true)]
async fn a_stand_in_peeks_briefly_at_the_server() {
    let fleet = Fleet::new(3, 3, 1, Climate::calm(Freshness::Immutable), None, 1);
    fleet.first.put("k", stamped(1, 10));
    let server = fleet.order(RouteKey::raw(&id("k"), Span::new(0)))[0].clone();
    let index = (0..fleet.nodes()).find(|index| server == format!("node-{index}")).expect("a node of it");
    fleet.crash(index, 3_600_000);
    fleet.cut(&[0, 1, 2].map(|from| (from, index)));
    let begun = Instant::now();
    fleet.read_from((index + 1) % 3, Way::Itself, "k", page(0), after_s(9)).await.expect("read");
    assert!(begun.elapsed() < ms(150), "after {:?}", begun.elapsed());
}

/// Promise: whoever comes to another node because the server of a key does not answer makes that node find out whether the server lives,
/// even where it holds what is asked for: those who come later do not wait for a dead one.
#[tokio::test(start_paused = true)]
async fn one_caller_finds_out_for_those_after_it() {
    let fleet = Fleet::new(3, 3, 1, Climate::calm(Freshness::Immutable), None, 1);
    let server = |key: &str| fleet.order(RouteKey::raw(&id(key), Span::new(0)))[0].clone();
    let other = (0..).map(|i| format!("k{i}")).find(|key| server(key) == server("k")).expect("of the same node");
    fleet.first.put("k", stamped(1, 10));
    fleet.first.put(&other, stamped(2, 10));
    let index = (0..fleet.nodes()).find(|index| server("k") == format!("node-{index}")).expect("a node of it");
    let stand_in = (index + 1) % 3;
    fleet.read_from(stand_in, Way::Itself, "k", page(0), after_s(9)).await.expect("read");
    fleet.crash(index, 3_600_000);
    fleet.cut(&[0, 1, 2].map(|from| (from, index)));
    fleet.read_from(stand_in, Way::Itself, "k", page(0), after_s(9)).await.expect("held");
    let begun = Instant::now();
    fleet.read_from(stand_in, Way::Server, &other, page(0), after_s(9)).await.expect("read");
    assert!(begun.elapsed() < ms(150), "after {:?}", begun.elapsed());
}

/// Promise: where a client does not reach the server of a key and another node does, that one asks it: nothing is fetched twice, though
/// it is only being fetched.
#[tokio::test(start_paused = true)]
async fn whom_a_client_does_not_reach_another_node_asks() {
    let fleet = Fleet::new(3, 3, 1, Climate::calm(Freshness::Immutable), None, 1);
    fleet.first.put("k", stamped(1, 10));
    let server = fleet.order(RouteKey::raw(&id("k"), Span::new(0)))[0].clone();
    let index = (0..fleet.nodes()).find(|index| server == format!("node-{index}")).expect("a node of it");
    fleet.first.origin.takes(400, 0);
    let own = fleet.read_from(index, Way::Server, "k", page(0), after_s(9));
    let other = async {
        sleep(ms(10)).await;
        fleet.read_from((index + 1) % 3, Way::Server, "k", page(0), after_s(9)).await
    };
    let (own, other) = tokio::join!(own, other);
    assert_eq!(own.expect("read").bytes, other.expect("read").bytes);
    assert_eq!(fleet.first.origin.requests(), 1);
}
