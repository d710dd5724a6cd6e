//! Each way in which a certificate is not trusted, with the real checks.

use super::*;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType, date_time_ymd};

struct Authority {
    pem: String,
    der: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

fn authority(name: &str, above: Option<&Authority>) -> Authority {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    let certificate = match above {
        Some(above) => params.signed_by(&key, &above.issuer).unwrap(),
        None => params.self_signed(&key).unwrap(),
    };
    let (pem, der) = (certificate.pem(), certificate.der().clone());
    Authority { pem, der, issuer: Issuer::new(params, key) }
}

fn leaf(by: Option<&Authority>, change: impl FnOnce(&mut CertificateParams)) -> CertificateDer<'static> {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, "leaf");
    params.subject_alt_names = vec![SanType::DnsName("a.test".try_into().unwrap())];
    change(&mut params);
    let certificate = match by {
        Some(by) => params.signed_by(&key, &by.issuer),
        None => params.self_signed(&key),
    };
    certificate.unwrap().der().clone()
}

/// What is wrong with a chain that is shown for `name`, where `trusted` is trusted.
fn wrong(
    trusted: &Authority,
    leaf: &CertificateDer<'_>,
    between: &[CertificateDer<'_>],
    name: &str,
) -> Option<String> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.der.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let checked = Explaining(inner).verify_server_cert(leaf, between, &name, &[], UnixTime::now());
    match checked {
        Ok(_) => None,
        Err(rustls::Error::InvalidCertificate(CertificateError::Other(other))) => Some(other.0.to_string()),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn each_check_that_fails_is_told_with_its_remedy() {
    let (root, other) = (authority("root", None), authority("other", None));
    let middle = authority("middle", Some(&root));
    let good = leaf(Some(&middle), |_| {});
    let chain = [middle.der.clone()];
    assert_eq!(wrong(&root, &good, &chain, "a.test"), None);

    let text = |found: Option<String>| found.unwrap();
    let expired = leaf(Some(&root), |params| params.not_after = date_time_ymd(2020, 1, 2));
    assert_eq!(
        text(wrong(&root, &expired, &[], "a.test")),
        "it expired on Thu, 02 Jan 2020 00:00:00 GMT; renew it at the server"
    );
    let early = leaf(Some(&root), |params| params.not_before = date_time_ymd(4000, 1, 1));
    assert!(text(wrong(&root, &early, &[], "a.test")).starts_with("it is not valid before Sat, 01 Jan 4000"));
    assert_eq!(
        text(wrong(&root, &good, &chain, "b.test")),
        "it is for a.test, not for b.test; correct the URL or set transport.http.tls.serverName"
    );
    assert!(
        text(wrong(&root, &good, &[], "a.test")).starts_with("the server sends no intermediate certificate")
    );
    assert_eq!(
        text(wrong(&other, &good, &chain, "a.test")),
        "its CA is not known; set transport.http.tls.caRef to that CA"
    );
    let anew = leaf(Some(&authority("root", None)), |_| {});
    assert!(
        text(wrong(&root, &anew, &[], "a.test")).starts_with("its CA has the name of one that is trusted")
    );
    let alone = leaf(None, |_| {});
    assert!(text(wrong(&root, &alone, &[], "a.test")).starts_with("it is signed by itself"));
}

#[test]
fn a_certificate_of_many_names_is_told_of_by_a_few() {
    let presented: Vec<String> = (0..9).map(|n| format!("DnsName(\"n{n}.test\")")).collect();
    assert_eq!(names(&presented), "n0.test, n1.test, n2.test, others");
    assert_eq!((names(&presented[..1]), names(&[])), ("n0.test".into(), "no name".into()));
    assert_eq!(names(&["IpAddress(10.0.0.1)".to_owned()]), "10.0.0.1");
}

#[test]
fn what_is_no_pem_of_certificates_is_refused_without_a_quote() {
    let roots = RootCertStore::empty();
    for pem in ["", "hunter2", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
        assert_eq!(Trust::new(&roots, pem).err(), Some(TrustError::Unreadable), "{pem}");
    }
    let trust = Trust::new(&roots, &authority("root", None).pem).unwrap();
    assert!(format!("{trust:?}").starts_with("Trust("));
}
