//! Answers that are mere statuses, faults of one path or some time, and faults that a request brings along.

use std::time::{Duration, SystemTime};

use http::StatusCode;
use serde_json::{Value, json};

use crate::client::{Server, call};

const INITIALIZE: &str =
    r#"{"jsonrpc":"2.0","id":"i-1","method":"initialize","params":{"protocolVersion":"2025-11-25"}}"#;
const PING: &str = r#"{"jsonrpc":"2.0","id":5,"method":"ping"}"#;

#[tokio::test]
async fn a_401_may_name_where_to_sign_in() {
    let server = Server::start().await;
    let challenge =
        r#"Bearer resource_metadata="http://127.0.0.1:9000/.well-known/oauth-protected-resource""#;
    for headers in [json!({}), json!({ "www-authenticate": challenge })] {
        server.faults(json!({"initialize": {"status": 401, "headers": headers, "times": 1}})).await;
        let answer = server.ask("POST", "/mcp", &[], INITIALIZE).await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
        let told = answer.headers.get("www-authenticate").map(|value| value.to_str().unwrap());
        assert_eq!(told, headers["www-authenticate"].as_str());
    }
}

#[tokio::test]
async fn retry_after_is_seconds_a_date_or_rubbish() {
    let server = Server::start().await;
    for written in ["120", "soon"] {
        let fault = json!({"status": 429, "headers": {"retry-after": written}, "times": 1});
        server.faults(json!({ "initialize": fault })).await;
        assert_eq!(server.ask("POST", "/mcp", &[], INITIALIZE).await.headers["retry-after"], written);
    }
    server.faults(json!({"initialize": {"status": 429, "retryAfterDate": 120}})).await;
    let before = SystemTime::now();
    let answer = server.ask("POST", "/mcp", &[], INITIALIZE).await;
    let date = httpdate::parse_http_date(answer.headers["retry-after"].to_str().unwrap()).unwrap();
    let ahead = date.duration_since(before).unwrap();
    assert!((118..=122).contains(&ahead.as_secs()), "{ahead:?}");
}

#[tokio::test]
async fn an_outage_ends_by_itself() {
    let server = Server::start().await;
    server.faults(json!({"any": {"status": 503, "forMs": 150}})).await;
    assert_eq!(server.ask("POST", "/mcp", &[], INITIALIZE).await.status, StatusCode::SERVICE_UNAVAILABLE);
    tokio::time::sleep(Duration::from_millis(150)).await;
    assert_eq!(server.ask("POST", "/mcp", &[], INITIALIZE).await.status, StatusCode::OK);
    assert_eq!(server.ask("GET", "/faults", &[], "").await.json(), json!({}));
}

#[tokio::test]
async fn a_redirect_may_lead_to_another_path_that_is_served() {
    let server = Server::start().await;
    let session = server.initialize("Bearer a").await;
    let header = [("mcp-session-id", session.as_str())];
    let away = json!({"status": 307, "headers": {"location": "/mcp/moved"}, "path": "/mcp"});
    server.faults(json!({ "any": away })).await;
    let answer = server.ask("POST", "/mcp", &header, PING).await;
    assert_eq!((answer.status.as_u16(), &answer.headers["location"]), (307, &"/mcp/moved".parse().unwrap()));
    assert_eq!(server.ask("POST", "/mcp/moved", &header, PING).await.status, StatusCode::OK);
    // A loop: the way leads to where it began.
    let around = json!({"status": 308, "headers": {"location": "/mcp/moved"}});
    server.faults(json!({ "any": around })).await;
    assert_eq!(server.ask("POST", "/mcp/moved", &header, PING).await.status.as_u16(), 308);
    let books = server.books().await;
    let paths: Vec<_> =
        books["journal"].as_array().unwrap().iter().skip(2).map(|entry| &entry["path"]).collect();
    assert_eq!(paths, ["/mcp", "/mcp/moved", "/mcp/moved"]);
    assert_eq!(books["journal"][2]["port"], "main");
}

#[tokio::test]
async fn a_body_may_carry_the_id_of_the_request() {
    let server = Server::start().await;
    let error = r#"{"jsonrpc":"2.0","id":{id},"error":{"code":-32000,"message":"no valid session"}}"#;
    server.faults(json!({"initialize": {"status": 400, "body": error}})).await;
    assert_eq!(server.ask("POST", "/mcp", &[], INITIALIZE).await.json()["id"], "i-1");
}

#[tokio::test]
async fn a_request_may_bring_its_fault_along() {
    let server = Server::start().await;
    let session = server.initialize("Bearer a").await;
    let header = [("mcp-session-id", session.as_str())];
    let effect = |fault: Value| {
        let mut call = call(1, "effect", json!({}));
        call["params"]["_meta"]["probe.test/fault"] = fault;
        call.to_string()
    };
    for (fault, effects) in [(json!({"close": true}), 0), (json!({"close": true, "after": true}), 1)] {
        assert!(server.send("POST", "/mcp", &header, &effect(fault)).await.is_err());
        assert_eq!(server.books().await["effects"], effects);
    }
    let answer = server.ask("POST", "/mcp", &header, &effect(json!({"status": 503}))).await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    let refused = server.ask("POST", "/mcp", &header, &effect(json!({"hnag": true}))).await;
    assert_eq!((refused.status.as_u16(), &refused.json()["error"]["code"]), (400, &json!(-32602)));
    // It comes before what is set, which is not used up.
    server.faults(json!({"call": {"status": 500, "times": 1}})).await;
    assert_eq!(
        server.ask("POST", "/mcp", &header, &effect(json!({"status": 502}))).await.status.as_u16(),
        502
    );
    assert_eq!(server.ask("POST", "/mcp", &header, &effect(json!(null))).await.status.as_u16(), 400);
    assert_eq!(server.post(&session, &call(1, "effect", json!({}))).await.status.as_u16(), 500);
    assert_eq!(server.books().await["effects"], 1);
}

#[tokio::test]
async fn initialize_may_succeed_late_and_initialized_may_hang() {
    let server = Server::start().await;
    // The session is there before the answer is: a caller who gave up has left one behind.
    server.faults(json!({"initialize": {"delayMs": 300, "after": true, "times": 1}})).await;
    let late = server.ask("POST", "/mcp", &[], INITIALIZE);
    let meanwhile = server.until(|books| books["sessions"].as_array().is_some_and(|rows| rows.len() == 1));
    let (answer, books) = tokio::join!(late, meanwhile);
    assert_eq!(books["journal"][0]["status"], Value::Null, "the answer was not there yet");
    let session = answer.headers["mcp-session-id"].to_str().unwrap().to_owned();
    server.faults(json!({"notifications/initialized": {"hang": true}})).await;
    let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    let hung = tokio::time::timeout(Duration::from_millis(150), server.post(&session, &initialized)).await;
    assert!(hung.is_err(), "no answer");
    assert_eq!(server.books().await["totals"]["initialized"], 1);
}

#[tokio::test]
async fn only_some_hosts_may_be_served() {
    let server = Server::start().await;
    for (spared, status) in [("localhost:*", 421), ("probe.test:*", 200)] {
        server.faults(json!({"any": {"status": 421, "unlessHost": [spared]}})).await;
        assert_eq!(server.ask("POST", "/mcp", &[], INITIALIZE).await.status.as_u16(), status, "{spared}");
    }
}
