//! The fleet against a stand-in for a sidecar, over real mutual TLS on a loopback address of its own.

use super::*;
use crate::ca::Purpose;
use crate::fixture;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router, body::Body, routing::get, routing::put};
use berth_api::AgentSession;
use berth_net::serve;
use berth_wire::{EndPhase, EndRequest, RefusalReason, ServerKey, SessionSpec, WatchLine};
use bytes::Bytes;
use futures::{StreamExt, stream};
use serde_json::json;
use std::convert::Infallible;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::broadcast;

/// A stand-in for a sidecar: what it says on its streams is up to the test.
struct Stand {
    lines: broadcast::Sender<String>,
    cancel: CancellationToken,
}

type Lines = broadcast::Sender<String>;

impl Stand {
    async fn start(ca: &crate::ca::Ca, address: &str) -> Self {
        let identity = ca.identity_for_test(&Purpose::Sidecar { server_uid: "server".into() });
        let (lines, _) = broadcast::channel(16);
        let app = Router::new()
            .route("/v1/sessions", get(watch))
            .route("/v1/sessions/{uid}", put(hold).delete(end))
            .with_state(lines.clone());
        let listener = TcpListener::bind((address, SIDECAR_PORT)).await.unwrap();
        let cancel = CancellationToken::new();
        tokio::spawn(serve::serve(listener, Some(identity), app, 8, cancel.clone()));
        Self { lines, cancel }
    }

    fn say(&self, line: &WatchLine) {
        self.lines.send(format!("{}\n", serde_json::to_string(line).unwrap())).unwrap();
    }
}

/// Each stream begins with one session and the end of the list, then tells what the test says; "end" ends it.
async fn watch(State(lines): State<Lines>) -> Response {
    let server = ServerKey { uid: "server".into(), name: "everything".into(), revision: "r".into() };
    let first =
        [WatchLine::Session(report("held", SessionState::Idle)), WatchLine::Synced { server, slots: 3 }];
    let first = first.map(|line| format!("{}\n", serde_json::to_string(&line).unwrap()));
    let later = stream::unfold(lines.subscribe(), |mut lines| async move {
        let line = lines.recv().await.ok().filter(|line| line != "end")?;
        Some((line, lines))
    });
    let all = stream::iter(first).chain(later).map(|line| Ok::<_, Infallible>(Bytes::from(line)));
    Body::from_stream(all).into_response()
}

async fn hold(Path(uid): Path<String>, Json(spec): Json<SessionSpec>) -> Response {
    assert_eq!(uid, spec.uid);
    if uid == "one-too-many" {
        let refusal =
            berth_wire::Refusal { reason: RefusalReason::Full, message: "every slot is held".into() };
        return (http::StatusCode::CONFLICT, Json(refusal)).into_response();
    }
    Json(report(&uid, SessionState::Idle)).into_response()
}

async fn end(axum::extract::Query(end): axum::extract::Query<EndRequest>) -> Response {
    assert_eq!((end.drain_millis, end.close_millis, end.wait_millis), (1_000, 2_000, 300));
    Json(EndReport::NOTHING_HELD).into_response()
}

fn report(uid: &str, state: SessionState) -> SessionReport {
    serde_json::from_value(json!({
        "uid": uid, "generation": {"session": 1, "server": 1}, "state": state,
        "activity": {"requests": 0, "inFlight": 0, "connects": 0},
    }))
    .unwrap()
}

fn pod(address: &str) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "everything-x-0", "namespace": "demo", "uid": "pod", "labels": {"berth.dev/server-uid": "server"},
            "ownerReferences": [{"apiVersion": "berth.dev/v1alpha1", "kind": "McpServer", "name": "everything", "uid": "server"}]},
        "status": {"phase": "Running", "podIP": address},
    }))
    .unwrap()
}

fn spec(uid: &str) -> SessionSpec {
    serde_json::from_value(json!({
        "uid": uid, "displayName": "demo/chat", "server": {"uid": "server", "name": "everything", "revision": "r"},
        "generation": {"session": 1, "server": 1}, "subject": {"issuer": "", "name": "alice"},
        "upstream": {"url": "http://everything.test/mcp", "headers": []},
        "timeouts": {"connectMillis": 1, "requestMillis": 1, "requestMaxMillis": 1, "drainMillis": 1, "closeMillis": 1},
    }))
    .unwrap()
}

fn session(uid: &str) -> AgentSession {
    let mut session = fixture::deleted_session(&json!({}));
    session.metadata.uid = Some(uid.to_owned());
    session.metadata.name = Some(uid.to_owned());
    session
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let waited = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), waited).await.unwrap_or_else(|_| panic!("never: {what}"));
}

async fn stage(address: &str) -> (crate::context::Context, Stand) {
    let (ctx, _) = fixture::context(|_| fixture::failure(404, "NotFound", "no")).await;
    let stand = Stand::start(&ctx.ca, address).await;
    ctx.fleet.follow(&pod(address));
    let fleet = ctx.fleet.clone();
    until("synced", || fleet.is_synced("pod")).await;
    (ctx, stand)
}

#[tokio::test]
async fn what_a_sidecar_tells_is_held_and_asks_for_looks() {
    let (ctx, stand) = stage("127.0.77.1").await;
    ctx.slots.know(&session("held"));
    assert_eq!(ctx.fleet.occupancy("pod", vec![]).held.into_iter().collect::<Vec<_>>(), ["held"]);
    let mut looks = Box::pin(ctx.triggers.sessions.stream());
    stand.say(&WatchLine::Session(report("held", SessionState::Ended)));
    assert_eq!(looks.next().await.unwrap().name, "held");
    let occupancy = ctx.fleet.occupancy("pod", vec![]);
    assert!(occupancy.held.is_empty() && occupancy.used);
    // The tombstone goes with the object.
    assert_eq!(ctx.fleet.reports_of("held").len(), 1);
    ctx.fleet.forget("held");
    assert_eq!(ctx.fleet.reports_of("held").len(), 0);
}

#[tokio::test]
async fn a_stream_that_ends_is_begun_anew_and_what_was_lost_is_looked_at() {
    let (ctx, stand) = stage("127.0.77.2").await;
    ctx.slots.know(&session("lost"));
    ctx.slots.with(|book| book.promise("lost", "server", "pod"));
    stand.say(&WatchLine::Session(report("lost", SessionState::Connected)));
    let fleet = ctx.fleet.clone();
    until("told", || !fleet.reports_of("lost").is_empty()).await;
    let mut looks = Box::pin(ctx.triggers.sessions.stream());
    assert_eq!(looks.next().await.unwrap().name, "lost");
    stand.lines.send("end".into()).unwrap();
    until("forgotten after the restart", || fleet.reports_of("lost").is_empty()).await;
    assert_eq!(looks.next().await.unwrap().name, "lost");
    assert!(ctx.fleet.is_synced("pod"));
}

#[tokio::test]
async fn a_sidecar_that_is_gone_is_not_synced_and_cannot_be_asked() {
    let (ctx, stand) = stage("127.0.77.3").await;
    stand.cancel.cancel();
    stand.lines.send("end".into()).unwrap();
    let fleet = ctx.fleet.clone();
    until("lost", || !fleet.is_synced("pod")).await;
    // What it held may still be there.
    assert_eq!(ctx.fleet.occupancy("pod", vec![]).held.len(), 1);
    assert!(matches!(ctx.fleet.put("pod", &spec("a")).await, Err(ControlError::Unreachable(_))));
    ctx.fleet.drop_pod("pod");
    assert_eq!(ctx.fleet.reports_of("held").len(), 0);
}

#[tokio::test]
async fn a_slot_is_taken_refused_and_given_back() {
    let (ctx, _stand) = stage("127.0.77.4").await;
    ctx.fleet.put("pod", &spec("new")).await.unwrap();
    assert!(ctx.fleet.occupancy("pod", vec![]).held.contains("new"));
    let refused = ctx.fleet.put("pod", &spec("one-too-many")).await;
    assert!(matches!(refused, Err(ControlError::Refused(refusal)) if refusal.reason == RefusalReason::Full));
    let request = EndRequest { drain_millis: 1_000, close_millis: 2_000, wait_millis: 300 };
    let ended = ctx.fleet.end("pod", "new", request).await.unwrap();
    assert_eq!(ended.phase, EndPhase::Ended);
    assert!(!ctx.fleet.occupancy("pod", vec![]).held.contains("new"));
}

#[tokio::test]
async fn a_pod_of_another_server_is_not_believed() {
    let (ctx, _) = fixture::context(|_| fixture::failure(404, "NotFound", "no")).await;
    let _stand = Stand::start(&ctx.ca, "127.0.77.5").await;
    let mut other = pod("127.0.77.5");
    other.metadata.labels = Some([("berth.dev/server-uid".to_owned(), "another".to_owned())].into());
    ctx.fleet.follow(&other);
    assert!(matches!(ctx.fleet.put("pod", &spec("a")).await, Err(ControlError::Unreachable(_))));
    assert!(!ctx.fleet.is_synced("pod"));
}
