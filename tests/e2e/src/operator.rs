//! The operator, taken away for a while.

use crate::eventually;
use futures::FutureExt;
use k8s_openapi::api::apps::v1::Deployment;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

/// How long the operator may take to go or to come.
const SCALE_BOUND: Duration = Duration::from_mins(1);

/// Runs `work` while there is no operator, and brings it back whatever becomes of `work`.
pub async fn without_operator<T>(client: &Client, work: impl Future<Output = T>) -> T {
    scale(client, 0).await;
    let outcome = AssertUnwindSafe(work).catch_unwind().await;
    scale(client, 1).await;
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

async fn scale(client: &Client, replicas: i32) {
    let namespace = std::env::var("BERTH_SYSTEM_NAMESPACE").unwrap_or_else(|_| "berth-system".to_owned());
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
    let wanted = Patch::Merge(json!({"spec": {"replicas": replicas}}));
    deployments
        .patch("berth-operator", &PatchParams::default(), &wanted)
        .await
        .expect("the operator can be scaled");
    eventually(&format!("{replicas} operators run"), SCALE_BOUND, || async {
        let status = deployments.get("berth-operator").await.unwrap().status.unwrap_or_default();
        let (all, ready) = (status.replicas.unwrap_or(0), status.ready_replicas.unwrap_or(0));
        (all == replicas && ready == replicas).then_some(())
    })
    .await;
}
