//! Writes a status, if it says something new.
//!
//! A JSON patch that tests the UID: a reconcile on a stale cache must not write an old object's status onto a new one of the
//! same name. A server-side apply cannot tell the two apart: for the status of a custom resource the API server takes all
//! metadata from what it has, a UID in the body included, and a resourceVersion would conflict after each write of our own.

use crate::api_error;
use berth_api::label;
use kube::api::{Patch, PatchParams};
use kube::{Api, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use std::fmt::Debug;

/// A status could not be written.
#[derive(Debug, thiserror::Error)]
#[error("failed to write the status of {name:?}: {}", api_error::text(source))]
pub struct Error {
    name: String,
    source: Box<kube::Error>,
}

/// Writes `wanted` to `object` unless it is what the object has. An object that is gone needs no status; one that was made
/// anew since then is reconciled when the cache has it.
pub async fn update<K, S>(api: &Api<K>, object: &K, held: Option<&S>, wanted: &S) -> Result<(), Error>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    S: Serialize + PartialEq,
{
    if held == Some(wanted) {
        return Ok(());
    }
    let name = object.name_any();
    let error = |source| Error { name: name.clone(), source: Box::new(source) };
    let operations = serde_json::from_value(json!([
        {"op": "test", "path": "/metadata/uid", "value": object.uid()},
        {"op": "add", "path": "/status", "value": wanted},
    ]))
    .map_err(|source| error(kube::Error::SerdeError(source)))?;
    let params =
        PatchParams { field_manager: Some(label::FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    match api.patch_status(&name, &params, &Patch::Json::<()>(operations)).await {
        Ok(_) => Ok(()),
        Err(refused) if api_error::code(&refused) == Some(404) || is_another(&refused) => {
            tracing::debug!(kind = %K::kind(&()), name, "the object of this status is gone");
            Ok(())
        }
        Err(source) => Err(error(source)),
    }
}

/// Whether the test of the UID failed. A status that the schema does not take is refused with the same code, and with causes.
fn is_another(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    status.code == 422 && status.details.as_ref().is_none_or(|details| details.causes.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{context, deleted_session, failure};
    use berth_api::{AgentSession, AgentSessionStatus};
    use serde_json::Value;

    fn status(generation: i64) -> AgentSessionStatus {
        AgentSessionStatus { observed_generation: Some(generation), ..AgentSessionStatus::default() }
    }

    #[tokio::test]
    async fn an_unchanged_status_costs_no_request() {
        let (ctx, log) = context(|_| failure(404, "NotFound", "gone")).await;
        let api = ctx.api::<AgentSession>("demo");
        let session = deleted_session(&json!({}));
        update(&api, &session, Some(&status(1)), &status(1)).await.unwrap();
        assert_eq!(log.lines(), Vec::<String>::new());
        update(&api, &session, Some(&status(1)), &status(2)).await.unwrap();
        let seen = log.take();
        assert_eq!(seen[0].path, "/apis/berth.dev/v1alpha1/namespaces/demo/agentsessions/chat/status");
        assert_eq!(
            seen[0].body,
            json!([
                {"op": "test", "path": "/metadata/uid", "value": "77-session"},
                {"op": "add", "path": "/status", "value": {"observedGeneration": 2}},
            ])
        );
    }

    #[tokio::test]
    async fn an_object_of_another_uid_is_no_error_and_a_status_that_is_refused_is_one() {
        let refused = |details: Value| {
            let (code, mut body) = failure(422, "Invalid", "the server rejected our request");
            body["details"] = details;
            (code, body)
        };
        let write = async |details: Value| {
            let (ctx, _) = context(move |_| refused(details.clone())).await;
            let session = deleted_session(&json!({}));
            update(&ctx.api::<AgentSession>("demo"), &session, None, &status(1)).await
        };
        write(Value::Null).await.unwrap();
        write(json!({})).await.unwrap();
        let causes =
            json!({"causes": [{"reason": "FieldValueInvalid", "message": "no", "field": "status.servers"}]});
        let error = write(causes).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "failed to write the status of \"chat\": the server rejected our request"
        );
    }
}
