//! Certificates: what each says and how long it holds.

use berth_plan::time::Moment;
use berth_wire::{GATEWAY_URI, OPERATOR_DNS_NAME, OPERATOR_URI, server_dns_name};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PublicKeyData, SanType,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::time::Duration;

/// Life of a CA.
const CA_LIFE: Duration = Duration::from_hours(24 * 3650);
/// Life of everything that it signs.
pub const LEAF_LIFE: Duration = Duration::from_hours(24 * 90);
/// Clocks of nodes differ: a certificate holds from a little before it was made.
const SKEW: Duration = Duration::from_mins(5);

/// Whom a certificate is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The operator: a client of sidecars, a server for gateways.
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

/// A CA's certificate and key as PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Pair {
    /// The certificate.
    pub certificate: String,
    /// The private key.
    pub key: String,
}

impl Pair {
    /// A new CA.
    pub fn create(now: Moment) -> Result<Self, rcgen::Error> {
        let mut params = params("berth CA", now, CA_LIFE);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate()?;
        Ok(Self { certificate: params.self_signed(&key)?.pem(), key: key.serialize_pem() })
    }

    /// When two thirds of the life of a CA made now are over.
    pub fn renew_at(now: Moment) -> Moment {
        now.plus(CA_LIFE / 3 * 2)
    }
}

/// A CA that signs.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// The CA of PEM texts; or why they are none, without the texts.
    pub fn from_pem(pair: &Pair) -> Result<Self, String> {
        let key = KeyPair::from_pem(&pair.key).map_err(|error| format!("its key: {error}"))?;
        let certificate = CertificateDer::from_pem_slice(pair.certificate.as_bytes())
            .map_err(|error| format!("its certificate: {error}"))?;
        // Nobody would trust what a foreign key signs, and rcgen does not compare them.
        let public = key.der_bytes();
        if !certificate.windows(public.len()).any(|part| part == public) {
            return Err("its key is not that of its certificate".to_owned());
        }
        let issuer = Issuer::from_ca_cert_der(&certificate, key);
        Ok(Self { issuer: issuer.map_err(|error| format!("its certificate: {error}"))? })
    }

    /// A new certificate with a new key.
    pub fn issue(&self, purpose: &Purpose, now: Moment) -> Result<Issued, rcgen::Error> {
        use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
        let (name, names, usages) = match purpose {
            Purpose::Operator => (
                "berth operator",
                vec![uri(OPERATOR_URI)?, dns(OPERATOR_DNS_NAME)?],
                vec![ClientAuth, ServerAuth],
            ),
            Purpose::Gateway => ("berth gateway", vec![uri(GATEWAY_URI)?], vec![ClientAuth]),
            Purpose::Sidecar { server_uid } => {
                ("berth sidecar", vec![dns(&server_dns_name(server_uid))?], vec![ServerAuth])
            }
        };
        let mut params = params(name, now, LEAF_LIFE);
        params.subject_alt_names = names;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = usages;
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Issued { certificate, key: key.serialize_pem(), renew_at: now.plus(LEAF_LIFE / 3 * 2) })
    }
}

fn uri(text: &str) -> Result<SanType, rcgen::Error> {
    Ok(SanType::URI(text.try_into()?))
}

fn dns(text: &str) -> Result<SanType, rcgen::Error> {
    Ok(SanType::DnsName(text.try_into()?))
}

fn params(name: &str, now: Moment, life: Duration) -> CertificateParams {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let since = Duration::from_millis(u64::try_from(now.0).unwrap_or(0));
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = epoch + since.saturating_sub(SKEW);
    params.not_after = epoch + since + life;
    params
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_net::identity::Identity;

    const NOW: Moment = Moment(1_800_000_000_000);

    #[test]
    fn what_a_ca_signs_before_and_after_a_restart_fits_its_certificate() {
        let pair = Pair::create(NOW).unwrap();
        for authority in [Authority::from_pem(&pair).unwrap(), Authority::from_pem(&pair).unwrap()] {
            let issued = authority.issue(&Purpose::Operator, NOW).unwrap();
            Identity::from_pem(
                issued.certificate.as_bytes(),
                issued.key.as_bytes(),
                pair.certificate.as_bytes(),
            )
            .unwrap();
        }
    }

    #[test]
    fn a_ca_of_parts_that_do_not_belong_together_is_refused() {
        let (one, other) = (Pair::create(NOW).unwrap(), Pair::create(NOW).unwrap());
        let refused = |certificate: &str, key: &str| {
            let pair = Pair { certificate: certificate.to_owned(), key: key.to_owned() };
            Authority::from_pem(&pair).err().unwrap()
        };
        assert_eq!(refused(&one.certificate, &other.key), "its key is not that of its certificate");
        assert!(refused("text", &one.key).starts_with("its certificate: "));
        assert!(refused(&one.certificate, "text").starts_with("its key: "));
    }

    #[test]
    fn a_certificate_is_renewed_when_two_thirds_of_its_life_are_over() {
        let authority = Authority::from_pem(&Pair::create(NOW).unwrap()).unwrap();
        let issued = authority.issue(&Purpose::Gateway, NOW).unwrap();
        assert_eq!(NOW.until(issued.renew_at), Duration::from_hours(24 * 60));
    }
}
