//! Handshakes: names to addresses, sockets, and a fresh one where the old may be dead.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use super::{Naming, Target, host_of, unavailable};
use crate::error::{Error, ErrorKind};
use crate::hedge::Waits;
use crate::quic::{self, Ground, Windows};
use crate::stats::Counters;
use crate::tls::{self, TlsFiles};

/// A socket on which nothing has come for this long while a handshake failed is replaced, and no more often than that: what tracks
/// connections between here and the node may have forgotten its port, or drop what comes to it.
const STALE: Duration = Duration::from_secs(3);

/// So is one on which other nodes answer, after so many failed handshakes with one: trackers keep an entry for each pair of ports.
const FAILURES: u32 = 2;

/// What all connections of a client share.
#[derive(Debug)]
pub(crate) struct Dialer {
    tls: TlsFiles,
    naming: Naming,
    windows: Windows,
    ground: Arc<dyn Ground>,
    endpoints: Mutex<Endpoints>,
    /// When a packet last came, on any connection.
    heard: Mutex<Instant>,
    /// Whether there is more than one node to ask.
    elsewhere: AtomicBool,
    pub(crate) counters: Counters,
    /// How long nodes make this client wait, all together, by kind.
    pub(super) waits: [Mutex<Waits>; 2],
}

#[derive(Debug, Default)]
struct Endpoints {
    v4: Option<Socket>,
    v6: Option<Socket>,
}

#[derive(Clone, Debug)]
struct Socket {
    endpoint: quinn::Endpoint,
    made: Instant,
}

impl Dialer {
    pub(super) fn new(tls: TlsFiles, naming: Naming, memory: u64, ground: Arc<dyn Ground>) -> Self {
        Self {
            tls,
            naming,
            windows: Windows::client(memory),
            ground,
            endpoints: Mutex::default(),
            heard: Mutex::new(Instant::now()),
            elsewhere: AtomicBool::new(naming == Naming::Id),
            counters: Counters::default(),
            waits: Default::default(),
        }
    }

    /// Bytes that a connection may receive before they are read.
    pub(super) fn receive_window(&self) -> u32 {
        self.windows.receive
    }

    /// Uniform bits.
    pub(super) fn random(&self) -> u64 {
        self.ground.random()
    }

    pub(super) fn elsewhere(&self) -> bool {
        self.elsewhere.load(Ordering::Relaxed)
    }

    pub(super) fn set_elsewhere(&self, elsewhere: bool) {
        self.elsewhere.store(elsewhere, Ordering::Relaxed);
    }

    /// A packet came.
    pub(super) fn heard(&self) {
        *self.heard.lock() = Instant::now();
    }

    /// Connects to `target`, within `limit`, after that many failures.
    pub(super) async fn dial(&self, target: &Target, limit: Duration, failures: u32) -> Result<quinn::Connection, Error> {
        let address = &target.address;
        let host = host_of(address);
        let config = tls::client_for(&self.tls, host, &target.names(self.naming))?;
        let found = timeout(limit, tokio::net::lookup_host(address)).await;
        let found = found.map_err(|_| unavailable(format!("cannot resolve {address} in time")))?;
        let places: Vec<SocketAddr> = found.map_err(|e| unavailable(format!("cannot resolve {address}: {e}")))?.collect();
        let mut last = unavailable(format!("{address} resolves to no address"));
        let each = limit / u32::try_from(places.len().max(1)).unwrap_or(u32::MAX);
        for place in places {
            last = match timeout(each, self.handshake(place, host, config.clone())).await {
                Ok(Ok(connection)) => {
                    self.heard();
                    return Ok(connection);
                }
                // At the address of a node that was there may be another by now: that one is wrong, not the trust.
                Ok(Err(error)) if target.node.is_some() => Error { kind: ErrorKind::Unavailable, ..error },
                Ok(Err(error)) => error,
                Err(_) => {
                    self.doubt(place, failures);
                    unavailable(format!("no answer from {place}"))
                }
            };
        }
        Err(last)
    }

    async fn handshake(
        &self,
        place: SocketAddr,
        host: &str,
        mut config: quinn::ClientConfig,
    ) -> Result<quinn::Connection, Error> {
        config.transport_config(Arc::new(quic::transport(self.windows.towards(place), Some(quic::KEEP_ALIVE))));
        let connecting = self.endpoint(place)?.connect_with(config, place, host);
        let connecting = connecting.map_err(|e| unavailable(format!("cannot connect to {place}: {e}")))?;
        connecting.await.map_err(|error| refused(place, &error))
    }

    fn endpoint(&self, place: SocketAddr) -> Result<quinn::Endpoint, Error> {
        let mut endpoints = self.endpoints.lock();
        let (slot, any) = match place {
            SocketAddr::V4(_) => (&mut endpoints.v4, SocketAddr::from(([0; 4], 0))),
            SocketAddr::V6(_) => (&mut endpoints.v6, SocketAddr::from(([0u16; 8], 0))),
        };
        if let Some(socket) = slot {
            return Ok(socket.endpoint.clone());
        }
        let endpoint = self.ground.endpoint(any).map_err(|e| unavailable(format!("cannot open a UDP socket: {e}")))?;
        *slot = Some(Socket { endpoint: endpoint.clone(), made: Instant::now() });
        Ok(endpoint)
    }

    /// A handshake with `place` had no answer: the next one is on a fresh socket, if this one may be to blame. Connections that
    /// still are on the old one keep it.
    fn doubt(&self, place: SocketAddr, failures: u32) {
        if failures < FAILURES && self.heard.lock().elapsed() < STALE {
            return;
        }
        let mut endpoints = self.endpoints.lock();
        let slot = if place.is_ipv4() { &mut endpoints.v4 } else { &mut endpoints.v6 };
        slot.take_if(|socket| socket.made.elapsed() >= STALE);
    }

    /// Closes what is connected, and waits until the nodes know, at most `wait`.
    pub(super) async fn close(&self, wait: Duration) {
        let endpoints = std::mem::take(&mut *self.endpoints.lock());
        for Socket { endpoint, .. } in [endpoints.v4, endpoints.v6].into_iter().flatten() {
            endpoint.close(0u32.into(), b"client closed");
            let _ = timeout(wait, endpoint.wait_idle()).await;
        }
    }
}

/// A failed handshake: wrong trust is for the user to mend and final, all else may pass.
fn refused(place: SocketAddr, error: &quinn::ConnectionError) -> Error {
    // TLS alerts on certificates, unknown authorities, denied access, signatures that do not fit and a certificate that is wanted (RFC 8446
    // section 6: 42 to 49, 51, 116), as QUIC carries them (RFC 9001 section 4.8: 0x100 and the alert).
    let trust = |code: u64| matches!(code.checked_sub(0x100), Some(42..=49 | 51 | 116));
    let kind = match error {
        quinn::ConnectionError::TransportError(error) if trust(error.code.into()) => ErrorKind::Invalid,
        quinn::ConnectionError::ConnectionClosed(close) if trust(close.error_code.into()) => ErrorKind::Invalid,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, format!("cannot connect to {place}: {error}"))
}
