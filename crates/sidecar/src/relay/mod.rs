//! The data path: MCP of the legacy era towards clients, for the gateway only.
//!
//! [`call`] relays a request, [`message`] what wants no answer, [`map`] turns ids; `initialize` and `ping` end here.

mod answer;
mod call;
mod clock;
mod map;
mod message;
mod read;
mod reply;

use crate::budget::Charge;
use crate::registry::Registry;
use crate::session::{CallError, Scope, Session};
use answer::{json, not_held, not_initialized, refuse, scope_unknown};
use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use berth_mcp::error::{self, render_result};
use berth_mcp::frame::{Frame, Token};
use berth_mcp::{header, method};
use call::Call;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use map::Ids;
use reply::Reply;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Largest message of a client, in bytes.
pub const REQUEST_LIMIT: usize = 4 * 1024 * 1024;
const SESSION_ID: HeaderName = HeaderName::from_static(header::MCP_SESSION_ID);

/// Route `/mcp/{uid}`. GET answers 405: server messages that belong to no call have no stream yet.
pub(crate) fn router(registry: Arc<Registry>) -> Router {
    let path = format!("/{}/{{uid}}", berth_wire::DATA_PREFIX);
    Router::new().route(&path, post(receive).delete(close_scope)).with_state(registry)
}

async fn receive(
    State(registry): State<Arc<Registry>>,
    Path(uid): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let Some(session) = registry.get(&uid) else { return not_held() };
    let mut charge = session.shared.budget.charge();
    let bytes = match read::message(body, &mut charge).await {
        Ok(bytes) => bytes,
        Err(error) => {
            let (status, code) = error.codes();
            return refuse(status, code, &error.to_string(), None);
        }
    };
    let Ok(text) = std::str::from_utf8(&bytes) else {
        return refuse(StatusCode::BAD_REQUEST, error::PARSE_ERROR, "the message is not UTF-8", None);
    };
    let frame = match Frame::parse(text) {
        Ok(frame) => frame,
        Err(error) => return refuse(StatusCode::BAD_REQUEST, error.code(), &error.to_string(), None),
    };
    if let Frame::Request { id, method, params, .. } = &frame
        && method == method::INITIALIZE
    {
        return initialize(&session, id, params.unwrap_or("{}")).await;
    }
    let request_id = match &frame {
        Frame::Request { id, .. } => Some(id.raw()),
        Frame::Notification { .. } | Frame::Response { .. } => None,
    };
    let scope = match scope_of(&session, &headers, request_id) {
        Ok(scope) => scope,
        Err(response) => return *response,
    };
    match &frame {
        Frame::Request { id, method, .. } if method == method::PING => {
            json(StatusCode::OK, render_result(id.raw(), "{}"))
        }
        Frame::Request { id, progress_token, .. } => {
            let ids = (id, progress_token.as_ref());
            relay(&session, scope, text, ids, charge).await
        }
        _ => message::pass(&session, &scope, text, &frame).await.into_response(),
    }
}

/// Opens a client scope on the session's connection, which is made if there is none.
async fn initialize(session: &Arc<Session>, id: &Token<'_>, params: &str) -> Response {
    let Some(guard) = session.begin_call(None) else { return not_held() };
    let result = if guard.is_over_limit() {
        Err(CallError::TooMany)
    } else {
        session.connection(Some(&params.into())).await
    };
    let connection = match result {
        Ok(connection) => connection,
        Err(error) => return json(StatusCode::OK, error.render(&guard.desired.server.name, id.raw())),
    };
    let Some(scope) = session.open_scope() else {
        return json(StatusCode::OK, CallError::Ending.render(&guard.desired.server.name, id.raw()));
    };
    let mut response = json(StatusCode::OK, render_result(id.raw(), &connection.initialize_result));
    if let Ok(value) = HeaderValue::try_from(scope) {
        response.headers_mut().insert(SESSION_ID, value);
    }
    response
}

async fn relay(
    session: &Arc<Session>,
    scope: Arc<Scope>,
    text: &str,
    (id, token): (&Token<'_>, Option<&Token<'_>>),
    charge: Charge,
) -> Response {
    let Some(guard) = session.begin_call(Some((scope, id.key()))) else { return not_held() };
    let server = guard.desired.server.name.clone();
    if guard.is_over_limit() {
        return json(StatusCode::OK, CallError::TooMany.render(&server, id.raw()));
    }
    let ids = Ids::new(id, token, guard.upstream_id);
    let message = ids.outbound(text, id, token);
    let (head, answer) = oneshot::channel();
    session.spawn(Call::new(guard, ids, message, charge, Reply::new(head)).run());
    let Ok(answer) = answer.await else {
        // Only a panic of the call leaves it unanswered.
        let body = error::ErrorBody::new(error::INTERNAL, "the sidecar failed; the outcome is unknown")
            .server(server);
        return json(StatusCode::OK, body.render(Some(id.raw())));
    };
    answer.into_response()
}

async fn close_scope(
    State(registry): State<Arc<Registry>>,
    Path(uid): Path<String>,
    headers: HeaderMap,
) -> Response {
    let Some(session) = registry.get(&uid) else { return not_held() };
    match headers.get(SESSION_ID).map(HeaderValue::to_str) {
        None => not_initialized(None),
        Some(Ok(id)) if session.close_scope(id) => StatusCode::NO_CONTENT.into_response(),
        Some(_) => scope_unknown(None),
    }
}

/// The scope that the request names.
fn scope_of(session: &Session, headers: &HeaderMap, id: Option<&str>) -> Result<Arc<Scope>, Box<Response>> {
    match headers.get(SESSION_ID).map(HeaderValue::to_str) {
        None => Err(Box::new(not_initialized(id))),
        Some(Ok(scope)) => session.scope(scope).ok_or_else(|| Box::new(scope_unknown(id))),
        Some(Err(_)) => Err(Box::new(scope_unknown(id))),
    }
}
