//! Many clients of many sessions at once: nothing mixes, nothing is lost, everything is in order.

use crate::support::client::{Client, tool_call_with_progress};
use crate::support::harness::{Harness, read, spec};
use crate::support::upstream::Upstream;
use futures::future::join_all;
use serde_json::{Value, json};

/// Ids and tokens that all clients use alike.
fn names() -> [Value; 5] {
    [json!("a"), json!(0), json!("0"), json!(-1), json!(9_007_199_254_740_993_u64)]
}

async fn tagged(client: &Client<'_>, id: &Value, token: &Value, tag: String) {
    let call = tool_call_with_progress(id.clone(), token.clone(), "tag", &json!({"tag": tag}));
    let mut messages = client.begin(&call).await.messages().await;
    let last = messages.pop().unwrap();
    assert_eq!((&last["id"], &last["result"]["tag"]), (id, &json!(tag)));
    assert_eq!(messages.len(), 2);
    for progress in messages {
        assert_eq!(
            (&progress["params"]["progressToken"], &progress["params"]["message"]),
            (token, &json!(tag))
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_calls_with_equal_ids_and_tokens_never_mix() {
    let (harness, upstream) = (Harness::start(20).await, Upstream::start().await);
    let sessions: Vec<_> = (0..20).map(|number| format!("s{number}")).collect();
    join_all(sessions.iter().map(async |uid| harness.put(&spec(uid, &upstream)).await)).await;
    let clients = join_all(sessions.iter().flat_map(|uid| (0..5).map(|_| harness.initialized(uid)))).await;
    let calls = clients.iter().enumerate().map(async |(number, client)| {
        let names = names();
        for round in 0..50 {
            let (id, token) = (&names[round % 5], &names[(round + number) % 5]);
            let (other_id, other_token) = (&names[(round + 1) % 5], &names[(round + number + 1) % 5]);
            tokio::join!(
                tagged(client, id, token, format!("{number}/{round}/one")),
                tagged(client, other_id, other_token, format!("{number}/{round}/two")),
            );
        }
    });
    join_all(calls).await;
    {
        let books = upstream.books();
        assert_eq!((books.of_method("tools/call").len(), books.initializes.len()), (10_000, 20));
    }
    for uid in &sessions {
        harness.end_now(uid).await;
    }
    harness.assert_baseline().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bursts_of_progress_on_ten_calls_are_whole_and_in_order() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let clients = join_all((0..5).map(|_| harness.initialized("s"))).await;
    let calls = (0..10).map(async |number| {
        let (id, token) = (json!(number / 5), json!("token"));
        let call = tool_call_with_progress(id.clone(), token, "count", &json!({"count": 2_000}));
        let mut messages = clients[number % 5].begin(&call).await.messages().await;
        let last = messages.pop().unwrap();
        assert_eq!((&last["id"], &last["result"]), (&id, &json!({"count": 2_000})));
        let progress: Vec<_> =
            messages.iter().map(|message| message["params"]["progress"].as_u64()).collect();
        assert_eq!(progress, (0..2_000).map(Some).collect::<Vec<_>>());
    });
    join_all(calls).await;
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn every_method_passes_as_it_is_spelled() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let client = harness.initialized("s").await;
    let parameters = r#"{"b":1.50,"a":"\u00e9", "level":"debug","cursor":"x","ref":{"type":"ref/prompt"},"_meta":{"k":1e2}}"#;
    let methods = [
        "logging/setLevel",
        "completion/complete",
        "prompts/list",
        "prompts/get",
        "resources/list",
        "resources/read",
        "resources/templates/list",
        "tools/list",
        "tasks/get",
        "vendor/any",
    ];
    for method in methods {
        let message =
            format!(r#"{{"x":2.0, "jsonrpc":"2.0","id":"i","method":"{method}","params":{parameters}}}"#);
        let (_, body) = read(client.post(message.clone()).await).await;
        let upstream_id = upstream.books().of_method(method)[0]["id"].to_string();
        let raw = upstream.books().raw.last().cloned().unwrap();
        assert_eq!(raw, message.replace("\"i\"", &upstream_id), "{method}");
        let answered = String::from_utf8(body).unwrap();
        assert_eq!(
            answered,
            r#"{"error":{"code":-32602,"message":"unknown tool","x":true},"id":"i","jsonrpc":"2.0"}"#
        );
    }
    let notification = r#"{"method":"notifications/roots/list_changed", "jsonrpc":"2.0","y":1.0}"#;
    assert_eq!(client.post(notification).await.status(), 202);
    assert_eq!(upstream.books().raw.last().unwrap(), notification);
    harness.end_now("s").await;
    harness.assert_baseline().await;
}
