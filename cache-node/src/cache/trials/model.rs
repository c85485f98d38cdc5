//! A seeded walk over the face beside a plain map: what is found is right; what is absent is allowed.

use std::collections::HashMap;

use super::*;
use crate::cache::{InsertHint, Place, Store};

/// Promise: whatever the order of inserts, replacements, removals, look-ups, flushes and restarts, no look-up gives other bytes than
/// were inserted last under that key, and none gives a version that was not asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn may_be_absent_never_wrong() {
    let seed = std::env::var("FRAMECACHE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(41);
    println!("seed {seed}");
    let mut roll = dice(seed);
    let dir = folder();
    let mut store = open(dir.path(), 40 << 20).await;
    let mut model: HashMap<u64, Entry> = HashMap::new();
    // What a key ever held: after a restart a removed or replaced entry may be back, as one of these.
    let mut ever: HashMap<u64, Vec<Entry>> = HashMap::new();
    let mut restarted = false;
    let (mut found, rounds) = (0, if soak() { 60_000 } else { 4000 });
    for round in 0..rounds {
        let n = roll() % 300;
        let key = if n.is_multiple_of(3) { frame_key(&format!("m/{n}"), 0) } else { page_key(&format!("m/{n}"), 0) };
        match roll() % 100 {
            0..45 => {
                let version = roll() % 1000;
                let entry = match n % 3 {
                    0 => frame_entry(version, 1 + (roll() % 300) as u32),
                    // Some values are cut into chunks.
                    1 if roll().is_multiple_of(40) => page_entry(version, 3 << 20),
                    _ => page_entry(version, (roll() % 200_000) as usize),
                };
                let hint = [InsertHint::Normal, InsertHint::Normal, InsertHint::As(Place::RamAndDisk)][(roll() % 3) as usize];
                ever.entry(n).or_default().push(entry.clone());
                model.insert(n, entry.clone());
                store.insert(key, entry, hint);
            }
            45..95 => {
                let wanted = model.get(&n).map(|entry| entry.head.version.clone()).filter(|_| roll().is_multiple_of(2));
                let got = store.get(&key, wanted.as_ref()).await;
                if let Some(got) = got {
                    found += 1;
                    let right = match restarted {
                        false => model.get(&n) == Some(&got),
                        true => ever.get(&n).is_some_and(|all| all.contains(&got)),
                    };
                    assert!(right, "round {round}: key {n} gave {:?}", got.head);
                    assert!(wanted.is_none_or(|wanted| wanted == got.head.version));
                }
            }
            95..98 => {
                store.remove(&key).await;
                model.remove(&n);
                assert!(store.get(&key, None).await.is_none(), "removed");
            }
            98 => store.flush().await,
            _ if roll().is_multiple_of(8) => {
                store.close().await;
                drop(store);
                store = open(dir.path(), 40 << 20).await;
                restarted = true;
            }
            _ => store.room().await,
        }
    }
    store.flush().await;
    let stats = store.stats();
    assert_eq!(stats.admitted, stats.flushed + stats.superseded, "every entry is accounted for: {stats:?}");
    println!("{found} found; {stats:?}");
    assert!(found > rounds / 5);
    assert_eq!((stats.corrupt, stats.read_errors, stats.disk_off), (0, 0, None));
    store.close().await;
}
