//! Writes a status, if it says something new.

use crate::api_error;
use berth_api::label;
use kube::api::{Patch, PatchParams};
use kube::{Api, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// A status could not be written.
#[derive(Debug, thiserror::Error)]
#[error("failed to write the status of {name:?}: {}", api_error::text(source))]
pub struct Error {
    name: String,
    source: Box<kube::Error>,
}

/// Writes `wanted` unless it is what the object has. An object that is gone needs no status.
pub async fn update<K, S>(api: &Api<K>, name: &str, held: Option<&S>, wanted: &S) -> Result<(), Error>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    S: Serialize + PartialEq,
{
    if held == Some(wanted) {
        return Ok(());
    }
    let params = PatchParams::apply(label::FIELD_MANAGER).force();
    let body =
        serde_json::json!({ "apiVersion": K::api_version(&()), "kind": K::kind(&()), "status": wanted });
    match api.patch_status(name, &params, &Patch::Apply(body)).await {
        Ok(_) => Ok(()),
        Err(error) if api_error::code(&error) == Some(404) => Ok(()),
        Err(source) => Err(Error { name: name.to_owned(), source: Box::new(source) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{context, failure};
    use berth_api::{AgentSession, AgentSessionStatus};

    fn status(generation: i64) -> AgentSessionStatus {
        AgentSessionStatus { observed_generation: Some(generation), ..AgentSessionStatus::default() }
    }

    #[tokio::test]
    async fn an_unchanged_status_costs_no_request() {
        let (ctx, log) = context(|_| failure(404, "NotFound", "gone")).await;
        let api = ctx.api::<AgentSession>("demo");
        update(&api, "chat", Some(&status(1)), &status(1)).await.unwrap();
        assert_eq!(log.lines(), Vec::<String>::new());
        update(&api, "chat", Some(&status(1)), &status(2)).await.unwrap();
        let seen = log.take();
        assert_eq!(seen[0].path, "/apis/berth.dev/v1alpha1/namespaces/demo/agentsessions/chat/status");
        assert_eq!(seen[0].body["status"], serde_json::json!({"observedGeneration": 2}));
    }
}
