//! Faults of the origin: none gets through.

use crate::*;

/// Promise: whatever the origin does to a reply, no wrong or short object comes out; a fault that passes costs a retry and no error; no
/// error shows a credential.
#[tokio::test]
async fn no_fault_gets_through() {
    use Fault::*;
    let unavailable = |e: &OriginError| matches!(e, OriginError::Unavailable(_));
    let corrupt = |e: &OriginError| matches!(e, OriginError::Corrupt(_));
    let busy = |e: &OriginError| matches!(e, OriginError::Busy { .. });
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
    // Side by side, since some wait for what never comes.
    futures::future::join_all(table.map(|(fault, expected)| meets(fault, expected))).await;
}

/// The fault for good, then once, with and without a pin.
async fn meets(fault: Fault, expected: Check<'_>) {
    let content = bytes(300_000, 1);
    let world = world(limits()).await;
    world.put("a.jpg", &content);
    let pin = world.s3.head(&id("a.jpg"), soon()).await.expect("head").version;
    // This one is a fault for an inner range alone.
    let (start, end) = if fault == Fault::IgnoreRange { (1_000, 200_000) } else { (0, 300_000) };
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

type Check<'a> = &'a (dyn Fn(&OriginError) -> bool + Sync);

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
