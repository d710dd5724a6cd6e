//! Sessions and methods.

use http::StatusCode;
use serde_json::{Value, json};

use crate::client::{SOON, Server};

#[tokio::test]
async fn versions_are_agreed_on() {
    let server = Server::start().await;
    for (asked, agreed) in [
        ("2024-11-05", "2024-11-05"),
        ("2025-03-26", "2025-03-26"),
        ("2025-06-18", "2025-06-18"),
        ("2025-11-25", "2025-11-25"),
        ("2026-07-28", "2025-11-25"),
        ("nonsense", "2025-11-25"),
    ] {
        let body = json!({"jsonrpc": "2.0", "id": "a", "method": "initialize",
            "params": {"protocolVersion": asked, "capabilities": {}}});
        let answer = server.ask("POST", "/mcp", &[], &body.to_string()).await;
        assert_eq!(answer.json()["result"]["protocolVersion"], agreed);
        assert_eq!(answer.json()["id"], "a");
        assert_eq!(answer.headers["mcp-session-id"].len(), 32);
    }
}

#[tokio::test]
async fn a_session_is_needed_and_ends_once() {
    let server = Server::start().await;
    let ping = r#"{"jsonrpc":"2.0","id":5,"method":"ping"}"#;
    let without = server.ask("POST", "/mcp", &[], ping).await;
    assert_eq!((without.status, &without.json()["error"]["code"]), (StatusCode::BAD_REQUEST, &json!(-32000)));
    assert_eq!(without.json()["id"], 5);

    let session = server.initialize("Bearer a").await;
    let header = [("mcp-session-id", session.as_str())];
    let alive = server.ask("POST", "/mcp", &header, ping).await;
    assert_eq!(alive.body, r#"{"jsonrpc":"2.0","id":5,"result":{}}"#);
    let mut stream = server.stream(&session, None).await;

    assert_eq!(server.ask("DELETE", "/mcp", &header, "").await.status, StatusCode::OK);
    assert!(stream.next().await.is_none(), "the end of a session closes its streams");
    assert_eq!(server.ask("DELETE", "/mcp", &header, "").await.status, StatusCode::NOT_FOUND);
    let ended = server.ask("POST", "/mcp", &header, ping).await;
    assert_eq!((ended.status, &ended.json()["error"]["code"]), (StatusCode::NOT_FOUND, &json!(-32001)));
    let get = server.ask("GET", "/mcp", &header, "").await;
    assert_eq!(get.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn lists_keep_fields_that_no_sdk_knows() {
    let server = Server::start().await;
    let session = server.initialize("Bearer a").await;
    let request = |method: &str| json!({"jsonrpc": "2.0", "id": 1, "method": method});
    let tools = server.post(&session, &request("tools/list")).await;
    assert!(
        tools.body.contains(r#""x-probe-vendor":{"z":1,"a":[3,1,2],"big":12345678901234567890,"null":null}"#)
    );
    let names: Vec<Value> = tools.json()["result"]["tools"]
        .as_array()
        .unwrap()
        .iter()
        .inspect(|tool| assert_eq!(tool["inputSchema"]["type"], "object"))
        .map(|tool| tool["name"].clone())
        .collect();
    assert_eq!(names.len(), 14);
    for name in names {
        let answer = server.call(&session, name.as_str().unwrap(), json!({"stream": false}));
        // Only that it exists: what it does is the matter of other tests.
        if !["progress", "ask", "notify", "reply"].map(Value::from).contains(&name) {
            assert!(answer.await.get("error").is_none(), "{name} is listed but unknown");
        }
    }
    let resources = server.post(&session, &request("resources/list")).await.json();
    assert_eq!(resources["result"]["resources"][0]["uri"], "probe://about");
    let prompts = server.post(&session, &request("prompts/list")).await.json();
    assert_eq!(prompts["result"]["prompts"][0]["name"], "greet");
    let templates = server.post(&session, &request("resources/templates/list")).await.json();
    assert_eq!(templates["result"]["resourceTemplates"][0]["name"], "number");
    for method in ["server/discover", "no/such"] {
        assert_eq!(server.post(&session, &request(method)).await.json()["error"]["code"], -32601);
    }
    let get = json!({"jsonrpc": "2.0", "id": 1, "method": "prompts/get",
        "params": {"name": "greet", "arguments": {"name": "Ada"}}});
    let prompt = server.post(&session, &get).await.json();
    assert_eq!(prompt["result"]["messages"][0]["content"]["text"], "Greet Ada.");
    let read =
        |uri: &str| json!({"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": {"uri": uri}});
    let read_one = server.post(&session, &read("probe://about")).await.json();
    assert_eq!(read_one["result"]["contents"][0]["text"], "A server for tests.");
    assert_eq!(server.post(&session, &read("probe://no")).await.json()["error"]["code"], -32002);
}

#[tokio::test]
async fn bad_requests_are_told_apart() {
    let server = Server::start().await;
    let session = server.initialize("Bearer a").await;
    let header = [("mcp-session-id", session.as_str())];
    for (body, code) in [("{", -32700), ("[]", -32600), (r#"{"jsonrpc":"2.0","id":1}"#, -32600)] {
        let answer = server.ask("POST", "/mcp", &header, body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST);
        assert_eq!(answer.json()["error"]["code"], code, "{body}");
    }
    let versioned = [("mcp-session-id", session.as_str()), ("mcp-protocol-version", "1999-01-01")];
    let ping = r#"{"jsonrpc":"2.0","id":5,"method":"ping"}"#;
    assert_eq!(server.ask("POST", "/mcp", &versioned, ping).await.status, StatusCode::BAD_REQUEST);
    assert_eq!(server.ask("PUT", "/mcp", &header, "").await.status, StatusCode::METHOD_NOT_ALLOWED);
    let no_version = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#;
    assert_eq!(server.ask("POST", "/mcp", &[], no_version).await.json()["error"]["code"], -32602);
}

#[tokio::test]
async fn pushed_messages_come_on_the_newest_stream_and_are_answered() {
    let server = Server::start().await;
    let (one, other) = (server.initialize("Bearer a").await, server.initialize("Bearer b").await);
    let mut first = server.stream(&one, None).await;
    let mut second = server.stream(&other, None).await;
    let message = json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"});
    let push = json!({ "message": message }).to_string();
    assert_eq!(server.ask("POST", "/push", &[], &push).await.json()["sent"], 2);
    assert_eq!(first.next().await.unwrap(), message);
    assert_eq!(second.next().await.unwrap(), message);

    let ping = json!({"jsonrpc": "2.0", "id": "p", "method": "ping"});
    let push = json!({"session": one, "message": ping}).to_string();
    assert_eq!(server.ask("POST", "/push", &[], &push).await.json()["sent"], 1);
    assert_eq!(first.next().await.unwrap(), ping);
    let reply = server.post(&one, &json!({"jsonrpc": "2.0", "id": "p", "result": {}})).await;
    assert_eq!(reply.status, StatusCode::ACCEPTED);
    assert_eq!(server.books().await["totals"]["response"], 1);
    drop(first);
    server.until(|books| books["sessions"][0]["streams"] == 0).await;
    assert_eq!(server.ask("POST", "/push", &[], "{}").await.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn shutdown_ends_streams_and_the_server() {
    let mut server = Server::start().await;
    assert_eq!(server.ask("GET", "/healthz", &[], "").await.status, StatusCode::OK);
    let session = server.initialize("Bearer a").await;
    let mut stream = server.stream(&session, None).await;
    server.probe.shutdown.cancel();
    assert!(stream.next().await.is_none());
    tokio::time::timeout(SOON, &mut server.task).await.expect("an end in time").unwrap();
}
