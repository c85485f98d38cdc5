//! A local folder as a read-only S3 bucket: the origin of `framecache-node dev` and of the tests.
//!
//! It keeps the one promise that a cache needs: an etag names the bytes. The etag is made from inode, size and modification time of the
//! *open* descriptor; conditions are answered, and the body read, from that same descriptor. A file that is replaced in mid-body goes
//! on as the old file; one that is cut short breaks the connection, and nothing is ever padded.
//!
//! Parts: `folder` opens keys without leaving the folder, `walk` lists them in S3's order, `body` streams, `face` speaks S3.

mod body;
mod face;
mod folder;
mod walk;

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::header::AUTHORIZATION;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use s3s::service::{S3Service, S3ServiceBuilder};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use folder::Folder;

/// A folder served as one bucket, without authentication (whatever signature a client sends is passed over). Clones are one origin.
#[derive(Clone)]
pub struct FolderOrigin {
    shared: Arc<Shared>,
}

struct Shared {
    bucket: String,
    folder: Folder,
    requests: Mutex<HashMap<String, u64>>,
    gets: AtomicU64,
    heads: AtomicU64,
    lists: AtomicU64,
}

/// How many requests of each kind have been answered, errors included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FolderCounts {
    /// GETs of objects.
    pub gets: u64,
    /// HEADs of objects.
    pub heads: u64,
    /// Pages of listings.
    pub lists: u64,
}

impl FolderOrigin {
    /// `folder` as `bucket`. Fails if the folder cannot be opened.
    pub fn open(folder: impl AsRef<Path>, bucket: impl Into<String>) -> io::Result<Self> {
        let shared = Shared {
            bucket: bucket.into(),
            folder: Folder::open(folder.as_ref())?,
            requests: Mutex::default(),
            gets: AtomicU64::new(0),
            heads: AtomicU64::new(0),
            lists: AtomicU64::new(0),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// GETs of each key so far, of the first 65,536 keys.
    pub fn requests(&self) -> HashMap<String, u64> {
        self.shared.requests.lock().clone()
    }

    /// GETs, HEADs and listings so far.
    pub fn counts(&self) -> FolderCounts {
        let Shared { gets, heads, lists, .. } = &*self.shared;
        FolderCounts { gets: gets.load(Relaxed), heads: heads.load(Relaxed), lists: lists.load(Relaxed) }
    }

    /// Answers on `listener` until `shutdown` is ready; then open requests have a second to end. Dropping it ends all at once.
    pub async fn serve(self, listener: TcpListener, shutdown: impl Future<Output = ()>) -> io::Result<()> {
        let mut builder = S3ServiceBuilder::new(self);
        builder.set_validation(AnyName);
        let service = builder.build();
        let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let stop = CancellationToken::new();
        let mut connections = JoinSet::new();
        let mut shutdown = pin!(shutdown);
        loop {
            let accepted = async {
                // Never closed; what finds no slot waits in the listener's backlog.
                let slot = slots.clone().acquire_owned().await;
                (slot, listener.accept().await)
            };
            tokio::select! {
                () = &mut shutdown => break,
                Some(_) = connections.join_next() => {}
                (slot, accepted) = accepted => match accepted {
                    Ok((socket, _)) => {
                        let connection = answer(socket, service.clone(), stop.clone());
                        connections.spawn(async move {
                            connection.await;
                            drop(slot);
                        });
                    }
                    // Out of descriptors, or the peer has left already: neither ends the server.
                    Err(error) => {
                        debug!(%error, "accept failed");
                        sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
        drop(listener);
        stop.cancel();
        let drained = async { while connections.join_next().await.is_some() {} };
        // What is left after the drain ends with the set.
        drop(timeout(DRAIN, drained).await);
        Ok(())
    }
}

/// One connection, until its peer leaves or `stop`; then the request under way is the last.
async fn answer(socket: TcpStream, service: S3Service, stop: CancellationToken) {
    // Nagle's algorithm holds the last segment of a body back for the peer's delayed ack: 41 ms a request.
    if let Err(error) = socket.set_nodelay(true) {
        debug!(%error, "nodelay failed");
    }
    let service = service_fn(move |mut request: Request<Incoming>| {
        // There is no secret to check a signature against, and clients with credentials in their environment always sign.
        request.headers_mut().remove(AUTHORIZATION);
        Service::call(&service, request)
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADER_WAIT);
    let mut connection = pin!(http.serve_connection(TokioIo::new(socket), service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        debug!(%error, "connection ended early");
    }
}

impl Shared {
    fn count_get(&self, key: &str) {
        self.gets.fetch_add(1, Relaxed);
        let mut requests = self.requests.lock();
        if let Some(count) = requests.get_mut(key) {
            *count += 1;
        } else if requests.len() < KEYS_COUNTED_MAX {
            requests.insert(key.to_owned(), 1);
        }
    }
}

/// Any bucket name reaches the look-up, which knows one.
struct AnyName;

impl s3s::validation::NameValidation for AnyName {
    fn validate_bucket_name(&self, _name: &str) -> bool {
        true
    }
}

/// A few nodes with 64 requests each, and room for curious tools.
const CONNECTIONS_MAX: usize = 1024;
/// Keep-alive connections are closed after this silence.
const HEADER_WAIT: Duration = Duration::from_secs(60);
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
const DRAIN: Duration = Duration::from_secs(1);
const KEYS_COUNTED_MAX: usize = 65_536;
