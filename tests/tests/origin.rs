//! The origin room against the folder origin, healthy and faulty.

use std::future::pending;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use framecache::object::PAGE_BYTES;
use framecache::{ByteRange, ObjectId, Version};
use framecache_node::dev::origin::FolderOrigin;
use framecache_node::origin::{
    Credentials, Fetched, Origin, OriginError, OriginLimits, OriginSettings, S3Origin, Secret, StaticKey,
};
use framecache_tests::faulty::{Fault, FaultyOrigin, Rule, Script};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

const BUCKET: &str = "photos";
const MARKER: &str = "marker5ecret";

/// A folder, its S3 face, a proxy that fails on demand, and the room under test before it.
struct World {
    folder: TempDir,
    dev: FolderOrigin,
    dev_addr: SocketAddr,
    faulty: FaultyOrigin,
    s3: S3Origin,
    server: AbortHandle,
}

impl Drop for World {
    fn drop(&mut self) {
        self.server.abort();
    }
}

fn limits() -> OriginLimits {
    OriginLimits {
        attempts: 3,
        first_byte: Duration::from_millis(400),
        idle: Duration::from_millis(400),
        seed: Some(17),
        ..OriginLimits::default()
    }
}

fn settings(addr: SocketAddr, credentials: Credentials) -> OriginSettings {
    let endpoint = Some(format!("http://{addr}"));
    OriginSettings { name: BUCKET.into(), endpoint, region: None, path_style: true, credentials }
}

async fn world(limits: OriginLimits) -> World {
    let folder = tempfile::tempdir().expect("folder");
    let dev = FolderOrigin::open(folder.path(), BUCKET).expect("open");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("listen");
    let dev_addr = listener.local_addr().expect("address");
    let server = tokio::spawn(dev.clone().serve(listener, pending())).abort_handle();
    let faulty = FaultyOrigin::start(dev_addr, Script::default()).await.expect("proxy");
    let key = StaticKey { access_key_id: Secret::new("AKIDmarker5ecret"), secret_access_key: Secret::new(MARKER) };
    let s3 = S3Origin::new(vec![settings(faulty.addr(), Credentials::Static(key))], limits).await.expect("origin");
    World { folder, dev, dev_addr, faulty, s3, server }
}

impl World {
    fn put(&self, key: &str, bytes: &[u8]) {
        put(self.folder.path(), key, bytes);
    }

    async fn read(&self, key: &str, start: u64, end: u64, pin: Option<&Version>) -> Result<Fetched, OriginError> {
        self.s3.read(&id(key), range(start, end), pin, soon()).await
    }
}

/// Whole or not at all, under a new inode, as a careful writer replaces a file.
fn put(folder: &Path, key: &str, bytes: &[u8]) {
    let path = folder.join(key);
    std::fs::create_dir_all(path.parent().expect("parent")).expect("folders");
    let fresh = path.with_extension("fresh");
    std::fs::write(&fresh, bytes).expect("write");
    std::fs::rename(fresh, path).expect("rename");
}

fn id(key: &str) -> ObjectId {
    ObjectId::new(BUCKET, key).expect("id")
}

fn range(start: u64, end: u64) -> ByteRange {
    ByteRange::new(start, end).expect("range")
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

/// Bytes that tell where they are from.
fn bytes(len: usize, seed: u32) -> Vec<u8> {
    (0..len as u32).map(|n| (n.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as u8).collect()
}

/// Promise: whatever the origin does to a reply, no wrong or short object comes out; a fault that passes costs a retry and no error; no
/// error shows a credential.
#[tokio::test]
async fn no_fault_gets_through() {
    use Fault::*;
    let content = bytes(300_000, 1);
    let unavailable = |e: &OriginError| matches!(e, OriginError::Unavailable(_));
    let corrupt = |e: &OriginError| matches!(e, OriginError::Corrupt(_));
    let busy = |e: &OriginError| matches!(e, OriginError::Busy { .. });
    type Check<'a> = &'a (dyn Fn(&OriginError) -> bool + Sync);
    let table: [(Fault, Check<'_>); 18] = [
        (Status(500), &unavailable),
        (Status(502), &unavailable),
        (Status(504), &unavailable),
        (SlowDown(None), &busy),
        (ResetMidBody(0), &unavailable),
        (ResetMidBody(40_000), &unavailable),
        (CloseMidBody(40_000), &unavailable),
        (Stall(Duration::from_secs(60)), &unavailable),
        (HangUntilDropped, &unavailable),
        (ShortBody200, &corrupt),
        (ShortChunked, &corrupt),
        (LongBody, &corrupt),
        (LongLength, &corrupt),
        (WrongContentRange, &corrupt),
        (NoEtag, &corrupt),
        (ContentEncodingGzip, &corrupt),
        (XmlErrorWith200, &corrupt),
        (IgnoreRange, &corrupt),
    ];
    for (fault, expected) in table {
        let world = world(limits()).await;
        world.put("a.jpg", &content);
        let pin = world.s3.head(&id("a.jpg"), soon()).await.expect("head").version;
        // The last needs an inner range, the others meet whole objects, too.
        let (start, end) = if fault == IgnoreRange { (1_000, 200_000) } else { (0, 300_000) };
        for pin in [None, Some(&pin)] {
            world.faulty.set(Rule::gets(fault.clone()));
            let before = world.s3.stats().snapshot();
            let error = world.read("a.jpg", start, end, pin).await.expect_err("fault");
            assert!(expected(&error), "{fault:?}: {error:?}");
            let shown = format!("{error} {error:?}");
            assert!(!shown.contains("marker"), "{shown}");
            let after = world.s3.stats().snapshot();
            assert_eq!(after.retries - before.retries, 2, "{fault:?}: three attempts");

            world.faulty.set(Rule::first(1, fault.clone()));
            let fetched = world.read("a.jpg", start, end, pin).await.unwrap_or_else(|e| panic!("{fault:?}: {e:?}"));
            assert_eq!(fetched.body, content[start as usize..end as usize], "{fault:?}");
            assert_eq!((fetched.size, fetched.range), (300_000, range(start, end)));
        }
        assert_eq!(world.s3.stats().snapshot().in_flight, 0, "{fault:?}");
    }
}

/// Promise: under a random mix of all faults each answer is right or an error, and retries stay in their budget.
#[tokio::test]
async fn chaos_yields_no_wrong_byte() {
    let world = world(OriginLimits { retry_budget: 40.0, concurrency: 8, ..limits() }).await;
    let content = bytes(200_000, 2);
    world.put("a", &content);
    let version = world.s3.head(&id("a"), soon()).await.expect("head").version;
    let faults = [
        Fault::Status(500),
        Fault::ResetMidBody(1000),
        Fault::CloseMidBody(100),
        Fault::ShortBody200,
        Fault::ShortChunked,
        Fault::LongBody,
        Fault::WrongContentRange,
        Fault::EtagChange,
        Fault::ContentEncodingGzip,
        Fault::XmlErrorWith200,
    ];
    let rules = faults.into_iter().map(|fault| Rule { chance: 0.04, ..Rule::gets(fault) }).collect();
    world.faulty.set(Script { seed: 99, rules });
    let reads = (0..200u64).map(|n| {
        let (start, end) = (n * 997 % 200_000, (n * 997 % 200_000 + 1 + n * 331 % 50_000).min(200_000));
        let (world, pin) = (&world, (n % 2 == 0).then_some(&version));
        async move { (start, end, world.read("a", start, end, pin).await) }
    });
    let mut right = 0;
    for (start, end, result) in futures::future::join_all(reads).await {
        match result {
            Ok(fetched) if fetched.version == version => {
                assert_eq!(fetched.body, content[start as usize..end as usize], "[{start}, {end})");
                right += 1;
            }
            // An unpinned read cannot know that an etag is made up; its bytes belong to what it names.
            Ok(fetched) => assert_eq!(fetched.version.as_str(), "\"another\""),
            Err(OriginError::Changed { .. } | OriginError::Unavailable(_) | OriginError::Corrupt(_)) => {}
            Err(other) => panic!("{other:?}"),
        }
    }
    let stats = world.s3.stats().snapshot();
    assert!(right >= 150, "{right} of 200: {stats:?}");
    assert!(stats.retries as f64 <= 40.0 + 0.1 * 200.0, "{stats:?}");
}

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

/// Promise: no redirect is followed, wherever it points; the error names the region that the origin states; it is asked once.
#[tokio::test]
async fn redirect_is_refused() {
    let world = world(limits()).await;
    world.put("a", b"abc");
    let trap = FaultyOrigin::start(world.dev_addr, Script::default()).await.expect("trap");
    for to in [format!("http://{}/photos/a", trap.addr()), "http://169.254.169.254/latest/meta-data/".into()] {
        world.faulty.set(Rule::gets(Fault::Redirect(to)));
        assert_eq!(world.read("a", 0, 3, None).await, Err(OriginError::Redirect { region: None }));
    }
    world.faulty.set(Rule { method: None, ..Rule::gets(Fault::WrongRegion("eu-west-1".into())) });
    let region = || Some("eu-west-1".to_owned());
    assert_eq!(world.read("a", 0, 3, None).await, Err(OriginError::Redirect { region: region() }));
    assert_eq!(world.s3.head(&id("a"), soon()).await, Err(OriginError::Redirect { region: region() }));
    let list = world.s3.list(BUCKET, "", None, 10, soon()).await;
    assert_eq!(list, Err(OriginError::Redirect { region: region() }));
    assert_eq!(trap.stats().requests, 0);
    assert_eq!(world.faulty.stats().requests, 5);
}

/// Promise: "not found" and "denied" are final, asked once, and never mistaken for each other; an unknown bucket asks nobody.
#[tokio::test]
async fn absent_and_denied_are_final_and_apart() {
    let world = world(limits()).await;
    world.put("a", b"abc");
    assert_eq!(world.read("absent", 0, 3, None).await, Err(OriginError::NotFound));
    assert_eq!(world.s3.head(&id("absent"), soon()).await, Err(OriginError::NotFound));
    world.faulty.set(Rule { method: None, ..Rule::gets(Fault::Status(403)) });
    assert_eq!(world.read("a", 0, 3, None).await, Err(OriginError::Denied));
    assert_eq!(world.s3.head(&id("a"), soon()).await, Err(OriginError::Denied));
    assert_eq!(world.faulty.stats().requests, 4);
    let other = ObjectId::new("other", "a").expect("id");
    assert_eq!(world.s3.read(&other, range(0, 1), None, soon()).await, Err(OriginError::NotConfigured("other".into())));
    assert!(world.s3.knows(BUCKET) && !world.s3.knows("other"));
    let stats = world.s3.stats().snapshot();
    assert_eq!((stats.errors_not_found, stats.errors_denied, stats.errors_invalid, stats.retries), (2, 2, 1, 0));
}

/// Promise: a pinned read of a replaced object names both versions and returns no byte; the new version reads as itself; an origin that
/// overlooks If-Match is caught by its etag.
#[tokio::test]
async fn replaced_object_names_both_versions() {
    let world = world(limits()).await;
    world.put("a", b"first");
    let first = world.read("a", 0, 10, None).await.expect("first");
    world.put("a", b"second!");
    let second = world.s3.head(&id("a"), soon()).await.expect("head");
    assert_ne!(first.version, second.version);
    let changed = world.read("a", 0, 10, Some(&first.version)).await;
    assert_eq!(changed, Err(OriginError::Changed { old: first.version.clone(), new: Some(second.version.clone()) }));
    let fetched = world.read("a", 0, 10, Some(&second.version)).await.expect("second");
    assert_eq!((fetched.body.as_ref(), fetched.size, &fetched.version), (b"second!".as_slice(), 7, &second.version));
    world.faulty.set(Rule::gets(Fault::EtagChange));
    let changed = world.read("a", 0, 10, Some(&second.version)).await;
    let another = Version::new("\"another\"").expect("version");
    assert_eq!(changed, Err(OriginError::Changed { old: second.version, new: Some(another) }));
    assert_eq!(world.s3.stats().snapshot().retries, 0);
}

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

/// Promise: a server that ignores ranges is believed only where the whole object was asked and its head agrees.
#[tokio::test]
async fn whole_objects_are_confirmed() {
    let world = world(limits()).await;
    let content = bytes(5000, 4);
    world.put("a", &content);
    world.faulty.set(Rule::gets(Fault::IgnoreRange));
    let fetched = world.read("a", 0, 8000, None).await.expect("whole");
    assert_eq!((fetched.body.as_ref(), fetched.size), (content.as_slice(), 5000));
    assert_eq!(world.faulty.stats().method("HEAD"), 1);
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
    timeout(30 * second, world.faulty.asked(asked + 200)).await.expect("recovery");
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
        ["a-b", "a/x", "a.b/y", "a0", "odd/a b+c.jpg", "odd/ü&<>\".jpg", "odd/tab\there", "shards.txt"].map(str::to_owned),
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

/// Promise: no key, however it is spelt, reads outside the folder.
#[tokio::test]
async fn traversal_is_refused() {
    let world = world(limits()).await;
    world.put("sub/a", b"abc");
    let parent = world.folder.path().parent().expect("parent");
    let outside = tempfile::Builder::new().prefix("secret").tempfile_in(parent).expect("file");
    let name = outside.path().file_name().and_then(|n| n.to_str()).expect("name").to_owned();
    std::os::unix::fs::symlink(outside.path(), world.folder.path().join("link")).expect("link");
    for key in
        [format!("../{name}"), format!("sub/../../{name}"), outside.path().display().to_string(), "link".into(), "sub".into()]
    {
        assert_eq!(world.read(&key, 0, 9, None).await, Err(OriginError::NotFound), "{key}");
    }
    for path in [
        "/photos/%2e%2e/etc/passwd",
        "/photos/..%2f..%2fetc%2fpasswd",
        "/photos//etc/passwd",
        "/photos/sub%00/a",
        "/photos/%2Fetc/passwd",
    ] {
        let (status, _) = raw(world.dev_addr, "GET", path, "").await;
        assert_eq!(status, 404, "{path}");
    }
}

/// Promise: conditions are answered from the descriptor whose bytes would be sent; what this face cannot do it says.
#[tokio::test]
async fn conditions_are_answered() {
    let world = world(limits()).await;
    world.put("a", b"abc");
    let etag = world.s3.head(&id("a"), soon()).await.expect("head").version;
    for (method, path, headers, want) in [
        ("GET", "/photos/a", format!("if-match: {etag}\r\n"), 200),
        ("GET", "/photos/a", "if-match: \"other\"\r\n".into(), 412),
        ("GET", "/photos/a", "if-match: *\r\n".into(), 200),
        ("HEAD", "/photos/a", "if-match: \"other\"\r\n".into(), 412),
        ("GET", "/photos/a", format!("if-none-match: {etag}\r\n"), 304),
        ("HEAD", "/photos/a", format!("if-none-match: {etag}\r\n"), 304),
        ("GET", "/photos/a", "if-none-match: \"other\"\r\n".into(), 200),
        ("GET", "/photos/a", "range: bytes=0-0\r\n".into(), 206),
        ("GET", "/photos/a", "range: bytes=3-9\r\n".into(), 416),
        ("GET", "/photos/a", "range: bytes=-2\r\n".into(), 206),
        ("GET", "/other/a", String::new(), 404),
        ("GET", "/", String::new(), 200),
        ("HEAD", "/photos", String::new(), 200),
        ("PUT", "/photos/a", "content-length: 0\r\n".into(), 501),
        ("DELETE", "/photos/a", String::new(), 501),
    ] {
        let (status, text) = raw(world.dev_addr, method, path, &headers).await;
        assert_eq!(status, want, "{method} {path} {headers} -> {text}");
    }
    assert_eq!(std::fs::read(world.folder.path().join("a")).expect("file"), b"abc");
}

/// Promise: with a delimiter, keys below it are folded into one prefix each, pages included.
#[tokio::test]
async fn delimiter_folds_keys() {
    let world = world(limits()).await;
    for key in ["a/1", "a/2", "b", "c/d/1", "c/d/2", "c/e", "d"] {
        world.put(key, b"x");
    }
    std::fs::create_dir(world.folder.path().join("empty")).expect("folder");
    let mut query = "/photos?list-type=2&delimiter=%2F&max-keys=2".to_owned();
    let mut seen = Vec::new();
    loop {
        let (status, text) = raw(world.dev_addr, "GET", &query, "").await;
        assert_eq!(status, 200);
        let tags = |tag: &str| -> Vec<String> {
            let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
            text.split(&open).skip(1).filter_map(|t| t.split(&close).next()).map(str::to_owned).collect()
        };
        let folded: Vec<String> =
            tags("CommonPrefixes").iter().map(|t| t.replace("<Prefix>", "").replace("</Prefix>", "")).collect();
        seen.extend(tags("Key").into_iter().chain(folded));
        match tags("NextContinuationToken").first() {
            Some(token) => query = format!("/photos?list-type=2&delimiter=%2F&max-keys=2&continuation-token={token}"),
            None => break,
        }
    }
    seen.sort_unstable();
    assert_eq!(seen, ["a/", "b", "c/", "d"]);
}

/// Promise: a file that is replaced in mid-body goes on as it was; one that is cut short breaks the connection and is never padded.
#[tokio::test]
async fn body_is_whole_or_broken() {
    const SIZE: u64 = 64 << 20;
    for cut in [false, true] {
        let world = world(limits()).await;
        let path = world.folder.path().join("big");
        let file = std::fs::File::create(&path).expect("file");
        file.set_len(SIZE).expect("size");
        let mut socket = TcpStream::connect(world.dev_addr).await.expect("connect");
        socket.write_all(b"GET /photos/big HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.expect("ask");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(socket.read_u8().await.expect("head"));
        }
        if cut {
            file.set_len(SIZE / 2).expect("cut");
        } else {
            world.put("big", b"new");
        }
        let mut body = Vec::new();
        let ended = socket.read_to_end(&mut body).await;
        if cut {
            assert!((body.len() as u64) <= SIZE / 2, "{} bytes", body.len());
        } else {
            ended.expect("whole");
            assert_eq!(body.len() as u64, SIZE);
        }
    }
}

/// Status and all text of one plain request.
async fn raw(addr: SocketAddr, method: &str, path: &str, headers: &str) -> (u16, String) {
    let mut socket = TcpStream::connect(addr).await.expect("connect");
    let request = format!("{method} {path} HTTP/1.1\r\nhost: {addr}\r\nconnection: close\r\n{headers}\r\n");
    socket.write_all(request.as_bytes()).await.expect("ask");
    let mut text = Vec::new();
    socket.read_to_end(&mut text).await.expect("answer");
    let text = String::from_utf8_lossy(&text).into_owned();
    let status = text.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("status");
    (status, text)
}
