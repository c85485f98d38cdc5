//! A certificate must be of one of a few names. Everything else about it is judged by rustls's own verifier, once for each name.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

#[derive(Debug)]
pub(super) struct Verifier {
    inner: Arc<WebPkiServerVerifier>,
    /// At least one.
    names: Vec<ServerName<'static>>,
}

impl Verifier {
    /// Trusts what `roots` signed for one of `names`, as far as they are names that a certificate can carry.
    pub(super) fn new(roots: RootCertStore, names: &[&str]) -> Result<Self, String> {
        let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), super::provider()).build();
        let inner = inner.map_err(|error| error.to_string())?;
        let parsed: Vec<_> = names.iter().filter_map(|name| ServerName::try_from((*name).to_owned()).ok()).collect();
        match parsed.is_empty() {
            true => Err(format!("no certificate can carry the name {}", names.join(" or "))),
            false => Ok(Self { inner, names: parsed }),
        }
    }
}

/// Whether another name may still fit.
fn other_name(error: &Error) -> bool {
    use CertificateError::{NotValidForName, NotValidForNameContext};
    matches!(error, Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. }))
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let mut last = Error::InvalidCertificate(CertificateError::NotValidForName);
        for name in &self.names {
            match self.inner.verify_server_cert(end_entity, intermediates, name, ocsp, now) {
                Err(error) if other_name(&error) => last = error,
                judged => return judged,
            }
        }
        Err(last)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
