//! A healthy origin: ranges, credentials, listings.

use crate::*;

/// Promise: ranges are clamped to the object, from the empty object to the exact end of a page, and a first read costs one request.
#[tokio::test]
async fn ranges_meet_the_end_of_the_object() {
    let world = world(limits()).await;
    let page = PAGE_BYTES as usize;
    for size in [0, 1, page - 1, page, page + 1, 2 * page] {
        let (key, content) = (format!("k{size}"), bytes(size, 3));
        world.put(&key, &content);
        let end = size as u64;
        let page = page as u64;
        for (from, to) in [(0, page), (page, 2 * page), (end, end + 5), (end + 5, end + 9), (end / 2, u64::MAX), (3, 3)] {
            let before = world.faulty.stats();
            let fetched = world.read(&key, from, to, None).await.unwrap_or_else(|e| panic!("{size} [{from}, {to}): {e:?}"));
            let want = range(from, to).clamp(end);
            assert_eq!((fetched.size, fetched.range), (end, want), "{size} [{from}, {to})");
            assert_eq!(fetched.body, content[want.start() as usize..want.end() as usize], "{size} [{from}, {to})");
            let again = world.read(&key, from, to, Some(&fetched.version)).await.expect("pinned");
            assert_eq!(again, fetched);
            if !want.is_empty() {
                let after = world.faulty.stats();
                assert_eq!((after.requests - before.requests, after.method("HEAD")), (2, before.method("HEAD")));
            }
        }
    }
    let dev = world.dev.requests();
    assert_eq!(dev.values().sum::<u64>(), world.dev.counts().gets);
}

/// Promise: an anonymous bucket is read unsigned, one with keys signed; both in path style.
#[tokio::test]
async fn credentials_are_as_configured() {
    let world = world(limits()).await;
    world.put("deep/a b+c%.jpg", b"abc");
    let anonymous = S3Origin::new(vec![settings(world.faulty.addr(), Credentials::Anonymous)], limits()).await.expect("origin");
    let key = id("deep/a b+c%.jpg");
    assert_eq!(anonymous.read(&key, range(0, 3), None, soon()).await.expect("read").body.as_ref(), b"abc");
    assert_eq!(world.faulty.stats().signed, 0);
    assert_eq!(world.s3.read(&key, range(0, 3), None, soon()).await.expect("read").body.as_ref(), b"abc");
    let stats = world.faulty.stats();
    assert_eq!(stats.signed, 1);
    assert!(stats.counts.keys().all(|(_, key, range)| key.starts_with("deep/") && range == "bytes=0-2"), "{stats:?}");
}

/// Promise: a listing in pages is the sorted list of all keys with sizes and readable versions, whatever the page size, prefix or
/// start, also for keys that XML or URLs would bend.
#[tokio::test]
async fn listing_equals_the_sorted_keys() {
    let world = world(limits()).await;
    let mut keys: Vec<String> = (0..2500).map(|n| format!("shards/{:02}/{:04}.tar", n % 7, n * 7919 % 2500)).collect();
    keys.extend(
        [
            "a-b",
            "a/x",
            "a.b/y",
            "a0",
            "odd/a b+c.jpg",
            "odd/ü&<>\".jpg",
            "odd/tab\there",
            "odd/\u{1}",
            "odd/\u{1b}[31m",
            "shards.txt",
        ]
        .map(str::to_owned),
    );
    for key in &keys {
        world.put(key, key.as_bytes());
    }
    keys.sort_unstable();
    for (prefix, after, limit) in [
        ("", None, 1000),
        ("", None, 5000),
        ("shards/03/", None, 100),
        ("odd/", None, 1),
        ("", Some("shards/05"), 700),
        ("none", None, 9),
    ] {
        let want: Vec<&String> = keys.iter().filter(|k| k.starts_with(prefix) && after.is_none_or(|a| k.as_str() > a)).collect();
        let (mut got, mut from) = (Vec::new(), after.map(str::to_owned));
        loop {
            let page = world.s3.list(BUCKET, prefix, from.as_deref(), limit, soon()).await.expect("page");
            assert!(page.objects.len() <= limit.min(1000));
            got.extend(page.objects);
            from = page.next;
            if from.is_none() {
                break;
            }
        }
        assert_eq!(got.iter().map(|o| &o.key).collect::<Vec<_>>(), want, "prefix {prefix:?} after {after:?}");
        assert!(got.iter().all(|o| o.size == o.key.len() as u64));
        if let Some(object) = got.last() {
            let fetched = world.read(&object.key, 0, 2000, Some(&object.version)).await.expect("listed version");
            assert_eq!(fetched.body.as_ref(), object.key.as_bytes());
        }
    }
}
