//! Bytes that are to pass unchanged, both ways.

use probe::digest;
use serde_json::{Value, json};

use crate::client::{Server, text};

#[tokio::test]
async fn a_request_is_answered_as_it_arrived() {
    let server = Server::start().await;
    let session = server.initialize("Bearer a").await;
    let header = [("mcp-session-id", session.as_str())];
    let odd = r#"{ "z":1, "jsonrpc":"2.0","id":1.50e2,"params":{"name":"raw","arguments":{"big":12345678901234567890,"e":1E5},"task":{"ttl":1},"_meta":{"b":1,"a":2}},"method":"tools/call" }"#;
    let answer = server.ask("POST", "/mcp", &header, odd).await;
    assert_eq!(text(&answer.json()), odd);
    assert!(answer.body.contains(r#""id":1.50e2"#), "{}", answer.body);
    let unknown = r#"{"jsonrpc":"2.0","id":"u","method":"probe.test/raw","params":{"b":1.0,"a":[]}}"#;
    let answer = server.ask("POST", "/mcp", &header, unknown).await;
    assert_eq!(answer.json()["result"]["request"], unknown);

    let books = server.books().await;
    let entry = &books["journal"][2];
    assert_eq!(
        (&entry["bodyBytes"], &entry["bodySha256"]),
        (&json!(odd.len()), &json!(digest::hex(odd.as_bytes())))
    );
    assert_eq!(books["journal"][3]["method"], "probe.test/raw");
}

#[tokio::test]
async fn a_reply_is_what_it_was_told_to_be() {
    let server = Server::start().await;
    let session = server.initialize("Bearer a").await;
    let header = [("mcp-session-id", session.as_str())];
    let ask = |arguments: &str, id: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"reply","arguments":{arguments}}}}}"#
        )
    };
    let result = r#"{"content":[{"type":"x-new","n":1.0}],"structuredContent":{"b":1E2,"a":12345678901234567890},"x-probe":null}"#;
    let answer = server.ask("POST", "/mcp", &header, &ask(&format!(r#"{{"result":{result}}}"#), "1")).await;
    assert_eq!(answer.body, format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#));
    let error = r#"{"code":-32042,"message":"m","data":{"x":1.0}}"#;
    let answer =
        server.ask("POST", "/mcp", &header, &ask(&format!(r#"{{"error":{error}}}"#), r#""e""#)).await;
    assert_eq!(answer.body, format!(r#"{{"jsonrpc":"2.0","id":"e","error":{error}}}"#));
    let answer = server.ask("POST", "/mcp", &header, &ask("{}", "3")).await;
    assert_eq!(answer.json()["error"]["code"], -32602);
    // A line break between tokens must not end the event.
    let broken = ask("{\"stream\":true,\"result\":{\n\"content\":[]\r\n}}", "4");
    let response = server.send("POST", "/mcp", &header, &broken).await.unwrap();
    let (body, _) = crate::client::drain(response).await;
    let data = body.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(data).unwrap()["result"], json!({"content": []}));
}

#[tokio::test]
async fn completions_begin_with_what_is_there() {
    let server = Server::start().await;
    let session = server.initialize("Bearer a").await;
    let request = json!({"jsonrpc": "2.0", "id": 1, "method": "completion/complete", "params": {
        "ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "name", "value": "Ad"}}});
    let answer = server.post(&session, &request).await.json();
    assert_eq!(answer["result"]["completion"]["values"], json!(["Ada", "Adb", "Adc"]));
    assert_eq!(server.books().await["totals"]["completionComplete"], 1);
}
