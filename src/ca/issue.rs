//! Certificates: what each says and how long it holds.

use berth_plan::time::Moment;
use berth_wire::{GATEWAY_URI, OPERATOR_URI, server_dns_name};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType,
};
use std::time::Duration;

const DAY: Duration = Duration::from_hours(24);
/// Life of the CA.
const CA_DAYS: u32 = 3650;
/// Life of everything that it signs.
const LEAF_DAYS: u32 = 90;
/// Clocks of nodes differ: a certificate holds from a little before it was made.
const SKEW: Duration = Duration::from_mins(5);

/// Whom a certificate is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The operator as a client.
    Operator,
    /// A gateway as a client.
    Gateway,
    /// Sidecars of one server, serving.
    Sidecar {
        /// UID of the `McpServer`.
        server_uid: String,
    },
}

/// A certificate with its key.
pub struct Issued {
    /// The certificate as PEM.
    pub certificate: String,
    /// The private key as PEM.
    pub key: String,
    /// When two thirds of its life are over.
    pub renew_at: Moment,
}

/// The CA's certificate and key.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    /// A new CA.
    pub fn create(now: Moment) -> Result<Self, rcgen::Error> {
        let mut params = params("berth CA", now, CA_DAYS);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate()?;
        let pem = params.self_signed(&key)?.pem();
        Ok(Self { issuer: Issuer::new(params, key), pem })
    }

    /// The CA of PEM texts.
    pub fn from_pem(certificate: &str, key: &str) -> Result<Self, rcgen::Error> {
        let issuer = Issuer::from_ca_cert_pem(certificate, KeyPair::from_pem(key)?)?;
        Ok(Self { issuer, pem: certificate.to_owned() })
    }

    /// The certificate as PEM.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// The private key as PEM.
    pub fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// A new certificate with a new key.
    pub fn issue(&self, purpose: &Purpose, now: Moment) -> Result<Issued, rcgen::Error> {
        let (name, san, usage) = match purpose {
            Purpose::Operator => ("berth operator", uri(OPERATOR_URI)?, ExtendedKeyUsagePurpose::ClientAuth),
            Purpose::Gateway => ("berth gateway", uri(GATEWAY_URI)?, ExtendedKeyUsagePurpose::ClientAuth),
            Purpose::Sidecar { server_uid } => {
                let dns = SanType::DnsName(server_dns_name(server_uid).try_into()?);
                ("berth sidecar", dns, ExtendedKeyUsagePurpose::ServerAuth)
            }
        };
        let mut params = params(name, now, LEAF_DAYS);
        params.subject_alt_names = vec![san];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Issued { certificate, key: key.serialize_pem(), renew_at: now.plus(DAY * (LEAF_DAYS / 3 * 2)) })
    }
}

fn uri(text: &str) -> Result<SanType, rcgen::Error> {
    Ok(SanType::URI(text.try_into()?))
}

fn params(name: &str, now: Moment, days: u32) -> CertificateParams {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let since = Duration::from_millis(u64::try_from(now.0).unwrap_or(0));
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = epoch + since.saturating_sub(SKEW);
    params.not_after = epoch + since + DAY * days;
    params
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_net::identity::Identity;

    const NOW: Moment = Moment(1_800_000_000_000);

    #[test]
    fn what_a_ca_signs_before_and_after_a_restart_fits_its_certificate() {
        let first = Authority::create(NOW).unwrap();
        let again = Authority::from_pem(first.pem(), &first.key_pem()).unwrap();
        for authority in [&first, &again] {
            let issued = authority.issue(&Purpose::Operator, NOW).unwrap();
            Identity::from_pem(issued.certificate.as_bytes(), issued.key.as_bytes(), first.pem().as_bytes())
                .unwrap();
        }
    }

    #[test]
    fn a_certificate_is_renewed_when_two_thirds_of_its_life_are_over() {
        let issued = Authority::create(NOW).unwrap().issue(&Purpose::Gateway, NOW).unwrap();
        assert_eq!(NOW.until(issued.renew_at), DAY * 60);
    }
}
