//! A cluster of real nodes for a run: [`framecache_tests::processes`] with the run's sizes, and what all nodes' metrics say together.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use framecache::Client;
pub use framecache_tests::processes::{Fleet, Place, Settings};

use crate::meter::Tree;
use crate::node::{BUCKET, Metrics};
use crate::run::Run;

/// Settings of nodes of which eight fit on one machine: RAM for some, no disk, one decoder.
pub fn settings(run: &Run, name: &str, origin: SocketAddr) -> Result<Settings> {
    Ok(Settings {
        program: run.node.clone(),
        folder: run.scratch.folder(name)?,
        bucket: BUCKET.into(),
        origin,
        freshness: "immutable",
        memory: 2 << 30,
        raw_ram: 256 << 20,
        decoded_ram: 64 << 20,
        disk: 0,
        workers: 1,
        settle: Duration::from_secs(10),
        drain: Duration::from_secs(5),
    })
}

/// The metrics of all that run, together.
pub async fn metrics(fleet: &Fleet) -> Result<Metrics> {
    let mut all = Metrics::default();
    for index in fleet.running() {
        all = all.and(Metrics::parse(&fleet.metrics(index).await?));
    }
    Ok(all)
}

/// The processes of all that run.
pub fn trees(fleet: &Fleet) -> Vec<Tree> {
    fleet.members.iter().filter_map(|member| member.pid().map(Tree)).collect()
}

/// A client of the whole fleet.
pub fn client(fleet: &Fleet) -> Result<Client> {
    Ok(Client::new(fleet.client_config())?)
}

/// Waits until all that was admitted to disks is on them.
pub async fn flushed(fleet: &Fleet) -> Result<()> {
    let begun = Instant::now();
    while metrics(fleet).await?.sum("framecache_cache_disk_queued_bytes") > 0.0 {
        ensure!(begun.elapsed() < Duration::from_secs(60), "the disks' queues are not empty after a minute");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}
