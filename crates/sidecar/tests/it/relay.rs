//! The data path.

use crate::support::client::{tool_call, tool_call_with_progress};
use crate::support::eventually;
use crate::support::harness::{As, Harness, data_request, read, spec, within};
use crate::support::upstream::{STALLED_AT, Upstream};
use berth_sidecar::upstream::Dialer;
use futures::future::join_all;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

#[tokio::test]
async fn two_sessions_never_share_an_upstream_session_or_a_socket() {
    let (harness, upstream) = (Harness::start(2).await, Upstream::start().await);
    harness.put(&spec("a", &upstream)).await;
    harness.put(&spec("b", &upstream)).await;
    let (a, b) = (harness.initialized("a").await, harness.initialized("b").await);
    for _ in 0..5 {
        assert_eq!(a.call("session", json!({})).await["result"]["session"], "upstream-1");
        assert_eq!(b.call("session", json!({})).await["result"]["session"], "upstream-2");
    }
    {
        let books = upstream.books();
        let sockets = |wanted: &str| -> Vec<_> {
            books
                .messages
                .iter()
                .filter(|(session, ..)| session == wanted)
                .map(|(_, socket, _)| *socket)
                .collect()
        };
        assert_eq!(books.sockets.len(), 2, "each session used one socket again and again");
        assert!(sockets("upstream-1").iter().all(|socket| !sockets("upstream-2").contains(socket)));
    }
    assert_eq!(
        b.client_of("a").post(tool_call(json!(1), "echo", &json!({})).to_string()).await.status(),
        404
    );
    harness.end_now("a").await;
    harness.end_now("b").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn equal_ids_and_tokens_of_two_clients_are_kept_apart() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let (one, two) = (harness.initialized("s").await, harness.initialized("s").await);
    let calls = (0..10).map(|n| {
        let client = if n % 2 == 0 { &one } else { &two };
        let count = 100 + n;
        async move {
            let call =
                tool_call_with_progress(json!("same"), json!("token"), "count", &json!({"count": count}));
            (count, client.begin(&call).await.messages().await)
        }
    });
    for (count, mut messages) in join_all(calls).await {
        let last = messages.pop().unwrap();
        assert_eq!((&last["id"], &last["result"]["count"]), (&json!("same"), &json!(count)));
        assert_eq!(messages.len(), count, "progress of its own and of no other");
        for (n, message) in messages.iter().enumerate() {
            let expected = json!({"progressToken": "token", "progress": n});
            assert_eq!(message["params"], expected);
        }
    }
    {
        let books = upstream.books();
        let mut ids: Vec<_> =
            books.of_method("tools/call").iter().map(|call| call["id"].as_u64().unwrap()).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!((ids.len(), books.initializes.len()), (10, 1), "fresh ids upstream, one connection");
    }
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn two_thousand_progress_notifications_arrive_in_order_before_the_result() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let client = harness.initialized("s").await;
    let call = tool_call_with_progress(json!(1), json!(7), "count", &json!({"count": 2_000}));
    let mut messages = client.begin(&call).await.messages().await;
    assert_eq!(messages.pop().unwrap()["result"], json!({"count": 2_000}));
    let progress: Vec<_> =
        messages.iter().map(|message| message["params"]["progress"].as_u64().unwrap()).collect();
    assert_eq!(progress, (0..2_000).collect::<Vec<_>>());
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn unknown_members_methods_and_spellings_pass_untouched() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let client = harness.initialized("s").await;
    let call = r#"{"x-top": 1.50, "id" : 1e0,"method":"tools/call","jsonrpc":"2.0","params":{"name":"echo","task":{"ttl":1},"arguments":{"b":1.0,"a":"\u00e9"}}}"#;
    let (_, body) = read(client.post(call).await).await;
    let text = String::from_utf8(body).unwrap();
    assert!(
        text.contains(r#""id":1e0"#) || text.contains(r#""id": 1e0"#),
        "the id is spelled as it was: {text}"
    );
    let (_, answer) = client.json(&json!({"jsonrpc": "2.0", "id": 5, "method": "vendor/unknown"})).await;
    assert_eq!(answer["error"], json!({"code": -32602, "message": "unknown tool", "x": true}));
    {
        let books = upstream.books();
        assert_eq!(books.of_method("tools/call")[0]["x-top"], json!(1.5));
        assert_eq!(books.of_method("tools/call")[0]["params"]["task"], json!({"ttl": 1}));
        assert_eq!(books.of_method("vendor/unknown").len(), 1);
    }
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn requests_of_the_server_reach_the_client_and_its_answer_goes_back() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let client = harness.initialized("s").await;
    let mut call = client.begin(&tool_call(json!(1), "ask", &json!({}))).await;
    let question = call.next().await.unwrap();
    assert_eq!((&question["method"], &question["id"]), (&json!("elicitation/create"), &json!("question-1")));
    let answer = json!({"jsonrpc": "2.0", "id": "question-1", "result": {"action": "accept"}});
    assert_eq!(client.json(&answer).await.0, StatusCode::ACCEPTED);
    assert_eq!(
        call.messages().await.pop().unwrap()["result"],
        json!({"action": "accept"}),
        "the ping was not passed on"
    );
    upstream
        .until("the pong", |books| {
            books
                .messages
                .iter()
                .any(|(_, _, m)| *m == json!({"jsonrpc": "2.0", "id": "ping-1", "result": {}}))
        })
        .await;
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn a_cancellation_reaches_the_upstream_under_its_own_id_and_ends_the_call() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let (client, other) = (harness.initialized("s").await, harness.initialized("s").await);
    let call = client.begin(&tool_call(json!("c"), "silent", &json!({}))).await;
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "c", "reason": "why"}});
    assert_eq!(other.json(&cancel).await.0, StatusCode::ACCEPTED);
    assert_eq!(client.json(&cancel).await.0, StatusCode::ACCEPTED);
    assert_eq!(call.messages().await.pop().unwrap()["error"]["code"], json!(-32052));
    {
        let books = upstream.books();
        let cancelled = books.of_method("notifications/cancelled");
        let expected = json!({"requestId": books.of_method("tools/call")[0]["id"], "reason": "why"});
        assert_eq!(
            (cancelled.len(), &cancelled[0]["params"]),
            (1, &expected),
            "another client's cancel hits nothing"
        );
    }
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn a_client_that_leaves_does_not_cancel_its_call() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let client = harness.initialized("s").await;
    drop(client.begin(&tool_call(json!(1), "hold", &json!({}))).await);
    assert_eq!(client.call("echo", json!({"x": 1})).await["result"], json!({"x": 1}));
    assert_eq!(harness.list().await[0].activity.in_flight, 1, "the call goes on");
    upstream.release();
    eventually("the call finishes", || harness.metrics.requests_in_flight.get() == 0).await;
    assert!(upstream.books().of_method("notifications/cancelled").is_empty());
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn a_client_that_leaves_before_its_answer_begins_does_not_cancel_its_call() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let client = harness.initialized("s").await;
    {
        let message = tool_call(json!(1), "wait", &json!({})).to_string();
        let mut answer = std::pin::pin!(client.post(message));
        tokio::select! {
            _ = &mut answer => panic!("answered before the upstream did"),
            () = eventually("the upstream has the call", || !upstream.books().of_method("tools/call").is_empty()) => {}
        }
    }
    assert_eq!(client.call("echo", json!({"x": 1})).await["result"], json!({"x": 1}));
    assert_eq!(harness.list().await[0].activity.in_flight, 1, "the call goes on");
    upstream.release();
    eventually("the call finishes", || harness.metrics.requests_in_flight.get() == 0).await;
    assert_eq!(harness.metrics.connections.get(), 2, "its answer was read to the end, and its socket kept");
    assert!(upstream.books().of_method("notifications/cancelled").is_empty());
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn a_call_without_progress_times_out_and_progress_extends_it_to_the_hard_end() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    let mut session = spec("s", &upstream);
    (session.timeouts.request_millis, session.timeouts.request_max_millis) = (400, 1_500);
    harness.put(&session).await;
    let client = harness.initialized("s").await;
    for (tool, least, most) in [("silent", 400, 1_400), ("tick", 1_500, 5_000)] {
        let started = Instant::now();
        let call = tool_call_with_progress(json!(1), json!(1), tool, &json!({}));
        let last = client.begin(&call).await.messages().await.pop().unwrap();
        assert_eq!((&last["id"], &last["error"]["code"]), (&json!(1), &json!(-32053)), "{tool}");
        let text = last["error"]["message"].as_str().unwrap();
        assert!(
            text.ends_with("whether the request was carried out is unknown, it was not sent again"),
            "{text}"
        );
        assert!(
            started.elapsed() >= Duration::from_millis(least) && within(started, most),
            "{tool}: {:?}",
            started.elapsed()
        );
    }
    upstream.until("both are cancelled", |books| books.of_method("notifications/cancelled").len() == 2).await;
    assert_eq!(client.call("echo", json!({"x": 1})).await["result"], json!({"x": 1}), "the next call works");
    assert_eq!(upstream.books().initializes.len(), 1);
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn a_connection_cut_in_a_call_is_evicted_and_the_call_is_not_replayed() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let client = harness.initialized("s").await;
    let last = client.call("cut", json!({})).await;
    assert_eq!(last["error"]["code"], json!(-32051), "{last}");
    assert_eq!(last["error"]["data"], json!({"server": "scripted", "reason": "UpstreamUnreachable"}));
    assert_eq!(upstream.books().of_method("tools/call").len(), 1);
    assert_eq!(client.call("session", json!({})).await["result"]["session"], "upstream-2");
    upstream
        .until("the old session is ended", |books| books.deletes.contains(&"upstream-1".to_owned()))
        .await;
    harness.end_now("s").await;
    harness.assert_baseline().await;
    assert!(upstream.books().open.is_empty());
}

#[tokio::test]
async fn a_stream_that_ends_without_a_result_has_an_unknown_outcome() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let client = harness.initialized("s").await;
    let last = client.call("stop", json!({})).await;
    assert_eq!(last["error"]["code"], json!(-32051), "{last}");
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn large_answers_pass_up_to_the_limit_and_only_the_call_fails_above_it() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let client = harness.initialized("s").await;
    for stream in [false, true] {
        let eight = json!({"bytes": 8 * 1024 * 1024, "stream": stream});
        let last = client.call("large", eight).await;
        assert_eq!(last["result"]["text"].as_str().map(str::len), Some(8 * 1024 * 1024));
        let last = client.call("large", json!({"bytes": 17 * 1024 * 1024, "stream": stream})).await;
        assert_eq!(last["error"]["code"], json!(-32054), "{stream}");
        assert!(last["error"]["message"].as_str().unwrap().contains("16777216"));
    }
    let response = client.post("x".repeat(4 * 1024 * 1024 + 1)).await;
    assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(client.call("echo", json!({"x": 1})).await["result"], json!({"x": 1}));
    assert_eq!(upstream.books().initializes.len(), 1);
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn trouble_with_the_upstream_is_an_error_inside_a_healthy_session() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let client = harness.initialized("s").await;
    for (status, reason, code) in [
        (401, "Unauthorized", -32050),
        (429, "RateLimited", -32050),
        (502, "UpstreamUnreachable", -32051),
        (307, "ProtocolError", -32050),
        (200, "ProtocolError", -32051),
    ] {
        let last = client.call("status", json!({"status": status})).await;
        assert_eq!(last["error"]["data"], json!({"server": "scripted", "reason": reason}), "{last}");
        assert_eq!(last["error"]["code"], code, "{last}");
        assert_eq!(harness.list().await[0].failure.unwrap().as_str(), reason);
    }
    for (status, asked, millis) in [
        (429, "7", json!(7_000)),
        (503, "7", json!(7_000)),
        (429, "soon", Value::Null),
        (429, "999999999", json!(3_600_000)),
        (500, "7", Value::Null),
    ] {
        let last = client.call("status", json!({"status": status, "retryAfter": asked})).await;
        assert_eq!(last["error"]["data"]["retryAfterMillis"], millis, "{status} {asked}");
    }
    client.call("echo", json!({})).await;
    assert_eq!(harness.list().await[0].failure, None, "until the next success");
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn what_one_call_is_refused_is_no_trouble_of_its_sessions() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let client = harness.initialized("s").await;
    for (status, reason, code) in [
        (400, "ProtocolError", -32050),
        (413, "ProtocolError", -32050),
        (500, "UpstreamUnreachable", -32051),
        (501, "UpstreamUnreachable", -32050),
    ] {
        let last = client.call("status", json!({"status": status})).await;
        assert_eq!(last["error"]["data"], json!({"server": "scripted", "reason": reason}), "{last}");
        assert_eq!(last["error"]["code"], code, "{last}");
        assert_eq!(harness.list().await[0].failure, None, "{status}");
    }
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn scopes_are_known_by_their_id_alone_and_end_by_delete() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let (one, two) = (harness.initialized("s").await, harness.initialized("s").await);
    let ping = json!({"jsonrpc": "2.0", "id": "p", "method": "ping"});
    let (status, answer) = one.json(&ping).await;
    assert_eq!((status, answer), (StatusCode::OK, json!({"jsonrpc": "2.0", "id": "p", "result": {}})));
    assert!(upstream.books().messages.is_empty(), "a ping is answered here");
    assert_eq!(one.delete().await, StatusCode::NO_CONTENT);
    let (status, answer) = one.json(&ping).await;
    assert_eq!(
        (status, &answer["error"]["code"], &answer["id"]),
        (StatusCode::NOT_FOUND, &json!(-32001), &json!("p"))
    );
    assert_eq!(one.delete().await, StatusCode::NOT_FOUND);
    assert_eq!(two.call("echo", json!({"x": 1})).await["result"], json!({"x": 1}), "the session lives on");
    assert!(upstream.books().deletes.is_empty());
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn what_is_no_message_or_no_method_is_refused() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let client = harness.initialized("s").await;
    for (body, code) in
        [("{", -32700), ("[]", -32600), (r#"{"jsonrpc":"2.0","id":null,"method":"x"}"#, -32600)]
    {
        let (status, answer) = read(client.post(body).await).await;
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        assert_eq!((status, &answer["error"]["code"]), (StatusCode::BAD_REQUEST, &json!(code)), "{body}");
    }
    let unknown = data_request(Method::POST, "unknown", None, "{}");
    assert_eq!(harness.send(As::Gateway, unknown).await.status(), StatusCode::MISDIRECTED_REQUEST);
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn a_body_that_does_not_fit_into_memory_fails_its_own_call_only() {
    let upstream = Upstream::start().await;
    let harness = Harness::start_with(2, Dialer::system().unwrap(), 4).await;
    harness.put(&spec("s", &upstream)).await;
    harness.put(&spec("t", &upstream)).await;
    let (client, other) = (harness.initialized("s").await, harness.initialized("t").await);
    for stream in [false, true] {
        let large = |bytes: u32| json!({"bytes": bytes, "stream": stream});
        let answer = client.call("large", large(1024 * 1024)).await;
        assert_eq!(answer["result"]["text"].as_str().unwrap().len(), 1024 * 1024);
        let answer = client.call("large", large(3 * 1024 * 1024)).await;
        assert_eq!(answer["error"]["code"], json!(-32055), "stream {stream}: {answer}");
        let text = answer["error"]["message"].as_str().unwrap();
        assert!(
            text.contains("lower pool.sessionsPerPod") && text.contains("carried out is unknown"),
            "{text}"
        );
        assert_eq!(other.call("echo", json!({"x": 1})).await["result"], json!({"x": 1}));
    }
    upstream.books().messages.clear();
    let large = tool_call(json!(1), "echo", &json!({"x": "y".repeat(3 * 1024 * 1024)}));
    let response = client.post(large.to_string()).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(response.headers()["retry-after"], "1");
    let answer: Value = serde_json::from_slice(&read(response).await.1).unwrap();
    assert_eq!(answer["error"]["code"], json!(-32055), "{answer}");
    assert!(upstream.books().of_method("tools/call").is_empty(), "what was not read is not sent");
    for uid in ["s", "t"] {
        harness.end_now(uid).await;
    }
    harness.assert_baseline().await;
}

#[tokio::test]
async fn an_answer_that_is_announced_and_does_not_come_keeps_no_memory_from_others() {
    let upstream = Upstream::start().await;
    let harness = Harness::start_with(1, Dialer::system().unwrap(), 40).await;
    harness.put(&spec("s", &upstream)).await;
    let client = harness.initialized("s").await;
    let size = 15 * 1024 * 1024;
    let other = async {
        let most = harness.budget.whole() - 2 * STALLED_AT;
        eventually("its head and first bytes are here", || harness.budget.left() <= most).await;
        let other = client.call("large", json!({"bytes": size})).await;
        upstream.release();
        other
    };
    let (stalled, other) = tokio::join!(client.call("stalled", json!({"bytes": size})), other);
    for answer in [stalled, other] {
        assert_eq!(answer["result"]["text"].as_str().map(str::len), Some(size), "{answer}");
    }
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn an_answer_counts_until_its_client_has_read_it() {
    let upstream = Upstream::start().await;
    let harness = Harness::start_with(1, Dialer::system().unwrap(), 24).await;
    harness.put(&spec("s", &upstream)).await;
    let client = harness.initialized("s").await;
    let large = |id: u32| tool_call(json!(id), "large", &json!({"bytes": 10 * 1024 * 1024}));
    // Far more than the sockets between hold: it stays in the sidecar until it is read.
    let unread = client.begin(&large(1)).await;
    let refused = client.begin(&large(2)).await.messages().await.pop().unwrap();
    assert_eq!(refused["error"]["code"], json!(-32055));
    assert!(unread.messages().await.pop().unwrap()["result"]["text"].is_string());
    eventually("the memory is free again", || harness.budget.left() == 24 * 1024 * 1024).await;
    let read = client.begin(&large(3)).await.messages().await.pop().unwrap();
    assert!(read["result"]["text"].is_string());
    harness.end_now("s").await;
    harness.assert_baseline().await;
}
