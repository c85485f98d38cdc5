//! One node: its rooms put together, started in order, ended in order.

mod meeting;
mod second;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant as StdInstant, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use framecache::View;
use framecache::peer::Peers as Links;
use framecache::wire::NodeRow;
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::auth::Policy;
use crate::budget::{Budget, BudgetLines, Level};
use crate::cache::{AdmissionMode, CacheSettings, FoyerStore, Freshness, Store};
use crate::cluster::{Cluster, Keys, Linked, Members};
use crate::config::{self, AuthPolicy, Config, GpuUse};
use crate::decode::{Decoder, Engines, Limits, PoolSettings, WorkerPool};
use crate::identity::Identity;
use crate::origin::{Credentials, Origin, OriginLimits, OriginSettings, S3Origin};
use crate::read::{Reader, ReaderParts};
use crate::serve::admin::{self, AdminInfo, AdminState, Readiness};
use crate::serve::{self, RequestMetrics, Service, ServiceParts};
use crate::telemetry::Registry;

/// Memory of the process apart from what rooms count: code, runtime, allocator slack. 30 MiB measured idle, with room for
/// fragmentation.
const PROCESS_BYTES: u64 = 64 << 20;

/// Memory of connections: QUIC state and receive windows of those that are active at once.
const TRANSPORT_BYTES: u64 = 64 << 20;

/// What one connection to another node may hold of replies that are not read yet: several pages, or a frame of training size many times.
const PEER_BYTES: u64 = 16 << 20;

/// The least that a level has for itself.
const FLOOR_MIN: u64 = 64 << 10;

/// Memory of requests: one in 32 bytes. A batch of 64 addresses takes 24 KiB, so that a node of 64 GiB has room for 80,000 of them at
/// once, and the smallest one for the largest request twice.
fn request_bytes(memory_limit: u64) -> u64 {
    (memory_limit / 32).clamp(8 << 20, 2 << 30)
}

/// How long decoders and the disk's write queue may take to close: 128 MiB of queue at a slow disk's 20 MB/s.
const CLOSE_MAX: Duration = Duration::from_secs(7);

/// Bytes a pixel takes while it is decoded and rendered at full size: samples, and one rendition.
const DECODE_BYTES_PER_PIXEL: u64 = 6;

pub use second::look;

/// A running node.
pub struct Node {
    /// Its name.
    pub id: String,
    /// Where it speaks QUIC.
    pub quic: SocketAddr,
    /// Where operators look.
    pub admin: SocketAddr,
    /// Whom to trust to reach it.
    pub ca: PathBuf,
    row: NodeRow,
    members: Arc<Members>,
    links: Arc<Links>,
    cluster: Option<Arc<Cluster>>,
    service: Arc<Service>,
    reader: Arc<Reader>,
    store: Arc<FoyerStore>,
    pool: Arc<WorkerPool>,
    gpu: Option<Arc<WorkerPool>>,
    endpoint: quinn::Endpoint,
    readiness: Readiness,
    stop: CancellationToken,
    tasks: TaskTracker,
    drain: Duration,
}

/// What a node is started with.
pub struct Setup {
    /// The operator's decisions.
    pub config: Config,
    /// What it shows.
    pub identity: Identity,
    /// The node's binary, for its decoder workers.
    pub program: PathBuf,
    /// Instead of the configured buckets' origin; for nodes inside tests.
    pub origin: Option<Arc<dyn Origin>>,
    /// The keys of the nodes of one process. Without them the configuration says whether there are others.
    pub keys: Option<Keys>,
}

impl Node {
    /// Starts every room, in order. When it returns, the node answers.
    ///
    /// # Errors
    /// One sentence that says what to change; the process ends with code 2.
    pub async fn start(setup: Setup) -> anyhow::Result<Self> {
        let Setup { config, identity, program, origin, keys } = setup;
        let readiness = Readiness::new();
        let starting = readiness.hold("start");
        let registry = Registry::new();
        let tasks = TaskTracker::new();

        let quic = framecache::quic::bind(config.listen.quic).with_context(|| in_use("listen.quic", config.listen.quic))?;
        let admin = TcpListener::bind(config.listen.admin).await.with_context(|| in_use("listen.admin", config.listen.admin))?;

        let cache = cache_settings(&config);
        let gpu = second::start(&config, program.clone()).await?;
        let pool = pool_settings(&config, program);
        let budget = Budget::new(budget_lines(&config, keys.is_some(), &cache, &pool, gpu.lines())?)?;
        let s3 = Arc::new(S3Origin::new(config.buckets.iter().map(origin_settings).collect(), OriginLimits::default()).await?);
        let origin = origin.unwrap_or_else(|| s3.clone());
        let store = Arc::new(FoyerStore::open(cache).await?);
        let pool = Arc::new(WorkerPool::start(pool).await?);
        let engines = gpu.pool.clone().map(|gpu| Arc::new(Engines::new(pool.clone(), gpu)));
        let (ca, carries_own_name) = (identity.ca.clone(), identity.carries(&config.node.id));
        let server_config = serve::quic::server_config(identity.server_tls()?)?;
        let endpoint = framecache::quic::endpoint(quic, Some(server_config.clone()))?;
        let quic = endpoint.local_addr()?;
        let row = row(&config, quic);
        let members = Arc::new(Members::new(&config.node.id, alone(&row)));
        let links = Arc::new(Links::new(&config.node.id, identity.peer_tls(), PEER_BYTES)?);
        let reader = Reader::new(ReaderParts {
            origin,
            store: store.clone() as Arc<dyn Store>,
            decoder: engines.clone().map_or_else(|| pool.clone() as Arc<dyn Decoder>, |engines| engines),
            peers: Arc::new(Linked::new(links.clone(), members.clone())),
            decodes: config.node.roles.contains(&config::Role::Decode),
            budget: budget.clone(),
            freshness: config.buckets.iter().map(|bucket| (bucket.name.clone(), freshness(bucket))).collect::<HashMap<_, _>>(),
            limits: Limits { pixels_max: config.decode.pixels_max },
            tasks: tasks.clone(),
        });

        let metrics = RequestMetrics::new(&registry);
        let about = about(&config, quic, store.clone(), pool.clone(), reader.clone(), budget.clone(), s3.clone());
        let about = {
            let (engines, told) = (engines.clone(), gpu.told.clone());
            move || about().into_iter().chain(second::line(engines.as_deref(), told.as_deref())).collect()
        };
        let service = Service::new(ServiceParts {
            reader: reader.clone(),
            policy: policy(&config)?,
            members: members.clone(),
            about: Box::new(about),
            metrics,
            request_bytes: request_bytes(config.node.memory_limit),
        });
        crate::exports::register(
            &registry,
            crate::exports::Rooms {
                readiness: readiness.clone(),
                service: service.clone(),
                reader: reader.clone(),
                store: store.clone(),
                pool: pool.clone(),
                engines: engines.clone(),
                wants_gpu: config.decode.gpu != GpuUse::No,
                budget,
                origin: s3,
            },
        );

        let stop = CancellationToken::new();
        tasks.spawn(serve::quic::accept(endpoint.clone(), server_config, service.clone(), stop.clone()));
        // The others prove this node by its door, so that it is open before they are told.
        let cluster = meeting::join(&config, row.clone(), keys, links.clone()).await?;
        if let Some(cluster) = &cluster {
            anyhow::ensure!(
                carries_own_name,
                "the certificate does not carry {:?} as a DNS name, so that the other nodes would not count this one: issue one that does, \
                 or change node.id",
                config.node.id
            );
            crate::exports::cluster(&registry, cluster.clone());
            tasks.spawn(meeting::follow(cluster.views(), members.clone(), links.clone(), stop.clone()));
            if !config.cluster.seeds.is_empty() {
                meeting::meet(cluster, &members).await;
            }
        }
        service.open_door();
        let admin_address = admin.local_addr()?;
        let state = AdminState {
            registry,
            readiness: readiness.clone(),
            info: Arc::new(AdminInfo { node_id: config.node.id.clone(), version: env!("CARGO_PKG_VERSION") }),
        };
        tasks.spawn(admin::serve(admin, state, stop.clone()));
        drop(starting);
        let (id, drain) = (config.node.id.clone(), config.cluster.drain);
        tracing::info!(node = id, %quic, admin = %admin_address, "node answers");
        Ok(Self {
            id,
            quic,
            admin: admin_address,
            ca,
            row,
            members,
            links,
            cluster,
            service,
            reader,
            store,
            pool,
            gpu: gpu.pool,
            endpoint,
            readiness,
            stop,
            tasks,
            drain,
        })
    }

    /// Its row in a view.
    pub fn row(&self) -> NodeRow {
        self.cluster.as_ref().map_or_else(|| self.row.clone(), |cluster| cluster.row())
    }

    /// Its place among nodes that find each other; none if it was not told of any.
    pub fn cluster(&self) -> Option<&Arc<Cluster>> {
        self.cluster.as_ref()
    }

    /// What it knows of the others.
    pub fn members(&self) -> &Members {
        &self.members
    }

    /// The members from now on, this node among them.
    pub fn join(&self, view: View) {
        self.members.join(view);
    }

    /// What it fills with; for tests and the bench.
    pub fn reader(&self) -> &Arc<Reader> {
        &self.reader
    }

    /// What it holds; for tests and the bench.
    pub fn store(&self) -> &Arc<FoyerStore> {
        &self.store
    }

    /// Its decoders; for tests and the bench.
    pub fn pool(&self) -> &Arc<WorkerPool> {
        &self.pool
    }

    /// Leaves: not ready at once, off the ring, new requests are sent on, those that run may end until the drain deadline. Where there are
    /// others, it tells them until then what it holds. Then every room is closed, and what the cache holds is on disk.
    pub async fn stop(self) {
        self.readiness.drain();
        let deadline = Instant::now() + self.drain;
        if let Some(cluster) = &self.cluster {
            cluster.leave().await;
        }
        self.service.leave();
        if self.cluster.is_some() && self.members.topology().view().members().any(|row| row.id != self.id) {
            tokio::time::sleep_until(deadline).await;
        }
        self.service.drain(deadline).await;
        if let Some(cluster) = &self.cluster {
            cluster.close().await;
        }
        self.stop.cancel();
        self.links.close().await;
        self.endpoint.close(framecache::wire::code::LEAVING.into(), b"node ends");
        let _ = tokio::time::timeout(Duration::from_secs(1), self.endpoint.wait_idle()).await;
        self.tasks.close();
        if tokio::time::timeout(Duration::from_secs(5), self.tasks.wait()).await.is_err() {
            tracing::warn!(tasks = self.tasks.len(), "tasks did not end in time");
        }
        let closed = async {
            self.pool.close().await;
            if let Some(gpu) = &self.gpu {
                gpu.close().await;
            }
            self.store.close().await;
        };
        if tokio::time::timeout(CLOSE_MAX, closed).await.is_err() {
            tracing::warn!("decoders or disk did not close in time");
        }
        tracing::info!(node = self.id, "node ended");
    }
}

fn in_use(key: &str, address: SocketAddr) -> String {
    format!("{key} = \"{address}\" cannot be listened on: stop what uses the port, or set another")
}

fn cache_settings(config: &Config) -> CacheSettings {
    CacheSettings {
        dir: config.node.data_dir.as_ref().map(|dir| dir.join("cache")),
        raw_ram: config.cache.raw_ram,
        decoded_ram: config.cache.decoded_ram,
        disk: config.cache.disk.unwrap_or(0),
        admission: match config.cache.admission {
            config::Admission::Keep => AdmissionMode::Keep,
            config::Admission::All => AdmissionMode::All,
        },
        seed: incarnation(),
    }
}

fn pool_settings(config: &Config, program: PathBuf) -> PoolSettings {
    PoolSettings {
        workers: config.decode.workers,
        worker_memory: config.decode.worker_memory,
        deadline: config.decode.deadline,
        pixels_max: config.decode.pixels_max,
        ..PoolSettings::new(program)
    }
}

/// The lines of the node's memory, and the floors of its levels: each at least one maximal item, as far as half of what is free
/// allows; a larger picture is then refused as too large.
fn budget_lines(
    config: &Config,
    among_others: bool,
    cache: &CacheSettings,
    pool: &PoolSettings,
    gpu: Vec<(&'static str, u64)>,
) -> anyhow::Result<BudgetLines> {
    let requests = request_bytes(config.node.memory_limit);
    let mut fixed = vec![("process", PROCESS_BYTES), ("transport", TRANSPORT_BYTES), ("requests", requests)];
    fixed.extend(cache.memory_lines());
    fixed.extend(pool.memory_lines());
    fixed.extend(gpu);
    let total = config.node.memory_limit;
    let free = total.saturating_sub(fixed.iter().map(|(_, bytes)| bytes).sum());
    let decode = (config.decode.pixels_max.saturating_mul(DECODE_BYTES_PER_PIXEL)).min(free / 2);
    let frames = (config.decode.pixels_max.saturating_mul(3)).min(free / 8);
    if decode < config.decode.pixels_max.saturating_mul(DECODE_BYTES_PER_PIXEL) {
        let pixels = decode / DECODE_BYTES_PER_PIXEL;
        tracing::info!(
            "pictures of more than {pixels} pixels may be refused as too large: a higher node.memory_limit takes them"
        );
    }
    // Frames between nodes are mostly small: a larger one than this is made where it is wanted. A node that was told of no others needs
    // next to nothing.
    let others = among_others || config.cluster.keys.is_some() || !config.cluster.seeds.is_empty();
    let (among, pages) = if others { (frames / 4, 4 << 20) } else { (0, 0) };
    let levels = [
        (Level::Peek, pages),
        (Level::Fill, 4 << 20),
        (Level::Lend, pages),
        (Level::Fetch, pages),
        (Level::Read, 8 << 20),
        (Level::Decode, decode),
        (Level::Delegate, among),
        (Level::Relay, among),
        (Level::Forward, among),
        (Level::Frames, frames),
    ];
    let mut floors = [0; Level::ALL.len()];
    for (level, floor) in levels {
        // Where nothing is free the budget says which key is to blame.
        floors[level as usize] = floor.max(FLOOR_MIN);
    }
    Ok(BudgetLines { total, fixed, floors })
}

fn origin_settings(bucket: &config::Bucket) -> OriginSettings {
    OriginSettings {
        name: bucket.name.clone(),
        endpoint: bucket.endpoint.clone(),
        region: Some(bucket.region.clone()),
        path_style: bucket.path_style,
        credentials: match &bucket.credentials {
            config::Credentials::Chain => Credentials::Chain,
            config::Credentials::Anonymous => Credentials::Anonymous,
            config::Credentials::Profile(name) => Credentials::Profile(name.clone()),
        },
    }
}

fn freshness(bucket: &config::Bucket) -> Freshness {
    match bucket.freshness {
        config::Freshness::Immutable => Freshness::Immutable,
        config::Freshness::MaxAge(age) => Freshness::MaxAge(age),
        config::Freshness::Always => Freshness::Always,
    }
}

fn policy(config: &Config) -> anyhow::Result<Policy> {
    match &config.auth.policy {
        AuthPolicy::AllowAll => Ok(Policy::AllowAll),
        AuthPolicy::File(path) => {
            let text =
                std::fs::read_to_string(path).with_context(|| format!("auth.policy = {:?} cannot be read", path.display()))?;
            Ok(Policy::parse(&text)?)
        }
    }
}

/// This node, as a view has it.
fn row(config: &Config, quic: SocketAddr) -> NodeRow {
    let weight = (config.node.weight * 100.0).round().max(1.0) as u32;
    NodeRow {
        quic: quic.to_string(),
        incarnation: incarnation(),
        roles: config.node.roles.iter().map(|role| format!("{role:?}").to_lowercase()).collect(),
        ..NodeRow::member(&config.node.id, weight)
    }
}

/// The members: one node alone.
fn alone(row: &NodeRow) -> View {
    let mut view = View::default();
    // An empty view takes any row.
    let _ = view.merge(row.clone());
    view
}

/// Moves with each start.
fn incarnation() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

fn info(config: &Config, quic: SocketAddr) -> Vec<(String, String)> {
    vec![
        ("node".into(), config.node.id.clone()),
        ("version".into(), env!("CARGO_PKG_VERSION").into()),
        ("quic".into(), quic.to_string()),
    ]
}

/// The lines with which a node describes itself.
fn about(
    config: &Config,
    quic: SocketAddr,
    store: Arc<FoyerStore>,
    pool: Arc<WorkerPool>,
    reader: Arc<Reader>,
    budget: Arc<Budget>,
    origin: Arc<S3Origin>,
) -> impl Fn() -> Vec<(String, String)> + Send + Sync + 'static {
    let fixed = info(config, quic);
    let buckets: Vec<String> = config.buckets.iter().map(|bucket| bucket.name.clone()).collect();
    let started = StdInstant::now();
    move || {
        let mut lines = fixed.clone();
        let mut line = |name: &str, value: String| lines.push((name.to_owned(), value));
        line("uptime", format!("{} s", started.elapsed().as_secs()));
        line("buckets", buckets.join(", "));
        let memory: u64 = budget.usage().iter().map(|level| level.in_use).sum();
        line("memory", format!("{} of {} bytes reserved", memory, budget.total()));
        let cache = store.stats();
        line("ram", format!("{} bytes raw, {} bytes decoded", cache.ram_raw_bytes, cache.ram_decoded_bytes));
        line(
            "disk",
            match &cache.disk_off {
                Some(reason) => format!("off: {reason}"),
                None if cache.disk_capacity_bytes == 0 => "none".into(),
                None => format!("{} of {} bytes", cache.disk_held_bytes, cache.disk_capacity_bytes),
            },
        );
        let (reads, decode, origin) = (reader.stats(), pool.stats(), origin.stats().snapshot());
        line("fills", format!("{} pages, {} decoded, {} joined", reads.fills, reads.units, reads.joined));
        line(
            "decode",
            format!("{} workers, {} jobs, {} deaths", decode.workers, decode.jobs, decode.deaths_judged + decode.deaths_lost),
        );
        line("origin", format!("{} requests, {} retries", origin.requests, origin.retries));
        lines
    }
}
