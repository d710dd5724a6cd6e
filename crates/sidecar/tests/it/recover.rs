//! What becomes of clients when the upstream forgets its session.

use crate::support::client::{Client, tool_call};
use crate::support::harness::{Harness, read, spec};
use crate::support::upstream::{Unknown, Upstream};
use berth_wire::{OnStateLost, SessionState};
use futures::future::join_all;
use futures::{StreamExt, stream};
use http::StatusCode;
use serde_json::{Value, json};

const MARK: &str = "berth.dev/reinitialized";

fn is_marked(answer: &Value) -> bool {
    answer["result"]["_meta"][MARK] == true
}

/// So many calls at once of one client.
async fn many(client: &Client<'_>, count: usize) -> Vec<Value> {
    let calls = (0..count).map(async |n| {
        let call = tool_call(json!(n), "session", &json!({}));
        client.begin(&call).await.messages().await.pop().unwrap()
    });
    join_all(calls).await
}

#[tokio::test]
async fn one_new_session_serves_all_who_wait_and_each_client_is_told_once() {
    for unknown in Unknown::ALL {
        let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
        upstream.books().unknown = unknown;
        harness.put(&spec("s", &upstream)).await;
        let (one, other) = (harness.initialized("s").await, harness.initialized("s").await);
        let before = one.call("session", json!({})).await;
        assert_eq!(before["result"], json!({"session": "upstream-1"}), "{unknown:?}");
        upstream.forget_sessions();
        let (ones, others) = tokio::join!(many(&one, 10), many(&other, 10));
        for answers in [ones, others] {
            for answer in &answers {
                assert_eq!(answer["result"]["session"], "upstream-2", "{unknown:?}: {answer}");
            }
            let marked: Vec<_> = answers.iter().filter(|answer| is_marked(answer)).collect();
            assert_eq!(marked.len(), 1, "{unknown:?}: {answers:?}");
            assert_eq!(marked[0]["result"], json!({"_meta": {MARK: true}, "session": "upstream-2"}));
        }
        assert_eq!(upstream.books().initializes.len(), 2, "{unknown:?}");
        assert!(upstream.books().initialize_sessions.iter().all(String::is_empty), "sent without the old id");
        let later = harness.initialized("s").await;
        for client in [&one, &other, &later] {
            assert_eq!(client.call("session", json!({})).await["result"], json!({"session": "upstream-2"}));
        }
        harness.end_now("s").await;
        harness.assert_baseline().await;
        assert_eq!(upstream.books().deletes, ["upstream-2"], "{unknown:?}: what is gone needs no DELETE");
    }
}

#[tokio::test]
async fn an_upstream_that_only_may_have_lost_the_session_is_told_of_its_end() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    upstream.books().unknown = Unknown::OwnWords;
    harness.put(&spec("s", &upstream)).await;
    let client = harness.initialized("s").await;
    upstream.forget_sessions();
    assert_eq!(client.call("session", json!({})).await["result"]["session"], "upstream-2");
    upstream.until("the old one is ended", |books| books.deletes == ["upstream-1"]).await;
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn the_error_of_a_tool_that_ran_is_passed_on_and_the_tool_runs_once() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let client = harness.initialized("s").await;
    let mut calls = 0;
    for (code, text) in [
        (-32000, "browser session closed"),
        (-32001, "browser session closed"),
        (-32000, "Session not found"),
        (-32001, "Session terminated before the request completed"),
    ] {
        for stream in [false, true] {
            let error = json!({"code": code, "message": text});
            let answer = client.call("fail", json!({"error": error, "stream": stream})).await;
            calls += 1;
            assert_eq!(answer["error"], error);
            assert_eq!(upstream.books().of_method("tools/call").len(), calls, "{text}");
        }
    }
    assert_eq!(client.call("session", json!({})).await["result"], json!({"session": "upstream-1"}));
    assert!(upstream.books().deletes.is_empty());
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn a_message_shows_the_loss_as_well() {
    for unknown in [Unknown::NotFound, Unknown::BadRequest, Unknown::OwnWords] {
        let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
        upstream.books().unknown = unknown;
        harness.put(&spec("s", &upstream)).await;
        let client = harness.initialized("s").await;
        upstream.forget_sessions();
        let news = json!({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"});
        assert_eq!(client.json(&news).await.0, StatusCode::BAD_GATEWAY, "{unknown:?}");
        assert_eq!(harness.list().await[0].state, SessionState::Idle, "{unknown:?}");
        assert!(is_marked(&client.call("session", json!({})).await), "{unknown:?}");
        harness.end_now("s").await;
        harness.assert_baseline().await;
    }
}

/// A session holds so many clients at once.
#[tokio::test]
async fn a_client_that_gave_way_to_others_has_lost_nothing() {
    for on_state_lost in [OnStateLost::Reinitialize, OnStateLost::Fail] {
        let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
        let mut session = spec("s", &upstream);
        session.on_state_lost = on_state_lost;
        harness.put(&session).await;
        let (first, second) = (harness.initialized("s").await, harness.initialized("s").await);
        let others = stream::iter((0..256).map(|_| harness.initialized("s")));
        let _others: Vec<_> = others.buffer_unordered(16).collect().await;
        assert_eq!(harness.metrics.scopes.get(), 256, "two gave way");
        let here = json!({"session": "upstream-1"});
        assert_eq!(first.call("session", json!({})).await["result"], here, "{on_state_lost:?}");
        // What is lost while it is away is lost for it too.
        upstream.forget_sessions();
        let call = tool_call(json!(1), "session", &json!({}));
        if on_state_lost == OnStateLost::Fail {
            assert_eq!(second.json(&call).await.0, StatusCode::NOT_FOUND);
        } else {
            assert!(is_marked(&second.json(&call).await.1));
        }
        harness.end_now("s").await;
        harness.assert_baseline().await;
    }
}

#[tokio::test]
async fn an_error_carries_no_mark_and_the_first_result_after_it_does() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let client = harness.initialized("s").await;
    upstream.forget_sessions();
    let error = json!({"code": -32602, "message": "unknown tool", "x": true});
    assert_eq!(client.call("no such tool", json!({})).await["error"], error);
    assert!(is_marked(&client.call("session", json!({})).await));
    assert!(!is_marked(&client.call("session", json!({})).await));
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn what_was_bound_to_a_connection_that_broke_is_lost_too() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let client = harness.initialized("s").await;
    assert_eq!(client.call("cut", json!({})).await["error"]["code"], json!(-32051));
    let answer = client.call("session", json!({})).await;
    assert!(is_marked(&answer) && answer["result"]["session"] == "upstream-2", "{answer}");
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn an_upstream_without_sessions_has_no_state_to_lose() {
    for on_state_lost in [OnStateLost::Reinitialize, OnStateLost::Fail] {
        let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
        upstream.books().sessionless = true;
        let mut session = spec("s", &upstream);
        session.on_state_lost = on_state_lost;
        harness.put(&session).await;
        let client = harness.initialized("s").await;
        assert_eq!(client.call("cut", json!({})).await["error"]["code"], json!(-32051));
        assert_eq!(client.call("session", json!({})).await["result"], json!({"session": ""}));
        assert_eq!(upstream.books().initializes.len(), 2);
        harness.end_now("s").await;
        harness.assert_baseline().await;
    }
}

#[tokio::test]
async fn where_state_must_not_be_lost_unseen_each_client_begins_anew() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    let mut session = spec("s", &upstream);
    session.on_state_lost = OnStateLost::Fail;
    harness.put(&session).await;
    let (mut one, other) = (harness.initialized("s").await, harness.initialized("s").await);
    upstream.forget_sessions();
    // The one who meets the loss, and the one who comes after it, are told alike; and again, until they begin anew.
    for client in [&one, &other, &one] {
        let response = client.post(tool_call(json!(7), "session", &json!({})).to_string()).await;
        let (status, body) = read(response).await;
        let answer: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!((status, &answer["error"]["code"]), (StatusCode::NOT_FOUND, &json!(-32001)), "{answer}");
        assert_eq!(answer["id"], json!(7));
    }
    assert!(upstream.books().of_method("tools/call").is_empty(), "nothing was carried out on another state");
    one.scope = None;
    one.initialize().await.unwrap();
    assert_eq!(one.call("session", json!({})).await["result"], json!({"session": "upstream-2"}));
    let (status, _) = other.json(&tool_call(json!(8), "session", &json!({}))).await;
    assert_eq!(status, StatusCode::NOT_FOUND, "the other still has to");
    // The policy applies live.
    session.on_state_lost = OnStateLost::Reinitialize;
    harness.put(&session).await;
    assert!(is_marked(&other.call("session", json!({})).await));
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn an_upstream_that_forgets_at_once_is_not_asked_for_ever() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    upstream.books().forgetful = true;
    harness.put(&spec("s", &upstream)).await;
    let client = harness.initialized("s").await;
    let answer = client.call("session", json!({})).await;
    assert_eq!(answer["error"]["data"]["reason"], "ProtocolError", "{answer}");
    assert_eq!(upstream.books().initializes.len(), 2, "one more try, no loop");
    harness.end_now("s").await;
    harness.assert_baseline().await;
}
