//! The control API, for the operator that leads.

mod term;
mod watch;

use crate::bounds::millis;
use crate::metrics::{Metrics, Verb};
use crate::registry::{PutError, Registry};
use crate::session::Deadlines;
use axum::extract::{DefaultBodyLimit, Path, Query, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use axum::{Json, Router};
use berth_net::watch::respond;
use berth_wire::{EndPhase, EndRequest, Refusal, SessionSpec};
use bytes::Bytes;
use http::{Method, StatusCode};
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;
use term::Term;

/// Largest PUT, in bytes.
const SPEC_LIMIT: usize = 1024 * 1024;
/// Longest uid, in bytes: tombstones keep them.
const UID_LIMIT: usize = 128;
/// Longest wait of one DELETE.
const MAX_WAIT: Duration = Duration::from_mins(1);

#[derive(Clone)]
struct Control {
    registry: Arc<Registry>,
}

/// Routes under `/v1`.
pub(crate) fn router(registry: Arc<Registry>) -> Router {
    Router::new()
        .route("/v1/sessions", get(list))
        .route("/v1/sessions/{uid}", put(apply).delete(end))
        .layer(DefaultBodyLimit::max(SPEC_LIMIT))
        .layer(middleware::from_fn_with_state(registry.shared.metrics.clone(), counted))
        .with_state(Control { registry })
}

async fn counted(State(metrics): State<Metrics>, request: Request, next: Next) -> Response {
    let verb = match *request.method() {
        Method::PUT => Verb::Put,
        Method::DELETE => Verb::Delete,
        _ => Verb::Get,
    };
    let response = next.run(request).await;
    metrics.count_control(verb, response.status().is_success());
    response
}

async fn apply(
    Term(term): Term,
    State(control): State<Control>,
    Path(uid): Path<String>,
    body: Bytes,
) -> Response {
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
    match control.registry.put(term, spec) {
        Ok(report) => Json(report).into_response(),
        Err(PutError::Refused(refusal)) => conflict(refusal),
        Err(PutError::Invalid(error)) => (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    }
}

async fn end(
    Term(term): Term,
    State(control): State<Control>,
    Path(uid): Path<String>,
    Query(request): Query<EndRequest>,
) -> Response {
    if uid.len() > UID_LIMIT {
        return (StatusCode::BAD_REQUEST, "the uid is longer than 128 bytes\n").into_response();
    }
    let deadlines = Deadlines { drain: millis(request.drain_millis), close: millis(request.close_millis) };
    let mut end = match control.registry.end(term, &uid, deadlines) {
        Ok(end) => end,
        Err(refusal) => return conflict(refusal),
    };
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

async fn list(Term(term): Term, State(control): State<Control>, Query(query): Query<ListQuery>) -> Response {
    let answer = if query.watch {
        control.registry.watch(term).map(|ended| respond(control.registry.clone(), ended))
    } else {
        control.registry.list(term).map(|reports| Json(reports).into_response())
    };
    answer.unwrap_or_else(conflict)
}

fn conflict(refusal: Refusal) -> Response {
    (StatusCode::CONFLICT, Json(refusal)).into_response()
}
