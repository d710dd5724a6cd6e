//! The control API.

use crate::support::client::initialize;
use crate::support::harness::{As, Harness, data_request, read, spec};
use crate::support::upstream::Upstream;
use axum::body::Body;
use berth_wire::{Generation, Header, RefusalReason, SessionState, TERM_HEADER, WatchLine};
use http::{Method, Request, StatusCode};
use serde_json::json;

#[tokio::test]
async fn slots_are_decided_here() {
    let (harness, upstream) = (Harness::start(2).await, Upstream::start().await);
    let report = harness.put(&spec("a", &upstream)).await;
    assert_eq!((report.state, report.generation), (SessionState::Idle, Generation { session: 1, server: 1 }));
    harness.put(&spec("b", &upstream)).await;
    assert_eq!(harness.refused(&spec("c", &upstream)).await.reason, RefusalReason::Full);
    assert_eq!(harness.put(&spec("a", &upstream)).await.uid, "a", "a repeated PUT is no new session");
    harness.end_now("a").await;
    harness.put(&spec("c", &upstream)).await;
    let mut other = spec("d", &upstream);
    other.server.revision = "r2".into();
    assert_eq!(harness.refused(&other).await.reason, RefusalReason::WrongServer);
    harness.end_now("b").await;
    harness.end_now("c").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn a_dedicated_pod_takes_one_session_in_its_life() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.put(&spec("a", &upstream)).await;
    harness.end_now("a").await;
    assert_eq!(harness.refused(&spec("b", &upstream)).await.reason, RefusalReason::Full);
    harness.assert_baseline().await;
}

#[tokio::test]
async fn an_older_put_is_refused_and_a_newer_one_applies_to_the_live_session() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    let mut session = spec("s", &upstream);
    session.generation = Generation { session: 3, server: 3 };
    harness.put(&session).await;
    let client = harness.initialized("s").await;
    let mut older = session.clone();
    older.generation = Generation { session: 4, server: 2 };
    assert_eq!(harness.refused(&older).await.reason, RefusalReason::Stale);

    session.upstream.headers[0].value = "Bearer second".into();
    session.generation.session = 4;
    assert_eq!(harness.put(&session).await.state, SessionState::Connected);
    upstream.books().credentials.clear();
    client.call("echo", json!({})).await;
    assert_eq!(upstream.books().credentials, ["Bearer second"], "the credential is taken live");
    assert_eq!(upstream.books().initializes.len(), 1, "without a new connection");

    session.timeouts.request_millis = 200;
    harness.put(&session).await;
    assert_eq!(client.call("silent", json!({})).await["error"]["code"], json!(-32053), "so are timeouts");
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn a_held_session_never_changes_its_subject() {
    let (harness, upstream) = (Harness::start(2).await, Upstream::start().await);
    let session = spec("s", &upstream);
    harness.put(&session).await;
    let client = harness.initialized("s").await;
    for (issuer, name) in [
        ("", "mallory@corp.example"),
        ("", "alice@corp.example "),
        ("", "Alice@corp.example"),
        ("https://idp.example", "alice@corp.example"),
    ] {
        let mut changed = session.clone();
        changed.generation.session += 1;
        changed.subject.issuer = issuer.into();
        changed.subject.name = name.into();
        changed.upstream.headers[0].value = "Bearer other".into();
        assert_eq!(harness.refused(&changed).await.reason, RefusalReason::SubjectChanged);
    }
    upstream.books().credentials.clear();
    client.call("echo", json!({})).await;
    assert_eq!(upstream.books().credentials, ["Bearer first"], "nothing of the refused PUT is in force");
    harness.put(&session).await;
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn a_subject_of_any_shape_is_held_and_each_spelling_is_another_subject() {
    let names = ["日本@example.test", "CORP\\u1", "caf\u{e9}", "cafe\u{301}", "\"a\"/%00", &"é".repeat(512)];
    let slots = u32::try_from(names.len()).unwrap();
    let (harness, upstream) = (Harness::start(slots).await, Upstream::start().await);
    let session = |at: usize, name: &str| {
        let mut session = spec(&format!("s{at}"), &upstream);
        session.subject.name = name.to_owned();
        session
    };
    for (at, name) in names.iter().enumerate() {
        harness.put(&session(at, name)).await;
    }
    for (at, name) in names.iter().enumerate() {
        for (held, _) in names.iter().enumerate().filter(|(held, _)| *held != at) {
            let refusal = harness.refused(&session(held, name)).await;
            assert_eq!(refusal.reason, RefusalReason::SubjectChanged, "{name}");
            assert!(!refusal.message.contains(name), "{refusal:?}");
        }
        harness.put(&session(at, name)).await;
    }
    for at in 0..names.len() {
        harness.end_now(&format!("s{at}")).await;
    }
    harness.assert_baseline().await;
}

#[tokio::test]
async fn specs_that_cannot_be_used_are_refused_without_quoting_a_value() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    let mut session = spec("s", &upstream);
    session.upstream.headers[0].value = "Bearer se\r\ncret: 1".into();
    let (status, body) = harness.try_put(&session).await;
    let text = String::from_utf8(body).unwrap();
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(text.contains("Authorization") && !text.contains("cret"), "{text}");
    for name in ["Accept", "content-length", "Host", "Mcp-Session-Id", "mcp-protocol-version"] {
        session.upstream.headers[0] = Header { name: name.into(), value: "cret".into() };
        let (status, body) = harness.try_put(&session).await;
        let text = String::from_utf8(body).unwrap();
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert!(text.contains(name) && !text.contains("cret"), "{text}");
    }
    session.upstream.headers.clear();
    session.upstream.url = "ftp://user:secret@host/".into();
    let (status, body) = harness.try_put(&session).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(!String::from_utf8(body).unwrap().contains("secret"));
    assert!(harness.list().await.is_empty());
}

#[tokio::test]
async fn each_path_is_for_its_own_peer() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let get = || Request::get("/v1/sessions").header(TERM_HEADER, "1").body(Body::empty()).unwrap();
    let post = || data_request(Method::POST, "s", None, initialize("a").to_string());
    for (peer, request, expected) in [
        (As::Operator, get(), StatusCode::OK),
        (As::Gateway, get(), StatusCode::FORBIDDEN),
        (As::Stranger, get(), StatusCode::FORBIDDEN),
        (As::Operator, post(), StatusCode::FORBIDDEN),
        (As::Stranger, post(), StatusCode::FORBIDDEN),
        (As::Gateway, post(), StatusCode::OK),
    ] {
        let (status, _) = read(harness.send(peer, request).await).await;
        assert_eq!(status, expected, "{peer:?}");
    }
    assert_eq!(upstream.books().initializes.len(), 1);
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn a_watch_shows_all_sessions_then_changes_up_to_the_end() {
    let (harness, upstream) = (Harness::start(2).await, Upstream::start().await);
    harness.put(&spec("a", &upstream)).await;
    let mut watch = harness.watch().await;
    assert!(matches!(watch.line().await, Some(WatchLine::Session(report)) if report.uid == "a"));
    let Some(WatchLine::Synced { server, slots }) = watch.line().await else { panic!("not synced") };
    assert_eq!((server.name.as_str(), slots), ("scripted", 2));
    harness.put(&spec("b", &upstream)).await;
    watch.session(|report| report.uid == "b" && report.state == SessionState::Idle).await;
    let client = harness.initialized("a").await;
    watch.session(|report| report.uid == "a" && report.state == SessionState::Connected).await;
    client.call("echo", json!({})).await;
    let report =
        watch.session(|report| report.activity.requests == 2 && report.activity.in_flight == 0).await;
    assert_eq!((report.uid.as_str(), report.activity.connects), ("a", 1));
    let end = harness.end_now("a").await;
    let last = watch.session(|report| report.state == SessionState::Ended).await;
    assert_eq!((last.uid.as_str(), last.end), ("a", Some(end)));
    harness.end_now("b").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn a_quiet_watch_says_that_it_is_alive() {
    let harness = Harness::start(1).await;
    let mut watch = harness.watch().await;
    assert!(matches!(watch.line().await, Some(WatchLine::Synced { .. })));
    assert_eq!(watch.line().await, Some(WatchLine::Alive));
}
