//! Upstreams that refuse or are down: how often they are asked, by however many sessions, and what callers learn.

use berth_e2e::{
    McpClient, Probe, TestNamespace, eventually, figure, in_namespace, mcp_server, rounds, session,
};
use futures::future::join_all;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use std::time::Duration;

const BOUND: Duration = Duration::from_mins(1);

async fn sessions(namespace: &TestNamespace, prefix: &str, count: u32, servers: &[&str]) -> Vec<String> {
    let names: Vec<String> = (0..count).map(|number| format!("{prefix}{number}")).collect();
    join_all(names.iter().map(|name| session(namespace, name, "alice", servers))).await;
    names
}

/// A first call of each session, at the same time.
async fn first_calls(namespace: &TestNamespace, names: &[String], server: &str, token: &str) -> Vec<Value> {
    let calls = names.iter().map(|name| {
        let mut client = McpClient::new(&namespace.name, name, server, token);
        async move { client.try_initialize(&json!({})).await }
    });
    join_all(calls).await
}

async fn change_credential(namespace: &TestNamespace, token: &str) {
    let changed = Patch::Merge(json!({"stringData": {"token": token}}));
    namespace.api::<Secret>().patch("upstream", &PatchParams::default(), &changed).await.unwrap();
}

/// CASES.md 10 and 14.
#[tokio::test]
async fn a_credential_that_is_refused_is_not_tried_again_until_it_changes() {
    in_namespace("refused", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        probe.server_secret("upstream", "first").await;
        let auth = json!({"auth": {"type": "Shared", "shared": {"secretKeyRef": {"name": "upstream", "key": "token"}}}});
        let (url, other) = (probe.url() + "/strict", probe.url());
        futures::join!(
            mcp_server(&namespace, "strict", &url, auth),
            mcp_server(&namespace, "other", &other, json!({}))
        );
        let count = rounds(15, 50);
        let names = sessions(&namespace, "s", count, &["strict", "other"]).await;
        let token = namespace.token("alice").await;
        let tried = || async {
            let asked = probe.books().await.requests("initialize");
            asked.iter().filter(|entry| entry["path"] == "/mcp/strict").count()
        };
        let expected = |credentials: u32| (credentials * count) as usize;
        for (number, status) in (1_u32..).zip([401, 403]) {
            let headers = json!({"www-authenticate": "Bearer resource_metadata=\"http://127.0.0.1:9/x\""});
            probe.set_faults(&json!({"initialize": {"status": status, "headers": headers, "path": "/mcp/strict"}})).await;
            if number > 1 {
                change_credential(&namespace, &format!("credential {number}")).await;
                eventually("each session tries the new credential", BOUND, || async {
                    first_calls(&namespace, &names, "strict", &token).await;
                    (tried().await == expected(number)).then_some(())
                })
                .await;
            }
            for _ in 0..5 {
                for answer in first_calls(&namespace, &names, "strict", &token).await {
                    let error = &answer["error"];
                    assert_eq!((&error["code"], &answer["id"]), (&json!(-32050), &json!(0)), "{answer}");
                    assert_eq!(error["data"], json!({"server": "strict", "reason": "Unauthorized"}), "{answer}");
                }
            }
            assert_eq!(tried().await, expected(number), "{status}: one attempt of each session");
        }
        for answer in first_calls(&namespace, &names, "other", &token).await {
            assert!(answer["result"].is_object(), "the other server of the session serves: {answer}");
        }
        probe.clear_faults().await;
        change_credential(&namespace, "good").await;
        eventually("the changed credential is used", BOUND, || async {
            let answers = first_calls(&namespace, &names, "strict", &token).await;
            answers.iter().all(|answer| answer["result"].is_object()).then_some(())
        })
        .await;
        assert_eq!(tried().await, expected(3));
        figure("attempts of each session with a refused credential, however many calls", 1);
    })
    .await;
}

/// Milliseconds between two requests.
fn pause_between(before: &Value, later: &Value) -> u64 {
    later["atMs"].as_u64().unwrap() - before["atMs"].as_u64().unwrap()
}

/// CASES.md 10.
#[tokio::test]
async fn an_upstream_that_asks_to_wait_is_left_alone_for_so_long() {
    in_namespace("limited", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        mcp_server(&namespace, "probe", &probe.url(), json!({})).await;
        let token = namespace.token("alice").await;
        let second = json!({"retry-after": "3"});
        for (prefix, fault, least, most) in [
            ("seconds", json!({"status": 429, "headers": second, "times": 1}), 3_000, 3_000),
            // A date has whole seconds.
            ("date", json!({"status": 429, "retryAfterDate": 4, "times": 1}), 3_000, 4_000),
            ("rubbish", json!({"status": 429, "headers": {"retry-after": "soon"}, "times": 1}), 250, 500),
        ] {
            let names = sessions(&namespace, prefix, 3, &["probe"]).await;
            let asked = probe.books().await.requests("initialize").len();
            probe.set_faults(&json!({"initialize": fault})).await;
            let answers = first_calls(&namespace, &names[..1], "probe", &token).await;
            assert_eq!(answers[0]["error"]["data"]["reason"], "RateLimited", "{answers:?}");
            eventually("it is asked again", BOUND, || async {
                let answers = first_calls(&namespace, &names, "probe", &token).await;
                for answer in &answers {
                    let data = &answer["error"]["data"];
                    let told = data["reason"] == "RateLimited"
                        && data["retryAfterMillis"].as_u64().is_some_and(|pause| pause <= most);
                    assert!(told || answer["result"].is_object(), "{prefix}: {answer}");
                }
                answers.iter().all(|answer| answer["result"].is_object()).then_some(())
            })
            .await;
            let all = probe.books().await.requests("initialize");
            let [first, next, ..] = &all[asked..] else { panic!("two at least: {all:?}") };
            assert_eq!((&first["status"], &next["status"]), (&json!(429), &json!(200)));
            let pause = pause_between(first, next);
            assert!(pause >= least, "{prefix}: asked again after {pause} ms");
            assert_eq!(all.len() - asked, 4, "{prefix}: one refused, then one of each session");
        }
    })
    .await;
}

/// CASES.md 10.
#[tokio::test]
async fn many_sessions_ask_an_upstream_that_is_down_together_as_often_as_one_would() {
    in_namespace("down", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        // All in one pod: what is shared is shared there.
        mcp_server(&namespace, "probe", &probe.url(), json!({"pool": {"sessionsPerPod": 100}})).await;
        let names = sessions(&namespace, "s", 50, &["probe"]).await;
        let token = namespace.token("alice").await;
        let down = rounds(8_000, 120_000);
        probe.set_faults(&json!({"initialize": {"status": 503, "forMs": down}})).await;
        first_calls(&namespace, &names[..1], "probe", &token).await;
        let (mut calls, mut refused) = (1, 1);
        // The pauses double, so the last one may be as long as all before it.
        let bound = Duration::from_millis(u64::from(down) * 3) + BOUND;
        eventually("all are served", bound, || async {
            let answers = first_calls(&namespace, &names, "probe", &token).await;
            for answer in &answers {
                let well = answer["result"].is_object();
                assert!(well || answer["error"]["data"]["reason"] == "UpstreamUnreachable", "{answer}");
            }
            let well = answers.iter().filter(|answer| answer["result"].is_object()).count();
            (well == names.len()).then_some(())
        })
        .await;
        let asked = probe.books().await.requests("initialize");
        refused += asked.iter().filter(|entry| entry["status"] == 503).count() - 1;
        calls += asked.len();
        // From half a second, at least half of it, doubling: 0.25 + 0.5 + 1 + 2 + 4 + ...
        let most = (f64::from(down) / 250.0 + 1.0).log2().ceil() + 1.0;
        assert!(f64::from(u32::try_from(refused).unwrap()) <= most, "{refused} attempts, {calls} in all");
        assert_eq!(asked.len() - refused, names.len(), "and one of each session when it was well again");
        figure("attempts of 50 sessions while their upstream was down", refused);
    })
    .await;
}
