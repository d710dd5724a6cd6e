//! Answers that are spoilt.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::time;

use crate::client::{Server, call, drain};

/// Long enough to see that nothing comes.
const QUIET: Duration = Duration::from_millis(150);

/// Calls a tool with a spoilt answer: its head.
async fn spoilt(
    server: &Server,
    session: &str,
    tool: &str,
    arguments: Value,
    answer: Value,
) -> http::Response<hyper::body::Incoming> {
    let mut call = call(1, tool, arguments);
    call["params"]["_meta"]["probe.test/fault"] = json!({ "answer": answer });
    let headers = [("mcp-session-id", session)];
    server.send("POST", "/mcp", &headers, &call.to_string()).await.unwrap()
}

#[tokio::test]
async fn the_head_may_come_alone() {
    let server = Server::start().await;
    let session = server.initialize("Bearer a").await;
    let response = spoilt(&server, &session, "count", json!({}), json!({"stall": true})).await;
    assert_eq!(
        (response.status().as_u16(), &response.headers()["content-type"]),
        (200, &"application/json".parse().unwrap())
    );
    assert!(time::timeout(QUIET, drain(response)).await.is_err(), "no body comes");
    server.until(|books| books["connections"]["mcpOpen"] == 0).await;
    assert_eq!(server.books().await["sessions"][0]["calls"]["count"], 1);
}

#[tokio::test]
async fn the_body_may_drip() {
    let server = Server::start().await;
    let session = server.initialize("Bearer a").await;
    let start = Instant::now();
    let response = spoilt(&server, &session, "echo", json!({"message": "m"}), json!({"dripMs": 2})).await;
    let (text, whole) = drain(response).await;
    assert!(whole);
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["result"]["content"][0]["text"], "m");
    assert!(
        start.elapsed() >= Duration::from_millis(2 * 60),
        "{:?} for {} bytes",
        start.elapsed(),
        text.len()
    );
}

#[tokio::test]
async fn a_stream_may_break_or_end_after_some_progress() {
    let server = Server::start().await;
    let session = server.initialize("Bearer a").await;
    for (answer, well) in [(json!({"breakAfterEvents": 3}), false), (json!({"endAfterEvents": 3}), true)] {
        let response = spoilt(&server, &session, "progress", json!({"steps": 10}), answer).await;
        let (text, whole) = drain(response).await;
        assert_eq!((text.matches("notifications/progress").count(), whole), (3, well), "{text}");
        assert!(!text.contains("result"));
    }
    let response =
        spoilt(&server, &session, "effect", json!({}), json!({"breakAfterEvents": 0, "sse": true})).await;
    let (text, whole) = drain(response).await;
    assert_eq!((text.as_str(), whole), ("", false));
    assert_eq!(server.books().await["effects"], 1);
}

#[tokio::test]
async fn json_may_come_as_an_event_after_other_lines() {
    let server = Server::start().await;
    let session = server.initialize("Bearer a").await;
    let log =
        json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": 1}});
    let answer = json!({"before": [log], "comments": 3, "retryMs": 250, "ids": true});
    let response = spoilt(&server, &session, "echo", json!({"message": "m"}), answer).await;
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let (text, whole) = drain(response).await;
    assert!(whole);
    let begin = format!(
        "retry: 250\n\n: probe\n: probe\n: probe\nid: 1\nevent: message\ndata: {log}\n\nid: 2\nevent: message\ndata: "
    );
    let rest = text.strip_prefix(&begin).unwrap_or_else(|| panic!("{text}"));
    assert_eq!(serde_json::from_str::<Value>(rest.trim()).unwrap()["id"], 1);
}

#[tokio::test]
async fn sizes_are_as_asked() {
    let server = Server::start().await;
    let session = server.initialize("Bearer a").await;
    let response = spoilt(&server, &session, "count", json!({}), json!({"comments": 50_000})).await;
    assert_eq!(drain(response).await.0.matches(": probe\n").count(), 50_000);

    let fill = json!({"fillHeaders": {"count": 100, "bytes": 1024}});
    let response = spoilt(&server, &session, "count", json!({}), fill).await;
    let filled = response.headers().iter().filter(|(name, _)| name.as_str().starts_with("x-probe-fill-"));
    assert_eq!(filled.map(|(_, value)| value.len()).sum::<usize>(), 100 * 1024);

    for stream in [false, true] {
        let big = json!({"bytes": 1_048_577, "stream": stream});
        let (text, _) = drain(spoilt(&server, &session, "big", big, json!({})).await).await;
        let longest = text.lines().map(str::len).max().unwrap();
        assert!((1_048_577..1_048_777).contains(&longest), "{longest}");
    }
}

#[tokio::test]
async fn an_answer_to_a_set_fault_can_be_spoilt_too() {
    let server = Server::start().await;
    let session = server.initialize("Bearer a").await;
    server.faults(json!({"tools/list": {"answer": {"sse": true}}})).await;
    let request = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    let mut stream = server.stream(&session, Some(&request)).await;
    assert_eq!(stream.next().await.unwrap()["result"]["tools"][0]["name"], "echo");
    server.faults(json!({"tools/list": {"status": 500, "body": "abc", "answer": {"stall": true}}})).await;
    let headers = [("mcp-session-id", session.as_str())];
    let response = server.send("POST", "/mcp", &headers, &request.to_string()).await.unwrap();
    assert_eq!(response.status().as_u16(), 500);
    assert!(time::timeout(QUIET, drain(response)).await.is_err(), "no body comes");
    assert_eq!(server.books().await["journal"][2]["fault"], "answer");
}
