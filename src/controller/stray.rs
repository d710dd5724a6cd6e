//! Pool pods that exist and are not in the cache.
//!
//! The watch of pods selects by label, and anybody who may write pods can take labels off: to the operator such a pod is gone,
//! while it runs on with all that it holds. What it lacks is put back, by the look at its server alone. Until the cache has it
//! again the sessions in it stay there (`session::strays`).

use crate::api_error;
use berth_plan::server::build;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

/// A pod could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("failed to {verb} pod {pod:?}: {}", api_error::text(source))]
pub struct Error {
    /// What was tried.
    pub verb: &'static str,
    /// Name of the pod.
    pub pod: String,
    /// Why.
    pub source: Box<kube::Error>,
}

/// What became of a pod that the cache does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// It does not exist.
    Gone,
    /// It exists with all its labels, by now at least: the watch will bring it.
    Back,
    /// It exists, and does not come back by itself, for this reason.
    Stray(String),
}

impl Error {
    /// Why a pod that cannot be read is out of the operator's hands; nothing if the next attempt may be better. Nobody hangs on a
    /// role that is too narrow.
    pub fn forbidden(&self) -> Option<String> {
        let forbidden = api_error::code(&self.source) == Some(403);
        forbidden.then(|| format!("it cannot be read: {}", api_error::text(&self.source)))
    }
}

/// The pod of that name and UID as the API server itself has it.
pub async fn read(api: &Api<Pod>, name: &str, uid: &str) -> Result<Option<Pod>, Error> {
    let error = |source| Error { verb: "read", pod: name.to_owned(), source: Box::new(source) };
    let found = api.get_opt(name).await.map_err(error)?;
    Ok(found.filter(|pod| pod.uid().as_deref() == Some(uid)))
}

/// Looks, at the API server itself, for the pod of that name and UID; its labels are put back if it lost them.
pub async fn look(api: &Api<Pod>, name: &str, uid: &str) -> Result<Found, Error> {
    match read(api, name, uid).await {
        Ok(Some(pod)) => put_back(api, &pod).await,
        Ok(None) => Ok(Found::Gone),
        Err(error) => error.forbidden().map(Found::Stray).ok_or(error),
    }
}

/// Puts the labels back that `pod`, read live, has lost.
pub async fn put_back(api: &Api<Pod>, pod: &Pod) -> Result<Found, Error> {
    let name = pod.name_any();
    let Some(lost) = build::lost_labels(pod) else {
        return Ok(Found::Stray("it is not owned by its McpServer any more".to_owned()));
    };
    if lost.is_empty() {
        return Ok(Found::Back);
    }
    // The API server refuses a UID that is not that of the object: another pod of this name is not meant.
    let patch = Patch::Merge(json!({"metadata": {"uid": pod.uid(), "labels": lost}}));
    match api.patch_metadata(&name, &PatchParams::default(), &patch).await {
        Ok(_) => {
            let (namespace, labels) =
                (pod.namespace().unwrap_or_default(), lost.into_keys().collect::<Vec<_>>());
            tracing::warn!(
                namespace,
                pod = name,
                ?labels,
                "a pod of a pool had lost labels, which are put back"
            );
            Ok(Found::Back)
        }
        // The next look finds out what is there instead.
        Err(error) if matches!(api_error::code(&error), Some(404 | 409)) => Ok(Found::Back),
        Err(error) if matches!(api_error::code(&error), Some(403 | 422)) => {
            Ok(Found::Stray(format!("its labels cannot be put back: {}", api_error::text(&error))))
        }
        Err(source) => Err(Error { verb: "label", pod: name, source: Box::new(source) }),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::fixture::{failure, server};
    use crate::memory_api::MemoryApi;
    use berth_plan::server::validate::accept;
    use http::Method;
    use serde_json::Value;

    /// Where the pod of [`pool_pod`] is.
    pub const PATH: &str = "/api/v1/namespaces/demo/pods/everything-x-0";

    /// The pool pod `everything-x-0`, with the UID `pod`, of the fixture's server.
    pub fn pool_pod() -> Value {
        let valid = accept(&server("everything", &json!({}))).unwrap();
        let sidecar = build::Sidecar { image: "berth:1".into(), ..build::Sidecar::default() };
        let mut pod = serde_json::to_value(build::pod(&valid, &sidecar, "everything-x-0")).unwrap();
        pod["metadata"]["uid"] = "pod".into();
        pod
    }

    async fn found(api: &MemoryApi) -> Result<Found, Error> {
        look(&Api::namespaced(api.client(), "demo"), "everything-x-0", "pod").await
    }

    #[tokio::test]
    async fn a_pod_that_lost_labels_gets_those_back_and_nothing_else_changes() {
        let (api, whole) = (MemoryApi::default(), pool_pod());
        let mut pod = whole.clone();
        pod["metadata"]["labels"] = json!({"berth.dev/revision": "changed", "of.somebody": "else"});
        api.put(PATH, pod);
        assert_eq!(found(&api).await.unwrap(), Found::Back);
        let mut wanted = whole;
        wanted["metadata"]["labels"]["of.somebody"] = "else".into();
        let mut stored = api.get(PATH).unwrap();
        stored["metadata"].as_object_mut().unwrap().remove("resourceVersion");
        assert_eq!(stored, wanted);
        api.writes();
        assert_eq!(found(&api).await.unwrap(), Found::Back);
        assert_eq!(api.writes(), Vec::<String>::new(), "nothing was missing");
    }

    #[tokio::test]
    async fn another_pod_of_that_name_is_not_touched() {
        let api = MemoryApi::default();
        assert_eq!(found(&api).await.unwrap(), Found::Gone);
        let mut another = pool_pod();
        another["metadata"]["uid"] = "another".into();
        another["metadata"].as_object_mut().unwrap().remove("labels");
        api.put(PATH, another);
        assert_eq!(found(&api).await.unwrap(), Found::Gone);
        let mut disowned = pool_pod();
        disowned["metadata"].as_object_mut().unwrap().remove("ownerReferences");
        disowned["metadata"].as_object_mut().unwrap().remove("labels");
        api.put(PATH, disowned);
        assert!(matches!(found(&api).await.unwrap(), Found::Stray(_)));
        assert_eq!(api.writes(), Vec::<String>::new());
    }

    #[tokio::test]
    async fn what_is_refused_is_told_and_what_fails_is_tried_again() {
        for (at, code, stray) in [
            ("GET", 403, true),
            ("PATCH", 403, true),
            ("PATCH", 422, true),
            ("GET", 500, false),
            ("PATCH", 500, false),
        ] {
            let api = MemoryApi::default();
            let mut pod = pool_pod();
            pod["metadata"].as_object_mut().unwrap().remove("labels");
            api.put(PATH, pod);
            let at: Method = at.parse().unwrap();
            api.rule(move |method, _| (*method == at).then(|| failure(code, "No", "a policy says no")));
            match found(&api).await {
                Ok(Found::Stray(why)) => assert!(stray && why.contains("a policy says no"), "{why}"),
                Err(error) => assert!(!stray && error.to_string().contains("\"everything-x-0\""), "{error}"),
                Ok(found) => panic!("{found:?}"),
            }
        }
    }
}
