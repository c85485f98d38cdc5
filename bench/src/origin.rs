//! The origin of a run: a folder as a bucket, served in this process, so that every request that leaves a node is counted.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::Result;
use framecache_node::dev::origin::FolderOrigin;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::node::BUCKET;

/// A folder served on loopback until it is dropped.
pub struct Origin {
    /// Where it answers.
    pub address: SocketAddr,
    folder: FolderOrigin,
    _stop: oneshot::Sender<()>,
}

impl Origin {
    /// Serves `folder`.
    pub async fn serve(folder: &Path) -> Result<Self> {
        let origin = FolderOrigin::open(folder, BUCKET)?;
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = origin.clone();
        tokio::spawn(async move {
            let ended = async { stopped.await.map_or_else(|_| (), |()| ()) };
            if let Err(error) = serving.serve(listener, ended).await {
                eprintln!("framecache-bench: the origin ended: {error}");
            }
        });
        Ok(Self { address, folder: origin, _stop: stop })
    }

    /// Requests of every kind so far.
    pub fn requests(&self) -> u64 {
        let counts = self.folder.counts();
        counts.gets + counts.heads + counts.lists
    }

    /// Bytes that it was asked for so far, each GET taken for the whole object, whose size `sizes` says: a bound from above.
    pub fn bytes(&self, sizes: &HashMap<String, u64>) -> u64 {
        self.folder.requests().iter().map(|(key, gets)| gets * sizes.get(key).copied().unwrap_or(0)).sum()
    }

    /// GETs by key so far.
    pub fn all_gets(&self) -> HashMap<String, u64> {
        self.folder.requests()
    }
}
