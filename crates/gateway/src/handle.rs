//! One request from its head to its answer: the table of contents of the data path.

use crate::body;
use crate::forward::{self, Call};
use crate::gateway::Gateway;
use crate::header;
use crate::metrics::Kind;
use crate::origin;
use crate::path::{self, Parsed};
use crate::place::Ask;
use crate::respond::Refusal;
use crate::route::Decision;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{Method, Uri};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The routes of the gateway: every path is read by [`path::parse`].
pub fn router(gateway: Arc<Gateway>) -> Router {
    Router::new().fallback(handle).with_state(gateway)
}

async fn handle(State(gateway): State<Arc<Gateway>>, request: Request) -> Response {
    let started = Instant::now();
    let (kind, uri) = (Kind::of(request.method()), request.uri().clone());
    let mut running = gateway.metrics.begin(kind);
    let (response, relayed) = match relay(&gateway, request, kind).await {
        Ok(response) => (response, true),
        Err(refusal) => (refusal.into_response(), false),
    };
    running.answered(response.status());
    log(&uri, kind, &response, relayed, started.elapsed());
    if relayed { body::relay(response, kind, running, &gateway) } else { response }
}

/// One line a call: a path only when it is one of ours, since then it holds names and nothing else.
fn log(uri: &Uri, kind: Kind, response: &Response, relayed: bool, elapsed: Duration) {
    let path = if matches!(path::parse(uri.path()), Parsed::Session(_)) { uri.path() } else { "-" };
    let (kind, status) = (kind.as_str(), response.status().as_u16());
    if response.status().is_server_error() {
        tracing::warn!(path, kind, status, relayed, ?elapsed, "call failed");
    } else {
        tracing::debug!(path, kind, status, relayed, ?elapsed, "call answered");
    }
}

/// Who may not call learns nothing but that: everything before the body is read costs the caller only its head.
async fn relay(gateway: &Gateway, request: Request, kind: Kind) -> Result<Response, Refusal> {
    let (head, body) = request.into_parts();
    header::check_size(&head.headers)?;
    origin::check(&head.headers, &gateway.settings)?;
    let path = match (kind, path::parse(head.uri.path())) {
        (Kind::Other, _) | (_, Parsed::Elsewhere) => return Err(Refusal::Elsewhere),
        (_, Parsed::Impossible) => None,
        (_, Parsed::Session(path)) => Some(path),
    };
    let caller = gateway.authenticator.authenticate(&head.headers).await?;
    let path = path.ok_or(Refusal::SessionNotFound)?;
    let mut ask =
        Ask { path: &path, key: path.key(), user: &caller.user, may_connect: false, since: Instant::now() };
    // Whoever has nothing as a subject needs a review, be the session unknown, ended or somebody else's.
    if ask.decide(gateway.index.get(&ask.key).as_deref()) == Decision::NotFound {
        ask.may_connect = gateway.authorizer.may_connect(&caller, &path).await?;
    }
    let body = read(gateway, &head.method, body).await?;
    let call = Call { method: head.method, headers: header::for_sidecar(&head.headers), body };
    forward::forward(gateway, &ask, &call).await
}

/// Only a POST carries something on.
async fn read(gateway: &Gateway, method: &Method, body: Body) -> Result<Bytes, Refusal> {
    if *method == Method::POST { body::read(body, gateway).await } else { Ok(Bytes::new()) }
}
