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

/// Connections of one client. Everything ends with it.
#[derive(Debug)]
pub(crate) struct Pool {
    tls: TlsFiles,
    windows: Windows,
    endpoints: Mutex<Endpoints>,
    slots: Mutex<HashMap<String, Arc<Slot>>>,
}

#[derive(Debug, Default)]
struct Endpoints {
    v4: Option<quinn::Endpoint>,
    v6: Option<quinn::Endpoint>,
}

/// The connection to one address; the lock makes concurrent first requests share one handshake.
#[derive(Debug, Default)]
struct Slot {
    connection: tokio::sync::Mutex<Option<quinn::Connection>>,
}

impl Slot {
    /// Whether it is connected, or being so.
    fn is_live(&self) -> bool {
        self.connection.try_lock().map_or(true, |held| held.as_ref().is_some_and(|c| c.close_reason().is_none()))
    }
}

impl Pool {
    pub(crate) fn new(tls: TlsFiles, memory: u64) -> Self {
        let windows = Windows::client(memory);
        Self { tls, windows, endpoints: Mutex::default(), slots: Mutex::default() }
    }

    /// A live connection to `address` (`host:port`).
    pub(crate) async fn connection(&self, address: &str, deadline: Instant) -> Result<quinn::Connection, Error> {
        let slot = self.slot(address)?;
        let work = async {
            let mut held = slot.connection.lock().await;
            if let Some(connection) = held.as_ref().filter(|c| c.close_reason().is_none()) {
                return Ok(connection.clone());
            }
            let connection = self.connect(address).await?;
            *held = Some(connection.clone());
            Ok(connection)
        };
        let deadline = deadline.min(Instant::now() + CONNECT_MAX);
        timeout_at(deadline, work).await.unwrap_or_else(|_| Err(unavailable(format!("no answer from {address}"))))
    }

    fn slot(&self, address: &str) -> Result<Arc<Slot>, Error> {
        let mut slots = self.slots.lock();
        if slots.len() >= CONNECTIONS_MAX && !slots.contains_key(address) {
            // Of nodes that came and went, only the living matter.
            slots.retain(|_, slot| slot.is_live());
        }
        if slots.len() >= CONNECTIONS_MAX && !slots.contains_key(address) {
            return Err(unavailable(format!("more than {CONNECTIONS_MAX} nodes")));
        }
        Ok(slots.entry(address.to_owned()).or_default().clone())
    }

    async fn connect(&self, address: &str) -> Result<quinn::Connection, Error> {
        let host = host_of(address);
        let mut config = tls::client(&self.tls, host)?;
        config.transport_config(Arc::new(quic::transport(self.windows, Some(quic::KEEP_ALIVE))));
        let found = tokio::net::lookup_host(address).await;
        let targets: Vec<SocketAddr> = found.map_err(|e| unavailable(format!("cannot resolve {address}: {e}")))?.collect();
        let mut last = unavailable(format!("{address} resolves to no address"));
        let each = CONNECT_MAX / targets.len().max(1) as u32;
        for target in targets {
            last = match timeout(each, self.handshake(target, host, config.clone())).await {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(error)) => error,
                Err(_) => unavailable(format!("no answer from {target}")),
            };
        }
        Err(last)
    }

    async fn handshake(&self, target: SocketAddr, host: &str, config: quinn::ClientConfig) -> Result<quinn::Connection, Error> {
        let connecting = self.endpoint(target)?.connect_with(config, target, host);
        let connecting = connecting.map_err(|e| unavailable(format!("cannot connect to {target}: {e}")))?;
        connecting.await.map_err(|error| refused(target, &error))
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
