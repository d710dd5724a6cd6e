//! What Berth does when there is nothing to do, and in namespaces that are going away: nothing (CASES.md 31).

use berth_api::AgentSession;
use berth_e2e::{
    McpClient, Probe, TestNamespace, api_writes, eventually, figure, in_namespace, mcp_server, operator_log,
    rounds, session, subject_of,
};
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DeleteParams, ListParams};
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;

/// What was written in all, once nothing more has been for three seconds.
pub async fn settled_writes(namespace: &TestNamespace) -> BTreeMap<String, f64> {
    eventually("what was under way is written", Duration::from_mins(1), || async {
        let before = api_writes(&namespace.client).await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        (api_writes(&namespace.client).await == before).then_some(before)
    })
    .await
}

/// Waits for the end of what earlier tests began to delete, then sees that for `span` nothing but Leases is written.
pub async fn nothing_is_written_for(namespace: &TestNamespace, span: Duration) {
    earlier_namespaces_are_gone(namespace).await;
    let before = settled_writes(namespace).await;
    // Nothing can tell that nothing will happen: the time itself is what is asked for.
    tokio::time::sleep(span).await;
    assert_eq!(api_writes(&namespace.client).await, before);
}

/// Waits for the end of what earlier tests began to delete: others create there what is refused.
pub async fn earlier_namespaces_are_gone(namespace: &TestNamespace) {
    let namespaces: Api<Namespace> = Api::all(namespace.client.clone());
    eventually("namespaces of earlier tests are gone", Duration::from_mins(3), || async {
        let all = namespaces.list(&ListParams::default()).await.unwrap();
        all.items.iter().all(|found| found.metadata.deletion_timestamp.is_none()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn fifty_sessions_that_are_left_alone_cost_no_write() {
    in_namespace("idle", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        mcp_server(&namespace, "probe", &probe.url(), json!({})).await;
        let token = namespace.token("alice").await;
        let of = (&namespace, token.as_str());
        let used = stream::iter(0..50).map(|n| async move {
            let name = format!("s{n}");
            session(of.0, &name, "alice", &["probe"]).await;
            let mut client = McpClient::new(&of.0.name, &name, "probe", of.1);
            client.initialize().await;
            assert_eq!(client.call("echo", json!({"message": "x"})).await, "x");
        });
        used.buffer_unordered(8).collect::<Vec<()>>().await;
        nothing_is_written_for(&namespace, Duration::from_secs(u64::from(rounds(60, 600)))).await;
        assert_eq!(probe.books().await.total("initialize"), 50);
        figure("writes of 50 idle sessions", format!("0 in {} s", rounds(60, 600)));
    })
    .await;
}

#[tokio::test]
async fn namespaces_that_go_with_their_servers_and_sessions_cause_no_error_and_no_create() {
    in_namespace("going", |outer| async move {
        earlier_namespaces_are_gone(&outer).await;
        let since = Timestamp::now();
        let refused = api_refusals(&outer).await;
        for _ in 0..rounds(3, 20) {
            in_namespace("goes", |namespace| async move {
                // Nobody listens there: only the objects matter.
                for server in ["a", "b", "c"] {
                    mcp_server(&namespace, server, "http://127.0.0.1:9/mcp", json!({})).await;
                }
                let spec = |server: &str| json!({"subject": {"name": subject_of(&namespace, "alice")}, "servers": [{"name": server}]});
                for server in ["a", "b", "c"] {
                    namespace.create::<AgentSession>(json!({"metadata": {"name": server}, "spec": spec(server)})).await;
                }
                let namespaces: Api<Namespace> = Api::all(namespace.client.clone());
                namespaces.delete(&namespace.name, &DeleteParams::default()).await.unwrap();
                eventually("the namespace is gone", Duration::from_mins(2), || async {
                    namespaces.get_opt(&namespace.name).await.unwrap().is_none().then_some(())
                })
                .await;
            })
            .await;
        }
        assert_eq!(api_refusals(&outer).await, refused, "nothing was created in a namespace that was going");
        let log = operator_log(&outer.client, &since).await;
        assert!(log.iter().any(|line| line.contains("\"INFO\"")), "the operator's log is read");
        // That the Event of an end was refused is said, once for each session and as no error.
        let is_bad = |line: &&String| {
            line.contains("\"ERROR\"") || (line.contains("\"WARN\"") && line.contains("being terminated"))
        };
        let bad: Vec<&String> = log.iter().filter(is_bad).collect();
        assert!(bad.is_empty(), "{bad:#?}");
    })
    .await;
}

/// Creations that the API server forbade.
async fn api_refusals(namespace: &TestNamespace) -> f64 {
    berth_e2e::forbidden_creates(&namespace.client, &["pods", "secrets", "networkpolicies"]).await
}
