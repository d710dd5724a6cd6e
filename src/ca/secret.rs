//! Secrets that hold certificates.

use crate::ca::Error;
use crate::ca::issue::{Authority, Issued, Purpose};
use berth_api::label;
use berth_plan::name;
use berth_plan::server::build::owner;
use berth_plan::time::Moment;
use berth_wire::{CA_FILE, CERT_FILE, KEY_FILE};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use std::collections::BTreeMap;

/// Annotation of a certificate's Secret: when it is due to be renewed.
const RENEW_AFTER: &str = "berth.dev/renew-after";
/// Type of every such Secret.
const TYPE: &str = "kubernetes.io/tls";

/// A certificate's Secret, as it should be.
pub struct Wanted {
    /// Namespace of the Secret.
    pub namespace: String,
    /// Name of the Secret.
    pub name: String,
    /// Whom the certificate is for.
    pub purpose: Purpose,
    /// The object that it goes with.
    pub owner: Option<(OwnerReference, String)>,
}

/// An `McpServer`, as far as its certificate goes.
#[derive(Clone, Copy, Debug)]
pub struct Server<'a> {
    /// Namespace of the server.
    pub namespace: &'a str,
    /// Name of the server.
    pub name: &'a str,
    /// UID of the server.
    pub uid: &'a str,
}

impl Wanted {
    /// The Secret of a server's sidecars.
    pub fn of_server(server: Server<'_>) -> Self {
        Self {
            namespace: server.namespace.to_owned(),
            name: name::certificate(server.name, server.uid),
            purpose: Purpose::Sidecar { server_uid: server.uid.to_owned() },
            owner: Some((owner(server.name, server.uid), server.uid.to_owned())),
        }
    }
}

/// The Secret of that name, if there is one.
pub async fn read(api: &Api<Secret>, name: &str) -> Result<Option<Secret>, Error> {
    api.get_opt(name).await.map_err(|source| error("read", api, name, source))
}

/// Creates a Secret; when somebody was faster, that one is what counts.
pub async fn create(api: &Api<Secret>, secret: &Secret, name: &str) -> Result<Secret, Error> {
    match api.create(&PostParams::default(), secret).await {
        Ok(created) => Ok(created),
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            api.get(name).await.map_err(|source| error("read", api, name, source))
        }
        Err(source) => Err(error("create", api, name, source)),
    }
}

/// The Secret of a CA.
pub fn of_authority(name: &str, authority: &Authority) -> Secret {
    let data = [(CERT_FILE, authority.pem().to_owned()), (KEY_FILE, authority.key_pem())];
    Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some([(label::MANAGED_BY.to_owned(), label::MANAGER.to_owned())].into()),
            ..ObjectMeta::default()
        },
        type_: Some(TYPE.to_owned()),
        data: Some(bytes(data)),
        ..Secret::default()
    }
}

/// The CA in a Secret.
pub fn authority(secret: &Secret) -> Result<Authority, Error> {
    let text = |file: &str| {
        let bytes = secret.data.as_ref().and_then(|data| data.get(file));
        bytes
            .and_then(|bytes| std::str::from_utf8(&bytes.0).ok())
            .ok_or_else(|| Error::Unusable(format!("key {file:?} is missing or is no text")))
    };
    Authority::from_pem(text(CERT_FILE)?, text(KEY_FILE)?).map_err(|error| Error::Unusable(error.to_string()))
}

/// Whether a certificate's Secret is complete, signed by the CA of `ca_pem` and not due.
pub fn is_good(secret: &Secret, ca_pem: &str, now: Moment) -> bool {
    let file =
        |name: &str| secret.data.as_ref().and_then(|data| data.get(name)).map(|bytes| bytes.0.as_slice());
    let due = secret.metadata.annotations.as_ref().and_then(|annotations| annotations.get(RENEW_AFTER));
    let due = due.and_then(|text| text.parse::<Timestamp>().ok()).map(|due| Moment(due.as_millisecond()));
    file(CA_FILE) == Some(ca_pem.as_bytes())
        && file(CERT_FILE).is_some_and(|bytes| !bytes.is_empty())
        && file(KEY_FILE).is_some_and(|bytes| !bytes.is_empty())
        && due.is_some_and(|due| now < due)
}

/// Writes a certificate's Secret.
pub async fn apply(api: &Api<Secret>, wanted: &Wanted, issued: &Issued, ca_pem: &str) -> Result<(), Error> {
    let params = PatchParams::apply(label::FIELD_MANAGER).force();
    let secret = of_certificate(wanted, issued, ca_pem);
    api.patch(&wanted.name, &params, &Patch::Apply(&secret))
        .await
        .map(|_| ())
        .map_err(|source| error("apply", api, &wanted.name, source))
}

fn of_certificate(wanted: &Wanted, issued: &Issued, ca_pem: &str) -> Secret {
    let mut labels = BTreeMap::from([
        (label::MANAGED_BY.to_owned(), label::MANAGER.to_owned()),
        (label::ROLE.to_owned(), label::ROLE_CERTIFICATE.to_owned()),
    ]);
    if let Some((_, uid)) = &wanted.owner {
        labels.insert(label::SERVER_UID.to_owned(), uid.clone());
    }
    let due = issued.renew_at.to_api().0.to_string();
    let data = [
        (CERT_FILE, issued.certificate.clone()),
        (KEY_FILE, issued.key.clone()),
        (CA_FILE, ca_pem.to_owned()),
    ];
    Secret {
        metadata: ObjectMeta {
            name: Some(wanted.name.clone()),
            namespace: Some(wanted.namespace.clone()),
            labels: Some(labels),
            annotations: Some([(RENEW_AFTER.to_owned(), due)].into()),
            owner_references: wanted.owner.clone().map(|(owner, _)| vec![owner]),
            ..ObjectMeta::default()
        },
        type_: Some(TYPE.to_owned()),
        data: Some(bytes(data)),
        ..Secret::default()
    }
}

fn bytes<const N: usize>(files: [(&str, String); N]) -> BTreeMap<String, ByteString> {
    files.into_iter().map(|(file, text)| (file.to_owned(), ByteString(text.into_bytes()))).collect()
}

fn error(verb: &'static str, api: &Api<Secret>, secret: &str, source: kube::Error) -> Error {
    let namespace = api.namespace().unwrap_or_default().to_owned();
    Error::Api { verb, secret: secret.to_owned(), namespace, source: Box::new(source) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const NOW: Moment = Moment(1_800_000_000_000);

    #[test]
    fn a_ca_reads_back_from_its_secret() {
        let made = Authority::create(NOW).unwrap();
        let read = authority(&of_authority("berth-ca", &made)).unwrap();
        assert_eq!(read.pem(), made.pem());
        assert!(matches!(authority(&Secret::default()), Err(Error::Unusable(_))));
    }

    #[test]
    fn a_certificate_is_good_until_it_is_due_and_only_under_its_ca() {
        let ca = Authority::create(NOW).unwrap();
        let wanted = Wanted::of_server(Server { namespace: "demo", name: "everything", uid: "0a1b" });
        let issued = ca.issue(&wanted.purpose, NOW).unwrap();
        let secret = of_certificate(&wanted, &issued, ca.pem());
        let late = NOW.plus(Duration::from_hours(61 * 24));
        assert!(is_good(&secret, ca.pem(), NOW));
        assert!(!is_good(&secret, ca.pem(), late));
        assert!(!is_good(&secret, Authority::create(NOW).unwrap().pem(), NOW));
        assert!(!is_good(&Secret::default(), ca.pem(), NOW));
    }
}
