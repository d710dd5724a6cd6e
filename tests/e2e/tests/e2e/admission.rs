//! Pods of a pool that a namespace's rules refuse: who waits is told what refused them, and goes on when it is gone (CASES.md 33).

use berth_api::{AgentSession, McpServer};
use berth_e2e::{
    McpClient, POOL, Probe, TestNamespace, eventually, in_namespace, kubectl, subject_of, wait_until_ready,
};
use k8s_openapi::api::core::v1::{LimitRange, Pod, ResourceQuota};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};
use std::time::Duration;

/// A refused pod is tried again within 15 s; then it has to start.
const BOUND: Duration = Duration::from_mins(1);

/// Waits until the namespace would take no pod of a pool: `admission` has its limits by watches of its own.
async fn pods_are_refused(namespace: &TestNamespace, text: &str) {
    let limits = json!({"limits": {"memory": "128Mi", "cpu": "10m"}});
    let security = json!({
        "runAsNonRoot": true, "runAsUser": 65532, "allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
    });
    let container =
        json!({"name": "c", "image": "none.test/none:1", "resources": limits, "securityContext": security});
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "tried"}, "spec": {"containers": [container]},
    });
    eventually("the namespace refuses pods", BOUND, || async {
        let tried = ["create", "--dry-run=server", "-n", &namespace.name, "-f", "-"];
        kubectl(&tried, &pod.to_string()).await.err.contains(text).then_some(())
    })
    .await;
}

/// Waits until a Ready that is False has that reason and all of `words` in its message.
async fn says<F: Future<Output = Vec<Condition>>>(
    what: &str,
    reason: &str,
    words: &[&str],
    conditions: impl Fn() -> F,
) {
    eventually(&format!("{what} says {reason} and {words:?}"), BOUND, || async {
        let ready = conditions().await.into_iter().find(|condition| condition.type_ == "Ready")?;
        let is_so = ready.status == "False" && ready.reason == reason;
        (is_so && words.iter().all(|word| ready.message.contains(word))).then_some(())
    })
    .await;
}

/// A server whose pods are refused, and a session that waits for it, say so.
async fn is_told(namespace: &TestNamespace, url: &str, name: &str, reason: &str, text: &str) {
    let spec = json!({"transport": {"type": "Http", "http": {"url": url}}});
    let made = namespace.create::<McpServer>(json!({"metadata": {"name": name}, "spec": spec})).await;
    let spec = json!({"subject": {"name": subject_of(namespace, "alice")}, "servers": [{"name": name}]});
    namespace.create::<AgentSession>(json!({"metadata": {"name": name}, "spec": spec})).await;
    says(&format!("server {name}"), reason, &["is forbidden", text], || async {
        let status = namespace.api::<McpServer>().get(name).await.unwrap().status;
        status.map(|status| status.conditions).unwrap_or_default()
    })
    .await;
    says(
        &format!("session {name}"),
        reason,
        &["waits for a free slot", "kubectl describe mcpserver"],
        || async {
            let status = namespace.api::<AgentSession>().get(name).await.unwrap().status;
            status.map(|status| status.conditions).unwrap_or_default()
        },
    )
    .await;
    let of_server = format!("{POOL},berth.dev/server-uid={}", made.uid().unwrap());
    let pods = namespace.api::<Pod>().list(&ListParams::default().labels(&of_server)).await.unwrap();
    assert!(pods.items.is_empty(), "{pods:?}");
}

/// Nobody touches the session, and it is served.
async fn goes_on(namespace: &TestNamespace, name: &str, token: &str) {
    wait_until_ready(namespace, name, BOUND).await;
    let mut client = McpClient::new(&namespace.name, name, name, token);
    client.initialize().await;
    assert_eq!(client.call("echo", json!({"message": name})).await, name);
}

#[tokio::test]
async fn pods_that_a_namespace_refuses_are_told_of_with_its_words_and_made_when_it_takes_them() {
    in_namespace("admission", |namespace| async move {
        let (probe, token) = (Probe::start(&namespace).await, namespace.token("alice").await);
        let too_much = "maximum memory usage per Container is 64Mi";
        let limit: Value = json!([{"type": "Container", "max": {"memory": "64Mi"}}]);
        namespace
            .create::<LimitRange>(json!({"metadata": {"name": "small"}, "spec": {"limits": limit}}))
            .await;
        pods_are_refused(&namespace, too_much).await;
        is_told(&namespace, &probe.url(), "limited", "PodForbidden", too_much).await;
        namespace.api::<LimitRange>().delete("small", &DeleteParams::default()).await.unwrap();
        goes_on(&namespace, "limited", &token).await;

        let used_up = "exceeded quota: full";
        namespace
            .create::<ResourceQuota>(json!({"metadata": {"name": "full"}, "spec": {"hard": {"pods": "1"}}}))
            .await;
        pods_are_refused(&namespace, used_up).await;
        is_told(&namespace, &probe.url(), "counted", "QuotaExceeded", used_up).await;
        namespace.api::<ResourceQuota>().delete("full", &DeleteParams::default()).await.unwrap();
        goes_on(&namespace, "counted", &token).await;
    })
    .await;
}
