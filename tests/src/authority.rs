//! An authority of one run: signs a certificate for each node, good for its name and its addresses, as server and as client.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

/// Whom everybody of one run trusts.
pub struct Authority {
    /// Its certificate, PEM.
    pub ca: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// A new one, with `ca.pem` in `folder`.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn make(folder: &Path) -> Result<Self> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "Framecache test authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let ca = folder.join("ca.pem");
        fs::write(&ca, params.self_signed(&key)?.pem()).with_context(|| format!("write {}", ca.display()))?;
        Ok(Self { ca, issuer: Issuer::new(params, key) })
    }

    /// A certificate for `names` (host names and addresses): `cert.pem` and `key.pem` in `folder`.
    ///
    /// # Errors
    /// A name that no certificate can hold; the folder cannot be written.
    pub fn issue(&self, folder: &Path, names: &[String]) -> Result<()> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(names)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.issuer)?;
        fs::write(folder.join("cert.pem"), certificate.pem()).context("write a certificate")?;
        fs::write(folder.join("key.pem"), key.serialize_pem()).context("write its key")
    }
}
