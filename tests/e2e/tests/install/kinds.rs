//! An operator in front of kinds that are older than itself (CASES.md 32).

use crate::helm::{Values, charts, copied_charts, helm};
use berth_e2e::{eventually, is_ready, leader, lease, operator_log, system_namespace};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DeleteParams, ListParams};
use kube::{Client, ResourceExt};
use std::fs;
use std::path::Path;
use std::time::Duration;

const BOUND: Duration = Duration::from_mins(2);

/// Takes the property that begins with that line out of a definition.
fn without_field(file: &Path, field: &str) {
    let text = fs::read_to_string(file).unwrap();
    let depth = |line: &str| line.len() - line.trim_start().len();
    let mut inside = false;
    let kept = text.lines().filter(|line| {
        inside = *line == field || (inside && depth(line) > depth(field));
        !inside
    });
    let kept: Vec<&str> = kept.collect();
    assert!(kept.len() < text.lines().count(), "{} has {field:?}", file.display());
    fs::write(file, kept.join("\n") + "\n").unwrap();
}

#[tokio::test]
async fn an_operator_says_which_field_of_its_kinds_is_missing_and_goes_on_when_it_is_there() {
    let client = Client::try_default().await.unwrap();
    let values = Values::of_release().await;
    let older = tempfile::tempdir().unwrap();
    let kinds = copied_charts(older.path()).join("berth-crds");
    without_field(&kinds.join("templates/berth.dev_mcpservers.yaml"), "              readyPods:");
    let namespace = system_namespace();
    helm(&["upgrade", "berth-crds", kinds.to_str().unwrap(), "-n", &namespace, "--wait"]).await;

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
    let ready: Vec<String> = listed.iter().filter(|pod| is_ready(pod)).map(ResourceExt::name_any).collect();
    assert_eq!(ready, Vec::<String>::new());

    values.install(&charts(), &[]).await;
    eventually("an operator leads again", BOUND, || async {
        let holder = lease(&client).await.spec?.holder_identity?;
        (holder != identity && !holder.is_empty()).then_some(())
    })
    .await;
}
