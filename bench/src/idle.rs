//! Connections that ask for nothing: thousands of clients between two epochs. Each comes back by itself when its node was lost.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use framecache::quic::{self, Windows};
use framecache::tls::TlsFiles;
use framecache::wire::{Header, ItemHead, ReadBody, Verb, ViewBody, ViewPayload, codec, ext, stream};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::workload::Random;

/// Sockets that the connections share: each may as well be a client of its own, and none takes a descriptor and a buffer for itself.
const SOCKETS: usize = 16;
/// Handshakes at once: what one core does in a tenth of a second.
const HANDSHAKES: usize = 64;
/// Longest handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// A connection that was lost is made anew after a random part of this, so that all do not come in one instant.
const RETURN_WITHIN: Duration = Duration::from_secs(2);

/// Connections to one node.
pub struct Idle {
    shared: Arc<Shared>,
    keepers: JoinSet<()>,
    count: usize,
}

struct Shared {
    endpoints: Vec<quinn::Endpoint>,
    config: quinn::ClientConfig,
    address: SocketAddr,
    host: String,
    /// Of each line, the connection that it has.
    lines: Vec<Mutex<Option<quinn::Connection>>>,
    /// How often each line has been connected.
    lives: Vec<AtomicUsize>,
    /// Bytes received by connections that are no more.
    received_before: AtomicU64,
    handshakes: tokio::sync::Semaphore,
}

impl Idle {
    /// Opens `count` connections, or as many as can be had: when none is added for ten seconds, that is all.
    pub async fn open(address: SocketAddr, ca: &Path, count: usize, seed: u64) -> Result<Self> {
        let files = TlsFiles { ca: Some(ca.to_owned()), ..TlsFiles::default() };
        let host = address.ip().to_string();
        let mut config = framecache::tls::client(&files, &host)?;
        // As small as a client may be: what it has room for is not the node's.
        config.transport_config(Arc::new(quic::transport(Windows::client(4 << 20).towards(address), Some(quic::KEEP_ALIVE))));
        let endpoints = (0..SOCKETS).map(|_| quic::endpoint(quic::bind(([0, 0, 0, 0], 0).into())?, None));
        let shared = Arc::new(Shared {
            endpoints: endpoints.collect::<std::io::Result<_>>()?,
            config,
            address,
            host,
            lines: (0..count).map(|_| Mutex::new(None)).collect(),
            lives: (0..count).map(|_| AtomicUsize::new(0)).collect(),
            received_before: AtomicU64::new(0),
            handshakes: tokio::sync::Semaphore::new(HANDSHAKES),
        });
        let mut keepers = JoinSet::new();
        for number in 0..count {
            keepers.spawn(keep(shared.clone(), number, Random::new(seed, number as u64)));
        }
        let mut idle = Self { shared, keepers, count };
        // A machine that holds fewer stops getting more.
        let (none, mut last, mut since) = (vec![0; count], 0, Instant::now());
        while last < count && since.elapsed() < HANDSHAKE_MAX {
            sleep(Duration::from_millis(20)).await;
            let made = idle.made_since(&none);
            if made > last {
                (last, since) = (made, Instant::now());
            }
        }
        ensure!(last > 0, "no connection to {address} in {HANDSHAKE_MAX:?}");
        idle.count = last;
        Ok(idle)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// How often each has been made so far.
    pub fn lives(&self) -> Vec<usize> {
        self.shared.lives.iter().map(|lives| lives.load(Relaxed)).collect()
    }

    /// How many have been made since `before`.
    pub fn made_since(&self, before: &[usize]) -> usize {
        self.lives().iter().zip(before).filter(|(now, before)| now > before).count()
    }

    /// Bytes that all of them received so far, of every kind.
    pub fn received(&self) -> u64 {
        let live = self.shared.lines.iter().filter_map(|line| Some(line.lock().as_ref()?.stats().udp_rx.bytes)).sum::<u64>();
        live + self.shared.received_before.load(Relaxed)
    }

    /// Bytes that connection `number` receives when it asks for one byte of `uri` and says that it has the view of that digest; more of
    /// the view included, if it is told to ask.
    pub async fn ask(&self, number: usize, uri: &str, digest: u64) -> Result<u64> {
        let connection = self.shared.lines[number].lock().clone();
        let Some(connection) = connection else { anyhow::bail!("connection {number} is lost") };
        let before = connection.stats().udp_rx.bytes;
        let (mut send, mut receive) = connection.open_bi().await?;
        let header = Header {
            verb: Verb::Read as u16,
            deadline_ms_left: 10_000,
            ext: vec![(ext::VIEW, digest.to_le_bytes().into())],
            ..Header::default()
        };
        stream::send(&mut send, &header).await?;
        stream::send(&mut send, &ReadBody { uri: uri.to_owned(), start: 0, length: 1 }).await?;
        send.finish()?;
        let head: ItemHead = stream::receive(&mut receive).await?;
        ensure!(head.status == 0, "connection {number}: {}", head.message);
        let delta = head.ext.iter().find(|(name, _)| *name == ext::VIEW_DELTA);
        receive.read_to_end(1 << 10).await?;
        if delta.is_some_and(|(_, bytes)| bytes.is_empty()) {
            whole_view(&connection).await?;
        }
        Ok(connection.stats().udp_rx.bytes - before)
    }

    /// Closes all.
    pub async fn close(mut self) {
        self.keepers.abort_all();
        while self.keepers.join_next().await.is_some() {}
        for endpoint in &self.shared.endpoints {
            endpoint.close(0u32.into(), b"done");
        }
    }
}

async fn whole_view(connection: &quinn::Connection) -> Result<ViewPayload> {
    let (mut send, mut receive) = connection.open_bi().await?;
    stream::send(&mut send, &Header { verb: Verb::View as u16, deadline_ms_left: 10_000, ..Header::default() }).await?;
    stream::send(&mut send, &ViewBody { known: 0 }).await?;
    send.finish()?;
    let head: ItemHead = stream::receive(&mut receive).await?;
    let archive = receive.read_to_end(framecache::wire::CONTROL_BYTES_MAX as usize).await?;
    ensure!(head.status == 0, "no view: {}", head.message);
    Ok(codec::decode(&archive)?)
}

/// Keeps line `number` connected for ever.
async fn keep(shared: Arc<Shared>, number: usize, mut random: Random) {
    loop {
        let made = {
            // Never closed.
            let _slot = shared.handshakes.acquire().await;
            let endpoint = &shared.endpoints[number % SOCKETS];
            match endpoint.connect_with(shared.config.clone(), shared.address, &shared.host) {
                Ok(connecting) => timeout(HANDSHAKE_MAX, connecting).await.ok().and_then(Result::ok),
                Err(_) => None,
            }
        };
        if let Some(connection) = made {
            *shared.lines[number].lock() = Some(connection.clone());
            shared.lives[number].fetch_add(1, Relaxed);
            connection.closed().await;
            shared.lines[number].lock().take();
            shared.received_before.fetch_add(connection.stats().udp_rx.bytes, Relaxed);
        }
        sleep(RETURN_WITHIN.mul_f64(random.below(1 << 20) as f64 / f64::from(1 << 20))).await;
    }
}
