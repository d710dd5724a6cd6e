//! Sessions that connect, call, break, recover and end, again and again: at the end there is as much as at the start.

use berth_api::AgentSession;
use berth_e2e::{
    Dice, McpClient, POOL, Probe, TestNamespace, eventually, figure, in_namespace, mcp_server, pod_metrics,
    rounds, session, tool_call_with, wait_for_baseline,
};
use futures::{StreamExt, stream};
use kube::ResourceExt;
use serde_json::json;
use std::time::{Duration, Instant};

const BOUND: Duration = Duration::from_mins(2);
/// Sessions that are made at once: more would measure the API server.
const MADE_AT_ONCE: usize = 32;

/// The life of a session that was just made, with one thing that goes wrong.
async fn one_life(namespace: &TestNamespace, probe: &Probe, made: AgentSession, token: &str, mut dice: Dice) {
    let name = made.name_any();
    let name = name.as_str();
    let mut clients = Vec::new();
    for _ in 0..2 {
        let mut client = McpClient::new(&namespace.name, name, "probe", token);
        client.initialize().await;
        clients.push(client);
    }
    let stream = clients[0].listen().await;
    assert_eq!(clients[0].call("echo", json!({"message": name})).await, name);
    let fault = match dice.below(6) {
        0 => Some(json!({"close": true})),
        1 => Some(json!({"close": true, "after": true})),
        2 => Some(json!({"answer": {"sse": true, "breakAfterEvents": 0}})),
        3 => Some(json!({"answer": {"sse": true, "endAfterEvents": 0}})),
        4 => Some(json!({"answer": {"stall": true, "breakAfterMs": 50}})),
        _ => None,
    };
    if let Some(fault) = fault {
        let call =
            tool_call_with(&json!(2), "echo", json!({"message": "x"}), json!({"probe.test/fault": fault}));
        let answer = clients[1].begin(&call).await.messages().await.pop().expect("an answer");
        assert!(answer["error"].is_object(), "{fault}: {answer}");
    } else {
        let told = clients[1].call_as(&json!(2), "whoami", json!({})).await;
        let lost = json!({"session": told["result"]["structuredContent"]["sessionId"]});
        assert_eq!(probe.tell("sessions/lose", &lost).await["lost"], 1);
    }
    for client in &clients {
        assert_eq!(client.call("echo", json!({"message": "again"})).await, "again");
    }
    // Some clients say that they go, and some just go.
    if dice.below(2) == 0 {
        assert_eq!(clients[0].delete().await.status, 204);
    }
    drop(stream);
    namespace.end(&made, BOUND).await;
}

/// Must show 8 of the step.
#[tokio::test]
async fn lives_with_trouble_in_them_leave_nothing_behind() {
    in_namespace("churn", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        let at_once = rounds(10, 200);
        // The next ones begin while caches still show those before.
        let most = at_once * 9 / 4;
        let pool = json!({"pool": {"warm": most, "sessionsPerPod": most, "maxPods": 1}});
        mcp_server(&namespace, "probe", &probe.url(), pool).await;
        let span = Duration::from_secs(u64::from(rounds(15, 600)));
        // One for all: gateways remember each token that they have seen for a while.
        let token = namespace.token("alice").await;
        let lives = async |round: u32, number: u32| {
            let names: Vec<String> = (0..number).map(|n| format!("s{round}-{n}")).collect();
            let made = stream::iter(&names).map(|name| session(&namespace, name, "alice", &["probe"]));
            let made: Vec<AgentSession> = made.buffered(MADE_AT_ONCE).collect().await;
            let dice = |n| Dice::new(round * 1_000 + n);
            stream::iter(made.into_iter().zip(0..))
                .for_each_concurrent(at_once as usize, |(made, n)| {
                    one_life(&namespace, &probe, made, &token, dice(n))
                })
                .await;
        };
        // A sidecar remembers so many ended sessions: until there are as many, it grows. A short run only warms caches. Tables grow
        // by doubling and keep their size: first of all they have to be as large as they can become.
        let first = rounds(3, 6);
        for round in 0..first {
            lives(round, if round == 0 { most } else { at_once }).await;
        }
        wait_for_baseline(&namespace, 0).await;
        let idle = namespace.idle().await;

        let (begun, mut round, mut half) = (Instant::now(), first, None);
        while begun.elapsed() < span {
            lives(round, at_once).await;
            round += 1;
            if half.is_none() && begun.elapsed() > span / 2 {
                half = Some(idle.now().await);
            }
        }
        let half = half.expect("half of the time is over");
        for ((what, then), (_, now)) in half.into_iter().zip(idle.now().await) {
            let risen = now.resident_kib.saturating_sub(then.resident_kib);
            figure(&format!("memory of the {what} at the end above half-time, KiB"), risen);
            // In a short run what is left is what the allocator has not given back yet.
            assert!(rounds(1, 0) == 1 || risen < 1024, "{what}: {risen} KiB");
        }
        let lives = (round - first) * at_once;
        figure("lives with trouble in them", lives);
        wait_for_baseline(&namespace, 0).await;
        eventually("no stream and no request is left in the sidecar", BOUND, || async {
            let metrics = pod_metrics(&namespace.client, &namespace.name, POOL).await;
            let quiet = ["client_streams", "upstream_streams", "requests_in_flight"];
            quiet.iter().all(|gauge| metrics.sum(&format!("berth_sidecar_{gauge}")) == 0.0).then_some(())
        })
        .await;
        // In a short run sidecars and gateways still have room for what they remember: far less for each life than a connection,
        // a task or a scope that was left would hold.
        idle.is_back(f64::from(rounds(lives * 512, 0))).await;
        let books = probe.books().await;
        let living = books.sessions().iter().filter(|session| session["ended"].is_null()).count();
        assert_eq!(living, 0, "the upstream was told of each end");
    })
    .await;
}
