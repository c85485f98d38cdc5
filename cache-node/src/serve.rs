//! The doors of a node: QUIC for loaders and peers, HTTP for operators.
//!
//! A request is read whole, bounded; authorised before anything is looked up; answered item by item at the reader's pace, at no
//! less than a minimum rate. A stream's fault costs that stream, a connection's that connection.

pub mod admin;
mod answer;
mod explain;
mod inbox;
mod index;
mod metrics;
mod peers;
pub mod quic;
mod together;
mod verbs;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use framecache::wire::{Header, Verb};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::auth::{self, Action, Caller, Policy, Verdict};
use crate::cluster::Members;
use crate::read::{Reader, Terms};
use crate::telemetry::TraceContext;
use inbox::Inbox;
pub use metrics::RequestMetrics;

/// How long request tasks may take to see that their connection is closed.
const LAST_TASKS_MAX: std::time::Duration = std::time::Duration::from_secs(2);

/// What answers requests.
pub struct Service {
    reader: Arc<Reader>,
    policy: Policy,
    members: Arc<Members>,
    about: Box<dyn Fn() -> Vec<(String, String)> + Send + Sync>,
    metrics: Arc<RequestMetrics>,
    inbox: Inbox,
    counts: Counts,
    open: AtomicBool,
    leaving: AtomicBool,
    closing: CancellationToken,
    tasks: TaskTracker,
}

/// The parts of a [`Service`].
pub struct ServiceParts {
    /// Fills.
    pub reader: Arc<Reader>,
    /// Who may what.
    pub policy: Policy,
    /// The members, this node among them.
    pub members: Arc<Members>,
    /// Lines about the node itself.
    pub about: Box<dyn Fn() -> Vec<(String, String)> + Send + Sync>,
    /// Where requests are counted.
    pub metrics: Arc<RequestMetrics>,
    /// Bytes that requests may take while they come in and are answered; past it they are refused as busy.
    pub request_bytes: u64,
}

/// A request whose header is read.
struct Request {
    caller: Arc<Caller>,
    /// The node that asks, if it is one, as its certificate proves.
    peer: Option<Arc<str>>,
    deadline: Instant,
    terms: Terms,
    header: Header,
}

/// How many of what are open.
#[derive(Debug, Default)]
struct Counts {
    handshakes: Open,
    connections: Open,
    streams: Open,
}

/// A count that falls by itself.
#[derive(Clone, Debug, Default)]
struct Open(Arc<AtomicUsize>);

struct Entered(Arc<AtomicUsize>);

impl Open {
    fn enter(&self) -> Entered {
        self.0.fetch_add(1, Ordering::Relaxed);
        Entered(self.0.clone())
    }

    fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Service {
    /// A service over `parts`.
    pub fn new(parts: ServiceParts) -> Arc<Self> {
        let ServiceParts { reader, policy, members, about, metrics, request_bytes } = parts;
        Arc::new(Self {
            reader,
            policy,
            members,
            about,
            metrics,
            inbox: Inbox::new(request_bytes),
            counts: Counts::default(),
            open: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            closing: CancellationToken::new(),
            tasks: TaskTracker::new(),
        })
    }

    /// Connections, and streams, that are open now.
    pub fn open(&self) -> (usize, usize) {
        (self.counts.connections.count(), self.counts.streams.count())
    }

    /// From now on requests are answered: before, who asks is sent on, for this node may take everything for its own.
    pub fn open_door(&self) {
        self.open.store(true, Ordering::Release);
    }

    fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// New requests are sent on; those that run may end.
    pub fn leave(&self) {
        self.leaving.store(true, Ordering::Release);
    }

    /// Waits until no stream is open, at most until `deadline`; then ends every connection.
    pub async fn drain(&self, deadline: Instant) {
        let idle = async {
            while self.counts.streams.count() > 0 {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        };
        if tokio::time::timeout_at(deadline, idle).await.is_err() {
            tracing::warn!(streams = self.counts.streams.count(), "drain deadline passed, ending streams");
        }
        self.closing.cancel();
        self.tasks.close();
        if tokio::time::timeout(LAST_TASKS_MAX, self.tasks.wait()).await.is_err() {
            tracing::warn!(tasks = self.tasks.len(), "request tasks did not end in time");
        }
    }

    fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    fn about(&self) -> Vec<(String, String)> {
        (self.about)()
    }

    fn authorise(&self, request: &Request, action: Action, bucket: &str, key: &str) -> Verdict {
        auth::authorise(&self.policy, &request.caller, action, bucket, key)
    }

    /// The request's span, a child of the caller's.
    fn span(&self, verb: Option<Verb>, request: &Request) -> tracing::Span {
        let verb = verb.map_or("unknown", Verb::name);
        let span = tracing::info_span!("request", verb, class = request.header.class);
        let trace = request.header.trace;
        if let Some(parent) = TraceContext::new(trace.trace_id, trace.span_id, trace.flags) {
            parent.adopt(&span);
        }
        span
    }
}
