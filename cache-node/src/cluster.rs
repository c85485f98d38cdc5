//! Who is in the cluster: nodes find each other, say what they are, hear who is alive, and agree on a view.
//!
//! Three ways of knowing, and none alone is believed:
//!
//! * [`gossip`] spreads what every node says of itself, its row, and of others, whom it cannot hear.
//! * [`liveness`] hears who is alive, on a socket and a thread of its own: a busy node answers, a frozen one does not.
//! * a handshake ([`Prove`]) shows that who answers at a row's address has the certificate of that name.
//!
//! [`membership`] makes the view of them, [`own`] the row that this node states; [`keeper`] is the task in which all meet. What goes
//! over the network is sealed with the cluster's keys ([`seal`], [`keys`]).
//!
//! What the others are asked for is the other half: [`members`] is the view of the moment with its rings, [`peers`] the face by which
//! `read` asks other nodes, [`linked`] that face over QUIC, [`placement`] where a unit is decoded.
//!
//! The room knows keys, and nothing of what lies under them.

mod clocks;
mod complaint;
mod digest;
mod gossip;
mod keeper;
mod keys;
mod linked;
mod liveness;
mod members;
mod membership;
mod own;
mod parts;
mod peers;
mod placement;
mod proofs;
mod rumour;
mod seal;
mod seeds;
mod socket;
mod stats;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use framecache::View;
use framecache::wire::NodeRow;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::{AbortHandle, JoinHandle};

pub use gossip::GossipError;
pub use keys::{Keys, KeysError};
pub use linked::Linked;
pub use members::Members;
pub use peers::{Alone, Peers, Piece};
pub use placement::{Load, Paces, Place, places};
pub use rumour::ROW_LIVENESS;
pub use seal::Refusal;
pub use socket::{AllLinks, Links};
pub use stats::ClusterStats;

use keeper::{Chains, Command, HEARD_TIME, Keeper, LastJudged, Shown, Times};
use liveness::{Aim, Liveness};
use membership::Membership;
use own::Own;
use proofs::Proofs;
use seal::{CannotSeal, Seal};
use seeds::Seeds;
use socket::{Lane, advertised, bind};
use stats::Counters;

/// Name of a cluster that was given none.
pub const CLUSTER_ID: &str = "framecache";

/// Time to find out what the seeds stand for, where it decides by which address others reach us.
const RESOLVE_TIME: Duration = Duration::from_secs(2);

/// Addresses that greeted and are to be talked to: more than a node gossips with in a second.
const MET_MAX: usize = 64;

/// Requests of the face that wait: it has three, each by one caller.
const COMMANDS_MAX: usize = 16;

/// Proof that a row speaks of who it says.
#[async_trait]
pub trait Prove: Send + Sync {
    /// Whether the node that answers at `row.quic` shows a certificate for `row.id`. Called for each life and address of a node until
    /// it holds once; may be dropped at any time.
    async fn prove(&self, row: &NodeRow) -> bool;
}

/// What a node brings to its cluster.
pub struct ClusterSettings {
    /// Its name, address, weight and roles; a host of `0.0.0.0` or `::` is replaced by the address that the others reach. State,
    /// ramp and version are decided here, and the incarnation is the time unless a later one is given.
    pub row: NodeRow,
    /// Where gossip and liveness listen; port 0 takes any.
    pub gossip: SocketAddr,
    pub liveness: SocketAddr,
    /// `host:port` of other nodes; own ones among them do no harm.
    pub seeds: Vec<String>,
    pub keys: Keys,
    /// After which time a member counts as settled.
    pub settle: Duration,
    /// Clusters of different names do not hear each other, even with the same key.
    pub cluster_id: String,
    pub prove: Arc<dyn Prove>,
    /// [`AllLinks`], but in tests.
    pub links: Arc<dyn Links>,
}

/// Why there is no membership. A person must act: the message says on what.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The keys are not usable.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// Beyond loopback everybody could join.
    #[error(
        "`cluster.keys` is missing while `{key}` = {address} goes beyond loopback; make one with `openssl rand -hex 32`, \
         the same file on every node"
    )]
    NoKeys { key: &'static str, address: SocketAddr },
    /// The address is taken, or not this host's.
    #[error("listen at `{key}` = {address}: {source}")]
    Bind { key: &'static str, address: SocketAddr, source: io::Error },
    /// The row cannot be stated.
    #[error("node {id:?} cannot be stated: its id or another field passes a bound")]
    Row { id: String },
    /// The system gives no random bytes.
    #[error("seal datagrams: no random bytes from the system")]
    Seal,
    /// A thread or task could not be started.
    #[error("start liveness: {0}")]
    Thread(#[source] io::Error),
    /// See the message.
    #[error(transparent)]
    Gossip(#[from] GossipError),
}

impl From<CannotSeal> for ClusterError {
    fn from(_: CannotSeal) -> Self {
        ClusterError::Seal
    }
}

/// This node's place in its cluster. Dropped, it falls silent without a word, as if it were killed.
pub struct Cluster {
    views: watch::Receiver<Arc<View>>,
    row: watch::Receiver<NodeRow>,
    commands: mpsc::Sender<Command>,
    counters: Arc<Counters>,
    stats: Arc<Mutex<ClusterStats>>,
    gossip: SocketAddr,
    liveness: SocketAddr,
    keeper: Mutex<Option<JoinHandle<()>>>,
    abort: AbortHandle,
}

impl Cluster {
    /// Opens both sockets, starts the thread and the task, and begins to look for the others. Returns before any was found: the
    /// first view is of this node alone.
    pub async fn start(settings: ClusterSettings) -> Result<Arc<Self>, ClusterError> {
        let ClusterSettings { row, gossip, liveness, seeds, keys, settle, cluster_id, prove, links } = settings;
        for (key, address) in [("listen.gossip", gossip), ("listen.liveness", liveness)] {
            if !keys.are_given() && !address.ip().to_canonical().is_loopback() {
                return Err(ClusterError::NoKeys { key, address });
            }
        }
        let read = keys.read()?;
        let open = |key, address| {
            let socket = bind(address).and_then(|socket| Ok((socket.local_addr()?, socket)));
            socket.map_err(|source| ClusterError::Bind { key, address, source })
        };
        let (gossip, gossip_socket) = open("listen.gossip", gossip)?;
        let (liveness, liveness_socket) = open("listen.liveness", liveness)?;
        let seeds = Seeds::start(&seeds);
        let quic: Option<SocketAddr> = row.quic.parse().ok();
        let any = |address: &SocketAddr| address.ip().is_unspecified();
        let towards = if any(&gossip) || any(&liveness) || quic.as_ref().is_some_and(any) { found(&seeds).await } else { vec![] };
        let (gossip, liveness) = (advertised(gossip, &towards), advertised(liveness, &towards));
        let quic = quic.map_or(row.quic.clone(), |quic| advertised(quic, &towards).to_string());

        let started = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
        let incarnation = u64::try_from(started).unwrap_or(0).max(row.incarnation);
        let row = rumour::with_liveness(NodeRow { quic, incarnation, ..row }, liveness);
        let own = Own::new(row, settle);
        let row = own.row().clone();
        if rumour::row_to_text(&row).is_none() {
            return Err(ClusterError::Row { id: row.id });
        }
        let counters = Arc::<Counters>::default();
        let chains = Chains::new(keys, &cluster_id, read);
        let (met_sender, met) = mpsc::channel(MET_MAX);
        let seal = |chain: &Arc<_>| Seal::new(Arc::clone(chain), &row.id, incarnation);
        let lane = Lane::new(gossip_socket, gossip, seal(&chains.gossip)?, links.clone(), counters.clone(), met_sender)
            .map_err(|source| ClusterError::Bind { key: "listen.gossip", address: gossip, source })?;
        let aim = Aim { incarnation, version: row.version, targets: Vec::new() };
        let liveness_seal = seal(&chains.liveness)?;
        let ear = Liveness::start(liveness_socket, liveness, liveness_seal, aim, links, counters.clone())
            .map_err(ClusterError::Thread)?;
        let changed = Arc::<Notify>::default();
        let gossip_task = gossip::Gossip::start(Arc::new(lane), &row.id, &cluster_id, incarnation, changed.clone()).await?;

        let mut alone = View::default();
        // One row fits any view.
        let _ = alone.merge(row.clone());
        let (views_sender, views) = watch::channel(Arc::new(alone));
        let (row_sender, row_receiver) = watch::channel(row.clone());
        let (commands, commands_receiver) = mpsc::channel(COMMANDS_MAX);
        let stats = Arc::<Mutex<ClusterStats>>::default();
        stats.lock().nodes[usize::from(row.state)] = 1;
        let keeper = Keeper {
            membership: Membership::new(&row.id),
            own,
            gossip: gossip_task,
            liveness: ear,
            seeds,
            chains,
            counters: counters.clone(),
            shown: Shown { views: views_sender, row: row_sender, stats: stats.clone() },
            changed,
            met,
            commands: commands_receiver,
            proofs: Proofs::new(prove),
            times: Times::new(),
            dirty: true,
            judged: LastJudged::nothing(),
            aimed: Aim::default(),
            // Nothing was said yet: the empty rumour is written otherwise.
            said: (row, String::new()),
            fetched: BTreeMap::new(),
            waiting: None,
        };
        let keeper = tokio::spawn(keeper.keep());
        let abort = keeper.abort_handle();
        let keeper = Mutex::new(Some(keeper));
        Ok(Arc::new(Self { views, row: row_receiver, commands, counters, stats, gossip, liveness, keeper, abort }))
    }

    /// Views as they come: at most one in 50 ms, and at once when a node is lost. The last one stays when the cluster is closed.
    pub fn views(&self) -> watch::Receiver<Arc<View>> {
        self.views.clone()
    }

    /// What this node states of itself now.
    pub fn row(&self) -> NodeRow {
        self.row.borrow().clone()
    }

    /// Where others gossip with this node.
    pub fn gossip_address(&self) -> SocketAddr {
        self.gossip
    }

    /// Where this node answers pings.
    pub fn liveness_address(&self) -> SocketAddr {
        self.liveness
    }

    /// Another share of the keys from now on, in hundredths.
    pub async fn set_weight(&self, weight: u32) {
        // It fails only after `close`.
        let _ = self.commands.send(Command::Weight(weight.min(rumour::WEIGHT_MAX))).await;
    }

    /// Off the ring: returns when all others know, after a second at the latest. The node still answers; end with
    /// [`Cluster::close`].
    pub async fn leave(&self) {
        let (told, answer) = oneshot::channel();
        if self.commands.send(Command::Leave(told)).await.is_ok() {
            let _ = tokio::time::timeout(2 * HEARD_TIME, answer).await;
        }
    }

    /// The last word, gone; then the thread, the task and the sockets end. Returns after a second or two at the latest.
    pub async fn close(&self) {
        let (told, answer) = oneshot::channel();
        if self.commands.send(Command::Close(told)).await.is_ok() {
            // Ends with an error when all has ended.
            let _ = tokio::time::timeout(3 * HEARD_TIME, answer).await;
        }
        let keeper = self.keeper.lock().take();
        if let Some(keeper) = keeper {
            keeper.abort();
            let _ = keeper.await;
        }
    }

    /// What the room counts, for whoever exports it.
    pub fn stats(&self) -> ClusterStats {
        let ClusterStats { nodes, unproved, silent, .. } = self.stats.lock().clone();
        ClusterStats { nodes, unproved, silent, ..self.counters.read() }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.abort.abort();
    }
}

/// What the seeds stand for, as far as that is known in time.
async fn found(seeds: &Seeds) -> Vec<SocketAddr> {
    let deadline = Instant::now() + RESOLVE_TIME;
    while seeds.addresses().is_empty() && seeds.are_looked_up() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    seeds.addresses()
}
