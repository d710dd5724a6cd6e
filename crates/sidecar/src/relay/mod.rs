//! The data path: MCP of the legacy era towards clients, for the gateway only.
//!
//! [`request`] takes a client's request and [`call`] relays it, [`attached`] to its client as long as that is there;
//! [`message`] is what wants no answer, [`map`] turns ids.
//! [`listen`] is a client's GET, [`source`] the upstream's own stream behind it, [`fan`] what comes on that, [`resubscribe`] sees to
//! it that this goes on after a loss; [`ask`] hands a client what the server asks. [`initialize`] and `ping` end here.

mod answer;
mod ask;
mod attached;
mod call;
mod clock;
mod fan;
mod initialize;
mod listen;
mod map;
mod message;
mod outside;
mod read;
mod reply;
mod request;
mod resubscribe;
mod resume;
mod source;

use crate::registry::Registry;
use crate::session::{NoScope, Scope, Session};
use answer::{SESSION_ID, json, not_held, not_initialized, refuse, scope_unknown, too_many_clients};
use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use berth_mcp::error::{self, render_result};
use berth_mcp::frame::Frame;
use berth_mcp::{header, method};
use http::header::{ACCEPT, ALLOW, RETRY_AFTER};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use std::sync::Arc;

/// Seconds after which one whom the sidecar had no room for may ask again: as soon as others are done.
const ASK_AGAIN: &str = "1";

/// The session that a path of the data path names; none if it is another path.
pub(crate) fn session_of(path: &str) -> Option<&str> {
    let uid = path.strip_prefix('/')?.strip_prefix(berth_wire::DATA_PREFIX)?.strip_prefix('/')?;
    (!uid.is_empty() && !uid.contains('/')).then_some(uid)
}

/// Answers a request of the gateway's.
pub(crate) async fn answer(registry: &Registry, request: Request) -> Response {
    let (Parts { method, uri, headers, .. }, body) = request.into_parts();
    let Some(session) = session_of(uri.path()).and_then(|uid| registry.get(uid)) else { return not_held() };
    hinted(match method {
        Method::POST => receive(&session, &headers, body).await,
        Method::GET => listen::open(&session, &headers).await,
        Method::DELETE => close_scope(&session, &headers),
        _ => (StatusCode::METHOD_NOT_ALLOWED, [(ALLOW, "POST, GET, DELETE")]).into_response(),
    })
}

/// The response, which says when to ask again if it says "later". Every status is the sidecar's own: what the upstream says of its
/// limits is in the JSON-RPC error.
fn hinted(mut response: Response) -> Response {
    if matches!(response.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(ASK_AGAIN));
    }
    response
}

async fn receive(session: &Arc<Session>, headers: &HeaderMap, body: Body) -> Response {
    let mut charge = session.shared.budget.charge();
    let limit = usize::try_from(session.desired().limits.request_bytes).unwrap_or(usize::MAX);
    let bytes = match read::message(body, limit, &mut charge).await {
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
        let opening = initialize::Initialize { id: id.raw(), params: params.unwrap_or("{}"), charge };
        return opening.open(session, accepts_stream(headers)).await;
    }
    let scope = match &frame {
        Frame::Request { id, .. } => scope_for_work(session, headers, Some(id.raw())),
        // They may belong to what still runs in a session that ends.
        Frame::Notification { .. } | Frame::Response { .. } => scope_of(session, headers, None),
    };
    let scope = match scope {
        Ok(scope) => scope,
        Err(response) => return *response,
    };
    match &frame {
        Frame::Request { id, method, .. } if method == method::PING => {
            json(StatusCode::OK, render_result(id.raw(), "{}"))
        }
        Frame::Request { id, method, progress_token, .. } => {
            let request = request::Request { text, id, method, token: progress_token.as_ref(), charge };
            request.relay(session, scope, accepts_stream(headers)).await
        }
        _ => message::pass(session, &scope, text, &frame).await.into_response(),
    }
}

fn close_scope(session: &Arc<Session>, headers: &HeaderMap) -> Response {
    let Some(token) = headers.get(SESSION_ID) else { return not_initialized(None) };
    let Ok(scope) = token.to_str().map_err(|_| NoScope::Unknown).and_then(|token| session.close_scope(token))
    else {
        return scope_unknown(None);
    };
    if let Some(scope) = scope {
        ask::client_ended(session, &scope);
    }
    StatusCode::NO_CONTENT.into_response()
}

/// The scope that a request for something new names. Whether there can be anything new is asked first: a session that ends here may
/// go on elsewhere, and its clients are known there.
fn scope_for_work(
    session: &Session,
    headers: &HeaderMap,
    id: Option<&str>,
) -> Result<Arc<Scope>, Box<Response>> {
    if session.takes_work() { scope_of(session, headers, id) } else { Err(Box::new(not_held())) }
}

/// The scope that the request names.
fn scope_of(session: &Session, headers: &HeaderMap, id: Option<&str>) -> Result<Arc<Scope>, Box<Response>> {
    let Some(token) = headers.get(SESSION_ID) else { return Err(Box::new(not_initialized(id))) };
    let scope = token.to_str().map_err(|_| NoScope::Unknown).and_then(|token| session.scope(token));
    match scope {
        Ok(scope) if session.has_lost_state_of(&scope) => Err(Box::new(scope_unknown(id))),
        Ok(scope) => Ok(scope),
        Err(NoScope::Unknown) => Err(Box::new(scope_unknown(id))),
        Err(NoScope::Ending) => Err(Box::new(not_held())),
        Err(NoScope::TooMany) => Err(Box::new(too_many_clients(id))),
    }
}

/// Whether the client takes an event stream.
fn accepts_stream(headers: &HeaderMap) -> bool {
    header::accepts_stream(headers.get_all(ACCEPT).iter().map(HeaderValue::as_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_path_names_one_session() {
        assert_eq!(session_of("/mcp/0b1e-uid"), Some("0b1e-uid"));
        for path in ["/mcp/", "/mcp", "/mcp/a/", "/mcp/a/b", "/mcpa", "/v1/sessions", "/", ""] {
            assert_eq!(session_of(path), None, "{path}");
        }
    }

    #[test]
    fn who_finds_no_room_is_told_when_to_ask_again() {
        let hint = |response| hinted(response).headers().get(RETRY_AFTER).cloned();
        for response in [too_many_clients(None), StatusCode::SERVICE_UNAVAILABLE.into_response()] {
            assert_eq!(hint(response).unwrap(), "1");
        }
        for response in [not_held(), scope_unknown(None), StatusCode::ACCEPTED.into_response()] {
            assert_eq!(hint(response), None);
        }
    }
}
