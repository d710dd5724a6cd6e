//! What a test asks of the probe.

mod messages;
mod world;

use std::{collections::BTreeMap, sync::Arc};

use axum::{Json, extract::State, response::IntoResponse};
use http::StatusCode;
use serde::Serialize;
use serde_json::{Value, json};

pub use self::{
    messages::{ask, notify, push},
    world::{ca, drop_connections, lose, reset_tools, rotate, set_tools, tools},
};
use crate::{
    Probe,
    accept::ConnectionCounts,
    books::{Copy, Row},
    faults::Fault,
};

/// The books as they are answered.
#[derive(Debug, Serialize)]
pub struct BooksAnswer {
    connections: ConnectionCounts,
    sessions: Vec<SessionAnswer>,
    #[serde(flatten)]
    rest: Copy,
}

/// A session's row, and what is true of it at this moment.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct SessionAnswer {
    #[serde(flatten)]
    row: Row,
    in_flight: usize,
    streams: usize,
}

/// `GET /books`.
pub async fn books(State(probe): State<Arc<Probe>>) -> Json<BooksAnswer> {
    let rest = probe.books.copy();
    let sessions = rest
        .sessions
        .iter()
        .cloned()
        .map(|row| {
            let live = probe.sessions.get(&row.id);
            let (in_flight, streams) =
                live.map_or((0, 0), |session| (session.in_flight(), session.streams()));
            SessionAnswer { row, in_flight, streams }
        })
        .collect();
    Json(BooksAnswer { connections: probe.connections.counts(), sessions, rest })
}

/// `POST /books/reset`.
pub async fn reset(State(probe): State<Arc<Probe>>) -> StatusCode {
    probe.books.reset();
    probe.connections.reset();
    StatusCode::NO_CONTENT
}

/// `GET /faults`.
pub async fn faults(State(probe): State<Arc<Probe>>) -> Json<BTreeMap<String, Fault>> {
    Json(probe.faults.all())
}

/// `POST /faults`: answers what is set now, or 400 and why.
pub async fn set_faults(State(probe): State<Arc<Probe>>, body: String) -> impl IntoResponse {
    let change = serde_json::from_str(&body).map_err(|error| error.to_string());
    match change.and_then(|change| probe.faults.change(change)) {
        Ok(()) => Json(probe.faults.all()).into_response(),
        Err(error) => refuse(&error).into_response(),
    }
}

/// `DELETE /faults`.
pub async fn clear_faults(State(probe): State<Arc<Probe>>) -> StatusCode {
    probe.faults.clear();
    StatusCode::NO_CONTENT
}

fn refuse(error: &str) -> (StatusCode, Json<Value>) {
    (StatusCode::BAD_REQUEST, Json(json!({ "error": error })))
}
