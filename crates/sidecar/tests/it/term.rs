//! The fence against a former leader.

use crate::support::harness::{As, Harness, read, spec};
use crate::support::upstream::Upstream;
use axum::body::Body;
use berth_wire::{Refusal, RefusalReason, SessionState, TERM_HEADER, WatchLine};
use http::{Method, Request, StatusCode};
use serde_json::json;
use std::sync::atomic::Ordering;

const REQUESTS: [(Method, &str); 4] = [
    (Method::PUT, "/v1/sessions/s"),
    (Method::DELETE, "/v1/sessions/s?drainMillis=0&closeMillis=0&waitMillis=0"),
    (Method::GET, "/v1/sessions"),
    (Method::GET, "/v1/sessions?watch=true"),
];

#[tokio::test]
async fn a_request_without_a_readable_term_is_refused_by_the_name_of_the_header() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    let body = serde_json::to_vec(&spec("s", &upstream)).unwrap();
    for term in
        [None, Some(""), Some("seven"), Some("-1"), Some("+1"), Some("1.5"), Some("18446744073709551616")]
    {
        for (method, path) in REQUESTS {
            let mut request = Request::builder().method(method.clone()).uri(path);
            if let Some(term) = term {
                request = request.header(TERM_HEADER, term);
            }
            let request = request.body(Body::from(body.clone())).unwrap();
            let (status, body) = read(harness.send(As::Operator, request).await).await;
            let text = String::from_utf8(body).unwrap();
            assert_eq!(status, StatusCode::BAD_REQUEST, "{term:?} {method} {path}");
            assert!(text.contains(TERM_HEADER), "{text}");
        }
    }
    assert!(harness.list().await.is_empty());
}

#[tokio::test]
async fn a_former_leader_can_do_nothing_and_its_watch_ends() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.term.store(6, Ordering::Relaxed);
    let mut session = spec("s", &upstream);
    harness.put(&session).await;
    let client = harness.initialized("s").await;
    let mut former = harness.watch().await;
    former.session(|report| report.state == SessionState::Connected).await;
    assert!(matches!(former.line().await, Some(WatchLine::Synced { .. })));

    harness.term.store(7, Ordering::Relaxed);
    let mut leading = harness.watch().await;
    assert_eq!(former.line().await, None, "no line after a higher term was seen");

    harness.term.store(6, Ordering::Relaxed);
    session.upstream.headers[0].value = "Bearer former".into();
    session.generation.session += 1;
    for (method, path) in REQUESTS {
        let body = serde_json::to_vec(&session).unwrap();
        let (status, body) = read(harness.control(method.clone(), path, body).await).await;
        let refusal: Refusal = serde_json::from_slice(&body).unwrap();
        assert_eq!(
            (status, refusal.reason),
            (StatusCode::CONFLICT, RefusalReason::OldTerm),
            "{method} {path}"
        );
        assert_eq!(refusal.term, Some(7));
    }
    let seen = client.call("credential", json!({})).await;
    assert_eq!(seen["result"]["credential"], "Bearer first", "nothing of it came into force");

    harness.term.store(7, Ordering::Relaxed);
    let report = leading.session(|report| report.uid == "s").await;
    assert_eq!((report.state, report.generation.session), (SessionState::Connected, 1));
    harness.end_now("s").await;
    leading.session(|report| report.state == SessionState::Ended).await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn a_request_that_fails_shuts_out_lower_terms_too() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.term.store(7, Ordering::Relaxed);
    let (status, _) = read(harness.control(Method::PUT, "/v1/sessions/s", "no spec").await).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    harness.term.store(6, Ordering::Relaxed);
    assert_eq!(harness.refused(&spec("s", &upstream)).await.reason, RefusalReason::OldTerm);
}
