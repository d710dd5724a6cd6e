//! Requests of the server, on the stream of a call and on the GET stream, and their answers in the books.

use http::StatusCode;
use serde_json::{Value, json};

use crate::client::{Server, call, text};

/// Starts a session that declares everything.
async fn able(server: &Server) -> String {
    let params = json!({"protocolVersion": "2025-11-25",
        "capabilities": {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {"listChanged": true}}});
    let body = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}).to_string();
    let answer = server.ask("POST", "/mcp", &[], &body).await;
    answer.headers["mcp-session-id"].to_str().unwrap().to_owned()
}

const KINDS: [(&str, &str); 5] = [
    ("elicitation", "elicitation/create"),
    ("elicitation-url", "elicitation/create"),
    ("sampling", "sampling/createMessage"),
    ("roots", "roots/list"),
    ("ping", "ping"),
];

#[tokio::test]
async fn every_kind_is_asked_on_both_ways() {
    let server = Server::start().await;
    let session = able(&server).await;
    let mut listening = server.stream(&session, None).await;
    for (number, (kind, method)) in (1..).zip(KINDS) {
        for via in ["call", "stream"] {
            let arguments = json!({"kind": kind, "via": via, "message": "m"});
            let mut calling = server.stream(&session, Some(&call(4, "ask", arguments))).await;
            let question = if via == "call" { calling.next().await } else { listening.next().await }.unwrap();
            assert_eq!(question["method"], method);
            match kind {
                "elicitation" => assert_eq!(question["params"]["requestedSchema"]["type"], "object"),
                "elicitation-url" => assert_eq!(question["params"]["mode"], "url"),
                "sampling" => assert_eq!(question["params"]["maxTokens"], 100),
                _ => assert_eq!(question.get("params"), None),
            }
            let reply = json!({"jsonrpc": "2.0", "id": question["id"], "result": {"n": number}});
            server.post(&session, &reply).await;
            let answer = calling.next().await.unwrap();
            assert_eq!(answer["result"]["structuredContent"]["answer"], json!({"n": number}));
        }
    }
    let books = server.books().await;
    let replies = books["replies"].as_array().unwrap();
    let ids: Vec<_> = replies.iter().map(|reply| reply["jsonrpcId"].as_u64().unwrap()).collect();
    assert_eq!(ids, (1..=10).collect::<Vec<_>>());
    assert_eq!(
        replies[9],
        json!({"sessionId": session, "jsonrpcId": 10, "asked": "ping", "result": {"n": 5}, "error": null})
    );
}

#[tokio::test]
async fn an_admin_call_asks_every_session_that_can_be_asked() {
    let server = Server::start().await;
    let (able, unable) = (able(&server).await, server.initialize("Bearer a").await);
    let (mut one, mut other) = (server.stream(&able, None).await, server.stream(&unable, None).await);
    let asked = server.ask("POST", "/ask", &[], r#"{"kind": "roots"}"#).await.json();
    assert_eq!(asked, json!({"asked": [{"session": able, "id": 1}]}));
    assert_eq!(one.next().await.unwrap()["method"], "roots/list");
    let forced = json!({"kind": "roots", "session": unable, "force": true}).to_string();
    let asked = server.ask("POST", "/ask", &[], &forced).await.json();
    assert_eq!(asked["asked"][0]["session"], unable);
    assert_eq!(other.next().await.unwrap()["id"], 1);

    // The right id on the wrong session is an answer too, for the books to tell.
    for (session, id) in [(&able, json!(1)), (&unable, json!(1)), (&able, json!("1")), (&able, json!(1))] {
        let reply = json!({"jsonrpc": "2.0", "id": id, "error": {"code": -1, "message": "no"}});
        assert_eq!(server.post(session, &reply).await.status, StatusCode::ACCEPTED);
    }
    let books = server.books().await;
    let asked: Vec<_> = books["replies"].as_array().unwrap().iter().map(|reply| &reply["asked"]).collect();
    assert_eq!(asked, [&json!("roots/list"), &json!("roots/list"), &Value::Null, &Value::Null]);
    assert_eq!(books["replies"][2]["jsonrpcId"], "1");
    assert_eq!(
        server.ask("POST", "/ask", &[], r#"{"kind": "nonsense"}"#).await.status,
        StatusCode::BAD_REQUEST
    );
}

#[tokio::test]
async fn who_declared_nothing_is_asked_only_by_force() {
    let server = Server::start().await;
    let session = server.initialize("Bearer a").await;
    let mut stream = server.stream(&session, Some(&call(4, "ask", json!({"kind": "roots"})))).await;
    assert_eq!(text(&stream.next().await.unwrap()), "the client did not declare roots");
    let forced = json!({"kind": "roots", "force": true});
    let mut stream = server.stream(&session, Some(&call(4, "ask", forced))).await;
    assert_eq!(stream.next().await.unwrap()["method"], "roots/list");
    let unheard = json!({"kind": "ping", "via": "stream"});
    let mut stream = server.stream(&session, Some(&call(4, "ask", unheard))).await;
    assert_eq!(text(&stream.next().await.unwrap()), "nobody took the question");
}

#[tokio::test]
async fn a_question_may_be_taken_back() {
    let server = Server::start().await;
    let session = server.initialize("Bearer a").await;
    let arguments = json!({"kind": "sampling", "cancelAfterMs": 10});
    let mut stream = server.stream(&session, Some(&call(4, "ask", arguments))).await;
    let question = stream.next().await.unwrap();
    let cancelled = stream.next().await.unwrap();
    assert_eq!(cancelled["method"], "notifications/cancelled");
    assert_eq!(cancelled["params"]["requestId"], question["id"]);
}
