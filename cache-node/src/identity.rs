//! What a node shows: its certificate, from the operator's files, or from the user's own local authority.
//!
//! `dev`, and a `serve` on loopback without `[tls]`, use the local authority: made once in the user's state folder, its key
//! readable by that user alone, its `ca.pem` trusted by clients for loopback addresses when nothing else was given.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use framecache::tls::{self, Own, TlsFiles};
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;

/// A certificate chain and its key.
#[derive(Debug)]
pub struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    /// The file of the authority that signed it, for whoever must trust it.
    pub ca: PathBuf,
}

/// Why a node has no identity. A person must act: the message says on what.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// No state folder: set `HOME` or `XDG_STATE_HOME`, or give `[tls]`.
    #[error("no folder for the local authority: set HOME or XDG_STATE_HOME, or give [tls] ca, cert and key")]
    NoFolder,
    /// A file cannot be read or written.
    #[error("local authority at {}: {cause}", .path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// The operator's files do not fit, or an own certificate could not be made.
    #[error("[tls] is not usable: {0}")]
    Tls(String),
}

impl Identity {
    /// From the operator's PEM files.
    pub fn from_files(ca: &Path, cert: &Path, key: &Path) -> Result<Self, IdentityError> {
        let wrong = |error: framecache::Error| IdentityError::Tls(error.message);
        Ok(Self { chain: tls::certificates(cert).map_err(wrong)?, key: tls::private_key(key).map_err(wrong)?, ca: ca.to_owned() })
    }

    /// A fresh certificate for `names` (host names and addresses), signed by the local authority.
    pub fn local(names: &[String]) -> Result<Self, IdentityError> {
        let ca = tls::local_ca().ok_or(IdentityError::NoFolder)?;
        Self::signed(names, &ca)
    }

    /// The same, with the authority whose certificate is at `ca` (its key beside it, as `.key`); made if it is not there.
    pub fn signed(names: &[String], ca: &Path) -> Result<Self, IdentityError> {
        let authority = authority_key(ca)?;
        let issuer = Issuer::new(authority_params(), authority);
        let made = || -> Result<Self, rcgen::Error> {
            let key = KeyPair::generate()?;
            let mut params = CertificateParams::new(names)?;
            params.distinguished_name.push(DnType::CommonName, names.first().cloned().unwrap_or_default());
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
            params.use_authority_key_identifier_extension = true;
            let certificate = params.signed_by(&key, &issuer)?;
            let chain = vec![certificate.der().clone()];
            Ok(Self { chain, key: PrivatePkcs8KeyDer::from(key.serialize_der()).into(), ca: ca.to_owned() })
        };
        made().map_err(|error| IdentityError::Tls(error.to_string()))
    }

    /// A server's TLS 1.3 configuration that shows it, and takes the certificates of those that show one of the same authority.
    pub fn server_tls(&self) -> Result<rustls::ServerConfig, IdentityError> {
        let wrong = |error: rustls::Error| IdentityError::Tls(error.to_string());
        let mut roots = RootCertStore::empty();
        for certificate in tls::certificates(&self.ca).map_err(|error| IdentityError::Tls(error.message))? {
            roots.add(certificate).map_err(wrong)?;
        }
        let callers = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), tls::provider())
            .allow_unauthenticated()
            .build()
            .map_err(|error| IdentityError::Tls(error.to_string()))?;
        rustls::ServerConfig::builder_with_provider(tls::provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(wrong)?
            .with_client_cert_verifier(callers)
            .with_single_cert(self.chain.clone(), self.key.clone_key())
            .map_err(wrong)
    }

    /// What this node shows and trusts where it asks others.
    pub fn peer_tls(&self) -> TlsFiles {
        let own = Own { chain: self.chain.clone(), key: self.key.clone_key() };
        TlsFiles { ca: Some(self.ca.clone()), own: Some(Arc::new(own)), ..TlsFiles::default() }
    }

    /// Whether the certificate carries that node's name, as the others want to see it.
    pub fn carries(&self, id: &str) -> bool {
        carries(&self.chain, id)
    }
}

/// Whether a proved certificate chain's own certificate carries the name of node `id`, as a DNS name.
pub fn carries(chain: &[CertificateDer<'_>], id: &str) -> bool {
    let (Some(own), Ok(name)) = (chain.first(), ServerName::try_from(id)) else { return false };
    rustls::server::ParsedCertificate::try_from(own).is_ok_and(|own| rustls::client::verify_server_name(&own, &name).is_ok())
}

/// The authority's certificate but for its key: what its issuer name is read from, so it must not change.
fn authority_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "Framecache local authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

/// The key of the authority at `ca`; both files are made if there is none. A lock makes concurrent first starts agree.
fn authority_key(ca: &Path) -> Result<KeyPair, IdentityError> {
    let folder = ca.parent().unwrap_or(Path::new("."));
    let at = |path: &Path| {
        let path = path.to_owned();
        move |cause| IdentityError::File { path, cause }
    };
    fs::create_dir_all(folder).map_err(at(folder))?;
    let lock = folder.join(".lock");
    let held = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&lock).map_err(at(&lock))?;
    held.lock().map_err(at(&lock))?;

    let key_file = ca.with_extension("key");
    if key_file.exists() && ca.exists() {
        let text = fs::read_to_string(&key_file).map_err(at(&key_file))?;
        return KeyPair::from_pem(&text).map_err(|e| IdentityError::File {
            path: key_file,
            cause: io::Error::other(format!("{e}; remove it to make a new one")),
        });
    }
    let key = KeyPair::generate().map_err(|error| IdentityError::Tls(error.to_string()))?;
    let certificate = authority_params().self_signed(&key).map_err(|error| IdentityError::Tls(error.to_string()))?;
    write_whole(&key_file, &key.serialize_pem(), 0o600).map_err(at(&key_file))?;
    write_whole(ca, &certificate.pem(), 0o644).map_err(at(ca))?;
    Ok(key)
}

/// Writes by rename, so that no reader sees half a file.
fn write_whole(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let part = path.with_extension(format!("part-{}", std::process::id()));
    let mut file: File = OpenOptions::new().create(true).truncate(true).write(true).mode(mode).open(&part)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&part, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Promise: the authority is made once, its key is its user's alone, and certificates of later starts are signed by it too.
    #[test]
    fn authority_is_made_once() {
        let folder = tempfile::tempdir().expect("folder");
        let ca = folder.path().join("state/ca.pem");
        let names = ["127.0.0.1".to_owned(), "localhost".to_owned()];
        Identity::signed(&names, &ca).expect("first").server_tls().expect("tls");
        let first = fs::read(&ca).expect("ca");
        Identity::signed(&names, &ca).expect("second").server_tls().expect("tls");
        assert_eq!(fs::read(&ca).expect("ca"), first);
        let mode = fs::metadata(ca.with_extension("key")).expect("key").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
