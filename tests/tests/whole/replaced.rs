//! Objects that are replaced while they are read, over QUIC.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use framecache::ErrorKind;
use framecache_tests::dice::Dice;
use framecache_tests::harness::{Cluster, Options, id};
use framecache_tests::model::stamped;

const LENGTH: usize = 7 << 19;

/// Promise: whoever reads an object while it is replaced gets all of one version or `changed`, whatever the bucket's policy, and
/// a version never names other bytes than before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_are_of_one_version() {
    for freshness in ["always", "immutable"] {
        let cluster = Cluster::start(1, Options { freshness, ..Options::default() }).await;
        let client = cluster.client();
        let (generation, done) = (AtomicU32::new(0), AtomicBool::new(false));
        cluster.put("k", &stamped(0, LENGTH));
        let writes = async {
            let mut dice = Dice::new(3);
            while !done.load(Ordering::Relaxed) {
                let next = generation.load(Ordering::Relaxed) + 1;
                cluster.put("k", &stamped(next % 250, LENGTH));
                generation.store(next, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(dice.within(1..20))).await;
            }
        };
        let reads = async {
            let (mut whole, mut changed) = (0, 0);
            let mut names = std::collections::HashMap::new();
            while whole + changed < 100 {
                match client.read(&id("k"), 0, None, &Default::default()).await {
                    Ok(raw) => {
                        let held = stamped(u32::from(raw.bytes[0]), LENGTH);
                        assert!(raw.bytes == held, "{freshness}: a mix of versions");
                        let named = *names.entry(raw.version.to_string()).or_insert(raw.bytes[0]);
                        assert_eq!(named, raw.bytes[0], "{freshness}: one version, two contents");
                        whole += 1;
                    }
                    Err(error) => {
                        assert_eq!(error.kind, ErrorKind::Changed, "{freshness}: {error}");
                        changed += 1;
                    }
                }
            }
            done.store(true, Ordering::Relaxed);
            (whole, changed)
        };
        let ((), (whole, changed)) = tokio::join!(writes, reads);
        println!("{freshness}: {whole} whole, {changed} changed, {} generations", generation.load(Ordering::Relaxed));
        client.close().await;
        cluster.until_quiet(0).await;
        cluster.stop().await;
    }
}
