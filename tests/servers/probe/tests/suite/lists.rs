//! Lists of tools: pages, sizes, and tools that come and go.

use http::StatusCode;
use serde_json::{Value, json};

use crate::client::{Server, text};

async fn set(server: &Server, catalogue: Value) {
    let answer = server.ask("POST", "/tools", &[], &catalogue.to_string()).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
}

async fn page(server: &Server, session: &str, cursor: &Value) -> Value {
    let request = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"cursor": cursor}});
    server.post(session, &request).await.json()["result"].clone()
}

#[tokio::test]
async fn a_hundred_and_one_tools_at_fifty_a_page() {
    let server = Server::start().await;
    let session = server.initialize("Bearer a").await;
    for (pages, sizes) in [("good", vec![50, 50, 1]), ("emptyLast", vec![50, 50, 1, 0])] {
        set(&server, json!({"real": false, "filler": 101, "page": 50, "pages": pages})).await;
        let (mut cursor, mut seen) = (Value::Null, Vec::new());
        loop {
            let page = page(&server, &session, &cursor).await;
            seen.push(page["tools"].as_array().unwrap().len());
            cursor = page["nextCursor"].clone();
            if cursor.is_null() {
                break;
            }
        }
        assert_eq!(seen, sizes, "{pages}");
    }
}

#[tokio::test]
async fn cursors_may_repeat_or_never_end() {
    let server = Server::start().await;
    let session = server.initialize("Bearer a").await;
    set(&server, json!({"real": false, "filler": 101, "page": 50, "pages": "repeat"})).await;
    let first = page(&server, &session, &Value::Null).await;
    let second = page(&server, &session, &first["nextCursor"]).await;
    assert_eq!(second["nextCursor"], first["nextCursor"]);
    assert_eq!(page(&server, &session, &second["nextCursor"]).await, second);

    set(&server, json!({"page": 50, "pages": "endless"})).await;
    let (mut cursor, mut names) = (Value::Null, std::collections::BTreeSet::new());
    for _ in 0..20 {
        let page = page(&server, &session, &cursor).await;
        names.extend(page["tools"].as_array().unwrap().iter().map(|tool| tool["name"].to_string()));
        assert_ne!(page["nextCursor"], cursor);
        cursor = page["nextCursor"].clone();
    }
    assert_eq!(names.len(), 1000);
    let request =
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"cursor": "nonsense"}});
    assert_eq!(server.post(&session, &request).await.json()["error"]["code"], -32602);
}

#[tokio::test]
async fn five_thousand_tools_are_ten_megabytes() {
    let server = Server::start().await;
    let session = server.initialize("Bearer a").await;
    set(&server, json!({"real": false, "filler": 5000, "fillerBytes": 2000})).await;
    let request = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    let answer = server.post(&session, &request).await;
    assert!(answer.body.len() > 10_000_000, "{}", answer.body.len());
    assert_eq!(answer.json()["result"]["tools"].as_array().unwrap().len(), 5000);
}

#[tokio::test]
async fn tools_come_and_go_and_come_back() {
    let server = Server::start().await;
    let session = server.initialize("Bearer a").await;
    set(&server, json!({"add": [{"name": "new", "inputSchema": {"type": "object"}}], "remove": ["echo"]}))
        .await;
    let names: Vec<String> = page(&server, &session, &Value::Null).await["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["name"].as_str().unwrap().to_owned())
        .collect();
    assert!(names.contains(&"new".to_owned()) && !names.contains(&"echo".to_owned()), "{names:?}");
    assert_eq!(text(&server.call(&session, "new", json!({})).await), "called new");
    assert_eq!(server.call(&session, "echo", json!({"message": "m"})).await["error"]["code"], -32602);
    assert_eq!(server.ask("DELETE", "/tools", &[], "").await.status, StatusCode::NO_CONTENT);
    assert_eq!(text(&server.call(&session, "echo", json!({"message": "m"})).await), "m");
    assert_eq!(server.ask("POST", "/tools", &[], r#"{"filer": 1}"#).await.status, StatusCode::BAD_REQUEST);
    assert_eq!(server.ask("GET", "/tools", &[], "").await.json()["real"], true);
}
