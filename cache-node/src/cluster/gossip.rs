//! How rows spread: `chitchat` (Scuttlebutt reconciliation), over our own sealed lane.
//!
//! Each node publishes two texts under its own name: its row and its rumour. Chitchat brings everybody's newest texts to everybody,
//! whoever they are told by; it is told nothing of seeds and its own judgement of who is dead is not used. What it keeps of nodes
//! that are gone it forgets after [`FORGET_AFTER`]; when somebody who has the key fills it with names, it is thrown away and
//! started anew, as it is if it fails.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use chitchat::{ChitchatConfig, ChitchatHandle, ChitchatId, FailureDetectorConfig, ListenerHandle, spawn_chitchat};
use framecache::view::NODES_MAX;
use framecache::wire::NodeRow;
use futures::FutureExt;
use tokio::sync::Notify;

use super::rumour::{Rumour, row_from_text};
use super::socket::{GossipTransport, Lane};

/// Time between two rounds, each with three random nodes: a change is everywhere within `log4(nodes)` rounds, and sooner where it is
/// pushed. A digest is 50 bytes a node, so a thousand nodes cost each of them half a MB a second.
const ROUND: Duration = Duration::from_millis(500);

/// Twice as long as a gone node stays in the view; chitchat stops telling of it after half of it.
const FORGET_AFTER: Duration = Duration::from_secs(1200);

/// Lives of nodes that chitchat may hold: as many as a view, and their former lives.
const LIVES_MAX: usize = 2 * NODES_MAX;

/// Texts of one node: two, and room for those of a later release.
const TEXTS_MAX: usize = 8;

const ROW: &str = "row";
const RUMOUR: &str = "rumour";

/// Gossip could not be started.
#[derive(Debug, thiserror::Error)]
#[error("start gossip: {0}")]
pub struct GossipError(String);

/// What gossip brought since it was asked last.
#[derive(Debug, Default)]
pub(super) struct News {
    /// Every node that is told of.
    pub(super) told_of: BTreeSet<String>,
    /// Those whose texts changed.
    pub(super) said: Vec<(NodeRow, Rumour, SocketAddr)>,
}

/// Running gossip.
pub(super) struct Gossip {
    lane: Arc<Lane>,
    id: String,
    cluster: String,
    generation: u64,
    /// Wakes whoever reads the news.
    changed: Arc<Notify>,
    handle: ChitchatHandle,
    _listener: ListenerHandle,
    /// What has been read of each life.
    read: HashMap<ChitchatId, u64>,
}

impl Gossip {
    /// Starts gossip of node `id`; `generation` grows with each start.
    pub(super) async fn start(
        lane: Arc<Lane>,
        id: &str,
        cluster: &str,
        generation: u64,
        changed: Arc<Notify>,
    ) -> Result<Self, GossipError> {
        let (handle, listener) = spawn(&lane, id, cluster, generation, &changed).await?;
        let (id, cluster) = (id.to_owned(), cluster.to_owned());
        Ok(Self { lane, id, cluster, generation, changed, handle, _listener: listener, read: HashMap::new() })
    }

    /// Whether it failed: a panic on what somebody said.
    pub(super) fn has_ended(&self) -> bool {
        self.handle.termination_watcher().now_or_never().is_some()
    }

    /// Throws away what it knows, and begins again under the same name; what was said has to be said again.
    pub(super) async fn restart(&mut self) -> Result<(), GossipError> {
        self.handle.abort();
        self.generation += 1;
        let (handle, listener) = spawn(&self.lane, &self.id, &self.cluster, self.generation, &self.changed).await?;
        (self.handle, self._listener) = (handle, listener);
        self.read.clear();
        Ok(())
    }

    /// Publishes both texts.
    pub(super) async fn say(&self, row: &str, rumour: &str) {
        self.handle
            .with_chitchat(|chitchat| {
                let own = chitchat.self_node_state();
                own.set(ROW, row);
                own.set(RUMOUR, rumour);
            })
            .await;
    }

    /// What others said that was not read yet; `None` if there is more than there can be nodes, and gossip has to begin again.
    pub(super) async fn news(&mut self) -> Option<News> {
        let read = &mut self.read;
        let (told_of, texts) = self
            .handle
            .with_chitchat(|chitchat| {
                let lives = chitchat.node_states();
                if lives.len() > LIVES_MAX {
                    return None;
                }
                read.retain(|life, _| lives.contains_key(life));
                let own = chitchat.self_chitchat_id();
                let (mut told_of, mut texts) = (BTreeSet::new(), Vec::new());
                for (life, state) in lives.iter().filter(|(life, _)| *life != own) {
                    told_of.insert(life.node_id.to_string());
                    if read.insert(life.clone(), state.max_version()) == Some(state.max_version()) {
                        continue;
                    }
                    if state.key_values_including_deleted().count() > TEXTS_MAX {
                        return None;
                    }
                    let text = |key| state.get(key).unwrap_or_default().to_owned();
                    texts.push((life.clone(), text(ROW), text(RUMOUR)));
                }
                Some((told_of, texts))
            })
            .await?;
        let said = texts.into_iter().filter_map(|(life, row, rumour)| {
            let row = row_from_text(&row, &life.node_id)?;
            Some((row, Rumour::from_text(&rumour), life.gossip_advertise_addr))
        });
        Some(News { told_of, said: said.collect() })
    }

    /// What was said of that node is news once more.
    pub(super) fn read_again(&mut self, id: &str) {
        self.read.retain(|life, _| &*life.node_id != id);
    }

    /// Exchanges news with that address now.
    pub(super) fn contact(&self, address: SocketAddr) {
        if address != self.lane.address {
            // It fails only where gossip has ended, which is looked at elsewhere.
            let _ = self.handle.gossip(address);
        }
    }

    /// Ends it.
    pub(super) async fn close(self) {
        let _ = tokio::time::timeout(ROUND, self.handle.shutdown()).await;
    }
}

async fn spawn(
    lane: &Arc<Lane>,
    id: &str,
    cluster: &str,
    generation: u64,
    changed: &Arc<Notify>,
) -> Result<(ChitchatHandle, ListenerHandle), GossipError> {
    let config = ChitchatConfig {
        chitchat_id: ChitchatId::new(id.to_owned(), generation, lane.address),
        cluster_id: cluster.to_owned(),
        gossip_interval: ROUND,
        listen_addr: lane.address,
        seed_nodes: Vec::new(),
        failure_detector_config: FailureDetectorConfig {
            // Whom it takes for dead it gossips with less often, no more.
            sampling_window_size: 100,
            initial_interval: ROUND,
            dead_node_grace_period: FORGET_AFTER,
            ..FailureDetectorConfig::default()
        },
        marked_for_deletion_grace_period: FORGET_AFTER,
        catchup_callback: None,
        extra_liveness_predicate: None,
    };
    let transport = GossipTransport(lane.clone());
    let handle = spawn_chitchat(config, Vec::new(), &transport).await.map_err(|error| GossipError(error.to_string()))?;
    let changed = changed.clone();
    let listener = handle.with_chitchat(move |chitchat| {
        let changed = changed.clone();
        chitchat.subscribe_event("r", move |_| changed.notify_one())
    });
    let listener = listener.await;
    Ok((handle, listener))
}
