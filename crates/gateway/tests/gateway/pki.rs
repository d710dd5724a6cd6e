//! A CA and the identities it signed.

use berth_net::identity::Identity;
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType};

pub struct Ca {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Ca {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::default()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    pub fn gateway(&self) -> Identity {
        identity(&self.gateway_pems())
    }

    /// Certificate, key and CA of a gateway.
    pub fn gateway_pems(&self) -> [String; 3] {
        let mut params = CertificateParams::new(Vec::default()).unwrap();
        params.subject_alt_names = vec![SanType::URI(berth_wire::GATEWAY_URI.try_into().unwrap())];
        self.pems(params, ExtendedKeyUsagePurpose::ClientAuth)
    }

    pub fn operator(&self) -> Identity {
        let params = CertificateParams::new(vec![berth_wire::OPERATOR_DNS_NAME.to_owned()]).unwrap();
        identity(&self.pems(params, ExtendedKeyUsagePurpose::ServerAuth))
    }

    pub fn sidecar(&self, server_uid: &str) -> Identity {
        let params = CertificateParams::new(vec![berth_wire::server_dns_name(server_uid)]).unwrap();
        identity(&self.pems(params, ExtendedKeyUsagePurpose::ServerAuth))
    }

    fn pems(&self, mut params: CertificateParams, usage: ExtendedKeyUsagePurpose) -> [String; 3] {
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        [certificate.pem(), key.serialize_pem(), self.pem.clone()]
    }
}

fn identity([cert, key, ca]: &[String; 3]) -> Identity {
    Identity::from_pem(cert.as_bytes(), key.as_bytes(), ca.as_bytes()).unwrap()
}
