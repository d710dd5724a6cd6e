//! Upstreams that forget a session, as one does that was restarted: it is opened again once, behind the client's back, and the
//! client is told by a mark.

use berth_api::AgentSession;
use berth_e2e::{
    Books, McpClient, Probe, TestNamespace, ends_and_leaves_nothing, eventually, in_namespace, mcp_server,
    session, tool_call,
};
use futures::future::join_all;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const BOUND: Duration = Duration::from_mins(1);
const MARK: &str = "berth.dev/reinitialized";

async fn client(namespace: &TestNamespace, server: &str, token: &str) -> McpClient {
    let mut client = McpClient::new(&namespace.name, "s", server, token);
    client.initialize().await;
    client
}

/// Twenty calls of one client at the same time, more than run at once; gives how many results are marked.
async fn marked_of_twenty(client: &McpClient) -> usize {
    let calls = (0..20).map(|number| async move {
        let text = format!("call {number}");
        let answer = client.call_as(&json!(number), "echo", json!({"message": text})).await;
        assert_eq!(answer["result"]["content"][0]["text"], text, "{answer}");
        answer["result"]["_meta"][MARK] == true
    });
    join_all(calls).await.into_iter().filter(|marked| *marked).count()
}

/// CASES.md 6.
#[tokio::test]
async fn a_forgotten_session_is_opened_anew_once_for_all_who_wait_whatever_the_upstream_says() {
    in_namespace("forgotten", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        mcp_server(&namespace, "probe", &probe.url(), json!({})).await;
        session(&namespace, "s", "alice", &["probe"]).await;
        let token = namespace.token("alice").await;
        let (one, other) =
            (client(&namespace, "probe", &token).await, client(&namespace, "probe", &token).await);
        assert_eq!(futures::join!(marked_of_twenty(&one), marked_of_twenty(&other)), (0, 0));
        for (round, answer) in (2..).zip(["notFound", "badRequest", "event"]) {
            let lost = probe.tell("sessions/lose", &json!({"answer": answer})).await;
            assert_eq!(lost["lost"], 1, "{answer}");
            let marked = futures::join!(marked_of_twenty(&one), marked_of_twenty(&other));
            assert_eq!(marked, (1, 1), "{answer}: the first result of each client is marked, and no other");
            assert_eq!(futures::join!(marked_of_twenty(&one), marked_of_twenty(&other)), (0, 0), "{answer}");
            let books = probe.books().await;
            assert_eq!(
                (books.total("initialize"), books.total("initializeWithSession")),
                (round, 0),
                "{answer}: one more, without the old id"
            );
            let calls: u64 = books.sessions().iter().filter_map(|s| s["calls"]["echo"].as_u64()).sum();
            assert_eq!(calls, 40 * (2 * round - 1), "{answer}: each call was carried out once");
        }
        ends_and_leaves_nothing(&namespace, "s").await;
    })
    .await;
}

/// CASES.md 6.
#[tokio::test]
async fn a_path_that_never_was_is_an_error_and_no_loop() {
    in_namespace("wrongpath", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        let url = probe.url() + "/wrong";
        mcp_server(&namespace, "probe", &url, json!({})).await;
        session(&namespace, "s", "alice", &["probe"]).await;
        let token = namespace.token("alice").await;
        probe.set_faults(&json!({"any": {"status": 404, "path": "/mcp/wrong"}})).await;
        let begun = Instant::now();
        for _ in 0..20 {
            let mut client = McpClient::new(&namespace.name, "s", "probe", &token);
            let answer = client.try_initialize(&json!({})).await;
            let error = &answer["error"];
            assert_eq!(
                (&error["code"], &error["data"]["reason"]),
                (&json!(-32050), &json!("UpstreamUnreachable"))
            );
            assert!(error["message"].as_str().unwrap().contains("path"), "the remedy is named: {error}");
        }
        let tried = probe.books().await.requests("initialize").len();
        // Pauses are a quarter of a second at least, and twice as long each time.
        let most = 1 + (1 + begun.elapsed().as_millis() / 250).ilog2() as usize;
        assert!((1..=most).contains(&tried), "{tried} attempts for twenty calls");
    })
    .await;
}

/// What the status says of the servers, in their order, and of the session: the condition Ready.
async fn status(namespace: &TestNamespace) -> (Vec<Value>, Value) {
    let session = namespace.api::<AgentSession>().get("s").await.unwrap();
    let status = serde_json::to_value(session.status).unwrap();
    let list = |field: &str| status[field].as_array().cloned().unwrap_or_default();
    let ready = list("conditions").into_iter().find(|condition| condition["type"] == "Ready");
    (list("servers"), ready.unwrap_or_default())
}

/// The ids of upstream sessions that were opened at a path, oldest first.
fn opened_at(books: &Books, path: &str) -> Vec<Value> {
    let at_path = books.requests("initialize").into_iter().filter(|entry| entry["path"] == path);
    at_path.map(|entry| entry["minted"].clone()).filter(|minted| !minted.is_null()).collect()
}

/// CASES.md 6.
#[tokio::test]
async fn an_upstream_that_was_restarted_costs_no_call_but_where_its_state_must_not_be_lost_unseen() {
    in_namespace("restarted", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        let (url, strict) = (probe.url(), probe.url() + "/strict");
        futures::join!(
            mcp_server(&namespace, "probe", &url, json!({})),
            mcp_server(&namespace, "strict", &strict, json!({"onStateLost": "Fail"}))
        );
        session(&namespace, "s", "alice", &["probe", "strict"]).await;
        let token = namespace.token("alice").await;
        let usual = client(&namespace, "probe", &token).await;
        let mut strict = client(&namespace, "strict", &token).await;
        for client in [&usual, &strict] {
            client.call("remember", json!({"value": "kept"})).await;
        }
        probe.restart().await;

        let answer = usual.call_as(&json!(1), "echo", json!({"message": "on"})).await;
        let result = &answer["result"];
        assert_eq!(result["content"][0]["text"], "on", "{answer}");
        assert_eq!(result["_meta"][MARK], true, "{answer}");
        let books = probe.books().await;
        let counts = ["initialize", "initializeWithSession", "toolsCall"].map(|name| books.total(name));
        assert_eq!(counts, [1, 0, 1], "{books:?}");

        for id in [7, 8] {
            let refused = strict.send(&tool_call(&json!(id), "recall", json!({}))).await;
            assert_eq!(refused.status, 404, "{refused:?}");
            assert_eq!(refused.answer_to(&json!(id))["error"]["code"], -32001, "{refused:?}");
        }
        let books = probe.books().await;
        assert_eq!(books.total("toolsCall"), 1, "nothing is carried out on another state: {books:?}");
        strict.initialize().await;
        let recalled = strict.call_as(&json!(9), "recall", json!({})).await;
        assert_eq!(recalled["result"]["structuredContent"]["value"], Value::Null, "{recalled}");
        let books = probe.books().await;
        assert_eq!((opened_at(&books, "/mcp").len(), opened_at(&books, "/mcp/strict").len()), (1, 1));
        ends_and_leaves_nothing(&namespace, "s").await;
    })
    .await;
}

/// CASES.md 7.
#[tokio::test]
async fn a_server_that_is_lost_leaves_the_other_one_of_its_session_alone() {
    in_namespace("oneoftwo", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        let (a, b) = (probe.url() + "/a", probe.url() + "/b");
        futures::join!(
            mcp_server(&namespace, "a", &a, json!({})),
            mcp_server(&namespace, "b", &b, json!({}))
        );
        session(&namespace, "s", "alice", &["a", "b"]).await;
        let token = namespace.token("alice").await;
        let (of_a, of_b) = (client(&namespace, "a", &token).await, client(&namespace, "b", &token).await);
        for client in [&of_a, &of_b] {
            client.call("remember", json!({"value": "kept"})).await;
        }
        let opened = opened_at(&probe.books().await, "/mcp/b");
        probe.tell("sessions/lose", &json!({"session": opened[0]})).await;
        let recalled = of_b.call_as(&json!(1), "recall", json!({})).await;
        assert_eq!(recalled["result"]["structuredContent"]["value"], Value::Null, "{recalled}");
        assert_eq!(recalled["result"]["_meta"][MARK], true, "{recalled}");
        let kept = of_a.call_as(&json!(1), "recall", json!({})).await;
        assert_eq!(kept["result"]["structuredContent"]["value"], "kept", "{kept}");
        assert_eq!(kept["result"]["_meta"], Value::Null, "{kept}");

        let opened = opened_at(&probe.books().await, "/mcp/b");
        assert_eq!(opened.len(), 2, "one more");
        // A pause is shown while ten seconds of it are left: the report and the write have twenty.
        let ill = json!({"status": 500, "headers": {"retry-after": "30"}, "path": "/mcp/b"});
        probe.set_faults(&json!({"initialize": ill})).await;
        probe.tell("sessions/lose", &json!({"session": opened[1]})).await;
        for _ in 0..5 {
            let answer = of_b.call_as(&json!(2), "echo", json!({"message": "x"})).await;
            let data = &answer["error"]["data"];
            assert_eq!(
                (&data["server"], &data["reason"]),
                (&json!("b"), &json!("UpstreamUnreachable")),
                "{answer}"
            );
            assert_eq!(of_a.call("echo", json!({"message": "on"})).await, "on");
        }
        eventually("the status tells which server is in trouble", BOUND, || async {
            let (servers, ready) = status(&namespace).await;
            let [a, b] = servers.as_slice() else { panic!("two servers, not {servers:?}") };
            assert_eq!((&a["state"], &a["nextRetryTime"]), (&json!("Bound"), &Value::Null), "{a}");
            assert_eq!(ready["status"], "True", "one server works: {ready}");
            let told = b["reason"] == "UpstreamUnreachable" && b["nextRetryTime"].is_string();
            let degraded = ready["reason"] == "Degraded"
                && ready["message"].as_str().is_some_and(|text| text.contains("server \"b\""));
            (told && degraded).then_some(())
        })
        .await;
        probe.clear_faults().await;
        eventually("it is served again", BOUND, || async {
            let answer = of_b.call_as(&json!(3), "echo", json!({"message": "back"})).await;
            (answer["result"]["content"][0]["text"] == "back").then_some(())
        })
        .await;
        eventually("the status tells of no trouble", BOUND, || async {
            let (servers, ready) = status(&namespace).await;
            let b = &servers[1];
            let well = b["state"] == "Bound" && b["nextRetryTime"].is_null();
            (well && ready["status"] == "True" && ready["reason"] == "Bound").then_some(())
        })
        .await;
        let books = probe.books().await;
        assert_eq!((opened_at(&books, "/mcp/a").len(), opened_at(&books, "/mcp/b").len()), (1, 3));
    })
    .await;
}
