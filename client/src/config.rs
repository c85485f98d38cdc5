//! What a client is told: where the cluster is, whom to trust, how much it may take.

use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::fallback::Fallback;
use crate::tls::TlsFiles;

/// Settings of a [`crate::Client`]. Fields not set keep the default that their doc names.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Nodes to ask for the cluster's view, `host:port` each; any one is enough.
    pub addresses: Vec<String>,
    /// Whom to trust and what to show.
    pub tls: TlsFiles,
    /// Bearer token, for clusters that ask for one. No node does yet, and none is sent.
    pub token: Option<String>,
    /// Deadline of a call that names none: 30 seconds.
    pub timeout: Duration,
    /// Bytes that the client itself may hold, receive windows included: 1 GiB. Buffers that a caller is given are the caller's.
    pub memory: u64,
    /// A name for this job, for the cluster's metrics. Never trusted for access.
    pub caller: String,
    /// Where raw bytes are read when no node can be reached: nowhere, if not given.
    pub fallback: Option<Fallback>,
}

/// Port that an address without one means: QUIC's default port of a node.
pub const PORT: u16 = 4433;

/// Least memory that a client works with: below it one page in flight would fill its window.
pub const MEMORY_MIN: u64 = 4 << 20;

impl ClientConfig {
    /// A configuration for the cluster at `addresses` (`host` or `host:port`, comma-separated).
    pub fn new(addresses: &str) -> Self {
        let addresses = addresses.split(',').map(str::trim).filter(|a| !a.is_empty()).map(with_port).collect();
        let (timeout, memory) = (Duration::from_secs(30), 1 << 30);
        Self { addresses, tls: TlsFiles::default(), token: None, timeout, memory, caller: String::new(), fallback: None }
    }

    /// From `FRAMECACHE_ADDR`, `FRAMECACHE_CA` and `FRAMECACHE_TOKEN`.
    ///
    /// # Errors
    /// `Invalid` if `FRAMECACHE_ADDR` is not set.
    pub fn from_env() -> Result<Self, Error> {
        let get = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let addresses = get("FRAMECACHE_ADDR")
            .ok_or_else(|| Error::new(ErrorKind::Invalid, "FRAMECACHE_ADDR is not set: set it to a node's host:port"))?;
        let mut config = Self::new(&addresses);
        // A path: any bytes.
        config.tls.ca = std::env::var_os("FRAMECACHE_CA").filter(|path| !path.is_empty()).map(Into::into);
        config.token = get("FRAMECACHE_TOKEN");
        Ok(config)
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let invalid = |message: String| Err(Error::new(ErrorKind::Invalid, message));
        if self.addresses.is_empty() {
            return invalid("no node given: want host:port".into());
        }
        if self.memory < MEMORY_MIN {
            return invalid(format!("memory of {} bytes is too little: want at least {MEMORY_MIN}", self.memory));
        }
        if self.caller.len() > crate::wire::CALLER_BYTES_MAX {
            return invalid("caller name is longer than 256 bytes".into());
        }
        Ok(())
    }
}

fn with_port(address: &str) -> String {
    let bare_v6 = address.parse::<std::net::Ipv6Addr>().is_ok();
    let has_port = !bare_v6 && address.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    match (has_port, bare_v6) {
        (true, _) => address.to_owned(),
        (false, true) => format!("[{address}]:{PORT}"),
        (false, false) => format!("{address}:{PORT}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: an address without port means the default port; several may be given.
    #[test]
    fn addresses_get_their_port() {
        let config = ClientConfig::new("a.example, 10.0.0.1:99,::1,[::1]:5");
        assert_eq!(config.addresses, ["a.example:4433", "10.0.0.1:99", "[::1]:4433", "[::1]:5"]);
        assert!(ClientConfig::new(" ,").check().is_err());
    }
}
