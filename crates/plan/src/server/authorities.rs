//! Certificates of authorities that an `McpServer` trusts beside the public ones, from a ConfigMap or Secret that it names.

use crate::server::credential::SecretState;
use berth_api::{CaKind, CaRef, McpServer, Reason, Tls, label};
use berth_wire::UpstreamTls;
use k8s_openapi::api::core::v1::ConfigMap;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// Most bytes of PEM: each sidecar is sent them, once for each session.
pub const MAX_BYTES: usize = 256 * 1024;

/// What is known of the object that `transport.http.tls.caRef` names.
#[derive(Clone, Copy, Debug)]
pub enum CaState<'a> {
    /// There is none of that kind and name, or none is named.
    Missing,
    /// It is a Secret, as far as it can be seen.
    Secret(SecretState<'a>),
    /// It is a ConfigMap.
    ConfigMap(&'a ConfigMap),
}

/// Why the certificates cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The object does not exist.
    #[error(
        "{object} does not exist; create it with the CA's certificates as PEM in key {key:?}{label}, or change spec.transport.http.tls.caRef"
    )]
    NotFound {
        /// Kind and name.
        object: String,
        /// The key that is looked for.
        key: String,
        /// The label that a Secret has to have.
        label: &'static str,
    },
    /// The object has no such key.
    #[error("{object} has no key {key:?}; add it or change spec.transport.http.tls.caRef.key")]
    KeyNotFound {
        /// Kind and name.
        object: String,
        /// The key that is looked for.
        key: String,
    },
    /// The Secret may not be used for this.
    #[error("{object} is not labelled berth.dev/credential=server; label it to allow its use here")]
    NotPermitted {
        /// Kind and name.
        object: String,
    },
    /// The value is no list of certificates.
    #[error("key {key:?} of {object} {problem}; write the CA's certificates there as PEM")]
    Invalid {
        /// Kind and name.
        object: String,
        /// The key.
        key: String,
        /// What is wrong with the value.
        problem: Unusable,
    },
}

impl Refusal {
    /// The reason for conditions.
    pub const fn reason(&self) -> Reason {
        match self {
            Self::NotFound { .. } | Self::KeyNotFound { .. } => Reason::RefNotFound,
            Self::NotPermitted { .. } => Reason::RefNotPermitted,
            Self::Invalid { .. } => Reason::InvalidCredential,
        }
    }

    /// Whether it may be over without an event that says so: ConfigMaps and Secrets without the label come and go unseen.
    pub const fn is_unseen(&self) -> bool {
        matches!(self, Self::NotFound { .. } | Self::NotPermitted { .. })
    }
}

/// Why text is no list of certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// It is longer than [`MAX_BYTES`].
    #[error("holds more than 256 KiB")]
    TooLong,
    /// It is no text.
    #[error("is not text")]
    NotText,
    /// There is no certificate in it.
    #[error("holds no certificate")]
    Empty,
    /// A key is no business of a sidecar's.
    #[error("holds a private key, which does not belong there")]
    PrivateKey,
    /// One of the certificates cannot be read.
    #[error("holds a certificate that cannot be read")]
    Broken,
}

/// How `server` wants the upstream's certificate checked, if it says anything.
pub fn tls(server: &McpServer) -> Option<&Tls> {
    server.spec.transport.http.as_ref().and_then(|http| http.tls.as_ref())
}

/// The object that `server` names, if it names one.
pub fn ca_ref(server: &McpServer) -> Option<&CaRef> {
    tls(server).and_then(|tls| tls.ca_ref.as_ref())
}

/// Whether `server` names a Secret of that name.
pub fn names_secret(server: &McpServer, name: &str) -> bool {
    ca_ref(server).is_some_and(|named| named.kind == CaKind::Secret && named.name == name)
}

/// What sidecars are told of `server`'s wishes, where the named object is as `state` says.
pub fn resolve(server: &McpServer, state: CaState<'_>) -> Result<Option<UpstreamTls>, Refusal> {
    let Some(tls) = tls(server) else { return Ok(None) };
    let ca_pem = tls.ca_ref.as_ref().map(|named| pem(named, state)).transpose()?;
    Ok(Some(UpstreamTls { ca_pem, server_name: tls.server_name.clone() }))
}

fn pem(named: &CaRef, state: CaState<'_>) -> Result<String, Refusal> {
    let (key, object) = (named.key.clone(), object(named));
    let bytes = match state {
        CaState::Missing | CaState::Secret(SecretState::Missing) => {
            return Err(Refusal::NotFound { object, key, label: label_of(named) });
        }
        CaState::Secret(SecretState::Unlabelled) => return Err(Refusal::NotPermitted { object }),
        CaState::Secret(SecretState::Present(secret)) => {
            let labels = secret.metadata.labels.as_ref();
            let label = labels.and_then(|map| map.get(label::CREDENTIAL));
            if label.is_none_or(|value| value != label::CREDENTIAL_SERVER) {
                return Err(Refusal::NotPermitted { object });
            }
            secret.data.as_ref().and_then(|data| data.get(&key)).map(|bytes| bytes.0.as_slice())
        }
        CaState::ConfigMap(map) => {
            let text = map.data.as_ref().and_then(|data| data.get(&key)).map(String::as_bytes);
            let binary = || map.binary_data.as_ref()?.get(&key).map(|bytes| bytes.0.as_slice());
            text.or_else(binary)
        }
    };
    let Some(bytes) = bytes else { return Err(Refusal::KeyNotFound { object, key }) };
    check(bytes).map(str::to_owned).map_err(|problem| Refusal::Invalid { object, key, problem })
}

fn object(named: &CaRef) -> String {
    match named.kind {
        CaKind::ConfigMap => format!("configmap {:?}", named.name),
        CaKind::Secret => format!("secret {:?}", named.name),
    }
}

const fn label_of(named: &CaRef) -> &'static str {
    match named.kind {
        CaKind::ConfigMap => "",
        CaKind::Secret => " and the label berth.dev/credential=server",
    }
}

/// The text of `bytes`, if every certificate in it can be used, and there is one.
fn check(bytes: &[u8]) -> Result<&str, Unusable> {
    if bytes.len() > MAX_BYTES {
        return Err(Unusable::TooLong);
    }
    let text = std::str::from_utf8(bytes).map_err(|_| Unusable::NotText)?;
    if text.contains("PRIVATE KEY-----") {
        return Err(Unusable::PrivateKey);
    }
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bytes) {
        let certificate = certificate.map_err(|_| Unusable::Broken)?;
        roots.add(certificate).map_err(|_| Unusable::Broken)?;
    }
    if roots.is_empty() { Err(Unusable::Empty) } else { Ok(text) }
}

#[cfg(test)]
mod tests;
