//! The embedded default: everything on this machine, nothing to configure.
//!
//! `framecache-node dev` serves a local folder as an S3 bucket, in this process, and starts N nodes in front of it on loopback,
//! each with its own cache folder.

pub mod origin;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use framecache::View;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::config::{Config, Host};
use crate::identity::Identity;
use crate::node::{Node, Setup};
use crate::serve_command::{ended, local_names};
use crate::telemetry::{self, TelemetrySettings};
use origin::FolderOrigin;

/// Most nodes of one process; more would measure the machine, not the cluster.
const NODES_MAX: usize = 32;

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
    /// Memory that each node and its decoders may use.
    #[arg(long, default_value = "3GiB")]
    pub memory: String,
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
    let log = std::env::var("FRAMECACHE_TELEMETRY__LOG").unwrap_or_else(|_| "warn".into());
    let otlp_endpoint = std::env::var("FRAMECACHE_TELEMETRY__OTLP_ENDPOINT").ok();
    let telemetry = telemetry::start(TelemetrySettings { log, otlp_endpoint, node_id: "dev".into() })?;

    let stop = CancellationToken::new();
    let origin = serve_folder(&arguments.data, &arguments.bucket, stop.clone()).await?;
    let (_temporary, cache) = match &arguments.cache {
        // One for each data folder: another's objects may have the same names, and are taken as immutable.
        Some(cache) => (None, cache.join(folder_name(&arguments.data)?)),
        None => {
            let folder = temporary_folder()?;
            (Some(Removed(folder.clone())), folder)
        }
    };
    let mut nodes = Vec::new();
    for index in 0..arguments.nodes {
        nodes.push(start_node(index, origin, &cache, &arguments).await?);
    }
    join_all(&nodes);
    announce(&nodes, origin, &arguments)?;

    ended().await?;
    for node in nodes {
        node.stop().await;
    }
    stop.cancel();
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
pub fn node_config(index: usize, origin: SocketAddr, cache: &Path, arguments: &Arguments) -> anyhow::Result<Config> {
    let (quic, admin) = match arguments.ports.as_str() {
        "default" => ("127.0.0.1:4433", "127.0.0.1:9433"),
        _ => ("127.0.0.1:0", "127.0.0.1:0"),
    };
    let data_dir = cache.join(format!("node-{index}"));
    let text = format!(
        "[node]\nid = \"dev-{index}\"\ndata_dir = {data_dir:?}\nmemory_limit = \"{}\"\n[listen]\nquic = \"{quic}\"\nadmin = \"{admin}\"\n\
         [cache]\ndisk = \"{}\"\n[[bucket]]\nname = {:?}\nendpoint = \"http://{origin}\"\nregion = \"us-east-1\"\npath_style = true\n\
         credentials = \"anonymous\"\nfreshness = \"immutable\"\n",
        arguments.memory, arguments.disk, arguments.bucket
    );
    Ok(Config::parse("dev", &text, std::env::vars(), &Host::here())?)
}

async fn start_node(index: usize, origin: SocketAddr, cache: &Path, arguments: &Arguments) -> anyhow::Result<Node> {
    let config = node_config(index, origin, cache, arguments)?;
    config.check_host()?;
    let identity = Identity::local(&local_names(&config.node.id))?;
    let program = std::env::current_exe().context("find own binary, which decoder workers run")?;
    Node::start(Setup { config, identity, program, origin: None }).await
}

/// Tells every node of all, so that they place keys alike.
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
    for node in nodes {
        println!("{}: QUIC {}, admin http://{}/status", node.id, node.quic, node.admin);
    }
    println!("bucket s3://{} is {} (S3 face http://{origin})", arguments.bucket, arguments.data.display());
    if let Some(first) = nodes.first() {
        println!("try: framecache --addr {} ls s3://{}/", first.quic, arguments.bucket);
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

/// A folder of this user's alone, for caches that end with the process.
fn temporary_folder() -> anyhow::Result<PathBuf> {
    use std::os::unix::fs::DirBuilderExt;
    let folder = std::env::temp_dir().join(format!("framecache-dev-{}", std::process::id()));
    std::fs::DirBuilder::new().mode(0o700).create(&folder).with_context(|| format!("make {}", folder.display()))?;
    Ok(folder)
}

/// Removes a folder at the end.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(folder = %self.0.display(), %error, "temporary folder stays");
        }
    }
}
