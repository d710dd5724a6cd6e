//! Pods of pools whose server is gone and that nobody collects.
//!
//! `kubectl delete mcpserver --cascade=orphan` takes the owner off them: they would run on for ever, and no look at a server
//! decides about them any more. A pod that is deleted ends its sessions itself. Only a live and complete list of the servers
//! decides, as with orphans.

use super::MAX_NAMESPACES;
use crate::api_error;
use crate::background::uids;
use crate::context::Context;
use crate::pages;
use berth_api::{McpServer, label};
use berth_plan::pod::SLOTS;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Preconditions};
use kube::{Api, ResourceExt};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Pods of a namespace that are deleted in one sweep; the next one goes on.
const MAX_PODS: usize = 16;

/// Deletes pods that are found so.
pub async fn end(ctx: &Context) {
    let known = uids(&ctx.stores.servers);
    let mut suspects: HashMap<String, Vec<Arc<Pod>>> = HashMap::new();
    for pod in ctx.stores.pods.state_filter(|pod| is_left(pod, &known)) {
        suspects.entry(pod.namespace().unwrap_or_default()).or_default().push(pod);
    }
    for (namespace, pods) in suspects.into_iter().take(MAX_NAMESPACES) {
        match pages::metadata::<McpServer>(&ctx.api(&namespace)).await {
            Ok(servers) => {
                let existing = servers.iter().filter_map(ResourceExt::uid).collect();
                let api = ctx.api::<Pod>(&namespace);
                for pod in pods.iter().filter(|pod| is_left(pod, &existing)).take(MAX_PODS) {
                    delete(&api, pod).await;
                }
            }
            Err(error) => {
                tracing::warn!(
                    namespace,
                    error = api_error::text(&error),
                    "cannot tell whether pods belong to no server"
                );
            }
        }
    }
}

/// Whether a pod is of a pool, belongs to nobody, and its server is none of `servers`.
fn is_left(pod: &Pod, servers: &HashSet<String>) -> bool {
    pod.metadata.deletion_timestamp.is_none()
        && pod.owner_references().is_empty()
        && pod.labels().get(label::MANAGED_BY).is_some_and(|manager| manager == label::MANAGER)
        && pod.annotations().contains_key(SLOTS)
        && pod.labels().get(label::SERVER_UID).is_some_and(|server| !servers.contains(server))
}

async fn delete(api: &Api<Pod>, pod: &Pod) {
    let preconditions = Preconditions { uid: pod.uid(), resource_version: None };
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
    match api.delete(&name, &params).await {
        Ok(_) => {
            tracing::warn!(namespace, pod = name, "pod deleted: its McpServer is gone and nobody owns it");
        }
        Err(error) if api_error::is_outdated(&error) => {}
        Err(error) => {
            let error = api_error::text(&error);
            tracing::warn!(namespace, pod = name, error, "cannot delete a pod that belongs to no server yet");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{context, failure, server, store_of};
    use crate::memory_api::MemoryApi;
    use http::Method;
    use serde_json::json;

    const SERVERS: &str = "/apis/berth.dev/v1alpha1/namespaces/demo/mcpservers";

    fn pod(name: &str, server_uid: &str, owned: bool) -> Pod {
        let mut pod: Pod = serde_json::from_value(json!({"metadata": {
            "name": name, "namespace": "demo", "uid": name, "annotations": {"berth.dev/slots": "1"},
            "labels": {"app.kubernetes.io/managed-by": "berth-operator", "berth.dev/server-uid": server_uid},
        }}))
        .unwrap();
        if owned {
            pod.metadata.owner_references = Some(vec![berth_plan::server::build::owner("x", server_uid)]);
        }
        pod
    }

    #[tokio::test]
    async fn a_pod_that_was_left_behind_goes_and_others_stay() {
        let (ctx, _) = context(|_| failure(500, "InternalError", "not this one")).await;
        let api = MemoryApi::default();
        let mut ctx = Context { client: api.client(), ..ctx };
        ctx.stores.servers = store_of(vec![server("everything", &json!({}))]);
        let pods = [
            pod("left", "gone", false),
            pod("collected", "gone", true),
            pod("disowned", "server", false),
            // The cache does not have its server yet.
            pod("of-a-new-one", "new", false),
        ];
        for pod in &pods {
            api.put(
                &format!("/api/v1/namespaces/demo/pods/{}", pod.name_any()),
                serde_json::to_value(pod).unwrap(),
            );
        }
        api.put(
            &format!("{SERVERS}/new"),
            json!({"metadata": {"name": "new", "namespace": "demo", "uid": "new"}}),
        );
        ctx.stores.pods = store_of(pods.to_vec());
        end(&ctx).await;
        assert_eq!(api.writes(), ["DELETE /api/v1/namespaces/demo/pods/left"]);
        api.rule(|method, path| {
            (method == Method::GET && path == SERVERS).then(|| failure(500, "InternalError", "etcd is away"))
        });
        end(&ctx).await;
        assert_eq!(api.writes(), [""; 0], "a list that fails ends nobody");
    }
}
