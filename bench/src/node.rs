//! A real node as its own process: `framecache-node serve` on a written configuration, watched through its admin address.

use std::collections::HashMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use framecache::{Client, ClientConfig};
use framecache_tests::processes::{http_get, signal};
use tokio::process::{Child, Command};

use crate::meter::Tree;
use crate::trust::Trust;

/// The bucket that every scenario reads.
pub const BUCKET: &str = "bench";

/// Longest start and longest end of a node.
const PATIENCE: Duration = Duration::from_secs(60);

/// How a node is set up. Sizes are in bytes.
#[derive(Clone, Debug)]
pub struct NodeSettings {
    /// The binary.
    pub program: PathBuf,
    /// Where it keeps its configuration, log and cache.
    pub folder: PathBuf,
    /// What it shows.
    pub trust: Trust,
    /// The S3 face that it reads from.
    pub origin: SocketAddr,
    /// Where it listens for clients.
    pub ip: IpAddr,
    /// `node.memory_limit`.
    pub memory: u64,
    /// `cache.raw_ram`.
    pub raw_ram: u64,
    /// `cache.decoded_ram`.
    pub decoded_ram: u64,
    /// `cache.disk`; 0 for none.
    pub disk: u64,
    /// `decode.workers`.
    pub workers: usize,
}

impl NodeSettings {
    fn toml(&self, quic: SocketAddr, admin: SocketAddr) -> String {
        let disk = if self.disk > 0 { self.disk.to_string() } else { "\"off\"".into() };
        let Trust { ca, cert, key } = &self.trust;
        format!(
            "[node]\nid = \"bench\"\ndata_dir = {:?}\nmemory_limit = {}\n[listen]\nquic = \"{quic}\"\nadmin = \"{admin}\"\n\
             [cache]\nraw_ram = {}\ndecoded_ram = {}\ndisk = {disk}\n[decode]\nworkers = {}\n[cluster]\ndrain_s = 1\n\
             [[bucket]]\nname = \"{BUCKET}\"\nendpoint = \"http://{}\"\ncredentials = \"anonymous\"\nfreshness = \"immutable\"\n\
             [tls]\nca = {ca:?}\ncert = {cert:?}\nkey = {key:?}\n[auth]\npolicy = \"allow-all\"\n[telemetry]\nlog = \"warn\"\n",
            self.folder.join("data"),
            self.memory,
            self.raw_ram,
            self.decoded_ram,
            self.workers,
            self.origin,
        )
    }
}

/// A running node.
#[derive(Debug)]
pub struct NodeProcess {
    child: Child,
    /// Its process and its decoders'.
    pub tree: Tree,
    /// Where it speaks QUIC.
    pub quic: SocketAddr,
    /// From the start of the process until it was ready.
    pub ready_after: Duration,
    admin: SocketAddr,
    ca: PathBuf,
    log: PathBuf,
}

impl NodeProcess {
    /// Starts it and waits until it is ready.
    pub async fn start(settings: &NodeSettings) -> Result<Self> {
        fs::create_dir_all(settings.folder.join("data"))?;
        let quic = SocketAddr::new(settings.ip, free_udp_port(settings.ip)?);
        let admin = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let (config, log) = (settings.folder.join("node.toml"), settings.folder.join("node.log"));
        fs::write(&config, settings.toml(quic, admin))?;
        let errors = fs::OpenOptions::new().create(true).append(true).open(&log)?;
        let mut command = Command::new(&settings.program);
        command.arg("serve").arg("--config").arg(&config).stdin(Stdio::null()).stdout(errors.try_clone()?).stderr(errors);
        let begun = Instant::now();
        let child = command.kill_on_drop(true).spawn().with_context(|| format!("start {}", settings.program.display()))?;
        let tree = Tree(child.id().context("the node ended at once")?);
        let mut node = Self { child, tree, quic, admin, ready_after: Duration::ZERO, ca: settings.trust.ca.clone(), log };
        while !http_get(admin, "/ready").await.is_ok_and(|(status, _)| status == 200) {
            if let Some(status) = node.child.try_wait()? {
                bail!("the node ended with {status}: {}", node.last_words());
            }
            ensure!(begun.elapsed() < PATIENCE, "the node is not ready after {PATIENCE:?}: {}", node.last_words());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        node.ready_after = begun.elapsed();
        Ok(node)
    }

    /// A client of it.
    pub fn client(&self) -> Result<Client> {
        Ok(Client::new(self.client_config())?)
    }

    /// The configuration of a client of it.
    pub fn client_config(&self) -> ClientConfig {
        let mut config = ClientConfig::new(&self.quic.to_string());
        config.tls.ca = Some(self.ca.clone());
        config
    }

    /// Its metrics now.
    pub async fn metrics(&self) -> Result<Metrics> {
        let (status, text) = http_get(self.admin, "/metrics").await?;
        ensure!(status == 200, "/metrics answers {status}");
        Ok(Metrics::parse(&text))
    }

    /// Asks it to end, and waits until it has.
    pub async fn stop(mut self) -> Result<()> {
        signal(self.tree.0, libc::SIGTERM);
        tokio::time::timeout(PATIENCE, self.child.wait()).await.context("the node does not end")??;
        Ok(())
    }

    /// Ends it as a power cut would, its decoders with it.
    pub async fn kill(mut self) -> Result<()> {
        signal(self.tree.0, libc::SIGKILL);
        self.child.wait().await?;
        Ok(())
    }

    fn last_words(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        log.lines().rev().take(3).collect::<Vec<_>>().join(" | ")
    }
}

/// A port that is free now. Another process could take it before the node does; then the node says so.
pub fn free_udp_port(ip: IpAddr) -> Result<u16> {
    Ok(UdpSocket::bind((ip, 0))?.local_addr()?.port())
}

/// One reading of a node's metrics.
#[derive(Clone, Debug, Default)]
pub struct Metrics(HashMap<String, Vec<(String, f64)>>);

impl Metrics {
    /// Of the text of a page.
    pub fn parse(text: &str) -> Self {
        let mut metrics: HashMap<String, Vec<(String, f64)>> = HashMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some((series, value)) = line.rsplit_once(' ') else { continue };
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let Ok(value) = value.parse() else { continue };
            metrics.entry(name.to_owned()).or_default().push((labels.trim_end_matches('}').to_owned(), value));
        }
        Self(metrics)
    }

    /// Both together: of several nodes, series by series.
    pub fn and(mut self, other: Metrics) -> Self {
        other.0.into_iter().for_each(|(name, series)| self.0.entry(name).or_default().extend(series));
        self
    }

    /// The sum of a metric over all its labels; 0 if it is not there.
    pub fn sum(&self, name: &str) -> f64 {
        self.sum_where(name, "")
    }

    /// The sum over the series whose labels contain `label`, written `name="value"`.
    pub fn sum_where(&self, name: &str, label: &str) -> f64 {
        self.0.get(name).into_iter().flatten().filter(|(labels, _)| labels.contains(label)).map(|(_, value)| value).sum()
    }

    /// The quantile of a histogram since `before`: the upper bound of the bucket that holds it. `None` without samples.
    pub fn quantile_since(&self, before: &Metrics, name: &str, quantile: f64) -> Option<f64> {
        let buckets = |metrics: &Metrics| -> Vec<(f64, f64)> {
            let series = metrics.0.get(&format!("{name}_bucket")).into_iter().flatten();
            let bound = |labels: &str| labels.split("le=\"").nth(1)?.split('"').next()?.parse::<f64>().ok();
            let mut buckets: Vec<(f64, f64)> = series.filter_map(|(labels, count)| Some((bound(labels)?, *count))).collect();
            buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
            buckets
        };
        let earlier: HashMap<u64, f64> = buckets(before).into_iter().map(|(bound, count)| (bound.to_bits(), count)).collect();
        let rows: Vec<(f64, f64)> = buckets(self)
            .into_iter()
            .map(|(bound, count)| (bound, count - earlier.get(&bound.to_bits()).unwrap_or(&0.0)))
            .collect();
        let total = rows.last().map(|(_, count)| *count).filter(|&count| count > 0.0)?;
        rows.into_iter().find(|(_, count)| *count >= total * quantile).map(|(bound, _)| bound)
    }
}

/// The node's binary beside this one.
pub fn beside(own: &Path) -> PathBuf {
    own.with_file_name("framecache-node")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: sums respect labels, and a quantile counts only what came after the first reading.
    #[test]
    fn metrics_are_read() {
        let page = |fast, all| {
            Metrics::parse(&format!(
                "# TYPE x counter\nx{{verb=\"read\",outcome=\"ok\"}} 3\nx{{verb=\"list\"}} 4\n\
                 h_bucket{{le=\"0.001\"}} {fast}\nh_bucket{{le=\"0.002\"}} {all}\nh_bucket{{le=\"+Inf\"}} {all}\n"
            ))
        };
        assert_eq!((page(0, 0).sum("x"), page(0, 0).sum_where("x", "verb=\"read\"")), (7.0, 3.0));
        assert_eq!(page(90, 100).quantile_since(&page(0, 0), "h", 0.99), Some(0.002));
        assert_eq!(page(190, 200).quantile_since(&page(0, 100), "h", 0.99), Some(0.001));
        assert_eq!(page(5, 5).quantile_since(&page(5, 5), "h", 0.99), None);
    }
}
