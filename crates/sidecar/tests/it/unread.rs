//! Clients that do not read, beside others of their session.

use crate::support::client::tool_call_with_progress;
use crate::support::eventually;
use crate::support::harness::{EndBounds, Harness, spec};
use crate::support::upstream::Upstream;
use berth_wire::Limits;
use serde_json::json;

#[tokio::test]
async fn a_client_whose_unread_answers_are_as_many_as_calls_may_run_holds_up_no_other() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    let mut session = spec("s", &upstream);
    session.limits = Limits { concurrent_calls: 2, queued_calls: 1, ..Limits::default() };
    harness.put(&session).await;
    let (slow, quick) = (harness.initialized("s").await, harness.initialized("s").await);
    let begin = async |id: &str| {
        // More than whatever is between can hold.
        slow.begin(&tool_call_with_progress(json!(id), json!(id), "flood", &json!({}))).await
    };
    let in_flight = |count| {
        let metrics = &harness.metrics;
        eventually("so many are in flight", move || metrics.requests_in_flight.get() == count)
    };
    let mut unread = vec![begin("1").await, begin("2").await];
    for round in 0..20 {
        assert_eq!(quick.call("echo", json!({"x": round})).await["result"], json!({"x": round}));
    }
    // They count on: as many are taken as before, and no more.
    unread.push(begin("3").await);
    in_flight(3).await;
    let refused = quick.call("echo", json!({})).await;
    assert_eq!(refused["error"]["code"], json!(-32055), "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("clients that do not read"), "{refused}");
    slow.tell(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "2"}}))
        .await;
    in_flight(2).await;
    assert_eq!(quick.call("echo", json!({"x": 1})).await["result"], json!({"x": 1}));
    harness.end("s", EndBounds { drain: 0, close: 5_000, wait: 15_000 }).await;
    drop(unread);
    harness.assert_baseline().await;
}
