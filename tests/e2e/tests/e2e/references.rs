//! What a session or server names and does not get: a reason in `kubectl get`, and the rest works on.

use berth_api::{AgentSession, BindingState, McpServer};
use berth_e2e::{
    McpClient, POOL, Probe, TestNamespace, eventually, in_namespace, kubectl, mcp_server, pod_metrics,
    subject_of,
};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use std::time::Duration;

const BOUND: Duration = Duration::from_mins(1);

async fn apply_session(namespace: &TestNamespace, servers: &[&str]) {
    let servers: Vec<Value> = servers.iter().map(|name| json!({"name": name})).collect();
    let spec = json!({"subject": {"name": subject_of(namespace, "alice")}, "servers": servers});
    namespace.create::<AgentSession>(json!({"metadata": {"name": "s"}, "spec": spec})).await;
}

/// Waits until `kubectl get` prints a row of `kind` that shows all of `words`.
async fn row_shows(namespace: &TestNamespace, kind: &str, words: &[&str]) {
    eventually(&format!("kubectl get {kind} shows {words:?}"), BOUND, || async {
        let printed = kubectl(&["get", kind, "-n", &namespace.name, "--no-headers"], "").await;
        let row: Vec<&str> = printed.out.split_whitespace().collect();
        words.iter().all(|word| row.contains(word)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_unknown_server_shows_as_ref_not_found_until_it_is_made() {
    in_namespace("unknown", |namespace| async move {
        apply_session(&namespace, &["absent"]).await;
        row_shows(&namespace, "bses", &["False", "RefNotFound"]).await;
        let probe = Probe::start(&namespace).await;
        mcp_server(&namespace, "absent", &probe.url(), json!({})).await;
        row_shows(&namespace, "bses", &["True", "Bound"]).await;
    })
    .await;
}

#[tokio::test]
async fn one_bad_server_of_two_degrades_the_session_and_the_other_works() {
    in_namespace("degraded", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        mcp_server(&namespace, "probe", &probe.url(), json!({})).await;
        apply_session(&namespace, &["absent", "probe"]).await;
        row_shows(&namespace, "bses", &["True", "Degraded"]).await;
        let mut client = McpClient::new(&namespace.name, "s", "probe", &namespace.token("alice").await);
        client.initialize().await;
        assert_eq!(client.call("echo", json!({"message": "on"})).await, "on");
    })
    .await;
}

#[tokio::test]
async fn a_secret_is_used_only_with_its_label_and_a_proper_value() {
    in_namespace("secret", |namespace| async move {
        let shared = json!({"type": "Shared", "shared": {"secretKeyRef": {"name": "upstream", "key": "token"}}});
        let spec = json!({"transport": {"type": "Http", "http": {"url": "http://127.0.0.1:9/mcp"}}, "auth": shared});
        namespace.create::<McpServer>(json!({"metadata": {"name": "srv"}, "spec": spec})).await;
        row_shows(&namespace, "bsrv", &["False", "RefNotFound"]).await;
        let steps = [
            (json!({"metadata": {"name": "upstream"}, "stringData": {"token": "t"}}), ["False", "RefNotPermitted"]),
            (
                json!({"metadata": {"name": "upstream", "labels": {"berth.dev/credential": "server"}}, "stringData": {"token": "canary-bad\u{1}"}}),
                ["False", "InvalidCredential"],
            ),
            (
                json!({"metadata": {"name": "upstream", "labels": {"berth.dev/credential": "server"}}, "stringData": {"token": "canary-good\n"}}),
                ["True", "PoolReady"],
            ),
        ];
        for (mut secret, words) in steps {
            secret["apiVersion"] = json!("v1");
            secret["kind"] = json!("Secret");
            let printed = kubectl(&["apply", "-n", &namespace.name, "-f", "-"], &secret.to_string()).await;
            assert!(printed.ok, "{printed:?}");
            // A Secret without the label is not watched: the operator looks again after two minutes, or when the server changes.
            if words[1] == "RefNotPermitted" {
                let touched = ["annotate", "bsrv", "srv", "-n", &namespace.name, "example.test/look=again"];
                assert!(kubectl(&touched, "").await.ok);
            }
            row_shows(&namespace, "bsrv", &words).await;
        }
        let printed = kubectl(&["get", "bsrv,events", "-n", &namespace.name, "-o", "yaml"], "").await;
        assert!(printed.out.contains("kind: McpServer") && !printed.out.contains("canary"), "{}", printed.out);
    })
    .await;
}

#[tokio::test]
async fn the_bound_on_sessions_of_a_server_shows_as_limit_reached() {
    in_namespace("limit", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        mcp_server(&namespace, "probe", &probe.url(), json!({"pool": {"maxSessions": 1}})).await;
        berth_e2e::session(&namespace, "first", "bob", &["probe"]).await;
        apply_session(&namespace, &["probe"]).await;
        eventually("the second session shows LimitReached", BOUND, || async {
            let printed = kubectl(&["get", "bses", "s", "-n", &namespace.name, "--no-headers"], "").await;
            printed.out.contains("LimitReached").then_some(())
        })
        .await;
        let first = namespace.api::<AgentSession>().get("first").await.unwrap();
        namespace.end(&first, BOUND).await;
        row_shows(&namespace, "bses", &["True", "Bound"]).await;
    })
    .await;
}

#[tokio::test]
async fn a_server_that_leaves_a_session_and_comes_back_is_bound_again_in_a_full_pool() {
    in_namespace("back", |namespace| async move {
        let (probe, token) = (Probe::start(&namespace).await, namespace.token("alice").await);
        let pool = json!({"pool": {"warm": 1, "sessionsPerPod": 2, "maxPods": 1}});
        mcp_server(&namespace, "full", &probe.url(), pool).await;
        mcp_server(&namespace, "other", &probe.url(), json!({})).await;
        apply_session(&namespace, &["full", "other"]).await;
        row_shows(&namespace, "bses", &["True", "Bound"]).await;
        let sessions = namespace.api::<AgentSession>();
        let name_only = async |servers: &[&str]| {
            let servers: Vec<Value> = servers.iter().map(|name| json!({"name": name})).collect();
            let patch = Patch::Merge(json!({"spec": {"servers": servers}}));
            sessions.patch("s", &PatchParams::default(), &patch).await.unwrap();
        };
        name_only(&["other"]).await;
        eventually("the sidecar of the other server alone holds a slot", BOUND, || async {
            let held =
                pod_metrics(&namespace.client, &namespace.name, POOL).await.sum("berth_sidecar_sessions");
            (held == 1.0).then_some(())
        })
        .await;
        // A session cannot come back to a pod where it ended: that pod gives way to another.
        name_only(&["full", "other"]).await;
        eventually("the session says that both are bound", BOUND, || async {
            let status = sessions.get("s").await.unwrap().status.unwrap_or_default();
            let bound = status.servers.iter().filter(|entry| entry.state == BindingState::Bound).count();
            (bound == 2).then_some(())
        })
        .await;
        let mut client = McpClient::new(&namespace.name, "s", "full", &token);
        client.initialize().await;
        assert_eq!(client.call("echo", json!({"message": "back"})).await, "back");
    })
    .await;
}
