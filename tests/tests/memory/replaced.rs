//! Objects that are replaced while they are read.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use framecache::object::{PAGE_BYTES, SPAN_BYTES};
use framecache::{ByteRange, DecodeSpec, Page, RouteKey, Span};
use framecache_node::cache::{Freshness, pages};
use framecache_node::read::ReadError;
use framecache_tests::dice::Dice;
use framecache_tests::media::PLAIN;
use framecache_tests::memory::fleet::Fleet;
use framecache_tests::memory::{Climate, World, id, pixels};
use framecache_tests::model::stamped;
use tokio::time::{Instant, sleep};

/// Promise: when an object is replaced between the two halves of a read, which two nodes with heads of different age answer, the
/// reader gets all of the version that the first half named, or `changed`; a thousand times over, never a mix.
#[tokio::test(start_paused = true)]
async fn two_nodes_never_mix() {
    let mut ended = [0; 3];
    for round in 0..1000 {
        let mut dice = Dice::new(round);
        let freshness = *dice.one_of(&[
            Freshness::Immutable,
            Freshness::MaxAge(Duration::from_millis(50)),
            Freshness::MaxAge(Duration::from_secs(5)),
            Freshness::Always,
        ]);
        let first = World::new(Climate::calm(freshness), round);
        let second = first.beside(round + 1);
        let half = ByteRange::at(0, PAGE_BYTES).expect("range");
        let rest = ByteRange::at(PAGE_BYTES, PAGE_BYTES / 2).expect("range");
        let soon = || Instant::now() + Duration::from_secs(10);
        // Both may know an older version, or some pages of it.
        for generation in 0..dice.within(1..4) {
            let length = 3 * PAGE_BYTES / 2;
            first.put("k", stamped(generation as u32, length as usize));
            for (world, range) in [(&first, half), (&second, half), (&second, rest)] {
                if dice.chance(50) {
                    let _ = world.read("k", range, None, soon(), Duration::ZERO).await;
                }
            }
            sleep(Duration::from_millis(dice.within(0..200))).await;
        }
        let replaced = async {
            sleep(Duration::from_millis(dice.within(0..120))).await;
            first.put("k", stamped(77, 2 * PAGE_BYTES as usize));
        };
        let read = async {
            let begun = first.read("k", half, None, soon(), Duration::ZERO).await?;
            if let Some(error) = begun.error {
                return Err(error);
            }
            let version = begun.head.version;
            first.model.expect("k", &version, half, &begun.bytes);
            let went_on = second.read("k", rest, Some(&version), soon(), Duration::ZERO).await?;
            assert_eq!(went_on.head.version, version, "seed {round}");
            first.model.expect(
                "k",
                &version,
                ByteRange::at(PAGE_BYTES, went_on.bytes.len() as u64).expect("range"),
                &went_on.bytes,
            );
            went_on.error.map_or(Ok(version), Err)
        };
        let ((), outcome) = tokio::join!(replaced, read);
        match outcome {
            Ok(version) if first.model.current("k").is_some_and(|(now, _)| now == version) => ended[0] += 1,
            Ok(_) => ended[1] += 1,
            Err(ReadError::Changed { old, new }) => {
                assert!(new.is_none_or(|new| new != old), "seed {round}");
                ended[2] += 1;
            }
            Err(other) => panic!("seed {round}: {other}"),
        }
        first.end().await;
        second.end().await;
    }
    println!("all new {}, all old {}, changed {}", ended[0], ended[1], ended[2]);
    assert!(ended.iter().all(|count| *count > 20), "the dice are loaded: {ended:?}");
}

/// Promise: a read that pins nothing and meets a replaced object before its first byte is answered by what is there now, where the
/// bucket's policy lets objects change; in a bucket that is said not to change it is told.
#[tokio::test(start_paused = true)]
async fn what_pins_nothing_begins_again() {
    let spec: DecodeSpec = "image".parse().expect("spec");
    let picture = |length: usize| [PLAIN.file, &stamped(0, length)].concat();
    for freshness in [Freshness::MaxAge(Duration::from_secs(3600)), Freshness::Immutable] {
        let told = freshness == Freshness::Immutable;
        let world = World::new(Climate::calm(freshness), 1);
        let soon = || Instant::now() + Duration::from_secs(10);
        let page = |index: u64| ByteRange::at(index * PAGE_BYTES, 9).expect("range");
        let put = |length: usize| {
            world.put("p", picture(length));
            world.put("k", stamped(length as u32, 2 * PAGE_BYTES as usize))
        };
        let old = put(1000);
        for key in ["k", "p"] {
            world.read(key, page(0), None, soon(), Duration::ZERO).await.expect("the head, and one page");
        }
        world.store.evict(&pages::key(&id("p"), Page::new(0)));
        let new = put(1001);
        // The heads are of the old versions still, and trusted.
        let raw = world.read("k", page(1), None, soon(), Duration::ZERO).await;
        let frame = world.frame("p", &spec, None, soon(), Duration::ZERO).await;
        match (raw, frame) {
            (Ok(raw), Ok((head, drawn))) if !told => {
                assert_eq!((&raw.head.version, raw.error), (&new, None));
                assert_eq!(
                    (Some(head.version), drawn),
                    (world.model.current("p").map(|(version, _)| version), pixels(&picture(1001), &spec))
                );
                world.model.expect("k", &new, page(1), &raw.bytes);
            }
            (Err(ReadError::Changed { .. }), Err(ReadError::Changed { .. })) if told => {}
            other => panic!("{freshness:?}: {other:?}"),
        }
        let pinned = world.read("k", page(1), Some(&old), soon(), Duration::ZERO).await;
        assert!(matches!(pinned, Err(ReadError::Changed { .. })), "{freshness:?}, pinned: {pinned:?}");
        world.end().await;
    }
}

/// Promise: nor does it help that another node still trusts the head of what was replaced: whoever knows better finds out by itself.
#[tokio::test(start_paused = true)]
async fn what_pins_nothing_begins_again_on_any_node() {
    let fleet = Fleet::new(3, 3, 1, Climate::calm(Freshness::MaxAge(Duration::from_secs(3600))), None, 1);
    let server = |key: &str, span: u64| fleet.order(RouteKey::raw(&id(key), Span::new(span)))[0].clone();
    let key = ["a", "b", "c", "d", "e", "f"].into_iter().find(|key| server(key, 0) != server(key, 1)).expect("one of two nodes");
    let (first, second) = (ByteRange::at(0, 9).expect("range"), ByteRange::at(SPAN_BYTES, 9).expect("range"));
    let soon = || Instant::now() + Duration::from_secs(10);
    let put = |generation| fleet.first.put(key, stamped(generation, (SPAN_BYTES + PAGE_BYTES) as usize));
    put(1);
    fleet.read(0, key, first, None, soon(), Duration::ZERO).await.expect("the head, and one page");
    let new = put(2);
    let read = fleet.read(0, key, second, None, soon(), Duration::ZERO).await.expect("what is there now");
    assert_eq!((&read.head.version, read.error), (&new, None));
    fleet.first.model.expect(key, &new, second, &read.bytes);
    fleet.end().await;
}

/// Promise: when an object of four spans is replaced while a client reads each of them from another node, it gets all of the version that
/// the first one named, or `changed`; a thousand times over, never a mix.
#[tokio::test(start_paused = true)]
async fn spans_of_four_nodes_never_mix() {
    const SPANS: u64 = 4;
    let length = SPANS * SPAN_BYTES;
    // Two contents, each told from the other in every eighth byte; each round's version has a name of its own.
    let contents = [1, 2].map(|generation| Bytes::from(stamped(generation, length as usize)));
    let mut ended = [0; 3];
    for round in 0..1000u64 {
        let mut dice = Dice::new(round);
        let freshness = *dice.one_of(&[Freshness::Immutable, Freshness::MaxAge(Duration::from_millis(50)), Freshness::Always]);
        let fleet = Fleet::new(5, 5, 1, Climate::calm(freshness), None, round);
        let key = owned_apart(&fleet, SPANS);
        fleet.first.put(&key, contents[0].clone());
        let soon = || Instant::now() + Duration::from_secs(10);
        let part = |span: u64, at: u64| ByteRange::at(span * SPAN_BYTES + at * PAGE_BYTES, PAGE_BYTES + 9).expect("range");
        let at = dice.within(0..8);
        // Some of it may be held, of this version.
        for span in (0..SPANS).filter(|_| dice.chance(30)).collect::<Vec<_>>() {
            fleet.read(0, &key, part(span, at), None, soon(), Duration::ZERO).await.expect("warm");
        }
        let delay = dice.within(0..400);
        let replaced = async {
            sleep(Duration::from_millis(delay)).await;
            fleet.first.put(&key, contents[1].clone());
        };
        let read = async {
            let mut pin = None;
            for span in 0..SPANS {
                let raw = fleet.read(0, &key, part(span, at), pin.as_ref(), soon(), Duration::ZERO).await?;
                let version = pin.get_or_insert_with(|| raw.head.version.clone());
                assert_eq!(raw.head.version, *version, "seed {round}");
                fleet.first.model.expect(
                    &key,
                    version,
                    ByteRange::at(part(span, at).start(), raw.bytes.len() as u64).expect("range"),
                    &raw.bytes,
                );
                raw.error.map_or(Ok(()), Err)?;
                assert_eq!(raw.bytes.len() as u64, part(span, at).len(), "seed {round}");
            }
            Ok(pin.expect("a version"))
        };
        let ((), outcome) = tokio::join!(replaced, read);
        match outcome {
            Ok(version) if fleet.first.model.current(&key).is_some_and(|(now, _)| now == version) => ended[0] += 1,
            Ok(_) => ended[1] += 1,
            Err(ReadError::Changed { .. }) => ended[2] += 1,
            Err(other) => panic!("seed {round}: {other}"),
        }
        fleet.end().await;
    }
    println!("all new {}, all old {}, changed {}", ended[0], ended[1], ended[2]);
    assert!(ended.iter().all(|count| *count > 20), "the dice are loaded: {ended:?}");
}

/// A key each of whose spans another node of the fleet serves.
fn owned_apart(fleet: &Fleet, spans: u64) -> String {
    let apart = |key: &String| {
        let owners: BTreeSet<String> =
            (0..spans).filter_map(|span| fleet.order(RouteKey::raw(&id(key), Span::new(span))).into_iter().next()).collect();
        owners.len() as u64 == spans
    };
    (0..).map(|number| format!("k{number}")).find(apart).expect("some key")
}
