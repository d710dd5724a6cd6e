//! What a test changes in the world of the probe: sessions that are lost, connections that break, tools that come and go,
//! certificates.

use std::sync::Arc;

use axum::{Json, extract::State, response::IntoResponse};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::refuse;
use crate::{Probe, catalogue::Catalogue, session::Loss};

/// Body of `POST /sessions/lose`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Lose {
    /// Only this session; else all.
    session: Option<String>,
    /// How its requests are answered from now on.
    #[serde(default)]
    answer: Loss,
}

/// `POST /sessions/lose`: forgets sessions, as a restart does, and says how many.
pub async fn lose(State(probe): State<Arc<Probe>>, body: String) -> impl IntoResponse {
    let wanted: Lose = match serde_json::from_str(&body) {
        Ok(wanted) => wanted,
        Err(error) => return refuse(&error.to_string()).into_response(),
    };
    let ids = probe.sessions.all().into_iter().map(|session| session.id.clone());
    let lost = ids
        .filter(|id| wanted.session.as_ref().is_none_or(|only| only == id))
        .filter(|id| probe.sessions.lose(id, wanted.answer))
        .inspect(|id| probe.books.ended(id, "lost"))
        .count();
    Json(json!({ "lost": lost })).into_response()
}

/// `POST /connections/drop`: drops every connection that carried a request to `/mcp`, and says how many.
pub async fn drop_connections(State(probe): State<Arc<Probe>>) -> Json<Value> {
    Json(json!({ "dropped": probe.connections.drop_mcp() }))
}

/// `GET /tools`.
pub async fn tools(State(probe): State<Arc<Probe>>) -> Json<Catalogue> {
    Json(probe.catalogue.get())
}

/// `POST /tools`: what is not named is as by default.
pub async fn set_tools(State(probe): State<Arc<Probe>>, body: String) -> impl IntoResponse {
    match serde_json::from_str(&body) {
        Ok(catalogue) => {
            probe.catalogue.set(catalogue);
            Json(probe.catalogue.get()).into_response()
        }
        Err(error) => refuse(&error.to_string()).into_response(),
    }
}

/// `DELETE /tools`: the list as it was at the start.
pub async fn reset_tools(State(probe): State<Arc<Probe>>) -> StatusCode {
    probe.catalogue.set(Catalogue::default());
    StatusCode::NO_CONTENT
}

/// `GET /tls/ca`: the CA of the TLS ports, as PEM.
pub async fn ca(State(probe): State<Arc<Probe>>) -> impl IntoResponse {
    probe.tls.ca().map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
}

/// `POST /tls/rotate`: a new CA and new certificates; answers the new CA.
pub async fn rotate(State(probe): State<Arc<Probe>>) -> impl IntoResponse {
    probe.tls.rotate().map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
}
