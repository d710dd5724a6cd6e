//! Ends that something gets in the way of: nothing is left behind, and no Event claims more than is known.

use berth_api::AgentSession;
use berth_e2e::{
    POOL, Probe, TestNamespace, eventually, in_namespace, kill, mcp_server, pod_metrics, subject_of,
    used_session, without_operator,
};
use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams};
use serde_json::json;
use std::time::Duration;

const BOUND: Duration = Duration::from_mins(1);

async fn slots_are_free(namespace: &TestNamespace) {
    eventually("no sidecar holds a session", BOUND, || async {
        let metrics = pod_metrics(&namespace.client, &namespace.name, POOL).await;
        (metrics.has("berth_sidecar_sessions") && metrics.sum("berth_sidecar_sessions") == 0.0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn sessions_deleted_while_the_operator_is_away_for_longer_than_their_bound_are_closed_when_it_is_back()
{
    in_namespace("away", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        mcp_server(&namespace, "probe", &probe.url(), json!({"timeouts": {"drain": "0s", "close": "1s"}}))
            .await;
        let token = namespace.token("alice").await;
        let mut sessions = Vec::new();
        for name in ["a", "b", "c"] {
            sessions.push(used_session(&namespace, name, &token).await);
        }
        without_operator(&namespace.client, async {
            for session in &sessions {
                namespace
                    .api::<AgentSession>()
                    .delete(&session.name_any(), &DeleteParams::default())
                    .await
                    .unwrap();
            }
            // The bound, 0 s + 1 s + 10 s, is what has to pass; nothing else tells of it.
            tokio::time::sleep(Duration::from_secs(12)).await;
        })
        .await;
        for session in &sessions {
            namespace.gone(session, BOUND).await;
            let events = namespace.events_about(&session.uid().unwrap()).await;
            assert_eq!(events.iter().map(|e| e.1.as_str()).collect::<Vec<_>>(), ["Cleared"], "{events:?}");
        }
        assert_eq!(probe.books().await.total("delete"), 3);
        slots_are_free(&namespace).await;
    })
    .await;
}

#[tokio::test]
async fn sessions_deleted_as_soon_as_they_are_made_leave_no_slot_taken() {
    in_namespace("brief", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        mcp_server(&namespace, "probe", &probe.url(), json!({})).await;
        let subject = subject_of(&namespace, "alice");
        let brief = (0..40).map(|n| {
            let (namespace, subject) = (&namespace, &subject);
            async move {
                let name = format!("s{n}");
                let spec = json!({"subject": {"name": subject}, "servers": [{"name": "probe"}]});
                let made = json!({"metadata": {"name": name}, "spec": spec});
                let made = namespace.create::<AgentSession>(made).await;
                namespace.api::<AgentSession>().delete(&name, &DeleteParams::default()).await.unwrap();
                made
            }
        });
        for made in join_all(brief).await {
            namespace.gone(&made, BOUND).await;
        }
        slots_are_free(&namespace).await;
        assert_eq!(probe.books().await.total("initialize"), 0);
    })
    .await;
}

#[tokio::test]
async fn a_killed_sidecar_costs_no_session_and_its_loss_is_told_at_the_end() {
    in_namespace("killed", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        mcp_server(&namespace, "probe", &probe.url(), json!({})).await;
        let token = namespace.token("alice").await;
        let made = used_session(&namespace, "s", &token).await;
        let pods = namespace.api::<Pod>().list(&ListParams::default().labels(POOL)).await.unwrap();
        kill(&pods.items[0], "berth-sidecar");

        // The same name and URL serve on, over a new upstream session.
        let url = format!("{}/{}/s/probe/mcp", berth_e2e::gateway_url(), namespace.name);
        let bearer = format!("Bearer {token}");
        let initialize = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "e2e", "version": "1"},
        }});
        eventually("the session is served again", BOUND, || async {
            let answer = berth_e2e::post(&url, &[("authorization", &bearer)], &initialize).await;
            (answer.status == 200 && answer.headers.contains_key("mcp-session-id")).then_some(())
        })
        .await;
        assert_eq!(probe.books().await.total("initialize"), 2);
        assert_eq!(namespace.api::<AgentSession>().get("s").await.unwrap().uid(), made.uid());

        namespace.end(&made, BOUND).await;
        let events = namespace.events_about(&made.uid().unwrap()).await;
        assert_eq!(events.iter().map(|e| e.1.as_str()).collect::<Vec<_>>(), ["CleanupIncomplete"], "{events:?}");
        slots_are_free(&namespace).await;
    })
    .await;
}

#[tokio::test]
async fn a_url_that_no_sidecar_can_use_is_told_and_not_ready() {
    in_namespace("url", |namespace| async move {
        // Of the right form, but there is no such port.
        let transport = json!({"type": "Http", "http": {"url": "http://probe.test:70000/mcp"}});
        let server = json!({"metadata": {"name": "probe"}, "spec": {"transport": transport}});
        namespace.create::<berth_api::McpServer>(server).await;
        let spec =
            json!({"subject": {"name": subject_of(&namespace, "alice")}, "servers": [{"name": "probe"}]});
        namespace.create::<AgentSession>(json!({"metadata": {"name": "s"}, "spec": spec})).await;
        eventually("the session says InvalidSpec", BOUND, || async {
            let printed =
                berth_e2e::kubectl(&["get", "bses", "-n", &namespace.name, "--no-headers"], "").await;
            let row: Vec<&str> = printed.out.split_whitespace().collect();
            (row.contains(&"False") && row.contains(&"InvalidSpec")).then_some(())
        })
        .await;
    })
    .await;
}
