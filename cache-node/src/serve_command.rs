//! `framecache-node serve`: one node by its configuration, until it is told to end.

use std::time::Duration;

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};

use crate::config::Config;
use crate::identity::Identity;
use crate::node::{Node, Setup};
use crate::telemetry::{self, TelemetrySettings};

/// Runs until SIGTERM or SIGINT, then drains.
///
/// # Errors
/// What keeps the node from starting, as one sentence that names the key and the fix.
pub async fn run(config: Config) -> anyhow::Result<()> {
    let telemetry = telemetry::start(TelemetrySettings {
        log: config.telemetry.log.clone(),
        otlp_endpoint: config.telemetry.otlp_endpoint.clone(),
        node_id: config.node.id.clone(),
    })?;
    config.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
    let identity = match &config.tls {
        Some(tls) => Identity::from_files(&tls.ca, &tls.cert, &tls.key)?,
        None => Identity::local(&local_names(&config.node.id))?,
    };
    let program = std::env::current_exe().context("find own binary, which decoder workers run")?;
    let node = Node::start(Setup { config, identity, program, origin: None, keys: None }).await?;
    ended().await?;
    tracing::info!("told to end, draining");
    node.stop().await;
    telemetry.shutdown(Duration::from_secs(3)).await;
    Ok(())
}

/// Names under which a node on this machine is reached.
pub(crate) fn local_names(id: &str) -> Vec<String> {
    let mut names: Vec<String> = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).into();
    let host = id.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_'));
    names.extend(Some(id.to_owned()).filter(|id| host && !id.is_empty()));
    names
}

/// Resolves at SIGTERM or SIGINT.
pub(crate) async fn ended() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    tokio::select! {
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    }
}
