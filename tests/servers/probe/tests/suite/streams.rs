//! The GET stream in every way it can be bad.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::client::{Server, drain};

#[tokio::test]
async fn a_stream_may_be_refused_or_be_none() {
    let server = Server::start().await;
    let session = server.initialize("Bearer a").await;
    let header = [("mcp-session-id", session.as_str())];
    for (fault, status, body) in [
        (json!({"status": 405, "headers": {"allow": "POST, DELETE"}}), 405, ""),
        (json!({"status": 200, "headers": {"content-type": "text/plain"}, "body": "hello"}), 200, "hello"),
        (json!({"status": 200, "headers": {"content-type": "text/event-stream"}}), 200, ""),
    ] {
        server.faults(json!({ "get": fault })).await;
        let answer = server.ask("GET", "/mcp", &header, "").await;
        assert_eq!((answer.status.as_u16(), answer.body.as_str()), (status, body));
        for (name, value) in fault["headers"].as_object().unwrap() {
            assert_eq!(answer.headers[name.as_str()], value.as_str().unwrap());
        }
    }
    let books = server.books().await;
    assert_eq!((&books["totals"]["get"], &books["sessions"][0]["requests"]["GET"]), (&json!(3), &json!(3)));
}

#[tokio::test]
async fn a_stream_may_flap() {
    let server = Server::start().await;
    let session = server.initialize("Bearer a").await;
    let header = [("mcp-session-id", session.as_str())];
    for (answer, well) in [(json!({"endAfterMs": 60}), true), (json!({"breakAfterMs": 60}), false)] {
        server.faults(json!({"get": { "answer": answer }})).await;
        let start = Instant::now();
        let response = server.send("GET", "/mcp", &header, "").await.unwrap();
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        assert_eq!(drain(response).await.1, well);
        assert!(start.elapsed() >= Duration::from_millis(60));
    }
    server.until(|books| books["sessions"][0]["streams"] == 0).await;
}

#[tokio::test]
async fn a_stream_may_have_ids_and_a_pause_and_be_taken_up_again() {
    let server = Server::start().await;
    let session = server.initialize("Bearer a").await;
    let header = [("mcp-session-id", session.as_str()), ("last-event-id", "17")];
    server.faults(json!({"get": {"answer": {"retryMs": 0, "ids": true, "endAfterEvents": 2}}})).await;
    let response = server.send("GET", "/mcp", &header, "").await.unwrap();
    let message = json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"});
    for _ in 0..2 {
        let sent = server.ask("POST", "/push", &[], &json!({ "message": message }).to_string()).await;
        assert_eq!(sent.json()["sent"], 1);
    }
    let (text, whole) = drain(response).await;
    assert!(whole && text.starts_with("retry: 0\n\n"), "{text}");
    for id in [1, 2] {
        assert!(text.contains(&format!("id: {id}\nevent: message\ndata: {message}\n\n")), "{text}");
    }
    let books = server.books().await;
    assert_eq!(books["journal"][2]["lastEventId"], "17");
}
