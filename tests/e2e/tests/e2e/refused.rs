//! Upstreams that refuse or are down: how often they are asked, by however many sessions, and what callers learn.

use berth_api::{AgentSession, BindingStatus, McpServer};
use berth_e2e::{
    Books, McpClient, Probe, TestNamespace, eventually, figure, in_namespace, mcp_server, nothing_is_open,
    rounds, session, wait_for_baseline,
};
use futures::future::join_all;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use std::time::{Duration, SystemTime};

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

/// A change that has nothing to do with access: people change the spec to say that they have mended something elsewhere.
async fn change_spec(namespace: &TestNamespace) {
    let changed = Patch::Merge(json!({"spec": {"timeouts": {"request": "4m"}}}));
    namespace.api::<McpServer>().patch("strict", &PatchParams::default(), &changed).await.unwrap();
}

/// What the status of a session says of its first server.
async fn first_server(namespace: &TestNamespace, session: &str) -> BindingStatus {
    let session = namespace.api::<AgentSession>().get(session).await.unwrap();
    session
        .status
        .and_then(|status| status.servers.into_iter().next())
        .expect("a session that is Ready has one")
}

/// Waits until the status of each session gives this reason for its first server, and a text with `part` in it.
async fn told_by_all(namespace: &TestNamespace, names: &[String], reason: Option<&str>, part: &str) {
    eventually(&format!("the status of each session says {reason:?}, {part}"), BOUND, || async {
        let all = join_all(names.iter().map(|name| first_server(namespace, name))).await;
        let says = |server: &BindingStatus| {
            let text = server.last_error.as_deref().unwrap_or_default();
            server.reason.as_deref() == reason && text.contains(part)
        };
        all.iter().all(says).then_some(())
    })
    .await;
}

/// Ends the sessions: neither Berth nor the upstream has anything open then.
async fn nothing_is_left(namespace: &TestNamespace, probe: &Probe, names: &[String]) {
    let api = namespace.api::<AgentSession>();
    let ends = names.iter().map(async |name| namespace.end(&api.get(name).await.unwrap(), BOUND).await);
    join_all(ends).await;
    wait_for_baseline(namespace, 0).await;
    let is_left = |books: &Books| books.0["connections"]["mcpOpen"] == 0;
    probe.until("no connection to the upstream is open", BOUND, is_left).await;
}

/// CASES.md 10 and 14.
#[tokio::test]
async fn a_credential_that_is_refused_is_not_tried_again_until_it_or_the_spec_changes() {
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
        let challenge = json!({"www-authenticate": "Bearer resource_metadata=\"http://127.0.0.1:9/x\""});
        let none = json!({});
        for (number, (status, headers)) in (1..).zip([(401, &challenge), (401, &none), (403, &challenge)]) {
            probe.set_faults(&json!({"initialize": {"status": status, "headers": headers, "path": "/mcp/strict"}})).await;
            if number > 1 {
                match number {
                    2 => change_spec(&namespace).await,
                    _ => change_credential(&namespace, &format!("credential {number}")).await,
                }
                eventually("each session tries again", BOUND, || async {
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
            told_by_all(&namespace, &names, Some("Unauthorized"), &status.to_string()).await;
        }
        nothing_is_open(&namespace, 2 * names.len()).await;
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
        assert_eq!(tried().await, expected(4));
        told_by_all(&namespace, &names, None, "").await;
        figure("attempts of each session with a refused credential, however many calls", 1);
        nothing_is_left(&namespace, &probe, &names).await;
    })
    .await;
}

/// Milliseconds between two requests.
fn pause_between(before: &Value, later: &Value) -> u64 {
    later["atMs"].as_u64().unwrap() - before["atMs"].as_u64().unwrap()
}

fn unix_millis() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}

/// CASES.md 10.
#[tokio::test]
async fn an_upstream_that_asks_to_wait_is_left_alone_for_so_long() {
    in_namespace("limited", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        mcp_server(&namespace, "probe", &probe.url(), json!({})).await;
        let token = namespace.token("alice").await;
        let seconds = json!({"retry-after": "30"});
        for (prefix, fault, least, most) in [
            ("seconds", json!({"status": 429, "headers": seconds, "times": 1}), 30_000, 30_000),
            // A date has whole seconds.
            ("date", json!({"status": 429, "retryAfterDate": 4, "times": 1}), 3_000, 4_000),
            ("rubbish", json!({"status": 429, "headers": {"retry-after": "soon"}, "times": 1}), 250, 500),
        ] {
            let names = sessions(&namespace, prefix, 3, &["probe"]).await;
            let asked = probe.books().await.requests("initialize").len();
            probe.set_faults(&json!({"initialize": fault})).await;
            let begun = unix_millis();
            let answers = first_calls(&namespace, &names[..1], "probe", &token).await;
            assert_eq!(answers[0]["error"]["data"]["reason"], "RateLimited", "{answers:?}");
            // A pause is shown while ten seconds of it are left: the report and the write have twenty.
            if least > 10_000 {
                let next = eventually("the status says when it is tried again", BOUND, || async {
                    first_server(&namespace, &names[0]).await.next_retry_time
                })
                .await;
                let wait = next.0.as_millisecond() - begun;
                assert!((29_000..35_000).contains(&wait), "{wait} ms from the first request");
                told_by_all(&namespace, &names[..1], Some("RateLimited"), "429").await;
            }
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
            told_by_all(&namespace, &names, None, "").await;
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
