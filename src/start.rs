//! What has to be there before the operator can begin: both kinds, with every field that it reads and writes.

mod schema;

use crate::api_error;
use crate::name_some::name_some;
use berth_api::{AgentSession, McpServer};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::ListParams;
use kube::{Api, Client, CustomResourceExt, Resource};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Waits until the API server serves both kinds as this version needs them. False when it was cancelled meanwhile.
pub async fn wait_for_kinds(client: &Client, every: Duration, cancel: &CancellationToken) -> bool {
    let mut said = None;
    loop {
        let Some(lacking) = lacking(client).await else { return true };
        // Said once, and again when it changes.
        if said.as_ref() != Some(&lacking) {
            tracing::error!("{lacking}");
            said = Some(lacking);
        }
        tokio::select! {
            () = cancel.cancelled() => return false,
            () = tokio::time::sleep(every) => {}
        }
    }
}

/// What is lacking of the kinds, with the remedy; nothing when all is there.
pub async fn lacking(client: &Client) -> Option<String> {
    match kind::<McpServer>(client).await {
        None => kind::<AgentSession>(client).await,
        lacking => lacking,
    }
}

async fn kind<K>(client: &Client) -> Option<String>
where
    K: Resource<DynamicType = ()> + CustomResourceExt + Clone + DeserializeOwned + Debug,
{
    match missing::<K>(client).await {
        None => outdated::<K>(client).await,
        missing => missing,
    }
}

/// Why the definition that is served is not enough. Helm never upgrades a CRD by itself, and the API server drops what a
/// schema does not name: without this look, statuses would stay empty and nobody would say why.
async fn outdated<K: Resource<DynamicType = ()> + CustomResourceExt>(client: &Client) -> Option<String> {
    let kind = K::kind(&());
    let found = match Api::<CustomResourceDefinition>::all(client.clone()).get(K::crd_name()).await {
        Ok(found) => found,
        Err(error) if api_error::code(&error) == Some(403) => {
            // Not worth standing still for: it only says more plainly what would go wrong.
            tracing::warn!(%kind, "cannot tell whether its definition is current: {}", api_error::text(&error));
            return None;
        }
        Err(error) => {
            let text = api_error::text(&error);
            return Some(format!(
                "cannot read the definition of {kind}: {text}; the operator goes on trying"
            ));
        }
    };
    let lacks = schema::lacks(&K::crd(), &found);
    (!lacks.is_empty()).then(|| {
        format!(
            "the cluster's definition of {kind} lacks {}; upgrade the chart berth-crds to version {}, the operator waits for it",
            name_some(&lacks),
            env!("CARGO_PKG_VERSION"),
        )
    })
}

/// Why a kind cannot be listed, with the remedy.
async fn missing<K>(client: &Client) -> Option<String>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let kind = K::kind(&());
    let error = Api::<K>::all(client.clone()).list_metadata(&ListParams::default().limit(1)).await.err()?;
    Some(match api_error::code(&error) {
        Some(404) => format!(
            "the cluster does not know the kind {kind}; install the chart berth-crds, the operator waits for it"
        ),
        Some(403) => format!(
            "the operator may not list {kind} objects: {}; install the chart's ClusterRole",
            api_error::text(&error)
        ),
        _ => format!("cannot list {kind} objects: {}; the operator goes on trying", api_error::text(&error)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory_api::MemoryApi;
    use serde_json::{Value, json};

    const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

    fn put(api: &MemoryApi, definition: &CustomResourceDefinition) {
        let mut definition: Value = serde_json::to_value(definition).unwrap();
        definition["metadata"]["uid"] = "crd".into();
        let name = definition["metadata"]["name"].as_str().unwrap().to_owned();
        api.put(&format!("{DEFINITIONS}/{name}"), definition);
    }

    #[tokio::test(start_paused = true)]
    async fn an_operator_waits_for_the_definitions_that_it_needs() {
        let api = MemoryApi::default();
        let mut old = serde_json::to_value(AgentSession::crd()).unwrap();
        let schema = &mut old["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
        schema["status"]["properties"].as_object_mut().unwrap().remove("servers").unwrap();
        put(&api, &McpServer::crd());
        put(&api, &serde_json::from_value(old).unwrap());
        let said = lacking(&api.client()).await.unwrap();
        let wanted = format!(
            "the cluster's definition of AgentSession lacks status.servers; upgrade the chart berth-crds to version {}, \
             the operator waits for it",
            env!("CARGO_PKG_VERSION")
        );
        assert_eq!(said, wanted);
        let (client, cancel) = (api.client(), CancellationToken::new());
        let mut waiting = std::pin::pin!(wait_for_kinds(&client, Duration::from_secs(5), &cancel));
        let wait = tokio::time::timeout(Duration::from_mins(1), &mut waiting);
        assert!(wait.await.is_err(), "it waits");
        put(&api, &AgentSession::crd());
        assert!(waiting.await);
    }

    #[tokio::test]
    async fn an_operator_that_may_not_read_definitions_goes_on() {
        let api = MemoryApi::default();
        api.rule(|_, path| {
            path.contains("customresourcedefinitions")
                .then(|| crate::fixture::failure(403, "Forbidden", "no"))
        });
        assert_eq!(lacking(&api.client()).await, None);
        let api = MemoryApi::default();
        api.rule(|_, path| {
            path.starts_with("/apis/berth.dev/")
                .then(|| (404, json!({"kind": "Status", "status": "Failure", "message": "no", "code": 404})))
        });
        assert!(lacking(&api.client()).await.unwrap().contains("install the chart berth-crds"));
    }
}
