//! The control API, for the operator only.

mod watch;

use crate::bounds::millis;
use crate::registry::{PutError, Registry};
use crate::session::Deadlines;
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use axum::{Json, Router};
use berth_wire::{EndPhase, EndRequest, SessionSpec};
use bytes::Bytes;
use http::StatusCode;
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Largest PUT, in bytes.
const SPEC_LIMIT: usize = 1024 * 1024;
/// Longest uid, in bytes: tombstones keep them.
const UID_LIMIT: usize = 128;
/// Longest wait of one DELETE.
const MAX_WAIT: Duration = Duration::from_mins(1);

#[derive(Clone)]
struct Control {
    registry: Arc<Registry>,
    /// Ends the watches: they would hold up the server's own end.
    stop: CancellationToken,
}

/// Routes under `/v1`.
pub(crate) fn router(registry: Arc<Registry>, stop: CancellationToken) -> Router {
    Router::new()
        .route("/v1/sessions", get(list))
        .route("/v1/sessions/{uid}", put(apply).delete(end))
        .layer(DefaultBodyLimit::max(SPEC_LIMIT))
        .with_state(Control { registry, stop })
}

async fn apply(State(control): State<Control>, Path(uid): Path<String>, body: Bytes) -> Response {
    let spec: SessionSpec = match serde_json::from_slice(&body) {
        Ok(spec) => spec,
        // The parser's own words could quote a credential.
        Err(error) => {
            let text = format!(
                "the body is not a session spec: see line {}, column {}\n",
                error.line(),
                error.column()
            );
            return (StatusCode::BAD_REQUEST, text).into_response();
        }
    };
    if uid.len() > UID_LIMIT || spec.uid != uid {
        let text = "the uid of the path must be the uid of the body, at most 128 bytes\n";
        return (StatusCode::BAD_REQUEST, text).into_response();
    }
    match control.registry.put(spec) {
        Ok(report) => Json(report).into_response(),
        Err(PutError::Refused(refusal)) => (StatusCode::CONFLICT, Json(refusal)).into_response(),
        Err(PutError::Invalid(error)) => (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    }
}

async fn end(
    State(control): State<Control>,
    Path(uid): Path<String>,
    Query(request): Query<EndRequest>,
) -> Response {
    if uid.len() > UID_LIMIT {
        return (StatusCode::BAD_REQUEST, "the uid is longer than 128 bytes\n").into_response();
    }
    let deadlines = Deadlines { drain: millis(request.drain_millis), close: millis(request.close_millis) };
    let mut end = control.registry.end(&uid, deadlines);
    let wait = millis(request.wait_millis).min(MAX_WAIT);
    let _ = tokio::time::timeout(wait, end.wait_for(|end| end.phase == EndPhase::Ended)).await;
    let report = *end.borrow();
    let status = if report.phase == EndPhase::Ended { StatusCode::OK } else { StatusCode::ACCEPTED };
    (status, Json(report)).into_response()
}

#[derive(Deserialize)]
struct ListQuery {
    #[serde(default)]
    watch: bool,
}

async fn list(State(control): State<Control>, Query(query): Query<ListQuery>) -> Response {
    if query.watch {
        watch::respond(control.registry, control.stop)
    } else {
        Json(control.registry.reports()).into_response()
    }
}
