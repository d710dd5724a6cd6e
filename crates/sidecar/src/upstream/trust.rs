//! Which certificates of upstreams are trusted, and in plain words why one is not.

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, OtherError, RootCertStore, SignatureScheme,
};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};
use tokio_rustls::TlsConnector;
use webpki::EndEntityCert;

/// Names of a certificate that are told of; one can have hundreds.
const NAMES: usize = 3;

/// A set of trusted authorities, ready for use; those who trust the same share it.
pub struct Trust {
    /// What is trusted beside the public authorities, as it was given.
    pem: String,
    connector: TlsConnector,
}

/// Why PEM cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrustError {
    /// There is no certificate in it, or one that cannot be read.
    #[error("the CA certificates of the upstream are not PEM of certificates; see transport.http.tls.caRef")]
    Unreadable,
    /// TLS cannot be set up with them.
    #[error("TLS cannot be set up with the CA certificates of the upstream")]
    Unusable,
}

impl Trust {
    /// Trust in `roots` and what `pem` adds to them.
    pub(super) fn new(roots: &RootCertStore, pem: &str) -> Result<Self, TrustError> {
        let mut roots = roots.clone();
        let public = roots.len();
        for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
            let certificate = certificate.map_err(|_| TrustError::Unreadable)?;
            roots.add(certificate).map_err(|_| TrustError::Unreadable)?;
        }
        if roots.len() == public {
            return Err(TrustError::Unreadable);
        }
        let connector = connector(roots).map_err(|_| TrustError::Unusable)?;
        Ok(Self { pem: pem.to_owned(), connector })
    }

    /// Whether it is trust in what `pem` adds.
    pub(super) fn is_of(&self, pem: &str) -> bool {
        self.pem == pem
    }

    pub(super) fn connector(&self) -> &TlsConnector {
        &self.connector
    }
}

impl PartialEq for Trust {
    fn eq(&self, other: &Self) -> bool {
        self.pem == other.pem
    }
}

impl Eq for Trust {}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Trust({} bytes)", self.pem.len())
    }
}

/// TLS to upstreams that show a certificate of `roots`.
pub(super) fn connector(roots: RootCertStore) -> Result<TlsConnector, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .build()
        .map_err(|error| rustls::Error::General(error.to_string()))?;
    let mut tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Explaining(inner)))
        .with_no_client_auth();
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    // Tickets would let an upstream link the sessions of different subjects, and cost memory.
    tls.resumption = rustls::client::Resumption::disabled();
    Ok(TlsConnector::from(Arc::new(tls)))
}

/// The usual checks, and nothing less; a refusal says what to do.
#[derive(Debug)]
struct Explaining(Arc<WebPkiServerVerifier>);

/// What is wrong with a certificate, for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Untrusted(pub String);

impl ServerCertVerifier for Explaining {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let checked = self.0.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        checked.map_err(|error| match error {
            rustls::Error::InvalidCertificate(reason) => {
                let text = explain(&reason, end_entity, intermediates);
                CertificateError::Other(OtherError(Arc::new(Untrusted(text)))).into()
            }
            other => other,
        })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

fn explain(
    reason: &CertificateError,
    end_entity: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
) -> String {
    match reason {
        CertificateError::ExpiredContext { not_after, .. } => {
            format!("it expired on {}; renew it at the server", date(*not_after))
        }
        CertificateError::Expired => "it has expired; renew it at the server".to_owned(),
        CertificateError::NotValidYetContext { not_before, .. } => {
            format!("it is not valid before {}; check the clocks", date(*not_before))
        }
        CertificateError::NotValidYet => "it is not valid yet; check the clocks".to_owned(),
        CertificateError::NotValidForNameContext { expected, presented } => format!(
            "it is for {}, not for {}; correct the URL or set transport.http.tls.serverName",
            names(presented),
            expected.to_str()
        ),
        CertificateError::NotValidForName => {
            "it is for another name; correct the URL or set transport.http.tls.serverName".to_owned()
        }
        CertificateError::UnknownIssuer => unknown_issuer(end_entity, intermediates).to_owned(),
        // The names fit and the key does not, as when a CA was made anew.
        CertificateError::BadSignature => {
            "its CA has the name of one that is trusted and another key; set transport.http.tls.caRef to the CA as it is now"
                .to_owned()
        }
        other => rustls::Error::InvalidCertificate(other.clone()).to_string(),
    }
}

/// A chain that leads to nobody who is trusted. One that ends with the server's own certificate may only lack its middle.
fn unknown_issuer(end_entity: &CertificateDer<'_>, intermediates: &[CertificateDer<'_>]) -> &'static str {
    let is_self_signed =
        EndEntityCert::try_from(end_entity).is_ok_and(|cert| cert.issuer() == cert.subject());
    if is_self_signed {
        "it is signed by itself; set transport.http.tls.caRef to it if it is to be trusted"
    } else if intermediates.is_empty() {
        "the server sends no intermediate certificate, and its issuer is not known; have it send its whole chain, or set transport.http.tls.caRef"
    } else {
        "its CA is not known; set transport.http.tls.caRef to that CA"
    }
}

/// The first few of the names in a certificate, which come as the verifier spells them.
fn names(presented: &[String]) -> String {
    let plain = |name: &String| {
        let inside = name.split_once('(').map_or(name.as_str(), |(_, inside)| inside.trim_end_matches(')'));
        inside.trim_matches('"').to_owned()
    };
    let mut shown: Vec<String> = presented.iter().take(NAMES).map(plain).collect();
    if shown.is_empty() {
        return "no name".to_owned();
    }
    if presented.len() > NAMES {
        shown.push("others".to_owned());
    }
    shown.join(", ")
}

fn date(time: UnixTime) -> String {
    httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(time.as_secs()))
}

#[cfg(test)]
mod tests;
