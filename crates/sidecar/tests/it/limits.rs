//! Bounds of one session: sizes, calls that run, calls that wait.

use crate::support::client::{tool_call, tool_call_with_progress};
use crate::support::eventually;
use crate::support::harness::{EndBounds, Harness, read, spec};
use crate::support::upstream::{Act, Books, Upstream};
use berth_wire::{Limits, SessionState};
use futures::future::join_all;
use http::StatusCode;
use serde_json::json;

/// Waits until so many requests are in flight.
async fn in_flight(harness: &Harness, count: i64) {
    eventually("so many are in flight", || harness.metrics.requests_in_flight.get() == count).await;
}

#[tokio::test]
async fn calls_over_the_limit_wait_in_line_and_more_are_refused() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    let mut session = spec("s", &upstream);
    session.limits = Limits { concurrent_calls: 1, queued_calls: 3, ..Limits::default() };
    harness.put(&session).await;
    let client = harness.initialized("s").await;
    let running = client.begin(&tool_call(json!("1"), "hold", &json!({}))).await;
    let sent = || upstream.books().of_method("tools/call").len();
    let echo = async |id: &str| client.json(&tool_call(json!(id), "echo", &json!({"id": id}))).await.1;
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "4"}});
    let end = async {
        in_flight(&harness, 4).await;
        let refused = client.call("echo", json!({})).await;
        assert_eq!(refused["error"]["code"], json!(-32055), "{refused}");
        assert!(refused["error"]["message"].as_str().unwrap().contains("1 requests already and 3 wait"));
        assert_eq!(sent(), 1, "those who wait were not sent");
        client.tell(&cancel).await;
        in_flight(&harness, 3).await;
        upstream.release();
    };
    let last_two = async {
        in_flight(&harness, 3).await;
        tokio::join!(echo("5"), end).0
    };
    let rest = async {
        in_flight(&harness, 2).await;
        tokio::join!(echo("4"), last_two)
    };
    let (first, (second, third)) = tokio::join!(echo("3"), rest);
    assert_eq!((&first["result"]["id"], &third["result"]["id"]), (&json!("3"), &json!("5")));
    assert_eq!(second["error"]["code"], json!(-32052), "{second}");
    assert_eq!(running.messages().await.pop().unwrap()["result"], json!({"held": true}));
    {
        let books = upstream.books();
        let order: Vec<_> = books.of_method("tools/call")[1..]
            .iter()
            .map(|call| &call["params"]["arguments"]["id"])
            .collect();
        assert_eq!(
            order,
            [&json!("3"), &json!("5")],
            "first come first served, and what was cancelled never went"
        );
        assert!(books.of_method("notifications/cancelled").is_empty(), "the upstream has never heard of it");
    }
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn a_client_whose_unread_answers_are_as_many_as_calls_may_run_holds_up_no_other() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    let mut session = spec("s", &upstream);
    session.limits = Limits { concurrent_calls: 2, queued_calls: 1, ..Limits::default() };
    harness.put(&session).await;
    let (slow, quick) = (harness.initialized("s").await, harness.initialized("s").await);
    let begin = async |id: &str| {
        // More than whatever is between can hold.
        slow.begin(&tool_call_with_progress(json!(id), json!(id), "flood", &json!({}))).await
    };
    let mut unread = vec![begin("1").await, begin("2").await];
    for round in 0..20 {
        assert_eq!(quick.call("echo", json!({"x": round})).await["result"], json!({"x": round}));
    }
    // They count on: as many are taken as before, and no more.
    unread.push(begin("3").await);
    in_flight(&harness, 3).await;
    let refused = quick.call("echo", json!({})).await;
    assert_eq!(refused["error"]["code"], json!(-32055), "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("clients that do not read"), "{refused}");
    slow.tell(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "2"}}))
        .await;
    in_flight(&harness, 2).await;
    assert_eq!(quick.call("echo", json!({"x": 1})).await["result"], json!({"x": 1}));
    harness.end("s", EndBounds { drain: 0, close: 5_000, wait: 15_000 }).await;
    drop(unread);
    harness.assert_baseline().await;
}

#[tokio::test]
async fn a_call_that_waits_too_long_times_out_unsent() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    let mut session = spec("s", &upstream);
    session.limits = Limits { concurrent_calls: 1, ..Limits::default() };
    (session.timeouts.request_millis, session.timeouts.request_max_millis) = (300, 5_000);
    harness.put(&session).await;
    let client = harness.initialized("s").await;
    let tick = tool_call_with_progress(json!(1), json!(1), "tick", &json!({}));
    let running = client.begin(&tick).await;
    let waited = client.call("echo", json!({})).await;
    assert_eq!(waited["error"]["code"], json!(-32053), "{waited}");
    let text = waited["error"]["message"].as_str().unwrap();
    assert!(text.contains("waited 300 ms for its turn and was not sent"), "{text}");
    assert_eq!(upstream.books().of_method("tools/call").len(), 1);
    drop(running);
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn the_session_has_limits_of_its_own_on_sizes() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    let mut session = spec("s", &upstream);
    session.limits = Limits { request_bytes: 4_096, response_bytes: 8_192, ..Limits::default() };
    harness.put(&session).await;
    let client = harness.initialized("s").await;
    let call = tool_call(json!(1), "echo", &json!({"x": "y".repeat(4_096)}));
    let (status, body) = read(client.post(call.to_string()).await).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    assert!(String::from_utf8(body).unwrap().contains("limit of 4096 bytes"));
    for stream in [false, true] {
        let last = client.call("large", json!({"bytes": 9_000, "stream": stream})).await;
        assert_eq!(last["error"]["code"], json!(-32054), "{last}");
        assert!(last["error"]["message"].as_str().unwrap().contains("8192"));
        assert!(client.call("large", json!({"bytes": 4_000, "stream": stream})).await["result"].is_object());
    }
    // A newer wish counts for what begins after it.
    session.limits.request_bytes = 16 * 1024;
    session.generation.session += 1;
    harness.put(&session).await;
    assert!(client.json(&call).await.1["result"].is_object());
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn ids_and_progress_tokens_are_bounded_on_both_sides() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let client = harness.initialized("s").await;
    let (longest, longer) = ("x".repeat(1_022), "x".repeat(1_023));
    let call = |id: &str, token: &str| {
        tool_call_with_progress(json!(id), json!(token), "count", &json!({"count": 1}))
    };
    for (message, name) in [(call(&longer, "t"), "id"), (call("1", &longer), "progressToken")] {
        let (status, answer) = client.json(&message).await;
        assert_eq!((status, &answer["error"]["code"]), (StatusCode::BAD_REQUEST, &json!(-32600)), "{answer}");
        let text = format!("member \"{name}\" must have at most 1024 bytes");
        assert_eq!(answer["error"]["message"], json!(text));
    }
    assert!(upstream.books().of_method("tools/call").is_empty());
    let messages = client.begin(&call(&longest, &longest)).await.messages().await;
    assert_eq!(messages[0]["params"]["progressToken"], json!(longest));
    assert_eq!(messages[1]["id"], json!(longest));
    // What the upstream asks under such an id is nothing that could be answered.
    let mut listening = client.listen().await;
    upstream.until("the stream", |_| upstream.listeners() == 1).await;
    for id in [&longer, &longest] {
        upstream.say(&json!({"jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": {}}));
    }
    assert_eq!(listening.next().await.unwrap()["id"], json!(longest));
    drop(listening);
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn an_answer_whose_head_is_too_large_fails_its_call_alone() {
    let (harness, upstream) = (Harness::start(2).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let client = harness.initialized("s").await;
    let running = client.begin(&tool_call(json!(1), "hold", &json!({}))).await;
    let head =
        async |count: u32, bytes: u32| client.call("head", json!({"count": count, "bytes": bytes})).await;
    for (count, bytes) in [(90, 10), (10, 6_000), (1, 64_000)] {
        assert_eq!(head(count, bytes).await["result"], json!({"head": true}), "{count} of {bytes} bytes");
    }
    for (count, bytes) in [(101, 10), (10, 7_000), (1, 1_000_000)] {
        let answer = head(count, bytes).await;
        assert_eq!(answer["error"]["code"], json!(-32054), "{count} of {bytes} bytes: {answer}");
        let text = answer["error"]["message"].as_str().unwrap();
        assert!(text.contains("more than 65536 bytes or 100 headers; have it send fewer"), "{text}");
    }
    let report = &harness.list().await[0];
    assert_eq!(
        (report.state, report.failure),
        (SessionState::Connected, None),
        "it says nothing of the server"
    );
    upstream.release();
    assert_eq!(running.messages().await.pop().unwrap()["result"], json!({"held": true}));
    assert_eq!(client.call("session", json!({})).await["result"], json!({"session": "upstream-1"}));

    upstream.books().on_initialize = Act::Head(70_000);
    harness.put(&spec("t", &upstream)).await;
    let error = harness.client("t").initialize().await.unwrap_err();
    assert_eq!(error["data"]["reason"], "ProtocolError", "{error}");
    assert!(error["message"].as_str().unwrap().contains("more than 65536 bytes or 100 headers"), "{error}");
    for uid in ["s", "t"] {
        harness.end_now(uid).await;
    }
    harness.assert_baseline().await;
}

#[tokio::test]
async fn initializes_wait_for_no_turn() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    let mut session = spec("s", &upstream);
    session.limits = Limits { concurrent_calls: 1, queued_calls: 0, ..Limits::default() };
    harness.put(&session).await;
    let clients = join_all((0..20).map(|_| harness.initialized("s"))).await;
    assert_eq!(clients.len(), 20);
    assert_eq!(clients[0].call("echo", json!({"x": 1})).await["result"], json!({"x": 1}));
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn a_client_that_does_not_read_its_answer_stalls_nobody_else() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let (slow, quick) = (harness.initialized("s").await, harness.initialized("s").await);
    // Far more than the sockets between hold.
    let count = json!({"count": 400_000});
    let unread = slow.begin(&tool_call_with_progress(json!(1), json!(1), "count", &count)).await;
    for round in 0..50 {
        assert_eq!(quick.call("echo", json!({"x": round})).await["result"], json!({"x": round}));
        assert!(harness.budget.left() > 90 * 1024 * 1024, "what waits for the slow one is bounded");
    }
    assert_eq!(harness.list().await[0].activity.in_flight, 1, "its call waits for it");
    drop(unread);
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn an_upstream_that_says_something_without_end_keeps_no_call_past_its_own() {
    let (harness, upstream) = (Harness::start(2).await, Upstream::start().await);
    let mut session = spec("s", &upstream);
    (session.timeouts.request_millis, session.timeouts.request_max_millis) = (1_000, 1_000);
    harness.put(&session).await;
    harness.put(&spec("unhurried", &upstream)).await;
    let (client, other) = (harness.initialized("s").await, harness.initialized("s").await);
    let call = |id: &str, tool: &str| tool_call_with_progress(json!(id), json!("t"), tool, &json!({}));
    // On the answer itself.
    let last = client.begin(&call("1", "flood")).await.messages().await.pop().unwrap();
    assert_eq!(last["error"]["code"], json!(-32053), "its time");
    let unhurried = harness.initialized("unhurried").await;
    let mut answer = unhurried.begin(&call("2", "flood")).await;
    assert_eq!(answer.next().await.unwrap()["method"], "notifications/progress");
    unhurried
        .tell(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "2"}}))
        .await;
    assert_eq!(answer.messages().await.pop().unwrap()["error"]["code"], json!(-32052), "its client");
    // On the stream outside of calls.
    let begun = async {
        upstream.until("the call", |books| books.of_method("tools/call").len() == 3).await;
        let id = upstream.books().of_method("tools/call")[2]["id"].clone();
        let params = json!({"progressToken": id, "progress": 1});
        let progress = json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params});
        upstream.books().flood = Some(progress);
        other.listen().await
    };
    let message = call("3", "wait");
    let (answer, listening) = tokio::join!(client.begin(&message), begun);
    let mut messages = answer.messages().await;
    assert_eq!(messages.pop().unwrap()["error"]["code"], json!(-32053), "its time");
    assert_eq!(messages.pop().unwrap()["method"], "notifications/progress");
    drop(listening);
    harness.end_now("s").await;
    harness.end_now("unhurried").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn an_upstream_that_asks_without_end_gets_so_many_answers_at_once() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let client = harness.initialized("s").await;
    let _listening = client.listen().await;
    upstream.books().on_response = Act::Hold;
    for id in 0..100 {
        // Nobody can take the second kind.
        let method = if id % 2 == 0 { "ping" } else { "roots/list" };
        upstream.say(&json!({"jsonrpc": "2.0", "id": id, "method": method}));
    }
    eventually("the others are dropped", || harness.metrics.outgoing_dropped.get() == 84).await;
    let answers = |books: &Books| {
        books.messages.iter().filter(|(_, _, message)| message.get("method").is_none()).count()
    };
    upstream.until("those that have a place", |books| answers(books) == 16).await;
    upstream.release();
    // Places are given back.
    eventually("it is answered again", || {
        upstream.say(&json!({"jsonrpc": "2.0", "id": "again", "method": "ping"}));
        !upstream.books().responses_to(&json!("again")).is_empty()
    })
    .await;
    harness.end_now("s").await;
    harness.assert_baseline().await;
}
