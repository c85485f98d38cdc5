//! A faulty origin: an HTTP/1.1 proxy before a healthy one that fails as its script says, byte by byte.
//!
//! It speaks raw sockets, since most of what it has to say no HTTP library would send. What it forwards it asks the upstream afresh,
//! whole and in memory: objects of tests are small.

mod head;

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep};

use head::Head;

/// What goes wrong.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// This status with an S3 error body, instead of an answer.
    Status(u16),
    /// 503 `SlowDown`, with Retry-After in seconds if given.
    SlowDown(Option<u64>),
    /// The connection is reset after so many bytes of the body.
    ResetMidBody(usize),
    /// The connection ends in order after so many bytes of the body.
    CloseMidBody(usize),
    /// The body halts for a while after half of it.
    Stall(Duration),
    /// 200 and half the body, as if that were the whole object.
    ShortBody200,
    /// 206 for the right range, but chunked and ten bytes short.
    ShortChunked,
    /// 206 for the right range, but chunked and ten bytes long.
    LongBody,
    /// 206 for the right range, but Content-Length and body ten bytes longer.
    LongLength,
    /// The stated range lies a byte further on.
    WrongContentRange,
    /// The etag is another one.
    EtagChange,
    /// No etag.
    NoEtag,
    /// The body claims to be gzip.
    ContentEncodingGzip,
    /// 307 to this address.
    Redirect(String),
    /// 301 with a bucket region, as S3 answers at the wrong endpoint.
    WrongRegion(String),
    /// 200 with an S3 error as its body.
    XmlErrorWith200,
    /// 200 with the whole object, whatever range was asked.
    IgnoreRange,
    /// The reply begins late.
    DelayFirstByte(Duration),
    /// No reply at all until the client leaves.
    HangUntilDropped,
}

/// A fault and the requests that it meets.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Requests of this key alone.
    pub key: Option<String>,
    /// Requests of this method alone.
    pub method: Option<&'static str>,
    /// Which of the requests that match, counted from 0 since the script was set.
    pub nth: Range<u64>,
    /// Which share of those.
    pub chance: f64,
    /// What becomes of them.
    pub fault: Fault,
}

impl Rule {
    /// All GETs.
    pub fn gets(fault: Fault) -> Self {
        Self { key: None, method: Some("GET"), nth: 0..u64::MAX, chance: 1.0, fault }
    }

    /// The first `n` GETs.
    pub fn first(n: u64, fault: Fault) -> Self {
        Self { nth: 0..n, ..Self::gets(fault) }
    }
}

/// Rules in order; the first that matches decides. The seed of chance is printed when the script is set.
#[derive(Clone, Debug, Default)]
pub struct Script {
    /// Seed of [`Rule::chance`].
    pub seed: u64,
    /// Rules; none is a healthy origin.
    pub rules: Vec<Rule>,
}

impl From<Rule> for Script {
    fn from(rule: Rule) -> Self {
        Self { seed: 0, rules: vec![rule] }
    }
}

/// What has been asked.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// All requests.
    pub requests: u64,
    /// Requests by (method, key, range header).
    pub counts: HashMap<(String, String, String), u64>,
    /// Requests that carried a signature.
    pub signed: u64,
    /// When each request came.
    pub arrivals: Vec<Instant>,
    /// Requests being answered.
    pub in_flight: u64,
    /// The most at once.
    pub in_flight_max: u64,
}

impl Stats {
    /// Requests of one method.
    pub fn method(&self, method: &str) -> u64 {
        self.counts.iter().filter(|((m, _, _), _)| m == method).map(|(_, n)| n).sum()
    }
}

/// The proxy; dropping it closes all its connections.
pub struct FaultyOrigin {
    addr: SocketAddr,
    shared: Arc<Shared>,
    server: AbortHandle,
}

struct Shared {
    upstream: SocketAddr,
    state: Mutex<State>,
    requests: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    script: Script,
    matched: Vec<u64>,
    random: u64,
    stats: Stats,
}

impl FaultyOrigin {
    /// Listens on a free loopback port.
    pub async fn start(upstream: SocketAddr, script: impl Into<Script>) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let addr = listener.local_addr()?;
        let shared = Arc::new(Shared { upstream, state: Mutex::default(), requests: watch::Sender::new(0) });
        let served = shared.clone();
        let server = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                connections.spawn(serve(socket, served.clone()));
                while connections.try_join_next().is_some() {}
            }
        });
        let origin = Self { addr, shared, server: server.abort_handle() };
        origin.set(script);
        Ok(origin)
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// What has been asked since the start.
    pub fn stats(&self) -> Stats {
        self.shared.state.lock().stats.clone()
    }

    /// Another script from now on; its rules count from 0.
    pub fn set(&self, script: impl Into<Script>) {
        let script = script.into();
        if script.rules.iter().any(|rule| rule.chance < 1.0) {
            println!("faulty origin: seed {}", script.seed);
        }
        let state = &mut *self.shared.state.lock();
        state.matched = vec![0; script.rules.len()];
        state.random = script.seed;
        state.script = script;
    }

    /// Ready once `n` requests have come since the start.
    pub async fn asked(&self, n: u64) {
        let mut requests = self.shared.requests.subscribe();
        requests.wait_for(|seen| *seen >= n).await.expect("the sender lives as long as we do");
    }
}

impl Drop for FaultyOrigin {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl State {
    fn fault(&mut self, method: &str, key: &str) -> Option<Fault> {
        for (rule, matched) in self.script.rules.iter().zip(&mut self.matched) {
            let meets = rule.method.is_none_or(|m| m == method) && rule.key.as_deref().is_none_or(|k| k == key);
            if !meets {
                continue;
            }
            let nth = *matched;
            *matched += 1;
            // splitmix64.
            self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            let draw = ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64;
            if rule.nth.contains(&nth) && draw < rule.chance {
                return Some(rule.fault.clone());
            }
        }
        None
    }
}

/// Counts a request as in flight until it is answered or its client has gone.
struct InFlight(Arc<Shared>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.state.lock().stats.in_flight -= 1;
    }
}

/// Requests of one connection, one after the other. Any error ends it, as the peer sees anyway.
async fn serve(mut socket: TcpStream, shared: Arc<Shared>) -> io::Result<()> {
    socket.set_nodelay(true)?;
    while let Some(request) = Head::read(&mut socket).await? {
        let mut line = request.first.split(' ');
        let (method, target) = (line.next().unwrap_or_default().to_owned(), line.next().unwrap_or_default());
        let path = target.split('?').next().unwrap_or_default();
        let key = path.trim_start_matches('/').split_once('/').map_or("", |(_, key)| key).to_owned();
        let range = request.header("range").unwrap_or_default().to_owned();
        let (fault, total) = {
            let state = &mut *shared.state.lock();
            let fault = state.fault(&method, &key);
            let stats = &mut state.stats;
            stats.requests += 1;
            stats.signed += u64::from(request.header("authorization").is_some());
            *stats.counts.entry((method.clone(), key, range)).or_default() += 1;
            stats.arrivals.push(Instant::now());
            stats.in_flight += 1;
            stats.in_flight_max = stats.in_flight_max.max(stats.in_flight);
            (fault, stats.requests)
        };
        let counted = InFlight(shared.clone());
        shared.requests.send_replace(total);
        let goes_on = answer(&mut socket, &shared, request, &method, fault).await?;
        drop(counted);
        if !goes_on {
            return socket.shutdown().await;
        }
    }
    Ok(())
}

/// Answers one request; whether the connection can take another.
async fn answer(
    socket: &mut TcpStream,
    shared: &Shared,
    mut request: Head,
    method: &str,
    fault: Option<Fault>,
) -> io::Result<bool> {
    match &fault {
        Some(Fault::HangUntilDropped) => return gone(socket).await.map(|()| false),
        Some(Fault::DelayFirstByte(delay)) => tokio::select! {
            () = sleep(*delay) => {}
            left = gone(socket) => return left.map(|()| false),
        },
        Some(Fault::IgnoreRange) => request.remove("range"),
        _ => {}
    }
    let (mut head, mut body) = match &fault {
        Some(Fault::Status(status)) => error(*status, "Scripted"),
        Some(Fault::SlowDown(wait)) => {
            let (mut head, body) = error(503, "SlowDown");
            if let Some(seconds) = wait {
                head.set("retry-after", &seconds.to_string());
            }
            (head, body)
        }
        Some(Fault::Redirect(to)) => {
            let (mut head, body) = error(307, "TemporaryRedirect");
            head.set("location", to);
            (head, body)
        }
        Some(Fault::WrongRegion(region)) => {
            let (mut head, body) = error(301, "PermanentRedirect");
            head.set("x-amz-bucket-region", region);
            (head, body)
        }
        Some(Fault::XmlErrorWith200) => error(200, "InternalError"),
        _ => forward(shared.upstream, request).await?,
    };
    let (mut sent, mut then) = (body.len(), After::Next);
    match fault {
        Some(Fault::ResetMidBody(bytes)) => (sent, then) = (bytes.min(sent), After::Reset),
        Some(Fault::CloseMidBody(bytes)) => (sent, then) = (bytes.min(sent), After::Close),
        Some(Fault::Stall(pause)) => (sent, then) = (sent / 2, After::Pause(pause)),
        Some(Fault::ShortBody200) => {
            head.first = "HTTP/1.1 200 OK".into();
            head.remove("content-range");
            sent = body.len() / 2;
            body.truncate(sent);
            head.set("content-length", &sent.to_string());
        }
        Some(Fault::ShortChunked) => {
            body.truncate(body.len().saturating_sub(10));
            body = chunked(&mut head, &body);
            sent = body.len();
        }
        Some(Fault::LongBody) => {
            body.extend_from_slice(b"0123456789");
            body = chunked(&mut head, &body);
            sent = body.len();
        }
        Some(Fault::LongLength) => {
            body.extend_from_slice(b"0123456789");
            sent = body.len();
            head.set("content-length", &sent.to_string());
        }
        Some(Fault::WrongContentRange) => shift(&mut head),
        Some(Fault::EtagChange) => head.set("etag", "\"another\""),
        Some(Fault::NoEtag) => head.remove("etag"),
        Some(Fault::ContentEncodingGzip) => head.set("content-encoding", "gzip"),
        _ => {}
    }
    let body = if method == "HEAD" { Vec::new() } else { body };
    let sent = sent.min(body.len());
    let mut reply = head.bytes();
    reply.extend_from_slice(&body[..sent]);
    socket.write_all(&reply).await?;
    match then {
        After::Next => Ok(true),
        After::Close => Ok(false),
        After::Reset => {
            socket.set_zero_linger()?;
            Err(io::ErrorKind::ConnectionReset.into())
        }
        After::Pause(pause) => {
            tokio::select! {
                () = sleep(pause) => {}
                left = gone(socket) => return left.map(|()| false),
            }
            socket.write_all(&body[sent..]).await?;
            Ok(true)
        }
    }
}

/// What follows the part of the body that was sent.
enum After {
    Next,
    Close,
    Reset,
    Pause(Duration),
}

/// Ready when the client has left. Clients do not pipeline, so anything to read is the end.
async fn gone(socket: &mut TcpStream) -> io::Result<()> {
    socket.read(&mut [0; 1]).await.map(drop)
}

/// The upstream's whole answer to one request.
async fn forward(upstream: SocketAddr, mut request: Head) -> io::Result<(Head, Vec<u8>)> {
    request.set("connection", "close");
    let mut socket = TcpStream::connect(upstream).await?;
    socket.write_all(&request.bytes()).await?;
    let mut head = Head::read(&mut socket).await?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let mut body = Vec::new();
    socket.read_to_end(&mut body).await?;
    head.remove("connection");
    Ok((head, body))
}

fn error(status: u16, code: &str) -> (Head, Vec<u8>) {
    let body = format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>{code}</Code><Message>scripted</Message></Error>");
    let mut head = Head { first: format!("HTTP/1.1 {status} Scripted"), headers: Vec::new() };
    head.set("content-type", "application/xml");
    head.set("content-length", &body.len().to_string());
    (head, body.into_bytes())
}

fn chunked(head: &mut Head, body: &[u8]) -> Vec<u8> {
    head.remove("content-length");
    head.set("transfer-encoding", "chunked");
    let size = format!("{:x}\r\n", body.len());
    [size.as_bytes(), body, b"\r\n0\r\n\r\n"].concat()
}

/// `bytes a-b/size` to `bytes a+1-b+1/size+1`.
fn shift(head: &mut Head) {
    let Some(text) = head.header("content-range") else { return };
    let numbers: Vec<u64> = text.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
    if let [first, last, size] = numbers[..] {
        head.set("content-range", &format!("bytes {}-{}/{}", first + 1, last + 1, size + 1));
    }
}
