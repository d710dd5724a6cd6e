//! Certificates for one test: a CA, serving certificates, and clients.

use super::upstream::Upstream;
use berth_net::identity::Identity;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{RootCertStore, ServerConfig};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

/// A CA of a test's own.
pub struct Pki {
    ca: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate, its key and its CA, as PEM texts.
pub struct Pem {
    pub cert: String,
    pub key: String,
    pub ca: String,
}

impl Pki {
    pub fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = params.self_signed(&key).unwrap().pem();
        Self { ca, issuer: Issuer::new(params, key) }
    }

    /// For a sidecar of the server `uid`.
    pub fn sidecar(&self, uid: &str) -> Pem {
        self.server(&berth_wire::server_dns_name(uid))
    }

    /// For a server of this host name.
    pub fn server(&self, name: &str) -> Pem {
        self.issue(SanType::DnsName(name.try_into().unwrap()))
    }

    /// For a client with this URI.
    pub fn client(&self, uri: &str) -> Pem {
        self.issue(SanType::URI(uri.try_into().unwrap()))
    }

    /// The CA, to be trusted.
    pub fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.ca.as_bytes()).unwrap()).unwrap();
        roots
    }

    fn issue(&self, name: SanType) -> Pem {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.subject_alt_names = vec![name];
        let cert = params.signed_by(&key, &self.issuer).unwrap().pem();
        Pem { cert, key: key.serialize_pem(), ca: self.ca.clone() }
    }
}

impl Pem {
    pub fn identity(&self) -> Identity {
        Identity::from_pem(self.cert.as_bytes(), self.key.as_bytes(), self.ca.as_bytes()).unwrap()
    }

    /// Writes the three files of a mounted identity.
    pub fn write(&self, dir: &Path) {
        for (name, text) in [
            (berth_wire::CERT_FILE, &self.cert),
            (berth_wire::KEY_FILE, &self.key),
            (berth_wire::CA_FILE, &self.ca),
        ] {
            std::fs::write(dir.join(name), text).unwrap();
        }
    }
}

/// Serves TLS with this certificate in front of a plain upstream; gives the address.
pub async fn tls_in_front_of(upstream: &Upstream, pem: Pem) -> SocketAddr {
    let chain = vec![CertificateDer::from_pem_slice(pem.cert.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(pem.key.as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_no_client_auth().with_single_cert(chain, key).unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, behind) = (listener.local_addr().unwrap(), upstream.address());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                // A client that refuses the certificate ends here.
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let mut plain = TcpStream::connect(behind).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut stream, &mut plain).await;
            });
        }
    });
    address
}
