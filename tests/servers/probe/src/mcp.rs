//! The MCP endpoint: the order of things for every request to `/mcp`.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode, header};
use http_body_util::BodyExt as _;
use serde_json::value::RawValue;

use crate::{
    Probe,
    accept::{Abort, Connection},
    arrival::{Arrival, Claim, Place},
    books::{Reply, Ticket},
    faults::{self, Fault, read},
    methods::{self, Asked},
    ports::Port,
    rpc::{INVALID_PARAMS, INVALID_REQUEST, Message, NO_SESSION, RpcError, SESSION_NOT_FOUND},
    session::{Loss, Session},
    sse,
};

/// Protocol versions that are spoken, oldest first.
pub const VERSIONS: &[&str] = &["2024-11-05", "2025-03-26", "2025-06-18", NEWEST];

/// The version that is offered to a client who asks for an unknown one.
pub const NEWEST: &str = "2025-11-25";

/// Any request to `/mcp`: it is read, written into the books, struck by its fault, and answered.
pub async fn endpoint(State(probe): State<Arc<Probe>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let connection = parts.extensions.get::<Arc<Connection>>();
    let port = connection.map_or(Port::Main, |connection| connection.port);
    if let Some(connection) = connection {
        connection.mark_mcp();
    }
    let host = parts.headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let place = Place { port, path: parts.uri.path().to_owned(), host: host.to_owned() };
    let slow = (parts.method == Method::POST).then(|| probe.faults.take_read(&place)).flatten();
    if slow.is_some() {
        probe.books.faulted();
    }
    let body = match read::body(body, slow.as_ref()).await {
        Ok(body) => body,
        Err(response) => return response,
    };
    let arrival = Arrival::new(&probe, place, parts.method, &parts.headers, body);
    let fault = match faults::named(arrival.params()) {
        Ok(Some(fault)) => Some(fault),
        Ok(None) => probe.faults.take(arrival.name(), &arrival.place),
        Err(error) => {
            return refuse(StatusCode::BAD_REQUEST, &RpcError::new(INVALID_PARAMS, error), arrival.id());
        }
    };
    let ticket = probe.books.arrived(&arrival, fault.as_ref());
    let response = match fault {
        Some(fault) => answer_badly(&probe, arrival, ticket, &fault).await,
        None => answer(&probe, arrival, ticket).await,
    };
    if response.extensions().get::<Abort>().is_none() {
        probe.books.answered(ticket, response.status().as_u16());
    }
    response
}

async fn answer_badly(probe: &Arc<Probe>, arrival: Arrival, ticket: Ticket, fault: &Fault) -> Response {
    let id = arrival.id().map(|id| id.get().to_owned());
    let response = if fault.after {
        let response = finish(answer(probe, arrival, ticket).await).await;
        fault.strike(id.as_deref()).await.unwrap_or(response)
    } else {
        match fault.strike(id.as_deref()).await {
            Some(response) => response,
            None => answer(probe, arrival, ticket).await,
        }
    };
    match &fault.answer {
        Some(spoilt) if response.extensions().get::<Abort>().is_none() => spoilt.spoil(response).await,
        _ => response,
    }
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
        Claim::Unknown(session) => return unknown(probe, session, id),
    };
    if let Some(version) = arrival.version.as_deref().filter(|version| !VERSIONS.contains(version)) {
        let error =
            RpcError::new(NO_SESSION, format!("Bad Request: Unsupported protocol version: {version}"));
        return refuse(StatusCode::BAD_REQUEST, &error, id);
    }
    match (message, arrival.verb.clone()) {
        (Some(message), _) => post(probe, session, message, arrival.body, arrival.authorization).await,
        (None, Method::GET) => {
            let streams = session.open_stream();
            let ends = [session.ended.clone(), probe.shutdown.clone()];
            sse::response(streams, ends, probe.settings.keep_alive)
        }
        (None, Method::DELETE) => {
            // Of two at once only one ends it.
            if !probe.sessions.end(&session.id) {
                return unknown(probe, &session.id, None);
            }
            probe.books.ended(&session.id, "DELETE");
            StatusCode::OK.into_response()
        }
        _ => (StatusCode::METHOD_NOT_ALLOWED, [(header::ALLOW, "GET, POST, DELETE")]).into_response(),
    }
}

async fn post(
    probe: &Arc<Probe>,
    session: &Arc<Session>,
    mut message: Message,
    body: Bytes,
    authorization: String,
) -> Response {
    match (message.id.take(), message.method.take()) {
        (Some(id), Some(method)) => {
            let (params, raw) = (message.params(), message.params);
            methods::request(probe, session, Asked { id, method, params, raw, body, authorization }).await
        }
        (None, Some(method)) => {
            methods::notification(probe, session, &method, &message);
            StatusCode::ACCEPTED.into_response()
        }
        (Some(id), None) if message.result.is_some() || message.error.is_some() => {
            let said = (message.result.clone(), message.error.clone());
            let asked = session.answer(&id, message);
            probe.books.replied(Reply::new(&session.id, id, asked, said));
            StatusCode::ACCEPTED.into_response()
        }
        (id, None) => {
            let error =
                RpcError::new(INVALID_REQUEST, "Invalid request: neither method nor result nor error");
            refuse(StatusCode::BAD_REQUEST, &error, id.as_deref())
        }
    }
}

/// A session that is not there: never was, was ended, or was lost in a way of its own.
fn unknown(probe: &Probe, session: &str, id: Option<&RawValue>) -> Response {
    let error = RpcError::new(SESSION_NOT_FOUND, "Session not found");
    match probe.sessions.loss(session) {
        None | Some(Loss::NotFound) => refuse(StatusCode::NOT_FOUND, &error, id),
        Some(Loss::BadRequest) => {
            let error = RpcError::new(NO_SESSION, "Bad Request: No valid session ID provided");
            refuse(StatusCode::BAD_REQUEST, &error, id)
        }
        Some(Loss::Event) => {
            let mut response = Response::new(Body::from(sse::event(&error.text(id))));
            let stream = HeaderValue::from_static("text/event-stream");
            response.headers_mut().insert(header::CONTENT_TYPE, stream);
            response
        }
    }
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
