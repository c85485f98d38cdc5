//! The embedded default: everything on this machine, nothing to configure.
//!
//! `framecache-node dev` serves a local folder as an S3 bucket, in this process, and starts N nodes in front of it on loopback,
//! each with its own cache folder.

pub mod origin;

use std::collections::HashMap;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use framecache::View;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::cluster::Keys;
use crate::config::{Config, Host, Size, environment};
use crate::identity::Identity;
use crate::node::{Node, Setup};
use crate::serve_command::{ended, local_names};
use crate::telemetry::{self, TelemetrySettings};
use origin::FolderOrigin;

/// Most nodes of one process; more would measure the machine, not the cluster.
const NODES_MAX: usize = 32;

/// A local cluster is settled soon, so that one can see it.
const DEV_SETTLE_S: u64 = 10;

/// Nobody waits for a local cluster to end.
const DEV_DRAIN_S: u64 = 1;

/// Longest wait until nodes of one process know each other.
const MEET_MAX: Duration = Duration::from_secs(20);

/// What `dev` is told.
#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// Nodes to start.
    #[arg(long, default_value_t = 1)]
    pub nodes: usize,
    /// Folder that is served as a bucket.
    #[arg(long, default_value = ".")]
    pub data: PathBuf,
    /// The bucket's name.
    #[arg(long, default_value = "data")]
    pub bucket: String,
    /// Ports: free ones, or the default ones for a single node (4433, 9433).
    #[arg(long, default_value = "free", value_parser = ["free", "default"])]
    pub ports: String,
    /// Where the nodes keep their caches, apart for each data folder; a temporary folder, removed at the end, if not given.
    /// Objects are taken as immutable: while you edit files, set FRAMECACHE_BUCKET__FRESHNESS=always.
    #[arg(long)]
    pub cache: Option<PathBuf>,
    /// Disk for each node's cache, e.g. 4GiB; 0 for none.
    #[arg(long, default_value = "2GiB")]
    pub disk: String,
    /// Memory that each node and its decoders may use; half of the host's among all, up to 8GiB each, if not given.
    #[arg(long)]
    pub memory: Option<String>,
    /// File that is written, as JSON, once every node answers.
    #[arg(long)]
    pub ready_file: Option<PathBuf>,
}

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// What keeps it from starting, as one sentence.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    anyhow::ensure!((1..=NODES_MAX).contains(&arguments.nodes), "--nodes is {}: want 1 to {NODES_MAX}", arguments.nodes);
    anyhow::ensure!(
        arguments.ports != "default" || arguments.nodes == 1,
        "--ports default is for one node: leave it out, or start one"
    );
    let mut told: HashMap<String, String> = environment()?.into_iter().collect();
    let log = told.remove("FRAMECACHE_TELEMETRY__LOG").unwrap_or_else(|| "warn".into());
    let otlp_endpoint = told.remove("FRAMECACHE_TELEMETRY__OTLP_ENDPOINT");
    let telemetry = telemetry::start(TelemetrySettings { log, otlp_endpoint, node_id: "dev".into() })?;

    let stop = CancellationToken::new();
    let origin = serve_folder(&arguments.data, &arguments.bucket, stop.clone()).await?;
    let (temporary, cache) = match &arguments.cache {
        // One for each data folder: another's objects may have the same names, and are taken as immutable.
        Some(cache) => (None, cache.join(folder_name(&arguments.data)?)),
        None => {
            // A folder of this user's alone, for caches that end with the process.
            let folder = tempfile::Builder::new().prefix("framecache-dev-").tempdir();
            let folder = folder.with_context(|| format!("make a folder in {}", std::env::temp_dir().display()))?;
            let path = folder.path().to_owned();
            (Some(folder), path)
        }
    };
    // A key that ends with this process: nodes of another one are other clusters.
    let keys = Some(Keys::random()?).filter(|_| arguments.nodes > 1);
    let mut nodes: Vec<Node> = Vec::new();
    for index in 0..arguments.nodes {
        let seed = nodes.first().and_then(|first| Some(first.cluster()?.gossip_address().to_string()));
        nodes.push(start_node(index, seed, keys.clone(), origin, &cache, &arguments).await?);
    }
    met(&nodes).await?;
    announce(&nodes, origin, &arguments)?;

    ended().await?;
    // All end, so that none has anybody to wait for.
    futures::future::join_all(nodes.into_iter().map(Node::stop)).await;
    stop.cancel();
    if let Some(Err(error)) = temporary.map(tempfile::TempDir::close) {
        tracing::warn!(%error, "temporary folder stays");
    }
    telemetry.shutdown(Duration::from_secs(3)).await;
    Ok(())
}

async fn serve_folder(data: &Path, bucket: &str, stop: CancellationToken) -> anyhow::Result<SocketAddr> {
    let origin = FolderOrigin::open(data, bucket).with_context(|| format!("--data {}: not a readable folder", data.display()))?;
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.context("listen for the folder's S3 face")?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        if let Err(error) = origin.serve(listener, stop.cancelled_owned()).await {
            tracing::error!(%error, "the folder's S3 face ended");
        }
    });
    Ok(address)
}

/// The configuration of node `index`: as an operator would write it, so that `dev` shows what `serve` does.
pub fn node_config(
    index: usize,
    seed: Option<&str>,
    origin: SocketAddr,
    cache: &Path,
    arguments: &Arguments,
) -> anyhow::Result<Config> {
    let (quic, admin) = match arguments.ports.as_str() {
        "default" => ("127.0.0.1:4433", "127.0.0.1:9433"),
        _ => ("127.0.0.1:0", "127.0.0.1:0"),
    };
    let data_dir = cache.join(format!("node-{index}"));
    let data_dir = data_dir.to_str().with_context(|| {
        format!("the cache folder {} is not UTF-8, as a configuration must be: give another with --cache", cache.display())
    })?;
    // A limit that is seldom reached: it lets the largest pictures in, as do RAM tiers of an eighth.
    let share = (Host::here().memory() / 2 / arguments.nodes.max(1) as u64).clamp(1 << 30, 8 << 30);
    let memory = match &arguments.memory {
        None => share,
        Some(text) => Size::parse(text).with_context(|| format!("--memory is {text:?}: want a size such as 3GiB"))?.0,
    };
    let (memory, ram) = (memory.to_string(), (memory / 8).to_string());
    let tables = serde_json::json!({
        "node": {"id": format!("dev-{index}"), "data_dir": data_dir, "memory_limit": memory},
        "listen": {"quic": quic, "admin": admin, "gossip": "127.0.0.1:0", "liveness": "127.0.0.1:0"},
        "cluster": {"seeds": seed.into_iter().collect::<Vec<_>>(), "settle_s": DEV_SETTLE_S, "drain_s": DEV_DRAIN_S},
        "cache": {"disk": arguments.disk, "raw_ram": ram, "decoded_ram": ram},
        "bucket": [{
            "name": arguments.bucket, "endpoint": format!("http://{origin}"), "region": "us-east-1", "path_style": true,
            "credentials": "anonymous", "freshness": "immutable",
        }],
    });
    let text = toml::to_string(&tables).context("write the nodes' configuration")?;
    Ok(Config::parse("dev", &text, environment()?.into_iter(), &Host::here())?)
}

async fn start_node(
    index: usize,
    seed: Option<String>,
    keys: Option<Keys>,
    origin: SocketAddr,
    cache: &Path,
    arguments: &Arguments,
) -> anyhow::Result<Node> {
    let config = node_config(index, seed.as_deref(), origin, cache, arguments)?;
    config.check_host()?;
    let identity = Identity::local(&local_names(&config.node.id))?;
    let program = std::env::current_exe().context("find own binary, which decoder workers run")?;
    Node::start(Setup { config, identity, program, origin: None, keys }).await
}

/// Waits until every node knows all.
async fn met(nodes: &[Node]) -> anyhow::Result<()> {
    for node in nodes {
        let Some(cluster) = node.cluster() else { continue };
        let mut views = cluster.views();
        let all = views.wait_for(|view| view.members().count() == nodes.len());
        let met = tokio::time::timeout(MEET_MAX, all).await;
        anyhow::ensure!(met.is_ok(), "the nodes did not find each other within {} s: is loopback filtered?", MEET_MAX.as_secs());
    }
    Ok(())
}

/// Tells every node of all, so that they place keys alike: where nodes do not find each other by themselves.
pub fn join_all(nodes: &[Node]) {
    let mut view = View::default();
    for node in nodes {
        // At most `NODES_MAX`, far under a view's bound.
        let _ = view.merge(node.row());
    }
    nodes.iter().for_each(|node| node.join(view.clone()));
}

fn announce(nodes: &[Node], origin: SocketAddr, arguments: &Arguments) -> anyhow::Result<()> {
    let row = |node: &Node| {
        serde_json::json!({
            "quic": node.quic.to_string(), "admin": node.admin.to_string(), "s3_gateway": null, "pid": std::process::id(),
        })
    };
    let ready = serde_json::json!({
        "nodes": nodes.iter().map(row).collect::<Vec<_>>(),
        "s3_origin": format!("http://{origin}"),
        "bucket": arguments.bucket,
        "ca": nodes.first().map(|node| node.ca.display().to_string()),
    });
    let line = |node: &Node| format!("{}: QUIC {}, admin http://{}/status\n", node.id, node.quic, node.admin);
    let mut text: String = nodes.iter().map(line).collect();
    text += &format!("bucket s3://{} is {} (S3 face http://{origin})\n", arguments.bucket, arguments.data.display());
    if let Some(first) = nodes.first() {
        text += &format!("try: framecache --addr {} ls s3://{}/\n", first.quic, arguments.bucket);
    }
    // Whoever reads the file below needs no standard output.
    if let Err(error) = std::io::stdout().write_all(text.as_bytes()) {
        tracing::warn!(%error, "standard output takes nothing");
    }
    if let Some(file) = &arguments.ready_file {
        let part = file.with_extension("part");
        std::fs::write(&part, ready.to_string())
            .and_then(|()| std::fs::rename(&part, file))
            .with_context(|| format!("--ready-file {}: cannot be written", file.display()))?;
    }
    Ok(())
}

/// A name for the caches of one data folder, by device and inode, so that two folders never share one.
fn folder_name(data: &Path) -> anyhow::Result<String> {
    use std::os::unix::fs::MetadataExt;
    let of = std::fs::metadata(data).with_context(|| format!("--data {}: not a readable folder", data.display()))?;
    Ok(format!("data-{:x}-{:x}", of.dev(), of.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    /// Promise: the folders of a cache may have any name that a configuration can hold; another is refused in words.
    #[test]
    fn folders_have_any_name() {
        let Line { arguments } = Line::parse_from(["dev", "--memory", "1GiB", "--disk", "0"]);
        let origin = SocketAddr::from(([127, 0, 0, 1], 1));
        for name in ["/tmp/a\u{7f}\u{1b}[31m", "/tmp/quote\"'\\", "/tmp/\u{200b}\u{e000}é\nline"] {
            let config = node_config(3, None, origin, Path::new(name), &arguments).expect("a configuration");
            assert_eq!(config.node.data_dir, Some(Path::new(name).join("node-3")), "{name:?}");
            assert_eq!((config.node.id.as_str(), config.buckets[0].name.as_str()), ("dev-3", "data"));
        }
        let odd = Path::new(OsStr::from_bytes(b"/tmp/\xff"));
        let said = node_config(0, None, origin, odd, &arguments).expect_err("not UTF-8").to_string();
        assert!(said.contains("not UTF-8") && said.contains("--cache"), "{said}");
    }
}
