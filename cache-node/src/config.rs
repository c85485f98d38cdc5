//! What the operator decided: one TOML file, every key also an environment variable, read once and lifted once.
//!
//! The way of a key: [`keys`] names it (the table that the docs and the tests read), [`source`] finds it in the file or the
//! environment and checks its form, [`raw`] holds it as written, [`lift`] turns it into the [`Config`] that rooms use. A key that
//! nobody knows is refused by name, because a misspelt limit that is silently ignored is found by an alert at night.
//!
//! No key holds a secret: keys and certificates are named by path, origin credentials by where to find them. Messages may
//! therefore quote what was written.
//!
//! ```
//! use framecache_node::config::Config;
//! let env = [("FRAMECACHE_CACHE__RAW_RAM".to_string(), "512MiB".to_string())];
//! let config = Config::load(None, env.into_iter())?;
//! assert_eq!(config.cache.raw_ram, 512 << 20);
//! # Ok::<(), framecache_node::config::ConfigError>(())
//! ```

mod bucket;
mod host;
mod keys;
mod lift;
mod raw;
mod size;
mod source;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use bucket::{Bucket, Credentials, Freshness};
pub use host::Host;
pub use keys::{KEYS, Key, Kind};
pub use size::Size;

/// Every decision of the operator, checked: what one room needs lies under one name.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub node: Node,
    pub listen: Listen,
    pub cache: Cache,
    /// The buckets that may be asked for; names are unique.
    pub buckets: Vec<Bucket>,
    pub decode: Decode,
    pub cluster: Cluster,
    pub gateway: Gateway,
    /// `None`: this node makes its own certificate, and listens on loopback alone.
    pub tls: Option<Tls>,
    pub auth: Auth,
    pub telemetry: Telemetry,
    pub(crate) warnings: Vec<String>,
}

/// `[node]`: who this is and what it may use.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub id: String,
    /// Where what survives a restart lies; `None` keeps everything in memory.
    pub data_dir: Option<PathBuf>,
    /// Never empty, no role twice.
    pub roles: Vec<Role>,
    /// Absolute weight in the ring: twice the weight owns twice the keys.
    pub weight: f64,
    /// Bytes that this node and its workers may use, all together.
    pub memory_limit: u64,
}

/// What a node does for the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Owns keys of the ring.
    Cache,
    /// Decodes for other nodes.
    Decode,
}

/// `[listen]`: where each door is.
#[derive(Clone, Debug, PartialEq)]
pub struct Listen {
    pub quic: SocketAddr,
    pub admin: SocketAddr,
    pub gateway: SocketAddr,
    pub gossip: SocketAddr,
    pub liveness: SocketAddr,
}

/// `[cache]`: how much is kept, and what.
#[derive(Clone, Debug, PartialEq)]
pub struct Cache {
    pub raw_ram: u64,
    pub decoded_ram: u64,
    /// Bytes of the disk tier under [`Node::data_dir`]; `None` is off. Never set without a data folder.
    pub disk: Option<u64>,
    pub admission: Admission,
}

/// What a full cache does with a new entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Admit rarely: a training epoch reads everything once, so what is already here is worth as much as what comes.
    Keep,
    /// Admit everything, evict the oldest.
    All,
}

/// `[decode]`: the decoder workers.
#[derive(Clone, Debug, PartialEq)]
pub struct Decode {
    pub workers: usize,
    /// Bytes that one worker may use before it is stopped.
    pub worker_memory: u64,
    /// The longest that one job may take.
    pub deadline: Duration,
    /// Larger pictures are refused from their header.
    pub pixels_max: u64,
    pub gpu: GpuUse,
}

/// Whether a GPU decodes beside the CPU, which always does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuUse {
    /// It is not looked for.
    No,
    /// Where there is one; else the CPU does all, and a warning says why.
    IfThere,
    /// A node without one does not start.
    Required,
}

/// `[cluster]`: how nodes find and leave each other.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// `host:port` of nodes, or one DNS name that lists them.
    pub seeds: Vec<String>,
    pub settle: Duration,
    pub drain: Duration,
    /// File with one key a line: the first signs, all are accepted.
    pub keys: Option<PathBuf>,
}

/// `[gateway]`: the S3 face.
#[derive(Clone, Debug, PartialEq)]
pub struct Gateway {
    /// File with `access-key secret-key` a line.
    pub keys: Option<PathBuf>,
}

/// `[tls]`: PEM files, all three.
#[derive(Clone, Debug, PartialEq)]
pub struct Tls {
    pub ca: PathBuf,
    pub cert: PathBuf,
    pub key: PathBuf,
}

/// `[auth]`: who may do what.
#[derive(Clone, Debug, PartialEq)]
pub struct Auth {
    pub policy: AuthPolicy,
    /// OpenID Connect issuers whose tokens name callers.
    pub issuers: Vec<String>,
}

/// Where the policy comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum AuthPolicy {
    /// Every caller may do everything.
    AllowAll,
    /// The rules of this file.
    File(PathBuf),
}

/// `[telemetry]`: where signals go.
#[derive(Clone, Debug, PartialEq)]
pub struct Telemetry {
    /// Spans go here over OTLP/gRPC; `None` sends none.
    pub otlp_endpoint: Option<String>,
    /// What [`crate::telemetry`] reads: levels by target, `json,` in front for JSON lines.
    pub log: String,
}

/// Why there is no usable configuration: one sentence that names the key and the fix.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read: correct the path or its permissions.
    #[error("read config {}: {source}; give the path of a readable TOML file", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    /// The file is no TOML.
    #[error("{place}: not TOML: {message}")]
    Syntax { place: String, message: String },
    /// A name that nobody knows: usually a misspelt one.
    #[error("{place}: unknown {what} `{name}`; {fix}")]
    Unknown { place: String, what: &'static str, name: String, fix: String },
    /// A value that its key cannot have.
    #[error("{place}: `{key}` is {got}; {fix}")]
    Value { place: String, key: String, got: String, fix: String },
    /// A variable of ours whose bytes are no text.
    #[error("environment: variable `{name}` is not UTF-8; write it in UTF-8, or unset it")]
    NotText { name: String },
    /// Values that are fine alone and not together, or not on this host.
    #[error("`{key}` {problem}; {fix}")]
    Conflict { key: &'static str, problem: String, fix: String },
}

/// The variables of this process that [`Config::load`] reads. All others are none of our business, whatever they hold.
pub fn environment() -> Result<Vec<(String, String)>, ConfigError> {
    source::variables(std::env::vars_os())
}

/// Whether `path` is a key that somebody could write, such as `cache.raw_ram`.
pub(crate) fn is_key(path: &str) -> bool {
    path.split_once('.').is_some_and(|(table, name)| keys::find(table, name).is_some())
}

impl Config {
    /// The configuration of `path`, overlaid by those variables of `env` that begin with `FRAMECACHE_` and hold `__`.
    ///
    /// Reads the file and asks the host for its memory, cores and name; nothing else is touched, so that `--check-config` runs
    /// anywhere. See [`Config::check_host`] for the rest.
    pub fn load(path: Option<&Path>, env: impl Iterator<Item = (String, String)>) -> Result<Self, ConfigError> {
        let text = match path {
            None => String::new(),
            Some(path) => std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.into(), source })?,
        };
        let name = path.map_or_else(String::new, |path| path.display().to_string());
        Self::parse(&name, &text, env, &Host::here())
    }

    /// As [`Config::load`], from the text of a file called `name`, as if on `host`: no I/O at all.
    pub fn parse(name: &str, text: &str, env: impl Iterator<Item = (String, String)>, host: &Host) -> Result<Self, ConfigError> {
        let source = source::Source::read(name, text, env)?;
        lift::lift(source, host)
    }

    /// What was set and has no effect, or not the effect that one might expect: each a sentence, for the log at start.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// What only this host can answer: limits fit its memory, the data folder can be written, every named file can be read.
    pub fn check_host(&self) -> Result<(), ConfigError> {
        host::check(self, &Host::here())
    }

    /// In words, what the disk tier lacks in free space; it would be off, and the node would serve without it.
    pub fn lacks_disk(&self) -> Option<String> {
        host::lacks_disk(self)
    }
}
