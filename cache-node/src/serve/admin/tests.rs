//! What the door promises, over real sockets on loopback.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::telemetry::METRICS;

struct Door {
    address: std::net::SocketAddr,
    registry: Arc<Registry>,
    readiness: Readiness,
    shutdown: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Door {
    async fn open() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        let (registry, readiness, shutdown) = (Registry::new(), Readiness::new(), CancellationToken::new());
        let info = Arc::new(AdminInfo { node_id: "node-1".into(), version: "0.1.0" });
        let state = AdminState { registry: registry.clone(), readiness: readiness.clone(), info };
        let task = tokio::spawn(serve(listener, state, shutdown.clone()));
        Self { address, registry, readiness, shutdown, task }
    }

    /// The reply's status line, headers and body to a request on a connection of its own.
    async fn send(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(self.address).await.expect("connect");
        stream.write_all(request.as_bytes()).await.expect("write");
        let mut reply = String::new();
        stream.read_to_string(&mut reply).await.expect("read");
        reply
    }

    async fn get(&self, path: &str) -> String {
        self.send(&format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")).await
    }

    async fn close(self) {
        self.shutdown.cancel();
        self.task.await.expect("ends");
    }
}

/// Alive from the start; ready when the rooms are, and not once the node leaves.
#[tokio::test]
async fn probes_tell_life_from_readiness() {
    let door = Door::open().await;
    let disk = door.readiness.hold("disk tier");
    assert!(door.get("/live").await.starts_with("HTTP/1.1 200"));
    let reply = door.get("/ready").await;
    assert!(reply.starts_with("HTTP/1.1 503") && reply.ends_with("waiting for disk tier\n"), "{reply}");
    drop(disk);
    let reply = door.get("/ready").await;
    assert!(reply.starts_with("HTTP/1.1 200") && reply.ends_with("ready\n"), "{reply}");
    door.readiness.drain();
    let reply = door.get("/ready").await;
    assert!(reply.starts_with("HTTP/1.1 503") && reply.ends_with("draining\n"), "{reply}");
    assert!(door.get("/live").await.starts_with("HTTP/1.1 200"));
    door.close().await;
}

/// Metrics and status show what the rooms count, and nothing that is no metric.
#[tokio::test]
async fn numbers_are_metrics() {
    let door = Door::open().await;
    door.registry.counter("framecache_requests_total", &[("verb", "read"), ("outcome", "ok")]).add(41);
    door.registry.histogram("framecache_request_seconds", &[("verb", "read")]).record(Duration::from_millis(3));
    let page = door.get("/metrics").await;
    assert!(page.contains("content-type: text/plain; version=0.0.4"), "{page}");
    assert!(page.contains("framecache_requests_total{verb=\"read\",outcome=\"ok\"} 41\n"), "{page}");

    let page = door.get("/status").await;
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("content-security-policy: default-src 'none'"), "{page}");
    assert!(page.contains("<th class=series>read · ok<td title=\"41\">41</tr>"), "{page}");
    assert!(!page.contains("<script") && !page.contains("http://"), "self-contained");

    let reply = door.get("/status?format=json").await;
    let body = reply.split_once("\r\n\r\n").expect("body").1;
    let status: serde_json::Value = serde_json::from_str(body).expect("json");
    assert_eq!((status["node"].as_str(), status["ready"].as_bool()), (Some("node-1"), Some(true)));
    assert_eq!(status["metrics"]["framecache_requests_total"][0]["value"], 41.0);
    assert_eq!(status["metrics"]["framecache_request_seconds"][0]["count"], 1);
    let shown = status["metrics"].as_object().expect("metrics");
    assert!(shown.keys().all(|name| METRICS.iter().any(|row| row.name == name)));
    door.close().await;
}

/// Nothing can be written, found, or broken from here.
#[tokio::test]
async fn the_door_only_answers() {
    let door = Door::open().await;
    for (request, status) in [
        ("POST /ready HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 2\r\n\r\nhi", "405"),
        ("DELETE /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", "405"),
        ("GET /../etc/passwd HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", "404"),
        ("GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", "307"),
        ("HEAD /status HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", "200"),
        ("nonsense\r\n\r\n", "400"),
    ] {
        let reply = door.send(request).await;
        assert!(reply.starts_with(&format!("HTTP/1.1 {status}")), "{request:?}: {reply}");
    }
    let long = format!("GET /live HTTP/1.1\r\nx: {}\r\n\r\n", "a".repeat(HEADER_BYTES_MAX * 2));
    let mut stream = TcpStream::connect(door.address).await.expect("connect");
    // The far end may close before it has read all.
    let _ = stream.write_all(long.as_bytes()).await;
    let mut reply = Vec::new();
    let _ = stream.read_to_end(&mut reply).await;
    assert!(!reply.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&reply));
    assert!(door.get("/live").await.starts_with("HTTP/1.1 200"));
    door.close().await;
}

/// Connections past the bound are closed at once, and those before it still answer.
#[tokio::test]
async fn connections_are_bounded() {
    let door = Door::open().await;
    let mut held = Vec::new();
    for _ in 0..CONNECTIONS_MAX {
        let mut stream = TcpStream::connect(door.address).await.expect("connect");
        stream.write_all(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("write");
        // The reply proves that it was accepted.
        stream.read_exact(&mut [0; 12]).await.expect("answered");
        held.push(stream);
    }
    let mut more = TcpStream::connect(door.address).await.expect("connect");
    let _ = more.write_all(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert!(matches!(more.read(&mut [0; 1]).await, Ok(0) | Err(_)), "closed without an answer");
    held.clear();
    loop {
        // Ends as soon as the node has seen one of them close.
        let mut stream = TcpStream::connect(door.address).await.expect("connect");
        let _ = stream.write_all(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n").await;
        let mut status = [0; 12];
        if stream.read_exact(&mut status).await.is_ok() {
            assert_eq!(&status, b"HTTP/1.1 200");
            break;
        }
    }
    door.close().await;
}

/// A client that sends its header by drops is closed, and one that never ends does not hold up a shutdown.
#[tokio::test]
async fn slow_clients_are_closed() {
    let door = Door::open().await;
    let mut slow = TcpStream::connect(door.address).await.expect("connect");
    slow.write_all(b"GET /live HT").await.expect("write");
    door.get("/live").await;
    tokio::time::pause();
    // The paused clock jumps to the header's deadline as soon as nothing else is to do.
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(CONNECTION_TIMEOUT - Duration::from_secs(1), slow.read_to_end(&mut rest)).await;
    assert!(ended.is_ok(), "closed by the header's deadline, long before the connection's");
    tokio::time::resume();
    let _idle = TcpStream::connect(door.address).await.expect("connect");
    door.close().await;
}
