//! The books say what really happened.

use http::StatusCode;
use probe::digest;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::client::{Server, call};

#[tokio::test]
async fn sessions_totals_and_journal_agree_with_what_was_sent() {
    let server = Server::start().await;
    let (one, other) = (server.initialize("Bearer one").await, server.initialize("Bearer two").await);
    server.call(&one, "echo", json!({"message": "m"})).await;
    server.call(&one, "count", json!({})).await;
    server.call(&other, "echo", json!({"message": "m"})).await;
    server.post(&other, &json!({"jsonrpc": "2.0", "id": "l", "method": "tools/list"})).await;
    server.ask("DELETE", "/mcp", &[("mcp-session-id", &one)], "").await;
    server.ask("DELETE", "/mcp", &[("mcp-session-id", &one)], "").await;
    server.post("nobody", &call(1, "count", json!({}))).await;
    server.ask("POST", "/mcp", &[], "{}").await;

    let books = server.books().await;
    let [first, second] = books["sessions"].as_array().unwrap().as_slice() else { panic!("{books}") };
    assert_eq!(
        (&first["id"], &first["initializedAt"], &first["ended"]),
        (&json!(one), &json!(1), &json!("DELETE"))
    );
    assert_eq!(
        (&second["id"], &second["initializedAt"], &second["ended"]),
        (&json!(other), &json!(2), &Value::Null)
    );
    assert_eq!(first["calls"], json!({"echo": 1, "count": 1}));
    let requests = json!({"initialize": 1, "notifications/initialized": 1, "tools/call": 2, "DELETE": 1});
    assert_eq!(first["requests"], requests);
    assert_eq!(first["clientInfo"]["name"], "suite");
    assert_eq!(first["protocolVersion"], "2025-11-25");
    assert_eq!(first["capabilities"], json!({"elicitation": {}, "sampling": {}}));
    assert_eq!(first["authorizationSha256AtInitialize"], digest::hex(b"Bearer one"));
    assert_eq!(second["authorizationSha256s"], json!([digest::hex(b"Bearer two"), "none"]));

    let expected = [
        ("initialize", 2),
        ("initialized", 2),
        ("toolsCall", 3),
        ("toolsList", 1),
        ("delete", 1),
        ("deleteUnknown", 1),
        ("unknownSession", 1),
        ("noSession", 1),
        ("ping", 0),
        ("cancelled", 0),
        ("unauthorized", 0),
    ];
    for (name, count) in expected {
        assert_eq!(books["totals"][name], count, "{name}");
    }
    let journal: Vec<_> = books["journal"].as_array().unwrap().iter().map(|entry| &entry["method"]).collect();
    assert_eq!(journal.len(), 12);
    assert_eq!(journal[..2], ["initialize", "notifications/initialized"]);
    assert_eq!(journal[7..], ["tools/list", "DELETE", "DELETE", "tools/call", "invalid"]);
    let entry = &books["journal"][4];
    assert_eq!((&entry["seq"], &entry["tool"], &entry["jsonrpcId"]), (&json!(5), &json!("echo"), &json!(1)));
    assert_eq!(
        (&entry["sessionId"], &entry["authSha256"], &entry["status"]),
        (&json!(one), &json!("none"), &json!(200))
    );
    assert_eq!((&books["journal"][0]["minted"], &books["dropped"]), (&json!(one), &json!(0)));
}

#[tokio::test]
async fn no_credential_is_in_the_books() {
    let server = Server::start().await;
    let session = server.initialize("Bearer s3cret").await;
    let headers = [
        ("mcp-session-id", session.as_str()),
        ("authorization", "Bearer s3cret"),
        ("cookie", "c=s3cret"),
        ("x-api-key", "s3cret"),
        ("x-request-id", "r1"),
    ];
    server.ask("POST", "/mcp", &headers, r#"{"jsonrpc":"2.0","id":5,"method":"ping"}"#).await;
    let answer = server.ask("GET", "/books", &[], "").await;
    assert!(!answer.body.contains("s3cret"));
    let last = &answer.json()["sessions"][0]["lastHeaders"];
    assert_eq!((&last["x-request-id"], &last["host"]), (&json!("r1"), &json!("probe.test")));
    assert_eq!(last["x-api-key"], format!("sha256:{}", digest::hex(b"s3cret")));
}

#[tokio::test]
async fn connections_are_counted_where_they_are_accepted() {
    let server = Server::start().await;
    let session = server.initialize("Bearer a").await;
    let idle = TcpStream::connect(server.address).await.unwrap();
    let stream = server.stream(&session, None).await;
    // The one that asks for the books is open too.
    let books = server.until(|books| books["connections"]["open"] == 3).await;
    assert_eq!(
        (&books["connections"]["mcpAccepted"], &books["connections"]["mcpOpen"]),
        (&json!(3), &json!(1))
    );
    drop((idle, stream));
    let books = server.until(|books| books["connections"]["open"] == 1).await;
    assert_eq!(books["connections"]["mcpOpen"], 0);
    server.ask("POST", "/books/reset", &[], "").await;
    let books = server.books().await;
    assert_eq!(
        (&books["connections"]["accepted"], &books["connections"]["mcpAccepted"]),
        (&json!(1), &json!(0))
    );
}

#[tokio::test]
async fn after_a_reset_old_sessions_live_on_uncounted() {
    let server = Server::start().await;
    let old = server.initialize("Bearer a").await;
    server.call(&old, "remember", json!({"value": "v"})).await;
    server.call(&old, "effect", json!({})).await;
    assert_eq!(server.ask("POST", "/books/reset", &[], "").await.status, StatusCode::NO_CONTENT);
    let recalled = server.call(&old, "recall", json!({})).await;
    assert_eq!(recalled["result"]["structuredContent"]["value"], "v");
    let new = server.initialize("Bearer b").await;
    server.call(&new, "count", json!({})).await;

    let books = server.books().await;
    assert_eq!(books["sessions"].as_array().unwrap().len(), 1);
    assert_eq!(
        (&books["sessions"][0]["id"], &books["sessions"][0]["initializedAt"]),
        (&json!(new), &json!(1))
    );
    let totals = &books["totals"];
    assert_eq!(
        (&totals["uncounted"], &totals["toolsCall"], &totals["initialize"]),
        (&json!(1), &json!(1), &json!(1))
    );
    assert_eq!((&books["effects"], &books["journal"][0]["seq"]), (&json!(0), &json!(1)));
}
