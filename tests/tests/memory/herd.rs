//! Many who ask for the same at once.

use std::sync::Arc;
use std::time::Duration;

use framecache::ByteRange;
use framecache::object::PAGE_BYTES;
use framecache_node::cache::Freshness;
use framecache_tests::dice::Dice;
use framecache_tests::media::PLAIN;
use framecache_tests::memory::{Climate, World};
use framecache_tests::model::stamped;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// Promise: a thousand who read a cold object, a little apart from each other, cause one origin request a page under any policy,
/// and two thousand who ask for a cold picture, by two specs, two decodes.
#[tokio::test(start_paused = true)]
async fn a_herd_costs_one_fill_each() {
    for freshness in [Freshness::Immutable, Freshness::MaxAge(Duration::from_millis(20)), Freshness::Always] {
        let world = Arc::new(World::new(Climate { origin_ms_max: 200, ..Climate::calm(freshness) }, 11));
        let bytes = stamped(1, 17 * PAGE_BYTES as usize / 2);
        let (size, mut dice) = (bytes.len() as u64, Dice::new(12));
        let version = world.put("large", bytes);
        world.put("picture", PLAIN.file);
        let mut calls = JoinSet::new();
        for call in 0..3000 {
            let (world, version, mut dice) = (world.clone(), version.clone(), dice.fork());
            calls.spawn(async move {
                sleep(Duration::from_millis(dice.within(0..150))).await;
                let deadline = Instant::now() + Duration::from_secs(20);
                if call >= 1000 {
                    let spec = ["image?size=16x12", "image"][call % 2].parse().expect("spec");
                    return drop(world.frame("picture", &spec, None, deadline, Duration::ZERO).await.expect("picture"));
                }
                let range = ByteRange::at(dice.within(0..size - 65_536), 65_536).expect("range");
                let replied = world.read("large", range, None, deadline, Duration::ZERO).await.expect("head");
                assert_eq!(replied.error, None);
                world.model.expect("large", &version, range, &replied.bytes);
            });
        }
        while let Some(ended) = calls.join_next().await {
            ended.expect("call");
        }
        let answered = world.origin.answered();
        assert_eq!(answered.len(), 9 + 1);
        assert!(answered.values().all(|times| *times == 1), "{freshness:?}: {answered:?}");
        assert_eq!(world.decoder.jobs(), 2, "{freshness:?}");
        world.end().await;
    }
}
