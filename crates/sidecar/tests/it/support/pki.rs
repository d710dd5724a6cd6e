//! Certificates for one test: a CA, a serving certificate, and clients.

use berth_net::identity::Identity;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};

/// A CA of a test's own.
pub struct Pki {
    ca_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Pki {
    pub fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca_pem = params.self_signed(&key).unwrap().pem();
        Self { ca_pem, issuer: Issuer::new(params, key) }
    }

    /// The identity of a sidecar of the server `uid`.
    pub fn sidecar(&self, uid: &str) -> Identity {
        self.identity(SanType::DnsName(berth_wire::server_dns_name(uid).try_into().unwrap()))
    }

    /// The identity of a client with this URI.
    pub fn client(&self, uri: &str) -> Identity {
        self.identity(SanType::URI(uri.try_into().unwrap()))
    }

    fn identity(&self, name: SanType) -> Identity {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.subject_alt_names = vec![name];
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let (pem, key) = (certificate.pem(), key.serialize_pem());
        Identity::from_pem(pem.as_bytes(), key.as_bytes(), self.ca_pem.as_bytes()).unwrap()
    }
}
