//! The operator: which pod leads, and none of it for a while.

use crate::{eventually, is_ready, system_namespace};
use futures::FutureExt;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::ResourceExt;
use kube::api::{Api, ListParams, LogParams, Patch, PatchParams};
use serde_json::json;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

/// How long replicas may take to go or to come: those of the gateway let their calls finish first.
const SCALE_BOUND: Duration = Duration::from_mins(2);

/// Runs `work` while there is no operator, and brings it back whatever becomes of `work`.
pub async fn without_operator<T>(client: &Client, work: impl Future<Output = T>) -> T {
    with_replicas(client, "berth-operator", 0, work).await
}

/// Runs `work` while a Deployment of Berth has so many replicas, and brings back what it had whatever becomes of `work`.
pub async fn with_replicas<T>(
    client: &Client,
    deployment: &str,
    replicas: i32,
    work: impl Future<Output = T>,
) -> T {
    // In a box, or this future would have room for it twice.
    let work = Box::pin(work);
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), &system_namespace());
    let before = deployments.get(deployment).await.unwrap().spec.replicas.unwrap_or(1);
    scale(client, deployment, replicas).await;
    let outcome = AssertUnwindSafe(work).catch_unwind().await;
    scale(client, deployment, before).await;
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Brings a Deployment of Berth to so many replicas and waits until they are Ready and no other pod of it is left: a
/// Deployment does not count pods that are still on their way out.
pub async fn scale(client: &Client, deployment: &str, replicas: i32) {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), &system_namespace());
    let wanted = Patch::Merge(json!({"spec": {"replicas": replicas}}));
    let scaled = deployments.patch(deployment, &PatchParams::default(), &wanted).await;
    let scaled = scaled.expect("a Deployment of Berth can be scaled");
    let labels = scaled.spec.selector.match_labels.unwrap_or_default();
    let labels: Vec<String> = labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let (of_it, wanted) = (ListParams::default().labels(&labels.join(",")), replicas.unsigned_abs() as usize);
    let pods: Api<Pod> = Api::namespaced(client.clone(), &system_namespace());
    eventually(&format!("{replicas} replicas of {deployment} run"), SCALE_BOUND, || async {
        let pods = pods.list(&of_it).await.unwrap().items;
        (pods.len() == wanted && pods.iter().all(is_ready)).then_some(())
    })
    .await;
}

/// The Lease of the operators.
pub async fn lease(client: &Client) -> Lease {
    let leases: Api<Lease> = Api::namespaced(client.clone(), &system_namespace());
    leases.get(berth_api::label::LEADER_LEASE).await.expect("the operators have a lease")
}

/// Gives the Lease back for a process that was killed and of which no request is under way any more, as it would have done.
pub async fn give_lease_back(client: &Client) {
    let leases: Api<Lease> = Api::namespaced(client.clone(), &system_namespace());
    let nobody = json!({
        "metadata": {"annotations": {berth_api::label::LEADER_ADDRESS: null}},
        "spec": {"holderIdentity": null},
    });
    let given =
        leases.patch(berth_api::label::LEADER_LEASE, &PatchParams::default(), &Patch::Merge(nobody)).await;
    given.expect("the Lease can be given back");
}

/// The identity in the Lease and the pod that it names, once there is one that is Ready.
pub async fn leader(client: &Client) -> (String, Pod) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &system_namespace());
    eventually("an operator leads", SCALE_BOUND, || async {
        let holder = lease(client).await.spec?.holder_identity?;
        let pod = pods.get_opt(holder.rsplit_once('_')?.0).await.unwrap()?;
        is_ready(&pod).then_some((holder, pod))
    })
    .await
}

/// Waits until another process leads than the one of that identity.
pub async fn leader_after(client: &Client, identity: &str) -> (String, Pod) {
    eventually("another operator leads", SCALE_BOUND, || async {
        let (holder, pod) = leader(client).await;
        (holder != identity).then_some((holder, pod))
    })
    .await
}

/// Lines that the operators logged since then.
pub async fn operator_log(client: &Client, since: &Timestamp) -> Vec<String> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &system_namespace());
    let operators = ListParams::default().labels("app.kubernetes.io/component=operator");
    let params = LogParams { since_time: Some(*since), ..LogParams::default() };
    let mut lines = Vec::new();
    let started = |pod: &Pod| {
        let containers = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
        containers.is_some_and(|all| all.iter().all(|container| container.started == Some(true)))
    };
    for pod in pods.list(&operators).await.unwrap().into_iter().filter(started) {
        match pods.logs(&pod.name_any(), &params).await {
            Ok(log) => lines.extend(log.lines().map(str::to_owned)),
            // It has gone, or begun anew and not started yet, since it was listed, and its log with it.
            Err(kube::Error::Api(status)) if status.is_not_found() || status.code == 400 => {}
            Err(error) => panic!("a container that has started shows its log: {error}"),
        }
    }
    lines
}
