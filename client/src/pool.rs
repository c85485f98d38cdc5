//! Connections: one for each node, made when first needed, shared by all requests, made anew when it broke.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};

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
            return Err(unavailable(format!("more than {CONNECTIONS_MAX} nodes")));
        }
        Ok(slots.entry(address.to_owned()).or_default().clone())
    }

    async fn connect(&self, address: &str) -> Result<quinn::Connection, Error> {
        let host = host_of(address);
        let mut config = tls::client(&self.tls, host)?;
        config.transport_config(Arc::new(quic::transport(self.windows, Some(Duration::from_secs(10)))));
        let found = tokio::net::lookup_host(address).await;
        let targets: Vec<SocketAddr> = found.map_err(|e| unavailable(format!("cannot resolve {address}: {e}")))?.collect();
        let mut last = unavailable(format!("{address} resolves to no address"));
        for target in targets {
            let connecting = self.endpoint(target)?.connect_with(config.clone(), target, host);
            let connecting = connecting.map_err(|e| unavailable(format!("cannot connect to {address}: {e}")))?;
            match connecting.await {
                Ok(connection) => return Ok(connection),
                Err(error) => last = refused(address, &error),
            }
        }
        Err(last)
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
fn refused(address: &str, error: &quinn::ConnectionError) -> Error {
    let text = error.to_string();
    let kind = if text.contains("certificate") { ErrorKind::Invalid } else { ErrorKind::Unavailable };
    Error::new(kind, format!("cannot connect to {address}: {text}"))
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
