//! Sessions that are lost and connections that break.

use http::StatusCode;
use serde_json::{Value, json};

use crate::client::{Server, call};

#[tokio::test]
async fn a_lost_session_is_answered_as_asked() {
    let server = Server::start().await;
    for (how, status, code) in [("notFound", 404, -32001), ("badRequest", 400, -32000)] {
        let session = server.initialize("Bearer a").await;
        let lose = json!({"session": session, "answer": how}).to_string();
        assert_eq!(server.ask("POST", "/sessions/lose", &[], &lose).await.json()["lost"], 1);
        let answer = server.post(&session, &call(7, "count", json!({}))).await;
        let error = &answer.json()["error"];
        assert_eq!((answer.status.as_u16(), &error["code"]), (status, &json!(code)));
        assert!(error["message"].as_str().unwrap().to_lowercase().contains("session"), "{error}");
        assert_eq!(answer.json()["id"], 7);
    }
    let session = server.initialize("Bearer a").await;
    let lose = json!({"session": session, "answer": "event"}).to_string();
    server.ask("POST", "/sessions/lose", &[], &lose).await;
    let mut stream = server.stream(&session, Some(&call(7, "count", json!({})))).await;
    let event = stream.next().await.unwrap();
    assert_eq!((&event["id"], &event["error"]["message"]), (&json!(7), &json!("Session not found")));
    assert!(stream.next().await.is_none());
    let books = server.books().await;
    assert_eq!(
        (&books["sessions"][2]["ended"], &books["totals"]["unknownSession"]),
        (&json!("lost"), &json!(3))
    );
}

#[tokio::test]
async fn all_sessions_are_lost_as_by_a_restart() {
    let server = Server::start().await;
    let (one, other) = (server.initialize("Bearer a").await, server.initialize("Bearer b").await);
    let mut stream = server.stream(&one, None).await;
    assert_eq!(server.ask("POST", "/sessions/lose", &[], "{}").await.json()["lost"], 2);
    assert!(stream.next().await.is_none());
    for session in [&one, &other] {
        assert_eq!(server.post(session, &call(1, "count", json!({}))).await.status, StatusCode::NOT_FOUND);
    }
    let new = server.initialize("Bearer a").await;
    server.call(&new, "count", json!({})).await;
    for body in ["", r#"{"answer": "nonsense"}"#, r#"{"sesion": "x"}"#] {
        assert_eq!(server.ask("POST", "/sessions/lose", &[], body).await.status, StatusCode::BAD_REQUEST);
    }
}

#[tokio::test]
async fn connections_break_and_calls_go_on() {
    let server = Server::start().await;
    let session = server.initialize("Bearer a").await;
    let mut stream = server.stream(&session, None).await;
    let header = [("mcp-session-id", session.as_str())];
    let sleep = call(1, "sleep", json!({"ms": 600_000})).to_string();
    let breaking = async {
        server.until(|books| books["sessions"][0]["inFlight"] == 1).await;
        server.ask("POST", "/connections/drop", &[], "").await.json()
    };
    let (answer, dropped) = tokio::join!(server.send("POST", "/mcp", &header, &sleep), breaking);
    assert!(answer.is_err());
    assert_eq!(dropped, json!({"dropped": 2}));
    assert!(stream.next().await.is_none());
    let books = server.until(|books| books["connections"]["mcpOpen"] == 0).await;
    assert_eq!(
        (&books["sessions"][0]["inFlight"], &books["sessions"][0]["ended"]),
        (&json!(1), &Value::Null)
    );
}
