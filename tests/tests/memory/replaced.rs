//! Objects that are replaced while they are read.

use std::time::Duration;

use framecache::ByteRange;
use framecache::object::PAGE_BYTES;
use framecache_node::cache::Freshness;
use framecache_node::read::ReadError;
use framecache_tests::dice::Dice;
use framecache_tests::memory::{Climate, World};
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
