//! An operator in front of kinds that are older than itself (CASES.md 32).

use crate::helm::{Values, charts};
use berth_e2e::{eventually, kubectl, leader, lease, operator_log, system_namespace};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DeleteParams, ListParams};
use kube::{Client, ResourceExt};
use serde_json::json;
use std::time::Duration;

const BOUND: Duration = Duration::from_mins(1);

#[tokio::test]
async fn an_operator_says_which_field_of_its_kinds_is_missing_and_goes_on_when_it_is_there() {
    let client = Client::try_default().await.unwrap();
    let values = Values::of_release().await;
    let path = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/readyPods";
    let operations = json!([{"op": "remove", "path": path}]).to_string();
    let older = ["patch", "crd", "mcpservers.berth.dev", "--type=json", "-p", &operations];
    let patched = kubectl(&older, "").await;
    assert!(patched.ok, "{patched:?}");

    let (identity, _) = leader(&client).await;
    let since = Timestamp::now();
    let pods: Api<Pod> = Api::namespaced(client.clone(), &system_namespace());
    let operators = ListParams::default().labels("app.kubernetes.io/component=operator");
    pods.delete_collection(&DeleteParams::default(), &operators).await.unwrap();
    eventually("an operator says what is missing", BOUND, || async {
        let log = operator_log(&client, &since).await;
        let said = log.iter().find(|line| line.contains("readyPods"))?;
        assert!(said.contains("McpServer") && said.contains("berth-crds"), "{said}");
        Some(())
    })
    .await;
    let listed = pods.list(&operators).await.unwrap();
    let ready = |pod: &Pod| {
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
    };
    let fresh = |pod: &&Pod| pod.metadata.deletion_timestamp.is_none();
    assert!(
        !listed.iter().filter(fresh).any(ready),
        "{:?}",
        listed.iter().map(ResourceExt::name_any).collect::<Vec<_>>()
    );

    values.install(&charts(), &[]).await;
    eventually("an operator leads again", BOUND, || async {
        let holder = lease(&client).await.spec?.holder_identity?;
        (holder != identity && !holder.is_empty()).then_some(())
    })
    .await;
}
