//! Each part of Berth killed, and the API server away, under sessions that live: they serve on, and nothing ends them.

use berth_api::AgentSession;
use berth_e2e::{
    McpClient, POOL, Probe, Process, TestNamespace, eventually, figure, in_namespace, kill, leader,
    leader_after, mcp_server, rounds, scale, session, system_namespace, used_session, with_replicas,
};
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use serde_json::json;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

const BOUND: Duration = Duration::from_mins(1);

async fn client(namespace: &TestNamespace, session: &str, token: &str) -> McpClient {
    let mut client = McpClient::new(&namespace.name, session, "probe", token);
    client.initialize().await;
    client
}

/// Calls until a call goes through. Connections may break, since a killed process held some; whatever is answered is right.
async fn served(client: &McpClient) {
    eventually("the session is served", BOUND, || async {
        let answer = client.try_call("echo", json!({"message": "on"})).await.ok()?;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.answer_to(&json!(1))["result"]["content"][0]["text"], "on", "{answer:?}");
        Some(())
    })
    .await;
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
        served(&client).await;
        leader_after(&namespace.client, &identity).await;
        served(&client).await;

        kill(&gateways(&namespace).await[0], "berth-gateway");
        served(&client).await;
        assert_eq!(probe.books().await.total("initialize"), 1, "the upstream noticed nothing of all that");

        let sidecar = namespace.api::<Pod>().list(&ListParams::default().labels(POOL)).await.unwrap();
        kill(&sidecar.items[0], "berth-sidecar");
        // A call that met the dying process gets 502, one that finds no process yet 503. Then the same client goes on: its view is in its
        // sealed session id, and the first result says that what the old session held upstream is gone.
        let told = eventually("a call is answered", BOUND, || async {
            let answer = client.try_call("echo", json!({"message": "x"})).await.ok()?;
            (!answer.status.is_server_error()).then_some(answer)
        })
        .await;
        assert_eq!(told.status, 200, "{told:?}");
        let mark = &told.answer_to(&json!(1))["result"]["_meta"]["berth.dev/reinitialized"];
        assert_eq!(mark, &json!(true), "{told:?}");
        served(&client).await;

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

        eventually("an operator leads again", BOUND, || async {
            let (_, pod) = leader(&namespace.client).await;
            Process::find(&pod, "berth-operator")
        })
        .await;
        // The next session is placed, so that everything that was seen late has been acted on.
        let next = session(&namespace, "next", "alice", &["probe"]).await;
        served(&client).await;
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
            stream::iter(&clients).for_each_concurrent(8, served).await;
            kill(&gateways(&namespace).await[0], "berth-gateway");
            stream::iter(&clients).for_each_concurrent(8, served).await;
            scale(&namespace.client, "berth-gateway", 4).await;
            stream::iter(&clients).for_each_concurrent(8, served).await;
            clients
        });
        let clients = Box::pin(clients).await;
        stream::iter(&clients).for_each_concurrent(8, served).await;
        assert_eq!(probe.books().await.total("initialize"), u64::from(many));
        figure("sessions served by any of three gateways, one killed, one added", many);
    })
    .await;
}
