//! Connections: one for each node, made when first needed, shared by all requests, made anew when it broke.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, timeout, timeout_at};

use crate::error::{Error, ErrorKind};
use crate::quic::{self, Windows};
use crate::tls::{self, TlsFiles};

/// Most nodes that one client is connected to; a view holds no more.
const CONNECTIONS_MAX: usize = crate::view::NODES_MAX;

/// Longest wait for a handshake: past it the node is taken for lost, even if the request could wait longer.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// Whom a connection leads to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Target {
    /// The node's name; none for a seed, which is known by its address alone.
    node: Option<String>,
    address: String,
}

impl Target {
    pub(crate) fn node(id: &str, address: &str) -> Self {
        Self { node: Some(id.to_owned()), address: address.to_owned() }
    }

    pub(crate) fn seed(address: &str) -> Self {
        Self { node: None, address: address.to_owned() }
    }

    /// For messages: the node's name, or where it is.
    pub(crate) fn name(&self) -> &str {
        self.node.as_deref().unwrap_or(&self.address)
    }

    /// What its certificate must be of, one of these.
    fn names(&self, by: Naming) -> Vec<&str> {
        match (&self.node, by) {
            (None, _) => vec![host_of(&self.address)],
            (Some(id), Naming::Id) => vec![id],
            (Some(id), Naming::IdOrHost) => vec![id, host_of(&self.address)],
        }
    }
}

/// By what a node of the view is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Naming {
    /// By its name alone: among nodes.
    Id,
    /// By its name, or by the host of its address: for a loader, whose operator may have made certificates of hosts.
    IdOrHost,
}

/// Connections of one client. Everything ends with it.
#[derive(Debug)]
pub(crate) struct Pool {
    tls: TlsFiles,
    naming: Naming,
    windows: Windows,
    endpoints: Mutex<Endpoints>,
    slots: Mutex<HashMap<Target, Arc<Slot>>>,
}

#[derive(Debug, Default)]
struct Endpoints {
    v4: Option<quinn::Endpoint>,
    v6: Option<quinn::Endpoint>,
}

/// The connection to one node; the lock makes concurrent first requests share one handshake.
#[derive(Debug, Default)]
struct Slot {
    connection: tokio::sync::Mutex<Option<quinn::Connection>>,
    /// When it was last lost, or not to be had.
    lost: Mutex<Option<Instant>>,
}

impl Slot {
    /// Whether it is connected, or being so.
    fn is_live(&self) -> bool {
        self.connection.try_lock().map_or(true, |held| held.as_ref().is_some_and(|c| c.close_reason().is_none()))
    }
}

impl Pool {
    pub(crate) fn new(tls: TlsFiles, naming: Naming, memory: u64) -> Self {
        let windows = Windows::client(memory);
        Self { tls, naming, windows, endpoints: Mutex::default(), slots: Mutex::default() }
    }

    /// A live connection to `target`.
    pub(crate) async fn connection(&self, target: &Target, deadline: Instant) -> Result<quinn::Connection, Error> {
        let slot = self.slot(target)?;
        let work = async {
            let mut held = slot.connection.lock().await;
            if let Some(connection) = held.as_ref().filter(|c| c.close_reason().is_none()) {
                return Ok(connection.clone());
            }
            let connection = self.connect(target).await?;
            *held = Some(connection.clone());
            Ok(connection)
        };
        let deadline = deadline.min(Instant::now() + CONNECT_MAX);
        timeout_at(deadline, work).await.unwrap_or_else(|_| Err(unavailable(format!("no answer from {}", target.address))))
    }

    /// `target` was lost just now.
    pub(crate) fn lost(&self, target: &Target) {
        if let Some(slot) = self.slots.lock().get(target) {
            *slot.lost.lock() = Some(Instant::now());
        }
    }

    /// Whether `target` was lost within `past`.
    pub(crate) fn was_lost(&self, target: &Target, past: Duration) -> bool {
        let slots = self.slots.lock();
        let lost = slots.get(target).and_then(|slot| *slot.lost.lock());
        lost.is_some_and(|lost| lost.elapsed() < past)
    }

    fn slot(&self, target: &Target) -> Result<Arc<Slot>, Error> {
        let mut slots = self.slots.lock();
        if slots.len() >= CONNECTIONS_MAX && !slots.contains_key(target) {
            // Of nodes that came and went, only the living matter.
            slots.retain(|_, slot| slot.is_live());
        }
        if slots.len() >= CONNECTIONS_MAX && !slots.contains_key(target) {
            return Err(unavailable(format!("more than {CONNECTIONS_MAX} nodes")));
        }
        Ok(slots.entry(target.clone()).or_default().clone())
    }

    async fn connect(&self, target: &Target) -> Result<quinn::Connection, Error> {
        let address = &target.address;
        let host = host_of(address);
        let mut config = tls::client_for(&self.tls, host, &target.names(self.naming))?;
        config.transport_config(Arc::new(quic::transport(self.windows, Some(quic::KEEP_ALIVE))));
        let found = tokio::net::lookup_host(address).await;
        let places: Vec<SocketAddr> = found.map_err(|e| unavailable(format!("cannot resolve {address}: {e}")))?.collect();
        let mut last = unavailable(format!("{address} resolves to no address"));
        let each = CONNECT_MAX / u32::try_from(places.len().max(1)).unwrap_or(u32::MAX);
        for place in places {
            last = match timeout(each, self.handshake(place, host, config.clone())).await {
                Ok(Ok(connection)) => return Ok(connection),
                // At the address of a node that was there may be another by now: that one is wrong, not the trust.
                Ok(Err(error)) if target.node.is_some() => Error { kind: ErrorKind::Unavailable, ..error },
                Ok(Err(error)) => error,
                Err(_) => unavailable(format!("no answer from {place}")),
            };
        }
        Err(last)
    }

    async fn handshake(&self, place: SocketAddr, host: &str, config: quinn::ClientConfig) -> Result<quinn::Connection, Error> {
        let connecting = self.endpoint(place)?.connect_with(config, place, host);
        let connecting = connecting.map_err(|e| unavailable(format!("cannot connect to {place}: {e}")))?;
        connecting.await.map_err(|error| refused(place, &error))
    }

    fn endpoint(&self, target: SocketAddr) -> Result<quinn::Endpoint, Error> {
        let mut endpoints = self.endpoints.lock();
        let (slot, any) = match target {
            SocketAddr::V4(_) => (&mut endpoints.v4, SocketAddr::from(([0; 4], 0))),
            SocketAddr::V6(_) => (&mut endpoints.v6, SocketAddr::from(([0u16; 8], 0))),
        };
        if let Some(endpoint) = slot {
            return Ok(endpoint.clone());
        }
        let made = quic::bind(any).and_then(|socket| quic::endpoint(socket, None));
        let made = made.map_err(|e| unavailable(format!("cannot open a UDP socket: {e}")))?;
        Ok(slot.insert(made).clone())
    }

    /// Closes every connection, and waits until the peers know, at most `wait`.
    pub(crate) async fn close(&self, wait: Duration) {
        let endpoints = std::mem::take(&mut *self.endpoints.lock());
        self.slots.lock().clear();
        for endpoint in [endpoints.v4, endpoints.v6].into_iter().flatten() {
            endpoint.close(0u32.into(), b"client closed");
            let _ = tokio::time::timeout(wait, endpoint.wait_idle()).await;
        }
    }
}

/// A failed handshake: wrong trust is for the user to mend and final, all else may pass.
fn refused(target: SocketAddr, error: &quinn::ConnectionError) -> Error {
    // TLS alerts on certificates and unknown authorities (RFC 8446 section 6: 42 to 48), as QUIC carries them (RFC 9001
    // section 4.8: 0x100 and the alert).
    let trust = |code: u64| (0x100 + 42..=0x100 + 48).contains(&code);
    let kind = match error {
        quinn::ConnectionError::TransportError(error) if trust(error.code.into()) => ErrorKind::Invalid,
        quinn::ConnectionError::ConnectionClosed(close) if trust(close.error_code.into()) => ErrorKind::Invalid,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, format!("cannot connect to {target}: {error}"))
}

fn unavailable(message: String) -> Error {
    Error::new(ErrorKind::Unavailable, message)
}

/// The host of `host:port` or `[v6]:port`.
pub(crate) fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the host is found in every form of an address.
    #[test]
    fn hosts() {
        assert_eq!([host_of("a.b:1"), host_of("127.0.0.1:1"), host_of("[::1]:1")], ["a.b", "127.0.0.1", "::1"]);
    }
}
