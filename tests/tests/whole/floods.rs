//! Handshakes by the thousand that nobody ends, and who comes meanwhile.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use framecache::quic::{self, Windows};
use framecache::tls::{self, TlsFiles};
use framecache_tests::harness::{Cluster, Options, id};
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, Runtime, UdpPoller};
use tokio::time::{Instant, sleep};

/// What a client hears of what comes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Hears {
    Nothing,
    /// That it has to prove its address, and nothing more.
    Retries,
    Everything,
}

/// A socket that does not hear all.
#[derive(Debug)]
struct Deaf(Arc<dyn AsyncUdpSocket>, Hears);

impl AsyncUdpSocket for Deaf {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        self.0.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.0.try_send(transmit)
    }

    fn poll_recv(&self, cx: &mut Context<'_>, buffers: &mut [IoSliceMut<'_>], meta: &mut [RecvMeta]) -> Poll<io::Result<usize>> {
        let came = self.0.poll_recv(cx, buffers, meta);
        if let Poll::Ready(Ok(count)) = came {
            for (buffer, meta) in buffers.iter_mut().zip(meta.iter_mut()).take(count) {
                // A long header of type 3 (RFC 9000 section 17.2.5).
                let retry = meta.len > 0 && buffer[0] & 0xb0 == 0xb0;
                if self.1 == Hears::Nothing || (self.1 == Hears::Retries && !retry) {
                    buffer[..meta.len].fill(0);
                }
            }
        }
        came
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    fn max_receive_segments(&self) -> usize {
        self.0.max_receive_segments().min(5)
    }
}

fn endpoint(cluster: &Cluster, hears: Hears) -> quinn::Endpoint {
    let files = TlsFiles { ca: Some(cluster.ca().to_owned()), ..TlsFiles::default() };
    let mut config = tls::client(&files, "127.0.0.1").expect("tls");
    let keep_alive = (hears == Hears::Everything).then_some(quic::KEEP_ALIVE);
    config.transport_config(Arc::new(quic::transport(Windows::client(8 << 20), keep_alive)));
    let socket = quinn::TokioRuntime.wrap_udp_socket(quic::bind(([127, 0, 0, 1], 0).into()).expect("socket")).expect("wrapped");
    let mut endpoint = quic::endpoint_over(Arc::new(Deaf(socket, hears)), None, None).expect("endpoint");
    endpoint.set_default_client_config(config);
    endpoint
}

/// How long new clients take for a first read, one after the other, and how many of them fail.
async fn newcomers(cluster: &Cluster, count: usize) -> (Vec<Duration>, usize) {
    let (mut took, mut failed) = (Vec::new(), 0);
    for _ in 0..count {
        let client = cluster.client();
        let began = Instant::now();
        match client.read(&id("k"), 0, None, &Default::default()).await {
            Ok(raw) => assert_eq!(raw.bytes, &b"good"[..]),
            Err(error) => {
                println!("{error}");
                failed += 1;
            }
        }
        took.push(began.elapsed());
        client.close().await;
    }
    took.sort();
    (took, failed)
}

async fn flooded(hears: Hears, count: usize, each: Duration) {
    let cluster = Cluster::start(1, Options::default()).await;
    cluster.put("k", b"good");
    let old = cluster.client();
    old.read(&id("k"), 0, None, &Default::default()).await.expect("read");
    let flood = endpoint(&cluster, hears);
    let address = cluster.node(0).quic;
    let begun = Instant::now();
    let flooding = tokio::spawn(async move {
        let mut half = Vec::new();
        for n in 0..count {
            half.push(flood.connect(address, "127.0.0.1").expect("connect"));
            if n % 64 == 0 {
                sleep(each * 64).await;
            }
        }
        sleep(Duration::from_secs(4)).await;
        half
    });
    sleep(Duration::from_millis(200)).await;
    let (took, failed) = newcomers(&cluster, 12).await;
    let mut slowest = Duration::ZERO;
    for _ in 0..50 {
        let began = Instant::now();
        old.read(&id("k"), 0, None, &Default::default()).await.expect("read");
        slowest = slowest.max(began.elapsed());
    }
    let metrics = cluster.metrics(0).await;
    let open: Vec<_> = metrics.iter().filter(|(name, _)| name.contains("connections") || name.contains("handshakes")).collect();
    println!("{hears:?} {count}: newcomers {took:?}, {failed} failed; old ones {slowest:?}; {open:?}; {:?}", begun.elapsed());
    assert!(failed == 0 && took[took.len() - 1] < Duration::from_secs(5), "{took:?}");
    flooding.abort();
    old.close().await;
    cluster.stop().await;
}

/// Promise: a client comes in within its handshake's time, while thousands begin handshakes that they do not end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_says_nothing_more() {
    flooded(Hears::Nothing, 2_000, Duration::from_micros(500)).await;
}

/// Promise: so it does while thousands prove their addresses first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_proves_its_address_and_says_nothing_more() {
    flooded(Hears::Retries, 2_000, Duration::from_micros(500)).await;
}

/// Promise: and while two thousand come in that never ask for anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_comes_in_and_asks_for_nothing() {
    flooded(Hears::Everything, 1_000, Duration::from_millis(1)).await;
}
