//! The MCP endpoint: the order of things for every request to `/mcp`.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use http::{HeaderValue, Method, StatusCode, header};
use http_body_util::BodyExt as _;
use serde_json::value::RawValue;

use crate::{
    Probe,
    accept::{Abort, Connection},
    arrival::{Arrival, Claim},
    books::Ticket,
    methods,
    rpc::{INVALID_REQUEST, Message, NO_SESSION, RpcError, SESSION_NOT_FOUND},
    session::Session,
    sse,
};

/// Largest body that is read.
const BODY_LIMIT: usize = 64 << 20;

/// Protocol versions that are spoken, oldest first.
pub const VERSIONS: &[&str] = &["2024-11-05", "2025-03-26", "2025-06-18", NEWEST];

/// The version that is offered to a client who asks for an unknown one.
pub const NEWEST: &str = "2025-11-25";

/// Any request to `/mcp`: it is read, written into the books, struck by its fault, and answered.
pub async fn endpoint(State(probe): State<Arc<Probe>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    if let Some(connection) = parts.extensions.get::<Arc<Connection>>() {
        connection.mark_mcp();
    }
    let body = match axum::body::to_bytes(body, BODY_LIMIT).await {
        Ok(body) => body,
        Err(error) => return (StatusCode::PAYLOAD_TOO_LARGE, error.to_string()).into_response(),
    };
    let arrival = Arrival::new(&probe, parts.method, &parts.headers, &body);
    let fault = probe.faults.take(arrival.name());
    let ticket = probe.books.arrived(&arrival, fault.as_ref());

    let (before, after) = match fault {
        Some(fault) if fault.after => (None, Some(fault)),
        fault => (fault, None),
    };
    let struck = match before {
        Some(fault) => fault.strike().await,
        None => None,
    };
    let mut response = match struck {
        Some(response) => response,
        None => answer(&probe, arrival, ticket).await,
    };
    if let Some(fault) = after {
        response = finish(response).await;
        response = fault.strike().await.unwrap_or(response);
    }
    if response.extensions().get::<Abort>().is_none() {
        probe.books.answered(ticket, response.status().as_u16());
    }
    response
}

/// Waits for the whole body, so that the work is over when a fault strikes after it.
async fn finish(response: Response) -> Response {
    let (parts, body) = response.into_parts();
    let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    Response::from_parts(parts, Body::from(body))
}

async fn answer(probe: &Arc<Probe>, mut arrival: Arrival, ticket: Ticket) -> Response {
    let message = match arrival.message.take().transpose() {
        Ok(message) => message,
        Err(error) => return refuse(StatusCode::BAD_REQUEST, &error, None),
    };
    let id = message.as_ref().and_then(|message| message.id.as_deref());
    if let (Some(message), Some(id)) = (&message, id)
        && message.method.as_deref() == Some("initialize")
    {
        return methods::initialize(probe, &arrival, ticket, id, &message.params());
    }
    let session = match &arrival.claim {
        Claim::Live(session) => session,
        Claim::None => {
            let error = RpcError::new(NO_SESSION, "Bad Request: Mcp-Session-Id header is required");
            return refuse(StatusCode::BAD_REQUEST, &error, id);
        }
        Claim::Unknown(_) => return not_found(id),
    };
    if let Some(version) = arrival.version.as_deref().filter(|version| !VERSIONS.contains(version)) {
        let error =
            RpcError::new(NO_SESSION, format!("Bad Request: Unsupported protocol version: {version}"));
        return refuse(StatusCode::BAD_REQUEST, &error, id);
    }
    match (message, arrival.verb.clone()) {
        (Some(message), _) => post(probe, session, message, &arrival.authorization).await,
        (None, Method::GET) => {
            let streams = session.open_stream();
            let ends = [session.ended.clone(), probe.shutdown.clone()];
            sse::response(streams, ends, probe.settings.keep_alive)
        }
        (None, Method::DELETE) => {
            // Of two at once only one ends it.
            if !probe.sessions.end(&session.id) {
                return not_found(None);
            }
            probe.books.ended(&session.id);
            StatusCode::OK.into_response()
        }
        _ => (StatusCode::METHOD_NOT_ALLOWED, [(header::ALLOW, "GET, POST, DELETE")]).into_response(),
    }
}

async fn post(
    probe: &Arc<Probe>,
    session: &Arc<Session>,
    mut message: Message,
    authorization: &str,
) -> Response {
    match (message.id.take(), message.method.take()) {
        (Some(id), Some(method)) => {
            methods::request(probe, session, id, &method, message.params(), authorization).await
        }
        (None, Some(method)) => {
            methods::notification(probe, session, &method, &message);
            StatusCode::ACCEPTED.into_response()
        }
        (Some(id), None) if message.result.is_some() || message.error.is_some() => {
            session.answer(&id, message);
            StatusCode::ACCEPTED.into_response()
        }
        (id, None) => {
            let error =
                RpcError::new(INVALID_REQUEST, "Invalid request: neither method nor result nor error");
            refuse(StatusCode::BAD_REQUEST, &error, id.as_deref())
        }
    }
}

fn not_found(id: Option<&RawValue>) -> Response {
    refuse(StatusCode::NOT_FOUND, &RpcError::new(SESSION_NOT_FOUND, "Session not found"), id)
}

/// An answer of one JSON-RPC message as plain JSON.
pub fn json(status: StatusCode, text: String) -> Response {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// An error that concerns the HTTP request as a whole.
pub fn refuse(status: StatusCode, error: &RpcError, id: Option<&RawValue>) -> Response {
    json(status, error.text(id))
}
