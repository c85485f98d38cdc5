//! A cluster that is lost as a whole, before a client that may read its origin.

use std::sync::Arc;
use std::time::Duration;

use aws_sdk_s3::config::{BehaviorVersion, Region};
use framecache::fallback::Fallback;
use framecache::origin::S3;
use framecache::{Call, Client, ErrorKind};
use framecache_tests::harness::{Cluster, Options, id};

/// Promise: raw reads go on from S3 when the last node is gone, byte for byte and of the same version, with S3's own refusals; and while
/// a node is there, none of them does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_outlast_the_cluster() {
    let mut cluster = Cluster::start(1, Options::default()).await;
    let bytes: Vec<u8> = (0..20_000_000u32).map(|at| (at % 253) as u8).collect();
    cluster.put("a", &bytes);
    cluster.put("none", b"");
    let s3 = aws_sdk_s3::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .endpoint_url(format!("http://{}", cluster.origin.addr()))
        .force_path_style(true)
        .build();
    let mut config = cluster.client().config().clone();
    let origin = Arc::new(S3::new(aws_sdk_s3::Client::from_conf(s3)));
    config.fallback = Some(Fallback { origin, bytes_per_second: 1 << 30 });
    let client = Client::new(config).expect("client");
    let call = Call { timeout: Some(Duration::from_secs(60)), ..Call::default() };

    let served = client.read(&id("a"), 5, None, &call).await.expect("by the node");
    assert_eq!(client.read(&id("gone"), 0, None, &call).await.expect_err("nothing").kind, ErrorKind::NotFound);
    assert_eq!((client.stats().fallbacks, &served.bytes[..]), (0, &bytes[5..]));

    cluster.stop_last().await;
    let past = client.read(&id("a"), 5, None, &call).await.expect("by S3");
    assert!(past.bytes == served.bytes, "the same bytes");
    assert_eq!((&past.version, past.size), (&served.version, bytes.len() as u64));
    assert_eq!(client.stats().fallback_bytes, past.bytes.len() as u64);
    assert_eq!(client.read(&id("none"), 0, None, &call).await.expect("no bytes").bytes.len(), 0);
    for (key, start, want) in [("gone", 0, ErrorKind::NotFound), ("a", 20_000_000, ErrorKind::OutOfRange)] {
        assert_eq!(client.read(&id(key), start, Some(5), &call).await.expect_err(key).kind, want, "{key}");
    }
}
