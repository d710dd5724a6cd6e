//! Every tool.

use std::time::{Duration, Instant};

use http::StatusCode;
use probe::digest;
use serde_json::{Value, json};

use crate::client::{Server, call, text};

#[tokio::test]
async fn echo_fail_and_big() {
    let server = Server::start().await;
    let session = server.initialize("Bearer a").await;
    let message = "héllo \"w\"\n\u{1F600}";
    assert_eq!(text(&server.call(&session, "echo", json!({"message": message})).await), message);
    let failed = server.call(&session, "fail", json!({"message": "no"})).await;
    assert_eq!((text(&failed), &failed["result"]["isError"]), ("no", &json!(true)));
    let big = server.call(&session, "big", json!({"bytes": 300_000})).await;
    assert_eq!(text(&big).len(), 300_000);
}

#[tokio::test]
async fn bad_arguments_are_tool_errors_and_unknown_tools_are_not() {
    let server = Server::start().await;
    let session = server.initialize("Bearer a").await;
    for (tool, arguments) in [
        ("echo", json!({"message": 1})),
        ("sleep", json!({"ms": -1})),
        ("big", json!({"bytes": 1_u64 << 40})),
    ] {
        assert_eq!(server.call(&session, tool, arguments).await["result"]["isError"], true, "{tool}");
    }
    assert_eq!(server.call(&session, "none", Value::Null).await["error"]["code"], -32602);
    let mut stream = server.stream(&session, Some(&call(1, "progress", json!({"steps": 100_001})))).await;
    assert_eq!(stream.next().await.unwrap()["result"]["isError"], true);
}

#[tokio::test]
async fn state_belongs_to_a_session() {
    let server = Server::start().await;
    let (one, other) = (server.initialize("Bearer a").await, server.initialize("Bearer a").await);
    server.call(&one, "remember", json!({"value": "v"})).await;
    let recalled = server.call(&one, "recall", json!({})).await;
    assert_eq!(recalled["result"]["structuredContent"]["value"], "v");
    let recalled = server.call(&other, "recall", json!({})).await;
    assert_eq!(recalled["result"]["structuredContent"]["value"], Value::Null);
    for (session, count) in [(&one, 1), (&one, 2), (&other, 1)] {
        let counted = server.call(session, "count", json!({})).await;
        assert_eq!(counted["result"]["structuredContent"]["count"], count);
    }
    for (session, effects) in [(&one, 1), (&other, 2)] {
        let effect = server.call(session, "effect", json!({})).await;
        assert_eq!(effect["result"]["structuredContent"]["effects"], effects);
    }
    assert_eq!(server.books().await["effects"], 2);
}

#[tokio::test]
async fn whoami_tells_both_credentials() {
    let server = Server::start().await;
    let session = server.initialize("Bearer first").await;
    let headers = [("mcp-session-id", session.as_str()), ("authorization", "Bearer second")];
    let answer = server.ask("POST", "/mcp", &headers, &call(1, "whoami", json!({})).to_string()).await.json();
    let expected = json!({
        "sessionId": session,
        "authorizationSha256AtInitialize": digest::hex(b"Bearer first"),
        "authorizationSha256": digest::hex(b"Bearer second"),
    });
    assert_eq!(answer["result"]["structuredContent"], expected);
    let without = server.call(&session, "whoami", json!({})).await;
    assert_eq!(without["result"]["structuredContent"]["authorizationSha256"], "none");
}

#[tokio::test]
async fn progress_comes_in_order_before_the_answer() {
    let server = Server::start().await;
    let session = server.initialize("Bearer a").await;
    let mut stream = server.stream(&session, Some(&call(9, "progress", json!({"steps": 500})))).await;
    for step in 1..=500 {
        let event = stream.next().await.unwrap();
        assert_eq!(event["method"], "notifications/progress");
        assert_eq!(
            (&event["params"]["progressToken"], &event["params"]["progress"]),
            (&json!("t9"), &json!(step))
        );
    }
    let answer = stream.next().await.unwrap();
    assert_eq!((text(&answer), &answer["id"]), ("500 steps", &json!(9)));
    assert!(stream.next().await.is_none());

    let silent = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "progress", "arguments": {"steps": 3}}});
    let mut stream = server.stream(&session, Some(&silent)).await;
    assert_eq!(text(&stream.next().await.unwrap()), "3 steps");
}

#[tokio::test]
async fn sleep_answers_late_and_can_be_cancelled() {
    let server = Server::start().await;
    let session = server.initialize("Bearer a").await;
    let start = Instant::now();
    server.call(&session, "sleep", json!({"ms": 60})).await;
    assert!(start.elapsed() >= Duration::from_millis(60));

    let cancel = |id: Value| json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}});
    let request = call(7, "sleep", json!({"ms": 600_000}));
    let sleeping = server.post(&session, &request);
    let cancelling = async {
        server.until(|books| books["sessions"][0]["inFlight"] == 1).await;
        server.post(&session, &cancel(json!("7"))).await;
        let books = server.post(&session, &cancel(json!(7))).await;
        assert_eq!(books.status, StatusCode::ACCEPTED);
    };
    let (answer, ()) = tokio::join!(sleeping, cancelling);
    assert_eq!(answer.json()["error"]["code"], -32800);

    let mut stream =
        server.stream(&session, Some(&call(8, "sleep", json!({"ms": 600_000, "stream": true})))).await;
    server.post(&session, &cancel(json!(8))).await;
    assert!(stream.next().await.is_none(), "a cancelled call has no answer on a stream");
    let books = server.until(|books| books["sessions"][0]["inFlight"] == 0).await;
    let row = &books["sessions"][0];
    assert_eq!((&row["cancelled"], &row["interrupted"]), (&json!(3), &json!(2)));
    assert_eq!((&books["totals"]["cancelled"], &books["totals"]["interrupted"]), (&json!(3), &json!(2)));
}

#[tokio::test]
async fn a_caller_who_goes_away_does_not_stop_the_call_but_the_end_of_the_session_does() {
    let server = Server::start().await;
    let session = server.initialize("Bearer a").await;
    let request = call(1, "sleep", json!({"ms": 600_000}));
    let gone = tokio::time::timeout(Duration::from_millis(100), server.post(&session, &request)).await;
    assert!(gone.is_err());
    server.until(|books| books["connections"]["mcpOpen"] == 0).await;
    assert_eq!(server.books().await["sessions"][0]["inFlight"], 1);

    let second = call(2, "sleep", json!({"ms": 600_000}));
    let ending = async {
        server.until(|books| books["sessions"][0]["inFlight"] == 2).await;
        server.ask("DELETE", "/mcp", &[("mcp-session-id", &session)], "").await
    };
    let (answer, _) = tokio::join!(server.post(&session, &second), ending);
    assert_eq!(answer.json()["error"]["code"], -32001);
}

#[tokio::test]
async fn ask_asks_the_client() {
    let server = Server::start().await;
    let session = server.initialize("Bearer a").await;
    for (number, kind, method) in
        [(1, "elicitation", "elicitation/create"), (2, "sampling", "sampling/createMessage")]
    {
        let mut stream = server.stream(&session, Some(&call(4, "ask", json!({"kind": kind})))).await;
        let question = stream.next().await.unwrap();
        assert_eq!((&question["id"], &question["method"]), (&json!(number), &json!(method)));
        let response = json!({"jsonrpc": "2.0", "id": number, "result": {"action": "accept", "content": {"name": "Ada"}}});
        assert_eq!(server.post(&session, &response).await.status, StatusCode::ACCEPTED);
        let answer = stream.next().await.unwrap();
        assert_eq!(answer["result"]["structuredContent"]["answer"]["content"]["name"], "Ada");
        assert_eq!(answer["id"], 4);
    }
    let mut stream = server.stream(&session, Some(&call(5, "ask", json!({})))).await;
    let id = stream.next().await.unwrap()["id"].clone();
    let refusal = json!({"jsonrpc": "2.0", "id": id, "error": {"code": -1, "message": "no"}});
    server.post(&session, &refusal).await;
    assert_eq!(stream.next().await.unwrap()["result"]["structuredContent"]["error"]["message"], "no");

    let mut stream = server.stream(&session, Some(&call(6, "ask", json!({"timeoutMs": 10})))).await;
    stream.next().await.unwrap();
    assert_eq!(text(&stream.next().await.unwrap()), "the client did not answer");
}
