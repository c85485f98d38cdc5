//! One connection and its path: reads pages for a while, then says how large the datagrams have become.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::{Questions, say};
use crate::line::{Line, next_item};
use crate::trust::Trust;

/// What to look at.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PathTask {
    pub address: SocketAddr,
    /// Folder of the run's certificates.
    pub trust: PathBuf,
    /// An object of at least `pages` pages that the node holds.
    pub uri: String,
    pub pages: u64,
}

/// What was found.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct PathFacts {
    /// Size of datagrams that this end has found to pass, in bytes.
    pub sending: u16,
    /// Mean size of the datagrams that the node sent meanwhile, in bytes.
    pub receiving: f64,
}

/// Each question is a number of seconds.
pub(super) async fn play(task: PathTask) -> Result<()> {
    let line = Line::connect(task.address, &Trust::at(&task.trust).ca, 1 << 30).await?;
    let mut questions = Questions::listen();
    while let Some(seconds) = questions.next::<f64>().await? {
        let (before, begun) = (line.connection.stats().udp_rx, Instant::now());
        let mut page = 0;
        while begun.elapsed().as_secs_f64() < seconds {
            let mut reply = line.read(&task.uri, page << 20, 1 << 20, Duration::from_secs(30)).await?;
            let item = next_item(&mut reply).await?;
            ensure!(item.is_some_and(|item| item.payload_bytes == 1 << 20), "page {page} did not come");
            page = (page + 1) % task.pages;
        }
        let stats = line.connection.stats();
        let datagrams = stats.udp_rx.datagrams - before.datagrams;
        let receiving = (stats.udp_rx.bytes - before.bytes) as f64 / datagrams.max(1) as f64;
        say(&PathFacts { sending: stats.path.current_mtu, receiving })?;
    }
    line.close().await;
    Ok(())
}
