//! The client: raw bytes and decoded pictures by address, from whichever node owns them.
//!
//! A client holds no thread and no socket until its first request, and one connection for each node after it. Every call has a
//! deadline. A call may be cancelled by dropping it: its streams are stopped, and nothing is written any more.
//!
//! Which node is asked follows from the view that the client has of the cluster (`known`, kept up to date by `news`), from the rules of
//! [`crate::route`], and from what each node's link knows of its health. A node that is lost costs a request a third of a second; one
//! that is slow costs it what 95 of 100 of that node's replies take.

mod clips;
mod control;
mod crops;
mod exchange;
mod images;
mod known;
mod news;
mod open;
mod past;
mod read;
mod selection;
mod slots;
mod tries;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use rkyv::Serialize;
use rkyv::api::high::HighSerializer;
use rkyv::rancor::Error as Rancor;
use rkyv::ser::allocator::ArenaHandle;
use rkyv::util::AlignedVec;
use tokio::time::Instant;

use crate::ask::{self, Hear, Reply};
use crate::config::ClientConfig;
use crate::error::Error;
use crate::fallback::Allowance;
use crate::hedge::Budget;
use crate::hot::Hot;
use crate::pool::{Naming, Pool};
use crate::quic::{Ground, Machine};
use crate::wire::codec::Message;
use crate::wire::{Class, Header, Trace, Verb, Via, ext};
use known::{Chosen, Known};
use news::News;
use tries::Tries;

pub use clips::{Clip, ClipSlots, FoundClip};
pub use control::{Listing, ObjectFacts, ObjectRow};
pub use images::{Outcome, Transport};
pub use read::Raw;
pub use selection::Selected;

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
    known: ArcSwapOption<Known>,
    /// Held by who asks for the first view; when that last failed.
    first: tokio::sync::Mutex<Option<(Instant, Error)>>,
    /// Held by who makes rings.
    rebuilding: tokio::sync::Mutex<()>,
    news: Mutex<News>,
    /// Whether the whole view is being asked for, or was a moment ago.
    asking: AtomicBool,
    hot: Mutex<Hot>,
    hedges: Mutex<Budget>,
    /// What may be read past the cluster.
    allowance: Mutex<Allowance>,
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
    /// How frames of videos travel.
    pub transport: Transport,
}

impl Client {
    /// A client of the cluster that `config` names. Nothing is connected yet.
    ///
    /// # Errors
    /// `Invalid` if the configuration names no node.
    pub fn new(config: ClientConfig) -> Result<Self, Error> {
        Self::on(Arc::new(Machine), config)
    }

    /// The same on another ground.
    #[doc(hidden)] // for a network that is simulated
    pub fn on(ground: Arc<dyn Ground>, config: ClientConfig) -> Result<Self, Error> {
        config.check()?;
        let rate = config.fallback.as_ref().map_or(0, |fallback| fallback.bytes_per_second);
        let inner = Inner {
            pool: Pool::new(config.tls.clone(), Naming::IdOrHost, config.memory, ground),
            config,
            known: ArcSwapOption::empty(),
            first: Default::default(),
            rebuilding: Default::default(),
            news: Default::default(),
            asking: AtomicBool::new(false),
            hot: Default::default(),
            hedges: Default::default(),
            allowance: Mutex::new(Allowance::full(rate, Instant::now())),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The configuration it was made with.
    pub fn config(&self) -> &ClientConfig {
        &self.inner.config
    }

    /// Closes the connections, telling the nodes. Calls that run meanwhile fail.
    pub async fn close(&self) {
        self.inner.known.store(None);
        self.inner.pool.close(Duration::from_secs(1)).await;
    }

    fn deadline(&self, call: &Call) -> Instant {
        Instant::now() + call.timeout.unwrap_or(self.inner.config.timeout)
    }

    /// Sends a request. `pin` is the version that the logical read is pinned to.
    async fn ask<B>(
        &self,
        chosen: &Chosen,
        verb: Verb,
        body: &B,
        pin: &str,
        call: &Call,
        deadline: Instant,
    ) -> Result<Reply, Error>
    where
        B: Message + for<'a> Serialize<HighSerializer<AlignedVec, ArenaHandle<'a>, Rancor>>,
    {
        let mut additions = Vec::new();
        if let Some(known) = self.known() {
            additions.push((ext::VIEW, known.digest.to_vec()));
        }
        if chosen.via != Via::Owner {
            additions.push((ext::VIA, vec![chosen.via as u8]));
        }
        let header = Header {
            verb: verb as u16,
            class: call.class as u8,
            trace: call.trace,
            caller: self.inner.config.caller.clone(),
            version: pin.to_owned(),
            ext: additions,
            ..Header::default()
        };
        self.inner.hedges.lock().asked(chosen.load);
        let hear: Arc<dyn Hear> = self.inner.clone();
        ask::ask(&chosen.link, header, body, chosen.load, Some(hear), deadline).await
    }
}

#[cfg(test)]
mod tests;
