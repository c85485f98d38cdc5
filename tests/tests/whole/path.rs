//! The whole path of a request over QUIC: client, node, origin and decoder, and back.

use framecache::wire::{FrameAsk, FramesBody, Status, Verb};
use framecache::{Batch, ByteRange, Call, ErrorKind, Version};
use framecache_tests::harness::{Cluster, Options, id};
use framecache_tests::media::{self, PLAIN, PROGRESSIVE};
use framecache_tests::model::stamped;
use framecache_tests::wire::{self, End};

const MIB: u64 = 1 << 20;

/// Promise: any range of any object is exactly the origin's bytes, at page borders and past the end too, and an object that is
/// held is not asked for again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn raw_ranges_equal_the_file() {
    let cluster = Cluster::start(1, Options::default()).await;
    let client = cluster.client();
    for (key, length) in [("empty", 0), ("one", 1), ("page", MIB), ("page-and-one", MIB + 1), ("several", 5 * MIB / 2)] {
        let bytes = stamped(1, length as usize);
        cluster.put(key, &bytes);
        let whole = client.read(&id(key), 0, None, &Default::default()).await.expect(key);
        assert!(whole.bytes == bytes && whole.size == length, "{key}");
        for (start, count) in [(0, 1), (0, MIB), (MIB - 1, 2), (MIB, MIB), (length / 2, u64::MAX / 2), (length, 9)] {
            let asked = ByteRange::at(start, count).expect("range").clamp(length);
            match client.read(&id(key), start, Some(count), &Default::default()).await {
                Ok(raw) => {
                    assert!(start <= length, "{key}: {start} lies past the end");
                    assert!(raw.bytes == bytes[asked.start() as usize..asked.end() as usize], "{key}: {start} + {count}");
                    assert_eq!(raw.version, whole.version, "{key}");
                }
                Err(error) => assert!(error.kind == ErrorKind::OutOfRange && start > length, "{key}: {start}: {error}"),
            }
        }
        let pages = length.div_ceil(MIB).max(1);
        let repeats = cluster.origin_repeats().await;
        assert!((pages..=pages + repeats).contains(&cluster.origin_gets(key)), "{key}: {} GETs", cluster.origin_gets(key));
    }
    client.close().await;
    cluster.until_quiet(0).await;
    cluster.stop().await;
}

/// Key, contents if there are any, and the error that it must end with.
type Item = (&'static str, Option<Vec<u8>>, Option<ErrorKind>);

/// Promise: a batch gives each good picture its exact pixels and each bad item its own typed error; a bomb is refused by its
/// header alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_item_costs_itself() {
    let cluster = Cluster::start(1, Options::default()).await;
    let client = cluster.client();
    let mut loud = PLAIN.file.to_vec();
    loud.extend_from_slice(&[0; 3]);
    let items: [Item; 11] = [
        ("good-0.jpg", Some(PLAIN.file.to_vec()), None),
        ("empty.jpg", Some(Vec::new()), Some(ErrorKind::Undecodable)),
        ("zeros.jpg", Some(vec![0; 5000]), Some(ErrorKind::Undecodable)),
        ("html.jpg", Some(media::HTML.to_vec()), Some(ErrorKind::Undecodable)),
        ("good-1.jpg", Some(PROGRESSIVE.file.to_vec()), None),
        ("truncated.jpg", Some(media::truncated()), Some(ErrorKind::Undecodable)),
        ("heic.jpg", Some(media::HEIC.to_vec()), Some(ErrorKind::Unsupported)),
        ("bomb.jpg", Some(media::bomb()), Some(ErrorKind::TooLarge)),
        ("missing.jpg", None, Some(ErrorKind::NotFound)),
        ("shard.tar!/member.jpg", None, Some(ErrorKind::Unsupported)),
        ("good-2.jpg", Some(loud), None),
    ];
    for (key, bytes, _) in &items {
        bytes.iter().for_each(|bytes| cluster.put(key, bytes));
    }
    let uris = items.iter().map(|(key, ..)| format!("s3://photos/{key}").parse().expect("id"));
    let ids: Vec<framecache::ObjectId> = uris.collect();
    // Cold, then held.
    for round in 0..2 {
        let batch = Batch::new(ids.len(), MIB);
        let outcomes = client.images(&ids, &"image".parse().expect("spec"), &batch, &Default::default()).await;
        let pictures = batch.finish();
        for (index, (key, _, want)) in items.iter().enumerate() {
            let got = outcomes[index].as_ref().err();
            assert_eq!(got.map(|error| &error.kind), want.as_ref(), "{key} in round {round}: {got:?}");
            match (got, index) {
                (None, 4) => PROGRESSIVE.expect_in(&pictures, index),
                (None, _) => PLAIN.expect_in(&pictures, index),
                (Some(error), _) => assert!(error.uri.as_deref().is_some_and(|uri| uri.ends_with(key)), "{error:?}"),
            }
        }
    }
    assert_eq!(cluster.origin_gets("shard.tar"), 0, "a member was refused without a look");
    assert_eq!(cluster.node(0).pool().stats().deaths_judged + cluster.node(0).pool().stats().deaths_lost, 0);
    client.close().await;
    cluster.until_quiet(0).await;
    cluster.stop().await;
}

/// Promise: facts, listings, the view and explanations say what is there; an archive member is refused as unsupported.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_other_verbs() {
    let cluster = Cluster::start(1, Options { disk: Some("256MiB"), ..Options::default() }).await;
    let client = cluster.client();
    let call = Default::default();
    for index in 0..25 {
        cluster.put(&format!("list/{index:02}"), &vec![0; index]);
    }
    cluster.put("picture.jpg", PLAIN.file);

    let facts = client.stat(&id("picture.jpg"), &call).await.expect("stat");
    assert_eq!((facts.size, facts.media.width, facts.media.height), (PLAIN.file.len() as u64, 96, 64));
    assert_eq!(facts.media.format, "jpeg");
    assert_eq!(client.stat(&id("list/05"), &call).await.expect("stat").media.format, "");

    let mut keys = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let page = client.list("s3://photos/list/", after.as_deref(), 10, &call).await.expect("list");
        assert!(page.rows.len() <= 10);
        keys.extend(page.rows.iter().map(|row| (row.id.key().to_owned(), row.size)));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let want: Vec<(String, u64)> = (0..25).map(|index| (format!("list/{index:02}"), index)).collect();
    assert_eq!(keys, want);

    let nodes = client.nodes(&call).await.expect("view");
    assert_eq!(nodes.iter().map(|row| row.quic.clone()).collect::<Vec<_>>(), [cluster.node(0).quic.to_string()]);
    let about = client.node_status(&nodes[0], &call).await.expect("about");
    assert!(about.iter().any(|(name, value)| name == "buckets" && value == "photos"), "{about:?}");

    let line = |lines: &[(String, String)], name: &str| lines.iter().find(|(n, _)| n == name).map(|(_, value)| value.clone());
    let lines = client.explain(&id("never-read"), "", &call).await.expect("explain");
    assert_eq!(line(&lines, "flushed").as_deref(), Some("no"));
    assert_eq!(line(&lines, "last fill").as_deref(), Some("none that is remembered since the start"));
    let raw = client.read(&id("picture.jpg"), 0, None, &call).await.expect("read");
    framecache_node::cache::Store::flush(&**cluster.node(0).store()).await;
    let lines = client.explain(&id("picture.jpg"), "", &call).await.expect("explain");
    assert_eq!(line(&lines, "owner").as_deref(), Some("node-0"));
    assert_eq!(line(&lines, "version"), Some(raw.version.to_string()));
    assert_eq!(line(&lines, "flushed").as_deref(), Some("yes"), "{lines:?}");
    let filled = line(&lines, "last fill").expect("a fill");
    assert!(filled.contains(&format!("from the origin, {} bytes in ", raw.bytes.len())), "{filled}");

    let member = "s3://photos/shard.tar!/a.jpg".parse().expect("id");
    let error = client.read(&member, 0, None, &call).await.expect_err("member");
    assert_eq!(error.kind, ErrorKind::Unsupported, "{error}");
    client.close().await;
    cluster.stop().await;
}

/// Promise: what the node can refuse by itself it refuses without asking the origin, and what the origin refuses keeps its name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_do_not_reach_the_origin() {
    let policy = "[[allow]]\ncaller = \"*\"\nbucket = \"photos\"\nprefix = \"open/\"\nverbs = [\"read\", \"list\"]\n";
    let cluster = Cluster::start(1, Options { policy: Some(policy), ..Options::default() }).await;
    let client = cluster.client();
    let call = Default::default();
    cluster.put("secret/a", b"secret");
    cluster.put("open/a", b"open");
    let spec = "image".parse().expect("spec");
    for (uri, want) in [("s3://photos/secret/a", ErrorKind::Denied), ("s3://elsewhere/open/a", ErrorKind::Denied)] {
        let target: framecache::ObjectId = uri.parse().expect("id");
        assert_eq!(client.read(&target, 0, None, &call).await.expect_err(uri).kind, want);
        assert_eq!(client.stat(&target, &call).await.expect_err(uri).kind, want);
        let batch = Batch::new(1, MIB);
        assert_eq!(client.images(&[target], &spec, &batch, &call).await[0].as_ref().expect_err(uri).kind, want);
    }
    assert_eq!(client.list("s3://photos/secret/", None, 9, &call).await.expect_err("list").kind, ErrorKind::Denied);
    assert_eq!(cluster.origin.stats().requests, 0, "the origin was asked");
    assert_eq!(client.read(&id("open/a"), 0, None, &call).await.expect("open").bytes, &b"open"[..]);
    assert_eq!(client.read(&id("open/b"), 0, None, &call).await.expect_err("missing").kind, ErrorKind::NotFound);

    let open = Cluster::start(1, Options::default()).await;
    let client = open.client();
    let target = "s3://elsewhere/a".parse().expect("id");
    assert_eq!(client.read(&target, 0, None, &call).await.expect_err("bucket").kind, ErrorKind::NotConfigured);
    assert_eq!(client.list("s3://elsewhere/", None, 9, &call).await.expect_err("bucket").kind, ErrorKind::NotConfigured);
    assert_eq!(open.origin.stats().requests, 0, "the origin was asked");
    let forbidden = framecache_tests::faulty::Fault::Status(403);
    open.origin.set(framecache_tests::faulty::Rule::gets(forbidden));
    assert_eq!(client.read(&id("a"), 0, None, &call).await.expect_err("forbidden").kind, ErrorKind::Denied);
}

/// Promise: every metric there is, is on a running node's page.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_metric_is_emitted() {
    let cluster = Cluster::start(1, Options { disk: Some("256MiB"), ..Options::default() }).await;
    let page = framecache_tests::harness::http(cluster.node(0).admin, "/metrics").await;
    // A node alone has no cluster room; `fleets` looks at the metrics of nodes that have one. And where no GPU is asked for, there is none.
    let has_room = |name: &&str| !name.starts_with("framecache_cluster_") && !name.starts_with("framecache_gpu_");
    let missing: Vec<_> = framecache_node::telemetry::METRICS.iter().map(|row| row.name).filter(has_room).collect();
    let missing: Vec<_> = missing.into_iter().filter(|name| !page.lines().any(|line| is_series_of(line, name))).collect();
    assert!(missing.is_empty(), "not on the page: {missing:?}");
    cluster.stop().await;
}

/// Whether `line` is a number of that metric, its labels and a histogram's endings put aside.
fn is_series_of(line: &str, name: &str) -> bool {
    line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']) || rest.starts_with("_count"))
}

/// Promise: a read that is pinned to a version gets that version or `changed`, which names both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_names_both_versions() {
    let cluster = Cluster::start(1, Options::default()).await;
    let client = cluster.client();
    let call = Default::default();
    cluster.put("k", &stamped(1, 3 << 20));
    let old: Version = client.read(&id("k"), 0, Some(10), &call).await.expect("first").version;
    cluster.put("k", &stamped(2, 3 << 20));
    let error = client.read(&id("k"), 2 << 20, Some(10), &call).await.expect_err("replaced");
    assert_eq!(error.kind, ErrorKind::Changed, "{error}");
    let again = client.read(&id("k"), 2 << 20, Some(10), &call).await.expect("the next read is of the new one");
    assert_ne!(again.version, old);
    assert!(error.message.contains(old.as_str()) && error.message.contains(again.version.as_str()), "{error}");
    let whole = client.read(&id("k"), 0, None, &call).await.expect("whole");
    assert!(whole.bytes == stamped(2, 3 << 20));
}

/// Promise: specs of one picture that are asked for together cost one decode, give what each gives alone, and one that cannot be made
/// fails alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_decode_serves_several_specs() {
    let cluster = Cluster::start(1, Options::default()).await;
    cluster.put("together.jpg", PLAIN.file);
    cluster.put("alone.jpg", PLAIN.file);
    let specs = ["image", "image?size=20x10", "image?short=8&crop=8&flip=h", "image?box=0,0,9000,9000"];
    let item = |(index, _): (usize, &&str)| FrameAsk {
        index: index as u32,
        attempt: 0,
        spec: index as u16,
        uri: "s3://photos/together.jpg".into(),
        version: String::new(),
    };
    let connection = cluster.connect(0, 1 << 20).await;
    let mut items = Vec::new();
    // The one that cannot be made is asked for afterwards: it is not held, so that it may be looked at twice.
    for count in [3, 4] {
        let asked = &specs[..count];
        let body = FramesBody {
            specs: asked.iter().map(|spec| (*spec).to_owned()).collect(),
            items: asked.iter().enumerate().map(item).collect(),
        };
        let (found, end) = wire::say(&connection, &wire::request(Verb::Frames as u16, "", &body)).await;
        assert_eq!((found.len(), end), (count, End::Finished));
        if count == 3 {
            assert_eq!(cluster.metrics(0).await["framecache_units_total"], 1.0);
        }
        items = found;
    }
    items.sort_by_key(|(head, _)| head.index);
    let client = cluster.client();
    for (spec, (head, pixels)) in specs[..3].iter().zip(&items) {
        let batch = Batch::new(1, 1 << 20);
        client.images(&[id("alone.jpg")], &spec.parse().expect("spec"), &batch, &Default::default()).await.remove(0).expect(spec);
        let alone = batch.finish();
        assert_eq!(head.tensor.map(|tensor| tensor.shape), alone.head(0).map(|head| head.shape), "{spec}");
        assert_eq!(Some(&pixels[..]), alone.pixels(0), "{spec}");
    }
    assert_eq!(items[3].0.status, Status::Unsupported as u16, "{}", items[3].0.message);
    client.close().await;
    cluster.stop().await;
}

/// Promise: a box is drawn anew each time, since nobody asks for it twice; once its picture is held whole it is cut from that, to the
/// same pixels, and no decoder is asked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn boxes_are_cut_and_not_kept() {
    let cluster = Cluster::start(1, Options::default()).await;
    cluster.put("a.jpg", PLAIN.file);
    let client = cluster.client();
    let pixels = async |spec: &str| {
        let batch = Batch::new(1, 1 << 20);
        client.images(&[id("a.jpg")], &spec.parse().expect("spec"), &batch, &Call::default()).await.remove(0).expect(spec);
        batch.finish().pixels(0).expect("pixels").to_vec()
    };
    let units = async || cluster.metrics(0).await["framecache_units_total"];
    let boxes =
        ["image?box=3,5,40,30&size=20x20&flip=h", "image?box=0,0,33,30", "image?box=1,2,50,20&short=10&mode=gray&layout=chw"];
    let mut drawn = Vec::new();
    for spec in boxes {
        drawn.push(pixels(spec).await);
        assert_eq!(pixels(spec).await, drawn[drawn.len() - 1], "{spec}");
    }
    assert_eq!(units().await, 6.0);
    for whole in ["image", "image?mode=gray"] {
        pixels(whole).await;
    }
    for (spec, drawn) in boxes.iter().zip(&drawn) {
        assert_eq!(&pixels(spec).await, drawn, "{spec}");
        let said = client.explain(&id("a.jpg"), spec, &Call::default()).await.expect("explain");
        assert!(said.contains(&("frame".into(), "not in ram, not on disk".into())), "{said:?}");
    }
    assert_eq!(units().await, 8.0);
    client.close().await;
    cluster.stop().await;
}
