//! Certificates of the TLS ports: one CA, one intermediate, and a leaf in each state that clients have to tell apart.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer},
};

use crate::{lock, ports::Port};

/// The name in the certificate of the port `wrong-name`.
pub const WRONG_NAME: &str = "wrong-name.probe.test";

type Error = Box<dyn std::error::Error + Send + Sync>;
type Issuer = CertifiedIssuer<'static, KeyPair>;

/// What the TLS ports show. It is made when it is first asked for.
#[derive(Debug)]
pub struct Tls {
    names: Vec<String>,
    made: Mutex<Option<Arc<Made>>>,
    /// How many CAs there were: each has a name of its own.
    count: AtomicU64,
}

#[derive(Debug)]
struct Made {
    ca: String,
    configs: BTreeMap<Port, Arc<ServerConfig>>,
}

impl Tls {
    /// For a server that is reached by these names and addresses.
    pub fn new(names: Vec<String>) -> Self {
        Self { names, made: Mutex::default(), count: AtomicU64::new(0) }
    }

    /// The CA's certificate as PEM.
    pub fn ca(&self) -> Result<String, Error> {
        Ok(self.made()?.ca.clone())
    }

    /// Makes a new CA and new certificates, for connections from now on; gives the new CA.
    pub fn rotate(&self) -> Result<String, Error> {
        let made = Arc::new(self.make()?);
        *lock(&self.made) = Some(Arc::clone(&made));
        Ok(made.ca.clone())
    }

    /// What a port shows now.
    pub fn config(&self, port: Port) -> Result<Arc<ServerConfig>, Error> {
        let made = self.made()?;
        made.configs.get(&port).cloned().ok_or_else(|| format!("port {port} speaks no TLS").into())
    }

    fn make(&self) -> Result<Made, Error> {
        Made::new(&self.names, self.count.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn made(&self) -> Result<Arc<Made>, Error> {
        let mut made = lock(&self.made);
        if let Some(made) = made.as_ref() {
            return Ok(Arc::clone(made));
        }
        let new = Arc::new(self.make()?);
        *made = Some(Arc::clone(&new));
        Ok(new)
    }
}

impl Made {
    fn new(names: &[String], number: u64) -> Result<Self, Error> {
        let ca = CertifiedIssuer::self_signed(issuer(&format!("probe CA {number}")), KeyPair::generate()?)?;
        let between = issuer(&format!("probe intermediate {number}"));
        let between = CertifiedIssuer::signed_by(between, KeyPair::generate()?, &ca)?;
        let good = || CertificateParams::new(names.to_vec());
        let mut expired = good()?;
        expired.not_before = date_time_ymd(2020, 1, 1);
        expired.not_after = date_time_ymd(2021, 1, 1);
        let wrong = CertificateParams::new(vec![WRONG_NAME.to_owned()])?;
        let configs = BTreeMap::from([
            (Port::Good, config(&good()?, &between, true)?),
            (Port::Expired, config(&expired, &between, true)?),
            (Port::WrongName, config(&wrong, &between, true)?),
            (Port::NoIntermediate, config(&good()?, &between, false)?),
        ]);
        Ok(Self { ca: ca.pem(), configs })
    }
}

fn issuer(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

/// A server with a fresh leaf, and with the certificate of who signed it if `whole`.
fn config(leaf: &CertificateParams, signer: &Issuer, whole: bool) -> Result<Arc<ServerConfig>, Error> {
    let key = KeyPair::generate()?;
    let mut chain = vec![CertificateDer::from(leaf.signed_by(&key, signer)?.der().to_vec())];
    if whole {
        chain.push(CertificateDer::from(signer.der().to_vec()));
    }
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(Arc::new(builder.with_no_client_auth().with_single_cert(chain, key)?))
}
