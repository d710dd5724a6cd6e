//! The end of a session.

use crate::support::client::tool_call;
use crate::support::eventually;
use crate::support::harness::{EndBounds, Harness, spec, within};
use crate::support::upstream::{Act, Upstream};
use berth_wire::{EndPhase, EndReport, Outcome, RefusalReason, SessionState};
use http::StatusCode;
use serde_json::json;
use std::time::Instant;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

#[tokio::test]
async fn ending_a_connected_session_deletes_it_upstream_and_leaves_nothing() {
    let (harness, upstream) = (Harness::start(2).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let client = harness.initialized("s").await;
    assert_eq!(client.call("echo", json!({"a": 1})).await["result"], json!({"a": 1}));
    let end = harness.end_now("s").await;
    let expected = EndReport {
        phase: EndPhase::Ended,
        drain: Outcome::NotNeeded,
        close: Outcome::Confirmed,
        remove: Outcome::Confirmed,
    };
    assert_eq!(end, expected);
    assert_eq!(upstream.books().deletes, ["upstream-1"]);
    let response = client.post(tool_call(json!(2), "echo", &json!({})).to_string()).await;
    assert_eq!(response.status(), StatusCode::MISDIRECTED_REQUEST);
    harness.assert_baseline().await;
}

#[tokio::test]
async fn deleting_twice_gives_the_same_report_and_changes_nothing() {
    let (harness, upstream) = (Harness::start(2).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    harness.initialized("s").await;
    let first = harness.end_now("s").await;
    let again = harness.end("s", EndBounds { drain: 0, close: 0, wait: 0 }).await;
    assert_eq!(again, (StatusCode::OK, first));
    assert_eq!(upstream.books().deletes.len(), 1);
    assert_eq!(harness.refused(&spec("s", &upstream)).await.reason, RefusalReason::Ended);
    harness.assert_baseline().await;
}

#[tokio::test]
async fn deleting_an_unknown_session_leaves_a_tombstone() {
    let (harness, upstream) = (Harness::start(2).await, Upstream::start().await);
    assert_eq!(harness.end_now("never").await, EndReport::NOTHING_HELD);
    assert_eq!(harness.refused(&spec("never", &upstream)).await.reason, RefusalReason::Ended);
    harness.assert_baseline().await;
}

#[tokio::test]
async fn an_upstream_that_never_answers_delete_is_unconfirmed_within_the_bound() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    upstream.books().on_delete = Act::Hold;
    harness.put(&spec("s", &upstream)).await;
    harness.initialized("s").await;
    let started = Instant::now();
    let (status, first) = harness.end("s", EndBounds { drain: 100, close: 400, wait: 0 }).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    assert_ne!(first.phase, EndPhase::Ended);
    let (status, report) = harness.end("s", EndBounds { drain: 60_000, close: 60_000, wait: 10_000 }).await;
    assert!(within(started, 4_000), "the first request fixed the deadlines: {:?}", started.elapsed());
    assert_eq!(
        (status, report.close, report.remove),
        (StatusCode::OK, Outcome::Unconfirmed, Outcome::Confirmed)
    );
    harness.assert_baseline().await;
}

#[tokio::test]
async fn statuses_that_mean_nothing_is_left_are_confirmed_and_others_are_not() {
    let upstream = Upstream::start().await;
    let harness = Harness::start(4).await;
    for (status, outcome) in [
        (405, Outcome::Confirmed),
        (404, Outcome::Confirmed),
        (500, Outcome::Unconfirmed),
        (401, Outcome::Unconfirmed),
    ] {
        let uid = format!("s{status}");
        upstream.books().on_delete = Act::Status(status);
        harness.put(&spec(&uid, &upstream)).await;
        harness.initialized(&uid).await;
        assert_eq!(harness.end_now(&uid).await.close, outcome, "{status}");
    }
    harness.assert_baseline().await;
}

#[tokio::test]
async fn running_calls_may_finish_during_the_drain() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let client = harness.initialized("s").await;
    let call = client.begin(&tool_call(json!(1), "hold", &json!({}))).await;
    let (status, report) = harness.end("s", EndBounds { drain: 15_000, close: 5_000, wait: 0 }).await;
    assert_eq!((status, report.phase), (StatusCode::ACCEPTED, EndPhase::Draining));
    assert_eq!(harness.list().await[0].state, SessionState::Ending);
    let refused = client.post(tool_call(json!(2), "echo", &json!({})).to_string()).await;
    assert_eq!(refused.status(), StatusCode::MISDIRECTED_REQUEST, "no new work");
    upstream.release();
    assert_eq!(call.messages().await.pop().unwrap()["result"], json!({"held": true}));
    let report = harness.end_now("s").await;
    assert_eq!((report.drain, report.close), (Outcome::Confirmed, Outcome::Confirmed));
    harness.assert_baseline().await;
}

#[tokio::test]
async fn calls_that_do_not_finish_are_cancelled_and_joined() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let client = harness.initialized("s").await;
    let call = client.begin(&tool_call(json!("mine"), "silent", &json!({}))).await;
    let started = Instant::now();
    let (status, report) = harness.end("s", EndBounds { drain: 200, close: 2_000, wait: 10_000 }).await;
    assert!(within(started, 3_000));
    assert_eq!(
        (status, report.drain, report.remove),
        (StatusCode::OK, Outcome::Unconfirmed, Outcome::Confirmed)
    );
    let last = call.messages().await.pop().unwrap();
    assert_eq!((&last["id"], &last["error"]["code"]), (&json!("mine"), &json!(-32052)));
    {
        let books = upstream.books();
        let sent = books.of_method("tools/call")[0]["id"].clone();
        assert_eq!(books.of_method("notifications/cancelled")[0]["params"]["requestId"], sent);
        assert_eq!(books.deletes, ["upstream-1"]);
    }
    harness.assert_baseline().await;
}

#[tokio::test]
async fn ending_one_session_changes_nothing_for_another() {
    let (harness, upstream) = (Harness::start(2).await, Upstream::start().await);
    harness.put(&spec("a", &upstream)).await;
    harness.put(&spec("b", &upstream)).await;
    let (a, b) = (harness.initialized("a").await, harness.initialized("b").await);
    let running = b.begin(&tool_call(json!(1), "hold", &json!({}))).await;
    drop(a.begin(&tool_call(json!(1), "hold", &json!({}))).await);
    let (_, report) = harness.end("a", EndBounds { drain: 50, close: 2_000, wait: 10_000 }).await;
    assert_eq!(report.phase, EndPhase::Ended);
    upstream.release();
    assert_eq!(running.messages().await.pop().unwrap()["result"], json!({"held": true}));
    assert_eq!(b.call("session", json!({})).await["result"]["session"], "upstream-2");
    assert_eq!(upstream.books().deletes, ["upstream-1"]);
    harness.end_now("b").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn a_hundred_sessions_made_used_and_ended_leave_nothing() {
    let (harness, upstream) = (Harness::start(10).await, Upstream::start().await);
    for round in 0..10 {
        for n in 0..10 {
            let uid = format!("s{round}-{n}");
            harness.put(&spec(&uid, &upstream)).await;
            // Clients that never send DELETE.
            harness.initialized(&uid).await.call("echo", json!({})).await;
        }
        let ends = (0..10).map(|n| {
            let (harness, uid) = (&harness, format!("s{round}-{n}"));
            async move { harness.end_now(&uid).await.close }
        });
        assert_eq!(futures::future::join_all(ends).await, [Outcome::Confirmed; 10]);
    }
    harness.assert_baseline().await;
    let books = upstream.books();
    assert_eq!((books.initializes.len(), books.deletes.len(), books.open.len()), (100, 100, 0));
}

#[tokio::test]
async fn the_pods_shutdown_drains_and_ends_every_session() {
    let (harness, upstream) = (Harness::start(3).await, Upstream::start().await);
    harness.put(&spec("a", &upstream)).await;
    harness.put(&spec("b", &upstream)).await;
    let client = harness.initialized("a").await;
    let call = client.begin(&tool_call(json!(1), "hold", &json!({}))).await;
    let shutdown = tokio::spawn({
        let sidecar = harness.sidecar.clone();
        async move { sidecar.shut_down().await }
    });
    eventually("the idle session has ended", || harness.metrics.sessions.get() == 1).await;
    assert_eq!(harness.refused(&spec("c", &upstream)).await.reason, RefusalReason::ShuttingDown);
    upstream.release();
    assert_eq!(call.messages().await.pop().unwrap()["result"], json!({"held": true}));
    shutdown.await.unwrap();
    assert_eq!(upstream.books().deletes, ["upstream-1"]);
    harness.assert_baseline().await;
}

/// An upstream that reads a message, writes `head` and closes the socket.
async fn cut_after(head: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let mut request = Vec::new();
            // To its end: a socket that is closed with unread bytes is reset, and may lose what was written.
            while !request.ends_with(b"}") && socket.read_buf(&mut request).await.is_ok_and(|read| read > 0) {
            }
            let _ = socket.write_all(head.as_bytes()).await;
        }
    });
    format!("http://{address}/mcp")
}

#[tokio::test]
async fn what_was_lost_before_the_head_of_an_initialize_is_never_reported_as_closed() {
    let upstream = Upstream::start().await;
    let cut_json = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{";
    let cut_stream = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n: x\n\n";
    let refused = "HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n";
    for (uid, head, expected) in [
        ("no-answer", "", Outcome::Unconfirmed),
        ("half-a-head", "HTTP/1.1 200 OK\r\n", Outcome::Unconfirmed),
        // The head would have named the session.
        ("half-an-answer", cut_json, Outcome::NotNeeded),
        ("half-a-stream", cut_stream, Outcome::NotNeeded),
        ("refused", refused, Outcome::NotNeeded),
    ] {
        // A sidecar for each: after a failure the next one would wait.
        let harness = Harness::start(1).await;
        let mut session = spec(uid, &upstream);
        session.upstream.url = cut_after(head).await;
        harness.put(&session).await;
        harness.client(uid).initialize().await.unwrap_err();
        assert_eq!(harness.end_now(uid).await.close, expected, "{uid}");
        harness.assert_baseline().await;
    }
}

#[tokio::test]
async fn a_loss_is_remembered_though_a_later_connection_is_closed_well() {
    let (harness, upstream) = (Harness::start(2).await, Upstream::start().await);
    upstream.books().on_initialize = Act::Hold;
    let mut session = spec("lost", &upstream);
    session.timeouts.connect_millis = 200;
    harness.put(&session).await;
    harness.client("lost").initialize().await.unwrap_err();
    upstream.books().on_initialize = Act::Status(503);
    harness.put(&spec("refused", &upstream)).await;
    harness.until_open("lost").await;
    harness.client("refused").initialize().await.unwrap_err();
    upstream.books().on_initialize = Act::Well;
    session.timeouts.connect_millis = 15_000;
    harness.put(&session).await;
    for (uid, expected) in [("lost", Outcome::Unconfirmed), ("refused", Outcome::Confirmed)] {
        harness.until_open("refused").await;
        harness.initialized(uid).await;
        assert_eq!(harness.end_now(uid).await.close, expected, "{uid}");
    }
    harness.assert_baseline().await;
}

#[tokio::test]
async fn more_lost_connections_than_are_remembered_are_not_reported_as_closed() {
    for (losses, expected) in [(8, Outcome::Confirmed), (9, Outcome::Unconfirmed)] {
        let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
        upstream.books().on_delete = Act::Status(500);
        harness.put(&spec("s", &upstream)).await;
        let client = harness.initialized("s").await;
        for count in 1..=losses {
            assert_eq!(client.call("cut", json!({})).await["error"]["code"], json!(-32051));
            upstream.until("the DELETE", |books| books.deletes.len() == count).await;
        }
        upstream.books().on_delete = Act::Well;
        assert_eq!(harness.end_now("s").await.close, expected, "{losses} losses");
        harness.assert_baseline().await;
    }
}
