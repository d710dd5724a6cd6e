//! What has to be there before the operator can begin.

use crate::api_error;
use berth_api::{AgentSession, McpServer};
use kube::api::ListParams;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Waits until the API server serves both kinds. False when it was cancelled meanwhile.
pub async fn wait_for_kinds(client: &Client, every: Duration, cancel: &CancellationToken) -> bool {
    let mut said = None;
    loop {
        let missing = match missing::<McpServer>(client).await {
            None => missing::<AgentSession>(client).await,
            some => some,
        };
        let Some(missing) = missing else { return true };
        // Said once, and again when it changes.
        if said.as_ref() != Some(&missing) {
            tracing::error!("{missing}");
            said = Some(missing);
        }
        tokio::select! {
            () = cancel.cancelled() => return false,
            () = tokio::time::sleep(every) => {}
        }
    }
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
