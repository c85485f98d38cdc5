//! From keys as written to a [`Config`]: every field is taken apart by name, so that the compiler misses a forgotten key.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::raw::{Raw, RawAuth, RawCache, RawCluster, RawDecode, RawGateway, RawListen, RawNode, RawTelemetry, RawTls};
use super::source::Source;
use super::{
    Admission, Auth, AuthPolicy, Cache, Cluster, Config, ConfigError, Decode, Gateway, GpuUse, Host, Listen, Node, Role, Size,
    Telemetry, Tls, bucket,
};

/// Least bytes of one decoder: below this libjpeg and libav cannot hold a picture of 4,000 by 3,000 and their own tables.
const WORKER_MEMORY_MIN: u64 = 64 << 20;

/// Least bytes of the disk tier: 64 blocks of 1 MiB, below which blocks cannot hold what is admitted.
const DISK_MIN: u64 = 64 << 20;

/// Most seeds: a node needs one that answers.
const SEEDS_MAX: usize = 64;

/// Keys of rooms that are not built yet: they are checked, and setting one is answered by a warning.
const NO_EFFECT_YET: &[&str] = &["listen.gateway", "gateway.keys", "auth.issuers"];

/// What lifting needs at hand: where keys were written, the host, and room for warnings.
pub(super) struct Lift<'a> {
    source: &'a Source,
    host: &'a Host,
    warnings: Vec<String>,
}

/// The configuration that `source` means on this host.
pub(super) fn lift(mut source: Source, host: &Host) -> Result<Config, ConfigError> {
    let tables = std::mem::take(&mut source.tables);
    // Names and forms are checked by now: what serde still refuses is a key that table and struct do not share.
    let raw: Raw = tables
        .try_into()
        .map_err(|error: toml::de::Error| ConfigError::Syntax { place: "config".into(), message: error.message().to_string() })?;
    let Raw { node, listen, cache, bucket, decode, cluster, gateway, tls, auth, telemetry } = raw;
    let mut lift = Lift { source: &source, host, warnings: Vec::new() };
    for path in NO_EFFECT_YET.iter().filter(|path| source.is_set(path)) {
        lift.warn(format!("`{path}` has no effect in this release"));
    }
    let node = lift.node(node)?;
    let cache = lift.cache(cache, &node)?;
    let buckets = bucket::lift(bucket, &mut lift)?;
    if buckets.is_empty() {
        lift.warn("no `[[bucket]]` is configured: every read will be answered `not found`".into());
    }
    let decode = lift.decode(decode)?;
    let cluster = lift.cluster(cluster)?;
    let RawGateway { keys } = gateway;
    let gateway = Gateway { keys: keys.map(PathBuf::from) };
    let tls = lift.tls(tls)?;
    let listen = lift.listen(listen, tls.is_some())?;
    lift.cluster_keys(&cluster, &listen)?;
    let auth = lift.auth(auth, &listen)?;
    let telemetry = lift.telemetry(telemetry)?;
    let warnings = lift.warnings;
    Ok(Config { node, listen, cache, buckets, decode, cluster, gateway, tls, auth, telemetry, warnings })
}

impl Lift<'_> {
    pub(super) fn warn(&mut self, warning: String) {
        self.warnings.push(warning);
    }

    /// The value at `path` cannot be meant.
    pub(super) fn wrong(&self, path: &str, got: &str, fix: &str) -> ConfigError {
        let got = format!("{:?}", got.chars().take(60).collect::<String>());
        ConfigError::Value { place: self.source.place(path), key: path.into(), got, fix: fix.into() }
    }

    /// As [`Lift::wrong`], where the value may hold a secret that was put in the wrong place.
    pub(super) fn wrong_unseen(&self, path: &str, fix: &str) -> ConfigError {
        let got = "not one of its forms".into();
        ConfigError::Value { place: self.source.place(path), key: path.into(), got, fix: fix.into() }
    }

    /// Refuses what is not `http(s)://host[:port]`: a user, a path or a query would be sent, or logged, where nobody expects it.
    pub(super) fn origin_url(&self, path: &str, url: &str) -> Result<(), ConfigError> {
        let fix = "write http:// or https:// with a host and an optional port, nothing else";
        let uri: hyper::Uri = url.parse().map_err(|_| self.wrong_unseen(path, fix))?;
        let plain = matches!(uri.scheme_str(), Some("http" | "https"))
            && uri.authority().is_some_and(|authority| !authority.as_str().contains('@') && !authority.host().is_empty())
            && matches!(uri.path(), "" | "/")
            && uri.query().is_none();
        if plain { Ok(()) } else { Err(self.wrong_unseen(path, fix)) }
    }

    fn node(&mut self, raw: RawNode) -> Result<Node, ConfigError> {
        let RawNode { id, data_dir, roles, weight, memory_limit } = raw;
        let id = id.unwrap_or_else(|| self.host.name.clone());
        let legal = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        if !(1..=63).contains(&id.len()) || !id.bytes().all(legal) {
            return Err(self.wrong("node.id", &id, "write 1 to 63 of a-z, A-Z, 0-9, '.', '-', '_'"));
        }
        let roles = match roles {
            None => vec![Role::Cache, Role::Decode],
            Some(roles) => roles.iter().map(|role| if role == "cache" { Role::Cache } else { Role::Decode }).collect(),
        };
        // Half: the other half is the kernel's page cache, the training job's, and what no allocator accounts for.
        let memory_limit = memory_limit.unwrap_or(self.host.memory() / 2);
        Ok(Node { id, data_dir: data_dir.map(PathBuf::from), roles, weight: weight.unwrap_or(1.0), memory_limit })
    }

    fn cache(&mut self, raw: RawCache, node: &Node) -> Result<Cache, ConfigError> {
        let RawCache { raw_ram, decoded_ram, disk, admission } = raw;
        // A quarter each: the rest is for decoders, buffers and requests under way. These do not shrink with a small node: the
        // disk's buffers alone are 448 MiB.
        let share = if node.memory_limit < 4 << 30 { node.memory_limit / 8 } else { node.memory_limit / 4 };
        let raw_ram = raw_ram.unwrap_or(share);
        let decoded_ram = decoded_ram.unwrap_or(share);
        if raw_ram.saturating_add(decoded_ram) >= node.memory_limit {
            return Err(ConfigError::Conflict {
                key: "node.memory_limit",
                problem: format!(
                    "of {} is no more than `cache.raw_ram` and `cache.decoded_ram` together ({} + {})",
                    Size(node.memory_limit),
                    Size(raw_ram),
                    Size(decoded_ram)
                ),
                fix: "raise it or lower one of them".into(),
            });
        }
        let disk = disk.filter(|bytes| *bytes > 0);
        match (disk, &node.data_dir) {
            (Some(bytes), _) if bytes < DISK_MIN => {
                return Err(self.wrong("cache.disk", &Size(bytes).to_string(), "give at least 64MiB, or \"off\""));
            }
            (Some(_), None) => {
                let (problem, fix) = ("needs a folder".into(), "set `node.data_dir`, or `cache.disk = \"off\"`".into());
                return Err(ConfigError::Conflict { key: "cache.disk", problem, fix });
            }
            (None, Some(_)) => self.warn("`node.data_dir` is set and `cache.disk` is off: no data survives a restart".into()),
            _ => {}
        }
        let admission = if admission.as_deref() == Some("all") { Admission::All } else { Admission::Keep };
        Ok(Cache { raw_ram, decoded_ram, disk, admission })
    }

    fn decode(&mut self, raw: RawDecode) -> Result<Decode, ConfigError> {
        let RawDecode { workers, worker_memory, deadline_ms, pixels_max, engines } = raw;
        let worker_memory = worker_memory.unwrap_or(3 << 30);
        if worker_memory < WORKER_MEMORY_MIN {
            return Err(self.wrong("decode.worker_memory", &Size(worker_memory).to_string(), "give at least 64MiB"));
        }
        let engines = engines.unwrap_or_default();
        let names = |engine: &str| engines.iter().any(|name| name == engine);
        let gpu = match (names("gpu"), names("cpu")) {
            (false, _) => GpuUse::No,
            (true, true) => GpuUse::IfThere,
            (true, false) => GpuUse::Required,
        };
        Ok(Decode {
            workers: workers.unwrap_or(self.host.cores.clamp(1, 1024)),
            worker_memory,
            deadline: Duration::from_millis(deadline_ms.unwrap_or(30_000)),
            // Where Pillow refuses (twice `Image.MAX_IMAGE_PIXELS`): 512 MiB of RGB.
            pixels_max: pixels_max.unwrap_or(178_956_970),
            gpu,
        })
    }

    fn cluster(&mut self, raw: RawCluster) -> Result<Cluster, ConfigError> {
        let RawCluster { seeds, settle_s, drain_s, keys } = raw;
        let seeds = seeds.unwrap_or_default();
        if let Some(seed) = seeds.get(SEEDS_MAX) {
            return Err(self.wrong("cluster.seeds", seed, "give at most 64 seeds; one DNS name may stand for many nodes"));
        }
        for seed in &seeds {
            let port = seed.rsplit_once(':').filter(|(host, _)| !host.is_empty()).and_then(|(_, port)| port.parse::<u16>().ok());
            if port.is_none_or(|port| port == 0) || seed.contains('/') {
                return Err(self.wrong("cluster.seeds", seed, "write each seed as \"host:port\""));
            }
        }
        Ok(Cluster {
            seeds,
            settle: Duration::from_secs(settle_s.unwrap_or(300)),
            drain: Duration::from_secs(drain_s.unwrap_or(30)),
            keys: keys.map(PathBuf::from),
        })
    }

    /// Beyond loopback whoever sends a datagram could join: there it takes a key.
    fn cluster_keys(&mut self, cluster: &Cluster, listen: &Listen) -> Result<(), ConfigError> {
        let beyond = cluster.seeds.iter().find(|seed| !is_loopback_seed(seed));
        let doors = [("listen.gossip", &listen.gossip), ("listen.liveness", &listen.liveness)];
        let open = doors.iter().find(|(_, address)| !is_loopback(address));
        if cluster.keys.is_none() {
            let problem = match (open, beyond) {
                (Some((key, _)), _) => format!("is missing while `{key}` goes beyond loopback"),
                (None, Some(seed)) => format!("is missing while the seed \"{seed}\" is beyond loopback"),
                (None, None) => return Ok(()),
            };
            let fix = "make one with `openssl rand -hex 32 > FILE` and name that file, the same on every node".into();
            return Err(ConfigError::Conflict { key: "cluster.keys", problem, fix });
        }
        if let (Some(seed), Some((key, address))) = (beyond, doors.iter().find(|(_, address)| is_loopback(address))) {
            self.warn(format!(
                "the seed \"{seed}\" is beyond loopback, and `{key}` = \"{address}\" cannot be reached from there"
            ));
        }
        Ok(())
    }

    fn tls(&self, raw: RawTls) -> Result<Option<Tls>, ConfigError> {
        let RawTls { ca, cert, key } = raw;
        match (ca, cert, key) {
            (None, None, None) => Ok(None),
            (Some(ca), Some(cert), Some(key)) => Ok(Some(Tls { ca: ca.into(), cert: cert.into(), key: key.into() })),
            (ca, cert, _) => {
                let key = if ca.is_none() {
                    "tls.ca"
                } else if cert.is_none() {
                    "tls.cert"
                } else {
                    "tls.key"
                };
                let fix = "give `ca`, `cert` and `key` together, or none of them".into();
                Err(ConfigError::Conflict { key, problem: "is missing".into(), fix })
            }
        }
    }

    fn listen(&self, raw: RawListen, has_tls: bool) -> Result<Listen, ConfigError> {
        let RawListen { quic, admin, gateway, gossip, liveness } = raw;
        let address = |path: &'static str, text: Option<String>, port: u16| -> Result<SocketAddr, ConfigError> {
            let Some(text) = text else { return Ok(SocketAddr::from(([127, 0, 0, 1], port))) };
            let address: SocketAddr = text.parse().map_err(|_| self.wrong(path, &text, "write ip:port"))?;
            if !has_tls && !is_loopback(&address) {
                let problem = format!("= {text:?} is beyond loopback without `[tls]`");
                let fix = "set `tls.ca`, `tls.cert` and `tls.key`, or listen on 127.0.0.1".into();
                return Err(ConfigError::Conflict { key: path, problem, fix });
            }
            Ok(address)
        };
        let listen = Listen {
            quic: address("listen.quic", quic, 4433)?,
            admin: address("listen.admin", admin, 9433)?,
            gateway: address("listen.gateway", gateway, 9000)?,
            gossip: address("listen.gossip", gossip, 4434)?,
            liveness: address("listen.liveness", liveness, 4435)?,
        };
        let same = |a: &SocketAddr, b: &SocketAddr| a == b && a.port() != 0;
        let udp = [("listen.gossip", listen.gossip), ("listen.liveness", listen.liveness), ("listen.quic", listen.quic)];
        let clash = (0..udp.len()).find(|at| udp[at + 1..].iter().any(|other| same(&udp[*at].1, &other.1)));
        let clash =
            clash.map(|at| udp[at]).or_else(|| same(&listen.admin, &listen.gateway).then_some(("listen.admin", listen.admin)));
        match clash {
            None => Ok(listen),
            Some((key, address)) => {
                let problem = format!("= \"{address}\" is taken by another `[listen]` key");
                Err(ConfigError::Conflict { key, problem, fix: "give each its own port".into() })
            }
        }
    }

    fn auth(&self, raw: RawAuth, listen: &Listen) -> Result<Auth, ConfigError> {
        let RawAuth { policy, issuers } = raw;
        let issuers = issuers.unwrap_or_default();
        for issuer in &issuers {
            if !issuer.starts_with("https://") || issuer.contains(['@', '?', '#']) {
                return Err(self.wrong("auth.issuers", issuer, "write each issuer as an https:// address"));
            }
        }
        let policy = match policy.as_deref() {
            Some("allow-all") => AuthPolicy::AllowAll,
            Some(path) => AuthPolicy::File(path.into()),
            None if is_loopback(&listen.quic) && is_loopback(&listen.gateway) => AuthPolicy::AllowAll,
            None => {
                let problem = "is missing while `listen` goes beyond loopback".into();
                let fix = "name a policy file, or write \"allow-all\"".into();
                return Err(ConfigError::Conflict { key: "auth.policy", problem, fix });
            }
        };
        Ok(Auth { policy, issuers })
    }

    fn telemetry(&self, raw: RawTelemetry) -> Result<Telemetry, ConfigError> {
        let RawTelemetry { otlp_endpoint, log } = raw;
        if let Some(url) = &otlp_endpoint {
            self.origin_url("telemetry.otlp_endpoint", url)?;
        }
        let log = log.unwrap_or_else(|| "info".into());
        if let Err(fix) = crate::telemetry::LogSetting::parse(&log) {
            return Err(self.wrong("telemetry.log", &log, &fix));
        }
        Ok(Telemetry { otlp_endpoint, log })
    }
}

/// Whether a seed, `host:port`, is surely on this host.
fn is_loopback_seed(seed: &str) -> bool {
    match seed.parse::<SocketAddr>() {
        Ok(address) => is_loopback(&address),
        Err(_) => seed.rsplit_once(':').is_some_and(|(host, _)| host.eq_ignore_ascii_case("localhost")),
    }
}

/// Whether only this host can reach the address. An IPv4 address written as IPv6 counts as what it is.
fn is_loopback(address: &SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}
