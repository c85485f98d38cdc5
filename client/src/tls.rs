//! Whom to trust. TLS 1.3 always, and verification is never switched off: a client trusts the CA it was given, or, on a loopback
//! address alone, the one that a local node wrote into the user's state folder.
//!
//! A seed is known by its address alone, so that its certificate must be of that host. A node of a view is known by its name, whose
//! certificate it must show wherever it is: addresses are given to others, names are not.

mod names;

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::error::{Error, ErrorKind};
use crate::wire::ALPN;

/// What a client shows and trusts. Files are PEM.
#[derive(Clone, Debug, Default)]
pub struct TlsFiles {
    /// Certificates that may sign a node's.
    pub ca: Option<PathBuf>,
    /// The same in memory; goes before `ca`.
    pub roots: Option<Arc<[CertificateDer<'static>]>>,
    /// Own certificate chain, for mutual TLS.
    pub cert: Option<PathBuf>,
    /// Its key.
    pub key: Option<PathBuf>,
    /// Own chain and key in memory; goes before `cert` and `key`.
    pub own: Option<Arc<Own>>,
}

/// A certificate chain and its key, in memory.
pub struct Own {
    /// The own certificate first, then those that lead to the CA.
    pub chain: Vec<CertificateDer<'static>>,
    /// The own certificate's key.
    pub key: PrivateKeyDer<'static>,
}

impl fmt::Debug for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Own").field("certificates", &self.chain.len()).finish_non_exhaustive()
    }
}

/// Cipher suites with AES-128-GCM first: on every processor with AES instructions it costs half of ChaCha20, and QUIC's first
/// packets need it anyway.
pub fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    provider.cipher_suites.retain(|suite| suite.tls13().is_some());
    provider.cipher_suites.sort_by_key(|suite| suite.suite() != rustls::CipherSuite::TLS13_AES_128_GCM_SHA256);
    Arc::new(provider)
}

/// The state folder's `ca.pem`, which `dev` and a loopback `serve` write: `$XDG_STATE_HOME/framecache`, else
/// `~/.local/state/framecache`.
pub fn local_ca() -> Option<PathBuf> {
    let folder = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let state = folder("XDG_STATE_HOME").or_else(|| Some(folder("HOME")?.join(".local/state")))?;
    Some(state.join("framecache/ca.pem"))
}

/// The configuration for connections to `host` (a name or an IP address, without port), whose certificate must be of that host.
pub fn client(files: &TlsFiles, host: &str) -> Result<quinn::ClientConfig, Error> {
    client_for(files, host, &[host])
}

/// The same, where the certificate must be of one of `names`.
pub(crate) fn client_for(files: &TlsFiles, host: &str, names: &[&str]) -> Result<quinn::ClientConfig, Error> {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in authorities(files, host)?.iter() {
        roots
            .add(certificate.clone())
            .map_err(|error| invalid(format!("the CA file holds a certificate that is not usable: {error}")))?;
    }
    let verifier = names::Verifier::new(roots, names).map_err(invalid)?;
    let builder = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| invalid(error.to_string()))?
        // rustls's word for any verifier that is not its own; this one asks its own for each name.
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let own = match (&files.own, &files.cert, &files.key) {
        (Some(own), ..) => Some((own.chain.clone(), own.key.clone_key())),
        (None, None, None) => None,
        (None, Some(cert), Some(key)) => Some((certificates(cert)?, private_key(key)?)),
        _ => return Err(invalid("give both a certificate and its key, or neither".into())),
    };
    let mut tls = match own {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => builder
            .with_client_auth_cert(chain, key)
            .map_err(|error| invalid(format!("own certificate and key do not fit: {error}")))?,
    };
    // A configuration serves one connection, and each one is verified anew.
    tls.resumption = rustls::client::Resumption::disabled();
    tls.alpn_protocols = vec![ALPN[0].to_vec()];
    let crypto = quinn::crypto::rustls::QuicClientConfig::try_from(tls).map_err(|error| invalid(error.to_string()))?;
    Ok(quinn::ClientConfig::new(Arc::new(crypto)))
}

/// Whom to trust for `host`: the given ones, else for loopback the local one.
fn authorities(files: &TlsFiles, host: &str) -> Result<Arc<[CertificateDer<'static>]>, Error> {
    if let Some(roots) = &files.roots {
        return Ok(roots.clone());
    }
    if let Some(ca) = &files.ca {
        return Ok(certificates(ca)?.into());
    }
    if !is_loopback(host) {
        return Err(invalid(format!("no CA given for {host}: set ca= (or FRAMECACHE_CA) to the cluster's ca.pem")));
    }
    let local = local_ca().filter(|path| path.exists()).ok_or_else(|| {
        invalid(
            "no CA given, and no local node has written one: start `framecache-node dev`, or set ca= (or FRAMECACHE_CA)".into(),
        )
    })?;
    Ok(certificates(&local)?.into())
}

/// Whether `host` can only be this machine.
pub fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// The certificates of a PEM file, at least one.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).map_err(|e| file(path, &e))?.collect();
    let found = found.map_err(|e| file(path, &e))?;
    if found.is_empty() {
        return Err(invalid(format!("{} holds no certificate", path.display())));
    }
    Ok(found)
}

/// The private key of a PEM file.
pub fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, Error> {
    PrivateKeyDer::from_pem_file(path).map_err(|e| file(path, &e))
}

fn file(path: &Path, error: &dyn std::fmt::Display) -> Error {
    invalid(format!("cannot read {}: {error}", path.display()))
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: only TLS 1.3 suites are offered, the cheapest first.
    #[test]
    fn suites_are_tls13_aes128_first() {
        let suites = provider().cipher_suites.clone();
        assert_eq!(suites[0].suite(), rustls::CipherSuite::TLS13_AES_128_GCM_SHA256);
        assert!(suites.iter().all(|s| s.tls13().is_some()));
    }

    /// Promise: beyond loopback nothing is trusted that was not given.
    #[test]
    fn remote_hosts_need_a_ca() {
        let error = client(&TlsFiles::default(), "cache.example.org").expect_err("refused");
        assert!(error.to_string().contains("no CA given"), "{error}");
        assert!(is_loopback("127.0.0.2") && is_loopback("::1") && !is_loopback("127.0.0.1.example.org"));
    }

    /// Promise: no log shows a key.
    #[test]
    fn keys_are_not_shown() {
        let key = PrivateKeyDer::Pkcs8(vec![77; 4].into());
        let text = format!("{:?}", TlsFiles { own: Some(Arc::new(Own { chain: Vec::new(), key })), ..TlsFiles::default() });
        assert!(text.contains("certificates: 0") && !text.contains("77"), "{text}");
    }
}
