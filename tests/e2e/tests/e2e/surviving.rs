//! Ends that something gets in the way of: nothing is left behind, and no Event claims more than is known.

use berth_api::{AgentSession, BindingState, McpServer};
use berth_e2e::{
    POOL, Probe, TestNamespace, eventually, in_namespace, kill, kubectl, leader, leader_after, mcp_server,
    pod_metrics, subject_of, used_session, without_operator,
};
use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};
use std::time::Duration;

const BOUND: Duration = Duration::from_mins(1);
/// A pod was lost, its operator perhaps too: a new leader is there after a term, a new pod soon after that.
const LOSS_BOUND: Duration = Duration::from_mins(2);

async fn slots_are_free(namespace: &TestNamespace) {
    eventually("no sidecar holds a session", BOUND, || async {
        let metrics = pod_metrics(&namespace.client, &namespace.name, POOL).await;
        (metrics.has("berth_sidecar_sessions") && metrics.sum("berth_sidecar_sessions") == 0.0).then_some(())
    })
    .await;
}

/// Kinds of the objects that name that owner, of those that an operator makes.
async fn kinds_owned_by(namespace: &TestNamespace, uid: &str) -> Vec<String> {
    let kinds = "networkpolicies,pods,secrets";
    let printed = kubectl(&["get", kinds, "-n", &namespace.name, "-o", "json"], "").await;
    assert!(printed.ok, "{printed:?}");
    let found: Value = serde_json::from_str(&printed.out).expect("kubectl prints JSON");
    let owned = |object: &&Value| {
        let owners = object["metadata"]["ownerReferences"].as_array();
        owners.is_some_and(|owners| owners.iter().any(|owner| owner["uid"] == uid))
    };
    let items = found["items"].as_array().expect("a list has items");
    items.iter().filter(owned).map(|object| object["kind"].as_str().unwrap().to_owned()).collect()
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
        let short = json!({"timeouts": {"drain": "0s", "close": "1s"}});
        let other = mcp_server(&namespace, "other", &probe.url(), short).await.uid().unwrap();
        assert_eq!(kinds_owned_by(&namespace, &other).await, ["NetworkPolicy", "Pod", "Secret"]);
        without_operator(&namespace.client, async {
            for session in &sessions {
                namespace
                    .api::<AgentSession>()
                    .delete(&session.name_any(), &DeleteParams::default())
                    .await
                    .unwrap();
            }
            // What a server has goes by owner references; sessions alone wait for an operator (CASES.md 30).
            namespace.api::<McpServer>().delete("other", &DeleteParams::default()).await.unwrap();
            let gone = eventually("a server that is deleted takes its pods along", BOUND, || async {
                kinds_owned_by(&namespace, &other).await.is_empty().then_some(())
            });
            // The bound, 0 s + 1 s + 10 s, is what has to pass; nothing else tells of it.
            futures::join!(gone, tokio::time::sleep(Duration::from_secs(12)));
            let names = namespace.api::<AgentSession>().list(&ListParams::default()).await.unwrap();
            assert_eq!(names.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["a", "b", "c"]);
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
        // Of the right form, but no name is so long.
        let url = format!("http://{}.test/mcp", vec!["p".repeat(60); 5].join("."));
        let transport = json!({"type": "Http", "http": {"url": url}});
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

/// How a pod goes that holds a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    /// Its sidecar is killed, then it is deleted by force.
    Killed,
    /// It is deleted by force while the upstream does not answer the DELETE.
    Hanging,
    /// It is deleted, and its sidecar ends what it has.
    Graceful,
}

/// What status says of the session `name`: the UID of the pod that holds its slot, and those that are not confirmed.
async fn placed(namespace: &TestNamespace, name: &str) -> (Option<String>, Vec<String>) {
    let status = namespace.api::<AgentSession>().get(name).await.unwrap().status.unwrap_or_default();
    let held = status.servers.into_iter().find(|entry| entry.state == BindingState::Bound);
    let held = held.and_then(|entry| entry.pod_ref).map(|pod| pod.uid);
    (held, status.unconfirmed.into_iter().map(|pod| pod.uid).collect())
}

/// Has the only pool pod of a namespace go so, and the leading operator die meanwhile, if it is to. Says which pod it was.
async fn lose(namespace: &TestNamespace, probe: &Probe, name: &str, loss: Loss, leader_dies: bool) -> String {
    let pods = namespace.api::<Pod>();
    let held = placed(namespace, name).await.0.expect("the session has a slot");
    let all = pods.list(&ListParams::default().labels(POOL)).await.unwrap().items;
    let pod = all.into_iter().find(|pod| pod.uid().as_ref() == Some(&held)).expect("its pod is there");
    let (identity, operator) = leader(&namespace.client).await;
    match loss {
        Loss::Killed => kill(&pod, "berth-sidecar"),
        Loss::Hanging => probe.set_faults(&json!({"delete": {"hang": true}})).await,
        Loss::Graceful => {}
    }
    if loss != Loss::Killed {
        pods.delete(&pod.name_any(), &DeleteParams::default()).await.unwrap();
        let remembered = loss == Loss::Hanging;
        eventually("the session has another slot", LOSS_BOUND, || async {
            let (now, unconfirmed) = placed(namespace, name).await;
            (now.is_some_and(|now| now != held) && unconfirmed.contains(&held) == remembered).then_some(())
        })
        .await;
    }
    if leader_dies {
        kill(&operator, "berth-operator");
    }
    if loss != Loss::Graceful {
        let by_force = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        pods.delete(&pod.name_any(), &by_force).await.unwrap();
    }
    if leader_dies {
        leader_after(&namespace.client, &identity).await;
    }
    pod.name_any()
}

#[tokio::test]
async fn a_lost_pod_is_named_at_the_end_of_its_session_whoever_leads_by_then_and_one_that_went_well_is_not() {
    in_namespace("lost", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        let timeouts = json!({"timeouts": {"drain": "0s", "close": "1m"}});
        mcp_server(&namespace, "probe", &probe.url(), timeouts).await;
        let token = namespace.token("alice").await;
        for (loss, leader_dies) in [
            (Loss::Killed, false),
            (Loss::Killed, true),
            (Loss::Hanging, false),
            (Loss::Hanging, true),
            (Loss::Graceful, false),
            (Loss::Graceful, true),
        ] {
            let name = format!("{loss:?}-{leader_dies}").to_lowercase();
            let made = used_session(&namespace, &name, &token).await;
            let before = placed(&namespace, &name).await.0;
            let pod = lose(&namespace, &probe, &name, loss, leader_dies).await;
            eventually(
                "the session has another slot, and its lost pod is remembered",
                LOSS_BOUND,
                || async {
                    let (now, unconfirmed) = placed(&namespace, &name).await;
                    let remembered = unconfirmed.iter().any(|uid| Some(uid) == before.as_ref());
                    (now.is_some() && now != before && remembered == (loss != Loss::Graceful)).then_some(())
                },
            )
            .await;
            probe.clear_faults().await;
            namespace.end(&made, LOSS_BOUND).await;
            let events = namespace.events_about(&made.uid().unwrap()).await;
            let [(kind, reason, note)] = events.as_slice() else {
                panic!("{name}: one Event, not {events:?}")
            };
            if loss == Loss::Graceful {
                assert_eq!((kind.as_str(), reason.as_str()), ("Normal", "Cleared"), "{name}: {note}");
            } else {
                assert_eq!(
                    (kind.as_str(), reason.as_str()),
                    ("Warning", "CleanupIncomplete"),
                    "{name}: {note}"
                );
                assert!(note.contains(&pod) && note.contains("close"), "{name}: {note}");
            }
        }
        slots_are_free(&namespace).await;
    })
    .await;
}
