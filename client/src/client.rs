//! The client: raw bytes and decoded pictures by address, from whichever node owns them.
//!
//! A client holds no thread and no socket until its first request, and one connection for each node after it. Every call has a
//! deadline. A call may be cancelled by dropping it: its streams are stopped, and nothing is written any more.

mod control;
mod crops;
mod images;
mod read;
mod tries;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use rkyv::Serialize;
use rkyv::api::high::HighSerializer;
use rkyv::rancor::Error as Rancor;
use rkyv::ser::allocator::ArenaHandle;
use rkyv::util::AlignedVec;
use tokio::time::Instant;

use crate::ask::{self, Reply};
use crate::config::ClientConfig;
use crate::error::{Error, ErrorKind};
use crate::object::RouteKey;
use crate::pool::{Naming, Pool, Target};
use crate::ring::Ring;
use crate::view::View;
use crate::wire::codec::Message;
use crate::wire::{Class, Header, Trace, Verb};

pub use control::{Listing, ObjectFacts, ObjectRow};
pub use images::Outcome;
pub use read::Raw;

/// A handle to a cluster. Cloning shares connections; the last clone closes them.
///
/// ```no_run
/// # async fn example() -> Result<(), framecache::Error> {
/// use framecache::{Client, ClientConfig};
/// let client = Client::new(ClientConfig::new("127.0.0.1:4433"))?;
/// let raw = client.read(&"s3://photos/a.jpg".parse()?, 0, None, &Default::default()).await?;
/// println!("{} bytes of version {}", raw.bytes.len(), raw.version);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    config: ClientConfig,
    pool: Pool,
    topology: ArcSwapOption<Topology>,
}

/// What one call may take and who it is for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Call {
    /// The call's deadline from now; the client's `timeout` if not given.
    pub timeout: Option<Duration>,
    /// Whether somebody waits for it.
    pub class: Class,
    /// The caller's trace, if it is traced.
    pub trace: Trace,
}

/// The members that the client knows, with their ring and addresses.
#[derive(Debug)]
struct Topology {
    view: View,
    ring: Ring,
    /// A node of it could not be reached.
    doubted: AtomicBool,
}

/// Longest wait for one node's view, when there are others to ask.
const VIEW_MAX: Duration = Duration::from_secs(3);

impl Client {
    /// A client of the cluster that `config` names. Nothing is connected yet.
    ///
    /// # Errors
    /// `Invalid` if the configuration names no node.
    pub fn new(config: ClientConfig) -> Result<Self, Error> {
        config.check()?;
        let pool = Pool::new(config.tls.clone(), Naming::IdOrHost, config.memory);
        Ok(Self { inner: Arc::new(Inner { config, pool, topology: ArcSwapOption::empty() }) })
    }

    /// The configuration it was made with.
    pub fn config(&self) -> &ClientConfig {
        &self.inner.config
    }

    /// Closes the connections, telling the nodes. Calls that run meanwhile fail.
    pub async fn close(&self) {
        self.inner.pool.close(Duration::from_secs(1)).await;
    }

    fn deadline(&self, call: &Call) -> Instant {
        Instant::now() + call.timeout.unwrap_or(self.inner.config.timeout)
    }

    /// The nodes for `key`, the owner first.
    async fn walk(&self, key: RouteKey, call: &Call, deadline: Instant) -> Result<Vec<Target>, Error> {
        let topology = self.topology(call, deadline).await?;
        let target = |id: &str| {
            let row = topology.view.node(id)?;
            Some(Target::node(id, &row.quic))
        };
        let targets: Vec<Target> = topology.ring.walk(key).filter_map(target).collect();
        match targets.is_empty() {
            true => Err(Error::new(ErrorKind::Unavailable, "the cluster has no serving node")),
            false => Ok(targets),
        }
    }

    /// Sends a request. `pin` is the version that the logical read is pinned to.
    async fn ask<B>(
        &self,
        target: &Target,
        verb: Verb,
        body: &B,
        pin: &str,
        call: &Call,
        deadline: Instant,
    ) -> Result<Reply, Error>
    where
        B: Message + for<'a> Serialize<HighSerializer<AlignedVec, ArenaHandle<'a>, Rancor>>,
    {
        let header = Header {
            verb: verb as u16,
            class: call.class as u8,
            trace: call.trace,
            caller: self.inner.config.caller.clone(),
            version: pin.to_owned(),
            ..Header::default()
        };
        ask::ask(&self.inner.pool, target, header, body, deadline).await
    }

    async fn topology(&self, call: &Call, deadline: Instant) -> Result<Arc<Topology>, Error> {
        let known = self.inner.topology.load_full();
        if let Some(topology) = known.as_ref().filter(|topology| !topology.doubted.load(Ordering::Relaxed)) {
            return Ok(topology.clone());
        }
        // Any node will do: those of the seeds, and those that were members when last heard.
        let members = known.iter().flat_map(|topology| topology.view.rows()).map(|row| row.quic.clone());
        let mut asked: Vec<String> = Vec::new();
        let mut last = Error::new(ErrorKind::Unavailable, "no node is configured");
        for address in self.inner.config.addresses.iter().cloned().chain(members) {
            if asked.contains(&address) {
                continue;
            }
            let until = deadline.min(Instant::now() + VIEW_MAX);
            match self.view_from(&address, call, until).await {
                Ok(view) => {
                    let topology = Arc::new(Topology { ring: Ring::new(&view), view, doubted: AtomicBool::new(false) });
                    self.inner.topology.store(Some(topology.clone()));
                    return Ok(topology);
                }
                Err(error) if error.kind == ErrorKind::Timeout && until < deadline => {
                    last = Error::new(ErrorKind::Unavailable, format!("no answer from {address}"));
                }
                Err(error) => last = error,
            }
            asked.push(address);
        }
        // Nobody says anything new: what was known is better than nothing, and its other nodes may live.
        known.ok_or(last)
    }

    /// Asks for the view again before the next request: a node of it could not be reached.
    fn doubt_topology(&self) {
        if let Some(topology) = self.inner.topology.load().as_ref() {
            topology.doubted.store(true, Ordering::Relaxed);
        }
    }
}
