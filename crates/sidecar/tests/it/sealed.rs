//! Client scopes that outlive the sidecar in which they were opened.

use crate::support::client::{Client, initialize, tool_call};
use crate::support::harness::{EndBounds, Harness, spec};
use crate::support::upstream::Upstream;
use berth_wire::{EndPhase, ScopeKey, SessionSpec};
use http::StatusCode;
use serde_json::json;

fn keyed(uid: &str, upstream: &Upstream, byte: char) -> SessionSpec {
    // 43 characters and a padding are 32 bytes.
    SessionSpec { scope_key: Some(ScopeKey(format!("{byte}{}=", "A".repeat(42)))), ..spec(uid, upstream) }
}

fn moved<'a>(client: &Client<'_>, to: &'a Harness, uid: &str) -> Client<'a> {
    Client { harness: to, uid: uid.into(), scope: client.scope.clone() }
}

#[tokio::test]
async fn a_scope_is_rebuilt_in_the_next_sidecar_and_speaks_for_its_client() {
    let (old, upstream) = (Harness::start(1).await, Upstream::start().await);
    old.put(&keyed("s", &upstream, 'B')).await;
    let mut client = old.client("s");
    let mut message = initialize("init");
    message["params"]["capabilities"] = json!({"sampling": {}, "x-vendor": {"y": 1.5}});
    client.initialize_as(&message).await.unwrap();
    let ended = old.initialized("s").await;
    let token = client.scope.clone().unwrap();
    assert!(token.len() < 1024 && token.bytes().all(|byte| byte.is_ascii_graphic()), "{token}");
    old.end_now("s").await;
    old.assert_baseline().await;

    let new = Harness::start(2).await;
    new.put(&keyed("s", &upstream, 'B')).await;
    let (client, ended) = (moved(&client, &new, "s"), moved(&ended, &new, "s"));
    assert_eq!(ended.delete().await, StatusCode::NO_CONTENT, "it is known, and ends");
    assert_eq!(ended.delete().await, StatusCode::NOT_FOUND);
    assert_eq!(ended.get().await.status(), StatusCode::NOT_FOUND, "what its client ended is not rebuilt");
    assert_eq!(upstream.books().initializes.len(), 1, "no scope is a reason to connect");
    let answer = client.call("echo", json!({"x": 1})).await;
    assert_eq!(answer["result"]["x"], 1, "{answer}");
    {
        let books = upstream.books();
        assert_eq!(books.initializes.len(), 2);
        assert_eq!(books.initializes[1]["params"], message["params"], "as its client spelled them");
    }
    // Its capabilities are known again.
    let asked = client.call("ask", json!({})).await;
    assert_eq!(asked["result"]["error"]["code"], -32601, "{asked}");
    new.end_now("s").await;
    new.assert_baseline().await;
}

#[tokio::test]
async fn a_client_whose_session_ends_in_a_sidecar_is_sent_on_with_its_scope() {
    let (other, old, upstream) = (Harness::start(1).await, Harness::start(1).await, Upstream::start().await);
    for harness in [&other, &old] {
        harness.put(&keyed("s", &upstream, 'B')).await;
    }
    let held = old.initialized("s").await;
    let not_held = moved(&other.initialized("s").await, &old, "s");
    let running = held.begin(&tool_call(json!(1), "hold", &json!({}))).await;
    let (_, report) = old.end("s", EndBounds { drain: 15_000, close: 5_000, wait: 0 }).await;
    assert_eq!(report.phase, EndPhase::Draining);
    let ping = json!({"jsonrpc": "2.0", "id": 2, "method": "ping"});
    let notification = json!({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"});
    for client in [&held, &not_held] {
        for message in [&ping, &tool_call(json!(2), "echo", &json!({}))] {
            assert_eq!(client.json(message).await.0, StatusCode::MISDIRECTED_REQUEST, "{message}");
        }
        assert_eq!(client.get().await.status(), StatusCode::MISDIRECTED_REQUEST);
    }
    assert_eq!(not_held.json(&notification).await.0, StatusCode::MISDIRECTED_REQUEST);
    assert_eq!(held.json(&notification).await.0, StatusCode::ACCEPTED, "it may be for the call that runs");
    upstream.release();
    assert_eq!(running.messages().await.pop().unwrap()["result"], json!({"held": true}));
    for harness in [&other, &old] {
        harness.end_now("s").await;
        harness.assert_baseline().await;
    }
}

#[tokio::test]
async fn a_token_opens_nothing_elsewhere() {
    let (harness, upstream) = (Harness::start(3).await, Upstream::start().await);
    harness.put(&keyed("s", &upstream, 'B')).await;
    harness.put(&keyed("t", &upstream, 'B')).await;
    harness.put(&spec("u", &upstream)).await;
    let client = harness.initialized("s").await;
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
    assert_eq!(client.json(&ping).await.0, StatusCode::OK);
    let other = moved(&client, &harness, "t");
    assert_eq!(other.json(&ping).await.0, StatusCode::NOT_FOUND, "another session's");
    assert_eq!(other.delete().await, StatusCode::NOT_FOUND);
    let mut forged = moved(&client, &harness, "s");
    forged.scope.as_mut().unwrap().replace_range(30..31, "?");
    assert_eq!(forged.json(&ping).await.0, StatusCode::NOT_FOUND);
    // Without a key of the session's the tokens end with the process, and hold in it.
    let unkeyed = harness.initialized("u").await;
    assert_eq!(unkeyed.json(&ping).await.0, StatusCode::OK);
    let next = Harness::start(1).await;
    next.put(&spec("u", &upstream)).await;
    assert_eq!(moved(&unkeyed, &next, "u").json(&ping).await.0, StatusCode::NOT_FOUND);
    // A key that changes ends what it sealed.
    let mut changed = keyed("s", &upstream, 'C');
    changed.generation.session += 1;
    harness.put(&changed).await;
    assert_eq!(client.json(&ping).await.0, StatusCode::NOT_FOUND);
    for uid in ["s", "t", "u"] {
        harness.end_now(uid).await;
    }
    next.end_now("u").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn a_key_that_is_none_is_refused_without_being_quoted() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    let mut session = spec("s", &upstream);
    session.scope_key = Some(ScopeKey("hunter2".into()));
    let (status, body) = harness.try_put(&session).await;
    let text = String::from_utf8(body).unwrap();
    assert!(
        status.is_client_error() && text.contains("scopeKey") && !text.contains("hunter2"),
        "{status} {text}"
    );
}
