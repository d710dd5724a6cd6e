//! Real MCP servers that other people wrote, run by their manifests.

use crate::inside::until_reached;
use crate::{TestNamespace, eventually, mcp_server};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::ResourceExt;
use kube::api::ListParams;
use serde_json::{Value, json};
use std::time::Duration;

const BOUND: Duration = Duration::from_mins(3);

/// Runs the server `name` by its manifest, whose image is in `BERTH_IMAGE_NAME`, with an `McpServer` of its name in front. Gives the
/// name of its pod.
pub async fn start_reference(namespace: &TestNamespace, name: &str, manifest: &str, port: u16) -> String {
    let upper = name.to_uppercase();
    let variable = format!("BERTH_IMAGE_{upper}");
    let image = std::env::var(&variable).unwrap_or_else(|_| panic!("{variable} names the server's image"));
    for document in manifest.replace(&format!("IMAGE_{upper}"), &image).split("\n---") {
        let object: Value = serde_saphyr::from_str(document).expect("the manifest is YAML");
        match object["kind"].as_str() {
            Some("Deployment") => drop(namespace.create::<Deployment>(object).await),
            Some("Service") => drop(namespace.create::<Service>(object).await),
            other => panic!("the manifest holds {other:?}"),
        }
    }
    eventually(&format!("{name} is ready"), BOUND, || async {
        let deployment = namespace.api::<Deployment>().get(name).await.unwrap();
        (deployment.status?.ready_replicas? == 1).then_some(())
    })
    .await;
    until_reached(namespace, name, port).await;
    let url = format!("http://{name}.{}.svc:{port}/mcp", namespace.name);
    mcp_server(namespace, name, &url, json!({})).await;
    let of_it = ListParams::default().labels(&format!("app={name}"));
    namespace.api::<Pod>().list(&of_it).await.unwrap().items[0].name_any()
}
