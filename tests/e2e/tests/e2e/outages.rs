//! Each part of Berth killed, and the API server away, under sessions that live: they serve on, and nothing ends them.

use berth_api::AgentSession;
use berth_e2e::{
    Answer, McpClient, Metrics, POOL, Probe, Process, TestNamespace, eventually, figure, in_namespace,
    is_ready, kill, leader, leader_after, mcp_server, rounds, scale, session, system_namespace, tool_call,
    used_session, with_replicas,
};
use futures::future::join_all;
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::ResourceExt;
use kube::api::{Api, ListParams, PostParams};
use serde_json::json;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

const BOUND: Duration = Duration::from_mins(1);
/// How long a Service may lead to a pod whose process was killed: the kubelet sees it within seconds, and then the node's rules change.
const UNROUTED: Duration = Duration::from_secs(15);

async fn client(namespace: &TestNamespace, session: &str, token: &str) -> McpClient {
    let mut client = McpClient::new(&namespace.name, session, "probe", token);
    client.initialize().await;
    client
}

/// The call that is made now is served.
async fn serves(client: &McpClient) {
    assert_eq!(client.call("echo", json!({"message": "on"})).await, "on");
}

/// A call is served after a gateway was killed. Until the node's rules lead to it no more, connections that are made to it are refused
/// or break, which no other replica can help: that alone is tolerated, and the call made anew on another connection. Whatever is
/// answered is right.
async fn served_by_another(client: &McpClient) {
    eventually("connections lead to the gateways that live", UNROUTED, || async {
        let answer = client.try_call("echo", json!({"message": "on"})).await.ok()?;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.answer_to(&json!(1))["result"]["content"][0]["text"], "on", "{answer:?}");
        Some(())
    })
    .await;
}

/// The first answer of the upstream after the sidecar was killed. Before that each of the `gateways` may, as it has connections
/// of its own, send one call to the dying process (502, as whether it was carried out is unknown), and after it some wait for the next
/// one in vain (503 with Retry-After): no 404, no broken connection.
async fn answered_after_loss(client: &McpClient, gateways: usize) -> Answer {
    let (mut lost, mut waited) = (0, false);
    let begun = Instant::now();
    loop {
        let answer = client.send(&tool_call(&json!(1), "echo", json!({"message": "x"}))).await;
        let retry = answer.headers.contains_key("retry-after");
        match answer.status.as_u16() {
            200 => {
                let seen = format!("{lost} and {waited}, {:?}", begun.elapsed());
                figure("a sidecar killed: calls lost, one waited in vain, time until an answer", seen);
                return answer;
            }
            502 if lost < gateways && !waited => {
                assert_eq!(answer.answer_to(&json!(1))["error"]["code"], -32051, "{answer:?}");
                lost += 1;
            }
            503 if retry => waited = true,
            _ => panic!("{answer:?}, after calls that were lost: {lost}, one that waited: {waited}"),
        }
        assert!(begun.elapsed() < BOUND, "{answer:?}");
    }
}

async fn pool(namespace: &TestNamespace) -> BTreeSet<String> {
    let pods = namespace.api::<Pod>().list(&ListParams::default().labels(POOL)).await.unwrap();
    pods.iter().filter_map(ResourceExt::uid).collect()
}

async fn gateways(namespace: &TestNamespace) -> Vec<Pod> {
    let pods: Api<Pod> = Api::namespaced(namespace.client.clone(), &system_namespace());
    let of_gateway = ListParams::default().labels("app.kubernetes.io/component=gateway");
    pods.list(&of_gateway).await.unwrap().items
}

/// Waits until each gateway has served a call of the client's, and so knows its token. Each call is a new connection, which goes to
/// any of them.
async fn known_to_each_gateway(namespace: &TestNamespace, client: &McpClient) {
    let served = async || {
        let pods = gateways(namespace).await;
        let metrics = join_all(pods.iter().map(|pod| Metrics::of_pod(&namespace.client, pod))).await;
        let each = metrics.into_iter().map(|metrics| Some(metrics?.sum("berth_gateway_requests_total")));
        each.collect::<Option<Vec<f64>>>()
    };
    let before = eventually("each gateway shows its metrics", BOUND, served).await;
    eventually("each gateway has served the client", BOUND, || async {
        serves(client).await;
        let now = served().await?;
        let have = before.iter().zip(&now).filter(|(before, now)| now > before).count();
        (have == before.len()).then_some(())
    })
    .await;
}

/// Waits until an API server that was away takes writes again: what has piled up meanwhile it may refuse at first.
async fn writes_are_taken(namespace: &TestNamespace) {
    let object = serde_json::from_value(json!({"metadata": {"generateName": "taken-"}})).unwrap();
    let tried = PostParams { dry_run: true, ..PostParams::default() };
    eventually("the API server takes writes", BOUND, || async {
        namespace.api::<ConfigMap>().create(&tried, &object).await.ok()
    })
    .await;
}

fn restarts(pod: &Pod) -> i32 {
    let containers = pod.status.as_ref().and_then(|status| status.container_statuses.as_deref());
    containers.unwrap_or_default().iter().map(|container| container.restart_count).sum()
}

/// Waits until a gateway that was killed serves again, so that no connection is led to one that does not.
async fn is_back(namespace: &TestNamespace, killed: &Pod) {
    eventually("the gateway has another process", BOUND, || async {
        let pods = gateways(namespace).await;
        let pod = pods.iter().find(|pod| pod.uid() == killed.uid()).expect("its pod stays");
        (restarts(pod) > restarts(killed) && is_ready(pod)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_operator_a_gateway_and_a_sidecar_killed_in_turn_cost_a_live_session_nothing() {
    in_namespace("inturn", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        mcp_server(&namespace, "probe", &probe.url(), json!({})).await;
        let token = namespace.token("alice").await;
        let made = used_session(&namespace, "s", &token).await;
        let (client, pods) = (client(&namespace, "s", &token).await, pool(&namespace).await);

        let (identity, pod) = leader(&namespace.client).await;
        kill(&pod, "berth-operator");
        // No call passes through an operator.
        serves(&client).await;
        leader_after(&namespace.client, &identity).await;
        serves(&client).await;

        let killed = gateways(&namespace).await.swap_remove(0);
        kill(&killed, "berth-gateway");
        served_by_another(&client).await;
        is_back(&namespace, &killed).await;
        assert_eq!(probe.books().await.total("initialize"), 1, "the upstream noticed nothing of all that");

        let sidecar = namespace.api::<Pod>().list(&ListParams::default().labels(POOL)).await.unwrap();
        kill(&sidecar.items[0], "berth-sidecar");
        // The same client goes on: its view is in its sealed session id, and the first result says that what the old session held
        // upstream is gone.
        let told = answered_after_loss(&client, gateways(&namespace).await.len()).await;
        let mark = &told.answer_to(&json!(1))["result"]["_meta"]["berth.dev/reinitialized"];
        assert_eq!(mark, &json!(true), "{told:?}");
        serves(&client).await;

        assert_eq!(namespace.api::<AgentSession>().get("s").await.unwrap().uid(), made.uid());
        assert_eq!(
            (
                namespace.api::<AgentSession>().list(&ListParams::default()).await.unwrap().items.len(),
                pool(&namespace).await
            ),
            (1, pods)
        );
        assert_eq!(probe.books().await.total("initialize"), 2);
    })
    .await;
}

#[tokio::test]
async fn while_the_api_server_is_away_calls_go_on_and_nothing_ends() {
    in_namespace("apiaway", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        mcp_server(&namespace, "probe", &probe.url(), json!({})).await;
        let token = namespace.token("alice").await;
        let made = used_session(&namespace, "s", &token).await;
        let (client, pods) = (client(&namespace, "s", &token).await, pool(&namespace).await);
        known_to_each_gateway(&namespace, &client).await;
        let before = probe.books().await;
        // What the gateways know of the token then runs out while nobody can be asked.
        tokio::time::sleep(Duration::from_secs(35)).await;

        let away = Process::of_cluster("kube-apiserver").stop();
        let (since, mut calls) = (Instant::now(), 0_u64);
        while since.elapsed() < Duration::from_secs(30) {
            assert_eq!(
                client.call("echo", json!({"message": "on"})).await,
                "on",
                "after {:?}",
                since.elapsed()
            );
            calls += 1;
        }
        drop(away);

        writes_are_taken(&namespace).await;
        eventually("an operator leads again", BOUND, || async {
            let (_, pod) = leader(&namespace.client).await;
            Process::find(&pod, "berth-operator")
        })
        .await;
        // The next session is placed, so that everything that was seen late has been acted on.
        let next = session(&namespace, "next", "alice", &["probe"]).await;
        serves(&client).await;
        let after = probe.books().await;
        assert_eq!(after.total("toolsCall") - before.total("toolsCall"), calls + 1);
        assert_eq!(
            (after.total("delete"), after.total("initialize")),
            (0, before.total("initialize")),
            "{after:?}"
        );
        assert_eq!(namespace.api::<AgentSession>().get("s").await.unwrap().uid(), made.uid());
        assert_eq!(pool(&namespace).await, pods);
        namespace.end(&next, BOUND).await;
        namespace.end(&made, BOUND).await;
        let events = namespace.events_about(&made.uid().unwrap()).await;
        assert_eq!(events.iter().map(|e| e.1.as_str()).collect::<Vec<_>>(), ["Cleared"], "{events:?}");
    })
    .await;
}

/// CASES.md 35.
#[tokio::test]
async fn any_of_three_gateways_serves_any_session_one_killed_and_a_fourth_added_on_the_way() {
    in_namespace("replicas", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        mcp_server(&namespace, "probe", &probe.url(), json!({})).await;
        let token = namespace.token("alice").await;
        let many = rounds(20, 100);
        let of = (&namespace, token.as_str());
        let clients = stream::iter(0..many).map(|n| async move {
            let name = format!("s{n}");
            session(of.0, &name, "alice", &["probe"]).await;
            client(of.0, &name, of.1).await
        });
        let clients = with_replicas(&namespace.client, "berth-gateway", 3, async {
            let clients: Vec<McpClient> = clients.buffered(8).collect().await;
            // A new connection for each request: any replica gets any of them.
            stream::iter(&clients).for_each_concurrent(8, serves).await;
            let killed = gateways(&namespace).await.swap_remove(0);
            kill(&killed, "berth-gateway");
            stream::iter(&clients).for_each_concurrent(8, served_by_another).await;
            is_back(&namespace, &killed).await;
            scale(&namespace.client, "berth-gateway", 4).await;
            stream::iter(&clients).for_each_concurrent(8, serves).await;
            clients
        });
        let clients = Box::pin(clients).await;
        stream::iter(&clients).for_each_concurrent(8, serves).await;
        assert_eq!(probe.books().await.total("initialize"), u64::from(many));
        figure("sessions served by any of three gateways, one killed, one added", many);
    })
    .await;
}
