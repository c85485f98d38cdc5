//! Raw reads where no node can be reached.

use futures::FutureExt;
use futures::future::BoxFuture;

use super::*;
use crate::error::Error;
use crate::fallback::{Fallback, Origin, PIECE_BYTES, Part};
use crate::object::{ByteRange, SPAN_BYTES, Version};

/// An object of known bytes, which is replaced after so many reads.
#[derive(Debug)]
struct Known {
    size: u64,
    replaced_after: usize,
    reads: AtomicUsize,
}

fn byte(at: u64) -> u8 {
    (at % 251) as u8
}

impl Origin for Known {
    fn read<'a>(&'a self, _: &'a ObjectId, range: ByteRange, pin: Option<&'a Version>) -> BoxFuture<'a, Result<Part, Error>> {
        assert!(!range.is_empty() && range.len() <= PIECE_BYTES, "{range:?}");
        let read = self.reads.fetch_add(1, Ordering::Relaxed);
        let version = Version::new(if read < self.replaced_after { "old" } else { "new" }).expect("version");
        async move {
            if pin.is_some_and(|pin| *pin != version) {
                return Err(Error::new(ErrorKind::Changed, "replaced"));
            }
            let range = range.clamp(self.size);
            Ok(Part { bytes: (range.start()..range.end()).map(byte).collect(), size: self.size, version })
        }
        .boxed()
    }
}

fn object(size: u64, replaced_after: usize) -> Arc<Known> {
    Arc::new(Known { size, replaced_after, reads: AtomicUsize::new(0) })
}

/// A client of a node that is not there, which may read `origin`.
fn alone(origin: &Arc<Known>, bytes_per_second: u64) -> Client {
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").expect("socket");
    let mut config = ClientConfig::new(&silent.local_addr().expect("address").to_string());
    config.tls = Authority::new().trust();
    config.fallback = Some(Fallback { origin: origin.clone(), bytes_per_second });
    Client::new(config).expect("client")
}

fn within(seconds: u64) -> Call {
    Call { timeout: Some(Duration::from_secs(seconds)), ..Call::default() }
}

fn id() -> ObjectId {
    "s3://photos/a".parse().expect("id")
}

/// Promise: with no node there, raw bytes come from the origin, over spans and pieces, each time counted; and of one version.
#[tokio::test]
async fn raw_bytes_come_from_the_origin_when_no_node_is_there() {
    let origin = object(SPAN_BYTES + 5_000_000, usize::MAX);
    let client = alone(&origin, 1 << 30);
    let start = SPAN_BYTES - 20_000_000;
    let raw = client.read(&id(), start, None, &within(60)).await.expect("the origin's bytes");
    assert_eq!((raw.start, raw.size, raw.version.as_str()), (start, origin.size, "old"));
    assert_eq!(raw.bytes.len(), 25_000_000);
    assert!(raw.bytes.iter().zip(start..).all(|(&got, at)| got == byte(at)));
    let stats = client.stats();
    assert_eq!((stats.fallbacks, stats.fallback_bytes), (4, 25_000_000));

    let replaced = object(SPAN_BYTES, 2);
    let error = alone(&replaced, 1 << 30).read(&id(), 0, None, &within(60)).await.expect_err("two versions");
    assert_eq!(error.kind, ErrorKind::Changed);
}

/// Promise: beyond its budget a client leaves the origin alone, and goes on trying the cluster until its deadline.
#[tokio::test]
async fn the_origin_is_read_within_the_budget() {
    let origin = object(SPAN_BYTES, usize::MAX);
    let client = alone(&origin, 1);
    let error = client.read(&id(), 0, None, &within(12)).await.expect_err("more than the budget");
    assert!(matches!(error.kind, ErrorKind::Unavailable | ErrorKind::Timeout), "{error}");
    assert_eq!(client.stats().fallback_bytes, PIECE_BYTES);
}

/// Promise: a node that answers is not passed by, whatever it says; and pictures never come from the origin.
#[tokio::test]
async fn a_node_that_answers_is_not_passed_by() {
    let (authority, view) = (Authority::new(), Arc::new(Mutex::new(View::default())));
    let tired = script(|_, _| async { refusal(Status::Unavailable) });
    let node = FakeNode::start(&authority, "a", &["a", "127.0.0.1"], view.clone(), tired).await;
    view.lock().merge(node.row.clone()).expect("merge");
    let origin = object(1000, usize::MAX);
    let mut config = ClientConfig::new(&node.row.quic);
    config.tls = authority.trust();
    config.fallback = Some(Fallback { origin: origin.clone(), bytes_per_second: 1 << 30 });
    let client = Client::new(config).expect("client");
    let error = client.read(&id(), 0, None, &within(2)).await.expect_err("the node's word");
    assert!(matches!(error.kind, ErrorKind::Unavailable | ErrorKind::Timeout), "{error}");
    let (batch, spec) = (Batch::new(1, 1 << 20), ImageSpec::default());
    let outcome = alone(&origin, 1 << 30).images(&[id()], &spec, &batch, &within(2)).await.remove(0);
    outcome.expect_err("no node, no pictures");
    assert_eq!(origin.reads.load(Ordering::Relaxed), 0);
}
