//! Secrets that hold certificates.

use crate::ca::Error;
use crate::ca::issue::{Issued, Purpose};
use crate::found_good::Version;
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
use kube::api::{Patch, PatchParams};
use std::collections::BTreeMap;

/// Annotation of a certificate's Secret: when it is due to be renewed.
pub const RENEW_AFTER: &str = "berth.dev/renew-after";
/// Labels of it.
const LABELS: [(&str, &str); 2] =
    [(label::MANAGED_BY, label::MANAGER), (label::ROLE, label::ROLE_CERTIFICATE)];
/// Type of every such Secret.
pub const TYPE: &str = "kubernetes.io/tls";

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
    /// What a certificate's Secret was made for, by its labels and owner; nothing for one that a server does not own.
    pub fn of_secret(secret: &Secret) -> Option<Self> {
        let metadata = &secret.metadata;
        let uid = metadata.labels.as_ref()?.get(label::SERVER_UID)?;
        let server = metadata.owner_references.iter().flatten().find(|owner| owner.uid == *uid)?;
        let wanted =
            Self::of_server(Server { namespace: metadata.namespace.as_deref()?, name: &server.name, uid });
        (metadata.name.as_ref() == Some(&wanted.name) && metadata.deletion_timestamp.is_none())
            .then_some(wanted)
    }

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

/// Whether a certificate's Secret is complete, signed by the CA of `ca_pem` and not due, and has the labels by which it is
/// watched and found again.
pub fn is_good(secret: &Secret, ca_pem: &str, now: Moment) -> bool {
    let file =
        |name: &str| secret.data.as_ref().and_then(|data| data.get(name)).map(|bytes| bytes.0.as_slice());
    file(CA_FILE) == Some(ca_pem.as_bytes())
        && file(CERT_FILE).is_some_and(|bytes| !bytes.is_empty())
        && file(KEY_FILE).is_some_and(|bytes| !bytes.is_empty())
        && moment(&secret.metadata, RENEW_AFTER).is_some_and(|due| now < due)
        && LABELS.iter().all(|(label, value)| {
            secret.metadata.labels.as_ref().and_then(|labels| labels.get(*label)).is_some_and(|v| v == value)
        })
}

/// Writes a certificate's Secret. Says as which version.
pub async fn apply(
    api: &Api<Secret>,
    wanted: &Wanted,
    issued: &Issued,
    ca_pem: &str,
) -> Result<Version, Error> {
    let params = PatchParams::apply(label::FIELD_MANAGER).force();
    let secret = of_certificate(wanted, issued, ca_pem);
    api.patch(&wanted.name, &params, &Patch::Apply(&secret))
        .await
        .map(|written| written.metadata.resource_version)
        .map_err(|source| error("apply", api, &wanted.name, source))
}

fn of_certificate(wanted: &Wanted, issued: &Issued, ca_pem: &str) -> Secret {
    let mut labels: BTreeMap<String, String> =
        LABELS.map(|(label, value)| (label.to_owned(), value.to_owned())).into();
    if let Some((_, uid)) = &wanted.owner {
        labels.insert(label::SERVER_UID.to_owned(), uid.clone());
    }
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
            annotations: Some([(RENEW_AFTER.to_owned(), text(issued.renew_at))].into()),
            owner_references: wanted.owner.clone().map(|(owner, _)| vec![owner]),
            ..ObjectMeta::default()
        },
        type_: Some(TYPE.to_owned()),
        data: Some(bytes(data)),
        ..Secret::default()
    }
}

/// The point in time that an annotation says.
pub fn moment(metadata: &ObjectMeta, annotation: &str) -> Option<Moment> {
    let text = metadata.annotations.as_ref()?.get(annotation)?;
    text.parse::<Timestamp>().ok().map(|time| Moment(time.as_millisecond()))
}

/// A point in time as the text of an annotation.
pub fn text(moment: Moment) -> String {
    moment.to_api().0.to_string()
}

/// The data of a Secret.
pub fn bytes<'a>(files: impl IntoIterator<Item = (&'a str, String)>) -> BTreeMap<String, ByteString> {
    files.into_iter().map(|(file, text)| (file.to_owned(), ByteString(text.into_bytes()))).collect()
}

/// A failed call, for people.
pub fn error(verb: &'static str, api: &Api<Secret>, secret: &str, source: kube::Error) -> Error {
    let namespace = api.namespace().unwrap_or_default().to_owned();
    Error::Api { verb, secret: secret.to_owned(), namespace, source: Box::new(source) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ca::issue::{Authority, Pair};
    use std::time::Duration;

    const NOW: Moment = Moment(1_800_000_000_000);

    fn everything() -> Wanted {
        Wanted::of_server(Server { namespace: "demo", name: "everything", uid: "0a1b" })
    }

    #[test]
    fn a_certificate_is_good_until_it_is_due_and_only_under_its_ca() {
        let (ca, other) = (Pair::create(NOW).unwrap(), Pair::create(NOW).unwrap());
        let issued = Authority::from_pem(&ca).unwrap().issue(&everything().purpose, NOW).unwrap();
        let secret = of_certificate(&everything(), &issued, &ca.certificate);
        let late = NOW.plus(Duration::from_hours(61 * 24));
        assert!(is_good(&secret, &ca.certificate, NOW));
        assert!(!is_good(&secret, &ca.certificate, late));
        assert!(!is_good(&secret, &other.certificate, NOW));
        assert!(!is_good(&Secret::default(), &ca.certificate, NOW));
        for (label, _) in LABELS {
            let mut unlabelled = secret.clone();
            unlabelled.metadata.labels.as_mut().unwrap().remove(label);
            assert!(!is_good(&unlabelled, &ca.certificate, NOW), "{label}");
        }
    }

    #[test]
    fn a_secret_tells_which_server_it_was_made_for() {
        let authority = Authority::from_pem(&Pair::create(NOW).unwrap()).unwrap();
        let issued = authority.issue(&everything().purpose, NOW).unwrap();
        let secret = of_certificate(&everything(), &issued, "ca");
        let read = Wanted::of_secret(&secret).unwrap();
        assert_eq!((read.namespace, read.name), ("demo".into(), everything().name));
        assert_eq!((read.purpose, read.owner), (everything().purpose, everything().owner));
        let mut going = secret.clone();
        going.metadata.deletion_timestamp = Some(NOW.to_api());
        let mut renamed = secret;
        renamed.metadata.name = Some("copy".into());
        for foreign in [going, renamed, Secret::default()] {
            assert!(Wanted::of_secret(&foreign).is_none());
        }
    }
}
