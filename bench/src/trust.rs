//! The certificates of a run: one authority and one server certificate, for nodes and comparators alike.

use std::path::{Path, PathBuf};

use anyhow::Result;
use framecache_tests::authority::Authority;

/// Addresses that the server certificate is good for: loopback, and the node's end of the small networks of `netns`.
const NAMES: [&str; 4] = ["localhost", "127.0.0.1", "10.213.1.1", "10.213.2.1"];

/// PEM files.
#[derive(Clone, Debug)]
pub struct Trust {
    /// Whom clients trust.
    pub ca: PathBuf,
    /// What servers show.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

impl Trust {
    /// Makes them in `folder`.
    pub fn make(folder: &Path) -> Result<Self> {
        Authority::make(folder)?.issue(folder, &NAMES.map(str::to_owned))?;
        Ok(Self::at(folder))
    }

    /// Those that `make` left in `folder`.
    pub fn at(folder: &Path) -> Self {
        Self { ca: folder.join("ca.pem"), cert: folder.join("cert.pem"), key: folder.join("key.pem") }
    }

    /// A server's side, AES-128-GCM first as everywhere.
    pub fn server(&self) -> Result<rustls::ServerConfig> {
        let config = rustls::ServerConfig::builder_with_provider(framecache::tls::provider())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_no_client_auth()
            .with_single_cert(framecache::tls::certificates(&self.cert)?, framecache::tls::private_key(&self.key)?)?;
        Ok(config)
    }

    /// A client's side.
    pub fn client(&self) -> Result<rustls::ClientConfig> {
        let mut roots = rustls::RootCertStore::empty();
        framecache::tls::certificates(&self.ca)?.into_iter().try_for_each(|certificate| roots.add(certificate))?;
        let config = rustls::ClientConfig::builder_with_provider(framecache::tls::provider())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(config)
    }
}
