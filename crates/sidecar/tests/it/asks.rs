//! The server's requests to clients, on the answers of calls.

use crate::support::client::{initialize, tool_call};
use crate::support::eventually;
use crate::support::harness::{Harness, spec, within};
use crate::support::upstream::Upstream;
use futures::future::join_all;
use http::StatusCode;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

fn answer(id: Value, content: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "result": {"action": "accept", "content": content}})
}

#[tokio::test]
async fn an_answer_goes_up_once_and_from_the_asked_client_only() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let (client, other) = (harness.initialized("s").await, harness.initialized("s").await);
    for (round, id) in [json!("q"), json!(0), json!(-7), json!(9_007_199_254_740_993_u64)].iter().enumerate()
    {
        let mut call = client.begin(&tool_call(json!(1), "ask", &json!({"id": id}))).await;
        let question = call.next().await.unwrap();
        assert_eq!((&question["method"], &question["id"]), (&json!("elicitation/create"), id));
        other.tell(&answer(id.clone(), "somebody else's")).await;
        client.tell(&answer(json!("unasked"), "to nothing")).await;
        client.tell(&answer(id.clone(), "mine")).await;
        client.tell(&answer(id.clone(), "again")).await;
        let last = call.messages().await.pop().unwrap();
        assert_eq!(last["result"]["content"], "mine", "round {round}");
        assert_eq!(upstream.books().responses_to(id).len(), 1);
    }
    assert!(upstream.books().responses_to(&json!("unasked")).is_empty());
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn many_questions_at_once_reach_the_clients_whose_calls_ask() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let clients = join_all((0..8).map(|_| harness.initialized("s"))).await;
    let asked = clients.iter().enumerate().map(async |(number, client)| {
        for round in 0..10 {
            let id = json!(format!("{number}-{round}"));
            let mut call = client.begin(&tool_call(json!("same"), "ask", &json!({"id": id}))).await;
            assert_eq!(call.next().await.unwrap()["id"], id, "its own question");
            client.tell(&answer(id, &format!("{number}"))).await;
            let last = call.messages().await.pop().unwrap();
            assert_eq!(last["result"]["content"], format!("{number}"));
        }
    });
    join_all(asked).await;
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn what_a_client_did_not_declare_is_refused_in_its_stead() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let mut bare = harness.client("s");
    let able = harness.initialized("s").await;
    let mut message = initialize("init");
    message["params"]["capabilities"] = json!({"roots": {}});
    bare.initialize_as(&message).await.unwrap();
    for (client, method, capability) in [
        (&bare, "elicitation/create", "elicitation"),
        (&bare, "sampling/createMessage", "sampling"),
        (&able, "roots/list", "roots"),
    ] {
        let arguments = json!({"id": capability, "method": method});
        let mut messages = client.begin(&tool_call(json!(1), "ask", &arguments)).await.messages().await;
        let error = &messages.pop().unwrap()["result"]["error"];
        assert_eq!(error["code"], -32601, "{method}: {error}");
        assert!(error["message"].as_str().unwrap().contains(capability), "{error}");
        assert!(messages.is_empty(), "the client saw nothing of it");
    }
    let mut call = bare.begin(&tool_call(json!(1), "ask", &json!({"method": "roots/list"}))).await;
    assert_eq!(call.next().await.unwrap()["method"], "roots/list");
    bare.tell(
        &json!({"jsonrpc": "2.0", "id": "question-1", "error": {"code": -1, "message": "no", "x": 1.5}}),
    )
    .await;
    let last = call.messages().await.pop().unwrap();
    assert_eq!(last["result"]["error"], json!({"code": -1, "message": "no", "x": 1.5}));
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn a_client_that_leaves_while_asked_is_answered_for_at_once() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let client = harness.initialized("s").await;
    let mut call = client.begin(&tool_call(json!(1), "ask", &json!({}))).await;
    assert_eq!(call.next().await.unwrap()["id"], "question-1");
    drop(call);
    upstream.until("the refusal", |books| books.responses_to(&json!("question-1")).len() == 1).await;
    assert_eq!(upstream.books().responses_to(&json!("question-1"))[0]["error"]["code"], -32600);
    eventually("the call finishes", || harness.metrics.requests_in_flight.get() == 0).await;
    client.tell(&answer(json!("question-1"), "late")).await;
    assert_eq!(upstream.books().responses_to(&json!("question-1")).len(), 1);
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn a_client_that_takes_no_stream_is_not_asked() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let client = harness.initialized("s").await;
    let (status, answer) = client.json_only(&tool_call(json!(1), "ask", &json!({}))).await;
    assert_eq!((status, &answer["result"]["error"]["code"]), (StatusCode::OK, &json!(-32600)), "{answer}");
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn the_clock_of_a_call_stands_while_its_client_is_asked() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    let mut session = spec("s", &upstream);
    (session.timeouts.request_millis, session.timeouts.request_max_millis) = (400, 3_000);
    harness.put(&session).await;
    let client = harness.initialized("s").await;
    let mut call = client.begin(&tool_call(json!(1), "ask", &json!({}))).await;
    call.next().await.unwrap();
    // People take their time.
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    client.tell(&answer(json!("question-1"), "at last")).await;
    assert_eq!(call.messages().await.pop().unwrap()["result"]["content"], "at last");
    let started = Instant::now();
    let call = client.begin(&tool_call(json!(2), "ask", &json!({"id": "never"}))).await;
    let last = call.messages().await.pop().unwrap();
    assert_eq!(last["error"]["code"], json!(-32053), "{last}");
    assert!(
        started.elapsed() >= Duration::from_secs(3) && within(started, 10_000),
        "{:?}",
        started.elapsed()
    );
    upstream.until("the refusal", |books| books.responses_to(&json!("never")).len() == 1).await;
    client.tell(&answer(json!("never"), "late")).await;
    {
        let books = upstream.books();
        let responses = books.responses_to(&json!("never"));
        assert_eq!(
            (responses.len(), &responses[0]["error"]["code"]),
            (1, &json!(-32600)),
            "the call is over"
        );
    }
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn a_question_that_is_withdrawn_is_withdrawn_from_its_client() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let client = harness.initialized("s").await;
    let withdrawn = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5, "reason": "x"}});
    let arguments = json!({"id": 5, "then": withdrawn});
    let mut call = client.begin(&tool_call(json!("c"), "ask", &arguments)).await;
    assert_eq!(call.next().await.unwrap()["id"], 5);
    assert_eq!(call.next().await.unwrap(), withdrawn);
    client.tell(&answer(json!(5), "late")).await;
    assert!(upstream.books().responses_to(&json!(5)).is_empty(), "nobody wants it any more");
    client
        .tell(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "c"}}))
        .await;
    assert_eq!(call.messages().await.pop().unwrap()["error"]["code"], -32052);
    // The late answer would have been taken for that of the next question of the same id.
    let mut call = client.begin(&tool_call(json!("d"), "ask", &json!({"id": 5}))).await;
    let question = call.next().await.unwrap();
    client.tell(&answer(question["id"].clone(), "in time")).await;
    assert_eq!(call.messages().await.pop().unwrap()["result"]["content"], "in time");
    harness.end_now("s").await;
    harness.assert_baseline().await;
}
