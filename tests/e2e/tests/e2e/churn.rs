//! Sessions that connect, call, break, recover and end, again and again: at the end there is as much as at the start.

use berth_e2e::{
    Dice, McpClient, POOL, Probe, Process, TestNamespace, eventually, figure, in_namespace, mcp_server,
    rounds, session, sidecars, system_namespace, tool_call_with, wait_for_baseline,
};
use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use serde_json::json;
use std::time::{Duration, Instant};

const BOUND: Duration = Duration::from_mins(2);

/// The life of one session, with one thing that goes wrong.
async fn one_life(namespace: &TestNamespace, probe: &Probe, name: &str, token: &str, mut dice: Dice) {
    let made = session(namespace, name, "alice", &["probe"]).await;
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

/// The processes of Berth that serve: their names, descriptors and memory.
async fn serving(namespace: &TestNamespace) -> Vec<(String, Process)> {
    let mut all: Vec<(String, Process)> =
        sidecars(namespace).await.into_iter().map(|process| ("sidecar".to_owned(), process)).collect();
    let pods: Api<Pod> = Api::namespaced(namespace.client.clone(), &system_namespace());
    for (component, binary) in [("gateway", "berth-gateway"), ("operator", "berth-operator")] {
        let of_it = ListParams::default().labels(&format!("app.kubernetes.io/component={component}"));
        let found = pods.list(&of_it).await.unwrap();
        let processes = found.iter().filter_map(|pod| Process::find(pod, binary));
        all.extend(processes.map(|process| (component.to_owned(), process)));
    }
    all.sort_by(|one, other| one.1.pid().cmp(other.1.pid()));
    all
}

/// Waits until each has no more descriptors than then: connections that are kept for a while are closed.
async fn wait_for_descriptors(before: &[(String, Process, usize)]) {
    eventually("as many descriptors are open as before", BOUND, || async {
        before.iter().all(|(_, process, count)| process.descriptors() <= *count).then_some(())
    })
    .await;
}

/// Must show 8 of the step, as far as it can be seen from outside.
#[tokio::test]
async fn lives_with_trouble_in_them_leave_nothing_behind() {
    in_namespace("churn", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        let pool =
            json!({"pool": {"warm": rounds(10, 200), "sessionsPerPod": rounds(10, 200), "maxPods": 1}});
        mcp_server(&namespace, "probe", &probe.url(), pool).await;
        let token = namespace.token("alice").await;
        let at_once = rounds(10, 200);
        let span = Duration::from_secs(u64::from(rounds(15, 600)));
        // The first lives of a process take what all later ones use.
        let names = |round: u32| (0..at_once).map(move |n| format!("s{round}-{n}"));
        let lives = |round: u32| {
            let (namespace, probe, token) = (&namespace, &probe, token.as_str());
            join_all(names(round).zip(0..).map(move |(name, n)| async move {
                one_life(namespace, probe, &name, token, Dice::new(round * 1_000 + n)).await;
            }))
        };
        lives(0).await;
        wait_for_baseline(&namespace, 0).await;
        let serving_before = serving(&namespace).await;
        // Until what was kept is closed, counts fall.
        tokio::time::sleep(Duration::from_secs(25)).await;
        let before: Vec<(String, Process, usize)> = serving_before
            .into_iter()
            .map(|(name, process)| {
                let count = process.descriptors();
                (name, process, count)
            })
            .collect();

        let (begun, mut round, mut half) = (Instant::now(), 0, None);
        while begun.elapsed() < span {
            round += 1;
            lives(round).await;
            if half.is_none() && begun.elapsed() > span / 2 {
                half = Some(resident(&before));
            }
        }
        wait_for_baseline(&namespace, 0).await;
        wait_for_descriptors(&before).await;
        let metrics = berth_e2e::pod_metrics(&namespace.client, &namespace.name, POOL).await;
        for gauge in ["client_streams", "upstream_streams", "requests_in_flight"] {
            assert_eq!(metrics.sum(&format!("berth_sidecar_{gauge}")), 0.0, "{gauge}");
        }
        let after = serving(&namespace).await;
        assert_eq!(after.len(), before.len());
        assert!(
            before.iter().all(|(name, process, _)| after.contains(&(name.clone(), process.clone()))),
            "none died"
        );
        let books = probe.books().await;
        let living = books.sessions().iter().filter(|session| session["ended"].is_null()).count();
        assert_eq!(living, 0, "the upstream was told of each end");
        figure("lives with trouble in them", round * at_once);
        let half = half.expect("half of the time is over");
        let risen = half.into_iter().zip(resident(&before)).map(|(then, now)| now.saturating_sub(then));
        for ((name, ..), risen) in before.iter().zip(risen) {
            figure(&format!("memory of the {name} at the end above half-time, KiB"), risen);
            // In a short run what is left is what the allocator keeps.
            assert!(rounds(1, 0) == 1 || name != "sidecar" || risen < 1024, "{name}: {risen} KiB");
        }
    })
    .await;
}

fn resident(processes: &[(String, Process, usize)]) -> Vec<u64> {
    processes.iter().map(|(_, process, _)| process.resident_kib()).collect()
}
