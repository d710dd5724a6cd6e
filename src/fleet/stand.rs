//! A stand-in for a sidecar, over real mutual TLS on a loopback address of its own, for tests.

use crate::ca::{Ca, Purpose};
use crate::fleet::Fleet;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router, body::Body, routing::get, routing::put};
use berth_net::serve;
use berth_wire::{
    EndReport, EndRequest, Outcome, Refusal, RefusalReason, SIDECAR_PORT, ServerKey, SessionReport,
    SessionSpec, SessionState, WatchLine,
};
use bytes::Bytes;
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

/// The stand-in: what it says on its streams is up to the test.
pub struct Stand {
    /// Lines for its streams; "end" ends them.
    pub lines: broadcast::Sender<String>,
    /// Ends it.
    pub cancel: CancellationToken,
    shared: Arc<Shared>,
}

struct Shared {
    first: Vec<SessionReport>,
    lines: broadcast::Sender<String>,
    ended: Mutex<Vec<(String, EndRequest)>>,
    /// Sessions that it holds.
    held: Mutex<HashSet<String>>,
    /// What it was asked to hold.
    specs: Mutex<Vec<SessionSpec>>,
}

impl Stand {
    /// A sidecar of the server with the UID `server`; each of its streams begins with `first` and the end of the list.
    pub async fn start(ca: &Ca, address: &str, first: Vec<SessionReport>) -> Self {
        let identity = ca.identity_for_test(&Purpose::Sidecar { server_uid: "server".into() });
        let (lines, _) = broadcast::channel(16);
        let held = Mutex::new(first.iter().map(|report| report.uid.clone()).collect());
        let shared = Arc::new(Shared {
            first,
            lines: lines.clone(),
            ended: Mutex::default(),
            held,
            specs: Mutex::default(),
        });
        let app = Router::new()
            .route("/v1/sessions", get(watch))
            .route("/v1/sessions/{uid}", put(hold).delete(end))
            .with_state(shared.clone());
        let listener = TcpListener::bind((address, SIDECAR_PORT)).await.unwrap();
        let cancel = CancellationToken::new();
        tokio::spawn(serve::serve(listener, Some(identity), app, 8, cancel.clone()));
        Self { lines, cancel, shared }
    }

    /// Says a line on its streams.
    pub fn say(&self, line: &WatchLine) {
        self.lines.send(format!("{}\n", serde_json::to_string(line).unwrap())).unwrap();
    }

    /// Has it hold a session of which its streams tell nothing.
    pub fn hold(&self, uid: &str) {
        self.shared.held.lock().unwrap().insert(uid.to_owned());
    }

    /// The sessions that it holds.
    pub fn held(&self) -> Vec<String> {
        self.shared.held.lock().unwrap().iter().cloned().collect()
    }

    /// What it was asked to hold so far and took, taken out.
    pub fn specs(&self) -> Vec<SessionSpec> {
        std::mem::take(&mut *self.shared.specs.lock().unwrap())
    }

    /// The sessions that it was asked to end so far, taken out.
    pub fn ended(&self) -> Vec<(String, EndRequest)> {
        std::mem::take(&mut *self.shared.ended.lock().unwrap())
    }
}

impl Fleet {
    /// Puts what the stream of a pod has told in one step: `reports`, and whether those are all.
    pub fn tell(&self, pod_uid: &str, synced: bool, reports: &[SessionReport]) {
        self.with(|pods| {
            let sidecar = pods.get_mut(pod_uid).unwrap();
            sidecar.synced = synced;
            sidecar.reports = reports.iter().map(|report| (report.uid.clone(), report.clone())).collect();
        });
    }
}

async fn watch(State(shared): State<Arc<Shared>>) -> Response {
    let server = ServerKey { uid: "server".into(), name: "everything".into(), revision: "r".into() };
    let told = shared.first.iter().cloned().map(WatchLine::Session);
    let first: Vec<String> = told
        .chain([WatchLine::Synced { server, slots: 3 }])
        .map(|line| format!("{}\n", serde_json::to_string(&line).unwrap()))
        .collect();
    let later = stream::unfold(shared.lines.subscribe(), |mut lines| async move {
        let line = lines.recv().await.ok().filter(|line| line != "end")?;
        Some((line, lines))
    });
    let all = stream::iter(first).chain(later).map(|line| Ok::<_, Infallible>(Bytes::from(line)));
    Body::from_stream(all).into_response()
}

/// Refuses the session `one-too-many`, and `old-term` for a term that cannot be; cannot act on `invalid`, never answers
/// `no-answer`, takes every other.
async fn hold(
    State(shared): State<Arc<Shared>>,
    Path(uid): Path<String>,
    Json(spec): Json<SessionSpec>,
) -> Response {
    assert_eq!(uid, spec.uid);
    if uid == "one-too-many" {
        let refusal =
            Refusal { reason: RefusalReason::Full, message: "every slot is held".into(), term: None };
        return (http::StatusCode::CONFLICT, Json(refusal)).into_response();
    }
    if uid == "old-term" {
        let refusal =
            Refusal { reason: RefusalReason::OldTerm, message: "an old term".into(), term: Some(50_000) };
        return (http::StatusCode::CONFLICT, Json(refusal)).into_response();
    }
    if uid == "invalid" {
        return (http::StatusCode::BAD_REQUEST, "the upstream's url cannot be used\n").into_response();
    }
    if uid == "no-answer" {
        std::future::pending::<()>().await;
    }
    shared.held.lock().unwrap().insert(uid.clone());
    let taken = SessionReport { generation: spec.generation, ..report(&uid, SessionState::Idle) };
    shared.specs.lock().unwrap().push(spec);
    Json(taken).into_response()
}

async fn end(
    State(shared): State<Arc<Shared>>,
    Path(uid): Path<String>,
    Query(request): Query<EndRequest>,
) -> Response {
    let remove =
        if shared.held.lock().unwrap().remove(&uid) { Outcome::Confirmed } else { Outcome::NotNeeded };
    shared.ended.lock().unwrap().push((uid, request));
    Json(EndReport { remove, ..EndReport::NOTHING_HELD }).into_response()
}

/// What a sidecar reports of a session.
pub fn report(uid: &str, state: SessionState) -> SessionReport {
    serde_json::from_value(json!({
        "uid": uid, "generation": {"session": 1, "server": 1}, "state": state,
        "activity": {"requests": 0, "inFlight": 0, "connects": 0},
    }))
    .unwrap()
}

/// The ready pod `pod` of the server `everything`, whose sidecar is at `address`.
pub fn pod(address: &str) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "everything-x-0", "namespace": "demo", "uid": "pod", "labels": {"berth.dev/server-uid": "server"},
            "annotations": {"berth.dev/slots": "1"},
            "ownerReferences": [{"apiVersion": "berth.dev/v1alpha1", "kind": "McpServer", "name": "everything", "uid": "server"}]},
        "status": {"phase": "Running", "podIP": address, "conditions": [{"type": "Ready", "status": "True"}]},
    }))
    .unwrap()
}

/// Waits until `holds`, and no longer than ten seconds.
pub async fn until(what: &str, holds: impl Fn() -> bool) {
    let waited = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), waited).await.unwrap_or_else(|_| panic!("never: {what}"));
}
