//! Real nodes in one process, over loopback, before a folder that is served as a bucket through an origin that fails on demand.

use std::collections::HashMap;
use std::fs::Permissions;
use std::future::pending;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use framecache::quic::{self, Windows};
use framecache::tls::{self, TlsFiles};
use framecache::wire::NodeRow;
use framecache::{Client, ClientConfig, ObjectId, View};
use framecache_node::cluster::Keys;
use framecache_node::config::{Config, Host};
use framecache_node::dev::{self, origin::FolderOrigin};
use framecache_node::identity::Identity;
use framecache_node::node::{Node, Setup};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

use crate::faulty::{FaultyOrigin, Script};

/// The bucket that every cluster has.
pub const BUCKET: &str = "photos";

/// What the nodes of a cluster are told. The defaults are small: one decoder, no disk.
#[derive(Clone, Debug)]
pub struct Options {
    /// `node.memory_limit`.
    pub memory: &'static str,
    /// `cache.raw_ram`, and `cache.decoded_ram`.
    pub ram: &'static str,
    /// `cache.disk`; none without it.
    pub disk: Option<&'static str>,
    /// `bucket.freshness`.
    pub freshness: &'static str,
    /// `decode.pixels_max`.
    pub pixels_max: u64,
    /// `decode.workers`.
    pub workers: usize,
    /// A policy file's text, instead of allow-all.
    pub policy: Option<&'static str>,
    /// `bucket.credentials`.
    pub credentials: &'static str,
    /// `node.roles` of each node in turn; of those beyond, all.
    pub roles: &'static [&'static str],
    /// What a shell does instead of being a decoder at once; `NODE` is the program and `"$@"` its arguments. Nothing: no shell.
    pub worker: &'static str,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            memory: "1GiB",
            ram: "128MiB",
            disk: None,
            freshness: "immutable",
            pixels_max: 20_000_000,
            workers: 1,
            policy: None,
            credentials: "anonymous",
            roles: &[],
            worker: "",
        }
    }
}

/// N nodes that know each other, their origin, and their folders, which end with it.
pub struct Cluster {
    nodes: Vec<Node>,
    ca: PathBuf,
    data: TempDir,
    _state: TempDir,
    /// What stands between the nodes and the folder: counts, and fails as it is told.
    pub origin: FaultyOrigin,
    server: AbortHandle,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Cluster {
    /// Starts `n` nodes. When it returns, each answers and was told of the others, all of them settled.
    pub async fn start(n: usize, options: Options) -> Self {
        let cluster = Self::begin(n, options, None).await;
        dev::join_all(&cluster.nodes);
        cluster
    }

    /// Starts `n` nodes that find each other by gossip, are settled after two seconds, and drain for two. When it returns, each knows all.
    pub async fn meet(n: usize, options: Options) -> Self {
        let cluster = Self::begin(n, options, Some(Keys::random().expect("random bytes"))).await;
        for node in &cluster.nodes {
            let mut views = node.cluster().expect("a cluster").views();
            let met = views.wait_for(|view| view.rows().count() == n);
            tokio::time::timeout(Duration::from_secs(20), met).await.expect("nodes meet").expect("views");
        }
        cluster
    }

    async fn begin(n: usize, options: Options, keys: Option<Keys>) -> Self {
        let (data, state) = (tempfile::tempdir().expect("folder"), tempfile::tempdir().expect("folder"));
        let folder = FolderOrigin::open(data.path(), BUCKET).expect("open");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listen");
        let upstream = listener.local_addr().expect("address");
        let server = tokio::spawn(folder.serve(listener, pending())).abort_handle();
        let origin = FaultyOrigin::start(upstream, Script::default()).await.expect("origin");
        let ca = state.path().join("ca.pem");
        let mut nodes: Vec<Node> = Vec::new();
        for index in 0..n {
            let seed = nodes.first().and_then(|first| Some(first.cluster()?.gossip_address()));
            let config = config(index, keys.is_some(), seed, origin.addr(), state.path(), &options);
            let names = ["127.0.0.1".to_owned(), "localhost".to_owned(), format!("node-{index}")];
            let identity = Identity::signed(&names, &ca).expect("identity");
            let program = worker(state.path(), options.worker);
            let setup = Setup { config, identity, program, origin: None, keys: keys.clone() };
            nodes.push(Node::start(setup).await.expect("node starts"));
        }
        Self { nodes, ca, data, _state: state, origin, server }
    }

    /// From now on every node takes these for the nodes there are, and as what their rows say.
    pub fn agree(&self, rows: &[NodeRow]) {
        let mut view = View::default();
        for row in rows {
            view.merge(row.clone()).expect("merge");
        }
        self.nodes.iter().for_each(|node| node.join(view.clone()));
    }

    /// GETs that reached the origin.
    pub fn all_gets(&self) -> u64 {
        self.origin.stats().counts.iter().filter(|((method, ..), _)| method == "GET").map(|(_, n)| n).sum()
    }

    /// Jobs that the nodes' decoders ended, by node.
    pub fn jobs(&self) -> Vec<u64> {
        self.nodes.iter().map(|node| node.pool().stats().jobs).collect()
    }

    /// One node.
    pub fn node(&self, index: usize) -> &Node {
        &self.nodes[index]
    }

    /// All nodes.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The file of the authority that signed the nodes.
    pub fn ca(&self) -> &Path {
        &self.ca
    }

    /// A client of its own that asks node 0 first.
    pub fn client(&self) -> Client {
        self.client_of(0)
    }

    /// A client of its own that asks that node for the view.
    pub fn client_of(&self, index: usize) -> Client {
        let mut config = ClientConfig::new(&self.nodes[index].quic.to_string());
        config.tls.ca = Some(self.ca.clone());
        Client::new(config).expect("client")
    }

    /// A bare connection to a node, for what no client would say. It receives at most `window` bytes that are not read.
    pub async fn connect(&self, index: usize, window: u32) -> quinn::Connection {
        let endpoint = self.endpoint(window);
        endpoint.connect(self.nodes[index].quic, "127.0.0.1").expect("connect").await.expect("handshake")
    }

    /// Where bare connections begin that trust the nodes, each with that window.
    pub fn endpoint(&self, window: u32) -> quinn::Endpoint {
        let files = TlsFiles { ca: Some(self.ca.clone()), ..TlsFiles::default() };
        let mut config = tls::client(&files, "127.0.0.1").expect("tls");
        let windows = Windows { stream: window, receive: window, ..Windows::client(8 << 20) };
        config.transport_config(Arc::new(quic::transport(windows, None)));
        let socket = quic::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("socket");
        let mut endpoint = quic::endpoint(socket, None).expect("endpoint");
        endpoint.set_default_client_config(config);
        endpoint
    }

    /// Writes an object whole, under a new inode, as a careful writer replaces a file.
    pub fn put(&self, key: &str, bytes: &[u8]) {
        let path = self.data.path().join(key);
        std::fs::create_dir_all(path.parent().expect("parent")).expect("folders");
        let fresh = path.with_extension("fresh");
        std::fs::write(&fresh, bytes).expect("write");
        std::fs::rename(fresh, path).expect("rename");
    }

    /// GETs of an object that reached the origin, whatever it answered.
    pub fn origin_gets(&self, key: &str) -> u64 {
        let counts = self.origin.stats().counts;
        counts.iter().filter(|((method, asked, _), _)| method == "GET" && asked == key).map(|(_, n)| n).sum()
    }

    /// GETs that a node sent only because an earlier one was slow or failed: what a busy machine adds to [`Self::origin_gets`].
    pub async fn origin_repeats(&self) -> u64 {
        let mut repeats = 0.0;
        for index in 0..self.nodes.len() {
            let metrics = self.metrics(index).await;
            repeats += metrics["framecache_origin_hedges_total"] + metrics["framecache_origin_retries_total"];
        }
        repeats as u64
    }

    /// Everything on a node's `/metrics`, by series.
    pub async fn metrics(&self, index: usize) -> HashMap<String, f64> {
        series(&http(self.nodes[index].admin, "/metrics").await)
    }

    /// Waits until `holds` of node `index`'s metrics, ten seconds at most.
    pub async fn until(&self, index: usize, what: &str, holds: impl Fn(&HashMap<String, f64>) -> bool) -> HashMap<String, f64> {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let metrics = self.metrics(index).await;
            if holds(&metrics) {
                return metrics;
            }
            let gauges: Vec<_> = metrics.iter().filter(|(name, _)| name.contains("in_use") || name.contains("waiting")).collect();
            assert!(Instant::now() < deadline, "{what}: not within 10 s; {gauges:?}");
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until a node holds no memory for requests, has none waiting and no stream open.
    pub async fn until_quiet(&self, index: usize) {
        self.until(index, "all memory is given back", |metrics| reserved(metrics) == 0.0 && metrics["framecache_streams"] == 0.0)
            .await;
    }

    /// Stops the last node; the others are not told.
    pub async fn stop_last(&mut self) {
        if let Some(node) = self.nodes.pop() {
            node.stop().await;
        }
    }

    /// The last node, to be stopped while the others go on.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn take_last(&mut self) -> Node {
        self.nodes.pop().expect("a node")
    }

    /// Stops every node, the last first.
    pub async fn stop(mut self) {
        while let Some(node) = self.nodes.pop() {
            node.stop().await;
        }
    }
}

/// Bytes that all levels hold together, and requests that wait for some.
pub fn reserved(metrics: &HashMap<String, f64>) -> f64 {
    let gauge = |name: &str| name.starts_with("framecache_budget_in_use_bytes") || name.starts_with("framecache_budget_waiting");
    metrics.iter().filter(|(name, _)| gauge(name)).map(|(_, value)| value).sum()
}

/// The series of a page of metrics.
pub fn series(text: &str) -> HashMap<String, f64> {
    let lines = text.lines().filter(|line| line.starts_with("framecache_"));
    lines
        .filter_map(|line| line.rsplit_once(' '))
        .map(|(name, value)| (name.to_owned(), value.parse().expect("number")))
        .collect()
}

/// An object of the cluster's bucket.
pub fn id(key: &str) -> ObjectId {
    ObjectId::new(BUCKET, key).expect("id")
}

/// The body of a plain GET.
pub async fn http(address: SocketAddr, path: &str) -> String {
    let mut socket = TcpStream::connect(address).await.expect("connect");
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).await.expect("ask");
    let mut text = String::new();
    socket.read_to_string(&mut text).await.expect("answer");
    let (head, body) = text.split_once("\r\n\r\n").expect("head");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    body.to_owned()
}

/// A program of this workspace, as it was built beside the tests.
pub fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("own path");
    let built = test.parent().and_then(Path::parent).map(|folder| folder.join(name)).expect("target folder");
    assert!(
        built.exists(),
        "{} is not built: run `make build`, or `cargo build --release --workspace --features framecache/cli --bins`",
        built.display()
    );
    built
}

/// The program that nodes run as their decoders.
fn worker(state: &Path, script: &str) -> PathBuf {
    let node = program("framecache-node");
    if script.is_empty() {
        return node;
    }
    let path = state.join("worker");
    std::fs::write(&path, format!("#!/bin/sh\n{}\n", script.replace("NODE", &node.display().to_string()))).expect("script");
    std::fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("permissions");
    path
}

fn config(index: usize, meets: bool, seed: Option<SocketAddr>, origin: SocketAddr, state: &Path, options: &Options) -> Config {
    let seeds = seed.map_or(String::new(), |seed| format!("seeds = [\"{seed}\"]\n"));
    let Options { memory, ram, disk, freshness, pixels_max, workers, policy, credentials, roles, worker: _ } = options;
    let roles = roles.get(index).map_or(String::new(), |role| format!("roles = [\"{role}\"]\n"));
    let data_dir = state.join(format!("node-{index}"));
    let drain = if meets { 2 } else { 5 };
    let (data_dir, disk) = match disk {
        Some(disk) => (format!("data_dir = {data_dir:?}\n"), format!("disk = \"{disk}\"\n")),
        None => Default::default(),
    };
    let auth = policy.map_or(String::new(), |text| {
        let path = state.join("policy.toml");
        std::fs::write(&path, text).expect("policy");
        format!("[auth]\npolicy = {path:?}\n")
    });
    let text = format!(
        "[node]\nid = \"node-{index}\"\nmemory_limit = \"{memory}\"\n{data_dir}{roles}\
         [listen]\nquic = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\ngossip = \"127.0.0.1:0\"\nliveness = \"127.0.0.1:0\"\n\
         [cache]\nraw_ram = \"{ram}\"\ndecoded_ram = \"{ram}\"\n{disk}\
         [decode]\nworkers = {workers}\nworker_memory = \"512MiB\"\npixels_max = {pixels_max}\n\
         [cluster]\nsettle_s = 2\ndrain_s = {drain}\n{seeds}{auth}\
         [[bucket]]\nname = \"{BUCKET}\"\nendpoint = \"http://{origin}\"\npath_style = true\n\
         credentials = \"{credentials}\"\nfreshness = \"{freshness}\"\n",
    );
    Config::parse("test", &text, std::iter::empty(), &Host::here()).expect("configuration")
}
