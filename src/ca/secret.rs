//! Secrets that hold certificates.

use crate::ca::Error;
use crate::ca::issue::{Issued, LEAF_LIFE, Purpose};
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
use kube::api::{DeleteParams, Patch, PatchParams};
use std::collections::BTreeMap;

/// Annotation of a certificate's Secret: when it is due to be renewed.
pub const RENEW_AFTER: &str = "berth.dev/renew-after";
/// Annotation of it: a hash of what was written into it, so that a change by others shows.
const CONTENT: &str = "berth.dev/content";
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

    fn labels(&self) -> BTreeMap<String, String> {
        let of_server = self.owner.as_ref().map(|(_, uid)| (label::SERVER_UID, uid.as_str()));
        let all = LABELS.into_iter().chain(of_server);
        all.map(|(label, value)| (label.to_owned(), value.to_owned())).collect()
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

/// Whether a certificate's Secret is as it was written, under the CA of `ca_pem` and not due, and has the labels and the owner by
/// which it is watched, found again and removed.
pub fn is_good(secret: &Secret, wanted: &Wanted, ca_pem: &str, now: Moment) -> bool {
    let metadata = &secret.metadata;
    let file = |name: &str| {
        let bytes = secret.data.as_ref().and_then(|data| data.get(name));
        bytes.and_then(|bytes| std::str::from_utf8(&bytes.0).ok()).unwrap_or_default()
    };
    let annotation = |name: &str| metadata.annotations.as_ref().and_then(|all| all.get(name));
    let labels = metadata.labels.as_ref();
    file(CA_FILE) == ca_pem
        && annotation(CONTENT) == Some(&content(file(CERT_FILE), file(KEY_FILE)))
        // A date that nobody wrote would keep a certificate until it has run out.
        && moment(metadata, RENEW_AFTER).is_some_and(|due| now < due && due <= now.plus(LEAF_LIFE))
        && wanted.labels().iter().all(|(label, value)| labels.and_then(|all| all.get(label)) == Some(value))
        && wanted.owner.iter().all(|(owner, _)| metadata.owner_references.iter().flatten().any(|one| one == owner))
}

/// The annotation of a certificate and its key.
fn content(certificate: &str, key: &str) -> String {
    name::hash(&[certificate, key], 32)
}

/// Writes a certificate's Secret, anew where somebody has made it immutable. Says as which version.
pub async fn apply(
    api: &Api<Secret>,
    wanted: &Wanted,
    issued: &Issued,
    ca_pem: &str,
) -> Result<Version, Error> {
    let params = PatchParams::apply(label::FIELD_MANAGER).force();
    let secret = of_certificate(wanted, issued, ca_pem);
    let write = async || api.patch(&wanted.name, &params, &Patch::Apply(&secret)).await;
    let mut written = write().await;
    if let Err(kube::Error::Api(status)) = &written
        && status.code == 422
        && status.message.contains("immutable")
    {
        let deleted = api.delete(&wanted.name, &DeleteParams::default()).await;
        deleted.map_err(|source| error("delete", api, &wanted.name, source))?;
        written = write().await;
    }
    written
        .map(|written| written.metadata.resource_version)
        .map_err(|source| error("apply", api, &wanted.name, source))
}

fn of_certificate(wanted: &Wanted, issued: &Issued, ca_pem: &str) -> Secret {
    let annotations = [
        (RENEW_AFTER.to_owned(), text(issued.renew_at)),
        (CONTENT.to_owned(), content(&issued.certificate, &issued.key)),
    ];
    let data = [
        (CERT_FILE, issued.certificate.clone()),
        (KEY_FILE, issued.key.clone()),
        (CA_FILE, ca_pem.to_owned()),
    ];
    Secret {
        metadata: ObjectMeta {
            name: Some(wanted.name.clone()),
            namespace: Some(wanted.namespace.clone()),
            labels: Some(wanted.labels()),
            annotations: Some(annotations.into()),
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
        let good = |secret: &Secret| is_good(secret, &everything(), &ca.certificate, NOW);
        assert!(good(&secret));
        assert!(!is_good(&secret, &everything(), &ca.certificate, late));
        assert!(!is_good(&secret, &everything(), &other.certificate, NOW));
        assert!(!good(&Secret::default()));
        for label in everything().labels().keys() {
            let mut unlabelled = secret.clone();
            unlabelled.metadata.labels.as_mut().unwrap().remove(label);
            assert!(!good(&unlabelled), "{label}");
        }
        let again = Authority::from_pem(&ca).unwrap().issue(&everything().purpose, NOW).unwrap();
        let changes: [fn(&mut Secret, &Issued); 4] = [
            |secret, _| {
                secret.data.as_mut().unwrap().insert(KEY_FILE.into(), ByteString(b"x".to_vec()));
            },
            |secret, again| {
                let certificate = ByteString(again.certificate.clone().into_bytes());
                secret.data.as_mut().unwrap().insert(CERT_FILE.into(), certificate);
            },
            |secret, _| secret.metadata.owner_references = None,
            |secret, _| {
                let annotations = secret.metadata.annotations.as_mut().unwrap();
                annotations.insert(RENEW_AFTER.into(), "2099-01-01T00:00:00Z".into());
            },
        ];
        for (index, change) in changes.iter().enumerate() {
            let mut other = secret.clone();
            change(&mut other, &again);
            assert!(!good(&other), "change {index}");
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
