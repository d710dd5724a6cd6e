//! Every fault.

use std::time::{Duration, Instant};

use http::StatusCode;
use serde_json::{Value, json};
use tokio::time;

use crate::client::{Server, call};

const PING: &str = r#"{"jsonrpc":"2.0","id":5,"method":"ping"}"#;

#[tokio::test]
async fn status_with_headers_and_body_for_so_many_times() {
    let server = Server::start().await;
    for status in [401, 403, 404, 429, 500, 503] {
        let fault = json!({"status": status, "headers": {"retry-after": "7"}, "body": "b", "times": 1});
        let set = server.faults(json!({ "initialize": fault })).await;
        assert_eq!(set["initialize"]["times"], 1);
        let body =
            json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": "x"}});
        let answer = server.ask("POST", "/mcp", &[], &body.to_string()).await;
        assert_eq!((answer.status.as_u16(), answer.body.as_str()), (status, "b"));
        assert_eq!(answer.headers["retry-after"], "7");
        assert_eq!(server.ask("GET", "/faults", &[], "").await.json(), json!({}));
    }
    server.initialize("Bearer a").await;
    let books = server.books().await;
    let totals = &books["totals"];
    assert_eq!(books["sessions"].as_array().unwrap().len(), 1);
    assert_eq!(
        (&totals["initialize"], &totals["faulted"], &totals["unauthorized"]),
        (&json!(7), &json!(6), &json!(1))
    );
    assert_eq!(
        (&books["journal"][0]["fault"], &books["journal"][0]["status"]),
        (&json!("status 401"), &json!(401))
    );
}

#[tokio::test]
async fn delay_lets_the_request_go_on() {
    let server = Server::start().await;
    let session = server.initialize("Bearer a").await;
    server.faults(json!({"call": {"delayMs": 60}})).await;
    let start = Instant::now();
    server.call(&session, "count", json!({})).await;
    assert!(start.elapsed() >= Duration::from_millis(60));
    let start = Instant::now();
    server.faults(json!({"call": {"delayMs": 60, "status": 503}})).await;
    assert_eq!(server.post(&session, &call(1, "count", json!({}))).await.status.as_u16(), 503);
    assert!(start.elapsed() >= Duration::from_millis(60));
    assert_eq!(server.books().await["sessions"][0]["calls"], json!({"count": 1}));
}

#[tokio::test]
async fn close_drops_the_connection_before_or_after_the_work() {
    let server = Server::start().await;
    let session = server.initialize("Bearer a").await;
    let header = [("mcp-session-id", session.as_str())];
    let effect = call(1, "effect", json!({})).to_string();
    for (after, effects) in [(false, 0), (true, 1)] {
        server.faults(json!({"call": {"close": true, "after": after, "times": 1}})).await;
        let error = server.send("POST", "/mcp", &header, &effect).await.expect_err("no answer");
        assert!(error.is_incomplete_message() || error.is_canceled(), "{error}");
        assert_eq!(server.books().await["effects"], effects);
    }
    let books = server.until(|books| books["connections"]["mcpOpen"] == 0).await;
    assert_eq!(books["journal"][3]["fault"], "close after");
    assert_eq!(books["journal"][2]["fault"], "close");
    assert_eq!(books["journal"][2]["status"], Value::Null);
}

#[tokio::test]
async fn a_hung_delete_never_answers() {
    let server = Server::start().await;
    let session = server.initialize("Bearer a").await;
    server.faults(json!({"delete": {"hang": true}})).await;
    let header = [("mcp-session-id", session.as_str())];
    let mut hung = Box::pin(server.send("DELETE", "/mcp", &header, ""));
    tokio::select! {
        answer = &mut hung => panic!("answered: {answer:?}"),
        _ = server.until(|books| books["totals"]["delete"] == 1) => {}
    }
    server.ask("DELETE", "/faults", &[], "").await;
    let hangs_on = time::timeout(Duration::from_millis(200), &mut hung).await.is_err();
    assert!(hangs_on, "clearing faults does not answer what hangs");
    drop(hung);
    let books = server.until(|books| books["connections"]["mcpOpen"] == 0).await;
    assert_eq!((&books["totals"]["delete"], &books["sessions"][0]["ended"]), (&json!(1), &Value::Null));
    assert_eq!(server.ask("DELETE", "/mcp", &header, "").await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_delete_may_hang_after_it_ended_the_session() {
    let server = Server::start().await;
    let session = server.initialize("Bearer a").await;
    server.faults(json!({"delete": {"hang": true, "after": true}})).await;
    let header = [("mcp-session-id", session.as_str())];
    let hung = time::timeout(Duration::from_millis(100), server.send("DELETE", "/mcp", &header, "")).await;
    assert!(hung.is_err());
    assert_eq!(server.books().await["sessions"][0]["ended"], "DELETE");
}

#[tokio::test]
async fn get_any_and_single_methods() {
    let server = Server::start().await;
    let session = server.initialize("Bearer a").await;
    let header = [("mcp-session-id", session.as_str())];
    let flap = json!({"status": 200, "headers": {"content-type": "text/event-stream"}});
    server.faults(json!({"get": flap, "ping": {"status": 500}, "any": {"status": 503}})).await;
    let answer = server.ask("GET", "/mcp", &header, "").await;
    assert_eq!((answer.status, answer.body.as_str()), (StatusCode::OK, ""));
    assert_eq!(server.ask("POST", "/mcp", &header, PING).await.status.as_u16(), 500);
    assert_eq!(server.post(&session, &call(1, "count", json!({}))).await.status.as_u16(), 503);
    server.faults(json!({"any": null, "ping": null})).await;
    assert_eq!(server.ask("POST", "/mcp", &header, PING).await.status, StatusCode::OK);
    assert_eq!(server.ask("GET", "/faults", &[], "").await.json(), json!({ "get": flap }));
}

#[tokio::test]
async fn nonsense_is_refused() {
    let server = Server::start().await;
    for body in ["", "[]", r#"{"any": {"hnag": true}}"#, r#"{"any": {"status": 42}}"#] {
        let answer = server.ask("POST", "/faults", &[], body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{body}");
        assert!(answer.json()["error"].is_string());
    }
}
