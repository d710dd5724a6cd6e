//! The Secret of the CA: the keys, and how far a rotation has come.

use crate::ca::Error;
use crate::ca::issue::Pair;
use crate::ca::scope::Master;
use crate::ca::secret::{self, RENEW_AFTER, TYPE, bytes, error, moment, text};
use crate::ca::trust::Trust;
use crate::found_good::Version;
use berth_api::label;
use berth_wire::{CA_FILE, CERT_FILE, KEY_FILE};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Secret that holds the CA.
pub const CA_SECRET: &str = "berth-ca";
/// Annotation of it: somebody wants a new CA. Any value counts; it goes when the rotation begins.
pub const ROTATE: &str = "berth.dev/rotate";
/// Annotation of it: since when the CA to come is trusted.
const NEXT_SINCE: &str = "berth.dev/next-since";
/// Annotation of it: until when those of before are trusted.
const PREVIOUS_UNTIL: &str = "berth.dev/previous-until";
/// Keys of the CA to come.
const NEXT: [&str; 2] = ["next.crt", "next.key"];
/// Key of the key of clients' session ids: 32 bytes.
const SCOPE: &str = "scope.key";
/// Key of the certificates of before.
const PREVIOUS: &str = "previous.crt";

/// The Secret of the CA as it was read or written.
pub struct Record {
    /// What it says.
    pub trust: Trust,
    /// Whether somebody wants a new CA.
    pub asked: bool,
    /// Its resource version, which fences the next write.
    pub version: Version,
}

impl Record {
    /// Reads it.
    pub fn of_secret(secret: &Secret) -> Result<Self, Error> {
        let (data, metadata) = (secret.data.as_ref(), &secret.metadata);
        let file = |name: &str| {
            let bytes = data.and_then(|data| data.get(name))?;
            Some(std::str::from_utf8(&bytes.0).ok()?.to_owned())
        };
        let needed = |name: &str| {
            file(name).ok_or_else(|| Error::Unusable(format!("key {name:?} is missing or is no text")))
        };
        let [certificate, key] = NEXT.map(file);
        let scope = data.and_then(|data| data.get(SCOPE)).map(|bytes| {
            Master::read(&bytes.0).ok_or_else(|| Error::Unusable(format!("key {SCOPE:?} is not 32 bytes")))
        });
        let next = certificate.zip(key).map(|(certificate, key)| Pair { certificate, key });
        Ok(Self {
            trust: Trust {
                signer: Pair { certificate: needed(CERT_FILE)?, key: needed(KEY_FILE)? },
                renew_at: moment(metadata, RENEW_AFTER),
                next: next.zip(moment(metadata, NEXT_SINCE)),
                previous: file(PREVIOUS).zip(moment(metadata, PREVIOUS_UNTIL)),
                scope: scope.transpose()?,
            },
            asked: metadata.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(ROTATE)),
            version: metadata.resource_version.clone(),
        })
    }

    /// The record of that namespace, if there is one.
    pub async fn read(api: &Api<Secret>) -> Result<Option<Self>, Error> {
        secret::read(api, CA_SECRET).await?.as_ref().map(Self::of_secret).transpose()
    }

    /// Makes the record. When somebody was faster, theirs is what counts.
    pub async fn create(api: &Api<Secret>, trust: &Trust) -> Result<Self, Error> {
        match api.create(&PostParams::default(), &of_trust(trust)).await {
            Ok(created) => Self::of_secret(&created),
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                let found = api.get(CA_SECRET).await;
                Self::of_secret(&found.map_err(|source| error("read", api, CA_SECRET, source))?)
            }
            Err(source) => Err(error("create", api, CA_SECRET, source)),
        }
    }

    /// The same with a key of session ids: `make` gives one if there is none, as in a Secret of an older version, or in one that
    /// somebody has taken it from.
    pub async fn with_scope(
        self,
        api: &Api<Secret>,
        make: impl FnOnce() -> Result<Master, Error>,
    ) -> Result<Self, Error> {
        if self.trust.scope.is_some() {
            return Ok(self);
        }
        // Nothing else is touched, a wish for another CA least of all.
        let patch = json!({
            "metadata": {"resourceVersion": self.version},
            "data": {SCOPE: ByteString(make()?.bytes())},
        });
        let written = api.patch(CA_SECRET, &PatchParams::default(), &Patch::Merge(patch)).await;
        Self::of_secret(&written.map_err(|source| error("write", api, CA_SECRET, source))?)
    }

    /// Writes another trust in its place, unless somebody else has written since.
    pub async fn replace(&self, api: &Api<Secret>, trust: &Trust) -> Result<Self, Error> {
        let patch = replacement(&of_trust(trust), self.version.as_deref());
        let written = api.patch(CA_SECRET, &PatchParams::default(), &Patch::Merge(patch)).await;
        Self::of_secret(&written.map_err(|source| error("write", api, CA_SECRET, source))?)
    }
}

/// The certificates that parts trust which are there though the CA's Secret is not: those of the gateway's Secret.
pub fn still_trusted(gateway: Option<&Secret>) -> Option<String> {
    let bytes = gateway?.data.as_ref()?.get(CA_FILE)?;
    std::str::from_utf8(&bytes.0).ok().map(str::to_owned)
}

fn of_trust(trust: &Trust) -> Secret {
    let mut files = vec![(CERT_FILE, trust.signer.certificate.clone()), (KEY_FILE, trust.signer.key.clone())];
    let mut annotations = BTreeMap::new();
    let mut note = |key: &str, value| annotations.insert(key.to_owned(), value);
    if let Some(due) = trust.renew_at {
        note(RENEW_AFTER, text(due));
    }
    if let Some((next, since)) = &trust.next {
        files.extend(NEXT.into_iter().zip([next.certificate.clone(), next.key.clone()]));
        note(NEXT_SINCE, text(*since));
    }
    if let Some((pem, until)) = &trust.previous {
        files.push((PREVIOUS, pem.clone()));
        note(PREVIOUS_UNTIL, text(*until));
    }
    let mut data = bytes(files);
    if let Some(scope) = &trust.scope {
        data.insert(SCOPE.to_owned(), ByteString(scope.bytes()));
    }
    Secret {
        metadata: ObjectMeta {
            name: Some(CA_SECRET.to_owned()),
            labels: Some([(label::MANAGED_BY.to_owned(), label::MANAGER.to_owned())].into()),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        },
        type_: Some(TYPE.to_owned()),
        data: Some(data),
        ..Secret::default()
    }
}

/// A merge patch that makes the record as `wanted` has it: what that lacks is taken away, what others put beside it stays.
fn replacement(wanted: &Secret, version: Option<&str>) -> Value {
    let with_gaps = |held: Value, keys: &[&str]| {
        let mut whole: Value = keys.iter().map(|key| ((*key).to_owned(), Value::Null)).collect();
        if let (Some(whole), Value::Object(held)) = (whole.as_object_mut(), held) {
            whole.extend(held);
        }
        whole
    };
    let [next_certificate, next_key] = NEXT;
    json!({
        "metadata": {
            "resourceVersion": version,
            "annotations": with_gaps(
                json!(wanted.metadata.annotations),
                &[ROTATE, RENEW_AFTER, NEXT_SINCE, PREVIOUS_UNTIL],
            ),
        },
        "data": with_gaps(json!(wanted.data), &[next_certificate, next_key, PREVIOUS]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ca::trust::Step;
    use berth_plan::time::Moment;

    const NOW: Moment = Moment(1_800_000_000_000);

    fn pair(name: &str) -> Pair {
        Pair { certificate: format!("cert {name}"), key: format!("key {name}") }
    }

    #[test]
    fn every_stage_of_a_rotation_reads_back_from_its_secret() {
        let first = Trust::first(pair("a"), None, NOW);
        let introduced = first.after(Step::Introduce, pair("b"), NOW);
        let promoted = introduced.after(Step::Promote, pair("unused"), NOW);
        let foreign = Trust { renew_at: None, ..first.clone() };
        let with_key = Trust { scope: Master::create(), ..promoted.clone() };
        assert!(with_key.after(Step::Forget, pair("unused"), NOW).scope == with_key.scope);
        for trust in [&first, &introduced, &promoted, &foreign, &with_key] {
            let read = Record::of_secret(&of_trust(trust)).unwrap();
            assert!(read.trust == *trust && !read.asked);
        }
        assert!(matches!(Record::of_secret(&Secret::default()), Err(Error::Unusable(_))));
        let mut short = of_trust(&with_key);
        short.data.as_mut().unwrap().insert(SCOPE.into(), ByteString(vec![1, 2]));
        let error = Record::of_secret(&short).err().unwrap().to_string();
        assert!(error.contains("\"scope.key\" is not 32 bytes"), "{error}");
    }
}
