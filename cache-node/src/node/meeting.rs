//! How a node finds the others, and follows what they say.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use framecache::View;
use framecache::peer::Peers as Links;
use framecache::wire::NodeRow;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::cluster::{AllLinks, CLUSTER_ID, Cluster, ClusterSettings, Keys, Members, Prove};
use crate::config::Config;

/// Longest handshake that proves another node's name.
const PROOF_MAX: Duration = Duration::from_secs(3);

/// How soon it is seen that rings of a view were made.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Longest wait for other nodes at the start: a name that resolves late, or a cluster of which this is the first.
const MEET_MAX: Duration = Duration::from_secs(5);

/// Its place among the others, if it was told of any or has a key for them.
pub(super) async fn join(
    config: &Config,
    row: NodeRow,
    keys: Option<Keys>,
    links: Arc<Links>,
) -> anyhow::Result<Option<Arc<Cluster>>> {
    let given = keys.or_else(|| config.cluster.keys.as_ref().map(Keys::file));
    if given.is_none() && config.cluster.seeds.is_empty() {
        return Ok(None);
    }
    let settings = ClusterSettings {
        row,
        gossip: config.listen.gossip,
        liveness: config.listen.liveness,
        seeds: config.cluster.seeds.clone(),
        keys: given.unwrap_or_else(Keys::loopback),
        settle: config.cluster.settle,
        cluster_id: CLUSTER_ID.into(),
        prove: Arc::new(ByCertificate(links)),
        links: Arc::new(AllLinks),
    };
    Ok(Some(Cluster::start(settings).await?))
}

/// A node is who its certificate says.
struct ByCertificate(Arc<Links>);

#[async_trait]
impl Prove for ByCertificate {
    async fn prove(&self, row: &NodeRow) -> bool {
        self.0.prove(row, Instant::now() + PROOF_MAX).await
    }
}

/// Waits until another node is known, for a while, and until this one goes by it: who answers before that would take everything for its
/// own.
pub(super) async fn meet(cluster: &Cluster, members: &Members) {
    let company = |view: &View| view.members().any(|row| row.id != members.id());
    let met = async {
        // It ends with the cluster alone.
        let _ = cluster.views().wait_for(|view| company(view)).await;
        while !company(members.topology().view()) {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    if tokio::time::timeout(MEET_MAX, met).await.is_err() {
        tracing::warn!("no other node was met within {} s: this one begins alone", MEET_MAX.as_secs());
    }
}

/// Keeps the members as the cluster's views say, until `stop`, and links to them alone.
pub(super) async fn follow(
    mut views: watch::Receiver<Arc<View>>,
    members: Arc<Members>,
    links: Arc<Links>,
    stop: CancellationToken,
) {
    loop {
        let view = View::clone(&views.borrow_and_update());
        links.retain(&view);
        links.greet(&view);
        let members = members.clone();
        // Rings of large clusters take milliseconds.
        if tokio::task::spawn_blocking(move || members.join(view)).await.is_err() {
            tracing::error!("rings were not made");
        }
        tokio::select! {
            changed = views.changed() => if changed.is_err() { return },
            () = stop.cancelled() => return,
        }
    }
}
